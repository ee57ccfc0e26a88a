//! TCP sockets as an event loop wants them: nonblocking and close-on-exec from their first moment.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, acceptfrom_with, recv, send, sockopt};
use rustix::time::Timespec;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::address::{Address, ConnectSource, UnixName};
use crate::privileges::Account;

/// Connections to a Unix socket that wait for their accept.
const ADMIN_BACKLOG: i32 = 64;

/// How to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Several sockets, one per core, share the address and the kernel spreads the connections over them. All of them
    /// must say so. It also lets a second process of the same user take part of the traffic: see [`check_free`].
    pub reuse_port: bool,
    /// Connections that wait for their accept. The kernel caps it at `net.core.somaxconn`. Default 4096.
    pub backlog: u32,
    /// Hand out a connection only when its first bytes are there, or when this has passed; whole seconds, at least
    /// one. Saves a wake-up per connection, and hides silent clients from the caller until then.
    pub defer_accept: Option<Duration>,
    /// An IPv6 socket takes IPv6 only, so that `0.0.0.0:443` and `[::]:443` can be bound side by side. Default true.
    pub v6only: bool,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { reuse_port: false, backlog: 4096, defer_accept: None, v6only: true }
    }
}

/// A listening socket, with SO_REUSEADDR so that a restart does not wait for old connections to be forgotten.
pub fn listen(address: SocketAddr, options: ListenOptions) -> io::Result<TcpListener> {
    let socket = bound(address, options.v6only, options.reuse_port)?;
    if let Some(wait) = options.defer_accept {
        set_defer_accept(&socket, Some(wait))?;
    }
    socket.listen(options.backlog.min(i32::MAX as u32) as i32)?;
    Ok(socket.into())
}

/// A Unix socket that the account of this process alone can connect to. One that was left behind by a process that is gone
/// is replaced; `ErrorKind::AddrInUse` if somebody listens there, or if there is something else.
pub fn listen_unix(path: &Path, owner: Option<&Account>) -> io::Result<UnixListener> {
    if let Ok(metadata) = fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() || UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec().nonblocking(), None)?;
    // Linux gives the file the socket's own mode at its bind (unix_bind): there is no moment with another one.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(account) = owner {
        chown(path, Some(account.uid), Some(account.gid))?;
    }
    socket.listen(ADMIN_BACKLOG)?;
    Ok(socket.into())
}

/// Advice about a bind that failed.
pub fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop what listens there (ss -ltnp shows it) or choose another port",
        io::ErrorKind::PermissionDenied => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
        io::ErrorKind::AddrNotAvailable => "use an address of this machine (ip address shows them)",
        _ => "check the address",
    }
}

/// Whether nobody listens at `address`; `ErrorKind::AddrInUse` if somebody does, this process included.
///
/// With `reuse_port` a second start by mistake would succeed and silently take half of the connections; asking first
/// finds it. An IPv6 address is asked about for IPv6 only.
pub fn check_free(address: SocketAddr) -> io::Result<()> {
    // Bound without SO_REUSEPORT, and closed on return: a bind says no if any listener has the address.
    bound(address, true, false).map(drop)
}

