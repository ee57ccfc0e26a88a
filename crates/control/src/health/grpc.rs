//! A probe by gRPC: grpc.health.v1.Health/Check over HTTP/2, with prior knowledge or by ALPN. The two messages have one field each, so they are
//! written and read by hand.

use super::failure::Failure;
use super::http2::{self, Answer, Request};
use super::stream::ProbeStream;

const PATH: &str = "/grpc.health.v1.Health/Check";
/// An answer has five bytes of frame and two of message; anything long is something else.
const ANSWER_BYTES_MAX: usize = 1024;
/// `HealthCheckResponse.ServingStatus.SERVING`
const SERVING: u64 = 1;

/// Asks and judges the answer. The connection ends with it.
pub async fn ask(stream: ProbeStream, service: &str, host: &str, secure: bool) -> Result<(), Failure> {
    let request = Request {
        method: "POST",
        host,
        path: PATH,
        secure,
        fields: &[("content-type", "application/grpc"), ("te", "trailers")],
        body: Some(question(service)),
    };
    let answer = http2::exchange(stream, request, |answer| {
        answer.status() != 200 || judge_status(answer).is_err() || answer.body.len() > ANSWER_BYTES_MAX
    });
    let answer = answer.await?;
    if answer.status() != 200 {
        return Err(Failure::new("unexpected-status", answer.status().to_string()));
    }
    judge_status(&answer)?;
    if answer.body.len() > ANSWER_BYTES_MAX {
        return Err(Failure::new("bad-response", "the answer is too long"));
    }
    match serving_status(&answer.body) {
        Some(SERVING) => Ok(()),
        Some(2) => Err(Failure::new("not-serving", "NOT_SERVING")),
        Some(3) => Err(Failure::new("not-serving", "SERVICE_UNKNOWN")),
        Some(other) => Err(Failure::new("not-serving", format!("status {other}"))),
        None => Err(Failure::new("bad-response", "no message of grpc.health.v1")),
    }
}

/// `grpc-status`, in the head where there is no message, or in the trailers.
fn judge_status(answer: &Answer) -> Result<(), Failure> {
    match answer.field("grpc-status") {
        None | Some(b"0") => Ok(()),
        // NOT_FOUND: the server knows no service of that name.
        Some(b"5") => Err(Failure::new("not-serving", "the service is unknown there")),
        Some(other) => Err(Failure::new("not-serving", format!("grpc-status {}", String::from_utf8_lossy(other)))),
    }
}

/// A message in its frame: not compressed, its length, `HealthCheckRequest { service = 1 }`.
fn question(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        push_varint(&mut message, service.len() as u64);
        message.extend_from_slice(service.as_bytes());
    }
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(&message);
    framed
}

/// `HealthCheckResponse { status = 1 }` in its frame. Fields that are not known are passed over, as protobuf wants it.
fn serving_status(framed: &[u8]) -> Option<u64> {
    let (&[compressed, ref length @ ..], mut message) = framed.split_first_chunk::<5>()?;
    if compressed != 0 || u32::from_be_bytes(*length) as usize != message.len() {
        return None;
    }
    // The default of an enumeration is not sent.
    let mut status = 0;
    while !message.is_empty() {
        let key = take_varint(&mut message)?;
        match (key >> 3, key & 7) {
            (1, 0) => status = take_varint(&mut message)?,
            (_, 0) => drop(take_varint(&mut message)?),
            (_, 1) => message = message.get(8..)?,
            (_, 2) => {
                let length = take_varint(&mut message)?;
                message = message.get(usize::try_from(length).ok()?..)?;
            }
            (_, 5) => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_what_protobuf_makes_of_it() {
        assert_eq!(&question("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&question("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = "x".repeat(300);
        assert_eq!(question(&long)[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 2]);
    }

    #[test]
    fn only_a_whole_message_has_a_status() {
        assert_eq!(serving_status(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
        assert_eq!(serving_status(&[0, 0, 0, 0, 0]), Some(0), "UNKNOWN is not written");
        assert_eq!(serving_status(&[0, 0, 0, 0, 6, 0x12, 2, b'h', b'i', 8, 2]), Some(2), "an unknown field before it");
        for damaged in [
            &[][..],
            &[0, 0, 0, 0, 3, 8, 1],
            &[1, 0, 0, 0, 2, 8, 1],
            &[0, 0, 0, 0, 1, 8],
            &[0, 0, 0, 0, 2, 0x12, 9],
            &[0, 0, 0, 0, 1, 0xff],
        ] {
            assert_eq!(serving_status(damaged), None, "{damaged:?}");
        }
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut message = vec![0, 0, 0, 0, random.u8(0..12)];
            let count = random.usize(0..12);
            message.extend(std::iter::repeat_with(|| random.u8(..)).take(count));
            let _ = serving_status(&message);
        }
    }
}
