//! Text, tables and the frame of the page. Whatever comes from a result goes through `escape`.

use std::fmt::Write;

/// For text and for quoted attributes alike. Control characters become a visible mark: some would end the page early
/// or hide what follows.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(character),
            // Bidirectional overrides would show a text in another order than it has.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => safe.push('\u{fffd}'),
            control if control.is_control() => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

/// The first `most` characters, with a sign that there were more.
pub fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A cell of a table: how it is shown follows from what it is.
#[derive(Clone, Debug)]
pub enum Cell {
    Text(String),
    Number(String),
    /// Something failed here.
    Bad(String),
    Empty,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub fn number(value: Option<f64>) -> Self {
        value.map_or(Self::Empty, |value| Self::Number(show(value)))
    }

    pub fn errors(count: u64) -> Self {
        if count == 0 { Self::Number("0".to_owned()) } else { Self::Bad(show(count as f64)) }
    }
}

/// Rows beyond this are left to the file.
pub const TABLE_ROWS_MAX: usize = 400;

pub fn table(head: &[&str], rows: &[Vec<Cell>]) -> String {
    // A column of numbers has its name to the right, too.
    let is_number = |column: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(column)).filter(|cell| !matches!(cell, Cell::Empty));
        cells.clone().next().is_some() && cells.all(|cell| matches!(cell, Cell::Number(_) | Cell::Bad(_)))
    };
    let mut html = "<div class=\"scroll\"><table><thead><tr>".to_owned();
    for (column, name) in head.iter().enumerate() {
        let class = if is_number(column) { " class=\"n\"" } else { "" };
        let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escape(name));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows.iter().take(TABLE_ROWS_MAX) {
        html.push_str("<tr>");
        for cell in row {
            let _ = match cell {
                Cell::Text(text) => write!(html, "<td>{}</td>", escape(text)),
                Cell::Number(text) => write!(html, "<td class=\"n\">{}</td>", escape(text)),
                Cell::Bad(text) => write!(html, "<td class=\"n bad\">⚠ {}</td>", escape(text)),
                Cell::Empty => write!(html, "<td class=\"n\">–</td>"),
            };
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    if rows.len() > TABLE_ROWS_MAX {
        let _ = writeln!(html, "<p class=\"note\">Further rows are in the file; {TABLE_ROWS_MAX} are shown.</p>");
    }
    html
}

/// Folded away until asked for.
pub fn details(summary: &str, body: &str) -> String {
    format!("<details><summary>{}</summary>\n{body}</details>\n", escape(summary))
}

pub fn warning(text: &str) -> String {
    format!("<p class=\"warning\">⚠ {}</p>\n", escape(text))
}

pub fn note(text: &str) -> String {
    format!("<p class=\"note\">{}</p>\n", escape(text))
}

/// Three significant digits below a thousand, whole numbers in groups of three above: no exponents.
pub fn show(value: f64) -> String {
    if value.abs() >= 1e15 {
        return format!("{value:.2e}");
    }
    if value.fract() != 0.0 && value.abs() < 1000.0 {
        return crate::units::show_number(value);
    }
    let digits = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    if value < 0.0 { format!("−{grouped}") } else { grouped }
}

/// The whole page around its body. `policy` forbids scripts and any address at all, whatever may have slipped in.
pub fn frame(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Colours after Okabe and Ito, darkened or lightened until each stands out from the ground by 3:1 or more.
const STYLE: &str = include_str!("style.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_escapes_the_escape() {
        assert_eq!(
            escape("<a b=\"c\" d='e'>&\u{1}\u{202e}"),
            "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;\u{fffd}\u{fffd}"
        );
        let html = table(&["<x>"], &[vec![Cell::text("</td><script>")], vec![Cell::Bad("<b>".into())]]);
        assert!(!html.contains("<script") && !html.contains("<x>") && !html.contains("<b>"));
    }

    #[test]
    fn numbers_are_grouped_and_have_no_exponents() {
        assert_eq!(show(1_234_567.0), "1\u{202f}234\u{202f}567");
        assert_eq!(
            (show(0.05714), show(12.345), show(0.0), show(-1200.0)),
            ("0.057".into(), "12.3".into(), "0".into(), "−1\u{202f}200".into())
        );
    }
}
