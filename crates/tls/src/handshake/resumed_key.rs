//! Key type of the session that a TLS 1.2 client wants to resume, which decides its certificate.
//!
//! A TLS 1.2 session is resumed only with its own cipher suite, which is for one key type, and the library chooses
//! certificate and suite before it looks at the ticket. Where listeners of one profile differ in their order of key
//! types, a session of one listener would otherwise be refused by the next.

use rustls::{CipherSuite, ServerConfig};

use crate::hello::class::{content_of, offers_tls13, session_id_of};

const SESSION_TICKET: u16 = 35;

/// Whether the session that the hello in `record` asks for began with an RSA certificate. None where it asks for no
/// known session, and where the hello is not complete in its record.
pub(crate) fn is_rsa(config: &ServerConfig, record: &[u8]) -> Option<bool> {
    // Suites of TLS 1.3 are for all key types.
    if offers_tls13(record) {
        return None;
    }
    let state = match content_of(record, SESSION_TICKET) {
        Some(ticket) if !ticket.is_empty() => config.ticketer.decrypt(ticket)?,
        _ if config.session_storage.can_cache() => config.session_storage.get(session_id_of(record)?)?,
        _ => return None,
    };
    has_rsa_suite(zeroize::Zeroizing::new(state).as_slice())
}

/// Whether the suite in the library's session state is for RSA. The format is not documented, see `client_auth`; none
/// if it has changed: then sessions are resumed only where the orders agree, and a test fails.
fn has_rsa_suite(state: &[u8]) -> Option<bool> {
    let (has_name, mut rest) = state.split_first()?;
    if *has_name == 1 {
        let (len, name) = rest.split_first()?;
        rest = name.get(usize::from(*len)..)?;
    }
    let [_, _, high, low] = *rest.first_chunk::<4>()?;
    match CipherSuite::from(u16::from_be_bytes([high, low])) {
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Some(true),
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => Some(false),
        _ => None,
    }
}
