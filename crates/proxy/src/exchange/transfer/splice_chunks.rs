//! Chunked bodies between two plaintext connections: what is long of a chunk goes past all buffers, and the framing
//! between chunks is read alone where the next one may be as long.
//!
//! A splice makes a chunk of its own, whose line goes out in front of it: nothing is announced that is not here. The
//! end of that chunk goes out with what comes next, at the latest with the end of the peer's.

use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::Framing;

use super::body::{Download, Upload};
use super::http1_pair::Http1Pair;
use super::limits::Side;
use super::stop::{Stop, server_fault};
use super::upstream::part::Written;
use crate::client::connection::Connection;

/// Staged bytes that may wait for the data behind them: framing, and nothing else.
const FRAMING_BYTES_MAX: usize = 64;

impl Http1Pair<'_, '_> {
    /// Whether what comes next of the response's body is data of a long chunk.
    pub fn splices_chunk_down(&mut self) -> bool {
        let Download::Chunked(decoder) = &self.server.download else { return false };
        if self.server.down.held() > 0 {
            return true;
        }
        let left = decoder.left();
        self.is_plain()
            && self.framing == Framing::Chunked
            && self.connection.wire.len() <= FRAMING_BYTES_MAX
            && left > 0
            && self.server.down.is_ready(&self.progress.core.pipes, left)
    }

    /// Splices some of the chunk's data, of which no byte is in a buffer.
    pub fn poll_splice_chunk_down(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { connection, server, progress, .. } = self;
        let Download::Chunked(decoder) = &mut server.download else { return Poll::Ready(Ok(())) };
        let Some(from) = server.connection.stream.plain_socket() else { return Poll::Ready(Ok(())) };
        let core = &progress.core;
        if server.down.held() == 0 {
            core.buffers.release(&mut server.answer);
            match server.down.poll_fill(context, from, decoder.left()) {
                Poll::Pending => {
                    ready!(self.poll_client_flush(context))?;
                    self.progress.limits.download.wait_for(Side::Server, &self.progress.core);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) if count > 0 => progress.limits.download.clear(),
                Poll::Ready(_) => return Poll::Ready(Err(server_fault(Fault::BodyCutShort))),
            }
            let mut line = core.scratch.borrow_mut();
            line.clear();
            server.down.begin_chunk(decoder, &mut line);
            progress.request.note.bytes_sent += line.len() as u64;
            let Connection { stream, wire, .. } = &mut **connection;
            stream.stage(&line, &core.buffers, wire);
            // In one packet with the data, if the socket has room. An error shows again at the flush.
            if let Ok(count) = stream.socket.send_more(wire.readable()) {
                wire.consume(count);
            }
        }
        ready!(self.poll_client_flush(context))?;
        let Http1Pair { connection, server, progress, .. } = self;
        let (core, download) = (&progress.core, &mut progress.limits.download);
        match server.down.poll_drain_chunk(context, &mut connection.stream.socket) {
            Poll::Pending => {
                download.wait_for(Side::Client, core);
                Poll::Pending
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::Client(Fault::ClientReset))),
            Poll::Ready(Ok(count)) => {
                download.progressed(count, core);
                progress.request.note.bytes_sent += count as u64;
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Reads the framing behind a chunk of the response that was spliced.
    pub fn poll_line_down(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { server, progress, .. } = self;
        let Some(from) = server.connection.stream.plain_socket() else { return Poll::Ready(Ok(())) };
        match server.down.poll_line(context, (from, &progress.core.buffers), &mut server.answer) {
            Poll::Pending => {
                progress.limits.download.wait_for(Side::Server, &progress.core);
                Poll::Pending
            }
            Poll::Ready(Ok(count)) if count > 0 => {
                progress.limits.download.clear();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(_) => Poll::Ready(Err(server_fault(Fault::BodyCutShort))),
        }
    }

    /// Whether what comes next of the request's body is data of a long chunk.
    pub fn splices_chunk_up(&mut self) -> bool {
        let Upload::Chunked { decoder, .. } = &self.progress.upload else { return false };
        if self.server.up.held() > 0 {
            return true;
        }
        let left = decoder.left();
        self.is_plain()
            && !self.connection.stream.ended
            && self.connection.inbox.is_idle()
            && left > 0
            && self.server.up.is_ready(&self.progress.core.pipes, left)
    }

    /// Splices some of the chunk's data, of which no byte is in a buffer.
    pub fn poll_splice_chunk_up(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { connection, server, progress, .. } = self;
        let Upload::Chunked { decoder, .. } = &mut *progress.upload else { return Poll::Ready(Ok(())) };
        let core = &progress.core;
        if server.up.held() == 0 {
            core.buffers.release(&mut connection.inbox);
            let stream = &mut connection.stream;
            let Poll::Ready(filled) = server.up.poll_fill(context, &mut stream.socket, decoder.left()) else {
                progress.limits.upload.wait_for(Side::Client, core);
                return Poll::Pending;
            };
            let count = filled.map_err(|_| Stop::Client(Fault::ClientReset))?;
            if count == 0 {
                stream.ended = true;
                return Poll::Ready(Err(Stop::Client(Fault::ClientClosed)));
            }
            progress.limits.upload.progressed(count, core);
            progress.request.note.bytes_received += count as u64;
            let mut line = core.scratch.borrow_mut();
            line.clear();
            server.up.begin_chunk(decoder, &mut line);
            core.buffers.equip(&mut server.outbox);
            server.outbox.extend(&line);
            // In one packet with the data, if the socket has room. An error shows again at the write.
            if let Some(socket) = server.connection.stream.plain_socket()
                && let Ok(count) = socket.send_more(server.outbox.readable())
            {
                server.outbox.consume(count);
            }
        }
        let (written, sent) = server.poll_write(context, &core.buffers, b"");
        ready!(progress.note_sent(written, sent))?;
        let Some(to) = server.connection.stream.plain_socket() else { return Poll::Ready(Ok(())) };
        let mut written = Written::default();
        let sent = server.up.poll_drain_chunk(context, to).map(|drained| {
            let count = drained.map_err(drop)?;
            written = Written { all: count, body: count };
            Ok(())
        });
        progress.note_sent(written, sent)
    }

    /// Reads the framing behind a chunk of the request that was spliced.
    pub fn poll_line_up(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { connection, server, progress, .. } = self;
        let Connection { stream, inbox, .. } = &mut **connection;
        let Poll::Ready(read) = server.up.poll_line(context, (&mut stream.socket, &progress.core.buffers), inbox)
        else {
            progress.limits.upload.wait_for(Side::Client, &progress.core);
            return Poll::Pending;
        };
        let count = read.map_err(|_| Stop::Client(Fault::ClientReset))?;
        if count == 0 {
            stream.ended = true;
            return Poll::Ready(Err(Stop::Client(Fault::ClientClosed)));
        }
        progress.limits.upload.progressed(count, &progress.core);
        Poll::Ready(Ok(()))
    }
}
