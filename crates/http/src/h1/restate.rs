//! A response's head with other fields than its server gave it, for whoever changes what the response is.

use super::fields::{Field, Fields, Name, Span};
use super::grammar::token_prefix;
use super::{ResponseBody, ResponseHead};

impl ResponseHead {
    /// Writes the fields that go on and that are kept, by name, and then `lines`, as text of their own; the
    /// head refers to that from here on. `text`: what it referred to before. `lines` are names and values without
    /// controls, and not of fields that frame a message. What the head says of its body stays.
    pub fn restate(
        &mut self,
        text: &[u8],
        is_kept: impl Fn(&[u8]) -> bool,
        lines: &[(&str, Vec<u8>)],
        out: &mut Vec<u8>,
    ) {
        debug_assert!(self.upgrade.is_none(), "switches of protocols are none of these");
        out.clear();
        let reason = self.reason.bytes(text);
        out.extend_from_slice(reason);
        self.reason = Span::new(0, reason.len());
        let mut fields = Fields::default();
        for field in self.fields.iter().filter(|field| field.forward) {
            let (name, value) = (field.name.bytes(text), field.value.bytes(text));
            if is_kept(name) {
                let (name, value) = write(name, value, out);
                fields.push(Field { name, value, plain: true, ..*field });
            }
        }
        for (name, value) in lines {
            let (kind, (_, odd)) = (Name::of(name.as_bytes()), token_prefix(name.as_bytes()));
            let (name, value) = write(name.as_bytes(), value, out);
            fields.push(Field::of_line(name, value, kind, odd, false));
        }
        self.fields = fields;
        self.length = out.len();
    }

    /// Takes the length of the body as unknown, where it has one: it is to become another.
    pub fn forget_length(&mut self) {
        if self.body != ResponseBody::None {
            self.body = ResponseBody::Chunked;
        }
        (self.content_length, self.chunked) = (None, true);
    }

    /// Says nothing more of the length of a body that does not follow; others are as they were.
    pub fn withhold_length(&mut self) {
        if self.body == ResponseBody::None {
            self.content_length = None;
        }
    }

    /// Length of the body as it is stated, whether or not a body follows.
    pub fn stated_length(&self) -> Option<u64> {
        self.content_length
    }
}

/// Writes a line; returns where name and value stand.
fn write(name: &[u8], value: &[u8], out: &mut Vec<u8>) -> (Span, Span) {
    let start = out.len();
    super::write_line(name, value, out);
    let end = start + name.len();
    (Span::new(start, end), Span::new(end + 2, end + 2 + value.len()))
}

#[cfg(test)]
mod tests {
    use super::super::{AnswerContext, Asked, Framing, Limits, Method, Version, parse_response, write_response};
    use super::*;

    const LIMITS: Limits = Limits { head_bytes: 4096, headers: 20 };

    fn restated(text: &str, method: Method, lines: &[(&str, Vec<u8>)]) -> (ResponseHead, Vec<u8>) {
        let mut head = ResponseHead::default();
        let asked = Asked { method, upgrade: None };
        parse_response(text.as_bytes(), asked, &LIMITS, &mut head).unwrap();
        let mut out = Vec::new();
        head.restate(text.as_bytes(), |name| !name.eq_ignore_ascii_case(b"etag"), lines, &mut out);
        (head, out)
    }

    fn written(head: &ResponseHead, text: &[u8], client: Version) -> String {
        let context = AnswerContext { client, framing: head.framing_for(client), keep_alive: true, date: b"now" };
        let mut out = Vec::new();
        write_response(head, text, &context, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_restated_head_has_the_fields_that_are_kept_and_those_that_are_added() {
        let text = "HTTP/1.1 200 Fine\r\nX-A:  1 \r\nETag: \"e\"\r\nContent-Length: 9\r\nX-B: 2\r\n\r\n123456789";
        let (mut head, out) = restated(text, Method::Get, &[("Vary", b"Accept-Encoding".to_vec())]);
        assert_eq!((head.body, head.stated_length()), (ResponseBody::Length(9), Some(9)));
        let begin = "HTTP/1.1 200 Fine\r\nX-A: 1\r\nX-B: 2\r\nVary: Accept-Encoding\r\n";
        let end = "Date: now\r\nVia: 1.1 propylon\r\n\r\n";
        assert_eq!(written(&head, &out, Version::Http11), format!("{begin}Content-Length: 9\r\n{end}"));
        head.forget_length();
        assert_eq!(written(&head, &out, Version::Http11), format!("{begin}Transfer-Encoding: chunked\r\n{end}"));
        assert_eq!(written(&head, &out, Version::Http10), format!("{begin}Connection: close\r\n{end}"));
        assert_eq!(head.framing_for(Version::Http2), Framing::Chunked);
    }

    #[test]
    fn the_head_for_head_says_what_get_would_have_brought() {
        let (mut head, out) = restated("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", Method::Head, &[]);
        assert_eq!((head.body, head.stated_length()), (ResponseBody::None, Some(9)));
        head.forget_length();
        assert_eq!((head.body, head.stated_length()), (ResponseBody::None, None));
        assert!(written(&head, &out, Version::Http11).contains("Transfer-Encoding: chunked\r\n"));
        assert_eq!(head.framing_for(Version::Http10), Framing::None);
    }
}
