//! Bodies that are kept for a copy while they pass to their first server. Once the copy is over, one way or the other,
//! the rest goes on as if there had been none.

use std::cell::RefCell;
use std::mem::replace;
use std::rc::Rc;

use propylon_http::h1::RequestBody;

use super::body::Upload;
use super::downstream::{Piece, decoded};
use crate::client::side::ClientSide;
use crate::copies::Passing;
use crate::request::Request;

/// A body that is kept for a copy while it passes.
pub struct Copied {
    pub upload: Upload,
    passing: Rc<RefCell<Passing>>,
}

impl Upload {
    /// Keeps what passes of the body, where a copy waits for it; begins anew with each attempt.
    pub fn keep_copy(&mut self, client: &ClientSide<'_>, request: &Request) {
        let passing = request.steps.as_ref().and_then(|taken| taken.passing.as_ref());
        let Some(passing) = passing.filter(|passing| !passing.borrow().is_over()) else { return };
        passing.borrow_mut().rewind();
        match (&mut *self, client) {
            (Upload::Copied(copied), _) => {
                if let Upload::Paced(paced) = &mut copied.upload {
                    paced.rewind();
                }
            }
            // All of it has come since the copy was begun: for a server that takes no chunks.
            (Upload::Whole(length), ClientSide::Http1(connection)) => {
                let bytes = &connection.inbox.readable()[..*length];
                let mut passing = passing.borrow_mut();
                match request.head.body {
                    RequestBody::Chunked => passing.pass(&decoded(bytes).0),
                    _ => passing.pass(bytes),
                }
                passing.end();
            }
            _ => {
                let upload = replace(self, Upload::Whole(0));
                *self = Upload::Copied(Box::new(Copied { upload, passing: Rc::clone(passing) }));
            }
        }
    }

    /// A body that has turned out empty has passed.
    pub fn end_copy(&mut self) {
        if let Upload::Copied(copied) = self {
            copied.passing.borrow_mut().end();
            let bare = replace(&mut copied.upload, Upload::Whole(0));
            *self = bare;
        }
    }
}

/// Takes note of a piece that passes.
pub fn note(upload: &mut Upload, piece: &Piece) {
    let Upload::Copied(copied) = &mut *upload else { return };
    let mut passing = copied.passing.borrow_mut();
    match piece {
        Piece::Data(data) => passing.pass(data.readable()),
        Piece::End(_) => passing.end(),
        Piece::Later => {}
    }
    let is_over = passing.is_over();
    drop(passing);
    if is_over {
        let bare = replace(&mut copied.upload, Upload::Whole(0));
        *upload = bare;
    }
}
