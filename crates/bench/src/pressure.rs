//! Resources that a machine runs short of under load: cores, local ports, room in accept queues. Read before and
//! after a run.
//!
//! Sources: `/proc/stat` (ticks of all cores), `/proc/net/netstat` (TcpExt ListenOverflows and ListenDrops, of all
//! listeners in this network namespace), `/proc/net/sockstat` (TIME_WAIT), `ip_local_port_range`.

use crate::cpu;
use crate::handshakes::LOAD_SATURATED;
use serde::{Deserialize, Serialize};
use std::fs;

/// Above this share of its cores a server has no more to give.
const SERVER_SATURATED: f64 = 0.93;
/// Above this share of all local ports held, connects begin to search for one, and then to fail.
const PORTS_SATURATED: f64 = 0.9;
/// Cores kept busy by neither the server nor the load, above which the machine is not the measurement's own.
const OTHERS_NOTEWORTHY: f64 = 0.25;
/// Share of the time spent ready to run without a core, above which a result is not the program's own.
const WAITING_NOTEWORTHY: f64 = 0.1;
const STOLEN_NOTEWORTHY: f64 = 0.05;

/// Counters at one moment. What cannot be read counts as 0: not every system shows all of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    listen_overflows: u64,
    listen_drops: u64,
    /// All cores, in ticks.
    busy: u64,
    stolen: u64,
    total: u64,
}

/// The load's own use of one of its threads.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ThreadUse {
    /// Share of the time on a core.
    pub busy: f64,
    /// Share of the time ready to run, with the core given to someone else.
    pub waiting: f64,
}

/// The resources that were short between two moments.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pressure {
    /// Cores kept busy by the server; absent if its processes are not known.
    pub server_cores: Option<f64>,
    /// Cores that the server may use; absent likewise.
    pub server_cores_allowed: Option<usize>,
    /// Cores' worth of time for which the server's threads were ready to run, with the core given to someone else.
    pub server_waiting: Option<f64>,
    pub load_threads: Vec<ThreadUse>,
    /// Cores kept busy by neither the server nor the load; absent if the server's part is not known.
    pub other_cores: Option<f64>,
    /// Cores' worth of time that a hypervisor gave to others.
    pub stolen_cores: f64,
    pub listen_overflows: u64,
    pub listen_drops: u64,
    pub time_wait_most: u64,
    /// Local ports that one source address has towards one server.
    pub local_ports: u64,
    pub source_addresses: u64,
    /// Connects failed for want of a local port.
    pub out_of_ports: bool,
}

/// The shortage that kept the rate from being higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shortage {
    Ports,
    AcceptQueue,
    LoadCpu,
    ServerCpu,
    /// Neither the server's nor the load's programs had the cores that these two were ready to use.
    OtherPrograms,
}

impl Counters {
    pub fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let netstat = read("/proc/net/netstat");
        let mut counters = Self {
            listen_overflows: netstat_field(&netstat, "ListenOverflows"),
            listen_drops: netstat_field(&netstat, "ListenDrops"),
            ..Self::default()
        };
        // proc_stat(5): user nice system idle iowait irq softirq steal; the guest columns are in user already.
        let stat = read("/proc/stat");
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line.split_ascii_whitespace().skip(1).map(|word| word.parse().unwrap_or(0)).collect();
        if let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] {
            counters.busy = user + nice + system + irq + softirq;
            counters.stolen = steal;
            counters.total = counters.busy + steal + idle + iowait;
        }
        counters
    }

    /// The difference to `earlier`; the server's and the load's own figures are for the caller to fill in.
    pub fn since(&self, earlier: &Self, seconds: f64) -> Pressure {
        let per_second = rustix::param::clock_ticks_per_second().max(1) as f64;
        let cores = |now: u64, then: u64| now.saturating_sub(then) as f64 / per_second / seconds.max(1e-9);
        Pressure {
            // For now everyone's; `subtract_own_shares` takes away the server's and the load's.
            other_cores: (self.total > earlier.total).then(|| cores(self.busy, earlier.busy)),
            stolen_cores: cores(self.stolen, earlier.stolen),
            listen_overflows: self.listen_overflows.saturating_sub(earlier.listen_overflows),
            listen_drops: self.listen_drops.saturating_sub(earlier.listen_drops),
            local_ports: local_ports(),
            ..Pressure::default()
        }
    }
}

