//! Configurations as people keep them: in several files, with variables, in one form, and from other programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use propylon_e2e::admin::push;
use propylon_e2e::program::{Said, run};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, binaries, holds};
use serde_json::Value;

fn propylon(arguments: &[&str], variables: &[(&str, &str)], input: &str) -> Said {
    let mut command = Command::new(binaries::propylon());
    command.args(arguments).envs(variables.iter().copied());
    run(command, input.as_bytes(), Duration::from_secs(20))
}

/// An origin that says its name.
fn named(name: &'static str) -> Origin {
    Origin::always(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()))
}

#[track_caller]
fn answered(engine: &Engine, host: &str) -> String {
    let response = Client::plain(engine.address("plain")).ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    format!("{} {}", response.status, response.text())
}

const SETTINGS: &str = "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nwatch_config = true\n\
    [admin]\nbind = \"127.0.0.1:0\"\ntoken_file = \"token\"\n[log]\naccess = \"stdout\"\n\
    [listener.plain]\nbind = \"127.0.0.1:0\"\n";

fn site(name: &str, origin: &Origin) -> String {
    format!(
        "# {name}\n[backend.{name}]\nservers = [\"{}\"]\n[[route]]\nhost = \"{name}.test\"\nbackend = \"{name}\"\n",
        origin.address()
    )
}

fn with_sites(sites: &[(&str, String)]) -> Scratch {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("sites")).expect("a folder");
    scratch.write("token", propylon_e2e::admin::TOKEN);
    sites.iter().for_each(|(name, text)| drop(scratch.write(&format!("sites/{name}.toml"), text)));
    scratch
}

fn with_include(settings: &str) -> String {
    format!("include = [\"sites/*.toml\"]\n{settings}")
}

/// Puts a whole file in its place.
fn put(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join("new"), text).expect("a file");
    std::fs::rename(folder.join("new"), folder.join(name)).expect("a rename");
}

#[test]
fn a_configuration_of_several_files_is_served_and_read_again_with_all_of_them() {
    let (one, two) = (named("one"), named("two"));
    let scratch = with_sites(&[("one", site("one", &one))]);
    let engine = Engine::start_in(scratch, &[], &with_include(&SETTINGS.replace("watch_config = true", "")));
    assert_eq!(answered(&engine, "one.test"), "200 one");
    assert_eq!(answered(&engine, "two.test").split(' ').next(), Some("404"));
    let folder = engine.folder();
    std::fs::write(folder.join("sites/two.toml"), site("two", &two)).expect("a file");
    let said = engine.reload();
    assert!(said.contains("in effect, with"), "{said}");
    assert_eq!((answered(&engine, "one.test"), answered(&engine, "two.test")), ("200 one".into(), "200 two".into()));

    // Faults are told in the file that they are in, and nothing changes.
    std::fs::write(folder.join("sites/two.toml"), "# two\n[backend.two]\nservers = 3\n").expect("a file");
    let said = engine.reload();
    assert!(said.contains("was refused"), "{said}");
    let place = format!("{}/sites/two.toml:3:11: `servers`: expected an array", folder.display());
    assert!(engine.stderr().iter().any(|line| line.contains(&place)), "{}", engine.stderr().join("\n"));
    assert_eq!(answered(&engine, "two.test"), "200 two");

    std::fs::remove_file(folder.join("sites/two.toml")).expect("a file");
    engine.reload();
    assert_eq!(answered(&engine, "two.test").split(' ').next(), Some("404"));
}

