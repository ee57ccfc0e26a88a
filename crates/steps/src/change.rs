//! Changes of requests on their way to servers, and of responses on their way to clients.
//!
//! Fields that are changed are withheld from what goes on, and their new lines are written behind the others: so that
//! servers and clients of all versions of HTTP get the same. What a request becomes is made once, before its first
//! attempt, but for what is known of a server alone.

use propylon_config::canonical::rooted;
use propylon_config::{
    CookieChanges, Fact, FieldChanges, Forwarded, HostChange, Listener, LocationChange, PathRules, Piece, QueryChanges,
    RequestHeader, ResponseChanges, Route, SecurityHeaders,
};
use propylon_http::h1::{Field, Fields, Name, NameSet, Reject, RequestHead, is_believed, write_line};

use crate::cookie::change_cookie;
use crate::facts::{Changed, Facts};
use crate::side::SideChange;
use crate::target::{PathRewrite, change_query};

/// Writes a fact, in printable ASCII; false where it is not known.
pub type Tell<'a> = dyn Fn(Fact, &mut Vec<u8>) -> bool + 'a;

/// Room for the lines of most routes, so that it is asked for once.
const LINES_BYTES: usize = 256;

/// Path and query of a target; the query has its `?`, or is empty.
pub type Target = (Vec<u8>, Vec<u8>);

/// Changes of a route's requests.
pub struct RequestChange {
    fields: FieldSteps,
    host: Option<HostChange>,
    path: Option<PathRewrite>,
    query: QueryChanges,
}

/// Changes of a route's responses.
pub struct ResponseChange {
    fields: FieldSteps,
    cookies: CookieChanges,
    locations: Vec<LocationChange>,
    /// Fields that are written where they are absent.
    security: Vec<&'static SecurityField>,
}

/// Changes of fields, compiled.
#[derive(Default)]
pub(crate) struct FieldSteps {
    /// Names of which no line goes on as it came.
    pub(crate) withheld: NameSet,
    append: Vec<RequestHeader>,
    lines: Vec<Written>,
    /// Lines with a fact about the server.
    of_server: Vec<RequestHeader>,
}

enum Written {
    /// Whole lines.
    Fixed(Vec<u8>),
    Made(RequestHeader),
}

impl FieldSteps {
    pub(crate) fn of(changes: &FieldChanges) -> FieldSteps {
        let replaced = changes.set.iter().chain(&changes.append).map(|line| &line.name);
        let withheld = replaced.chain(&changes.remove).cloned().collect();
        let mut steps = FieldSteps { withheld, append: changes.append.clone(), ..FieldSteps::default() };
        for line in changes.set.iter().chain(&changes.add) {
            let mut fixed = Vec::new();
            let is_fixed = write_made(line, &|_, _| false, &mut fixed);
            match steps.lines.last_mut() {
                _ if tells_server(line) => steps.of_server.push(line.clone()),
                Some(Written::Fixed(lines)) if is_fixed => lines.extend_from_slice(&fixed),
                _ if is_fixed => steps.lines.push(Written::Fixed(fixed)),
                _ => steps.lines.push(Written::Made(line.clone())),
            }
        }
        steps
    }

    /// Takes the lists out that are made longer and have such a name, for another to write them.
    pub(crate) fn take_lists(&mut self, is_taken: impl Fn(&str) -> bool) -> Vec<RequestHeader> {
        let (taken, left) = std::mem::take(&mut self.append).into_iter().partition(|line| is_taken(&line.name));
        self.append = left;
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.withheld.is_empty() && self.lines.is_empty() && self.of_server.is_empty()
    }

    /// Whether lines of this name do not go on as they came.
    pub(crate) fn withholds(&self, name: &[u8]) -> bool {
        self.withheld.has(name)
    }

    /// Lines without those that do not go on.
    pub(crate) fn without(&self, lines: &[u8]) -> Vec<u8> {
        lines_without(lines, |name| self.withholds(name))
    }

    /// Writes lists that are made longer. `list` has the elements that are there.
    pub(crate) fn write_lists(&self, list: impl Fn(&str) -> Vec<u8>, tell: &Tell<'_>, out: &mut Vec<u8>) {
        for line in &self.append {
            let (list, mut added) = (list(&line.name), Vec::new());
            let is_known = write_value(&line.value, tell, &mut added);
            let between: &[u8] = if is_known && !list.is_empty() { b", " } else { b"" };
            let added = if is_known { &added[..] } else { b"" };
            if !list.is_empty() || !added.is_empty() {
                write_line(line.name.as_bytes(), &[&list, between, added].concat(), out);
            }
        }
    }

