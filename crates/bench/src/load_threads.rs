//! Several load threads that act as one: a core each, an equal share of the load each, one result.

use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::load::{Load, Measured, Plan, Until};
use crate::pressure::{self, Counters, Pressure, ThreadUse};
use crate::report::{Pace, progress};
use crate::stats::LoadStats;
use crate::target::{Target, TlsOffer};
use crate::{http2, machine};
use std::net::{IpAddr, SocketAddr};
use std::sync::Barrier;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How often the run is looked at from outside.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The server that is measured; each thread makes its own `Target` of it.
#[derive(Clone)]
pub struct TargetSpec {
    pub address: SocketAddr,
    pub name: String,
    pub offer: TlsOffer,
    pub sources: Vec<IpAddr>,
    /// Requests over HTTP/2 in place of the plan's own.
    pub http2: Option<Http2Work>,
}

/// Requests over HTTP/2, as many at once on each of the plan's connections.
#[derive(Clone)]
pub struct Http2Work {
    pub streams: usize,
    pub method: &'static str,
    pub path: &'static str,
    pub body_bytes: usize,
}

/// The load's threads, by the cores they stay on; one thread for each entry.
pub struct LoadThreads<'a> {
    pub cores: &'a [usize],
    pub interrupt: &'a Interrupt,
    /// Whose CPU time is measured; may be empty.
    pub server_pids: &'a [u32],
    /// Servers behind the one that is measured: their CPU time is the load's.
    pub origin_pids: &'a [u32],
    /// Cores that the server may use, if that is known.
    pub server_cores_allowed: Option<usize>,
}

/// Length of a run: the warm-up, and what is measured.
#[derive(Clone, Copy)]
pub struct Length {
    pub warmup: Duration,
    pub duration: Duration,
}

/// One thread's part of the load.
struct Share<'a> {
    target_spec: &'a TargetSpec,
    plan: Plan,
    core: usize,
    interrupt: &'a Interrupt,
    length: Length,
}

/// Results of a run of all threads.
pub struct RunResult {
    pub stats: LoadStats,
    pub pressure: Pressure,
    /// Server CPU per good answer, in seconds; absent without server processes or answers.
    pub cpu_each: Option<f64>,
    pub cpu_source: Option<cpu::Source>,
    /// Server CPU, in seconds.
    pub cpu: Option<f64>,
    /// CPU time of the server's busiest thread by the mean of as many as it has cores; 1 is even.
    pub busiest: Option<f64>,
    /// Cores kept busy by the servers behind it.
    pub origin_cores: f64,
}

/// The load of one thread.
enum ThreadLoad<'t> {
    Http1(Box<Load<'t>>),
    Http2(Box<http2::Load>, &'t Interrupt),
}

impl TargetSpec {
    pub fn target(&self) -> Outcome<Target> {
        let mut target = Target::new(self.address, &self.name, Some(&self.offer))?.with_sources(&self.sources);
        if self.http2.is_some() {
            target.offer_http2();
        }
        Ok(target)
    }

    fn load<'t>(&self, target: &'t Target, plan: Plan, interrupt: &'t Interrupt) -> Outcome<ThreadLoad<'t>> {
        let Some(work) = &self.http2 else {
            let mut load = Load::new(target, plan, interrupt)?;
            load.rest_between_arrivals();
            return Ok(ThreadLoad::Http1(Box::new(load)));
        };
        let request = http2::Request::new(work.method, work.path, target, &[], work.body_bytes)?;
        let Plan { connections, timeout, rate, .. } = plan;
        let plan = http2::Plan { connections, streams: work.streams, request, timeout, rate };
        Ok(ThreadLoad::Http2(Box::new(http2::Load::new(self.target()?, plan)?), interrupt))
    }
}

impl ThreadLoad<'_> {
    fn run(&mut self, until: Until) -> Outcome<Measured> {
        match self {
            Self::Http1(load) => load.run(until, ""),
            Self::Http2(load, interrupt) => load.run(until, "", interrupt),
        }
    }
}

