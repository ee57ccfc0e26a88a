//! One connection to a key server: mutual TLS over a socket, and the operations that wait for their replies on it.

use crate::link::Broken;
use crate::stats::{ErrorKind, LoadStats};
use crate::target::Target;
use rustls::ClientConnection;
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// An operation on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// When it should have gone out; latency counts from here.
    pub due: Instant,
    /// Number of its input.
    pub serial: u64,
}

/// Operations by ID. An ID is a slot's number in its low bits and above them how often the slot was used: finding the
/// operation costs nothing, and a reply that comes twice or too late is not taken for another operation's.
pub struct Slots {
    ids: Vec<u32>,
    waiting: Vec<Option<Waiting>>,
    free: Vec<usize>,
    stride: u32,
}

impl Slots {
    pub fn new(outstanding: usize) -> Self {
        let stride = outstanding.next_power_of_two() as u32;
        Self {
            ids: (0..outstanding as u32).collect(),
            waiting: vec![None; outstanding],
            free: (0..outstanding).rev().collect(),
            stride,
        }
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.waiting.len()
    }

    /// The ID to send; there must be room.
    pub fn put(&mut self, operation: Waiting) -> u32 {
        let slot = self.free.pop().expect("the caller asked whether there is room");
        self.waiting[slot] = Some(operation);
        self.ids[slot]
    }

    /// The operation with this ID, if it waits.
    pub fn take(&mut self, id: u32) -> Option<Waiting> {
        let slot = (id & (self.stride - 1)) as usize;
        if self.ids.get(slot) != Some(&id) { None } else { self.release(slot) }
    }

    /// The operations that were due before `limit`.
    pub fn take_overdue(&mut self, limit: Instant) -> Vec<Waiting> {
        let slots: Vec<usize> = (0..self.waiting.len())
            .filter(|slot| self.waiting[*slot].is_some_and(|operation| operation.due < limit))
            .collect();
        slots.into_iter().filter_map(|slot| self.release(slot)).collect()
    }

    pub fn take_all(&mut self) -> Vec<Waiting> {
        (0..self.waiting.len()).filter_map(|slot| self.release(slot)).collect()
    }

    pub fn all(&self) -> impl Iterator<Item = Waiting> + '_ {
        self.waiting.iter().copied().flatten()
    }

    fn release(&mut self, slot: usize) -> Option<Waiting> {
        let operation = self.waiting[slot].take()?;
        self.ids[slot] = self.ids[slot].wrapping_add(self.stride);
        self.free.push(slot);
        Some(operation)
    }
}

/// Why a connection is of no more use.
pub enum Fault {
    Link(Broken),
    /// Bytes that are not a reply.
    Malformed(&'static str),
}

impl Fault {
    pub fn record(&self, stats: &mut LoadStats) {
        match self {
            Self::Link(broken) => stats.record_error(broken.kind, || broken.detail.clone()),
            Self::Malformed(what) => stats.record_named_error("malformed-reply", || (*what).to_owned()),
        }
    }
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Link(broken)
    }
}

pub struct Channel {
    pub socket: TcpStream,
    pub tls: Box<ClientConnection>,
    /// Plaintext that is not a whole reply yet.
    pub received: Vec<u8>,
    /// Last sign of life, the beginning included.
    pub heard: Instant,
    connected: bool,
}

impl Channel {
    /// Starts to connect.
    pub fn open(target: &Target, now: Instant) -> Result<Self, Broken> {
        let socket = target.connect().map_err(|error| Broken::new(ErrorKind::Connect, error))?;
        let tls = target.tls_session().map_err(|error| Broken::new(ErrorKind::Tls, error))?;
        let tls = tls.ok_or_else(|| Broken::new(ErrorKind::Tls, "a key server is asked over TLS only"))?;
        Ok(Self { socket, tls, received: Vec::new(), heard: now, connected: false })
    }

    /// One record per frame, as the stock tools do; system calls are shared.
    pub fn queue(&mut self, frame: &[u8]) -> Result<(), Broken> {
        self.tls.writer().write_all(frame).map_err(|error| Broken::new(ErrorKind::Tls, error))
    }

    /// Sends what can be sent.
    pub fn flush(&mut self) -> Result<(), Broken> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => self.connected = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(())
    }

    /// Takes what one read gives: `None` if that was nothing, else whether the server may still send.
    pub fn read(&mut self, scratch: &mut [u8]) -> Result<Option<bool>, Broken> {
        let count = match self.socket.read(scratch) {
            Ok(0) => return Ok(Some(false)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Some(true)),
            Err(error) => return Err(self.broken(error)),
        };
        self.heard = Instant::now();
        let mut bytes = &scratch[..count];
        while !bytes.is_empty() {
            let before = bytes.len();
            self.tls.read_tls(&mut bytes).map_err(|error| Broken::new(ErrorKind::Tls, error))?;
            let state = self.tls.process_new_packets().map_err(|error| Broken::new(ErrorKind::Tls, error))?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let mut reader = self.tls.reader();
                let plaintext = reader.fill_buf().map_err(|error| Broken::new(ErrorKind::Tls, error))?;
                let count = plaintext.len();
                self.received.extend_from_slice(plaintext);
                reader.consume(count);
                left -= count;
            }
            if state.peer_has_closed() || bytes.len() == before {
                return Ok(Some(false));
            }
        }
        Ok(Some(true))
    }

    /// The error that an end at this point stands for.
    pub fn ended(&self) -> Broken {
        let kind = match () {
            () if !self.connected => ErrorKind::Connect,
            () if self.tls.is_handshaking() => ErrorKind::Tls,
            () => ErrorKind::Closed,
        };
        Broken::new(kind, "closed by the key server")
    }

    /// Protocol version and cipher suite, once they are agreed on.
    pub fn agreed(&self) -> Option<String> {
        let version = self.tls.protocol_version()?;
        let suite = self.tls.negotiated_cipher_suite()?.suite();
        Some(format!("{}, {}", version.as_str()?, suite.as_str()?))
    }

    /// Closes with a reset, so that no TIME_WAIT holds the local port.
    pub fn close(self) {
        let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }

    fn broken(&self, error: io::Error) -> Broken {
        Broken::new(if self.connected { ErrorKind::Reset } else { ErrorKind::Connect }, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_finds_its_operation_once_and_no_other() {
        let due = Instant::now();
        let operation = |serial| Waiting { due, serial };
        let mut slots = Slots::new(3);
        let ids: Vec<u32> = (0..3).map(|serial| slots.put(operation(serial))).collect();
        assert!(!slots.has_room());
        assert_eq!(slots.take(ids[1]), Some(operation(1)));
        assert_eq!(slots.take(ids[1]), None, "twice");
        let again = slots.put(operation(9));
        assert_eq!(
            (slots.take(ids[1]), slots.take(3), slots.take(u32::MAX)),
            (None, None, None),
            "never sent, or late"
        );
        assert_eq!(slots.take(again), Some(operation(9)));
        assert_eq!(slots.take_overdue(due + Duration::from_nanos(1)).len(), 2);
        assert!(slots.is_idle());
    }
}
