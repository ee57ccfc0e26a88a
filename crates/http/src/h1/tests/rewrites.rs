//! Requests as the server gets them, byte for byte.

use std::net::{IpAddr, Ipv4Addr};

use propylon_config::{Forwarded, PathRules};

use super::names::every_claim;
use super::*;

struct With {
    client: &'static str,
    forwarded: Forwarded,
    host: Option<&'static str>,
    keep_alive: bool,
    expect_continue: bool,
    via: bool,
}

const PLAIN: With = With {
    client: "192.0.2.7",
    forwarded: Forwarded::Remove,
    host: None,
    keep_alive: true,
    expect_continue: true,
    via: true,
};

fn forwarded(text: &str, with: With) -> String {
    let head = request(text).unwrap();
    let address: IpAddr = with.client.parse().unwrap();
    let context = ForwardContext {
        client: &ClientAddress::new(address),
        scheme: Scheme::Https,
        forwarded: with.forwarded,
        host: with.host.map(str::as_bytes),
        body: head.body,
        expect_continue: with.expect_continue,
        keep_alive: with.keep_alive,
        via: with.via,
    };
    let mut out = Vec::new();
    write_request(&head, text.as_bytes(), &context, &mut out);
    String::from_utf8(out).unwrap()
}

#[track_caller]
fn becomes(lines: &str, expected: &str) {
    let out = forwarded(&get(lines), PLAIN);
    let expected = format!("GET / HTTP/1.1\r\nHost: a\r\n{expected}Via: 1.1 propylon\r\n\r\n");
    assert_eq!(out, expected);
}

#[test]
fn fields_keep_their_order_and_spelling() {
    becomes(
        "User-AGENT: x\r\nX-A:1\r\nX-B:  2 \t\r\naccept: */*\r\nX-Empty:\r\nX-A: 3\r\n",
        "User-AGENT: x\r\nX-A: 1\r\nX-B: 2\r\naccept: */*\r\nX-Empty: \r\nX-A: 3\r\n",
    );
    // Whitespace before or behind a value does not go on, nor does what follows it get lost.
    becomes("X-A: 1 \t\r\nX-B:\t2\r\nX-C:  3\r\nX-D: 4\r\n", "X-A: 1\r\nX-B: 2\r\nX-C: 3\r\nX-D: 4\r\n");
}

#[test]
fn the_host_comes_first_wherever_it_came() {
    let text = "GET / HTTP/1.1\r\nAccept: x\r\nhost:\tA:80\r\nVia: 1.0 other\r\n\r\n";
    let expected = "GET / HTTP/1.1\r\nHost: A:80\r\nAccept: x\r\nVia: 1.0 other\r\nVia: 1.1 propylon\r\n\r\n";
    assert_eq!(forwarded(text, PLAIN), expected);
    let with = With { host: Some("inner:8080"), ..PLAIN };
    assert_eq!(forwarded(text, with), expected.replace("Host: A:80", "Host: inner:8080"));
}

/// Bytes that go on as they came are copied at one go. The same comes out where each part is written by itself, as
/// it is where a host is given.
#[test]
fn a_beginning_that_is_copied_is_what_would_have_been_written() {
    let targets = ["/", "/a/b?c=d", "/a//b/./c", "/%61?q=<b>", "*", "http://a", "http://a/b?c", "http://A:80?q"];
    let versions = ["HTTP/1.1", "HTTP/1.9", "HTTP/1.0"];
    let lines = [
        "Host: a\r\n",
        "Host: a\r\nX-A: 1\r\nX-B:  2\r\nX-C: 3\r\n",
        "Host: a\r\nConnection: x-a\r\nX-A: 1\r\nX-B: 2\r\n",
        "Host:  a\r\nX-A: 1\r\n",
        "Host:a\r\n",
        "Host: a \r\n",
        "host: a\r\nX-A: 1\r\n",
        "X-A: 1\r\nHost: a\r\nX-B: 2\r\n",
    ];
    let mut copied = 0;
    for (begin, method) in [("", "GET"), ("\r\n", "GET"), ("", "OPTIONS"), ("", "X-OWN")] {
        for (target, version) in targets.iter().flat_map(|target| versions.map(|version| (target, version))) {
            for lines in lines {
                let text = format!("{begin}{method} {target} {version}\r\n{lines}\r\n");
                let Ok(mut head) = request(&text) else { continue };
                if head.canonicalize_target(text.as_bytes(), PathRules::default()).is_err() {
                    continue;
                }
                copied += usize::from(head.opening(text.as_bytes()).is_some());
                let written = |host: Option<&[u8]>| {
                    let client = ClientAddress::new(Ipv4Addr::LOCALHOST.into());
                    let context = ForwardContext {
                        client: &client,
                        scheme: Scheme::Http,
                        forwarded: Forwarded::Replace,
                        host,
                        body: head.body,
                        expect_continue: true,
                        keep_alive: true,
                        via: true,
                    };
                    let mut out = Vec::new();
                    write_request(&head, text.as_bytes(), &context, &mut out);
                    String::from_utf8(out).unwrap()
                };
                assert_eq!(written(None), written(Some(head.host.bytes(text.as_bytes()))), "{text}");
            }
        }
    }
    // Two targets are plain, for OPTIONS the asterisk as well; lines are the first three.
    assert_eq!(copied, (2 * 4 + 1) * 3);
}

