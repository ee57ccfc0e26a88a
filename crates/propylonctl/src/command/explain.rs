//! `propylon explain`: what would become of a request, and why: listener, certificate, route, backend, servers.
//!
//! The command reads the configuration as `run` would and asks the same router and the same certificates; no engine
//! has to run and nothing is sent to anybody.

mod kinds;
mod sent;

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;

use propylon_config::{
    Action, At, Auth, Backend, BackendId, Balance, ClientFact, Config, HostPattern, Listener, ListenerId, PathPattern,
    Priority, Problem, Proof, Proofs, Protocol, Provenance, Route, RouteTimeouts, Server, Severity, Side, SideSticky,
    SideTo, Steps, TlsFact, TlsGroup, TlsSuite,
};
use propylon_http::fault::Fault;
use propylon_http::h1::{self, HOST_BYTES_MAX, Limits, Parsed, Reject, RequestHead};
use propylon_policy::route::Router;
use propylon_tls::{Identity, NameMatch, Profile, Served};
use serde_json::{Value, json};

use propylon_config::effective;
use propylon_control::isolation;
use propylon_control::origin;
use propylon_control::problems::problem;
use propylon_control::withheld;
use propylon_proxy::snapshot::{load_profiles, rule};
use propylon_steps::conditions::{self, Conditions};

use kinds::{BrowserCall, Script};
use sent::Sent;

/// Limits on a request line and its Host.
const LIMITS: Limits = Limits { head_bytes: 64 * 1024, headers: 100 };
const SECONDS_PER_DAY: i64 = 86_400;

#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration: TOML, or JSON if its name ends in .json
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: std::path::PathBuf,
    /// What the client asks for: http://HOST[:PORT]/PATH or https://...
    url: String,
    /// The server name in the client's TLS greeting, if it is not the URL's host; "" for none
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// The listener that the client comes in by, if the URL's port does not tell
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// The request's method
    #[arg(short = 'X', long = "request", value_name = "METHOD", default_value = "GET")]
    method: String,
    /// A field of the request, as in "X-Canary: yes"; repeat for more
    #[arg(short = 'H', long = "header", value_name = "LINE")]
    headers: Vec<String>,
    /// The client's address, for routes that ask for its source
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    source: IpAddr,
    /// A fact of the client's certificate, as in san=app.example; repeat for more. Facts: subject, issuer, serial,
    /// sha256, san
    #[arg(long, value_name = "FACT=TEXT", value_parser = client_fact)]
    client: Vec<(ClientFact, String)>,
    /// A fact of the client's TLS that is not as usual, as in version=TLSv1.2. Facts: version, alpn, ja4,
    /// suite, group
    #[arg(long, value_name = "FACT=TEXT", value_parser = tls_fact)]
    tls: Vec<(TlsFact, String)>,
    /// Print the answer as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Parts of a URL.
struct ParsedUrl {
    tls: bool,
    port: Option<u16>,
    /// As Host would have it.
    authority: String,
    /// In canonical form, as routes spell it: of the URL, or of a field Host that was given in its place.
    host: String,
    /// Name that the client's greeting has; none where the URL has an address.
    server_name: Option<String>,
    /// The request as it would be received.
    text: String,
    head: RequestHead,
}

/// The request's way at one listener.
struct Explanation<'a> {
    config: &'a Config,
    file: &'a Provenance,
    listener: &'a Listener,
    /// Certificates; `None` on plaintext, an error if the files cannot be used here, as on another machine than the
    /// engine's.
    certificates: Option<Result<Certificates, String>>,
    /// As it is written in the URL.
    received: String,
    /// Path that servers are asked for, or the reason why the listener refuses it.
    path: Result<String, Reject>,
    /// The path is the listener's for monitors.
    is_monitor: bool,
    /// Routes for the request's host and path, by position, the most specific first.
    routes: Vec<Candidate>,
    /// Changes that the route makes; none where it makes none.
    sent: Option<Sent>,
    /// Call that the request becomes; none where its route is not for those of browsers.
    call: Option<BrowserCall>,
}

/// A route for a request's listener, host and path.
struct Candidate {
    index: usize,
    /// The condition by which the request does not take it.
    unmet: Option<String>,
}

