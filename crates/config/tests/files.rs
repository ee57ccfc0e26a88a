//! Whole configurations: the example, the design's, one with every key, and its JSON twin.

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use propylon_config::*;

fn source(name: &str, text: &str) -> Source {
    Source { name: name.into(), base: PathBuf::from("/etc/propylon"), text: text.into() }
}

fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(Problem::to_string).collect()
}

#[test]
fn the_example_has_nothing_wrong_with_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/propylon.toml");
    let source = Source::read(&path).expect("the example is there");
    let (config, warnings) = parse(&source).unwrap_or_else(|problems| panic!("{}", render(&problems, &source.text)));
    assert_eq!(lines(&warnings), [""; 0]);
    assert_eq!(config.routes.len(), 4);
    assert_eq!(config.tls[0].certificates.len(), 2);
}

#[test]
fn the_design_has_nothing_wrong_with_it() {
    let source = source("design.toml", include_str!("design.toml"));
    let (config, warnings) = parse(&source).unwrap_or_else(|problems| panic!("{}", render(&problems, &source.text)));
    assert_eq!(lines(&warnings), [""; 0]);
    assert!(config.backends.iter().any(|backend| backend.health.is_some() && backend.slow_start.is_some()));
}

/// A file with every key, which nothing is wrong with.
fn full() -> Config {
    let (config, warnings) = parse(&source("full.toml", include_str!("full.toml"))).expect("a good file");
    assert_eq!(lines(&warnings), [""; 0]);
    config
}

#[test]
fn every_key_of_the_process_reaches_the_model() {
    let config = full();
    assert_eq!(config.process.workers, Workers::Count(NonZeroU16::new(4).expect("not zero")));
    assert_eq!(config.process.user.as_deref(), Some("propylon"));
    assert_eq!(config.process.drain_timeout, Duration::ZERO);
    assert_eq!(config.process.max_connections, Some(100_000));
    assert_eq!(config.process.connections_per_source, Some(500));
    assert_eq!(config.process.memory_limit, Some(MemoryLimit::Bytes(2 << 30)));
    assert!(config.process.share_address);
    assert_eq!(config.admin.map(|admin| admin.bind.to_string()).as_deref(), Some("[::1]:9900"));
    assert_eq!(config.log.access, AccessLog::File("/etc/propylon/logs/access.log".into()));
    assert_eq!(config.log.level, Level::Debug);
}

#[test]
fn every_key_of_a_listener_reaches_the_model() {
    let config = full();
    let [web, plain] = config.listeners.as_slice() else { panic!("two listeners") };
    assert_eq!((web.name.as_str(), plain.name.as_str()), ("web", "plain"));
    assert_eq!(web.at, At { line: 24, column: 11, length: 3 });
    assert_eq!(web.bind[1].address.to_string(), "[::]:443");
    assert_eq!(web.bind[1].at, At { line: 25, column: 24, length: 10 });
    assert_eq!((web.tls, plain.tls), (Some(TlsId(0)), None));
    assert_eq!(web.monitor_path.as_deref(), Some("/up"));
    assert_eq!((web.forwarded, plain.forwarded), (Forwarded::Append, Forwarded::Remove));
    let https = plain.redirect_to_https.as_ref().expect("all are sent on");
    assert_eq!((https.port, https.status, https.scheme.as_deref()), (Some(8443), 307, Some("https")));
    assert!(web.redirect_to_https.is_none());
    let trusted = web.trusted_proxies.iter().flatten().map(ToString::to_string);
    assert_eq!(trusted.collect::<Vec<_>>(), ["10.0.0.0/8", "2001:db8::1/128"]);
    assert!(web.trusts("10.9.9.9".parse().unwrap()) && !web.trusts("11.0.0.1".parse().unwrap()));
    assert!(plain.trusts("11.0.0.1".parse().unwrap()));
    let [dn, version, ip] = web.request_headers.as_slice() else { panic!("three fields") };
    assert_eq!(ip.value, [Piece::Fact(Fact::ClientIp)]);
    assert_eq!((dn.name.as_str(), &dn.value[..]), ("X-Client-DN", &[Piece::Fact(Fact::ClientSubject)][..]));
    let written =
        [Piece::Text("v=".into()), Piece::Fact(Fact::TlsVersion), Piece::Text(";".into()), Piece::Fact(Fact::TlsJa4)];
    assert_eq!((version.name.as_str(), &version.value[..]), ("X-TLS", &written[..]));
    assert!(plain.request_headers.is_empty());
    assert_eq!((web.paths.merge_slashes, web.paths.allowed().count()), (false, 4));
    assert_eq!((plain.paths.merge_slashes, plain.paths.allowed().count()), (true, 0));
    let t = web.timeouts;
    assert_eq!(
        [t.handshake, t.request_head, t.body, t.idle, t.tunnel_idle],
        [1, 2, 3, 4, 300].map(Duration::from_secs)
    );
    assert_eq!((web.limits.head_bytes, web.limits.headers, web.limits.body_rate_min), (65536, 50, 1000));
    let t = plain.timeouts;
    assert_eq!(
        [t.handshake, t.request_head, t.body, t.idle, t.tunnel_idle],
        [10, 10, 30, 75, 3600].map(Duration::from_secs)
    );
    assert_eq!((plain.limits.head_bytes, plain.limits.headers, plain.limits.body_rate_min), (16384, 100, 240));
}

