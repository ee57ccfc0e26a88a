//! Messages of HTTP/2 as they come: header blocks read into requests, into heads that wait for their requests' tasks,
//! and into the lines of trailers.

use propylon_http::fault::Fault;
use propylon_http::h1::{Limits, Name, Pseudo, Reject};
use propylon_http::h2::{self, Block, ConnectionFault, Refusal, RequestReader};

use super::link::{Link, Streams};
use crate::request::Request;
use crate::services::ReceivedHead;

/// Fields of a server's head, at most.
const FIELDS_MAX: usize = 200;
/// Heads of a stream that wait for its task: as many interim ones as a response may have, and the last.
const HEADS_MAX: usize = 17;
/// Trailers, as many as over HTTP/1.1.
const TRAILERS_MAX: usize = 64;
/// Pseudo-header fields of a request, which count as no fields of it.
const PSEUDO_FIELDS_MAX: usize = 5;

/// Reads a request.
///
/// # Errors
/// The connection is to end; or, within, the request is malformed, or refused with a status.
pub fn read_request(
    h2: &mut Streams,
    (block, input): (&Block, &[u8]),
    limits: &Limits,
    random: &mut fastrand::Rng,
    request: &mut Request,
) -> Result<Result<(), Refusal>, ConnectionFault> {
    let Request { text, head, .. } = request;
    let mut reader = RequestReader::new(h2.allows_connect());
    let fields_max = limits.headers + PSEUDO_FIELDS_MAX;
    let decoded = h2.decode(block, input, text, fields_max, &mut |text, field| reader.field(text, field, head))?;
    let read = match decoded.flaw {
        Some(flaw @ Fault::SpaceAroundValue) => Err(Refusal::Rejected(Reject::of(flaw))),
        Some(_) => Err(Refusal::Malformed),
        None if decoded.fields > fields_max => Err(Refusal::Rejected(Reject::of(Fault::TooManyFields))),
        None if decoded.is_cut => Err(Refusal::Rejected(Reject::of(Fault::HeadTooLong))),
        None => reader.finish(text, block.end, limits, || random.u128(..).to_be_bytes(), head),
    };
    request.note.bytes_received = request.text.len() as u64;
    request.note.head_us = 0;
    Ok(read)
}

/// Reads the head of a response, as far as that can be done without its request.
///
/// # Errors
/// The connection is to end.
pub fn read_response(link: &Link, h2: &mut Streams, block: &Block, input: &[u8]) -> Result<(), ConnectionFault> {
    let mut head = link.services.heads.take();
    let ReceivedHead { text, fields, .. } = &mut *head;
    let mut is_interim = false;
    let decoded = h2.decode(block, input, text, FIELDS_MAX, &mut |text, field| {
        if field.kind == Name::Pseudo(Pseudo::Status) {
            is_interim = field.value.bytes(text).first() == Some(&b'1');
        }
        fields.push(field);
    })?;
    head.flaw = decoded.flaw.or(decoded.is_cut.then_some(Fault::HeadTooLong));
    head.end = block.end;
    if is_interim && block.end {
        head.flaw = Some(Fault::BadResponse);
    }
    // Nobody takes them as fast as they come.
    if link.waiting_heads(h2, block.stream) >= HEADS_MAX {
        link.services.heads.give_back(head);
        h2.reject(block)?;
        link.wake_stream(h2, block.stream);
        return Ok(());
    }
    h2.responds(block.stream, !is_interim || block.end, block.end);
    link.received_head(h2, block.stream, head);
    Ok(())
}

/// Reads trailers.
///
/// # Errors
/// The connection is to end.
pub fn read_trailers(link: &Link, h2: &mut Streams, block: &Block, input: &[u8]) -> Result<(), ConnectionFault> {
    let (mut text, mut lines, mut is_fine) = (Vec::new(), Vec::new(), true);
    let decoded = h2.decode(block, input, &mut text, TRAILERS_MAX, &mut |text, field| {
        is_fine &= h2::read_trailer(text, field, &mut lines);
    })?;
    if !is_fine || decoded.flaw.is_some() || decoded.is_cut {
        h2.reject(block)?;
        link.wake_stream(h2, block.stream);
        return Ok(());
    }
    h2.trails(block.stream)?;
    link.received_trailers(h2, block.stream, lines);
    Ok(())
}
