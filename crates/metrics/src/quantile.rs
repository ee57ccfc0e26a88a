//! Quantiles of what a histogram has counted.

/// The value that such a share of all is not above: linear within its bucket, as Prometheus has it; the last bound
/// where it is above all. `counts` are those of each bucket by itself, one more than there are bounds. `None`: nothing
/// was seen.
#[must_use]
pub fn quantile(share: f64, counts: impl Iterator<Item = f64> + Clone, bounds: &[f64]) -> Option<f64> {
    let wanted = share * counts.clone().sum::<f64>();
    let mut below = 0.0;
    for (at, count) in counts.enumerate().filter(|(_, count)| *count > 0.0) {
        if below + count >= wanted {
            let Some(high) = bounds.get(at) else { return bounds.last().copied() };
            let low = if at == 0 { 0.0 } else { bounds[at - 1] };
            return Some(low + (high - low) * (wanted - below) / count);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(share: f64, counts: &[f64]) -> Option<f64> {
        quantile(share, counts.iter().copied(), &[1.0, 2.0])
    }

    #[test]
    fn quantiles_are_linear_and_end_at_the_last_bound() {
        assert_eq!(of(0.5, &[10.0, 0.0, 0.0]), Some(0.5));
        assert_eq!(of(0.5, &[5.0, 10.0, 0.0]), Some(1.25));
        assert_eq!(of(0.99, &[0.0, 0.0, 4.0]), Some(2.0));
        assert_eq!(of(0.5, &[0.0, 0.0, 0.0]), None);
        assert_eq!(quantile(0.5, [4.0].into_iter(), &[]), None, "without a bound nothing is known of it");
        assert_eq!(quantile(0.5, std::iter::empty(), &[]), None);
    }
}
