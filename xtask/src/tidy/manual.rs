//! What the manual promises is what the code has, both ways: configuration keys with the defaults that can be read
//! from the schema, names of metrics, and the reasons that metrics and logs give.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::conditions::{is_metric, is_test, literals};
use super::finding::{Finding, line_of};
use super::lexer::Source;

const MANUAL: &str = "docs/manual.md";
const REASONS: &str = "crates/observe/src/telemetry/reasons.rs";
const FAULTS: &str = "crates/http/src/fault.rs";
/// Rows of the table of reasons that are faults: their families, and those alone that a client can bring about.
const FAULT_ROWS: [(&str, &str, bool); 7] = [
    ("rejects", "Head", false),
    ("route faults", "Route", false),
    ("client faults", "Client", false),
    ("server faults", "Server", false),
    ("request faults", "Server", true),
    ("server tls faults", "ServerTls", false),
    ("queue refusals", "Queue", false),
];
const SCHEMA: &str = "crates/config/src/schema";
/// Metrics of the key server are told without this in a section of their own.
const KEYSERVER_PREFIX: &str = "propylon_keyserver_";
const KEYSERVER_METRICS: &str = "**Metrics** all begin with `propylon_keyserver_`";
/// The heading of the table of reasons, whose first column has the name of a list of `REASONS`.
const REASONS_HEADING: &str = "\n### Reasons\n";
/// What a histogram's series are called beside its own name.
const SERIES: [&str; 3] = ["_bucket", "_sum", "_count"];

/// Files of the schema, and the headings of the manual below which their keys are: the first have tables of keys.
const SECTIONS: [(&str, &[&str]); 21] = [
    ("process.rs", &["`[process]`", "`[admin]`", "`[log]`"]),
    ("keys.rs", &["`[keys]`"]),
    ("tracing.rs", &["`[tracing]`"]),
    ("listener.rs", &["`[listener.NAME]`"]),
    ("http2.rs", &["`[listener.NAME]`", "Floods"]),
    ("headers.rs", &["`[listener.NAME]`"]),
    ("tls.rs", &["`[tls.NAME]`", "Certificates", "Coming back"]),
    ("suites.rs", &["Policies"]),
    ("client_auth.rs", &["`[tls.NAME]`"]),
    ("acme.rs", &["`[acme.NAME]`", "Ordered certificates"]),
    ("signer.rs", &["`[signer.NAME]`"]),
    ("backend.rs", &["`[backend.NAME]`"]),
    ("backend_tls.rs", &["`[backend.NAME]`", "TLS to servers"]),
    ("balance.rs", &["`[backend.NAME]`"]),
    ("health.rs", &["`[backend.NAME]`", "`[process]`"]),
    ("sticky.rs", &["`[backend.NAME]`"]),
    ("route.rs", &["`[[route]]`"]),
    ("keyserver.rs", &["The key server"]),
    ("pkcs11.rs", &["The key server"]),
    ("mod.rs", &["The configuration"]),
    ("values.rs", &["The configuration"]),
];
/// Functions of the schema that read a key whose name they are given: `section.string("bind")`, `timeout(&mut
/// section, "idle", ..)`.
const READERS: [&str; 13] = [
    "string",
    "integer",
    "duration",
    "boolean",
    "choice",
    "size",
    "list",
    "table",
    "node",
    "entry",
    "timeout",
    "required_file",
    "set",
];

#[derive(Default)]
pub struct Manual {
    text: String,
    reasons: String,
    faults: String,
    /// Code of the schema, by file name, without tests.
    schema: BTreeMap<String, (PathBuf, String)>,
    /// Where each metric's name is written first.
    metrics: BTreeMap<String, (PathBuf, usize)>,
    /// Names in other documents.
    named: Vec<(PathBuf, usize, String)>,
}

impl Manual {
    pub fn read_document(&mut self, file: &Path, text: &str) {
        if file == Path::new(MANUAL) {
            text.clone_into(&mut self.text);
        }
        if file.parent() == Some(Path::new("docs")) || file == Path::new("README.md") {
            self.named.extend(metrics_named(text).map(|(line, name)| (file.to_owned(), line, name)));
        }
    }

