//! A ClientHello written by hand that offers one TLS 1.2 cipher suite, and what the server says to it.
//!
//! No TLS library is used: today's offer neither RC4 nor 3DES nor static ECDH, so with them a refusal could not be
//! told from an offer that was never made.

use crate::failure::{Failure, Outcome, While};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);
/// RFC 8446 §5.1: record types.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;
/// RFC 5246 §6.2.1, with what §6.2.3 allows on top: no record is longer.
const RECORD_BYTES_MAX: usize = 16_384 + 2048;

/// The server's first words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A ServerHello with this suite.
    Accepted(u16),
    /// A fatal alert (RFC 8446 §6.2).
    Alert(u8),
    /// The connection was closed or reset without a word.
    Closed,
}

/// Offers `suite` and nothing else.
pub fn offer(address: SocketAddr, name: &str, suite: u16) -> Outcome<Answer> {
    let doing = "a hand-written ClientHello";
    let mut socket = TcpStream::connect_timeout(&address, TIMEOUT).when(doing)?;
    socket.set_read_timeout(Some(TIMEOUT)).when(doing)?;
    socket.set_write_timeout(Some(TIMEOUT)).when(doing)?;
    socket.write_all(&client_hello(name, suite)).when(doing)?;
    let mut head = [0; 5];
    if let Err(error) = socket.read_exact(&mut head) {
        return match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ok(Answer::Closed),
            _ => Err(error).when(doing),
        };
    }
    let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if length > RECORD_BYTES_MAX {
        return Err(Failure::new(format!("{doing}: the answer is not TLS")));
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).when(doing)?;
    read_answer(head[0], &body).ok_or_else(|| Failure::new(format!("{doing}: the answer is not a TLS answer")))
}

fn read_answer(record: u8, body: &[u8]) -> Option<Answer> {
    match record {
        ALERT => Some(Answer::Alert(*body.get(1)?)),
        HANDSHAKE if body.first() == Some(&SERVER_HELLO) => {
            // RFC 5246 §7.4.1.3: type and length (4), version (2), random (32), session id with its length, suite.
            let session_id_bytes = usize::from(*body.get(38)?);
            let suite = body.get(39 + session_id_bytes..41 + session_id_bytes)?;
            Some(Answer::Accepted(u16::from_be_bytes([suite[0], suite[1]])))
        }
        _ => None,
    }
}

/// RFC 5246 §7.4.1.2, with the extensions that a client of that time sent, so that only the suite can be at fault.
fn client_hello(name: &str, suite: u16) -> Vec<u8> {
    let host = name.as_bytes();
    let mut extensions = Vec::new();
    // server_name (RFC 6066 §3): a list of one name of type host_name.
    extensions.extend(extension(0, &block16(&[&[0u8][..], &block16(host)].concat())));
    // extended_master_secret (RFC 7627), empty.
    extensions.extend(extension(23, &[]));
    // supported_groups: X25519, P-256, P-384, P-521, ffdhe2048.
    extensions.extend(extension(10, &block16(&[0, 29, 0, 23, 0, 24, 0, 25, 1, 0])));
    // ec_point_formats: uncompressed.
    extensions.extend(extension(11, &[1, 0]));
    // signature_algorithms: ECDSA with SHA-256, 384, 512 and SHA-1; RSA-PSS; RSA PKCS#1 with SHA-256, 384, 512, SHA-1.
    let schemes = [4, 3, 5, 3, 6, 3, 8, 4, 8, 5, 8, 6, 4, 1, 5, 1, 6, 1, 2, 3, 2, 1];
    extensions.extend(extension(13, &block16(&schemes)));

    let mut body = vec![3, 3];
    body.extend((0..32).map(|_| fastrand::u8(..)));
    // No session id; the suite and the signal for secure renegotiation (RFC 5746 §3.3); no compression.
    body.push(0);
    body.extend(block16(&[&suite.to_be_bytes()[..], &[0x00, 0xff]].concat()));
    body.extend([1, 0]);
    body.extend(block16(&extensions));

    let mut handshake = vec![1, 0];
    handshake.extend(block16(&body));
    let mut record = vec![HANDSHAKE, 3, 1];
    record.extend(block16(&handshake));
    record
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &block16(body)].concat()
}

/// A length of two bytes, then the bytes; all blocks here are far below 65,536.
fn block16(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u16).to_be_bytes()[..], body].concat()
}

impl Answer {
    pub fn show(&self) -> String {
        match self {
            Self::Accepted(suite) => format!("ServerHello with {suite:#06x}"),
            Self::Alert(40) => "alert 40, handshake_failure".to_owned(),
            Self::Alert(70) => "alert 70, protocol_version".to_owned(),
            Self::Alert(71) => "alert 71, insufficient_security".to_owned(),
            Self::Alert(number) => format!("alert {number}"),
            Self::Closed => "closed without a word".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    use std::sync::Arc;

    /// A server's TLS library reads the ClientHello and answers; once for each connection.
    fn answers(suites: &[u16]) -> Vec<Answer> {
        let scratch = crate::scratch::ScratchDir::new().unwrap();
        crate::compare::site::write_certificates(&scratch).unwrap();
        let pem = scratch.path().join(format!("{}.rsa.pem", crate::compare::site::SITE_NAME));
        let chain = CertificateDer::pem_file_iter(&pem).unwrap().map(Result::unwrap).collect();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12, &rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(&pem).unwrap())
            .unwrap();
        let (config, count) = (Arc::new(config), suites.len());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for _ in 0..count {
                let (mut socket, _) = listener.accept().unwrap();
                let mut session = rustls::ServerConnection::new(config.clone()).unwrap();
                while session.complete_io(&mut socket).is_ok() && session.is_handshaking() {}
            }
        });
        let answers = suites.iter().map(|suite| offer(address, "bench.test", *suite).unwrap()).collect();
        server.join().unwrap();
        answers
    }

    #[test]
    fn a_modern_suite_is_accepted_and_an_old_one_is_not() {
        let rc4 = 0x0005;
        let ecdsa_without_such_a_key = 0xc02b;
        let answers = answers(&[0xc02f, rc4, ecdsa_without_such_a_key]);
        assert_eq!(answers, [Answer::Accepted(0xc02f), Answer::Alert(40), Answer::Alert(40)]);
    }

    #[test]
    fn nonsense_is_no_answer() {
        assert_eq!(read_answer(72, b"TTP/1.1"), None);
        assert_eq!(read_answer(HANDSHAKE, &[SERVER_HELLO, 0, 0]), None);
        assert_eq!(read_answer(ALERT, &[2, 40]), Some(Answer::Alert(40)));
    }
}
