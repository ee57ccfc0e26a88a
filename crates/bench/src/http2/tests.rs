//! The load loop against servers of known behaviour.

use super::{Load, Plan, Request};
use crate::interrupt::Interrupt;
use crate::load::Until;
use crate::stats::{ErrorKind, LoadStats};
use crate::target::Target;
use bytes::Bytes;
use h2::Reason;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The server's response to a request.
#[derive(Clone, Copy)]
enum Act {
    /// After the delay, with a body of so many bytes.
    Answer(u16, usize, Duration),
    /// With the bytes that came.
    Echo,
    Reset,
    /// Answers, and will take no further streams on this connection.
    AnswerAndLeave,
    /// Answers nothing more and blames the client.
    Blame,
}

/// A server on its own thread that asks `acts` about each request, which are numbered from 1. It ends with the test.
fn serve(acts: fn(u64) -> Act) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let number = Arc::new(AtomicU64::new(0));
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve_connection(socket, acts, number.clone()));
            }
        });
    });
    told.recv().unwrap()
}

async fn serve_connection(socket: tokio::net::TcpStream, acts: fn(u64) -> Act, number: Arc<AtomicU64>) {
    let mut connection = h2::server::handshake(socket).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let act = acts(number.fetch_add(1, Ordering::Relaxed) + 1);
        match act {
            Act::Reset => respond.send_reset(Reason::INTERNAL_ERROR),
            Act::Blame => connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM),
            _ => {
                if matches!(act, Act::AnswerAndLeave) {
                    connection.graceful_shutdown();
                }
                tokio::spawn(answer(act, request, respond));
            }
        }
    }
}

async fn answer(
    act: Act,
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut body = request.into_body();
    let (status, bytes) = match act {
        Act::Answer(status, bytes, delay) => {
            tokio::time::sleep(delay).await;
            (status, bytes)
        }
        _ => (200, 3),
    };
    let response = http::Response::builder().status(status).body(()).unwrap();
    let mut out = respond.send_response(response, false)?;
    if let Act::Echo = act {
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            out.send_data(data, false)?;
        }
        return out.send_data(Bytes::new(), true);
    }
    out.send_data(vec![b'x'; bytes].into(), true)
}

fn run(address: SocketAddr, connections: usize, streams: usize, body_bytes: usize, until: Until) -> LoadStats {
    run_with(address, Shape { connections, streams, rate: None }, body_bytes, until)
}

struct Shape {
    connections: usize,
    streams: usize,
    rate: Option<f64>,
}

fn run_with(address: SocketAddr, shape: Shape, body_bytes: usize, until: Until) -> LoadStats {
    let Shape { connections, streams, rate } = shape;
    let mut target = Target::new(address, "localhost", None).unwrap();
    target.offer_http2();
    let method = if body_bytes > 0 { "POST" } else { "GET" };
    let request = Request::new(method, "/", &target, &["X-Test: yes".to_owned()], body_bytes).unwrap();
    let plan = Plan { connections, streams, request, timeout: Duration::from_secs(10), rate };
    Load::new(target, plan).unwrap().run(until, "", &Interrupt::default()).unwrap().stats
}

fn open_loop(address: SocketAddr, streams: usize, rate: f64, duration: Duration) -> LoadStats {
    run_with(address, Shape { connections: 1, streams, rate: Some(rate) }, 0, Until::Elapsed(duration))
}

#[test]
fn a_fixed_delay_is_the_latency_and_streams_share_a_connection() {
    let address = serve(|_| Act::Answer(200, 9, Duration::from_millis(20)));
    let stats = run(address, 2, 4, 0, Until::Finished(80));
    let summary = stats.summary();
    assert_eq!((summary.done, summary.errors_total(), summary.connections), (80, 0, 2), "{summary:?}");
    assert_eq!(summary.body_bytes, 720);
    let p50 = Duration::from_nanos(summary.latency.p50);
    assert!(p50 >= Duration::from_micros(19_900) && p50 < Duration::from_millis(80), "{p50:?}");
    // 80 requests, 8 at a time: ten rounds, not eighty.
    assert!(stats.elapsed < Duration::from_millis(1200), "{:?}", stats.elapsed);
}