    pub(crate) fn write_lines(&self, tell: &Tell<'_>, out: &mut Vec<u8>) {
        for line in &self.lines {
            match line {
                Written::Fixed(lines) => out.extend_from_slice(lines),
                Written::Made(line) => _ = write_made(line, tell, out),
            }
        }
    }

    /// Writes the lines with a fact about the server that go on by their names.
    pub(crate) fn write_lines_of_server(&self, goes_on: impl Fn(&str) -> bool, tell: &Tell<'_>, out: &mut Vec<u8>) {
        for line in self.of_server.iter().filter(|line| goes_on(&line.name)) {
            write_made(line, tell, out);
        }
    }
}

/// Whether a line has a fact about the server.
pub(crate) fn tells_server(line: &RequestHeader) -> bool {
    line.value.contains(&Piece::Fact(Fact::UpstreamServer))
}

/// Lines without those whose names are withheld.
pub(crate) fn lines_without(lines: &[u8], is_withheld: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let name = |line: &[u8]| line.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii().to_vec();
    let is_kept = |line: &&[u8]| !is_withheld(&name(line));
    lines.split_inclusive(|byte| *byte == b'\n').filter(is_kept).collect::<Vec<_>>().concat()
}

/// Writes a line. One in which something is not known, or nothing is said, is left out whole; then false is returned.
fn write_made(line: &RequestHeader, tell: &Tell<'_>, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.extend_from_slice(line.name.as_bytes());
    out.extend_from_slice(b": ");
    let empty = out.len();
    if !write_value(&line.value, tell, out) || out.len() == empty {
        out.truncate(start);
        return false;
    }
    out.extend_from_slice(b"\r\n");
    true
}

/// Writes a value; false where something in it is not known.
pub(crate) fn write_value(pieces: &[Piece], tell: &Tell<'_>, out: &mut Vec<u8>) -> bool {
    pieces.iter().all(|piece| match piece {
        Piece::Text(text) => {
            out.extend_from_slice(text.as_bytes());
            true
        }
        Piece::Fact(fact) => tell(*fact, out),
    })
}

impl RequestChange {
    /// The changes of a route's requests; `None` where there are none.
    pub fn of(route: &Route) -> Option<RequestChange> {
        let changes = &route.steps.request;
        (!changes.is_empty()).then(|| RequestChange {
            fields: FieldSteps::of(&changes.fields),
            host: changes.host.clone(),
            path: changes.path.as_ref().map(|change| PathRewrite::of(change, &route.path)),
            query: changes.query.clone(),
        })
    }

    /// Whether fields are changed. Trailers do not go on then: a server that merges them into the head would have the
    /// client's word for what is written or removed here.
    pub fn changes_fields(&self) -> bool {
        !self.fields.is_empty()
    }

    /// Whether servers are asked for another host than the client has asked for.
    pub fn changes_host(&self) -> bool {
        self.host.is_some()
    }

    /// Path and query (with its `?`, or empty) that servers are asked for; `None` where they are those of the request.
    ///
    /// # Errors
    /// 400 for a path that has become one which the listener refuses.
    pub fn target(
        &self,
        (head, text): (&RequestHead, &[u8]),
        rules: PathRules,
        tell: &Tell<'_>,
    ) -> Result<Option<Target>, Reject> {
        let (path, query) = (head.path(text), head.query(text));
        let rewritten = match &self.path {
            Some(rewrite) => rewrite.apply(path, rules)?,
            None => None,
        };
        // An OPTIONS of the whole server has no query either.
        let is_changed = rewritten.is_some() || !self.query.is_empty() && path.starts_with(b"/");
        Ok(is_changed.then(|| {
            let made = rewritten.as_ref().map_or(&b""[..], |rewritten| &rewritten.query);
            let query = match self.query.is_empty() && made.is_empty() {
                true => query.to_vec(),
                false => change_query(&self.query, made, query, tell),
            };
            (rewritten.map_or_else(|| path.to_vec(), |rewritten| rewritten.path), query)
        }))
    }

    /// Host that a server is asked for, by its address as its backend has it; none if that is the client's. A Unix
    /// socket has no name that could be one: nginx and curl ask "localhost" there.
    pub fn host(&self, server: Option<&str>, is_tls: bool) -> Option<Vec<u8>> {
        let host = match self.host.as_ref()? {
            HostChange::Name(name) => name,
            HostChange::Server if server?.starts_with("unix:") => "localhost",
            HostChange::Server => {
                server.map(|name| name.strip_suffix(if is_tls { ":443" } else { ":80" }).unwrap_or(name))?
            }
        };
        Some(host.as_bytes().to_vec())
    }

