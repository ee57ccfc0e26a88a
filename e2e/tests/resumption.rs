//! Clients that come back: at other engines, after rotations of the keys, and with what is not good any more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use propylon_e2e::engine::simple;
use propylon_e2e::program::{curl, run, s_client};
use propylon_e2e::{Certificates, Engine, Origin, Scratch, binaries, eventually, holds};

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const VERSIONS: [&str; 2] = ["-tls1_2", "-tls1_3"];
const WAIT_MAX: Duration = Duration::from_secs(20);

fn hello() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
}

/// An engine whose `[tls.public]` has these lines as well.
fn engine(origin: &Origin, lines: &str) -> Engine {
    Engine::start(&(Certificates::shared().profile() + lines + "\n" + &simple(&[origin.address()])))
}

fn shared(keys: &Path, rotate: &str) -> String {
    format!("ticket_keys = {{ file = \"{}\", rotate = \"{rotate}\" }}", keys.display())
}

fn read_only(keys: &Path) -> String {
    format!("ticket_keys = \"{}\"", keys.display())
}

/// A client of openssl's with its session in a file.
struct Visitor {
    session: PathBuf,
    arguments: Vec<&'static str>,
}

impl Visitor {
    fn new(scratch: &Scratch, arguments: &[&'static str]) -> Visitor {
        let name = format!("session{}.pem", arguments.concat());
        Visitor { session: scratch.join(&name), arguments: arguments.to_vec() }
    }

    /// Comes with the session it has, if it has one, and says whether that was resumed. Keeps what it gets.
    #[track_caller]
    fn visit(&self, engine: &Engine, listener: &str) -> bool {
        let session = self.session.display().to_string();
        let mut arguments = [&self.arguments[..], &["-sess_out", &session]].concat();
        if self.session.exists() {
            arguments.extend(["-sess_in", &session]);
        }
        let said = s_client(engine.address(listener).port(), &arguments, GET);
        let text = said.text();
        assert!(text.contains("HTTP/1.1 200 OK"), "stdout:\n{text}\nstderr:\n{}", said.stderr);
        assert!(self.session.exists(), "a session was saved");
        let (new, reused) = (text.contains("\nNew, TLSv"), text.contains("\nReused, TLSv"));
        assert!(new != reused, "{text}");
        reused
    }
}

/// Lines of a key file: keys of a time each, all of them past.
fn keys(numbers: &[u8]) -> String {
    let line = |number: &u8| {
        let said = run(base64(), &[*number; 48], WAIT_MAX).ok();
        format!("{} {}\n", 1000 + u32::from(*number), said.text().trim())
    };
    numbers.iter().map(line).collect()
}

fn base64() -> Command {
    let mut command = Command::new("openssl");
    command.args(["base64", "-A"]);
    command
}

/// Puts a file of keys in place as it should be done.
fn put(scratch: &Scratch, text: &str) -> PathBuf {
    let new = scratch.write("incoming", text);
    let keys = scratch.join("keys");
    fs::rename(new, &keys).expect("a rename in a folder");
    keys
}

#[test]
fn a_session_goes_on_at_another_engine_with_the_same_keys() {
    let (origin, scratch) = (hello(), Scratch::new());
    let keys = scratch.join("keys");
    let first = engine(&origin, &shared(&keys, "1h"));
    let second = engine(&origin, &read_only(&keys));
    let stranger = engine(&origin, "");
    for version in VERSIONS {
        let visitor = Visitor::new(&scratch, &[version]);
        assert!(!visitor.visit(&first, "web"));
        assert!(visitor.visit(&second, "web"));
        assert!(visitor.visit(&first, "web"));
        assert!(!visitor.visit(&stranger, "web"));
    }
    stranger.metric_reaches(
        "propylon_tls_tickets_refused_total",
        &[("reason", "unknown-key"), ("listener", "web")],
        2.0,
    );
    second.metric_reaches("propylon_tls_handshakes_total", &[("resumed", "true"), ("listener", "web")], 2.0);
    // One each: the sessions were resumed.
    second.metric_reaches("propylon_tls_tickets_issued_total", &[("listener", "web")], 2.0);
    assert_eq!(second.metric("propylon_tls_ticket_key_errors_total", &[]), 0.0);
}

#[test]
fn a_session_outlives_an_engine_that_has_its_keys_in_a_file() {
    let (origin, scratch) = (hello(), Scratch::new());
    let keys = scratch.join("keys");
    let visitor = Visitor::new(&scratch, &["-tls1_3"]);
    assert!(!visitor.visit(&engine(&origin, &shared(&keys, "1h")), "web"));
    assert!(visitor.visit(&engine(&origin, &shared(&keys, "1h")), "web"));
}

#[test]
fn a_session_goes_on_while_its_key_is_in_the_file() {
    let (origin, scratch) = (hello(), Scratch::new());
    let file = put(&scratch, &keys(&[1]));
    let engine = engine(&origin, &read_only(&file));
    let visitors = VERSIONS.map(|version| Visitor::new(&scratch, &[version]));
    let early = visitors.each_ref().map(|visitor| {
        assert!(!visitor.visit(&engine, "web"));
        fs::read(&visitor.session).expect("a session")
    });
    put(&scratch, &keys(&[1, 2]));
    engine.metric_reaches("propylon_tls_ticket_key_changes_total", &[], 1.0);
    for visitor in &visitors {
        assert!(visitor.visit(&engine, "web"));
    }
    put(&scratch, &keys(&[2, 3]));
    engine.metric_reaches("propylon_tls_ticket_key_changes_total", &[], 2.0);
    for (visitor, early) in visitors.iter().zip(&early) {
        // openssl keeps the ticket that it got last, which was made with the second key, in TLS 1.3 only.
        assert_eq!(visitor.visit(&engine, "web"), visitor.arguments == ["-tls1_3"]);
        fs::write(&visitor.session, early).expect("a session");
        assert!(!visitor.visit(&engine, "web"));
    }
}

#[test]
fn a_ticket_of_one_profile_is_refused_at_another_with_the_same_keys() {
    let (origin, scratch) = (hello(), Scratch::new());
    let keys = shared(&scratch.join("keys"), "1h");
    let inner = Certificates::shared().profile().replace("[tls.public]", "[tls.inner]") + &keys;
    let listener = "[listener.inner]\nbind = \"127.0.0.1:0\"\ntls = \"inner\"\n";
    let engine = engine(&origin, &format!("{keys}\n{inner}\n{listener}"));
    for version in VERSIONS {
        let visitor = Visitor::new(&scratch, &[version]);
        assert!(!visitor.visit(&engine, "web"));
        assert!(!visitor.visit(&engine, "inner"));
        assert!(visitor.visit(&engine, "inner"));
    }
    engine.metric_reaches("propylon_tls_tickets_refused_total", &[("reason", "damaged"), ("listener", "inner")], 2.0);
}

#[test]
fn a_broken_file_leaves_the_keys_as_they_are() {
    let (origin, scratch) = (hello(), Scratch::new());
    let file = put(&scratch, &keys(&[1, 2, 3]));
    let engine = engine(&origin, &read_only(&file));
    let visitor = Visitor::new(&scratch, &["-tls1_3"]);
    assert!(!visitor.visit(&engine, "web"));
    for (count, broken) in ["1 AAAA\n", "", "\0\0\0"].into_iter().enumerate() {
        put(&scratch, broken);
        engine.metric_reaches("propylon_tls_ticket_key_errors_total", &[], count as f64 + 1.0);
        assert!(visitor.visit(&engine, "web"));
    }
    assert!(engine.stderr().iter().any(|line| line.contains("line 1: the key does not have 48 or 80 bytes")));
    fs::remove_file(&file).expect("a file");
    put(&scratch, &keys(&[3, 4, 5]));
    engine.metric_reaches("propylon_tls_ticket_key_changes_total", &[], 1.0);
    assert!(visitor.visit(&engine, "web"));
    assert_eq!(engine.metric("propylon_tls_ticket_key_errors_total", &[]), 3.0);
}

#[test]
fn no_engine_starts_with_keys_that_it_cannot_use_or_that_everybody_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let absent = scratch.join("absent");
    let open = scratch.write("open", keys(&[1, 2, 3]));
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).expect("a mode");
    let broken = scratch.write("broken", "rubbish");
    for (lines, part) in [
        (read_only(&absent), "there is no such file of ticket keys"),
        (read_only(&open), "every account can get at these keys"),
        (shared(&broken, "6h"), "line 1: the key is not base64"),
        (shared(&absent.join("keys"), "6h"), "its folder does not exist"),
        ("early_data = \"safe\"".into(), "`early_data` is not supported yet"),
        ("tickets = 9".into(), "`tickets` is too large"),
    ] {
        let text =
            Certificates::shared().profile() + &lines + "\n" + &simple(&["127.0.0.1:9".parse().expect("an address")]);
        let config = scratch.write("propylon.toml", &text);
        for command in ["check", "run"] {
            let mut program = Command::new(binaries::propylon());
            program.arg(command).arg("-c").arg(&config);
            let said = run(program, b"", WAIT_MAX);
            assert_eq!(said.status.code(), Some(1), "{command} {lines}");
            // A start finds out at the attempt.
            let found = said.stderr.contains(part) || command == "run" && said.stderr.contains("make its folder");
            assert!(found, "{command} {lines}: {}", said.stderr);
        }
    }
    assert!(!absent.exists());
}

