//! Clients of HTTP/1.1 and of HTTP/2 that keep their connections for as long as they are kept, and read exactly.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::{HeaderMap, Request};
use propylon_e2e::certificates::Certificates;
use propylon_e2e::http::{self as wire, Body, framing, head_end, values};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::cases::{Case, Protocol, RequestBody};
use crate::server::request_body;

/// What a client has seen.
#[derive(Debug)]
pub enum Outcome {
    Response(Response),
    /// The connection or the stream broke off before the response was whole: with an error that a client sees.
    Failed(String),
    /// What no client may be shown.
    Wrong(String),
}

#[derive(Debug, Default)]
pub struct Response {
    pub status: u16,
    pub tag: Option<String>,
    pub body: Vec<u8>,
    pub trailers: Vec<String>,
    pub interim: usize,
    /// The connection is said to end.
    pub closes: bool,
}

pub enum Client {
    Http1(Http1),
    Http2(Http2),
}

impl Client {
    pub fn new(protocol: Protocol, address: SocketAddr) -> Client {
        match protocol {
            Protocol::Http1 => Client::Http1(Http1 { address, socket: None, inbox: Vec::new() }),
            Protocol::Http2 => Client::Http2(Http2 { address, tls: false, send: None }),
            Protocol::Http2Tls => Client::Http2(Http2 { address, tls: true, send: None }),
        }
    }

    pub async fn ask(&mut self, case: &Case, path: &str) -> Outcome {
        match self {
            Client::Http1(client) => client.ask(case, path).await,
            Client::Http2(client) => client.ask(case, path).await.unwrap_or_else(Outcome::Failed),
        }
    }

    /// Whether another request may go out on the same connection.
    pub fn is_open(&self) -> bool {
        match self {
            Client::Http1(client) => client.socket.is_some(),
            Client::Http2(client) => client.send.is_some(),
        }
    }

    pub fn close(&mut self) {
        match self {
            Client::Http1(client) => client.socket = None,
            Client::Http2(client) => client.send = None,
        }
    }
}

pub struct Http1 {
    address: SocketAddr,
    socket: Option<TcpStream>,
    inbox: Vec<u8>,
}

impl Http1 {
    async fn ask(&mut self, case: &Case, path: &str) -> Outcome {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                self.inbox.clear();
                let socket = TcpStream::connect(self.address).await.expect("the engine accepts");
                socket.set_nodelay(true).expect("no delay");
                socket
            }
        };
        if !self.inbox.is_empty() {
            return Outcome::Wrong(format!("bytes of nobody: {}", self.inbox.escape_ascii()));
        }
        let (head, rest) = http1_request(case, path);
        if let Err(error) = socket.write_all(&head).await {
            return Outcome::Failed(error.to_string());
        }
        let outcome = match self.read_response(&mut socket, case.method).await {
            Ok(outcome) => outcome,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        let Outcome::Response(response) = &outcome else { return outcome };
        // Where the engine has said that it closes, it may.
        let sent = socket.write_all(&rest).await;
        if response.closes {
            return match self.read_to_end(&mut socket).await {
                Err(wrong) => wrong,
                Ok(()) => outcome,
            };
        }
        if let Err(error) = sent {
            return Outcome::Wrong(format!("the connection is closed, which was not said: {error}"));
        }
        self.socket = Some(socket);
        outcome
    }

    /// Nothing comes behind the last response.
    async fn read_to_end(&mut self, socket: &mut TcpStream) -> Result<(), Outcome> {
        let _ = socket.shutdown().await;
        while self.inbox.is_empty() && matches!(socket.read_buf(&mut self.inbox).await, Ok(count) if count > 0) {}
        match self.inbox.is_empty() {
            true => Ok(()),
            false => Err(Outcome::Wrong(format!("bytes behind the last response: {}", self.inbox.escape_ascii()))),
        }
    }

    async fn fill(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        match socket.read_buf(&mut self.inbox).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn read_response(&mut self, socket: &mut TcpStream, method: &str) -> io::Result<Outcome> {
        let mut response = Response::default();
        let head = loop {
            while head_end(&self.inbox).is_none() {
                self.fill(socket).await?;
            }
            let end = head_end(&self.inbox).expect("it is there");
            let head: Vec<u8> = self.inbox.drain(..end).collect();
            let head = String::from_utf8_lossy(&head).into_owned();
            let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
            let Some(status) = status else { return Ok(Outcome::Wrong(format!("no response: {head}"))) };
            response.status = status;
            if !(102..200).contains(&status) && status != 100 {
                break head;
            }
            response.interim += 1;
        };
        response.tag = values(&head, "X-Tag").first().map(|tag| (*tag).to_owned());
        response.closes = values(&head, "Connection").iter().any(|value| value.eq_ignore_ascii_case("close"));
        let none = method == "HEAD" || matches!(response.status, 100..200 | 204 | 304);
        match if none { Body::None } else { framing(&head, Body::UntilClose) } {
            Body::None => {}
            Body::Length(length) => {
                while self.inbox.len() < length {
                    self.fill(socket).await?;
                }
                response.body = self.inbox.drain(..length).collect();
            }
            Body::Chunked => loop {
                if let Some(whole) = wire::chunked(&self.inbox) {
                    self.inbox.drain(..whole.length);
                    (response.body, response.trailers) = (whole.data, whole.trailers);
                    break;
                }
                self.fill(socket).await?;
            },
            Body::UntilClose => return Ok(Outcome::Wrong(format!("a body until the close: {head}"))),
        }
        Ok(Outcome::Response(response))
    }
}

