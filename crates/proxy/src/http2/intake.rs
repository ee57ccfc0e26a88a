//! Frames of a peer, before the library reads them: rules that the library does not keep, or keeps by ending the
//! connection when RFC 9113 wants the end of a stream.
//!
//! Nearly everything passes as it came. Header blocks are followed (`h2::follower`), and the library gets a malformed one
//! instead of one that it would have choked on. DATA and window updates that break a rule of their stream are kept
//! from it: we send the peer RST_STREAM, and tell the library that the peer has sent it. Frames without data are
//! dropped, since the library ends a connection after a hundred of them, however long it lives.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use h2::Reason;
use propylon_config::Http2Flood;
use propylon_http::h2::follower::{Follower, MALFORMED, Seen};

use super::flood::{Counts, FRAME_HEADER_BYTES, FrameHeader, Moment, PREFACE_BYTES};
use super::responses::{ResponseState, Responses};

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const PRIORITY_FRAME: u8 = 0x2;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const PING: u8 = 0x6;
const GOAWAY: u8 = 0x7;
const WINDOW_UPDATE: u8 = 0x8;
const CONTINUATION: u8 = 0x9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const ACK: u8 = 0x1;

/// SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 §6.5.2), and the highest value of it.
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const WINDOW_BYTES_MAX: u32 = 0x7fff_ffff;

/// A frame's payload at most: the initial SETTINGS_MAX_FRAME_SIZE (RFC 9113 §6.5.2), which we leave as it is.
const FRAME_BYTES_MAX: usize = 16_384;
/// GOAWAY's last stream and code, before what it says for people (RFC 9113 §6.8).
const GOAWAY_BYTES: usize = 8;
/// A frame that is padding and nothing else.
const PADDING_BYTES_MAX: usize = 256;
/// Bytes of a header block, in proportion to the limit of a header list: as many as the library reads.
const BLOCK_PER_LIST: usize = 4;
/// Uploads that nobody serves any more or not yet, in proportion to the streams that may be open: clients go on
/// sending for a while after we have answered.
const UPLOADS_PER_STREAM: usize = 2;
/// Paths that are kept for streams that the library has not begun, in bytes. Beyond, the oldest are refused.
const UNFIT_PATHS_BYTES_MAX: usize = 64 * 1024;
/// Age from which the reset of a stream is no part of a flood, in ms: so long a hold has been paid for.
const LONG_LIFE_MILLIS: u64 = 1_000;
/// Streams of long life whose resets may still come, at most.
const LONG_LIVED_MAX: u32 = 2_048;
/// Bytes of frames that a client may send on a stream that is over: a wide window's worth.
const LATE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Fate of bytes that have come: the first `pass` of them are the library's as they are, up to `used` they are done
/// with. `Intake::ready` then holds the bytes that come after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub pass: usize,
    pub used: usize,
}

/// Why a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFault {
    /// Too much of something, by its name in `HTTP2_FLOODS`.
    Flood(&'static str),
    Error(Reason),
}

/// Fate of a frame.
enum Verdict {
    Pass,
    /// The frame is kept from the library; its substitute, if any, is in `ready`.
    Keep,
}

/// A header block that is not whole.
#[derive(Debug)]
struct Block {
    stream: u32,
    flags: u8,
    flawed: bool,
    bytes: Vec<u8>,
    /// Count of frames in which the block has come so far.
    frames: u32,
}

/// State for the rules that bind clients and not servers.
#[derive(Debug)]
struct Client {
    counts: Counts,
    /// The newest of its streams.
    last: u32,
    /// Streams that it has not ended, the oldest first, and so by number.
    uploads: Vec<Upload>,
    /// How many of them may be such that nobody serves.
    unserved_max: usize,
    /// Streams whose response has begun and that the client has ended, the newest last; at most `unserved_max`.
    answered: VecDeque<u32>,
    ages: Ages,
    /// Bytes of bodies that have come and no server has taken, by stream that is served, and their sum.
    untaken: BTreeMap<u32, u64>,
    untaken_sum: u64,
    /// Bytes of streams that are not served yet: the library may have refused these, and thrown the bytes away.
    arrived: BTreeMap<u32, u64>,
    /// Paths that the library takes for none, by stream, for streams that it is about to begin.
    paths: VecDeque<(u32, Rc<[u8]>)>,
    /// Milliseconds on the core's clock.
    now: u64,
}

