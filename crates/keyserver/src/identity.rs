//! Who the server is to its clients, and whom it takes for a client: TLS on the links.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use propylon_config::keyserver::{NamedPath, Server};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Why there is no identity, and which file's fault it is.
#[derive(Debug)]
pub struct Fault {
    pub named: NamedPath,
    pub what: String,
}

/// TLS 1.2 and 1.3, a client certificate required, and no resumption: a session could outlive the certificate that
/// opened it, and links live long.
pub fn load(server: &Server) -> Result<Arc<ServerConfig>, Fault> {
    let wrong = |named: &NamedPath, what: String| Fault { named: named.clone(), what };
    let provider = Arc::new(provider());
    let mut roots = RootCertStore::empty();
    for certificate in chain(&server.ca.path).map_err(|what| wrong(&server.ca, what))? {
        roots.add(certificate).map_err(|error| wrong(&server.ca, error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = verifier.build().map_err(|error| wrong(&server.ca, error.to_string()))?;
    let chain = chain(&server.identity.path).map_err(|what| wrong(&server.identity, what))?;
    let key = PrivateKeyDer::from_pem_file(&server.identity.path)
        .map_err(|error| wrong(&server.identity, format!("no private key can be read from it: {error}")))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&server.identity, error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| wrong(&server.identity, error.to_string()))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// AES-256-GCM, as stock servers and clients have it, and for 1.3 what else is left.
fn provider() -> CryptoProvider {
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ];
    CryptoProvider { cipher_suites, ..default_provider() }
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unreadable = |error| format!("no certificate can be read from it: {error}");
    let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let chain = certificates.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    if chain.is_empty() { Err("no certificate is in it".into()) } else { Ok(chain) }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.named.path.display(), self.what)
    }
}
