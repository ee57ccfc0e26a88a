//! Changes by the admin address: who may, what was asked for, and what is answered.
//!
//! Clients of a Unix socket may; by TCP a token is asked for, and without a token file there are no changes at
//! all. Of pages in somebody's browser the dashboard alone may, with a token that a person has typed into it: browsers
//! say where a request comes from, and any other page cannot send the token's field or our media types without asking
//! first (the Fetch standard's preflight), to which there is no answer here.

use std::borrow::Cow;
use std::io;
use std::num::{NonZeroU16, NonZeroU32};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, IF_MATCH, ORIGIN, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use propylon_cluster::TEXT_BYTES_MAX;
use propylon_config::{Problem, SOURCE_BYTES_MAX};
use propylon_metrics::Store;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::context::AdminContext;
use super::response::{only_looking, typed};
use crate::audit::Caller;
use crate::requests::{Change, ChangeError, ChangeOutcome, ChangeRequest, Refused, Settings};
use crate::sandbox;

/// From the end of the head to the end of the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A chain with its key.
pub const PEM_BYTES_MAX: usize = 256 * 1024;
pub(super) const PEM_BODY: BodyKind = BodyKind {
    bytes_max: PEM_BYTES_MAX,
    when_longer: "send one chain and its key, and no other certificates",
    when_no_text: PEM_FIX,
};
/// A configuration that engines of a cluster share, which goes into etcd.
pub(super) const SHARED_BODY: BodyKind =
    BodyKind { bytes_max: TEXT_BYTES_MAX, when_longer: SHARED_TOO_LONG, when_no_text: AS_TEXT };
const CONFIG_BODY: BodyKind = BodyKind {
    bytes_max: SOURCE_BYTES_MAX,
    when_longer: "take comments out of it, and see that it is a configuration",
    when_no_text: AS_TEXT,
};
/// A description of a server.
const SERVER_BODY: BodyKind = BodyKind {
    bytes_max: 4 * 1024,
    when_longer: "send the server's settings alone, as the manual's \"Admin API\" has them",
    when_no_text: AS_TEXT,
};
const AS_TEXT: &str = "save it as UTF-8";
/// Remedy for a configuration that is too long for etcd.
pub const SHARED_TOO_LONG: &str = "take comments out of it, put certificates with `propylon cluster certificate put`, \
    have long lists and texts in files that every engine has, or make several clusters of one";
/// Field with the name of the person at the dashboard, percent-encoded. It proves nothing.
const PERSON: &str = "propylon-person";
/// A wrong token is answered after this: there are few connections, so it slows guessing down.
const WRONG_TOKEN_WAIT: Duration = Duration::from_millis(250);
/// A token that is shorter could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// A kind of body, and what to do about one that is none.
pub(super) struct BodyKind {
    bytes_max: usize,
    when_longer: &'static str,
    when_no_text: &'static str,
}

/// An answer that says what is wrong.
pub(super) struct Wrong {
    status: StatusCode,
    what: String,
    fix: Cow<'static, str>,
    /// One of `telemetry::ADMIN_REFUSALS`, where it is counted.
    counted: Option<&'static str>,
}

impl Wrong {
    pub(super) fn new(status: StatusCode, what: impl Into<String>, fix: impl Into<Cow<'static, str>>) -> Wrong {
        Wrong { status, what: what.into(), fix: fix.into(), counted: None }
    }

    fn counted(self, reason: &'static str) -> Wrong {
        Wrong { counted: Some(reason), ..self }
    }
}

/// The request's meaning by path and method, before the body is read.
enum Operation {
    Config,
    Reload,
    AddServer(String),
    ChangeServer(String, String),
    RemoveServer(String, String),
    PutCertificate(String, String),
    RemoveCertificate(String, String),
}

/// Answers whatever is not just looking.
pub(super) async fn answer(request: Request<Incoming>, by: Caller, context: &AdminContext) -> Response<Full<Bytes>> {
    let by = named(by, request.headers());
    match proceed(request, by.clone(), context).await {
        Ok(response) => response,
        Err(wrong) => wrong.answer(&by, context).await,
    }
}

