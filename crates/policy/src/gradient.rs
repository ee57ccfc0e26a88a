//! How many requests a backend takes at once, found by how long it lets them wait: a limit that grows while answers
//! come as quickly as from servers that have little to do, and shrinks when they do not (the gradient of Envoy's
//! `adaptive_concurrency` and of Netflix' `concurrency-limits`; `docs/decisions/0067-adaptive-limits.md`).
//!
//! The time that is quick is measured now and then: the limit is halved for as long as that makes answers come sooner.
//! As long as the limit keeps nobody out, the time of answers is taken as it is, and nobody notices.

/// Answers that a window has at least, so that their mean says something.
const ANSWERS_MIN: u64 = 20;
/// Microseconds after which fewer than these have to do, if there is more than one or two.
const WINDOW_MAX_US: u64 = 2_000_000;
const FEW_ANSWERS_MIN: u64 = 3;
/// Microseconds after which what has come of a window that is not full says nothing any more.
const WINDOW_STALE_US: u64 = 10_000_000;
/// Slower than a server with little to do by this factor is as quick still.
const TOLERANCE: f64 = 1.25;
/// Part of the limit that is left after one window at least, and what it grows to at most.
const SHRINK_MAX: f64 = 0.5;
const GROW_MAX: f64 = 1.5;
/// Answers that are quicker than a server's best count for so much of the new best: a handful of cheap ones does not
/// make all others slow.
const QUICKER_WEIGHT: f64 = 0.1;
/// A halved limit has made answers come sooner if they take this part of the time or less.
const SOONER: f64 = 0.9;
/// One failure among so many answers shrinks the limit: servers that refuse are quick as well.
const FAILURES_SHARE: u64 = 10;
/// Microseconds between two measurements, and the part by which chance makes that longer: engines do not measure at the
/// same time.
const MEASURE_EVERY_US: u64 = 60_000_000;
const MEASURE_JITTER: f64 = 0.15;
/// Longest measurement, in microseconds.
const MEASURE_MAX_US: u64 = 10_000_000;
/// Windows in a row at the floor, with requests kept out, after each so many of which what is quick is measured anew.
const FLOORED_MAX: u32 = 8;
/// Windows in a row at the floor after which this is told.
const FLOORED_TOLD: u32 = 4;

/// Bounds of a limit. `min` is at least 1, `max` no less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: u32,
    pub max: u32,
}

/// Events since the look before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Microseconds that it took.
    pub elapsed_us: u64,
    /// Answers that have begun, and the sum of the microseconds for which they were waited for.
    pub answers: u64,
    pub waited_us: u64,
    /// Requests that servers have failed.
    pub failures: u64,
    /// Requests that the limit has kept out.
    pub refused: u64,
    /// Requests that are at the backend now.
    pub taken: u32,
}

/// A limit of requests at once.
#[derive(Clone, Debug)]
pub struct Gradient {
    bounds: Bounds,
    limit: f64,
    /// Microseconds that answers take of a server that has little to do; none before that was measured.
    quick_us: Option<f64>,
    /// The time was taken as it was, while nobody was kept out.
    is_guess: bool,
    /// Mean of the window before, in microseconds.
    before_us: Option<f64>,
    window: Window,
    measuring: Option<Measuring>,
    /// Microseconds until the next measurement.
    due_us: u64,
    /// Windows in a row at the floor.
    floored: u32,
}

/// A measurement that is under way.
#[derive(Clone, Copy, Debug)]
struct Measuring {
    /// The limit when it began, and the microseconds that answers took then.
    limit: f64,
    began_us: f64,
    /// Microseconds that answers took under the limit before this one, and under the best.
    last_us: f64,
    quickest_us: f64,
    /// Microseconds for which answers are still those of the limit before.
    settle_us: u64,
    elapsed_us: u64,
}

impl Window {
    fn add(&mut self, later: &Window) {
        self.elapsed_us += later.elapsed_us;
        self.answers += later.answers;
        self.waited_us += later.waited_us;
        self.failures += later.failures;
        self.refused += later.refused;
        self.taken = self.taken.max(later.taken);
    }

    fn is_full(&self) -> bool {
        let wanted = if self.elapsed_us >= WINDOW_MAX_US { FEW_ANSWERS_MIN } else { ANSWERS_MIN };
        self.answers >= wanted
    }

    fn mean_us(&self) -> f64 {
        self.waited_us.max(1) as f64 / self.answers.max(1) as f64
    }

    /// Requests that were waiting for their answers on the average (Little's law).
    fn waiting(&self) -> f64 {
        self.waited_us as f64 / self.elapsed_us.max(1) as f64
    }
}

impl Gradient {
    /// Begins with this limit, and a measurement at once.
    #[must_use]
    pub fn new(bounds: Bounds, limit: u32) -> Gradient {
        Gradient {
            bounds,
            limit: f64::from(limit.clamp(bounds.min, bounds.max)),
            quick_us: None,
            is_guess: true,
            before_us: None,
            window: Window::default(),
            measuring: None,
            due_us: 0,
            floored: 0,
        }
    }

    /// The limit in force.
    pub fn limit(&self) -> u32 {
        (self.limit as u32).clamp(self.bounds.min, self.bounds.max)
    }

    /// Whether the limit has been as low as it may be for a while, with requests kept out.
    pub fn is_floored(&self) -> bool {
        self.floored >= FLOORED_TOLD
    }

    /// Microseconds that answers take of a server that has little to do, as far as known.
    pub fn quick_us(&self) -> Option<u64> {
        self.quick_us.map(|quick| quick as u64)
    }

