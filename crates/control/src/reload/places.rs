//! Which places of a configuration are free for others: those that no living snapshot has in use, and where nothing is counted
//! any more.
//!
//! A snapshot that lives on, for a WebSocket of long ago, knows what was there in its time and nothing that came later: what
//! has come and gone since does not wait for it. So what is kept is bounded by what lives, however often something changes.

use propylon_config::{Config, FreePlaces};
use propylon_metrics::Store;
use propylon_observe::telemetry::{ServerMetrics, Telemetry};

/// Since which generation each place has been its present owner's. One that is retired and comes back is the same.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Places {
    backends: Vec<u64>,
    /// Generations since which places are free, by backend and place.
    servers: Vec<Vec<u64>>,
}

impl Places {
    pub fn new(config: &Config, generation: u64) -> Places {
        Places {
            backends: vec![generation; config.backends.len()],
            servers: config.backends.iter().map(|backend| vec![generation; backend.servers.len()]).collect(),
        }
    }

    /// Takes note of a configuration that succeeds another as this generation.
    pub fn reload(&mut self, before: &Config, after: &Config, generation: u64) {
        let place = |known: &[u64], at: usize, is_same: bool| match known.get(at) {
            Some(since) if is_same => *since,
            _ => generation,
        };
        let (mut backends, mut servers) = (Vec::new(), Vec::new());
        for (at, backend) in after.backends.iter().enumerate() {
            let known = before.backends.get(at).filter(|known| known.name == backend.name);
            backends.push(place(&self.backends, at, known.is_some()));
            let own = self.servers.get(at).map_or(&[][..], Vec::as_slice);
            let of = backend.servers.iter().enumerate().map(|(at, server)| {
                let same =
                    known.and_then(|known| known.servers.get(at)).is_some_and(|known| known.address == server.address);
                place(own, at, same)
            });
            servers.push(of.collect());
        }
        *self = Places { backends, servers };
    }

    /// Free places. `alive` are the generations of earlier snapshots that are still in use.
    pub fn free(&self, config: &Config, alive: &[u64], telemetry: &Telemetry, store: &Store) -> FreePlaces {
        let is_past = |since: u64, retired: Option<u64>| {
            retired.is_some_and(|retired| !alive.iter().any(|generation| (since..retired).contains(generation)))
        };
        let is_still = |gauge| store.level(gauge) == 0;
        let server_is_still =
            |metrics: &ServerMetrics| [metrics.open, metrics.idle, metrics.in_flight].into_iter().all(is_still);
        let mut free = FreePlaces::default();
        for (at, backend) in config.backends.iter().enumerate() {
            let metrics = &telemetry.backends[at];
            let servers = backend.servers.iter().enumerate().map(|(place, server)| {
                is_past(self.servers[at][place], server.retired) && server_is_still(&metrics.servers[place])
            });
            let servers: Vec<bool> = servers.collect();
            let is_past = is_past(self.backends[at], backend.retired);
            let all = is_past && servers.iter().all(|free| *free);
            free.backends.push(all && is_still(metrics.clients_open) && is_still(metrics.queue_depth));
            free.servers.push(servers);
        }
        free
    }

    /// All places: of backends and servers.
    pub fn counts(&self) -> [usize; 2] {
        let servers = self.servers.iter().map(Vec::len).sum();
        [self.backends.len(), servers]
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{Source, parse};

    use super::*;

    /// One backend that stays, and one by another name and a signer that is another in each generation.
    fn config(generation: u64) -> Config {
        let text = format!(
            "[listener.web]\nbind = \"127.0.0.1:80\"\n[backend.app]\nservers = [\"10.0.0.1:1\", \"10.1.0.1:{generation}\"]\n\
             [backend.b{generation}]\nservers = [\"10.0.0.2:1\"]\n\
             [signer.vault]\nservers = [{}]\nidentity = \"a.pem\"\nca = \"b.pem\"\ntimeout = \"{}ms\"\n[[route]]\nbackend = \"app\"\n\
             [[route]]\nhost = \"x.test\"\nbackend = \"b{generation}\"\n",
            // Another shape now and then.
            ["\"10.2.0.1:1\"", "\"10.2.0.1:1\", \"10.2.0.2:1\""][generation as usize / 3 % 2],
            generation + 100,
        );
        parse(&Source { name: "a.toml".into(), base: "".into(), text }).expect("a good configuration").0
    }

    /// Goes through changes while these generations stay in use, and returns how many places there are in the end.
    fn after_changes(changes: u64, alive: &[u64]) -> usize {
        let mut current = config(1);
        let (telemetry, store) = Telemetry::new(&current, 1);
        let mut places = Places::new(&current, 1);
        for generation in 2..=changes {
            let held: Vec<u64> = alive.iter().copied().filter(|held| *held < generation).collect();
            let free = places.free(&current, &held, &telemetry, &store);
            let next = config(generation).succeeding(&current, generation, &free);
            telemetry.reload(&store, &next);
            places.reload(&current, &next, generation);
            let newest = format!("10.1.0.1:{generation}");
            assert!(
                next.backends
                    .iter()
                    .flat_map(|backend| &backend.servers)
                    .any(|server| server.address.to_string() == newest)
            );
            current = next;
        }
        places.counts().iter().sum()
    }

    #[test]
    fn what_came_and_went_since_does_not_wait_for_an_old_snapshot() {
        let (none, one) = (after_changes(50, &[]), after_changes(50, &[1]));
        assert!(one <= none + 4, "one old snapshot keeps what it has in use: {one} places, {none} without it");
        assert_eq!(after_changes(100, &[1]), one, "twice the changes");
        let some = after_changes(50, &[1, 10, 20]);
        assert!(some <= none + 12, "{some}");
    }

    #[test]
    fn a_place_that_a_living_snapshot_has_in_use_is_not_free() {
        let first = config(1);
        let (telemetry, store) = Telemetry::new(&first, 1);
        let mut places = Places::new(&first, 1);
        let second = config(2).succeeding(&first, 2, &FreePlaces::default());
        telemetry.reload(&store, &second);
        places.reload(&first, &second, 2);
        let gone = first.backends.iter().position(|backend| backend.name == "b1").expect("it was there");
        assert!(!places.free(&second, &[1], &telemetry, &store).backends[gone]);
        assert!(places.free(&second, &[], &telemetry, &store).backends[gone]);
        let column = Store::column(&store, 0);
        column.raise(telemetry.backends[gone].clients_open);
        assert!(!places.free(&second, &[], &telemetry, &store).backends[gone], "somebody is counted there");
    }
}
