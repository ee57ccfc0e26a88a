//! Health of servers: the results of probes and of requests, combined into one verdict with its reason and its time.
//!
//! This is the state that all cores share, updated at its own pace; `suspect` has what one core learns in the moment.

use std::sync::Arc;

/// Random part of the probe interval, in percent earlier or later, so that servers are not probed in step.
const JITTER_PERCENT: u64 = 10;
/// Percentage points below the success rate of the others that eject a server, where servers are too few for a standard
/// deviation.
const FEW_GAP: f64 = 30.0;
/// Reason of a server that is down until its first probes succeed.
const UNCHECKED: &str = "not checked yet";

/// Explanation of a verdict, for people.
pub type Reason = Arc<str>;

/// Verdict on a server. Times are in milliseconds of any clock that does not go backwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No probe has ended yet, or there are no probes: the server counts as fit.
    Unknown,
    Up,
    /// Probes have failed.
    Down(Reason),
    /// Ejected: the server's answers were too bad. The ejection ends by itself.
    Ejected {
        reason: Reason,
        until: u64,
    },
    /// Draining: the server is to get no new requests.
    Draining(Reason),
}

/// How a backend's servers are judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    pub probes: Option<Probes>,
    pub outliers: Option<Outliers>,
    /// With fewer of the ordinary servers open, verdicts are not believed; 0: they are always.
    pub min_healthy_percent: u8,
}

/// Thresholds of probes: results in a row before they change a server's state.
#[derive(Clone, Copy, Debug)]
pub struct Probes {
    /// Successes in a row, after which a server that was down is up. At least 1.
    pub rise: u32,
    /// Failures in a row, after which one that was up is down. At least 1.
    pub fall: u32,
    /// Whether a server counts as fit until its first probe says otherwise.
    pub starts_up: bool,
}

/// Outlier ejection: when a server is ejected for its answers, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Outliers {
    /// Milliseconds between two comparisons of success rates.
    pub interval: u64,
    /// Failures without a success between them; 0: this is not looked at.
    pub consecutive_failures: u64,
    pub success_rate: Option<SuccessRate>,
    /// Duration of the first ejection in milliseconds; each further one is longer by as much.
    pub ejection: u64,
    /// Longest duration of an ejection, in milliseconds.
    pub ejection_max: u64,
    /// Percent of a backend's servers that may be ejected; one may be in any case, unless it is the last that is fit.
    pub ejected_percent_max: u32,
}

/// An ejection for a success rate that lies below the mean of its peers by more than so many standard deviations
/// (Envoy's rule).
#[derive(Clone, Copy, Debug)]
pub struct SuccessRate {
    /// Servers with enough requests that there must be for a comparison.
    pub servers_min: usize,
    /// Requests in the interval that make a server's rate worth comparing.
    pub requests_min: u64,
    /// Distance below the mean that ejects a server, in hundredths of a standard deviation.
    pub deviation_percent: u32,
}

/// A change of a server's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub server: usize,
    pub from: Verdict,
    pub to: Verdict,
}

/// The servers of a backend.
#[derive(Clone, Debug)]
pub struct Servers {
    rules: Rules,
    all: Vec<Server>,
    /// Time of the next comparison of success rates.
    compare_at: u64,
    /// Counts of servers as of the last update of the verdicts.
    tally: Tally,
    panic: bool,
}

/// Counts of servers by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    open: usize,
    ejected: usize,
    /// Servers that are no backups and that may get requests or might.
    ordinary: usize,
    ordinary_open: usize,
    backups_open: usize,
    /// Servers closed by findings that may be wrong.
    doubted: usize,
}

#[derive(Clone, Debug)]
struct Server {
    checked: Checked,
    /// Probes in a row that contradict `checked`.
    streak: u32,
    outcomes: Outcomes,
    ejected: Option<(Reason, u64)>,
    /// Ejections that still count for the length of the next.
    ejections: u32,
    /// Whether the server was not ejected in this interval, not even for a part of it.
    calm: bool,
    /// Reason of a drain; `None` while the server is not draining.
    draining: Option<Reason>,
    /// Reason why the server has no address; `None` while it has one.
    nowhere: Option<Reason>,
    /// Used only while no ordinary one is open.
    backup: bool,
    verdict: Verdict,
    since: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Checked {
    Never,
    Up,
    Down(Reason),
}

/// Results of requests.
#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    /// Failures since the last success.
    consecutive: u64,
    /// Successes in the interval.
    successes: u64,
    failures: u64,
}

