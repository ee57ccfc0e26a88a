//! How many workers a process has.

use std::sync::LazyLock;

use propylon_config::{Config, Workers};

/// Cores that the process may run on. Asked once, by the main thread: a worker may run on its one core alone.
static CORES: LazyLock<usize> = LazyLock::new(|| propylon_sys::allowed_cores().len().max(1));

/// Threads that serve; the same on every thread and for the process's whole life, since what is shared out is by it.
pub fn worker_count(config: &Config) -> usize {
    match config.process.workers {
        Workers::Auto => *CORES,
        Workers::Count(count) => count.get().into(),
    }
}
