//! `include` and `${env:NAME}`: what is gathered, and what problems say of it.

use std::collections::BTreeMap;
use std::path::Path;

use propylon_config::include::{Failure, Files, gather};
use propylon_config::{At, Config, Problem, Provenance, Source, Workers, parse};

/// Files that are in memory alone.
struct Memory(BTreeMap<String, String>);

impl Files for Memory {
    fn read(&mut self, path: &Path, _: usize) -> Result<Vec<u8>, Failure> {
        let text = self.0.get(&path.display().to_string()).cloned();
        text.map(String::into_bytes).ok_or_else(|| ("there is no such file".into(), "check the path".into()))
    }

    fn names(&mut self, folder: &Path) -> Result<Vec<String>, Failure> {
        let paths = self.0.keys().filter_map(|path| Path::new(path).strip_prefix(folder).ok());
        let names = paths.filter_map(|path| Some(path.components().next()?.as_os_str().to_string_lossy().into_owned()));
        // The reverse of their order.
        Ok(names.rev().collect())
    }
}

fn lookup(name: &str) -> Option<String> {
    let value = match name {
        "HOST" => "app.internal",
        "WORKERS" => "3",
        "YES" => "true",
        "WAIT" => "7s",
        "SHORT" => "pw!",
        "SIZE" => "32KiB",
        "EMPTY" => "",
        "SECRET" => "hunter2-hunter2",
        _ => return None,
    };
    Some(value.to_owned())
}

fn read(files: &[(&str, &str)]) -> Source {
    let [(name, text), ..] = files else { panic!("no file") };
    let base = Path::new(name).parent().unwrap_or(Path::new("")).to_path_buf();
    let all = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    let own = Provenance::with_variables(*name, lookup);
    let (name, text) = gather(own, &base, (*text).into(), &mut Memory(all.collect()));
    Source { name, base, text }
}

fn good(files: &[(&str, &str)]) -> Config {
    let source = read(files);
    parse(&source).unwrap_or_else(|problems| panic!("{}", source.render(&problems))).0
}

fn wrong(files: &[(&str, &str)]) -> String {
    let source = read(files);
    source.render(&parse(&source).expect_err("an error"))
}

const MAIN: &str = "include = [\"sites/*.toml\"]\n[listener.web]\nbind = \"0.0.0.0:80\"";

#[test]
fn included_files_are_one_configuration_in_the_order_of_their_names() {
    let config = good(&[
        ("/etc/p/propylon.toml", MAIN),
        ("/etc/p/sites/b.toml", "[backend.b]\nservers = [\"b:1\"]\n[[route]]\nhost = \"b.example\"\nbackend = \"b\"\n"),
        (
            "/etc/p/sites/a.toml",
            "\u{feff}[[route]]\nhost = \"a.example\"\nbackend = \"b\"\n[tls.t]\ncertificates = ['a.pem']",
        ),
        ("/etc/p/sites/c.toml.old", "nonsense"),
        ("/etc/p/sites/.d.toml", "nonsense"),
    ]);
    let hosts: Vec<String> = config.routes.iter().map(|route| format!("{:?}", route.host)).collect();
    assert_eq!(hosts, ["Exact(\"a.example\")", "Exact(\"b.example\")"]);
    assert_eq!(config.backends[0].name, "b");
    // Paths are those of the folder of the first file.
    assert_eq!(config.key_files()[0].0, Path::new("/etc/p/a.pem"));
    let (name, at) = config.provenance.place(config.routes[1].at);
    assert_eq!((name, at), ("/etc/p/sites/b.toml", At { line: 3, column: 1, length: 9 }));
    assert_eq!(config.include[0].folder, Path::new("/etc/p/sites"));
    assert!(config.named_files().iter().any(|file| file.path == Path::new("/etc/p/sites")));
    assert_eq!(
        config.provenance.watched(),
        ["/etc/p/sites/a.toml", "/etc/p/sites/b.toml", "/etc/p/sites"].map(Path::new)
    );
}

