//! One stream: its state (RFC 9113 §5.1), its windows, and what waits to be sent on it.

use super::Reason;
use super::priority::Priority;
use super::window::{ReceiveWindow, SendWindow};

/// State of one direction of a stream, as far as its message has come.
///
/// ```text
///      HEADERS (1xx)
///        +---+
///        |   v        HEADERS             DATA, or trailers, with END_STREAM
///        [ Head ] --------------> [ Body ] --------------------------------> [ Ended ]
///            |                                                                   ^
///            |                   HEADERS with END_STREAM                         |
///            +-------------------------------------------------------------------+
/// ```
///
/// The RFC's states are pairs of these: `idle` streams are not in the connection's list; `open` is a pair of which
/// neither has ended; `half-closed (local)` has ended sending, `half-closed (remote)` has ended receiving; `closed` is
/// a pair of which both have, or a stream that either side has reset, from whatever state. A stream begins with the
/// HEADERS that the client sends: at a server in (receive Body or Ended, send Head), at a client in (receive Head, send
/// Body or Ended).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Half {
    Head,
    Body,
    Ended,
}

impl Half {
    /// The state behind a head, which may end the message.
    pub fn after_head(end: bool) -> Half {
        if end { Half::Ended } else { Half::Body }
    }
}

/// Why a stream is closed before both halves have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The peer has sent RST_STREAM.
    ByPeer(Reason),
    /// We have sent RST_STREAM for what the peer did.
    ForError(Reason),
    /// We have sent RST_STREAM of our own accord.
    ByUs(Reason),
    /// The peer has said by GOAWAY that it has not looked at the stream, and does not (RFC 9113 §6.8).
    Unprocessed(Reason),
    /// The connection has ended.
    ConnectionLost,
}

/// Ends of the message that is being sent, once its body is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// More of the body may come.
    Open,
    /// The last frame of the body has END_STREAM.
    Data,
    /// Trailers, which are the application's to send then.
    Trailers,
}

/// A stream, with what the application keeps of it.
#[derive(Debug)]
pub struct Stream<T> {
    pub(super) id: u32,
    pub(super) receive: Half,
    pub(super) send: Half,
    pub(super) reset: Option<Reset>,
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    /// Bytes of the body that have come, and that are to come in all, where that is known.
    pub(super) received: u64,
    pub(super) expected: Option<u64>,
    /// Bytes that the application has to send.
    pub(super) pending: usize,
    pub(super) ending: Ending,
    /// Whether the stream stands in the line of those that may send.
    pub(super) is_queued: bool,
    /// Whether the application has let go of the stream.
    pub(super) is_forgotten: bool,
    pub(super) priority: Priority,
    /// Milliseconds: when the stream was begun.
    pub(super) begun: u64,
    pub data: T,
}

impl<T> Stream<T> {
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Why the stream was broken off, if it was.
    pub fn reset(&self) -> Option<Reset> {
        self.reset
    }

    /// Whether the peer's message is whole.
    pub fn is_received(&self) -> bool {
        self.receive == Half::Ended
    }

    /// Whether the head of our message has been sent.
    pub fn has_sent_head(&self) -> bool {
        self.send != Half::Head
    }

    /// Whether our message has been sent whole.
    pub fn is_sent(&self) -> bool {
        self.send == Half::Ended
    }

    /// Whether neither side may send anything more.
    pub fn is_closed(&self) -> bool {
        self.reset.is_some() || self.is_received() && self.is_sent()
    }

    /// Bytes offered that no window has had room for yet.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Body bytes received and not released.
    pub fn held(&self) -> u32 {
        self.receive_window.held()
    }

    /// Whether there is something to send that the stream's window has room for.
    pub(super) fn may_send(&self) -> bool {
        let has_data = self.pending > 0 && self.send_window.is_open();
        let ends = self.pending == 0 && self.ending == Ending::Data;
        self.send == Half::Body && self.reset.is_none() && (has_data || ends)
    }

    /// Takes note of body bytes received; fails where the body, which is whole if `end`, is not as long as its head
    /// said (RFC 9113 §8.1.1).
    pub(super) fn receive_body(&mut self, bytes: usize, end: bool) -> Result<(), Reason> {
        self.received += bytes as u64;
        self.check_length(end)
    }

    /// Fails where the body, which is whole if `end`, is not as long as it should be.
    pub(super) fn check_length(&self, end: bool) -> Result<(), Reason> {
        match self.expected {
            Some(expected) if self.received > expected || end && self.received < expected => {
                Err(Reason::PROTOCOL_ERROR)
            }
            _ => Ok(()),
        }
    }
}
