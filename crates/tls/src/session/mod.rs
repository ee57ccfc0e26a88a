//! TLS of one connection from a client, without socket and buffers.

pub(crate) mod acceptor;

use std::ops::Range;

use propylon_crypto::{Job, Outcome};

use crate::handshake::parked::{DetachedHandshake, Parked, RunResult};
use crate::handshake::step::Step;
use crate::handshake::{Handshake, INTERNAL_ERROR};
use crate::hello::class::HelloClass;
use crate::hello::info::ClientHelloInfo;
use crate::provider::facts::Facts;
use crate::records::failure::{Failure, FailureReason};
use crate::records::wire::{HEADER_LEN, PAYLOAD_MAX};
use crate::records::{Opened, Records};

pub struct Session {
    state: State,
    hello_info: Option<Box<ClientHelloInfo>>,
}

enum State {
    Handshake(Box<Handshake>),
    /// Parked until its job is done.
    Parked(Box<Parked<DetachedHandshake<Handshake, Failure>>>),
    Established(Box<Established>),
    /// Failed; nothing more can be done.
    Over,
}

struct Established {
    records: Records,
    facts: Facts,
    challenge: bool,
}

/// An established session on its way to another thread. A handshake in progress belongs to its own.
pub struct EstablishedSession {
    established: Box<Established>,
    hello_info: Option<Box<ClientHelloInfo>>,
}

impl From<EstablishedSession> for Session {
    fn from(session: EstablishedSession) -> Session {
        Session { state: State::Established(session.established), hello_info: session.hello_info }
    }
}

impl Session {
    /// Largest buffer that a handshake needs. It consumes every record, but a message split over several is kept in the
    /// buffer until it is complete: 64 KiB for the longest ClientHello, and its record headers.
    pub const WANT_MAX: usize = 68 * 1024;

    /// Length of the longest record. A smaller buffer for [`Session::open`] may never hold a complete one.
    pub const RECORD_MAX: usize = HEADER_LEN + PAYLOAD_MAX;

    pub(crate) fn new(handshake: Handshake) -> Session {
        Session { state: State::Handshake(Box::new(handshake)), hello_info: None }
    }

    /// Advances the handshake as far as the bytes received allow. `buffer` holds them; consumed bytes must be removed
    /// from its front, and the others must be there again, in front of later ones. Bytes for the client are appended to
    /// `out`. After `Done` the rest of the buffer must go to [`Session::open`] at once: application data may follow the
    /// handshake's end.
    ///
    /// When the step is `Read` or `Write` and the buffer is full, it must grow, up to [`Session::WANT_MAX`].
    pub fn handshake(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), Failure> {
        let State::Handshake(handshake) = &mut self.state else {
            return Err(Failure::new(FailureReason::Over, "no handshake is in progress"));
        };
        handshake.begin_challenge(buffer);
        let progress = match handshake.bytes_to_park(buffer) {
            None => handshake.advance(buffer, out),
            Some(copied) => return self.handshake_on_fiber(copied, buffer, out),
        };
        self.conclude(progress, buffer)
    }

    /// Class of the ClientHello, if `buffer` holds a complete one that has not been answered: then the next call of
    /// [`Session::handshake`] is expensive. This check is cheap, whatever the client sends.
    pub fn hello_class(&mut self, buffer: &[u8]) -> Option<HelloClass> {
        match &mut self.state {
            State::Handshake(handshake) => handshake.hello_class(buffer),
            _ => None,
        }
    }

    /// The job that the handshake waits for, once for each [`Step::Work`].
    pub fn take_job(&mut self) -> Option<Job> {
        match &mut self.state {
            State::Parked(parked) => parked.take_job(),
            _ => None,
        }
    }

    /// Resumes a handshake that waits for its job. `buffer` begins with what it began with when the step was `Work`,
    /// and may have grown. Otherwise as [`Session::handshake`].
    pub fn resume(&mut self, outcome: Outcome, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), Failure> {
        let parked = match std::mem::replace(&mut self.state, State::Over) {
            State::Parked(parked) => parked,
            other => {
                self.state = other;
                return Err(Failure::new(FailureReason::Over, "no handshake is parked"));
            }
        };
        let before = out.len();
        let (consumed, step) = self.finish_run(parked.resume(outcome), buffer, out)?;
        if matches!(step, Step::Done | Step::Work) {
            return Ok((consumed, step));
        }
        // Complete records may have been received meanwhile, and the client may send nothing more.
        let (more, next) = self.handshake(&mut buffer[consumed..], out)?;
        let step = if next == Step::Read && out.len() > before { Step::Write } else { next };
        Ok((consumed + more, step))
    }

    /// Advances the handshake on a fiber, with a copy of the records.
    fn handshake_on_fiber(
        &mut self,
        copied: usize,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), Failure> {
        let State::Handshake(mut handshake) = std::mem::replace(&mut self.state, State::Over) else {
            return Err(Failure::new(FailureReason::Over, "no handshake is in progress"));
        };
        let Some(routing) = handshake.routing.clone() else {
            return Err(Failure::new(FailureReason::Internal, "a handshake that cannot be parked"));
        };
        // This check needs incomplete records as well.
        handshake.check_start(buffer, out)?;
        let records = buffer[..copied].to_vec();
        let result =
            Parked::begin(&routing, move || DetachedHandshake::advance(handshake, records, Handshake::advance));
        self.finish_run(result, buffer, out)
    }