impl Pressure {
    /// Takes the load's and the server's share from what all cores did.
    pub fn subtract_own_shares(&mut self) {
        let load: f64 = self.load_threads.iter().map(|thread| thread.busy).sum();
        self.other_cores =
            self.server_cores.and_then(|server| self.other_cores.map(|all| (all - load - server).max(0.0)));
    }

    pub fn shortages(&self) -> Vec<Shortage> {
        let mut found = Vec::new();
        let ports = self.local_ports * self.source_addresses.max(1);
        if self.out_of_ports || (ports > 0 && self.time_wait_most as f64 > PORTS_SATURATED * ports as f64) {
            found.push(Shortage::Ports);
        }
        if self.listen_overflows + self.listen_drops > 0 {
            found.push(Shortage::AcceptQueue);
        }
        if self.load_is_full() {
            found.push(Shortage::LoadCpu);
        }
        if self.server_share().is_some_and(|share| share > SERVER_SATURATED) {
            found.push(Shortage::ServerCpu);
        }
        let waiting = self.load_threads.iter().map(|thread| thread.waiting).chain(self.server_waiting);
        if self.other_cores.is_some_and(|others| others > OTHERS_NOTEWORTHY)
            && waiting.fold(0.0, f64::max) > WAITING_NOTEWORTHY
        {
            found.push(Shortage::OtherPrograms);
        }
        found
    }

    pub fn load_is_full(&self) -> bool {
        self.load_threads.iter().any(|thread| thread.is_full())
    }

    /// Share of the cores that the server may use and keeps busy, 0 to 1.
    pub fn server_share(&self) -> Option<f64> {
        Some(self.server_cores? / self.server_cores_allowed?.max(1) as f64)
    }

    /// One sentence per thing worth knowing.
    pub fn lines(&self) -> Vec<String> {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let shortages = self.shortages();
        let full = |shortage| if shortages.contains(&shortage) { ": FULL" } else { "" };
        let mut lines = vec![match (self.server_share(), self.server_cores) {
            (Some(share), Some(cores)) => format!(
                "server CPU {} of {} ({cores:.2} busy, {:.2} waiting for a core){}",
                percent(share),
                count(self.server_cores_allowed.unwrap_or(0), "core"),
                self.server_waiting.unwrap_or(0.0),
                full(Shortage::ServerCpu)
            ),
            (None, Some(cores)) => format!("server CPU {cores:.2} cores (how many it may use is not known)"),
            _ => "server CPU not known (--server-pid)".to_owned(),
        }];
        let threads: Vec<String> = self.load_threads.iter().map(ThreadUse::show).collect();
        lines.push(format!("load CPU per thread {}{}", threads.join(", "), full(Shortage::LoadCpu)));
        if let Some(others) = self.other_cores.filter(|others| *others > OTHERS_NOTEWORTHY) {
            let full = full(Shortage::OtherPrograms);
            lines.push(format!("other programs kept {others:.2} cores busy meanwhile{full}"));
        }
        if self.stolen_cores > STOLEN_NOTEWORTHY {
            lines.push(format!("the hypervisor took {:.2} cores' worth of time", self.stolen_cores));
        }
        lines.push(format!(
            "TIME_WAIT at most {} of {} local ports x {}{}",
            self.time_wait_most,
            self.local_ports,
            count(self.source_addresses.max(1) as usize, "source address"),
            full(Shortage::Ports)
        ));
        lines.push(format!(
            "accept queues: {} overflows, {} drops{}",
            self.listen_overflows,
            self.listen_drops,
            full(Shortage::AcceptQueue)
        ));
        lines
    }
}

