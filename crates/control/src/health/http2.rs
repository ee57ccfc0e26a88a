//! A probe's HTTP/2: one connection with one stream, by prior knowledge or by ALPN, and an answer to the same questions as by
//! HTTP/1.1.

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{self, SendRequest};
use http::response::Parts;
use http::{Request, Version};
use propylon_config::HttpProbe;
use tokio::task::{JoinHandle, spawn_local};

use super::failure::Failure;
use super::http::BODY_BYTES_MAX;
use super::stream::ProbeStream;

const HEAD_BYTES_MAX: u32 = 16 * 1024;
/// Bytes that a server may send before they are read.
const WINDOW_BYTES: u32 = 65_535;

/// A connection for one request; it ends when this is dropped.
pub struct Connection {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    pub async fn new(stream: ProbeStream) -> Result<Connection, Failure> {
        let mut builder = client::Builder::new();
        builder.enable_push(false).max_header_list_size(HEAD_BYTES_MAX).initial_connection_window_size(WINDOW_BYTES);
        let (requests, connection) = builder.handshake::<_, Bytes>(stream).await.map_err(broken)?;
        // Errors of the connection reach the request as well.
        let driver = spawn_local(async move { drop(connection.await) });
        Ok(Connection { requests, driver })
    }

    /// The head of the answer, and its body to be read.
    pub async fn ask(&self, request: Request<()>, body: Option<Bytes>) -> Result<(Parts, RecvStream), Failure> {
        let mut requests = self.requests.clone().ready().await.map_err(broken)?;
        let (answer, mut sending) = requests.send_request(request, body.is_none()).map_err(broken)?;
        if let Some(body) = body {
            sending.send_data(body, true).map_err(broken)?;
        }
        Ok(answer.await.map_err(broken)?.into_parts())
    }
}

/// The next piece of a body; none at its end.
pub async fn read_more(body: &mut RecvStream) -> Result<Option<Bytes>, Failure> {
    let Some(data) = body.data().await else { return Ok(None) };
    let data = data.map_err(broken)?;
    let _ = body.flow_control().release_capacity(data.len());
    Ok(Some(data))
}

pub fn broken(error: h2::Error) -> Failure {
    let word = if error.is_io() || error.is_go_away() { "closed" } else { "bad-response" };
    Failure::new(word, error.to_string())
}

/// Fields of every probe's request, to which its own are added.
pub fn request(method: &str, host: &str, path: &str, secure: bool) -> http::request::Builder {
    let scheme = if secure { "https" } else { "http" };
    Request::builder()
        .method(method)
        .version(Version::HTTP_2)
        .uri(format!("{scheme}://{host}{path}"))
        .header("user-agent", concat!("propylon-health/", env!("CARGO_PKG_VERSION")))
}

/// Sends the request and judges the answer.
pub async fn ask(stream: ProbeStream, probe: &HttpProbe, host: &str, secure: bool) -> Result<(), Failure> {
    let host = probe.host.as_deref().unwrap_or(host);
    let request = request(probe.method, host, &probe.path, secure).header("accept", "*/*").body(());
    let request = request.map_err(|error| Failure::new("not-made", error.to_string()))?;
    let connection = Connection::new(stream).await?;
    let (head, mut body) = connection.ask(request, None).await?;
    let status = head.status.as_u16();
    if !probe.status.iter().any(|range| range.contains(&status)) {
        return Err(Failure::new("unexpected-status", status.to_string()));
    }
    let Some(expected) = &probe.body else { return Ok(()) };
    let mut text = Vec::new();
    while text.len() < BODY_BYTES_MAX
        && let Some(data) = read_more(&mut body).await?
    {
        text.extend_from_slice(&data);
        if memchr::memmem::find(&text, expected.as_bytes()).is_some() {
            return Ok(());
        }
    }
    Err(Failure::new("body-mismatch", format!("status {status}, {} bytes without the text", text.len())))
}
