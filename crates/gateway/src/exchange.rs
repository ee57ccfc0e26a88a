//! Requests over HTTP/1.1, to the API server and to engines: with a limit on their time, and on what they bring.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// From the connect to the last byte of an answer.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest body of one answer: a page of a list that does not fit is asked for in smaller ones.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Largest file with a token.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// The place of a peer.
#[derive(Clone, Debug)]
pub enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Proof of who we are. A file is read for each request, since tokens are replaced (BoundServiceAccountToken).
#[derive(Clone)]
pub enum Token {
    None,
    Text(String),
    File(PathBuf),
}

pub struct Peer {
    place: Place,
    /// The Host field.
    authority: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    token: Token,
    /// A connection without a request.
    idle: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// One request.
pub struct Ask<'a> {
    pub method: Method,
    /// With the query.
    pub path: &'a str,
    pub content_type: &'static str,
    pub body: Bytes,
}

impl<'a> Ask<'a> {
    pub fn get(path: &'a str) -> Ask<'a> {
        Ask { method: Method::GET, path, content_type: "", body: Bytes::new() }
    }
}

impl Peer {
    /// Parses `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.
    pub fn new(url: &str, tls: Option<Arc<ClientConfig>>, token: Token) -> Result<Peer, String> {
        if let Some(path) = url.strip_prefix("unix:") {
            let (place, authority) = (Place::Unix(path.into()), "localhost".to_owned());
            return Ok(Peer { place, authority, tls: None, token, idle: Mutex::default() });
        }
        let uri: http::Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let is_https = uri.scheme_str() == Some("https");
        let (Some(authority), true) = (uri.authority(), is_https || uri.scheme_str() == Some("http")) else {
            return Err(format!("{url} is none of http://HOST:PORT, https://HOST:PORT and unix:PATH"));
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let tls = match (is_https, tls) {
            (false, _) => None,
            (true, None) => return Err(format!("{url} needs an authority for TLS")),
            (true, Some(config)) => {
                let name = ServerName::try_from(host.clone()).map_err(|error| format!("{url}: {error}"))?;
                Some((config, name))
            }
        };
        let authority = authority.as_str().to_owned();
        Ok(Peer { place: Place::Tcp { host, port }, authority, tls, token, idle: Mutex::default() })
    }

    pub fn name(&self) -> String {
        match &self.place {
            Place::Tcp { .. } => self.authority.clone(),
            Place::Unix(path) => path.display().to_string(),
        }
    }

    /// One request and its whole answer, on a connection that is kept.
    pub async fn ask(&self, ask: &Ask<'_>) -> Result<(StatusCode, http::HeaderMap, Bytes), String> {
        let exchange = async {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (response, sender) = match kept.filter(|sender| !sender.is_closed()) {
                Some(mut sender) => match sender.try_send_request(self.request(ask)?).await {
                    Ok(response) => (response, sender),
                    // The connection ended while nobody used it, and nothing was sent.
                    Err(error) if error.message().is_some() => self.send(ask).await?,
                    Err(error) => return Err(error.error().to_string()),
                },
                None => self.send(ask).await?,
            };
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
            *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
            Ok((head.status, head.headers, body.to_bytes()))
        };
        let answer = timeout(REQUEST_TIMEOUT, exchange).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {REQUEST_TIMEOUT:?}")))
    }

    /// One request and the head of its answer, on a connection of its own that ends with the body.
    pub async fn open(&self, ask: &Ask<'_>) -> Result<Response<Incoming>, String> {
        let answer = timeout(REQUEST_TIMEOUT, self.send(ask)).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {REQUEST_TIMEOUT:?}"))).map(|(response, _)| response)
    }

    async fn send(&self, ask: &Ask<'_>) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), String> {
        let mut sender = self.connect().await?;
        let response = sender.send_request(self.request(ask)?).await;
        Ok((response.map_err(|error| error.to_string())?, sender))
    }

    fn request(&self, ask: &Ask<'_>) -> Result<Request<Full<Bytes>>, String> {
        let request = Request::builder().method(&ask.method).uri(ask.path).header(HOST, &self.authority);
        let mut request = request.body(Full::new(ask.body.clone())).map_err(|error| error.to_string())?;
        if !ask.content_type.is_empty() {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(ask.content_type));
        }
        let token = match &self.token {
            Token::None => return Ok(request),
            Token::Text(text) => text.clone(),
            Token::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
                text.get(..TOKEN_BYTES_MAX.min(text.len())).unwrap_or_default().trim().to_owned()
            }
        };
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| "the token is no text")?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
        Ok(request)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let failed = |error: std::io::Error| error.to_string();
        let (host, port) = match &self.place {
            Place::Unix(path) => return handshake(UnixStream::connect(path).await.map_err(failed)?).await,
            Place::Tcp { host, port } => (host.as_str(), *port),
        };
        let tcp = TcpStream::connect((host, port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        match &self.tls {
            None => handshake(tcp).await,
            Some((config, name)) => {
                let tls = TlsConnector::from(config.clone()).connect(name.clone(), tcp).await;
                handshake(tls.map_err(|error| format!("TLS: {error}"))?).await
            }
        }
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // The connection ends with its sender and the last body; faults show there.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}
