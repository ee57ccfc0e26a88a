//! Routes that ask another service who may come in (forward auth): a service of Python's, and nginx over HTTP/2, with
//! requests of curl and of bytes.

use std::io::{Read, Write};
use std::net::TcpStream;

use propylon_e2e::http::Response;
use propylon_e2e::nginx::Nginx;
use propylon_e2e::program::curl;
use propylon_e2e::python::{PythonServer, python};
use propylon_e2e::{Certificates, Client, Engine, Origin, holds};
use serde_json::Value;

const FORWARD: &str = "forward = { backend = \"sso\", copy = [\"Remote-Groups\"], user_from = \"Remote-User\" }, \
                       user_to = \"Remote-User\"";

/// An engine with a listener `web` in plaintext and `tls`, a backend `sso`, and these routes.
fn engine(sso: &str, origin: &Origin, more: &str) -> Engine {
    Engine::start(&config(sso, origin, more))
}

fn config(sso: &str, origin: &Origin, more: &str) -> String {
    format!(
        "[log]\naccess = \"stdout\"\nfields = [\"path\", \"status\", \"user\", \"fault\", \"backend\"]\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\n[listener.tls]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [backend.app]\nservers = [\"{}\"]\n[backend.sso]\nservers = [\"{sso}\"]\n{more}",
        origin.address()
    )
}

fn route(auth: &str) -> String {
    format!("[[route]]\nbackend = \"app\"\nauth = {{ {auth} }}\n")
}

fn ask(client: &mut Client, path: &str, fields: &str) -> Response {
    client.ask(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"))
}

/// The questions that a service was asked, without what is the same in all.
fn questions(sso: &PythonServer) -> Vec<Value> {
    let said = sso.said();
    let asked = said.iter().filter_map(|line| line.strip_prefix("asked "));
    asked.map(|asked| serde_json::from_str(asked).expect("JSON")).collect()
}

fn field<'a>(question: &'a Value, name: &str) -> Vec<&'a str> {
    let fields = question["fields"].as_array().expect("a list").iter();
    fields.filter(|field| field[0] == name).filter_map(|field| field[1].as_str()).collect()
}

fn failures(engine: &Engine, reason: &str) -> f64 {
    engine.metric("propylon_identity_refused_total", &[("listener", "web"), ("reason", reason)])
}

#[test]
fn another_service_says_who_may_come_in_and_who_that_is() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let open = "[[route]]\npath = \"/open\"\nbackend = \"app\"\n";
    let named = FORWARD.replace("user_to = \"Remote-User\"", "user_to = \"X-Forwarded-User\"");
    let named = route(&named).replace("backend = \"app\"", "path = \"/named\"\nbackend = \"app\"");
    let engine = engine(&sso.address().to_string(), &origin, &format!("{}{open}{named}", route(FORWARD)));
    let mut client = engine.client("web");
    let forged = "Remote-User: root\r\nremote_groups: admins\r\nREMOTE-GROUPS: admins\r\n";
    let response = ask(&mut client, "/a/../b?c=d", &format!("Cookie: session=ann\r\n{forged}"));
    assert_eq!(
        response.text(),
        "GET /b?c=d HTTP/1.1\r\nHost: localhost\r\nCookie: session=ann\r\nRemote-Groups: staff\r\nRemote-Groups: shop\r\n\
         Remote-User: ann\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: localhost\r\n\r\n"
    );
    // The service has named no groups: nobody else does.
    let response = ask(&mut client, "/", &format!("Cookie: session=bob\r\n{forged}"));
    let text = response.text();
    assert!(text.contains("\r\nRemote-User: bob\r\n") && !text.to_lowercase().contains("groups"), "{text}");
    assert!(!ask(&mut client, "/open", forged).text().to_lowercase().contains("remote"));
    let forged = "Cookie: session=ann\r\nX-Forwarded-User: root\r\nx_forwarded_user: root\r\n";
    let text = ask(&mut client, "/named", forged).text();
    assert!(text.contains("\r\nX-Forwarded-User: ann\r\n") && !text.contains("root"), "{text}");
    let asked = questions(&sso);
    let same = |name: &str| field(&asked[0], name);
    assert_eq!((&asked[0]["method"], &asked[0]["target"]), (&"GET".into(), &"/b?c=d".into()));
    assert_eq!((same("X-Forwarded-Method"), same("X-Forwarded-Uri")), (vec!["GET"], vec!["/b?c=d"]));
    assert_eq!((same("X-Forwarded-Proto"), same("X-Forwarded-Host")), (vec!["http"], vec!["localhost"]));
    assert_eq!((same("X-Forwarded-For"), same("Host")), (vec!["127.0.0.1"], vec!["localhost"]));
    assert!(!asked[0].to_string().contains("root") && !asked[0].to_string().contains("admins"), "{}", asked[0]);
    // All of them on one connection.
    assert_eq!((asked.len(), &asked[1]["port"]), (3, &asked[0]["port"]));
    let line = engine.logged_path("/a/../b?c=d");
    assert_eq!((&line["user"], &line["backend"], &line["fault"]), (&"ann".into(), &"app".into(), &Value::Null));
}

