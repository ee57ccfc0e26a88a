//! TLS of one connection to a server, without socket and buffers.

use std::ops::Range;
use std::sync::Arc;

use propylon_crypto::{Job, Outcome};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use super::facts::UpstreamFacts;
use super::failure::{UpstreamFailure, UpstreamFailureReason};
use super::handshake::Handshake;
use crate::handshake::parked::{DetachedHandshake, Parked, RunResult};
use crate::handshake::step::Step;
use crate::parking::JobRouting;
use crate::records::messages::Messages;
use crate::records::{Opened, Peer, Records};

/// Handshake of one connection. It stays on its core; the session may go to another.
pub struct UpstreamHandshake {
    state: State,
}

enum State {
    Handshake(Box<Handshake>),
    /// Parked until there is a signature.
    Parked(Box<Parked<Detached>>),
    Done(UpstreamSession),
    /// Failed; nothing more can be done.
    Over,
}

type Detached = DetachedHandshake<Handshake, UpstreamFailure>;

/// Established session of one connection; empty after a failure.
pub struct UpstreamSession(Option<Box<Established>>);

struct Established {
    records: Records,
    messages: Messages,
    facts: UpstreamFacts,
}

impl UpstreamHandshake {
    /// Largest buffer that a handshake needs: the longest message that is accepted, and its record headers.
    pub const WANT_MAX: usize = 68 * 1024;

    pub(super) fn new(
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
        routing: Option<JobRouting>,
    ) -> Result<UpstreamHandshake, UpstreamFailure> {
        Ok(UpstreamHandshake { state: State::Handshake(Box::new(Handshake::new(config, name, routing)?)) })
    }

    /// Advances the handshake as far as the bytes received allow; the first call needs none. As with
    /// [`Session::handshake`](crate::Session::handshake), consumed bytes must be removed from the buffer's front, bytes
    /// for the server are appended to `out`, and after `Done` the rest is for [`UpstreamSession::open`], at once. After
    /// [`Step::Work`], which only a [`Connector`](crate::Connector) that defers leads to, go on with
    /// [`UpstreamHandshake::take_job`] and [`UpstreamHandshake::resume`].
    ///
    /// After an error, too, `out` may hold something for the server.
    pub fn advance(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), UpstreamFailure> {
        let State::Handshake(handshake) = &mut self.state else { return Err(not_in_progress()) };
        let Some(copied) = handshake.bytes_to_park(buffer) else {
            let progress = handshake.advance(buffer, out);
            return self.conclude(progress);
        };
        let State::Handshake(handshake) = std::mem::replace(&mut self.state, State::Over) else {
            return Err(not_in_progress());
        };
        let Some(routing) = handshake.routing.clone() else { return Err(not_in_progress()) };
        let records = buffer[..copied].to_vec();
        let result =
            Parked::begin(&routing, move || DetachedHandshake::advance(handshake, records, Handshake::advance));
        self.finish_run(result, buffer, out)
    }

    /// See [`Session::take_job`](crate::Session::take_job).
    pub fn take_job(&mut self) -> Option<Job> {
        match &mut self.state {
            State::Parked(parked) => parked.take_job(),
            _ => None,
        }
    }

    /// See [`Session::resume`](crate::Session::resume).
    pub fn resume(
        &mut self,
        outcome: Outcome,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), UpstreamFailure> {
        let parked = match std::mem::replace(&mut self.state, State::Over) {
            State::Parked(parked) => parked,
            other => {
                self.state = other;
                return Err(not_in_progress());
            }
        };
        let before = out.len();
        let (consumed, step) = self.finish_run(parked.resume(outcome), buffer, out)?;
        if matches!(step, Step::Done | Step::Work) {
            return Ok((consumed, step));
        }
        // Complete records may have been received meanwhile.
        let (more, next) = self.advance(&mut buffer[consumed..], out)?;
        let step = if next == Step::Read && out.len() > before { Step::Write } else { next };
        Ok((consumed + more, step))
    }

