//! Routes that ask who a request is from: passwords in files that other people's programs have made, keys, and tokens
//! of other people's issuer, good and hostile.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use propylon_e2e::http::Response;
use propylon_e2e::lineage::{How, Lineage};
use propylon_e2e::program::{curl, run};
use propylon_e2e::python::{PythonServer, python};
use propylon_e2e::{Certificates, Client, Engine, Origin, binaries, holds};

/// A line of a file of users, as `htpasswd -B` makes it.
fn bcrypt(name: &str, password: &str, cost: &str) -> String {
    let mut command = Command::new("htpasswd");
    command.args(["-nbB", "-C", cost, name, password]);
    run(command, b"", Duration::from_secs(60)).ok().text().trim().to_string()
}

/// The same by `openssl passwd -6`, and by `argon2`.
fn sha512_crypt(name: &str, password: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["passwd", "-6", "-stdin"]);
    let said = run(command, password.as_bytes(), Duration::from_secs(60)).ok();
    format!("{name}:{}", said.text().trim())
}

fn argon2(name: &str, password: &str) -> String {
    let mut command = Command::new("argon2");
    command.args(["some-salt", "-id", "-t", "2", "-k", "4096", "-p", "1", "-e"]);
    let said = run(command, password.as_bytes(), Duration::from_secs(60)).ok();
    format!("{name}:{}", said.text().trim())
}

fn base64(text: &str) -> String {
    let mut command = Command::new("base64");
    command.arg("-w0");
    run(command, text.as_bytes(), Duration::from_secs(60)).ok().text()
}

