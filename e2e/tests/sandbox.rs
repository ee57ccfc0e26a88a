//! What a process that serves denies itself: what somebody would try who has got into it, and that nothing is missing.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use propylon_e2e::engine::{complete, simple, with};
use propylon_e2e::lineage::{How, Lineage};
use propylon_e2e::program::{Said, run};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, binaries, eventually, holds};
use rcgen::PKCS_ECDSA_P256_SHA256;
use serde_json::Value;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
/// What seccomp ends a process by, and a shell tells as 159.
const SIGSYS: i32 = 31;

fn nowhere() -> Vec<SocketAddr> {
    vec!["127.0.0.1:1".parse().expect("an address")]
}

/// `propylonctl attempt` in the sandbox of this configuration.
fn attempt(config: &Path, what: &[&str]) -> Said {
    let mut command = Command::new(binaries::propylonctl());
    command.arg("attempt").arg("-c").arg(config).args(what);
    run(command, b"", Duration::from_secs(20))
}

/// What the kernel has of it, as the program itself finds out.
fn shown(config: &Path) -> Value {
    serde_json::from_str(&attempt(config, &["show"]).ok().text()).expect("JSON")
}

fn is_enforced(shown: &Value, what: &str) -> bool {
    let enforced = shown[what]["state"] == "enforced";
    if !enforced {
        eprintln!("skipped: {what} is {}", shown[what]);
    }
    enforced
}

/// A process that is nobody's business but its own.
struct Bystander(Child);

