//! TLS to nginx's servers, and the backend that has it: the same servers asked in another way are another backend.

use std::collections::BTreeMap;

use super::reader::{Place, Reader};
use super::servers::target_parts;
use crate::plan::{Plan, name_of, quoted};
use crate::words::Directive;

/// `tls` of a backend.
pub(super) type Tls = BTreeMap<String, String>;

/// Characters of a name at most that a number is put behind.
const BASE_MAX: usize = 50;

/// How the servers of a `proxy_pass` or `grpc_pass` are spoken to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Towards {
    pub(super) tls: Option<Tls>,
    /// `protocol` of the backend, where it is not HTTP/1.1.
    pub(super) protocol: Option<String>,
}

impl Towards {
    /// How a location's servers are spoken to by a target, which begins with its scheme.
    pub(super) fn of(reader: &Reader<'_>, place: &Place<'_>, location: &Directive, target: &str) -> Towards {
        let is_grpc = location.find("grpc_pass").is_some();
        let protocol = is_grpc.then(|| quoted("h2"));
        let Some(rest) = target.strip_prefix("https://") else { return Towards { tls: None, protocol } };
        let (authority, _) = target_parts(rest);
        let find = finder(place, location);
        let mut tls = Tls::new();
        let is_verified = find("verify").is_some_and(|each| each.word(1) == "on");
        if is_verified {
            tls.extend(find("trusted_certificate").map(|each| ("ca".to_owned(), quoted(each.word(1)))));
        } else {
            tls.insert("verify".into(), "false".into());
        }
        // Certificates are for the name in the target, where none is written.
        let host = authority.split(':').next().unwrap_or_default();
        let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c));
        let is_upstream = is_verified && is_name && reader.upstreams.contains_key(authority);
        let name = match find("name").map(|each| each.word(1)) {
            None | Some("$proxy_host") => Some(host).filter(|_| is_upstream),
            name => name.filter(|name| !name.contains('$')),
        };
        tls.extend(name.map(|name| ("server_name".to_owned(), quoted(name))));
        let pair = find("certificate").zip(find("certificate_key")).map(|(chain, key)| (chain.word(1), key.word(1)));
        tls.extend(
            pair.filter(|(chain, key)| chain == key).map(|(chain, _)| ("certificate".to_owned(), quoted(chain))),
        );
        Towards { tls: Some(tls), protocol }
    }

    /// Name of the backend that a target has, or is to have: of servers that are asked in this way.
    pub(super) fn name(&self, plan: &Plan, authority: &str, line: usize) -> String {
        let known = |name: &str| plan.backends.iter().find(|each| each.name == name);
        let fits = |name: &String| {
            known(name).is_none_or(|each| each.tls == self.tls && each.keys.get("protocol") == self.protocol.as_ref())
        };
        let mut first = name_of(authority);
        let base: String = first.chars().take(BASE_MAX).collect();
        // Some of the same servers may be asked in plaintext.
        if known(&first).is_some_and(|each| each.tls.is_some() != self.tls.is_some()) {
            first += if self.tls.is_some() { "-tls" } else { "-plaintext" };
        }
        if fits(&first) {
            return first;
        }
        // One of as many as there are backends, and one more, is free.
        let numbered = |number: usize| match number {
            0 => format!("{base}-{line}"),
            number => format!("{base}-{line}-{}", number + 1),
        };
        (0..=plan.backends.len()).map(numbered).find(fits).unwrap_or(first)
    }

    /// Tells what of a new backend's TLS is not as it should be.
    pub(super) fn tell(&self, reader: &mut Reader<'_>, place: &Place<'_>, location: &Directive, name: &str) {
        let Some(tls) = &self.tls else { return };
        if tls.contains_key("verify") {
            let fix = "nginx has not verified these servers' certificates, and this does not: remove verify = false \
                       where it can";
            reader.plan.note(location.line, format!("[backend.{name}]"), fix);
        }
        let find = finder(place, location);
        if let Some(each) = find("name").filter(|each| each.word(1).contains('$') && each.word(1) != "$proxy_host") {
            let fix = format!(
                "certificates are for one name, or that of each server's address: write `server_name` in `tls` of \
                 [backend.{name}]"
            );
            reader.plan.note(each.line, each.text(), fix);
        }
        if let Some(each) = find("certificate").filter(|_| !tls.contains_key("certificate")) {
            let fix = format!(
                "write its chain and its key in one file, and name that as `certificate` in `tls` of [backend.{name}]"
            );
            reader.plan.note(each.line, each.text(), fix);
        }
    }
}

/// Finds directives on the TLS of a location's servers by the ends of their names.
fn finder<'d>(place: &Place<'d>, location: &'d Directive) -> impl Fn(&str) -> Option<&'d Directive> + use<'d> {
    let blocks = [location, place.server, place.http];
    let kind = if location.find("grpc_pass").is_some() { "grpc_ssl_" } else { "proxy_ssl_" };
    move |end: &str| blocks.into_iter().find_map(|block| block.find(&format!("{kind}{end}")))
}
