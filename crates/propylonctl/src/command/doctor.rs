//! `propylon doctor`: what this machine gives an engine, what it would want, and the command that sets it.
//!
//! Every finding names its source, so that whoever doubts it can look there. Nothing is changed.

mod account;
mod announce;
mod cluster;
mod finding;
mod holders;
mod kernel;
mod nic_settings;
mod packets;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use propylon_config::{Admin, AdminBind, Config, Problem, Source, Workers};
use propylon_crypto::batch::{Batching, Kernel, KernelState};
use serde_json::{Value, json};

use crate::command::admin_client::{AdminRequest, ask};
use crate::command::attempt;
use account::CONNECT_TIMEOUT;
use finding::{FILES_NAMED_MAX, Finding, State};
use holders::Holder;
use nic_settings::NicSettings;
use propylon_control::acme;
use propylon_control::opening::files_plan;
use propylon_control::sandbox;
use propylon_proxy::overload::files::FilesPlan;

/// Files that an engine of no stated size should be able to have open: 30,000 clients with a request each, and some.
const FILES_WANTED: u64 = 65_536;
/// Backlog that the engine asks for at its listeners; the kernel gives no more than `somaxconn`.
const BACKLOG_WANTED: u64 = 4096;
/// Local ports towards one server; each connection in progress or in TIME_WAIT takes one.
const PORTS_WANTED: u64 = 50_000;
/// Such a range, above the ports that services of a machine usually listen at: one that begins at 1024 takes these from
/// them after a restart.
const LOCAL_PORTS_WANTED: &str = "10240 65535";
/// File for settings of the kernel.
const SYSCTL_FILE: &str = "/etc/sysctl.d/60-propylon.conf";
/// Command that changes a setting until the next boot.
const SYSCTL: &str = "sysctl -w ";
/// A window that fills 1 Gbit/s at 30 ms.
const SOCKET_BUFFER_WANTED: u64 = 4 << 20;
/// Between the first and the last second of what is taken for a right clock: certificates outlive neither.
const CLOCK_FROM: u64 = 1_767_225_600;
const CLOCK_UNTIL: u64 = 4_102_444_800;
/// Key pairs made ahead and the working memory of batches, per worker.
const LOCKED_BYTES_WANTED: u64 = 1 << 20;

#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration to be served; without one the machine is looked at for no service in particular
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the findings as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Folders in which the kernel reports about itself, and what it tells of a NIC besides; others in tests.
struct Machine {
    proc: PathBuf,
    sys: PathBuf,
    nic_settings: fn(&str) -> NicSettings,
}

impl Machine {
    fn this() -> Machine {
        Machine { proc: "/proc".into(), sys: "/sys".into(), nic_settings: nic_settings::of }
    }

    /// Cores that are at work.
    fn cores(&self) -> usize {
        let online = Machine::text(self.sys.join("devices/system/cpu/online"));
        let online = online.and_then(|list| packets::list_of_cores(&list));
        online.map_or_else(|| propylon_sys::allowed_cores().len(), |cores| cores.len()).max(1)
    }

    fn text(path: PathBuf) -> Option<String> {
        Some(fs::read_to_string(path).ok()?.trim().to_string())
    }

    /// `net.core.somaxconn` and the like.
    fn sysctl(&self, name: &str) -> Option<String> {
        Machine::text(self.proc.join("sys").join(name.replace('.', "/")))
    }

    fn sysctl_number(&self, name: &str) -> Option<u64> {
        self.sysctl(name)?.parse().ok()
    }

    /// A line of a file such as `/proc/self/limits`, by its beginning, in fields.
    fn fields(&self, file: &str, beginning: &str) -> Option<Vec<String>> {
        let text = Machine::text(self.proc.join(file))?;
        let line = text.lines().find_map(|line| line.strip_prefix(beginning))?;
        Some(line.split_ascii_whitespace().map(str::to_string).collect())
    }

