#![no_main]

//! Whatever the text, in either language: a configuration, or problems that can be printed.

use propylon_config::{Source, parse, render, to_json};

libfuzzer_sys::fuzz_target!(|input: (bool, String)| {
    let (json, text) = input;
    let name = if json { "fuzz.json" } else { "fuzz.toml" };
    let source = Source { name: name.into(), base: "".into(), text };
    let problems = match parse(&source) {
        Ok((_, warnings)) => warnings,
        Err(problems) => {
            assert!(!problems.is_empty());
            problems
        }
    };
    let printed = render(&problems, &source.text);
    assert!(!printed.contains('\u{1b}'));
    let _ = to_json(&problems);
});