    pub fn read(&mut self, file: &Path, source: &Source<'_>) {
        if !file.starts_with("crates") || file.starts_with("crates/bench") || is_test(file) {
            return;
        }
        let code = without_comments(source);
        if file == Path::new(REASONS) {
            code.clone_into(&mut self.reasons);
        }
        if file == Path::new(FAULTS) {
            code.clone_into(&mut self.faults);
        }
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if file.parent() == Some(Path::new(SCHEMA)) {
            self.schema.insert(name.to_owned(), (file.to_owned(), code.clone()));
        }
        for (line, name) in literals(&code).filter(|(_, name)| is_metric(name)) {
            self.metrics.entry(name.to_owned()).or_insert_with(|| (file.to_owned(), line));
        }
    }

    pub fn check(&self) -> Vec<Finding> {
        let mut findings = self.check_metrics();
        findings.extend(self.check_reasons());
        findings.extend(self.check_keys());
        findings
    }

    fn check_metrics(&self) -> Vec<Finding> {
        let of_keyserver = self.text.find(KEYSERVER_METRICS).map_or("", |at| {
            let section = &self.text[at..];
            &section[..section.find("\n\n").unwrap_or(section.len())]
        });
        let is_told = |name: &str| match name.strip_prefix(KEYSERVER_PREFIX) {
            Some(short) => has_word(of_keyserver, short) || has_word(&self.text, name),
            None => has_word(&self.text, name),
        };
        let untold = self.metrics.iter().filter(|(name, _)| !is_told(name));
        let untold =
            untold.map(|(name, (file, line))| Finding::error(file, *line, format!("{name} is not in the manual")));
        let is_known = |name: &str| {
            let series = SERIES.iter().filter_map(|series| name.strip_suffix(series));
            series.chain([name]).any(|name| self.metrics.contains_key(name))
        };
        let unknown = self.named.iter().filter(|(_, _, name)| !is_known(name));
        let unknown =
            unknown.map(|(file, line, name)| Finding::error(file, *line, format!("there is no metric {name}")));
        let begin = self.text.find(of_keyserver).unwrap_or(0);
        let short = spans(of_keyserver).filter(|(_, span)| span.ends_with("_total") || span.ends_with("_seconds"));
        let short = short.filter(|(_, span)| !self.metrics.contains_key(&format!("{KEYSERVER_PREFIX}{span}")));
        let short = short.map(|(at, span)| {
            let line = line_of(&self.text, begin + at);
            Finding::error(Path::new(MANUAL), line, format!("there is no metric {KEYSERVER_PREFIX}{span}"))
        });
        untold.chain(unknown).chain(short).collect()
    }

    fn check_reasons(&self) -> Vec<Finding> {
        let mut lists = lists(&self.reasons);
        lists.extend(fault_lists(&self.faults, &self.reasons));
        let Some(begin) = self.text.find(REASONS_HEADING) else {
            return vec![Finding::error(Path::new(MANUAL), 1, "there is no table of reasons below `### Reasons`")];
        };
        let mut findings = Vec::new();
        let mut told: BTreeMap<String, (usize, BTreeSet<String>)> = BTreeMap::new();
        for (line, row) in rows(section(&self.text, begin)) {
            let names: Vec<String> = row
                .iter()
                .map(|cell| spans(cell).map(|(_, span)| span.to_owned()).collect::<Vec<_>>())
                .nth(1)
                .unwrap_or_default();
            let line = line_of(&self.text, begin) + line;
            told.insert(
                row.first().map_or_else(String::new, |cell| cell.trim().to_owned()),
                (line, names.into_iter().collect()),
            );
        }
        for (list, code) in &lists {
            let what = list.to_lowercase().replace('_', " ");
            let Some((line, row)) = told.remove(&what) else {
                findings.push(Finding::error(
                    Path::new(MANUAL),
                    line_of(&self.text, begin),
                    format!("the table of reasons has no row \"{what}\" for {list}"),
                ));
                continue;
            };
            let differ = code.symmetric_difference(&row);
            findings.extend(differ.map(|reason| {
                let where_it_is = if code.contains(reason) { "is not in this row" } else { "is none of the code's" };
                Finding::error(Path::new(MANUAL), line, format!("`{reason}` {where_it_is} ({list})"))
            }));
        }
        let idle = told.into_iter().filter(|(_, (_, row))| !row.is_empty());
        findings.extend(idle.map(|(what, (line, _))| {
            Finding::error(Path::new(MANUAL), line, format!("no list of {REASONS} is \"{what}\""))
        }));
        findings
    }

