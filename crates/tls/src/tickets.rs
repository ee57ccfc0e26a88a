//! Session tickets: keys that all cores share, rotated by the main thread, three generations kept.
//!
//! A ticket is `key name (16) | nonce (12) | AES-256-GCM(session state) | tag (16)`, after RFC 5077 §4 with an AEAD in
//! place of CBC and HMAC. The name of the profile is authenticated with it, so a ticket of one profile is worth
//! nothing at another that may ask more of its clients.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

/// Ticket keys shared by every core. Readers never wait; `rotate` is for the main thread.
///
/// A key seals for one rotation and opens for two more, so with a rotation every [`Tickets::ROTATION_HOURS`] hours a
/// ticket lives at least as long as [`Tickets::LIFETIME_SECONDS`] says to the client, and the key that could open it
/// is gone six hours later. A random nonce allows 2^32 tickets per key, which is 198,000 a second for six hours.
pub struct Tickets {
    keys: ArcSwap<Generations>,
}

impl Tickets {
    /// How often `rotate` is meant to be called.
    pub const ROTATION_HOURS: u32 = 6;
    /// What clients are told.
    pub const LIFETIME_SECONDS: u32 = 12 * 60 * 60;
    /// Longer ones are neither made nor opened. State is some 150 bytes, and the client's certificates where it is asked
    /// for them: two or three fit, and a client with more goes through a whole handshake every time.
    const TICKET_BYTES_MAX: usize = 4096;

    #[allow(clippy::new_without_default)] // makes keys; a default that is random would surprise
    pub fn new() -> Tickets {
        Tickets { keys: ArcSwap::from_pointee(Generations { newest: Arc::new(Key::random()), older: [None, None] }) }
    }

    /// Seals with a new key from here on; forgets the key of three rotations ago.
    pub fn rotate(&self) {
        let now = self.keys.load();
        let [previous, _] = &now.older;
        self.keys.store(Arc::new(Generations {
            newest: Arc::new(Key::random()),
            older: [Some(now.newest.clone()), previous.clone()],
        }));
    }

    fn seal(&self, context: &[u8], state: &[u8]) -> Option<Vec<u8>> {
        self.keys.load().newest.seal(context, state)
    }

    fn open(&self, context: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
        if ticket.len() > Self::TICKET_BYTES_MAX {
            return None;
        }
        let (name, sealed) = ticket.split_first_chunk::<NAME_LEN>()?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let keys = self.keys.load();
        let key = keys.named(name)?;
        key.open(context, *nonce, sealed)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets")
    }
}

struct Generations {
    newest: Arc<Key>,
    /// The previous one first.
    older: [Option<Arc<Key>>; 2],
}

impl Generations {
    /// Looks at all of them, and at each in constant time: how long it takes says nothing about the names.
    fn named(&self, name: &[u8; NAME_LEN]) -> Option<&Key> {
        let mut found = None;
        for key in std::iter::once(&self.newest).chain(self.older.iter().flatten()) {
            if verify_slices_are_equal(&key.name, name).is_ok() {
                found = Some(&**key);
            }
        }
        found
    }
}

const NAME_LEN: usize = 16;

struct Key {
    name: [u8; NAME_LEN],
    key: LessSafeKey,
}

impl Key {
    fn random() -> Key {
        let secret = Zeroizing::new(random::<32>());
        let key = UnboundKey::new(&AES_256_GCM, secret.as_slice()).expect("the key has 32 bytes");
        Key { name: random(), key: LessSafeKey::new(key) }
    }

    fn seal(&self, context: &[u8], state: &[u8]) -> Option<Vec<u8>> {
        let head = NAME_LEN + NONCE_LEN;
        let size = head + state.len() + AES_256_GCM.tag_len();
        if size > Tickets::TICKET_BYTES_MAX {
            return None;
        }
        let nonce = random::<NONCE_LEN>();
        let mut ticket = vec![0; size];
        ticket[..NAME_LEN].copy_from_slice(&self.name);
        ticket[NAME_LEN..head].copy_from_slice(&nonce);
        let (sealed, tag) = ticket[head..].split_at_mut(state.len());
        self.key
            .seal_out_of_place_scatter(Nonce::assume_unique_for_key(nonce), Aad::from(context), state, sealed, &[], tag)
            .ok()?;
        Some(ticket)
    }

    fn open(&self, context: &[u8], nonce: [u8; NONCE_LEN], sealed: &[u8]) -> Option<Vec<u8>> {
        let (sealed, tag) = sealed.split_at_checked(sealed.len().checked_sub(AES_256_GCM.tag_len())?)?;
        let mut state = vec![0; sealed.len()];
        self.key
            .open_separate_gather(Nonce::assume_unique_for_key(nonce), Aad::from(context), sealed, tag, &mut state)
            .ok()?;
        Some(state)
    }
}

/// # Panics
/// When the system has no randomness, without which there is no TLS.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers");
    bytes
}

/// One core's view of the shared keys, for one profile.
pub(crate) struct Ticketer {
    tickets: Arc<Tickets>,
    /// The profile's name.
    context: Box<[u8]>,
}

impl Ticketer {
    pub fn new(tickets: &Arc<Tickets>, profile: &str) -> Ticketer {
        Ticketer { tickets: tickets.clone(), context: profile.as_bytes().into() }
    }
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticketer")
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        Tickets::LIFETIME_SECONDS
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.tickets.seal(&self.context, plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.tickets.open(&self.context, cipher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_opens_for_two_rotations_and_not_for_three() {
        let tickets = Tickets::new();
        let ticket = tickets.seal(b"public", b"state").unwrap();
        for _ in 0..3 {
            assert_eq!(tickets.open(b"public", &ticket).unwrap(), b"state");
            tickets.rotate();
        }
        assert_eq!(tickets.open(b"public", &ticket), None);
    }

    #[test]
    fn a_ticket_is_worth_nothing_at_another_profile_or_another_process() {
        let tickets = Tickets::new();
        let ticket = tickets.seal(b"public", b"state").unwrap();
        assert_eq!(tickets.open(b"internal", &ticket), None);
        assert_eq!(Tickets::new().open(b"public", &ticket), None);
    }

    #[test]
    fn a_damaged_or_cut_ticket_does_not_open() {
        let tickets = Tickets::new();
        let ticket = tickets.seal(b"", b"state").unwrap();
        for at in 0..ticket.len() {
            let mut damaged = ticket.clone();
            damaged[at] ^= 1;
            assert_eq!(tickets.open(b"", &damaged), None, "byte {at}");
            assert_eq!(tickets.open(b"", &ticket[..at]), None, "cut at {at}");
        }
        assert_eq!(tickets.open(b"", &[0; 70_000]), None);
    }

    #[test]
    fn no_ticket_is_made_of_more_state_than_one_may_hold() {
        assert_eq!(Tickets::new().seal(b"", &[0; Tickets::TICKET_BYTES_MAX]), None);
    }
}
