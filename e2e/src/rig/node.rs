//! An engine of a rig: its namespace, its BIRD, and the `propylon` that runs there, which answers at a unix socket.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::bird::Bird;
use super::namespaces::Namespace;
use super::network;
use crate::binaries;
use crate::http::head_end;
use crate::lineage::{How, Lineage, is_alive};
use crate::wait::{WAIT_MAX, eventually, holds};

pub struct Node {
    number: usize,
    namespace: Namespace,
    /// Stays over restarts: what the engine keeps on disk, and its sockets.
    folder: PathBuf,
    lineage: Option<Lineage>,
    /// Lines of engines that ended.
    earlier: Vec<String>,
    bird: Option<Bird>,
}

impl Node {
    /// With BIRD if there is a configuration for it; no engine runs yet.
    #[track_caller]
    pub fn new(number: usize, namespace: Namespace, folder: PathBuf, bird_config: Option<&str>) -> Node {
        let bird = bird_config.map(|config| Bird::start(&namespace, &folder, config));
        Node { number, namespace, folder, lineage: None, earlier: Vec::new(), bird }
    }

    pub fn name(&self) -> String {
        network::engine(self.number)
    }

    pub fn number(&self) -> usize {
        self.number
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A program that runs where the engine does.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }

    #[track_caller]
    pub fn bird(&self) -> &Bird {
        self.bird.as_ref().expect("a rig with BIRD")
    }

    #[track_caller]
    pub fn bird_mut(&mut self) -> &mut Bird {
        self.bird.as_mut().expect("a rig with BIRD")
    }

    /// Starts an engine and waits until it serves. `process` are more lines for `[process]`; `config` may have `[log]`,
    /// and the rest but `[process]` and `[admin]`.
    #[track_caller]
    pub fn start(&mut self, process: &str, config: &str) {
        assert!(self.lineage.is_none(), "{} runs already", self.name());
        let (process, config) = self.complete(process, config);
        let mut command = self.namespace.command(binaries::propylon());
        command.arg("run");
        self.lineage = Some(Lineage::start_by(command, &process, &config));
    }

    /// Replaces the configuration's file; nobody is told.
    #[track_caller]
    pub fn write(&self, process: &str, config: &str) {
        let (process, config) = self.complete(process, config);
        self.lineage().write(&process, &config);
    }

    fn complete(&self, process: &str, config: &str) -> (String, String) {
        let state = self.folder.join("state");
        let mut lines = format!("state = \"{}\"\n", state.display());
        // A machine that is busy with other tests is no storm, for which an engine would refuse new connections.
        let usual = [
            ("workers", "workers = 1\n"),
            ("drain_timeout", "drain_timeout = \"1s\"\n"),
            ("handshakes", "handshakes = { queue_wait = \"10m\" }\n"),
        ];
        for (key, line) in usual {
            if !process.contains(key) {
                lines += line;
            }
        }
        let admin = format!("[admin]\nbind = \"unix:{}\"\n", self.admin_socket().display());
        (lines + process, admin + config)
    }

    /// The engine answers here, also to those outside of its namespace.
    pub fn admin_socket(&self) -> PathBuf {
        self.folder.join("admin.sock")
    }

    /// The running engine.
    #[track_caller]
    pub fn lineage(&self) -> &Lineage {
        self.lineage.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name()))
    }

    #[track_caller]
    fn lineage_mut(&mut self) -> &mut Lineage {
        self.lineage.as_mut().expect("a running engine")
    }

    pub fn is_running(&self) -> bool {
        self.lineage.as_ref().is_some_and(|lineage| is_alive(lineage.pid()))
    }

    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.lineage().pid()
    }

    #[track_caller]
    pub fn signal(&self, which: Signal) {
        self.lineage().signal(which);
    }

    /// SIGKILL, and nobody tells BIRD.
    #[track_caller]
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.await_end();
    }

    /// SIGTERM; waits until it has drained and ended.
    #[track_caller]
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        self.await_end();
    }

    /// Waits for an end that is on its way. The engine can be started again.
    #[track_caller]
    pub fn await_end(&mut self) {
        let mut lineage = self.lineage.take().expect("a running engine");
        lineage.gone(lineage.pid());
        self.earlier.extend(lineage.said());
    }

    /// Has another process take over, and waits until it serves.
    #[track_caller]
    pub fn upgrade(&mut self) {
        self.lineage_mut().upgrade(How::Signal);
    }

    /// Lines of its log, those of earlier runs first.
    pub fn said(&self) -> Vec<String> {
        let now = self.lineage.as_ref().map(Lineage::said).unwrap_or_default();
        self.earlier.iter().cloned().chain(now).collect()
    }

    /// Waits for a line with this in it, and returns the first.
    #[track_caller]
    pub fn says(&self, part: &str) -> String {
        let what = format!("{} says {part:?}", self.name());
        eventually(WAIT_MAX, &what, || self.said().into_iter().find(|line| line.contains(part)))
    }

    /// Asks the admin address: status, and body. `None` when nobody answers.
    pub fn try_ask(&self, method: &str, path: &str, content_type: &str, body: &str) -> Option<(u16, String)> {
        ask_at(&self.admin_socket(), &[method, path, content_type], body)
    }

    /// The same of an engine that has to answer, with JSON in both directions.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let answer = self.try_ask(method, path, "application/json", body);
        let (status, text) = answer.unwrap_or_else(|| panic!("{} does not answer to {method} {path}", self.name()));
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The sum of a metric over all series that have these labels, or `None` where there is no such series.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let (status, text) = self.try_ask("GET", "/metrics", "text/plain", "").expect("an engine that answers");
        assert_eq!(status, 200, "{text}");
        let fits = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, rest) = series.split_once('{').unwrap_or((series, "}"));
            let has = |(key, value): &(&str, &str)| rest.contains(&format!("{key}=\"{value}\""));
            (found == name && labels.iter().all(has)).then(|| value.parse::<f64>().expect("a number"))
        };
        let found: Vec<f64> = text.lines().filter(|line| !line.starts_with('#')).filter_map(fits).collect();
        (!found.is_empty()).then(|| found.iter().sum())
    }

    /// A power cut, as the machine sees it: BIRD and the engine are killed at once. The link is another matter:
    /// [`super::Rig::link_down`].
    #[track_caller]
    pub fn power_off(&mut self) {
        if let Some(bird) = &mut self.bird {
            bird.kill();
        }
        if self.lineage.is_some() {
            self.kill();
        }
    }

    /// BIRD runs again after [`Node::power_off`]; the engine is started by [`Node::start`].
    #[track_caller]
    pub fn power_on(&mut self) {
        self.bird_mut().restart();
        holds("BIRD answers", || !self.bird().ask("show status").is_empty());
    }
}

/// Asks at an engine's socket, with method, path and type of what is sent.
pub fn ask_at(socket: &Path, [method, path, content_type]: &[&str; 3], body: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(WAIT_MAX)).ok()?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = head_end(&answer)?;
    let status = std::str::from_utf8(&answer[..end]).ok()?.split(' ').nth(1)?.parse().ok()?;
    Some((status, String::from_utf8_lossy(&answer[end..]).into_owned()))
}
