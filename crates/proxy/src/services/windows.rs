//! Windows in which servers may send ahead of their clients, over all streams of a core: the more streams there are,
//! the narrower is the window of each.
//!
//! A window is given before anybody knows whether a client is slow, and the bytes that a server has sent into it are
//! held until the client takes them. So a stream begins with a narrow one, which holds most answers whole, and gets a
//! wide one when its client has taken what came first. All windows together have a share of memory, whatever clients
//! do: beyond that none becomes wide, and those that streams begin with become narrower. SETTINGS change a connection's
//! windows (RFC 9113 §6.9.2): bytes that a server has sent before stay, and its stream says no more until the client
//! has taken so much.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;

use propylon_net::buffer::SMALL_BYTES;

/// Body bytes that a server may send before its client takes any: at most, and at least. No more than lie in one
/// buffer.
pub const STREAM_WINDOW_BYTES_MAX: u32 = SMALL_BYTES as u32;
/// Window of a stream whose client takes what it gets.
pub const WIDE_WINDOW_BYTES: u32 = 128 * 1024;
pub const STREAM_WINDOW_BYTES_MIN: u32 = 4 * 1024;
/// Bytes that the windows of a core's streams come to together, unless they are at their narrowest.
pub const CORE_WINDOWS_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A core's.
pub struct Windows {
    streams: Cell<u64>,
    /// Window of each stream, in bytes.
    width: Cell<u32>,
    /// A stream's width while there are few.
    widest: u32,
    /// Bytes by which windows are wider than that.
    widened: Cell<u64>,
    /// Drivers of connections, which are woken when the width changes.
    drivers: RefCell<Vec<Weak<Driver>>>,
}

/// Waker of the task that drives a connection.
pub type Driver = RefCell<Option<Waker>>;

impl Default for Windows {
    fn default() -> Windows {
        Windows::of(STREAM_WINDOW_BYTES_MAX)
    }
}

impl Windows {
    /// Windows that are so wide while there are few streams.
    pub fn of(widest: u32) -> Windows {
        Windows {
            streams: Cell::new(0),
            width: Cell::new(widest),
            widest,
            widened: Cell::new(0),
            drivers: RefCell::default(),
        }
    }

    /// Has the driver of a connection woken when streams have another width.
    pub fn watch(&self, driver: &Rc<Driver>) {
        let mut drivers = self.drivers.borrow_mut();
        if drivers.len() == drivers.capacity() {
            drivers.retain(|driver| driver.strong_count() > 0);
        }
        drivers.push(Rc::downgrade(driver));
    }

    fn wake_drivers(&self) {
        let mut drivers = self.drivers.borrow_mut();
        drivers.retain(|driver| driver.strong_count() > 0);
        for driver in drivers.iter().filter_map(Weak::upgrade) {
            driver.borrow().iter().for_each(Waker::wake_by_ref);
        }
    }

    /// A stream has begun. True when all have another width from now on.
    pub fn begin(&self) -> bool {
        self.streams.set(self.streams.get() + 1);
        let narrower = self.width.get() / 2;
        let is_over = self.granted() > CORE_WINDOWS_BYTES_MAX && narrower >= STREAM_WINDOW_BYTES_MIN;
        if is_over {
            self.width.set(narrower);
            self.wake_drivers();
        }
        is_over
    }

    /// Counts a stream that is over. True when all have another width from now on: only when that would be so for
    /// twice as many as well, so that a few that come and go change nothing.
    pub fn end(&self) -> bool {
        self.streams.set(self.streams.get() - 1);
        let is_under = self.granted() * 4 <= CORE_WINDOWS_BYTES_MAX && self.width.get() < self.widest;
        if is_under {
            self.width.set(self.width.get() * 2);
            self.wake_drivers();
        }
        is_under
    }

    /// Widens a stream's window by so many bytes, if there is room for them.
    pub fn widen(&self, bytes: u64) -> bool {
        let has_room = self.granted() + bytes <= CORE_WINDOWS_BYTES_MAX;
        if has_room {
            self.widened.set(self.widened.get() + bytes);
        }
        has_room
    }

    /// A stream that was widened by so many bytes is over.
    pub fn narrow(&self, bytes: u64) {
        self.widened.set(self.widened.get() - bytes);
    }

    /// A stream's window in bytes, at its begin.
    pub fn width(&self) -> u32 {
        self.width.get()
    }

    /// Bytes that servers may send ahead, over all streams.
    pub fn granted(&self) -> u64 {
        self.streams.get() * u64::from(self.width.get()) + self.widened.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: u32 = 128 * 1024;

    #[test]
    fn few_streams_have_wide_windows_and_many_have_their_share() {
        let windows = Windows::of(WIDE);
        let mut widths = Vec::new();
        for streams in 1..=20_000_u64 {
            windows.begin();
            let least = u64::from(STREAM_WINDOW_BYTES_MIN) * streams;
            assert!(windows.granted() <= CORE_WINDOWS_BYTES_MAX.max(least), "{streams}: {}", windows.granted());
            // No narrower than it has to be.
            assert!(windows.width() == WIDE || windows.granted() * 2 > CORE_WINDOWS_BYTES_MAX);
            widths.push(windows.width());
        }
        assert_eq!([widths[511], widths[512], widths[16_384], widths[19_999]], [131_072, 65_536, 4_096, 4_096]);
        (0..20_000).for_each(|_| _ = windows.end());
        assert_eq!((windows.width(), windows.granted()), (WIDE, 0));
    }

    #[test]
    fn streams_that_come_and_go_do_not_change_the_windows_of_all_again_and_again() {
        let windows = Windows::of(WIDE);
        (0..512).for_each(|_| assert!(!windows.begin()));
        assert!(windows.begin());
        for _ in 0..1_000 {
            assert!(!windows.end() && !windows.begin());
        }
        let ended = (0..513).filter(|_| windows.end()).count();
        assert_eq!(ended, 1);
    }

    #[test]
    fn windows_are_widened_while_there_is_room_and_the_room_comes_back() {
        let windows = Windows::default();
        let widened = (0..10_000).filter(|_| windows.widen(100_000)).count();
        assert_eq!(widened as u64, CORE_WINDOWS_BYTES_MAX / 100_000);
        // Streams that begin are narrower for it.
        (0..10).for_each(|_| _ = windows.begin());
        assert!(windows.width() < STREAM_WINDOW_BYTES_MAX);
        (0..widened).for_each(|_| windows.narrow(100_000));
        (0..10).for_each(|_| _ = windows.end());
        assert_eq!((windows.width(), windows.granted()), (STREAM_WINDOW_BYTES_MAX, 0));
    }
}
