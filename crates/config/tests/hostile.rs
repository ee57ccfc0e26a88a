//! Inputs that nobody wrote: none may panic, lose its positions or take more than its share of time.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use propylon_config::*;

const SEED: u64 = 0x5eed_c0de;
const MUTANTS: usize = 20_000;
/// A slow machine makes fewer mutants rather than a slow test.
const MUTATION_TIME_MAX: Duration = Duration::from_secs(5);

fn source(name: &str, text: String) -> Source {
    Source { name: name.into(), base: PathBuf::new(), text }
}

fn problems_of(source: &Source) -> Vec<Problem> {
    match parse(source) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    }
}

/// Pieces that a mutation inserts: words of both languages and of the schema, and what has broken parsers before.
const PIECES: &[&str] = &[
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    ",",
    ".",
    ":",
    "\"",
    "'",
    "\"\"\"",
    "'''",
    "\\",
    "\\u",
    "\\ud800",
    "#",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\0",
    "\u{1b}[2J",
    "\u{feff}",
    "\u{202e}",
    "é",
    "🦀",
    "-",
    "0",
    "1",
    "-1",
    "9999999999999999999999",
    "0x",
    "1e999",
    "nan",
    "inf",
    "true",
    "false",
    "null",
    "1979-05-27T07:32:00Z",
    "\"250ms\"",
    "\"16KiB\"",
    "\"0s\"",
    "[[route]]\n",
    "[route]\n",
    "[listener.web]\n",
    "[backend.app]\n",
    "[tls]\n",
    "[process]\n",
    "[x.y.z]\n",
    "a.b.c=1\n",
    "bind=",
    "servers=",
    "path=",
    "host=",
    "tls=",
    "redirect={}",
    "\"*.\"",
    "\"[::]:0\"",
    "\"0.0.0.0:443\"",
    "\"/%\"",
    "\"http://\"",
    "\"münchen\"",
    "{exact=",
    "[[[[[[[[",
    "{a={a={a=",
];

fn mutate(rng: &mut fastrand::Rng, text: &str, other: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(0..=chars.len());
        let end = (at + rng.usize(0..=12)).min(chars.len());
        match rng.u8(0..7) {
            0 => drop(chars.drain(at..end)),
            1 => {
                let copy: Vec<char> = chars[at..end].to_vec();
                chars.splice(at..at, copy);
            }
            2 => chars.truncate(at.max(1)),
            3 => {
                let lines: Vec<&str> = other.lines().collect();
                let line = format!("{}\n", lines[rng.usize(0..lines.len())]);
                chars.splice(at..at, line.chars());
            }
            4 if at < chars.len() => chars[at] = rng.char(..),
            _ => drop(chars.splice(at..end, PIECES[rng.usize(0..PIECES.len())].chars())),
        }
    }
    chars.into_iter().collect()
}

/// Whether the problems are about places that are there, in order, and can be printed.
fn check(source: &Source, problems: &[Problem]) {
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
    let lines: Vec<&str> = text.split('\n').collect();
    for problem in problems {
        assert!(!problem.what.is_empty() && !problem.fix.is_empty(), "{problem}");
        assert!(!problem.what.contains("not its fault"), "the reader panicked");
        let Some(at) = problem.at else { continue };
        let line = lines.get(at.line as usize - 1).unwrap_or_else(|| panic!("no such line: {problem}"));
        let columns = line.chars().count() as u32 + 1;
        assert!(at.column >= 1 && at.column <= columns && at.length >= 1, "no such column: {problem}");
        assert!(at.column + at.length - 1 <= columns, "longer than the line: {problem}");
    }
    assert!(problems.windows(2).all(|pair| {
        let place = |problem: &Problem| problem.at.map(|at| (at.line, at.column));
        place(&pair[1]).is_none() || place(&pair[0]) <= place(&pair[1])
    }));
    let rendered = render(problems, &source.text);
    assert!(rendered.chars().all(|character| character == '\n' || !character.is_control()));
    serde_json::from_str::<serde_json::Value>(&to_json(problems)).expect("valid JSON");
}

