//! Outcomes of packets that the program counts, in its own order.

use std::collections::BTreeMap;

/// Name and meaning of each outcome. The order is that of `enum counter` in `bpf/flows.bpf.c`.
pub const COUNTERS: [(&str, &str); 19] = [
    ("passed_not_vip", "not TCP to a shared address"),
    ("passed_no_table", "to the engine's own system, since there is no table yet"),
    ("passed_fragment", "a fragment of a packet to a shared address: it has no ports, so it stays where it came"),
    ("kept_own_socket", "of a connection that this engine has"),
    ("kept_owner_syn", "a new connection of a bucket that this engine owns"),
    ("kept_only_owner", "of a bucket that no other engine has or had: this system knows its connection, or resets it"),
    ("kept_hop_limit", "forwarded as often as may be, so it stays"),
    ("kept_no_route", "a new connection for an engine that has no route: served here"),
    ("forwarded_owner", "to the bucket's owner"),
    ("forwarded_former", "to the bucket's former owner"),
    ("forwarded_back", "the last hop: an acknowledgement that may bring the owner's SYN cookie"),
    ("decapsulated", "from another engine, and for this one; also counted by its reason"),
    ("answered_too_big", "too long to be forwarded: the client was told the size that fits"),
    ("dropped_bad_source", "to the tunnel's port from an address that is no engine's"),
    ("dropped_malformed", "from another engine, but no packet to a shared address within"),
    ("dropped_no_route", "of a connection of an engine that has no route"),
    ("dropped_no_listener", "a new connection whose listener died seconds ago: its repetition may meet another owner"),
    ("dropped_too_big", "too long to be forwarded, and of a kind that has no answer"),
    ("dropped_failed", "the kernel refused to change or send the packet"),
];

/// Counts by name, as the status file has them.
pub type Counters = BTreeMap<String, u64>;

/// Names for sums in the program's order.
pub fn named(sums: &[u64; COUNTERS.len()]) -> Counters {
    COUNTERS.iter().zip(sums).map(|((name, _), sum)| ((*name).to_owned(), *sum)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_program_in_its_order() {
        let source = include_str!("../bpf/flows.bpf.c");
        let list = source.split("enum counter {").nth(1).and_then(|rest| rest.split("};").next()).unwrap();
        let names: Vec<String> =
            list.split(',').map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()).collect();
        let ours: Vec<&str> = COUNTERS.iter().map(|(name, _)| *name).chain(["counters"]).collect();
        assert_eq!(names, ours);
    }
}
