//! Which engine of a cluster has a connection, and where a packet goes that came to another one.
//!
//! Engines share an address; routers spread packets over them and re-spread them whenever a route comes or goes. The
//! flow table makes up for that: each connection belongs to a bucket ([`hash`]), each bucket to an engine, and a
//! packet that arrives elsewhere is forwarded, twice at most ([`decide`]). In the manner of Beamer (NSDI '18), GLB and
//! Unimog, with one rule more, without which flows break while engines' tables differ:
//!
//! **A bucket changes hands by a swap.** Before B takes a bucket over from A, a generation of the table says "A, and
//! perhaps B" and every engine has applied it; only then comes "B, and perhaps A". So each of two consecutive tables
//! names both engines, and whichever of the two an engine on the way has, the second hop finds the flow. Had the table
//! gone from "A" straight to "B, and perhaps A", then an engine with the old one would take a packet of a new flow at
//! B to A, which had never heard of anybody else, and A's system would reset it. The simulation finds that within
//! some hundred seeds.
//!
//! Rules for those who write, apply and acknowledge tables; [`plan`] and [`simulation`] hold to them:
//!
//! 1. Generation N+1 is published when every living engine that N lists has applied N ([`plan::may_publish`]). What is
//!    done for an engine that is dead is excepted: it changes only buckets of that engine, and packets that older
//!    tables send to the dead are lost and sent again, not reset.
//! 2. An engine takes packets, from routers or from other engines, once it has applied a table that lists it: before,
//!    nobody waits for it, and its table may be old. An engine that comes back as a new process is dead first, until a
//!    table without it is everywhere.
//! 3. The second engine of a bucket is taken out of it when it has counted no connection there, half-open ones
//!    included, for a while after everybody had learnt that it owns the bucket no more; or when it is dead.

pub mod hash;
pub mod plan;
pub mod scale;
pub mod simulation;
pub mod weight;
pub mod wire;

use std::collections::BTreeSet;

/// A packet is passed on this often at most.
pub const HOPS_MAX: u8 = 2;
/// Fewer buckets would not be worth the memory they save.
pub const BUCKETS_MIN: u32 = 1024;
/// So many buckets make a table of 700 KB in etcd's JSON, half of what a value may have there.
pub const BUCKETS_MAX: u32 = 1 << 17;
/// With ten buckets or more for each engine, rounding gives none over a tenth more than its share.
const BUCKETS_PER_ENGINE: u32 = 10;

/// A stable slot of an engine; the caller keeps which name has which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Takes new connections.
    pub owner: EngineId,
    /// May have connections as well: the owner before, or the one that is about to be; the owner itself if there is
    /// none.
    pub former: EngineId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowTable {
    pub generation: u64,
    /// Key of the hash. It stays for as long as the table does: another one would move every flow.
    pub seed: [u8; 16],
    /// Engines that may take packets, and whose acknowledgements are waited for.
    pub engines: BTreeSet<EngineId>,
    /// One for each value of [`hash::bucket_of`]; a power of two.
    pub buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// SYN without ACK: a new connection.
    Syn,
    Other,
}

/// A packet's fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Up to this engine's own system, which accepts it, or answers with a reset if it has no such connection.
    Keep,
    /// To another engine, with the hop counted.
    Forward(EngineId),
}

/// The way of a packet of `bucket` that is at `engine` after `hops` forwards, by that engine's own table.
///
/// `has_socket` is whether this engine's system has the connection, established or half-open. One that waits out its
/// end (TIME_WAIT) is none: its client may have opened another one from the same port at another engine, so it gets
/// its late packets only where they are kept at last. A SYN cookie that checks counts as well (`bpf_tcp_check_syncookie`): the ACK that brings it belongs to no socket
/// yet.
///
/// The order of the rules is the contract with the program in the kernel.
pub fn decide(bucket: Bucket, engine: EngineId, packet: Packet, has_socket: bool, hops: u8) -> Verdict {
    if hops >= HOPS_MAX || (packet == Packet::Other && has_socket) {
        return Verdict::Keep;
    }
    if bucket.owner != engine {
        return Verdict::Forward(bucket.owner);
    }
    if packet == Packet::Other && bucket.former != engine {
        return Verdict::Forward(bucket.former);
    }
    Verdict::Keep
}

/// How many buckets a cluster should have that may grow to so many engines.
pub fn buckets_for(engines: u32) -> u32 {
    let wanted = engines.clamp(1, BUCKETS_MAX / BUCKETS_PER_ENGINE) * BUCKETS_PER_ENGINE;
    wanted.next_power_of_two().max(BUCKETS_MIN)
}

impl Bucket {
    pub fn of(owner: EngineId) -> Bucket {
        Bucket { owner, former: owner }
    }

    pub fn has_former(self) -> bool {
        self.former != self.owner
    }

    pub fn swapped(self) -> Bucket {
        Bucket { owner: self.former, former: self.owner }
    }

    pub fn names(self, engine: EngineId) -> bool {
        self.owner == engine || self.former == engine
    }
}

