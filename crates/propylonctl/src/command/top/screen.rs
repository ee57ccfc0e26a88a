//! The figures as tables: on a terminal of any size, or as text.

use ratatui::Frame;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};
use ratatui::{Terminal, style::Stylize};

use super::super::control::time_left;
use super::sample::{Certificate, Condition, Figures, Listener, Server};

/// Wide enough for every column, where there is no terminal that has a width.
const TEXT_COLUMNS: u16 = 150;
/// From so many columns on a terminal shows everything.
const WIDE: u16 = 120;
/// Rows that a small terminal gives to listeners and to certificates; the others are the servers'.
const LISTENERS_AT_LEAST: usize = 3;
const CERTIFICATES_AT_LEAST: usize = 3;
/// Limit on the certificates that a large terminal shows.
const CERTIFICATES_AT_MOST: usize = 10;
/// From then on a certificate is a warning.
const DAYS_LEFT_LOW: f64 = 14.0;

/// A column: its head, its width (none: what is left), whether figures stand in it, and whether a narrow terminal has it.
type Column<T> = (&'static str, Option<u16>, bool, fn(&T) -> Cell<'static>);

const LISTENERS_NARROW: [Column<Listener>; 8] = [
    ("listener", None, false, |each| each.name.clone().into()),
    ("clients", Some(7), true, |each| figure(count(each.connections))),
    ("req/s", Some(7), true, |each| figure(count(each.requests))),
    ("p50", Some(8), true, |each| figure(each.p50.map_or("-".into(), duration))),
    ("p99", Some(8), true, |each| figure(each.p99.map_or("-".into(), duration))),
    ("out/s", Some(9), true, |each| figure(bytes(each.sent_bytes))),
    ("TLS/s", Some(6), true, |each| figure(count(each.handshakes.iter().sum()))),
    ("5xx/s", Some(6), true, |each| alarm(each.failed_5xx)),
];
const LISTENERS_WIDE: [Column<Listener>; 15] = [
    LISTENERS_NARROW[0],
    LISTENERS_NARROW[1],
    ("new/s", Some(7), true, |each| figure(count(each.accepted))),
    LISTENERS_NARROW[2],
    ("now", Some(6), true, |each| figure(count(each.in_progress))),
    LISTENERS_NARROW[3],
    LISTENERS_NARROW[4],
    ("in/s", Some(9), true, |each| figure(bytes(each.received_bytes))),
    LISTENERS_NARROW[5],
    ("ECDSA/s", Some(7), true, |each| figure(count(each.handshakes[0]))),
    ("RSA/s", Some(6), true, |each| figure(count(each.handshakes[1]))),
    ("resumed/s", Some(9), true, |each| figure(count(each.handshakes[2]))),
    ("failed/s", Some(8), true, |each| alarm(each.handshakes_failed)),
    ("4xx/s", Some(6), true, |each| figure(count(each.failed_4xx))),
    LISTENERS_NARROW[7],
];
const SERVERS_NARROW: [Column<Server>; 5] = [
    ("server", Some(21), false, |each| each.address.clone().into()),
    ("backend", Some(12), false, |each| each.backend.clone().into()),
    ("state", None, false, state),
    ("req/s", Some(7), true, |each| figure(count(each.requests))),
    ("conns", Some(6), true, |each| figure(count(each.connections))),
];
const SERVERS_WIDE: [Column<Server>; 9] = [
    ("server", Some(28), false, |each| each.address.clone().into()),
    ("backend", Some(20), false, |each| each.backend.clone().into()),
    SERVERS_NARROW[2],
    SERVERS_NARROW[3],
    SERVERS_NARROW[4],
    ("idle", Some(6), true, |each| figure(count(each.idle))),
    ("clients:conn", Some(12), true, |each| {
        figure(each.clients_per_connection.map_or("-".into(), |ratio| format!("{ratio:.1}:1")))
    }),
    ("queued", Some(6), true, |each| figure(count(each.queued))),
    ("no connect/s", Some(12), true, |each| alarm(each.connect_failures)),
];
/// Limit on the rows of conditions.
const CONDITIONS_AT_MOST: usize = 5;
const CONDITIONS: [Column<Condition>; 2] = [
    ("what", None, false, |each| {
        let colour = if each.is_problem { Color::Red } else { Color::Yellow };
        Cell::from(format!("! {}", each.words)).style(Style::new().fg(colour))
    }),
    ("for", Some(8), true, |each| figure(each.seconds.map_or("-".into(), lasting))),
];
const CERTIFICATES: [Column<Certificate>; 3] = [
    ("name", None, false, |each| if each.name.is_empty() { "(no name)".into() } else { each.name.clone().into() }),
    ("type", Some(8), false, |each| each.key_type.clone().into()),
    ("expires in", Some(16), true, left),
];

