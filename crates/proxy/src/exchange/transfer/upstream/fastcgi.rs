//! A server's side of FastCGI: a connection that carries one request at a time, in records.

use std::io::IoSlice;
use std::mem::take;
use std::task::{Context, Poll, ready};

use propylon_fastcgi::answer::{self, Head};
use propylon_fastcgi::params::Params;
use propylon_fastcgi::records::{self, Decoder, Event, Outcome};
use propylon_http::fault::Fault;
use propylon_http::h1::{Asked, Method, Parsed, RequestBody, ResponseBody, ResponseHead, parse_response};
use propylon_net::budget;
use propylon_net::buffer::{Buffer, LARGE_BYTES};

use super::part::{Part, RESPONSE_LIMITS, Written, bad_head};
use crate::exchange::transfer::stop::{Stop, server_fault};
use crate::fault::{Attempt, Repeatable};
use crate::services::Services;
use crate::upstream::connection::ServerConnection;

/// Bytes that are kept of what an application complains about in one request.
const COMPLAINT_BYTES_MAX: usize = 1024;
/// Interim response to a client that waits with its body until it is told to send it.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

pub struct FastCgi {
    pub connection: Box<ServerConnection>,
    /// Records on their way to the server; so much of `piece` as `piece_left` follows them.
    outbox: Buffer,
    piece: Buffer,
    /// Bytes of `piece` that belong to the record whose header has been staged.
    piece_left: usize,
    /// The end of the body follows.
    ends: bool,
    /// Bytes of a body of known length that have not been staged.
    body_left: u64,
    /// Fault of a request that cannot be sent, for its client to be told.
    refused: Option<Fault>,
    /// The client waits to be told to send its body.
    owes_continue: bool,
    /// Whether the server keeps the connection.
    keeps: bool,
    /// Records that have come and nobody has taken yet.
    answer: Buffer,
    decoder: Decoder,
    /// Head of the response as its script writes it, and then as HTTP does.
    head: Head,
    head_text: Vec<u8>,
    /// The rest of the response's body.
    body: Body,
    outcome: Option<Outcome>,
    /// Bytes have come that belong to no body.
    excess: bool,
    /// Some of them were not even records: the connection is of no use any more.
    is_spoilt: bool,
    /// Whether the response may have no body, whatever its script writes.
    is_head: bool,
    /// The application's complaints, cut short.
    pub complaint: Vec<u8>,
}

/// The body of a response, as its head has announced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Length(u64),
    /// Up to the end of the request.
    Open,
    Done,
}

/// A request as it is to be sent.
pub struct Opening {
    /// Beginning of the request, or why there is none.
    pub params: Result<Params, Fault>,
    /// Body of the request, whose length is known by now.
    pub body: RequestBody,
    pub expects_continue: bool,
    pub keeps: bool,
}

impl FastCgi {
    pub fn new(connection: Box<ServerConnection>, core: &Services, opening: Opening) -> FastCgi {
        let Opening { params, body, expects_continue, keeps } = opening;
        let (mut outbox, mut refused, mut body_left) = (Buffer::default(), None, 0);
        match (params, body) {
            (Err(fault), _) => refused = Some(fault),
            (Ok(_), RequestBody::Chunked) => refused = Some(Fault::LengthRequired),
            (Ok(params), RequestBody::None | RequestBody::Length(_)) => {
                let length = if let RequestBody::Length(length) = body { Some(length) } else { None };
                body_left = length.unwrap_or(0);
                core.buffers.equip(&mut outbox);
                outbox.extend(&params.end(length));
                if body_left == 0 {
                    outbox.extend(&records::BODY_END);
                }
            }
        }
        FastCgi {
            connection,
            outbox,
            piece: Buffer::default(),
            piece_left: 0,
            ends: false,
            body_left,
            owes_continue: expects_continue && refused.is_none(),
            refused,
            keeps,
            answer: Buffer::default(),
            decoder: Decoder::default(),
            head: Head::default(),
            head_text: Vec::new(),
            body: Body::Done,
            outcome: None,
            excess: false,
            is_spoilt: false,
            is_head: false,
            complaint: Vec::new(),
        }
    }

    pub fn stage(&mut self, piece: Buffer) {
        // The last of the body goes with its end.
        self.body_left = self.body_left.saturating_sub(piece.len() as u64);
        self.ends = self.body_left == 0;
        self.piece = piece;
    }