/// Which streams have lived for `LONG_LIFE_MILLIS`, as far as two numbers tell.
#[derive(Debug, Default)]
struct Ages {
    /// The newest stream, and when it was begun in milliseconds.
    newest: u32,
    newest_at: u64,
    /// The newest stream of a moment, and the moment.
    mark: u32,
    marked_at: u64,
    /// This one and those before it have.
    old: u32,
    /// So many more of them may be reset, since each stream is reset once.
    resets_left: u32,
}

impl Ages {
    fn begin(&mut self, stream: u32, now: u64) {
        self.move_on(now);
        (self.newest, self.newest_at) = (stream, now);
        self.resets_left = (self.resets_left + 1).min(LONG_LIVED_MAX);
    }

    /// Whether the reset of a stream is that of one that has lived for long.
    fn forgives(&mut self, stream: u32, now: u64) -> bool {
        self.move_on(now);
        let is_old = stream <= self.old && self.resets_left > 0;
        self.resets_left -= u32::from(is_old);
        is_old
    }

    fn move_on(&mut self, now: u64) {
        if now >= self.newest_at + LONG_LIFE_MILLIS {
            self.old = self.newest;
        }
        if now >= self.marked_at + LONG_LIFE_MILLIS {
            self.old = self.old.max(self.mark);
            (self.mark, self.marked_at) = (self.newest, now);
        }
    }
}

/// A stream that its client has not ended.
#[derive(Clone, Copy, Debug)]
struct Upload {
    stream: u32,
    standing: Standing,
    /// Bytes of frames that have come since it was over.
    late: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The library has it, and may have refused it.
    New,
    Served,
    /// The response has begun.
    Answered,
    /// We have ended it. What its client has still on its way is thrown away (RFC 9113 §5.1, closed).
    Over,
}

/// One direction of a connection: from a client, or from a server.
#[derive(Debug)]
pub struct Intake {
    client: Option<Client>,
    follower: Follower,
    /// Bytes of a payload, or of the preface, that pass; or that do not.
    pass: usize,
    drop: usize,
    /// A frame, or the start of one, that is looked at when `wanted` bytes of it are there.
    held: Vec<u8>,
    wanted: usize,
    block: Option<Box<Block>>,
    block_bytes_max: usize,
    /// Responses on a server's streams.
    responses: Rc<Responses>,
    /// Streams reset for what the peer did.
    errors: u32,
    ready: Vec<u8>,
    ready_at: usize,
    /// Frames for the peer, whole ones.
    say: Vec<u8>,
    scratch: Vec<u8>,
}

impl Intake {
    /// Intake of a client that may have `streams_max` streams at once, each with a header list of `list_bytes_max`.
    pub fn of_client(streams_max: u32, list_bytes_max: usize) -> Intake {
        let unserved_max = streams_max as usize * UPLOADS_PER_STREAM;
        let client = Client {
            counts: Counts::default(),
            last: 0,
            uploads: Vec::new(),
            unserved_max,
            answered: VecDeque::new(),
            ages: Ages::default(),
            untaken: BTreeMap::new(),
            untaken_sum: 0,
            arrived: BTreeMap::new(),
            paths: VecDeque::new(),
            now: 0,
        };
        Intake { pass: PREFACE_BYTES, client: Some(client), ..Intake::of_server(list_bytes_max, Rc::default()) }
    }

