//! Private keys stay where they belong: not in a log, not in an answer, not in memory that is not used any more.

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::time::Instant;

use propylon_e2e::admin::{TOKEN, ask_admin, with_state};
use propylon_e2e::engine::complete;
use propylon_e2e::keyserver::{self, KeyServer};
use propylon_e2e::memory;
use propylon_e2e::program::run;
use propylon_e2e::wait::{WAIT_MAX, holds};
use propylon_e2e::{Certificates, Engine, Scratch, binaries};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustix::process::Signal;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

/// Longer than what two texts have in common by chance, shorter than a line of PEM.
const PIECE_BYTES: usize = 12;
/// The base64 of a P-256 key's PKCS#8 begins alike for all of them.
const COMMON_BYTES: usize = 48;

/// Every piece of a key's base64 that is its own, as it is and as the numbers of its bytes.
fn pieces(pem: &str) -> HashSet<String> {
    let key = pem.split("-----BEGIN PRIVATE KEY-----").nth(1).expect("a key");
    let base64: String = key.split("-----").next().expect("its content").split_whitespace().collect();
    pieces_of(&base64[COMMON_BYTES..])
}

fn pieces_of(secret: &str) -> HashSet<String> {
    let spelled = |piece: &[u8]| {
        let text = String::from_utf8(piece.to_vec()).expect("text");
        [text, format!("{piece:?}").trim_matches(['[', ']']).to_owned()]
    };
    secret.as_bytes().windows(PIECE_BYTES).flat_map(spelled).collect()
}

#[track_caller]
fn tells_nothing(what: &str, said: &str, pieces: &HashSet<String>) {
    let told = pieces.iter().find(|piece| said.contains(piece.as_str()));
    assert!(told.is_none(), "{what}: a piece of the secret is in:\n{said}");
}

/// Every way in which files come to be damaged, of a key in PEM with or without certificates before it.
fn damaged(pem: &str) -> Vec<(&'static str, Vec<u8>)> {
    let key_at = pem.find("-----BEGIN PRIVATE KEY-----").expect("a key");
    let (before, key) = pem.split_at(key_at);
    let whole = |key: String| [before.as_bytes(), key.as_bytes()].concat();
    let middle = key.len() / 2;
    let mut binary = whole(key.to_owned());
    let at = binary.len() - key.len() + middle;
    binary[at] = 0xff;
    vec![
        ("the key on one line", whole(key.replace('\n', ""))),
        ("everything on one line", pem.replace('\n', "").into_bytes()),
        ("line ends spelled out", whole(key.replace('\n', "\\n"))),
        ("blanks for line ends", whole(key.replace('\n', " "))),
        ("the first line and the second in one", whole(key.replacen('\n', "", 1))),
        ("cut in the middle", whole(key[..middle].to_owned())),
        ("without its last line", whole(key.replace("-----END PRIVATE KEY-----\n", ""))),
        ("another last line", whole(key.replace("END PRIVATE KEY", "END RSA PRIVATE KEY"))),
        ("not base64", whole(format!("{}*{}", &key[..middle], &key[middle + 1..]))),
        ("not text", binary),
        ("a field before it", whole(key.replacen('\n', "\nKey: ", 1))),
        ("another type of key", whole(key.replace("PRIVATE KEY", "RSA PRIVATE KEY"))),
        ("taken for a certificate", whole(key.replace("PRIVATE KEY", "CERTIFICATE"))),
        ("twice begun", whole(key.replace("-----END", "-----BEGIN"))),
        ("quoted", whole(format!("\"{}\"", key.replace('\n', "\\n")))),
    ]
}

#[test]
fn a_key_server_says_nothing_of_a_key_that_it_cannot_read() {
    let server = KeyServer::start("");
    let good = fs::read_to_string(server.scratch.join("server.pem")).expect("an identity");
    let key_at = good.find("-----BEGIN PRIVATE KEY-----").expect("a key");
    let pieces = pieces(&good);
    let identity_reads = || server.stderr().iter().filter(|line| line.contains("the identity ")).count();
    for (what, bad) in damaged(&good) {
        // As the identity, as the authority, and as a key of a folder.
        for file in ["server.pem", "ca.pem", "keys/rsa.pem"] {
            let whole = fs::read(server.scratch.join(file)).expect("a good file");
            server.scratch.write(file, if file == "keys/rsa.pem" { &bad[key_at.min(bad.len())..] } else { &bad[..] });
            // Without an identity it does not start.
            let commands: &[&str] = if file == "server.pem" { &["check", "keys", "run"] } else { &["check", "keys"] };
            for command in commands {
                let said = server.command(command, &[]);
                tells_nothing(&format!("{what}, {file}, {command}"), &(said.text() + &said.stderr), &pieces);
            }
            let before = identity_reads();
            server.signal(Signal::HUP);
            holds("the files have been read again", || identity_reads() > before);
            tells_nothing(&format!("{what}, {file}, SIGHUP"), &server.stderr().join("\n"), &pieces);
            server.scratch.write(file, whole);
        }
    }
}

