//! The sweep as tables: what was measured, and what was refused.

use super::arguments::Arguments;
use super::cells::{Cell, Row, Samples};
use super::refused::Verdict;
use crate::compare::peers::Peer;
use crate::failure::{Failure, Outcome};
use crate::pressure::{Shortage, count};
use crate::quantity::Label;
use crate::report::Table;
use crate::testbed::Testbed;
use crate::units::show_number;
use serde::{Deserialize, Serialize};

/// Transactions of a cell below which its CPU time each is marked.
const FEW: u64 = 500;

#[derive(Serialize, Deserialize)]
pub struct Sweep {
    pub server: String,
    duration_seconds: f64,
    rounds: u32,
    in_flight_per_load_thread: usize,
    pub rows: Vec<Row>,
    refused: Vec<Verdict>,
    /// Whose doing a refusal is; absent for an endpoint, where it cannot be known.
    refused_by: Option<Label>,
    /// Why the suites of older tables could not be asked for.
    refused_failure: Option<String>,
}

impl Sweep {
    pub fn new(arguments: &Arguments, testbed: &Testbed, rows: Vec<Row>, refused: Outcome<Vec<Verdict>>) -> Self {
        let (refused, refused_failure) = match refused {
            Ok(verdicts) => (verdicts, None),
            Err(failure) => (Vec::new(), Some(failure.to_string())),
        };
        Self {
            server: testbed.server_name(),
            duration_seconds: arguments.duration.as_secs_f64(),
            rounds: arguments.rounds,
            in_flight_per_load_thread: arguments.in_flight,
            rows,
            refused,
            refused_by: testbed.program().map(|peer| {
                Label::from(match peer {
                    Peer::Propylon => {
                        "its TLS library, rustls, which has none of these; no configuration brings them back"
                    }
                    // Their library may still have them; our configuration for them lists the modern suites only.
                    _ => "the configuration made for this run; its TLS library may be able to do some of them",
                })
            }),
            refused_failure,
        }
    }

    pub fn print(&self) {
        println!("{}", self.server);
        println!("new connections, each with one request; transactions per second and CPU µs of the server each\n");
        self.measured().print();
        println!();
        for (row, cell) in self.cells().filter(|(_, cell)| cell.errors() > 0) {
            let first = cell.first_error().unwrap_or_default();
            println!("!  {} {}: {} errors; first: {first}", row.suite, row.key, cell.errors());
        }
        if self.cells().any(|(_, cell)| cell.is_doubtful()) {
            println!("≥  the server was not full, or shared cores with the load: it may do more per second than this.");
            println!("   CPU µs each are the server's own in any case.");
            for shortage in [Shortage::LoadCpu, Shortage::OtherPrograms, Shortage::Ports, Shortage::AcceptQueue] {
                let cells = self.cells().filter(|(_, cell)| cell.full.shortages.contains(&shortage)).count();
                if cells > 0 {
                    println!("   in {} the limit was or may have been: {}", count(cells, "cell"), shortage.name());
                }
            }
        }
        if self.cells().any(|(_, cell)| cell.is_coarse()) {
            println!("~  fewer than {FEW} transactions: start-up and other programs weigh on the CPU µs each.");
        }
        if !self.refused.is_empty() {
            println!("\nsuites of older tables, each offered alone\n");
            self.refused().print();
            if let Some(whose) = &self.refused_by {
                println!("\nrefused by {whose}");
            }
        }
        if let Some(failure) = &self.refused_failure {
            println!("suites of older tables: not asked, {failure}");
        }
    }

