//! Answers at the front door: bodies from files, error pages, answers to pages of other origins, and IDs of requests.

use std::fs;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use propylon_e2e::devtools::{Page, Screen};
use propylon_e2e::engine::{complete, with};
use propylon_e2e::frames::Http2;
use propylon_e2e::http::values;
use propylon_e2e::origin::dead;
use propylon_e2e::program::{curl, run};
use propylon_e2e::scratch::Scratch;
use propylon_e2e::{Engine, Origin, binaries, holds};

/// Answer of the engine to a request over HTTP/1.1, byte by byte but for the Date.
#[track_caller]
fn said(engine: &Engine, request: &str) -> String {
    let mut client = engine.client("plain");
    client.send(request);
    let head = without_date(&(client.read_head() + "\r\n\r\n"));
    let length = values(&head, "Content-Length").first().map_or(0, |length| length.parse().expect("a length"));
    let body = if request.starts_with("HEAD ") { Vec::new() } else { client.read_exact(length) };
    head + &String::from_utf8_lossy(&body)
}

/// The same over HTTP/2, as curl writes it. `arguments` are more of curl's.
#[track_caller]
fn said_h2(engine: &Engine, path: &str, arguments: &[&str]) -> String {
    let url = format!("{}{path}", engine.url("plain"));
    let all = [&["--include", "--http2-prior-knowledge", &*url], arguments].concat();
    without_date(&curl(&all).ok().text())
}

fn without_date(text: &str) -> String {
    let is_date = |line: &str| line.to_ascii_lowercase().starts_with("date: ");
    text.split_inclusive("\r\n").filter(|line| !is_date(line)).collect()
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// Whether it is a UUID of version 7.
fn is_uuid(id: &str) -> bool {
    let fits = |(place, byte): (usize, u8)| match place {
        8 | 13 | 18 | 23 => byte == b'-',
        14 => byte == b'7',
        19 => b"89ab".contains(&byte),
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    };
    id.len() == 36 && id.bytes().enumerate().all(fits)
}

/// The ID in the head that the origin got for the request with this path; there is one.
#[track_caller]
fn forwarded_id(origin: &Origin, path: &str) -> String {
    let start = format!(" {path} HTTP/1.1\r\n");
    holds("the request is out", || origin.received_text().contains(&start));
    let text = origin.received_text();
    let head = text.split(&start).nth(1).expect("just seen").split("\r\n\r\n").next().expect("a head");
    let ids = values(head, "X-Request-ID");
    assert_eq!((ids.len(), head.contains("X_Request")), (1, false), "{head}");
    ids[0].to_owned()
}

#[test]
fn a_request_has_one_id_with_servers_clients_and_the_log() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nX-Request-Id: theirs\r\nContent-Length: 3\r\n\r\nok\n");
    let ids = "request_id = { return = true }\nrequest_headers = { X-Trace = \"propylon/{request.id}\" }";
    let engine = Engine::start(&with(&[origin.address()], ids, ""));
    let mut seen = Vec::new();
    for (path, is_h2) in [("/one", false), ("/two", true), ("/three", false)] {
        let answer = match is_h2 {
            true => said_h2(&engine, path, &["-H", "X-Request-ID: mine"]),
            false => said(&engine, &get(path, "X-Request-ID: mine\r\nX_Request_ID: mine\r\n")),
        };
        let id = forwarded_id(&origin, path);
        assert!(is_uuid(&id), "{id}");
        assert!(origin.received_text().contains(&format!("X-Trace: propylon/{id}\r\n")));
        let wanted = match is_h2 {
            true => format!("HTTP/2 200 \r\ncontent-length: 3\r\nvia: 1.1 propylon\r\nx-request-id: {id}\r\n\r\nok\n"),
            false => {
                format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nVia: 1.1 propylon\r\nX-Request-ID: {id}\r\n\r\nok\n")
            }
        };
        assert_eq!(answer, wanted);
        assert_eq!(engine.logged_path(path)["request_id"], *id);
        seen.push(id);
    }
    // IDs sort by the time they were made at.
    seen.dedup();
    assert!(seen.is_sorted() && seen.len() == 3, "{seen:?}");
}

