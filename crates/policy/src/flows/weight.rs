//! How much of the traffic an engine should get: by its cores, and a little less when it works harder than the rest.

/// Weight of one core at ease.
pub const WEIGHT_PER_CORE: u32 = 1000;
/// An engine that is overloaded keeps this part of its capacity; below, shedding is what helps.
const CAPACITY_SHARE_MIN: f64 = 0.25;
/// Change in one decision, so that an engine that looks slow for a moment does not pour its flows over the others.
const DOWN_STEP: f64 = 0.05;
const UP_STEP: f64 = 0.02;
/// Loads within so much of the mean are alike: measured figures are never equal.
const ALIKE: f64 = 0.10;

/// The weight that comes after `weight`. `load` and `mean_load` are parts of all cores in use, the mean weighed by
/// cores; without a fresh `load` the weight stays.
///
/// Between two calls the traffic needs time to follow, at least as long as loads are averaged over.
pub fn next_weight(weight: u32, cores: u32, load: Option<f64>, mean_load: f64) -> u32 {
    let capacity = cores.max(1).saturating_mul(WEIGHT_PER_CORE);
    let low = (f64::from(capacity) * CAPACITY_SHARE_MIN) as u32;
    let weight = weight.clamp(low, capacity);
    let Some(load) = load.filter(|load| load.is_finite() && mean_load.is_finite()) else { return weight };
    let step = match load - mean_load {
        over if over > ALIKE => -DOWN_STEP,
        over if over < ALIKE / 2.0 => UP_STEP,
        _ => 0.0,
    };
    let moved = f64::from(weight) + f64::from(capacity) * step;
    (moved as u32).clamp(low, capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_works_harder_than_the_rest_gets_less_in_small_steps_and_never_nothing() {
        let mut weight = 8000;
        let mut steps = vec![];
        for _ in 0..40 {
            let next = next_weight(weight, 8, Some(0.95), 0.5);
            steps.push(weight - next);
            weight = next;
        }
        assert!(steps.iter().all(|step| *step <= 400), "{steps:?}");
        assert_eq!(weight, 2000);
    }

    #[test]
    fn an_engine_that_is_at_ease_again_gets_all_back() {
        let mut weight = 2000;
        for _ in 0..40 {
            weight = next_weight(weight, 8, Some(0.5), 0.5);
        }
        assert_eq!(weight, 8000);
    }

    #[test]
    fn weights_rest_where_loads_are_alike_or_not_known() {
        assert_eq!(next_weight(6000, 8, Some(0.58), 0.5), 6000);
        assert_eq!(next_weight(6000, 8, None, 0.5), 6000);
        assert_eq!(next_weight(6000, 8, Some(f64::NAN), 0.5), 6000);
    }

    #[test]
    fn an_engine_whose_work_costs_twice_as_much_settles_at_a_load_near_the_mean() {
        // One of four engines needs twice the processor for a request; its load follows its share.
        let (mut weight, mut changes) = (8000, vec![]);
        for _ in 0..200 {
            let share = f64::from(weight) / (f64::from(weight) + 24_000.0);
            let (slow, others) = (share * 4.0 * 0.4 * 2.0, (1.0 - share) / 3.0 * 4.0 * 0.4);
            let next = next_weight(weight, 8, Some(slow), (slow + 3.0 * others) / 4.0);
            changes.push(next != weight);
            weight = next;
        }
        assert!(changes[50..].iter().filter(|changed| **changed).count() == 0, "it still moves: {weight}");
        assert!((4000..7000).contains(&weight), "{weight}");
    }
}
