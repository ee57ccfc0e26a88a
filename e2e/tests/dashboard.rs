//! The dashboard in a real browser: it fills itself, complains of nothing, and loads nothing from elsewhere.

use std::process::Command;
use std::time::Duration;

use propylon_e2e::engine::simple;
use propylon_e2e::program::run;
use propylon_e2e::{Engine, Origin, Scratch};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

/// The page after four seconds of the browser's own time, and what its console said.
fn browse(url: &str) -> (String, Vec<String>) {
    let profile = Scratch::new();
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.arg(format!("--user-data-dir={}", profile.join("profile").display()));
    command.args(["--enable-logging=stderr", "--virtual-time-budget=4000", "--dump-dom", url]);
    let said = run(command, b"", Duration::from_secs(60));
    let console = said.stderr.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect();
    (said.text(), console)
}

#[test]
fn a_browser_shows_what_the_engine_is_doing() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("web");
    for _ in 0..7 {
        assert_eq!(client.get("/").status, 200);
    }
    let (page, console) = browse(&format!("http://{}/", engine.admin()));
    assert_eq!(console, Vec::<String>::new());
    assert!(page.contains("serving"), "{page}");
    assert!(page.contains(&format!("https://{}", engine.address("web"))), "the listener with its port: {page}");
    assert!(page.contains(&origin.address().to_string()), "the server: {page}");
    assert!(page.contains("7 : 1"), "seven requests on one server connection: {page}");
}
