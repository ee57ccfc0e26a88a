//! Traces: which trace a request belongs to, whether it is recorded, what servers are told of it, and its spans.
//!
//! A request begins a trace or goes on with its caller's (W3C Trace Context). A recorded request has one span, and each
//! attempt at a server another below it; both go to the exporter when they have ended. If nothing is traced a core has
//! no tracer, and a request costs the question whether there is one. Why it is so: `docs/decisions/0033-traces.md`.

mod outbox;
mod target;

use std::time::{Instant, SystemTime};

use propylon_config::{TraceTrust, Tracing};
use propylon_http::h1::{Name, RequestHead, write_line};
use propylon_policy::sampling::{Decision, Sampler};
use propylon_sys::Address;

pub use self::outbox::{Inlet, Outbox, SHEET_SPANS, SPANS_WAITING_MAX};
pub use self::target::Target;
pub use propylon_http::trace_context::TraceId;
use propylon_http::trace_context::{Context, Parent, SpanId, is_state, parse_parent};
use propylon_observe::span::STATE_BYTES_MAX;
pub use propylon_observe::span::{Attribute, Kind, Span, Value, encode};

/// One core's.
pub struct Tracer {
    sampler: Sampler,
    /// Rules that the sampler was made of.
    rules: Rules,
    cores: usize,
    ids: Ids,
    pub outbox: Outbox,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Rules {
    sample: u32,
    trusts_parent: bool,
    spans_per_second: u32,
}

/// Identifiers by chance. Two generators for the two halves of a trace's: one alone has fewer states than a fleet of
/// engines makes traces.
pub struct Ids {
    high: fastrand::Rng,
    low: fastrand::Rng,
}

/// The same moment on two clocks: spans begin at a time of day, and last as a clock says that is never set.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub wall: SystemTime,
    pub steady: Instant,
}

impl Moment {
    /// A moment that has been, by the clock that is never set.
    pub fn past(steady: Instant) -> Moment {
        let now = SystemTime::now();
        Moment { wall: now.checked_sub(steady.elapsed()).unwrap_or(now), steady }
    }
}

/// The trace of a request.
#[derive(Default)]
pub enum Trace {
    /// Nothing is traced.
    #[default]
    Off,
    /// The request is not recorded, and the caller's context goes on as it came.
    Passed(TraceId),
    /// The request is not recorded, and servers are told so.
    ClientFactHeaders(Context),
    Recorded(Box<Recording>),
}

/// A request that is recorded, in progress.
pub struct Recording {
    pub context: Context,
    /// The caller's span.
    pub parent: Option<SpanId>,
    pub state: Option<Box<str>>,
    /// When the request began.
    pub began: Moment,
    /// The one in progress.
    pub attempt: Option<Attempt>,
    /// Attempts that have ended.
    pub spans: Vec<Span>,
}

/// An attempt in progress.
pub struct Attempt {
    pub span: SpanId,
    pub began: Instant,
    /// Connection of one that was made beside another, and whether that had served before.
    pub rival: Option<(Reached, bool)>,
}

/// Connection that an attempt was made on.
#[derive(Clone, Copy)]
pub struct Reached {
    pub peer: Address,
    pub is_http2: bool,
}

impl Ids {
    pub fn new(high: u64, low: u64) -> Ids {
        Ids { high: fastrand::Rng::with_seed(high), low: fastrand::Rng::with_seed(low) }
    }

    fn trace(&mut self) -> TraceId {
        loop {
            let bytes = u128::from(self.high.u64(..)) << 64 | u128::from(self.low.u64(..));
            if let Some(id) = TraceId::new(bytes.to_be_bytes()) {
                return id;
            }
        }
    }

    fn span(&mut self) -> SpanId {
        loop {
            if let Some(id) = SpanId::new(self.low.u64(..).to_be_bytes()) {
                return id;
            }
        }
    }
}

impl Rules {
    fn of(tracing: &Tracing) -> Rules {
        Rules {
            sample: tracing.sample.0,
            trusts_parent: tracing.trust == TraceTrust::Parent,
            spans_per_second: tracing.spans_per_second,
        }
    }

    fn sampler(&self, cores: usize, now: u64) -> Sampler {
        Sampler::new(self.sample, self.trusts_parent, self.spans_per_second, cores, now)
    }
}

impl Tracer {
    /// `now`: milliseconds on the core's clock.
    pub fn new(tracing: &Tracing, cores: usize, ids: Ids, outbox: Outbox, now: u64) -> Tracer {
        let rules = Rules::of(tracing);
        Tracer { sampler: rules.sampler(cores, now), rules, cores, ids, outbox }
    }

