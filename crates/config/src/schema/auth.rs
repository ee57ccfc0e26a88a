//! `auth` of `[[route]]`: what requests have to prove.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::conditions::{list, token};
use super::headers::{checked_name, is_name};
use super::url::{UrlKey, web_address};
use super::values::{DAY, HOUR, file, required_file, seconds};
use crate::context::Context;
use crate::describe::Form;
use crate::model::{
    ApiKey, Auth, BackendId, BackendTls, Basic, Forward, Jwt, KeysUrl, Proof, Proofs, TokenKeys, Trust, WebAddress,
};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::{one_of, shown};

const REALM: &str = "restricted";
const TEXT_BYTES_MAX: usize = 1024;
const REMEMBER: RangeInclusive<Duration> = Duration::ZERO..=HOUR;
const REMEMBER_DEFAULT: Duration = seconds(300);
const KEY_HEADER: &str = "X-API-Key";
const LEEWAY: RangeInclusive<Duration> = Duration::ZERO..=seconds(300);
const LEEWAY_DEFAULT: Duration = seconds(30);
const WATCH: RangeInclusive<Duration> = seconds(1)..=DAY;
const KEYS_REFRESH: RangeInclusive<Duration> = seconds(10)..=DAY;
const KEYS_REFRESH_DEFAULT: Duration = seconds(300);
const KEYS_URL: UrlKey = UrlKey {
    key: "keys_url",
    fix: "write the URL of the issuer's public keys, its `jwks_uri`",
    elsewhere: "public keys need no credentials",
};
const CLAIMS_MAX: usize = 32;
const AUDIENCES_MAX: usize = 32;
const FIELDS_MAX: usize = 32;
const PROOFS_MAX: usize = 8;
const KINDS: [&str; 6] = ["basic", "api_key", "jwt", "forward", "any", "all"];
const KIND_FIX: &str = "give it exactly one of `basic`, `api_key`, `jwt`, `forward`, `any` and `all`";
const PROOFS: [&str; 4] = ["basic", "api_key", "jwt", "forward"];
const PROOF_FIX: &str = "give it exactly one of `basic`, `api_key`, `jwt` and `forward`";

