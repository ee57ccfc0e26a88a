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

/// A piece of a text that takes the place of what a pattern has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Substitute {
    /// The text itself.
    Text(String),
    /// Text that the group of this number has found; 0 is all that the pattern has.
    Group(usize),
}

/// Takes a text with `$1`, `${1}`, `${name}` and `$$` apart, for a pattern that has the groups.
///
/// # Errors
/// A sentence on what is wrong with it.
pub fn substitutes(text: &str, pattern: &regex::bytes::Regex) -> Result<Vec<Substitute>, String> {
    let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        plain.push_str(before);
        let (name, behind) = match after.strip_prefix('{') {
            Some(inner) => inner.split_once('}').ok_or("a `${` is without its `}`")?,
            None => after.split_at(after.bytes().take_while(u8::is_ascii_digit).count()),
        };
        if let Some(behind) = after.strip_prefix('$') {
            plain.push('$');
            rest = behind;
            continue;
        }
        let number = match name.parse() {
            _ if name.is_empty() => {
                return Err("a `$` stands for nothing; write `$1`, `${name}`, or `$$` for a dollar".into());
            }
            Ok(number) => Some(number).filter(|number| *number < pattern.captures_len()),
            Err(_) => pattern.capture_names().position(|known| known == Some(name)),
        };
        let number = number.ok_or_else(|| format!("the pattern has no group {name}"))?;
        if !plain.is_empty() {
            pieces.push(Substitute::Text(std::mem::take(&mut plain)));
        }
        pieces.push(Substitute::Group(number));
        rest = behind;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Substitute::Text(plain));
    }
    Ok(pieces)
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

    #[test]
    fn dollars_stand_for_what_groups_have_found() {
        let pattern = compile("^/(a+)/(?P<rest>.*)$").unwrap();
        let of = |text: &str| substitutes(text, &pattern);
        let text = |text: &str| Substitute::Text(text.into());
        assert_eq!(of("/x$1y"), Ok(vec![text("/x"), Substitute::Group(1), text("y")]));
        assert_eq!(of("${1}0${rest}"), Ok(vec![Substitute::Group(1), text("0"), Substitute::Group(2)]));
        assert_eq!(of("/a$$1$0"), Ok(vec![text("/a$1"), Substitute::Group(0)]));
        assert_eq!((of(""), of("/")), (Ok(Vec::new()), Ok(vec![text("/")])));
        for (wrong, part) in [
            ("$3", "no group 3"),
            ("$10", "no group 10"),
            ("${x}", "no group x"),
            ("$x", "`$$`"),
            ("${1", "without its"),
            ("$", "`$$`"),
        ] {
            assert!(of(wrong).unwrap_err().contains(part), "{wrong}: {:?}", of(wrong));
        }
    }
}
