//! Reasons for which a direction of a transfer stops.

use propylon_http::fault::Fault;

use crate::fault::{Attempt, Repeatable};

/// Reason for which a direction stopped.
pub enum Stop {
    Server(Attempt),
    Client(Fault),
}

pub fn server_fault(fault: Fault) -> Stop {
    Stop::Server(Attempt::new(fault, Repeatable::No))
}
