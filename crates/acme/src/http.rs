//! Requests to the authority: one connection each, over TLS alone, with a bound on everything.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{HOST, HeaderValue, RETRY_AFTER};
use http::uri::Scheme;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use propylon_crypto::pem::{self, PemLabel};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::key_process::AccountKey;

/// Time limit from looking up the name to the last byte of the answer.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// A long chain takes some 10 KB.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Cheap to clone. What the authority has said of when to come back is kept until it is taken.
#[derive(Clone)]
pub(crate) struct Http {
    connector: TlsConnector,
    /// Signs again what the library has signed.
    signer: Option<AccountKey>,
    retry_after: Arc<Mutex<Option<i64>>>,
}

impl Http {
    /// `ca`: the authorities that the directory's certificate may be of, in place of the system's.
    pub fn new(ca: Option<&Path>) -> Result<Http, String> {
        let mut roots = RootCertStore::empty();
        match ca {
            Some(path) => {
                let fail = |error: &dyn std::fmt::Display| format!("`ca` {} cannot be used: {error}", path.display());
                let bytes = std::fs::read(path).map_err(|error| fail(&error))?;
                for section in pem::sections(&bytes) {
                    let section = section.map_err(|error| fail(&error))?;
                    if section.label == PemLabel::Certificate {
                        roots.add(section.der.to_vec().into()).map_err(|error| fail(&error))?;
                    }
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        if roots.is_empty() {
            let where_from = ca.map_or("the system has".to_string(), |path| format!("{} has", path.display()));
            return Err(format!("{where_from} no authorities to trust"));
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Http { connector: TlsConnector::from(Arc::new(config)), signer: None, retry_after: Arc::default() })
    }

    /// The same, for an account whose key another process has.
    pub fn signed_by(&self, key: AccountKey) -> Http {
        Http { signer: Some(key), ..self.clone() }
    }

    /// Seconds since 1970, of the last answer that was an error and said so. Forgets it.
    pub fn take_retry_after(&self) -> Option<i64> {
        self.retry_after.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let answer = timeout(REQUEST_TIME, self.exchange(request)).await;
        let (parts, body) = answer.map_err(|_| other("the authority does not answer"))??;
        if parts.status.is_client_error() || parts.status.is_server_error() {
            let asked = parts.headers.get(RETRY_AFTER).and_then(|value| moment(value, SystemTime::now()));
            let mut last = self.retry_after.lock().unwrap_or_else(PoisonError::into_inner);
            *last = asked.or(*last);
        }
        Ok(BytesResponse { parts, body: Box::new(body) })
    }

    async fn exchange(&self, request: Request<BodyWrapper<Bytes>>) -> Result<(http::response::Parts, Bytes), Error> {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await.map_err(Error::other)?.to_bytes();
        let body = match self.signer.clone().filter(|_| parts.method == Method::POST) {
            Some(signer) => {
                // Another process is waited for, with a limit that is too long for other accounts.
                let signed = tokio::task::spawn_blocking(move || signer.sign_again(&body)).await;
                signed.map_err(Error::other)?.map_err(other)?.into()
            }
            None => body,
        };
        let authority = parts.uri.authority().cloned();
        // Keys of accounts sign what is sent, but who answers matters as well.
        let (Some(authority), Some(true)) = (authority, parts.uri.scheme().map(|scheme| *scheme == Scheme::HTTPS))
        else {
            return Err(other(format!("{} is not an https URL", shown(&parts.uri))));
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(443);
        let unreachable = |error: io::Error| other(format!("{host}:{port} cannot be reached: {error}"));
        let tcp = TcpStream::connect((host.as_str(), port)).await.map_err(unreachable)?;
        let name = ServerName::try_from(host.clone()).map_err(|_| other(format!("{host} is no host's name")))?;
        let tls = self.connector.connect(name, tcp).await.map_err(unreachable)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await.map_err(Error::other)?;
        let host_field = HeaderValue::from_str(authority.as_str()).map_err(Error::other)?;
        parts.headers.insert(HOST, host_field);
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = path.parse().map_err(Error::other)?;
        let answer = async {
            let response =
                sender.send_request(Request::from_parts(parts, Full::new(body))).await.map_err(Error::other)?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(Error::Other)?;
            Ok((parts, body.to_bytes()))
        };
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            // The connection may end with the answer's last byte.
            _ = connection => answer.await,
        }
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().send(request))
    }
}

trait OtherError {
    fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error;
}

impl OtherError for Error {
    fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Other(error.into())
    }
}

fn other(what: impl Into<String>) -> Error {
    Error::Other(what.into().into())
}

fn shown(uri: &Uri) -> String {
    uri.to_string().chars().take(100).collect()
}

/// Seconds from now, or a date (RFC 9110 §10.2.3).
fn moment(value: &HeaderValue, now: SystemTime) -> Option<i64> {
    let text = value.to_str().ok()?.trim();
    let at = match text.parse::<u32>() {
        Ok(seconds) => now + Duration::from_secs(seconds.into()),
        Err(_) => httpdate::parse_http_date(text).ok()?,
    };
    i64::try_from(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_to_come_back_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let read = |text: &'static str| moment(&HeaderValue::from_static(text), now);
        assert_eq!(read("120"), Some(1120));
        assert_eq!(read("Thu, 01 Jan 1970 01:00:00 GMT"), Some(3600));
        assert_eq!(read("soon"), None);
        assert_eq!(read("-1"), None);
    }

    #[test]
    fn files_without_authorities_and_urls_without_tls_are_refused() {
        let missing = Http::new(Some(Path::new("/nonexistent/ca.pem"))).err().unwrap();
        assert!(missing.contains("/nonexistent/ca.pem cannot be used"), "{missing}");
        assert!(Http::new(Some(Path::new("/dev/null"))).err().unwrap().contains("no authorities"));
    }
}
