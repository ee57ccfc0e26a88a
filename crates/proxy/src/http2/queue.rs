//! Bytes of a body on their way between a socket and a task, in buffers of the core's pool.

use std::collections::VecDeque;

use propylon_net::buffer::{Buffer, BufferPool, SMALL_BYTES};

/// Parts that are smaller take no buffer of the pool.
const EXACT_BYTES_MAX: usize = 4 * 1024;

/// Bytes that wait, in their order.
#[derive(Default)]
pub struct BodyQueue {
    buffers: VecDeque<Buffer>,
    bytes: usize,
}

impl BodyQueue {
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Adds a copy of the bytes behind the others: small frames share a buffer, and so do those of a bulk, `ahead`
    /// bytes of which are to follow at once.
    pub fn push(&mut self, mut bytes: &[u8], ahead: usize, pool: &BufferPool) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            let Some(buffer) = self.buffers.back_mut().filter(|buffer| has_room(buffer)) else {
                let mut buffer = Buffer::default();
                match bytes.len() + ahead {
                    ..=SMALL_BYTES => pool.equip(&mut buffer),
                    most => pool.provide(&mut buffer, most),
                }
                self.buffers.push_back(buffer);
                continue;
            };
            let room = buffer.capacity() - buffer.len();
            let (here, rest) = bytes.split_at(bytes.len().min(room));
            buffer.extend(here);
            bytes = rest;
        }
    }

    /// Adds a buffer behind the others.
    pub fn push_buffer(&mut self, buffer: Buffer) {
        self.bytes += buffer.len();
        self.buffers.push_back(buffer);
    }

    /// Takes the first buffer away, or a copy of so many bytes where it has more.
    pub fn pop(&mut self, most: usize, pool: &BufferPool) -> Option<Buffer> {
        let first = self.buffers.front_mut()?;
        if first.len() > most {
            let part = &first.readable()[..most];
            let part = if most < EXACT_BYTES_MAX { Buffer::exactly(part) } else { pool.copy(part) };
            first.consume(most);
            self.bytes -= most;
            return Some(part);
        }
        let buffer = self.buffers.pop_front()?;
        self.bytes -= buffer.len();
        Some(buffer)
    }

    /// Moves so many bytes to `out`, which must be there. Returns the capacity of the buffers that were given back.
    pub fn copy_out(&mut self, count: usize, pool: &BufferPool, out: &mut Vec<u8>) -> usize {
        debug_assert!(count <= self.bytes);
        let (mut left, mut freed) = (count, 0);
        while let Some(buffer) = self.buffers.front_mut() {
            let here = left.min(buffer.len());
            out.extend_from_slice(&buffer.readable()[..here]);
            buffer.consume(here);
            left -= here;
            if !buffer.is_empty() {
                break;
            }
            freed += buffer.capacity();
            pool.release(buffer);
            self.buffers.pop_front();
            if left == 0 {
                break;
            }
        }
        self.bytes -= count;
        freed
    }

    /// Hands so many bytes, which must be there, to `send` with a prefix before them: from where they lie, or copied to
    /// `scratch` where they lie in several buffers or have no room before them. Returns the capacity of the buffers
    /// that were given back.
    pub fn send_out(
        &mut self,
        (prefix, count): (&[u8], usize),
        pool: &BufferPool,
        scratch: &mut Vec<u8>,
        send: impl FnOnce(&[u8]),
    ) -> usize {
        let front = self.buffers.front_mut();
        if let Some(bytes) = front.and_then(|buffer| buffer.prefixed(prefix, count)) {
            send(bytes);
            return self.skip(count, pool);
        }
        scratch.clear();
        scratch.extend_from_slice(prefix);
        let freed = self.copy_out(count, pool, scratch);
        send(scratch);
        freed
    }

    /// Drops so many bytes of the first buffer. Returns its capacity if it was given back.
    fn skip(&mut self, count: usize, pool: &BufferPool) -> usize {
        self.bytes -= count;
        let Some(buffer) = self.buffers.front_mut() else { return 0 };
        buffer.consume(count);
        if !buffer.is_empty() {
            return 0;
        }
        let freed = buffer.capacity();
        pool.release(buffer);
        self.buffers.pop_front();
        freed
    }

    /// Gives everything back; returns the capacity of that.
    pub fn clear(&mut self, pool: &BufferPool) -> usize {
        self.bytes = 0;
        self.buffers.drain(..).fold(0, |freed, mut buffer| {
            let capacity = buffer.capacity();
            pool.release(&mut buffer);
            freed + capacity
        })
    }
}

