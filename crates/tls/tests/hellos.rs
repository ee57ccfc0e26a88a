//! The peeker reads the hellos of real clients as the TLS library does, and fingerprints them as others do.

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::*;
use propylon_tls::hello::{ClientHello, Peeker};
use propylon_tls::{Ja4, Tickets};
use rustls::server::Acceptor as Witness;

/// As a browser sent it, in one record.
const CHROMIUM: &[u8] = include_bytes!("hellos/chromium-156.bin");

/// Calls `look` with the hello that these bytes hold.
fn peek<T>(bytes: &[u8], look: impl FnOnce(&ClientHello<'_>) -> T) -> T {
    let mut scratch = Vec::new();
    let hello = Peeker::default().peek(bytes, &mut scratch).unwrap().expect("a whole hello");
    look(&hello)
}

/// Fields of a hello that two parsers can agree on.
#[derive(Debug, PartialEq, Eq)]
struct View {
    server_name: Option<String>,
    alpn: Option<Vec<Vec<u8>>>,
    suites: Vec<u16>,
    schemes: Vec<u16>,
    groups: Option<Vec<u16>>,
}

fn ours(bytes: &[u8]) -> View {
    peek(bytes, |hello| {
        let alpn: Vec<Vec<u8>> = hello.alpn().map(<[u8]>::to_vec).collect();
        View {
            server_name: hello.server_name().map(str::to_ascii_lowercase),
            alpn: (!alpn.is_empty()).then_some(alpn),
            suites: hello.cipher_suites.iter().collect(),
            schemes: hello.signature_algorithms.unwrap_or_default().iter().collect(),
            groups: hello.supported_groups.map(|groups| groups.iter().collect()),
        }
    })
}

fn librarys(bytes: &[u8]) -> View {
    librarys_if_good(bytes).expect("a good hello")
}

/// Fields as the library reads them; none where it rejects the hello.
fn librarys_if_good(mut bytes: &[u8]) -> Option<View> {
    let mut witness = Witness::default();
    while !bytes.is_empty() {
        witness.read_tls(&mut bytes).ok()?;
    }
    let accepted = witness.accept().ok()??;
    let hello = accepted.client_hello();
    Some(View {
        server_name: hello.server_name().map(str::to_string),
        alpn: hello.alpn().map(|all| all.map(<[u8]>::to_vec).collect()),
        suites: hello.cipher_suites().iter().map(|suite| u16::from(*suite)).collect(),
        schemes: hello.signature_schemes().iter().map(|scheme| u16::from(*scheme)).collect(),
        groups: hello.named_groups().map(|groups| groups.iter().map(|group| u16::from(*group)).collect()),
    })
}

/// The first record or records that a program sends to a port where nobody answers.
fn said_by(program: &str, arguments: impl Fn(u16) -> Vec<String>) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut command = Command::new(program);
    command.args(arguments(port)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
    let (mut stream, _) = listener.accept().unwrap();
    let (mut bytes, mut scratch) = (Vec::new(), Vec::new());
    let mut peeker = Peeker::default();
    while peeker.peek(&bytes, &mut scratch).unwrap().is_none() {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "{program} went away");
        bytes.extend_from_slice(&piece[..count]);
    }
    drop(stream);
    child.wait().unwrap();
    bytes
}

fn s_client(extra: &'static [&'static str]) -> Vec<u8> {
    said_by("openssl", |port| {
        let connect = format!("127.0.0.1:{port}");
        ["s_client", "-connect", &connect].iter().chain(extra).map(|argument| argument.to_string()).collect()
    })
}

fn curl(extra: &'static [&'static str]) -> Vec<u8> {
    said_by("curl", |port| {
        let (url, resolve) = (format!("https://{NAME}:{port}/"), format!("{NAME}:{port}:127.0.0.1"));
        let fixed = ["--silent", "--noproxy", "*", "--resolve", &resolve, &url];
        fixed.iter().chain(extra).map(|argument| argument.to_string()).collect()
    })
}

fn of_rustls(client: Client) -> Vec<u8> {
    Dialogue::new(&acceptor(), &client.config(), NAME).client_bytes()
}

#[test]
fn the_peeker_and_the_library_read_the_same_in_every_clients_hello() {
    let h2 = || vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let hellos = [
        CHROMIUM.to_vec(),
        s_client(&["-servername", "Shop.Example", "-alpn", "h2,http/1.1"]),
        s_client(&["-noservername"]),
        s_client(&["-tls1_2", "-servername", NAME]),
        s_client(&["-tls1_3", "-groups", "P-384:X25519", "-sigalgs", "ECDSA+SHA256:ed25519"]),
        curl(&[]),
        curl(&["--http1.1", "--tls-max", "1.2"]),
        of_rustls(Client { alpn: h2(), ..Client::new() }),
        of_rustls(Client::tls12()),
    ];
    for bytes in &hellos {
        assert_eq!(ours(bytes), librarys(bytes));
    }
}

