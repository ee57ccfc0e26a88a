//! Settings of a client: addresses of etcd, the files it is trusted and known by, and their loading.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use propylon_crypto::pem::{self, PemLabel};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use zeroize::Zeroizing;

/// Time limit of one request to one endpoint, unless the settings have another.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Endpoints of one cluster. etcd itself is rarely run with more than seven members.
pub const ENDPOINTS_MAX: usize = 32;
const FILE_BYTES_MAX: usize = 1 << 20;
const PASSWORD_BYTES_MAX: usize = 4096;
const PORT: u16 = 2379;

/// Settings of one client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `https://HOST:PORT` or `http://HOST:PORT`, at least one; the port may be left out for 2379.
    pub endpoints: Vec<String>,
    /// PEM with the authorities that etcd's certificates may be of. Needed for `https`.
    pub ca: Option<PathBuf>,
    /// PEM with the chain and the key that etcd knows this engine by.
    pub identity: Option<PathBuf>,
    pub user: Option<User>,
    pub request_timeout: Duration,
}

/// A user of etcd's. The file holds the password and nothing else; it is read again when etcd refuses the password.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub password_file: PathBuf,
}

/// The fault of a setting, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    pub what: String,
    pub fix: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.fix)
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// For endpoints without TLS, users or anything else out of the ordinary.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Settings {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        Settings { endpoints, ca: None, identity: None, user: None, request_timeout: REQUEST_TIMEOUT }
    }
}

/// An address, parsed once.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    /// As it is written in the settings.
    pub text: String,
    pub host: String,
    pub port: u16,
    /// Absent without TLS.
    pub tls_name: Option<ServerName<'static>>,
}

impl Endpoint {
    pub fn parse(text: &str) -> Result<Endpoint, SettingsError> {
        let wrong = |what: &str| SettingsError {
            what: format!("`{}` is no address of etcd: {what}", super::error::shown(text)),
            fix: "write https://HOST:PORT, usually with port 2379".to_string(),
        };
        let uri: http::Uri = text.parse().map_err(|_| wrong("it is not a URL"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("it begins neither with https:// nor with http://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a user's name; `user` is for that"));
        }
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(wrong("it has a path"));
        }
        // A port that is none is absent to the parser.
        let port = match &authority.as_str()[authority.host().len()..] {
            "" => PORT,
            port => port.trim_start_matches(':').parse().map_err(|_| wrong("its port is none"))?,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls_name = match tls {
            true => {
                Some(ServerName::try_from(host.clone()).map_err(|_| wrong("its host is not a name or an address"))?)
            }
            false => None,
        };
        Ok(Endpoint { text: text.to_owned(), host, port, tls_name })
    }

    /// Value of the `Host` field.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

pub(super) fn endpoints(settings: &Settings) -> Result<Vec<Endpoint>, SettingsError> {
    let wrong = |what: String| SettingsError { what, fix: "name the members of one etcd cluster".to_string() };
    match settings.endpoints.len() {
        0 => return Err(wrong("there is no endpoint of etcd".to_string())),
        count if count > ENDPOINTS_MAX => {
            return Err(wrong(format!("{count} endpoints are more than {ENDPOINTS_MAX}")));
        }
        _ => {}
    }
    settings.endpoints.iter().map(|text| Endpoint::parse(text)).collect()
}

/// The way to speak TLS, from the files as they are now. Without a `ca` there is none.
pub(super) fn tls(settings: &Settings) -> Result<Option<Arc<ClientConfig>>, SettingsError> {
    let Some(ca) = &settings.ca else {
        if let Some(identity) = &settings.identity {
            return Err(unusable(
                identity,
                "it has no use without `ca`",
                "name the authorities of etcd's certificates in `ca`",
            ));
        }
        return Ok(None);
    };
    let roots = roots(ca)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(ca, &error.to_string(), SEE_CA))?
        .with_root_certificates(roots);
    let Some(path) = &settings.identity else { return Ok(Some(Arc::new(builder.with_no_client_auth()))) };
    let (chain, key) = identity(path)?;
    let config = builder.with_client_auth_cert(chain, key);
    // The error is not shown: a library's may quote what it could not read.
    let config = config.map_err(|_| unusable(path, "its key does not go with its first certificate", SEE_IDENTITY))?;
    Ok(Some(Arc::new(config)))
}

const SEE_CA: &str = "it needs the certificates, in PEM, of the authorities that etcd's certificates are of";
const SEE_IDENTITY: &str =
    "it needs this engine's certificate, those between it and the authority, and its key, in PEM";

fn roots(ca: &Path) -> Result<RootCertStore, SettingsError> {
    let bytes = read(ca, FILE_BYTES_MAX, false)?;
    let mut roots = RootCertStore::empty();
    for section in pem::sections(&bytes) {
        let section = section.map_err(|error| unusable(ca, &error.to_string(), SEE_CA))?;
        if section.label == PemLabel::Certificate {
            let added = roots.add(section.der.to_vec().into());
            added.map_err(|error| unusable(ca, &format!("a certificate is not one: {error}"), SEE_CA))?;
        }
    }
    match roots.is_empty() {
        true => Err(unusable(ca, "it has no certificate", SEE_CA)),
        false => Ok(roots),
    }
}

