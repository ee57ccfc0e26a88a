//! The documentation's pages: each configuration on them is one that `check` takes, and each command exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use propylon_e2e::program::run;
use propylon_e2e::{Certificates, Scratch, binaries};

const LIMIT: Duration = Duration::from_secs(60);
/// Files that configurations on the pages name: chains with keys, chains alone, and authorities.
const WHOLE: [&str; 3] = ["shop.pem", "engine.pem", "keyserver.pem"];
const CHAINS: [&str; 1] = ["shop.crt"];
const AUTHORITIES: [&str; 4] = ["partners-ca.pem", "engines-ca.pem", "keyservers-ca.pem", "internal-ca.pem"];

/// A block of code on a page.
struct Block {
    /// File and line, for messages.
    at: String,
    kind: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the top")
}

fn blocks() -> Vec<Block> {
    let mut pages = Vec::new();
    for folder in ["docs/site", "docs/site/how", "docs/site/from"] {
        let entries = fs::read_dir(root().join(folder)).expect("pages").map(|entry| entry.expect("one").path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    pages.sort();
    assert!(pages.len() > 15, "{pages:?}");
    pages.iter().flat_map(|page| blocks_of(page)).collect()
}

fn blocks_of(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).expect("a page");
    let (mut found, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for (line, number) in text.lines().zip(1..) {
        match (line.strip_prefix("```"), &mut open) {
            (Some(kind), None) => {
                let at = format!("{}:{number}", page.strip_prefix(root()).expect("a page of ours").display());
                open = Some(Block { at, kind: kind.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block has no end", page.display());
    found
}

/// A folder in which everything is that configurations name.
fn folder() -> Scratch {
    let scratch = Scratch::new();
    let write = |path: PathBuf, text: &[u8]| {
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    };
    fs::create_dir(scratch.join("certs")).expect("a folder");
    let shared = Certificates::shared();
    let pem = shared.issue(&["shop.example"], &rcgen::PKCS_ECDSA_P256_SHA256);
    let chain = &pem[..pem.find("-----BEGIN PRIVATE KEY").expect("a key behind the chain")];
    let authority = fs::read(shared.ca()).expect("an authority");
    WHOLE.iter().for_each(|name| write(scratch.join("certs").join(name), pem.as_bytes()));
    CHAINS.iter().for_each(|name| write(scratch.join("certs").join(name), chain.as_bytes()));
    AUTHORITIES.iter().for_each(|name| write(scratch.join("certs").join(name), &authority));
    write(scratch.join("token"), b"0123456789abcdef0123456789abcdef\n");
    scratch
}

#[test]
fn every_configuration_on_every_page_is_one_that_check_takes() {
    let scratch = folder();
    let blocks = blocks();
    let configurations: Vec<&Block> = blocks.iter().filter(|block| block.kind == "toml").collect();
    assert!(configurations.len() > 10, "they are found");
    for Block { at, text, .. } in configurations {
        let is_key_server = text.starts_with("# keyserver.toml\n");
        let program = if is_key_server { binaries::keyserver() } else { binaries::propylon() };
        fs::write(scratch.join("page.toml"), text).expect("a configuration");
        let mut command = Command::new(program);
        command.args(["check", "-c"]).arg(scratch.join("page.toml"));
        let said = run(command, b"", LIMIT);
        assert!(said.status.success(), "{at}: {}{}", said.text(), said.stderr);
    }
}

#[test]
fn every_command_on_every_page_exists_with_its_options() {
    let targets = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let mut helps = BTreeMap::new();
    let mut known = BTreeSet::new();
    for block in blocks().iter().filter(|block| block.kind == "sh") {
        for line in block.text.replace("\\\n", " ").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["make", target, ..] = words[..] {
                assert!(targets.contains(&format!("\n{target}:")), "{}: there is no `{line}`", block.at);
                continue;
            }
            let Some(program) = program(words[0]) else { continue };
            let commands: Vec<&str> = words[1..].iter().copied().take_while(|word| is_command(word)).collect();
            // A word behind `cluster` is a command; behind others it is what they are about.
            let depth = if commands.first() == Some(&"cluster") { 2 } else { 1 };
            let commands = &commands[..commands.len().min(depth)];
            let help: &String = helps.entry((program.clone(), commands.join(" "))).or_insert_with(|| {
                let mut command = Command::new(&program);
                command.args(commands).arg("--help");
                run(command, b"", LIMIT).ok().text()
            });
            for option in words.iter().filter(|word| word.len() > 1 && word.starts_with('-')) {
                let option = option.split('=').next().expect("a name");
                let is_known = help.split(|it: char| !it.is_alphanumeric() && it != '-').any(|word| word == option);
                assert!(is_known, "{}: `{line}`: {option} is not in its --help", block.at);
            }
            known.insert(words[0].to_owned());
        }
    }
    assert!(known.contains("propylon") && known.contains("propylon-keyserver") && known.contains("propylon-bench"));
}

fn program(name: &str) -> Option<PathBuf> {
    match name {
        "propylon" => Some(binaries::propylon()),
        "propylonctl" => Some(binaries::propylonctl()),
        "propylon-keyserver" => Some(binaries::keyserver()),
        "propylon-bench" => Some(binaries::bench()),
        "propylon-gateway" => Some(binaries::gateway()),
        _ => None,
    }
}

fn is_command(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_lowercase())
        && word.chars().all(|it| it.is_ascii_lowercase() || it == '-')
}
