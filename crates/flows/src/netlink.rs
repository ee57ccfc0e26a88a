//! Questions to the kernel by netlink: interfaces, routes, and the sockets of connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::set_socket_timeout;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::time::Duration;

/// The kernel answers at once; a lost answer must not stop the process.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// The kernel fills at most this much for one receive.
const BUFFER_BYTES: usize = 64 * 1024;

const ROUTE: Option<Protocol> = None;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const HEADER_BYTES: usize = 16;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
    /// Whether packets begin with a header of Ethernet.
    pub is_ethernet: bool,
}

/// All interfaces of this network namespace.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found = Vec::new();
    // struct ifinfomsg.
    ask(ROUTE, RTM_GETLINK, NLM_F_DUMP, &[0; 16], |kind, body| {
        if kind == RTM_NEWLINK {
            found.extend(interface_of(body));
        }
    })?;
    Ok(found)
}

fn interface_of(body: &[u8]) -> Option<Interface> {
    const IFLA_IFNAME: u16 = 3;
    const IFLA_MTU: u16 = 4;
    const ARPHRD_ETHER: u16 = 1;
    let (head, attributes) = body.split_first_chunk::<16>()?;
    let mut interface = Interface {
        index: u32_at(head, 4)?,
        name: String::new(),
        mtu: 0,
        is_ethernet: u16_at(head, 2)? == ARPHRD_ETHER,
    };
    for (kind, value) in Attributes(attributes) {
        match kind {
            IFLA_IFNAME => interface.name = String::from_utf8_lossy(value.strip_suffix(&[0])?).into_owned(),
            IFLA_MTU => interface.mtu = u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(interface)
}

/// The interface by which packets go to `address`, and the route's own MTU if it has one. `None` is no route.
pub fn route(address: IpAddr) -> io::Result<Option<(u32, Option<u32>)>> {
    const RTA_DST: u16 = 1;
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    // struct rtmsg: family, length of the destination in bits, the rest as the kernel likes.
    let mut question = vec![0; 12];
    question[0] = family_number(address.is_ipv6());
    question[1] = (bytes.len() * 8) as u8;
    question.extend(((4 + bytes.len()) as u16).to_ne_bytes());
    question.extend(RTA_DST.to_ne_bytes());
    question.extend(bytes);
    let mut found = None;
    let answer = ask(ROUTE, RTM_GETROUTE, 0, &question, |kind, body| {
        if kind == RTM_NEWROUTE {
            found = found.or(route_of(body));
        }
    });
    match answer {
        Ok(()) => Ok(found),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NETUNREACH) => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::HOSTUNREACH) => Ok(None),
        Err(error) => Err(error),
    }
}

fn route_of(body: &[u8]) -> Option<(u32, Option<u32>)> {
    const RTA_OIF: u16 = 4;
    const RTA_METRICS: u16 = 8;
    const RTAX_MTU: u16 = 2;
    const RTN_UNICAST: u8 = 1;
    let (head, attributes) = body.split_first_chunk::<12>()?;
    let (mut interface, mut mtu) = (None, None);
    for (kind, value) in Attributes(attributes) {
        match kind {
            RTA_OIF => interface = u32_at(value, 0),
            RTA_METRICS => {
                mtu = Attributes(value).find(|(kind, _)| *kind == RTAX_MTU).and_then(|(_, value)| u32_at(value, 0));
            }
            _ => {}
        }
    }
    // An address of this machine has a route of type local, by `lo`: nothing is to be sent there.
    (head[7] == RTN_UNICAST).then_some((interface?, mtu))
}

