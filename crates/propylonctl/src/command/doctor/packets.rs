//! Packets on their way between NICs and cores: queues, interrupts, and what spreads packets in software.
//!
//! Everything is read from sysfs and `/proc`. A container sees NICs without a device, of which nothing is said: its
//! host is the machine to look at.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::finding::{Finding, State};
use super::{Machine, nic_settings};

/// NICs that are looked at; a machine with more of them has a plan of its own.
const NICS_MAX: usize = 16;
/// Commands that one finding prints, a line for each queue or interrupt.
const LINES_MAX: usize = 64;
/// Processes whose names are looked at.
const PROCESSES_MAX: usize = 100_000;

const WHY_QUEUES: &str = "packets of one queue are handled by one core, whatever the others do";
const WHY_RPS: &str = "with fewer queues than cores, RPS has the others do a part of the packets' work";
const WHY_XPS: &str = "a core that sends by a queue of its own waits for no other core's lock";
const WHY_INTERRUPTS: &str = "the core that gets all interrupts is full long before the others, and its worker starves";
const WHY_BALANCE: &str = "without it interrupts stay where the kernel put them at the start";

/// A NIC with a device of its own behind it.
struct Nic {
    name: String,
    folder: PathBuf,
}

impl Nic {
    /// NICs that are up, by name.
    fn all(machine: &Machine) -> Vec<Nic> {
        let entries = fs::read_dir(machine.sys.join("class/net")).into_iter().flatten().flatten();
        let nic = |folder: PathBuf| Some(Nic { name: folder.file_name()?.to_str()?.to_owned(), folder });
        let is_up = |nic: &Nic| {
            let state = Machine::text(nic.folder.join("operstate"));
            nic.folder.join("device").exists() && state.is_none_or(|state| state != "down")
        };
        let mut nics: Vec<Nic> = entries.filter_map(|entry| nic(entry.path())).filter(is_up).collect();
        nics.sort_by(|one, other| one.name.cmp(&other.name));
        nics.truncate(NICS_MAX);
        nics
    }

    /// Folders of its queues that begin with `rx-` or `tx-`, in their order.
    fn queues(&self, kind: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.join("queues")).into_iter().flatten().flatten();
        let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix(kind)?.parse::<usize>().ok();
        let mut queues: Vec<(usize, PathBuf)> =
            entries.map(|entry| entry.path()).filter_map(|path| Some((number(&path)?, path))).collect();
        queues.sort();
        queues.into_iter().map(|(_, path)| path).collect()
    }

    /// Interrupts of its queues.
    fn interrupts(&self, machine: &Machine) -> Vec<u32> {
        let list = |path: &str| {
            let entries = fs::read_dir(self.folder.join(path)).ok()?;
            let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            Some(numbers.collect::<BTreeSet<u32>>())
        };
        // A virtio device has them at the PCI device that it is of.
        let all = list("device/msi_irqs").or_else(|| list("device/../msi_irqs")).unwrap_or_default();
        let table = Machine::text(machine.proc.join("interrupts")).unwrap_or_default();
        let is_configuration = |number: u32| {
            let mut lines = table.lines().filter(|line| line.trim_start().starts_with(&format!("{number}:")));
            lines.any(|line| line.ends_with("-config"))
        };
        all.into_iter().filter(|number| !is_configuration(*number)).collect()
    }
}

/// Findings about all NICs of a machine.
pub fn findings(machine: &Machine) -> Vec<Finding> {
    let (cores, nics) = (machine.cores(), Nic::all(machine));
    if nics.is_empty() {
        let current = "no NIC's device is to be seen (in a container: look at its host)";
        return vec![Finding::new("NICs", State::Unknown, current, "a queue for each core").because(WHY_QUEUES)];
    }
    let balance = is_running(machine, "irqbalance");
    let mut findings: Vec<Finding> = Vec::new();
    for nic in &nics {
        let settings = (machine.nic_settings)(&nic.name);
        findings.extend(queues(nic, cores, settings.queues_max));
        findings.extend(steering(nic, cores));
        findings.extend(interrupts(machine, nic, cores, balance));
        findings.extend(nic_settings::findings(&nic.name, &settings));
    }
    findings
}

