//! A body that flows from one who is fast to one who is slow, and is held in between.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::file::Tail;
use crate::space::{Bounds, Claim, PIECE_BYTES, Refused, Space};

/// Pieces of memory that count while bytes are on their way to a file.
const PIECES_ON_THEIR_WAY: u32 = 8;

/// Part of a body that is held. Once that does not fit into memory, all that comes goes through the file, until the
/// file has been read.
pub struct Flow {
    claim: Claim,
    bounds: Bounds,
    front: VecDeque<Vec<u8>>,
    in_memory: u64,
    tail: Tail,
    read: u64,
    on_their_way: u32,
    has_spilt: bool,
}

impl Flow {
    #[must_use]
    pub fn new(space: &Arc<Space>, core: usize, bounds: Bounds) -> Flow {
        Flow {
            claim: Claim::new(space, core),
            bounds,
            front: VecDeque::new(),
            in_memory: 0,
            tail: Tail::default(),
            read: 0,
            on_their_way: 0,
            has_spilt: false,
        }
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.front.is_empty() && self.tail.is_empty()
    }

    /// Whether some of it has been in a file.
    #[must_use]
    pub fn has_spilt(&self) -> bool {
        self.has_spilt
    }

    /// Ready when more may be pushed.
    pub fn poll_room(&mut self, context: &Context<'_>) -> Poll<Result<(), Refused>> {
        self.tail.poll_room(context, &self.claim, false)
    }

    /// Whether another piece would be held, by what is known without asking for it.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let piece = PIECE_BYTES as u64;
        self.tail.is_empty() && self.in_memory + piece <= self.bounds.memory
            || self.tail.len() + 4 * piece <= self.bounds.disk
    }

    /// Holds more of the body. Nothing of `bytes` is held where they are refused.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let fits = self.tail.is_empty() && self.in_memory + bytes.len() as u64 <= self.bounds.memory;
        if fits && self.keep(bytes) {
            return Ok(());
        }
        if self.bounds.disk == 0 {
            return Err(if fits { Refused::Memory } else { Refused::TooLong });
        }
        while self.on_their_way < PIECES_ON_THEIR_WAY {
            if !self.claim.take_piece() {
                return Err(Refused::Memory);
            }
            self.on_their_way += 1;
        }
        self.tail.push(&mut self.claim, bytes, self.bounds.disk)?;
        self.has_spilt = true;
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) -> bool {
        let room = self.front.back().map_or(0, |last| PIECE_BYTES - last.len());
        let wanted = bytes.len().saturating_sub(room).div_ceil(PIECE_BYTES);
        if !self.claim.take_pieces(wanted) {
            return false;
        }
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        if let Some(last) = self.front.back_mut() {
            last.extend_from_slice(first);
        }
        self.front.extend(rest.chunks(PIECE_BYTES).map(<[u8]>::to_vec));
        self.in_memory += bytes.len() as u64;
        true
    }

    /// Takes what comes next, while there is something held.
    pub fn poll_take(&mut self, context: &Context<'_>) -> Poll<Result<Vec<u8>, Refused>> {
        if let Some(piece) = self.front.pop_front() {
            self.claim.give_piece();
            self.in_memory -= piece.len() as u64;
            return Poll::Ready(Ok(piece));
        }
        // Whatever is on its way is there first.
        if let Poll::Ready(result) = self.tail.poll_room(context, &self.claim, false) {
            result?;
        }
        if let Some(bytes) = ready!(self.tail.poll_read(context, &self.claim, self.read))? {
            self.read += bytes.len() as u64;
            self.restart();
            return Poll::Ready(Ok(bytes));
        }
        match self.tail.take_backlog(self.read) {
            Some(bytes) => {
                self.restart();
                Poll::Ready(Ok(bytes))
            }
            // The thread that writes wakes this one.
            None => Poll::Pending,
        }
    }

    /// Begins the file anew, where all of it has been read.
    fn restart(&mut self) {
        if self.tail.len() == self.read && !self.tail.is_writing() {
            self.tail.restart();
            self.read = 0;
            self.claim.give_blocks();
            (0..std::mem::take(&mut self.on_their_way)).for_each(|_| self.claim.give_piece());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::tests::{bytes, space, wait};

    const KIB: usize = 1024;

    #[test]
    fn what_goes_in_comes_out_in_order_however_fast_either_side_is() {
        let space = space(1024 * KIB, 8192 * KIB);
        for seed in 0..60u64 {
            let mut state = seed * 2_654_435_761 + 1;
            let mut random = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let memory = [0, 32 * KIB, 200 * KIB][random(3)] as u64;
            let mut flow = Flow::new(&space, random(2), Bounds { memory, disk: 8192 * KIB as u64 });
            let body = bytes(600 * KIB + random(KIB));
            let (mut at, mut out) = (0, Vec::new());
            while out.len() < body.len() {
                let puts = random(6);
                for _ in 0..puts {
                    let count = (1 + random(20 * KIB)).min(body.len() - at);
                    if count > 0 {
                        wait(|context| flow.poll_room(context)).unwrap();
                        flow.push(&body[at..at + count]).unwrap();
                        at += count;
                    }
                }
                for _ in 0..random(4) {
                    if !flow.is_empty() {
                        out.extend(wait(|context| flow.poll_take(context)).unwrap());
                    }
                }
            }
            assert!(out == body, "seed {seed}");
            assert!(flow.is_empty());
            assert_eq!(space.taken(), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn bounds_are_kept_and_room_comes_back_as_it_is_taken() {
        let space = space(192 * KIB, 1024 * KIB);
        let mut flow = Flow::new(&space, 0, Bounds { memory: 32 * KIB as u64, disk: 0 });
        flow.push(&bytes(32 * KIB)).unwrap();
        assert_eq!((flow.push(b"x"), flow.has_room()), (Err(Refused::TooLong), false));
        wait(|context| flow.poll_take(context)).unwrap();
        assert!(flow.has_room());
        flow.push(b"x").unwrap();
        drop(flow);
        let mut flow = Flow::new(&space, 0, Bounds { memory: 32 * KIB as u64, disk: 100 * KIB as u64 });
        flow.push(&bytes(32 * KIB)).unwrap();
        flow.push(&bytes(100 * KIB)).unwrap();
        assert_eq!(flow.push(b"x"), Err(Refused::TooLong));
        assert_eq!(space.taken(), (160 * KIB as u64, 128 * KIB as u64));
        drop(flow);
        assert_eq!(space.taken(), (0, 0));
    }
}
