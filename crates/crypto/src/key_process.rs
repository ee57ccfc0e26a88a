//! Keys in a process of their own: it holds them, signs with them and reads their files, so that the process that faces
//! the network has none (`docs/decisions/0039-isolated-keys.md`).
//!
//! [`KeyFiles`] is how an engine asks about files; signatures are asked for as of a key server ([`crate::keyless`]),
//! with keys that have [`RemoteKey::KEY_PROCESS`](crate::RemoteKey::KEY_PROCESS) for their signer. `wire` has the
//! messages.

mod kept;
mod wire;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use kept::{KeptKey, NewKey, Purpose};
pub use wire::{
    ANSWER_BYTES_MAX, Answer, GONE, HERE, KeyFile, MESSAGE_BYTES_MAX, Malformed, Order, Question, SECTIONS_MAX, Secret,
    Setup, UPLOAD_BYTES_MAX, Unread,
};

use crate::key::Ski;

/// Time limit for an answer, a restart of the process in between included.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Pause in which nothing more is asked of a process that has not answered: the thread that waits has other work as
/// well.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Reads files with keys, by the process that holds these.
pub struct KeyFiles {
    channel: Mutex<Channel>,
    /// Accounts with authorities that the key process knows since its start.
    accounts: BTreeSet<String>,
    /// Number of files that were read so far.
    stamp: AtomicU64,
}

struct Channel {
    /// Socket to the process. Keeps messages apart, whatever its type is called here.
    socket: UnixDatagram,
    next_id: u32,
    /// Time before which the process, having failed to answer, is not asked again.
    retry_at: Option<Instant>,
    buffer: Box<[u8]>,
}

/// The reason why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// The file is at fault.
    Unread(Unread),
    /// The key process does not answer.
    Unavailable,
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        match failure {
            Failure::Unread(Unread::Missing) => ErrorKind::NotFound.into(),
            Failure::Unread(Unread::Denied) => ErrorKind::PermissionDenied.into(),
            Failure::Unread(Unread::Failed(why)) => io::Error::other(why),
            Failure::Unread(Unread::Other) => io::Error::other("it holds something else"),
            Failure::Unread(why) => io::Error::other(format!("{why:?}")),
            Failure::Unavailable => io::Error::other("the key process does not answer"),
        }
    }
}

impl KeyFiles {
    /// Asks over a socket whose other end a key process has, or will have, that keeps keys of these accounts.
    #[must_use]
    pub fn new(socket: OwnedFd, accounts: BTreeSet<String>) -> KeyFiles {
        let buffer = vec![0; MESSAGE_BYTES_MAX].into();
        let channel = Channel { socket: socket.into(), next_id: 0, retry_at: None, buffer };
        KeyFiles { channel: Mutex::new(channel), accounts, stamp: AtomicU64::new(0) }
    }

    /// Returns when the process answers for the first time; an error where it has ended before, or takes longer.
    pub fn wait_until_ready(&self, wait_max: Duration) -> io::Result<()> {
        let mut channel = self.channel();
        let deadline = Instant::now() + wait_max;
        while channel.receive(deadline)? != HERE.len() {}
        Ok(())
    }

    /// Whether keys of this account are made and used: others come to have some with the next start.
    pub fn keeps_for(&self, account: &str) -> bool {
        self.accounts.contains(account)
    }

    /// The contents of a PEM file that may hold keys; its keys stay with the process.
    pub fn read(&self, path: &Path) -> Result<KeyFile, Failure> {
        let stamp = self.next_stamp();
        match self.ask(&Question::Read { path: path.into(), stamp })? {
            Answer::File(file) => Ok(file),
            _ => Err(Failure::Unavailable),
        }
    }