struct Certificates {
    profile: String,
    /// Name that was asked for.
    name: Option<String>,
    shown: Vec<(Served, NameMatch)>,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    match explain(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprint!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn explain(arguments: &Arguments) -> Result<(), String> {
    let asked = ParsedUrl::read(&arguments.url, &arguments.method, &arguments.headers)
        .map_err(|what| format!("propylon: {}: {what}\n", arguments.url))?;
    let Loaded { config, profiles, file, overrides } = load(&arguments.config)?;
    let listeners = listeners(&config, &asked, arguments).map_err(|what| format!("propylon: {what}\n"))?;
    let name = match arguments.sni.as_deref() {
        Some("") => None,
        Some(name) => Some(name.to_ascii_lowercase()),
        None => asked.server_name.clone(),
    };
    let identity = identity(&arguments.client);
    let explanations = listeners.into_iter().map(|index| {
        let listener = &config.listeners[index];
        let mut head = asked.head.clone();
        let fact = |asked| arguments.tls.iter().find(|(fact, _)| *fact == asked).map(|(_, text)| text.as_str());
        let port = asked.port.or_else(|| listener.bind.first().map(|bind| bind.address.port()));
        // Bytes that are relayed have no path.
        let path = match listener.protocol.is_relay() {
            true => Ok(()),
            false => head.canonicalize_target(asked.text.as_bytes(), listener.paths),
        };
        let (mut found, mut sent, mut call) = (Vec::new(), None, None);
        let monitored = listener.monitor_path.as_deref().map(str::as_bytes);
        let is_monitor = path.is_ok() && monitored == Some(head.path_key(asked.text.as_bytes()));
        if path.is_ok() && !is_monitor && listener.redirect_to_https.is_none() {
            let request = conditions::Request {
                head: &head,
                text: asked.text.as_bytes(),
                source: conditions::source(listener, arguments.source, &head, asked.text.as_bytes()),
                connection: conditions::Connection {
                    destination: port.map(|port| SocketAddr::new(arguments.source, port)),
                    version: asked.tls.then(|| fact(TlsFact::Version).unwrap_or("TLSv1.3")),
                    alpn: fact(TlsFact::Alpn).filter(|_| asked.tls),
                    server_name: name.as_deref().filter(|_| asked.tls),
                    ja4: fact(TlsFact::Ja4).filter(|_| asked.tls),
                    suite: fact(TlsFact::Suite).filter(|_| asked.tls).and_then(TlsSuite::named),
                    group: fact(TlsFact::Group).filter(|_| asked.tls).and_then(TlsGroup::named),
                    identity: identity.as_ref().filter(|_| asked.tls),
                },
            };
            found = routes(&config, index, &asked.host, &request);
            let route = taken(&found);
            sent = route.and_then(|route| Sent::of(&config, (index, route), &request));
            call = route.and_then(|route| BrowserCall::of(&config.routes[route], &request));
        }
        Explanation {
            config: &config,
            file: &file,
            listener,
            certificates: certificates(listener, profiles.as_deref(), name.clone()),
            received: asked.path().into_owned(),
            is_monitor,
            routes: found,
            sent,
            call,
            path: path.map(|()| String::from_utf8_lossy(head.path(asked.text.as_bytes())).into_owned()),
        }
    });
    print(arguments, &asked, &overrides, explanations);
    Ok(())
}

fn print<'a>(
    arguments: &Arguments,
    asked: &ParsedUrl,
    overrides: &[Problem],
    explanations: impl Iterator<Item = Explanation<'a>>,
) {
    if arguments.json {
        let all: Vec<Value> = explanations.map(|explanation| explanation.to_json()).collect();
        let overrides: Vec<String> = overrides.iter().map(|problem| problem.what.clone()).collect();
        let answer = json!({
            "url": arguments.url, "host": asked.host, "path": asked.path(), "listeners": all, "overrides": overrides,
        });
        println!("{answer}");
    } else {
        println!("{} (Host {}, path {})", arguments.url, asked.authority, asked.path());
        overrides.iter().for_each(|problem| println!("{problem}"));
        explanations.for_each(|explanation| print!("\n{}", explanation.to_text()));
    }
}

type Profiles = Result<Vec<Profile>, String>;

/// Reads `FACT=TEXT`.
fn fact<F: Copy>(text: &str, all: &[(&str, F)]) -> Result<(F, String), String> {
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    let (name, value) = text.split_once('=').ok_or("write it as FACT=TEXT")?;
    let fact = all.iter().find(|(known, _)| *known == name).map(|(_, fact)| *fact);
    let fact = fact.ok_or_else(|| format!("no fact is known as {name}; there are {}", names.join(", ")))?;
    Ok((fact, value.to_owned()))
}

fn client_fact(text: &str) -> Result<(ClientFact, String), String> {
    fact(text, &ClientFact::ALL)
}

fn tls_fact(text: &str) -> Result<(TlsFact, String), String> {
    fact(text, &TlsFact::ALL).and_then(|(fact, text)| match fact {
        TlsFact::ServerName => Err("the server name is given by --sni".to_owned()),
        TlsFact::Suite if TlsSuite::named(&text).is_none() => Err(format!("there is no cipher suite named {text}")),
        TlsFact::Group if TlsGroup::named(&text).is_none() => Err(format!("there is no group named {text}")),
        fact => Ok((fact, text)),
    })
}

/// The identity of a client of which these facts are known; `None` if nothing is.
fn identity(facts: &[(ClientFact, String)]) -> Option<Identity> {
    let of = |asked| facts.iter().filter(move |(fact, _)| *fact == asked).map(|(_, text)| text.as_str().into());
    let one = |asked| of(asked).next().unwrap_or_default();
    (!facts.is_empty()).then(|| Identity {
        subject: one(ClientFact::Subject),
        issuer: one(ClientFact::Issuer),
        serial: one(ClientFact::Serial),
        sha256: one(ClientFact::Sha256),
        names: of(ClientFact::San).collect(),
        certificate: None,
        chain: None,
    })
}

/// Configuration as `run` would use it.
struct Loaded {
    config: Config,
    /// TLS profiles by `TlsId`.
    profiles: Profiles,
    file: Provenance,
    /// Differences of `process.state` from the file.
    overrides: Vec<Problem>,
}

/// Reads the configuration as `run` would, with what the admin API has changed; an error is everything that is wrong with it.
fn load(path: &Path) -> Result<Loaded, String> {
    let merged = origin::read(path).map_err(|wrong| wrong.source.render(&wrong.problems))?;
    let overrides = merged.overrides();
    let origin::MergedConfig { source, config, .. } = merged;
    isolation::find_ordered_keys(&config.keys);
    let profiles = load_profiles(&config.tls).map(|(profiles, _)| profiles).map_err(|findings| {
        let problems = findings.iter().map(|finding| problem(&source, finding));
        let error = problems.into_iter().find(|problem| problem.severity == Severity::Error);
        error.map_or_else(String::new, |error| {
            format!("{}:{}: {}", error.file, error.at.unwrap_or_default().line, error.what)
        })
    });
    Ok(Loaded { config, profiles, file: source.name, overrides })
}

impl ParsedUrl {
    /// Reads a URL by the same strict rules as a request.
    fn read(url: &str, method: &str, headers: &[String]) -> Result<ParsedUrl, String> {
        let (scheme, rest) = url.split_once("://").ok_or("write the whole URL, as in https://shop.example/cart")?;
        let tls = match scheme {
            "https" | "wss" => true,
            "http" | "ws" => false,
            _ => return Err(format!("the scheme {scheme} is not served; use http or https")),
        };
        let split = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(split);
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.to_string() } else { format!("/{target}") };
        let is_host = |line: &str| line.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("host"));
        let own = if headers.iter().any(|line| is_host(line)) { "" } else { &format!("Host: {authority}\r\n") };
        let fields: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let text = format!("{method} {target} HTTP/1.1\r\n{own}{fields}\r\n");
        let mut head = RequestHead::default();
        match h1::parse_request(text.as_bytes(), &LIMITS, &mut head) {
            Ok(Parsed::Complete) if !authority.is_empty() => {}
            Ok(_) if authority.is_empty() => return Err("the URL has no host".into()),
            Ok(_) => return Err("that is no whole request; write a field as \"Name: value\"".into()),
            Err(reject) => return Err(format!("such a request is refused with {} ({})", reject.status, reject.fault)),
        }
        let mut scratch = [0; HOST_BYTES_MAX];
        let host = head.host_name(text.as_bytes(), &mut scratch).to_string();
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        // An address is no server name (RFC 6066 §3).
        let name = authority.split(':').next().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
        let server_name = is_name(&name).then_some(name);
        let authority = String::from_utf8_lossy(head.host.bytes(text.as_bytes())).into_owned();
        Ok(ParsedUrl { tls, port, authority, host, server_name, text, head })
    }

    /// As it is written.
    fn path(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.head.path(self.text.as_bytes()))
    }
}

