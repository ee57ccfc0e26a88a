//! What a Cargo.toml lists and no source of its crate names is not needed, or should be: it is built all the same,
//! and makes others believe that there is an arrow.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::arrows::{Listed, crate_name};
use super::finding::Finding;
use super::lexer::Source;
use super::tokens::{Token, is_name, text_at, tokens, without_tests};

/// Listed for their features, which another crate brings along too few or too many of.
const FEATURES_ALONE: [(&str, &str); 1] = [("propylon", "tracing")];

#[derive(Default)]
pub struct Dependencies {
    listed: RefCell<Vec<Listed>>,
    /// By crate: first names of paths in its code, and in its tests.
    code: BTreeMap<String, BTreeSet<String>>,
    tests: BTreeMap<String, BTreeSet<String>>,
}

impl Dependencies {
    pub fn list(&self, listed: impl IntoIterator<Item = Listed>) {
        self.listed.borrow_mut().extend(listed);
    }

    pub fn read(&mut self, file: &Path, source: &Source<'_>) {
        let Some(folder) = crate_name(file) else { return };
        let all = tokens(&source.separated.code);
        self.tests.entry(folder.clone()).or_default().extend(crates_named(&all));
        // All of e2e is tests, and is what the crate is for.
        if folder == "e2e" || !is_test(file) {
            let (code, _) = without_tests(&all);
            let code = if folder == "e2e" { &all } else { &code };
            self.code.entry(folder).or_default().extend(crates_named(code));
        }
    }

    /// Once all is read.
    pub fn check(&self) -> Vec<Finding> {
        let listed = self.listed.borrow();
        listed.iter().filter_map(|each| Some(Finding::error(&each.file, each.line, self.objection(each)?))).collect()
    }

    fn objection(&self, listed: &Listed) -> Option<String> {
        let Listed { folder, name, tests_only, .. } = listed;
        if FEATURES_ALONE.contains(&(folder.as_str(), name.as_str())) {
            return None;
        }
        let in_code = name.replace('-', "_");
        let names = |crates: &BTreeMap<String, BTreeSet<String>>| {
            crates.get(folder).is_some_and(|named| named.contains(&in_code))
        };
        match (names(&self.code), names(&self.tests)) {
            (true, _) => None,
            (false, true) if *tests_only => None,
            (false, true) => Some(format!("only tests of {folder} name {name}: it belongs to [dev-dependencies]")),
            (false, false) => Some(format!("nothing in {folder} names {name}")),
        }
    }
}

fn is_test(file: &Path) -> bool {
    file.iter().any(|part| ["tests", "benches", "examples"].iter().any(|name| part == *name))
        || file.ends_with("tests.rs")
}

/// Names that paths begin with, `a` in `a::b`, and those of `use a;`, `use a as b;` and `use {a, b::c};`.
fn crates_named(tokens: &[Token<'_>]) -> BTreeSet<String> {
    let begins = |at: usize| {
        let before = if at == 0 { "" } else { text_at(tokens, at - 1) };
        let is_path = text_at(tokens, at + 1) == "::";
        let is_from_the_top = before == "::" && (at < 2 || !is_name(text_at(tokens, at - 2)));
        (is_path && (before != "::" || is_from_the_top)) || matches!(before, "use" | "crate")
    };
    let first = (0..tokens.len()).filter(|at| is_name(tokens[*at].text) && begins(*at));
    first.map(|at| tokens[at].text.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objection(folder: &str, tests_only: bool, files: &[(&str, &str)]) -> Option<String> {
        let mut dependencies = Dependencies::default();
        for (file, text) in files {
            dependencies.read(Path::new(file), &Source::of(text));
        }
        let file = Path::new("crates/tls/Cargo.toml").to_owned();
        dependencies.objection(&Listed {
            folder: folder.to_owned(),
            name: "some-crate".to_owned(),
            file,
            line: 1,
            tests_only,
        })
    }

    #[test]
    fn what_is_listed_has_to_be_named() {
        for code in [
            "use some_crate::X;",
            "use some_crate;",
            "fn f(x: &some_crate::X) {}",
            "#[derive(some_crate::X)] struct A;",
            "use {a::b, some_crate::c};",
            "::some_crate::f();",
            "pub use some_crate as other;",
        ] {
            assert_eq!(objection("tls", false, &[("crates/tls/src/a.rs", code)]), None, "{code}");
        }
        for code in
            ["// some_crate::X", "\"some_crate::X\"", "let some_crate = 1;", "a::some_crate::b", "some_crates::a"]
        {
            let found = objection("tls", false, &[("crates/tls/src/a.rs", code)]);
            assert_eq!(found.as_deref(), Some("nothing in tls names some-crate"), "{code}");
        }
        assert!(objection("tls", false, &[("crates/sys/src/a.rs", "use some_crate::X;")]).is_some());
    }

    #[test]
    fn what_tests_alone_name_is_for_tests_alone() {
        for (file, code) in [
            ("crates/tls/tests/a.rs", "use some_crate::X;"),
            ("crates/tls/src/a/tests.rs", "use some_crate::X;"),
            ("crates/tls/src/a.rs", "#[cfg(test)]\nmod tests { use some_crate::X; }"),
        ] {
            assert!(
                objection("tls", false, &[(file, code)]).is_some_and(|what| what.starts_with("only tests")),
                "{file}"
            );
            assert_eq!(objection("tls", true, &[(file, code)]), None, "{file}");
        }
        assert_eq!(objection("e2e", false, &[("e2e/tests/a.rs", "use some_crate::X;")]), None);
    }
}
