//! All agents of one job: started together, watched, added up; and the loss of any of them reported.

use super::clock::{Clock, Offset};
use super::link::{AgentEvent, LossKind, Start};
use super::message::{Job, Results, printable};
use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::load::Measured;
use crate::report::{Pace, Table, progress};
use crate::stats::LoadStats;
use crate::units::{show_nanoseconds, show_number};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// From the last agent's readiness to the start, besides what the way there takes.
const START_MARGIN: Duration = Duration::from_millis(300);
/// Progress is shown once a second, a little after the second in which the agents counted.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);
const SHOW_DELAY: Duration = Duration::from_millis(300);

pub struct Fleet {
    clock: Clock,
    /// Ends all threads.
    stop: Interrupt,
    events: Receiver<(usize, AgentEvent)>,
    agents: Vec<Agent>,
    start: Option<Start>,
}

struct Agent {
    address: String,
    job: Job,
    /// Share of the whole load, 0 to 1.
    share: f64,
    start: Sender<Start>,
    offset: Option<Offset>,
    done: u64,
    errors: u64,
    state: State,
}

enum State {
    Preparing,
    Working,
    Done(Box<Results>),
    /// In a sentence.
    Lost(String),
}

/// A load that was measured from several places.
pub struct Distributed {
    pub measured: Measured,
    pub usage: cpu::Usage,
    pub report: FleetReport,
}

/// Results of the agents, one by one.
#[derive(Debug, Serialize, Deserialize)]
pub struct FleetReport {
    pub agents: Vec<AgentReport>,
    /// Share of the whole load that is missing, 0 to 1.
    pub missing: f64,
    /// Between the first agent's and the last agent's start, nanoseconds.
    pub start_spread: u64,
    /// Error of the spread at most, in nanoseconds: half the round trip of each of two clocks.
    pub start_spread_error: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct AgentReport {
    pub address: String,
    /// Share of the whole load, 0 to 1.
    pub share: f64,
    pub connections: usize,
    pub rate: Option<f64>,
    /// Reason why the agent did not finish, if it did not. Its figures are then not in the sums.
    pub lost: Option<String>,
    pub done: u64,
    pub errors: u64,
    pub load_busy: Option<f64>,
    pub clock: Option<Offset>,
}

impl Fleet {
    pub(super) fn new(clock: Clock, stop: Interrupt, events: Receiver<(usize, AgentEvent)>) -> Self {
        Self { clock, stop, events, agents: Vec::new(), start: None }
    }

    pub(super) fn add(&mut self, address: String, job: Job, share: f64, start: Sender<Start>) {
        let state = State::Preparing;
        self.agents.push(Agent { address, job, share, start, offset: None, done: 0, errors: 0, state });
    }

    /// Measures until every agent has sent its figures, or was lost.
    pub(super) fn measure(mut self, whole: &Job, server_pids: &[u32], interrupt: &Interrupt) -> Outcome<Distributed> {
        // A process that is not there is an error before any agent starts.
        let mut before = cpu::Reading::of(server_pids)?;
        self.until(interrupt, &whole.command, |fleet| fleet.all(|state| !matches!(state, State::Preparing)))?;
        let start = self.send_start(whole.warmup)?;
        let measure_at = self.clock.instant(start.measure_at).ok_or_else(|| Failure::new("no start"))?;
        self.until(interrupt, "", |_| Instant::now() >= measure_at)?;
        if !server_pids.is_empty() {
            before = cpu::Reading::of(server_pids)?;
        }
        // Read again at the end of each agent's load; the last one counts.
        let mut after = None;
        let mut show_at = measure_at + SHOW_INTERVAL + SHOW_DELAY;
        while self.is_working() {
            interrupt.check()?;
            if matches!(self.next(LOOK_INTERVAL), Some(AgentEvent::Finished)) {
                after = Some(cpu::Reading::of(server_pids)?);
            }
            if Instant::now() >= show_at {
                self.show_progress(&whole.command, show_at - SHOW_DELAY - measure_at);
                show_at += SHOW_INTERVAL;
            }
        }
        let usage = after.map(|after| after.since(&before));
        let usage = usage.unwrap_or(cpu::Usage { cpu: Duration::ZERO, source: cpu::Source::Schedstat });
        self.sum(usage)
    }

