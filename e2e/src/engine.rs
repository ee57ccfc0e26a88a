//! The engine as a child process: started from a configuration's text, watched, and ended by its pid.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::binaries;
use crate::certificates::Certificates;
use crate::client::Client;
use crate::program::{finish, signal};
use crate::scratch::Scratch;
use crate::wait::{WAIT_MAX, eventually, holds};

/// Every line that a stream has brought so far.
type Lines = Arc<Mutex<Vec<String>>>;

pub struct Engine {
    child: Ended,
    scratch: Scratch,
    stderr: Lines,
    stdout: Lines,
    admin: Option<SocketAddr>,
    /// Its end has been seen.
    ended: bool,
    /// A story that has made the engine fail on purpose sees to its end itself.
    expected: Option<i32>,
}

/// A child that does not outlive its owner, even where an assertion about it fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// How an engine ended.
#[derive(Debug)]
pub struct End {
    pub status: ExitStatus,
    pub stderr: Vec<String>,
}

impl Engine {
    /// Starts an engine and waits until it serves.
    ///
    /// Tables that most stories do not care about are added where `config` does not have them: one worker, a drain of
    /// a second, an admin address, an access log on stdout, and the certificates of `tls = "public"`.
    #[track_caller]
    pub fn start(config: &str) -> Engine {
        let mut engine = Engine::spawn(config);
        engine.await_start();
        engine
    }

    /// As [`Engine::start`], with these files, by name and content, beside its configuration.
    #[track_caller]
    pub fn start_beside(files: &[(&str, &str)], config: &str) -> Engine {
        let scratch = Scratch::new();
        files.iter().for_each(|(name, content)| drop(scratch.write(name, content)));
        let mut engine = Engine::spawn_in(scratch, config);
        engine.await_start();
        engine
    }

    /// As [`Engine::start`], where no more files may be open at once than this, for good.
    #[track_caller]
    pub fn start_with_files(files: u64, config: &str) -> Engine {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={files}:{files}")).arg(binaries::propylon());
        let mut engine = Engine::spawn_by(command, Scratch::new(), config);
        engine.await_start();
        engine
    }

    /// As [`Engine::start`] in this folder, with these variables in its environment.
    #[track_caller]
    pub fn start_in(scratch: Scratch, variables: &[(&str, &str)], config: &str) -> Engine {
        let mut command = Command::new(binaries::propylon());
        command.envs(variables.iter().copied());
        let mut engine = Engine::spawn_by(command, scratch, config);
        engine.await_start();
        engine
    }

    /// Starts an engine that may not come up.
    #[track_caller]
    pub fn spawn(config: &str) -> Engine {
        Engine::spawn_in(Scratch::new(), config)
    }

    #[track_caller]
    fn spawn_in(scratch: Scratch, config: &str) -> Engine {
        Engine::spawn_by(Command::new(binaries::propylon()), scratch, config)
    }

