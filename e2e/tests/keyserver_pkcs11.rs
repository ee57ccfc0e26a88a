//! The key server with keys in a hardware module: SoftHSM stands for one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use propylon_e2e::holds;
use propylon_e2e::keyserver::{KeyServer, Link, Reply, frame, ordinary};
use propylon_e2e::program::run;
use propylon_e2e::scratch::Scratch;
use propylon_e2e::softhsm::{PIN, SoftHsm};
use propylon_e2e::wait::WAIT_MAX;
use rustix::process::Signal;

const DIGEST: [u8; 32] = [7; 32];
const ECDSA_SHA256: u8 = 0x15;

/// A `[[pkcs11]]` for the token, and the PIN's file.
fn section(hsm: &SoftHsm, scratch: &Scratch, more: &str) -> String {
    let pin = scratch.write("pin", PIN);
    fs::set_permissions(pin, fs::Permissions::from_mode(0o400)).expect("a mode");
    format!(
        "[[pkcs11]]\nmodule = \"{}\"\ntoken = \"web\"\npin_file = \"pin\"\nmodule_paths = [\"{}\"]\n{more}\n",
        SoftHsm::module().display(),
        hsm.folders().display()
    )
}

fn start(hsm: &SoftHsm, more: &str) -> KeyServer {
    let scratch = KeyServer::files();
    let section = section(hsm, &scratch, more);
    KeyServer::start_as(hsm.program(), scratch, &section)
}

fn ski(server: &KeyServer, place: &str) -> [u8; 20] {
    let said = server.command("keys", &["--json"]).ok();
    let keys: Vec<serde_json::Value> = serde_json::from_slice(&said.stdout).expect("a JSON array");
    let found = keys.iter().find(|known| known["file"].as_str().is_some_and(|file| file.ends_with(place)));
    let hex = found.and_then(|found| found["ski"].as_str()).unwrap_or_else(|| panic!("no {place} in {keys:?}"));
    std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hexadecimal digits"))
}

fn ask(link: &mut Link, opcode: u8, ski: &[u8; 20], input: &[u8]) -> Reply {
    link.ask(&frame(opcode, 1, &[(0x12, input), (0x04, ski)]))
}

#[test]
fn every_type_of_key_signs_and_openssl_agrees() {
    let hsm = SoftHsm::new();
    let keys = [
        ("shop-ec", hsm.generate("shop-ec", "01", &rcgen::PKCS_ECDSA_P256_SHA256)),
        ("shop-ec384", hsm.generate("shop-ec384", "02", &rcgen::PKCS_ECDSA_P384_SHA384)),
        ("shop-ec521", hsm.generate("shop-ec521", "03", &rcgen::PKCS_ECDSA_P521_SHA512)),
        ("shop-rsa", hsm.generate("shop-rsa", "04", &rcgen::PKCS_RSA_SHA256)),
    ];
    let operations = "[\"default\", \"rsa-decrypt\", \"rsa-pkcs1-md5sha1\", \"rsa-pkcs1-sha1\"]";
    let server = start(&hsm, &format!("[[client]]\ncommon_name = \"engine\"\noperations = {operations}"));
    let mut link = server.link();
    let said = server.command("keys", &[]).ok().text();
    assert!(said.lines().any(|line| line.contains("RSA-2048") && line.ends_with("pkcs11:web/shop-rsa")), "{said}");
    let verify = |public: &std::path::Path, digest: &[u8], signature: &[u8], options: &[&str]| {
        let (digest, signature) = (server.scratch.write("digest", digest), server.scratch.write("sig", signature));
        let mut command = Command::new("openssl");
        command.args(["pkeyutl", "-verify", "-pubin", "-inkey"]).arg(public).arg("-in").arg(digest);
        command.arg("-sigfile").arg(signature);
        for option in options {
            command.args(["-pkeyopt", option]);
        }
        run(command, b"", WAIT_MAX).ok();
    };
    let digest = [9; 64];
    for (label, public) in &keys {
        let ski = ski(&server, &format!("web/{label}"));
        let asked: &[(u8, usize, &[&str])] = match *label {
            "shop-rsa" => &[
                (0x03, 20, &["digest:sha1"]),
                (0x05, 32, &["digest:sha256"]),
                (0x06, 48, &["digest:sha384"]),
                (0x07, 64, &["digest:sha512"]),
                (0x35, 32, &["digest:sha256", "rsa_padding_mode:pss", "rsa_pss_saltlen:32"]),
                (0x36, 48, &["digest:sha384", "rsa_padding_mode:pss", "rsa_pss_saltlen:48"]),
                (0x37, 64, &["digest:sha512", "rsa_padding_mode:pss", "rsa_pss_saltlen:64"]),
            ],
            // More than the order of P-256 has, and less than that of the others.
            _ => &[(0x15, 32, &[]), (0x16, 48, &[]), (0x17, 64, &[])],
        };
        for (opcode, length, options) in asked {
            let reply = ask(&mut link, *opcode, &ski, &digest[..*length]);
            assert_eq!(reply.opcode, 0xf0, "{label}, opcode {opcode:#x}: {:x?}", reply.payload);
            verify(public, &digest[..*length], &reply.payload, options);
        }
    }
    // MD5 and SHA-1 one after the other, without a DigestInfo; what is signed comes back by the public operation.
    let rsa = ski(&server, "web/shop-rsa");
    assert_eq!(ask(&mut link, 0x02, &rsa, &[7; 36]).payload.len(), 256);
    // The raw operation undoes the public one.
    let mut padded = vec![0; 256];
    padded[255] = 2;
    let reply = ask(&mut link, 0x01, &rsa, &[2]);
    assert_eq!((reply.opcode, reply.payload.len()), (0xf0, 256));
    let raw = server.scratch.write("raw", &reply.payload);
    let mut command = Command::new("openssl");
    command.args(["pkeyutl", "-encrypt", "-pubin", "-inkey"]).arg(&keys[3].1);
    command.args(["-pkeyopt", "rsa_padding_mode:none", "-in"]).arg(raw);
    assert_eq!(run(command, b"", WAIT_MAX).ok().stdout, padded);
    // What does not go together is refused as it is with keys in files.
    assert_eq!(ask(&mut link, 0x15, &rsa, &DIGEST).payload, [0x01]);
    assert_eq!(ask(&mut link, 0x05, &rsa, &[7; 31]).payload, [0x01]);
    assert_eq!(server.metric("propylon_keyserver_token_sessions{token=\"web\"}"), 4);
    let signed = server.metric("propylon_keyserver_token_operations_total{token=\"web\",outcome=\"signed\"}");
    assert!(signed >= 18, "{signed}");
}

