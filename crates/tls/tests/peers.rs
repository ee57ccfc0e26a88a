//! Other people's clients: OpenSSL's and curl, over TCP.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread;

use common::*;
use propylon_tls::{Acceptor, Session, Step, Tickets};

/// Serves on its own thread for as long as the test runs. Returns its port.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let profile = profile();
    thread::spawn(move || {
        let acceptor = profile.acceptor(&Arc::new(Tickets::new()));
        for stream in listener.incoming().flatten() {
            // One after another; a client that goes away is no business of the next.
            let _ = converse(&acceptor, stream);
        }
    });
    port
}

/// A request in HTTP is answered with what was agreed on; any other line comes back.
fn converse(acceptor: &Acceptor, mut stream: TcpStream) -> std::io::Result<()> {
    let mut session = acceptor.accept();
    let mut buffer = vec![0; Session::WANT_MAX];
    let (mut filled, mut established) = (0, false);
    loop {
        let read = stream.read(&mut buffer[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let mut out = Vec::new();
        if !established {
            let progress = session.handshake(&mut buffer[..filled], &mut out);
            stream.write_all(&out)?;
            let (consumed, step) = progress.map_err(std::io::Error::other)?;
            buffer.copy_within(consumed..filled, 0);
            filled -= consumed;
            established = step == Step::Done;
            out.clear();
        }
        if !established {
            continue;
        }
        let mut work = buffer[..filled].to_vec();
        let opened = session.open(&mut work, 0..filled, &mut out);
        stream.write_all(&out)?;
        let opened = opened.map_err(std::io::Error::other)?;
        buffer.copy_within(opened.consumed..filled, 0);
        filled -= opened.consumed;
        let plain = &work[..opened.plain];
        let answer = match plain.starts_with(b"GET ") {
            true => {
                let facts = format!("{:?}\n", session.facts());
                let body = facts + &"x".repeat(100_000);
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
            }
            false => plain.to_vec(),
        };
        let mut sealed = vec![0; session.sealed_len(answer.len())];
        let len = session.seal(&answer, &mut sealed);
        stream.write_all(&sealed[..len])?;
        session.rest();
        if opened.end {
            let mut out = Vec::new();
            session.close(&mut out);
            return stream.write_all(&out);
        }
    }
}

/// Runs `openssl s_client` and types the lines, each once what the last one leads to has been printed. Returns
/// everything that was.
fn s_client(port: u16, arguments: &str, lines: &[&str]) -> String {
    let to = format!("-connect 127.0.0.1:{port} -servername {NAME}");
    let mut child = Command::new("sh")
        .args(["-c", &format!("exec timeout 20 openssl s_client {to} {arguments} 2>&1")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh, timeout and openssl are installed");
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut said, mut seen) = (Vec::new(), 0);
    for line in lines {
        writeln!(stdin, "{line}").unwrap();
        let effect = match *line {
            "K" | "k" => "KEYUPDATE",
            "R" => "RENEGOTIATING",
            echoed => echoed,
        };
        while !String::from_utf8_lossy(&said[seen..]).contains(effect) {
            let mut piece = [0; 4096];
            let read = stdout.read(&mut piece).unwrap();
            let so_far = String::from_utf8_lossy(&said);
            assert!(read > 0, "{arguments}: no {effect:?} after {line:?} in {so_far}");
            said.extend_from_slice(&piece[..read]);
        }
        seen = said.len();
    }
    drop(stdin);
    stdout.read_to_end(&mut said).unwrap();
    child.wait().unwrap();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn openssl_speaks_every_suite_of_both_versions() {
    let port = serve();
    for suite in ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"] {
        let said = s_client(port, &format!("-tls1_3 -ciphersuites {suite}"), &["hello", "again"]);
        assert!(said.contains(&format!("Cipher is {suite}")), "{said}");
    }
    for kind in ["ECDSA", "RSA"] {
        for cipher in ["AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"] {
            let suite = format!("ECDHE-{kind}-{cipher}");
            let said = s_client(port, &format!("-tls1_2 -cipher {suite}"), &["hello", "again"]);
            assert!(said.contains(&format!("Cipher is {suite}")), "{said}");
        }
    }
}

#[test]
fn openssl_comes_back_with_its_ticket() {
    let directory = Directory::new();
    let file = directory.0.join("session");
    for version in ["-tls1_2", "-tls1_3"] {
        let port = serve();
        let first = s_client(port, &format!("{version} -sess_out {}", file.display()), &["hello"]);
        assert!(first.contains("New, TLS"), "{first}");
        let second = s_client(port, &format!("{version} -sess_in {}", file.display()), &["hello"]);
        assert!(second.contains("Reused, TLS"), "{second}");
    }
}

#[test]
fn openssl_updates_its_keys_and_goes_on() {
    let said = s_client(serve(), "-tls1_3", &["hello", "K", "after both", "k", "after one", "K", "at last"]);
    assert_eq!(said.matches("KEYUPDATE").count(), 3, "{said}");
}

#[test]
fn openssl_is_declined_a_renegotiation() {
    let said = s_client(serve(), "-tls1_2", &["hello", "R"]);
    assert!(said.contains("RENEGOTIATING") && said.contains("no renegotiation"), "{said}");
}

#[test]
fn openssl_without_anything_in_common_is_told_so() {
    let port = serve();
    for (arguments, alert) in [
        ("-tls1_2 -cipher AES128-SHA", "handshake failure"),
        ("-tls1_1 -cipher DEFAULT@SECLEVEL=0", "protocol version"),
        ("-alpn spdy/3", "no application protocol"),
    ] {
        let said = s_client(port, arguments, &[]);
        assert!(said.contains(&format!("alert {alert}")), "{arguments}: {said}");
    }
}

fn curl(port: u16, arguments: &str) -> Output {
    Command::new("curl")
        .args(["--insecure", "--silent", "--show-error", "--http1.1", "--max-time", "20"])
        .args(["--resolve", &format!("{NAME}:{port}:127.0.0.1")])
        .args(arguments.split_whitespace())
        .arg(format!("https://{NAME}:{port}/"))
        .output()
        .expect("curl is installed")
}

#[test]
fn curl_gets_a_long_answer_in_both_versions() {
    let port = serve();
    for (arguments, version) in [("--tls-max 1.2", "Tls12"), ("--tlsv1.3", "Tls13")] {
        let output = curl(port, arguments);
        let body = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(body.contains(version) && body.contains("alpn: Some(1)") && body.len() > 100_000, "{}", &body[..200]);
    }
}