    /// The hard limit of this process.
    fn limit(&self, beginning: &str) -> Option<u64> {
        let fields = self.fields("self/limits", beginning)?;
        match fields.get(1)?.as_str() {
            "unlimited" => Some(u64::MAX),
            text => text.parse().ok(),
        }
    }
}

pub fn main(arguments: &Arguments) -> ExitCode {
    let config = match arguments.config.as_deref().map(load).transpose() {
        Ok(config) => config,
        Err(problems) => {
            eprint!("{problems}");
            return ExitCode::FAILURE;
        }
    };
    let mut findings = examine(&Machine::this(), config.as_ref());
    // The ports are bound by whoever starts the engine; the rest is done by the account that serves.
    findings.extend(config.as_ref().and_then(account::become_it));
    findings.extend(config.iter().flat_map(account::findings));
    findings.extend(config.iter().flat_map(announce::findings));
    findings.extend(config.iter().flat_map(|config| cluster::findings(&Machine::this(), config)));
    findings.extend(sandboxed(arguments.config.as_deref(), config.as_ref()));
    if arguments.json {
        println!("{}", Value::from(findings.iter().map(to_json).collect::<Vec<Value>>()));
    } else {
        print!("{}", to_text(&findings));
    }
    match findings.iter().any(|finding| finding.state == State::Bad) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn load(path: &Path) -> Result<Config, String> {
    let source = Source::read(path).map_err(|problem| propylon_config::render(&[problem], ""))?;
    let rendered = |problems: Vec<Problem>| source.render(&problems);
    propylon_config::parse(&source).map(|(config, _)| config).map_err(rendered)
}

fn examine(machine: &Machine, config: Option<&Config>) -> Vec<Finding> {
    let mut findings = files(machine, config);
    let is_served = config.is_some_and(is_served);
    findings.extend(ports(machine, config, is_served));
    let admins = config.into_iter().flat_map(|config| &config.admin);
    findings.extend(admins.flat_map(|each| admin(machine, each, is_served)));
    findings.extend(network(machine, config));
    findings.extend(kernel::findings(machine, config));
    findings.extend(packets::findings(machine));
    findings.extend(memory(machine));
    findings.extend(processor(machine, config));
    findings.push(clock(machine));
    findings
}

/// The sandbox that this kernel would enforce, as tried out in one.
fn sandboxed(path: Option<&Path>, config: Option<&Config>) -> Vec<Finding> {
    const WANTED: &str = "enforced";
    if config.is_some_and(|config| !config.process.sandbox.on) {
        let off = Finding::new("sandbox", State::Advice, "process.sandbox is \"off\"", WANTED);
        return vec![off.fix("remove it from [process]")];
    }
    let shown = attempt::show(path);
    let one = |what: &'static str, key: &str, fix: &str| {
        let enforced =
            shown.as_ref().and_then(|shown| Some((shown[key]["state"].as_str()?, shown[key]["told"].as_str()?)));
        match enforced {
            None => Finding::new(what, State::Unknown, "unknown", WANTED),
            Some(("enforced", detail)) => Finding::new(what, State::Good, detail, WANTED),
            Some((_, detail)) => Finding::new(what, State::Advice, detail, WANTED).fix(fix),
        }
    };
    let mut findings = vec![
        one(
            "sandbox: Landlock (files, ports)",
            "landlock",
            "a kernel from 6.12 with Landlock; \"landlock\" among lsm= at boot",
        ),
        one(
            "sandbox: seccomp (system calls)",
            "seccomp",
            "a kernel with CONFIG_SECCOMP_FILTER, and a container that allows seccomp(2)",
        ),
    ];
    let attempts = attempt::all(path);
    let done: Vec<&str> = attempts.iter().filter(|(_, done)| *done == Some(true)).map(|(what, _)| *what).collect();
    let current = match done.as_slice() {
        [] => format!("all {} refused", attempts.len()),
        done => format!("it can {}", done.join(", ")),
    };
    let state = match (attempts.iter().all(|(_, done)| done.is_some()), done.is_empty()) {
        (false, _) => State::Unknown,
        (true, true) => State::Good,
        (true, false) => State::Advice,
    };
    let tried = Finding::new("sandbox: what a hijacked engine tries", state, current, "all refused");
    findings.push(tried.fix("see the two above"));
    findings.extend(config.map(isolated));
    findings.extend(path.zip(config).and_then(|(path, config)| reach(path, config)));
    findings
}