    /// Makes the changes that are the same for all attempts. `forwarded`: how this client's word is taken.
    ///
    /// # Errors
    /// As [`RequestChange::target`], and 414 for a target that has become too long.
    pub fn apply<'t>(
        &self,
        (head, text): (&mut RequestHead, &[u8]),
        changed: &mut Changed,
        (listener, forwarded): (&Listener, Forwarded),
        tls: &dyn Fn(Fact) -> Option<&'t str>,
    ) -> Result<(), Reject> {
        let is_silent = self.fields.lines.is_empty() && self.fields.append.is_empty();
        // The memory may be that of an earlier request.
        let mut lines = std::mem::take(&mut changed.lines);
        lines.reserve(if is_silent { 0 } else { LINES_BYTES });
        let facts = Facts { changed, request: (head, text), server: None, tls };
        let tell = |fact, out: &mut Vec<u8>| facts.write(fact, out);
        let keeps_target = self.path.is_none() && self.query.is_empty();
        let target = if keeps_target { None } else { self.target((head, text), listener.paths, &tell)? };
        self.write_fields((&head.fields, text), forwarded, &tell, &mut lines);
        changed.lines = lines;
        head.fields.withhold_set(text, &self.fields.withheld);
        if self.changes_fields() {
            // Trailers do not go on, and neither does what announces them.
            head.fields.withhold_kinds(|kind| kind == Name::Trailer);
        }
        if let Some((path, query)) = target {
            changed.keep_target((head, text));
            head.retarget(path, query);
            head.fits(text, listener.limits.head_bytes)?;
        }
        Ok(())
    }

    /// Writes the lines that take the places of the client's fields, which are then to be withheld. `forwarded`: how
    /// this client's word is taken.
    pub fn write_fields(
        &self,
        (fields, text): (&Fields, &[u8]),
        forwarded: Forwarded,
        tell: &Tell<'_>,
        out: &mut Vec<u8>,
    ) {
        self.fields.write_lists(|name| fields.list(text, name, goes_on(forwarded)), tell, out);
        self.fields.write_lines(tell, out);
    }

    /// Writes the lines with facts about the server that the request goes to, but for those that its side withholds.
    pub fn write_lines_of_server(&self, side: Option<&SideChange>, tell: &Tell<'_>, out: &mut Vec<u8>) {
        self.fields.write_lines_of_server(|name| side.is_none_or(|side| !side.withholds(name)), tell, out);
    }
}

/// Whether a field goes on to servers. `forwarded`: how its client's word is taken.
pub(crate) fn goes_on(forwarded: Forwarded) -> impl Fn(&Field) -> bool {
    move |field| match field.kind {
        Name::XForwardedOther => forwarded == Forwarded::Append,
        kind => field.forward && is_believed(kind, forwarded),
    }
}

/// A field that makes browsers careful.
struct SecurityField {
    name: &'static str,
    value: &'static str,
    /// Heeded over TLS alone (RFC 6797 §8.1).
    of_tls: bool,
    /// A field that says the same in other words: where it is, this one is not written.
    unless: &'static str,
}

/// Fields of `security_headers = "strict"`.
const STRICT: &[SecurityField] = &[
    SecurityField {
        name: "Strict-Transport-Security",
        value: "max-age=31536000; includeSubDomains",
        of_tls: true,
        unless: "",
    },
    SecurityField { name: "X-Content-Type-Options", value: "nosniff", of_tls: false, unless: "" },
    SecurityField { name: "X-Frame-Options", value: "DENY", of_tls: false, unless: "Content-Security-Policy" },
    SecurityField {
        name: "Content-Security-Policy",
        value: "frame-ancestors 'none'",
        of_tls: false,
        unless: "X-Frame-Options",
    },
    SecurityField { name: "Referrer-Policy", value: "same-origin", of_tls: false, unless: "" },
    SecurityField { name: "Cross-Origin-Opener-Policy", value: "same-origin", of_tls: false, unless: "" },
];

/// Fields of an answer of Propylon's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnFields {
    pub fields: Vec<(String, String)>,
    /// Whole lines of values that are no text (RFC 9110 §5.5, obs-text).
    pub lines: Vec<u8>,
    pub content_type: String,
}