#[test]
fn a_change_of_an_included_file_is_noticed_and_so_is_a_new_one() {
    let (one, two) = (named("one"), named("two"));
    let scratch = with_sites(&[("one", site("one", &one))]);
    let engine = Engine::start_in(scratch, &[], &with_include(SETTINGS));
    assert_eq!(answered(&engine, "one.test"), "200 one");
    put(&engine.folder(), "sites/two.toml", &site("two", &two));
    holds("the new file's route", || answered(&engine, "two.test") == "200 two");
    put(&engine.folder(), "sites/one.toml", &site("one", &two));
    holds("the changed file's server", || answered(&engine, "one.test") == "200 two");

    // Files that look cut off, and one that cannot be read, are told by name; nothing changes, and the condition holds.
    let failed = || engine.metric("propylon_config_reloads_total", &[("result", "failed")]);
    let logged = |words: &str| engine.stderr().iter().any(|line| line.contains(words));
    let (folder, two) = (engine.folder().display().to_string(), site("two", &two));
    for (at, name, text, words) in [
        (1.0, "sites/two.toml", two.trim_end().as_bytes(), "two.toml: its last line has no newline any more"),
        (2.0, "sites/two.toml", b"", "two.toml: nothing is left in it"),
        (3.0, "propylon.toml", b"# caf\xe9\n", "propylon.toml:1:6: byte 0xe9 is not UTF-8"),
    ] {
        std::fs::write(engine.folder().join("new"), text).expect("a file");
        std::fs::rename(engine.folder().join("new"), engine.folder().join(name)).expect("a rename");
        let place = format!("{folder}/{}{words}", if name.starts_with("sites") { "sites/" } else { "" });
        holds(words, || failed() == at && logged(&place));
        assert_eq!(engine.metric("propylon_config_last_reload_failed", &[]), 1.0);
        assert_eq!(answered(&engine, "two.test"), "200 two");
    }
    put(&engine.folder(), "sites/two.toml", &two);
    engine.rewrite(&with_include(SETTINGS));
    holds("what was told ends", || engine.metric("propylon_config_last_reload_failed", &[]) == 0.0);
    assert_eq!(failed(), 3.0, "told once");
}

#[test]
fn check_and_explain_name_the_included_file_with_its_own_line() {
    let one = named("one");
    let text = format!("{}[[route]]\nhost = \"x.test\"\nbackend = \"nothere\"\n", site("one", &one));
    let scratch = with_sites(&[("one", text), ("two", site("two", &one))]);
    let path = scratch.write("propylon.toml", with_include(SETTINGS)).display().to_string();
    let file = scratch.join("sites/one.toml").display().to_string();
    let said = propylon(&["check", "-c", &path], &[], "");
    assert_eq!(said.status.code(), Some(1));
    let expected = format!(
        "{file}:9:11: no backend named \"nothere\"; use \"one\" or \"two\", or add a section [backend.NAME]\n  \
         9 | backend = \"nothere\"\n    |           ^^^^^^^^^\n"
    );
    assert!(said.stderr.contains(&expected), "{}", said.stderr);
    let said = propylon(&["check", "-c", &path, "--json"], &[], "");
    let problems: Value = serde_json::from_str(&said.text()).expect("JSON");
    assert_eq!((problems[0]["file"].as_str(), problems[0]["line"].as_u64()), (Some(file.as_str()), Some(9)));

    scratch.write("sites/one.toml", site("one", &one));
    assert_eq!(propylon(&["check", "-c", &path], &[], "").status.code(), Some(0));
    let asked = SETTINGS.replace("plain]\nbind = \"127.0.0.1:0\"", "plain]\nbind = \"127.0.0.1:18080\"");
    scratch.write("propylon.toml", with_include(&asked));
    let said = propylon(&["explain", "-c", &path, "--json", "http://two.test:18080/"], &[], "");
    let value: Value = serde_json::from_str(&said.text()).expect("JSON");
    let at = &value["listeners"][0]["route"]["at"];
    let two = scratch.join("sites/two.toml").display().to_string();
    assert_eq!((at["file"].as_str(), at["line"].as_u64()), (Some(two.as_str()), Some(4)), "{value}");
}

#[test]
fn a_text_that_is_pushed_has_neither_includes_nor_variables() {
    let one = named("one");
    let scratch = with_sites(&[("one", site("one", &one))]);
    let state = scratch.join("state").display().to_string();
    let settings = SETTINGS.replace("watch_config = true", &format!("state = \"{state}\""));
    let engine = Engine::start_in(scratch, &[("SECRET", "hunter2-hunter2")], &with_include(&settings));
    let (status, problems) = push(&engine, &with_include("[listener.plain]\nbind = \"127.0.0.1:0\"\n"));
    assert_eq!(status, 422, "{problems}");
    let told = problems.to_string();
    assert!(told.contains("`include` is only for a configuration in a file of this machine"), "{told}");
    assert!(told.contains("put the sections of those files into this text"), "{told}");
    let (status, problems) =
        push(&engine, "[listener.plain]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = { body = \"${env:SECRET}\" }\n");
    assert_eq!(status, 422, "{problems}");
    let told = problems.to_string();
    assert!(told.contains("${env:SECRET} is only for configurations in a file") && !told.contains("hunter2"), "{told}");
    assert_eq!(answered(&engine, "one.test"), "200 one");
}

