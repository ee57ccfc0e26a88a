//! Lists of records anywhere in a result, drawn by what their fields are called: what commands write that this page
//! was not told about, and most of what it was.

use super::axis::{Axis, Scale};
use super::bars::{Bar, Bars, Group};
use super::measure::{Family, family_of, readable};
use super::plot::{Plot, Point, SERIES_MAX, Series};
use super::result::errors_of;
use serde_json::Value;
use std::collections::BTreeMap;

/// Lists looked at in one result, and records in one list.
const TRACKS_MAX: usize = 200;
const RECORDS_MAX: usize = 100_000;
/// Nested objects that are read as fields of a record.
const FLATTEN_DEPTH_MAX: usize = 3;
/// Characters of a field that may be part of a name.
const WORD_CHARACTERS_MAX: usize = 40;
/// Pictures that one family of one kind of list is continued in.
const CONTINUED_MAX: usize = 3;
/// Pictures for one kind of list.
const PICTURES_MAX: usize = 8;

/// One object of a list, its nested objects flattened to dotted names.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub numbers: Vec<(String, f64)>,
    pub words: Vec<(String, String)>,
    pub errors: u64,
}

/// A list of records.
#[derive(Clone, Debug)]
pub struct Track {
    /// Field names on the way to it: lists with the same path belong into the same pictures.
    pub path: String,
    /// Name of the records around it.
    pub label: String,
    pub records: Vec<Record>,
}

/// Fields that tell where on the x axis a record lies, the best first, and what the axis is called.
const PLACES: [(&str, &str); 19] = [
    ("at_seconds", "time, s"),
    ("time_seconds", "time, s"),
    ("second", "time, s"),
    ("t", "time, s"),
    ("at", "time, s"),
    ("seconds", "time, s"),
    ("step", "step"),
    ("offered_per_second", "offered per second"),
    ("wanted_per_second", "wanted per second"),
    ("rate", "offered per second"),
    ("in_flight", "connections in flight"),
    ("outstanding", "outstanding"),
    ("clients", "clients"),
    ("wanted", "connections wanted"),
    ("workers", "workers"),
    ("threads", "threads"),
    ("cores", "cores"),
    ("body_bytes", "bytes in a body"),
    ("bytes", "bytes"),
];

/// No field: the place of a record is its number in the list.
const IN_ORDER: &str = "";
/// More bars would not be drawn anyway, and are searched by name.
const BAR_RECORDS_MAX: usize = 500;
/// Fewer are no course of anything.
const COURSE_RECORDS_MIN: usize = 3;

impl Record {
    fn of(value: &Value) -> Self {
        let mut record = Self { errors: errors_of(value), ..Self::default() };
        record.flatten(value, "", 0);
        record.derive_cores();
        record
    }

    fn flatten(&mut self, value: &Value, prefix: &str, depth: usize) {
        for (name, field) in value.as_object().into_iter().flatten() {
            if name == "errors" || name == "provenance" {
                continue;
            }
            // A part's errors are the record's, unless the record sums them up itself.
            if depth == 0 && value.get("errors").is_none() {
                self.errors = self.errors.saturating_add(errors_of(field));
            }
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match field {
                Value::Number(number) => self.numbers.extend(number.as_f64().map(|number| (path, number))),
                Value::String(text) if !name.contains("error") && text.chars().count() <= WORD_CHARACTERS_MAX => {
                    self.words.push((path, text.clone()));
                }
                Value::Object(_) if depth < FLATTEN_DEPTH_MAX => self.flatten(field, &path, depth + 1),
                _ => {}
            }
        }
    }

