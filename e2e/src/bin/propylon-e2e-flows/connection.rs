//! One connection over TLS: requests and answers one after the other, and the words for how it ends.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;

use propylon_e2e::http::{head_end, values};
use rustls::HandshakeKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::client::TlsStream;

use crate::settings::Settings;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n";
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub struct Connection {
    stream: TlsStream<TcpStream>,
    bytes: Vec<u8>,
    /// The one that answered last, as X-Engine says.
    pub engine: Option<String>,
    /// Whether it began with the ticket of an earlier one.
    pub has_offered: bool,
}

pub struct Answer {
    pub status: u16,
    /// The other side ends the connection behind it.
    pub closes: bool,
}

/// How a connection ends.
pub enum End {
    /// The other side has announced it, or has closed while nothing was asked of it.
    InOrder,
    /// Any other way.
    Broken { how: String, in_flight: bool },
}

impl Connection {
    pub async fn open(from: IpAddr, settings: &Settings, resumes: bool) -> Result<Connection, String> {
        let Settings { to, name, tickets, timeout: limit, .. } = settings;
        let tls = if resumes { &settings.resuming } else { &settings.fresh };
        let opened = timeout(*limit, async {
            let socket = if settings.to.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
            // Ports wait for a minute after each connection; the number of addresses is what gives enough of them.
            socket.bind((from, 0).into())?;
            socket.set_nodelay(true)?;
            let stream = socket.connect(*to).await?;
            // The first message is made here, before anybody else gets a turn.
            let before = tickets.offered();
            let handshake = tls.connect(name.clone(), stream);
            let has_offered = tickets.offered() > before;
            Ok::<_, io::Error>((handshake.await?, has_offered))
        });
        match opened.await {
            Ok(Ok((stream, has_offered))) => Ok(Connection { stream, bytes: Vec::new(), engine: None, has_offered }),
            Ok(Err(error)) => Err(word(&error)),
            Err(_) => Err("timeout".to_owned()),
        }
    }

    pub fn handshake_kind(&self) -> Option<HandshakeKind> {
        self.stream.get_ref().1.handshake_kind()
    }

    /// Waits, and listens for an end meanwhile.
    pub async fn idle_until(&mut self, when: Instant) -> Result<(), End> {
        let read = tokio::select! {
            () = sleep_until(when) => return Ok(()),
            read = self.stream.read_buf(&mut self.bytes) => read,
        };
        Err(match read {
            Ok(0) => End::InOrder,
            Ok(_) => End::Broken { how: "bytes that nobody asked for".to_owned(), in_flight: false },
            Err(error) => End::Broken { how: word(&error), in_flight: false },
        })
    }

    /// One request and its answer.
    pub async fn exchange(&mut self, limit: Duration) -> Result<Answer, End> {
        let broken = |how: String| End::Broken { how, in_flight: true };
        match timeout(limit, self.ask()).await {
            Ok(answer) => answer.map_err(broken),
            Err(_) => Err(broken("timeout".to_owned())),
        }
    }

    async fn ask(&mut self) -> Result<Answer, String> {
        self.stream.write_all(REQUEST).await.map_err(|error| word(&error))?;
        self.stream.flush().await.map_err(|error| word(&error))?;
        loop {
            if let Some((answer, end)) = self.answer()? {
                self.bytes.drain(..end);
                return Ok(answer);
            }
            if self.bytes.len() > ANSWER_BYTES_MAX {
                return Err("an answer without end".to_owned());
            }
            match self.stream.read_buf(&mut self.bytes).await {
                Ok(0) => return Err("closed".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(word(&error)),
            }
        }
    }

    /// The answer at the front of what has come, and where it ends, if it has come whole.
    fn answer(&mut self) -> Result<Option<(Answer, usize)>, String> {
        let Some(head) = head_end(&self.bytes) else { return Ok(None) };
        let text = String::from_utf8_lossy(&self.bytes[..head]).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
        let length = values(&text, "Content-Length").first().and_then(|length| length.parse::<usize>().ok());
        let end = head + length.ok_or("an answer without a length")?;
        if self.bytes.len() < end {
            return Ok(None);
        }
        if let Some(engine) = values(&text, "X-Engine").first() {
            self.engine = Some((*engine).to_owned());
        }
        let closes = values(&text, "Connection").iter().any(|value| value.eq_ignore_ascii_case("close"));
        Ok(Some((Answer { status, closes }, end)))
    }

    /// Says that no more comes, and does not wait for anybody.
    pub async fn close(mut self) {
        let _ = self.stream.shutdown().await;
    }
}

/// An error in one word, as the kernel's headers have it where it is the kernel's.
fn word(error: &io::Error) -> String {
    let name = match error.raw_os_error() {
        Some(32) => "EPIPE",
        Some(98) => "EADDRINUSE",
        Some(99) => "EADDRNOTAVAIL",
        Some(101) => "ENETUNREACH",
        Some(103) => "ECONNABORTED",
        Some(104) => "ECONNRESET",
        Some(110) => "ETIMEDOUT",
        Some(111) => "ECONNREFUSED",
        Some(113) => "EHOSTUNREACH",
        _ if error.kind() == ErrorKind::UnexpectedEof => "eof",
        _ => return error.to_string(),
    };
    name.to_owned()
}
