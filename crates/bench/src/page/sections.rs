//! One section for each command that is among the results, in the order of a reader's questions.

use super::bars::{Bar, Bars, Group};
use super::html::{Cell, escape, note, shorten, table, warning};
use super::latency;
use super::measure::readable;
use super::result::{Result, errors_of, number};
use super::track::{Record, Track, pictures, tracks_of};
use crate::units::show_nanoseconds;
use serde_json::Value;

mod comparison;
mod offload;
mod plan;

/// Command, heading, and what its figures answer.
const KNOWN: [(&str, &str, &str); 11] = [
    (
        "offload",
        "Offload",
        "What the servers are spared: connections, requests and CPU time with and without the engine.",
    ),
    (
        "compare",
        "Comparison",
        "The same work through each program, one worker on one core; medians of the rounds, spread as whiskers.",
    ),
    (
        "search",
        "Scaling",
        "The highest rate that was sustained, by number of workers; both axes are logarithmic, so perfect scaling is a straight line.",
    ),
    ("sweep", "Ciphers, keys and groups", "The rate of handshakes by cipher suite, by number of workers."),
    ("handshakes", "New connections", "Connect, handshake, one request, close."),
    ("requests", "Requests", "On connections that are kept."),
    ("throughput", "Throughput", "Bulk data."),
    ("connections", "Connections", "Memory for each connection: the server's own, and the kernel's for sockets."),
    ("keyserver", "Key server", "Private-key operations."),
    ("plan", "Plan", "Sizing, with the arithmetic."),
    ("report", "Reports", "Pages like this one."),
];

pub fn render(results: &[Result]) -> String {
    let mut html = String::new();
    for (command, heading, about) in KNOWN {
        let own: Vec<&Result> = results.iter().filter(|result| result.command == command).collect();
        if own.is_empty() {
            continue;
        }
        html.push_str(&format!("<h2>{}</h2>\n", escape(heading)));
        html.push_str(&note(about));
        html.push_str(&match command {
            "compare" => own.iter().map(|result| comparison::render(result)).collect(),
            "offload" => own.iter().map(|result| offload::render(result)).collect(),
            "plan" => own.iter().map(|result| plan::render(result)).collect(),
            "connections" => connections(&own),
            _ => any(command, &own),
        });
    }
    let unknown = results.iter().filter(|result| KNOWN.iter().all(|(command, ..)| *command != result.command));
    for result in unknown {
        let heading = if result.command.is_empty() { &result.name } else { &result.command };
        html.push_str(&format!("<h2>{}</h2>\n", escape(&shorten(heading, 80))));
        html.push_str(&note("This page does not know the command; its values as they are:"));
        html.push_str(&any(&result.command, &[result]));
        // The rest is folded away further down; what fits on a screen is shown at once.
        const ROWS_SHOWN_MAX: usize = 40;
        let rows = all_fields(&result.value);
        if rows.len() <= ROWS_SHOWN_MAX {
            html.push_str(&table(&["field", "value"], &rows));
        } else {
            html.push_str(&note("All its values are at the end of the page."));
        }
    }
    html
}

fn figures(pictures: &str) -> String {
    if pictures.is_empty() { String::new() } else { format!("<div class=\"figures\">\n{pictures}</div>\n") }
}

fn told_errors(result: &Result) -> String {
    if result.errors == 0 {
        return String::new();
    }
    let first = shorten(result.first_error.as_deref().unwrap_or("unknown"), 200);
    warning(&format!("{}: {} errors; first: {first}", shorten(&result.name, 80), result.errors))
}

/// A rate that the load or shared cores held down must not be read as the server's.
fn lower_bounds(result: &Result) -> String {
    fn is_held_down(value: &Value) -> bool {
        match value {
            Value::Object(fields) => fields.iter().any(|(name, field)| {
                matches!(name.as_str(), "is_lower_bound" | "shares_cores") && *field == true || is_held_down(field)
            }),
            Value::Array(items) => items.iter().any(is_held_down),
            _ => false,
        }
    }
    if !is_held_down(&result.value) {
        return String::new();
    }
    warning(&format!(
        "{}: some rates are lower bounds, since the load was full or shared cores with the server; \
         do not read scaling from them. CPU time for each still holds.",
        shorten(&result.name, 80)
    ))
}

