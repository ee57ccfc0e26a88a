//! Bodies of requests that another backend gets a copy of, while they pass to their first server: what a copy keeps,
//! and how much all copies of a core keep together. The first server gets every byte as if nobody looked, and for want
//! of room the copy ends, not the request.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::oneshot;

/// Bytes of memory that the bodies of all copies on a core take together.
const CORE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Memory that the bodies of copies take on one core.
#[derive(Default)]
pub struct Space {
    taken: Cell<usize>,
}

impl Space {
    fn take(&self, bytes: usize) -> bool {
        let taken = self.taken.get() + bytes;
        let has_room = taken <= CORE_BYTES_MAX;
        if has_room {
            self.taken.set(taken);
        }
        has_room
    }
}

/// Body of a copy, or what has come of it.
pub struct Body {
    bytes: Vec<u8>,
    /// Bytes of it that are taken from the space.
    share: usize,
    space: Rc<Space>,
}

impl Body {
    /// One without a byte.
    pub fn empty(space: &Rc<Space>) -> Body {
        Body { bytes: Vec::new(), share: 0, space: Rc::clone(space) }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes more bytes behind those that are here. Memory for them doubles, but never goes beyond `bytes_max`.
    ///
    /// # Errors
    /// There would be too many, or there is no room for them.
    pub fn extend(&mut self, more: &[u8], bytes_max: u64) -> Result<(), Refused> {
        let length = self.bytes.len() + more.len();
        if length as u64 > bytes_max {
            return Err(Refused::TooLong);
        }
        if length > self.share {
            let share = length.max((self.share * 2).min(usize::try_from(bytes_max).unwrap_or(usize::MAX)));
            if !self.space.take(share - self.share) {
                return Err(Refused::Full);
            }
            self.share = share;
            self.bytes.reserve_exact(share - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.space.taken.set(self.space.taken.get() - self.share);
    }
}

/// Why there is no copy of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    TooLong,
    /// Bodies of copies take as much memory as they may.
    Full,
}

/// Word about a body, once it has passed; none comes of one that was given up.
pub type Passed = oneshot::Receiver<Result<Body, Refused>>;

/// Body that is kept while it passes to its first server.
pub struct Passing {
    body: Body,
    bytes_max: u64,
    /// Length of the body, where it was announced: its end may come later than its last byte, and after the answer.
    length: Option<u64>,
    /// Way to the task that makes the copy, until that has been told.
    told: Option<oneshot::Sender<Result<Body, Refused>>>,
}

impl Passing {
    /// Keeps up to so many bytes of a body of this length, where it was announced.
    pub fn new(space: &Rc<Space>, bytes_max: u64, length: Option<u64>) -> (Passing, Passed) {
        let (told, passed) = oneshot::channel();
        (Passing { body: Body::empty(space), bytes_max, length, told: Some(told) }, passed)
    }

    /// Whether nothing more is kept: the copy has its body, or is to have none.
    pub fn is_over(&self) -> bool {
        self.told.is_none()
    }

    /// Begins anew: the body goes to another server from its beginning.
    pub fn rewind(&mut self) {
        self.body.bytes.clear();
    }

    pub fn pass(&mut self, data: &[u8]) {
        if self.is_over() {
            return;
        }
        match self.body.extend(data, self.bytes_max) {
            Ok(()) if self.length == Some(self.body.bytes.len() as u64) => self.end(),
            Ok(()) => {}
            Err(refused) => self.tell(Err(refused)),
        }
    }

    /// The body has passed to its end.
    pub fn end(&mut self) {
        let space = Rc::clone(&self.body.space);
        let body = std::mem::replace(&mut self.body, Body::empty(&space));
        self.tell(Ok(body));
    }

    fn tell(&mut self, passed: Result<Body, Refused>) {
        let space = Rc::clone(&self.body.space);
        self.body = Body::empty(&space);
        if let Some(told) = self.told.take() {
            // The task may be gone with its engine.
            drop(told.send(passed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_passes_is_kept_to_the_byte_and_its_memory_comes_back() {
        let space = Rc::new(Space::default());
        let (mut passing, mut passed) = Passing::new(&space, 10, None);
        passing.pass(b"of another attempt".get(..9).unwrap_or_default());
        passing.rewind();
        [&b"abc"[..], b"", b"defg", b"hij"].into_iter().for_each(|piece| passing.pass(piece));
        passing.end();
        assert!(passing.is_over());
        passing.pass(b"more");
        let Ok(Ok(body)) = passed.try_recv() else { panic!("a body") };
        assert_eq!((body.bytes(), space.taken.get()), (&b"abcdefghij"[..], 10));
        drop(body);
        assert_eq!(space.taken.get(), 0);
    }

    #[test]
    fn a_body_of_a_length_has_passed_with_its_last_byte() {
        let space = Rc::new(Space::default());
        let (mut passing, mut passed) = Passing::new(&space, 10, Some(5));
        passing.pass(b"abc");
        assert!(!passing.is_over() && passed.try_recv().is_err());
        passing.pass(b"de");
        assert!(passing.is_over());
        drop(passing);
        assert_eq!(
            passed.try_recv().ok().and_then(Result::ok).map(|body| body.bytes().to_vec()).as_deref(),
            Some(&b"abcde"[..])
        );
    }

    #[test]
    fn a_body_that_is_too_long_or_given_up_leaves_nothing() {
        let space = Rc::new(Space::default());
        let (mut passing, mut passed) = Passing::new(&space, 10, None);
        passing.pass(b"0123456789");
        assert_eq!((passing.is_over(), space.taken.get()), (false, 10));
        passing.pass(b"a");
        assert_eq!((passing.is_over(), space.taken.get()), (true, 0));
        assert_eq!(passed.try_recv().ok().and_then(Result::err), Some(Refused::TooLong));
        let (mut passing, mut passed) = Passing::new(&space, 10, None);
        passing.pass(b"some");
        drop(passing);
        assert!(passed.try_recv().is_err() && space.taken.get() == 0);
    }

    #[test]
    fn all_bodies_of_a_core_take_no_more_than_they_may() {
        let space = Rc::new(Space::default());
        let piece = vec![0; CORE_BYTES_MAX / 8];
        let most = CORE_BYTES_MAX as u64;
        let mut bodies: Vec<Body> = Vec::new();
        loop {
            let mut body = Body::empty(&space);
            match body.extend(&piece, most) {
                Ok(()) => bodies.push(body),
                Err(refused) => break assert_eq!(refused, Refused::Full),
            }
        }
        assert_eq!(bodies.len(), 8);
        bodies.pop();
        assert!(Body::empty(&space).extend(&piece, most).is_ok(), "what one has given back");
    }
}
