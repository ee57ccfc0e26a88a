//! Which module of a crate names which: every file is a module, at any depth, and an arrow leads from a file to the
//! file in which what it names stands.
//!
//! Paths that begin with `crate`, `self`, `super`, a child's name or a name that a `use` has brought along are
//! followed, through re-exports, to where they end. A parent that declares a child, or re-exports what a child has,
//! does not name it. What is compiled for tests alone is left out. Macros are not looked into beyond the paths that
//! are written in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::lexer::Source;
use super::tokens::{Token, is_name, text_at, tokens, without_tests};

/// A path of names, from the root of its crate; the root's own is empty.
pub type Names = Vec<String>;

/// Re-exports that lead to re-exports are followed so often.
const RENAMES_MAX: usize = 16;

/// The modules of every crate.
#[derive(Default)]
pub struct Modules {
    crates: BTreeMap<String, BTreeMap<Names, File>>,
}

/// What one file says.
struct File {
    path: PathBuf,
    /// Source lines without inline test modules.
    lines: usize,
    uses: Vec<Use>,
    /// Paths outside of `use`.
    mentions: Vec<Mention>,
    /// Globs: `use a::*`.
    globs: Vec<Mention>,
    /// Items that stand in it, by name.
    items: BTreeSet<String>,
    test_modules: Vec<String>,
}

struct Use {
    mention: Mention,
    /// What the file calls it.
    alias: String,
    is_public: bool,
}

struct Mention {
    /// The module it is in, which may be an inline one.
    from: Names,
    names: Names,
    line: usize,
}

/// The modules of one crate and their arrows, by number.
#[derive(Debug, Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
    /// From, to, and the places where the one names the other.
    pub arrows: BTreeMap<(usize, usize), Vec<Place>>,
}

#[derive(Debug)]
pub struct Node {
    /// `http2::lane`; `crate` for the root.
    pub name: String,
    pub lines: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    pub line: usize,
    /// As it is written: `crate::pool::Pool`.
    pub path: String,
}

impl Modules {
    /// Takes a file in, if it is a source of a crate and no file of tests.
    pub fn read(&mut self, file: &Path, source: &Source<'_>) {
        let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
        let Some((name, path)) = module_path(&parts) else { return };
        let read = File::read(file, &path, source);
        self.crates.entry(name.to_owned()).or_default().insert(path, read);
    }

    /// The graph of each crate, a module for each file.
    pub fn graphs(&self) -> BTreeMap<&str, Graph> {
        self.crates.iter().map(|(name, files)| (name.as_str(), Crate::of(files).graph())).collect()
    }
}

/// The crate that a file is of, and the path of its module from the crate's root.
///
/// `crates/tls/src/parked/link.rs` is `(tls, [parked, link])`, and so is `crates/tls/src/parked/link/mod.rs`.
fn module_path(parts: &[&str]) -> Option<(String, Names)> {
    let (name, path) = match parts {
        ["crates", name, "src", path @ ..] => (*name, path),
        [name @ ("chaos" | "e2e" | "xtask"), "src", path @ ..] => (*name, path),
        _ => return None,
    };
    let (file, folders) = path.split_last()?;
    let file = file.strip_suffix(".rs")?;
    if file == "tests" || file == "fuzz" || folders.contains(&"tests") {
        return None;
    }
    // A binary beside a library names nothing of its own but `main`.
    let is_root = folders.is_empty() && matches!(file, "lib" | "main");
    let own = (file != "mod" && !is_root).then_some(file);
    let is_beside = file == "main" && is_root && name == "keyserver";
    let own = if is_beside { Some("main") } else { own };
    Some((name.to_owned(), folders.iter().copied().chain(own).map(str::to_owned).collect()))
}