    /// CPU seconds (`origin_cpu`) beside the seconds that they were spent in are cores.
    fn derive_cores(&mut self) {
        let cores: Vec<(String, f64)> = self
            .numbers
            .iter()
            .filter_map(|(name, cpu)| {
                let (parent, leaf) = name.rsplit_once('.').unwrap_or(("", name));
                let who = leaf.strip_suffix("_cpu")?;
                let seconds = if parent.is_empty() { "seconds".to_owned() } else { format!("{parent}.seconds") };
                let seconds = self.number(&seconds).filter(|seconds| *seconds > 0.0)?;
                Some((format!("{who}_cpu.cores"), cpu / seconds))
            })
            .collect();
        self.numbers.extend(cores);
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// Words of the record itself, not of what is nested in it, nor what changes from record to record.
    fn title(&self) -> String {
        const SAID_ELSEWHERE: [&str; 7] = ["step", "fault", "source", "unit", "command", "target", "stage"];
        let own = self.words.iter().filter(|(name, _)| !name.contains('.') && !SAID_ELSEWHERE.contains(&name.as_str()));
        let words: Vec<&str> = own.map(|(_, word)| word.as_str()).take(4).collect();
        words.join(" · ")
    }
}

/// All lists of objects in a result.
pub fn tracks_of(value: &Value) -> Vec<Track> {
    let mut tracks = Vec::new();
    collect(value, "", "", &mut tracks);
    tracks
}

fn collect(value: &Value, path: &str, label: &str, tracks: &mut Vec<Track>) {
    if tracks.len() >= TRACKS_MAX {
        return;
    }
    match value {
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let records: Vec<Record> = items.iter().take(RECORDS_MAX).map(Record::of).collect();
            for (item, record) in items.iter().zip(&records) {
                let workers = record.number("workers").map(count_of_workers);
                let own: Vec<String> = [label.to_owned(), record.title(), workers.unwrap_or_default()].into();
                let own: Vec<String> = own.into_iter().filter(|part| !part.is_empty()).collect();
                collect(item, path, &own.join(" · "), tracks);
            }
            tracks.push(Track { path: path.to_owned(), label: label.to_owned(), records });
        }
        Value::Object(fields) => {
            // Samples are what medians come from; percentiles have pictures of their own.
            const OWN_WAYS: [&str; 6] = ["provenance", "samples", "rounds", "latency", "percentiles", "errors"];
            for (name, field) in fields.iter().filter(|(name, _)| !OWN_WAYS.contains(&name.as_str())) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                // `with` and `without` are told apart by the field that they are in, not by one that they have.
                let is_side = field.is_object() && !matches!(name.as_str(), "server_cpu" | "memory" | "pressure");
                let label = match (is_side, label.is_empty()) {
                    (true, true) => readable(name),
                    (true, false) => format!("{label} · {}", readable(name)),
                    _ => label.to_owned(),
                };
                collect(field, if is_side { path_of_side(&path) } else { &path }, &label, tracks);
            }
        }
        _ => {}
    }
}

/// Sides of a comparison (`with`, `without`) are drawn together, so their names are no part of the path.
fn path_of_side(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

/// Pictures of all lists of a result.
pub fn pictures(tracks: &[Track], command: &str) -> String {
    let mut by_path: BTreeMap<&str, Vec<&Track>> = BTreeMap::new();
    for track in tracks {
        by_path.entry(&track.path).or_default().push(track);
    }
    let mut html = String::new();
    for (path, tracks) in by_path {
        let series: Vec<(String, Vec<&Record>)> = split_by_words(&tracks);
        // Lists without a word or a place in them are at least in an order.
        let is_course = series.iter().all(|(_, records)| records.len() >= COURSE_RECORDS_MIN);
        html.push_str(&match place_of(&series) {
            Some((field, label)) if command != "sweep" => lines(path, &series, field, label),
            None if command != "sweep" && is_course => lines(path, &series, IN_ORDER, "order of measurement"),
            _ => bars(path, &tracks),
        });
    }
    html
}

/// Records of a list that differ in a word (the type of the key) are different series.
fn split_by_words<'r>(tracks: &[&'r Track]) -> Vec<(String, Vec<&'r Record>)> {
    let mut series: Vec<(String, Vec<&Record>)> = Vec::new();
    for track in tracks {
        let titles: Vec<String> = track.records.iter().map(Record::title).collect();
        let first = titles.first().cloned().unwrap_or_default();
        let is_one = titles.iter().all(|title| *title == first);
        for (record, title) in track.records.iter().zip(titles) {
            let title = if is_one { String::new() } else { title };
            let parts: Vec<&str> = [track.label.as_str(), &title].into_iter().filter(|part| !part.is_empty()).collect();
            let name = parts.join(" · ");
            match series.iter_mut().find(|(own, _)| *own == name) {
                Some((_, records)) => records.push(record),
                None => series.push((name, vec![record])),
            }
            // Every record a word of its own: that is a table of things, not a course of events.
            if series.len() > 64 {
                return series;
            }
        }
    }
    series
}

/// The field that spreads the records over an axis.
fn place_of(series: &[(String, Vec<&Record>)]) -> Option<(&'static str, &'static str)> {
    let is_place = |field: &str| {
        let mut is_spread = false;
        for (_, records) in series {
            let values: Vec<f64> = records.iter().filter_map(|record| record.number(field)).collect();
            if values.len() < records.len() {
                return false;
            }
            is_spread |= values.iter().any(|value| *value != values[0]);
            // Bodies add up while something is measured; only then are there answers done, too.
            if field.ends_with("bytes") && records.iter().any(|record| record.number("done").is_some()) {
                return false;
            }
            // Seconds that do not grow are lengths, not moments.
            if field == "seconds" && values.windows(2).any(|pair| pair[1] <= pair[0]) {
                return false;
            }
        }
        is_spread
    };
    PLACES.into_iter().find(|(field, _)| is_place(field))
}

