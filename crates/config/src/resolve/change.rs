//! Checks of what routes change: what can have no effect, or not the one that is meant.

use super::{profile, reached};
use crate::canonical::route_key;
use crate::context::RouteDraft;
use crate::model::{
    Action, BackendId, Config, Fact, FieldChanges, HostChange, Listener, PathChange, PathPattern, Piece, RedirectPath,
    Route, ServerAddress, facts,
};
use crate::report::Report;
use crate::wording::shown;

/// Checks the changes of all routes.
pub(super) fn check(report: &Report<'_>, config: &Config, routes: &[RouteDraft]) {
    for draft in routes.iter().filter(|draft| draft.complete) {
        let route = &draft.route;
        if let Action::Redirect(redirect) = &route.action
            && let Some(RedirectPath::Changed(change)) = &redirect.path
        {
            path(report, draft, change);
        }
        if route.steps.is_empty() {
            continue;
        }
        if let Some(change) = &route.steps.request.path {
            path(report, draft, change);
        }
        match &route.action {
            Action::Backend(_) => servers(report, config, draft),
            Action::Redirect(_) | Action::Respond(_) => without_servers(report, draft),
        }
        own_fields(report, config, draft);
        steps_fields(report, config, draft);
        unknown(report, config, draft);
    }
}

/// A path that the route never has cannot be changed.
fn path(report: &Report<'_>, draft: &RouteDraft, change: &PathChange) {
    match (change, &draft.route.path) {
        (PathChange::ReplacePrefix { .. }, PathPattern::Exact(_) | PathPattern::Regex(_)) => {
            let what = "`replace_prefix` is for the prefix that a route matches, and this one matches none";
            report.error(draft.span, what, "write the route's `path` as a string, or use `replace` or `regex`");
        }
        (PathChange::Strip { strip }, PathPattern::Prefix(path) | PathPattern::Exact(path)) => {
            let (strip_key, path_key) = (route_key(strip), route_key(path));
            let may_be_longer = matches!(draft.route.path, PathPattern::Prefix(_)) && is_under(&strip_key, &path_key);
            if !is_under(&path_key, &strip_key) && !may_be_longer {
                let what = format!("no path of this route begins with \"{}\", which is to be stripped", shown(strip));
                report.error(draft.span, what, format!("strip \"{}\", or change the route's `path`", shown(path)));
            }
        }
        _ => {}
    }
}

