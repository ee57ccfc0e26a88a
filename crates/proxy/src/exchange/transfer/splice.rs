//! The kernel's way for bodies between two plaintext connections of HTTP/1: through one of the core's pipes, from
//! socket to socket, and never beyond the last byte of the body, or of the chunk.
//!
//! A body begins with copies. A read that brings much says that there is more to be had at once, and from then on the
//! body is spliced, until a splice brings little. Whoever waits for bytes holds no pipe.

use std::io;
use std::task::{Context, Poll, ready};

use propylon_http::h1::{self, Decoder};
use propylon_net::buffer::{Buffer, BufferPool};
use propylon_net::socket::Socket;

use crate::pipes::{PipeLease, Pipes, SPLICE_BYTES_MIN};

/// A read that brings so much is of a bulk.
const BULK_READ_BYTES_MIN: usize = 16 * 1024;
/// The rest of a body that is worth a pipe.
const REST_BYTES_MIN: u64 = 32 * 1024;

/// One direction of a transfer, as far as it is spliced.
#[derive(Default)]
pub struct Splice {
    /// Boxed, since few transfers have one.
    pipe: Option<Box<PipeLease>>,
    is_bulk: bool,
    /// The end of a chunk, which follows its data, is still owed to the other side of a chunked body.
    owes_end: bool,
    /// Bytes of framing that are worth reading alone, since data of the next chunk may be spliced; 0 where none are.
    line_bytes: u8,
}

impl Splice {
    /// Takes note of a read that has brought so many bytes.
    pub fn note_read(&mut self, count: usize) {
        self.is_bulk = count >= BULK_READ_BYTES_MIN;
    }

