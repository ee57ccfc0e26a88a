//! JSON Schema (draft 2020-12) of configuration files, from what their schemas read.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::describe::{Key, Recorder, Shape, Table, TableId};
use crate::provenance::Provenance;
use crate::read::Reading;
use crate::report::Report;
use crate::schema;
use crate::text::Lines;
use crate::tree::Node;
use crate::units::{DURATION_PATTERN, SHARE_PATTERN, SIZE_PATTERN};
use crate::walk::NAME_PATTERN;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Definition of strings with variables of the environment, which may stand for any number or word.
const VARIABLE: &str = "variable";
const VARIABLE_PATTERN: &str = "[$][{]env:[A-Za-z_]";
/// Step of a path that stands for a name of the user's choice, or for the items of a list.
const ANY: &str = "*";

/// Schema of an engine's configuration. `describe` is asked for the description of each key by its path, such as
/// `["backend", "*", "health", "interval"]`.
pub fn engine(describe: impl Fn(&[&str]) -> Option<String>) -> Value {
    document("Propylon", &tables(schema::config), &describe)
}

/// Schema of a key server's configuration, as [`engine`].
pub fn key_server(describe: impl Fn(&[&str]) -> Option<String>) -> Value {
    document("Propylon key server", &tables(schema::keyserver::key_server), &describe)
}

/// Tables that a schema reads, found in as many passes as they are deep.
fn tables<T>(schema: fn(&Report<'_>, &Node<'_>, &Path) -> T) -> Vec<Table> {
    let (lines, file, nothing) = (Lines::new(""), Provenance::default(), Reading::default());
    let mut recorder = Recorder::default();
    loop {
        let (tree, known) = (recorder.tree(), recorder.count());
        let report = Report::describing(&file, &lines, &nothing, recorder);
        schema(&report, &tree, Path::new(""));
        recorder = report.into_recorder().unwrap_or_default();
        if recorder.count() == known {
            return recorder.into_tables();
        }
    }
}

fn document(title: &str, tables: &[Table], describe: &dyn Fn(&[&str]) -> Option<String>) -> Value {
    let mut root = Writer { tables, describe }.table(0, &mut Vec::new());
    root["$defs"] = json!({ VARIABLE: { "type": "string", "pattern": VARIABLE_PATTERN } });
    root["$schema"] = DIALECT.into();
    root["title"] = title.into();
    root
}

/// Whether a value is neither a list nor a table.
fn is_scalar(shape: &Shape) -> bool {
    match shape {
        Shape::List(_) | Shape::Table(_) | Shape::Strings | Shape::Named(_) | Shape::Texts(_) => false,
        Shape::String | Shape::Words(_) | Shape::Integer(_) | Shape::Integers(_) | Shape::Number(_) => true,
        Shape::Boolean | Shape::Duration | Shape::Share | Shape::Size(_) => true,
    }
}

/// A bound as JSON has it; none of the schema's is beyond 64 bits.
fn bound(number: &i128) -> Value {
    i64::try_from(*number).map_or_else(|_| json!(u64::try_from(*number).unwrap_or(u64::MAX)), |number| json!(number))
}

struct Writer<'w> {
    tables: &'w [Table],
    describe: &'w dyn Fn(&[&str]) -> Option<String>,
}

impl Writer<'_> {
    fn table(&self, id: TableId, path: &mut Vec<&'static str>) -> Value {
        let table = &self.tables[id];
        let mut properties = Map::new();
        for key in table.keys.iter().filter(|key| !key.is_refused) {
            path.push(key.name);
            properties.insert(key.name.into(), self.key(key, path));
            path.pop();
        }
        let mut object = json!({ "type": "object", "properties": properties });
        if table.is_closed {
            object["additionalProperties"] = false.into();
        }
        let required: Vec<&str> = table.keys.iter().filter(|key| key.is_required).map(|key| key.name).collect();
        if !required.is_empty() {
            object["required"] = required.into();
        }
        let needs = |keys: &[&str]| json!({ "required": keys });
        if !table.one_of.is_empty() {
            object["oneOf"] = table.one_of.iter().map(|key| needs(&[*key])).collect();
        }
        if !table.any_of.is_empty() {
            object["anyOf"] = table.any_of.iter().map(|keys| needs(keys)).collect();
        }
        object
    }

    fn key(&self, key: &Key, path: &mut Vec<&'static str>) -> Value {
        let mut value = self.shapes(&key.shapes, path);
        if let Some(text) = (self.describe)(path) {
            value["description"] = text.into();
        }
        if let Some(default) = &key.default {
            value["default"] = default.clone();
        }
        if key.is_former {
            value["deprecated"] = true.into();
        }
        value
    }

    fn shapes(&self, shapes: &[Shape], path: &mut Vec<&'static str>) -> Value {
        let mut forms: Vec<Value> = shapes.iter().map(|shape| self.shape(shape, path)).collect();
        let takes_any_text = shapes.iter().any(|shape| matches!(shape, Shape::String));
        if !takes_any_text && shapes.iter().any(is_scalar) {
            forms.push(json!({ "$ref": format!("#/$defs/{VARIABLE}") }));
        }
        match <[Value; 1]>::try_from(forms) {
            Ok([form]) => form,
            Err(forms) => json!({ "anyOf": forms }),
        }
    }

    fn shape(&self, shape: &Shape, path: &mut Vec<&'static str>) -> Value {
        match shape {
            Shape::String => json!({ "type": "string" }),
            Shape::Words(words) => json!({ "enum": words }),
            Shape::Integer(range) => {
                json!({ "type": "integer", "minimum": bound(range.start()), "maximum": bound(range.end()) })
            }
            Shape::Integers(values) => json!({ "enum": values }),
            Shape::Number(range) => json!({ "type": "number", "minimum": range.start(), "maximum": range.end() }),
            Shape::Boolean => json!({ "type": "boolean" }),
            Shape::Duration => json!({ "type": "string", "pattern": DURATION_PATTERN }),
            Shape::Share => json!({ "type": "string", "pattern": SHARE_PATTERN }),
            Shape::Size(range) => json!({ "anyOf": [
                { "type": "integer", "minimum": range.start(), "maximum": range.end() },
                { "type": "string", "pattern": SIZE_PATTERN },
            ] }),
            Shape::List(items) => {
                path.push(ANY);
                let items = self.shapes(items, path);
                path.pop();
                json!({ "type": "array", "items": items })
            }
            Shape::Table(id) => self.table(*id, path),
            Shape::Strings => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            Shape::Named(id) => {
                path.push(ANY);
                let table = self.table(*id, path);
                path.pop();
                json!({ "type": "object", "propertyNames": { "pattern": NAME_PATTERN }, "additionalProperties": table })
            }
            Shape::Texts(id) => {
                path.push(ANY);
                let table = self.table(*id, path);
                path.pop();
                json!({ "type": "object", "additionalProperties": { "anyOf": [{ "type": "string" }, table] } })
            }
        }
    }
}
