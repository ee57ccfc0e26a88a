//! What an operator asks before anything goes wrong: what would become of a request, and what this machine lacks.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use propylon_e2e::engine::simple;
use propylon_e2e::program::{Said, run};
use propylon_e2e::{Certificates, Engine, Origin, Scratch, binaries};
use serde_json::{Value, json};

fn propylon(arguments: &[&str]) -> Said {
    let mut command = std::process::Command::new(binaries::propylon());
    command.args(arguments);
    run(command, b"", Duration::from_secs(20))
}

const ROUTES: &str = r#"
[listener.web]
bind = "127.0.0.1:8443"
tls = "public"
[listener.plain]
bind = "127.0.0.1:8080"
[backend.app]
servers = ["127.0.0.1:1", { address = "127.0.0.1:2", weight = 3 }]
[backend.api]
servers = ["127.0.0.1:3"]
health = { path = "/up", interval = "3s" }
outlier = {}
[[route]]
backend = "app"
[[route]]
host = "shop.test"
path = "/api"
backend = "api"
[[route]]
listener = "plain"
redirect = { scheme = "https" }
"#;

fn config(scratch: &Scratch) -> String {
    let text = format!("{ROUTES}{}", Certificates::shared().profile());
    scratch.write("propylon.toml", text).display().to_string()
}

fn line_of(text: &str) -> usize {
    ROUTES.lines().position(|line| line == text).expect("the line") + 1
}