    fn cells(&self) -> impl Iterator<Item = (&Row, &Cell)> {
        self.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)))
    }

    fn measured(&self) -> Table {
        let mut head = vec!["suite".to_owned(), "TLS".to_owned(), "key".to_owned()];
        for cell in self.rows.first().map_or(&[][..], |row| &row.cells) {
            let workers = cell.workers.map_or(String::new(), |workers| format!(" x{workers}"));
            head.extend([format!("per s{workers}"), "µs".to_owned()]);
            if cell.resumed.is_some() {
                head.extend([format!("resumed/s{workers}"), "µs".to_owned()]);
            }
        }
        let mut table = Table::with_head(head).with_words(3);
        for row in &self.rows {
            let mut cells = vec![row.suite.to_string(), row.version.to_string(), row.key.clone()];
            for cell in &row.cells {
                cells.extend(cell.full.show(cell.shares_cores));
                cells.extend(cell.resumed.iter().flat_map(|samples| samples.show(cell.shares_cores)));
            }
            table.row(cells);
        }
        table
    }

    fn refused(&self) -> Table {
        let mut table =
            Table::with_head(["suite", "verdict", "openssl", "why refused", "instead", "per s"]).with_words(5);
        for verdict in &self.refused {
            let shown = if verdict.refused { "refused" } else { "ACCEPTED" };
            let said = verdict.said.split(',').next().unwrap_or_default();
            table.row([
                verdict.suite.to_string(),
                format!("{shown} ({said})"),
                verdict.openssl.map_or("not installed", |openssl| openssl.name()).to_owned(),
                verdict.why.to_string(),
                verdict.instead.to_string(),
                self.rate_of(&verdict.instead),
            ]);
        }
        table
    }

    /// The rate with the first key and number of workers that it was measured with.
    fn rate_of(&self, suite: &str) -> String {
        let cell = self.rows.iter().find(|row| row.suite == suite).and_then(|row| row.cells.first());
        cell.map_or("-".to_owned(), |cell| cell.full.show_rate(cell.shares_cores))
    }

    /// A table with holes is a failure, and so are refusals that prove nothing.
    pub fn outcome(&self) -> Outcome<()> {
        let errors: u64 = self.cells().map(|(_, cell)| cell.errors()).sum();
        if errors > 0 {
            return Err(Failure::new("some rows have errors; they are marked with ! in the table"));
        }
        match &self.refused_failure {
            Some(failure) => Err(Failure::new(format!("suites of older tables: {failure}"))),
            None => Ok(()),
        }
    }
}

impl Cell {
    pub fn errors(&self) -> u64 {
        self.full.errors + self.resumed.as_ref().map_or(0, |samples| samples.errors)
    }

    pub fn first_error(&self) -> Option<&str> {
        let resumed = self.resumed.as_ref().and_then(|samples| samples.first_error.as_deref());
        self.full.first_error.as_deref().or(resumed)
    }

    fn is_coarse(&self) -> bool {
        self.full.is_coarse() || self.resumed.as_ref().is_some_and(Samples::is_coarse)
    }

    pub fn is_doubtful(&self) -> bool {
        let shared = self.shares_cores && self.full.per_second.is_some();
        shared || self.full.is_lower_bound || self.resumed.as_ref().is_some_and(|all| all.is_lower_bound)
    }
}

impl Samples {
    fn is_coarse(&self) -> bool {
        let done: u64 = self.rounds.iter().map(|sample| sample.done).sum();
        !self.rounds.is_empty() && done < FEW
    }

    fn show(&self, shares_cores: bool) -> [String; 2] {
        let few = if self.is_coarse() { "~" } else { "" };
        let each =
            self.cpu_nanoseconds_each.map_or("-".to_owned(), |each| format!("{few}{}", show_number(each.0 / 1e3)));
        [self.show_rate(shares_cores), each]
    }

    fn show_rate(&self, shares_cores: bool) -> String {
        let mark = if self.errors > 0 { "!" } else { "" };
        let at_least = if self.per_second.is_some() && (shares_cores || self.is_lower_bound) { "≥ " } else { "" };
        format!("{at_least}{}{mark}", self.per_second.map_or("-".to_owned(), |rate| show_number(rate.0)))
    }
}
