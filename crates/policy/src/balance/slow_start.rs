//! Letting a server that has come back grow warm: its share of the requests rises from a tenth to all of it.
//!
//! The same for every way of balancing: with each request of the backend a warming server earns a part of a turn, and it is
//! passed over while it has not earned a whole one.

use crate::predecessors::Predecessors;

/// The share of what is due that a server begins with.
const SHARE_MIN: f64 = 0.1;
/// Turns that can be saved up: where others are picked for a reason, those come back as soon as that is gone, and not as a
/// flood.
const TURNS_MAX: f64 = 2.0;

#[derive(Clone, Debug)]
pub(super) struct SlowStart {
    /// In milliseconds; 0: never.
    window: u64,
    /// Servers that are warming up, by server.
    warming: Box<[Option<Warming>]>,
    /// How many of them are warming.
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Warming {
    /// In milliseconds.
    since: u64,
    turns: f64,
}

impl SlowStart {
    pub fn new(servers: usize, window: u64) -> Self {
        Self { window, warming: vec![None; servers].into(), count: 0 }
    }

    /// Servers that stay go on warming up as they were.
    pub fn continue_with(&mut self, earlier: &SlowStart, predecessors: &Predecessors) {
        for (server, before) in predecessors.pairs().filter(|_| self.window > 0) {
            self.warming[server] = earlier.warming[before];
        }
        self.count = self.warming.iter().flatten().count();
    }

    /// The server is back, or new.
    pub fn begin(&mut self, server: usize, now: u64) {
        if self.window == 0 {
            return;
        }
        self.count += usize::from(self.warming[server].is_none());
        self.warming[server] = Some(Warming { since: now, turns: 0.0 });
    }

    /// Nobody is warming: nothing to be asked.
    pub fn is_over(&self) -> bool {
        self.count == 0
    }

    /// A request comes. `due` is the share of the requests that a warm server would have.
    pub fn advance(&mut self, now: u64, due: impl Fn(usize) -> f64) {
        for server in 0..self.warming.len() {
            let Some(warming) = &mut self.warming[server] else { continue };
            let share = share(self.window, warming.since, now);
            if share >= 1.0 {
                self.warming[server] = None;
                self.count -= 1;
                continue;
            }
            warming.turns = (warming.turns + share * due(server)).min(TURNS_MAX);
        }
    }

    /// Whether the server is warm, or has earned a turn.
    pub fn admits(&self, server: usize) -> bool {
        self.warming[server].is_none_or(|warming| warming.turns >= 1.0)
    }

    /// For a choice that must not differ from one request of a key to the next: whether it has the share of all keys that
    /// reaches up to this one, of 0 to 1.
    pub fn admits_key(&self, server: usize, key: f64, now: u64) -> bool {
        self.warming[server].is_none_or(|warming| key < share(self.window, warming.since, now))
    }

    pub fn picked(&mut self, server: usize) {
        if let Some(warming) = &mut self.warming[server] {
            warming.turns = (warming.turns - 1.0).max(0.0);
        }
    }
}

fn share(window: u64, since: u64, now: u64) -> f64 {
    let passed = now.saturating_sub(since) as f64 / window as f64;
    SHARE_MIN + (1.0 - SHARE_MIN) * passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_nobody_took_do_not_come_back_as_a_flood() {
        let mut slow_start = SlowStart::new(2, 60_000);
        slow_start.begin(0, 0);
        // Others are picked all the time, for a reason: it is down again, or full.
        (0..10_000).for_each(|_| slow_start.advance(30_000, |_| 0.5));
        let taken = (0..100).take_while(|_| {
            let admits = slow_start.admits(0);
            slow_start.picked(0);
            admits
        });
        assert_eq!(taken.count(), 2);
        assert!(slow_start.admits(1), "who is warm is asked nothing");
    }
}