/// An engine with a listener `web` in plaintext and `tls`, and these routes.
fn engine(files: &[(&str, &str)], origin: &Origin, routes: &str) -> Engine {
    Engine::start_beside(
        files,
        &format!(
            "[listener.web]\nbind = \"127.0.0.1:0\"\n[listener.tls]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
             [backend.app]\nservers = [\"{}\"]\n{routes}",
            origin.address()
        ),
    )
}

fn ask(client: &mut Client, path: &str, fields: &str) -> Response {
    client.ask(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"))
}

fn basic(name: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", base64(&format!("{name}:{password}")))
}

/// The head without its date.
fn without_date(response: &Response) -> String {
    let lines = response.head.split_inclusive("\r\n").filter(|line| !line.starts_with("Date: "));
    lines.collect::<String>()
}

const STAFF: &str = "[[route]]\nbackend = \"app\"\nauth = { basic = { file = \"users\", realm = 'The \"staff\"' }, \
                     user_to = \"X-User\", hide_credentials = true }\n";

#[test]
fn passwords_of_files_that_others_have_made_let_their_users_in_and_nobody_else() {
    let users = [
        "# made by others".to_string(),
        bcrypt("ann", "pässword", "6"),
        bcrypt("bob", "a:b", "4"),
        sha512_crypt("cleo", "Hello world!"),
        argon2("dora", "secret"),
    ];
    let origin = Origin::mirror();
    let open = "[[route]]\npath = \"/open\"\nbackend = \"app\"\n";
    let engine = engine(&[("users", &users.join("\n"))], &origin, &format!("{STAFF}{open}"));
    let mut client = engine.client("web");
    let refused = ask(&mut client, "/", "");
    assert_eq!(
        without_date(&refused),
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"The \\\"staff\\\"\", charset=\"UTF-8\"\r\n\
         Content-Type: text/plain; charset=utf-8\r\nContent-Length: 38\r\n"
    );
    assert_eq!(refused.text(), "401 Unauthorized: credentials-missing\n");
    for (name, password) in [("ann", "pässword"), ("bob", "a:b"), ("cleo", "Hello world!"), ("dora", "secret")] {
        // Twice: the second time it is remembered.
        for _ in 0..2 {
            let forged = "X-User: root\r\nX_User: root\r\nx-user: root\r\n";
            let response = ask(&mut client, "/a?b", &format!("{}{forged}", basic(name, password)));
            let got = format!(
                "GET /a?b HTTP/1.1\r\nHost: localhost\r\nX-User: {name}\r\nX-Forwarded-For: 127.0.0.1\r\n\
                 X-Forwarded-Proto: http\r\nX-Forwarded-Host: localhost\r\n\r\n"
            );
            assert_eq!((response.status, response.text()), (200, got));
        }
        let response = ask(&mut client, "/", &basic(name, "wrong"));
        assert_eq!((response.status, response.text().as_str()), (401, "401 Unauthorized: credentials-refused\n"));
    }
    for fields in [
        basic("root", "secret"),
        basic("", ""),
        format!("Authorization: Basic {}\r\n", base64("ann")),
        "Authorization: Basic !!!\r\n".into(),
        "Authorization: Basic\r\n".into(),
        "Authorization: Bearer x\r\n".into(),
        format!("{}{}", basic("ann", "pässword"), basic("bob", "a:b")),
        format!("Authorization: Basic {}\r\n", "A".repeat(8000)),
    ] {
        let response = ask(&mut client, "/", &fields);
        assert_eq!(response.status, 401, "{fields}");
        assert!(response.field("WWW-Authenticate").is_some(), "{fields}");
    }
    // A route to the same servers that asks for nothing is no way to pass for somebody.
    assert!(!ask(&mut client, "/open", "X-User: root\r\nX_User: root\r\n").text().contains("root"));
    let line = engine.logged("a refusal", |line| line["fault"] == "credentials-refused");
    assert_eq!(line["status"], 401);
    let count =
        |reason: &str| engine.metric("propylon_identity_refused_total", &[("listener", "web"), ("reason", reason)]);
    assert_eq!((count("credentials-missing"), count("passwords-busy")), (2.0, 0.0));
}

#[test]
fn trailers_are_no_way_to_pass_for_somebody() {
    let origin = Origin::mirror();
    // Another listener, whose routes ask for nothing, and one whose routes go elsewhere.
    let others = format!(
        "{STAFF}listener = \"web\"\n[listener.open]\nbind = \"127.0.0.1:0\"\n[[route]]\nlistener = \"open\"\nbackend = \"app\"\n\
         [listener.other]\nbind = \"127.0.0.1:0\"\n[backend.other]\nservers = [\"{}\"]\n[[route]]\nlistener = \"other\"\nbackend = \"other\"\n",
        origin.address()
    );
    let engine = engine(&[("users", &bcrypt("ann", "pw", "4"))], &origin, &others);
    for (listener, has_it) in [("open", false), ("other", true)] {
        let response = engine.client(listener).ask(
            "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-User: root\r\n\r\n",
        );
        assert_eq!(response.text().contains("root"), has_it, "{listener}: {}", response.text());
    }
    let credentials = basic("ann", "pw");
    let response = engine.client("web").ask(format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\n{credentials}Transfer-Encoding: chunked\r\nTrailer: X-User\r\n\r\n\
         2\r\nhi\r\n0\r\nX-User: root\r\n\r\n"
    ));
    assert!(
        response.text().ends_with("2\r\nhi\r\n0\r\n\r\n") && !response.text().contains("root"),
        "{}",
        response.text()
    );
}

#[test]
fn over_http2_it_is_the_same() {
    let origin = Origin::mirror();
    let engine = engine(&[("users", &bcrypt("ann", "pw", "4"))], &origin, STAFF);
    let url = engine.url("tls");
    let said = curl(&["--http2", "--user", "ann:pw", "--header", "x-user: root", &url]).ok();
    assert!(said.text().contains("\r\nX-User: ann\r\n"), "{}", said.text());
    assert!(!said.text().contains("root") && !said.text().to_lowercase().contains("authorization"), "{}", said.text());
    let said = curl(&["--http2", "--include", "--user", "ann:other", &url]).ok();
    let head = said.text();
    assert!(head.starts_with("HTTP/2 401 \r\nwww-authenticate: Basic realm="), "{head}");
    assert!(head.ends_with("401 Unauthorized: credentials-refused\n"), "{head}");
}

/// A wrong password of a user whose hash takes long.
fn try_slowly(engine: &Engine, name: &str, attempt: usize) -> Client {
    let mut client = engine.client("web");
    client.send(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", basic(name, &format!("wrong{attempt}"))));
    client
}

#[test]
fn a_core_serves_others_while_passwords_are_checked_and_no_more_wait_than_may() {
    let users = [bcrypt("ann", "pw", "4"), bcrypt("slow", "pw", "13")].join("\n");
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
    let open = "[[route]]\npath = \"/open\"\nbackend = \"app\"\n";
    let engine = engine(&[("users", &users)], &origin, &format!("{STAFF}{open}"));
    let mut known = engine.client("web");
    assert_eq!(ask(&mut known, "/", &basic("ann", "pw")).status, 200);
    // One thread, one check at it, and 32 that wait.
    let mut waiting: Vec<Client> = (0..40).map(|attempt| try_slowly(&engine, "slow", attempt)).collect();
    let busy = [("listener", "web"), ("reason", "passwords-busy")];
    holds("some are told to come later", || engine.metric("propylon_identity_refused_total", &busy) >= 6.0);
    // The one core there is has time for others, and knows whom it has let in before.
    let mut other = engine.client("web");
    for _ in 0..20 {
        assert_eq!(ask(&mut other, "/open", "").text(), "hello\n");
        assert_eq!(ask(&mut known, "/", &basic("ann", "pw")).text(), "hello\n");
    }
    let late = waiting.iter_mut().map(Client::has_something_now).filter(|has_something| !has_something).count();
    assert!(late > 0, "all of them were checked before");
    let mut turned_away = None;
    for mut client in waiting {
        if client.has_something_now() {
            let response = client.read_response();
            if response.status == 503 {
                turned_away = Some((response.field("Retry-After").map(str::to_string), response.text()));
            }
        }
        // Nobody waits for the rest, and they are not checked.
    }
    let said = "503 Service Unavailable: passwords-busy\n".to_string();
    assert_eq!(turned_away, Some((Some("2".to_string()), said)));
    let mut next = engine.client("web");
    holds("there is room again", || ask(&mut next, "/", &basic("slow", "wrong")).status == 401);
}

#[test]
fn whoever_is_taken_out_of_the_file_is_out_after_a_reload() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
    let (ann, bob) = (bcrypt("ann", "pw", "4"), bcrypt("bob", "pw", "4"));
    let engine = engine(&[("users", &format!("{ann}\n{bob}\n"))], &origin, STAFF);
    let mut client = engine.client("web");
    assert_eq!(ask(&mut client, "/", &basic("ann", "pw")).status, 200);
    let file = engine.folder().join("users");
    std::fs::write(&file, format!("{bob}\n")).expect("written");
    engine.reload();
    holds("she is out", || ask(&mut client, "/", &basic("ann", "pw")).status == 401);
    assert_eq!(ask(&mut client, "/", &basic("bob", "pw")).status, 200);
    // A file that cannot be used changes nothing.
    std::fs::write(&file, "bob:secret\n").expect("written");
    engine.reload();
    holds("it is said", || engine.stderr().iter().any(|line| line.contains("perhaps the password itself")));
    assert!(!engine.stderr().iter().any(|line| line.contains("secret")));
    assert_eq!(ask(&mut client, "/", &basic("bob", "pw")).status, 200);
}

#[test]
fn a_configuration_that_begins_to_ask_for_passwords_has_threads_for_them_in_the_sandbox() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
    let users = bcrypt("ann", "pw", "4");
    let open = "[[route]]\nbackend = \"app\"\n";
    let engine = engine(&[("users", &users)], &origin, open);
    let mut client = engine.client("web");
    assert_eq!(ask(&mut client, "/", "").status, 200);
    let text = std::fs::read_to_string(engine.folder().join("propylon.toml")).expect("its configuration");
    engine.rewrite(&text.replace(open, STAFF));
    engine.reload();
    holds("it asks", || ask(&mut client, "/", "").status == 401);
    assert_eq!(ask(&mut client, "/", &basic("ann", "pw")).status, 200);
    assert_eq!(ask(&mut client, "/", &basic("ann", "other")).status, 401);
}

