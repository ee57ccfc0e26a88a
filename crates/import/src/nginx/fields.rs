//! Changes of requests and responses by nginx, limits and compression.

use super::locations;
use super::reader::{Reader, bind, location_path};
use super::servers::target_parts;
use super::subrequests::told;
use crate::changes::{Changes, Compress, Kind, Side, groups, plain, whole};
use crate::plan::{Path, escaped};
use crate::words::Directive;

/// Longest body where nothing is written.
const BODY_BYTES: u64 = 1 << 20;

impl Reader<'_> {
    /// Host and Location as nginx has them by itself: servers are asked for the name in `proxy_pass`, and where they
    /// redirect to themselves clients are led to the location.
    pub(super) fn passed(&mut self, blocks: &[&Directive], changes: &mut Changes) {
        let [location, ..] = blocks else { return };
        let Some(pass) = location.find("proxy_pass") else { return };
        let Some((scheme, rest)) = pass.word(1).split_once("://") else { return };
        let (authority, uri) = target_parts(rest);
        let port = if scheme == "https" { ":443" } else { ":80" };
        let host = if authority.starts_with("unix:") { "localhost" } else { authority.trim_end_matches(port) };
        let all = |name: &'static str| {
            let block = blocks.iter().find(|block| block.find(name).is_some());
            block.into_iter().flat_map(|block| block.inner()).filter(move |each| each.name() == name)
        };
        let mut own = all("proxy_set_header").filter(|each| each.word(1).eq_ignore_ascii_case("host"));
        let is_implied = own.all(|each| each.word(2) == "$proxy_host");
        if is_implied && (host.contains('$') || changes.host(host).is_err()) {
            let fix = "nginx asks the servers for the name in it, and here they are asked for the client's: write \
                       `request.host` in its routes, or proxy_set_header Host $host";
            self.plan.note(pass.line, pass.text(), fix);
        }
        if rest.contains('$') {
            return;
        }
        let path = match location_path(location.arguments()) {
            Some(Path::Prefix(text) | Path::Exact(text)) => text,
            _ => "/".to_owned(),
        };
        let implied =
            Directive { line: pass.line, words: vec!["proxy_redirect".into(), "default".into()], block: None };
        let all: Vec<&Directive> = all("proxy_redirect").collect();
        for each in if all.is_empty() { vec![&implied] } else { all } {
            let done = match (each.word(1), each.word(2)) {
                ("off", _) => break,
                ("default", _) if uri.starts_with('/') => changes.location(pass.word(1), &path),
                ("default", _) => changes.location(&format!("{}/", pass.word(1)), "/"),
                (from, _) if from.starts_with('~') || from.contains('$') => Err("it is a pattern".into()),
                (from, to) => value(to)
                    .ok_or("its value is made of what is no fact here".into())
                    .and_then(|to| changes.location(from, &to)),
            };
            if let Err(what) = done {
                self.plan.note(
                    each.line,
                    each.text(),
                    format!("{what}; write it as `response.location` of its routes"),
                );
            }
        }
    }

    /// Rates and requests at once: those of the innermost block that has any.
    fn limits(&mut self, blocks: &[&Directive], changes: &mut Changes) {
        const FIX: &str = "its zone is not in this file, or counts by what is no key here: write `limit` in its routes";
        for name in ["limit_req", "limit_conn"] {
            let Some(block) = blocks.iter().find(|block| block.find(name).is_some()) else { continue };
            for each in block.inner().iter().filter(|each| each.name() == name) {
                match self.zones.limit(each).map(|limit| (changes.limit(&limit.table), limit.differs)) {
                    Some((Ok(()), differs)) => {
                        differs.into_iter().for_each(|differs| self.plan.note(each.line, each.text(), differs));
                    }
                    _ => self.plan.note(each.line, each.text(), FIX),
                }
            }
        }
    }

    /// Fields, longest body and compression: those of the innermost block that has any of that name.
    pub(super) fn changes(&mut self, http: &Directive, server: &Directive, location: &Directive) -> Changes {
        let mut changes = Changes::default();
        let blocks = [location, server, http];
        let told = told(&blocks);
        for name in ["proxy_set_header", "add_header", "proxy_hide_header"] {
            let Some(block) = blocks.iter().find(|block| block.find(name).is_some()) else { continue };
            for each in block.inner().iter().filter(|each| each.name() == name) {
                // Fields of a service that is asked are copied of its answer, where they have its names.
                let is_told = |(variable, field): &(String, String)| variable == each.word(2) && field == each.word(1);
                if name == "proxy_set_header" && told.iter().any(is_told) {
                    continue;
                }
                self.tell_line(each);
                // nginx sends a name without the port that clients write at a port of one's own.
                if is_bare_host(each) && has_own_port(server) && changes.host("{request.host}").is_ok() {
                    continue;
                }
                if let Err(what) = field(each, &mut changes) {
                    let kind = if name == "proxy_set_header" { "request" } else { "response" };
                    let rest = if kind == "request" { changes.withhold(each.word(1)) } else { "" };
                    let fix = format!("{what}; write what it should be in `{kind}` of its routes{rest}");
                    self.plan.note(each.line, each.text(), fix);
                }
            }
        }
        self.limits(&blocks, &mut changes);
        self.pace(&blocks, &mut changes);
        self.bodies(&blocks, &mut changes);
        self.repeats(&blocks, &mut changes);
        self.pages(server, &blocks, &mut changes);
        let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
        match find("client_max_body_size").map(|each| (each, bytes(each.word(1)))) {
            // Longer bodies are refused where nothing is written, too.
            None => _ = changes.body_limit(BODY_BYTES),
            Some((_, Some(0))) => {}
            Some((_, Some(bytes))) if changes.body_limit(bytes).is_ok() => {}
            Some((each, _)) => self.plan.note(each.line, each.text(), "write it as `body_limit` of its routes"),
        }
        let is_on = |name: &str| find(name).is_some_and(|each| each.word(1) == "on");
        let mut compress = Compress::default();
        for (name, coding) in [("brotli", "br"), ("gzip", "gzip")] {
            if is_on(name) {
                compress.encodings.push(coding.to_owned());
            }
        }
        if let Some(each) = find("gzip").or_else(|| find("brotli")).filter(|_| !compress.encodings.is_empty()) {
            let types = find("gzip_types").or_else(|| find("brotli_types")).map_or(&[][..], Directive::arguments);
            if !types.iter().any(|word| word == "*") {
                compress.types.push("text/html".into());
                types.iter().for_each(|word| {
                    if !compress.types.contains(word) {
                        compress.types.push(word.clone());
                    }
                });
            }
            compress.minimum = Some(find("gzip_min_length").and_then(|each| bytes(each.word(1))).unwrap_or(20));
            compress.level =
                find("gzip_comp_level").and_then(|each| each.word(1).parse().ok()).filter(|_| is_on("gzip"));
            if let Err(what) = changes.compress(&compress) {
                self.plan.note(each.line, each.text(), format!("{what}; write `compress` in its routes"));
            }
        }
        changes
    }

    /// Tells of a field of responses that is on others than with nginx.
    fn tell_line(&mut self, each: &Directive) {
        if each.name() == "add_header" && each.word(3) != "always" && !each.word(2).is_empty() {
            self.plan.note(each.line, each.text(), "errors have it as well here, as with `always`");
        }
    }

    /// Bytes in a second.
    fn pace(&mut self, blocks: &[&Directive], changes: &mut Changes) {
        let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
        let Some(each) = find("limit_rate").filter(|each| each.word(1) != "0") else { return };
        let after = find("limit_rate_after").map_or(Some(0), |each| bytes(each.word(1)));
        let table = bytes(each.word(1)).zip(after).map(|(rate, after)| match after {
            0 => format!("{{ download = {rate} }}"),
            after => format!("{{ download = {rate}, after = {after} }}"),
        });
        if table.is_none_or(|table| changes.key("throttle", &table).is_err()) {
            self.plan.note(each.line, each.text(), "write `throttle = { download = ... }` in its routes");
        }
    }

    /// Failures that are met with another attempt.
    fn repeats(&mut self, blocks: &[&Directive], changes: &mut Changes) {
        let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
        let Some(each) = find("proxy_next_upstream") else { return };
        if each.word(1) == "off" {
            // One attempt is no more than before.
            let _ = changes.key("retries", "0");
            return;
        }
        let mut on: Vec<String> = Vec::new();
        let mut lost = Vec::new();
        for word in each.arguments() {
            match word.as_str() {
                "error" => on.extend(["\"connect\"".to_owned(), "\"reset\"".to_owned()]),
                "timeout" => on.push("\"timeout\"".to_owned()),
                "http_500" | "http_502" | "http_503" | "http_504" => on.push(word["http_".len()..].to_owned()),
                word => lost.push(word.to_owned()),
            }
        }
        let tries = find("proxy_next_upstream_tries").and_then(|each| each.word(1).parse::<u32>().ok());
        let attempts = tries.filter(|tries| *tries > 0).map_or(2, |tries| (tries - 1).min(10));
        let table = format!("{{ attempts = {attempts}, on = [{}] }}", on.join(", "));
        if on.is_empty() || changes.key("retries", &table).is_err() {
            self.plan.note(each.line, each.text(), "write `retries = { on = [...] }` in its routes");
        } else if !lost.is_empty() {
            let fix = format!("{} is met with no other attempt here", lost.join(", "));
            self.plan.note(each.line, each.text(), fix);
        }
    }

    /// Files that errors are answered with.
    fn pages(&mut self, server: &Directive, blocks: &[&Directive], changes: &mut Changes) {
        let Some(block) = blocks.iter().find(|block| block.find("error_page").is_some()) else { return };
        for each in block.inner().iter().filter(|each| each.name() == "error_page") {
            let Some((uri, statuses)) = each.arguments().split_last() else { continue };
            let is_file = uri.starts_with('/') && !uri.contains('$') && !statuses.is_empty();
            let location = locations::all(server).into_iter().find(|one| one.words.last() == Some(uri));
            let programs = ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "return", "alias"];
            let is_made = location.is_some_and(|location| programs.iter().any(|name| location.find(name).is_some()));
            let own = location.and_then(|location| location.find("root"));
            let root = own.or_else(|| blocks.iter().find_map(|block| block.find("root")));
            let root = root.map(|root| root.word(1)).filter(|root| root.starts_with('/') && !root.contains('$'));
            let mut trial = changes.clone();
            let is_done = root.filter(|_| is_file && !is_made).is_some_and(|root| {
                let file = format!("{}{uri}", root.trim_end_matches('/'));
                statuses.iter().all(|status| trial.page(status, &file).is_ok())
            });
            if !is_done {
                let fix =
                    "pages are carried over where they are files with the status of the error: write `error_pages`";
                self.plan.note(each.line, each.text(), fix);
                continue;
            }
            *changes = trial;
        }
        let is_on =
            |name: &str| blocks.iter().find_map(|block| block.find(name)).is_some_and(|each| each.word(1) == "on");
        if !changes.pages.is_empty() && (is_on("proxy_intercept_errors") || is_on("fastcgi_intercept_errors")) {
            let _ = changes.key("intercept_errors", "true");
        }
    }

    /// Changes of the path by a location: a URI in `proxy_pass`, or one `rewrite`.
    pub(super) fn path_changes(&mut self, location: &Directive, path: &Path, changes: &mut Changes) {
        const FIX: &str = "write what becomes of the path as `request.path` of its route";
        for each in location.inner().iter().filter(|each| each.name() == "rewrite") {
            let is_path = each.word(3) == "break" && each.word(2).starts_with('/');
            let to = groups(each.word(2), '$').filter(|_| is_path);
            if to.is_none_or(|to| changes.path_regex(&whole(each.word(1)), &to).is_err()) {
                self.plan.note(each.line, each.text(), FIX);
            }
        }
        let Some(pass) = location.find("proxy_pass") else { return };
        let Some((_, rest)) = pass.word(1).split_once("://") else { return };
        let (_, uri) = target_parts(rest);
        if !uri.starts_with('/') || rest.contains('$') {
            return;
        }
        let uri = uri.to_owned();
        let done = match location_path(location.arguments()) {
            _ if changes.path.is_some() => Ok(()),
            Some(Path::Prefix(prefix) | Path::Exact(prefix)) if prefix == uri => Ok(()),
            Some(Path::Exact(_)) => changes.path("replace", &uri),
            // A route by a pattern may be for paths in which the prefix ends within a segment.
            Some(Path::Prefix(prefix)) if uri == "/" && matches!(path, Path::Regex(_)) => {
                changes.path_regex(&format!("^{}/?", escaped(prefix.trim_end_matches('/'))), "/")
            }
            Some(Path::Prefix(prefix)) if uri == "/" => changes.path("strip", prefix.trim_end_matches('/')),
            Some(Path::Prefix(prefix)) => {
                changes.path_regex(&format!("^{}", escaped(&prefix)), &uri.replace('$', "$$"))
            }
            _ => Err("a pattern".into()),
        };
        if done.is_err() {
            self.plan.note(pass.line, pass.text(), FIX);
        }
    }
}

