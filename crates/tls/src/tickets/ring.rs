//! Ring of ticket keys in order of time: which one seals, which ones open, and what follows them.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use zeroize::Zeroizing;

use crate::provider::facts::TicketRefusal;

/// Lengths of the secret behind a key's name: 32 bytes as we make them, 64 as from `openssl rand -base64 80`.
pub(super) const SECRET_LENS: [usize; 2] = [32, 64];
pub(super) const NAME_LEN: usize = 16;
/// Limit of a ticket's length. State is some 150 bytes, with client certificates up to thousands.
pub(super) const TICKET_BYTES_MAX: usize = 4096;
/// Length of the session's start, in seconds, in front of its state.
const BORN_LEN: usize = 8;

/// Keys, the oldest first; at least one.
#[derive(Clone)]
pub(crate) struct Ring {
    keys: Vec<Arc<Key>>,
    /// Index of the key that seals.
    sealing: usize,
    order: Order,
}

/// Rule for which key seals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The last key whose time has come. All engines change to it at once, however late they read it.
    Time,
    /// The last key but one, where keys have no times: so the last is known everywhere before it seals.
    Position,
}

pub(crate) struct Key {
    pub name: [u8; NAME_LEN],
    /// Time from which the key seals, in Unix seconds; 0 with [`Order::Position`].
    pub from: u64,
    pub secret: Zeroizing<Vec<u8>>,
    cipher: LessSafeKey,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ring")
    }
}

impl Ring {
    /// A ring of a key that seals at once, and the next one.
    pub fn new(now: u64, period: u64) -> Ring {
        let keys = vec![Arc::new(Key::random(now)), Arc::new(Key::random(now + period))];
        Ring { keys, sealing: 0, order: Order::Time }
    }

    /// A ring of `keys`, which are in order; at least one.
    pub fn of(keys: Vec<Key>, order: Order, now: u64) -> Ring {
        let keys = keys.into_iter().map(Arc::new).collect();
        let mut ring = Ring { keys, sealing: 0, order };
        ring.sealing = ring.sealing_at(now);
        ring
    }

    fn sealing_at(&self, now: u64) -> usize {
        match self.order {
            Order::Position => self.keys.len().saturating_sub(2),
            // A clock before all times chooses the oldest key, which everybody has.
            Order::Time => self.keys.iter().rposition(|key| key.from <= now).unwrap_or(0),
        }
    }

    /// The ring with the next sealing key, if its time has come.
    pub fn advanced(&self, now: u64) -> Option<Ring> {
        let sealing = self.sealing_at(now);
        (sealing != self.sealing).then(|| Ring { sealing, ..self.clone() })
    }

    /// Whether the last key's time has come, so that a new one is needed.
    pub fn is_due(&self, now: u64) -> bool {
        self.order == Order::Time && self.keys.last().is_none_or(|last| last.from <= now)
    }

    /// The ring with a new key at the end, and without keys that no ticket in use was sealed with: a key seals until
    /// the next one's time, and opens for two periods after that.
    pub fn rotated(&self, now: u64, period: u64) -> Ring {
        let mut keys = self.keys.clone();
        let mut next = keys.last().map_or(now, |last| last.from.saturating_add(period));
        if next <= now {
            // A whole period was missed.
            keys.push(Arc::new(Key::random(now)));
            next = now + period;
        }
        keys.push(Arc::new(Key::random(next)));
        let replaced = |index: usize| keys.get(index + 1).map_or(u64::MAX, |successor| successor.from);
        let gone = (0..keys.len()).take_while(|&index| replaced(index).saturating_add(2 * period) <= now).count();
        let gone = gone.max(keys.len().saturating_sub(KEYS_MAX));
        keys.drain(..gone);
        let mut ring = Ring { keys, sealing: 0, order: Order::Time };
        ring.sealing = ring.sealing_at(now);
        ring
    }

    pub fn keys(&self) -> &[Arc<Key>] {
        &self.keys
    }

