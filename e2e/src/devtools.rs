//! A page in Chromium that a story can look at, type into and photograph, by the protocol of the browser's own developer
//! tools, over a pipe.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::scratch::Scratch;
use crate::wait::eventually;

/// A browser may take so long to start, or to answer, on a machine with other work.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
const FLAGS: [&str; 13] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--hide-scrollbars",
    // A page beside others is not slower than one alone.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
];

/// Sends to pages by their sessions; the browser's own answers go to the one without a name.
type Sessions = Arc<Mutex<HashMap<String, Sender<Value>>>>;

/// The browser of all stories of a process: starting one takes longer than most stories. Its end is that of its pipe,
/// and so of the process; its folder goes with the next sweep of scratch folders.
struct Browser {
    commands: Mutex<ChildStdin>,
    last: AtomicU64,
    sessions: Sessions,
    answers: Mutex<Receiver<Value>>,
    _child: Child,
    _profile: Scratch,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Browser {
    fn of_this_process() -> &'static Browser {
        static BROWSER: OnceLock<Browser> = OnceLock::new();
        BROWSER.get_or_init(Browser::start)
    }

    fn start() -> Browser {
        let profile = Scratch::new();
        let mut command = Command::new("sh");
        // The browser takes commands from descriptor 3 and answers on 4.
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null", "chromium"]);
        command.args(FLAGS);
        command.arg(format!("--user-data-dir={}", profile.join("profile").display())).arg("about:blank");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let (commands, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (sender, answers) = channel();
        let sessions = Sessions::default();
        held(&sessions).insert(String::new(), sender);
        let known = Arc::clone(&sessions);
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice::<Value>(&message) else { break };
                let session = message["sessionId"].as_str().unwrap_or_default().to_owned();
                if let Some(page) = held(&known).get(&session) {
                    let _ = page.send(message);
                }
            }
            // Pages that wait hear that there is no browser any more.
            held(&known).clear();
        });
        let (commands, answers) = (Mutex::new(commands), Mutex::new(answers));
        Browser { commands, last: AtomicU64::new(0), sessions, answers, _child: child, _profile: profile }
    }

    /// Sends a command, and returns the number that its answer will have.
    fn send(&self, session: &str, method: &str, params: Value) -> std::io::Result<u64> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut command = json!({ "id": id, "method": method, "params": params });
        if !session.is_empty() {
            command["sessionId"] = session.into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        held(&self.commands).write_all(&bytes)?;
        Ok(id)
    }

    /// A command to the browser itself, and its answer.
    #[track_caller]
    fn call(&self, method: &str, params: Value) -> Value {
        let answers = held(&self.answers);
        let id = self.send("", method, params).expect("a browser that listens");
        answer(&answers, id, method, |_| ())
    }
}

/// Waits for the answer with this number; what comes before it is noted.
#[track_caller]
fn answer(messages: &Receiver<Value>, id: u64, method: &str, mut note: impl FnMut(&Value)) -> Value {
    loop {
        let message = messages.recv_timeout(WAIT_MAX);
        let mut message = message.unwrap_or_else(|error| panic!("the browser did not answer {method}: {error}"));
        if message["id"] == id {
            assert!(message.get("error").is_none(), "{method}: {message}");
            return message["result"].take();
        }
        note(&message);
    }
}

/// One page, with cookies and a cache of its own.
pub struct Page {
    browser: &'static Browser,
    context: Value,
    session: String,
    messages: Receiver<Value>,
    console: Vec<String>,
    requested: Vec<String>,
}

/// How a page is looked at.
#[derive(Clone, Copy)]
pub struct Screen {
    pub width: u32,
    pub height: u32,
    pub is_dark: bool,
}

impl Screen {
    pub const DESK: Screen = Screen { width: 1440, height: 900, is_dark: false };
    pub const PHONE: Screen = Screen { width: 320, height: 640, is_dark: true };
}

