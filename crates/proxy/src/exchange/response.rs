//! Responses of routes with steps: what is changed of them; and IDs of requests, which they may tell.

use std::ops::Deref;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use propylon_config::Listener;
use propylon_steps::request_id::uuid;

use super::change;
use super::heads::cookie_lines;
use crate::client::side::ClientSide;
use crate::request::{Kept, Request};
use crate::services::ListenerHandle;
use crate::snapshot::CoreSnapshot;
use crate::upstream::backend::Backend;

/// A request's listener.
pub enum ListenerOf {
    /// Index in the configuration that its route's steps are of.
    Steps(Rc<Kept>, usize),
    /// Handle for the newest configuration, which may have it no more.
    Newest(Rc<CoreSnapshot>, Rc<ListenerHandle>),
}

impl Deref for ListenerOf {
    type Target = Listener;

    fn deref(&self) -> &Listener {
        match self {
            ListenerOf::Steps(config, index) => &config.listeners[*index],
            ListenerOf::Newest(snapshot, handle) => snapshot.listener(handle),
        }
    }
}

/// The listener as the configuration has it that the request has begun with, where its route has steps.
pub fn listener_of(client: &ClientSide<'_>, request: &Request) -> ListenerOf {
    match request.steps.as_ref().and_then(|taken| Some((&taken.config, taken.listener?))) {
        Some((config, index)) => ListenerOf::Steps(Rc::clone(config), index),
        None => ListenerOf::Newest(client.core().snapshot(), Rc::clone(client.listener())),
    }
}

/// Gives a request its ID, where its listener wants one and it has none.
pub fn identify(client: &ClientSide<'_>, request: &mut Request, listener: &Listener) {
    if request.note.id_bytes == 0 {
        request.identify(
            listener,
            || client.peer().ip(),
            || {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                uuid(now.as_millis() as u64, client.core().random.borrow_mut().u128(..))
            },
        );
    }
}

/// Changes the head of an interim response, whose text this is.
pub fn amend_interim(client: &ClientSide<'_>, request: &mut Request, text: &[u8]) {
    let listener = listener_of(client, request);
    let (asked, response, _) = request.asked(&listener);
    asked.amend_interim(response, text);
}

/// Lines of a response's trailers that go on to the client: those of fields which the head may have as well.
pub fn kept_trailers(client: &ClientSide<'_>, request: &Request, lines: Vec<u8>) -> Vec<u8> {
    match lines.is_empty() || request.steps.is_none() {
        true => lines,
        false => request.kept_trailers(&listener_of(client, request), lines),
    }
}

/// Changes the head of a server's response, whose text this is: lines of ours are in [`Request::lines`], and what they
/// stand for does not go on. True: a page takes the response's place, and the lines are the client's cookies alone.
pub fn amend(client: &ClientSide<'_>, request: &mut Request, backend: &Backend, text: &[u8]) -> bool {
    let listener = listener_of(client, request);
    request.lines.clear();
    if let Some(line) = cookie_lines(client, request, backend) {
        request.lines.extend_from_slice(line);
    }
    let (asked, response, lines) = request.asked(&listener);
    let is_replaced = asked.amend(response, text, lines);
    if !is_replaced {
        change::response(client, request, text, backend);
    }
    is_replaced
}
