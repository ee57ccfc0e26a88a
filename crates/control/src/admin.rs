//! The admin address: metrics, health, the configuration in effect, what is running, and the dashboard.
//!
//! The admin address lives on the main thread and reads what the workers have written, so nobody here can make a worker
//! wait. What it changes (`change.rs`) it asks the main thread's reloader for, and only for those
//! who show that they may.

mod change;
mod cluster;
mod context;
mod faults;
mod response;
mod routes_json;
mod status_json;
mod view;

use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HOST, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use propylon_metrics::by_accept;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

use crate::audit::{Caller, Refusals};
use crate::logger;
use crate::requests::ChangeRequest;
pub use change::{PEM_BYTES_MAX, SHARED_TOO_LONG, wrong_token_file};
use context::AdminContext;
use response::{text, typed};
pub use routes_json::Sentences;
use status_json::Filter;
pub use view::View;

/// From a connection's accept, or its last answer, to the end of the next request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// After this a connection is asked to end with the answer it is at; a client that wants more connects anew.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// How long that answer may then take.
const LAST_ANSWER_TIME: Duration = Duration::from_secs(10);
/// Connections at once; more are closed unanswered. Each may hold a page of metrics in memory.
const CONNECTIONS_MAX: usize = 64;
/// A head has to fit in here.
const HEAD_BYTES: usize = 16 * 1024;
/// Changes that may wait for the one that is being made.
pub const CHANGES_WAITING_MAX: usize = 16;
/// How long accepting rests after it failed.
const ACCEPT_REST: Duration = Duration::from_millis(100);

const PAGE: &str = include_str!("admin/page.html");
const STYLE: &str = include_str!("admin/page.css");
const SCRIPT: &str = include_str!("admin/page.js");
const HELP: &str = "nothing is here; there are:\n/           the dashboard\n\
    /metrics    every number, for Prometheus\n\
    /health     200 while serving, 503 while draining\n\
    /config     the configuration in effect, as JSON\n\
    /cluster    the cluster that this engine is one of\n\
    /history.json?span=5m   some thirty numbers of the last five minutes, or with span=24h of the last day\n\
    /events.json the last lines of the log\n\
    /routes     the routes in words, with what is counted of their requests\n\
    /snapshot   what is running: listeners, backends, workers\n\
    and these by /v1/... as well, with what changes something: see \"Admin API\" in the manual\n";

const NO_CLUSTER: &str = "this engine is not one of a cluster: [cluster] is not set\n";

/// Listening socket of the admin address.
pub enum AdminSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AdminSocket {
    /// Another handle on the same socket.
    pub fn another(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            AdminSocket::Tcp(socket) => socket.try_clone()?.into(),
            AdminSocket::Unix(socket) => socket.try_clone()?.into(),
        })
    }
}

/// The admin address, open.
pub struct AdminListener {
    accepting: AbortHandle,
    closing: watch::Sender<bool>,
}

impl AdminListener {
    /// Another process answers here from now on: nobody else is let in, and each connection ends with the answer it is at.
    pub fn close(self) {
        self.accepting.abort();
        self.closing.send_replace(true);
    }
}