#[test]
fn every_key_of_tls_reaches_the_model() {
    let config = full();
    let tls = &config.tls[0];
    assert_eq!(tls.certificates[0].source, CertificateSource::Path("/etc/propylon/shop.pem".into()));
    let pair = CertificateSource::Pair { chain: "/etc/chain.pem".into(), key: "/etc/propylon/key.pem".into() };
    assert_eq!(tls.certificates[1].source, pair);
    assert_eq!((tls.policy.clone(), tls.prefer.as_slice()), (TlsPolicy::Modern, [KeyType::Rsa].as_slice()));
    let Resumption { tickets, ticket_keys: TicketKeys::File { path, rotate, .. }, session_ids } = &tls.resumption
    else {
        panic!("keys in a file")
    };
    assert_eq!((*tickets, *session_ids, *rotate), (1, 100, Some(Duration::from_secs(3 * 3600))));
    assert_eq!(path, &PathBuf::from("/etc/propylon/tickets"));

    let auth = tls.client_auth.as_ref().expect("clients are asked");
    assert_eq!(
        auth.ca.iter().map(|trust| trust.path.clone()).collect::<Vec<_>>(),
        [PathBuf::from("/etc/propylon/ca.pem"), "/etc/cas".into()]
    );
    assert_eq!((auth.crl[0].path.as_path(), auth.mode), (Path::new("/etc/propylon/crl.pem"), ClientAuthMode::Optional));
    assert_eq!(
        (auth.crl_scope, auth.crl_missing, auth.crl_expired),
        (CrlScope::Leaf, Leniency::Allow, Leniency::Allow)
    );
    assert_eq!((auth.depth, auth.send_ca_names, auth.forward), (2, false, ForwardIdentity::Chain));
    assert!(tls.ja4);
}

#[test]
fn every_key_of_a_signer_reaches_the_model() {
    let config = full();
    assert_eq!(config.tls[0].signer, Some(SignerId(0)));
    let vault = &config.signers[0];
    assert_eq!((vault.timeout, vault.connections), (Duration::from_millis(250), 3));
    assert_eq!((vault.hedge, vault.verify), (Some(Duration::from_millis(50)), Verify::Nothing));
    assert_eq!(vault.servers[1].server_name.as_deref(), Some("keys"));
    assert_eq!(vault.identity.path.as_path(), Path::new("/etc/propylon/engine.pem"));
    assert_eq!(vault.ca.path.as_path(), Path::new("/etc/keys-ca.pem"));
}

#[test]
fn every_key_of_a_backend_reaches_the_model() {
    let config = full();
    let seconds = Duration::from_secs;
    let app = &config.backends[0];
    let hash = Hash { key: HashKey::Header("x-account".into()), bound_percent: 150 };
    assert_eq!((&app.balance, config.backends[1].balance.name()), (&Balance::ConsistentHash(hash), "p2c-ewma"));
    assert_eq!(config.backends[1].balance, Balance::P2cEwma { decay: seconds(3) });
    assert_eq!((app.slow_start, app.min_healthy), (Some(seconds(30)), 40));
    assert_eq!(app.servers.iter().map(|server| server.backup).collect::<Vec<_>>(), [false, false, true]);
    let sticky = app.sticky.as_ref().expect("it is sticky");
    assert_eq!((sticky.cookie.as_str(), sticky.path.as_str(), sticky.ttl), ("seat", "/shop", Some(seconds(8 * 3600))));
    assert_eq!(sticky.key_file.as_deref(), Some(Path::new("/etc/propylon/sticky.key")));
    let said = (sticky.secure, sticky.http_only, sticky.same_site);
    assert_eq!(said, (CookieSecure::Always, false, SameSite::Strict));
    assert_eq!((app.reuse, app.retries, app.max_idle, app.via), (Reuse::Aggressive, 0, 3, true));
    assert_eq!((app.retry_budget.share.hundredths(), app.retry_budget.min_per_second), (2_000, 0));
    let folder = config.process.buffers.folder.as_ref().map(|folder| folder.path.as_path());
    assert_eq!(folder, Some(Path::new("/etc/propylon/bodies")));
    assert_eq!((config.process.buffers.memory, config.process.buffers.disk), (1 << 20, 1 << 30));
    let quick = &config.backends[1];
    let budget = (quick.retry_budget.share.hundredths(), quick.retry_budget.min_per_second);
    assert_eq!((quick.retries, budget), (3, (250, 7)));
    assert_eq!((app.min_idle, app.max_requests.map(Into::into), app.max_lifetime), (2, Some(1000), Some(seconds(600))));
    assert_eq!(app.queue, Queue { limit: 10, timeout: seconds(1), target: Some(Duration::from_millis(200)) });
    let limits = app.servers.iter().map(|server| server.max_connections.map(u32::from));
    assert_eq!(limits.collect::<Vec<_>>(), [None, Some(20), None]);
    assert_eq!(app.servers[1].address, ServerAddress::Name { host: "app.internal".into(), port: 80 });
    assert_eq!(app.servers.iter().map(|server| server.weight.get()).collect::<Vec<_>>(), [1, 256, 1]);
    let t = app.timeouts;
    assert_eq!([t.connect, t.first_byte, t.body, t.idle], [10, 20_000, 30_000, 40_000].map(Duration::from_millis));
}