#[test]
fn files_that_prove_nothing_are_refused_before_anything_runs() {
    let origin = Origin::mirror();
    let engine = engine(&[("users", &bcrypt("ann", "pw", "4"))], &origin, STAFF);
    let check = |users: &str| {
        let file = engine.folder().join("users");
        std::fs::write(&file, users).expect("written");
        let mut command = Command::new(binaries::propylon());
        command.args(["check", "-c"]).arg(engine.folder().join("propylon.toml"));
        let said = run(command, b"", Duration::from_secs(60));
        format!("{}{}", said.text(), said.stderr)
    };
    let mut command = Command::new("htpasswd");
    command.args(["-nbm", "ann", "hunter2"]);
    let md5 = run(command, b"", Duration::from_secs(60)).ok().text();
    let said = check(&format!("\n{}", md5.trim()));
    assert!(said.contains("users: line 2: what stands behind the name is the MD5 of Apache"), "{said}");
    assert!(said.contains("htpasswd -nB NAME"), "{said}");
    let said = check("ann:hunter2");
    assert!(said.contains("perhaps the password itself") && !said.contains("hunter2"), "{said}");
    let file = engine.folder().join("users");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("it is ours");
    let said = check(&bcrypt("ann", "pw", "4"));
    assert!(said.contains("every account of this machine may read or change it"), "{said}");
}

#[test]
fn keys_are_known_by_their_hashes_and_are_in_no_log() {
    let key = "k-4711-secret";
    let mut command = Command::new("sha256sum");
    command.arg("-");
    let hash = run(command, key.as_bytes(), Duration::from_secs(60)).ok().text();
    let keys = format!("ci:{}\n", hash.split(' ').next().expect("a hash"));
    let origin = Origin::mirror();
    let routes = "[[route]]\npath = \"/field\"\nbackend = \"app\"\n\
                  auth = { api_key = { file = \"keys\" }, user_to = \"X-Program\", hide_credentials = true }\n\
                  [[route]]\npath = \"/query\"\nbackend = \"app\"\nauth = { api_key = { file = \"keys\", query = \"key\" } }\n\
                  [[route]]\npath = \"/changed\"\nbackend = \"app\"\nauth = { api_key = { file = \"keys\", query = \"key\" } }\n\
                  request = { path = { strip = \"/changed\" }, query = { set = { v = \"1\" } } }\n";
    let engine = engine(&[("keys", &keys)], &origin, routes);
    let mut client = engine.client("web");
    let response = ask(&mut client, "/field", &format!("x-api-key: {key}\r\nX-Program: root\r\n"));
    assert!(response.text().contains("\r\nX-Program: ci\r\n"), "{}", response.text());
    assert!(!response.text().contains(key) && !response.text().contains("root"), "{}", response.text());
    let refused = ask(&mut client, "/field", "X-API-Key: other\r\n");
    assert_eq!((refused.status, refused.field("WWW-Authenticate")), (401, Some("Key realm=\"restricted\"")));
    assert_eq!(ask(&mut client, "/field?key=other", "").status, 401);
    let twice = format!("X-API-Key: {key}\r\nX-API-Key: {key}\r\n");
    assert_eq!(ask(&mut client, "/field", &twice).status, 401);
    let response = ask(&mut client, &format!("/query?a=1&key={key}&b=2"), "");
    assert!(response.text().starts_with(&format!("GET /query?a=1&key={key}&b=2 HTTP/1.1\r\n")), "{}", response.text());
    let response = ask(&mut client, &format!("/query?key={}", key.replace('-', "%2D")), "");
    assert_eq!(response.status, 200);
    assert_eq!(ask(&mut client, &format!("/query?key={key}&key={key}"), "").status, 401);
    engine.logged_path("/query?a=1&key=*************&b=2");
    let response = ask(&mut client, &format!("/changed/x?key={key}&b=2"), "");
    assert!(response.text().starts_with(&format!("GET /x?key={key}&b=2&v=1 HTTP/1.1\r\n")), "{}", response.text());
    engine.logged_path("/changed/x?key=*************&b=2");
    holds("all are logged", || engine.log().len() >= 7);
    assert!(!engine.log().iter().any(|line| line.to_string().contains("4711")), "{:?}", engine.log());
}

