//! The next action that a handshake needs from its driver.

/// The next action that a handshake needs from its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// More bytes from the client; nothing to send.
    Read,
    /// `out` has something for the client; send it, then read.
    Write,
    /// A job, which is to be had from [`Session::take_job`](crate::Session::take_job) and whose outcome goes to
    /// [`Session::resume`](crate::Session::resume). Meanwhile nothing is consumed, nothing is to be sent, and what the
    /// client sends waits in the buffer.
    Work,
    /// The handshake is over. `out` may still hold its end, which may be sent together with the first response.
    Done,
}