/// An engine's every file that may hold a key, but for those of `[acme.NAME]`.
fn engine_config(scratch: &Scratch) -> String {
    let path = |name: &str| format!("{:?}", scratch.join(name));
    let (state, token) = with_state(scratch);
    format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\n{state}\n[admin]\nbind = \"127.0.0.1:0\"\n{token}\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [tls.public]\ncertificates = [{}, {{ chain = {}, key = {} }}, {}]\nticket_keys = {}\nsigner = \"vault\"\n\
         client_auth = {{ ca = {}, mode = \"optional\" }}\n\
         [signer.vault]\nservers = [\"127.0.0.1:9\"]\nidentity = {}\nca = {}\n\
         [backend.app]\nservers = [\"127.0.0.1:9\"]\nsticky = {{ cookie = \"seat\", key_file = {} }}\n\
         tls = {{ ca = {}, certificate = {} }}\n[[route]]\nbackend = \"app\"\n",
        path("one.pem"),
        path("chain.pem"),
        path("key.pem"),
        path("folder/"),
        path("tickets"),
        path("client-ca.pem"),
        path("engine.pem"),
        path("signer-ca.pem"),
        path("sticky"),
        path("server-ca.pem"),
        path("client.pem"),
    )
}

const KEY_FILES: [&str; 8] = [
    "one.pem",
    "key.pem",
    "folder/a.pem",
    "client-ca.pem",
    "engine.pem",
    "signer-ca.pem",
    "server-ca.pem",
    "client.pem",
];

/// What an engine needs, all of it with the same key.
fn engine_files(scratch: &Scratch) -> String {
    let issue = |name: &str| Certificates::shared().issue(&[name], &PKCS_ECDSA_P256_SHA256);
    let good = issue("one.test");
    fs::create_dir(scratch.join("folder")).expect("a folder");
    let ca = fs::read(Certificates::shared().ca()).expect("an authority");
    for file in ["client-ca.pem", "signer-ca.pem", "server-ca.pem"] {
        scratch.write(file, &ca);
    }
    for file in ["one.pem", "chain.pem", "key.pem", "folder/a.pem", "engine.pem", "client.pem"] {
        scratch.write(file, &good);
    }
    scratch.write("tickets", format!("B{0}\nC{0}\nD{0}\n", "A".repeat(63)));
    scratch.write("sticky", "correct horse battery staple, 42 times\n");
    good
}

fn check(scratch: &Scratch, config: &str) -> String {
    let path = scratch.write("check.toml", complete(config));
    let mut command = Command::new(binaries::propylon());
    command.arg("check").arg("-c").arg(path);
    let said = run(command, b"", WAIT_MAX);
    said.text() + &said.stderr
}

#[test]
fn an_engine_says_nothing_of_a_key_that_it_cannot_read() {
    let scratch = Scratch::new();
    let good = engine_files(&scratch);
    let pieces = pieces(&good);
    let config = engine_config(&scratch);
    let engine = Engine::start(&config);
    let pem = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/x-pem-file\r\n");
    for (what, bad) in damaged(&good) {
        for file in KEY_FILES {
            scratch.write(file, &bad);
        }
        tells_nothing(&format!("{what}, check"), &check(&scratch, &config), &pieces);
        engine.reload();
        let told = ask_admin(&engine, "POST", "/v1/reload", &format!("Authorization: Bearer {TOKEN}\r\n"), "").text();
        tells_nothing(&format!("{what}, /v1/reload"), &told, &pieces);
        if let Ok(bad) = std::str::from_utf8(&bad) {
            let told = ask_admin(&engine, "PUT", "/v1/certificates/public/new", &pem, bad).text();
            tells_nothing(&format!("{what}, PUT"), &told, &pieces);
        }
        tells_nothing(&format!("{what}, the log"), &engine.stderr().join("\n"), &pieces);
    }
}