#[test]
fn a_key_is_in_no_log_however_it_is_spelled_and_wherever_its_request_ends() {
    let origin = Origin::mirror();
    let keys = format!("ci:{}\n", "a".repeat(64));
    let engine = Engine::start_beside(
        &[("keys", &keys)],
        &format!(
            "[listener.web]\nbind = \"127.0.0.1:0\"\nmonitor_path = \"/up\"\n[listener.tls]\nbind = \"127.0.0.1:0\"\n\
             tls = \"public\"\nstrict_host = true\n[listener.led]\nbind = \"127.0.0.1:0\"\nredirect_to_https = true\n\
             [backend.app]\nservers = [\"{}\"]\n[[route]]\npath = \"/query\"\nbackend = \"app\"\n\
             auth = {{ api_key = {{ file = \"keys\", query = \"api_key\" }} }}\n\
             [[route]]\npath = \"/other\"\nbackend = \"app\"\nbody_limit = 9\n\
             [[route]]\npath = \"/plain\"\nbackend = \"app\"\n[[route]]\npath = \"/fixed\"\nrespond = {{ body = \"ok\" }}\n",
            origin.address()
        ),
    );
    let requests = [
        ("web", "/query?%61pi%5f%6bey=", 401),
        ("web", "/query?api%5Fkey=", 401),
        ("web", "/query?a=1&API_key=x&%61pi_key=", 401),
        ("web", "/%zz?api_key=", 400),
        ("web", "/../..?api_key=", 400),
        ("web", "/up?api_key=", 200),
        ("web", "/nowhere?api_key=", 404),
        ("web", "/other?api_key=", 200),
        ("web", "/plain?a=b&api_key=", 200),
        ("web", "/fixed?api_key=", 200),
        ("led", "/query?api_key=", 308),
    ];
    for (listener, target, status) in requests {
        let response = ask(&mut engine.client(listener), &format!("{target}k-4711"), "");
        assert_eq!(response.status, status, "{target}");
    }
    let url = engine.url("tls");
    let paths = ["query?%61pi%5fkey=k-4711", "nowhere?api_key=k-4711", "../x?api_key=k-4711", "plain?api_key=k-4711"];
    for path in paths {
        curl(&["--http2", "--path-as-is", &format!("{url}/{path}")]).ok();
    }
    let misdirected = curl(&["--header", "Host: other.example", &format!("{url}/query?api_key=k-4711")]).ok();
    assert!(misdirected.text().contains("misdirected"), "{}", misdirected.text());
    holds("all are logged", || engine.log().len() > requests.len() + paths.len());
    assert!(!engine.log().iter().any(|line| line.to_string().contains("4711")), "{:?}", engine.log());
    engine.logged_path("/query?%61pi%5f%6bey=******");
    engine.logged_path("/query?a=1&API_key=x&%61pi_key=******");
    engine.logged_path("/plain?a=b&api_key=******");
    assert!(origin.received_text().contains("GET /plain?a=b&api_key=k-4711 "), "servers get it");
}

#[test]
fn nobody_is_told_of_by_a_client_however_its_request_comes_to_the_backend() {
    let origin = Origin::mirror();
    let app = origin.address();
    let routes = format!(
        "[backend.dead]\nservers = [\"127.0.0.1:9\"]\n[backend.other]\nservers = [\"{app}\"]\n\
         [[route]]\npath = \"/own\"\nbackend = [{{ name = \"other\" }}, {{ name = \"app\" }}]\n\
         auth = {{ api_key = {{ file = \"keys\" }}, user_to = \"X-Program\" }}\n\
         [[route]]\npath = \"/fallback\"\nbackend = \"dead\"\nfallback = \"app\"\n\
         [[route]]\npath = \"/split\"\nbackend = [{{ name = \"dead\", weight = 0 }}, {{ name = \"app\" }}]\n\
         [[route]]\npath = \"/other\"\nbackend = \"other\"\n"
    );
    let engine = engine(&[("keys", &format!("ci:{}\n", "a".repeat(64)))], &origin, &routes);
    let mut client = engine.client("web");
    for path in ["/fallback", "/split", "/other"] {
        let response = ask(&mut client, path, "X-Program: root\r\nx_program: root\r\n");
        assert_eq!(response.status, 200, "{path}");
        assert!(!response.text().contains("root"), "{path}: {}", response.text());
    }
}

