//! Servers for a rig's engines: they answer any request with 200, and say which address it came from.
//!
//! `propylon-e2e-servers ADDRESS...` prints `listening` when all of them are bound. An answer has `X-Engine` with the
//! address of whoever asked, which in a rig is an engine's own, and `X-Server` with the server's.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use propylon_e2e::http::{Body, framing, head_end};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Bytes of a request's head and body.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// After a failed accept, where files have run out.
const PAUSE: Duration = Duration::from_millis(10);

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut servers = tokio::task::JoinSet::new();
        for address in std::env::args().skip(1) {
            let listener = TcpListener::bind(&address).await.unwrap_or_else(|error| panic!("{address}: {error}"));
            servers.spawn(serve(listener));
        }
        println!("listening");
        std::io::stdout().flush().expect("a reader");
        servers.join_all().await;
    });
}

async fn serve(listener: TcpListener) {
    let own = listener.local_addr().expect("a bound listener");
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                tokio::spawn(answer(stream, own, peer));
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Requests of one connection, until it ends or sends something else.
async fn answer(mut stream: TcpStream, own: SocketAddr, peer: SocketAddr) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let response = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nX-Engine: {}\r\n\
         X-Server: {own}\r\n\r\nok\n",
        peer.ip()
    );
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = request_end(&bytes) {
            bytes.drain(..end);
            stream.write_all(response.as_bytes()).await.ok()?;
        } else if bytes.len() > REQUEST_BYTES_MAX || stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// The end of the first request, if it has come whole; chunked bodies are not read.
fn request_end(bytes: &[u8]) -> Option<usize> {
    let head = head_end(bytes)?;
    let body = match framing(&String::from_utf8_lossy(&bytes[..head]), Body::None) {
        Body::Length(length) => length,
        _ => 0,
    };
    (bytes.len() >= head + body).then_some(head + body)
}
