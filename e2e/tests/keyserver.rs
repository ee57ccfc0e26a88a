//! The key server: what it signs, what it refuses, and what it does not let be done to it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::keyserver::{KeyServer, Link, frame, framed, write_key};
use propylon_e2e::program::run;
use propylon_e2e::{Scratch, binaries, eventually, holds};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustix::process::Signal;

const PING: u8 = 0xf1;
const ECDSA_SHA256: u8 = 0x15;
const PSS_SHA256: u8 = 0x35;
const DIGEST: (u8, &[u8]) = (0x12, &[7; 32]);
/// Whoever has this certificate may ask for what is only done by name as well.
const WEAK_AS_WELL: &str = "[[client]]\ncommon_name = \"engine\"\n\
    operations = [\"default\", \"rsa-decrypt\", \"rsa-pkcs1-md5sha1\", \"ecdsa-md5sha1\"]\n";

#[test]
fn every_operation_is_answered_with_signatures_that_verify() {
    let server = KeyServer::start("");
    for (key, operation, tls) in [
        ("ec", "ecdsa-sha256", "1.2"),
        ("ec", "ecdsa-sha512", "1.3"),
        ("ec384", "ecdsa-sha384", "1.3"),
        ("rsa", "rsa-pss-sha256", "1.3"),
        ("rsa", "rsa-pkcs1-sha256", "1.2"),
        ("ed", "ed25519", "1.3"),
    ] {
        let more = ["--count", "40", "--outstanding", "16", "--connections", "2", "--tls", tls];
        server.bench(key, operation, &more).ok();
    }
    assert_eq!(server.metric("propylon_keyserver_errors_total{code=\"0x01\",meaning=\"cryptographic failure\"}"), 0);
}

#[test]
fn thousands_of_operations_of_every_sort_at_once_verify_with_kernels_and_without() {
    for switch in [true, false] {
        let server = KeyServer::start(&format!("[ecdsa]\nbatch = {switch}\n[rsa]\nbatch = {switch}\n{WEAK_AS_WELL}"));
        std::thread::scope(|scope| {
            for (key, operation, count) in [
                ("ec", "ecdsa-sha256", "1500"),
                ("rsa", "rsa-pss-sha256", "500"),
                ("rsa", "rsa-pkcs1-sha256", "300"),
                ("rsa", "rsa-decrypt", "300"),
                ("ed", "ed25519", "400"),
                ("ec384", "ecdsa-sha384", "200"),
            ] {
                let server = &server;
                let more = ["--count", count, "--outstanding", "32", "--connections", "2"];
                scope.spawn(move || server.bench(key, operation, &more).ok());
            }
        });
        let done = |work: &str, by: &str| {
            server.metric(&format!("propylon_keyserver_operations_total{{work=\"{work}\",by=\"{by}\"}}"))
        };
        for (work, kernel, least) in [("p256", "p256", 1500), ("rsa", "rsa", 1100)] {
            let is_used = server.metric(&format!("propylon_keyserver_kernel{{kernel=\"{kernel}\"}}")) == 1;
            assert!(switch || !is_used, "{kernel}");
            let (in_lanes, by_awslc) = (done(work, "lanes"), done(work, "aws-lc"));
            assert!(in_lanes + by_awslc >= least, "{work}: {in_lanes}, {by_awslc}");
            // Alone are few of so many.
            assert_eq!(in_lanes > least / 2, is_used, "{work}: {in_lanes}, {by_awslc}");
        }
        assert_eq!(server.metric("propylon_keyserver_checks_total{outcome=\"wrong\"}"), 0);
        assert_eq!(server.metric("propylon_keyserver_bad_lanes_total"), 0);
    }
}