#[test]
fn every_key_of_a_route_reaches_the_model() {
    let config = full();
    let [api, old, quick, pattern, split, sso, both, moved, rest, fixed, php] = config.routes.as_slice() else {
        panic!("eleven routes")
    };
    assert_eq!(php.action, Action::Backend(BackendId(2)));
    let params = vec![
        RequestHeader { name: "APP_ENV".into(), value: vec![Piece::Text("prod".into())] },
        RequestHeader { name: "REMOTE_USER".into(), value: vec![Piece::Fact(Fact::ClientSubject)] },
    ];
    let scripts = Scripts::Named(vec!["/admin/*.php".into()]);
    let fastcgi = FastCgi {
        index: "/app.php".into(),
        scripts,
        keep: true,
        body_buffer: 2048,
        params,
        ..FastCgi::at_root("/srv/app")
    };
    assert_eq!(config.backends[2].fastcgi, Some(fastcgi));
    assert_eq!((api.listener, old.listener), (Some(ListenerId(0)), None));
    assert_eq!(api.host, HostPattern::Exact("shop.example".into()));
    assert_eq!(api.path, PathPattern::Prefix("/api/".into()));
    assert_eq!(api.action, Action::Backend(BackendId(0)));
    assert!(api.require_client_certificate && !old.require_client_certificate);
    assert_eq!(old.host, HostPattern::Suffix(".shop.example".into()));
    assert_eq!(old.path, PathPattern::Exact("/old".into()));
    let Action::Redirect(redirect) = &old.action else { panic!("a redirect") };
    assert_eq!((redirect.status, redirect.port), (301, Some(8443)));
    let to = RedirectPath::Fixed("/new?x=1".into());
    assert_eq!((redirect.scheme.as_deref(), redirect.path.as_ref()), (Some("https"), Some(&to)));
    let Action::Redirect(redirect) = &moved.action else { panic!("a redirect") };
    let changed = PathChange::ReplacePrefix { replace_prefix: "/new".into() };
    assert_eq!(redirect.path, Some(RedirectPath::Changed(changed)));
    assert_eq!((&rest.host, &rest.path), (&HostPattern::Any, &PathPattern::Prefix("/".into())));
    let text = |name: &str, test| vec![TextCondition { name: name.into(), test }];
    let conditions = Conditions {
        method: vec!["POST".into()],
        header: text("x-beta", TextTest::Exact("on".into())),
        query: text("v", TextTest::Exact("2".into())),
        cookie: text("beta", TextTest::Present),
        source: vec![Network { address: [10, 0, 0, 0].into(), prefix: 8 }],
        client: vec![FactCondition { fact: ClientFact::San, test: TextTest::Exact("a.example".into()) }],
        tls: vec![FactCondition { fact: TlsFact::Version, test: TextTest::Exact("TLSv1.3".into()) }],
        grpc: Some(GrpcCondition { service: Some(TextTest::Exact("a.B".into())), method: None }),
        port: vec![443],
        host: Some(TextTest::Prefix("a".into())),
    };
    assert_eq!((&quick.conditions, &rest.conditions), (&conditions, &Conditions::default()));
    assert_eq!(pattern.path, PathPattern::Regex("^/quick/([0-9]+)$".into()));
    limits_reach_the_model(&quick.steps.limit);
    let auth = pattern.steps.auth.as_ref().expect("it asks for a token");
    let [Proof::Jwt(jwt)] = &auth.proofs[..] else { panic!("{auth:?}") };
    assert_eq!((jwt.issuer.as_str(), &jwt.audience[..]), ("https://id.test", &["shop".to_string()][..]));
    assert_eq!(jwt.keys, propylon_config::TokenKeys::File { keys_file: "/etc/propylon/jwks.json".into() });
    assert_eq!((jwt.leeway, jwt.algorithms.len()), (Duration::from_secs(30), 5));
    assert_eq!((auth.fields().collect::<Vec<_>>(), auth.hide_credentials), (vec!["X-User"], true));
    let auth = sso.steps.auth.as_ref().expect("it asks for one of two");
    let [Proof::ApiKey(_), Proof::Forward(forward)] = &auth.proofs[..] else { panic!("{auth:?}") };
    assert_eq!((forward.name.as_str(), sso.steps.asked_backends().next()), ("app", Some(forward.backend)));
    assert_eq!((forward.path.as_deref(), &forward.send, &forward.host), (Some("/verify"), &None, &None));
    assert_eq!(auth.fields().collect::<Vec<_>>(), ["X-User", "Remote-Groups"]);
    let auth = both.steps.auth.as_ref().expect("it asks for both");
    assert!(matches!(&auth.proofs, Proofs::All(proofs) if proofs.len() == 2), "{auth:?}");
    assert_eq!(both.steps.limit[0].key, [LimitKey::User]);
    let Action::Respond(respond) = &rest.action else { panic!("a response") };
    assert_eq!((respond.status, respond.content_type.as_str()), (503, "text/html"));
    every_key_of_a_split_reaches_the_model(&split.steps);
    answers_reach_the_model(&config, fixed);
}

