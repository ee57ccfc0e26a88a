//! Packets as bytes, for test runs of the program.

use std::net::{IpAddr, SocketAddr};

pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

const ETHERNET_BYTES: usize = 14;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// A packet with its header of Ethernet, from no MAC to none: a test run takes it for its own.
pub fn tcp(source: SocketAddr, destination: SocketAddr, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::with_capacity(20 + payload.len());
    segment.extend(source.port().to_be_bytes());
    segment.extend(destination.port().to_be_bytes());
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    framed(&ip(source.ip(), destination.ip(), PROTOCOL_TCP, &segment), destination.is_ipv6())
}

/// A packet of [`tcp`] as it goes between engines, with the tunnel's port and the hop.
pub fn wrapped(packet: &[u8], from: IpAddr, to: IpAddr, (port, hop): (u16, u16)) -> Vec<u8> {
    let inner = packet.get(ETHERNET_BYTES..).unwrap_or_default();
    let mut datagram = Vec::with_capacity(8 + inner.len());
    datagram.extend((0xc000 | hop).to_be_bytes());
    datagram.extend(port.to_be_bytes());
    datagram.extend(((8 + inner.len()) as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(inner);
    framed(&ip(from, to, PROTOCOL_UDP, &datagram), from.is_ipv6())
}

/// A packet of ARP, as far as its type goes.
pub fn not_ip() -> Vec<u8> {
    [&[0; 12][..], &[0x08, 0x06], &[0; 46]].concat()
}

/// With a header of Ethernet in front.
pub fn framed(packet: &[u8], is_ipv6: bool) -> Vec<u8> {
    let kind: [u8; 2] = if is_ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    [&[0; 12][..], &kind, packet].concat()
}

/// With a header of IP in front.
pub fn ip(source: IpAddr, destination: IpAddr, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40 + body.len());
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.extend([0x45, 0]);
            packet.extend(((20 + body.len()) as u16).to_be_bytes());
            packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
        }
        _ => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend((body.len() as u16).to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend(crate::layout::address(source));
            packet.extend(crate::layout::address(destination));
        }
    }
    packet.extend(body);
    packet
}