/// Searches that found nothing say why.
fn given_up(result: &Result) -> String {
    let cases = result.value["cases"].as_array().into_iter().flatten();
    let told = cases.filter_map(|case| {
        let why = case["gave_up"].as_str()?;
        let key = case["key"].as_str().unwrap_or("?");
        let workers = case["workers"].as_u64().map(|count| format!(", workers: {count}")).unwrap_or_default();
        Some(warning(&shorten(&format!("{}, {key}{workers}: {why}", result.name), 300)))
    });
    told.collect()
}

/// Summaries side by side, then whatever lists there are.
fn any(command: &str, results: &[&Result]) -> String {
    let mut html: String =
        results.iter().map(|result| told_errors(result) + &given_up(result) + &lower_bounds(result)).collect();
    let summaries: Vec<&Result> = results.iter().copied().filter(|result| result.value["done"].is_number()).collect();
    let mut drawn = String::new();
    if !summaries.is_empty() {
        html.push_str(&summary_table(&summaries));
        drawn.push_str(&summary_bars(&summaries));
    }
    drawn.push_str(&latency::pictures(results));
    if results.len() == 1 || command.is_empty() {
        results.iter().for_each(|result| drawn.push_str(&pictures(&tracks_of(&result.value), command)));
        html.push_str(&figures(&drawn));
        results.iter().for_each(|result| html.push_str(&lists(result)));
        return html;
    }
    html.push_str(&figures(&drawn));
    for result in results {
        let own = pictures(&tracks_of(&result.value), command);
        let lists = lists(result);
        if !own.is_empty() || !lists.is_empty() {
            html.push_str(&format!("<h3>{}</h3>\n", escape(&shorten(&result.name, 80))));
            html.push_str(&figures(&own));
            html.push_str(&lists);
        }
    }
    html
}

/// The lists' numbers, for those who do not trust a picture: one table for all lists with the same path.
fn lists(result: &Result) -> String {
    const LISTS_MAX: usize = 12;
    let tracks = tracks_of(&result.value);
    let mut paths: Vec<&str> = Vec::new();
    tracks.iter().for_each(|track| {
        if !paths.contains(&track.path.as_str()) {
            paths.push(&track.path)
        }
    });
    paths.sort_unstable();
    let list = |path: &&str| {
        let own: Vec<&Track> = tracks.iter().filter(|track| track.path == **path).collect();
        list(path, &own)
    };
    paths.iter().take(LISTS_MAX).map(list).collect()
}

fn list(path: &str, tracks: &[&Track]) -> String {
    const COLUMNS_MAX: usize = 14;
    let (mut words, mut numbers): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for record in tracks.iter().flat_map(|track| &track.records) {
        let fresh = record.words.iter().map(|(name, _)| name.as_str()).filter(|name| !words.contains(name));
        let fresh: Vec<&str> = fresh.take(COLUMNS_MAX).collect();
        words.extend(fresh);
        let fresh = record.numbers.iter().map(|(name, _)| name.as_str()).filter(|name| !numbers.contains(name));
        let fresh: Vec<&str> = fresh.take(COLUMNS_MAX).collect();
        numbers.extend(fresh);
        // Records without a field in common are no table; further columns would not be shown.
        if words.len() + numbers.len() > 4 * COLUMNS_MAX {
            break;
        }
    }
    words.truncate(4);
    numbers.truncate(COLUMNS_MAX);
    if words.is_empty() && numbers.is_empty() {
        return String::new();
    }
    let has_labels = tracks.iter().any(|track| !track.label.is_empty());
    let head = has_labels.then(|| "of".to_owned()).into_iter();
    let head = head.chain(words.iter().chain(&numbers).map(|name| readable(name))).chain(["errors".to_owned()]);
    let head: Vec<String> = head.collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let row = |track: &Track, record: &Record| {
        let word = |name: &&str| {
            let found = record.words.iter().find(|(own, _)| own == name);
            found.map_or(Cell::Empty, |(_, text)| Cell::text(text.clone()))
        };
        let mut cells: Vec<Cell> = Vec::new();
        cells.extend(has_labels.then(|| Cell::text(track.label.clone())));
        cells.extend(words.iter().map(word));
        cells.extend(numbers.iter().map(|name| Cell::number(record.number(name))));
        cells.push(Cell::errors(record.errors));
        cells
    };
    let records = tracks.iter().flat_map(|track| track.records.iter().map(move |record| (*track, record)));
    // Rows that the table does not show are not made; one more tells it that there is more.
    let records = records.take(super::html::TABLE_ROWS_MAX + 1);
    let rows: Vec<Vec<Cell>> = records.map(|(track, record)| row(track, record)).collect();
    super::html::details(&shorten(&format!("Table: {}", readable(path)), 120), &table(&head, &rows))
}

