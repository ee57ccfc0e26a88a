//! gRPC-Web (PROTOCOL-WEB.md of grpc): calls of browsers, which see neither frames nor trailers of HTTP/2, as calls of
//! gRPC. Messages are the same; trailers come as a last frame of the body, and all of a body may be in base64.

use base64ct::{Base64, Encoding};
use propylon_http::h1::{Method, RequestHead, ResponseHead};

/// Bytes of a body in base64, at most: as much as messages of 4 MiB take, above which servers refuse them by default.
pub const TEXT_BYTES_MAX: usize = 6 * 1024 * 1024;
/// First byte of the frame that has the trailers.
const TRAILERS: u8 = 0x80;
const WEB: &[u8] = b"application/grpc-web";
const TEXT: &[u8] = b"-text";
const GRPC: &[u8] = b"application/grpc";
/// Trailers for a server that has ended without any: UNKNOWN.
const NO_STATUS: &[u8] = b"grpc-status: 2\r\ngrpc-message: the server has ended without a status\r\n";

/// A call from a browser.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    /// Whether its body is in base64.
    pub is_text: bool,
    /// Whether the response is to be.
    pub wants_text: bool,
    /// Type of the body for servers.
    pub content_type: Vec<u8>,
    /// The body of a stream that was in base64, as servers get it.
    pub body: Option<Box<[u8]>>,
}

impl Call {
    /// The call that a request is; `None` for one that is none, or one of gRPC itself.
    pub fn of(head: &RequestHead, text: &[u8]) -> Option<Call> {
        let (is_text, format) = web_type(head.fields.value(text, "content-type")?)?;
        let mut accepted =
            head.fields.value(text, "accept").into_iter().flat_map(|list| list.split(|byte| *byte == b','));
        let wished = accepted.find_map(|one| web_type(one.trim_ascii()));
        (head.method == Method::Post).then(|| Call {
            is_text,
            wants_text: wished.map_or(is_text, |(is_text, _)| is_text),
            content_type: [GRPC, &format].concat(),
            body: None,
        })
    }
}

/// Whether a type is that of bodies in base64, and its end (`+proto`).
fn web_type(value: &[u8]) -> Option<(bool, Vec<u8>)> {
    let kind = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    let rest = kind.strip_prefix(WEB)?;
    let (is_text, format) = rest.strip_prefix(TEXT).map_or((false, rest), |format| (true, format));
    (format.is_empty() || format.starts_with(b"+")).then(|| (is_text, format.to_vec()))
}

/// A body that is no base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBase64;

/// A body in base64 as it comes: segments one behind the other, each with its padding.
#[derive(Debug, Default)]
pub struct Decoder {
    decoded: Vec<u8>,
    /// Text of a group of four whose rest has not come, and how much of it there is.
    group: [u8; GROUP],
    here: usize,
}

/// Characters that stand for three bytes.
const GROUP: usize = 4;

impl Decoder {
    /// Takes the next of the text. What that costs goes by its length alone, however much of it is padding.
    ///
    /// # Errors
    /// The text is no base64.
    pub fn take(&mut self, mut text: &[u8]) -> Result<(), NoBase64> {
        while self.here > 0 && self.here < GROUP && !text.is_empty() {
            (self.group[self.here], self.here) = (text[0], self.here + 1);
            text = &text[1..];
        }
        if self.here == GROUP {
            self.here = 0;
            let group = self.group;
            self.decode(&group)?;
        }
        let (whole, rest) = text.split_at(text.len() / GROUP * GROUP);
        let mut groups = whole;
        while !groups.is_empty() {
            let end =
                groups.iter().position(|byte| *byte == b'=').map_or(groups.len(), |at| at / GROUP * GROUP + GROUP);
            let (segment, behind) = groups.split_at(end);
            self.decode(segment)?;
            groups = behind;
        }
        // A group that is filled up in part has nothing behind it.
        self.group[..rest.len()].copy_from_slice(rest);
        self.here = self.here.max(rest.len());
        Ok(())
    }

    /// Decodes groups, of which the last alone may be padded.
    fn decode(&mut self, segment: &[u8]) -> Result<(), NoBase64> {
        let start = self.decoded.len();
        self.decoded.resize(start + segment.len() / GROUP * 3, 0);
        let decoded = Base64::decode(segment, &mut self.decoded[start..]).map_err(|_| NoBase64)?;
        let length = decoded.len();
        self.decoded.truncate(start + length);
        Ok(())
    }

    /// The body without its base64, once all of the text was taken; `None` where the last group is not whole.
    pub fn end(self) -> Option<Vec<u8>> {
        (self.here == 0).then_some(self.decoded)
    }
}

/// A response on its way to a browser.
#[derive(Debug)]
pub struct Response {
    is_text: bool,
    /// Trailers that came with the head of a response without a body.
    early: Option<Vec<u8>>,
}

