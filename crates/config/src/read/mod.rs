//! From text to tree: one reader for each language, which report what is wrong with the syntax.

pub(crate) mod json;
pub(crate) mod toml;

mod whole;

use crate::environment::Substituted;
use crate::text::Span;
use crate::tree::Node;
pub(crate) use whole::whole;

/// Result of reading a text.
#[derive(Debug, Default)]
pub(crate) struct Reading<'t> {
    /// Absent: nothing in the text can be relied on. Otherwise a table.
    pub root: Option<Node<'t>>,
    pub faults: Vec<Fault>,
    /// Strings in which variables were put.
    pub substituted: Vec<Substituted>,
}

impl<'t> Reading<'t> {
    pub fn new(root: Option<Node<'t>>, faults: Vec<Fault>) -> Reading<'t> {
        Reading { root, faults, substituted: Vec::new() }
    }
}

/// A syntax error.
#[derive(Debug)]
pub(crate) struct Fault {
    pub span: Option<Span>,
    pub what: String,
    pub fix: String,
    /// Text that may be missing from the tree, or be in the wrong place; with it the rest of its section.
    pub damage: Option<Span>,
}
