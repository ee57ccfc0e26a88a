//! Requests that nginx makes beside a client's: `auth_request` and `mirror`.

use super::access::{guards, is_any};
use super::fields::is_own;
use super::locations;
use super::reader::{Place, Reader};
use super::servers::target_parts;
use crate::changes::Changes;
use crate::plan::Action;
use crate::words::Directive;

impl Reader<'_> {
    /// Another service that is asked who may come in, where that is all that is asked for.
    pub(super) fn forward(&mut self, place: &Place<'_>, blocks: &[&Directive], changes: &mut Changes) -> bool {
        let all = guards(blocks);
        let [each] = all.as_slice() else { return false };
        if each.name() != "auth_request" || is_any(blocks) || each.word(1).contains('$') {
            return false;
        }
        let Some(asked) = asked(place.server, each.word(1)) else { return false };
        let Some(pass) = asked.find("proxy_pass") else { return false };
        let Some(Action::Backend(name)) = self.proxied(place, asked, pass) else { return false };
        let uri = pass.word(1).split_once("://").map_or("", |(_, rest)| target_parts(rest).1);
        let path = if uri.starts_with('/') { uri } else { each.word(1) };
        let copied: Vec<String> = told(blocks).into_iter().map(|(_, name)| name).collect();
        if changes.forward(&name, path, &copied).is_err() {
            return false;
        }
        for field in asked.inner().iter().filter(|each| each.name() == "proxy_set_header" && !is_own(each.word(1))) {
            let fix = "the service is told of the request by X-Forwarded-Method, -Proto, -Host and -Uri: see that it goes by these, as at Authelia's /api/authz/forward-auth";
            self.plan.note(field.line, field.text(), fix);
        }
        true
    }

    /// Copies of requests to a location that hands them on as they are.
    pub(super) fn mirrors(&mut self, place: &Place<'_>, location: &Directive, changes: &mut Changes) {
        const FIX: &str = "write `mirror = { backend = ... }` in its route";
        let blocks = [location, place.server, place.http];
        let Some(block) = blocks.iter().find(|block| block.find("mirror").is_some()) else { return };
        let all: Vec<&Directive> = block.inner().iter().filter(|each| each.name() == "mirror").collect();
        for (index, each) in all.into_iter().enumerate().filter(|(_, each)| each.word(1) != "off") {
            let copies = asked(place.server, each.word(1));
            let pass = copies.and_then(|copies| copies.find("proxy_pass"));
            let target = pass.and_then(|pass| pass.word(1).strip_suffix("$request_uri"));
            let (Some(copies), Some(pass), Some(target), 0) = (copies, pass, target, index) else {
                self.plan.note(each.line, each.text(), FIX);
                continue;
            };
            let pass = Directive { line: pass.line, words: vec!["proxy_pass".into(), target.into()], block: None };
            match self.proxied(place, copies, &pass) {
                Some(Action::Backend(name)) if changes.mirror(&name).is_ok() => {}
                _ => self.plan.note(each.line, each.text(), FIX),
            }
        }
    }
}

/// The location of a server that answers such requests.
fn asked<'d>(server: &'d Directive, uri: &str) -> Option<&'d Directive> {
    let is_it = |each: &&Directive| each.words.last().is_some_and(|word| word == uri);
    let is_plain = |each: &&Directive| !["~", "~*"].contains(&each.word(1));
    locations::all(server).into_iter().filter(|each| is_it(each)).find(|each| is_plain(each))
}

/// Whether only requests that nginx makes beside others come to a location.
pub(super) fn is_beside(http: &Directive, server: &Directive, location: &Directive) -> bool {
    let blocks = locations::all(server).into_iter().chain([server, http]);
    let mut all = blocks.flat_map(Directive::inner).filter(|each| ["auth_request", "mirror"].contains(&each.name()));
    let uri = location.words.last().map_or("", String::as_str);
    location.find("internal").is_some() && all.any(|each| each.word(1) == uri)
}

/// Fields in which servers are told what the asked service has answered in a field of the same name: by variable.
pub(super) fn told(blocks: &[&Directive]) -> Vec<(String, String)> {
    if !guards(blocks).iter().any(|each| each.name() == "auth_request") {
        return Vec::new();
    }
    let inner = |name| {
        let block = blocks.iter().find(|block| block.find(name).is_some());
        let all = block.map_or(&[][..], |block| block.inner());
        all.iter().filter(|each| each.name() == name).collect::<Vec<&Directive>>()
    };
    let sets = inner("auth_request_set");
    let from = |variable: &str| {
        let set = sets.iter().find(|set| set.word(1) == variable)?;
        Some(set.word(2).strip_prefix("$upstream_http_")?.replace('_', "-"))
    };
    let fields = inner("proxy_set_header");
    let is_told = |each: &&&Directive| from(each.word(2)).is_some_and(|name| name.eq_ignore_ascii_case(each.word(1)));
    fields.iter().filter(is_told).map(|each| (each.word(2).to_owned(), each.word(1).to_owned())).collect()
}