    /// Sends what is staged.
    pub fn poll_send(&mut self, context: &mut Context<'_>, core: &Services) -> (Written, Poll<Result<(), ()>>) {
        let mut written = Written::default();
        if self.refused.is_some() {
            // Said when the response is asked for, which may have been before this.
            context.waker().wake_by_ref();
            return (written, Poll::Pending);
        }
        loop {
            if self.piece.is_empty() && take(&mut self.ends) {
                core.buffers.equip(&mut self.outbox);
                self.outbox.extend(&records::BODY_END);
            }
            if self.piece_left == 0 && !self.piece.is_empty() {
                self.piece_left = self.piece.len().min(records::PIECE_BYTES_MAX);
                core.buffers.equip(&mut self.outbox);
                self.outbox.extend(&records::body_header(self.piece_left));
            }
            let head = self.outbox.len();
            if head + self.piece_left == 0 {
                core.buffers.release(&mut self.outbox);
                core.buffers.release(&mut self.piece);
                return (written, self.connection.stream.poll_flush(context, &core.buffers).map_err(drop));
            }
            let slices =
                [IoSlice::new(self.outbox.readable()), IoSlice::new(&self.piece.readable()[..self.piece_left])];
            let slices = if head == 0 { &slices[1..] } else { &slices[..] };
            let Poll::Ready(result) = self.connection.stream.poll_write(context, &core.buffers, slices) else {
                return (written, Poll::Pending);
            };
            let Some(count) = result.ok().filter(|count| *count > 0) else { return (written, Poll::Ready(Err(()))) };
            let of_head = count.min(head);
            self.outbox.consume(of_head);
            self.piece.consume(count - of_head);
            self.piece_left -= count - of_head;
            written.all += count;
            written.body += count - of_head;
        }
    }

    /// Whether the request's head is to be sent, and nothing behind it yet.
    pub fn has_head_alone(&self) -> bool {
        !self.outbox.is_empty() && self.piece.is_empty() && !self.ends
    }

    /// Tells the server that nobody waits for its answer any more, where that can be said between two records.
    pub fn abort(&mut self, context: &mut Context<'_>, core: &Services) {
        if self.outbox.is_empty() && self.piece_left == 0 && self.refused.is_none() {
            let said = [IoSlice::new(&records::ABORT)];
            let _ = self.connection.stream.poll_write(context, &core.buffers, &said);
            let _ = self.connection.stream.poll_flush(context, &core.buffers);
        }
    }

