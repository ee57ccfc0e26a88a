//! Messages between processes of one machine that carry open files, and what is asked about such files.
//!
//! The sockets are of the kind that keeps messages apart (SOCK_SEQPACKET), so a message and its files arrive together
//! or not at all.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, accept_with, recv, recvmsg, send, sendmsg, sockopt,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use rustix::time::Timespec;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::privileges::Account;

/// Files that one message may carry; the kernel's own limit is 253 (SCM_MAX_FD).
pub const FILES_PER_MESSAGE_MAX: usize = 128;
/// Longer messages may not fit the socket's buffer, whose size is the machine's to choose.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Connections that wait for their accept.
const BACKLOG: i32 = 16;

/// Listens at `path`, for this account and root alone; `owner`, if the process is to become that, and is root now. A
/// socket that was left behind by a process that is gone is replaced in one step; `ErrorKind::AddrInUse` if somebody
/// listens there, or if there is something else.
pub fn listen_messages(path: &Path, owner: Option<&Account>) -> io::Result<OwnedFd> {
    if let Ok(metadata) = fs::symlink_metadata(path)
        && (!metadata.file_type().is_socket() || connect_messages(path, Duration::ZERO).is_ok())
    {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let draft = Path::new(&draft);
    let _ = fs::remove_file(draft);
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.cloexec().nonblocking(), None)?;
    // The file gets the socket's own mode at its bind: there is no moment with another one.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    socket.bind(&SockAddr::unix(draft)?)?;
    let configure = || -> io::Result<()> {
        socket.listen(BACKLOG)?;
        if let Some(account) = owner {
            chown(draft, Some(account.uid), Some(account.gid))?;
        }
        fs::rename(draft, path)
    };
    configure().inspect_err(|_| {
        let _ = fs::remove_file(draft);
    })?;
    Ok(socket.into())
}

/// Connects to who listens at `path`. The socket waits for each message, and for room for one, for so long; zero: for
/// ever.
pub fn connect_messages(path: &Path, wait_max: Duration) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.cloexec(), None)?;
    let limit = (!wait_max.is_zero()).then_some(wait_max);
    socket.set_read_timeout(limit)?;
    socket.set_write_timeout(limit)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

/// Takes the next connection, nonblocking, or says `WouldBlock`.
pub fn accept_messages(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?)
}

/// Whether the other end runs as this account, or as root.
pub fn is_peer_trusted(socket: impl AsFd) -> io::Result<bool> {
    let peer = sockopt::socket_peercred(socket)?.uid;
    Ok(peer.is_root() || peer == geteuid())
}

/// The number of the process at the other end; 0 where this one cannot see it.
pub fn peer_process(socket: impl AsFd) -> io::Result<u32> {
    Ok(sockopt::socket_peercred(socket)?.pid.as_raw_nonzero().get().unsigned_abs())
}

/// Sends a message whole, with at most [`FILES_PER_MESSAGE_MAX`] files.
pub fn send_message(socket: impl AsFd, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_PER_MESSAGE_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = files.len() <= FILES_PER_MESSAGE_MAX;
    let taken = files.is_empty() || (fits && ancillary.push(SendAncillaryMessage::ScmRights(files)));
    if !taken {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The next message and its files, close-on-exec from their first moment. A message of no bytes: the other end has
/// closed. `ErrorKind::InvalidData` if it, or what came with it, is too long.
pub fn receive_message(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_PER_MESSAGE_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            files.extend(sent);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received.bytes, files))
}

/// Two sockets that lead to each other and to nobody else, whose calls wait, close-on-exec.
pub fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET.cloexec(), None)?;
    Ok((one.into(), other.into()))
}

