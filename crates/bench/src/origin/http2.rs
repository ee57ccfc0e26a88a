//! The origin over HTTP/2: the answers that it gives over HTTP/1.1, by the `h2` library, on one thread as well.

use super::connection::{ECHO_BYTES_MAX, FILLER, TEXT};
use super::cork::{Cork, CorkedWire};
use super::request::RequestedAnswer;
use super::settings::Settings;
use crate::failure::{Outcome, While};
use crate::http2::wire::Wire;
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use rustls::ServerConnection;
use std::cell::Cell;
use std::future::poll_fn;
use std::net::TcpListener;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};

/// Streams that a client may have open on a connection: nginx's default.
const STREAMS_MAX: u32 = 128;
/// Bytes that a stream, and a connection, may receive ahead of being read.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// State that all connections share.
struct Service {
    settings: Settings,
    name: HeaderValue,
    fixed: Bytes,
}

/// A request as the library has it, or the end of its connection.
type Accepted = Result<(Request<RecvStream>, SendResponse<Bytes>), h2::Error>;

/// A request, and the means to answer it.
struct Exchange {
    service: Rc<Service>,
    requested: RequestedAnswer,
    is_head: bool,
    is_upload: bool,
    body: RecvStream,
    respond: SendResponse<Bytes>,
}

/// The body of a request.
#[derive(Default)]
struct Received {
    bytes: u64,
    /// Kept where it is to be returned.
    echo: Vec<u8>,
}

/// The body of an answer.
enum Answer {
    Whole(Bytes),
    /// Made as it goes; its length is in the head, or is not.
    Filler(u64, Announced),
}

#[derive(PartialEq)]
enum Announced {
    Yes,
    No,
}

/// Serves until interrupted.
pub fn serve(listeners: Vec<TcpListener>, settings: Settings, interrupt: &Interrupt) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().when("starting the runtime")?;
    let service = Rc::new(Service {
        name: HeaderValue::from_bytes(settings.name.as_bytes()).when("--name")?,
        fixed: vec![b'x'; settings.body_bytes].into(),
        settings,
    });
    // Declared after the runtime that its sockets belong to, and so gone before it.
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        for listener in listeners {
            let listener = tokio::net::TcpListener::from_std(listener).when("listening")?;
            spawn_local(accept(listener, service.clone()));
        }
        while !interrupt.is_raised() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    })
}

async fn accept(listener: tokio::net::TcpListener, service: Rc<Service>) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                spawn_local(serve_connection(socket, service.clone()));
            }
            // For want of files: others must end first.
            Err(_) => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}

/// A client that breaks off, or speaks something else, has ended its connection and nothing more.
async fn serve_connection(socket: TcpStream, service: Rc<Service>) {
    let _ = socket.set_nodelay(true);
    let Ok(session) = service.settings.tls.clone().map(ServerConnection::new).transpose() else { return };
    let Ok(wire) = Wire::accept(socket, session).await else { return };
    let cork = Rc::new(Cell::new(Cork::Out));
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .handshake::<_, Bytes>(CorkedWire::new(wire, cork.clone()));
    let Ok(mut connection) = handshake.await else { return };
    while let Some(Ok((request, respond))) = poll_fn(|cx| poll_accept(&mut connection, &cork, cx)).await {
        Exchange::new(service.clone(), request, respond).attend();
    }
}

/// The next request. Answers leave when there is none: those to requests that came together leave together.
fn poll_accept(
    connection: &mut h2::server::Connection<CorkedWire, Bytes>,
    cork: &Cell<Cork>,
    cx: &mut Context<'_>,
) -> Poll<Option<Accepted>> {
    cork.set(Cork::In);
    let accepted = connection.poll_accept(cx);
    cork.set(Cork::Out);
    match accepted {
        Poll::Pending => connection.poll_accept(cx),
        _ => accepted,
    }
}

