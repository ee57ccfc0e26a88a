//! Bodies that are kept for copies while they pass to their first server. Once the copies are over, one way or the
//! other, the rest goes on as if there had been none.

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
    /// One for each copy that has it later.
    passing: Rc<RefCell<Vec<Passing>>>,
}

impl Upload {
    /// Keeps what passes of the body, where a copy waits for it; begins anew with each attempt.
    pub fn keep_copy(&mut self, client: &ClientSide<'_>, request: &Request) {
        let passing = request.steps.as_ref().and_then(|taken| taken.passing.as_ref());
        let Some(passing) = passing.filter(|passing| !is_over(&passing.borrow())) else { return };
        passing.borrow_mut().iter_mut().for_each(Passing::rewind);
        match (&mut *self, client) {
            (Upload::Copied(copied), _) => {
                if let Upload::Paced(paced) = &mut copied.upload {
                    paced.rewind();
                }
            }
            // All of it has come since the copy was begun: for a server that takes no chunks.
            (Upload::Whole(length), ClientSide::Http1(connection)) => {
                let bytes = &connection.inbox.readable()[..*length];
                let unframed = (request.head.body == RequestBody::Chunked).then(|| decoded(bytes).0);
                for passing in passing.borrow_mut().iter_mut() {
                    passing.pass(unframed.as_deref().unwrap_or(bytes));
                    passing.end();
                }
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
            copied.passing.borrow_mut().iter_mut().for_each(Passing::end);
            let bare = replace(&mut copied.upload, Upload::Whole(0));
            *self = bare;
        }
    }
}

/// Whether no copy keeps anything more.
fn is_over(passing: &[Passing]) -> bool {
    passing.iter().all(Passing::is_over)
}

/// Takes note of a piece that passes.
pub fn note(upload: &mut Upload, piece: &Piece) {
    let Upload::Copied(copied) = &mut *upload else { return };
    let mut passing = copied.passing.borrow_mut();
    match piece {
        Piece::Data(data) => passing.iter_mut().for_each(|passing| passing.pass(data.readable())),
        Piece::End(_) => passing.iter_mut().for_each(Passing::end),
        Piece::Later => {}
    }
    let is_over = is_over(&passing);
    drop(passing);
    if is_over {
        let bare = replace(&mut copied.upload, Upload::Whole(0));
        *upload = bare;
    }
}
