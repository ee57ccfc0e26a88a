use propylon_http::h1::{ClientAddress, ForwardContext, RequestBody, Scheme, parse_response, write_request};

use super::*;

fn forward() -> Forward {
    Forward {
        backend: BackendId(0),
        host: None,
        path: None,
        send: None,
        copy: vec!["X-User".into(), "X-Groups".into()],
        user_from: Some("X-User".into()),
        told: vec!["X-Team".into()],
    }
}

/// Lines of the question about a request, as a server of HTTP/1 gets it.
fn asked(forward: &Forward, trust: propylon_config::Forwarded, text: &str) -> Vec<String> {
    let mut head = RequestHead::default();
    assert_eq!(parse_request(text.as_bytes(), &LIMITS, &mut head), Ok(Parsed::Complete));
    head.canonicalize_target(text.as_bytes(), propylon_config::PathRules::default()).unwrap();
    let question = forward.question((&head, text.as_bytes()), &["X-User".into(), "Authorization".into()]).unwrap();
    assert_eq!(question.head.body, RequestBody::None);
    let client = ClientAddress::new("192.0.2.1".parse().unwrap());
    let context = ForwardContext {
        client: &client,
        scheme: Scheme::Https,
        forwarded: trust,
        host: question.head.host.is_empty().then_some(b"label"),
        body: RequestBody::None,
        expect_continue: true,
        keep_alive: true,
        via: false,
    };
    let mut out = Vec::new();
    write_request(&question.head, &question.text, &context, &mut out);
    String::from_utf8(out).unwrap().trim_end().lines().map(str::to_string).collect()
}

#[test]
fn a_question_has_the_requests_fields_and_nothing_of_its_body_or_its_hop() {
    let text = "POST /a/./b?c=d HTTP/1.1\r\nHost: shop.example:81\r\nCookie: a=b\r\nAuthorization: Bearer x\r\n\
        X-User: root\r\nx_user: root\r\nX-Team: root\r\nx_team: root\r\nContent-Length: 5\r\nContent-Type: text/plain\r\nExpect: 100-continue\r\n\
        If-None-Match: \"a\"\r\nRange: bytes=0-1\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-Forwarded-For: 10.0.0.1\r\n\
        X-Forwarded-Uri: /open\r\nX-Forwarded-Method: GET\r\nX-Original-URL: /open\r\nTE: trailers\r\n\r\n";
    let lines = asked(&forward(), propylon_config::Forwarded::Replace, text);
    let same = [
        "GET /a/b?c=d HTTP/1.1",
        "Host: shop.example:81",
        "Cookie: a=b",
        "Authorization: Bearer x",
        "Content-Type: text/plain",
        "X-Forwarded-Method: POST",
        "X-Forwarded-Uri: /a/b?c=d",
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: shop.example:81",
    ];
    assert_eq!(lines, same);
    let lines = asked(&forward(), propylon_config::Forwarded::Append, text);
    assert!(lines.contains(&"X-Forwarded-For: 10.0.0.1, 192.0.2.1".to_string()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("/open")), "{lines:?}");
    let some = Forward { send: Some(vec!["cookie".into()]), path: Some("/verify?x=1".into()), ..forward() };
    let lines = asked(&some, propylon_config::Forwarded::Replace, text);
    let same: Vec<&str> = ["GET /verify?x=1 HTTP/1.1"]
        .into_iter()
        .chain(same)
        .filter(|line| !["GET /a/b?c=d HTTP/1.1", "Authorization: Bearer x", "Content-Type: text/plain"].contains(line))
        .collect();
    assert_eq!(lines, same);
    // A request without a host, and one about the server as a whole.
    let lines = asked(&forward(), propylon_config::Forwarded::Replace, "GET /x HTTP/1.0\r\n\r\n");
    assert_eq!(lines[..3], ["GET /x HTTP/1.1", "Host: label", "X-Forwarded-Method: GET"]);
    let lines = asked(&forward(), propylon_config::Forwarded::Replace, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(lines[..4], ["GET / HTTP/1.1", "Host: a", "X-Forwarded-Method: OPTIONS", "X-Forwarded-Uri: *"]);
}

#[test]
fn an_answer_says_who_it_is_and_what_servers_get() {
    let identity = |lines: &str| {
        let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        let mut answer = ResponseHead::default();
        let asked = propylon_http::h1::Asked { method: propylon_http::h1::Method::Get, upgrade: None };
        let parsed = parse_response(text.as_bytes(), asked, &LIMITS, &mut answer);
        assert_eq!(parsed, Ok(Parsed::Complete));
        forward().identity(&answer, text.as_bytes()).map(|found| (found.user, found.fields))
    };
    let pair = |name: &str, value: &str| (name.to_string(), value.as_bytes().to_vec());
    let groups = [pair("X-User", "ann"), pair("X-Groups", "a"), pair("X-Groups", "b, c")];
    assert_eq!(
        identity("x-groups: a\r\nx-user: ann\r\nX-Groups: b, c\r\nX-Other: d\r\n"),
        Some((Some(b"ann".to_vec()), groups.to_vec()))
    );
    assert_eq!(identity("X-User:\r\n"), Some((None, Vec::new())));
    assert_eq!(identity("X-User: ann\r\nX-User: bob\r\n"), None);
    // A field for one hop is nobody's word on users.
    assert_eq!(identity("Connection: X-User\r\nX-User: ann\r\n"), Some((None, Vec::new())));
}
