//! BIRD, of an engine or of the router: its configuration, its control socket, and the routes that come of it.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::namespaces::Namespace;
use super::network::{self, VIP, VIP6};
use super::programs::system;
use crate::program::{finish, run, signal};
use crate::wait::{WAIT_MAX, holds};

/// An engine's static protocol that announces the VIP while it is enabled. It begins disabled.
pub const VIP_PROTOCOL: &str = "vip";
/// The same of IPv6, in rigs that have it.
pub const VIP6_PROTOCOL: &str = "vip6";
/// Hellos that BFD may miss.
const MISSED_MAX: u32 = 5;
/// Paths to one address that the router spreads packets over.
const PATHS_MAX: usize = 32;
/// After an error, and a loss that BFD has seen is one, BIRD stays away for a minute by default, whichever side it is
/// on.
const BACK_SOON: &str = "error wait time 1, 2;\n  error forget time 10;";
const ROUTER_AS: u32 = 65000;
const ENGINE_AS: u32 = 65001;

/// How soon neighbours are given up.
#[derive(Clone, Copy, Debug)]
pub struct Liveness {
    pub bfd_interval: Duration,
    pub hold_time: Duration,
}

/// A running BIRD. It can be killed, stopped and started again.
pub struct Bird {
    namespace: Namespace,
    folder: PathBuf,
    child: Option<Child>,
}

/// One of the paths to an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    /// Whose link it is.
    pub engine: usize,
    pub weight: u64,
}

impl Bird {
    #[track_caller]
    pub fn start(namespace: &Namespace, folder: &Path, config: &str) -> Bird {
        std::fs::write(folder.join("bird.conf"), config).expect("a file in a temporary folder");
        let mut bird = Bird { namespace: namespace.clone(), folder: folder.to_owned(), child: None };
        bird.restart();
        bird
    }

    /// The control socket, as an engine is told of it.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("bird.ctl")
    }

    /// Starts it where it is not running, and waits until it answers.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "BIRD runs already");
        let log = std::fs::File::create(self.folder.join("bird.log")).expect("a file in a temporary folder");
        // Hellos of BFD are due many times a second, also while everything else is busy.
        let mut command = self.namespace.command("nice");
        command.args(["-n", "-10"]).arg(system("bird").get_program()).arg("-f");
        command.arg("-c").arg(self.folder.join("bird.conf")).arg("-s").arg(self.socket());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        self.child = Some(command.spawn().expect("BIRD starts"));
        holds("BIRD answers", || {
            let child = self.child.as_mut().expect("it has been started");
            let ended = child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "BIRD has ended:\n{}", self.log());
            self.try_ask("show status").is_some()
        });
    }

    /// Sends one command to the control socket. Lines of the answer, without their codes.
    #[track_caller]
    pub fn ask(&self, command: &str) -> Vec<String> {
        let answer =
            self.try_ask(command).unwrap_or_else(|| panic!("BIRD does not answer to {command:?}:\n{}", self.log()));
        // Codes 8xxx and 9xxx are errors.
        let is_wrong = |(code, _): &(u32, String)| *code >= 8000;
        assert!(!answer.iter().any(is_wrong), "BIRD, to {command:?}: {answer:?}");
        answer.into_iter().map(|(_, text)| text).collect()
    }

    fn try_ask(&self, command: &str) -> Option<Vec<(u32, String)>> {
        let stream = UnixStream::connect(self.socket()).ok()?;
        stream.set_read_timeout(Some(WAIT_MAX)).ok()?;
        let mut reader = BufReader::new(stream);
        read_answer(&mut reader)?;
        reader.get_mut().write_all(format!("{command}\n").as_bytes()).ok()?;
        read_answer(&mut reader)
    }

    /// The state of a protocol: `up`, `down`, `start`.
    #[track_caller]
    pub fn state(&self, protocol: &str) -> String {
        let lines = self.ask(&format!("show protocols {protocol}"));
        let line = lines.iter().find(|line| line.split_whitespace().next() == Some(protocol));
        let state = line.and_then(|line| line.split_whitespace().nth(3));
        state.unwrap_or_else(|| panic!("no protocol {protocol} in {lines:?}")).to_owned()
    }

    /// Lines of its log since it was started last.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("bird.log")).unwrap_or_default()
    }

    pub fn signal(&self, which: Signal) {
        signal(self.child.as_ref().expect("a running BIRD").id(), which);
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            finish(&mut child, WAIT_MAX, "BIRD ends");
        }
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Lines are `1234-text`, the last of them `1234 text`; ` text` is of the code before.
fn read_answer(reader: &mut impl BufRead) -> Option<Vec<(u32, String)>> {
    let mut answer: Vec<(u32, String)> = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end_matches('\n');
        match line.get(..4).and_then(|code| code.parse().ok()) {
            Some(code) => {
                answer.push((code, line.get(5..).unwrap_or_default().to_owned()));
                if line.as_bytes().get(4) != Some(&b'-') {
                    return Some(answer);
                }
            }
            None => answer.push((answer.last().map_or(0, |(code, _)| *code), line.trim_start().to_owned())),
        }
    }
}