impl File {
    fn read(path: &Path, module: &[String], source: &Source<'_>) -> Self {
        let all = tokens(&source.separated.code);
        let (tokens, test_modules) = without_tests(&all);
        let mut file = Self {
            path: path.to_owned(),
            lines: source.without_tests().lines().count(),
            uses: Vec::new(),
            mentions: Vec::new(),
            globs: Vec::new(),
            items: BTreeSet::new(),
            test_modules: test_modules.into_iter().map(str::to_owned).collect(),
        };
        let mut reader = Reader { tokens: &tokens, at: 0, module: module.to_vec(), inline: Vec::new(), depth: 0 };
        reader.file(&mut file);
        file
    }
}

/// Goes through a file's tokens.
struct Reader<'r, 't> {
    tokens: &'r [Token<'t>],
    at: usize,
    /// The path of where it is, inline modules included.
    module: Names,
    /// How deep the braces of the inline modules are.
    inline: Vec<usize>,
    depth: usize,
}

impl Reader<'_, '_> {
    fn text(&self, ahead: usize) -> &str {
        text_at(self.tokens, self.at + ahead)
    }

    fn before(&self) -> &str {
        if self.at == 0 { "" } else { text_at(self.tokens, self.at - 1) }
    }

    fn file(&mut self, file: &mut File) {
        while self.at < self.tokens.len() {
            match self.text(0) {
                "{" => self.depth += 1,
                "}" => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.inline.last() == Some(&self.depth) {
                        self.inline.pop();
                        self.module.pop();
                    }
                }
                "mod" if is_name(self.text(1)) && self.text(2) == "{" => {
                    self.inline.push(self.depth);
                    self.module.push(self.text(1).to_owned());
                    self.depth += 1;
                    self.at += 3;
                    continue;
                }
                // Not the `use<'a>` of a type.
                "use" if self.text(1) != "<" => {
                    let is_public = matches!(self.before(), "pub" | ")");
                    self.at += 1;
                    self.tree(&[], is_public, file);
                    continue;
                }
                // `pub(in crate::a)` names nothing.
                "in" if self.before() == "(" => {
                    while !matches!(self.text(0), ")" | "") {
                        self.at += 1;
                    }
                    continue;
                }
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"
                    if self.depth == self.inline.len() && self.inline.is_empty() =>
                {
                    let name = if self.text(1) == "mut" { self.text(2) } else { self.text(1) };
                    file.items.insert(name.to_owned());
                }
                text if is_name(text) && self.text(1) == "::" && self.before() != "::" => {
                    file.mentions.extend(self.path());
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// A path that begins here and has more than one name.
    fn path(&mut self) -> Option<Mention> {
        let line = self.tokens[self.at].line;
        let mut names = vec![self.text(0).to_owned()];
        self.at += 1;
        while self.text(0) == "::" && is_name(self.text(1)) {
            names.push(self.text(1).to_owned());
            self.at += 2;
        }
        (names.len() > 1).then(|| Mention { from: self.module.clone(), names, line })
    }

    /// One tree of a `use`, behind what its branches have in common.
    fn tree(&mut self, common: &[String], is_public: bool, file: &mut File) {
        let mut names = common.to_vec();
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        loop {
            match self.text(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(0), "}" | "") {
                        self.tree(&names, is_public, file);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    file.globs.push(Mention { from: self.module.clone(), names, line });
                    return;
                }
                // It goes on at the root of all crates: none of ours.
                "::" if names.is_empty() => names.push(String::new()),
                "self" if !common.is_empty() && names.len() == common.len() => {}
                text if is_name(text) => names.push(text.to_owned()),
                // What is no tree must not hold the reader up.
                _ => self.at = self.at.saturating_sub(1),
            }
            self.at += 1;
            if self.text(0) == "::" {
                self.at += 1;
                continue;
            }
            break;
        }
        let mut alias = names.last().cloned().unwrap_or_default();
        if self.text(0) == "as" {
            alias = self.text(1).to_owned();
            self.at += 2;
        }
        if !matches!(self.text(0), "," | "}" | ";" | "") {
            self.at += 1;
        }
        let mention = Mention { from: self.module.clone(), names, line };
        file.uses.push(Use { mention, alias, is_public });
    }
}

/// One crate's files, with what can be looked up in them.
struct Crate<'m> {
    files: BTreeMap<&'m [String], &'m File>,
    /// What a module calls things that stand elsewhere.
    renames: BTreeMap<&'m [String], BTreeMap<&'m str, &'m Mention>>,
}

/// Where a path leads.
struct Target {
    module: Names,
    /// It is the module itself, and nothing in it.
    is_module: bool,
}

impl<'m> Crate<'m> {
    fn of(all: &'m BTreeMap<Names, File>) -> Self {
        let is_test = |path: &[String]| {
            (1..=path.len()).any(|end| {
                let (name, parent) = (&path[end - 1], &path[..end - 1]);
                all.get(parent).is_some_and(|parent| parent.test_modules.contains(name))
            })
        };
        let files: BTreeMap<&[String], &File> =
            all.iter().map(|(path, file)| (path.as_slice(), file)).filter(|(path, _)| !is_test(path)).collect();
        let mut renames: BTreeMap<&[String], BTreeMap<&str, &Mention>> = BTreeMap::new();
        for each in files.values().flat_map(|file| &file.uses) {
            renames.entry(&each.mention.from).or_default().insert(&each.alias, &each.mention);
        }
        Self { files, renames }
    }

