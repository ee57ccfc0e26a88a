//! The admin address: /metrics and /health, for whoever watches. It changes nothing, and lives on the main thread.

use std::cell::Cell;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use propylon_metrics::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

/// Time limit for one request and its answer together; each request has a connection of its own.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// A request's head has to fit in here.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Connections at once; more are closed unanswered.
const CONNECTIONS_MAX: usize = 32;
/// Pause before accepting again after an accept failed.
const ACCEPT_REST: Duration = Duration::from_millis(100);

pub struct View {
    pub store: Arc<Store>,
    /// Brings the numbers up to date that change without anybody's writing them.
    pub refresh: Box<dyn Fn()>,
    pub is_draining: Cell<bool>,
}

/// Serves from the current runtime.
pub fn start(socket: TcpListener, view: Rc<View>) -> io::Result<()> {
    let socket = tokio::net::TcpListener::from_std(socket)?;
    let open = Rc::new(());
    spawn_local(async move {
        loop {
            match socket.accept().await {
                // One reference belongs to each connection, and one to this loop.
                Ok(_) if Rc::strong_count(&open) > CONNECTIONS_MAX => {}
                Ok((stream, _)) => {
                    let (view, place) = (Rc::clone(&view), Rc::clone(&open));
                    spawn_local(async move {
                        // Errors here are ignored: they concern the admin client alone.
                        let _ = timeout(CONNECTION_TIME, serve(stream, &view)).await;
                        drop(place);
                    });
                }
                Err(_) => sleep(ACCEPT_REST).await,
            }
        }
    });
    Ok(())
}

async fn serve(mut stream: TcpStream, view: &View) -> io::Result<()> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    stream.write_all(answer(&head, view).as_bytes()).await?;
    stream.shutdown().await
}

/// A whole response (RFC 9112 §4), after which the connection ends.
fn answer(head: &[u8], view: &View) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body) = match (method, target.split('?').next().unwrap_or_default()) {
        _ if !version.starts_with("HTTP/1.") => ("400 Bad Request", TEXT, "this is no HTTP/1 request\n".into()),
        (Some("GET" | "HEAD"), "/metrics") => {
            (view.refresh)();
            let (kind, text) = view.store.by_accept(&accepted(head));
            ("200 OK", kind, text)
        }
        (Some("GET" | "HEAD"), "/health") if view.is_draining.get() => {
            ("503 Service Unavailable", TEXT, "draining\n".into())
        }
        (Some("GET" | "HEAD"), "/health") => ("200 OK", TEXT, "ok\n".into()),
        (Some("GET" | "HEAD"), _) => ("404 Not Found", TEXT, "there are /metrics and /health\n".into()),
        _ => ("405 Method Not Allowed", TEXT, "only GET and HEAD\n".into()),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    let body = if method == Some("HEAD") { String::new() } else { body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\n{allow}Connection: close\r\n\r\n{body}"
    )
}

/// Values of the fields `Accept`.
fn accepted(head: &[u8]) -> String {
    let lines = head.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()?.split_once(':'));
    let values = lines.filter(|(name, _)| name.eq_ignore_ascii_case("accept")).map(|(_, value)| value.trim());
    values.collect::<Vec<_>>().join(",")
}

const TEXT: &str = "text/plain; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_metrics_and_health_and_nothing_can_be_changed() {
        let mut registry = propylon_metrics::Registry::new();
        registry.counter("propylon_x_total", "X.", &[]);
        let view = View { store: registry.build(1), refresh: Box::new(|| ()), is_draining: Cell::new(false) };
        for (request, status, part) in [
            ("GET /health HTTP/1.1", "200", "\r\n\r\nok\n"),
            ("GET /metrics HTTP/1.0", "200", "propylon_x_total 0"),
            ("HEAD /metrics HTTP/1.1", "200", "close\r\n\r\n"),
            ("GET /metrics HTTP/1.1\r\naccept:application/openmetrics-text", "200", "# TYPE propylon_x counter"),
            ("GET / HTTP/1.1", "404", "/metrics and /health"),
            ("POST /health HTTP/1.1", "405", "Allow: GET, HEAD"),
            ("GET /health", "400", ""),
            ("", "400", ""),
        ] {
            let answer = answer(format!("{request}\r\n\r\n").as_bytes(), &view);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(part), "{request}: {answer}");
        }
        view.is_draining.set(true);
        assert!(answer(b"GET /health HTTP/1.1\r\n\r\n", &view).starts_with("HTTP/1.1 503"));
    }
}
