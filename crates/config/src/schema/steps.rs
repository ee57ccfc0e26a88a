//! Steps of `[[route]]`.

use std::ops::RangeInclusive;

use super::{answers, auth, change, compress, cors, forwarding, limits};
use crate::context::Context;
use crate::model::{Action, BackendId, Side, Split, Steps, Throttle};
use crate::walk::Section;

/// From no body at all to a TiB.
const BODY_LIMIT: RangeInclusive<u64> = 0..=1 << 40;

/// From a KiB to a TiB in a second.
const THROTTLE: RangeInclusive<u64> = 1 << 10..=1 << 40;

/// Reads the keys of a route that are steps. `action`: what the route does when they are taken, with the backend that
/// it leads to, if it leads to one.
pub(crate) fn steps(
    context: &Context<'_, '_>,
    section: &mut Section<'_, '_>,
    (action, backend): (&Action, Option<(BackendId, Option<Split>)>),
) -> Steps {
    if section.entry("backend").is_none() && !section.is_described() {
        forwarding::without_backend(section);
    }
    let split = backend.as_ref().and_then(|(_, split)| split.clone());
    let sides = split.iter().flat_map(|split| split.sides.iter().filter_map(Side::backend));
    let own: Vec<BackendId> = backend.iter().map(|(first, _)| *first).chain(sides).collect();
    Steps {
        request: section.table("request").map(change::request).unwrap_or_default(),
        response: section.table("response").map(change::response).unwrap_or_default(),
        security_headers: change::security_headers(section),
        errors: answers::errors(section, context.base),
        cors: section.table("cors").and_then(cors::cors),
        auth: auth::auth(context, section),
        limit: limits::limits(context, section),
        compress: compress::compress(section, action),
        fallback: forwarding::fallback(context, section, &own),
        mirrors: forwarding::mirrors(context, section, &own),
        timeouts: forwarding::timeouts(section),
        retries: forwarding::retries(section),
        hedge: forwarding::hedge(section),
        priority: forwarding::priority(section),
        buffer: forwarding::buffer(section),
        throttle: throttle(section).filter(|throttle| !is_of_calls(section, throttle)),
        body_limit: section.size("body_limit", BODY_LIMIT).map(|found| found.value),
        grpc_web: section.boolean_or("grpc_web", false),
        split,
    }
}

/// Whether calls of gRPC-Web would go past a pace, which is refused.
fn is_of_calls(section: &mut Section<'_, '_>, throttle: &Throttle) -> bool {
    let span = section.entry("throttle").map(|entry| entry.key_span);
    let is_web = section.boolean_or("grpc_web", false);
    if let (Some(span), true, Some(_)) = (span, is_web, throttle.download) {
        let what = "`throttle.download` does not slow calls of gRPC-Web down";
        section.report.error(span, what, "remove it, or give calls of gRPC-Web a route of their own");
        return true;
    }
    false
}

/// `throttle` of `[[route]]`.
fn throttle(section: &mut Section<'_, '_>) -> Option<Throttle> {
    let report = section.report;
    let span = section.entry("throttle").map(|entry| entry.key_span);
    let mut table = section.table("throttle")?;
    let (download, upload) = (table.size("download", THROTTLE), table.size("upload", THROTTLE));
    let (download, upload) = (download.map(|found| found.value), upload.map(|found| found.value));
    let after = table.size_or("after", 0..=1 << 40, 0);
    let by = limits::throttle_key(&mut table);
    table.any_of(&[&["download"], &["upload"]]);
    if let Some(span) = span
        && table.node("download").is_none()
        && table.node("upload").is_none()
    {
        report.error(span, "`throttle` slows nothing down", "give it `download` or `upload`, in bytes per second");
    }
    table.close();
    Some(Throttle { download, upload, after, by })
}