#[test]
fn nothing_is_said_of_a_key_that_is_taken_for_a_configuration() {
    let scratch = Scratch::new();
    let good = Certificates::shared().issue(&["one.test"], &PKCS_ECDSA_P256_SHA256);
    let key_at = good.find("-----BEGIN PRIVATE KEY-----").expect("a key");
    let pieces = pieces(&good);
    let mut texts = damaged(&good);
    texts.extend(damaged(&good[key_at..]));
    texts.extend([("whole", good.clone().into_bytes()), ("the key alone", good[key_at..].into())]);
    for (what, text) in texts {
        for name in ["key.pem", "key.json"] {
            let path = scratch.write(name, &text);
            for (program, command) in [
                (binaries::propylon(), "check"),
                (binaries::propylon(), "run"),
                (binaries::propylon(), "explain"),
                (binaries::keyserver(), "check"),
                (binaries::keyserver(), "run"),
            ] {
                let mut words = Command::new(program);
                words.arg(command).arg("-c").arg(&path);
                words.args((command == "explain").then_some("http://one.test/"));
                let said = run(words, b"", WAIT_MAX);
                let text = said.text() + &said.stderr;
                tells_nothing(&format!("{what}, {name}, {command}"), &text, &pieces);
                assert!(!said.status.success(), "{what}, {name}, {command}: {text}");
                let is_named = text.contains("in PEM, and is no configuration; give the path of the configuration");
                assert!(is_named || what == "not text", "{what}, {name}, {command}: {text}");
            }
        }
    }
}

#[test]
fn nothing_is_said_of_secrets_that_are_not_keys() {
    const SECRET: &str = "xK9vQ2mZr7Lw4TbNc8YpHd3JfUg5SaE6";
    let scratch = Scratch::new();
    engine_files(&scratch);
    let config = engine_config(&scratch);
    let engine = Engine::start(&config);
    let pieces = pieces_of(SECRET);
    for bad in [
        SECRET.to_owned(),
        format!("1 {SECRET}"),
        format!("{SECRET} 1"),
        format!("{SECRET} {SECRET}\n"),
        format!("{SECRET}{SECRET}\u{0}\n"),
        format!("{SECRET}{SECRET}{SECRET}=\n").repeat(4),
        format!("\u{feff}{SECRET}"),
        format!("-----BEGIN {SECRET}-----\n{SECRET}"),
    ] {
        for file in ["tickets", "sticky", "token"] {
            scratch.write(file, &bad[..]);
        }
        tells_nothing("check", &check(&scratch, &config), &pieces);
        engine.reload();
        let told = ask_admin(&engine, "POST", "/v1/reload", "Authorization: Bearer none\r\n", "").text();
        tells_nothing("the answer", &told, &pieces);
        tells_nothing("the log", &engine.stderr().join("\n"), &pieces);
    }
}