#[test]
fn problems_name_the_line_of_the_file_that_they_are_in() {
    let text = wrong(&[
        ("p.toml", MAIN),
        ("sites/a.toml", "[[route]]\nhost = \"a.example\"\nbackend = \"b\"\n"),
        ("sites/b.toml", "# one\n[backend.b]\nservers = [\"b:1\"]\nretries = \"few\"\n"),
        ("sites/c.toml", "[backend.c]\nservers = \n"),
        ("sites/d.json", "{}"),
    ]);
    let expected = "\
sites/b.toml:4:11: `retries`: expected an integer, found a string; write an integer
  4 | retries = \"few\"
    |           ^^^^^
sites/c.toml:2:11: there is no value after `=`; write one, or remove the line
  2 | servers = 
    |           ^
";
    assert_eq!(text, expected);
}

#[test]
fn what_two_files_say_is_told_with_both_places() {
    let text = wrong(&[
        ("p.toml", "include = ['x.toml', 'y.json']\n[process]\nworkers = 2\n[backend.b]\nservers = ['b:1']\n"),
        ("x.toml", "# x\n[process]\nworkers = 3\n[backend.c]\nservers = ['c:1']\n[[route]]\nbackend = 'c'\n"),
        (
            "y.json",
            "{\n \"backend\": { \"c\": { \"servers\": [\"c:1\"] } },\n \"route\": [{ \"backend\": \"b\" }],\n \"listener\": { \"web\": { \"bind\": \"0.0.0.0:80\" } }\n}",
        ),
    ]);
    let told: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
    let told: Vec<&str> = told.iter().map(|line| line.split(';').next().unwrap_or_default()).collect();
    assert_eq!(
        told,
        [
            "x.toml:2:2: [process] is already in p.toml, line 2",
            "y.json:2:15: [backend.c] is already in x.toml, line 4",
            "y.json:3:12: this route stands for the same requests as the one in x.toml, line 6",
        ]
    );
}

#[test]
fn files_that_cannot_be_had_are_told_at_the_pattern() {
    for (files, expected) in [
        (
            &[("p.toml", "# x\ninclude = ['a.toml']\n")][..],
            "p.toml:2:12: `include`: a.toml: there is no such file; check the path",
        ),
        (
            &[("p.toml", "include = ['*.toml']\n")],
            "p.toml:1:12: `include`: p.toml is included by itself; remove it here, or write a pattern that leaves it out",
        ),
        (
            &[
                ("p.toml", "include = ['a.toml']\n"),
                ("a.toml", "include = ['b.toml']"),
                ("b.toml", "#\ninclude=['a.toml']"),
            ],
            "b.toml:2:10: `include`: a.toml is included by itself; remove it here, or write a pattern that leaves it out",
        ),
        (
            &[
                ("p.toml", "include = ['1']"),
                ("1", "include = ['2']"),
                ("2", "include = ['3']"),
                ("3", "include = ['4']"),
                ("4", "include = ['5']"),
                ("5", ""),
            ],
            "4:1:12: `include`: files are inside each other more than 4 deep; include them from fewer files",
        ),
        (
            &[("p.toml", "include = 'a.toml'")],
            "p.toml:1:11: `include`: expected an array, found a string; write ['a.toml']",
        ),
        (&[("p.toml", "include = ['']")], "p.toml:1:12: `include`: \"\" names no file; write \"sites/*.toml\""),
    ] {
        let told = wrong(files);
        assert!(told.lines().any(|line| line == expected), "{told}");
    }
}

#[test]
fn a_file_that_two_patterns_name_is_read_once() {
    let config = good(&[
        ("p.toml", "include = ['s/a.toml', 's/*.toml', 'none/*']\n[[route]]\nrespond = {}\n"),
        ("s/a.toml", "[listener.a]\nbind = '0.0.0.0:80'\n"),
    ]);
    assert_eq!(config.listeners.len(), 1);
}