#[test]
fn a_request_that_waits_while_a_reload_renames_its_id_keeps_the_name() {
    let (go, gone) = channel();
    let gone = Mutex::new(gone);
    let origin = Origin::answering(move |_| {
        gone.lock().expect("no panic").recv().expect("the word to go on");
        b"HTTP/1.1 404 X\r\nX-Old: theirs\r\nX-New: theirs\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let text = |name: &str, page: &str| {
        let ids =
            format!("request_id = {{ header = \"{name}\", return = true }}\nerror_pages = {{ 404 = \"{page}\" }}");
        format!(
            "{}[[route]]\npath = \"/page\"\nbackend = \"app\"\nintercept_errors = true\n",
            with(&[origin.address()], &ids, "")
        )
    };
    let engine = Engine::start_beside(&[("old.txt", "old"), ("new.txt", "new")], &text("X-Old", "old.txt"));
    for (path, body, theirs) in [("/", "", true), ("/page", "old", false)] {
        let mut client = engine.client("plain");
        client.send(get(path, ""));
        let mut other = Http2::start(&engine);
        other.get(1, path);
        engine.metric_reaches("propylon_server_requests_in_flight", &[], 2.0);
        engine.rewrite(&text("X-New", "new.txt"));
        engine.reload();
        go.send(()).expect("a server");
        go.send(()).expect("a server");
        let response = client.read_response();
        let ids = response.fields("X-Old");
        assert!(ids.len() == 1 && is_uuid(ids[0]) && response.text() == body, "{}", response.head);
        assert_eq!(response.fields("X-New"), if theirs { vec!["theirs"] } else { vec![] });
        let (_, data) = other.response(1);
        assert_eq!(data, body.as_bytes());
        engine.rewrite(&text("X-Old", "old.txt"));
        engine.reload();
    }
}

#[test]
fn an_id_that_a_client_brings_stays_where_that_is_wanted() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let long = "a".repeat(129);
    for (keys, line, stays) in [
        ("request_id = true", "X-Request-ID: brought-1", false),
        ("request_id = { accept = \"always\" }", "X-Request-ID: brought-1", true),
        ("request_id = { accept = \"always\" }", "X-Request-ID: brought 1", false),
        ("request_id = { accept = \"always\" }", "X-Request-ID: \"brought-1\"", false),
        ("request_id = { accept = \"always\" }", "X-Request-ID: brought-1\r\nX-Request-ID: brought-1", false),
        ("request_id = { accept = \"always\" }", &format!("X-Request-ID: {long}"), false),
        (
            "request_id = true\nforwarded = \"append\"\ntrusted_proxies = [\"127.0.0.0/8\"]",
            "X-Request-ID: brought-1",
            true,
        ),
        (
            "request_id = true\nforwarded = \"append\"\ntrusted_proxies = [\"10.0.0.0/8\"]",
            "X-Request-ID: brought-1",
            false,
        ),
        ("request_id = { accept = \"never\" }\nforwarded = \"append\"", "X-Request-ID: brought-1", false),
    ] {
        let engine = Engine::start(&with(&[origin.address()], keys, ""));
        let path = format!("/{}", origin.connections());
        let answer = said(&engine, &get(&path, &format!("{line}\r\n")));
        assert!(!answer.contains("X-Request-ID"), "{answer}");
        let id = forwarded_id(&origin, &path);
        assert_eq!((id == "brought-1", is_uuid(&id)), (stays, !stays), "{keys} {line}: {id}");
        assert_eq!(engine.logged_path(&path)["request_id"], *id);
    }
}

/// Also requests that no route takes, and heads that cannot be read.
#[test]
fn errors_have_ids_as_well() {
    let engine = Engine::start(&with(&[dead()], "request_id = { header = \"X-ID\", return = true }", ""));
    let bodies = [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "502 Bad Gateway: connect-refused\n"),
        ("GET /%2F HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request: escaped-slash\n"),
        ("GET / HTTP/1.1\r\nHost: a\r\n:\r\n\r\n", "400 Bad Request: empty-field-name\n"),
    ];
    for (request, body) in bodies {
        let answer = said(&engine, request);
        let id = values(&answer, "X-ID")[0].to_owned();
        assert!(is_uuid(&id) && answer.ends_with(&format!("\r\n\r\n{body}")), "{answer}");
        engine.logged("the line of the error", |line| line["request_id"] == *id);
    }
    let without = Engine::start(&with(&[dead()], "", ""));
    said(&without, &get("/", ""));
    assert_eq!(without.logged_path("/").get("request_id"), None);
}

const FIXED: &str = "[listener.plain]\nbind = \"127.0.0.1:0\"\n\
    [[route]]\nrespond = { status = 503, body_file = \"later.html\" }\n\
    [[route]]\npath = \"/robots.txt\"\nrespond = { body_file = \"robots.txt\" }\n\
    [[route]]\npath = \"/blob\"\nrespond = { body_file = \"blob\", content_type = \"application/x-blob\" }\n";