    fn finish_run(
        &mut self,
        result: RunResult<DetachedHandshake<Handshake, Failure>>,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), Failure> {
        match result {
            RunResult::Parked(parked) => {
                self.state = State::Parked(parked);
                Ok((0, Step::Work))
            }
            RunResult::Finished(end) => {
                let Some((handshake, progress)) = end.reattach(buffer, out) else {
                    return Err(Failure::new(
                        FailureReason::Internal,
                        "the buffer has shrunk while the handshake was parked",
                    ));
                };
                self.state = State::Handshake(handshake);
                self.conclude(progress, buffer)
            }
            RunResult::Panicked(message) => {
                out.extend_from_slice(&INTERNAL_ERROR);
                Err(Failure::new(FailureReason::Internal, message))
            }
        }
    }

    fn conclude(&mut self, progress: Result<(usize, Step), Failure>, buffer: &[u8]) -> Result<(usize, Step), Failure> {
        match progress {
            Ok((consumed, Step::Done)) => {
                self.establish()?;
                Ok((consumed, Step::Done))
            }
            Ok(progress) => Ok(progress),
            Err(failure) => {
                if let State::Handshake(mut handshake) = std::mem::replace(&mut self.state, State::Over) {
                    self.keep_hello_info(handshake.hello_info_of_failed(buffer));
                }
                Err(failure)
            }
        }
    }

    fn keep_hello_info(&mut self, hello_info: ClientHelloInfo) {
        self.hello_info = (!hello_info.is_empty()).then(|| Box::new(hello_info));
    }

    fn establish(&mut self) -> Result<(), Failure> {
        let State::Handshake(mut handshake) = std::mem::replace(&mut self.state, State::Over) else {
            return Ok(());
        };
        self.keep_hello_info(handshake.hello_info());
        let (facts, challenge) = (handshake.facts(), handshake.challenge);
        let secrets = std::mem::take(&mut handshake.captured.secrets);
        let keys = std::mem::take(&mut handshake.captured.keys);
        let records = Records::towards_client(secrets, keys, facts.version, facts.suite)?;
        self.state = State::Established(Box::new(Established { records, facts, challenge }));
        Ok(())
    }

    /// Opens all complete records in `buffer[cipher]` and moves their plaintext to the front of `buffer`, which may
    /// lie before the cipher range or at its start. Answers to the client (key updates, alerts) are appended to `out`.
    pub fn open(&mut self, buffer: &mut [u8], cipher: Range<usize>, out: &mut Vec<u8>) -> Result<Opened, Failure> {
        let State::Established(established) = &mut self.state else {
            return Err(Failure::new(FailureReason::Over, "the session is not established"));
        };
        let opened = established.records.open(buffer, cipher, out);
        if opened.is_err() {
            self.state = State::Over;
        }
        opened
    }

    /// Encrypts `plain` into records at the front of `out`, and returns the bytes written. Nothing is written before
    /// the handshake is over, after [`Session::close`], after a failure, and when the key of a TLS 1.2 session is worn
    /// out (2^24 records, 256 GiB): see [`Session::is_worn_out`]. A TLS 1.3 session updates its keys by itself.
    ///
    /// # Panics
    /// If `out` is shorter than [`Session::sealed_len`].
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> usize {
        match &mut self.state {
            State::Established(established) => established.records.seal(plain, out),
            _ => 0,
        }
    }

    /// Whether half of the key's records are used up, and there is no key update (TLS 1.2): the session should be ended
    /// in order. The other half is for requests in progress.
    pub fn is_wearing(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.records.is_wearing())
    }

    /// Whether [`Session::seal`] has refused to seal more: the session can only be closed, for which there is room.
    pub fn is_worn_out(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.records.is_worn_out())
    }

    /// Upper bound of the length that the next [`Session::seal`] makes of that many bytes.
    pub fn sealed_len(&self, plain_len: usize) -> usize {
        match &self.state {
            State::Established(established) => established.records.sealed_len(plain_len),
            _ => 0,
        }
    }

    /// Frees memory of a session that is about to be idle, which can be made again from its keys. The next record each
    /// way then costs a little more; see `examples/session_cost.rs`.
    pub fn rest(&mut self) {
        if let State::Established(established) = &mut self.state {
            established.records.rest();
        }
    }

    /// Appends a close_notify, after which nothing more can be sealed. The client may still be read from.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if let State::Established(established) = &mut self.state {
            established.records.close(out);
        }
    }

    /// Negotiated parameters.
    ///
    /// # Panics
    /// Before [`Session::handshake`] has answered `Done`, and after a failure.
    pub fn facts(&self) -> Facts {
        match &self.state {
            State::Established(established) => established.facts,
            _ => panic!("facts of a session that is not established"),
        }
    }

    /// Whether the handshake is over, and nothing has failed since.
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// The session as another thread can have it.
    ///
    /// # Errors
    /// The session, where it is not established.
    pub fn into_established(self) -> Result<EstablishedSession, Session> {
        match self.state {
            State::Established(established) => Ok(EstablishedSession { established, hello_info: self.hello_info }),
            state => Err(Session { state, ..self }),
        }
    }

    /// Whether this was an authority's challenge, which has been answered: nothing is to follow.
    pub fn was_challenge(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.challenge)
    }

    /// Facts about the client, once the handshake is over or has failed.
    pub fn hello_info(&self) -> Option<&ClientHelloInfo> {
        self.hello_info.as_deref()
    }

    /// Drops the facts about the client, which nobody will ask for again.
    pub fn forget_hello_info(&mut self) {
        self.hello_info = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_established_session_is_plain_data() {
        fn goes_to_another_thread<T: Send>() {}
        goes_to_another_thread::<EstablishedSession>();
    }

    #[test]
    fn a_session_of_a_client_who_is_nobody_in_particular_is_three_words() {
        assert_eq!(size_of::<Session>(), 24);
    }
}
