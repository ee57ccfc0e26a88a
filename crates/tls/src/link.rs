//! A connection to a key server, without its socket: TLS as a client that shows a certificate.
//!
//! [`LinkProfile`] is one `[signer.NAME]`, loaded once; [`Link`] is one connection. Records go in and come out as bytes; what
//! is inside them is the caller's.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use propylon_config::{ServerAddress, Signer, SignerServer};
use rustls::ClientConnection;
use rustls_pki_types::ServerName;

use crate::dated::Dated;
use crate::finding::{Finding, Severity};
use crate::load;
use crate::wording;

/// Shared by all cores, which only make links of it.
pub struct LinkProfile {
    config: Arc<rustls::ClientConfig>,
    /// By server.
    names: Vec<ServerName<'static>>,
    identity: Option<Dated>,
}

/// One connection's TLS. After an error it is of no further use.
pub struct Link(Box<ClientConnection>);

/// Why a link has ended: it holds nothing secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError(String);

/// Plaintext sealed at once: whole records, so that what is sent together arrives together.
const PIECE_BYTES: usize = 16 * 1024;

impl LinkProfile {
    /// Reads and checks identity and authorities. Findings are as with [`Profile::load`](crate::Profile::load).
    pub fn load(signer: &Signer) -> Result<(LinkProfile, Vec<Finding>), Vec<Finding>> {
        let (config, mut findings) = load::link_identity(signer);
        let mut names = Vec::new();
        for server in &signer.servers {
            let name = name_of(server);
            match ServerName::try_from(name.clone()) {
                Ok(name) => names.push(name),
                Err(_) => findings.push(Finding {
                    severity: Severity::Error,
                    at: server.at,
                    path: "".into(),
                    what: format!("no certificate can be for the name \"{name}\""),
                    fix: "add `server_name` with a name that its certificate is for".into(),
                }),
            }
        }
        match config {
            Some((config, identity)) if names.len() == signer.servers.len() => {
                Ok((LinkProfile { config: Arc::new(config), names, identity }, findings))
            }
            _ => Err(findings),
        }
    }

    /// When what is shown to key servers ends.
    pub fn dated(&self) -> Option<&Dated> {
        self.identity.as_ref()
    }

    /// A new connection's, to this server.
    pub fn link(&self, server: usize) -> Result<Link, LinkError> {
        let mut connection = ClientConnection::new(self.config.clone(), self.names[server].clone())?;
        // What is sealed is taken out at once; the bound is the caller's, who knows how much there may be.
        connection.set_buffer_limit(None);
        Ok(Link(Box::new(connection)))
    }
}

fn name_of(server: &SignerServer) -> String {
    match (&server.server_name, &server.address) {
        (Some(name), _) => name.trim_start_matches('[').trim_end_matches(']').to_string(),
        (None, ServerAddress::Ip(address)) => address.ip().to_string(),
        (None, ServerAddress::Name { host, .. }) => host.clone(),
        (None, ServerAddress::Srv { name }) => name.clone(),
    }
}

impl Link {
    /// Whether the handshake is over, as far as this end can tell: in TLS 1.3 the server may yet refuse our certificate.
    #[must_use]
    pub fn is_established(&self) -> bool {
        !self.0.is_handshaking()
    }

    /// Takes what came from the server, and appends what was inside. True when the server has ended the connection in
    /// order. An alert for the server may have to be sent even after an error.
    pub fn receive(&mut self, mut records: &[u8], plain: &mut Vec<u8>) -> Result<bool, LinkError> {
        let mut ended = false;
        while !records.is_empty() && !ended {
            self.0.read_tls(&mut records)?;
            ended = self.0.process_new_packets()?.peer_has_closed();
            match self.0.reader().read_to_end(plain) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(ended)
    }

    /// Seals plaintext in as few records as hold it, and appends them.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), LinkError> {
        for piece in plain.chunks(PIECE_BYTES) {
            self.0.writer().write_all(piece)?;
            self.send(out)?;
        }
        Ok(())
    }

    /// Appends what TLS itself has to say: the handshake, alerts, answers to key updates.
    pub fn send(&mut self, out: &mut Vec<u8>) -> Result<(), LinkError> {
        while self.0.wants_write() {
            self.0.write_tls(out)?;
        }
        Ok(())
    }
}

impl fmt::Debug for LinkProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkProfile").field("names", &self.names).finish_non_exhaustive()
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LinkError {}

impl From<rustls::Error> for LinkError {
    fn from(error: rustls::Error) -> LinkError {
        LinkError(wording::of(&error))
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        LinkError(error.to_string())
    }
}
