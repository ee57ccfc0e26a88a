//! Files of names and hashes, a line `NAME:HASH` for each, as `htpasswd` writes them.

/// A line that cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Number of the line, from 1; 0 for the file as a whole.
    pub line: usize,
    pub what: String,
    pub fix: String,
}

impl BadLine {
    pub fn of(line: usize, what: impl Into<String>, fix: impl Into<String>) -> BadLine {
        BadLine { line, what: what.into(), fix: fix.into() }
    }

    /// A problem of the file as a whole.
    pub fn of_file(what: impl Into<String>, fix: impl Into<String>) -> BadLine {
        BadLine::of(0, what, fix)
    }
}

/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 256;
/// Problems that are told of one file.
const TOLD_MAX: usize = 10;

/// Reads all lines: `read` takes the number of a line, its name and its hash. Lines that are empty or begin with `#`
/// say nothing, nor does what follows a second colon.
pub fn read(text: &[u8], mut read: impl FnMut(usize, &str, &str) -> Result<(), BadLine>) -> Result<(), Vec<BadLine>> {
    let mut bad = Vec::new();
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if let Err(found) = split(line, number).and_then(|(name, hash)| read(number, name, hash)) {
            bad.push(found);
        }
        if bad.len() == TOLD_MAX {
            break;
        }
    }
    if bad.is_empty() { Ok(()) } else { Err(bad) }
}

fn split(line: &[u8], number: usize) -> Result<(&str, &str), BadLine> {
    let fix = "write NAME:HASH";
    let line = std::str::from_utf8(line).map_err(|_| BadLine::of(number, "it is not UTF-8", fix))?;
    // The text is not repeated: it may be a password.
    let (name, rest) = line.split_once(':').ok_or_else(|| BadLine::of(number, "it has no colon", fix))?;
    if !is_name(name) {
        let fix = format!("use 1 to {NAME_BYTES_MAX} bytes without control characters, and no spaces around them");
        return Err(BadLine::of(number, "what stands before the colon cannot be a name", fix));
    }
    Ok((name, rest.split_once(':').map_or(rest, |(hash, _)| hash)))
}

/// Whether a text can be told to a server in a field as it is.
pub fn is_name(name: &str) -> bool {
    let is_short = (1..=NAME_BYTES_MAX).contains(&name.len());
    is_short && name.trim() == name && !name.chars().any(char::is_control)
}