fn answers_reach_the_model(config: &Config, fixed: &Route) {
    let Action::Respond(respond) = &fixed.action else { panic!("a response") };
    assert_eq!(respond.body_file.as_deref(), Some(Path::new("/etc/propylon/file.txt")));
    let named: Vec<_> = config.body_files().into_iter().map(|(path, _)| path.display().to_string()).collect();
    assert_eq!(named, ["/etc/propylon/404.html", "/etc/5.json", "/etc/propylon/file.txt"]);
    let errors = &fixed.steps.errors;
    assert_eq!((errors.error_format, errors.intercept_errors), (Some(ErrorFormat::Accept), Some(false)));
    assert_eq!(errors.error_pages.iter().map(|page| page.statuses.to_string()).collect::<Vec<_>>(), ["404", "5xx"]);
    let cors = fixed.steps.cors.as_ref().expect("other origins may");
    assert_eq!(
        cors.origins.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["https://a.example", "https://*.b.example"]
    );
    assert_eq!(
        (&cors.methods[..], cors.credentials, cors.max_age),
        (&["PUT".to_string()][..], false, Some(Duration::from_secs(60)))
    );
}

fn every_key_of_a_split_reaches_the_model(steps: &Steps) {
    let split = steps.split.as_ref().expect("a split");
    let places: Vec<_> = split.sides.iter().map(|side| (side.to, side.weight)).collect();
    assert_eq!(places, [(SideTo::Backend(BackendId(1)), 3), (SideTo::Respond(503), 1)]);
    let (request, response) = (&split.sides[0].request, &split.sides[0].response);
    assert_eq!(
        (&*request.set[0].name, &*request.remove, &*response.add[0].name),
        ("X-Side", &["X-A".into()][..], "Link")
    );
    let Some(SideSticky::Cookie(cookie)) = &split.sticky else { panic!("a cookie") };
    let said = (cookie.cookie.as_str(), cookie.secure, cookie.same_site);
    assert_eq!((said, steps.fallback), (("side", CookieSecure::Never, SameSite::Strict), Some(BackendId(0))));
    let RouteTimeouts { request, attempt, connect, first_byte, body } = steps.timeouts;
    assert_eq!(attempt, None, "a route with `hedge` has none");
    assert_eq!([request, connect, first_byte, body], [9, 1, 8, 7].map(|count| Some(Duration::from_secs(count))));
    let on = RetryOn { connect: false, reset: true, timeout: false, statuses: vec![500, 503] };
    let retries = Retries { attempts: Some(1), on, backoff: Some(Duration::from_millis(20)) };
    let mirror = Mirror { backend: BackendId(0), millionths: 5_000, body_bytes_max: 2048, in_flight_max: 3 };
    assert_eq!(steps.mirrors, [mirror]);
    assert_eq!(steps.priority, Priority::High);
    let bounds = |memory: u64, disk: u64| Some(BodyBounds { memory, disk });
    let buffer = Buffer { request: bounds(16 << 10, 1 << 20), response: bounds(64 << 10, 1 << 30) };
    assert_eq!(steps.buffer, buffer);
    assert_eq!((&steps.retries, steps.body_limit), (&Some(retries), Some(1024)));
}

