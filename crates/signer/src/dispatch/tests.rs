//! Dialogues with key servers in memory: what they answer, in what order, and what becomes of the handshakes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use propylon_crypto::keyless::{Decoder, Message};
use propylon_crypto::{Hash, Key, PrivateKey};
use propylon_metrics::{Registry, Store};
use propylon_observe::telemetry::SignerMetrics;

use super::*;

const MILLI: u64 = 1_000;
const TIMEOUT: u64 = 250 * MILLI;
const HEDGE: u64 = 100 * MILLI;
const JOBS_MAX: usize = 4096;
const DIGEST: [u8; 32] = [7; 32];
const SCHEME: Scheme = Scheme::Ecdsa(Hash::Sha256);

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A request as a key server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    id: u32,
    opcode: u8,
    payload: Vec<u8>,
    ski: Option<Ski>,
}

struct Core {
    dispatch: Dispatch,
    store: Arc<Store>,
    key: PrivateKey,
    now: u64,
}

impl Core {
    /// So many servers with one connection each, all of them up.
    fn new(servers: usize) -> Core {
        Core::with(servers, 1, Some(HEDGE), Verify::All)
    }

    fn with(servers: usize, connections: usize, hedge: Option<u64>, verify: Verify) -> Core {
        let names: Vec<String> = (0..servers).map(|server| server.to_string()).collect();
        let mut registry = Registry::new();
        let metrics = SignerMetrics::new(&mut registry, "vault", &names);
        let store = registry.build(1);
        let report = Report::new(Store::column(&store, 0), metrics, "vault", names);
        let settings = Settings { servers, connections, jobs_max: JOBS_MAX, timeout: TIMEOUT, hedge, verify };
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let key = PrivateKey::from_der(pair.serialized_der()).unwrap();
        let dispatch = Dispatch::new(settings, report, 7);
        let mut core = Core { dispatch, store, key, now: 1_000_000 };
        (0..servers * connections).for_each(|at| core.connect(at));
        core
    }

    fn connect(&mut self, at: usize) {
        self.dispatch.begin(at, self.now);
        self.dispatch.greet(at, self.now);
        let greeting = self.requests(at);
        assert_eq!((greeting.len(), greeting[0].opcode), (1, opcode::PING));
        self.reply(at, greeting[0].id, opcode::PONG, b"");
        assert!(self.dispatch.is_up(at));
    }

    fn submit(&mut self) -> JobId {
        let remote = RemoteKey::new(0, self.key.public_info()).unwrap();
        self.dispatch.submit(remote, SCHEME, DIGEST.into(), self.now).expect("there is room")
    }

    /// Bytes sent on a connection since the last time.
    fn requests(&mut self, at: usize) -> Vec<Request> {
        let mut bytes = Vec::new();
        self.dispatch.channel(at).take_outgoing(&mut bytes);
        let mut decoder = Decoder::new();
        decoder.extend(&bytes);
        let mut requests = Vec::new();
        while let Some(message) = decoder.next_message().expect("our own frames") {
            let Message { id, opcode, payload, ski, .. } = message;
            requests.push(Request { id, opcode: opcode.unwrap(), payload: payload.to_vec(), ski });
        }
        requests
    }