    /// Makes the intake of a server, each of whose header lists may be `list_bytes_max` long.
    pub fn of_server(list_bytes_max: usize, responses: Rc<Responses>) -> Intake {
        Intake {
            client: None,
            follower: Follower::default(),
            pass: 0,
            drop: 0,
            held: Vec::new(),
            wanted: 0,
            block: None,
            block_bytes_max: list_bytes_max.saturating_mul(BLOCK_PER_LIST).max(FRAME_BYTES_MAX),
            responses,
            errors: 0,
            ready: Vec::new(),
            ready_at: 0,
            say: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Bytes that the library gets before anything else.
    pub fn ready(&self) -> &[u8] {
        &self.ready[self.ready_at..]
    }

    pub fn consume_ready(&mut self, count: usize) {
        self.ready_at += count;
        if self.ready_at == self.ready.len() {
            (self.ready, self.ready_at) = (Vec::new(), 0);
        }
    }

    /// Frames that the peer is to be sent, between two frames of the library's.
    pub fn say(&self) -> &[u8] {
        &self.say
    }

    pub fn said(&mut self) {
        self.say = Vec::new();
    }

    /// Looks at what has come; to be called when `ready` is empty.
    ///
    /// # Errors
    /// The connection is to end.
    pub fn take(&mut self, bytes: &[u8], moment: Moment<'_>) -> Result<Taken, ConnectionFault> {
        debug_assert!(self.ready().is_empty());
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if self.pass > 0 {
                let count = rest.len().min(self.pass);
                self.pass -= count;
                at += count;
            } else if self.drop > 0 {
                let count = rest.len().min(self.drop);
                self.drop -= count;
                return Ok(Taken { pass: at, used: at + count });
            } else if self.wanted > 0 {
                let count = rest.len().min(self.wanted - self.held.len());
                self.held.extend_from_slice(&rest[..count]);
                if self.held.len() == self.wanted {
                    self.judge_held(moment)?;
                }
                return Ok(Taken { pass: at, used: at + count });
            } else {
                let wanted = wanted(rest);
                if rest.len() < wanted {
                    (self.held, self.wanted) = (rest.to_vec(), wanted);
                    return Ok(Taken { pass: at, used: bytes.len() });
                }
                let pass = at;
                at += wanted;
                if let Verdict::Keep = self.judge(&rest[..wanted], moment)? {
                    return Ok(Taken { pass, used: at });
                }
            }
        }
        Ok(Taken { pass: at, used: at })
    }

    /// Judges the held bytes, which are as long as they were to be; they may turn out to be the header alone.
    fn judge_held(&mut self, moment: Moment<'_>) -> Result<(), ConnectionFault> {
        self.wanted = wanted(&self.held);
        if self.wanted > self.held.len() {
            return Ok(());
        }
        self.wanted = 0;
        let frame = std::mem::take(&mut self.held);
        if let Verdict::Pass = self.judge(&frame, moment)? {
            self.ready = frame;
        }
        Ok(())
    }

    /// Judges a frame: whole if `wanted` says so, else its header.
    fn judge(&mut self, frame: &[u8], moment: Moment<'_>) -> Result<Verdict, ConnectionFault> {
        let header = FrameHeader::read(frame);
        let payload = &frame[FRAME_HEADER_BYTES..];
        if let Some(client) = &mut self.client {
            let empty = header.kind == DATA && !header.has(END_STREAM) && is_empty_data(&header, payload);
            client.now = moment.now;
            let late = header.kind == RST_STREAM && client.is_late_reset(header.stream);
            client.counts.note(&header, empty, late, moment).map_err(ConnectionFault::Flood)?;
        }
        // RFC 9113 §6.10: nothing comes between the frames of a block.
        if self.block.as_ref().is_some_and(|block| header.kind != CONTINUATION || header.stream != block.stream) {
            return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
        }
        if let Some(reason) = wrong(&header, payload) {
            return Err(ConnectionFault::Error(reason));
        }
        let verdict = match header.kind {
            HEADERS if header.length <= FRAME_BYTES_MAX => self.judge_headers(&header, frame)?,
            CONTINUATION if header.length <= FRAME_BYTES_MAX => {
                self.judge_continuation(&header, payload, moment.limits)?
            }
            DATA => self.judge_data(&header, payload, moment.limits)?,
            WINDOW_UPDATE => self.judge_window_update(&header, payload, moment.limits)?,
            RST_STREAM => {
                self.end_upload(header.stream);
                self.responses.set_state(header.stream, ResponseState::Over);
                Verdict::Pass
            }
            GOAWAY if self.client.is_none() && says_error(payload) => {
                self.responses.fail();
                Verdict::Pass
            }
            // A server has nothing to say about that (RFC 9113 §6.5.2).
            SETTINGS if self.client.is_none() && enables_push(payload) => {
                return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
            }
            _ => Verdict::Pass,
        };
        let beyond = header.length - payload.len();
        match verdict {
            Verdict::Pass => self.pass = beyond,
            Verdict::Keep => self.drop = beyond,
        }
        Ok(verdict)
    }

    fn judge_headers(&mut self, header: &FrameHeader, frame: &[u8]) -> Result<Verdict, ConnectionFault> {
        // Errors of the frame itself are reported by the library.
        let Some((fragment, flawed)) = fragment(header, &frame[FRAME_HEADER_BYTES..]) else { return Ok(Verdict::Pass) };
        let (stream, flags) = (header.stream, header.flags);
        if stream == 0 {
            return Ok(Verdict::Pass);
        }
        if !header.has(END_HEADERS) {
            self.block = Some(Box::new(Block { stream, flags, flawed, bytes: fragment.to_vec(), frames: 1 }));
            return Ok(Verdict::Keep);
        }
        Ok(match self.track(stream, flags, flawed, fragment)? {
            None => Verdict::Pass,
            Some(instead) => {
                write_block(stream, flags, &instead, &mut self.ready);
                Verdict::Keep
            }
        })
    }

    fn judge_continuation(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        limits: &Http2Flood,
    ) -> Result<Verdict, ConnectionFault> {
        let Some(mut block) = self.block.take() else { return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR)) };
        // Frames without a byte would go on for ever. Clients' are counted by the second as well.
        if block.bytes.len() + payload.len() > self.block_bytes_max || block.frames > limits.continuations {
            return Err(ConnectionFault::Flood("continuation"));
        }
        block.frames += 1;
        block.bytes.extend_from_slice(payload);
        if !header.has(END_HEADERS) {
            self.block = Some(block);
            return Ok(Verdict::Keep);
        }
        let Block { stream, flags, flawed, bytes, .. } = *block;
        let instead = self.track(stream, flags, flawed, &bytes)?;
        write_block(stream, flags, instead.as_ref().unwrap_or(&bytes), &mut self.ready);
        Ok(Verdict::Keep)
    }

    /// Takes in a block that is whole. What the library is to see instead, where it must not see it.
    fn track(
        &mut self,
        stream: u32,
        flags: u8,
        flawed: bool,
        block: &[u8],
    ) -> Result<Option<Vec<u8>>, ConnectionFault> {
        let seen = self.follower.track(block, &mut self.scratch);
        let seen = seen.map_err(|_| ConnectionFault::Error(Reason::COMPRESSION_ERROR))?;
        let mut flawed = flawed || seen.flawed;
        let ends = flags & END_STREAM != 0;
        if let Some(client) = &mut self.client {
            if stream > client.last {
                client.last = stream;
                client.counts.note_begun();
                client.ages.begin(stream, client.now);
                if let Some(path) = self.follower.take_path() {
                    client.keep_path(stream, path);
                }
                if !ends {
                    client.begin_upload(stream);
                }
            } else {
                // Trailers have no pseudo-header fields (RFC 9113 §8.1), and the library leaves them out.
                flawed |= seen.pseudo && client.standing(stream).is_some();
                if ends {
                    self.end_upload(stream);
                }
            }
        } else {
            flawed |= self.track_response(stream, ends, &seen);
        }
        Ok(match (flawed, seen.edited) {
            (true, _) => Some(self.follower.substitute(block)),
            (false, true) => Some(self.follower.edited(block)),
            (false, false) => None,
        })
    }

    /// Takes in a server's block. True if it is malformed: a response has no pseudo-header field but `:status`, its
    /// trailers have none (RFC 9113 §8.1, §8.3), an interim response does not end the stream, and nothing comes behind
    /// its end (§5.1).
    fn track_response(&mut self, stream: u32, ends: bool, seen: &Seen) -> bool {
        let (state, flawed) = match self.responses.state(stream) {
            None => return seen.of_request,
            Some(ResponseState::Awaited) if seen.interim => (ResponseState::Awaited, seen.of_request || ends),
            Some(ResponseState::Awaited) => (ResponseState::Begun, seen.of_request),
            Some(ResponseState::Begun) => (ResponseState::Begun, seen.pseudo),
            Some(ResponseState::Over) => (ResponseState::Over, true),
        };
        match ends {
            true if state == ResponseState::Begun && !flawed => self.responses.complete(stream),
            true => self.responses.set_state(stream, ResponseState::Over),
            false => self.responses.set_state(stream, state),
        }
        flawed
    }

    fn judge_data(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        limits: &Http2Flood,
    ) -> Result<Verdict, ConnectionFault> {
        let stream = header.stream;
        if self.client.is_none() && header.length <= FRAME_BYTES_MAX {
            match self.responses.state(stream) {
                Some(ResponseState::Awaited) => return Ok(self.keep_headless(header)),
                Some(ResponseState::Over) => {
                    self.give_window_back(0, header.length as u32);
                    self.reset(stream, Reason::STREAM_CLOSED, limits)?;
                    return Ok(Verdict::Keep);
                }
                Some(ResponseState::Begun) if header.has(END_STREAM) => self.responses.complete(stream),
                _ => {}
            }
        }
        let (known, standing) = match &self.client {
            None => (true, Some(Standing::Served)),
            Some(client) => (stream <= client.last, client.standing(stream)),
        };
        // The library itself answers frames of a stream that never was, and frames that are too long.
        if stream == 0 || !known || header.length > FRAME_BYTES_MAX {
            return Ok(Verdict::Pass);
        }
        let length = header.length as u32;
        if standing.is_none() {
            // RFC 9113 §5.1, half-closed (remote) and closed.
            self.give_window_back(0, length);
            self.reset(stream, Reason::STREAM_CLOSED, limits)?;
            return Ok(Verdict::Keep);
        }
        if header.has(END_STREAM) {
            self.end_upload(stream);
        }
        if standing == Some(Standing::Over) {
            self.give_window_back(0, length);
            if self.is_too_late(stream, header.length) {
                self.reset(stream, Reason::STREAM_CLOSED, limits)?;
            }
            return Ok(Verdict::Keep);
        }
        if !header.has(END_STREAM) && is_empty_data(header, payload) {
            self.give_window_back(0, length);
            self.give_window_back(stream, length);
            return Ok(Verdict::Keep);
        }
        if let Some(client) = &mut self.client
            && length > 0
        {
            client.note_body(stream, length, standing != Some(Standing::New));
        }
        Ok(Verdict::Pass)
    }

    /// Keeps DATA that comes before its HEADERS, which makes a response malformed (RFC 9113 §8.1). The library gets a
    /// malformed block instead, since it would take the DATA for an error of the connection. The library then resets
    /// the stream, and passes over later frames.
    fn keep_headless(&mut self, header: &FrameHeader) -> Verdict {
        self.give_window_back(0, header.length as u32);
        self.responses.forget(header.stream);
        write_block(header.stream, 0, MALFORMED, &mut self.ready);
        Verdict::Keep
    }

    /// An increment of nothing is the stream's error, unless it is the connection's (RFC 9113 §6.9).
    fn judge_window_update(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        limits: &Http2Flood,
    ) -> Result<Verdict, ConnectionFault> {
        let nothing = matches!(payload, [0 | 0x80, 0, 0, 0]);
        let known = header.stream > 0 && self.client.as_ref().is_none_or(|client| header.stream <= client.last);
        if !nothing || !known {
            return Ok(Verdict::Pass);
        }
        self.reset(header.stream, Reason::PROTOCOL_ERROR, limits)?;
        Ok(Verdict::Keep)
    }

    /// Whether more has come of a stream that is over than was on its way when its client heard of that.
    fn is_too_late(&mut self, stream: u32, length: usize) -> bool {
        let Some(client) = &mut self.client else { return false };
        let Some(place) = client.place(stream) else { return false };
        let late = &mut client.uploads[place].late;
        *late += FRAME_HEADER_BYTES + length;
        *late > LATE_BYTES_MAX
    }

    fn end_upload(&mut self, stream: u32) {
        if let Some(client) = &mut self.client
            && let Some(place) = client.place(stream)
        {
            client.uploads.remove(place);
        }
    }

    /// Somebody serves the stream.
    pub fn serves(&mut self, stream: u32) {
        self.stands(stream, Standing::Served);
        if let Some(client) = &mut self.client {
            // The library begins streams in their order: those before this one that nobody serves it has refused.
            client.arrived = client.arrived.split_off(&stream);
            if let Some(bytes) = client.arrived.remove(&stream) {
                client.untaken.insert(stream, bytes);
                client.untaken_sum += bytes;
            }
        }
    }

    /// Notes how many bytes that have come of the stream's body have still to be taken.
    pub fn leaves_untaken(&mut self, stream: u32, bytes: u64) {
        if let Some(client) = &mut self.client
            && let Some(untaken) = client.untaken.get_mut(&stream)
        {
            client.untaken_sum = client.untaken_sum - *untaken + bytes;
            *untaken = bytes;
        }
    }

    /// Bytes of bodies that have come and no server has taken, over all streams.
    pub fn untaken(&self) -> u64 {
        self.client.as_ref().map_or(0, |client| client.untaken_sum)
    }

    /// The stream's response has begun.
    pub fn answers(&mut self, stream: u32) {
        self.stands(stream, Standing::Answered);
        if let Some(client) = &mut self.client
            && client.place(stream).is_none()
        {
            if client.answered.len() >= client.unserved_max {
                client.answered.pop_front();
            }
            client.answered.push_back(stream);
        }
    }

    /// The path that the stream's request has, where the library takes it for none.
    pub fn path(&mut self, stream: u32) -> Option<Rc<[u8]>> {
        let paths = &mut self.client.as_mut()?.paths;
        let place = paths.iter().position(|(kept, _)| *kept == stream)?;
        paths.remove(place).map(|(_, path)| path)
    }

    /// Nobody serves the stream any more.
    pub fn leaves(&mut self, stream: u32) {
        self.stands(stream, Standing::Over);
        if let Some(client) = &mut self.client {
            client.untaken_sum -= client.untaken.remove(&stream).unwrap_or_default();
        }
    }

    fn stands(&mut self, stream: u32, standing: Standing) {
        if let Some(client) = &mut self.client
            && let Some(place) = client.place(stream)
        {
            client.uploads[place].standing = standing;
        }
    }

    /// Ends a stream on both sides. Who provokes that again and again is ended: what was begun for a stream costs
    /// (CVE-2025-8671).
    fn reset(&mut self, stream: u32, reason: Reason, limits: &Http2Flood) -> Result<(), ConnectionFault> {
        self.errors += 1;
        if self.errors > limits.errors {
            return Err(ConnectionFault::Flood("stream-error"));
        }
        self.end_upload(stream);
        let code = u32::from(reason).to_be_bytes();
        write_frame(RST_STREAM, 0, stream, &code, &mut self.say);
        write_frame(RST_STREAM, 0, stream, &code, &mut self.ready);
        Ok(())
    }

    /// Gives back the window of bytes that were kept from the library, since the library cannot.
    fn give_window_back(&mut self, stream: u32, count: u32) {
        if count > 0 {
            write_frame(WINDOW_UPDATE, 0, stream, &count.to_be_bytes(), &mut self.say);
        }
    }
}

