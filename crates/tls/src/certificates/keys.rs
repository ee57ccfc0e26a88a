//! One core's cache of certificates with expanded signing keys, made when a client first asks for one. An expanded
//! certificate takes several times its file's size, and every core has its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use rustls::sign::CertifiedKey;
use rustls_pki_types::UnixTime;

use crate::certificates::credential::Credential;
use crate::parking::fiber;
use crate::provider::compression::PerCore;
use crate::provider::signing::CertificateKey;

/// Limit of cached certificates per core, over all its acceptors. With an EC key one takes some 5 KB, with RSA-2048
/// some 20 KB once the kernels have their form of the key.
pub const READY_PER_CORE_MAX: usize = 4096;

/// Counters of one core's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadyCounts {
    /// Gauge: certificates in the cache.
    pub kept: usize,
    pub made: u64,
    pub evicted: u64,
}

/// Drops certificates that no configuration has any more, so that their keys are wiped. To be called on each core from
/// time to time.
pub fn sweep_ready() -> ReadyCounts {
    READY.with_borrow_mut(|ready| {
        ready.sweep();
        ready.counts()
    })
}

/// A certificate with its expanded key, as one core serves it.
#[derive(Clone)]
pub(crate) struct Entry {
    pub key: Arc<CertifiedKey>,
    /// The certificate with an OCSP response, and until when that may be stapled, in seconds since 1970.
    stapled: Option<(Arc<CertifiedKey>, Option<i64>)>,
    pub compressed: [Option<PerCore>; 2],
}

impl Entry {
    fn new(credential: &Credential) -> Entry {
        let material = &*credential.material;
        // A fiber's stack is small.
        let key = fiber::on_parent_stack(|| material.key());
        let chain = material.chain.iter().cloned().collect();
        let key = CertifiedKey::new(chain, Arc::new(CertificateKey::new(key)));
        let stapled = credential.staple.as_ref().map(|staple| {
            let stapled = CertifiedKey { ocsp: Some(staple.response.clone()), ..key.clone() };
            (Arc::new(stapled), staple.until)
        });
        let compressed = credential.compressed.get().cloned().unwrap_or_default().map(|each| each.map(Arc::new));
        Entry { key: Arc::new(key), stapled, compressed }
    }

    pub fn current(&self) -> &Arc<CertifiedKey> {
        match &self.stapled {
            Some((stapled, until)) if until.is_none_or(|until| now() < until) => stapled,
            _ => &self.key,
        }
    }
}

/// The current time in seconds since 1970.
pub(crate) fn now() -> i64 {
    UnixTime::now().as_secs() as i64
}

/// This core's expanded form of a credential.
pub(crate) fn ready(credential: &Arc<Credential>) -> Entry {
    READY.with_borrow_mut(|ready| ready.entry(credential))
}

thread_local! {
    static READY: RefCell<Ready> = RefCell::new(Ready::new(READY_PER_CORE_MAX));
}

/// Cache with the clock algorithm: a full cache drops what has not been asked for since the hand came by.
struct Ready {
    room: usize,
    /// Index in `slots` by the credential's address, which no other credential gets while the slot has a weak
    /// reference.
    places: HashMap<usize, usize>,
    slots: Vec<Slot>,
    hand: usize,
    made: u64,
    evicted: u64,
}

struct Slot {
    credential: Weak<Credential>,
    entry: Entry,
    /// Asked for since the hand came by.
    asked_for: bool,
}

impl Ready {
    fn new(room: usize) -> Ready {
        Ready { room, places: HashMap::new(), slots: Vec::new(), hand: 0, made: 0, evicted: 0 }
    }

    fn entry(&mut self, credential: &Arc<Credential>) -> Entry {
        let address = Arc::as_ptr(credential).addr();
        if let Some(&place) = self.places.get(&address) {
            let slot = &mut self.slots[place];
            slot.asked_for = true;
            return slot.entry.clone();
        }
        let entry = Entry::new(credential);
        self.made += 1;
        let slot = Slot { credential: Arc::downgrade(credential), entry: entry.clone(), asked_for: false };
        let place = match self.slots.len() < self.room {
            true => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
            false => self.replace(slot),
        };
        self.places.insert(address, place);
        entry
    }

    fn replace(&mut self, slot: Slot) -> usize {
        // The clock's hand makes one turn at most: then all marks are cleared.
        while std::mem::take(&mut self.slots[self.hand].asked_for) {
            self.hand = (self.hand + 1) % self.slots.len();
        }
        let place = self.hand;
        self.hand = (self.hand + 1) % self.slots.len();
        let old = std::mem::replace(&mut self.slots[place], slot);
        self.places.remove(&old.credential.as_ptr().addr());
        self.evicted += 1;
        place
    }

    /// Drops slots whose credential is gone.
    fn sweep(&mut self) {
        let is_gone = |slot: &Slot| slot.credential.strong_count() == 0;
        if !self.slots.iter().any(is_gone) {
            return;
        }
        self.slots.retain(|slot| !is_gone(slot));
        self.hand = 0;
        let addresses = self.slots.iter().map(|slot| slot.credential.as_ptr().addr());
        self.places = addresses.enumerate().map(|(place, address)| (address, place)).collect();
    }

    fn counts(&self) -> ReadyCounts {
        ReadyCounts { kept: self.slots.len(), made: self.made, evicted: self.evicted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::credential::tests::credential;

    #[test]
    fn what_is_asked_for_again_and_again_outlives_what_was_asked_for_once() {
        let mut ready = Ready::new(3);
        let all: Vec<_> = (0..6).map(|_| credential()).collect();
        let first = ready.entry(&all[0]);
        for other in &all[1..] {
            ready.entry(other);
            let again = ready.entry(&all[0]);
            assert!(Arc::ptr_eq(&first.key, &again.key));
        }
        assert_eq!(ready.counts(), ReadyCounts { kept: 3, made: 6, evicted: 3 });
        assert_eq!(ready.places.len(), 3);
    }

    #[test]
    fn a_response_is_stapled_until_its_time_is_over() {
        for (until, stapled) in
            [(Some(now() + 3600), true), (Some(now()), false), (Some(now() - 1), false), (None, true)]
        {
            let mut credential = Arc::into_inner(credential()).unwrap();
            credential.staple = Some(crate::certificates::credential::Staple { response: vec![1], until });
            assert_eq!(Entry::new(&credential).current().ocsp.is_some(), stapled, "{until:?}");
        }
    }

    #[test]
    fn what_nobody_has_any_more_is_forgotten() {
        let mut ready = Ready::new(8);
        let (stays, goes) = (credential(), credential());
        let (kept, left) = (ready.entry(&stays), Arc::downgrade(&ready.entry(&goes).key));
        drop(goes);
        ready.sweep();
        assert_eq!((ready.counts().kept, left.strong_count()), (1, 0));
        assert!(Arc::ptr_eq(&ready.entry(&stays).key, &kept.key));
    }
}
