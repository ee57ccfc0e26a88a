//! The operator's weight for an engine: its share of new connections, in percent of what it would have.

use serde::{Deserialize, Serialize};

/// The most that an engine may be weighed up.
pub const WEIGHT_PERCENT_MAX: u16 = 1000;

/// 0 to [`WEIGHT_PERCENT_MAX`]; 100 where nobody has said anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct WeightPercent(u16);

impl WeightPercent {
    /// `None` for more than [`WEIGHT_PERCENT_MAX`].
    pub fn new(percent: u16) -> Option<WeightPercent> {
        (percent <= WEIGHT_PERCENT_MAX).then_some(WeightPercent(percent))
    }

    pub fn percent(self) -> u16 {
        self.0
    }

    /// Whether the engine has what it would have anyway.
    pub fn is_default(self) -> bool {
        self == WeightPercent::default()
    }

    /// A weight multiplied by it. A part of something is never nothing.
    pub fn of(self, weight: u32) -> u32 {
        let part = u64::from(weight) * u64::from(self.0) / 100;
        let least = u64::from(weight > 0 && self.0 > 0);
        u32::try_from(part.max(least)).unwrap_or(u32::MAX)
    }
}

impl Default for WeightPercent {
    fn default() -> WeightPercent {
        WeightPercent(100)
    }
}

impl TryFrom<u16> for WeightPercent {
    type Error = String;

    fn try_from(percent: u16) -> Result<WeightPercent, String> {
        WeightPercent::new(percent)
            .ok_or_else(|| format!("a weight has 0 to {WEIGHT_PERCENT_MAX} percent, not {percent}"))
    }
}

impl From<WeightPercent> for u16 {
    fn from(percent: WeightPercent) -> u16 {
        percent.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_weight_is_never_nothing_but_for_zero() {
        let of = |percent, weight| WeightPercent::new(percent).unwrap().of(weight);
        assert_eq!([of(25, 4000), of(100, 4000), of(1000, 4000), of(0, 4000)], [1000, 4000, 40_000, 0]);
        assert_eq!([of(1, 10), of(1, 0), of(1000, u32::MAX)], [1, 0, u32::MAX]);
        assert_eq!(WeightPercent::new(WEIGHT_PERCENT_MAX + 1), None);
    }
}
