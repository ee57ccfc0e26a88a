//! Recording of what a schema reads: which keys each table may have, and in which forms.
//!
//! A schema is described by having it read a tree of empty tables. What it asks for is recorded; the tables that it
//! asks for are in the tree of the next pass, until a pass asks for no new one.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use crate::text::Span;
use crate::tree::{Entry, Node, Value};

/// A form that the value of a key may have.
#[derive(Clone)]
pub(crate) enum Form<'f> {
    String,
    /// One of these words.
    Words(&'f [&'static str]),
    Integer(RangeInclusive<i128>),
    /// One of these integers.
    Integers(&'f [u16]),
    Number(RangeInclusive<f64>),
    Boolean,
    /// A text such as `"30s"`.
    Duration,
    /// A text such as `"20%"`.
    Share,
    /// A number of bytes, or a text such as `"16KiB"`.
    Size(RangeInclusive<u64>),
    /// An array of items, each in one of these forms.
    List(&'f [Form<'f>]),
    /// A table with keys of its own.
    Table,
    /// A table of strings whose keys are the user's choice.
    Strings,
    /// A table of tables whose keys are the user's choice.
    Named,
    /// A table of strings or tables whose keys are the user's choice.
    Texts,
}

/// Index of a table into [`Recorder::tables`].
pub(crate) type TableId = usize;

/// A form as it was recorded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    String,
    Words(Vec<&'static str>),
    Integer(RangeInclusive<i128>),
    Integers(Vec<u16>),
    Number(RangeInclusive<f64>),
    Boolean,
    Duration,
    Share,
    Size(RangeInclusive<u64>),
    List(Vec<Shape>),
    Table(TableId),
    Strings,
    Named(TableId),
    Texts(TableId),
}

/// A key of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Key {
    pub name: &'static str,
    /// Forms that its value may have; empty while the schema has only looked whether the key is there.
    pub shapes: Vec<Shape>,
    /// Value that stands in for an absent key, where its reader says so.
    pub default: Option<serde_json::Value>,
    /// Whether the table is refused without the key.
    pub is_required: bool,
    /// Whether the key is only understood for files that were written for earlier versions.
    pub is_former: bool,
    /// Whether the key is refused, with a reason of its own.
    pub is_refused: bool,
}

/// A table, by what was asked of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub keys: Vec<Key>,
    /// Whether keys that nobody asked for are errors.
    pub is_closed: bool,
    /// Keys of which exactly one has to be there.
    pub one_of: Vec<&'static str>,
    /// Sets of keys of which at least one has to be there as a whole.
    pub any_of: Vec<&'static [&'static str]>,
}

impl Table {
    pub fn key(&mut self, name: &'static str) -> &mut Key {
        let place = self.keys.iter().position(|key| key.name == name).unwrap_or_else(|| {
            self.keys.push(Key { name, ..Key::default() });
            self.keys.len() - 1
        });
        &mut self.keys[place]
    }
}

/// Tables that a schema has asked for, the whole file first.
#[derive(Debug)]
pub(crate) struct Recorder {
    tables: RefCell<Vec<Table>>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder { tables: RefCell::new(vec![Table::default()]) }
    }
}

impl Recorder {
    pub fn into_tables(self) -> Vec<Table> {
        self.tables.into_inner()
    }

    pub fn count(&self) -> usize {
        self.tables.borrow().len()
    }

    pub fn change(&self, table: TableId, change: impl FnOnce(&mut Table)) {
        change(&mut self.tables.borrow_mut()[table]);
    }

    /// Records the forms of a key; those that it was given first stand.
    pub fn record(&self, table: TableId, name: &'static str, forms: &[Form<'_>]) {
        let mut tables = self.tables.borrow_mut();
        if tables[table].key(name).shapes.is_empty() {
            let mut shapes: Vec<Shape> = forms.iter().map(|form| shape(form, &mut tables)).collect();
            unite(&mut shapes);
            tables[table].key(name).shapes = shapes;
        }
    }

    /// A file with one of each table that is known, all of them empty but for each other.
    pub fn tree(&self) -> Node<'static> {
        table_node(&self.tables.borrow(), 0)
    }
}

fn shape(form: &Form<'_>, tables: &mut Vec<Table>) -> Shape {
    let mut next = || {
        tables.push(Table::default());
        tables.len() - 1
    };
    match form {
        Form::String => Shape::String,
        Form::Words(words) => Shape::Words(words.to_vec()),
        Form::Integer(range) => Shape::Integer(range.clone()),
        Form::Integers(values) => Shape::Integers(values.to_vec()),
        Form::Number(range) => Shape::Number(range.clone()),
        Form::Boolean => Shape::Boolean,
        Form::Duration => Shape::Duration,
        Form::Share => Shape::Share,
        Form::Size(range) => Shape::Size(range.clone()),
        Form::List(items) => Shape::List(items.iter().map(|item| shape(item, tables)).collect()),
        Form::Table => Shape::Table(next()),
        Form::Strings => Shape::Strings,
        Form::Named => Shape::Named(next()),
        Form::Texts => Shape::Texts(next()),
    }
}

/// A table that a key holds, and one in a list that it may hold as well, are one.
fn unite(shapes: &mut [Shape]) {
    let Some(Shape::Table(alone)) = shapes.iter().find(|shape| matches!(shape, Shape::Table(_))).cloned() else {
        return;
    };
    let lists = shapes.iter_mut().filter_map(|shape| if let Shape::List(items) = shape { Some(items) } else { None });
    for item in lists.flatten() {
        if let Shape::Table(id) = item {
            *id = alone;
        }
    }
}

/// The span of a table's node is its id, by which a section of it is known.
fn table_node(tables: &[Table], id: TableId) -> Node<'static> {
    let span = Span::new(id, id);
    let entry = |name: &'static str, node| Entry { key: name.into(), key_span: span, node };
    let value = |shape: &Shape| match shape {
        Shape::Table(id) => Some(table_node(tables, *id)),
        Shape::Named(id) | Shape::Texts(id) => {
            Some(Node { span, value: Value::Table(vec![entry("NAME", table_node(tables, *id))]) })
        }
        Shape::List(items) => {
            let id = items.iter().find_map(|item| if let Shape::Table(id) = item { Some(*id) } else { None })?;
            Some(Node { span, value: Value::Array(vec![table_node(tables, id)]) })
        }
        _ => None,
    };
    let entries = tables[id].keys.iter().filter_map(|key| Some(entry(key.name, key.shapes.iter().find_map(value)?)));
    Node { span, value: Value::Table(entries.collect()) }
}
