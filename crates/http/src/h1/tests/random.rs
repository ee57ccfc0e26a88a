//! The promises of `fuzz.rs` over inputs that are nearly right, from a seed.

use super::super::fuzz;

const SEED: u64 = 0x9112;

const REQUESTS: [&str; 10] = [
    "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
    "POST /x?y=z HTTP/1.1\r\nhost: A.example:8080\r\nContent-Length: 5\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\r\nhello",
    "PUT /u HTTP/1.1\r\nHost: [2001:db8::1]:443\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nTrailer: X-Sum\r\nExpect: 100-continue\r\n\r\n",
    "GET http://a.example:80/p?q HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 10.0.0.1\r\nForwarded: for=10.0.0.1;host=\"a:1\"\r\n\r\n",
    "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc==\r\n\r\n",
    "GET / HTTP/1.0\r\nConnection: keep-alive\r\nKeep-Alive: 300\r\nProxy-Connection: x\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\nMax-Forwards: 3\r\nVia: 1.0 other\r\n\r\n",
    "\r\nOPTIONS http://a HTTP/1.1\r\nHost: a\r\nAccept:\ttext/html;q=0.5 , */*\t\r\n\r\n",
    "GET http://a?q=1 HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\nX-Empty:\r\nCookie: a=b; c=é\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nX-Forwarded-Proto: https\r\n\r\n",
];

const RESPONSES: [&str; 8] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: x\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n",
    "HTTP/1.0 404 Not Found\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 304\r\nETag: \"a\"\r\nContent-Length: 7\r\n\r\n",
    "HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "HTTP/1.1 426 Upgrade Required\r\nUpgrade: foo/2\r\nConnection: upgrade\r\n\r\n",
];

const CHUNKED: [&str; 5] = [
    "5\r\nhello\r\n0\r\n\r\n",
    "0005;a=b;c = \"d\\\"e\"\r\nhello\r\n1a\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nX-Sum: 1\r\nHost: a\r\n\r\n",
    "A ;x\r\n0123456789\r\n00\r\n\r\nGET / HTTP/1.1\r\n",
    "1\r\na\r\n1\r\nb\r\n0;last\r\nGrpc-Status:0 \r\n\r\n",
    "0\r\nX_Forwarded_For: 1\r\nConnection: close\r\nETag: \"1\"\r\n\r\n",
];

/// Pieces that make parsers disagree.
const MORSELS: [&str; 40] = [
    "\r\n",
    "\n",
    "\r",
    "\0",
    " ",
    "\t",
    ":",
    ",",
    ";",
    "\"",
    "\\",
    "#",
    "?",
    "/",
    "*",
    "@",
    "[",
    "]",
    "0",
    "5",
    "f",
    "0x",
    "+",
    "-",
    "_",
    "\x0b",
    "\x7f",
    "chunked",
    "gzip, ",
    "identity",
    "close",
    "Host: a\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: Host\r\n",
    "HTTP/1.0",
    "HTTP/1.1",
    "HTTP/2.0",
    "X-Forwarded-For: 1\r\n",
    "\r\n\r\n",
];

fn mutated(random: &mut fastrand::Rng, seeds: &[&str]) -> Vec<u8> {
    let mut bytes = random.choice(seeds).expect("seeds").as_bytes().to_vec();
    for _ in 0..random.usize(0..5) {
        let at = random.usize(0..=bytes.len());
        let end = (at + random.usize(0..12)).min(bytes.len());
        match random.u8(0..7) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 if at < bytes.len() => bytes[at] ^= 1 << random.u8(0..8),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            4 => {
                let other = random.choice(seeds).expect("seeds").as_bytes();
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.usize(0..other.len())..]);
            }
            5 => {
                let morsel = random.choice(MORSELS).expect("morsels");
                bytes.splice(at..end, morsel.bytes());
            }
            _ => {
                let morsel = random.choice(MORSELS).expect("morsels");
                let line = bytes.windows(2).position(|w| w == b"\r\n").map_or(0, |i| i + 2);
                bytes.splice(line..line, morsel.bytes());
            }
        }
    }
    bytes
}

fn run(seeds: &[&str], inputs: u32, check: fn(&[u8])) {
    let mut random = fastrand::Rng::with_seed(SEED);
    for number in 0..inputs {
        let input = mutated(&mut random, seeds);
        let outcome = std::panic::catch_unwind(|| check(&input));
        assert!(outcome.is_ok(), "input {number} of seed {SEED:#x}: {}", input.escape_ascii());
    }
}

#[test]
fn whatever_is_let_through_reads_the_same_again() {
    run(&REQUESTS, 100_000, fuzz::head);
}

#[test]
fn whatever_a_server_says_reads_the_same_again() {
    run(&RESPONSES, 30_000, fuzz::response);
}

#[test]
fn a_chunked_body_is_the_same_however_it_arrives() {
    run(&CHUNKED, 50_000, fuzz::chunk);
}