impl Client {
    fn place(&self, stream: u32) -> Option<usize> {
        self.uploads.binary_search_by_key(&stream, |upload| upload.stream).ok()
    }

    /// Standing of the stream's upload; `None` if the client has ended it.
    fn standing(&self, stream: u32) -> Option<Standing> {
        self.place(stream).map(|place| self.uploads[place].standing)
    }

    /// Whether a reset is of a stream that was answered, whose client has no use for the rest, or that has lived for
    /// long.
    fn is_late_reset(&mut self, stream: u32) -> bool {
        self.paths.retain(|(kept, _)| *kept != stream);
        if matches!(self.standing(stream), Some(Standing::Answered | Standing::Over)) {
            return true;
        }
        // Each stream is reset once.
        if let Some(place) = self.answered.iter().position(|answered| *answered == stream) {
            self.answered.remove(place);
            return true;
        }
        self.ages.forgives(stream, self.now)
    }

    fn keep_path(&mut self, stream: u32, path: Rc<[u8]>) {
        self.paths.push_back((stream, path));
        while self.paths.iter().map(|(_, path)| path.len()).sum::<usize>() > UNFIT_PATHS_BYTES_MAX {
            self.paths.pop_front();
        }
    }

    fn note_body(&mut self, stream: u32, count: u32, is_served: bool) {
        let count = u64::from(count);
        if is_served {
            *self.untaken.entry(stream).or_default() += count;
            self.untaken_sum += count;
        } else {
            *self.arrived.entry(stream).or_default() += count;
        }
    }