/// Calls `each` with client and own address of every TCP connection, half-open ones included.
pub fn connections(is_ipv6: bool, mut each: impl FnMut(SocketAddr, SocketAddr)) -> io::Result<()> {
    // Established, SYN_RECV, FIN_WAIT1 and 2, CLOSE_WAIT, LAST_ACK, CLOSING, NEW_SYN_RECV: all that may get packets,
    // but for TIME_WAIT.
    const STATES: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 12;
    const PROTOCOL_TCP: u8 = 6;
    // struct inet_diag_req_v2: family, protocol, extensions, padding, states, and an empty socket id.
    let mut question = vec![0; 56];
    question[0] = family_number(is_ipv6);
    question[1] = PROTOCOL_TCP;
    question[4..8].copy_from_slice(&STATES.to_ne_bytes());
    ask(Some(netlink::SOCK_DIAG), SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &question, |kind, body| {
        if kind == SOCK_DIAG_BY_FAMILY
            && let Some((own, client)) = connection_of(body)
        {
            each(client, own);
        }
    })
}

/// Own and client's address of a `struct inet_diag_msg`.
fn connection_of(body: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let port = |offset: usize| Some(u16::from_be_bytes(body.get(offset..offset + 2)?.try_into().ok()?));
    let address = |offset: usize| -> Option<IpAddr> {
        if body[0] == family_number(false) {
            let bytes: [u8; 4] = body.get(offset..offset + 4)?.try_into().ok()?;
            return Some(IpAddr::from(bytes));
        }
        let bytes: [u8; 16] = body.get(offset..offset + 16)?.try_into().ok()?;
        Some(IpAddr::from(bytes).to_canonical())
    };
    body.first()?;
    Some((SocketAddr::new(address(8)?, port(4)?), SocketAddr::new(address(24)?, port(6)?)))
}

fn family_number(is_ipv6: bool) -> u8 {
    let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    family.as_raw() as u8
}

/// Sends a question, and calls `each` with type and body of every message of the answer.
fn ask(
    protocol: Option<Protocol>,
    kind: u16,
    flags: u16,
    question: &[u8],
    mut each: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    let socket = open(protocol)?;
    let mut message = Vec::with_capacity(HEADER_BYTES + question.len());
    message.extend(((HEADER_BYTES + question.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(question);
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let is_dump = flags & NLM_F_DUMP != 0;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (count, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..count];
        while let Some((kind, body, after)) = message_of(rest) {
            rest = after;
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => return error_of(body),
                _ => each(kind, body),
            }
        }
        if !is_dump {
            return Ok(());
        }
    }
}

fn open(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(ANSWER_WAIT_MAX))?;
    Ok(socket)
}

/// Type, body, and what comes behind. `None` at the end, and for what is cut off.
fn message_of(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    let body = bytes.get(HEADER_BYTES..length)?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((u16_at(bytes, 4)?, body, after))
}

fn error_of(body: &[u8]) -> io::Result<()> {
    match u32_at(body, 0).map(u32::cast_signed) {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(number.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        /// Flags of nested attributes and of network order.
        const TYPE_MASK: u16 = 0x3fff;
        let length = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & TYPE_MASK;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_loopback_interface_is_found_and_is_no_ethernet() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(!loopback.is_ethernet && loopback.mtu > 0 && loopback.index > 0, "{loopback:?}");
    }

    #[test]
    fn an_address_of_this_machine_has_no_route_to_send_by() {
        assert_eq!(route("127.0.0.1".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn connections_are_found_in_both_families_also_where_a_socket_serves_both() {
        for (own, is_ipv6) in [("127.0.0.1", false), ("[::1]", true), ("[::]", true)] {
            let listener = TcpListener::bind(format!("{own}:0")).unwrap();
            let port = listener.local_addr().unwrap().port();
            let target = if own == "[::]" { format!("127.0.0.1:{port}") } else { format!("{own}:{port}") };
            let client = TcpStream::connect(target).unwrap();
            let _server = listener.accept().unwrap();
            let mut found = Vec::new();
            connections(is_ipv6, |source, destination| found.push((source, destination))).unwrap();
            let wanted = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert!(found.contains(&wanted), "{wanted:?} is not in {found:?}");
        }
    }

    #[test]
    fn messages_that_are_cut_off_or_lie_about_their_length_are_nothing() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.usize(0..80)).map(|_| random.u8(..)).collect();
            let _ = message_of(&bytes);
            let _ = (interface_of(&bytes), route_of(&bytes), connection_of(&bytes));
            assert!(Attributes(&bytes).count() <= 20);
        }
    }
}