/// Algorithms of tokens' signatures, in the words of RFC 7518 §3.1 and RFC 8037 §3.1.
pub const ALGORITHMS: [&str; 10] =
    ["ES256", "ES384", "ES512", "EdDSA", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512"];

/// Algorithms that a token may have where nothing is said.
const ALGORITHMS_DEFAULT: [&str; 5] = ["ES256", "ES384", "EdDSA", "RS256", "PS256"];

pub(crate) fn auth(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<Auth> {
    let mut table = section.table("auth")?;
    let report = context.report;
    let (span, at) = (table.span, report.at(table.span));
    table.one_of(&KINDS);
    only_one(&mut table, "`auth`", &KINDS, KIND_FIX);
    let one = proof(context, &mut table).map(Proofs::One);
    let (any, all) = (several(context, &mut table, &ANY), several(context, &mut table, &ALL));
    let proofs = one.or(any.map(Proofs::Any)).or(all.map(Proofs::All));
    let user_to = table.string("user_to").and_then(|found| proven_name(report, found.value, found.span));
    table.default_is("hide_credentials", || false.into());
    let hide = table.boolean("hide_credentials");
    let watch = table.duration("watch", WATCH);
    table.close();
    let hide_credentials = hide.is_some_and(|found| found.value);
    let watch_interval = watch.map(|found| found.value);
    let user_to = user_to.map(str::to_string);
    let auth = Auth { proofs: proofs?, user_to, hide_credentials, watch: watch_interval, at };
    if let Some(hide) = hide.filter(|found| found.value) {
        check_hidden(report, &auth, hide.span);
    }
    if let Some(watch) = watch.filter(|_| auth.files().next().is_none()) {
        let what = "`watch` looks after files, and this `auth` has none";
        report.error(watch.span, what, "remove it; keys of a URL are fetched anew by `keys_refresh`");
    }
    check_fields(report, &auth, span);
    Some(auth)
}

/// Says so where a table has no proof, or several.
fn only_one(table: &mut Section<'_, '_>, title: &str, kinds: &[&'static str], fix: &str) {
    let report = table.report;
    let given: Vec<_> = kinds.iter().filter_map(|key| table.entry(key)).collect();
    if given.is_empty() && report.is_whole() {
        report.error(table.span, format!("{title} asks for no proof"), fix);
    }
    for second in given.iter().skip(1) {
        report.error(second.key_span, format!("{title} has both `{}` and `{}`", given[0].key, second.key), fix);
    }
}

fn proof(context: &Context<'_, '_>, table: &mut Section<'_, '_>) -> Option<Proof> {
    let basic = table.table("basic").and_then(|section| basic(context, section));
    let api_key = table.table("api_key").and_then(|section| api_key(context, section));
    let jwt = table.table("jwt").and_then(|section| jwt(context, section));
    let forward = table.table("forward").and_then(|section| forward(context, section));
    let own = basic.map(Proof::Basic).or(api_key.map(Proof::ApiKey)).or(jwt.map(Proof::Jwt));
    own.or(forward.map(Proof::Forward))
}

/// A list of proofs, and what it asks of them.
struct Several {
    key: &'static str,
    needs: &'static str,
}

const ANY: Several = Several { key: "any", needs: "of which one will do" };
const ALL: Several = Several { key: "all", needs: "each of which has to be good" };

fn several(context: &Context<'_, '_>, table: &mut Section<'_, '_>, list: &Several) -> Option<Vec<Proof>> {
    let report = context.report;
    let found = table.list(list.key, &[Form::Table])?;
    if !table.is_described() && !(2..=PROOFS_MAX).contains(&found.value.len()) {
        let fix = format!("list 2 to {PROOFS_MAX} proofs, {}", list.needs);
        report.error(found.span, format!("`{}` has {} proofs", list.key, found.value.len()), fix);
    }
    let mut proofs: Vec<Proof> = Vec::new();
    for (place, node) in found.value.iter().enumerate() {
        let Some(mut own) = Section::of(report, node, "this proof", node.span) else { continue };
        own.one_of(&PROOFS);
        only_one(&mut own, "this proof", &PROOFS, PROOF_FIX);
        let proof = proof(context, &mut own);
        own.close();
        let Some(proof) = proof else { continue };
        if list.key == ALL.key {
            check_beside(report, &proofs, &proof, node.span);
        } else if matches!(proof, Proof::Forward(_)) && place + 1 < found.value.len() {
            let what = "`forward` has the last word, and proofs behind it would never be looked at";
            report.error(node.span, what, "put it at the end of `any`");
        }
        proofs.push(proof);
    }
    (!proofs.is_empty()).then_some(proofs)
}

/// A request has one text in a place, and servers are told one thing in a field: proofs that are asked for together
/// have places and fields of their own.
fn check_beside(report: &Report<'_>, others: &[Proof], proof: &Proof, span: Span) {
    if let Some(place) = carrier(proof).filter(|own| others.iter().any(|other| carrier(other).as_ref() == Some(own))) {
        let what = format!("two proofs of `all` come in {place}, and a request has one there");
        let fix = "have one of them come elsewhere, by `jwt.cookie`, `api_key.header` or `api_key.query`";
        report.error(span, what, fix);
    }
    let is_told = |field: &&str| others.iter().flat_map(Proof::fields).any(|other| other.eq_ignore_ascii_case(field));
    if let Some(field) = proof.fields().find(is_told) {
        let what = format!("two proofs of `all` tell servers \"{}\"", shown(field));
        report.error(span, what, "remove one of the two from `claims_to` or `copy`, or give it another name");
    }
}

/// The place that a client's proof comes in, in words; none of a proof that others make of the whole request.
fn carrier(proof: &Proof) -> Option<String> {
    let field = |name: &str| format!("the field {}", name.to_ascii_lowercase());
    match proof {
        Proof::Basic(_) | Proof::Jwt(Jwt { cookie: None, .. }) => Some(field("authorization")),
        Proof::Jwt(Jwt { cookie: Some(cookie), .. }) => Some(format!("the cookie {}", shown(cookie))),
        Proof::ApiKey(ApiKey { query: Some(parameter), .. }) => Some(format!("the parameter {}", shown(parameter))),
        Proof::ApiKey(ApiKey { header, .. }) => header.as_deref().map(field),
        Proof::Forward(_) => None,
    }
}

/// Credentials are only taken out of fields of their own.
fn check_hidden(report: &Report<'_>, auth: &Auth, span: Span) {
    if let Some(place) = auth.proofs.iter().find_map(place_of_others) {
        let what = format!("what is in {place} is not taken out of it: servers would get it");
        report.error(span, what, "remove `hide_credentials`, or have clients send it in a field of its own");
    }
    if auth.proofs.iter().all(|proof| matches!(proof, Proof::Forward(_))) {
        let what = "which fields the other service goes by is not known: `hide_credentials` would hide nothing";
        report.error(span, what, "remove it, and take fields out by `request = { remove = [...] }`");
    }
}

/// Servers are told one thing in a field.
fn check_fields(report: &Report<'_>, auth: &Auth, span: Span) {
    if auth.user_to.is_some() && !auth.names_users() {
        let what = "`user_to` is to tell servers of the user, and `forward` has no `user_from`: nobody is known";
        report.error(span, what, "add the field of the answer that names the user, or have it in `copy`");
    }
    let Some(user_to) = &auth.user_to else { return };
    let is_it = |field: &str| field.eq_ignore_ascii_case(user_to);
    if let Some(proof) = auth.proofs.iter().find(|proof| proof.fields().any(is_it)) {
        let other = if matches!(proof, Proof::Jwt(_)) { "claims_to" } else { "copy" };
        let what = format!("the field \"{user_to}\" is of `user_to`, and of `{other}`");
        report.error(span, what, "remove one of the two");
    }
}

/// The place of credentials that have others' things beside them.
fn place_of_others(proof: &Proof) -> Option<&'static str> {
    match proof {
        Proof::ApiKey(key) if key.query.is_some() => Some("the query"),
        Proof::Jwt(jwt) if jwt.cookie.is_some() => Some("a cookie"),
        _ => None,
    }
}

fn forward(context: &Context<'_, '_>, mut section: Section<'_, '_>) -> Option<Forward> {
    let report = context.report;
    let errors = report.errors();
    section.require("backend", "add backend = \"NAME\" of a [backend.NAME]");
    let found = section.string("backend");
    if found.is_none() {
        context.backends.miss();
    }
    let backend = found.and_then(|found| context.backends.resolve(report, found)).map(BackendId);
    let path = section.string("path").and_then(|found| question_path(report, found));
    let host = section.string("host");
    if let Some(host) = host
        && !is_host(host.value)
    {
        let what = format!("`host`: \"{}\" is no host", shown(host.value));
        report.error(host.span, what, "write it as \"auth.example\" or \"auth.example:8080\"");
    }
    let send = section.entry("send").is_some();
    let sent = names(&mut section, "send", |report, found| is_name(report, found.value, found.span));
    let copy = names(&mut section, "copy", |report, found| {
        found.value.eq_ignore_ascii_case("authorization") || proven_name(report, found.value, found.span).is_some()
    });
    let user_from = section.string("user_from").filter(|found| is_name(report, found.value, found.span));
    section.close();
    if report.errors() > errors {
        return None;
    }
    Some(Forward {
        backend: backend?,
        name: found?.value.to_string(),
        path: path.map(str::to_string),
        host: host.map(|host| host.value.to_ascii_lowercase()),
        send: send.then_some(sent),
        copy,
        user_from: user_from.map(|found| found.value.to_string()),
    })
}

/// Names of fields, each once.
fn names(
    section: &mut Section<'_, '_>,
    key: &'static str,
    is_fit: impl Fn(&Report<'_>, Found<&str>) -> bool,
) -> Vec<String> {
    let report = section.report;
    let Some(found) = section.list(key, &[Form::String]) else { return Vec::new() };
    if found.value.len() > FIELDS_MAX {
        report.error(found.span, format!("`{key}` has more than {FIELDS_MAX} fields"), "use fewer");
    }
    let mut names: Vec<String> = Vec::new();
    for found in found.value.iter().filter_map(|node| string(report, key, node)) {
        if names.iter().any(|other| other.eq_ignore_ascii_case(found.value)) {
            let what = format!("`{key}` has \"{}\" twice: case does not tell fields apart", shown(found.value));
            report.error(found.span, what, "remove one of the two");
        }
        if is_fit(report, found) {
            names.push(found.value.to_string());
        }
    }
    names
}

/// Target of a question: a path as it is sent, and perhaps a query.
fn question_path<'a>(report: &Report<'_>, found: Found<&'a str>) -> Option<&'a str> {
    let text = found.value;
    let is_fit = text.starts_with('/')
        && text.len() <= TEXT_BYTES_MAX
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&byte));
    if !is_fit {
        let what = format!("`path`: \"{}\" is no path", shown(text));
        report.error(found.span, what, "begin it with `/`, and write other than plain ASCII as %XX");
    }
    is_fit.then_some(text)
}

/// Whether a text is a host, perhaps with a port.
fn is_host(text: &str) -> bool {
    let host = text.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(text, |(host, _)| host);
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_v6 = |text: &str| text.parse::<std::net::Ipv6Addr>().is_ok();
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    !host.is_empty() && host.len() <= 255 && inner.map_or(host.bytes().all(is_part), is_v6)
}

fn basic(context: &Context<'_, '_>, mut section: Section<'_, '_>) -> Option<Basic> {
    let fix = "add the file that `htpasswd -B -c FILE NAME` makes";
    let file = required_file(&mut section, "file", context.base, fix);
    section.default_is("realm", || REALM.into());
    let realm = section.string("realm").map(|found| (printable(section.report, "realm", found), found.value));
    let remember = section.duration_or("remember", REMEMBER, REMEMBER_DEFAULT);
    section.close();
    let realm = realm.map_or(REALM, |(_, text)| text).to_string();
    Some(Basic { file: file?, realm, remember })
}

fn api_key(context: &Context<'_, '_>, mut section: Section<'_, '_>) -> Option<ApiKey> {
    let report = section.report;
    let fix = "add a file with a line NAME:HASH for each key; `printf %s KEY | sha256sum` tells the hash";
    let file = required_file(&mut section, "file", context.base, fix);
    section.default_is("header", || KEY_HEADER.into());
    let header = section.string("header").and_then(|found| key_field(report, found));
    let query = section.string("query");
    if let Some(found) = query
        && (found.value.is_empty() || !found.value.bytes().all(is_plain))
    {
        let what = format!("\"{}\" cannot be the name of a parameter here", shown(found.value));
        report.error(found.span, what, "use letters, digits, `-`, `_` and `.`");
    }
    if let (Some(_), Some(found)) = (header, query) {
        let fix = "remove one of the two, or make two routes";
        report.error(found.span, "a key is in a field or in the query, and this has `header` and `query`", fix);
    }
    section.close();
    let query = query.map(|found| found.value.to_string());
    let header = query.is_none().then(|| header.unwrap_or(KEY_HEADER).to_string());
    Some(ApiKey { file: file?, header, query })
}

/// A byte that stands for itself wherever a name is written.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

/// Name of a field that says who somebody is, which no client can send: also those that oauth2-proxy and others use.
fn proven_name<'a>(report: &Report<'_>, name: &'a str, span: Span) -> Option<&'a str> {
    const PROVEN: [&str; 5] = ["user", "email", "groups", "preferred-username", "access-token"];
    let lower = name.to_ascii_lowercase();
    match lower.strip_prefix("x-forwarded-").is_some_and(|rest| PROVEN.contains(&rest)) {
        true => Some(name),
        false => checked_name(report, name, span),
    }
}

/// The field of a key: also `Authorization`, whole.
fn key_field<'a>(report: &Report<'_>, found: Found<&'a str>) -> Option<&'a str> {
    match found.value.eq_ignore_ascii_case("authorization") {
        true => Some(found.value),
        false => checked_name(report, found.value, found.span),
    }
}

fn jwt(context: &Context<'_, '_>, mut section: Section<'_, '_>) -> Option<Jwt> {
    let report = section.report;
    let errors = report.errors();
    section.require("issuer", "add the text that the issuer's tokens have as `iss`");
    let issuer = section.string("issuer");
    section.require("audience", "add the text that tokens for this service have as `aud`");
    let audience = texts(&mut section, "audience", AUDIENCES_MAX);
    for found in issuer.iter().chain(&audience) {
        printable(report, "issuer and audience", *found);
    }
    let keys = token_keys(context, &mut section);
    let algorithms = algorithms(&mut section);
    let kind = section.string("type");
    let cookie = section.string("cookie");
    if let Some(found) = cookie
        && token(found.value).is_none()
    {
        let what = format!("\"{}\" cannot be the name of a cookie", shown(found.value));
        report.error(found.span, what, "use letters, digits, `-` and `_`");
    }
    let leeway = section.duration_or("leeway", LEEWAY, LEEWAY_DEFAULT);
    let claims_to = claims(&mut section);
    section.close();
    if report.errors() > errors {
        return None;
    }
    Some(Jwt {
        issuer: issuer?.value.to_string(),
        audience: audience.iter().map(|found| found.value.to_string()).collect(),
        keys: keys?,
        algorithms,
        kind: kind.map(|found| found.value.to_string()),
        cookie: cookie.map(|found| found.value.to_string()),
        leeway,
        claims_to,
    })
}

/// The file of an issuer's public keys, or the URL that they are fetched from.
fn token_keys(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Option<TokenKeys> {
    let report = context.report;
    section.one_of(&["keys_file", "keys_url"]);
    let (file_entry, url_entry) = (section.entry("keys_file"), section.entry("keys_url"));
    if let (Some(_), Some(second)) = (file_entry, url_entry) {
        report.error(second.key_span, "`jwt` has both `keys_file` and `keys_url`", "remove one of the two");
    }
    if file_entry.is_none() && url_entry.is_none() {
        section.missing_here("keys_file", "add the file of the issuer's public keys, a JWK set, or `keys_url`");
    }
    let keys_file = section.string("keys_file").and_then(|found| file(report, "keys_file", found, context.base));
    let url = section.string("keys_url");
    let address = url.and_then(|found| web_address(report, KEYS_URL, found));
    if let (Some(found), Some(WebAddress { is_https: false, .. })) = (url, &address) {
        let what = "`keys_url`: whoever is on the way could put keys of his own in the place of the issuer's";
        report.error(found.span, what, "write a URL of https, or name a `keys_file`");
    }
    let ca = section.string("keys_ca");
    let refresh_entry = section.entry("keys_refresh");
    let refresh = section.duration_or("keys_refresh", KEYS_REFRESH, KEYS_REFRESH_DEFAULT);
    let idle = ca.map(|found| found.span).or(refresh_entry.map(|entry| entry.key_span));
    if let (Some(span), None, false) = (idle, url_entry, section.is_described()) {
        report.error(span, "`keys_ca` and `keys_refresh` are about `keys_url`", "remove it, or add `keys_url`");
    }
    let keys_ca = ca.and_then(|found| Some((file(report, "keys_ca", found, context.base)?, found.span)));
    let trust = keys_ca.as_ref().map(|(path, span)| Trust { path: path.clone(), at: report.at(*span) });
    if let Some(address) = address {
        let (tls, keys_ca) = (BackendTls::verified_by(trust, report.at(section.span)), keys_ca.map(|(path, _)| path));
        return Some(TokenKeys::Url(Box::new(KeysUrl { address, keys_ca, keys_refresh: refresh, tls })));
    }
    Some(TokenKeys::File { keys_file: keys_file? })
}

/// One text, or an array of some.
fn texts<'r>(section: &mut Section<'r, '_>, key: &'static str, most: usize) -> Vec<Found<&'r str>> {
    let report = section.report;
    let Some(entry) = section.forms(key, &[Form::String, Form::List(&[Form::String])]) else { return Vec::new() };
    let texts = list(report, entry, key, |node: &'r Node<'_>| string(report, key, node));
    if texts.len() > most {
        report.error(entry.key_span, format!("`{key}` has more than {most} texts"), "use fewer");
    }
    texts
}

