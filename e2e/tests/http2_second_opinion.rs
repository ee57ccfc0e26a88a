//! A second opinion on HTTP/2: the `h2` crate's client in front of the engine, and its server behind it. Random
//! messages come out as they went in, whatever either side has set, and whatever becomes of other streams.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use propylon_e2e::engine::with;
use propylon_e2e::frames::{CONTINUATION, END_HEADERS, HEADERS, PADDED, PREFACE};
use propylon_e2e::http::{Response as Http1Response, chunked, head_end, in_chunks};
use propylon_e2e::origin::Peer;
use propylon_e2e::{Client, Engine, Origin};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long one exchange may take on a machine with other work.
const EXCHANGE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Wrongs that are told.
const WRONGS_MAX: usize = 5;
/// Exchanges from this number on are those of clients that leave.
const LEAVERS: u64 = 1 << 40;
/// The flag of HEADERS that has five bytes of priority (RFC 9113 §6.2).
const PRIORITY_FLAG: u8 = 0x20;
/// Names that recur: of everybody's tables, and of nobody's.
const NAMES: &str = "accept accept-language authorization cache-control content-language content-type etag \
    if-none-match last-modified link location origin priority referer sec-fetch-mode user-agent vary x-a x-b \
    x-request-id x-trace x-tenant x-version x-the-name-of-this-field-is-longer-than-most-values";
const TRAILERS: &str = "grpc-status grpc-message x-checksum x-timing x-trace";
/// Fields that the engine has a say in: they are compared apart, or not at all.
const ENGINES: &str = "connection content-length date host keep-alive te trailer transfer-encoding via x-forwarded-for \
    x-forwarded-host x-forwarded-proto";
/// Fields that the engine keeps out of tables whether their sender says so or not.
const SECRETS: &str = "authorization cookie set-cookie";

type Field = (HeaderName, HeaderValue);
/// Fields as they came, names in lower case.
type Lines = Vec<(String, Vec<u8>)>;
/// Values of one header block that came as never indexed.
type Secrets = Vec<Vec<u8>>;

/// One message, to be sent.
#[derive(Clone, Debug, Default)]
struct Message {
    /// Fields of one name stand together, as the crate's map has them.
    fields: Vec<Field>,
    /// The content-length, where it says one.
    length: Option<usize>,
    pieces: Vec<Bytes>,
    trailers: Vec<Field>,
    /// The end is said apart, though nothing else is left to be said.
    ends_late: bool,
}

/// A message, as it came.
#[derive(Debug, Default)]
struct Seen {
    fields: Lines,
    body: Vec<u8>,
    trailers: Lines,
    /// Secrets of head and trailers; none over HTTP/1.
    secrets: Option<[Secrets; 2]>,
}

/// A response, as it came.
#[derive(Debug, Default)]
struct Answer {
    interims: Vec<(u16, Lines)>,
    status: u16,
    seen: Seen,
}

/// The end of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Whole,
    ClientResets,
    ClientResetsAmid,
    ClientDropsResponse,
    ClientDropsBody,
    ClientLeaves,
    ServerResets(Reason),
    ServerResetsAmid(Reason),
    /// The response is whole before the request is read, which nobody does then.
    ServerDropsRequest,
}

/// One request and its response. Both ends make it of the number in its path.
#[derive(Debug)]
struct Exchange {
    number: u64,
    method: Method,
    path: String,
    te: bool,
    request: Message,
    interims: Vec<(u16, Vec<Field>)>,
    status: u16,
    response: Message,
    /// The response begins before the request has ended.
    is_early: bool,
    fate: Fate,
}

/// Rules by which exchanges are made.
#[derive(Clone, Copy, Debug)]
struct Rules {
    seed: u64,
    body_max: usize,
    /// One side speaks HTTP/1, whose stories read text.
    has_http1: bool,
    /// Exchanges below this number may be broken off.
    storm: u64,
    /// Windows by chance, beside other settings, which are opened late and by pieces; empty: the crate's own.
    windows: &'static [u32],
    has_secret_trailers: bool,
}

/// A reason why an exchange was not as it should be.
#[derive(Debug)]
enum Failure {
    /// Reset, with a reason where it is the stream's, or cut off.
    Broken(String, Option<Reason>),
    /// Something else came than was sent.
    Wrong(String),
}

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Failure {
        Failure::Broken(error.to_string(), error.reason())
    }
}

impl Failure {
    fn at(self, end: &str) -> Failure {
        match self {
            Failure::Broken(what, reason) => Failure::Broken(format!("{end}: {what}"), reason),
            Failure::Wrong(what) => Failure::Wrong(format!("{end}: {what}")),
        }
    }
}

fn wrong<T>(what: String) -> Result<T, Failure> {
    Err(Failure::Wrong(what))
}

/// Clients, and the numbers of their exchanges.
#[derive(Clone)]
struct Load {
    connections: usize,
    streams: usize,
    numbers: Range<u64>,
}

#[test]
fn random_messages_come_out_as_they_went_in() {
    let stand = Stand::new(Rules::new(), "", "");
    stand.exchange(Load { connections: 4, streams: 8, numbers: 0..3_000 });
}

#[test]
#[ignore = "long: header blocks by the million"]
fn header_blocks_by_the_million_come_out_as_they_went_in() {
    let stand = Stand::new(Rules { body_max: 2_000, ..Rules::new() }, "", "");
    stand.exchange(Load { connections: 4, streams: 16, numbers: 0..250_000 });
}

#[test]
fn a_secret_stays_one_in_trailers_too() {
    let rules = Rules { body_max: 1_000, has_secret_trailers: true, ..Rules::new() };
    let stand = Stand::new(rules, "", "");
    stand.exchange(Load { connections: 1, streams: 4, numbers: 0..100 });
}

#[test]
fn messages_are_the_same_whatever_either_side_has_set() {
    for (windows, body_max) in [(&[1, 2, 7, 100, 1_000], 2_000), (&[1_000, 16_384, 65_535, 65_536, 1 << 20], 200_000)] {
        let rules = Rules { body_max, windows, ..Rules::new() };
        // Windows that are opened a byte at a time are what this story is about.
        let listener = "http2 = { flood = { window_updates = 1000000 } }";
        let stand = Stand::new(rules, listener, "queue = { timeout = \"1m\" }");
        for start in (0..1_500).step_by(100) {
            stand.exchange(Load { connections: 3, streams: 8, numbers: start..start + 100 });
        }
    }
}