impl Response {
    /// Changes the head of a response, whose text is `text` so far; with the head's text from here on. `is_over`:
    /// nothing follows it. `None` for a response that is none of gRPC, which goes on as it is.
    pub fn begin(
        response: &mut ResponseHead,
        text: &[u8],
        (is_over, is_text): (bool, bool),
    ) -> Option<(Response, Vec<u8>)> {
        let kind = response.fields.value(text, "content-type")?.to_ascii_lowercase();
        let format = format_of(&kind)?;
        let content_type = [WEB, if is_text { TEXT } else { b"" }, format].concat();
        let is_status = |name: &[u8]| {
            let known = [&b"grpc-status"[..], b"grpc-message", b"grpc-status-details-bin"];
            known.iter().any(|known| name.eq_ignore_ascii_case(known))
        };
        let mut early = Vec::new();
        for field in response.fields.iter().filter(|field| is_over && field.forward) {
            let (name, value) = (field.name.bytes(text), field.value.bytes(text));
            if is_status(name) {
                early.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
            }
        }
        let has_early = !early.is_empty();
        let is_restated = |name: &[u8]| {
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            is("content-type") || is("trailer") || has_early && is_status(name)
        };
        let is_kept = |name: &[u8]| !is_restated(name);
        let mut out = Vec::new();
        response.restate(text, is_kept, &[("Content-Type", content_type)], &mut out);
        response.forget_length();
        Some((Response { is_text, early: is_over.then_some(early) }, out))
    }

    /// The trailers that came with the head, once, as the whole of the body.
    pub fn take_early(&mut self) -> Option<Vec<u8>> {
        let lines = self.early.take()?;
        Some(self.coded(&frame(&lines)))
    }

    /// Bytes of the body for the client: of `data`, and of the trailers at its end.
    pub fn part(&self, data: &[u8], end: Option<&[u8]>) -> Vec<u8> {
        match end {
            None => self.coded(data),
            Some(lines) => self.coded(&[data, &frame(lines)].concat()),
        }
    }

    fn coded(&self, data: &[u8]) -> Vec<u8> {
        // Padded each time: a client is not to wait for the last bytes of a message.
        if self.is_text { Base64::encode_string(data).into_bytes() } else { data.to_vec() }
    }
}

/// Whether a response is one of gRPC.
pub fn is_of_grpc(response: &ResponseHead, text: &[u8]) -> bool {
    is_type_of_grpc(response.fields.value(text, "content-type").unwrap_or_default())
}

/// Whether a type of content is gRPC's.
pub(crate) fn is_type_of_grpc(kind: &[u8]) -> bool {
    format_of(&kind.to_ascii_lowercase()).is_some()
}

/// A body that is nothing but these trailers, in base64 if `is_text`.
pub(crate) fn ending(lines: &[u8], is_text: bool) -> Vec<u8> {
    Response { is_text, early: None }.coded(&frame(lines))
}

/// Rest of a type of gRPC's, which is in lower case.
fn format_of(kind: &[u8]) -> Option<&[u8]> {
    kind.strip_prefix(GRPC).filter(|format| format.is_empty() || b"+;".contains(&format[0]))
}

/// The frame of the trailers: their lines with names in lower case.
fn frame(lines: &[u8]) -> Vec<u8> {
    let has_status = lines
        .split(|byte| *byte == b'\n')
        .any(|line| line.get(..12).is_some_and(|start| start.eq_ignore_ascii_case(b"grpc-status:")));
    let more: &[u8] = if has_status { b"" } else { NO_STATUS };
    let mut frame = vec![TRAILERS];
    frame.extend_from_slice(&((lines.len() + more.len()) as u32).to_be_bytes());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let name = line.iter().position(|byte| *byte == b':').unwrap_or(0);
        frame.extend(line[..name].to_ascii_lowercase());
        frame.extend_from_slice(&line[name..]);
    }
    frame.extend_from_slice(more);
    frame
}

#[cfg(test)]
mod tests {
    use propylon_http::h1::{Asked, Limits, parse_request, parse_response};

    use super::*;

    const LIMITS: Limits = Limits { head_bytes: 4096, headers: 20 };