    /// The one request for a signature on all connections, and on which it is. Pings go unanswered.
    fn request(&mut self) -> (usize, Request) {
        let count = self.dispatch.channels.len();
        let mut all: Vec<(usize, Request)> =
            (0..count).flat_map(|at| self.requests(at).into_iter().map(move |request| (at, request))).collect();
        all.retain(|(_, request)| request.opcode != opcode::PING);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn reply(&mut self, at: usize, id: u32, opcode: u8, payload: &[u8]) {
        let bytes = frame(id, opcode, payload);
        self.now += 200;
        self.dispatch.received(at, &bytes, self.now).expect("a well-formed reply");
    }

    fn signature(&self) -> Vec<u8> {
        Key::Local(self.key.clone()).job(SCHEME, &DIGEST).unwrap().run().unwrap().to_vec()
    }

    fn sign(&mut self, at: usize, id: u32) {
        let signature = self.signature();
        self.reply(at, id, opcode::SUCCESS, &signature);
    }

    fn outcome(&mut self, id: JobId) -> Option<Outcome> {
        self.dispatch.poll(id, std::task::Waker::noop()).ok()
    }

    #[track_caller]
    fn signed(&mut self, id: JobId) {
        let outcome = self.outcome(id).expect("it is over").expect("a signature");
        assert!(RemoteKey::new(0, self.key.public_info()).unwrap().verifies(SCHEME, &DIGEST, &outcome));
        assert!(self.dispatch.release(id).is_none());
    }

    #[track_caller]
    fn failed(&mut self, id: JobId, error: JobError) {
        assert_eq!(self.outcome(id).expect("it is over").err(), Some(error));
        assert!(self.dispatch.release(id).is_none());
    }

    fn pass(&mut self, micros: u64) {
        self.now += micros;
        self.dispatch.advance(self.now);
    }

    #[track_caller]
    fn counts(&self, line: &str, value: i64) {
        let page = self.store.prometheus();
        let wanted = format!("{line} {value}");
        assert!(page.lines().any(|found| found == wanted), "no {wanted} in\n{page}");
    }

    fn jobs(&self, outcome: &str, value: i64) {
        self.counts(&format!("propylon_signer_jobs_total{{signer=\"vault\",outcome=\"{outcome}\"}}"), value);
    }

    fn requests_of(&self, server: usize, outcome: &str, value: i64) {
        let labels = format!("signer=\"vault\",server=\"{server}\",outcome=\"{outcome}\"");
        self.counts(&format!("propylon_signer_requests_total{{{labels}}}"), value);
    }

    fn outstanding(&self, server: usize, value: i64) {
        self.counts(&format!("propylon_signer_outstanding{{signer=\"vault\",server=\"{server}\"}}"), value);
        assert_eq!(i64::from(self.dispatch.servers.outstanding(server)), value);
    }
}

fn frame(id: u32, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Message { id, opcode: Some(opcode), payload, ..Message::default() }.encode(&mut bytes).unwrap();
    bytes
}

#[test]
fn where_nobody_will_sign_any_more_nobody_waits() {
    let mut core = Core::new(1);
    let flying = core.submit();
    core.dispatch.closed(0, "it has ended", core.now);
    let waiting = core.submit();
    core.dispatch.end("its supervisor is gone");
    for id in [flying, waiting] {
        assert!(matches!(core.dispatch.slots[id.slot as usize].content, Content::Done(Err(JobError::Unavailable))));
    }
    let remote = RemoteKey::new(0, core.key.public_info()).unwrap();
    let late = core.dispatch.submit(remote, SCHEME, DIGEST.into(), core.now);
    assert!(matches!(late, Err(JobError::Unavailable)));
}

#[test]
fn a_request_names_operation_digest_and_key() {
    let mut core = Core::new(1);
    let job = core.submit();
    let (at, request) = core.request();
    let expected = Request { id: request.id, opcode: 0x15, payload: DIGEST.to_vec(), ski: Some(core.key.ski()) };
    assert_eq!(request, expected);
    assert!(core.outcome(job).is_none());
    core.sign(at, request.id);
    core.signed(job);
    core.jobs("signed", 1);
    core.outstanding(0, 0);
}

#[test]
fn replies_in_any_order_and_in_any_pieces_find_their_handshakes() {
    let mut core = Core::new(1);
    let jobs: Vec<JobId> = (0..50).map(|_| core.submit()).collect();
    let requests = core.requests(0);
    assert_eq!(requests.len(), 50, "all of a turn leave together");
    let signature = core.signature();
    let bytes: Vec<u8> =
        requests.iter().rev().flat_map(|request| frame(request.id, opcode::SUCCESS, &signature)).collect();
    for piece in bytes.chunks(777) {
        core.dispatch.received(0, piece, core.now).expect("well-formed");
    }
    jobs.into_iter().for_each(|job| core.signed(job));
    core.outstanding(0, 0);
}

#[test]
fn a_reply_wakes_the_handshake_that_waits_and_no_other() {
    let mut core = Core::new(1);
    let (one, other) = (core.submit(), core.submit());
    let counts = [one, other].map(|job| {
        let count = Arc::new(Count::default());
        assert!(core.dispatch.poll(job, &count.clone().into()).is_err());
        count
    });
    let requests = core.requests(0);
    core.sign(0, requests[1].id);
    core.dispatch.take_wakers().into_iter().for_each(std::task::Waker::wake);
    assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
    core.signed(other);
}

#[test]
fn late_twofold_and_stray_replies_are_dropped() {
    let mut core = Core::new(1);
    let job = core.submit();
    let (at, request) = core.request();
    core.reply(at, request.id ^ 0x8000_0000, opcode::SUCCESS, b"nobody asked");
    core.sign(at, request.id);
    core.sign(at, request.id);
    core.signed(job);
    core.counts("propylon_signer_strays_total{signer=\"vault\",server=\"0\"}", 2);
    // The slot is another's by the time its answer comes.
    let gone = core.submit();
    let (at, request) = core.request();
    assert!(core.dispatch.release(gone).is_none());
    let next = core.submit();
    core.sign(at, request.id);
    assert!(core.outcome(next).is_none());
    core.requests_of(0, "superfluous", 1);
    core.jobs("cancelled", 1);
}

#[test]
fn what_is_no_frame_ends_the_connection_and_the_handshake_goes_elsewhere() {
    let oversized = [&[1, 0, 0xff, 0xff, 0, 0, 0, 0, 0x12, 0xff, 0xff][..], &[0; 65_532]].concat();
    let twofold = [&[1, 0, 0, 8, 0, 0, 0, 0][..], b"\x11\0\x01\xf0\x11\0\x01\xf0"].concat();
    for bytes in [oversized, twofold] {
        let mut core = Core::new(2);
        let job = core.submit();
        let (at, request) = core.request();
        let mut bytes = bytes;
        bytes[4..8].copy_from_slice(&request.id.to_be_bytes());
        let error = core.dispatch.received(at, &bytes, core.now).expect_err("that is no reply");
        core.dispatch.closed(at, error.0, core.now);
        let (other, request) = core.request();
        assert_ne!(at, other);
        core.sign(other, request.id);
        core.signed(job);
        core.requests_of(at, "lost", 1);
    }
}

#[test]
fn a_reply_cut_short_by_the_connections_end_is_none() {
    let mut core = Core::new(2);
    let job = core.submit();
    let (at, request) = core.request();
    let whole = frame(request.id, opcode::SUCCESS, &core.signature());
    core.dispatch.received(at, &whole[..500], core.now).expect("the beginning of a frame");
    core.dispatch.closed(at, "reset", core.now);
    let (other, again) = core.request();
    // The rest, on a new connection, means nothing.
    core.connect(at);
    assert!(core.outcome(job).is_none());
    core.sign(other, again.id);
    core.signed(job);
    core.counts("propylon_signer_retries_total{signer=\"vault\"}", 1);
}

#[test]
fn a_wrong_signature_is_not_used_and_the_next_server_is_asked() {
    for payload in [b"0".repeat(71), b"\x30".repeat(71), Vec::new(), vec![0x30; 4000]] {
        let mut core = Core::new(2);
        let job = core.submit();
        let (at, request) = core.request();
        core.reply(at, request.id, opcode::SUCCESS, &payload);
        let (other, request) = core.request();
        assert_ne!(at, other);
        core.sign(other, request.id);
        core.signed(job);
        core.requests_of(at, "wrong", 1);
    }
}

#[test]
fn a_server_whose_signatures_are_wrong_is_ejected() {
    let mut core = Core::new(2);
    for _ in 0..200 {
        let job = core.submit();
        let (mut at, mut request) = core.request();
        if at == 0 {
            core.reply(at, request.id, opcode::PONG, b"");
            (at, request) = core.request();
        }
        core.sign(at, request.id);
        core.signed(job);
    }
    core.requests_of(0, "wrong", 3);
    core.counts("propylon_signer_ejections_total{signer=\"vault\",server=\"0\"}", 1);
}

#[test]
fn without_verification_only_the_form_counts() {
    let mut core = Core::with(1, 1, None, Verify::Nothing);
    for _ in 0..2_000 {
        let job = core.submit();
        let (at, request) = core.request();
        core.reply(at, request.id, opcode::SUCCESS, &[0x30; 71]);
        assert!(core.outcome(job).expect("it is over").is_ok());
    }
}

#[test]
fn of_signatures_that_are_not_verified_one_of_256_is_and_a_server_that_is_always_wrong_is_soon_found_out() {
    let mut core = Core::with(2, 1, None, Verify::Rsa);
    let (mut forged, mut found) = (0, 0);
    for _ in 0..4_000 {
        let job = core.submit();
        let (at, request) = core.request();
        if at == 1 {
            core.sign(at, request.id);
            core.signed(job);
            continue;
        }
        core.reply(at, request.id, opcode::SUCCESS, &[0x30; 71]);
        match core.outcome(job) {
            Some(outcome) => {
                assert!(outcome.is_ok());
                forged += 1;
            }
            None => {
                found += 1;
                let (other, request) = core.request();
                assert_eq!(other, 1, "the other server is asked");
                core.sign(other, request.id);
                core.signed(job);
            }
        }
    }
    // One by chance, and those that follow it until the server is put out.
    core.counts("propylon_signer_ejections_total{signer=\"vault\",server=\"0\"}", 1);
    assert!((1..2_000).contains(&forged) && (3..10).contains(&found), "{forged}, {found}");
}

#[test]
fn a_server_without_the_key_is_passed_over_for_that_key_and_asked_again_later() {
    let mut core = Core::new(2);
    let mut refused = 0;
    for _ in 0..50 {
        let job = core.submit();
        let (mut at, mut request) = core.request();
        if at == 0 {
            refused += 1;
            core.reply(at, request.id, opcode::ERROR, &[ErrorCode::KeyNotFound as u8]);
            (at, request) = core.request();
        }
        core.sign(at, request.id);
        core.signed(job);
    }
    assert_eq!(refused, 1);
    core.pass(micros(REFUSAL_KEPT));
    let asked_again = (0..50).any(|_| {
        core.submit();
        core.request().0 == 0
    });
    assert!(asked_again);
}

#[test]
fn when_no_server_has_the_key_the_handshake_fails_at_once_with_the_right_word() {
    for (code, error) in [(ErrorCode::KeyNotFound, JobError::NotSigned), (ErrorCode::Cryptography, JobError::Refused)] {
        let mut core = Core::new(3);
        for _ in 0..2 {
            let job = core.submit();
            for _ in 0..3 {
                let (at, request) = core.request();
                core.reply(at, request.id, opcode::ERROR, &[code as u8]);
            }
            core.failed(job, error);
        }
        core.jobs("refused", 2);
        core.jobs("unavailable", 0);
    }
}

#[test]
fn what_those_said_who_could_be_asked_is_what_a_handshake_ends_with() {
    let mut core = Core::new(2);
    core.dispatch.closed(1, "gone", core.now);
    let job = core.submit();
    let (at, request) = core.request();
    core.reply(at, request.id, opcode::ERROR, &[ErrorCode::KeyNotFound as u8]);
    core.pass(TIMEOUT);
    core.failed(job, JobError::NotSigned);
    core.jobs("refused", 1);
}

#[test]
fn a_silent_server_is_hedged_then_ejected_and_costs_no_handshake() {
    let mut core = Core::new(2);
    let (mut asked, mut hedged) = (0, 0);
    for _ in 0..100 {
        let job = core.submit();
        let (at, request) = core.request();
        if at == 0 {
            asked += 1;
            core.pass(HEDGE);
            let mut others = core.requests(1);
            others.retain(|request| request.opcode != opcode::PING);
            assert_eq!(others.len(), 1);
            hedged += 1;
            core.sign(1, others[0].id);
        } else {
            core.sign(at, request.id);
        }
        core.signed(job);
        core.pass(MILLI);
    }
    assert_eq!(asked, hedged);
    assert!((1..=6).contains(&asked), "{asked}");
    (0..8).for_each(|_| core.pass(micros(ROUND)));
    assert!(core.dispatch.servers.is_ejected(0));
    core.counts("propylon_signer_hedges_total{signer=\"vault\"}", hedged);
    core.jobs("signed", 100);
}

#[test]
fn an_ejected_server_comes_back_when_it_answers_a_trial() {
    let mut core = Core::new(2);
    while !core.dispatch.servers.is_ejected(0) {
        let job = core.submit();
        for request in core.requests(1) {
            core.sign(1, request.id);
        }
        core.pass(TIMEOUT);
        let _ = core.outcome(job);
        let _ = core.dispatch.release(job);
    }
    core.requests(0);
    // A trial, and no handshake, shows that it is there again.
    let mut trial = Vec::new();
    for _ in 0..20 {
        core.pass(micros(ROUND));
        trial.extend(core.requests(0));
        if !trial.is_empty() {
            break;
        }
    }
    assert_eq!(trial.iter().map(|request| request.opcode).collect::<Vec<_>>(), [opcode::PING]);
    core.now += 300;
    core.reply(0, trial[0].id, opcode::PONG, b"");
    assert!(!core.dispatch.servers.is_ejected(0));
    core.counts("propylon_signer_ejected{signer=\"vault\",server=\"0\"}", 0);
}

#[test]
fn a_handshake_that_nobody_answers_ends_at_its_deadline() {
    let mut core = Core::with(1, 2, None, Verify::All);
    let job = core.submit();
    let (at, request) = core.request();
    core.pass(TIMEOUT - 1);
    assert!(core.outcome(job).is_none());
    core.pass(1);
    core.failed(job, JobError::TimedOut);
    core.requests_of(0, "unanswered", 1);
    core.jobs("timeout", 1);
    // Whether the server is there at all is asked at once. Its answer, when it comes, belongs to nobody.
    let ping = core.requests(at).remove(0);
    core.reply(at, ping.id, opcode::PONG, b"");
    core.sign(at, request.id);
    core.outstanding(0, 0);
}

#[test]
fn without_a_connection_handshakes_wait_for_one_up_to_their_deadline() {
    let mut core = Core::new(1);
    core.dispatch.closed(0, "gone", core.now);
    let (late, waiting) = (core.submit(), {
        core.now += TIMEOUT / 2;
        core.submit()
    });
    core.pass(TIMEOUT / 2);
    core.failed(late, JobError::Unavailable);
    core.connect(0);
    let (at, request) = core.request();
    core.sign(at, request.id);
    core.signed(waiting);
    core.jobs("unavailable", 1);
    core.counts("propylon_signer_unsent{signer=\"vault\"}", 0);
}

#[test]
fn a_full_connection_makes_others_wait_for_room() {
    let mut core = Core::new(1);
    let jobs: Vec<JobId> = (0..Channel::OUTSTANDING_MAX + 10).map(|_| core.submit()).collect();
    let requests = core.requests(0);
    assert_eq!(requests.len(), Channel::OUTSTANDING_MAX);
    core.counts("propylon_signer_unsent{signer=\"vault\"}", 10);
    for request in &requests[..10] {
        core.sign(0, request.id);
    }
    assert_eq!(core.requests(0).len(), 10);
    jobs[..10].iter().for_each(|job| core.signed(*job));
}

#[test]
fn there_are_no_more_jobs_than_handshakes_that_may_be_parked() {
    let mut core = Core::new(1);
    let first = core.submit();
    for _ in 1..JOBS_MAX {
        core.submit();
    }
    let remote = RemoteKey::new(0, core.key.public_info()).unwrap();
    let more = core.dispatch.submit(remote, SCHEME, DIGEST.into(), core.now);
    assert_eq!(more, Err(JobError::Unavailable));
    core.jobs("full", 1);
    let _ = core.dispatch.release(first);
    core.submit();
}

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let mut core = Core::new(2);
    for _ in 0..50_000 {
        let job = core.submit();
        let _ = core.dispatch.release(job);
        core.now += 1;
        (0..2).for_each(|at| drop(core.requests(at)));
    }
    assert!(core.dispatch.deadlines.len() <= 2048 && core.dispatch.hedges.len() <= 2048);
    assert!(core.dispatch.unsent.len() <= 2048);
    assert!(core.dispatch.slots.len() <= 2);
}