/// Serves the admin address from the current runtime.
pub fn start(
    socket: AdminSocket,
    view: View,
    change_requests: mpsc::Sender<ChangeRequest>,
) -> io::Result<AdminListener> {
    let config = view.current().config.clone();
    let token_file = config.admin.as_ref().and_then(|admin| Some(admin.token_file.as_ref()?.path.clone()));
    let (closing, closed) = watch::channel(false);
    let accepting = match socket {
        AdminSocket::Tcp(socket) => {
            let local = socket.local_addr()?.ip();
            let only = local.is_loopback().then_some(local);
            let context = Rc::new(AdminContext {
                view,
                change_requests,
                only,
                is_unix: false,
                token_file,
                closed,
                refusals: Refusals::default(),
                open: Rc::default(),
            });
            let socket = tokio::net::TcpListener::from_std(socket)?;
            spawn_local(async move {
                loop {
                    match socket.accept().await {
                        Ok((stream, from)) => {
                            let by = Caller { address: Some(from), ..Caller::default() };
                            receive(stream, by, &context);
                        }
                        Err(_) => sleep(ACCEPT_REST).await,
                    }
                }
            })
        }
        AdminSocket::Unix(socket) => {
            let context = Rc::new(AdminContext {
                view,
                change_requests,
                only: None,
                is_unix: true,
                token_file,
                closed,
                refusals: Refusals::default(),
                open: Rc::default(),
            });
            let socket = tokio::net::UnixListener::from_std(socket)?;
            spawn_local(async move {
                loop {
                    match socket.accept().await {
                        Ok((stream, _)) => {
                            let peer = stream.peer_cred().ok();
                            let local = peer.map(|peer| (peer.uid(), peer.pid()));
                            receive(stream, Caller { local, ..Caller::default() }, &context);
                        }
                        Err(_) => sleep(ACCEPT_REST).await,
                    }
                }
            })
        }
    };
    Ok(AdminListener { accepting: accepting.abort_handle(), closing })
}

