//! Which modules of a crate import each other in a circle: nobody understands one of them without all.
//!
//! A module is what lies directly below the crate's root, with everything in its folder. Arrows are read from the paths that begin with
//! `crate` or `super`; macros and re-exports are not followed, and inline test modules are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::lexer::Source;

/// The modules of every crate and who imports whom.
#[derive(Default)]
pub struct Circles {
    crates: BTreeMap<String, BTreeMap<String, Module>>,
}

#[derive(Default)]
struct Module {
    /// Source lines without inline test modules.
    lines: usize,
    /// Modules of the same crate, this one not among them.
    imports: BTreeSet<String>,
}

/// Modules of one crate, each of which leads to all others.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    /// Source lines of all of them.
    pub lines: usize,
    pub modules: Vec<String>,
}

impl Circles {
    /// Takes a file in, if it is a source of a crate and no file of tests.
    pub fn read(&mut self, file: &Path, source: &Source<'_>) {
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        let Some((name, path)) = module_path(&parts) else { return };
        let module = self.crates.entry(name.to_owned()).or_default().entry(path[0].to_owned()).or_default();
        module.lines += source.without_tests().lines().count();
        module.imports.extend(imports(source.code_without_tests(), path.len()));
    }

    /// The crates, each with its source lines and its circles, of which the largest is the first.
    pub fn find(&self) -> BTreeMap<&str, (usize, Vec<Circle>)> {
        self.crates.iter().map(|(name, modules)| (name.as_str(), (lines(modules.values()), circles(modules)))).collect()
    }
}

fn lines<'m>(modules: impl IntoIterator<Item = &'m Module>) -> usize {
    modules.into_iter().map(|module| module.lines).sum()
}

/// The crate that a file is of, and the path of its module from the crate's root, which is not empty.
///
/// `crates/tls/src/parked/link.rs` is `(tls, [parked, link])`, and so is `crates/tls/src/parked/link/mod.rs`.
fn module_path<'p>(parts: &[&'p str]) -> Option<(&'p str, Vec<&'p str>)> {
    let (name, path) = match parts {
        ["crates", name, "src", path @ ..] => (*name, path),
        [name @ ("xtask" | "e2e"), "src", path @ ..] => (*name, path),
        _ => return None,
    };
    let (file, folders) = path.split_last()?;
    let file = file.strip_suffix(".rs")?;
    if file == "tests" || file == "fuzz" || folders.contains(&"tests") {
        return None;
    }
    let own = (file != "mod").then_some(file);
    Some((name, folders.iter().copied().chain(own).collect())).filter(|(_, path): &(_, Vec<_>)| !path.is_empty())
}

/// The modules below the root that code of a module at this depth names.
fn imports(code: &str, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let words = words(code);
    for (at, word) in words.iter().enumerate() {
        let starts_a_path = at == 0 || words[at - 1] != "::";
        if !starts_a_path || !matches!(*word, "crate" | "super") {
            continue;
        }
        let (mut next, mut climbed) = (at, 0);
        while words.get(next) == Some(&"super") && words.get(next + 1) == Some(&"::") {
            (next, climbed) = (next + 2, climbed + 1);
        }
        match words.get(next) {
            Some(&"crate") if words.get(next + 1) == Some(&"::") => found.extend(heads(&words[next + 2..])),
            // It has climbed to the root.
            Some(_) if climbed == depth => found.extend(heads(&words[next..])),
            _ => {}
        }
    }
    found
}

/// The first names of the paths that begin here: one, or those of a group in braces.
fn heads(words: &[&str]) -> Vec<String> {
    if words.first() != Some(&"{") {
        return words.first().map(|word| (*word).to_owned()).into_iter().collect();
    }
    let (mut depth, mut begins, mut found) = (0, true, Vec::new());
    for word in words {
        match *word {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => {
                begins = true;
                continue;
            }
            name if depth == 1 && begins => found.push(name.to_owned()),
            _ => {}
        }
        if depth == 0 {
            break;
        }
        begins = *word == "{" && depth == 1;
    }
    found
}

