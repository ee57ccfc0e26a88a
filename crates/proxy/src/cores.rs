//! How many workers a process has.

use std::sync::LazyLock;

use propylon_config::{Config, Workers};

/// Cores that the process can use. Asked once, by the main thread: a worker may run on its one core alone.
static CORES: LazyLock<usize> = LazyLock::new(propylon_sys::usable_cores);

/// Threads that serve; the same on every thread and for the process's whole life, since what is shared out is by it.
pub fn worker_count(config: &Config) -> usize {
    count(config, || *CORES)
}

/// Threads that a process would have that is started now. Only the main thread may ask.
pub fn worker_count_now(config: &Config) -> usize {
    count(config, propylon_sys::usable_cores)
}

fn count(config: &Config, cores: impl FnOnce() -> usize) -> usize {
    match config.process.workers {
        Workers::Auto => cores(),
        Workers::Count(count) => count.get().into(),
    }
}