    fn next_stamp(&self) -> u64 {
        self.stamp.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The OCSP response in a file.
    pub fn response(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        self.bytes(&Question::Response(path.into()))
    }

    /// The text of this process's configuration.
    pub fn config(&self) -> Result<Vec<u8>, Failure> {
        self.bytes(&Question::Config)
    }

    fn bytes(&self, question: &Question) -> Result<Vec<u8>, Failure> {
        match self.ask(question)? {
            Answer::Bytes(bytes) => Ok(bytes),
            _ => Err(Failure::Unavailable),
        }
    }

    /// Has signatures made with the keys that were read.
    pub fn publish(&self) -> Result<(), Failure> {
        self.ask(&Question::Publish).map(drop)
    }

    /// The number of files read up to now, for [`KeyFiles::forget`].
    pub fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Relaxed)
    }

    /// Has all keys forgotten but these, and what was read after `stamp`.
    pub fn forget(&self, kept: &[Ski], stamp: u64) -> Result<(), Failure> {
        for part in kept.chunks(Question::KEEP_MAX) {
            self.ask(&Question::Keep(part.to_vec()))?;
        }
        self.ask(&Question::Forget(stamp)).map(drop)
    }

    /// Keeps a chain with its key, at most [`UPLOAD_BYTES_MAX`], among uploads, in a file that can be read from then
    /// on.
    pub fn put(&self, name: &str, pem: &[u8]) -> Result<(), Failure> {
        self.ask(&Question::Put { name: name.into(), pem: Secret::new(pem) }).map(drop)
    }

    /// Removes an upload's file.
    pub fn remove(&self, name: &str) -> Result<(), Failure> {
        self.ask(&Question::Remove(name.into())).map(drop)
    }

    /// Whether anything new can be kept in the folder of uploads and keys; if not, the failure says why.
    pub fn try_store(&self) -> Result<(), Failure> {
        self.ask(&Question::Store).map(drop)
    }

    /// Has a key made and kept. Returns its SubjectPublicKeyInfo, DER, by which it is known from then on.
    pub fn generate(&self, account: &str, key: NewKey) -> Result<Vec<u8>, Failure> {
        self.bytes(&Question::Generate { account: account.into(), key })
    }

    /// The public part of a certificate's key, as of a file with nothing but that.
    pub fn read_kept(&self, key: &KeptKey) -> Result<KeyFile, Failure> {
        let stamp = self.next_stamp();
        match self.ask(&Question::ReadKept { key: key.clone(), stamp })? {
            Answer::File(file) => Ok(file),
            _ => Err(Failure::Unavailable),
        }
    }

    /// Signs what a request for a certificate says (RFC 2986 §4.1), by a certificate's key and with SHA-256.
    pub fn sign_csr(&self, key: &KeptKey, info: &[u8]) -> Result<Vec<u8>, Failure> {
        fits(info.len())?;
        self.bytes(&Question::SignCsr { key: key.clone(), info: info.into() })
    }

    /// Signs a request to an authority (RFC 8555 §6.2), by an account's key: ES256, both numbers of 32 bytes. One that
    /// no order takes is refused.
    pub fn sign_request(&self, key: &KeptKey, header: &str, payload: &str) -> Result<Vec<u8>, Failure> {
        fits(header.len() + payload.len())?;
        let (key, header, payload) = (key.clone(), header.into(), payload.into());
        self.bytes(&Question::SignRequest { key, header, payload })
    }

    /// Removes a key. Its signatures end once it is forgotten with others that are not in use.
    pub fn remove_kept(&self, key: &KeptKey) -> Result<(), Failure> {
        self.ask(&Question::RemoveKept(key.clone())).map(drop)
    }

    /// The names of all keys of an account, and of the certificates that were ordered by it.
    pub fn kept(&self, account: &str) -> Result<Vec<KeptKey>, Failure> {
        let names = self.bytes(&Question::Kept(account.into()))?;
        Ok(String::from_utf8_lossy(&names).lines().filter_map(KeptKey::parse).collect())
    }

    fn ask(&self, question: &Question) -> Result<Answer, Failure> {
        let mut channel = self.channel();
        if channel.retry_at.is_some_and(|until| Instant::now() < until) {
            return Err(Failure::Unavailable);
        }
        match channel.ask(question) {
            Ok(Answer::Unread(why)) => Err(Failure::Unread(why)),
            Ok(answer) => {
                channel.retry_at = None;
                Ok(answer)
            }
            Err(_) => {
                channel.retry_at = Some(Instant::now() + RETRY_PAUSE);
                Err(Failure::Unavailable)
            }
        }
    }

    fn channel(&self) -> std::sync::MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether so many bytes, with names and lengths around them, fit into one message.