fn bound(address: SocketAddr, v6only: bool, reuse_port: bool) -> io::Result<Socket> {
    let socket = tcp_socket(address)?;
    if address.is_ipv6() {
        socket.set_only_v6(v6only)?;
    }
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Takes the next connection, or says `WouldBlock`.
///
/// One system call: std's accept needs two more to make the socket nonblocking. An IPv4 client of a dual-stack
/// listener is reported with its IPv4 address.
pub fn accept(listener: impl AsFd) -> io::Result<(TcpStream, SocketAddr)> {
    let (socket, peer) = acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
    let peer = peer.ok_or(Errno::AFNOSUPPORT)?;
    let peer = SocketAddr::try_from(peer)?;
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    Ok((TcpStream::from(socket), peer))
}

/// Starts to connect, without Nagle's delay. The socket is connected once it is writable and [`connect_result`]
/// says `Ok`; a Unix socket is at once. `ErrorKind::WouldBlock` if as many wait for the accept at a Unix socket as may:
/// the kernel does not tell when fewer do.
pub fn connect(address: impl Into<Address>) -> io::Result<TcpStream> {
    match address.into() {
        Address::Ip(address) => {
            let socket = tcp_socket(address)?;
            socket.set_tcp_nodelay(true)?;
            begin_connect(socket, address)
        }
        Address::Unix(name) => connect_unix(name),
    }
}

/// As [`connect`], from an address or an interface of this machine. `nodelay`: without Nagle's delay; where it is true
/// `has_bytes` of [`connect_to_write_once`] does not matter.
///
/// # Errors
/// `ErrorKind::AddrNotAvailable` if this machine does not have the address, or no port is left for another connection
/// between the two. `ErrorKind::NotFound` or a raw ENODEV if it does not have the interface.
pub fn connect_from(
    address: SocketAddr,
    source: ConnectSource<'_>,
    (nodelay, has_bytes): (bool, bool),
) -> io::Result<TcpStream> {
    let socket = tcp_socket(address)?;
    if nodelay {
        socket.set_tcp_nodelay(true)?;
    } else if has_bytes {
        sockopt::set_tcp_quickack(&socket, false)?;
    }
    set_source(&socket, source)?;
    begin_connect(socket, address)
}

/// Whether connections can come from here: this machine has the address, or the interface and the right to choose it.
pub fn check_source(source: ConnectSource<'_>) -> io::Result<()> {
    let any: SocketAddr = match source {
        ConnectSource::Address(address) => SocketAddr::new(address, 0),
        ConnectSource::Interface(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
    };
    set_source(&tcp_socket(any)?, source)
}

fn set_source(socket: &Socket, source: ConnectSource<'_>) -> io::Result<()> {
    match source {
        ConnectSource::Address(address) => {
            set_bind_address_no_port(socket)?;
            socket.bind(&SocketAddr::new(address, 0).into())
        }
        ConnectSource::Interface(name) => socket.bind_device(Some(name.as_bytes())),
    }
}

/// Has a bind to port 0 leave the port to the connect (ip(7), IP_BIND_ADDRESS_NO_PORT): it then need not be free for
/// all destinations, but for one.
#[allow(unsafe_code)]
fn set_bind_address_no_port(socket: &Socket) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the pointer and the length name one
    // c_int on the stack, which the kernel only reads.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A stream to a Unix socket. It goes by the type of TCP streams, which reads and writes any socket: what is TCP's
/// alone has no effect on it, or fails.
fn connect_unix(name: UnixName) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&name.to_sock_addr()?)?;
    Ok(socket.into())
}

/// As [`connect`], with Nagle's delay, which the first write does not meet, since nothing waits for an acknowledgement
/// then; [`set_nodelay`] is to come before the second. `has_bytes`: the first write follows at once, and the last
/// segment of the TCP handshake goes out with it instead of alone (tcp(7), TCP_QUICKACK).
pub fn connect_to_write_once(address: impl Into<Address>, has_bytes: bool) -> io::Result<TcpStream> {
    let address = match address.into() {
        Address::Ip(address) => address,
        Address::Unix(name) => return connect_unix(name),
    };
    let socket = tcp_socket(address)?;
    if has_bytes {
        sockopt::set_tcp_quickack(&socket, false)?;
    }
    begin_connect(socket, address)
}