impl Wrong {
    /// Counts and logs it, and answers.
    pub(super) async fn answer(self, by: &Caller, context: &AdminContext) -> Response<Full<Bytes>> {
        let metrics = &context.view.telemetry.process.reloads;
        if let Some(counter) = self.counted.and_then(|reason| metrics.refused(reason)) {
            let store = &context.view.store;
            Store::column(store, store.columns() - 1).increment(counter);
        }
        if self.counted.is_some() {
            context.refusals.record(&self.what, by, Instant::now());
        }
        if self.counted == Some("wrong-token") {
            sleep(WRONG_TOKEN_WAIT).await;
        }
        let problem = Problem::error("request", None, self.what, self.fix);
        let mut response = refused(self.status, &[problem]);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Tries the cluster's configuration in the body: what it would change here.
pub(super) async fn try_out(
    request: Request<Incoming>,
    by: Caller,
    context: &AdminContext,
) -> Result<Response<Full<Bytes>>, Wrong> {
    let kind = media_type(&request, &["application/json", "application/toml"])?;
    let text = body(request, &SHARED_BODY).await?;
    let change = Change::Cluster { text, is_json: kind == "application/json" };
    make(change, by, true, None, context).await
}

async fn proceed(
    request: Request<Incoming>,
    by: Caller,
    context: &AdminContext,
) -> Result<Response<Full<Bytes>>, Wrong> {
    let Some(operation) = operation(request.method(), request.uri().path())? else { return Ok(only_looking()) };
    authorize(request.headers(), context)?;
    let dry_run = is_dry_run(request.uri().query())?;
    let generation = if_match(request.headers())?;
    let change = operation.with_body(request).await?;
    make(change, by, dry_run, generation, context).await
}

/// Has a change made, and answers with what came of it.
async fn make(
    change: Change,
    by: Caller,
    dry_run: bool,
    generation: Option<u64>,
    context: &AdminContext,
) -> Result<Response<Full<Bytes>>, Wrong> {
    let (reply, outcome) = oneshot::channel();
    let gone = |_| Wrong::new(StatusCode::SERVICE_UNAVAILABLE, "the engine is ending", "ask its successor");
    let by = Caller { has_token: context.token_file.is_some(), ..by };
    let request = ChangeRequest { change, by, dry_run, generation, reply };
    // Waits while others' changes are made; the connection's own time is its limit.
    context.change_requests.send(request).await.map_err(|_| gone(()))?;
    let outcome = outcome.await.map_err(|_| gone(()))?;
    Ok(match outcome {
        Ok(done) => accepted(&done, dry_run),
        Err(ChangeError::OtherGeneration(current)) => {
            let what = format!("generation {current} is in effect");
            let problem = Problem::error("If-Match", None, what, "read /v1/config again, and decide anew");
            refused(StatusCode::PRECONDITION_FAILED, &[problem])
        }
        Err(ChangeError::Refused(why)) => {
            let one = |what: String, fix: &str| vec![Problem::error("request", None, what, fix)];
            match why {
                Refused::Problems(problems) => refused(StatusCode::UNPROCESSABLE_ENTITY, &problems),
                Refused::Forbidden(what, fix) => refused(StatusCode::CONFLICT, &one(what, fix)),
                Refused::Unknown(what) => refused(StatusCode::NOT_FOUND, &one(what, "see /v1/snapshot")),
                Refused::Taken(what) => refused(StatusCode::CONFLICT, &one(what, "use PATCH to change it")),
                Refused::Unwritten(what) => {
                    refused(StatusCode::INTERNAL_SERVER_ERROR, &one(what, "check that folder, its rights and the disk"))
                }
            }
        }
    })
}

/// Parses path and method; `None` if nothing can be changed at this path.
fn operation(method: &Method, path: &str) -> Result<Option<Operation>, Wrong> {
    let segments: Option<Vec<String>> = path.trim_start_matches('/').split('/').map(decoded).collect();
    let wrong = || Wrong::new(StatusCode::BAD_REQUEST, "the path cannot be decoded", "encode it as UTF-8");
    let segments = segments.ok_or_else(wrong)?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let own = |text: &str| text.to_owned();
    // The path of a Unix socket has slashes of its own, written as `%2F` or as they are.
    let address = |parts: &[&str]| matches!(parts, [_] | ["unix:", ..]).then(|| parts.join("/"));
    Ok(match (method, segments.as_slice()) {
        (&Method::PUT, ["v1", "config"] | ["config"]) => Some(Operation::Config),
        (&Method::POST, ["v1", "reload"]) => Some(Operation::Reload),
        (&Method::POST, ["v1", "backends", name, "servers"]) => Some(Operation::AddServer(own(name))),
        (&Method::PATCH, ["v1", "backends", name, "servers", parts @ ..]) => {
            address(parts).map(|address| Operation::ChangeServer(own(name), address))
        }
        (&Method::DELETE, ["v1", "backends", name, "servers", parts @ ..]) => {
            address(parts).map(|address| Operation::RemoveServer(own(name), address))
        }
        (&Method::PUT, ["v1", "certificates", profile, name]) => {
            Some(Operation::PutCertificate(own(profile), own(name)))
        }
        (&Method::DELETE, ["v1", "certificates", profile, name]) => {
            Some(Operation::RemoveCertificate(own(profile), own(name)))
        }
        _ => None,
    })
}

/// Remedy for a certificate that is not text.
pub(super) const PEM_FIX: &str =
    "send PEM (from DER: openssl x509 -inform der and openssl pkey -inform der; from PKCS #12: openssl pkcs12 -noenc)";

impl Operation {
    async fn with_body(self, request: Request<Incoming>) -> Result<Change, Wrong> {
        Ok(match self {
            Operation::Reload => Change::ReadAgain,
            Operation::RemoveServer(backend, address) => Change::RemoveServer { backend, address },
            Operation::RemoveCertificate(profile, name) => Change::RemoveCertificate { profile, name },
            Operation::Config => {
                let kind = media_type(&request, &["application/json", "application/toml"])?;
                let text = body(request, &CONFIG_BODY).await?;
                Change::Push { text, is_json: kind == "application/json" }
            }
            Operation::AddServer(backend) => {
                media_type(&request, &["application/json"])?;
                let value = parse(&body(request, &SERVER_BODY).await?)?;
                let address = value["address"].as_str().ok_or_else(|| bad("`address` is missing"))?.to_owned();
                Change::AddServer { backend, address, settings: settings(&value, true)? }
            }
            Operation::ChangeServer(backend, address) => {
                media_type(&request, &["application/json"])?;
                let value = parse(&body(request, &SERVER_BODY).await?)?;
                Change::ChangeServer { backend, address, settings: settings(&value, false)? }
            }
            Operation::PutCertificate(profile, name) => {
                media_type(&request, &["application/x-pem-file", "application/pem-certificate-chain"])?;
                Change::PutCertificate { profile, name, pem: body(request, &PEM_BODY).await? }
            }
        })
    }
}

/// Adds what a request says of whoever sends it: program, browser, and the name that a person has given.
pub(super) fn named(by: Caller, headers: &HeaderMap) -> Caller {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let person = text(PERSON).and_then(decoded);
    let by = Caller { in_browser: headers.contains_key(ORIGIN), ..by.called(text("user-agent")) };
    by.of(person.as_deref())
}

/// Whether a request is a browser's, and from another page than ours.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let bytes = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    let is_ours = |origin: &[u8]| {
        let authority = [&b"http://"[..], b"https://"].iter().find_map(|scheme| origin.strip_prefix(*scheme));
        authority.is_some_and(|authority| {
            bytes(HOST.as_str()).is_some_and(|host| !host.is_empty() && host.eq_ignore_ascii_case(authority))
        })
    };
    headers.get_all(ORIGIN).iter().any(|origin| !is_ours(origin.as_bytes()))
        || bytes("sec-fetch-site").is_some_and(|site| site != b"same-origin" && site != b"none")
}

