//! Promises for any header blocks whatever: shared by the fuzz target and by a seeded run among the tests. Panics if
//! one is broken.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const LIST_BYTES_MAX: usize = 16 * 1024;
/// How many blocks of one input are looked at.
const BLOCKS_MAX: usize = 50;

/// A connection's bytes: what is to be read from it, and what was written.
#[derive(Clone, Default)]
struct Memory {
    incoming: Rc<RefCell<Vec<u8>>>,
    outgoing: Rc<RefCell<Vec<u8>>>,
}

impl AsyncRead for Memory {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut incoming = self.incoming.borrow_mut();
        let count = into.remaining().min(incoming.len());
        into.put_slice(&incoming[..count]);
        incoming.drain(..count);
        if count > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl AsyncWrite for Memory {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.outgoing.borrow_mut().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Header blocks, each after its length in two bytes, are requests: either the connection is ended by us, or the
/// library serves or resets their streams and keeps the connection.
pub fn blocks(mut input: &[u8]) {
    let mut all = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk::<2>()
        && all.len() < BLOCKS_MAX
    {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len()).min(FRAME_BYTES_MAX);
        all.push(&rest[..length]);
        input = &rest[length..];
    }
    check(&all);
}

pub fn check(blocks: &[&[u8]]) {
    let limits = Http2Flood::default();
    let moment = Moment { now: 0, sent: 0, limits: &limits };
    let mut intake = Intake::of_client(100, LIST_BYTES_MAX);
    let mut context = Context::from_waker(Waker::noop());
    let memory = Memory::default();
    let give = |bytes: &[u8]| memory.incoming.borrow_mut().extend_from_slice(bytes);
    let mut builder = h2::server::Builder::new();
    builder.max_header_list_size(LIST_BYTES_MAX as u32).max_pending_accept_reset_streams(BLOCKS_MAX);
    let mut handshake = pin!(builder.handshake::<Memory, Bytes>(memory.clone()));
    assert!(intake.take(PREFACE, moment).is_ok());
    give(PREFACE);
    let Poll::Ready(Ok(mut library)) = handshake.as_mut().poll(&mut context) else { panic!("no handshake") };
    for (index, block) in blocks.iter().enumerate() {
        let mut frame = Vec::new();
        write_frame(HEADERS, END_STREAM | END_HEADERS, index as u32 * 2 + 1, block, &mut frame);
        match intake.take(&frame, moment) {
            // Ours to end.
            Err(_) => return,
            Ok(taken) => give(&frame[..taken.pass]),
        }
        give(intake.ready());
        intake.consume_ready(intake.ready().len());
        while let Poll::Ready(accepted) = library.poll_accept(&mut context) {
            if let Some(Ok((_, mut respond))) = accepted {
                let _ = respond.send_response(http::Response::new(()), true);
            } else {
                let error = goaway(&memory.outgoing.borrow());
                // A list beyond all bounds is one (RFC 9113 §10.5.1).
                let fine = error == Some(u32::from(Reason::ENHANCE_YOUR_CALM));
                assert!(fine, "{error:?} for block {index}: {}", block.escape_ascii());
                return;
            }
        }
    }
    assert_eq!(goaway(&memory.outgoing.borrow()), None);
}

/// The code of a GOAWAY among these frames.
fn goaway(mut bytes: &[u8]) -> Option<u32> {
    while bytes.len() >= FRAME_HEADER_BYTES {
        let header = FrameHeader::read(bytes);
        let payload = &bytes[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.length];
        if header.kind == 0x7 {
            return Some(u32::from_be_bytes([payload[4], payload[5], payload[6], payload[7]]));
        }
        bytes = &bytes[FRAME_HEADER_BYTES + header.length..];
    }
    None
}
