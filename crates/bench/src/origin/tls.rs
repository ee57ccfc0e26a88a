//! The origin's side of TLS.

use crate::failure::{Outcome, While};
use crate::pem::read_identity;
use rustls::ServerConfig;
use std::path::Path;
use std::sync::Arc;

/// TLS 1.2 and 1.3 with one certificate, tickets on, AES-128-GCM where the client has it: what clients would prefer
/// differs, and is not what is measured behind a proxy. `path` holds chain and key, as `certificates` writes them.
/// `protocol` is all that is agreed on by ALPN.
pub fn server_config(path: &Path, protocol: &[u8]) -> Outcome<Arc<ServerConfig>> {
    let doing = format!("--tls {}", path.display());
    let (chain, key) = read_identity("--tls", path)?;
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    // Stable: the rest stays in the library's order.
    provider.cipher_suites.sort_by_key(|suite| !suite.suite().as_str().is_some_and(|name| name.contains("AES_128")));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .when(&doing)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .when(&doing)?;
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().when(&doing)?;
    config.ignore_client_order = true;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}
