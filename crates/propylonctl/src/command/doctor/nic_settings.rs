//! Settings of a NIC that sysfs has not: rings, channels and offloads, which the kernel tells by the netlink family
//! `ethtool` (Linux, networking/ethtool-netlink).

use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

use super::finding::{Finding, State};

/// Longest wait for the kernel, which answers at once.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(1);
/// Longest answer: the list of offloads is 3 kB.
const ANSWER_BYTES_MAX: usize = 1 << 16;
/// Entries of a ring below which a burst of packets is dropped before a core comes to it.
const RING_WANTED: u32 = 1024;

const WHY_RING: &str = "a burst that does not fit into the ring is dropped before any core has seen it";
const WHY_JOINED: &str = "joined packets go through the kernel once and not forty times";

/// Numbers of the kernel: the family that knows all families, its command to look one up, and what it answers.
const CONTROL_FAMILY: u16 = 16;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;
/// `NLM_F_REQUEST`, and the kind of message that is an error.
const IS_REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// Commands of `ethtool`.
const FEATURES_GET: u8 = 11;
const RINGS_GET: u8 = 15;
const CHANNELS_GET: u8 = 17;
/// Attributes of its messages: the header with a name in it, and what is in the answers.
const HEADER: u16 = 1;
const HEADER_NAME: u16 = 2;
const RINGS_RX_MAX: u16 = 2;
const RINGS_TX_MAX: u16 = 5;
const RINGS_RX: u16 = 6;
const RINGS_TX: u16 = 9;
const CHANNELS_RX_MAX: u16 = 2;
const CHANNELS_COMBINED_MAX: u16 = 5;
const FEATURES_ACTIVE: u16 = 4;
const BITSET_BITS: u16 = 3;
const BITSET_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
/// The bits of an attribute's type that say how it is written.
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;
const MESSAGE_HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;

/// Settings of a NIC, as far as the kernel tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicSettings {
    /// Queues that the device can have.
    pub queues_max: Option<u32>,
    pub receive_ring: Option<Ring>,
    pub send_ring: Option<Ring>,
    /// Offloads that are on; `None`: the kernel does not tell.
    pub offloads: Option<Vec<String>>,
}

/// Entries of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    pub now: u32,
    pub most: u32,
}

/// Findings about rings and offloads.
pub fn findings(name: &str, settings: &NicSettings) -> Vec<Finding> {
    let ring = |(what, flag, ring): (&'static str, &str, Option<Ring>)| {
        let ring = ring.filter(|ring| ring.now > 0)?;
        let wanted = RING_WANTED.min(ring.most.max(ring.now));
        let state = if ring.now >= wanted { State::Good } else { State::Advice };
        let current = format!("{name}: {} of at most {}", ring.now, ring.most);
        let finding = Finding::new(what, state, current, format!("at least {wanted}")).because(WHY_RING);
        Some(finding.fix(format!("ethtool -G {name} {flag} {wanted}")))
    };
    let rings = [("NIC's receive ring", "rx", settings.receive_ring), ("NIC's send ring", "tx", settings.send_ring)];
    let mut findings: Vec<Finding> = rings.into_iter().filter_map(ring).collect();
    if let Some(on) = &settings.offloads {
        let wanted = [("rx-gro", "gro"), ("tx-generic-segmentation", "gso"), ("tx-tcp-segmentation", "tso")];
        let is_off = |(feature, _): &&(&str, &str)| !on.iter().any(|on| on == feature);
        let off: Vec<&str> = wanted.iter().filter(is_off).map(|(_, flag)| *flag).collect();
        // Segmentation by the device is not there in every one; by the kernel it is.
        let state = if off.iter().all(|flag| *flag == "tso") { State::Good } else { State::Advice };
        let current = if off.is_empty() { "on".to_owned() } else { format!("without {}", off.join(", ")) };
        let commands: Vec<String> = off.iter().map(|flag| format!("{flag} on")).collect();
        let finding = Finding::new("NIC's GRO, GSO and TSO", state, format!("{name}: {current}"), "on");
        findings.push(finding.because(WHY_JOINED).fix(format!("ethtool -K {name} {}", commands.join(" "))));
    }
    findings
}

/// Asks the kernel. `None`: it does not tell.
pub fn of(name: &str) -> NicSettings {
    let ask = || {
        let socket = Netlink::open()?;
        let family = socket.family("ethtool")?;
        let ask = |command| socket.ask(family, command, &header(name)).unwrap_or_default();
        let (rings, channels, features) = (ask(RINGS_GET), ask(CHANNELS_GET), ask(FEATURES_GET));
        Some(read(&rings, &channels, &features))
    };
    ask().unwrap_or_default()
}

fn read(rings: &[u8], channels: &[u8], features: &[u8]) -> NicSettings {
    let ring = |now, most| {
        let now = number(rings, now)?;
        Some(Ring { now, most: number(rings, most).unwrap_or(now) })
    };
    NicSettings {
        queues_max: number(channels, CHANNELS_COMBINED_MAX).or_else(|| number(channels, CHANNELS_RX_MAX)),
        receive_ring: ring(RINGS_RX, RINGS_RX_MAX),
        send_ring: ring(RINGS_TX, RINGS_TX_MAX),
        offloads: attribute(features, FEATURES_ACTIVE).and_then(|set| attribute(set, BITSET_BITS)).map(|bits| {
            let name = |bit| text(attribute(bit, BIT_NAME)?);
            attributes(bits).filter(|(kind, _)| *kind == BITSET_BIT).filter_map(|(_, bit)| name(bit)).collect()
        }),
    }
}

