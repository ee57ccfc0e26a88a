//! `propylon-keyserver keys`: which keys there are, and whether they can be served.

use std::path::Path;
use std::process::ExitCode;

use propylon_config::{Source, parse_keyserver, render};
use serde_json::json;

use crate::keys::{hexadecimal, kind_name};
use crate::server::told;
use crate::shelf::Shelf;

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
    let mut shelf = Shelf::new(config.keys.paths);
    let faults = shelf.look().faults;
    if json {
        let loaded = shelf.keys().map(|(key, file)| {
            let (ski, kind) = (hexadecimal(&key.ski()), kind_name(key.kind()));
            json!({ "ski": ski, "type": kind, "file": file.display().to_string(), "loaded": true })
        });
        let others = faults.iter().map(|fault| {
            let (file, what) = (fault.path.display().to_string(), fault.what.to_string());
            json!({ "ski": null, "type": null, "file": file, "loaded": false, "what": what })
        });
        println!("{:#}", serde_json::Value::Array(loaded.chain(others).collect()));
    } else {
        for (key, file) in shelf.keys() {
            println!("{}  {:<8}  loaded      {}", hexadecimal(&key.ski()), kind_name(key.kind()), file.display());
        }
        for fault in &faults {
            println!("{:<40}  {:<8}  not loaded  {}", "-", "-", told(fault));
        }
    }
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
