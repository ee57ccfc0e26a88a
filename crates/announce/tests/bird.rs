//! Stories with real BIRD: a router's kernel has the virtual addresses while the engine wants it, and no longer.

mod lab;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lab::pair::{Pair, REPLY_WAIT, V4, V6, name};
use lab::{Scratch, WAIT_MAX, holds};
use propylon_announce::{Announcer, Bird, BirdError, ProtocolState, Settings, Switched, Wanted, birdcheck, guard};

#[test]
fn addresses_are_in_the_routers_kernel_while_their_protocols_are_enabled() {
    let Some(pair) = Pair::start() else { return };
    let mut bird = pair.bird();
    let status = bird.status().unwrap();
    assert_eq!((bird.version(), status.router_id.as_deref()), (status.version.as_str(), Some("10.77.0.2")));
    assert!(!pair.router.has_route(V4) && !pair.router.has_route(V6), "disabled at start");
    for protocol in &pair.settings.protocols {
        assert_eq!(bird.protocol(protocol).unwrap().state, ProtocolState::Down);
        assert_eq!(bird.enable(protocol, "ready").unwrap(), Switched::Now);
        assert_eq!(bird.enable(protocol, "ready").unwrap(), Switched::Already);
    }
    println!("announced after {:?}", pair.announced());
    assert_eq!(bird.protocol(&pair.settings.protocols[0]).unwrap().message.as_deref(), Some("propylon: ready"));
    assert!(pair.engine.ip("route show").lines().all(|route| !route.contains(V4)), "not the engine's own kernel");
    for protocol in &pair.settings.protocols {
        assert_eq!(bird.disable(protocol, "draining").unwrap(), Switched::Now);
        assert_eq!(bird.disable(protocol, "draining").unwrap(), Switched::Already);
    }
    println!("withdrawn after {:?}", pair.gone());
}

#[test]
fn the_routes_of_an_engine_that_is_dead_are_withdrawn_by_somebody_else() {
    let Some(pair) = Pair::start() else { return };
    for round in 0..5 {
        let announcer = pair.announcer();
        announcer.set(Wanted::Announce, "ready".to_owned());
        pair.announced();
        drop(announcer);
        assert!(pair.router.has_route(V4) && pair.router.has_route(V6), "its end alone takes nothing away");
        let began = Instant::now();
        guard::withdraw(&pair.settings, WAIT_MAX, "the engine died").unwrap();
        let told = began.elapsed();
        println!("round {round}: BIRD's word after {told:?}, the router's kernel without {:?} later", pair.gone());
    }
}

#[test]
fn a_configuration_as_printed_has_no_findings_and_one_that_is_worse_has() {
    let Some(mut pair) = Pair::start() else { return };
    let configuration = pair.scratch.path("engine.conf");
    holds("no findings", || birdcheck::examine(&pair.settings, Some(&configuration)).is_empty());
    let announcer = pair.announcer();
    announcer.set(Wanted::Announce, "ready".to_owned());
    pair.announced();
    holds("exported", || announcer.status().is_announced());
    holds("no findings", || birdcheck::examine(&pair.settings, Some(&configuration)).is_empty());
    drop(announcer);
    let text = std::fs::read_to_string(&configuration).unwrap();
    let worse = text
        .replace("    disabled;\n", "")
        .replace("bfd on;", "")
        .replace("graceful restart off", "graceful restart on");
    pair.scratch.write("engine.conf", &worse);
    pair.engine_bird.kill();
    pair.engine_bird = lab::bird(&pair.engine, &pair.scratch, "engine");
    holds("both sessions are up", || {
        let bird = Bird::connect(&pair.settings.socket, REPLY_WAIT);
        bird.is_ok_and(|mut bird| bird.protocols().unwrap().iter().filter(|it| it.is_established()).count() == 2)
    });
    pair.announced();
    let mut settings = pair.settings.clone();
    settings.protocols.push(name("propylon9"));
    let findings = birdcheck::examine(&settings, Some(&configuration));
    for (what, count) in [
        ("is enabled by BIRD's configuration", 2),
        ("goes without BFD", 2),
        ("offers graceful restart", 2),
        ("no protocol \"propylon9\"", 1),
    ] {
        assert_eq!(
            findings.iter().filter(|finding| finding.what.contains(what)).count(),
            count,
            "{what}: {findings:?}"
        );
    }
}