#[test]
fn variables_of_the_environment_are_put_in_and_their_values_told_to_nobody() {
    let one = named("one");
    let address = one.address().to_string();
    let variables = [("APP", address.as_str()), ("WORKERS", "2"), ("SECRET", "hunter2-hunter2")];
    let text = "[process]\nworkers = \"${env:WORKERS}\"\ndrain_timeout = \"${env:DRAIN:-1s}\"\n\
        [listener.plain]\nbind = \"127.0.0.1:${env:PORT:-0}\"\n[backend.app]\nservers = [\"${env:APP}\"]\n\
        [[route]]\nbackend = \"app\"\n[[route]]\nhost = \"text.test\"\nrespond = { body = \"$${env:APP}\" }\n";
    let engine = Engine::start_in(Scratch::new(), &variables, text);
    assert_eq!(answered(&engine, "x.test"), "200 one");
    assert_eq!(answered(&engine, "text.test"), "200 ${env:APP}");
    assert!(engine.stderr().iter().any(|line| line.contains(" runs with 2 workers")), "{:?}", engine.stderr());
    // Read again with the same environment.
    engine.rewrite(&format!("{text}[[route]]\nhost = \"y.test\"\nrespond = {{ body = \"${{env:WORKERS}}\" }}\n"));
    let said = engine.reload();
    assert!(said.contains("in effect"), "{said}");
    assert_eq!((answered(&engine, "x.test"), answered(&engine, "y.test")), ("200 one".into(), "200 2".into()));
    engine.rewrite(&text.replace("${env:APP}\"]", "${env:SECRET}\"]"));
    assert!(engine.reload().contains("was refused"));
    assert!(!engine.stderr().join("\n").contains("hunter2"), "{}", engine.stderr().join("\n"));

    let scratch = Scratch::new();
    let path = scratch.write("propylon.toml", text).display().to_string();
    let said = propylon(&["check", "-c", &path], &[("WORKERS", "2")], "");
    assert_eq!(said.status.code(), Some(1));
    let expected = format!(
        "{path}:7:13: the variable APP is not set in the environment, or is not UTF-8; set it where this program is \
         started, or write a default: ${{env:APP:-VALUE}}\n  7 | servers = [\"${{env:APP}}\"]\n    \
         |             ^^^^^^^^^^\n"
    );
    assert_eq!(said.stderr, expected);
    let json = scratch.write(
        "propylon.json",
        "{ \"listener\": { \"a\": { \"bind\": \"127.0.0.1:${env:NO_PORT}\" } }, \"route\": [{ \"respond\": {} }] }",
    );
    let said = propylon(&["check", "--json", "-c", &json.display().to_string()], &[], "");
    let problems: Value = serde_json::from_str(&said.text()).expect("JSON");
    assert_eq!((problems[0]["line"].as_u64(), problems[0]["column"].as_u64()), (Some(1), Some(43)), "{problems}");
}

#[test]
fn files_are_formatted_in_place_and_mean_the_same() {
    let text = "# why\n[listener.plain]   # front\nbind='127.0.0.1:0'\n\n\n\n[[route]]\n  respond={ status=418,body='tea' } # short\n";
    let expected = "# why\n[listener.plain] # front\nbind = '127.0.0.1:0'\n\n[[route]]\nrespond = { status = 418, body = 'tea' } # short\n";
    let scratch = Scratch::new();
    let path = scratch.write("a.toml", text).display().to_string();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("a mode");
    let said = propylon(&["fmt", "--check", &path], &[], "");
    assert_eq!((said.status.code(), said.text()), (Some(1), format!("{path}: not formatted\n")));
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), text);
    let said = propylon(&["fmt", &path], &[], "");
    assert_eq!((said.status.code(), said.text()), (Some(0), format!("{path}: formatted\n")));
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), expected);
    assert_eq!(std::fs::metadata(&path).expect("the file").permissions().mode() & 0o777, 0o640);
    assert_eq!(std::fs::read_dir(scratch.path()).expect("the folder").count(), 1);
    let said = propylon(&["fmt", "--check", &path], &[], "");
    assert_eq!((said.status.code(), said.text()), (Some(0), String::new()));
    assert_eq!(propylon(&["check", "-c", &path], &[], "").status.code(), Some(0));
    let said = propylon(&["fmt"], &[], text);
    assert_eq!((said.status.code(), said.text()), (Some(0), expected.to_owned()));

    let broken = scratch.write("b.toml", "[a\nb = 1\n").display().to_string();
    let said = propylon(&["fmt", &broken], &[], "");
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.starts_with(&format!("{broken}:1:3: ")), "{}", said.stderr);
    assert_eq!(std::fs::read_to_string(&broken).expect("the file"), "[a\nb = 1\n");
}

