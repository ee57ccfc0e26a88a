//! The two sides of a connection.

/// Which side of a connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We answer requests.
    Server,
    /// We send them.
    Client,
}