#[test]
fn tokens_of_another_makers_issuer_are_good_and_hostile_ones_are_not() {
    let issuer = "https://id.test";
    let said = python("tokens.py", &[issuer, "shop"]).ok().text();
    let (keys, tokens) = said.split_once('\n').expect("a set of keys and tokens");
    let origin = Origin::mirror();
    let jwt = format!("issuer = \"{issuer}\", audience = \"shop\", keys_file = \"keys.json\"");
    let routes = format!(
        "[[route]]\nbackend = \"app\"\nauth = {{ jwt = {{ {jwt}, claims_to = {{ X-Groups = \"groups\" }} }}, \
         user_to = \"X-User\" }}\n\
         [[route]]\npath = \"/cookie\"\nbackend = \"app\"\nauth = {{ jwt = {{ {jwt}, cookie = \"session\" }} }}\n"
    );
    let engine = engine(&[("keys.json", keys)], &origin, &routes);
    let mut client = engine.client("web");
    let missing = ask(&mut client, "/", "");
    assert_eq!((missing.status, missing.field("WWW-Authenticate")), (401, Some("Bearer realm=\"restricted\"")));
    for line in tokens.lines() {
        let [name, expected, token] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let forged = "X-User: root\r\nX-Groups: admins\r\n";
        let response = ask(&mut client, "/", &format!("Authorization: Bearer {token}\r\n{forged}"));
        if expected == "good" {
            let text = response.text();
            assert!(text.contains("\r\nX-Groups: staff,shop\r\nX-User: ann\r\n"), "{name}: {text}");
            assert!(!text.contains("root") && !text.contains("admins"), "{name}: {text}");
            assert_eq!(ask(&mut client, "/cookie", &format!("Cookie: a=b; session={token}\r\n")).status, 200, "{name}");
            continue;
        }
        let fault = if expected == "expired" { "token-expired" } else { "credentials-refused" };
        assert_eq!((response.status, response.text()), (401, format!("401 Unauthorized: {fault}\n")), "{name}");
        let challenge = response.field("WWW-Authenticate").unwrap_or_default();
        let start = "Bearer realm=\"restricted\", error=\"invalid_token\", error_description=\"";
        assert!(challenge.starts_with(start), "{name}: {challenge}");
        assert_eq!(ask(&mut client, "/cookie", &format!("Cookie: session={token}\r\n")).status, 401, "{name}");
    }
    let good = tokens.lines().next().and_then(|line| line.rsplit_once(' ')).expect("a token").1;
    let bearer = format!("Authorization: Bearer {good}");
    let said = curl(&["--http2", "--header", &bearer, "--header", "x-user: root", &engine.url("tls")]).ok();
    assert!(said.text().contains("\r\nX-User: ann\r\n") && !said.text().contains("root"), "{}", said.text());
    assert_eq!(ask(&mut client, "/", &format!("{bearer}\r\n{bearer}\r\n")).status, 401);
    let twice = format!("Cookie: session={good}; session={good}\r\n");
    assert_eq!(ask(&mut client, "/cookie", &twice).status, 401);
    // Browsers send each cookie as a field of its own over HTTP/2.
    for order in [["a=1".to_string(), format!("session={good}")], [format!("session={good}"), "b=2".to_string()]] {
        let crumbs = order.map(|crumb| format!("cookie: {crumb}"));
        let url = format!("{}/cookie", engine.url("tls"));
        let said = curl(&["--http2", "--header", &crumbs[0], "--header", &crumbs[1], &url]).ok().text();
        assert!(said.starts_with("GET /cookie HTTP/1.1\r\n"), "{crumbs:?}: {said}");
    }
}

/// An issuer of another maker that publishes its keys over https.
struct Issuer(PythonServer);

impl Issuer {
    fn start() -> Issuer {
        let pem = Certificates::shared().rsa().display().to_string();
        Issuer(PythonServer::start("issuer.py", &[&pem, "https://id.test", "shop"]))
    }

    fn url(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.0.address().port())
    }

    fn ask(&self, path: &str) -> String {
        curl(&[&self.url(path)]).ok().text()
    }

    fn token(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.ask("token"))
    }

    /// A route for its tokens, by the keys of its URL.
    fn route(&self) -> String {
        format!(
            "[[route]]\nbackend = \"app\"\nauth = {{ jwt = {{ issuer = \"https://id.test\", audience = \"shop\", \
             keys_url = \"{}\", keys_ca = \"{}\", keys_refresh = \"10s\" }}, user_to = \"X-User\" }}\n",
            self.url("keys"),
            Certificates::shared().ca().display()
        )
    }
}