impl Service {
    fn head(&self, status: u16, length: Option<u64>) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        headers.insert("x-origin", self.name.clone());
        // RFC 9110 §8.6: no Content-Length with 204.
        if let Some(length) = length.filter(|_| status != 204) {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        response
    }
}

impl Exchange {
    fn new(service: Rc<Service>, request: Request<RecvStream>, respond: SendResponse<Bytes>) -> Self {
        let method = request.method();
        Self {
            service,
            requested: RequestedAnswer::of_path(request.uri().path()),
            is_head: method == Method::HEAD,
            is_upload: [Method::POST, Method::PUT, Method::PATCH].contains(method),
            body: request.into_body(),
            respond,
        }
    }

    /// At once if nothing is to be waited for: a task would be dearer than the answer.
    fn attend(mut self) {
        let streams = matches!(self.requested, RequestedAnswer::Bytes(_) | RequestedAnswer::Chunked(_));
        let waits = matches!(self.requested, RequestedAnswer::Slow(_)) || !self.service.settings.delay.is_zero();
        if self.body.is_end_stream() && !streams && !waits {
            let _ = self.answer(Received::default());
        } else {
            spawn_local(async move {
                // The client went away, or did not want the rest.
                let _ = self.attend_slowly().await;
            });
        }
    }