fn limits_reach_the_model(limits: &[Limit]) {
    let [rate, requests, bytes] = limits else { panic!("three limits: {limits:?}") };
    assert_eq!(rate.amount, Some(Amount::Rate(Rate { count: 10, per: Per::Second, burst: 20 })));
    assert_eq!(rate.key, [LimitKey::Source, LimitKey::Header("x-key".into())]);
    assert_eq!((rate.ipv4_prefix, rate.ipv6_prefix, rate.keys), (24, 48, 1000));
    assert_eq!(rate.exempt, [Network { address: [10, 0, 0, 0].into(), prefix: 8 }]);
    assert_eq!(rate.deny, [Network { address: [192, 0, 2, 1].into(), prefix: 32 }]);
    assert_eq!(rate.exempt_files[0].path.as_path(), Path::new("/etc/propylon/friends"));
    assert_eq!(rate.deny_files[0].path.as_path(), Path::new("/etc/foes"));
    assert_eq!((requests.amount, requests.keys), (Some(Amount::Requests(5)), Limit::KEYS));
    let amount = Amount::Bytes(Rate { count: 10_000_000, per: Per::Hour, burst: 10_000_000 });
    assert_eq!((bytes.amount, &bytes.key[..]), (Some(amount), &[][..]));
    let labels: Vec<&str> = limits.iter().map(|limit| limit.label.as_str()).collect();
    assert_eq!(labels, ["quick", "*/quick#1", "*/quick#2"]);
}

#[test]
fn changes_of_a_route_reach_the_model() {
    let config = full();
    let (steps, pattern) = (&config.routes[2].steps, &config.routes[3].steps);
    let line = |name: &str, value: Piece| vec![RequestHeader { name: name.into(), value: vec![value] }];
    let text = |text: &str| Piece::Text(text.into());
    let RequestChanges { fields, host, path, query } = &steps.request;
    assert_eq!(fields.set, line("X-Peer", Piece::Fact(Fact::ClientIp)));
    assert_eq!(fields.add, line("X-Server", Piece::Fact(Fact::UpstreamServer)));
    assert_eq!((&fields.append, &fields.remove), (&line("X-Way", text("edge")), &vec!["X-Debug".to_string()]));
    assert_eq!(*host, Some(HostChange::Name("app.internal:81".into())));
    assert_eq!(*path, Some(PathChange::Strip { strip: "/quick".into() }));
    assert_eq!((&query.set, &query.remove), (&line("v", text("3")), &vec!["utm_source".to_string()]));
    assert_eq!(query.add, line("w", Piece::Fact(Fact::RequestMethod)));
    let ResponseChanges { fields, cookies, location } = &steps.response;
    assert_eq!((location[0].from.as_str(), &location[0].to[1]), ("/", &Piece::Fact(Fact::RequestHost)));
    assert_eq!((&fields.set, &fields.remove), (&line("Cache-Control", text("no-store")), &vec!["Server".to_string()]));
    assert_eq!((&fields.add, &fields.append), (&line("Link", text("</a>")), &line("Vary", text("Origin"))));
    let wanted = CookieChanges {
        secure: Some(true),
        http_only: Some(true),
        same_site: Some(SameSite::Strict),
        domain: Some("shop.example".into()),
        path: Some("/quick".into()),
    };
    assert_eq!((cookies, steps.security_headers), (&wanted, Some(SecurityHeaders::Strict)));
    let regex = PathChange::Regex { regex: "^/quick/([0-9]+)$".into(), to: "/number?n=$1".into() };
    assert_eq!((&pattern.request.path, &pattern.request.host), (&Some(regex), &Some(HostChange::Server)));
    assert!(config.routes[1].steps.is_empty());
}