/// Whether the process that serves has the private keys.
fn isolated(config: &Config) -> Finding {
    const WHAT: &str = "private keys";
    const WANTED: &str = "in a process of their own";
    match config.keys.isolate {
        Some(_) if is_key_process_lost(config) => {
            let current = "the process that starts the key process is gone, and handshakes cannot be signed";
            Finding::new(WHAT, State::Bad, current, WANTED).fix("restart the engine, or propylon upgrade")
        }
        Some(_) => Finding::new(WHAT, State::Good, WANTED, WANTED),
        None => Finding::new(
            WHAT,
            State::Good,
            "in the process that serves",
            "as meant: [keys] isolate = true keeps them apart",
        ),
    }
}

/// Whether the engine that runs says so.
fn is_key_process_lost(config: &Config) -> bool {
    let status = answer_of_engine(config, "/status.json").unwrap_or_default();
    let held = status["conditions"]["list"].as_array();
    held.into_iter().flatten().any(|condition| condition["name"] == "key-process-lost")
}

/// Whether the process that serves may come by all that the file names now: otherwise it refuses to read it again.
fn reach(path: &Path, config: &Config) -> Option<Finding> {
    const WHAT: &str = "sandbox: what the running engine may come by";
    let snapshot = answer_of_engine(config, "/v1/snapshot")?;
    let source = Source::read(path).ok()?;
    let out = sandbox::out_of_reach(config, &source, &snapshot["sandbox"])?;
    let (state, current) = match out.as_slice() {
        [] => (State::Good, "all that the file names".to_owned()),
        out => {
            let named = out.iter().take(FILES_NAMED_MAX).cloned().collect::<Vec<String>>().join(", ");
            let more = out.len().saturating_sub(FILES_NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            (State::Bad, format!("{named}{more}; it would refuse to read the file again"))
        }
    };
    Some(Finding::new(WHAT, state, current, "all that the file names").fix(sandbox::remedy(config, path)))
}

/// Whether an engine answers that has this configuration, or an earlier one: at the upgrade socket or the admin address.
fn is_served(config: &Config) -> bool {
    let socket = config.process.upgrade_socket.as_ref();
    socket.is_some_and(|socket| propylon_sys::connect_messages(&socket.path, CONNECT_TIMEOUT).is_ok())
        || answer_of_engine(config, "/v1/snapshot").is_some_and(|snapshot| snapshot["sandbox"].is_object())
}

/// The answer of the engine that runs at its admin address.
fn answer_of_engine(config: &Config, path: &str) -> Option<Value> {
    let admin = &config.admin.as_ref()?.bind;
    let asked = AdminRequest { method: "GET", path, fields: "", body: "", timeout: CONNECT_TIMEOUT };
    let (_, body) = ask(admin, &asked).ok().filter(|(status, _)| *status == 200)?;
    serde_json::from_str(&body).ok()
}

/// Whether the admin address can be bound, and who else could talk to it.
fn admin(machine: &Machine, admin: &Admin, is_served: bool) -> Vec<Finding> {
    let AdminBind::Tcp(address) = &admin.bind else { return Vec::new() };
    let mut findings = vec![address_finding(machine, "admin address", *address, is_served)];
    if !address.ip().is_loopback() {
        let current = format!("{address} is open to other machines");
        let finding = Finding::new("admin address", State::Advice, current, "this machine alone");
        findings.push(finding.fix(
            "bind = \"127.0.0.1:PORT\" or \"unix:PATH\" in [admin], or a firewall: it tells servers, names and figures to all who ask",
        ));
    }
    findings
}

/// The limits on open files. Too few for the configuration are bad, by the rule of `propylon check`. An engine without
/// `max_connections` takes what there is, so that for it more is advised.
fn files(machine: &Machine, config: Option<&Config>) -> Vec<Finding> {
    let plan = config.map(files_plan);
    let is_stated = config.is_some_and(|config| config.process.max_connections.is_some());
    let needed = plan.map_or(0, FilesPlan::needed);
    let advised = if is_stated { needed } else { FILES_WANTED.max(needed) };
    let finding = |what, current: Option<u64>, fix: &dyn Fn(u64) -> String| match current {
        Some(limit) if limit < needed => Finding::at_least(what, current, needed, State::Bad).fix(fix(needed)),
        _ => {
            let mut finding = Finding::at_least(what, current, advised, State::Advice);
            if needed > 0 && finding.state == State::Advice {
                finding.wanted = format!("{needed} are enough to serve; {advised} are recommended, for more clients");
            }
            finding.fix(fix(advised))
        }
    };
    let limit = finding("open files (hard limit)", machine.limit("Max open files"), &|wanted| {
        format!("ulimit -Hn {wanted} as root before the start, or LimitNOFILE={wanted} in the systemd unit")
    });
    let per_process = machine.sysctl_number("fs.nr_open");
    let kernel = finding("fs.nr_open", per_process, &|wanted| format!("sysctl -w fs.nr_open={wanted}"));
    let all = Finding::at_least("fs.file-max", machine.sysctl_number("fs.file-max"), advised * 2, State::Advice)
        .fix(format!("sysctl -w fs.file-max={}", advised * 2));
    vec![limit, kernel, all]
}

/// Whether the configuration's listeners can be bound.
fn ports(machine: &Machine, config: Option<&Config>, is_served: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for bind in config.iter().flat_map(|config| &config.listeners).flat_map(|listener| &listener.bind) {
        findings.push(address_finding(machine, "listener address", bind.address, is_served));
    }
    for (name, port) in config.map(acme::unasked).unwrap_or_default() {
        let current = format!("no listener at port {port}");
        let finding = Finding::new("authority's questions", State::Advice, current, "an answer");
        let fix =
            "lead that port to a listener from outside, or bind it: there the authority asks whether names lead here";
        findings.push(finding.fix(format!("[acme.{name}]: {fix}")));
    }
    findings
}

/// Whether an address can be bound; if it is taken, by whom. `is_served`: an engine answers where this one would.
fn address_finding(machine: &Machine, what: &'static str, address: SocketAddr, is_served: bool) -> Finding {
    let port = address.port();
    let (state, current, command) = match propylon_sys::check_free(address) {
        _ if port == 0 => (State::Good, "any free port".to_string(), String::new()),
        Ok(()) => (State::Good, "free".to_string(), String::new()),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let first = machine.sysctl_number("net.ipv4.ip_unprivileged_port_start").unwrap_or(1024);
            let command = format!(
                "start as root with process.user, or sysctl -w net.ipv4.ip_unprivileged_port_start={port} (now {first}), \
                 or setcap cap_net_bind_service=+ep on the program"
            );
            (State::Bad, "not allowed".to_string(), command)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            taken(&holders::of(&machine.proc, port), port, is_served)
        }
        Err(error) => (State::Bad, error.to_string(), "use an address of this machine (ip address shows them)".into()),
    };
    Finding::new(what, state, format!("{address}: {current}"), "free").fix(command)
}

