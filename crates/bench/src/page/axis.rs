//! From values to places along an axis, and the ticks on it.

/// Values outside are not drawn: their differences would leave the range of numbers.
pub const VALUE_MAX: f64 = 1e30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// Positive values only.
    Log,
    /// Logarithm of 1 / (1 - p), so that 90, 99 and 99.9 % are equally far apart (as HdrHistogram draws it).
    Percentile,
}

#[derive(Clone, Debug)]
pub struct Axis {
    /// With its unit.
    pub label: String,
    pub scale: Scale,
    /// Ticks at these values instead of round ones: there are few, and nothing between them.
    pub at: Vec<f64>,
}

impl Axis {
    pub fn new(label: impl Into<String>, scale: Scale) -> Self {
        Self { label: label.into(), scale, at: Vec::new() }
    }

    /// With ticks at the values, if they are few.
    pub fn with_ticks_at(mut self, values: impl Iterator<Item = f64>) -> Self {
        let mut at: Vec<f64> = values.filter(|value| self.scale.takes(*value)).collect();
        at.sort_by(f64::total_cmp);
        at.dedup();
        self.at = if at.len() <= TICKS_AT_MAX { at } else { Vec::new() };
        self
    }

    pub fn ticks(&self, span: &Span, most: usize) -> Vec<(f64, String)> {
        if self.at.is_empty() {
            return span.ticks(most);
        }
        self.at.iter().map(|value| (*value, compact(*value))).collect()
    }
}

/// More ticks than this at the values themselves would run into each other.
const TICKS_AT_MAX: usize = 8;

/// An axis with values on it.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Scale {
    pub fn takes(self, value: f64) -> bool {
        value.is_finite() && value.abs() <= VALUE_MAX && (self == Self::Linear || value > 0.0)
    }
}

impl Span {
    /// Wide enough for all values that the scale takes.
    pub fn over(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| scale.takes(*value)) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        match scale {
            Scale::Linear => {
                // Bars and lines that do not start at zero exaggerate.
                let low = low.min(0.0);
                let high = if high > low { high } else { low + 1.0 };
                Self { scale, low, high: high + (high - low) * 0.04 }
            }
            Scale::Log => {
                let (low, high) = if high / low < 1.5 { (low / 1.5, high * 1.5) } else { (low, high) };
                Self { scale, low: low / 1.08, high: high * 1.08 }
            }
            Scale::Percentile => Self { scale, low: 1.0, high: high.max(10.0) * 1.1 },
        }
    }

    /// 0 at its low end, 1 at its high end.
    pub fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            _ => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    /// Values with their labels, at most about `most` of them.
    pub fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        let most = most.max(2);
        match self.scale {
            Scale::Linear => self.linear_ticks(most),
            Scale::Log => self.log_ticks(most),
            Scale::Percentile => self.percentile_ticks(),
        }
    }

    fn linear_ticks(&self, most: usize) -> Vec<(f64, String)> {
        let rough = (self.high - self.low) / most as f64;
        let decade = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * decade).into_iter().find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(decade * 10.0);
        let first = (self.low / step).ceil() as i64;
        let values = (first..first + 2 * most as i64 + 2).map(|index| index as f64 * step);
        values.take_while(|value| *value <= self.high).map(|value| (value, compact(value))).collect()
    }

    fn log_ticks(&self, most: usize) -> Vec<(f64, String)> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let within = |value: &f64| *value >= self.low && *value <= self.high;
        let of = |factors: &[f64]| -> Vec<f64> {
            (first..=last)
                .flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)))
                .filter(within)
                .collect()
        };
        let candidates = [of(&[1.0, 2.0, 5.0]), of(&[1.0, 3.0]), of(&[1.0])];
        let values = candidates.iter().find(|values| values.len() <= most + 1).unwrap_or(&candidates[2]);
        let stride = values.len().div_ceil(most + 1).max(1);
        values.iter().step_by(stride).map(|value| (*value, compact(*value))).collect()
    }

    fn percentile_ticks(&self) -> Vec<(f64, String)> {
        let named =
            [(1.0, "0"), (2.0, "50"), (10.0, "90"), (100.0, "99"), (1e3, "99.9"), (1e4, "99.99"), (1e5, "99.999")];
        let most = named.into_iter().chain([(1e6, "99.9999"), (1e7, "99.99999")]);
        most.filter(|(value, _)| *value <= self.high).map(|(value, name)| (value, name.to_owned())).collect()
    }
}

/// Short enough for a tick: 20k, 1.5M, 0.05.
pub fn compact(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e15 => return format!("{value:.0e}"),
        v if v >= 1e12 => (value / 1e12, "T"),
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        v if v > 0.0 && v < 1e-4 => return format!("{value:.0e}"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.4}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, values: &[f64], most: usize) -> Vec<String> {
        Span::over(scale, values.iter().copied()).ticks(most).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(Scale::Linear, &[3.0, 97.0], 6), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(Scale::Log, &[1.0, 1000.0], 5), ["1", "10", "100", "1000"]);
        assert_eq!(labels(Scale::Percentile, &[2.0, 1000.0], 5), ["0", "50", "90", "99", "99.9"]);
        assert_eq!((compact(20_000.0), compact(1.5e6), compact(0.05)), ("20k".into(), "1.5M".into(), "0.05".into()));
    }

    #[test]
    fn no_value_makes_an_endless_or_empty_axis() {
        for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
            for values in [&[][..], &[0.0], &[1e300, f64::NAN], &[-5.0, -1.0], &[1e-29, 1e29], &[7.0, 7.0]] {
                let span = Span::over(scale, values.iter().copied());
                let ticks = span.ticks(6);
                assert!(ticks.len() <= 14, "{scale:?} {values:?} {}", ticks.len());
                assert!(ticks.iter().all(|(value, _)| span.place(*value).is_finite()));
            }
        }
    }
}
