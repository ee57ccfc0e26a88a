//! The next action that a handshake needs from its driver.

/// The next action that a handshake needs from its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Wait for more bytes from the client; nothing to send.
    Read,
    /// Send `out` to the client, then read.
    Write,
    /// Have a job done: [`Session::take_job`](crate::Session::take_job) gives it out, and its outcome goes to
    /// [`Session::resume`](crate::Session::resume). Meanwhile nothing is consumed and nothing is to be sent; bytes from
    /// the client wait in the buffer.
    Work,
    /// The handshake is over. `out` may hold its last flight, which may be sent together with the first response.
    Done,
}
