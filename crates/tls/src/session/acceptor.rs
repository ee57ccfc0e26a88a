//! One core's way to make sessions: its own library configuration, signing keys and resolver.

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

/// Early data that a client may send in vain, with a ticket that another server of our name has given it; then the
/// handshake fails. In bytes of records, and the library counts a record again whenever another follows it: 64 KiB in
/// the longest records count as 230 KiB, 14 KiB in records of a packet each as 90 KiB.
const EARLY_DATA_SKIPPED_MAX: u32 = 512 * 1024;

/// What takes time in the making of an [`Acceptor`], done, for one core and by any thread.
#[derive(Clone)]
pub struct AcceptorParts {
    config: Arc<ServerConfig>,
    /// Some key signs elsewhere.
    remote: bool,
    forward: ForwardIdentity,
    ja4: bool,
    /// Another listener of the profile may have another order of key types; read, and never written, by cores.
    orders_differ: Arc<AtomicBool>,
}

pub struct Acceptor {
    parts: AcceptorParts,
    routing: Option<JobRouting>,
}

impl Profile {
    /// For one core, which the caller of this is.
    pub fn acceptor(&self, tickets: &Arc<Tickets>) -> Acceptor {
        self.acceptor_parts(None, &[], tickets).assemble()
    }

    /// For one core: builds its own configuration and resolver, so that cores share nothing but certificates and
    /// `tickets`, which they only read. `prefer` is an order of key types in place of the profile's.
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
        // A name without a byte, which no client can offer (RFC 7301 §3.1), so that the others keep their positions.
        config.alpn_protocols.iter_mut().filter(|ours| withheld.contains(&ours.as_slice())).for_each(Vec::clear);
        config.ticketer =
            Arc::new(Ticketer::new(tickets, profile.ticket_context(), profile.tickets > 0, &profile.sessions));
        // For TLS 1.2 clients that take no tickets, which carry the state of all others.
        config.session_storage = Arc::new(Store::new(&profile.sessions));
        if let Some(trust) = trust {
            config.ticketer = trust.ticketer(config.ticketer);
            config.session_storage = trust.store(config.session_storage);
        }
        config.send_tls13_tickets = profile.tickets.into();
        // Not to accept any: that takes a stored session of TLS 1.3, and the store has none. It is what is skipped.
        config.max_early_data_size = EARLY_DATA_SKIPPED_MAX;
        // Graders ask for it; every suite here is strong, so the order is one of cost: AES-128 first.
        config.ignore_client_order = true;
        // Compressed beforehand: a cache would search its entries, and one too small would compress in handshakes.
        config.cert_compressors = if profile.compresses { COMPRESSORS.to_vec() } else { Vec::new() };
        config.cert_compression_cache = Arc::new(rustls::compress::CompressionCache::Disabled);
        // Established sessions are kept by `records`, not by the library.
        config.key_log = Arc::new(SecretsLog);
        let forward = trust.map_or(ForwardIdentity::Nothing, |trust| trust.forward);
        let orders_differ = Arc::clone(&profile.orders_differ);
        AcceptorParts { config: Arc::new(config), remote, forward, ja4: profile.ja4, orders_differ }
    }

    /// The same with other protocols to agree on than the profile's, the one liked best first.
    #[must_use]
    pub fn with_alpn(mut self, protocols: &[String]) -> AcceptorParts {
        let config = Arc::make_mut(&mut self.config);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        self
    }

    /// On the core that it is for: from here on references are counted there alone.
    pub fn assemble(&self) -> Acceptor {
        Acceptor { parts: self.clone(), routing: None }
    }
}

impl Acceptor {
    /// From here on handshakes set this work aside, and whatever remote keys have to do ([`Step::Work`]). Without it
    /// all work is done on the spot, and none by a remote key.
    ///
    /// [`Step::Work`]: crate::Step::Work
    #[must_use]
    pub fn deferring(mut self, deferral: Deferral, parking: &Rc<Parking>) -> Acceptor {
        // Where nothing can come of it no handshake is to be prepared for it.
        let useful = self.parts.remote || deferral != Deferral::default();
        self.routing = useful.then(|| JobRouting { deferral, parking: parking.clone(), remote: self.parts.remote });
        self
    }

    pub fn accept(&self) -> Session {
        let AcceptorParts { config, forward, ja4, orders_differ, .. } = &self.parts;
        let orders_differ = orders_differ.load(Ordering::Relaxed);
        Session::new(Handshake::new(config, self.routing.clone(), *forward, *ja4, orders_differ))
    }
}
