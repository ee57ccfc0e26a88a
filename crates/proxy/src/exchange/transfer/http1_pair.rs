//! The fast path of a transfer both of whose sides speak HTTP/1: bodies go from the buffer that they were read into to
//! the other side's socket, and framing is looked at where it lies.

use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{self, Event, Framing};
use propylon_net::budget;
use propylon_net::buffer::{LARGE_BYTES, WIDE_BYTES, WIDE_PIECE_BYTES};

use super::body::{Download, Rechunked, Upload, rechunk, write_chunk};
use super::downstream::{Piece, Pieces, poll_connection, poll_fill};
use super::held::Next;
use super::limits::Side;
use super::progress::{PIECE_BYTES, Progress, Sending};
use super::stop::{Stop, bad_body, server_fault};
use super::upstream::http1::Http1;
use super::upstream::part::Written;
use crate::client::connection::Connection;
use crate::client::side::ClientSide;
use crate::exchange::response::kept_trailers;
use crate::fault;

/// The two connections, and the progress of the request that they carry.
pub struct Http1Pair<'t, 'a> {
    pub connection: &'t mut Connection,
    pub server: &'t mut Http1,
    pub progress: &'t mut Progress<'a>,
    /// Framing of the response for the client.
    pub framing: Framing,
}

impl Http1Pair<'_, '_> {
    /// Sends the request. Ready when all of it has been.
    pub fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            ready!(self.poll_send(context))?;
            match self.progress.upload {
                Upload::Whole(_) | Upload::Length { remaining: 0, .. } => return Poll::Ready(Ok(())),
                Upload::Chunked { decoder, .. } if decoder.is_done() => return Poll::Ready(Ok(())),
                Upload::Chunked { .. } if !self.connection.inbox.is_empty() => {
                    self.rechunk_request(context)?;
                    if !self.server.outbox.is_empty() {
                        continue;
                    }
                }
                Upload::Paced(_) | Upload::Held(_) | Upload::Copied(_) if self.progress.sending == Sending::End => {
                    return Poll::Ready(Ok(()));
                }
                Upload::Paced(_) | Upload::Copied(_) => {
                    ready!(self.poll_piece(context))?;
                    continue;
                }
                Upload::Held(_) => {
                    ready!(self.poll_held(context))?;
                    continue;
                }
                _ => {}
            }
            if matches!(self.progress.upload, Upload::Chunked { decoder, .. } if decoder.is_done()) {
                continue;
            }
            match self.server.up.reads_line() && self.server.up.held() == 0 {
                true => ready!(self.poll_line_up(context))?,
                false if self.splices_upload() => ready!(self.poll_splice_up(context))?,
                false if self.splices_chunk_up() => ready!(self.poll_splice_chunk_up(context))?,
                false => ready!(self.poll_client_body(context))?,
            }
        }
    }

    /// Stages what comes next of a body that is held.
    #[cold]
    fn poll_held(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { server, progress, .. } = self;
        let Upload::Held(held) = &*progress.upload else { return Poll::Ready(Ok(())) };
        let next = ready!(held.borrow_mut().poll_next(context))?;
        let is_chunked = server.is_chunked();
        let mut scratch = progress.core.scratch.borrow_mut();
        scratch.clear();
        match next {
            Next::Data(data) if is_chunked => write_chunk(data.readable(), &mut scratch),
            Next::Data(data) => scratch.extend_from_slice(data.readable()),
            Next::End(trailers) => {
                if is_chunked {
                    h1::write_last_chunk(&trailers, &mut scratch);
                }
                progress.sending = Sending::End;
            }
            Next::Rest(rest) => *progress.upload = rest,
        }
        progress.core.buffers.equip(&mut server.outbox);
        server.outbox.extend(&scratch);
        Poll::Ready(Ok(()))
    }

    /// Whether what comes next of the request's body goes past all buffers.
    fn splices_upload(&mut self) -> bool {
        let Upload::Length { remaining, .. } = *self.progress.upload else { return false };
        self.is_plain()
            && !self.connection.stream.ended
            && self.connection.inbox.is_idle()
            && self.server.up.is_ready(&self.progress.core.pipes, remaining)
    }

    /// Whether the bytes on both wires are those of the messages.
    pub fn is_plain(&self) -> bool {
        self.connection.stream.tls.is_none() && !self.server.connection.stream.is_tls()
    }

    /// Splices some of the request's body, of which no byte is in a buffer.
    fn poll_splice_up(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { connection, server, progress, .. } = self;
        let Upload::Length { remaining, begun } = &mut *progress.upload else { return Poll::Ready(Ok(())) };
        let Some(to) = server.connection.stream.plain_socket() else { return Poll::Ready(Ok(())) };
        if server.up.held() == 0 {
            progress.core.buffers.release(&mut connection.inbox);
            let stream = &mut connection.stream;
            let Poll::Ready(filled) = server.up.poll_fill(context, &mut stream.socket, *remaining) else {
                progress.limits.upload.wait_for(Side::Client, &progress.core);
                return Poll::Pending;
            };
            let count = filled.map_err(|_| Stop::Client(Fault::ClientReset))?;
            if count == 0 {
                stream.ended = true;
                return Poll::Ready(Err(Stop::Client(Fault::ClientClosed)));
            }
            (*begun, progress.request.body_begun) = (true, true);
            progress.limits.upload.progressed(count, &progress.core);
        }
        let mut written = Written::default();
        let sent = server.up.poll_drain(context, to, *remaining).map(|drained| {
            let count = drained.map_err(drop)?;
            written = Written { all: count, body: count };
            *remaining -= count as u64;
            progress.request.note.bytes_received += count as u64;
            if *remaining == 0 {
                connection.stream.socket.settle();
            }
            Ok(())
        });
        progress.note_sent(written, sent)
    }

    /// Sends what is staged, and of a body of known length what is in the inbox, straight from there.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { connection, server, progress, .. } = self;
        let direct = match progress.upload {
            Upload::Length { remaining, .. } => (connection.inbox.len() as u64).min(*remaining) as usize,
            _ => 0,
        };
        let body = &connection.inbox.readable()[..direct];
        let (written, sent) = server.poll_write(context, &progress.core.buffers, body);
        if written.body > 0
            && let Upload::Length { remaining, begun } = progress.upload
        {
            *begun = true;
            progress.request.body_begun = true;
            *remaining -= written.body as u64;
            connection.inbox.consume(written.body);
            progress.request.note.bytes_received += written.body as u64;
        }
        progress.note_sent(written, sent)
    }

    /// Decodes what the inbox has of a chunked body and frames it anew in the outbox.
    fn rechunk_request(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let Http1Pair { connection, server, progress, .. } = self;
        let Upload::Chunked { decoder, begun } = progress.upload else { return Ok(()) };
        *begun = true;
        progress.request.body_begun = true;
        let mut scratch = progress.core.scratch.borrow_mut();
        scratch.clear();
        server.up.write_end(&mut scratch);
        let rechunked = rechunk(decoder, connection.inbox.readable(), &mut scratch, |lines| lines);
        let Rechunked { consumed, chunks } = rechunked.map_err(bad_body)?;
        budget::charge_chunks(context, chunks);
        connection.inbox.consume(consumed);
        progress.request.note.bytes_received += consumed as u64;
        progress.core.buffers.equip(&mut server.outbox);
        server.outbox.extend(&scratch);
        Ok(())
    }

    /// Puts what has come of a body that is slowed down, or kept for a copy, into the outbox, or its end.
    #[cold]
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let mut pieces = Pieces::new(true);
        let come = |pair: &Self| pair.progress.request.note.bytes_received + pair.connection.inbox.len() as u64;
        let before = come(self);
        let mut waits = self.stage_piece(context, &mut pieces)?;
        let is_staged = waits.is_none();
        // Small chunks that have come together go on together.
        while waits.is_none()
            && self.progress.sending == Sending::Body
            && matches!(self.progress.upload, Upload::Copied(_) | Upload::Paced(_))
            && !self.connection.inbox.is_empty()
            && self.server.outbox.len() < PIECE_BYTES
        {
            waits = self.stage_piece(context, &mut pieces)?;
        }
        // All that has come counts for the client's rate, and not the first piece of it alone.
        let received = come(self).saturating_sub(before) as usize;
        let upload = &mut self.progress.limits.upload;
        if received > 0 {
            upload.progressed(received, &self.progress.core);
        }
        match waits.filter(|_| !is_staged) {
            Some(side) => {
                upload.wait_for(side, &self.progress.core);
                Poll::Pending
            }
            None => Poll::Ready(Ok(())),
        }
    }

    /// Puts the next piece of such a body into the outbox. Returns whom it waits for, if there is none.
    fn stage_piece(&mut self, context: &mut Context<'_>, pieces: &mut Pieces) -> Result<Option<Side>, Stop> {
        let Http1Pair { connection, server, progress, .. } = self;
        let polled = poll_connection(connection, context, progress.upload, progress.request, pieces);
        let Poll::Ready(piece) = polled else { return Ok(Some(Side::Client)) };
        let is_chunked = server.is_chunked();
        let mut scratch = progress.core.scratch.borrow_mut();
        scratch.clear();
        match piece? {
            Piece::Later => return Ok(Some(Side::Pace)),
            Piece::Data(mut data) => {
                progress.limits.upload.progressed(data.len(), &progress.core);
                match is_chunked {
                    true if data.is_empty() => {}
                    true => write_chunk(data.readable(), &mut scratch),
                    false => scratch.extend_from_slice(data.readable()),
                }
                progress.core.buffers.release(&mut data);
            }
            Piece::End(trailers) => {
                progress.sending = Sending::End;
                if is_chunked {
                    h1::write_last_chunk(&trailers, &mut scratch);
                }
            }
        }
        progress.core.buffers.equip(&mut server.outbox);
        server.outbox.extend(&scratch);
        Ok(None)
    }

    fn poll_client_body(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { connection, server, progress, .. } = self;
        let before = connection.inbox.len();
        // Bytes behind the body are never read into a wide buffer, and chunks are framed anew in memory of their own.
        let most = match progress.upload {
            Upload::Length { remaining, .. } if *remaining >= WIDE_PIECE_BYTES as u64 => WIDE_BYTES,
            _ => LARGE_BYTES,
        };
        if connection.inbox.capacity() > most {
            progress.core.buffers.fold(&mut connection.inbox);
        }
        let Poll::Ready(filled) = poll_fill(connection, context, progress.up.read_bytes().min(most)) else {
            progress.limits.upload.wait_for(Side::Client, &progress.core);
            return Poll::Pending;
        };
        if !filled? {
            return Poll::Ready(Err(Stop::Client(Fault::ClientClosed)));
        }
        let count = connection.inbox.len() - before;
        server.up.note_read(count);
        progress.up.note_long(count >= PIECE_BYTES);
        progress.up.note_read(count, 2, &progress.core.buffers);
        progress.limits.upload.progressed(count, &progress.core);
        Poll::Ready(Ok(()))
    }

    /// Passes the response's body on. Ready when the client has taken all of it.
    pub fn poll_download(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        loop {
            if self.server.is_read() {
                return self.poll_client_flush(context);
            }
            if !self.server.answer.is_empty() {
                ready!(self.poll_pass(context))?;
                continue;
            }
            if self.splices_chunk_down() {
                ready!(self.poll_splice_chunk_down(context))?;
                continue;
            }
            // Bytes on their way to the client go first: a client that does not read must not fill our memory.
            let Poll::Ready(flushed) = self.poll_client_flush(context) else {
                // A client that has become slow does not hold a wide buffer that has nothing in it.
                let answer = &mut self.server.answer;
                if answer.capacity() >= WIDE_BYTES && answer.is_idle() {
                    self.progress.core.buffers.release(answer);
                }
                return Poll::Pending;
            };
            flushed?;
            if self.splices_download() {
                ready!(self.poll_splice_down(context))?;
                continue;
            }
            if self.server.down.reads_line() {
                ready!(self.poll_line_down(context))?;
                continue;
            }
            let Http1Pair { server, progress, .. } = self;
            if server.poll_room(context, &progress.core.buffers, progress.down.read_bytes()).is_pending() {
                progress.limits.download.wait_for(Side::Server, &progress.core);
                return Poll::Pending;
            }
            let (core, stream) = (&progress.core, &mut server.connection.stream);
            match stream.poll_fill(context, &core.buffers, &mut server.answer) {
                Poll::Pending => {
                    progress.limits.download.wait_for(Side::Server, core);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0)) if matches!(server.download, Download::UntilClose) => self.end_by_close(),
                Poll::Ready(Ok(count)) if count > 0 => {
                    progress.limits.download.clear();
                    server.down.note_read(count);
                    // A read that fills a small buffer is not the last of the response.
                    let full = if stream.is_tls() { PIECE_BYTES } else { server.answer.capacity() };
                    progress.down.note_long(server.answer.len() >= full);
                    progress.down.note_read(count, 2, &core.buffers);
                }
                Poll::Ready(_) => return Poll::Ready(Err(server_fault(Fault::BodyCutShort))),
            }
        }
    }

    /// Whether what comes next of the response's body goes past all buffers.
    fn splices_download(&mut self) -> bool {
        let Download::Length(remaining) = self.server.download else { return false };
        self.is_plain()
            && self.framing != Framing::Chunked
            && self.server.down.is_ready(&self.progress.core.pipes, remaining)
    }

    /// Splices some of the response's body, of which no byte is in a buffer.
    fn poll_splice_down(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let Http1Pair { connection, server, progress, .. } = self;
        let Download::Length(remaining) = &mut server.download else { return Poll::Ready(Ok(())) };
        let Some(from) = server.connection.stream.plain_socket() else { return Poll::Ready(Ok(())) };
        let (core, download) = (&progress.core, &mut progress.limits.download);
        if server.down.held() == 0 {
            core.buffers.release(&mut server.answer);
            match server.down.poll_fill(context, from, *remaining) {
                Poll::Pending => {
                    download.wait_for(Side::Server, core);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) if count > 0 => download.clear(),
                Poll::Ready(_) => return Poll::Ready(Err(server_fault(Fault::BodyCutShort))),
            }
        }
        match server.down.poll_drain(context, &mut connection.stream.socket, *remaining) {
            Poll::Pending => {
                download.wait_for(Side::Client, core);
                Poll::Pending
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::Client(Fault::ClientReset))),
            Poll::Ready(Ok(count)) => {
                download.progressed(count, core);
                progress.request.note.bytes_sent += count as u64;
                server.took(count);
                if server.is_read() {
                    server.settle();
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    fn end_by_close(&mut self) {
        self.server.download = Download::Done;
        self.server.spent = true;
        if self.framing == Framing::Chunked {
            self.stage(h1::LAST_CHUNK);
        }
    }

    /// Stages bytes for the client.
    fn stage(&mut self, bytes: &[u8]) {
        let Connection { stream, wire, .. } = &mut *self.connection;
        stream.stage(bytes, &self.progress.core.buffers, wire);
        self.progress.request.note.bytes_sent += bytes.len() as u64;
    }

    /// Writes to a plaintext client, for whom nothing is staged, what its socket takes at once.
    fn send_now(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> usize {
        let Connection { stream, wire, .. } = &mut *self.connection;
        if stream.tls.is_some() || !wire.is_empty() || bytes.len() < PIECE_BYTES {
            return 0;
        }
        // An error shows again at the flush.
        let Poll::Ready(Ok(count)) = stream.socket.poll_write(context, bytes) else { return 0 };
        self.progress.limits.download.progressed(count, &self.progress.core);
        self.progress.request.note.bytes_sent += count as u64;
        count
    }

    pub fn poll_client_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let (core, download) = (&self.progress.core, &mut self.progress.limits.download);
        let Connection { stream, wire, .. } = &mut *self.connection;
        loop {
            if wire.is_empty() {
                let flushed = stream.poll_flush(context, &core.buffers, wire);
                return flushed.map_err(|_| Stop::Client(fault::of_write(stream)));
            }
            match stream.socket.poll_write(context, wire.readable()) {
                Poll::Pending => {
                    download.wait_for(Side::Client, core);
                    return Poll::Pending;
                }
                Poll::Ready(Ok(count)) if count > 0 => {
                    wire.consume(count);
                    download.progressed(count, core);
                }
                Poll::Ready(_) => return Poll::Ready(Err(Stop::Client(Fault::ClientReset))),
            }
        }
    }

    /// Passes on some of what the server has sent.
    fn poll_pass(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let is_framed = self.framing == Framing::Chunked || matches!(self.server.download, Download::Chunked(_));
        let limit = match self.server.answer.capacity() {
            WIDE_BYTES.. if !is_framed => WIDE_BYTES,
            LARGE_BYTES.. => LARGE_BYTES,
            _ => PIECE_BYTES,
        };
        let here = self.server.answer.len().min(limit);
        let here = match &self.server.download {
            Download::Length(remaining) => (here as u64).min(*remaining) as usize,
            _ => here,
        };
        if self.framing == Framing::Chunked {
            ready!(self.poll_client_flush(context))?;
            return Poll::Ready(self.pass_chunked(context, here));
        }
        // A chunked body for a client that cannot read chunks: the data alone.
        if let Download::Chunked(_) = self.server.download {
            ready!(self.poll_client_flush(context))?;
            return Poll::Ready(self.pass_unchunked(context, here));
        }
        let Http1Pair { connection, server, progress, .. } = self;
        let Connection { stream, wire, .. } = &mut **connection;
        let (core, download) = (&progress.core, &mut progress.limits.download);
        let piece = &server.answer.readable()[..here];
        match stream.poll_send_body(context, &core.buffers, wire, piece) {
            Poll::Pending => {
                download.wait_for(Side::Client, core);
                Poll::Pending
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Stop::Client(fault::of_write(stream)))),
            Poll::Ready(Ok(count)) => {
                download.progressed(count, core);
                server.answer.consume(count);
                progress.request.note.bytes_sent += count as u64;
                server.took(count);
                Poll::Ready(Ok(()))
            }
        }
    }

    fn pass_chunked(&mut self, context: &mut Context<'_>, here: usize) -> Result<(), Stop> {
        let core = std::rc::Rc::clone(&self.progress.core);
        let mut scratch = core.scratch.borrow_mut();
        scratch.clear();
        self.server.down.write_end(&mut scratch);
        let bytes = &self.server.answer.readable()[..here];
        let consumed = match &mut self.server.download {
            Download::Chunked(decoder) => {
                let (connection, request) = (&mut *self.connection, &*self.progress.request);
                let kept = |lines| kept_trailers(&ClientSide::Http1(connection), request, lines);
                let rechunked = rechunk(decoder, bytes, &mut scratch, kept);
                let Rechunked { consumed, chunks } = rechunked.map_err(|_| server_fault(Fault::BadResponse))?;
                budget::charge_chunks(context, chunks);
                if decoder.is_done() {
                    self.server.download = Download::Done;
                }
                consumed
            }
            _ => {
                write_chunk(bytes, &mut scratch);
                here
            }
        };
        self.server.answer.consume(consumed);
        let sent = self.send_now(context, &scratch);
        self.stage(&scratch[sent..]);
        Ok(())
    }

    fn pass_unchunked(&mut self, context: &mut Context<'_>, here: usize) -> Result<(), Stop> {
        let Http1Pair { connection, server, progress, .. } = self;
        let Download::Chunked(decoder) = &mut server.download else { return Ok(()) };
        let Connection { stream, wire, .. } = &mut **connection;
        let (mut at, mut chunks) = (0, 0);
        let bytes = &server.answer.readable()[..here];
        while at < here || decoder.is_done() {
            match decoder.next(&bytes[at..]).map_err(|_| server_fault(Fault::BadResponse))? {
                Event::NeedMore { consumed } => at += consumed,
                Event::Data { start, end } => {
                    stream.stage(&bytes[at + start..at + end], &progress.core.buffers, wire);
                    progress.request.note.bytes_sent += (end - start) as u64;
                    at += end;
                    chunks += 1;
                }
                Event::End { consumed } => {
                    at += consumed;
                    server.download = Download::Done;
                    break;
                }
            }
        }
        server.answer.consume(at);
        budget::charge_chunks(context, chunks);
        Ok(())
    }
}
