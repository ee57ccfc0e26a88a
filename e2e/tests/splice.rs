//! Long bodies between plaintext connections, which the kernel moves: whole to the last byte, and not a byte more.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use propylon_e2e::engine::simple;
use propylon_e2e::http::{chunked, in_chunks, values};
use propylon_e2e::nginx::Nginx;
use propylon_e2e::program::{curl_within, run};
use propylon_e2e::{Client, Ending, Engine, Origin, Scratch, holds};
use rustix::process::Signal;

const MIB: usize = 1 << 20;
/// Around what one read and one pipe hold, and a body of many of them.
const LENGTHS: [usize; 10] = [0, 1, 65_535, 65_536, 65_537, 4 * 65_536 - 1, 4 * 65_536, 4 * 65_536 + 1, MIB, 100 * MIB];
/// Chunks around what is spliced and what one pipe holds, between those that are not worth it.
const CHUNKS: [usize; 17] = [
    1, 15, 16_384, 32_767, 32_768, 32_769, 65_536, 65_536, 65_536, 100_000, 262_143, 262_144, 262_145, 40_000, 5,
    700_001, 2,
];
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes that are different wherever one looks.
fn noise(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::Rng::with_seed(count as u64).fill(&mut bytes);
    bytes
}

/// Digests of the files of these lengths in a folder.
fn digests(folder: &Path) -> String {
    let mut command = Command::new("sha256sum");
    command.current_dir(folder).args(LENGTHS.map(|length| length.to_string()));
    run(command, b"", LIMIT).ok().text()
}