/// Sends a message without files, whole, or says `WouldBlock` where there is no room for it; never waits.
pub fn try_send_message(socket: impl AsFd, message: &[u8]) -> io::Result<()> {
    send(socket, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// The next message, without the files that it may carry; 0: the other end has closed. Never waits: `WouldBlock` where
/// there is none. Of one that is longer than the buffer the rest is lost.
pub fn try_receive_message(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(recv(socket, buffer, RecvFlags::DONTWAIT)?.0)
}

/// The same socket as the event loop wants it, or for calls that wait.
pub fn set_nonblocking(socket: impl AsFd, nonblocking: bool) -> io::Result<()> {
    SockRef::from(&socket.as_fd()).set_nonblocking(nonblocking)
}

/// A file that is a listening TCP socket, nonblocking; else `ErrorKind::InvalidInput`.
pub fn tcp_listener(file: OwnedFd) -> io::Result<TcpListener> {
    listening(file, &[AddressFamily::INET, AddressFamily::INET6], SocketType::STREAM).map(TcpListener::from)
}

/// A file that is a listening Unix socket, nonblocking; else `ErrorKind::InvalidInput`.
pub fn unix_listener(file: OwnedFd) -> io::Result<UnixListener> {
    listening(file, &[AddressFamily::UNIX], SocketType::STREAM).map(UnixListener::from)
}

/// A file that listens for messages; else `ErrorKind::InvalidInput`.
pub fn message_listener(file: OwnedFd) -> io::Result<OwnedFd> {
    listening(file, &[AddressFamily::UNIX], SocketType::SEQPACKET)
}

fn listening(file: OwnedFd, families: &[AddressFamily], kind: SocketType) -> io::Result<OwnedFd> {
    // A file that is no socket is refused with ENOTSOCK by the first of these.
    let fits = sockopt::socket_type(&file)? == kind
        && families.contains(&sockopt::socket_domain(&file)?)
        && sockopt::socket_acceptconn(&file)?;
    if !fits {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set_nonblocking(&file, true)?;
    Ok(file)
}

/// Whether several sockets may listen at this one's address.
pub fn shares_port(socket: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::socket_reuseport(socket)?)
}

/// A process, whatever becomes of its number.
pub struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    pub fn of(pid: u32) -> io::Result<ProcessWatch> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(ProcessWatch(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Whether it has ended, or does so within `wait`.
    pub fn has_ended(&self, wait: Duration) -> bool {
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;
    use crate::{ListenOptions, listen};

    const WAIT_MAX: Duration = Duration::from_secs(20);

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("propylon-handover-{}-{name}", std::process::id()))
    }

    fn pair(name: &str) -> (OwnedFd, OwnedFd) {
        let path = place(name);
        let listener = listen_messages(&path, None).unwrap();
        let client = connect_messages(&path, WAIT_MAX).unwrap();
        let server = accept_messages(&listener).unwrap();
        set_nonblocking(&server, false).unwrap();
        fs::remove_file(&path).unwrap();
        (client, server)
    }

    #[test]
    fn a_message_arrives_whole_with_its_files_and_they_are_close_on_exec() {
        let (client, server) = pair("files");
        let sockets: Vec<TcpListener> =
            (0..3).map(|_| listen("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap()).collect();
        let files: Vec<BorrowedFd<'_>> = sockets.iter().map(|socket| socket.as_fd()).collect();
        send_message(&client, b"three", &files).unwrap();
        send_message(&client, b"none", &[]).unwrap();
        let mut buffer = [0; 64];
        let (length, received) = receive_message(&server, &mut buffer).unwrap();
        assert_eq!((&buffer[..length], received.len()), (&b"three"[..], 3));
        for (file, socket) in received.into_iter().zip(&sockets) {
            assert!(fcntl_getfd(&file).unwrap().contains(FdFlags::CLOEXEC));
            assert_ne!(file.as_raw_fd(), socket.as_raw_fd());
            assert_eq!(tcp_listener(file).unwrap().local_addr().unwrap(), socket.local_addr().unwrap());
        }
        let (length, received) = receive_message(&server, &mut buffer).unwrap();
        assert_eq!((&buffer[..length], received.len()), (&b"none"[..], 0));
        drop(client);
        assert_eq!(receive_message(&server, &mut buffer).unwrap().0, 0, "the other end has closed");
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error_and_its_files_are_closed() {
        let (client, server) = pair("long");
        send_message(&client, &[7; 100], &[client.as_fd()]).unwrap();
        assert_eq!(receive_message(&server, &mut [0; 10]).unwrap_err().kind(), ErrorKind::InvalidData);
        let all: Vec<BorrowedFd<'_>> = (0..=FILES_PER_MESSAGE_MAX).map(|_| client.as_fd()).collect();
        assert_eq!(send_message(&client, b"x", &all).unwrap_err().kind(), ErrorKind::InvalidInput);
        send_message(&client, b"x", &all[1..]).unwrap();
        assert_eq!(receive_message(&server, &mut [0; 10]).unwrap().1.len(), FILES_PER_MESSAGE_MAX);
    }

    #[test]
    fn a_place_is_its_owners_alone_and_taken_over_only_where_nobody_answers() {
        let path = place("place");
        let socket = listen_messages(&path, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen_messages(&path, None).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(socket);
        let again = listen_messages(&path, None).unwrap();
        let client = connect_messages(&path, WAIT_MAX).unwrap();
        // The refused attempt above has left a connection behind where it was asked, and nothing here.
        assert!(is_peer_trusted(accept_messages(&again).unwrap()).unwrap());
        drop(client);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "not a socket").unwrap();
        assert_eq!(listen_messages(&path, None).unwrap_err().kind(), ErrorKind::AddrInUse);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_sockets_that_listen_pass_for_listeners() {
        let (client, server) = pair("kinds");
        assert_eq!(tcp_listener(client.try_clone().unwrap()).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(unix_listener(server).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(message_listener(client).unwrap_err().kind(), ErrorKind::InvalidInput);
        let file = fs::File::open("/dev/null").unwrap();
        assert!(tcp_listener(file.into()).is_err());
        let listener = listen("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
        let connected = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(tcp_listener(connected.into()).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(!shares_port(&listener).unwrap());
        assert!(tcp_listener(listener.into()).is_ok());
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let watch = ProcessWatch::of(child.id()).unwrap();
        assert!(!watch.has_ended(Duration::ZERO));
        child.kill().unwrap();
        assert!(watch.has_ended(WAIT_MAX));
        child.wait().unwrap();
        assert!(watch.has_ended(Duration::ZERO));
        assert!(ProcessWatch::of(0).is_err() && ProcessWatch::of(u32::MAX).is_err());
    }
}