    /// Goes by another configuration from the next request on.
    pub fn reload(&mut self, tracing: &Tracing, now: u64) {
        let rules = Rules::of(tracing);
        if rules != self.rules {
            self.sampler = rules.sampler(self.cores, now);
            self.rules = rules;
        }
    }

    /// Decides on a request's trace when its head has come, and withholds fields. `now`: milliseconds on the core's
    /// clock.
    pub fn begin(
        &mut self,
        head: &mut RequestHead,
        text: &[u8],
        began: impl FnOnce() -> Moment,
        now: u64,
    ) -> (Trace, Decision) {
        let parent = if self.rules.trusts_parent { parent(head, text) } else { None };
        let keeps_state = parent.is_some() && is_state(values(head, text, Name::Tracestate));
        let came = parent.map(|parent| parent.context);
        let trace = came.map_or_else(|| self.ids.trace(), |context| context.trace);
        let decision = self.sampler.decide(came.map(|context| context.sampled), trace.low(), now);
        let mut context =
            Context { trace, span: self.ids.span(), sampled: false, random: came.is_none_or(|context| context.random) };
        let made = match (decision, parent) {
            (Decision::Recorded, _) => {
                context.sampled = true;
                let state = if keeps_state { state(head, text) } else { None };
                let parent = came.map(|context| context.span);
                let began = began();
                let recording = Recording { context, parent, state, began, attempt: None, spans: Vec::new() };
                Trace::Recorded(Box::new(recording))
            }
            // A decision of others stands: their spans have each other for parents, and ours is none of them.
            (_, Some(parent)) if parent.is_current => Trace::Passed(trace),
            (_, Some(parent)) => Trace::ClientFactHeaders(parent.context),
            (_, None) => Trace::ClientFactHeaders(context),
        };
        let passes = matches!(made, Trace::Passed(_));
        head.fields.withhold_kinds(|kind| match kind {
            Name::Traceparent => !passes,
            Name::Tracestate => !keeps_state,
            _ => false,
        });
        (made, decision)
    }

    pub fn record(&mut self, spans: impl Iterator<Item = Span>) -> usize {
        let mut count = 0;
        for span in spans {
            self.outbox.push(span);
            count += 1;
        }
        self.sampler.charge(count - 1);
        count
    }
}

/// The caller's span; none where it is not told as it should be, and that includes told twice.
fn parent(head: &RequestHead, text: &[u8]) -> Option<Parent> {
    let mut values = values(head, text, Name::Traceparent);
    let parent = parse_parent(values.next()?)?;
    values.next().is_none().then_some(parent)
}

fn values<'a>(head: &'a RequestHead, text: &'a [u8], kind: Name) -> impl Iterator<Item = &'a [u8]> {
    head.fields.of_kind(kind).map(|field| field.value.bytes(text))
}

/// The caller's `tracestate` for the record, as one line. It is known to keep the rules, and so to be ASCII.
fn state(head: &RequestHead, text: &[u8]) -> Option<Box<str>> {
    let mut joined = Vec::new();
    for value in values(head, text, Name::Tracestate).filter(|value| !value.is_empty()) {
        if !joined.is_empty() {
            joined.push(b',');
        }
        joined.extend_from_slice(value);
    }
    let is_kept = !joined.is_empty() && joined.len() <= STATE_BYTES_MAX;
    is_kept.then(|| String::from_utf8(joined).ok()).flatten().map(String::into_boxed_str)
}

impl Trace {
    pub fn id(&self) -> Option<TraceId> {
        match self {
            Trace::Off => None,
            Trace::Passed(trace) => Some(*trace),
            Trace::ClientFactHeaders(context) => Some(context.trace),
            Trace::Recorded(recording) => Some(recording.context.trace),
        }
    }

    /// Whether servers are told something that the client has not said.
    pub fn is_told(&self) -> bool {
        matches!(self, Trace::ClientFactHeaders(_) | Trace::Recorded(_))
    }

    /// Appends a whole line for the server.
    pub fn write(&self, out: &mut Vec<u8>) {
        let context = match self {
            Trace::Off | Trace::Passed(_) => return,
            Trace::ClientFactHeaders(context) => *context,
            Trace::Recorded(recording) => {
                let attempt = recording.attempt.as_ref();
                Context { span: attempt.map_or(recording.context.span, |attempt| attempt.span), ..recording.context }
            }
        };
        write_line(b"traceparent", &context.text(), out);
    }
}

