//! What the manual promises is what the code has, both ways: names of metrics, and the reasons that metrics and logs
//! give. Keys of the configuration are compared by a test of `propylon schema`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::conditions::{is_metric, is_test, literals};
use super::finding::{Finding, line_of};
use super::lexer::Source;

const MANUAL: &str = "docs/manual.md";
const REASONS: &str = "crates/observe/src/telemetry/reasons.rs";
const FAULTS: &str = "crates/http/src/fault.rs";
/// File of the names of floods, which have a row of their own.
const FLOODS: &str = "crates/http/src/h2/flood.rs";
const FLOODS_ROW: &str = "http2 floods";
/// Reasons of TLS with clients and with servers.
const TLS_FAILURES: [&str; 2] = ["crates/tls/src/records/failure.rs", "crates/tls/src/upstream/failure.rs"];
/// Rows of the table of reasons that are faults: their families, and those alone that a client can bring about.
const FAULT_ROWS: [(&str, &str, bool); 8] = [
    ("rejects", "Head", false),
    ("route faults", "Route", false),
    ("identity refusals", "Identity", false),
    ("client faults", "Client", false),
    ("server faults", "Server", false),
    ("request faults", "Server", true),
    (SERVER_TLS_FAULTS, "ServerTls", false),
    ("queue refusals", "Queue", false),
];
const SERVER_TLS_FAULTS: &str = "server tls faults";
/// Metrics of the key server are told without this in a section of their own.
const KEYSERVER_PREFIX: &str = "propylon_keyserver_";
const KEYSERVER_METRICS: &str = "**Metrics** all begin with `propylon_keyserver_`";
/// The heading of the table of reasons, whose first column has the name of a list of `REASONS`.
const REASONS_HEADING: &str = "\n### Reasons\n";
/// What a histogram's series are called beside its own name.
const SERIES: [&str; 3] = ["_bucket", "_sum", "_count"];