    fn check_keys(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut known = BTreeSet::new();
        for (name, (file, code)) in &self.schema {
            let Some((_, headings)) = SECTIONS.iter().find(|(file, _)| file == name) else {
                findings.push(Finding::error(
                    file,
                    1,
                    "xtask does not know where the manual has the keys of this file",
                ));
                continue;
            };
            let sections: Vec<&str> = headings.iter().filter_map(|heading| self.below(heading)).collect();
            let tables: Vec<Key> = sections.iter().flat_map(|section| keys(section)).collect();
            for read in reads(code) {
                known.insert((*headings, read.key.to_owned()));
                if !sections.iter().any(|section| spans(section).any(|(_, span)| has_word(span, read.key))) {
                    let what = format!("`{}` is not in the manual below {}", read.key, headings.join(", "));
                    findings.push(Finding::error(file, line_of(code, read.at), what));
                }
                let told: Vec<&str> = tables
                    .iter()
                    .filter(|key| key.last() == read.key)
                    .filter_map(|key| key.default.as_deref())
                    .collect();
                if let Some(default) = &read.default
                    && !told.is_empty()
                    && !told.iter().any(|told| told == default)
                {
                    let what =
                        format!("the default of `{}` is {default}, and in the manual {}", read.key, told.join(", "));
                    findings.push(Finding::error(file, line_of(code, read.at), what));
                }
            }
        }
        findings.extend(self.check_key_tables(&known));
        findings
    }

    /// Keys of the manual's tables that no file of the schema reads.
    fn check_key_tables(&self, known: &BTreeSet<(&[&str], String)>) -> Vec<Finding> {
        let headings: BTreeSet<&str> = SECTIONS
            .iter()
            .flat_map(|(_, headings)| headings.iter().copied())
            .filter(|heading| heading.starts_with('`'))
            .collect();
        let mut findings = Vec::new();
        for heading in headings {
            let Some(section) = self.below(heading) else {
                findings.push(Finding::error(Path::new(MANUAL), 1, format!("the manual has no section {heading}")));
                continue;
            };
            let is_read = |part: &str| known.iter().any(|(headings, key)| headings.contains(&heading) && key == part);
            // A key that is read by a name that is no literal there is known by its table.
            let unread =
                keys(section).into_iter().filter(|key| !is_read(key.last()) && !self.mentions(heading, key.last()));
            findings.extend(
                unread.map(|key| Finding::error(Path::new(MANUAL), 1, format!("{heading} has no key `{}`", key.path))),
            );
        }
        findings
    }

    /// Whether a key's name is a literal of the files of a heading in any other way.
    fn mentions(&self, heading: &str, key: &str) -> bool {
        let files = SECTIONS.iter().filter(|(_, headings)| headings.contains(&heading)).map(|(file, _)| *file);
        let mut code = files.chain(["mod.rs"]).filter_map(|file| self.schema.get(file));
        code.any(|(_, code)| literals(code).any(|(_, literal)| literal == key))
    }

    /// The text below a heading, up to the next.
    fn below(&self, heading: &str) -> Option<&str> {
        let places = self.text.match_indices(heading);
        let is_heading =
            |at: usize| self.text[..at].ends_with("# ") && self.text[at + heading.len()..].starts_with('\n');
        places.map(|(at, _)| at).find(|at| is_heading(*at)).map(|at| section(&self.text, at))
    }
}

/// From a heading's own line up to the next heading.
fn section(text: &str, at: usize) -> &str {
    let text = text[at..].trim_start_matches('\n');
    let body = text.find('\n').map_or(text.len(), |end| end);
    let end = text[body..].find("\n#").map_or(text.len(), |end| body + end);
    &text[..end]
}

