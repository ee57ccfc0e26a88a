//! One clock for every process of a run: what a server wrote down and what a client saw can be laid side by side.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Microseconds of the machine's monotonic clock.
pub type Micros = u64;

pub fn now() -> Micros {
    let time = clock_gettime(ClockId::Monotonic);
    // A clock since boot is neither negative nor near the end of the range.
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

pub fn micros(duration: Duration) -> Micros {
    duration.as_micros() as Micros
}

/// Seconds since `start`, as the summary shows them.
pub fn since(start: Micros, moment: Micros) -> String {
    if moment == Micros::MAX {
        return "the end".to_owned();
    }
    format!("{:.3}s", moment as f64 / 1e6 - start as f64 / 1e6)
}
