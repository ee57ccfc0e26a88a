//! Settings of the kernel for many connections: ports that are used again, memory of sockets, tracked connections, and
//! how deep idle cores sleep.

use std::fs;

use propylon_config::Config;

use super::finding::{Finding, State};
use super::{Machine, SOCKET_BUFFER_WANTED};

/// Connections that a table of tracked ones should have room for, whatever is configured.
const TRACKED_WANTED: u64 = 262_144;
/// A table of tracked connections as full as this, in percent, will soon drop packets.
const TRACKED_PERCENT_MAX: u64 = 80;
/// Seconds in which a connection that one side has left is forgotten.
const FIN_TIMEOUT_MAX: u64 = 30;
/// Part of memory that all sockets' buffers together should have at least: the kernel's own choice is a tenth.
const TCP_MEMORY_PART: u64 = 16;
/// Bytes that a socket begins with: less holds every transfer up, more is paid for by each connection.
const RECEIVE_START: (u64, u64) = (65_536, 1 << 20);
const SEND_START: (u64, u64) = (16_384, 1 << 20);
/// Microseconds in which a core should be awake again.
const WAKE_MICROSECONDS_MAX: u64 = 100;
/// States of a core that are looked at.
const SLEEP_STATES_MAX: usize = 32;
const PAGE_BYTES: u64 = 4096;

const WHY_REUSE: &str =
    "a connection to a server keeps its port for a minute after its end, unless a new one may take it over";
const WHY_FIN: &str = "connections that a server has not ended on its side hold memory for so long";
const WHY_TCP_MEMORY: &str = "above it the kernel drops packets of all connections, whoever they are of";
const WHY_START: &str = "each connection begins with it, and many connections have no more";
const WHY_TRACKED: &str = "a full table drops packets of new connections, and each client takes two entries";
const WHY_SLEEP: &str = "a core that sleeps deeply adds its awakening to the request that comes first";

pub fn findings(machine: &Machine, config: Option<&Config>) -> Vec<Finding> {
    let mut findings = ports(machine);
    findings.extend(memory(machine));
    findings.extend(starts(machine));
    findings.extend(tracked(machine, config));
    findings.extend(sleep(machine));
    findings
}

/// Ports and memory of connections that have ended, or nearly so.
fn ports(machine: &Machine) -> Vec<Finding> {
    const REUSE: &str = "net.ipv4.tcp_tw_reuse";
    const FIN: &str = "net.ipv4.tcp_fin_timeout";
    let reuse = machine.sysctl_number(REUSE).map(|reuse| {
        let state = if reuse == 1 { State::Good } else { State::Advice };
        let detail = if reuse == 2 { "2 (loopback alone)".to_owned() } else { reuse.to_string() };
        Finding::new(REUSE, state, detail, "1").because(WHY_REUSE).fix(format!("sysctl -w {REUSE}=1"))
    });
    let fin = machine.sysctl_number(FIN).map(|seconds| {
        let state = if seconds <= FIN_TIMEOUT_MAX { State::Good } else { State::Advice };
        let wanted = format!("at most {FIN_TIMEOUT_MAX}");
        let finding = Finding::new(FIN, state, seconds.to_string(), wanted);
        finding.because(WHY_FIN).fix(format!("sysctl -w {FIN}={FIN_TIMEOUT_MAX}"))
    });
    reuse.into_iter().chain(fin).collect()
}

/// Memory of all sockets of TCP together, and how much of it is in use.
fn memory(machine: &Machine) -> Vec<Finding> {
    const NAME: &str = "net.ipv4.tcp_mem";
    let limits = machine.sysctl(NAME).and_then(|text| numbers(&text));
    let Some(&[low, pressure, most]) = limits.as_deref() else { return Vec::new() };
    let total = machine.fields("meminfo", "MemTotal:").and_then(|fields| fields.first()?.parse::<u64>().ok());
    let mib = |pages: u64| pages.saturating_mul(PAGE_BYTES) >> 20;
    let mut findings = Vec::new();
    if let Some(total) = total {
        let wanted = total * 1024 / PAGE_BYTES / TCP_MEMORY_PART;
        let state = if most >= wanted { State::Good } else { State::Advice };
        let at_least = format!("at least {} MiB, a sixteenth of memory", mib(wanted));
        let finding = Finding::new("net.ipv4.tcp_mem (most)", state, format!("{} MiB", mib(most)), at_least);
        let (low, pressure) = (low.max(wanted / 2), pressure.max(wanted * 3 / 4));
        findings.push(finding.because(WHY_TCP_MEMORY).fix(format!("sysctl -w {NAME}=\"{low} {pressure} {wanted}\"")));
    }
    // "inuse 5 orphan 0 tw 2 alloc 7 mem 264"
    let in_use = machine.fields("net/sockstat", "TCP:").and_then(|fields| {
        let at = fields.iter().position(|field| field == "mem")?;
        fields.get(at + 1)?.parse::<u64>().ok()
    });
    if let Some(in_use) = in_use {
        let state = if in_use < pressure { State::Good } else { State::Bad };
        let current = format!("{} MiB", mib(in_use));
        let wanted = format!("less than {} MiB", mib(pressure));
        let fix = format!("sysctl -w {NAME}=\"{} {} {}\"", low * 2, pressure * 2, most * 2);
        findings.push(Finding::new("memory of TCP in use", state, current, wanted).because(WHY_TCP_MEMORY).fix(fix));
    }
    findings
}