/// Whether it has a queue for each core. `most`: as many as the device can have, where it tells.
fn queues(nic: &Nic, cores: usize, most: Option<u32>) -> Option<Finding> {
    let (name, receive, send) = (&nic.name, nic.queues("rx-").len(), nic.queues("tx-").len());
    if receive == 0 {
        return None;
    }
    let wanted = most.map_or(cores, |most| cores.min(most as usize)).max(1);
    let state = if receive.min(send) >= wanted { State::Good } else { State::Advice };
    let of_device = most.map(|most| format!(", of {most} that it can have")).unwrap_or_default();
    let current = format!("{name}: {receive} to receive, {send} to send{of_device}");
    let fix = format!(
        "ethtool -L {name} combined {wanted} (ethtool -l {name} shows how many it can have; a virtual machine's are its host's to give)"
    );
    Some(Finding::new("NIC's queues", state, current, format!("{wanted} each")).because(WHY_QUEUES).fix(fix))
}

/// Cores that are given packets by software: RPS where there are too few queues to receive, XPS where there are several
/// to send.
fn steering(nic: &Nic, cores: usize) -> Vec<Finding> {
    let masks = |queues: &[PathBuf], file: &str| -> Option<Vec<String>> {
        queues.iter().map(|queue| Machine::text(queue.join(file))).collect()
    };
    let is_empty = |mask: &String| mask.chars().all(|digit| matches!(digit, '0' | ','));
    let mut findings = Vec::new();
    let (receive, send) = (nic.queues("rx-"), nic.queues("tx-"));
    if let Some(all) = masks(&receive, "rps_cpus").filter(|all| !all.is_empty() && all.len() < cores) {
        let idle = all.iter().filter(|mask| is_empty(mask)).count();
        let state = if idle == 0 { State::Good } else { State::Advice };
        let current = format!("{}: off for {idle} of {} queues", nic.name, all.len());
        let lines = receive.iter().map(|queue| format!("echo {} > {}/rps_cpus", mask(0..cores), queue.display()));
        findings.push(
            Finding::new("NIC's RPS", state, current, "all cores").because(WHY_RPS).fix(lines_of(lines.collect())),
        );
    }
    if let Some(all) = masks(&send, "xps_cpus").filter(|all| all.len() > 1 && cores > 1) {
        let idle = all.iter().filter(|mask| is_empty(mask)).count();
        let state = if idle == 0 { State::Good } else { State::Advice };
        let current = format!("{}: off for {idle} of {} queues", nic.name, all.len());
        let line = |(index, queue): (usize, &PathBuf)| {
            // A queue beyond the last core shares one.
            let first = index % cores;
            format!("echo {} > {}/xps_cpus", mask((first..cores).step_by(send.len())), queue.display())
        };
        let lines = send.iter().enumerate().map(line).collect();
        findings.push(
            Finding::new("NIC's XPS", state, current, "its own cores each").because(WHY_XPS).fix(lines_of(lines)),
        );
    }
    findings
}

