//! Durations and sizes, a whole number and a unit, and shares in percent.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

const DURATION_FORM: &str = "write a whole number and ms, s, m or h, such as \"250ms\" or \"30s\"";
/// Texts that [`duration`] reads, unless the number is too large.
pub(crate) const DURATION_PATTERN: &str = "^[0-9]+(ms|s|m|h)$";
/// Texts that [`size`] reads, unless the number is too large.
pub(crate) const SIZE_PATTERN: &str = "^[0-9]+(B|kB|KiB|MB|MiB|GB|GiB)$";
/// Texts that [`share`] reads, unless the number is none or too large.
pub(crate) const SHARE_PATTERN: &str = "^[0-9.]+(%)$";
const SHARE_FORM: &str = "write a number of percent, such as \"20%\" or \"2.5%\"";
const SIZE_FORM: &str = "write a whole number and B, kB, KiB, MB, MiB, GB or GiB, such as \"16KiB\"";

/// A part of something, as in `"2.5%"`: hundredths of a percent, 10,000 at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// A share of so many percent, 100 at most.
    #[must_use]
    pub const fn from_percent(percent: u32) -> Share {
        assert!(percent <= 100, "a share of more than all");
        Share(100 * percent)
    }

    /// A share of so many hundredths of a percent; `None` where that is more than all.
    pub(crate) fn from_hundredths(hundredths: u32) -> Option<Share> {
        (hundredths <= 10_000).then_some(Share(hundredths))
    }

    /// The share in hundredths of a percent.
    #[must_use]
    pub fn hundredths(self) -> u32 {
        self.0
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The share as it is written.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 100.0)
    }
}

/// A duration such as `250ms`, or what to do instead.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = split(text);
    let number: u64 = match digits.parse() {
        Ok(number) => number,
        Err(_) if digits.is_empty() => return Err(DURATION_FORM.into()),
        Err(_) => return Err("write a smaller number".into()),
    };
    let factor: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(duration_advice(number, unit)),
    };
    number.checked_mul(factor).map(Duration::from_millis).ok_or_else(|| "write a smaller number".to_string())
}

fn duration_advice(number: u64, unit: &str) -> String {
    match unit.trim().to_ascii_lowercase().as_str() {
        "" => format!("write \"{number}s\" or \"{number}ms\""),
        "msec" | "msecs" | "millis" | "milliseconds" | "ms" => format!("write \"{number}ms\""),
        "sec" | "secs" | "second" | "seconds" | "s" => format!("write \"{number}s\""),
        "min" | "mins" | "minute" | "minutes" | "m" => format!("write \"{number}m\""),
        "hour" | "hours" | "hr" | "hrs" | "h" => format!("write \"{number}h\""),
        "d" | "day" | "days" if number <= 10_000 => format!("write \"{}h\"", number * 24),
        "us" | "µs" | "ns" => "write whole milliseconds, such as \"1ms\"".to_string(),
        _ => DURATION_FORM.to_string(),
    }
}

/// A duration in the form in which it is written, in quotes.
pub(crate) fn write_duration(duration: &Duration) -> String {
    format!("\"{}\"", duration_text(duration))
}

/// A duration in the largest unit that leaves a whole number of it.
pub(crate) fn duration_text(duration: &Duration) -> String {
    let milliseconds = duration.as_millis();
    let (number, unit) = match milliseconds {
        0 => (0, "s"),
        _ if milliseconds.is_multiple_of(3_600_000) => (milliseconds / 3_600_000, "h"),
        _ if milliseconds.is_multiple_of(60_000) => (milliseconds / 60_000, "m"),
        _ if milliseconds.is_multiple_of(1_000) => (milliseconds / 1_000, "s"),
        _ => (milliseconds, "ms"),
    };
    format!("{number}{unit}")
}

/// A share such as `20%` or `2.5%`, or what to do instead.
pub(crate) fn share(text: &str) -> Result<Share, String> {
    let (Some(number), true) = (text.strip_suffix('%'), text.len() <= 16) else {
        return Err(match text.parse::<u8>() {
            Ok(number) => format!("write \"{number}%\""),
            Err(_) => SHARE_FORM.into(),
        });
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(part) {
        return Err(SHARE_FORM.into());
    }
    if part.len() > 2 {
        return Err("write two digits behind the point at most".into());
    }
    let hundredths = format!("{whole}{part:0<2}").parse().ok().and_then(Share::from_hundredths);
    hundredths.ok_or_else(|| "write \"100%\" or less".to_string())
}

/// A number of bytes such as `16KiB`, or what to do instead.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = split(text);
    let number: u64 = match digits.parse() {
        Ok(number) => number,
        Err(_) if digits.is_empty() => return Err(SIZE_FORM.into()),
        Err(_) => return Err("write a smaller number".into()),
    };
    let factor: u64 = match unit {
        "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(size_advice(number, unit)),
    };
    number.checked_mul(factor).ok_or_else(|| "write a smaller number".to_string())
}

