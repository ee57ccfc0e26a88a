//! Who may depend on whom, and who must forbid unsafe code: the rules of the Cargo.toml files.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::finding::{Finding, line_of};
use super::picture::Arrows;

/// Rules of a crate: which others it may use.
struct CrateRules {
    name: &'static str,
    /// The crates of ours that it may use, without their `propylon-`.
    ours: &'static [&'static str],
    others: Others,
    unsafe_code: UnsafeCode,
}

/// Which crates of other people it may use.
enum Others {
    AllBut(&'static [&'static str]),
    None,
}

#[derive(PartialEq, Eq)]
enum UnsafeCode {
    Forbidden,
    /// None of our own, but a lint could not say so: the fuzzer's macro brings some along.
    Generated,
    /// With a SAFETY sentence each.
    Allowed,
    /// As above, in these files only; the crate denies it elsewhere.
    Within(&'static [&'static str]),
}

/// Where the table is.
const OWN: &str = "xtask/src/tidy/arrows.rs";

const RUNTIMES: [&str; 4] = ["tokio", "async-std", "smol", "mio"];

/// The table of arrows. A new one needs a reason in the commit that adds it here.
const CRATES: &[CrateRules] = &[
    CrateRules::new("config", &[], &["tokio", "mio", "rustls", "aws-lc-rs"]),
    CrateRules::new("metrics", &[], &RUNTIMES),
    CrateRules { unsafe_code: UnsafeCode::Allowed, ..CrateRules::new("sys", &[], &RUNTIMES) },
    CrateRules::new(
        "policy",
        &[],
        &["tokio", "mio", "rustls", "aws-lc-rs", "rustix", "libc", "socket2", "fastrand", "rand", "getrandom", "time"],
    ),
    CrateRules {
        unsafe_code: UnsafeCode::Within(&["crates/crypto/src/awslc.rs", "crates/crypto/src/locked.rs"]),
        ..CrateRules::new("crypto", &["lanes", "sys"], &["rustls", "h2", "hyper", "http", "httparse"])
    },
    CrateRules { unsafe_code: UnsafeCode::Allowed, others: Others::None, ..CrateRules::new("lanes", &[], &[]) },
    CrateRules {
        unsafe_code: UnsafeCode::Within(&["crates/tls/src/parking/fiber.rs"]),
        ..CrateRules::new("tls", &["crypto", "config"], &["h2", "hyper", "http", "httparse"])
    },
    // Bytes in, decisions out: whoever has the bytes, and waits for more, is above it.
    CrateRules::new(
        "http",
        &["config"],
        &["tokio", "mio", "h2", "hyper", "http", "rustls", "rustix", "libc", "socket2"],
    ),
    // Streams, whatever is sent by them.
    CrateRules::new(
        "net",
        &["tls", "crypto", "sys", "metrics", "config"],
        &["h2", "hyper", "http", "httparse", "rustls", "toml"],
    ),
    // What is told, and not what is done: the data plane and the main thread count by its handles.
    CrateRules::new(
        "observe",
        &["http", "net", "policy", "tls", "crypto", "sys", "metrics", "config"],
        &["tokio", "h2", "hyper", "http", "httparse", "rustls", "toml"],
    ),
    // Keys that are elsewhere, and who waits for their signatures.
    CrateRules::new(
        "signer",
        &["observe", "policy", "net", "tls", "keyserver", "crypto", "sys", "metrics", "config"],
        &["toml", "serde_json", "h2", "hyper", "http", "aws-lc-rs", "rustls"],
    ),
    // The data plane: connections, requests and the servers they go to. Who tells it what to do is above it.
    // Requests and responses as bytes and facts, without the connection: decisions and lines come out.
    CrateRules::new(
        "compress",
        &["http", "config"],
        &["tokio", "mio", "h2", "hyper", "rustls", "rustix", "libc", "socket2"],
    ),
    // A protocol of servers as bytes and facts: records and heads.
    CrateRules::new("fastcgi", &["config"], &["tokio", "mio", "h2", "hyper", "rustls", "rustix", "libc", "socket2"]),
    CrateRules::new(
        "steps",
        &["http", "policy", "tls", "crypto", "config"],
        &["tokio", "mio", "h2", "hyper", "rustls", "rustix", "libc", "socket2"],
    ),
    // Bodies that are held, and threads for files: whoever polls is above it.
    CrateRules::new(
        "spool",
        &["policy", "sys"],
        &["tokio", "mio", "h2", "hyper", "http", "httparse", "rustls", "rustix", "libc", "socket2"],
    ),
    // Proofs of whom a request is from: bytes in, a verdict out, and threads for verdicts that take long.
    CrateRules::new(
        "identity",
        &["http", "crypto", "config"],
        &["tokio", "mio", "h2", "hyper", "rustls", "rustix", "libc", "socket2", "aws-lc-rs"],
    ),
    CrateRules::new(
        "proxy",
        &[
            "signer", "steps", "spool", "compress", "fastcgi", "identity", "observe", "policy", "http", "net", "tls",
            "crypto", "sys", "metrics", "config",
        ],
        &[
            "toml",
            "serde_json",
            "h2",
            "hyper",
            "instant-acme",
            "aws-lc-rs",
            "rustls",
            "rustls-pki-types",
            "ratatui",
            "clap",
        ],
    ),
    // The main thread.
    CrateRules::new(
        "control",
        &[
            "proxy",
            "fastcgi",
            "signer",
            "steps",
            "observe",
            "policy",
            "http",
            "identity",
            "net",
            "tls",
            "acme",
            "announce",
            "cluster",
            "keyserver",
            "crypto",
            "sys",
            "metrics",
            "config",
        ],
        &["toml", "h2", "instant-acme", "aws-lc-rs", "rustls", "rustls-pki-types", "ratatui", "clap"],
    ),
    // Words, and nothing that is done.
    CrateRules {
        others: Others::AllBut(&["tokio", "mio", "rustls", "rustix", "libc", "toml"]),
        ..CrateRules::new("commands", &[], &[])
    },
    // The engine's binary: how it starts, and what checks that it can.
    CrateRules::new(
        "propylon",
        &["commands", "control", "proxy", "tls", "keyserver", "sys", "config"],
        &["toml", "instant-acme", "aws-lc-rs", "rustls", "rustls-pki-types", "h2", "hyper", "ratatui"],
    ),
    // Commands that ask an engine, or explain what it would do.
    CrateRules::new(
        "propylonctl",
        &[
            "commands",
            "control",
            "proxy",
            "import",
            "steps",
            "policy",
            "fastcgi",
            "http",
            "identity",
            "tls",
            "announce",
            "cluster",
            "keyserver",
            "crypto",
            "metrics",
            "sys",
            "config",
        ],
        &["toml", "instant-acme", "aws-lc-rs", "rustls", "rustls-pki-types", "h2", "hyper"],
    ),
    // It talks to authorities as any client does, and knows of listeners nothing.
    CrateRules::new("acme", &["config", "crypto", "sys"], &["h2", "httparse", "toml"]),
    // It waits in system calls with limits, and gets as values what it decides by.
    CrateRules::new("announce", &[], &RUNTIMES),
    // Texts in, a text out.
    CrateRules::new("import", &["config"], &["tokio", "mio", "rustls", "rustix", "libc", "toml"]),
    // A client of etcd, with TLS of the ordinary kind; the engine has what comes of it as files and changes.
    CrateRules::new("cluster", &["flows", "config", "crypto", "policy"], &["h2", "httparse", "toml"]),
    // Packets, and the two files by which it and an engine talk: a process beside the engine, with rights of its own.
    CrateRules::new("flows", &["policy"], &["tokio", "rustls", "hyper"]),
    // A client of an API server and of admin addresses; what engines make of a configuration is none of its business.
    CrateRules::new("gateway", &["commands", "config", "crypto"], &["h2", "httparse", "aws-lc-rs"]),
    // Its links are TLS of the ordinary kind, for which the library is enough: `tls` is about clients by the thousand.
    CrateRules::new(
        "keyserver",
        &["commands", "crypto", "sys", "metrics", "config"],
        &["h2", "hyper", "http", "httparse"],
    ),
    // A witness must not be family: words of a command line are all that it has in common with the engine.
    CrateRules::new("bench", &["commands"], &[]),
    // It needs what any command of the bench needs, and of the engine as little.
    CrateRules::new("chaos", &["bench"], &[]),
    CrateRules::new("e2e", &[], &[]),
    CrateRules {
        unsafe_code: UnsafeCode::Generated,
        ..CrateRules::new(
            "fuzz",
            &["config", "lanes", "crypto", "tls", "http", "identity", "steps", "fastcgi", "import", "compress"],
            &[],
        )
    },
    CrateRules::new("xtask", &[], &["tokio"]),
];

