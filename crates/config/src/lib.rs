//! Text in, a whole `Config` out, or every `Problem` in it, each with its line and column.

mod model;

pub use model::*;
