//! Answers of the engine's own, which are whole when they are judged: compressed at once, and those whose bodies stay
//! the same once and for all.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::rc::Rc;

use propylon_config::{Compress, Encoding};
use propylon_http::h1::{self, Limits, Method, Parsed, ResponseHead, parse_response};

use crate::encoders::Encoders;
use crate::judge::{Answered, Asked, Skip};
use crate::plan::Plan;

/// Body in each coding, once it was asked for; in the order of [`Encoding::ALL`].
pub type Kept = [OnceCell<Box<[u8]>>; Encoding::ALL.len()];

/// Answer as it would go out.
#[derive(Clone, Copy)]
pub struct Own<'a> {
    pub status: u16,
    pub fields: &'a [(&'a str, &'a str)],
    pub content_type: &'a str,
    pub body: &'a [u8],
    /// Bytes of the whole of which the body is a part.
    pub whole: usize,
}

/// Answer as it goes out.
pub struct Coded<'k> {
    pub fields: Vec<(String, String)>,
    /// Body in a coding; none: it goes as it is.
    pub body: Option<(Encoding, Cow<'k, [u8]>)>,
    /// Reason for which the answer is not compressed, where it could be.
    pub skip: Option<Skip>,
}

/// Codes an answer; `None`: it goes as it is. `kept` is what there is of a body that stays the same.
pub fn code<'k>(
    rules: &Compress,
    asked: &Asked<'_>,
    own: &Own<'_>,
    (encoders, kept): (&Rc<Encoders>, Option<&'k Kept>),
) -> Option<Coded<'k>> {
    // A part is no answer to compress, but says what the whole would: how it depends on the request.
    let (is_part, status) = (own.status == 206, if own.status == 206 { 200 } else { own.status });
    let text = text(status, own);
    let mut head = ResponseHead::default();
    // HEAD has the head of GET, for which the body is needed.
    let whole = h1::Asked { method: Method::Get, upgrade: None };
    let limits = Limits { head_bytes: text.len(), headers: own.fields.len() + 2 };
    if parse_response(&text, whole, &limits, &mut head) != Ok(Parsed::Complete) {
        return None;
    }
    let kept_of = |encoding| kept?.get(Encoding::ALL.iter().position(|known| *known == encoding)?);
    let known = |encoding| kept_of(encoding)?.get();
    let answered = Answered { head: &head, text: &text, lines: b"" };
    let mut plan = Plan::of_known(rules, asked, answered, (encoders, &|encoding| known(encoding).is_some()))?;
    if is_part {
        plan.rewrite.encoding = None;
        plan.rewrite.weakens = false;
    }
    let body = match plan.rewrite.encoding {
        None => None,
        Some(encoding) => {
            let body = match (known(encoding), plan.lease) {
                (Some(known), _) => Cow::Borrowed(&known[..]),
                (None, lease) => {
                    let (mut lease, mut out) = (lease?, Vec::new());
                    let is_done = lease.write(own.body, &mut out).and_then(|()| lease.finish(&mut out)).is_ok();
                    if !is_done {
                        return None;
                    }
                    match kept_of(encoding) {
                        Some(cell) => Cow::Borrowed(&cell.get_or_init(|| out.into())[..]),
                        None => Cow::Owned(out),
                    }
                }
            };
            Some((encoding, body))
        }
    };
    let mut fields: Vec<(String, String)> = Vec::new();
    let kept = own.fields.iter().filter(|(name, _)| plan.rewrite.keeps(name.as_bytes()));
    fields.extend(kept.map(|(name, value)| (name.to_string(), value.to_string())));
    let lines = plan.rewrite.lines(answered).into_iter();
    fields.extend(lines.map(|(name, value)| (name.to_string(), String::from_utf8_lossy(&value).into_owned())));
    Some(Coded { fields, body, skip: plan.skip })
}

/// The head as it would go out.
fn text(status: u16, own: &Own<'_>) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} \r\n").into_bytes();
    for (name, value) in own.fields {
        if !value.bytes().any(|byte| byte.is_ascii_control()) && !name.eq_ignore_ascii_case("content-range") {
            h1::write_line(name.as_bytes(), value.as_bytes(), &mut text);
        }
    }
    if !own.body.is_empty() && !own.content_type.is_empty() {
        h1::write_line(b"Content-Type", own.content_type.as_bytes(), &mut text);
    }
    text.extend_from_slice(format!("Content-Length: {}\r\n\r\n", own.whole).as_bytes());
    text
}

#[cfg(test)]
mod tests {
    use propylon_config::{Action, Source};
    use propylon_http::h1::{RequestHead, parse_request};

    use super::*;

