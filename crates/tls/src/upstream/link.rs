//! TLS of a connection to a key server, without its socket: a client with a certificate.
//!
//! [`LinkProfile`] is one `[signer.NAME]`, loaded once; [`Link`] is one connection. Records and plaintext are bytes;
//! the plaintext's protocol is the caller's. A handshake whose identity has its key in the key process is parked for
//! the signature, like those of clients.

use std::fmt;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::Arc;

use propylon_config::{ServerAddress, Signer, SignerServer};
use propylon_crypto::{Job, Outcome, Ski};
use rustls::ClientConnection;
use rustls_pki_types::ServerName;

use super::failure::UpstreamFailure;
use crate::certificates::dated::Dated;
use crate::certificates::finding::{Finding, Severity};
use crate::certificates::load::{self, LoadedLink};
use crate::certificates::wording;
use crate::handshake::parked::{Parked, RunResult};
use crate::parking::{Deferral, JobRouting, Parking};
use crate::provider::captured::{self, Resumption};

/// Loaded `[signer.NAME]`. Cores share it and make their links from it.
pub struct LinkProfile {
    config: Arc<rustls::ClientConfig>,
    /// Names to verify, by server.
    names: Vec<ServerName<'static>>,
    identity: Option<Dated>,
    /// Name of the identity's key at the key process, if it is there.
    key_process_ski: Option<Ski>,
}

/// TLS of one connection. It is of no use after an error.
pub struct Link {
    state: State,
    /// Routing of the signature, where the handshake may wait for one.
    routing: Option<JobRouting>,
}

enum State {
    Ready(Box<ClientConnection>),
    /// Parked until there is a signature.
    Parked(Box<Parked<Received>>),
    Over,
}

/// Result of processing records on a fiber.
struct Received {
    connection: Box<ClientConnection>,
    plain: Vec<u8>,
    ended: Result<bool, LinkError>,
}

/// Reason why a link has ended, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError {
    what: String,
    /// Nobody has signed for the identity: no fault of the server's.
    unsigned: bool,
}

/// Plaintext sealed at once, in full records, so that what is sent together arrives together.
const PIECE_BYTES: usize = 16 * 1024;

impl LinkProfile {
    /// Reads and checks identity and authorities. Findings are as with [`Profile::load`](crate::Profile::load).
    pub fn load(signer: &Signer) -> Result<(LinkProfile, Vec<Finding>), Vec<Finding>> {
        let (config, mut findings) = load::link_identity(signer);
        let mut names = Vec::new();
        for server in &signer.servers {
            let name = name_of(server);
            match ServerName::try_from(name.clone()) {
                Ok(name) => names.push(name),
                Err(_) => findings.push(Finding {
                    severity: Severity::Error,
                    at: server.at,
                    path: "".into(),
                    what: format!("no certificate can be for the name \"{name}\""),
                    fix: "add `server_name` with a name that its certificate is for".into(),
                    error: None,
                }),
            }
        }
        match config {
            Some(LoadedLink { config, dated, key_process_ski }) if names.len() == signer.servers.len() => {
                Ok((LinkProfile { config: Arc::new(config), names, identity: dated, key_process_ski }, findings))
            }
            _ => Err(findings),
        }
    }

    /// Expiry of the identity.
    pub fn dated(&self) -> Option<&Dated> {
        self.identity.as_ref()
    }

    /// Name of the identity's key at the key process, if it is there.
    pub fn key_beside(&self) -> Option<Ski> {
        self.key_process_ski
    }

    /// Makes the link of a new connection to this server. Where the identity's key is in the key process, the handshake
    /// is parked in `room` for the signature; without a room it fails.
    pub fn link(&self, server: usize, room: Option<&Rc<Parking>>) -> Result<Link, LinkError> {
        let mut connection = ClientConnection::new(self.config.clone(), self.names[server].clone())?;
        // The library's buffer is emptied at once; the caller bounds the plaintext.
        connection.set_buffer_limit(None);
        let routing = |parking: &Rc<Parking>| JobRouting {
            deferral: Deferral::default(),
            parking: parking.clone(),
            remote: true,
        };
        let routing = room.filter(|_| self.key_process_ski.is_some()).map(routing);
        Ok(Link { state: State::Ready(Box::new(connection)), routing })
    }
}

fn name_of(server: &SignerServer) -> String {
    match (&server.server_name, &server.address) {
        (Some(name), _) => name.trim_start_matches('[').trim_end_matches(']').to_string(),
        (None, ServerAddress::Ip(address)) => address.ip().to_string(),
        (None, ServerAddress::Name { host, .. }) => host.clone(),
        (None, ServerAddress::Srv { name } | ServerAddress::Unix { name }) => name.clone(),
    }
}

