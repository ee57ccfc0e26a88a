//! Facts of a relayed connection, and why one got no server.

use std::time::Instant;

use propylon_http::fault::Fault;

/// RFC 8446 §6.2: no server here has the name that the client asked for.
pub const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
/// RFC 8446 §6.2: the hello could not be read.
pub const DECODE_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 50];

/// Facts of a relayed connection for the log and the metrics.
pub struct Note {
    pub started: Instant,
    pub server_name: Option<Box<str>>,
    pub connect_us: Option<u32>,
    pub queue_us: Option<u32>,
    pub backend: Option<u32>,
    pub server: Option<u32>,
    pub attempts: u32,
}

impl Note {
    pub fn begin() -> Note {
        Note {
            started: Instant::now(),
            server_name: None,
            connect_us: None,
            queue_us: None,
            backend: None,
            server: None,
            attempts: 0,
        }
    }
}

/// Why a connection got no server.
pub struct Refusal {
    /// One of `telemetry::RELAY_FAULTS`.
    pub fault: Fault,
    /// Alert for a TLS client whose handshake has not begun.
    pub alert: Option<&'static [u8]>,
}

impl Refusal {
    pub fn silent(fault: Fault) -> Refusal {
        Refusal { fault, alert: None }
    }
}