#[test]
fn a_fixed_answer_has_its_body_from_a_file() {
    let blob = "b".repeat(256 * 1024);
    let files = [("later.html", "<p>later</p>\n"), ("robots.txt", "hello\n"), ("blob", &*blob)];
    let engine = Engine::start_beside(&files, FIXED);
    let later =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 13\r\n\r\n";
    assert_eq!(said(&engine, &get("/", "")), format!("{later}<p>later</p>\n"));
    assert_eq!(said(&engine, "HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n"), later);
    let tag = "\"f572d396fae9206628714fb2\"";
    let robots = format!(
        "HTTP/1.1 200 OK\r\nETag: {tag}\r\nAccept-Ranges: bytes\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: 6\r\n\r\nhello\n"
    );
    assert_eq!(said(&engine, &get("/robots.txt", "If-None-Match: \"x\"\r\n")), robots);
    let known = format!("HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\n\r\n");
    assert_eq!(said(&engine, &get("/robots.txt", &format!("If-None-Match: {tag}\r\n"))), known);
    let robots = format!(
        "HTTP/2 200 \r\netag: {tag}\r\naccept-ranges: bytes\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: 6\r\n\r\nhello\n"
    );
    assert_eq!(said_h2(&engine, "/robots.txt", &[]), robots);
    assert_eq!(
        said_h2(&engine, "/robots.txt", &["-H", &format!("If-None-Match: {tag}")]),
        format!("HTTP/2 304 \r\netag: {tag}\r\n\r\n")
    );
    for answer in [said(&engine, &get("/blob", "")), said_h2(&engine, "/blob", &[])] {
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert_eq!(values(head, "Content-Type"), ["application/x-blob"]);
        assert!(body == blob, "{} bytes", body.len());
    }
}

#[test]
fn a_file_is_known_by_the_tag_that_its_route_gives_it() {
    let routes = "[listener.plain]\nbind = \"127.0.0.1:0\"\n[[route]]\npath = \"/set\"\n\
                  respond = { body_file = \"a.txt\" }\nresponse = { set = { ETag = 'W/\"v2\"' } }\n[[route]]\n\
                  path = \"/gone\"\nrespond = { body_file = \"a.txt\" }\nresponse = { remove = [\"etag\"] }\n[[route]]\n\
                  path = \"/own\"\nrespond = { body_file = \"a.txt\" }\nresponse = { set = { X-A = \"1\" } }\n";
    let engine = Engine::start_beside(&[("a.txt", "hello\n")], routes);
    let tag = "\"f572d396fae9206628714fb2\"";
    for (path, known, wanted) in [
        ("/set", "\"v2\"", (304, Some("W/\"v2\""))),
        ("/set", tag, (200, Some("W/\"v2\""))),
        ("/gone", tag, (200, None)),
        ("/own", tag, (304, Some(tag))),
    ] {
        let response = engine.client("plain").ask(get(path, &format!("If-None-Match: {known}\r\n")));
        assert_eq!((response.status, response.field("ETag")), wanted, "{path} {known}");
    }
}

#[test]
fn a_client_that_has_a_part_of_a_file_gets_the_rest() {
    let blob: String = (0..30_000).map(|number| format!("{number:05} ")).collect();
    let tag = "\"f572d396fae9206628714fb2\"";
    let files = [("later.html", "<p>later</p>\n"), ("robots.txt", "hello\n"), ("blob", &*blob)];
    let engine = Engine::start_beside(&files, FIXED);
    let part = |range: &str, length: usize, text: &str| {
        format!(
            "HTTP/1.1 206 Partial Content\r\nETag: {tag}\r\nAccept-Ranges: bytes\r\nContent-Range: bytes {range}/6\r\n\
             Content-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\r\n{text}"
        )
    };
    let asked = |fields: &str| said(&engine, &get("/robots.txt", fields));
    assert_eq!(asked("Range: bytes=1-3\r\n"), part("1-3", 3, "ell"));
    assert_eq!(asked(&format!("Range: bytes=-2\r\nIf-Range: {tag}\r\n")), part("4-5", 2, "o\n"));
    let beyond = asked("Range: bytes=6-\r\n");
    let head = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */6\r\nContent-Type: text/plain";
    assert!(beyond.starts_with(head), "{beyond}");
    assert!(asked("If-Match: \"other\"\r\nRange: bytes=0-0\r\n").starts_with("HTTP/1.1 412 Precondition Failed\r\n"));
    let known = format!("HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\n\r\n");
    assert_eq!(asked(&format!("If-None-Match: {tag}\r\nRange: bytes=0-0\r\n")), known);
    for whole in ["Range: bytes=0-1,3-4\r\n", "Range: bytes=0-0\r\nIf-Range: \"other\"\r\n", "Range: seats=1-2\r\n"] {
        let answer = asked(whole);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhello\n"), "{answer}");
    }
    let head = said(&engine, "HEAD /robots.txt HTTP/1.1\r\nHost: a\r\nRange: bytes=0-0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nContent-Length: 6\r\n"), "{head}");
    // A page of another status is no file that clients have a part of.
    let later = said(&engine, &get("/", "Range: bytes=0-0\r\nIf-Match: \"x\"\r\n"));
    assert!(later.starts_with("HTTP/1.1 503 ") && later.ends_with("<p>later</p>\n"), "{later}");
    // A download that was broken off goes on where it was, over both versions.
    let folder = Scratch::new();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let path = folder.write("rest", &blob[..100_001]);
        let url = format!("http://{}/blob", engine.address("plain"));
        curl(&[version, "-C", "-", "-o", path.to_str().expect("UTF-8"), &url]).ok();
        assert!(fs::read_to_string(&path).is_ok_and(|text| text == blob), "{version}");
    }
}

