//! BIRD as an engine with `[announce]` needs it: what BIRD says, and the lines that it lacks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use propylon_announce::{ProtocolName, Settings, birdcheck, birdconf};
use propylon_config::{Announce, Config};

use super::finding::{Finding, State};

/// Files that BIRD reads where nobody says otherwise, on Debian and elsewhere.
const CONFIGURATIONS: [&str; 2] = ["/etc/bird/bird.conf", "/etc/bird.conf"];
const SOCKET: &str = "BIRD's control socket";
const BIRD: &str = "BIRD";

/// Numbers and addresses for examples (RFC 5398 §3, RFC 5737 §3, RFC 3849 §2), which nobody has.
const OWN_NUMBER: u32 = 64_496;
const ROUTERS_NUMBER: u32 = 64_497;
const ROUTER_ID: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const ROUTER_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
const ROUTER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1));
const VIP_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const VIP_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// Findings about BIRD, judged as the account that is to give it orders.
pub fn findings(config: &Config) -> Vec<Finding> {
    let Some(announce) = &config.announce else { return Vec::new() };
    let settings = match settings(announce) {
        Ok(settings) => settings,
        Err(what) => {
            let finding = Finding::new("announce.protocols", State::Bad, what, "names of BIRD's protocols");
            return vec![finding.fix("correct the name in [announce]")];
        }
    };
    let configuration = CONFIGURATIONS.into_iter().map(Path::new).find(|path| path.is_file());
    match birdcheck::ask(&settings.socket, configuration) {
        Ok(answers) => {
            let mut findings = vec![socket(&settings, &answers)];
            findings.extend(told(&birdcheck::check(&settings, &answers), config));
            findings
        }
        Err(error) => {
            let finding =
                Finding::new(SOCKET, State::Bad, error.to_string(), "a BIRD that takes this account's orders");
            let fix = "apt install bird2, a configuration such as the one below, and this account in BIRD's group";
            vec![finding.fix(fix), whole(config)]
        }
    }
}

fn settings(announce: &Announce) -> Result<Settings, String> {
    let protocols: Result<Vec<ProtocolName>, String> =
        announce.protocols.iter().map(|name| ProtocolName::parse(name)).collect();
    Ok(Settings { socket: announce.bird.clone(), protocols: protocols? })
}

fn socket(settings: &Settings, answers: &birdcheck::Answers) -> Finding {
    let shown = settings.socket.display();
    let current = format!("{} answers at {shown}", answers.status.version);
    // One that takes no orders is among what the check finds.
    Finding::new(SOCKET, State::Good, current, "a BIRD that answers this account")
}

/// The findings of the check, as all others of the doctor's; with a whole configuration where something is missing
/// without which nothing is announced, or withdrawn.
fn told(checked: &[birdcheck::Finding], config: &Config) -> Vec<Finding> {
    if checked.is_empty() {
        let wanted = "all that an engine's announcements need";
        return vec![Finding::new(BIRD, State::Good, wanted, wanted)];
    }
    let one = |found: &birdcheck::Finding| {
        let state = if found.is_serious { State::Bad } else { State::Advice };
        let fix = match found.lines.trim_end() {
            "" => String::new(),
            lines => format!("add to BIRD's configuration, then birdc configure:\n{lines}"),
        };
        Finding::new(BIRD, state, found.what.clone(), found.better.clone()).fix(fix)
    };
    let is_serious = checked.iter().any(|found| found.is_serious);
    checked.iter().map(one).chain(is_serious.then(|| whole(config))).collect()
}

/// A configuration of BIRD to begin with.
fn whole(config: &Config) -> Finding {
    let finding = Finding::new(BIRD, State::Advice, "something is missing or wrong, as told above", "as below");
    finding.fix(match example(config) {
        Ok(text) => {
            format!("a whole {}, to begin with; birdc configure reads it:\n{}", CONFIGURATIONS[0], text.trim_end())
        }
        Err(what) => format!("see the manual, [announce]: {what}"),
    })
}

