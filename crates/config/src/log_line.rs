//! The form of the lines that our processes write about themselves.

use std::fmt::{Display, Write};
use std::time::SystemTime;

use time::OffsetDateTime;

/// One line of a process's own log: when, who, how grave, what.
///
/// `2026-11-22T10:48:50.123Z propylon[1234]: warning: TEXT`, with the line's end. The time is UTC in RFC 3339's form;
/// control characters of the text are escaped, so that no name that came from elsewhere begins a line of its own.
pub fn log_line(program: &str, level: &str, now: SystemTime, text: impl Display) -> String {
    let now = OffsetDateTime::from(now);
    let (date, clock) = (now.date(), now.time());
    let mut line = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {program}[{}]: {level}: ",
        date.year(),
        u8::from(date.month()),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second(),
        clock.millisecond(),
        std::process::id(),
    );
    for character in text.to_string().chars() {
        if character.is_control() {
            // Writing into a String does not fail.
            let _ = write!(line, "{}", character.escape_default());
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_says_when_who_how_grave_and_what_and_is_one() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_344_530_123);
        let line = log_line("propylon", "warning", then, "server a\r\nerror: forged\u{1b}[2J");
        let pid = std::process::id();
        let expected =
            format!("2026-11-22T10:48:50.123Z propylon[{pid}]: warning: server a\\r\\nerror: forged\\u{{1b}}[2J\n");
        assert_eq!(line, expected);
    }
}