/// Fields of whole lines, and the lines that are no text.
pub fn texts(lines: &[u8]) -> (Vec<(&str, &str)>, Vec<u8>) {
    let (mut fields, mut others) = (Vec::new(), Vec::new());
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        match std::str::from_utf8(line) {
            // Without a blank where it is to be in no table of compression.
            Ok(line) => fields.extend(line.split_once(':').map(|(name, value)| (name, value.trim()))),
            Err(_) => others.extend_from_slice(line),
        }
    }
    (fields, others)
}

impl ResponseChange {
    /// The changes of a route's responses; `None` where there are none.
    pub fn of(route: &Route) -> Option<ResponseChange> {
        ResponseChange::new(&route.steps.response, route.steps.security_headers)
    }

    pub(crate) fn new(changes: &ResponseChanges, security: Option<SecurityHeaders>) -> Option<ResponseChange> {
        if changes.is_empty() && security.is_none() {
            return None;
        }
        let all = match security {
            Some(SecurityHeaders::Strict) => STRICT,
            None => &[],
        };
        // The route's own word on a field goes before.
        let is_said = |name: &str| changes.fields.names().any(|said| said.eq_ignore_ascii_case(name));
        let security = all.iter().filter(|field| !is_said(field.name) && !is_said(field.unless)).collect();
        let fields = FieldSteps::of(&changes.fields);
        let (cookies, locations) = (changes.cookies.clone(), changes.location.clone());
        Some(ResponseChange { fields, cookies, locations, security })
    }

    /// Whether the response does not say that it has come by a proxy.
    pub fn hides_via(&self) -> bool {
        self.fields.withholds(b"via")
    }

    /// Whether a field of servers is replaced or removed. Lists that are made longer are neither.
    pub fn replaces(&self, name: &[u8]) -> bool {
        let is_list = || self.fields.append.iter().any(|line| name.eq_ignore_ascii_case(line.name.as_bytes()));
        self.fields.withholds(name) && !is_list()
    }

    /// Withholds the fields that are replaced or removed, and cookies that are changed. Lists go on as they came.
    pub fn withhold(&self, fields: &mut Fields, text: &[u8]) {
        fields.withhold_where(|field| {
            let name = field.name.bytes(text);
            let is_cookie = !self.cookies.is_empty() && name.eq_ignore_ascii_case(b"set-cookie");
            is_cookie || self.replaces(name)
        });
    }

    /// Withholds the server's fields that are changed, and writes the lines that take their places.
    pub fn change_fields(
        &self,
        (fields, text): (&mut Fields, &[u8]),
        is_tls: bool,
        tell: &Tell<'_>,
        out: &mut Vec<u8>,
    ) {
        self.fields.write_lists(|name| fields.list(text, name, |field| field.forward), tell, out);
        if !self.fields.withheld.is_empty() {
            fields.withhold_where(|field| self.fields.withholds(field.name.bytes(text)));
        }
        self.change_values((fields, text), tell, out);
        self.write_rest(|name| has(fields, text, name), is_tls, tell, out);
    }

    /// Withholds cookies and locations that are changed, and writes the lines that take their places.
    pub fn change_values(&self, (fields, text): (&mut Fields, &[u8]), tell: &Tell<'_>, out: &mut Vec<u8>) {
        if !self.cookies.is_empty() {
            let is_cookie = |field: &Field| field.name.bytes(text).eq_ignore_ascii_case(b"set-cookie");
            fields.withhold_where(|field| {
                let is_cookie = is_cookie(field);
                if is_cookie {
                    // Without a blank it is in no table of compression, as its server has asked for.
                    out.extend_from_slice(if field.secret { b"Set-Cookie:" } else { b"Set-Cookie: " });
                    out.extend_from_slice(&change_cookie(&self.cookies, field.value.bytes(text)));
                    out.extend_from_slice(b"\r\n");
                }
                is_cookie
            });
        }
        if !self.locations.is_empty() {
            fields.withhold_where(|field| {
                let is_location = field.name.bytes(text).eq_ignore_ascii_case(b"location");
                is_location && self.write_location(field.value.bytes(text), tell, out)
            });
        }
    }

