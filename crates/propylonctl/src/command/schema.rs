//! `propylon schema`: the JSON Schema of configuration files, described by the manual's tables of keys.

mod manual;

use std::io::{self, Write};
use std::process::ExitCode;

use manual::Manual;
use propylon_config::json_schema;
use serde_json::Value;

const MANUAL: &str = include_str!("../../../../docs/manual.md");

#[derive(clap::Args)]
pub struct Arguments {
    /// Print the schema of the key server's configuration instead of the engine's
    #[arg(long)]
    key_server: bool,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    let text = format!("{:#}\n", schema(arguments.key_server));
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("propylon: the schema cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

fn schema(of_key_server: bool) -> Value {
    if of_key_server {
        let manual = Manual::of_key_server(MANUAL);
        return json_schema::key_server(|path| manual.description(path));
    }
    let manual = Manual::of_engine(MANUAL);
    json_schema::engine(|path| manual.description(path))
}
