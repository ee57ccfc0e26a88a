//! BIRD's answers as values: `show status`, `show protocols all` and `show bfd sessions`.
//!
//! BIRD made these answers for readers. A field that is not there, or not as expected, is left empty, never an error.

use std::fmt;
use std::net::IpAddr;

use crate::bird::Reply;

const BIRD_VERSION: u16 = 1000;
const PROTOCOL: u16 = 1002;
const PROTOCOL_DETAILS: u16 = 1006;
const UPTIME: u16 = 1011;
const STATUS: u16 = 13;
const BFD_SESSIONS: u16 = 1020;

/// `show status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BirdStatus {
    pub version: String,
    pub router_id: Option<String>,
    /// Time of the start, in BIRD's format.
    pub last_reboot: Option<String>,
    pub last_reconfiguration: Option<String>,
    /// For instance `Daemon is up and running`.
    pub message: String,
}

/// A protocol's state in BIRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtocolState {
    Up,
    Start,
    Stop,
    /// The routes are being taken back.
    Flush,
    Down,
    Other(String),
}

impl ProtocolState {
    fn parse(word: &str) -> ProtocolState {
        match word {
            "up" => ProtocolState::Up,
            "start" => ProtocolState::Start,
            "stop" => ProtocolState::Stop,
            "flush" => ProtocolState::Flush,
            "down" => ProtocolState::Down,
            other => ProtocolState::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for ProtocolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolState::Up => "up",
            ProtocolState::Start => "start",
            ProtocolState::Stop => "stop",
            ProtocolState::Flush => "flush",
            ProtocolState::Down => "down",
            ProtocolState::Other(word) => word,
        })
    }
}

/// A protocol of `show protocols all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    pub name: String,
    /// The kind: `Static`, `BGP`, `Device` and so on.
    pub kind: String,
    pub state: ProtocolState,
    /// Since when, in BIRD's format.
    pub since: String,
    /// For BGP its state, with the last error behind it.
    pub info: String,
    pub message: Option<String>,
    /// `Established` and so on; of BGP alone.
    pub bgp_state: Option<String>,
    pub neighbor: Option<IpAddr>,
    pub last_error: Option<String>,
    /// Seconds that a neighbour may be silent, as both sides agreed; of a session that is up.
    pub hold_seconds: Option<u32>,
    /// Whether this side told its neighbour that it keeps routes over a restart.
    pub restarts_gracefully: bool,
    pub channels: Vec<Channel>,
}

impl Protocol {
    pub fn is_bgp(&self) -> bool {
        self.kind == "BGP"
    }

    pub fn is_established(&self) -> bool {
        self.bgp_state.as_deref() == Some("Established")
    }

    /// Whether anything may go out by it.
    pub fn exports(&self) -> bool {
        self.channels.iter().any(Channel::exports)
    }

    pub fn routes_imported(&self) -> u64 {
        self.channels.iter().map(|channel| channel.imported).sum()
    }

    pub fn routes_exported(&self) -> u64 {
        self.channels.iter().map(|channel| channel.exported).sum()
    }
}

/// A protocol's channel to a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    /// `ipv4`, `ipv6`.
    pub name: String,
    pub state: String,
    pub table: String,
    pub output_filter: String,
    pub imported: u64,
    pub exported: u64,
}

impl Channel {
    pub fn exports(&self) -> bool {
        !self.output_filter.is_empty() && self.output_filter != "REJECT"
    }
}

/// A row of `show bfd sessions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdSession {
    pub neighbor: IpAddr,
    pub interface: String,
    /// `Up`, `Down`, `Init` or `AdminDown`.
    pub state: String,
    /// Silence after which the neighbour is taken for dead, in milliseconds.
    pub timeout_millis: Option<u64>,
}

impl BfdSession {
    pub fn is_up(&self) -> bool {
        self.state == "Up"
    }
}