    fn begin_upload(&mut self, stream: u32) {
        // Streams that are served are as few as their tasks.
        if self.uploads.len() >= self.unserved_max {
            let is_unserved = |upload: &Upload| matches!(upload.standing, Standing::New | Standing::Over);
            if self.uploads.iter().filter(|upload| is_unserved(upload)).count() >= self.unserved_max
                && let Some(oldest) = self.uploads.iter().position(is_unserved)
            {
                self.uploads.remove(oldest);
            }
        }
        self.uploads.push(Upload { stream, standing: Standing::New, late: 0 });
    }
}

/// How many bytes of a frame are looked at together: all where its payload matters.
fn wanted(frame: &[u8]) -> usize {
    if frame.len() < FRAME_HEADER_BYTES {
        return FRAME_HEADER_BYTES;
    }
    let header = FrameHeader::read(frame);
    let whole = match header.kind {
        HEADERS | CONTINUATION => header.length <= FRAME_BYTES_MAX,
        SETTINGS => header.length <= FRAME_BYTES_MAX,
        WINDOW_UPDATE => header.length == 4,
        DATA => header.has(PADDED) && !header.has(END_STREAM) && header.length <= PADDING_BYTES_MAX,
        GOAWAY => return FRAME_HEADER_BYTES + header.length.min(GOAWAY_BYTES),
        _ => false,
    };
    FRAME_HEADER_BYTES + if whole { header.length } else { 0 }
}

