//! How many engines a cluster wants, and why: by what each of them measures, against what one is planned for.
//!
//! Up at once, but only by so much at a time; down only after the lower need has held for a while, and one step at a
//! time. Nothing is decided on figures that are old or missing: an engine that says nothing may be the one that is
//! overwhelmed.

use std::fmt;
use std::time::Duration;

/// Figures that an engine is planned for. A figure at its limit asks for one engine like it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The part of its cores that an engine should use.
    pub cpu_target: f64,
    pub connections_max: u64,
    pub memory_max_bytes: u64,
    /// How long handshakes may wait for the processor before more engines are wanted, whatever the other figures say.
    pub handshake_wait_max: Duration,
    /// Never fewer engines than this, nor more than `engines_max`.
    pub engines_min: u32,
    pub engines_max: u32,
    /// So many may fail and the rest still suffices.
    pub spare: u32,
    /// Figures that are older are no figures.
    pub figure_age_max: Duration,
    /// Time between two changes upwards: what was added has to take its part before more is asked for.
    pub up_wait: Duration,
    /// At most this part of the engines is added at a time, and at least one.
    pub up_share_max: f64,
    /// The lower need has to hold for so long.
    pub down_wait: Duration,
    /// Fewer are wanted only if they would be at this part of their targets: between the two lies the hysteresis.
    pub down_target_share: f64,
}

/// Figures that one engine has measured.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Time by the leader's clock.
    pub measured: Duration,
    /// Part of all its cores that is in use.
    pub cpu: f64,
    pub connections: u64,
    pub memory_bytes: u64,
    pub handshake_wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Cpu,
    Connections,
    Memory,
    HandshakeWait,
    /// `engines_min`, or what it takes to do without the spare ones.
    Minimum,
    Maximum,
    /// The need is lower, but has not been for long enough.
    LowerNeedNotYetHeld,
    LowerNeed,
    /// More are needed; those that were added last have had no time to help.
    RecentlyRaised,
    /// Some engine's figures are missing or too old.
    FiguresMissing,
    /// As many as there are do.
    Enough,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub engines: u32,
    pub reason: Reason,
}

/// The decision's memory. It begins anew with another leader but for the number, which makes it slower to
/// shrink, and nothing else.
pub struct Capacity {
    limits: Limits,
    wanted: Option<u32>,
    raised: Option<Duration>,
    /// Since when fewer would do, and the highest need since.
    lower: Option<(Duration, u32)>,
}

impl fmt::Display for Reason {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(match self {
            Reason::Cpu => "the processor would be over its target",
            Reason::Connections => "connections would be over what engines are planned for",
            Reason::Memory => "memory would be over its limit",
            Reason::HandshakeWait => "handshakes wait too long",
            Reason::Minimum => "fewer than the minimum with its spare engines is never wanted",
            Reason::Maximum => "more would be needed than the maximum allows",
            Reason::LowerNeedNotYetHeld => "fewer would do, but not for long enough yet",
            Reason::LowerNeed => "fewer have been enough for a while",
            Reason::RecentlyRaised => "engines were added a moment ago",
            Reason::FiguresMissing => "some engine's figures are missing or too old to decide by",
            Reason::Enough => "as many as there are do",
        })
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            cpu_target: 0.6,
            connections_max: 100_000,
            memory_max_bytes: 4 << 30,
            handshake_wait_max: Duration::from_millis(100),
            engines_min: 2,
            engines_max: 100,
            spare: 1,
            figure_age_max: Duration::from_secs(15),
            up_wait: Duration::from_secs(60),
            up_share_max: 1.0,
            down_wait: Duration::from_secs(1800),
            down_target_share: 0.85,
        }
    }
}

impl Capacity {
    /// `before` is what the leader before wanted, if there was one; else the first number begins from those that serve.
    pub fn new(limits: Limits, before: Option<u32>) -> Capacity {
        Capacity { limits, wanted: before, raised: None, lower: None }
    }

    /// How many engines are wanted at `now`. `figures` has one entry for each engine that serves.
    pub fn wanted(&mut self, figures: &[Option<Figures>], now: Duration) -> Wanted {
        let serving = u32::try_from(figures.len()).unwrap_or(u32::MAX);
        let before = self.wanted.unwrap_or(serving);
        let Some(fresh) = self.fresh(figures, now) else {
            self.lower = None;
            return Wanted { engines: before, reason: Reason::FiguresMissing };
        };
        let wanted = self.decide(&fresh, before, now);
        self.wanted = Some(wanted.engines);
        wanted
    }