/// CPU for each answer: `server_cpu.nanoseconds_per_request`, `..._per_operation` and the like.
fn cpu_each(value: &Value) -> Option<f64> {
    let fields = value["server_cpu"].as_object()?;
    fields.iter().find(|(name, _)| name.starts_with("nanoseconds_per_") || *name == "nanoseconds_each")?.1.as_f64()
}

fn summary_table(results: &[&Result]) -> String {
    let head = [
        "result",
        "done",
        "per second",
        "MB/s",
        "CPU each",
        "CPU s/GB",
        "cores",
        "p50",
        "p99",
        "p99.9",
        "max",
        "load",
        "errors",
    ];
    let time = |value: Option<f64>| {
        value.filter(|value| *value > 0.0).map_or(Cell::Empty, |value| Cell::Number(show_nanoseconds(value)))
    };
    let row = |result: &&Result| {
        let value = &result.value;
        let body_bytes = number(value, &["body_bytes"]).unwrap_or(0.0);
        let seconds = number(value, &["elapsed_seconds"]).filter(|seconds| *seconds > 0.0);
        let is_bulk = body_bytes >= 1e8;
        let load = number(value, &["load_busy"]).map_or(Cell::Empty, |busy| {
            let text = format!("{:.0} %", busy * 100.0);
            if busy > crate::handshakes::LOAD_SATURATED { Cell::Bad(text) } else { Cell::Number(text) }
        });
        vec![
            Cell::text(shorten(&result.name, 60)),
            Cell::number(number(value, &["done"])),
            Cell::number(number(value, &["per_second"])),
            Cell::number(seconds.map(|seconds| body_bytes / 1e6 / seconds)),
            time(cpu_each(value)),
            Cell::number(number(value, &["server_cpu", "seconds_per_gigabyte"]).filter(|_| is_bulk)),
            Cell::number(number(value, &["server_cpu", "cores"])),
            time(number(value, &["latency", "p50"])),
            time(number(value, &["latency", "p99"])),
            time(number(value, &["latency", "p99_9"])),
            time(number(value, &["latency", "max"])),
            load,
            Cell::errors(errors_of(value)),
        ]
    };
    let rows: Vec<Vec<Cell>> = results.iter().map(row).collect();
    let mut html = table(&head, &rows);
    let is_full = |result: &&Result| {
        number(&result.value, &["load_busy"]).is_some_and(|busy| busy > crate::handshakes::LOAD_SATURATED)
    };
    if results.iter().any(is_full) {
        html.push_str(&note("⚠ in \"load\": the load filled its core, so the rate is its own; the server could do more. CPU for each still holds."));
    }
    html
}

fn summary_bars(results: &[&Result]) -> String {
    let bars = |title: &str, label: &str, of: &dyn Fn(&Value) -> Option<f64>| {
        let group = |result: &&Result| {
            let bar = of(&result.value).map(|value| Bar { value, spread: None, errors: errors_of(&result.value) });
            Group { name: result.name.clone(), bars: vec![bar] }
        };
        let groups: Vec<Group> = results.iter().map(group).filter(|group| group.bars[0].is_some()).collect();
        Bars {
            title: title.to_owned(),
            note: None,
            label: label.to_owned(),
            series: Vec::new(),
            groups,
            reference: None,
            decimals: None,
        }
        .render()
    };
    if results.len() < 2 {
        return String::new();
    }
    let mut html = bars("Rate", "per second", &|value| number(value, &["per_second"]));
    html.push_str(&bars("Server CPU for each", "CPU µs", &|value| Some(cpu_each(value)? / 1e3)));
    html
}

/// One result, or one mode of it: memory of the server and of the kernel for each connection.
struct Weight {
    name: String,
    open: Option<f64>,
    rss_kib: Option<f64>,
    sockets_kib: Option<f64>,
    buffers_kib: Option<f64>,
    per_second: Option<f64>,
    errors: u64,
}

