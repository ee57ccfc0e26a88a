//! The past of a process: some numbers, five minutes of them by the second and a day by the minute.
//!
//! A row of a process's table names a metric and what is made of it: the rate of a counter, the level of a gauge, a
//! quantile of a histogram, over all of the metric's series. Memory is bounded by the table: a number takes four bytes
//! for each second and minute that is kept.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::{Store, quantile};

/// Seconds, and minutes, that are kept.
pub const SECONDS_KEPT: usize = 300;
pub const MINUTES_KEPT: usize = 1440;
/// Rows of a table at most.
pub const ROWS_MAX: usize = 64;
/// A clock that was set back by more has begun another past: what was before has no place on it.
const SET_BACK_MAX_SECONDS: u64 = 5;
/// Frames that are handed over in one part, so that it fits into a message of 64 KiB whatever the table's length.
const PART_FRAMES: usize = 64;

/// Source of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// A counter's rise in a second, over all series.
    Rate(&'static str),
    /// A gauge, over all series. A minute has the highest.
    Level(&'static str),
    /// A quantile, from 0 to 1, of what a histogram has seen, in the unit that it is shown in.
    Quantile(&'static str, f64),
    /// A number that no metric has, by its place among those that are given. A minute has the highest.
    Given(usize),
    /// The rise in a second of one.
    GivenRate(usize),
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    pub name: &'static str,
    pub source: Source,
    /// A label, and its value in those series that count; all do where there is none.
    pub only: Option<(&'static str, &'static str)>,
    /// The unit as it is shown.
    pub unit: &'static str,
}

/// Values of one time; NaN where nothing is known.
#[derive(Clone, Debug, PartialEq)]
struct Frame {
    /// Seconds since 1970.
    time: u64,
    values: Box<[f32]>,
}

/// A look at the metrics, for differences from it.
#[derive(Clone, Debug, Default)]
struct Reading {
    /// Sums of counters, and numbers that were given, by row.
    sums: Vec<f64>,
    /// Counts of a histogram's buckets, by row.
    counts: Vec<Vec<u64>>,
}

/// Which of the two pasts somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    FiveMinutes,
    Day,
}

impl Span {
    /// As it is written in a URL.
    pub fn of(text: &str) -> Option<Span> {
        match text {
            "5m" => Some(Span::FiveMinutes),
            "24h" => Some(Span::Day),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Span::FiveMinutes => "5m",
            Span::Day => "24h",
        }
    }

    fn kept(self) -> usize {
        match self {
            Span::FiveMinutes => SECONDS_KEPT,
            Span::Day => MINUTES_KEPT,
        }
    }

    fn every_seconds(self) -> u64 {
        match self {
            Span::FiveMinutes => 1,
            Span::Day => 60,
        }
    }
}

/// The minute that is not over.
#[derive(Debug)]
struct Minute {
    /// Minutes since 1970.
    number: u64,
    began: Duration,
    reading: Reading,
    /// The highest of each level so far.
    highest: Vec<f32>,
}

/// The past of the numbers of a table.
#[derive(Debug)]
pub struct History {
    table: &'static [Series],
    seconds: VecDeque<Frame>,
    minutes: VecDeque<Frame>,
    last: Option<(Duration, Reading)>,
    minute: Option<Minute>,
}

impl History {
    /// Panics where the table has more than [`ROWS_MAX`] rows: it is ours.
    pub fn new(table: &'static [Series]) -> History {
        assert!(table.len() <= ROWS_MAX, "a history of {} rows", table.len());
        History { table, seconds: VecDeque::new(), minutes: VecDeque::new(), last: None, minute: None }
    }

    /// Looks at the metrics. To be called once a second: `now` is the time since the start, `wall` that since 1970, and
    /// `given` what [`Source::Given`] and [`Source::GivenRate`] are about.
    pub fn look(&mut self, store: &Store, given: &[f64], now: Duration, wall: Duration) {
        let time = wall.as_secs();
        if !self.is_next(time) {
            return;
        }
        let reading = self.read(store, given);
        self.end_minute(store, time / 60, now, &reading);
        if let Some((then, before)) = &self.last {
            let values = self.values(store, before, &reading, now.saturating_sub(*then));
            if let Some(minute) = &mut self.minute {
                for (highest, value) in minute.highest.iter_mut().zip(&values) {
                    *highest = highest.max(*value);
                }
            }
            push(&mut self.seconds, Frame { time, values: values.into() }, SECONDS_KEPT);
        }
        self.last = Some((now, reading));
    }

    /// Whether a look at this time comes after all others. A clock that was set back far has the past forgotten.
    fn is_next(&mut self, time: u64) -> bool {
        let newest = self.seconds.back().or(self.minutes.back()).map_or(0, |frame| frame.time);
        if newest > time + SET_BACK_MAX_SECONDS {
            (self.seconds, self.minutes) = Default::default();
            (self.last, self.minute) = (None, None);
            return true;
        }
        newest < time
    }

    fn read(&self, store: &Store, given: &[f64]) -> Reading {
        let mut reading = Reading::default();
        for row in self.table {
            let given = |at: usize| given.get(at).copied().unwrap_or(f64::NAN);
            let (mut sum, mut counts) = (0.0, Vec::new());
            match row.source {
                Source::Rate(metric) | Source::Level(metric) => {
                    store.each_series(metric, |_, labels, value| {
                        let fits = |(label, is)| labels.iter().any(|(name, value)| name == label && value == is);
                        if row.only.is_none_or(fits) {
                            sum += value as f64;
                        }
                    });
                }
                Source::Quantile(metric, _) => counts = store.family_counts(metric),
                Source::Given(at) | Source::GivenRate(at) => sum = given(at),
            }
            reading.sums.push(sum);
            reading.counts.push(counts);
        }
        reading
    }

    /// The numbers of a time that began with one reading and ended with another.
    fn values(&self, store: &Store, from: &Reading, to: &Reading, elapsed: Duration) -> Vec<f32> {
        let seconds = elapsed.as_secs_f64();
        // A sum that has fallen had series that are gone.
        let rise = |at: usize| (to.sums[at] - from.sums[at]).max(0.0) / seconds;
        let value = |(at, row): (usize, &Series)| match row.source {
            Source::Level(_) | Source::Given(_) => to.sums[at],
            Source::Rate(_) | Source::GivenRate(_) if seconds > 0.0 => rise(at),
            Source::Rate(_) | Source::GivenRate(_) => f64::NAN,
            Source::Quantile(metric, share) => {
                let before = |bucket: usize| from.counts[at].get(bucket).copied().unwrap_or(0);
                let counts = to.counts[at].iter().enumerate();
                let counts = counts.map(|(at, count)| count.saturating_sub(before(at)) as f64);
                quantile(share, counts, &store.family_bounds(metric)).unwrap_or(f64::NAN)
            }
        };
        self.table.iter().enumerate().map(value).map(|value| value as f32).collect()
    }

    /// Ends the minute that is over, if one is.
    fn end_minute(&mut self, store: &Store, number: u64, now: Duration, reading: &Reading) {
        if self.minute.as_ref().is_some_and(|minute| minute.number == number) {
            return;
        }
        let highest = vec![f32::NAN; self.table.len()];
        let next = Minute { number, began: now, reading: reading.clone(), highest };
        let Some(minute) = self.minute.replace(next) else { return };
        let mut values = self.values(store, &minute.reading, reading, now.saturating_sub(minute.began));
        for ((value, row), highest) in values.iter_mut().zip(self.table).zip(minute.highest) {
            if matches!(row.source, Source::Level(_) | Source::Given(_)) {
                *value = highest;
            }
        }
        push(&mut self.minutes, Frame { time: minute.number * 60, values: values.into() }, MINUTES_KEPT);
    }

    fn frames(&self, span: Span) -> &VecDeque<Frame> {
        match span {
            Span::FiveMinutes => &self.seconds,
            Span::Day => &self.minutes,
        }
    }

    /// One of the two, as it is shown: times in seconds since 1970, the oldest first, and the values of each series;
    /// null where nothing is known.
    pub fn to_json(&self, span: Span) -> Value {
        let frames = self.frames(span);
        let series = self.table.iter().enumerate().map(|(at, row)| {
            let values: Vec<Value> = frames.iter().map(|frame| rounded(frame.values[at])).collect();
            (row.name.to_owned(), json!({ "unit": row.unit, "values": values }))
        });
        json!({
            "shape": 1,
            "span": span.name(),
            "every_seconds": span.every_seconds(),
            "times": frames.iter().map(|frame| frame.time).collect::<Vec<u64>>(),
            "series": series.collect::<Map<String, Value>>(),
        })
    }

    /// All of it in parts, for a successor, whose table may be another.
    pub fn parts(&self) -> Vec<Value> {
        let names: Vec<&str> = self.table.iter().map(|row| row.name).collect();
        let of = |span: Span| {
            let frames: Vec<&Frame> = self.frames(span).iter().collect();
            let part = |frames: &[&Frame]| {
                let times: Vec<u64> = frames.iter().map(|frame| frame.time).collect();
                let values = |frame: &&Frame| frame.values.iter().copied().map(rounded).collect::<Vec<Value>>();
                let values: Vec<Vec<Value>> = frames.iter().map(values).collect();
                json!({ "span": span.name(), "names": names, "times": times, "values": values })
            };
            frames.chunks(PART_FRAMES).map(part).collect::<Vec<Value>>()
        };
        [Span::FiveMinutes, Span::Day].into_iter().flat_map(of).collect()
    }

    /// Puts a part of a predecessor's among what is known here, by its time. Frames of times that are known, and those
    /// that make no sense, are left out.
    pub fn take_part(&mut self, part: &Value) {
        let Some(span) = part["span"].as_str().and_then(Span::of) else { return };
        let empty = Vec::new();
        let list = |key: &str| part[key].as_array().unwrap_or(&empty);
        let place = |row: &Series| list("names").iter().position(|name| name == row.name);
        let places: Vec<Option<usize>> = self.table.iter().map(place).collect();
        let frame = |(time, values): (&Value, &Value)| {
            let value = |place: &Option<usize>| place.and_then(|place| values.get(place)?.as_f64());
            let values = places.iter().map(|place| value(place).map_or(f32::NAN, |value| value as f32)).collect();
            Some(Frame { time: time.as_u64()?, values })
        };
        let taken: Vec<Frame> = list("times").iter().zip(list("values")).filter_map(frame).collect();
        let own = match span {
            Span::FiveMinutes => &mut self.seconds,
            Span::Day => &mut self.minutes,
        };
        for frame in taken {
            let after = own.partition_point(|known| known.time < frame.time);
            if own.get(after).is_none_or(|known| known.time != frame.time) {
                own.insert(after, frame);
            }
        }
        while own.len() > span.kept() {
            own.pop_front();
        }
    }
}

fn push(frames: &mut VecDeque<Frame>, frame: Frame, kept: usize) {
    if frames.len() == kept {
        frames.pop_front();
    }
    frames.push_back(frame);
}

/// Four digits are more than anybody sees in a curve.
fn rounded(value: f32) -> Value {
    let value = f64::from(value);
    if !value.is_finite() {
        return Value::Null;
    }
    if value == 0.0 {
        return json!(0);
    }
    let scale = 10f64.powf(3.0 - value.abs().log10().floor());
    let near = (value * scale).round() / scale;
    if near.fract() == 0.0 && near.abs() < 1e15 { json!(near as i64) } else { json!(near) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    const fn row(name: &'static str, source: Source) -> Series {
        Series { name, source, only: None, unit: "" }
    }

    const TABLE: &[Series] = &[
        row("requests", Source::Rate("requests_total")),
        Series { only: Some(("class", "5xx")), ..row("errors", Source::Rate("requests_total")) },
        row("open", Source::Level("open")),
        row("p50", Source::Quantile("duration_seconds", 0.5)),
        row("memory", Source::Given(0)),
        row("cores", Source::GivenRate(1)),
    ];
    /// 2023-11-14T22:13:20Z, 20 s into a minute.
    const BEGIN: u64 = 1_700_000_000;

    struct Rig {
        history: History,
        store: std::sync::Arc<Store>,
        counters: [crate::Counter; 2],
        open: crate::Gauge,
        duration: crate::Histogram,
        second: u64,
    }

    impl Rig {
        fn new() -> Rig {
            let mut registry = Registry::new();
            let counters = ["2xx", "5xx"].map(|class| registry.counter("requests_total", "", &[("class", class)]));
            let open = registry.gauge("open", "", &[]);
            let duration = registry.histogram("duration_seconds", "", &[], &[1_000, 2_000], 1e-6);
            Rig { history: History::new(TABLE), store: registry.build(1), counters, open, duration, second: 0 }
        }

        fn look(&mut self) {
            let now = Duration::from_secs(self.second);
            let given = [1000.0 + self.second as f64, self.second as f64 / 2.0];
            self.history.look(&self.store, &given, now, Duration::from_secs(BEGIN) + now);
            self.second += 1;
        }

        fn values(&self, span: Span, name: &str) -> Vec<f64> {
            let json = self.history.to_json(span);
            let values = json["series"][name]["values"].as_array().expect("values");
            values.iter().map(|value| value.as_f64().unwrap_or(-1.0)).collect()
        }
    }

    #[test]
    fn rates_levels_and_quantiles_are_those_of_their_second() {
        let mut rig = Rig::new();
        rig.look();
        assert_eq!(rig.values(Span::FiveMinutes, "requests"), [0.0; 0], "a first look has nothing to compare with");
        let column = Store::column(&rig.store, 0);
        column.add(rig.counters[0], 7);
        column.add(rig.counters[1], 3);
        column.set(rig.open, 5);
        column.observe(rig.duration, 500);
        rig.look();
        rig.look();
        assert_eq!(rig.values(Span::FiveMinutes, "requests"), [10.0, 0.0]);
        assert_eq!(rig.values(Span::FiveMinutes, "errors"), [3.0, 0.0]);
        assert_eq!(rig.values(Span::FiveMinutes, "open"), [5.0, 5.0]);
        assert_eq!(rig.values(Span::FiveMinutes, "p50"), [0.0005, -1.0], "null where nothing was seen");
        assert_eq!(rig.values(Span::FiveMinutes, "memory"), [1001.0, 1002.0]);
        assert_eq!(rig.values(Span::FiveMinutes, "cores"), [0.5, 0.5]);
        assert_eq!(rig.history.to_json(Span::FiveMinutes)["times"], json!([BEGIN + 1, BEGIN + 2]));
    }

    #[test]
    fn a_minute_has_the_mean_of_rates_and_the_highest_of_levels() {
        let mut rig = Rig::new();
        let column = Store::column(&rig.store, 0);
        // The first minute has 40 seconds, the second one 60.
        for second in 0..101 {
            column.add(rig.counters[0], if second == 50 { 120 } else { 0 });
            column.set(rig.open, if second == 60 { 9 } else { 1 });
            rig.look();
        }
        assert_eq!(rig.values(Span::Day, "requests"), [0.0, 2.0]);
        assert_eq!(rig.values(Span::Day, "open"), [1.0, 9.0]);
        let times = rig.history.to_json(Span::Day)["times"].clone();
        assert_eq!(times, json!([BEGIN - 20, BEGIN + 40]));
    }

    #[test]
    fn what_is_kept_is_bounded_and_has_five_minutes_and_a_day() {
        let mut rig = Rig::new();
        for _ in 0..(MINUTES_KEPT + 10) * 60 {
            rig.look();
        }
        assert_eq!(rig.history.seconds.len(), SECONDS_KEPT);
        assert_eq!(rig.history.minutes.len(), MINUTES_KEPT);
    }

    #[test]
    fn a_series_that_is_gone_is_no_negative_rate() {
        let mut rig = Rig::new();
        let (counter, group) = rig.store.register(|registry| registry.counter("requests_total", "", &[("class", "x")]));
        Store::column(&rig.store, 0).add(counter, 1000);
        rig.look();
        rig.store.withdraw(&[group]);
        rig.look();
        assert_eq!(rig.values(Span::FiveMinutes, "requests"), [0.0]);
    }

    #[test]
    fn a_successor_has_the_past_and_goes_on_with_it() {
        let mut before = Rig::new();
        for _ in 0..400 {
            before.look();
        }
        let mut after = Rig::new();
        // A look of its own before the parts come.
        after.second = 400;
        after.look();
        after.look();
        for part in before.history.parts() {
            assert!(part.to_string().len() < 32 * 1024);
            after.history.take_part(&part);
        }
        assert_eq!(after.history.seconds.len(), SECONDS_KEPT);
        assert_eq!(after.history.seconds[SECONDS_KEPT - 2].time, BEGIN + 399);
        assert_eq!(after.history.seconds[SECONDS_KEPT - 1].time, BEGIN + 401);
        assert_eq!(after.history.minutes.len(), before.history.minutes.len());
        assert_eq!(after.values(Span::FiveMinutes, "memory")[SECONDS_KEPT - 2], 1399.0);
        after.look();
        assert_eq!(after.history.seconds.len(), SECONDS_KEPT);
    }

    #[test]
    fn a_part_of_another_version_or_of_nobody_is_taken_as_far_as_it_makes_sense() {
        let mut rig = Rig::new();
        let part = json!({ "span": "5m", "names": ["other", "open"], "times": [BEGIN, "x", BEGIN + 1], "values": [[1, 2], [3, 4], 5] });
        rig.history.take_part(&part);
        assert_eq!(rig.values(Span::FiveMinutes, "open"), [2.0, -1.0]);
        assert_eq!(rig.values(Span::FiveMinutes, "requests"), [-1.0, -1.0]);
        for wrong in [json!(1), json!({ "span": "1y" }), json!({ "span": "5m", "times": 7 })] {
            rig.history.take_part(&wrong);
        }
        assert_eq!(rig.history.seconds.len(), 2);
    }

    #[test]
    fn a_clock_that_is_set_back_begins_another_past() {
        let mut rig = Rig::new();
        (0..10).for_each(|_| rig.look());
        let look = |rig: &mut Rig, wall: u64| {
            rig.history.look(&rig.store, &[], Duration::from_secs(20), Duration::from_secs(wall))
        };
        look(&mut rig, BEGIN + 7);
        assert_eq!(rig.history.seconds.len(), 9, "a second that is known already");
        look(&mut rig, BEGIN - 100);
        assert_eq!(rig.history.seconds.len(), 0);
    }

    #[test]
    fn numbers_are_told_to_four_digits() {
        for (value, told) in
            [(0.0, "0"), (1234.5678, "1235"), (0.000123456, "0.0001235"), (7.0, "7"), (f32::NAN, "null")]
        {
            assert_eq!(rounded(value).to_string(), told);
        }
    }
}