    /// Goes by other bounds from here on.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        self.limit = self.limit.clamp(f64::from(bounds.min), f64::from(bounds.max));
    }

    /// Takes note of what has happened since the look before. Returns the limit from here on. `random` is any 64 bits.
    pub fn look(&mut self, window: &Window, random: u64) -> u32 {
        self.due_us = self.due_us.saturating_sub(window.elapsed_us);
        if let Some(measuring) = &mut self.measuring {
            measuring.elapsed_us += window.elapsed_us;
            // Requests that are more came under the limit before, unless they are there for long.
            let is_over = f64::from(window.taken) > self.limit && measuring.elapsed_us < MEASURE_MAX_US;
            if is_over || measuring.settle_us > 0 {
                measuring.settle_us = measuring.settle_us.saturating_sub(window.elapsed_us);
                return self.limit();
            }
        }
        self.window.add(window);
        let is_late = self.measuring.is_some_and(|measuring| measuring.elapsed_us >= MEASURE_MAX_US);
        if self.window.is_full() || is_late && self.window.answers > 0 {
            let window = std::mem::take(&mut self.window);
            match self.measuring {
                Some(measuring) => self.measure(measuring, &window, random),
                None => self.regulate(&window, random),
            }
            self.before_us = Some(window.mean_us());
        } else if is_late {
            // Nobody is answered, by which nothing can be told.
            let before = self.measuring.take().map_or(self.limit, |measuring| measuring.limit);
            self.set(before);
            self.due_us = later(random);
        } else if self.window.elapsed_us >= WINDOW_STALE_US {
            self.window = Window::default();
        }
        self.limit()
    }

    fn set(&mut self, limit: f64) {
        self.limit = limit.clamp(f64::from(self.bounds.min), f64::from(self.bounds.max));
    }

    fn floor(&self) -> f64 {
        f64::from(self.bounds.min)
    }

    fn regulate(&mut self, window: &Window, random: u64) {
        let mean = window.mean_us();
        let binds = window.refused > 0;
        self.floored = if binds && self.limit <= self.floor() { self.floored.saturating_add(1) } else { 0 };
        let quick = self.quick_us.unwrap_or(mean);
        // A floor that is not enough: what was quick once may be no measure any more.
        let is_due = self.due_us == 0 || self.floored % FLOORED_MAX == FLOORED_MAX - 1 || binds && self.is_guess;
        // The first window is one of queues that fill.
        if is_due && self.before_us.is_some() {
            return self.begin_measuring(mean, window, random);
        }
        let quick = if mean < quick { quick + (mean - quick) * QUICKER_WEIGHT } else { quick };
        self.quick_us = Some(quick);
        if window.failures * FAILURES_SHARE > window.answers {
            return self.set(self.limit * SOONER);
        }
        // One slow window may be one slow answer.
        let slow = self.before_us.map_or(mean, |before| before.min(mean));
        let gradient = (TOLERANCE * quick / slow).clamp(SHRINK_MAX, TOLERANCE);
        let wanted = (gradient * (self.limit + self.limit.sqrt())).min(self.limit * GROW_MAX + 1.0);
        let is_used = binds || f64::from(window.taken) * 2.0 >= self.limit;
        if wanted < self.limit || is_used {
            self.set(wanted);
        }
    }

    /// Begins to measure what is quick. Where nobody is kept out, and where the limit cannot be any lower, that is what
    /// answers take now.
    fn begin_measuring(&mut self, mean: f64, window: &Window, random: u64) {
        self.due_us = later(random);
        let lower = self.lower(window);
        self.is_guess = window.refused == 0;
        if self.is_guess || lower >= self.limit {
            self.quick_us = Some(mean);
            return;
        }
        self.measuring = Some(Measuring {
            limit: self.limit,
            began_us: mean,
            last_us: mean,
            quickest_us: mean,
            settle_us: settle(mean),
            elapsed_us: 0,
        });
        self.set(lower);
    }

    /// The limit with half as many requests that wait for their answers. Those that have theirs, and have a long body
    /// or are tunnels now, go on being at the backend.
    fn lower(&self, window: &Window) -> f64 {
        (self.limit - (window.waiting() / 2.0).max(1.0)).floor().max(self.floor())
    }

    fn measure(&mut self, measuring: Measuring, window: &Window, random: u64) {
        let mean = window.mean_us();
        let quickest_us = measuring.quickest_us.min(mean);
        let (is_sooner, lower) = (mean <= measuring.last_us * SOONER, self.lower(window));
        let is_late = measuring.elapsed_us >= MEASURE_MAX_US;
        if is_sooner && lower < self.limit && !is_late {
            let settle_us = settle(mean);
            self.measuring = Some(Measuring { last_us: mean, quickest_us, settle_us, ..measuring });
            return self.set(lower);
        }
        self.measuring = None;
        self.due_us = later(random);
        self.quick_us = Some(quickest_us);
        // The limit as it would be by now, had this been known when it was as before.
        let gradient = (TOLERANCE * quickest_us / measuring.began_us).min(1.0);
        self.set(gradient * (measuring.limit + measuring.limit.sqrt()));
    }
}

/// Microseconds until answers are those of requests that came under the new limit.
fn settle(mean: f64) -> u64 {
    (mean * 2.0).clamp(1.0, WINDOW_MAX_US as f64) as u64
}

fn later(random: u64) -> u64 {
    let part = (random >> 11) as f64 / (1_u64 << 53) as f64;
    (MEASURE_EVERY_US as f64 * (1.0 + MEASURE_JITTER * part)) as u64
}

#[cfg(test)]
mod tests;