/// Error code of a frame that ends the connection in any state, if the library's differs (RFC 9113 §6.3 to §6.9).
fn wrong(header: &FrameHeader, payload: &[u8]) -> Option<Reason> {
    let length = header.length;
    let is_long = match header.kind {
        PRIORITY_FRAME => length == 5,
        RST_STREAM | WINDOW_UPDATE => length == 4,
        SETTINGS if header.has(ACK) => length == 0,
        SETTINGS => length.is_multiple_of(6),
        PING => length == 8,
        _ => true,
    };
    let mut settings = payload.chunks_exact(6).filter(|_| header.kind == SETTINGS);
    let too_wide = settings.any(|setting| {
        let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
        u16::from_be_bytes([setting[0], setting[1]]) == INITIAL_WINDOW_SIZE && value > WINDOW_BYTES_MAX
    });
    match header.kind {
        _ if !is_long => Some(Reason::FRAME_SIZE_ERROR),
        SETTINGS if too_wide => Some(Reason::FLOW_CONTROL_ERROR),
        _ => None,
    }
}

/// Whether GOAWAY has another code than NO_ERROR.
fn says_error(payload: &[u8]) -> bool {
    payload.get(4..GOAWAY_BYTES).is_some_and(|code| code != [0; 4])
}

/// Whether SETTINGS say SETTINGS_ENABLE_PUSH = 1.
fn enables_push(payload: &[u8]) -> bool {
    payload.chunks_exact(6).any(|setting| setting == [0, 2, 0, 0, 0, 1])
}

