//! Code as a row of tokens, each with its line: for rules about what names what, and where functions begin and end.

/// A name, `::`, or any other character by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'t> {
    pub text: &'t str,
    /// Counted from 1.
    pub line: usize,
}

/// Tokens of code from which comments and literals are gone.
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    for (text, line) in code.lines().zip(1..) {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                _ if is_name_part(first) => rest.find(|part| !is_name_part(part)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            found.push(Token { text: &rest[..length], line });
            rest = rest[length..].trim_start();
        }
    }
    found
}

/// Whether it is a name or a keyword; numbers are none.
pub fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Tokens without the items that are compiled for tests alone, and the names of the modules among those items.
pub fn without_tests<'t>(tokens: &[Token<'t>]) -> (Vec<Token<'t>>, Vec<&'t str>) {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let is_mark = MARK.iter().enumerate().all(|(ahead, text)| text_at(tokens, at + ahead) == *text);
        if !is_mark {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        let end = item_end(tokens, at + MARK.len());
        modules.extend(tokens[at..end].windows(2).find(|pair| pair[0].text == "mod").map(|pair| pair[1].text));
        at = end;
    }
    (kept, modules)
}

/// The place behind an item: behind its first `;`, or behind the braces that it ends with.
fn item_end(tokens: &[Token<'_>], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while at < tokens.len() {
        match tokens[at].text {
            "{" | "(" | "[" => depth += 1,
            close @ ("}" | ")" | "]") => {
                // A field or a variant ends with the braces that it stands in.
                let Some(outer) = depth.checked_sub(1) else { return at };
                depth = outer;
                // A use tree goes on behind its braces.
                if depth == 0 && close == "}" && text_at(tokens, at + 1) != ";" {
                    return at + 1;
                }
            }
            ";" | "," if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// The text of a token; empty behind the end.
pub fn text_at<'t>(tokens: &[Token<'t>], at: usize) -> &'t str {
    tokens.get(at).map_or("", |token| token.text)
}

fn is_name_part(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_their_lines() {
        let found: Vec<_> = tokens("a::b(c)\n\n  d_1;").iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(found, [("a", 1), ("::", 1), ("b", 1), ("(", 1), ("c", 1), (")", 1), ("d_1", 3), (";", 3)]);
    }

    #[test]
    fn items_for_tests_alone_are_left_out() {
        for (code, kept, modules) in [
            ("a #[cfg(test)] mod tests { b { c } } d", "a d", vec!["tests"]),
            ("a #[cfg(test)] mod simulation; d", "a d", vec!["simulation"]),
            ("a #[cfg(test)] #[allow(x)] use b::{c, d}; e", "a e", vec![]),
            ("struct a { #[cfg(test)] b: C<D>, e: F }", "struct a { e : F }", vec![]),
            ("struct a { b: C, #[cfg(test)] d: E }", "struct a { b : C , }", vec![]),
            ("#[cfg(test)] fn a(b: C) -> [u8; 2] { d } e", "e", vec![]),
            ("#[cfg(not(test))] a", "# [ cfg ( not ( test ) ) ] a", vec![]),
        ] {
            let tokens = tokens(code);
            let (left, found) = without_tests(&tokens);
            let left: Vec<_> = left.iter().map(|token| token.text).collect();
            assert_eq!((left.join(" ").as_str(), found), (kept, modules), "{code}");
        }
    }
}
