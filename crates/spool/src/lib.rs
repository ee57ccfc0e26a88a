//! Bodies that are held while somebody is slow: in memory first, and then in files without a name, within bounds that
//! all cores share.

#![forbid(unsafe_code)]

mod disk;
mod file;
pub mod flow;
pub mod held;
pub mod space;

pub use flow::Flow;
pub use held::{Held, Reading, Writing};
pub use space::{Bounds, Refused, Space, Terms};
