//! Answers of the engine itself, as clients get them.

use std::rc::Rc;

use propylon_compress::judge::Asked;
use propylon_compress::own::{self, Own};
use propylon_http::fault::Fault;
use propylon_http::h1::{self, Method, OwnResponse, RequestBody, RequestHead, whole_chunked};
use propylon_net::buffer::Buffer;
use propylon_steps::answers::Place;
use propylon_steps::change::texts;
use propylon_steps::errors::{self, Error, ErrorBody};
use propylon_steps::grpc::{self, Teller};
use propylon_steps::response::write_kept_lines;

use crate::answer::Answer;
use crate::client::connection::Connection;
use crate::client::side::ClientSide;
use crate::exchange::change;
use crate::exchange::response::{identify, listener_of};
use crate::request::{After, Note, Request};

/// Stages an answer of our own. A body that the client is still sending is skipped if it is here already; otherwise
/// the connection ends, since reading on only to throw it away would cost more than a new connection.
pub fn answer_here(client: &mut ClientSide<'_>, request: &mut Request, answer: &Answer<'_>) -> After {
    answer_beside(client, request, answer, b"")
}

/// As [`answer_here`], with lines that the route's changes are not of.
fn answer_beside(client: &mut ClientSide<'_>, request: &mut Request, answer: &Answer<'_>, beside: &[u8]) -> After {
    if answer.status >= 400
        && !answer.is_call
        && let Some(teller) = teller(request)
    {
        return answer_call(client, request, teller, (answer, beside));
    }
    if request.steps.is_some() {
        let mut lines = answer.lines.to_vec();
        let listener = listener_of(client, request);
        request.asked(&listener).0.write_lines(None, &mut lines);
        let (of_answer, of_route) = lines.split_at(answer.lines.len());
        let answer = Answer { lines: &lines, ..*answer };
        // The route's changes are of all that goes out, whoever has written it.
        let (ours, others) = texts(&lines);
        let all: Vec<(&str, &str)> = answer.fields.iter().copied().chain(ours).collect();
        let whole = Answer { fields: &all, lines: &[], ..answer };
        let Some(own) = change::own_answer(client, request, &whole, others.clone()) else {
            let (lines, others) = ([answer.lines, beside].concat(), [&others, beside].concat());
            let whole = Answer { lines: &others, ..whole };
            return answer_coded(client, request, (&whole, &Answer { lines: &lines, ..answer }));
        };
        let fields = borrowed(&own.fields);
        let varies = change::kept_vary(request, (of_answer, of_route));
        let lines = [&own.lines, &varies, beside].concat();
        let changed = Answer { fields: &fields, content_type: &own.content_type, lines: &lines, ..whole };
        return answer_coded(client, request, (&changed, &changed));
    }
    answer_as_is(client, request, answer)
}

/// Form in which a request's client is told of errors, where that is one of gRPC's.
fn teller(request: &Request) -> Option<Teller> {
    let takes_web = request.steps.as_deref().is_some_and(|steps| steps.grpc_web);
    Teller::of((&request.head, &request.text), takes_web)
}

/// Ends a call of gRPC with an error. Metrics and log have the status that HTTP has for it.
#[cold]
fn answer_call(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    teller: Teller,
    (answer, beside): (&Answer<'_>, &[u8]),
) -> After {
    let status = grpc::status(answer.status, request.note.fault);
    let message = grpc::message(answer.status, answer.detail);
    let body = teller.body(status, &message);
    let mut fields = answer.fields.to_vec();
    if body.is_empty() {
        fields.extend([("grpc-status", status), ("grpc-message", &message)]);
    }
    let call = Answer {
        status: 200,
        fields: &fields,
        content_type: teller.content_type(),
        body: &body,
        is_fixed: false,
        whole: 0,
        is_call: true,
        ..*answer
    };
    let after = answer_beside(client, request, &call, beside);
    request.note.status = answer.status;
    after
}

fn borrowed(fields: &[(String, String)]) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (&**name, &**value)).collect()
}

/// Answers with a body that is compressed, where the route wants that. The second one goes where it is left as it is.
fn answer_coded(
    client: &mut ClientSide<'_>,
    request: &mut Request,
    (answer, as_is): (&Answer<'_>, &Answer<'_>),
) -> After {
    let steps = request.steps.as_ref().map(|taken| Rc::clone(&taken.steps));
    let Some((steps, rules)) = steps.as_deref().and_then(|steps| Some((steps, steps.compress.as_ref()?))) else {
        return answer_as_is(client, request, as_is);
    };
    let (is_tls, is_identified) = (client.is_tls(), client.is_identified());
    let asked = Asked { head: &request.head, text: &request.text, is_tls, is_identified };
    let Answer { status, fields, content_type, body, .. } = *answer;
    let own = Own { status, fields, content_type, body, whole: answer.whole.max(body.len()) };
    let (core, kept) = (Rc::clone(client.core()), answer.is_fixed.then_some(&steps.coded));
    let Some(coded) = own::code(rules, &asked, &own, (&core.encoders, kept)) else {
        return answer_as_is(client, request, as_is);
    };
    let metrics = &core.telemetry.compression;
    if let Some(skip) = coded.skip {
        core.metrics.increment(metrics.skipped.of(skip.label()));
    }
    let fields = borrowed(&coded.fields);
    let answer = Answer { fields: &fields, ..*answer };
    let Some((encoding, body)) = coded.body else { return answer_as_is(client, request, &answer) };
    core.metrics.increment(metrics.responses(encoding));
    core.metrics.add(metrics.bytes_in(encoding), answer.body.len() as u64);
    core.metrics.add(metrics.bytes_out(encoding), body.len() as u64);
    answer_as_is(client, request, &Answer { body: &body, ..answer })
}