    fn rules() -> Compress {
        let text = "[listener.web]\nbind = \"127.0.0.1:0\"\n[backend.a]\nservers = [\"127.0.0.1:1\"]\n[[route]]\n\
                    backend = \"a\"\ncompress = { minimum = 100 }\n";
        let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        let config = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        assert!(matches!(config.routes[0].action, Action::Backend(_)));
        config.routes[0].steps.compress.clone().expect("rules")
    }

    /// Fields, coding and bytes of an answer, and why it is plain.
    fn coded(request: &str, own: &Own<'_>, kept: Option<&Kept>) -> Option<(String, Option<(Encoding, usize)>)> {
        let text = format!("{request}\r\n\r\n");
        let mut head = RequestHead::default();
        let limits = Limits { head_bytes: 4096, headers: 20 };
        assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete));
        let asked = Asked { head: &head, text: text.as_bytes(), is_tls: false, is_identified: false };
        let coded = code(&rules(), &asked, own, (&Rc::default(), kept))?;
        let fields = coded.fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        Some((fields, coded.body.map(|(encoding, body)| (encoding, body.len()))))
    }

    fn own<'a>(body: &'a [u8], status: u16, fields: &'a [(&'a str, &'a str)]) -> Own<'a> {
        Own { status, fields, content_type: "text/html", body, whole: 1_000 }
    }

    const FIELDS: &[(&str, &str)] = &[("ETag", "\"x\""), ("Accept-Ranges", "bytes"), ("Vary", "Accept")];
    const GZIP: &str = "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip";

    #[test]
    fn an_answer_says_what_a_servers_would_and_its_body_is_coded_once() {
        let (body, kept) = (vec![b'a'; 1_000], Kept::default());
        let (fields, coding) = coded(GZIP, &own(&body, 200, FIELDS), Some(&kept)).expect("coded");
        assert_eq!(fields, "Vary: Accept\nContent-Encoding: gzip\nETag: W/\"x\"\nVary: Accept-Encoding\n");
        let (encoding, length) = coding.expect("a body");
        assert!(encoding == Encoding::Gzip && length < 100, "{length}");
        // From here on this is what there is.
        let others = Kept::default();
        others[2].set(Box::from(&b"kept"[..])).expect("it is empty");
        let (_, coding) = coded(GZIP, &own(&body, 200, FIELDS), Some(&others)).expect("coded");
        assert_eq!(coding, Some((Encoding::Gzip, 4)));
        assert!(kept[2].get().is_some() && kept[0].get().is_none());
        // The head of HEAD is that of GET.
        let head = GZIP.replace("GET", "HEAD");
        assert_eq!(
            coded(&head, &own(&body, 200, FIELDS), None).expect("coded").1.map(|(_, length)| length),
            Some(length)
        );
    }

    #[test]
    fn a_part_a_short_one_and_one_that_is_not_wanted_coded_go_as_they_are() {
        let body = vec![b'a'; 1_000];
        let part = [("ETag", "\"x\""), ("Content-Range", "bytes 0-9/1000")];
        let asked = format!("{GZIP}\r\nRange: bytes=0-9");
        let (fields, coding) = coded(&asked, &own(&body[..10], 206, &part), None).expect("looked at");
        let said = "ETag: \"x\"\nContent-Range: bytes 0-9/1000\nVary: Accept-Encoding\n";
        assert_eq!((&*fields, coding), (said, None));
        let plain = coded("GET / HTTP/1.1\r\nHost: a", &own(&body, 200, &[]), None).expect("looked at");
        assert_eq!(plain, ("Vary: Accept-Encoding\n".into(), None));
        assert_eq!(coded(GZIP, &Own { whole: 99, ..own(&body[..99], 200, &[]) }, None), None);
        assert_eq!(coded(GZIP, &Own { content_type: "image/png", ..own(&body, 200, &[]) }, None), None);
        assert_eq!(coded(GZIP, &Own { whole: 0, ..own(b"", 204, &[]) }, None), None);
    }

    #[test]
    fn a_client_that_has_the_coded_answer_is_told_so_by_its_tag() {
        let asked = format!("{GZIP}\r\nIf-None-Match: W/\"x\"");
        let (fields, coding) = coded(&asked, &own(b"", 304, &[("ETag", "\"x\"")]), None).expect("looked at");
        assert_eq!((&*fields, coding), ("ETag: W/\"x\"\nVary: Accept-Encoding\n", None));
        // One that has it as it is, is told what it depends on; of what is never coded that is nothing.
        let (body, tag) = (vec![b'a'; 1_000], [("ETag", "\"x\"")]);
        let asked = format!("{GZIP}\r\nIf-None-Match: \"x\"");
        let (fields, coding) = coded(&asked, &own(&body, 304, &tag), None).expect("looked at");
        assert_eq!((&*fields, coding), ("ETag: \"x\"\nVary: Accept-Encoding\n", None));
        assert_eq!(coded(&asked, &Own { content_type: "image/png", ..own(&body, 304, &tag) }, None), None);
    }
}
