//! Durations as the Gateway API writes them (GEP-2257): up to four parts of `h`, `m`, `s` and `ms`, in this order.

/// Milliseconds of `1h30m10s500ms`; none where it is no such text.
pub fn milliseconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut sum = 0u64;
    let mut is_any = false;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits).filter(|digits| (1..=5).contains(&digits.len()))?.parse().ok()?;
        let unit = &rest[digits..];
        let (factor, length) = match unit.as_bytes() {
            [b'm', b's', ..] => (1, 2),
            [b'h', ..] => (3_600_000, 1),
            [b'm', ..] => (60_000, 1),
            [b's', ..] => (1000, 1),
            _ => return None,
        };
        sum += number * factor;
        rest = &unit[length..];
        is_any = true;
    }
    is_any.then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_parts() {
        for (text, expected) in [
            ("0s", Some(0)),
            ("500ms", Some(500)),
            ("1m", Some(60_000)),
            ("1h30m10s500ms", Some(5_410_500)),
            ("", None),
            ("5", None),
            ("1.5s", None),
            ("1d", None),
        ] {
            assert_eq!(milliseconds(text), expected, "{text}");
        }
    }
}
