//! Header fields as offsets: where each line stands, which name it bears, and whether it goes on to the next hop.

use std::ops::Range;

use super::grammar::{ODD, TOKEN, class, first_control, token_prefix, trim};
use super::{Limits, Reject};
use crate::fault::Fault;

/// A range of bytes in the buffer that a head was parsed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Span {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Span { start: start as u32, end: end as u32 }
    }

    #[inline]
    pub fn bytes<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        &buf[self.start as usize..self.end as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// The field names this proxy gives a meaning to, or protects from being nominated away by `Connection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Name {
    /// Any other; the only kind that a Connection field may have dropped.
    #[default]
    Other,
    Host,
    Connection,
    ContentLength,
    TransferEncoding,
    Te,
    Trailer,
    Upgrade,
    Expect,
    MaxForwards,
    KeepAlive,
    ProxyConnection,
    ProxyAuthenticate,
    ProxyAuthenticationInfo,
    ProxyAuthorization,
    Proxy,
    Http2Settings,
    /// Client-Cert or Client-Cert-Chain (RFC 9440).
    ClientCert,
    Via,
    Forwarded,
    XForwardedFor,
    XForwardedHost,
    XForwardedProto,
    /// Any other name that begins with `X-Forwarded-`.
    XForwardedOther,
    /// Claims of other proxies and servers about the client, its address, its certificate, its name or its URL, by
    /// names that nobody has registered: `claims`.
    Claim,
    Date,
    Server,
    /// Fields of the trace that a request belongs to (W3C Trace Context).
    Traceparent,
    Tracestate,
    /// Known only so that it cannot be nominated away: Authorization, Cookie, Cache-Control, Content-Type, ...
    EndToEnd,
    /// A pseudo-header field of HTTP/2, whose name no field of HTTP/1 can have.
    Pseudo(Pseudo),
}

/// Pseudo-header fields (RFC 9113 §8.3, RFC 8441 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pseudo {
    Authority,
    Method,
    Path,
    Protocol,
    Scheme,
    Status,
}

impl Pseudo {
    pub const ALL: [Pseudo; 6] =
        [Pseudo::Authority, Pseudo::Method, Pseudo::Path, Pseudo::Protocol, Pseudo::Scheme, Pseudo::Status];

    /// The pseudo-header field of this name, with its colon.
    pub fn of(name: &[u8]) -> Option<Pseudo> {
        Pseudo::ALL.into_iter().find(|pseudo| pseudo.as_str().as_bytes() == name)
    }

    /// Name of the pseudo-header field, with its colon.
    pub fn as_str(self) -> &'static str {
        match self {
            Pseudo::Authority => ":authority",
            Pseudo::Method => ":method",
            Pseudo::Path => ":path",
            Pseudo::Protocol => ":protocol",
            Pseudo::Scheme => ":scheme",
            Pseudo::Status => ":status",
        }
    }
}

