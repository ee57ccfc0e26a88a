//! The evaluation of the samples: medians with their spread, and each program's ratio to the best peer.

use super::arguments::Arguments;
use super::bench::Matrix;
use super::peers::{Peer, Program};
use super::rows::{Row, Sample, Unit};
use crate::failure::{Failure, Outcome};
use crate::handshakes::LOAD_SATURATED;
use crate::quantity::Label;
use crate::report::Table;
use crate::units::show_number;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// With fewer units than this in a sample, start-up and chance are a good part of its figure.
const UNITS_MIN: u64 = 50;

/// Samples by row and program, in the order in which they were taken.
pub type Samples = BTreeMap<(usize, usize), Vec<Sample>>;

#[derive(Serialize, Deserialize)]
pub struct Verdict {
    pub programs: Vec<ProgramSummary>,
    pub rows: Vec<RowSummary>,
    pub rounds: u32,
    pub duration_seconds: f64,
    /// Proxies of others that ran at some time during the comparison.
    pub other_proxies: BTreeSet<String>,
    /// Whether the comparison was ended before all rounds were done.
    pub interrupted: bool,
}

#[derive(Serialize, Deserialize)]
pub struct ProgramSummary {
    pub name: Label,
    pub version: String,
    pub tls_library: Option<String>,
    pub path: PathBuf,
    #[serde(skip)]
    pub title: String,
}

#[derive(Serialize, Deserialize)]
pub struct RowSummary {
    pub row: String,
    pub title: Label,
    pub unit: Unit,
    /// In the order of the programs.
    pub cells: Vec<Cell>,
}

/// One program's samples of one row.
#[derive(Default, Serialize, Deserialize)]
pub struct Cell {
    pub program: Label,
    pub median: Option<f64>,
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    /// To the best program that is not Propylon; only between cells without errors.
    pub ratio_to_best_peer: Option<f64>,
    /// The program's own objection to this kind of work; then there are no samples.
    pub unsupported: Option<String>,
    pub per_second: f64,
    pub proxy_busy: f64,
    pub load_saturated: bool,
    /// CPU time came in ticks of 10 ms for at least one sample.
    pub coarse_clock: bool,
    /// At least one sample is of fewer than 50 units: the machine was busy, or the time too short.
    pub thin: bool,
    pub kernel_kib: Option<f64>,
    pub errors: u64,
    pub first_error: Option<String>,
    pub samples: Vec<Sample>,
}

impl Verdict {
    pub fn new(arguments: &Arguments, programs: &[Program], matrix: &Matrix, samples: &Samples) -> Self {
        let row = |(index, row): (usize, &Row)| {
            let cells = programs.iter().enumerate().map(|(program_index, program)| {
                let place = (index, program_index);
                let cell = Cell::new(program, samples.get(&place).map_or(&[][..], Vec::as_slice));
                Cell { unsupported: matrix.unsupported.get(&place).cloned(), ..cell }
            });
            let mut cells: Vec<Cell> = cells.collect();
            relate_to_best_peer(&mut cells);
            RowSummary { row: row.name(), title: row.title().into(), unit: row.unit(), cells }
        };
        let program = |program: &Program| ProgramSummary {
            name: program.peer.name().into(),
            version: program.version.clone(),
            tls_library: program.tls_library.clone(),
            path: program.path.clone(),
            title: program.title(),
        };
        Self {
            programs: programs.iter().map(program).collect(),
            rows: matrix.rows.iter().enumerate().map(row).collect(),
            rounds: arguments.rounds,
            duration_seconds: arguments.duration.as_secs_f64(),
            other_proxies: samples.values().flatten().flat_map(|sample| sample.other_proxies.iter().cloned()).collect(),
            interrupted: false,
        }
    }

    pub fn print(&self) {
        for program in &self.programs {
            println!("{:<9} {}", program.name, program.title);
        }
        println!("median of {} rounds (minimum-maximum), ratio to the best peer\n", self.rounds);
        if self.interrupted {
            println!("interrupted: rows have fewer rounds, or none\n");
        }
        let mut head = vec!["row".to_owned(), "unit".to_owned()];
        for program in &self.programs {
            head.extend([program.name.to_string(), "spread".to_owned(), "ratio".to_owned(), "per s".to_owned()]);
        }
        let mut table = Table::with_head(head);
        for row in &self.rows {
            let mut cells = vec![row.row.clone(), row.unit.name().to_owned()];
            row.cells.iter().for_each(|cell| cells.extend(cell.show()));
            table.row(cells);
        }
        table.print();
        self.print_notes();
    }

