//! Patterns (regular expressions) in a configuration, by the syntax of the crate `regex`.

use regex::bytes::RegexBuilder;

/// Bytes that a compiled pattern may take, and levels to which it may be nested.
const BYTES_MAX: usize = 32 << 10;
const NESTING_MAX: u32 = 50;

/// Compiles a pattern. It is one of bytes, since texts of requests need not be UTF-8: `.` is any byte, and `\w`, `\d`
/// and `(?i)` know ASCII alone. A search takes time in proportion to the text and to the size of the pattern, which is bounded for that: a
/// worker searches while others wait.
///
/// # Errors
/// A syntax error, or a pattern that takes more than 32 KiB or is nested more than 50 deep.
pub fn compile(pattern: &str) -> Result<regex::bytes::Regex, regex::Error> {
    let mut builder = RegexBuilder::new(pattern);
    builder.unicode(false).dot_matches_new_line(true).size_limit(BYTES_MAX).nest_limit(NESTING_MAX).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_of_bytes_and_bounded() {
        assert!(compile("^/.*[.]php$").unwrap().is_match(b"/\xff\n.php"));
        assert!(compile("^/gr\u{fc}n$").unwrap().is_match("/gr\u{fc}n".as_bytes()));
        let words = format!("^/({})/", (0..60).map(|n| format!("word{n}")).collect::<Vec<String>>().join("|"));
        for taken in [words.as_str(), "(?i)^/[a-z0-9._-]{1,64}/v[0-9]+/.*[.](js|css|png|jpe?g|svg|woff2?)$"] {
            assert!(compile(taken).is_ok(), "{taken}");
        }
        for refused in ["(", "a{1000}{1000}", "(.{1,200}[ab]){1,10}z", &"(".repeat(60), "(?P<"] {
            assert!(compile(refused).is_err(), "{refused}");
        }
    }
}