impl LoadThreads<'_> {
    /// Warms up, then measures. `plan` is that of all threads together; `label` is shown every few seconds.
    pub fn run(&self, target_spec: &TargetSpec, plan: &Plan, length: Length, label: &str) -> Outcome<RunResult> {
        let threads = self.cores.len().min(plan.connections).max(1);
        // Met twice: when all are warm, and when the readings before the run are taken.
        let barrier = Barrier::new(threads + 1);
        std::thread::scope(|scope| {
            let shares = (0..threads).map(|index| share(plan, threads, index));
            let handles: Vec<_> = shares
                .zip(self.cores)
                .map(|(plan, &core)| {
                    let share = Share { target_spec, plan, core, interrupt: self.interrupt, length };
                    let barrier = &barrier;
                    scope.spawn(move || share.run(barrier))
                })
                .collect();
            self.watch(&barrier, handles, target_spec, length.duration, label)
        })
    }

    fn watch(
        &self,
        barrier: &Barrier,
        handles: Vec<ScopedJoinHandle<'_, Outcome<(Measured, ThreadUse)>>>,
        target_spec: &TargetSpec,
        duration: Duration,
        label: &str,
    ) -> Outcome<RunResult> {
        barrier.wait();
        // An error must not leave the threads waiting, so it is looked at after the second meeting.
        let before = cpu::Reading::of(self.server_pids);
        let origin_before = cpu::Reading::of(self.origin_pids);
        let waited = pressure::waited(self.server_pids);
        let counters = Counters::now();
        barrier.wait();
        let begin = Instant::now();
        let mut pace = Pace::started();
        let mut time_wait_most = pressure::time_wait();
        while handles.iter().any(|handle| !handle.is_finished()) {
            std::thread::sleep(LOOK_INTERVAL);
            let now = Instant::now();
            if pace.is_due(now) {
                time_wait_most = time_wait_most.max(pressure::time_wait());
                let seconds = (now - begin).as_secs();
                if !label.is_empty() && seconds.is_multiple_of(5) {
                    progress(format_args!("  {label}: {seconds} of {:.0} s", duration.as_secs_f64()));
                }
            }
        }
        let mut stats = LoadStats::new();
        let mut pressure = Counters::now().since(&counters, begin.elapsed().as_secs_f64());
        for handle in handles {
            let (measured, thread) = handle.join().map_err(|_| Failure::new("a load thread panicked"))??;
            stats.merge(measured.stats);
            pressure.load_threads.push(thread);
        }
        pressure.time_wait_most = time_wait_most.max(pressure::time_wait());
        pressure.source_addresses = target_spec.sources.len().max(1) as u64;
        pressure.out_of_ports = stats.first_error().is_some_and(|error| error.contains("os error 99"));
        let (before, after) = (before?, cpu::Reading::of(self.server_pids)?);
        let usage = after.since(&before);
        let origin_usage = cpu::Reading::of(self.origin_pids)?.since(&origin_before?);
        let known = !self.server_pids.is_empty();
        pressure.server_cores = known.then(|| usage.cpu.as_secs_f64() / stats.elapsed.as_secs_f64().max(1e-9));
        pressure.server_cores_allowed = self.server_cores_allowed.filter(|_| known);
        let waited = pressure::waited(self.server_pids).saturating_sub(waited) as f64 / 1e9;
        pressure.server_waiting = known.then(|| waited / stats.elapsed.as_secs_f64().max(1e-9));
        pressure.subtract_own_shares();
        let cpu_each = (known && stats.done > 0).then(|| usage.cpu.as_secs_f64() / stats.done as f64);
        let seconds = stats.elapsed.as_secs_f64().max(1e-9);
        Ok(RunResult {
            cpu_each,
            cpu_source: known.then_some(usage.source),
            cpu: known.then_some(usage.cpu.as_secs_f64()),
            busiest: self.server_cores_allowed.and_then(|cores| after.busiest(&before, cores)),
            origin_cores: origin_usage.cpu.as_secs_f64() / seconds,
            stats,
            pressure,
        })
    }
}

fn share(plan: &Plan, threads: usize, index: usize) -> Plan {
    Plan {
        connections: plan.connections / threads + usize::from(index < plan.connections % threads),
        rate: plan.rate.map(|rate| rate / threads as f64),
        ..plan.clone()
    }
}

impl Share<'_> {
    fn run(self, barrier: &Barrier) -> Outcome<(Measured, ThreadUse)> {
        let Self { target_spec, plan, core, interrupt, length } = self;
        let connections = plan.connections;
        let prepared = machine::pin_to_core(core).and_then(|()| target_spec.target());
        let warm = prepared.as_ref().map_err(|failure| Failure::new(failure.to_string())).and_then(|target| {
            let mut load = target_spec.load(target, plan, interrupt)?;
            if target_spec.offer.resume {
                // Full handshakes that fill the store with tickets must be over before any is counted as an error; a
                // warm-up by time alone may end with some of them still on their way.
                load.run(Until::Finished(2 * connections as u64))?;
            }
            load.run(Until::Elapsed(length.warmup))?;
            Ok(load)
        });
        barrier.wait();
        barrier.wait();
        let mut load = warm?;
        let waited = pressure::this_thread_waited();
        let measured = load.run(Until::Elapsed(length.duration))?;
        let waited = pressure::this_thread_waited().saturating_sub(waited) as f64 / 1e9;
        let waiting = waited / measured.stats.elapsed.as_secs_f64().max(1e-9);
        let thread = ThreadUse { busy: measured.load_busy, waiting };
        Ok((measured, thread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Request;
    use crate::load::Kind;

    #[test]
    fn shares_add_up_to_the_whole() {
        let request = Request::new("GET", "/", "localhost", "", 0);
        let timeout = Duration::from_secs(1);
        let plan = Plan { kind: Kind::NewConnections, connections: 17, request, timeout, rate: Some(900.0) };
        let shares: Vec<Plan> = (0..3).map(|index| share(&plan, 3, index)).collect();
        assert_eq!(shares.iter().map(|share| share.connections).collect::<Vec<_>>(), [6, 6, 5]);
        assert_eq!(shares.iter().filter_map(|share| share.rate).sum::<f64>(), 900.0);
    }
}