/// Cores that the interrupts of its queues go to, and whether somebody spreads them.
fn interrupts(machine: &Machine, nic: &Nic, cores: usize, is_balanced: bool) -> Vec<Finding> {
    let numbers = nic.interrupts(machine);
    if numbers.len() < 2 || cores < 2 {
        return Vec::new();
    }
    let of = |number: &u32| {
        let folder = machine.proc.join(format!("irq/{number}"));
        let effective = Machine::text(folder.join("effective_affinity_list")).filter(|list| !list.is_empty());
        list_of_cores(&effective.or_else(|| Machine::text(folder.join("smp_affinity_list")))?)
    };
    let name = &nic.name;
    let Some(affinities) = numbers.iter().map(of).collect::<Option<Vec<BTreeSet<usize>>>>() else {
        let current = format!("{name}: {} interrupts, of unknown cores", numbers.len());
        return vec![
            Finding::new("NIC's interrupts", State::Unknown, current, "several cores").because(WHY_INTERRUPTS),
        ];
    };
    let union: BTreeSet<usize> = affinities.into_iter().flatten().collect();
    let is_spread = union.len() > 1;
    let current = match union.first() {
        Some(core) if !is_spread => format!("{name}: all {} at core {core}", numbers.len()),
        _ => format!("{name}: {} at {} cores", numbers.len(), union.len()),
    };
    let line =
        |(index, number): (usize, &u32)| format!("echo {} > /proc/irq/{number}/smp_affinity_list", index % cores);
    let state = if is_spread { State::Good } else { State::Advice };
    let by_hand = lines_of(numbers.iter().enumerate().map(line).collect());
    let spread = Finding::new("NIC's interrupts", state, current, "several cores").because(WHY_INTERRUPTS).fix(by_hand);
    let current = match (is_balanced, is_spread) {
        (true, _) => format!("{name}: it runs"),
        (false, true) => format!("{name}: it does not run, and need not: interrupts are spread"),
        (false, false) => format!("{name}: it does not run"),
    };
    let state = if is_balanced || is_spread { State::Good } else { State::Advice };
    let balance = Finding::new("irqbalance", state, current, "it runs, or interrupts are spread by hand");
    vec![spread, balance.because(WHY_BALANCE).fix("apt-get install irqbalance; systemctl enable --now irqbalance")]
}

fn lines_of(mut lines: Vec<String>) -> String {
    let more = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    lines.extend((more > 0).then(|| format!("and so on for {more} more")));
    lines.join("\n")
}

/// Cores as the kernel's masks write them: `f`, `1,00000000`.
fn mask(cores: impl Iterator<Item = usize>) -> String {
    let mut words = vec![0_u32];
    for core in cores {
        words.resize(words.len().max(core / 32 + 1), 0);
        words[core / 32] |= 1 << (core % 32);
    }
    let (last, others) = words.split_last().expect("there is one from the beginning");
    others.iter().rev().fold(format!("{last:x}"), |text, word| format!("{text},{word:08x}"))
}

/// Cores of a list such as `0-3,8`. `None`: this is none.
pub fn list_of_cores(list: &str) -> Option<BTreeSet<usize>> {
    let mut cores = BTreeSet::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?.min(1 << 16));
    }
    Some(cores)
}

/// Whether a process of this name runs.
fn is_running(machine: &Machine, name: &str) -> bool {
    let entries = fs::read_dir(&machine.proc).into_iter().flatten().flatten().take(PROCESSES_MAX);
    let mut processes =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()));
    processes.any(|entry| Machine::text(entry.path().join("comm")).is_some_and(|comm| comm == name))
}

#[cfg(test)]
mod tests {
    use super::super::nic_settings::NicSettings;
    use super::super::tests::Folder;
    use super::*;

