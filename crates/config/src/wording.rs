//! Words of messages: names and values as they are repeated in one.

use crate::problem::acts_on_terminal;

/// A name or value as it is repeated in a message: short, on one line, harmless.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    let mut out = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == SHOWN_MAX {
            out.push('…');
            break;
        }
        if acts_on_terminal(character) {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    out
}

/// "a", "a or b", "a, b or c", each in quotes; of many only the first.
pub(crate) fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const NAMES_MAX: usize = 12;
    let mut names = names.into_iter();
    let mut shown: Vec<String> = names.by_ref().take(NAMES_MAX).map(|name| format!("\"{}\"", shown(name))).collect();
    if names.next().is_some() {
        shown.push("another".into());
    }
    match shown.pop() {
        None => String::new(),
        Some(last) if shown.is_empty() => last,
        Some(last) => format!("{} or {last}", shown.join(", ")),
    }
}

/// Fields by which clients say who they are, and that no server gets as they came.
pub(crate) fn is_claim(name: &str) -> bool {
    name.starts_with("x-forwarded-") || ["forwarded", "x-real-ip", "client-cert", "client-cert-chain"].contains(&name)
}