    fn graph(&self) -> Graph {
        let numbers: BTreeMap<&[String], usize> = self.files.keys().copied().zip(0..).collect();
        let nodes = self.files.iter().map(|(path, file)| Node { name: shown(path), lines: file.lines }).collect();
        let mut arrows: BTreeMap<(usize, usize), Vec<Place>> = BTreeMap::new();
        for (path, file) in &self.files {
            for (mention, to) in self.named(file) {
                let to: &[String] = &to;
                if to != *path
                    && let Some(number) = numbers.get(to)
                {
                    let place = Place { file: file.path.clone(), line: mention.line, path: mention.names.join("::") };
                    arrows.entry((numbers[path], *number)).or_default().push(place);
                }
            }
        }
        Graph { nodes, arrows }
    }

    /// What a file names, and the module in which that stands.
    fn named<'f>(&'f self, file: &'f File) -> impl Iterator<Item = (&'f Mention, Names)> {
        // A module that is brought along is named where something in it is.
        let uses = file.uses.iter().filter_map(|each| {
            let target = self.follow(&each.mention.from, &each.mention.names, 0)?;
            let is_own = each.is_public && target.module.starts_with(&each.mention.from);
            (!target.is_module && !is_own).then_some((&each.mention, target.module))
        });
        let globs = file.globs.iter().filter_map(|glob| {
            let target = self.follow(&glob.from, &glob.names, 0)?;
            (!target.module.starts_with(&glob.from)).then_some((glob, target.module))
        });
        let mentions = file.mentions.iter().filter_map(|mention| {
            let target = self.follow(&mention.from, &mention.names, 0)?;
            Some((mention, target.module))
        });
        uses.chain(globs).chain(mentions).map(|(mention, to)| (mention, self.file_of(to)))
    }

    /// The file that a module is in: an inline module is in its parent's.
    fn file_of(&self, mut module: Names) -> Names {
        while !module.is_empty() && !self.files.contains_key(module.as_slice()) {
            module.pop();
        }
        module
    }

