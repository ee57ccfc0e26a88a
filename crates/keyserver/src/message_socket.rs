//! A socket between an engine's core and the key process, as both ends' event loops have it.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One end of a nonblocking socket that keeps messages apart. The event loop waits for messages, and not for room to
/// send: there is nearly always room, and each read at the other end would wake this one.
pub struct MessageSocket {
    socket: AsyncFd<OwnedFd>,
    /// The same socket waiting for room, from a message for which there was none to the next that was sent.
    room: Option<AsyncFd<OwnedFd>>,
}

impl MessageSocket {
    pub fn new(socket: OwnedFd) -> io::Result<MessageSocket> {
        Ok(MessageSocket { socket: watched(socket, Interest::READABLE)?, room: None })
    }

    /// The next message; 0: the other end has closed.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            match ready.try_io(|socket| propylon_sys::try_receive_message(socket.get_ref(), bytes)) {
                Err(_would_block) => {}
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(received) => return Poll::Ready(received),
            }
        }
    }

    /// Sends a message, whole.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, message: &[u8]) -> Poll<io::Result<()>> {
        if self.room.is_none() {
            match propylon_sys::try_send_message(self.socket.get_ref(), message) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
            self.room = Some(watched(self.socket.get_ref().try_clone()?, Interest::WRITABLE)?);
        }
        while let Some(room) = &self.room {
            let mut ready = ready!(room.poll_write_ready(cx))?;
            if let Ok(sent) = ready.try_io(|room| propylon_sys::try_send_message(room.get_ref(), message)) {
                self.room = None;
                return Poll::Ready(sent);
            }
        }
        Poll::Pending
    }
}

#[expect(deprecated, reason = "deprecated for types that may close their file behind its back; an owned one does not")]
fn watched(socket: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(socket, interest)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let (one, other) = propylon_sys::message_pair().expect("two sockets");
        propylon_sys::set_nonblocking(&one, true).expect("our own socket");
        propylon_sys::set_nonblocking(&other, true).expect("our own socket");
        (one, other)
    }

    /// Returns when a thread of this process sleeps.
    fn wait_until_asleep(thread: &str) {
        let stat = format!("/proc/self/task/{thread}/stat");
        while !std::fs::read_to_string(&stat).expect("it lives").contains(") S ") {
            thread::yield_now();
        }
    }

    #[test]
    fn what_the_other_end_reads_wakes_nobody() {
        const MESSAGES: usize = 20;
        let (one, other) = pair();
        let (told, hears) = mpsc::channel();
        let sleeper = thread::spawn(move || {
            let runtime = runtime();
            let own = std::fs::read_link("/proc/thread-self").expect("a link");
            told.send((own.file_name().expect("a number").to_owned(), runtime.handle().metrics())).expect("heard");
            runtime.block_on(async {
                let mut pair = MessageSocket::new(one).expect("a socket");
                for _ in 0..MESSAGES {
                    poll_fn(|cx| pair.poll_send(cx, b"message")).await.expect("room");
                }
                let mut bytes = [0; 16];
                poll_fn(|cx| pair.poll_receive(cx, &mut bytes)).await.expect("a message")
            })
        });
        let (name, metrics) = hears.recv().expect("it lives");
        let name = name.to_str().expect("a number");
        let mut bytes = [0; 16];
        // The first may be there before the thread has come to sleep.
        while propylon_sys::try_receive_message(&other, &mut bytes).is_err() {}
        wait_until_asleep(name);
        let parked = metrics.worker_park_count(0);
        for _ in 1..MESSAGES {
            propylon_sys::try_receive_message(&other, &mut bytes).expect("all are there");
            wait_until_asleep(name);
        }
        assert_eq!(metrics.worker_park_count(0), parked, "it has been woken for nothing");
        propylon_sys::try_send_message(&other, b"end").expect("room");
        assert_eq!(sleeper.join().expect("no panic"), 3);
    }

    #[test]
    fn a_message_without_room_goes_out_when_there_is_some() {
        const MESSAGES: usize = 5_000;
        let (one, other) = pair();
        let (full, is_full) = mpsc::channel();
        let reader = thread::spawn(move || {
            is_full.recv().expect("there is not room for all");
            runtime().block_on(async {
                let mut pair = MessageSocket::new(other).expect("a socket");
                let mut bytes = [0; 1024];
                for number in 0..MESSAGES {
                    let length = poll_fn(|cx| pair.poll_receive(cx, &mut bytes)).await.expect("a message");
                    assert_eq!((length, usize::from(bytes[0])), (1000, number % 256));
                }
                poll_fn(|cx| pair.poll_receive(cx, &mut bytes)).await.expect("the end")
            })
        });
        runtime().block_on(async {
            let mut pair = MessageSocket::new(one).expect("a socket");
            for number in 0..MESSAGES {
                let message = [number as u8; 1000];
                let send = |cx: &mut Context<'_>| {
                    let sent = pair.poll_send(cx, &message);
                    if sent.is_pending() {
                        let _ = full.send(());
                    }
                    sent
                };
                poll_fn(send).await.expect("a reader");
                assert!(pair.room.is_none(), "it is told of room no longer than it needs some");
            }
        });
        assert_eq!(reader.join().expect("no panic"), 0);
    }
}
