//! The admin address: metrics and health, on the main thread.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use propylon_metrics::Store;
use tokio::task::spawn_local;

use crate::snapshot::Snapshot;

const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// What the admin address can show.
#[derive(Clone)]
pub struct View {
    store: Arc<Store>,
    #[allow(dead_code)]
    snapshot: Arc<Snapshot>,
}

impl View {
    pub fn new(store: Arc<Store>, snapshot: Arc<Snapshot>) -> View {
        View { store, snapshot }
    }
}

/// Serves the admin address from the current runtime.
pub fn start(socket: TcpListener, view: View) -> io::Result<()> {
    let socket = tokio::net::TcpListener::from_std(socket)?;
    spawn_local(async move {
        loop {
            match socket.accept().await {
                Ok((stream, _)) => drop(spawn_local(serve(stream, view.clone()))),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    Ok(())
}

async fn serve(stream: tokio::net::TcpStream, view: View) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&request, &view);
        async move { Ok::<_, Infallible>(answer) }
    });
    // What goes wrong here is the admin client's business alone.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(request: &Request<Incoming>, view: &View) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".into());
    }
    match request.uri().path() {
        "/metrics" => {
            let mut response = text(StatusCode::OK, view.store.prometheus());
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        "/health" => text(StatusCode::OK, "ok\n".into()),
        _ => text(StatusCode::NOT_FOUND, "/metrics or /health\n".into()),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
