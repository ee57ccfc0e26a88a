//! How the API server is reached: from inside of the cluster, by a kubeconfig, or by an address.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use crate::exchange::{Peer, Token};

/// Folder in which a Pod finds what it is known by.
const OWN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The API server as a Pod knows it.
pub fn in_cluster() -> Result<Peer, String> {
    let variable = |name: &str| {
        let missing = format!("{name} is not set: this is no Pod, and needs --kubeconfig or --server");
        std::env::var(name).map_err(|_| missing)
    };
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let authorities = read(&Path::new(OWN).join("ca.crt"))?;
    let tls = config(&authorities, None)?;
    Peer::new(&format!("https://{host}:{port}"), Some(tls), Token::File(Path::new(OWN).join("token")))
}

/// The API server of the current context of a kubeconfig, written as JSON.
pub fn by_kubeconfig(path: &Path) -> Result<Peer, String> {
    let shown = path.display();
    let value: Value = serde_json::from_slice(&read(path)?).map_err(|error| {
        format!("{shown} is no JSON ({error}): make one by `kubectl config view --raw --flatten -o json > {shown}`")
    })?;
    let named = |list: &str, name: &Value, what: &str| {
        let found = value[list].as_array().into_iter().flatten().find(|each| each["name"] == *name);
        found.map(|each| each[what].clone()).ok_or_else(|| format!("{shown} has none of {list} named {name}"))
    };
    let context = named("contexts", &value["current-context"], "context")?;
    let (cluster, user) =
        (named("clusters", &context["cluster"], "cluster")?, named("users", &context["user"], "user")?);
    let folder = path.parent().unwrap_or(Path::new("."));
    let part = |table: &Value, key: &str| -> Result<Option<Vec<u8>>, String> {
        if let Some(text) = table[format!("{key}-data")].as_str() {
            return Base64::decode_vec(text).map(Some).map_err(|_| format!("{shown}: {key}-data is not base64"));
        }
        table[key].as_str().map(|name| read(&folder.join(name))).transpose()
    };
    let identity = match (part(&user, "client-certificate")?, part(&user, "client-key")?) {
        (Some(chain), Some(key)) => Some((chain, key)),
        _ => None,
    };
    let token = match (user["tokenFile"].as_str(), user["token"].as_str()) {
        (Some(file), _) => Token::File(folder.join(file)),
        (None, Some(text)) => Token::Text(text.to_owned()),
        (None, None) => Token::None,
    };
    let server = cluster["server"].as_str().ok_or_else(|| format!("{shown} names no server"))?;
    let tls = match part(&cluster, "certificate-authority")? {
        Some(authorities) => Some(config(&authorities, identity)?),
        None => None,
    };
    Peer::new(server, tls, token)
}

/// An API server without TLS, such as `kubectl proxy` is.
pub fn by_address(url: &str) -> Result<Peer, String> {
    Peer::new(url, None, Token::None)
}

/// An engine's admin address.
pub fn engine(url: &str, token_file: Option<&PathBuf>) -> Result<Peer, String> {
    Peer::new(url, None, token_file.map_or(Token::None, |path| Token::File(path.clone())))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn config(authorities: &[u8], identity: Option<(Vec<u8>, Vec<u8>)>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        let certificate = certificate.map_err(|error| format!("the API server's authority: {error}"))?;
        roots.add(certificate).map_err(|error| format!("the API server's authority: {error}"))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
            let chain = chain.map_err(|error| format!("the client's certificate: {error}"))?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| format!("the client's key: {error}"))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| format!("the client's key: {error}"))?
        }
    };
    Ok(Arc::new(config))
}