impl Bystander {
    fn start() -> Bystander {
        Bystander(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("a process"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_somebody_would_try_who_has_got_in_is_refused() {
    let scratch = Scratch::new();
    let elsewhere = Scratch::new();
    let config = scratch.write("propylon.toml", complete(&simple(&nowhere())));
    let off = scratch.write("off.toml", complete(&format!("[process]\nsandbox = \"off\"\n{}", simple(&nowhere()))));
    let shown = shown(&config);
    assert_eq!(shown["no_new_privileges"], true, "{shown}");
    let bystander = Bystander::start();
    let pid = bystander.pid();
    let secret = elsewhere.write("secret", "for nobody").display().to_string();
    let made = elsewhere.join("made").display().to_string();
    let unix = elsewhere.join("orders.sock");
    let _unix = UnixListener::bind(&unix).expect("a Unix socket");
    let unix = unix.display().to_string();
    // What fails with an error, by Landlock and by seccomp, and what ends the process.
    let refused: [(&str, &[&str]); 7] = [
        ("landlock", &["read", &secret]),
        ("landlock", &["write", &made]),
        ("landlock", &["read", "/etc/shadow"]),
        ("landlock", &["read", "/proc/1/environ"]),
        ("seccomp", &["connect-unix", &unix]),
        ("seccomp", &["netlink"]),
        ("seccomp", &["be-dumpable"]),
    ];
    for (by, what) in refused {
        if is_enforced(&shown, by) {
            let said = attempt(&config, what);
            assert_eq!(said.status.code(), Some(1), "{what:?} was not refused: {}", said.text());
            assert!(said.text().contains("denied") || said.text().contains("permitted"), "{what:?}: {}", said.text());
        }
    }
    let deadly: [&[&str]; 3] = [&["exec", "/bin/true"], &["trace", &pid], &["set-user", "65534"]];
    for what in deadly {
        if is_enforced(&shown, "seccomp") {
            let said = attempt(&config, what);
            assert!(said.text().contains("refused") || said.status.signal() == Some(SIGSYS), "{what:?}: {said:?}");
            assert!(!said.text().contains("done"), "{what:?} was not refused");
        }
    }
    assert_eq!(attempt(&config, &["signal", &pid]).status.code(), Some(1), "another process can be signalled");
    // What serving takes, and all of it without a sandbox.
    for what in [&["listen", "127.0.0.1:0"][..], &["thread"], &["read", &config.display().to_string()]] {
        attempt(&config, what).ok();
    }
    for what in [&["read", &secret][..], &["write", &made], &["exec", "/bin/true"], &["connect-unix", &unix]] {
        attempt(&off, what).ok();
    }
}

#[test]
fn of_what_is_written_no_more_is_opened_than_it_takes() {
    let (scratch, sockets) = (Scratch::new(), Scratch::new());
    let text = |log: &str| {
        let socket = sockets.join("admin.sock");
        let admin = format!("[admin]\nbind = \"unix:{}\"\n[log]\naccess = \"{log}\"\n", socket.display());
        complete(&(admin + &simple(&nowhere())))
    };
    let config = scratch.write("propylon.toml", text("/dev/null"));
    if !is_enforced(&shown(&config), "landlock") {
        return;
    }
    // A socket is removed at the end, and nothing is written beside it; a device has neighbours.
    let secret = sockets.write("secret", "for nobody").display().to_string();
    let made = sockets.join("made").display().to_string();
    for what in [&["read", &secret][..], &["write", &made], &["write", "/dev/propylon-attempt"]] {
        assert_eq!(attempt(&config, what).status.code(), Some(1), "{what:?} was not refused");
    }
    // The log in a folder of its own, which is then the one that can be written in.
    let logs = Scratch::new();
    let config = scratch.write("more.toml", text(&logs.join("access.log").display().to_string()));
    attempt(&config, &["write", &logs.join("made").display().to_string()]).ok();
}

#[test]
fn check_warns_of_what_a_configuration_opens_beyond_what_it_means() {
    let scratch = Scratch::new();
    let broad = format!(
        "[process]\nsandbox_paths = [\"later/certificates\", \"/run/propylon-later\", \"{}\"]\n\
         upgrade_socket = \"/tmp/upgrade.sock\"\n[admin]\nbind = \"unix:/run/x.sock\"\n\
         [log]\naccess = \"/var/log/access.log\"\n{}",
        scratch.join("soon").display(),
        simple(&nowhere())
    );
    let config = scratch.write("propylon.toml", complete(&broad));
    let mut command = Command::new(binaries::propylon());
    command.arg("check").arg("-c").arg(&config);
    let said = run(command, b"", Duration::from_secs(20));
    let text = format!("{}{}", said.text(), said.stderr);
    for part in [
        "later/certificates is not there: it cannot be read when it comes",
        "/run/propylon-later is not there: it cannot be read when it comes",
        &format!("soon is not there: all of {} can be read", scratch.path().display()),
        "everything in /tmp be removed",
        "everything in /run be removed",
        "everything in /var/log be written",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains(":0:0"), "{text}");
    // In folders of their own there is nothing to warn of.
    let good = scratch.write("good.toml", complete(&simple(&nowhere())));
    let mut command = Command::new(binaries::propylon());
    command.arg("check").arg("-c").arg(&good);
    let said = run(command, b"", Duration::from_secs(20));
    assert!(!said.stderr.contains("sandbox"), "{}", said.stderr);
}

#[test]
fn files_of_the_system_that_are_replaced_under_root_are_told_until_a_successor_has_them() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root is kept from /etc");
    }
    let (origin, scratch) = (Origin::always(HELLO), Scratch::new());
    let etc = scratch.join("etc");
    let copied = Command::new("cp").args(["-a", "/etc"]).arg(&etc).status().expect("a copy");
    assert!(copied.success());
    // The engine has an /etc of its own, whose files can be replaced.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", "mount --bind \"$0\" /etc && exec \"$@\""]);
    command.arg(&etc).arg(binaries::propylon()).arg("run");
    let mut lineage = Lineage::start_by(command, "workers = 1\ndrain_timeout = \"1s\"", &simple(&[origin.address()]));
    if !lineage.said().iter().any(|line| line.ends_with("Landlock enforced")) {
        return eprintln!("skipped: Landlock is not enforced");
    }
    let replaced = || lineage.metric("propylon_sandbox_replaced_files");
    assert_eq!(replaced(), 0.0);
    let hosts = fs::read_to_string(etc.join("hosts")).expect("a file");
    fs::write(etc.join("hosts.new"), format!("{hosts}127.0.0.9 moved.test\n")).expect("a file");
    fs::rename(etc.join("hosts.new"), etc.join("hosts")).expect("a rename");
    eventually(Duration::from_secs(20), "it is seen", || (replaced() == 1.0).then_some(()));
    let told = lineage.says("/etc/hosts was replaced");
    assert!(told.contains("`propylon upgrade -c "), "{told}");
    lineage.says("names-files-replaced");
    lineage.upgrade(How::Signal);
    assert_eq!(lineage.metric("propylon_sandbox_replaced_files"), 0.0, "the successor has read it");
}

#[test]
fn a_file_that_the_sandbox_keeps_away_is_told_so_and_what_to_do() {
    let (named, first, second) = (Scratch::new(), Scratch::new(), Scratch::new());
    let link = named.join("current.pem");
    std::os::unix::fs::symlink(certificate(&first), &link).expect("a link");
    let config = |watch: &str| format!("[tls.public]\ncertificates = [{link:?}]\n{watch}\n{}", simple(&nowhere()));
    let engine = Engine::start(&config(""));
    if !engine.stderr().iter().any(|line| line.ends_with("Landlock enforced")) {
        return eprintln!("skipped: Landlock is not enforced");
    }
    // The link leads where nothing led at the start: by its mode the file could be read.
    fs::remove_file(&link).expect("a removal");
    std::os::unix::fs::symlink(certificate(&second), &link).expect("a link");
    engine.signal(rustix::process::Signal::HUP);
    let why = format!("the sandbox of this process keeps {}", second.join("own.pem").display());
    let cure = format!("sandbox_paths = [\"{}\"] in [process]", second.path().display());
    let tells = |engine: &Engine| engine.stderr().iter().any(|line| line.contains(&why) && line.contains(&cure));
    holds("it is told", || tells(&engine));
    let request = format!("GET /status.json HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
    let status = Client::plain(engine.admin()).ask(request).text();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let unusable = status["certificates"]["unusable_files"].to_string();
    assert!(unusable.contains(&why), "{unusable}");
    drop(engine);
    // The same where it is seen without a signal.
    let point = |target: &Path| {
        std::os::unix::fs::symlink(target, named.join("next.pem")).expect("a link");
        fs::rename(named.join("next.pem"), &link).expect("a rename");
    };
    point(&first.join("own.pem"));
    let engine = Engine::start(&config("watch = \"1s\""));
    point(&second.join("own.pem"));
    holds("it is told without a signal", || tells(&engine));
}

#[test]
fn secrets_that_the_sandbox_keeps_away_are_told_so_and_their_modes_are_not_blamed() {
    let (named, elsewhere) = (Scratch::new(), Scratch::new());
    let [headers, seat, tickets] = ["headers", "seat", "tickets"].map(|name| named.join(name));
    fs::write(&headers, "Authorization: Bearer one\n").expect("a file");
    fs::write(&seat, "0".repeat(64)).expect("a file");
    fs::set_permissions(&seat, fs::Permissions::from_mode(0o600)).expect("a mode");
    let tracing = format!("[tracing]\nendpoint = \"http://127.0.0.1:1\"\nheaders = {headers:?}\n");
    let tls = format!(
        "[tls.public]\ncertificates = [{:?}]\nticket_keys = {{ file = {tickets:?}, rotate = \"1h\" }}\n",
        certificate(&named)
    );
    let config = |cookie: &str| {
        let sticky = format!("sticky = {{ cookie = \"{cookie}\", key_file = {seat:?} }}\n");
        format!("{tracing}{tls}{}", with(&nowhere(), "", &sticky))
    };
    let engine = Engine::start(&config("seat"));
    if !engine.stderr().iter().any(|line| line.ends_with("Landlock enforced")) {
        return eprintln!("skipped: Landlock is not enforced");
    }
    for (name, path) in [("headers", &headers), ("seat", &seat), ("tickets", &tickets)] {
        fs::copy(path, elsewhere.join(name)).expect("a copy");
        let next = named.join("next");
        std::os::unix::fs::symlink(elsewhere.join(name), &next).expect("a link");
        fs::rename(next, path).expect("a rename");
    }
    let cure = format!("sandbox_paths = [\"{}\"] in [process]", elsewhere.path().display());
    let is_told = |name: &str| {
        let why = format!("the sandbox of this process keeps {}", elsewhere.join(name).display());
        let line = || engine.stderr().into_iter().find(|line| line.contains(&why));
        let told = eventually(Duration::from_secs(20), name, line);
        assert!(told.contains(&cure), "{told}");
        // That its mode would keep this account from it is no part of it.
        for other in ["permissions", "account", "rights", "openssl rand"] {
            assert!(!told.contains(other), "{told}");
        }
    };
    engine.reload();
    is_told("headers");
    is_told("tickets");
    // Secrets of backends are read once the rest is in order.
    fs::write(named.join("next"), "Authorization: Bearer two\n").expect("a file");
    fs::rename(named.join("next"), &headers).expect("a rename");
    engine.rewrite(&config("chair"));
    engine.reload();
    is_told("seat");
}

#[test]
fn a_configuration_that_names_a_new_folder_is_refused_with_its_line_and_the_command_that_takes_it() {
    let (named, elsewhere) = (Scratch::new(), Scratch::new());
    let (own, other) = (certificate(&named), certificate(&elsewhere));
    let process = "workers = 1\ndrain_timeout = \"1s\"";
    let text =
        |certificate: &Path| format!("[tls.public]\ncertificates = [\n  {certificate:?},\n]\n{}", simple(&nowhere()));
    let mut lineage = Lineage::start(process, &text(&own));
    if !lineage.said().iter().any(|line| line.ends_with("Landlock enforced")) {
        return eprintln!("skipped: Landlock is not enforced");
    }
    let doctor = |lineage: &Lineage| {
        let said = lineage.command(&["doctor", "--json"]);
        let findings: Vec<Value> = serde_json::from_str(&said.text()).expect("JSON");
        findings.into_iter().find(|finding| finding["what"] == "sandbox: what the running engine may come by")
    };
    let admin = format!("[admin]\nbind = \"{}\"\n", lineage.admin());
    lineage.write(process, &(admin + &text(&other)));
    let number = fs::read_to_string(lineage.config()).expect("ours");
    let line = number.lines().position(|line| line.contains("own.pem")).expect("it is named") + 1;
    let place = format!("propylon.toml:{line}:3: {} is outside of the folders", other.display());
    let command = format!("propylon upgrade -c {}", lineage.config().display());
    let beforehand = format!("sandbox_paths = [\"{}\"]", elsewhere.path().display());
    let found = doctor(&lineage).expect("the engine answers");
    assert_eq!(found["state"], "bad", "{found}");
    assert!(
        found["current"].as_str().is_some_and(|told| told.contains(&format!(":{line}:3: {}", other.display()))),
        "{found}"
    );
    assert!(found["command"].as_str().is_some_and(|told| told.contains(&command)), "{found}");
    // The admin's address was any port, and is for life.
    lineage.write(process, &text(&other));
    lineage.signal(rustix::process::Signal::HUP);
    let told = lineage.says(&place);
    assert!(told.contains(&command) && told.contains(&beforehand), "{told}");
    lineage.upgrade(How::Command);
    lineage.signal(rustix::process::Signal::HUP);
    lineage.says("the configuration is what it was");
}

#[test]
fn ports_are_those_that_are_named_where_that_is_asked_for() {
    let scratch = Scratch::new();
    let server = Origin::always(HELLO);
    let other = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let (known, unknown) = (server.address(), other.local_addr().expect("an address"));
    let any = scratch.write("any.toml", complete(&simple(&[known])));
    attempt(&any, &["connect", &unknown.to_string()]).ok();
    let text = |ports: &str| format!("[process]\nsandbox_ports = [{ports}]\n{}", simple(&[known]));
    let few = scratch.write("few.toml", complete(&text("")));
    attempt(&few, &["connect", &known.to_string()]).ok();
    if !is_enforced(&shown(&few), "landlock") {
        return;
    }
    let said = attempt(&few, &["connect", &unknown.to_string()]);
    assert_eq!(said.status.code(), Some(1), "connected where the configuration has nothing: {}", said.text());
    let more = scratch.write("more.toml", complete(&text(&format!("\"{}-{}\"", unknown.port(), unknown.port()))));
    attempt(&more, &["connect", &unknown.to_string()]).ok();

    // A server at a port that was not named is refused by name, and the others serve on.
    let engine = Engine::start(&format!("{}\n", text("")));
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    engine.rewrite(&format!("[process]\nsandbox_ports = []\n{}", simple(&[known, unknown])));
    engine.reload();
    let said = engine.stderr().join("\n");
    assert!(said.contains(&format!("port {} is none of those", unknown.port())), "{said}");
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
}

/// A number of `/proc/PID/status`.
fn status(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {status}")).trim().parse().expect("a number")
}

#[test]
fn an_engine_is_in_it_unless_it_is_told_otherwise_and_says_so() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    assert_eq!(engine.client("web").get("/").text(), "hello\n");
    assert_eq!((status(engine.pid(), "Seccomp"), status(engine.pid(), "NoNewPrivs")), (2, 1));
    for path in ["/status.json", "/snapshot"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin());
        let told = Client::plain(engine.admin()).ask(request).text();
        let told: Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(told["sandbox"]["seccomp"]["state"], "enforced", "{path}");
        let landlock = told["sandbox"]["landlock"]["told"].as_str().expect("a text");
        assert!(engine.stderr().iter().any(|line| line.ends_with(&format!("Landlock {landlock}"))), "{landlock}");
    }
    let process = "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nsandbox = \"off\"\n";
    let engine = Engine::start(&format!("{process}{}", simple(&[origin.address()])));
    assert_eq!((status(engine.pid(), "Seccomp"), status(engine.pid(), "NoNewPrivs")), (0, 0));
}

#[test]
fn a_successor_is_started_from_outside_of_it_and_has_its_own() {
    let origin = Origin::always(HELLO);
    let mut lineage = Lineage::start("workers = 1\ndrain_timeout = \"1s\"", &simple(&[origin.address()]));
    let filters = status(lineage.pid(), "Seccomp_filters");
    let plain = lineage.address("plain");
    for _ in 0..2 {
        let launcher = children(lineage.pid());
        let names = launcher.iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs"));
        assert_eq!(names.collect::<Vec<_>>(), ["propylon-launch\n"]);
        lineage.upgrade(How::Signal);
        assert_eq!(fs::read_to_string(format!("/proc/{}/comm", lineage.pid())).expect("it runs"), "propylon\n");
        assert_eq!(Client::plain(plain).get("/").text(), "hello\n");
        // One that had inherited a sandbox would be in two.
        assert_eq!((status(lineage.pid(), "Seccomp"), status(lineage.pid(), "Seccomp_filters")), (2, filters));
    }
    // Who started it has gone with the process that it was started for.
    let first = lineage.earlier()[0];
    lineage.gone(first);
    holds("the launcher of a process ends with it", || children(first).is_empty());
}

/// Processes whose parent is or was this one, by the group that they share.
fn children(of: u32) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
    };
    numbers.filter(|pid| parent(*pid) == Some(of)).collect()
}