/// An address that somebody has: an engine at work hands it over to its successor, anybody else keeps it.
fn taken(holders: &[Holder], port: u16, is_served: bool) -> (State, String, String) {
    let fine = "an engine that runs already is fine: propylon upgrade has it hand over";
    let names = holders.iter().map(Holder::to_string).collect::<Vec<String>>().join(", ");
    match holders {
        [] => {
            let state = if is_served { State::Advice } else { State::Bad };
            (state, "taken".into(), format!("ss -ltnp 'sport = :{port}' as root shows who has it; {fine}"))
        }
        holders if holders.iter().any(Holder::is_engine) => {
            (State::Advice, format!("taken by {names}"), format!("stop it, or use another port; {fine}"))
        }
        _ => (State::Bad, format!("taken by {names}"), "stop it, or use another port".into()),
    }
}

fn network(machine: &Machine, config: Option<&Config>) -> Vec<Finding> {
    let sysctl = |name: &'static str, wanted: u64| {
        Finding::at_least(name, machine.sysctl_number(name), wanted, State::Advice)
            .fix(format!("sysctl -w {name}={wanted}"))
    };
    // The backlog that was asked for is cut to somaxconn without a word.
    let mut findings =
        vec![sysctl("net.core.somaxconn", BACKLOG_WANTED), sysctl("net.ipv4.tcp_max_syn_backlog", BACKLOG_WANTED)];
    findings.push(sysctl("net.ipv4.tcp_syncookies", 1));
    let range = machine.sysctl("net.ipv4.ip_local_port_range").and_then(|text| {
        let (first, last) = text.split_once(char::is_whitespace)?;
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some((last + 1).saturating_sub(first))
    });
    findings.push(
        Finding::at_least("net.ipv4.ip_local_port_range (ports)", range, PORTS_WANTED, State::Advice)
            .fix(format!("sysctl -w net.ipv4.ip_local_port_range=\"{LOCAL_PORTS_WANTED}\"")),
    );
    findings.extend(reserved_ports(machine, config));
    for (name, what) in
        [("net.ipv4.tcp_rmem", "net.ipv4.tcp_rmem (most)"), ("net.ipv4.tcp_wmem", "net.ipv4.tcp_wmem (most)")]
    {
        let most = machine.sysctl(name).and_then(|text| text.split_ascii_whitespace().nth(2)?.parse().ok());
        findings.push(
            Finding::at_least(what, most, SOCKET_BUFFER_WANTED, State::Advice)
                .fix(format!("sysctl -w {name}=\"4096 131072 {SOCKET_BUFFER_WANTED}\"")),
        );
    }
    // Keep-alive connections would start again from a small window after every pause.
    if let Some(after_idle) = machine.sysctl_number("net.ipv4.tcp_slow_start_after_idle") {
        let state = if after_idle == 0 { State::Good } else { State::Advice };
        findings.push(
            Finding::new("net.ipv4.tcp_slow_start_after_idle", state, after_idle.to_string(), "0")
                .fix("sysctl -w net.ipv4.tcp_slow_start_after_idle=0"),
        );
    }
    findings
}