fn weights_of(result: &Result) -> Vec<Weight> {
    let value = &result.value;
    if let Some(modes) = value["modes"].as_array() {
        let weight = |mode: &Value| Weight {
            name: format!("{} · {}", result.name, mode["mode"].as_str().unwrap_or("?")),
            open: number(mode, &["open"]),
            rss_kib: number(mode, &["server", "rss_kib"]),
            sockets_kib: number(mode, &["kernel", "sockets"]),
            buffers_kib: number(mode, &["kernel", "buffers"]),
            per_second: number(mode, &["per_second"]),
            errors: errors_of(&mode["opening"]).saturating_add(errors_of(&mode["holding"])),
        };
        return modes.iter().map(weight).collect();
    }
    vec![Weight {
        name: result.name.clone(),
        open: number(value, &["connections"]),
        // Without a process to look at, the growth is zero.
        rss_kib: number(value, &["growth", "rss"]).filter(|rss| *rss != 0.0),
        sockets_kib: number(value, &["growth", "kernel"]),
        buffers_kib: None,
        per_second: number(value, &["per_second"]),
        errors: errors_of(value),
    }]
}

fn connections(results: &[&Result]) -> String {
    let mut html: String = results.iter().map(|result| told_errors(result)).collect();
    let weights: Vec<Weight> = results.iter().flat_map(|result| weights_of(result)).collect();
    let row = |weight: &Weight| {
        vec![
            Cell::text(shorten(&weight.name, 80)),
            Cell::number(weight.open),
            Cell::number(weight.rss_kib),
            Cell::number(weight.sockets_kib),
            Cell::number(weight.buffers_kib),
            Cell::number(weight.per_second),
            Cell::errors(weight.errors),
        ]
    };
    let rows: Vec<Vec<Cell>> = weights.iter().map(row).collect();
    let head =
        ["result", "open", "server, KiB RSS", "kernel, KiB", "kernel buffers, KiB", "opened per second", "errors"];
    html.push_str(&table(&head, &rows));
    let group = |weight: &Weight| {
        let bar = |value: Option<f64>| value.map(|value| Bar { value, spread: None, errors: weight.errors });
        Group {
            name: weight.name.clone(),
            bars: vec![bar(weight.rss_kib), bar(weight.sockets_kib), bar(weight.buffers_kib)],
        }
    };
    let has_buffers = weights.iter().any(|weight| weight.buffers_kib.is_some());
    let mut series = vec!["server, RSS".to_owned(), "kernel, sockets of both ends".to_owned()];
    series.extend(has_buffers.then(|| "kernel, buffers".to_owned()));
    let below_zero = |value: Option<f64>| value.is_some_and(|value| value < 0.0);
    let is_negative = weights.iter().any(|weight| below_zero(weight.sockets_kib) || below_zero(weight.buffers_kib));
    let bars = Bars {
        title: "Memory for each connection".to_owned(),
        note: is_negative.then(|| {
            "Below zero: the kernel gave back other memory meanwhile; more connections make this smaller.".to_owned()
        }),
        label: "KiB".to_owned(),
        series,
        groups: weights.iter().map(group).collect(),
        reference: None,
        decimals: None,
    };
    let mut drawn = bars.render();
    for result in results {
        let tracks: Vec<_> = tracks_of(&result.value).into_iter().filter(|track| track.path != "modes").collect();
        drawn.push_str(&pictures(&tracks, "connections"));
    }
    html.push_str(&figures(&drawn));
    html
}

/// Every leaf of a result with its path, in the order of the file.
pub fn all_fields(value: &Value) -> Vec<Vec<Cell>> {
    const FIELDS_MAX: usize = 2000;
    let mut rows = Vec::new();
    walk(value, String::new(), &mut rows, FIELDS_MAX);
    rows
}

fn walk(value: &Value, path: String, rows: &mut Vec<Vec<Cell>>, most: usize) {
    if rows.len() >= most {
        return;
    }
    let cell = match value {
        Value::Object(fields) => {
            let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            return fields.iter().for_each(|(name, field)| walk(field, shorten(&join(name), 200), rows, most));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            return items.for_each(|(index, item)| walk(item, format!("{path}[{index}]"), rows, most));
        }
        Value::Number(number) => Cell::number(number.as_f64()),
        Value::String(text) => Cell::text(shorten(text, 2000)),
        Value::Bool(is) => Cell::text(if *is { "yes" } else { "no" }),
        Value::Null => Cell::Empty,
    };
    rows.push(vec![Cell::Text(path), cell]);
}