pub(super) fn authorize(headers: &HeaderMap, context: &AdminContext) -> Result<(), Wrong> {
    // Without a token nothing shows that a person meant it.
    if is_cross_site(headers) || headers.contains_key(ORIGIN) && context.token_file.is_none() {
        let what = "pages change nothing here, but for the dashboard with the token";
        let fix = "use the dashboard by the engine's own address, curl, or a program";
        return Err(Wrong::new(StatusCode::FORBIDDEN, what, fix).counted("cross-site"));
    }
    let Some(file) = &context.token_file else {
        if context.is_unix {
            return Ok(());
        }
        let fix = "set admin.token_file, or bind the admin API to a Unix socket";
        return Err(Wrong::new(StatusCode::FORBIDDEN, "this address is read only", fix).counted("read-only"));
    };
    let fix = "send `Authorization: Bearer TOKEN`, with what is in admin.token_file";
    let given = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let Some(given) = given else {
        return Err(Wrong::new(StatusCode::UNAUTHORIZED, "a token is needed", fix).counted("no-token"));
    };
    let token = token(file).map_err(|what| {
        log::error!("admin.token_file {}: {what}", file.display());
        Wrong::new(StatusCode::INTERNAL_SERVER_ERROR, "the token file cannot be used", "the log says why")
    })?;
    if !is_equal(given, token.as_bytes()) {
        return Err(Wrong::new(StatusCode::UNAUTHORIZED, "this is not the token", fix).counted("wrong-token"));
    }
    Ok(())
}