/// Proof that a route asks for.
fn proof(auth: &Auth) -> String {
    let word = if matches!(auth.proofs, Proofs::All(_)) { ", and " } else { ", or " };
    auth.proofs.iter().map(one_proof).collect::<Vec<_>>().join(word)
}

fn one_proof(proof: &Proof) -> String {
    match proof {
        Proof::Basic(basic) => format!("a name and a password of {}", basic.file.display()),
        Proof::ApiKey(key) => match (&key.header, &key.query) {
            (_, Some(parameter)) => format!("a key in the parameter {parameter} of the query"),
            (header, None) => format!("a key in the field {}", header.as_deref().unwrap_or_default()),
        },
        Proof::Jwt(jwt) => match &jwt.cookie {
            Some(cookie) => format!("a token of {} in the cookie {cookie}", jwt.issuer),
            None => format!("a token of {}", jwt.issuer),
        },
        Proof::Forward(forward) => format!("the word of backend {}", forward.name),
    }
}

/// The way out for a path that is refused.
fn way_out(fault: Fault, listener: &str) -> String {
    let allowed = match fault {
        Fault::EscapedSlash => "%2F",
        Fault::BackslashInPath => "%5C",
        Fault::EscapedNul => "%00",
        Fault::PathAboveRoot => "..",
        Fault::HiddenSegment => {
            return "some servers see a `.` or `..` in it and others do not; nothing allows that".into();
        }
        _ => return "a `%` is followed by two hexadecimal digits; one that stands for itself is `%25`".into(),
    };
    format!(
        "servers differ in what they make of it; [listener.{listener}] lets it in with paths.allow = [\"{allowed}\"]"
    )
}

