//! The engine's account of itself: names and handles of its metrics, the access log, and the table of conditions.
//!
//! Read `telemetry.rs` first: every number that is kept, and who writes it. `conditions/table.rs` says of which of them
//! somebody is woken.

pub mod access_log;
pub mod attributes;
pub mod conditions;
pub mod history;
pub mod span;
pub mod telemetry;
pub mod throttle;