#[test]
fn a_client_that_asks_for_all_of_rsa_leaves_another_its_part() {
    /// More than the queue has places.
    const GREEDY_LINKS: usize = 5;
    const EACH: u32 = 1024;
    let server = KeyServer::start("");
    let ski = server.ski("rsa");
    let is_over = AtomicBool::new(false);
    let request = |id| frame(PSS_SHA256, id, &[DIGEST, (0x04, &ski)]);
    std::thread::scope(|scope| {
        for _ in 0..GREEDY_LINKS {
            let mut link = server.link();
            link.send(&(0..EACH).flat_map(request).collect::<Vec<_>>()).expect("requests are sent");
            let (is_over, request) = (&is_over, &request);
            scope.spawn(move || {
                // Another for each that was answered, with a signature or a refusal.
                for _ in 0..200_000 {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let id = link.receive().expect("a reply").id;
                    link.send(&request(id)).expect("a request is sent");
                }
            });
        }
        let refused = "propylon_keyserver_refused_total{queue=\"rsa\",reason=\"full\"}";
        holds("the greedy client has filled the queue", || server.metric(refused) > 0);
        let mut other = server.link_as("other.pem", rustls::DEFAULT_VERSIONS).expect("a link");
        // The queue may have room just when a request of the other comes, and then nothing is put out for it.
        let displaced = "propylon_keyserver_refused_total{queue=\"rsa\",reason=\"displaced\"}";
        let mut replies: Vec<u8> = Vec::new();
        while replies.len() < 50 || (server.metric(displaced) == 0 && replies.len() < 2_000) {
            replies.extend((0..50).map(|id| other.ask(&request(id)).opcode));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(replies.iter().all(|opcode| *opcode == 0xf0), "{replies:x?}");
        assert!(server.metric(displaced) > 0, "nothing was put out for the other");
    });
    holds("it is told where it is wrong", || {
        server.says("error: queue \"rsa\": operations are refused: the queue is full")
    });
    assert!(server.says("[keyserver-queue-full]; add cores"), "with what to do");
}

/// What is wrong is told in the log, and by one line of its kind.
#[test]
fn what_clients_may_not_do_is_told_in_the_log_and_not_each_time() {
    let server = KeyServer::start("");
    let mut link = server.link();
    for id in 0..200 {
        let unknown = link.ask(&frame(ECDSA_SHA256, id, &[DIGEST, (0x04, &[9; 20])]));
        assert_eq!(unknown.opcode, 0xff);
    }
    link.ask(&frame(0x03, 1, &[(0x12, &[7; 20]), (0x04, &server.ski("rsa"))]));
    for name in ["[keyserver-unknown-key]", "[keyserver-denied]"] {
        holds("it is told", || server.says(name));
    }
    let told = server.stderr().iter().filter(|line| line.contains("[keyserver-unknown-key]; compare")).count();
    assert_eq!(told, 1);
}

#[test]
fn each_mistake_has_its_error_and_the_link_goes_on() {
    let server = KeyServer::start(WEAK_AS_WELL);
    let (ec, rsa, ed) = (server.ski("ec"), server.ski("rsa"), server.ski("ed"));
    let mut link = server.link();
    let mut id = 0;
    for (opcode, ski, payload, error) in [
        (ECDSA_SHA256, &[1; 20][..], &[7; 32][..], 0x02),
        (ECDSA_SHA256, &[0; 20], &[7; 32], 0x08),
        (ECDSA_SHA256, &[1; 19], &[7; 32], 0x08),
        (0x05, &ec, &[7; 32], 0x01),
        (ECDSA_SHA256, &rsa, &[7; 32], 0x01),
        (PSS_SHA256, &ec, &[7; 32], 0x01),
        (0x18, &ec, &[7; 32], 0x01),
        (ECDSA_SHA256, &ed, &[7; 32], 0x01),
        (0x01, &ed, &[7; 32], 0x01),
        (0x05, &rsa, &[7; 31], 0x01),
        (PSS_SHA256, &rsa, &[7; 33], 0x01),
        (0x02, &rsa, &[7; 35], 0x01),
        (0x01, &rsa, &[0xff; 256], 0x01),
        (0x01, &rsa, &[0x01; 257], 0x01),
        (0x08, &rsa, &[7; 32], 0x05),
        (0x24, &rsa, &[7; 32], 0x05),
        (0x99, &rsa, &[7; 32], 0x05),
        (0x21, &rsa, &[7; 32], 0x08),
        (0x23, &rsa, &[7; 32], 0x08),
        (0xf0, &rsa, &[7; 32], 0x06),
        (0xff, &rsa, &[7; 32], 0x06),
    ] {
        id += 1;
        let reply = link.ask(&frame(opcode, id, &[(0x12, payload), (0x04, ski)]));
        let told = (reply.id, reply.opcode, reply.payload.as_slice(), reply.bytes);
        assert_eq!(told, (id, 0xff, &[error][..], 1024), "opcode {opcode:#x}");
    }
    let reply = link.ask(&framed(9, &[]));
    assert_eq!((reply.id, reply.opcode, reply.payload), (9, 0xff, vec![0x05]), "no opcode at all");
    let reply = link.ask(&frame(ECDSA_SHA256, 10, &[(0x12, &[7; 32])]));
    assert_eq!((reply.opcode, reply.payload), (0xff, vec![0x08]), "no SKI at all");
}

#[test]
fn odd_but_lawful_requests_are_served() {
    let server = KeyServer::start(WEAK_AS_WELL);
    let (ec, rsa, ed) = (server.ski("ec"), server.ski("rsa"), server.ski("ed"));
    let mut link = server.link();
    // Digests of any length for ECDSA; no ciphertext is the number zero; 36 bytes of two digests; a long message.
    let long = vec![7; 60_000];
    for (opcode, ski, payload, length) in [
        (ECDSA_SHA256, &ec, &[][..], None),
        (0x12, &ec, &[7; 36], None),
        (0x17, &ec, &[7; 64], None),
        (0x01, &rsa, &[], Some(256)),
        (0x01, &rsa, &[2], Some(256)),
        (0x02, &rsa, &[7; 36], Some(256)),
        (0x18, &ed, &[], Some(64)),
        (0x18, &ed, &long, Some(64)),
    ] {
        let reply = link.ask(&frame(opcode, 1, &[(0x12, payload), (0x04, ski)]));
        assert_eq!(reply.opcode, 0xf0, "opcode {opcode:#x}: {:x?}", reply.payload);
        assert!(length.is_none_or(|length| length == reply.payload.len()), "opcode {opcode:#x}");
    }
    // Any order, unknown items twice, stray bytes, another version.
    let mut body = vec![0x99, 0, 1, 7, 0x99, 0, 1, 7, 0x12, 0, 2];
    body.extend_from_slice(b"ab\x11\0\x01\xf1\x11");
    let mut odd = framed(3, &body);
    odd[..2].copy_from_slice(&[9, 9]);
    let reply = link.ask(&odd);
    assert_eq!((reply.id, reply.opcode, reply.payload.as_slice(), reply.bytes), (3, 0xf2, &b"ab"[..], 1024));
    // The largest frame, and the sizes around the padding.
    for length in [0, 1, 1006, 1007, 1008, 1009, 65_528] {
        let reply = link.ask(&frame(PING, 4, &[(0x12, &vec![5; length])]));
        let bytes = match length {
            ..=1006 => 1024,
            1007 => 1025,
            1008 => 1026,
            _ => 15 + length,
        };
        assert_eq!((reply.opcode, reply.payload.len(), reply.bytes), (0xf2, length, bytes));
    }
}

#[test]
fn frames_come_in_any_split_and_any_number() {
    let server = KeyServer::start("");
    let ski = server.ski("ec");
    let requests: Vec<u8> = (0..5).flat_map(|id| frame(ECDSA_SHA256, id, &[DIGEST, (0x04, &ski)])).collect();
    for step in [1, 7, requests.len()] {
        let mut link = server.link();
        for part in requests.chunks(step) {
            link.send(part).expect("a part is sent");
        }
        let mut ids: Vec<u32> = (0..5).map(|_| link.receive().expect("a reply").id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3, 4], "in steps of {step}");
    }
}

