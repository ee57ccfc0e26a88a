//! Flow control (RFC 9113 §5.2, §6.9): how much may be sent, and how much the peer may send.

use super::settings::WINDOW_BYTES_MAX;

/// A window that would be wider than any may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// Bytes that may be sent. Below zero after the peer has made its windows narrower (RFC 9113 §6.9.2).
#[derive(Clone, Copy, Debug)]
pub struct SendWindow(i64);

impl SendWindow {
    pub fn new(bytes: u32) -> SendWindow {
        SendWindow(i64::from(bytes))
    }

    /// Bytes that may be sent now.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub fn is_open(self) -> bool {
        self.0 > 0
    }

    /// Widens, or narrows, the window.
    pub fn change(&mut self, by: i64) -> Result<(), Overflow> {
        self.0 += by;
        if self.0 > i64::from(WINDOW_BYTES_MAX) { Err(Overflow) } else { Ok(()) }
    }

    /// Takes note of bytes sent, which are as many as the window has room for.
    pub fn sent(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.bytes(), "{bytes} of {}", self.0);
        self.0 -= bytes as i64;
    }
}

/// Bytes that the peer may send, and those that it has sent and nobody has taken.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWindow {
    /// Below zero after our windows were made narrower.
    available: i64,
    /// Received and not released.
    held: u32,
    /// Sum of both when all is well.
    target: u32,
}

impl ReceiveWindow {
    pub fn new(bytes: u32) -> ReceiveWindow {
        ReceiveWindow { available: i64::from(bytes), held: 0, target: bytes }
    }

    /// Bytes that the window has room for when nothing of it is held.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Bytes received and not released.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Takes note of bytes received; fails where the peer was not allowed to send as many.
    pub fn receive(&mut self, bytes: u32) -> Result<(), Overflow> {
        self.available -= i64::from(bytes);
        self.held += bytes;
        if self.available < 0 { Err(Overflow) } else { Ok(()) }
    }

    /// Releases bytes that were received.
    pub fn release(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.held, "{bytes} of {}", self.held);
        self.held = self.held.saturating_sub(bytes);
    }

    /// Wants the window to be so wide from now on. A narrower one comes about as bytes are received.
    pub fn set_target(&mut self, bytes: u32) {
        self.target = bytes.min(WINDOW_BYTES_MAX);
    }

    /// Our SETTINGS have changed the window, and the peer has acknowledged it.
    pub fn change(&mut self, from: u32, to: u32) {
        let by = i64::from(to) - i64::from(from);
        self.available += by;
        self.target = u32::try_from(i64::from(self.target) + by).unwrap_or(0).min(WINDOW_BYTES_MAX);
    }

    /// The increment that the peer is to be told of, once that is worth a frame: half of the window.
    pub fn take_increment(&mut self) -> Option<u32> {
        self.take_owed(self.target / 2)
    }

    /// The same once so many bytes are owed.
    pub fn take_owed(&mut self, least: u32) -> Option<u32> {
        let owed = i64::from(self.target) - i64::from(self.held) - self.available;
        let increment = u32::try_from(owed).ok().filter(|owed| *owed > 0 && *owed >= least)?;
        self.available += i64::from(increment);
        Some(increment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_given_back_by_halves_and_only_what_was_released() {
        let mut window = ReceiveWindow::new(100);
        assert_eq!(window.receive(60), Ok(()));
        assert_eq!(window.take_increment(), None, "nothing is released");
        window.release(49);
        assert_eq!(window.take_increment(), None, "less than half");
        window.release(1);
        assert_eq!((window.take_increment(), window.take_increment()), (Some(50), None));
        assert_eq!((window.receive(90), window.receive(1)), (Ok(()), Err(Overflow)));
    }

    #[test]
    fn a_wider_target_is_told_at_once_and_a_narrower_one_takes_effect_as_bytes_come() {
        let mut window = ReceiveWindow::new(100);
        window.set_target(300);
        assert_eq!(window.take_increment(), Some(200));
        window.set_target(50);
        assert_eq!(window.receive(280), Ok(()));
        window.release(280);
        assert_eq!(window.take_increment(), Some(30), "20 were left of it");
        assert_eq!((window.receive(50), window.receive(1)), (Ok(()), Err(Overflow)));
    }

    #[test]
    fn settings_may_make_a_window_negative_and_it_opens_again_only_from_there() {
        let mut window = ReceiveWindow::new(100);
        assert_eq!(window.receive(80), Ok(()));
        window.change(100, 10);
        window.release(80);
        assert_eq!(window.take_increment(), Some(80));
        assert_eq!((window.receive(10), window.receive(1)), (Ok(()), Err(Overflow)));
        let mut window = SendWindow::new(100);
        window.sent(80);
        assert_eq!((window.change(-90), window.bytes(), window.is_open()), (Ok(()), 0, false));
        assert_eq!((window.change(71), window.bytes()), (Ok(()), 1));
    }

    #[test]
    fn no_window_is_wider_than_the_widest() {
        let mut window = SendWindow::new(WINDOW_BYTES_MAX);
        assert_eq!(window.change(0), Ok(()));
        assert_eq!(window.change(1), Err(Overflow));
    }
}
