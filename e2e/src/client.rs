//! A client that sends exactly the bytes it is told to, with or without TLS, and reads answers exactly.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, SockRef, Socket, Type};

use crate::certificates::Certificates;
use crate::http::{self, Body, Response, framing, head_end};
use crate::wait::WAIT_MAX;

pub struct Client {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// Received and not yet taken.
    inbox: Vec<u8>,
}

/// How the other side ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In order: FIN, and close_notify before it where there is TLS.
    Clean,
    /// FIN without close_notify.
    Truncated,
    Reset,
    /// It has not, within the limit.
    Open,
}

impl Client {
    /// Plaintext.
    #[track_caller]
    pub fn plain(address: SocketAddr) -> Client {
        Client::over(connect(address, None).expect("a connection to the engine"))
    }

    /// Plaintext, from a source address of this machine.
    pub fn plain_from(source: IpAddr, address: SocketAddr) -> io::Result<Client> {
        Ok(Client::over(connect(address, Some(source))?))
    }

    /// TLS, the certificate verified for `localhost`.
    #[track_caller]
    pub fn tls(address: SocketAddr) -> Client {
        Client::tls_with(address, Certificates::shared().client())
    }

    /// An error is the connection's or the handshake's.
    pub fn try_tls_with(address: SocketAddr, config: Arc<ClientConfig>) -> io::Result<Client> {
        Client::over(connect(address, None)?).with_tls(config)
    }

    #[track_caller]
    pub fn tls_with(address: SocketAddr, config: Arc<ClientConfig>) -> Client {
        let client = Client::over(connect(address, None).expect("a connection to the engine"));
        client.with_tls(config).expect("a handshake")
    }

    /// From a source address of this machine, which widens the supply of ports.
    pub fn tls_from(source: IpAddr, address: SocketAddr) -> io::Result<Client> {
        Client::over(connect(address, Some(source))?).with_tls(Certificates::shared().client())
    }

    fn over(socket: TcpStream) -> Client {
        socket.set_read_timeout(Some(WAIT_MAX)).expect("a read timeout");
        socket.set_write_timeout(Some(WAIT_MAX)).expect("a write timeout");
        socket.set_nodelay(true).expect("no delay");
        Client { socket, tls: None, inbox: Vec::new() }
    }