/// Reason why an existing token file cannot be used.
pub fn wrong_token_file(file: &Path) -> Option<String> {
    token(file).err()
}

/// Read each time, so that it can be replaced.
fn token(file: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(file).map_err(|error| unreadable(file, &error))?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err("anybody may read it; chmod o-rwx it".into());
    }
    if metadata.len() > TOKEN_FILE_BYTES_MAX {
        return Err(format!("it has more than {TOKEN_FILE_BYTES_MAX} bytes"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(file, &error))?;
    let token = text.trim();
    if token.len() < TOKEN_BYTES_MIN {
        return Err(format!("a token has at least {TOKEN_BYTES_MIN} characters; openssl rand -hex 32 makes one"));
    }
    Ok(token.to_owned())
}

/// Why the file cannot be read, and what to do.
fn unreadable(file: &Path, error: &io::Error) -> String {
    let cure = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "let the account that serves read it and search the folders above it (chgrp, chmod g+r; g+x)"
        }
        io::ErrorKind::NotFound => "put a token there; openssl rand -hex 32 makes one",
        _ => "look at the file",
    };
    format!("{}; {cure}", sandbox::explained(file, error))
}

/// In a time that tells nothing but the lengths.
fn is_equal(one: &[u8], two: &[u8]) -> bool {
    let differences = one.iter().zip(two).fold(0, |differences, (one, two)| differences | (one ^ two));
    one.len() == two.len() && std::hint::black_box(differences) == 0
}

fn is_dry_run(query: Option<&str>) -> Result<bool, Wrong> {
    match query {
        None | Some("" | "dry_run=0" | "dry_run=false") => Ok(false),
        Some("dry_run=1" | "dry_run=true" | "dry_run") => Ok(true),
        // A slip here must not change what was only to be tried.
        Some(_) => Err(Wrong::new(StatusCode::BAD_REQUEST, "this query is not known", "use ?dry_run=1, or none")),
    }
}