/// A certificate and its key, in a folder of one's own.
fn certificate(folder: &Scratch) -> PathBuf {
    folder.write("own.pem", Certificates::shared().issue(&["localhost"], &PKCS_ECDSA_P256_SHA256))
}

#[test]
fn files_that_are_new_are_read_where_the_configuration_named_their_folder() {
    let (named, elsewhere) = (Scratch::new(), Scratch::new());
    let (own, other) = (certificate(&named), certificate(&elsewhere));
    let config = |paths: &str, certificates: &[&Path]| {
        let list: Vec<String> = certificates.iter().map(|path| format!("{path:?}")).collect();
        format!(
            "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nsandbox_paths = [{paths}]\n\
             [tls.public]\ncertificates = [{}]\n{}",
            list.join(", "),
            simple(&nowhere())
        )
    };
    let engine = Engine::start(&config("", &[&own]));
    // A new file beside one that was named, and one that has been replaced.
    let second = named.write("second.pem", fs::read(&own).expect("a certificate"));
    let replaced = named.write("own.pem.new", fs::read(&own).expect("a certificate"));
    fs::rename(replaced, &own).expect("a rename");
    engine.rewrite(&config("", &[&own, &second]));
    let said = engine.reload();
    assert!(said.contains("the configuration is "), "{said}");
    if status(engine.pid(), "Seccomp") == 2 && engine.stderr().iter().any(|line| line.ends_with("Landlock enforced")) {
        engine.rewrite(&config("", &[&own, &other]));
        engine.reload();
        let told = engine.stderr().join("\n");
        let outside = format!("{} is outside of the folders", other.display());
        assert!(told.contains(&outside) && told.contains("sandbox_paths = ["), "{told}");
    }
    drop(engine);
    let engine = Engine::start(&config(&format!("{:?}", elsewhere.path()), &[&own]));
    engine.rewrite(&config(&format!("{:?}", elsewhere.path()), &[&own, &other]));
    let said = engine.reload();
    assert!(said.contains("the configuration is "), "{said}");
}

