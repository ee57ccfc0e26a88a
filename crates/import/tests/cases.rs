//! Files in the style of published examples, with the whole of what comes of each: the configuration, which the crate
//! `config` judges, and the notes.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use propylon_config::{Severity, Source};
use propylon_import::{Language, import};

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let entries = std::fs::read_dir(folder).expect("the folder of cases").map(|entry| entry.expect("an entry").path());
    let mut all: Vec<PathBuf> = entries.filter(|path| path.extension().is_none_or(|end| end != "expected")).collect();
    all.sort();
    all
}

/// Outcome of a file: its text, then its notes as comments, as the expected file has them.
fn outcome(path: &Path) -> String {
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).expect("the case");
    let language = Language::of(&name, &text).expect("a language");
    let imported = import(language, &name, &text)
        .unwrap_or_else(|note| panic!("{name}:{}: {}; {}", note.line, note.what, note.fix));
    let text = filled(&imported.text);
    let source = Source { name: "out.toml".into(), base: "/etc/propylon".into(), text };
    let problems = match propylon_config::parse(&source) {
        Ok((_, warnings)) => warnings,
        Err(problems) => panic!("{name}:\n{}\n{}", imported.text, propylon_config::render(&problems, &imported.text)),
    };
    let mut out = imported.text;
    for (name, text) in &imported.files {
        let _ = writeln!(out, "# {name}:\n# {}", text.trim_end().replace('\n', "\n# "));
    }
    for note in &imported.notes {
        let _ = writeln!(out, "# {name}:{}: {}; {}", note.line, note.what, note.fix);
    }
    for problem in problems.iter().filter(|problem| problem.severity == Severity::Warning) {
        let _ = writeln!(out, "# {problem}");
    }
    out
}

/// A text with the defaults of its variables in their place, or a word.
fn filled(text: &str) -> String {
    let mut parts = text.split("${env:");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (variable, rest) = part.split_once('}').expect("the end of a variable");
        out.push_str(variable.split_once(":-").map_or("variable", |(_, default)| default));
        out.push_str(rest);
    }
    out
}