fn fits(bytes: usize) -> Result<(), Failure> {
    if bytes <= MESSAGE_BYTES_MAX - 512 { Ok(()) } else { Err(Failure::Unread(Unread::TooLong)) }
}

impl Channel {
    /// Asks, and asks again if the process was started anew meanwhile: the one before has taken the question with it.
    fn ask(&mut self, question: &Question) -> io::Result<Answer> {
        let deadline = Instant::now() + ANSWER_WAIT;
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            self.socket.set_write_timeout(Some(ANSWER_WAIT))?;
            self.socket.send(&question.to_bytes(self.next_id))?;
            if let Some(answer) = self.answer(deadline)? {
                return Ok(answer);
            }
        }
    }

    /// Receives the answer. Absent if the process has been started anew.
    fn answer(&mut self, deadline: Instant) -> io::Result<Option<Answer>> {
        let mut whole = Vec::new();
        loop {
            let length = self.receive(deadline)?;
            if length == HERE.len() {
                return Ok(None);
            }
            let wrong = |_| io::Error::from(ErrorKind::InvalidData);
            let (id, more, part) = Answer::part(&self.buffer[..length]).map_err(wrong)?;
            // An answer to an earlier question that was not waited for until its end is passed over.
            if id != self.next_id {
                continue;
            }
            if whole.len() + part.len() > ANSWER_BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            whole.extend_from_slice(part);
            if !more {
                return Answer::parse(&whole).map(Some).map_err(wrong);
            }
        }
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<usize> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv(&mut self.buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => return Ok(length),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn pair() -> (KeyFiles, UnixDatagram) {
        let (one, other) = propylon_sys::message_pair().expect("two sockets");
        (KeyFiles::new(one, BTreeSet::new()), other.into())
    }

    fn next(socket: &UnixDatagram) -> Option<(u32, Question)> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        match socket.recv(&mut buffer) {
            Ok(0) | Err(_) => None,
            Ok(length) => Some(Question::parse(&buffer[..length]).expect("a question")),
        }
    }

    fn answer(socket: &UnixDatagram, id: u32, answer: &Answer) {
        for message in answer.messages(id) {
            socket.send(&message).expect("room");
        }
    }

    #[test]
    fn a_question_is_asked_again_of_a_process_that_was_started_meanwhile() {
        let (files, process) = pair();
        let process = thread::spawn(move || {
            process.send(HERE).expect("room");
            let (first, _) = next(&process).expect("a question");
            // The first process has ended over the question, and is followed by another.
            process.send(HERE).expect("room");
            let (second, question) = next(&process).expect("the same");
            assert_eq!(question, Question::Read { path: "/a".into(), stamp: 1 });
            answer(&process, first, &Answer::Done);
            let file = KeyFile { certificates: vec![vec![5; 100_000]], ..KeyFile::default() };
            answer(&process, second, &Answer::File(file));
            let (third, _) = next(&process).expect("another");
            answer(&process, third, &Answer::Unread(Unread::Missing));
            next(&process)
        });
        files.wait_until_ready(ANSWER_WAIT).expect("it is there");
        assert_eq!(files.read(Path::new("/a")).expect("a file").certificates, [vec![5; 100_000]]);
        assert!(matches!(files.response(Path::new("/b")), Err(Failure::Unread(Unread::Missing))));
        assert_eq!(files.stamp(), 1);
        drop(files);
        assert_eq!(process.join().expect("no panic"), None);
    }

    #[test]
    fn where_nobody_is_any_more_nobody_waits() {
        let (files, process) = pair();
        drop(process);
        let started = Instant::now();
        for _ in 0..100 {
            assert!(matches!(files.read(Path::new("/a")), Err(Failure::Unavailable)));
        }
        assert!(files.wait_until_ready(ANSWER_WAIT).is_err());
        assert!(started.elapsed() < ANSWER_WAIT);
    }
}
