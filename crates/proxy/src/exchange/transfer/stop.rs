//! Reasons for which a direction of a transfer stops.

use propylon_http::fault::Fault;
use propylon_http::h1::Reject;

use crate::fault::{Attempt, Repeatable};

/// Reason for which a direction stopped.
pub enum Stop {
    Server(Attempt),
    Client(Fault),
}

pub fn server_fault(fault: Fault) -> Stop {
    Stop::Server(Attempt::new(fault, Repeatable::No))
}

/// A request's body in chunks that is refused: the client is told that it is too long, or that it is bad.
pub fn bad_body(reject: Reject) -> Stop {
    Stop::Client(if reject.fault == Fault::BodyTooLong { Fault::BodyTooLong } else { Fault::BadBody })
}
