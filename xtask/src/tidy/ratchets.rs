//! Figures of the house that may fall and must not rise: circles of modules, sizes of crates, words and comments that nobody reads twice.
//!
//! What they may be at most stands in `xtask/ratchets.toml`. Whoever makes one smaller writes the smaller figure there, and nobody
//! gets behind it any more. Circles and crates that are small enough have no limit.

use std::collections::BTreeMap;
use std::path::Path;

use super::circles::{back_arrows, circles, describe, rooms};
use super::figures::{self, Lines, Row};
use super::finding::Finding;
use super::functions::{self, Function, functions};
use super::lexer::{Source, lines_with_word};
use super::modules::{Graph, Modules};

const LIMITS: &str = "xtask/ratchets.toml";
/// Source lines of a crate, and of a circle of modules; modules of a circle: what is below these needs no limit.
const CRATE_LINES_MAX: usize = 17_000;
const CIRCLE_LINES_MAX: usize = 2_500;
const CIRCLE_MODULES_MAX: usize = 5;
/// Columns of a line with a comment.
const COLUMNS_MAX: usize = 120;
/// Words of the private language that the project once had. HOUSE terms are the field's; see STYLE.md.
const WORDS: [&str; 17] = [
    "Turnstile",
    "Steward",
    "steward",
    "Ajar",
    "Wish",
    "Experience",
    "Told",
    "Glance",
    "glance",
    "Errand",
    "Overheard",
    "Keeper",
    "Meant",
    "Sought",
    "Seat",
    "seat",
    "Lane",
];
/// First words of a comment that does not say its subject.
const PRONOUNS: [&str; 14] =
    ["None", "Of", "What", "Who", "Those", "That", "Where", "By", "It", "They", "He", "Whoever", "These", "Its"];
/// A figure this much below its limit, of a hundred, is worth writing down.
const SLACK_PERCENT: usize = 5;

/// What is measured, by the name that it has in the table of limits.
#[derive(Default)]
pub struct Ratchets {
    modules: Modules,
    /// Those that are long or have many parameters.
    large_functions: Vec<Function>,
    figures: BTreeMap<String, usize>,
    limits: String,
    lines: BTreeMap<String, Lines>,
    /// Comments that begin with a pronoun, by crate.
    pronouns: BTreeMap<String, usize>,
}

impl Ratchets {
    /// The table of limits, of a file that is no source.
    pub fn read_limits(&mut self, file: &Path, text: &str) {
        if file == Path::new(LIMITS) {
            text.clone_into(&mut self.limits);
        }
    }

    pub fn read(&mut self, file: &Path, source: &Source<'_>) {
        self.modules.read(file, source);
        let wide =
            source.text.lines().zip(source.separated.comments.lines()).filter(|(line, comment)| is_wide(line, comment));
        self.add("comments.wide", wide.count());
        let name = crate_of(file);
        let lines = figures::lines(file, source);
        let own = self.lines.entry(name.clone()).or_default();
        *own = Lines { all: own.all + lines.all, source: own.source + lines.source };
        for function in functions(file, source) {
            let is_long = function.lines > functions::LINES_MAX;
            let has_many = function.parameters > functions::PARAMETERS_MAX;
            for what in [is_long.then_some("functions_long"), has_many.then_some("functions_of_many_parameters")] {
                what.into_iter().for_each(|what| self.add(&format!("{name}.{what}"), 1));
            }
            if is_long || has_many {
                self.large_functions.push(function);
            }
        }
        let code = source.without_tests();
        if file.starts_with("crates") {
            let pronouns = code.lines().filter(|line| begins_with_pronoun(line)).count();
            self.add("comments.pronouns", pronouns);
            *self.pronouns.entry(name).or_default() += pronouns;
            let words = WORDS.iter().map(|word| lines_with_word(code, word).count());
            self.add("words.old", words.sum());
        }
    }

