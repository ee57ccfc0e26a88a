//! The figures as tables: on a terminal, or as text.

use ratatui::Frame;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};
use ratatui::{Terminal, style::Stylize};

use super::sample::{Certificate, Figures, Listener, Server};

/// Wide enough for every column, where there is no terminal that has a width.
const TEXT_COLUMNS: u16 = 132;
/// Certificates that are shown: those that expire first.
const CERTIFICATES_SHOWN: usize = 5;
/// From then on a certificate is a warning.
const DAYS_LEFT_LOW: f64 = 14.0;

const LISTENERS: [&str; 12] = [
    "listener",
    "clients",
    "new/s",
    "req/s",
    "now",
    "p50",
    "p99",
    "in/s",
    "out/s",
    "4xx/s",
    "5xx/s",
    "EC RSA resumed failed/s",
];
const SERVERS: [&str; 9] =
    ["backend", "server", "state", "req/s", "conns", "idle", "clients:conn", "queued", "connect failures/s"];

/// One frame. `trouble` is why the figures are not the newest.
pub fn draw(frame: &mut Frame<'_>, figures: Option<&Figures>, trouble: Option<&str>) {
    let Some(figures) = figures else {
        frame.render_widget(Paragraph::new(trouble.unwrap_or("looking...")), frame.area());
        return;
    };
    let heights = [
        Constraint::Length(2),
        Constraint::Length(height(figures.listeners.len())),
        Constraint::Min(3),
        Constraint::Length(height(figures.certificates.len().min(CERTIFICATES_SHOWN))),
    ];
    let [top, listeners, servers, certificates] = Layout::vertical(heights).areas(frame.area());
    let second = match trouble {
        Some(trouble) => Line::from(trouble.to_string()).red(),
        None => Line::from("q quits").dim(),
    };
    frame.render_widget(Paragraph::new(vec![title(figures), second]), top);
    let widths = [14, 8, 8, 9, 6, 8, 8, 10, 10, 7, 7, 26];
    frame.render_widget(table("Clients", &LISTENERS, figures.listeners.iter().map(listener), &widths), listeners);
    let widths = [14, 24, 12, 9, 7, 7, 13, 7, 19];
    frame.render_widget(table("Servers", &SERVERS, figures.servers.iter().map(server), &widths), servers);
    let shown = figures.certificates.iter().take(CERTIFICATES_SHOWN).map(certificate);
    let widths = [40, 10, 12];
    frame.render_widget(table("Certificates", &["name", "type", "days left"], shown, &widths), certificates);
}

/// A frame as text without colours.
pub fn to_text(figures: &Figures) -> String {
    let rows = 2 + height(figures.listeners.len()) + height(figures.servers.len()) + height(figures.certificates.len());
    let Ok(mut terminal) = Terminal::new(TestBackend::new(TEXT_COLUMNS, rows));
    let Ok(_) = terminal.draw(|frame| draw(frame, Some(figures), None));
    let buffer = terminal.backend().buffer();
    let line = |row: u16| {
        let text: String = (0..TEXT_COLUMNS).map(|column| buffer[(column, row)].symbol()).collect();
        text.trim_end().to_string() + "\n"
    };
    (0..rows).filter(|row| *row != 1).map(line).collect()
}

/// Rows of a table with its frame and its head.
fn height(rows: usize) -> u16 {
    rows.min(1000) as u16 + 3
}

fn title(figures: &Figures) -> Line<'static> {
    let uptime = figures.uptime_seconds as u64;
    let mut text = format!(
        "propylon {}, pid {}, up {}d {:02}:{:02}:{:02}, {} workers, {:.2} cores, {} resident",
        figures.version,
        figures.pid,
        uptime / 86_400,
        uptime / 3600 % 24,
        uptime / 60 % 60,
        uptime % 60,
        figures.workers,
        figures.cpu,
        bytes(figures.memory_bytes)
    );
    for one in &figures.predecessors {
        text += &format!(
            "; pid {} before it drains since {} s, {} connections",
            one.pid, one.draining_seconds, one.connections
        );
    }
    match figures.draining {
        true => Line::from(text + ", draining").yellow(),
        false => Line::from(text).bold(),
    }
}