#[test]
fn what_is_written_under_it_is_written() {
    let (logs, state) = (Scratch::new(), Scratch::new());
    let (log, kept) = (logs.join("access.log"), state.join("made/by/propylon"));
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nstate = {kept:?}\n[log]\naccess = {log:?}\n\
         [admin]\nbind = \"unix:admin.sock\"\n{}",
        simple(&[origin.address()])
    ));
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    fs::rename(&log, logs.join("access.log.1")).expect("a rename");
    eventually(Duration::from_secs(20), "the log is opened anew", || log.exists().then_some(()));
    assert!(kept.is_dir(), "the folder for the state is there");
}

#[test]
fn doctor_says_what_this_kernel_enforces() {
    let mut command = Command::new(binaries::propylon());
    command.args(["doctor", "--json"]);
    let said = run(command, b"", Duration::from_secs(60));
    let findings: Vec<Value> = serde_json::from_str(&said.text()).expect("JSON");
    let find = |what: &str| {
        let found = findings.iter().find(|finding| finding["what"].as_str().is_some_and(|found| found.contains(what)));
        found.unwrap_or_else(|| panic!("nothing about {what}")).clone()
    };
    assert_eq!(find("seccomp")["current"], "enforced");
    let tried = find("a hijacked engine tries");
    if find("Landlock")["current"] == "enforced" {
        assert_eq!((tried["state"].as_str(), tried["current"].as_str()), (Some("good"), Some("all 7 refused")));
    }
}