#[test]
fn what_a_route_does_with_a_request_is_told() {
    let scratch = Scratch::new();
    for page in ["404.txt", "5.txt"] {
        scratch.write(page, "page");
    }
    let text = "[listener.a]\nbind = \"127.0.0.1:81\"\nmonitor_path = \"/up\"\nerror_pages = { 404 = \"404.txt\" }\n\
                intercept_errors = true\n[listener.led]\nbind = \"127.0.0.1:82\"\nmonitor_path = \"/up\"\n\
                redirect_to_https = true\n[backend.b]\nservers = [\"127.0.0.1:1\"]\n[[route]]\nbackend = \"b\"\n\
                limit = [{ rate = \"10/s\", burst = 20 }, { requests = 5, key = [\"source\", \"path\"] }]\n\
                cors = { origins = [\"https://a.test\"] }\ncompress = { minimum = \"2KiB\" }\nerror_pages = { 5xx = \"5.txt\" }\n\
                [[route]]\nhost = \"bare.test\"\nbackend = \"b\"\nintercept_errors = false\n\
                [[route]]\nhost = \"both.test\"\nbackend = \"b\"\nlimit = { rate = \"1/s\", key = \"user\" }\n\
                auth = { all = [{ basic = { file = \"/u\" } }, { forward = { backend = \"b\", user_from = \"X-U\" } }] }\n";
    let path = scratch.write("propylon.toml", text).display().to_string();
    let explained = |arguments: &[&str]| {
        let said = propylon(&[&["explain", "-c", &path], arguments].concat());
        assert_eq!(said.status.code(), Some(0), "{}", said.stderr);
        said.text()
    };
    let told = explained(&["http://a.test:81/x"]);
    for expected in [
        "\nlimit        {\"burst\":20",
        "\"requests\":5",
        "\ncors         {",
        "https://a.test",
        "\ncompress     {",
        "\"minimum\":2048",
        "\nerrors       pages in place of servers' responses with 404, 5xx\n",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let json: Value = serde_json::from_str(&explained(&["--json", "http://a.test:81/x"])).expect("JSON");
    let told = &json["listeners"][0];
    assert_eq!((&told["limit"][0]["burst"], &told["intercept_errors"]), (&json!(20), &json!(["404", "5xx"])));
    assert!(told["cors"].is_object() && told["compress"].is_object() && told["error_pages"].is_object(), "{told}");
    // A field Host stands in place of the URL's.
    let bare = explained(&["-H", "Host: bare.test", "http://127.0.0.1:81/x"]);
    assert!(bare.starts_with("http://127.0.0.1:81/x (Host bare.test, path /x)\n"), "{bare}");
    assert!(
        bare.contains("host bare.test, path from /") && !bare.contains("\nlimit") && !bare.contains("\nerrors"),
        "{bare}"
    );
    let both = explained(&["http://both.test:81/x"]);
    for expected in ["asks for a name and a password of /u, and the word of backend b; without", "\"key\":[\"user\"]"] {
        assert!(both.contains(expected), "{expected}: {both}");
    }
    for port in [81, 82] {
        let monitor = explained(&[&format!("http://a.test:{port}/%75p")]);
        assert!(monitor.contains("200, or 503 while it drains: monitor_path goes before all routes"), "{monitor}");
        assert!(!monitor.contains("\nroute") && !monitor.contains("redirect_to_https"), "{monitor}");
    }
    let json: Value = serde_json::from_str(&explained(&["--json", "http://a.test:82/up"])).expect("JSON");
    assert_eq!(
        (&json["listeners"][0]["status"], &json["listeners"][0]["reason"]),
        (&json!(200), &json!("monitor_path"))
    );
}

#[test]
fn scripts_and_calls_of_browsers_are_told() {
    let scratch = Scratch::new();
    let text = "[listener.a]\nbind = \"127.0.0.1:81\"\npaths = { allow = [\"%00\"] }\n\
                [backend.php]\nservers = [\"127.0.0.1:1\"]\nprotocol = \"fastcgi\"\n\
                fastcgi = { root = \"/srv/shop\", scripts = [\"/admin/*.php\"] }\n\
                [backend.own]\nservers = [\"127.0.0.1:1\"]\nprotocol = \"fastcgi\"\n\
                fastcgi = { root = \"/srv/own\", params = { SCRIPT_FILENAME = \"/srv/x.php\" } }\n\
                [backend.calls]\nservers = [\"127.0.0.1:2\"]\nprotocol = \"h2\"\n\
                [[route]]\nbackend = \"php\"\nfallback = \"own\"\n\
                [[route]]\npath = \"/moved\"\nbackend = \"php\"\nrequest = { path = { replace = \"/admin/tool.php/a\" } }\n\
                [[route]]\npath = \"/shop.Cart\"\nbackend = \"calls\"\ngrpc_web = true\n";
    let path = scratch.write("propylon.toml", text).display().to_string();
    let explained = |arguments: &[&str]| {
        let said = propylon(&[&["explain", "-c", &path], arguments].concat());
        assert_eq!(said.status.code(), Some(0), "{}", said.stderr);
        said.text()
    };
    let told = |arguments: &[&str]| -> Value {
        let json: Value = serde_json::from_str(&explained(&[&["--json"], arguments].concat())).expect("JSON");
        json["listeners"][0].clone()
    };
    for (path, script, rest, file) in [
        ("/blog/x?y=/admin/z.php", "/index.php", "no PATH_INFO", "/srv/shop/index.php"),
        ("/admin/edit%2ephp/a/b?c", "/admin/edit.php", "PATH_INFO /a/b", "/srv/shop/admin/edit.php"),
        ("/moved?x", "/admin/tool.php", "PATH_INFO /a", "/srv/shop/admin/tool.php"),
        ("/upload/x.jpg/y.php", "/index.php", "no PATH_INFO", "/srv/shop/index.php"),
    ] {
        let url = format!("http://a.test:81{path}");
        let text = explained(&[&url]);
        let lines = format!("\nscript       {script}, {rest}\nfile         {file}, as the servers see it\n");
        assert!(text.contains(&lines), "{path}: {text}");
        let one = &told(&[&url])["backend"]["script"];
        assert_eq!((&one["name"], &one["file"], &one["root"]), (&json!(script), &json!(file), &json!("/srv/shop")));
    }
    let text = explained(&["http://a.test:81/x"]);
    assert!(text.contains("\nfile         as `params` has SCRIPT_FILENAME"), "{text}");
    assert!(explained(&["http://a.test:81/a%00.php"]).contains("\nanswer       400 (bad-script-path)\n"));
    let url = "http://a.test:81/shop.Cart/Add";
    let call = |kind: &str| {
        let line = format!("Content-Type: {kind}");
        let asked = ["-X", "POST", "-H", &line, url];
        (explained(&asked), told(&asked)["grpc_web"].clone())
    };
    let (text, json) = call("application/grpc-web+proto");
    assert!(text.contains("\ngrpc_web     a call: servers get application/grpc+proto\n"), "{text}");
    assert!(text.contains("the client gets application/grpc-web+proto, with the trailers"), "{text}");
    assert_eq!((&json["request"], &json["base64"]), (&json!("application/grpc+proto"), &json!(false)));
    let (text, json) = call("application/grpc-web-text");
    assert!(text.contains("a call: servers get application/grpc, its body without base64\n"), "{text}");
    assert_eq!(json["response"], "application/grpc-web-text");
    let (text, json) = call("application/json");
    assert!(text.contains("\ngrpc_web     goes on as it is: calls are POST with "), "{text}");
    assert!(json.is_null());
    assert!(!explained(&["http://a.test:81/"]).contains("grpc_web"));
}

#[test]
fn a_request_is_followed_from_its_listener_to_its_servers() {
    let scratch = Scratch::new();
    let path = config(&scratch);
    let said = propylon(&["explain", "-c", &path, "https://shop.test:8443/api/x?y"]);
    assert_eq!(said.status.code(), Some(0), "{}", said.stderr);
    let text = said.text();
    for expected in [
        "web at https://127.0.0.1:8443",
        "host shop.test, path from /api",
        "goes before any host, path from /",
        "probed by http /up every 3s, ejected for bad answers",
    ] {
        assert!(text.contains(expected), "no \"{expected}\" in:\n{text}");
    }
    let json = propylon(&["explain", "-c", &path, "--json", "https://shop.test:8443/api/x?y"]);
    let value: Value = serde_json::from_str(&json.text()).expect("JSON");
    let one = &value["listeners"][0];
    assert_eq!(one["backend"]["name"], "api");
    assert_eq!(one["backend"]["servers"][0]["address"], "127.0.0.1:3");
    assert_eq!(one["route"]["at"]["line"], line_of("host = \"shop.test\"") - 1);
    assert_eq!(one["certificates"]["server_name"], "shop.test");
    let shown = one["certificates"]["in_order"].as_array().expect("certificates");
    assert_eq!(shown[0]["key_type"], "ecdsa", "EC goes first");
    assert!(shown.iter().any(|one| one["key_type"] == "rsa") && shown.iter().all(|one| one["match"] == "exact"));
}

#[test]
fn what_the_client_names_in_its_greeting_may_differ_from_what_it_asks_for() {
    let scratch = Scratch::new();
    let path = config(&scratch);
    let of = |sni: &str| {
        let said = propylon(&["explain", "-c", &path, "--json", "https://other.example:8443/", "--sni", sni]);
        let value: Value = serde_json::from_str(&said.text()).expect("JSON");
        value["listeners"][0]["certificates"].clone()
    };
    assert_eq!(of("a.shop.test")["in_order"][0]["match"], "wildcard");
    assert_eq!(of("elsewhere.example")["in_order"][0]["match"], "default");
    assert_eq!(of("")["server_name"], Value::Null);
}

#[test]
fn a_request_is_followed_by_the_suite_and_the_group_of_its_connection() {
    let scratch = Scratch::new();
    let strong = "[[route]]\nhost = \"shop.test\"\npath = \"/api\"\n\
                  match = { tls = { suite = \"ECDHE-RSA-AES256-GCM-SHA384\", group = \"P-384\" } }\nbackend = \"app\"\n";
    let text = format!("{ROUTES}{strong}{}", Certificates::shared().profile());
    let path = scratch.write("propylon.toml", text).display().to_string();
    let ask = |facts: &[&str]| {
        let facts = facts.iter().flat_map(|fact| ["--tls", fact]);
        let arguments = ["explain", "-c", &path, "https://shop.test:8443/api"].into_iter().chain(facts);
        propylon(&arguments.collect::<Vec<_>>())
    };
    let met = ask(&["suite=TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "group=secp384r1"]).text();
    assert!(met.contains("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384") && met.contains("secp384r1"), "{met}");
    assert!(!met.contains("is not as it asks"), "{met}");
    let other = ask(&["suite=ECDHE-RSA-AES256-GCM-SHA384", "group=x25519"]).text();
    assert!(other.contains("TLS: group is not as it asks"), "{other}");
    let unknown = ask(&["suite=fast"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("there is no cipher suite named fast"), "{}", unknown.stderr);
}

#[test]
fn where_all_are_sent_to_https_no_route_is_followed() {
    let scratch = Scratch::new();
    let text = format!("{ROUTES}{}", Certificates::shared().profile());
    let text = text.replace("bind = \"127.0.0.1:8080\"", "bind = \"127.0.0.1:8080\"\nredirect_to_https = true");
    let path = scratch.write("propylon.toml", text).display().to_string();
    let said = propylon(&["explain", "-c", &path, "http://shop.test:8080/api"]).text();
    assert!(said.contains("308 to https: redirect_to_https goes before all routes"), "{said}");
}

#[test]
fn a_path_is_followed_in_its_canonical_form() {
    let scratch = Scratch::new();
    let path = config(&scratch);
    let of = |url: &str| {
        let said = propylon(&["explain", "-c", &path, "--json", url]);
        let value: Value = serde_json::from_str(&said.text()).expect("JSON");
        value["listeners"][0].clone()
    };
    let one = of("https://shop.test:8443/x/..//%61pi/y");
    assert_eq!((&one["backend"]["name"], &one["path"]), (&"api".into(), &"/api/y".into()), "{one}");
    let refused = of("https://shop.test:8443/api%2Fx");
    assert_eq!((&refused["status"], &refused["reason"]), (&400.into(), &"escaped-slash".into()), "{refused}");
    let said = propylon(&["explain", "-c", &path, "https://shop.test:8443/a%2Fb"]);
    assert!(said.text().contains("lets it in with paths.allow = [\"%2F\"]"), "{}", said.text());
    let text = propylon(&["explain", "-c", &path, "https://shop.test:8443//api"]).text();
    assert!(text.contains("/api, in canonical form"), "{text}");
}

#[test]
fn a_route_of_one_listener_goes_before_the_same_for_all() {
    let scratch = Scratch::new();
    let said = propylon(&["explain", "-c", &config(&scratch), "--json", "http://any.example:8080/"]);
    let value: Value = serde_json::from_str(&said.text()).expect("JSON");
    assert_eq!(value["listeners"][0]["status"], 308);
    assert_eq!(value["listeners"][0]["also_match"].as_array().map(Vec::len), Some(1));
}

#[test]
fn what_cannot_come_in_is_told_with_what_could() {
    let scratch = Scratch::new();
    let path = config(&scratch);
    let nowhere = propylon(&["explain", "-c", &path, "https://shop.test/"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(nowhere.stderr.contains("nothing listens at port 443"), "{}", nowhere.stderr);
    assert!(nowhere.stderr.contains("web (https://127.0.0.1:8443)"), "{}", nowhere.stderr);
    let wrong = propylon(&["explain", "-c", &path, "http://shop.test:8443/"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(wrong.stderr.contains("speaks TLS; ask with https://"), "{}", wrong.stderr);
}

#[test]
fn a_machine_is_looked_at_and_every_complaint_has_its_command() {
    let said = propylon(&["doctor", "--json"]);
    let findings: Vec<Value> = serde_json::from_str(&said.text()).expect("a JSON array");
    let whats: Vec<&str> = findings.iter().filter_map(|finding| finding["what"].as_str()).collect();
    for expected in ["open files (hard limit)", "net.core.somaxconn", "AVX-512 IFMA", "clock", "cores for workers"] {
        assert!(whats.contains(&expected), "no {expected} among {whats:?}");
    }
    // A container sees no NIC's device, and is told so.
    assert!(whats.iter().any(|what| ["NICs", "NIC's queues"].contains(what)), "{whats:?}");
    let of_packets = |finding: &&Value| finding["what"].as_str().is_some_and(|what| what.starts_with("NIC"));
    assert!(findings.iter().filter(of_packets).all(|finding| finding["why"].as_str().is_some_and(|why| why.len() > 9)));
    for finding in &findings {
        let complains = ["advice", "bad"].contains(&finding["state"].as_str().unwrap_or_default());
        assert_eq!(complains, finding["command"] != "", "{finding}");
    }
    let bad = findings.iter().any(|finding| finding["state"] == "bad");
    assert_eq!(said.status.code(), Some(i32::from(bad)));
}

#[test]
fn a_limit_too_low_for_the_configuration_is_bad() {
    let scratch = Scratch::new();
    let text = format!("[process]\nmax_connections = 100000000\n{ROUTES}{}", Certificates::shared().profile());
    let path = scratch.write("propylon.toml", text).display().to_string();
    let said = propylon(&["doctor", "-c", &path]);
    assert_eq!(said.status.code(), Some(1), "{}", said.text());
    let text = said.text();
    let (_, rest) = text.split_once("LimitNOFILE=").unwrap_or_else(|| panic!("{text}"));
    let figure: u64 = rest.split(' ').next().and_then(|figure| figure.parse().ok()).expect("a figure");
    // Two for each client, and what is kept of every limit; the rest is as many as there are cores.
    assert!((200_000_272..200_100_000).contains(&figure), "{text}");
}

#[test]
fn a_port_that_another_program_has_is_bad_and_one_that_an_engine_has_is_not() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let engine = Engine::start(&simple(&[Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").address()]));
    let scratch = Scratch::new();
    let state_of = |address: std::net::SocketAddr| {
        let text = format!("[listener.web]\nbind = \"{address}\"\n[[route]]\nrespond = {{ status = 200 }}\n");
        let path = scratch.write("ports.toml", text).display().to_string();
        let said = propylon(&["doctor", "-c", &path, "--json"]);
        let findings: Vec<Value> = serde_json::from_str(&said.text()).expect("a JSON array");
        let found =
            findings.into_iter().find(|finding| finding["what"] == "listener address").expect("it is looked at");
        (found["state"].as_str().unwrap_or_default().to_owned(), said.status.code())
    };
    assert_eq!(state_of(taken.local_addr().expect("an address")), ("bad".to_owned(), Some(1)));
    assert_eq!(state_of(engine.address("plain")).0, "advice");
}

#[test]
fn a_folder_of_uploads_that_the_account_may_not_write_in_is_told_by_check_and_doctor() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.join("."), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
    let text = format!(
        "[process]\nuser = \"nobody\"\n[keys]\nisolate = true\nstore = \"{}/uploads\"\n{ROUTES}{}",
        scratch.join(".").display(),
        Certificates::shared().profile()
    );
    let path = scratch.write("propylon.toml", text).display().to_string();
    let said = propylon(&["check", "-c", &path]);
    assert!(said.stderr.contains("nobody may not write in "), "{}{}", said.text(), said.stderr);
    let said = propylon(&["doctor", "-c", &path]);
    assert!(said.text().contains("/uploads: permission denied"), "{}", said.text());
    assert!(said.text().contains("install -d -o nobody -g nogroup -m 700 "), "{}", said.text());
}

#[test]
fn root_judges_as_the_account_that_will_serve() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.join("."), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
    let folder = scratch.join("logs");
    std::fs::create_dir(&folder).expect("a folder of root's");
    let text = format!(
        "[process]\nuser = \"nobody\"\n[log]\naccess = \"{}/access.log\"\n{ROUTES}{}",
        folder.display(),
        Certificates::shared().profile()
    );
    let path = scratch.write("propylon.toml", text).display().to_string();
    let token = scratch.write("token", "0123456789abcdef0123456789abcdef");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("our own file");
    let with_token = std::fs::read_to_string(&path).expect("our own file")
        + &format!("\n[admin]\nbind = \"127.0.0.1:0\"\ntoken_file = \"{}\"\n", token.display());
    std::fs::write(&path, with_token).expect("our own file");
    let said = propylon(&["doctor", "-c", &path, "--json"]);
    let findings: Vec<Value> = serde_json::from_str(&said.text()).expect("a JSON array");
    let of =
        |what: &str| findings.iter().find(|finding| finding["what"] == what).unwrap_or_else(|| panic!("{findings:#?}"));
    let told = |what: &str| of(what)["current"].as_str().unwrap_or_default().to_owned();
    assert!(told("account").starts_with("what follows is judged as nobody"), "{}", told("account"));
    assert_eq!((&of("access log's folder")["state"], said.status.code()), (&"bad".into(), Some(1)));
    let files = of("files that the configuration names");
    let refused = format!("{}: Permission denied", token.display());
    assert!(files["state"] == "bad" && told("files that the configuration names").contains(&refused), "{files}");
    // Its command can be pasted: by the group's name, which is not the account's, and with the file's.
    let fix = files["command"].as_str().unwrap_or_default();
    let command = fix.split(" (").next().unwrap_or_default();
    assert!(command.contains(&token.display().to_string()) && !command.contains("chgrp nobody"), "{fix}");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", command]);
    let done = run(shell, b"", Duration::from_secs(20));
    assert_eq!(done.status.code(), Some(0), "{command}: {}", done.stderr);
    let said = propylon(&["doctor", "-c", &path, "--json"]);
    let again: Vec<Value> = serde_json::from_str(&said.text()).expect("a JSON array");
    let files = again.iter().find(|finding| finding["what"] == "files that the configuration names").expect("them");
    assert_eq!(files["state"], "good", "{files}");
    let log = of("access log's folder")["command"].as_str().unwrap_or_default();
    assert!(log.starts_with("install -d -o nobody -g "), "{log}");
    // Run by somebody who is neither, it says so.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("our own file");
    let mut other = std::process::Command::new("setpriv");
    other.args(["--reuid=1", "--clear-groups"]).arg(binaries::propylon()).args(["doctor", "-c", &path]);
    let said = run(other, b"", Duration::from_secs(20));
    let words = "all of this is judged as uid 1, which is neither root nor nobody";
    assert!(said.text().contains(words), "{}{}", said.text(), said.stderr);
}

#[test]
fn an_engine_at_work_is_watched_from_a_terminal() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let engine = Engine::start(&simple(&[origin.address()]));
    let admin = engine.admin().to_string();
    let said = propylon(&["top", "--admin", &admin, "--json"]);
    assert_eq!(said.status.code(), Some(0), "{}", said.stderr);
    let value: Value = serde_json::from_str(&said.text()).expect("JSON");
    assert_eq!(value["servers"][0]["address"], origin.address().to_string());
    let said = propylon(&["top", "--admin", &admin]);
    assert!(said.text().contains(&origin.address().to_string()), "{}", said.text());
    drop(engine);
    let said = propylon(&["top", "--admin", &admin]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("does not answer"), "{}", said.stderr);
}

#[test]
fn an_engine_whose_admin_address_is_a_unix_socket_with_a_token_is_watched_as_well() {
    let scratch = Scratch::new();
    let socket = scratch.join("admin.sock").display().to_string();
    let token = scratch.write("token", "0123456789abcdef0123456789abcdef").display().to_string();
    let admin = format!("[admin]\nbind = \"unix:{socket}\"\ntoken_file = \"{token}\"\n");
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let engine = Engine::start(&format!("{admin}{}", simple(&[origin.address()])));
    let by_config = engine.folder().join("propylon.toml").display().to_string();
    for place in [["--admin", &format!("unix:{socket}")], ["-c", &by_config]] {
        let said = propylon(&["top", place[0], place[1], "--json"]);
        assert_eq!(said.status.code(), Some(0), "{}", said.stderr);
        let value: Value = serde_json::from_str(&said.text()).expect("JSON");
        assert_eq!(value["servers"][0]["address"], origin.address().to_string());
        assert_eq!((&value["generation"], &value["servers_total"]), (&1.into(), &1.into()));
        assert_eq!(value["certificates"].as_array().map(Vec::len), Some(2));
    }
    let said = propylon(&["top", "--admin", "unix:"]);
    assert_eq!(said.status.code(), Some(2), "{}", said.stderr);
}

#[test]
fn commands_of_propylonctl_answer_to_one_name_as_to_the_other() {
    let scratch = Scratch::new();
    let path = config(&scratch);
    let by = |program: &Path, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        command.args(arguments);
        let said = run(command, b"", Duration::from_secs(20));
        (said.status.code(), said.text(), said.stderr)
    };
    let (engine, own) = (binaries::propylon(), binaries::propylonctl());
    let asked: [(&[&str], Option<i32>); 8] = [
        (&["schema"], Some(0)),
        (&["explain", "-c", &path, "https://shop.test:8443/api/x?y"], Some(0)),
        (&["explain", "-c", &path, "https://nowhere.test:1/"], Some(1)),
        (&["doctor", "-c", "/nonexistent/propylon.toml"], Some(1)),
        (&["top", "--once", "--admin", "127.0.0.1:1"], Some(1)),
        (&["top", "--admin", "unix:"], Some(2)),
        (&["servers", "--admin", "127.0.0.1:1", "--json"], Some(1)),
        (&["drain", "10.0.0.3:8080", "--admin", "127.0.0.1:1"], Some(1)),
    ];
    for (arguments, code) in asked {
        let said = by(&engine, arguments);
        assert_eq!(said, by(&own, arguments), "{arguments:?}");
        assert_eq!(said.0, code, "{arguments:?}: {said:?}");
    }
    // Usage has the name that was typed.
    for arguments in [["top", "--help"], ["help", "top"]] {
        let (code, usage, _) = by(&engine, &arguments);
        assert!(code == Some(0) && usage.contains("Usage: propylon top [OPTIONS]"), "{arguments:?}: {usage}");
        assert_eq!(usage.replace("Usage: propylon top", "Usage: propylonctl top"), by(&own, &arguments).1);
    }
    // One list has all that the other has.
    let (listed, there) = (by(&engine, &["--help"]).1, by(&own, &["--help"]).1);
    let commands: Vec<&str> = there.lines().skip_while(|line| *line != "Commands:").skip(1).collect();
    let commands: Vec<&str> = commands.into_iter().take_while(|line| !line.is_empty()).collect();
    assert_eq!(commands.len(), 22, "{there}");
    commands.iter().for_each(|line| assert!(listed.lines().any(|other| other == *line), "{line}\n{listed}"));
}

#[test]
fn editors_are_told_of_every_key_with_its_words_from_the_manual() {
    let printed = |arguments: &[&str]| -> Value {
        let said = propylon(arguments);
        assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), ""));
        serde_json::from_str(&said.text()).expect("JSON")
    };
    let engine = printed(&["schema"]);
    assert_eq!(engine["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let backend = &engine["properties"]["backend"]["additionalProperties"];
    assert_eq!((&backend["required"], &backend["additionalProperties"]), (&json!(["servers"]), &json!(false)));
    let connect = &backend["properties"]["timeouts"]["properties"]["connect"];
    assert_eq!((&connect["default"], &connect["description"]), (&json!("3s"), &json!("TCP connect; to 1 h")));
    let key_server = printed(&["schema", "--key-server"]);
    let paths = &key_server["properties"]["keys"]["properties"]["paths"];
    assert!(
        paths["description"].as_str().is_some_and(|text| text.starts_with("files and folders with keys")),
        "{paths}"
    );
    assert_eq!(propylon(&["schema", "propylon.toml"]).status.code(), Some(2));
}

#[test]
fn an_engine_without_propylonctl_says_where_it_was_looked_for_and_what_to_do() {
    let scratch = Scratch::new();
    let alone = scratch.join("propylon");
    // Nobody else's child may have the copy open for writing when it is executed.
    let copied = std::process::Command::new("cp").arg(binaries::propylon()).arg(&alone).status();
    assert!(copied.expect("cp").success());
    let elsewhere = Scratch::new();
    let says = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&alone);
        command.args(arguments).env("PATH", elsewhere.path());
        let said = run(command, b"", Duration::from_secs(20));
        (said.status.code(), said.text(), said.stderr)
    };
    for arguments in [["top", "--once"], ["help", "doctor"], ["explain", "--help"]] {
        let (code, text, error) = says(&arguments);
        assert_eq!((code, text.as_str()), (Some(1), ""), "{error}");
        let place = format!("neither in {} nor found by PATH", scratch.path().display());
        assert!(error.starts_with("propylon: this command is propylonctl's") && error.contains(&place), "{error}");
        assert!(error.contains("install it beside propylon") && error.lines().count() == 1, "{error}");
    }
    // It starts and is checked without.
    assert_eq!(says(&["check", "-c", &config(&scratch)]).0, Some(0));
    // By PATH, unless one is beside it.
    let make = |folder: &Scratch, name: &str| {
        let program = folder.write("propylonctl", format!("#!/bin/sh\necho {name} \"$@\"\nexit 7\n"));
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        program
    };
    make(&elsewhere, "found");
    assert_eq!(says(&["top", "--once"]), (Some(7), "found top --once\n".into(), String::new()));
    let beside = make(&scratch, "beside");
    assert_eq!(says(&["drain", "a b", "--admin"]), (Some(7), "beside drain a b --admin\n".into(), String::new()));
    // One that is there and cannot be executed is not passed over.
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let (code, _, error) = says(&["top"]);
    assert_eq!(code, Some(1));
    assert!(error.contains(&format!("{} cannot be executed: ", beside.display())), "{error}");
}