#[test]
fn a_drain_goes_on_once_bird_has_confirmed_that_all_is_withdrawn() {
    let Some(pair) = Pair::start() else { return };
    let announcer = pair.announcer();
    for round in 0..5 {
        announcer.set(Wanted::Announce, "ready".to_owned());
        pair.announced();
        holds("the status says so", || announcer.status().is_announced());
        let status = announcer.status();
        assert!(status.is_confirmed && status.corrections == 0 && status.last_error.is_none(), "{status:?}");
        holds("BFD is up with both", || {
            announcer.status().sessions.iter().filter(|session| session.bfd.as_deref() == Some("Up")).count() == 2
        });
        let began = Instant::now();
        announcer.withdraw_now(WAIT_MAX, "draining".to_owned()).unwrap();
        let confirmed = began.elapsed();
        for protocol in &pair.settings.protocols {
            assert_eq!(pair.bird().protocol(protocol).unwrap().state, ProtocolState::Down);
        }
        pair.gone();
        println!(
            "round {round}: BIRD confirmed after {confirmed:?}, the router's kernel was without after {:?}",
            began.elapsed()
        );
    }
    // Withdrawn once more, with nothing to do.
    announcer.withdraw_now(WAIT_MAX, "draining".to_owned()).unwrap();
}

#[test]
fn what_somebody_else_switched_is_set_again() {
    let Some(pair) = Pair::start() else { return };
    let announcer = pair.announcer();
    announcer.set(Wanted::Announce, "ready".to_owned());
    pair.announced();
    pair.bird().disable(&pair.settings.protocols[1], "by hand").unwrap();
    holds("it was corrected", || announcer.status().corrections == 1);
    pair.announced();
    announcer.withdraw_now(WAIT_MAX, "draining".to_owned()).unwrap();
    pair.gone();
    pair.bird().enable(&pair.settings.protocols[0], "by hand").unwrap();
    holds("it was corrected", || announcer.status().corrections == 2);
    pair.gone();
    // One that looks alone, as before a decision and after it was handed over.
    announcer.let_go();
    pair.bird().enable(&pair.settings.protocols[0], "by hand").unwrap();
    let looked = announcer.status().looked_at;
    holds("it has looked twice", || announcer.status().looked_at > looked.map(|at| at + Duration::from_secs(1)));
    assert_eq!(pair.bird().protocol(&pair.settings.protocols[0]).unwrap().state, ProtocolState::Up);
    drop(announcer);
    assert!(pair.router.has_route(V4), "left as it was");
}

#[test]
fn a_bird_that_reads_its_configuration_again_is_set_right_soon() {
    let Some(pair) = Pair::start() else { return };
    let announcer = pair.announcer();
    announcer.set(Wanted::Announce, "ready".to_owned());
    pair.announced();
    for _ in 0..5 {
        holds("confirmed", || announcer.status().is_confirmed);
        let round = announcer.status().corrections + 1;
        let mut socket = UnixStream::connect(&pair.settings.socket).unwrap();
        socket.write_all(b"configure\n").unwrap();
        let lines = BufReader::new(socket).lines().map(Result::unwrap);
        assert!(lines.take(4).any(|line| line.contains("Reconfigur")));
        // Once for both protocols, or once for each where the look came in between.
        let took = holds("it was corrected", || announcer.status().corrections >= round);
        let back = pair.announced();
        println!("round {round}: set again within {took:?}, back in the router's kernel {back:?} later");
    }
}

#[test]
fn a_bird_that_was_killed_and_started_again_gets_what_was_wanted() {
    let Some(mut pair) = Pair::start() else { return };
    let announcer = pair.announcer();
    announcer.set(Wanted::Announce, "ready".to_owned());
    pair.announced();
    holds("confirmed", || announcer.status().is_confirmed);
    pair.engine_bird.kill();
    println!("the dead BIRD's routes were gone after {:?}", pair.gone());
    holds("it is known", || announcer.status().last_error.is_some_and(|error| error.contains("nobody listens")));
    assert!(!announcer.status().is_announced());
    let refused = announcer.withdraw_now(Duration::from_millis(200), "draining".to_owned()).unwrap_err();
    assert!(refused.contains("nobody listens"), "{refused}");
    announcer.set(Wanted::Announce, "ready".to_owned());
    pair.engine_bird = lab::bird(&pair.engine, &pair.scratch, "engine");
    println!("announced by the new one after {:?}", pair.announced());
    holds("confirmed", || announcer.status().is_confirmed && announcer.status().last_error.is_none());
}

#[test]
fn an_unknown_protocol_is_told_at_once_and_the_others_are_withdrawn_all_the_same() {
    let Some(pair) = Pair::start() else { return };
    let mut settings = pair.settings.clone();
    settings.protocols.insert(0, name("all"));
    let announcer = Announcer::start(settings).unwrap();
    announcer.set(Wanted::Announce, "ready".to_owned());
    pair.announced();
    let began = Instant::now();
    let refused = announcer.withdraw_now(WAIT_MAX, "draining".to_owned()).unwrap_err();
    assert!(refused.contains("BIRD has no protocol \"all\"") && began.elapsed() < WAIT_MAX, "{refused}");
    pair.gone();
    holds("sessions live on", || announcer.status().sessions.iter().filter(|it| it.is_established).count() == 2);
}