/// Whether a path is one of those that a prefix of whole segments stands for.
fn is_under(path: &str, prefix: &str) -> bool {
    let prefix = prefix.trim_end_matches('/');
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn servers(report: &Report<'_>, config: &Config, draft: &RouteDraft) {
    let Action::Backend(id) = &draft.route.action else { return };
    let Some(backend) = config.backends.get(id.0) else { return };
    let is_service = |address: &ServerAddress| matches!(address, ServerAddress::Srv { .. });
    if draft.route.steps.request.host == Some(HostChange::Server)
        && let Some(server) = backend.servers.iter().find(|server| is_service(&server.address))
    {
        let what = format!("{} is a service, and no host that a server could be asked for", server.address);
        report.error(draft.span, what, "write the name to `host` that its servers go by");
    }
    mirrored(report, config, draft);
}

/// A copy's head is written before there is a server for it, which is known where there is one.
fn mirrored(report: &Report<'_>, config: &Config, draft: &RouteDraft) {
    let steps = &draft.route.steps;
    let says_server = steps.request.host == Some(HostChange::Server) || steps.request_fields().any(names_server);
    let has_several = |id: BackendId| config.backends.get(id.0).is_some_and(|backend| backend.servers.len() > 1);
    if says_server && steps.mirrors.iter().any(|mirror| has_several(mirror.backend)) {
        let what = "{upstream.server} is not known to a copy for a backend of several servers";
        report.error(draft.span, what, "give the mirror a backend of one server, or write a name in its place");
    }
}

/// Whether a line of these is of the server that a request goes to.
fn names_server(fields: &FieldChanges) -> bool {
    fields.written().any(|line| tells(line, Fact::UpstreamServer))
}

/// A route that answers by itself sends nothing to servers and has nothing from them.
fn without_servers(report: &Report<'_>, draft: &RouteDraft) {
    let steps = &draft.route.steps;
    if !steps.response.location.is_empty() {
        let what = "`location` changes where servers' redirects lead, and this route has no servers";
        report.error(draft.span, what, "remove it, or give the route a `backend`; a redirect has a `path` of its own");
    }
    if !steps.request.is_empty() {
        let what = "`request` changes what servers get, and this route has none";
        report.error(draft.span, what, "remove it, or give the route a `backend`; a redirect has a `path` of its own");
    } else if !steps.response.cookies.is_empty() {
        let what = "`cookies` changes what servers set, and this route has none";
        report.error(draft.span, what, "remove it, or give the route a `backend`");
    } else if names_server(&steps.response.fields) {
        report.error(draft.span, "{upstream.server} is never known here: this route has no servers", "remove it");
    }
}

fn tells(line: &crate::model::RequestHeader, fact: Fact) -> bool {
    facts(std::slice::from_ref(line)).any(|told| told == fact)
}

/// A field that a listener writes itself is not a route's.
fn own_fields(report: &Report<'_>, config: &Config, draft: &RouteDraft) {
    for (_, listener) in reached(config, &draft.route) {
        let names = || draft.route.steps.request_fields().flat_map(FieldChanges::names);
        let is_ours = |name: &str| names().any(|changed| changed.eq_ignore_ascii_case(name));
        if let Some(header) = listener.request_headers.iter().find(|header| is_ours(&header.name)) {
            let (name, field) = (shown(&listener.name), shown(&header.name));
            let what = format!("[listener.{name}] writes the field \"{field}\" to all requests");
            report.error(draft.span, what, "change it in one of the two places");
            break;
        }
    }
}

/// A field that another step of the route writes is not changed by the route.
fn steps_fields(report: &Report<'_>, config: &Config, draft: &RouteDraft) {
    let steps = &draft.route.steps;
    let is_among = |name: &str, changed: &str| changed.eq_ignore_ascii_case(name);
    let asks = |name: &str| steps.request_fields().flat_map(FieldChanges::names).any(|each| is_among(name, each));
    let answers = |name: &str| steps.response_fields().flat_map(FieldChanges::names).any(|each| is_among(name, each));
    let told = steps.auth.iter().flat_map(|auth| auth.fields());
    if let Some(field) = told.into_iter().find(|field| asks(field)) {
        let what =
            format!("`auth` tells servers in the field \"{}\" who it is, and `request` changes it", shown(field));
        report.error(draft.span, what, "give one of the two another name");
    }
    let of_cors = |name: &str| name.to_ascii_lowercase().starts_with("access-control-");
    if steps.cors.is_some()
        && let Some(field) = steps.response_fields().flat_map(FieldChanges::names).find(|name| of_cors(name))
    {
        let what = format!("`cors` writes \"{}\", and `response` changes it: browsers refuse two", shown(field));
        report.error(draft.span, what, "say it in `cors`, or do without one of the two");
    }
    if steps.compress.is_some() && answers("etag") {
        let what = "`compress` makes weak tags of servers' tags, and `response` changes \"ETag\"";
        report.error(draft.span, what, "do without one of the two: a tag that was set would be one of two bodies");
    }
    let returned =
        |listener: &Listener| listener.request_id.as_ref().is_some_and(|ids| ids.returned && answers(&ids.header));
    if let Some((_, listener)) = reached(config, &draft.route).find(|(_, listener)| returned(listener)) {
        let what = format!(
            "`request_id` of [listener.{}] writes the request's ID to responses, and `response` changes that field",
            shown(&listener.name)
        );
        report.error(draft.span, what, "do without one of the two, or have `return = false` in `request_id`");
    }
}

/// Facts that are known on none of the route's listeners.
fn unknown(report: &Report<'_>, config: &Config, draft: &RouteDraft) {
    for fact in told(&draft.route) {
        let never = format!("{{{}}} is never known on this route's listeners", fact.name());
        let is_known = |listener: &Listener| {
            let tls = profile(config, listener);
            let is_asked = tls.is_some_and(|tls| tls.client_auth.is_some());
            let has_ja4 = tls.is_some_and(|tls| tls.ja4);
            // A profile that could not be read may have anything.
            let may_have_tls = listener.tls.is_some();
            match fact {
                Fact::RequestId => listener.request_id.is_some(),
                _ if may_have_tls && tls.is_none() => true,
                Fact::TlsJa4 => has_ja4,
                _ if fact.is_identity() => is_asked,
                _ => may_have_tls || !fact.is_of_tls(),
            }
        };
        let mut listeners = reached(config, &draft.route).peekable();
        if listeners.peek().is_none() || listeners.any(|(_, listener)| is_known(listener)) {
            continue;
        }
        let fix = match fact {
            Fact::RequestId => "add request_id = true to one of them, or remove the field",
            Fact::TlsJa4 => "add ja4 = true to their [tls.NAME], or remove the field",
            _ if fact.is_identity() => "add `client_auth` to their [tls.NAME], or remove the field",
            _ => "add `tls` to one of them, or remove the field",
        };
        report.error(draft.span, never, fix);
        return;
    }
}

/// Takes note of the listeners whose routes tell which name clients' TLS has asked for.
pub(crate) fn note_server_names(listeners: &mut [Listener], routes: &[RouteDraft]) {
    let tells = |draft: &&RouteDraft| told(&draft.route).any(|fact| fact == Fact::TlsServerName);
    for draft in routes.iter().filter(tells) {
        let only = draft.route.listener.map(|id| id.0);
        for (index, listener) in listeners.iter_mut().enumerate() {
            listener.tells_server_name |= only.is_none_or(|only| only == index);
        }
    }
}

/// Facts that a route's changes tell.
fn told(route: &Route) -> impl Iterator<Item = Fact> {
    let (request, response) = (&route.steps.request, &route.steps.response);
    let fields = route.steps.request_fields().chain(route.steps.response_fields()).flat_map(FieldChanges::written);
    let all = fields.chain(&request.query.set).chain(&request.query.add);
    let pieces = all.flat_map(|line| &line.value).chain(response.location.iter().flat_map(|change| &change.to));
    pieces.filter_map(|piece| if let Piece::Fact(fact) = piece { Some(*fact) } else { None })
}
