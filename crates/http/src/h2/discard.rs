//! Bodies that are read and thrown away: those of requests that were answered before all of them had come.
//!
//! RST_STREAM with NO_ERROR may follow such an answer (RFC 9113 §8.1), and many clients take it for a failure and throw
//! the answer away (curl before 8.5 is one). So a client is let finish first, within bounds, as nginx does; who goes on
//! beyond them is told then.

use super::Reason;
use super::connection::Connection;
use super::frame::{self, HEADER_BYTES};
use super::stream::Reset;
use crate::discarded::Discarded;

/// How long a body is read on: as long as some of it comes, and for how long without a byte.
const DISCARD_MILLIS_MAX: u64 = 30_000;
const DISCARD_QUIET_MILLIS: u64 = 2_000;
/// Bytes that have to come in each second of that.
const DISCARD_RATE_MIN: u64 = 4 * 1024;
/// Bytes of one body, its frames' headers included, that are read on at most.
const DISCARD_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Streams of one connection whose bodies are read on at a time. Each is one of those that the client may have open.
const DISCARDS_MAX: usize = 128;

/// A stream whose answer is over and whose body is thrown away as it comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discard {
    stream: u32,
    /// Milliseconds: when that was seen first, and when bytes came last.
    began: Option<u64>,
    heard: u64,
    bytes: u64,
}

impl Discard {
    /// Milliseconds: when it is over, unless more comes.
    fn due(&mut self, now: u64) -> u64 {
        let began = *self.began.get_or_insert(now);
        self.heard = self.heard.max(began);
        (self.heard + DISCARD_QUIET_MILLIS).min(began + DISCARD_MILLIS_MAX)
    }

    /// Why it is over, if it is.
    fn over(&mut self, now: u64) -> Option<Discarded> {
        let due = self.due(now);
        let lasts = now - self.began.unwrap_or(now);
        let is_slow = lasts >= DISCARD_QUIET_MILLIS && self.bytes < lasts / 1000 * DISCARD_RATE_MIN;
        if self.bytes > DISCARD_BYTES_MAX || lasts >= DISCARD_MILLIS_MAX {
            return Some(Discarded::Long);
        }
        if now >= due { Some(Discarded::Quiet) } else { is_slow.then_some(Discarded::Slow) }
    }
}

impl<T> Connection<T> {
    /// Begins to throw away what comes of a stream's body.
    pub(super) fn begin_discarding(&mut self, id: u32) {
        if self.discards.iter().all(|discard| discard.stream != id) {
            if self.discards.len() >= DISCARDS_MAX {
                self.end_oldest_discard();
            }
            self.discards.push(Discard { stream: id, began: None, heard: 0, bytes: 0 });
        }
        // Bytes that the application had not taken keep nobody up any more.
        if let Some(place) = self.place(id) {
            self.widen(place);
        }
    }

    /// Tells the client to stop with the oldest body that is read on: its stream is wanted for another.
    pub(super) fn end_oldest_discard(&mut self) {
        if let Some(oldest) = self.discards.first().map(|discard| discard.stream) {
            self.stop_upload(oldest, Discarded::Crowded);
        }
    }

    /// Takes note of bytes that were thrown away. Who sends too many of them is told to stop.
    pub(super) fn discard(&mut self, id: u32, bytes: usize, now: u64) {
        self.release(id, bytes);
        let Some(discard) = self.discards.iter_mut().find(|discard| discard.stream == id) else { return };
        discard.bytes += (HEADER_BYTES + bytes) as u64;
        discard.heard = now;
        if let Some(why) = discard.over(now) {
            self.stop_upload(id, why);
        }
    }

    /// A body that was thrown away has ended. The client hears of it by what the connection's window is owed: some
    /// (curl 7.88) have their stream closed by the end that they send, and look at it when something comes.
    pub(super) fn acknowledge_end(&mut self) {
        self.receive_window.release(self.receive_window.held());
        if let Some(increment) = self.receive_window.take_owed(1) {
            frame::write_window_update(0, increment, &mut self.out);
        }
    }

    /// Tells the client to stop with bodies that were read on for long enough. Whether there are any.
    pub fn end_discarding(&mut self, now: u64) -> bool {
        let before = self.discards.len();
        let over = |discard: &mut Discard| discard.over(now).map(|why| (discard.stream, why));
        while let Some((stream, why)) = self.discards.iter_mut().find_map(over) {
            self.stop_upload(stream, why);
        }
        self.discards.len() < before
    }

    /// Milliseconds: when to [look again](Connection::end_discarding); `None`: no body is read on.
    pub fn discards_until(&mut self, now: u64) -> Option<u64> {
        self.discards.iter_mut().map(|discard| discard.due(now)).min()
    }

    /// Whether bodies are read on.
    pub fn is_discarding(&self) -> bool {
        !self.discards.is_empty()
    }

    fn stop_upload(&mut self, id: u32, why: Discarded) {
        self.end_discard(id, why);
        if let Some(place) = self.place(id) {
            self.reset_at(place, Reason::NO_ERROR, Reset::ByUs);
        }
    }

    /// Forgets a stream that is closed. Bodies of which nothing has come behind the answer are not counted.
    pub(super) fn end_discard(&mut self, id: u32, why: Discarded) {
        if let Some(at) = self.discards.iter().position(|discard| discard.stream == id)
            && self.discards.remove(at).bytes > 0
        {
            self.discarded[why as usize] += 1;
        }
    }

    /// Forgets all streams: the connection has ended.
    pub(super) fn end_discards(&mut self) {
        let ended = self.discards.drain(..).filter(|discard| discard.bytes > 0).count();
        self.discarded[Discarded::Ended as usize] += ended as u32;
    }

    /// Bodies that were thrown away since the last call, by how that has ended, if there were any.
    pub fn take_discarded(&mut self) -> Option<[u32; Discarded::NAMES.len()]> {
        let any = self.discarded.iter().any(|count| *count > 0);
        any.then(|| std::mem::take(&mut self.discarded))
    }
}