impl Name {
    /// Recognised without regard to case.
    pub fn of(name: &[u8]) -> Name {
        let Some(&first) = name.first() else {
            return Name::Other;
        };
        let known = match (name.len(), first | 0x20) {
            (2, b't') if is_same(name, b"te") => Name::Te,
            (3, b'v') if is_same(name, b"via") => Name::Via,
            (4, b'h') if is_same(name, b"host") => Name::Host,
            (4, b'd') if is_same(name, b"date") => Name::Date,
            (4, b'v') if is_same(name, b"vary") => Name::EndToEnd,
            (5, b'p') if is_same(name, b"proxy") => Name::Proxy,
            (6, b'e') if is_same(name, b"expect") => Name::Expect,
            (6, b's') if is_same(name, b"server") => Name::Server,
            (6, b'c') if is_same(name, b"cookie") => Name::EndToEnd,
            (6, b'o') if is_same(name, b"origin") => Name::EndToEnd,
            (7, b't') if is_same(name, b"trailer") => Name::Trailer,
            (7, b'u') if is_same(name, b"upgrade") => Name::Upgrade,
            (8, b'l') if is_same(name, b"location") => Name::EndToEnd,
            (9, b'f') if is_same(name, b"forwarded") => Name::Forwarded,
            (10, b'c') if is_same(name, b"connection") => Name::Connection,
            (10, b'k') if is_same(name, b"keep-alive") => Name::KeepAlive,
            (10, b's') if is_same(name, b"set-cookie") => Name::EndToEnd,
            (10, b't') if is_same(name, b"tracestate") => Name::Tracestate,
            (11, b'c') if is_same(name, b"client-cert") => Name::ClientCert,
            (11, b't') if is_same(name, b"traceparent") => Name::Traceparent,
            (12, b'c') if is_same(name, b"content-type") => Name::EndToEnd,
            (12, b'm') if is_same(name, b"max-forwards") => Name::MaxForwards,
            (13, b'a') if is_same(name, b"authorization") => Name::EndToEnd,
            (13, b'c') if is_same(name, b"cache-control") || is_same(name, b"content-range") => Name::EndToEnd,
            (14, b'c') if is_same(name, b"content-length") => Name::ContentLength,
            (14, b'h') if is_same(name, b"http2-settings") => Name::Http2Settings,
            (15, b'x') if is_same(name, b"x-forwarded-for") => Name::XForwardedFor,
            (16, b'x') if is_same(name, b"x-forwarded-host") => Name::XForwardedHost,
            (16, b'p') if is_same(name, b"proxy-connection") => Name::ProxyConnection,
            (16, b'c') if is_same(name, b"content-encoding") => Name::EndToEnd,
            (16, b'w') if is_same(name, b"www-authenticate") => Name::EndToEnd,
            (17, b'c') if is_same(name, b"client-cert-chain") => Name::ClientCert,
            (17, b't') if is_same(name, b"transfer-encoding") => Name::TransferEncoding,
            (17, b'x') if is_same(name, b"x-forwarded-proto") => Name::XForwardedProto,
            (18, b'p') if is_same(name, b"proxy-authenticate") => Name::ProxyAuthenticate,
            (19, b'p') if is_same(name, b"proxy-authorization") => Name::ProxyAuthorization,
            (25, b'p') if is_same(name, b"proxy-authentication-info") => Name::ProxyAuthenticationInfo,
            _ if is_claim(name) => Name::Claim,
            _ => Name::Other,
        };
        if known == Name::Other && starts_with(name, b"x-forwarded-") {
            return Name::XForwardedOther;
        }
        known
    }

    /// Whether a server that maps every odd byte to the same sign (as CGI does) would take this name, which is
    /// none of ours as written, for one of ours.
    pub(crate) fn is_lookalike(name: &[u8]) -> bool {
        // Longer than any name; of a longer one this much tells how it begins.
        const LONGEST: usize = 64;
        let mut plain = [0; LONGEST];
        let plain = &mut plain[..name.len().min(LONGEST)];
        for (to, &from) in plain.iter_mut().zip(name) {
            *to = if class(from) & ODD != 0 { b'-' } else { from };
        }
        Name::of(plain) != Name::Other
    }
}

/// Names that some server takes for the truth about a client or what it asks for, and that a client can write as well
/// as any proxy, of which this one may be; `*` stands for the rest of a name. Those who read X-Original-URL or its like
/// look at no path, and those who read Remote-User at no password: a route would guard nothing. Methods are no matter
/// of routes, so that X-HTTP-Method-Override, which applications have their own clients send, is none of these; nor are
/// keys that clients have to show (X-Auth-Token).
pub(crate) fn claims(name: &[u8]) -> &'static [&'static str] {
    match name[0].to_ascii_lowercase() {
        // IBM WebSphere's plug-ins: $WSRA, $WSRU, $WSCC.
        b'$' => &["$ws*"],
        b'a' => &["akamai-client-ip"],
        b'c' => &[
            "client-ip",
            "cf-connecting-ip",
            "cf-connecting-ipv6",
            "cf-pseudo-ipv4",
            "cf-ipcountry",
            "cf-visitor",
            "cf-access-authenticated-user-email",
            "cloudfront-*",
        ],
        b'd' => &["do-connecting-ip"],
        b'f' => {
            &["forwarded-*", "front-end-https", "fastly-client-*", "fastly-ssl", "fly-client-ip", "fly-forwarded-*"]
        }
        b'i' => &["incap-client-ip"],
        b'p' => &["proxy-client-ip"],
        b'r' => &[
            "remote-addr",
            "remote-email",
            "remote-groups",
            "remote-host",
            "remote-name",
            "remote-port",
            "remote-user",
        ],
        b's' => &["ssl-*"],
        b't' => &["true-client-ip", "tailscale-user-*"],
        b'w' => &["wl-proxy-*"],
        b'x' => claims_of_x(name.get(2).copied().unwrap_or_default()),
        _ => &[],
    }
}

