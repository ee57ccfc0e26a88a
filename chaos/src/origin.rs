//! A server of a run, in a process of its own so that it can be killed: HTTP/1.1 and HTTP/2 (`http2`), with TLS and
//! without as the first bytes say, WebSocket-like echo, and an echo without HTTP; its behaviour is changed by lines
//! on standard input.
//!
//! The path of a request says what it wants: `/c/ID/BYTES/PIECE_MILLISECONDS`. Every action is written down first.

mod behaviour;
mod http;
mod http2;
mod server;

pub use behaviour::Behaviour;

use crate::content::{Content, Side};
use crate::journal::{Journal, Progress, Protocol};
use crate::wire::{Wire, server_config};
use http::{Head, RequestReader};
use propylon_bench::failure::{Failure, Outcome, While};
use server::{IDLE_MAX, PIECE_BYTES, Server};
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, spawn_local};

/// Length of the start of a connection by which it is told what it speaks.
const START_BYTES: usize = 2;
/// First bytes of TLS, and of HTTP/2 by prior knowledge; no method of HTTP/1.1 that comes here begins so.
const TLS_START: u8 = 0x16;
const HTTP2_START: &[u8] = b"PR";
/// For the rest of the start, where only a part of it has come.
const START_INTERVAL: Duration = Duration::from_millis(1);
/// Answer to the key of every upgrade: all of them come with the same.
const WEBSOCKET_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A server of a chaos run; started by the run, not by hand
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  propylon-chaos origin --name a.1 --http 127.0.0.1:20001 --echo 127.0.0.1:20002 --journal a.1.journal"
)]
pub struct Arguments {
    /// Its name and run, such as "a.1": every answer says it
    #[arg(long)]
    name: String,
    /// Where it speaks HTTP
    #[arg(long)]
    http: SocketAddr,
    /// Where it echoes
    #[arg(long)]
    echo: SocketAddr,
    /// Certificate and key, for connections that begin with TLS
    #[arg(long)]
    identity: PathBuf,
    /// Agrees on HTTP/2 where TLS offers it
    #[arg(long)]
    http2: bool,
    /// File in which it writes down what it does
    #[arg(long)]
    journal: PathBuf,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let protocols: &[&[u8]] = if arguments.http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
    let server = Rc::new(Server {
        name: arguments.name.clone(),
        tls: server_config(&arguments.identity, protocols)?,
        behaviour: Cell::default(),
        journal: RefCell::new(Journal::open(&arguments.journal)?),
        random: RefCell::new(fastrand::Rng::new()),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().when("starting a runtime")?;
    tokio::task::LocalSet::new().block_on(&runtime, serve(server, arguments.http, arguments.echo))
}

async fn serve(server: Rc<Server>, http: SocketAddr, echo: SocketAddr) -> Outcome<()> {
    let mut listeners = listen(&server, http, echo)?;
    let mut orders = behaviour::orders();
    say("listening")?;
    // The end of standard input is the end of the run.
    while let Some(line) = orders.recv().await {
        let behaviour = Behaviour::parse(&line).ok_or_else(|| Failure::new(format!("an unknown order: {line}")))?;
        match (server.behaviour.replace(behaviour).deaf, behaviour.deaf) {
            (false, true) => listeners.drain(..).for_each(|listener| listener.abort()),
            (true, false) => listeners = listen(&server, http, echo)?,
            _ => {}
        }
        // The listeners' sockets are closed when their tasks are dropped, which is not yet.
        tokio::task::yield_now().await;
        say("ok")?;
    }
    Ok(())
}

fn say(word: &str) -> Outcome<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{word}").and_then(|()| out.flush()).when("answering an order")
}

fn listen(server: &Rc<Server>, http: SocketAddr, echo: SocketAddr) -> Outcome<Vec<AbortHandle>> {
    let mut handles = Vec::new();
    for (address, is_http) in [(http, true), (echo, false)] {
        let socket = std::net::TcpListener::bind(address).when(format_args!("binding {address}"))?;
        socket.set_nonblocking(true).when("making a listener non-blocking")?;
        let listener = TcpListener::from_std(socket).when("listening")?;
        let server = Rc::clone(server);
        let accepting = spawn_local(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let server = Rc::clone(&server);
                spawn_local(async move {
                    let _ = socket.set_nodelay(true);
                    // However it ends, it ends with its socket.
                    let _ = match is_http {
                        true => accept(&server, socket).await,
                        false => echo_all(&server, socket).await,
                    };
                });
            }
        });
        handles.push(accepting.abort_handle());
    }
    Ok(handles)
}

