//! Stored sessions of TLS 1.2 clients without tickets, kept in memory by session ID (RFC 5246 §7.4.1.2).
//!
//! All cores share one store, since a client may come back to any of them. It is sharded by the ID, which is random.
//! Nobody waits for a shard: if another core is in it, the session counts as unknown, or is not stored, and the price
//! is a full handshake. Clients with tickets, and all of TLS 1.3, do not use it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::server::StoresServerSessions;
use zeroize::Zeroizing;

use crate::provider::captured::{self, SessionId};
use crate::provider::facts::SessionIdUse;

/// Limit of a stored session's age; in memory for longer, its keys would be worth more to a thief.
pub(crate) const KEPT_SECONDS: u64 = 3600;
/// Limit of a session's state: a long chain of client certificates is not worth the memory.
const STATE_BYTES_MAX: usize = 4096;
const SHARDS: usize = 64;

/// Stored sessions of a profile.
pub(crate) struct Sessions {
    shards: Vec<Mutex<Shard>>,
    /// Limit of sessions per shard; zero disables the store.
    shard_sessions_max: usize,
}

#[derive(Default)]
struct Shard {
    sessions: HashMap<SessionId, Kept>,
    /// IDs, the oldest first; some may be gone.
    order: VecDeque<SessionId>,
}

struct Kept {
    born: u64,
    state: Zeroizing<Vec<u8>>,
}

impl Sessions {
    pub fn new(sessions_max: usize) -> Sessions {
        Sessions {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_sessions_max: sessions_max.div_ceil(SHARDS),
        }
    }

    /// Calls `with` on the ID's shard, unless another core is in it.
    fn shard<T>(&self, id: &SessionId, with: impl FnOnce(&mut Shard) -> T) -> Option<T> {
        let mut shard = self.shards[usize::from(id[0]) % SHARDS].try_lock().ok()?;
        Some(with(&mut shard))
    }

    fn keep(&self, id: SessionId, born: u64, state: Vec<u8>) -> bool {
        let state = Zeroizing::new(state);
        if self.shard_sessions_max == 0 || state.len() > STATE_BYTES_MAX {
            return false;
        }
        self.shard(&id, |shard| shard.keep(id, Kept { born, state }, self.shard_sessions_max)).is_some()
    }

    fn find(&self, id: &SessionId, now: u64) -> Option<(u64, Vec<u8>)> {
        self.shard(id, |shard| shard.find(id, now))?
    }

    pub fn forget(&self, id: &SessionId) {
        self.shard(id, |shard| shard.forget(id));
    }

    /// All sessions, for another process: messages of at most `message_bytes`, for [`Sessions::take_over`]. For the
    /// main thread; a core that uses a shard meanwhile finds it busy for some microseconds.
    pub fn hand_over(&self, message_bytes: usize, now: SystemTime) -> Vec<Zeroizing<Vec<u8>>> {
        let now = seconds(now);
        let mut messages: Vec<Zeroizing<Vec<u8>>> = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for id in &shard.order {
                let fresh = |kept: &&Kept| now.saturating_sub(kept.born) < KEPT_SECONDS;
                let Some(kept) = shard.sessions.get(id).filter(fresh) else { continue };
                let bytes = id.len() + 8 + 2 + kept.state.len();
                if messages.last().is_none_or(|last| last.len() + bytes > message_bytes) {
                    messages.push(Zeroizing::new(Vec::with_capacity(message_bytes)));
                }
                if let Some(message) = messages.last_mut() {
                    message.extend_from_slice(id);
                    message.extend_from_slice(&kept.born.to_be_bytes());
                    message.extend_from_slice(&(kept.state.len() as u16).to_be_bytes());
                    message.extend_from_slice(&kept.state);
                }
            }
        }
        messages
    }

    /// Stores the sessions of another process's message, and returns their number. Malformed rests are ignored.
    pub fn take_over(&self, mut message: &[u8]) -> usize {
        let mut taken = 0;
        while let Some((id, rest)) = message.split_first_chunk::<32>()
            && let Some((born, rest)) = rest.split_first_chunk::<8>()
            && let Some((length, rest)) = rest.split_first_chunk::<2>()
            && let Some((state, rest)) = rest.split_at_checked(u16::from_be_bytes(*length).into())
        {
            taken += usize::from(self.keep(*id, u64::from_be_bytes(*born), state.to_vec()));
            message = rest;
        }
        taken
    }

    /// Drops sessions that are too old. For the main thread, from time to time.
    pub fn purge(&self, now: SystemTime) {
        let now = seconds(now);
        for shard in &self.shards {
            if let Ok(mut shard) = shard.try_lock() {
                shard.purge(now);
            }
        }
    }
}

