//! One core's way to make sessions: its own library configuration, signing keys and resolver.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;

use crate::handshake::Handshake;
use crate::offer::{provider, versions};
use crate::overheard::SecretsListener;
use crate::profile::Profile;
use crate::resolver::Resolver;
use crate::session::Session;
use crate::tickets::{Ticketer, Tickets};

pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    pub(crate) fn new(profile: &Profile, tickets: &Arc<Tickets>) -> Acceptor {
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(versions(profile.policy))
            .expect("the provider has suites for both versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver::new(profile)));
        config.alpn_protocols = profile.alpn.clone();
        config.ticketer = Arc::new(Ticketer::new(tickets, &profile.name));
        // Tickets carry the state; a store would be a lock, and memory per client.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 2;
        config.max_early_data_size = 0;
        // Graders ask for it; every suite here is strong, so the order is one of cost: AES-128 first.
        config.ignore_client_order = true;
        config.cert_compression_cache = Arc::new(rustls::compress::CompressionCache::Disabled);
        // Established sessions are kept by `records`, not by the library.
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(SecretsListener);
        Acceptor { config: Arc::new(config) }
    }

    pub fn accept(&self) -> Session {
        Session::new(Handshake::new(&self.config))
    }
}
