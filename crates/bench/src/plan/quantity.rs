//! Requirements as people write them: `20k`, `5Gbps`, `16GiB`. Zero, negative and absurd ones are refused here, in
//! words.

/// Above these a requirement is a slip of the pen, not a service: the largest public services are a hundredth of it.
const COUNT_MAX: f64 = 1e10;
const GIGABITS_MAX: f64 = 1e5;
const MEMORY_BYTES_MAX: f64 = 1e15;

/// `20000`, `20_000`, `20k`, `1.5M`.
pub fn parse_count(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text)?;
    let scale = match unit {
        "" => 1.0,
        "k" | "K" => 1e3,
        "m" | "M" => 1e6,
        "g" | "G" => 1e9,
        other => return Err(format!("unknown unit \"{other}\"; write a number, or use k, M or G")),
    };
    bounded(number * scale, COUNT_MAX, "10 thousand million")
}

/// `5Gbps`, `800Mb/s`, `0.5Tbit/s`, in Gb/s (10^9 bits per second). A bare number has no unit and is refused.
pub fn parse_bandwidth(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text)?;
    if unit.contains('B') {
        return Err(format!("\"{unit}\" is bytes; write bits per second, eight times the number, such as 5Gbps"));
    }
    let prefix = ["bit/s", "bps", "b/s", "bit"].iter().find_map(|end| unit.strip_suffix(end)).unwrap_or(unit);
    let gigabits = match prefix {
        "k" | "K" => 1e-6,
        "m" | "M" => 1e-3,
        "g" | "G" => 1.0,
        "t" | "T" => 1e3,
        "" => return Err("without a unit; write it with one, such as 5Gbps or 800Mbps".to_owned()),
        other => return Err(format!("unknown unit \"{other}\"; use kbps, Mbps, Gbps or Tbps")),
    };
    bounded(number * gigabits, GIGABITS_MAX, "100 Tb/s")
}

/// `16`, `16G` and `16GB` are 16 * 10^9 bytes, `16GiB` is 16 * 2^30.
pub fn parse_memory(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text)?;
    let scale = match unit {
        "" | "G" | "g" | "GB" => 1e9,
        "M" | "MB" => 1e6,
        "T" | "TB" => 1e12,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        "TiB" => 1_099_511_627_776.0,
        other => return Err(format!("unknown unit \"{other}\"; use MB, GB, TB or MiB, GiB, TiB")),
    };
    bounded(number * scale, MEMORY_BYTES_MAX, "1000 TB")
}

/// A share to add to every requirement: 0.3 is 30 %.
pub fn parse_margin(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(margin) if (0.0..=10.0).contains(&margin) => Ok(margin),
        _ => Err("a margin is a share between 0 and 10; 0.3 plans for 30 % more than the requirements".to_owned()),
    }
}

fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-._,".contains(c))).unwrap_or(text.len());
    let digits: String = text[..end].chars().filter(|c| !"_,".contains(*c)).collect();
    let number = digits.parse::<f64>().map_err(|_| format!("\"{text}\" is not a number with a unit"))?;
    Ok((number, text[end..].trim()))
}

fn bounded(value: f64, limit: f64, limit_shown: &str) -> Result<f64, String> {
    match value {
        v if !v.is_finite() || v > limit => {
            Err(format!("more than {limit_shown}: that is not one service; check the number and its unit"))
        }
        0.0 => Err("zero is no requirement; leave the flag out instead".to_owned()),
        v if v < 0.0 => Err("a requirement cannot be negative".to_owned()),
        v => Ok(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_as_meant_or_refused() {
        assert_eq!(parse_count("20k"), Ok(20_000.0));
        assert_eq!(parse_count("1_000_000"), parse_count("1M"));
        assert_eq!(parse_bandwidth("5Gbps"), Ok(5.0));
        assert_eq!(parse_bandwidth("500 Mb/s"), Ok(0.5));
        assert_eq!(parse_memory("16"), Ok(16e9));
        assert_eq!(parse_memory("1GiB"), Ok(1_073_741_824.0));
        for (text, part) in
            [("0", "zero"), ("-1", "negative"), ("1e", "unknown"), ("99999G", "more than"), ("x", "not")]
        {
            assert!(parse_count(text).unwrap_err().contains(part), "{text}");
        }
        assert!(parse_bandwidth("5").unwrap_err().contains("unit"));
        assert!(parse_bandwidth("5GB/s").unwrap_err().contains("bytes"));
        assert!(parse_margin("NaN").is_err() && parse_margin("-0.1").is_err());
    }
}
