//! `propylon quickstart`: one command from a URL and a server to TLS that works.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use propylon_e2e::origin::Origin;
use propylon_e2e::program::{Said, finish, run, signal};
use propylon_e2e::wait::holds;
use propylon_e2e::{Scratch, binaries};
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);

/// `propylon quickstart` in a folder, with the state in it.
fn quickstart(scratch: &Scratch, arguments: &[&str]) -> Command {
    let _ = binaries::propylonctl();
    let mut command = Command::new(binaries::propylon());
    command.arg("quickstart").args(arguments).arg("--state").arg(scratch.join("state")).current_dir(scratch.path());
    command
}

fn propylon(scratch: &Scratch, arguments: &[&str]) -> Said {
    let mut command = Command::new(binaries::propylon());
    command.args(arguments).current_dir(scratch.path());
    run(command, b"", LIMIT)
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number").port()
}

/// An engine that ends with its owner.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

fn curl(arguments: &[&str]) -> Said {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "*", "--max-time", "20"]).args(arguments);
    run(command, b"", LIMIT)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o777
}

#[test]
fn one_command_gives_tls_that_works_and_a_second_keeps_its_authority() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let other = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let scratch = Scratch::new();
    let (https, http) = (free_port(), free_port());
    let (url, http) = (format!("https://localhost:{https}"), http.to_string());
    let servers = [origin.address(), other.address()].map(|address| format!("http://{address}"));
    let admin = format!("unix:{}", scratch.join("admin.sock").display());
    let words = [&url, &servers[0], &servers[1], "--http-port", &http, "--admin", &admin];
    let mut command = quickstart(&scratch, &words);
    command.arg("--run").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut engine = Started(command.spawn().expect("a process"));
    let folder = scratch.join("state/local");
    let root = folder.join("root.pem");
    let root = root.to_str().expect("a path");
    let page = format!("{url}/a");
    let ask = |more: &[&str]| curl(&[more, &["--cacert", root, &page]].concat());
    holds("it serves", || ask(&[]).status.success());

    for (version, shown) in [("--http1.1", "HTTP/1.1 200"), ("--http2", "HTTP/2 200")] {
        let text = ask(&["-i", version]).ok().text().to_ascii_lowercase();
        assert!(text.starts_with(&shown.to_ascii_lowercase()) && text.ends_with("hello"), "{text}");
        assert!(text.contains("x-frame-options: deny") && text.contains("max-age=0"), "{text}");
    }
    holds("both servers are asked", || {
        ask(&[]).ok();
        !origin.received().is_empty() && !other.received().is_empty()
    });
    assert!(!curl(&[&page]).status.success(), "a client that does not trust the root");
    let redirect = curl(&["-i", &format!("http://localhost:{http}/a?b=c")]).ok().text();
    assert!(redirect.starts_with("HTTP/1.1 308") && redirect.contains(&format!("{url}/a?b=c")), "{redirect}");

    let file = scratch.join("propylon.toml");
    let file = file.to_str().expect("a path");
    let said = propylon(&scratch, &["check", "-c", file]).ok();
    assert!(said.text().contains("propylon.toml: ok"), "{}", said.text());
    propylon(&scratch, &["fmt", "--check", file]).ok();
    assert_eq!(
        (mode(&folder), mode(&folder.join("root.key")), mode(&folder.join("localhost.pem"))),
        (0o700, 0o600, 0o600)
    );

    let before = ["root.pem", "root.key", "localhost.pem"].map(|name| fs::read(folder.join(name)).expect("a file"));
    let said = run(quickstart(&scratch, &words), b"", LIMIT).ok();
    assert!(said.stderr.contains("propylon.toml: as it was") && said.stderr.contains(root), "{}", said.stderr);
    let after = ["root.pem", "root.key", "localhost.pem"].map(|name| fs::read(folder.join(name)).expect("a file"));
    assert!(before == after, "authority and certificate stay");
    ask(&[]).ok();
    signal(engine.0.id(), Signal::TERM);
    assert!(finish(&mut engine.0, LIMIT, "the engine").success());
}