/// Ports of listeners that the kernel may give to a connection while nobody listens there, as during a restart.
fn reserved_ports(machine: &Machine, config: Option<&Config>) -> Option<Finding> {
    const NAME: &str = "net.ipv4.ip_local_reserved_ports";
    let range = machine.sysctl("net.ipv4.ip_local_port_range")?;
    let (first, last) = range.split_once(char::is_whitespace)?;
    let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let reserved = machine.sysctl(NAME).unwrap_or_default();
    let is_reserved = |port: u16| {
        reserved.split(',').any(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            matches!((first.trim().parse::<u16>(), last.trim().parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&port))
        })
    };
    let listeners = config?.listeners.iter().flat_map(|listener| &listener.bind).map(|bind| bind.address.port());
    let admin = config?.admin.as_ref().and_then(|admin| admin.bind.address()).map(|address| address.port());
    let mut open: Vec<u16> =
        listeners.chain(admin).filter(|port| *port != 0 && (first..=last).contains(port)).collect();
    open.sort_unstable();
    open.dedup();
    open.retain(|port| !is_reserved(*port));
    if open.is_empty() {
        return None;
    }
    let list = open.iter().map(u16::to_string).collect::<Vec<String>>().join(",");
    let all = if reserved.is_empty() { list.clone() } else { format!("{reserved},{list}") };
    let current = format!("{list} may be taken by connections");
    Some(Finding::new(NAME, State::Advice, current, "ports of listeners").fix(format!("{SYSCTL}{NAME}={all}")))
}