#[test]
fn whatever_is_broken_off_other_streams_are_whole_and_nothing_is_left_behind() {
    let rules = Rules { storm: 3_000, body_max: 50_000, ..Rules::new() };
    let stand = Stand::new(rules, "", "");
    stand.exchange(Load { connections: 4, streams: 8, numbers: 0..rules.storm });
    let gauges = "http2_streams http2_connections connections requests_in_progress server_requests_in_flight \
        queue_depth http2_unread_bytes http2_granted_bytes http2_untaken_bytes http2_widened_bytes";
    for gauge in gauges.split_whitespace() {
        stand.engine.metric_reaches(&format!("propylon_{gauge}"), &[], 0.0);
    }
    for count in ["floods", "errors"] {
        assert_eq!(stand.engine.metric(&format!("propylon_http2_{count}_total"), &[]), 0.0, "{rules:x?}");
    }
    stand.exchange(Load { connections: 1, streams: 4, numbers: rules.storm..rules.storm + 100 });
    drop(stand.server);
    stand.engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

#[test]
fn requests_of_http1_reach_servers_of_http2_as_they_were_sent_and_so_do_responses() {
    let stand = Stand::new(Rules { has_http1: true, ..Rules::new() }, "", "");
    let (next, numbers) = (AtomicU64::new(0), 0..1_500);
    let ask = || {
        let mut client = stand.engine.client("plain");
        while let Some(number) = Some(next.fetch_add(1, Ordering::SeqCst)).filter(|number| numbers.contains(number)) {
            let exchange = Exchange::of(&stand.book.rules, number);
            client.send(exchange.http1_request());
            let answer = Answer::of_http1(&mut client);
            stand.book.judge(&exchange, exchange.check_answer(&answer).map_err(|failure| failure.at("client")));
            if answer.seen.value("connection") == Some(b"close") {
                client = stand.engine.client("plain");
            }
        }
    };
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(ask))));
    stand.book.conclude(numbers.clone());
}

#[test]
fn requests_of_http2_reach_servers_of_http1_as_they_were_sent_and_so_do_responses() {
    let book = Book::new(Rules { has_http1: true, ..Rules::new() });
    let for_origin = Arc::clone(&book);
    let origin = Origin::scripted(move |peer| while for_origin.serve_http1(peer).is_some() {});
    let engine = Engine::start(&with(&[origin.address()], "", ""));
    let load = Load { connections: 4, streams: 6, numbers: 0..1_500 };
    runtime().block_on(book.drive(engine.address("plain"), &load));
    book.conclude(load.numbers);
}

/// The engine between both ends.
struct Stand {
    engine: Engine,
    server: Server,
    book: Arc<Book>,
}

impl Stand {
    fn new(rules: Rules, listener: &str, backend: &str) -> Stand {
        let book = Book::new(rules);
        let server = Server::start(&book);
        let engine = Engine::start(&with(&[server.address], listener, &format!("protocol = \"h2\"\n{backend}")));
        Stand { engine, server, book }
    }

