//! TLS of nginx's servers: certificates, versions, and the certificates that clients have to show.

use std::collections::BTreeMap;

use super::reader::{Listen, Place, Reader};
use crate::plan::{Certificate, quoted};
use crate::words::Directive;

impl Reader<'_> {
    pub(super) fn tls(&mut self, http: &Directive, server: &Directive, listens: &[Listen]) {
        let protocols = [server, http].into_iter().find_map(|block| block.find("ssl_protocols"));
        let is_modern = protocols.is_some_and(|each| each.arguments() == ["TLSv1.3"]);
        let asked = client_auth(http, server);
        for listen in listens.iter().filter(|listen| listen.is_tls) {
            let Some(listener) = self.plan.listeners.iter_mut().find(|each| each.name == listen.listener) else {
                continue;
            };
            for certificate in certificates(&[server, http]) {
                if !listener.certificates.contains(&certificate) {
                    listener.certificates.push(certificate);
                }
            }
            if is_modern {
                listener.policy = Some("modern");
            }
            let Some((each, auth)) = &asked else { continue };
            if listener.client_auth.is_empty() {
                listener.client_auth.clone_from(auth);
            } else if listener.client_auth != *auth {
                let fix = "another server at this address asks for certificates of other authorities: its routes are \
                           answered with 403; give it an address of its own, or write `match = { client = ... }` there";
                self.plan.note(each.line, each.text(), fix);
            }
        }
        if let Some(each) = protocols.filter(|_| listens.iter().any(|listen| listen.is_tls))
            && each.arguments().iter().any(|version| ["TLSv1", "TLSv1.1", "SSLv3"].contains(&version.as_str()))
        {
            let fix = "TLS before 1.2 is not spoken: clients from before 2014 are refused";
            self.plan.note(each.line, each.text(), fix);
        }
    }

    /// Whether routes of a server at a listener require a certificate; none where those that the listener takes are not
    /// the server's.
    pub(super) fn requires_certificate(&self, place: &Place<'_>, listen: &Listen) -> Option<bool> {
        if !listen.is_tls {
            return Some(false);
        }
        let is_required = verification(place.http, place.server).is_some_and(|each| each.word(1) == "on");
        let Some((_, auth)) = client_auth(place.http, place.server) else { return Some(is_required) };
        let listener = self.plan.listeners.iter().find(|each| each.name == listen.listener);
        listener.is_some_and(|each| each.client_auth == auth).then_some(is_required)
    }
}

fn verification<'d>(http: &'d Directive, server: &'d Directive) -> Option<&'d Directive> {
    [server, http].into_iter().find_map(|block| block.find("ssl_verify_client"))
}

/// `client_auth` of the listener of a server that asks clients for certificates, and the directive that says so.
fn client_auth<'d>(http: &'d Directive, server: &'d Directive) -> Option<(&'d Directive, BTreeMap<String, String>)> {
    let find = |name: &str| [server, http].into_iter().find_map(|block| block.find(name));
    let each = verification(http, server).filter(|each| ["on", "optional"].contains(&each.word(1)))?;
    let ca = find("ssl_client_certificate").or_else(|| find("ssl_trusted_certificate"))?;
    // Other servers at this address may not ask; routes of this one require it.
    let mut auth = BTreeMap::from([("ca", quoted(ca.word(1))), ("mode", quoted("optional"))]);
    auth.extend(find("ssl_crl").map(|each| ("crl", quoted(each.word(1)))));
    let depth = find("ssl_verify_depth").map_or(Some(1), |each| each.word(1).parse::<u8>().ok());
    auth.extend(depth.map(|depth| ("depth", depth.min(6).to_string())));
    Some((each, auth.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
}

/// Certificates of the innermost block that has any.
pub(super) fn certificates(blocks: &[&Directive]) -> Vec<Certificate> {
    let Some(block) = blocks.iter().find(|block| block.find("ssl_certificate").is_some()) else { return Vec::new() };
    let all = |name: &'static str| block.inner().iter().filter(move |each| each.name() == name);
    let pairs = all("ssl_certificate").zip(all("ssl_certificate_key"));
    pairs
        .map(|(chain, key)| (chain.word(1).to_owned(), key.word(1).to_owned()))
        .map(|(chain, key)| if chain == key { Certificate::Path(chain) } else { Certificate::Pair { chain, key } })
        .collect()
}
