//! Tree that both languages are read into: tables, arrays and scalars, each with the bytes it was written in.

use std::borrow::Cow;

use crate::text::Span;

/// Tables and arrays inside each other; the schema needs six.
pub(crate) const DEPTH_MAX: usize = 24;

/// A value and where it was written. The span of a `[section]` is its header.
#[derive(Debug)]
pub(crate) struct Node<'t> {
    pub span: Span,
    pub value: Value<'t>,
}

#[derive(Debug)]
pub(crate) enum Value<'t> {
    String(Cow<'t, str>),
    /// Saturated: what does not fit is out of every range anyway.
    Integer(i128),
    Float,
    Boolean(bool),
    Datetime,
    Null,
    Array(Vec<Node<'t>>),
    /// In file order, each key once.
    Table(Vec<Entry<'t>>),
}

/// A key with its value.
#[derive(Debug)]
pub(crate) struct Entry<'t> {
    pub key: Cow<'t, str>,
    pub key_span: Span,
    pub node: Node<'t>,
}

impl Value<'_> {
    /// The kind of value, with its article.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::String(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Float => "a float",
            Value::Boolean(_) => "a boolean",
            Value::Datetime => "a date",
            Value::Null => "null",
            Value::Array(_) => "an array",
            Value::Table(_) => "a table",
        }
    }
}
