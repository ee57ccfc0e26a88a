//! The path of a request in canonical form: what servers are asked for, and what routes are matched on.
//!
//! A route that guards (`respond`, `require_client_certificate`) is worth nothing if a server understands under another
//! spelling what the route did not: `//secret`, `/./secret`, `/a/../secret`, `/%73ecret`. So a path is brought into one form
//! before anything is decided by it, and that form is what is forwarded. See `docs/decisions/0036-canonical-paths.md`.
//!
//! Definitions of the two forms, and how a path is brought into them, stand in `propylon_config::canonical`.

use propylon_config::PathRules;
use propylon_config::canonical::{PathFault, Rewritten};

use super::Reject;
use super::grammar::{PATH_MARK, PATH_STEP, class};
use crate::fault::Fault;

/// Whether a path is its own canonical form and key, as nearly all are: one look at each byte. False says nothing.
#[inline]
pub fn is_plain(path: &[u8]) -> bool {
    let (mut suspicious, mut after_slash) = (0, 0);
    for &byte in path {
        let class = class(byte);
        suspicious |= (class & PATH_MARK) | (class & after_slash);
        after_slash = if byte == b'/' { PATH_STEP } else { 0 };
    }
    suspicious == 0
}

/// Brings a path of an http(s) target, which begins with a slash, into its two forms.
///
/// # Errors
/// 400 for spellings that servers read differently, unless `rules` allow them, and for escapes that are none.
pub fn rewrite(path: &[u8], rules: PathRules) -> Result<Rewritten, Reject> {
    propylon_config::canonical::rewrite(path, rules).map_err(|fault| match fault {
        PathFault::Backslash => Reject::of(Fault::BackslashInPath),
        PathFault::EscapedSlash => Reject::of(Fault::EscapedSlash),
        PathFault::EscapedNul => Reject::of(Fault::EscapedNul),
        PathFault::BadEscape => Reject::of(Fault::BadEscape),
        PathFault::AboveRoot => Reject::of(Fault::PathAboveRoot),
        PathFault::HiddenSegment => Reject::of(Fault::HiddenSegment),
    })
}