#[test]
fn an_issuers_keys_are_fetched_kept_and_replaced() {
    let (issuer, origin) = (Issuer::start(), Origin::mirror());
    issuer.ask("be/broken");
    // Between two requests an origin waits for so long and no longer.
    let engine = engine(&[], &origin, &format!("timeouts = {{ idle = \"1s\" }}\n{}", issuer.route()));
    let mut client = engine.client("web");
    // Nobody can say whether a token is good; that there is none is known.
    assert_eq!(ask(&mut client, "/", "").status, 401);
    let response = ask(&mut client, "/", &issuer.token());
    let said = (response.status, response.text(), response.field("Retry-After"));
    assert_eq!(said, (503, "503 Service Unavailable: keys-missing\n".into(), Some("2")));
    let tells = |part: &str| holds(part, || engine.stderr().iter().any(|line| line.contains(part)));
    tells("status 500; tokens are answered with 503 until there are some");
    engine.metric_reaches("propylon_identity_failing_urls", &[], 1.0);
    issuer.ask("be/well");
    holds("the keys are there", || ask(&mut client, "/", &issuer.token()).status == 200);
    engine.metric_reaches("propylon_identity_failing_urls", &[], 0.0);
    assert!(ask(&mut client, "/", &issuer.token()).text().contains("\r\nX-User: ann\r\n"));
    // A reload keeps them, whether the URL answers or not.
    issuer.ask("be/elsewhere");
    let old = issuer.token();
    engine.reload();
    assert_eq!(ask(&mut client, "/", &old).status, 200);
    // Keys that cannot be used replace nothing.
    tells("it leads on to \"http://127.0.0.1:1/keys\", where nobody follows");
    issuer.ask("be/endless");
    tells("its answer cannot be read: length limit exceeded; those from before stay in use");
    issuer.ask("be/rubbish");
    tells("it has no key for any of the `algorithms`");
    assert_eq!(ask(&mut client, "/", &old).status, 200);
    // A token that names another key has them fetched again.
    issuer.ask("rotate");
    issuer.ask("be/well");
    let new = issuer.token();
    holds("the new key is known", || ask(&mut client, "/", &new).status == 200);
    assert_eq!(ask(&mut client, "/", &old).status, 401);
}

/// A configuration with a listener `web` and an issuer's route.
fn issuers_config(issuer: &Issuer, origin: &Origin) -> String {
    let listener = "[listener.web]\nbind = \"127.0.0.1:0\"\n";
    format!("{listener}[backend.app]\nservers = [\"{}\"]\n{}", origin.address(), issuer.route())
}

#[test]
fn keys_by_url_are_there_for_the_first_request_and_for_a_reload_while_their_issuer_is_gone() {
    let (issuer, origin) = (Issuer::start(), Origin::mirror());
    let config = issuers_config(&issuer, &origin);
    let engine = Engine::start(&config);
    let token = issuer.token();
    assert_eq!(ask(&mut engine.client("web"), "/", &token).status, 200);
    drop(issuer);
    let reload = |old: &str, new: &str| {
        assert!(config.contains(old), "{config}");
        engine.rewrite(&config.replace(old, new));
        engine.reload();
        let response = ask(&mut engine.client("web"), "/", &token);
        (response.status, response.text().contains("keys-missing"))
    };
    let algorithms = |names: &str| format!("algorithms = [{names}], keys_url");
    assert_eq!(reload("keys_url", &algorithms("\"ES256\", \"RS256\"")), (200, false));
    assert_eq!(reload("user_to = \"X-User\"", "user_to = \"X-Who\""), (200, false));
    // Keys under other authorities are those that these vouch for, or none.
    let other = engine.folder().join("other.pem");
    std::fs::copy(Certificates::shared().ca(), &other).expect("a copy");
    let ca = Certificates::shared().ca().display().to_string();
    assert_eq!(reload(&ca, &other.display().to_string()), (503, true));
}

#[test]
fn a_reload_that_brings_a_url_waits_for_its_keys() {
    let (issuer, origin) = (Issuer::start(), Origin::mirror());
    let config = issuers_config(&issuer, &origin);
    let engine = Engine::start(config.split_once("auth = ").expect("a route's").0);
    assert_eq!(ask(&mut engine.client("web"), "/", "").status, 200);
    engine.rewrite(&config);
    engine.reload();
    assert_eq!(ask(&mut engine.client("web"), "/", &issuer.token()).status, 200);
}

#[test]
fn a_successor_has_the_keys_by_url_of_the_process_before_while_their_issuer_is_gone() {
    let (issuer, origin) = (Issuer::start(), Origin::mirror());
    let mut lineage = Lineage::start("workers = 2\ndrain_timeout = \"1s\"", &issuers_config(&issuer, &origin));
    let (address, token) = (lineage.address("web"), issuer.token());
    drop(issuer);
    let (asked, refused, is_over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let is_in = ask(&mut Client::plain(address), "/", &token).status == 200;
                refused.fetch_add(u32::from(!is_in), Ordering::SeqCst);
                asked.fetch_add(1, Ordering::SeqCst);
            }
        });
        // A successor hands on what it was given.
        for how in [How::Run, How::Signal] {
            lineage.upgrade(how);
            let before = asked.load(Ordering::SeqCst);
            holds("the successor is asked", || asked.load(Ordering::SeqCst) > before + 20);
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(refused.into_inner(), 0, "of {}", asked.into_inner());
}