/// Bytes that buffers of a socket begin with.
fn starts(machine: &Machine) -> Vec<Finding> {
    let one = |(what, name, (least, most)): (&'static str, &str, (u64, u64))| {
        let &[floor, start, ceiling] = numbers(&machine.sysctl(name)?)?.as_slice() else { return None };
        let state = if (least..=most).contains(&start) { State::Good } else { State::Advice };
        let better = start.clamp(least, most);
        let finding = Finding::new(what, state, start.to_string(), format!("{least} to {most}"));
        let fix = format!("sysctl -w {name}=\"{floor} {better} {}\"", ceiling.max(SOCKET_BUFFER_WANTED));
        Some(finding.because(WHY_START).fix(fix))
    };
    let all = [
        ("net.ipv4.tcp_rmem (start)", "net.ipv4.tcp_rmem", RECEIVE_START),
        ("net.ipv4.tcp_wmem (start)", "net.ipv4.tcp_wmem", SEND_START),
    ];
    all.into_iter().filter_map(one).collect()
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
}

/// Room for tracked connections, and how much of it is taken. Only there where connections are tracked.
fn tracked(machine: &Machine, config: Option<&Config>) -> Vec<Finding> {
    const MOST: &str = "net.netfilter.nf_conntrack_max";
    let Some(most) = machine.sysctl_number(MOST) else { return Vec::new() };
    let clients = config.and_then(|config| config.process.max_connections).unwrap_or(0) as u64;
    let wanted = TRACKED_WANTED.max(clients.saturating_mul(2));
    let mut room = Finding::at_least(MOST, Some(most), wanted, State::Advice);
    if most < clients.saturating_mul(2) {
        room.state = State::Bad;
    }
    let fix = format!("sysctl -w {MOST}={wanted}");
    let mut findings = vec![room.because(WHY_TRACKED).fix(fix)];
    if let Some(count) = machine.sysctl_number("net.netfilter.nf_conntrack_count") {
        let state = if count * 100 < most.saturating_mul(TRACKED_PERCENT_MAX) { State::Good } else { State::Bad };
        let less = format!("less than {TRACKED_PERCENT_MAX} %");
        let finding = Finding::new("connections tracked", state, format!("{count} of {most}"), less);
        findings
            .push(finding.because(WHY_TRACKED).fix(format!("sysctl -w {MOST}={}", wanted.max(most.saturating_mul(2)))));
    }
    findings
}

