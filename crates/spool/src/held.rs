//! A body that is held whole, and read as often as it takes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::file::Tail;
use crate::space::{Bounds, Claim, PIECE_BYTES, Refused, Space};

/// Pieces of memory that count while bytes are on their way to a file.
const PIECES_ON_THEIR_WAY: usize = 8;

/// A body that is being held.
pub struct Writing {
    claim: Claim,
    bounds: Bounds,
    pieces: Vec<Vec<u8>>,
    in_memory: u64,
    tail: Tail,
    spills: bool,
}

impl Writing {
    #[must_use]
    pub fn new(space: &Arc<Space>, core: usize, bounds: Bounds) -> Writing {
        let claim = Claim::new(space, core);
        Writing { claim, bounds, pieces: Vec::new(), in_memory: 0, tail: Tail::default(), spills: false }
    }

    /// Bytes that are held.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.in_memory + self.tail.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether some of it is in a file.
    #[must_use]
    pub fn is_on_disk(&self) -> bool {
        self.spills
    }

    /// Ready when more may be pushed.
    pub fn poll_room(&mut self, context: &Context<'_>) -> Poll<Result<(), Refused>> {
        self.tail.poll_room(context, &self.claim, false)
    }

    /// Holds more of the body. Nothing of `bytes` is held where they are refused.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if !self.spills && self.in_memory + bytes.len() as u64 <= self.bounds.memory && self.keep(bytes) {
            return Ok(());
        }
        if self.bounds.disk == 0 {
            let is_long = self.in_memory + bytes.len() as u64 > self.bounds.memory;
            return Err(if is_long { Refused::TooLong } else { Refused::Memory });
        }
        if !self.spills {
            for _ in 0..PIECES_ON_THEIR_WAY {
                if !self.claim.take_piece() {
                    return Err(Refused::Memory);
                }
            }
            self.spills = true;
        }
        self.tail.push(&mut self.claim, bytes, self.bounds.disk)
    }

    /// Keeps bytes in memory; false where the engine has none left, and then nothing is kept of them.
    fn keep(&mut self, bytes: &[u8]) -> bool {
        let room = self.pieces.last().map_or(0, |last| PIECE_BYTES - last.len());
        let wanted = bytes.len().saturating_sub(room).div_ceil(PIECE_BYTES);
        if !self.claim.take_pieces(wanted) {
            return false;
        }
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        if let Some(last) = self.pieces.last_mut() {
            last.extend_from_slice(first);
        }
        for piece in rest.chunks(PIECE_BYTES) {
            self.pieces.push(piece.to_vec());
        }
        self.in_memory += bytes.len() as u64;
        true
    }

    /// Ready when all of it is where it stays.
    pub fn poll_end(&mut self, context: &Context<'_>) -> Poll<Result<(), Refused>> {
        self.tail.poll_room(context, &self.claim, true)
    }

    /// The body, once [`Writing::poll_end`] is ready.
    #[must_use]
    pub fn end(self) -> Held {
        let (length, is_on_disk) = (self.len(), self.spills);
        let Writing { claim, pieces, tail, .. } = self;
        Held(Rc::new(Body { length, is_on_disk, pieces, claim, tail: RefCell::new(tail) }))
    }
}

/// A body that is held.
#[derive(Clone)]
pub struct Held(Rc<Body>);

struct Body {
    length: u64,
    is_on_disk: bool,
    pieces: Vec<Vec<u8>>,
    claim: Claim,
    tail: RefCell<Tail>,
}

impl Held {
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.length
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    #[must_use]
    pub fn is_on_disk(&self) -> bool {
        self.0.is_on_disk
    }

    /// Begins to read it from its front. One reads at a time.
    #[must_use]
    pub fn read(&self) -> Reading {
        self.0.tail.borrow_mut().stop_reading();
        Reading { held: self.clone(), piece: 0, offset: 0 }
    }
}

/// How far a body has been read.
pub struct Reading {
    held: Held,
    piece: usize,
    offset: u64,
}

impl Reading {
    /// Reads the next bytes; `None` at the end.
    pub fn poll(&mut self, context: &Context<'_>) -> Poll<Result<Option<Vec<u8>>, Refused>> {
        let Body { pieces, claim, tail, .. } = &*self.held.0;
        if let Some(piece) = pieces.get(self.piece) {
            self.piece += 1;
            return Poll::Ready(Ok(Some(piece.clone())));
        }
        let read = ready!(tail.borrow_mut().poll_read(context, claim, self.offset));
        if let Ok(Some(bytes)) = &read {
            self.offset += bytes.len() as u64;
        }
        Poll::Ready(read)
    }