fn begin_connect(socket: Socket, address: SocketAddr) -> io::Result<TcpStream> {
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Result of a connect, to be asked when the socket is writable. The error is given once.
pub fn connect_result(stream: impl AsFd) -> io::Result<()> {
    Ok(sockopt::socket_error(stream)??)
}

/// Whether an idle pooled connection is no longer fit for a request: closed, broken, or with bytes that nobody asked
/// for (which would be taken for the answer). Reads nothing and never waits.
pub fn peek_closed(stream: impl AsFd) -> bool {
    let mut byte = [0];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    loop {
        match recv(&stream, &mut byte, flags) {
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}

/// Reads what has come, at most as much as `into` takes; 0 is the end. Without a look at whether the thread is to be
/// cancelled, which the C library's call begins and ends with.
///
/// # Errors
/// Errors of recv(2): `WouldBlock` on a socket that is non-blocking, where nothing has come.
#[inline]
pub fn receive(stream: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    Ok(recv(stream, into, RecvFlags::empty())?.1)
}

/// Writes as much as the kernel takes; as [`receive`]. A peer that has gone is an error and no signal.
///
/// # Errors
/// Errors of send(2): `WouldBlock` on a socket that is non-blocking, where there is no room.
#[inline]
pub fn send_now(stream: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(send(stream, bytes, SendFlags::NOSIGNAL)?)
}

/// Number of bytes that can be read at once, counted up to one; 0 is the end. Reads nothing and never waits.
pub fn peek(stream: impl AsFd) -> io::Result<usize> {
    Ok(recv(&stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?.1)
}

/// Whether there is something to be read: bytes, an end, an error. Reads nothing, takes no error away and never waits.
pub fn peek_readable(stream: impl AsFd) -> bool {
    polls(stream, PollFlags::IN | PollFlags::RDHUP, PollFlags::all())
}

/// Whether the connection has failed: reset by the peer, or timed out. Data waiting to be read, or an orderly end of the peer's, is
/// no failure, and hides none that comes behind it. Reads nothing, takes no error away and never waits.
pub fn peek_reset(stream: impl AsFd) -> bool {
    // Reported whether or not it is asked for (poll(2)). A hang-up is none: both sides may have ended in order, with bytes unread.
    polls(stream, PollFlags::empty(), PollFlags::ERR | PollFlags::NVAL)
}

/// Whether the peer sends no more: it has ended its half (FIN) or the connection has failed, whatever waits to be read.
/// Reads nothing, takes no error away and never waits.
pub fn peek_ended(stream: impl AsFd) -> bool {
    polls(stream, PollFlags::RDHUP, PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// Whether the kernel, asked for `asked`, reports any of `wanted` now.
fn polls(stream: impl AsFd, asked: PollFlags, wanted: PollFlags) -> bool {
    let mut polled = [PollFd::new(&stream, asked)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(wanted)
}

/// Address that a client has connected to; an IPv4 address as such also on a dual-stack socket.
pub fn local_address(stream: impl AsFd) -> io::Result<SocketAddr> {
    let address = SocketAddr::try_from(rustix::net::getsockname(stream)?)?;
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Writes what is followed by more at once: the kernel holds it back a moment, to send both together. Returns how much
/// of it was taken.
pub fn send_more(stream: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(send(stream, bytes, SendFlags::MORE | SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

/// Without Nagle's delay. Sockets accepted from a listener inherit it.
pub fn set_nodelay(socket: impl AsFd) -> io::Result<()> {
    SockRef::from(&socket.as_fd()).set_tcp_nodelay(true)
}

/// Makes closing the socket a reset: the peer learns that the answer is broken off, and nothing lingers in the kernel.
pub fn reset_on_close(stream: impl AsFd) -> io::Result<()> {
    SockRef::from(&stream.as_fd()).set_linger(Some(Duration::ZERO))
}

/// Bytes that a socket's peer has not acknowledged: they are still to be sent, or on their way (SIOCOUTQ, tcp(7)).
#[allow(unsafe_code)]
pub fn unacknowledged(socket: impl AsFd) -> io::Result<u32> {
    use std::os::fd::AsRawFd;

    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one int to where `count` is.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if result == 0 { Ok(count.unsigned_abs()) } else { Err(io::Error::last_os_error()) }
}

fn tcp_socket(address: SocketAddr) -> io::Result<Socket> {
    // Close-on-exec is socket2's default.
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))
}

/// See [`ListenOptions::defer_accept`]; on a socket that listens already.
#[allow(unsafe_code)]
pub fn set_defer_accept(socket: impl AsFd, wait: Option<Duration>) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let socket = socket.as_fd();
    // Zero switches it off.
    let seconds = wait.map_or(0, |wait| wait.as_secs().clamp(1, i32::MAX as u64)) as libc::c_int;
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the pointer and the length name one
    // c_int on the stack, which the kernel only reads.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsFd;

    use rustix::fs::fcntl_getfl;
    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;

    /// Loopback addresses of one test each, which needs a port to stay free once it is closed.
    const OWN_LOOPBACKS: [&str; 2] = ["127.0.0.2:0", "127.0.0.3:0"];
    /// Long enough for a busy machine; a test that gets what it waits for never takes it.
    const WAIT_SECONDS_MAX: i64 = 20;

    fn wait(socket: &impl AsFd, what: PollFlags) {
        let wait_max = Timespec { tv_sec: WAIT_SECONDS_MAX, tv_nsec: 0 };
        let mut polled = [PollFd::new(socket, what)];
        assert_eq!(poll(&mut polled, Some(&wait_max)).unwrap(), 1, "nothing happened on the socket");
    }

    fn listener(options: ListenOptions) -> (TcpListener, SocketAddr) {
        listener_at("127.0.0.1:0", options)
    }

    fn listener_at(address: &str, options: ListenOptions) -> (TcpListener, SocketAddr) {
        let listener = listen(address.parse().unwrap(), options).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
        wait(listener, PollFlags::IN);
        accept(listener).unwrap()
    }

    fn is_nonblocking_and_cloexec(socket: &impl AsFd) -> bool {
        let flags = fcntl_getfl(socket).unwrap();
        flags.contains(rustix::fs::OFlags::NONBLOCK) && fcntl_getfd(socket).unwrap().contains(FdFlags::CLOEXEC)
    }

    #[test]
    fn a_connection_is_made_without_ever_blocking() {
        let (listener, address) = listener(ListenOptions::default());
        assert_eq!(accept(&listener).unwrap_err().kind(), ErrorKind::WouldBlock);
        let client = connect(address).unwrap();
        wait(&client, PollFlags::OUT);
        connect_result(&client).unwrap();
        let (server, peer) = accepted(&listener);
        assert_eq!(peer, client.local_addr().unwrap());
        assert!(client.nodelay().unwrap());
        assert!(is_nonblocking_and_cloexec(&listener));
        assert!(is_nonblocking_and_cloexec(&client));
        assert!(is_nonblocking_and_cloexec(&server));
    }

    #[test]
    fn a_first_write_ends_the_handshake_and_meets_no_delay() {
        for has_bytes in [false, true] {
            let (listener, address) = listener(ListenOptions::default());
            let mut client = connect_to_write_once(address, has_bytes).unwrap();
            assert!(is_nonblocking_and_cloexec(&client));
            assert!(!client.nodelay().unwrap());
            wait(&client, PollFlags::OUT);
            connect_result(&client).unwrap();
            client.write_all(b"first").unwrap();
            set_nodelay(&client).unwrap();
            client.write_all(b", second").unwrap();
            drop(client);
            let (mut server, _) = accepted(&listener);
            server.set_nonblocking(false).unwrap();
            let mut heard = String::new();
            server.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "first, second");
        }
    }

    #[test]
    fn a_connection_comes_from_the_address_that_was_chosen_and_its_port_serves_other_destinations_too() {
        let (listener, address) = listener(ListenOptions::default());
        for (nodelay, has_bytes) in [(true, false), (false, false), (false, true)] {
            let source = ConnectSource::Address("127.0.0.9".parse().unwrap());
            let client = connect_from(address, source, (nodelay, has_bytes)).unwrap();
            wait(&client, PollFlags::OUT);
            connect_result(&client).unwrap();
            let (_server, peer) = accepted(&listener);
            assert_eq!((peer, peer.ip().to_string()), (client.local_addr().unwrap(), "127.0.0.9".to_owned()));
            assert_eq!(client.nodelay().unwrap(), nodelay);
        }
        let client = connect_from(address, ConnectSource::Interface("lo"), (true, false)).unwrap();
        wait(&client, PollFlags::OUT);
        connect_result(&client).unwrap();
        let elsewhere = ConnectSource::Address("192.0.2.1".parse().unwrap());
        assert_eq!(check_source(elsewhere).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        assert!(check_source(ConnectSource::Interface("propylon-none")).is_err());
        for source in ["127.0.0.9", "::1"] {
            // A kernel without IPv6 has nothing to be tested here.
            let done = check_source(ConnectSource::Address(source.parse().unwrap()));
            assert!(done.is_ok() || source == "::1", "{source}: {done:?}");
        }
    }

    #[test]
    fn a_unix_socket_is_connected_at_once_whether_it_has_a_file_or_not() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let name = format!("propylon-sys-unix-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let file = UnixListener::bind(&path).unwrap();
        let no_file = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let names = [path.to_str().unwrap().to_owned(), format!("@{name}")];
        for (listener, name) in [file, no_file].into_iter().zip(names) {
            let mut client = connect(UnixName::new(&name)).unwrap();
            assert!(is_nonblocking_and_cloexec(&client));
            client.write_all(b"first").unwrap();
            let (mut server, _) = listener.accept().unwrap();
            assert_eq!(send_more(&client, b", second").unwrap(), 8);
            assert!(!peek_reset(&client) && !peek_closed(&client));
            drop(client);
            let mut heard = String::new();
            server.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "first, second");
            drop(listener);
        }
        let dead = connect(UnixName::new(path.to_str().unwrap())).unwrap_err();
        assert_eq!(dead.kind(), ErrorKind::ConnectionRefused);
        fs::remove_file(&path).unwrap();
        let gone = connect(UnixName::new(path.to_str().unwrap())).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        let long = connect(UnixName::new(&format!("/{}", "a".repeat(108)))).unwrap_err();
        assert_eq!(long.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_refused_connect_is_reported_by_its_result() {
        let (listener, address) = listener_at(OWN_LOOPBACKS[0], ListenOptions::default());
        drop(listener);
        let client = connect(address).unwrap();
        wait(&client, PollFlags::OUT);
        assert_eq!(connect_result(&client).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_unix_socket_is_its_owners_alone_and_takes_the_place_of_one_left_behind() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("propylon-sys-{}.sock", std::process::id()));
        let socket = listen_unix(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(is_nonblocking_and_cloexec(&socket));
        assert_eq!(listen_unix(&path, None).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(socket);
        drop(listen_unix(&path, None).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "not a socket").unwrap();
        assert_eq!(listen_unix(&path, None).unwrap_err().kind(), ErrorKind::AddrInUse);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn cores_share_a_port_only_if_all_of_them_ask_for_it() {
        let shared = ListenOptions { reuse_port: true, ..ListenOptions::default() };
        let (_first, address) = listener(shared);
        let _second = listen(address, shared).unwrap();
        let alone = listen(address, ListenOptions::default());
        assert_eq!(alone.unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(check_free(address).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn an_address_is_free_again_right_after_its_connections() {
        let (listener, address) = listener_at(OWN_LOOPBACKS[1], ListenOptions::default());
        let client = connect(address).unwrap();
        let (server, _) = accepted(&listener);
        // The side that closes first is the one that TIME_WAIT holds on to.
        drop((server, listener));
        wait(&client, PollFlags::IN);
        drop(client);
        check_free(address).unwrap();
        listen(address, ListenOptions::default()).unwrap();
    }

    #[test]
    fn ipv4_and_ipv6_are_bound_side_by_side() {
        let options = ListenOptions::default();
        // Several times, since the port that is free for IPv6 may be taken for IPv4 by somebody else.
        for _ in 0..16 {
            let Ok(six) = listen("[::]:0".parse().unwrap(), options) else {
                // A kernel without IPv6 has nothing to be tested here.
                return;
            };
            let port = six.local_addr().unwrap().port();
            if listen(SocketAddr::from(([0, 0, 0, 0], port)), options).is_ok() {
                return;
            }
        }
        panic!("no port could be bound for both");
    }

    #[test]
    fn an_ipv4_client_of_a_dual_stack_listener_keeps_its_address() {
        let options = ListenOptions { v6only: false, ..ListenOptions::default() };
        let Ok(listener) = listen("[::]:0".parse().unwrap(), options) else {
            return;
        };
        let port = listener.local_addr().unwrap().port();
        let client = connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        let (_server, peer) = accepted(&listener);
        assert_eq!(peer, client.local_addr().unwrap());
    }

    #[test]
    fn a_deferred_connection_appears_with_its_first_byte() {
        let (listener, address) =
            listener(ListenOptions { defer_accept: Some(Duration::from_secs(60)), ..ListenOptions::default() });
        let mut silent = connect(address).unwrap();
        let mut speaking = connect(address).unwrap();
        wait(&silent, PollFlags::OUT);
        wait(&speaking, PollFlags::OUT);
        speaking.write_all(b"x").unwrap();
        let (_server, peer) = accepted(&listener);
        assert_eq!(peer, speaking.local_addr().unwrap());
        assert_eq!(accept(&listener).unwrap_err().kind(), ErrorKind::WouldBlock);
        silent.write_all(b"x").unwrap();
        let (_server, peer) = accepted(&listener);
        assert_eq!(peer, silent.local_addr().unwrap());
    }

    #[test]
    fn a_pooled_connection_is_fit_until_the_peer_says_anything() {
        let (listener, address) = listener(ListenOptions::default());
        let client = connect(address).unwrap();
        let (mut server, _) = accepted(&listener);
        assert!(!peek_closed(&client));
        server.write_all(b"HTTP/1.1 408 ").unwrap();
        wait(&client, PollFlags::IN);
        assert!(peek_closed(&client));
        assert_eq!(peek(&client).unwrap(), 1);
        let mut bytes = [0; 32];
        assert_eq!((&client).read(&mut bytes).unwrap(), 13, "peeking takes nothing");
        assert!(!peek_closed(&client));
        assert_eq!(peek(&client).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(server);
        wait(&client, PollFlags::IN);
        assert!(peek_closed(&client));
        assert_eq!(peek(&client).unwrap(), 0);
    }

    #[test]
    fn a_reset_shows_behind_bytes_and_behind_an_end_and_neither_of_these_is_one() {
        let (listener, address) = listener(ListenOptions::default());
        for ends_first in [false, true] {
            let client = connect(address).unwrap();
            let (mut server, _) = accepted(&listener);
            server.write_all(b"GET / HTTP/1.1").unwrap();
            if ends_first {
                server.shutdown(std::net::Shutdown::Write).unwrap();
            }
            wait(&client, PollFlags::IN);
            assert!(!peek_reset(&client));
            assert_eq!(peek_ended(&client), ends_first);
            reset_on_close(&server).unwrap();
            drop(server);
            wait(&client, PollFlags::empty());
            assert!(peek_reset(&client) && peek_reset(&client), "an end first: {ends_first}");
            assert!(peek_ended(&client));
        }
    }

    #[test]
    fn closing_becomes_a_reset() {
        let (listener, address) = listener(ListenOptions::default());
        let mut client = connect(address).unwrap();
        let (server, _) = accepted(&listener);
        reset_on_close(&server).unwrap();
        drop(server);
        wait(&client, PollFlags::IN);
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
