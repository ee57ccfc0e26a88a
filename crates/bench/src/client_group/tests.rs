use super::*;
use crate::origin::tests::Running;

fn behaviour(pattern: RequestPattern, timeout: Duration) -> ClientBehaviour {
    ClientBehaviour {
        pattern,
        request: Request::new("GET", "/", "localhost", "", 0),
        timeout,
        opening_max: 32,
        arrivals_max: None,
    }
}

fn target(address: std::net::SocketAddr) -> Target {
    Target::new(address, "localhost", None).unwrap()
}

const WAIT_MAX: Duration = Duration::from_secs(10);

#[test]
fn clients_that_ask_once_stay_connected() {
    let origin = Running::start(Duration::ZERO, None);
    let target = target(origin.address);
    let mut group =
        ClientGroup::new(&target, behaviour(RequestPattern::Once, WAIT_MAX), 1, &Interrupt::default()).unwrap();
    let grown = group.grow(100, WAIT_MAX, |_| {}).unwrap();
    assert_eq!((grown.done, grown.connects, grown.errors_total()), (100, 100, 0));
    let grown = group.grow(300, WAIT_MAX, |_| {}).unwrap();
    assert_eq!((grown.done, grown.connects), (200, 200));
    let held = group.hold(Duration::from_millis(50)).unwrap();
    assert_eq!(held.clients, ClientCounts { wanted: 300, open: 300, served: 300 });
    assert_eq!(held.done, 0);
}

#[test]
fn clients_that_say_nothing_or_one_byte_are_connected_and_not_answered() {
    let origin = Running::start(Duration::ZERO, None);
    let target = target(origin.address);
    for pattern in [RequestPattern::Silent, RequestPattern::OneByte] {
        let mut group = ClientGroup::new(&target, behaviour(pattern, WAIT_MAX), 1, &Interrupt::default()).unwrap();
        let grown = group.grow(50, WAIT_MAX, |_| {}).unwrap();
        assert_eq!((grown.clients.open, grown.connects, grown.errors_total()), (50, 50, 0));
    }
}

#[test]
fn clients_with_a_rhythm_ask_again_on_the_same_connection() {
    let origin = Running::start(Duration::ZERO, None);
    let target = target(origin.address);
    let pattern = RequestPattern::Every(Duration::from_millis(20));
    let mut group = ClientGroup::new(&target, behaviour(pattern, WAIT_MAX), 1, &Interrupt::default()).unwrap();
    group.grow(10, WAIT_MAX, |_| {}).unwrap();
    let held = group.hold(Duration::from_millis(500)).unwrap();
    // 250 are due; a busy machine may be late, but never early.
    assert!((50..=260).contains(&held.done), "{held:?}");
    assert_eq!((held.connects, held.errors_total()), (0, 0));
}

#[test]
fn a_dribbled_request_is_answered_when_its_last_byte_has_come() {
    let origin = Running::start(Duration::ZERO, None);
    let target = target(origin.address);
    let mut behaviour = behaviour(RequestPattern::Dribble { bytes_per_second: 20 }, WAIT_MAX);
    // Two pieces: the second goes out a second after the first.
    behaviour.request.bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    let mut group = ClientGroup::new(&target, behaviour, 1, &Interrupt::default()).unwrap();
    let grown = group.grow(5, WAIT_MAX, |_| {}).unwrap();
    assert_eq!((grown.clients.served, grown.done), (5, 0));
    let held = group.hold(Duration::from_millis(1500)).unwrap();
    assert_eq!((held.done, held.errors_total()), (5, 0));
    assert!(held.answer_latency.summary().p50 >= 900_000_000);
}

#[test]
fn a_client_that_is_never_answered_fails_and_comes_back() {
    // Accepts in the kernel, and nobody answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = target(silent.local_addr().unwrap());
    let pattern = RequestPattern::Every(Duration::from_millis(100));
    let behaviour = behaviour(pattern, Duration::from_millis(200));
    let mut group = ClientGroup::new(&target, behaviour, 1, &Interrupt::default()).unwrap();
    let grown = group.grow(4, WAIT_MAX, |_| {}).unwrap();
    assert_eq!((grown.done, grown.errors["timeout"], grown.clients.served), (0, 4, 0));
    let held = group.hold(Duration::from_millis(800)).unwrap();
    assert!(held.connects >= 4, "{held:?}");
}