    #[track_caller]
    fn exchange(&self, load: Load) {
        let started = Instant::now();
        runtime().block_on(self.book.drive(self.engine.address("plain"), &load));
        println!("{:?} in {:?}", load.numbers, started.elapsed());
        self.book.conclude(load.numbers);
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Notes of both ends.
struct Book {
    rules: Rules,
    wrongs: Mutex<Vec<String>>,
    /// Times that each request came to the server.
    served: Mutex<HashMap<u64, usize>>,
}

impl Book {
    fn new(rules: Rules) -> Arc<Book> {
        println!("{rules:x?}");
        Arc::new(Book { rules, wrongs: Mutex::default(), served: Mutex::default() })
    }

    fn note(&self, exchange: &Exchange, what: &str) {
        let Exchange { number, method, path, status, is_early, fate, .. } = exchange;
        let sizes = [&exchange.request, &exchange.response].map(|message| {
            let pieces = message.pieces.iter().map(Bytes::len).collect::<Vec<_>>();
            (message.length, pieces, message.trailers.len(), message.ends_late)
        });
        let line = format!("{number}: {method} {path} {status}, early {is_early}, {fate:?}, {sizes:?}: {what}");
        self.wrongs.lock().expect("nobody panics with it").push(line);
    }

    fn is_well(&self) -> bool {
        self.wrongs.lock().expect("nobody panics with it").len() < WRONGS_MAX
    }

    /// Takes note of what an end has made of an exchange.
    fn judge(&self, exchange: &Exchange, result: Result<(), Failure>) {
        match (exchange.fate, result) {
            (_, Err(Failure::Wrong(what))) => self.note(exchange, &what),
            (Fate::Whole | Fate::ServerDropsRequest, Err(Failure::Broken(what, _))) => self.note(exchange, &what),
            _ => {}
        }
    }

    #[track_caller]
    fn conclude(&self, numbers: Range<u64>) {
        let wrongs = self.wrongs.lock().expect("nobody panics with it");
        assert!(wrongs.is_empty(), "{:x?}\n{}", self.rules, wrongs.join("\n"));
        let served = self.served.lock().expect("nobody panics with it");
        let is_whole = |number: &u64| Exchange::fate_of(&self.rules, *number) == Fate::Whole;
        for number in numbers.filter(is_whole) {
            assert_eq!(served.get(&number), Some(&1), "{:x?}: how often {number} came to the server", self.rules);
        }
    }

    /// The exchange that a request is part of.
    fn exchange_of(&self, path: &str) -> Option<Exchange> {
        let number = path.split('/').nth(2)?.parse().ok()?;
        *self.served.lock().expect("nobody panics with it").entry(number).or_default() += 1;
        Some(Exchange::of(&self.rules, number))
    }

    async fn drive(self: &Arc<Book>, engine: SocketAddr, load: &Load) {
        let next = Arc::new(AtomicU64::new(load.numbers.start));
        let mut tasks = JoinSet::new();
        for connection in 0..load.connections as u64 {
            let settings = Settings::of(&self.rules, load.numbers.start + connection);
            let (send, tap, _) = connect(engine, settings).await;
            for _ in 0..load.streams {
                let (book, send, tap) = (Arc::clone(self), send.clone(), Arc::clone(&tap));
                let (next, end) = (Arc::clone(&next), load.numbers.end);
                tasks
                    .spawn(async move { book.ask_all(&send, &tap, || next.fetch_add(1, Ordering::SeqCst), end).await });
            }
        }
        if load.numbers.start < self.rules.storm {
            (0..20).for_each(|leaver| drop(tasks.spawn(leave(Arc::clone(self), engine, LEAVERS + leaver * 4))));
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no client panics");
        }
    }

    async fn ask_all(&self, send: &SendRequest<Bytes>, tap: &Tap, next: impl Fn() -> u64, end: u64) {
        while let (true, number) = (self.is_well(), next()) {
            if number >= end {
                return;
            }
            let exchange = Exchange::of(&self.rules, number);
            let asked = timeout(EXCHANGE_WAIT_MAX, exchange.ask(send.clone(), tap, self.rules.is_lazy())).await;
            let result = asked.unwrap_or_else(|_| wrong("nothing happens".into()));
            self.judge(&exchange, result.map_err(|failure| failure.at("client")));
        }
    }

    /// Serves one request; none at the end.
    fn serve_http1(&self, peer: &mut Peer) -> Option<()> {
        let request = peer.read_request()?;
        let (head, body) = request.split_at(head_end(&request).expect("a head"));
        let mut seen = Seen { fields: http1_lines(head), ..Seen::default() };
        match seen.value("transfer-encoding") {
            None => seen.body = body.to_vec(),
            Some(_) => {
                let whole = chunked(body).expect("a whole body");
                seen.body = whole.data;
                seen.trailers = http1_lines(format!("\r\n{}", whole.trailers.join("\r\n")).as_bytes());
            }
        }
        let line = String::from_utf8_lossy(head.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
        let [method, path, _] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let exchange = self.exchange_of(path).expect("a number");
        self.judge(&exchange, exchange.check_request(method, path, &seen));
        peer.send(exchange.http1_response());
        Some(())
    }
}

/// Begins requests on a connection of its own, and closes it once the first is answered.
async fn leave(book: Arc<Book>, engine: SocketAddr, first: u64) {
    let (mut send, _, connection) = connect(engine, Settings::DEFAULT).await;
    let mut begun = Vec::new();
    for number in first..first + 4 {
        let Ok(ready) = send.ready().await else { return };
        send = ready;
        let exchange = Exchange::of(&book.rules, number);
        let ends = exchange.request.ends_with_head() || number == first;
        begun.extend(send.send_request(exchange.request_head(), ends));
    }
    let _ = timeout(EXCHANGE_WAIT_MAX, begun.swap_remove(0).0).await;
    connection.abort();
}

/// A connection by prior knowledge, and the task that it is.
async fn connect(
    engine: SocketAddr,
    settings: Settings,
) -> (SendRequest<Bytes>, Arc<Tap>, tokio::task::JoinHandle<()>) {
    let socket = TcpStream::connect(engine).await.expect("a connection to the engine");
    let (socket, tap) = Tapped::new(socket, 0);
    let (send, connection) = settings.client().handshake(socket).await.expect("the engine speaks HTTP/2");
    (send, tap, tokio::spawn(async move { drop(connection.await) }))
}

/// A server on a thread of its own, which says GOAWAY now and then in a storm.
struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(book: &Arc<Book>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket's option");
        let address = listener.local_addr().expect("a bound listener");
        let (stop, stopped) = oneshot::channel();
        let book = Arc::clone(book);
        let accept = async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            for number in 0.. {
                let Ok((socket, _)) = listener.accept().await else { return };
                tokio::spawn(serve_connection(socket, Arc::clone(&book), number));
            }
        };
        let serve = move || {
            runtime().block_on(async {
                tokio::select! { () = accept => {}, _ = stopped => {} }
            })
        };
        Server { address, stop: Some(stop), thread: Some(std::thread::spawn(serve)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve_connection(socket: TcpStream, book: Arc<Book>, number: u64) {
    let (socket, tap) = Tapped::new(socket, PREFACE.len());
    let settings = Settings::of(&book.rules, number);
    let Ok(mut requests) = settings.server().handshake(socket).await else { return };
    let ends = Rng::with_seed(book.rules.seed ^ number).usize(20..200);
    for count in 0.. {
        let Some(Ok((request, respond))) = requests.accept().await else { return };
        if book.rules.is_lazy() && count == ends / 2 {
            // Wider for the streams that are open as well (RFC 9113 §6.9.2). Behind a narrower one the crate sends no
            // WINDOW_UPDATE for what was read before it.
            let window = Settings::of(&book.rules, !number).window.max(settings.window);
            let _ = requests.set_initial_window_size(window);
        }
        if count == ends && (book.rules.storm > 0 || book.rules.is_lazy()) {
            requests.graceful_shutdown();
        }
        let (book, tap) = (Arc::clone(&book), Arc::clone(&tap));
        tokio::spawn(async move {
            let Some(exchange) = book.exchange_of(request.uri().path()) else { return };
            let served = timeout(EXCHANGE_WAIT_MAX, exchange.serve(request, respond, &tap, book.rules.is_lazy())).await;
            let result = served.unwrap_or_else(|_| wrong("nothing happens".into()));
            book.judge(&exchange, result.map_err(|failure| failure.at("server")));
        });
    }
}

impl Exchange {
    async fn ask(&self, send: SendRequest<Bytes>, tap: &Tap, is_lazy: bool) -> Result<(), Failure> {
        let mut send = send.ready().await?;
        let resets = matches!(self.fate, Fate::ClientResets | Fate::ClientResetsAmid);
        let ends = self.request.ends_with_head() && !resets;
        let (response, mut sending) = send.send_request(self.request_head(), ends)?;
        drop(send);
        if resets {
            if self.fate == Fate::ClientResetsAmid {
                self.request.send_part(&mut sending, self.request.half()).await?;
            }
            sending.send_reset(Reason::CANCEL);
            return Ok(());
        }
        let request = async { if ends { Ok(()) } else { self.request.send_rest(&mut sending, 0).await } };
        if self.fate == Fate::ClientDropsResponse {
            drop(response);
            return request.await;
        }
        let (sent, answer) = tokio::join!(request, self.read_answer(response, tap, is_lazy));
        match (self.fate, answer) {
            (Fate::ClientDropsBody, _) => Ok(()),
            (Fate::ServerResets(reason) | Fate::ServerResetsAmid(reason), answer) => check_reset(reason, answer),
            // Nobody reads on, so nothing more need be taken.
            (Fate::ServerDropsRequest, answer) => self.check_answer(&answer?),
            (_, answer) => self.check_answer(&answer?).and(sent),
        }
    }

    async fn read_answer(&self, mut response: ResponseFuture, tap: &Tap, is_lazy: bool) -> Result<Answer, Failure> {
        let (stream, mut answer) = (response.stream_id().as_u32(), Answer::default());
        while let Some(interim) = poll_fn(|context| response.poll_informational(context)).await {
            let interim = interim?;
            answer.interims.push((interim.status().as_u16(), lines(interim.headers())));
        }
        let (head, mut body) = response.await?.into_parts();
        answer.status = head.status.as_u16();
        answer.seen.fields = lines(&head.headers);
        if self.fate == Fate::ClientDropsBody {
            let _ = body.data().await;
            return Ok(answer);
        }
        let mut random = is_lazy.then(|| Rng::with_seed(self.number));
        answer.seen.read_body(&mut body, random.as_mut()).await?;
        answer.seen.secrets = Some(tap.take(stream, answer.interims.len()));
        Ok(answer)
    }

    async fn serve(
        &self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        tap: &Tap,
        is_lazy: bool,
    ) -> Result<(), Failure> {
        let (head, mut body) = request.into_parts();
        if let Fate::ServerResets(reason) = self.fate {
            respond.send_reset(reason);
            return Ok(());
        }
        let stream = body.stream_id().as_u32();
        let mut seen = Seen { fields: lines(&head.headers), ..Seen::default() };
        let mut random = is_lazy.then(|| Rng::with_seed(self.number));
        if !self.is_early && self.fate != Fate::ServerDropsRequest {
            seen.read_body(&mut body, random.as_mut()).await?;
        }
        let Some(mut sending) = self.begin_answer(&mut respond)? else {
            return self.check_served(&head, seen, tap.take(stream, 0));
        };
        match self.fate {
            Fate::ServerDropsRequest => return self.response.send_rest(&mut sending, 0).await,
            Fate::ServerResetsAmid(reason) => {
                self.response.send_part(&mut sending, self.response.half()).await?;
                sending.send_reset(reason);
                return Ok(());
            }
            _ => {}
        }
        let mut begun = 0;
        if self.is_early {
            begun = self.response.half();
            let part = self.response.send_part(&mut sending, begun);
            let (read, sent) = tokio::join!(seen.read_body(&mut body, random.as_mut()), part);
            read.and(sent)?;
        }
        self.response.send_rest(&mut sending, begun).await?;
        self.check_served(&head, seen, tap.take(stream, 0))
    }

    /// Sends everything up to the body; none where that is all.
    fn begin_answer(&self, respond: &mut SendResponse<Bytes>) -> Result<Option<SendStream<Bytes>>, Failure> {
        for (status, fields) in &self.interims {
            let mut interim = Response::builder().status(*status).body(()).expect("a head");
            *interim.headers_mut() = map(fields);
            respond.send_informational(interim)?;
        }
        let ends = self.response.ends_with_head() && !self.is_early;
        let stream = respond.send_response(self.response_head(), ends)?;
        Ok((!ends).then_some(stream))
    }

    fn check_served(&self, head: &Parts, seen: Seen, secrets: [Secrets; 2]) -> Result<(), Failure> {
        if self.fate == Fate::ServerDropsRequest {
            return Ok(());
        }
        let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        self.check_request(head.method.as_str(), &path, &Seen { secrets: Some(secrets), ..seen })
    }

    fn check_request(&self, method: &str, path: &str, seen: &Seen) -> Result<(), Failure> {
        if (method, path) != (self.method.as_str(), &self.path) {
            return wrong(format!("{method} {path} came"));
        }
        if seen.value("te").is_some() != self.te {
            return wrong(format!("te: {:?} came", seen.value("te")));
        }
        self.request.compare("request", seen)
    }

    fn check_answer(&self, answer: &Answer) -> Result<(), Failure> {
        let statuses: Vec<u16> = answer.interims.iter().map(|(status, _)| *status).chain([answer.status]).collect();
        let sent: Vec<u16> = self.interims.iter().map(|(status, _)| *status).chain([self.status]).collect();
        if statuses != sent {
            return wrong(format!("statuses {statuses:?} came of {sent:?}, at last {:?}", answer.seen));
        }
        for ((_, sent), (_, seen)) in self.interims.iter().zip(&answer.interims) {
            same_lines("interim fields", sent, seen)?;
        }
        self.response.compare("response", &answer.seen)
    }

    fn request_head(&self) -> Request<()> {
        let uri = format!("http://localhost{}", self.path);
        let mut head = Request::builder().method(&self.method).uri(uri).body(()).expect("a head");
        *head.headers_mut() = self.request.map();
        if self.te {
            head.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        }
        head
    }

    fn response_head(&self) -> Response<()> {
        let mut head = Response::builder().status(self.status).body(()).expect("a head");
        *head.headers_mut() = self.response.map();
        head
    }

    fn http1_request(&self) -> Vec<u8> {
        let te = if self.te { "TE: trailers\r\nConnection: TE\r\n" } else { "" };
        let start = format!("{} {} HTTP/1.1\r\nHost: localhost\r\n{te}", self.method, self.path);
        self.request.http1(start, self.request.ends_with_head())
    }

    fn http1_response(&self) -> Vec<u8> {
        let interim = |(status, fields): &(u16, Vec<Field>)| {
            let message = Message { fields: fields.clone(), ..Message::default() };
            message.http1(format!("HTTP/1.1 {status} Interim\r\n"), true)
        };
        let mut out: Vec<u8> = self.interims.iter().flat_map(interim).collect();
        out.extend(self.response.http1(format!("HTTP/1.1 {} Final\r\n", self.status), self.has_no_body()));
        out
    }

    /// Whether its response has no body, whatever it says.
    fn has_no_body(&self) -> bool {
        self.method == Method::HEAD || matches!(self.status, 204 | 304)
    }
}

impl Message {
    fn ends_with_head(&self) -> bool {
        self.pieces.is_empty() && self.trailers.is_empty() && !self.ends_late
    }

    /// Fewer pieces than there are, if there are any.
    fn half(&self) -> usize {
        self.pieces.len() / 2
    }

    fn map(&self) -> HeaderMap {
        let mut map = map(&self.fields);
        self.length.map(|length| map.insert("content-length", length.into()));
        map
    }

    /// Sends the pieces before this one.
    async fn send_part(&self, stream: &mut SendStream<Bytes>, end: usize) -> Result<(), Failure> {
        for piece in &self.pieces[..end] {
            upload(stream, piece.clone(), false).await?;
        }
        Ok(())
    }

    /// Sends the pieces from this one on, and the end.
    async fn send_rest(&self, stream: &mut SendStream<Bytes>, start: usize) -> Result<(), Failure> {
        let (last, ends) = (self.pieces.len().saturating_sub(1), self.trailers.is_empty());
        for (index, piece) in self.pieces.iter().enumerate().skip(start) {
            upload(stream, piece.clone(), ends && !self.ends_late && index == last).await?;
        }
        match ends {
            false => stream.send_trailers(map(&self.trailers))?,
            true if self.pieces.is_empty() || self.ends_late => stream.send_data(Bytes::new(), true)?,
            true => {}
        }
        Ok(())
    }

    fn http1(&self, start: String, has_no_body: bool) -> Vec<u8> {
        let mut out = start.into_bytes();
        let write = |(name, value): &Field, out: &mut Vec<u8>| {
            out.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        };
        self.fields.iter().for_each(|field| write(field, &mut out));
        let body = match self.length {
            Some(length) => {
                out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
                self.pieces.concat()
            }
            None if has_no_body => Vec::new(),
            None => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
                let mut trailers = Vec::new();
                self.trailers.iter().for_each(|field| write(field, &mut trailers));
                let pieces: Vec<&[u8]> = self.pieces.iter().map(|piece| &piece[..]).collect();
                in_chunks(&pieces, &String::from_utf8(trailers).expect("text"))
            }
        };
        [&out[..], b"\r\n", &body].concat()
    }

    /// Compares what came with what was sent.
    fn compare(&self, what: &str, seen: &Seen) -> Result<(), Failure> {
        same_lines(&format!("{what} fields"), &self.fields, &seen.fields)?;
        let body = self.pieces.concat();
        if body != seen.body {
            let same = body.iter().zip(&seen.body).take_while(|(sent, came)| sent == came).count();
            let (sent, came) = (body.len(), seen.body.len());
            return wrong(format!("{what} body: {came} bytes came of {sent}, the first {same} are as sent"));
        }
        same_lines(&format!("{what} trailers"), &self.trailers, &seen.trailers)?;
        let length = seen.value("content-length").map(|value| String::from_utf8_lossy(value).parse::<usize>());
        let is_right = match (self.length, length) {
            (Some(sent), Some(Ok(came))) => sent == came,
            (None, Some(Ok(came))) => came == body.len(),
            (sent, came) => sent.is_none() && came.is_none(),
        };
        if !is_right {
            return wrong(format!("{what}: length {:?} came of {:?}", seen.value("content-length"), self.length));
        }
        let Some(came) = &seen.secrets else { return Ok(()) };
        let sent = [&self.fields, &self.trailers].map(|fields| secrets(fields));
        if sent != *came {
            let text = |secrets: &[Secrets; 2]| {
                secrets
                    .clone()
                    .map(|block| block.iter().map(|value| value.escape_ascii().to_string()).collect::<Vec<_>>())
            };
            return wrong(format!("{what}: secrets {:?} came of {:?}", text(came), text(&sent)));
        }
        Ok(())
    }
}

impl Seen {
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| &value[..])
    }

    /// Reads a body to its end. By chance its reader gives windows back late, and by pieces.
    async fn read_body(&mut self, body: &mut RecvStream, mut random: Option<&mut Rng>) -> Result<(), Failure> {
        let mut held = 0;
        loop {
            let next = poll_fn(|context| {
                let next = body.poll_data(context);
                if next.is_pending() {
                    // Nothing comes to who waits and holds all of the window.
                    let _ = body.flow_control().release_capacity(std::mem::take(&mut held));
                }
                next
            });
            let Some(data) = next.await else { break };
            let data = data?;
            held += data.len();
            let back = random.as_mut().map_or(held, |random| random.usize(0..=held));
            let _ = body.flow_control().release_capacity(back);
            held -= back;
            self.body.extend_from_slice(&data);
        }
        let _ = body.flow_control().release_capacity(held);
        self.trailers = body.trailers().await?.as_ref().map(lines).unwrap_or_default();
        Ok(())
    }
}

impl Answer {
    /// Reads a response, and what comes before it.
    #[track_caller]
    fn of_http1(client: &mut Client) -> Answer {
        let mut answer = Answer::default();
        loop {
            let Http1Response { status, head, body, trailers } = client.read_response();
            let fields = http1_lines(head.as_bytes());
            if status < 200 {
                answer.interims.push((status, fields));
                continue;
            }
            let trailers = http1_lines(format!("\r\n{}", trailers.join("\r\n")).as_bytes());
            answer.seen = Seen { fields, body, trailers, secrets: None };
            return Answer { status, ..answer };
        }
    }
}

/// Checks what came of a server's reset: the same, unless that would tell the client what is not so, or a 502 that it
/// overtook.
fn check_reset(reason: Reason, answer: Result<Answer, Failure>) -> Result<(), Failure> {
    let sent = match reason {
        Reason::NO_ERROR | Reason::REFUSED_STREAM | Reason::HTTP_1_1_REQUIRED => Reason::INTERNAL_ERROR,
        reason => reason,
    };
    match answer {
        Ok(answer) if answer.status == 502 => Ok(()),
        Err(Failure::Broken(_, Some(came))) if came == sent => Ok(()),
        answer => wrong(format!("{answer:?} came of the reset by {reason:?}")),
    }
}

/// Sends a part of a body as windows allow.
async fn upload(stream: &mut SendStream<Bytes>, mut data: Bytes, ends: bool) -> Result<(), Failure> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let Some(room) = poll_fn(|context| stream.poll_capacity(context)).await else {
            return Err(Failure::Broken("the stream ends amid a body".into(), None));
        };
        let part = data.split_to(room?.min(data.len()));
        stream.send_data(part, ends && data.is_empty())?;
    }
    Ok(())
}

