//! Changes of a running engine, and looks at it, from the command line: what the admin API does, without curl.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use propylon_config::AdminBind;
use propylon_control::withheld;
use serde_json::{Value, json};

use super::admin_client::{AdminRequest, READ_TIMEOUT, Where, ask, ask_json};

/// How long a change may take, which may have names looked up and certificates read.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
const SECONDS_PER_DAY: f64 = 86_400.0;

/// A server of the running engine.
#[derive(clap::Args)]
pub struct ServerArguments {
    /// The server's address as the configuration has it: HOST:PORT
    server: String,
    /// Its backend, where several have a server by this address
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    #[command(flatten)]
    change: ChangeArguments,
}

#[derive(clap::Args)]
pub struct WeightArguments {
    #[command(flatten)]
    of: ServerArguments,
    /// Its weight among the servers of its backend, from 1 to 256
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    weight: u16,
}

#[derive(clap::Args)]
pub struct ChangeArguments {
    #[command(flatten)]
    engine: Where,
    /// The file with the token of `admin.token_file`; with -c the one that the configuration names
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Work out what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(clap::Args)]
pub struct ReadArguments {
    #[command(flatten)]
    engine: Where,
    /// Print it as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// An action on a server.
#[derive(Clone, Copy)]
pub enum ServerAction {
    Drain,
    Undrain,
    Weigh(NonZeroU16),
}

impl ServerAction {
    fn body(self) -> Value {
        match self {
            ServerAction::Drain => json!({ "drain": true }),
            ServerAction::Undrain => json!({ "drain": false }),
            ServerAction::Weigh(weight) => json!({ "weight": weight }),
        }
    }
}

pub fn drain(arguments: &ServerArguments) -> ExitCode {
    ended(change_server(arguments, ServerAction::Drain))
}

pub fn undrain(arguments: &ServerArguments) -> ExitCode {
    ended(change_server(arguments, ServerAction::Undrain))
}

pub fn weight(arguments: &WeightArguments) -> ExitCode {
    let weight = NonZeroU16::new(arguments.weight).unwrap_or(NonZeroU16::MIN);
    ended(change_server(&arguments.of, ServerAction::Weigh(weight)))
}

pub fn reload(arguments: &ChangeArguments) -> ExitCode {
    ended(Engine::of(arguments).and_then(|engine| engine.change("POST", "/v1/reload", "", arguments.dry_run)))
}

pub fn servers(arguments: &ReadArguments) -> ExitCode {
    ended(look(arguments, "backends", servers_table))
}

pub fn certificates(arguments: &ReadArguments) -> ExitCode {
    ended(look(arguments, "certificates", certificates_table))
}

/// Prints the outcome.
pub fn ended(outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("propylon: {}", what.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn change_server(arguments: &ServerArguments, action: ServerAction) -> Result<String, String> {
    let engine = Engine::of(&arguments.change)?;
    let snapshot = engine.snapshot()?;
    let backend = match &arguments.backend {
        Some(backend) => backend.clone(),
        None => backend_with(&snapshot, &arguments.server)?,
    };
    let path = format!("/v1/backends/{}/servers/{}", encoded(&backend), encoded(&arguments.server));
    engine.change("PATCH", &path, &action.body().to_string(), arguments.change.dry_run)
}

/// The one backend that has a server by this address.
fn backend_with(snapshot: &Value, address: &str) -> Result<String, String> {
    let has = |backend: &&Value| list(&backend["servers"]).any(|server| server["address"] == address);
    let mut found: Vec<String> =
        list(&snapshot["backends"]).filter(has).map(|backend| text(&backend["name"])).collect();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(format!("no backend has a server {address}; `propylon servers` lists them")),
        _ => Err(format!("the backends {} have a server {address}; say which with --backend", found.join(", "))),
    }
}

/// The engine that is asked, and by which right.
pub struct Engine {
    admin: AdminBind,
    token: Option<String>,
}

impl Engine {
    fn of(arguments: &ChangeArguments) -> Result<Engine, String> {
        Engine::at(&arguments.engine, arguments.token_file.as_deref())
    }

    /// The token is that of the file, or else of the file that a configuration names.
    pub fn at(engine: &Where, token_file: Option<&Path>) -> Result<Engine, String> {
        let (admin, configured) = engine.find()?;
        let token = token_file.or(configured.as_deref()).map(token).transpose()?;
        Ok(Engine { admin, token })
    }

    fn snapshot(&self) -> Result<Value, String> {
        ask_json(&self.admin, "/v1/snapshot")
    }

    /// Asks for a change, and tells what has come of it.
    fn change(&self, method: &str, path: &str, body: &str, dry_run: bool) -> Result<String, String> {
        let path = if dry_run { format!("{path}?dry_run=1") } else { path.to_owned() };
        let (_, answer) = self.send(method, &path, ("application/json", body))?;
        match unusable(&answer) {
            None => Ok(summary(&answer)),
            Some(files) => {
                print!("{}", summary(&answer));
                Err(files)
            }
        }
    }

    /// Asks for a change with a body of this type, and returns status and answer of what was accepted.
    pub fn send(&self, method: &str, path: &str, (kind, body): (&str, &str)) -> Result<(u16, Value), String> {
        let mut fields = format!("User-Agent: propylon/{}\r\n", env!("CARGO_PKG_VERSION"));
        if !body.is_empty() {
            fields += &format!("Content-Type: {kind}\r\n");
        }
        if let Some(token) = &self.token {
            fields += &format!("Authorization: Bearer {token}\r\n");
        }
        let (status, answer) =
            ask(&self.admin, &AdminRequest { method, path, fields: &fields, body, timeout: CHANGE_TIMEOUT })?;
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        match status {
            200..=299 => Ok((status, answer)),
            401 if self.token.is_none() => {
                Err("a token is needed: name its file with --token-file, or the configuration with -c".into())
            }
            _ => Err(refused(status, &answer)),
        }
    }

    /// Reads something, which takes no token.
    pub fn read(&self, path: &str) -> Result<(u16, Value), String> {
        let (status, answer) =
            ask(&self.admin, &AdminRequest { method: "GET", path, fields: "", body: "", timeout: READ_TIMEOUT })?;
        Ok((status, serde_json::from_str(&answer).unwrap_or_default()))
    }
}

fn token(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let token = text.trim();
    // The token becomes part of a line of the request.
    match token.bytes().all(|byte| byte.is_ascii_graphic()) && !token.is_empty() {
        true => Ok(token.to_owned()),
        false => Err(format!("{} holds no token", file.display())),
    }
}

fn summary(answer: &Value) -> String {
    let generation = &answer["generation"];
    let mut text = match answer["result"].as_str() {
        Some("dry-run") => format!("nothing has changed: generation {generation} stays in effect; this would:\n"),
        Some("unchanged") => format!("nothing is different: generation {generation}\n"),
        _ => format!("in effect as generation {generation}:\n"),
    };
    list(&answer["changes"]).for_each(|change| text += &format!("  {}\n", withheld::change(change)));
    list(&answer["warnings"]).for_each(|problem| text += &format!("warning: {}\n", problem_text(problem)));
    text
}

/// A sentence about files that could not be used, if there are any. The files are named among the warnings.
fn unusable(answer: &Value) -> Option<String> {
    let files: Vec<String> = list(&answer["unusable_files"]).map(text).collect();
    let note = || format!("what was there before stays in use in place of what cannot be used: {}", files.join(", "));
    (!files.is_empty()).then(note)
}

pub fn refused(status: u16, answer: &Value) -> String {
    // Warnings are no reasons.
    let is_reason = |problem: &&Value| problem["severity"] != "warning";
    let problems: Vec<String> = list(&answer["problems"]).filter(is_reason).map(problem_text).collect();
    if problems.is_empty() { format!("the engine answers {status}") } else { problems.join("\n") }
}

/// `FILE:LINE:COLUMN: WHAT; FIX`, with a place where there is one.
fn problem_text(problem: &Value) -> String {
    let place = match (problem["line"].as_u64(), problem["column"].as_u64()) {
        (Some(line), Some(column)) => format!("{}:{line}:{column}: ", text(&problem["file"])),
        _ => String::new(),
    };
    format!("{place}{}; {}", text(&problem["what"]), text(&problem["fix"]))
}

fn look(arguments: &ReadArguments, part: &str, table: fn(&Value) -> String) -> Result<String, String> {
    let (admin, _) = arguments.engine.find()?;
    let snapshot = ask_json(&admin, "/v1/snapshot")?;
    Ok(if arguments.json { format!("{:#}\n", snapshot[part]) } else { table(&snapshot) })
}

fn servers_table(snapshot: &Value) -> String {
    let head = ["backend", "server", "state", "weight", "in flight", "connections", "first byte", "why"];
    let mut rows = vec![head.map(String::from)];
    for backend in list(&snapshot["backends"]) {
        for server in list(&backend["servers"]) {
            let health = &server["health"];
            let slow = match server["slow_times"].as_u64() {
                Some(times @ 1..) => format!("slow: {times} times as long as the others"),
                _ => String::new(),
            };
            let reasons: BTreeSet<String> = [text(&health["reason"]), text(&health["lookup_failed"]), slow]
                .into_iter()
                .filter(|why| !why.is_empty())
                .collect();
            rows.push([
                text(&backend["name"]),
                text(&server["address"]),
                text(&health["state"]),
                server["weight"].to_string(),
                server["requests_in_flight"].to_string(),
                server["connections"].to_string(),
                server["first_byte_seconds"].as_f64().map_or_else(|| "-".to_owned(), milliseconds),
                reasons.into_iter().collect::<Vec<String>>().join("; "),
            ]);
        }
    }
    columns(&rows)
}

fn certificates_table(snapshot: &Value) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let now = now.map_or(0.0, |now| now.as_secs_f64());
    let mut rows = vec![["profile", "name", "type", "left", "file"].map(String::from)];
    for one in list(&snapshot["certificates"]) {
        let left = time_left(one["not_after"].as_f64().unwrap_or(0.0) - now);
        rows.push([text(&one["profile"]), text(&one["name"]), text(&one["type"]), left, text(&one["file"])]);
    }
    columns(&rows)
}

/// Seconds as milliseconds, to a tenth where they are few.
fn milliseconds(seconds: f64) -> String {
    let digits = if seconds < 0.01 { 1 } else { 0 };
    format!("{:.digits$} ms", seconds * 1e3)
}

/// Seconds until the end of a certificate in words: whole days, or less than one in hours, or in minutes.
pub fn time_left(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.0 => "expired".to_owned(),
        seconds if seconds < 3600.0 => format!("{:.0} min", (seconds / 60.0).floor()),
        seconds if seconds < SECONDS_PER_DAY => format!("{:.0} h", (seconds / 3600.0).floor()),
        seconds => format!("{:.0} d", (seconds / SECONDS_PER_DAY).floor()),
    }
}

