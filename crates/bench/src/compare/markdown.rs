//! The medians as a table in Markdown: a column per program, Propylon's last, and what a reader must know to trust it.

use super::peers::Peer;
use super::rows::Unit;
use super::verdict::{Cell, ProgramSummary, Verdict};
use crate::failure::{Outcome, While};
use crate::units::show_number;
use std::io::Write;
use std::path::Path;

/// `--markdown FILE`; `-` is stdout.
pub fn save(path: Option<&Path>, verdict: &Verdict) -> Outcome<()> {
    let Some(path) = path else { return Ok(()) };
    let text = render(verdict, &machine());
    if path == Path::new("-") {
        let _ = std::io::stdout().write_all(text.as_bytes());
        return Ok(());
    }
    std::fs::write(path, text).when(format_args!("writing {}", path.display()))
}

fn render(verdict: &Verdict, machine: &str) -> String {
    // The peers in their order, then Propylon.
    let is_own = |name: &str| name == Peer::Propylon.name();
    let order: Vec<&ProgramSummary> = {
        let (own, peers): (Vec<_>, Vec<_>) = verdict.programs.iter().partition(|program| is_own(&program.name));
        peers.into_iter().chain(own).collect()
    };
    let mut text = format!(
        "Measured on one machine ({machine}) with the proxy's single worker on one core, load and origin on another; \
         the figure is\nthe proxy's CPU time (user + system) per unit of work. Medians of {} rounds of {} s, the \
         programs taking turns and only one of\nthem alive at a time; in parentheses the lowest and the highest.\n\n",
        verdict.rounds,
        show_number(verdict.duration_seconds)
    );
    let titles = order.iter().map(|program| match is_own(&program.name) {
        true => format!("**{}**", program.title),
        false => program.title.clone(),
    });
    let with_ratio = order.len() > 1 && order.iter().any(|program| is_own(&program.name));
    let ratio_title = with_ratio.then(|| "to the best peer".to_owned());
    let head: Vec<String> = ["unit".to_owned()].into_iter().chain(titles).chain(ratio_title).collect();
    text.push_str(&line(&head));
    text.push_str(&format!("|{}\n", "---|".repeat(head.len())));
    for row in &verdict.rows {
        // The table is about CPU time anyway, so the unit of time goes without the word CPU.
        let unit = if row.unit == Unit::Microseconds { "µs" } else { row.unit.name() };
        let mut cells = vec![format!("{} ({unit})", row.title)];
        let of = |name: &str| row.cells.iter().find(|cell| cell.program == name);
        for program in &order {
            let cell = of(&program.name).map_or("–".to_owned(), show);
            cells.push(if is_own(&program.name) { format!("**{cell}**") } else { cell });
        }
        if with_ratio {
            let ratio = of(Peer::Propylon.name()).and_then(|cell| cell.ratio_to_best_peer);
            cells.push(ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}×")));
        }
        text.push_str(&line(&cells));
    }
    text.push_str(&notes(verdict));
    text
}

fn notes(verdict: &Verdict) -> String {
    let mut text = String::from("\n");
    for row in &verdict.rows {
        for cell in &row.cells {
            if let Some(why) = &cell.unsupported {
                text.push_str(&format!("- {}, {}: not supported: {why}\n", row.title, cell.program));
            } else if cell.errors > 0 {
                let first = cell.first_error.as_deref().unwrap_or_default();
                text.push_str(&format!(
                    "- ! {}, {}: {} errors, first: {first}\n",
                    row.title, cell.program, cell.errors
                ));
            } else if cell.thin {
                text.push_str(&format!("- ~ {}, {}: too few units in a sample\n", row.title, cell.program));
            }
        }
    }
    if !verdict.other_proxies.is_empty() {
        let other_proxies: Vec<&str> = verdict.other_proxies.iter().map(String::as_str).collect();
        text.push_str(&format!("- other proxies ran on the machine meanwhile: {}\n", other_proxies.join(", ")));
    }
    text
}

fn show(cell: &Cell) -> String {
    let mark = cell.mark();
    let mark = if mark.is_empty() { String::new() } else { format!(" {mark}") };
    match (cell.median, cell.minimum, cell.maximum) {
        (Some(median), Some(minimum), Some(maximum)) => {
            format!("{}{mark} ({}–{})", show_number(median), show_number(minimum), show_number(maximum))
        }
        _ => format!("–{mark}"),
    }
}

/// A pipe in a cell would be taken for its end.
fn line(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Cores, processor and kernel.
fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count().max(cores);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {}, Linux {}", model.unwrap_or("processor unknown").trim(), kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::super::verdict::RowSummary;
    use super::super::verdict::tests::cell;
    use super::*;

    #[test]
    fn a_table_has_the_peers_first_and_says_what_is_missing() {
        let program = |peer: Peer, title: &str| ProgramSummary {
            name: peer.name().into(),
            version: String::new(),
            tls_library: None,
            path: "x".into(),
            title: title.to_owned(),
        };
        let unsupported = Cell { unsupported: Some("not | yet".to_owned()), ..cell(Peer::Propylon, &[], 0) };
        let verdict = Verdict {
            interrupted: false,
            programs: vec![program(Peer::Propylon, "propylon 1"), program(Peer::Haproxy, "HAProxy 2, OpenSSL 3")],
            rows: vec![
                RowSummary {
                    row: "ec13".to_owned(),
                    title: "TLS 1.3 full".into(),
                    unit: Unit::Microseconds,
                    cells: vec![
                        Cell {
                            ratio_to_best_peer: Some(0.5),
                            thin: false,
                            ..cell(Peer::Propylon, &[70.0, 60.0, 80.0], 0)
                        },
                        cell(Peer::Haproxy, &[140.0], 2),
                    ],
                },
                RowSummary {
                    row: "tcp-bulk".to_owned(),
                    title: "TCP relay, bulk".into(),
                    unit: Unit::SecondsPerGigabyte,
                    cells: vec![unsupported, cell(Peer::Haproxy, &[0.2], 0)],
                },
            ],
            rounds: 3,
            duration_seconds: 2.0,
            other_proxies: Default::default(),
        };
        let text = render(&verdict, "a machine");
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with(['|', '-'])).collect();
        assert_eq!(
            table,
            [
                "| unit | HAProxy 2, OpenSSL 3 | **propylon 1** | to the best peer |",
                "|---|---|---|---|",
                "| TLS 1.3 full (µs) | 140 ! (140–140) | **70.0 (60.0–80.0)** | 0.50× |",
                "| TCP relay, bulk (CPU s/GB) | 0.200 ~ (0.200–0.200) | **–** | – |",
                "- ! TLS 1.3 full, haproxy: 2 errors, first: ",
                "- TCP relay, bulk, propylon: not supported: not | yet",
                "- ~ TCP relay, bulk, haproxy: too few units in a sample",
            ]
        );
    }
}