#[test]
fn a_refusal_is_the_clients_answer_whole() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let engine = engine(&sso.address().to_string(), &origin, &route(FORWARD));
    let mut client = engine.client("web");
    let response = ask(&mut client, "/x?y", "Accept: text/html\r\n");
    assert_eq!((response.status, response.text().as_str()), (302, "<a>login</a>"));
    assert_eq!(response.field("Location"), Some("https://login.test/?to=/x?y"));
    assert_eq!(response.fields("Set-Cookie"), ["state=1; HttpOnly", "more=2"]);
    assert_eq!((response.field("Content-Type"), response.fields("Date").len()), (Some("text/html"), 1));
    let response = ask(&mut client, "/", "");
    assert_eq!((response.status, response.text().as_str()), (401, "who are you?"));
    assert_eq!(response.fields("WWW-Authenticate"), ["Basic realm=\"sso\"", "Bearer"]);
    let response = ask(&mut client, "/", "Cookie: session=banned\r\n");
    assert_eq!((response.status, response.field("X-Why")), (403, Some("banned")));
    // HEAD has the same head, and a body that is not read ends the connection and nothing else.
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\nCookie: session=banned\r\n\r\n");
    let head = client.read_head();
    assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n") && head.contains("\r\nContent-Length: 16\r\n"), "{head}");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.read_response().status, 401);
    for more in ["--http1.1", "--http2"] {
        let said = curl(&[more, "--include", "--cookie", "session=banned", &engine.url("tls")]).ok().text();
        assert!(said.contains("403") && said.ends_with("{\"why\":\"banned\"}"), "{said}");
        assert_eq!(said.to_lowercase().matches("\r\ncontent-type: application/json\r\n").count(), 1, "{said}");
        let said = curl(&[more, "--include", "--cookie", "session=untyped", &engine.url("tls")]).ok().text();
        assert!(said.contains("403") && said.ends_with("<p>no</p>"), "{said}");
        assert!(!said.to_lowercase().contains("content-type"), "a page without a type stays one: {said}");
        let said = curl(&[more, "--data", "hi", "--cookie", "session=ann", &engine.url("tls")]).ok().text();
        assert!(said.starts_with("POST / HTTP/1.1\r\n") && said.ends_with("\r\n\r\nhi"), "{said}");
    }
    assert_eq!(failures(&engine, "auth-refused"), 5.0);
    assert_eq!(engine.logged_path("/x?y")["fault"], "auth-refused");
}

/// Browsers get the service's cookies and redirects by the same route as the application's.
#[test]
fn a_refusal_is_changed_as_the_routes_other_responses_are() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let changes = "response = { set = { X-Door = \"1\" }, cookies = { secure = true, same_site = \"lax\" }, \
                   location = [{ from = \"https://login.test/\", to = \"https://sso.test/login\" }] }";
    let engine = engine(&sso.address().to_string(), &origin, &format!("{}\n{changes}", route(FORWARD)));
    let response = ask(&mut engine.client("web"), "/x?y", "Accept: text/html\r\n");
    assert_eq!((response.status, response.fields("Location")), (302, vec!["https://sso.test/login?to=/x?y"]));
    assert_eq!(
        response.fields("Set-Cookie"),
        ["state=1; HttpOnly; Secure; SameSite=Lax", "more=2; Secure; SameSite=Lax"]
    );
    assert_eq!(response.fields("X-Door"), ["1"]);
    // Bytes that are no text stay as they are.
    let mut stream = TcpStream::connect(engine.address("web")).expect("a connection");
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: session=bytes\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("room");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let has = |part: &[u8]| answer.windows(part.len()).any(|bytes| bytes == part);
    assert!(has(b"\r\nX-Where: caf\xe9\r\n") && has(b"\r\nX-Door: 1\r\n"), "{}", answer.escape_ascii());
}