impl Verdict {
    /// Whether requests may go to the server.
    pub fn is_open(&self) -> bool {
        matches!(self, Verdict::Unknown | Verdict::Up)
    }

    /// Name of the verdict.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Unknown => "unknown",
            Verdict::Up => "up",
            Verdict::Down(_) => "down",
            Verdict::Ejected { .. } => "ejected",
            Verdict::Draining(_) => "draining",
        }
    }

    /// Reason of the verdict, if it has one.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Verdict::Down(reason) | Verdict::Ejected { reason, .. } | Verdict::Draining(reason) => Some(reason),
            Verdict::Unknown | Verdict::Up => None,
        }
    }
}

/// Milliseconds until the next probe. `random` is any 64 random bits.
pub fn next_probe(interval: u64, random: u64) -> u64 {
    let spread = interval * JITTER_PERCENT / 100;
    interval - spread + random % (2 * spread + 1)
}

impl Servers {
    pub fn new(rules: Rules, servers: usize, now: u64) -> Servers {
        let checked = match rules.probes {
            Some(Probes { starts_up: false, .. }) => Checked::Down(UNCHECKED.into()),
            _ => Checked::Never,
        };
        let server = Server {
            verdict: match &checked {
                Checked::Down(reason) => Verdict::Down(Arc::clone(reason)),
                Checked::Never | Checked::Up => Verdict::Unknown,
            },
            checked,
            streak: 0,
            outcomes: Outcomes::default(),
            ejected: None,
            ejections: 0,
            calm: true,
            draining: None,
            nowhere: None,
            backup: false,
            since: now,
        };
        let compare_at = now + rules.outliers.map_or(0, |outliers| outliers.interval);
        let mut servers =
            Servers { rules, all: vec![server; servers], compare_at, tally: Tally::default(), panic: false };
        servers.count();
        servers
    }

    /// Result of the probes, with the reason in `Err` if the server is down. `None` before the first result, or without
    /// probes.
    pub fn found(&self, server: usize) -> Option<Result<(), Reason>> {
        self.rules.probes?;
        match &self.all[server].checked {
            Checked::Never => None,
            Checked::Up => Some(Ok(())),
            Checked::Down(reason) => Some(Err(Arc::clone(reason))),
        }
    }

    /// Whether a server is down and its last probe succeeded: more of them bring it up.
    pub fn is_rising(&self, server: usize) -> bool {
        matches!(self.all[server].checked, Checked::Down(_)) && self.all[server].streak > 0
    }

    /// Takes over the result of another process's probes, as its [`Servers::found`] gave it. To be followed by
    /// [`Servers::review`].
    pub fn inherit(&mut self, server: usize, down: Option<Reason>) {
        if self.rules.probes.is_some() {
            self.all[server].checked = down.map_or(Checked::Up, Checked::Down);
        }
    }

    /// Takes over the state of a server from other rules, or another index. To be followed by [`Servers::review`].
    pub fn adopt(&mut self, server: usize, from: &Servers, at: usize) {
        let known = from.all[at].clone();
        let checked = match self.rules.probes {
            Some(_) if from.rules.probes.is_some() => known.checked.clone(),
            _ => self.all[server].checked.clone(),
        };
        let ejected = known.ejected.clone().filter(|_| self.rules.outliers.is_some());
        if self.rules.outliers.is_some() && from.rules.outliers.is_some() {
            // However often rules change, rates are compared in their time.
            self.compare_at = self.compare_at.min(from.compare_at);
        }
        self.panic = from.panic;
        self.all[server] = Server { checked, ejected, ..known };
    }

    /// Verdict on a server, and the time since which it holds.
    pub fn verdict(&self, server: usize) -> (&Verdict, u64) {
        (&self.all[server].verdict, self.all[server].since)
    }

    /// Count of servers that requests may go to.
    pub fn open(&self) -> usize {
        self.tally.open
    }

