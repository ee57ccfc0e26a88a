//! The bodies of a request and its response: how much of them is to come, and chunks that are framed anew.

use std::cell::RefCell;
use std::rc::Rc;

use propylon_config::Listener;
use propylon_http::h1::{self, Decoder, Event, RequestBody, whole_chunked};
use propylon_net::buffer::Buffer;
use propylon_steps::pace::Way;

use super::copied::Copied;
use super::held::{HeldUpload, held_by};
use super::throttle::{Paced, Pacer};
use crate::client::h2_stream::Stream;
use crate::core::Core;
use crate::request::Request;

/// The request body, from the client to the server.
pub enum Upload {
    /// All of it lies at the inbox's front, in so many bytes, and stays there until a response has begun.
    Whole(usize),
    Length {
        remaining: u64,
        begun: bool,
    },
    Chunked {
        decoder: Box<Decoder>,
        begun: bool,
    },
    /// Comes by a stream of HTTP/2, which knows where it ends.
    Stream {
        empty: bool,
        begun: bool,
        /// Copy of a small body all of which was here when it was taken: it can be sent again.
        kept: Option<Box<[u8]>>,
    },
    /// One that is slowed down.
    Paced(Box<Paced>),
    /// A stream's, of a length that is not announced and has a limit: so many bytes may still come.
    LimitedStream {
        begun: bool,
        left: u64,
    },
    /// Was read before a server was asked, all of it or some.
    Held(Rc<RefCell<HeldUpload>>),
    /// One that is kept for a copy while it passes.
    Copied(Box<Copied>),
}

/// Bytes of a body that a copy is kept of, at most.
pub const KEPT_BYTES_MAX: usize = 16 * 1024;

impl Upload {
    pub fn of(request: &mut Request, inbox: &Buffer, listener: &Listener) -> Upload {
        let body = request.head.body;
        match body {
            RequestBody::None => Upload::Whole(0),
            RequestBody::Length(length) if length <= inbox.len() as u64 => Upload::Whole(length as usize),
            RequestBody::Length(length) => Upload::Length { remaining: length, begun: false },
            RequestBody::Chunked if let Some(held) = held(request) => held,
            RequestBody::Chunked => match whole_chunked(inbox.readable()) {
                Some(length) => Upload::Whole(length),
                None => {
                    let limit = request.body_limit().unwrap_or(u64::MAX);
                    Upload::Chunked {
                        decoder: Box::new(decoder_for(request, listener).limited_to(limit)),
                        begun: false,
                    }
                }
            },
        }
    }

    pub fn of_stream(request: &mut Request) -> Upload {
        let body = request.head.body;
        let empty = match body {
            RequestBody::None | RequestBody::Length(0) => true,
            RequestBody::Length(_) => false,
            RequestBody::Chunked if let Some(held) = held(request) => return held,
            RequestBody::Chunked => match request.steps.is_some().then(|| (request.own_body(), request.body_limit())) {
                Some((Some(body), _)) => return Upload::Stream { empty: false, begun: true, kept: Some(body.into()) },
                Some((None, Some(left))) => return Upload::LimitedStream { begun: false, left },
                Some((None, None)) | None => false,
            },
        };
        Upload::Stream { empty, begun: false, kept: None }
    }

    /// Slows it down as its route says, unless it is here already, all of it or some: what was held has been slowed down
    /// on its way here. A tunnel is not.
    pub fn slow_down(&mut self, request: &Request, core: &Rc<Core>) {
        if !self.is_whole()
            && !matches!(self, Upload::Paced(_) | Upload::Held(_) | Upload::Copied(_))
            && let Some(pacer) = Pacer::of(request, Way::Upload, core)
        {
            let upload = std::mem::replace(self, Upload::Whole(0));
            *self = Upload::Paced(Box::new(Paced::new(upload, pacer)));
        }
    }

    /// All of it is here, and will be until a response has begun.
    pub fn is_whole(&self) -> bool {
        match self {
            Upload::Whole(_) | Upload::Stream { empty: true, .. } | Upload::Stream { kept: Some(_), .. } => true,
            Upload::Paced(paced) => paced.upload.is_whole(),
            Upload::Held(held) => held.borrow().is_whole(),
            Upload::Copied(copied) => copied.upload.is_whole(),
            _ => false,
        }
    }

    /// Whether the client's next bytes are its next request. A server that has closed has the body as good as sent, and
    /// may not have taken it: the rest would be read as a request.
    pub fn is_read(&self) -> bool {
        match self {
            Upload::Whole(_) | Upload::Stream { .. } | Upload::LimitedStream { .. } => true,
            Upload::Length { remaining, .. } => *remaining == 0,
            Upload::Chunked { decoder, .. } => decoder.is_done(),
            Upload::Paced(paced) => paced.upload.is_read(),
            Upload::Held(held) => held.borrow().is_whole(),
            Upload::Copied(copied) => copied.upload.is_read(),
        }
    }

    /// Notes whether all of the body has left the inbox, for an answer that takes the place of a server's.
    pub fn note_taken(&self, request: &mut Request) {
        request.body_taken = request.body_begun && self.is_read();
    }