impl Shard {
    /// Stores a session. One more than `max` may be stored for the moment: it may be dropped before the call is over,
    /// and must not cost another its place.
    fn keep(&mut self, id: SessionId, kept: Kept, max: usize) {
        self.purge(kept.born);
        while self.order.len() > max
            && let Some(oldest) = self.order.pop_front()
        {
            self.sessions.remove(&oldest);
        }
        if self.sessions.insert(id, kept).is_none() {
            self.order.push_back(id);
        }
    }

    fn find(&mut self, id: &SessionId, now: u64) -> Option<(u64, Vec<u8>)> {
        let kept = self.sessions.get(id)?;
        if now.saturating_sub(kept.born) >= KEPT_SECONDS {
            self.forget(id);
            return None;
        }
        Some((kept.born, kept.state.to_vec()))
    }

    fn forget(&mut self, id: &SessionId) {
        self.sessions.remove(id);
        if self.order.back() == Some(id) {
            self.order.pop_back();
        }
    }

    fn purge(&mut self, now: u64) {
        while let Some(oldest) = self.order.front() {
            let kept = self.sessions.get(oldest);
            if kept.is_some_and(|kept| now.saturating_sub(kept.born) < KEPT_SECONDS) {
                return;
            }
            self.sessions.remove(oldest);
            self.order.pop_front();
        }
    }
}

/// A core's handle on a profile's sessions, for the library.
pub(crate) struct Store {
    sessions: Arc<Sessions>,
}

