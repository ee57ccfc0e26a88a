//! States of the responses on a server's streams. Code that begins a stream registers it, and the intake goes by the
//! state, since the library ends a connection for frames that RFC 9113 lets cost their stream alone.

use std::cell::{Cell, RefCell};

/// State of a stream's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseState {
    /// The final head has not been received.
    Awaited,
    /// The final head has been received: the body and trailers follow.
    Begun,
    /// The response is complete, or the server has reset the stream.
    Over,
}

/// States of the responses of one connection to a server.
#[derive(Debug, Default)]
pub struct Responses {
    /// Open streams that code of ours has a handle of, in the order of their identifiers; the peer limits how many.
    known: RefCell<Vec<(u32, ResponseState)>>,
    /// One of the connection's streams has received a whole response.
    has_answered: Cell<bool>,
    /// The server has said GOAWAY with the code of an error: it takes nothing more, and is to close (RFC 9113 §5.4.1).
    has_failed: Cell<bool>,
}

impl Responses {
    pub fn begin(&self, stream: u32) {
        let mut known = self.known.borrow_mut();
        debug_assert!(known.last().is_none_or(|(last, _)| *last < stream), "streams begin in order");
        known.push((stream, ResponseState::Awaited));
    }

    /// Forgets a stream whose handle is dropped: its further frames are judged by the library alone.
    pub fn forget(&self, stream: u32) {
        let mut known = self.known.borrow_mut();
        if let Ok(place) = known.binary_search_by_key(&stream, |(number, _)| *number) {
            known.remove(place);
        }
    }

    /// ResponseState of the stream's response; `None` for a stream that nobody has a handle of.
    pub fn state(&self, stream: u32) -> Option<ResponseState> {
        let known = self.known.borrow();
        known.binary_search_by_key(&stream, |(number, _)| *number).ok().map(|place| known[place].1)
    }

    /// Whether the connection was of use: an error that ends it later is not all that the server can do. Heads alone
    /// are no use, since a server may break off whatever it begins.
    pub fn has_answered(&self) -> bool {
        self.has_answered.get()
    }

    pub fn fail(&self) {
        self.has_failed.set(true);
    }

    pub fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.known.borrow().is_empty()
    }

    /// The server has ended the stream by END_STREAM, and so a response that had begun before, or begins with that.
    pub fn complete(&self, stream: u32) {
        self.has_answered.set(true);
        self.set_state(stream, ResponseState::Over);
    }

    pub fn set_state(&self, stream: u32, state: ResponseState) {
        let mut known = self.known.borrow_mut();
        if let Ok(place) = known.binary_search_by_key(&stream, |(number, _)| *number) {
            known[place].1 = state;
        }
    }
}