/// Names of [`claims`] that begin with `x-` and a byte: nearly every message has such names, and these are many.
fn claims_of_x(third: u8) -> &'static [&'static str] {
    match third.to_ascii_lowercase() {
        b'a' => &[
            "x-accel-mapping",
            "x-amzn-mtls-*",
            "x-amzn-oidc-*",
            "x-appengine-*",
            "x-arr-*",
            "x-auth-request-*",
            "x-auth-user",
            "x-authenticated-*",
            "x-azure-*",
        ],
        b'c' => &[
            "x-client-cert*",
            "x-client-dn",
            "x-client-ip",
            "x-client-s-dn",
            "x-client-ssl-*",
            "x-client-subject-*",
            "x-client-verify",
            "x-cluster-client-ip",
        ],
        b'e' => &["x-envoy-*"],
        b'f' => &["x-forward-for", "x-forwarded"],
        b'g' => &["x-goog-authenticated-user-*"],
        b'h' => &["x-host", "x-host-override", "x-http-destinationurl", "x-http-host-override", "x-http-path-override"],
        b'm' => &["x-ms-client-principal*", "x-ms-forwarded-client-cert"],
        b'n' => &["x-nf-client-connection-ip"],
        b'o' => &["x-original-*", "x-originating-ip", "x-override-url"],
        b'p' => &["x-proxy-user", "x-proxyuser-ip"],
        b'r' => &["x-real-*", "x-remote-*", "x-rewrite-*"],
        b's' => &["x-scheme", "x-script-name", "x-sendfile-type", "x-ssl-*", "x-sucuri-clientip"],
        b't' => &["x-tls-client-*", "x-true-client-ip"],
        b'u' => &["x-url-scheme"],
        b'v' => &["x-vercel-*", "x-verified-client"],
        b'w' => &["x-webauth-*"],
        _ => &[],
    }
}

/// Whether a name is a known one, which is in lower case, whatever its own case: a few comparisons of words, since the
/// length is known. Of the bytes of tokens (RFC 9110 §5.6.2) those without the bit 0x20 are capital letters, `^` and
/// `_`, the last two of which become no byte of a known name; other bytes must not come here.
#[inline(always)]
fn is_same<const N: usize>(name: &[u8], known: &[u8; N]) -> bool {
    let Some(name) = name.first_chunk::<N>().filter(|_| name.len() == N) else { return false };
    let eight = |at: usize| {
        let word = |bytes: &[u8]| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        word(name) | 0x2020_2020_2020_2020 == word(known)
    };
    let four = |at: usize| {
        let word = |bytes: &[u8]| bytes[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        word(name) | 0x2020_2020 == word(known)
    };
    match N {
        // The last word may begin within the one before.
        8.. => (0..N / 8).all(|at| eight(at * 8)) && eight(N - 8),
        4.. => four(0) && four(N - 4),
        _ => name.iter().zip(known).all(|(byte, known)| byte | 0x20 == *known),
    }
}

fn is_claim(name: &[u8]) -> bool {
    claims(name).iter().any(|known| match known.strip_suffix('*') {
        Some(begins) => starts_with(name, begins.as_bytes()),
        None => name.eq_ignore_ascii_case(known.as_bytes()),
    })
}

fn starts_with(name: &[u8], begins: &[u8]) -> bool {
    name.get(..begins.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(begins))
}

/// One header line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Field {
    pub name: Span,
    /// Without the whitespace around it.
    pub value: Span,
    pub kind: Name,
    /// Whether it goes on as it is. What is false here is dropped, or written anew by the rewriter.
    pub forward: bool,
    /// Whether the line reads exactly `name: value CRLF`, so that it can be copied whole.
    pub(crate) plain: bool,
    /// Whether the name has token bytes other than letters, digits and `-`.
    pub(crate) odd: bool,
    /// Whether its sender wants it in no table of compression, on this hop or the next (RFC 7541 §7.1.3).
    pub secret: bool,
}

impl Field {
    /// A field whose line reads exactly `name: value CRLF`.
    #[inline]
    pub(crate) fn of_line(name: Span, value: Span, kind: Name, odd: bool, secret: bool) -> Field {
        Field { name, value, kind, forward: true, plain: true, odd, secret }
    }

