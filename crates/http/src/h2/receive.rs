//! Frames that come from a connection's peer, one after the other, and what they mean.
//!
//! An offence ends its stream alone wherever RFC 9113 lets it: the stream is reset, and the connection stays. Header
//! blocks are decoded whatever becomes of their streams, since all blocks share a table (RFC 9113 §4.3).

use std::ops::Range;

use super::connection::{Connection, ConnectionFault, GoAway};
use super::flood::Flood;
use super::frame::{self, FrameHeader, HEADER_BYTES, PAYLOAD_BYTES, PREFACE, flag, kind};
use super::hpack::{Decoded, ListLimits};
use super::inbound::{Block, DataFrame, Fragments, State};
use super::priority::Priority;
use super::role::Role;
use super::stream::{Half, Reset};
use super::{Reason, settings};
use crate::h1::Field;

/// Bytes of a header block, in proportion to the limit of a header list, which may be coded in more than it has.
const BLOCK_PER_LIST: usize = 4;

/// Events of a connection that its application has to know of.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A client begins a stream. Its block is to be read before anything else is received.
    Request(Block),
    /// A server's answer, an interim one or the last. Its block is to be read before anything else is received.
    Response(Block),
    /// The fields behind a body, which end the message. Their block is to be read before anything else is received.
    Trailers(Block),
    /// Bytes of a body, as a range of those that were handed over. They are to be released once they have gone on.
    Data {
        stream: u32,
        bytes: Range<usize>,
        end: bool,
    },
    /// The stream is closed by a reset: `Stream::reset` says whose.
    Reset {
        stream: u32,
    },
    /// The peer's settings have changed.
    Settings,
    /// A server takes no further streams. Those that it has not looked at are reset.
    GoAway,
    Pong,
}

/// Results of a step through the bytes.
enum Step {
    /// So many bytes are used, and nothing has happened that the application has to know.
    Used(usize),
    Event(usize, Event),
}

impl Step {
    /// The same behind so many bytes more.
    fn behind(self, count: usize) -> Step {
        match self {
            Step::Used(used) => Step::Used(used + count),
            Step::Event(used, event) => Step::Event(used + count, event),
        }
    }
}

impl Event {
    /// The same event in bytes of which so many come before those that it was found in.
    fn behind(mut self, count: usize) -> Event {
        let range = match &mut self {
            Event::Request(block) | Event::Response(block) | Event::Trailers(block) => block.range.as_mut(),
            Event::Data { bytes, .. } => Some(bytes),
            _ => None,
        };
        if let Some(range) = range {
            *range = range.start + count..range.end + count;
        }
        self
    }
}

impl<T> Connection<T> {
    /// Takes in what has come, up to the first event. Returns how many bytes are used: all of them where there is no
    /// event. `now` in milliseconds.
    ///
    /// # Errors
    /// The connection is to end.
    pub fn receive(&mut self, input: &[u8], now: u64) -> Result<(usize, Option<Event>), ConnectionFault> {
        let mut at = 0;
        while at < input.len() {
            match self.step(&input[at..], now)? {
                Step::Used(count) => at += count,
                Step::Event(count, event) => {
                    self.give_window_back();
                    return Ok((at + count, Some(event.behind(at))));
                }
            }
        }
        self.give_window_back();
        Ok((at, None))
    }

    /// Bytes of the connection's window are given back as they come: their streams' windows hold the peer up.
    fn give_window_back(&mut self) {
        self.receive_window.release(self.receive_window.held());
        if let Some(increment) = self.receive_window.take_increment() {
            frame::write_window_update(0, increment, &mut self.out);
        }
    }

    fn step(&mut self, input: &[u8], now: u64) -> Result<Step, ConnectionFault> {
        match self.inbound.state {
            State::Header => self.take_header(input, now),
            State::Payload(header) => self.take_payload(header, 0, input, now),
            State::Data(data) => self.take_data(data, input, now),
            State::Skip(left) => {
                let count = left.min(input.len());
                self.inbound.state = if count == left { State::Header } else { State::Skip(left - count) };
                Ok(Step::Used(count))
            }
            State::Preface(seen) => {
                let count = (PREFACE.len() - seen).min(input.len());
                if input[..count] != PREFACE[seen..seen + count] {
                    return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
                }
                let seen = seen + count;
                self.inbound.state = if seen == PREFACE.len() { State::Header } else { State::Preface(seen) };
                Ok(Step::Used(count))
            }
        }
    }