    fn print_notes(&self) {
        println!();
        let cells = || self.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (&row.row, cell)));
        for (row, cell) in cells() {
            if let Some(why) = &cell.unsupported {
                println!("-  {row}, {}: not supported: {why}", cell.program);
            }
        }
        if !self.other_proxies.is_empty() {
            let other_proxies: Vec<&str> = self.other_proxies.iter().map(String::as_str).collect();
            println!("?  other proxies ran on this machine meanwhile: {}", other_proxies.join(", "));
        }
        for (row, cell) in cells().filter(|(_, cell)| cell.errors > 0) {
            let first = cell.first_error.as_deref().unwrap_or_default();
            println!("!  {row}, {}: {} errors, not used for ratios; first: {first}", cell.program, cell.errors);
        }
        for (row, cell) in cells().filter(|(_, cell)| cell.thin) {
            println!("~  {row}, {}: a sample of fewer than {UNITS_MIN} units; measure longer", cell.program);
        }
        if cells().any(|(_, cell)| cell.load_saturated) {
            println!("*  load and origin filled their core: the rate is theirs, the CPU per unit is still the proxy's");
        }
        let kernel: Vec<String> = cells()
            .filter_map(|(row, cell)| Some(format!("{row} {} {} KiB", cell.program, show_number(cell.kernel_kib?))))
            .collect();
        if !kernel.is_empty() {
            println!("kernel memory per idle connection, both ends: {}", kernel.join(", "));
        }
        let coarse = cells().any(|(_, cell)| cell.coarse_clock);
        println!(
            "CPU time from {}",
            if coarse { "/proc/PID/stat (10 ms ticks) in part" } else { "/proc/PID/task/*/schedstat" }
        );
    }

    /// A comparison with holes is a failure.
    pub fn outcome(&self) -> Outcome<()> {
        let errors: u64 = self.rows.iter().flat_map(|row| &row.cells).map(|cell| cell.errors).sum();
        match errors {
            0 => Ok(()),
            _ => Err(Failure::new("some rows have errors; they are marked with ! in the table")),
        }
    }
}

impl Cell {
    fn new(program: &Program, samples: &[Sample]) -> Self {
        let mut values: Vec<f64> = samples.iter().filter_map(|sample| sample.value).collect();
        values.sort_by(f64::total_cmp);
        let median_of = |of: fn(&Sample) -> f64| {
            let mut all: Vec<f64> = samples.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            median(&all).unwrap_or(0.0)
        };
        let mut kernel: Vec<f64> = samples.iter().filter_map(|sample| sample.kernel_kib).collect();
        kernel.sort_by(f64::total_cmp);
        Self {
            program: program.peer.name().into(),
            median: median(&values),
            minimum: values.first().copied(),
            maximum: values.last().copied(),
            per_second: median_of(|sample| sample.per_second),
            proxy_busy: median_of(|sample| sample.proxy_busy),
            load_saturated: samples.iter().any(|sample| sample.load_busy > LOAD_SATURATED),
            coarse_clock: samples.iter().any(|sample| sample.source == Some(crate::cpu::Source::Stat)),
            thin: samples.iter().any(|sample| sample.errors == 0 && sample.done < UNITS_MIN),
            kernel_kib: median(&kernel),
            errors: samples.iter().map(|sample| sample.errors).sum(),
            first_error: samples.iter().find_map(|sample| sample.first_error.clone()),
            samples: samples.to_vec(),
            ..Self::default()
        }
    }

    /// The mark that warns a reader before the figure is believed: `!` for errors, `~` for thin samples.
    pub fn mark(&self) -> &'static str {
        match (self.errors > 0, self.thin) {
            (true, _) => "!",
            (false, true) => "~",
            (false, false) => "",
        }
    }

    fn show(&self) -> [String; 4] {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), show_number);
        if self.unsupported.is_some() {
            return ["unsupported".to_owned(), "-".to_owned(), "-".to_owned(), "-".to_owned()];
        }
        let mark = self.mark();
        let star = if self.load_saturated { "*" } else { "" };
        [
            format!("{}{mark}", number(self.median)),
            format!("{}-{}", number(self.minimum), number(self.maximum)),
            self.ratio_to_best_peer.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            format!("{}{star}", show_number(self.per_second)),
        ]
    }
}

fn relate_to_best_peer(cells: &mut [Cell]) {
    let usable = |cell: &Cell| if cell.errors == 0 { cell.median } else { None };
    let ours = [Peer::Propylon.name(), Peer::Unbatched.name()];
    let best = cells.iter().filter(|cell| !ours.contains(&&*cell.program)).filter_map(usable).min_by(f64::total_cmp);
    for cell in cells {
        cell.ratio_to_best_peer = usable(cell).zip(best).filter(|(_, best)| *best > 0.0).map(|(own, best)| own / best);
    }
}

/// The median of sorted values; for an even number of values, the mean of the middle two.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn cell(peer: Peer, values: &[f64], errors: u64) -> Cell {
        let version = String::new();
        let program = Program { peer, path: "x".into(), version, tls_library: None, stream_module: None };
        let samples: Vec<Sample> =
            values.iter().map(|value| Sample { value: Some(*value), ..Sample::default() }).collect();
        Cell { errors, ..Cell::new(&program, &samples) }
    }

    #[test]
    fn a_row_with_errors_is_nobodys_yardstick() {
        let mut cells = [
            cell(Peer::Propylon, &[60.0, 70.0, 80.0], 0),
            cell(Peer::Haproxy, &[140.0, 139.0], 0),
            cell(Peer::Nginx, &[10.0], 3),
        ];
        relate_to_best_peer(&mut cells);
        assert_eq!(cells[0].median, Some(70.0));
        assert_eq!(cells[0].ratio_to_best_peer, Some(70.0 / 139.5));
        assert_eq!(cells[1].ratio_to_best_peer, Some(1.0));
        assert_eq!(cells[2].ratio_to_best_peer, None);
        assert!(cells[2].show()[0].ends_with('!'));
        assert!(cells[1].show()[0].ends_with('~'), "samples of nothing");
    }
}
