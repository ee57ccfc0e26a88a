//! A real browser over HTTP/2: a page of many parts, events as they happen, uploads, and a WebSocket as a stream.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use propylon_e2e::browser::Browser;
use propylon_e2e::engine::simple;
use propylon_e2e::http::head_end;
use propylon_e2e::python::PythonServer;
use propylon_e2e::wait::eventually;
use propylon_e2e::{Engine, Origin, Peer, holds};
use serde_json::Value;

/// A browser may take so long to start and to load, on a machine with other work.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Parts of each kind: style sheets, scripts, images, data.
const PARTS: usize = 20;
/// Bytes of the large part, and of the upload.
const LARGE: usize = 2_000_000;

const SCRIPT: &str = r#"
const problems = [];
addEventListener('error', event => problems.push(String(event.message || event.target.src || event.target.href)), true);
const events = new Promise(done => {
    const heard = [], source = new EventSource('/events');
    source.onmessage = event => {
        heard.push(event.data);
        // The server says the next one when it was told that this one has come.
        fetch('/heard/' + event.data, { method: 'POST' });
        if (event.data == 'last') { source.close(); done(heard); }
    };
});
async function all() {
    let sum = 0;
    await Promise.all([...Array(PARTS).keys()].map(async part => {
        const data = await (await fetch(`/data/${part}.json`)).json();
        sum += data.number;
    }));
    const large = (await (await fetch('/large')).arrayBuffer()).byteLength;
    const body = new Uint8Array(LARGE);
    const echoed = await (await fetch('/upload', { method: 'POST', body })).text();
    const entries = performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'));
    return {
        sum, large, echoed, problems,
        events: await events,
        scripts: window.scripts,
        styles: [...document.querySelectorAll('p')].filter(p => getComputedStyle(p).color == 'rgb(1, 2, 3)').length,
        images: [...document.images].filter(image => image.complete && image.naturalWidth == 8).length,
        parts: entries.length,
        others: entries.filter(entry => entry.nextHopProtocol != 'h2').map(entry => [entry.name, entry.nextHopProtocol]),
    };
}
onload = async () => {
    const body = JSON.stringify(await all().catch(error => ({ error: String(error) })));
    await fetch('/report', { method: 'POST', body });
    document.title = 'reported';
};
"#;

fn page() -> String {
    let mut page = String::from("<!doctype html><title>parts</title><link rel=icon href='data:,'>");
    let script = SCRIPT.replace("PARTS", &PARTS.to_string()).replace("LARGE", &LARGE.to_string());
    write!(page, "<script>{script}</script>").unwrap();
    for part in 0..PARTS {
        write!(page, "<link rel=stylesheet href=/style/{part}.css><script src=/script/{part}.js></script>").unwrap();
        write!(page, "<p class=p{part}>part {part} <img src=/image/{part}.svg>").unwrap();
    }
    page
}

/// Head and body of what is at a path.
fn part(path: &str) -> Option<(&'static str, Vec<u8>)> {
    let (kind, number) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
    let number = number.split('.').next().unwrap_or_default();
    Some(match kind {
        "" => ("text/html", page().into()),
        "style" => ("text/css", format!(".p{number} {{ color: rgb(1, 2, 3) }}").into()),
        "script" => ("text/javascript", "window.scripts = (window.scripts || 0) + 1".into()),
        "image" => (
            "image/svg+xml",
            "<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'><rect width='8' height='8' fill='teal'/></svg>".into(),
        ),
        "data" => ("application/json", format!("{{\"number\": {number}}}").into()),
        "large" => ("application/octet-stream", vec![7; LARGE]),
        _ => return None,
    })
}

/// Reports of the page to the origin.
#[derive(Default)]
struct PageReport {
    heard: AtomicBool,
    report: Mutex<Option<Value>>,
}

