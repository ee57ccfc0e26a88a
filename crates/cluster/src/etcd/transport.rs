//! Connections to etcd's members, and one exchange on one of them: with a limit on its time, and on what it brings.

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::error::shown;
use super::settings::{self, Endpoint, Settings, SettingsError};

/// From looking up the name to the end of the TLS handshake, unless a request has less time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest body of one answer. A page of a range that is longer is asked for again in halves.
pub(super) const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Status line and fields of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Requests of one client at once; others wait for their turn.
const REQUESTS_MAX: usize = 16;
/// Connections without a request that are kept, for each endpoint.
const IDLE_MAX: usize = 1;
/// A peer that is gone without a word is noticed by these, under a watch as well.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_COUNT: u32 = 3;
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why an exchange brought no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not a byte of the request was sent.
    NotSent(String),
    NotSentInTime,
    /// The request was sent, in part at least.
    Lost(String),
    LostInTime,
    TooLarge,
}

pub(super) struct Transport {
    endpoints: Vec<Member>,
    settings: Settings,
    tls: Mutex<Tls>,
    turns: Semaphore,
}

struct Member {
    endpoint: Endpoint,
    host: HeaderValue,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// TLS, and the stamps of the files that it was made from.
struct Tls {
    config: Option<Arc<ClientConfig>>,
    stamps: Stamps,
}

type Stamps = [Option<(u64, i64, i64, u64)>; 2];

/// One request.
pub(super) struct Outgoing<'a> {
    pub path: &'static str,
    pub body: Bytes,
    pub token: Option<&'a str>,
}

impl Transport {
    pub fn new(settings: Settings) -> Result<Transport, SettingsError> {
        let stamps = stamps(&settings);
        let config = settings::tls(&settings)?;
        let mut members = Vec::new();
        for endpoint in settings::endpoints(&settings)? {
            if endpoint.tls_name.is_some() && config.is_none() {
                return Err(SettingsError {
                    what: format!("`ca` is missing, and {} needs it", endpoint.text),
                    fix: "name the file with the authorities of etcd's certificates in `ca`".to_string(),
                });
            }
            let host = HeaderValue::from_str(&endpoint.authority()).map_err(|_| SettingsError {
                what: format!("{} is no address of etcd", shown(&endpoint.text)),
                fix: "write https://HOST:PORT".to_string(),
            })?;
            members.push(Member { endpoint, host, idle: Mutex::default() });
        }
        let tls = Mutex::new(Tls { config, stamps });
        Ok(Transport { endpoints: members, settings, tls, turns: Semaphore::new(REQUESTS_MAX) })
    }

    pub fn count(&self) -> usize {
        self.endpoints.len()
    }

    pub fn name(&self, index: usize) -> &str {
        &self.endpoints[index].endpoint.text
    }

