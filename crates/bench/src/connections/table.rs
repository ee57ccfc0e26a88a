//! The report of `connections`: its modes side by side.

use super::arguments::{Arguments, Mode};
use super::kernel::Reading;
use crate::client_group::phase::LoadPhase;
use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::quantity::{Kibibytes, PerSecond};
use crate::report::Table;
use crate::units::{show_nanoseconds, show_number};
use serde::{Deserialize, Serialize};

/// Share of our own connections; more sockets of others than that spoil the kernel's figures.
const OTHER_SOCKETS_TOLERATED: f64 = 0.02;

/// Measurements of one mode.
pub struct Row {
    pub mode: Mode,
    pub has_server: bool,
    /// Both ends of each connection are on this machine.
    pub is_local: bool,
    pub opening: LoadPhase,
    pub opening_cpu: cpu::Usage,
    pub holding: LoadPhase,
    pub before: Reading,
    pub held: Reading,
    pub closed: Reading,
}

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub server: String,
    pattern: String,
    wanted: usize,
    processes: u64,
    hold_seconds: f64,
    slow: bool,
    pub modes: Vec<ModeReport>,
}

#[derive(Serialize, Deserialize)]
pub struct ModeReport {
    pub mode: Mode,
    /// Opened, and open at the end of the hold.
    opened: usize,
    pub open: usize,
    opening_seconds: f64,
    pub per_second: PerSecond,
    load_busy: f64,
    /// Absent without a process to look at.
    pub server: Option<ServerCost>,
    /// Cost of both ends if both are on this machine.
    pub kernel: KernelCost,
    both_ends: bool,
    pub opening: LoadPhase,
    pub holding: LoadPhase,
    before: Reading,
    held: Reading,
    closed: Reading,
}

/// Per connection.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct ServerCost {
    pub rss_kib: Kibibytes,
    /// 0 where it may not be read.
    pss_kib: Kibibytes,
    /// Still held when the connections were closed.
    rss_kept_kib: Kibibytes,
    /// CPU time to accept it and do what it wanted first.
    opening_cpu_microseconds: f64,
}

/// Per connection, in KiB.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct KernelCost {
    pub sockets: Kibibytes,
    pub buffers: Kibibytes,
    sockets_kept: Kibibytes,
    is_coarse: bool,
}

impl ModeReport {
    fn new(row: Row) -> Self {
        let open = row.holding.clients.open;
        let per = |now: f64, then: f64| Kibibytes((now - then) / open.max(1) as f64);
        let (before, held, closed) = (&row.before, &row.held, &row.closed);
        let growth = held.memory.growth_since(&before.memory, open);
        let server = row.has_server.then(|| ServerCost {
            rss_kib: Kibibytes(growth.rss),
            pss_kib: Kibibytes(growth.pss),
            rss_kept_kib: Kibibytes(closed.memory.growth_since(&before.memory, open).rss),
            opening_cpu_microseconds: row.opening_cpu.cpu.as_secs_f64() * 1e6 / row.opening.connects.max(1) as f64,
        });
        let kernel = KernelCost {
            sockets: per(held.kernel.sockets_kib, before.kernel.sockets_kib),
            buffers: per(held.kernel.buffers_kib, before.kernel.buffers_kib),
            sockets_kept: per(closed.kernel.sockets_kib, before.kernel.sockets_kib),
            is_coarse: held.kernel.is_coarse,
        };
        Self {
            mode: row.mode,
            opened: row.opening.clients.open,
            open,
            opening_seconds: row.opening.seconds,
            per_second: PerSecond(row.opening.clients.open as f64 / row.opening.seconds.max(1e-9)),
            load_busy: row.opening.load_busy,
            server,
            kernel,
            both_ends: row.is_local,
            opening: row.opening,
            holding: row.holding,
            before: row.before,
            held: row.held,
            closed: row.closed,
        }
    }

    /// The server's own memory and its end of the socket, in KiB.
    fn total(&self) -> Option<f64> {
        let ends = if self.both_ends { 2.0 } else { 1.0 };
        Some(self.server?.rss_kib.0 + (self.kernel.sockets.0 + self.kernel.buffers.0) / ends)
    }

    fn cells(&self) -> Vec<String> {
        // Without a connection left there is nothing to divide by.
        let number = |value: Option<f64>| value.filter(|_| self.open > 0).map_or("-".to_owned(), show_number);
        let server = |of: fn(&ServerCost) -> f64| number(self.server.as_ref().map(of));
        vec![
            self.mode.name(),
            self.opened.to_string(),
            self.open.to_string(),
            show_number(self.per_second.0),
            server(|server| server.opening_cpu_microseconds),
            server(|server| server.rss_kib.0),
            server(|server| server.pss_kib.0),
            number(Some(self.kernel.sockets.0)),
            number(Some(self.kernel.buffers.0)),
            number(self.total()),
            server(|server| server.rss_kept_kib.0),
            number(Some(self.kernel.sockets_kept.0)),
        ]
    }
}

impl Report {
    pub fn new(server: String, arguments: &Arguments, rows: Vec<Row>) -> Self {
        Self {
            server,
            pattern: arguments.pattern_shown(),
            wanted: arguments.count,
            processes: arguments.processes,
            hold_seconds: arguments.hold.as_secs_f64(),
            slow: arguments.slow.is_some(),
            modes: rows.into_iter().map(ModeReport::new).collect(),
        }
    }