#[test]
fn what_is_said_of_tracing_reaches_the_model() {
    let tracing = full().tracing.expect("it is on");
    let endpoint = &tracing.endpoint;
    assert_eq!(endpoint.address, ServerAddress::Name { host: "collector.internal".into(), port: 4318 });
    assert_eq!((endpoint.authority.as_str(), endpoint.path.as_str()), ("collector.internal:4318", "/otlp/traces"));
    let tls = tracing.tls.expect("https");
    assert_eq!(tls.ca[0].path.as_path(), Path::new("/etc/propylon/collector-ca.pem"));
    assert_eq!(tracing.headers.expect("a file").path.as_path(), Path::new("/etc/propylon/collector.headers"));
    assert_eq!((tracing.sample, tracing.trust, tracing.spans_per_second), (SampleRate(250_000), TraceTrust::Never, 50));
    let attributes = vec![("deployment.environment.name".to_string(), "test".to_string())];
    assert_eq!((tracing.service_name.as_str(), tracing.attributes), ("edge", attributes));
    assert_eq!(tracing.timeout, Duration::from_secs(3));

    let text = "[tracing]\nendpoint = 'http://[::1]'\n[listener.a]\nbind='0.0.0.0:80'\n[[route]]\nrespond={body='x'}\n";
    let (config, _) = parse(&source("f", text)).unwrap_or_else(|problems| panic!("{:?}", lines(&problems)));
    let tracing = config.tracing.expect("it is on");
    let endpoint = &tracing.endpoint;
    assert_eq!(endpoint.address, ServerAddress::Ip("[::1]:80".parse().expect("an address")));
    assert_eq!((endpoint.authority.as_str(), endpoint.path.as_str()), ("[::1]", "/v1/traces"));
    assert!(tracing.tls.is_none() && tracing.headers.is_none() && tracing.attributes.is_empty());
    assert_eq!(
        (tracing.sample, tracing.trust, tracing.spans_per_second),
        (SampleRate(10_000), TraceTrust::Parent, 1000)
    );
    assert_eq!((tracing.service_name.as_str(), tracing.timeout), ("propylon", Duration::from_secs(10)));
}

#[test]
fn what_is_left_out_has_its_default() {
    let text = "[listener.a]\nbind='0.0.0.0:80'\n[tls.t]\ncertificates=['a']\nclient_auth={ca='c'}\n[backend.b]\nservers=['c:1']\n[[route]]\nbackend='b'\n";
    let (config, warnings) = parse(&source("a.toml", text)).expect("a good file");
    assert_eq!(
        lines(&warnings),
        ["a.toml:3:6: warning: no listener uses [tls.t]; name it in a listener, or remove it"]
    );
    assert_eq!((config.process.workers, config.process.drain_timeout), (Workers::Auto, Duration::from_secs(30)));
    let process = &config.process;
    assert!(process.connections_per_source.is_none() && process.memory_limit.is_none() && !process.share_address);
    assert!(config.tracing.is_none());
    assert!(config.admin.is_none() && config.process.max_connections.is_none() && config.process.user.is_none());
    let handshakes = config.process.handshakes;
    assert_eq!((handshakes.in_progress, handshakes.per_source), (8192, None));
    assert_eq!(handshakes.queue_wait, Duration::from_secs(2));
    assert_eq!((&config.log.access, config.log.level), (&AccessLog::Off, Level::Info));
    let backend = &config.backends[0];
    assert_eq!((&backend.balance, backend.reuse), (&Balance::RoundRobin, Reuse::Safe));
    assert_eq!((backend.slow_start, backend.min_healthy, backend.sticky.is_none()), (None, 0, true));
    assert!(!backend.servers[0].backup);
    assert_eq!((backend.min_idle, backend.max_requests, backend.max_lifetime), (0, None, None));
    assert!(backend.tls.is_none());
    assert_eq!(backend.queue, Queue { limit: 1024, timeout: Duration::from_secs(5), target: None });
    assert_eq!((backend.retries, backend.max_idle, backend.via), (2, 128, false));
    let t = backend.timeouts;
    assert_eq!([t.connect, t.first_byte, t.body, t.idle, t.close], [3, 60, 60, 50, 10].map(Duration::from_secs));
    assert_eq!((config.tls[0].policy.clone(), config.tls[0].prefer.len()), (TlsPolicy::Intermediate, 2));
    let resumption = Resumption { tickets: 2, ticket_keys: TicketKeys::Memory, session_ids: 16_384 };
    assert_eq!(config.tls[0].resumption, resumption);
    let auth = config.tls[0].client_auth.as_ref().expect("clients are asked");
    assert_eq!((auth.mode, auth.crl.len(), auth.depth), (ClientAuthMode::Required, 0, 6));
    assert_eq!(
        (auth.crl_scope, auth.crl_missing, auth.crl_expired),
        (CrlScope::Chain, Leniency::Refuse, Leniency::Refuse)
    );
    assert!(auth.send_ca_names && auth.forward == ForwardIdentity::Leaf && !config.tls[0].ja4);
    assert_eq!(config.routes[0].path, PathPattern::Prefix("/".into()));
}

/// The configuration without the positions, which differ between the languages.
fn without_positions(config: &Config) -> String {
    let debug = format!("{config:#?}");
    let mut out = String::new();
    let mut rest = debug.as_str();
    while let Some((before, after)) = rest.split_once("At {") {
        out.push_str(before);
        rest = after.split_once('}').map_or("", |(_, after)| after);
    }
    out + rest
}