#[test]
fn each_file_has_its_own_end() {
    let source = read(&[
        ("p.toml", "include = ['*/a.toml', '*.json']\n[process]"),
        ("s/a.toml", "include = ['t/b.toml']\n[log]"),
        ("t/b.toml", "# a comment\n"),
        ("u/a.toml", ""),
        ("c.json", "{}"),
    ]);
    let ends = source.ends();
    let ends: Vec<_> = ends.iter().map(|end| (end.name, end.has_newline, end.is_blank, end.is_json)).collect();
    assert_eq!(
        ends,
        [
            ("p.toml", false, false, false),
            ("s/a.toml", false, false, false),
            ("t/b.toml", true, false, false),
            ("u/a.toml", false, true, false),
            ("c.json", false, false, true),
        ]
    );
    let ends = |text: &str| read(&[("p.toml", text)]).ends().iter().map(|end| end.has_newline).collect::<Vec<_>>();
    assert_eq!((ends("[log]\n"), ends("[log]")), (vec![true], vec![false]));
}

#[test]
fn a_text_that_is_in_no_file_includes_nothing() {
    let source = Source { name: propylon_config::PUSHED.into(), base: "".into(), text: MAIN.into() };
    let problems = parse(&source).expect_err("an error");
    assert_eq!(problems[0].what, "`include` is only for a configuration in a file of this machine");
}

#[test]
fn variables_stand_for_strings_numbers_and_durations() {
    let text = r#"
[process]
workers = "${env:WORKERS}"
watch_config = "${env:YES:-false}"
drain_timeout = "${env:WAIT}"
memory_limit = "${env:UNSET:-1073741824}"
[listener.web]
bind = "127.0.0.1:${env:PORT:-8080}"
limits = { head_bytes = "${env:SIZE}" }
redirect_to_https = "${env:YES}"
[backend.app]
servers = ["${env:HOST}:80", { address = "b:80", weight = "${env:WORKERS}" }]
health = { path = "/$${env:HOST}/${env:EMPTY:-up}${env:EMPTY}" }
[[route]]
backend = "app"
"#;
    let config = good(&[("p.toml", text)]);
    assert_eq!(config.process.workers, Workers::Count(3.try_into().expect("not 0")));
    assert!(config.process.watch_config);
    assert_eq!(config.process.drain_timeout.as_secs(), 7);
    assert_eq!(config.process.memory_limit, Some(propylon_config::MemoryLimit::Bytes(1 << 30)));
    assert_eq!(config.listeners[0].bind[0].address.port(), 8080);
    assert_eq!(config.listeners[0].limits.head_bytes, 32 * 1024);
    assert!(config.listeners[0].redirect_to_https.is_some());
    assert_eq!(config.backends[0].servers[0].address.to_string(), "app.internal:80");
    assert_eq!(config.backends[0].servers[1].weight.get(), 3);
    let shown = propylon_config::effective::config(&config).to_string();
    assert!(shown.contains("\"/${env:HOST}/up\""), "{shown}");
}

#[test]
fn variables_are_put_into_json_as_well() {
    let text = r#"{ "process": { "workers": "\u0024{env:WORKERS}" }, "listener": { "w": { "bind": "0.0.0.0:${env:PORT:-80}" } },
        "route": [ { "respond": { "body": "${env:HOST}" } } ] }"#;
    assert_eq!(good(&[("p.json", text)]).listeners[0].bind[0].address.port(), 80);
}

fn told(line: &str) -> Vec<String> {
    let text = format!(
        "[listener.web]\nbind = \"0.0.0.0:80\"\n[backend.b]\nservers = [\"b:1\"]\n{line}\n[[route]]\nbackend = \"b\"\n"
    );
    let source = read(&[("p.toml", &text)]);
    let problems = match parse(&source) {
        Ok((_, problems)) | Err(problems) => problems,
    };
    problems.iter().map(Problem::to_string).collect()
}