    fn take_header(&mut self, input: &[u8], now: u64) -> Result<Step, ConnectionFault> {
        let inbound = &mut self.inbound;
        let (header, used) = match input.first_chunk() {
            Some(header) if inbound.header_bytes == 0 => (FrameHeader::read(header), HEADER_BYTES),
            _ => {
                let seen = usize::from(inbound.header_bytes);
                let count = (HEADER_BYTES - seen).min(input.len());
                inbound.header[seen..seen + count].copy_from_slice(&input[..count]);
                inbound.header_bytes += count as u8;
                if usize::from(inbound.header_bytes) < HEADER_BYTES {
                    return Ok(Step::Used(count));
                }
                inbound.header_bytes = 0;
                (FrameHeader::read(&inbound.header), count)
            }
        };
        self.judge_header(&header, now)?;
        match header.kind {
            kind::DATA => {
                let event = self.begin_data(&header)?;
                // An empty frame is whole with its header.
                if header.length == 0
                    && let State::Data(data) = self.inbound.state
                {
                    return Ok(self.take_data(data, &[], now)?.behind(used));
                }
                Ok(event.map_or(Step::Used(used), |event| Step::Event(used, event)))
            }
            kind::HEADERS
            | kind::CONTINUATION
            | kind::PRIORITY
            | kind::RST_STREAM
            | kind::SETTINGS
            | kind::PING
            | kind::GOAWAY
            | kind::WINDOW_UPDATE
            | kind::PRIORITY_UPDATE => self.take_payload(header, used, input, now),
            kind::PUSH_PROMISE => Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR)),
            // RFC 9113 §5.5.
            _ => {
                self.inbound.state = if header.length == 0 { State::Header } else { State::Skip(header.length) };
                Ok(Step::Used(used))
            }
        }
    }

    /// Rules for frames of all kinds, and their floods.
    fn judge_header(&mut self, header: &FrameHeader, now: u64) -> Result<(), ConnectionFault> {
        if self.role == Role::Server {
            self.flood.count(header, now, self.sent + self.out.len() as u64)?;
        }
        let is_in_block = header.kind == kind::CONTINUATION
            && self.inbound.block.as_ref().is_some_and(|block| block.header.stream == header.stream);
        // RFC 9113 §6.10: nothing comes between the frames of a block, and none of them elsewhere.
        if is_in_block != (self.inbound.block.is_some() || header.kind == kind::CONTINUATION) {
            return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
        }
        // RFC 9113 §3.4.
        if !self.has_settings && (header.kind != kind::SETTINGS || header.has(flag::ACK)) {
            return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
        }
        let is_fine = match header.kind {
            _ if header.length > PAYLOAD_BYTES => false,
            kind::PRIORITY => header.length == 5,
            kind::RST_STREAM | kind::WINDOW_UPDATE => header.length == 4,
            kind::SETTINGS if header.has(flag::ACK) => header.length == 0,
            kind::SETTINGS => header.length.is_multiple_of(6),
            kind::PING => header.length == 8,
            kind::GOAWAY => header.length >= 8,
            kind::PRIORITY_UPDATE => header.length >= 4,
            _ => true,
        };
        if !is_fine {
            return Err(ConnectionFault::Error(Reason::FRAME_SIZE_ERROR));
        }
        let has_stream = header.stream != 0;
        let is_at_home = match header.kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION => has_stream,
            kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE => !has_stream,
            _ => true,
        };
        if is_at_home { Ok(()) } else { Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR)) }
    }

    /// Takes the payload of a frame, which is looked at when it is whole. `used` bytes of the input are its header.
    fn take_payload(
        &mut self,
        header: FrameHeader,
        used: usize,
        input: &[u8],
        now: u64,
    ) -> Result<Step, ConnectionFault> {
        let here = &input[used..];
        let missing = header.length - self.inbound.held.len();
        if here.len() < missing {
            self.inbound.held.extend_from_slice(here);
            self.inbound.state = State::Payload(header);
            return Ok(Step::Used(input.len()));
        }
        self.inbound.state = State::Header;
        let used = used + missing;
        if self.inbound.held.is_empty() {
            let event = self.frame(&header, &input[used - missing..used], Some(used - missing), now)?;
            return Ok(event.map_or(Step::Used(used), |event| Step::Event(used, event)));
        }
        let mut held = std::mem::take(&mut self.inbound.held);
        held.extend_from_slice(&here[..missing]);
        let event = self.frame(&header, &held, None, now)?;
        Ok(event.map_or(Step::Used(used), |event| Step::Event(used, event)))
    }

    /// A frame that has come whole; `at`: where its payload lies in the input.
    fn frame(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        at: Option<usize>,
        now: u64,
    ) -> Result<Option<Event>, ConnectionFault> {
        match header.kind {
            kind::HEADERS => self.headers(header, payload, at),
            kind::CONTINUATION => self.continuation(header, payload),
            kind::RST_STREAM => self.reset_by_peer(header.stream, Reason(number(payload)), now),
            kind::SETTINGS => self.settings(header, payload),
            kind::PING => Ok(self.pinged(header, payload)),
            kind::GOAWAY => Ok(self.goaway_by_peer(payload)),
            kind::WINDOW_UPDATE => self.window_update(header.stream, number(payload) & 0x7fff_ffff),
            kind::PRIORITY => self.priority(header.stream, payload),
            kind::PRIORITY_UPDATE => self.priority_update(payload),
            _ => Ok(None),
        }
    }

    fn settings(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        if header.has(flag::ACK) {
            self.settings_acknowledged();
            return Ok(None);
        }
        let before = self.peer.initial_window;
        self.peer.take(payload, self.role == Role::Client).map_err(ConnectionFault::Error)?;
        self.has_settings = true;
        self.has_priorities |= self.peer.no_old_priorities;
        self.encoder.set_table_bytes_max(self.peer.table_bytes_max);
        settings::write_acknowledgement(&mut self.out);
        let by = i64::from(self.peer.initial_window) - i64::from(before);
        if by != 0 {
            for place in 0..self.streams.len() {
                let changed = self.streams[place].send_window.change(by);
                changed.map_err(|_| ConnectionFault::Error(Reason::FLOW_CONTROL_ERROR))?;
                self.requeue(place);
            }
        }
        Ok(Some(Event::Settings))
    }

    /// Our windows are what we have said from now on (RFC 9113 §6.5.3).
    fn settings_acknowledged(&mut self) {
        let Some(to) = self.announced_window.take() else { return };
        let from = std::mem::replace(&mut self.initial_window, to);
        for place in 0..self.streams.len() {
            self.streams[place].receive_window.change(from, to);
            // Bytes released before may be owed only now.
            self.widen(place);
        }
    }

    fn pinged(&mut self, header: &FrameHeader, payload: &[u8]) -> Option<Event> {
        if !header.has(flag::ACK) {
            frame::write(kind::PING, flag::ACK, 0, payload, &mut self.out);
            return None;
        }
        let is_ours = self.is_our_ping(payload);
        self.is_pinged &= !is_ours;
        is_ours.then_some(Event::Pong)
    }

    fn goaway_by_peer(&mut self, payload: &[u8]) -> Option<Event> {
        let (last, reason) = (number(payload) & 0x7fff_ffff, Reason(number(&payload[4..])));
        // A peer may say so twice, and takes less the second time (RFC 9113 §6.8).
        let last = self.goaway.map_or(last, |said| said.last.min(last));
        self.goaway = Some(GoAway { last, reason });
        if self.role == Role::Server {
            return None;
        }
        let mut place = self.streams.partition_point(|stream| stream.id <= last);
        while place < self.streams.len() {
            let before = self.streams.len();
            if !self.streams[place].is_closed() {
                self.update(place, |stream| stream.reset = Some(Reset::Unprocessed(reason)));
            }
            // A stream that nobody needs is gone by that.
            place += usize::from(self.streams.len() == before);
        }
        Some(Event::GoAway)
    }

    fn window_update(&mut self, id: u32, increment: u32) -> Result<Option<Event>, ConnectionFault> {
        if id == 0 {
            if increment == 0 {
                return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
            }
            let changed = self.send_window.change(i64::from(increment));
            return changed.map(|()| None).map_err(|_| ConnectionFault::Error(Reason::FLOW_CONTROL_ERROR));
        }
        self.expect_begun(id)?;
        let Some(place) = self.place(id) else {
            // The frame may have been on its way when the stream was closed (RFC 9113 §5.1).
            return if increment == 0 { self.offend(id, Reason::PROTOCOL_ERROR) } else { Ok(None) };
        };
        if self.streams[place].is_closed() {
            return Ok(None);
        }
        if increment == 0 {
            return self.offend(id, Reason::PROTOCOL_ERROR);
        }
        if self.streams[place].send_window.change(i64::from(increment)).is_err() {
            return self.offend(id, Reason::FLOW_CONTROL_ERROR);
        }
        self.requeue(place);
        Ok(None)
    }

    fn reset_by_peer(&mut self, id: u32, reason: Reason, now: u64) -> Result<Option<Event>, ConnectionFault> {
        self.expect_begun(id)?;
        let place = self.place(id).filter(|place| !self.streams[*place].is_closed());
        if self.role == Role::Server {
            let stream = place.map(|place| &self.streams[place]);
            let is_answered = stream.is_some_and(|stream| stream.send != Half::Head);
            let is_late = place.is_none() && self.is_late(id, HEADER_BYTES, true);
            let begun = if is_late { Some(0) } else { place.map(|place| self.streams[place].begun) };
            self.flood.count_reset(id, begun, is_answered || is_late, now)?;
        } else {
            self.is_late(id, HEADER_BYTES, true);
        }
        let Some(place) = place else { return Ok(None) };
        self.update(place, |stream| {
            stream.reset = Some(Reset::ByPeer(reason));
            stream.pending = 0;
        });
        Ok(Some(Event::Reset { stream: id }))
    }

    /// RFC 7540's priorities are read no more (RFC 9113 §5.3.2), but for a stream that depends on itself.
    fn priority(&mut self, id: u32, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        if number(payload) & 0x7fff_ffff != id {
            return Ok(None);
        }
        // A stream that has not begun cannot be reset (RFC 9113 §6.4).
        self.expect_begun(id)?;
        self.offend(id, Reason::PROTOCOL_ERROR)
    }

    /// RFC 9218 §7.1. For a stream that has not begun nothing is remembered: its request says what it wants.
    fn priority_update(&mut self, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        let id = number(payload) & 0x7fff_ffff;
        if self.role == Role::Client || id == 0 {
            return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
        }
        self.set_priority(id, &payload[4..]);
        Ok(None)
    }

    /// Takes in the priority that the peer wants a stream to have: the value of a Priority field (RFC 9218 §5).
    pub fn set_priority(&mut self, id: u32, value: &[u8]) {
        self.has_priorities = true;
        let Some(place) = self.place(id) else { return };
        let stream = &mut self.streams[place];
        stream.priority = Priority::read(value);
        if std::mem::take(&mut stream.is_queued) {
            self.queue.leave(id);
            self.requeue(place);
        }
    }

    /// A frame of a stream that has not begun (RFC 9113 §5.1, idle).
    fn expect_begun(&self, id: u32) -> Result<(), ConnectionFault> {
        // The client's streams have odd numbers, and there are no others: nothing is pushed.
        match id <= self.last && id % 2 == 1 {
            true => Ok(()),
            false => Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR)),
        }
    }

    /// Resets a stream for what the peer did on it. Who provokes that again and again is ended.
    fn offend(&mut self, id: u32, reason: Reason) -> Result<Option<Event>, ConnectionFault> {
        self.count_error()?;
        match self.place(id) {
            Some(place) if !self.streams[place].is_closed() => {
                self.reset_at(place, reason, Reset::ForError);
                Ok(Some(Event::Reset { stream: id }))
            }
            _ => {
                frame::write_reset(id, reason, &mut self.out);
                Ok(None)
            }
        }
    }

    /// The application has found a stream's message malformed (RFC 9113 §8.1.1): the stream is reset.
    ///
    /// # Errors
    /// As many streams were as may be: the connection is to end.
    pub fn reject(&mut self, block: &Block) -> Result<(), ConnectionFault> {
        // The body of a request that was not taken may be on its way.
        if self.place(block.stream).is_none() {
            self.note_unserved(block.stream, block.end);
        }
        self.offend(block.stream, Reason::PROTOCOL_ERROR).map(drop)
    }
}