impl FlowTable {
    /// The first table of a cluster: one engine has all. `buckets` is made a power of two.
    pub fn first(seed: [u8; 16], buckets: u32, engine: EngineId) -> FlowTable {
        let buckets = buckets.clamp(1, BUCKETS_MAX).next_power_of_two();
        FlowTable {
            generation: 1,
            seed,
            engines: BTreeSet::from([engine]),
            buckets: vec![Bucket::of(engine); buckets as usize],
        }
    }

    /// The same table with twice as many buckets. The hash is scaled, so each bucket becomes two neighbours and no
    /// flow changes hands: engines that have one or the other of the two tables agree about every packet.
    pub fn doubled(&self) -> Option<FlowTable> {
        (self.buckets.len() < BUCKETS_MAX as usize).then(|| FlowTable {
            generation: self.generation + 1,
            buckets: self.buckets.iter().flat_map(|bucket| [*bucket; 2]).collect(),
            ..self.clone()
        })
    }

    /// Buckets that an engine owns, and those in which it may have connections besides. It may leave when both are 0.
    pub fn held_by(&self, engine: EngineId) -> (usize, usize) {
        let owned = self.buckets.iter().filter(|bucket| bucket.owner == engine).count();
        let named = self.buckets.iter().filter(|bucket| bucket.names(engine)).count();
        (owned, named - owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EngineId = EngineId(0);
    const B: EngineId = EngineId(1);
    const C: EngineId = EngineId(2);
    const MOVED: Bucket = Bucket { owner: A, former: B };

    #[test]
    fn a_new_connection_goes_to_the_owner_from_anywhere() {
        for engine in [B, C] {
            assert_eq!(decide(MOVED, engine, Packet::Syn, false, 0), Verdict::Forward(A));
            assert_eq!(decide(MOVED, engine, Packet::Syn, false, 1), Verdict::Forward(A));
        }
        assert_eq!(decide(MOVED, A, Packet::Syn, false, 0), Verdict::Keep);
    }

    #[test]
    fn a_new_connection_goes_to_the_owner_even_where_an_old_socket_has_its_address_and_port() {
        assert_eq!(decide(MOVED, B, Packet::Syn, true, 0), Verdict::Forward(A));
    }

    #[test]
    fn other_packets_stay_with_their_socket_or_look_at_the_owner_and_then_at_the_former_one() {
        assert_eq!(decide(MOVED, C, Packet::Other, true, 0), Verdict::Keep);
        assert_eq!(decide(MOVED, C, Packet::Other, false, 0), Verdict::Forward(A));
        assert_eq!(decide(MOVED, A, Packet::Other, false, 1), Verdict::Forward(B));
        assert_eq!(decide(MOVED, B, Packet::Other, false, 2), Verdict::Keep);
        assert_eq!(decide(Bucket::of(A), A, Packet::Other, false, 0), Verdict::Keep);
    }

    /// Rule 2's reason: two forwards do not make up for a table that nobody waited for.
    #[test]
    fn an_engine_with_a_table_that_is_older_than_one_generation_does_not_find_a_former_owner() {
        let (old, new) = (Bucket::of(C), MOVED);
        let arrival = decide(old, EngineId(3), Packet::Other, false, 0);
        assert_eq!(arrival, Verdict::Forward(C));
        assert_eq!(decide(new, C, Packet::Other, false, 1), Verdict::Forward(A));
        assert_eq!(decide(new, A, Packet::Other, false, 2), Verdict::Keep, "B has the flow, and is a third hop away");
    }

    #[test]
    fn no_packet_makes_a_third_hop() {
        for packet in [Packet::Syn, Packet::Other] {
            for hops in [2, 3, u8::MAX] {
                assert_eq!(decide(MOVED, C, packet, false, hops), Verdict::Keep);
            }
        }
    }

    #[test]
    fn buckets_suffice_for_shares_that_are_even_to_a_tenth() {
        assert_eq!([1, 4, 32, 102].map(buckets_for), [1024; 4]);
        assert_eq!(buckets_for(103), 2048);
        assert_eq!(buckets_for(1000), 16_384);
        assert_eq!(buckets_for(10_000), 131_072);
        assert_eq!(buckets_for(u32::MAX), BUCKETS_MAX);
    }

    #[test]
    fn a_table_with_twice_the_buckets_sends_every_packet_where_the_old_one_did() {
        let mut table = FlowTable::first([7; 16], 64, A);
        for (index, bucket) in table.buckets.iter_mut().enumerate() {
            *bucket = Bucket { owner: EngineId(index as u16), former: EngineId(index as u16 / 2) };
        }
        let doubled = table.doubled().unwrap();
        assert_eq!(doubled.buckets.len(), 128);
        let destination = "198.51.100.7:443".parse().unwrap();
        for port in 0..2000 {
            let source = std::net::SocketAddr::from(([10, 0, 0, 1], port));
            let bucket = |table: &FlowTable| {
                table.buckets[hash::bucket_of(&table.seed, source, destination, table.buckets.len() as u32)]
            };
            assert_eq!(bucket(&table), bucket(&doubled));
        }
    }
}
