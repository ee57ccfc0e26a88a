//! CPU time of a server: of all threads of all its processes.
//!
//! `/proc/PID/task/TID/schedstat` counts nanoseconds but forgets threads that ended; `/proc/PID/stat` remembers them
//! but counts ticks of 10 ms. The first is used unless a thread was lost between two readings.

use crate::failure::{Failure, Outcome, While};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::time::Duration;

/// Processes followed at most, as a guard against a /proc that keeps changing.
const PROCESSES_MAX: usize = 4096;

/// CPU time of the calling thread, to the nanosecond.
pub fn this_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The roots and all their descendants, as they are now.
pub fn process_tree(roots: &[u32]) -> Outcome<Vec<u32>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").when("reading /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end while we look.
        if let Ok(stat) = Stat::of(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut tree = roots.to_vec();
    let mut next = 0;
    while next < tree.len() && tree.len() < PROCESSES_MAX {
        let found = children.remove(&tree[next]).unwrap_or_default();
        tree.extend(found.into_iter().filter(|pid| !roots.contains(pid)));
        next += 1;
    }
    Ok(tree)
}

/// A process and the moment of its birth: a number alone may be given to another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks since the machine started.
    born: u64,
}

impl Process {
    /// `None` if there is no such process.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, born: Stat::of(pid).ok()?.born })
    }

    /// One that ended and was not yet asked how (a zombie) is not alive.
    pub fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_ok_and(|stat| stat.born == self.born && !stat.is_over)
    }
}

/// One reading; two of them make a `Usage`.
pub struct Reading {
    /// Nanoseconds by (process, thread).
    threads: BTreeMap<(u32, u32), u64>,
    /// utime + stime of the processes and of their children that ended.
    ticks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Schedstat,
    Stat,
}

/// CPU time between two readings.
impl Source {
    /// The source with what it means for precision.
    pub fn show(self) -> &'static str {
        match self {
            Self::Schedstat => "schedstat",
            Self::Stat => "stat, 10 ms ticks",
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Usage {
    pub cpu: Duration,
    pub source: Source,
}

impl Reading {
    /// Fails if none of the roots is there (any more), or may not be looked at.
    pub fn of(roots: &[u32]) -> Outcome<Self> {
        let mut reading = Self { threads: BTreeMap::new(), ticks: 0 };
        for &root in roots {
            Stat::of(root).map_err(|error| Failure::new(format!("process {root}: {error}")))?;
        }
        for pid in process_tree(roots)? {
            let Ok(stat) = Stat::of(pid) else { continue };
            reading.ticks += stat.ticks;
            reading.read_threads(pid);
        }
        Ok(reading)
    }

    fn read_threads(&mut self, pid: u32) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
            return;
        };
        for task in tasks.flatten() {
            let Some(tid) = task.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let nanoseconds = text.split_ascii_whitespace().next().and_then(|first| first.parse().ok());
            if let Some(nanoseconds) = nanoseconds {
                self.threads.insert((pid, tid), nanoseconds);
            }
        }
    }

    /// CPU time of the busiest thread since `earlier`, by the mean of the `count` busiest; absent if none did
    /// anything, or there are fewer.
    pub fn busiest(&self, earlier: &Self, count: usize) -> Option<f64> {
        let spent =
            |(thread, now): (&(u32, u32), &u64)| now.saturating_sub(earlier.threads.get(thread).copied().unwrap_or(0));
        let mut spent: Vec<u64> = self.threads.iter().map(spent).collect();
        spent.sort_unstable_by(|one, other| other.cmp(one));
        let total: u64 = spent.get(..count)?.iter().sum();
        (total > 0).then(|| spent[0] as f64 * count as f64 / total as f64)
    }

    /// CPU time since `earlier`.
    pub fn since(&self, earlier: &Self) -> Usage {
        let lost = earlier.threads.keys().any(|thread| !self.threads.contains_key(thread));
        if lost || self.threads.is_empty() {
            let ticks = self.ticks.saturating_sub(earlier.ticks);
            let per_second = rustix::param::clock_ticks_per_second().max(1);
            return Usage { cpu: Duration::from_secs_f64(ticks as f64 / per_second as f64), source: Source::Stat };
        }
        let spent =
            |(thread, now): (&(u32, u32), &u64)| now - earlier.threads.get(thread).copied().unwrap_or(0).min(*now);
        let nanoseconds = self.threads.iter().map(spent).sum();
        Usage { cpu: Duration::from_nanos(nanoseconds), source: Source::Schedstat }
    }
}

/// The fields that are wanted of `/proc/PID/stat`.
struct Stat {
    parent: u32,
    ticks: u64,
    /// Clock ticks since the machine started.
    born: u64,
    is_over: bool,
}

impl Stat {
    fn of(pid: u32) -> Result<Self, String> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| error.to_string())?;
        Self::parse(&text).ok_or_else(|| "an unknown form of /proc/PID/stat".to_owned())
    }

    /// proc_pid_stat(5): the name in parentheses may hold anything, so fields are counted from its last one.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        // After the name: state is field 3 of the manual, so index = field - 3.
        let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
        let is_over = matches!(*fields.first()?, "Z" | "X");
        Some(Self { parent: number(1)? as u32, ticks, born: number(19)?, is_over })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_move_the_fields() {
        let stat = Stat::parse("42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 99 0").unwrap();
        assert_eq!((stat.parent, stat.ticks, stat.born, stat.is_over), (7, 124, 99, false));
    }

    #[test]
    fn the_busiest_thread_is_weighed_against_as_many_as_there_are_cores() {
        let of = |threads: &[u64]| Reading {
            threads: (0..).map(|tid| (1, tid)).zip(threads.iter().copied()).collect(),
            ticks: 0,
        };
        let before = of(&[10, 20, 5]);
        assert_eq!(of(&[40, 30, 6]).busiest(&before, 2), Some(1.5), "30 and 10, whose mean is 20");
        assert_eq!(of(&[40, 30, 6]).busiest(&before, 1), Some(1.0));
        assert_eq!((before.busiest(&before, 2), before.busiest(&of(&[0, 0, 0]), 4)), (None, None));
    }

    #[test]
    fn work_done_in_a_process_is_counted() {
        let me = std::process::id();
        let before = Reading::of(&[me]).unwrap();
        let thread_before = this_thread();
        while this_thread() - thread_before < Duration::from_millis(60) {
            std::hint::black_box(());
        }
        let usage = Reading::of(&[me]).unwrap().since(&before);
        // Other tests run in this process too, so only a lower bound holds; a reading may be a tick or two old.
        assert!(usage.cpu >= Duration::from_millis(30), "{usage:?}");
    }
}
