//! Facts about a client from its ClientHello and its certificate.

use crate::certificates::identity::Identity;
use crate::hello::client_hello::Peeker;
use crate::hello::ja4::Ja4;

/// Facts of a client's hello, kept in a box and dropped where nobody needs it, to keep idle connections
/// small. Rare fields are boxed once more, since the server name often has to be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHelloInfo {
    /// Server name that the client asked for, in lower case.
    pub server_name: Option<Box<str>>,
    /// JA4 fingerprint, where the profile has `ja4`.
    pub ja4: Option<Box<Ja4>>,
    /// Identity that the client has proved by a certificate, in this handshake or in the one whose session was resumed.
    pub identity: Option<Box<Identity>>,
}

impl ClientHelloInfo {
    pub(crate) fn is_empty(&self) -> bool {
        self.server_name.is_none() && self.ja4.is_none() && self.identity.is_none()
    }

    /// Facts from the ClientHello of a failed handshake, for the log.
    pub(crate) fn of_failed(bytes: &[u8], ja4: bool) -> ClientHelloInfo {
        let mut scratch = Vec::new();
        let Ok(Some(hello)) = Peeker::default().peek(bytes, &mut scratch) else {
            return ClientHelloInfo::default();
        };
        ClientHelloInfo {
            server_name: hello.server_name().map(|name| name.to_ascii_lowercase().into()),
            ja4: ja4.then(|| Box::new(Ja4::of(&hello))),
            identity: None,
        }
    }
}

/// Computes the JA4 fingerprint while a hello arrives.
#[derive(Debug, Default)]
pub(crate) struct Ja4Scanner {
    peeker: Peeker,
    pub ja4: Option<Ja4>,
    /// The fingerprint has been computed, or the hello is malformed.
    over: bool,
}

impl Ja4Scanner {
    /// Looks at the bytes from the client's first one on.
    pub fn scan(&mut self, bytes: &[u8]) {
        if self.over {
            return;
        }
        let mut scratch = Vec::new();
        match self.peeker.peek(bytes, &mut scratch) {
            Ok(None) => {}
            Ok(Some(hello)) => {
                self.ja4 = Some(Ja4::of(&hello));
                self.over = true;
            }
            Err(_) => self.over = true,
        }
    }
}
