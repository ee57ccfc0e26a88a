//! A request in progress, and what is noted of it for the log and the metrics.

use std::any::Any;
use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use propylon_config::{Config, Listener};
use propylon_http::fault::Fault;
use propylon_http::h1::{RequestHead, ResponseHead, Version};
use propylon_net::buffer::Buffer;
use propylon_steps::pace::Pace;
use propylon_steps::request_id::{self, ID_BYTES_MAX};
use propylon_steps::response::{Asked, kept_trailers};
use propylon_steps::split::Split;
use propylon_steps::{Changed, RequestChange, ResponseChange, Steps};

use crate::copies::Passing;
use crate::trace::Trace;

/// A request in progress and what is noted of it. Reused, so that a request allocates nothing of its own.
pub struct Request {
    pub head: RequestHead,
    /// The head's bytes, which its offsets refer to once it is out of the inbox.
    pub text: Vec<u8>,
    pub response: ResponseHead,
    pub started: Instant,
    /// Part of the body has left the inbox: where the next request begins is known to the upload alone.
    pub body_begun: bool,
    /// All of a body that had begun has left the inbox: the next request is what follows.
    pub body_taken: bool,
    /// Lines of the engine's own may go behind those of its head: of its trace, or of its route's changes.
    pub adds_lines: bool,
    /// Whether the response may be changed: by a cookie that leads back to its server, or by its route.
    pub changes_response: bool,
    pub trace: Trace,
    /// Steps of its route, while they are taken; none if it has none.
    pub steps: Option<Taken>,
    /// Text of the request's ID, as far as [`Note::id_bytes`] says.
    id_text: [u8; ID_BYTES_MAX],
    /// Lines that are added to its response's head, where [`Request::changes_response`] says that there may be some.
    pub lines: Vec<u8>,
    /// Whether the response does not say Via.
    pub hides_via: bool,
    /// Result of its route's changes, while there are any.
    pub changed: Option<Box<Changed>>,
    /// Memory for that, of an earlier request.
    pub changed_kept: Option<Box<Changed>>,
    /// Body that is held, as the exchange knows it, while a route's steps are taken.
    pub held: Option<Rc<dyn Any>>,
    pub note: Note,
}

/// Steps of a request's route, with the configuration that they are of: the one that the request has begun with.
pub struct Taken {
    pub steps: Rc<Steps>,
    pub config: Rc<Kept>,
    /// Index of the request's listener; `None` where the configuration does not have it any more.
    pub listener: Option<usize>,
    /// Rings when the server is late that has the request, where its route is hedged.
    pub alarm: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Buckets of its route's pace and the request's key in them, where bodies share the pace.
    pub pace: Option<(Arc<Pace>, u64)>,
    /// Body of the request as it is kept for copies that have it later.
    pub passing: Option<Rc<RefCell<Vec<Passing>>>>,
}

/// A configuration that requests keep while their steps are taken. An `Rc` of it is a count of the core's own, where the
/// one of the `Arc` would be written by all cores.
pub struct Kept(pub Arc<Config>);

impl Deref for Kept {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.0
    }
}

impl Deref for Taken {
    type Target = Steps;

    fn deref(&self) -> &Steps {
        &self.steps
    }
}

/// Facts of a request for the log and the metrics.
#[derive(Clone, Debug, Default)]
pub struct Note {
    /// 0 while no response has begun.
    pub status: u16,
    /// Index of the route; `None` while there is none.
    pub route: Option<usize>,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// Bytes of heads, which are among `bytes_sent`.
    pub heads_sent: u64,
    pub head_us: u64,
    /// Spent in a backend's line.
    pub queue_us: Option<u64>,
    pub connect_us: Option<u64>,
    pub first_byte_us: Option<u64>,
    /// Index of the backend, then of the server in it.
    pub backend: Option<usize>,
    pub server: Option<usize>,
    /// Index of the server that the client's cookie names.
    pub cookie_server: Option<usize>,
    pub attempts: u32,
    pub reused: bool,
    pub fault: Option<Fault>,
    /// Length of the request's ID; 0 where it has none.
    pub id_bytes: u8,
}

impl Note {
    /// Counts a head, and what of the body is sent with it.
    pub fn count_head(&mut self, head: usize, body: usize) {
        self.heads_sent += head as u64;
        self.bytes_sent += (head + body) as u64;
    }
}

impl Note {
    /// Whether the head of a server's response has come.
    pub fn has_head(&self) -> bool {
        self.first_byte_us.is_some()
    }
}

impl Default for Request {
    fn default() -> Request {
        Request {
            head: RequestHead::default(),
            text: Vec::with_capacity(2048),
            response: ResponseHead::default(),
            started: Instant::now(),
            body_begun: false,
            body_taken: false,
            adds_lines: false,
            changes_response: false,
            trace: Trace::Off,
            steps: None,
            id_text: [0; ID_BYTES_MAX],
            lines: Vec::new(),
            hides_via: false,
            changed: None,
            changed_kept: None,
            held: None,
            note: Note::default(),
        }
    }
}

impl Request {
    /// Gets ready for the next head, whose first byte is there (or is being waited for) now.
    pub fn begin(&mut self, now: Instant) {
        self.head.clear();
        self.text.clear();
        self.started = now;
        (self.body_begun, self.body_taken, self.adds_lines) = (false, false, false);
        (self.changes_response, self.hides_via) = (false, false);
        self.trace = Trace::Off;
        (self.steps, self.changed) = (None, None);
        self.note = Note::default();
    }