#[test]
fn what_is_no_frame_ends_the_link_without_a_reply() {
    let server = KeyServer::start("");
    for body in [
        &b"\x11\0\x01\xf1\x12\0\x09ab"[..],
        b"\x11\0\x01\xf1\x11\0\x01\xf1",
        b"\x11\0\x01\xf1\x20\0\0\x20\0\0",
        b"\x11\0\x02\xf1\xf1",
        b"\x11\0\x01\xf1\x03\0\x03abc",
        b"\x11\0\x01\xf1\x17\0\0",
    ] {
        let mut link = server.link();
        link.send(&framed(1, body)).expect("it is sent");
        assert!(link.is_closed(), "{body:x?}");
    }
    // What came before it is answered.
    let mut link = server.link();
    link.send(&[frame(PING, 1, &[]), framed(2, b"\x11\0\0")].concat()).expect("both are sent");
    assert_eq!(link.receive().expect("a pong").id, 1);
    assert!(link.is_closed());
    // A link is counted when its task is over, which its client may see a moment earlier.
    holds("the broken links are counted", || {
        server.metric("propylon_keyserver_connections_ended_total{reason=\"malformed\"}") == 7
    });
}

#[test]
fn only_who_has_a_certificate_of_the_authority_gets_in() {
    let server = KeyServer::start("");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        assert!(server.link_as("", &[version]).is_err(), "without a certificate");
        assert!(server.link_as("stranger.pem", &[version]).is_err(), "another authority's");
        assert!(server.link_as("server.pem", &[version]).is_err(), "one that is for servers");
        server.link_as("other.pem", &[version]).expect("one of the authority's");
    }
    holds("the handshakes are counted", || {
        server.metric("propylon_keyserver_connections_ended_total{reason=\"handshake\"}") == 6
    });
}

