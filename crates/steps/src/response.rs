//! Lines that routes and listeners add to responses, and what these stand for.

use propylon_config::Listener;
use propylon_http::h1::{RequestHead, ResponseHead, write_line};

use crate::answers::Place;
use crate::change::lines_without;
use crate::{ResponseChange, Steps, cors};

/// Fields of a response that go on with the page that takes its place: the client cannot do without them.
const KEPT_FIELDS: [&str; 3] = ["allow", "retry-after", "www-authenticate"];

/// A request, as far as its response's lines go by it.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub listener: &'a Listener,
    pub head: &'a RequestHead,
    /// Bytes of the head.
    pub text: &'a [u8],
    /// The request's ID.
    pub id: Option<&'a str>,
    /// Steps of its route.
    pub steps: Option<&'a Steps>,
    /// Changes of its response, by its route and the side that it has gone to.
    pub change: Option<&'a ResponseChange>,
}

impl<'a> Asked<'a> {
    /// Values of all lines of Accept.
    pub fn accept(&self) -> Vec<&'a [u8]> {
        let Asked { head, text, .. } = *self;
        let lines = head.fields.iter().filter(|field| field.name.bytes(text).eq_ignore_ascii_case(b"accept"));
        lines.map(|field| field.value.bytes(text)).collect()
    }

    /// Writes the lines that the listener and the route add to a response. `theirs`: a server's, with its text.
    pub fn write_lines(&self, theirs: Option<(&ResponseHead, &[u8])>, out: &mut Vec<u8>) {
        if let (Some(ids), Some(id)) = (self.listener.request_id.as_ref().filter(|ids| ids.returned), self.id) {
            write_line(ids.header.as_bytes(), id.as_bytes(), out);
        }
        if let Some(cors) = self.steps.and_then(|steps| steps.cors.as_ref()) {
            // A server's Vary that the route takes away is none by which a cache would go.
            let theirs = theirs.filter(|_| self.change.is_none_or(|change| !change.replaces(b"vary")));
            cors.write_lines((self.head, self.text), theirs.map(|(head, text)| (&head.fields, text)), out);
        }
    }

    /// Withholds of a response, whose text this is, what lines of ours stand for.
    pub fn withhold_ours(&self, response: &mut ResponseHead, text: &[u8]) {
        if let Some((id, cors)) = names_of_ours(self.listener, self.steps) {
            response.fields.withhold(text, id.into_iter().chain(cors.iter().copied()));
        }
    }

    /// Changes an interim response of a server (1xx): what the final one would be kept from does not go on here either,
    /// and what is added comes with that.
    pub fn amend_interim(&self, response: &mut ResponseHead, text: &[u8]) {
        if self.steps.is_none() {
            return;
        }
        self.withhold_ours(response, text);
        if let Some(change) = self.change {
            change.withhold(&mut response.fields, text);
        }
    }

    /// Changes a server's response, whose text this is: what is not to go on is withheld, and lines of ours are written
    /// to `out`. True: a page takes its place, and nothing is written.
    pub fn amend(&self, response: &mut ResponseHead, text: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(steps) = self.steps else { return false };
        self.withhold_ours(response, text);
        let place = Place { listener: &self.listener.name, route: Some(steps.route) };
        let is_replaced = steps.answers.intercepts(place, response.status);
        if !is_replaced {
            self.write_lines(Some((response, text)), out);
        }
        is_replaced
    }
}

/// Names of the fields that are ours alone: of the ID, where clients are told it, and of pages of other origins.
fn names_of_ours<'a>(
    listener: &'a Listener,
    steps: Option<&Steps>,
) -> Option<(Option<&'a str>, &'static [&'static str])> {
    let id = listener.request_id.as_ref().filter(|ids| ids.returned).map(|ids| ids.header.as_str());
    let cors: &[&str] = if steps.is_some_and(|steps| steps.cors.is_some()) { &cors::FIELDS } else { &[] };
    (id.is_some() || !cors.is_empty()).then_some((id, cors))
}

/// Lines of a server's trailers without those that its head may not have: what lines of ours stand for, and what
/// `change` withholds.
#[cold]
pub fn kept_trailers(
    (listener, steps): (&Listener, Option<&Steps>),
    change: Option<&ResponseChange>,
    lines: Vec<u8>,
) -> Vec<u8> {
    let lines = match change {
        Some(change) => change.kept_trailers(lines),
        None => lines,
    };
    let Some((id, cors)) = names_of_ours(listener, steps) else { return lines };
    let is_ours = |name: &[u8]| id.iter().chain(cors).any(|ours| name.eq_ignore_ascii_case(ours.as_bytes()));
    lines_without(&lines, is_ours)
}

/// Writes the lines of a response that go on with the page that takes its place.
pub fn write_kept_lines(response: &ResponseHead, text: &[u8], out: &mut Vec<u8>) {
    for field in response.fields.iter().filter(|field| field.forward) {
        let name = field.name.bytes(text);
        if KEPT_FIELDS.iter().any(|kept| name.eq_ignore_ascii_case(kept.as_bytes())) {
            write_line(name, field.value.bytes(text), out);
        }
    }
}