/// A generation, as an entity tag (RFC 9110 §13.1.1).
fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Wrong> {
    let Some(value) = headers.get(IF_MATCH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let generation = text.trim_matches('"').parse();
    let fix = "send the ETag of /v1/config, such as \"7\"";
    generation.map(Some).map_err(|_| Wrong::new(StatusCode::BAD_REQUEST, "If-Match is not a generation", fix))
}

pub(super) fn media_type(request: &Request<Incoming>, known: &[&'static str]) -> Result<&'static str, Wrong> {
    let value = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim();
    known.iter().find(|known| known.eq_ignore_ascii_case(kind)).copied().ok_or_else(|| {
        let what = format!("Content-Type has to be {}", known.join(" or "));
        Wrong::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what, "say what the body is")
    })
}

pub(super) async fn body(request: Request<Incoming>, kind: &BodyKind) -> Result<String, Wrong> {
    let BodyKind { bytes_max, when_longer, when_no_text } = *kind;
    let body = Limited::new(request.into_body(), bytes_max).collect();
    let late = |_| Wrong::new(StatusCode::REQUEST_TIMEOUT, "the body took too long", "send it faster");
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        if error.is::<http_body_util::LengthLimitError>() {
            let what = format!("the body has more than {bytes_max} bytes");
            return Wrong::new(StatusCode::PAYLOAD_TOO_LARGE, what, when_longer);
        }
        Wrong::new(StatusCode::BAD_REQUEST, "the body did not come whole", "send it again")
    };
    let collected = timeout(BODY_TIMEOUT, body).await.map_err(late)?.map_err(failed)?;
    let text = String::from_utf8(collected.to_bytes().to_vec());
    text.map_err(|_| Wrong::new(StatusCode::BAD_REQUEST, "the body is not UTF-8", when_no_text))
}

fn parse(text: &str) -> Result<Value, Wrong> {
    let value: Value = serde_json::from_str(text).map_err(|error| bad(format!("the body is not JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(bad("the body is not an object")) }
}

fn bad(what: impl Into<String>) -> Wrong {
    Wrong::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        what,
        "send an object with `weight` (1 to 256), `max_connections`, `drain` or `backup` (true or false)",
    )
}

fn settings(value: &Value, is_new: bool) -> Result<Settings, Wrong> {
    let mut settings = Settings::default();
    for (key, value) in value.as_object().into_iter().flatten() {
        match key.as_str() {
            "address" if is_new => {}
            "weight" => {
                let weight = value.as_u64().filter(|weight| (1..=256).contains(weight));
                let weight = weight.ok_or_else(|| bad("`weight` has to be a number from 1 to 256"))?;
                settings.weight = NonZeroU16::new(weight as u16);
            }
            "max_connections" => {
                let connections = value.as_u64().filter(|count| (1..=10_000_000).contains(count));
                let connections = connections.ok_or_else(|| bad("`max_connections` has to be from 1 to 10000000"))?;
                settings.max_connections = NonZeroU32::new(connections as u32);
            }
            "drain" => {
                settings.drain = Some(value.as_bool().ok_or_else(|| bad("`drain` has to be true or false"))?);
            }
            "backup" => {
                settings.backup = Some(value.as_bool().ok_or_else(|| bad("`backup` has to be true or false"))?);
            }
            key => return Err(bad(format!("`{key}` is not known here"))),
        }
    }
    if !is_new && settings == Settings::default() {
        return Err(bad("nothing is to be changed"));
    }
    Ok(settings)
}

/// A segment of a path, decoded (RFC 3986 §2.1).
pub(super) fn decoded(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|d| d.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = more;
    }
    String::from_utf8(bytes).ok()
}

fn accepted(done: &ChangeOutcome, dry_run: bool) -> Response<Full<Bytes>> {
    let result = match (dry_run, done.changes.is_empty()) {
        (true, _) => "dry-run",
        (false, true) => "unchanged",
        (false, false) => "applied",
    };
    let body = json!({
        "result": result,
        "generation": done.generation,
        "changes": done.changes,
        "warnings": problems(&done.warnings),
        "unusable_files": done.unusable.iter().map(|path| path.display().to_string()).collect::<Vec<String>>(),
    });
    typed("application/json", format!("{body:#}\n"))
}

pub(super) fn refused(status: StatusCode, all: &[Problem]) -> Response<Full<Bytes>> {
    let mut response =
        typed("application/json", format!("{:#}\n", json!({ "result": "refused", "problems": problems(all) })));
    *response.status_mut() = status;
    response
}

fn problems(problems: &[Problem]) -> Value {
    serde_json::from_str(&propylon_config::to_json(problems)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_what_is_to_be_changed_and_anything_else_is_only_looked_at() {
        let found = |method, path| operation(&method, path).ok().flatten();
        assert!(matches!(found(Method::PUT, "/v1/config"), Some(Operation::Config)));
        assert!(matches!(found(Method::POST, "/v1/reload"), Some(Operation::Reload)));
        let server = found(Method::DELETE, "/v1/backends/my%20app/servers/%5B::1%5D:80");
        assert!(matches!(server, Some(Operation::RemoveServer(app, at)) if app == "my app" && at == "[::1]:80"));
        for path in [
            "/v1/backends/app/servers/unix:%2Frun%2Fa%20b.sock",
            "/v1/backends/app/servers/unix:/run/a%20b.sock",
            "/v1/backends/app/servers/unix:/run%2Fa%20b.sock",
        ] {
            let server = found(Method::PATCH, path);
            let is_it = |at: &str| at == "unix:/run/a b.sock";
            assert!(matches!(server, Some(Operation::ChangeServer(_, at)) if is_it(&at)), "{path}");
        }
        for (method, path) in [
            (Method::POST, "/v1/config"),
            (Method::PUT, "/"),
            (Method::POST, "/metrics"),
            (Method::POST, "/backends/app/servers"),
            (Method::DELETE, "/v1/backends/app/servers"),
            (Method::PATCH, "/v1/backends/app/servers/a:1/more"),
        ] {
            assert!(found(method, path).is_none(), "{path}");
        }
        for bad in ["/v1/%zz", "/v1/%", "/v1/%f", "/v1/%ff", "/v1/%+1"] {
            assert!(operation(&Method::PUT, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tokens_are_equal_when_every_byte_is() {
        assert!(is_equal(b"0123456789abcdef", b"0123456789abcdef"));
        for other in [&b"0123456789abcdeg"[..], b"0123456789abcde", b"0123456789abcdef0", b""] {
            assert!(!is_equal(other, b"0123456789abcdef"));
        }
    }

    #[test]
    fn of_pages_the_dashboard_alone_is_heard() {
        let is_refused = |fields: &[(&'static str, &str)]| {
            let pairs = fields.iter().map(|(name, value)| {
                (hyper::header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            });
            is_cross_site(&pairs.collect())
        };
        let host = ("host", "127.0.0.1:9900");
        assert!(!is_refused(&[host]) && !is_refused(&[host, ("sec-fetch-site", "none")]));
        assert!(!is_refused(&[host, ("origin", "http://127.0.0.1:9900"), ("sec-fetch-site", "same-origin")]));
        assert!(!is_refused(&[("host", "Ops.example"), ("origin", "https://ops.example")]));
        for origin in
            ["null", "", "http://", "127.0.0.1:9900", "http://127.0.0.1:9901", "http://127.0.0.1:9900.evil.example"]
        {
            assert!(is_refused(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(is_refused(&[("origin", "http://")]) && is_refused(&[("host", ""), ("origin", "http://")]));
        assert!(is_refused(&[host, ("origin", "http://127.0.0.1:9900"), ("sec-fetch-site", "same-site")]));
        let mut twice: HeaderMap = [(HOST, HeaderValue::from_static("a"))].into_iter().collect();
        twice.append(ORIGIN, HeaderValue::from_static("http://a"));
        twice.append(ORIGIN, HeaderValue::from_static("http://b"));
        assert!(is_cross_site(&twice));
    }

    #[test]
    fn settings_are_whole_and_known() {
        let of = |text: &str, is_new| parse(text).and_then(|value| settings(&value, is_new)).ok();
        let full = of(r#"{"weight": 3, "max_connections": 9, "drain": true, "backup": false}"#, false).unwrap();
        assert_eq!((full.weight, full.drain, full.backup), (NonZeroU16::new(3), Some(true), Some(false)));
        assert!(of(r#"{"address": "a:1"}"#, true).is_some());
        for wrong in [
            "{}",
            "[]",
            "1",
            "{",
            r#"{"weight":0}"#,
            r#"{"weight":257}"#,
            r#"{"weight":"3"}"#,
            r#"{"x":1}"#,
            r#"{"drain":1}"#,
            r#"{"backup":"yes"}"#,
            r#"{"max_connections":0}"#,
            r#"{"address":"a:1"}"#,
        ] {
            assert!(of(wrong, false).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_slip_in_a_query_changes_nothing() {
        assert!(is_dry_run(Some("dry_run=1")).is_ok_and(|dry| dry));
        assert!(is_dry_run(None).is_ok_and(|dry| !dry));
        assert!(is_dry_run(Some("dryrun=1")).is_err() && is_dry_run(Some("dry_run=yes")).is_err());
    }
}
