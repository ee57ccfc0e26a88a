//! One section for each command that is among the results, in the order of a reader's questions.

use super::html::{escape, note, shorten, table, warning};
use super::result::{Body, Result};
use crate::results::Measurement;

mod comparison;
mod connections;
mod fleet;
mod keyserver;
mod loads;
mod offload;
mod plan;
mod search;
pub mod shared;
mod sweep;

/// Command, heading, and what its figures answer.
const SECTIONS: [(&str, &str, &str); 13] = [
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
    ("fleet", "Fleet", "Several engines that share an address, and the connections of a server."),
    ("keyserver", "Key server", "Private-key operations."),
    ("keyserver-background", "Key server, with a background load", "Waits for one operation, alone and with another."),
    ("plan", "Plan", "Sizing, with the arithmetic."),
    ("report", "Reports", "Pages like this one."),
];

pub fn render(results: &[Result]) -> String {
    let mut html = String::new();
    for (command, heading, about) in SECTIONS {
        let own: Vec<&Result> = results.iter().filter(|result| result.command() == command).collect();
        if own.is_empty() {
            continue;
        }
        html.push_str(&format!("<h2>{}</h2>\n", escape(heading)));
        html.push_str(&note(about));
        own.iter().for_each(|result| html.push_str(&errors(result)));
        html.push_str(&loads::render(&own));
        html.push_str(&connections::render(&own));
        own.iter().for_each(|result| html.push_str(&one(result)));
    }
    let unknown = results.iter().filter(|result| SECTIONS.iter().all(|(command, ..)| *command != result.command()));
    for result in unknown {
        let heading = if result.command().is_empty() { result.name() } else { result.command() };
        html.push_str(&format!("<h2>{}</h2>\n", escape(&shorten(heading, 80))));
        html.push_str(&note("This page does not know the command; its values as they are:"));
        html.push_str(&values(result));
    }
    html
}

/// Figures of one result alone; loads and connections are drawn side by side.
fn one(result: &Result) -> String {
    let heading = format!("<h3>{}</h3>\n", escape(&shorten(result.name(), 80)));
    let figures = match &result.body {
        Body::Measured(Measurement::Compare(verdict)) => comparison::render(verdict),
        Body::Measured(Measurement::Offload(verdict)) => offload::render(verdict),
        Body::Measured(Measurement::Search(verdict)) => search::render(result.name(), verdict),
        Body::Measured(Measurement::Sweep(sweep)) => sweep::render(result.name(), sweep),
        Body::Measured(Measurement::Fleet(report)) => fleet::render(result.name(), report),
        Body::Measured(Measurement::KeyserverBackground(report)) => keyserver::render(report),
        Body::Measured(
            Measurement::Load(_) | Measurement::Throughput(_) | Measurement::Keyserver(_) | Measurement::Connections(_),
        ) => return String::new(),
        Body::Plan(plan) => plan::render(plan),
        Body::Other => values(result),
    };
    heading + &figures
}

fn errors(result: &Result) -> String {
    if result.errors == 0 {
        return String::new();
    }
    let first = shorten(result.first_error.as_deref().unwrap_or("unknown"), 200);
    warning(&format!("{}: {} errors; first: {first}", shorten(result.name(), 80), result.errors))
}

/// All values, if they fit on a screen.
fn values(result: &Result) -> String {
    const ROWS_SHOWN_MAX: usize = 40;
    let rows = shared::all_fields(&result.file.value);
    if rows.len() <= ROWS_SHOWN_MAX {
        return table(&["field", "value"], &rows);
    }
    note("All its values are at the end of the page.")
}
