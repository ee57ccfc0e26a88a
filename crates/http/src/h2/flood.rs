//! Floods: frames that cost a client nothing and its server much, counted by kind and second, and paid for by what the
//! connection has done in its life.

use std::collections::VecDeque;

use propylon_config::Http2Flood;

use super::frame::{FrameHeader, kind};

/// How long one count lasts, in milliseconds.
const COUNT_MILLIS: u64 = 1_000;
/// Bytes sent that pay for one WINDOW_UPDATE.
const BYTES_PER_UPDATE: u64 = 1024;
/// Bytes sent that have paid for nothing yet, at most. A client that pauses gives all the window back when it reads on,
/// which may be much later than the bytes were sent: more than this no client's window holds.
const UPDATE_CREDIT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Streams after which the past counts half when resets are compared with what was begun.
const STREAMS_REMEMBERED: u32 = 2_048;
/// Age from which the reset of a stream is no part of a flood, in milliseconds: so long a hold has been paid for.
const LONG_LIFE_MILLIS: u64 = 1_000;
/// Finished streams whose resets are forgiven, at most.
const FINISHED_MAX: usize = 256;

/// Kinds of floods: there was too much of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    Settings,
    Ping,
    Priority,
    Reset,
    Continuation,
    EmptyData,
    WindowUpdate,
    Unknown,
    /// Streams reset for what the peer did on them, over the connection's life (CVE-2025-8671).
    StreamError,
    /// Streams begun while as many as may be were still at work.
    Streams,
}

impl Flood {
    pub const ALL: [Flood; 10] = [
        Flood::Settings,
        Flood::Ping,
        Flood::Priority,
        Flood::Reset,
        Flood::Continuation,
        Flood::EmptyData,
        Flood::WindowUpdate,
        Flood::Unknown,
        Flood::StreamError,
        Flood::Streams,
    ];

    /// Names in metrics and logs, in the order of the kinds.
    pub const NAMES: [&str; Flood::ALL.len()] = [
        "settings",
        "ping",
        "priority",
        "reset",
        "continuation",
        "empty-data",
        "window-update",
        "unknown-frame",
        "stream-error",
        "streams",
    ];

    pub fn as_str(self) -> &'static str {
        Flood::NAMES[self as usize]
    }

    /// Kind of a frame that costs its sender nothing; `None` for those that bring something.
    fn of(header: &FrameHeader) -> Option<Flood> {
        match header.kind {
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => None,
            kind::PRIORITY | kind::PRIORITY_UPDATE => Some(Flood::Priority),
            kind::RST_STREAM => Some(Flood::Reset),
            kind::SETTINGS => Some(Flood::Settings),
            kind::PING => Some(Flood::Ping),
            kind::WINDOW_UPDATE => Some(Flood::WindowUpdate),
            kind::CONTINUATION => Some(Flood::Continuation),
            // GOAWAY among them: of a client's one or two mean something.
            _ => Some(Flood::Unknown),
        }
    }
}

/// Counts of one connection.
#[derive(Debug)]
pub struct FloodLimiter {
    limits: Http2Flood,
    counts: [u32; 8],
    /// Milliseconds: when the counts began.
    since: u64,
    /// Bytes sent by the last WINDOW_UPDATE, and how many of them have paid for none.
    sent: u64,
    credit: u64,
    /// Streams begun lately, and resets of streams that were not answered.
    begun: u32,
    reset: u32,
    /// Streams reset for what the peer did on them.
    errors: u32,
    /// Streams that are over and that the peer has not reset, the newest last: each is reset once.
    finished: VecDeque<u32>,
}

impl FloodLimiter {
    pub fn new(limits: Http2Flood) -> FloodLimiter {
        FloodLimiter {
            limits,
            counts: [0; 8],
            since: 0,
            sent: 0,
            credit: 0,
            begun: 0,
            reset: 0,
            errors: 0,
            finished: VecDeque::new(),
        }
    }

    /// Takes note of a stream begun.
    pub fn note_begun(&mut self) {
        self.begun += 1;
        if self.begun >= STREAMS_REMEMBERED {
            (self.begun, self.reset) = (self.begun / 2, self.reset / 2);
        }
    }

