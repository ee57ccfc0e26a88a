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
mod at;
pub mod canonical;
mod context;
mod describe;
pub mod effective;
mod environment;
mod equality;
mod foreign;
mod format;
mod hidden;
pub mod include;
pub mod json_schema;
pub mod keyserver;
mod log_line;
mod model;
mod parse;
mod path;
pub mod pattern;
mod problem;
mod provenance;
mod read;
mod report;
mod resolve;
mod schema;
mod shown;
mod signer_ids;
mod source;
mod text;
mod tree;
mod units;
mod walk;
mod withheld;
mod wording;

pub use address::first_of_network;
pub use format::format;
pub use log_line::log_line;
pub use model::*;
pub use parse::{
    Certified, inspect, inspect_keyserver, locate, network, parse, parse_keyserver, server_address, uncovered_keys,
    written,
};
pub use problem::{Problem, Severity, render, to_json};
pub use provenance::{FileEnd, Lookup, Named, PUSHED, PUSHED_JSON, Provenance, SOURCE_BYTES_MAX};
pub use source::Source;
pub use units::{Share, size_text};
pub use withheld::without_secrets;