impl CrateRules {
    const fn new(name: &'static str, ours: &'static [&'static str], never: &'static [&'static str]) -> Self {
        Self { name, ours, others: Others::AllBut(never), unsafe_code: UnsafeCode::Forbidden }
    }

    fn find(name: &str) -> Option<&'static Self> {
        CRATES.iter().find(|rules| rules.name == name)
    }

    fn refuses(&self, package: &str, tests_only: bool) -> Option<String> {
        let name = self.name;
        match (package.strip_prefix("propylon-"), &self.others) {
            (Some(ours), _) if !self.ours.contains(&ours) => {
                Some(format!("{name} must not use {package}: no such arrow in the table of xtask"))
            }
            (Some(_), _) => None,
            // Tests may look at anything: a kernel is compared with the library it replaces.
            (None, _) if tests_only => None,
            (None, Others::None) => Some(format!("{name} must not use {package}: it uses no other crate")),
            (None, Others::AllBut(never)) if never.contains(&package) => {
                Some(format!("{name} must never import {package}"))
            }
            (None, Others::AllBut(_)) => None,
        }
    }
}

/// Whether a source file lives where unsafe code is allowed.
pub fn allows_unsafe(file: &Path) -> bool {
    rules_of(file).is_some_and(|rules| match &rules.unsafe_code {
        UnsafeCode::Allowed => true,
        UnsafeCode::Within(files) => files.iter().any(|allowed| file == Path::new(allowed)),
        UnsafeCode::Forbidden | UnsafeCode::Generated => false,
    })
}

fn rules_of(file: &Path) -> Option<&'static CrateRules> {
    CrateRules::find(&crate_name(file)?)
}