#[test]
fn a_hello_reads_the_same_in_any_division_into_records() {
    let whole = ours(CHROMIUM);
    let fingerprint = peek(CHROMIUM, Ja4::of);
    for size in [1, 4, 5, 100, 1000] {
        let record = |piece: &[u8]| [&[22, 3, 1][..], &(piece.len() as u16).to_be_bytes(), piece].concat();
        let bytes: Vec<u8> = CHROMIUM[5..].chunks(size).flat_map(record).collect();
        assert_eq!(ours(&bytes), whole);
        assert_eq!(librarys(&bytes), whole);
        assert_eq!(peek(&bytes, Ja4::of), fingerprint);
    }
}

#[test]
fn a_browsers_hello_has_its_known_fingerprint_and_its_shares() {
    assert_eq!(peek(CHROMIUM, Ja4::of).as_str(), "t13d1517h2_8daaf6152771_cb7bf5808d99");
    peek(CHROMIUM, |hello| {
        let shares: Vec<(u16, usize)> = hello.key_shares().map(|(group, share)| (group, share.len())).collect();
        assert!(shares.contains(&(29, 32)) && shares.contains(&(0x11ec, 1216)), "{shares:?}");
        assert!(hello.supported_versions.unwrap().iter().any(|version| version == 0x0304));
        assert_eq!((hello.legacy_version, hello.session_id.len(), hello.compression_methods), (0x0303, 32, &[0][..]));
    });
}

#[test]
fn a_session_has_the_fingerprint_where_its_profile_asks_for_it_however_the_hello_arrives() {
    let directory = Directory::new();
    let path = directory.write("ec.pem", ec(&[NAME]));
    for asks in [false, true] {
        let mut profile = tls_profile(&[&path]);
        profile.ja4 = asks;
        let acceptor = load(&profile).acceptor(&Arc::new(Tickets::new()));
        for piece in [1, 7, 100_000] {
            let mut dialogue = Dialogue::new(&acceptor, &Client::new().config(), NAME);
            let hello = dialogue.client_bytes();
            for bytes in hello.chunks(piece) {
                let (_, out) = dialogue.feed(bytes).unwrap();
                dialogue.deliver(&out).unwrap();
            }
            dialogue.shake().unwrap();
            let ja4 = dialogue.session.hello_info().unwrap().ja4.clone();
            assert_eq!(ja4, asks.then(|| Box::new(peek(&hello, Ja4::of))));
        }
    }
}

#[test]
fn a_hello_that_a_handshake_fails_at_leaves_name_and_fingerprint_behind() {
    let directory = Directory::new();
    let path = directory.write("ec.pem", ec(&[NAME]));
    let mut profile = tls_profile(&[&path]);
    profile.ja4 = true;
    let acceptor = load(&profile).acceptor(&Arc::new(Tickets::new()));
    let hello = s_client(&["-tls1_2", "-cipher", "ECDHE-RSA-AES128-SHA", "-servername", "Shop.Example"]);
    let mut session = acceptor.accept();
    let failure = session.handshake(&mut hello.clone(), &mut Vec::new()).unwrap_err();
    assert_eq!(failure.reason.label(), "no-shared-cipher");
    let known = session.hello_info().unwrap();
    assert_eq!(
        (known.server_name.as_deref(), known.ja4.as_deref().copied()),
        (Some("shop.example"), Some(peek(&hello, Ja4::of)))
    );
}

/// Damages a few bytes behind the headers of record and message.
fn damaged(bytes: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    for _ in 0..random.usize(1..4) {
        let at = random.usize(9..damaged.len());
        damaged[at] = match random.u8(0..3) {
            0 => random.u8(..),
            1 => damaged[at].wrapping_add(1),
            _ => damaged[at].wrapping_sub(1),
        };
    }
    damaged
}

#[test]
fn whatever_hello_the_library_takes_is_read_the_same_and_none_is_too_much() {
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let hellos = [CHROMIUM.to_vec(), of_rustls(Client { alpn: vec![b"h2".to_vec()], ..Client::new() })];
    let (mut taken, mut refused) = (0, 0);
    for round in 0..20_000 {
        let bytes = damaged(&hellos[round % hellos.len()], &mut random);
        match librarys_if_good(&bytes) {
            Some(view) => {
                assert_eq!(ours(&bytes), view, "round {round}");
                taken += 1;
            }
            None => {
                let mut scratch = Vec::new();
                let _ = Peeker::default().peek(&bytes, &mut scratch).map(|hello| hello.map(|hello| Ja4::of(&hello)));
                refused += 1;
            }
        }
    }
    assert!(taken > 1_000 && refused > 1_000, "{taken} and {refused}: the damage is of one kind");
}