/// One frame. `trouble` is why the figures are not the newest.
pub fn draw(frame: &mut Frame<'_>, figures: Option<&Figures>, trouble: Option<&str>) {
    let Some(figures) = figures else {
        frame.render_widget(Paragraph::new(trouble.unwrap_or("looking...")), frame.area());
        return;
    };
    let area = frame.area();
    let certificates_max = if area.height >= 50 { CERTIFICATES_AT_MOST } else { CERTIFICATES_AT_LEAST };
    let listeners_max = LISTENERS_AT_LEAST.max(usize::from(area.height) / 5);
    let certificates = figures.certificates.len().min(certificates_max);
    let conditions = figures.conditions.len().min(CONDITIONS_AT_MOST);
    let heights = [
        Constraint::Length(if figures.cluster.is_some() { 3 } else { 2 }),
        Constraint::Length(if conditions > 0 { height(conditions) } else { 0 }),
        Constraint::Length(height(figures.listeners.len().min(listeners_max))),
        Constraint::Min(4),
        Constraint::Length(height(certificates)),
    ];
    let [top, attention, listeners, servers, bottom] = Layout::vertical(heights).areas(area);
    let second = match trouble {
        Some(trouble) => Line::from(trouble.to_string()).red(),
        None if figures.predecessors.is_empty() => Line::from("q quits").dim(),
        None => predecessors(figures).yellow(),
    };
    let cluster = figures.cluster.as_ref().map(|cluster| {
        let line = Line::from(cluster.words());
        if cluster.is_in_trouble() { line.yellow() } else { line }
    });
    frame.render_widget(Paragraph::new([title(figures), second].into_iter().chain(cluster).collect::<Vec<_>>()), top);
    if conditions > 0 {
        let name = format!("Needs attention: {}", figures.conditions.len());
        frame.render_widget(table(name, &CONDITIONS, &figures.conditions[..conditions]), attention);
    }
    let wide = area.width >= WIDE;
    let of = |shown: usize, all: usize| if shown < all { format!(", {shown} shown") } else { String::new() };
    let room = |area: Rect| usize::from(area.height.saturating_sub(3));
    let name = format!("Clients{}", of(room(listeners), figures.listeners.len()));
    let columns: &[Column<Listener>] = if wide { &LISTENERS_WIDE } else { &LISTENERS_NARROW };
    frame.render_widget(table(name, columns, &figures.listeners), listeners);
    let (usable, total) = (figures.servers_usable, figures.servers_total);
    let shown = room(servers).min(figures.servers.len());
    let name = format!("Servers: {usable} of {total} usable, the worst first{}", of(shown, total));
    let columns: &[Column<Server>] = if wide { &SERVERS_WIDE } else { &SERVERS_NARROW };
    frame.render_widget(table(name, columns, &figures.servers), servers);
    let name = certificates_name(figures);
    frame.render_widget(table(name, &CERTIFICATES, &figures.certificates[..certificates]), bottom);
}

/// A frame as text without colours.
pub fn to_text(figures: &Figures) -> String {
    let rows = 3
        + height(figures.conditions.len().min(CONDITIONS_AT_MOST))
        + height(figures.listeners.len())
        + height(figures.servers.len())
        + height(CERTIFICATES_AT_MOST);
    let text = rendered(figures, TEXT_COLUMNS, rows.max(50));
    let lines = text.lines().enumerate().filter(|(row, line)| *row != 1 && !is_empty_row(line));
    lines.map(|(_, line)| line.to_owned() + "\n").collect()
}

