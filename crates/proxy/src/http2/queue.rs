//! Bytes of a body on their way between a socket and a task, in buffers of the core's pool.

use std::collections::VecDeque;

use propylon_net::buffer::{Buffer, BufferPool, SMALL_BYTES};

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

    /// Adds a copy of the bytes behind the others: small frames share a buffer.
    pub fn push(&mut self, mut bytes: &[u8], pool: &BufferPool) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            let room = self.buffers.back().map_or(0, Buffer::room);
            if room == 0 {
                self.buffers.push_back(pool.small());
                continue;
            }
            let (here, rest) = bytes.split_at(bytes.len().min(room).min(SMALL_BYTES));
            if let Some(buffer) = self.buffers.back_mut() {
                buffer.extend(here);
            }
            bytes = rest;
        }
    }

    /// Adds a buffer behind the others.
    pub fn push_buffer(&mut self, buffer: Buffer) {
        self.bytes += buffer.len();
        self.buffers.push_back(buffer);
    }

    /// Takes the first buffer away.
    pub fn pop(&mut self) -> Option<Buffer> {
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
