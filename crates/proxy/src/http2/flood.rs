//! Floods: frames that cost a client nothing, counted by type and second.
//!
//! The library answers or drops them without a word to whoever drives it, so they are counted on their way in, by their
//! headers alone. What it bounds itself is not counted here: header lists, empty and tiny DATA, streams reset before they
//! were accepted.

use propylon_config::Http2Flood;

/// Length of a frame's header (RFC 9113 §4.1).
const HEADER_BYTES: usize = 9;
/// The client's connection preface (RFC 9113 §3.4), which comes before the first frame.
pub const PREFACE_BYTES: usize = 24;
/// How long one count lasts, in milliseconds.
const WINDOW_MILLIS: u64 = 1_000;
/// Bytes sent that pay for one WINDOW_UPDATE.
const BYTES_PER_UPDATE: u64 = 1024;

/// What a connection can be ended for: `reason` of `propylon_http2_floods_total`. The first ones are in the order of `Kind`.
pub const FLOODS: &[&str] = &[
    "settings",
    "ping",
    "priority",
    "reset",
    "continuation",
    "empty-data",
    "window-update",
    "unknown-frame",
    "library",
    "streams",
];

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

/// Follows the frames of one connection.
#[derive(Debug)]
pub struct Scanner {
    header: [u8; HEADER_BYTES],
    /// Bytes of a header that have come.
    filled: u8,
    /// Bytes to pass over: a payload's, or the preface's.
    skip: u32,
    counts: [u32; KINDS],
    /// Milliseconds on the core's clock: when the counts began.
    since: u64,
    /// Bytes sent by then.
    sent: u64,
}

impl Default for Scanner {
    fn default() -> Scanner {
        Scanner { header: [0; 9], filled: 0, skip: PREFACE_BYTES as u32, counts: [0; KINDS], since: 0, sent: 0 }
    }
}

impl Scanner {
    /// Looks at what the client has sent next. `now` in milliseconds, `sent`: bytes sent to it so far.
    ///
    /// # Errors
    /// There was too much of something, by its name in `FLOODS`.
    pub fn scan(&mut self, mut bytes: &[u8], now: u64, sent: u64, limits: &Http2Flood) -> Result<(), &'static str> {
        loop {
            let skipped = bytes.len().min(self.skip as usize);
            self.skip -= skipped as u32;
            bytes = &bytes[skipped..];
            let wanted = HEADER_BYTES - usize::from(self.filled);
            let here = wanted.min(bytes.len());
            let start = usize::from(self.filled);
            self.header[start..start + here].copy_from_slice(&bytes[..here]);
            self.filled += here as u8;
            bytes = &bytes[here..];
            if here < wanted || self.skip > 0 {
                return Ok(());
            }
            self.filled = 0;
            self.skip = u32::from_be_bytes([0, self.header[0], self.header[1], self.header[2]]);
            if let Some(kind) = kind(&self.header) {
                self.count(kind, now, sent, limits)?;
            }
        }
    }

    fn count(&mut self, kind: Kind, now: u64, sent: u64, limits: &Http2Flood) -> Result<(), &'static str> {
        if now >= self.since + WINDOW_MILLIS {
            (self.since, self.sent, self.counts) = (now, sent, [0; KINDS]);
        }
        let limit = match kind {
            Kind::Settings => limits.settings,
            Kind::Ping => limits.pings,
            Kind::Priority => limits.priorities,
            Kind::Reset => limits.resets,
            Kind::Continuation => limits.continuations,
            Kind::EmptyData => limits.empty_data,
            Kind::WindowUpdate => {
                let paid = (sent - self.sent) / BYTES_PER_UPDATE;
                limits.window_updates.saturating_add(u32::try_from(paid).unwrap_or(u32::MAX))
            }
            Kind::Unknown => limits.unknown,
        };
        let count = &mut self.counts[kind as usize];
        *count += 1;
        if *count > limit { Err(FLOODS[kind as usize]) } else { Ok(()) }
    }
}