#[test]
fn a_report_for_others_has_all_of_an_engine_but_its_secrets() {
    const INLINE: &str = "xK9vQ2mZr7Lw4TbNc8YpHd3JfUg5SaE6";
    const HASH: &str = "5f4dcc3b5aa765d61d8327deb882cf995f4dcc3b5aa765d61d8327deb882cf99";
    let scratch = Scratch::new();
    let good = engine_files(&scratch);
    let password = format!("$6$qWeRtYuIoPaSdFgH${}", "zXcVbNmAsD".repeat(9).split_at(86).0);
    scratch.write("users", format!("ann:{password}\n"));
    scratch.write("api-keys", format!("shop:{HASH}\n"));
    let path = |name: &str| format!("{:?}", scratch.join(name));
    let routes = format!(
        "[[route]]\npath = \"/a\"\nauth = {{ any = [{{ basic = {{ file = {} }} }}, {{ api_key = {{ file = {} }} }}] }}\n\
         match = {{ header = {{ X-Key = \"{INLINE}\" }}, query = {{ key = \"{INLINE}\" }}, cookie = {{ seat = \"{INLINE}\" }} }}\n\
         request = {{ set = {{ X-Secret = \"{INLINE}\" }}, query = {{ set = {{ key = \"{INLINE}\" }} }} }}\n\
         response = {{ add = {{ X-Secret = \"{INLINE}\" }} }}\nbackend = \"app\"\n\
         [[route]]\npath = \"/b\"\nrespond = {{ status = 200, body = \"{INLINE}\" }}\n\
         [[route]]\npath = \"/c\"\nredirect = {{ path = \"/d?key={INLINE}\" }}\n",
        path("users"),
        path("api-keys")
    );
    let config = complete(&(engine_config(&scratch) + &routes));
    let file = scratch.write("report.toml", &config);
    let engine = Engine::start(&config);
    engine.reload();
    let report = |place: &[&str], output: &std::path::Path| {
        let mut command = Command::new(binaries::propylon());
        command.args(["report", "--last", "15m", "--json", "-o"]).arg(output).args(place);
        run(command, b"", WAIT_MAX)
    };
    let archive = scratch.join("night.tar.gz");
    let said = report(&["--admin", &engine.admin().to_string()], &archive);
    assert_eq!(said.status.code(), Some(0), "{}{}", said.text(), said.stderr);
    let manifest: serde_json::Value = serde_json::from_str(&said.text()).expect("JSON");
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&archive).expect("it").permissions()) & 0o777,
        0o600
    );
    let mut command = Command::new("tar");
    command.arg("xzOf").arg(&archive);
    let all = run(command, b"", WAIT_MAX).text();
    let mut command = Command::new("tar");
    command.arg("tzf").arg(&archive);
    let names = run(command, b"", WAIT_MAX).text();
    let parts = [
        "manifest", "process", "status", "config", "routes", "snapshot", "history", "log", "metrics", "kernel",
        "doctor",
    ];
    for part in parts {
        assert!(names.contains(&format!("/{part}.")), "{part}: {names}");
    }
    assert_eq!(manifest["files"].as_array().map(Vec::len), Some(parts.len() - 1), "{manifest:#}");
    assert_eq!(manifest["engine"]["pid"], engine.pid());
    for told in
        ["propylon_requests_in_progress", "Max open files", "somaxconn", "admin at http://", "(withheld)", "x-key"]
    {
        assert!(all.contains(told), "no {told}");
    }
    let secrets = [INLINE, HASH, &password, TOKEN, "correct horse battery staple", &"A".repeat(63)];
    let mut all_pieces = pieces(&good);
    secrets.iter().for_each(|secret| all_pieces.extend(pieces_of(secret)));
    tells_nothing("the report", &all, &all_pieces);
    // Another is not written over; of an engine that is gone there is what the machine tells.
    let again = report(&["--admin", &engine.admin().to_string()], &archive);
    assert_eq!(again.status.code(), Some(1), "{}", again.stderr);
    let gone = report(&["--admin", "127.0.0.1:9"], &scratch.join("gone.tar.gz"));
    assert_eq!(gone.status.code(), Some(3), "{}", gone.stderr);
    assert!(gone.stderr.contains("status.json is missing: 127.0.0.1:9 does not answer"), "{}", gone.stderr);
    let of_file = report(&["-c", &file.display().to_string()], &scratch.join("file.tar.gz"));
    assert_eq!(of_file.status.code(), Some(3), "its port is chosen by the kernel: {}", of_file.stderr);
}

/// What of a key in PEM may not be in memory: pieces of its base64, and, where it is not kept to be made ready when somebody
/// asks for it, of its numbers as files have them. (As they are computed with, their bytes stand the other way round.)
fn traces(name: &str, pem: &str) -> Vec<(String, Vec<u8>)> {
    let der = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key").secret_der().to_vec();
    let key = &pem[pem.find("-----BEGIN PRIVATE KEY-----").expect("a key")..];
    let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with("-----")).collect();
    let line = lines[lines.len() / 2].as_bytes();
    let base64 = (format!("{name}: base64"), line[..line.len().min(32)].to_vec());
    vec![base64, (format!("{name}: number"), number_of(&der).to_vec())]
}

/// The base64 alone.
fn text(name: &str, pem: &str) -> Vec<(String, Vec<u8>)> {
    traces(name, pem).into_iter().take(1).collect()
}

/// The private number of a P-256 key, or the middle of that of an RSA key with 2,048 bits, in PKCS#8.
fn number_of(der: &[u8]) -> &[u8] {
    if der.len() > 1000 { &der[400..432] } else { &der[36..68] }
}

#[track_caller]
fn forgets(what: &str, pid: u32, traces: &[(String, Vec<u8>)]) {
    // What was freed a moment ago may be on its way to be.
    let started = Instant::now();
    loop {
        let left = memory::found(pid, traces);
        if left.is_empty() {
            return;
        }
        assert!(started.elapsed() < WAIT_MAX, "{what}: {left:#?}");
    }
}