#[test]
fn an_old_request_goes_on_in_the_new_version() {
    let text = "GET /x HTTP/1.0\r\nConnection: keep-alive\r\nTE: trailers\r\nExpect: x\r\n\r\n";
    let with = With { host: Some("inner"), ..PLAIN };
    assert_eq!(forwarded(text, with), "GET /x HTTP/1.1\r\nHost: inner\r\nVia: 1.0 propylon\r\n\r\n");
}

#[test]
fn an_absolute_target_goes_on_in_origin_form() {
    let text = "OPTIONS http://a HTTP/1.1\r\nHost: a\r\nMax-Forwards: 3\r\n\r\n";
    assert_eq!(forwarded(text, PLAIN), "OPTIONS * HTTP/1.1\r\nHost: a\r\nMax-Forwards: 2\r\nVia: 1.1 propylon\r\n\r\n");
    let text = "GET http://A:80?q HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(forwarded(text, PLAIN), "GET /?q HTTP/1.1\r\nHost: A:80\r\nVia: 1.1 propylon\r\n\r\n");
}

#[test]
fn framing_is_written_by_us_and_once() {
    becomes("content-length: 007\r\nX: 1\r\n", "X: 1\r\nContent-Length: 7\r\n");
    becomes("Content-Length: 0\r\n", "Content-Length: 0\r\n");
    becomes("TRANSFER-ENCODING: Chunked\r\nX: 1\r\n", "X: 1\r\nTransfer-Encoding: chunked\r\n");
    becomes("Expect: 100-CONTINUE\r\nContent-Length: 1\r\n", "Content-Length: 1\r\nExpect: 100-continue\r\n");
}