/// The two suites of stock servers, and openssl as a peer.
#[test]
fn openssl_speaks_to_it_in_both_versions() {
    let server = KeyServer::start("");
    let port = server.address().port();
    for arguments in [&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"][..], &["-tls1_3"]] {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-verify_return_error", "-connect", &format!("127.0.0.1:{port}")]);
        command.arg("-CAfile").arg(server.scratch.join("ca.pem")).arg("-cert").arg(server.scratch.join("engine.pem"));
        command.arg("-key").arg(server.scratch.join("engine.pem")).args(arguments);
        // A ping, and then what is no frame, so that the server ends the link.
        let said =
            run(command, &[frame(PING, 77, &[DIGEST]), framed(1, b"\x11\0\0")].concat(), Duration::from_secs(20));
        let pong = [&[1, 0, 3, 248, 0, 0, 0, 77, 0x11, 0, 1, 0xf2, 0x12, 0, 32][..], &[7; 32]].concat();
        assert!(said.stdout.starts_with(&pong), "{arguments:?}: {:x?}\n{}", said.stdout, said.stderr);
        assert_eq!(said.stdout.len(), 1024);
    }
    let mut command = Command::new("openssl");
    command.args(["s_client", "-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256", "-connect"]);
    command.arg(format!("127.0.0.1:{port}"));
    assert!(!run(command, b"", Duration::from_secs(20)).status.success());
}

#[test]
fn a_client_does_not_learn_of_keys_that_it_may_not_use() {
    let server = KeyServer::start(
        "[[client]]\ncommon_name = \"engine\"\n\
         [[client]]\nsan = \"other.test\"\nkeys = [\"keys/rsa.pem\"]\n",
    );
    let ask = |link: &mut Link, opcode, key| link.ask(&frame(opcode, 1, &[DIGEST, (0x04, &server.ski(key))]));
    let mut engine = server.link();
    assert_eq!(ask(&mut engine, ECDSA_SHA256, "ec").opcode, 0xf0);
    let mut other = server.link_as("other.pem", rustls::DEFAULT_VERSIONS).expect("it may come in");
    assert_eq!(ask(&mut other, PSS_SHA256, "rsa").opcode, 0xf0);
    assert_eq!(ask(&mut other, ECDSA_SHA256, "ec").payload, [0x02]);
    assert_eq!(other.ask(&frame(ECDSA_SHA256, 1, &[DIGEST, (0x04, &[9; 20])])).payload, [0x02]);
}

#[test]
fn what_is_weak_is_done_by_name_only_and_for_the_keys_that_it_is_allowed_for() {
    const DENIED: &str = "propylon_keyserver_denied_total{reason=\"operation\"}";
    let weak: [(u8, &str, usize); 9] = [
        (0x01, "rsa", 256),
        (0x02, "rsa", 36),
        (0x03, "rsa", 20),
        (0x04, "rsa", 28),
        (0x12, "ec", 36),
        (0x13, "ec", 20),
        (0x14, "ec", 28),
        (0x13, "ec384", 20),
        (0x14, "ec384", 28),
    ];
    let allowed = "[[client]]\ncommon_name = \"other\"\n\
        [[client]]\nsan = \"other.test\"\nkeys = [\"keys/rsa.pem\"]\noperations = [\"rsa-decrypt\"]\n";
    for (more, identity) in [("", "engine.pem"), (allowed, "other.pem")] {
        let server = KeyServer::start(more);
        let mut link = server.link_as(identity, rustls::DEFAULT_VERSIONS).expect("a link");
        let mut denied = 0;
        for (opcode, key, length) in weak {
            let mut payload = vec![7; length];
            payload[0] = 0;
            let reply = link.ask(&frame(opcode, 1, &[(0x12, &payload), (0x04, &server.ski(key))]));
            if opcode == 0x01 && identity == "other.pem" {
                assert_eq!((reply.opcode, reply.payload.len()), (0xf0, 256));
            } else {
                assert_eq!((reply.opcode, reply.payload.as_slice()), (0xff, &[0x05][..]), "{opcode:#x} {key}");
                denied += 1;
            }
        }
        assert_eq!(server.metric(DENIED), denied);
        // What engines ask for is done as ever.
        for (opcode, key, length) in
            [(0x15, "ec", 32), (0x16, "ec384", 48), (0x35, "rsa", 32), (0x07, "rsa", 64), (0x18, "ed", 9)]
        {
            let reply = link.ask(&frame(opcode, 2, &[(0x12, &vec![7; length]), (0x04, &server.ski(key))]));
            assert_eq!(reply.opcode, 0xf0, "{opcode:#x} {key}");
        }
    }
}