    /// All figures, if all are there and new.
    fn fresh(&self, figures: &[Option<Figures>], now: Duration) -> Option<Vec<Figures>> {
        let usable = |figures: &Figures| {
            figures.cpu.is_finite() && now.saturating_sub(figures.measured) <= self.limits.figure_age_max
        };
        let fresh: Option<Vec<Figures>> = figures.iter().map(|figures| figures.filter(usable)).collect();
        fresh.filter(|fresh| !fresh.is_empty())
    }

    fn decide(&mut self, fresh: &[Figures], before: u32, now: Duration) -> Wanted {
        let Limits { engines_max, .. } = self.limits;
        let floor = self.limits.engines_min.max(1).saturating_add(self.limits.spare).min(engines_max);
        let (need, reason) = self.limits.need(fresh, 1.0);
        if need.max(floor) > before {
            self.lower = None;
            if need <= floor {
                return Wanted { engines: floor, reason: Reason::Minimum };
            }
            // Below the floor there is nothing to begin from.
            return self.raise(need, reason, before.max(floor.min(need)), now);
        }
        let (lower, _) = self.limits.need(fresh, self.limits.down_target_share);
        let lower = lower.max(floor).min(before);
        if before > engines_max {
            return Wanted { engines: engines_max, reason: Reason::Maximum };
        }
        self.shrink(lower, floor, before, now)
    }

    fn raise(&mut self, need: u32, reason: Reason, before: u32, now: Duration) -> Wanted {
        if before >= self.limits.engines_max {
            return Wanted { engines: self.limits.engines_max, reason: Reason::Maximum };
        }
        if self.raised.is_some_and(|raised| now.saturating_sub(raised) < self.limits.up_wait) {
            return Wanted { engines: before, reason: Reason::RecentlyRaised };
        }
        self.raised = Some(now);
        let step = ((f64::from(before) * self.limits.up_share_max) as u32).max(1);
        let engines = need.min(before.saturating_add(step)).min(self.limits.engines_max);
        Wanted { engines, reason }
    }

    fn shrink(&mut self, lower: u32, floor: u32, before: u32, now: Duration) -> Wanted {
        if lower >= before {
            self.lower = None;
            let reason = if before == floor { Reason::Minimum } else { Reason::Enough };
            return Wanted { engines: before, reason };
        }
        let (since, highest) = self.lower.map_or((now, lower), |(since, highest)| (since, highest.max(lower)));
        self.lower = Some((since, highest));
        if now.saturating_sub(since) < self.limits.down_wait {
            return Wanted { engines: before, reason: Reason::LowerNeedNotYetHeld };
        }
        self.lower = None;
        Wanted { engines: highest, reason: Reason::LowerNeed }
    }
}

impl Limits {
    /// Engines that it takes to have every figure at `share` of its limit or below, spare ones included, and which
    /// figure asks for the most.
    fn need(&self, fresh: &[Figures], share: f64) -> (u32, Reason) {
        let sum = |figure: fn(&Figures) -> f64| fresh.iter().map(figure).sum::<f64>();
        let by = |total: f64, limit: f64| (total / (limit * share).max(f64::MIN_POSITIVE)).ceil().max(1.0) as u32;
        let mut needs = vec![
            (by(sum(|figures| figures.cpu), self.cpu_target), Reason::Cpu),
            (by(sum(|figures| figures.connections as f64), self.connections_max as f64), Reason::Connections),
            (by(sum(|figures| figures.memory_bytes as f64), self.memory_max_bytes as f64), Reason::Memory),
        ];
        let limit = self.handshake_wait_max.mul_f64(share);
        let waiting = fresh.iter().filter(|figures| figures.handshake_wait > limit).count() as u32;
        if waiting > 0 {
            // How many more is not told by a wait; a quarter of those that have it is a step that others correct.
            needs.push((fresh.len() as u32 + waiting.div_ceil(4), Reason::HandshakeWait));
        }
        let (need, reason) = needs.into_iter().max_by_key(|(need, _)| *need).unwrap_or((1, Reason::Enough));
        // The wait counts engines that are there, spare ones among them.
        let spare = if reason == Reason::HandshakeWait { 0 } else { self.spare };
        (need.saturating_add(spare), reason)
    }
}

#[cfg(test)]
mod tests;