impl Store {
    pub fn new(sessions: &Arc<Sessions>) -> Store {
        Store { sessions: sessions.clone() }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl StoresServerSessions for Store {
    fn put(&self, id: Vec<u8>, state: Vec<u8>) -> bool {
        let Ok(id) = SessionId::try_from(id) else { return false };
        let kept = self.sessions.keep(id, seconds(SystemTime::now()), state);
        if kept {
            captured::record(|captured| {
                captured.resumption.session_id = Some(SessionIdUse::Kept);
                captured.resumption.kept = Some(id);
            });
        }
        kept
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        let id = SessionId::try_from(id).ok();
        let found = id.and_then(|id| self.sessions.find(&id, seconds(SystemTime::now())));
        captured::record(|captured| match &found {
            Some((born, _)) => {
                captured.resumption.session_id = Some(SessionIdUse::Found);
                captured.resumption.born = Some(*born);
            }
            None => captured.resumption.session_id = Some(SessionIdUse::Missed),
        });
        found.map(|(_, state)| state)
    }

    /// Never gives out a session: it is asked for tickets of TLS 1.3 where tickets are off, and what a client has seen
    /// in a stranger's handshake must not end the stranger's session.
    fn take(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn can_cache(&self) -> bool {
        self.sessions.shard_sessions_max > 0
    }
}

/// Converts to seconds since 1970.
pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    /// IDs of one shard.
    fn id(number: u8) -> SessionId {
        let mut id = [0; 32];
        id[1] = number;
        id
    }

    #[test]
    fn a_session_is_found_until_it_is_an_hour_old() {
        let sessions = Sessions::new(64);
        assert!(sessions.keep(id(1), NOW, b"state".to_vec()));
        assert_eq!(sessions.find(&id(1), NOW + KEPT_SECONDS - 1), Some((NOW, b"state".to_vec())));
        assert_eq!(sessions.find(&id(1), NOW + KEPT_SECONDS), None);
        assert_eq!(sessions.find(&id(2), NOW), None);
    }

    #[test]
    fn the_oldest_session_makes_room() {
        let sessions = Sessions::new(2 * SHARDS);
        for number in 0..100 {
            sessions.keep(id(number), NOW, vec![number]);
        }
        let left: Vec<u8> = (0..100).filter(|&number| sessions.find(&id(number), NOW).is_some()).collect();
        assert_eq!(left, [97, 98, 99]);
    }

    #[test]
    fn a_session_that_is_forgotten_at_once_costs_no_other_its_place() {
        let sessions = Sessions::new(2 * SHARDS);
        for number in 0..2 {
            sessions.keep(id(number), NOW, vec![number]);
        }
        for number in 10..100 {
            sessions.keep(id(number), NOW, vec![number]);
            sessions.forget(&id(number));
        }
        assert!((0..2).all(|number| sessions.find(&id(number), NOW).is_some()));
        assert_eq!(sessions.shards[0].lock().unwrap().order.len(), 2);
    }

    #[test]
    fn sessions_go_to_another_process_in_messages_that_have_a_limit() {
        let (ours, theirs) = (Sessions::new(6400), Sessions::new(6400));
        for number in 0..100 {
            ours.keep([number; 32], NOW, vec![number; usize::from(number)]);
        }
        ours.keep(id(1), NOW - KEPT_SECONDS, b"old".to_vec());
        let messages = ours.hand_over(1000, std::time::UNIX_EPOCH + std::time::Duration::from_secs(NOW));
        assert!(messages.len() > 5 && messages.iter().all(|message| message.len() <= 1000));
        assert_eq!(messages.iter().map(|message| theirs.take_over(message)).sum::<usize>(), 100);
        assert_eq!(theirs.find(&[7; 32], NOW), Some((NOW, vec![7; 7])));
        assert_eq!(theirs.find(&id(1), NOW), None);
        assert_eq!(theirs.take_over(&messages[0][..40]), 0);
        assert_eq!(Sessions::new(0).take_over(&messages[0]), 0);
    }

    #[test]
    fn what_is_too_old_is_purged_and_what_is_too_long_is_not_kept() {
        let sessions = Sessions::new(640);
        sessions.keep(id(1), NOW, b"state".to_vec());
        sessions.purge(std::time::UNIX_EPOCH + std::time::Duration::from_secs(NOW + KEPT_SECONDS));
        let shard = sessions.shards[0].lock().unwrap();
        assert!(shard.sessions.is_empty() && shard.order.is_empty());
        drop(shard);
        assert!(!sessions.keep(id(1), NOW, vec![0; STATE_BYTES_MAX + 1]));
        assert!(!Sessions::new(0).keep(id(1), NOW, b"state".to_vec()));
    }

    /// Sessions, and places in their order, of the shard that `id` gives.
    fn held(sessions: &Sessions) -> (usize, usize) {
        let shard = sessions.shards[0].lock().unwrap();
        (shard.sessions.len(), shard.order.len())
    }

    #[test]
    fn whatever_is_forgotten_or_out_of_date_takes_no_room() {
        let sessions = Sessions::new(640);
        assert!(sessions.keep(id(1), NOW, vec![0; STATE_BYTES_MAX]));
        assert_eq!(sessions.find(&id(1), NOW + KEPT_SECONDS), None);
        assert_eq!(held(&sessions), (0, 0), "found to be too old");
        sessions.keep(id(1), NOW, b"one".to_vec());
        sessions.keep(id(2), NOW + KEPT_SECONDS, b"two".to_vec());
        assert_eq!(held(&sessions), (1, 1), "too old when another came");
        sessions.keep(id(2), NOW + KEPT_SECONDS, b"again".to_vec());
        assert_eq!(held(&sessions), (1, 1), "one ID has one place");
        sessions.keep(id(3), NOW + KEPT_SECONDS, b"three".to_vec());
        // The last ID in the order belongs to another session, and must stay.
        sessions.forget(&id(2));
        assert!(sessions.find(&id(3), NOW + KEPT_SECONDS).is_some());
        sessions.purge(std::time::UNIX_EPOCH + std::time::Duration::from_secs(NOW + 2 * KEPT_SECONDS));
        assert_eq!(held(&sessions), (0, 0));
    }

    #[test]
    fn a_message_to_another_process_is_filled_to_its_last_byte() {
        let sessions = Sessions::new(640);
        let of_one = 32 + 8 + 2 + 5;
        (0..4).for_each(|number| assert!(sessions.keep(id(number), NOW, vec![number; 5])));
        let now = std::time::UNIX_EPOCH + std::time::Duration::from_secs(NOW);
        let lengths = |message_bytes: usize| -> Vec<usize> {
            sessions.hand_over(message_bytes, now).iter().map(|message| message.len()).collect()
        };
        assert_eq!(lengths(2 * of_one), [2 * of_one, 2 * of_one]);
        assert_eq!(lengths(2 * of_one - 1), [of_one; 4]);
    }

    #[test]
    fn a_shard_that_another_core_is_in_is_not_waited_for() {
        let sessions = Sessions::new(640);
        sessions.keep(id(1), NOW, b"state".to_vec());
        let busy = sessions.shards[0].lock().unwrap();
        assert_eq!(sessions.find(&id(1), NOW), None);
        assert!(!sessions.keep(id(2), NOW, b"state".to_vec()));
        drop(busy);
        assert!(sessions.find(&id(1), NOW).is_some());
    }
}