    fn all(&self, is: impl Fn(&State) -> bool) -> bool {
        self.agents.iter().all(|agent| is(&agent.state))
    }

    fn is_working(&self) -> bool {
        self.agents.iter().any(|agent| matches!(agent.state, State::Working))
    }

    /// Takes events until `over`.
    fn until(&mut self, interrupt: &Interrupt, label: &str, over: impl Fn(&Self) -> bool) -> Outcome<()> {
        let mut pace = Pace::started();
        while !over(self) {
            interrupt.check()?;
            let left = self.start.and_then(|start| self.clock.instant(start.measure_at));
            let left = left.map(|at| at.saturating_duration_since(Instant::now()));
            self.next(left.map_or(LOOK_INTERVAL, |left| left.min(LOOK_INTERVAL)));
            if !label.is_empty() && pace.is_due(Instant::now()) {
                let ready = self.agents.iter().filter(|agent| matches!(agent.state, State::Working)).count();
                progress(format_args!("{label}: {ready} of {} agents are ready", self.agents.len()));
            }
        }
        Ok(())
    }

    /// Takes one event in, and returns it if it is that a load has ended.
    fn next(&mut self, wait: Duration) -> Option<AgentEvent> {
        let (index, events) = match self.events.recv_timeout(wait) {
            Ok(events) => events,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                // Every thread sends its last event before it ends, but for one that panicked.
                for index in 0..self.agents.len() {
                    self.lose(index, LossKind::Failed, "its thread here ended");
                }
                return None;
            }
        };
        let agent = &mut self.agents[index];
        match events {
            AgentEvent::Prepared(offset) => {
                agent.offset = Some(offset);
                agent.state = State::Working;
            }
            AgentEvent::Progress { done, errors } => (agent.done, agent.errors) = (done, errors),
            AgentEvent::Finished => return Some(AgentEvent::Finished),
            AgentEvent::Results(results) => {
                agent.done = results.stats.done;
                agent.errors = results.stats.errors_total();
                agent.state = State::Done(results);
            }
            AgentEvent::Lost(how, why) => self.lose(index, how, &why),
        }
        None
    }

    fn lose(&mut self, index: usize, how: LossKind, why: &str) {
        let when = self.when();
        let agent = &mut self.agents[index];
        if matches!(agent.state, State::Done(_) | State::Lost(_)) {
            return;
        }
        let what = match how {
            LossKind::Unusable => "cannot be used".to_owned(),
            LossKind::Refused => "refused".to_owned(),
            LossKind::Died => format!("died {when}"),
            LossKind::Stalled => format!("stalled {when}"),
            LossKind::Failed => format!("failed {when}"),
        };
        let share = (agent.share * 100.0).round();
        let why = printable(why);
        let loss = format!("agent {} {what} ({why}): {share} % of the load is missing", agent.address);
        progress(&loss);
        agent.state = State::Lost(loss);
    }

    /// Now, as seen from the begin of the measured part.
    fn when(&self) -> String {
        let now = self.clock.now();
        match self.start {
            Some(start) if now >= start.measure_at => format!("after {:.1} s", (now - start.measure_at) as f64 / 1e9),
            Some(start) if now >= start.warmup_at => "in the warm-up".to_owned(),
            _ => "before the start".to_owned(),
        }
    }

    /// One moment for all, far enough ahead that the word reaches the farthest.
    fn send_start(&mut self, warmup: Duration) -> Outcome<Start> {
        let ready = || self.agents.iter().filter(|agent| matches!(agent.state, State::Working));
        let Some(farthest) = ready().filter_map(|agent| Some(agent.offset?.round_trip)).max() else {
            return Err(Failure::new(format!("no agent is ready; {}", self.losses().join("; "))));
        };
        let warmup_at = self.clock.now() + START_MARGIN.as_nanos() as u64 + 2 * farthest;
        let start = Start { warmup_at, measure_at: warmup_at + warmup.as_nanos() as u64 };
        for agent in ready() {
            // The thread has ended: its last event says, or will say, why.
            let _ = agent.start.send(start);
        }
        self.start = Some(start);
        Ok(start)
    }

