//! `propylon-keyserver keys`: which keys there are, and whether they can be served.

use std::path::Path;
use std::process::ExitCode;

use propylon_config::{Source, parse_keyserver, render};
use serde_json::json;

use crate::hsm::Tokens;
use crate::key_files::KeyFiles;
use crate::keys::{Origin, hexadecimal, kind_name};
use crate::server::describe;

pub fn main(path: &Path, json: bool) -> ExitCode {
    let parsed = Source::read(path).map_err(|problem| render(&[problem], "")).and_then(|source| {
        parse_keyserver(&source).map_err(|problems| render(&problems, &source.text)).map(|(config, _)| config)
    });
    let config = match parsed {
        Ok(config) => config,
        Err(text) => {
            eprint!("{text}");
            return ExitCode::FAILURE;
        }
    };
    let mut key_files = KeyFiles::new(config.keys.paths, config.server.allow_world_readable_keys);
    let faults = key_files.rescan().faults;
    let (tokens, fault) = match Tokens::open(&config.tokens) {
        Ok(tokens) => (tokens.found(), None),
        Err(fault) => (Vec::new(), Some(fault)),
    };
    let in_tokens = tokens.iter().map(|(key, name)| (key.clone(), Origin::Token(name)));
    let found: Vec<_> = key_files.found().chain(in_tokens).collect();
    if json {
        let loaded = found.iter().map(|(key, origin)| {
            let (ski, kind) = (hexadecimal(&key.ski()), kind_name(key.kind()));
            let source = match origin {
                Origin::File(_) => "file",
                Origin::Token(_) => "pkcs11",
            };
            json!({ "ski": ski, "type": kind, "source": source, "file": origin.to_string(), "loaded": true })
        });
        let others = faults.iter().map(|fault| {
            let (file, what) = (fault.path.display().to_string(), fault.what.to_string());
            json!({ "ski": null, "type": null, "source": "file", "file": file, "loaded": false, "what": what })
        });
        let absent = fault.iter().map(|fault| {
            json!({ "ski": null, "type": null, "source": "pkcs11", "file": null, "loaded": false, "what": fault.what })
        });
        println!("{:#}", serde_json::Value::Array(loaded.chain(others).chain(absent).collect()));
    } else {
        for (key, origin) in &found {
            println!("{}  {:<8}  loaded      {origin}", hexadecimal(&key.ski()), kind_name(key.kind()));
        }
        for fault in &faults {
            println!("{:<40}  {:<8}  not loaded  {}", "-", "-", describe(fault));
        }
        if let Some(fault) = &fault {
            println!("{:<40}  {:<8}  not loaded  {}; {}", "-", "-", fault.what, fault.fix);
        }
    }
    if faults.is_empty() && fault.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