    #[track_caller]
    fn spawn_by(mut command: Command, scratch: Scratch, config: &str) -> Engine {
        let path = scratch.write("propylon.toml", complete(config));
        command.arg("run").arg("-c").arg(path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the engine starts");
        let stderr = lines(child.stderr.take().expect("piped"));
        let stdout = lines(child.stdout.take().expect("piped"));
        Engine { child: Ended(child), scratch, stderr, stdout, admin: None, ended: false, expected: None }
    }

    #[track_caller]
    fn await_start(&mut self) {
        holds("the engine runs", || {
            if let Some(status) = self.child.0.try_wait().expect("a child can be waited for") {
                self.ended = true;
                panic!("the engine ended with {status}:\n{}", self.stderr().join("\n"));
            }
            self.stderr().iter().any(|line| line.contains(" runs with "))
        });
        let admin = self.stderr().iter().find_map(|line| line.split_once("]: info: admin at http://")?.1.parse().ok());
        self.admin = admin;
    }

    /// The address of a listener, the first of it if it has several.
    #[track_caller]
    pub fn address(&self, listener: &str) -> SocketAddr {
        let start = format!("]: info: listener \"{listener}\" at ");
        let line = self.stderr().into_iter().find(|line| line.contains(&start));
        let address = line.as_deref().and_then(|line| line.rsplit("://").next()?.parse().ok());
        address.unwrap_or_else(|| panic!("no listener {listener} in:\n{}", self.stderr().join("\n")))
    }

    /// The base of URLs of a listener, as a client that verifies names must spell it.
    #[track_caller]
    pub fn url(&self, listener: &str) -> String {
        let address = self.address(listener);
        let tls = self.stderr().iter().any(|line| line.ends_with(&format!("https://{address}")));
        format!("{}://localhost:{}", if tls { "https" } else { "http" }, address.port())
    }

    #[track_caller]
    pub fn client(&self, listener: &str) -> Client {
        match self.url(listener).starts_with("https") {
            true => Client::tls(self.address(listener)),
            false => Client::plain(self.address(listener)),
        }
    }

    #[track_caller]
    pub fn admin(&self) -> SocketAddr {
        self.admin.expect("an admin address")
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// The folder of its configuration.
    pub fn folder(&self) -> PathBuf {
        self.scratch.path().to_owned()
    }

    pub fn stderr(&self) -> Vec<String> {
        self.stderr.lock().expect("readers do not panic").clone()
    }

    /// The access log so far, as long as it goes to stdout.
    #[track_caller]
    pub fn log(&self) -> Vec<Value> {
        let lines = self.stdout.lock().expect("readers do not panic");
        let parse = |line: &String| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in a log line: {line}"));
        lines.iter().map(parse).collect()
    }

    /// The first line of the log that fits; it may still be on its way.
    #[track_caller]
    pub fn logged(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        eventually(WAIT_MAX, what, || self.log().into_iter().find(|line| fits(line)))
    }

    /// The first line of the log about this path.
    #[track_caller]
    pub fn logged_path(&self, path: &str) -> Value {
        self.logged(&format!("a log line about {path}"), |line| line["path"] == path)
    }

    /// The sum of a metric over all series that have these labels; histograms by `_count` and `_sum`.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let series = self.metrics();
        let fits = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, rest) = series.split_once('{').unwrap_or((series, "}"));
            let has = |(key, value): &(&str, &str)| rest.contains(&format!("{key}=\"{value}\""));
            (found == name && labels.iter().all(has)).then(|| value.parse::<f64>().expect("a number"))
        };
        let found: Vec<f64> = series.lines().filter(|line| !line.starts_with('#')).filter_map(fits).collect();
        assert!(!found.is_empty(), "no series {name} {labels:?}");
        found.iter().sum()
    }

    /// Waits until a metric has this value.
    #[track_caller]
    pub fn metric_reaches(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let mut last = f64::NAN;
        let started = std::time::Instant::now();
        while started.elapsed() < WAIT_MAX {
            last = self.metric(name, labels);
            if last == value {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{name} {labels:?} is {last} and not {value}");
    }

    /// Everything at /metrics.
    #[track_caller]
    pub fn metrics(&self) -> String {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin());
        let response = Client::plain(self.admin()).ask(request);
        assert_eq!(response.status, 200, "{}", response.text());
        response.text()
    }

    /// Resident memory in bytes.
    #[track_caller]
    pub fn rss(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Resident memory in bytes without pages of files, among them the program's own, which come as it is used.
    #[track_caller]
    pub fn anonymous_memory(&self) -> u64 {
        self.memory("RssAnon:")
    }

    #[track_caller]
    fn memory(&self, kind: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a running engine");
        let line = status.lines().find_map(|line| line.strip_prefix(kind)).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// Processor time so far, user and system, of all its threads.
    #[track_caller]
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a running engine");
        // Fields are counted from the state, which follows the name in parentheses (proc_pid_stat(5)).
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Work of its workers so far.
    #[track_caller]
    pub fn work(&self) -> Work {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("a running engine").flatten();
        let read = |task: &fs::DirEntry, file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let mut work = Work::default();
        for task in tasks.filter(|task| read(task, "comm").starts_with("worker-")) {
            // Nanoseconds on a processor, those in line for one, and turns (Documentation/scheduler/sched-stats.rst).
            let known = read(&task, "schedstat");
            let mut fields = known.split_whitespace().map(|field| field.parse::<u64>().expect("a number"));
            work.ran += Duration::from_nanos(fields.next().expect("the time on a processor"));
            work.turns += fields.nth(1).expect("turns");
        }
        assert!(work.turns > 0, "no worker has run");
        work
    }

    pub fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    /// The engine will end with this code when it is told to.
    pub fn expect_exit(&mut self, code: i32) {
        self.expected = Some(code);
    }

    /// Replaces its configuration file as it should be done: written beside, renamed over. Nobody is told.
    #[track_caller]
    pub fn rewrite(&self, config: &str) {
        let new = self.scratch.write("propylon.toml.new", complete(config));
        fs::rename(new, self.scratch.join("propylon.toml")).expect("a rename within a folder");
    }

    /// Has the file read again, and waits for what the engine says of it: its last line about that.
    #[track_caller]
    pub fn reload(&self) -> String {
        let said = || -> Vec<String> {
            let is_last_word = |line: &String| line.contains("the configuration is ") || line.contains("was refused;");
            self.stderr().into_iter().filter(is_last_word).collect()
        };
        let before = said().len();
        self.signal(Signal::HUP);
        eventually(WAIT_MAX, "a word about the configuration", || said().into_iter().nth(before))
    }

    /// Files that it has open.
    #[track_caller]
    pub fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("a running engine").count()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> End {
        let status = finish(&mut self.child.0, limit, "the engine ends");
        self.ended = true;
        // The readers see the end of a pipe a moment after the child's.
        holds("the engine's last words", || {
            Arc::strong_count(&self.stderr) == 1 && Arc::strong_count(&self.stdout) == 1
        });
        let stderr = self.stderr();
        assert!(!stderr.iter().any(|line| line.contains("panicked at")), "the engine panicked:\n{}", stderr.join("\n"));
        End { status, stderr }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        !self.ended && self.child.0.try_wait().expect("a child can be waited for").is_none()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let failing = std::thread::panicking();
        if failing {
            eprintln!("--- the engine's stderr ---\n{}", self.stderr().join("\n"));
            return;
        }
        let panics = if self.admin.is_some() { self.metric("propylon_panics_total", &[]) } else { 0.0 };
        signal(self.pid(), Signal::TERM);
        let end = self.wait(Duration::from_secs(10));
        assert_eq!(panics, 0.0, "the engine panicked:\n{}", end.stderr.join("\n"));
        match (self.expected, end.status.code()) {
            // Stories leave connections and requests behind; the drain cuts them off.
            (None, Some(0 | 3)) => {}
            (Some(expected), Some(code)) if expected == code => {}
            _ => panic!("the engine ended with {}:\n{}", end.status, end.stderr.join("\n")),
        }
    }
}

fn lines(from: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let kept = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            kept.lock().expect("readers do not panic").push(line);
        }
    });
    lines
}