    fn finish_run(
        &mut self,
        result: RunResult<Detached>,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), UpstreamFailure> {
        match result {
            RunResult::Parked(parked) => {
                self.state = State::Parked(parked);
                Ok((0, Step::Work))
            }
            RunResult::Finished(end) => {
                let Some((handshake, progress)) = end.reattach(buffer, out) else {
                    return Err(UpstreamFailure::new(
                        UpstreamFailureReason::Failure,
                        "the buffer has shrunk while the handshake was parked",
                    ));
                };
                self.state = State::Handshake(handshake);
                self.conclude(progress)
            }
            RunResult::Panicked(message) => Err(UpstreamFailure::new(UpstreamFailureReason::Failure, message)),
        }
    }

    fn conclude(&mut self, progress: Result<(usize, Step), UpstreamFailure>) -> Result<(usize, Step), UpstreamFailure> {
        match (&progress, std::mem::replace(&mut self.state, State::Over)) {
            (Ok((_, Step::Done)), State::Handshake(handshake)) => {
                let (records, messages, facts) = handshake.finish()?;
                self.state = State::Done(UpstreamSession(Some(Box::new(Established { records, messages, facts }))));
            }
            (Ok(_), state) => self.state = state,
            (Err(_), _) => {}
        }
        progress
    }

    /// The established session, once after [`Step::Done`].
    pub fn finish(&mut self) -> Option<UpstreamSession> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Done(session) => Some(session),
            _ => None,
        }
    }
}

impl UpstreamSession {
    /// Opens all complete records; see [`Session::open`](crate::Session::open).
    pub fn open(
        &mut self,
        buffer: &mut [u8],
        cipher: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<Opened, UpstreamFailure> {
        let Some(established) = &mut self.0 else {
            return Err(UpstreamFailure::new(UpstreamFailureReason::Failure, "the session has failed"));
        };
        let Established { records, messages, .. } = &mut **established;
        let opened = records.open_from(&mut Peer::Server(messages), buffer, cipher, out);
        if opened.is_err() {
            self.0 = None;
        }
        Ok(opened?)
    }

    /// Encrypts `plain` into records at the front of `out`; see [`Session::seal`](crate::Session::seal).
    ///
    /// # Panics
    /// If `out` is shorter than [`UpstreamSession::sealed_len`].
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> usize {
        match &mut self.0 {
            Some(established) => established.records.seal(plain, out),
            None => 0,
        }
    }

    /// See [`Session::is_wearing`](crate::Session::is_wearing): no further request is to begin here.
    pub fn is_wearing(&self) -> bool {
        self.0.as_ref().is_some_and(|established| established.records.is_wearing())
    }

    /// See [`Session::is_worn_out`](crate::Session::is_worn_out).
    pub fn is_worn_out(&self) -> bool {
        self.0.as_ref().is_some_and(|established| established.records.is_worn_out())
    }

    /// Upper bound of what the next [`UpstreamSession::seal`] makes of that many bytes.
    pub fn sealed_len(&self, plain_len: usize) -> usize {
        match &self.0 {
            Some(established) => established.records.sealed_len(plain_len),
            None => 0,
        }
    }

    /// Frees memory of a session that is about to be idle, which can be made again from its keys, and stops waiting for
    /// tickets.
    pub fn rest(&mut self) {
        if let Some(established) = &mut self.0 {
            established.records.rest();
            established.messages.rest();
        }
    }

    /// Appends a close_notify, after which nothing more can be sealed. The server may still be read from.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if let Some(established) = &mut self.0 {
            established.records.close(out);
        }
    }

    /// Negotiated parameters; none after a failure.
    pub fn facts(&self) -> Option<UpstreamFacts> {
        self.0.as_ref().map(|established| established.facts)
    }
}

fn not_in_progress() -> UpstreamFailure {
    UpstreamFailure::new(UpstreamFailureReason::Failure, "no handshake is in progress")
}