#[test]
fn files_that_are_watched_are_taken_up_whole_or_not_at_all() {
    let origin = Origin::mirror();
    let key = "a".repeat(64);
    let files = [("users", bcrypt("ann", "pw", "4")), ("keys", format!("ci:{key}\n"))];
    let route = "[[route]]\nbackend = \"app\"\nauth = { any = [{ api_key = { file = \"keys\" } }, { basic = { file = \
                 \"users\" } }], watch = \"1s\" }\n";
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let engine = engine(&files, &origin, route);
    let mut client = engine.client("web");
    assert_eq!(ask(&mut client, "/", &basic("ann", "pw")).status, 200);
    assert_eq!(ask(&mut client, "/", &basic("bob", "pw")).status, 401);
    let replace = |text: &str| {
        let file = engine.folder().join("users");
        std::fs::write(file.with_extension("new"), text).expect("written");
        std::fs::rename(file.with_extension("new"), file).expect("in its place");
    };
    replace(&bcrypt("bob", "pw", "4"));
    holds("bob is known", || ask(&mut client, "/", &basic("bob", "pw")).status == 200);
    assert_eq!(ask(&mut client, "/", &basic("ann", "pw")).status, 401);
    replace("bob:secret\n");
    engine.metric_reaches("propylon_identity_unusable_files", &[], 1.0);
    let tells = |part: &str| engine.stderr().iter().any(|line| line.contains(part));
    holds("it is said", || tells("perhaps the password itself; what it said before stays in use"));
    assert_eq!(ask(&mut client, "/", &basic("bob", "pw")).status, 200);
    replace(&bcrypt("cleo", "pw", "4"));
    engine.metric_reaches("propylon_identity_unusable_files", &[], 0.0);
    holds("cleo is known", || ask(&mut client, "/", &basic("cleo", "pw")).status == 200);
    assert!(!engine.stderr().iter().any(|line| line.contains("secret")));
}

#[test]
fn one_of_several_proofs_lets_in_and_all_are_asked_for() {
    let origin = Origin::mirror();
    let hash = |key: &str| {
        let mut command = Command::new("sha256sum");
        command.arg("-");
        let said = run(command, key.as_bytes(), Duration::from_secs(60)).ok().text();
        said.split(' ').next().expect("a hash").to_string()
    };
    let tokens = python("tokens.py", &["https://id.test", "shop"]).ok().text();
    let (set, tokens) = tokens.split_once('\n').expect("a set of keys and tokens");
    let token = |name: &str| {
        let line = tokens.lines().find(|line| line.starts_with(&format!("{name} "))).expect("a token");
        format!("Authorization: Bearer {}\r\n", line.rsplit(' ').next().expect("a token"))
    };
    let route = "[[route]]\nbackend = \"app\"\nauth = { any = [{ jwt = { issuer = \"https://id.test\", audience = \"shop\", \
                 keys_file = \"keys.json\" } }, { api_key = { file = \"keys\" } }, { basic = { file = \"users\" } }], \
                 user_to = \"X-User\", hide_credentials = true }\n";
    let all = "[[route]]\npath = \"/all\"\nbackend = \"app\"\nauth = { all = [{ api_key = { file = \"keys\" } }, \
               { basic = { file = \"users\" } }], user_to = \"X-User\", hide_credentials = true }\n";
    let users = bcrypt("dora", "pw", "4");
    let keys = format!("ci:{}\n", hash("key"));
    let files = [("keys.json", set), ("keys", &*keys), ("users", &*users)];
    let engine = engine(&files, &origin, &format!("{route}{all}"));
    let mut client = engine.client("web");
    for (fields, user) in [
        (token("ES256"), "ann"),
        ("X-API-Key: key\r\n".into(), "ci"),
        (basic("dora", "pw"), "dora"),
        // One that is no good does no harm to one that is.
        (format!("X-API-Key: other\r\n{}", basic("dora", "pw")), "dora"),
        (format!("X-API-Key: key\r\n{}", token("expired")), "ci"),
    ] {
        let text = ask(&mut client, "/", &fields).text();
        assert!(text.contains(&format!("\r\nX-User: {user}\r\n")), "{fields}: {text}");
        assert!(!text.contains("Authorization") && !text.contains("X-API-Key"), "{text}");
    }
    let plain = "Bearer realm=\"restricted\"";
    let expired = format!("{plain}, error=\"invalid_token\", error_description=\"the token has expired\"");
    for (fields, bearer, fault) in [
        (String::new(), plain, "credentials-missing"),
        ("X-API-Key: other\r\n".into(), plain, "credentials-refused"),
        (basic("dora", "other"), plain, "credentials-refused"),
        (token("expired"), &expired, "token-expired"),
    ] {
        let response = ask(&mut client, "/", &fields);
        let challenges = [bearer, "Key realm=\"restricted\"", "Basic realm=\"restricted\", charset=\"UTF-8\""];
        assert_eq!((response.status, response.fields("WWW-Authenticate")), (401, challenges.to_vec()), "{fields}");
        assert_eq!(response.text(), format!("401 Unauthorized: {fault}\n"));
    }
    let said = curl(&["--http2", "--include", &engine.url("tls")]).ok().text();
    assert_eq!(said.matches("\r\nwww-authenticate: ").count(), 3, "{said}");
    // Another route needs two: the first that is not good is asked for.
    let (key, basic_challenge) = ("Key realm=\"restricted\"", "Basic realm=\"restricted\", charset=\"UTF-8\"");
    for (fields, challenge, fault) in [
        (String::new(), key, "credentials-missing"),
        (basic("dora", "pw"), key, "credentials-missing"),
        (format!("X-API-Key: other\r\n{}", basic("dora", "pw")), key, "credentials-refused"),
        ("X-API-Key: key\r\n".into(), basic_challenge, "credentials-missing"),
        (format!("X-API-Key: key\r\n{}", basic("dora", "other")), basic_challenge, "credentials-refused"),
    ] {
        let response = ask(&mut client, "/all", &fields);
        assert_eq!((response.status, response.fields("WWW-Authenticate")), (401, vec![challenge]), "{fields}");
        assert_eq!(response.text(), format!("401 Unauthorized: {fault}\n"));
    }
    let text = ask(&mut client, "/all", &format!("X-API-Key: key\r\n{}", basic("dora", "pw"))).text();
    assert!(text.contains("\r\nX-User: ci\r\n") && !text.contains("Authorization") && !text.contains("Key"), "{text}");
}