#[test]
fn a_client_has_its_rate_over_all_its_links_and_others_have_theirs() {
    let server =
        KeyServer::start("[[client]]\ncommon_name = \"engine\"\nrate = 10\n[[client]]\ncommon_name = \"other\"\n");
    let ski = server.ski("ec");
    let asked = Instant::now();
    let mut links = [server.link(), server.link()];
    let replies: Vec<_> =
        (0..200).map(|id| links[id as usize % 2].ask(&frame(ECDSA_SHA256, id, &[DIGEST, (0x04, &ski)]))).collect();
    let done = replies.iter().filter(|reply| reply.opcode == 0xf0).count();
    // Ten at once, and ten for each second that this has taken.
    let most = 10 + 10 * (asked.elapsed().as_secs() as usize + 1);
    assert!((10..=most).contains(&done), "{done} of {most}");
    assert!(replies.iter().all(|reply| reply.opcode == 0xf0 || reply.payload == [0x08]));
    assert_eq!(server.metric("propylon_keyserver_denied_total{reason=\"rate\"}"), 200 - done as u64);
    let mut other = server.link_as("other.pem", rustls::DEFAULT_VERSIONS).expect("a link");
    assert!((0..200).all(|id| other.ask(&frame(ECDSA_SHA256, id, &[DIGEST, (0x04, &ski)])).opcode == 0xf0));
}

#[test]
fn connections_that_show_no_certificate_lock_no_engine_out() {
    const PLACES: usize = 64;
    let server = KeyServer::start(&format!(
        "[server]\nbind = \"127.0.0.1:0\"\nidentity = \"server.pem\"\nca = \"ca.pem\"\nworkers = 2\nconnections_max = {PLACES}\n"
    ));
    let mut first = server.link();
    // More than there are places, from the engine's own address.
    let idle: Vec<_> =
        (0..2 * PLACES).map(|_| std::net::TcpStream::connect(server.address()).expect("a connection")).collect();
    let accepted = || server.metric("propylon_keyserver_connections_total") > 2 * PLACES as u64;
    holds("all have been accepted", accepted);
    let mut later: Vec<Link> = (0..4).map(|_| server.link()).collect();
    for link in later.iter_mut().chain([&mut first]) {
        assert_eq!(link.ask(&frame(PING, 1, &[])).opcode, 0xf2);
    }
    let ended = |reason| server.metric(&format!("propylon_keyserver_connections_ended_total{{reason=\"{reason}\"}}"));
    // An end is counted a moment after its connection is.
    holds("most have made way", || ended("handshake-displaced") as usize >= PLACES);
    assert!(server.metric("propylon_keyserver_handshaking") as usize <= PLACES / 2);
    drop(idle);
    holds("they are gone", || server.metric("propylon_keyserver_handshaking") == 0);
}

#[test]
fn replies_come_as_they_are_ready_and_cheap_ones_do_not_wait_for_rsa() {
    let server = KeyServer::start("");
    let (ec, rsa) = (server.ski("ec"), server.ski("rsa"));
    let mut link = server.link();
    let mut requests: Vec<u8> = (0..200).flat_map(|id| frame(PSS_SHA256, id, &[DIGEST, (0x04, &rsa)])).collect();
    requests.extend(frame(ECDSA_SHA256, 1000, &[DIGEST, (0x04, &ec)]));
    link.send(&requests).expect("all are sent");
    let replies: Vec<u32> = (0..201).map(|_| link.receive().expect("a reply").id).collect();
    let place = replies.iter().position(|id| *id == 1000).expect("it is answered");
    assert!(place < 100, "its reply was number {place}");
}