/// Serves one connection in what it speaks, which its first bytes say.
async fn accept(server: &Rc<Server>, socket: TcpStream) -> io::Result<()> {
    let mut start = [0; START_BYTES];
    loop {
        match tokio::time::timeout(IDLE_MAX, socket.peek(&mut start)).await.map_err(io::Error::other)?? {
            0 => return Ok(()),
            START_BYTES => break,
            _ => tokio::time::sleep(START_INTERVAL).await,
        }
    }
    if start[0] != TLS_START {
        let wire = Wire::Plain(socket);
        return match start == HTTP2_START {
            true => http2::converse(server, wire, Protocol::Http2).await,
            false => converse(server, wire, Protocol::Http1).await,
        };
    }
    let wire = tokio::time::timeout(IDLE_MAX, Wire::accept(socket, &server.tls)).await.map_err(io::Error::other)??;
    match wire.is_http2() {
        true => http2::converse(server, wire, Protocol::Http2OverTls).await,
        false => converse(server, wire, Protocol::Http1OverTls).await,
    }
}

/// One connection's requests, until either side ends it.
async fn converse(server: &Rc<Server>, wire: Wire, protocol: Protocol) -> io::Result<()> {
    let mut reader = RequestReader::new(wire);
    loop {
        let head = tokio::time::timeout(IDLE_MAX, reader.head()).await.map_err(io::Error::other)??;
        let Some(head) = head else { return Ok(()) };
        if head.path == "/healthz" {
            reader.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await?;
            continue;
        }
        let Some(id) = head.id() else {
            reader.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await?;
            return Ok(());
        };
        server.note_head(id, protocol)?;
        server.cuts()?;
        if head.path.starts_with("/ws/") {
            return echo_upgraded(server, reader, id).await;
        }
        take_body(server, &mut reader, &head, id).await?;
        answer(server, &mut reader, &head, id).await?;
        if head.close {
            return Ok(());
        }
        server.cuts()?;
    }
}

async fn take_body(server: &Server, reader: &mut RequestReader, head: &Head, id: u64) -> io::Result<()> {
    let body = Content::of(id, Side::Request);
    let mut offset = 0;
    while let Some(piece) = reader.piece(head, offset).await? {
        if body.first_wrong(offset, &piece).is_some() {
            server.note(Progress::Damaged, id)?;
            return Err(io::Error::other("not the body that was sent"));
        }
        offset += piece.len() as u64;
    }
    server.note(Progress::Done, id)?;
    server.cuts()
}

async fn answer(server: &Server, reader: &mut RequestReader, head: &Head, id: u64) -> io::Result<()> {
    let behaviour = server.behaviour.get();
    if behaviour.slow_ms > 0 {
        tokio::time::sleep(Duration::from_millis(behaviour.slow_ms)).await;
    }
    let (status, bytes) = match server.hits(behaviour.fail_percent) {
        true => ("500 Internal Server Error", 0),
        false => ("200 OK", head.wanted.bytes),
    };
    let framing = match head.wanted.is_chunked && bytes > 0 {
        true => "Transfer-Encoding: chunked".to_owned(),
        false => format!("Content-Length: {bytes}"),
    };
    let mut out =
        format!("HTTP/1.1 {status}\r\nX-Chaos-Id: {id}\r\nX-Chaos-Server: {}\r\n{framing}\r\n\r\n", server.name)
            .into_bytes();
    let body = Content::of(id, Side::Response);
    let mut offset = 0;
    while offset < bytes {
        let piece = body.bytes(offset, (bytes - offset).min(PIECE_BYTES) as usize);
        offset += piece.len() as u64;
        if head.wanted.is_chunked {
            out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            out.extend_from_slice(&piece);
            out.extend_from_slice(if offset == bytes { b"\r\n0\r\n\r\n" } else { b"\r\n" });
        } else {
            out.extend_from_slice(&piece);
        }
        reader.send(&out).await?;
        out.clear();
        if offset < bytes {
            if head.wanted.piece_ms > 0 {
                tokio::time::sleep(Duration::from_millis(head.wanted.piece_ms)).await;
            }
            server.cuts()?;
        }
    }
    reader.send(&out).await?;
    server.note(Progress::Answered, id)
}

/// Echoes all bytes, after the words that change the protocol.
async fn echo_upgraded(server: &Server, mut reader: RequestReader, id: u64) -> io::Result<()> {
    let name = &server.name;
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {WEBSOCKET_ACCEPT}\r\nX-Chaos-Id: {id}\r\nX-Chaos-Server: {name}\r\n\r\n"
    );
    server.note(Progress::Done, id)?;
    reader.send(head.as_bytes()).await?;
    let early = reader.rest();
    reader.send(&early).await?;
    echo(server, &mut reader.wire).await
}

/// The same without HTTP: it says its name first.
async fn echo_all(server: &Server, mut socket: TcpStream) -> io::Result<()> {
    socket.write_all(format!("{}\n", server.name).as_bytes()).await?;
    echo(server, &mut socket).await
}

async fn echo(server: &Server, socket: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = socket.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        server.cuts()?;
        socket.write_all(&buffer[..count]).await?;
        socket.flush().await?;
    }
}