/// Each column as wide as its widest cell.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<String>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// A segment of a path (RFC 3986 §3.3).
pub fn encoded(segment: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => (byte as char).to_string(),
        byte => format!("%{byte:02X}"),
    };
    segment.bytes().map(one).collect()
}

pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Without what would act on a terminal.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().filter(|one| !one.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_told_in_words() {
        let answer = json!({
            "result": "applied", "generation": 7, "warnings": [{ "what": "w", "fix": "f" }],
            "changes": [
                { "path": "backend.app.servers[a:1].drain", "from": false, "to": true },
                { "path": "tls.public", "certificates": "read again" },
            ],
        });
        let expected = "in effect as generation 7:\n  backend.app.servers[a:1].drain: false -> true\n  \
                        tls.public: read again\nwarning: w; f\n";
        assert_eq!((summary(&answer), unusable(&answer)), (expected.into(), None));
        let said = unusable(&json!({ "unusable_files": ["/a.pem", "/b.pem"] })).expect("two files");
        assert!(said.ends_with(": /a.pem, /b.pem"), "{said}");
    }

    #[test]
    fn what_is_refused_is_told_with_its_place() {
        let placed = json!({ "file": "a.toml", "line": 3, "column": 5, "what": "w", "fix": "f" });
        let warning =
            json!({ "file": "a.toml", "line": 1, "column": 1, "severity": "warning", "what": "x", "fix": "y" });
        let error = json!({ "file": "request", "line": null, "severity": "error", "what": "v", "fix": "g" });
        let answer = json!({ "problems": [warning, placed, error] });
        assert_eq!(refused(422, &answer), "a.toml:3:5: w; f\nv; g");
    }

    #[test]
    fn a_server_is_found_by_its_address_where_only_one_backend_has_it() {
        let backend = |name: &str| json!({ "name": name, "servers": [{ "address": "a:1" }, { "address": name }] });
        let snapshot = json!({ "backends": [backend("x:1"), backend("y:1")] });
        assert_eq!(backend_with(&snapshot, "y:1"), Ok("y:1".into()));
        assert!(backend_with(&snapshot, "a:1").unwrap_err().contains("x:1, y:1"));
        assert!(backend_with(&snapshot, "z:1").is_err());
    }

    #[test]
    fn what_is_left_of_a_certificate_is_told_to_the_minute_at_its_end() {
        let told = [-1.0, 0.0, 39.5 * 60.0, 3600.0, 86_399.0, 86_400.0, 89.9 * 86_400.0].map(time_left);
        assert_eq!(told, ["expired", "0 min", "39 min", "1 h", "23 h", "1 d", "89 d"]);
    }

    #[test]
    fn a_segment_is_one_whatever_is_in_it() {
        assert_eq!(encoded("[::1]:80/../x y"), "%5B::1%5D:80%2F..%2Fx%20y");
    }
}