/// Code with literals, but with its comments blanked and without its tests. Lines stay where they are.
fn without_comments(source: &Source<'_>) -> String {
    let comments = source.separated.comments.chars();
    let code: String = source
        .text
        .chars()
        .zip(comments)
        .map(|(text, comment)| if comment.is_whitespace() { text } else { ' ' })
        .collect();
    code.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

fn metrics_named(text: &str) -> impl Iterator<Item = (usize, String)> {
    let is_part = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_';
    text.match_indices("propylon_").filter_map(move |(at, _)| {
        let name: String = text[at..].chars().take_while(|character| is_part(*character)).collect();
        // A prefix, as in `propylon_keyserver_`, names no metric.
        (!text[..at].ends_with(is_part) && !name.ends_with('_')).then(|| (line_of(text, at), name))
    })
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// What stands between backticks, with its place.
fn spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split('`').enumerate().filter_map(move |(number, part)| {
        let begin = at;
        at += part.len() + 1;
        (number % 2 == 1).then_some((begin, part))
    })
}

/// The cells of the rows of tables, with their lines counted from 0, without heads.
fn rows(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with("| ") && !line.starts_with("| key |"));
    rows.map(|(number, line)| (number, line.trim_matches('|').split(" | ").collect()))
}

/// The lists of reasons: `pub const NAME: &[&str] = &["a", "b"];`.
fn lists(code: &str) -> BTreeMap<String, BTreeSet<String>> {
    let consts = code.split("pub const ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(": &[&str] = &[")?;
        let items = rest.split("];").next()?.split(',').map(|item| item.trim().trim_matches('"'));
        Some((name.to_owned(), items.filter(|item| !item.is_empty()).map(str::to_owned).collect()))
    });
    consts.collect()
}

/// Labels of faults by their row of the manual, from `Name = "label", Family, Blame, 502;` and `RELAY_FAULTS`.
fn fault_lists(faults: &str, reasons: &str) -> BTreeMap<String, BTreeSet<String>> {
    let table = faults.split("faults! {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap_or_default();
    let rows: Vec<(&str, Vec<&str>)> = table
        .split(';')
        .filter_map(|row| row.split_once(" = "))
        .map(|(name, rest)| (name.trim(), rest.split(", ").map(|cell| cell.trim_matches('"')).collect()))
        .collect();
    if rows.is_empty() {
        return BTreeMap::new();
    }
    let mut lists: BTreeMap<String, BTreeSet<String>> = FAULT_ROWS
        .iter()
        .map(|(list, family, is_clients)| {
            let members = rows
                .iter()
                .filter(|(_, cells)| cells.get(1) == Some(family) && (!is_clients || cells.get(2) == Some(&"Client")));
            ((*list).to_owned(), members.map(|(_, cells)| cells[0].to_owned()).collect())
        })
        .collect();
    let ends = reasons.split("RELAY_FAULTS: &[Fault] = &[").nth(1).and_then(|rest| rest.split("];").next());
    let names = ends.unwrap_or_default().split(',').filter_map(|name| name.trim().strip_prefix("Fault::"));
    let labels = names.filter_map(|name| rows.iter().find(|(known, _)| *known == name).map(|(_, cells)| cells[0]));
    lists.insert("relay ends".into(), labels.chain(["closed"]).map(str::to_owned).collect());
    lists
}

/// A key of one of the manual's tables.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    /// `timeouts.idle`
    path: String,
    /// As it is written where it is a value and no description.
    default: Option<String>,
}

impl Key {
    fn last(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }
}

fn keys(section: &str) -> Vec<Key> {
    let is_key =
        |span: &str| span.chars().all(|part| part.is_ascii_lowercase() || part.is_ascii_digit() || "_.".contains(part));
    let mut found = Vec::new();
    for (_, row) in rows(section) {
        let [names, defaults, _, ..] = row[..] else { continue };
        let names: Vec<&str> = spans(names).map(|(_, span)| span).filter(|span| is_key(span)).collect();
        let separator = if defaults.contains(';') { ';' } else { ',' };
        let values: Vec<&str> = if names.len() > 1 { defaults.split(separator).collect() } else { vec![defaults] };
        for (place, path) in names.iter().enumerate() {
            let default = if values.len() == names.len() { value(values[place]) } else { None };
            found.push(Key { path: (*path).to_owned(), default });
        }
    }
    found
}