#[test]
fn files_of_answers_are_read_again_at_a_reload_and_stay_where_they_are_lost() {
    let files = [("later.html", "<p>later</p>\n"), ("robots.txt", "hello\n"), ("blob", "b")];
    let engine = Engine::start_beside(&files, FIXED);
    fs::write(engine.folder().join("robots.txt"), "good bye\n").expect("a file");
    fs::remove_file(engine.folder().join("later.html")).expect("it is there");
    assert!(said(&engine, &get("/robots.txt", "")).ends_with("\r\n\r\nhello\n"));
    let word = engine.reload();
    assert!(word.contains("the configuration is "), "{word}");
    assert!(said(&engine, &get("/robots.txt", "")).ends_with("\r\n\r\ngood bye\n"));
    assert!(said(&engine, &get("/", "")).ends_with("\r\n\r\n<p>later</p>\n"));
    let told = engine.stderr().join("\n");
    assert!(told.contains("later.html: No such file or directory"), "{told}");
}

/// A form of each page, and what it is by the client's Accept.
const PAGES: [(&str, &str); 5] = [
    ("5.html", "<title>{status} {reason}</title><style>p{color:red}</style><p>{request.id}</p>"),
    ("5.json", "{\"status\":{status},\"id\":\"{request.id}\"}"),
    ("404.html", "<p>{reason}</p>"),
    ("403.txt", "{status}: ask {request.id}\n"),
    ("robots.txt", ""),
];

fn pages(servers: &[SocketAddr]) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\nerror_format = \"json\"\nrequest_id = {{ accept = \"always\" }}\n\
         error_pages = {{ \"404\" = \"404.html\", 5xx = {{ html = \"5.html\", json = \"5.json\" }} }}\n\
         [backend.app]\nservers = [{}]\n\
         [backend.dead]\nservers = [\"{}\"]\nretries = 0\n\
         [[route]]\npath = \"/app\"\nintercept_errors = true\nbackend = \"app\"\n\
         [[route]]\npath = \"/raw\"\nbackend = \"app\"\n\
         [[route]]\npath = \"/dead\"\nbackend = \"dead\"\n\
         [[route]]\npath = \"/no\"\nerror_pages = {{ 4xx = \"403.txt\" }}\nrespond = {{ status = 403 }}\n\
         [[route]]\npath = \"/no/but\"\nrespond = {{ status = 403, body = \"but\" }}\n",
        servers.join(", "),
        dead()
    )
}

