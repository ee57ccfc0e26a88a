//! Lines of haproxy that change requests and responses, or compress these.

use super::frontend::Frontend;
use super::lines::{Line, holding, is_change};
use crate::changes::{Changes, Compress, Kind, Side, groups, whole, with_facts};
use crate::plan::{Action, Route};

impl Frontend<'_> {
    pub(super) fn change(&mut self, routes: &mut [Route]) {
        let mut led: Vec<&mut Route> =
            routes.iter_mut().filter(|route| matches!(route.action, Action::Backend(_))).collect();
        self.change_all(&mut led);
    }

    /// Failures that are met with another attempt.
    fn repeats(&mut self, line: &Line, changes: &mut Changes) {
        let retries = holding(self.section, self.defaults, &["retries"]);
        let attempts = retries.and_then(|line| line.word(1).parse::<u8>().ok()).unwrap_or(3).min(10);
        let mut on: Vec<&str> = Vec::new();
        let mut lost = Vec::new();
        for word in &line.words[1..] {
            match word.as_str() {
                "none" => {}
                "conn-failure" => on.push("\"connect\""),
                "empty-response" => on.push("\"reset\""),
                "response-timeout" => on.push("\"timeout\""),
                "all-retryable-errors" => {
                    on.extend(["\"connect\"", "\"reset\"", "\"timeout\"", "500", "502", "503", "504"]);
                }
                "500" | "501" | "502" | "503" | "504" => on.push(word),
                word => lost.push(word.to_owned()),
            }
        }
        let table = match on.is_empty() {
            true => "0".to_owned(),
            false => format!("{{ attempts = {attempts}, on = [{}] }}", on.join(", ")),
        };
        if changes.key("retries", &table).is_err() {
            lost = line.words[1..].to_vec();
        }
        if !lost.is_empty() {
            let fix = format!("{} is met with no other attempt here: see `retries.on` of a route", lost.join(", "));
            self.plan.note(line.number, line.text(), fix);
        }
    }

    /// `http-error status 503 file PATH`: pages without a head.
    fn pages(&mut self, changes: &mut Changes) {
        for line in self.defaults.iter().chain(&self.section.lines).filter(|line| line.word(0) == "http-error") {
            let status = line.after("status").unwrap_or_default();
            let is_done = !line.has("hdr") && line.after("file").is_some_and(|file| changes.page(status, file).is_ok());
            if !is_done {
                self.plan.note(
                    line.number,
                    line.text(),
                    "write a file, and `error_pages` in the listener or in its routes",
                );
            }
        }
    }

    /// Gives routes what this section changes and compresses.
    pub(super) fn change_all(&mut self, routes: &mut [&mut Route]) {
        let section = self.section;
        let mut changes = Changes::default();
        let all: Vec<&Line> = self.defaults.iter().chain(&section.lines).filter(|line| is_change(line)).collect();
        let mut compress = Compress::default();
        let mut compression = None;
        if let Some(line) = holding(section, self.defaults, &["retry-on"])
            && section.kind != "frontend"
        {
            self.repeats(line, &mut changes);
        }
        self.pages(&mut changes);
        for line in all {
            let name = line.word(2).to_ascii_lowercase();
            let done = match (line.word(0), line.word(1)) {
                ("compression", "algo" | "algo-res") => {
                    compression = Some(line);
                    compress.encodings.clear();
                    if line.words[2..].iter().any(|word| ["gzip", "deflate", "raw-deflate"].contains(&word.as_str())) {
                        compress.encodings.push("gzip".into());
                    }
                    Ok(())
                }
                ("compression", "type" | "type-res") => {
                    compress.types.clone_from(&line.words[2..].to_vec());
                    Ok(())
                }
                ("compression", _) => Err("this is not carried over".into()),
                ("http-request", "set-header" | "add-header")
                    if ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"].contains(&name.as_str()) =>
                {
                    Ok(())
                }
                _ => change(line, &mut changes),
            };
            if let Err(what) = done {
                let key = match line.word(0) {
                    "compression" => "compress",
                    "http-request" => "request",
                    _ => "response",
                };
                let is_set = key == "request" && line.word(1) == "set-header" && line.words.len() == 4;
                let rest = if is_set { changes.withhold(line.word(2)) } else { "" };
                let fix = format!("{what}; write `{key}` in the routes that it is for{rest}");
                self.plan.note(line.number, line.text(), fix);
            }
        }
        if let Some(line) = compression.filter(|_| !compress.encodings.is_empty())
            && let Err(what) = changes.compress(&compress)
        {
            self.plan.note(line.number, line.text(), format!("{what}; write `compress` in its routes"));
        }
        for route in routes.iter_mut() {
            if let Err(what) = route.changes.then(&changes) {
                let name = format!("{} {}", section.kind, section.name);
                let fix = format!("what it changes is not carried over to all of its routes ({what}): write it there");
                self.plan.note(section.number, name, fix);
            }
        }
    }
}

/// Makes the change of a line.
fn change(line: &Line, changes: &mut Changes) -> Result<(), String> {
    let side = if line.word(0) == "http-request" { Side::Request } else { Side::Response };
    let (name, lower) = (line.word(2), line.word(2).to_ascii_lowercase());
    if line.has("if") || line.has("unless") {
        return Err("a change under a condition is not carried over".into());
    }
    let count = line.words.len();
    let value = || value(line.word(3)).ok_or("its value is made of what is no fact here".to_owned());
    match (line.word(1), side) {
        ("set-header", Side::Request) if lower == "host" && count == 4 => changes.host(&value()?),
        ("set-header", _) if count == 4 => changes.field((side, Kind::Set), name, &value()?),
        ("add-header", _) if count == 4 => changes.line(side, name, &value()?),
        ("del-header", _) if count == 3 => changes.field((side, Kind::Remove), name, ""),
        ("replace-path", Side::Request) if count == 4 => {
            let to = groups(line.word(3), '\\').ok_or("it is made of what is no group")?;
            changes.path_regex(&whole(name), &to)
        }
        ("set-path", Side::Request) if count == 3 && !name.contains('%') => changes.path("replace", name),
        ("set-path", Side::Request) if count == 3 => match name.split_once("%[path") {
            Some((prefix, "]")) if !prefix.contains('%') => changes.path_regex("^", &prefix.replace('$', "$$")),
            Some(("", rest)) => {
                let inside = rest.strip_prefix(",regsub(").and_then(|rest| rest.strip_suffix(")]"));
                let (pattern, to) =
                    inside.and_then(|inside| inside.split_once(',')).ok_or("it is not made of a pattern alone")?;
                let is_plain = !to.contains([',', '\'', '"']) && !pattern.contains(['\'', '"']);
                let to = groups(to, '\\').filter(|_| is_plain).ok_or("it is made of what is no group")?;
                changes.path_regex(pattern, &to)
            }
            _ => Err("it is not made of the path alone".into()),
        },
        _ => Err("a change of this kind is not carried over".into()),
    }
}

/// A value with haproxy's expressions, where there are facts for them.
fn value(text: &str) -> Option<String> {
    const FACTS: &[(&str, &str)] = &[
        ("%[src]", "{client.ip}"),
        ("%[src_port]", "{client.port}"),
        ("%[method]", "{request.method}"),
        ("%[ssl_fc_sni]", "{tls.server_name}"),
        ("%[ssl_fc_protocol]", "{tls.version}"),
        ("%[ssl_fc_alpn]", "{tls.alpn}"),
        ("%ci", "{client.ip}"),
        ("%cp", "{client.port}"),
        ("%%", "%"),
    ];
    with_facts(text, '%', FACTS)
}
