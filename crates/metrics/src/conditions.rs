//! Conditions that are wrong with what is running, found from the metrics once a second: logged when they
//! begin and are over, and shown for as long as they last.
//!
//! There is one mechanism for all of it. What can be wrong is a row of a process's table: a metric, what it has to do to
//! be a condition, how grave that is, what it is called and what is to be done. Each place (a listener, a server) that the
//! metric has a series for is a condition by itself.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::Store;

/// Quiet time after which a counted condition is over; for notes it is longer, as strangers cause them.
const QUIET: Duration = Duration::from_secs(10);
const QUIET_NOTE: Duration = Duration::from_secs(60);
/// A condition that comes and goes, or lasts, has no more than a line for its begin and one for its end in this time.
const REPEAT_INTERVAL: Duration = Duration::from_secs(300);
/// Lines in a minute, of all conditions together; more are counted and logged as one.
const LINES_PER_MINUTE_MAX: u32 = 60;
/// Conditions that are kept at once; more are counted.
const KEPT_MAX: usize = 2_000;
/// Limit of conditions that are shown, the gravest first.
const SHOWN_MAX: usize = 100;
/// Reasons of one condition that are named.
const REASONS_MAX: usize = 3;

/// Grade of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Somebody is not served, or something is lost.
    Problem,
    /// A problem may come of it.
    Warning,
    /// Worth a line; strangers can cause it, and nothing need be done.
    Note,
}

impl Grade {
    pub fn name(self) -> &'static str {
        match self {
            Grade::Problem => "problem",
            Grade::Warning => "warning",
            Grade::Note => "note",
        }
    }

    fn level(self) -> log::Level {
        match self {
            Grade::Problem => log::Level::Error,
            Grade::Warning => log::Level::Warn,
            Grade::Note => log::Level::Info,
        }
    }

    fn quiet(self) -> Duration {
        if self == Grade::Note { QUIET_NOTE } else { QUIET }
    }
}