fn map(fields: &[Field]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        map.append(name, value.clone());
    }
    map
}

fn lines(map: &HeaderMap) -> Lines {
    map.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

/// The fields behind a first line.
fn http1_lines(head: &[u8]) -> Lines {
    let lines = head.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((String::from_utf8_lossy(&line[..colon]).to_lowercase(), line[colon + 1..].trim_ascii().to_vec()))
    });
    lines.collect()
}

/// Fields as they have to come: crumbs of cookies are one field, in the place of the first (RFC 9113 §8.2.3).
fn joined(fields: &[Field]) -> Vec<Field> {
    let crumbs: Vec<&HeaderValue> =
        fields.iter().filter(|(name, _)| name == "cookie").map(|(_, value)| value).collect();
    let mut cookie =
        HeaderValue::from_bytes(&crumbs.iter().map(|crumb| crumb.as_bytes()).collect::<Vec<_>>().join(&b"; "[..]));
    cookie.iter_mut().for_each(|cookie| cookie.set_sensitive(crumbs.iter().any(|crumb| crumb.is_sensitive())));
    let mut out: Vec<Field> = Vec::new();
    for (name, value) in fields {
        match name.as_str() {
            "cookie" if out.iter().any(|(known, _)| known == name) => {}
            "cookie" => out.push((name.clone(), cookie.as_ref().expect("a value").clone())),
            _ => out.push((name.clone(), value.clone())),
        }
    }
    out
}