fn get(path: impl std::fmt::Display) -> String {
    format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

#[track_caller]
fn expect_body(client: &mut Client, length: usize) {
    let head = client.read_head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let (expected, mut at) = (noise(length), 0);
    client.read_through(length as u64, |piece| {
        assert!(expected[at..].starts_with(piece), "in {} bytes from {at} of {length}", piece.len());
        at += piece.len();
    });
}

#[test]
fn a_download_of_any_length_is_whole_and_the_next_response_follows_it() {
    let nginx = Nginx::start("files");
    for length in LENGTHS {
        std::fs::write(nginx.root().join(length.to_string()), noise(length)).expect("a file");
    }
    let engine = Engine::start(&simple(&[nginx.address()]));
    let mut client = engine.client("plain");
    for length in LENGTHS {
        client.send([get(length), get(1)].concat());
        expect_body(&mut client, length);
        expect_body(&mut client, 1);
    }
    let scratch = Scratch::new();
    let mut arguments = vec!["--write-out".to_string(), "%{http_code} %{num_connects} %{size_download}\\n".into()];
    for length in LENGTHS {
        arguments.push("--output".into());
        arguments.push(scratch.join(&length.to_string()).display().to_string());
        arguments.push(format!("{}/{length}", engine.url("plain")));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = curl_within(LIMIT, &arguments).ok().text();
    for (index, (line, length)) in said.lines().zip(LENGTHS).enumerate() {
        assert_eq!(line, format!("200 {} {length}", i32::from(index == 0)), "one connection for all of them");
    }
    assert_eq!(digests(scratch.path()), digests(&nginx.root()));
    let line = engine.logged_path(&format!("/{}", 100 * MIB));
    assert!(line["bytes_sent"].as_u64() > Some(100 * MIB as u64) && line["fault"].is_null(), "{line}");
    let asked = LENGTHS.len() * 3;
    assert_eq!(engine.metric("propylon_server_reused_total", &[]), asked as f64 - 1.0, "each connection was kept");
}

#[test]
fn an_upload_of_any_length_is_whole_and_the_next_request_follows_it() {
    let nginx = Nginx::keeping_uploads("files");
    let engine = Engine::start(&simple(&[nginx.address()]));
    let scratch = Scratch::new();
    let mut arguments = vec!["--write-out".to_string(), "%{http_code} %{num_connects}\\n".into()];
    for length in LENGTHS {
        let file = scratch.write(&length.to_string(), noise(length));
        arguments.extend(["--upload-file".into(), file.display().to_string(), "--header".into(), "Expect:".into()]);
        arguments.extend(["--output".into(), "/dev/null".into()]);
        arguments.push(format!("{}/upload/{length}", engine.url("plain")));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = curl_within(LIMIT, &arguments).ok().text();
    for (index, line) in said.lines().enumerate() {
        assert_eq!(line, format!("201 {}", i32::from(index == 0)), "one connection for all of them");
    }
    assert_eq!(digests(&nginx.root().join("upload")), digests(scratch.path()));
    let line = engine.logged_path(&format!("/upload/{}", 100 * MIB));
    assert!(line["bytes_received"].as_u64() > Some(100 * MIB as u64) && line["fault"].is_null(), "{line}");
    assert_eq!(engine.metric("propylon_server_reused_total", &[]), LENGTHS.len() as f64 - 1.0);
}

/// Both ways, with the next request in the same write as the end of the upload.
#[test]
fn a_request_that_lies_behind_an_upload_is_no_part_of_it() {
    let origin = Origin::answering(|request| {
        let head = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
        let body = &request[head..];
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("plain");
    for length in LENGTHS.into_iter().filter(|length| *length <= MIB).chain([10 * MIB + 1]) {
        let head = format!("POST /{length} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        client.send([head.as_bytes(), &noise(length), get("next").as_bytes()].concat());
        expect_body(&mut client, length);
        assert_eq!(client.read_response().body, b"", "behind {length} bytes");
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_client_that_stops_reading_for_a_while_gets_the_rest_later() {
    let nginx = Nginx::start("files");
    let length = 100 * MIB;
    std::fs::write(nginx.root().join("long"), noise(length)).expect("a file");
    let engine = Engine::start(&simple(&[nginx.address()]));
    let mut client = engine.client("plain");
    client.send([get("long"), get("long")].concat());
    for _ in 0..2 {
        assert!(client.read_head().starts_with("HTTP/1.1 200 "));
        let (expected, mut at) = (noise(length), 0);
        while at < length {
            if [0, 3 * MIB, 50 * MIB].contains(&at) {
                // Bytes that the client does not take are in a pipe.
                engine.metric_reaches("propylon_splice_pipes", &[], 1.0);
            }
            let piece = client.read_exact(MIB);
            assert!(expected[at..].starts_with(&piece), "at {at}");
            at += MIB;
        }
    }
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
}

#[test]
fn a_server_that_closes_early_has_cut_its_body_short() {
    let origin = Origin::scripted(|peer| {
        while peer.read_head().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
            peer.send(noise(300_000));
            peer.close();
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for _ in 0..3 {
        let mut client = engine.client("plain");
        client.send(get("cut"));
        let (bytes, ending) = client.read_to_end();
        assert!(matches!(ending, Ending::Reset | Ending::Truncated), "{ending:?} after {}", bytes.len());
        assert!(bytes.len() < 301_000);
    }
    engine.metric_reaches("propylon_server_faults_total", &[("reason", "body-cut-short")], 3.0);
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
}

#[test]
fn a_server_that_says_more_than_it_announced_is_not_asked_again() {
    let origin = Origin::answering(|_| {
        [&b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"[..], &noise(1_000_000), b"HTTP/1.1 200 "].concat()
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("plain");
    for _ in 0..3 {
        client.send(get("more"));
        expect_body(&mut client, 1_000_000);
    }
    assert_eq!((client.has_something_now(), origin.connections()), (false, 3));
}

#[test]
fn a_server_that_answers_in_the_middle_of_an_upload_is_heard() {
    let origin = Origin::scripted(|peer| {
        if peer.read_head().is_some() && peer.read_exact(300_000).is_some() {
            peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n");
            peer.finish();
            peer.stall(Duration::from_secs(5));
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n");
    // The rest is thrown away, behind the answer, or is not taken.
    let _ = client.try_send(&noise(4_000_000));
    let response = client.read_response();
    assert_eq!((response.status, response.text().as_str()), (413, "no\n"));
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
}

#[test]
fn a_client_that_vanishes_is_given_up_and_its_pipe_with_it() {
    let origin = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            if head.starts_with(b"GET") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
                while peer.try_send(&[b'x'; 100_000]).is_ok() {}
                return;
            }
            while peer.read_some().is_some() {}
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("plain");
    client.send(get("down"));
    client.read_through(3_000_000, |_| {});
    engine.metric_reaches("propylon_splice_pipes", &[], 1.0);
    client.reset();
    let line = engine.logged_path("/down");
    assert_eq!(line["fault"], "client-reset", "{line}");
    assert!((3_000_000..100_000_000).contains(&line["bytes_sent"].as_u64().expect("a number")), "{line}");
    let mut client = engine.client("plain");
    client.send("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
    client.send(noise(5_000_000));
    // A client that ends while its server takes nothing has gone, whatever of its body is on its way.
    holds("the server has all of it", || origin.received().iter().any(|bytes| bytes.len() > 5_000_000));
    client.finish();
    let line = engine.logged_path("/up");
    assert_eq!(line["fault"], "client-closed", "{line}");
    assert!((5_000_000..5_001_000).contains(&line["bytes_received"].as_u64().expect("a number")), "{line}");
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
}

/// A body of these chunks, as text on the wire. Sizes are written as servers may: with zeros, capitals and extensions.
fn oddly_chunked(sizes: &[usize], trailers: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, size) in sizes.iter().enumerate() {
        let line = match at % 4 {
            0 => format!("{size:x}\r\n"),
            1 => format!("{size:X};name=\"value\"\r\n"),
            2 => format!("000{size:x}\r\n"),
            _ => format!("{size:x} ; name\r\n"),
        };
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(&noise(*size));
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    out
}

/// Data of such a body.
fn data_of(sizes: &[usize]) -> Vec<u8> {
    sizes.iter().flat_map(|size| noise(*size)).collect()
}

/// The end of a head that a chunked body follows.
const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n";

#[test]
fn a_chunked_download_is_whole_however_it_is_cut() {
    // Whole, in single bytes around the framing, and in pieces of all sizes.
    let cuts: [&[usize]; 5] = [&[usize::MAX], &[1_000_003], &[65_536], &[70_000, 1, 1, 1, 3, 7, 40_000], &[32_768, 9]];
    let origin = Origin::scripted(move |peer| {
        while let Some(head) = peer.read_head() {
            let which = head[5] - b'0';
            peer.send(format!("HTTP/1.1 200 OK\r\n{CHUNKED}"));
            let body = oddly_chunked(&CHUNKS, "x-digest: none\r\n");
            let (mut rest, mut cut) = (&body[..], cuts[usize::from(which)].iter().cycle());
            while !rest.is_empty() {
                let count = rest.len().min(*cut.next().expect("a cycle"));
                peer.send(&rest[..count]);
                rest = &rest[count..];
            }
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let data = data_of(&CHUNKS);
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        for which in (0..cuts.len()).cycle().take(2 * cuts.len()) {
            client.send([get(which), get(which)].concat());
            for _ in 0..2 {
                let response = client.read_response();
                assert!(response.body == data, "{listener}, cut {which}: {} bytes", response.body.len());
                assert_eq!(response.trailers, ["x-digest: none"]);
            }
        }
    }
    // A client that knows no chunks gets the data alone.
    let mut client = engine.client("plain");
    client.send("GET /2 HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(client.read_response().body == data);
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_chunked_upload_is_whole_however_it_is_cut_and_the_next_request_follows_it() {
    let origin = Origin::answering(|request| {
        let head = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
        let body = chunked(&request[head..]).map_or(Vec::new(), |whole| whole.data);
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat()
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let data = data_of(&CHUNKS);
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        for cut in [usize::MAX, 100_003, 65_536] {
            let body = oddly_chunked(&CHUNKS, "");
            let bytes =
                [format!("POST / HTTP/1.1\r\nHost: a\r\n{CHUNKED}").as_bytes(), &body, get("next").as_bytes()].concat();
            bytes.chunks(cut).for_each(|piece| client.send(piece));
            let response = client.read_response();
            assert!(response.body == data, "{listener}, cut {cut}: {} bytes", response.body.len());
            assert_eq!(client.read_response().body, b"");
        }
    }
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
    assert!(origin.connections() <= 2, "one for each client");
}

#[test]
fn long_chunks_go_through_a_pipe_and_a_client_that_stands_still_gets_the_rest_later() {
    const CHUNK: usize = 50 * MIB;
    let origin = Origin::scripted(|peer| {
        while peer.read_head().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\n{CHUNKED}"));
            peer.send(in_chunks(&[&noise(CHUNK), b"end"], ""));
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("plain");
    for _ in 0..2 {
        client.send(get("long"));
        assert!(client.read_head().starts_with("HTTP/1.1 200 "));
        engine.metric_reaches("propylon_splice_pipes", &[], 1.0);
        let (expected, mut at) = ([&noise(CHUNK)[..], b"end"].concat(), 0);
        while at < expected.len() {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.extend(client.read_exact(1));
            }
            let size = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = usize::from_str_radix(&size, 16).expect("a chunk's size");
            assert!(size > 0, "the end, at {at}");
            assert!(expected[at..].starts_with(&client.read_exact(size)), "{size} bytes from {at}");
            assert_eq!(client.read_exact(2), b"\r\n");
            at += size;
        }
        assert_eq!(client.read_exact(5), b"0\r\n\r\n");
    }
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
}

#[test]
fn a_chunked_body_that_is_broken_off_or_malformed_is_never_taken_for_whole() {
    let origin = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            peer.send(format!("HTTP/1.1 200 OK\r\n{CHUNKED}"));
            peer.send(format!("{:x}\r\n", 300_000));
            peer.send(noise(300_000));
            match head.starts_with(b"GET /end") {
                // No chunk's end.
                true => peer.send("0\r\n\r\n\r\n\r\n"),
                false => peer.send(format!("\r\n{:x}\r\n{}", 200_000, "x".repeat(100_000))),
            }
            peer.close();
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for (path, fault) in [("cut", "body-cut-short"), ("end", "bad-response")] {
        for _ in 0..3 {
            let mut client = engine.client("plain");
            client.send(get(path));
            let (bytes, ending) = client.read_to_end();
            assert!(matches!(ending, Ending::Reset | Ending::Truncated), "{path}: {ending:?}");
            assert!(!bytes.windows(5).any(|five| five == b"0\r\n\r\n"), "{path}: an end");
        }
        engine.metric_reaches("propylon_server_faults_total", &[("reason", fault)], 3.0);
    }
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
}

#[test]
fn fields_that_are_not_to_go_on_do_not_go_on_behind_chunks_that_went_through_a_pipe() {
    let origin = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            peer.send(format!("HTTP/1.1 200 OK\r\n{CHUNKED}"));
            let trailers = "X-Gone: 1\r\nx-set: theirs\r\nX-Request-Id: 2\r\n\
                            access-control-allow-origin: *\r\nX-Kept: 3\r\n";
            let body = in_chunks(&[&noise(20 * MIB)], trailers);
            // Framing and trailers in one piece with the data, or in pieces of their own.
            let cut = if head.starts_with(b"GET /cut") { 20 * MIB } else { body.len() };
            peer.send(&body[..cut]);
            body[cut..].chunks(7).for_each(|piece| peer.send(piece));
        }
    });
    let engine = Engine::start(&format!(
        "[process]\nworkers = 1\n[listener.plain]\nbind = \"127.0.0.1:0\"\nrequest_id = {{ return = true }}\n\
         [backend.app]\nservers = [\"{}\"]\n[[route]]\nbackend = \"app\"\n\
         cors = {{ origins = [\"https://shop.test\"] }}\n\
         response = {{ set = {{ X-Set = \"ours\" }}, remove = [\"X-Gone\"] }}\n",
        origin.address()
    ));
    let data = noise(20 * MIB);
    for path in ["whole", "cut"] {
        let mut client = engine.client("plain");
        client.send(format!("GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        engine.metric_reaches("propylon_splice_pipes", &[], 1.0);
        let head = client.read_head();
        assert_eq!(values(&head, "X-Set"), ["ours"], "{head}");
        let (bytes, ending) = client.read_to_end();
        let body = chunked(&bytes).expect("a whole body");
        assert!(body.data == data, "{path}: {} bytes", body.data.len());
        assert_eq!((body.trailers, ending), (vec!["X-Kept: 3".to_owned()], Ending::Clean), "{path}");
    }
    assert_eq!(origin.connections(), 1);
    engine.metric_reaches("propylon_splice_pipes", &[], 0.0);
}

#[test]
fn a_chunked_download_that_a_drain_meets_in_the_middle_ends_whole() {
    let origin = Origin::scripted(|peer| {
        while peer.read_head().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\n{CHUNKED}"));
            peer.send(in_chunks(&[&noise(20 * MIB)], ""));
        }
    });
    let mut engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("plain");
    client.send(get("long"));
    assert!(client.read_head().starts_with("HTTP/1.1 200 "));
    engine.metric_reaches("propylon_splice_pipes", &[], 1.0);
    engine.reload();
    engine.signal(Signal::TERM);
    let (bytes, ending) = client.read_to_end();
    assert_eq!(ending, Ending::Clean);
    let mut decoder = &bytes[..];
    let (expected, mut at) = (noise(20 * MIB), 0);
    while at < expected.len() {
        let end = decoder.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        let size =
            usize::from_str_radix(std::str::from_utf8(&decoder[..end - 2]).expect("digits"), 16).expect("a size");
        assert!(expected[at..].starts_with(&decoder[end..end + size]), "{size} bytes from {at}");
        (decoder, at) = (&decoder[end + size + 2..], at + size);
    }
    assert_eq!(decoder, b"0\r\n\r\n");
    assert_eq!(engine.wait(Duration::from_secs(10)).status.code(), Some(0));
}
