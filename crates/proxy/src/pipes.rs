//! The pipes that a core's relays and bodies are spliced through: lent for as long as bytes flow, and never held by
//! whoever waits for more of them.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use propylon_metrics::Column;
use propylon_observe::telemetry::PipeMetrics;
use propylon_sys::Pipe;

/// A splice that brings less than this has met the end of the bulk: a copy of so little costs less than a pipe's
/// detour.
pub const SPLICE_BYTES_MIN: usize = 8 * 1024;
/// Bytes that a pipe is asked to hold. The kernel keeps 40 bytes for each page of it.
const PIPE_BYTES: usize = 256 * 1024;
/// A pipe that holds less is no help: beyond a user's share of memory for pipes the kernel grants two pages (pipe(7)).
const PIPE_BYTES_MIN: usize = 64 * 1024;
/// Pipes that a core has at once, two files each; relays and bodies beyond that go on being copied.
const PIPES_MAX: usize = 256;

#[derive(Default)]
pub struct Pipes {
    free_list: Rc<FreeList>,
    /// Refusals since the last report.
    refused: Cell<u64>,
}

#[derive(Default)]
struct FreeList {
    #[expect(clippy::vec_box, reason = "a relay that waits has room for a pointer, and not for a pipe")]
    idle: RefCell<Vec<Box<Pipe>>>,
    lent: Cell<usize>,
    /// Minimum of idle pipes since the last trim: so many were not needed.
    unused: Cell<usize>,
}

/// A pipe on loan. It goes back empty; one that holds bytes is closed, and they with it.
pub struct PipeLease {
    pipe: Option<Box<Pipe>>,
    free_list: Rc<FreeList>,
}

impl Pipes {
    /// Lends a pipe; `None` when there are too many, or the kernel has no more files or memory to give.
    pub fn lend(&self) -> Option<PipeLease> {
        let idle = self.free_list.idle.borrow_mut().pop();
        let left = self.free_list.idle.borrow().len();
        self.free_list.unused.set(self.free_list.unused.get().min(left));
        let pipe = match idle {
            Some(pipe) => Some(pipe),
            None if self.free_list.lent.get() >= PIPES_MAX => None,
            None => Pipe::new(PIPE_BYTES).ok().filter(|pipe| pipe.capacity() >= PIPE_BYTES_MIN).map(Box::new),
        };
        if pipe.is_none() {
            self.refused.set(self.refused.get() + 1);
            return None;
        }
        self.free_list.lent.set(self.free_list.lent.get() + 1);
        Some(PipeLease { pipe, free_list: Rc::clone(&self.free_list) })
    }

    /// Once a second: closes what was not needed lately.
    pub fn trim(&self) {
        let mut idle = self.free_list.idle.borrow_mut();
        let kept = idle.len() - self.free_list.unused.get().min(idle.len());
        idle.truncate(kept);
        self.free_list.unused.set(kept);
    }

    /// Once a tick.
    pub fn report(&self, column: &Column, metrics: &PipeMetrics) {
        column.set(metrics.open, (self.free_list.lent.get() + self.free_list.idle.borrow().len()) as i64);
        column.add(metrics.refused, self.refused.take());
    }
}

impl Drop for PipeLease {
    fn drop(&mut self) {
        self.free_list.lent.set(self.free_list.lent.get() - 1);
        if let Some(pipe) = self.pipe.take().filter(|pipe| pipe.held() == 0) {
            self.free_list.idle.borrow_mut().push(pipe);
        }
    }
}

impl Deref for PipeLease {
    type Target = Pipe;

    fn deref(&self) -> &Pipe {
        self.pipe.as_ref().expect("a pipe until it is dropped")
    }
}

impl DerefMut for PipeLease {
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
        assert_eq!((pipes.free_list.idle.borrow().len(), pipes.free_list.lent.get()), (1, 0));
        assert_eq!(pipes.lend().unwrap().held(), 0);
    }

    #[test]
    fn pipes_that_nobody_needs_are_closed() {
        let pipes = Pipes::default();
        let burst: Vec<PipeLease> = (0..20).map_while(|_| pipes.lend()).collect();
        drop(burst);
        pipes.trim();
        drop(pipes.lend());
        pipes.trim();
        pipes.trim();
        assert!(pipes.free_list.idle.borrow().len() <= 1);
    }

    #[test]
    fn there_are_only_so_many() {
        let pipes = Pipes::default();
        let all: Vec<PipeLease> = (0..PIPES_MAX).map_while(|_| pipes.lend()).collect();
        assert!(pipes.lend().is_none());
        assert_eq!(pipes.refused.get(), 1);
        drop(all);
        assert!(pipes.lend().is_some());
    }
}