    /// Writes a server's Location that is to be changed; false where it is not.
    fn write_location(&self, value: &[u8], tell: &Tell<'_>, out: &mut Vec<u8>) -> bool {
        // Two slashes begin the URL of another host, and no path (RFC 3986 §4.2).
        let is_path = |text: &[u8]| text.starts_with(b"/") && !text.starts_with(b"//");
        let rest = |change: &LocationChange| {
            let rest = value.strip_prefix(change.from.as_bytes())?;
            (!is_path(change.from.as_bytes()) || is_path(value)).then(|| rest.to_vec())
        };
        let Some((change, rest)) = self.locations.iter().find_map(|change| Some((change, rest(change)?))) else {
            return false;
        };
        let mut made = Vec::with_capacity(value.len() + LINES_BYTES);
        if !write_value(&change.to, tell, &mut made) {
            return false;
        }
        // The rest of a path may be a client's, who is not to choose the host: neither does it go on with one, nor does
        // it begin as one where the beginning is gone.
        let goes_on = match open_authority(&made) {
            Some(b"") => is_path(value),
            Some(_) => !matches!(rest.first(), None | Some(b'/' | b'?' | b'#')),
            None => false,
        };
        if goes_on {
            return false;
        }
        let is_bare = matches!(&made[..], b"" | b"/");
        let is_of_path = is_path(value) || authority(change.from.as_bytes()).is_some_and(|host| !host.is_empty());
        made.extend_from_slice(&rest);
        if is_bare && is_of_path && matches!(made.first(), Some(b'/' | b'\\')) {
            made = rooted(&made);
        }
        out.extend_from_slice(b"Location: ");
        out.extend_from_slice(&made);
        out.extend_from_slice(b"\r\n");
        true
    }

    fn write_rest(&self, has: impl Fn(&str) -> bool, is_tls: bool, tell: &Tell<'_>, out: &mut Vec<u8>) {
        self.fields.write_lines(tell, out);
        self.fields.write_lines_of_server(|_| true, tell, out);
        for field in self.security.iter().filter(|field| is_tls || !field.of_tls) {
            if !has(field.name) && (field.unless.is_empty() || !has(field.unless)) {
                write_line(field.name.as_bytes(), field.value.as_bytes(), out);
            }
        }
    }

    /// Lines of trailers without the fields that do not go on in a head either.
    pub fn kept_trailers(&self, lines: Vec<u8>) -> Vec<u8> {
        if lines.is_empty() { lines } else { self.fields.without(&lines) }
    }

    /// Fields of an answer of Propylon's own, changed. Its Content-Type is replaced and not removed.
    pub fn change_own(
        &self,
        (fields, content_type): (&[(&str, &str)], &str),
        is_tls: bool,
        tell: &Tell<'_>,
    ) -> OwnFields {
        let mut lines = Vec::new();
        let is_named = |name: &str, known: &str| name.eq_ignore_ascii_case(known);
        let list = |name: &str| {
            let values = fields.iter().filter(|(known, _)| is_named(name, known)).map(|(_, value)| *value);
            values.collect::<Vec<&str>>().join(", ").into_bytes()
        };
        self.fields.write_lists(list, tell, &mut lines);
        let kept = fields.iter().filter(|(name, _)| !self.fields.withholds(name.as_bytes()));
        let kept: Vec<(String, String)> = kept.map(|(name, value)| (name.to_string(), value.to_string())).collect();
        self.write_rest(|name| kept.iter().any(|(known, _)| is_named(name, known)), is_tls, tell, &mut lines);
        let (written, lines) = texts(&lines);
        let mut own = OwnFields { fields: kept, lines, content_type: content_type.to_string() };
        for (name, value) in written {
            match is_named(name, "content-type") {
                true => own.content_type = value.to_string(),
                false => own.fields.push((name.to_string(), value.to_string())),
            }
        }
        own
    }
}

fn has(fields: &Fields, text: &[u8], name: &str) -> bool {
    fields.iter().any(|field| field.forward && field.name.bytes(text).eq_ignore_ascii_case(name.as_bytes()))
}

/// The authority of the beginning of a URL, and all behind it (RFC 3986 §3.2). `None`: it has none.
fn authority(url: &[u8]) -> Option<&[u8]> {
    let at = url.windows(2).position(|two| two == b"//")?;
    let is_scheme = at == 0 || (url[at - 1] == b':' && !url[..at].contains(&b'/'));
    is_scheme.then(|| &url[at + 2..])
}

/// The authority with which the beginning of a URL ends; `None` where it has none, or goes on behind it.
fn open_authority(url: &[u8]) -> Option<&[u8]> {
    authority(url).filter(|authority| !authority.iter().any(|byte| matches!(byte, b'/' | b'?' | b'#' | b'\\')))
}

#[cfg(test)]
mod tests {
    use propylon_config::{Config, Source};
    use propylon_http::h1::{Asked, Limits, Method, Parsed, ResponseHead, parse_request, parse_response};

