//! The manual's tables of keys: what each key does, and its default.

/// Heading of the section with all of the key server's tables.
const KEY_SERVER: &str = "The key server";
/// Heading of the table of keys that stand above all sections.
const ABOVE_SECTIONS: &str = "Several files";
/// Step of a path that stands for a name of the user's choice or for the items of a list.
const ANY: &str = "*";

/// Tables of keys of one kind of configuration.
pub struct Manual<'m> {
    text: &'m str,
    rows: Vec<Row<'m>>,
}

/// A key in a row of a table.
#[derive(Clone)]
struct Row<'m> {
    /// Path of the key, with `*` for a NAME.
    path: Vec<&'m str>,
    /// Effect of the key, in Markdown.
    effect: &'m str,
    /// The whole row.
    line: &'m str,
}

impl<'m> Manual<'m> {
    /// The tables below headings such as `[backend.NAME]`.
    pub fn of_engine(text: &'m str) -> Manual<'m> {
        let of_sections = sections(text).filter(|(heading, _)| heading.starts_with("`["));
        let of_sections = of_sections.map(|(heading, body)| (section_path(heading.trim_matches('`')), body));
        let above =
            sections(text).filter(|(heading, _)| *heading == ABOVE_SECTIONS).map(|(_, body)| (Vec::new(), body));
        let rows = above.chain(of_sections).flat_map(|(path, body)| rows(body, &path));
        Manual { text, rows: rows.collect() }
    }

    /// The table below the key server's heading, whose rows name their sections.
    pub fn of_key_server(text: &'m str) -> Manual<'m> {
        let body = sections(text).find(|(heading, _)| *heading == KEY_SERVER).map_or("", |(_, body)| body);
        Manual { text, rows: rows(body, &[]) }
    }

    /// Row of a key: its own, or one of a table in a section that the row of a table around it links to.
    fn row(&self, path: &[&str]) -> Option<Row<'m>> {
        if let Some(row) = self.rows.iter().find(|row| row.path == path) {
            return Some(row.clone());
        }
        let (key, linked) = (path.last()?, self.linked(path));
        linked.into_iter().flat_map(|body| rows(body, &[])).find(|row| row.path == [*key])
    }

    /// Text of a key's row, or else of that of a table around it which names the key, without links.
    pub fn description(&self, path: &[&str]) -> Option<String> {
        let names_it = |row: &&Row<'m>| path.last().is_some_and(|key| spans(row.line).any(|span| has_word(span, key)));
        let row = self.row(path).or_else(|| self.around(path).filter(names_it).cloned())?;
        Some(without_links(&row.effect.replace("\\|", "|"))).filter(|text| !text.is_empty())
    }

    /// Row of the nearest table around a key.
    fn around(&self, path: &[&str]) -> Option<&Row<'m>> {
        let tables = (1..path.len()).rev().map(|length| &path[..length]);
        tables.filter_map(|table| self.rows.iter().find(|row| row.path == table)).next()
    }

    fn linked(&self, path: &[&str]) -> Vec<&'m str> {
        let links = self.around(path).map_or("", |row| row.line).split("](#").skip(1);
        let anchors: Vec<&str> = links.filter_map(|rest| rest.split(')').next()).collect();
        sections(self.text).filter(|(heading, _)| anchors.contains(&&*anchor(heading))).map(|(_, body)| body).collect()
    }
}

/// Headings of a document, each with its text up to the next.
fn sections(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.split("\n#").skip(1);
    parts.filter_map(|part| part.trim_start_matches('#').trim_start().split_once('\n'))
}

/// `[backend.NAME]` and `[[route]]` as paths: `backend.*`, `route.*`.
fn section_path(brackets: &str) -> Vec<&str> {
    let name = brackets.trim_matches(['[', ']']);
    let is_list = brackets.starts_with("[[");
    let steps = name.split('.').map(|step| if step == "NAME" { ANY } else { step });
    steps.chain(is_list.then_some(ANY)).collect()
}

