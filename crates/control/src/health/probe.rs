//! One probe of one address: connect, ask, judge the answer. What a server sends is bounded, and so is the time.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use propylon_config::{BackendSource, FastCgi, HealthCheck, ProbeKind, ServerProtocol};
use propylon_observe::telemetry::PROBE_NOT_MADE;
use propylon_signer::KeyProcessClient;
use propylon_sys::{Address, ConnectSource};
use propylon_tls::Connector;
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::failure::Failure;
use super::stream::ProbeStream;
use super::{fastcgi as cgi, grpc, http, http2};

/// Pause between two attempts at a Unix socket that has no room for another connection.
const UNIX_PAUSE: Duration = Duration::from_millis(20);

/// How TLS with a server is begun: by whom, the server's position in the backend, and the process that signs for what
/// it is shown, where that is another.
pub type Secure<'a> = Option<(&'a Connector, usize, Option<&'a KeyProcessClient>)>;

/// Asks one address, in the protocol of the backend's requests; at a port of its own, which need not speak that, in what TLS
/// agrees on, or in HTTP/1.1. `address`: with the source of connections to it. `host` is the
/// server's name in the request.
pub async fn probe(
    check: &HealthCheck,
    (protocol, fastcgi): (ServerProtocol, Option<&FastCgi>),
    address: (Address, Option<&BackendSource>),
    host: &str,
    secure: Secure<'_>,
) -> Result<(), Failure> {
    let (connected, awaits_signature) = (Cell::new(false), Cell::new(false));
    let asked = async {
        let stream = connect(address).await.map_err(|error| not_connected(&error))?;
        connected.set(true);
        if check.kind == ProbeKind::Tcp {
            return Ok(());
        }
        let line = match secure {
            None => ProbeStream::Plain(stream),
            Some((connector, server, key_process)) => {
                ProbeStream::secure(stream, connector, server, key_process, &awaits_signature).await?
            }
        };
        match &check.kind {
            ProbeKind::Tcp | ProbeKind::Tls => Ok(()),
            ProbeKind::Http(expected) => {
                // A port of its own may be another server's.
                if let Some(settings) = fastcgi.filter(|_| check.port.is_none()) {
                    return cgi::ask(line, (expected, settings), host).await;
                }
                let must = protocol == ServerProtocol::Http2 && check.port.is_none();
                let offered = protocol.may_be_http2();
                match (line.agreed_on_first().map(|first| first && offered), must) {
                    (Some(false), true) => Err(Failure::new("bad-response", "HTTP/2 was not agreed on by ALPN")),
                    (Some(true), _) | (None, true) => http2::ask(line, expected, host, secure.is_some()).await,
                    (Some(false) | None, false) => {
                        http::ask(line, expected, host, protocol == ServerProtocol::Http10).await
                    }
                }
            }
            ProbeKind::Grpc { service } => grpc::ask(line, service, host, secure.is_some()).await,
        }
    };
    timeout(check.timeout, asked).await.unwrap_or_else(|_| {
        let word = match (connected.get(), awaits_signature.get()) {
            (_, true) => PROBE_NOT_MADE,
            (true, false) => "timeout",
            (false, false) => "connect-timeout",
        };
        Err(Failure::new(word, format!("after {} ms", check.timeout.as_millis())))
    })
}

async fn connect((address, source): (Address, Option<&BackendSource>)) -> io::Result<TcpStream> {
    let stream = match address {
        Address::Ip(address) => match source {
            None => return TcpStream::connect(address).await,
            Some(source) => return connect_from(address, source).await,
        },
        Address::Unix(_) => loop {
            match propylon_sys::connect(address) {
                // As many connections wait for their accept as may; the timeout of the probe ends this.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(UNIX_PAUSE).await,
                connected => break connected?,
            }
        },
    };
    TcpStream::from_std(stream)
}

/// Connects from the first of several sources: a probe asks about the server.
async fn connect_from(address: SocketAddr, source: &BackendSource) -> io::Result<TcpStream> {
    let own;
    let source = match source {
        BackendSource::Interface(name) => ConnectSource::Interface(name),
        BackendSource::Addresses(_) => {
            own = source.of_family(address.is_ipv4());
            ConnectSource::Address(*own.first().ok_or(io::ErrorKind::AddrNotAvailable)?)
        }
    };
    let stream = TcpStream::from_std(propylon_sys::connect_from(address, source, (true, false))?)?;
    stream.writable().await?;
    propylon_sys::connect_result(&stream)?;
    Ok(stream)
}

fn not_connected(error: &io::Error) -> Failure {
    let word = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL) => PROBE_NOT_MADE,
        Some(Errno::CONNREFUSED) => "connect-refused",
        _ => "connect-failed",
    };
    // "connect-refused (Connection refused)" would say it twice.
    let detail = if word == "connect-refused" { String::new() } else { error.to_string() };
    Failure::new(word, detail)
}
