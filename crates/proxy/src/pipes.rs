//! The pipes that a core's relays splice through: lent for as long as bytes flow, and never held by who waits.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use propylon_metrics::Column;
use propylon_observe::telemetry::PipeMetrics;
use propylon_sys::Pipe;

/// Bytes that a pipe is asked to hold. The kernel keeps 40 bytes for each page of it.
const PIPE_BYTES: usize = 256 * 1024;
/// Pipes that a core has at once, two files each; relays beyond that go on copying.
const PIPES_MAX: usize = 256;

#[derive(Default)]
pub struct Pipes {
    shelf: Rc<Shelf>,
    /// Refusals since the last report.
    refused: Cell<u64>,
}

#[derive(Default)]
struct Shelf {
    #[expect(clippy::vec_box, reason = "a relay that waits has room for a pointer, and not for a pipe")]
    idle: RefCell<Vec<Box<Pipe>>>,
    lent: Cell<usize>,
    /// The fewest that lay idle since the last trim: so many were not needed.
    spare: Cell<usize>,
}

/// A pipe on loan. It goes back empty; one that holds bytes is closed, and they with it.
pub struct Lent {
    pipe: Option<Box<Pipe>>,
    shelf: Rc<Shelf>,
}

impl Pipes {
    /// Lends a pipe; `None` when there are too many, or the kernel has no more files to give.
    pub fn lend(&self) -> Option<Lent> {
        let idle = self.shelf.idle.borrow_mut().pop();
        let left = self.shelf.idle.borrow().len();
        self.shelf.spare.set(self.shelf.spare.get().min(left));
        let pipe = match idle {
            Some(pipe) => Some(pipe),
            None if self.shelf.lent.get() >= PIPES_MAX => None,
            None => Pipe::new(PIPE_BYTES).ok().map(Box::new),
        };
        if pipe.is_none() {
            self.refused.set(self.refused.get() + 1);
            return None;
        }
        self.shelf.lent.set(self.shelf.lent.get() + 1);
        Some(Lent { pipe, shelf: Rc::clone(&self.shelf) })
    }

    /// Once a second: closes what was not needed lately.
    pub fn trim(&self) {
        let mut idle = self.shelf.idle.borrow_mut();
        let kept = idle.len() - self.shelf.spare.get().min(idle.len());
        idle.truncate(kept);
        self.shelf.spare.set(kept);
    }

    /// Once a tick.
    pub fn report(&self, column: &Column, metrics: &PipeMetrics) {
        column.set(metrics.open, (self.shelf.lent.get() + self.shelf.idle.borrow().len()) as i64);
        column.add(metrics.refused, self.refused.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.shelf.lent.set(self.shelf.lent.get() - 1);
        if let Some(pipe) = self.pipe.take().filter(|pipe| pipe.held() == 0) {
            self.shelf.idle.borrow_mut().push(pipe);
        }
    }
}

impl Deref for Lent {
    type Target = Pipe;

    fn deref(&self) -> &Pipe {
        self.pipe.as_ref().expect("a pipe until it is dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Pipe {
        self.pipe.as_mut().expect("a pipe until it is dropped")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn an_empty_pipe_is_lent_again_and_a_dirty_one_is_closed() {
        let pipes = Pipes::default();
        let mut dirty = pipes.lend().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"of somebody else").unwrap();
        dirty.fill(listener.accept().unwrap().0, 100).unwrap();
        drop((dirty, pipes.lend()));
        assert_eq!((pipes.shelf.idle.borrow().len(), pipes.shelf.lent.get()), (1, 0));
        assert_eq!(pipes.lend().unwrap().held(), 0);
    }

    #[test]
    fn pipes_that_nobody_needs_are_closed() {
        let pipes = Pipes::default();
        let burst: Vec<Lent> = (0..20).map_while(|_| pipes.lend()).collect();
        drop(burst);
        pipes.trim();
        drop(pipes.lend());
        pipes.trim();
        pipes.trim();
        assert!(pipes.shelf.idle.borrow().len() <= 1);
    }

    #[test]
    fn there_are_only_so_many() {
        let pipes = Pipes::default();
        let all: Vec<Lent> = (0..PIPES_MAX).map_while(|_| pipes.lend()).collect();
        assert!(pipes.lend().is_none());
        assert_eq!(pipes.refused.get(), 1);
        drop(all);
        assert!(pipes.lend().is_some());
    }
}