/// The next attempt at a server begins: what the server does is below it.
pub fn begin_attempt(trace: &mut Trace, tracer: Option<&mut Tracer>, now: Instant) {
    if let (Trace::Recorded(recording), Some(tracer)) = (trace, tracer) {
        recording.attempt = Some(Attempt { span: tracer.ids.span(), began: now, rival: None });
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{Source, parse};

    use super::*;
    use propylon_http::h1::{Limits, parse_request};

    const LIMITS: Limits = Limits { head_bytes: 16 * 1024, headers: 100 };
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

    fn tracing(lines: &str) -> Tracing {
        let text = format!(
            "[tracing]\nendpoint='http://127.0.0.1:1'\n{lines}\n[listener.a]\nbind='127.0.0.1:0'\n[[route]]\nrespond={{body=''}}"
        );
        let (config, _) = parse(&Source { name: "f".into(), base: "".into(), text }).expect("a good configuration");
        config.tracing.expect("it is on")
    }

    fn tracer(lines: &str, seed: u64) -> Tracer {
        let (outbox, _) = Outbox::new();
        Tracer::new(&tracing(lines), 1, Ids::new(seed, !seed), outbox, 0)
    }

    /// Begins the trace of a request with these lines; returns it, and the fields that go on.
    fn begin(tracer: &mut Tracer, lines: &str) -> (Trace, String) {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").into_bytes();
        let mut head = RequestHead::default();
        parse_request(&text, &LIMITS, &mut head).expect("a good head");
        let began = || Moment { wall: SystemTime::UNIX_EPOCH, steady: Instant::now() };
        let (trace, _) = tracer.begin(&mut head, &text, began, 0);
        let mut out = Vec::new();
        head.fields.write_forwarded(&text, &mut out);
        trace.write(&mut out);
        (trace, String::from_utf8(out).expect("text"))
    }

    #[test]
    fn nothing_is_read_of_a_clock_for_what_is_not_recorded() {
        let mut tracer = tracer("sample = 0", 1);
        let mut head = RequestHead::default();
        let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        parse_request(text, &LIMITS, &mut head).expect("a good head");
        let (trace, decision) = tracer.begin(&mut head, text, || panic!("a clock was read"), 0);
        assert!(matches!(trace, Trace::ClientFactHeaders(_)) && decision == Decision::Unrecorded);
    }

    #[test]
    fn an_attempt_is_what_servers_see_and_two_are_told_apart() {
        let mut tracer = tracer("sample = 1", 2);
        let (mut trace, first) = begin(&mut tracer, "");
        let mut seen = vec![first];
        for _ in 0..2 {
            begin_attempt(&mut trace, Some(&mut tracer), Instant::now());
            let mut out = Vec::new();
            trace.write(&mut out);
            seen.push(String::from_utf8(out).expect("text"));
        }
        let id = String::from_utf8(trace.id().expect("one").hex().to_vec()).expect("text");
        assert!(
            seen.iter().all(|line| line.starts_with(&format!("traceparent: 00-{id}-")) && line.ends_with("-03\r\n"))
        );
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 3, "{seen:?}");
    }

    #[test]
    fn two_parents_are_none() {
        let (_, out) =
            begin(&mut tracer("sample = 0", 3), &format!("traceparent: {PARENT}-01\r\nTraceParent: {PARENT}-01\r\n"));
        assert!(!out.contains(PARENT) && out.matches("traceparent").count() == 1, "{out}");
    }

    #[test]
    fn a_parent_named_by_connection_goes_on_all_the_same() {
        let lines = format!("Connection: traceparent, x-y\r\nx-y: 1\r\ntraceparent: {PARENT}-00\r\n");
        assert_eq!(begin(&mut tracer("sample = 1", 4), &lines).1, format!("traceparent: {PARENT}-00\r\n"));
    }

    #[test]
    fn another_configuration_holds_from_the_next_request_on() {
        let mut tracer = tracer("sample = 0", 5);
        assert!(matches!(begin(&mut tracer, "").0, Trace::ClientFactHeaders(_)));
        tracer.reload(&tracing("sample = 1\ntrust = 'never'"), 0);
        let (trace, out) = begin(&mut tracer, &format!("traceparent: {PARENT}-00\r\n"));
        assert!(matches!(trace, Trace::Recorded(_)) && !out.contains(PARENT), "{out}");
    }

    #[test]
    fn identifiers_are_made_of_both_generators() {
        let (mut one, mut other) = (Ids::new(1, 2), Ids::new(1, 3));
        let (a, b) = (one.trace(), other.trace());
        assert_eq!(a.bytes()[..8], b.bytes()[..8]);
        assert_ne!(a.low(), b.low());
        assert_ne!(one.span(), one.span());
    }
}