    /// The figures of each crate.
    pub fn rows(&self) -> BTreeMap<String, Row> {
        let graphs = self.modules.graphs();
        let figure = |name: &str, what: &str| self.figures.get(&format!("{name}.{what}")).copied().unwrap_or(0);
        let largest =
            |graph: &Graph| circles(graph).first().map_or((0, 0), |circle| (circle.modules.len(), circle.lines));
        let row = |(name, lines): (&String, &Lines)| {
            let graph = graphs.get(name.as_str());
            let row = Row {
                lines: *lines,
                file_circle: graph.map_or((0, 0), largest),
                room_circle: graph.map_or((0, 0), |files| largest(&rooms(files))),
                arrows: graph.map_or(0, |files| files.arrows.len()),
                back_arrows: graph.map_or(0, |files| back_arrows(files).len()),
                long_functions: figure(name, "functions_long"),
                functions_of_many_parameters: figure(name, "functions_of_many_parameters"),
                pronouns: self.pronouns.get(name).copied().unwrap_or(0),
            };
            (name.clone(), row)
        };
        self.lines.iter().map(row).collect()
    }

    /// Every circle as people read it, and which arrows close it.
    pub fn circles_told(&self) -> String {
        let graphs = self.modules.graphs();
        let rooms = graphs.iter().map(|(name, files)| describe(name, "rooms", &rooms(files)));
        let files = graphs.iter().map(|(name, files)| describe(name, "files", files));
        let count = graphs.values().map(|files| back_arrows(files).len()).sum::<usize>();
        let end = format!("{count} arrows between files run back: without them there is no circle\n");
        rooms.chain(files).chain([end]).collect()
    }

    /// The functions that are long or have many parameters, the longest first.
    pub fn functions_told(&self) -> String {
        let mut functions: Vec<&Function> = self.large_functions.iter().collect();
        functions.sort_by(|a, b| (b.lines, b.parameters, &a.file).cmp(&(a.lines, a.parameters, &b.file)));
        let described = functions.iter().map(|function| {
            let Function { file, line, name, lines, parameters } = function;
            format!("{}:{line}: {name}: {lines} lines, {parameters} parameters\n", file.display())
        });
        described.collect()
    }

    fn add(&mut self, name: &str, count: usize) {
        *self.figures.entry(name.to_owned()).or_default() += count;
    }

    /// What is above its limit, and as notes what is far below, and what a circle is made of.
    pub fn check(&self) -> Vec<Finding> {
        let mut figures = self.figures.clone();
        let mut members = BTreeMap::new();
        for (name, files) in self.modules.graphs() {
            let lines = files.nodes.iter().map(|node| node.lines).sum();
            let sizes = [(format!("{name}.lines"), lines, CRATE_LINES_MAX)];
            let (of_files, names_of_files) = circle_sizes(&format!("{name}.file_circle"), &files);
            let (of_rooms, names_of_rooms) = circle_sizes(&format!("{name}.circle"), &rooms(&files));
            let large = sizes.into_iter().chain(of_files).chain(of_rooms).filter(|(_, figure, max)| figure > max);
            figures.extend(large.map(|(name, figure, _)| (name, figure)));
            members.extend(names_of_files.into_iter().chain(names_of_rooms));
        }
        let limits = match limits(&self.limits) {
            Ok(limits) => limits,
            Err(error) => return vec![Finding::error(Path::new(LIMITS), 1, error)],
        };
        figures
            .iter()
            .filter_map(|(name, figure)| {
                let limit = limits.get(name).copied();
                let mut what = compared(name, *figure, limit)?;
                if let Some(members) = members.get(name).filter(|_| what.0) {
                    what.1 += &format!(": {members}");
                }
                let line = self.limits.lines().position(|line| line.contains(name.as_str())).map_or(1, |at| at + 1);
                let finding = if what.0 { Finding::error } else { Finding::note };
                Some(finding(Path::new(LIMITS), line, what.1))
            })
            .collect()
    }
}

/// `tls` for `crates/tls/tests/peers.rs`, `e2e` for `e2e/tests/run.rs`.
fn crate_of(file: &Path) -> String {
    let mut parts = file.iter().filter_map(|part| part.to_str()).skip_while(|part| *part == "crates");
    parts.next().unwrap_or_default().to_owned()
}