/// Field names with a family, in the order of their first record.
fn measured_fields<'r>(records: impl Iterator<Item = &'r Record>, place: &str) -> BTreeMap<Family, Vec<(String, f64)>> {
    let mut families: BTreeMap<Family, Vec<(String, f64)>> = BTreeMap::new();
    for record in records {
        for (name, _) in record.numbers.iter().filter(|(name, _)| name != place) {
            let Some((family, factor)) = family_of(name) else { continue };
            // Lists of lists have many lines already: of latencies the middle and the tail will do.
            if family == Family::Latency && !name.ends_with("p50") && !name.ends_with("p99") {
                continue;
            }
            let fields = families.entry(family).or_default();
            if fields.len() < 24 && !fields.iter().any(|(own, _)| own == name) {
                fields.push((name.clone(), factor));
            }
        }
    }
    families
}

fn lines(path: &str, series: &[(String, Vec<&Record>)], place: &str, place_label: &str) -> String {
    let families = measured_fields(series.iter().flat_map(|(_, records)| records.iter().copied()), place);
    let is_scaling = matches!(place, "workers" | "cores" | "threads");
    let mut html = String::new();
    for (family, fields) in families.into_iter().take(PICTURES_MAX) {
        let mut drawn = Vec::new();
        for (name, records) in series {
            for (field, factor) in &fields {
                let point = |(index, record): (usize, &&Record)| {
                    let x = if place == IN_ORDER { Some(index as f64 + 1.0) } else { record.number(place) };
                    let y = record.number(field)? * factor;
                    Some(Point { x: x?, y, spread: None, errors: record.errors })
                };
                let points: Vec<Point> = records.iter().enumerate().filter_map(point).collect();
                if !points.is_empty() && points.iter().any(|point| point.y != 0.0) {
                    drawn.push(Series { name: series_name(name, field, fields.len()), points });
                }
            }
        }
        let is_ideal_shown = is_scaling && family == Family::Rate;
        let places = series.iter().flat_map(|(_, records)| records.iter().filter_map(|record| record.number(place)));
        let x_scale = if is_scaling { Scale::Log } else { Scale::Linear };
        let x = Axis::new(place_label, x_scale);
        let x = if is_scaling { x.with_ticks_at(places) } else { x };
        // More lines than can be told apart go on in another picture.
        for chunk in drawn.chunks(SERIES_MAX).take(CONTINUED_MAX) {
            let plot = Plot {
                title: format!("{} by {}{}", family.title(), place_label.trim_end_matches(", s"), of_path(path)),
                note: is_ideal_shown.then(|| "Dotted: perfect scaling from the first point.".to_owned()),
                x: x.clone(),
                y: Axis::new(family.label(), if is_ideal_shown { Scale::Log } else { Scale::Linear }),
                series: chunk.to_vec(),
                is_ideal_shown,
            };
            html.push_str(&plot.render());
        }
    }
    html
}

fn count_of_workers(count: f64) -> String {
    if count == 1.0 { "1 worker".to_owned() } else { format!("{count:.0} workers") }
}

fn series_name(name: &str, field: &str, fields: usize) -> String {
    match (name.is_empty(), fields) {
        (true, _) => readable(field),
        (false, 1) => name.to_owned(),
        _ => format!("{name} · {}", readable(field)),
    }
}

/// The last name on the way, unless it says nothing.
fn of_path(path: &str) -> String {
    const EMPTY_WORDS: [&str; 8] = ["rows", "cells", "cases", "results", "steps", "items", "samples", "series"];
    let last = path.rsplit('.').next().unwrap_or_default();
    if last.is_empty() || EMPTY_WORDS.contains(&last) { String::new() } else { format!(" ({})", readable(last)) }
}