fn secrets(fields: &[Field]) -> Secrets {
    let is_secret = |(name, value): &Field| value.is_sensitive() || is_one_of(name.as_str(), SECRETS);
    joined(fields).into_iter().filter(is_secret).map(|(_, value)| value.as_bytes().to_vec()).collect()
}

fn is_one_of(name: &str, names: &str) -> bool {
    names.split_whitespace().any(|known| known == name)
}

fn same_lines(what: &str, sent: &[Field], seen: &Lines) -> Result<(), Failure> {
    let text = |name: &str, value: &[u8]| format!("{name}: {}", value.escape_ascii());
    let sent: Vec<String> = joined(sent).iter().map(|(name, value)| text(name.as_str(), value.as_bytes())).collect();
    let others = seen.iter().filter(|(name, _)| !is_one_of(name, ENGINES));
    let seen: Vec<String> = others.map(|(name, value)| text(name, value)).collect();
    if sent == seen {
        return Ok(());
    }
    let same = sent.iter().zip(&seen).take_while(|(sent, came)| sent == came).count();
    wrong(format!(
        "{what}: {same} of {} are as sent, then came {:?} of {:?}",
        sent.len(),
        seen.get(same),
        sent.get(same)
    ))
}

impl Rules {
    fn new() -> Rules {
        let seed = fastrand::u64(..);
        Rules { seed, body_max: 200_000, has_http1: false, storm: 0, windows: &[], has_secret_trailers: false }
    }

