//! Keys that all engines of a cluster share, where the configuration names no others.

use propylon_cluster::{STICKY_KEY, TICKET_KEYS};
use propylon_config::{Config, TicketKeys};

/// Keys of tickets and of sticky cookies are the cluster's where the configuration names no others.
pub fn share_keys(config: &mut Config) {
    let Some(section) = &config.cluster else { return };
    for profile in &mut config.tls {
        if profile.resumption.ticket_keys == TicketKeys::Memory {
            let path = section.runtime.path.join(TICKET_KEYS);
            profile.resumption.ticket_keys = TicketKeys::File { path, rotate: None, at: section.at };
        }
    }
    for sticky in config.backends.iter_mut().filter_map(|backend| backend.sticky.as_mut()) {
        sticky.key_file.get_or_insert_with(|| section.runtime.path.join(STICKY_KEY));
    }
}