    /// Length of all of it, in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.held.len()
    }

    /// Whether nothing is left to read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.piece == self.held.0.pieces.len() && self.offset == self.held.0.tail.borrow().len()
    }

    /// Begins anew.
    pub fn rewind(&mut self) {
        *self = self.held.read();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::task::Wake;
    use std::thread::{self, Thread};

    use super::*;
    use crate::space::{BLOCK_BYTES, Terms};

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    pub(crate) fn wait<T>(mut poll: impl FnMut(&Context<'_>) -> Poll<T>) -> T {
        let waker = Arc::new(Unpark(thread::current())).into();
        let context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(value) = poll(&context) {
                return value;
            }
            thread::park();
        }
    }

    pub(crate) fn space(memory: usize, disk: usize) -> Arc<Space> {
        let space = Space::new(2);
        let folder = Some(std::env::temp_dir());
        space.set_terms(&Terms { memory: memory as u64, disk: disk as u64, folder });
        space
    }

    pub(crate) fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    fn hold(space: &Arc<Space>, bounds: Bounds, body: &[u8], step: usize) -> Result<Held, Refused> {
        let mut writing = Writing::new(space, 0, bounds);
        for part in body.chunks(step) {
            wait(|context| writing.poll_room(context))?;
            writing.push(part)?;
        }
        wait(|context| writing.poll_end(context))?;
        Ok(writing.end())
    }

    fn all(reading: &mut Reading) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(bytes) = wait(|context| reading.poll(context)).unwrap() {
            all.extend(bytes);
        }
        assert!(reading.is_over());
        all
    }

    const KIB: usize = 1024;

    #[test]
    fn a_body_is_read_as_it_came_as_often_as_it_takes_from_memory_and_from_its_file() {
        let space = space(1024 * KIB, 4096 * KIB);
        let bounds = Bounds { memory: 64 * KIB as u64, disk: 2048 * KIB as u64 };
        for count in [0, 1, 16 * KIB, 64 * KIB, 64 * KIB + 1, 200 * KIB, 1000 * KIB + 7] {
            for step in [999, 16 * KIB, 70 * KIB] {
                let body = bytes(count);
                let held = hold(&space, bounds, &body, step).unwrap();
                assert_eq!((held.len(), held.is_empty()), (count as u64, count == 0));
                assert!(held.is_on_disk() || count <= 64 * KIB + step);
                let mut reading = held.read();
                assert!(all(&mut reading) == body, "{count} by {step}");
                reading.rewind();
                let _ = wait(|context| reading.poll(context));
                reading.rewind();
                assert!(all(&mut reading) == body, "{count} by {step}, again");
                drop((reading, held));
                assert_eq!(space.taken(), (0, 0));
            }
        }
    }

    #[test]
    fn bounds_of_a_body_and_of_the_engine_are_kept_and_what_was_taken_comes_back() {
        let space = space(256 * KIB, 4 * BLOCK_BYTES);
        let bounds = |memory: usize, disk: usize| Bounds { memory: memory as u64, disk: disk as u64 };
        let refused = |bounds, count| hold(&space, bounds, &bytes(count), 8 * KIB).err();
        assert_eq!(refused(bounds(64 * KIB, 0), 64 * KIB), None);
        assert_eq!(refused(bounds(64 * KIB, 0), 65 * KIB), Some(Refused::TooLong));
        assert_eq!(refused(bounds(64 * KIB, 128 * KIB), 193 * KIB), Some(Refused::TooLong));
        assert_eq!(refused(bounds(0, 1024 * KIB), 257 * KIB), Some(Refused::Disk));
        assert_eq!(refused(bounds(1024 * KIB, 0), 257 * KIB), Some(Refused::Memory));
        assert_eq!(space.taken(), (0, 0));
        // Memory is used up: what is left goes to a file, as long as there is memory on the way.
        let held = hold(&space, bounds(1024 * KIB, 1024 * KIB), &bytes(120 * KIB), 8 * KIB).unwrap();
        assert!(!held.is_on_disk());
        let more = hold(&space, bounds(1024 * KIB, 1024 * KIB), &bytes(120 * KIB), 8 * KIB).unwrap();
        assert_eq!((more.is_on_disk(), space.taken().0), (false, 256 * KIB as u64));
        assert_eq!(refused(bounds(0, 1024 * KIB), KIB), Some(Refused::Memory));
        drop((held, more));
        assert_eq!(space.taken(), (0, 0));
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_told_and_other_terms_hold_at_once() {
        let space = Space::new(1);
        let folder = Some(Path::new("/nonexistent").to_owned());
        space.set_terms(&Terms { memory: 1 << 20, disk: 1 << 20, folder });
        let bounds = Bounds { memory: 0, disk: 1 << 20 };
        assert_eq!(hold(&space, bounds, &bytes(100), 10).err(), Some(Refused::Failed));
        space.set_terms(&Terms { memory: 1 << 20, disk: 0, folder: Some(std::env::temp_dir()) });
        assert_eq!(hold(&space, bounds, &bytes(100), 10).err(), Some(Refused::Disk));
        // A body that began while there was a folder ends so, though newer terms have none.
        space.set_terms(&Terms { memory: 1 << 20, disk: 1 << 20, folder: Some(std::env::temp_dir()) });
        space.set_terms(&Terms { memory: 1 << 20, disk: 0, folder: None });
        assert_eq!(hold(&space, bounds, &bytes(100), 10).err(), None);
        space.set_terms(&Terms { memory: 0, disk: 0, folder: Some(std::env::temp_dir()) });
        assert_eq!(hold(&space, Bounds { memory: 1 << 20, disk: 0 }, &bytes(1), 1).err(), Some(Refused::Memory));
        assert_eq!(space.taken(), (0, 0));
    }
}