#[test]
fn a_client_that_does_not_read_is_not_read_from_and_takes_no_memory() {
    const MEBIBYTE: u64 = 1 << 20;
    const CLIENTS: usize = 12;
    let server = KeyServer::start("");
    let mut well = server.link();
    let mut silent: Vec<Link> = (0..4).map(|_| never_reading(&server)).collect();
    // Each worker has got its share of the allocator's pages by now.
    let before = server.rss();
    silent.extend((0..CLIENTS).map(|_| never_reading(&server)));
    let grown = server.rss().saturating_sub(before);
    assert!(grown < CLIENTS as u64 * 2 * MEBIBYTE, "{grown} bytes more with {CLIENTS} more clients that do not read");
    assert_eq!(well.ask(&frame(PING, 5, &[])).id, 5);
    assert!(server.metric("propylon_keyserver_read_stops_total") >= silent.len() as u64);
}

/// Sends pings until no more of them are taken.
#[track_caller]
fn never_reading(server: &KeyServer) -> Link {
    let ping = frame(PING, 1, &[(0x12, &vec![5; 60_000])]);
    let mut link = server.link();
    link.0.sock.set_write_timeout(Some(Duration::from_millis(300))).expect("a limit");
    let started = Instant::now();
    let mut sent = 0;
    while link.0.write_all(&ping).and_then(|()| link.0.flush()).is_ok() {
        sent += ping.len();
        assert!(started.elapsed() < Duration::from_secs(20), "it takes all that it is sent: {sent} bytes");
    }
    link
}