#[test]
fn the_json_twin_means_the_same() {
    let (toml, _) = parse(&source("full.toml", include_str!("full.toml"))).expect("good TOML");
    let (json, warnings) = parse(&source("full.json", include_str!("full.json"))).expect("good JSON");
    assert_eq!(lines(&warnings), [""; 0]);
    assert_eq!(without_positions(&toml), without_positions(&json).replace("full.json", "full.toml"));
    assert_eq!(json.listeners[0].bind[1].at, At { line: 7, column: 31, length: 10 });
}

#[test]
fn problems_in_json_have_their_position() {
    let text = include_str!("full.json").replace("\"listener\": \"web\"", "\"listener\": \"wep\"").replace("4s", "4x");
    let problems = parse(&source("full.json", &text)).expect_err("two errors");
    assert_eq!(
        lines(&problems),
        [
            "full.json:15:84: `idle`: \"4x\" is not a duration; write a whole number and ms, s, m or h, such as \"250ms\" or \"30s\"",
            "full.json:91:19: no listener named \"wep\"; did you mean \"web\"?",
        ]
    );
}

#[test]
fn certificates_policies_and_preferences_are_read_as_written() {
    let text = r#"
[listener.web]
bind = "127.0.0.1:443"
tls = "t"
prefer = ["rsa", "ed25519"]
[tls.t]
certificates = [{ path = "a.pem", default = true }, { chain = "c", key = "k", ocsp = "o" }]
policy = { versions = ["1.3"], suites = ["tls_aes_256_gcm_sha384"], groups = ["P-384", "x25519"] }
strict_sni = true
watch = "10s"
certificate_compression = false
[[route]]
respond = { body = "ok" }
"#;
    let source = Source { name: "f.toml".into(), base: "/etc".into(), text: text.into() };
    let (config, problems) = propylon_config::parse(&source).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(config.listeners[0].prefer, Some(vec![KeyType::Rsa, KeyType::Ed25519]));
    let tls = &config.tls[0];
    assert_eq!(tls.certificates[0].source, CertificateSource::Path("/etc/a.pem".into()));
    assert_eq!(tls.certificates.iter().map(|each| each.default).collect::<Vec<_>>(), [true, false]);
    assert_eq!(tls.certificates[1].ocsp, Some("/etc/o".into()));
    let TlsPolicy::Custom(policy) = &tls.policy else { panic!("{:?}", tls.policy) };
    assert_eq!(policy.suites.iter().map(|each| each.name()).collect::<Vec<_>>(), ["TLS_AES_256_GCM_SHA384"]);
    assert_eq!(policy.groups.iter().map(|each| each.name()).collect::<Vec<_>>(), ["secp384r1", "x25519"]);
    assert!(tls.strict_sni && !tls.certificate_compression);
    assert_eq!(tls.watch, Some(std::time::Duration::from_secs(10)));
}

#[test]
fn what_the_process_denies_itself_is_configured() {
    let rest = "[listener.web]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"a:1\", \"srv+_web._tcp.b\"]\n[[route]]\nbackend = \"app\"\n";
    let of = |process: &str| parse(&source("box.toml", &format!("[process]\n{process}\n{rest}"))).expect("a good file");
    let (config, _) = of("");
    assert!(config.process.sandbox.on && config.process.sandbox.ports.is_none());
    let (config, warnings) = of("sandbox_paths = [\"certs\"]\nsandbox_ports = [443, \"8000-8002\"]\nstate = \"state\"");
    assert_eq!(lines(&warnings), [""; 0]);
    assert_eq!(config.process.sandbox.ports, Some(vec![443..=443, 8000..=8002]));
    let named: Vec<_> = config.named_files().iter().map(|file| (file.path.to_owned(), file.access)).collect();
    assert_eq!(config.process.sandbox.paths[0].path, std::path::Path::new("/etc/propylon/certs"));
    assert!(named.contains(&("/etc/propylon/state".into(), FileAccess::WriteFolder)), "{named:?}");
    // Ports of an SRV record are not known, and name servers are asked by TCP as well.
    assert_eq!(config.named_ports().iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 53]);
    let (config, warnings) = of("sandbox = \"off\"\nsandbox_ports = []");
    assert!(!config.process.sandbox.on);
    assert!(lines(&warnings)[0].contains("`sandbox_ports` has no use"), "{warnings:?}");
}