    /// Milliseconds that are left to the whole request, rounded up; `None` where its route sets no limit.
    pub fn millis_left(&self) -> Option<u64> {
        let limit = self.steps.as_deref()?.time_limit?;
        Some(limit.saturating_sub(self.started.elapsed()).as_micros().div_ceil(1_000) as u64)
    }

    /// Whether its route has such a status met with another attempt.
    pub fn is_asked_again(&self, status: u16) -> bool {
        let rules = self.steps.as_deref().and_then(|steps| steps.retries.as_ref());
        rules.is_some_and(|rules| rules.takes_status(status))
    }

    /// Ends the wait after which its server is late.
    #[cold]
    pub fn silence_alarm(&mut self) {
        if let Some(taken) = &mut self.steps {
            taken.alarm = None;
        }
    }

    /// Longest body that it may have, in bytes; `None` where its route sets no limit.
    pub fn body_limit(&self) -> Option<u64> {
        self.steps.as_deref()?.body_limit
    }

    /// Body that it has in place of the client's, where its route has taken that.
    pub fn own_body(&self) -> Option<&[u8]> {
        self.changed.as_ref()?.call.as_ref()?.body.as_deref()
    }

    /// Path that the client has asked for, in canonical form, whatever its route makes of it.
    pub fn client_path(&self) -> &[u8] {
        let head = (&self.head, &self.text[..]);
        self.changed.as_ref().map_or_else(|| self.head.path(&self.text), |changed| changed.path(head))
    }

    /// ID of the request: printable ASCII that needs no escape anywhere. `None` where its listener asks for none.
    pub fn id(&self) -> Option<&str> {
        id(&self.id_text, self.note.id_bytes)
    }

    /// A request about another one, with its ID.
    pub fn about(other: &Request, head: RequestHead, text: Vec<u8>) -> Request {
        let note = Note { id_bytes: other.note.id_bytes, ..Note::default() };
        Request { head, text, id_text: other.id_text, note, ..Request::default() }
    }

    /// The request as far as its response's lines go by it, the response, and lines of ours.
    pub fn asked<'a>(&'a mut self, listener: &'a Listener) -> (Asked<'a>, &'a mut ResponseHead, &'a mut Vec<u8>) {
        let Request { head, text, steps, changed, response, lines, id_text, note, .. } = self;
        let change = response_change(steps.as_deref(), changed.as_deref()).map(|change| &**change);
        let id = id(id_text, note.id_bytes);
        let asked = Asked { listener, head, text, id, steps: steps.as_deref(), change };
        (asked, response, lines)
    }

    /// Gives the request its ID, where its listener wants one.
    pub fn identify(&mut self, listener: &Listener, peer: impl FnOnce() -> IpAddr, new: impl FnOnce() -> [u8; 36]) {
        let head = (&self.head.fields, &self.text[..]);
        self.note.id_bytes = request_id::write(listener, peer, head, new, &mut self.id_text);
    }

    /// Whether trailers stay here: a server that merges them into the head must not be led by one with a name that the
    /// route writes or removes.
    /// So may each side of the route: a body that is held is read before one is chosen.
    pub fn drops_trailers(&self) -> bool {
        self.steps.as_ref().is_some_and(|steps| {
            steps.request.as_ref().is_some_and(RequestChange::changes_fields)
                || steps.split.as_ref().is_some_and(Split::changes_fields)
        })
    }

    /// Changes of a server's response: those of its side, which have the route's in them, or else the route's.
    pub fn response_change(&self) -> Option<&Rc<ResponseChange>> {
        response_change(self.steps.as_deref(), self.changed.as_deref())
    }

    /// Whether its body is a tunnel's: a stream of HTTP/2 that is to be one (RFC 8441). Over HTTP/1.1 the body comes
    /// before the server switches.
    pub fn asks_for_tunnel(&self) -> bool {
        self.head.upgrade.is_some() && self.head.version == Version::Http2
    }

    /// Lines of its response's trailers, but for those that the head may not have.
    pub fn kept_trailers(&self, listener: &Listener, lines: Vec<u8>) -> Vec<u8> {
        let change = self.response_change().map(|change| &**change);
        kept_trailers((listener, self.steps.as_deref()), change, lines)
    }

    /// Moves the head's bytes out of the inbox: its body comes next there. `waited`: they have not come all at once.
    pub fn take_head(&mut self, inbox: &mut Buffer, waited: bool) {
        let length = self.head.length;
        self.text.extend_from_slice(&inbox.readable()[..length]);
        inbox.consume(length);
        self.note.bytes_received = length as u64;
        self.note.head_us = if waited { self.started.elapsed().as_micros() as u64 } else { 0 };
    }
}

/// As [`Request::response_change`], of a request's parts.
pub fn response_change<'a>(steps: Option<&'a Steps>, changed: Option<&'a Changed>) -> Option<&'a Rc<ResponseChange>> {
    match changed.and_then(|changed| changed.side.as_ref()) {
        Some(side) => side.response.as_ref(),
        None => steps?.response.as_ref(),
    }
}

fn id(text: &[u8], length: u8) -> Option<&str> {
    if length == 0 { None } else { std::str::from_utf8(&text[..usize::from(length)]).ok() }
}

/// Fate of a connection when a request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Another request may come, or the rest of one that has begun.
    Next,
    /// Close in order: what is staged is sent first.
    Close,
    /// Close in order, but hear the client out for a moment so that it gets to read our answer.
    Linger,
    /// The response is broken off: the client must not take it for whole.
    Abort,
    /// The client sent no request but the preface of HTTP/2.
    Http2,
    /// Nothing was answered: the backend has no server for the request, and its route names another backend.
    Fallback,
}
