//! A page in Chromium that a story can look at, type into and photograph, by the protocol of the browser's own developer
//! tools, over a pipe.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{finish, signal};
use crate::scratch::Scratch;
use crate::wait::eventually;

/// A browser may take so long to start, or to answer, on a machine with other work.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// One page, in a browser of its own, which ends with it.
pub struct Page {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: String,
    last: u64,
    console: Vec<String>,
    requested: Vec<String>,
    _profile: Scratch,
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
        let profile = Scratch::new();
        let mut command = Command::new("sh");
        // The browser takes commands from descriptor 3 and answers on 4.
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null", "chromium"]);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]);
        command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        command.args(["--no-proxy-server", "--hide-scrollbars"]);
        command.arg(format!("--user-data-dir={}", profile.join("profile").display())).arg("about:blank");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let (commands, answers) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice::<Value>(&message) else { break };
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let (console, requested) = (Vec::new(), Vec::new());
        let session = String::new();
        let mut page = Page { child, commands, messages, session, last: 0, console, requested, _profile: profile };
        let target = page.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = page.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        page.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page.look(screen);
        page.call("Page.navigate", json!({ "url": url }));
        page
    }

    /// Sends a command and waits for its answer.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            command["sessionId"] = self.session.clone().into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("a browser that listens");
        loop {
            let message = self.messages.recv_timeout(WAIT_MAX);
            let mut message = message.unwrap_or_else(|error| panic!("the browser did not answer {method}: {error}"));
            if message["id"] == self.last {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.consoleAPICalled" => self.console.push(format!("{}: {}", params["type"], params["args"])),
            "Runtime.exceptionThrown" => self.console.push(params["exceptionDetails"].to_string()),
            "Log.entryAdded" => self.console.push(params["entry"].to_string()),
            "Network.requestWillBeSent" => {
                self.requested.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
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
        if let Ok(None) = self.child.try_wait() {
            signal(self.child.id(), Signal::TERM);
        }
        finish(&mut self.child, Duration::from_secs(20), "the browser ends");
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
