//! Parallel work on threads that live as long as the work.

use std::num::NonZero;
use std::thread;

/// Number of cores that stands for a quarter of them.
pub(super) const QUARTER: usize = 0;

/// Fewer items than this per thread are done sooner by one thread.
const ITEMS_PER_THREAD_MIN: usize = 64;

/// Maps the items in order, on up to so many cores.
pub(super) fn map<T: Send, R: Send>(items: Vec<T>, cores: usize, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let available = thread::available_parallelism().map_or(1, NonZero::get);
    let cores = if cores == QUARTER { available.div_ceil(4) } else { cores.min(available) };
    let threads = cores.min(items.len() / ITEMS_PER_THREAD_MIN).max(1);
    let share = items.len().div_ceil(threads);
    if threads == 1 {
        return items.into_iter().map(work).collect();
    }
    let mut items = items.into_iter();
    let shares: Vec<Vec<T>> = (0..threads).map(|_| items.by_ref().take(share).collect()).collect();
    let work = &work;
    thread::scope(|scope| {
        let start = |share: Vec<T>| scope.spawn(move || share.into_iter().map(work).collect::<Vec<R>>());
        let threads: Vec<_> = shares.into_iter().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<R>>| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().flat_map(join).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_done_once_and_in_order() {
        for count in [0, 1, 63, 128, 129, 1000, 1001] {
            for cores in [1, 2, 3, 64, usize::MAX, QUARTER] {
                let done = map((0..count).collect(), cores, |item: usize| item * 2);
                assert_eq!(done, (0..count).map(|item| item * 2).collect::<Vec<_>>());
            }
        }
    }
}