#[test]
fn variables_that_cannot_be_had_are_the_one_thing_that_is_said() {
    for (line, expected) in [
        (
            "max_lifetime = \"${env:NONE}\"",
            "p.toml:5:17: the variable NONE is not set in the environment, or is not UTF-8; set it where this program is \
             started, or write a default: ${env:NONE:-VALUE}",
        ),
        (
            "max_lifetime = \"${env:no-such}\"",
            "p.toml:5:17: \"no-such\" cannot be the name of a variable; write ${env:NAME} or ${env:NAME:-default}, with \
             letters, digits and `_`; write $${env: for the text ${env: itself",
        ),
        (
            "max_lifetime = \"${env:WAIT\"",
            "p.toml:5:17: `${env:` has no `}` after it; write ${env:NAME}; write $${env: for the text ${env: itself",
        ),
        (
            "max_lifetime = \"${env:NONE:-${env:WAIT}}\"",
            "p.toml:5:17: the default of NONE has a variable in it, and they do not stand inside each other; write the \
             default out, or set the variable itself",
        ),
    ] {
        assert_eq!(told(line), [expected]);
    }
}

#[test]
fn values_of_variables_are_in_no_message() {
    for line in [
        "max_lifetime = \"${env:SECRET}\"",
        "max_lifetime = \"1${env:SECRET}\"",
        "balance = \"${env:SECRET}\"",
        "retries = \"${env:SECRET}\"",
        "via = \"${env:SECRET}\"",
        "health = { path = \"${env:SECRET}\" }",
        "health = { host = \"${env:SECRET} x\" }",
        "tls = { ca = \"${env:SECRET}\", server_name = \"a_b ${env:SECRET}\" }",
        "sticky = { cookie = \"${env:SECRET}=\" }",
        "hash = { key = { header = \"${env:SECRET} \" } }",
        "[[route]]\nhost = \"${env:SECRET} a\"\nbackend = \"${env:SECRET}\"",
        "[[route]]\npath = \"${env:SECRET}\"\nlistener = \"${env:SECRET}\"\nbackend = \"b\"",
        "[[route]]\npath = { regex = \"(${env:SECRET}\" }\nbackend = \"b\"",
        "[listener.x]\nbind = \"${env:SECRET}\"\n",
        "[backend.c]\nservers = [\"${env:SECRET}\", \"${env:SECRET}:x\"]",
    ] {
        let told = told(line);
        assert!(!told.is_empty(), "{line}");
        let piece = |text: &str| {
            "hunter2-hunter2".as_bytes().windows(4).any(|piece| text.as_bytes().windows(4).any(|w| w == piece))
        };
        assert!(!told.iter().any(|text| piece(text)), "{told:?}");
    }
    for line in ["[backend.c]\nservers = [\"${env:SHORT}:26101\"]", "balance = \"${env:SHORT}\""] {
        let told = told(line);
        assert!(!told.is_empty() && !told.iter().any(|text| text.contains("pw!")), "{told:?}");
    }
    assert_eq!(
        told("balance = \"${env:SECRET}\"")[0].split(';').next(),
        Some("p.toml:5:11: `balance` cannot be \"${env:SECRET}\"")
    );
}

#[test]
fn a_text_that_is_in_no_file_has_no_variables() {
    let text = "[listener.web]\nbind = \"${env:HOST}:80\"\n[[route]]\nrespond = {}\n";
    let source = Source { name: propylon_config::PUSHED.into(), base: "".into(), text: text.into() };
    let problems = parse(&source).expect_err("an error");
    assert_eq!(problems[0].what, "${env:HOST} is only for configurations in a file of this machine");
    assert_eq!(problems.len(), 1, "{problems:?}");
}
