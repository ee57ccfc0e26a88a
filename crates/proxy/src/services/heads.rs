//! Heads of responses between a connection, which decodes them as they come, and the tasks of their requests.

use std::cell::RefCell;

use propylon_http::fault::Fault;
use propylon_http::h1::Field;

/// Heads that a core keeps for reuse.
const KEPT_MAX: usize = 64;
/// Text that a kept one may have room for, in bytes.
const TEXT_KEPT_BYTES: usize = 4096;

/// The head of a response, until its request's task reads it.
#[derive(Debug, Default)]
pub struct ReceivedHead {
    /// The fields as lines, and where they lie in those.
    pub text: Vec<u8>,
    pub fields: Vec<Field>,
    /// Flaw of one of the fields: the message is malformed.
    pub flaw: Option<Fault>,
    /// No body follows.
    pub end: bool,
}

/// Heads that a core keeps for reuse.
#[derive(Debug, Default)]
// In boxes, since they move as pointers between connections and tasks.
#[expect(clippy::vec_box)]
pub struct HeadPool(RefCell<Vec<Box<ReceivedHead>>>);

impl HeadPool {
    pub fn take(&self) -> Box<ReceivedHead> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    pub fn give_back(&self, mut head: Box<ReceivedHead>) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < KEPT_MAX && head.text.capacity() <= TEXT_KEPT_BYTES {
            head.text.clear();
            head.fields.clear();
            kept.push(head);
        }
    }
}