#[test]
fn a_key_is_replaced_while_it_is_in_use_and_a_bad_file_changes_nothing() {
    let server = KeyServer::start("");
    let old = server.ski("ec");
    let mut link = server.link();
    let sign = |link: &mut Link, ski: &[u8; 20]| link.ask(&frame(ECDSA_SHA256, 1, &[DIGEST, (0x04, ski)])).opcode;
    assert_eq!(sign(&mut link, &old), 0xf0);
    fs::write(server.scratch.join("keys/ec.pem"), "-----BEGIN PRIVATE KEY-----\n").expect("a bad file");
    server.signal(Signal::HUP);
    holds("the bad file is complained about", || server.says("the keys that were in it stay in service"));
    assert_eq!(sign(&mut link, &old), 0xf0);
    holds("the broken file is counted", || server.metric("propylon_keyserver_key_faults_total") == 1);
    write_key(&server.scratch, "ec", KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key"));
    let new = server.ski("ec");
    // Nobody is told: the files are looked at.
    holds("the new key is served", || sign(&mut link, &new) == 0xf0);
    assert_eq!(sign(&mut link, &old), 0xff);
    server.bench("ec", "ecdsa-sha256", &["--count", "10"]).ok();
}

#[test]
fn a_key_that_is_a_link_is_followed_to_where_it_leads_next() {
    // As certbot has it: a link of `live` leads to a file of `archive`, and after a renewal to the next one.
    let (certbot, elsewhere) = (Scratch::new(), Scratch::new());
    for folder in ["live/shop", "archive/shop"] {
        fs::create_dir_all(certbot.join(folder)).expect("a folder");
    }
    let link = certbot.join("live/shop/privkey.pem");
    let renew = |scratch: &Scratch, name: &str| {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let file = scratch.write(name, key.serialize_pem());
        let target = file.strip_prefix(certbot.path()).map_or(file.clone(), |file| Path::new("../..").join(file));
        symlink(target, certbot.join("live/shop/new")).expect("a link");
        fs::rename(certbot.join("live/shop/new"), &link).expect("a rename");
    };
    renew(&certbot, "archive/shop/privkey1.pem");
    let server = KeyServer::start(&format!("[keys]\npaths = [\"keys/\", {link:?}]\nwatch = false\n"));
    let ski = || {
        let keys: Vec<serde_json::Value> =
            serde_json::from_slice(&server.command("keys", &["--json"]).ok().stdout).expect("JSON");
        let found = keys.iter().find(|key| key["file"].as_str().is_some_and(|file| file.ends_with("privkey.pem")));
        let hex = found.and_then(|found| found["ski"].as_str()).expect("the key").to_owned();
        std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hexadecimal digits"))
    };
    let mut client = server.link();
    let mut sign = |ski: &[u8; 20]| client.ask(&frame(ECDSA_SHA256, 1, &[DIGEST, (0x04, ski)])).opcode;
    let old = ski();
    assert_eq!(sign(&old), 0xf0);
    renew(&certbot, "archive/shop/privkey2.pem");
    let new = ski();
    assert_ne!(old, new);
    server.signal(Signal::HUP);
    holds("the renewed key is served", || sign(&new) == 0xf0);
    assert_eq!(sign(&old), 0xff);
    // Where nothing led at the start it is this process that denies itself the file, which is told.
    renew(&elsewhere, "privkey3.pem");
    server.signal(Signal::HUP);
    if server.says("Landlock: enforced") {
        holds("it is told", || {
            server.says(&format!("Landlock keeps this process from {}", elsewhere.path().display()))
        });
    }
    assert_eq!(sign(&new), 0xf0, "what was there stays in service");
}

#[test]
fn what_is_in_work_is_finished_before_the_end() {
    let mut server = KeyServer::start("");
    let rsa = server.ski("rsa");
    let mut link = server.link();
    let requests: Vec<u8> = (0..50).flat_map(|id| frame(PSS_SHA256, id, &[DIGEST, (0x04, &rsa)])).collect();
    link.send(&requests).expect("all are sent");
    let first = link.receive().expect("a reply");
    server.signal(Signal::TERM);
    assert_eq!(first.opcode, 0xf0);
    for _ in 1..50 {
        assert_eq!(link.receive().expect("a reply").opcode, 0xf0);
    }
    assert!(link.is_closed());
    server.ends();
}

#[test]
fn no_thread_is_without_its_filters_and_nobody_can_look_into_the_process() {
    let server = KeyServer::start("");
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("a running server");
    let statuses: Vec<String> = tasks
        .map(|task| fs::read_to_string(task.expect("a thread").path().join("status")).expect("its status"))
        .collect();
    assert!(statuses.len() >= 7, "two workers, their lines and the main thread");
    for status in &statuses {
        assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    }
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("its limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("one is of core dumps");
    // A limit of a byte, so that the kernel starts no program either that cores are piped to; 0 where no more is allowed.
    let limits: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
    assert!(limits == ["1", "1"] || limits == ["0", "0"], "{core}");
}

#[test]
fn check_and_keys_tell_what_is_there_and_what_is_wrong() {
    let server = KeyServer::start("");
    let said = server.command("check", &[]).ok();
    assert!(said.text().trim_end().ends_with("keyserver.toml: ok"), "{}", said.text());
    let said = server.command("keys", &[]).ok();
    assert_eq!(said.text().lines().filter(|line| line.contains("  loaded  ")).count(), 4, "{}", said.text());
    let mode = |mode| fs::set_permissions(server.scratch.join("keys/ed.pem"), fs::Permissions::from_mode(mode));
    mode(0o644).expect("a mode");
    let said = server.command("check", &[]);
    let complaint = "ed.pem: every account of this machine may read or change this private key";
    assert!(said.status.code() == Some(1) && said.stderr.contains(complaint), "{}", said.stderr);
    let strict = fs::read_to_string(server.scratch.join("keyserver.toml")).expect("our own file");
    let lax = strict.replacen("[server]\n", "[server]\nallow_world_readable_keys = true\n", 1);
    server.scratch.write("keyserver.toml", lax);
    let said = server.command("check", &[]).ok();
    assert!(said.stderr.contains(complaint), "a warning: {}", said.stderr);
    server.scratch.write("keyserver.toml", strict);
    mode(0o640).expect("a mode");
    server.scratch.write("keys/bad.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    let said = server.command("keys", &["--json"]);
    assert_eq!(said.status.code(), Some(1));
    let listed: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(5));
    assert_eq!(listed[4]["loaded"], false);
    let text = "[server]\nbind = \"127.0.0.1\"\nidentity = \"none.pem\"\nca = \"ca.pem\"\nidle_timeuot = \"5s\"\n\
                [keys]\npaths = [\"keys/\", \"more/\"]\n[[client]]\nkeys = [\"x\"]\n";
    server.scratch.write("keyserver.toml", text);
    let said = server.command("check", &[]);
    assert_eq!(said.status.code(), Some(1));
    for part in [
        "keyserver.toml:2:8: \"127.0.0.1\" has no port",
        "keyserver.toml:3:12:",
        "keyserver.toml:5:1: unknown key `idle_timeuot` in [server]; did you mean `idle_timeout`?",
        "keyserver.toml:7:10:",
        "keyserver.toml:7:19:",
        "keyserver.toml:8:1: nothing says which certificates this client has",
    ] {
        assert!(said.stderr.contains(part), "no {part} in:\n{}", said.stderr);
    }
}

#[test]
fn the_example_is_content_with_the_files_it_names() {
    let server = KeyServer::start("");
    let copy = |from: &str, to: &str| fs::copy(server.scratch.join(from), server.scratch.join(to)).expect("a copy");
    copy("server.pem", "keyserver.pem");
    copy("ca.pem", "engines-ca.pem");
    copy("keys/ec.pem", "keys/shop.ec.pem");
    copy("keys/rsa.pem", "keys/shop.rsa.pem");
    server.scratch.write("keyserver.toml", include_str!("../../examples/keyserver.toml"));
    let said = server.command("check", &[]).ok();
    assert!(said.text().trim_end().ends_with("keyserver.toml: ok"), "{}{}", said.text(), said.stderr);
}

/// What a unit says for a key, in the order of its lines.
fn unit_says<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn the_example_of_a_key_server_runs_where_its_unit_runs_it() {
    let unit = include_str!("../../examples/propylon-keyserver.service");
    let example = include_str!("../../examples/keyserver.toml");
    // Every file that the example names is installed below the unit's folder, for the unit's group.
    let config = unit_says(unit, "ExecStart")[0].rsplit_once(" -c ").expect("a configuration").1;
    let folder = Path::new(config).parent().expect("a folder").to_str().expect("plain letters");
    assert_eq!(Path::new(config).file_name().and_then(|name| name.to_str()), Some("keyserver.toml"));
    let (user, group) = (unit_says(unit, "User")[0], unit_says(unit, "Group")[0]);
    assert!(unit.contains(&format!("useradd --system --no-create-home --shell /usr/sbin/nologin {user}\n")));
    assert!(!example.lines().any(|line| line.starts_with("user")), "the unit has changed to {user} before");
    assert!(example.contains(&format!("# user = \"{user}\"")), "the account of a start as root is the same");
    let named = |key: &str| -> Vec<String> {
        let value = example.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = ")).expect(key);
        value.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let (identity, ca, keys) = (named("identity").remove(0), named("ca").remove(0), named("keys"));
    assert_eq!(keys.len(), 2, "{keys:?}");
    let installed = |file: &str| {
        let below = Path::new(file).parent().filter(|below| !below.as_os_str().is_empty());
        let to = below.map_or(format!("{folder}/"), |below| format!("{folder}/{}/", below.display()));
        let name = Path::new(file).file_name().expect("a name").to_str().expect("plain letters");
        let line = |line: &&str| {
            line.contains(&format!(" -g {group} ")) && line.contains(name) && line.contains(&format!(" {to}"))
        };
        assert!(unit.lines().find(line).is_some(), "nothing installs {name} into {to}");
    };
    keys.iter().chain([&identity, &ca]).for_each(|file| installed(file));
    // And it runs with exactly these, below another root.
    let files = KeyServer::files();
    let root = Scratch::new();
    let home = root.join(folder.trim_start_matches('/'));
    fs::create_dir_all(home.join("keys")).expect("folders");
    let copy = |from: &str, to: &str| fs::copy(files.join(from), home.join(to)).expect("a copy");
    copy("server.pem", &identity);
    copy("ca.pem", &ca);
    copy("keys/ec.pem", &keys[0]);
    copy("keys/rsa.pem", &keys[1]);
    let elsewhere = example.replace("0.0.0.0:2407", "127.0.0.1:0").replace("127.0.0.1:9901", "127.0.0.1:0");
    fs::write(home.join("keyserver.toml"), elsewhere).expect("a file");
    let mut command = Command::new("prlimit");
    command.arg("--core=1:1").arg(binaries::keyserver());
    command.args(["run", "-c"]).arg(home.join("keyserver.toml")).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let lines = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut said = Vec::new();
    let runs = std::io::BufRead::lines(lines)
        .map_while(Result::ok)
        .inspect(|line| said.push(line.clone()))
        .any(|line| line.contains(" runs"));
    let _ = child.kill();
    let _ = child.wait();
    assert!(runs, "{said:?}");
    let wrong = |line: &&String| line.contains("]: warning: ") || line.contains("]: error: ");
    assert!(!said.iter().any(|line| wrong(&line) && !line.contains("locked")), "{said:?}");
}

#[test]
fn the_admin_address_tells_numbers_and_health() {
    let server = KeyServer::start("");
    assert!(server.admin("/health").ends_with("\r\n\r\nok\n"));
    let link = server.link();
    holds("the link is counted", || server.metric("propylon_keyserver_connections") == 1);
    assert_eq!(server.metric("propylon_keyserver_keys"), 4);
    drop(link);
    eventually(Duration::from_secs(20), "the connection's end", || {
        (server.metric("propylon_keyserver_connections") == 0).then_some(())
    });
}
