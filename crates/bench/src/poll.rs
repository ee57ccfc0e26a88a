//! Readiness of many sockets on one thread: epoll, edge-triggered, registered once per socket.
//!
//! An edge is only a hint that it is worth trying; callers read and write until the socket says "would block".

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::time::Duration;

/// Events taken per system call.
const EVENTS_PER_WAIT: usize = 512;

pub struct Poll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// Waits of less than a millisecond are slept, and may end some 60 µs late; otherwise they are looks.
    pub sleeps_below_millisecond: bool,
}

/// One socket's news.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: u64,
    /// The peer will send no more, or the socket failed: read on even after a short read.
    pub closing: bool,
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_PER_WAIT),
            sleeps_below_millisecond: false,
        })
    }

    /// Tells of every change of `source`, in both directions, until it is closed.
    pub fn add(&self, source: impl AsFd, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(token), flags)?)
    }

    /// Waits for news and returns how many there are; `event` gives each. An interrupted wait is no news.
    ///
    /// The kernel counts milliseconds here: less than one is a look without a wait.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        if self.sleeps_below_millisecond && timeout < Duration::from_millis(1) && !timeout.is_zero() {
            // ppoll counts nanoseconds on every kernel, epoll_wait only since 5.11.
            let precise = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
            match rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&precise)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_millis()) * 1_000_000 };
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) => Ok(self.events.len()),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    pub fn event(&self, index: usize) -> Ready {
        let event = self.events[index];
        let flags = event.flags;
        let data = event.data;
        let closing = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        Ready { token: data.u64(), closing }
    }
}
