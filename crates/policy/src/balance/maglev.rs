//! Consistent hashing: the same key goes to the same server, on every core and every engine, and a change of the servers
//! moves little more than it must.
//!
//! The table is Maglev's (Eisenbud et al., NSDI 2016, §3.4), its keys bounded in load (Mirrokni et al., SODA 2018).

use super::hash::{below, mix};
use super::loads::CoreLoads;

/// Entries of the table: a prime, and a hundred for each of 655 servers. The same whatever the number of servers, since
/// another size would move every key.
pub const ENTRIES: usize = 65_537;
/// More servers than this would have fewer than ten entries each.
pub const SERVERS_MAX: usize = ENTRIES / 10;
/// Entries that are looked at for a key before servers are taken in their order.
const CANDIDATES_MAX: u64 = 8;
/// A server with fewer requests in flight is never full, whatever the others have: with next to nothing in flight a bound
/// would scatter keys and spare nobody.
pub const BOUND_MIN: u64 = 4;

/// Which server each entry belongs to. Made once for all cores; it depends on the servers' identities and weights alone, not
/// on their order in the list.
#[derive(Debug)]
pub struct Maglev {
    entries: Box<[u16]>,
    /// The servers in the order of their identities.
    order: Box<[u16]>,
    weights: Box<[u64]>,
    weights_total: u64,
}