#[test]
fn an_engine_keeps_no_key_in_memory_that_it_has_given_back() {
    if !memory::may_look() {
        return;
    }
    let scratch = Scratch::new();
    let one = engine_files(&scratch);
    let rsa = Certificates::shared().issue(&["rsa.test"], &rcgen::PKCS_RSA_SHA256);
    scratch.write("folder/a.pem", &rsa);
    let engine = Engine::start(&engine_config(&scratch));
    let mut known = [text("one", &one), text("rsa", &rsa)].concat();
    known.push(("sticky".into(), b"correct horse battery staple, 42 times".to_vec()));
    forgets("after the start", engine.pid(), &known);
    // Certificates' keys are kept, once each, to be made ready; those that are shown to servers are ready.
    for kept in [&one, &rsa].map(|pem| traces("kept", pem)) {
        assert!(memory::found(engine.pid(), &kept).len() <= 1);
    }
    let next = Certificates::shared().issue(&["one.test"], &PKCS_ECDSA_P256_SHA256);
    for file in ["one.pem", "engine.pem", "client.pem"] {
        scratch.write(file, &next);
    }
    known.extend(text("next", &next));
    known.extend(traces("one", &one));
    engine.reload();
    forgets("after reading again", engine.pid(), &known);
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/x-pem-file\r\n");
    let mut sent = Vec::new();
    for (place, algorithm) in [&PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_RSA_SHA256].into_iter().enumerate() {
        let pem = Certificates::shared().issue(&["sent.test"], algorithm);
        let told = ask_admin(&engine, "PUT", &format!("/v1/certificates/public/sent{place}"), &fields, &pem);
        assert_eq!(told.status, 200, "{}", told.text());
        known.extend(text("sent", &pem));
        sent.extend(traces("sent and removed", &pem));
    }
    let bad = Certificates::shared().issue(&["bad.test"], &PKCS_ECDSA_P256_SHA256);
    let torn = bad.replace("-----END PRIVATE", "-----END PUBLIC");
    assert_eq!(ask_admin(&engine, "PUT", "/v1/certificates/public/torn", &fields, &torn).status, 422);
    known.extend(traces("torn", &bad));
    known.push(("token".into(), TOKEN.into()));
    forgets("after uploads", engine.pid(), &known);
    for place in 0..2 {
        let fields = format!("Authorization: Bearer {TOKEN}\r\n");
        let told = ask_admin(&engine, "DELETE", &format!("/v1/certificates/public/sent{place}"), &fields, "");
        assert_eq!(told.status, 200, "{}", told.text());
    }
    known.extend(sent);
    forgets("after their removal", engine.pid(), &known);
}

#[test]
fn a_key_server_keeps_no_key_in_memory_that_it_has_given_back_and_none_that_is_gone() {
    if !memory::may_look() {
        return;
    }
    let server = KeyServer::start("");
    let pem = |name: &str| fs::read_to_string(server.scratch.join(name)).expect("a file");
    let (ec, identity) = (pem("keys/ec.pem"), pem("server.pem"));
    let mut known = [traces("ec", &ec), traces("rsa", &pem("keys/rsa.pem")), traces("identity", &identity)].concat();
    server.bench("ec", "ecdsa-sha256", &["--count", "64", "--outstanding", "16"]).ok();
    server.bench("rsa", "rsa-pss-sha256", &["--count", "32", "--outstanding", "16"]).ok();
    forgets("after work", server.pid(), &known);
    // The other way round it is there for as long as it is served.
    let der = PrivateKeyDer::from_pem_slice(ec.as_bytes()).expect("a key").secret_der().to_vec();
    let used = vec![("ec, as it is computed with".to_owned(), number_of(&der).iter().rev().copied().collect())];
    assert!(!memory::found(server.pid(), &used).is_empty(), "the search finds what is there");
    keyserver::write_key(&server.scratch, "ec", KeyPair::generate().expect("a key"));
    fs::remove_file(server.scratch.join("keys/rsa.pem")).expect("our own file");
    server.signal(Signal::HUP);
    holds("the keys have been read again", || server.says("serves 3 keys now"));
    known.extend(traces("the new one", &pem("keys/ec.pem")));
    known.extend(used);
    forgets("after a change", server.pid(), &known);
}
