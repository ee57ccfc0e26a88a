//! Metrics of an engine that is one of a cluster: how it stands there, whether its addresses are announced, and packets
//! of flows that come to it.

use propylon_metrics::{Counter, Gauge, Registry};

/// Outcomes of packets, as `propylon-flows` names them in its status.
pub const FLOW_OUTCOMES: [&str; 19] = [
    "passed_not_vip",
    "passed_no_table",
    "passed_fragment",
    "kept_own_socket",
    "kept_owner_syn",
    "kept_only_owner",
    "kept_hop_limit",
    "kept_no_route",
    "forwarded_owner",
    "forwarded_former",
    "forwarded_back",
    "decapsulated",
    "answered_too_big",
    "dropped_bad_source",
    "dropped_malformed",
    "dropped_no_route",
    "dropped_no_listener",
    "dropped_too_big",
    "dropped_failed",
];

/// This engine's standing in its cluster.
pub struct ClusterMetrics {
    pub connected: Gauge,
    /// Seconds since etcd answered last.
    pub away: Gauge,
    pub leader: Gauge,
    pub engines: Gauge,
    pub serial: Gauge,
    pub problems: Gauge,
    pub name_taken: Gauge,
    pub draining: Gauge,
    pub buckets: Gauge,
    pub engines_wanted: Gauge,
}

impl ClusterMetrics {
    pub(super) fn new(r: &mut Registry) -> ClusterMetrics {
        let mut gauge = |name: &str, help: &str| r.gauge(name, help, &[]);
        ClusterMetrics {
            connected: gauge("propylon_cluster_connected", "1 while etcd answers."),
            away: gauge("propylon_cluster_away_seconds", "Seconds since etcd answered last; 0 while it does."),
            leader: gauge("propylon_cluster_leader", "1 while this engine leads the cluster."),
            engines: gauge("propylon_cluster_engines", "Engines of the cluster, this one included."),
            serial: gauge(
                "propylon_cluster_serial",
                "Serial of the cluster's configuration that this engine serves; 0 is its own file.",
            ),
            problems: gauge("propylon_cluster_problems", "Problems that this engine has in its cluster."),
            name_taken: gauge("propylon_cluster_name_taken", "1 while another process has this engine's name."),
            draining: gauge("propylon_cluster_draining", "1 while this engine was told to drain by the cluster."),
            buckets: gauge("propylon_cluster_buckets", "Buckets of the flow table that this engine owns."),
            engines_wanted: gauge(
                "propylon_cluster_engines_wanted",
                "Engines that the cluster should have by its load; 0 where nobody computes it.",
            ),
        }
    }
}

/// Announcement of this engine's addresses.
pub struct AnnounceMetrics {
    pub announced: Gauge,
    pub failing: Gauge,
}

impl AnnounceMetrics {
    pub(super) fn new(r: &mut Registry) -> AnnounceMetrics {
        AnnounceMetrics {
            announced: r.gauge("propylon_announced", "1 while BIRD announces this engine's addresses.", &[]),
            failing: r.gauge(
                "propylon_announce_failing",
                "1 while BIRD refuses or does not answer, or nobody is there to speak to it.",
                &[],
            ),
        }
    }
}

/// Counts of the process that has packets of flows forwarded.
pub struct FlowsMetrics {
    pub generation: Gauge,
    /// Seconds since that process had a table last.
    pub stopped: Gauge,
    /// Packets in the order of `FLOW_OUTCOMES`.
    packets: Vec<Counter>,
}

impl FlowsMetrics {
    pub(super) fn new(r: &mut Registry) -> FlowsMetrics {
        let packets = FLOW_OUTCOMES.iter().map(|outcome| {
            let help = "Packets that propylon-flows has looked at, by what became of them.";
            r.counter("propylon_flows_packets_total", help, &[("outcome", outcome)])
        });
        FlowsMetrics {
            packets: packets.collect(),
            generation: r.gauge(
                "propylon_flows_generation",
                "Generation of the flow table that the kernel goes by; 0 while propylon-flows does not say one.",
                &[],
            ),
            stopped: r.gauge(
                "propylon_flows_stopped_seconds",
                "Seconds since propylon-flows said one last; 0 while it does.",
                &[],
            ),
        }
    }

    /// The counter of an outcome; `None` if it is not in the list.
    pub fn packets(&self, outcome: &str) -> Option<Counter> {
        let place = FLOW_OUTCOMES.iter().position(|known| *known == outcome)?;
        self.packets.get(place).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_packets_are_those_that_the_program_counts() {
        let source = include_str!("../../../flows/src/counters.rs");
        let list = source.split("pub const COUNTERS").nth(1).and_then(|rest| rest.split("];").next()).unwrap();
        let entries = list.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next());
        assert_eq!(entries.collect::<Vec<&str>>(), FLOW_OUTCOMES);
    }
}