impl Maglev {
    /// `identities` are hashes of what a server is known by everywhere, such as its address. Of more than 65,535 servers
    /// the rest would get nothing: the configuration allows [`SERVERS_MAX`].
    ///
    /// The work is bounded by the entries times the servers, and near the entries times their logarithm in practice.
    pub fn new(identities: &[u64], weights: &[u16]) -> Maglev {
        debug_assert!(identities.len() == weights.len() && weights.len() <= SERVERS_MAX);
        let mut order: Vec<u16> =
            (0..identities.len().min(usize::from(u16::MAX))).map(|server| server as u16).collect();
        order.sort_by_key(|server| (identities[usize::from(*server)], *server));
        let heaviest = weights.iter().copied().max().map_or(1, u64::from).max(1);
        let walks = order.iter().map(|server| Walk::new(identities[usize::from(*server)]));
        let mut walks: Vec<Walk> = walks.collect();
        let mut entries = vec![FREE; ENTRIES];
        let mut left = if order.is_empty() { 0 } else { ENTRIES };
        // Servers take turns, a light one only at as many of them as its weight says.
        while left > 0 {
            for (server, walk) in order.iter().zip(&mut walks) {
                walk.credit += u64::from(weights[usize::from(*server)]);
                if walk.credit < heaviest {
                    continue;
                }
                walk.credit -= heaviest;
                let entry = walk.next_free(&entries);
                entries[entry] = *server;
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        let weights: Box<[u64]> = weights.iter().map(|weight| u64::from(*weight)).collect();
        Maglev { entries: entries.into(), order: order.into(), weights_total: weights.iter().sum(), weights }
    }

    /// The key's server if it may have the request and is not full, or the key's next one: the same for the same key as
    /// long as the same servers are eligible and not full. `bound_percent` is how much more than its share of what is in
    /// flight a server may have: 125 for a quarter more.
    pub fn pick(
        &self,
        eligible: impl Fn(usize) -> bool,
        key: u64,
        bound_percent: u64,
        loads: &CoreLoads,
    ) -> Option<usize> {
        let total = loads.total() + 1;
        let is_below = |server: usize, weights: u64| {
            let limit = (total * self.weights[server] * bound_percent).div_ceil(weights.max(1) * 100);
            u64::from(loads.in_flight(server)) < limit.max(BOUND_MIN)
        };
        // Measured by the share that it would have if all were there, which is cheap and never too much.
        if let Some(first) = self.candidates(key).next()
            && eligible(first)
            && is_below(first, self.weights_total)
        {
            return Some(first);
        }
        let servers = (0..self.weights.len()).filter(|server| eligible(*server));
        let weights = servers.map(|server| self.weights[server]).sum();
        let found = self.candidates(key).find(|server| eligible(*server) && is_below(*server, weights));
        found.or_else(|| self.candidates(key).find(|server| eligible(*server)))
    }

    /// In the key's order of liking; every server at least once.
    fn candidates(&self, key: u64) -> impl Iterator<Item = usize> {
        let some = self.order.len().min(1) as u64;
        let by_entry = (0..CANDIDATES_MAX * some).map(move |attempt| {
            let entry = below(mix(key.wrapping_add(attempt << 32)), ENTRIES as u64);
            usize::from(self.entries[entry as usize])
        });
        let start = below(mix(!key), self.order.len() as u64) as usize;
        let rest = self.order[start..].iter().chain(&self.order[..start]);
        by_entry.chain(rest.map(|server| usize::from(*server)))
    }
}

const FREE: u16 = u16::MAX;

/// A server's own order of the entries: each once, since their number is prime.
struct Walk {
    at: usize,
    skip: usize,
    credit: u64,
}

impl Walk {
    fn new(identity: u64) -> Walk {
        let at = below(mix(identity), ENTRIES as u64) as usize;
        let skip = below(mix(!identity), ENTRIES as u64 - 1) as usize + 1;
        Walk { at, skip, credit: 0 }
    }

    /// To be called only while there is a free one.
    fn next_free(&mut self, entries: &[u16]) -> usize {
        loop {
            let entry = self.at;
            self.at = (self.at + self.skip) % ENTRIES;
            if entries[entry] == FREE {
                return entry;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::loads::Loads;
    use super::*;

    const KEYS: u64 = 20_000;

    fn identity(server: usize) -> u64 {
        mix(server as u64 + 1000)
    }

    fn table(servers: &[usize]) -> Maglev {
        let identities: Vec<u64> = servers.iter().map(|server| identity(*server)).collect();
        Maglev::new(&identities, &vec![1; servers.len()])
    }

    fn idle(servers: usize) -> CoreLoads {
        Loads::new(servers, 1).for_core(0)
    }

    #[test]
    fn every_server_has_its_weights_share_of_the_entries() {
        for seed in 0..6 {
            let mut random = fastrand::Rng::with_seed(seed);
            let servers = random.usize(1..40);
            let identities: Vec<u64> = (0..servers).map(|_| random.u64(..)).collect();
            let weights: Vec<u16> = (0..servers).map(|_| random.u16(1..=16)).collect();
            let maglev = Maglev::new(&identities, &weights);
            let total: u16 = weights.iter().sum();
            for (server, weight) in weights.iter().enumerate() {
                let has = maglev.entries.iter().filter(|entry| usize::from(**entry) == server).count() as f64;
                let due = ENTRIES as f64 * f64::from(*weight) / f64::from(total);
                assert!((has - due).abs() <= due * 0.02 + 2.0, "seed {seed}: {has} entries instead of {due}");
            }
        }
    }

    #[test]
    fn a_server_that_is_added_or_removed_moves_little_more_than_its_share() {
        for servers in [3, 10, 30] {
            let with: Vec<usize> = (0..servers).collect();
            let (small, large) = (table(&with[..servers - 1]), table(&with));
            let (idle_small, idle_large) = (idle(servers - 1), idle(servers));
            let moved = |key: &u64| {
                small.pick(|_| true, *key, 125, &idle_small) != large.pick(|_| true, *key, 125, &idle_large)
            };
            let moved = (0..KEYS).filter(moved).count() as f64 / KEYS as f64;
            let least = 1.0 / servers as f64;
            assert!(moved >= least * 0.9 && moved < least + 0.05, "{servers} servers: {moved} moved");
        }
    }

    #[test]
    fn a_server_that_is_out_moves_its_own_keys_only_and_they_are_spread_over_all_others() {
        let maglev = table(&(0..10).collect::<Vec<_>>());
        let idle = idle(10);
        let mut heirs = [0; 10];
        for key in 0..KEYS {
            let before = maglev.pick(|_| true, key, 125, &idle).unwrap();
            let after = maglev.pick(|server| server != 4, key, 125, &idle).unwrap();
            match before {
                4 => heirs[after] += 1,
                _ => assert_eq!(before, after),
            }
        }
        let total: u64 = heirs.iter().sum();
        for (server, count) in heirs.iter().enumerate().filter(|(server, _)| *server != 4) {
            let share = *count as f64 / total as f64;
            assert!((share - 1.0 / 9.0).abs() < 0.04, "server {server} inherits {share}");
        }
    }

    #[test]
    fn the_order_of_the_list_means_nothing() {
        let (one, other) = (table(&[0, 1, 2, 3, 4]), table(&[4, 2, 0, 1, 3]));
        let idle = idle(5);
        for key in 0..2_000 {
            let server = one.pick(|_| true, key, 125, &idle).unwrap();
            assert_eq!(other.pick(|_| true, key, 125, &idle).unwrap(), [2, 3, 1, 4, 0][server]);
        }
    }

    #[test]
    fn no_server_has_more_in_flight_than_its_bound_however_hot_a_key_is() {
        for (seed, bound) in [(0, 125), (1, 110), (2, 200)] {
            let mut random = fastrand::Rng::with_seed(seed);
            let servers = random.usize(3..20);
            let maglev = table(&(0..servers).collect::<Vec<_>>());
            let loads = idle(servers);
            let out = random.usize(0..servers);
            let mut began = 0_u64;
            for _ in 0..5_000 {
                // One key is half of all there is.
                let key = if random.bool() { 7 } else { random.u64(..) };
                let server = maglev.pick(|server| server != out, key, bound, &loads).unwrap();
                loads.began(server);
                began += 1;
                let limit = (began * bound).div_ceil((servers as u64 - 1) * 100).max(BOUND_MIN);
                assert!(u64::from(loads.in_flight(server)) <= limit, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_key_that_is_too_hot_goes_to_the_same_next_server_each_time() {
        let maglev = table(&(0..8).collect::<Vec<_>>());
        let loads = idle(8);
        let mut order = Vec::new();
        for _ in 0..64 {
            let server = maglev.pick(|_| true, 99, 125, &loads).unwrap();
            loads.began(server);
            if !order.contains(&server) {
                order.push(server);
            }
        }
        let liked: Vec<usize> = maglev.candidates(99).fold(Vec::new(), |mut liked, server| {
            if !liked.contains(&server) {
                liked.push(server);
            }
            liked
        });
        assert_eq!(order, liked[..order.len()]);
    }

    #[test]
    fn a_table_without_servers_picks_none() {
        assert_eq!(table(&[]).pick(|_| true, 1, 125, &idle(0)), None);
        assert_eq!(table(&[3]).pick(|_| false, 1, 125, &idle(1)), None);
    }
}