/// Bodies.
impl<T> Connection<T> {
    /// Judges a DATA frame by its header: its payload is passed over where nobody wants it.
    fn begin_data(&mut self, header: &FrameHeader) -> Result<Option<Event>, ConnectionFault> {
        let (id, length, end) = (header.stream, header.length as u32, header.has(flag::END_STREAM));
        self.expect_begun(id)?;
        if header.has(flag::PADDED) && length == 0 {
            return Err(ConnectionFault::Error(Reason::FRAME_SIZE_ERROR));
        }
        let received = self.receive_window.receive(length);
        received.map_err(|_| ConnectionFault::Error(Reason::FLOW_CONTROL_ERROR))?;
        self.inbound.state = if length == 0 { State::Header } else { State::Skip(header.length) };
        let Some(place) = self.place(id) else {
            // RFC 9113 §5.1, closed.
            return match self.is_late(id, HEADER_BYTES + header.length, end) {
                true => Ok(None),
                false => self.offend(id, Reason::STREAM_CLOSED),
            };
        };
        let stream = &mut self.streams[place];
        match (stream.reset, stream.receive) {
            (Some(Reset::ByPeer(_)), _) | (None, Half::Ended) => return self.offend(id, Reason::STREAM_CLOSED),
            (Some(_), _) => {
                self.is_late(id, HEADER_BYTES + header.length, end);
                return Ok(None);
            }
            (None, Half::Head) => return self.offend(id, Reason::PROTOCOL_ERROR),
            (None, Half::Body) => {}
        }
        if stream.receive_window.receive(length).is_err() {
            return self.offend(id, Reason::FLOW_CONTROL_ERROR);
        }
        let is_padded = header.has(flag::PADDED);
        self.inbound.state = State::Data(DataFrame { stream: id, left: header.length, padding: 0, is_padded, end });
        Ok(None)
    }