    fn show_progress(&self, label: &str, elapsed: Duration) {
        let here = |agent: &&Agent| !matches!(agent.state, State::Lost(_));
        let (done, errors) =
            self.agents.iter().filter(here).fold((0_u64, 0_u64), |sum, agent| {
                (sum.0.saturating_add(agent.done), sum.1.saturating_add(agent.errors))
            });
        let count = self.agents.iter().filter(here).count();
        let (seconds, all) = (elapsed.as_secs_f64(), self.agents.len());
        progress(format_args!("{label}: {seconds:.0} s, {done} done, {errors} errors, {count} of {all} agents"));
    }

    fn losses(&self) -> Vec<String> {
        let lost = |agent: &Agent| match &agent.state {
            State::Lost(loss) => Some(loss.clone()),
            _ => None,
        };
        self.agents.iter().filter_map(lost).collect()
    }

    fn sum(self, usage: cpu::Usage) -> Outcome<Distributed> {
        let mut stats = LoadStats::new();
        let mut load_busy = 0.0_f64;
        let mut starts = Vec::new();
        for agent in &self.agents {
            let State::Done(results) = &agent.state else { continue };
            starts.extend(agent.offset.map(|offset| offset.to_ours(results.measured_from)));
            load_busy = load_busy.max(results.load_busy);
            let mut own = results.stats.clone();
            own.prefix_first_error(&format!("agent {}", agent.address));
            stats.merge(own);
        }
        if self.all(|state| matches!(state, State::Lost(_))) {
            return Err(Failure::new(format!("no agent finished; {}", self.losses().join("; "))));
        }
        let report = self.report(&starts);
        Ok(Distributed { measured: Measured { stats, load_busy }, usage, report })
    }

    fn report(&self, starts: &[u64]) -> FleetReport {
        let (first, last) = (starts.iter().min(), starts.iter().max());
        let finished = self.agents.iter().filter(|agent| matches!(agent.state, State::Done(_)));
        let mut round_trips: Vec<u64> = finished.filter_map(|agent| Some(agent.offset?.round_trip)).collect();
        round_trips.sort_unstable_by(|a, b| b.cmp(a));
        FleetReport {
            missing: self.agents.iter().filter(|agent| agent.is_lost()).map(|agent| agent.share).sum(),
            start_spread: last.zip(first).map_or(0, |(last, first)| last - first),
            start_spread_error: round_trips.iter().take(2).map(|round_trip| round_trip / 2).sum(),
            agents: self.agents.iter().map(Agent::report).collect(),
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.raise();
    }
}

impl Agent {
    fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_))
    }

    fn report(&self) -> AgentReport {
        let (lost, load_busy) = match &self.state {
            State::Lost(loss) => (Some(loss.clone()), None),
            State::Done(results) => (None, Some(results.load_busy)),
            State::Preparing | State::Working => (None, None),
        };
        AgentReport {
            address: self.address.clone(),
            share: self.share,
            connections: self.job.connections,
            rate: self.job.rate(),
            lost,
            done: self.done,
            errors: self.errors,
            load_busy,
            clock: self.offset,
        }
    }
}

impl FleetReport {
    pub fn print(&self) {
        println!();
        let mut table = Table::with_head(["agent", "share", "connections", "per second", "done", "errors", "busy"]);
        for agent in &self.agents {
            let percent = |part: f64| format!("{:.0} %", part * 100.0);
            table.row([
                agent.address.clone(),
                percent(agent.share),
                agent.connections.to_string(),
                agent.rate.map_or_else(|| "-".to_owned(), show_number),
                agent.done.to_string(),
                agent.errors.to_string(),
                agent.load_busy.map_or_else(|| "lost".to_owned(), percent),
            ]);
        }
        table.print();
        if self.agents.iter().filter(|agent| agent.lost.is_none()).count() > 1 {
            let (spread, error) = (self.start_spread as f64, self.start_spread_error as f64);
            println!("all began within {} (give or take {})", show_nanoseconds(spread), show_nanoseconds(error));
        }
        if self.missing > 0.0 {
            println!("what a lost agent had done until then is not in the sums above");
        }
    }

    /// One sentence per agent that was lost.
    pub fn losses(&self) -> Vec<String> {
        self.agents.iter().filter_map(|agent| agent.lost.clone()).collect()
    }
}