#[test]
fn without_an_answer_nobody_comes_in() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let timeouts = "timeouts = { first_byte = \"300ms\" }\nretries = 0\n";
    let text = format!("{timeouts}{}", route(FORWARD));
    let engine = engine(&sso.address().to_string(), &origin, &text);
    let mut client = engine.client("web");
    for session in ["broken", "slow", "closed", "long", "two"] {
        let response = ask(&mut client, "/", &format!("Cookie: session={session}\r\n"));
        let said = (response.status, response.text());
        assert_eq!(said, (503, "503 Service Unavailable: auth-failed\n".into()), "{session}");
        assert_eq!(ask(&mut client, "/", "Cookie: session=ann\r\n").status, 200, "after {session}");
    }
    sso.says("gone");
    drop(sso);
    assert_eq!(ask(&mut client, "/", "Cookie: session=ann\r\n").status, 503);
    assert_eq!(failures(&engine, "auth-failed"), 6.0);
    assert!(!origin.received_text().contains("broken"), "nothing of it came to the server");
}

#[test]
fn a_requests_own_time_that_is_over_during_a_question_is_no_fault_of_the_other_service() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let engine = engine(
        &sso.address().to_string(),
        &origin,
        &format!("{}timeouts = {{ request = \"300ms\" }}\n", route(FORWARD)),
    );
    let slow = "Cookie: session=slow\r\n";
    let response = ask(&mut engine.client("web"), "/x", slow);
    assert_eq!((response.status, response.text()), (504, "504 Gateway Timeout: request-timeout\n".into()));
    sso.says("gone");
    let said = curl(&["--http2", "--include", "--header", "Cookie: session=slow", &engine.url("tls")]).ok().text();
    assert!(said.starts_with("HTTP/2 504") && said.contains("request-timeout"), "{said}");
    assert_eq!(engine.logged_path("/x")["fault"], "request-timeout");
    assert_eq!(failures(&engine, "auth-failed"), 0.0);
    let asked = [("backend", "sso"), ("reason", "request-timeout")];
    assert_eq!(engine.metric("propylon_server_faults_total", &asked), 2.0);
    assert!(origin.received_text().is_empty(), "nothing of it came to the server");
}

#[test]
fn a_body_waits_for_the_answer_and_a_client_that_goes_away_ends_the_question() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let engine = engine(&sso.address().to_string(), &origin, &route(FORWARD));
    let mut client = engine.client("web");
    // Nobody is told to go on before it is known who that is.
    client.send(
        "POST /up HTTP/1.1\r\nHost: a\r\nCookie: session=slow\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
    );
    holds("the question is there", || questions(&sso).len() == 1);
    assert!(!client.has_something_now());
    drop(client);
    sso.says("gone");
    let line = engine.logged_path("/up");
    assert_eq!((&line["status"], &line["fault"]), (&0.into(), &"client-closed".into()));
    assert!(origin.received().is_empty());
    let mut client = engine.client("web");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nCookie: session=ann\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n");
    holds("the question is there", || questions(&sso).len() == 2);
    client.send("0\r\n\r\n");
    assert!(client.read_response().text().ends_with("\r\n\r\n2\r\nhi\r\n0\r\n\r\n"));
    assert_eq!(field(&questions(&sso)[1], "X-Forwarded-Method"), ["POST"]);
    assert!(field(&questions(&sso)[1], "Transfer-Encoding").is_empty());
    // A stream that is reset, with curl giving up.
    let url = engine.url("tls");
    let said = curl(&["--http2", "--max-time", "0.3", "--cookie", "session=slow", &url]);
    assert!(!said.status.success());
    holds("that question has ended as well", || sso.said().iter().filter(|line| *line == "gone").count() == 2);
}

