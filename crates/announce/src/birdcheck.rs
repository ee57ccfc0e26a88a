//! Whether BIRD is fit to announce for an engine: its answers in, findings out.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crate::Settings;
use crate::answers::{BfdSession, BirdStatus, Protocol, ProtocolState};
use crate::bird::{Bird, BirdError, ProtocolName};
use crate::birdconf::BFD_LINES;

/// Longest time for one of BIRD's replies.
const REPLY_WAIT: Duration = Duration::from_secs(2);
/// Limit on the bytes of a configuration that is read.
const CONFIGURATION_BYTES_MAX: u64 = 1 << 20;
/// Longest silence of a neighbour, in seconds, that is no finding.
const HOLD_SECONDS_MAX: u32 = 9;

/// Answers of BIRD, and its configuration where it can be read.
#[derive(Clone, Debug)]
pub struct Answers {
    pub status: BirdStatus,
    pub protocols: Vec<Protocol>,
    pub bfd: Vec<BfdSession>,
    /// Whether the socket takes orders.
    pub orders: Result<(), BirdError>,
    pub configuration: Option<String>,
}

/// Something that would be better otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether addresses are not announced, or not withdrawn, as it is.
    pub is_serious: bool,
    pub what: String,
    pub better: String,
    /// Lines for BIRD's configuration; empty where none help.
    pub lines: String,
}

impl Finding {
    fn serious(what: String, better: &str, lines: String) -> Finding {
        Finding { is_serious: true, what, better: better.to_owned(), lines }
    }

    fn lesser(what: String, better: &str, lines: String) -> Finding {
        Finding { is_serious: false, what, better: better.to_owned(), lines }
    }
}

/// Asks BIRD, and changes nothing.
pub fn ask(socket: &Path, configuration: Option<&Path>) -> Result<Answers, BirdError> {
    let mut bird = Bird::connect(socket, REPLY_WAIT)?;
    Ok(Answers {
        status: bird.status()?,
        protocols: bird.protocols()?,
        bfd: bird.bfd_sessions()?,
        orders: bird.check_orders(),
        configuration: configuration.and_then(read_configuration),
    })
}

/// Asks and checks; that BIRD cannot be asked is a finding.
pub fn examine(settings: &Settings, configuration: Option<&Path>) -> Vec<Finding> {
    match ask(&settings.socket, configuration) {
        Ok(answers) => check(settings, &answers),
        Err(error) => vec![Finding::serious(error.to_string(), "an engine that reaches its BIRD", String::new())],
    }
}

/// Findings, those first without which nothing works.
pub fn check(settings: &Settings, answers: &Answers) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(error) = &answers.orders {
        findings.push(Finding::serious(error.to_string(), "a control socket that takes orders", String::new()));
    }
    let mut exporters = BTreeSet::new();
    for name in &settings.protocols {
        match answers.protocols.iter().find(|protocol| protocol.name == name.as_str()) {
            Some(protocol) => {
                check_static(protocol, answers, &mut findings);
                exporters.extend(check_export(protocol, &answers.protocols, &mut findings));
            }
            None => findings.push(Finding::serious(
                BirdError::UnknownProtocol(name.to_string()).to_string(),
                "all protocols of the settings in BIRD's configuration",
                static_lines(name),
            )),
        }
    }
    for protocol in answers.protocols.iter().filter(|protocol| exporters.contains(&protocol.name)) {
        check_session(protocol, answers, &mut findings);
    }
    findings.sort_by_key(|finding| !finding.is_serious);
    findings
}

fn check_static(protocol: &Protocol, answers: &Answers, findings: &mut Vec<Finding>) {
    let name = &protocol.name;
    if protocol.kind != "Static" {
        findings.push(Finding::serious(
            format!(
                "{name} is a protocol of kind {}, and switching it does more than to announce an address",
                protocol.kind
            ),
            "a static protocol with the virtual addresses and nothing else",
            ProtocolName::parse(name).map(|name| static_lines(&name)).unwrap_or_default(),
        ));
        return;
    }
    if protocol.state == ProtocolState::Up && protocol.routes_imported() == 0 {
        findings.push(Finding::serious(
            format!("{name} is up and BIRD has no route from it"),
            "a route for each virtual address",
            "    route 192.0.2.1/32 blackhole;\n".to_owned(),
        ));
    }
    let block = answers.configuration.as_deref().and_then(|text| block(text, name));
    if block.is_some_and(|block| !is_disabled(&block)) {
        findings.push(Finding::serious(
            format!("{name} is enabled by BIRD's configuration: BIRD announces when it starts, whoever serves"),
            "a protocol that is disabled until an engine enables it",
            "    disabled;\n".to_owned(),
        ));
    }
}

