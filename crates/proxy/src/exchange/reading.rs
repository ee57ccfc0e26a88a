//! A request of the engine's own on its way to a server, and the answer back: a question about a request, or a copy of
//! one. It goes out on a connection of HTTP/1 or a stream of HTTP/2.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{Asked, Method, ResponseHead};
use propylon_net::budget::{self, Budget, PIECES_PER_POLL_MAX};
use propylon_net::buffer::Buffer;

use super::transfer::{PIECE_BYTES, Stop, Upstream, see_out};
use crate::copies::Body;
use crate::fault::{Attempt, Repeatable};
use crate::request::Note;
use crate::services::Services;
use crate::upstream::backend::Backend;
use crate::upstream::connect::{check_in, log_tls_failure};

/// Interim responses to one request.
const INFORMATIONAL_MAX: u32 = 16;

/// An answer of a server.
#[derive(Default)]
pub struct Answer {
    pub head: ResponseHead,
    /// Bytes of the head.
    pub text: Vec<u8>,
    /// The body, whole; empty where nobody wants it.
    pub body: Vec<u8>,
}

/// Body of an answer, as whoever asks wants it: of so many bytes at most.
#[derive(Clone, Copy)]
pub enum Wanted {
    Kept(usize),
    /// Bytes that are read, and thrown away.
    Discarded(usize),
}

/// A request on its way to a server, and its answer back.
pub struct Reading {
    pub server: Upstream,
    pub answer: Answer,
    pub has_head: bool,
    method: Method,
    /// Body that is to be sent, and how far it has been.
    body: Option<Body>,
    sent: usize,
    wanted: Wanted,
    read: usize,
    is_sent: bool,
    /// The server takes nothing more.
    is_spent: bool,
    /// A byte of an answer has come.
    is_answered: bool,
    informational: u32,
}

impl Reading {
    /// A request of such a method whose head is on its way, with the body that follows it.
    pub fn new(server: Upstream, method: Method, body: Option<Body>, wanted: Wanted) -> Reading {
        Reading {
            server,
            answer: Answer::default(),
            has_head: false,
            method,
            body: body.filter(|body| !body.bytes().is_empty()),
            sent: 0,
            wanted,
            read: 0,
            is_sent: false,
            is_spent: false,
            is_answered: false,
            informational: 0,
        }
    }

    /// Ready when the answer is whole, or there is to be none.
    pub fn poll(&mut self, context: &mut Context<'_>, services: &Rc<Services>) -> Poll<Result<(), Attempt>> {
        self.send(context, services);
        ready!(self.poll_head(context, services))?;
        let most = match self.wanted {
            Wanted::Kept(most) | Wanted::Discarded(most) => most,
        };
        for _ in 0..PIECES_PER_POLL_MAX {
            if self.server.is_read() {
                return Poll::Ready(Ok(()));
            }
            let part = ready!(self.server.poll_part(context, services, (0, usize::MAX))).map_err(attempt)?;
            if let Some(mut data) = part.data {
                self.read += data.len();
                if let Wanted::Kept(_) = self.wanted {
                    self.answer.body.extend_from_slice(data.readable());
                }
                services.buffers.release(&mut data);
            }
            if self.read > most {
                return Poll::Ready(Err(Attempt::new(Fault::ExcessData, Repeatable::No)));
            }
        }
        budget::spend(Budget::Pieces, context);
        Poll::Pending
    }

    /// Sends what the server takes. One that takes nothing more may have answered before.
    fn send(&mut self, context: &mut Context<'_>, services: &Rc<Services>) {
        while !self.is_sent {
            let Poll::Ready(sent) = self.server.poll_send(context, services).1 else { return };
            self.is_spent = sent.is_err();
            let Some(body) = self.body.as_ref().filter(|_| sent.is_ok()) else {
                (self.is_sent, self.body) = (true, None);
                return;
            };
            let rest = &body.bytes()[self.sent..];
            let piece = &rest[..rest.len().min(PIECE_BYTES)];
            if piece.is_empty() {
                self.server.stage_end(services, b"");
                self.body = None;
            } else {
                self.sent += piece.len();
                self.server.stage(services, Buffer::exactly(piece));
            }
        }
    }

    fn poll_head(&mut self, context: &mut Context<'_>, services: &Rc<Services>) -> Poll<Result<(), Attempt>> {
        while !self.has_head {
            let asked = Asked { method: self.method, upgrade: None };
            let Answer { head, text, .. } = &mut self.answer;
            let polled = self.server.poll_head(context, services, asked, &mut self.is_answered, head);
            ready!(polled).map_err(attempt)?;
            self.has_head = !head.is_informational();
            if self.has_head {
                let bytes = self.server.head_text();
                // A body of HTTP/1 may be behind it.
                let length = if head.length == 0 { bytes.len() } else { head.length.min(bytes.len()) };
                text.extend_from_slice(&bytes[..length]);
            }
            self.server.skip_head(head.length);
            if self.has_head {
                self.server.begin_body(head);
                continue;
            }
            head.clear();
            self.informational += 1;
            if self.informational > INFORMATIONAL_MAX {
                return Poll::Ready(Err(Attempt::new(Fault::BadResponse, Repeatable::No)));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the connection back, where it can carry another request, or sees the stream to its end. `is_whole`: the
    /// answer is; `is_alone`: the connection was for this request alone.
    pub fn end(self, backend: &Rc<Backend>, note: &mut Note, (is_whole, is_alone): (bool, bool)) -> Answer {
        let services = &backend.services;
        let is_over = is_whole && self.is_sent && !self.is_spent;
        match self.server {
            Upstream::Http1(mut http1) => {
                if let Some(failure) = http1.connection.stream.failure() {
                    log_tls_failure(backend, http1.connection.key.server, failure);
                }
                let is_clean = http1.finish(services) && is_over && self.answer.head.keep_alive && !is_alone;
                check_in(backend, http1.connection, is_clean);
            }
            Upstream::Http2(http2) if is_over && http2.is_open() => see_out(http2, note, backend),
            Upstream::Http2(_) | Upstream::FastCgi(_) => {}
        }
        self.answer
    }
}

fn attempt(stop: Stop) -> Attempt {
    match stop {
        Stop::Server(failed) => failed,
        Stop::Client(fault) => Attempt::new(fault, Repeatable::No),
    }
}