    /// A machine of four cores, whose NIC has these queues and interrupts.
    fn machine(queues: usize, interrupts: &[(u32, &str)], more: &[(&str, &str)]) -> Folder {
        let mut files = vec![
            ("sys/devices/system/cpu/online".to_owned(), "0-3\n".to_owned()),
            ("sys/class/net/eth0/operstate".to_owned(), "up\n".to_owned()),
            ("sys/class/net/eth0/device/vendor".to_owned(), "0x8086\n".to_owned()),
            ("sys/class/net/veth1/operstate".to_owned(), "up\n".to_owned()),
            ("sys/class/net/eth9/operstate".to_owned(), "down\n".to_owned()),
            ("sys/class/net/eth9/device/vendor".to_owned(), "0x8086\n".to_owned()),
        ];
        for queue in 0..queues {
            files.push((format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus"), "0\n".to_owned()));
            files.push((format!("sys/class/net/eth0/queues/tx-{queue}/xps_cpus"), "0\n".to_owned()));
        }
        for (number, cores) in interrupts {
            files.push((format!("sys/class/net/eth0/device/msi_irqs/{number}"), "msix\n".to_owned()));
            files.push((format!("proc/irq/{number}/effective_affinity_list"), format!("{cores}\n")));
        }
        files.extend(more.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        Folder::with(&files)
    }

    fn found(folder: &Folder) -> Vec<Finding> {
        findings(&folder.machine())
    }

    fn of<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("nothing of {what}"))
    }

    #[test]
    fn one_queue_for_four_cores_is_told_with_what_spreads_packets_then() {
        let folder = machine(1, &[], &[]);
        let findings = found(&folder);
        let queues = of(&findings, "NIC's queues");
        assert_eq!((queues.state, queues.current.as_str()), (State::Advice, "eth0: 1 to receive, 1 to send"));
        assert!(queues.command.starts_with("ethtool -L eth0 combined 4 "), "{}", queues.command);
        let steering = of(&findings, "NIC's RPS");
        assert!(steering.command.starts_with("echo f > ") && steering.command.ends_with("/rx-0/rps_cpus"));
        assert!(findings.iter().all(|finding| !finding.why.is_empty()));
        // Neither a NIC that is down nor one without a device is looked at, and one queue needs no XPS.
        assert_eq!(findings.len(), 2);
    }

    #[test]
    fn a_device_that_can_have_no_more_queues_is_not_asked_for_them() {
        let folder = machine(2, &[], &[]);
        let machine = Machine {
            nic_settings: |_| NicSettings { queues_max: Some(2), ..NicSettings::default() },
            ..folder.machine()
        };
        assert_eq!(of(&findings(&machine), "NIC's queues").state, State::Good);
    }

    #[test]
    fn interrupts_of_one_core_are_told_with_the_command_for_each_and_spread_ones_are_fine() {
        let table = ("proc/interrupts", "  CPU0 CPU1\n 24: 0 0 PCI-MSIX 0-edge virtio2-config\n");
        let folder = machine(4, &[(24, "1"), (25, "0"), (26, "0")], &[table]);
        let findings = found(&folder);
        let interrupts = of(&findings, "NIC's interrupts");
        assert_eq!((interrupts.state, interrupts.current.as_str()), (State::Advice, "eth0: all 2 at core 0"));
        let lines = "echo 0 > /proc/irq/25/smp_affinity_list\necho 1 > /proc/irq/26/smp_affinity_list";
        assert_eq!(interrupts.command, lines);
        assert_eq!(of(&findings, "irqbalance").state, State::Advice);
        let folder = machine(4, &[(25, "0"), (26, "3")], &[]);
        let findings = found(&folder);
        assert_eq!(["NIC's interrupts", "irqbalance"].map(|what| of(&findings, what).state), [State::Good; 2]);
        // Queues that send have cores of their own: the second one's is the second.
        let steering = of(&findings, "NIC's XPS");
        assert_eq!(steering.state, State::Advice);
        assert!(steering.command.lines().nth(1).is_some_and(|line| line.starts_with("echo 2 > ")));
        let running = machine(4, &[(25, "0"), (26, "0")], &[("proc/77/comm", "irqbalance\n")]);
        assert_eq!(of(&found(&running), "irqbalance").state, State::Good);
    }

    #[test]
    fn a_container_that_shows_no_device_is_unknown_and_no_complaint() {
        let folder = Folder::with(&[("sys/class/net/eth0/operstate", "up\n")]);
        for folder in [folder, Folder::with(&[])] {
            let findings = found(&folder);
            assert!(findings.iter().all(|finding| finding.state == State::Unknown && finding.command.is_empty()));
        }
    }

    #[test]
    fn masks_and_lists_of_cores_are_the_kernels() {
        assert_eq!([mask(0..2), mask(0..33), mask([64].into_iter())], ["3", "1,ffffffff", "1,00000000,00000000"]);
        assert_eq!(list_of_cores("0-2,5\n"), Some([0, 1, 2, 5].into()));
        assert_eq!(list_of_cores("no"), None);
    }
}
