//! The rules by which requests may fail: pure rules over what clients saw, what servers wrote down, and what was done.
//!
//! The rules are the manual's promises, read by somebody suspicious. A failure that is not excused by name is a
//! violation: there is no rate of errors below which all is well.

#[cfg(test)]
mod tests;

use crate::clock::Micros;
use crate::journal::{Arrival, Progress};
use crate::timeline::{Fault, Run, ServerId, Timeline, Window};
use std::collections::BTreeSet;
use std::fmt;

/// A connection that was cut may lie in a pool for so long before somebody finds out.
pub const CUT_ECHO: Micros = 1_500_000;
/// So long after its last fault a server may still be held for down, or be ejected.
pub const WELL_AFTER: Micros = 6_000_000;
/// Tolerance at the edge of a moment: something sent just before it may arrive just after it, by two clocks'
/// readings on one machine.
const EDGE: Micros = 50_000;

/// The kind of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// GET on a connection of its own.
    Fresh,
    /// GET on a connection of its own, whose handshake a key server has signed.
    Keyed,
    /// GET on a connection that is kept.
    Kept,
    /// GET on a stream of HTTP/2.
    Stream,
    /// POST on a kept connection; its body comes with the head.
    Post,
    /// POST on a stream of HTTP/2.
    StreamPost,
    /// A large body, slowly, to the client.
    Download,
    /// A POST whose body takes seconds to send.
    Upload,
    /// Messages that come back, both ways on one connection.
    WebSocket,
    /// The same without HTTP.
    Relay,
    /// GET by the route that comes and goes.
    Route,
    /// A client that leaves, or stalls, half-way through a GET, or before it is clear what it wants.
    Misbehaving,
    /// The same of a POST.
    MisbehavingPost,
}

impl Kind {
    pub const ALL: [Kind; 13] = [
        Kind::Fresh,
        Kind::Keyed,
        Kind::Kept,
        Kind::Stream,
        Kind::Post,
        Kind::StreamPost,
        Kind::Download,
        Kind::Upload,
        Kind::WebSocket,
        Kind::Relay,
        Kind::Route,
        Kind::Misbehaving,
        Kind::MisbehavingPost,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fresh => "GET, new connection",
            Self::Keyed => "GET, key server",
            Self::Kept => "GET, kept connection",
            Self::Stream => "GET, HTTP/2",
            Self::Post => "POST",
            Self::StreamPost => "POST, HTTP/2",
            Self::Download => "long download",
            Self::Upload => "slow upload",
            Self::WebSocket => "WebSocket",
            Self::Relay => "TCP relay",
            Self::Route => "GET, changing route",
            Self::Misbehaving => "misbehaving client, GET",
            Self::MisbehavingPost => "misbehaving client, POST",
        }
    }

    /// Whether the request may be carried out twice (RFC 9110 §9.2.2). A relay is repeated only while nothing was
    /// sent, which is as far as its own opening goes.
    fn is_idempotent(self) -> bool {
        !matches!(self, Self::Post | Self::StreamPost | Self::Upload | Self::MisbehavingPost)
    }

    fn is_stream(self) -> bool {
        matches!(self, Self::Stream | Self::StreamPost)
    }

    /// Whether the request lasts for as long as its client likes.
    fn is_long(self) -> bool {
        matches!(
            self,
            Self::Download | Self::Upload | Self::WebSocket | Self::Relay | Self::Misbehaving | Self::MisbehavingPost
        )
    }

    /// Through the listeners that count requests.
    pub fn is_http(self) -> bool {
        self != Self::Relay
    }
}

/// How far a client had come when its connection, or its stream, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Connect,
    Handshake,
    /// No byte of an answer.
    Unanswered,
    /// A part of an answer.
    Answering,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Closed,
    Reset,
    /// The connection takes no further streams, and this one was not looked at.
    GoAway,
}

/// The outcome of a request, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer, whole, and to the byte what it should be.
    Served,
    /// A server's own answer, whole: its status.
    Failed(u16),
    /// The engine's own answer: status and reason.
    Refused(u16, String),
    Broken(Stage, How),
    /// Nobody may ever see this, whatever was done.
    Wrong(String),
    /// The client's own doing.
    Abandoned,
    /// The client's patience was over.
    Late,
}