/// A figure's name, what it is, and what it may be without a limit.
type Size = (String, usize, usize);

/// Modules and lines of a graph's largest circles, and who is in the largest, by the name of the first.
fn circle_sizes(name: &str, graph: &Graph) -> ([Size; 2], Option<(String, String)>) {
    let circles = circles(graph);
    let modules = circles.iter().map(|circle| circle.modules.len()).max().unwrap_or(0);
    let lines = circles.first().map_or(0, |circle| circle.lines);
    let members = circles.first().map(|circle| (format!("{name}_modules"), circle.names(graph)));
    let sizes =
        [(format!("{name}_modules"), modules, CIRCLE_MODULES_MAX), (format!("{name}_lines"), lines, CIRCLE_LINES_MAX)];
    (sizes, members)
}

/// Whether a figure that is not as it should be is an error, and what to say of it.
fn compared(name: &str, figure: usize, limit: Option<usize>) -> Option<(bool, String)> {
    match limit {
        None if figure == 0 => None,
        None => Some((true, format!("{name} is {figure} and has no limit here"))),
        Some(limit) if figure > limit => Some((true, format!("{name} is {figure}, and may be {limit}"))),
        Some(limit) if figure < limit - limit * SLACK_PERCENT / 100 => {
            Some((false, format!("{name} is {figure} by now: write that instead of {limit}")))
        }
        Some(_) => None,
    }
}

/// The table of limits: tables of whole numbers, as `table.key`.
fn limits(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let mut limits = BTreeMap::new();
    for (name, value) in &table {
        let section = value.as_table().ok_or_else(|| format!("{name} is no table"))?;
        for (key, value) in section {
            let limit = value.as_integer().and_then(|limit| usize::try_from(limit).ok());
            limits.insert(format!("{name}.{key}"), limit.ok_or_else(|| format!("{name}.{key} is no count"))?);
        }
    }
    Ok(limits)
}

fn is_wide(line: &str, comment: &str) -> bool {
    !comment.trim().is_empty() && line.chars().count() > COLUMNS_MAX
}

fn begins_with_pronoun(line: &str) -> bool {
    let Some(comment) = line.trim_start().strip_prefix("//") else { return false };
    let comment = comment.trim_start_matches(['/', '!']).trim_start();
    comment.split(|character: char| !character.is_alphanumeric()).next().is_some_and(|word| PRONOUNS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_may_fall_and_must_not_rise() {
        assert_eq!(compared("a.b", 10, Some(10)), None);
        assert_eq!(compared("a.b", 11, Some(10)), Some((true, "a.b is 11, and may be 10".to_owned())));
        assert_eq!(compared("a.b", 96, Some(100)), None);
        assert!(compared("a.b", 94, Some(100)).is_some_and(|(error, _)| !error));
        assert!(compared("a.b", 1, None).is_some_and(|(error, _)| error));
        assert_eq!(compared("a.b", 0, None), None);
        assert_eq!(compared("a.b", 0, Some(0)), None);
    }

    #[test]
    fn what_is_counted_is_found_and_nothing_else() {
        let mut ratchets = Ratchets::default();
        let wide = format!("// {}\nlet a = \"{}\";\n", "x".repeat(COLUMNS_MAX), "x".repeat(COLUMNS_MAX));
        let text = format!(
            "/// Of a seat.\n/// Official.\nlet seated = Seat;\n{wide}#[cfg(test)]\nmod tests {{\n// It.\n}}\n"
        );
        ratchets.read(Path::new("crates/x/src/a.rs"), &Source::of(&text));
        let figure = |name: &str| ratchets.figures[name];
        assert_eq!((figure("comments.wide"), figure("comments.pronouns"), figure("words.old")), (1, 1, 2));
    }

    #[test]
    fn limits_are_read_from_tables_of_counts() {
        let found = limits("[a]\nb = 1\nc = 2\n").expect("a table");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [("a.b".to_owned(), 1), ("a.c".to_owned(), 2)]);
        assert!(limits("a = 1").is_err() && limits("[a]\nb = -1").is_err() && limits("[a").is_err());
    }
}