pub fn status(reply: &Reply) -> BirdStatus {
    let mut status = BirdStatus::default();
    for (code, text) in &reply.lines {
        let after = |start: &str| text.trim().strip_prefix(start).map(|rest| rest.trim().to_owned());
        match *code {
            BIRD_VERSION => text.trim().clone_into(&mut status.version),
            UPTIME => {
                status.router_id = after("Router ID is").or(status.router_id);
                status.last_reboot = after("Last reboot on").or(status.last_reboot);
                status.last_reconfiguration = after("Last reconfiguration on").or(status.last_reconfiguration);
            }
            STATUS => text.trim().clone_into(&mut status.message),
            _ => {}
        }
    }
    status
}

pub fn protocols(reply: &Reply) -> Vec<Protocol> {
    let mut protocols: Vec<Protocol> = Vec::new();
    // `Graceful restart` is a capability of either side, below a heading that says whose.
    let mut are_own_capabilities = false;
    for (code, text) in &reply.lines {
        match *code {
            PROTOCOL => protocols.extend(protocol(text)),
            PROTOCOL_DETAILS => {
                let Some(protocol) = protocols.last_mut() else { continue };
                match text.trim() {
                    "Local capabilities" => are_own_capabilities = true,
                    "Neighbor capabilities" => are_own_capabilities = false,
                    "Graceful restart" => protocol.restarts_gracefully |= are_own_capabilities,
                    line => detail(protocol, line),
                }
            }
            _ => {}
        }
    }
    protocols
}

/// A protocol by its row: name, kind, table, state, since, info.
fn protocol(row: &str) -> Option<Protocol> {
    let mut words = row.split_whitespace();
    let (name, kind, _table, state) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let mut since = words.next().unwrap_or_default().to_owned();
    let mut rest: Vec<&str> = words.collect();
    // Some formats of time have a date, a blank and a time.
    let is_time = |word: &&str| word.contains(':') && word.starts_with(|sign: char| sign.is_ascii_digit());
    if since.contains('-') && rest.first().is_some_and(is_time) {
        since = format!("{since} {}", rest.remove(0));
    }
    Some(Protocol {
        name: name.to_owned(),
        kind: kind.to_owned(),
        state: ProtocolState::parse(state),
        since,
        info: rest.join(" "),
        message: None,
        bgp_state: None,
        neighbor: None,
        last_error: None,
        hold_seconds: None,
        restarts_gracefully: false,
        channels: Vec::new(),
    })
}

fn detail(protocol: &mut Protocol, line: &str) {
    if let Some(name) = line.strip_prefix("Channel ") {
        protocol.channels.push(Channel { name: name.to_owned(), ..Channel::default() });
        return;
    }
    let Some((key, value)) = line.split_once(':') else { return };
    let value = value.trim();
    match (key, protocol.channels.last_mut()) {
        ("Message", None) => protocol.message = Some(value.to_owned()),
        ("BGP state", None) => protocol.bgp_state = Some(value.to_owned()),
        ("Neighbor address", None) => protocol.neighbor = address(value),
        ("Last error", None) => protocol.last_error = Some(value.to_owned()),
        ("Hold timer", None) => {
            protocol.hold_seconds = value.split_once('/').and_then(|(_, whole)| whole.parse().ok());
        }
        ("State", Some(channel)) => value.clone_into(&mut channel.state),
        ("Table", Some(channel)) => value.clone_into(&mut channel.table),
        ("Output filter", Some(channel)) => value.clone_into(&mut channel.output_filter),
        ("Routes", Some(channel)) => {
            channel.imported = count(value, "imported");
            channel.exported = count(value, "exported");
        }
        _ => {}
    }
}