    fn withhold(&mut self) {
        self.forward = false;
        if self.kind == Name::XForwardedOther {
            // A trusted proxy's goes on by its kind.
            self.kind = Name::Other;
        }
    }

    /// Has it go nowhere, and nothing find it by its name.
    pub(crate) fn forget(&mut self) {
        (self.forward, self.kind, self.name) = (false, Name::Other, Span::default());
    }

    /// Whether the line reads exactly `Host: value CRLF`.
    pub(crate) fn is_plain_host(&self, buf: &[u8]) -> bool {
        self.kind == Name::Host && self.plain && self.name.bytes(buf) == b"Host"
    }

    /// The whole line, if it reads exactly `name: value`.
    pub fn plain_line<'a>(&self, buf: &'a [u8]) -> Option<&'a [u8]> {
        self.plain.then(|| Span { start: self.name.start, end: self.value.end }.bytes(buf))
    }
}

/// The fields of a head in the order received. The first `INLINE` live in the head itself.
#[derive(Clone)]
pub struct Fields {
    inline: [Field; INLINE],
    length: usize,
    more: Vec<Field>,
}

/// Name under which a user is noted: no field that comes from anywhere has it.
const USER: &str = ":user";
/// More than browsers send, with room for a few proxies on the way.
const INLINE: usize = 48;

impl Default for Fields {
    fn default() -> Fields {
        Fields { inline: [Field::default(); INLINE], length: 0, more: Vec::new() }
    }
}

impl std::fmt::Debug for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Fields {
    pub fn iter(&self) -> impl Iterator<Item = &Field> {
        self.inline[..self.length].iter().chain(&self.more)
    }