fn is_name(host: &str) -> bool {
    !host.is_empty() && !host.starts_with('[') && host.parse::<std::net::Ipv4Addr>().is_err()
}

/// The listeners that such a request can come in by.
fn listeners(config: &Config, asked: &ParsedUrl, arguments: &Arguments) -> Result<Vec<usize>, String> {
    let all = || {
        let describe = |listener: &Listener| format!("{} ({})", listener.name, addresses(listener));
        config.listeners.iter().map(describe).collect::<Vec<String>>().join(", ")
    };
    if let Some(name) = &arguments.listener {
        let found = config.listeners.iter().position(|listener| listener.name == *name);
        return found
            .map(|index| vec![index])
            .ok_or_else(|| format!("no listener named \"{name}\"; there are {}", all()));
    }
    let port = asked.port.unwrap_or(if asked.tls { 443 } else { 80 });
    let at_port = |listener: &Listener| listener.bind.iter().any(|bind| bind.address.port() == port);
    let found: Vec<usize> = (0..config.listeners.len()).filter(|&index| at_port(&config.listeners[index])).collect();
    if found.is_empty() {
        return Err(format!(
            "nothing listens at port {port}; give the URL a port, or --listener NAME: there are {}",
            all()
        ));
    }
    let speaks = |&index: &usize| config.listeners[index].tls.is_some() == asked.tls;
    let speaking: Vec<usize> = found.iter().copied().filter(speaks).collect();
    if speaking.is_empty() {
        let names: Vec<&str> = found.iter().map(|&index| config.listeners[index].name.as_str()).collect();
        let (has, scheme) = if asked.tls { ("has no TLS", "http") } else { ("speaks TLS", "https") };
        return Err(format!("listener {} at port {port} {has}; ask with {scheme}://", names.join(", ")));
    }
    Ok(speaking)
}

fn addresses(listener: &Listener) -> String {
    let scheme = match (listener.protocol, listener.tls) {
        (Protocol::Http, None) => "http",
        (Protocol::Http, Some(_)) => "https",
        (Protocol::Tcp, None) => "tcp",
        (Protocol::Tcp, Some(_)) | (Protocol::Passthrough, _) => "tls",
    };
    listener.bind.iter().map(|bind| format!("{scheme}://{}", bind.address)).collect::<Vec<String>>().join(", ")
}

fn certificates(
    listener: &Listener,
    profiles: Result<&[Profile], &String>,
    name: Option<String>,
) -> Option<Result<Certificates, String>> {
    let id = listener.tls?.0;
    Some(profiles.map_err(Clone::clone).map(|profiles| {
        let mut shown = profiles[id].shown_for(name.as_deref(), listener.prefer.as_deref());
        once(&mut shown);
        Certificates { profile: profiles[id].name().to_string(), name, shown }
    }))
}

/// Every route for the request's host and path, in the order in which they are tried.
fn routes(config: &Config, listener: usize, host: &str, request: &conditions::Request<'_>) -> Vec<Candidate> {
    let router = Router::new(config.routes.iter().map(rule).collect());
    let is_relay = config.listeners[listener].protocol.is_relay();
    let path = if is_relay { b"/" } else { request.head.path_key(request.text) };
    // A route for any listener is one for any http listener.
    let candidates = router.candidates(listener, host.as_bytes(), path);
    let candidates = candidates.filter(|index| !is_relay || config.routes[*index].listener.is_some());
    let unmet = |index: usize| {
        let conditions = Conditions::of(&config.routes[index])?;
        conditions.unmet(request).map(|unmet| unmet.to_string())
    };
    candidates.map(|index| Candidate { index, unmet: unmet(index) }).collect()
}

/// The first route whose conditions are met.
fn taken(routes: &[Candidate]) -> Option<usize> {
    routes.iter().find(|candidate| candidate.unmet.is_none()).map(|candidate| candidate.index)
}