#[test]
fn an_idle_connection_sends_a_ping_before_the_server_would_close_it() {
    let mut core = Core::new(1);
    let began = core.now;
    let mut pings = 0;
    while core.now < began + 60_000_000 {
        core.pass(100 * MILLI);
        for request in core.requests(0) {
            assert_eq!(request.opcode, opcode::PING);
            pings += 1;
            core.reply(0, request.id, opcode::PONG, b"");
        }
    }
    assert!((3..=6).contains(&pings), "{pings}");
}

#[test]
fn a_connection_that_brings_nothing_for_a_long_time_is_closed_and_one_that_forgets_is_not() {
    let mut core = Core::with(2, 1, None, Verify::All);
    let mut jobs = Vec::new();
    while jobs.iter().all(|(at, _)| *at != 0) || jobs.iter().all(|(at, _)| *at != 1) {
        core.submit();
        jobs.push(core.request());
    }
    let end = core.now + micros(SILENCE_MAX) + 500 * MILLI;
    while core.now < end {
        core.pass(100 * MILLI);
        // The second answers pings, and forgets all else.
        for request in core.requests(1) {
            core.reply(1, request.id, opcode::PONG, b"");
        }
        core.requests(0);
        core.dispatch.channel(1).last_heard = core.now;
    }
    assert_eq!(core.dispatch.channel(0).condemned, Some("it has gone silent"));
    assert_eq!(core.dispatch.channel(1).condemned, None);
    core.outstanding(1, 0);
}

