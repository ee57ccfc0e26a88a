//! The connection between a coordinator and an agent: frames (`frames`) over TLS 1.3, with certificates both ways.

use super::frames::{self, FrameBuffer};
use super::message::Message;
use crate::failure::{Failure, Outcome, While};
use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest wait for a peer that does not take what is sent to it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 * 1024;

pub struct Channel {
    session: Connection,
    socket: TcpStream,
    frames: FrameBuffer,
}

impl Channel {
    /// The TLS handshake, done before `deadline` however slowly the peer drips; then the peer's certificate is known.
    pub fn handshake(session: Connection, socket: TcpStream, deadline: Instant) -> Outcome<Self> {
        socket.set_nodelay(true).when("the socket")?;
        socket.set_write_timeout(Some(WRITE_TIMEOUT)).when("the socket")?;
        let mut channel = Self { session, socket, frames: FrameBuffer::default() };
        channel.flush().when("TLS")?;
        while channel.session.is_handshaking() {
            if !channel.read_before(deadline).when("TLS handshake")? {
                return Err(Failure::new("TLS handshake: it was not done in time"));
            }
        }
        Ok(channel)
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()
    }

    pub fn send(&mut self, message: &Message) -> Outcome<()> {
        let frame = frames::encode(message)?;
        let mut rest = &frame[..];
        while !rest.is_empty() {
            // The session takes no more than its buffer holds.
            let taken = self.session.writer().write(rest).when("sending")?;
            rest = &rest[taken..];
            self.flush().when("sending")?;
        }
        Ok(())
    }

    /// The next message, if there is one within `wait`. An error is the end of the session.
    pub fn poll(&mut self, wait: Duration) -> Outcome<Option<Message>> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(message) = self.frames.take()? {
                return Ok(Some(message));
            }
            if !self.read_before(deadline).when("receiving")? {
                return Ok(None);
            }
        }
    }

    /// The next message; its absence within `timeout` is an error.
    pub fn receive(&mut self, timeout: Duration) -> Outcome<Message> {
        self.poll(timeout)?.ok_or_else(|| Failure::new(format!("nothing was heard for {} s", timeout.as_secs_f64())))
    }

    /// One read from the socket; whether `deadline` had not passed before it.
    fn read_before(&mut self, deadline: Instant) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        // The kernel takes zero for "for ever", and rounds less than a millisecond as it likes.
        self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match self.session.read_tls(&mut self.socket) {
            Ok(0) => return Err(io::Error::other("the connection was closed")),
            Ok(_) => {}
            Err(error) if is_pause(&error) => return Ok(true),
            Err(error) => return Err(error),
        }
        let processed = self.session.process_new_packets();
        // An alert, if it came to that, tells the peer why.
        let flushed = self.flush();
        let readable = processed.map_err(io::Error::other)?.plaintext_bytes_to_read();
        flushed?;
        let mut scratch = [0; READ_BYTES];
        let mut left = readable;
        while left > 0 {
            let count = self.session.reader().read(&mut scratch)?;
            self.frames.extend(&scratch[..count]);
            left = left.saturating_sub(count);
        }
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.session.send_close_notify();
        let _ = self.session.write_tls(&mut self.socket);
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// A read that brought nothing within its time.
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