fn table<'a>(name: &'a str, head: &[&'a str], rows: impl Iterator<Item = Row<'a>>, widths: &[u16]) -> Table<'a> {
    let head = Row::new(head.iter().map(|text| Cell::from(*text))).style(Style::new().add_modifier(Modifier::DIM));
    Table::new(rows, widths.iter().map(|width| Constraint::Length(*width)))
        .header(head)
        .block(Block::bordered().title(name))
}

fn listener(listener: &Listener) -> Row<'static> {
    let [ecdsa, rsa, resumed] = listener.handshakes.map(count);
    let cells = [
        listener.name.clone().into(),
        count(listener.connections).into(),
        count(listener.accepted).into(),
        count(listener.requests).into(),
        count(listener.in_progress).into(),
        listener.p50.map_or("-".to_string(), duration).into(),
        listener.p99.map_or("-".to_string(), duration).into(),
        bytes(listener.received_bytes).into(),
        bytes(listener.sent_bytes).into(),
        count(listener.failed_4xx).into(),
        alarm(listener.failed_5xx),
        Cell::from(format!("{ecdsa} {rsa} {resumed} {}", count(listener.handshakes_failed))),
    ];
    Row::new(cells)
}

fn server(server: &Server) -> Row<'static> {
    let state = match server.state.as_str() {
        "" => Cell::from("-"),
        // Not probed: nothing is known against it.
        fit @ ("up" | "unknown") => Cell::from(fit.to_string()),
        other => Cell::from(other.to_string()).style(Style::new().fg(Color::Red)),
    };
    Row::new([
        Cell::from(server.backend.clone()),
        Cell::from(server.address.clone()),
        state,
        count(server.requests).into(),
        count(server.connections).into(),
        count(server.idle).into(),
        server.clients_per_connection.map_or("-".to_string(), |ratio| format!("{ratio:.1}:1")).into(),
        count(server.queued).into(),
        alarm(server.connect_failures),
    ])
}

fn certificate(certificate: &Certificate) -> Row<'static> {
    let days = Cell::from(format!("{:.0}", certificate.days_left.floor()));
    let days = if certificate.days_left < DAYS_LEFT_LOW { days.style(Style::new().fg(Color::Red)) } else { days };
    let name = if certificate.name.is_empty() { "(default)" } else { &certificate.name };
    Row::new([Cell::from(name.to_string()), Cell::from(certificate.key_type.clone()), days])
}

/// What should be nothing.
fn alarm(value: f64) -> Cell<'static> {
    let cell = Cell::from(count(value));
    if value > 0.0 { cell.style(Style::new().fg(Color::Red)) } else { cell }
}

/// Three figures, more or less.
fn count(value: f64) -> String {
    match value {
        value if value >= 1e7 => format!("{:.0}M", value / 1e6),
        value if value >= 1e5 => format!("{:.0}k", value / 1e3),
        value if value >= 10.0 || value == value.trunc() => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn bytes(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= (1u64 << 30) as f64 => (value / (1u64 << 30) as f64, "GiB"),
        value if value >= (1 << 20) as f64 => (value / (1 << 20) as f64, "MiB"),
        value if value >= 1024.0 => (value / 1024.0, "KiB"),
        value => return format!("{value:.0} B"),
    };
    format!("{value:.1} {unit}")
}

fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::top::sample::tests::figures;

    #[test]
    fn the_tables_hold_the_figures() {
        let text = to_text(&figures());
        for expected in [
            "propylon 1.2.3, pid 7, up 0d 01:01:40",
            "20.0 MiB resident",
            "10.0 ms",
            "127.0.0.1:1",
            "10.0:1",
            "shop.test",
        ] {
            assert!(text.contains(expected), "no {expected} in:\n{text}");
        }
    }

    #[test]
    fn a_small_terminal_shows_what_fits() {
        let mut terminal = Terminal::new(TestBackend::new(20, 4)).unwrap();
        terminal.draw(|frame| draw(frame, Some(&figures()), Some("gone"))).unwrap();
        terminal.draw(|frame| draw(frame, None, None)).unwrap();
    }

    #[test]
    fn numbers_keep_to_their_column() {
        assert_eq!([0.0, 0.25, 9.96, 1234.0, 123_456.0, 2e7].map(count), ["0", "0.2", "10.0", "1234", "123k", "20M"]);
        assert_eq!([512.0, 2048.0, 3e9].map(bytes), ["512 B", "2.0 KiB", "2.8 GiB"]);
        assert_eq!([0.0001, 0.0123, 2.0].map(duration), ["100 us", "12.3 ms", "2.0 s"]);
    }
}
