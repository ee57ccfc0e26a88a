//! The second hop, `cluster.flows`: whether `propylon-flows` is there and at work, and whether links leave it room.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use propylon_cluster::{FLOWS_STATUS, FLOWS_TABLE, FlowsStatus, NoStatus, flows_status};
use propylon_config::Cluster;

use super::super::Machine;
use super::super::finding::{FILES_NAMED_MAX, Finding, State};

const PROGRAM: &str = "propylon-flows";
/// A client's packet of the usual length, and what a packet between engines has around it (IPv6 and UDP).
const CLIENT_MTU: u64 = 1500;
const ROOM_BYTES: u64 = 48;

const INSTALLED: &str = "propylon-flows";
const AT_WORK: &str = "propylon-flows: at work";
const MTU: &str = "links between engines: MTU";

pub fn findings(machine: &Machine, cluster: &Cluster) -> Vec<Finding> {
    if cluster.flows.is_none() {
        return Vec::new();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let folders: Vec<PathBuf> = beside.into_iter().chain(std::env::split_paths(&path)).collect();
    let file = cluster.runtime.path.join(FLOWS_STATUS);
    let mut findings = vec![installed(&folders)];
    findings.extend(at_work(&file, flows_status(&file, SystemTime::now())));
    findings.extend(room(machine, cluster.address));
    findings
}

fn installed(folders: &[PathBuf]) -> Finding {
    const WANTED: &str = "installed, and a service of its own";
    let found = folders.iter().map(|folder| folder.join(PROGRAM)).find(|program| program.is_file());
    match found {
        Some(program) => Finding::new(INSTALLED, State::Good, program.display().to_string(), WANTED),
        None => Finding::new(INSTALLED, State::Bad, "neither in PATH nor beside this program", WANTED).fix(
            "install propylon-flows and run it as a service: connections break when engines come and go without it",
        ),
    }
}

/// The status by the program itself.
fn at_work(file: &Path, status: Result<FlowsStatus, NoStatus>) -> Vec<Finding> {
    const WANTED: &str = "a status of the last seconds, without problems";
    let shown = file.display();
    let fix = || {
        let table = file.with_file_name(FLOWS_TABLE);
        format!("{PROGRAM} run --interface IF --table {} --status {shown}", table.display())
    };
    let advice = |current: String| vec![Finding::new(AT_WORK, State::Advice, current, WANTED).fix(fix())];
    let status = match status {
        Ok(status) => status,
        Err(NoStatus::Unreadable(error)) => return advice(format!("{shown}: {error}")),
        Err(NoStatus::Damaged) => return advice(format!("{shown} is no status of {PROGRAM}")),
        Err(NoStatus::Old(age)) => {
            return advice(format!("away for {} s: packets go by an old table", age.as_secs()));
        }
    };
    let problems: Vec<Finding> = status
        .problems
        .iter()
        .take(FILES_NAMED_MAX)
        .map(|problem| {
            let problem: String = problem.chars().filter(|c| !c.is_control()).collect();
            Finding::new(AT_WORK, State::Advice, problem, WANTED).fix(format!("{PROGRAM} check --interface IF"))
        })
        .collect();
    match problems.is_empty() {
        true => {
            let current = format!("table {} in the kernel", status.generation);
            vec![Finding::new(AT_WORK, State::Good, current, WANTED)]
        }
        false => problems,
    }
}

/// Whether a client's packet fits with what engines put around it.
fn room(machine: &Machine, own: Option<IpAddr>) -> Option<Finding> {
    let wanted =
        format!("at least {}: clients' packets of {CLIENT_MTU}, and {ROOM_BYTES} around them", CLIENT_MTU + ROOM_BYTES);
    let own = match own {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    };
    let interface = interface(&Machine::text(machine.proc.join("net/route"))?, own)?;
    let mtu = Machine::text(machine.sys.join("class/net").join(&interface).join("mtu"))?;
    let mtu: u64 = mtu.parse().ok()?;
    let state = if mtu >= CLIENT_MTU + ROOM_BYTES { State::Good } else { State::Advice };
    let finding = Finding::new(MTU, state, format!("{mtu} at {interface}"), wanted);
    Some(finding.fix(format!(
        "ip link set dev {interface} mtu {} where the network takes it; else clients are told to send smaller packets \
         ({PROGRAM} check --interface {interface})",
        CLIENT_MTU + ROOM_BYTES
    )))
}

/// The interface at whose network this address is, or that of the default route, by `/proc/net/route`.
fn interface(routes: &str, own: Option<Ipv4Addr>) -> Option<String> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // The kernel prints numbers of the network's order as the machine has them in memory.
        let number = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok().map(u32::from_be);
        let (network, mask) = (number(1)?, number(7)?);
        Some((fields.first()?.to_string(), network, mask))
    };
    let routes: Vec<(String, u32, u32)> = routes.lines().skip(1).filter_map(route).collect();
    let own = own.map_or(0, u32::from);
    let fitting = routes.into_iter().filter(|(_, network, mask)| own & mask == *network);
    fitting.max_by_key(|(_, _, mask)| mask.count_ones()).map(|(interface, ..)| interface)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[cfg(target_endian = "little")]
    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth1\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";

    #[cfg(target_endian = "little")]
    #[test]
    fn the_link_between_engines_is_the_one_with_this_engines_address() {
        let at = |own: Option<[u8; 4]>| interface(ROUTES, own.map(Ipv4Addr::from));
        assert_eq!(at(Some([10, 0, 2, 7])).as_deref(), Some("eth1"));
        assert_eq!(at(Some([10, 0, 0, 7])).as_deref(), Some("eth0"));
        assert_eq!(at(None).as_deref(), Some("eth0"));
        assert!(interface("Iface\n", None).is_none() && interface("Iface\neth0 x\n\neth1\n", None).is_none());
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_link_without_room_for_the_second_hop_is_told_with_what_is_needed() {
        use super::super::super::tests::Folder;

        let of = |mtu: &str| {
            let folder = Folder::with(&[("proc/net/route", ROUTES), ("sys/class/net/eth1/mtu", mtu)]);
            room(&folder.machine(), Some(IpAddr::from([10, 0, 2, 7]))).expect("it can be told")
        };
        assert_eq!([of("1548\n").state, of("9000\n").state], [State::Good; 2]);
        let small = of("1547\n");
        assert!(small.state == State::Advice && small.command.contains("dev eth1 mtu 1548"), "{}", small.command);
    }

    #[test]
    fn a_status_that_is_old_or_none_or_full_of_problems_is_told() {
        let file = Path::new("/run/propylon/cluster/flows.status");
        let of = |status| at_work(file, status).remove(0);
        let good = of(Ok(FlowsStatus { generation: 7, ..FlowsStatus::default() }));
        assert!(good.state == State::Good && good.current.contains('7'), "{}", good.current);
        let old = of(Err(NoStatus::Old(Duration::from_millis(6_900))));
        assert!(old.state == State::Advice && old.current.contains("away for 6 s"), "{}", old.current);
        assert!(
            old.command
                .contains("--table /run/propylon/cluster/flows.table --status /run/propylon/cluster/flows.status")
        );
        assert!(of(Err(NoStatus::Damaged)).current.contains("no status"));
        let problem = of(Ok(FlowsStatus { problems: vec!["no route to e2\n".into()], ..FlowsStatus::default() }));
        assert_eq!((problem.state, problem.current.as_str()), (State::Advice, "no route to e2"));
        let none = of(Err(NoStatus::Unreadable(std::io::ErrorKind::NotFound.into())));
        assert!(none.state == State::Advice && none.current.starts_with("/run/propylon"), "{}", none.current);
    }

    #[test]
    fn a_machine_without_the_program_is_bad() {
        let here = std::env::current_exe().unwrap();
        assert_eq!(installed(&[here.parent().unwrap().join("nothing")]).state, State::Bad);
    }
}