/// The configuration, in front of which stands what in it has to be replaced.
fn example(config: &Config) -> Result<String, String> {
    let cluster = config.cluster.as_ref();
    let mut placeholders = vec![
        format!("autonomous system {OWN_NUMBER}: this engine's"),
        format!("autonomous system {ROUTERS_NUMBER}: its router's"),
    ];
    let router_id = match cluster.and_then(|cluster| cluster.address) {
        Some(IpAddr::V4(address)) => address,
        _ => {
            placeholders.push(format!("router id {ROUTER_ID}: an IPv4 address of this engine's own"));
            ROUTER_ID
        }
    };
    let mut vips = cluster.map(|cluster| cluster.vips.clone()).unwrap_or_default();
    if vips.is_empty() {
        let names = config.announce.iter().flat_map(|announce| &announce.protocols);
        vips = placeholder_addresses(names);
        placeholders.extend(vips.iter().map(|vip| format!("{vip}: the address that engines share")));
    }
    let router = |address: IpAddr| birdconf::Neighbor { address, autonomous_system: ROUTERS_NUMBER };
    let routers: Vec<birdconf::Neighbor> = [ROUTER_V4, ROUTER_V6]
        .into_iter()
        .filter(|router| vips.iter().any(|vip| vip.is_ipv6() == router.is_ipv6()))
        .map(router)
        .collect();
    placeholders.extend(routers.iter().map(|router| format!("{}: the router", router.address)));
    let names: Vec<&str> = [(false, birdconf::PROTOCOL_V4), (true, birdconf::PROTOCOL_V6)]
        .into_iter()
        .filter_map(|(is_v6, name)| vips.iter().any(|vip| vip.is_ipv6() == is_v6).then_some(name))
        .collect();
    let side = birdconf::EngineSide { router_id, virtual_addresses: vips, autonomous_system: OWN_NUMBER, routers };
    let placeholders: String = placeholders.iter().map(|line| format!("#   {line}\n")).collect();
    let text = birdconf::engine(&side)?;
    Ok(format!(
        "# For an engine with `protocols = {names:?}` in [announce].\n# Placeholders, to be replaced by your own:\n\
         {placeholders}{text}"
    ))
}

/// One address for each family that the protocols' names speak of.
fn placeholder_addresses<'a>(names: impl Iterator<Item = &'a String>) -> Vec<IpAddr> {
    let families: Vec<bool> = names.map(|name| name.contains('6')).collect();
    let of = |is_v6: bool, address: IpAddr| families.contains(&is_v6).then_some(address);
    of(false, VIP_V4).into_iter().chain(of(true, VIP_V6)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;
    use super::*;

    const HEAD: &str = "[[route]]\nrespond = { status = 200 }\n[listener.web]\nbind = \"127.0.0.1:0\"\n";

    fn of(announce: &str) -> Config {
        config(&format!("{HEAD}[announce]\n{announce}\n"))
    }

    #[test]
    fn a_bird_that_cannot_be_reached_is_bad_and_comes_with_a_whole_configuration() {
        let found = findings(&of("bird = \"/nonexistent/bird.ctl\"\nprotocols = [\"propylon4\"]"));
        assert_eq!(found[0].state, State::Bad);
        assert!(found[0].current.contains("/nonexistent/bird.ctl"), "{}", found[0].current);
        let whole = &found[1].command;
        assert!(whole.contains("protocol static propylon4 {\n    disabled;") && whole.contains("protocol bgp router1"));
        assert!(!whole.contains("propylon6"), "{whole}");
    }

    #[test]
    fn every_placeholder_of_the_configuration_is_said_to_be_one() {
        let text = example(&of("protocols = [\"propylon4\", \"propylon6\"]")).unwrap();
        let (said, rest) = text.split_once("log syslog").unwrap();
        let values =
            ["64496", "64497", "203.0.113.10", "203.0.113.1:", "192.0.2.1:", "2001:db8::1:", "2001:db8:0:1::1:"];
        for value in values {
            assert!(said.contains(value), "{value}: {said}");
            assert!(rest.contains(value.trim_end_matches(':')), "{value}: {rest}");
        }
    }

    #[test]
    fn what_the_cluster_knows_is_no_placeholder() {
        let cluster = "[cluster]\nname = \"edge\"\nendpoints = [\"http://127.0.0.1:2379\"]\n\
                       sealing_keys = [\"seal.key\"]\naddress = \"10.0.0.7\"\nvips = [\"198.51.100.9\"]\n";
        let text = example(&config(&format!("{HEAD}[announce]\nprotocols = [\"propylon4\"]\n{cluster}"))).unwrap();
        assert!(text.contains("router id 10.0.0.7;") && text.contains("route 198.51.100.9/32 blackhole;"), "{text}");
        assert!(!text.contains("203.0.113.10") && !text.contains("192.0.2.1"), "{text}");
    }

    #[test]
    fn a_whole_configuration_follows_what_is_serious_and_nothing_else() {
        let config = of("protocols = [\"propylon4\"]");
        let finding = |is_serious| birdcheck::Finding {
            is_serious,
            what: "it is so".into(),
            better: "otherwise".into(),
            lines: "    bfd on;\n".into(),
        };
        let states = |checked: &[birdcheck::Finding]| {
            told(checked, &config).iter().map(|finding| finding.state).collect::<Vec<State>>()
        };
        assert_eq!(states(&[]), [State::Good]);
        assert_eq!(states(&[finding(false)]), [State::Advice]);
        assert_eq!(states(&[finding(true), finding(false)]), [State::Bad, State::Advice, State::Advice]);
        assert!(told(&[finding(false)], &config)[0].command.ends_with(":\n    bfd on;"));
    }
}
