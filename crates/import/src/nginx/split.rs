//! `split_clients` of nginx: one of several backends for each client.

use super::reader::{Place, Reader};
use crate::plan::{Action, quoted};
use crate::words::Directive;

/// Shares of all clients: nginx has them with two digits behind the point.
const WHOLE: u32 = 10_000;

impl Reader<'_> {
    /// Backends that a `proxy_pass` to a variable of `split_clients` leads to; none where it is no such one, or
    /// where shares or key of it cannot be said.
    pub(super) fn split(&mut self, place: &Place<'_>, location: &Directive, pass: &Directive) -> Option<Action> {
        const FIX: &str = "write the backends with their shares, `backend = [{ name = ..., weight = ... }, ...]`, and \
                           `sticky.key`, in the route";
        let (scheme, variable) = pass.word(1).split_once("://").filter(|(_, rest)| rest.starts_with('$'))?;
        let is_it = |each: &&Directive| each.name() == "split_clients" && each.word(2) == variable;
        let split = place.http.inner().iter().find(is_it)?;
        let (Some(key), Some(shares)) = (key(split.word(1)), shares(split)) else {
            self.plan.note(split.line, split.text(), FIX);
            return None;
        };
        let mut backends: Vec<(String, u32)> = Vec::new();
        for (target, weight) in shares {
            let words = vec!["proxy_pass".to_owned(), format!("{scheme}://{target}")];
            let pass = Directive { line: pass.line, words, block: None };
            // Variables of other splits are not looked for in one.
            let found = if target.contains('$') { None } else { self.proxied(place, location, &pass) };
            let Some(Action::Backend(name)) = found else {
                self.plan.note(split.line, split.text(), FIX);
                return None;
            };
            match backends.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known += weight,
                None => backends.push((name, weight)),
            }
        }
        Some(Action::Split { backends, key })
    }
}

/// The key that decides, as `sticky.key` has it. A text behind the variable only has other clients decided otherwise.
fn key(text: &str) -> Option<String> {
    let rest = text.strip_prefix('$')?;
    let name = match rest.strip_prefix('{') {
        Some(inside) => inside.split_once('}')?.0,
        None => &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())],
    };
    match (name, name.strip_prefix("http_"), name.strip_prefix("cookie_")) {
        ("remote_addr" | "binary_remote_addr", ..) => Some(quoted("client-ip")),
        ("uri" | "request_uri", ..) => Some(quoted("path")),
        (_, Some(field), _) => Some(format!("{{ header = {} }}", quoted(&field.replace('_', "-")))),
        (_, _, Some(cookie)) => Some(format!("{{ cookie = {} }}", quoted(cookie))),
        _ => None,
    }
}

/// Targets with their weights, which make up the whole; none of what is no share.
fn shares(split: &Directive) -> Option<Vec<(&str, u32)>> {
    let (mut all, mut left) = (Vec::new(), WHOLE);
    for each in split.inner() {
        let weight = match each.name().strip_suffix('%') {
            Some(percent) => hundredths(percent)?,
            None if each.name() == "*" => left,
            None => return None,
        };
        left = left.checked_sub(weight)?;
        if weight > 0 {
            all.push((Some(each.word(1)).filter(|target| !target.is_empty())?, weight));
        }
    }
    (left == 0 && !all.is_empty()).then_some(all)
}

fn hundredths(percent: &str) -> Option<u32> {
    let (whole, part) = percent.split_once('.').unwrap_or((percent, "0"));
    let part = match part.len() {
        1 => part.parse::<u32>().ok()? * 10,
        2 => part.parse().ok()?,
        _ => return None,
    };
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{End, directives};

    fn split(text: &str) -> Directive {
        let words = vec!["split_clients".to_owned()];
        Directive { line: 1, words, block: directives(text, End::Semicolon).ok() }
    }

    #[test]
    fn shares_make_up_the_whole_or_are_none() {
        assert_eq!(shares(&split("0.5% a; 10% b; * c;")), Some(vec![("a", 50), ("b", 1000), ("c", 8950)]));
        assert_eq!(shares(&split("50% a; 50% b;")), Some(vec![("a", 5000), ("b", 5000)]));
        for wrong in ["50% a; 60% b;", "50% a;", "x a; * b;", "99999999% a;", "0.123% a; * b;"] {
            assert_eq!(shares(&split(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_is_the_variable_in_front() {
        assert_eq!(key("${remote_addr}AAA"), Some("\"client-ip\"".into()));
        assert_eq!(key("$http_x_user"), Some("{ header = \"x-user\" }".into()));
        assert_eq!((key("$request_id"), key("plain"), key("${open")), (None, None, None));
    }
}