#[test]
fn nginx_is_asked_over_http2_with_tls() {
    let pem = Certificates::shared().ec();
    let locations = "location /verify {\n add_header Remote-User $cookie_session always;\n\
                     if ($cookie_session = ann) { return 204; }\n\
                     if ($cookie_session = \"\") { return 302 https://login.test$http_x_forwarded_uri; }\n\
                     return 403 \"no $http_x_forwarded_method $server_protocol $host\";\n}";
    let (nginx, origin) = (Nginx::secure_http2("sso", &pem, locations), Origin::mirror());
    let ca = Certificates::shared().ca();
    let more = format!(
        "protocol = \"h2\"\ntls = {{ ca = \"{}\", server_name = \"localhost\" }}\n{}",
        ca.display(),
        route(&FORWARD.replace("\"sso\"", "\"sso\", path = \"/verify\", host = \"sso.test\""))
    );
    let engine = engine(&nginx.address().to_string(), &origin, &more);
    let url = engine.url("tls");
    for version in ["--http1.1", "--http2"] {
        let said = curl(&[version, "--cookie", "session=ann", "--data", "hi", &url]).ok().text();
        assert!(said.contains("\r\nRemote-User: ann\r\n") && said.ends_with("\r\n\r\nhi"), "{said}");
        let said = curl(&[version, "--include", "--cookie", "session=bob", &url]).ok().text();
        assert!(said.contains(" 403") && said.ends_with("no GET HTTP/2.0 sso.test"), "{said}");
        let said = curl(&[version, "--include", &format!("{url}/a?b")]).ok().text();
        assert!(said.to_lowercase().contains("\r\nlocation: https://login.test/a?b\r\n"), "{said}");
    }
    assert_eq!(origin.received().len(), 2);
}

#[test]
fn a_question_is_repeated_where_its_connection_turns_out_to_be_closed() {
    let sso = Origin::scripted(|peer| {
        if peer.read_head().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nRemote-User: ann\r\nContent-Length: 0\r\n\r\n");
            // The next one on this connection is not heard.
            peer.read_head();
            peer.close();
        }
    });
    let origin = Origin::mirror();
    let engine = engine(&sso.address().to_string(), &origin, &format!("retries = 0\n{}", route(FORWARD)));
    let mut client = engine.client("web");
    for _ in 0..3 {
        assert_eq!(ask(&mut client, "/", "").status, 200);
    }
    assert_eq!((sso.connections(), failures(&engine, "auth-failed")), (3, 0.0));
}

#[test]
fn a_request_whose_question_is_out_ends_by_the_configuration_it_began_with() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let engine = engine(&sso.address().to_string(), &origin, &route(FORWARD));
    let mut client = engine.client("web");
    client.send("GET /held HTTP/1.1\r\nHost: a\r\nCookie: session=held\r\n\r\n");
    holds("the question is there", || questions(&sso).len() == 1);
    let text = std::fs::read_to_string(engine.folder().join("propylon.toml")).expect("its configuration");
    let backend = format!("[backend.sso]\nservers = [\"{}\"]\n", sso.address());
    let routes = "[[route]]\nrespond = { status = 410 }\n[[route]]\npath = \"/app\"\nbackend = \"app\"\n";
    engine.rewrite(&text.replace(&backend, "").replace(&route(FORWARD), routes));
    engine.reload();
    holds("the new routes are in effect", || ask(&mut engine.client("web"), "/", "").status == 410);
    ask(&mut Client::plain(sso.address()), "/release", "");
    let response = client.read_response();
    assert!(response.status == 200 && response.text().contains("\r\nRemote-User: ann\r\n"), "{}", response.text());
}

#[test]
fn another_proof_spares_the_question_and_the_question_has_the_requests_id() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let hash = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683";
    let any = "any = [{ api_key = { file = \"keys\" } }, { forward = { backend = \"sso\", user_from = \"Remote-User\" } }], \
               user_to = \"Remote-User\"";
    let config = format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\nrequest_id = true\n[backend.app]\nservers = [\"{}\"]\n\
         [backend.sso]\nservers = [\"{}\"]\n{}",
        origin.address(),
        sso.address(),
        route(any)
    );
    // The hash of `key`.
    let engine = Engine::start_beside(&[("keys", &format!("ci:{hash}\n"))], &config);
    let mut client = engine.client("web");
    assert!(ask(&mut client, "/", "X-API-Key: key\r\n").text().contains("\r\nRemote-User: ci\r\n"));
    assert!(questions(&sso).is_empty());
    let text = ask(&mut client, "/", "X-API-Key: other\r\nCookie: session=ann\r\n").text();
    assert!(text.contains("\r\nRemote-User: ann\r\n"), "{text}");
    let asked = questions(&sso);
    let [id] = field(&asked[0], "X-Request-ID")[..] else { panic!("{asked:?}") };
    assert!(text.contains(&format!("X-Request-ID: {id}\r\n")), "{id}: {text}");
    let response = ask(&mut client, "/", "X-API-Key: other\r\n");
    assert_eq!((response.status, response.text().as_str()), (401, "who are you?"));
}

