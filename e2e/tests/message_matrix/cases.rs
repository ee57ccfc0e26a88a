//! The dimensions of the matrix, and what each of its cases has to come to.

/// A version of HTTP, of the client's side or of the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// By prior knowledge.
    Http2,
    /// The same by ALPN.
    Http2Tls,
}

impl Protocol {
    pub const ALL: [Protocol; 3] = [Protocol::Http1, Protocol::Http2, Protocol::Http2Tls];

    pub fn is_http2(self) -> bool {
        self != Protocol::Http1
    }
}

/// Of the sides that speak HTTP/2 one in so many does so over TLS.
const OVER_TLS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    None,
    Length,
    /// Its length is not announced.
    Open,
}

/// What a server sends for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Empty,
    Length,
    /// Chunked, or DATA without a Content-Length.
    Open,
    /// Of HTTP/1 alone.
    UntilClose,
    /// More than its Content-Length.
    TooLong,
    /// Less than its Content-Length, and yet an end.
    TooShort,
    /// A Content-Length and nothing behind it.
    Promised,
}

/// How a server breaks off. Those with a code are RST_STREAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    NoError,
    Cancel,
    InternalError,
    Close,
    Reset,
}

/// After what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Request,
    Head,
    Body,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub client: Protocol,
    pub server: Protocol,
    pub method: &'static str,
    pub request_body: RequestBody,
    pub status: u16,
    pub body: Body,
    /// Of the body, as it should be.
    pub bytes: usize,
    /// Interim responses before it.
    pub interim: usize,
    pub trailers: bool,
    /// Where there is no body the stream's end comes in a frame of its own.
    pub late_end: bool,
    /// The answer comes when half of the request's body is there.
    pub early: bool,
    pub broken: Option<(Break, Place)>,
}

/// What the client has to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server's response, whole.
    Whole,
    /// The same, and the server's fault is told: it has sent more than there may be.
    Excess,
    /// No response, a broken one, or one of the engine's own; the fault is told.
    Broken,
    /// The response whole or none of it, as luck has it.
    Either,
}

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"];
const STATUSES: [u16; 9] = [101, 200, 204, 205, 206, 304, 404, 500, 503];
const BODIES: [Body; 7] =
    [Body::Empty, Body::Length, Body::Open, Body::UntilClose, Body::TooLong, Body::TooShort, Body::Promised];
const REQUEST_BODIES: [RequestBody; 3] = [RequestBody::None, RequestBody::Length, RequestBody::Open];
const BREAKS: [Break; 5] = [Break::NoError, Break::Cancel, Break::InternalError, Break::Close, Break::Reset];
const PLACES: [Place; 3] = [Place::Request, Place::Head, Place::Body];
const BYTES: [usize; 4] = [1, 70, 3_000, 20_000];

/// Every combination of versions, method, status and bodies once, the rest of it by chance; and so many that are broken off,
/// of all of those.
pub fn cases(random: &mut fastrand::Rng, broken: usize) -> Vec<Case> {
    let mut cases: Vec<Case> = whole(random).collect();
    let mut others: Vec<Case> = whole(random).collect();
    random.shuffle(&mut others);
    for case in others.into_iter().cycle().take(broken) {
        let place = PLACES[random.usize(..PLACES.len())];
        let how = BREAKS[random.usize(..BREAKS.len())];
        cases.push(Case { broken: Some((how, place)), ..case });
    }
    for case in &mut cases {
        for side in [&mut case.client, &mut case.server] {
            if side.is_http2() && random.usize(..OVER_TLS) == 0 {
                *side = Protocol::Http2Tls;
            }
        }
    }
    cases.retain(Case::can_be);
    random.shuffle(&mut cases);
    cases
}

fn whole(random: &mut fastrand::Rng) -> impl Iterator<Item = Case> {
    let mut cases = Vec::new();
    for client in [Protocol::Http1, Protocol::Http2] {
        for server in [Protocol::Http1, Protocol::Http2] {
            for method in METHODS {
                for request_body in REQUEST_BODIES {
                    for status in STATUSES {
                        cases.extend(BODIES.map(|body| Case {
                            client,
                            server,
                            method,
                            request_body,
                            status,
                            body,
                            bytes: BYTES[random.usize(..BYTES.len())],
                            interim: random.usize(..6) / 4,
                            trailers: random.u8(..4) == 0,
                            late_end: random.bool(),
                            early: random.u8(..4) == 0,
                            broken: None,
                        }));
                    }
                }
            }
        }
    }
    cases.into_iter()
}