#[test]
fn errors_have_their_pages_by_status_and_accept() {
    let engine = Engine::start_beside(&PAGES, &pages(&[dead()]));
    let id = "X-Request-ID: id-1\r\n";
    let html = "<title>502 Bad Gateway</title><style>p{color:red}</style><p>id-1</p>";
    let json = "{\"status\":502,\"id\":\"id-1\"}";
    let bad_gateway = |kind: &str, body: &str| {
        let length = body.len();
        format!(
            "HTTP/1.1 502 Bad Gateway\r\nVary: Accept\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    for (accept, wanted) in [
        ("", bad_gateway("text/html; charset=utf-8", html)),
        ("Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n", bad_gateway("text/html; charset=utf-8", html)),
        ("Accept: application/json, text/plain, */*\r\n", bad_gateway("application/json", json)),
        ("Accept: text/html;q=0.1\r\nAccept: application/json\r\n", bad_gateway("application/json", json)),
        ("Accept: image/png\r\n", bad_gateway("text/html; charset=utf-8", html)),
    ] {
        assert_eq!(said(&engine, &get("/dead", &format!("{id}{accept}"))), wanted, "{accept}");
    }
    assert_eq!(
        said_h2(&engine, "/dead", &["-H", "Accept: application/json", "-H", "X-Request-ID: id-1"]),
        format!(
            "HTTP/2 502 \r\ncontent-type: application/json\r\ncontent-length: {}\r\nvary: Accept\r\n\r\n{json}",
            json.len()
        )
    );
    let head = bad_gateway("text/html; charset=utf-8", html).replace(html, "");
    assert_eq!(said(&engine, &format!("HEAD /dead HTTP/1.1\r\nHost: a\r\n{id}\r\n")), head);
    let plain = "HTTP/1.1 404 Not Found\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 16\r\n\r\n<p>Not Found</p>";
    assert_eq!(said(&engine, &get("/nowhere", "Accept: application/json\r\n")), plain);
    let problem = "{\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\"detail\":\"escaped-slash\",\"request_id\":\"id-1\"}\n";
    let length = problem.len();
    let wanted = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nContent-Length: {length}\r\n\r\n{problem}"
    );
    assert_eq!(said(&engine, &get("/%2F", id)), wanted);
    // A fixed answer without a body is an error like any other.
    let forbidden = "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: ";
    assert_eq!(said(&engine, &get("/no", id)), format!("{forbidden}14\r\n\r\n403: ask id-1\n"));
    assert_eq!(said(&engine, &get("/no/but", id)), format!("{forbidden}3\r\n\r\nbut"));
}

#[test]
fn an_errors_form_is_chosen_without_pages_too() {
    let with_format = |format: &str| Engine::start(&with(&[dead()], &format!("error_format = \"{format}\""), ""));
    let problem =
        "{\"type\":\"about:blank\",\"title\":\"Bad Gateway\",\"status\":502,\"detail\":\"connect-refused\"}\n";
    let page = "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>502 Bad Gateway</title>\n\
                <h1>502 Bad Gateway</h1>\n<p>connect-refused</p>\n";
    let text = "502 Bad Gateway: connect-refused\n";
    for (format, accept, kind, body) in [
        ("text", "text/html", "text/plain; charset=utf-8", text),
        ("json", "text/html", "application/problem+json", problem),
        ("html", "application/json", "text/html; charset=utf-8", page),
        ("accept", "application/json", "application/problem+json", problem),
        ("accept", "text/html, */*;q=0.1", "text/html; charset=utf-8", page),
        ("accept", "*/*", "text/plain; charset=utf-8", text),
    ] {
        let vary = if format == "accept" { "Vary: Accept\r\n" } else { "" };
        let length = body.len();
        let wanted =
            format!("HTTP/1.1 502 Bad Gateway\r\n{vary}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}");
        let answer = said(&with_format(format), &get("/", &format!("Accept: {accept}\r\n")));
        assert_eq!(answer, wanted, "{format} {accept}");
    }
}

/// Answers by the number at the path's end, with a body of as many bytes as the query says.
fn by_path(request: &[u8]) -> Vec<u8> {
    let request = String::from_utf8_lossy(request);
    let target = request.split(' ').nth(1).expect("a target");
    let (path, bytes) = target.split_once('?').unwrap_or((target, "9"));
    let status = path.rsplit('/').next().expect("a status");
    let body = "s".repeat(bytes.parse().expect("a length"));
    let length = body.len();
    let fields =
        format!("Content-Type: text/x-theirs\r\nWWW-Authenticate: Basic\r\nX-Theirs: 1\r\nContent-Length: {length}");
    format!("HTTP/1.1 {status} Theirs\r\n{fields}\r\n\r\n{body}").into_bytes()
}