    use super::*;

    const LIMITS: Limits = Limits { head_bytes: 16 << 10, headers: 64 };

    fn route(lines: &str) -> Route {
        let text = format!(
            "[listener.web]\nbind = '[::]:1'\n[listener.tls]\nbind = '[::]:2'\ntls = 't'\n[tls.t]\ncertificates = ['a.pem']\n[backend.app]\nservers = ['a:1']\n[[route]]\nbackend = 'app'\n{lines}\n"
        );
        let source = Source { name: "a.toml".into(), base: "".into(), text };
        let config: Config = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        config.routes[0].clone()
    }

    fn tell(fact: Fact, out: &mut Vec<u8>) -> bool {
        match fact {
            Fact::ClientIp => out.extend_from_slice(b"::1"),
            Fact::RequestQuery => {}
            _ => return false,
        }
        true
    }

    /// Lines of a server's response to GET as they go on, and those that are written; `is_tls`: to a client of TLS.
    fn response(lines: &str, fields: &str, is_tls: bool) -> String {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n");
        let mut head = ResponseHead::default();
        let asked = Asked { method: Method::Get, upgrade: None };
        assert_eq!(parse_response(text.as_bytes(), asked, &LIMITS, &mut head), Ok(Parsed::Complete));
        let change = ResponseChange::of(&route(lines)).expect("changes");
        let mut written = Vec::new();
        change.change_fields((&mut head.fields, text.as_bytes()), is_tls, &tell, &mut written);
        let mut out = Vec::new();
        head.fields.write_forwarded(text.as_bytes(), &mut out);
        String::from_utf8([out, written].concat()).unwrap().replace("\r\n", "|")
    }

    #[test]
    fn a_location_begins_otherwise_and_leads_to_no_host_that_a_client_chose() {
        let located = |from: &str, to: &str, value: &str| {
            let lines = format!("response = {{ location = [{{ from = '{from}', to = '{to}' }}] }}");
            response(&lines, &format!("location: {value}\r\nX-A: /app/\r\n"), false)
        };
        for (from, to, value, wanted) in [
            ("/", "/api/", "/x", "Location: /api/x"),
            ("/", "/api/", "//evil.test/", "location: //evil.test/"),
            ("/app", "/", "/app/evil.test/", "Location: /evil.test/"),
            ("/app/", "/", "/app//evil.test/", "Location: /evil.test/"),
            ("/app/", "/", "/app/\\evil.test/", "Location: /evil.test/"),
            ("/app", "{request.query}", "/app//evil.test/", "Location: /evil.test/"),
            ("/app/", "{request.query}", "/app/x", "Location: x"),
            ("/app/", "//cdn.test/", "/app/x", "Location: //cdn.test/x"),
            ("//a.test", "https://b.test", "//a.test/x", "Location: https://b.test/x"),
            ("http://a.test/", "/", "http://a.test/x", "Location: /x"),
            ("http://a.test/", "/", "http://a.test//evil.test/x", "Location: /evil.test/x"),
            ("http://a.test", "{request.query}", "http://a.test//evil.test/x", "Location: /evil.test/x"),
            ("//a.test", "{request.query}", "//a.test//evil.test/x", "Location: /evil.test/x"),
            ("http:", "{request.query}", "http://a.test/x", "Location: //a.test/x"),
            ("http://", "https://", "http://a.test/x", "Location: https://a.test/x"),
            ("/", "https://", "/evil.test/", "location: /evil.test/"),
            ("/app", "https://b.test", "/app/x", "Location: https://b.test/x"),
            ("/app", "https://b.test", "/app", "Location: https://b.test"),
            ("/app", "https://b.test", "/app?x", "Location: https://b.test?x"),
            ("/app", "https://b.test", "/app.evil.test/", "location: /app.evil.test/"),
            ("/app", "https://b.test", "/app@evil.test/", "location: /app@evil.test/"),
            ("/app", "https://b.test", "/app\\evil.test/", "location: /app\\evil.test/"),
            ("/app", "//cdn.test", "/app.evil.test/", "location: /app.evil.test/"),
            ("http://a", "https://b.test", "http://a.evil.test/", "location: http://a.evil.test/"),
            ("/app/", "/{tls.version}/", "/app/x", "location: /app/x"),
            ("/app/", "/{client.ip}/", "/app/x", "Location: /::1/x"),
            ("/APP/", "/", "/app/x", "location: /app/x"),
        ] {
            let (line, other) = (format!("{wanted}|"), "X-A: /app/|");
            let found = response_parts(&located(from, to, value));
            assert!(found.0 == other && found.1 == line, "{from} {to} {value}: {found:?}");
        }
    }

