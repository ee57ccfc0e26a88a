//! One HTTP/2 connection that many streams share, opened when first needed and again when it ended.

use super::shared::{Answer, Shared};
use super::wire::Wire;
use crate::link::Broken;
use crate::stats::ErrorKind;
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};

/// Bytes that a stream, and a connection, may receive ahead of being read: what the common browsers allow.
const STREAM_WINDOW_BYTES: u32 = 6 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 15 * 1024 * 1024;
/// Connections tried for one request whose earlier ones the server left without looking at it.
const ATTEMPTS_MAX: u32 = 4;

pub struct H2Connection {
    shared: Rc<Shared>,
    open: RefCell<Option<Open>>,
    /// Number of the connection that is open, which changes with each.
    serial: Cell<u64>,
    /// The last connection that ended with a GOAWAY of the server's, and what it said.
    blamed: RefCell<Option<(u64, String)>>,
    /// Held by the stream that opens the connection; the others wait for it.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Open {
    serial: u64,
    sender: SendRequest<Bytes>,
}

impl H2Connection {
    pub fn new(shared: Rc<Shared>) -> Self {
        Self {
            shared,
            open: RefCell::new(None),
            serial: Cell::new(0),
            blamed: RefCell::new(None),
            opening: tokio::sync::Mutex::new(()),
        }
    }

    /// Asks once, and again only if the server said that it had not processed the request (RFC 9113 §6.8).
    pub async fn ask(self: &Rc<Self>) -> Result<Answer, Broken> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let Open { serial, sender } = self.opened().await?;
            let error = match sender.ready().await {
                Ok(mut sender) => match self.exchange(&mut sender).await {
                    Ok(answer) => return Ok(answer),
                    // The stream's own end; its connection lives on.
                    Err(error) if error.is_reset() => return Err(broken(&error)),
                    Err(error) if attempts < ATTEMPTS_MAX && is_unprocessed(&error) => {
                        self.shared.stats.borrow_mut().retried += 1;
                        self.discard(serial);
                        continue;
                    }
                    Err(error) => error,
                },
                // The connection ended while nothing was asked on it: no request was lost.
                Err(_) if attempts < ATTEMPTS_MAX => {
                    self.discard(serial);
                    continue;
                }
                Err(error) => error,
            };
            self.discard(serial);
            return Err(self.broken(serial, &error));
        }
    }

    async fn opened(self: &Rc<Self>) -> Result<Open, Broken> {
        if let Some(open) = &*self.open.borrow() {
            return Ok(open.clone());
        }
        let _turn = self.opening.lock().await;
        if let Some(open) = &*self.open.borrow() {
            return Ok(open.clone());
        }
        self.shared.stats.borrow_mut().connections += 1;
        let wire = Wire::open(&self.shared.target).await?;
        if let Some(negotiated) = wire.negotiated() {
            self.shared.stats.borrow_mut().record_handshake(negotiated);
        }
        let (sender, connection) = handshake(wire).await?;
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let shared_connection = Rc::downgrade(self);
        tokio::task::spawn_local(drive(connection, shared_connection, serial));
        let open = Open { serial, sender };
        self.open.replace(Some(open.clone()));
        Ok(open)
    }

    /// A stream that a GOAWAY left unanswered hears of the end of the connection only.
    fn broken(&self, serial: u64, error: &h2::Error) -> Broken {
        match &*self.blamed.borrow() {
            Some((blamed, said)) if *blamed == serial => Broken::new(ErrorKind::Goaway, said),
            _ => broken(error),
        }
    }

    /// The next request opens a new connection, unless one was opened meanwhile.
    fn discard(&self, serial: u64) {
        self.open.borrow_mut().take_if(|open| open.serial == serial);
    }

    async fn exchange(&self, sender: &mut SendRequest<Bytes>) -> Result<Answer, h2::Error> {
        let request = &self.shared.request;
        let (response, upload) = sender.send_request(request.head.clone(), request.body.is_empty())?;
        if request.body.is_empty() {
            return self.read(response).await;
        }
        // Both at once: an echo would stop taking the body when nobody takes what it returns.
        let (answer, sent) = tokio::join!(self.read(response), self.upload(upload));
        match sent {
            // A server may answer without reading on, and say so (RFC 9113 §8.1).
            Err(error) if error.reason() != Some(Reason::NO_ERROR) && answer.is_ok() => Err(error),
            _ => answer,
        }
    }

    async fn read(&self, response: ResponseFuture) -> Result<Answer, h2::Error> {
        read(response.await?, |bytes| self.shared.stats.borrow_mut().moved.down += bytes).await
    }

    async fn upload(&self, mut stream: SendStream<Bytes>) -> Result<(), h2::Error> {
        let mut body = self.shared.request.body.clone();
        while !body.is_empty() {
            stream.reserve_capacity(body.len());
            let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
                // The stream is over; its answer says why.
                return Ok(());
            };
            let piece = body.split_to(room?.min(body.len()));
            self.shared.stats.borrow_mut().moved.up += piece.len() as u64;
            stream.send_data(piece, body.is_empty())?;
        }
        Ok(())
    }
}

/// Begins HTTP/2 on a wire that is for nothing else, as the common browsers do.
pub async fn handshake(wire: Wire) -> Result<(SendRequest<Bytes>, h2::client::Connection<Wire, Bytes>), Broken> {
    h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .enable_push(false)
        .handshake(wire)
        .await
        .map_err(|error| broken(&error))
}

/// Reads a response to its end, and tells `seen` of its bytes as they come.
pub async fn read(response: Response<RecvStream>, mut seen: impl FnMut(u64)) -> Result<Answer, h2::Error> {
    let mut answer = Answer { status: response.status().as_u16(), body_bytes: 0 };
    let mut body = response.into_body();
    while let Some(data) = body.data().await {
        let bytes = data?.len();
        answer.body_bytes += bytes as u64;
        seen(bytes as u64);
        body.flow_control().release_capacity(bytes)?;
    }
    Ok(answer)
}

/// Moves the connection's frames until it ends.
async fn drive(connection: h2::client::Connection<Wire, Bytes>, shared_connection: Weak<H2Connection>, serial: u64) {
    let ended = connection.await;
    if let Some(shared_connection) = shared_connection.upgrade() {
        shared_connection.discard(serial);
        if let Some(error) = ended.err().filter(|error| error.is_go_away() && error.is_remote()) {
            shared_connection.blamed.replace(Some((serial, error.to_string())));
        }
    }
}

/// The server took its leave before it looked at this request.
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR)
}

pub fn broken(error: &h2::Error) -> Broken {
    let kind = if error.is_reset() {
        ErrorKind::StreamReset
    } else if error.is_go_away() && error.is_remote() {
        ErrorKind::Goaway
    } else {
        match error.get_io().map(io::Error::kind) {
            Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe) => ErrorKind::Closed,
            Some(io::ErrorKind::InvalidData) => ErrorKind::Tls,
            Some(_) => ErrorKind::Reset,
            None => ErrorKind::BadFraming,
        }
    };
    Broken::new(kind, error)
}
