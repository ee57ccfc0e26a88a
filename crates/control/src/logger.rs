//! Log of the process, by the name of the engine; the writing is the key server's, whose code serves beside it.

pub use propylon_keyserver::logger::{Flush, lost, panics, start_writer};

/// Starts logging; called again, changes the level only.
pub fn start(level: propylon_config::Level) {
    propylon_keyserver::logger::start("propylon", level);
}