fn identity(path: &Path) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), SettingsError> {
    let bytes = read(path, FILE_BYTES_MAX, true)?;
    let mut chain = Vec::new();
    let mut key = None;
    for section in pem::sections(&bytes) {
        let section = section.map_err(|error| unusable(path, &error.to_string(), SEE_IDENTITY))?;
        match section.label {
            PemLabel::Certificate => chain.push(CertificateDer::from(section.der.to_vec())),
            PemLabel::EncryptedPrivateKey => {
                return Err(unusable(path, "its key is under a passphrase", "write the key without one"));
            }
            label if label.is_private_key() => key = Some(section.der.to_vec()),
            _ => {}
        }
    }
    let key = key.ok_or_else(|| unusable(path, "it has no private key", SEE_IDENTITY))?;
    let key = PrivateKeyDer::try_from(key).map_err(|_| unusable(path, "its key is of no known kind", SEE_IDENTITY))?;
    match chain.is_empty() {
        true => Err(unusable(path, "it has no certificate", SEE_IDENTITY)),
        false => Ok((chain, key)),
    }
}

/// The password, without the line end that an editor leaves.
pub(super) fn password(user: &User) -> Result<Zeroizing<Vec<u8>>, SettingsError> {
    let mut bytes = read(&user.password_file, PASSWORD_BYTES_MAX, true)?;
    let length = bytes.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
    bytes.truncate(length);
    let fix = format!("write the password of the user {}, and nothing else", user.name);
    if length == 0 {
        return Err(unusable(&user.password_file, "it is empty", &fix));
    }
    match std::str::from_utf8(&bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => Err(unusable(&user.password_file, "it is not UTF-8", &fix)),
    }
}

fn read(path: &Path, bytes_max: usize, secret: bool) -> Result<Zeroizing<Vec<u8>>, SettingsError> {
    const OTHERS: u32 = 0o007;
    const SEE: &str = "see that it is there and that the account that Propylon is started by may read it";
    let failed = |error: std::io::Error| unusable(path, &format!("it cannot be read: {error}"), SEE);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(unusable(path, "it is not a file", "give the path of a file"));
    }
    if secret && metadata.mode() & OTHERS != 0 {
        let fix = format!("chmod 600 {}, and replace what is in it: others may have it", path.display());
        return Err(unusable(path, "every account can get at it", &fix));
    }
    // As large as it can become: growing would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(bytes_max + 1));
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() > bytes_max {
        true => Err(unusable(path, &format!("it has more than {bytes_max} bytes"), "see that it is the right file")),
        false => Ok(bytes),
    }
}

fn unusable(path: &Path, what: &str, fix: &str) -> SettingsError {
    SettingsError { what: format!("{} cannot be used: {what}", path.display()), fix: fix.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_scheme_a_host_and_perhaps_a_port() {
        let read =
            |text: &str| Endpoint::parse(text).map(|endpoint| (endpoint.authority(), endpoint.tls_name.is_some()));
        assert_eq!(read("https://etcd-1:2379").unwrap(), ("etcd-1:2379".to_string(), true));
        assert_eq!(read("http://127.0.0.1").unwrap(), ("127.0.0.1:2379".to_string(), false));
        assert_eq!(read("https://[::1]:4001/").unwrap(), ("[::1]:4001".to_string(), true));
        for text in
            ["", "etcd-1:2379", "ftp://a", "https://", "https://a/v3", "https://u:p@a:1", "https://a:99999", "/x"]
        {
            let error = read(text).unwrap_err();
            assert!(error.to_string().contains("write https://HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn there_is_at_least_one_endpoint_and_not_a_thousand() {
        assert!(endpoints(&Settings::new(Vec::<String>::new())).is_err());
        assert!(endpoints(&Settings::new(vec!["http://a"; ENDPOINTS_MAX])).is_ok());
        assert!(endpoints(&Settings::new(vec!["http://a"; ENDPOINTS_MAX + 1])).is_err());
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_what_to_do() {
        let mut settings = Settings::new(["https://a"]);
        settings.ca = Some("/nonexistent/ca.pem".into());
        assert!(tls(&settings).unwrap_err().to_string().contains("/nonexistent/ca.pem cannot be used"));
        settings.ca = Some("/dev/null".into());
        assert!(tls(&settings).unwrap_err().to_string().contains("not a file"));
        settings.ca = None;
        settings.identity = Some("/x".into());
        assert!(tls(&settings).unwrap_err().to_string().contains("without `ca`"));
    }

    #[test]
    fn a_password_is_taken_without_its_line_end_and_from_nobodys_elses_file() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("propylon-cluster-password-{}", std::process::id()));
        let user = User { name: "engine".into(), password_file: path.clone() };
        std::fs::write(&path, "a secret \r\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(&*password(&user).unwrap(), b"a secret ");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
        assert!(password(&user).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "\n").unwrap();
        assert!(password(&user).unwrap_err().to_string().contains("empty"));
        std::fs::remove_file(&path).unwrap();
    }
}