#[test]
fn a_file_of_somebody_elses_is_overwritten_by_force_alone() {
    let scratch = Scratch::new();
    let file = scratch.write("propylon.toml", "# mine\n");
    let words = ["https://shop.example", "10.0.0.1:3000"];
    let said = run(quickstart(&scratch, &words), b"", LIMIT);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("--force overwrites it"), "{}", said.stderr);
    assert_eq!(fs::read_to_string(&file).expect("it"), "# mine\n");
    let printed = run(quickstart(&scratch, &[&words[..], &["-o", "-"]].concat()), b"", LIMIT).ok().text();
    run(quickstart(&scratch, &[&words[..], &["--force"]].concat()), b"", LIMIT).ok();
    assert_eq!(fs::read_to_string(&file).expect("it"), printed);
    assert!(printed.contains("terms_agreed = true") && !printed.contains("max-age"), "{printed}");
    // Certificates are still to be ordered, of which a warning may tell.
    propylon(&scratch, &["check", "-c", "propylon.toml"]).ok();
    propylon(&scratch, &["fmt", "--check", "propylon.toml"]).ok();
    assert!(!scratch.join("state/local").exists(), "a public name takes no authority of one's own");
}

#[test]
fn an_address_and_another_name_have_certificates_of_the_same_root() {
    let scratch = Scratch::new();
    for url in ["https://127.0.0.1:8443", "https://[::1]:8443", "https://shop.test:8443"] {
        run(quickstart(&scratch, &[url, "127.0.0.1:3000", "--force"]), b"", LIMIT).ok();
    }
    let folder = scratch.join("state/local");
    let root = folder.join("root.pem");
    for (name, flag, value) in [
        ("127.0.0.1.pem", "-verify_ip", "127.0.0.1"),
        ("__1.pem", "-verify_ip", "::1"),
        ("shop.test.pem", "-verify_hostname", "shop.test"),
    ] {
        let mut command = Command::new("openssl");
        command.arg("verify").arg("-x509_strict").arg("-CAfile").arg(&root).args([flag, value]).arg(folder.join(name));
        run(command, b"", LIMIT).ok();
    }
    let half = run(quickstart(&scratch, &["https://a.test", "127.0.0.1:3000", "--force"]), b"", LIMIT).ok();
    assert!(half.stderr.contains("root.pem: the root certificate"), "{}", half.stderr);
    fs::remove_file(folder.join("root.key")).expect("it goes");
    let said = run(quickstart(&scratch, &["https://b.test", "127.0.0.1:3000", "--force"]), b"", LIMIT);
    assert!(said.stderr.contains("root.key is not: bring it back"), "{}", said.stderr);
}

#[test]
fn mistakes_are_named_with_what_to_write() {
    let scratch = Scratch::new();
    for (arguments, code, word) in [
        (&["https://shop.example/cart", "a:1"][..], 2, "has a path (/cart)"),
        (&["https://shop", "a:1"], 2, "write a name with a domain"),
        (&["https://a_b.example", "a:1"], 2, "is no name"),
        (&["https://shop.example"], 2, "SERVER"),
        (&["https://shop.example:444", "a:1", "--https-port", "445"], 1, "told twice"),
        (&["https://shop.example", "a:1", "--http-port", "443"], 1, "for https and for its redirect"),
        (&["https://localhost", "http://localhost:443"], 1, "where Propylon itself is to listen"),
        (&["https://shop.example", "a:1", "a:1"], 1, "the server a:1 is told twice"),
        (&["https://shop.example", "http://a", "https://b"], 1, "a backend is of one kind"),
        (&["https://localhost:9900", "a:1"], 1, "the admin address's"),
        (&["https://shop.example", "a:1", "--run", "-o", "-"], 1, "--run needs a file"),
    ] {
        let said = run(quickstart(&scratch, arguments), b"", LIMIT);
        assert_eq!(said.status.code(), Some(code), "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains(word), "{arguments:?}: {}", said.stderr);
    }
    let left = fs::read_dir(scratch.path()).expect("the folder").count();
    assert_eq!(left, 0, "nothing is written");
}