#[test]
fn an_admin_address_that_everybody_reaches_is_warned_of() {
    let rest = "[listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = { status = 200 }\n";
    for (bind, is_open) in
        [("0.0.0.0:9900", true), ("[::]:9900", true), ("127.0.0.1:9900", false), ("10.0.0.1:9900", false)]
    {
        let (_, warnings) =
            parse(&source("open.toml", &format!("[admin]\nbind = \"{bind}\"\n{rest}"))).expect("a good file");
        assert_eq!(lines(&warnings).iter().any(|line| line.contains("open to every machine")), is_open, "{bind}");
    }
}

#[test]
fn what_changes_at_run_time_is_configured() {
    let text = "[process]\nwatch_config = true\nstate = \"state\"\nupgrade_socket = \"up.sock\"\n[admin]\nbind = \"unix:admin.sock\"\n\
        token_file = \"/etc/token\"\n[listener.web]\nbind = \"127.0.0.1:0\"\n[backend.app]\n\
        servers = [\"a:1\", { address = \"b:1\", drain = true }]\n[[route]]\nbackend = \"app\"\n";
    let (config, warnings) = parse(&source("live.toml", text)).expect("a good file");
    assert_eq!(lines(&warnings), [""; 0]);
    assert!(config.process.watch_config && !config.process.immutable);
    assert_eq!(config.process.state.map(|state| state.path), Some("/etc/propylon/state".into()));
    assert_eq!(config.process.upgrade_socket.map(|socket| socket.path), Some("/etc/propylon/up.sock".into()));
    let admin = config.admin.expect("an admin address");
    assert_eq!((admin.bind.to_string().as_str(), admin.bind.address()), ("unix:/etc/propylon/admin.sock", None));
    assert_eq!(admin.token_file.map(|file| file.path), Some("/etc/token".into()));
    assert_eq!(
        config.backends[0].servers.iter().map(|server| server.drain.is_some()).collect::<Vec<_>>(),
        [false, true]
    );
    let (config, _) = parse(&source("full.toml", include_str!("full.toml"))).expect("a good file");
    assert!(!config.process.watch_config && config.process.state.is_none());
}

#[test]
fn what_is_ordered_has_its_files_by_its_names_its_authority_and_the_type_of_its_key() {
    let text = "[listener.web]\nbind = '0.0.0.0:443'\ntls = 'public'\n[[route]]\nrespond = { status = 200 }\n\
                [acme.le]\nterms_agreed = true\n[acme.staging]\ndirectory = 'https://staging.test/dir'\nstate = 'kept'\n\
                [[tls.public.certificates]]\nacme = 'le'\nnames = ['B.test.', 'a.test']\n\
                [[tls.public.certificates]]\nacme = 'staging'\nnames = ['c.test']\nkey_types = ['ecdsa', 'rsa']\n";
    let (config, warnings) = parse(&source("f", text)).expect("a good configuration");
    assert_eq!(warnings, []);
    let [le, staging] = &config.acmes[..] else { panic!("two accounts") };
    assert_eq!(le.directory, "https://acme-v02.api.letsencrypt.org/directory");
    assert_eq!(le.state, Path::new("/var/lib/propylon/acme/le"));
    assert_eq!(staging.state, Path::new("/etc/propylon/kept/staging"));
    let ordered: Vec<&Ordered> = config.tls[0]
        .certificates
        .iter()
        .map(|each| match &each.source {
            CertificateSource::Ordered(ordered) => ordered,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ordered[0].names, ["a.test", "b.test"]);
    let [(KeyType::Ecdsa, file)] = &ordered[0].files[..] else { panic!("{:?}", ordered[0]) };
    assert_eq!(file.parent(), Some(le.state.join("certificates").as_path()));
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(name.starts_with("a.test-") && name.ends_with(".ecdsa.pem"), "{name}");
    let types: Vec<KeyType> = ordered[1].files.iter().map(|(key_type, _)| *key_type).collect();
    assert_eq!(types, [KeyType::Ecdsa, KeyType::Rsa]);
    // Another authority's, or for other names, is another file.
    // No keys are in these files where another process holds them.
    assert!(
        config.key_files().iter().all(|(path, _)| !path.starts_with(&le.state) && !path.starts_with(&staging.state))
    );
    for (acme, name) in [(le, "le"), (staging, "staging")] {
        let file = acme.file(&["a.test".to_string()], KeyType::Rsa);
        assert_eq!(Ordered::account_of(&file), Some(name));
    }
    let file = |acme: &Acme, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        acme.file(&names, KeyType::Ecdsa).file_name().map(ToOwned::to_owned)
    };
    assert_ne!(file(le, &["a.test"]), file(staging, &["a.test"]));
    assert_ne!(file(le, &["a.test", "b.test"]), file(le, &["a.test", "c.test"]));
    assert_ne!(le.account_file().file_name(), staging.account_file().file_name());
}
