//! The end of a request: its answer, held against what was asked for.

use crate::content::{Content, Side};
use crate::model::{How, Outcome, Stage};
use crate::timeline::{Run, ServerId};

/// The end of a request.
#[derive(Debug)]
pub struct RequestEnd {
    pub outcome: Outcome,
    pub status: Option<u16>,
    pub server: Option<(ServerId, Run)>,
}

impl RequestEnd {
    pub fn of(outcome: Outcome) -> Self {
        Self { outcome, status: None, server: None }
    }

    /// The end by an error before there was any of an answer.
    pub fn unopened(stage: Stage) -> Self {
        Self::of(Outcome::Broken(stage, How::Reset))
    }
}

/// The word in an answer of the engine's own: `502 Bad Gateway: connect-refused`.
fn reason_of(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.trim().rsplit(": ").next().unwrap_or_default().to_owned()
}

/// An answer as its head and its body tell it: whose it is, and whether it is the right one.
pub fn ending_of(id: u64, head: &AnswerHead, body: &BodyCheck, wanted: u64) -> RequestEnd {
    let status = head.status;
    let ended = |outcome| RequestEnd { outcome, status: Some(status), server: head.server };
    if head.server.is_none() {
        return ended(Outcome::Refused(status, reason_of(&body.start)));
    }
    if head.id != Some(id) {
        return ended(Outcome::Wrong(format!("the answer is to request {:?}", head.id)));
    }
    if status != 200 {
        return ended(Outcome::Failed(status));
    }
    if let Some(at) = body.wrong_at {
        return ended(Outcome::Wrong(format!("byte {at} of the body is wrong")));
    }
    if body.bytes != wanted {
        return ended(Outcome::Wrong(format!("a proper end after {} of {wanted} bytes", body.bytes)));
    }
    ended(Outcome::Served)
}

/// The facts that are read of an answer's head.
#[derive(Debug, Default)]
pub struct AnswerHead {
    pub status: u16,
    pub id: Option<u64>,
    pub server: Option<(ServerId, Run)>,
}

/// Bodies are compared as they come; of the engine's own the start is kept.
pub struct BodyCheck {
    pub content: Content,
    pub bytes: u64,
    pub wrong_at: Option<u64>,
    pub start: Vec<u8>,
}

/// Bytes that are kept from the start of a body that may be the engine's own.
const START_BYTES_MAX: usize = 256;

impl BodyCheck {
    pub fn new(id: u64) -> Self {
        let content = Content::of(id, Side::Response);
        Self { content, bytes: 0, wrong_at: None, start: Vec::new() }
    }

    pub fn take(&mut self, piece: &[u8]) {
        self.wrong_at = self.wrong_at.or_else(|| self.content.first_wrong(self.bytes, piece));
        self.bytes += piece.len() as u64;
        let room = START_BYTES_MAX.saturating_sub(self.start.len());
        self.start.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(bytes: &[u8]) -> BodyCheck {
        let mut check = BodyCheck::new(7);
        bytes.chunks(13).for_each(|piece| check.take(piece));
        check
    }

    fn head(status: u16, id: u64) -> AnswerHead {
        AnswerHead { status, id: Some(id), server: Some((ServerId(0), 1)) }
    }

    #[test]
    fn an_answer_is_right_only_if_it_is_whole_and_ones_own() {
        let body = Content::of(7, Side::Response).bytes(0, 100);
        assert_eq!(ending_of(7, &head(200, 7), &checked(&body), 100).outcome, Outcome::Served);
        let mut other = body.clone();
        other[50] ^= 1;
        for wrong in [
            ending_of(7, &head(200, 8), &checked(&body), 100),
            ending_of(7, &head(200, 7), &checked(&body[..99]), 100),
            ending_of(7, &head(200, 7), &checked(&other), 100),
        ] {
            assert!(matches!(wrong.outcome, Outcome::Wrong(_)), "{wrong:?}");
        }
        assert_eq!(ending_of(7, &head(500, 7), &checked(b""), 100).outcome, Outcome::Failed(500));
    }

    #[test]
    fn an_answer_of_the_engines_own_tells_its_reason() {
        let own = AnswerHead { status: 502, id: None, server: None };
        let ending = ending_of(7, &own, &checked(b"502 Bad Gateway: connect-refused\n"), 100);
        assert_eq!(ending.outcome, Outcome::Refused(502, "connect-refused".to_owned()));
    }
}