fn receive<S: AsyncRead + AsyncWrite + Unpin + 'static>(stream: S, by: Caller, context: &Rc<AdminContext>) {
    if Rc::strong_count(&context.open) > CONNECTIONS_MAX {
        log::debug!("admin: {CONNECTIONS_MAX} connections are open; one more was closed");
        return;
    }
    let (context, open) = (Rc::clone(context), Rc::clone(&context.open));
    spawn_local(async move {
        serve(stream, by, context).await;
        drop(open);
    });
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(stream: S, by: Caller, context: Rc<AdminContext>) {
    let mut closed = context.closed.clone();
    let service = service_fn(|request: Request<Incoming>| {
        let (context, by) = (Rc::clone(&context), by.clone());
        async move { Ok::<_, Infallible>(answer(request, by, &context).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // Errors of a connection concern the admin client alone.
    tokio::select! {
        _ = within(connection.as_mut()) => return,
        () = sleep(CONNECTION_TIME) => {}
        _ = closed.wait_for(|closed| *closed) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_ANSWER_TIME, connection).await;
}

/// The same future, borrowed: a timeout over it leaves it alive.
async fn within<T: Future>(future: Pin<&mut T>) -> T::Output {
    future.await
}

async fn answer(request: Request<Incoming>, by: Caller, context: &AdminContext) -> Response<Full<Bytes>> {
    let mut response = respond(request, by, context).await;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin"));
    headers
        .entry(CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    response
}

async fn respond(request: Request<Incoming>, by: Caller, context: &AdminContext) -> Response<Full<Bytes>> {
    let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
    if let Some(local) = context.only
        && let Some(host) = host
        && !names_us(host, local)
    {
        let body = "use the address from the configuration, or localhost: other names are refused here\n";
        return text(StatusCode::MISDIRECTED_REQUEST, body.into());
    }
    if let Some(operation) = cluster::operation(request.method(), request.uri()) {
        return cluster::answer(operation, request, by, context).await;
    }
    match *request.method() {
        Method::GET | Method::HEAD if matches!(request.uri().path(), "/cluster" | "/v1/cluster") => {
            match context.view.cluster().await {
                Some(status) => typed("application/json", format!("{status:#}\n")),
                None => text(StatusCode::NOT_FOUND, NO_CLUSTER.into()),
            }
        }
        Method::GET | Method::HEAD => read(&request, &context.view),
        _ => change::answer(request, by, context).await,
    }
}

fn read(request: &Request<Incoming>, view: &View) -> Response<Full<Bytes>> {
    let uri = request.uri();
    match uri.path().strip_prefix("/v1").unwrap_or(uri.path()) {
        "/" => page(),
        "/metrics" => {
            let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
            let (kind, text) = by_accept(&accept.collect::<Vec<_>>().join(","), view.metrics());
            typed(kind, text)
        }
        "/health" if view.is_draining() => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".into()),
        "/health" => text(StatusCode::OK, "ok\n".into()),
        "/config" => {
            let mut response = typed("application/json", view.config());
            let generation = format!("\"{}\"", view.current().generation);
            if let Ok(generation) = HeaderValue::from_str(&generation) {
                response.headers_mut().insert(ETAG, generation);
            }
            response
        }
        "/routes" => typed("application/json", view.routes_json()),
        "/snapshot" => typed("application/json", view.snapshot()),
        "/history.json" => match view.history_json(uri.query()) {
            Some(history) => typed("application/json", history),
            None => text(StatusCode::BAD_REQUEST, "there are span=5m and span=24h\n".into()),
        },
        "/events.json" => typed("application/json", events_json()),
        "/status.json" => typed("application/json", view.status_json(&Filter::parse(uri.query()))),
        _ => text(StatusCode::NOT_FOUND, HELP.into()),
    }
}

/// The last lines of the log, the newest last.
fn events_json() -> String {
    let seconds =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1e3;
    let one = |line: logger::Recent| json!({ "time": seconds(line.time), "level": line.level, "text": line.text });
    json!({ "shape": 1, "events": logger::recent().into_iter().map(one).collect::<Vec<Value>>() }).to_string()
}

/// Whether a Host field's value is localhost or the address we are bound to, with whatever port.
fn names_us(host: &[u8], local: IpAddr) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address == local)
}

/// The dashboard. Script and style are in the page and carry a number that cannot be guessed, so that nothing else runs.
fn page() -> Response<Full<Bytes>> {
    let nonce = format!("{:016x}{:016x}", unguessable(), unguessable());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = typed(
        "text/html; charset=utf-8",
        PAGE.replace("{{nonce}}", &nonce).replace("{{style}}", STYLE).replace("{{script}}", SCRIPT),
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// The standard library keys its hash maps from the kernel's randomness; the hash of nothing under such a key is
/// as unknown as the key.
fn unguessable() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_elsewhere_cannot_reach_us_by_a_name_of_its_own() {
        let (v4, v6) = ("127.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        for host in ["127.0.0.1", "127.0.0.1:9900", "localhost", "LOCALHOST:1"] {
            assert!(names_us(host.as_bytes(), v4), "{host}");
        }
        for host in ["[::1]:9900", "[::1]", "localhost:9900"] {
            assert!(names_us(host.as_bytes(), v6), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example", "127.0.0.2", "[::1]", "", "[", "127.0.0.1.evil.example:9900"]
        {
            assert!(!names_us(host.as_bytes(), v4), "{host}");
        }
        assert!(!names_us(b"\xff", v4));
    }

    #[test]
    fn the_page_names_its_nonce_wherever_something_runs_and_asks_nobody_else() {
        assert_eq!(PAGE.matches("<script nonce=\"{{nonce}}\">").count(), PAGE.matches("<script").count());
        assert_eq!(PAGE.matches("<style nonce=\"{{nonce}}\">").count(), PAGE.matches("<style").count());
        let all = [PAGE, STYLE, SCRIPT].concat();
        let outside = all.replace("http://www.w3.org/2000/svg", "").replace("\"http://\" : \"https://\"", "");
        assert!(!outside.contains("http://") && !outside.contains("https://") && !outside.contains("src="));
        assert!(
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "style=", " on"].iter().all(|word| !PAGE.contains(word))
        );
        assert!(
            ["innerHTML", "outerHTML", "insertAdjacent", "eval(", "document.write"]
                .iter()
                .all(|word| !SCRIPT.contains(word))
        );
        // A path before ours, which whoever stands in front of the address has added, is kept.
        assert!(!all.contains("href=\"/") && !all.contains("fetch(\"/"));
        assert!(all.len() < 100 * 1024);
    }
}
