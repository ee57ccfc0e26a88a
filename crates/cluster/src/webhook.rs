//! The number of engines that are wanted, posted to whoever starts and stops them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use propylon_config::WebAddress;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::records::CapacityRecord;

/// Time limit from looking up the name to the head of the answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Posts in the background. The receiver gets whether the recipient has taken the number.
pub(crate) fn post(cluster: String, to: WebAddress, record: CapacityRecord) -> oneshot::Receiver<bool> {
    let (taken, outcome) = oneshot::channel();
    tokio::spawn(async move {
        let body = json!({
            "cluster": cluster,
            "wanted": record.wanted,
            "engines": record.engines,
            "reason": record.reason,
            "at": record.at,
        });
        let sent = timeout(LIMIT, send(&to, body.to_string())).await;
        let sent = sent.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        match &sent {
            Ok(status) if is_success(*status) => {}
            Ok(status) => log::warn!("cluster: {} answers {status} to the number of engines wanted", to.url),
            Err(why) => log::warn!("cluster: {} cannot be told how many engines are wanted: {why}", to.url),
        }
        let _ = taken.send(sent.is_ok_and(is_success));
    });
    outcome
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

async fn send(to: &WebAddress, body: String) -> Result<u16, String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let address = to.address.to_string();
    let tcp = TcpStream::connect(&address).await.map_err(|error| words(&error))?;
    if !to.is_https {
        return exchange(tcp, to, body).await;
    }
    let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).map_err(|error| words(&error))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| words(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(|error| words(&error))?;
    exchange(tls, to, body).await
}

async fn exchange<S>(stream: S, to: &WebAddress, body: String) -> Result<u16, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| words(&error))?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(Method::POST)
        .uri(&to.path)
        .header(HOST, &to.authority)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| words(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| words(&error));
    connection.abort();
    Ok(answer?.status().as_u16())
}
