//! Settings of the generator, as `name=value` on its command line.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::tickets::Tickets;

/// Sessions that are kept to be resumed.
const SESSIONS_MAX: usize = 256;

pub struct Settings {
    pub to: SocketAddr,
    pub from: Vec<IpAddr>,
    pub name: ServerName<'static>,
    pub held: usize,
    pub interval: Duration,
    pub new_per_second: u32,
    pub resumes: bool,
    pub timeout: Duration,
    pub replaces: bool,
    /// For connections that begin with a full handshake.
    pub fresh: TlsConnector,
    /// For connections that resume what connections before them have left.
    pub resuming: TlsConnector,
    /// Of those.
    pub tickets: Arc<Tickets>,
}

impl Settings {
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Settings, String> {
        let all: Vec<String> = arguments.collect();
        let find = |name: &str| {
            let value = all.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='));
            value.ok_or_else(|| format!("{name}= is missing"))
        };
        let ca = CertificateDer::from_pem_file(find("ca")?).map_err(|error| format!("ca: {error}"))?;
        let from: Result<Vec<IpAddr>, String> = find("from")?.split(',').map(|text| parse("from", text)).collect();
        let milliseconds = |name: &str| Ok::<_, String>(Duration::from_millis(parse(name, find(name)?)?));
        let tickets = Arc::new(Tickets::new(ClientSessionMemoryCache::new(SESSIONS_MAX)));
        Ok(Settings {
            to: parse("to", find("to")?)?,
            from: from?,
            name: ServerName::try_from(find("name")?.to_owned()).map_err(|error| format!("name: {error}"))?,
            held: parse("held", find("held")?)?,
            interval: milliseconds("interval_ms")?,
            new_per_second: parse("new_per_second", find("new_per_second")?)?,
            resumes: parse("resumes", find("resumes")?)?,
            timeout: milliseconds("timeout_ms")?,
            replaces: parse("replaces", find("replaces")?)?,
            fresh: connector(ca.clone(), Resumption::disabled())?,
            resuming: connector(ca, Resumption::store(Arc::clone(&tickets) as _))?,
            tickets,
        })
    }
}

fn parse<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name}: {text:?} is no value for it"))
}

/// One curve, the cheapest: many clients share one core here.
fn connector(ca: CertificateDer<'static>, resumption: Resumption) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    roots.add(ca).map_err(|error| format!("ca: {error}"))?;
    let provider = CryptoProvider { kx_groups: vec![aws_lc_rs::kx_group::X25519], ..aws_lc_rs::default_provider() };
    let builder = ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = resumption;
    Ok(TlsConnector::from(Arc::new(config)))
}