/// A default as the schema's are written: `"10s"`, 128, `false`, 16 KiB.
fn value(cell: &str) -> Option<String> {
    let text = cell.trim().trim_matches('`');
    if matches!(text, "true" | "false") {
        return Some(text.to_owned());
    }
    if let Some(quoted) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        return Some(duration(quoted).map_or_else(|| quoted.to_owned(), |seconds| format!("{seconds} s")));
    }
    match text.strip_suffix(" KiB") {
        Some(count) => count.parse::<u64>().ok().map(|count| (count * 1024).to_string()),
        None => text.parse::<u64>().ok().map(|count| count.to_string()),
    }
}

fn duration(text: &str) -> Option<u64> {
    let (digits, factor) = [("s", 1), ("m", 60), ("h", 3600)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    digits.parse::<u64>().ok().map(|count| count * factor)
}

/// A place of the schema where a key is read.
#[derive(Debug, PartialEq, Eq)]
struct Read<'t> {
    key: &'t str,
    at: usize,
    /// Where the code says so beside it.
    default: Option<String>,
}

fn reads(code: &str) -> Vec<Read<'_>> {
    let mut found = Vec::new();
    for reader in READERS {
        for (at, _) in code.match_indices(&format!("{reader}(")) {
            if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
                continue;
            }
            let inside = &code[at + reader.len() + 1..];
            // `&mut section, ` may stand before the key, but no other call.
            let Some((before, rest)) = inside.split_once('"') else { continue };
            let is_plain = before.chars().all(|part| part.is_alphanumeric() || "_&, \n".contains(part));
            let Some((key, rest)) = rest.split_once('"').filter(|_| is_plain) else { continue };
            let statement = rest.find([';', '"']).map_or(rest, |end| &rest[..end]);
            found.push(Read { key, at, default: default_of(reader, statement) });
        }
    }
    found
}

