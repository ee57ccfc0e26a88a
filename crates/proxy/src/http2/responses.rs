//! Stages of the responses on a server's streams. Code that begins a stream registers it, and the intake goes by the
//! stage, since the library ends a connection for frames that RFC 9113 lets cost their stream alone.

use std::cell::{Cell, RefCell};

/// How much of its response a stream has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No final head.
    Awaited,
    /// The final head: what follows is its body, and its trailers.
    Begun,
    /// All of it, or the server has reset the stream.
    Over,
}

/// The words of one connection's server so far.
#[derive(Debug, Default)]
pub struct Responses {
    /// Streams that somebody has a handle of, the oldest first, and so by number: as many as it may have.
    known: RefCell<Vec<(u32, Stage)>>,
    /// One of its streams has brought a whole response.
    has_answered: Cell<bool>,
    /// The server has said GOAWAY with the code of an error: it takes nothing more, and is to close (RFC 9113 §5.4.1).
    has_failed: Cell<bool>,
}

impl Responses {
    pub fn begin(&self, stream: u32) {
        let mut known = self.known.borrow_mut();
        debug_assert!(known.last().is_none_or(|(last, _)| *last < stream), "streams begin in order");
        known.push((stream, Stage::Awaited));
    }

    /// Nobody has a handle of it any more: what comes for it is the library's to judge.
    pub fn forget(&self, stream: u32) {
        let mut known = self.known.borrow_mut();
        if let Ok(place) = known.binary_search_by_key(&stream, |(number, _)| *number) {
            known.remove(place);
        }
    }

    /// Stage of the stream's response; `None` for a stream that nobody has a handle of.
    pub fn stage(&self, stream: u32) -> Option<Stage> {
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
        self.reach(stream, Stage::Over);
    }

    pub fn reach(&self, stream: u32, stage: Stage) {
        let mut known = self.known.borrow_mut();
        if let Ok(place) = known.binary_search_by_key(&stream, |(number, _)| *number) {
            known[place].1 = stage;
        }
    }
}
