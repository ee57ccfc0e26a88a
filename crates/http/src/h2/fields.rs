//! Fields of HTTP/2's messages: those that HTTP/1 has no lines for, and what takes the fields of a message to be sent.

/// Pseudo-header fields (RFC 9113 §8.3, RFC 8441 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pseudo {
    Authority,
    Method,
    Path,
    Protocol,
    Scheme,
    Status,
}

impl Pseudo {
    pub const ALL: [Pseudo; 6] =
        [Pseudo::Authority, Pseudo::Method, Pseudo::Path, Pseudo::Protocol, Pseudo::Scheme, Pseudo::Status];

    /// The pseudo-header field of this name, with its colon.
    pub fn of(name: &[u8]) -> Option<Pseudo> {
        Pseudo::ALL.into_iter().find(|pseudo| pseudo.as_str().as_bytes() == name)
    }

    /// Its name, with its colon.
    pub fn as_str(self) -> &'static str {
        match self {
            Pseudo::Authority => ":authority",
            Pseudo::Method => ":method",
            Pseudo::Path => ":path",
            Pseudo::Protocol => ":protocol",
            Pseudo::Scheme => ":scheme",
            Pseudo::Status => ":status",
        }
    }
}

/// Takes the fields of one message in the order in which its peer gets them.
pub trait FieldWriter {
    /// A value may come in two parts, which are to be read as one.
    fn pseudo(&mut self, name: Pseudo, value: [&[u8]; 2]);

    /// `name` may have capital letters, as HTTP/1 writes it. `secret`: in no table of compression, here or further on
    /// (RFC 7541 §7.1.3).
    fn field(&mut self, name: &[u8], value: &[u8], secret: bool);
}
