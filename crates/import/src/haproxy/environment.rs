//! Variables of the environment in `haproxy.cfg`: `$NAME`, `${NAME}` and `${NAME-default}` between double quotes.

use super::lines::{Line, Section};
use crate::plan::Plan;
use crate::variables::{self, is_in, sign};

/// The variable at the beginning of a text behind its `$`, with signs around it, and what is behind it.
pub(super) fn variable(text: &str) -> Option<(String, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let inside = text.strip_prefix('{');
    let name = inside.unwrap_or(text);
    let end = name.find(|c| !is_name(c)).unwrap_or(name.len());
    let (name, rest) = name.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if inside.is_none() {
        return Some((sign(name, None), rest));
    }
    let (behind, rest) = rest.split_once('}')?;
    match behind.strip_prefix('-') {
        Some(default) => Some((sign(name, Some(default)), rest)),
        None => Some((sign(&format!("{name}{behind}"), None), rest)),
    }
}

/// Lines that have a variable at any place, and where no use is told: it is only said here or on the log.
const NEEDLESS: &[&str] =
    &["log", "log-format", "log-tag", "stats", "description", "pidfile", "chroot", "node", "localpeer"];

/// Has variables stand where the engine's own can, or where they are told of by whoever reads the line: in tests, as no
/// test that is known. Others are told, and stay as they are written.
pub(super) fn settle(sections: &mut [Section], plan: &mut Plan) {
    for section in sections {
        let is_user = section.kind == "userlist";
        for line in section.lines.iter_mut().filter(|line| line.words.iter().any(|word| is_in(word))) {
            let is_left = |index: usize| is_user || is_place(line, index) && variables::is_plain(line.word(index));
            let lost: Vec<usize> = (0..line.words.len())
                .filter(|index| is_in(line.word(*index)) && (!is_left(*index) || NEEDLESS.contains(&line.word(0))))
                .collect();
            if !lost.is_empty() && !NEEDLESS.contains(&line.word(0)) {
                let fix = "its variable of the environment is not carried over: write what it stands for";
                plan.note(line.number, line.text(), fix);
            }
            for index in lost {
                line.words[index] = variables::read(line.word(index)).replace("{$", "${");
            }
        }
    }
}

/// Whether a variable may stand at this word of a line.
fn is_place(line: &Line, index: usize) -> bool {
    let condition = line.words.iter().position(|word| word == "if" || word == "unless");
    if condition.is_some_and(|condition| index > condition) {
        return true;
    }
    match (line.word(0), line.word(1)) {
        ("acl", _) => index > 1,
        ("server", _) => index == 2,
        ("bind", _) => index == 1 || ["crt", "ca-file", "crl-file"].contains(&line.word(index - 1)),
        ("use_backend" | "default_backend", _) => index == 1,
        ("http-request" | "http-response", "set-header" | "add-header") => index == 3,
        ("redirect", "prefix" | "location") => index == 2,
        ("http-request", "redirect") => index == 3 && ["prefix", "location"].contains(&line.word(2)),
        _ => false,
    }
}