    pub fn len(&self) -> usize {
        self.length + self.more.len()
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The field that came first.
    pub(crate) fn first(&self) -> Option<&Field> {
        self.inline[..self.length].first()
    }

    /// The value of the first field of this name (any case), forwarded or not: for logs.
    pub fn value<'a>(&self, buf: &'a [u8], name: &str) -> Option<&'a [u8]> {
        self.iter()
            .find(|f| f.name.len() == name.len() && f.name.bytes(buf).eq_ignore_ascii_case(name.as_bytes()))
            .map(|f| f.value.bytes(buf))
    }

    pub fn of_kind(&self, kind: Name) -> impl Iterator<Item = &Field> {
        self.iter().filter(move |f| f.kind == kind)
    }

    /// All values of a kind as one list (RFC 9110 §5.3).
    pub(crate) fn joined(&self, buf: &[u8], kind: Name) -> Vec<u8> {
        let values: Vec<&[u8]> = self.of_kind(kind).map(|field| field.value.bytes(buf)).collect();
        values.join(&b", "[..])
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Field> {
        self.inline[..self.length].iter_mut().chain(&mut self.more)
    }

    pub(crate) fn push(&mut self, field: Field) {
        if self.length < INLINE {
            self.inline[self.length] = field;
            self.length += 1;
        } else {
            self.more.push(field);
        }
    }

    /// Withholds fields whose names are ours to write, also where only a server that takes odd bytes for `-` would
    /// think they are.
    pub fn withhold<'n>(&mut self, buf: &[u8], ours: impl Iterator<Item = &'n str> + Clone) {
        for field in self.iter_mut() {
            let name = field.name.bytes(buf);
            if ours.clone().any(|ours| is_same_or_lookalike(name, ours)) {
                field.withhold();
            }
        }
    }

    /// As [`Fields::withhold`], by a set of names.
    pub fn withhold_set(&mut self, buf: &[u8], ours: &NameSet) {
        for field in self.iter_mut() {
            if ours.has_like(field.name.bytes(buf)) {
                field.withhold();
            }
        }
    }

    /// Like [`Fields::withhold`], and nothing finds these fields by their names any more.
    pub fn forget<'n>(&mut self, buf: &[u8], ours: impl Iterator<Item = &'n str> + Clone) {
        for field in self.iter_mut() {
            if ours.clone().any(|ours| is_same_or_lookalike(field.name.bytes(buf), ours)) {
                field.forget();
            }
        }
    }

    /// Adds a field of ours, which goes on behind the client's. Its bytes are put behind the head's.
    pub fn tell(&mut self, buf: &mut Vec<u8>, name: &str, value: &[u8]) {
        let start = buf.len();
        buf.extend_from_slice(name.as_bytes());
        let middle = buf.len();
        buf.extend_from_slice(value);
        let (name, value) = (Span::new(start, middle), Span::new(middle, buf.len()));
        // A kind of its own might be withheld as a client's claim.
        self.push(Field { plain: false, ..Field::of_line(name, value, Name::Other, false, false) });
    }

    /// Notes the user whom a request is from, for logs: it goes on to nobody. Bytes are put behind the head's.
    pub fn note_user(&mut self, buf: &mut Vec<u8>, user: &[u8]) {
        self.tell(buf, USER, user);
        self.iter_mut().last().expect("it was just added").forward = false;
    }

    /// The user that was noted.
    pub fn user<'a>(&self, buf: &'a [u8]) -> Option<&'a [u8]> {
        self.value(buf, USER)
    }

    /// Has fields be kept out of tables of compression (RFC 7541 §7.1.3).
    pub fn keep_secret(&mut self, is_secret: impl Fn(&Field) -> bool) {
        for field in self.iter_mut() {
            field.secret |= is_secret(field);
        }
    }

    /// Withholds lines that would go on.
    pub fn withhold_where(&mut self, mut is_withheld: impl FnMut(&Field) -> bool) {
        for field in self.iter_mut().filter(|field| field.forward) {
            field.forward = !is_withheld(field);
        }
    }

    /// The elements of all lines of a field that go on, as one list (RFC 9110 §5.3); empty if there is none.
    pub fn list(&self, buf: &[u8], name: &str, goes_on: impl Fn(&Field) -> bool) -> Vec<u8> {
        let is_named = |field: &&Field| field.name.bytes(buf).eq_ignore_ascii_case(name.as_bytes());
        let lines = self.iter().filter(is_named).filter(|field| goes_on(field) && !field.value.is_empty());
        lines.map(|field| field.value.bytes(buf)).collect::<Vec<&[u8]>>().join(&b", "[..])
    }

    /// Withholds fields of such kinds.
    pub fn withhold_kinds(&mut self, is_withheld: impl Fn(Name) -> bool) {
        for field in self.iter_mut() {
            field.forward &= !is_withheld(field.kind);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.length = 0;
        self.more.clear();
    }

    /// Writes the lines that go on, as they came; runs of neighbours in one copy.
    pub fn write_forwarded(&self, buf: &[u8], out: &mut Vec<u8>) {
        self.write_some(buf, 0..0, |_| true, out);
    }

    /// The same of some kinds, behind a run of bytes that goes on as well.
    pub(crate) fn write_some(
        &self,
        buf: &[u8],
        mut run: Range<usize>,
        is_written: impl Fn(Name) -> bool,
        out: &mut Vec<u8>,
    ) {
        for field in self.iter().filter(|f| f.forward && is_written(f.kind)) {
            if field.plain {
                let (start, end) = (field.name.start as usize, field.value.end as usize + 2);
                if run.end == start {
                    run.end = end;
                } else {
                    out.extend_from_slice(&buf[run]);
                    run = start..end;
                }
                continue;
            }
            out.extend_from_slice(&buf[run]);
            run = 0..0;
            write_line(field.name.bytes(buf), field.value.bytes(buf), out);
        }
        out.extend_from_slice(&buf[run]);
    }
}

/// Names that the fields of every message are compared with. Most fields have a length that none of them has, and are
/// told apart by that.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    names: Vec<String>,
    /// Bit of each length; the last is that of all that are longer.
    lengths: u64,
}

impl NameSet {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether it has this name.
    #[inline]
    pub fn has(&self, name: &[u8]) -> bool {
        self.may_have(name) && self.names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    }

    /// Whether it has this name, or one that a server which takes odd bytes for `-` would read as it.
    #[inline]
    fn has_like(&self, name: &[u8]) -> bool {
        self.may_have(name) && self.names.iter().any(|known| is_same_or_lookalike(name, known))
    }

    #[inline(always)]
    fn may_have(&self, name: &[u8]) -> bool {
        self.lengths & length_bit(name) != 0
    }
}

impl FromIterator<String> for NameSet {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> NameSet {
        let names: Vec<String> = names.into_iter().collect();
        let lengths = names.iter().map(|name| length_bit(name.as_bytes())).fold(0, |lengths, bit| lengths | bit);
        NameSet { names, lengths }
    }
}