#[test]
fn the_whole_of_what_comes_of_a_file_is_as_expected() {
    let cases = cases();
    assert!(cases.len() >= 40, "{cases:?}");
    let mut wrong = Vec::new();
    for path in cases {
        let expected_path = PathBuf::from(format!("{}.expected", path.display()));
        let outcome = outcome(&path);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&expected_path, &outcome).expect("the expected file");
        }
        let expected = std::fs::read_to_string(&expected_path).unwrap_or_default();
        if expected != outcome {
            wrong.push(format!("{}:\n{outcome}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_guards_and_cannot_be_said_is_told_with_its_line() {
    let of = |text: &str| import(Language::Nginx, "nginx.conf", text);
    let relay = "stream {\nserver { listen 1;\nallow 10.0.0.1; deny all; proxy_pass 10.0.0.2:2; } }";
    let told = of(relay).expect("notes and no listener").notes;
    assert!(told.iter().any(|note| note.line == 3 && note.what.starts_with("allow")), "{told:?}");
    let guarded = "server {\nlisten 80;\nlocation ~ ^/(?!open).x { deny all; }\nlocation / { return 200; } }";
    assert_eq!(of(guarded).expect_err("a guard that is lost").line, 3);
    let open = guarded.replace("deny all", "return 200");
    assert_eq!(of(&open).expect("a note").notes.iter().map(|note| note.line).collect::<Vec<_>>(), [3]);
}

/// Routes of a host, and lines of the notes, that come of a text of nginx.
fn routes_of(text: &str, host: &str) -> (Vec<String>, Vec<usize>) {
    let imported = import(Language::Nginx, "nginx.conf", text).expect("a configuration");
    let is_its = |route: &&str| route.contains(&format!("host = \"{host}\"\n"));
    let routes = imported.text.split("[[route]]\n").skip(1).filter(is_its).map(|route| route.trim().to_owned());
    (routes.collect(), imported.notes.iter().map(|note| note.line).collect())
}

#[test]
fn a_condition_on_a_host_is_a_route_wherever_its_server_has_the_host() {
    let server = |names: &str, answer: &str| {
        format!(
            "server {{\nlisten 80;\nserver_name {names};\nif ($host = x.a.test) {{ return {answer}; }}\n\
                 location / {{ return 200; }} }}\n"
        )
    };
    for names in ["*.a.test", ".a.test", "x.a.test", r"~^x\.a\.", "x.a.*", "_"] {
        let (routes, _) = routes_of(&server(names, "403"), "x.a.test");
        assert_eq!(routes.len(), 1, "{names}");
        assert!(routes[0].contains("status = 403"), "{names}: {routes:?}");
        let (routes, notes) = routes_of(&server(names, "301 $elsewhere"), "x.a.test");
        assert!(routes[0].contains("status = 403") && notes.contains(&4), "{names}: {routes:?} {notes:?}");
    }
    let others = ["x.a.test", "*.x.a.test x.a.test", ".a.test"];
    for (index, names) in others.iter().enumerate() {
        let other = format!("{}server {{ listen 80; server_name {names}; return 204; }}", server("*.test", "403"));
        let (routes, notes) = routes_of(&other, "x.a.test");
        assert!(routes.iter().all(|route| route.contains("status = 204")), "{names}: {routes:?}");
        assert_eq!((routes.len(), notes), (usize::from(index < 2), vec![4]), "{names}");
    }
}

#[test]
fn a_guarded_pattern_of_an_end_refuses_a_newline_behind_it_first() {
    let of = |locations: &str| {
        let text = format!("server {{ listen 80; server_name a.test;\n{locations}\nlocation / {{ return 200; }} }}");
        routes_of(&text, "a.test").0
    };
    let is_shut = |route: &str, pattern: &str| {
        route.contains(&format!("path = {{ regex = \"{pattern}\" }}\n")) && route.contains("status = 403")
    };
    for guarded in [r"location ~ /\.(env|git)$ { deny all; }", r"location ~* /a(/|$) { return 404; }"] {
        let routes = of(guarded);
        assert!(routes.len() == 3 && is_shut(&routes[0], "%0A$"), "{guarded}: {routes:?}");
    }
    let inside = of(r"location ^~ /a/ { return 200; location ~ \.php$ { deny all; } }");
    assert!(is_shut(&inside[0], "^/a/.*%0A$"), "{inside:?}");
    for open in
        [r"location ~ \.php$ { return 200; }", r"location ~ /\.ht { deny all; }", r"location ~ [$] { deny all; }"]
    {
        assert!(of(open).iter().all(|route| !route.contains("%0A")), "{open}");
    }
}

#[test]
fn the_kind_of_a_location_needs_no_space_behind_it() {
    let of = |kind: &str, path: &str| {
        let text = "server { listen 80; location KIND { deny all; } location / { return 200; } }";
        let spaced = import(Language::Nginx, "nginx.conf", &text.replace("KIND", &format!("{kind} {path}")));
        let joined = import(Language::Nginx, "nginx.conf", &text.replace("KIND", &format!("{kind}{path}")));
        (spaced.expect("a configuration").text, joined.expect("a configuration").text)
    };
    for (kind, path) in [("=", "/admin"), ("~", r"\.php$"), ("~*", r"\.php$"), ("^~", "/x"), ("~", "^/x"), ("=", "/")] {
        let (spaced, joined) = of(kind, path);
        assert_eq!(spaced, joined, "{kind}{path}");
    }
}

#[test]
fn a_second_proof_that_closes_a_route_is_told_with_its_line() {
    let lists = "defaults\n mode http\nuserlist a\n user ann password $6$s$h\nuserlist b\n user bob password $6$s$i\n\
                 frontend web\n bind :80\n";
    let backend = "default_backend app\nbackend app\n server s 10.0.0.1:80\n";
    let of = |rules: &str| {
        let text = format!("{lists}{rules} {backend}");
        let imported = import(Language::Haproxy, "haproxy.cfg", &text).expect("a configuration");
        let notes: Vec<usize> = imported.notes.iter().map(|note| note.line).collect();
        (imported.text.contains("[backend.app]") && imported.text.contains("auth = "), notes)
    };
    let one = " http-request auth unless { http_auth(a) }\n";
    assert_eq!(of(one), (true, vec![]));
    assert_eq!(of(&format!("{one} http-request auth if {{ path_beg /x }} !{{ http_auth(b) }}\n")), (true, vec![10]));
    // All of its requests are refused, so that no route leads to the backend in line 11.
    assert_eq!(of(" http-request deny if !{ http_auth(a) } !{ http_auth(b) }\n").1, [9, 11]);
    assert_eq!(of(" http-request auth unless { http_auth(a) } or { http_auth(b) }\n").1, [9, 11]);
}

#[test]
fn no_damaged_file_panics_or_makes_a_text_that_is_no_toml() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    for path in cases() {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("the case");
        let language = Language::of(&name, &text).expect("a language");
        for _ in 0..20 {
            let mut characters: Vec<char> = text.chars().collect();
            for _ in 0..random.usize(1..8) {
                let at = random.usize(..characters.len());
                match random.u8(..3) {
                    0 => drop(characters.remove(at)),
                    1 => characters.insert(
                        at,
                        random
                            .choice(['{', '}', ';', '"', '\'', '\\', '\n', ' ', '#', 'é', '\u{0}', '$'])
                            .expect("one"),
                    ),
                    _ => characters.truncate(at.max(20)),
                }
            }
            let damaged: String = characters.into_iter().collect();
            let Ok(imported) = import(language, &name, &damaged) else { continue };
            let source = Source { name: "out.toml".into(), base: "".into(), text: imported.text };
            assert!(propylon_config::format(&source).is_ok(), "seed {seed}: {name}\n{damaged}\n{}", source.text);
        }
    }
}

#[test]
fn rules_with_more_paths_than_are_compared_are_told_of_once() {
    let notes = |rules: usize| {
        let guards = (0..rules).map(|rule| format!("  http-request deny if {{ path_beg /a{rule} }}\n"));
        let leads = (0..rules).map(|rule| format!("  use_backend app if {{ path_end .e{rule} }}\n"));
        let rules: String = guards.chain(leads).collect();
        let text =
            format!("frontend web\n  bind :80\n{rules}  default_backend app\nbackend app\n  server a 10.0.0.1:80\n");
        let imported = import(Language::Haproxy, "haproxy.cfg", &text).expect("a configuration");
        imported.notes.into_iter().filter(|note| note.fix.contains("more than 4096")).collect::<Vec<_>>()
    };
    assert!(notes(3).is_empty(), "{:?}", notes(3));
    let told = notes(45);
    assert_eq!((told.len(), told.first().map(|note| note.line)), (1, Some(3)), "{told:?}");
}