    fn is_lazy(&self) -> bool {
        !self.windows.is_empty()
    }
}

/// Makes messages.
struct Maker<'a> {
    rules: &'a Rules,
    random: Rng,
    number: u64,
}

impl Exchange {
    fn of(rules: &Rules, number: u64) -> Exchange {
        let random = Rng::with_seed(rules.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut maker = Maker { rules, random, number };
        let mut exchange = Exchange {
            number,
            method: maker.method(),
            path: maker.path(),
            te: maker.random.u8(..4) == 0,
            request: maker.message(true),
            interims: Vec::new(),
            status: maker.random.choice([200, 200, 200, 200, 201, 204, 206, 302, 304, 404, 500]).expect("one of them"),
            response: maker.message(false),
            is_early: maker.random.u8(..4) == 0,
            fate: Exchange::fate_of(rules, number),
        };
        if maker.random.u8(..5) == 0 {
            let statuses = (0..maker.random.u8(1..4)).map(|_| maker.random.choice([100, 102, 103, 104]).expect("one"));
            let statuses: Vec<u16> = statuses.collect();
            exchange.interims = statuses.into_iter().map(|status| (status, maker.fields(3, false))).collect();
        }
        if exchange.has_no_body() {
            let length = exchange.response.length.filter(|_| exchange.status != 204);
            exchange.response = Message { pieces: Vec::new(), trailers: Vec::new(), length, ..exchange.response };
        }
        // A response that can have no body is over with its head, and so is the upload.
        exchange.is_early &= exchange.fate != Fate::ServerDropsRequest && !exchange.response.pieces.is_empty();
        match exchange.fate {
            Fate::ServerResetsAmid(reason) if exchange.response.pieces.is_empty() => {
                exchange.fate = Fate::ServerResets(reason);
            }
            Fate::ClientLeaves => {
                let fields = std::mem::take(&mut exchange.request.fields);
                exchange.request = Message { fields, ..Message::default() };
            }
            _ => {}
        }
        exchange
    }

    fn fate_of(rules: &Rules, number: u64) -> Fate {
        let mut random = Rng::with_seed(rules.seed ^ number.wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ 1);
        let reasons = [
            Reason::NO_ERROR,
            Reason::PROTOCOL_ERROR,
            Reason::INTERNAL_ERROR,
            Reason::REFUSED_STREAM,
            Reason::CANCEL,
            Reason::ENHANCE_YOUR_CALM,
            Reason::HTTP_1_1_REQUIRED,
        ];
        let reason = random.choice(reasons).expect("one of them");
        match random.u8(..24) {
            _ if number >= LEAVERS => Fate::ClientLeaves,
            _ if number >= rules.storm => Fate::Whole,
            0 => Fate::ClientResets,
            1 => Fate::ClientResetsAmid,
            2 => Fate::ClientDropsResponse,
            3 => Fate::ClientDropsBody,
            4 | 5 => Fate::ServerResets(reason),
            6 | 7 => Fate::ServerResetsAmid(reason),
            8 | 9 => Fate::ServerDropsRequest,
            _ => Fate::Whole,
        }
    }
}

impl Maker<'_> {
    fn method(&mut self) -> Method {
        let known = ["GET", "GET", "GET", "POST", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE", "HEAD"];
        let known = &known[..known.len() - usize::from(self.rules.has_http1)];
        Method::from_bytes(known[self.random.usize(..known.len())].as_bytes()).expect("a token")
    }

    fn path(&mut self) -> String {
        let mut path = format!("/exchange/{}/", self.number);
        let path_end = path.len() + self.random.usize(..60);
        let query_end = path_end + self.random.usize(..80) * self.random.usize(..2);
        let mut pick = |from: &str| char::from(from.as_bytes()[self.random.usize(..from.len())]);
        while path.len() < path_end {
            path.push(pick("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_~!$&'()*+,=:@"));
        }
        if query_end > path_end {
            path.push('?');
        }
        while path.len() < query_end {
            path.push(pick("abcdefghijklmnopqrstuvwxyz0123456789-_~!$&'()*+,;=:@/?.&=&="));
        }
        path
    }

    fn message(&mut self, is_request: bool) -> Message {
        let size = match self.random.u8(..10) {
            0..=3 => 0,
            4..=6 => self.random.usize(..1_000),
            7..=8 => self.random.usize(..20_000),
            _ => self.random.usize(..200_000),
        };
        let size = size.min(self.rules.body_max);
        let mut rest = Bytes::from_iter(std::iter::repeat_with(|| self.random.u8(..)).take(size));
        let piece_max = self.random.usize(size / 50..=size);
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            pieces.push(rest.split_to(self.random.usize(1..=piece_max.clamp(1, rest.len()))));
        }
        let trailers = if self.random.u8(..4) == 0 { self.trailers() } else { Vec::new() };
        // HTTP/1 has no trailers behind a length, and the engine none of a request whose length is nothing.
        let may_say_length = trailers.is_empty() || !(self.rules.has_http1 || is_request && size == 0);
        let length = (self.random.bool() && may_say_length).then_some(size);
        let count = self.random.usize(..25);
        let mut fields = self.fields(count, true);
        if self.random.u8(..3) == 0 {
            let (name, most) = if is_request { ("cookie", 6) } else { ("set-cookie", 4) };
            let most = if self.rules.has_http1 && is_request { 2 } else { most };
            for _ in 1..self.random.usize(2..=most) {
                let bits = self.random.u8(..32);
                let value = self.random.u32(..) >> bits;
                let crumb = format!("c{}={:x}", self.random.u8(..9), value);
                let at = self.random.usize(..=fields.len());
                fields.insert(at, (HeaderName::from_static(name), self.sensitive(crumb.as_bytes(), true)));
            }
        }
        // As the crate sends them, those of one name stand together.
        let fields = map(&fields).iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        Message { fields, length, pieces, trailers, ends_late: !self.rules.has_http1 && self.random.u8(..4) == 0 }
    }