/// `config` for `crates/config/src/lib.rs`, `xtask` for `xtask/Cargo.toml`.
pub fn crate_name(file: &Path) -> Option<String> {
    let mut parts = file.iter().filter_map(|part| part.to_str());
    match parts.next()? {
        "crates" => parts.next().map(str::to_owned),
        top => Some(top.to_owned()),
    }
}

/// What the top Cargo.toml says for all members.
pub struct Workspace {
    /// Names of dependencies that are not the names of their packages.
    renamed: HashMap<String, String>,
    forbids_unsafe: bool,
    /// Arrows between our crates that a Cargo.toml has.
    used: RefCell<HashSet<(&'static str, &'static str)>>,
    /// Those that are not of tests alone, for the picture.
    drawn: RefCell<Arrows>,
}

impl Workspace {
    pub fn parse(text: &str) -> Self {
        let Ok(table) = DeTable::parse(text) else {
            return Self {
                renamed: HashMap::new(),
                forbids_unsafe: false,
                used: RefCell::default(),
                drawn: RefCell::default(),
            };
        };
        let workspace = table.get_ref().get("workspace").and_then(as_table);
        let dependencies = workspace.and_then(|workspace| sub_table(workspace, "dependencies"));
        let renamed = dependencies.into_iter().flatten().filter_map(|(name, value)| {
            let package = text_at(as_table(value)?, "package")?;
            Some((name.get_ref().to_string(), package.to_owned()))
        });
        let forbids_unsafe = workspace.is_some_and(forbids_unsafe);
        Self { renamed: renamed.collect(), forbids_unsafe, used: RefCell::default(), drawn: RefCell::default() }
    }

    pub fn check(&self) -> Option<Finding> {
        let message = "workspace.lints.rust must say unsafe_code = \"forbid\"";
        (!self.forbids_unsafe).then(|| Finding::error(Path::new("Cargo.toml"), 1, message))
    }

    /// Arrows of the table that nobody uses, once all members have been checked.
    pub fn check_arrows(&self) -> Vec<Finding> {
        let used = self.used.borrow();
        let arrows = CRATES.iter().flat_map(|rules| rules.ours.iter().map(|ours| (rules.name, *ours)));
        arrows
            .filter(|arrow| !used.contains(arrow))
            .map(|(from, to)| Finding::error(Path::new(OWN), 1, format!("nobody uses the arrow from {from} to {to}")))
            .collect()
    }

    /// The crates and their arrows, once all members have been checked.
    pub fn arrows(&self) -> Arrows {
        self.drawn.borrow().clone()
    }

    /// What a member lists, by the names that its sources have for it.
    pub fn listed(&self, file: &Path, text: &str) -> Vec<Listed> {
        let (Some(folder), Ok(table)) = (crate_name(file), DeTable::parse(text)) else { return Vec::new() };
        let listed = dependencies(table.get_ref()).into_iter().map(|dependency| Listed {
            folder: folder.clone(),
            name: dependency.name,
            file: file.to_owned(),
            line: line_of(text, dependency.span.start),
            tests_only: dependency.tests_only,
        });
        listed.collect()
    }

