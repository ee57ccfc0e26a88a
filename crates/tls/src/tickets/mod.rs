//! Session tickets (RFC 5077): keys that all cores share, maybe with other engines, and sealing.
//!
//! A ticket is `key name (16) | nonce (12) | AES-256-GCM(start of the session (8) | its state) | tag (16)`, after RFC
//! 5077 §4 with an AEAD in place of CBC and HMAC. The profile's name and its rules for clients are authenticated with
//! it, so a ticket of one profile is rejected by another.

mod file;
mod ring;
pub(crate) mod sessions;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use crate::provider::captured;
use crate::provider::facts::TicketRefusal;
use file::KeyFile;
pub use file::KeyFileError;
use ring::Ring;
use sessions::{Sessions, seconds};

/// Limit of a session's age, however often it is resumed: the keys of a TLS 1.2 session stay the same from one ticket
/// to the next (RFC 5246 §F.1.4 advises a day), and a client's certificate is verified in full handshakes only.
pub(crate) const SESSION_SECONDS_MAX: u64 = 24 * 3600;
/// Limit of tickets tried in one handshake. A ClientHello has room for a thousand, which would cost more to open than a
/// handshake; clients send one or two, and once more after a HelloRetryRequest.
const TRIED_MAX: u8 = 8;
/// Limit of the lifetime in tickets, in seconds.
const LIFETIME_SECONDS_MAX: u64 = SESSION_SECONDS_MAX;
/// Lifetime in tickets where another program rotates the keys, in seconds: as with our own.
const LIFETIME_SECONDS: u64 = 2 * PERIOD_SECONDS;
const PERIOD_SECONDS: u64 = 6 * 3600;

/// Ticket keys shared by every core. Readers never wait; `tend` is for the main thread.
///
/// A key seals for one rotation and opens for two more; a ticket lives for two rotations or a day, if that is shorter.
/// A random nonce allows 2^32 tickets per key: with a rotation of six hours 198,000 a second, of all engines together.
pub struct Tickets {
    ring: ArcSwap<Ring>,
    lifetime_seconds: u32,
    source: Mutex<Source>,
}

/// Source of keys, used by the main thread alone.
enum Source {
    Memory { period_seconds: u64 },
    File(KeyFile),
}

impl Tickets {
    /// Makes keys in memory, which end with the process.
    #[allow(clippy::new_without_default)] // makes keys; a default that is random would surprise
    pub fn new() -> Tickets {
        Tickets::with(
            Ring::new(seconds(SystemTime::now()), PERIOD_SECONDS),
            Source::Memory { period_seconds: PERIOD_SECONDS },
            LIFETIME_SECONDS,
        )
    }

    /// Takes over the keys of the process that this one replaces, from [`Tickets::to_bytes`]. None where the bytes are
    /// malformed.
    pub fn from_bytes(bytes: &[u8], now: SystemTime) -> Option<Tickets> {
        let ring = Ring::from_bytes(bytes, seconds(now))?;
        Some(Tickets::with(ring, Source::Memory { period_seconds: PERIOD_SECONDS }, LIFETIME_SECONDS))
    }

