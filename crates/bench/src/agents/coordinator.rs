//! `--agents`: what they are asked for, and how a job is divided among them.

use super::clock::Clock;
use super::fleet::{Distributed, Fleet};
use super::identity::{CoordinatorIdentity, refuse_secret_file};
use super::link::AgentLink;
use super::message::Job;
use super::share::share;
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::load::Until;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Agents at most; each has a thread here.
const AGENTS_MAX: usize = 256;
/// An agent speaks once a second; so much silence is a stall.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The flags that every load command takes that can be spread over agents.
#[derive(clap::Args, Clone, Default)]
pub struct AgentsArguments {
    /// Agents that load the target instead of this process; rate, connections and count are divided among them
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    pub agents: Vec<String>,
    #[arg(long, hide = true, value_parser = refuse_secret_file)]
    pub secret_file: Option<String>,
    /// Certificate chain and key to show to agents
    #[arg(long, value_name = "PEM", requires = "agents_ca", requires = "agents")]
    pub agents_identity: Option<PathBuf>,
    /// CA that agents' certificates must be of
    #[arg(long, value_name = "PEM", requires = "agents_identity")]
    pub agents_ca: Option<PathBuf>,
}

impl AgentsArguments {
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// Has all agents do their shares of `whole` and adds up what they measured.
    pub fn measure(&self, whole: &Job, server_pids: &[u32], interrupt: &Interrupt) -> Outcome<Distributed> {
        let identity = self.identity()?;
        self.fleet(whole, identity, SILENCE_MAX)?.measure(whole, server_pids, interrupt)
    }

    fn identity(&self) -> Outcome<CoordinatorIdentity> {
        match (&self.agents_identity, &self.agents_ca) {
            (Some(identity), Some(ca)) => CoordinatorIdentity::read(identity, ca),
            _ => Err(Failure::new(
                "--agents needs --agents-identity and --agents-ca; `propylon-bench certificates` makes both",
            )),
        }
    }

    /// A thread for each agent, all on their way to it.
    pub(super) fn fleet(&self, whole: &Job, identity: CoordinatorIdentity, silence_max: Duration) -> Outcome<Fleet> {
        for (index, address) in self.agents.iter().enumerate() {
            if self.agents[..index].contains(address) {
                return Err(Failure::new(format!("--agents names {address} twice; an agent does one job at a time")));
            }
        }
        if self.agents.len() > AGENTS_MAX {
            return Err(Failure::new(format!("at most {AGENTS_MAX} agents are led at once")));
        }
        let jobs = shares(whole, self.agents.len())?;
        let (clock, stop) = (Clock::start(), Interrupt::default());
        let (sender, events) = channel();
        let mut fleet = Fleet::new(clock, stop.clone(), events);
        for (index, (address, job)) in self.agents.iter().zip(jobs).enumerate() {
            let (start, started) = channel();
            fleet.add(address.clone(), job.clone(), part_of_whole(&job, whole), start);
            let link = AgentLink {
                index,
                address: address.clone(),
                job,
                identity: identity.clone(),
                clock,
                events: sender.clone(),
                start: started,
                stop: stop.clone(),
                silence_max,
            };
            std::thread::Builder::new().name("agent".to_owned()).spawn(move || link.run()).when("starting a thread")?;
        }
        Ok(fleet)
    }
}

/// The job, divided without loss. An agent that would have nothing to do is an error.
fn shares(whole: &Job, agents: usize) -> Outcome<Vec<Job>> {
    let parts = NonZeroUsize::new(agents).ok_or_else(|| Failure::new("--agents without an agent"))?;
    let divided = |total: u64, what: &str| {
        if total < agents as u64 {
            return Err(Failure::new(format!("{total} {what} cannot be divided among {agents} agents")));
        }
        Ok((0..agents).map(move |index| share(total, parts, index)))
    };
    let connections = divided(whole.connections as u64, "connections")?;
    let rates = whole.micro_rate.map(|rate| divided(rate, "millionths of a request per second")).transpose()?;
    let counts = match whole.until {
        Until::Finished(count) => Some(divided(count, "requests")?),
        Until::Elapsed(_) => None,
    };
    let mut jobs: Vec<Job> = connections.map(|count| Job { connections: count as usize, ..whole.clone() }).collect();
    if let (Some(rates), Some(rate)) = (rates, whole.rate()) {
        for (index, (job, micro_rate)) in jobs.iter_mut().zip(rates).enumerate() {
            job.micro_rate = Some(micro_rate);
            // Agents take turns: together they offer what one would, an arrival at a time and not all at once.
            job.phase = Duration::from_secs_f64(index as f64 / rate);
        }
    }
    for (job, count) in jobs.iter_mut().zip(counts.into_iter().flatten()) {
        job.until = Until::Finished(count);
    }
    Ok(jobs)
}

/// Part of the load that is lost with this share, 0 to 1.
fn part_of_whole(job: &Job, whole: &Job) -> f64 {
    match (job.micro_rate, whole.micro_rate, job.until, whole.until) {
        (_, _, Until::Finished(part), Until::Finished(all)) => part as f64 / all as f64,
        (Some(part), Some(all), ..) => part as f64 / all as f64,
        _ => job.connections as f64 / whole.connections as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::rules::tests::job;

    #[test]
    fn shares_add_up_to_the_whole() {
        let mut whole = job("127.0.0.1:1");
        whole.connections = 32;
        whole.micro_rate = Some(1_000_000_000);
        whole.until = Until::Finished(1000);
        let jobs = shares(&whole, 3).unwrap();
        assert_eq!(jobs.iter().map(|job| job.connections).collect::<Vec<_>>(), [11, 11, 10]);
        assert_eq!(jobs.iter().filter_map(|job| job.micro_rate).sum::<u64>(), 1_000_000_000);
        assert_eq!(jobs.iter().map(|job| job.until).collect::<Vec<_>>(), [334, 333, 333].map(Until::Finished));
        // 1000 a second: one each millisecond, by turns.
        assert_eq!(jobs.iter().map(|job| job.phase.as_micros()).collect::<Vec<_>>(), [0, 1000, 2000]);
        let parts: f64 = jobs.iter().map(|job| part_of_whole(job, &whole)).sum();
        assert!((parts - 1.0).abs() < 1e-9);
        assert_eq!(shares(&whole, 1).unwrap(), [whole.clone()]);
        assert!(shares(&whole, 33).unwrap_err().to_string().contains("32 connections cannot"));
    }
}