#[test]
fn a_connection_that_does_not_come_up_is_given_up() {
    let mut core = Core::new(1);
    core.dispatch.closed(0, "gone", core.now);
    core.dispatch.begin(0, core.now);
    core.pass(micros(OPENING) - 1);
    assert_eq!(core.dispatch.channel(0).condemned, None);
    core.pass(micros(ROUND));
    assert!(core.dispatch.channel(0).condemned.is_some());
}

#[test]
fn whatever_servers_do_every_handshake_ends_once_and_nothing_is_left() {
    for seed in 0..30 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut core = Core::with(3, 2, Some(HEDGE), Verify::All);
        let mut open: Vec<JobId> = Vec::new();
        let mut asked: Vec<(usize, u32, u8)> = Vec::new();
        for _ in 0..2_000 {
            core.now += random.u64(..3 * MILLI);
            match random.u8(..20) {
                0..=7 if open.len() < 500 => open.push(core.submit()),
                8..=14 if !asked.is_empty() => {
                    let (at, id, sent) = asked.swap_remove(random.usize(..asked.len()));
                    match random.u8(..8) {
                        _ if sent == opcode::PING => core.reply(at, id, opcode::PONG, b""),
                        0 => core.reply(at, id, opcode::ERROR, &[random.u8(..14)]),
                        1 => core.reply(at, id, opcode::SUCCESS, b"not a signature"),
                        2 => {}
                        _ => core.sign(at, id),
                    }
                }
                15 if !open.is_empty() => {
                    let job = open.swap_remove(random.usize(..open.len()));
                    let _ = core.dispatch.release(job);
                }
                16 if random.u8(..10) == 0 => {
                    let at = random.usize(..6);
                    core.dispatch.closed(at, "chance", core.now);
                    asked.retain(|(other, ..)| *other != at);
                    core.connect(at);
                }
                _ => core.pass(random.u64(..10 * MILLI)),
            }
            for at in 0..6 {
                let requests = core.requests(at);
                asked.extend(requests.into_iter().map(|request| (at, request.id, request.opcode)));
            }
            let dispatch = &mut core.dispatch;
            open.retain(|job| match dispatch.poll(*job, std::task::Waker::noop()) {
                Ok(_) => {
                    let _ = dispatch.release(*job);
                    false
                }
                Err(_) => true,
            });
        }
        core.pass(TIMEOUT);
        for job in open {
            assert!(core.outcome(job).is_some(), "seed {seed}: a job outlives its deadline");
            let _ = core.dispatch.release(job);
        }
        (0..6).for_each(|at| core.dispatch.closed(at, "the end", core.now));
        assert_eq!(core.dispatch.slots.len(), core.dispatch.free.len(), "seed {seed}");
        (0..3).for_each(|server| core.outstanding(server, 0));
    }
}

