//! Floods: frames that cost a client nothing, counted by type and second.
//!
//! The library answers or drops them without a word to the connection's driver, so they are counted on their way in, by
//! their headers alone (`intake.rs`). Floods that the library bounds itself are not counted here: header lists, tiny
//! DATA that lies unread, streams reset before they were accepted.

use propylon_observe::telemetry::HTTP2_FLOODS;

use propylon_config::Http2Flood;

/// Length of a frame's header (RFC 9113 §4.1).
pub const FRAME_HEADER_BYTES: usize = 9;
/// The client's connection preface (RFC 9113 §3.4), which comes before the first frame.
pub const PREFACE_BYTES: usize = 24;
/// How long one count lasts, in milliseconds.
const WINDOW_MILLIS: u64 = 1_000;
/// Bytes sent that pay for one WINDOW_UPDATE.
const BYTES_PER_UPDATE: u64 = 1024;
/// Bytes sent that have paid for nothing yet, at most. A client that pauses gives all the window back when it reads on,
/// which may be much later than the bytes were sent: more than this no client's window holds.
const UPDATE_CREDIT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Streams after which the past counts half when resets are compared with what was begun.
const STREAMS_REMEMBERED: u32 = 2_048;

/// Circumstances by which a frame is judged, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Milliseconds on the core's clock.
    pub now: u64,
    /// Bytes sent to the peer so far.
    pub sent: u64,
    pub limits: &'a Http2Flood,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Settings,
    Ping,
    Priority,
    Reset,
    Continuation,
    EmptyData,
    WindowUpdate,
    Unknown,
}

const KINDS: usize = 8;

/// A frame's header, read.
#[derive(Clone, Copy, Debug)]
pub struct FrameHeader {
    /// Length of the payload, in bytes.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl FrameHeader {
    /// Reads the header from the first `FRAME_HEADER_BYTES`, which must be there.
    pub fn read(frame: &[u8]) -> FrameHeader {
        let number = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
        FrameHeader {
            length: (number(0) >> 8) as usize,
            kind: frame[3],
            flags: frame[4],
            stream: number(5) & 0x7fff_ffff,
        }
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Frames of one connection by kind, in the second that it is; what pays for them, in the connection's life.
#[derive(Debug, Default)]
pub struct Counts {
    counts: [u32; KINDS],
    /// Milliseconds on the core's clock: when the counts began.
    since: u64,
    /// Bytes sent by the last WINDOW_UPDATE, and how many of them have paid for none.
    sent: u64,
    credit: u64,
    /// Streams begun lately, and resets of streams that were not answered.
    begun: u32,
    reset: u32,
}

impl Counts {
    /// A stream was begun.
    pub fn note_begun(&mut self) {
        self.begun += 1;
        if self.begun >= STREAMS_REMEMBERED {
            (self.begun, self.reset) = (self.begun / 2, self.reset / 2);
        }
    }

    /// Counts a frame that has come. `empty`: it is DATA without data that ends nothing. `late`: it is RST_STREAM for a
    /// stream that was answered, whose client has no use for the rest.
    ///
    /// # Errors
    /// There was too much of something, by its name in `HTTP2_FLOODS`.
    pub fn note(
        &mut self,
        header: &FrameHeader,
        empty: bool,
        late: bool,
        moment: Moment<'_>,
    ) -> Result<(), &'static str> {
        let Some(kind) = kind(header.kind, empty) else { return Ok(()) };
        let Moment { now, sent, limits } = moment;
        if late || kind == Kind::WindowUpdate && self.is_paid(sent) {
            return Ok(());
        }
        if now >= self.since + WINDOW_MILLIS {
            (self.since, self.counts) = (now, [0; KINDS]);
        }
        let limit = match kind {
            Kind::Settings => limits.settings,
            Kind::Ping => limits.pings,
            Kind::Priority => limits.priorities,
            Kind::Reset => limits.resets,
            Kind::Continuation => limits.continuations,
            Kind::EmptyData => limits.empty_data,
            Kind::WindowUpdate => limits.window_updates,
            Kind::Unknown => limits.unknown,
        };
        if kind == Kind::Reset {
            self.reset = self.reset.saturating_add(1);
        }
        let count = &mut self.counts[kind as usize];
        *count += 1;
        let too_many = *count > limit && (kind != Kind::Reset || self.is_half_reset());
        if too_many { Err(HTTP2_FLOODS[kind as usize]) } else { Ok(()) }
    }

    /// Whether bytes that were sent pay for a WINDOW_UPDATE, whenever that was.
    fn is_paid(&mut self, sent: u64) -> bool {
        self.credit = (self.credit + (sent - self.sent)).min(UPDATE_CREDIT_BYTES_MAX);
        self.sent = sent;
        let rest = self.credit.checked_sub(BYTES_PER_UPDATE);
        self.credit = rest.unwrap_or(self.credit);
        rest.is_some()
    }

    /// Clients whose deadlines pass reset many streams at once, and attackers all of theirs.
    fn is_half_reset(&self) -> bool {
        self.reset > self.begun / 2
    }
}

/// Kind of a frame; none for HEADERS, DATA with content, PUSH_PROMISE, ending the connection (RFC 9113 §6).
fn kind(frame: u8, empty: bool) -> Option<Kind> {
    match frame {
        0x0 if empty => Some(Kind::EmptyData),
        0x0 | 0x1 | 0x5 => None,
        // PRIORITY_UPDATE is of RFC 9218.
        0x2 | 0x10 => Some(Kind::Priority),
        0x3 => Some(Kind::Reset),
        0x4 => Some(Kind::Settings),
        0x6 => Some(Kind::Ping),
        0x8 => Some(Kind::WindowUpdate),
        0x9 => Some(Kind::Continuation),
        // GOAWAY among them: of a client's one or two mean something.
        _ => Some(Kind::Unknown),
    }
}