/// Something at a socket that is no BIRD: each connection is answered by `answer`, on a thread.
fn impostor(path: &Path, answer: fn(UnixStream)) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(thread::spawn(move || answer(stream)))));
}

#[test]
fn whatever_listens_at_the_socket_the_engine_is_told_within_a_limit() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path(name);
    let wait = Duration::from_millis(300);
    let connect = |name: &str| Bird::connect(&path(name), WAIT_MAX).err();
    // Only those that have nothing to say are waited for in vain.
    let connect_briefly = |name: &str| Bird::connect(&path(name), wait).err();
    assert_eq!(connect("missing"), Some(BirdError::Missing(path("missing"))));
    drop(UnixListener::bind(path("abandoned")).unwrap());
    assert_eq!(connect("abandoned"), Some(BirdError::Abandoned(path("abandoned"))));
    impostor(&path("nonsense"), |mut stream| stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap());
    assert_eq!(connect("nonsense"), Some(BirdError::Nonsense("SSH-2.0-OpenSSH_9.2".to_owned())));
    impostor(&path("closes"), drop);
    assert_eq!(connect("closes"), Some(BirdError::Closed));
    impostor(&path("silent"), std::mem::forget);
    assert_eq!(connect_briefly("silent"), Some(BirdError::Silent(wait)));
    impostor(&path("endless"), |mut stream| while stream.write_all(b"0001-BIRD\n").is_ok() {});
    assert!(matches!(connect("endless"), Some(BirdError::TooLong(_))));
    impostor(&path("wide"), |mut stream| while stream.write_all(b"0001-BIRD").is_ok() {});
    assert_eq!(connect("wide"), Some(BirdError::TooLong("lines")));
    // A drip of bytes that never ends has the same limit as silence.
    impostor(&path("drip"), |mut stream| {
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(connect_briefly("drip"), Some(BirdError::Silent(wait)));
    // Nobody takes connections, and the line of those that wait is full.
    let hanging = socket_with_full_line(&path("hanging"));
    assert_eq!(connect_briefly("hanging"), Some(BirdError::Silent(wait)));
    drop(hanging);
}

/// A listener with a line of one, and connections until no more fit.
fn socket_with_full_line(path: &Path) -> Vec<socket2::Socket> {
    let address = socket2::SockAddr::unix(path).unwrap();
    let socket = || socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    let listener = socket();
    listener.bind(&address).unwrap();
    listener.listen(0).unwrap();
    let mut held = vec![listener];
    loop {
        let client = socket();
        client.set_nonblocking(true).unwrap();
        if client.connect(&address).is_err() {
            return held;
        }
        held.push(client);
    }
}

#[test]
fn a_restricted_socket_and_one_without_permission_say_what_to_do() {
    let scratch = Scratch::new();
    impostor(&scratch.path("restricted"), |mut stream| {
        stream.write_all(b"0001 BIRD 2.0.12 ready.\n").unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        lines.map_while(Result::ok).all(|_| stream.write_all(b"8007 Access denied\n").is_ok());
    });
    let settings = Settings { socket: scratch.path("restricted"), protocols: vec![name("propylon4")] };
    let mut bird = Bird::connect(&settings.socket, REPLY_WAIT).unwrap();
    assert_eq!(bird.enable(&settings.protocols[0], "ready"), Err(BirdError::Restricted));
    assert_eq!(bird.check_orders(), Err(BirdError::Restricted));
    let announcer = Announcer::start(settings.clone()).unwrap();
    assert!(announcer.withdraw_now(WAIT_MAX, "draining".to_owned()).unwrap_err().contains("restricted"));
    let failed = guard::withdraw(&settings, WAIT_MAX, "the engine died").unwrap_err();
    assert!(failed.starts_with("propylon4: BIRD's control socket is restricted"), "{failed}");
    println!("{failed}");
    let closed = scratch.path("closed");
    let _listener = UnixListener::bind(&closed).unwrap();
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "somebody_else", "--nocapture"]).env(CLOSED, &closed).uid(65534).gid(65534);
    match command.output() {
        Ok(output) => {
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(said.contains("usermod -aG bird propylon"), "{said}");
        }
        Err(error) => println!("skipped: nobody cannot be anybody else here: {error}"),
    }
}

/// Environment variable with a socket that this account may not use.
const CLOSED: &str = "PROPYLON_ANNOUNCE_CLOSED";

/// A process of another account; nothing in a usual run.
#[test]
fn somebody_else() {
    let Some(socket) = std::env::var_os(CLOSED) else { return };
    println!("{}", Bird::connect(Path::new(&socket), REPLY_WAIT).err().unwrap());
}
