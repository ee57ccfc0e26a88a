//! Numbers as people type them and as they read them.

use std::time::Duration;

/// Longest duration that a command accepts; keeps arithmetic on instants far from overflow.
const DURATION_MAX_SECONDS: f64 = 7.0 * 86_400.0;

/// `3`, `2.5` (seconds), `3s`, `250ms`, `100us`, `2m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" => 60.0,
        other => return Err(format!("unknown unit \"{other}\"; use us, ms, s or m")),
    };
    let seconds = digits.parse::<f64>().map_err(|error| error.to_string())? * scale;
    if !(0.0..=DURATION_MAX_SECONDS).contains(&seconds) {
        return Err("a duration lies between 0 and 7 days".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A rate in requests per second.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.001..=10_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("a rate is a number of requests per second".to_owned()),
    }
}

/// `1048576`, `1MiB`, `64KiB`, `2GiB`; `KB`, `MB` and `GB` are powers of ten.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        other => return Err(format!("unknown unit \"{other}\"; use B, KiB, MiB, GiB, KB, MB or GB")),
    };
    let number = digits.parse::<u64>().map_err(|error| error.to_string())?;
    number.checked_mul(scale).ok_or_else(|| "too large".to_owned())
}

/// Nanoseconds with three significant digits and the unit that suits them.
pub fn show_nanoseconds(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{} {unit}", show_number(value))
}

/// Three significant digits, never an exponent.
pub fn show_number(value: f64) -> String {
    match value.abs() {
        v if v == 0.0 || v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_unless_they_say_otherwise() {
        assert_eq!(parse_duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(parse_duration("3 fortnights").is_err());
        assert!(parse_duration("-1").is_err());
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        assert_eq!(parse_size("1MiB"), Ok(1_048_576));
        assert_eq!(parse_size("2MB"), Ok(2_000_000));
        assert_eq!(parse_size("77"), Ok(77));
        assert!(parse_size("1mb").is_err() && parse_size("-1").is_err() && parse_size("99999999999GiB").is_err());
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(show_nanoseconds(1_234_567.0), "1.23 ms");
        assert_eq!(show_nanoseconds(45_678.0), "45.7 µs");
        assert_eq!(show_number(0.0571), "0.057");
    }
}