    pub fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        core: &Services,
        asked: Asked<'_>,
        answered: &mut bool,
        response: &mut ResponseHead,
    ) -> Poll<Result<(), Stop>> {
        if let Some(fault) = self.refused {
            return Poll::Ready(Err(Stop::Client(fault)));
        }
        if take(&mut self.owes_continue) {
            self.head_text = CONTINUE.to_vec();
            return Poll::Ready(self.parse_head(asked, response));
        }
        loop {
            if !self.answer.is_empty() {
                *answered = true;
                if self.take_head(context).map_err(|flaw| self.failed(&flaw))? {
                    // A whole body has a length, whether its script has said so or not.
                    self.is_head = asked.method == Method::Head;
                    let whole = self.decoder.rest(self.answer.readable()).filter(|_| !self.is_head);
                    self.head_text = self.head.translate(whole).map_err(|flaw| self.failed(&flaw.into()))?;
                    return Poll::Ready(self.parse_head(asked, response));
                }
                if let Some(outcome) = self.outcome {
                    return Poll::Ready(Err(self.unanswered(outcome)));
                }
            }
            match ready!(self.connection.stream.poll_fill(context, &core.buffers, &mut self.answer)) {
                Ok(count) if count > 0 => {}
                _ => {
                    let repeatable = if *answered { Repeatable::No } else { Repeatable::Unanswered };
                    return Poll::Ready(Err(Stop::Server(Attempt::new(Fault::ClosedBeforeResponse, repeatable))));
                }
            }
        }
    }

    /// Takes the response's head out of what is here. True when it is whole.
    fn take_head(&mut self, context: &mut Context<'_>) -> Result<bool, Flaw> {
        let mut records = 0;
        while !self.answer.is_empty() {
            records += 1;
            match self.decoder.next(self.answer.readable())? {
                Event::Output { start, end } => {
                    let here = &self.answer.readable()[start..end];
                    let length = self.head.take(here, RESPONSE_LIMITS.head_bytes)?;
                    let left = length.map_or(0, |length| here.len() - length);
                    self.decoder.put_back(left);
                    self.answer.consume(end - left);
                    if length.is_some() {
                        return Ok(true);
                    }
                }
                event => {
                    self.note(&event);
                    self.answer.consume(consumed(&event));
                }
            }
        }
        budget::charge_chunks(context, records);
        Ok(false)
    }

    /// Takes note of what is no part of the response.
    fn note(&mut self, event: &Event) {
        match *event {
            Event::Complaint { start, end } => {
                let room = COMPLAINT_BYTES_MAX - self.complaint.len();
                let here = &self.answer.readable()[start..end];
                self.complaint.extend_from_slice(&here[..here.len().min(room)]);
            }
            Event::End { outcome, .. } => {
                self.outcome = Some(outcome);
                if self.body == Body::Open && outcome == Outcome::Complete {
                    self.body = Body::Done;
                }
            }
            Event::OutputEnd { .. } if self.body == Body::Open => self.body = Body::Done,
            Event::OutputEnd { .. } | Event::NeedMore { .. } | Event::Output { .. } => {}
        }
    }

    fn parse_head(&mut self, asked: Asked<'_>, response: &mut ResponseHead) -> Result<(), Stop> {
        // A script cannot switch protocols: a response that says so is refused as one that nobody has asked for.
        let asked = Asked { upgrade: None, ..asked };
        match parse_response(&self.head_text, asked, &RESPONSE_LIMITS, response) {
            Ok(Parsed::Complete) => Ok(()),
            Ok(Parsed::Partial) => Err(server_fault(Fault::BadResponse)),
            Err(reject) => Err(bad_head(&reject)),
        }
    }

    fn failed(&self, flaw: &Flaw) -> Stop {
        log::debug!("a server's response was refused: {flaw}");
        server_fault(match flaw {
            Flaw::Head(answer::Flaw::TooLong) => Fault::ResponseHeadTooLarge,
            _ => Fault::BadResponse,
        })
    }

    /// Fault of a request that has ended without the head of a response.
    fn unanswered(&self, outcome: Outcome) -> Stop {
        match outcome {
            Outcome::Refused if self.head.is_empty() => {
                Stop::Server(Attempt::new(Fault::ApplicationOverloaded, Repeatable::Unsent))
            }
            _ => server_fault(Fault::BadResponse),
        }
    }

    pub fn head_text(&self) -> &[u8] {
        &self.head_text
    }

    /// Takes note of the body that follows the head; false where none does.
    pub fn begin_body(&mut self, body: ResponseBody) -> bool {
        self.body = match body {
            ResponseBody::None | ResponseBody::Length(0) => Body::Done,
            ResponseBody::Length(length) => Body::Length(length),
            ResponseBody::Chunked | ResponseBody::UntilClose if self.outcome.is_some() => Body::Done,
            ResponseBody::Chunked | ResponseBody::UntilClose => Body::Open,
        };
        !self.is_read()
    }

    /// Whether all of the response's body has been taken.
    pub fn is_read(&self) -> bool {
        self.body == Body::Done
    }

    /// Whether a part of the body is here already.
    pub fn has_part(&self) -> bool {
        !self.answer.is_empty() && self.decoder.is_at_output()
    }

    pub fn poll_part(&mut self, context: &mut Context<'_>, core: &Services, room: usize) -> Poll<Result<Part, Stop>> {
        loop {
            if self.is_read() {
                return Poll::Ready(Ok(Part { data: None, end: Some(Vec::new()) }));
            }
            if !self.answer.is_empty() {
                let part = self.take_part(context)?;
                if part.data.is_some() || part.end.is_some() {
                    return Poll::Ready(Ok(part));
                }
            }
            ready!(self.poll_room(context, core, room));
            match ready!(self.connection.stream.poll_fill(context, &core.buffers, &mut self.answer)) {
                Ok(count) if count > 0 => {}
                _ => return Poll::Ready(Err(server_fault(Fault::BodyCutShort))),
            }
        }
    }

    fn poll_room(&mut self, context: &mut Context<'_>, core: &Services, room: usize) -> Poll<()> {
        if self.answer.capacity() >= room {
            return Poll::Ready(());
        }
        if self.answer.capacity() == 0 {
            // An error shows again at the read.
            let _ = ready!(self.connection.stream.poll_readable(context));
        }
        match room > LARGE_BYTES {
            true => core.buffers.widen(&mut self.answer),
            false => core.buffers.enlarge(&mut self.answer),
        }
        Poll::Ready(())
    }

    /// Takes the framing out where the data lies.
    fn take_part(&mut self, context: &mut Context<'_>) -> Result<Part, Stop> {
        let (mut at, mut length, mut records) = (0, 0, 0);
        while at < self.answer.len() {
            records += 1;
            let event = match self.decoder.next(&self.answer.readable()[at..]) {
                Ok(event) => event,
                Err(_) if self.is_read() => {
                    // The response is whole: what comes behind it is nothing to the client.
                    (self.excess, self.is_spoilt) = (true, true);
                    break;
                }
                Err(flaw) => return Err(self.failed(&flaw.into())),
            };
            match event {
                Event::Output { start, end } => {
                    let here = end - start;
                    let wanted = match &mut self.body {
                        Body::Length(left) => {
                            let wanted = (here as u64).min(*left);
                            *left -= wanted;
                            wanted as usize
                        }
                        Body::Open => here,
                        Body::Done => 0,
                    };
                    if self.body == Body::Length(0) {
                        self.body = Body::Done;
                    }
                    // Bytes behind the length that a script has announced are nobody's.
                    self.excess |= wanted < here;
                    let (start, bytes) = (at + start, self.answer.readable_mut());
                    bytes.copy_within(start..start + wanted, length);
                    length += wanted;
                    at += end;
                }
                Event::Complaint { start, end } => {
                    self.note(&Event::Complaint { start: at + start, end: at + end });
                    at += end;
                }
                event => {
                    self.note(&event);
                    at += consumed(&event);
                }
            }
        }
        budget::charge_chunks(context, records);
        self.answer.truncate(length);
        if !self.is_read() && self.outcome.is_some() {
            // A body that its server does not call whole is none.
            return Err(server_fault(Fault::BodyCutShort));
        }
        let data = match length {
            0 => {
                self.answer.consume(0);
                None
            }
            _ => Some(take(&mut self.answer)),
        };
        Ok(Part { data, end: self.is_read().then(Vec::new) })
    }

    /// Polls for the end of a request whose response is read. Ready with false where the server has closed, or broken
    /// the protocol.
    pub fn poll_end(&mut self, context: &mut Context<'_>, core: &Services) -> Poll<bool> {
        if self.is_spoilt {
            return Poll::Ready(false);
        }
        loop {
            while !self.answer.is_empty() {
                let Ok(event) = self.decoder.next(self.answer.readable()) else {
                    self.excess = true;
                    return Poll::Ready(false);
                };
                self.excess |= matches!(event, Event::Output { .. }) && !self.is_head;
                self.note(&event);
                self.answer.consume(consumed(&event));
            }
            if self.outcome.is_some() {
                return Poll::Ready(true);
            }
            match ready!(self.connection.stream.poll_fill(context, &core.buffers, &mut self.answer)) {
                Ok(count) if count > 0 => {}
                _ => return Poll::Ready(false),
            }
        }
    }

    /// Bytes have come behind the response.
    pub fn has_excess(&self) -> bool {
        self.excess
    }

    /// Gives memory back, and the connection: with whether it can carry another request, as far as the server is
    /// concerned.
    pub fn end(mut self, core: &Services) -> (Box<ServerConnection>, bool) {
        let is_clean = self.keeps
            && self.outcome == Some(Outcome::Complete)
            && self.outbox.is_empty()
            && self.piece.is_empty()
            && !self.ends
            && !self.is_spoilt
            && self.answer.is_idle();
        core.buffers.release(&mut self.outbox);
        core.buffers.release(&mut self.piece);
        core.buffers.release(&mut self.answer);
        (self.connection, is_clean)
    }
}

/// A server has broken the protocol, or its script the rules of CGI.
enum Flaw {
    Record(records::Flaw),
    Head(answer::Flaw),
}

impl From<records::Flaw> for Flaw {
    fn from(flaw: records::Flaw) -> Flaw {
        Flaw::Record(flaw)
    }
}

impl From<answer::Flaw> for Flaw {
    fn from(flaw: answer::Flaw) -> Flaw {
        Flaw::Head(flaw)
    }
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Flaw::Record(flaw) => flaw.fmt(f),
            Flaw::Head(flaw) => flaw.fmt(f),
        }
    }
}

/// Bytes of the input that an event is done with.
fn consumed(event: &Event) -> usize {
    match *event {
        Event::NeedMore { consumed } | Event::OutputEnd { consumed } | Event::End { consumed, .. } => consumed,
        Event::Output { end, .. } | Event::Complaint { end, .. } => end,
    }
}