    /// Takes note of a stream that is over, answered, without a reset of the peer's.
    pub fn note_finished(&mut self, stream: u32) {
        if self.finished.len() == FINISHED_MAX {
            self.finished.pop_front();
        }
        self.finished.push_back(stream);
    }

    /// Counts a frame by its header. `now` in milliseconds, `sent`: bytes sent on the connection. Resets are counted by
    /// [`FloodLimiter::count_reset`], empty DATA by [`FloodLimiter::count_empty_data`].
    ///
    /// # Errors
    /// There was too much of something.
    pub fn count(&mut self, header: &FrameHeader, now: u64, sent: u64) -> Result<(), Flood> {
        match Flood::of(header) {
            None | Some(Flood::Reset) => Ok(()),
            Some(Flood::WindowUpdate) if self.is_paid(sent) => Ok(()),
            Some(flood) => self.add(flood, now),
        }
    }

    pub fn count_empty_data(&mut self, now: u64) -> Result<(), Flood> {
        self.add(Flood::EmptyData, now)
    }

    /// Counts the peer's reset of a stream that was begun at `begun`, in milliseconds; `None`: the stream is over.
    /// A reset costs nobody anything where the response had begun, since the client has no use for the rest, or where
    /// the stream had lived for long.
    pub fn count_reset(&mut self, stream: u32, begun: Option<u64>, is_answered: bool, now: u64) -> Result<(), Flood> {
        let is_forgiven = match begun {
            Some(begun) => is_answered || now >= begun + LONG_LIFE_MILLIS,
            None => self.take_finished(stream),
        };
        if is_forgiven {
            return Ok(());
        }
        self.reset = self.reset.saturating_add(1);
        // Clients whose deadlines pass reset many streams at once, and attackers all of theirs.
        match self.add(Flood::Reset, now) {
            Err(flood) if self.reset > self.begun / 2 => Err(flood),
            _ => Ok(()),
        }
    }

    /// Counts a stream that was reset for what the peer did on it.
    pub fn count_error(&mut self) -> Result<(), Flood> {
        self.errors += 1;
        if self.errors > self.limits.errors { Err(Flood::StreamError) } else { Ok(()) }
    }

    /// Frames that one header block may come in, beside its first.
    pub fn continuations_max(&self) -> u32 {
        self.limits.continuations
    }

    /// Whether both sides have ended the stream, as far as that is remembered.
    pub fn is_finished(&self, stream: u32) -> bool {
        self.finished.contains(&stream)
    }

    fn take_finished(&mut self, stream: u32) -> bool {
        let place = self.finished.iter().position(|finished| *finished == stream);
        place.and_then(|place| self.finished.remove(place)).is_some()
    }

    fn add(&mut self, flood: Flood, now: u64) -> Result<(), Flood> {
        if now >= self.since + COUNT_MILLIS {
            (self.since, self.counts) = (now, [0; 8]);
        }
        let limit = match flood {
            Flood::Settings => self.limits.settings,
            Flood::Ping => self.limits.pings,
            Flood::Priority => self.limits.priorities,
            Flood::Reset => self.limits.resets,
            Flood::Continuation => self.limits.continuations,
            Flood::EmptyData => self.limits.empty_data,
            Flood::WindowUpdate => self.limits.window_updates,
            Flood::Unknown => self.limits.unknown,
            Flood::StreamError | Flood::Streams => return Err(flood),
        };
        let count = &mut self.counts[flood as usize];
        *count = count.saturating_add(1);
        if *count > limit { Err(flood) } else { Ok(()) }
    }

    /// Whether bytes that were sent pay for a WINDOW_UPDATE, whenever that was.
    fn is_paid(&mut self, sent: u64) -> bool {
        self.credit = (self.credit + (sent - self.sent)).min(UPDATE_CREDIT_BYTES_MAX);
        self.sent = sent;
        let rest = self.credit.checked_sub(BYTES_PER_UPDATE);
        self.credit = rest.unwrap_or(self.credit);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8) -> FrameHeader {
        FrameHeader { length: 8, kind, flags: 0, stream: 0 }
    }

