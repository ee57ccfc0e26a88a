//! A TCP socket that asks the kernel first and the event loop only when it has to wait.
//!
//! A connection that is served at once (accept, read, write, close) never meets epoll at all: it is registered at its
//! first wait. A read that fills less than it was given tells that the kernel has no more, so the next wait costs no
//! read that fails (edge-triggered epoll reports whatever comes later).

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::unix::AsyncFd;

pub struct Socket(State);

enum State {
    Fresh(TcpStream),
    Registered(AsyncFd<TcpStream>),
    /// Only while moving from one to the other, and after a failed registration.
    Gone,
}

impl Socket {
    /// `stream` must be non-blocking.
    pub fn new(stream: TcpStream) -> Socket {
        Socket(State::Fresh(stream))
    }

    pub fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if let State::Fresh(stream) = &mut self.0 {
            match stream.read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.register()?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => self.register()?,
                done => return Poll::Ready(done),
            }
        }
        let State::Registered(fd) = &self.0 else { return Poll::Ready(Err(gone())) };
        loop {
            let mut guard = ready!(fd.poll_read_ready(context))?;
            match fd.get_ref().read(into) {
                Ok(count) => {
                    if count > 0 && count < into.len() {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    pub fn poll_write_vectored(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let write = |mut stream: &TcpStream| match slices {
            [one] => stream.write(one),
            many => stream.write_vectored(many),
        };
        if let State::Fresh(stream) = &self.0 {
            match write(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.register()?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => self.register()?,
                done => return Poll::Ready(done),
            }
        }
        let State::Registered(fd) = &self.0 else { return Poll::Ready(Err(gone())) };
        loop {
            let mut guard = ready!(fd.poll_write_ready(context))?;
            match write(fd.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Waits until there is something to read (or an end, or an error), without a buffer to read it into.
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let State::Fresh(stream) = &self.0 {
            match stream.peek(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.register()?,
                Err(error) => return Poll::Ready(Err(error)),
                Ok(_) => return Poll::Ready(Ok(())),
            }
        }
        let State::Registered(fd) = &self.0 else { return Poll::Ready(Err(gone())) };
        let _guard = ready!(fd.poll_read_ready(context))?;
        Poll::Ready(Ok(()))
    }

    /// Waits until a connect that was started has come to its end, and says which.
    pub fn poll_connected(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.0, State::Fresh(_)) {
            self.register()?;
        }
        let State::Registered(fd) = &self.0 else { return Poll::Ready(Err(gone())) };
        let _guard = ready!(fd.poll_write_ready(context))?;
        match fd.get_ref().take_error()? {
            Some(error) => Poll::Ready(Err(error)),
            None => Poll::Ready(Ok(())),
        }
    }

    /// True when nothing has come since the last read: no byte, no end, no error. Asks the event loop, not the kernel,
    /// and lets go of the waker of whoever waited last.
    pub fn is_quiet(&mut self) -> bool {
        match &self.0 {
            State::Registered(fd) => fd.poll_read_ready(&mut Context::from_waker(Waker::noop())).is_pending(),
            State::Fresh(_) | State::Gone => false,
        }
    }

    /// Moves the socket out; what stays behind answers with errors.
    pub fn take(&mut self) -> Socket {
        Socket(std::mem::replace(&mut self.0, State::Gone))
    }

    pub fn shutdown_write(&self) -> io::Result<()> {
        self.with(|stream| stream.shutdown(Shutdown::Write))
    }

    pub fn with<T>(&self, act: impl FnOnce(&TcpStream) -> io::Result<T>) -> io::Result<T> {
        match &self.0 {
            State::Fresh(stream) => act(stream),
            State::Registered(fd) => act(fd.get_ref()),
            State::Gone => Err(gone()),
        }
    }

    fn register(&mut self) -> io::Result<()> {
        if let State::Fresh(stream) = std::mem::replace(&mut self.0, State::Gone) {
            self.0 = State::Registered(AsyncFd::new(stream)?);
        }
        Ok(())
    }
}

fn gone() -> io::Error {
    io::Error::other("the socket could not be registered with the event loop")
}
