//! Ends of bodies that are read and thrown away, since their requests were answered before all of them had come.

/// How the reading of such a body has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarded {
    /// The client has ended the body, its stream or its connection.
    Ended,
    /// Nothing has come for a while.
    Quiet,
    /// Too little has come.
    Slow,
    /// The body has taken too long, or was too long.
    Long,
    /// The room was needed for others.
    Crowded,
}

impl Discarded {
    /// Names in metrics, in the order of the ends.
    pub const NAMES: [&str; 5] = ["ended", "quiet", "slow", "long", "crowded"];
}
