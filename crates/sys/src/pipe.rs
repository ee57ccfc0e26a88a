//! A pipe between two sockets: what goes through it is moved by reference and never copied to user space (splice(2)).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Both ends of a pipe, and how much is in it.
#[derive(Debug)]
pub struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    held: usize,
    capacity: usize,
}

impl Pipe {
    /// Two files. `wanted` is in bytes; a kernel that grants no such size leaves the pipe at its default, 64 KiB or less.
    pub fn new(wanted: usize) -> io::Result<Pipe> {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let capacity = match fcntl_setpipe_size(&into, wanted) {
            Ok(granted) => granted,
            Err(_) => rustix::pipe::fcntl_getpipe_size(&into)?,
        };
        Ok(Pipe { out, into, held: 0, capacity })
    }

    /// Bytes on their way.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Bytes that it can hold at most; many small packets fill it with less.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Moves up to `most` of what a socket has received into the pipe, which must be empty: so `WouldBlock` speaks of
    /// the socket. 0 is the end.
    pub fn fill(&mut self, from: impl AsFd, most: usize) -> io::Result<usize> {
        debug_assert_eq!(self.held, 0);
        let count = through(from, &self.into, most)?;
        self.held += count;
        Ok(count)
    }

    /// Moves what the pipe holds to a socket, as much as that takes.
    pub fn drain(&mut self, to: impl AsFd) -> io::Result<usize> {
        let count = through(&self.out, to, self.held)?;
        self.held -= count;
        Ok(count)
    }
}

fn through(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    loop {
        match splice(&from, None, &to, None, most, SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_go_from_socket_to_socket_and_the_count_is_kept() {
        let (mut client, ours) = pair();
        let (theirs, mut server) = pair();
        let mut pipe = Pipe::new(1 << 18).unwrap();
        client.write_all(b"twelve bytes").unwrap();
        // Blocking sockets: the fill waits for the bytes.
        assert_eq!((pipe.fill(&ours, 1 << 18).unwrap(), pipe.held()), (12, 12));
        assert_eq!((pipe.drain(&theirs).unwrap(), pipe.held()), (12, 0));
        let mut bytes = [0; 12];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"twelve bytes");
        drop(client);
        assert_eq!(pipe.fill(&ours, 100).unwrap(), 0, "the end");
    }

    #[test]
    fn a_socket_without_bytes_says_so() {
        let (_client, ours) = pair();
        ours.set_nonblocking(true).unwrap();
        let mut pipe = Pipe::new(4096).unwrap();
        assert_eq!(pipe.fill(&ours, 4096).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(pipe.capacity() >= 4096);
    }
}