/// Names, `::`, and any other character by itself.
fn words(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_part = |character: char| character.is_alphanumeric() || character == '_';
        let length = match first {
            _ if is_part(first) => rest.find(|character| !is_part(character)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    words
}

/// The strongly connected components of more than one module, the one of most lines first.
fn circles(modules: &BTreeMap<String, Module>) -> Vec<Circle> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        modules.keys().map(|name| (name.as_str(), reachable(modules, name))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (name, reached) in &reach {
        let circle: Vec<&str> = reached.iter().copied().filter(|other| reach[other].contains(name)).collect();
        if circle.len() > 1 && seen.insert(circle[0]) {
            let lines = lines(circle.iter().map(|name| &modules[*name]));
            circles.push(Circle { lines, modules: circle.into_iter().map(str::to_owned).collect() });
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.lines));
    circles
}

/// All modules that a module leads to, itself among them where it is in a circle.
fn reachable<'m>(modules: &'m BTreeMap<String, Module>, from: &str) -> BTreeSet<&'m str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        for import in &modules[name].imports {
            if let Some((import, _)) = modules.get_key_value(import)
                && import != name
                && reached.insert(import.as_str())
            {
                open.push(import);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str, depth: usize) -> Vec<String> {
        imports(code, depth).into_iter().collect()
    }

    #[test]
    fn paths_from_the_root_and_up_to_it_are_arrows() {
        assert_eq!(names("use crate::pool::Pool;", 1), ["pool"]);
        assert_eq!(names("use crate::{a, b::{C, d}, e as f};", 1), ["a", "b", "e"]);
        assert_eq!(names("let x = crate::pool::take(); pub(in crate::seat) fn y() {}", 1), ["pool", "seat"]);
        assert_eq!(names("pub(crate) fn f(x: &crate::core::Core)", 1), ["core"]);
        assert_eq!(names("use super::pool::Pool;", 1), ["pool"]);
        assert_eq!(names("use super::pool::Pool;", 2), Vec::<String>::new());
        assert_eq!(names("use super::super::{pool, seat};", 2), ["pool", "seat"]);
        assert_eq!(names("use other::crate_of::super_name;", 1), Vec::<String>::new());
    }

    #[test]
    fn a_module_is_what_lies_below_the_root() {
        let path = |file: &str| {
            module_path(&file.split('/').collect::<Vec<_>>()).map(|(name, path)| (name.len(), path.join("::")))
        };
        assert_eq!(path("crates/tls/src/parked/link.rs"), Some((3, "parked::link".to_owned())));
        assert_eq!(path("crates/tls/src/parked/mod.rs"), Some((3, "parked".to_owned())));
        assert_eq!(path("crates/tls/src/lib.rs"), Some((3, "lib".to_owned())));
        for none in [
            "crates/tls/tests/peers.rs",
            "crates/tls/src/seat/tests.rs",
            "crates/tls/src/http1/tests/a.rs",
            "docs/a.md",
        ] {
            assert_eq!(path(none), None, "{none}");
        }
    }

    #[test]
    fn those_that_lead_to_each_other_are_a_circle() {
        let mut all = Circles::default();
        for (file, text) in [
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::c;\n\n"),
            ("c/d.rs", "use super::super::a;\nuse crate::e;\n"),
            ("e.rs", "use crate::f;\n#[cfg(test)]\nmod tests {\nuse crate::a;\n}\n"),
            ("f.rs", "use crate::nowhere;\nuse crate::f::own;\n"),
        ] {
            all.read(&Path::new("crates/x/src").join(file), &Source::of(text));
        }
        let found = all.find();
        let circle = Circle { lines: 5, modules: ["a", "b", "c"].map(str::to_owned).to_vec() };
        assert_eq!(found["x"], (8, vec![circle]));
    }
}
