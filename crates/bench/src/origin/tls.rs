//! The origin's side of TLS.

use crate::failure::{Failure, Outcome, While};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// TLS 1.2 and 1.3 with one certificate, tickets on. `path` holds chain and key, as `certificates` writes them.
pub fn server_config(path: &Path) -> Outcome<Arc<ServerConfig>> {
    let doing = format!("--tls {}", path.display());
    let chain: Vec<_> = CertificateDer::pem_file_iter(path).when(&doing)?.collect::<Result<_, _>>().when(&doing)?;
    if chain.is_empty() {
        return Err(Failure::new(format!("{doing}: no certificate in it")));
    }
    let key = PrivateKeyDer::from_pem_file(path).when(&doing)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .when(&doing)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .when(&doing)?;
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().when(&doing)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