    /// The keys, for the process that replaces this one, and for nobody else.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        self.ring.load().to_bytes()
    }

    /// Opens a file of keys, which others may read and write as well. With `rotate` it is made if there is none.
    pub fn from_file(path: &Path, rotate: Option<Duration>, now: SystemTime) -> Result<Tickets, KeyFileError> {
        let period = rotate.map(|rotate| rotate.as_secs().max(1));
        let mut file = KeyFile::new(path, period);
        let ring = file.open(seconds(now))?;
        let lifetime = period.map_or(LIFETIME_SECONDS, |period| (2 * period).min(LIFETIME_SECONDS_MAX));
        Ok(Tickets::with(ring, Source::File(file), lifetime))
    }

    /// Checks whether `from_file` would work, as far as that is possible without making anything.
    pub fn check_file(path: &Path, rotate: Option<Duration>, now: SystemTime) -> Result<(), KeyFileError> {
        KeyFile::new(path, rotate.map(|rotate| rotate.as_secs())).check(seconds(now))
    }

    fn with(ring: Ring, source: Source, lifetime_seconds: u64) -> Tickets {
        let lifetime_seconds = u32::try_from(lifetime_seconds).unwrap_or(u32::MAX);
        Tickets { ring: ArcSwap::from_pointee(ring), lifetime_seconds, source: Mutex::new(source) }
    }

    /// Rotates keys in memory, or looks at the file. To be called about every second, by one thread. Returns whether
    /// keys have changed. On an error the keys stay; it is returned once for each change of the file.
    pub fn rotate_if_due(&self, now: SystemTime) -> Result<bool, KeyFileError> {
        let now = seconds(now);
        let ring = self.ring.load_full();
        let next_ring = match &mut *self.source.lock().unwrap_or_else(PoisonError::into_inner) {
            Source::Memory { period_seconds } => Ok(ring.is_due(now).then(|| ring.rotated(now, *period_seconds))),
            Source::File(file) => file.rotate_if_due(&ring, now),
        };
        let changed = matches!(next_ring, Ok(Some(_)));
        let next = next_ring.as_ref().ok().and_then(Option::clone);
        let latest = next.as_ref().unwrap_or(&ring);
        // The sealing key is changed on time even if the file is faulty.
        if let Some(next) = latest.advanced(now).or(next) {
            self.ring.store(Arc::new(next));
        }
        next_ring.map(|_| changed)
    }

    /// Rotates the keys at once.
    pub fn rotate(&self) {
        let ring = self.ring.load();
        let last = ring.keys().last().map_or(0, |last| last.from);
        self.ring.store(Arc::new(ring.rotated(last, PERIOD_SECONDS)));
    }

    fn seal(&self, context: &[u8], born: u64, state: &[u8]) -> Option<Vec<u8>> {
        self.ring.load().seal(context, born, state)
    }

    fn open(&self, context: &[u8], ticket: &[u8], now: u64) -> Result<(u64, Vec<u8>), TicketRefusal> {
        let (born, state) = self.ring.load().open(context, ticket)?;
        // The subtraction saturates: clocks of engines that share keys may differ a little.
        match now.saturating_sub(born) < SESSION_SECONDS_MAX {
            true => Ok((born, state)),
            false => Err(TicketRefusal::Expired),
        }
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

/// One core's view of the shared keys, for one profile.
pub(crate) struct Ticketer {
    tickets: Arc<Tickets>,
    /// Context that tickets are bound to.
    context: Box<[u8]>,
    /// Tickets are issued and accepted.
    enabled: bool,
    sessions: Arc<Sessions>,
}

impl Ticketer {
    #[cfg(test)]
    fn alone(tickets: &Arc<Tickets>) -> Ticketer {
        Ticketer {
            tickets: tickets.clone(),
            context: Box::default(),
            enabled: true,
            sessions: Arc::new(Sessions::new(0)),
        }
    }

    pub fn new(tickets: &Arc<Tickets>, context: Box<[u8]>, enabled: bool, sessions: &Arc<Sessions>) -> Ticketer {
        Ticketer { tickets: tickets.clone(), context, enabled, sessions: sessions.clone() }
    }
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticketer")
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        self.enabled
    }

    fn lifetime(&self) -> u32 {
        self.tickets.lifetime_seconds
    }

    /// Seals a ticket; none where the client has enough of them: the library then sends none.
    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let captured = captured::resumption();
        if captured.resumed && captured.issued > 0 {
            return None;
        }
        let born = captured.born.unwrap_or_else(|| seconds(SystemTime::now()));
        let ticket = self.tickets.seal(&self.context, born, plain)?;
        // The library stores a TLS 1.2 session before it asks for a ticket. A client with a ticket does not use the
        // session ID.
        if let Some(id) = captured.kept {
            self.sessions.forget(&id);
        }
        captured::record(|captured| {
            let captured = &mut captured.resumption;
            captured.issued = captured.issued.saturating_add(1);
            captured.session_id = captured.session_id.filter(|_| captured.kept.take().is_none());
        });
        Some(ticket)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let tried = captured::resumption().tried;
        if !self.enabled || tried >= TRIED_MAX {
            return None;
        }
        let opened = self.tickets.open(&self.context, cipher, seconds(SystemTime::now()));
        captured::record(|captured| {
            let captured = &mut captured.resumption;
            captured.tried = tried + 1;
            match &opened {
                Ok((born, _)) => captured.born = Some(*born),
                Err(why) => captured.refused = Some(*why),
            }
        });
        opened.ok().map(|(_, state)| state)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::ring::TICKET_BYTES_MAX;
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn tickets() -> Tickets {
        Tickets::with(Ring::new(NOW, PERIOD_SECONDS), Source::Memory { period_seconds: PERIOD_SECONDS }, 60)
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_ticket_opens_for_two_rotations_and_not_for_three() {
        let tickets = tickets();
        let ticket = tickets.seal(b"public", NOW, b"state").unwrap();
        for _ in 0..3 {
            assert_eq!(tickets.open(b"public", &ticket, NOW), Ok((NOW, b"state".to_vec())));
            tickets.rotate();
        }
        assert_eq!(tickets.open(b"public", &ticket, NOW), Err(TicketRefusal::UnknownKey));
    }

    #[test]
    fn keys_in_memory_are_replaced_when_their_time_has_come() {
        let tickets = tickets();
        let ticket = tickets.seal(b"", NOW, b"state").unwrap();
        let name = |ticket: &[u8]| ticket[..16].to_vec();
        assert_eq!(tickets.rotate_if_due(at(NOW + PERIOD_SECONDS - 1)), Ok(false));
        assert_eq!(name(&tickets.seal(b"", NOW, b"state").unwrap()), name(&ticket));
        assert_eq!(tickets.rotate_if_due(at(NOW + PERIOD_SECONDS)), Ok(true));
        assert_ne!(name(&tickets.seal(b"", NOW, b"state").unwrap()), name(&ticket));
        tickets.rotate_if_due(at(NOW + 2 * PERIOD_SECONDS)).unwrap();
        assert!(tickets.open(b"", &ticket, NOW).is_ok());
        tickets.rotate_if_due(at(NOW + 3 * PERIOD_SECONDS)).unwrap();
        assert_eq!(tickets.open(b"", &ticket, NOW), Err(TicketRefusal::UnknownKey));
    }

    #[test]
    fn a_ticket_is_worth_nothing_at_another_profile_or_another_process() {
        let ours = tickets();
        let ticket = ours.seal(b"public", NOW, b"state").unwrap();
        assert_eq!(ours.open(b"internal", &ticket, NOW), Err(TicketRefusal::Damaged));
        assert_eq!(tickets().open(b"public", &ticket, NOW), Err(TicketRefusal::UnknownKey));
    }

    #[test]
    fn a_session_of_more_than_a_day_is_over() {
        let tickets = tickets();
        let ticket = tickets.seal(b"", NOW - SESSION_SECONDS_MAX, b"state").unwrap();
        assert!(tickets.open(b"", &ticket, NOW - 1).is_ok());
        assert_eq!(tickets.open(b"", &ticket, NOW), Err(TicketRefusal::Expired));
    }

    #[test]
    fn a_renewed_ticket_is_as_old_as_its_session() {
        let tickets = Arc::new(Tickets::new());
        let ticketer = Ticketer::alone(&tickets);
        let now = seconds(SystemTime::now());
        let (first, _) = captured::capture(Default::default(), || ticketer.encrypt(b"state").unwrap());
        assert!(tickets.open(b"", &first, now).unwrap().0 >= now);
        // Both in one call, as in TLS 1.2, and in two, as in TLS 1.3.
        let old = tickets.seal(b"", now - 1000, b"state").unwrap();
        let call = || (ticketer.decrypt(&old).unwrap(), ticketer.encrypt(b"state").unwrap());
        let ((_, renewed), captured) = captured::capture(Default::default(), call);
        assert_eq!(tickets.open(b"", &renewed, now).unwrap().0, now - 1000);
        let captured = captured::Resumption { resumed: true, issued: 0, ..captured.resumption };
        let (tickets_given, _) =
            captured::capture(captured, || [ticketer.encrypt(b"state"), ticketer.encrypt(b"state")]);
        let [Some(renewed), None] = tickets_given else { panic!("one ticket for one") };
        assert_eq!(tickets.open(b"", &renewed, now).unwrap().0, now - 1000);
    }

    #[test]
    fn a_client_with_a_thousand_tickets_is_heard_for_eight() {
        let tickets = Arc::new(Tickets::new());
        let ticketer = Ticketer::alone(&tickets);
        let good = tickets.seal(b"", seconds(SystemTime::now()), b"state").unwrap();
        let opens_after = |bad: u8| {
            let call = || {
                (0..bad).for_each(|_| assert_eq!(ticketer.decrypt(&[0; 60]), None));
                ticketer.decrypt(&good).is_some()
            };
            captured::capture(Default::default(), call).0
        };
        assert!(opens_after(TRIED_MAX - 1));
        assert!(!opens_after(TRIED_MAX));
    }

    #[test]
    fn a_damaged_or_cut_ticket_does_not_open() {
        let tickets = tickets();
        let ticket = tickets.seal(b"", NOW, b"state").unwrap();
        for at in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[at] ^= 1;
            assert!(tickets.open(b"", &damaged, NOW).is_err(), "byte {at}");
            assert!(tickets.open(b"", &ticket[..at], NOW).is_err(), "cut at {at}");
        }
        assert_eq!(tickets.open(b"", &[0; 70_000], NOW), Err(TicketRefusal::Damaged));
    }

    #[test]
    fn no_ticket_is_made_of_more_state_than_one_may_hold() {
        const OVERHEAD: usize = 16 + 12 + 8 + 16;
        let tickets = tickets();
        let state = vec![7; TICKET_BYTES_MAX - OVERHEAD];
        let ticket = tickets.seal(b"", NOW, &state).unwrap();
        assert_eq!(ticket.len(), TICKET_BYTES_MAX);
        assert_eq!(tickets.open(b"", &ticket, NOW), Ok((NOW, state.clone())));
        assert_eq!(tickets.seal(b"", NOW, &[&state[..], b"1"].concat()), None);
    }

    #[test]
    fn where_tickets_are_off_none_is_looked_at() {
        let tickets = Arc::new(Tickets::new());
        let ticket = tickets.seal(b"", seconds(SystemTime::now()), b"state").unwrap();
        let opens = |enabled: bool| {
            let ticketer = Ticketer { enabled, ..Ticketer::alone(&tickets) };
            let (opened, captured) = captured::capture(Default::default(), || ticketer.decrypt(&ticket).is_some());
            (opened, captured.resumption.tried)
        };
        assert_eq!((opens(true), opens(false)), ((true, 1), (false, 0)));
    }

    #[test]
    fn a_session_that_is_kept_is_forgotten_once_its_client_has_a_ticket() {
        use rustls::server::StoresServerSessions;
        let tickets = Arc::new(Tickets::new());
        let sessions = Arc::new(Sessions::new(640));
        let store = crate::tickets::sessions::Store::new(&sessions);
        let ticketer = Ticketer { sessions, ..Ticketer::alone(&tickets) };
        let (found, captured) = captured::capture(Default::default(), || {
            assert!(store.put(vec![1; 32], b"state".to_vec()) && store.put(vec![2; 32], b"other".to_vec()));
            assert!(ticketer.encrypt(b"state").is_some());
            let kept = captured::resumption().session_id;
            (store.get(&[1; 32]), store.get(&[2; 32]), kept)
        });
        assert_eq!(found, (Some(b"state".to_vec()), None, None), "the one that was kept last");
        assert_eq!(captured.resumption.issued, 1);
    }

    #[test]
    fn clients_are_told_of_two_rotations_and_of_a_day_at_most() {
        let path = std::env::temp_dir().join(format!("propylon-lifetime-{}", std::process::id()));
        for (hours, told) in [(1, 2), (12, 24), (13, 24), (72, 24)] {
            let rotate = Some(Duration::from_secs(hours * 3600));
            let tickets = Tickets::from_file(&path, rotate, SystemTime::now()).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(Ticketer::alone(&Arc::new(tickets)).lifetime(), told * 3600, "{hours}");
        }
        std::fs::remove_file(path.with_extension("lock")).unwrap();
    }

    #[test]
    fn the_key_whose_time_has_come_seals_whatever_has_become_of_its_file() {
        let path = std::env::temp_dir().join(format!("propylon-rubbish-{}", std::process::id()));
        let tickets = Tickets::from_file(&path, Some(Duration::from_secs(100)), at(NOW)).unwrap();
        let name = || tickets.seal(b"", NOW, b"state").unwrap()[..16].to_vec();
        let first = name();
        std::fs::write(&path, "rubbish").unwrap();
        assert!(tickets.rotate_if_due(at(NOW + 99)).is_err());
        assert_eq!(name(), first);
        assert!(tickets.rotate_if_due(at(NOW + 100)).is_err());
        assert_ne!(name(), first);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(path.with_extension("lock")).unwrap();
    }
}
