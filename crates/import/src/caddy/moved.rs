//! Paths that a block of Caddy changes before its matchers look at them: `uri` and `rewrite` come before whoever keeps
//! out or answers, so that a matcher behind `uri strip_prefix /api` asks for what is left.

use super::Reader;
use super::guard::{closing, denies};
use super::matchers::{Matched, all_joined};
use crate::guards::Guard;
use crate::plan::Path;
use crate::words::Directive;

impl Reader<'_> {
    /// Has matchers of a block ask below the prefix that it strips. Where that cannot be said, and matchers ask for
    /// paths, those answer nobody whose paths are changed: guards for these, or all of the block.
    pub(super) fn moved(&mut self, owner: &Directive, outer: &[Matched]) -> Vec<Guard> {
        let moves: Vec<(usize, &Directive)> =
            owner.inner().iter().enumerate().filter(|(_, each)| ["uri", "rewrite"].contains(&each.name())).collect();
        let Some((at, first)) = moves.first() else { return Vec::new() };
        let is_ordered = owner.name() == "route" && self.has_matchers(&owner.inner()[..*at]);
        let prefix = stripped(first).filter(|_| moves.len() == 1 && !is_ordered);
        let whole = prefix.map(|prefix| format!("{}{prefix}", self.prefix));
        match whole.filter(|whole| outer.iter().all(|one| is_below(&one.path, whole))) {
            Some(whole) => self.prefix = whole,
            None if self.has_matchers(owner.inner()) => return self.shut(&moves, outer),
            None => {}
        }
        Vec::new()
    }

    /// Guards that refuse requests whose paths are changed, which matchers behind ask for.
    fn shut(&mut self, moves: &[(usize, &Directive)], outer: &[Matched]) -> Vec<Guard> {
        let mut guards = Vec::new();
        for (_, each) in moves {
            let is_of_some = each.word(1).starts_with(['/', '@']);
            match self.asked_for(each.word(1)).ok().filter(|_| is_of_some && self.prefix.is_empty()) {
                Some(own) => match all_joined(outer, &own) {
                    Ok(all) => {
                        let fix = "what stands behind it asks for the path that it has made: write a route for its \
                                   requests; until then they are answered with 403";
                        self.plan.note(each.line, each.text(), fix);
                        guards.extend(all.iter().map(|one| closing(each.line, one)));
                    }
                    Err(()) => self.close(each),
                },
                None => self.close(each),
            }
        }
        guards
    }

    /// Whether what stands in a block is for some paths and not for others.
    fn has_matchers(&self, block: &[Directive]) -> bool {
        const PATHLESS: &[&str] = &["host", "method", "remote_ip", "client_ip", "header", "query", "protocol"];
        block.iter().any(|each| {
            let word = each.word(1);
            let own = match (is_asked(each), word.chars().next()) {
                (true, Some('/')) => true,
                (true, Some('@')) => {
                    // Matchers of blocks inside are not known yet.
                    let is_pathless = |test: &Directive| PATHLESS.contains(&test.name());
                    self.matchers.get(word).is_none_or(|tests| !tests.iter().all(is_pathless))
                }
                _ => false,
            };
            own || is_block(each) && self.has_matchers(each.inner())
        })
    }
}

fn is_block(each: &Directive) -> bool {
    ["handle", "handle_path", "route"].contains(&each.name())
}

/// Whether a directive stands behind the changes of a path.
fn is_asked(each: &Directive) -> bool {
    const ANSWERS: &[&str] =
        &["reverse_proxy", "php_fastcgi", "file_server", "respond", "error", "abort", "basic_auth", "basicauth"];
    is_block(each) || each.name() == "forward_auth" || ANSWERS.contains(&each.name())
}

pub(super) fn has_guards(block: &[Directive]) -> bool {
    block.iter().any(|each| {
        let is_guard = ["basic_auth", "basicauth", "forward_auth"].contains(&each.name()) || denies(each);
        is_guard || is_block(each) && has_guards(each.inner())
    })
}

/// The prefix that a directive takes from all paths that have it.
fn stripped(each: &Directive) -> Option<&str> {
    let from = if each.word(1) == "*" { 2 } else { 1 };
    let prefix = each.word(from + 1).trim_end_matches('/');
    let is_strip = each.name() == "uri" && each.word(from) == "strip_prefix";
    (is_strip && prefix.starts_with('/') && !prefix.contains(['{', '*'])).then_some(prefix)
}

/// Whether all of a path is below a prefix.
fn is_below(path: &Path, prefix: &str) -> bool {
    let (Path::Prefix(text) | Path::Exact(text)) = path else { return false };
    let (text, prefix) = (text.to_ascii_lowercase(), prefix.to_ascii_lowercase());
    text.strip_prefix(&prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
