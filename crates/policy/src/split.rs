//! Division of requests among sides by weight: exact, smooth, and without a table.

/// Turns of a division by weight. Any run of as many turns as the weights add up to gives each side exactly its weight.
///
/// Turn by turn a point goes around a ring of that many places, each place once, by steps of about the golden section:
/// so the turns of a side that has few are as far from each other as can be.
#[derive(Clone, Debug)]
pub struct Turns {
    /// Bounds of the sides on the ring, in ascending order; the last is the number of its places.
    bounds: Box<[u64]>,
    step: u64,
    place: u64,
}

impl Turns {
    /// `random` decides where on the ring the turns begin; `None` if no side has a weight.
    pub fn new(weights: &[u32], random: u64) -> Option<Turns> {
        let divisor = weights.iter().fold(0, |divisor, weight| greatest_common_divisor(divisor, u64::from(*weight)));
        if divisor == 0 {
            return None;
        }
        let mut places = 0;
        let add_up = |weight: &u32| {
            places += u64::from(*weight) / divisor;
            places
        };
        let bounds: Box<[u64]> = weights.iter().map(add_up).collect();
        let step = step_of(places);
        Some(Turns { bounds, step, place: random % places })
    }

    /// The side whose turn it is, which is over with that.
    pub fn take_turn(&mut self) -> usize {
        let place = self.place;
        self.place = (place + self.step) % self.places();
        self.side_of(place)
    }

    /// The side of a key, the same everywhere. Sides get keys by their weights; where weights change, keys that stay
    /// within the bounds of their side stay with it.
    pub fn of_key(&self, key: u64) -> usize {
        self.side_of(((u128::from(key) * u128::from(self.places())) >> 64) as u64)
    }

    fn places(&self) -> u64 {
        self.bounds[self.bounds.len() - 1]
    }

    fn side_of(&self, place: u64) -> usize {
        self.bounds.partition_point(|bound| *bound <= place)
    }
}

fn greatest_common_divisor(one: u64, two: u64) -> u64 {
    if two == 0 { one } else { greatest_common_divisor(two, one % two) }
}

/// Steps on either side of the golden section that are looked at.
const STEPS_AROUND: u64 = 64;

/// A step near the golden section of the ring that comes by every place, and leaves the most even distances: the one
/// whose continued fraction has the smallest quotients.
fn step_of(places: u64) -> u64 {
    let wished = (u128::from(places) * 618_034 / 1_000_000) as u64;
    let near = wished.saturating_sub(STEPS_AROUND).max(1)..(wished + STEPS_AROUND).min(places);
    let fitting = near.filter(|step| greatest_common_divisor(*step, places) == 1);
    fitting.min_by_key(|step| largest_quotient(places, *step)).unwrap_or(1)
}

/// The largest quotient of the continued fraction of one number by a smaller one.
fn largest_quotient(one: u64, two: u64) -> u64 {
    match one % two {
        0 => one / two,
        rest => (one / two).max(largest_quotient(two, rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(turns: &mut Turns, number: usize) -> Vec<usize> {
        let mut counts = vec![0; turns.bounds.len()];
        (0..number).for_each(|_| counts[turns.take_turn()] += 1);
        counts
    }

    #[test]
    fn any_run_of_all_turns_is_exact_wherever_it_begins() {
        for weights in [&[90, 10][..], &[1], &[0, 1, 0], &[3, 5, 7], &[1, 1_000], &[333_333, 1, 666_667], &[128, 64]] {
            for random in [0, 1, 7, 12_345, u64::MAX] {
                let mut turns = Turns::new(weights, random).unwrap();
                let places = turns.places() as usize;
                let whole: u32 = weights.iter().sum();
                let unit = whole as usize / places;
                counts(&mut turns, random as usize % 31);
                let wanted: Vec<usize> = weights.iter().map(|weight| *weight as usize / unit).collect();
                assert_eq!(counts(&mut turns, places), wanted, "{weights:?} from {random}");
            }
        }
    }

    #[test]
    fn turns_of_a_small_side_are_apart() {
        let mut turns = Turns::new(&[90, 10], 3).unwrap();
        for _ in 0..100 {
            let tenth: usize = counts(&mut turns, 10)[1];
            assert_eq!(tenth, 1);
        }
        let mut turns = Turns::new(&[97, 3], 0).unwrap();
        let at: Vec<usize> = (0..300).filter(|_| turns.take_turn() == 1).collect();
        assert_eq!(at.len(), 9);
        let least = at.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert!(least >= Some(18), "{at:?}");
    }

    #[test]
    fn no_weight_is_no_division() {
        assert!(Turns::new(&[0, 0], 1).is_none() && Turns::new(&[], 1).is_none());
    }

    #[test]
    fn keys_keep_their_sides_and_move_one_way_where_weights_change() {
        let keys: Vec<u64> = (0..10_000u64).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let (few, many) = (Turns::new(&[90, 10], 0).unwrap(), Turns::new(&[70, 30], 5).unwrap());
        let of = |turns: &Turns| keys.iter().map(|key| turns.of_key(*key)).collect::<Vec<_>>();
        let (before, after) = (of(&few), of(&many));
        assert!(before.iter().zip(&after).all(|(before, after)| before <= after));
        let second = |sides: &[usize]| sides.iter().filter(|side| **side == 1).count();
        assert!((950..1_050).contains(&second(&before)) && (2_950..3_050).contains(&second(&after)));
    }
}
