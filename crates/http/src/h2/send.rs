//! Frames that go to a connection's peer: heads at once, bodies as windows and turns allow.

use super::connection::{Connection, ConnectionFault};
use super::frame::{self, FrameHeader, HEADER_BYTES, PAYLOAD_BYTES, flag, kind};
use super::hpack::{BlockWriter, Recurring};
use super::inbound::Block;
use super::role::Role;
use super::stream::{Ending, Half};

/// DATA frames smaller than this are not worth their header, where a window would have more later: a stream whose
/// window has room for less waits, unless that is all that it has to send.
const PAYLOAD_BYTES_MIN: usize = 512;

/// Bytes of the output that were taken and are still there, at most.
const TAKEN_BYTES_MAX: usize = 64 * 1024;

/// A DATA frame that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub stream: u32,
    pub bytes: usize,
    /// Nothing that was offered is left. Trailers, where they were announced, are to be sent now.
    pub is_drained: bool,
}

impl<T> Connection<T> {
    /// Frames to be sent, in their order.
    pub fn output(&self) -> &[u8] {
        &self.out[self.taken..]
    }

    /// Says that so many bytes of the output were taken.
    pub fn consume_output(&mut self, count: usize) {
        self.taken += count;
        if self.taken == self.out.len() {
            self.clear_output();
        } else if self.taken >= TAKEN_BYTES_MAX {
            // Bytes that were taken are not kept, though there was always more.
            self.sent += self.taken as u64;
            self.out.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Says that all of the output was taken.
    pub fn clear_output(&mut self) {
        self.sent += self.out.len() as u64;
        self.out.clear();
        self.taken = 0;
    }

    /// Takes in a stream that a client begins.
    pub fn accept(&mut self, block: &Block, now: u64, data: T) {
        debug_assert!(self.role == Role::Server && block.stream == self.last);
        self.add(block.stream, (Half::after_head(block.end), Half::Head), now, data);
    }

    /// Begins a stream with the head of a request, of which `write` writes the fields. `end`: it has no body. Returns
    /// the stream; `None` where the peer, or the identifiers, allow no more.
    pub fn open_stream(
        &mut self,
        (end, now, data): (bool, u64, T),
        recurring: &mut Recurring,
        write: impl FnOnce(&mut BlockWriter<'_>),
    ) -> Option<u32> {
        debug_assert!(self.role == Role::Client);
        if !self.may_open() {
            return None;
        }
        let id = if self.last == 0 { 1 } else { self.last + 2 };
        self.last = id;
        self.add(id, (Half::Head, Half::after_head(end)), now, data);
        self.write_block(id, end, recurring, write);
        Some(id)
    }

    /// Sends a head, an interim one or the last, or trailers, of which `write` writes the fields. `end`: nothing
    /// follows. False where the stream is closed.
    pub fn send_head(
        &mut self,
        id: u32,
        (is_last, end): (bool, bool),
        recurring: &mut Recurring,
        write: impl FnOnce(&mut BlockWriter<'_>),
    ) -> bool {
        let Some(place) = self.place(id).filter(|place| {
            let stream = &self.streams[*place];
            stream.reset.is_none() && stream.send != Half::Ended
        }) else {
            return false;
        };
        self.write_block(id, end, recurring, write);
        if is_last {
            self.update(place, |stream| stream.send = Half::after_head(end));
            self.finish_if_forgotten(id);
        }
        true
    }

    fn write_block(&mut self, id: u32, end: bool, recurring: &mut Recurring, write: impl FnOnce(&mut BlockWriter<'_>)) {
        let start = self.out.len();
        self.out.extend_from_slice(&[0; HEADER_BYTES]);
        write(&mut self.encoder.begin(recurring, &mut self.out));
        frame::finish_block(start, id, end, PAYLOAD_BYTES, &mut self.out);
    }

    /// Announces body bytes, which are to be at hand when [`Connection::write_data`] asks for them, and what ends the
    /// body. False where the stream is closed.
    pub fn offer(&mut self, id: u32, bytes: usize, ending: Ending) -> bool {
        let Some(place) = self.place(id) else { return false };
        let stream = &mut self.streams[place];
        if stream.reset.is_some() || stream.send == Half::Ended {
            return false;
        }
        stream.pending += bytes;
        stream.ending = ending;
        self.requeue(place);
        true
    }

    /// Writes one DATA frame of the stream whose turn it is, into at most `room` bytes. `copy` appends as many bytes of
    /// the stream's body as it is told. `None` where nothing may be sent.
    pub fn write_data(&mut self, room: usize, copy: impl FnOnce(&mut T, usize, &mut Vec<u8>)) -> Option<Sent> {
        let mut out = std::mem::take(&mut self.out);
        let sent = self.frame_data(room, |data, header, count| {
            out.extend_from_slice(&header);
            let start = out.len();
            copy(data, count, &mut out);
            debug_assert_eq!(out.len() - start, count, "a frame is as long as its header says");
        });
        self.out = out;
        sent
    }

    /// As [`Connection::write_data`], past the output, which must be empty. `send` gets the frame's header, and the
    /// number of bytes of the stream's body that belong behind it.
    pub fn send_data(&mut self, room: usize, send: impl FnOnce(&mut T, [u8; HEADER_BYTES], usize)) -> Option<Sent> {
        debug_assert!(self.output().is_empty(), "frames keep their order");
        let sent = self.frame_data(room, send)?;
        self.sent += (HEADER_BYTES + sent.bytes) as u64;
        Some(sent)
    }

    fn frame_data(&mut self, room: usize, send: impl FnOnce(&mut T, [u8; HEADER_BYTES], usize)) -> Option<Sent> {
        let id = self.next_sender()?;
        let place = self.place(id)?;
        let stream = &mut self.streams[place];
        let payload_max = PAYLOAD_BYTES.min(room.checked_sub(HEADER_BYTES)?);
        let window = stream.send_window.bytes().min(self.send_window.bytes());
        let count = stream.pending.min(window).min(payload_max);
        if count < stream.pending && count < PAYLOAD_BYTES_MIN && (count == 0 || payload_max < PAYLOAD_BYTES_MIN) {
            return None;
        }
        let is_drained = count == stream.pending;
        let ends = is_drained && stream.ending == Ending::Data;
        let flags = if ends { flag::END_STREAM } else { 0 };
        let header = FrameHeader { length: count, kind: kind::DATA, flags, stream: id };
        send(&mut stream.data, header.to_bytes(), count);
        stream.pending -= count;
        stream.send_window.sent(count);
        self.send_window.sent(count);
        self.queue.leave(id);
        stream.is_queued = false;
        if ends {
            self.update(place, |stream| stream.send = Half::Ended);
            self.finish_if_forgotten(id);
        } else {
            self.requeue(place);
        }
        Some(Sent { stream: id, bytes: count, is_drained })
    }

    /// The stream whose turn it is. With the connection's window used up that is one which has but its end to say.
    fn next_sender(&self) -> Option<u32> {
        if self.send_window.is_open() {
            return self.queue.first();
        }
        let ends = |id: &u32| self.stream(*id).is_some_and(|stream| stream.pending == 0);
        self.queue.iter().find(ends)
    }

    /// Whether a stream has something to send and may.
    pub fn has_data(&self) -> bool {
        !self.queue.is_empty()
    }

    fn finish_if_forgotten(&mut self, id: u32) {
        if let Some(place) = self.place(id).filter(|place| self.streams[*place].is_forgotten) {
            self.finish_forgotten(place);
        }
    }

    /// Says GOAWAY for what the peer did.
    pub fn fail(&mut self, fault: ConnectionFault) {
        self.go_away(fault.reason());
    }
}
