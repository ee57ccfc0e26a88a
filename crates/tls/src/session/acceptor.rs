//! Acceptors: one core's library configuration, resolver and ticketer, from which sessions are made.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use propylon_config::{ForwardIdentity, KeyType};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;

use crate::certificates::client_auth::ClientTrust;
use crate::certificates::names::Names;
use crate::certificates::profile::Profile;
use crate::certificates::resolver::Resolver;
use crate::handshake::Handshake;
use crate::parking::{Deferral, JobRouting, Parking};
use crate::provider::captured::SecretsLog;
use crate::provider::compressor::COMPRESSORS;
use crate::provider::{provider, versions};
use crate::session::Session;
use crate::tickets::sessions::Store;
use crate::tickets::{Ticketer, Tickets};

/// Limit of early data that is skipped, which a client may send with a ticket of another server of our name; above it
/// the handshake fails. In bytes of records, and the library counts a record again whenever another follows it: 64 KiB
/// in the longest records count as 230 KiB, 14 KiB in records of a packet each as 90 KiB.
const EARLY_DATA_SKIPPED_MAX: u32 = 512 * 1024;

/// The expensive parts of an [`Acceptor`], for one core, which any thread can make.
#[derive(Clone)]
pub struct AcceptorParts {
    config: Arc<ServerConfig>,
    /// Some keys are in another process.
    remote: bool,
    forward: ForwardIdentity,
    ja4: bool,
    /// Listeners of the profile differ in their order of key types. Cores only read it.
    orders_differ: Arc<AtomicBool>,
}

pub struct Acceptor {
    parts: AcceptorParts,
    routing: Option<JobRouting>,
}

impl Profile {
    /// Makes the acceptor of the calling core.
    pub fn acceptor(&self, tickets: &Arc<Tickets>) -> Acceptor {
        self.acceptor_parts(None, &[], tickets).assemble()
    }

    /// Makes the parts of one core's acceptor, with a configuration and resolver of its own: cores share only
    /// certificates and `tickets`, which they only read. `prefer` is an order of key types in place of the profile's.
    ///
    /// `withheld` protocols of the profile's list are not offered here.
    pub fn acceptor_parts(
        &self,
        prefer: Option<&[KeyType]>,
        withheld: &[&[u8]],
        tickets: &Arc<Tickets>,
    ) -> AcceptorParts {
        AcceptorParts::new(self, self.names_by(prefer), withheld, tickets)
    }
}

impl AcceptorParts {
    fn new(profile: &Profile, names: Arc<Names>, withheld: &[&[u8]], tickets: &Arc<Tickets>) -> AcceptorParts {
        let trust = profile.client_trust.as_ref();
        let verifier = trust.map_or_else(WebPkiClientVerifier::no_client_auth, ClientTrust::verifier);
        let resolver = Resolver::new(names, &profile.credentials);
        let remote = profile.remote;
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider(&profile.policy)))
            .with_protocol_versions(&versions(&profile.policy))
            .expect("a policy has suites and groups for each of its versions")
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = profile.alpn.clone();
        // Withheld protocols become empty names, which no client can offer (RFC 7301 §3.1), so that the others keep
        // their positions.
        config.alpn_protocols.iter_mut().filter(|ours| withheld.contains(&ours.as_slice())).for_each(Vec::clear);
        config.ticketer =
            Arc::new(Ticketer::new(tickets, profile.ticket_context(), profile.tickets > 0, &profile.sessions));
        // Stored sessions are for TLS 1.2 clients without tickets.
        config.session_storage = Arc::new(Store::new(&profile.sessions));
        if let Some(trust) = trust {
            config.ticketer = trust.ticketer(config.ticketer);
            config.session_storage = trust.store(config.session_storage);
        }
        config.send_tls13_tickets = profile.tickets.into();
        // Early data is never accepted, which would take a stored TLS 1.3 session; this is how much is skipped.
        config.max_early_data_size = EARLY_DATA_SKIPPED_MAX;
        // Server preference is what graders ask for; all suites are strong, so the order is by cost: AES-128 first.
        config.ignore_client_order = true;
        // Messages are compressed beforehand: a cache would have to be searched, and a small one would compress in
        // handshakes.
        config.cert_compressors = if profile.compresses { COMPRESSORS.to_vec() } else { Vec::new() };
        config.cert_compression_cache = Arc::new(rustls::compress::CompressionCache::Disabled);
        // Established sessions leave the library for `records`.
        config.key_log = Arc::new(SecretsLog);
        let forward = trust.map_or(ForwardIdentity::Nothing, |trust| trust.forward);
        let orders_differ = Arc::clone(&profile.orders_differ);
        AcceptorParts { config: Arc::new(config), remote, forward, ja4: profile.ja4, orders_differ }
    }

    /// Replaces the profile's protocols, the most preferred first.
    #[must_use]
    pub fn with_alpn(mut self, protocols: &[String]) -> AcceptorParts {
        let config = Arc::make_mut(&mut self.config);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        self
    }

    /// Makes the acceptor on the core that it is for: from here on references are counted there alone.
    pub fn assemble(&self) -> Acceptor {
        Acceptor { parts: self.clone(), routing: None }
    }
}

impl Acceptor {
    /// Defers these jobs of handshakes from here on, and all jobs of remote keys ([`Step::Work`]). Otherwise jobs are
    /// done on the spot, and those of remote keys fail.
    ///
    /// [`Step::Work`]: crate::Step::Work
    #[must_use]
    pub fn deferring(mut self, deferral: Deferral, parking: &Rc<Parking>) -> Acceptor {
        // Without anything to defer, handshakes need not run on fibers.
        let useful = self.parts.remote || deferral.defers_any();
        self.routing = useful.then(|| JobRouting { deferral, parking: parking.clone(), remote: self.parts.remote });
        self
    }

    pub fn accept(&self) -> Session {
        let AcceptorParts { config, forward, ja4, orders_differ, .. } = &self.parts;
        let orders_differ = orders_differ.load(Ordering::Relaxed);
        Session::new(Handshake::new(config, self.routing.clone(), *forward, *ja4, orders_differ))
    }
}