impl ThreadUse {
    /// Nothing left: what was not spent on a core was spent waiting for it.
    pub fn is_full(&self) -> bool {
        self.busy + self.waiting > LOAD_SATURATED
    }

    pub fn show(&self) -> String {
        let waiting =
            if self.waiting >= 0.005 { format!(" + {:.0} % waiting", self.waiting * 100.0) } else { String::new() };
        format!("{:.0} %{waiting}", self.busy * 100.0)
    }
}

impl Shortage {
    pub fn name(self) -> &'static str {
        match self {
            Self::ServerCpu => "server CPU",
            Self::LoadCpu => "load CPU",
            Self::Ports => "local ports",
            Self::AcceptQueue => "accept queue",
            Self::OtherPrograms => "other programs",
        }
    }
}

/// Sockets in TIME_WAIT, this network namespace's.
pub fn time_wait() -> u64 {
    let text = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
    line.split_ascii_whitespace().skip_while(|word| *word != "tw").nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Time that the calling thread was ready to run and did not, in nanoseconds.
pub fn this_thread_waited() -> u64 {
    waited_of(&fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default()).unwrap_or(0)
}

/// The same for all threads of these processes and their descendants.
pub fn waited(pids: &[u32]) -> u64 {
    let mut total = 0;
    for pid in cpu::process_tree(pids).unwrap_or_default() {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        let texts = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
        total += texts.filter_map(|text| waited_of(&text)).sum::<u64>();
    }
    total
}

/// `ran waited timeslices`, in nanoseconds the first two (sched-stats in the kernel's documentation).
fn waited_of(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn local_ports() -> u64 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = text.split_ascii_whitespace().filter_map(|end| end.parse::<u64>().ok());
    match (ends.next(), ends.next()) {
        (Some(first), Some(last)) if last >= first => last - first + 1,
        _ => 0,
    }
}

/// `TcpExt:` comes twice: a line of names, then a line of values in the same order.
fn netstat_field(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let position = names.split_ascii_whitespace().position(|found| found == name);
    position.and_then(|index| values.split_ascii_whitespace().nth(index)?.parse().ok()).unwrap_or(0)
}

/// `1 core`, `2 cores`.
pub fn count(number: usize, noun: &str) -> String {
    let ending = match (number, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{number} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name() {
        let text = "TcpExt: TW ListenOverflows ListenDrops\nTcpExt: 5 32 33\nIpExt: a\nIpExt: 1\n";
        assert_eq!((netstat_field(text, "ListenOverflows"), netstat_field(text, "ListenDrops")), (32, 33));
        assert_eq!(netstat_field(text, "Missing"), 0);
        assert_eq!(netstat_field("", "TW"), 0);
    }

    #[test]
    fn what_is_full_is_said() {
        let quiet = Pressure {
            server_cores: Some(0.5),
            server_cores_allowed: Some(1),
            load_threads: vec![ThreadUse { busy: 0.6, waiting: 0.1 }],
            local_ports: 28_232,
            ..Pressure::default()
        };
        assert_eq!(quiet.shortages(), []);
        // A load that waits for its core is as full as one that has it.
        let starved = Pressure { load_threads: vec![ThreadUse { busy: 0.5, waiting: 0.48 }], ..quiet.clone() };
        assert_eq!(starved.shortages(), [Shortage::LoadCpu]);
        let crowded = Pressure { other_cores: Some(0.8), server_waiting: Some(0.3), ..quiet.clone() };
        assert_eq!(crowded.shortages(), [Shortage::OtherPrograms]);
        let short = Pressure { listen_drops: 1, time_wait_most: 28_000, server_cores: Some(0.99), ..quiet };
        assert_eq!(short.shortages(), [Shortage::Ports, Shortage::AcceptQueue, Shortage::ServerCpu]);
        assert!(short.lines().iter().any(|line| line.contains("FULL")));
    }
}