    pub fn check_member(&self, file: &Path, text: &str) -> Vec<Finding> {
        let Some(rules) = rules_of(file) else {
            return vec![Finding::error(file, 1, "this crate is not in the table of arrows of xtask")];
        };
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => return vec![Finding::error(file, 1, error.message())],
        };
        let table = table.get_ref();
        let mut drawn = BTreeSet::new();
        let mut findings: Vec<Finding> = dependencies(table)
            .into_iter()
            .filter_map(|dependency| {
                let package = self.renamed.get(&dependency.package).unwrap_or(&dependency.package);
                let ours = rules.ours.iter().find(|ours| package.strip_prefix("propylon-") == Some(**ours));
                self.used.borrow_mut().extend(ours.map(|ours| (rules.name, *ours)));
                drawn.extend(ours.filter(|_| !dependency.tests_only).map(|ours| (*ours).to_owned()));
                let refusal = rules.refuses(package, dependency.tests_only)?;
                Some(Finding::error(file, line_of(text, dependency.span.start), refusal))
            })
            .collect();
        self.drawn.borrow_mut().insert(rules.name.to_owned(), drawn);
        if rules.unsafe_code == UnsafeCode::Forbidden && !self.member_forbids_unsafe(table) {
            let message = "this crate must forbid unsafe code: [lints] workspace = true";
            findings.push(Finding::error(file, 1, message));
        }
        if matches!(rules.unsafe_code, UnsafeCode::Within(_))
            && !self.member_forbids_unsafe(table)
            && !denies_unsafe(table)
        {
            let message = "this crate must deny unsafe code: [lints.rust] unsafe_code = \"deny\"";
            findings.push(Finding::error(file, 1, message));
        }
        findings
    }

    fn member_forbids_unsafe(&self, member: &DeTable<'_>) -> bool {
        let from_workspace = sub_table(member, "lints")
            .and_then(|lints| lints.get("workspace"))
            .is_some_and(|value| matches!(value.get_ref(), DeValue::Boolean(true)));
        forbids_unsafe(member) || (from_workspace && self.forbids_unsafe)
    }
}

/// A dependency as a line of a Cargo.toml lists it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The folder of the crate: `tls`, `e2e`.
    pub folder: String,
    /// As sources call it, but with `-`.
    pub name: String,
    pub file: PathBuf,
    pub line: usize,
    pub tests_only: bool,
}

struct Dependency {
    /// As sources call it, which may be another than the package's.
    name: String,
    package: String,
    span: Range<usize>,
    tests_only: bool,
}

/// Those of all sections, also of `[target.'cfg(...)']`.
fn dependencies(manifest: &DeTable<'_>) -> Vec<Dependency> {
    let targets = sub_table(manifest, "target").into_iter().flatten();
    let tables = targets.filter_map(|(_, value)| as_table(value)).chain([manifest]);
    let sections = [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)];
    let mut found = Vec::new();
    for table in tables {
        for (section, tests_only) in sections {
            for (name, value) in sub_table(table, section).into_iter().flatten() {
                let renamed = as_table(value).and_then(|value| text_at(value, "package"));
                let package = renamed.unwrap_or(name.get_ref()).to_owned();
                found.push(Dependency { name: name.get_ref().to_string(), package, span: name.span(), tests_only });
            }
        }
    }
    found
}

fn forbids_unsafe(table: &DeTable<'_>) -> bool {
    unsafe_code_is(table, "forbid")
}

fn denies_unsafe(table: &DeTable<'_>) -> bool {
    unsafe_code_is(table, "deny")
}

fn unsafe_code_is(table: &DeTable<'_>, wanted: &str) -> bool {
    sub_table(table, "lints")
        .and_then(|lints| sub_table(lints, "rust"))
        .and_then(|rust| rust.get("unsafe_code"))
        .is_some_and(|level| match level.get_ref() {
            DeValue::String(level) => level == wanted,
            DeValue::Table(level) => text_at(level, "level") == Some(wanted),
            _ => false,
        })
}

fn as_table<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Option<&'a DeTable<'i>> {
    value.get_ref().as_table()
}

fn sub_table<'a, 'i>(table: &'a DeTable<'i>, key: &str) -> Option<&'a DeTable<'i>> {
    table.get(key).and_then(as_table)
}

