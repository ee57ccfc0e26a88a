//! Thousands of certificates in one folder: each client gets its own, and new files are taken up while they are served.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use propylon_e2e::certificates::{self, leaf_of};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, holds};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustix::process::Signal;
use serde_json::Value;

const COUNT: usize = 2000;

fn name(index: usize) -> String {
    format!("{index}.many.test")
}

/// A certificate for one name, in a file of that name: renamed into place, and old enough to be known again by its looks.
fn put(scratch: &Scratch, index: usize) -> Vec<u8> {
    let pem = Certificates::shared().issue(&[&name(index)], &PKCS_ECDSA_P256_SHA256);
    put_text(scratch, index, &pem);
    leaf_of(&pem)
}

fn put_text(scratch: &Scratch, index: usize, text: &str) {
    let new = scratch.write("new", text);
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("permissions");
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(&new).and_then(|file| file.set_modified(hour_ago)).expect("a time");
    fs::rename(new, file(scratch.path(), index)).expect("a rename within a folder");
}

fn file(folder: &Path, index: usize) -> std::path::PathBuf {
    folder.join(format!("{}.pem", name(index)))
}

/// The leaf that a client is shown that asks for this name, and verifies that it is for it.
fn leaf(address: SocketAddr, index: usize) -> Vec<u8> {
    certificates::leaf(address, &name(index), &Certificates::shared().client()).expect("a handshake")
}

fn config(server: SocketAddr, folder: &Path) -> String {
    format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [listener.relay]\nprotocol = \"tcp\"\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [tls.public]\ncertificates = [\"{}\"]\n[backend.app]\nservers = [\"{server}\"]\n\
         [[route]]\nbackend = \"app\"\n[[route]]\nlistener = \"relay\"\nbackend = \"app\"\n",
        folder.display()
    )
}

#[test]
fn each_of_thousands_of_names_gets_its_own_certificate_also_while_files_are_swapped_and_broken() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
    let scratch = Scratch::new();
    let mut leaves: Vec<Vec<u8>> = (0..COUNT).map(|index| put(&scratch, index)).collect();
    let engine = Engine::start(&config(origin.address(), scratch.path()));
    let listeners = [engine.address("web"), engine.address("relay")];
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut see_some = |leaves: &[Vec<u8>]| {
        for _ in 0..40 {
            let index = random.usize(..COUNT);
            assert_eq!(leaf(*random.choice(&listeners).expect("two"), index), leaves[index], "{}", name(index));
        }
    };
    see_some(&leaves);
    assert_eq!(engine.metric("propylon_certificates", &[("profile", "public")]), COUNT as f64);

    let swapped = 1234;
    leaves[swapped] = put(&scratch, swapped);
    engine.signal(Signal::HUP);
    holds("the new certificate is served", || leaf(listeners[0], swapped) == leaves[swapped]);
    see_some(&leaves);

    // Of two new files one is broken: the other is taken up, and nobody misses what was there.
    let (broken, good) = (7, 1999);
    put_text(&scratch, broken, "-----BEGIN CERTIFICATE-----\nMIIB");
    leaves[good] = put(&scratch, good);
    engine.signal(Signal::HUP);
    holds("the good one is served", || leaf(listeners[1], good) == leaves[good]);
    listeners.iter().for_each(|listener| assert_eq!(leaf(*listener, broken), leaves[broken]));
    let told = |line: &String| line.contains(&name(broken)) && line.contains("not well-formed PEM");
    holds("the log names the broken file", || engine.stderr().iter().any(told));
    engine.metric_reaches("propylon_certificate_reload_errors_total", &[], 1.0);
    assert_eq!(engine.metric("propylon_certificate_reloads_total", &[("result", "failure")]), 1.0);
    assert_eq!(engine.metric("propylon_certificate_reloads_total", &[("result", "success")]), 1.0);

    leaves[broken] = put(&scratch, broken);
    engine.signal(Signal::HUP);
    holds("what was broken is mended", || leaf(listeners[0], broken) == leaves[broken]);
    see_some(&leaves);
    let ready = engine.metric("propylon_tls_certificates_made_ready_total", &[]);
    assert!(ready < COUNT as f64, "{ready} were made ready for some 130 names on two cores");
}

#[test]
fn what_is_told_of_thousands_of_certificates_is_bounded_and_says_how_many_there_are() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
    let scratch = Scratch::new();
    let count = 1100;
    (0..count - 1).for_each(|index| drop(put(&scratch, index)));
    // The last by name, and the first to expire.
    let pem = Certificates::shared().issue_dated(&["zz.many.test"], (2020, 2021));
    scratch.write("zz.pem", pem);
    let engine = Engine::start(&config(origin.address(), scratch.path()));
    let metrics = engine.metrics();
    let series = metrics.lines().filter(|line| line.starts_with("propylon_certificate_expiry_seconds{"));
    assert_eq!(series.count(), 1000);
    let soonest = engine.metric("propylon_certificate_expiry_seconds", &[("name", "zz.many.test")]);
    assert_eq!(engine.metric("propylon_certificate_soonest_expiry_seconds", &[]), soonest);
    for (path, shown) in [("/snapshot", 1000), ("/status.json", 100)] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
        let told: Value = serde_json::from_str(&Client::plain(engine.admin()).ask(request).text()).expect("JSON");
        let (total, list) = match told["certificates"].get("list") {
            Some(list) => (&told["certificates"]["total"], list),
            None => (&told["certificates_total"], &told["certificates"]),
        };
        assert_eq!(*total, count);
        assert_eq!(list.as_array().expect("an array").len(), shown);
    }
    holds("that it has expired is told", || engine.stderr().iter().any(|line| line.contains("expired on 2021-01-01")));
}