    pub fn print(&self) {
        let mut facts = Table::of_facts();
        facts.row(["server", &self.server]);
        let load = format!("{} wanted, {}, held for {} s", self.wanted, self.pattern, show_number(self.hold_seconds));
        facts.row(["connections", &load]);
        facts.print();
        println!();
        let mut table = Table::with_head([
            "mode",
            "opened",
            "open",
            "per s",
            "CPU µs",
            "RSS",
            "PSS",
            "sockets",
            "buffers",
            "total",
            "RSS kept",
            "sockets kept",
        ]);
        self.modes.iter().for_each(|mode| table.row(mode.cells()));
        table.print();
        println!();
        self.print_legend();
        self.modes.iter().for_each(ModeReport::print_notes);
        self.print_rule();
    }

    fn print_legend(&self) {
        println!("KiB per connection. RSS, PSS: the server's processes. sockets, buffers: kernel memory.");
        if self.modes.iter().any(|mode| mode.both_ends) {
            println!("Kernel memory is of both ends, which are on this machine; total = RSS + half of it.");
        } else {
            println!("Kernel memory is of this machine's end; total = RSS + as much.");
        }
        println!("CPU µs: the server's, from accept to the first answer. kept: still there when all were closed.");
        if self.modes.iter().any(|mode| mode.mode == Mode::H2) {
            println!("Of h2, to the last of its twenty answers.");
        }
        if self.modes.iter().any(|mode| mode.kernel.is_coarse) {
            println!("sockets is the growth of all kernel slabs: only root may read /proc/slabinfo.");
        }
    }

    /// A vendor's rule of thumb, beside what was found.
    fn print_rule(&self) {
        let find = |wanted: Mode| self.modes.iter().find(|mode| mode.mode == wanted);
        let (Some(tcp), Some(http), Some(tls)) = (find(Mode::Tcp), find(Mode::Http), find(Mode::Tls)) else {
            return;
        };
        println!("\nAvi's sizing rule: a TLS connection costs twice an HTTP one and four times a TCP one. Here:");
        let mut table = Table::with_head(["cost of a connection", "tcp", "http", "tls", "tls / http", "tls / tcp"]);
        table.row(["the rule", "1", "2", "4", "2", "4"]);
        let mut row = |name: &str, of: &dyn Fn(&ModeReport) -> Option<f64>| {
            let (Some(tcp), Some(http), Some(tls)) = (of(tcp), of(http), of(tls)) else { return };
            let ratio = |over: f64| if over > 0.0 { show_number(tls / over) } else { "-".to_owned() };
            table.row([
                name.to_owned(),
                show_number(tcp),
                show_number(http),
                show_number(tls),
                ratio(http),
                ratio(tcp),
            ]);
        };
        row("server's memory, KiB RSS", &|mode| Some(mode.server?.rss_kib.0));
        row("with its socket, KiB", &ModeReport::total);
        row("CPU to open, µs", &|mode| Some(mode.server?.opening_cpu_microseconds));
        table.print();
    }

    /// Slow clients that a server turns away are its right, and the finding; idle ones it should bear.
    pub fn verdict(&self) -> Outcome<()> {
        for mode in &self.modes {
            let name = mode.mode.name();
            if mode.opened < self.wanted {
                let why = mode.opening.first_error.as_deref().unwrap_or("no error");
                let opened = mode.opened;
                return Err(Failure::new(format!("{name}: only {opened} of {} were opened ({why})", self.wanted)));
            }
            if !self.slow && mode.open < mode.opened {
                let closed = mode.opened - mode.open;
                return Err(Failure::new(format!("{name}: {closed} connections did not last for the hold")));
            }
            if !self.slow && mode.opening.errors_total() + mode.holding.errors_total() > 0 {
                return Err(Failure::new(format!("{name}: some requests failed")));
            }
        }
        Ok(())
    }
}

impl ModeReport {
    /// Sockets that came or went during the measurement and were none of ours: of each connection, one is the
    /// client's, and another the server's if it is here and has accepted it.
    fn other_sockets(&self) -> u64 {
        let grown = self.held.kernel.sockets as i64 - self.before.kernel.sockets as i64;
        let open = self.open as i64;
        let (fewest, most) = if self.both_ends { (open, 2 * open) } else { (open, open) };
        (grown - grown.clamp(fewest, most)).unsigned_abs()
    }

    fn print_notes(&self) {
        let name = self.mode.name();
        let other_sockets = self.other_sockets();
        if other_sockets as f64 > self.open as f64 * OTHER_SOCKETS_TOLERATED {
            println!("{name}: some {other_sockets} sockets of other programs came or went; measure \"sockets\" again");
        }
        let before = self.before.memory.rss_kib;
        if self.server.is_some() {
            let (held, closed) = (self.held.memory.rss_kib, self.closed.memory.rss_kib);
            println!("{name}: {before} KiB RSS before, {held} held, {closed} closed");
        }
        if self.opening.errors_total() > 0 {
            println!("{name}, opening: errors {}", self.opening.show_errors());
        }
        let holding = &self.holding;
        if holding.errors_total() + holding.closed_idle > 0 {
            let cut = holding.closed_idle;
            println!("{name}, holding: {cut} closed by the server while idle; errors {}", holding.show_errors());
        }
        if holding.done > 0 {
            let latency = holding.answer_latency.summary();
            let (p50, p99) = (show_nanoseconds(latency.p50 as f64), show_nanoseconds(latency.p99 as f64));
            println!("{name}, holding: {} answers, p50 {p50}, p99 {p99}", holding.done);
        }
        if self.load_busy > crate::handshakes::LOAD_SATURATED {
            println!("{name}: the load filled its core; the rate is its own");
        }
    }
}
