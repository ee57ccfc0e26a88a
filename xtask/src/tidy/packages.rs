//! Packages of other people: under which licences they come, from where, and of which there are two.
//!
//! What is allowed stands in `deny.toml`, as `cargo deny check` reads it as well, which also asks for advisories.
//! Here it is read so that the lists are held without another tool and without the network.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::process::Command;

use super::finding::Finding;

pub const LISTS: &str = "deny.toml";
pub const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

/// What `deny.toml` allows.
#[derive(Debug, Default)]
pub struct Lists {
    licences: BTreeSet<String>,
    /// `name@version`, beside another version of the same.
    duplicates: BTreeSet<String>,
    registries: BTreeSet<String>,
}

/// A package that is built.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub licence: String,
}

/// What is wrong with the packages that are built here, and with the sources in the locks.
pub fn check(root: &Path) -> Vec<Finding> {
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let lists = match Lists::parse(&read(LISTS)) {
        Ok(lists) => lists,
        Err(error) => return vec![Finding::error(Path::new(LISTS), 1, error)],
    };
    let mut findings: Vec<Finding> = LOCKS.iter().flat_map(|lock| sources(&lists, lock, &read(lock))).collect();
    match packages(root) {
        Ok(packages) => {
            let wrong = licences(&lists, &packages).into_iter().chain(duplicates(&lists, &packages));
            findings.extend(wrong.map(|what| Finding::error(Path::new(LISTS), 1, what)));
        }
        Err(error) => findings.push(Finding::error(Path::new(LISTS), 1, error)),
    }
    findings
}

impl Lists {
    fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        let list = |section: &str, key: &str| {
            let list = table.get(section).and_then(|section| section.get(key)).and_then(toml::Value::as_array);
            list.cloned().ok_or_else(|| format!("{section}.{key} is no array"))
        };
        let texts = |list: Vec<toml::Value>| list.iter().filter_map(|each| each.as_str().map(str::to_owned)).collect();
        let skipped = list("bans", "skip")?;
        let crates = skipped.iter().filter_map(|each| each.get("crate")?.as_str().map(str::to_owned));
        Ok(Self {
            licences: texts(list("licenses", "allow")?),
            duplicates: crates.collect(),
            registries: texts(list("sources", "allow-registry")?),
        })
    }
}

/// Packages from anywhere but the registries of the list.
fn sources(lists: &Lists, lock: &str, text: &str) -> Vec<Finding> {
    let is_allowed = |source: &str| source.strip_prefix("registry+").is_some_and(|url| lists.registries.contains(url));
    let sources = text
        .lines()
        .zip(1..)
        .filter_map(|(line, number)| Some((line.strip_prefix("source = \"")?.strip_suffix('"')?, number)));
    let wrong = sources.filter(|(source, _)| !is_allowed(source));
    wrong
        .map(|(source, line)| Finding::error(Path::new(lock), line, format!("{source} is no source of {LISTS}")))
        .collect()
}

/// Packages whose licence is not in the list, and what is in it for nobody.
fn licences(lists: &Lists, packages: &[Package]) -> Vec<String> {
    let mut wrong: Vec<String> = packages
        .iter()
        .filter(|package| !is_allowed(&package.licence, &lists.licences))
        .map(|Package { name, version, licence }| format!("{name} {version}: its licence \"{licence}\" is not allowed"))
        .collect();
    let needed = |licence: &&String| {
        let others: BTreeSet<String> = lists.licences.iter().filter(|other| other != licence).cloned().collect();
        packages
            .iter()
            .any(|package| is_allowed(&package.licence, &lists.licences) && !is_allowed(&package.licence, &others))
    };
    let idle = lists.licences.iter().filter(|licence| !needed(licence));
    wrong.extend(idle.map(|licence| format!("no package needs the licence {licence}")));
    wrong
}

/// Packages that are there in several versions, but for the last, if they are not in the list; and what is in it for
/// nobody.
fn duplicates(lists: &Lists, packages: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    let several = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let mut wrong = Vec::new();
    let mut known = BTreeSet::new();
    for (name, versions) in several {
        let listed =
            versions.iter().map(|version| format!("{name}@{version}")).filter(|each| lists.duplicates.contains(each));
        let listed: Vec<String> = listed.collect();
        if listed.len() + 1 < versions.len() {
            wrong.push(format!("{name} is there as {}: bans.skip does not know", versions.join(" and ")));
        }
        known.extend(listed);
    }
    let idle = lists.duplicates.difference(&known);
    wrong.extend(idle.map(|each| format!("{each} is in bans.skip, and there are no two of it")));
    wrong
}

/// Whether an SPDX expression can be met: `OR` (or `/`, as of old) by one side, `AND` by both.
fn is_allowed(expression: &str, licences: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any_of(&words, &mut at, licences) && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, licences: &BTreeSet<String>) -> bool {
    let mut met = all_of(words, at, licences);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at, licences);
    }
    met
}