/// The keys of a section's tables, below `prefix` or the section that a row names.
fn rows<'m>(body: &'m str, prefix: &[&'m str]) -> Vec<Row<'m>> {
    let (mut found, mut prefix, mut is_of_keys) = (Vec::new(), prefix.to_vec(), false);
    for line in body.lines() {
        if !line.starts_with('|') {
            is_of_keys = false;
            continue;
        }
        let [names, _, effect, ..] = cells(line)[..] else { continue };
        if names == "key" || names.starts_with("key ") || names.starts_with("key,") {
            is_of_keys = true;
            continue;
        }
        if !is_of_keys {
            continue;
        }
        if let Some(section) = spans(names).find(|span| span.starts_with('[')) {
            prefix = section_path(section);
        }
        for name in spans(names).filter(|span| is_key(span)) {
            let path = prefix.iter().copied().chain(name.split('.')).collect();
            found.push(Row { path, effect, line });
        }
    }
    found
}

/// The cells of a row, in which `\|` is no border.
fn cells(line: &str) -> Vec<&str> {
    let borders = line.match_indices('|').map(|(at, _)| at).filter(|at| !line[..*at].ends_with('\\'));
    let borders: Vec<usize> = borders.collect();
    borders.windows(2).map(|cell| line[cell[0] + 1..cell[1]].trim()).collect()
}

fn is_key(span: &str) -> bool {
    !span.is_empty()
        && span.chars().all(|part| part.is_ascii_lowercase() || part.is_ascii_digit() || "_.".contains(part))
}

/// Texts between backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.split(|character| !is_part(character)).any(|part| part == word)
}

/// Anchor by which links name a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|character| character.is_alphanumeric() || " -_".contains(*character));
    kept.map(|character| if character == ' ' { '-' } else { character.to_ascii_lowercase() }).collect()
}

