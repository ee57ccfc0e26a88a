//! One connection's TLS, without its socket and its buffers.

pub(crate) mod acceptor;

use std::ops::Range;

use propylon_crypto::{Job, Outcome};

use crate::handshake::parked::{DetachedHandshake, Parked, RunResult};
use crate::handshake::step::Step;
use crate::handshake::{Handshake, INTERNAL_ERROR};
use crate::hello::class::HelloClass;
use crate::hello::info::ClientHelloInfo;
use crate::provider::facts::Facts;
use crate::records::failure::Failure;
use crate::records::wire::{HEADER_LEN, PAYLOAD_MAX};
use crate::records::{Opened, Records};

pub struct Session {
    state: State,
    hello_info: Option<Box<ClientHelloInfo>>,
}

enum State {
    Handshake(Box<Handshake>),
    /// Set aside until its job is done.
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

impl Session {
    /// A handshake makes progress with every record, but a message that is spread over several is kept in the buffer
    /// until it is whole: 64 KiB for the longest ClientHello there can be, and its record headers.
    pub const WANT_MAX: usize = 68 * 1024;

    /// The longest record. A buffer for [`Session::open`] that is smaller may never see a whole one.
    pub const RECORD_MAX: usize = HEADER_LEN + PAYLOAD_MAX;

    pub(crate) fn new(handshake: Handshake) -> Session {
        Session { state: State::Handshake(Box::new(handshake)), hello_info: None }
    }

    /// Takes the handshake as far as the bytes received allow. `buffer` holds them; those consumed must be removed
    /// from its front, and the others must be there again, in front of what comes next. Bytes for the client are
    /// appended to `out`. After `Done` the rest of the buffer is for [`Session::open`], at once: application data may
    /// have come with the handshake's end.
    ///
    /// When the step is `Read` or `Write` and the buffer is full, it must grow, up to [`Session::WANT_MAX`].
    pub fn handshake(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), Failure> {
        let State::Handshake(handshake) = &mut self.state else {
            return Err(Failure::new("over", "no handshake is in progress"));
        };
        handshake.begin_challenge(buffer);
        let progress = match handshake.bytes_to_park(buffer) {
            None => handshake.advance(buffer, out),
            Some(copied) => return self.handshake_aside(copied, buffer, out),
        };
        self.conclude(progress, buffer)
    }

    /// What the client asks for, if `buffer` holds a whole hello that has not been answered: the next call of
    /// [`Session::handshake`] with it is a dear one. Cheap, whatever the client does.
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

    /// Goes on with a handshake that waits for its job. `buffer` begins with what it began with when the step was
    /// `Work`, and may have grown. All else is as with [`Session::handshake`].
    pub fn resume(&mut self, outcome: Outcome, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), Failure> {
        let parked = match std::mem::replace(&mut self.state, State::Over) {
            State::Parked(parked) => parked,
            other => {
                self.state = other;
                return Err(Failure::new("over", "no handshake is parked"));
            }
        };
        let before = out.len();
        let copied = parked.copied;
        let (consumed, step) = self.finish_run(parked.resume(outcome), copied, buffer, out)?;
        if matches!(step, Step::Done | Step::Work) {
            return Ok((consumed, step));
        }
        // Whole records may have come meanwhile, and nothing else need ever come that would have them looked at.
        let (more, next) = self.handshake(&mut buffer[consumed..], out)?;
        let step = if next == Step::Read && out.len() > before { Step::Write } else { next };
        Ok((consumed + more, step))
    }

    /// Takes the handshake on where it can be set aside, with a copy of the records that are shown to it.
    fn handshake_aside(
        &mut self,
        copied: usize,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), Failure> {
        let State::Handshake(mut handshake) = std::mem::replace(&mut self.state, State::Over) else {
            return Err(Failure::new("over", "no handshake is in progress"));
        };
        let Some(routing) = handshake.routing.clone() else {
            return Err(Failure::new("internal", "a handshake without a way aside"));
        };
        // It looks at more than whole records.
        handshake.check_start(buffer, out)?;
        let records = buffer[..copied].to_vec();
        let result =
            Parked::begin(&routing, copied, move || DetachedHandshake::advance(handshake, records, Handshake::advance));
        self.finish_run(result, copied, buffer, out)
    }

    fn finish_run(
        &mut self,
        result: RunResult<DetachedHandshake<Handshake, Failure>>,
        copied: usize,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), Failure> {
        match result {
            RunResult::Parked(parked) => {
                self.state = State::Parked(parked);
                Ok((0, Step::Work))
            }
            RunResult::Finished(end) => {
                out.extend_from_slice(&end.out);
                // The library moves the parts of a message together in front of it, and expects to find them there.
                let Some(front) = buffer.get_mut(..copied) else {
                    return Err(Failure::new("internal", "the buffer has shrunk while the handshake was parked"));
                };
                front.copy_from_slice(&end.records);
                self.state = State::Handshake(end.handshake);
                self.conclude(end.progress, buffer)
            }
            RunResult::Panicked(message) => {
                out.extend_from_slice(&INTERNAL_ERROR);
                Err(Failure::new("internal", message))
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
            return Err(Failure::new("over", "the session is not established"));
        };
        let opened = established.records.open(buffer, cipher, out);
        if opened.is_err() {
            self.state = State::Over;
        }
        opened
    }

    /// Encrypts `plain` into records at the front of `out`. Returns the bytes written. None are, however long `plain`,
    /// before the handshake is over, after [`Session::close`] and after a failure; and when the key of a TLS 1.2
    /// session is worn out (2^24 records, 256 GiB): see [`Session::is_worn_out`]. A TLS 1.3 session goes on to new keys
    /// by itself.
    ///
    /// # Panics
    /// If `out` is shorter than [`Session::sealed_len`].
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> usize {
        match &mut self.state {
            State::Established(established) => established.records.seal(plain, out),
            _ => 0,
        }
    }

    /// Half of what may be sealed has been, and there will be no other key (TLS 1.2): time to end the session in order.
    /// The other half is for what is in progress.
    pub fn is_wearing(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.records.is_wearing())
    }

    /// [`Session::seal`] has refused to seal more: the session can only be closed, for which there is room.
    pub fn is_worn_out(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.records.is_worn_out())
    }

    /// Upper bound of what the next [`Session::seal`] makes of that many bytes.
    pub fn sealed_len(&self, plain_len: usize) -> usize {
        match &self.state {
            State::Established(established) => established.records.sealed_len(plain_len),
            _ => 0,
        }
    }

    /// For a session that is about to be idle: frees what can be remade from its keys. The next record each way then
    /// costs a little more; see `examples/session_cost.rs`.
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

    /// What was agreed on.
    ///
    /// # Panics
    /// Before [`Session::handshake`] has answered `Done`, and after a failure.
    pub fn facts(&self) -> Facts {
        match &self.state {
            State::Established(established) => established.facts,
            _ => panic!("facts of a session that is not established"),
        }
    }

    /// An authority has asked whether a name leads here, and has its answer: nothing is to follow.
    pub fn was_challenge(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.challenge)
    }

    /// What the client has said of itself, once the handshake is over or has failed.
    pub fn hello_info(&self) -> Option<&ClientHelloInfo> {
        self.hello_info.as_deref()
    }

    /// Gives up what nobody will ask for again.
    pub fn forget_hello_info(&mut self) {
        self.hello_info = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_of_a_client_who_is_nobody_in_particular_is_three_words() {
        assert_eq!(size_of::<Session>(), 24);
    }
}