#[test]
fn no_mutant_of_a_configuration_panics() {
    let seeds = [
        ("a.toml", include_str!("full.toml")),
        ("a.toml", include_str!("design.toml")),
        ("a.toml", include_str!("../../../examples/propylon.toml")),
        ("a.json", include_str!("full.json")),
    ];
    println!("seed {SEED:#x}");
    let mut rng = fastrand::Rng::with_seed(SEED);
    let start = Instant::now();
    let (mut good, mut made) = (0, 0);
    while made < MUTANTS && start.elapsed() < MUTATION_TIME_MAX {
        made += 1;
        let (name, text) = seeds[rng.usize(0..seeds.len())];
        let other = seeds[rng.usize(0..seeds.len())].1;
        let source = source(name, mutate(&mut rng, text, other));
        let outcome = std::panic::catch_unwind(|| {
            let problems = problems_of(&source);
            check(&source, &problems);
            problems.iter().all(|problem| problem.severity == Severity::Warning)
        });
        match outcome {
            Ok(is_good) => good += usize::from(is_good),
            Err(panic) => {
                println!("this panicked:\n{}", source.text);
                std::panic::resume_unwind(panic);
            }
        }
    }
    // If nearly nothing survived, or nearly everything, the mutations would not be testing the schema.
    println!("{made} mutants in {:?}, {good} of them good", start.elapsed());
    assert!(good > 0 && good < made);
}

fn routes(count: usize) -> String {
    let mut text = String::from("[listener.web]\nbind = '0.0.0.0:80'\n");
    for index in 0..count {
        let _ = write!(
            text,
            "[backend.b{index}]\nservers = ['10.0.0.1:80']\n[[route]]\nhost = 'h{index}.example'\npath = '/p/'\nbackend = 'b{index}'\n"
        );
    }
    text
}

#[test]
fn ten_thousand_routes_are_one_good_configuration() {
    let (config, warnings) = parse(&source("a.toml", routes(10_000))).expect("a good file");
    assert_eq!((config.routes.len(), config.backends.len(), warnings.len()), (10_000, 10_000, 0));
    assert_eq!(config.routes[9_999].action, Action::Backend(BackendId(9_999)));
}

#[test]
fn no_input_takes_more_than_its_share_of_time() {
    type Make = fn(usize) -> String;
    let makers: &[(&str, &str, Make)] = &[
        ("routes", "a.toml", routes),
        ("unknown names", "a.toml", |n| routes(n).replace("backend = 'b", "backend = 'c")),
        ("equal routes", "a.toml", |n| routes(n).replace("host = 'h", "#")),
        ("unknown keys", "a.toml", |n| (0..n * 4).map(|i| format!("key{i} = 1\n")).collect()),
        ("one long line", "a.toml", |n| format!("[backend.a]\nservers = [{}]", "'é',".repeat(n * 4))),
        ("one long line of JSON", "a.json", |n| {
            format!("{{\"backend\":{{\"a\":{{\"servers\":[{}\"\"]}}}}}}", "\"é\",".repeat(n * 4))
        }),
        ("syntax errors", "a.toml", |n| "a = [1=2]\n".repeat(n * 4)),
        ("signs", "a.toml", |n| "=".repeat(n * 16)),
        ("escapes", "a.toml", |n| format!("a=\"{}\"", "\\q".repeat(n * 16))),
        ("open brackets", "a.toml", |n| format!("a={}", "[".repeat(n * 16))),
        ("open brackets of JSON", "a.json", |n| format!("{{\"a\":{}{}}}", "[".repeat(n * 8), "]".repeat(n * 8))),
        ("dots", "a.toml", |n| format!("{}a=1", "a.".repeat(n * 16))),
        ("redirects", "a.toml", |n| {
            let listener = |i| {
                format!(
                    "[listener.l{i}]\nbind = '0.0.0.0:{}'\n[[route]]\nhost='h{i}'\nredirect={{scheme='https'}}\n",
                    i % 60_000 + 1
                )
            };
            (0..n).map(listener).collect()
        }),
    ];
    for (what, name, make) in makers {
        let time = |count: usize| {
            let source = source(name, make(count));
            let once = || {
                let start = Instant::now();
                let problems = problems_of(&source);
                render(&problems, &source.text);
                start.elapsed()
            };
            (0..3).map(|_| once()).min().expect("three times").max(Duration::from_micros(500))
        };
        let (few, many) = (time(250), time(4_000));
        // Sixteen times as much: linear time would be 16 times as long, quadratic 256 times.
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("{what}: {few:?} {many:?} {ratio:.1}");
        assert!(ratio < 100.0, "{what}: sixteen times the input took {ratio:.0} times as long");
    }
}

#[test]
fn a_text_above_the_limit_is_refused_unread() {
    let problems = parse(&source("a.toml", "#".repeat(SOURCE_BYTES_MAX + 1))).expect_err("too large");
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].what, "the file is larger than 4 MiB");
}

#[test]
fn of_very_many_problems_only_the_first_are_kept() {
    let text: String = (0..5_000).map(|index| format!("key{index} = 1\n")).collect();
    let problems = parse(&source("a.toml", text)).expect_err("too many");
    assert_eq!(problems.len(), 1001);
    assert_eq!(problems[1000].to_string(), "a.toml: 4000 more problems are not shown; correct these first");
}
