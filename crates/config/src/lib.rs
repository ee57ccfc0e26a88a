//! Text in, a whole [`Config`] out, or every [`Problem`] in it, each with its line and column.
//!
//! ```
//! use propylon_config::{Source, parse, render};
//!
//! let text = "[listener.web]\nbind = \"0.0.0.0:80\"\n[[route]]\nbackend = \"app\"\n";
//! let source = Source { name: "propylon.toml".into(), base: "".into(), text: text.into() };
//! let problems = parse(&source).unwrap_err();
//! assert_eq!(
//!     render(&problems, text),
//!     "propylon.toml:4:11: no backend named \"app\"; add a section [backend.app]\n  \
//!        4 | backend = \"app\"\n    \
//!          |           ^^^^^\n"
//! );
//! ```

#![warn(missing_docs)]

mod address;
pub mod keyserver;
mod model;
mod path;
mod problem;
mod read;
mod report;
mod resolve;
mod schema;
mod source;
mod succession;
mod text;
mod tree;
mod units;
mod walk;

pub use keyserver::{inspect_keyserver, parse_keyserver};
pub use model::*;
pub use problem::{Problem, Severity, render, to_json};
pub use source::{SOURCE_BYTES_MAX, Source};
pub use succession::FreePlaces;

use std::path::Path;

use report::Report;
use text::Lines;
use tree::Node;

/// Reads a configuration. What comes with a `Config` are warnings; without one, it is all errors and warnings.
/// Problems are in the order of their positions.
pub fn parse(source: &Source) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
    settle(read(source, schema::config))
}

/// The sections that name files with certificates and keys.
#[derive(Clone, Debug, Default)]
pub struct Certified {
    /// `[tls.NAME]`
    pub tls: Vec<TlsProfile>,
    /// `[signer.NAME]`
    pub signers: Vec<Signer>,
    /// `[backend.NAME]`, for its `tls`.
    pub backends: Vec<Backend>,
    /// `process.upgrade_socket`: whoever is found there hears of the problems.
    pub upgrade_socket: Option<UpgradeSocket>,
}

/// All problems, and the sections that name certificates as far as they could be read in spite of them, so that
/// whoever checks certificates can add what is wrong with those to the same report.
pub fn inspect(source: &Source) -> (Certified, Vec<Problem>) {
    let (config, problems) = read(source, schema::config);
    let certified = |config: Config| Certified {
        tls: config.tls,
        signers: config.signers,
        backends: config.backends,
        upgrade_socket: config.process.upgrade_socket,
    };
    (config.map(certified).unwrap_or_default(), problems)
}

/// Reads one server's address; else what is wrong with it, and what to do.
pub fn server_address(text: &str) -> Result<ServerAddress, (String, String)> {
    address::server(text)
}

/// With an error among the problems nothing is to be used.
fn settle<T>((config, problems): (Option<T>, Vec<Problem>)) -> Result<(T, Vec<Problem>), Vec<Problem>> {
    match config {
        Some(config) if problems.iter().all(|problem| problem.severity == Severity::Warning) => Ok((config, problems)),
        _ => Err(problems),
    }
}

/// What could be read and all that is wrong; with an error among it the configuration is not to be used.
fn read<T>(source: &Source, schema: fn(&Report<'_>, &Node<'_>, &Path) -> T) -> (Option<T>, Vec<Problem>) {
    if source.text.len() > SOURCE_BYTES_MAX {
        let (what, fix) = source::too_large();
        return (None, vec![Problem::error(&source.name, None, what, fix)]);
    }
    let lines = Lines::new(problem::without_mark(&source.text));
    let reading = if source.is_json() { read::json::read(&lines) } else { read::toml::read(&lines) };
    let report = Report::new(&source.name, &lines, &reading.faults);
    let config = reading.root.as_ref().map(|root| schema(&report, root, &source.base));
    (config, report.finish())
}