    /// Takes what has come of a DATA frame's payload.
    fn take_data(&mut self, mut data: DataFrame, input: &[u8], now: u64) -> Result<Step, ConnectionFault> {
        let mut used = 0;
        if data.is_padded {
            let Some(padding) = input.first() else { return Ok(Step::Used(0)) };
            (data.is_padded, data.padding) = (false, usize::from(*padding));
            (data.left, used) = (data.left - 1, 1);
            if data.padding > data.left {
                return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
            }
            // Padding is nobody's to take.
            self.release(data.stream, data.padding + 1);
        }
        let content = data.left - data.padding;
        let bytes = used..used + content.min(input.len() - used);
        let is_whole = bytes.len() == content;
        data.left -= bytes.len();
        self.inbound.state = match is_whole {
            true if data.padding > 0 => State::Skip(data.padding),
            true => State::Header,
            false => State::Data(data),
        };
        let (used, end) = (bytes.end, data.end && is_whole);
        let event = match bytes.is_empty() && !end {
            true if is_whole => self.note_empty_data(now).map(|()| None)?,
            true => None,
            false => self.body(data.stream, bytes, end, now)?,
        };
        Ok(event.map_or(Step::Used(used), |event| Step::Event(used, event)))
    }

    fn note_empty_data(&mut self, now: u64) -> Result<(), Flood> {
        if self.role == Role::Server { self.flood.count_empty_data(now) } else { Ok(()) }
    }

