//! One fetch of an issuer's public keys, over https alone, with a bound on everything.

use std::cell::Cell;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{ACCEPT, HOST, LOCATION, USER_AGENT};
use hyper_util::rt::TokioIo;
use propylon_config::{KeysUrl, Resolver};
use propylon_tls::{Finding, UpstreamProfile};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::health::stream::ProbeStream;
use crate::names::Names;

/// Time from looking up the name to the last byte.
const FETCH_TIME: Duration = Duration::from_secs(10);
const BODY_BYTES_MAX: usize = 256 * 1024;
/// Longest connect and handshake at one of several addresses.
const ADDRESS_MAX: Duration = Duration::from_secs(3);

/// Fetches the text of a set of keys.
///
/// # Errors
/// Why there is none, in words.
pub async fn fetch(url: &KeysUrl, resolver: &Resolver) -> Result<Bytes, String> {
    match timeout(FETCH_TIME, ask(url, resolver)).await {
        Ok(fetched) => fetched,
        Err(_) => Err(format!("no answer within {} s", FETCH_TIME.as_secs())),
    }
}

async fn ask(url: &KeysUrl, resolver: &Resolver) -> Result<Bytes, String> {
    let (address, tls) = (url.address.clone(), url.tls.clone());
    // The system's authorities are many, and this thread has other things to do.
    let loaded = tokio::task::spawn_blocking(move || {
        UpstreamProfile::load_for(&[(&address.address, address.at)], &tls, &[b"http/1.1"])
    });
    let (profile, _) = loaded.await.map_err(said)?.map_err(|findings| first(&findings))?;
    let line = connect(url, resolver, &profile).await?;
    let (mut sender, connection) = handshake(TokioIo::new(line)).await.map_err(said)?;
    let request = Request::builder()
        .uri(&url.address.path)
        .header(HOST, &url.address.authority)
        .header(ACCEPT, "application/jwk-set+json, application/json")
        .header(USER_AGENT, concat!("propylon/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(said)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(said)?;
        let (head, body) = answer.into_parts();
        if let Some(location) = head.headers.get(LOCATION).filter(|_| head.status.is_redirection()) {
            let location: String = String::from_utf8_lossy(location.as_bytes()).chars().take(200).collect();
            return Err(format!("it leads on to {location:?}, where nobody follows; write the URL of the keys itself"));
        }
        if head.status.as_u16() != 200 {
            return Err(format!("status {}", head.status.as_u16()));
        }
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| format!("its answer cannot be read: {error}"))
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end with the answer's last byte.
        _ = connection => answer.await,
    }
}

async fn connect(url: &KeysUrl, resolver: &Resolver, profile: &UpstreamProfile) -> Result<ProbeStream, String> {
    let found = Names::new(resolver).look_up(&url.address.address).await?;
    let mut failed = "there is no address".to_owned();
    for address in found.targets.into_iter().filter_map(|found| found.address.ip()) {
        let (connector, awaits_signature) = (profile.connector(), Cell::default());
        let secured = async {
            let stream = TcpStream::connect(address).await.map_err(said)?;
            ProbeStream::secure(stream, &connector, 0, None, &awaits_signature).await.map_err(said)
        };
        // One that takes no connections, as behind a broken route, leaves time for the next.
        match timeout(ADDRESS_MAX, secured).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = format!("{address}: {error}"),
            Err(_) => failed = format!("{address}: no answer within {} s", ADDRESS_MAX.as_secs()),
        }
    }
    Err(failed)
}

fn first(findings: &[Finding]) -> String {
    findings.first().map_or_else(String::new, |finding| format!("{}: {}", finding.path.display(), finding.what))
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}