impl Explanation<'_> {
    /// The route that the request takes.
    fn taken(&self) -> Option<usize> {
        taken(&self.routes)
    }

    fn place(&self, at: At) -> String {
        let (name, at) = self.file.place(at);
        format!("{name}:{}", at.line)
    }

    fn to_text(&self) -> String {
        let mut out = String::new();
        let mut line = |what: &str, text: &str| {
            let _ = writeln!(out, "{what:<12} {text}");
        };
        let listener = self.listener;
        line("listener", &format!("{} at {} ({})", listener.name, addresses(listener), self.place(listener.at)));
        match &self.certificates {
            None => {}
            Some(Ok(certificates)) => certificates.lines().iter().for_each(|(what, text)| line(what, text)),
            Some(Err(what)) => line("certificate", &format!("cannot be told: {what}")),
        }
        match &self.path {
            Ok(path) if *path != self.received => line("path", &format!("{path}, in canonical form")),
            _ => {}
        }
        match self.taken() {
            None if let Err(reject) = self.path => {
                line("answer", &format!("{} ({})", reject.status, reject.fault));
                line("", &way_out(reject.fault, &listener.name));
            }
            None if self.is_monitor => {
                line("answer", "200, or 503 while it drains: monitor_path goes before all routes");
            }
            None if let Some(redirect) = &listener.redirect_to_https => {
                line("answer", &format!("{} to https: redirect_to_https goes before all routes", redirect.status));
            }
            None if listener.protocol.is_relay() => line("route", "none matches: the connection is closed (no-route)"),
            None => {
                line("route", "none matches: 404 (no-route)");
                self.describe_others(usize::MAX, &mut line);
            }
            Some(taken) => {
                let route = &self.config.routes[taken];
                line("route", &format!("{} ({})", self.describe(route), self.place(route.at)));
                self.describe_others(taken, &mut line);
                if route.require_client_certificate {
                    line("", "asks for a client certificate; without one 403 (client-certificate-required)");
                }
                if let Some(auth) = &route.steps.auth {
                    line("", &format!("asks for {}; without one 401 (credentials-missing)", proof(auth)));
                }
                self.describe_guards(route, &mut line);
                let call = self.call.iter().flat_map(BrowserCall::lines);
                call.for_each(|(what, text)| line(what, &text));
                self.describe_split(route, &mut line);
                self.describe_action(&route.action, &mut line);
                self.describe_terms(&route.steps, &mut line);
                let changes = self.sent.iter().flat_map(Sent::lines);
                changes.for_each(|(what, text)| line(what, &text));
            }
        }
        out
    }

    /// The routes that the request does not take, and why.
    fn describe_others(&self, taken: usize, line: &mut impl FnMut(&str, &str)) {
        for Candidate { index, unmet } in self.routes.iter().filter(|candidate| candidate.index != taken) {
            let other = &self.config.routes[*index];
            let (what, place) = (self.describe(other), self.place(other.at));
            match unmet {
                Some(unmet) => line("", &format!("does not match {what} ({place}): {unmet}")),
                None => line("", &format!("goes before {what} ({place})")),
            }
        }
    }

    /// How a route divides its requests.
    fn describe_split(&self, route: &Route, line: &mut impl FnMut(&str, &str)) {
        let Some(split) = &route.steps.split else { return };
        let whole: u64 = split.sides.iter().map(|side| u64::from(side.weight)).sum();
        let side = |side: &Side| match side.to {
            SideTo::Backend(id) => {
                let is_changed = !side.request.is_empty() || !side.response.is_empty();
                let changes = if is_changed { " with changes of its own" } else { "" };
                format!("{} {} of {whole}{changes}", self.config.backends[id.0].name, side.weight)
            }
            SideTo::Respond(status) => format!("an answer of {status} {} of {whole}", side.weight),
        };
        line("split", &split.sides.iter().map(side).collect::<Vec<String>>().join(", "));
        match &split.sticky {
            Some(SideSticky::Cookie(cookie)) => {
                line("", &format!("a client keeps its side by the cookie {}", cookie.cookie))
            }
            Some(SideSticky::Hash(_)) => line("", "a client keeps its side by a hash"),
            None => {}
        }
    }

    /// Guards of a route and what it does to responses, as its keys have them.
    fn describe_guards(&self, route: &Route, line: &mut impl FnMut(&str, &str)) {
        let shown = effective::route(self.config, route);
        for limit in shown["limit"].as_array().into_iter().flatten() {
            line("limit", &limit.to_string());
        }
        for key in ["cors", "compress"] {
            if let Some(step) = shown.get(key).filter(|step| !step.is_null()) {
                line(key, &step.to_string());
            }
        }
        if let Some(statuses) = self.intercepted(route) {
            line("errors", &format!("pages in place of servers' responses with {}", statuses.join(", ")));
        }
    }

    /// Statuses for which a page takes the place of a server's response; `None` where servers' responses stay.
    fn intercepted(&self, route: &Route) -> Option<Vec<String>> {
        let (own, theirs) = (&route.steps.errors, &self.listener.errors);
        let is_on = own.intercept_errors.or(theirs.intercept_errors).unwrap_or(false);
        let pages = own.error_pages.iter().chain(&theirs.error_pages);
        let mut statuses: Vec<String> = pages.map(|page| page.statuses.to_string()).collect();
        statuses.sort_unstable();
        statuses.dedup();
        (is_on && !statuses.is_empty() && matches!(route.action, Action::Backend(_))).then_some(statuses)
    }

    /// Terms of a route in place of its backends'.
    fn describe_terms(&self, steps: &Steps, line: &mut impl FnMut(&str, &str)) {
        if steps.timeouts != RouteTimeouts::default() {
            line("timeouts", &json!(steps.timeouts).to_string());
        }
        if !steps.buffer.is_off() {
            line("buffer", &json!(steps.buffer).to_string());
        }
        if steps.priority != Priority::default() {
            line("priority", json!(steps.priority).as_str().unwrap_or_default());
        }
        if let Some(bytes) = steps.body_limit {
            line("body_limit", &format!("{bytes} bytes"));
        }
        if let Some(throttle) = &steps.throttle {
            line("throttle", &json!(throttle).to_string());
        }
        for mirror in &steps.mirrors {
            let percent = f64::from(mirror.millionths) / 10_000.0;
            line("mirror", &format!("{percent} % to {}", self.config.backends[mirror.backend.0].name));
        }
        if let Some(retries) = &steps.retries {
            line("retries", &json!(retries).to_string());
        }
        if let Some(hedge) = &steps.hedge {
            line("hedge", &json!(hedge).to_string());
        }
    }

    fn describe_action(&self, action: &Action, line: &mut impl FnMut(&str, &str)) {
        match action {
            Action::Backend(first) => {
                let steps = self.taken().map(|taken| &self.config.routes[taken].steps);
                self.describe_backend("backend", *first, line);
                let others = steps.and_then(|steps| steps.split.as_ref()).into_iter().flat_map(|split| &split.sides);
                let others = others.filter_map(Side::backend);
                others.skip(1).for_each(|backend| self.describe_backend("backend", backend, line));
                if let Some(fallback) = steps.and_then(|steps| steps.fallback) {
                    self.describe_backend("fallback", fallback, line);
                }
            }
            Action::Redirect(redirect) => line("answer", &format!("{} to another place", redirect.status)),
            Action::Respond(respond) => {
                line(
                    "answer",
                    &format!("{}, {} bytes of {}", respond.status, respond.body.len(), respond.content_type),
                );
            }
        }
    }

    fn describe_backend(&self, title: &str, id: BackendId, line: &mut impl FnMut(&str, &str)) {
        let backend = &self.config.backends[id.0];
        let text = format!("{}, {} ({})", backend.name, backend.balance.name(), self.place(backend.at));
        line(title, &text);
        for (position, server) in backend.servers.iter().enumerate() {
            let what = if position == 0 { "servers" } else { "" };
            let share = share(backend, server);
            line(what, &format!("{}, {share} ({})", server.address, self.place(server.at)));
        }
        if let Some(script) = self.script(backend) {
            script.lines().iter().for_each(|(what, text)| line(what, text));
        }
        if let Some(watched) = watched(backend) {
            line("health", &format!("{watched}; `propylon top` shows how they are now"));
        }
    }

    /// Script that the request runs, at servers of FastCGI.
    fn script<'b>(&self, backend: &'b Backend) -> Option<Script<'b>> {
        let target = match self.sent.as_ref().and_then(Sent::target) {
            Some(target) => target,
            None => self.path.as_ref().ok()?,
        };
        Some(Script::of(backend.fastcgi.as_ref()?, target))
    }

    /// A route's conditions in words.
    fn describe(&self, route: &Route) -> String {
        let host = match &route.host {
            HostPattern::Any => "any host".to_string(),
            HostPattern::Exact(name) => format!("host {name}"),
            HostPattern::Suffix(suffix) => format!("host *{suffix}"),
        };
        let path = match &route.path {
            PathPattern::Prefix(prefix) => format!("path from {prefix}"),
            PathPattern::Exact(path) => format!("exactly the path {path}"),
            PathPattern::Regex(pattern) => format!("path with the pattern {pattern}"),
        };
        let conditions = match route.conditions.is_empty() {
            true => String::new(),
            false => format!(", match {}", withheld::value("match", json!(route.conditions))),
        };
        let listener = route
            .listener
            .map_or_else(String::new, |ListenerId(id)| format!(", listener {}", self.config.listeners[id].name));
        format!("{host}, {path}{conditions}{listener}")
    }

    fn to_json(&self) -> Value {
        let place = |at: At| {
            let (name, at) = self.file.place(at);
            json!({ "file": name, "line": at.line, "column": at.column })
        };
        let route_json = |index: usize| {
            let route = &self.config.routes[index];
            json!({ "matches": self.describe(route), "at": place(route.at) })
        };
        let taken = self.taken();
        let others = || self.routes.iter().filter(|candidate| Some(candidate.index) != taken);
        let also = others().filter(|candidate| candidate.unmet.is_none()).map(|candidate| route_json(candidate.index));
        let unmet = others().filter_map(|candidate| {
            let mut value = route_json(candidate.index);
            value["unmet"] = json!(candidate.unmet.as_ref()?);
            Some(value)
        });
        let mut value = json!({
            "listener": { "name": self.listener.name, "at": place(self.listener.at) },
            "certificates": self.certificates.as_ref().map(|certificates| match certificates {
                Ok(certificates) => certificates.to_json(),
                Err(what) => json!({ "error": what }),
            }),
            "route": taken.map(route_json),
            "path": self.path.as_ref().ok(),
            "also_match": also.collect::<Vec<Value>>(),
            "do_not_match": unmet.collect::<Vec<Value>>(),
        });
        let Some(taken) = taken else {
            let unmatched = self.listener.redirect_to_https.as_ref().map_or(404, |redirect| redirect.status);
            value["status"] = json!(self.path.as_ref().map_or_else(|reject| reject.status, |_| unmatched));
            if self.is_monitor {
                (value["status"], value["reason"]) = (json!(200), json!("monitor_path"));
            }
            if let Err(reject) = &self.path {
                value["reason"] = json!(reject.fault.label());
            }
            return value;
        };
        let route = &self.config.routes[taken];
        self.add_steps(route, &mut value);
        match &route.action {
            Action::Backend(BackendId(id)) => {
                let backend = &self.config.backends[*id];
                let servers = backend.servers.iter().map(|server| {
                    json!({
                        "address": server.address.to_string(),
                        "weight": server.weight,
                        "backup": server.backup,
                        "at": place(server.at),
                    })
                });
                value["backend"] = json!({
                    "name": backend.name,
                    "balance": backend.balance.name(),
                    "servers": servers.collect::<Vec<Value>>(),
                    "health": backend.health.as_ref().map(effective::health),
                    "outlier": backend.outlier.as_ref().map(effective::outlier),
                    "script": self.script(backend).map(|script| script.to_json()),
                    "at": place(backend.at),
                });
            }
            Action::Redirect(redirect) => value["status"] = json!(redirect.status),
            Action::Respond(respond) => value["status"] = json!(respond.status),
        }
        value
    }
}