    async fn attend_slowly(mut self) -> Result<(), h2::Error> {
        let received = self.read().await?;
        let mut delay = self.service.settings.delay;
        if let RequestedAnswer::Slow(more) = self.requested {
            delay += more;
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match self.answer(received)? {
            Some((stream, bytes)) => send_filler(stream, bytes).await,
            None => Ok(()),
        }
    }

    async fn read(&mut self) -> Result<Received, h2::Error> {
        let mut received = Received::default();
        while let Some(data) = self.body.data().await {
            let data = data?;
            self.body.flow_control().release_capacity(data.len())?;
            received.bytes += data.len() as u64;
            if self.requested == RequestedAnswer::Echo && received.echo.len() <= ECHO_BYTES_MAX {
                received.echo.extend_from_slice(&data);
            }
        }
        Ok(received)
    }

    /// Sends the head and a body that is there; one that is made as it goes is left to the caller, with its length.
    fn answer(&mut self, received: Received) -> Result<Option<(SendStream<Bytes>, u64)>, h2::Error> {
        let (status, answer) = self.grant(received);
        let length = match &answer {
            Answer::Whole(bytes) => Some(bytes.len() as u64),
            Answer::Filler(bytes, announced) => Some(*bytes).filter(|_| *announced == Announced::Yes),
        };
        let ends = self.is_head || length == Some(0);
        let mut stream = self.respond.send_response(self.service.head(status, length), ends)?;
        match answer {
            _ if ends => Ok(None),
            Answer::Whole(bytes) => stream.send_data(bytes, true).map(|()| None),
            Answer::Filler(bytes, _) => Ok(Some((stream, bytes))),
        }
    }

    fn grant(&self, received: Received) -> (u16, Answer) {
        let Service { settings, fixed, .. } = &*self.service;
        let number = settings.requests.get() + 1;
        settings.requests.set(number);
        if settings.fail_every.is_some_and(|every| number.is_multiple_of(every)) {
            return (500, Answer::Whole(Bytes::from_static(b"failed on purpose\n")));
        }
        match self.requested {
            RequestedAnswer::Fixed | RequestedAnswer::Slow(_) if self.is_upload => {
                (200, Answer::Whole(format!("{}\n", received.bytes).into()))
            }
            RequestedAnswer::Fixed | RequestedAnswer::Slow(_) => (200, Answer::Whole(fixed.clone())),
            RequestedAnswer::Bytes(length) => (200, Answer::Filler(length, Announced::Yes)),
            RequestedAnswer::Chunked(length) => (200, Answer::Filler(length, Announced::No)),
            RequestedAnswer::Text(length) => (200, Answer::Whole(Bytes::from_static(&TEXT[..length]))),
            RequestedAnswer::Status(status) => (status, Answer::Whole(Bytes::new())),
            RequestedAnswer::Echo if received.echo.len() > ECHO_BYTES_MAX => (413, Answer::Whole(Bytes::new())),
            RequestedAnswer::Echo => (200, Answer::Whole(received.echo.into())),
        }
    }
}

async fn send_filler(mut stream: SendStream<Bytes>, mut left: u64) -> Result<(), h2::Error> {
    while left > 0 {
        let wanted = left.min(FILLER.len() as u64) as usize;
        stream.reserve_capacity(wanted);
        // The stream is over: its client wants no more.
        let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await else { return Ok(()) };
        let count = room?.min(wanted);
        left -= count as u64;
        stream.send_data(Bytes::from_static(&FILLER[..count]), left == 0)?;
        if left == 0 {
            return Ok(());
        }
    }
    stream.send_data(Bytes::new(), true)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Running;
    use super::*;
    use crate::http2::connection::{handshake, read};
    use crate::target::Target;
    use std::net::SocketAddr;

    /// Asks all of them at once on one connection, and returns status, length in the head and bytes of each answer.
    fn ask(address: SocketAddr, asked: &[(&str, &str, usize)]) -> Vec<(u16, Option<String>, u64)> {
        let target = Target::new(address, "localhost", None).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tasks = LocalSet::new();
        tasks.block_on(&runtime, async {
            let (mut sender, connection) = handshake(Wire::open(&target).await.unwrap()).await.unwrap();
            spawn_local(connection);
            let mut answers = Vec::new();
            for (method, path, body_bytes) in asked {
                let uri = format!("http://localhost{path}");
                let request = Request::builder().method(*method).uri(uri).body(()).unwrap();
                let (response, mut upload) = sender.send_request(request, *body_bytes == 0).unwrap();
                if *body_bytes > 0 {
                    upload.send_data(vec![b'y'; *body_bytes].into(), true).unwrap();
                }
                answers.push(response);
            }
            let mut shown = Vec::new();
            for response in answers {
                let response = response.await.unwrap();
                assert_eq!(response.headers()["x-origin"], "test");
                let length = response.headers().get(CONTENT_LENGTH).map(|value| value.to_str().unwrap().to_owned());
                let answer = read(response, |_| {}).await.unwrap();
                shown.push((answer.status, length, answer.body_bytes));
            }
            shown
        })
    }

    #[test]
    fn paths_mean_what_they_mean_over_http1() {
        let origin = Running::http2();
        let asked = [
            ("GET", "/", 0),
            ("HEAD", "/", 0),
            ("POST", "/", 100),
            ("POST", "/echo", 3_000_000),
            ("POST", "/echo", ECHO_BYTES_MAX + 1),
            ("GET", "/bytes/3000000", 0),
            ("GET", "/chunked/20", 0),
            ("GET", "/chunked/0", 0),
            ("GET", "/status/204", 0),
            ("GET", "/slow/1", 0),
        ];
        let length = |text: &str| Some(text.to_owned());
        let answers = [
            (200, length("1024"), 1024),
            (200, length("1024"), 0),
            (200, length("4"), 4),
            (200, length("3000000"), 3_000_000),
            (413, length("0"), 0),
            (200, length("3000000"), 3_000_000),
            (200, None, 20),
            (200, None, 0),
            (204, None, 0),
            (200, length("1024"), 1024),
        ];
        assert_eq!(ask(origin.address, &asked), answers);
    }

    #[test]
    fn requests_are_failed_on_purpose_if_asked() {
        let origin = Running::http2_failing(2);
        let statuses: Vec<u16> = ask(origin.address, &[("GET", "/", 0); 4]).iter().map(|answer| answer.0).collect();
        assert_eq!(statuses, [200, 500, 200, 500]);
    }
}
