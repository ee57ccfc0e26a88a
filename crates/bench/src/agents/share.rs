//! A whole divided into parts that add up to it: remainders go to the first, one each.

use std::num::NonZeroUsize;

/// Rates are counted in these, so that a rate too divides without loss.
pub const MICRO_PER_UNIT: f64 = 1e6;

/// Part `index` of `parts`. All parts add up to `total`, and no two differ by more than one.
pub fn share(total: u64, parts: NonZeroUsize, index: usize) -> u64 {
    let parts = parts.get() as u64;
    total / parts + u64::from((index as u64) < total % parts)
}

/// Millionths of a request per second.
pub fn micro_rate(rate: f64) -> u64 {
    (rate * MICRO_PER_UNIT).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_differ_by_one_at_most() {
        for total in [0, 1, 2, 3, 100, 1_000_000_007, micro_rate(100.0), micro_rate(0.001), u64::MAX] {
            for parts in [1, 2, 3, 7, 256] {
                let parts = NonZeroUsize::new(parts).unwrap();
                let all: Vec<u64> = (0..parts.get()).map(|index| share(total, parts, index)).collect();
                assert_eq!(all.iter().map(|part| u128::from(*part)).sum::<u128>(), u128::from(total));
                assert!(all[0] - all[all.len() - 1] <= 1 && all.is_sorted_by(|a, b| a >= b));
            }
        }
    }

    #[test]
    fn a_rate_that_does_not_divide_loses_nothing() {
        let parts = NonZeroUsize::new(3).unwrap();
        let all: Vec<u64> = (0..3).map(|index| share(micro_rate(100.0), parts, index)).collect();
        assert_eq!(all, [33_333_334, 33_333_333, 33_333_333]);
    }
}
