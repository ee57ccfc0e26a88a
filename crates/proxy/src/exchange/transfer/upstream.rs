//! The server's side of a transfer: a connection that carries one request at a time, or one of a connection's streams.

pub mod fastcgi;
pub mod http1;
pub mod http2;
pub mod part;
pub mod rest;

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use propylon_http::fault::Fault;
use propylon_http::h1::{self, Asked, ChunkHeader, ResponseHead};
use propylon_http::h2::Reason;
use propylon_net::buffer::Buffer;

use self::fastcgi::FastCgi;
use self::http1::{Framing, Http1};
use self::http2::Http2;
use self::part::{Part, Written};
use crate::client::side::ClientSide;
use crate::exchange::transfer::body::Download;
use crate::exchange::transfer::stop::{Stop, server_fault};
use crate::services::Services;
use crate::trace::Reached;

pub enum Upstream {
    Http1(Http1),
    Http2(Box<Http2>),
    FastCgi(Box<FastCgi>),
}

impl Upstream {
    /// Connection that it is on.
    pub fn reached(&self) -> Reached {
        match self {
            Upstream::Http1(Http1 { connection, .. }) => Reached { peer: connection.remote.address, is_http2: false },
            Upstream::FastCgi(fastcgi) => Reached { peer: fastcgi.connection.remote.address, is_http2: false },
            Upstream::Http2(http2) => Reached { peer: http2.peer(), is_http2: true },
        }
    }

    /// Sends what is staged. Returns what has been written since the last call; ready when nothing is left.
    pub fn poll_send(&mut self, context: &mut Context<'_>, core: &Rc<Services>) -> (Written, Poll<Result<(), ()>>) {
        match self {
            Upstream::Http1(http1) => http1.poll_send(context, core),
            Upstream::Http2(http2) => http2.poll_send(context),
            Upstream::FastCgi(fastcgi) => fastcgi.poll_send(context, core),
        }
    }

    /// Whether the request's head is to be sent to a server of HTTP/1, and nothing behind it yet.
    pub fn has_head_alone(&self) -> bool {
        match self {
            Upstream::Http1(http1) => !http1.outbox.is_empty() && http1.piece.is_empty() && http1.after.is_empty(),
            Upstream::Http2(_) => false,
            Upstream::FastCgi(fastcgi) => fastcgi.has_head_alone(),
        }
    }

    pub fn stage(&mut self, core: &Services, piece: Buffer) {
        match self {
            Upstream::Http1(http1) => {
                if http1.framing == Framing::Chunked && !piece.is_empty() {
                    core.buffers.equip(&mut http1.outbox);
                    http1.outbox.extend(ChunkHeader::new(piece.len()).as_bytes());
                    http1.after = b"\r\n";
                }
                http1.piece = piece;
            }
            Upstream::Http2(http2) => http2.stage(piece),
            Upstream::FastCgi(fastcgi) => fastcgi.stage(piece),
        }
    }

    /// Stages the end of the body, with these trailers.
    pub fn stage_end(&mut self, core: &Rc<Services>, trailers: &[u8]) {
        match self {
            Upstream::Http1(http1) if http1.framing == Framing::Chunked => {
                let mut scratch = core.scratch.borrow_mut();
                scratch.clear();
                h1::write_last_chunk(trailers, &mut scratch);
                core.buffers.equip(&mut http1.outbox);
                http1.outbox.extend(&scratch);
            }
            // The end of a request of FastCGI is known by its length.
            Upstream::Http1(_) | Upstream::FastCgi(_) => {}
            Upstream::Http2(http2) => http2.send_end(trailers),
        }
    }

