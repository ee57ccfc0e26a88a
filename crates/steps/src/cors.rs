//! The CORS protocol (Fetch standard, "CORS protocol"): which pages of other origins may use a route.

use propylon_config::OriginPattern;
use propylon_http::h1::{Fields, Method, RequestHead, elements, write_line};

/// Fields of responses that are the protocol's, and ours where a route has it.
pub const FIELDS: [&str; 6] = [
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-expose-headers",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-max-age",
];

/// The rules of one route.
pub struct Cors {
    origins: Vec<OriginPattern>,
    /// Parts of the answer in which `*` is replaced by what is asked for.
    echo: Echo,
    /// Lines of an answer to a preflight, and of other responses, to pages of these origins.
    preflight: Vec<u8>,
    response: Vec<u8>,
}

/// Parts of an answer that name what is asked for, since with credentials browsers take `*` for a name.
#[derive(Default)]
struct Echo {
    origin: bool,
    method: bool,
    fields: bool,
}

impl Cors {
    pub fn of(cors: &propylon_config::Cors) -> Cors {
        let (mut preflight, mut response) = (Vec::new(), Vec::new());
        let has_all = |list: &[String]| cors.echo && list.iter().any(|text| text == "*");
        let echo = Echo { origin: cors.echo, method: has_all(&cors.methods), fields: has_all(&cors.headers) };
        // GET, HEAD and POST need no permission (Fetch, "CORS-safelisted method").
        let methods = match cors.methods.iter().any(|method| method == "*") {
            true => "*".to_owned(),
            false if cors.methods.is_empty() => "GET, HEAD, POST".to_owned(),
            false => cors.methods.join(", "),
        };
        if !echo.method {
            write_line(b"Access-Control-Allow-Methods", methods.as_bytes(), &mut preflight);
        }
        if !cors.headers.is_empty() && !echo.fields {
            write_line(b"Access-Control-Allow-Headers", cors.headers.join(", ").as_bytes(), &mut preflight);
        }
        if let Some(time) = cors.max_age {
            write_line(b"Access-Control-Max-Age", time.as_secs().to_string().as_bytes(), &mut preflight);
        }
        // A preflight's answer has what may be read as well: the Gateway API asks for it, and browsers pass over it.
        for lines in [&mut preflight, &mut response] {
            if !cors.expose.is_empty() {
                write_line(b"Access-Control-Expose-Headers", cors.expose.join(", ").as_bytes(), lines);
            }
            if cors.credentials {
                write_line(b"Access-Control-Allow-Credentials", b"true", lines);
            }
        }
        Cors { origins: cors.origins.clone(), echo, preflight, response }
    }

    /// Writes the protocol's lines of a response to a request, without them for pages that may not use the route.
    /// `theirs`: fields of a server's response, with their text.
    pub fn write_lines(
        &self,
        (head, text): (&RequestHead, &[u8]),
        theirs: Option<(&Fields, &[u8])>,
        out: &mut Vec<u8>,
    ) {
        let is_any = self.origins.contains(&OriginPattern::Any) && !self.echo.origin;
        // For all origins also without one: a cache may give to a page what somebody else has asked for (Fetch
        // standard, "CORS protocol and HTTP caches").
        let named = origin(head, text).filter(|origin| self.allows(origin));
        if let Some(origin) = if is_any { Some(&b"*"[..]) } else { named } {
            write_line(b"Access-Control-Allow-Origin", origin, out);
            let is_preflight = is_preflight(head, text);
            out.extend_from_slice(if is_preflight { &self.preflight } else { &self.response });
            if is_preflight {
                self.write_what_is_asked(head, text, out);
            }
        }
        // Also without an origin, and for those who may not: a cache must not give them's to the others.
        let varies = |value: &[u8]| elements(value).any(|name| name == b"*" || name.eq_ignore_ascii_case(b"origin"));
        let is_said = theirs.is_some_and(|(fields, text)| {
            let mut lines = fields.iter().filter(|field| field.forward);
            lines.any(|field| field.name.bytes(text).eq_ignore_ascii_case(b"vary") && varies(field.value.bytes(text)))
        });
        if !is_any && !is_said {
            out.extend_from_slice(b"Vary: Origin\r\n");
        }
    }