/// Test that a metric is put to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A counter that rises; over when it has been quiet.
    Rises,
    /// A gauge, for as long as it is above.
    Above(i64),
    /// A gauge, for as long as it is below.
    Below(i64),
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    pub name: &'static str,
    pub metric: &'static str,
    /// A label, and the values of it that this row is about; all where there is none.
    pub only: Option<(&'static str, &'static [&'static str])>,
    /// A label, and the values of it that another metric's row tells of.
    pub except: Option<(&'static str, &'static [&'static str])>,
    /// Another label, and the value of it that this row is about.
    pub of: Option<(&'static str, &'static str)>,
    pub holds: Holds,
    pub grade: Grade,
    /// In words; `{value}` stands for what a gauge is at.
    pub what: &'static str,
    /// The cure; `{value}` likewise.
    pub cure: &'static str,
    /// A gauge of the same places that is at zero where something else has come in the condition's stead, and what
    /// that is: its end is no good news then.
    pub unless_zero: Option<(&'static str, &'static str)>,
    /// The cause of the metric is logged elsewhere, with more to say.
    pub logged_elsewhere: bool,
}

const fn row(
    name: &'static str,
    metric: &'static str,
    holds: Holds,
    grade: Grade,
    [what, cure]: [&'static str; 2],
) -> Condition {
    let (only, except, of, unless_zero, logged_elsewhere) = (None, None, None, None, false);
    Condition { name, metric, only, except, of, holds, grade, what, cure, unless_zero, logged_elsewhere }
}

/// A row about a counter.
pub const fn rises(
    name: &'static str,
    metric: &'static str,
    grade: Grade,
    what: &'static str,
    cure: &'static str,
) -> Condition {
    row(name, metric, Holds::Rises, grade, [what, cure])
}

/// A row about a gauge.
pub const fn above(
    name: &'static str,
    metric: &'static str,
    limit: i64,
    grade: Grade,
    what: &'static str,
    cure: &'static str,
) -> Condition {
    row(name, metric, Holds::Above(limit), grade, [what, cure])
}

/// A row about a gauge.
pub const fn below(
    name: &'static str,
    metric: &'static str,
    limit: i64,
    grade: Grade,
    what: &'static str,
    cure: &'static str,
) -> Condition {
    row(name, metric, Holds::Below(limit), grade, [what, cure])
}

impl Condition {
    /// The row is about series with one of these values of the label.
    #[must_use]
    pub const fn only(mut self, label: &'static str, values: &'static [&'static str]) -> Condition {
        self.only = Some((label, values));
        self
    }

    /// The row is not about series with one of these values of the label: another metric's row tells of them.
    #[must_use]
    pub const fn except(mut self, label: &'static str, values: &'static [&'static str]) -> Condition {
        self.except = Some((label, values));
        self
    }

    /// The row is about series with this value of the label, too.
    #[must_use]
    pub const fn of(mut self, label: &'static str, value: &'static str) -> Condition {
        self.of = Some((label, value));
        self
    }

    /// The end says so where the gauge of the same place is at zero, since something else has come in the condition's
    /// stead.
    #[must_use]
    pub const fn unless_zero(mut self, gauge: &'static str, instead: &'static str) -> Condition {
        self.unless_zero = Some((gauge, instead));
        self
    }

    /// Marks that the code which counts writes to the log by itself.
    #[must_use]
    pub const fn logged_elsewhere(mut self) -> Condition {
        self.logged_elsewhere = true;
        self
    }

    fn fits(&self, labels: &[(String, String)]) -> bool {
        let has = |label: &str, values: &[&str]| {
            labels.iter().any(|(name, is)| name == label && values.contains(&is.as_str()))
        };
        self.only.is_none_or(|(label, values)| has(label, values))
            && self.of.is_none_or(|(label, is)| has(label, &[is]))
            && !self.except.is_some_and(|(label, values)| has(label, values))
    }
}

/// A row and where it holds: `backend "app": server 10.0.0.1:80`, or nothing for the whole process.
type Key = (usize, String);

/// A condition that holds, or has held a short while ago.
#[derive(Debug)]
struct Kept {
    place: BTreeMap<String, String>,
    since: SystemTime,
    /// On the clock of the looks, as are the next two.
    began: Duration,
    /// When it held last.
    last: Duration,
    /// When its begin was logged last.
    logged: Option<Duration>,
    /// The condition holds, and that has been logged.
    is_logged: bool,
    holds: bool,
    /// Rise of a counter, or level of a gauge.
    value: i64,
    /// Values by reason, where the metric has one.
    reasons: BTreeMap<String, i64>,
    /// A cause that somebody knows, in place of the reasons.
    cause: Option<String>,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    level: log::Level,
    text: String,
}

/// Findings of one look at a place.
#[derive(Default)]
struct Seen {
    place: BTreeMap<String, String>,
    value: i64,
    reasons: BTreeMap<String, i64>,
    cause: Option<String>,
}

/// Everything that is wrong now.
pub struct Conditions {
    table: &'static [Condition],
    /// Labels that say where something is, in the order in which they are named. The others say why.
    places: &'static [&'static str],
    /// Values of counters at the last look, by series.
    counted: Vec<i64>,
    kept: BTreeMap<Key, Kept>,
    /// Causes for the next look, by the names of conditions and their places.
    causes: BTreeMap<(&'static str, String), String>,
    /// Conditions that there was no room for.
    left_out: usize,
    /// The minute that lines are counted in, how many it has had, and how many were not written.
    minute: (u64, u32, u32),
}

impl Conditions {
    /// The first of several rows of `table` for a metric that fits a series has it. `places` are labels that say where
    /// something is, in the order in which they are named.
    pub fn new(table: &'static [Condition], places: &'static [&'static str]) -> Conditions {
        let (counted, kept, causes) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Conditions { table, places, counted, kept, causes, left_out: 0, minute: (0, 0, 0) }
    }

    /// Says more of a condition than its metric knows, for the next look: it stands in place of the reasons. `labels`
    /// are those of the place; of conditions that do not hold it is forgotten.
    pub fn explain(&mut self, name: &'static str, labels: &[(&str, &str)], cause: String) {
        let owned: Vec<(String, String)> =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.causes.insert((name, place_of(&owned, self.places)), cause);
    }

    /// Looks at the metrics, and writes to the log what is new. To be called once a second; `now` is the time since the start.
    pub fn look(&mut self, store: &Store, now: Duration, wall: SystemTime) {
        for Line { level, text } in self.step(store, now, wall) {
            log::log!(level, "{text}");
        }
    }

    fn step(&mut self, store: &Store, now: Duration, wall: SystemTime) -> Vec<Line> {
        let seen = self.observe(store);
        let mut lines = Vec::new();
        self.left_out = 0;
        let mut causes = std::mem::take(&mut self.causes);
        for (key, mut seen) in seen {
            if self.kept.len() >= KEPT_MAX && !self.kept.contains_key(&key) {
                self.left_out += 1;
                continue;
            }
            let row = &self.table[key.0];
            let place = key.1.clone();
            seen.cause = causes.remove(&(row.name, place.clone()));
            let kept = self.kept.entry(key).or_insert_with(|| Kept::new(&seen, now, wall));
            kept.holds_again(row, seen, now, wall);
            if let Some(text) = kept.begin(row, &place, now) {
                lines.push(Line { level: row.grade.level(), text });
            }
        }
        let places = self.places;
        for ((row, place), kept) in &mut self.kept {
            let row = &self.table[*row];
            let instead = || {
                let (gauge, instead) = row.unless_zero?;
                is_zero_at(store, gauge, place, places).then_some(instead)
            };
            if let Some(text) = kept.end(row, place, now, instead) {
                lines.push(Line { level: log::Level::Info, text });
            }
        }
        self.kept.retain(|_, kept| kept.holds || kept.logged.is_some_and(|logged| now < logged + REPEAT_INTERVAL));
        self.allowed(lines, now)
    }

    /// Conditions that hold by this look alone.
    fn observe(&mut self, store: &Store) -> BTreeMap<Key, Seen> {
        let mut found: BTreeMap<Key, Seen> = BTreeMap::new();
        let mut looked_at: Vec<&str> = Vec::new();
        let (table, places) = (self.table, self.places);
        for condition in table {
            if looked_at.contains(&condition.metric) {
                continue;
            }
            looked_at.push(condition.metric);
            let rows: Vec<usize> = (0..table.len()).filter(|row| table[*row].metric == condition.metric).collect();
            store.each_series(condition.metric, |series, labels, value| {
                // Nearly all series are as they were, and nobody need look at their labels.
                let of = |holds, risen| match holds {
                    Holds::Rises => Some(risen).filter(|risen| *risen > 0),
                    Holds::Above(limit) => (value > limit).then_some(value),
                    Holds::Below(limit) => (value < limit && value > 0).then_some(value),
                };
                let risen = if condition.holds == Holds::Rises { self.risen(series, value) } else { 0 };
                if rows.iter().all(|row| of(table[*row].holds, risen).is_none()) {
                    return;
                }
                let Some(row) = rows.iter().copied().find(|row| table[*row].fits(labels)) else { return };
                let Some(value) = of(table[row].holds, risen) else { return };
                let seen = found
                    .entry((row, place_of(labels, places)))
                    .or_insert_with(|| Seen { place: place_labels(labels, places), ..Seen::default() });
                seen.value = seen.value.saturating_add(value);
                let why = labels.iter().find(|(name, _)| !places.contains(&name.as_str()));
                if let Some((_, why)) = why {
                    *seen.reasons.entry(why.clone()).or_default() += value;
                }
            });
        }
        found
    }

    /// Rise of a counter since the last look. One that fell is another's series by now.
    fn risen(&mut self, series: u32, value: i64) -> i64 {
        let place = series as usize;
        if self.counted.len() <= place {
            self.counted.resize(place + 1, 0);
        }
        let before = std::mem::replace(&mut self.counted[place], value);
        if value < before { value } else { value - before }
    }

    /// Lines that may be written, and one about the others.
    fn allowed(&mut self, lines: Vec<Line>, now: Duration) -> Vec<Line> {
        let (minute, count, withheld) = &mut self.minute;
        let mut all = Vec::new();
        if *minute != now.as_secs() / 60 {
            if *withheld > 0 {
                let text = format!("{withheld} more lines about what is wrong were not written");
                all.push(Line { level: log::Level::Warn, text });
            }
            (*minute, *count, *withheld) = (now.as_secs() / 60, 0, 0);
        }
        for line in lines {
            if *count < LINES_PER_MINUTE_MAX {
                *count += 1;
                all.push(line);
            } else {
                *withheld += 1;
            }
        }
        all
    }

    /// For `/status.json`: what holds now, the gravest first.
    pub fn to_json(&self) -> Value {
        let mut holding: Vec<(&Key, &Kept)> = self.kept.iter().filter(|(_, kept)| kept.holds).collect();
        holding.sort_by_key(|((row, _), _)| (self.table[*row].grade, *row));
        let list = holding.iter().take(SHOWN_MAX).map(|((row, place), kept)| {
            let row = &self.table[*row];
            let since = kept.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            json!({
                "name": row.name,
                "grade": row.grade.name(),
                "what": row.words(kept.value),
                "place": place,
                "labels": kept.place,
                "why": kept.why(),
                "count": (row.holds == Holds::Rises).then_some(kept.value),
                "since": since.as_millis() as f64 / 1e3,
                "cure": row.remedy(kept.value),
            })
        });
        json!({ "total": holding.len() + self.left_out, "list": list.collect::<Vec<Value>>() })
    }
}

impl Condition {
    fn words(&self, value: i64) -> String {
        self.what.replace("{value}", &value.to_string())
    }

    fn remedy(&self, value: i64) -> String {
        self.cure.replace("{value}", &value.to_string())
    }
}

impl Kept {
    fn new(seen: &Seen, now: Duration, wall: SystemTime) -> Kept {
        Kept {
            place: seen.place.clone(),
            since: wall,
            began: now,
            last: now,
            logged: None,
            is_logged: false,
            holds: false,
            value: 0,
            reasons: BTreeMap::new(),
            cause: None,
        }
    }

    fn holds_again(&mut self, row: &Condition, seen: Seen, now: Duration, wall: SystemTime) {
        if !self.holds {
            (self.since, self.began, self.holds) = (wall, now, true);
            self.value = 0;
            self.reasons.clear();
            self.cause = None;
        }
        self.last = now;
        if row.holds == Holds::Rises {
            self.value = self.value.saturating_add(seen.value);
        } else {
            self.value = seen.value;
        }
        for (why, count) in seen.reasons {
            *self.reasons.entry(why).or_default() += count;
        }
        self.cause = seen.cause.or_else(|| self.cause.take());
    }

    /// The line about a begin, if it is due.
    fn begin(&mut self, row: &Condition, place: &str, now: Duration) -> Option<String> {
        if row.logged_elsewhere || self.logged.is_some_and(|logged| now < logged + REPEAT_INTERVAL) {
            return None;
        }
        let lasts = if self.is_logged { ", still" } else { "" };
        (self.logged, self.is_logged) = (Some(now), true);
        let why = self.why();
        let why = if why.is_empty() { why } else { format!(" ({why})") };
        Some(format!(
            "{}{}{why}{lasts} [{}]; {}",
            prefix(place),
            row.words(self.value),
            row.name,
            row.remedy(self.value)
        ))
    }

    /// Whether it is over, and the line about it if its begin was logged.
    fn end(
        &mut self,
        row: &Condition,
        place: &str,
        now: Duration,
        instead: impl FnOnce() -> Option<&'static str>,
    ) -> Option<String> {
        let quiet = if row.holds == Holds::Rises { row.grade.quiet() } else { Duration::ZERO };
        if !self.holds || now <= self.last + quiet {
            return None;
        }
        self.holds = false;
        if !std::mem::take(&mut self.is_logged) {
            return None;
        }
        let lasted = self.last.saturating_sub(self.began).as_secs().max(1);
        let count = match row.holds {
            Holds::Rises if self.value == 1 => ", once".into(),
            Holds::Rises => format!(", {} times", self.value),
            _ => String::new(),
        };
        let over = match instead() {
            Some(instead) => format!("{instead}; before, for {lasted} s"),
            None => format!("over after {lasted} s"),
        };
        Some(format!("{}{over}{count}: {} [{}]", prefix(place), row.words(self.value), row.name))
    }

    /// The cause, or the most frequent reasons.
    fn why(&self) -> String {
        if let Some(cause) = &self.cause {
            return cause.clone();
        }
        let mut reasons: Vec<(&String, &i64)> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let more = if reasons.len() > REASONS_MAX { ", …" } else { "" };
        let named: Vec<String> =
            reasons.iter().take(REASONS_MAX).map(|(why, count)| format!("{why} {count}")).collect();
        named.join(", ") + more
    }
}

fn prefix(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!("{place}: ") }
}

/// As the log tells it: `backend "app": server 10.0.0.1:80`.
fn place_of(labels: &[(String, String)], places: &[&str]) -> String {
    let of = |place: &str| labels.iter().find(|(name, _)| name == place).map(|(_, value)| value);
    let named = places.iter().filter_map(|place| {
        let value = of(place)?;
        Some(if *place == "server" { format!("server {value}") } else { format!("{place} \"{value}\"") })
    });
    named.collect::<Vec<String>>().join(": ")
}

fn is_zero_at(store: &Store, gauge: &str, place: &str, places: &[&str]) -> bool {
    let mut is_zero = false;
    store.each_series(gauge, |_, labels, value| is_zero |= value == 0 && place_of(labels, places) == place);
    is_zero
}

fn place_labels(labels: &[(String, String)], places: &[&str]) -> BTreeMap<String, String> {
    labels.iter().filter(|(name, _)| places.contains(&name.as_str())).cloned().collect()
}

/// Flaw of a table: a name that is there twice, or a row that is never reached since one for all comes before it.
pub fn flaw(table: &[Condition]) -> Option<String> {
    table.iter().enumerate().find_map(|(place, row)| {
        let before = &table[..place];
        let is_twice = before.iter().any(|other| other.name == row.name);
        let is_hidden =
            before.iter().any(|other| other.metric == row.metric && other.only.is_none() && other.of.is_none());
        match (is_twice, is_hidden) {
            (true, _) => Some(format!("{} is there twice", row.name)),
            (_, true) => Some(format!("{} is never reached", row.name)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Column, Counter, Gauge, Registry};

    const PLACES: &[&str] = &["listener", "backend", "server"];
    const TABLE: &[Condition] = &[
        below("files-few", "propylon_files_limit", 1024, Grade::Warning, "may open few files: {value}", "raise it"),
        above("max-connections", "propylon_listener_paused", 0, Grade::Problem, "no more clients", "raise it"),
        rises("queue-client-gone", "propylon_queue_refused_total", Grade::Note, "clients go away", "nothing")
            .only("reason", &["client-gone"]),
        rises("queue-refused", "propylon_queue_refused_total", Grade::Problem, "requests are refused", "add servers"),
        above("server-passed-over", "propylon_server_passed_over", 0, Grade::Problem, "passed over", "look at it")
            .unless_zero("propylon_server_up", "it is down"),
    ];

    fn conditions() -> Conditions {
        Conditions::new(TABLE, PLACES)
    }

    struct Bench {
        store: std::sync::Arc<Store>,
        column: Column,
        full: Counter,
        gone: Counter,
        paused: Gauge,
        files: Gauge,
        conditions: Conditions,
    }

    impl Bench {
        fn new() -> Bench {
            let mut registry = Registry::new();
            let mut line = |reason: &str| {
                let labels = [("backend", "app"), ("reason", reason)];
                registry.counter("propylon_queue_refused_total", "Refused.", &labels)
            };
            let (full, gone) = (line("queue-full"), line("client-gone"));
            let paused = registry.gauge("propylon_listener_paused", "Paused.", &[("listener", "web")]);
            let files = registry.gauge("propylon_files_limit", "Files.", &[]);
            let store = registry.build(1);
            let column = Store::column(&store, 0);
            Bench { column, store, full, gone, paused, files, conditions: conditions() }
        }

        fn at(&mut self, second: u64) -> Vec<String> {
            let lines = self.conditions.step(&self.store, Duration::from_secs(second), SystemTime::UNIX_EPOCH);
            lines.into_iter().map(|line| format!("{} {}", line.level, line.text)).collect()
        }

        fn names(&self) -> Vec<String> {
            let json = self.conditions.to_json();
            json["list"].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap().to_owned()).collect()
        }
    }

    #[test]
    fn what_counts_is_told_when_it_begins_and_when_it_has_been_quiet_and_holds_meanwhile() {
        let mut bench = Bench::new();
        assert!(bench.at(0).is_empty());
        bench.column.add(bench.full, 7);
        let lines = bench.at(1);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("ERROR backend \"app\": requests are refused (queue-full 7)"), "{lines:?}");
        assert!(lines[0].contains("(queue-full 7) [queue-refused]; add servers"), "{lines:?}");
        bench.column.add(bench.full, 1);
        assert!(bench.at(5).is_empty(), "one line is enough");
        assert_eq!(bench.names(), ["queue-refused"]);
        assert!(bench.at(15).is_empty());
        let lines = bench.at(16);
        assert!(lines[0].starts_with("INFO backend \"app\": over after 4 s, 8 times:"), "{lines:?}");
        assert!(bench.names().is_empty());
    }

    #[test]
    fn a_row_of_its_own_takes_a_reason_from_the_row_for_all() {
        let mut bench = Bench::new();
        bench.column.increment(bench.gone);
        assert!(bench.at(1)[0].starts_with("INFO backend \"app\": clients go away"));
        assert_eq!(bench.names(), ["queue-client-gone"]);
    }

    #[test]
    fn a_cause_that_somebody_knows_is_told_in_place_of_reasons() {
        let mut bench = Bench::new();
        let why = |bench: &Bench| bench.conditions.to_json()["list"][0]["why"].clone();
        bench.conditions.explain("queue-refused", &[("backend", "other")], "of another place".into());
        bench.column.add(bench.full, 7);
        assert!(bench.at(1)[0].contains("(queue-full 7)"));
        bench.conditions.explain("queue-refused", &[("reason", "queue-full"), ("backend", "app")], "it sleeps".into());
        bench.column.add(bench.full, 1);
        bench.at(2);
        assert_eq!(why(&bench), "it sleeps");
        bench.column.add(bench.full, 1);
        bench.at(3);
        assert_eq!(why(&bench), "it sleeps", "what was known stays");
    }

    #[test]
    fn a_level_is_a_condition_for_exactly_as_long_as_it_is_there() {
        let mut bench = Bench::new();
        bench.column.set(bench.paused, 2);
        bench.column.set(bench.files, 200);
        let lines = bench.at(1);
        assert!(lines.iter().any(|line| line.starts_with("ERROR listener \"web\": no more clients")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("may open few files: 200 [")), "{lines:?}");
        assert_eq!(bench.names(), ["max-connections", "files-few"], "the gravest first");
        bench.column.set(bench.paused, 0);
        let lines = bench.at(2);
        assert!(lines[0].starts_with("INFO listener \"web\": over after 1 s: no more clients"), "{lines:?}");
        assert_eq!(bench.names(), ["files-few"]);
    }

    #[test]
    fn a_server_that_is_down_when_it_is_passed_over_no_more_is_not_told_as_well() {
        let mut registry = Registry::new();
        let mut gauge =
            |name: &str, server: &str| registry.gauge(name, "Of a server.", &[("backend", "app"), ("server", server)]);
        let servers = ["one", "two"];
        let over = servers.map(|server| gauge("propylon_server_passed_over", server));
        let up = servers.map(|server| gauge("propylon_server_up", server));
        let store = registry.build(1);
        let column = Store::column(&store, 0);
        let mut conditions = conditions();
        let mut at = |second: u64| conditions.step(&store, Duration::from_secs(second), SystemTime::UNIX_EPOCH);
        (over.iter().chain(&up)).for_each(|gauge| column.set(*gauge, 1));
        assert_eq!(at(1).len(), 2);
        column.set(up[0], 0);
        assert!(at(2).is_empty());
        over.iter().for_each(|gauge| column.set(*gauge, 0));
        let texts: Vec<String> = at(3).into_iter().map(|line| line.text).collect();
        assert_eq!(
            texts,
            [
                "backend \"app\": server one: it is down; before, for 1 s: passed over [server-passed-over]",
                "backend \"app\": server two: over after 1 s: passed over [server-passed-over]",
            ]
        );
    }

    #[test]
    fn what_comes_and_goes_or_lasts_is_told_now_and_then_only() {
        let mut bench = Bench::new();
        let mut lines = 0;
        for second in 0..REPEAT_INTERVAL.as_secs() {
            bench.column.set(bench.paused, i64::from(second % 4 < 2));
            lines += bench.at(second).len();
        }
        assert_eq!(lines, 2, "one begin and one end");
        let mut bench = Bench::new();
        bench.column.set(bench.paused, 1);
        let lines: Vec<String> = (0..=REPEAT_INTERVAL.as_secs()).flat_map(|second| bench.at(second)).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].contains(", still [max-connections]"), "{lines:?}");
    }

    #[test]
    fn many_at_once_cannot_fill_the_log_nor_the_memory() {
        let mut registry = Registry::new();
        let gauges: Vec<Gauge> = (0..KEPT_MAX + 5)
            .map(|server| {
                let server = format!("10.0.0.1:{server}");
                let labels = [("backend", "app"), ("server", server.as_str())];
                registry.gauge("propylon_server_passed_over", "Passed over.", &labels)
            })
            .collect();
        let store = registry.build(1);
        let column = Store::column(&store, 0);
        gauges.iter().for_each(|gauge| column.set(*gauge, 1));
        let mut conditions = conditions();
        let lines = conditions.step(&store, Duration::ZERO, SystemTime::UNIX_EPOCH);
        assert_eq!(lines.len(), LINES_PER_MINUTE_MAX as usize);
        let json = conditions.to_json();
        assert_eq!(
            (json["total"].as_u64(), json["list"].as_array().map(Vec::len)),
            (Some(KEPT_MAX as u64 + 5), Some(SHOWN_MAX))
        );
        let lines = conditions.step(&store, Duration::from_secs(60), SystemTime::UNIX_EPOCH);
        assert!(lines[0].text.starts_with(&format!("{} more lines", KEPT_MAX - 60)), "{lines:?}");
    }

    #[test]
    fn a_table_that_has_a_name_twice_or_a_row_for_nothing_is_found_out() {
        assert_eq!(flaw(TABLE), None);
        let row = |name| rises(name, "propylon_x_total", Grade::Note, "x", "x");
        assert_eq!(flaw(&[row("a"), row("a")]).as_deref(), Some("a is there twice"));
        assert_eq!(flaw(&[row("a"), row("b").only("c", &["d"])]).as_deref(), Some("b is never reached"));
        assert_eq!(flaw(&[row("b").only("c", &["d"]), row("a")]), None);
    }
}
