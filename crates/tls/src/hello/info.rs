//! What a client has said of itself, beyond what was agreed on.

use crate::certificates::identity::Identity;
use crate::hello::client_hello::Peeker;
use crate::hello::ja4::Ja4;

/// Boxed, and gone where nobody asks for it: an idle connection should not carry what its log line had. What few
/// clients have is boxed once more, since every client's server name may have to be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHelloInfo {
    /// The name that the client asked for, in lower case.
    pub server_name: Option<Box<str>>,
    /// Where the profile asks for it.
    pub ja4: Option<Box<Ja4>>,
    /// Whom the client has proved to be, in this handshake or in the one whose session was resumed.
    pub identity: Option<Box<Identity>>,
}

impl ClientHelloInfo {
    pub(crate) fn is_empty(&self) -> bool {
        self.server_name.is_none() && self.ja4.is_none() && self.identity.is_none()
    }

    /// As far as a hello goes that a handshake has failed at, for the log.
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

/// Looks for the fingerprint while a hello arrives.
#[derive(Debug, Default)]
pub(crate) struct Ja4Scanner {
    peeker: Peeker,
    pub ja4: Option<Ja4>,
    /// There is nothing more to look for.
    over: bool,
}

impl Ja4Scanner {
    /// The bytes from the client's first one on.
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
