//! Waiting for something to become true, with a limit.

use std::time::{Duration, Instant};

/// Pause between two looks. Nothing relies on its length.
const PAUSE: Duration = Duration::from_millis(5);
/// Long enough for a machine with other work, short enough to end a story that hangs.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// What `probe` finds, as soon as it finds something.
///
/// # Panics
/// When `limit` has passed.
#[track_caller]
pub fn eventually<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub fn holds(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(WAIT_MAX, what, || condition().then_some(()));
}