/// Names of BGP protocols by which the static one's routes may go out.
fn check_export(protocol: &Protocol, all: &[Protocol], findings: &mut Vec<Finding>) -> Vec<String> {
    let tables: Vec<&str> = protocol.channels.iter().map(|channel| channel.table.as_str()).collect();
    let carries = |bgp: &&Protocol| {
        bgp.is_bgp() && bgp.channels.iter().any(|channel| channel.exports() && tables.contains(&channel.table.as_str()))
    };
    let name = &protocol.name;
    let exporters: Vec<&Protocol> = all.iter().filter(carries).collect();
    if exporters.is_empty() {
        findings.push(Finding::serious(
            format!("no BGP protocol exports from {}, the table of {name}", tables.join(", ")),
            "a BGP protocol with a channel to that table, and a filter that lets the virtual addresses out",
            format!(
                "    {} {{ import none; export where proto = \"{name}\"; next hop self; }};\n",
                channel_of(protocol)
            ),
        ));
    }
    let is_up = protocol.state == ProtocolState::Up && protocol.routes_imported() > 0;
    let is_established = exporters.iter().any(|bgp| bgp.is_established());
    let goes_out = |bgp: &&Protocol| {
        bgp.channels.iter().any(|channel| channel.exported > 0 && tables.contains(&channel.table.as_str()))
    };
    if is_up && is_established && !exporters.iter().any(goes_out) {
        findings.push(Finding::serious(
            format!("{name} is up, and the filters of {} let none of its routes out", names(&exporters)),
            "a filter that lets the virtual addresses out",
            format!("        export where proto = \"{name}\";\n"),
        ));
    }
    exporters.iter().map(|bgp| bgp.name.clone()).collect()
}

fn check_session(bgp: &Protocol, answers: &Answers, findings: &mut Vec<Finding>) {
    let name = &bgp.name;
    if !bgp.is_established() {
        let info = if bgp.info.is_empty() { "down" } else { bgp.info.as_str() };
        let what = format!("the session {name} is not established: {info}");
        findings.push(Finding::serious(what, "a router that answers", String::new()));
    }
    let bfd = answers.bfd.iter().find(|session| Some(session.neighbor) == bgp.neighbor);
    match bfd {
        None => findings.push(Finding::lesser(
            format!("{name} goes without BFD: a router finds a dead machine by its hold timer, in seconds"),
            "BFD, which finds it within 150 ms",
            format!("{BFD_LINES}# in protocol bgp {name}:\n    bfd on;\n"),
        )),
        Some(session) if !session.is_up() => findings.push(Finding::lesser(
            format!("BFD with {} is {}", session.neighbor, session.state),
            "a router that speaks BFD on this interface; UDP ports 3784 and 3785 have to be open",
            BFD_LINES.to_owned(),
        )),
        Some(_) => {}
    }
    if let Some(seconds) = bgp.hold_seconds.filter(|seconds| *seconds == 0 || *seconds > HOLD_SECONDS_MAX) {
        findings.push(Finding::lesser(
            format!(
                "the hold timer of {name} is {seconds} s: so long a router without BFD sends clients to a dead machine"
            ),
            "a short hold time, on both sides",
            "    hold time 3;\n    keepalive time 1;\n".to_owned(),
        ));
    }
    if bgp.restarts_gracefully {
        findings.push(Finding::lesser(
            format!("{name} offers graceful restart: a router keeps the routes when this BIRD dies"),
            "no graceful restart for addresses that others can serve",
            "    graceful restart off;\n".to_owned(),
        ));
    }
}