#[test]
fn a_servers_errors_are_replaced_where_that_is_wanted() {
    let origin = Origin::answering(by_path);
    let engine = Engine::start_beside(&PAGES, &pages(&[origin.address()]));
    let wanted = "HTTP/1.1 404 Not Found\r\nWWW-Authenticate: Basic\r\nContent-Type: text/html; charset=utf-8\r\n\
                  Content-Length: 16\r\n\r\n<p>Not Found</p>";
    for _ in 0..3 {
        assert_eq!(said(&engine, &get("/app/404", "")), wanted);
    }
    assert_eq!(origin.connections(), 1, "what the server said was read to its end");
    let post = "POST /app/404 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(said(&engine, post), wanted);
    let line = engine.logged_path("/app/404");
    assert_eq!(
        (&line["status"], &line["fault"], &line["attempts"]),
        (&404.into(), &serde_json::Value::Null, &1.into())
    );
    assert_eq!(
        said_h2(&engine, "/app/404", &[]),
        "HTTP/2 404 \r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: 16\r\nwww-authenticate: Basic\r\n\r\n<p>Not Found</p>"
    );
    // No page is for it, or the route does not ask for pages.
    let theirs = |status: &str| {
        format!(
            "HTTP/1.1 {status} Theirs\r\nContent-Type: text/x-theirs\r\nWWW-Authenticate: Basic\r\nX-Theirs: 1\r\n\
             Content-Length: 9\r\nVia: 1.1 propylon\r\n\r\nsssssssss"
        )
    };
    assert_eq!(said(&engine, &get("/app/401", "")), theirs("401"));
    assert_eq!(said(&engine, &get("/app/200", "")), theirs("200"));
    assert_eq!(said(&engine, &get("/raw/404", "")), theirs("404"));
    // For a long body nobody waits: the connection is closed, and another serves.
    for _ in 0..2 {
        assert_eq!(said(&engine, &get("/app/404?10000000", "")), wanted);
    }
    assert_eq!(said(&engine, &get("/app/404", "")), wanted);
    let mut client = engine.client("plain");
    for path in ["/app/404", "/app/200", "/app/404"] {
        let status = path.rsplit('/').next().expect("a status");
        assert!(client.get(path).head.starts_with(&format!("HTTP/1.1 {status} ")), "a connection goes on");
    }
}

const CORS: &str = "cors = { origins = [\"https://a.example\", \"*.b.example\"], methods = [\"PUT\"], headers = [\"X-A\"], \
                    expose = [\"X-B\"], credentials = true, max_age = \"10m\" }";