    /// The ring for another process, see [`Ring::from_bytes`]: name, time and secret of each key.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let bytes = self.keys.iter().map(|key| NAME_LEN + 8 + 1 + key.secret.len()).sum();
        // The buffer is allocated once: one that grows would leave copies behind.
        let mut out = Zeroizing::new(Vec::with_capacity(bytes));
        for key in &self.keys {
            out.extend_from_slice(&key.name);
            out.extend_from_slice(&key.from.to_be_bytes());
            out.push(key.secret.len() as u8);
            out.extend_from_slice(&key.secret);
        }
        out
    }

    /// Parses a ring; none where the bytes are malformed.
    pub fn from_bytes(mut bytes: &[u8], now: u64) -> Option<Ring> {
        let mut keys = Vec::new();
        while !bytes.is_empty() {
            let (name, rest) = bytes.split_first_chunk::<NAME_LEN>()?;
            let (from, rest) = rest.split_first_chunk::<8>()?;
            let (&length, rest) = rest.split_first()?;
            let (secret, rest) = rest.split_at_checked(length.into())?;
            if !SECRET_LENS.contains(&secret.len()) || keys.len() == KEYS_MAX {
                return None;
            }
            keys.push(Key::new(*name, u64::from_be_bytes(*from), Zeroizing::new(secret.to_vec())));
            bytes = rest;
        }
        (!keys.is_empty()).then(|| Ring::of(keys, Order::Time, now))
    }

    pub fn order(&self) -> Order {
        self.order
    }

    pub fn same_keys(&self, other: &Ring) -> bool {
        let same = |(one, other): (&Arc<Key>, &Arc<Key>)| one.name == other.name && one.from == other.from;
        self.keys.len() == other.keys.len() && self.keys.iter().zip(&other.keys).all(same)
    }

    /// Seals a ticket of a session that began at `born`.
    pub fn seal(&self, context: &[u8], born: u64, state: &[u8]) -> Option<Vec<u8>> {
        self.keys[self.sealing].seal(context, born, state)
    }

    /// Opens a ticket: when its session began, and its state.
    pub fn open(&self, context: &[u8], ticket: &[u8]) -> Result<(u64, Vec<u8>), TicketRefusal> {
        if ticket.len() > TICKET_BYTES_MAX {
            return Err(TicketRefusal::Damaged);
        }
        let (name, sealed) = ticket.split_first_chunk::<NAME_LEN>().ok_or(TicketRefusal::UnknownKey)?;
        let key = self.named(name).ok_or(TicketRefusal::UnknownKey)?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(TicketRefusal::Damaged)?;
        key.open(context, *nonce, sealed).ok_or(TicketRefusal::Damaged)
    }

    /// Finds a key by its name. All names are compared, each in constant time, so that timing reveals nothing about
    /// them.
    fn named(&self, name: &[u8; NAME_LEN]) -> Option<&Key> {
        let mut found = None;
        for key in &self.keys {
            if verify_slices_are_equal(&key.name, name).is_ok() {
                found = Some(&**key);
            }
        }
        found
    }
}

/// Limit of keys: more than the four that we keep, for files of other programs.
pub(super) const KEYS_MAX: usize = 16;

impl Key {
    pub fn random(from: u64) -> Key {
        Key::new(random(), from, Zeroizing::new(random::<32>().to_vec()))
    }

    /// Makes a key. The cipher's key is derived from the secret, so that another program with the same file has a
    /// different one.
    pub fn new(name: [u8; NAME_LEN], from: u64, secret: Zeroizing<Vec<u8>>) -> Key {
        let extracted = Salt::new(HKDF_SHA256, b"propylon session tickets").extract(&secret);
        let key = extracted.expand(&[b"aes-256-gcm"], &AES_256_GCM).map(UnboundKey::from);
        Key { name, from, secret, cipher: LessSafeKey::new(key.expect("the hash is as long as the key")) }
    }

    fn seal(&self, context: &[u8], born: u64, state: &[u8]) -> Option<Vec<u8>> {
        let head = NAME_LEN + NONCE_LEN;
        let size = head + BORN_LEN + state.len() + AES_256_GCM.tag_len();
        if size > TICKET_BYTES_MAX {
            return None;
        }
        let nonce = random::<NONCE_LEN>();
        let mut ticket = Vec::with_capacity(size);
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(&born.to_be_bytes());
        ticket.extend_from_slice(state);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.cipher.seal_in_place_separate_tag(nonce, Aad::from(context), &mut ticket[head..]).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, context: &[u8], nonce: [u8; NONCE_LEN], sealed: &[u8]) -> Option<(u64, Vec<u8>)> {
        let (sealed, tag) = sealed.split_at_checked(sealed.len().checked_sub(AES_256_GCM.tag_len())?)?;
        let mut plain = vec![0; sealed.len()];
        self.cipher
            .open_separate_gather(Nonce::assume_unique_for_key(nonce), Aad::from(context), sealed, tag, &mut plain)
            .ok()?;
        let born = u64::from_be_bytes(*plain.first_chunk::<BORN_LEN>()?);
        plain.drain(..BORN_LEN);
        Some((born, plain))
    }
}