    /// A probe has ended.
    ///
    /// The first one of all is believed at once: before it, nothing is known that it could contradict.
    pub fn probed(&mut self, server: usize, found: Result<(), Reason>, now: u64) -> Vec<Change> {
        let Some(Probes { rise, fall, .. }) = self.rules.probes else { return Vec::new() };
        let state = &mut self.all[server];
        let needed = match (&state.checked, &found) {
            (Checked::Never, _) => 1,
            (Checked::Down(_), Ok(())) => rise,
            (Checked::Up, Err(_)) => fall,
            (Checked::Up, Ok(())) | (Checked::Down(_), Err(_)) => 0,
        };
        state.streak = if needed == 0 { 0 } else { state.streak + 1 };
        if state.streak >= needed {
            state.streak = 0;
            let before = std::mem::replace(&mut state.checked, found.map_or_else(Checked::Down, |()| Checked::Up));
            if matches!((before, &state.checked), (Checked::Down(_), Checked::Up)) {
                // An ejection ends with the failure behind it. How often there was one counts for the next.
                self.change(server, Server::release);
            }
        }
        // With thousands of servers a look at all of them for each probe would be a square. Only ejections bind one to
        // the others.
        if self.tally.ejected > 0 {
            let state = &self.all[server];
            if state.judged() == state.verdict { Vec::new() } else { self.commit(now) }
        } else {
            let change = self.commit_one(server, now);
            self.panic = self.panics();
            change.into_iter().collect()
        }
    }

    /// Adds the results of requests since the last call.
    ///
    /// The order in which they ended is not known, so any success among them ends a row of failures.
    pub fn counted(&mut self, server: usize, successes: u64, failures: u64) {
        let state = &mut self.all[server];
        if state.ejected.is_some() {
            // Results of requests that were in progress when the server was ejected do not count.
            return;
        }
        let outcomes = &mut state.outcomes;
        outcomes.consecutive = if successes > 0 { 0 } else { outcomes.consecutive + failures };
        outcomes.successes += successes;
        outcomes.failures += failures;
    }

    /// Ejects servers that `counted` has given reason to, and ends ejections that are over. To be called about once a
    /// second.
    pub fn tick(&mut self, now: u64) -> Vec<Change> {
        let Some(outliers) = self.rules.outliers else { return Vec::new() };
        self.release_expired(now);
        for server in 0..self.all.len() {
            let failures = self.all[server].outcomes.consecutive;
            if outliers.consecutive_failures > 0 && failures >= outliers.consecutive_failures {
                self.eject(server, &outliers, format!("{failures} failures in a row").into(), now);
            }
        }
        if now >= self.compare_at {
            self.compare_at = now + outliers.interval;
            for (server, reason) in self.outlying(&outliers) {
                self.eject(server, &outliers, reason, now);
            }
            for server in &mut self.all {
                server.outcomes = Outcomes { consecutive: server.outcomes.consecutive, ..Outcomes::default() };
                if server.calm {
                    server.ejections = server.ejections.saturating_sub(1);
                }
                server.calm = server.ejected.is_none();
            }
        }
        self.commit(now)
    }

    /// New requests go elsewhere from now on, for this reason, or may come again. To be followed by
    /// [`Servers::review`].
    pub fn set_drain(&mut self, server: usize, draining: Option<Reason>) {
        self.all[server].draining = draining;
    }

    /// Sets or clears the reason why the server's address is unknown: the server is then down whatever probes have
    /// found, and in a panic too. To be followed by [`Servers::review`].
    pub fn set_nowhere(&mut self, server: usize, nowhere: Option<Reason>) {
        self.change(server, |server| server.nowhere = nowhere);
    }

    /// Makes a server a backup, or an ordinary one. To be followed by [`Servers::review`].
    pub fn set_backup(&mut self, server: usize, backup: bool) {
        self.change(server, |server| server.backup = backup);
    }

    /// Whether the backend is in panic: so few ordinary servers are open, and no backup in their stead, that they would
    /// not bear the load, or that the findings against the others are not to be believed.
    pub fn is_panic(&self) -> bool {
        self.panic
    }

    /// Whether requests may go to a server: its verdict allows it, or is not believed in a panic. Draining servers, and
    /// servers still to be probed for the first time, get none.
    pub fn admits(&self, server: usize) -> bool {
        let server = &self.all[server];
        server.verdict.is_open() || self.panic && server.is_doubted()
    }