#[test]
fn a_haproxy_configuration_is_imported_and_serves() {
    let (app, api) = (named("app"), named("api"));
    let scratch = Scratch::new();
    let pem = std::fs::read(Certificates::shared().ec()).expect("a certificate");
    let pem = scratch.write("shop.pem", pem).display().to_string();
    let text = format!(
        "defaults\n    mode http\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\n\
         frontend www\n    bind 127.0.0.1:18080\n    bind 127.0.0.1:18443 ssl crt {pem} alpn h2,http/1.1\n    \
         http-request redirect scheme https code 301 unless {{ ssl_fc }}\n    acl is_api path_beg /api\n    \
         http-request deny if {{ path_beg /internal }}\n    use_backend api if is_api\n    default_backend app\n\
         backend app\n    server a {} check\nbackend api\n    server b {}\n",
        app.address(),
        api.address()
    );
    let cfg = scratch.write("haproxy.cfg", &text).display().to_string();
    let out = scratch.join("propylon.toml").display().to_string();
    let said = propylon(&["import", &cfg, "-o", &out], &[], "");
    assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), ""));
    let checked = propylon(&["check", "-c", &out], &[], "");
    assert_eq!(checked.status.code(), Some(0), "{}", checked.stderr);
    let formatted = propylon(&["fmt", "--check", &out], &[], "");
    assert_eq!(formatted.status.code(), Some(0));
    let imported = std::fs::read_to_string(&out).expect("the file");
    let imported = imported.replace("127.0.0.1:18080", "127.0.0.1:0").replace("127.0.0.1:18443", "127.0.0.1:0");
    let engine = Engine::start(&imported);
    let ask = |path: &str| {
        let response =
            Client::tls(engine.address("https-18443")).ask(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n"));
        format!("{} {}", response.status, response.text())
    };
    assert_eq!((ask("/"), ask("/api/x")), ("200 app".to_owned(), "200 api".to_owned()));
    assert!(ask("/internal/x").starts_with("403"), "{}", ask("/internal/x"));
    let response = Client::plain(engine.address("http-18080")).ask("GET /a?b HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    assert_eq!(response.status, 301);
    assert!(response.head.to_lowercase().contains("location: https://shop.test"), "{}", response.head);

    // A file that is there is not written over.
    let said = propylon(&["import", &cfg, "-o", &out], &[], "");
    assert_eq!(said.status.code(), Some(1));
}

#[test]
fn nginx_and_caddy_are_imported_with_what_is_not_carried_over() {
    let app = named("app");
    let scratch = Scratch::new();
    let nginx = scratch.write(
        "shop",
        format!(
            "server {{\n  listen 127.0.0.1:18080;\n  server_name shop.test;\n  proxy_cache one;\n  location / {{\n    proxy_pass http://{};\n  }}\n  location /staff {{\n    \
             auth_basic on;\n    proxy_pass http://{};\n  }}\n}}\n",
            app.address(),
            app.address()
        ),
    );
    let said = propylon(&["import", &nginx.display().to_string(), "--from", "nginx"], &[], "");
    assert_eq!(said.status.code(), Some(3), "{}", said.stderr);
    let expected = format!("{}:4: proxy_cache one; nothing is cached here: put a cache behind it\n", nginx.display());
    assert!(said.stderr.starts_with(&expected), "{}", said.stderr);
    let engine = Engine::start(&said.text().replace("127.0.0.1:18080", "127.0.0.1:0"));
    let ask = |path: &str| {
        let address = engine.address("http-18080");
        Client::plain(address).ask(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")).status
    };
    assert_eq!((ask("/"), ask("/staff/x")), (200, 403));

    let caddy = scratch.write(
        "Caddyfile",
        format!("http://127.0.0.1:18081 {{\n\trespond /up \"yes\" 200\n\treverse_proxy {}\n}}\n", app.address()),
    );
    let said = propylon(&["import", &caddy.display().to_string()], &[], "");
    assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), ""));

    let wrong = scratch.write("haproxy.cfg", "server { listen 80; }\n").display().to_string();
    let said = propylon(&["import", &wrong], &[], "");
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains(":1: server { listen 80; }; it is in no section"), "{}", said.stderr);
}