fn algorithms(section: &mut Section<'_, '_>) -> Vec<String> {
    let report = section.report;
    section.default_is("algorithms", || ALGORITHMS_DEFAULT.into_iter().collect());
    let Some(found) = section.list("algorithms", &[Form::Words(&ALGORITHMS)]) else {
        return ALGORITHMS_DEFAULT.map(str::to_string).to_vec();
    };
    if found.value.is_empty() {
        report.error(found.span, "`algorithms` names none: no token would be good", "name the issuer's");
    }
    let algorithm = |node| {
        let Found { value, span } = string(report, "algorithms", node)?;
        if ALGORITHMS.contains(&value) {
            return Some(value.to_string());
        }
        let (what, fix) = refused_algorithm(value);
        report.error(span, what, fix);
        None
    };
    found.value.iter().filter_map(algorithm).collect()
}

fn refused_algorithm(name: &str) -> (String, String) {
    let name = shown(name);
    let taken = format!("use {}", one_of(ALGORITHMS));
    match name.as_str() {
        "none" => ("tokens that nobody has signed prove nothing".into(), taken),
        "HS256" | "HS384" | "HS512" => {
            let what = format!("\"{name}\" is by a secret that whoever checks tokens could make them with");
            (what, format!("have the issuer sign with a private key: {taken}"))
        }
        _ => (format!("\"{name}\" is no algorithm that is taken"), taken),
    }
}