/// `", HOUR, seconds(10))"` and `", 0..=10).map_or(2, |found| found.value)"`, as [`value`] has them.
fn default_of(reader: &str, rest: &str) -> Option<String> {
    if reader == "timeout" {
        let end = rest.find(",\n").unwrap_or(rest.len());
        let last = rest[..end].trim().strip_suffix(')')?.rsplit(", ").next()?;
        let count = last
            .strip_prefix("seconds(")
            .and_then(|count| count.strip_suffix(')'))
            .and_then(|count| count.parse::<u64>().ok());
        let hour = (last == "HOUR").then_some(3600);
        return count.or(hour).map(|seconds| format!("{seconds} s"));
    }
    if rest.starts_with(").is_some_and(|found| found.value)") {
        return Some("false".to_owned());
    }
    let expression = rest.split_once(").map_or(")?.1.split(',').next()?;
    if matches!(expression, "true" | "false") {
        return Some(expression.to_owned());
    }
    let factors = expression.split('*').map(|factor| factor.trim().replace('_', "").parse::<u64>().ok());
    factors.collect::<Option<Vec<_>>>().map(|factors| factors.iter().product::<u64>().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manual(schema: &str, reasons: &str, engine: &str, text: &str) -> Vec<String> {
        let mut manual = Manual::default();
        manual.read(Path::new("crates/config/src/schema/listener.rs"), &Source::of(schema));
        manual.read(Path::new(REASONS), &Source::of(reasons));
        manual.read(Path::new("crates/proxy/src/a.rs"), &Source::of(engine));
        manual.read_document(Path::new(MANUAL), text);
        let [metrics, reasons] = [manual.check_metrics(), manual.check_reasons()];
        let keys =
            manual.check_keys().into_iter().filter(|finding| !finding.what.starts_with("the manual has no section"));
        metrics.into_iter().chain(reasons).chain(keys).map(|finding| finding.what).collect()
    }

    const REASONS_TOLD: &str =
        "### Reasons\n\n| kind | reasons |\n|---|---|\n| relay ends | `closed`, `keys-exhausted` |\n";

    #[test]
    fn metrics_are_compared_both_ways() {
        let engine = "counter(\"propylon_a_total\"); // \"propylon_b\"\ngauge(\"propylon_keyserver_c_total\");\n";
        let told = |names: &str| {
            let text = format!("# M\n{names}\n\n{KEYSERVER_METRICS}: `c_total`.\n\n{REASONS_TOLD}");
            let lists = "pub const RELAY_ENDS: &[&str] = &[\"closed\", \"keys-exhausted\"];";
            manual("", lists, engine, &text)
        };
        assert_eq!(told("`propylon_a_total`, `propylon_a_total_sum`"), Vec::<String>::new());
        assert_eq!(
            told("`propylon_a_totals`"),
            ["propylon_a_total is not in the manual", "there is no metric propylon_a_totals"]
        );
        let gone = manual("", "", "", &format!("{KEYSERVER_METRICS}: `c_total`.\n\n\n### Reasons\n"));
        assert_eq!(gone, ["there is no metric propylon_keyserver_c_total"]);
    }

    #[test]
    fn reasons_are_compared_both_ways() {
        let with = |lists: &str| manual("", lists, "", &format!("# M\n{REASONS_TOLD}"));
        assert_eq!(with("pub const RELAY_ENDS: &[&str] = &[\"closed\", \"keys-exhausted\"];"), Vec::<String>::new());
        assert_eq!(
            with("pub const RELAY_ENDS: &[&str] = &[\n    \"closed\",\n    \"idle\",\n];"),
            ["`idle` is not in this row (RELAY_ENDS)", "`keys-exhausted` is none of the code's (RELAY_ENDS)"]
        );
        let other = with("pub const OTHERS: &[&str] = &[\"a\"];");
        assert!(
            other.len() == 2 && other[0].contains("no row \"others\"") && other[1].contains("relay ends"),
            "{other:?}"
        );
    }

    #[test]
    fn faults_are_read_from_their_table() {
        let faults = "faults! {\n    BadHost = \"bad-host\", Head, Client, 400;\n\n    ConnectFailed = \"connect-failed\", Server, Server, 502;\n    \
            BadSwitch = \"bad-switch\", Server, Client, 502;\n}\n";
        let lists = fault_lists(faults, "pub const RELAY_FAULTS: &[Fault] = &[\n    Fault::ConnectFailed,\n];");
        let of = |name: &str| lists[name].iter().map(String::as_str).collect::<Vec<&str>>();
        assert_eq!((of("rejects"), of("request faults")), (vec!["bad-host"], vec!["bad-switch"]));
        assert_eq!((of("server faults"), of("route faults")), (vec!["bad-switch", "connect-failed"], vec![]));
        assert_eq!(of("relay ends"), ["closed", "connect-failed"]);
    }

    const KEYS: &str = "### `[listener.NAME]`\n\n| key | default | effect |\n|---|---|---|\n\
        | `bind` | required | x |\n| `timeouts.idle`, `limits.headers` | `\"75s\"`, 100 | x |\n| `via` | `false` | `{ port = 1 }` |\n";

    #[test]
    fn keys_and_their_defaults_are_compared_both_ways() {
        let with = |schema: &str| {
            let lists = "pub const RELAY_ENDS: &[&str] = &[\"closed\", \"keys-exhausted\"];";
            manual(schema, lists, "", &format!("# M\n\n{KEYS}\n{REASONS_TOLD}"))
        };
        let schema = "let a = s.node(\"bind\");\nT {\n idle: timeout(&mut s, \"idle\", DAY, seconds(75)),\n }\n\
            s.integer(\"headers\", 1..=1000).map_or(100, |found| found.value);\n\
            s.boolean(\"via\").is_some_and(|found| found.value);\ns.integer(\"port\", 1..=2);\n";
        assert_eq!(with(schema), Vec::<String>::new());
        assert_eq!(
            with(&schema.replace("seconds(75)", "HOUR").replace("map_or(100", "map_or(2 * 50_0")),
            [
                "the default of `headers` is 1000, and in the manual 100",
                "the default of `idle` is 3600 s, and in the manual 75 s"
            ]
        );
        assert_eq!(
            with(&schema.replace("\"via\"", "\"viaduct\"")),
            ["`viaduct` is not in the manual below `[listener.NAME]`", "`[listener.NAME]` has no key `via`"]
        );
    }

    #[test]
    fn defaults_are_read_where_they_are_values() {
        let found: Vec<_> =
            ["`\"10s\"`", "`\"1h\"`", "128", "16 KiB", "`true`", "none", "see below", "`\"auto\"`"].map(value).into();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            found,
            [some("10 s"), some("3600 s"), some("128"), some("16384"), some("true"), None, None, some("auto")]
        );
    }
}