fn length_bit(name: &[u8]) -> u64 {
    1 << name.len().min(63)
}

/// Whether a field has this name, or one that a server which takes odd bytes for `-` would read as it.
pub fn is_same_or_lookalike(name: &[u8], ours: &str) -> bool {
    name.len() == ours.len()
        && name.iter().zip(ours.bytes()).all(|(&byte, known)| match known {
            b'-' => byte == b'-' || class(byte) & ODD != 0,
            _ => byte.eq_ignore_ascii_case(&known),
        })
}

#[inline]
pub fn write_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a line of a name that is known here: `begin` is `name: `. Inlined, so that no memory is copied for the name.
#[inline(always)]
pub(crate) fn write_known(begin: &'static [u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(begin);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a list without its empty elements, which no sender may make (RFC 9110 §5.6.1.1).
pub(crate) fn write_elements(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    let mut before: &[u8] = b": ";
    for element in super::grammar::elements(value) {
        out.extend_from_slice(before);
        out.extend_from_slice(element);
        before = b", ";
    }
    out.extend_from_slice(b"\r\n");
}

/// Finds the lines of a head while it arrives, and remembers where it stopped: every byte is looked at once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lines {
    /// Offset at which the line in progress begins.
    pub next: usize,
    /// Up to where it is known to be free of controls; `next` or later.
    scanned: usize,
}

impl Lines {
    /// The next line without its CRLF, or none while its end is not there. Inlined, as [`parse_field`] is, into the one
    /// loop of each kind of head: a call and a result in memory cost as much as half a line.
    #[inline(always)]
    pub fn next(&mut self, buf: &[u8]) -> Result<Option<Span>, Reject> {
        let Some(found) = first_control(&buf[self.scanned..]) else {
            self.scanned = buf.len();
            return Ok(None);
        };
        let at = self.scanned + found;
        self.scanned = at;
        match (buf[at], buf.get(at + 1)) {
            (b'\r', None) => Ok(None),
            (b'\r', Some(b'\n')) => {
                let line = Span::new(self.next, at);
                self.next = at + 2;
                self.scanned = self.next;
                Ok(Some(line))
            }
            (b'\r', Some(_)) => Err(Reject::of(Fault::BareCr)),
            (b'\n', _) => Err(Reject::of(Fault::BareLf)),
            _ => Err(Reject::of(Fault::ControlByte)),
        }
    }

    pub fn at(start: usize) -> Lines {
        Lines { next: start, scanned: start }
    }
}

/// Reads `name: value` out of a line that is known to hold no control but HTAB. `first` tells a fold from a head that
/// begins with whitespace.
#[inline(always)]
pub(crate) fn parse_field(buf: &[u8], line: Span, first: bool) -> Result<Field, Reject> {
    let text = line.bytes(buf);
    let (length, odd) = token_prefix(text);
    let value = match text.get(length..) {
        Some([b':', value @ ..]) if length > 0 => value,
        _ => return Err(Reject::of(bad_name(text, length, first))),
    };
    let start = line.start as usize;
    let blank = |byte: u8| matches!(byte, b' ' | b'\t');
    let (from, to) = match value {
        [b' ', first, .., last] if !blank(*first) && !blank(*last) => (1, value.len()),
        _ => trim(value),
    };
    let name = Span::new(start, start + length);
    let value_start = start + length + 1;
    Ok(Field {
        name,
        value: Span::new(value_start + from, value_start + to),
        kind: Name::of(name.bytes(buf)),
        forward: true,
        plain: from == 1 && value[0] == b' ' && to == value.len(),
        odd,
        secret: false,
    })
}

/// Checks the name of a field of HTTP/2 (RFC 9113 §8.2.1); says whether it has token bytes other than letters, digits
/// and
/// `-`.
pub(crate) fn check_name(name: &[u8]) -> Result<bool, Fault> {
    if name.is_empty() {
        return Err(Fault::EmptyFieldName);
    }
    let (mut seen, mut missing) = (0, false);
    for &byte in name {
        let class = class(byte);
        seen |= class;
        missing |= class & TOKEN == 0 || byte.is_ascii_uppercase();
    }
    if missing { Err(Fault::BadFieldName) } else { Ok(seen & ODD != 0) }
}

