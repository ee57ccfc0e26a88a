//! The access log in forms of others, as their readers get it: the Combined Log Format, logfmt, chosen fields, syslog.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use propylon_e2e::program::curl;
use propylon_e2e::{Engine, Scratch, eventually};

const ROUTES: &str = r#"
[listener.web]
bind = "127.0.0.1:0"
tls = "public"
[[route]]
respond = { body = "hello" }
"#;

fn engine(log: &str) -> Engine {
    Engine::start(&format!("{ROUTES}[log]\n{log}\n"))
}

fn ask(engine: &Engine, more: &[&str]) {
    let url = format!("https://localhost:{}/a?b=%22", engine.address("web").port());
    let said = curl(&[&["-A", "agent/1 \"x\"", "-e", "https://b.example/", &url], more].concat());
    assert_eq!(said.text(), "hello");
}

/// The lines of a file once there are so many.
fn lines(path: &std::path::Path, count: usize) -> Vec<String> {
    eventually(Duration::from_secs(10), "lines of the log", || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
}

#[test]
fn the_combined_log_format_is_what_its_readers_know() {
    let scratch = Scratch::new();
    let path = scratch.join("access.log");
    let engine = engine(&format!("access = {path:?}\nformat = \"combined\""));
    ask(&engine, &["--http1.1"]);
    ask(&engine, &["--http2"]);
    let lines = lines(&path, 2);
    for (line, protocol) in lines.iter().zip(["HTTP/1.1", "HTTP/2.0"]) {
        let (start, rest) = line.split_once(" [").expect("a time");
        let (time, rest) = rest.split_once("] ").expect("a time's end");
        assert_eq!(start, "127.0.0.1 - -");
        assert_eq!((time.len(), &time[20..]), (26, " +0000"), "{time}");
        let (request, rest) = rest.split_once("\" 200 ").expect("a status");
        assert_eq!(request, format!("\"GET /a?b=%22 {protocol}"));
        let (bytes, rest) = rest.split_once(' ').expect("bytes");
        assert_eq!(bytes, "5", "those of the body alone");
        assert_eq!(rest, "\"https://b.example/\" \"agent/1 \\x22x\\x22\"");
    }
}

#[test]
fn fields_are_chosen_in_json_and_in_logfmt() {
    let scratch = Scratch::new();
    let path = scratch.join("access.log");
    let fields = "fields = [\"status\", \"header.User-Agent\", \"path\", \"tls.version\", \"backend\", \"route\"]";
    {
        let engine = engine(&format!("access = {path:?}\n{fields}"));
        ask(&engine, &["--http2"]);
        let line: serde_json::Value = serde_json::from_str(&lines(&path, 1)[0]).expect("an object");
        let wanted = serde_json::json!({
            "status": 200, "header.user-agent": "agent/1 \"x\"", "path": "/a?b=%22", "tls.version": "TLSv1.3", "backend": null, "route": "*/",
        });
        assert_eq!(line, wanted);
        // A head that was read whole is told, though it is refused.
        let url = format!("https://localhost:{}/expects", engine.address("web").port());
        curl(&["--http1.1", "-H", "Expect: z", "-A", "agent/2", &url]);
        let line: serde_json::Value = serde_json::from_str(&lines(&path, 2)[1]).expect("an object");
        let told = (&line["status"], &line["path"], &line["header.user-agent"]);
        assert_eq!(told, (&417.into(), &"/expects".into(), &"agent/2".into()));
    }
    std::fs::remove_file(&path).expect("the log");
    let engine = engine(&format!("access = {path:?}\nformat = \"logfmt\"\n{fields}"));
    ask(&engine, &["--http1.1"]);
    let wanted =
        "status=200 header.user-agent=\"agent/1 \\\"x\\\"\" path=/a?b=%22 tls.version=TLSv1.3 backend= route=*/";
    assert_eq!(lines(&path, 1)[0].replace("path=\"/a?b=%22\"", "path=/a?b=%22"), wanted);
}

#[test]
fn syslog_gets_a_message_for_each_request_and_losses_are_counted() {
    let scratch = Scratch::new();
    let path = scratch.join("log.socket");
    let receiver = UnixDatagram::bind(&path).expect("a socket");
    receiver.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let address = format!("unix:{}", path.display());
    let engine = engine(&format!("access = {{ syslog = {address:?}, facility = \"daemon\", app_name = \"edge\" }}"));
    ask(&engine, &["--http1.1"]);
    let mut bytes = [0; 9000];
    let length = receiver.recv(&mut bytes).expect("a message");
    let text = std::str::from_utf8(&bytes[..length]).expect("text");
    let parts: Vec<&str> = text.splitn(8, ' ').collect();
    // Daemon and informational: 3 * 8 + 6.
    assert_eq!((parts[0], parts[3], parts[5], parts[6]), ("<30>1", "edge", "access", "-"), "{text}");
    let line: serde_json::Value = serde_json::from_str(parts[7]).expect("the record");
    assert_eq!((&line["status"], &line["path"]), (&200.into(), &"/a?b=%22".into()));
    drop(receiver);
    std::fs::remove_file(&path).expect("the socket");
    ask(&engine, &["--http1.1"]);
    eventually(Duration::from_secs(10), "the line is counted as lost", || {
        (engine.metric("propylon_access_log_lost_total", &[]) >= 1.0).then_some(())
    });
}