#[test]
fn hundreds_at_once_are_signed_beside_keys_in_files() {
    let hsm = SoftHsm::new();
    let ec = hsm.generate("busy-ec", "0a", &rcgen::PKCS_ECDSA_P256_SHA256);
    let rsa = hsm.generate("busy-rsa", "0b", &rcgen::PKCS_RSA_SHA256);
    let server = start(&hsm, "sessions = 3\nkeys = [\"busy-rsa\", \"id:0a\"]");
    for (name, public) in [("busy-ec", &ec), ("busy-rsa", &rsa)] {
        fs::copy(public, server.scratch.join(&format!("{name}.crt"))).expect("a copy");
    }
    std::thread::scope(|scope| {
        for (key, operation) in [
            ("busy-ec", "ecdsa-sha256"),
            ("busy-rsa", "rsa-pss-sha256"),
            ("busy-rsa", "rsa-pkcs1-sha256"),
            ("ec", "ecdsa-sha256"),
        ] {
            let server = &server;
            let more = ["--count", "300", "--outstanding", "32", "--connections", "2"];
            scope.spawn(move || server.bench(key, operation, &more).ok());
        }
    });
    assert_eq!(server.metric("propylon_keyserver_waiting{queue=\"pkcs11:web\"}"), 0);
}

#[test]
fn a_key_that_is_deleted_is_gone_and_one_that_is_new_comes_when_asked_for() {
    let hsm = SoftHsm::new();
    hsm.generate("old", "01", &rcgen::PKCS_ECDSA_P256_SHA256);
    hsm.generate("stays", "02", &rcgen::PKCS_ECDSA_P256_SHA256);
    let server = start(&hsm, "sessions = 2");
    let [old, stays, file] = ["web/old", "web/stays", "keys/ec.pem"].map(|place| ski(&server, place));
    let mut link = server.link();
    for ski in [&old, &stays, &file] {
        assert_eq!(ask(&mut link, ECDSA_SHA256, ski, &DIGEST).opcode, 0xf0);
    }
    hsm.tool(&["--delete-object", "--type", "privkey", "--label", "old"]).ok();
    holds("the deleted key is not found", || ask(&mut link, ECDSA_SHA256, &old, &DIGEST).payload == [0x02]);
    for ski in [&stays, &file] {
        assert_eq!(ask(&mut link, ECDSA_SHA256, ski, &DIGEST).opcode, 0xf0);
    }
    hsm.generate("new", "03", &rcgen::PKCS_ECDSA_P256_SHA256);
    let new = ski(&server, "web/new");
    server.signal(Signal::HUP);
    holds("the new key is served", || ask(&mut link, ECDSA_SHA256, &new, &DIGEST).opcode == 0xf0);
}