    fn with_tls(mut self, config: Arc<ClientConfig>) -> io::Result<Client> {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut self.socket)?;
        }
        self.tls = Some(Box::new(tls));
        Ok(self)
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub fn local_port(&self) -> u16 {
        self.socket.local_addr().expect("a connected socket").port()
    }

    /// How long reads wait from now on.
    pub fn read_timeout(&mut self, limit: Duration) -> &mut Client {
        self.socket.set_read_timeout(Some(limit)).expect("a read timeout");
        self
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes.as_ref()).expect("the engine takes bytes");
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.write_all(bytes) };
        for piece in bytes.chunks(32 * 1024) {
            tls.writer().write_all(piece)?;
            while tls.wants_write() {
                tls.write_tls(&mut self.socket)?;
            }
        }
        Ok(())
    }

    /// Sends as much as the engine takes within the read timeout, which becomes that of writes; false when it has
    /// closed. On TLS what was not taken is kept for the next call.
    pub fn offer(&mut self, bytes: &[u8]) -> bool {
        let limit = self.socket.read_timeout().ok().flatten();
        self.socket.set_write_timeout(limit).expect("a write timeout");
        let sent = match &mut self.tls {
            None => self.socket.write(bytes).map(drop),
            Some(tls) => {
                if !tls.wants_write() {
                    tls.writer().write_all(bytes).expect("room for one piece");
                }
                tls.write_tls(&mut self.socket).map(drop)
            }
        };
        sent.is_ok() || sent.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// Whether anything has come, an end included, within the read timeout.
    pub fn has_something(&mut self) -> bool {
        !self.inbox.is_empty() || !matches!(self.fill(), Err(Ending::Open))
    }

    /// The same without any wait.
    pub fn has_something_now(&mut self) -> bool {
        let wait_max = self.socket.read_timeout().ok().flatten().unwrap_or(WAIT_MAX);
        self.read_timeout(Duration::from_millis(1));
        let has = self.has_something();
        self.read_timeout(wait_max);
        has
    }

    /// Says that no more will be sent: close_notify and FIN.
    pub fn finish(&mut self) {
        if self.tls.is_some() {
            self.close_notify();
        }
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// The same where the engine may have closed already.
    pub fn finish_if_possible(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            while tls.wants_write() && tls.write_tls(&mut self.socket).is_ok() {}
        }
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// close_notify alone: the socket stays open both ways.
    pub fn close_notify(&mut self) {
        let tls = self.tls.as_mut().expect("a TLS client");
        tls.send_close_notify();
        while tls.wants_write() {
            tls.write_tls(&mut self.socket).expect("the engine takes bytes");
        }
    }

    /// Drops the connection with a reset.
    pub fn reset(mut self) {
        self.reset_on_close();
    }

    /// Has the drop be a reset.
    pub fn reset_on_close(&mut self) {
        let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }

    /// Reads once into the inbox.
    fn fill(&mut self) -> Result<(), Ending> {
        let mut piece = [0; 32 * 1024];
        let result = match &mut self.tls {
            None => self.socket.read(&mut piece),
            Some(tls) => read_tls(tls, &mut self.socket, &mut piece),
        };
        match result {
            Ok(0) => Err(Ending::Clean),
            Ok(count) => {
                self.inbox.extend_from_slice(&piece[..count]);
                Ok(())
            }
            Err(error) => Err(match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Ending::Open,
                ErrorKind::UnexpectedEof => Ending::Truncated,
                _ => Ending::Reset,
            }),
        }
    }

    /// Exactly so many bytes.
    #[track_caller]
    pub fn read_exact(&mut self, count: usize) -> Vec<u8> {
        while self.inbox.len() < count {
            if let Err(ending) = self.fill() {
                panic!("{ending:?} after {} of {count} bytes: {:?}", self.inbox.len(), self.inbox_text());
            }
        }
        self.inbox.drain(..count).collect()
    }

    /// Reads so many bytes, shows each piece to `see`, and forgets it.
    #[track_caller]
    pub fn read_through(&mut self, count: u64, mut see: impl FnMut(&[u8])) {
        let mut left = count;
        while left > 0 {
            if self.inbox.is_empty()
                && let Err(ending) = self.fill()
            {
                panic!("{ending:?} with {left} of {count} bytes missing");
            }
            let piece = self.inbox.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            see(&self.inbox[..piece]);
            self.inbox.drain(..piece);
            left -= piece as u64;
        }
    }

    /// A head without its blank line.
    #[track_caller]
    pub fn read_head(&mut self) -> String {
        let end = loop {
            if let Some(end) = head_end(&self.inbox) {
                break end;
            }
            if let Err(ending) = self.fill() {
                panic!("{ending:?} in a head: {:?}", self.inbox_text());
            }
        };
        let head: Vec<u8> = self.inbox.drain(..end).collect();
        String::from_utf8(head[..end - 4].to_vec()).expect("heads are text here")
    }

    /// A response to anything but HEAD; one of 1xx counts as a response.
    #[track_caller]
    pub fn read_response(&mut self) -> Response {
        let head = self.read_head();
        let status: u16 = head.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status");
        let none = matches!(status, 100..200 | 204 | 304);
        let body = if none { Body::None } else { framing(&head, Body::UntilClose) };
        let mut response = Response { status, head, ..Response::default() };
        match body {
            Body::None => {}
            Body::Length(length) => response.body = self.read_exact(length),
            Body::Chunked => {
                let whole = self.read_chunked();
                (response.body, response.trailers) = (whole.data, whole.trailers);
            }
            Body::UntilClose => {
                let (bytes, ending) = self.read_to_end();
                assert_eq!(ending, Ending::Clean, "the end of a body that the close ends");
                response.body = bytes;
            }
        }
        response
    }

    #[track_caller]
    fn read_chunked(&mut self) -> http::Chunked {
        loop {
            if let Some(whole) = http::chunked(&self.inbox) {
                self.inbox.drain(..whole.length);
                return whole;
            }
            if let Err(ending) = self.fill() {
                panic!("{ending:?} in a chunked body: {:?}", self.inbox_text());
            }
        }
    }

    /// Sends a request and reads its response.
    #[track_caller]
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Response {
        self.send(request);
        self.read_response()
    }

    /// Sends a GET and reads its response.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Response {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n"))
    }

    /// Everything up to the end of the connection, and what kind of end that was.
    pub fn read_to_end(&mut self) -> (Vec<u8>, Ending) {
        loop {
            if let Err(ending) = self.fill() {
                return (std::mem::take(&mut self.inbox), ending);
            }
        }
    }

    /// The end of a connection on which nothing more is to come.
    #[track_caller]
    pub fn ending(&mut self) -> Ending {
        let (rest, ending) = self.read_to_end();
        assert!(rest.is_empty(), "unexpected bytes: {:?}", String::from_utf8_lossy(&rest));
        ending
    }

    fn inbox_text(&self) -> String {
        String::from_utf8_lossy(&self.inbox[..self.inbox.len().min(2000)]).into_owned()
    }
}

fn read_tls(tls: &mut ClientConnection, socket: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // An end without close_notify is `UnexpectedEof` here.
            done => return done,
        }
        tls.read_tls(socket)?;
        tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    }
}

pub fn connect(address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect_timeout(&address.into(), WAIT_MAX)?;
    Ok(socket.into())
}