fn all_of(words: &[&str], at: &mut usize, licences: &BTreeSet<String>) -> bool {
    let mut met = one(words, at, licences);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, licences);
    }
    met
}

/// A licence, one `WITH` an exception, which has to be in the list as such, or an expression in parentheses.
fn one(words: &[&str], at: &mut usize, licences: &BTreeSet<String>) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = any_of(words, at, licences);
        *at += 1;
        return met && words.get(*at - 1) == Some(&")");
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return licences.contains(&format!("{word} WITH {exception}"));
    }
    licences.contains(*word)
}

/// Everything that is built on this machine's kind for the workspace, tests included. Asks cargo, which needs no
/// network once all of it has been fetched.
fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let metadata = metadata(root)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut found: Vec<Package> = packages
        .filter(|package| package["source"].is_string())
        .map(|package| {
            let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
            Package { name: text("name"), version: text("version"), licence: text("license") }
        })
        .collect();
    found.sort();
    if found.is_empty() { Err("cargo metadata knows no packages".to_owned()) } else { Ok(found) }
}

/// Answer of cargo about all packages for this machine's kind.
pub fn metadata(root: &Path) -> Result<serde_json::Value, String> {
    let platform = platform();
    let text =
        cargo(root, &["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", &platform])?;
    serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))
}

/// How many packages are built into a binary of ours, its own among them.
pub fn built_into(root: &Path, package: &str) -> Result<usize, String> {
    let platform = platform();
    let arguments =
        ["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--target"];
    let text = cargo(root, &[&arguments[..], &[&platform, "--package", package]].concat())?;
    // Behind name and version stand paths and marks.
    let names = text.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>()).filter(|line| line.len() == 2);
    Ok(names.collect::<BTreeSet<_>>().len())
}

fn platform() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

pub fn cargo(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(root).output();
    let output = output.map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        let what = String::from_utf8_lossy(&output.stderr);
        let first = what.lines().next().unwrap_or_default();
        return Err(format!("cargo {} says: {first}; cargo fetch --locked may help", arguments[0]));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("cargo {}: {error}", arguments[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[licenses]\nallow = [\"MIT\", \"ISC\"]\n\
        [bans]\nskip = [{ crate = \"a@1.0.0\", reason = \"b\" }]\n\
        [sources]\nallow-registry = [\"https://one.example/index\"]\n";

    fn lists() -> Lists {
        Lists::parse(TEXT).expect("lists")
    }

    fn package(name: &str, version: &str, licence: &str) -> Package {
        Package { name: name.to_owned(), version: version.to_owned(), licence: licence.to_owned() }
    }

    #[test]
    fn expressions_of_licences_are_met_or_not() {
        let met = |expression: &str| is_allowed(expression, &lists().licences);
        for expression in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "MIT AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "GPL-3.0 AND X OR MIT",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(met(expression), "{expression}");
        }
        for expression in
            ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT WITH GPL-exception", "(MIT", "MIT ISC", "MIT AND (GPL-3.0 OR X)"]
        {
            assert!(!met(expression), "{expression}");
        }
    }

    #[test]
    fn licences_that_are_not_allowed_and_those_that_nobody_needs_are_found() {
        let found = licences(&lists(), &[package("a", "1.0.0", "MIT"), package("b", "2.0.0", "GPL-3.0")]);
        assert_eq!(found, ["b 2.0.0: its licence \"GPL-3.0\" is not allowed", "no package needs the licence ISC"]);
    }

    #[test]
    fn a_second_version_has_to_be_known() {
        let two = |name: &str| vec![package(name, "1.0.0", "MIT"), package(name, "2.0.0", "MIT")];
        assert_eq!(duplicates(&lists(), &two("a")), Vec::<String>::new());
        assert_eq!(
            duplicates(&lists(), &two("b")),
            [
                "b is there as 1.0.0 and 2.0.0: bans.skip does not know",
                "a@1.0.0 is in bans.skip, and there are no two of it"
            ]
        );
    }

    #[test]
    fn packages_come_from_the_registries_of_the_list() {
        let lock = "source = \"registry+https://one.example/index\"\nsource = \"git+https://one.example/index\"\n\
            source = \"registry+https://other.example/index\"\n";
        let found: Vec<usize> = sources(&lists(), "Cargo.lock", lock).iter().map(|finding| finding.line).collect();
        assert_eq!(found, [2, 3]);
    }

    #[test]
    fn lists_that_are_missing_are_told_of() {
        for section in ["licenses", "bans", "sources"] {
            let text = TEXT.replace(section, "other");
            assert!(Lists::parse(&text).is_err_and(|error| error.starts_with(section)), "{section}");
        }
    }
}
