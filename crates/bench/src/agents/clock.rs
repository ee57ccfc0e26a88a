//! Offset of an agent's clock from ours, as NTP finds it (RFC 5905 §8): the round trip that took least lies least.
//!
//! Both clocks are monotonic and count nanoseconds from when their owner began, so nobody's wall clock matters.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Nanoseconds since this was made.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now(self) -> u64 {
        self.at(Instant::now())
    }

    pub fn at(self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.0).as_nanos() as u64
    }

    /// `None` if no instant can be that late.
    pub fn instant(self, nanoseconds: u64) -> Option<Instant> {
        self.0.checked_add(Duration::from_nanos(nanoseconds))
    }
}

/// One exchange, in nanoseconds: ours at its begin and end, the agent's in the middle.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    pub sent: u64,
    pub agent_received: u64,
    pub agent_sent: u64,
    pub received: u64,
}

/// The measured offset of an agent's clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offset {
    /// The agent's clock minus ours.
    pub offset: i64,
    /// Round trip of the quickest exchange, without the agent's own time; the offset is wrong by half of it at most.
    pub round_trip: u64,
}

impl RoundTrip {
    fn offset(self) -> Offset {
        let outward = i128::from(self.agent_received) - i128::from(self.sent);
        let homeward = i128::from(self.agent_sent) - i128::from(self.received);
        let away = self.received.saturating_sub(self.sent);
        Offset {
            offset: ((outward + homeward) / 2).clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            round_trip: away.saturating_sub(self.agent_sent.saturating_sub(self.agent_received)),
        }
    }
}

impl Offset {
    /// The offset by the quickest of several exchanges; `None` without any.
    pub fn of(exchanges: &[RoundTrip]) -> Option<Self> {
        exchanges.iter().map(|exchange| exchange.offset()).min_by_key(|offset| offset.round_trip)
    }

    /// A moment of ours on the agent's clock.
    pub fn to_agent(self, ours: u64) -> u64 {
        ours.saturating_add_signed(self.offset)
    }

    /// A moment of the agent's on our clock.
    pub fn to_ours(self, agents: u64) -> u64 {
        (i128::from(agents) - i128::from(self.offset)).clamp(0, u64::MAX.into()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agent is 5,000,000 ns ahead; the ways take `out` and `home`, the agent itself 300.
    fn exchange(sent: u64, out: u64, home: u64) -> RoundTrip {
        let agent_received = sent + out + 5_000_000;
        RoundTrip { sent, agent_received, agent_sent: agent_received + 300, received: sent + out + 300 + home }
    }

    #[test]
    fn with_equal_ways_the_offset_is_exact() {
        let found = Offset::of(&[exchange(1_000, 400, 400)]).unwrap();
        assert_eq!(found, Offset { offset: 5_000_000, round_trip: 800 });
        assert_eq!(found.to_agent(7), 5_000_007);
        assert_eq!(found.to_ours(5_000_007), 7);
    }

    #[test]
    fn the_quickest_exchange_is_believed_and_wrong_by_half_its_time_at_most() {
        let exchanges = [exchange(0, 90_000, 400), exchange(100_000, 500, 300), exchange(200_000, 400, 70_000)];
        let found = Offset::of(&exchanges).unwrap();
        assert_eq!(found, Offset { offset: 5_000_100, round_trip: 800 });
        for exchange in exchanges {
            let each = exchange.offset();
            assert!(each.offset.abs_diff(5_000_000) <= each.round_trip / 2, "{each:?}");
        }
        assert_eq!(Offset::of(&[]), None);
    }

    #[test]
    fn an_agent_that_is_behind_has_a_negative_offset() {
        let behind = RoundTrip { sent: 9_000, agent_received: 1_100, agent_sent: 1_100, received: 9_200 };
        let found = Offset::of(&[behind]).unwrap();
        assert_eq!(found, Offset { offset: -8_000, round_trip: 200 });
        assert_eq!((found.to_agent(10_000), found.to_ours(2_000)), (2_000, 10_000));
    }
}