/// One request as its client tells it.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    pub id: u64,
    pub kind: Kind,
    /// Which connection, and how many requests it had carried before.
    pub connection: u32,
    pub ordinal: u32,
    /// Before anything of it was sent, the connection's making included.
    pub begun: Micros,
    pub ended: Micros,
    /// Server that answered, by the answer's own word.
    pub server: Option<(ServerId, Run)>,
    /// Status of any answer whose head was seen.
    pub status: Option<u16>,
    pub outcome: Outcome,
}

/// Why a request was allowed to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excuse {
    /// The server was cut, and had a request that may not be repeated.
    CutNotRepeatable,
    /// The request could be repeated, and every repeat may have met a fault as well.
    CutEverywhere,
    /// The answer had begun when its server was cut.
    CutAnswering,
    NobodyToConnectTo,
    /// The engine may have thought that no server was open.
    NobodyOpen,
    ServerHangs,
    ServerFails,
    /// The connection was about to end because its terms had changed, and the request was not looked at.
    NotLookedAt,
    RouteGone,
    /// The engine counted a repeat that the budget did not allow.
    OutOfRepeats,
    MachineStalled,
    OwnDoing,
}

impl Excuse {
    pub fn name(self) -> &'static str {
        match self {
            Self::CutNotRepeatable => "its server was cut, and it may not be repeated",
            Self::CutEverywhere => "servers were cut wherever it may have been repeated",
            Self::CutAnswering => "its server was cut while it answered",
            Self::NobodyToConnectTo => "no connect may have succeeded",
            Self::NobodyOpen => "no server may have been open",
            Self::ServerHangs => "its server was stopped",
            Self::ServerFails => "its server answered 500",
            Self::NotLookedAt => "GOAWAY at a change; it reached nobody",
            Self::RouteGone => "its route was not there",
            Self::OutOfRepeats => "the budget of repeats was used up",
            Self::MachineStalled => "the machine stalled",
            Self::OwnDoing => "its client had left",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Right,
    Allowed(Excuse),
    Violation(String),
}

/// The promises that the engine was configured to keep, and what it counted.
#[derive(Clone, Debug)]
pub struct Promises {
    pub retries: usize,
    /// Repeats that the engine says it could not afford; 0 in nearly every run, else that many failures are excused.
    pub repeats_refused: u64,
    /// How long a short request may take while nothing is done to anybody.
    pub calm_latency: Micros,
}

/// One request against all that is known.
pub fn evaluate(record: &RequestRecord, arrivals: &[Arrival], timeline: &Timeline, promises: &Promises) -> Verdict {
    Case { record, arrivals, timeline, promises, window: Window::new(record.begun, record.ended) }.evaluate()
}

struct Case<'a> {
    record: &'a RequestRecord,
    arrivals: &'a [Arrival],
    timeline: &'a Timeline,
    promises: &'a Promises,
    window: Window,
}

