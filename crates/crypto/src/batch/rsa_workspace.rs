//! RSA in the lanes: the working memory, and the blindings of each key.

use propylon_lanes::{Ifma, rsa};
use zeroize::Zeroizing;

use super::plan::RSA_PASS;
use crate::batch_rng::BatchRng;
use crate::key::PrivateKey;
use crate::locked::Locked;

/// Keys of which a core keeps blindings; that of the one that was used longest ago goes when another comes. 5 KiB each.
const KEYS_MAX: usize = 64;
/// Random bytes that the longest modulus asks for.
const RANDOM_BYTES_MAX: usize = 512 + 16;

pub(crate) struct RsaWorkspace {
    scratch: Locked<rsa::Scratch>,
    blindings: Vec<Blindings>,
    calls: u64,
}

/// The outcome of a call.
pub(crate) struct RsaResults {
    /// Results by job; absent where the job is to be done elsewhere.
    pub outputs: Vec<Option<Zeroizing<Vec<u8>>>>,
    /// Results that did not lead back to their input.
    pub bad: u32,
}

/// The blindings of one key.
struct Blindings {
    /// `PrivateKey::id`.
    key: u64,
    /// The value of `calls` at the last use.
    used: u64,
    /// Blindings that are not lent, with those that have uses left at the end, so that all are worn out at about
    /// the same time.
    #[expect(clippy::vec_box, reason = "they are lent out, and a move would leave a copy behind")]
    kept: Vec<Box<rsa::Blinding>>,
    /// Number of blindings that exist, kept or lent.
    count: usize,
}

impl Blindings {
    /// Takes a blinding, which may have to be renewed.
    fn take(&mut self) -> Box<rsa::Blinding> {
        self.kept.pop().unwrap_or_else(|| {
            self.count += 1;
            Box::default()
        })
    }

    /// Takes a blinding that is worn out, or a new one if the key may have another.
    fn take_worn(&mut self) -> Option<Box<rsa::Blinding>> {
        if self.kept.first().is_some_and(|first| first.needs_random()) {
            return Some(self.kept.remove(0));
        }
        (self.count < RSA_PASS).then(|| {
            self.count += 1;
            Box::default()
        })
    }

    fn give_back(&mut self, blinding: Box<rsa::Blinding>) {
        let worn = self.kept.iter().take_while(|kept| kept.needs_random()).count();
        let place = if blinding.needs_random() { 0 } else { worn };
        self.kept.insert(place, blinding);
    }
}

impl RsaWorkspace {
    /// Makes the working memory; absent if there is none to be had.
    pub fn new() -> Option<RsaWorkspace> {
        Some(RsaWorkspace { scratch: Locked::new()?, blindings: Vec::new(), calls: 0 })
    }

    pub fn scratch(&mut self) -> &mut rsa::Scratch {
        &mut self.scratch
    }

    pub fn is_locked(&self) -> bool {
        self.scratch.is_locked()
    }

    /// Does operations with up to [`RSA_PASS`] keys of one size, each with its input as long as the modulus.
    pub fn run(&mut self, ifma: Ifma, rng: &mut BatchRng, jobs: &[(&PrivateKey, &rsa::Key, &[u8])]) -> RsaResults {
        self.calls += 1;
        let places: Vec<usize> = jobs.iter().map(|(key, ..)| self.place(key.id())).collect();
        let mut lent: Vec<_> = places.iter().map(|place| self.blindings[*place].take()).collect();
        if lent.iter().any(|blinding| blinding.needs_random()) {
            self.renew(ifma, rng, jobs, &places, &mut lent);
        }
        let mut outputs: Vec<_> = jobs.iter().map(|(.., input)| Zeroizing::new(vec![0; input.len()])).collect();
        let mut calls: Vec<rsa::Job<'_>> = (jobs.iter().zip(&mut lent).zip(&mut outputs))
            .map(|(((_, key, input), blinding), output)| rsa::Job { key, blinding, input, output })
            .collect();
        let report = rsa::private_operations(ifma, &mut self.scratch, &mut calls);
        drop(calls);
        for (place, blinding) in places.iter().zip(lent) {
            self.blindings[*place].give_back(blinding);
        }
        #[cfg(test)]
        let report = rsa::Report { bad: report.bad | super::faults::bad_lanes(), ..report };
        let done = |lane: usize| (report.bad | report.refused) >> lane & 1 == 0;
        let outputs = outputs.into_iter().enumerate().map(|(lane, output)| done(lane).then_some(output)).collect();
        RsaResults { outputs, bad: report.bad.count_ones() }
    }