impl Link {
    /// Whether the handshake is over, as far as this end can tell: in TLS 1.3 the server may yet refuse our
    /// certificate.
    #[must_use]
    pub fn is_established(&self) -> bool {
        matches!(&self.state, State::Ready(connection) if !connection.is_handshaking())
    }

    /// Takes records from the server, and appends their plaintext. Returns whether the server has ended the connection
    /// in order. An alert for the server may have to be sent even after an error. If there is a job afterwards
    /// ([`Link::take_job`]), nothing more may be passed in before [`Link::resume`].
    pub fn receive(&mut self, records: &[u8], plain: &mut Vec<u8>) -> Result<bool, LinkError> {
        let mut connection = match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(connection) => connection,
            other => {
                self.state = other;
                return Err(LinkError::not_ready());
            }
        };
        let Some(routing) = self.routing.as_ref().filter(|_| connection.is_handshaking()) else {
            let ended = receive(&mut connection, records, plain);
            self.state = State::Ready(connection);
            return ended;
        };
        let records = records.to_vec();
        let turn = move || {
            let mut plain = Vec::new();
            let ended = receive(&mut connection, &records, &mut plain);
            Received { connection, plain, ended }
        };
        let result = Parked::begin(routing, turn);
        self.finish_run(result, plain)
    }

    /// The signature that the handshake waits for, once.
    pub fn take_job(&mut self) -> Option<Job> {
        match &mut self.state {
            State::Parked(parked) => parked.take_job(),
            _ => None,
        }
    }

    /// Resumes a handshake that waits for its job; as [`Link::receive`].
    pub fn resume(&mut self, outcome: Outcome, plain: &mut Vec<u8>) -> Result<bool, LinkError> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Parked(parked) => self.finish_run(parked.resume(outcome), plain),
            other => {
                self.state = other;
                Err(LinkError::not_ready())
            }
        }
    }

    fn finish_run(&mut self, result: RunResult<Received>, plain: &mut Vec<u8>) -> Result<bool, LinkError> {
        match result {
            RunResult::Parked(parked) => {
                self.state = State::Parked(parked);
                Ok(false)
            }
            RunResult::Finished(received) => {
                plain.extend_from_slice(&received.plain);
                self.state = State::Ready(received.connection);
                received.ended
            }
            RunResult::Panicked(message) => Err(LinkError::new(message)),
        }
    }

    /// Seals plaintext in as few records as hold it, and appends them.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), LinkError> {
        for piece in plain.chunks(PIECE_BYTES) {
            let State::Ready(connection) = &mut self.state else { return Err(LinkError::not_ready()) };
            connection.writer().write_all(piece)?;
            self.send(out)?;
        }
        Ok(())
    }

    /// Appends output of TLS itself: the handshake, alerts, answers to key updates.
    pub fn send(&mut self, out: &mut Vec<u8>) -> Result<(), LinkError> {
        let State::Ready(connection) = &mut self.state else { return Ok(()) };
        while connection.wants_write() {
            connection.write_tls(out)?;
        }
        Ok(())
    }
}

fn receive(connection: &mut ClientConnection, records: &[u8], plain: &mut Vec<u8>) -> Result<bool, LinkError> {
    if !connection.is_handshaking() {
        return take(connection, records, plain);
    }
    let (ended, captured) = captured::capture(Resumption::default(), || take(connection, records, plain));
    let failure = || captured.fault.and_then(UpstreamFailure::of_fault);
    ended.map_err(|error| failure().map_or(error, LinkError::from))
}

fn take(connection: &mut ClientConnection, mut records: &[u8], plain: &mut Vec<u8>) -> Result<bool, LinkError> {
    let mut ended = false;
    while !records.is_empty() && !ended {
        connection.read_tls(&mut records)?;
        ended = connection.process_new_packets()?.peer_has_closed();
        match connection.reader().read_to_end(plain) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ended)
}

impl LinkError {
    fn not_ready() -> LinkError {
        LinkError::new("its handshake is not over")
    }

    fn new(what: impl Into<String>) -> LinkError {
        LinkError { what: what.into(), unsigned: false }
    }

    /// The handshake's time was over while it waited for a signature.
    #[must_use]
    pub fn unsigned_in_time() -> LinkError {
        UpstreamFailure::unsigned_in_time().into()
    }

    /// Whether the server has no part in it: nobody has signed for the identity that it is shown.
    #[must_use]
    pub fn is_unsigned(&self) -> bool {
        self.unsigned
    }
}

impl fmt::Debug for LinkProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkProfile").field("names", &self.names).finish_non_exhaustive()
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for LinkError {}

impl From<UpstreamFailure> for LinkError {
    fn from(failure: UpstreamFailure) -> LinkError {
        let what = format!("{failure}; {}", failure.advice());
        LinkError { what, unsigned: failure.is_own() }
    }
}