fn names(protocols: &[&Protocol]) -> String {
    protocols.iter().map(|protocol| protocol.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn channel_of(protocol: &Protocol) -> &str {
    protocol.channels.first().map_or("ipv4", |channel| channel.name.as_str())
}

/// Lines for a protocol of which only the name is known.
fn static_lines(name: &ProtocolName) -> String {
    let (family, address) =
        if name.as_str().contains('6') { ("ipv6", "2001:db8::1/128") } else { ("ipv4", "192.0.2.1/32") };
    format!("protocol static {name} {{\n    disabled;\n    {family};\n    route {address} blackhole;\n}}\n")
}

fn read_configuration(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(CONFIGURATION_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The words between a protocol's braces; `None` where the text has no such protocol (it may be in a file that is
/// included).
fn block(text: &str, name: &str) -> Option<Vec<String>> {
    let words = words(text);
    let names = [name.to_owned(), format!("'{name}'")];
    let start = words.windows(3).position(|three| three[0] == "protocol" && names.contains(&three[2]))?;
    let open = start + words[start..].iter().position(|word| word == "{")?;
    let mut depth = 0_usize;
    for (index, word) in words.iter().enumerate().skip(open) {
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Some(words[open + 1..index].to_vec());
        }
    }
    None
}

/// `disabled`, alone or with a word for true.
fn is_disabled(block: &[String]) -> bool {
    let after = block.iter().position(|word| word == "disabled").map(|at| block.get(at + 1).map(String::as_str));
    matches!(after, Some(None | Some(";" | "yes" | "on" | "true" | "1")))
}

/// Words and signs of a configuration, without comments; text in quotes is one word.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(sign) = rest.chars().next() {
        let length = match sign {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' | '\'' => rest[1..].find(sign).map_or(rest.len(), |end| end + 2),
            '{' | '}' | ';' => 1,
            _ if sign.is_whitespace() => sign.len_utf8(),
            _ => rest.find(|sign: char| sign.is_whitespace() || "{};#\"'".contains(sign)).unwrap_or(rest.len()),
        };
        if !(sign == '#' || sign.is_whitespace() || rest.starts_with("/*")) {
            words.push(rest[..length].to_owned());
        }
        rest = &rest[length..];
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers;
    use crate::answers::tests::{BFD, PROTOCOLS, reply};

    const CONFIGURATION: &str = "# protocol static propylon4 { }\nprotocol static propylon4 { disabled; ipv4; }\n\
        protocol static 'propylon6' from t { ipv6 { table x; }; /* } */ disabled yes; }";

    fn settings(names: &[&str]) -> Settings {
        let protocols = names.iter().map(|name| ProtocolName::parse(name).unwrap()).collect();
        Settings { socket: "/run/bird/bird.ctl".into(), protocols }
    }

    /// One BIRD whose sessions are all well.
    fn healthy() -> Answers {
        let mut protocols = answers::protocols(&reply(PROTOCOLS));
        protocols.retain(|protocol| protocol.name != "router2");
        Answers {
            status: BirdStatus::default(),
            protocols,
            bfd: answers::bfd_sessions(&reply(BFD)),
            orders: Ok(()),
            configuration: Some(CONFIGURATION.to_owned()),
        }
    }

    fn found(names: &[&str], answers: &Answers) -> Vec<String> {
        check(&settings(names), answers).into_iter().map(|finding| finding.what).collect()
    }

    const BOTH: &[&str] = &["propylon4", "propylon6"];

    #[test]
    fn a_bird_that_is_fit_has_no_findings() {
        assert_eq!(found(BOTH, &healthy()), Vec::<String>::new());
    }

    #[test]
    fn each_thing_that_is_not_fit_is_found_alone() {
        let change = |change: fn(&mut Answers)| {
            let mut answers = healthy();
            change(&mut answers);
            found(BOTH, &answers)
        };
        let router = |answers: &mut Answers| answers.protocols.remove(4);
        for (change, expected) in [
            (change(|answers| answers.orders = Err(BirdError::Restricted)), "takes no"),
            (change(|answers| drop(answers.protocols.remove(2))), "BIRD has no protocol \"propylon6\""),
            (change(|answers| answers.protocols[1].kind = "BGP".into()), "is a protocol of kind BGP"),
            (change(|answers| answers.protocols[1].channels[0].imported = 0), "has no route from it"),
            (change(|answers| answers.bfd.clear()), "without BFD"),
            (change(|answers| answers.bfd[0].state = "Down".into()), "BFD with 10.77.0.1 is Down"),
            (change(|answers| answers.protocols[4].hold_seconds = Some(240)), "hold timer of router1 is 240 s"),
            (change(|answers| answers.protocols[4].restarts_gracefully = true), "offers graceful restart"),
            (change(|answers| answers.protocols[4].bgp_state = None), "router1 is not established"),
            (change(|answers| answers.protocols[4].channels[0].exported = 0), "let none of its routes out"),
            (
                change(|answers| answers.protocols[4].channels[1].output_filter = "REJECT".into()),
                "no BGP protocol exports from master6",
            ),
            (
                change(|answers| answers.configuration = Some(CONFIGURATION.replace("disabled; ipv4", "ipv4"))),
                "propylon4 is enabled by BIRD's configuration",
            ),
            (
                change(|answers| answers.configuration = Some(CONFIGURATION.replace("disabled yes", "disabled no"))),
                "propylon6 is enabled by BIRD's configuration",
            ),
        ] {
            let is_expected = change.len() == 1 && change[0].contains(expected)
                || expected == "takes no" && change == [BirdError::Restricted.to_string()];
            assert!(is_expected, "{expected}: {change:?}");
        }
        let mut answers = healthy();
        router(&mut answers);
        assert_eq!(found(BOTH, &answers).len(), 2);
    }

    #[test]
    fn a_configuration_that_is_not_there_or_elsewhere_is_no_finding() {
        let mut answers = healthy();
        answers.configuration = None;
        assert_eq!(found(BOTH, &answers), Vec::<String>::new());
        answers.configuration = Some("include \"/etc/bird/propylon.conf\";".to_owned());
        assert_eq!(found(BOTH, &answers), Vec::<String>::new());
    }

    #[test]
    fn any_text_is_read_as_words() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..2000 {
            let sign = |_| random.choice(['{', '}', ';', '#', '\'', '"', '/', '*', ' ', 'ä', '\n', 'a', 'b']).unwrap();
            let text: String = (0..60).map(sign).collect();
            block(&text, "a");
        }
        assert_eq!(words("a{b \"c }\" /*d*/;}#e"), ["a", "{", "b", "\"c }\"", ";", "}"]);
    }
}