fn answer_as_is(client: &mut ClientSide<'_>, request: &mut Request, answer: &Answer<'_>) -> After {
    let connection = match client {
        ClientSide::Http1(connection) => connection,
        ClientSide::Http2(stream) => {
            stream.answer(request, answer);
            return After::Next;
        }
    };
    let head = &request.head;
    let skipped = match request.body_begun {
        true => request.body_taken,
        false => skip_body(head, &mut connection.inbox, &mut request.note),
    };
    connection.owes_body |= !skipped;
    let is_leaving = connection.core.is_leaving(&connection.listener);
    let was_to_stay = head.keep_alive && !answer.close && is_leaving;
    let keep_alive = skipped && head.keep_alive && !answer.close && !is_leaving;
    stage_answer(connection, request, answer, keep_alive);
    match (keep_alive, skipped) {
        (true, _) => After::Next,
        (false, true) if request.note.fault.is_none() && !was_to_stay => After::Close,
        (false, _) => After::Linger,
    }
}

/// Stages an answer as the request's head has it: for its version, and without a body for HEAD.
pub fn stage_answer(connection: &mut Connection, request: &mut Request, answer: &Answer<'_>, keep_alive: bool) {
    let core = Rc::clone(&connection.core);
    let mut scratch = core.scratch.borrow_mut();
    scratch.clear();
    core.with_date(|date| {
        let response = OwnResponse {
            status: answer.status,
            fields: answer.fields,
            lines: answer.lines,
            content_type: if answer.body.is_empty() { "" } else { answer.content_type },
            body: answer.body,
            client: request.head.version,
            keep_alive,
            head_only: request.head.method == Method::Head,
            date: date.as_bytes(),
        };
        h1::write_own_response(&response, &mut scratch);
    });
    request.note.status = answer.status;
    let has_body = request.head.method != Method::Head && !matches!(answer.status, 204 | 304);
    let body = if has_body { answer.body.len() } else { 0 };
    request.note.count_head(scratch.len().saturating_sub(body), body);
    connection.stream.stage(&scratch, &core.buffers, &mut connection.wire);
}

/// Takes the body out of the inbox if all of it is there.
fn skip_body(head: &RequestHead, inbox: &mut Buffer, note: &mut Note) -> bool {
    let length = match head.body {
        RequestBody::None => return true,
        RequestBody::Length(length) => usize::try_from(length).ok().filter(|length| *length <= inbox.len()),
        RequestBody::Chunked => whole_chunked(inbox.readable()),
    };
    let Some(length) = length else { return false };
    inbox.consume(length);
    note.bytes_received += length as u64;
    true
}

/// Answers a request that a fault ends: with its status, and its label, which the log gets as well.
pub fn answer_fault(client: &mut ClientSide<'_>, request: &mut Request, fault: Fault) -> After {
    request.note.fault = Some(fault);
    answer_error(client, request, fault.status(), fault.label())
}

/// As [`answer_fault`], with more to say than a label.
pub fn answer_error(client: &mut ClientSide<'_>, request: &mut Request, status: u16, reason: &str) -> After {
    let error = word(client, request, &Error::of(status, reason));
    answer_here(client, request, &error.answer())
}

/// As [`answer_fault`] where all there is is in use: when to come back, in seconds (RFC 9110 §10.2.3), is said as well.
pub fn answer_busy(client: &mut ClientSide<'_>, request: &mut Request, fault: Fault, seconds: u64) -> After {
    request.note.fault = Some(fault);
    let seconds = seconds.to_string();
    let error = word(client, request, &Error::of(fault.status(), fault.label()));
    answer_here(client, request, &Answer { fields: &[("Retry-After", &seconds)], ..error.answer() })
}

/// Answers with the page that takes the place of a server's response, whose text this is. The cookies that the client
/// is to be given go with it, as they would with the response.
pub fn answer_page(client: &mut ClientSide<'_>, request: &mut Request, text: &[u8]) -> After {
    let mut error = word(client, request, &Error::of(request.response.status, ""));
    write_kept_lines(&request.response, text, &mut error.lines);
    let cookies = std::mem::take(&mut request.lines);
    answer_beside(client, request, &error.answer(), &cookies)
}

/// An error in the form that the route, or the listener, has for it.
pub struct OwnError {
    status: u16,
    detail: String,
    body: ErrorBody,
    lines: Vec<u8>,
}

impl OwnError {
    pub fn answer(&self) -> Answer<'_> {
        let ErrorBody { content_type, body, .. } = &self.body;
        Answer { content_type, body, lines: &self.lines, detail: &self.detail, ..Answer::plain(self.status) }
    }
}

/// Words an error. Its request has an ID from here on, where its listener wants one: also one that no route takes.
pub fn word(client: &ClientSide<'_>, request: &mut Request, error: &Error<'_>) -> OwnError {
    let listener = listener_of(client, request);
    identify(client, request, &listener);
    let (asked, ..) = request.asked(&listener);
    let newest = client.core().snapshot();
    // Steps know the configuration that their request has begun with.
    let (answers, route) = match asked.steps {
        Some(steps) => (&steps.answers, Some(steps.route)),
        None => (&newest.shared.answers, None),
    };
    let mut lines = Vec::new();
    let error = Error { id: asked.id, ..*error };
    let body = answers.tell(Place { listener: &listener.name, route }, &error, &asked.accept());
    let body = body.unwrap_or_else(|| errors::plain(&error));
    if body.varies {
        h1::write_line(b"Vary", b"Accept", &mut lines);
    }
    if route.is_none() {
        asked.write_lines(None, &mut lines);
    }
    OwnError { status: error.status, detail: error.detail.to_owned(), body, lines }
}
