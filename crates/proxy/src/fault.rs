//! Why an attempt at a server failed: what its client is told, how it is counted, and whether it may be repeated.

use propylon_http::h1;

/// The `reason` of an attempt whose stream the server has reset.
pub const STREAM_RESET: &str = "stream-reset";

/// The `reason` of a reset whose code says that it is about the request itself: a deadline that the client has set is
/// over (gRPC), or the server does not take a field.
pub const REQUEST_RESET: &str = "request-reset";

/// The `reason` of an attempt whose connection had brought a whole response, until the server ended it by GOAWAY. An
/// error is about something sent on it, which need not be this request, nor anything wrong.
pub const CUT_OFF: &str = "goaway";

/// The `reason` of a response whose server has sent more than belongs to it: bytes behind its body, or a body where
/// there may be none. The excess does not go on to the client.
pub const EXCESS_DATA: &str = "excess-data";

/// Failure of one attempt.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The status for the client if this was the last attempt.
    pub status: u16,
    /// One of `telemetry::SERVER_FAULTS`.
    pub reason: &'static str,
    /// The request may be tried again as far as this failure goes.
    pub repeatable: Repeatable,
}

impl Attempt {
    /// A response's head that is refused.
    pub fn of_bad_head(reject: &h1::Reject) -> Attempt {
        log::debug!("a server's response was refused: {reject}");
        let reason = match reject.reason {
            // Often as long as what was asked: a target, a cookie.
            "head-too-long" | "too-many-fields" => "response-head-too-large",
            "bad-switch" | "switched-without-being-asked" => "bad-switch",
            _ => "bad-response",
        };
        Attempt { status: 502, reason, repeatable: Repeatable::No }
    }

    /// Takes into account that the client still owed a part of the request, or the server did not take it: a server
    /// need not wait for that part, nor read one that it does not want, and is not blamed if it closes unanswered.
    pub fn with_body_owed(self, owed: bool) -> Attempt {
        match self.reason {
            "closed-before-response" if owed => Attempt { reason: "closed-during-request", ..self },
            _ => self,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeatable {
    /// Nothing was sent.
    Unsent,
    /// Sent, and the server closed before any byte of a response.
    Unanswered,
    No,
}