/// With the tables that most stories do not care about; see [`Engine::start`].
pub fn complete(config: &str) -> String {
    let mut text = String::new();
    for (table, content) in [
        ("[process]", "workers = 1\ndrain_timeout = \"1s\"\n"),
        ("[admin]", "bind = \"127.0.0.1:0\"\n"),
        ("[log]", "access = \"stdout\"\n"),
    ] {
        if !config.contains(table) {
            text.push_str(&format!("{table}\n{content}"));
        }
    }
    if config.contains("tls = \"public\"") && !config.contains("[tls.public]") {
        text.push_str(&Certificates::shared().profile());
    }
    text.push_str(config);
    text
}

/// A configuration with one plaintext listener `plain`, one TLS listener `web`, and one backend for everything.
pub fn simple(servers: &[SocketAddr]) -> String {
    with(servers, "", "")
}

/// Work of threads: the time that they ran, and how often they began to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    pub ran: Duration,
    /// How often they were given a processor.
    pub turns: u64,
}

impl Work {
    pub fn since(self, before: Work) -> Work {
        Work { ran: self.ran - before.ran, turns: self.turns - before.turns }
    }
}

/// The same with more lines for both listeners, and for the backend.
pub fn with(servers: &[SocketAddr], listener: &str, backend: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    let servers = servers.join(", ");
    format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n{listener}\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n{listener}\n\
         [backend.app]\nservers = [{servers}]\n{backend}\n\
         [[route]]\nbackend = \"app\"\n"
    )
}