fn serve(peer: &mut Peer, page: &PageReport) {
    while let Some(request) = peer.read_request() {
        let end = head_end(&request).expect("a head");
        let head = String::from_utf8_lossy(&request[..end]).into_owned();
        let (path, body) = (head.split(' ').nth(1).expect("a path"), &request[end..]);
        match (path, part(path)) {
            (_, Some((media_type, body))) => {
                let length = body.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\r\n");
                peer.send([head.as_bytes(), &body].concat());
            }
            ("/events", _) => {
                peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
                peer.send("d\r\ndata: first\n\n\r\n");
                holds("the first event is heard before the second is said", || page.heard.load(Ordering::SeqCst));
                peer.send("c\r\ndata: last\n\n\r\n0\r\n\r\n");
            }
            _ => {
                page.heard.fetch_or(path == "/heard/first", Ordering::SeqCst);
                if path == "/report" {
                    *page.report.lock().unwrap() = serde_json::from_slice(body).ok();
                }
                let length = body.len().to_string();
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{length}", length.len()));
            }
        }
    }
}

#[test]
fn a_page_of_many_parts_comes_by_http_2_whole() {
    let page = Arc::new(PageReport::default());
    let for_origin = Arc::clone(&page);
    let origin = Origin::scripted(move |peer| serve(peer, &for_origin));
    let engine = Engine::start(&simple(&[origin.address()]));
    let browser = Browser::open(&format!("{}/", engine.url("web")));
    let report = eventually(WAIT_MAX, "the page reports", || page.report.lock().unwrap().take());
    assert_eq!(report["problems"], serde_json::json!([]));
    let all = PARTS as u64;
    for kind in ["scripts", "styles", "images"] {
        assert_eq!(report[kind], all, "{kind}: {report}");
    }
    assert_eq!((&report["sum"], &report["large"]), (&(all * (all - 1) / 2).into(), &LARGE.into()));
    assert_eq!(report["echoed"], LARGE.to_string());
    assert_eq!(report["events"], serde_json::json!(["first", "last"]));
    assert_eq!(report["others"], serde_json::json!([]), "all by HTTP/2");
    assert!(report["parts"].as_u64() >= Some(4 * all + 3), "{report}");
    assert_eq!(browser.console(), Vec::<String>::new());
    assert_eq!(engine.metric("propylon_http2_floods_total", &[("reason", "stream-error")]), 0.0);
    // Browsers may open one ahead before they know what the first one speaks.
    assert!(engine.metric("propylon_http2_connections_total", &[]) <= 2.0);
    drop(browser);
    holds("its connection ends with it", || engine.metric("propylon_http2_connections", &[]) == 0.0);
}

const CHAT: &str = r#"<!doctype html><title>chat</title><link rel=icon href='data:,'><script>
const heard = [], socket = new WebSocket(`wss://${location.host}/chat`);
socket.binaryType = 'arraybuffer';
socket.onopen = () => { socket.send('hello'); socket.send(new Uint8Array(1000000)); };
socket.onmessage = event => {
    heard.push(event.data.byteLength || event.data);
    if (heard.length == 2) socket.close(4001, 'enough');
};
socket.onclose = event => {
    const body = JSON.stringify({ heard, code: event.code, reason: event.reason, clean: event.wasClean });
    fetch('/report', { method: 'POST', body });
};
</script>"#;

#[test]
fn a_browsers_websocket_is_a_stream_of_http_2() {
    let page = Arc::new(PageReport::default());
    let for_origin = Arc::clone(&page);
    let origin = Origin::answering(move |request| {
        let end = head_end(request).expect("a head");
        if request.starts_with(b"POST /report ") {
            *for_origin.report.lock().unwrap() = serde_json::from_slice(&request[end..]).ok();
        }
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{CHAT}", CHAT.len()).into()
    });
    let server = PythonServer::start("ws_server.py", &[]);
    let chat = format!(
        "[backend.chat]\nservers = [\"{}\"]\n[[route]]\npath = \"/chat\"\nbackend = \"chat\"\n",
        server.address()
    );
    let engine = Engine::start(&format!("{}{chat}", simple(&[origin.address()])));
    let browser = Browser::open(&format!("{}/", engine.url("web")));
    let report = eventually(WAIT_MAX, "the page reports", || page.report.lock().unwrap().take());
    assert_eq!(report["heard"], serde_json::json!(["hello", 1_000_000]), "{report}");
    assert_eq!((&report["code"], &report["reason"]), (&4001.into(), &"enough".into()), "{report}");
    assert_eq!(report["clean"], true);
    server.says("closed /chat 4001 enough");
    let line = engine.logged_path("/chat");
    assert_eq!((&line["protocol"], &line["fault"]), (&"HTTP/2".into(), &Value::Null), "{line}");
    assert_eq!(browser.console(), Vec::<String>::new());
}