impl Explanation<'_> {
    /// Adds the steps of the route that is taken.
    fn add_steps(&self, route: &Route, value: &mut Value) {
        value["client_certificate"] = json!(route.require_client_certificate);
        let shown = effective::route(self.config, route);
        if route.steps.split.is_some() {
            value["split"] = shown["backend"].clone();
        }
        let keys = [
            "limit",
            "cors",
            "compress",
            "sticky",
            "fallback",
            "timeouts",
            "retries",
            "hedge",
            "body_limit",
            "throttle",
            "mirror",
            "error_pages",
            "error_format",
        ];
        for key in keys {
            if let Some(step) = shown.get(key) {
                value[key] = step.clone();
            }
        }
        value["intercept_errors"] = json!(self.intercepted(route));
        if let Some(auth) = &route.steps.auth {
            value["auth"] = json!(proof(auth));
        }
        value["grpc_web"] = json!(self.call.as_ref().map(BrowserCall::to_json));
        value["changes"] = json!(self.sent.as_ref().map(Sent::to_json));
    }
}

/// How it is found out that a server is not fit; none where nobody looks.
fn watched(backend: &Backend) -> Option<String> {
    let probes = backend.health.as_ref().map(|check| {
        let shown = effective::health(check);
        let word = |key: &str| shown[key].as_str().unwrap_or_default().to_string();
        let kind = [word("kind"), word("path")].join(" ");
        format!("probed by {} every {}", kind.trim_end(), word("interval"))
    });
    let outliers = backend.outlier.as_ref().map(|_| "ejected for bad answers".to_string());
    let all: Vec<String> = probes.into_iter().chain(outliers).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The share of requests that a server's weight gives it.
fn share(backend: &Backend, server: &Server) -> String {
    if server.backup {
        return "a backup".into();
    }
    let ordinary = backend.servers.iter().filter(|server| !server.backup);
    let total: u32 = ordinary.map(|server| u32::from(server.weight.get())).sum();
    match backend.balance {
        Balance::First => "in this order".into(),
        _ => format!("weight {} of {total}", server.weight),
    }
}

/// Leaves each certificate at its first place: one may be for a name, and for it by a wildcard as well.
fn once(shown: &mut Vec<(Served, NameMatch)>) {
    let mut seen = Vec::new();
    shown.retain(|(served, _)| {
        let this = (served.path.clone(), served.key_type.name());
        let is_new = !seen.contains(&this);
        seen.push(this);
        is_new
    });
}

impl Certificates {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let asked = self.name.as_deref().map_or("no server name".to_string(), |name| format!("the server name {name}"));
        if self.shown.is_empty() {
            let text =
                format!("[tls.{}] has none for {asked}: the handshake ends with unrecognized_name", self.profile);
            return vec![("certificate", text)];
        }
        let describe = |(served, matched): &(Served, NameMatch)| {
            let why = match matched {
                NameMatch::Exact => "for that very name",
                NameMatch::Wildcard => "by its wildcard",
                NameMatch::Default => "the default, since none is for it",
            };
            let until = match served.not_after < time::OffsetDateTime::now_utc().unix_timestamp() {
                true => format!("expired since {}", date(served.not_after)),
                false => format!("until {}", date(served.not_after)),
            };
            format!("{} of {}, {until}; {why}", served.key_type.name(), served.path.display())
        };
        let mut lines =
            vec![("certificate", format!("[tls.{}], {asked}; the first that the client can verify:", self.profile))];
        lines.extend(self.shown.iter().map(|shown| ("", describe(shown))));
        lines
    }

    fn to_json(&self) -> Value {
        let one = |(served, matched): &(Served, NameMatch)| {
            let matched = match matched {
                NameMatch::Exact => "exact",
                NameMatch::Wildcard => "wildcard",
                NameMatch::Default => "default",
            };
            json!({
                "file": served.path,
                "key_type": served.key_type.name(),
                "not_after": served.not_after,
                "match": matched,
            })
        };
        json!({
            "profile": self.profile,
            "server_name": self.name,
            "in_order": self.shown.iter().map(one).collect::<Vec<Value>>(),
        })
    }
}

