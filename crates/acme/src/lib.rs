//! Certificates ordered from an authority (RFC 8555), kept in a folder, and replaced before they end.
//!
//! A [`Renewer`] is one thread for all accounts: it orders what a configuration wants and the folder lacks, and says
//! which files have changed. The servers of those files watch them; the servers that answer the authority's
//! challenges are told by a call which are outstanding ([`Answer`]). Among several processes that share a folder
//! the one with its lock orders, and all of them answer.
//!
//! The time to order is decided in `plan`, which has neither clock nor chance of its own; `order` talks to the
//! authority.

mod answer;
mod chain;
mod folder;
mod http;
mod issuer;
mod key_process;
mod order;
mod plan;
mod record;
mod refusal;
mod renewer;
mod status;

pub use answer::Answer;
pub use issuer::{Issuer, Wanted, issuers};
pub use order::{FileProblem, check};
pub use renewer::{Publish, Renewer};
pub use status::{CertificateStatus, Counts, IssuerStatus, State};