fn memory(machine: &Machine) -> Vec<Finding> {
    let locked = machine.limit("Max locked memory");
    let mut findings = vec![
        Finding::at_least("locked memory (hard limit, bytes)", locked, LOCKED_BYTES_WANTED, State::Advice)
            .fix("LimitMEMLOCK=infinity in the systemd unit: keys made ahead stay out of swap"),
    ];
    let huge = Machine::text(machine.sys.join("kernel/mm/transparent_hugepage/enabled"));
    let chosen = huge.as_deref().and_then(|text| text.split('[').nth(1)?.split(']').next());
    if let Some(chosen) = chosen {
        // With "always", memory per connection is counted and kept in pieces of 2 MiB.
        let state = if chosen == "always" { State::Advice } else { State::Good };
        findings.push(
            Finding::new("transparent huge pages", state, chosen, "madvise or never")
                .fix("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        );
    }
    let kib = |name: &str| machine.fields("meminfo", name)?.first()?.parse::<u64>().ok();
    if let (Some(total), Some(available)) = (kib("MemTotal:"), kib("MemAvailable:")) {
        let state = if available * 10 >= total { State::Good } else { State::Advice };
        let current = format!("{} of {} MiB", available / 1024, total / 1024);
        findings.push(
            Finding::new("memory available", state, current, "at least a tenth")
                .fix("free -m; stop what is not needed"),
        );
    }
    findings
}

fn processor(machine: &Machine, config: Option<&Config>) -> Vec<Finding> {
    let cores = propylon_sys::allowed_cores().len();
    let workers = match config.map(|config| config.process.workers) {
        Some(Workers::Count(count)) => usize::from(count.get()),
        _ => cores,
    };
    let state = if workers <= cores { State::Good } else { State::Advice };
    let mut findings = vec![
        Finding::new("cores for workers", state, format!("{cores} for {workers}"), "one each")
            .fix(format!("workers = \"auto\" or at most {cores} in [process]")),
    ];
    findings.extend(instructions(machine));
    let batching = Batching::start();
    for kernel in Kernel::ALL {
        let (state, current) = match batching.state(kernel) {
            KernelState::Used => (State::Good, "tested, gives the known answers"),
            KernelState::TurnedOff => (State::Advice, "turned off"),
            KernelState::NoInstructions => (State::Advice, "no AVX-512 IFMA"),
            KernelState::Failed => (State::Bad, "gives wrong answers"),
        };
        let fix = match state {
            State::Bad => {
                "have the processor and the memory of this machine checked; [process] batch = \"off\" until then"
            }
            _ => {
                "handshakes are done one by one, which costs more; a processor of Intel Ice Lake or AMD Zen 4 and later has it"
            }
        };
        let what = match kernel {
            Kernel::Rsa => "batches of RSA",
            Kernel::X25519 => "batches of X25519",
            Kernel::P256 => "batches of P-256",
        };
        findings.push(Finding::new(what, state, current, "tested").fix(fix));
    }
    let governor = Machine::text(machine.sys.join("devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    if let Some(governor) = governor {
        let state = if governor == "performance" { State::Good } else { State::Advice };
        findings.push(
            Finding::new("frequency governor", state, governor, "performance")
                .fix("cpupower frequency-set -g performance (or leave it, if power counts more)"),
        );
    }
    findings
}

/// CPU instructions for AES-GCM records and for batches.
fn instructions(machine: &Machine) -> Vec<Finding> {
    let flags = machine.fields("cpuinfo", "flags").or_else(|| machine.fields("cpuinfo", "Features"));
    let Some(flags) = flags else {
        return vec![Finding::new("processor's instructions", State::Unknown, "unknown", "AES, AVX-512 IFMA")];
    };
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let one = |what: &'static str, names: &[&str], fix: &str| {
        let missing: Vec<&str> = names.iter().copied().filter(|name| !has(name)).collect();
        let state = if missing.is_empty() { State::Good } else { State::Advice };
        let current = if missing.is_empty() { "there".into() } else { format!("without {}", missing.join(", ")) };
        Finding::new(what, state, current, names.join(", ")).fix(fix)
    };
    let bare = "a processor (or a virtual machine that passes on its host's) with them";
    match cfg!(target_arch = "x86_64") {
        true => vec![
            one("AES in hardware", &["aes", "pclmulqdq"], bare),
            one("AES, several blocks at once", &["vaes", "vpclmulqdq"], bare),
            one("AVX-512 IFMA", &["avx512f", "avx512ifma", "bmi2"], bare),
        ],
        false => vec![one("AES in hardware", &["aes", "pmull"], bare)],
    }
}

/// Certificates, tickets and OCSP responses are good or not by the clock.
fn clock(machine: &Machine) -> Finding {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let source = Machine::text(machine.sys.join("devices/system/clocksource/clocksource0/current_clocksource"));
    let source = source.unwrap_or_else(|| "unknown".into());
    if !(CLOCK_FROM..CLOCK_UNTIL).contains(&now) {
        let current = format!("{now} seconds since 1970");
        return Finding::new("clock", State::Bad, current, "the time")
            .fix("timedatectl set-ntp true, or chronyc makestep");
    }
    match propylon_sys::is_clock_synchronised() {
        Some(true) => Finding::new("clock", State::Good, format!("synchronised, from {source}"), "synchronised"),
        Some(false) => Finding::new("clock", State::Advice, format!("not synchronised, from {source}"), "synchronised")
            .fix("timedatectl set-ntp true, or systemctl start chrony (a container's host may see to it)"),
        None => Finding::new("clock", State::Unknown, format!("from {source}"), "synchronised"),
    }
}

fn to_text(findings: &[Finding]) -> String {
    let mut out = String::new();
    let width =
        |text: fn(&Finding) -> &str| findings.iter().map(|finding| text(finding).chars().count()).max().unwrap_or(0);
    let (what, current) = (width(|finding| finding.what), width(|finding| &finding.current));
    for finding in findings {
        let state = finding.state.name();
        out +=
            &format!("{state:<8} {:<what$}  {:<current$}  wanted: {}\n", finding.what, finding.current, finding.wanted);
        if !finding.command.is_empty() {
            if !finding.why.is_empty() {
                out += &format!("{:<8} why: {}\n", "", finding.why);
            }
            out += &format!("{:<8} do: {}\n", "", indented(&finding.command));
        }
    }
    out += &kept_settings(findings);
    let count = |state: State| findings.iter().filter(|finding| finding.state == state).count();
    out + &format!(
        "{} good, {} could be better, {} bad, {} unknown\n",
        count(State::Good),
        count(State::Advice),
        count(State::Bad),
        count(State::Unknown)
    )
}

/// Lines of a configuration below the first one, as they are to be copied but for their indentation.
fn indented(command: &str) -> String {
    let mut lines = command.lines();
    let first = lines.next().unwrap_or("").to_owned();
    let one = |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("\n{:<8} {line}", "") };
    lines.fold(first, |text, line| text + &one(line))
}

/// Settings made with sysctl(8) are gone after the next boot, unless they are in a file.
fn kept_settings(findings: &[Finding]) -> String {
    let lines = findings.iter().filter_map(|finding| finding.command.strip_prefix(SYSCTL)?.split_once('='));
    let lines: Vec<String> = lines.map(|(name, value)| format!("  {name} = {}\n", value.trim_matches('"'))).collect();
    match lines.is_empty() {
        true => String::new(),
        false => format!(
            "to keep these over a restart, put into {SYSCTL_FILE} (sysctl --system reads it):\n{}",
            lines.concat()
        ),
    }
}

fn to_json(finding: &Finding) -> Value {
    json!({
        "what": finding.what,
        "state": finding.state.name(),
        "current": finding.current,
        "wanted": finding.wanted,
        "why": finding.why,
        "command": finding.command,
    })
}

#[cfg(test)]
mod tests;
