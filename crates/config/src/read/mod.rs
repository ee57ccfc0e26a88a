//! From text to tree: one reader for each language, which report what is wrong with the syntax.

pub(crate) mod json;
pub(crate) mod toml;

use crate::text::Span;
use crate::tree::Node;

/// Result of reading a text.
#[derive(Debug)]
pub(crate) struct Reading<'t> {
    /// Absent: nothing in the text can be relied on. Otherwise a table.
    pub root: Option<Node<'t>>,
    pub faults: Vec<Fault>,
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