#[test]
fn pages_of_other_origins_are_told_what_they_may() {
    let origin = Origin::always(
        "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Max-Age: 1\r\nX-B: 1\r\nContent-Length: 3\r\n\r\nok\n",
    );
    let listener = "[listener.plain]\nbind = \"127.0.0.1:0\"\n";
    let backends =
        format!("[backend.app]\nservers = [\"{}\"]\n[backend.dead]\nservers = [\"{}\"]\n", origin.address(), dead());
    let routes = format!(
        "[[route]]\n{CORS}\nbackend = \"app\"\n[[route]]\npath = \"/dead\"\n{CORS}\nbackend = \"dead\"\n\
         [[route]]\npath = \"/all\"\ncors = {{ origins = [\"*\"], headers = [\"*\", \"Authorization\"] }}\nbackend = \"app\"\n\
         [[route]]\npath = \"/echo\"\ncors = {{ origins = [\"*\"], methods = [\"*\"], headers = [\"*\"], credentials = true, \
         echo = true }}\nbackend = \"app\"\n"
    );
    let engine = Engine::start(&[listener, &backends, &routes].concat());
    let preflight = |path: &str, origin: &str| {
        format!(
            "OPTIONS {path} HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a\r\n\r\n"
        )
    };
    let may = "Access-Control-Allow-Methods: PUT\r\nAccess-Control-Allow-Headers: X-A\r\n\
               Access-Control-Max-Age: 600\r\nAccess-Control-Expose-Headers: X-B\r\n\
               Access-Control-Allow-Credentials: true\r\nVary: Origin\r\n";
    for origin in ["https://a.example", "https://x.y.b.example"] {
        let wanted = format!("HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: {origin}\r\n{may}\r\n");
        assert_eq!(said(&engine, &preflight("/dead", origin)), wanted);
    }
    for stranger in ["https://b.example", "http://a.example", "null", "https://a.example.evil"] {
        assert_eq!(said(&engine, &preflight("/", stranger)), "HTTP/1.1 204 No Content\r\nVary: Origin\r\n\r\n");
    }
    let all = "HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Allow-Methods: GET, HEAD, POST\r\n\
               Access-Control-Allow-Headers: *, Authorization\r\n\r\n";
    assert_eq!(said(&engine, &preflight("/all", "https://c.example")), all);
    // With credentials what is asked for is named in the place of `*`, over both versions.
    let echoed = "Access-Control-Allow-Credentials: true\r\nAccess-Control-Allow-Methods: PUT\r\n\
                  Access-Control-Allow-Headers: x-a\r\nVary: Origin\r\n";
    let wanted = format!("HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: https://c.example\r\n{echoed}\r\n");
    assert_eq!(said(&engine, &preflight("/echo", "https://c.example")), wanted);
    let asked = ["-X", "OPTIONS", "-H", "Origin: https://c.example", "-H", "Access-Control-Request-Method: PUT"];
    let asked = [&asked[..], &["-H", "Access-Control-Request-Headers: x-a"]].concat();
    assert_eq!(
        said_h2(&engine, "/echo", &asked),
        format!("HTTP/2 204 \r\naccess-control-allow-origin: https://c.example\r\n{}\r\n", lower_names(echoed))
    );
    let fields = ["-X", "OPTIONS", "-H", "Origin: https://a.example", "-H", "Access-Control-Request-Method: PUT"];
    assert_eq!(
        said_h2(&engine, "/", &fields),
        format!("HTTP/2 204 \r\naccess-control-allow-origin: https://a.example\r\n{}\r\n", lower_names(may))
    );
    assert!(!origin.received_text().contains("OPTIONS"), "a server has seen a preflight");
    // Responses: the server's own fields are replaced.
    let shown = "Access-Control-Expose-Headers: X-B\r\nAccess-Control-Allow-Credentials: true\r\nVary: Origin\r\n";
    let ok = "HTTP/1.1 200 OK\r\nX-B: 1\r\nContent-Length: 3\r\nVia: 1.1 propylon\r\n";
    let allowed = "Access-Control-Allow-Origin: https://a.example\r\n";
    assert_eq!(said(&engine, &get("/", "Origin: https://a.example\r\n")), format!("{ok}{allowed}{shown}\r\nok\n"));
    assert_eq!(said(&engine, &get("/", "Origin: https://c.example\r\n")), format!("{ok}Vary: Origin\r\n\r\nok\n"));
    assert_eq!(said(&engine, &get("/", "")), format!("{ok}Vary: Origin\r\n\r\nok\n"));
    assert_eq!(said(&engine, &get("/all", "")), format!("{ok}Access-Control-Allow-Origin: *\r\n\r\nok\n"));
    assert_eq!(
        said_h2(&engine, "/", &["-H", "Origin: https://a.example"]),
        format!(
            "HTTP/2 200 \r\nx-b: 1\r\ncontent-length: 3\r\nvia: 1.1 propylon\r\n{}\r\nok\n",
            lower_names(&[allowed, shown].concat())
        )
    );
    // A page may read our own errors as well; and what is no preflight goes on.
    let error = said(&engine, &get("/dead", "Origin: https://a.example\r\n"));
    assert!(error.starts_with(&format!("HTTP/1.1 502 Bad Gateway\r\n{allowed}{shown}Content-Type")), "{error}");
    let options = "OPTIONS /own HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\r\n\r\n";
    assert_eq!(said(&engine, options), format!("{ok}{allowed}{shown}\r\nok\n"));
}

/// Caches must not give the answer to one origin's page to another's.
#[test]
fn what_a_route_makes_of_vary_does_not_take_the_origin_from_it() {
    let varying = Origin::always("HTTP/1.1 200 OK\r\nVary: Origin\r\nContent-Length: 0\r\n\r\n");
    let route = |path: &str, change: &str| {
        format!("[[route]]\npath = \"{path}\"\n{CORS}\nbackend = \"app\"\nresponse = {{ {change} }}\n")
    };
    let text = [
        format!("[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n", varying.address()),
        route("/removed", "remove = [\"Vary\"]"),
        route("/set", "set = { Vary = \"Accept\" }"),
        route("/longer", "append = { Vary = \"Accept\" }"),
        // Answers of Propylon's own, a preflight's among them.
        route("/dead", "remove = [\"Vary\"]").replace("\"app\"", "\"dead\"\nerror_format = \"accept\""),
        route("/own", "remove = [\"Vary\"]").replace("backend = \"app\"", "respond = { status = 200 }"),
        route("/own/set", "set = { Vary = \"X\" }").replace("backend = \"app\"", "respond = { status = 200 }"),
        format!("[backend.dead]\nservers = [\"{}\"]\n", dead()),
    ];
    let engine = Engine::start(&text.concat());
    for (path, wanted) in [
        ("/removed", "Origin"),
        ("/set", "Origin,Accept"),
        ("/longer", "Origin, Accept"),
        ("/dead", "Accept,Origin"),
        ("/own", "Origin"),
        ("/own/set", "X,Origin"),
    ] {
        let response = engine.client("plain").ask(get(path, "Origin: https://a.example\r\n"));
        assert_eq!(values(&response.head, "Vary").join(","), wanted, "{path}: {}", response.head);
    }
    let asks = "Origin: https://a.example\r\nAccess-Control-Request-Method: PUT\r\n";
    let preflight = get("/removed", asks).replace("GET", "OPTIONS");
    let response = engine.client("plain").ask(preflight);
    assert_eq!(values(&response.head, "Vary"), ["Origin"], "{}", response.head);
}