/// Checks the value of a field of HTTP/2 (RFC 9113 §8.2.1).
pub(crate) fn check_value(value: &[u8]) -> Option<Fault> {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    match first_control(value) {
        Some(_) => Some(Fault::ControlByte),
        None if is_blank(value.first()) || is_blank(value.last()) => Some(Fault::SpaceAroundValue),
        None => None,
    }
}

#[cold]
fn bad_name(text: &[u8], length: usize, first: bool) -> Fault {
    match (length, text.get(length)) {
        (0, Some(b' ' | b'\t')) if first => Fault::SpaceBeforeFirstField,
        (0, Some(b' ' | b'\t')) => Fault::FoldedField,
        (0, Some(b':')) => Fault::EmptyFieldName,
        (_, Some(b' ' | b'\t')) => Fault::SpaceInFieldName,
        (_, None) => Fault::FieldWithoutColon,
        _ => Fault::BadFieldName,
    }
}

/// The end of what may be looked at: a head is judged by its first `head_bytes`, however many are in the buffer, so
/// that the verdict does not depend on how the bytes arrived.
pub(crate) fn window<'a>(buf: &'a [u8], limits: &Limits) -> &'a [u8] {
    &buf[..buf.len().min(limits.head_bytes)]
}

/// Content of the Connection fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub close: bool,
    pub keep_alive: bool,
    pub upgrade: bool,
    /// Nominates Host, Content-Length or Transfer-Encoding.
    pub framing: bool,
    count: usize,
    /// Some option may be a field's name.
    others: bool,
}

/// Bounds the work of comparing nominations with fields.
const CONNECTION_OPTIONS_MAX: usize = 32;

impl Options {
    pub fn read(&mut self, value: &[u8]) -> Result<(), Reject> {
        let is = |option: &[u8], known: &str| option.eq_ignore_ascii_case(known.as_bytes());
        for option in super::grammar::list(value) {
            self.count += 1;
            if self.count > CONNECTION_OPTIONS_MAX {
                return Err(Reject::of(Fault::TooManyConnectionOptions));
            }
            match option.len() {
                0 => {}
                5 if is(option, "close") => self.close = true,
                10 if is(option, "keep-alive") => self.keep_alive = true,
                7 if is(option, "upgrade") => self.upgrade = true,
                _ => match Name::of(option) {
                    Name::Host | Name::ContentLength | Name::TransferEncoding => self.framing = true,
                    Name::Other => self.others = true,
                    _ => {}
                },
            }
        }
        Ok(())
    }
}

impl Fields {
    /// Takes out the fields that Connection names (RFC 9110 §7.6.1), of those whose names mean nothing to us.
    #[inline]
    pub(crate) fn drop_nominated(&mut self, buf: &[u8], options: &Options) {
        if options.others {
            self.drop_named(buf);
        }
    }

    /// Apart from its condition, which hardly any head meets: its list takes half a kilobyte of the stack.
    #[cold]
    fn drop_named(&mut self, buf: &[u8]) {
        // There are no more of them than `Options::read` lets through, and what is no field's name is met by none.
        let mut named: [&[u8]; CONNECTION_OPTIONS_MAX] = [b""; _];
        let mut count = 0;
        let options = self.of_kind(Name::Connection).flat_map(|field| super::grammar::list(field.value.bytes(buf)));
        for (place, option) in named.iter_mut().zip(options) {
            *place = option;
            count += 1;
        }
        for field in self.iter_mut().filter(|f| f.kind == Name::Other) {
            let name = field.name.bytes(buf);
            if named[..count].iter().any(|n| n.eq_ignore_ascii_case(name)) {
                field.forward = false;
            }
        }
    }
}

/// The values of all cookies of a name, in the order in which they came (RFC 6265 §5.4).
pub fn cookies<'a>(fields: &'a Fields, buf: &'a [u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let lines = fields.iter().filter(|field| field.name.len() == 6);
    let lines = lines.filter(|field| field.name.bytes(buf).eq_ignore_ascii_case(b"cookie"));
    lines.flat_map(|field| field.value.bytes(buf).split(|byte| *byte == b';')).filter_map(move |pair| {
        let value = pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        // Some clients send quotes back (RFC 6265 §4.1.1).
        Some(value.strip_prefix(b"\"").and_then(|inner| inner.strip_suffix(b"\"")).unwrap_or(value))
    })
}