fn text_at<'a>(table: &'a DeTable<'_>, key: &str) -> Option<&'a str> {
    table.get(key)?.get_ref().as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "[workspace.dependencies]\n\
        runtime = { package = \"tokio\", version = \"1\" }\n\
        [workspace.lints.rust]\n\
        unsafe_code = \"forbid\"\n";
    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn findings(file: &str, manifest: &str) -> Vec<String> {
        let findings = Workspace::parse(WORKSPACE).check_member(Path::new(file), manifest);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_arrow_that_is_not_in_the_table_is_found_on_its_line() {
        let manifest = format!("{LINTS}[dependencies]\nserde.workspace = true\npropylon-policy.workspace = true\n");
        assert_eq!(
            findings("crates/tls/Cargo.toml", &manifest),
            ["crates/tls/Cargo.toml:5: tls must not use propylon-policy: no such arrow in the table of xtask"]
        );
    }

    #[test]
    fn arrows_of_the_table_are_no_findings() {
        let manifest = format!(
            "{LINTS}[dependencies]\npropylon-policy.workspace = true\npropylon-tls = {{ path = \"../tls\" }}\ntokio = \"1\"\n"
        );
        assert_eq!(findings("crates/proxy/Cargo.toml", &manifest), Vec::<String>::new());
    }

    #[test]
    fn a_crate_that_must_never_be_imported_is_found_under_any_name() {
        for (section, name) in [
            ("dependencies", "tokio = \"1\""),
            ("dependencies", "runtime.workspace = true"),
            ("dependencies", "other = { package = \"tokio\", version = \"1\" }"),
            ("build-dependencies", "tokio = \"1\""),
            ("target.'cfg(unix)'.dependencies", "tokio = \"1\""),
        ] {
            let manifest = format!("{LINTS}[{section}]\n{name}\n");
            assert_eq!(
                findings("crates/metrics/Cargo.toml", &manifest),
                ["crates/metrics/Cargo.toml:4: metrics must never import tokio"],
                "{section} {name}"
            );
        }
    }

    #[test]
    fn tests_may_use_other_peoples_crates_but_not_turn_our_arrows_round() {
        let manifest = format!("{LINTS}[dev-dependencies]\ntokio = \"1\"\npropylon-proxy.workspace = true\n");
        assert_eq!(
            findings("crates/policy/Cargo.toml", &manifest),
            ["crates/policy/Cargo.toml:5: policy must not use propylon-proxy: no such arrow in the table of xtask"]
        );
    }

    #[test]
    fn lanes_uses_nothing() {
        let manifest = "[dependencies]\nlibc = \"1\"\n";
        assert_eq!(
            findings("crates/lanes/Cargo.toml", manifest),
            ["crates/lanes/Cargo.toml:2: lanes must not use libc: it uses no other crate"]
        );
    }

    #[test]
    fn a_crate_that_does_not_forbid_unsafe_code_is_found() {
        let message = "crates/policy/Cargo.toml:1: this crate must forbid unsafe code: [lints] workspace = true";
        assert_eq!(findings("crates/policy/Cargo.toml", ""), [message]);
        assert_eq!(findings("crates/policy/Cargo.toml", "[lints.rust]\nunsafe_code = \"deny\"\n"), [message]);
        assert_eq!(
            findings("crates/policy/Cargo.toml", "[lints.rust]\nunsafe_code = \"forbid\"\n"),
            Vec::<String>::new()
        );
        assert_eq!(findings("crates/sys/Cargo.toml", ""), Vec::<String>::new());
        let message = "crates/tls/Cargo.toml:1: this crate must deny unsafe code: [lints.rust] unsafe_code = \"deny\"";
        assert_eq!(findings("crates/tls/Cargo.toml", ""), [message]);
        assert_eq!(findings("crates/tls/Cargo.toml", "[lints.rust]\nunsafe_code = \"deny\"\n"), Vec::<String>::new());
        assert!(Workspace::parse("[workspace.lints.rust]\nunsafe_code = \"deny\"\n").check().is_some());
    }

    #[test]
    fn arrows_of_tests_are_listed_and_not_drawn() {
        let manifest = "[dependencies]\npropylon-crypto.workspace = true\nwebpki = { package = \"rustls-webpki\" }\n\
            [dev-dependencies]\npropylon-config.workspace = true\n";
        let (workspace, file) = (Workspace::parse(WORKSPACE), Path::new("crates/tls/Cargo.toml"));
        workspace.check_member(file, manifest);
        assert_eq!(workspace.arrows(), [("tls".to_owned(), ["crypto".to_owned()].into())].into());
        let listed = workspace.listed(file, manifest);
        let listed: Vec<_> = listed.iter().map(|each| (each.name.as_str(), each.line, each.tests_only)).collect();
        assert_eq!(listed, [("propylon-crypto", 2, false), ("webpki", 3, false), ("propylon-config", 5, true)]);
    }

    #[test]
    fn a_crate_without_rules_is_found() {
        assert_eq!(
            findings("crates/cellar/Cargo.toml", LINTS),
            ["crates/cellar/Cargo.toml:1: this crate is not in the table of arrows of xtask"]
        );
    }
}
