//! A key server's file: `[server]`, `[keys]`, `[[client]]` and its switches.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::values::{DAY, HOUR, MILLISECOND, file, required_file, seconds};
use super::{pkcs11, process};
use crate::address;
use crate::describe::Form;
use crate::keyserver::{Client, KeyReference, KeyServer, Keys, NamedPath, Operation, Operations, Sandbox, Server};
use crate::model::{At, Level, Workers};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::shown;

/// Engines ping every 10 to 20 s: less would cut those off that are merely quiet.
const IDLE_TIMEOUT: RangeInclusive<Duration> = seconds(30)..=HOUR;
const CONNECTIONS: RangeInclusive<i128> = 1..=1_000_000;
/// Each of them is compared with every new client's certificate.
const CLIENTS_MAX: usize = 4096;
const TEXT_BYTES_MAX: usize = 256;
/// Operations a second of a client: more than any machine does.
const RATE_MAX: i128 = 10_000_000;

/// Walks the whole tree. The result is of use only if no error was reported.
pub(crate) fn key_server(report: &Report<'_>, root: &Node<'_>, base: &Path) -> KeyServer {
    let entries = match &root.value {
        Value::Table(entries) => entries.as_slice(),
        _ => &[],
    };
    let mut top = Section::root(report, entries);
    let (server, keys) = (top.section("server"), top.section("keys"));
    let (has_server, has_keys) = (server.is_some(), keys.is_some());
    let config = KeyServer {
        server: server_of(server, base),
        keys: keys_of(keys, base),
        tokens: pkcs11::tokens(report, &mut top, base),
        clients: clients(report, &mut top, base),
        admin: process::reading_admin(top.section("admin")),
        level: level(top.section("log")),
        ecdsa_batch: ecdsa_batch(report, top.section("ecdsa")),
        rsa_batch: switch(top.section("rsa"), "batch"),
        sandbox: sandbox(top.section("sandbox")),
    };
    let has_tokens = top.node("pkcs11").is_some();
    let has_unknown = top.close();
    if !has_unknown && report.is_whole() {
        let absent = |name: &str, fix: &str| {
            let what = if report.is_blank() { "the file is empty".into() } else { format!("there is no [{name}]") };
            report.error(Span::default(), what, fix);
        };
        if !has_server {
            absent("server", "add a section [server] with `bind`, `identity` and `ca`");
        }
        if !has_keys && !has_tokens && !report.is_blank() {
            absent("keys", "add a section [keys] with `paths`, such as paths = [\"keys/\"]");
        }
    }
    if let Some(admin) = &config.admin
        && let Some((_, at)) =
            config.server.bind.iter().find(|(address, _)| *address == admin.address && address.port() != 0)
    {
        let what = format!("{} is also in `bind` of [server], in line {}", admin.address, at.line);
        report.error_at(admin.at, what, "write another port");
    }
    config
}

fn server_of(section: Option<Section<'_, '_>>, base: &Path) -> Server {
    let mut server = Server {
        bind: Vec::new(),
        identity: NamedPath::default(),
        ca: NamedPath::default(),
        idle_timeout: seconds(60),
        timeout: seconds(5),
        drain_timeout: seconds(5),
        connections_max: 1024,
        workers: Workers::Auto,
        user: None,
        allow_world_readable_keys: false,
    };
    let Some(mut section) = section else { return server };
    server.bind = bind(&mut section);
    server.identity =
        named_file(&mut section, "identity", base, "add the PEM file of this server's certificate and key");
    server.ca =
        named_file(&mut section, "ca", base, "add the PEM file of the authority that signs the engines' certificates");
    server.idle_timeout = section.duration_or("idle_timeout", IDLE_TIMEOUT, server.idle_timeout);
    server.timeout = section.duration_or("timeout", MILLISECOND..=HOUR, server.timeout);
    server.drain_timeout = section.duration_or("drain_timeout", Duration::ZERO..=DAY, server.drain_timeout);
    server.connections_max = section.integer_or("connections_max", CONNECTIONS, server.connections_max);
    if let Some(workers) = process::workers(&mut section) {
        server.workers = workers;
    }
    server.user = section.string("user").and_then(|found| process::user(&section, found));
    server.allow_world_readable_keys = section.boolean_or("allow_world_readable_keys", false);
    section.close();
    server
}

