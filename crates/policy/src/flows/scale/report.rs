//! Figures of several clusters side by side, as text.

use std::fmt;
use std::time::Duration;

use super::{Change, Scale};

/// A row for each figure and a column for each cluster.
pub struct Table<'a>(pub &'a [Scale]);

const LABEL_WIDTH: usize = 46;
const COLUMN_WIDTH: usize = 14;

type Cell = fn(&Scale) -> String;

const HEAD: &[(&str, Cell)] = &[
    ("engines", |scale| scale.engines.to_string()),
    ("buckets", |scale| scale.buckets.to_string()),
    ("largest share, against an even one", |scale| format!("{:.3}", scale.unevenness)),
    ("table, as bytes", |scale| bytes(scale.table_bytes as f64)),
    ("its value in etcd, with names and addresses", |scale| {
        format!("{}{}", bytes(scale.value_bytes as f64), if scale.value_fits { "" } else { " (!)" })
    }),
    ("a generation, until all have acknowledged", |scale| time(scale.round)),
];

const STEADY: &[(&str, Cell)] = &[
    ("at rest: puts each second", |scale| format!("{:.0}", scale.steady.puts_per_second)),
    ("  events, if everybody watches all loads", |scale| format!("{:.0}/s", scale.steady.events_per_second_all)),
    ("  bytes", |scale| format!("{}/s", bytes(scale.steady.sent_bytes_per_second_all))),
    ("  events, if only the leader does", |scale| format!("{:.0}/s", scale.steady.events_per_second_leader)),
    ("  bytes", |scale| format!("{}/s", bytes(scale.steady.sent_bytes_per_second_leader))),
];

const REST: &[(&str, Cell)] = &[
    ("upgrade of all: batches", |scale| scale.upgrade.batches.to_string()),
    ("  buckets moved, over all", |scale| scale.upgrade.moved.to_string()),
    ("  generations", |scale| scale.upgrade.generations.to_string()),
    ("  time", |scale| time(scale.upgrade.time)),
    ("  sent by etcd", |scale| bytes(scale.upgrade.sent_bytes as f64)),
    ("a rack of an eighth dies: engines", |scale| scale.rack.engines.to_string()),
    ("  connections lost, and no others", |scale| format!("{:.1} %", 100.0 * scale.rack.flows_lost_share)),
    ("  new ones of those buckets wait up to", |scale| time(scale.rack.stall)),
    ("  work of each that is left", |scale| format!("x {:.2}", scale.rack.load_factor)),
    ("  buckets moved", |scale| scale.rack.moved.to_string()),
    ("  generations", |scale| scale.rack.generations.to_string()),
];

impl fmt::Display for Table<'_> {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        for (label, cell) in HEAD.iter().chain(STEADY) {
            self.row(to, label, cell)?;
        }
        let kinds = self.0.iter().map(|scale| scale.changes.len()).min().unwrap_or(0);
        for kind in 0..kinds {
            let of = |scale: &Scale| -> Change { scale.changes[kind] };
            let label = format!("{}: moved (fewest)", of(&self.0[0]).what);
            self.row(to, &label, |scale| format!("{} ({})", of(scale).moved, of(scale).moved_min))?;
            self.row(to, "  generations", |scale| of(scale).generations.to_string())?;
            self.row(to, "  until all agree about new connections", |scale| time(of(scale).agreed))?;
            self.row(to, "  the same by differences", |scale| time(of(scale).agreed_by_differences))?;
            self.row(to, "  sent by etcd", |scale| bytes(of(scale).sent_bytes as f64))?;
            self.row(to, "  the same by differences", |scale| bytes(of(scale).sent_bytes_by_differences as f64))?;
        }
        for (label, cell) in REST {
            self.row(to, label, cell)?;
        }
        Ok(())
    }
}

impl Table<'_> {
    fn row(&self, to: &mut fmt::Formatter, label: &str, cell: impl Fn(&Scale) -> String) -> fmt::Result {
        write!(to, "{label:LABEL_WIDTH$}")?;
        for scale in self.0 {
            write!(to, " {:>COLUMN_WIDTH$}", cell(scale))?;
        }
        writeln!(to)
    }
}

fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1e9 => format!("{:.1} GB", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        bytes if bytes >= 1e3 => format!("{:.1} KB", bytes / 1e3),
        bytes => format!("{bytes:.0} B"),
    }
}

fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 120.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds => format!("{:.0} ms", seconds * 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Model, simulate};
    use super::*;

    #[test]
    fn all_clusters_are_in_the_table_in_columns() {
        let scales = [simulate(4, 1, &Model::default()), simulate(32, 1, &Model::default())];
        let table = Table(&scales).to_string();
        println!("{table}");
        let width = LABEL_WIDTH + 2 * (COLUMN_WIDTH + 1);
        assert!(table.lines().all(|line| line.len() == width), "{table}");
        assert!(table.lines().next().is_some_and(|line| line.ends_with("             4             32")), "{table}");
    }

    #[test]
    fn figures_have_units_that_can_be_read() {
        assert_eq!([bytes(999.0), bytes(1500.0), bytes(2.5e6), bytes(3e9)], ["999 B", "1.5 KB", "2.5 MB", "3.0 GB"]);
        assert_eq!(time(Duration::from_millis(35)), "35 ms");
        assert_eq!(time(Duration::from_millis(5200)), "5.2 s");
        assert_eq!(time(Duration::from_secs(1200)), "20 min");
    }
}