/// The day on which these seconds since 1970 fall, in UTC.
fn date(seconds: i64) -> String {
    let date = time::OffsetDateTime::from_unix_timestamp(seconds - seconds.rem_euclid(SECONDS_PER_DAY));
    date.map_or_else(|_| "a day beyond the calendar".into(), |date| date.date().to_string())
}

#[cfg(test)]
mod tests {
    use propylon_config::Source;

    use super::*;

    #[test]
    fn a_url_is_read_as_a_request_would_be() {
        let asked = ParsedUrl::read("https://Shop.Example.:8443/a/b?c#d", "GET", &[]).unwrap();
        assert_eq!((asked.tls, asked.port), (true, Some(8443)));
        assert_eq!((asked.host.as_str(), &*asked.path()), ("shop.example", "/a/b"));
        let asked = ParsedUrl::read("http://[::1]?x", "GET", &[]).unwrap();
        assert_eq!((asked.host.as_str(), &*asked.path(), asked.port), ("[::1]", "/", None));
    }

    #[test]
    fn a_url_that_no_client_could_ask_for_is_refused_with_the_reason() {
        assert!(ParsedUrl::read("shop.example/", "GET", &[]).is_err());
        assert!(ParsedUrl::read("ftp://shop.example/", "GET", &[]).is_err());
        assert!(ParsedUrl::read("https:///x", "GET", &[]).is_err());
        let error = ParsedUrl::read("https://shop..example/", "GET", &[]).err().unwrap();
        assert!(error.contains("400") && error.contains("bad-host"), "{error}");
    }