/// One address or several.
fn bind(section: &mut Section<'_, '_>) -> Vec<(SocketAddr, At)> {
    let report = section.report;
    let Some(Entry { node, .. }) = section.forms("bind", &[Form::String, Form::List(&[Form::String])]) else {
        section.missing("bind", "add one, such as bind = \"0.0.0.0:2407\"");
        return Vec::new();
    };
    let nodes = match &node.value {
        Value::Array(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if nodes.is_empty() {
        report.error(node.span, "`bind` is empty", "write at least one address, such as \"0.0.0.0:2407\"");
    }
    let mut all: Vec<(SocketAddr, At)> = Vec::new();
    for found in nodes.iter().filter_map(|node| string(report, "bind", node)) {
        match address::bind(found.value) {
            Ok(address) if address.port() != 0 && all.iter().any(|(known, _)| *known == address) => {
                report.error(found.span, format!("{address} is listed already"), "remove one of them");
            }
            Ok(address) => all.push((address, report.at(found.span))),
            Err((what, fix)) => report.error(found.span, what, fix),
        }
    }
    all
}

fn named_file(section: &mut Section<'_, '_>, key: &'static str, base: &Path, fix: &str) -> NamedPath {
    let at = section.node(key).map_or_else(At::default, |node| section.report.at(node.span));
    required_file(section, key, base, fix).map_or_else(NamedPath::default, |path| NamedPath { path, at })
}

fn keys_of(section: Option<Section<'_, '_>>, base: &Path) -> Keys {
    let mut keys = Keys { paths: Vec::new(), watch: true };
    let Some(mut section) = section else { return keys };
    let report = section.report;
    section.require("paths", "add paths = [\"keys/\"]: files or folders of private keys");
    if let Some(list) = section.list("paths", &[Form::String]) {
        if list.value.is_empty() {
            report.error(list.span, "`paths` is empty", "write at least one file or folder of private keys");
        }
        let found = list.value.iter().filter_map(|node| string(report, "paths", node));
        keys.paths = found.filter_map(|found| named_path(report, "paths", found, base)).collect();
    }
    keys.watch = section.boolean_or("watch", keys.watch);
    section.close();
    keys
}

fn named_path(report: &Report<'_>, key: &str, found: Found<&str>, base: &Path) -> Option<NamedPath> {
    Some(NamedPath { path: file(report, key, found, base)?, at: report.at(found.span) })
}

fn clients(report: &Report<'_>, top: &mut Section<'_, '_>, base: &Path) -> Vec<Client> {
    let Some(entry) = top.forms("client", &[Form::List(&[Form::Table])]) else { return Vec::new() };
    let nodes = match &entry.node.value {
        Value::Array(nodes) => nodes.as_slice(),
        Value::Table(_) => {
            report.error(entry.key_span, "there can be several clients", "write [[client]] in double brackets");
            std::slice::from_ref(&entry.node)
        }
        _ => {
            mismatch::<()>(report, "client", "an array of tables", &entry.node);
            &[]
        }
    };
    if nodes.len() > CLIENTS_MAX {
        let what = format!("there are {} clients", nodes.len());
        report.error(entry.key_span, what, format!("write {CLIENTS_MAX} at most; one can stand for many by its `san`"));
    }
    nodes.iter().filter_map(|node| client(report, node, base)).collect()
}

fn client(report: &Report<'_>, node: &Node<'_>, base: &Path) -> Option<Client> {
    let mut section = Section::of(report, node, "[[client]]", node.span)?;
    section.title = "this client".to_string();
    section.any_of(&[&["common_name"], &["san"], &["fingerprint"]]);
    let errors = report.errors();
    let client = Client {
        common_name: text(&mut section, "common_name"),
        san: text(&mut section, "san"),
        fingerprint: fingerprint(&mut section),
        keys: references(&mut section, base),
        operations: operations(&mut section),
        rate: section.integer("rate", 1..=RATE_MAX).and_then(|rate: Found<u32>| NonZeroU32::new(rate.value)),
        at: report.at(node.span),
    };
    let is_anybody = client.common_name.is_none() && client.san.is_none() && client.fingerprint.is_none();
    let has_unknown = section.close();
    if is_anybody && !has_unknown && report.errors() == errors && report.is_whole() {
        let fix = "add `common_name`, `san` or `fingerprint`";
        report.error(node.span, "nothing says which certificates this client has", fix);
    }
    Some(client)
}

/// `default` stands for what goes without saying.
fn operations(section: &mut Section<'_, '_>) -> Operations {
    let known: Vec<&str> = Operation::ALL.iter().map(|(_, name)| *name).collect();
    section.default_is("operations", || vec!["default"].into());
    let forms = [Form::List(&[Form::Words(&[&["default"], &known[..]].concat())])];
    let Some(Entry { node, .. }) = section.forms("operations", &forms) else { return Operations::DEFAULT };
    let Value::Array(nodes) = &node.value else {
        mismatch::<()>(section.report, "operations", "an array", node);
        return Operations::NONE;
    };
    let mut operations = Operations::NONE;
    for node in nodes {
        let Value::String(name) = &node.value else {
            mismatch::<()>(section.report, "operations", "a string", node);
            continue;
        };
        match Operation::ALL.iter().find(|(_, known)| known == name) {
            Some((operation, _)) => operations = operations.and(*operation),
            None if name == "default" => operations = operations.union(Operations::DEFAULT),
            None => {
                let fix = format!("write `default`, or names among {}", known.join(", "));
                section.report.error(node.span, format!("no operation is called \"{}\"", shown(name)), fix);
            }
        }
    }
    operations
}

fn text(section: &mut Section<'_, '_>, key: &'static str) -> Option<String> {
    let found = section.string(key)?;
    if found.value.is_empty() || found.value.len() > TEXT_BYTES_MAX {
        let fix = format!("write 1 to {TEXT_BYTES_MAX} characters, as they are in the certificate");
        section.report.error(found.span, format!("`{key}` cannot be \"{}\"", shown(found.value)), fix);
        return None;
    }
    Some(found.value.to_string())
}

fn fingerprint(section: &mut Section<'_, '_>) -> Option<[u8; 32]> {
    let found = section.string("fingerprint")?;
    let fingerprint = hexadecimal(&found.value.replace(':', ""));
    if fingerprint.is_none() {
        let what = format!("`fingerprint`: \"{}\" is not the SHA-256 of a certificate", shown(found.value));
        let fix = "write 64 hexadecimal digits; `openssl x509 -fingerprint -sha256 -noout -in FILE` prints them";
        section.report.error(found.span, what, fix);
    }
    fingerprint
}

fn references(section: &mut Section<'_, '_>, base: &Path) -> Option<Vec<KeyReference>> {
    let report = section.report;
    let list = section.list("keys", &[Form::String])?;
    let reference = |node| {
        let found = string(report, "keys", node)?;
        if let Some(name) = found.value.strip_prefix("pkcs11:") {
            return Some(KeyReference::Token(name.to_owned()));
        }
        match hexadecimal(&found.value.replace(':', "")) {
            Some(ski) => Some(KeyReference::Ski(ski)),
            None => named_path(report, "keys", found, base).map(KeyReference::Path),
        }
    };
    Some(list.value.iter().filter_map(reference).collect())
}

fn hexadecimal<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

fn level(section: Option<Section<'_, '_>>) -> Level {
    let Some(mut section) = section else { return Level::Info };
    let level = section.choice_or("level", &process::LEVELS, Level::Info);
    section.close();
    level
}

fn switch(section: Option<Section<'_, '_>>, key: &'static str) -> bool {
    let Some(mut section) = section else { return true };
    let on = section.boolean_or(key, true);
    section.close();
    on
}

/// With the name that the key had when nonces were made ahead.
fn ecdsa_batch(report: &Report<'_>, section: Option<Section<'_, '_>>) -> bool {
    let Some(mut section) = section else { return true };
    section.default_is("batch", || true.into());
    let (batch, former) = (section.boolean("batch"), section.boolean("precompute"));
    section.is_former("precompute");
    if let Some(former) = &former {
        let what = "`precompute` is now `batch`: nothing is computed before it is known what is signed";
        report.warning(former.span, what, "write `batch`");
    }
    section.close();
    batch.or(former).is_none_or(|on| on.value)
}

fn sandbox(section: Option<Section<'_, '_>>) -> Sandbox {
    let mut sandbox = Sandbox { seccomp: true, landlock: true, lock_memory: true };
    let Some(mut section) = section else { return sandbox };
    let mut set = |key, switch: &mut bool| *switch = section.boolean_or(key, true);
    set("seccomp", &mut sandbox.seccomp);
    set("landlock", &mut sandbox.landlock);
    set("lock_memory", &mut sandbox.lock_memory);
    section.close();
    sandbox
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyserver::KeyName;
    use crate::{Problem, Source, parse_keyserver};

    const SERVER: &str = "[server]\nbind = \"0.0.0.0:2407\"\nidentity = \"server.pem\"\nca = \"ca.pem\"\n";
    const KEYS: &str = "[keys]\npaths = [\"keys/\"]\n";

    fn parsed(name: &str, text: &str) -> Result<KeyServer, Vec<String>> {
        let source = Source { name: name.into(), base: "/etc/propylon".into(), text: text.into() };
        let rendered = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect();
        parse_keyserver(&source).map(|(config, _)| config).map_err(rendered)
    }

    fn toml(text: &str) -> Result<KeyServer, Vec<String>> {
        parsed("k.toml", text)
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let config = toml(&format!("{SERVER}{KEYS}")).expect("a configuration");
        assert_eq!(config.server.identity.path, Path::new("/etc/propylon/server.pem"));
        assert_eq!(config.server.identity.at, At { line: 3, column: 12, length: 12 });
        assert_eq!((config.server.idle_timeout, config.server.timeout), (seconds(60), seconds(5)));
        assert_eq!((config.server.connections_max, config.server.workers), (1024, Workers::Auto));
        assert!(config.keys.watch && config.ecdsa_batch && config.rsa_batch && config.clients.is_empty());
        assert_eq!(config.sandbox, Sandbox { seccomp: true, landlock: true, lock_memory: true });
        assert!(config.admin.is_none());
    }

    #[test]
    fn json_says_the_same_as_toml() {
        let text = format!(
            "{SERVER}idle_timeout = \"30s\"\nworkers = 2\n{KEYS}watch = false\n[admin]\nbind = \"127.0.0.1:9901\"\n\
             [rsa]\nbatch = false\n[sandbox]\nseccomp = false\n\
             [[client]]\ncommon_name = \"e\"\nkeys = [\"{0}\", \"keys/shop.pem\"]\n[[client]]\nfingerprint = \"{0}{0:.24}\"\n",
            "ab".repeat(20)
        );
        let twin = format!(
            r#"{{"server":{{"bind":["0.0.0.0:2407"],"identity":"server.pem","ca":"ca.pem","idle_timeout":"30s","workers":2}},
            "keys":{{"paths":["keys/"],"watch":false}},"admin":{{"bind":"127.0.0.1:9901"}},"rsa":{{"batch":false}},
            "sandbox":{{"seccomp":false}},
            "client":[{{"common_name":"e","keys":["{0}","keys/shop.pem"]}},{{"fingerprint":"{0}{0:.24}"}}]}}"#,
            "ab".repeat(20)
        );
        let (a, b) = (toml(&text).expect("TOML"), parsed("k.json", &twin).expect("JSON"));
        let plain = |config: &KeyServer| words(&format!("{config:?}"));
        assert_eq!(plain(&a), plain(&b));
        let keys = a.clients[0].keys.as_ref().expect("keys");
        assert_eq!(keys[0], KeyReference::Ski([0xab; 20]));
        assert!(matches!(&keys[1], KeyReference::Path(named) if named.path.ends_with("keys/shop.pem")));
        assert_eq!(a.clients[1].fingerprint, Some([0xab; 32]));
    }

    /// The words of a text without numbers, which positions are made of.
    fn words(text: &str) -> Vec<String> {
        let words = text.split(|character: char| !character.is_ascii_alphabetic());
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn all_problems_are_told_at_once_and_where_they_are() {
        let text = "[server]\nbind = [\"0.0.0.0:2407\", \"0.0.0.0:2407\", \"x\"]\nidentiy = \"a\"\nca = 7\n\
            idle_timeout = \"29s\"\n[keys]\npaths = []\n[[client]]\nfingerprint = \"12\"\n[[client]]\n[rsa]\nbatsch = true\n\
            [serfer]\n";
        let problems = toml(text).expect_err("problems");
        for part in [
            "k.toml:2:25: 0.0.0.0:2407 is listed already",
            "k.toml:2:41: ",
            "k.toml:3:1: unknown key `identiy` in [server]; did you mean `identity`?",
            "k.toml:4:6: `ca`: expected a string, found an integer",
            "k.toml:5:16: `idle_timeout` is too small; use \"30s\" or more",
            "k.toml:7:9: `paths` is empty",
            "k.toml:9:15: `fingerprint`: \"12\" is not the SHA-256 of a certificate",
            "k.toml:10:1: nothing says which certificates this client has",
            "k.toml:12:1: unknown key `batsch` in [rsa]; did you mean `batch`?",
            "k.toml:13:2: unknown section `serfer`; did you mean `server`?",
        ] {
            assert!(problems.iter().any(|problem| problem.starts_with(part)), "no {part} in {problems:#?}");
        }
        assert_eq!(problems.len(), 10, "{problems:#?}");
    }

    #[test]
    fn tokens_stand_for_keys_and_their_problems_are_told_where_they_are() {
        const MODULE: &str = "[[pkcs11]]\nmodule = \"/usr/lib/hsm.so\"\n";
        let config = toml(&format!(
            "{SERVER}{MODULE}token = \"web\"\npin_file = \"pin\"\nkeys = [\"shop\", \"id:0A:ff\"]\nsessions = 8\n\
             timeout = \"1s\"\nmodule_paths = [\"/var/lib/tokens\"]\nnetwork = true\n{MODULE}slot = 7\n\
             [[client]]\nsan = \"a\"\nkeys = [\"pkcs11:web/shop\"]\n"
        ))
        .expect("no [keys] is needed");
        let [web, other] = &config.tokens[..] else { panic!("two tokens: {:?}", config.tokens) };
        assert_eq!((web.token.name(), other.token.name()), ("web".to_owned(), "slot 7".to_owned()));
        assert_eq!(web.pin_file.as_ref().map(|pin| pin.path.clone()), Some("/etc/propylon/pin".into()));
        assert_eq!(web.keys, Some(vec![KeyName::Label("shop".into()), KeyName::Id(vec![0x0a, 0xff])]));
        assert_eq!((web.sessions, web.timeout, web.network), (8, Some(seconds(1)), true));
        assert_eq!(web.module_paths[0].path, Path::new("/var/lib/tokens"));
        assert_eq!((other.sessions, other.timeout, other.network, &other.keys), (4, None, false, &None));
        assert_eq!(config.clients[0].keys, Some(vec![KeyReference::Token("web/shop".into())]));

        let text = format!(
            "{SERVER}{KEYS}[[pkcs11]]\ntoken = \"a\"\n{MODULE}{MODULE}token = \"b\"\nslot = 1\n{MODULE}token = \"\"\n\
             keys = [\"id:0\", 7]\nsessions = 0\n{MODULE}slot = 1\n{MODULE}slot = 1\npni_file = \"x\"\n"
        );
        let problems = toml(&text).expect_err("problems");
        for part in [
            "k.toml:7:1: [[pkcs11]] has no `module`",
            "k.toml:9:1: [[pkcs11]] has no `token`",
            "k.toml:11:1: both `token` and `slot` are given",
            "k.toml:17:9: `token` cannot be \"\"",
            "k.toml:18:9: `keys`: \"id:0\" is no key's name",
            "k.toml:18:17: `keys`: expected a string, found an integer",
            "k.toml:19:12: `sessions`",
            "k.toml:23:1: this token is listed already, in line 20",
            "k.toml:26:1: unknown key `pni_file` in [[pkcs11]]; did you mean `pin_file`?",
        ] {
            assert!(problems.iter().any(|problem| problem.starts_with(part)), "no {part} in {problems:#?}");
        }
        assert_eq!(problems.len(), 9, "{problems:#?}");
    }

    #[test]
    fn tokens_and_their_names_have_bounds() {
        const MODULE: &str = "[[pkcs11]]\nmodule = \"/usr/lib/hsm.so\"\n";
        let slots = |count: usize| (0..count).map(|slot| format!("{MODULE}slot = {slot}\n")).collect::<String>();
        let label = |length: usize| format!("{MODULE}token = \"{}\"\n", "a".repeat(length));
        let key = |length: usize| format!("{MODULE}slot = 1\nkeys = [\"{}\"]\n", "a".repeat(length));
        for (good, bad, part) in [
            (slots(16), slots(17), "k.toml:5:3: there are 17 tokens; write 16 at most"),
            (label(32), label(33), "k.toml:7:9: `token` cannot be"),
            (key(256), key(257), "k.toml:8:9: `keys`: "),
        ] {
            assert!(toml(&format!("{SERVER}{good}")).is_ok(), "{good}");
            let problems = toml(&format!("{SERVER}{bad}")).expect_err("a problem");
            assert!(problems.len() == 1 && problems[0].starts_with(part), "{problems:#?}");
        }
        // Tokens of two makers may be called the same.
        let other = MODULE.replace("hsm", "tpm");
        assert!(toml(&format!("{SERVER}{MODULE}slot = 1\n{other}slot = 1\n")).is_ok());
    }

    #[test]
    fn operations_are_those_that_are_named() {
        let of = |list: &str| {
            let text = format!("{SERVER}{KEYS}[[client]]\nsan = \"a\"\noperations = {list}\n");
            toml(&text).map(|config| config.clients[0].operations)
        };
        assert_eq!(of("[\"ed25519\"]"), Ok(Operations::NONE.and(Operation::Ed25519)));
        let more = of("[\"default\", \"rsa-pkcs1-sha1\"]").expect("good operations");
        assert_eq!(more, Operations::DEFAULT.and(Operation::RsaPkcs1Sha1));
        assert!(of("[\"ed25518\"]").expect_err("no such operation")[0].contains("no operation is called \"ed25518\""));
    }

    #[test]
    fn sections_that_must_be_there_are_asked_for() {
        assert!(toml("").expect_err("empty")[0].contains("the file is empty; add a section [server]"));
        assert!(
            toml(SERVER).expect_err("no keys")[0].contains("there is no [keys]; add a section [keys] with `paths`")
        );
        let clash = format!("{SERVER}{KEYS}[admin]\nbind = \"0.0.0.0:2407\"\n");
        assert!(toml(&clash).expect_err("a clash")[0].contains("is also in `bind` of [server], in line 2"));
    }
}