    fn call(method: &str, fields: &str) -> Option<Call> {
        let text = format!("{method} /a.B/C HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        parse_request(text.as_bytes(), &LIMITS, &mut head).expect("a request");
        Call::of(&head, text.as_bytes())
    }

    fn begun(fields: &str, is_over: bool, is_text: bool) -> Option<(Response, String)> {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let mut head = ResponseHead::default();
        let asked = Asked { method: Method::Post, upgrade: None };
        parse_response(text.as_bytes(), asked, &LIMITS, &mut head).expect("a response");
        let (response, text) = Response::begin(&mut head, text.as_bytes(), (is_over, is_text))?;
        let mut written = Vec::new();
        head.fields.write_forwarded(&text, &mut written);
        Some((response, String::from_utf8(written).unwrap()))
    }

    fn decode(text: &[u8]) -> Option<Vec<u8>> {
        let whole = decode_by(text, text.len().max(1));
        (1..7).for_each(|piece| assert_eq!(decode_by(text, piece), whole, "{}", text.escape_ascii()));
        whole
    }

    fn decode_by(text: &[u8], piece: usize) -> Option<Vec<u8>> {
        let mut decoder = Decoder::default();
        text.chunks(piece).try_for_each(|part| decoder.take(part)).ok()?;
        decoder.end()
    }

    #[test]
    fn calls_are_known_by_their_type_and_answered_as_they_like_it() {
        let of = |content_type: &str, accept: &str| {
            let call = call("POST", &format!("Content-Type: {content_type}\r\n{accept}"))?;
            Some((call.is_text, call.wants_text, String::from_utf8(call.content_type).unwrap()))
        };
        let plain = || "application/grpc".to_string();
        assert_eq!(of("application/grpc-web", ""), Some((false, false, plain())));
        assert_eq!(of("Application/gRPC-Web+proto; a=b", ""), Some((false, false, "application/grpc+proto".into())));
        assert_eq!(of("application/grpc-web-text", ""), Some((true, true, plain())));
        let accept = "Accept: text/x, application/grpc-web-text+proto\r\n";
        assert_eq!(of("application/grpc-web+json", accept), Some((false, true, "application/grpc+json".into())));
        assert_eq!(of("application/grpc-web-text", "Accept: application/grpc-web\r\n"), Some((true, false, plain())));
        for other in ["application/grpc", "application/grpc-website", "application/json", "application/grpc-web-texts"]
        {
            assert_eq!(of(other, ""), None, "{other}");
        }
        assert_eq!(call("GET", "Content-Type: application/grpc-web\r\n"), None);
        assert_eq!(call("POST", ""), None);
    }

    #[test]
    fn base64_may_be_padded_in_the_midst_and_is_strict() {
        assert_eq!(decode(b"AAAAAAA=").as_deref(), Some(&[0; 5][..]));
        assert_eq!(decode(b"YQ==YmM=ZGVm").as_deref(), Some(&b"abcdef"[..]));
        assert_eq!(decode(b"").as_deref(), Some(&b""[..]));
        for bad in ["A", "AA", "AAA", "A===", "====", "YQ==Y", "YR==", "YQ= =", "Y\u{e9}==", "=", "YQ=a"] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn trailers_are_the_last_frame() {
        let (response, head) = begun("Content-Type: application/grpc+proto\r\nX-A: b\r\n", false, false).unwrap();
        assert_eq!(head, "X-A: b\r\nContent-Type: application/grpc-web+proto\r\n");
        assert_eq!(response.part(b"data", None), b"data");
        let lines = b"Grpc-Status: 0\r\nX-Last: Y\r\n";
        assert_eq!(response.part(b"d", Some(lines)), b"d\x80\0\0\0\x1bgrpc-status: 0\r\nx-last: Y\r\n");
        let end = response.part(b"", Some(b""));
        assert_eq!(end[5..], *NO_STATUS);
        assert_eq!(usize::from(end[4]), NO_STATUS.len());
        let (response, head) = begun("Content-Type: application/grpc\r\n", false, true).unwrap();
        assert_eq!(head, "Content-Type: application/grpc-web-text\r\n");
        assert_eq!(response.part(b"d", None), b"ZA==");
    }

    #[test]
    fn trailers_that_came_with_the_head_move_and_others_answers_stay() {
        let fields = "Content-Type: application/grpc\r\ngrpc-status: 5\r\ngrpc-message: no\r\nX-A: b\r\n";
        let (mut response, head) = begun(fields, true, false).unwrap();
        assert_eq!(head, "X-A: b\r\nContent-Type: application/grpc-web\r\n");
        let body = response.take_early().unwrap();
        assert_eq!(body[5..], *b"grpc-status: 5\r\ngrpc-message: no\r\n");
        assert_eq!(response.take_early(), None);
        let (mut response, head) = begun(fields, false, false).unwrap();
        assert_eq!(head, "grpc-status: 5\r\ngrpc-message: no\r\nX-A: b\r\nContent-Type: application/grpc-web\r\n");
        assert_eq!(response.take_early(), None, "trailers are to come");
        let (_, head) = begun("content-type: application/grpc\r\ntrailer: grpc-status\r\n", false, false).unwrap();
        assert_eq!(head, "Content-Type: application/grpc-web\r\n");
        assert!(begun("Content-Type: text/html\r\n", false, false).is_none());
        assert!(begun("Content-Type: application/grpcx\r\n", false, false).is_none());
        assert!(begun("", false, false).is_none());
    }
}