#[test]
fn users_of_one_source_have_limits_of_their_own() {
    let origin = Origin::mirror();
    let routes = "[[route]]\nbackend = \"app\"\nauth = { basic = { file = \"users\" } }\n\
                  limit = [{ rate = \"20/d\", name = \"guesses\" }, { rate = \"2/d\", key = \"user\", name = \"account\" }]\n\
                  [[route]]\npath = \"/one\"\nbackend = \"app\"\nauth = { basic = { file = \"users\" } }\n\
                  limit = [{ requests = 1, key = \"user\" }, { key = \"user\", deny_files = \"banned\" }]\n\
                  [log]\naccess = \"stdout\"\nfields = [\"path\", \"status\", \"user\", \"fault\"]\n";
    let users = ["ann", "bob", "cleo"].map(|name| bcrypt(name, "pw", "4")).join("\n");
    let engine = engine(&[("users", &users), ("banned", "cleo\n")], &origin, routes);
    let [ann, bob, cleo] = ["ann", "bob", "cleo"].map(|name| basic(name, "pw"));
    let mut client = engine.client("web");
    let mut statuses = |path: &str, asked: &[&str]| -> Vec<u16> {
        asked.iter().map(|fields| ask(&mut client, path, fields).status).collect()
    };
    assert_eq!(statuses("/", &[&ann, &ann, &bob]), [200, 200, 200]);
    let refused = ask(&mut engine.client("web"), "/third", &ann);
    let field = |name: &str| refused.field(name).expect(name).to_string();
    let seconds: u64 = field("Retry-After").parse().expect("a number");
    assert!(refused.status == 429 && (43_000..=43_200).contains(&seconds), "{}", refused.head);
    assert_eq!(field("RateLimit-Policy"), "\"account\";q=2;w=86400");
    assert_eq!(field("RateLimit"), format!("\"account\";r=0;t={seconds}"));
    let line = engine.logged_path("/third");
    assert_eq!((&line["user"], &line["fault"]), (&"ann".into(), &"rate-limited".into()));
    let said = curl(&["--http2", "--include", "--user", "ann:pw", &engine.url("tls")]).ok().text();
    assert!(said.starts_with("HTTP/2 429 ") && said.contains("\r\nratelimit-policy: \"account\";q=2;"), "{said}");
    // Guesses take nothing from the user, and do not learn how much the user has had.
    let wrong = basic("cleo", "guess");
    assert_eq!(
        statuses("/", &[&wrong, &wrong, &basic("ann", "guess"), &cleo, &cleo, &cleo]),
        [401, 401, 401, 200, 200, 429]
    );
    // A configuration that says the same, and more beside it, goes on with the counts.
    let text = std::fs::read_to_string(engine.folder().join("propylon.toml")).expect("its configuration");
    engine.rewrite(&text.replace("path = \"/one\"", "path = \"/one\"\nname = \"one\""));
    assert!(engine.reload().contains("is in effect"));
    assert_eq!(statuses("/", &[&bob, &bob, &ann]), [200, 429, 429]);
    // The source's own limit goes before the password: it has had 14.
    assert_eq!(statuses("/", &[&*wrong; 7]), [401, 401, 401, 401, 401, 401, 429]);
    let refused = ask(&mut engine.client("web"), "/", &bob);
    assert_eq!(refused.field("RateLimit-Policy"), Some("\"guesses\";q=20;w=86400"));
    let count = |limit: &str, outcome: &str| {
        engine.metric("propylon_limit_requests_total", &[("limit", limit), ("outcome", outcome)])
    };
    assert_eq!(
        [count("guesses", "allowed"), count("account", "allowed"), count("account", "refused")],
        [20.0, 6.0, 5.0]
    );
    // Lists have names of users; a request in progress is given back when it ends.
    assert_eq!(statuses("/one", &[&ann, &ann, &cleo, &wrong]), [200, 200, 403, 401]);
    let mut slow = engine.client("web");
    slow.send(format!("POST /one HTTP/1.1\r\nHost: localhost\r\n{ann}Content-Length: 2\r\n\r\na"));
    holds("a request of ann's is in progress", || origin.received_text().contains("POST /one"));
    assert_eq!(statuses("/one", &[&ann, &bob]), [429, 200]);
    slow.send("b");
    assert_eq!(slow.read_response().status, 200);
    holds("it is over", || statuses("/one", &[&ann]) == [200]);
}