    /// Bytes in the pipe, which have left one socket and not reached the other.
    pub fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, |pipe| pipe.held())
    }

    /// Gives the pipe back. Bytes in it are lost.
    pub fn release(&mut self) {
        self.pipe = None;
    }

    /// Takes note of what is in the pipe, as a chunk of its own whose line is written to `out`.
    pub fn begin_chunk(&mut self, decoder: &mut Decoder, out: &mut Vec<u8>) {
        let held = self.held();
        decoder.skip(held as u64);
        self.write_end(out);
        h1::write_chunk_header(held, out);
        self.owes_end = true;
        self.line_bytes = if decoder.left() == 0 { decoder.line_bytes() } else { 0 };
    }

    /// Writes the end of a chunk if that is owed.
    pub fn write_end(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.owes_end) {
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Whether the framing behind a chunk is to be read alone: see [`Splice::poll_line`].
    pub fn reads_line(&self) -> bool {
        self.line_bytes > 0
    }

    /// As [`Splice::poll_drain`], of a chunk: a pipe is kept for the rest of its data, and not for the next one's.
    pub fn poll_drain_chunk(&mut self, context: &mut Context<'_>, to: &mut Socket) -> Poll<io::Result<usize>> {
        let remaining = if self.line_bytes > 0 { self.held() as u64 } else { u64::MAX };
        self.poll_drain(context, to, remaining)
    }

    /// Reads the framing behind a chunk that was spliced, and nothing of the next one's data if its size has as many
    /// digits: so that this can be spliced as well. Ready with 0 at the socket's end.
    pub fn poll_line(
        &mut self,
        context: &mut Context<'_>,
        (from, buffers): (&mut Socket, &BufferPool),
        into: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        ready!(from.poll_readable(context))?;
        buffers.equip(into);
        let count = usize::from(self.line_bytes);
        let read = from.poll_read(context, &mut into.spare(count)[..count]);
        match &read {
            Poll::Ready(Ok(count)) => {
                into.filled(*count);
                self.line_bytes = 0;
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => buffers.release(into),
        }
        read
    }

    /// Makes sure that there is a pipe if the rest of the body, `remaining` bytes with those in the pipe, is to go
    /// through one. False where it is to be copied.
    pub fn is_ready(&mut self, pipes: &Pipes, remaining: u64) -> bool {
        if self.pipe.is_some() {
            return true;
        }
        if !self.is_bulk || remaining < REST_BYTES_MIN {
            return false;
        }
        self.pipe = pipes.lend().map(Box::new);
        // Another read shows whether it is worth asking again.
        self.is_bulk = self.pipe.is_some();
        self.is_bulk
    }

    /// Moves some of the body's `remaining` bytes, none of which is in the pipe yet, from a socket into the pipe. Ready
    /// with 0 at the socket's end. A wait gives the pipe back.
    pub fn poll_fill(
        &mut self,
        context: &mut Context<'_>,
        from: &mut Socket,
        remaining: u64,
    ) -> Poll<io::Result<usize>> {
        let Some(pipe) = &mut self.pipe else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let most = (pipe.capacity() as u64).min(remaining) as usize;
        let Poll::Ready(count) = from.poll_fill_pipe(context, pipe, most) else {
            self.pipe = None;
            return Poll::Pending;
        };
        let count = count?;
        self.is_bulk = count >= SPLICE_BYTES_MIN;
        Poll::Ready(Ok(count))
    }

    /// Moves bytes from the pipe to a socket. The pipe goes back where that was the end of the bulk, or of the body.
    pub fn poll_drain(
        &mut self,
        context: &mut Context<'_>,
        to: &mut Socket,
        remaining: u64,
    ) -> Poll<io::Result<usize>> {
        let Some(pipe) = &mut self.pipe else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let count = ready!(to.poll_drain_pipe(context, pipe))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        if pipe.held() == 0 && (!self.is_bulk || count as u64 == remaining) {
            self.pipe = None;
        }
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;

    fn run<T>(story: impl Future<Output = T>) -> T {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(story)
    }

    /// A peer, and our end of the connection to it.
    fn pair() -> (TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        (peer, Socket::new(ours))
    }

    /// Splices the `remaining` bytes of a body, however few.
    async fn pass(splice: &mut Splice, pipes: &Pipes, from: &mut Socket, to: &mut Socket, mut remaining: u64) {
        while remaining > 0 {
            let filled = poll_fn(|context| {
                splice.note_read(BULK_READ_BYTES_MIN);
                assert!(splice.is_ready(pipes, REST_BYTES_MIN));
                splice.poll_fill(context, from, remaining)
            });
            let count = filled.await.unwrap();
            assert_eq!((splice.held(), count > 0), (count, true));
            while splice.held() > 0 {
                remaining -= poll_fn(|context| splice.poll_drain(context, to, remaining)).await.unwrap() as u64;
            }
        }
        assert!(splice.pipe.is_none(), "a body that is over holds no pipe");
    }

    #[test]
    fn a_body_arrives_whole_and_no_byte_behind_it_leaves_its_socket() {
        const NEXT: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
        let pipe_bytes = Pipes::default().lend().unwrap().capacity();
        let lengths = [1, 4095, 65_535, 65_536, 65_537, pipe_bytes - 1, pipe_bytes, pipe_bytes + 1, 3_000_001];
        for length in lengths {
            let ((mut server, mut from), (mut client, mut to)) = (pair(), pair());
            let body: Vec<u8> = (0..length).map(|n| ((n * 31) >> 3) as u8).collect();
            let received = std::thread::scope(|scope| {
                scope.spawn(|| server.write_all(&[&body, NEXT].concat()).unwrap());
                let receiver = scope.spawn(|| {
                    let mut received = Vec::new();
                    client.read_to_end(&mut received).unwrap();
                    received
                });
                run(async {
                    let (mut splice, pipes) = (Splice::default(), Pipes::default());
                    pass(&mut splice, &pipes, &mut from, &mut to, length as u64).await;
                    to.shutdown_write().unwrap();
                    let mut next = [0; NEXT.len() + 1];
                    let mut count = 0;
                    while count < NEXT.len() {
                        count += poll_fn(|context| from.poll_read(context, &mut next[count..])).await.unwrap();
                    }
                    assert_eq!(&next[..count], NEXT, "behind {length} bytes");
                });
                receiver.join().unwrap()
            });
            assert!(received == body, "{} of {length} bytes", received.len());
        }
    }

    #[test]
    fn a_socket_that_was_spliced_empty_is_quiet_once_it_has_settled() {
        let ((mut server, mut from), (_client, mut to)) = (pair(), pair());
        run(async {
            let (mut splice, pipes) = (Splice::default(), Pipes::default());
            for (behind, has_more) in [(&b""[..], false), (&b"x"[..], true)] {
                server.write_all(&[&[7; 40_000], behind].concat()).unwrap();
                pass(&mut splice, &pipes, &mut from, &mut to, 40_000).await;
                assert_eq!((from.settle(), from.is_quiet()), (has_more, !has_more));
            }
        });
    }

    #[test]
    fn whoever_waits_and_whoever_has_little_to_move_holds_no_pipe() {
        let ((mut server, mut from), (_client, mut to)) = (pair(), pair());
        run(async {
            let (mut splice, pipes) = (Splice::default(), Pipes::default());
            splice.note_read(BULK_READ_BYTES_MIN - 1);
            assert!(!splice.is_ready(&pipes, u64::MAX), "a read that brought little");
            splice.note_read(BULK_READ_BYTES_MIN);
            assert!(!splice.is_ready(&pipes, REST_BYTES_MIN - 1), "a body that is nearly over");
            assert!(splice.is_ready(&pipes, REST_BYTES_MIN));
            poll_fn(|context| {
                assert!(splice.poll_fill(context, &mut from, REST_BYTES_MIN).is_pending());
                assert!(splice.pipe.is_none(), "it waits for bytes");
                Poll::Ready(())
            })
            .await;
            server.write_all(b"little").unwrap();
            poll_fn(|context| from.poll_readable(context)).await.unwrap();
            assert!(splice.is_ready(&pipes, REST_BYTES_MIN), "the wait is no end of the bulk");
            let filled = poll_fn(|context| splice.poll_fill(context, &mut from, REST_BYTES_MIN));
            assert_eq!(filled.await.unwrap(), 6);
            let drained = poll_fn(|context| splice.poll_drain(context, &mut to, REST_BYTES_MIN));
            assert_eq!(drained.await.unwrap(), 6);
            assert!(splice.pipe.is_none() && !splice.is_ready(&pipes, u64::MAX), "but so few bytes are");
        });
    }
}