    /// Writes the method and the fields that a preflight asks for, where all are allowed.
    fn write_what_is_asked(&self, head: &RequestHead, text: &[u8], out: &mut Vec<u8>) {
        for (is_echoed, asked, name) in [
            (self.echo.method, "access-control-request-method", &b"Access-Control-Allow-Methods"[..]),
            (self.echo.fields, "access-control-request-headers", b"Access-Control-Allow-Headers"),
        ] {
            if let Some(value) = head.fields.value(text, asked).filter(|_| is_echoed) {
                write_line(name, value, out);
            }
        }
    }

    fn allows(&self, origin: &[u8]) -> bool {
        self.origins.iter().any(|pattern| match pattern {
            OriginPattern::Any => true,
            OriginPattern::Exact(own) => own.as_bytes() == origin,
            OriginPattern::Below { scheme, suffix } => {
                let labels =
                    origin.strip_prefix(scheme.as_bytes()).and_then(|rest| rest.strip_suffix(suffix.as_bytes()));
                let is_name = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(byte);
                labels.is_some_and(|labels| !labels.is_empty() && labels.iter().all(is_name))
            }
        })
    }
}

/// Whether a browser asks what a page may do, before it does it. Such a request has no credentials, and is for nobody
/// but who answers for the server.
pub fn is_preflight(head: &RequestHead, text: &[u8]) -> bool {
    let asks = || head.fields.value(text, "access-control-request-method").is_some();
    head.method == Method::Options && origin(head, text).is_some() && asks()
}

/// The one origin that a request names.
fn origin<'a>(head: &'a RequestHead, text: &'a [u8]) -> Option<&'a [u8]> {
    let mut lines = head.fields.iter().filter(|field| field.name.bytes(text).eq_ignore_ascii_case(b"origin"));
    let (first, second) = (lines.next()?, lines.next());
    second.is_none().then(|| first.value.bytes(text))
}

#[cfg(test)]
mod tests {
    use propylon_config::Source;
    use propylon_http::h1::{Limits, Parsed, parse_request};

    use super::*;

    fn cors(keys: &str) -> Cors {
        let text = format!(
            "[listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\ncors = {{ {keys} }}\nrespond = {{ status = 200 }}\n"
        );
        let source = Source { name: "a.toml".into(), base: "".into(), text };
        let config = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        Cors::of(config.routes[0].steps.cors.as_ref().expect("the route has them"))
    }