/// A row of a table that has nothing in it.
fn is_empty_row(line: &str) -> bool {
    line.starts_with('│') && line.chars().all(|one| one == '│' || one == ' ')
}

fn rendered(figures: &Figures, columns: u16, rows: u16) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
    let Ok(_) = terminal.draw(|frame| draw(frame, Some(figures), None));
    let buffer = terminal.backend().buffer();
    let line = |row: u16| {
        let text: String = (0..columns).map(|column| buffer[(column, row)].symbol()).collect();
        text.trim_end().to_string() + "\n"
    };
    (0..rows).map(line).collect()
}

/// Rows of a table with its frame and its head.
fn height(rows: usize) -> u16 {
    rows.min(1000) as u16 + 3
}

fn title(figures: &Figures) -> Line<'static> {
    let uptime = figures.uptime_seconds as u64;
    let text = format!(
        "propylon {} pid {}, up {}d {:02}:{:02}, {} workers, {:.2} cores, {}, config {}",
        figures.version,
        figures.pid,
        uptime / 86_400,
        uptime / 3600 % 24,
        uptime / 60 % 60,
        figures.workers,
        figures.cpu,
        bytes(figures.memory_bytes),
        figures.generation,
    );
    let mut spans = vec![Span::from(text).bold()];
    if figures.change_refused {
        spans.push(Span::from(", last change refused").red());
    }
    if figures.draining {
        spans.push(Span::from(", draining").yellow());
    }
    Line::from(spans)
}

/// Predecessors that drain.
fn predecessors(figures: &Figures) -> Line<'static> {
    let descriptions = figures.predecessors.iter().map(|one| {
        format!(
            "pid {} was succeeded, has drained for {} s, {} connections",
            one.pid, one.draining_seconds, one.connections
        )
    });
    Line::from(descriptions.collect::<Vec<String>>().join("; "))
}

fn certificates_name(figures: &Figures) -> String {
    let words = [
        ("expired", "expired"),
        ("under-1", "within a day"),
        ("1-to-7", "within 7 days"),
        ("7-to-14", "within 14 days"),
    ];
    let count = |wanted: &str| {
        figures.certificates_by_days_left.iter().find(|(name, _)| name == wanted).map_or(0, |(_, count)| *count)
    };
    let parts =
        words.iter().filter(|(name, _)| count(name) > 0).map(|(name, word)| format!(", {} {word}", count(name)));
    format!("Certificates: {}{}", figures.certificates_total, parts.collect::<String>())
}

fn table<T>(name: String, columns: &[Column<T>], rows: &[T]) -> Table<'static> {
    let head =
        |(name, _, is_figure, _): &Column<T>| if *is_figure { figure((*name).into()) } else { Cell::from(*name) };
    let head = Row::new(columns.iter().map(head)).style(Style::new().add_modifier(Modifier::DIM));
    let widths = columns.iter().map(|(_, width, _, _)| width.map_or(Constraint::Fill(1), Constraint::Length));
    let rows = rows.iter().map(|row| Row::new(columns.iter().map(|(_, _, _, cell)| cell(row))));
    Table::new(rows, widths).header(head).block(Block::bordered().title(name))
}

/// Figures stand at the right, so that they can be compared.
fn figure(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn state(server: &Server) -> Cell<'static> {
    let reason = if server.reason.is_empty() { String::new() } else { format!(": {}", server.reason) };
    let panic = if server.panic { ", used all the same: panic" } else { "" };
    let text = format!("{}{panic}{reason}", if server.state == "unknown" { "not checked" } else { &server.state });
    match (server.usable && !server.panic, server.state.as_str()) {
        (false, "draining") => Cell::from(text).style(Style::new().fg(Color::Yellow)),
        (false, _) => Cell::from(format!("! {text}")).style(Style::new().fg(Color::Red)),
        (true, _) => Cell::from(text),
    }
}