/// # Panics
/// When the system has no randomness, without which there is no TLS.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100;

    fn times(ring: &Ring) -> Vec<u64> {
        ring.keys.iter().map(|key| key.from).collect()
    }

    #[test]
    fn the_next_key_opens_before_it_seals() {
        let ring = Ring::new(1000, PERIOD);
        let early = ring.advanced(1100).unwrap();
        let ticket = early.seal(b"", 5, b"state").unwrap();
        assert_eq!(ring.open(b"", &ticket), Ok((5, b"state".to_vec())));
        assert!(ring.advanced(1099).is_none());
    }

    #[test]
    fn three_keys_and_the_next_one_are_kept() {
        let mut ring = Ring::new(1000, PERIOD);
        for now in [1100, 1200, 1300, 1400] {
            assert!(!ring.is_due(now - 1) && ring.is_due(now));
            ring = ring.rotated(now, PERIOD);
        }
        assert_eq!(times(&ring), [1200, 1300, 1400, 1500]);
        assert_eq!(ring.keys[ring.sealing].from, 1400);
    }

    #[test]
    fn keys_that_were_left_alone_for_long_are_begun_anew() {
        let ring = Ring::new(1000, PERIOD).rotated(5050, PERIOD);
        // The second key had no successor until now: tickets that it sealed a moment ago must open.
        assert_eq!(times(&ring), [1100, 5050, 5150]);
        assert_eq!(ring.keys[ring.sealing].from, 5050);
    }

    #[test]
    fn a_ring_in_another_process_seals_and_opens_as_this_one() {
        let ring = Ring::new(1000, PERIOD).rotated(1100, PERIOD);
        let bytes = ring.to_bytes();
        let other = Ring::from_bytes(&bytes, 1150).unwrap();
        assert!(other.same_keys(&ring) && other.sealing == ring.sealing);
        assert_eq!(ring.open(b"", &other.seal(b"", 5, b"state").unwrap()), Ok((5, b"state".to_vec())));
        assert!((0..bytes.len()).all(|end| end % 57 == 0 || Ring::from_bytes(&bytes[..end], 1150).is_none()));
        assert!(Ring::from_bytes(&[], 0).is_none());
        assert!(Ring::from_bytes(&bytes.repeat(KEYS_MAX), 0).is_none());
    }

    #[test]
    fn a_rotation_that_is_a_whole_period_late_leaves_a_key_that_is_yet_to_seal() {
        let ring = Ring::new(1000, PERIOD).rotated(1200, PERIOD);
        assert_eq!(times(&ring), [1000, 1100, 1200, 1300]);
        assert!(ring.keys[ring.sealing].from == 1200 && !ring.is_due(1200));
    }

    #[test]
    fn a_secret_has_one_of_two_lengths() {
        for length in [0, 16, 31, 32, 33, 63, 64, 65, 255] {
            let bytes = [&[1; NAME_LEN][..], &[0; 8], &[length], &vec![2; length.into()]].concat();
            assert_eq!(Ring::from_bytes(&bytes, 0).is_some(), SECRET_LENS.contains(&length.into()), "{length}");
        }
    }

    #[test]
    fn rings_are_the_same_where_names_and_times_are() {
        let of = |keys: &[(u8, u64)]| {
            let key = |(name, from): &(u8, u64)| Key::new([*name; NAME_LEN], *from, Zeroizing::new(vec![0; 32]));
            Ring::of(keys.iter().map(key).collect(), Order::Time, 0)
        };
        let ring = of(&[(1, 10), (2, 20)]);
        assert!(ring.same_keys(&of(&[(1, 10), (2, 20)])));
        for other in [&[(1, 10), (3, 20)][..], &[(1, 10), (2, 21)], &[(1, 10)], &[(1, 10), (2, 20), (3, 30)]] {
            assert!(!ring.same_keys(&of(other)), "{other:?}");
        }
    }

    #[test]
    fn of_keys_without_times_the_last_but_one_seals() {
        let keys = (0..3).map(|_| Key::random(0)).collect();
        let ring = Ring::of(keys, Order::Position, 1000);
        assert_eq!(ring.sealing, 1);
        assert!(ring.advanced(u64::MAX).is_none() && !ring.is_due(u64::MAX));
    }

    #[test]
    fn a_clock_that_is_behind_seals_with_the_oldest_key() {
        let keys = vec![Key::random(1000), Key::random(2000)];
        assert_eq!(Ring::of(keys, Order::Time, 10).sealing, 0);
    }

    #[test]
    fn there_are_never_more_keys_than_a_file_may_hold() {
        let mut ring = Ring::new(0, PERIOD);
        for now in 1..1000 {
            // A period so long that nothing expires.
            ring = ring.rotated(now, PERIOD * 1000);
            assert!(ring.keys.len() <= KEYS_MAX);
        }
    }
}
