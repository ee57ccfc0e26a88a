//! `search`: the sustained rate by the number of workers, and the trials that it was found by.

use super::super::chart::{Place, lines};
use super::super::html::{Cell, details, shorten, table, warning};
use super::shared::{figures, lower_bounds};
use crate::quantity::{CpuNanoseconds, Nanoseconds, PerSecond};
use crate::search::case::{Case, TrialReport};
use crate::search::verdict::Verdict;
use crate::units::show_nanoseconds;

pub fn render(name: &str, verdict: &Verdict) -> String {
    let mut html = String::new();
    for case in &verdict.cases {
        if let Some(why) = &case.gave_up {
            html.push_str(&warning(&shorten(&format!("{name}, {}: {why}", case.name()), 300)));
        }
    }
    if verdict.cases.iter().any(Case::is_doubtful) {
        html.push_str(&lower_bounds(name));
    }
    html.push_str(&cases(verdict));
    html.push_str(&figures(&(scaling(verdict) + &trials(verdict))));
    html.push_str(&trials_table(verdict));
    html
}

fn cases(verdict: &Verdict) -> String {
    let row = |case: &Case| {
        let scaling = verdict.scaling.iter().find(|own| own.key == case.key && Some(own.workers) == case.workers);
        let sustained = case.sustained.as_ref();
        let percent = |share: f64| Cell::Number(format!("{:.0} %", share * 100.0));
        vec![
            Cell::text(case.key.clone()),
            Cell::number(case.workers.map(|workers| workers as f64)),
            Cell::number(sustained.map(|sustained| sustained.per_second.0)),
            sustained
                .and_then(|sustained| sustained.cpu_nanoseconds_each)
                .map_or(Cell::Empty, |each| Cell::Number(show_nanoseconds(each.0))),
            scaling.map_or(Cell::Empty, |scaling| percent(scaling.by_rate)),
            scaling.and_then(|scaling| scaling.by_cpu).map_or(Cell::Empty, percent),
        ]
    };
    let rows: Vec<Vec<Cell>> = verdict.cases.iter().map(row).collect();
    table(&["key", "workers", "sustained per second", "CPU each", "scaling", "scaling of CPU"], &rows)
}

fn scaling(verdict: &Verdict) -> String {
    let mut lists: Vec<(String, Vec<&Case>)> = Vec::new();
    for case in verdict.cases.iter().filter(|case| case.sustained.is_some()) {
        match lists.iter_mut().find(|(key, _)| *key == case.key) {
            Some((_, cases)) => cases.push(case),
            None => lists.push((case.key.clone(), vec![case])),
        }
    }
    let workers = Place {
        label: "workers",
        of: &|_, case: &Case| case.workers.map(|workers| workers as f64),
        errors: &|_| 0,
        is_scaling: true,
        is_ideal_shown: true,
    };
    let rate = |case: &Case| -> Option<PerSecond> { Some(case.sustained.as_ref()?.per_second) };
    let cpu = |case: &Case| case.sustained.as_ref()?.cpu_nanoseconds_each;
    lines("Rate by workers", &workers, &[("", &rate)], &lists)
        + &lines("CPU time for each by workers", &Place { is_ideal_shown: false, ..workers }, &[("", &cpu)], &lists)
}

fn trials(verdict: &Verdict) -> String {
    let lists: Vec<(String, Vec<&TrialReport>)> =
        verdict.cases.iter().map(|case| (case.name(), case.trials.iter().collect())).collect();
    let order = Place {
        label: "order of measurement",
        of: &|index, _| Some(index as f64 + 1.0),
        errors: &|trial: &TrialReport| trial.summary.errors_total(),
        is_scaling: false,
        is_ideal_shown: false,
    };
    let done = |trial: &TrialReport| -> Option<PerSecond> { Some(trial.summary.per_second) };
    let offered = |trial: &TrialReport| trial.offered_per_second;
    let worst = |trial: &TrialReport| Some(Nanoseconds(trial.summary.latency.max as f64));
    let cpu = |trial: &TrialReport| -> Option<CpuNanoseconds> { trial.cpu_nanoseconds_each };
    lines("Rate of the trials, in their order", &order, &[("done", &done), ("offered", &offered)], &lists)
        + &lines("Slowest connection of the trials", &order, &[("", &worst)], &lists)
        + &lines("CPU time for each in the trials", &order, &[("", &cpu)], &lists)
}

fn trials_table(verdict: &Verdict) -> String {
    let row = |(case, trial): (&Case, &TrialReport)| {
        vec![
            Cell::text(case.name()),
            Cell::text(trial.step.to_string()),
            Cell::text(trial.fault.map_or("", |fault| fault.name())),
            Cell::number(trial.in_flight.map(|count| count as f64)),
            Cell::number(trial.offered_per_second.map(|rate| rate.0)),
            Cell::number(Some(trial.summary.per_second.0)),
            Cell::Number(show_nanoseconds(trial.summary.latency.max as f64)),
            Cell::errors(trial.summary.errors_total()),
        ]
    };
    let all = verdict.cases.iter().flat_map(|case| case.trials.iter().map(move |trial| (case, trial)));
    let rows: Vec<Vec<Cell>> = all.map(row).collect();
    let head = ["case", "step", "not sustained", "in flight", "offered", "per second", "slowest", "errors"];
    details("Table: trials", &table(&head, &rows))
}

#[cfg(test)]
mod tests {
    use super::super::super::render_value;
    use serde_json::{Value, json};

    /// A search with the rates of one key at numbers of workers.
    pub fn result(cases: &[(usize, f64, bool)]) -> Value {
        let pressure = json!({"load_threads": [], "stolen_cores": 0.0, "listen_overflows": 0, "listen_drops": 0,
            "time_wait_most": 0, "local_ports": 1, "source_addresses": 1, "out_of_ports": false});
        let summary = crate::results::tests::summary(json!({"per_second": 90.0, "errors": {"reset": 2}}));
        let case = |(workers, rate, shares_cores): &(usize, f64, bool)| {
            let mut trial = summary.clone();
            trial["step"] = json!("probe");
            trial["offered_per_second"] = json!(100.0);
            trial["pressure"] = pressure.clone();
            json!({"key": "ec", "workers": workers, "load_threads": 1, "shares_cores": shares_cores, "gave_up": null,
                "sustained": {"per_second": rate, "is_lower_bound": false, "shortages": [], "fault_above": null,
                "cpu_nanoseconds_each": 1e5, "per_second_by_cpu": null}, "trials": [trial]})
        };
        json!({"command": "search", "server": "s", "duration_seconds": 1.0, "limit_seconds": 2.0, "precision": 0.02,
            "in_flight_max": 9, "scaling": [], "cases": cases.iter().map(case).collect::<Vec<_>>()})
    }

    #[test]
    fn scaling_is_on_log_axes_beside_the_ideal_and_trials_are_in_their_order() {
        let html = render_value(result(&[(1, 100.0, false), (2, 190.0, false)]));
        assert!(html.contains("per second, log") && html.contains("perfect scaling"), "{html}");
        assert!(html.contains("Rate of the trials, in their order") && html.contains("2 errors"), "{html}");
    }

    #[test]
    fn rates_that_were_held_down_are_marked() {
        let page = |shared| render_value(result(&[(1, 100.0, shared)]));
        assert!(page(true).contains("lower bounds") && !page(false).contains("lower bounds"));
    }
}