#[test]
fn where_all_proofs_are_needed_a_token_and_another_service_have_to_let_a_request_in() {
    let (sso, origin) = (PythonServer::start("auth_server.py", &[]), Origin::mirror());
    let said = python("tokens.py", &["https://id.test", "shop"]).ok().text();
    let (keys, tokens) = said.split_once('\n').expect("a set of keys and tokens");
    let token = |name: &str| {
        let line = tokens.lines().find(|line| line.starts_with(&format!("{name} "))).expect("a token");
        format!("Authorization: Bearer {}\r\n", line.rsplit(' ').next().expect("a token"))
    };
    let all = "all = [{ jwt = { issuer = \"https://id.test\", audience = \"shop\", keys_file = \"keys.json\", \
               claims_to = { X-Groups = \"groups\" } } }, { forward = { backend = \"sso\", copy = [\"Remote-Groups\"], \
               user_from = \"Remote-User\" } }], user_to = \"X-User\"";
    let text = config(&sso.address().to_string(), &origin, &route(all));
    let engine = Engine::start_beside(&[("keys.json", keys)], &text);
    let mut client = engine.client("web");
    let good = token("ES256");
    let bearer = "Bearer realm=\"restricted\"";
    let expired = format!("{bearer}, error=\"invalid_token\", error_description=\"the token has expired\"");
    for (fields, challenge, fault) in [
        ("Cookie: session=ann\r\n".to_string(), bearer, "credentials-missing"),
        (format!("{}Cookie: session=ann\r\n", token("expired")), &*expired, "token-expired"),
    ] {
        let response = ask(&mut client, "/", &fields);
        assert_eq!((response.status, response.fields("WWW-Authenticate")), (401, vec![challenge]), "{fields}");
        assert_eq!(response.text(), format!("401 Unauthorized: {fault}\n"));
    }
    assert!(questions(&sso).is_empty(), "nobody is asked about a request that does not come in anyway");
    let forged = "X-User: root\r\nX-Groups: root\r\nRemote-Groups: root\r\n";
    let text_of = |response: Response| (response.status, response.text());
    // Both tell servers what they know; of their users the first counts.
    let (status, said) = text_of(ask(&mut client, "/both", &format!("{good}Cookie: session=ann\r\n{forged}")));
    let told = "\r\nX-Groups: staff,shop\r\nRemote-Groups: staff\r\nRemote-Groups: shop\r\nX-User: ann\r\n";
    assert!(status == 200 && said.contains(told) && !said.contains("root"), "{said}");
    assert_eq!(engine.logged_path("/both")["user"], "ann");
    let (status, said) = text_of(ask(&mut client, "/", &format!("{good}Cookie: session=bob\r\n")));
    assert!(status == 200 && said.contains("\r\nX-User: ann\r\n") && !said.contains("X-User: bob"), "{said}");
    // The refusal of the service is its own.
    let banned = ask(&mut client, "/", &format!("{good}Cookie: session=banned\r\n"));
    assert_eq!((banned.status, banned.text().as_str()), (403, "{\"why\":\"banned\"}"));
    let unknown = ask(&mut client, "/", &good);
    assert_eq!((unknown.status, unknown.fields("WWW-Authenticate")), (401, vec!["Basic realm=\"sso\"", "Bearer"]));
    let url = engine.url("tls");
    let bearer = good.trim_end();
    let said = curl(&["--http2", "--header", bearer, "--cookie", "session=ann", "--header", "x-user: root", &url]).ok();
    assert!(said.text().contains(told) && !said.text().contains("root"), "{}", said.text());
    let said = curl(&["--http2", "--include", "--cookie", "session=ann", &url]).ok().text();
    assert!(said.starts_with("HTTP/2 401 ") && said.matches("\r\nwww-authenticate: ").count() == 1, "{said}");
    assert!(curl(&["--http2", "--header", bearer, &url]).ok().text().contains("who are you?"));
    // One of them is enough from now on; then both are needed again.
    let any = text.replace("all = [", "any = [");
    for (text, status) in [(&any, 200), (&text, 401)] {
        engine.rewrite(text);
        assert!(engine.reload().contains("is in effect"));
        assert_eq!(ask(&mut client, "/", &good).status, status);
    }
    holds("seven questions: none where the token was no good, or enough", || questions(&sso).len() == 7);
}