impl Case<'_> {
    fn evaluate(&self) -> Verdict {
        if let Some(broken) = self.broken_law() {
            return Verdict::Violation(broken);
        }
        let excuse = match &self.record.outcome {
            Outcome::Served => return self.judge_served(),
            Outcome::Failed(status) => self.excuse_failed(*status),
            Outcome::Refused(status, reason) => self.excuse_refused(*status, reason),
            Outcome::Broken(stage, how) => self.excuse_broken(*stage, *how),
            Outcome::Abandoned => Some(Excuse::OwnDoing),
            Outcome::Wrong(_) | Outcome::Late => None,
        };
        match excuse {
            Some(excuse) => Verdict::Allowed(excuse),
            None => Verdict::Violation(format!("{}: nothing allows that", outcome_text(&self.record.outcome))),
        }
    }

    /// Breach of a law that holds for every request, whatever its outcome.
    fn broken_law(&self) -> Option<String> {
        let count = |progress| self.arrivals.iter().filter(|arrival| arrival.progress == progress).count();
        let (heads, dones) = (count(Progress::Head), count(Progress::Done));
        // A stale connection's repeat is beside the count.
        let heads_max = if self.record.kind.is_idempotent() { self.promises.retries + 2 } else { 1 };
        if heads > heads_max || (!self.record.kind.is_idempotent() && dones > 1) {
            return Some(format!("it was with servers {heads} times and carried out {dones} times"));
        }
        if count(Progress::Damaged) > 0 {
            return Some("a server got another body than was sent".to_owned());
        }
        // An engine that goes by a configuration gives nothing new to servers that are not in it.
        let stray = self.arrivals.iter().filter(|arrival| arrival.progress == Progress::Head).find(|arrival| {
            let since = Window::new(self.record.begun, arrival.at.max(self.record.begun));
            !self.timeline.possibly_open(since).contains(&arrival.server)
        });
        stray.map(|arrival| format!("server {} got it, which gets nothing new by now", arrival.server))
    }

    fn judge_served(&self) -> Verdict {
        let record = self.record;
        let Some((server, run)) = record.server else {
            return Verdict::Violation("an answer that no server gave".to_owned());
        };
        let is_known = self.arrivals.iter().any(|arrival| (arrival.server, arrival.run) == (server, run));
        if record.kind.is_http() && !is_known {
            return Verdict::Violation(format!("{server}.{run} is said to have answered, and never saw it"));
        }
        let is_done = self.arrivals.iter().any(|arrival| arrival.progress == Progress::Done);
        if !record.kind.is_idempotent() && !is_done {
            return Verdict::Violation("it was answered with success and not carried out".to_owned());
        }
        if record.kind == Kind::Route && !self.timeline.setups(self.window).any(|setup| setup.extra_route) {
            return Verdict::Violation("it was served by a route that is not there".to_owned());
        }
        let took = record.ended - record.begun;
        let is_calm = !record.kind.is_long() && self.timeline.is_calm(self.window.since_before(WELL_AFTER));
        if is_calm && took > self.promises.calm_latency {
            return Verdict::Violation(format!("it took {} ms, and nothing was the matter", took / 1_000));
        }
        Verdict::Right
    }

    fn excuse_failed(&self, status: u16) -> Option<Excuse> {
        let (server, _) = self.record.server?;
        let fails = self.timeline.has_fault(server, self.window, |fault| fault == Fault::Failing);
        (status == 500 && fails).then_some(Excuse::ServerFails)
    }

    fn excuse_refused(&self, status: u16, reason: &str) -> Option<Excuse> {
        match (status, reason) {
            (502, "connect-refused" | "connect-failed" | "tls-handshake-failed" | "no-http2")
            | (504, "connect-timeout" | "tls-timeout") => {
                self.may_all_be(Fault::refuses).then_some(Excuse::NobodyToConnectTo).or(self.out_of_repeats())
            }
            (502, "closed-before-response" | "closed-during-request" | "write-failed") => self.excuse_cut(),
            (504, "first-byte-timeout" | "body-timeout") => self.excuse_hang(),
            (503, "no-healthy-server" | "no-server") => {
                let is_some_well = self.timeline.always_some_well(self.window, WELL_AFTER);
                // On a machine that stalls the probes of all may be late.
                let is_stalled = self.timeline.is_stalled(self.window.since_before(WELL_AFTER));
                (!is_some_well).then_some(Excuse::NobodyOpen).or(is_stalled.then_some(Excuse::MachineStalled))
            }
            (404, "no-route") if self.record.kind == Kind::Route => {
                self.timeline.setups(self.window).any(|setup| !setup.extra_route).then_some(Excuse::RouteGone)
            }
            _ => None,
        }
    }

    fn excuse_broken(&self, stage: Stage, how: How) -> Option<Excuse> {
        match (stage, how) {
            (Stage::Connect | Stage::Handshake, _) => None,
            (Stage::Unanswered, How::GoAway) => {
                let is_changing = self.timeline.is_changing(self.window.since_before(CUT_ECHO));
                (is_changing && self.arrivals.is_empty()).then_some(Excuse::NotLookedAt)
            }
            (_, How::GoAway) => None,
            // An answer in HTTP says which server gave it. Without an answer only connections end that have carried
            // requests before, and those whose client cannot take part in an answer because its body is on its way.
            (Stage::Unanswered, _) => match self.record.kind {
                Kind::Relay => self.excuse_relay(),
                Kind::Upload => self.excuse_cut(),
                kind if !kind.is_stream() && self.record.ordinal > 0 => self.excuse_cut(),
                _ => None,
            },
            (Stage::Answering, _) => {
                let (server, _) = self.record.server?;
                let window = self.window.since_before(EDGE);
                if self.timeline.has_fault(server, window, Fault::cuts) {
                    return Some(Excuse::CutAnswering);
                }
                self.hang_of(server).then_some(Excuse::ServerHangs)
            }
        }
    }

    /// A relay whose server never spoke.
    fn excuse_relay(&self) -> Option<Excuse> {
        let window = self.window.since_before(CUT_ECHO);
        if !self.faulty(window, Fault::cuts).is_empty() {
            return Some(Excuse::CutNotRepeatable);
        }
        if self.may_all_be(Fault::refuses) {
            return Some(Excuse::NobodyToConnectTo);
        }
        (!self.timeline.always_some_well(self.window, WELL_AFTER)).then_some(Excuse::NobodyOpen)
    }

    fn excuse_cut(&self) -> Option<Excuse> {
        if self.record.kind.is_idempotent() {
            // Each attempt goes to another server while there is one.
            let everywhere = self.may_all_be(|fault| fault.cuts() || fault.refuses());
            return everywhere.then_some(Excuse::CutEverywhere).or(self.out_of_repeats());
        }
        let window = self.window.since_before(CUT_ECHO);
        let met = self.arrivals.iter().find(|arrival| arrival.progress == Progress::Head);
        let is_cut = match met {
            Some(arrival) => self.timeline.has_fault(arrival.server, window, Fault::cuts),
            None => !self.faulty(window, Fault::cuts).is_empty(),
        };
        is_cut.then_some(Excuse::CutNotRepeatable)
    }

    fn excuse_hang(&self) -> Option<Excuse> {
        // One that is stopped has taken the request all the same, and writes it down when it goes on, if ever.
        let hung = match self.arrivals.iter().rfind(|arrival| arrival.progress == Progress::Head) {
            Some(arrival) => self.hang_of(arrival.server),
            None => !self.faulty(self.window, Fault::hangs).is_empty(),
        };
        if hung {
            return Some(Excuse::ServerHangs);
        }
        self.timeline.is_stalled(self.window).then_some(Excuse::MachineStalled)
    }

    fn hang_of(&self, server: ServerId) -> bool {
        self.timeline.has_fault(server, self.window, Fault::hangs)
    }

    /// As many servers had such a fault as there may be attempts, or all there were to choose from.
    fn may_all_be(&self, kind: impl Fn(Fault) -> bool) -> bool {
        let window = self.window.since_before(CUT_ECHO);
        let faulty = self.faulty(window, kind);
        let attempts = self.promises.retries + 1;
        faulty.len() >= attempts.min(self.timeline.fewest_open(window)).max(1)
    }

    /// Servers that it may have met with such a fault. Drains and removals are for those of HTTP alone.
    fn faulty(&self, window: Window, kind: impl Fn(Fault) -> bool) -> BTreeSet<ServerId> {
        let mut faulty = self.timeline.faulty(window, kind);
        if self.record.kind.is_http() {
            faulty = &faulty & &self.timeline.possibly_open(window);
        }
        faulty
    }

    fn out_of_repeats(&self) -> Option<Excuse> {
        (self.promises.repeats_refused > 0).then_some(Excuse::OutOfRepeats)
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Served => "served".to_owned(),
        Outcome::Failed(status) => format!("the server's own {status}"),
        Outcome::Refused(status, reason) => format!("refused with {status} {reason}"),
        Outcome::Broken(stage, how) => format!("broken ({stage:?}, {how:?})"),
        Outcome::Wrong(what) => format!("wrong: {what}"),
        Outcome::Abandoned => "abandoned by its client".to_owned(),
        Outcome::Late => "no end within the client's patience".to_owned(),
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&outcome_text(self))
    }
}

impl fmt::Display for RequestRecord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestRecord { id, kind, connection, ordinal, outcome, .. } = self;
        write!(out, "request {id} ({}), connection {connection}, number {ordinal} on it: {outcome}", kind.name())?;
        match self.server {
            Some((server, run)) => write!(out, "; answered by {server}.{run}"),
            None => Ok(()),
        }
    }
}