    /// The body can be sent from its beginning: no byte of it has left the inbox, or all of it was kept.
    pub fn is_untouched(&self) -> bool {
        match self {
            Upload::Whole(_) | Upload::Stream { kept: Some(_), .. } => true,
            Upload::Length { begun, .. }
            | Upload::Chunked { begun, .. }
            | Upload::Stream { begun, .. }
            | Upload::LimitedStream { begun, .. } => !begun,
            Upload::Paced(paced) => paced.upload.is_untouched(),
            Upload::Held(held) => held.borrow().is_untouched(),
            Upload::Copied(copied) => copied.upload.is_untouched(),
        }
    }

    /// The copy of a stream's body that was kept.
    pub fn kept(&self) -> Option<&[u8]> {
        match self {
            Upload::Stream { kept, .. } => kept.as_deref(),
            Upload::Paced(paced) => paced.upload.kept(),
            Upload::Copied(copied) => copied.upload.kept(),
            _ => None,
        }
    }

    /// Framing for a server of HTTP/1 of a body that comes by this stream: see [`Stream::framing`].
    pub fn framing(&self, stream: &Stream, body: RequestBody) -> RequestBody {
        match self {
            Upload::Stream { kept, .. } => stream.framing(body, kept.as_deref()),
            Upload::LimitedStream { .. } => stream.framing(body, None),
            Upload::Paced(paced) => paced.upload.framing(stream, body),
            Upload::Copied(copied) => copied.upload.framing(stream, body),
            Upload::Held(_) | Upload::Whole(_) | Upload::Length { .. } | Upload::Chunked { .. } => body,
        }
    }

    /// Drops the copy: the bytes are elsewhere.
    pub fn forget_kept(&mut self) {
        match self {
            Upload::Stream { kept, .. } => *kept = None,
            Upload::Paced(paced) => paced.upload.forget_kept(),
            Upload::Copied(copied) => copied.upload.forget_kept(),
            _ => {}
        }
    }

    /// Length of a body that is held whole: a server that takes no chunks can be told of it.
    pub fn held_length(&self) -> Option<u64> {
        match self {
            Upload::Held(held) => held.borrow().length(),
            Upload::Copied(copied) => copied.upload.held_length(),
            _ => None,
        }
    }

    /// Whether it was read before a server was asked, all of it or some.
    pub fn is_held(&self) -> bool {
        match self {
            Upload::Held(_) => true,
            Upload::Copied(copied) => copied.upload.is_held(),
            _ => false,
        }
    }

    /// Begins a body that is held anew, for another attempt.
    pub fn rewind_held(&mut self) {
        match self {
            Upload::Held(held) => drop(held.borrow_mut().rewind()),
            Upload::Copied(copied) => copied.upload.rewind_held(),
            _ => {}
        }
    }
}

/// The body of a request that is held, from its beginning. A head whose body is said to be chunked may have one: how it
/// goes on is said by what is held.
fn held(request: &mut Request) -> Option<Upload> {
    let held = held_by(request)?;
    request.head.body = held.borrow_mut().rewind();
    Some(Upload::Held(held))
}

/// The response body, from the server to the client.
pub enum Download {
    Length(u64),
    Chunked(Box<Decoder>),
    UntilClose,
    Done,
}

/// Chunks that were written anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rechunked {
    /// Bytes of the input that were used.
    pub consumed: usize,
    pub chunks: usize,
}

/// Decodes chunks and writes them anew, with those lines of the trailers that are kept.
pub fn rechunk(
    decoder: &mut Decoder,
    bytes: &[u8],
    out: &mut Vec<u8>,
    kept: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Result<Rechunked, h1::Reject> {
    let (mut at, mut chunks) = (0, 0);
    while at < bytes.len() {
        match decoder.next(&bytes[at..])? {
            Event::NeedMore { consumed } => at += consumed,
            Event::Data { start, end } => {
                write_chunk(&bytes[at + start..at + end], out);
                at += end;
                chunks += 1;
            }
            Event::End { consumed } => {
                h1::write_last_chunk(&kept(decoder.trailers().to_vec()), out);
                at += consumed;
                break;
            }
        }
    }
    Ok(Rechunked { consumed: at, chunks })
}

pub fn write_chunk(data: &[u8], out: &mut Vec<u8>) {
    h1::write_chunk_header(data.len(), out);
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// A chunked body that is whole, framed anew.
pub fn write_whole_chunked(body: &[u8], request: &Request, listener: &Listener, out: &mut Vec<u8>) {
    // The body was decoded once without an error when its end was looked for.
    let _ = rechunk(&mut decoder_for(request, listener), body, out, |lines| lines);
}

/// A server that merges trailers into the head must not be led by one with a name of `request_headers`, or of those
/// that the route changes.
pub fn decoder_for(request: &Request, listener: &Listener) -> Decoder {
    match listener.takes_trailers && !request.drops_trailers() {
        true => Decoder::new(),
        false => Decoder::new().without_trailers(),
    }
}