    /// Body bytes of a stream, the last of them if `end`.
    fn body(&mut self, id: u32, bytes: Range<usize>, end: bool, now: u64) -> Result<Option<Event>, ConnectionFault> {
        let place = self.place(id).filter(|place| {
            let stream = &self.streams[*place];
            stream.receive == Half::Body && stream.reset.is_none()
        });
        // The rest of a frame whose stream was closed meanwhile.
        let Some(place) = place else { return Ok(None) };
        if let Err(reason) = self.streams[place].receive_body(bytes.len(), end) {
            return self.offend(id, reason);
        }
        let is_forgotten = self.streams[place].is_forgotten;
        if end {
            self.update(place, |stream| stream.receive = Half::Ended);
        }
        if is_forgotten {
            self.discard(id, bytes.len(), now);
            if end && self.role == Role::Server {
                self.acknowledge_end();
            }
            return Ok(None);
        }
        Ok(Some(Event::Data { stream: id, bytes, end }))
    }
}

/// Fates of a header block.
enum Fate {
    Request,
    Response,
    Trailers,
    /// The block is decoded for the table's sake.
    Dropped(Option<Event>),
}

/// Heads and trailers.
impl<T> Connection<T> {
    fn headers(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        at: Option<usize>,
    ) -> Result<Option<Event>, ConnectionFault> {
        let (range, is_flawed) = fragment(header, payload).ok_or(ConnectionFault::Error(Reason::PROTOCOL_ERROR))?;
        let block = &payload[range.clone()];
        if !header.has(flag::END_HEADERS) {
            let fragments = Fragments { header: *header, is_flawed, bytes: block.to_vec(), continuations: 0 };
            self.inbound.block = Some(Box::new(fragments));
            return Ok(None);
        }
        let range = at.map(|at| at + range.start..at + range.end);
        self.block(header, is_flawed, block, range)
    }

