//! Reports of results: a table for people, JSON for machines, progress on stderr while it lasts.

use crate::failure::{Outcome, While};
use crate::provenance::Provenance;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Rows of cells, printed with aligned columns: the first to the left, the others to the right.
pub struct Table {
    rows: Vec<Vec<String>>,
    ruled: bool,
    /// Columns of words, before those of numbers.
    left: usize,
}

impl Table {
    /// With a first row of column names.
    pub fn with_head<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self { rows: Vec::new(), ruled: true, left: 1 };
        table.row(head);
        table
    }

    /// So many columns to the left instead of one.
    pub fn with_words(mut self, columns: usize) -> Self {
        self.left = columns;
        self
    }

    /// Name and value, line by line.
    pub fn of_facts() -> Self {
        Self { rows: Vec::new(), ruled: false, left: usize::MAX }
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if column < self.left {
                    line.push_str(&format!("{cell:<width$}  "));
                } else {
                    line.push_str(&format!("{cell:>width$}  "));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
            if self.ruled && index == 0 {
                let rule: usize = widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1);
                text.push_str(&"-".repeat(rule));
                text.push('\n');
            }
        }
        text
    }

    /// To stdout; a reader that went away is not our failure.
    pub fn print(&self) {
        let _ = std::io::stdout().write_all(self.render().as_bytes());
    }
}

/// A result with the command that it is of, and what it takes to repeat it.
#[derive(Serialize)]
struct Saved<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    #[serde(flatten)]
    result: &'a T,
    provenance: Provenance,
}

/// `--json FILE` of a measurement, which `report` reads again: `-` is stdout. A result is an object; its first field is
/// `command`, its last is `provenance`.
pub fn save_result(path: Option<&Path>, command: &str, result: &impl Serialize) -> Outcome<()> {
    save(path, Some(command), result)
}

/// `--json FILE` of anything else.
pub fn save_json(path: Option<&Path>, value: &impl Serialize) -> Outcome<()> {
    save(path, None, value)
}

fn save(path: Option<&Path>, command: Option<&str>, result: &impl Serialize) -> Outcome<()> {
    let Some(path) = path else { return Ok(()) };
    let saved = Saved { command, result, provenance: Provenance::here() };
    let mut text = serde_json::to_string_pretty(&saved).when("writing JSON")?;
    text.push('\n');
    if path == Path::new("-") {
        let _ = std::io::stdout().write_all(text.as_bytes());
        return Ok(());
    }
    std::fs::write(path, text).when(format_args!("writing {}", path.display()))
}

/// One line on stderr.
pub fn progress(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Lets a line through at most once a second.
pub struct Pace(Instant);

impl Pace {
    const INTERVAL: Duration = Duration::from_secs(1);

    pub fn started() -> Self {
        Self(Instant::now())
    }

    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = now.saturating_duration_since(self.0) >= Self::INTERVAL;
        if due {
            self.0 = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::with_head(["row", "µs"]);
        table.row(["ec13", "345"]);
        table.row(["plain", "8"]);
        assert_eq!(table.render(), "row     µs\n----------\nec13   345\nplain    8\n");
    }
}