    /// Passes on that a tunnel's client has ended.
    pub fn poll_end(&mut self, context: &mut Context<'_>, core: &Services) -> Poll<Result<(), Stop>> {
        match self {
            Upstream::Http1(http1) if http1.framing == Framing::Tunnel => {
                let ended = ready!(http1.connection.stream.poll_end(context, &core.buffers));
                Poll::Ready(ended.map_err(|_| server_fault(Fault::WriteFailed)))
            }
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Reads the next head, an interim one or the last; its text is [`Upstream::head_text`].
    pub fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        core: &Services,
        asked: Asked<'_>,
        answered: &mut bool,
        response: &mut ResponseHead,
    ) -> Poll<Result<(), Stop>> {
        match self {
            Upstream::Http1(http1) => http1.poll_head(context, core, asked, answered, response),
            Upstream::Http2(http2) => http2.poll_head(context, asked, answered, response),
            Upstream::FastCgi(fastcgi) => fastcgi.poll_head(context, core, asked, answered, response),
        }
    }

    pub fn head_text(&self) -> &[u8] {
        match self {
            Upstream::Http1(http1) => http1.answer.readable(),
            Upstream::Http2(http2) => http2.head_text(),
            Upstream::FastCgi(fastcgi) => fastcgi.head_text(),
        }
    }

    /// Drops `length` bytes from the front of what [`Upstream::head_text`] gives.
    pub fn skip_head(&mut self, length: usize) {
        if let Upstream::Http1(http1) = self {
            http1.answer.consume(length);
        }
    }

    /// Takes note of the body that follows the head; false where none does.
    pub fn begin_body(&mut self, response: &ResponseHead) -> bool {
        match self {
            Upstream::Http1(http1) => http1.begin_body(response.body),
            Upstream::Http2(http2) => http2.begin_body(response.body),
            Upstream::FastCgi(fastcgi) => fastcgi.begin_body(response.body),
        }
    }

    /// Whether nothing more is to come of the response's body.
    pub fn is_read(&self) -> bool {
        match self {
            Upstream::Http1(http1) => http1.is_read(),
            Upstream::Http2(http2) => http2.is_read(),
            Upstream::FastCgi(fastcgi) => fastcgi.is_read(),
        }
    }

    /// Takes the connection's bytes for something else than HTTP from here on.
    pub fn begin_tunnel(&mut self) {
        match self {
            Upstream::Http1(http1) => {
                http1.framing = Framing::Tunnel;
                http1.download = Download::UntilClose;
                http1.spent = true;
            }
            Upstream::Http2(http2) => http2.begin_tunnel(),
            // A script's response never switches.
            Upstream::FastCgi(_) => {}
        }
    }

    /// Reads the next part of the body. `room`: bytes of memory that the body is worth. `most`: bytes that are worth
    /// copying out of a part that is here.
    pub fn poll_part(
        &mut self,
        context: &mut Context<'_>,
        core: &Services,
        (room, most): (usize, usize),
    ) -> Poll<Result<Part, Stop>> {
        match self {
            Upstream::Http1(http1) => http1.poll_part(context, core, room),
            Upstream::Http2(http2) => http2.poll_part(context, most),
            Upstream::FastCgi(fastcgi) => fastcgi.poll_part(context, core, room),
        }
    }

    /// Whether a part of the body is here already, and can go out with its head.
    pub fn has_part(&self) -> bool {
        match self {
            Upstream::Http1(_) => false,
            Upstream::Http2(http2) => http2.has_part(),
            Upstream::FastCgi(fastcgi) => fastcgi.has_part(),
        }
    }

    /// Whether the end of the body is here, and nothing before it.
    pub fn has_end(&self) -> bool {
        match self {
            Upstream::Http1(_) | Upstream::FastCgi(_) => false,
            Upstream::Http2(http2) => http2.has_end(),
        }
    }

    /// Widens the window of a stream of whose body so many bytes have passed, and whose client has taken them.
    pub fn widen(&mut self, client: &ClientSide<'_>, passed: u64) {
        if let Upstream::Http2(http2) = self {
            let stream = if let ClientSide::Http2(stream) = client { Some(&stream.link) } else { None };
            http2.widen(stream, passed);
        }
    }

    /// Reason that a client of HTTP/2 is to get for a response that was broken off: the server's own, unless that would
    /// tell the client that all is well, that its request was not processed, or how to ask us (RFC 9113 §7, §8.7).
    pub fn abort_reason(&self) -> Reason {
        let reset = match self {
            Upstream::Http1(_) | Upstream::FastCgi(_) => None,
            Upstream::Http2(http2) => http2.reset,
        };
        match reset {
            None | Some(Reason::NO_ERROR | Reason::REFUSED_STREAM | Reason::HTTP_1_1_REQUIRED) => {
                Reason::INTERNAL_ERROR
            }
            Some(reason) => reason,
        }
    }
}