/// Whether bytes can be added to a buffer: where they would be moved for that, half of it at least is free.
fn has_room(buffer: &Buffer) -> bool {
    buffer.room() > 0 || buffer.len() * 2 <= buffer.capacity() && buffer.capacity() > 0
}

#[cfg(test)]
mod tests {
    use propylon_net::buffer::{LARGE_BYTES, WIDE_BYTES};

    use super::*;

    /// Buffers that the queue has.
    fn buffers(queue: &BodyQueue) -> usize {
        queue.buffers.len()
    }

    #[test]
    fn what_is_put_in_comes_out_in_order_however_it_is_cut() {
        let (pool, mut random) = (BufferPool::default(), fastrand::Rng::with_seed(7));
        let (mut queue, mut put, mut taken) = (BodyQueue::default(), 0_u8, Vec::new());
        let mut all = Vec::new();
        for _ in 0..3_000 {
            let piece: Vec<u8> = (0..random.usize(..3_000))
                .map(|_| {
                    put = put.wrapping_add(1);
                    put
                })
                .collect();
            all.extend_from_slice(&piece);
            queue.push(&piece, random.usize(..3) * 50_000, &pool);
            match random.u8(..4) {
                3 => {
                    let (count, mut scratch) = (random.usize(..=queue.len().min(16_375)), Vec::new());
                    queue.send_out((b"prefix", count), &pool, &mut scratch, |bytes| {
                        assert!(bytes.starts_with(b"prefix") && bytes.len() == count + 6);
                        taken.extend_from_slice(&bytes[6..]);
                    });
                }
                0 => _ = queue.copy_out(random.usize(..=queue.len()), &pool, &mut taken),
                1 => taken.extend(queue.pop(random.usize(1..30_000), &pool).iter().flat_map(|part| part.readable())),
                _ => queue.push_buffer(Buffer::exactly(&[])),
            }
            assert_eq!(queue.len() + taken.len(), all.len());
            assert_eq!(queue.is_empty(), all.len() == taken.len());
        }
        while let Some(part) = queue.pop(usize::MAX, &pool) {
            taken.extend_from_slice(part.readable());
        }
        assert!(taken == all && queue.is_empty());
    }

    #[test]
    fn a_bulk_lies_in_one_buffer_that_is_as_wide_as_it_needs() {
        let (pool, frame) = (BufferPool::default(), [b'x'; 16_384]);
        for (frames, capacity) in
            [(1, SMALL_BYTES), (2, LARGE_BYTES), (4, LARGE_BYTES), (5, WIDE_BYTES), (16, WIDE_BYTES)]
        {
            let mut queue = BodyQueue::default();
            (0..frames).rev().for_each(|ahead| queue.push(&frame, ahead * frame.len(), &pool));
            assert_eq!((buffers(&queue), queue.clear(&pool)), (1, capacity), "{frames} frames");
        }
    }

    /// A window's worth lies in one buffer, whatever of it was taken.
    #[test]
    fn bytes_that_no_window_lets_grow_stay_in_one_buffer() {
        let (pool, mut queue) = (BufferPool::default(), BodyQueue::default());
        queue.push(&[b'x'; SMALL_BYTES], 0, &pool);
        for _ in 0..100 {
            let mut owed = 0;
            while owed < SMALL_BYTES / 2 {
                owed += queue.pop(700, &pool).expect("there is more").len();
            }
            queue.push(&vec![b'x'; owed], 0, &pool);
            assert_eq!((queue.len(), buffers(&queue)), (SMALL_BYTES, 1));
        }
        let freed = queue.clear(&pool);
        assert_eq!((freed, queue.len(), buffers(&queue)), (SMALL_BYTES, 0, 0));
    }
}