impl From<rustls::Error> for LinkError {
    fn from(error: rustls::Error) -> LinkError {
        LinkError::new(wording::of(&error))
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        LinkError::new(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use propylon_crypto::JobError;
    use rustls::RootCertStore;

    use super::*;
    use crate::parking::ParkingLimits;
    use crate::upstream::tests::{Holder, KINDS, NAME, demanding, server};

    /// A profile whose key is in another process.
    fn profile(holder: &Holder) -> LinkProfile {
        let mut roots = RootCertStore::empty();
        roots.add(holder.authority()).expect("an authority");
        let config = load::link_config(roots, holder.chain(), holder.signing_key()).expect("a configuration");
        let names = vec![NAME.try_into().expect("a name")];
        LinkProfile { config: Arc::new(config), names, identity: None, key_process_ski: Some(holder.ski()) }
    }

    fn room(remote: usize) -> Rc<Parking> {
        Parking::new(ParkingLimits { local: 0, remote })
    }

    /// Lets both talk until neither has anything to say; `answer` does the job that the link waits for.
    fn talk(
        link: &mut Link,
        server: &mut rustls::ServerConnection,
        mut answer: impl FnMut(Job) -> Outcome,
    ) -> Result<Vec<u8>, LinkError> {
        let mut plain = Vec::new();
        loop {
            let (mut out, mut back) = (Vec::new(), Vec::new());
            link.send(&mut out)?;
            let mut rest = out.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).expect("bytes");
                server.process_new_packets().expect("a good client");
            }
            while server.wants_write() {
                server.write_tls(&mut back).expect("bytes");
            }
            if out.is_empty() && back.is_empty() {
                return Ok(plain);
            }
            link.receive(&back, &mut plain)?;
            while let Some(job) = link.take_job() {
                assert!(!link.is_established() && link.seal(b"early", &mut Vec::new()).is_err());
                assert!(link.receive(b"more", &mut plain).is_err(), "nothing more is taken meanwhile");
                link.resume(answer(job), &mut plain)?;
            }
        }
    }

    #[test]
    fn a_link_waits_for_the_signature_of_its_identity() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            for kind in KINDS {
                let (holder, room) = (Holder::new(kind), room(1));
                let mut link = profile(&holder).link(0, Some(&room)).expect("a link");
                let mut server = server(&demanding(&holder, version));
                let mut jobs = 0;
                let signed = |job: Job| {
                    jobs += 1;
                    assert_eq!(room.counts().remote, 1);
                    holder.sign(job)
                };
                talk(&mut link, &mut server, signed).expect("a handshake");
                assert!(link.is_established() && server.peer_certificates().is_some());
                assert_eq!((jobs, room.counts().remote), (1, 0));
                server.writer().write_all(b"an answer").expect("room");
                assert_eq!(talk(&mut link, &mut server, |_| unreachable!()).as_deref(), Ok(&b"an answer"[..]));
                let used = room.counts().stack_high_water_bytes;
                assert!(used < crate::PARKING_STACK_BYTES * 3 / 4, "{used} bytes of a stack");
            }
        }
    }

    #[test]
    fn a_link_whose_identity_is_not_signed_for_fails_and_gives_its_place_back() {
        let holder = Holder::new(KINDS[0]);
        let profile = profile(&holder);
        let config = demanding(&holder, &rustls::version::TLS13);
        let (one, none) = (room(1), room(0));
        for (room, counted) in [(Some(&one), 1), (Some(&none), 0), (None, 0)] {
            let (mut link, mut jobs) = (profile.link(0, room).expect("a link"), 0);
            let late = |_: Job| {
                jobs += 1;
                Err(JobError::TimedOut)
            };
            let error = talk(&mut link, &mut server(&config), late).expect_err("no signature");
            assert!(error.is_unsigned() && error.to_string().contains("client-certificate-unsigned"), "{error}");
            assert_eq!(jobs, counted);
        }
        assert_eq!((one.counts().remote, none.counts().refused), (0, 1));
        // A link that is given up meanwhile.
        let mut link = profile.link(0, Some(&one)).expect("a link");
        let (mut server, mut out, mut back) = (server(&config), Vec::new(), Vec::new());
        link.send(&mut out).expect("a hello");
        server.read_tls(&mut out.as_slice()).expect("bytes");
        server.process_new_packets().expect("a hello");
        while server.wants_write() {
            server.write_tls(&mut back).expect("bytes");
        }
        link.receive(&back, &mut Vec::new()).expect("a flight");
        assert!(link.take_job().is_some());
        drop(link);
        assert_eq!((one.counts().remote, one.counts().cancelled), (0, 1));
    }
}