impl Case {
    /// A plain request and a plain answer.
    pub fn plain(client: Protocol, server: Protocol) -> Case {
        Case {
            client,
            server,
            method: "GET",
            request_body: RequestBody::None,
            status: 200,
            body: Body::Length,
            bytes: 70,
            interim: 0,
            trailers: false,
            late_end: false,
            early: false,
            broken: None,
        }
    }

    fn can_be(&self) -> bool {
        let reset_of_stream = matches!(self.broken, Some((Break::NoError | Break::Cancel | Break::InternalError, _)));
        let of_http2 = reset_of_stream && self.server == Protocol::Http1;
        let of_http1 = self.body == Body::UntilClose && self.server.is_http2();
        // A close is this body's end, wherever it comes.
        let ended =
            self.body == Body::UntilClose && matches!(self.broken, Some((Break::Close, Place::Head | Place::Body)));
        let not_early = self.early && self.request_body == RequestBody::None;
        let switched = self.status == 101 && (self.body != Body::Empty || self.trailers);
        !(of_http2 || of_http1 || ended || not_early || switched)
    }

    /// RFC 9110 §6.4.1.
    pub fn has_no_body(&self) -> bool {
        self.method == "HEAD" || matches!(self.status, 204 | 304)
    }

    pub fn is_idempotent(&self) -> bool {
        self.method != "POST"
    }

    /// Bytes that the server sends for a body.
    pub fn sent(&self) -> usize {
        match self.body {
            Body::Empty | Body::Promised => 0,
            Body::Length | Body::Open | Body::UntilClose => self.bytes,
            Body::TooLong => self.bytes + 9,
            Body::TooShort => self.bytes / 2,
        }
    }

    /// Bytes of the body that the client gets of a whole response.
    pub fn wanted(&self) -> usize {
        match self.body {
            _ if self.has_no_body() => 0,
            Body::TooLong => self.bytes,
            _ => self.sent(),
        }
    }

    pub fn verdict(&self) -> Verdict {
        // There is no such thing in HTTP/2 (RFC 9113 §8.6), and in HTTP/1.1 nobody has asked for it.
        if self.status == 101 {
            return Verdict::Broken;
        }
        match self.broken {
            Some((_, Place::Request)) => Verdict::Broken,
            Some(_) => self.broken_verdict(),
            None => self.ended_verdict(),
        }
    }

    fn ended_verdict(&self) -> Verdict {
        let fits = match self.server {
            Protocol::Http1 => Verdict::Excess,
            // The whole stream is malformed (RFC 9113 §8.1.1).
            Protocol::Http2 | Protocol::Http2Tls => Verdict::Either,
        };
        match self.body {
            _ if self.has_no_body() && self.sent() > 0 => Verdict::Excess,
            _ if self.has_no_body() => Verdict::Whole,
            Body::TooLong => fits,
            Body::TooShort | Body::Promised => Verdict::Broken,
            Body::Empty | Body::Length | Body::Open | Body::UntilClose => Verdict::Whole,
        }
    }

    /// Of one that is broken off behind its head.
    fn broken_verdict(&self) -> Verdict {
        let is_whole_already = self.has_no_body() || (self.body == Body::Empty && self.server == Protocol::Http1);
        match self.body {
            _ if is_whole_already => Verdict::Either,
            // The end of its stream was yet to come, and over HTTP/1 there is nothing to be seen of that.
            Body::Empty | Body::TooLong => Verdict::Either,
            _ => Verdict::Broken,
        }
    }
}

/// The beginning of a body that would read as another response, were it taken for one.
pub fn body(tag: &str, bytes: usize) -> Vec<u8> {
    let response = b"\r\n\r\nHTTP/1.1 200 OK\r\nX-Tag: stolen\r\nContent-Length: 6\r\n\r\nstolen";
    tag.bytes().chain(response.iter().copied().cycle()).take(bytes).collect()
}