    #[test]
    fn each_kind_has_its_limit_by_the_second() {
        for (kind, flood, limit) in [
            (kind::SETTINGS, Flood::Settings, 100),
            (kind::PING, Flood::Ping, 2000),
            (kind::PRIORITY, Flood::Priority, 1000),
            (kind::PRIORITY_UPDATE, Flood::Priority, 1000),
            (kind::CONTINUATION, Flood::Continuation, 100),
            (kind::WINDOW_UPDATE, Flood::WindowUpdate, 1000),
            (kind::GOAWAY, Flood::Unknown, 1000),
            (0xfe, Flood::Unknown, 1000),
        ] {
            let mut limiter = FloodLimiter::new(Http2Flood::default());
            for second in 0..3 {
                for _ in 0..limit {
                    assert_eq!(limiter.count(&frame(kind), second * 1_000, 0), Ok(()), "{kind}");
                }
                assert_eq!(limiter.count(&frame(kind), second * 1_000 + 999, 0), Err(flood));
            }
        }
    }

    #[test]
    fn frames_that_bring_something_are_not_counted() {
        let mut limiter = FloodLimiter::new(Http2Flood::default());
        for kind in [kind::DATA, kind::HEADERS, kind::RST_STREAM] {
            assert!((0..10_000).all(|_| limiter.count(&frame(kind), 0, 0).is_ok()));
        }
    }

    #[test]
    fn window_updates_are_paid_for_by_bytes_of_the_connections_life() {
        let mut limiter = FloodLimiter::new(Http2Flood::default());
        let update = frame(kind::WINDOW_UPDATE);
        // 30 MB were sent, and the client reads on much later: all updates come in one second.
        let sent = 30 << 20;
        assert!((0..sent / 1024).all(|_| limiter.count(&update, 60_000, sent).is_ok()));
        assert!((0..1000).all(|_| limiter.count(&update, 60_000, sent).is_ok()));
        assert_eq!(limiter.count(&update, 60_000, sent), Err(Flood::WindowUpdate));
    }

    #[test]
    fn no_more_window_updates_are_paid_for_than_a_window_could_hold() {
        let mut limiter = FloodLimiter::new(Http2Flood::default());
        let update = frame(kind::WINDOW_UPDATE);
        let paid = UPDATE_CREDIT_BYTES_MAX / BYTES_PER_UPDATE;
        assert!((0..paid + 1_000).all(|_| limiter.count(&update, 0, 1 << 40).is_ok()));
        assert_eq!(limiter.count(&update, 0, 1 << 40), Err(Flood::WindowUpdate));
    }

    #[test]
    fn resets_are_a_flood_where_they_are_many_and_most_of_what_was_begun() {
        let mut limiter = FloodLimiter::new(Http2Flood::default());
        let mut reset_of = |begun: u32, resets: u32| {
            (0..begun).for_each(|_| limiter.note_begun());
            (0..resets).all(|stream| limiter.count_reset(stream, Some(0), false, 0).is_ok())
        };
        // As many as a gRPC client's deadlines may come to.
        assert!(reset_of(1_000, 400));
        assert!(!reset_of(400, 400));
    }

    #[test]
    fn resets_of_streams_that_were_answered_or_old_or_over_are_forgiven_once() {
        let mut limiter = FloodLimiter::new(Http2Flood::default());
        for stream in 0..10_000 {
            assert_eq!(limiter.count_reset(stream, Some(0), true, 0), Ok(()));
            assert_eq!(limiter.count_reset(stream, Some(0), false, 1_000), Ok(()));
            limiter.note_finished(stream);
            assert_eq!(limiter.count_reset(stream, None, false, 0), Ok(()));
        }
        let flood = (0..1_000).find_map(|_| limiter.count_reset(9_999, None, false, 0).err());
        assert_eq!(flood, Some(Flood::Reset));
    }

    #[test]
    fn floods_are_in_the_order_of_their_names() {
        for (place, flood) in Flood::ALL.into_iter().enumerate() {
            assert_eq!((place, flood.as_str()), (flood as usize, Flood::NAMES[place]));
        }
    }
}
