//! When a server is late: percentiles of how long servers took lately until a response began.
//!
//! Each core counts on lines of its own, one addition for a response, and only for what goes by a percentile. Once a
//! second somebody adds the counts up, lets what is old weigh less, and says from when on a server is late, which all
//! cores read. "Lately" is some ten seconds, and with few responses as many of them as the percentile needs.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Percentiles that there are, in tenths of a percent.
pub const PERCENTILES: [u16; 7] = [500, 750, 900, 950, 980, 990, 999];
/// Responses beyond a percentile that it is not known without: 200 responses for the 95th, 1,000 for the 99th.
const BEYOND_MIN: u32 = 10;
/// Seconds after which a response weighs half, where there are enough newer ones.
const HALF_LIFE: f64 = 5.0;
/// Shortest time after which a server is late.
const FLOOR: Duration = Duration::from_millis(1);

/// Buckets are so many to a doubling of the time, which is how exact a percentile is: to a sixteenth.
const STEPS: u32 = 16;
/// Logarithms of the first bucket's end and of the last one's, in microseconds: about a millisecond, and an hour.
const FIRST_LOG: u32 = 10;
const LAST_LOG: u32 = 32;
const BUCKETS: usize = ((LAST_LOG - FIRST_LOG) * STEPS) as usize + 1;

/// Counts of responses, by how long each was waited for.
pub type Counts = [u32; BUCKETS];

/// Times of a backend's first bytes, counted by core, and when a server of it is late.
#[derive(Debug)]
pub struct FirstBytes {
    counts: Box<[Lines<[AtomicU32; BUCKETS]>]>,
    /// Microseconds by percentile; 0 where it is not known. Read by all, written once a second.
    late: Lines<[AtomicU32; PERCENTILES.len()]>,
}

/// A value on pairs of cache lines of its own: the prefetcher fetches pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Lines<T>(T);

impl FirstBytes {
    /// For so many cores.
    #[must_use]
    pub fn new(cores: usize) -> FirstBytes {
        let lines = |_| Lines([const { AtomicU32::new(0) }; BUCKETS]);
        FirstBytes { counts: (0..cores).map(lines).collect(), late: Lines([const { AtomicU32::new(0) }; 7]) }
    }

    /// Counts a response of this core, which was waited for so long.
    pub fn note(&self, core: usize, waited: Duration) {
        let count = &self.counts[core].0[bucket(waited)];
        // Nobody else writes it.
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Time after which a server is late by the percentile at this place of [`PERCENTILES`]; none while too few
    /// responses have come to know it.
    #[must_use]
    pub fn late_after(&self, place: usize) -> Option<Duration> {
        let micros = self.late.0[place].load(Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros.into()))
    }

    /// Counts of all cores so far, each modulo 2^32.
    #[must_use]
    pub fn counts(&self) -> Box<Counts> {
        let mut sums = Box::new([0_u32; BUCKETS]);
        for core in &self.counts {
            sums.iter_mut().zip(&core.0).for_each(|(sum, count)| *sum = sum.wrapping_add(count.load(Relaxed)));
        }
        sums
    }

    /// Has servers be late as it is known now. To be called by one thread.
    pub fn publish(&self, recent: &Recent) {
        for (place, late) in self.late.0.iter().enumerate() {
            let micros = recent.percentile(place).map_or(0, |after| after.as_micros() as u32);
            if late.load(Relaxed) != micros {
                late.store(micros, Relaxed);
            }
        }
    }
}

/// Responses of late, as one who looks now and then knows them.
#[derive(Clone, Debug)]
pub struct Recent {
    seen: Box<Counts>,
    weights: Box<[f64; BUCKETS]>,
    /// Sum of the weights.
    total: f64,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { seen: Box::new([0; BUCKETS]), weights: Box::new([0.0; BUCKETS]), total: 0.0 }
    }
}

impl Recent {
    /// Nothing of what these counts have been of: for a percentile that nobody has gone by for a while.
    #[must_use]
    pub fn after(counts: Box<Counts>) -> Recent {
        Recent { seen: counts, ..Recent::default() }
    }

    /// Takes note of the counts so far, after the time since the look before. `places` are those of [`PERCENTILES`]
    /// that are wanted: as many responses as they need are not forgotten for newer ones to come.
    pub fn look(&mut self, counts: &Counts, elapsed: Duration, places: &[usize]) {
        let new: f64 = counts.iter().zip(&*self.seen).map(|(now, seen)| f64::from(now.wrapping_sub(*seen))).sum();
        let kept = places.iter().map(|place| f64::from(needed(*place))).fold(0.0, f64::max) - new;
        let left = if self.total > 0.0 { (kept / self.total).clamp(0.0, 1.0) } else { 0.0 };
        let left = left.max((-elapsed.as_secs_f64() / HALF_LIFE).exp2());
        for ((weight, now), seen) in self.weights.iter_mut().zip(counts).zip(&mut *self.seen) {
            *weight = *weight * left + f64::from(now.wrapping_sub(*seen));
            *seen = *now;
        }
        self.total = self.weights.iter().sum();
    }

    /// Time within which this percentile of the responses have come, rounded up to a bucket's end; none while too few
    /// have come at all.
    #[must_use]
    pub fn percentile(&self, place: usize) -> Option<Duration> {
        // A half more is for what is lost to rounding.
        if self.total + 0.5 < f64::from(needed(place)) {
            return None;
        }
        let mut beyond = self.total * f64::from(1000 - PERCENTILES[place]) / 1000.0;
        let mut last = BUCKETS - 1;
        for (bucket, weight) in self.weights.iter().enumerate().rev() {
            last = bucket;
            beyond -= weight;
            if beyond < 0.0 {
                break;
            }
        }
        Some(end(last).max(FLOOR))
    }
}

/// Responses without which the percentile at this place is not known.
#[must_use]
pub fn needed(place: usize) -> u32 {
    BEYOND_MIN * 1000 / u32::from(1000 - PERCENTILES[place])
}

/// Bucket of a time: the first is all below [`FIRST_LOG`], the last all beyond.
fn bucket(waited: Duration) -> usize {
    let micros = waited.as_micros().min(u128::from(u32::MAX)) as u32;
    let log = micros.max(1).ilog2();
    if log < FIRST_LOG {
        return 0;
    }
    let step = (micros >> (log - STEPS.ilog2())) - STEPS;
    ((log - FIRST_LOG) * STEPS + step + 1) as usize
}

/// End of a bucket, which is the beginning of the next.
fn end(bucket: usize) -> Duration {
    let (log, step) = (FIRST_LOG + bucket as u32 / STEPS, bucket as u32 % STEPS);
    let micros = u64::from(STEPS + step) << (log - STEPS.ilog2());
    Duration::from_micros(micros.min(u32::MAX.into()))
}

#[cfg(test)]
mod tests;
