//! Questions about requests that another service answers: who may come in, and who that is (forward auth).
//!
//! A question is a GET without a body. It has the request's fields, and says in X-Forwarded-Method and X-Forwarded-Uri
//! what the request is: as it is matched by routes, which is what servers are asked for.

use propylon_config::BackendId;
use propylon_http::h1::{
    Field, Limits, Name, Parsed, RequestHead, ResponseHead, is_same_or_lookalike, parse_request, write_line,
};

/// Limits on questions: those of requests have been kept already.
const LIMITS: Limits = Limits { head_bytes: 1 << 20, headers: 10_000 };
/// Fields of a request that are no question's: what is asked for under a condition, or in part, is not the question,
/// and other services have other fields for what is told in ours.
const KEPT_OUT: [&str; 17] = [
    "Content-Length",
    "Content-Encoding",
    "Expect",
    "If-Match",
    "If-None-Match",
    "If-Modified-Since",
    "If-Unmodified-Since",
    "If-Range",
    "Range",
    "X-Forwarded-Method",
    "X-Forwarded-Uri",
    "X-HTTP-Method",
    "X-HTTP-Method-Override",
    "X-Method-Override",
    "X-Original-Method",
    "X-Original-Uri",
    "X-Original-Url",
];

/// Another service that is asked, and what is done with its answer.
pub struct Forward {
    pub backend: BackendId,
    /// Host of questions, in place of the requests'.
    pub host: Option<String>,
    path: Option<String>,
    send: Option<Vec<String>>,
    copy: Vec<String>,
    user_from: Option<String>,
    /// Fields that routes tell the servers of questions: no client's to send there.
    told: Vec<String>,
}

/// A question: a request, with its bytes.
pub struct Question {
    pub head: RequestHead,
    pub text: Vec<u8>,
}

impl Forward {
    pub fn new(config: &propylon_config::Forward, told: Vec<String>) -> Forward {
        let propylon_config::Forward { backend, host, path, send, copy, user_from, .. } = config.clone();
        Forward { backend, host, path, send, copy, user_from, told }
    }

    /// The question about a request. `withheld`: fields that its client cannot send.
    pub(crate) fn question(&self, (head, text): (&RequestHead, &[u8]), withheld: &[String]) -> Option<Question> {
        let target = head.target(text).concat();
        let mut question = Vec::with_capacity(text.len() + 256);
        question.extend_from_slice(b"GET ");
        match &self.path {
            Some(path) => question.extend_from_slice(path.as_bytes()),
            // `*` is no resource to be had (RFC 9112 §3.2.4).
            None if target == b"*" => question.push(b'/'),
            None => question.extend_from_slice(&target),
        }
        match head.host.bytes(text) {
            [] => question.extend_from_slice(b" HTTP/1.0\r\n"),
            host => {
                question.extend_from_slice(b" HTTP/1.1\r\n");
                write_line(b"Host", host, &mut question);
            }
        }
        for field in head.fields.iter().filter(|field| self.is_sent(field, text, withheld)) {
            write_line(field.name.bytes(text), field.value.bytes(text), &mut question);
        }
        question.extend_from_slice(b"\r\n");
        let mut own = RequestHead::default();
        match parse_request(&question, &LIMITS, &mut own) {
            Ok(Parsed::Complete) => {}
            _ => return None,
        }
        let secrets: Vec<&[u8]> =
            head.fields.iter().filter(|field| field.secret).map(|field| field.name.bytes(text)).collect();
        own.fields.keep_secret(|field| secrets.contains(&field.name.bytes(&question)));
        own.fields.tell(&mut question, "X-Forwarded-Method", head.method_text.bytes(text));
        own.fields.tell(&mut question, "X-Forwarded-Uri", &target);
        Some(Question { head: own, text: question })
    }

    fn is_sent(&self, field: &Field, text: &[u8], withheld: &[String]) -> bool {
        let name = field.name.bytes(text);
        let is = |other: &str| is_same_or_lookalike(name, other);
        // A client's own proof is asked about, also where servers get another in its place.
        let is_forged = withheld.iter().chain(&self.told).any(|own| is(own)) && !is("Authorization");
        if is_forged || KEPT_OUT.iter().any(|own| is(own)) {
            return false;
        }
        match field.kind {
            // As the listener trusts its clients, which is seen to where the question is written.
            Name::XForwardedFor
            | Name::XForwardedHost
            | Name::XForwardedProto
            | Name::XForwardedOther
            | Name::Forwarded => true,
            _ => field.forward && self.send.as_ref().is_none_or(|send| send.iter().any(|own| is_named(name, own))),
        }
    }

    /// Identity of a request that an answer lets in, with the fields that servers get; `None` where it names several
    /// users.
    pub fn identity(&self, answer: &ResponseHead, text: &[u8]) -> Option<crate::Identity> {
        let of = |name: &str| {
            let is_it = |field: &&Field| field.forward && is_named(field.name.bytes(text), name);
            let values = answer.fields.iter().filter(is_it).map(|field| field.value.bytes(text));
            values.filter(|value| !value.is_empty()).map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let mut users = self.user_from.as_deref().map_or_else(Vec::new, of);
        if users.len() > 1 {
            return None;
        }
        let fields = self.copy.iter().flat_map(|name| of(name).into_iter().map(|value| (name.clone(), value)));
        Some(crate::Identity { user: users.pop(), fields: fields.collect() })
    }
}

fn is_named(name: &[u8], other: &str) -> bool {
    name.eq_ignore_ascii_case(other.as_bytes())
}

#[cfg(test)]
mod tests;