/// Groups by the records' words, bars by the number of workers, or by measured field.
fn bars(path: &str, tracks: &[&Track]) -> String {
    let records: Vec<(String, &Record)> = tracks
        .iter()
        .flat_map(|track| track.records.iter().map(move |record| (track.label.clone(), record)))
        .take(BAR_RECORDS_MAX)
        .collect();
    let name_of = |label: &str, record: &Record| {
        let parts: Vec<String> =
            [label.to_owned(), record.title()].into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(" · ")
    };
    if records.is_empty() || records.iter().any(|(label, record)| name_of(label, record).is_empty()) {
        return String::new();
    }
    let mut workers: Vec<f64> = records.iter().filter_map(|(_, record)| record.number("workers")).collect();
    workers.sort_by(f64::total_cmp);
    workers.dedup();
    let families = measured_fields(records.iter().map(|(_, record)| *record), "workers");
    let mut html = String::new();
    let by_workers = workers.len() > 1;
    // With bars for workers, another field is another picture.
    let each = if by_workers { 1 } else { 4 };
    let chunks =
        families.iter().flat_map(|(family, fields)| fields.chunks(each).take(3).map(move |fields| (*family, fields)));
    for (family, fields) in chunks.take(PICTURES_MAX) {
        let series: Vec<String> = if by_workers {
            workers.iter().copied().map(count_of_workers).collect()
        } else {
            fields.iter().map(|(field, _)| readable(field)).collect()
        };
        let mut groups: Vec<Group> = Vec::new();
        for (label, record) in &records {
            let name = name_of(label, record);
            let at = groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
                groups.push(Group { name, bars: vec![None; series.len()] });
                groups.len() - 1
            });
            for (index, (field, factor)) in fields.iter().enumerate() {
                let slot = match record.number("workers").filter(|_| by_workers) {
                    Some(count) => workers.iter().position(|own| *own == count).unwrap_or(0),
                    None => index,
                };
                if let Some(value) = record.number(field) {
                    let spread = spread_of(record, field).map(|(low, high)| (low * factor, high * factor));
                    groups[at].bars[slot] = Some(Bar { value: value * factor, spread, errors: record.errors });
                }
            }
        }
        let field = if fields.len() == 1 { format!(": {}", readable(&fields[0].0)) } else { String::new() };
        let title = format!("{}{field}{}", family.title(), of_path(path));
        html.push_str(
            &Bars {
                title,
                note: None,
                label: family.label().to_owned(),
                series,
                groups,
                reference: None,
                decimals: None,
            }
            .render(),
        );
    }
    html
}

/// `per_second` with `per_second_minimum` and `per_second_maximum`, or with `minimum` and `maximum` beside it.
fn spread_of(record: &Record, field: &str) -> Option<(f64, f64)> {
    let parent = field.rsplit_once('.').map_or(String::new(), |(parent, _)| format!("{parent}."));
    let low = record.number(&format!("{field}_minimum")).or_else(|| record.number(&format!("{parent}minimum")))?;
    let high = record.number(&format!("{field}_maximum")).or_else(|| record.number(&format!("{parent}maximum")))?;
    Some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_course_of_steps_with_and_without_offload_is_drawn_together() {
        let steps = |rate: f64| {
            json!({"steps": [{"step": 1, "per_second": rate, "server": {"cpu": {"cores": 0.5}}},
            {"step": 2, "per_second": rate * 2.0, "server": {"cpu": {"cores": 0.9}}, "errors": 2}]})
        };
        let value = json!({"command": "offload", "with": steps(10.0), "without": steps(7.0)});
        let html = pictures(&tracks_of(&value), "offload");
        assert_eq!(html.matches("<figure>").count(), 2, "{html}");
        assert!(html.contains("Rate by step") && html.contains("without") && html.contains("2 errors"), "{html}");
    }

    #[test]
    fn scaling_is_on_log_axes_with_the_ideal_and_a_sweep_is_grouped_bars() {
        let cases = json!([{"key": "ec", "workers": 1, "per_second": 100.0}, {"key": "ec", "workers": 2, "per_second": 190.0},
            {"key": "rsa", "workers": 1, "per_second": 20.0}, {"key": "rsa", "workers": 2, "per_second": 39.0}]);
        let tracks = tracks_of(&json!({"cases": cases}));
        let scaling = pictures(&tracks, "search");
        assert!(scaling.contains("per second, log") && scaling.contains("perfect scaling"), "{scaling}");
        let sweep = pictures(&tracks, "sweep");
        assert!(sweep.contains("class=\"bar\"") && sweep.contains("2 workers"), "{sweep}");
    }

    #[test]
    fn a_list_without_a_place_is_drawn_in_its_order() {
        let trials = json!([{"done": 5, "body_bytes": 10, "per_second": 3.0}, {"done": 7, "body_bytes": 20, "per_second": 4.0},
            {"done": 9, "body_bytes": 30, "per_second": 5.0, "fault": "errors"}]);
        let html = pictures(&tracks_of(&json!({"cases": [{"key": "ec", "trials": trials}]})), "search");
        assert!(html.contains("Rate by order of measurement (trials)"), "{html}");
    }

    #[test]
    fn lists_of_anything_are_no_trouble() {
        for value in
            [json!({"a": [{}, 1, null, [{}]]}), json!({"a": [{"workers": 1e300, "per_second": -1e300}]}), json!({})]
        {
            let _ = pictures(&tracks_of(&value), "x");
        }
    }
}