/// The paths that the kernel has to an address.
#[track_caller]
pub fn next_hops(router: &Namespace, address: IpAddr) -> Vec<NextHop> {
    let family = if address.is_ipv6() { "-6" } else { "-4" };
    let mut command = system("ip");
    command.args(["-n", router.name(), family, "-j", "route", "show", &address.to_string()]);
    let text = run(command, b"", WAIT_MAX).ok().text();
    let routes: Vec<Value> = match text.trim() {
        "" => vec![],
        text => serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?}")),
    };
    // With one path it stands in the route itself; with several, in a list of it.
    let of_route = |route: Value| match route["nexthops"].as_array() {
        Some(hops) => hops.clone(),
        None => vec![route],
    };
    let mut hops: Vec<NextHop> = routes.into_iter().flat_map(of_route).filter_map(|hop| next_hop(&hop)).collect();
    hops.sort();
    hops
}

fn next_hop(hop: &Value) -> Option<NextHop> {
    let gateway = hop["gateway"].as_str().or_else(|| hop["via"]["host"].as_str())?;
    let engine = network::engine_at(gateway.parse().ok()?)?;
    Some(NextHop { engine, weight: hop["weight"].as_u64().unwrap_or(1) })
}

/// The router waits for engines to speak.
pub fn router_config(engines: usize, ipv6: bool, liveness: Liveness) -> String {
    let mut text = head("10.78.0.1", liveness);
    for (version, is_there) in [(4, true), (6, ipv6)] {
        if is_there {
            text += &format!(
                "protocol kernel kernel{version} {{ ipv{version} {{ import none; export all; }}; \
                 merge paths on limit {PATHS_MAX}; scan time 60; }}\n"
            );
        }
    }
    let hold = liveness.hold_time.as_secs();
    for number in 0..engines {
        let link = network::engine_network(number);
        let mut session = |name: String, version: u8, ours: IpAddr, theirs: IpAddr| {
            text += &format!(
                "protocol bgp {name} {{\n  local {ours} as {ROUTER_AS};\n  neighbor {theirs} as {ENGINE_AS};\n  \
                 passive on;\n  bfd on;\n  hold time {hold};\n  direct;\n  {BACK_SOON}\n  \
                 ipv{version} {{ import all; export none; }};\n}}\n"
            );
        };
        let engine = network::engine(number);
        session(engine.clone(), 4, network::router_address(link).into(), network::engine_address(number).into());
        if ipv6 {
            let (ours, theirs) = (network::router_address6(link), network::engine_address6(number));
            session(format!("{engine}_6"), 6, ours.into(), theirs.into());
        }
    }
    text
}

/// An engine has the VIP to tell of, and takes no routes.
pub fn engine_config(number: usize, ipv6: bool, liveness: Liveness) -> String {
    let address = network::engine_address(number);
    let mut text = head(&address.to_string(), liveness);
    let hold = liveness.hold_time.as_secs();
    let link = network::engine_network(number);
    let mut family = |version: u8, route: String, protocol: &str, (ours, theirs): (IpAddr, IpAddr)| {
        text += &format!(
            "protocol static {protocol} {{ disabled; ipv{version}; route {route} blackhole; }}\n\
             protocol bgp router{version} {{\n  local {ours} as {ENGINE_AS};\n  neighbor {theirs} as {ROUTER_AS};\n  \
             bfd on;\n  hold time {hold};\n  direct;\n  connect delay time 1;\n  connect retry time 1;\n  \
             {BACK_SOON}\n  ipv{version} {{ import none; export where proto = \"{protocol}\"; }};\n}}\n"
        );
    };
    family(4, format!("{VIP}/32"), VIP_PROTOCOL, (address.into(), network::router_address(link).into()));
    if ipv6 {
        let ends = (network::engine_address6(number).into(), network::router_address6(link).into());
        family(6, format!("{VIP6}/128"), VIP6_PROTOCOL, ends);
    }
    text
}

fn head(router_id: &str, liveness: Liveness) -> String {
    let interval = liveness.bfd_interval.as_millis();
    format!(
        "log stderr all;\nrouter id {router_id};\nprotocol device {{ scan time 1; }}\n\
         protocol bfd {{ interface \"*\" {{ min rx interval {interval} ms; min tx interval {interval} ms; \
         idle tx interval {interval} ms; multiplier {MISSED_MAX}; }}; }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_the_line_that_has_a_space_behind_its_code() {
        let mut text = &b"1002-vip  Static  ---  up\n more of it\n0000 \n0001 the next one\n"[..];
        let answer = read_answer(&mut text).expect("an answer");
        let expected = [(1002, "vip  Static  ---  up"), (1002, "more of it"), (0, "")];
        assert_eq!(answer, expected.map(|(code, text)| (code, text.to_owned())));
        assert_eq!(read_answer(&mut text), Some(vec![(1, "the next one".to_owned())]));
        assert_eq!(read_answer(&mut text), None);
    }
}
