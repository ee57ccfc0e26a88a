//! A core's ticks, by a timer of the kernel's that the event loop watches.
//!
//! The runtime's own timers are asked at each turn of the event loop for as long as one of them is set, which costs
//! more than a timer that is a file: nobody looks at that before it is due.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use tokio::io::unix::AsyncFd;

/// Ticks in equal distances. Those that nobody was there for are one.
pub struct Ticks(AsyncFd<OwnedFd>);

impl Ticks {
    /// The first tick is due at once. To be called within a runtime.
    ///
    /// # Errors
    /// Errors of timerfd_create(2): the process has no files left, mostly.
    #[expect(
        deprecated,
        reason = "deprecated for types that may close their file behind its back; an owned descriptor does not"
    )]
    pub fn every(period: Duration) -> io::Result<Ticks> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let at_once = Timespec { tv_sec: 0, tv_nsec: 1 };
        let it_interval = Timespec { tv_sec: period.as_secs() as _, tv_nsec: period.subsec_nanos().into() };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value: at_once })?;
        Ok(Ticks(AsyncFd::new(timer)?))
    }

    /// Waits for the next tick. Cancelled, it loses none.
    ///
    /// # Errors
    /// The runtime is about to end.
    pub async fn tick(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut expirations = [0; size_of::<u64>()];
            let read = rustix::io::read(self.0.get_ref(), &mut expirations);
            // A tick that has come since is an event of its own.
            ready.clear_ready();
            match read {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                read => return Ok(read.map(drop)?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_again_and_again_and_those_that_were_missed_are_one() {
        crate::socket::tests::on_a_core(async {
            let mut ticks = Ticks::every(Duration::from_millis(20)).unwrap();
            for _ in 0..3 {
                ticks.tick().await.unwrap();
            }
            std::thread::sleep(Duration::from_millis(100));
            ticks.tick().await.unwrap();
            let next = std::future::poll_fn(|context| {
                let mut tick = std::pin::pin!(ticks.tick());
                std::task::Poll::Ready(tick.as_mut().poll(context).is_ready())
            });
            assert!(!next.await, "four were missed");
        });
    }
}
