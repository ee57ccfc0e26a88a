//! `propylon report`: all that somebody else needs to understand an engine at a certain time, in one file, with secrets
//! left out.

mod archive;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};

use propylon_config::AdminBind;
use propylon_control::withheld;
use serde_json::{Value, json};

use super::admin_client::{AdminRequest, READ_TIMEOUT, Where, ask, ask_json, ask_json_or_none};
use super::control::{ended, list};
use super::status::{clock, event_line, number};
use archive::Archive;

/// Exit code where parts are missing.
const PARTS_MISSING: u8 = 3;
/// The longest past that an engine keeps.
const LAST_MAX: Duration = Duration::from_secs(86_400);
/// Span of the history by the second.
const FINE: Duration = Duration::from_secs(300);
/// Limit on one part; what is longer is cut.
const PART_BYTES_MAX: usize = 32 << 20;
/// Settings of the kernel that decide what an engine can hold.
const SYSCTLS: &[&str] = &[
    "fs/file-max",
    "fs/file-nr",
    "fs/pipe-user-pages-soft",
    "kernel/pid_max",
    "net/core/netdev_max_backlog",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_max",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv4/tcp_wmem",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
];
/// Files in which the kernel tells how the machine is.
const MACHINE_FILES: &[&str] =
    &["version", "uptime", "loadavg", "meminfo", "pressure/cpu", "pressure/memory", "pressure/io", "net/sockstat"];

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    engine: Where,
    /// How much of the past: 90s, 15m, 24h and the like, up to 24h
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = last)]
    last: Duration,
    /// The file, in place of propylon-report-TIME.tar.gz in this folder. It may not be there yet
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print what is in it as JSON on standard output
    #[arg(long)]
    json: bool,
}

fn last(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time such as 90s, 15m or 24h, up to 24h".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return Err(wrong()),
    };
    let count: u64 = text.strip_suffix(unit).and_then(|count| count.parse().ok()).ok_or_else(wrong)?;
    let time = count.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)?;
    if time.is_zero() || time > LAST_MAX { Err(wrong()) } else { Ok(time) }
}

pub fn main(arguments: &Arguments) -> ExitCode {
    match write(arguments) {
        Ok((manifest, path)) => {
            let missing: Vec<&Value> = list(&manifest["missing"]).collect();
            for part in &missing {
                eprintln!("propylon: {} is missing: {}", word(&part["file"]), word(&part["why"]));
            }
            match arguments.json {
                true => println!("{manifest:#}"),
                false => println!("{}\nSecrets are left out; look through it before you hand it on", path.display()),
            }
            if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(PARTS_MISSING) }
        }
        Err(what) => ended(Err(what)),
    }
}

fn write(arguments: &Arguments) -> Result<(Value, PathBuf), String> {
    let (admin, _) = arguments.engine.find()?;
    let now = SystemTime::now();
    let stamp = clock(seconds(now));
    let name = format!("propylon-report-{}", stamp[..19].replace([':', '-'], ""));
    let path = arguments.output.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    // Others of the machine do not read it, and what is there is not written over.
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let (files, missing) = (Vec::new(), Vec::new());
    let mut parts = Parts { files, missing, engine: Value::Null, now, last: arguments.last };
    parts.of_engine(&admin);
    parts.of_machine(arguments.engine.config());
    let manifest = json!({
        "shape": 1,
        "time": stamp,
        "last_seconds": arguments.last.as_secs(),
        "admin": admin.to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "engine": parts.engine,
        "files": parts.files.iter().map(|(name, text)| json!({ "file": name, "bytes": text.len() })).collect::<Vec<_>>(),
        "missing": parts.missing.iter().map(|(name, why)| json!({ "file": name, "why": why })).collect::<Vec<_>>(),
    });
    let mut archive = Archive::new(file, seconds(now) as u64);
    let whole = format!("{manifest:#}\n");
    let files = parts.files.iter().map(|(name, text)| (name.as_str(), text));
    let mut all = [("manifest.json", &whole)].into_iter().chain(files);
    let written = all.try_for_each(|(part, text)| archive.add(&format!("{name}/{part}"), text.as_bytes()));
    if let Err(error) = written.and_then(|()| archive.end()).and_then(|mut file: fs::File| file.flush()) {
        // Half of a report is none, and stands in the way of the next.
        let _ = fs::remove_file(&path);
        return Err(failed(error));
    }
    Ok((manifest, path))
}

/// The parts so far, and those that are not to be had.
struct Parts {
    files: Vec<(String, String)>,
    missing: Vec<(String, String)>,
    /// Version and process of the engine.
    engine: Value,
    now: SystemTime,
    last: Duration,
}

impl Parts {
    fn add(&mut self, name: &str, part: Result<String, String>) {
        match part {
            Ok(text) => self.files.push((name.to_owned(), cut(text))),
            Err(why) => self.missing.push((name.to_owned(), why.trim_end().to_owned())),
        }
    }