#[test]
fn a_client_without_tickets_is_known_by_its_session_id() {
    let origin = hello();
    let engine = engine(&origin, "");
    let scratch = Scratch::new();
    let visitor = Visitor::new(&scratch, &["-tls1_2", "-no_ticket"]);
    assert!(!visitor.visit(&engine, "web"));
    assert!(visitor.visit(&engine, "web"));
    assert!(visitor.visit(&engine, "web"));
    for (outcome, count) in [("kept", 1.0), ("found", 2.0), ("missed", 0.0)] {
        engine.metric_reaches("propylon_tls_session_ids_total", &[("outcome", outcome), ("listener", "web")], count);
    }
    assert_eq!(engine.metric("propylon_tls_tickets_issued_total", &[]), 0.0);
    let other = self::engine(&origin, "session_ids = 0");
    assert!(!visitor.visit(&other, "web"));
    assert!(!visitor.visit(&other, "web"));
}

#[test]
fn curl_comes_back_to_its_session() {
    let origin = hello();
    let engine = engine(&origin, "");
    for (version, name) in [("--tls-max 1.2", "TLSv1.2"), ("--tlsv1.3", "TLSv1.3")] {
        let url = engine.url("web");
        let (first, again) = (format!("{url}/{name}/first"), format!("{url}/{name}/again"));
        let arguments: Vec<&str> =
            version.split(' ').chain(["--http1.1", "--header", "Connection: close", &first, &again]).collect();
        curl(&arguments).ok();
        assert_eq!(engine.logged_path(&format!("/{name}/first"))["tls"]["resumed"], false);
        assert_eq!(engine.logged_path(&format!("/{name}/again"))["tls"]["resumed"], true);
    }
}

