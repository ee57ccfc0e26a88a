//! Checks of answers across sections: errors' pages that nobody gets, and preflights that do not find their route.

use super::reached;
use crate::context::RouteDraft;
use crate::model::{Action, Config, Listener};
use crate::report::Report;
use crate::wording::shown;

pub(super) fn check(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete) {
        interception(report, config, draft);
        preflights(report, draft);
    }
    for listener in &config.listeners {
        let has_pages = |draft: &RouteDraft| !draft.route.steps.errors.error_pages.is_empty();
        let is_without = listener.errors.error_pages.is_empty() && !routes.iter().any(has_pages);
        if listener.errors.intercept_errors == Some(true) && is_without {
            let what = format!("[listener.{}] intercepts errors, and there is no page for any", shown(&listener.name));
            report.error_at(listener.at, what, "add `error_pages`, or remove `intercept_errors`");
        }
    }
}

fn interception(report: &Report<'_>, config: &Config, draft: &RouteDraft) {
    let errors = &draft.route.steps.errors;
    if errors.intercept_errors != Some(true) {
        return;
    }
    let has_pages = |listener: &Listener| !listener.errors.error_pages.is_empty();
    if !matches!(draft.route.action, Action::Backend(_)) {
        let what = "`intercept_errors` is about servers' responses, and this route has no `backend`";
        report.error(draft.span, what, "remove it: pages are for answers of our own in any case");
    } else if errors.error_pages.is_empty() && !reached(config, &draft.route).any(|(_, listener)| has_pages(listener)) {
        let what = "`intercept_errors` puts pages in the place of servers' errors, and there is no page for any";
        report.error(draft.span, what, "add `error_pages` to the route or to its listener");
    }
}

/// A preflight (OPTIONS, without cookies and without the fields that the page wants to send) has to find the route that
/// answers it.
fn preflights(report: &Report<'_>, draft: &RouteDraft) {
    let (route, conditions) = (&draft.route, &draft.route.conditions);
    if route.steps.cors.is_none() {
        return;
    }
    if !conditions.method.is_empty() && !conditions.method.iter().any(|method| method == "OPTIONS") {
        let what = "browsers ask by OPTIONS what `cors` allows, and `match` keeps that from this route";
        report.error(draft.span, what, "add \"OPTIONS\" to the `method` of its `match`");
    }
    if !conditions.header.is_empty() || !conditions.cookie.is_empty() {
        let what = "browsers ask what `cors` allows without the fields and cookies that `match` looks at";
        report.warning(draft.span, what, "give the route without these conditions the same `cors`");
    }
}