    fn fields(&mut self, most: usize, may_be_once: bool) -> Vec<Field> {
        let names: Vec<&str> = NAMES.split_whitespace().collect();
        let count = self.random.usize(..=most);
        let field = |_| {
            let name = match self.random.u8(..10) {
                0 if may_be_once => format!("x-once-{:x}", self.random.u64(..)),
                _ => names[self.random.usize(..names.len())].to_owned(),
            };
            let value = self.value(&name);
            (HeaderName::from_bytes(name.as_bytes()).expect("a token"), self.sensitive(&value, true))
        };
        let fields: Vec<Field> = (0..count).map(field).collect();
        map(&fields).iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn trailers(&mut self) -> Vec<Field> {
        let (names, count) = (TRAILERS.split_whitespace().collect::<Vec<_>>(), self.random.usize(1..6));
        let field = |_| {
            let name = names[self.random.usize(..names.len())];
            let value = self.value(name);
            (HeaderName::from_static(name), self.sensitive(&value, self.rules.has_secret_trailers))
        };
        let fields: Vec<Field> = (0..count).map(field).collect();
        map(&fields).iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// A secret by chance.
    fn sensitive(&mut self, value: &[u8], may_be: bool) -> HeaderValue {
        let is_secret = may_be && self.random.u8(..8) == 0 && !self.rules.has_http1;
        // The crate takes one that has been in the open before from its table.
        let text = if is_secret { [b"secret=", value].concat() } else { value.to_vec() };
        let mut value = HeaderValue::from_bytes(&text).expect("a value");
        value.set_sensitive(is_secret);
        value
    }

    /// One of a few values of this name, or one that nobody has seen.
    fn value(&mut self, name: &str) -> Vec<u8> {
        let mut random = match self.random.u8(..3) {
            0 => self.random.fork(),
            _ => Rng::with_seed(self.rules.seed ^ name.len() as u64 ^ self.random.u64(..3) << 8),
        };
        let size = match random.u8(..8) {
            0 => random.usize(..300),
            1 => 0,
            _ => random.usize(..40),
        };
        let has_others = random.u8(..4) == 0;
        let mut value = Vec::new();
        while value.len() < size {
            match random.u8(..20) {
                0 => value.extend(random.choice(*b" \t,")),
                1 if has_others && self.rules.has_http1 => value.extend_from_slice("é".as_bytes()),
                1 if has_others => value.push(random.u8(0x80..)),
                _ => value.push(random.u8(0x21..0x7f)),
            }
        }
        value.trim_ascii().to_vec()
    }
}

/// Settings that an end says.
#[derive(Clone, Copy, Debug)]
struct Settings {
    table: u32,
    frame: u32,
    window: u32,
    connection_window: u32,
    streams: u32,
    list: u32,
}

impl Settings {
    /// The crate's own.
    const DEFAULT: Settings = Settings {
        table: 4096,
        frame: 16_384,
        window: 65_535,
        connection_window: 65_535,
        streams: 100,
        list: 16 << 20,
    };

    /// Settings of one connection.
    fn of(rules: &Rules, number: u64) -> Settings {
        if rules.windows.is_empty() {
            return Settings::DEFAULT;
        }
        let mut random = Rng::with_seed(rules.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut one_of = |values: &[u32]| values[random.usize(..values.len())];
        Settings {
            table: one_of(&[0, 128, 4096, 65_536]),
            frame: one_of(&[16_384, 16_385, 100_000, 1 << 20]),
            window: one_of(rules.windows),
            connection_window: one_of(&[65_535, 65_536, 1 << 20]),
            streams: one_of(&[1, 2, 5, 20, 100]),
            list: one_of(&[16_384, 65_536, 1 << 20]),
        }
    }

    fn client(&self) -> h2::client::Builder {
        let mut builder = h2::client::Builder::new();
        builder.header_table_size(self.table).max_frame_size(self.frame).initial_window_size(self.window);
        builder.initial_connection_window_size(self.connection_window).max_header_list_size(self.list);
        // Frames for a stream that was reset are to be known as that.
        builder.max_concurrent_reset_streams(10_000).enable_push(false);
        builder
    }

    fn server(&self) -> h2::server::Builder {
        let mut builder = h2::server::Builder::new();
        builder.header_table_size(self.table).max_frame_size(self.frame).initial_window_size(self.window);
        builder.initial_connection_window_size(self.connection_window).max_header_list_size(self.list);
        builder.max_concurrent_streams(self.streams).max_concurrent_reset_streams(10_000);
        builder
    }
}

/// A tap on header blocks: the crate reads values that are never indexed (RFC 7541 §6.2.3) as any others.
#[derive(Default)]
struct Tap {
    state: Mutex<TapState>,
}

#[derive(Default)]
struct TapState {
    inbox: Vec<u8>,
    /// Bytes to come that are of no interest.
    skip: usize,
    block: Vec<u8>,
    /// Secrets of each stream's header blocks.
    secrets: HashMap<u32, Vec<Secrets>>,
}

impl Tap {
    /// Secrets of a stream's head and trailers, behind so many interim responses.
    fn take(&self, stream: u32, interims: usize) -> [Secrets; 2] {
        let blocks = self.state.lock().expect("nobody panics with it").secrets.remove(&stream).unwrap_or_default();
        let mut blocks = blocks.into_iter().skip(interims);
        [blocks.next().unwrap_or_default(), blocks.next().unwrap_or_default()]
    }
}

impl TapState {
    fn hear(&mut self, bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        self.inbox.extend_from_slice(&bytes[skipped..]);
        let mut at = 0;
        while let Some(head) = self.inbox[at..].first_chunk::<9>() {
            let (kind, flags) = (head[3], head[4]);
            let end = at + 9 + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if !matches!(kind, HEADERS | CONTINUATION) {
                self.skip = end.saturating_sub(self.inbox.len());
                at = end.min(self.inbox.len());
                continue;
            }
            if end > self.inbox.len() {
                break;
            }
            assert!(flags & (PADDED | PRIORITY_FLAG) == 0, "the engine sends header blocks without either");
            self.block.extend_from_slice(&self.inbox[at + 9..end]);
            if flags & END_HEADERS != 0 {
                self.secrets.entry(stream).or_default().push(never_indexed(&self.block));
                self.block.clear();
            }
            at = end;
        }
        self.inbox.drain(..at);
    }
}

/// The values of a header block that are never indexed. The engine does not write them in the Huffman code.
fn never_indexed(mut block: &[u8]) -> Secrets {
    let mut secrets = Secrets::new();
    while let Some(first) = block.first().copied() {
        match first {
            0x80.. => drop(integer(&mut block, 7)),
            0x20..0x40 => drop(integer(&mut block, 5)),
            _ => {
                if integer(&mut block, if first >= 0x40 { 6 } else { 4 }) == 0 {
                    string(&mut block);
                }
                let value = string(&mut block);
                if first & 0xf0 == 0x10 {
                    secrets.push(value.to_vec());
                }
            }
        }
    }
    secrets
}

/// Takes an integer (RFC 7541 §5.1) with a prefix of so many bits.
fn integer(block: &mut &[u8], bits: u32) -> usize {
    let most = (1 << bits) - 1;
    let mut next = || block.split_off_first().copied().map_or(0, usize::from);
    let mut value = next() & most;
    for shift in (0..28).step_by(7).take(if value == most { 4 } else { 0 }) {
        let byte = next();
        value += (byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    value
}

/// Takes a string (RFC 7541 §5.2), as it is coded.
fn string<'a>(block: &mut &'a [u8]) -> &'a [u8] {
    let length = integer(block, 7).min(block.len());
    block.split_off(..length).unwrap_or_default()
}

/// A socket with a tap on what comes.
struct Tapped {
    /// `None` once it is dropped.
    socket: Option<TcpStream>,
    tap: Arc<Tap>,
    /// Reads on once it is dropped.
    lingers: bool,
}

/// The crate's server closes at once behind its last frame. Bytes that come later would have the kernel reset the
/// connection, and take from the engine what it has not read yet (RFC 9112 §9.6).
impl Drop for Tapped {
    fn drop(&mut self) {
        if let (true, Some(mut socket), Ok(runtime)) = (self.lingers, self.socket.take(), Handle::try_current()) {
            runtime.spawn(async move { tokio::io::copy(&mut socket, &mut tokio::io::sink()).await });
        }
    }
}

impl Tapped {
    fn socket(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.socket.as_mut().expect("not dropped yet"))
    }
}

impl Tapped {
    /// `skip`: bytes before the first frame.
    fn new(socket: TcpStream, skip: usize) -> (Tapped, Arc<Tap>) {
        socket.set_nodelay(true).expect("no delay");
        let tap = Arc::new(Tap { state: Mutex::new(TapState { skip, ..TapState::default() }) });
        (Tapped { socket: Some(socket), tap: Arc::clone(&tap), lingers: skip > 0 }, tap)
    }
}

impl AsyncRead for Tapped {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(self.socket().poll_read(context, into))?;
        self.tap.state.lock().expect("nobody panics with it").hear(&into.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tapped {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.socket().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_shutdown(context)
    }
}
