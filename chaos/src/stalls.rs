//! Stalls of this machine, when it does not get round to what is due: nobody can keep a promise about time then.
//!
//! Two witnesses: a thread on each core that should wake up all the time, which shows a core that does not run at
//! all; and the kernel's own account of how long threads of the engine and its servers were ready and had to wait
//! for a core.

use crate::clock::{Micros, now};
use crate::server_processes::{SharedTimeline, lock};
use crate::timeline::Window;
use propylon_bench::interrupt::Interrupt;
use propylon_bench::machine;
use std::collections::HashMap;
use std::fs;
use std::thread::JoinHandle;
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(20);
const LOOK_AT_THREADS: Duration = Duration::from_millis(100);
/// A wait that is shorter is ordinary life on a machine that others use too.
const STALL_MIN: Micros = 250_000;

pub struct StallWatch {
    over: Interrupt,
    threads: Vec<JoinHandle<()>>,
}

impl StallWatch {
    /// `processes`: whose threads are to be watched, asked anew each time.
    pub fn start(timeline: &SharedTimeline, processes: impl Fn() -> Vec<u32> + Send + 'static) -> Self {
        let over = Interrupt::default();
        let mut threads = Vec::new();
        for core in machine::cores_allowed() {
            let (over, timeline) = (over.clone(), timeline.clone());
            threads.push(std::thread::spawn(move || watch_core(core, &timeline, &over)));
        }
        let (ended, timeline) = (over.clone(), timeline.clone());
        threads.push(std::thread::spawn(move || watch_threads(processes, &timeline, &ended)));
        Self { over, threads }
    }

    pub fn end(self) {
        self.over.raise();
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

fn watch_core(core: usize, timeline: &SharedTimeline, over: &Interrupt) {
    if machine::pin_to_core(core).is_err() {
        return;
    }
    let mut last = now();
    while !over.is_raised() {
        std::thread::sleep(LOOK);
        let current = now();
        if current - last > STALL_MIN {
            lock(timeline).stalls.push(Window::new(last, current));
        }
        last = current;
    }
}

fn watch_threads(processes: impl Fn() -> Vec<u32>, timeline: &SharedTimeline, over: &Interrupt) {
    let mut before: HashMap<(u32, u32), Micros> = HashMap::new();
    let mut last = now();
    while !over.is_raised() {
        std::thread::sleep(LOOK_AT_THREADS);
        let current: HashMap<_, _> = processes().into_iter().flat_map(waits).collect();
        let waited =
            |(thread, total): (&(u32, u32), &Micros)| total.saturating_sub(*before.get(thread).unwrap_or(total));
        let longest = current.iter().map(waited).max().unwrap_or(0);
        let moment = now();
        if longest > STALL_MIN {
            // The account is made up when a wait is over, so it may have begun before the last look.
            lock(timeline).stalls.push(Window::new(last.min(moment.saturating_sub(longest)), moment));
        }
        (before, last) = (current, moment);
    }
}

/// How long each thread of a process has waited for a core since its start.
fn waits(process: u32) -> Vec<((u32, u32), Micros)> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let wait = |entry: fs::DirEntry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        Some(((process, thread), parse(&text)?))
    };
    threads.flatten().filter_map(wait).collect()
}

/// Time on a core, time waiting for one (nanoseconds), time slices (Documentation/scheduler/sched-stats.rst).
fn parse(schedstat: &str) -> Option<Micros> {
    let nanoseconds: u64 = schedstat.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(nanoseconds / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_account_of_waiting_is_its_second_number() {
        assert_eq!(parse("123456 7000000 89\n"), Some(7_000));
        assert_eq!(parse(""), None);
    }
}
