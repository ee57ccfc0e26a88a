//! TLS to the servers of a backend, without sockets: this side is the client.
//!
//! [`UpstreamProfile`] is one `tls` of `[backend.NAME]`, loaded once; [`Connector`] is one core's, with the sessions to
//! resume; [`UpstreamHandshake`] is the handshake of one connection, and [`UpstreamSession`] the established session.

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
pub use failure::{UpstreamFailure, UpstreamFailureReason};
pub use session::{UpstreamHandshake, UpstreamSession};
use store::Store;

/// Loaded `tls` of a `[backend.NAME]`. Cores share it and make their connectors from it.
#[derive(Clone)]
pub struct UpstreamProfile {
    config: ClientConfig,
    /// Names to verify, by server of the backend.
    names: Vec<ServerName<'static>>,
    /// Names of the configuration, of which a certificate has to have one in their place.
    accepted: Vec<String>,
    resume: bool,
    /// Authorities, to compare with a later load.
    roots: Vec<TrustAnchor<'static>>,
    chain: Vec<CertificateDer<'static>>,
    /// The same in profiles that differ in nothing but the servers.
    origin: Arc<()>,
    identity: Option<Dated>,
    /// Name of the client certificate's key at the key process, if it is there.
    key_process_ski: Option<Ski>,
}

/// One core's connector to the servers of one backend.
pub struct Connector {
    servers: Vec<Target>,
    /// The client certificate's key is in the key process.
    remote: bool,
    /// Routing of jobs of handshakes that wait for signatures.
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

    /// Same as [`UpstreamProfile::load`], for servers without a backend, each with its position in the configuration.
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
        let key_process_ski = loaded.key_process_ski;
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
        let (resume, origin) = (tls.resume, Arc::default());
        let accepted = tls.names.clone();
        Ok((
            UpstreamProfile { config, names, accepted, resume, roots, chain, origin, identity, key_process_ski },
            findings,
        ))
    }

    /// Applies the loaded files to the servers that the backend has by now. None where a server has a name that no
    /// certificate can be for; [`UpstreamProfile::load`] reports which.
    #[must_use]
    pub fn towards(&self, backend: &Backend, tls: &BackendTls) -> Option<UpstreamProfile> {
        let names = backend.servers.iter().map(|server| ServerName::try_from(name_of(tls, &server.address)).ok());
        Some(UpstreamProfile { names: names.collect::<Option<_>>()?, ..self.clone() })
    }

    /// Expiry of the client certificate.
    pub fn dated(&self) -> Option<&Dated> {
        self.identity.as_ref()
    }

    /// Name of the client certificate's key at the key process, if it is there.
    pub fn key_beside(&self) -> Option<Ski> {
        self.key_process_ski
    }

    /// Whether both verify the same and show the same certificate; both are of the same `[backend.NAME]`. Keys are told
    /// by their certificates.
    pub fn same_as(&self, other: &UpstreamProfile) -> bool {
        (&self.names, &self.accepted) == (&other.names, &other.accepted) && self.same_files(other)
    }

    /// Whether both come from one load, so that they differ in nothing but the servers.
    pub fn is_kin(&self, other: &UpstreamProfile) -> bool {
        Arc::ptr_eq(&self.origin, &other.origin)
    }

    /// Whether the files of both hold the same.
    pub fn same_files(&self, other: &UpstreamProfile) -> bool {
        self.roots == other.roots && self.chain == other.chain
    }

    /// Makes a connector with other protocols, for callers that send no requests.
    pub fn connector_for(&self, alpn: &[&[u8]]) -> Connector {
        let mut config = self.config.clone();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        self.connector_of(&config)
    }

    /// Makes the connector of the calling core: cores share neither sessions nor reference counts.
    ///
    /// Sessions are kept per server: servers of one name need not know each other's tickets.
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
        Connector {
            servers: self.names.iter().map(target).collect(),
            remote: self.key_process_ski.is_some(),
            routing: None,
        }
    }
}

/// Name that a server's certificate has to be for.
fn name_of(tls: &BackendTls, address: &ServerAddress) -> String {
    match (&tls.server_name, address) {
        (Some(name), _) => name.trim_start_matches('[').trim_end_matches(']').to_string(),
        (None, ServerAddress::Ip(address)) => address.ip().to_string(),
        (None, ServerAddress::Name { host, .. }) => host.clone(),
        // Hosts of an SRV record come from the network, unsigned: they must not be trusted as names.
        (None, ServerAddress::Srv { name }) => name.splitn(3, '.').last().unwrap_or_default().to_string(),
        // The configuration has a `server_name` wherever there is one of these.
        (None, ServerAddress::Unix { .. }) => "localhost".to_string(),
    }
}

impl Connector {
    /// Parks handshakes that wait for signatures of remote keys ([`Step::Work`](crate::Step::Work)) from here on.
    /// Otherwise such handshakes fail.
    #[must_use]
    pub fn deferring(mut self, parking: &Rc<Parking>) -> Connector {
        self.routing =
            self.remote.then(|| JobRouting { deferral: Deferral::default(), parking: parking.clone(), remote: true });
        self
    }

    /// Takes over the sessions of an earlier connector of a profile that [`UpstreamProfile::is_kin`]: `before` says which
    /// of its servers a server is.
    #[must_use]
    pub fn succeeding(mut self, earlier: &Connector, before: impl Fn(usize) -> Option<usize>) -> Connector {
        for (server, target) in self.servers.iter_mut().enumerate() {
            if let Some(known) = before(server).map(|known| &earlier.servers[known])
                && known.name == target.name
            {
                target.config = Arc::clone(&known.config);
            }
        }
        self
    }

    /// Begins the handshake of a new connection to this server of the backend.
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