#[derive(Default)]
pub struct Manual {
    text: String,
    reasons: String,
    faults: String,
    floods: String,
    /// Code of `TLS_FAILURES`.
    tls_failures: [String; 2],
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
        if file == Path::new(FLOODS) {
            code.clone_into(&mut self.floods);
        }
        if let Some(place) = TLS_FAILURES.iter().position(|failures| file == Path::new(failures)) {
            code.clone_into(&mut self.tls_failures[place]);
        }
        for (line, name) in literals(&code).filter(|(_, name)| is_metric(name)) {
            self.metrics.entry(name.to_owned()).or_insert_with(|| (file.to_owned(), line));
        }
    }

    pub fn check(&self) -> Vec<Finding> {
        let mut findings = self.check_metrics();
        findings.extend(self.check_reasons());
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
        let [with_clients, with_servers] = &self.tls_failures;
        lists.extend(handshake_failures(with_clients, &self.reasons).map(|list| ("handshake failures".into(), list)));
        lists.extend(flood_names(&self.floods).map(|list| (FLOODS_ROW.into(), list)));
        let mut findings = check_server_tls(with_servers, lists.get(SERVER_TLS_FAULTS));
        let Some(begin) = self.text.find(REASONS_HEADING) else {
            return vec![Finding::error(Path::new(MANUAL), 1, "there is no table of reasons below `### Reasons`")];
        };
        let mut documented: BTreeMap<String, (usize, BTreeSet<String>)> = BTreeMap::new();
        for (line, row) in rows(section(&self.text, begin)) {
            let names: Vec<String> = row
                .iter()
                .map(|cell| spans(cell).map(|(_, span)| span.to_owned()).collect::<Vec<_>>())
                .nth(1)
                .unwrap_or_default();
            let line = line_of(&self.text, begin) + line;
            documented.insert(
                row.first().map_or_else(String::new, |cell| cell.trim().to_owned()),
                (line, names.into_iter().collect()),
            );
        }
        for (list, code) in &lists {
            let what = list.to_lowercase().replace('_', " ");
            let Some((line, row)) = documented.remove(&what) else {
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
        let idle = documented.into_iter().filter(|(_, (_, row))| !row.is_empty());
        findings.extend(idle.map(|(what, (line, _))| {
            Finding::error(Path::new(MANUAL), line, format!("no list of {REASONS} is \"{what}\""))
        }));
        findings
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

/// Labels of the table of a `reasons! { .. }`: `Name = "label";`.
fn reasons_table(code: &str) -> Option<BTreeSet<String>> {
    let table = code.split("reasons! {").nth(1)?.split("\n}").next()?;
    Some(literals(table).map(|(_, label)| label.to_owned()).collect())
}

/// Labels of failed handshakes with clients: the reasons of TLS, and `UNFINISHED_HANDSHAKES`.
fn handshake_failures(failures: &str, reasons: &str) -> Option<BTreeSet<String>> {
    let unfinished = reasons.split("UNFINISHED_HANDSHAKES").nth(1).and_then(|rest| rest.split("];").next());
    let mut labels = reasons_table(failures)?;
    labels.extend(literals(unfinished.unwrap_or_default()).map(|(_, label)| label.to_owned()));
    Some(labels)
}

/// Names of floods: `const NAMES: [&str; ..] = ["a", "b"];`.
fn flood_names(code: &str) -> Option<BTreeSet<String>> {
    let table = code.split("const NAMES: ").nth(1)?.split("];").find(|part| part.contains('"'))?;
    Some(literals(table).map(|(_, name)| name.to_owned()).collect())
}

/// Reasons of TLS with servers that are no faults of requests, and the other way round.
fn check_server_tls(failures: &str, faults: Option<&BTreeSet<String>>) -> Vec<Finding> {
    let (Some(reasons), Some(faults)) = (reasons_table(failures), faults) else { return Vec::new() };
    let differ = reasons.symmetric_difference(faults);
    let what = |label: &String| match reasons.contains(label) {
        true => Finding::error(Path::new(FAULTS), 1, format!("no fault of TLS with servers is `{label}`")),
        false => Finding::error(Path::new(TLS_FAILURES[1]), 1, format!("no reason of TLS with servers is `{label}`")),
    };
    differ.map(what).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manual(reasons: &str, engine: &str, text: &str) -> Vec<String> {
        let mut manual = Manual::default();
        manual.read(Path::new(REASONS), &Source::of(reasons));
        manual.read(Path::new("crates/proxy/src/a.rs"), &Source::of(engine));
        manual.read_document(Path::new(MANUAL), text);
        let [metrics, reasons] = [manual.check_metrics(), manual.check_reasons()];
        metrics.into_iter().chain(reasons).map(|finding| finding.what).collect()
    }

    const REASONS_DOCUMENTED: &str =
        "### Reasons\n\n| kind | reasons |\n|---|---|\n| relay ends | `closed`, `keys-exhausted` |\n";

    #[test]
    fn metrics_are_compared_both_ways() {
        let engine = "counter(\"propylon_a_total\"); // \"propylon_b\"\ngauge(\"propylon_keyserver_c_total\");\n";
        let found = |names: &str| {
            let text = format!("# M\n{names}\n\n{KEYSERVER_METRICS}: `c_total`.\n\n{REASONS_DOCUMENTED}");
            let lists = "pub const RELAY_ENDS: &[&str] = &[\"closed\", \"keys-exhausted\"];";
            manual(lists, engine, &text)
        };
        assert_eq!(found("`propylon_a_total`, `propylon_a_total_sum`"), Vec::<String>::new());
        assert_eq!(
            found("`propylon_a_totals`"),
            ["propylon_a_total is not in the manual", "there is no metric propylon_a_totals"]
        );
        let gone = manual("", "", &format!("{KEYSERVER_METRICS}: `c_total`.\n\n\n### Reasons\n"));
        assert_eq!(gone, ["there is no metric propylon_keyserver_c_total"]);
    }

    #[test]
    fn reasons_are_compared_both_ways() {
        let with = |lists: &str| manual(lists, "", &format!("# M\n{REASONS_DOCUMENTED}"));
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

    #[test]
    fn reasons_of_tls_are_read_from_their_tables() {
        let failures = "reasons! {\n    /// Why.\n    Reason {\n        NotTls = \"not-tls\";\n        Over = \"over\";\n    }\n}\n";
        let unfinished = "pub const UNFINISHED_HANDSHAKES: [&str; 2] = [\"closed\", \"timeout\"];\n\"else\"";
        let list = handshake_failures(failures, unfinished).expect("a table");
        assert_eq!(list.iter().collect::<Vec<_>>(), ["closed", "not-tls", "over", "timeout"]);
        let faults = BTreeSet::from(["not-tls".to_owned(), "tls-alert".to_owned()]);
        let findings: Vec<String> =
            check_server_tls(failures, Some(&faults)).into_iter().map(|finding| finding.what).collect();
        assert_eq!(
            findings,
            ["no fault of TLS with servers is `over`", "no reason of TLS with servers is `tls-alert`"]
        );
    }
}