    #[test]
    fn a_certificate_that_has_expired_is_called_so() {
        let lines = |not_after| {
            let served = Served {
                name: "a.example".into(),
                key_type: propylon_config::KeyType::Rsa,
                not_after,
                path: "a.pem".into(),
                stapled: false,
            };
            Certificates { profile: "t".into(), name: None, shown: vec![(served, NameMatch::Exact)] }.lines()[1]
                .1
                .clone()
        };
        assert_eq!(lines(SECONDS_PER_DAY), "rsa of a.pem, expired since 1970-01-02; for that very name");
        assert_eq!(lines(253_370_764_800), "rsa of a.pem, until 9999-01-01; for that very name");
    }

    #[test]
    fn a_relay_has_no_routes_but_those_that_name_it() {
        let text = "[listener.web]\nbind='[::]:1'\n[listener.mail]\nbind='[::]:2'\nprotocol='tcp'\n\
                    [backend.app]\nservers=['a:1']\n[[route]]\nbackend='app'\n\
                    [[route]]\nlistener='mail'\nbackend='app'\n";
        let (config, _) =
            propylon_config::parse(&Source { name: "f".into(), base: ".".into(), text: text.into() }).unwrap();
        let asked = ParsedUrl::read("http://a.example/", "GET", &[]).unwrap();
        let source = IpAddr::from([127, 0, 0, 1]);
        let request = conditions::Request {
            head: &asked.head,
            text: asked.text.as_bytes(),
            source,
            connection: conditions::Connection::default(),
        };
        let of = |listener| -> Vec<usize> {
            routes(&config, listener, "a.example", &request).iter().map(|candidate| candidate.index).collect()
        };
        assert_eq!((of(0), of(1)), (vec![0], vec![1]));
        assert!(addresses(&config.listeners[1]).starts_with("tcp://"));
    }
}
