//! Version, suite and protocol that a finished handshake with a server agreed on.

use crate::records::suite::{Suite, Version};

/// Parameters that a finished handshake with a server agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamFacts {
    pub version: Version,
    pub suite: Suite,
    pub resumed: bool,
    /// Position of the agreed protocol in the list that was given to `UpstreamProfile::load`; none where the server
    /// agreed on none.
    pub alpn: Option<u8>,
}
