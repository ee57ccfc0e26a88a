//! TLS to the servers of a backend, without sockets: this side is the client.
//!
//! [`UpstreamProfile`] is one `tls` of `[backend.NAME]`, loaded once; [`Connector`] is one core's, with the sessions
//! that it may go on with; [`UpstreamHandshake`] is the begin of one connection, and [`UpstreamSession`] the rest.

mod facts;
mod failure;
mod handshake;
pub(crate) mod link;
mod session;
mod store;
mod trust;

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use propylon_config::{At, Backend, BackendTls, ServerAddress};
use propylon_crypto::Ski;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor};

use crate::certificates::dated::Dated;
use crate::certificates::finding::{Finding, Severity};
use crate::certificates::load;
use crate::parking::{Deferral, JobRouting, Parking};
pub use facts::UpstreamFacts;
pub use failure::UpstreamFailure;
pub use session::{UpstreamHandshake, UpstreamSession};
use store::Store;

/// Shared by all cores, which only make their connectors of it.
#[derive(Clone)]
pub struct UpstreamProfile {
    config: ClientConfig,
    /// By server of the backend.
    names: Vec<ServerName<'static>>,
    resume: bool,
    /// What it was made of, to be told from another of the same configuration.
    roots: Vec<TrustAnchor<'static>>,
    chain: Vec<CertificateDer<'static>>,
    identity: Option<Dated>,
    /// The name of its key in the process beside this one, if it is there.
    beside: Option<Ski>,
}

/// One core's way to make sessions with the servers of one backend.
pub struct Connector {
    servers: Vec<Target>,
    /// The key of what is shown to servers signs elsewhere.
    remote: bool,
    /// The room in which handshakes wait for signatures.
    routing: Option<JobRouting>,
}

struct Target {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl UpstreamProfile {
    /// Reads and checks authorities and the client certificate. Findings are as with
    /// [`Profile::load`](crate::Profile::load).
    ///
    /// `alpn` lists protocols, most preferred first; a server that knows none of them may go on without.
    pub fn load(
        backend: &Backend,
        tls: &BackendTls,
        alpn: &[&[u8]],
    ) -> Result<(UpstreamProfile, Vec<Finding>), Vec<Finding>> {
        let servers: Vec<(&ServerAddress, At)> =
            backend.servers.iter().map(|server| (&server.address, server.at)).collect();
        UpstreamProfile::load_for(&servers, tls, alpn)
    }

    /// The same for servers that are nobody's backend, each with where it is written.
    pub fn load_for(
        servers: &[(&ServerAddress, At)],
        tls: &BackendTls,
        alpn: &[&[u8]],
    ) -> Result<(UpstreamProfile, Vec<Finding>), Vec<Finding>> {
        let (loaded, mut findings) = load::upstream(tls);
        let mut names = Vec::new();
        for (address, at) in servers {
            let name = name_of(tls, address);
            match ServerName::try_from(name.clone()) {
                Ok(name) => names.push(name),
                Err(_) => findings.push(Finding {
                    severity: Severity::Error,
                    at: *at,
                    path: "".into(),
                    what: format!("no certificate can be for the name \"{name}\""),
                    fix: "add `server_name` to `tls` with a name that the server's certificate is for".into(),
                    error: None,
                }),
            }
        }
        let Some(loaded) = loaded.filter(|_| names.len() == servers.len()) else { return Err(findings) };
        let (roots, chain, identity) = (loaded.roots.roots.clone(), loaded.chain.clone(), loaded.dated.clone());
        let beside = loaded.beside;
        let mut config = match trust::config(tls, loaded) {
            Ok(config) => config,
            Err(why) => {
                findings.push(Finding {
                    severity: Severity::Error,
                    at: tls.at,
                    path: "".into(),
                    what: why,
                    fix: "export authorities, certificate and key again".into(),
                    error: None,
                });
                return Err(findings);
            }
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Ok((UpstreamProfile { config, names, resume: tls.resume, roots, chain, identity, beside }, findings))
    }

    /// Turns what was read to the servers that the backend has by now. None where one of them has a name that no
    /// certificate can be for; [`UpstreamProfile::load`] says which.
    #[must_use]
    pub fn towards(&self, backend: &Backend, tls: &BackendTls) -> Option<UpstreamProfile> {
        let names = backend.servers.iter().map(|server| ServerName::try_from(name_of(tls, &server.address)).ok());
        Some(UpstreamProfile { names: names.collect::<Option<_>>()?, ..self.clone() })
    }

    /// When what is shown to servers ends.
    pub fn dated(&self) -> Option<&Dated> {
        self.identity.as_ref()
    }

    /// The name of the client certificate's key in the process that holds this process's keys, if it is there.
    pub fn key_beside(&self) -> Option<Ski> {
        self.beside
    }

    /// Whether servers and we would see no difference; both are of the same `[backend.NAME]`. A key is told by its
    /// certificate.
    pub fn same_as(&self, other: &UpstreamProfile) -> bool {
        self.names == other.names && self.same_files(other)
    }

    /// Whether the same was read of the files of both.
    pub fn same_files(&self, other: &UpstreamProfile) -> bool {
        self.roots == other.roots && self.chain == other.chain
    }

    /// For somebody who asks the servers for other protocols than requests need.
    pub fn connector_for(&self, alpn: &[&[u8]]) -> Connector {
        let mut config = self.config.clone();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        self.connector_of(&config)
    }

    /// For one core, which the caller of this is: cores share neither sessions nor reference counts of their own.
    ///
    /// Sessions are kept for each server by itself: servers of one name need not know each other's tickets.
    pub fn connector(&self) -> Connector {
        self.connector_of(&self.config)
    }

    fn connector_of(&self, config: &ClientConfig) -> Connector {
        let target = |name: &ServerName<'static>| {
            let mut config = config.clone();
            config.resumption = match self.resume {
                true => Resumption::store(Arc::new(Store::default())),
                false => Resumption::disabled(),
            };
            Target { config: Arc::new(config), name: name.clone() }
        };
        Connector { servers: self.names.iter().map(target).collect(), remote: self.beside.is_some(), routing: None }
    }
}

/// What the certificate of a server has to be for.
fn name_of(tls: &BackendTls, address: &ServerAddress) -> String {
    match (&tls.server_name, address) {
        (Some(name), _) => name.trim_start_matches('[').trim_end_matches(']').to_string(),
        (None, ServerAddress::Ip(address)) => address.ip().to_string(),
        (None, ServerAddress::Name { host, .. }) => host.clone(),
        // The hosts behind a service come from the network, unsigned: they are no names to trust.
        (None, ServerAddress::Srv { name }) => name.splitn(3, '.').last().unwrap_or_default().to_string(),
    }
}

impl Connector {
    /// From here on handshakes wait for signatures of keys that are elsewhere ([`Step::Work`](crate::Step::Work)), in
    /// this room. Without it they fail.
    #[must_use]
    pub fn deferring(mut self, parking: &Rc<Parking>) -> Connector {
        self.routing =
            self.remote.then(|| JobRouting { deferral: Deferral::default(), parking: parking.clone(), remote: true });
        self
    }

    /// A new connection's, to this server of the backend.
    pub fn connect(&self, server: usize) -> Result<UpstreamHandshake, UpstreamFailure> {
        let target = &self.servers[server];
        UpstreamHandshake::new(&target.config, &target.name, self.routing.clone())
    }
}

impl fmt::Debug for UpstreamProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamProfile").field("names", &self.names).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