fn size_advice(number: u64, unit: &str) -> String {
    match unit.trim().to_ascii_lowercase().as_str() {
        "" => format!("write {number} without quotes, or a unit such as \"{number}KiB\""),
        "b" | "bytes" => format!("write \"{number}B\""),
        "k" | "kb" => format!("write \"{number}KiB\" for 1024s or \"{number}kB\" for 1000s"),
        "kib" => format!("write \"{number}KiB\""),
        "m" | "mb" => format!("write \"{number}MiB\" for 1024s or \"{number}MB\" for 1000s"),
        "mib" => format!("write \"{number}MiB\""),
        "g" | "gb" => format!("write \"{number}GiB\" for 1024s or \"{number}GB\" for 1000s"),
        "gib" => format!("write \"{number}GiB\""),
        _ => SIZE_FORM.to_string(),
    }
}

/// A number of bytes as it is written, without the quotes.
pub fn size_text(bytes: u64) -> String {
    write_size(&bytes).trim_matches('"').to_owned()
}

/// A number of bytes in the form in which it is written.
pub(crate) fn write_size(bytes: &u64) -> String {
    for (factor, unit) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if *bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("\"{}{unit}\"", bytes / factor);
        }
    }
    bytes.to_string()
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        for (text, fix) in [
            ("5", "write \"5s\" or \"5ms\""),
            ("10 sec", "write \"10s\""),
            ("2d", "write \"48h\""),
            ("1.5s", DURATION_FORM),
            ("1m30s", DURATION_FORM),
            ("-1s", DURATION_FORM),
            ("", DURATION_FORM),
            ("99999999999999999999s", "write a smaller number"),
            ("9999999999999999h", "write a smaller number"),
        ] {
            assert_eq!(duration(text), Err(fix.to_string()), "{text}");
        }
    }

    #[test]
    fn sizes_are_a_number_and_a_unit() {
        assert_eq!(size("16KiB"), Ok(16384));
        assert_eq!(size("64kB"), Ok(64000));
        assert_eq!(size("7B"), Ok(7));
        assert_eq!(size("16K").unwrap_err(), "write \"16KiB\" for 1024s or \"16kB\" for 1000s");
        assert_eq!(size("16").unwrap_err(), "write 16 without quotes, or a unit such as \"16KiB\"");
        assert_eq!(size("99999999999GiB").unwrap_err(), "write a smaller number");
    }

    #[test]
    fn shares_are_a_number_of_percent() {
        for (text, hundredths) in [("20%", 2_000), ("2.5%", 250), ("0%", 0), ("0.05%", 5), ("100.00%", 10_000)] {
            assert_eq!(share(text).map(Share::hundredths), Ok(hundredths), "{text}");
        }
        for (text, fix) in [
            ("20", "write \"20%\""),
            ("0.2", SHARE_FORM),
            ("twenty%", SHARE_FORM),
            (".5%", SHARE_FORM),
            ("5.%", SHARE_FORM),
            ("-1%", SHARE_FORM),
            ("20 %", SHARE_FORM),
            ("%", SHARE_FORM),
            ("", SHARE_FORM),
            ("0.001%", "write two digits behind the point at most"),
            ("100.01%", "write \"100%\" or less"),
            ("99999999999%", "write \"100%\" or less"),
        ] {
            assert_eq!(share(text), Err(fix.to_string()), "{text}");
        }
        assert_eq!(share("2.5%").map(|share| share.to_string()), Ok("2.5%".into()));
    }

    #[test]
    fn limits_are_written_in_the_largest_whole_unit() {
        assert_eq!(write_duration(&Duration::from_secs(7200)), "\"2h\"");
        assert_eq!(write_duration(&Duration::from_millis(1500)), "\"1500ms\"");
        assert_eq!(write_size(&65536), "\"64KiB\"");
        assert_eq!(write_size(&100), "100");
    }
}