    fn continuation(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<Option<Event>, ConnectionFault> {
        let Some(mut fragments) = self.inbound.block.take() else { return Ok(None) };
        let bytes_max = self.list_bytes_max.saturating_mul(BLOCK_PER_LIST).max(PAYLOAD_BYTES);
        fragments.continuations += 1;
        fragments.bytes.extend_from_slice(payload);
        // Frames without a byte would go on for ever. Clients' are counted by the second as well.
        if fragments.bytes.len() > bytes_max || fragments.continuations > self.flood.continuations_max() {
            return Err(Flood::Continuation.into());
        }
        if !header.has(flag::END_HEADERS) {
            self.inbound.block = Some(fragments);
            return Ok(None);
        }
        let Fragments { header, is_flawed, bytes, .. } = *fragments;
        self.block(&header, is_flawed, &bytes, None)
    }

    /// A block that has come whole, in the input where there is a range. `is_flawed`: its stream depends on itself.
    fn block(
        &mut self,
        header: &FrameHeader,
        is_flawed: bool,
        block: &[u8],
        range: Option<Range<usize>>,
    ) -> Result<Option<Event>, ConnectionFault> {
        let (stream, end) = (header.stream, header.has(flag::END_STREAM));
        let fate = match self.role {
            Role::Server => self.judge_clients(stream, end, is_flawed)?,
            Role::Client => self.judge_servers(stream, end)?,
        };
        if let Fate::Dropped(event) = fate {
            self.pass_over(block)?;
            return Ok(event);
        }
        if range.is_none() {
            self.inbound.whole = block.to_vec();
        }
        let block = Block { stream, end, range };
        Ok(Some(match fate {
            Fate::Request => Event::Request(block),
            Fate::Response => Event::Response(block),
            Fate::Trailers | Fate::Dropped(_) => Event::Trailers(block),
        }))
    }

    fn judge_clients(&mut self, id: u32, end: bool, is_flawed: bool) -> Result<Fate, ConnectionFault> {
        if id.is_multiple_of(2) {
            return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
        }
        if id <= self.last {
            if self.has_skipped(id) {
                return Err(ConnectionFault::Error(Reason::PROTOCOL_ERROR));
            }
            return self.judge_trailers(id, end, is_flawed);
        }
        self.note_newest(id);
        self.flood.note_begun();
        if self.goaway_sent.is_some_and(|last| id > last) {
            // Frames behind it may have been sent before the client heard (RFC 9113 §6.8).
            self.note_unserved(id, end);
            return Ok(Fate::Dropped(None));
        }
        if self.open >= self.streams_max {
            // A client may take its stream for over with the answer.
            self.end_oldest_discard();
        }
        let reason = match is_flawed {
            _ if self.open >= self.streams_max => Reason::REFUSED_STREAM,
            true => Reason::PROTOCOL_ERROR,
            false => return Ok(Fate::Request),
        };
        self.note_unserved(id, end);
        self.offend(id, reason).map(Fate::Dropped)
    }

    fn judge_servers(&mut self, id: u32, end: bool) -> Result<Fate, ConnectionFault> {
        self.expect_begun(id)?;
        match self.stream(id) {
            Some(stream) if stream.reset.is_none() && stream.receive == Half::Head => Ok(Fate::Response),
            _ => self.judge_trailers(id, end, false),
        }
    }

    fn judge_trailers(&mut self, id: u32, end: bool, is_flawed: bool) -> Result<Fate, ConnectionFault> {
        let Some(stream) = self.stream(id) else {
            if self.is_late(id, HEADER_BYTES, end) {
                return Ok(Fate::Dropped(None));
            }
            // RFC 9113 §5.1: a stream that both sides have ended, as far as that is remembered.
            if self.flood.is_finished(id) {
                return Err(ConnectionFault::Error(Reason::STREAM_CLOSED));
            }
            return self.offend(id, Reason::STREAM_CLOSED).map(Fate::Dropped);
        };
        match (stream.reset, stream.receive) {
            (Some(Reset::ByPeer(_)), _) | (None, Half::Ended) => {
                self.offend(id, Reason::STREAM_CLOSED).map(Fate::Dropped)
            }
            (Some(_), _) => {
                self.is_late(id, HEADER_BYTES, end);
                Ok(Fate::Dropped(None))
            }
            // RFC 9113 §8.1: there is nothing between a head and trailers but the body.
            (None, _) if !end || is_flawed => self.offend(id, Reason::PROTOCOL_ERROR).map(Fate::Dropped),
            (None, _) => Ok(Fate::Trailers),
        }
    }

    /// Decodes a block that nobody reads.
    fn pass_over(&mut self, block: &[u8]) -> Result<(), ConnectionFault> {
        let limits = ListLimits { list_bytes: 0, fields: 0 };
        let decoded = self.decoder.decode(block, &mut Vec::new(), &limits, &mut |_: &[u8], _| {});
        decoded.map(drop).map_err(|_| ConnectionFault::Error(Reason::COMPRESSION_ERROR))
    }

    /// Decodes a block: each field is written behind `text` as a line, and handed to `sink` with that.
    ///
    /// # Errors
    /// The connection is to end.
    pub fn decode(
        &mut self,
        block: &Block,
        input: &[u8],
        text: &mut Vec<u8>,
        fields_max: usize,
        sink: &mut impl FnMut(&[u8], Field),
    ) -> Result<Decoded, ConnectionFault> {
        let whole = std::mem::take(&mut self.inbound.whole);
        let bytes = block.range.clone().map_or(&whole[..], |range| &input[range]);
        let limits = ListLimits { list_bytes: self.list_bytes_max, fields: fields_max };
        let decoded = self.decoder.decode(bytes, text, &limits, sink);
        decoded.map_err(|_| ConnectionFault::Error(Reason::COMPRESSION_ERROR))
    }

    /// The head of a response has been read: the last one if `is_last`, and the whole of it if `end`.
    pub fn responds(&mut self, id: u32, is_last: bool, end: bool) {
        if let Some(place) = self.place(id).filter(|_| is_last) {
            self.update(place, |stream| stream.receive = Half::after_head(end));
        }
    }

    /// The body that comes, or has come, on a stream is so long: 0 where there can be none, whatever the head says.
    ///
    /// # Errors
    /// The body was not so long, on one stream too many.
    pub fn expect(&mut self, id: u32, bytes: u64) -> Result<(), ConnectionFault> {
        let Some(place) = self.place(id) else { return Ok(()) };
        let stream = &mut self.streams[place];
        stream.expected = Some(bytes);
        match stream.check_length(stream.is_received()) {
            Ok(()) => Ok(()),
            Err(reason) => self.break_off(place, reason),
        }
    }

    /// Trailers have been read: the message is whole.
    ///
    /// # Errors
    /// The body was shorter than it should have been, on one stream too many.
    pub fn trails(&mut self, id: u32) -> Result<(), ConnectionFault> {
        let Some(place) = self.place(id) else { return Ok(()) };
        match self.streams[place].check_length(true) {
            Ok(()) => {
                self.update(place, |stream| stream.receive = Half::Ended);
                Ok(())
            }
            Err(reason) => self.break_off(place, reason),
        }
    }

    /// Breaks off a stream whose message is malformed, though both sides may have ended it: what has come of it is not
    /// whole.
    fn break_off(&mut self, place: usize, reason: Reason) -> Result<(), ConnectionFault> {
        self.count_error()?;
        let stream = &mut self.streams[place];
        match (stream.reset, stream.is_closed()) {
            (None, true) => stream.reset = Some(Reset::ForError(reason)),
            (None, false) => self.reset_at(place, reason, Reset::ForError),
            (Some(_), _) => {}
        }
        Ok(())
    }
}

/// Finds a HEADERS frame's part of its block, and whether its stream depends on itself (RFC 7540 §5.3.1). `None` for a
/// frame that is not what it says.
fn fragment(header: &FrameHeader, payload: &[u8]) -> Option<(Range<usize>, bool)> {
    let (mut start, mut padding, mut is_flawed) = (0, 0, false);
    if header.has(flag::PADDED) {
        padding = usize::from(*payload.first()?);
        start = 1;
    }
    if header.has(flag::PRIORITY) {
        let depends = payload.get(start..start + 5)?;
        is_flawed = number(depends) & 0x7fff_ffff == header.stream;
        start += 5;
    }
    let end = payload.len().checked_sub(padding).filter(|end| *end >= start)?;
    Some((start..end, is_flawed))
}

/// The four bytes that a payload begins with, as a number.
fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
