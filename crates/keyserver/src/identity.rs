//! The server's identity towards its clients, and the authority whose certificates it accepts: TLS on the links.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use propylon_config::keyserver::{NamedPath, Server};
use propylon_crypto::pem::{self, PemLabel};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::key_files::secret_text;

/// The reason why there is no identity, and the file at fault.
#[derive(Debug)]
pub struct Fault {
    pub named: NamedPath,
    pub what: String,
}

/// The fault of an identity that is certificates alone.
pub const NO_KEY: &str = "no private key is in it";

/// TLS 1.2 and 1.3, a client certificate required, and no resumption: a session could outlive the certificate that
/// opened it, and links live long.
pub fn load(server: &Server) -> Result<Arc<ServerConfig>, Fault> {
    let wrong = |named: &NamedPath, what: String| Fault { named: named.clone(), what };
    let provider = Arc::new(provider());
    let mut roots = RootCertStore::empty();
    let authorities = Contents::read(&server.ca.path).and_then(Contents::chain);
    for certificate in authorities.map_err(|what| wrong(&server.ca, what))? {
        roots.add(certificate).map_err(|error| wrong(&server.ca, error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = verifier.build().map_err(|error| wrong(&server.ca, error.to_string()))?;
    let mut identity = Contents::read(&server.identity.path).map_err(|what| wrong(&server.identity, what))?;
    let key = identity.key.take().ok_or_else(|| wrong(&server.identity, NO_KEY.into()))?;
    let chain = identity.chain().map_err(|what| wrong(&server.identity, what))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&server.identity, error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key.clone_key())
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

/// The contents of a PEM file: its certificates, and the first of its private keys.
#[derive(Default)]
struct Contents {
    certificates: Vec<CertificateDer<'static>>,
    key: Option<Zeroizing<PrivateKeyDer<'static>>>,
}

impl Contents {
    /// An error is told in the log, so it is never a parser's own: the file may hold a private key, whichever is named.
    fn read(path: &Path) -> Result<Contents, String> {
        let text = secret_text(path).map_err(|wrong| wrong.to_string())?;
        let mut contents = Contents::default();
        for section in pem::sections(&text) {
            let mut section = section.map_err(|error| format!("it is not well-formed PEM: {error}"))?;
            let der = std::mem::take(&mut *section.der);
            let key = match section.label {
                PemLabel::Certificate => {
                    contents.certificates.push(der.into());
                    continue;
                }
                PemLabel::PrivateKey => PrivateKeyDer::Pkcs8(der.into()),
                PemLabel::RsaPrivateKey => PrivateKeyDer::Pkcs1(der.into()),
                PemLabel::EcPrivateKey => PrivateKeyDer::Sec1(der.into()),
                PemLabel::EncryptedPrivateKey => return Err("the private key in it is encrypted".into()),
                PemLabel::Other => continue,
            };
            contents.key.get_or_insert(Zeroizing::new(key));
        }
        Ok(contents)
    }

    fn chain(self) -> Result<Vec<CertificateDer<'static>>, String> {
        if self.certificates.is_empty() { Err("no certificate is in it".into()) } else { Ok(self.certificates) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.named.path.display(), self.what)
    }
}