/// What goes out at once, and what follows the response.
fn http1_request(case: &Case, path: &str) -> (Vec<u8>, Vec<u8>) {
    let (body, half) = request_body(case);
    let half = if case.early { half } else { body.len() };
    let mut head = format!("{} {path} HTTP/1.1\r\nHost: matrix.test\r\n", case.method);
    let (mut first, mut rest) = (body[..half].to_vec(), body[half..].to_vec());
    match case.request_body {
        RequestBody::None => {}
        RequestBody::Length => head.push_str(&format!("Content-Length: {}\r\n", body.len())),
        RequestBody::Open => {
            head.push_str("Transfer-Encoding: chunked\r\n");
            let chunk = |data: &[u8]| [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
            first = chunk(&first);
            match case.early {
                true => rest = [chunk(&rest), b"0\r\n\r\n".to_vec()].concat(),
                false => first.extend(b"0\r\n\r\n"),
            }
        }
    }
    ([head.as_bytes(), b"\r\n", &first].concat(), rest)
}

pub struct Http2 {
    address: SocketAddr,
    tls: bool,
    send: Option<SendRequest<Bytes>>,
}

impl Http2 {
    async fn ask(&mut self, case: &Case, path: &str) -> Result<Outcome, String> {
        if self.send.is_none() {
            let socket = TcpStream::connect(self.address).await.expect("the engine accepts");
            socket.set_nodelay(true).expect("no delay");
            self.send = Some(match self.tls {
                true => begin(over_tls(socket).await).await,
                false => begin(socket).await,
            });
        }
        let send = self.send.clone().expect("it is there");
        let mut send = match send.ready().await {
            Ok(send) => send,
            Err(error) => return Ok(Outcome::Wrong(format!("the connection has ended: {error}"))),
        };
        let (body, half) = request_body(case);
        let mut request = Request::builder().method(case.method).uri(match self.tls {
            true => format!("https://localhost{path}"),
            false => format!("http://matrix.test{path}"),
        });
        if case.request_body == RequestBody::Length {
            request = request.header("content-length", body.len());
        }
        let request = request.body(()).expect("a request");
        let none = case.request_body == RequestBody::None;
        let (response, mut sending) = send.send_request(request, none).map_err(|error| error.to_string())?;
        let mut rest = Bytes::from(body);
        if !none {
            let first = rest.split_to(if case.early { half } else { rest.len() });
            upload(&mut sending, first, !case.early).await;
        }
        let outcome = read_http2(response).await;
        if case.early {
            upload(&mut sending, rest, true).await;
        }
        if let Err(error) = &outcome
            && (error.is_go_away() || error.is_io())
        {
            return Ok(Outcome::Wrong(format!("the connection has ended: {error}")));
        }
        Ok(match outcome {
            Ok(response) => Outcome::Response(response),
            Err(error) if error.reason() == Some(Reason::NO_ERROR) => {
                Outcome::Wrong(format!("silently short: {error}"))
            }
            Err(error) => Outcome::Failed(error.to_string()),
        })
    }
}

async fn begin(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> SendRequest<Bytes> {
    let (send, connection) = h2::client::handshake(socket).await.expect("the engine speaks HTTP/2");
    tokio::spawn(async move { drop(connection.await) });
    send
}

/// Agrees on HTTP/2 by ALPN.
async fn over_tls(socket: TcpStream) -> TlsStream<TcpStream> {
    let mut config = (*Certificates::shared().client()).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    stream
}

/// Sends a part of a body; a server that has answered need not take it.
async fn upload(sending: &mut SendStream<Bytes>, mut data: Bytes, ends: bool) {
    while !data.is_empty() {
        sending.reserve_capacity(data.len());
        let Some(Ok(room)) = poll_fn(|context| sending.poll_capacity(context)).await else { return };
        let part = data.split_to(room.min(data.len()));
        if sending.send_data(part, ends && data.is_empty()).is_err() {
            return;
        }
    }
}

async fn read_http2(response: h2::client::ResponseFuture) -> Result<Response, h2::Error> {
    let mut seen = Response::default();
    let mut response = pin!(response);
    let head = loop {
        tokio::select! {
            biased;
            interim = poll_fn(|context| response.as_mut().get_mut().poll_informational(context)) => match interim {
                Some(interim) => { interim?; seen.interim += 1; }
                None => break response.as_mut().await?,
            },
        }
    };
    seen.status = head.status().as_u16();
    seen.tag = head.headers().get("x-tag").map(|tag| String::from_utf8_lossy(tag.as_bytes()).into_owned());
    let mut body = head.into_body();
    while let Some(data) = body.data().await {
        let data = data?;
        let _ = body.flow_control().release_capacity(data.len());
        seen.body.extend_from_slice(&data);
    }
    let lines = |map: HeaderMap| map.iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
    seen.trailers = body.trailers().await?.map(lines).unwrap_or_default();
    Ok(seen)
}