#[test]
fn an_expectation_that_we_have_met_does_not_go_on() {
    let text = get("Expect: 100-continue\r\nContent-Length: 1\r\n");
    let with = With { expect_continue: false, via: false, ..PLAIN };
    assert_eq!(forwarded(&text, with), "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
}

#[test]
fn what_is_meant_for_us_stays_with_us() {
    becomes(
        "Connection: keep-alive, X-Hop, close\r\nx-hop: 1\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\n\
         Proxy-Authorization: x\r\nProxy-Authenticate: x\r\nProxy: http://evil\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\
         TE: gzip\r\nTrailer: X-Sum\r\n",
        "Trailer: X-Sum\r\n",
    );
    becomes("TE: gzip, Trailers\r\nConnection: TE\r\n", "Connection: TE\r\nTE: trailers\r\n");
}

#[test]
fn a_server_is_not_told_that_a_request_was_handed_on_unless_it_is_to_be() {
    let with = With { via: false, ..PLAIN };
    assert_eq!(forwarded(&get("X: y\r\n"), with), "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n");
}

#[test]
fn connection_does_not_take_away_what_servers_rely_on() {
    becomes(
        "Connection: Authorization, Cookie, X-Forwarded-For, Via, Cache-Control, Content-Type\r\n\
         Authorization: x\r\nCookie: y\r\nVia: 1.1 z\r\nCache-Control: no-store\r\nContent-Type: t\r\n",
        "Authorization: x\r\nCookie: y\r\nVia: 1.1 z\r\nCache-Control: no-store\r\nContent-Type: t\r\n",
    );
}

#[test]
fn names_that_a_server_would_take_for_others_are_dropped() {
    becomes(
        "Content_Length: 5\r\nTransfer_Encoding: chunked\r\nX_Forwarded_For: 1\r\nX.Forwarded-Host: 1\r\n\
         x_forwarded_anything: 1\r\nMax_Forwards: 1\r\nX_Own_Field: kept\r\nX_Real_IP: 1\r\n",
        "X_Own_Field: kept\r\n",
    );
    for begin in ["X_Forwarded-", "X-SSL.", "SSL_CLIENT_", "X_Envoy_"] {
        becomes(&format!("{begin}{}: 1\r\n", "a".repeat(100)), "");
    }
}

#[test]
fn the_manual_lists_every_name_that_strangers_cannot_claim_by() {
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/manual.md");
    let manual = std::fs::read_to_string(manual).expect("the manual").to_ascii_lowercase();
    let all = every_claim();
    assert!(all.len() > 60, "{all:?}");
    let missing: Vec<&&str> = all.iter().filter(|known| !manual.contains(&format!("`{known}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn nobody_but_a_trusted_proxy_says_by_an_unregistered_name_who_asks_or_for_what() {
    let lines = "X-Real-IP: 1\r\nTRUE-client-ip: 1\r\nForwarded-For: 1\r\nX-Client-IP: 1\r\nCF-Connecting-IP: 1\r\n\
        X-Cluster-Client-IP: 1\r\nFastly-Client-IP: 1\r\nClient-IP: 1\r\nX-Original-Forwarded-For: 1\r\nX-Forwarded: 1\r\n\
        X-Original-URL: /secret\r\nX-Rewrite-URL: /secret\r\nFront-End-Https: on\r\n";
    let lines = format!(
        "{lines}X-SSL-Client-Cert: c\r\nSSL-Client-S-DN: c\r\nSSL_CLIENT_VERIFY: c\r\nX-MS-Forwarded-Client-Cert: c\r\n\
         X-Client-Cert: c\r\nX-Amzn-Mtls-Clientcert: c\r\nX-Remote-User: u\r\nRemote-User: u\r\n\
         X-WEBAUTH-USER: u\r\nX-Auth-Request-Email: u\r\nForwarded-Host: h\r\nForwarded-Proto: h\r\nX-Host: h\r\n\
         X-HTTP-Host-Override: h\r\nX-Envoy-Original-Path: /\r\nX-Envoy-Internal: true\r\nX-Original-Method: GET\r\n\
         $WSRU: u\r\nX-Accel-Mapping: /=/\r\n"
    );
    // Methods and keys are clients' own, and these are other names.
    let kept = "X-Really-IP: 1\r\nX-Schemes: 1\r\nClient-Ip-Address: 1\r\nX-HTTP-Method-Override: PUT\r\nX-Auth-Token: t\r\n\
        X-Client-Data: 1\r\nSSLX: 1\r\nX-Hosts: 1\r\nRemote: 1\r\n";
    let all = format!("{lines}{kept}");
    becomes(&all, kept);
    let replaced = forwarded(&get(&all), With { forwarded: Forwarded::Replace, ..PLAIN });
    assert!(replaced.starts_with(&format!("GET / HTTP/1.1\r\nHost: a\r\n{kept}X-Forwarded-For: ")), "{replaced}");
    // Spellings by other bytes than `-` are nobody's.
    let all = all.replace("SSL_CLIENT_VERIFY: c\r\n", "");
    let trusted = forwarded(&get(&all), With { forwarded: Forwarded::Append, ..PLAIN });
    assert!(trusted.starts_with(&format!("GET / HTTP/1.1\r\nHost: a\r\n{all}X-Forwarded-For: ")), "{trusted}");
    becomes("X-Real-IP: 1\r\nConnection: X-Real-IP\r\n", "");
    becomes("X-Forwarded-User: u\r\nX-Forwarded-: 1\r\nx_forwarded_: 1\r\n", "");
}

#[test]
fn a_client_cannot_say_who_it_is() {
    becomes(
        "Client-Cert: :eA==:\r\nCLIENT-CERT-CHAIN: :eA==:\r\nClient_Cert: x\r\nClient.cert_chain: x\r\n\
         Connection: Client-Cert\r\nClient-Certificate: kept\r\n",
        "Client-Certificate: kept\r\n",
    );
}

#[test]
fn fields_of_the_configuration_are_withheld_and_ours_come_last() {
    let text = get("X-DN: a\r\nx_dn: b\r\nX.Dn: c\r\nX-DNS: kept\r\nXDN: kept\r\n");
    let mut head = RequestHead::default();
    let limits = Limits { head_bytes: 4096, headers: 50 };
    assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete));
    head.fields.withhold(text.as_bytes(), ["X-DN", "X-Other"].into_iter());
    let kept: Vec<&[u8]> = head.fields.iter().filter(|f| f.forward).map(|f| f.name.bytes(text.as_bytes())).collect();
    assert_eq!(kept, [b"X-DNS".as_slice(), b"XDN"]);
    let mut out = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    add_lines(&mut out, |out| write_line(b"X-DN", b"ours", out));
    assert_eq!(out, b"GET / HTTP/1.1\r\nHost: a\r\nX-DN: ours\r\n\r\n");
}

#[test]
fn an_upgrade_is_asked_for_anew() {
    becomes(
        "Connection: Upgrade, X\r\nX: 1\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: k\r\n",
        "Sec-WebSocket-Key: k\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n",
    );
}

#[test]
fn a_last_request_says_so() {
    let with = With { keep_alive: false, ..PLAIN };
    assert_eq!(
        forwarded(&get("TE: trailers\r\n"), with),
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, TE\r\nTE: trailers\r\nVia: 1.1 propylon\r\n\r\n"
    );
    // One that is to be upgraded does not: its connection is for what comes after.
    let with = With { keep_alive: false, via: false, ..PLAIN };
    assert_eq!(
        forwarded(&get("Connection: Upgrade\r\nUpgrade: websocket\r\n"), with),
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
}

const TOLD: &str = "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: http\r\nX: 1\r\nX-Forwarded-Host: b\r\n\
     X-Forwarded-Port: 81\r\nForwarded: for=10.0.0.1\r\nX-Forwarded-For:10.0.0.2\r\n";

#[track_caller]
fn tells(forwarded_policy: Forwarded, client: &'static str, lines: &str, expected: &str) {
    let with = With { forwarded: forwarded_policy, client, ..PLAIN };
    let out = forwarded(&get(lines), with);
    let expected = format!("GET / HTTP/1.1\r\nHost: a\r\n{expected}Via: 1.1 propylon\r\n\r\n");
    assert_eq!(out, expected);
}

#[test]
fn a_stranger_is_not_believed() {
    tells(
        Forwarded::Replace,
        "192.0.2.7",
        TOLD,
        "X: 1\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a\r\n",
    );
    tells(Forwarded::Remove, "192.0.2.7", TOLD, "X: 1\r\n");
}

#[test]
fn of_a_request_without_a_host_none_is_told() {
    let with = With { forwarded: Forwarded::Replace, host: Some("inner"), via: false, ..PLAIN };
    assert_eq!(
        forwarded("GET / HTTP/1.0\r\n\r\n", with),
        "GET / HTTP/1.1\r\nHost: inner\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n\r\n"
    );
}

#[test]
fn a_trusted_proxy_is_continued() {
    tells(
        Forwarded::Append,
        "::ffff:192.0.2.7",
        TOLD,
        "X: 1\r\nX-Forwarded-For: 10.0.0.1, 10.0.0.2, 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: b\r\n\
         X-Forwarded-Port: 81\r\nForwarded: for=10.0.0.1, for=192.0.2.7;host=a;proto=https\r\n",
    );
    tells(
        Forwarded::Append,
        "2001:db8::7",
        "",
        "X-Forwarded-For: 2001:db8::7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a\r\n",
    );
}

#[test]
fn forwarded_quotes_what_is_no_token() {
    let text = "GET / HTTP/1.1\r\nHost: a:81\r\nForwarded:\r\n\r\n";
    let with = With { forwarded: Forwarded::Append, client: "2001:db8::7", ..PLAIN };
    let out = forwarded(text, with);
    let expected = "\r\nForwarded: for=\"[2001:db8::7]\";host=\"a:81\";proto=https\r\n";
    assert!(out.contains(expected), "{out}");
}

#[test]
fn an_open_quote_does_not_swallow_the_next_hop() {
    let with = With { forwarded: Forwarded::Append, ..PLAIN };
    let out = forwarded(&get("Forwarded: for=1\r\nForwarded: for=\"2\\\"\r\n"), with);
    let expected = "\r\nForwarded: for=1, for=192.0.2.7;host=a;proto=https\r\n";
    assert!(out.contains(expected), "{out}");
    // A backslash escapes within quotes alone.
    let with = With { forwarded: Forwarded::Append, ..PLAIN };
    let out = forwarded(&get("Forwarded: for=1\\\"\r\n"), with);
    assert!(out.contains("\r\nForwarded: for=192.0.2.7;host=a;proto=https\r\n"), "{out}");
    // In X-Forwarded-For nothing is quoted.
    let with = With { forwarded: Forwarded::Append, ..PLAIN };
    let out = forwarded(&get("X-Forwarded-For: \"10.0.0.1\r\n"), with);
    assert!(out.contains("\r\nX-Forwarded-For: \"10.0.0.1, 192.0.2.7\r\n"), "{out}");
}

#[test]
fn addresses_are_written_as_the_standard_library_writes_them() {
    let mut random = fastrand::Rng::with_seed(7);
    let drawn = std::iter::repeat_with(|| Ipv4Addr::from_bits(random.u32(..)));
    let edges = [[0, 0, 0, 0], [9, 10, 99, 100], [199, 200, 249, 250], [255; 4]].map(Ipv4Addr::from);
    for address in edges.into_iter().chain(drawn.take(1000)) {
        let written = ClientAddress::new(address.into());
        assert_eq!(written.as_bytes(), address.to_string().as_bytes());
        assert_eq!(ClientAddress::new(address.to_ipv6_mapped().into()).as_bytes(), written.as_bytes());
    }
}