fn lower_names(lines: &str) -> String {
    let lower = |line: &str| {
        let (name, value) = line.split_once(": ").expect("a line");
        format!("{}: {value}", name.to_ascii_lowercase())
    };
    lines.split_inclusive("\r\n").map(lower).collect()
}

/// The same server under two names, one of which is an origin that may.
#[test]
fn a_browser_lets_pages_do_what_they_may_and_nothing_else() {
    let html = "<!doctype html><link rel=icon href='data:,'><title>p</title>";
    let length = html.len();
    let site =
        Origin::always(format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n{html}"));
    let api = Origin::answering(|request| {
        let text = String::from_utf8_lossy(request);
        let cookie = values(&text, "Cookie").first().copied().unwrap_or("none").to_owned();
        let method = text.split(' ').next().expect("a method").to_owned();
        let body = format!("{method} {cookie}");
        let fields = "Set-Cookie: seat=7\r\nX-Shown: yes\r\nX-Hidden: no";
        format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    });
    let port = site.address().port();
    let config = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.api]\nservers = [\"{}\"]\n[[route]]\n\
         cors = {{ origins = [\"http://127.0.0.1:{port}\"], methods = [\"PUT\"], headers = [\"X-Asked\"], \
         expose = [\"X-Shown\"], credentials = true }}\nbackend = \"api\"\n",
        api.address()
    );
    let engine = Engine::start(&config);
    let url = format!("http://{}/", engine.address("plain"));
    let fetch = |method: &str, field: &str| {
        format!(
            "fetch('{url}', {{ method: '{method}', credentials: 'include', headers: {{ '{field}': '1' }} }})\
             .then(async answer => [await answer.text(), answer.headers.get('X-Shown'), answer.headers.get('X-Hidden')].join())\
             .catch(error => 'refused: ' + error.name)"
        )
    };
    let mut page = Page::open(&format!("http://127.0.0.1:{port}/"), Screen::DESK);
    page.eventually("the page is there", "document.title == 'p'");
    assert_eq!(page.evaluate(&fetch("PUT", "X-Asked")), "PUT none,yes,");
    assert_eq!(page.evaluate(&fetch("PUT", "X-Asked")), "PUT seat=7,yes,");
    assert_eq!(page.evaluate(&fetch("DELETE", "X-Asked")), "refused: TypeError");
    assert_eq!(page.evaluate(&fetch("PUT", "X-Other")), "refused: TypeError");
    let mut other = Page::open(&format!("http://localhost:{port}/"), Screen::DESK);
    other.eventually("the page is there", "document.title == 'p'");
    assert_eq!(other.evaluate(&fetch("PUT", "X-Asked")), "refused: TypeError");
    let seen = api.received_text();
    assert!(!seen.contains("OPTIONS") && !seen.contains("DELETE") && !seen.contains("X-Other"), "{seen}");
    assert_eq!(seen.matches("PUT / ").count(), 2);
}

#[test]
fn a_file_that_cannot_be_had_is_told_of_by_check_and_at_the_start() {
    let scratch = Scratch::new();
    fs::write(scratch.join("large.html"), "x".repeat(256 * 1024 + 1)).expect("a file");
    let config = "[listener.plain]\nbind = \"127.0.0.1:0\"\nerror_pages = { 5xx = \"none.html\" }\n\
                  [[route]]\nrespond = { body_file = \"large.html\" }\n";
    let path = scratch.write("propylon.toml", complete(config));
    let mut command = std::process::Command::new(binaries::propylon());
    command.args(["check", "-c"]).arg(path);
    let said = run(command, b"", std::time::Duration::from_secs(20));
    let text = format!("{}{}", said.text(), said.stderr);
    assert!(text.contains("none.html: No such file or directory"), "{text}");
    assert!(text.contains("large.html: it has more than 256 KiB"), "{text}");
    assert!(text.contains("correct the name: it is relative to the configuration's folder"), "{text}");
}
