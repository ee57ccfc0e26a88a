//! Log of the process, by the name of the engine; the writing is the key server's, whose code serves beside it.

pub use propylon_keyserver::logger::{
    Flush, RECENT_LINE_BYTES, Recent, level_name, lost, panics, recent, start_writer, take_recent,
};

/// Starts logging; called again, changes the level only.
pub fn start(level: propylon_config::Level) {
    propylon_keyserver::logger::start("propylon", level);
}