    /// Updates all verdicts after a change of rules or drains.
    pub fn review(&mut self, now: u64) -> Vec<Change> {
        self.commit(now)
    }

    fn panics(&self) -> bool {
        let Tally { ordinary, ordinary_open, backups_open, doubted, .. } = self.tally;
        let stood_in_for = ordinary_open == 0 && backups_open > 0;
        let too_few = ordinary_open * 100 < ordinary * usize::from(self.rules.min_healthy_percent);
        too_few && !stood_in_for && doubted > 0
    }

    /// Count of all servers.
    pub fn count_all(&self) -> usize {
        self.all.len()
    }

    /// Counts anew.
    fn count(&mut self) {
        self.tally = Tally::default();
        for server in &self.all {
            server.add_to(&mut self.tally, |count, by| *count += by);
        }
    }

    /// Changes a server, and the tally with it.
    fn change<T>(&mut self, server: usize, change: impl FnOnce(&mut Server) -> T) -> T {
        let server = &mut self.all[server];
        server.add_to(&mut self.tally, |count, by| *count = count.saturating_sub(by));
        let changed = change(server);
        server.add_to(&mut self.tally, |count, by| *count += by);
        changed
    }

    /// Brings the verdict on one server up to date, where no other depends on it.
    fn commit_one(&mut self, index: usize, now: u64) -> Option<Change> {
        let to = self.all[index].judged();
        if to == self.all[index].verdict {
            return None;
        }
        self.change(index, |server| server.commit(index, to, now))
    }

    /// Servers with a success rate too far below that of their peers in the interval.
    fn outlying(&self, outliers: &Outliers) -> Vec<(usize, Reason)> {
        let Some(SuccessRate { servers_min, requests_min, deviation_percent }) = outliers.success_rate else {
            return Vec::new();
        };
        let rate = |server: &Server| {
            let Outcomes { successes, failures, .. } = server.outcomes;
            let enough = server.ejected.is_none() && successes + failures >= requests_min.max(1);
            enough.then(|| successes as f64 * 100.0 / (successes + failures) as f64)
        };
        let rates: Vec<(usize, f64)> =
            self.all.iter().enumerate().filter_map(|(index, server)| Some((index, rate(server)?))).collect();
        if rates.len() < servers_min.max(2) {
            return far_below(&rates);
        }
        let count = rates.len() as f64;
        let mean = rates.iter().map(|(_, rate)| rate).sum::<f64>() / count;
        let variance = rates.iter().map(|(_, rate)| (rate - mean).powi(2)).sum::<f64>() / count;
        let threshold = mean - variance.sqrt() * f64::from(deviation_percent) / 100.0;
        let mut worst: Vec<(usize, f64)> = rates.into_iter().filter(|(_, rate)| *rate < threshold).collect();
        // The worst are ejected where not all of them may be.
        worst.sort_by(|a, b| a.1.total_cmp(&b.1));
        let reason = |rate: f64| format!("success rate {rate:.1} %, its peers' mean is {mean:.1} %").into();
        worst.into_iter().map(|(server, rate)| (server, reason(rate))).collect()
    }

    /// Ejects a server, if that leaves enough of the others.
    fn eject(&mut self, server: usize, outliers: &Outliers, reason: Reason, now: u64) {
        let ejected = self.all.iter().filter(|server| server.ejected.is_some()).count();
        let allowed = (self.count_all() * outliers.ejected_percent_max as usize / 100).max(1);
        let others = self.all.iter().enumerate().filter(|(index, _)| *index != server);
        let left = others.filter(|(_, other)| other.judged().is_open()).count();
        let state = &mut self.all[server];
        // Closed servers take no share of the ejections.
        if !state.judged().is_open() || ejected >= allowed || left == 0 {
            return;
        }
        state.ejections = state.ejections.saturating_add(1);
        state.calm = false;
        let length = outliers.ejection.saturating_mul(state.ejections.into()).min(outliers.ejection_max);
        state.ejected = Some((reason, now + length));
    }

    fn release_expired(&mut self, now: u64) {
        let is_over = |server: &&mut Server| server.ejected.as_ref().is_some_and(|(_, until)| *until <= now);
        self.all.iter_mut().filter(is_over).for_each(Server::release);
    }