    fn of_engine(&mut self, admin: &AdminBind) {
        let since = seconds(self.now) - self.last.as_secs_f64();
        let pretty = |value: Value| format!("{value:#}\n");
        let status = ask_json(admin, "/v1/status.json");
        if let Ok(status) = &status {
            self.engine = json!({ "version": status["version"], "pid": status["pid"] });
            self.add("process.txt", process(&status["pid"]));
        }
        let is_there = status.is_ok();
        self.add("status.json", status.map(pretty));
        if !is_there {
            return;
        }
        self.add("config.json", ask_json(admin, "/v1/config").map(withheld::config).map(pretty));
        self.add("routes.json", ask_json(admin, "/v1/routes").map(pretty));
        self.add("snapshot.json", ask_json(admin, "/v1/snapshot").map(pretty));
        let span = if self.last <= FINE { "5m" } else { "24h" };
        let history = ask_json(admin, &format!("/v1/history.json?span={span}"));
        self.add("history.json", history.map(|history| pretty(recent(history, since))));
        let events = ask_json(admin, "/v1/events.json");
        let mut events = events.map(|answer| list(&answer["events"]).cloned().collect::<Vec<Value>>());
        if let Ok(events) = &mut events {
            events.retain(|event| number(&event["time"]) >= since);
        }
        self.add("log.txt", events.map(|events| events.iter().map(log_line).collect()));
        self.add("metrics.txt", text_of(admin, "/metrics"));
        // An engine that is of no cluster has nothing to tell of one.
        if let Some(cluster) = ask_json_or_none(admin, "/v1/cluster").transpose() {
            self.add("cluster.json", cluster.map(pretty));
        }
    }

    fn of_machine(&mut self, config: Option<&Path>) {
        self.add("kernel.txt", Ok(kernel()));
        self.add("doctor.json", doctor(config));
    }
}

/// An event as a line of the log, without what clients, scripts and configurations have put into it: it is in quotes,
/// behind `complains:`, or the value of a field that tells of a client.
fn log_line(event: &Value) -> String {
    const OF_CLIENTS: [&str; 3] = ["client=", "server_name=", "ja4="];
    let line = event_line(event, false);
    let line = line.trim_end_matches('\n');
    let known = match line.split_once("complains: ") {
        Some((known, _)) => format!("{known}complains: …"),
        None => line.to_owned(),
    };
    let parts: Vec<&str> = known.split('"').collect();
    let quoted = |at: usize| at % 2 == 1;
    let parts: Vec<&str> =
        parts.into_iter().enumerate().map(|(at, part)| if quoted(at) { "…" } else { part }).collect();
    let words = parts.join("\"");
    let shown = words.split(' ').map(|word| match OF_CLIENTS.iter().find(|name| word.starts_with(*name)) {
        Some(name) => format!("{name}…"),
        None => word.to_owned(),
    });
    shown.collect::<Vec<String>>().join(" ") + "\n"
}

/// The values of a history since a time.
fn recent(mut history: Value, since: f64) -> Value {
    let first = list(&history["times"]).position(|time| number(time) >= since).unwrap_or(usize::MAX);
    let shorten = |values: &mut Value| {
        if let Value::Array(values) = values {
            values.drain(..first.min(values.len()));
        }
    };
    shorten(&mut history["times"]);
    if let Some(series) = history["series"].as_object_mut() {
        series.values_mut().for_each(|one| shorten(&mut one["values"]));
    }
    history
}

fn text_of(admin: &AdminBind, path: &str) -> Result<String, String> {
    match ask(admin, &AdminRequest { method: "GET", path, fields: "", body: "", timeout: READ_TIMEOUT })? {
        (200, text) => Ok(text),
        (status, _) => Err(format!("{admin} answers {status}")),
    }
}

/// Limits and state of the engine's process, if it is on this machine and may be looked at.
fn process(pid: &Value) -> Result<String, String> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
    if !name.starts_with("propylon") {
        return Err(format!("no engine is process {pid} of this machine"));
    }
    Ok(["limits", "status", "cgroup"].iter().fold(String::new(), |text, file| text + &shown(&folder.join(file))))
}

fn kernel() -> String {
    let files = MACHINE_FILES.iter().map(|file| Path::new("/proc").join(file));
    let settings = SYSCTLS.iter().map(|setting| Path::new("/proc/sys").join(setting));
    files.chain(settings).fold(String::new(), |text, file| text + &shown(&file))
}

/// A file with its name above it.
fn shown(file: &Path) -> String {
    let mut out = String::new();
    let text = fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
    let _ = writeln!(out, "== {}\n{}", file.display(), text.trim_end());
    out
}

/// The doctor's findings, of a process of its own, since it becomes the account that serves.
fn doctor(config: Option<&Path>) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["doctor", "--json"]);
    if let Some(config) = config {
        command.arg("-c").arg(config);
    }
    let said = command.output().map_err(|error| error.to_string())?;
    match serde_json::from_slice::<Value>(&said.stdout) {
        Ok(findings) => Ok(format!("{findings:#}\n")),
        Err(_) => Err(String::from_utf8_lossy(&said.stderr).into_owned()),
    }
}

fn cut(mut text: String) -> String {
    if text.len() > PART_BYTES_MAX {
        let ends = (0..=PART_BYTES_MAX).rev();
        text.truncate(ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0));
        text += "\n(cut here)\n";
    }
    text
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_with_a_unit_up_to_a_day() {
        assert_eq!(last("15m"), Ok(Duration::from_secs(900)));
        assert_eq!((last("90s").is_ok(), last("24h").is_ok()), (true, true));
        for wrong in ["", "m", "15", "0s", "25h", "-1m", "1d", "99999999999999999999h", "5é"] {
            assert!(last(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_history_is_cut_to_what_is_asked_for() {
        let history = json!({ "times": [1, 2, 3], "series": { "a": { "values": [7, 8, null] } } });
        let of = |since| recent(history.clone(), since);
        assert_eq!(of(2.0)["series"]["a"]["values"], json!([8, null]));
        assert_eq!((&of(0.0)["times"], &of(9.0)["times"]), (&json!([1, 2, 3]), &json!([])));
    }
}
