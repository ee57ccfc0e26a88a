//! One connection to a server: its TLS, without its socket and its buffers.

use std::ops::Range;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use super::failure::UpstreamFailure;
use super::handshake::Handshake;
use super::messages::Messages;
use crate::facts::{Suite, Version};
use crate::records::{Peer, Records};
use crate::session::{Opened, Step};

/// What a finished handshake with a server agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamFacts {
    pub version: Version,
    pub suite: Suite,
    pub resumed: bool,
    /// Position of the agreed protocol in the list that was given to `UpstreamProfile::load`; none where the server
    /// agreed on none.
    pub alpn: Option<u8>,
}

pub struct UpstreamSession {
    state: State,
}

enum State {
    Handshake(Box<Handshake>),
    Established(Box<Established>),
    /// Failed; nothing more can be done.
    Over,
}

struct Established {
    records: Records,
    messages: Messages,
    facts: UpstreamFacts,
}

impl UpstreamSession {
    /// The longest message of a handshake that is taken, and its record headers: a buffer that holds more will never be
    /// of use.
    pub const WANT_MAX: usize = 68 * 1024;

    pub(super) fn new(
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
    ) -> Result<UpstreamSession, UpstreamFailure> {
        Ok(UpstreamSession { state: State::Handshake(Box::new(Handshake::new(config, name)?)) })
    }

    /// Takes the handshake as far as the bytes received allow; the first call needs none. As with
    /// [`Session::handshake`](crate::Session::handshake): those consumed must be removed from the buffer's front, bytes for
    /// the server are appended to `out`, and after `Done` the rest is for [`UpstreamSession::open`], at once. There is no
    /// [`Step::Work`] here.
    ///
    /// After an error, too, `out` may hold something for the server.
    pub fn handshake(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), UpstreamFailure> {
        let State::Handshake(handshake) = &mut self.state else {
            return Err(UpstreamFailure::new("tls-failure", "no handshake is in progress"));
        };
        let progress = handshake.advance(buffer, out);
        match (&progress, std::mem::replace(&mut self.state, State::Over)) {
            (Ok((_, Step::Done)), State::Handshake(handshake)) => {
                let (records, messages, facts) = handshake.finish()?;
                self.state = State::Established(Box::new(Established { records, messages, facts }));
            }
            (Ok(_), state) => self.state = state,
            (Err(_), _) => {}
        }
        progress
    }

    /// Opens all complete records; see [`Session::open`](crate::Session::open).
    pub fn open(
        &mut self,
        buffer: &mut [u8],
        cipher: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<Opened, UpstreamFailure> {
        let State::Established(established) = &mut self.state else {
            return Err(UpstreamFailure::new("tls-failure", "the session is not established"));
        };
        let Established { records, messages, .. } = &mut **established;
        let opened = records.open_from(&mut Peer::Server(messages), buffer, cipher, out);
        if opened.is_err() {
            self.state = State::Over;
        }
        Ok(opened?)
    }

    /// Encrypts `plain` into records at the front of `out`; see [`Session::seal`](crate::Session::seal).
    ///
    /// # Panics
    /// If `out` is shorter than [`UpstreamSession::sealed_len`].
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> usize {
        match &mut self.state {
            State::Established(established) => established.records.seal(plain, out),
            _ => 0,
        }
    }

    /// See [`Session::is_wearing`](crate::Session::is_wearing): no further request is to begin here.
    pub fn is_wearing(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.records.is_wearing())
    }

    /// See [`Session::is_worn_out`](crate::Session::is_worn_out).
    pub fn is_worn_out(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.records.is_worn_out())
    }

    /// Upper bound of what the next [`UpstreamSession::seal`] makes of that many bytes.
    pub fn sealed_len(&self, plain_len: usize) -> usize {
        match &self.state {
            State::Established(established) => established.records.sealed_len(plain_len),
            _ => 0,
        }
    }

    /// For a session that has answered and is about to be idle: frees what can be remade from its keys, and what waited
    /// for tickets.
    pub fn rest(&mut self) {
        if let State::Established(established) = &mut self.state {
            established.records.rest();
            established.messages.rest();
        }
    }

    /// Appends a close_notify, after which nothing more can be sealed. The server may still be read from.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if let State::Established(established) = &mut self.state {
            established.records.close(out);
        }
    }

    /// Moves the session out; with what stays behind nothing can be done.
    #[must_use]
    pub fn take(&mut self) -> UpstreamSession {
        UpstreamSession { state: std::mem::replace(&mut self.state, State::Over) }
    }

    /// None before the handshake is over, and after a failure.
    pub fn facts(&self) -> Option<UpstreamFacts> {
        match &self.state {
            State::Established(established) => Some(established.facts),
            _ => None,
        }
    }
}