#[test]
fn connections_to_an_old_address_end_one_by_one_when_nothing_is_on_its_way() {
    let mut core = Core::with(1, 2, None, Verify::Nothing);
    let (old, new): (SocketAddr, SocketAddr) = ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap());
    (0..2).for_each(|at| core.dispatch.channel(at).address = Some(old));
    let busy = core.submit();
    let (at, request) = core.request();
    core.dispatch.leave(0, |address| address == old);
    let condemned = |core: &mut Core| [0, 1].map(|at| core.dispatch.channel(at).condemned.is_some());
    let round = |core: &mut Core| core.dispatch.leave_next(0);
    // The first is told to; only when it has answered what it was asked for it ends, and is asked for nothing more.
    round(&mut core);
    let next = core.submit();
    assert_eq!(core.request().0, 1);
    drop(core.dispatch.release(next));
    round(&mut core);
    assert_eq!(condemned(&mut core), [at != 0, false]);
    let signature = core.signature();
    core.reply(at, request.id, opcode::SUCCESS, &signature);
    drop(core.dispatch.release(busy));
    round(&mut core);
    assert_eq!(condemned(&mut core), [true, false]);
    // As long as the first has not come up again, the second stays.
    core.dispatch.closed(0, "condemned", core.now);
    (0..8).for_each(|_| round(&mut core));
    assert!(!condemned(&mut core)[1]);
    core.connect(0);
    core.dispatch.channel(0).address = Some(new);
    (0..2).for_each(|_| round(&mut core));
    assert!(!condemned(&mut core)[0]);
    assert_eq!(core.dispatch.channel(1).leave, Leave::Now);
}
