//! One connection's TLS, without its socket and its buffers.

use std::ops::Range;

use crate::facts::Facts;
use crate::failure::Failure;
use crate::handshake::{HEADER_LEN, Handshake, PAYLOAD_MAX};
use crate::introduction::Introduction;
use crate::records::Records;

/// What a handshake waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// More bytes from the client; nothing to send.
    Read,
    /// `out` has something for the client; send it, then read.
    Write,
    /// The handshake is over. `out` may still hold its end, which may be sent together with the first response.
    Done,
}

/// What [`Session::open`] made of the bytes it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Plaintext bytes at the buffer's front.
    pub plain: usize,
    /// Bytes used up at the front of the cipher range; the rest is an incomplete record, to be shown again.
    pub consumed: usize,
    /// The client has sent close_notify: no plaintext follows. It can still be written to.
    pub end: bool,
}

pub struct Session {
    state: State,
    introduction: Option<Box<Introduction>>,
}

enum State {
    Handshake(Box<Handshake>),
    Established(Box<Established>),
    /// Failed; nothing more can be done.
    Over,
}

struct Established {
    records: Records,
    facts: Facts,
}

impl Session {
    /// A handshake makes progress with every record, but a message that is spread over several is kept in the buffer
    /// until it is whole: 64 KiB for the longest ClientHello there can be, and its record headers.
    pub const WANT_MAX: usize = 68 * 1024;

    /// The longest record. A buffer for [`Session::open`] that is smaller may never see a whole one.
    pub const RECORD_MAX: usize = HEADER_LEN + PAYLOAD_MAX;

    pub(crate) fn new(handshake: Handshake) -> Session {
        Session { state: State::Handshake(Box::new(handshake)), introduction: None }
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
        match handshake.advance(buffer, out) {
            Ok((consumed, Step::Done)) => {
                self.establish()?;
                Ok((consumed, Step::Done))
            }
            Ok(progress) => Ok(progress),
            Err(failure) => {
                let introduction = handshake.introduction_of_failed(buffer);
                self.introduce(introduction);
                self.state = State::Over;
                Err(failure)
            }
        }
    }

    fn introduce(&mut self, introduction: Introduction) {
        self.introduction = (!introduction.is_empty()).then(|| Box::new(introduction));
    }

    fn establish(&mut self) -> Result<(), Failure> {
        let State::Handshake(mut handshake) = std::mem::replace(&mut self.state, State::Over) else {
            return Ok(());
        };
        self.introduce(handshake.introduction());
        let facts = handshake.facts();
        let secrets = std::mem::take(&mut handshake.heard.secrets);
        let records = Records::new(handshake.connection, secrets, &facts)?;
        self.state = State::Established(Box::new(Established { records, facts }));
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
    /// before the handshake is over, after [`Session::close`] and after a failure; and when the keys of a TLS 1.2
    /// session are worn out (2^24 records, 256 GiB), which is the time to close it. A TLS 1.3 session goes on to new
    /// keys by itself.
    ///
    /// # Panics
    /// If `out` is shorter than [`Session::sealed_len`].
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> usize {
        match &mut self.state {
            State::Established(established) => established.records.seal(plain, out),
            _ => 0,
        }
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

    /// What the client has said of itself, once the handshake is over or has failed.
    pub fn introduction(&self) -> Option<&Introduction> {
        self.introduction.as_deref()
    }

    /// Gives up what nobody will ask for again.
    pub fn forget_introduction(&mut self) {
        self.introduction = None;
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