#[test]
fn each_kind_of_failure_is_counted_as_what_it_is() {
    let address = serve(|number| match number % 10 {
        0 => Act::Reset,
        5 => Act::Answer(503, 9, Duration::ZERO),
        _ => Act::Answer(200, 9, Duration::ZERO),
    });
    let stats = run(address, 1, 1, 0, Until::Finished(100));
    let counted = (stats.done, stats.errors(ErrorKind::StreamReset), stats.errors(ErrorKind::BadStatus));
    assert_eq!((counted, stats.errors_total(), stats.connections), ((80, 10, 10), 20, 1), "{:?}", stats.first_error());

    let address = serve(|number| if number == 5 { Act::Blame } else { Act::Answer(200, 9, Duration::ZERO) });
    let stats = run(address, 1, 1, 0, Until::Finished(10));
    let counted = (stats.done, stats.errors(ErrorKind::Goaway), stats.errors_total(), stats.connections);
    assert_eq!(counted, (9, 1, 1, 2), "{:?}", stats.first_error());
}

#[test]
fn a_server_that_takes_its_leave_loses_no_request() {
    let address = serve(|number| match number % 10 {
        0 => Act::AnswerAndLeave,
        _ => Act::Answer(200, 3, Duration::ZERO),
    });
    let stats = run(address, 1, 4, 0, Until::Finished(100));
    assert_eq!((stats.done, stats.errors_total()), (100, 0), "{:?}", stats.first_error());
    assert!(stats.connections > 3, "{}", stats.connections);
}

#[test]
fn bodies_go_both_ways_beyond_the_window() {
    let bytes = 20_000_000;
    let stats = run(serve(|_| Act::Echo), 1, 2, bytes, Until::Finished(2));
    assert_eq!((stats.done, stats.errors_total()), (2, 0), "{:?}", stats.first_error());
    assert_eq!(stats.body_bytes, 2 * bytes as u64);
    assert!(stats.moved.up >= stats.body_bytes && stats.moved.down >= stats.body_bytes, "{:?}", stats.moved);
}

#[test]
fn in_an_open_loop_a_slow_server_is_charged_for_the_queue() {
    // 100 arrivals a second, one stream, 50 ms each: four in five arrivals wait longer and longer.
    let address = serve(|_| Act::Answer(200, 9, Duration::from_millis(50)));
    let summary = open_loop(address, 1, 100.0, Duration::from_millis(600)).summary();
    assert!(summary.unanswered >= 30 && summary.latency.max >= 300_000_000, "{summary:?}");
    assert!(summary.done + summary.unanswered >= 55, "{summary:?}");
}

#[test]
fn a_closed_port_is_a_connect_error() {
    let port = crate::machine::free_ports(1).unwrap()[0];
    let stats = run(([127, 0, 0, 1], port).into(), 1, 2, 0, Until::Finished(6));
    assert_eq!((stats.done, stats.errors(ErrorKind::Connect), stats.errors_total()), (0, 6, 6));
}

#[test]
fn a_stall_is_charged_by_an_open_loop() {
    // The server has one thread, and it sleeps.
    let address = serve(|number| {
        if number == 100 {
            std::thread::sleep(Duration::from_secs(1));
        }
        Act::Answer(200, 9, Duration::ZERO)
    });
    let summary = open_loop(address, 4, 200.0, Duration::from_millis(2500)).summary();
    // 500 arrivals, of which the 200 of one second waited from 1000 ms down to 0.
    assert!(summary.done + summary.unanswered >= 495 && summary.errors_total() == 0, "{summary:?}");
    assert!(summary.latency.p50 < 400_000_000 && summary.latency.p90 > 500_000_000, "{summary:?}");
    assert!(summary.latency.p99 > 850_000_000 && summary.latency.max > 900_000_000, "{summary:?}");
}