fn claims(section: &mut Section<'_, '_>) -> Vec<(String, String)> {
    let report = section.report;
    let Some(entry) = section.forms("claims_to", &[Form::Strings]) else { return Vec::new() };
    let Value::Table(entries) = &entry.node.value else {
        mismatch::<()>(report, "claims_to", "a table such as { X-User = \"sub\" }", &entry.node);
        return Vec::new();
    };
    if entries.len() > CLAIMS_MAX {
        report.error(entry.key_span, format!("`claims_to` has more than {CLAIMS_MAX} fields"), "use fewer");
        return Vec::new();
    }
    let mut claims: Vec<(String, String)> = Vec::new();
    for Entry { key, key_span, node, .. } in entries {
        let name = proven_name(report, key, *key_span);
        let (Some(name), Some(claim)) = (name, string(report, "claims_to", node)) else { continue };
        if claim.value.is_empty() {
            report.error(claim.span, "a claim has a name", "write it as the token has it, such as \"sub\"");
        }
        if claims.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            twice(report, name, *key_span);
        }
        claims.push((name.to_string(), claim.value.to_string()));
    }
    claims
}

fn twice(report: &Report<'_>, name: &str, span: Span) {
    let what = format!("`claims_to` has \"{name}\" twice: case does not tell fields apart");
    report.error(span, what, "remove one of the two");
}

/// A text that is compared, or written in quotes.
fn printable(report: &Report<'_>, key: &str, found: Found<&str>) {
    let text = found.value;
    let is_fit = !text.is_empty() && text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
    if !is_fit {
        let what = format!("`{key}`: \"{}\" is no text for it", shown(text));
        report.error(found.span, what, format!("use 1 to {TEXT_BYTES_MAX} bytes without control characters"));
    }
}