impl Page {
    #[track_caller]
    pub fn open(url: &str, screen: Screen) -> Page {
        let browser = Browser::of_this_process();
        let context = browser.call("Target.createBrowserContext", json!({}))["browserContextId"].clone();
        let target = json!({ "url": "about:blank", "browserContextId": context, "newWindow": true });
        let target = browser.call("Target.createTarget", target)["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        let session = attached["sessionId"].as_str().expect("a session").to_owned();
        let (sender, messages) = channel();
        held(&browser.sessions).insert(session.clone(), sender);
        let mut page = Page { browser, context, session, messages, console: Vec::new(), requested: Vec::new() };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page.call("Emulation.setFocusEmulationEnabled", json!({ "enabled": true }));
        page.visit(url, screen);
        page
    }

    /// Goes elsewhere, or to the same place anew.
    #[track_caller]
    pub fn visit(&mut self, url: &str, screen: Screen) {
        self.look(screen);
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Sends a command and waits for its answer.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.browser.send(&self.session, method, params).expect("a browser that listens");
        let (console, requested) = (&mut self.console, &mut self.requested);
        answer(&self.messages, id, method, |event| note(event, console, requested))
    }

    /// The value of an expression; of a promise what it comes to.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is something, and returns it. Where it fails the page is still on its way.
    #[track_caller]
    pub fn eventually(&mut self, what: &str, expression: &str) -> Value {
        let guarded = format!("(() => {{ try {{ return {expression}; }} catch {{ return null; }} }})()");
        eventually(WAIT_MAX, what, || {
            let value = self.evaluate(&guarded);
            let is_nothing = value.is_null() || value == false || value == "";
            (!is_nothing).then_some(value)
        })
    }

    /// What an element says, spaces made one.
    #[track_caller]
    pub fn text(&mut self, selector: &str) -> String {
        let selector = json!(selector);
        let text = self.evaluate(&format!("document.querySelector({selector}).innerText.replace(/\\s+/g, ' ').trim()"));
        text.as_str().expect("a text").to_owned()
    }

    /// The rows of a table's body, cell by cell.
    #[track_caller]
    pub fn rows(&mut self, selector: &str) -> Vec<Vec<String>> {
        let selector = json!(format!("{selector} tbody tr"));
        let rows = self.evaluate(&format!(
            "[...document.querySelectorAll({selector})].map(row => [...row.cells].map(cell => cell.textContent))"
        ));
        serde_json::from_value(rows).expect("rows of texts")
    }

    /// A key by its name, such as Tab, Enter or a character.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            other => u32::from(other.to_ascii_uppercase().bytes().next().unwrap_or(0)),
        };
        let text = match key {
            "Enter" => "\r",
            "Tab" | "Escape" => "",
            other => other,
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let params = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    pub fn type_in(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    pub fn look(&mut self, screen: Screen) {
        let Screen { width, height, is_dark } = screen;
        let params = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", params);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// The whole page as a picture, kept beside the test's binaries.
    pub fn photograph(&mut self, name: &str) -> PathBuf {
        let shot = self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true }));
        let folder = std::env::current_exe().expect("a test knows its own path");
        let folder = folder.parent().and_then(Path::parent).expect("target/PROFILE").join("screenshots");
        fs::create_dir_all(&folder).expect("a folder for pictures");
        let path = folder.join(format!("{name}.png"));
        fs::write(&path, base64(shot["data"].as_str().expect("a picture"))).expect("a picture");
        path
    }

    /// What its console has said so far.
    pub fn console(&mut self) -> Vec<String> {
        self.evaluate("0");
        self.console.clone()
    }

    /// Everything that it has asked for.
    pub fn requested(&mut self) -> Vec<String> {
        self.evaluate("0");
        self.requested.clone()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the page's console ---\n{}", self.console.join("\n"));
        }
        held(&self.browser.sessions).remove(&self.session);
        // A browser that is gone has no page either.
        let _ = self.browser.send("", "Target.disposeBrowserContext", json!({ "browserContextId": self.context }));
    }
}

/// Keeps what a page says and asks for.
fn note(event: &Value, console: &mut Vec<String>, requested: &mut Vec<String>) {
    let params = &event["params"];
    match event["method"].as_str().unwrap_or_default() {
        "Runtime.consoleAPICalled" => console.push(format!("{}: {}", params["type"], params["args"])),
        "Runtime.exceptionThrown" => console.push(params["exceptionDetails"].to_string()),
        "Log.entryAdded" => console.push(params["entry"].to_string()),
        "Network.requestWillBeSent" => {
            requested.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
        }
        _ => {}
    }
}

/// RFC 4648 §4.
fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::with_capacity(text.len() / 4 * 3));
    for digit in text.bytes().filter_map(|byte| ALPHABET.iter().position(|known| *known == byte)) {
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
