//! The engine of a run: started, told, asked, and looked at from outside.

use crate::endpoints::Endpoints;
use crate::files::write_aside;
use crate::key_servers::KeyServers;
use crate::server_processes::{ServerAddresses, reserved_ports};
use crate::settings::Settings;
use propylon_bench::failure::{Failure, Outcome, While};
use propylon_bench::interrupt::Interrupt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limits of the engine's start, its end, and one answer of its admin address.
const START_MAX: Duration = Duration::from_secs(20);
const END_MAX: Duration = Duration::from_secs(30);
const ANSWER_MAX: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of the engine's last output that are shown.
const OUTPUT_BYTES: usize = 3_000;

pub struct Engine {
    child: Child,
    pub endpoints: Endpoints,
    folder: PathBuf,
    token: String,
}

/// An answer of the admin address.
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// The engine's program: as `given`, or beside this one.
pub fn program(given: Option<&Path>) -> Outcome<PathBuf> {
    match given {
        Some(path) => Ok(path.to_owned()),
        None => Ok(std::env::current_exe().when("finding this program")?.with_file_name("propylon")),
    }
}

impl Engine {
    /// Starts `program` in the key servers' folder, where its certificates are, and waits until it serves.
    pub fn start(
        program: &Path,
        settings: &Settings,
        server_addresses: &[ServerAddresses],
        key_servers: &KeyServers,
    ) -> Outcome<Self> {
        let folder = key_servers.folder();
        let ports = reserved_ports(5)?;
        let at = |index: usize| SocketAddr::from((Ipv4Addr::LOCALHOST, ports[index]));
        let key_servers = key_servers.addresses;
        let endpoints =
            Endpoints { secure: at(0), plain: at(1), relay: at(2), keyed: at(3), admin: at(4), key_servers };
        let token = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let doing = "writing the engine's token";
        let mut file =
            File::options().write(true).create_new(true).mode(0o600).open(folder.join("token")).when(doing)?;
        file.write_all(token.as_bytes()).when(doing)?;
        write_aside(&folder.join("propylon.toml"), &settings.render(&endpoints, folder, server_addresses))?;
        let log = File::create(folder.join("engine.log")).when("making the engine's log")?;
        let mut command = Command::new(program);
        command.args(["run", "-c"]).arg(folder.join("propylon.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().when(format_args!("starting {}", program.display()))?;
        let mut engine = Self { child, endpoints, folder: folder.to_owned(), token };
        engine.wait_until_serving()?;
        Ok(engine)
    }

    fn wait_until_serving(&mut self) -> Outcome<()> {
        let until = Instant::now() + START_MAX;
        loop {
            if let Some(status) = self.child.try_wait().when("waiting for the engine")? {
                return Err(Failure::new(format!("the engine ended ({status}): {}", self.last_output())));
            }
            if self.words().contains(" runs with ") {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Failure::new(format!("the engine does not start: {}", self.last_output())));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All that it has said.
    pub fn words(&self) -> String {
        fs::read_to_string(self.folder.join("engine.log")).unwrap_or_default()
    }

    pub fn last_output(&self) -> String {
        let words = self.words();
        let from = words.len().saturating_sub(OUTPUT_BYTES);
        words.get(from..).unwrap_or(&words).trim().to_owned()
    }

    /// Lines of the engine's access log for a request, found by the path that only this one has.
    pub fn logged(&self, id: u64) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("access.log")).unwrap_or_default();
        let marks = [format!("\"/c/{id}/"), format!("\"/extra/{id}/"), format!("\"/ws/{id}\"")];
        text.lines().filter(|line| marks.iter().any(|mark| line.contains(mark))).map(str::to_owned).collect()
    }

    pub fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or_else(|| Failure::new("a process without a number"))?, signal)
            .when("signalling the engine")
    }

    /// Asked to end; how it did.
    pub fn end(&mut self) -> Outcome<ExitStatus> {
        self.signal(Signal::TERM)?;
        let until = Instant::now() + END_MAX;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().when("waiting for the engine's end")? {
                return Ok(status);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Err(Failure::new(format!("the engine does not end: {}", self.last_output())))
    }

    /// The end of it in any case.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// `kind`: the media type of the body, if there is one.
    pub fn ask(&self, method: &str, path: &str, kind: &str, body: &str, token: Option<&str>) -> Outcome<Answer> {
        let doing = format!("{method} {path} at the admin address");
        let length = body.len();
        let token = token.unwrap_or(&self.token);
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}",
            self.endpoints.admin
        );
        let mut socket = TcpStream::connect_timeout(&self.endpoints.admin, ANSWER_MAX).when(&doing)?;
        socket.set_read_timeout(Some(ANSWER_MAX)).when(&doing)?;
        socket.write_all(request.as_bytes()).when(&doing)?;
        let mut text = String::new();
        socket.read_to_string(&mut text).when(&doing)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| Failure::new(format!("{doing}: no answer")))?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| Failure::new(format!("{doing}: {head}")))?;
        Ok(Answer { status, body: body.to_owned() })
    }

    pub fn metrics(&self) -> Outcome<Metrics> {
        Ok(Metrics(self.ask("GET", "/metrics", "text/plain", "", None)?.body))
    }

    /// The servers of a backend that get requests, by address, as the engine shows its configuration.
    pub fn shown_servers(&self, backend: &str) -> Outcome<Vec<String>> {
        let body = self.ask("GET", "/config", "text/plain", "", None)?.body;
        let config: Value = serde_json::from_str(&body).when("reading the configuration in effect")?;
        let servers = config["backend"][backend]["servers"].as_array().cloned().unwrap_or_default();
        let open = servers.iter().filter(|server| server["drain"] != true);
        Ok(open.filter_map(|server| server["address"].as_str().or(server.as_str()).map(str::to_owned)).collect())
    }

    pub fn rss_kib(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    }

    pub fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// Waits until a condition on the metrics holds; the last ones seen.
    pub fn wait_for(
        &self,
        limit: Duration,
        interrupt: &Interrupt,
        holds: impl Fn(&Metrics) -> bool,
    ) -> Outcome<Metrics> {
        let until = Instant::now() + limit;
        loop {
            let metrics = self.metrics()?;
            if holds(&metrics) || Instant::now() > until {
                return Ok(metrics);
            }
            interrupt.sleep(Duration::from_millis(100))?;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One reading of `/metrics`.
pub struct Metrics(String);

impl Metrics {
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The sum over the series of a family that have all these labels.
    pub fn sum(&self, family: &str, labels: &[(&str, &str)]) -> f64 {
        let value = |line: &str| -> Option<f64> {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, rest) = series.split_once('{').unwrap_or((series, ""));
            let has = |(key, value): &(&str, &str)| rest.contains(&format!("{key}=\"{value}\""));
            (found == family && labels.iter().all(has)).then(|| value.parse().ok())?
        };
        self.0.lines().filter(|line| !line.starts_with('#')).filter_map(value).sum()
    }

    pub fn count(&self, family: &str, labels: &[(&str, &str)]) -> u64 {
        self.sum(family, labels) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_their_labels() {
        let text = "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 4\na{x=\"2\"} 5\nb 6\nab{x=\"1\"} 7\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.count("a", &[("x", "1")]), 7);
        assert_eq!(metrics.count("a", &[("x", "1"), ("y", "3")]), 4);
        assert_eq!(metrics.count("a", &[]), 12);
        assert_eq!(metrics.count("b", &[]), 6);
        assert_eq!(metrics.count("c", &[]), 0);
    }
}
