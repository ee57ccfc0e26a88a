//! Routes that can never match, since one that is asked before them takes every request that they are for.
//!
//! Routes for one listener, host and path are asked in the order of their conditions, more of them first, then in that
//! of the file. A route whose conditions follow from another's cannot have fewer: so only routes with equally many
//! conditions hide each other.

use std::collections::HashMap;
use std::hash::Hash;

use crate::context::RouteDraft;
use crate::model::{Conditions, Network, TextTest};
use crate::report::Report;
use crate::resolve::pattern;

/// Routes that are compared with each other at most; the check is a courtesy.
const COMPARED_MAX: usize = 1_000_000;

pub(crate) fn check(report: &Report<'_>, routes: &[RouteDraft]) {
    let mut groups: HashMap<_, Vec<&RouteDraft>> = HashMap::new();
    for draft in routes.iter().filter(|draft| draft.complete && !draft.route.conditions.is_empty()) {
        let (listener, host, path, _) = pattern(&draft.route);
        groups.entry((listener, host, path)).or_default().push(draft);
    }
    let mut compared = 0;
    for group in groups.values() {
        for (index, draft) in group.iter().enumerate() {
            compared += index;
            if compared > COMPARED_MAX {
                return;
            }
            let conditions = &draft.route.conditions;
            // Routes with the very same conditions are told of elsewhere.
            let hides = |earlier: &&&RouteDraft| {
                let other = &earlier.route.conditions;
                other != conditions && other.counts() == conditions.counts() && implies(conditions, other)
            };
            let Some(earlier) = group[..index].iter().find(hides) else { continue };
            let line = report.line(earlier.span);
            let what = format!("this route can never match: the one in {line} takes all that its conditions let in");
            report.warning(draft.span, what, "put it before that one, or remove it");
        }
    }
}

/// Whether a request that meets `own` meets `other` as well, as far as it can be told.
fn implies(own: &Conditions, other: &Conditions) -> bool {
    let texts = |own: &[crate::TextCondition], other: &[crate::TextCondition]| {
        let test = |name: &str| own.iter().find(|condition| condition.name == name).map(|condition| &condition.test);
        other.iter().all(|wanted| test(&wanted.name).is_some_and(|test| follows(test, &wanted.test)))
    };
    let grpc = match (&own.grpc, &other.grpc) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(own), Some(other)) => {
            let part = |own: &Option<TextTest>, other: &Option<TextTest>| match (own, other) {
                (_, None) => true,
                (own, Some(other)) => own.as_ref().is_some_and(|own| follows(own, other)),
            };
            part(&own.service, &other.service) && part(&own.method, &other.method)
        }
    };
    grpc && is_within(&own.method, &other.method)
        && is_within(&own.port, &other.port)
        && (other.source.is_empty() || !own.source.is_empty() && own.source.iter().all(|own| is_in(own, &other.source)))
        && texts(&own.header, &other.header)
        && texts(&own.query, &other.query)
        && texts(&own.cookie, &other.cookie)
        && facts(&own.client, &other.client)
        && facts(&own.tls, &other.tls)
}

fn facts<F: PartialEq>(own: &[crate::FactCondition<F>], other: &[crate::FactCondition<F>]) -> bool {
    other.iter().all(|wanted| {
        own.iter().any(|condition| condition.fact == wanted.fact && follows(&condition.test, &wanted.test))
    })
}

/// Whether all of `own` is in `other`, where an empty list is no condition.
fn is_within<T: Eq + Hash>(own: &[T], other: &[T]) -> bool {
    other.is_empty() || !own.is_empty() && own.iter().all(|one| other.contains(one))
}

fn is_in(network: &Network, others: &[Network]) -> bool {
    others.iter().any(|other| other.prefix <= network.prefix && other.contains(network.address))
}

/// Whether a text that is as `own` asks is as `other` asks.
fn follows(own: &TextTest, other: &TextTest) -> bool {
    match (own, other) {
        (own, other) if own == other => true,
        (TextTest::Absent, _) | (_, TextTest::Absent) => false,
        (_, TextTest::Present) => true,
        (TextTest::Exact(text) | TextTest::Prefix(text), TextTest::Prefix(start)) => text.starts_with(start.as_str()),
        (TextTest::Exact(text), TextTest::Regex(pattern)) => {
            crate::pattern::compile(pattern).is_ok_and(|pattern| pattern.is_match(text.as_bytes()))
        }
        _ => false,
    }
}
