//! Checks of the instrument itself: servers of known behaviour, written apart from `origin`, and what the load says of
//! them. Counts are asserted exactly; times with margins wide enough for a busy machine.

use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::load::{Kind, Load, Plan, Until};
use crate::stats::{ErrorKind, Summary};
use crate::target::Target;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const MILLISECOND: u64 = 1_000_000;

/// The behaviour of a server; all of it is known to the test.
#[derive(Clone, Copy, Default)]
struct Behaviour {
    delay: Duration,
    /// Each nth answer is a 503.
    fail_every: Option<u64>,
    /// From so long after the first request on, nothing is answered for so long.
    stall: Option<(Duration, Duration)>,
}

#[derive(Default)]
struct Seen {
    requests: AtomicU64,
    first: OnceLock<Instant>,
}

/// A thread per connection; they end with the connections, the listener with the test.
fn serve(behaviour: Behaviour) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Seen::default());
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let seen = seen.clone();
            std::thread::spawn(move || serve_connection(socket, behaviour, &seen));
        }
    });
    address
}

/// Requests of this bench come whole and without a body, so each read is one request.
fn serve_connection(mut socket: TcpStream, behaviour: Behaviour, seen: &Seen) {
    socket.set_nodelay(true).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(1..) = socket.read(&mut buffer) {
        let begin = *seen.first.get_or_init(Instant::now);
        let number = seen.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some((after, length)) = behaviour.stall {
            let now = begin.elapsed();
            if now >= after && now < after + length {
                std::thread::sleep(after + length - now);
            }
        }
        std::thread::sleep(behaviour.delay);
        let failed = behaviour.fail_every.is_some_and(|every| number.is_multiple_of(every));
        let status = if failed { "503 Service Unavailable" } else { "200 OK" };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\nhello");
        if socket.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn run(address: SocketAddr, connections: usize, rate: Option<f64>, until: Until) -> Summary {
    let target = Target::new(address, "localhost", None).unwrap();
    let request = Request::new("GET", "/", "localhost", "", 0);
    let plan = Plan { kind: Kind::KeepAlive, connections, request, timeout: Duration::from_secs(10), rate };
    Load::new(&target, plan, &Interrupt::default()).unwrap().run(until, "").unwrap().stats.summary()
}

#[test]
fn counts_latencies_and_rates_are_those_of_the_server() {
    let address = serve(Behaviour { delay: Duration::from_millis(20), fail_every: Some(7), ..Behaviour::default() });
    let summary = run(address, 2, None, Until::Finished(70));
    assert_eq!((summary.done, summary.errors[ErrorKind::BadStatus.name()], summary.body_bytes), (60, 10, 300));
    assert_eq!((summary.errors_total(), summary.connections), (10, 2));
    let p50 = summary.latency.p50;
    assert!((20 * MILLISECOND..60 * MILLISECOND).contains(&p50), "{summary:?}");
    // Two connections, 20 ms each: a hundred answers a second at best, of which six in seven are good.
    assert!(summary.per_second.0 <= 86.0 && summary.per_second.0 > 30.0, "{summary:?}");
}

#[test]
fn an_open_loop_has_the_rate_that_was_asked_for() {
    let address = serve(Behaviour { delay: Duration::from_millis(2), ..Behaviour::default() });
    let summary = run(address, 16, Some(400.0), Until::Elapsed(Duration::from_secs(1)));
    let arrived = summary.done + summary.unanswered;
    assert!((396..=401).contains(&arrived), "{summary:?}");
    assert_eq!(summary.errors_total(), 0);
}

#[test]
fn a_stall_is_charged_by_an_open_loop_and_hidden_by_a_closed_one() {
    let stall = (Duration::from_millis(500), Duration::from_secs(1));
    let behaviour = Behaviour { delay: Duration::from_millis(2), stall: Some(stall), ..Behaviour::default() };
    let until = Until::Elapsed(Duration::from_millis(2500));
    let closed = std::thread::spawn(move || run(serve(behaviour), 2, None, until));
    let open = run(serve(behaviour), 8, Some(200.0), until);
    let closed = closed.join().unwrap();

    // 500 arrivals; the 200 of the stalled second waited from 1000 ms down to 0.
    assert!(open.done + open.unanswered >= 495, "{open:?}");
    assert!(open.latency.p50 < 400 * MILLISECOND, "{open:?}");
    assert!(open.latency.p90 > 500 * MILLISECOND && open.latency.p99 > 850 * MILLISECOND, "{open:?}");
    assert!((900 * MILLISECOND..3000 * MILLISECOND).contains(&open.latency.max), "{open:?}");

    // Two requests met the stall, and none came after them to say so: only the maximum knows.
    assert!(closed.done > 220, "{closed:?}");
    assert!(closed.latency.p99 < 500 * MILLISECOND && closed.latency.max > 900 * MILLISECOND, "{closed:?}");
}

#[test]
fn two_runs_agree_within_a_third() {
    let address = serve(Behaviour { delay: Duration::from_millis(25), ..Behaviour::default() });
    let [first, second] = [(); 2].map(|()| run(address, 4, None, Until::Finished(80)));
    let apart = |one: f64, other: f64| (one - other).abs() / one.max(other);
    assert!(apart(first.per_second.0, second.per_second.0) < 0.33, "{first:?} {second:?}");
    assert!(apart(first.latency.p50 as f64, second.latency.p50 as f64) < 0.33, "{first:?} {second:?}");
}
