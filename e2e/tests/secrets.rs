//! Private keys stay where they belong: not in a log, not in an answer, not in memory that is not used any more.

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use propylon_e2e::admin::{TOKEN, ask_admin, with_state};
use propylon_e2e::engine::complete;
use propylon_e2e::keyserver::KeyServer;
use propylon_e2e::program::run;
use propylon_e2e::wait::{PATIENCE, holds};
use propylon_e2e::{Certificates, Engine, Scratch, binaries};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustix::process::Signal;

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
    let said = run(command, b"", PATIENCE);
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
