//! How many connections this engine has in buckets that are no longer, or not yet, its own.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use propylon_policy::flows::hash::bucket_of;

use crate::netlink;
use crate::table::Table;

/// One in so many seconds of a core is spent at most: looking at a million sockets takes most of one.
const SHARE: u32 = 10;

/// Counts connections by former bucket, as often as that is cheap.
#[derive(Default)]
pub struct Census {
    counted: Vec<(u32, u64)>,
    generation: Option<u64>,
    next: Option<Instant>,
}

impl Census {
    /// Every former bucket of the table, and how many connections are there.
    pub fn look(&mut self, table: &Table, now: Instant) -> io::Result<&[(u32, u64)]> {
        if self.generation == Some(table.generation) && self.next.is_some_and(|next| now < next) {
            return Ok(&self.counted);
        }
        let mut counts: BTreeMap<u32, u64> = table.former().map(|bucket| (bucket, 0)).collect();
        let started = Instant::now();
        if !counts.is_empty() {
            count(table, &mut counts)?;
        }
        self.counted = counts.into_iter().collect();
        self.generation = Some(table.generation);
        self.next = Some(now + pause(started.elapsed()));
        Ok(&self.counted)
    }
}

fn pause(taken: Duration) -> Duration {
    taken * SHARE
}

fn count(table: &Table, counts: &mut BTreeMap<u32, u64>) -> io::Result<()> {
    let buckets = table.buckets.len() as u32;
    // IPv4 clients of a socket for both families are among those of IPv6.
    for is_ipv6 in [false, true] {
        netlink::connections(is_ipv6, |client, own| {
            if table.vips.contains(&own.ip()) {
                let bucket = bucket_of(&table.seed, client, own, buckets) as u32;
                if let Some(count) = counts.get_mut(&bucket) {
                    *count += 1;
                }
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};

    use propylon_policy::flows::{Bucket, EngineId};

    use super::*;
    use crate::table::{Engine, PORT};

    #[test]
    fn connections_are_counted_by_bucket_and_only_where_another_engine_owns_it() {
        let engine = |name: &str, address: &str| Engine { name: name.to_owned(), address: address.parse().unwrap() };
        let (own, other) = (EngineId(1), EngineId(2));
        // The other engine owns all, and this one was before it in the even ones.
        let bucket = |number| Bucket { owner: other, former: if number % 2 == 0 { own } else { other } };
        let table = Table {
            generation: 3,
            seed: [9; 16],
            own: 1,
            port: PORT,
            vips: BTreeSet::from(["127.0.0.77".parse().unwrap()]),
            engines: BTreeMap::from([(1, engine("a", "10.0.0.1")), (2, engine("b", "10.0.0.2"))]),
            buckets: (0..16).map(bucket).collect(),
        };
        let listener = TcpListener::bind("127.0.0.77:0").unwrap();
        let streams: Vec<_> = (0..40)
            .map(|_| (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap()))
            .collect();
        let mut expected: BTreeMap<u32, u64> = (0..16).step_by(2).map(|bucket| (bucket, 0)).collect();
        for (client, _) in &streams {
            let bucket = bucket_of(&table.seed, client.local_addr().unwrap(), client.peer_addr().unwrap(), 16) as u32;
            if let Some(count) = expected.get_mut(&bucket) {
                *count += 1;
            }
        }
        let mut census = Census::default();
        let counted: BTreeMap<_, _> = census.look(&table, Instant::now()).unwrap().iter().copied().collect();
        assert!(counted.values().sum::<u64>() > 0);
        assert_eq!(counted, expected);
    }
}
