//! The engine's own numbers, asked for over its admin address, and the line that shows them while load runs.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::figures::thousands;

const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Every answer ends; this is for the one that does not.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;
const BAR_CELLS: f64 = 24.0;

/// The text of /metrics at one moment.
pub struct Metrics(String);

impl Metrics {
    pub async fn read(admin: SocketAddr) -> io::Result<Metrics> {
        let asked = async {
            let mut stream = TcpStream::connect(admin).await?;
            // HTTP/1.0: the answer ends with the connection.
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
            let mut text = String::new();
            stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text).await?;
            Ok(Metrics(text))
        };
        timeout(ANSWER_TIME, asked).await?
    }

    /// The sum over the members of a family whose labels hold all of `labels`, such as `server="127.0.0.1:80"`.
    pub fn sum(&self, family: &str, labels: &str) -> f64 {
        let members = self.0.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
        let values = members.filter_map(|rest| rest.rsplit_once("} ").filter(|(held, _)| held.contains(labels)));
        values.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }
}

/// A line about a stretch of load: rewritten in place on a terminal, written once elsewhere.
pub struct Progress {
    what: &'static str,
    unit: &'static str,
    expected: Duration,
    started: Instant,
    is_terminal: bool,
    /// When the count was read last, and what it was.
    last: Option<(Instant, f64)>,
    shown: String,
}

impl Progress {
    pub fn new(what: &'static str, unit: &'static str, expected: Duration) -> Progress {
        let is_terminal = io::stderr().is_terminal();
        if !is_terminal {
            say(&format!("  {what} ...\n"));
        }
        let shown = String::new();
        Progress { what, unit, expected, started: Instant::now(), is_terminal, last: None, shown }
    }

    /// Shows how fast `count` grows.
    pub fn count(&mut self, count: f64) {
        let now = Instant::now();
        if let Some((then, before)) = self.last.replace((now, count)) {
            let rate = (count - before) / (now - then).as_secs_f64().max(1e-3);
            self.shown = format!("{:>9}{}", thousands(rate), self.unit);
        }
        self.draw();
    }

    /// Shows a level.
    pub fn level(&mut self, level: f64) {
        self.shown = format!("{:>9}{}", thousands(level), self.unit);
        self.draw();
    }

    fn draw(&self) {
        if !self.is_terminal {
            return;
        }
        let share = (self.started.elapsed().as_secs_f64() / self.expected.as_secs_f64()).min(1.0);
        let full = (share * BAR_CELLS) as usize;
        let bar = "█".repeat(full) + &"░".repeat(BAR_CELLS as usize - full);
        say(&format!("\r\x1b[K  {:<44}{bar} {}", self.what, self.shown));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            say("\r\x1b[K");
        }
    }
}

/// To standard error; nobody there is nobody's loss.
pub fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_summed_over_the_labels_that_fit() {
        let text = "HTTP/1.0 200 OK\r\n\r\n# HELP a_total A.\na_total{l=\"x\",m=\"1\"} 2\na_total{l=\"y\",m=\"1\"} 3\n\
            a_total_more{l=\"x\"} 100\nb{l=\"x\"} 1.5\n";
        let metrics = Metrics(text.into());
        assert_eq!(metrics.sum("a_total", ""), 5.0);
        assert_eq!(metrics.sum("a_total", "l=\"y\""), 3.0);
        assert_eq!(metrics.sum("b", ""), 1.5);
        assert_eq!(metrics.sum("c", ""), 0.0);
    }
}
