//! From resources to one configuration of Propylon, the files that it names, and the statuses of the resources. Nothing
//! here reads a clock, a file or a socket: the same resources give the same result.

mod attach;
mod backends;
mod budget;
mod draft;
mod filters;
mod gateways;
mod http;
mod owners;
mod policies;
mod references;
mod relays;
mod report;
mod sessions;
mod sets;
mod tables;

use crate::settings::{Outcome, Settings};
use crate::world::World;
use backends::Backends;

/// Translates all resources. `refused` is what engines said of the configuration before, if they have not taken it:
/// then no Gateway is programmed. `now` is the time of conditions that change, in RFC 3339.
pub fn translate(world: &World, settings: &Settings, refused: Option<&str>, now: &str) -> Outcome {
    let mut gateways = gateways::plan(world, settings);
    let mut backends = Backends::new(world, settings);
    let mut routes = attach::attach(world, &mut gateways);
    let mut drafts = http::routes(world, &gateways, &mut routes, &mut backends);
    drafts.extend(relays::routes(world, &gateways, &mut routes, &mut backends));
    let last = tables::isolation(&gateways, &drafts);
    drafts.extend(last);
    let whole = tables::whole(settings, &mut gateways, &mut backends, drafts, &mut routes);
    let (config, trouble) = match whole {
        Ok(text) => (Some(text), None),
        Err(why) => (None, Some(why)),
    };
    let mut statuses = report::classes(world, settings, now);
    statuses.extend(report::gateways(&gateways, trouble.as_deref().or(refused), now));
    statuses.extend(sets::statuses(&gateways, trouble.as_deref().or(refused), now));
    statuses.extend(report::routes(settings, &routes, now));
    statuses.extend(policies::statuses(world, settings, &backends, now));
    let mut files = gateways.files;
    files.append(&mut backends.files);
    Outcome { config, files, statuses, trouble }
}
