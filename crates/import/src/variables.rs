//! Variables of the environment, which a configuration names and a text of Propylon can have: `{$NAME:default}` of
//! Caddy is `${env:NAME:-default}`.
//!
//! While a text is read they stand in it between signs that no configuration has, so that nothing in them counts as a
//! brace, a port or a path.

/// Signs around a variable and between its name and its default; texts have none of these for anything else.
pub const BEGIN: char = '\u{f8f0}';
const MIDDLE: char = '\u{f8f1}';
pub const END: char = '\u{f8f2}';

const ENVIRONMENT: &str = "{env.";

/// A text of Caddy with signs in place of its variables.
pub fn marked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    // Placeholders that Caddy fills in for each request are of the same environment.
    let next = |rest: &str| ["{$", ENVIRONMENT].iter().filter_map(|open| Some((rest.find(open)?, open.len()))).min();
    while let Some((at, length)) = next(rest) {
        out.push_str(&plain(&rest[..at]));
        let open = &rest[at..at + length];
        let inside = &rest[at + length..];
        let line = inside.find('\n').unwrap_or(inside.len());
        let is_said = |name: &str| open != ENVIRONMENT || !name.contains(':');
        let end = inside[..line].find('}').filter(|end| is_said(&inside[..*end]));
        let found = end.and_then(|end| Some((variable(&inside[..end])?, end)));
        match found {
            Some((said, end)) => {
                out.push_str(&said);
                rest = &inside[end + 1..];
            }
            None => {
                out.push_str(open);
                rest = inside;
            }
        }
    }
    out.push_str(&plain(rest));
    out
}

/// A text without signs of its own.
pub fn plain(text: &str) -> String {
    text.replace([BEGIN, MIDDLE, END], "\u{fffd}")
}

/// A variable between its signs.
pub fn sign(name: &str, default: Option<&str>) -> String {
    let default = default.map(|text| format!("{MIDDLE}{text}")).unwrap_or_default();
    format!("{BEGIN}{name}{default}{END}")
}

/// Whether all variables of a text have names and defaults that Propylon takes.
pub fn is_plain(text: &str) -> bool {
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    text.split(BEGIN).skip(1).all(|part| {
        let inside = part.split(END).next().unwrap_or_default();
        let (name, default) = inside.split_once(MIDDLE).unwrap_or((inside, ""));
        is_name(name) && !default.contains(|c: char| c.is_whitespace() || "{}\"`\\$".contains(c))
    })
}

fn variable(inside: &str) -> Option<String> {
    let (name, default) = match inside.split_once(':') {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    // A default of several words would be cut in Caddy as well.
    let is_plain = default.is_none_or(|text| !text.contains(|c: char| c.is_whitespace() || "{}\"`\\$".contains(c)));
    (is_name && is_plain).then(|| sign(name, default))
}

/// Whether there is a variable in a text.
pub fn is_in(text: &str) -> bool {
    text.contains(BEGIN)
}

/// A text with its variables as Propylon writes them.
pub fn written(text: &str) -> String {
    text.replace(BEGIN, "${env:").replace(MIDDLE, ":-").replace(END, "}")
}

/// A text with its variables as Caddy writes them, for people to read.
pub fn read(text: &str) -> String {
    text.replace(BEGIN, "{$").replace(MIDDLE, ":").replace(END, "}")
}

/// Letters in lower case, but for names of variables.
pub fn lower(text: &str) -> String {
    let mut is_inside = false;
    let one = |c: char| {
        is_inside = c != END && (is_inside || c == BEGIN);
        if is_inside { c } else { c.to_ascii_lowercase() }
    };
    text.chars().map(one).collect()
}

/// A text of Propylon with something in place of each variable: its default, or a word.
pub fn filled(text: &str) -> String {
    const OPEN: &str = "${env:";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(OPEN).filter(|at| !rest[..*at].ends_with('$')) {
        out.push_str(&rest[..at]);
        let inside = &rest[at + OPEN.len()..];
        let end = inside.find('}').unwrap_or(inside.len());
        out.push_str(inside[..end].split_once(":-").map_or("x", |(_, default)| default));
        rest = inside.get(end + 1..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_caddy_are_those_of_propylon() {
        let said = |text: &str| written(&marked(text));
        assert_eq!(said("{$DOMAIN} {\n"), "${env:DOMAIN} {\n");
        assert_eq!(said("to {$APP:app.internal:8080}/x"), "to ${env:APP:-app.internal:8080}/x");
        for other in ["{$} x", "{$1X}", "{$A b}", "{$A:b c}", "{$A\n}", "{$", "{host}"] {
            assert_eq!(said(other), other);
        }
        assert_eq!(read(&marked("a {$B:c}")), "a {$B:c}");
        assert_eq!(written(&lower(&marked("WWW.{$Zone:A}.X"))), "www.${env:Zone:-A}.x");
        assert_eq!(filled("${env:A} ${env:B:-b.c} $${env:D}"), "x b.c $${env:D}");
    }
}