/// The number before a word, as in `1 imported, 0 exported, 1 preferred`.
fn count(list: &str, word: &str) -> u64 {
    let found = list.split(',').find_map(|part| part.trim().strip_suffix(word));
    found.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// An address, with or without the interface behind it.
fn address(text: &str) -> Option<IpAddr> {
    text.split('%').next().unwrap_or_default().parse().ok()
}

pub fn bfd_sessions(reply: &Reply) -> Vec<BfdSession> {
    let rows = reply.lines.iter().filter(|(code, _)| *code == BFD_SESSIONS);
    rows.filter_map(|(_, text)| {
        let words: Vec<&str> = text.split_whitespace().collect();
        // The heading and the lines with a protocol's name begin with no address.
        let (neighbor, interface, state) = (address(words.first()?)?, *words.get(1)?, *words.get(2)?);
        let timeout = words.last().and_then(|seconds| seconds.parse::<f64>().ok());
        Some(BfdSession {
            neighbor,
            interface: interface.to_owned(),
            state: state.to_owned(),
            timeout_millis: timeout.map(|seconds| (seconds * 1000.0).round() as u64),
        })
    })
    .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A reply of lines as BIRD shows them, all with one code but those that begin with another.
    pub(crate) fn reply(lines: &str) -> Reply {
        let mut code = 0;
        let lines = lines.lines().map(|line| match line.split_at_checked(5) {
            Some((digits, text)) if digits[..4].bytes().all(|byte| byte.is_ascii_digit()) => {
                code = digits[..4].parse().unwrap();
                (code, text.to_owned())
            }
            _ => (code, line.strip_prefix(' ').unwrap_or(line).to_owned()),
        });
        Reply { lines: lines.collect() }
    }

    pub(crate) const PROTOCOLS: &str = include_str!("../tests/answers/protocols.txt");
    pub(crate) const BFD: &str = include_str!("../tests/answers/bfd.txt");

    #[test]
    fn protocols_of_bird_are_read_with_their_channels() {
        let found = protocols(&reply(PROTOCOLS));
        let names: Vec<&str> = found.iter().map(|protocol| protocol.name.as_str()).collect();
        assert_eq!(names, ["device1", "propylon4", "propylon6", "bfd1", "router1", "router2"]);
        assert_eq!(
            (found[1].kind.as_str(), &found[1].state, found[1].routes_imported()),
            ("Static", &ProtocolState::Up, 1)
        );
        assert_eq!((&found[2].state, found[2].message.as_deref()), (&ProtocolState::Down, Some("propylon: draining")));
        let router = &found[4];
        assert!(router.is_bgp() && router.is_established() && router.exports() && !router.restarts_gracefully);
        assert_eq!((router.neighbor, router.hold_seconds), (Some("10.77.0.1".parse().unwrap()), Some(3)));
        assert_eq!(router.channels.iter().map(|channel| channel.exported).collect::<Vec<_>>(), [1, 0]);
        let other = &found[5];
        assert_eq!(
            (other.since.as_str(), other.info.as_str()),
            ("2026-11-24 15:32:11", "Active Socket: Connection refused")
        );
        assert_eq!(other.neighbor, Some("fe80::1".parse().unwrap()));
        assert_eq!(other.last_error.as_deref(), Some("Socket: Connection refused"));
    }

    #[test]
    fn sessions_of_bfd_are_read_with_their_timeout() {
        let found = bfd_sessions(&reply(BFD));
        assert_eq!(found.len(), 2);
        assert!(found[0].is_up() && !found[1].is_up());
        assert_eq!((found[0].interface.as_str(), found[0].timeout_millis), ("v0", Some(150)));
    }

    #[test]
    fn bird_says_who_it_is() {
        let lines = "1000-BIRD 2.0.12\n1011-Router ID is 10.0.0.2\n Last reboot on 2026-11-24 15:32:10.341\n0013 Up";
        let found = status(&reply(lines));
        assert_eq!((found.version.as_str(), found.router_id.as_deref()), ("BIRD 2.0.12", Some("10.0.0.2")));
        assert_eq!((found.last_reboot.as_deref(), found.message.as_str()), (Some("2026-11-24 15:32:10.341"), "Up"));
    }

    #[test]
    fn answers_that_are_cut_or_strange_are_read_as_far_as_they_go() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let mut bytes = PROTOCOLS.as_bytes().to_vec();
            bytes.truncate(random.usize(..bytes.len()));
            for _ in 0..random.usize(..20).min(bytes.len()) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(32..127);
            }
            let text = String::from_utf8(bytes).unwrap();
            let lines = text.lines().map(|line| (random.choice([0, 1002, 1006, 1020, 1011]).unwrap(), line.to_owned()));
            let reply = Reply { lines: lines.collect() };
            let _ = (protocols(&reply), bfd_sessions(&reply), status(&reply));
        }
    }
}
