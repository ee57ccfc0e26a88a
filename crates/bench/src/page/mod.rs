//! `report`: results of any of these commands as one page with figures, to be read offline, on any screen.
//!
//! `result` is a file as the type that its command has for it, `sections` knows the commands' figures, `chart` draws
//! typed records by `plot` and `bars`, `html` holds text and tables and lets nothing through unescaped.

mod axis;
mod bars;
mod chart;
mod html;
mod latency;
mod plot;
mod result;
mod sections;

use crate::failure::{Failure, Outcome, While};
use crate::provenance::Provenance;
use crate::report::progress;
use crate::results::Measurement;
use html::{Cell, details, escape, frame, table, warning};
use result::{Body, Result};
use std::path::PathBuf;

/// Results on one page.
const RESULTS_MAX: usize = 200;

/// One page with figures from JSON results: inline SVG, no script, no network
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench compare --json compare.json && propylon-bench report compare.json --out report.html\n  \
    propylon-bench report results/*.json --out report.html --title \"Propylon, release 0.1\"\n\n\
    Takes what --json of any command of this build wrote. Commands that measure nothing are shown as a table.")]
pub struct Arguments {
    /// Results
    #[arg(required = true, value_name = "RESULT.json")]
    pub results: Vec<PathBuf>,
    /// Page to write
    #[arg(long, value_name = "FILE.html")]
    pub out: PathBuf,
    /// Heading of the page
    #[arg(long, default_value = "Propylon: measurements")]
    pub title: String,
    /// Write what was read as JSON: name, command and errors of each result ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(serde::Serialize)]
struct PageSummary {
    page: PathBuf,
    page_bytes: usize,
    results: Vec<ResultSummary>,
}

#[derive(serde::Serialize)]
struct ResultSummary {
    name: String,
    of_command: String,
    error_count: u64,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    if arguments.results.len() > RESULTS_MAX {
        return Err(Failure::new(format!("{} results; a page takes {RESULTS_MAX}", arguments.results.len())));
    }
    let is_out =
        |path: &PathBuf| path.canonicalize().ok().is_some_and(|path| arguments.out.canonicalize().ok() == Some(path));
    if let Some(path) = arguments.results.iter().find(|path| is_out(path)) {
        return Err(Failure::new(format!("--out {} is one of the results; it would be overwritten", path.display())));
    }
    let mut results = Vec::new();
    for path in &arguments.results {
        let result = Result::read(path)?;
        progress(format_args!("{}: {}", path.display(), describe(&result)));
        results.push(result);
    }
    let page = render(&arguments.title, &results);
    std::fs::write(&arguments.out, &page).when(format_args!("writing {}", arguments.out.display()))?;
    progress(format_args!("{}: {} KiB", arguments.out.display(), page.len().div_ceil(1024)));
    let results = results.iter().map(|result| ResultSummary {
        name: result.name().to_owned(),
        of_command: result.command().to_owned(),
        error_count: result.errors,
    });
    let summary = PageSummary { page: arguments.out.clone(), page_bytes: page.len(), results: results.collect() };
    crate::report::save_result(arguments.json.as_deref(), "report", &summary)
}

fn describe(result: &Result) -> String {
    let command = if result.command().is_empty() { "unknown command, shown as a table" } else { result.command() };
    let errors = if result.errors > 0 { format!(", {} errors", result.errors) } else { String::new() };
    format!("{command}{errors}")
}

fn render(title: &str, results: &[Result]) -> String {
    let mut body = header(results);
    body.push_str(&sections::render(results));
    body.push_str(&repeat(results));
    frame(title, &body)
}

/// The header: the results on the page, the machines they are from, and what went wrong.
fn header(results: &[Result]) -> String {
    let mut html = String::new();
    let machines = distinct(results.iter().filter_map(machine_of));
    match machines.as_slice() {
        [] => html.push_str(&html::note("The results do not say on which machine they were measured.")),
        machines => machines.iter().for_each(|machine| html.push_str(&format!("<p>{}</p>\n", escape(machine)))),
    }
    if machines.len() > 1 {
        html.push_str(&warning("Results of different machines: rates and times compare only within one of them."));
    }
    let failed: Vec<&str> = results.iter().filter(|result| result.errors > 0).map(Result::name).collect();
    if !failed.is_empty() {
        let names = html::shorten(&failed.join(", "), 300);
        html.push_str(&warning(&format!("{} of {} results contain errors: {names}", failed.len(), results.len())));
    }
    if results.iter().filter_map(provenance).any(|provenance| provenance.build == "debug") {
        html.push_str(&warning(
            "Some results come from a debug build of the bench: rates are its own, not the server's.",
        ));
    }
    let row = |result: &Result| {
        vec![
            Cell::text(html::shorten(result.name(), 80)),
            Cell::text(if result.command().is_empty() { "unknown" } else { result.command() }),
            provenance(result).map_or(Cell::Empty, |provenance| Cell::Number(moment(&provenance.finished))),
            Cell::errors(result.errors),
            Cell::text(html::shorten(result.first_error.as_deref().unwrap_or_default(), 160)),
        ]
    };
    let rows: Vec<Vec<Cell>> = results.iter().map(row).collect();
    html.push_str(&table(&["result", "command", "finished (UTC)", "errors", "first error"], &rows));
    html
}

/// To the minute, without the letters of RFC 3339.
fn moment(when: &str) -> String {
    let minute: String = when.chars().take(16).collect();
    minute.replace('T', "\u{a0}")
}

fn provenance(result: &Result) -> Option<&Provenance> {
    result.file.provenance.as_ref()
}

fn machine_of(result: &Result) -> Option<String> {
    let Provenance { cpu, cores, memory_kib, kernel, version, .. } = provenance(result)?;
    let memory = *memory_kib as f64 / 1_048_576.0;
    Some(format!("{cpu}, {cores} cores, {memory:.0} GiB, {kernel}; propylon-bench {version}"))
}

fn distinct(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

/// The command lines, to be typed again; versions of who was measured; and every value there is.
fn repeat(results: &[Result]) -> String {
    let mut html = "<h2>To repeat this</h2>\n".to_owned();
    let commands: Vec<String> = results
        .iter()
        .map(|result| {
            let command = result.command_line();
            let name = html::shorten(result.name(), 80);
            command
                .map_or_else(|| format!("# {name}: does not say how it was made"), |line| format!("# {name}\n{line}"))
        })
        .collect();
    html.push_str(&format!("<pre>{}</pre>\n", escape(&commands.join("\n"))));
    let programs = results.iter().flat_map(|result| match &result.body {
        Body::Measured(Measurement::Compare(verdict)) => verdict.programs.as_slice(),
        _ => &[],
    });
    let versions = distinct(programs.map(|program| format!("{}: {}", program.name, program.version)));
    if !versions.is_empty() {
        html.push_str(&format!("<pre>{}</pre>\n", escape(&versions.join("\n"))));
    }
    for result in results {
        let rows = sections::shared::all_fields(&result.file.value);
        let name = format!("Every value of {}", html::shorten(result.name(), 80));
        html.push_str(&details(&name, &table(&["field", "value"], &rows)));
    }
    html
}

/// The page of one result.
#[cfg(test)]
fn render_value(value: serde_json::Value) -> String {
    let file = crate::results::ResultFile::new("r".to_owned(), value).unwrap();
    render("t", &[Result::new(file).unwrap()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{comparison, connections, load, throughput, with};
    use serde_json::json;

    #[test]
    fn a_page_holds_nothing_that_runs_or_is_fetched() {
        let nasty = "\"><script>alert(1)</script><img src=x onerror=y>";
        let provenance = json!({"cpu": nasty, "command_line": [nasty], "version": nasty, "build": nasty, "kernel": nasty,
            "finished": nasty, "cores": 1, "memory_kib": 1});
        let values = [
            json!({"command": nasty, nasty: nasty}),
            load("handshakes", json!({"target": nasty, "first_error": nasty, "errors": {nasty: 2}}), 1.0, 1.0),
            comparison(&[(nasty, "CPU µs", nasty, 1.0, 3)]),
            connections(&[("tls", 1.0, -1.0)]),
            throughput(true, 1.0),
        ];
        for value in values {
            let page = render_value(with(&value, json!({"provenance": provenance})));
            for part in ["<script", "<img", "http:", "https:", "url(", "@import", "<link", "onerror=y>"] {
                assert!(!page.contains(part), "{}: {part}", value["command"]);
            }
            assert!(page.contains("&lt;script"), "{}", value["command"]);
        }
    }

    #[test]
    fn an_unknown_result_becomes_a_table() {
        let page = render_value(json!({"command": "tomorrow", "speed": 12.5, "list": [1, 2]}));
        assert!(page.contains("<h2>tomorrow</h2>") && page.contains("speed") && page.contains("12.5"));
    }

    #[test]
    fn loads_are_drawn_side_by_side() {
        let of = |rate: f64| {
            let value = load("requests", json!({"per_second": rate, "done": 1000}), 1e5, 1.0);
            Result::new(crate::results::ResultFile::new(format!("at {rate}"), value).unwrap()).unwrap()
        };
        let page = render("t", &[of(1000.0), of(2000.0)]);
        for part in [">Rate<", ">Server CPU for each<", ">Latency by percentile<", "at 2000"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