/// Time and name of each key.
fn read_keys(path: &Path) -> Vec<(u64, String)> {
    let text = fs::read_to_string(path).expect("a file of keys");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split_once(' ').expect("time and key"))
        .map(|(t, k)| (t.parse().expect("a time"), k.into()))
        .collect()
}

#[test]
fn two_engines_that_rotate_one_file_lose_no_key() {
    const ROTATIONS: usize = 5;
    let (origin, scratch) = (hello(), Scratch::new());
    let file = scratch.join("keys");
    let engines = [engine(&origin, &shared(&file, "1s")), engine(&origin, &shared(&file, "1s"))];
    let mut before = read_keys(&file);
    for _ in 0..ROTATIONS {
        let after = eventually(WAIT_MAX, "a rotation", || Some(read_keys(&file)).filter(|keys| *keys != before));
        assert!(after.is_sorted_by(|one, other| one.0 < other.0), "{after:?}");
        // What was to seal next is there, and what has sealed until now.
        for kept in before.iter().rev().take(2) {
            assert!(after.contains(kept), "{kept:?} is gone from {after:?}");
        }
        before = after;
    }
    for engine in &engines {
        holds("both engines have followed", || {
            engine.metric("propylon_tls_ticket_key_changes_total", &[]) >= ROTATIONS as f64 - 1.0
        });
        assert_eq!(engine.metric("propylon_tls_ticket_key_errors_total", &[]), 0.0);
    }
    // Nothing but the file and its lock is left over.
    let mut left: Vec<String> = fs::read_dir(scratch.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .filter(|name| name != "keys.new")
        .collect();
    left.sort();
    assert_eq!(left, ["keys", "keys.lock"]);
}