    fn lines(cors: &Cors, line: &str, fields: &str) -> String {
        let text = format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        let limits = Limits { head_bytes: 64 << 10, headers: 64 };
        assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete), "{text}");
        let mut out = Vec::new();
        cors.write_lines((&head, text.as_bytes()), None, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn pages_of_the_origins_are_told_what_they_may_and_others_nothing() {
        let some = cors(
            "origins = [\"https://a.example\", \"*.b.example\"], methods = [\"GET\", \"PUT\"], headers = [\"X-A\", \"X-B\"], \
             expose = [\"X-C\"], credentials = true, max_age = \"10m\"",
        );
        let preflight = "Access-Control-Request-Method: PUT\r\n";
        let yes = |origin: &str, more: &str| {
            format!(
                "Access-Control-Allow-Origin: {origin}\r\n{more}Access-Control-Allow-Credentials: true\r\nVary: Origin\r\n"
            )
        };
        let may = "Access-Control-Allow-Methods: GET, PUT\r\nAccess-Control-Allow-Headers: X-A, X-B\r\n\
                   Access-Control-Max-Age: 600\r\nAccess-Control-Expose-Headers: X-C\r\n";
        let shown = "Access-Control-Expose-Headers: X-C\r\n";
        for (line, fields, wanted) in [
            ("OPTIONS /", format!("Origin: https://a.example\r\n{preflight}"), yes("https://a.example", may)),
            ("OPTIONS /", "Origin: https://a.example\r\n".into(), yes("https://a.example", shown)),
            ("GET /", format!("Origin: https://x.y.b.example\r\n{preflight}"), yes("https://x.y.b.example", shown)),
            ("GET /", "Origin: https://b.example\r\n".into(), "Vary: Origin\r\n".into()),
            ("GET /", "Origin: https://.b.example\r\n".into(), "Vary: Origin\r\n".into()),
            ("GET /", "Origin: https://evil/.b.example\r\n".into(), "Vary: Origin\r\n".into()),
            ("GET /", "Origin: http://x.b.example\r\n".into(), "Vary: Origin\r\n".into()),
            ("GET /", "Origin: https://a.example:8443\r\n".into(), "Vary: Origin\r\n".into()),
            ("GET /", "Origin: https://a.example.evil\r\n".into(), "Vary: Origin\r\n".into()),
            ("GET /", "Origin: null\r\n".into(), "Vary: Origin\r\n".into()),
            ("GET /", "Origin: https://a.example\r\nOrigin: https://a.example\r\n".into(), "Vary: Origin\r\n".into()),
            ("GET /", String::new(), "Vary: Origin\r\n".into()),
        ] {
            assert_eq!(lines(&some, line, &fields), wanted, "{line} {fields}");
        }
        let all = cors("origins = [\"*\"], methods = [\"*\"], headers = [\"Authorization\", \"*\"]");
        let origin = format!("Origin: null\r\n{preflight}");
        let wanted = "Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Methods: *\r\n\
                      Access-Control-Allow-Headers: Authorization, *\r\n";
        assert_eq!(lines(&all, "OPTIONS /", &origin), wanted);
        assert_eq!(lines(&all, "GET /", ""), "Access-Control-Allow-Origin: *\r\n");
        assert_eq!(lines(&all, "OPTIONS /", preflight), "Access-Control-Allow-Origin: *\r\n", "of no page");
        // With credentials `*` is a name, and what is asked for is named.
        let echo = cors("origins = [\"*\"], methods = [\"*\"], headers = [\"*\"], credentials = true, echo = true");
        let asked = "Origin: https://b.example\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a, x-b\r\n";
        let may = "Access-Control-Allow-Credentials: true\r\nAccess-Control-Allow-Methods: PUT\r\nAccess-Control-Allow-Headers: x-a, x-b\r\n";
        let origin = "Access-Control-Allow-Origin: https://b.example\r\n";
        assert_eq!(lines(&echo, "OPTIONS /", asked), format!("{origin}{may}Vary: Origin\r\n"));
        let credentials = "Access-Control-Allow-Credentials: true\r\n";
        assert_eq!(lines(&echo, "GET /", asked), format!("{origin}{credentials}Vary: Origin\r\n"));
        assert_eq!(lines(&echo, "GET /", ""), "Vary: Origin\r\n");
    }

    #[test]
    fn a_preflight_names_its_origin_and_what_it_asks_for_and_no_other_request_is_one() {
        let (origin, asks) = ("Origin: https://a.example\r\n", "Access-Control-Request-Method: PUT\r\n");
        for (method, fields, wanted) in [
            ("OPTIONS", [origin, asks], true),
            ("OPTIONS", [asks, ""], false),
            ("OPTIONS", [origin, ""], false),
            ("OPTIONS", [&origin.repeat(2), asks], false),
            ("GET", [origin, asks], false),
        ] {
            let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{}\r\n", fields.concat());
            let mut head = RequestHead::default();
            let limits = Limits { head_bytes: 64 << 10, headers: 64 };
            assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete), "{text}");
            assert_eq!(is_preflight(&head, text.as_bytes()), wanted, "{text}");
        }
    }

    #[test]
    fn a_server_that_says_what_it_varies_by_is_not_told_twice() {
        let (some, all) = (cors("origins = [\"https://a.example\"]"), cors("origins = [\"*\"]"));
        let limits = Limits { head_bytes: 64 << 10, headers: 64 };
        for (theirs, wanted) in [
            ("Vary: accept, ORIGIN", ""),
            ("Vary: accept\r\nvary: *", ""),
            ("Vary: accept", "Vary: Origin\r\n"),
            ("X-Vary: origin", "Vary: Origin\r\n"),
        ] {
            let mut head = RequestHead::default();
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{theirs}\r\n\r\n");
            assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete), "{text}");
            let (request, server) = ((&head, text.as_bytes()), (&head.fields, text.as_bytes()));
            let mut out = Vec::new();
            some.write_lines(request, Some(server), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), wanted, "{theirs}");
            out.clear();
            all.write_lines(request, Some(server), &mut out);
            assert_eq!(out, b"Access-Control-Allow-Origin: *\r\n", "{theirs}");
        }
    }
}