/// Whether there is no data in it: no payload, or padding alone.
fn is_empty_data(header: &FrameHeader, payload: &[u8]) -> bool {
    match payload.first() {
        None => header.length == 0,
        Some(padding) => header.has(PADDED) && usize::from(*padding) + 1 == header.length,
    }
}

/// Finds a HEADERS frame's part of its block, and whether its stream depends on itself (RFC 7540 §5.3.1, which the
/// library minds). `None` for a frame that is not what it says.
fn fragment<'a>(header: &FrameHeader, payload: &'a [u8]) -> Option<(&'a [u8], bool)> {
    let (mut rest, mut padding, mut flawed) = (payload, 0, false);
    if header.has(PADDED) {
        let (first, after) = rest.split_first()?;
        (padding, rest) = (usize::from(*first), after);
    }
    if header.has(PRIORITY) {
        let (priority, after) = rest.split_first_chunk::<5>()?;
        let depends = u32::from_be_bytes([priority[0] & 0x7f, priority[1], priority[2], priority[3]]);
        (flawed, rest) = (depends == header.stream, after);
    }
    let length = rest.len().checked_sub(padding)?;
    Some((&rest[..length], flawed))
}

fn write_frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A header block in as few frames as it takes. Of `flags` only the stream's end is kept.
fn write_block(stream: u32, flags: u8, block: &[u8], out: &mut Vec<u8>) {
    let count = block.len().div_ceil(FRAME_BYTES_MAX).max(1);
    for index in 0..count {
        let part = &block[index * FRAME_BYTES_MAX..block.len().min((index + 1) * FRAME_BYTES_MAX)];
        let end = if index + 1 == count { END_HEADERS } else { 0 };
        match index {
            0 => write_frame(HEADERS, flags & END_STREAM | end, stream, part, out),
            _ => write_frame(CONTINUATION, end, stream, part, out),
        }
    }
}

#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(test)]
mod tests;
