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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_that_a_field_can_hold_as_it_is() {
        let long = "n".repeat(NAME_BYTES_MAX);
        for good in ["a", "ann lee", "jos\u{e9}", "a\u{a0}b", &long] {
            assert!(is_name(good), "{good:?}");
        }
        // An ideographic space is one around a name, and two bytes of a letter count as two.
        for bad in ["", " a", "a ", "a\u{3000}", "a\tb", "a\0b", "a\rb", "a\nb", "a\u{1b}[2Jb", "a\u{7f}b", "a\u{85}b"]
        {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(!is_name(&format!("{long}n")) && !is_name(&"\u{e9}".repeat(NAME_BYTES_MAX / 2 + 1)));
    }

    #[test]
    fn a_line_whose_name_has_control_characters_is_refused_and_the_others_are_read() {
        let mut names = Vec::new();
        let bad = read(b"ann:1\na\tb:2\na\x1bb:3\na\x7fb:4\n\xc2\x85x:5\nbob:6:7", |_, name, hash| {
            names.push(format!("{name}={hash}"));
            Ok(())
        });
        assert_eq!(names, ["ann=1", "bob=6"]);
        assert_eq!(bad.unwrap_err().iter().map(|bad| bad.line).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(read("x\n".repeat(50).as_bytes(), |_, _, _| Ok(())).unwrap_err().len(), TOLD_MAX);
    }
}
