//! How long functions are, and how many parameters they have.

use std::path::{Path, PathBuf};

use super::lexer::Source;
use super::tokens::{Token, is_name, text_at, tokens};

/// Lines of a function from its `fn` to its last brace, and parameters but `self`: with more than these a noun may be
/// missing.
pub const LINES_MAX: usize = 70;
pub const PARAMETERS_MAX: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub file: PathBuf,
    pub line: usize,
    pub name: String,
    pub lines: usize,
    /// Without `self`.
    pub parameters: usize,
}

/// The functions of a file that have a body, or of a trait that have none; closures are none.
pub fn functions(file: &Path, source: &Source<'_>) -> Vec<Function> {
    let tokens = tokens(&source.separated.code);
    let starts = (0..tokens.len()).filter(|at| tokens[*at].text == "fn" && is_name(text_at(&tokens, at + 1)));
    starts.filter_map(|at| function(file, &tokens, at)).collect()
}

fn function(file: &Path, tokens: &[Token<'_>], at: usize) -> Option<Function> {
    let mut open = at + 2;
    if text_at(tokens, open) == "<" {
        open = behind_generics(tokens, open);
    }
    if text_at(tokens, open) != "(" {
        return None;
    }
    let (parameters, close) = parameters(tokens, open);
    let end = body_end(tokens, close)?;
    let line = tokens[at].line;
    let lines = tokens[end].line - line + 1;
    Some(Function { file: file.to_owned(), line, name: tokens[at + 1].text.to_owned(), lines, parameters })
}

/// Where `<...>` is over. The `>` of `->` closes nothing.
fn behind_generics(tokens: &[Token<'_>], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at].text {
            "<" => depth += 1,
            ">" if text_at(tokens, at - 1) != "-" => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// How many there are between these parentheses, `self` not among them, and where they close.
fn parameters(tokens: &[Token<'_>], open: usize) -> (usize, usize) {
    let (mut depth, mut at, mut count, mut is_self, mut is_empty) = (0_usize, open, 0, false, true);
    while at < tokens.len() {
        match tokens[at].text {
            "(" | "[" | "{" | "<" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            ">" if !matches!(text_at(tokens, at - 1), "-" | "=") => depth -= 1,
            "," if depth == 1 => {
                count += usize::from(!is_self);
                (is_self, is_empty) = (false, true);
                at += 1;
                continue;
            }
            // The name of a parameter: `&'a mut self`, `self: Box<Self>`, but no `self::Type`.
            "self" if depth == 1 && text_at(tokens, at + 1) != "::" => is_self = true,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        is_empty &= at == open;
        at += 1;
    }
    (count + usize::from(!is_empty && !is_self), at)
}

/// The last token of a function whose parameters close there: a `;`, or the brace that closes its body.
fn body_end(tokens: &[Token<'_>], close: usize) -> Option<usize> {
    let (mut depth, mut braces) = (0_usize, 0_usize);
    for (at, token) in tokens.iter().enumerate().skip(close + 1) {
        match token.text {
            // `[u8; 2]` in what is returned.
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            ";" if depth == 0 && braces == 0 => return Some(at),
            "{" => braces += 1,
            "}" => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<(String, usize, usize)> {
        let found = functions(Path::new("a.rs"), &Source::of(code));
        found.into_iter().map(|function| (function.name, function.lines, function.parameters)).collect()
    }

    #[test]
    fn parameters_are_counted_without_self() {
        for (code, parameters) in [
            ("fn f() {}", 0),
            ("fn f(a: A) {}", 1),
            ("fn f(a: A, b: B,) {}", 2),
            ("fn f(&self) {}", 0),
            ("fn f(&'a mut self, a: A) {}", 1),
            ("fn f(self: Rc<Self>, a: A) {}", 1),
            ("fn f(a: self::A) {}", 1),
            ("fn f((a, b): (A, B), c: [u8; 2]) {}", 2),
            ("fn f(a: HashMap<A, B>, b: C<D<E, F>>, c: impl Fn(G, H) -> I) {}", 3),
            ("fn f<A: Fn(B, C) -> D, const E: usize>(a: A) {}", 1),
            ("fn f(\n    a: A,\n    // why, and, so\n    b: B,\n) -> C where D: E<F, G> {}", 2),
            ("fn f(a: &dyn Fn(A, B), b: fn(C, D) -> E) {}", 2),
        ] {
            let found = found(code);
            assert_eq!((found.len(), found[0].2), (1, parameters), "{code}");
        }
    }

    #[test]
    fn lines_are_counted_from_the_name_to_the_last_brace() {
        for (code, lines) in [
            ("fn f() {}", 1),
            ("/// a\n#[b]\npub fn f() {\n    c\n}\n", 3),
            ("fn f(\n    a: A,\n) -> [u8; 2] {\n    // }\n    \"}\"\n}\n", 6),
            ("trait A { fn f(); }", 1),
            ("fn f() -> B {\n    if c { d } else { e }\n\n    g(|| { h })\n}\nfn", 5),
        ] {
            let found = found(code);
            assert_eq!((found.len(), found[0].1), (1, lines), "{code}");
        }
    }

    #[test]
    fn functions_inside_functions_count_for_themselves_and_types_and_closures_do_not() {
        let code = "fn a(b: fn(C) -> D) {\n    fn e(f: G) {\n    }\n    let h = |i, j| k;\n}\n// fn l() {}\n";
        assert_eq!(found(code), [("a".to_owned(), 5, 1), ("e".to_owned(), 2, 1)]);
        assert_eq!(found("macro_rules! m { () => { fn $name() {} } }"), []);
        assert_eq!(found("fn a("), []);
    }
}