/// A socket of generic netlink.
struct Netlink(rustix::fd::OwnedFd);

impl Netlink {
    fn open() -> Option<Netlink> {
        let family = AddressFamily::NETLINK;
        let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::GENERIC)).ok()?;
        bind(&socket, &SocketAddrNetlink::new(0, 0)).ok()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WAIT_MAX)).ok()?;
        Some(Netlink(socket))
    }

    /// The number that a family has on this machine.
    fn family(&self, name: &str) -> Option<u16> {
        let mut wanted = name.as_bytes().to_vec();
        wanted.push(0);
        let answer = self.ask(CONTROL_FAMILY, CONTROL_GET_FAMILY, &written(CONTROL_FAMILY_NAME, &wanted))?;
        let id = attribute(&answer, CONTROL_FAMILY_ID)?;
        Some(u16::from_ne_bytes(id.get(..2)?.try_into().ok()?))
    }

    /// Attributes of the answer. `None`: it was an error.
    fn ask(&self, family: u16, command: u8, attributes: &[u8]) -> Option<Vec<u8>> {
        let length = MESSAGE_HEADER_BYTES + GENERIC_HEADER_BYTES + attributes.len();
        let mut message = u32::try_from(length).ok()?.to_ne_bytes().to_vec();
        message.extend(family.to_ne_bytes());
        message.extend(IS_REQUEST.to_ne_bytes());
        // Sequence number and port, which the kernel repeats and nobody here compares.
        message.extend([0; 8]);
        message.extend([command, 1, 0, 0]);
        message.extend(attributes);
        send(&self.0, &message, SendFlags::empty()).ok()?;
        let mut answer = vec![0; ANSWER_BYTES_MAX];
        let (received, _) = recv(&self.0, &mut answer[..], RecvFlags::empty()).ok()?;
        answer.truncate(received);
        let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
        (kind != ERROR).then(|| answer.get(MESSAGE_HEADER_BYTES + GENERIC_HEADER_BYTES..).map(<[u8]>::to_vec))?
    }
}

/// A message's header, which names a NIC.
fn header(name: &str) -> Vec<u8> {
    let mut text = name.as_bytes().to_vec();
    text.push(0);
    written(HEADER | NESTED, &written(HEADER_NAME, &text))
}

/// An attribute: length, type, value, and zeros up to the next four bytes.
fn written(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = (length as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

/// Attributes that follow each other, up to the first that is cut short.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

fn number(bytes: &[u8], wanted: u16) -> Option<u32> {
    Some(u32::from_ne_bytes(attribute(bytes, wanted)?.get(..4)?.try_into().ok()?))
}

fn text(bytes: &[u8]) -> Option<String> {
    Some(String::from_utf8_lossy(bytes.strip_suffix(b"\0")?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of Linux 6.1 about a virtio NIC with one queue, by ethtool's numbers.
    #[test]
    fn answers_of_the_kernel_are_read_and_what_is_cut_short_is_left_out() {
        let value = |number: u32| number.to_ne_bytes();
        let rings = [
            written(HEADER | NESTED, &[]),
            written(RINGS_RX_MAX, &value(4096)),
            written(RINGS_TX_MAX, &value(256)),
            written(RINGS_RX, &value(256)),
            written(RINGS_TX, &value(256)),
        ];
        let bit = |name: &[u8]| written(BITSET_BIT, &[written(1, &value(7)), written(BIT_NAME, name)].concat());
        let bits = written(BITSET_BITS, &[bit(b"rx-gro\0"), bit(b"tx-generic-segmentation\0")].concat());
        let features = written(FEATURES_ACTIVE | NESTED, &[written(1, &[]), bits].concat());
        let settings = read(&rings.concat(), &written(CHANNELS_COMBINED_MAX, &value(8)), &features);
        let on = ["rx-gro", "tx-generic-segmentation"].map(str::to_owned).to_vec();
        let ring = |now, most| Some(Ring { now, most });
        let expected = NicSettings {
            queues_max: Some(8),
            receive_ring: ring(256, 4096),
            send_ring: ring(256, 256),
            offloads: Some(on),
        };
        assert_eq!(settings, expected);
        let findings = findings("eth0", &settings);
        let said: Vec<_> = findings.iter().map(|finding| (finding.state, finding.command.as_str())).collect();
        // The send ring is as large as it can be, and the device cuts no segments itself.
        let advice = (State::Advice, "ethtool -G eth0 rx 1024");
        assert_eq!(said, [advice, (State::Good, ""), (State::Good, "")]);
        for length in 0..rings.concat().len() {
            read(&rings.concat()[..length], &features[..length.min(features.len())], &[0xff; 9]);
        }
        assert_eq!(read(&[], &[], &[]), NicSettings::default());
    }

    #[test]
    fn joined_packets_that_are_off_come_with_the_command_that_turns_them_on() {
        let settings = NicSettings { offloads: Some(vec!["tx-tcp-segmentation".to_owned()]), ..Default::default() };
        let found = findings("eth1", &settings);
        assert_eq!((found[0].state, found[0].command.as_str()), (State::Advice, "ethtool -K eth1 gro on gso on"));
        assert!(!found[0].why.is_empty() && found[0].current.starts_with("eth1: without"));
    }

    #[test]
    fn this_machines_kernel_is_asked_and_does_not_have_to_answer() {
        assert_eq!(of("no-such-nic"), NicSettings::default());
        // An answer about the loopback has to make sense.
        let loopback = of("lo");
        assert!(loopback.offloads.is_none_or(|on| !on.is_empty()));
    }
}