/// What a frame counts as; HEADERS, GOAWAY and DATA with something in it do not (RFC 9113 §6).
fn kind(header: &[u8; HEADER_BYTES]) -> Option<Kind> {
    const END_STREAM: u8 = 1;
    let [a, b, c, frame, flags, ..] = *header;
    match frame {
        0x0 if [a, b, c] == [0; 3] && flags & END_STREAM == 0 => Some(Kind::EmptyData),
        0x0 | 0x1 | 0x5 | 0x7 => None,
        // PRIORITY_UPDATE is of RFC 9218.
        0x2 | 0x10 => Some(Kind::Priority),
        0x3 => Some(Kind::Reset),
        0x4 => Some(Kind::Settings),
        0x6 => Some(Kind::Ping),
        0x8 => Some(Kind::WindowUpdate),
        0x9 => Some(Kind::Continuation),
        _ => Some(Kind::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn begun() -> (Scanner, Http2Flood) {
        let (mut scanner, limits) = (Scanner::default(), Http2Flood::default());
        scanner.scan(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 0, &limits).unwrap();
        (scanner, limits)
    }

    /// How many of these frames pass, in one second.
    fn passed(bytes: &[u8]) -> u32 {
        let (mut scanner, limits) = begun();
        (0..100_000).take_while(|_| scanner.scan(bytes, 5, 0, &limits).is_ok()).count() as u32
    }

    #[test]
    fn each_kind_of_frame_has_its_own_limit() {
        let limits = Http2Flood::default();
        assert_eq!(passed(&frame(0x4, 0, &[])), limits.settings);
        assert_eq!(passed(&frame(0x6, 0, &[0; 8])), limits.pings);
        assert_eq!(passed(&frame(0x2, 0, &[0; 5])), limits.priorities);
        assert_eq!(passed(&frame(0x3, 0, &[0; 4])), limits.resets);
        assert_eq!(passed(&frame(0x9, 0, &[0; 4])), limits.continuations);
        assert_eq!(passed(&frame(0x0, 0, &[])), limits.empty_data);
        assert_eq!(passed(&frame(0x8, 0, &[0, 0, 0, 1])), limits.window_updates);
        assert_eq!(passed(&frame(0xbb, 0, &[])), limits.unknown);
        assert_eq!(passed(&frame(0x0, 0, &[7; 100])), 100_000);
        assert_eq!(passed(&frame(0x0, 1, &[])), 100_000);
        assert_eq!(passed(&frame(0x1, 5, &[0x82])), 100_000);
    }

    #[test]
    fn a_second_later_there_is_room_again() {
        let (mut scanner, limits) = begun();
        let ping = frame(0x6, 0, &[0; 8]);
        for second in 0..5 {
            for _ in 0..limits.pings {
                assert_eq!(scanner.scan(&ping, second * 1_000, 0, &limits), Ok(()));
            }
        }
        assert_eq!(scanner.scan(&ping, 4_900, 0, &limits), Err("ping"));
    }

    #[test]
    fn what_was_sent_pays_for_window_updates() {
        let (mut scanner, limits) = begun();
        let update = frame(0x8, 0, &[0, 0, 0, 1]);
        scanner.scan(&update, 1_000, 0, &limits).unwrap();
        let count = (0..100_000).take_while(|_| scanner.scan(&update, 1_001, 1 << 20, &limits).is_ok()).count();
        assert_eq!(count as u32 + 1, limits.window_updates + 1024);
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_divided() {
        let limits = Http2Flood { pings: 50, ..Http2Flood::default() };
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for index in 0..51 {
            bytes.extend(frame(0x0, 0, &vec![6; index * 7]));
            bytes.extend(frame(0x6, 0, &[6; 8]));
        }
        // The verdict comes with a header, and not with its payload.
        bytes.truncate(bytes.len() - 8);
        for step in [1, 2, 5, 9, 10, 1000, bytes.len()] {
            let mut scanner = Scanner::default();
            let pieces = bytes.chunks(step);
            let count = pieces.clone().take_while(|piece| scanner.scan(piece, 0, 0, &limits).is_ok()).count();
            assert_eq!(count, pieces.len() - 1, "in pieces of {step}");
        }
    }
}