    /// Renews the lent blindings that are worn out. A pass does [`RSA_PASS`] of them for the price of one, so
    /// others of the same keys are renewed as well. A blinding that could not be renewed has no uses, and its job
    /// is refused.
    fn renew(
        &mut self,
        ifma: Ifma,
        rng: &mut BatchRng,
        jobs: &[(&PrivateKey, &rsa::Key, &[u8])],
        places: &[usize],
        lent: &mut [Box<rsa::Blinding>],
    ) {
        let worn = lent.iter().filter(|blinding| blinding.needs_random()).count();
        let room = RSA_PASS - worn;
        let mut others: Vec<(usize, Box<rsa::Blinding>)> = Vec::new();
        // The loop goes round at most once for each blinding that a key may have.
        for index in (0..jobs.len()).cycle().take(jobs.len() * RSA_PASS) {
            if others.len() == room {
                break;
            }
            others.extend(self.blindings[places[index]].take_worn().map(|other| (index, other)));
        }
        let mut random = Zeroizing::new(vec![0; RSA_PASS * RANDOM_BYTES_MAX]);
        if rng.fill(&mut random).is_ok() {
            let lent = lent.iter_mut().enumerate().filter(|(_, blinding)| blinding.needs_random());
            let others = others.iter_mut().map(|(index, blinding)| (*index, blinding));
            let mut renewals: Vec<rsa::Renewal<'_>> = (lent.chain(others).zip(random.chunks(RANDOM_BYTES_MAX)))
                .map(|((index, blinding), random)| {
                    let key = jobs[index].1;
                    rsa::Renewal { key, blinding, random: &random[..key.random_bytes()] }
                })
                .collect();
            // A failed renewal needs no handling here: a blinding that was not renewed has no uses.
            let _ = rsa::renew_blindings(ifma, &mut self.scratch, &mut renewals);
        }
        for (index, blinding) in others {
            self.blindings[places[index]].give_back(blinding);
        }
    }

    /// The index of a key's blindings. Those of the other keys of a call stay in place: they are the last used.
    fn place(&mut self, key: u64) -> usize {
        const { assert!(KEYS_MAX > RSA_PASS) };
        let place = match self.blindings.iter().position(|blindings| blindings.key == key) {
            Some(place) => place,
            None => {
                let new = Blindings { key, used: 0, kept: Vec::new(), count: 0 };
                if self.blindings.len() < KEYS_MAX {
                    self.blindings.push(new);
                    self.blindings.len() - 1
                } else {
                    let longest_ago = self.blindings.iter().enumerate().min_by_key(|(_, blindings)| blindings.used);
                    let place = longest_ago.map_or(0, |(place, _)| place);
                    self.blindings[place] = new;
                    place
                }
            }
        };
        self.blindings[place].used = self.calls;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blindings_of_many_keys_are_bounded_and_those_used_last_are_kept() {
        let Some(mut workspace) = RsaWorkspace::new() else { panic!("no memory") };
        for key in 0..1000 {
            workspace.calls += 1;
            workspace.place(key);
            workspace.place(7);
        }
        assert_eq!(workspace.blindings.len(), KEYS_MAX);
        assert!(workspace.blindings.iter().any(|blindings| blindings.key == 7));
        assert!(workspace.blindings.iter().any(|blindings| blindings.key == 999));
    }

    #[test]
    fn a_key_has_a_blinding_for_each_lane_and_no_more() {
        let mut blindings = Blindings { key: 0, used: 0, kept: Vec::new(), count: 0 };
        let lent: Vec<_> = (0..RSA_PASS).map(|_| blindings.take()).collect();
        assert!(blindings.take_worn().is_none());
        lent.into_iter().for_each(|blinding| blindings.give_back(blinding));
        assert_eq!((blindings.kept.len(), blindings.count), (RSA_PASS, RSA_PASS));
        assert!(blindings.take_worn().is_some());
    }
}
