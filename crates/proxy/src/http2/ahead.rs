//! A body's bytes, taken from the library before anybody has room for them.
//!
//! A side that takes nothing leaves what the other sends with the library, frame by frame: a frame of one byte is some
//! 250 there, and there is a limit for all streams of a connection together, beyond which the library ends it. So while
//! a body waits its frames are taken, and small ones put together. Their window is given back when they go on, and not
//! before: it bounds the bytes, and so what is held.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;

/// Pieces shorter than this are put together, so that a window's worth of a body is in few of them: twice as many as it
/// has KiB.
const SMALL_BYTES: usize = 1024;
/// How much is put together in one piece.
const TOGETHER_BYTES: usize = 16 * 1024;

#[derive(Debug, Default)]
pub struct Ahead(Option<Box<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<Bytes>,
    /// Small pieces, behind the others.
    together: BytesMut,
    /// The body is over, or its stream: what the library says of that it says again.
    over: bool,
}

impl Ahead {
    /// Takes what there is.
    pub fn fill(&mut self, recv: &mut RecvStream, context: &mut Context<'_>) {
        while self.0.as_ref().is_none_or(|queue| !queue.over) {
            let Poll::Ready(data) = recv.poll_data(context) else { return };
            self.0.get_or_insert_default().take(data.and_then(Result::ok));
        }
    }

    /// The next piece, as the library gives it.
    pub fn poll(&mut self, recv: &mut RecvStream, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        match self.0.as_mut().and_then(|queue| queue.pop()) {
            Some(piece) => Poll::Ready(Some(Ok(piece))),
            None => {
                self.0 = None;
                recv.poll_data(context)
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|queue| queue.pieces.is_empty() && queue.together.is_empty())
    }
}

impl Queue {
    fn take(&mut self, data: Option<Bytes>) {
        let Some(data) = data else {
            self.over = true;
            return;
        };
        if data.len() < SMALL_BYTES {
            self.together.extend_from_slice(&data);
            if self.together.len() >= TOGETHER_BYTES {
                self.pieces.push_back(self.together.split().freeze());
            }
            return;
        }
        if !self.together.is_empty() {
            self.pieces.push_back(self.together.split().freeze());
        }
        self.pieces.push_back(data);
    }

    fn pop(&mut self) -> Option<Bytes> {
        let together = &mut self.together;
        self.pieces.pop_front().or_else(|| (!together.is_empty()).then(|| together.split().freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_put_together_and_nothing_changes_its_place() {
        let (mut queue, mut all) = (Queue::default(), Vec::new());
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let length = if random.u8(..) == 0 { random.usize(SMALL_BYTES..5_000) } else { random.usize(1..4) };
            let data: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            all.extend_from_slice(&data);
            queue.take(Some(data.into()));
        }
        assert!(queue.pieces.len() <= 2 * all.len() / SMALL_BYTES, "{}", queue.pieces.len());
        let mut out = Vec::new();
        while let Some(piece) = queue.pop() {
            out.extend_from_slice(&piece);
        }
        assert!(out == all);
    }
}