fn left(certificate: &Certificate) -> Cell<'static> {
    let days = certificate.days_left;
    let text = match days {
        days if days < 0.0 => "! expired".to_string(),
        days if days < 1.0 => format!("! {}", time_left(days * 86_400.0)),
        days if days < DAYS_LEFT_LOW => format!("! {:.0} days", days.floor()),
        days => format!("{:.0} days", days.floor()),
    };
    if days < DAYS_LEFT_LOW { figure(text).style(Style::new().fg(Color::Red)) } else { figure(text) }
}

/// A value that should be zero.
fn alarm(value: f64) -> Cell<'static> {
    let cell = figure(count(value));
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
        value if value >= 1000.0 * (1 << 20) as f64 => (value / (1u64 << 30) as f64, "GiB"),
        value if value >= 1000.0 * 1024.0 => (value / (1 << 20) as f64, "MiB"),
        value if value >= 1000.0 => (value / 1024.0, "KiB"),
        value => return format!("{value:.0} B"),
    };
    if value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// How long something has lasted.
pub fn lasting(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1000.0 => format!("{seconds:.0} s"),
        seconds if seconds < 100.0 * 60.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 100.0 * 3600.0 => format!("{:.0} h", seconds / 3600.0),
        seconds => format!("{:.0} days", seconds / 86_400.0),
    }
}

pub fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::top::sample::Cluster;
    use crate::command::top::sample::tests::figures;

    #[test]
    fn a_terminal_of_the_usual_size_shows_what_is_wrong_and_how_much_there_is() {
        assert_eq!(rendered(&figures(), 80, 24), include_str!("80x24.txt"));
    }

    #[test]
    fn a_large_terminal_shows_every_column() {
        assert_eq!(rendered(&figures(), 200, 60), include_str!("200x60.txt"));
    }

    #[test]
    fn what_needs_attention_comes_first() {
        let mut figures = figures();
        let words = "listener \"web\": no more clients are accepted; raise process.max_connections".into();
        figures.conditions = vec![Condition { is_problem: true, words, seconds: Some(12.0), ..Condition::default() }];
        let text = rendered(&figures, 120, 24);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].starts_with("┌Needs attention: 1"), "{text}");
        assert!(lines[4].contains("! listener \"web\": no more clients") && lines[4].contains("12 s"), "{text}");
        assert!(to_text(&figures).contains("no more clients are accepted"));
    }

    #[test]
    fn an_engine_of_a_cluster_tells_of_it_below_its_own_line() {
        let cluster = Cluster { name: "edge".into(), engines: 4, engines_ready: 3, ..Cluster::default() };
        let figures = Figures { cluster: Some(cluster), ..figures() };
        let text = rendered(&figures, 80, 24);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].starts_with("cluster edge: etcd does not answer, 3 of 4 engines ready"), "{text}");
        assert!(lines[3].starts_with('┌'), "{text}");
        assert!(to_text(&figures).contains("\ncluster edge: "), "{}", to_text(&figures));
    }

    #[test]
    fn as_text_it_is_complete() {
        let text = to_text(&figures());
        for expected in
            ["propylon 1.2.3 pid 7", "config 3", "! down: connect-refused", "10.0.0.47:8080", "3.0:1", "! expired"]
        {
            assert!(text.contains(expected), "no {expected} in:\n{text}");
        }
    }

    #[test]
    fn a_small_terminal_shows_what_fits() {
        for (columns, rows) in [(20, 4), (1, 1), (40, 10)] {
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            terminal.draw(|frame| draw(frame, Some(&figures()), Some("gone"))).unwrap();
            terminal.draw(|frame| draw(frame, None, None)).unwrap();
        }
    }

    #[test]
    fn numbers_keep_to_their_column() {
        assert_eq!([0.0, 0.25, 9.96, 1234.0, 123_456.0, 2e7].map(count), ["0", "0.2", "10.0", "1234", "123k", "20M"]);
        assert_eq!([512.0, 2048.0, 3e9, 1e6].map(bytes), ["512 B", "2.0 KiB", "2.8 GiB", "977 KiB"]);
        assert_eq!([0.0001, 0.0123, 2.0].map(duration), ["100 us", "12.3 ms", "2.0 s"]);
    }
}