/// Whether it has servers asked for the client's host without a port.
fn is_bare_host(each: &Directive) -> bool {
    each.name() == "proxy_set_header" && each.word(1).eq_ignore_ascii_case("host") && each.word(2) == "$host"
}

/// Whether clients write a port behind the name of a server at one of its addresses.
pub(super) fn has_own_port(server: &Directive) -> bool {
    let all = server.inner().iter().filter(|each| each.name() == "listen").map(|each| bind(each.word(1)));
    all.into_iter().any(|bind| !bind.ends_with(":80") && !bind.ends_with(":443"))
}

/// A change of a field, as `proxy_set_header`, `add_header` and `proxy_hide_header` make it.
fn field(each: &Directive, changes: &mut Changes) -> Result<(), String> {
    let (name, lower) = (each.word(1), each.word(1).to_ascii_lowercase());
    let value = || value(&unescaped(each.word(2))).ok_or("its value is made of what is no fact here".to_owned());
    match (each.name(), lower.as_str()) {
        ("proxy_hide_header", _) => changes.field((Side::Response, Kind::Remove), name, ""),
        ("proxy_set_header", "host") => match each.word(2) {
            "$host" | "$http_host" | "$host:$server_port" => Ok(()),
            // Hosts that nginx sends by itself are set where the servers are known.
            "$proxy_host" => Ok(()),
            host => changes.host(host),
        },
        (
            "proxy_set_header",
            "connection" | "upgrade" | "x-forwarded-proto" | "x-forwarded-for" | "x-forwarded-host",
        ) => Ok(()),
        ("proxy_set_header", _) if each.word(2).is_empty() => changes.field((Side::Request, Kind::Remove), name, ""),
        ("proxy_set_header", _) => changes.field((Side::Request, Kind::Set), name, &value()?),
        _ if each.word(2).is_empty() => Ok(()),
        _ => changes.line(Side::Response, name, &value()?),
    }
}