/// Markdown with the words of its links in place of these.
fn without_links(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("](") {
        let (Some(begin), Some((_, behind))) = (before.rfind('['), after.split_once(')')) else { break };
        plain.push_str(&before[..begin]);
        plain.push_str(&before[begin + 1..]);
        rest = behind;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::command::schema::{MANUAL, schema};

    /// A key as a schema has it.
    struct Recorded {
        path: Vec<String>,
        default: Option<Value>,
        is_deprecated: bool,
    }

    /// The keys of a schema, those of inner tables after them; of a table or a list of tables in whatever form.
    fn recorded(schema: &Value, path: &[String], found: &mut Vec<Recorded>) {
        for (key, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let path: Vec<String> = path.iter().cloned().chain([key.clone()]).collect();
            let is_deprecated = inner.get("deprecated").is_some();
            found.push(Recorded { path: path.clone(), default: inner.get("default").cloned(), is_deprecated });
            recorded(inner, &path, found);
        }
        for form in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
            recorded(form, path, found);
        }
        for keyword in ["items", "additionalProperties"] {
            let path: Vec<String> = path.iter().cloned().chain([ANY.to_owned()]).collect();
            schema.get(keyword).into_iter().for_each(|inner| recorded(inner, &path, found));
        }
    }

    /// Default of a row's key, where the table has it as a value.
    fn default_of(row: &Row<'_>) -> Option<Value> {
        let [names, defaults, ..] = cells(row.line)[..] else { return None };
        let names: Vec<&str> = spans(names).filter(|span| is_key(span)).collect();
        let separator = if defaults.contains(';') { ';' } else { ',' };
        let values: Vec<&str> = if names.len() > 1 { defaults.split(separator).collect() } else { vec![defaults] };
        let place = names.iter().position(|name| row.path.ends_with(&name.split('.').collect::<Vec<&str>>()))?;
        if values.len() == names.len() { value(values[place]) } else { None }
    }

    /// A default that is a value: `"10s"`, 128, `false`, 16 KiB. Words about a default are none.
    fn value(cell: &str) -> Option<Value> {
        let text = cell.trim().trim_matches('`');
        if let Some(count) = text.strip_suffix(" KiB") {
            return count.parse::<u64>().ok().map(|count| (count * 1024).into());
        }
        serde_json::from_str(text).ok()
    }

    /// Whether a key without a row is named in that of a table around it, or in a section that this links to.
    fn mentions(manual: &Manual<'_>, path: &[&str]) -> bool {
        let Some(key) = path.last() else { return false };
        let around = manual.around(path).map(|row| row.line);
        around.into_iter().chain(manual.linked(path)).any(|text| spans(text).any(|span| has_word(span, key)))
    }

    /// Values as they are compared: durations in milliseconds.
    fn compared(value: &Value) -> Value {
        let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
        let milliseconds = |text: &str| {
            units.iter().find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<u64>().ok()? * factor))
        };
        value.as_str().and_then(milliseconds).map_or_else(|| value.clone(), |time| json!({ "ms": time }))
    }

    /// Differences between the manual's tables and the keys of a schema.
    fn differences(manual: &Manual<'_>, schema: &Value) -> Vec<String> {
        let mut keys = Vec::new();
        recorded(schema, &[], &mut keys);
        let mut found = Vec::new();
        let mut known = BTreeSet::new();
        for key in &keys {
            let path: Vec<&str> = key.path.iter().map(String::as_str).collect();
            let name = path.join(".");
            let Some(row) = manual.row(&path) else {
                // A table whose keys have rows needs none, and neither has a section.
                let is_told_by_its_keys =
                    keys.iter().any(|inner| inner.path.len() > path.len() && inner.path.starts_with(&key.path));
                if !is_told_by_its_keys && !key.is_deprecated && !mentions(manual, &path) {
                    found.push(format!("the manual has no row for {name}, and no table around it names it"));
                }
                known.insert(name);
                continue;
            };
            match (&key.default, &default_of(&row)) {
                (Some(code), Some(documented)) if compared(code) != compared(documented) => {
                    found.push(format!("the default of {name} is {code}, and in the manual {documented}"));
                }
                (None, Some(documented)) => {
                    found.push(format!("{name} has no default, and in the manual {documented}"))
                }
                _ => {}
            }
            known.insert(name);
        }
        let unread = manual.rows.iter().map(|row| row.path.join(".")).filter(|name| !known.contains(name));
        found.extend(unread.map(|name| format!("there is no key {name}")));
        found
    }

    #[test]
    fn the_manual_has_every_key_with_its_default_and_no_other() {
        let engine = Manual::of_engine(MANUAL);
        assert!(engine.rows.len() > 150, "{} rows", engine.rows.len());
        assert_eq!(differences(&engine, &schema(false)), [""; 0]);
        let key_server = Manual::of_key_server(MANUAL);
        assert!(key_server.rows.len() > 30, "{} rows", key_server.rows.len());
        assert_eq!(differences(&key_server, &schema(true)), [""; 0]);
    }

    const TEXT: &str = "# M\n\n### `[process]`\n\n| key | default | effect |\n|---|---|---|\n\
        | `workers` | `\"auto\"` | threads, see [there](#the-rest); a \\| b |\n\
        | `a.b`, `a.c` | `\"1s\"`, 16 KiB | both |\n| `http2` | | `{ on = true }`, [more](#the-rest) |\n\n\
        ### The rest\n\n| key of `http2` | default | effect |\n|---|---|---|\n| `off` | 3 | not [on](#on) |\n`flood` is another\n";

    #[test]
    fn rows_are_found_by_their_paths_and_by_links() {
        let manual = Manual::of_engine(TEXT);
        let of = |path: &[&str]| manual.description(path);
        assert_eq!(of(&["process", "workers"]).as_deref(), Some("threads, see there; a | b"));
        assert_eq!(of(&["process", "a", "c"]).as_deref(), Some("both"));
        assert_eq!(manual.row(&["process", "a", "c"]).and_then(|row| default_of(&row)), Some(json!(16 * 1024)));
        assert_eq!(of(&["process", "http2", "off"]).as_deref(), Some("not on"));
        assert_eq!(of(&["process", "http2", "on"]).as_deref(), Some("`{ on = true }`, more"));
        assert_eq!(of(&["process", "http2", "flood"]), None);
        for (key, is_named) in [("flood", true), ("on", true), ("oof", false)] {
            assert_eq!(mentions(&manual, &["process", "http2", key]), is_named, "{key}");
        }
        assert!(!mentions(&manual, &["process", "flood"]), "only tables around a key speak of it");
    }

    #[test]
    fn what_is_not_the_same_is_told() {
        let table = |default: Value, key: &str| {
            let a = json!({ "properties": { "b": { "default": default }, "c": { "default": 16384 } } });
            let http2 = json!({ "properties": { "off": { "default": 3 }, key: {} } });
            let process = json!({ "properties": { "workers": { "default": "auto" }, "a": a, "http2": http2 } });
            json!({ "properties": { "process": process } })
        };
        let found = |default: Value, key: &str| differences(&Manual::of_engine(TEXT), &table(default, key));
        assert_eq!(found(json!("1000ms"), "on"), [""; 0]);
        assert_eq!(found(json!("2s"), "on"), ["the default of process.a.b is \"2s\", and in the manual \"1s\""]);
        let untold = "the manual has no row for process.http2.new, and no table around it names it";
        assert_eq!(found(json!("1s"), "new"), [untold]);
        let gone = differences(&Manual::of_engine(TEXT), &json!({}));
        assert!(gone.len() == 4 && gone.contains(&"there is no key process.a.c".into()), "{gone:?}");
    }

    #[test]
    fn the_key_servers_rows_name_their_sections() {
        let text = "# M\n\n## The key server\n\n| key | default | meaning |\n|---|---|---|\n| `[server]` `bind` | | x |\n\
            | `ca` | | y |\n| `[[client]]` `san`, `rate` | | z |\n\n## Next\n";
        let manual = Manual::of_key_server(text);
        let paths: Vec<String> = manual.rows.iter().map(|row| row.path.join(".")).collect();
        assert_eq!(paths, ["server.bind", "server.ca", "client.*.san", "client.*.rate"]);
    }
}