/// How deep the first core may sleep; the others are as it is. A virtual machine has no such states.
fn sleep(machine: &Machine) -> Option<Finding> {
    let entries = fs::read_dir(machine.sys.join("devices/system/cpu/cpu0/cpuidle")).ok()?;
    let state = |folder: std::path::PathBuf| {
        let text = |file: &str| Machine::text(folder.join(file));
        let is_on = text("disable").is_none_or(|disable| disable == "0");
        let latency = text("latency")?.parse::<u64>().ok()?;
        is_on.then(|| (latency, text("name").unwrap_or_default()))
    };
    let states = entries.flatten().take(SLEEP_STATES_MAX).filter_map(|entry| state(entry.path()));
    let (latency, name) = states.max()?;
    let state = if latency <= WAKE_MICROSECONDS_MAX { State::Good } else { State::Advice };
    let current = format!("down to {name}, awake after {latency} us");
    let wanted = format!("awake after at most {WAKE_MICROSECONDS_MAX} us");
    let fix = format!("cpupower idle-set -D {} (or leave it, if power counts more)", WAKE_MICROSECONDS_MAX + 1);
    Some(Finding::new("sleep of cores (C-states)", state, current, wanted).because(WHY_SLEEP).fix(fix))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Folder, config};
    use super::*;

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");

    fn of<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("nothing of {what}"))
    }

    #[test]
    fn settings_for_few_connections_come_with_those_for_many() {
        let folder = Folder::with(&[
            MEMINFO,
            ("proc/sys/net/ipv4/tcp_tw_reuse", "2\n"),
            ("proc/sys/net/ipv4/tcp_fin_timeout", "60\n"),
            ("proc/sys/net/ipv4/tcp_mem", "1000\t2000\t3000\n"),
            ("proc/net/sockstat", "sockets: used 58\nTCP: inuse 2 orphan 0 tw 0 alloc 2 mem 2500\n"),
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t16384\t131072\n"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
        ]);
        let findings = findings(&folder.machine(), None);
        let command = |what: &str| of(&findings, what).command.as_str();
        assert_eq!(command("net.ipv4.tcp_tw_reuse"), "sysctl -w net.ipv4.tcp_tw_reuse=1");
        assert_eq!(command("net.ipv4.tcp_fin_timeout"), "sysctl -w net.ipv4.tcp_fin_timeout=30");
        // A sixteenth of 16 GiB, in pages.
        assert_eq!(command("net.ipv4.tcp_mem (most)"), "sysctl -w net.ipv4.tcp_mem=\"131072 196608 262144\"");
        assert_eq!(of(&findings, "memory of TCP in use").state, State::Bad);
        assert_eq!(command("net.ipv4.tcp_rmem (start)"), "sysctl -w net.ipv4.tcp_rmem=\"4096 65536 4194304\"");
        assert_eq!(of(&findings, "net.ipv4.tcp_wmem (start)").state, State::Good);
        assert!(findings.iter().all(|finding| !finding.why.is_empty()));
    }

    #[test]
    fn a_table_of_tracked_connections_is_compared_with_the_clients_that_are_configured() {
        let text = "[process]\nmax_connections = 200000\n[[route]]\nrespond = { status = 200 }\n[listener.web]\nbind = \"127.0.0.1:0\"\n";
        let of_count = |most: &str, count: &str| {
            let folder = Folder::with(&[
                ("proc/sys/net/netfilter/nf_conntrack_max", most),
                ("proc/sys/net/netfilter/nf_conntrack_count", count),
            ]);
            let findings = findings(&folder.machine(), Some(&config(text)));
            ["net.netfilter.nf_conntrack_max", "connections tracked"].map(|what| {
                let finding = of(&findings, what);
                (finding.state, finding.command.clone())
            })
        };
        let raised = "sysctl -w net.netfilter.nf_conntrack_max=400000".to_owned();
        assert_eq!(of_count("262144", "1000"), [(State::Bad, raised), (State::Good, String::new())]);
        let doubled = "sysctl -w net.netfilter.nf_conntrack_max=1000000".to_owned();
        assert_eq!(of_count("500000", "450000"), [(State::Good, String::new()), (State::Bad, doubled)]);
    }

    #[test]
    fn the_deepest_sleep_that_is_allowed_is_told() {
        let state = |number: usize, file: &str| format!("sys/devices/system/cpu/cpu0/cpuidle/state{number}/{file}");
        let files = [
            (state(1, "name"), "C1\n"),
            (state(1, "latency"), "2\n"),
            (state(2, "name"), "C6\n"),
            (state(2, "latency"), "133\n"),
        ];
        let of_files = |more: &[(String, &str)]| {
            let all: Vec<(&str, &str)> = files.iter().chain(more).map(|(path, text)| (path.as_str(), *text)).collect();
            sleep(&Folder::with(&all).machine()).expect("it is told")
        };
        let deep = of_files(&[]);
        assert_eq!((deep.state, deep.current.as_str()), (State::Advice, "down to C6, awake after 133 us"));
        let shallow = of_files(&[(state(2, "disable"), "1\n")]);
        assert_eq!((shallow.state, shallow.current.as_str()), (State::Good, "down to C1, awake after 2 us"));
    }

    #[test]
    fn what_the_kernel_does_not_show_or_writes_otherwise_is_passed_over() {
        assert_eq!(findings(&Folder::with(&[]).machine(), None).len(), 0);
        let folder = Folder::with(&[("proc/sys/net/ipv4/tcp_mem", "a b c\n"), ("proc/sys/net/ipv4/tcp_rmem", "1\n")]);
        assert_eq!(findings(&folder.machine(), None).len(), 0);
    }
}