/// Whether a field of a request is one that Propylon writes, or leaves out, by itself.
pub(super) fn is_own(name: &str) -> bool {
    const OWN: &[&str] = &["host", "content-length", "connection", "upgrade", "x-real-ip", "content-type"];
    let name = name.to_ascii_lowercase();
    OWN.contains(&name.as_str()) || name.starts_with("x-forwarded-")
}

/// A value with nginx's variables, where there are facts for them.
pub(super) fn value(text: &str) -> Option<String> {
    const FACTS: &[(&str, &str)] = &[
        ("$remote_addr", "{client.ip}"),
        ("$remote_port", "{client.port}"),
        ("$scheme", "{request.scheme}"),
        ("$host", "{request.host}"),
        ("$request_method", "{request.method}"),
        ("$request_uri", "{request.path}{request.query}"),
        ("$ssl_protocol", "{tls.version}"),
        ("$ssl_server_name", "{tls.server_name}"),
        ("$upstream_addr", "{upstream.server}"),
    ];
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&plain(&rest[..at]));
        let variable = &rest[at..];
        let end =
            variable[1..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(variable.len(), |end| end + 1);
        out.push_str(FACTS.iter().find(|(name, _)| *name == &variable[..end])?.1);
        rest = &variable[end..];
    }
    out.push_str(&plain(rest));
    Some(out)
}

/// A text whose escapes are nginx's: a line feed, a carriage return, a tab.
pub(super) fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, characters.clone().next()) {
            ('\\', Some(next @ ('n' | 'r' | 't' | '\\'))) => {
                out.push(match next {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    other => other,
                });
                characters.next();
            }
            _ => out.push(character),
        }
    }
    out
}

/// Bytes, with nginx's k, m and g.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}