#[test]
fn who_only_looks_makes_no_folders() {
    let scratch = Scratch::new();
    let text = format!("[process]\nstate = \"state\"\n{}", simple(&nowhere()));
    let config = scratch.write("propylon.toml", complete(&text));
    attempt(&config, &["show"]).ok();
    assert!(!scratch.join("state").exists(), "the account that serves has to own it");
}

#[test]
fn what_the_start_has_named_and_not_found_is_no_reason_to_refuse_what_comes_later() {
    let origin = Origin::always(HELLO);
    let missing = Scratch::new().join("not/there/token");
    let admin = format!("bind = \"127.0.0.1:0\"\ntoken_file = \"{}\"", missing.display());
    let engine = Engine::start(&format!("[admin]\n{admin}\n{}", simple(&[origin.address()])));
    engine.signal(rustix::process::Signal::HUP);
    engine.metric_reaches("propylon_config_reloads_total", &[("result", "unchanged")], 1.0);
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
}

#[test]
fn the_units_let_both_programs_have_their_sandboxes() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    for unit in ["examples/systemd/propylon.service", "examples/propylon-keyserver.service"] {
        let text = fs::read_to_string(top.join(unit)).expect("a unit");
        let calls = "SystemCallFilter=seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self";
        assert!(text.lines().any(|line| line == calls), "{unit}");
    }
}
