//! `propylon-flows check`: whether this machine can do it, and what its operator has to do.

use std::fs;
use std::path::Path;

use crate::loader::Program;
use crate::rights;
use crate::run;

/// More that a packet needs between engines: outer IP and UDP.
pub const ROOM_IPV4_BYTES: u32 = 28;
pub const ROOM_IPV6_BYTES: u32 = 48;
/// The length of a client's packet, unless somebody sets it otherwise.
const CLIENT_MTU: u32 = 1500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    Good,
    Warning,
    Fault,
}

/// One line of the answer.
pub struct Finding {
    pub grade: Grade,
    pub text: String,
}

/// Everything that can be said before a start.
pub fn findings(interfaces: &[String], pins: &Path) -> Vec<Finding> {
    let mut findings = vec![rights_finding()];
    findings.push(match Program::load(None) {
        Ok(_) => good("the kernel takes the program"),
        Err(error) => fault(format!("{error}; Linux 5.10 or later with CONFIG_BPF_SYSCALL is needed")),
    });
    findings.push(match run::hook_of_kernel() {
        crate::loader::Hook::Tcx => good("attaching by a link of its own (TCX)"),
        crate::loader::Hook::Clsact => good("attaching by clsact, since the kernel is older than 6.6"),
    });
    findings.push(pins_finding(pins));
    for name in interfaces {
        match run::find(name) {
            Ok(interface) => {
                findings.extend([mtu_finding(name, interface.mtu), filter_finding(name)]);
                findings.extend(run::taken(pins, name).map(fault));
            }
            Err(why) => findings.push(fault(why)),
        }
    }
    findings
}

fn rights_finding() -> Finding {
    match rights::missing() {
        Ok(missing) if missing.is_empty() && rights::has_useful() => {
            good("CAP_BPF and CAP_NET_ADMIN are there, and CAP_PERFMON for the start")
        }
        Ok(missing) if missing.is_empty() => warning(format!(
            "CAP_BPF and CAP_NET_ADMIN are there; without {} at its start the program takes twice as long",
            rights::USEFUL.1
        )),
        Ok(missing) => fault(format!("{} missing: start it as root, or give it these", missing.join(" and "))),
        Err(error) => fault(format!("cannot ask for rights: {error}")),
    }
}

fn pins_finding(pins: &Path) -> Finding {
    let there = pins.ancestors().find(|folder| folder.exists()).unwrap_or(pins);
    if run::is_bpffs(there) {
        return good(format!("{} is on a bpffs", pins.display()));
    }
    warning(format!(
        "{} is on no bpffs yet: `run` mounts one below /sys/fs/bpf if it may (CAP_SYS_ADMIN)",
        pins.display()
    ))
}

fn mtu_finding(name: &str, mtu: u32) -> Finding {
    if mtu >= CLIENT_MTU + ROOM_IPV6_BYTES {
        return good(format!("{name}: an MTU of {mtu} leaves room for packets between engines"));
    }
    warning(format!(
        "{name}: an MTU of {mtu} is too small to forward packets of {CLIENT_MTU} bytes, which need \
         {ROOM_IPV4_BYTES} more between engines ({ROOM_IPV6_BYTES} by IPv6); clients of forwarded connections are told \
         to send smaller ones, which fails where ICMP is filtered. Raise the MTU of the network between engines to {}, \
         or clamp the MSS to {} (IPv6: {})",
        CLIENT_MTU + ROOM_IPV6_BYTES,
        mtu.saturating_sub(ROOM_IPV6_BYTES + 40),
        mtu.saturating_sub(ROOM_IPV6_BYTES + 60),
    ))
}

/// Whether answers of another way are taken for forgeries.
fn filter_finding(name: &str) -> Finding {
    let strict = ["all", name].iter().any(|which| {
        fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{which}/rp_filter")).is_ok_and(|value| value.trim() == "1")
    });
    if strict {
        return warning(format!(
            "{name}: rp_filter is strict, so forwarded packets are dropped unless the route back to their client is by \
             {name} too: \
             `sysctl -w net.ipv4.conf.{name}.rp_filter=2`, and of `all`"
        ));
    }
    good(format!("{name}: rp_filter lets forwarded packets in"))
}

fn good(text: impl Into<String>) -> Finding {
    Finding { grade: Grade::Good, text: text.into() }
}

fn warning(text: impl Into<String>) -> Finding {
    Finding { grade: Grade::Warning, text: text.into() }
}

fn fault(text: impl Into<String>) -> Finding {
    Finding { grade: Grade::Fault, text: text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_without_room_is_warned_of_with_the_one_that_has_it() {
        let finding = mtu_finding("eth0", 1500);
        assert_eq!(finding.grade, Grade::Warning);
        assert!(finding.text.contains("to 1548") && finding.text.contains("MSS to 1412"), "{}", finding.text);
        assert_eq!(mtu_finding("eth0", 1547).grade, Grade::Warning);
        assert_eq!(mtu_finding("eth0", 1548).grade, Grade::Good);
    }
}