    /// One request and its whole answer, on a connection that is kept.
    pub async fn exchange(&self, index: usize, outgoing: &Outgoing<'_>) -> Result<(StatusCode, Bytes), Fault> {
        let _turn = self.turn().await?;
        let mut deadline = self.deadline();
        let member = &self.endpoints[index];
        let mut request = member.request(outgoing);
        let (response, sender) = loop {
            let kept = lock(&member.idle).pop();
            let is_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => {
                    let sender = self.connect(member).await?;
                    deadline = self.deadline();
                    sender
                }
            };
            let sent = in_time(deadline, sender.try_send_request(request)).await?;
            match sent {
                Ok(response) => break (response, sender),
                // The connection ended while nobody used it, and the request is as it was.
                Err(mut error) if is_kept && error.message().is_some() => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(fault(error.error())),
                },
                Err(error) if error.message().is_some() => return Err(Fault::NotSent(why(error.error()))),
                Err(error) => return Err(fault(error.error())),
            }
        };
        let status = response.status();
        let body = in_time(deadline, collect(response.into_body())).await??;
        let mut idle = lock(&member.idle);
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push(sender);
        }
        Ok((status, body))
    }

    /// One request and the start of its answer, on a connection of its own that ends with the body.
    pub async fn open(&self, index: usize, outgoing: &Outgoing<'_>) -> Result<Response<Incoming>, Fault> {
        let member = &self.endpoints[index];
        let mut sender = self.connect(member).await?;
        let sent = in_time(self.deadline(), sender.send_request(member.request(outgoing))).await?;
        sent.map_err(|error| fault(&error))
    }

    /// The whole body of an answer that was opened, and is none to go on with.
    pub async fn rest(&self, response: Response<Incoming>) -> Result<Bytes, Fault> {
        in_time(self.deadline(), collect(response.into_body())).await?
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, Fault> {
        match timeout(self.settings.request_timeout, self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(Fault::NotSentInTime),
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.settings.request_timeout
    }

    async fn connect(&self, member: &Member) -> Result<SendRequest<Full<Bytes>>, Fault> {
        let limit = CONNECT_TIMEOUT.min(self.settings.request_timeout);
        match timeout(limit, self.connect_without_limit(&member.endpoint)).await {
            Ok(sender) => sender.map_err(Fault::NotSent),
            Err(_) => Err(Fault::NotSentInTime),
        }
    }

    async fn connect_without_limit(&self, endpoint: &Endpoint) -> Result<SendRequest<Full<Bytes>>, String> {
        let tcp = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
        let tcp = tcp.map_err(|error| error.to_string())?;
        set_up(&tcp).map_err(|error| error.to_string())?;
        let Some(name) = &endpoint.tls_name else { return handshake(tcp).await };
        let config = self.current_tls().ok_or("there is no `ca`")?;
        let tls = TlsConnector::from(config).connect(name.clone(), tcp).await;
        handshake(tls.map_err(|error| tls_why(&error))?).await
    }

    /// Files that have changed are read again, so that a client's certificate can be renewed.
    fn current_tls(&self) -> Option<Arc<ClientConfig>> {
        let mut tls = lock(&self.tls);
        let stamps = stamps(&self.settings);
        if stamps != tls.stamps {
            tls.stamps = stamps;
            match settings::tls(&self.settings) {
                Ok(config) => tls.config = config,
                Err(error) => log::warn!("etcd is spoken to with the certificates from before: {error}"),
            }
        }
        tls.config.clone()
    }
}

impl Member {
    fn request(&self, outgoing: &Outgoing<'_>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(outgoing.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = http::Uri::from_static(outgoing.path);
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Metadata of gRPC: a member without a leader refuses at once, and ends its watches.
        headers.insert("grpc-metadata-hasleader", HeaderValue::from_static("true"));
        if let Some(Ok(mut token)) = outgoing.token.map(HeaderValue::from_str) {
            token.set_sensitive(true);
            headers.insert(AUTHORIZATION, token);
        }
        request
    }
}

async fn in_time<T>(deadline: Instant, what: impl Future<Output = T>) -> Result<T, Fault> {
    timeout_at(deadline, what).await.map_err(|_| Fault::LostInTime)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let connected = http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = connected.map_err(|error| why(&error))?;
    // The connection ends with its sender and the last body; faults show there.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn set_up(tcp: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(tcp, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(tcp, KEEPALIVE_COUNT)?;
    sockopt::set_tcp_user_timeout(tcp, USER_TIMEOUT.as_millis() as u32)?;
    Ok(())
}

async fn collect(body: Incoming) -> Result<Bytes, Fault> {
    match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Fault::TooLarge),
        Err(error) => Err(Fault::Lost(shown(&error.to_string()))),
    }
}

/// An error with what is behind it.
fn why(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).map_or(String::new(), |cause| format!(": {cause}"));
    let hint = match error.is_incomplete_message() {
        true => " (if it speaks TLS, write https:// in its address)",
        false => "",
    };
    format!("{}{hint}", shown(&format!("{error}{cause}")))
}

fn tls_why(error: &io::Error) -> String {
    let hint = match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "; see that `ca` has the authority of its certificate, which has to name this host"
        }
        Some(rustls::Error::AlertReceived(_)) => {
            "; see that `identity` is there, and of an authority that etcd trusts (--trusted-ca-file)"
        }
        Some(rustls::Error::InvalidMessage(_)) => "; it seems not to speak TLS",
        _ => "",
    };
    format!("{}{hint}", shown(&format!("TLS: {error}")))
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// The fault of an exchange that had begun.
fn fault(error: &hyper::Error) -> Fault {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause.map(|cause| (cause, tls_error(cause))) {
        // In TLS 1.3 a client's handshake is over before the server has seen its certificate. A server that refuses it
        // takes nothing.
        Some((cause, Some(rustls::Error::AlertReceived(_)))) => Fault::NotSent(tls_why(cause)),
        _ => Fault::Lost(why(error)),
    }
}

fn stamps(settings: &Settings) -> Stamps {
    let stamp = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size()))
    };
    [settings.ca.as_deref().and_then(stamp), settings.identity.as_deref().and_then(stamp)]
}