    /// The line of X-A, and that of Location.
    fn response_parts(lines: &str) -> (String, String) {
        let of = |name: &str| {
            let is_of = |line: &&str| line.to_ascii_lowercase().starts_with(name);
            lines.split_inclusive('|').filter(is_of).collect::<String>()
        };
        (of("x-a:"), of("location:"))
    }

    #[test]
    fn fields_that_make_browsers_careful_are_the_servers_where_it_has_them() {
        let names = |lines: &str, fields: &str, is_tls: bool| {
            let text = response(lines, fields, is_tls);
            let names = text.split('|').filter_map(|line| line.split(':').next());
            names.map(|name| name.chars().filter(char::is_ascii_uppercase).collect::<String>()).collect::<String>()
        };
        let strict = "security_headers = 'strict'";
        assert_eq!(names(strict, "", true), "STSXCTOXFOCSPRPCOOP");
        assert_eq!(names(strict, "", false), "XCTOXFOCSPRPCOOP");
        assert_eq!(names(strict, "x-frame-options: DENY\r\n", false), "XCTORPCOOP");
        assert_eq!(names(strict, "content-security-policy: x\r\n", false), "XCTORPCOOP");
        let own = "security_headers = 'strict'\nresponse = { set = { x-frame-options = 'DENY' } }";
        assert_eq!(names(own, "", false), "XCTORPCOOP");
        let own = "security_headers = 'strict'\nresponse = { remove = ['Referrer-Policy'] }";
        assert_eq!(names(own, "referrer-policy: x\r\n", false), "XCTOXFOCSPCOOP");
    }

    #[test]
    fn an_interim_response_has_its_lists_and_loses_what_is_replaced() {
        let kept = |lines: &str| {
            let text = "HTTP/1.1 200 OK\r\nset-cookie: a\r\nx-set: 1\r\nlink: b\r\nContent-Length: 0\r\n\r\n";
            let mut head = ResponseHead::default();
            let asked = Asked { method: Method::Get, upgrade: None };
            assert_eq!(parse_response(text.as_bytes(), asked, &LIMITS, &mut head), Ok(Parsed::Complete));
            ResponseChange::of(&route(lines)).expect("changes").withhold(&mut head.fields, text.as_bytes());
            let mut out = Vec::new();
            head.fields.write_forwarded(text.as_bytes(), &mut out);
            String::from_utf8(out).unwrap().replace("\r\n", "|")
        };
        assert_eq!(kept("response = { set = { X-Set = '2' }, append = { Link = 'c' } }"), "set-cookie: a|link: b|");
        assert_eq!(kept("response = { cookies = { secure = true } }"), "x-set: 1|link: b|");
        assert!(ResponseChange::of(&route("response = { remove = ['Via'] }")).is_some_and(|change| change.hides_via()));
        assert!(ResponseChange::of(&route("response = { remove = ['X'] }")).is_some_and(|change| !change.hides_via()));
    }

    #[test]
    fn a_server_is_asked_for_its_name_without_the_port_of_its_scheme() {
        let host = |lines: &str, server: Option<&str>, is_tls| {
            let host = RequestChange::of(&route(lines)).expect("changes").host(server, is_tls);
            host.map(|host| String::from_utf8(host).unwrap()).unwrap_or_default()
        };
        let of_server = "request = { host = '{upstream.server}' }";
        assert_eq!(host(of_server, Some("a.test:80"), false), "a.test");
        assert_eq!(host(of_server, Some("a.test:80"), true), "a.test:80");
        assert_eq!(host(of_server, Some("a.test:443"), true), "a.test");
        assert_eq!(host(of_server, Some("unix:/run/a"), false), "localhost");
        assert_eq!(host(of_server, None, false), "");
        assert_eq!(host("request = { host = 'b.test' }", None, false), "b.test");
    }

