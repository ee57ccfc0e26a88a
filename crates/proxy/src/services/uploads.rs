//! Bytes that clients have uploaded and servers have not taken, over all streams of a core.
//!
//! A stream's window is given before anybody knows whether its server is slow. So there are two bounds. While much is
//! untaken, the windows that clients are told come to a share of memory together: the more uploads there are, the
//! narrower is each (SETTINGS, RFC 9113 §6.9.2). That binds clients who heed it, and nothing that is on its way.
//! Beyond a limit nothing more is read of connections that hold more than their streams' windows by then, until
//! servers have taken it or were given up: that binds everybody. While little is untaken there may be as many open
//! streams as there will, and each has the window it would have alone.

use std::cell::Cell;

use super::windows::{CORE_WINDOWS_BYTES_MAX, Windows};

/// A stream's window at most: what `window_max` may be.
const UPLOAD_WINDOW_BYTES_MAX: u32 = 16 * 1024 * 1024;
/// Untaken bytes of a core from which on windows are narrow, and below which they are wide again.
const CROWDED_BYTES: u64 = CORE_WINDOWS_BYTES_MAX / 2;
const ROOMY_BYTES: u64 = CORE_WINDOWS_BYTES_MAX / 4;
/// Untaken bytes of a core beyond which connections that hold more than their share are not read. Twice what narrow
/// windows come to, as what was sent before they were narrow stays.
pub const CORE_UNTAKEN_BYTES_MAX: u64 = CORE_WINDOWS_BYTES_MAX * 2;

/// A core's.
pub struct Uploads {
    /// Widths of streams' windows, were all to fill theirs.
    windows: Windows,
    untaken: Cell<u64>,
    is_crowded: Cell<bool>,
}

impl Default for Uploads {
    fn default() -> Uploads {
        let windows = Windows::of(UPLOAD_WINDOW_BYTES_MAX);
        Uploads { windows, untaken: Cell::new(0), is_crowded: Cell::new(false) }
    }
}

impl Uploads {
    pub fn begin(&self) {
        self.windows.begin();
    }

    pub fn end(&self) {
        self.windows.end();
    }

    /// A connection that had `before` bytes untaken has `after`.
    pub fn count(&self, before: u64, after: u64) {
        let untaken = self.untaken.get() + after - before;
        self.untaken.set(untaken);
        let limit = if self.is_crowded.get() { ROOMY_BYTES } else { CROWDED_BYTES };
        self.is_crowded.set(untaken > limit);
    }

    /// Bytes that servers have not taken.
    pub fn untaken(&self) -> u64 {
        self.untaken.get()
    }

    pub fn is_crowded(&self) -> bool {
        self.is_crowded.get()
    }

    /// The widest window of a stream that clients are to be told now, in bytes.
    pub fn width(&self) -> u32 {
        if self.is_crowded.get() { self.windows.width() } else { UPLOAD_WINDOW_BYTES_MAX }
    }

    /// True when nothing more is to be read of a connection with so many uploads, of which so many bytes are untaken.
    pub fn holds_up(&self, streams: u64, untaken: u64) -> bool {
        self.untaken.get() > CORE_UNTAKEN_BYTES_MAX && untaken > streams * u64::from(self.windows.width())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_narrow_only_while_much_is_untaken_and_as_narrow_as_there_are_uploads() {
        let uploads = Uploads::default();
        (0..4_096).for_each(|_| uploads.begin());
        assert_eq!(uploads.width(), UPLOAD_WINDOW_BYTES_MAX, "they hold nothing");
        uploads.count(0, CROWDED_BYTES);
        assert_eq!(uploads.width(), UPLOAD_WINDOW_BYTES_MAX);
        uploads.count(0, 1);
        assert_eq!(u64::from(uploads.width()), CORE_WINDOWS_BYTES_MAX / 4_096);
        // Uploads must shrink by more than a byte for the windows to be wide again.
        uploads.count(CROWDED_BYTES, ROOMY_BYTES);
        assert!(uploads.is_crowded());
        uploads.count(1, 0);
        assert_eq!(uploads.width(), UPLOAD_WINDOW_BYTES_MAX);
    }

    #[test]
    fn only_who_holds_more_than_its_share_is_held_up_and_only_beyond_the_limit() {
        let uploads = Uploads::default();
        (0..4_096).for_each(|_| uploads.begin());
        let share = 100 * (CORE_WINDOWS_BYTES_MAX / 4_096);
        uploads.count(0, CORE_UNTAKEN_BYTES_MAX);
        assert!(!uploads.holds_up(100, share * 4));
        uploads.count(0, 1);
        assert!(uploads.holds_up(100, share + 1) && !uploads.holds_up(100, share));
        (0..4_096).for_each(|_| uploads.end());
        uploads.count(CORE_UNTAKEN_BYTES_MAX + 1, 0);
        assert_eq!((uploads.untaken(), uploads.is_crowded()), (0, false));
    }
}
