//! Conditions: the table of what can be wrong with the engine. `propylon_metrics::conditions` looks at the metrics by
//! it, and reports in the log, `/status.json`, `propylon top` and the dashboard.

mod table;

pub use propylon_metrics::conditions::Conditions;
pub use table::{NO_CONDITION, TABLE};

/// Labels that say where something is, in the order in which they are told.
const PLACES: &[&str] = &["listener", "route", "backend", "server", "signer"];

/// To be looked at with once a second.
pub fn watch() -> Conditions {
    Conditions::new(TABLE, PLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_a_row_for_all_comes_after_those_for_some() {
        assert_eq!(propylon_metrics::conditions::flaw(TABLE), None);
    }

    #[test]
    fn every_packet_that_is_dropped_is_told_of() {
        let row = TABLE.iter().find(|row| row.name == "flows-dropping").expect("a row");
        let (_, told) = row.only.expect("outcomes");
        let dropped = crate::telemetry::FLOW_OUTCOMES.iter().filter(|outcome| outcome.starts_with("dropped_"));
        assert_eq!(dropped.copied().collect::<Vec<&str>>(), told);
    }
}