    /// Lines that go on of a request's fields, and those that are written.
    fn request(lines: &str, fields: &str, forwarded: Forwarded) -> String {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), &LIMITS, &mut head), Ok(Parsed::Complete));
        let change = RequestChange::of(&route(lines)).expect("changes");
        let mut written = Vec::new();
        change.write_fields((&head.fields, text.as_bytes()), forwarded, &tell, &mut written);
        head.fields.withhold_set(text.as_bytes(), &change.fields.withheld);
        let mut out = Vec::new();
        head.fields.write_forwarded(text.as_bytes(), &mut out);
        String::from_utf8([out, written].concat()).unwrap().replace("\r\n", "|")
    }

    #[test]
    fn a_requests_fields_are_replaced_and_no_claim_comes_back() {
        let lines = "request = { set = { X-A = '{client.ip}', X-B = 'b {tls.version}', X-E = '{request.query}' }, add = { X-C = 'c' }, append = { X-Real-IP = 'me', X-D = '{tls.alpn}' } }";
        let fields = "X-A: 1\r\nx_a: 2\r\nX-B: 3\r\nX-C: 4\r\nX-Real-IP: evil\r\nX-D: 5\r\nX-D: 6\r\nX-Z: z\r\n";
        assert_eq!(
            request(lines, fields, Forwarded::Replace),
            "X-C: 4|X-Z: z|X-Real-IP: me|X-D: 5, 6|X-A: ::1|X-C: c|",
            "a fact that is not known, and an empty one, leave the field out"
        );
        assert!(request(lines, fields, Forwarded::Append).contains("|X-Real-IP: evil, me|"));
    }

    #[test]
    fn an_answer_of_our_own_has_its_fields_replaced() {
        let change = ResponseChange::of(&route(
            "response = { set = { Content-Type = 'text/html', Location = '/x' }, append = { Allow = 'PURGE', Vary = 'Origin' }, remove = ['Retry-After'] }\nsecurity_headers = 'strict'",
        ));
        let own = change.expect("changes").change_own(
            (&[("Allow", "GET"), ("location", "/y"), ("Retry-After", "1"), ("X-Frame-Options", "DENY")], "text/plain"),
            false,
            &tell,
        );
        let fields: Vec<String> = own.fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(own.content_type, "text/html");
        assert_eq!(
            fields,
            [
                "X-Frame-Options: DENY",
                "Allow: GET, PURGE",
                "Vary: Origin",
                "Location: /x",
                "X-Content-Type-Options: nosniff",
                "Referrer-Policy: same-origin",
                "Cross-Origin-Opener-Policy: same-origin"
            ]
        );
    }

    #[test]
    fn lines_that_are_no_text_stay_lines() {
        let (fields, lines) = texts(b"A: b: c\r\nSet-Cookie:d\r\nX: \xe9\r\nY: \xc3\xa9 \r\n");
        assert_eq!(fields, [("A", "b: c"), ("Set-Cookie", "d"), ("Y", "\u{e9}")]);
        assert_eq!(lines, b"X: \xe9\r\n");
        let change = ResponseChange::of(&route("response = { set = { X-A = '{client.ip}' } }")).expect("changes");
        let tell = |_: Fact, out: &mut Vec<u8>| {
            out.push(0xff);
            true
        };
        let own = change.change_own((&[], "text/plain"), false, &tell);
        assert_eq!((own.fields, own.lines), (vec![], b"X-A: \xff\r\n".to_vec()));
    }

    #[test]
    fn what_is_withheld_of_a_head_is_withheld_of_trailers() {
        let lines = "response = { set = { X-Set = 'a' }, append = { X-Also = 'b' }, add = { X-Add = 'c' }, remove = ['X-Gone'] }";
        let change = ResponseChange::of(&route(lines)).expect("changes");
        let trailers = b"x-gone: 1\r\nX-Set : 2\r\nX-Also: 3\r\nX-Add: 4\r\nX-Gone2: X-Gone: 5\r\n";
        assert_eq!(change.kept_trailers(trailers.to_vec()), b"X-Add: 4\r\nX-Gone2: X-Gone: 5\r\n");
    }

    #[test]
    fn a_cookie_has_one_line() {
        let text = "HTTP/1.1 200 OK\r\nset-cookie: a=b\r\nContent-Length: 0\r\n\r\n";
        let mut head = ResponseHead::default();
        let asked = Asked { method: Method::Get, upgrade: None };
        assert_eq!(parse_response(text.as_bytes(), asked, &LIMITS, &mut head), Ok(Parsed::Complete));
        let change = ResponseChange::of(&route("response = { cookies = { secure = true } }")).expect("changes");
        let mut out = Vec::new();
        change.change_fields((&mut head.fields, text.as_bytes()), true, &tell, &mut out);
        assert_eq!(out, b"Set-Cookie: a=b; Secure\r\n");
        assert!(!has(&head.fields, text.as_bytes(), "Set-Cookie"));
    }
}