#[test]
fn a_token_that_is_taken_away_is_an_error_and_comes_back_by_itself() {
    let hsm = SoftHsm::new();
    hsm.generate("key", "01", &rcgen::PKCS_ECDSA_P256_SHA256);
    let server = start(&hsm, "sessions = 2\ntimeout = \"2s\"");
    let (key, file) = (ski(&server, "web/key"), ski(&server, "keys/ec.pem"));
    let mut link = server.link();
    assert_eq!(ask(&mut link, ECDSA_SHA256, &key, &DIGEST).opcode, 0xf0);
    let away = hsm.folder().with_extension("away");
    fs::rename(hsm.folder(), &away).expect("another name");
    holds("there is an error instead of a signature", || {
        assert_eq!(ask(&mut link, ECDSA_SHA256, &file, &DIGEST).opcode, 0xf0, "keys in files do not mind");
        ask(&mut link, ECDSA_SHA256, &key, &DIGEST).opcode == 0xff
    });
    fs::rename(&away, hsm.folder()).expect("its name");
    holds("signatures are back", || ask(&mut link, ECDSA_SHA256, &key, &DIGEST).opcode == 0xf0);
}

#[test]
fn a_module_that_hangs_is_waited_for_no_longer_than_said_and_by_nobody_else() {
    let hsm = SoftHsm::new();
    hsm.generate("key", "01", &rcgen::PKCS_ECDSA_P256_SHA256);
    let server = start(&hsm, "sessions = 2\ntimeout = \"500ms\"");
    let (key, file) = (ski(&server, "web/key"), ski(&server, "keys/ec.pem"));
    let mut link = server.link();
    assert_eq!(ask(&mut link, ECDSA_SHA256, &key, &DIGEST).opcode, 0xf0);
    // SoftHSM takes a lock on the token's files when it looks at a key.
    let locks = hsm.lock();
    let requests: Vec<u8> = (2..6).flat_map(|id| frame(ECDSA_SHA256, id, &[(0x12, &DIGEST), (0x04, &key)])).collect();
    link.send(&requests).expect("requests are sent");
    for _ in 0..10 {
        assert_eq!(ask(&mut link, ECDSA_SHA256, &file, &DIGEST).opcode, 0xf0, "a key in a file waits for nobody");
    }
    for _ in 2..6 {
        let reply = link.receive().expect("a reply");
        assert_eq!((reply.opcode, reply.payload), (0xff, vec![0x08]));
    }
    holds("both threads are missed", || server.metric("propylon_keyserver_token_stuck{token=\"web\"}") == 2);
    // Nobody is made to wait for threads that do not come back.
    assert_eq!(ask(&mut link, ECDSA_SHA256, &key, &DIGEST).payload, [0x08]);
    drop(locks);
    holds("signatures are back", || ask(&mut link, ECDSA_SHA256, &key, &DIGEST).opcode == 0xf0);
}

#[test]
fn what_is_wrong_with_a_module_its_token_or_its_pin_is_told_at_the_start() {
    let hsm = SoftHsm::new();
    hsm.generate("key", "01", &rcgen::PKCS_ECDSA_P256_SHA256);
    let scratch = KeyServer::files();
    let good = section(&hsm, &scratch, "");
    let module = SoftHsm::module().display().to_string();
    let fails = |section: &str| KeyServer::fails(&hsm.program(), &scratch, section);
    for (from, to, what) in [
        (module.as_str(), "/nowhere/hsm.so", "/nowhere/hsm.so: the module cannot be read"),
        (module.as_str(), "/bin/true", "/bin/true: the module cannot be used"),
        ("\"web\"", "\"wep\"", "token \"wep\": the module does not have it; there is \"web\" in slot "),
        ("\"pin\"", "\"nopin\"", "nopin: it cannot be read"),
        ("pin_file", "keys = [\"other\"]\npin_file", "token \"web\": it has no other"),
    ] {
        let said = fails(&good.replacen(from, to, 1));
        assert!(said.contains(what), "no \"{what}\" in {said}");
    }
    let pin = |text: &str, mode| {
        fs::remove_file(scratch.join("pin")).expect("it is there");
        let pin = scratch.write("pin", text);
        fs::set_permissions(pin, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    pin(PIN, 0o444);
    assert!(fails(&good).contains("pin: every account of this machine may read or change it; write the user's PIN"));
    pin("99999999", 0o400);
    let said = fails(&good);
    assert!(said.contains("token \"web\": the token refuses the PIN; write the right PIN"), "{said}");
    assert!(!said.contains("99999999") && !said.contains(PIN), "{said}");
    // The same configuration where modules are not built in.
    let said = KeyServer::fails(&ordinary(), &scratch, &good);
    assert!(said.contains("built without PKCS#11; build it with") && said.contains("--features pkcs11"), "{said}");
}