    /// Follows a path from a module to where it ends; none where that is another crate, or no module's.
    fn follow(&self, from: &[String], names: &[String], renames: usize) -> Option<Target> {
        let (first, mut rest) = names.split_first()?;
        let mut module = match first.as_str() {
            "crate" => Names::new(),
            "self" => from.to_vec(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            name if self.is_child(from, name) => [from, &[name.to_owned()]].concat(),
            name => {
                let use_of = self.renames.get(from)?.get(name).filter(|_| renames < RENAMES_MAX)?;
                // A `use` of the same name would lead back here.
                if use_of.names.first() == Some(first) {
                    return None;
                }
                let names = [&use_of.names, rest].concat();
                return self.follow(&use_of.from, &names, renames + 1);
            }
        };
        while let Some((next, more)) = rest.split_first() {
            if next == "super" {
                module.pop()?;
            } else if self.is_child(&module, next) {
                module.push(next.clone());
            } else {
                return Some(self.item(module, next, more, renames));
            }
            rest = more;
        }
        Some(Target { module, is_module: true })
    }

    /// Something in a module that is no child of it: its own, or brought along from elsewhere.
    fn item(&self, module: Names, name: &str, more: &[String], renames: usize) -> Target {
        let here = Target { module, is_module: false };
        if renames >= RENAMES_MAX {
            return here;
        }
        if let Some(use_of) = self.renames.get(here.module.as_slice()).and_then(|names| names.get(name)) {
            let names = [&use_of.names, more].concat();
            return self.follow(&use_of.from, &names, renames + 1).unwrap_or(here);
        }
        let Some(file) = self.files.get(here.module.as_slice()).filter(|file| !file.items.contains(name)) else {
            return here;
        };
        let through_globs = file.globs.iter().filter_map(|glob| {
            let target = self.follow(&glob.from, &glob.names, renames + 1)?;
            let found = self.item(target.module.clone(), name, more, renames + 1);
            let stands_there = self.files.get(found.module.as_slice()).is_some_and(|file| file.items.contains(name));
            (stands_there || found.module != target.module).then_some(found)
        });
        through_globs.into_iter().next().unwrap_or(here)
    }

    fn is_child(&self, module: &[String], name: &str) -> bool {
        self.files.contains_key([module, &[name.to_owned()]].concat().as_slice())
    }
}

fn shown(path: &[String]) -> String {
    if path.is_empty() { "crate".to_owned() } else { path.join("::") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arrows of a crate of these files, as `from>to`.
    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let mut modules = Modules::default();
        for (file, text) in files {
            modules.read(&Path::new("crates/x/src").join(file), &Source::of(text));
        }
        let graph = modules.graphs().remove("x").expect("a crate");
        let name = |number: usize| graph.nodes[number].name.as_str();
        graph.arrows.keys().map(|(from, to)| format!("{}>{}", name(*from), name(*to))).collect()
    }

    /// Where code in `a/b.rs` leads to.
    fn targets(code: &str) -> Vec<String> {
        let all = arrows(&[
            ("lib.rs", "mod a; mod pool; mod slot; pub use pool::Pool; pub use std::fmt;"),
            ("a/mod.rs", "mod b; mod c; pub use c::*; use crate::slot::Slot; struct Own; use self::c::d;"),
            ("a/b.rs", code),
            ("a/c.rs", "mod d; pub struct Inner; pub use d::Deep as Deeper;"),
            ("a/c/d.rs", "pub struct Deep;"),
            ("pool.rs", "pub struct Pool;"),
            ("slot.rs", ""),
        ]);
        all.iter().filter_map(|arrow| arrow.strip_prefix("a::b>")).map(str::to_owned).collect()
    }

    #[test]
    fn paths_are_followed_to_the_file_that_they_end_in() {
        for (code, expected) in [
            ("use crate::pool::Pool;", vec!["pool"]),
            ("use crate::{pool::{self, Pool as P}, slot::Slot};", vec!["pool", "slot"]),
            ("fn f() { crate::pool::take::<X>() }", vec!["pool"]),
            ("fn f(x: &'a super::Own) {}", vec!["a"]),
            ("use super::super::{pool::Pool, slot::Slot};", vec!["pool", "slot"]),
            ("use crate::pool; fn f() { pool::take() }", vec!["pool"]),
            ("use super::c; fn f() { c::d::deep() }", vec!["a::c::d"]),
            ("vec![super::c::Inner]", vec!["a::c"]),
            ("use super::c::*;", vec!["a::c"]),
            ("use crate::{\n    // why\n    pool::Pool,\n};", vec!["pool"]),
        ] {
            assert_eq!(targets(code), expected, "{code}");
        }
    }

    #[test]
    fn re_exports_lead_to_what_they_re_export() {
        for (code, expected) in [
            ("use crate::Pool;", vec!["pool"]),
            ("use super::Inner;", vec!["a::c"]),
            ("use crate::a::Deeper;", vec!["a::c::d"]),
            ("use super::Slot;", vec!["slot"]),
            ("use crate::fmt;", vec!["crate"]),
            ("use super::{Slot, Own};", vec!["a", "slot"]),
            ("use super::d; fn f() { d::x() }", vec!["a::c::d"]),
        ] {
            assert_eq!(targets(code), expected, "{code}");
        }
    }

    #[test]
    fn what_names_no_module_is_no_arrow() {
        for code in [
            "use other::crate_of::super_name;",
            "use crate::pool;",
            "pub(in crate::a) fn f() {}",
            "// crate::pool::Pool",
            "let x = \"crate::pool::Pool\";",
            "#[cfg(test)]\nmod tests {\nuse crate::pool::Pool;\n}\n",
            "#[cfg(test)]\nuse crate::pool::Pool;",
            "use ::pool::Pool;",
            "use std::{fmt, pool::X};",
            "mod inline { use super::own; fn f() { self::g() } } fn own() {}",
        ] {
            assert_eq!(targets(code), Vec::<String>::new(), "{code}");
        }
        assert_eq!(targets("mod inline { use super::super::Own; }"), ["a"], "an inline module is one level more");
    }

    #[test]
    fn a_parent_that_declares_or_re_exports_a_child_does_not_name_it() {
        let child = ("a/b.rs", "pub struct B;");
        for parent in
            ["mod b;", "mod b; pub use b::B;", "pub mod b; pub(crate) use self::b::{B, C};", "mod b; pub use b::*;"]
        {
            assert_eq!(arrows(&[("a.rs", parent), child]), Vec::<String>::new(), "{parent}");
        }
        for parent in ["mod b; use b::B;", "mod b; fn f() { b::g() }", "mod b; fn f(x: self::b::B) {}"] {
            assert_eq!(arrows(&[("a.rs", parent), child]), ["a>a::b"], "{parent}");
        }
    }

    #[test]
    fn modules_of_tests_alone_are_none() {
        let parent = "#[cfg(test)]\nmod simulation;\nmod c;\n";
        assert_eq!(
            arrows(&[("a.rs", parent), ("a/simulation.rs", "use super::c::C;"), ("a/c.rs", "use super::A;")]),
            ["a::c>a"]
        );
    }

    #[test]
    fn a_files_module_is_its_path_below_the_root() {
        let path =
            |file: &str| module_path(&file.split('/').collect::<Vec<_>>()).map(|(name, path)| (name, path.join("::")));
        let found = |module: &str| Some(("tls".to_owned(), module.to_owned()));
        assert_eq!(path("crates/tls/src/parked/link.rs"), found("parked::link"));
        assert_eq!(path("crates/tls/src/parked/mod.rs"), found("parked"));
        assert_eq!(path("crates/tls/src/lib.rs"), found(""));
        assert_eq!(path("crates/keyserver/src/main.rs"), Some(("keyserver".to_owned(), "main".to_owned())));
        for none in [
            "crates/tls/tests/peers.rs",
            "crates/tls/src/slot/tests.rs",
            "crates/tls/src/http1/tests/a.rs",
            "docs/a.md",
        ] {
            assert_eq!(path(none), None, "{none}");
        }
    }
}