    /// Brings every verdict up to date. Ejections give way where nobody else is left: bad answers are better than none.
    fn commit(&mut self, now: u64) -> Vec<Change> {
        // One that comes back from being down may have been ejected before, for a time that is over.
        self.release_expired(now);
        if !self.all.iter().any(|server| server.judged().is_open()) {
            self.all.iter_mut().filter(|server| server.ejected.is_some()).for_each(Server::release);
        }
        let mut changes = Vec::new();
        for (index, server) in self.all.iter_mut().enumerate() {
            let to = server.judged();
            if to != server.verdict {
                changes.extend(server.commit(index, to, now));
            }
        }
        self.count();
        self.panic = self.panics();
        changes
    }
}

/// Servers whose success rate is below that of all others together by [`FEW_GAP`]. Of few servers, two above all, a
/// standard deviation says nothing: it grows with the one that is bad.
fn far_below(rates: &[(usize, f64)]) -> Vec<(usize, Reason)> {
    let sum: f64 = rates.iter().map(|(_, rate)| rate).sum();
    let others = |rate: f64| (sum - rate) / (rates.len() as f64 - 1.0);
    let mut worst: Vec<(usize, f64)> =
        rates.iter().copied().filter(|(_, rate)| rates.len() > 1 && others(*rate) - rate >= FEW_GAP).collect();
    worst.sort_by(|a, b| a.1.total_cmp(&b.1));
    let reason = |rate: f64| format!("success rate {rate:.1} %, that of the others is {:.1} %", others(rate)).into();
    worst.into_iter().map(|(server, rate)| (server, reason(rate))).collect()
}

impl Server {
    /// Sets the verdict.
    fn commit(&mut self, index: usize, to: Verdict, now: u64) -> Option<Change> {
        let from = std::mem::replace(&mut self.verdict, to.clone());
        if to.is_open() && !from.is_open() {
            // Outcomes from before say nothing about a server that is back.
            self.outcomes = Outcomes::default();
        }
        // A new reason for being down is no news; the first probe's result is.
        if from.name() == to.name() && from.reason() != Some(UNCHECKED) {
            return None;
        }
        self.since = now;
        Some(Change { server: index, from, to })
    }

    /// Adds what it counts for to a tally, or takes it off.
    fn add_to(&self, tally: &mut Tally, add: impl Fn(&mut usize, usize)) {
        let is_open = usize::from(self.verdict.is_open());
        add(&mut tally.open, is_open);
        add(&mut tally.ejected, usize::from(self.ejected.is_some()));
        if matches!(self.verdict, Verdict::Draining(_)) {
            return;
        }
        if self.backup {
            add(&mut tally.backups_open, is_open);
        } else {
            add(&mut tally.ordinary, 1);
            add(&mut tally.ordinary_open, is_open);
        }
        add(&mut tally.doubted, usize::from(self.is_doubted()));
    }

    /// Whether the server is closed by a verdict that may be wrong.
    fn is_doubted(&self) -> bool {
        if self.nowhere.is_some() {
            return false;
        }
        match &self.verdict {
            Verdict::Down(reason) => **reason != *UNCHECKED,
            Verdict::Ejected { .. } => true,
            Verdict::Unknown | Verdict::Up | Verdict::Draining(_) => false,
        }
    }

    fn judged(&self) -> Verdict {
        #[cfg(test)]
        tests::LOOKS.set(tests::LOOKS.get() + 1);
        if let Some(reason) = &self.draining {
            return Verdict::Draining(Arc::clone(reason));
        }
        if let Some(reason) = &self.nowhere {
            return Verdict::Down(Arc::clone(reason));
        }
        match (&self.checked, &self.ejected) {
            (Checked::Down(reason), _) => Verdict::Down(Arc::clone(reason)),
            (_, Some((reason, until))) => Verdict::Ejected { reason: Arc::clone(reason), until: *until },
            (Checked::Up, None) => Verdict::Up,
            (Checked::Never, None) => Verdict::Unknown,
        }
    }

    fn release(&mut self) {
        self.ejected = None;
        self.outcomes = Outcomes::default();
    }
}

#[cfg(test)]
mod tests;
