//! Configurations of nginx, haproxy and Caddy: what comes of them answers as the original does.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use propylon_e2e::external::External;
use propylon_e2e::origin::dead;
use propylon_e2e::php::Php;
use propylon_e2e::program::{Said, run};
use propylon_e2e::{Client, Engine, Origin, Scratch, binaries};

/// Address at which the original would listen; the engine is given a port of its own in its place.
const PLACE: &str = "127.0.0.1:18080";
const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const BLOCKED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));

/// Imports a file, which has to pass the check, and starts an engine with what comes out.
#[track_caller]
fn imported(scratch: &Scratch, name: &str, text: &str) -> (Engine, Said) {
    imported_at(scratch, name, &text.replace("{address}", PLACE), &[PLACE.to_owned()])
}

/// The same of a file with several addresses, in place of which the engine is given ports of its own.
#[track_caller]
fn imported_at(scratch: &Scratch, name: &str, text: &str, places: &[String]) -> (Engine, Said) {
    let file = scratch.write(name, text).display().to_string();
    let out = scratch.join(&format!("{name}.toml")).display().to_string();
    let propylon = |arguments: &[&str]| {
        let mut command = Command::new(binaries::propylon());
        command.args(arguments);
        run(command, b"", Duration::from_secs(60))
    };
    let said = propylon(&["import", &file, "-o", &out]);
    assert!(matches!(said.status.code(), Some(0 | 3)), "{}", said.stderr);
    let checked = propylon(&["check", "-c", &out]);
    let config = std::fs::read_to_string(&out).expect("what was imported");
    assert_eq!(checked.status.code(), Some(0), "{config}\n{}", checked.stderr);
    // Files of users lie beside it.
    let users = format!("file = \"{}/users-", scratch.path().display());
    let config = places.iter().fold(config, |config, place| config.replace(place, "127.0.0.1:0"));
    (Engine::start(&config.replace("file = \"users-", &users)), said)
}

/// Status, `Location`, and the body of answers that are no program's own.
fn answer(address: SocketAddr, source: IpAddr, path: &str, cookie: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\nCookie: {cookie}\r\nRemote-User: mallory\r\n\r\n");
    let response = Client::plain_from(source, address).expect("a connection").ask(request);
    let location = response.head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
    });
    let body = if [200, 502].contains(&response.status) { response.text().to_owned() } else { String::new() };
    format!("{path}: {} {} {body}", response.status, location.unwrap_or_default())
}

/// An application that says what it was asked for, and by whom.
fn app() -> Origin {
    Origin::answering(|request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let target = text.split(' ').nth(1).unwrap_or_default().to_owned();
        let user = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("remote-user").then(|| value.trim().to_owned())
        });
        let body = format!("app {target} for {}", user.unwrap_or("nobody".into()));
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
}

/// A service that lets in whoever has the cookie `in`, as ann.
fn gate() -> Origin {
    Origin::answering(|request| {
        let text = String::from_utf8_lossy(request).to_ascii_lowercase();
        let is_asked = text.starts_with("get /verify ");
        let head = match is_asked && text.contains("\r\ncookie: in\r\n") {
            true => "200 OK\r\nRemote-User: ann",
            false => "401 Unauthorized\r\nWWW-Authenticate: Bearer",
        };
        format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    })
}

/// The hash of the password `open`.
fn hash() -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["passwd", "-6", "-salt", "salt", "open"]);
    let said = run(openssl, b"", Duration::from_secs(60)).stdout;
    String::from_utf8(said).expect("a hash").trim_end().to_owned()
}

fn php() -> Php {
    let php = Php::start(2);
    php.write("hello.php", "<?php echo 'script ' . basename(__FILE__) . ' ' . ($_GET['q'] ?? '');");
    php.write("index.php", "<?php echo 'index ' . getenv('APP_ENV');");
    php.write("closed/x.php", "<?php echo 'leaked';");
    php.write("sorry.html", "<p>sorry</p>");
    php
}

#[test]
fn an_imported_nginx_answers_as_nginx_does() {
    let (app, gate, php, scratch) = (app(), gate(), php(), Scratch::new());
    let (root, app, gate) = (php.root().display().to_string(), app.address(), gate.address());
    let server = format!(
        "listen {{address}};\nserver_name shop.test;\nerror_page 502 /sorry.html;\n\
         location = /sorry.html {{ internal; root {root}; }}\n\
         location = /ask {{ internal; proxy_pass http://{gate}/verify; proxy_pass_request_body off; \
           proxy_set_header Content-Length \"\"; }}\n\
         location / {{ proxy_set_header Host $host; proxy_set_header Remote-User \"\"; proxy_pass http://{app}; }}\n\
         location /private/ {{ auth_request /ask; auth_request_set $who $upstream_http_remote_user; \
           proxy_set_header Host $host; proxy_set_header Remote-User $who; proxy_pass http://{app}; }}\n\
         location /api/ {{ proxy_set_header Remote-User \"\"; proxy_pass http://{app}/v2/; }}\n\
         location = /old {{ return 301 https://$host/new; }}\n\
         location /dead/ {{ proxy_pass http://{}; }}\n\
         location ^~ /closed/ {{ deny all; }}\n\
         location ~ \\.php$ {{ fastcgi_pass {}; fastcgi_param SCRIPT_FILENAME {root}$fastcgi_script_name; \
           fastcgi_param REQUEST_METHOD $request_method; fastcgi_param QUERY_STRING $query_string; }}\n",
        dead(),
        php.address(),
    );
    let nginx = External::nginx(&server);
    let (engine, _) = imported(&scratch, "nginx.conf", &format!("http {{ server {{\n{server}\n}} }}\n"));
    let paths = ["/", "/a/b?c=d", "/private/x", "/api/x?y", "/old", "/dead/", "/closed/x", "/closed/x.php", "/ask"];
    for path in paths.iter().chain(&["/hello.php?q=1", "/api/hello.php?q=2", "/gone.php"]) {
        for cookie in ["in", "out"] {
            let theirs = answer(nginx.address(), HOME, path, cookie);
            assert_eq!(answer(engine.address("http-18080"), HOME, path, cookie), theirs);
        }
    }
    let inside = answer(engine.address("http-18080"), HOME, "/private/x", "in");
    assert_eq!(inside, "/private/x: 200  app /private/x for ann");
}

/// A port that is free at all addresses, and that the kernel chooses for nobody.
fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    (0..1000).map(|_| fastrand::u16(20_000..32_000)).find(is_free).expect("a free port")
}

#[test]
fn an_imported_nginx_keeps_addresses_of_one_port_apart() {
    let scratch = Scratch::new();
    let servers = |port: u16| {
        [
            format!("listen 127.0.0.1:{port};\nreturn 200 one;"),
            format!("listen {port};\nreturn 200 any;"),
            format!("listen 127.0.0.2:{port};\nreturn 200 two;"),
        ]
        .join("\n}\nserver {\n")
    };
    let (theirs, ours) = (free_port(), free_port());
    let _nginx = External::nginx(&format!("listen {{address}};\n}}\nserver {{\n{}", servers(theirs)));
    let (_engine, _) = imported(&scratch, "nginx.conf", &format!("http {{ server {{\n{}\n}} }}\n", servers(ours)));
    for (last, said) in [(1, "/: 200  one"), (2, "/: 200  two"), (3, "/: 200  any")] {
        let ask = |port| answer(SocketAddr::from(([127, 0, 0, last], port)), HOME, "/", "");
        assert_eq!((ask(theirs).as_str(), ask(ours).as_str()), (said, said));
    }
}

#[test]
fn an_imported_nginx_has_its_names_and_believes_its_proxies() {
    let (app, scratch) = (app(), Scratch::new());
    let app = format!("proxy_pass http://{};", app.address());
    let once = format!("set_real_ip_from {HOME}; real_ip_header X-Forwarded-For;");
    let trust = format!("{once} real_ip_recursive on;");
    let servers = |[names, apart, trusting, both, single]: [u16; 5]| {
        [
            format!("listen {names}; server_name first.test; return 200 first;"),
            format!("listen {names}; server_name FIRST.test second.test; return 200 second;"),
            format!("listen {names}; server_name _; return 200 nobody;"),
            format!("listen {names}; server_name .second.test third.test; return 200 third;"),
            format!("listen {apart}; server_name first.test; allow 192.0.2.1; deny all; location / {{ {app} }}"),
            format!("listen {apart}; server_name second.test; {trust} location / {{ {app} }}"),
            format!(
                "listen {trusting}; server_name first.test; {trust} allow 192.0.2.1; deny all; location / {{ {app} }}"
            ),
            format!("listen {trusting}; server_name second.test; deny {BLOCKED}; location / {{ {app} }}"),
            format!("listen [::]:{both} ipv6only=off; return 200 both;"),
            format!(
                "listen {single}; server_name first.test; {once} allow 192.0.2.1; deny all; location / {{ {app} }}"
            ),
        ]
        .join("\n}\nserver {\n")
    };
    let (theirs, ours) = ([(); 5].map(|()| free_port()), [(); 5].map(|()| free_port()));
    let _nginx = External::nginx(&format!("listen {{address}};\n}}\nserver {{\n{}", servers(theirs)));
    let (_engine, said) = imported(&scratch, "nginx.conf", &format!("http {{ server {{\n{}\n}} }}\n", servers(ours)));
    for told in ["nginx ignores it", "no request comes to it", "believes the same proxies"] {
        assert!(said.stderr.contains(told), "{told}: {}", said.stderr);
    }
    let ask = |port: u16, host: &str, from: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {from}\r\n\r\n");
        let response = Client::plain_from(HOME, SocketAddr::from((HOME, port))).expect("a connection").ask(request);
        let body = if response.status == 200 { response.text().to_owned() } else { String::new() };
        format!("{} {body}", response.status)
    };
    for host in ["first.test", "second.test", "www.second.test", "third.test", "other.test"] {
        for (place, from) in [(0, ""), (1, "192.0.2.1"), (2, "192.0.2.1"), (2, "192.0.2.2"), (3, "")] {
            let (theirs, ours) = (ask(theirs[place], host, from), ask(ours[place], host, from));
            // Servers by name alone are those of nobody else here, and rules of a server that believes others refuse.
            let is_kept_out = [403, 404].iter().any(|status| ours.starts_with(&status.to_string()));
            assert!(ours == theirs || place > 0 && is_kept_out, "{host} from {from} at {place}: {ours}, not {theirs}");
        }
    }
    assert_eq!(ask(ours[2], "first.test", "192.0.2.1"), "200 app / for nobody");
    assert!(ask(ours[1], "first.test", "192.0.2.1").starts_with("403"));
    // The proxy's own address is a client's where only the last is asked: whoever asks through it claims no other.
    let claimed = format!("192.0.2.1, {HOME}");
    assert_eq!([theirs[4], ours[4]].map(|port| ask(port, "first.test", &claimed)), ["403 ", "403 "]);
}

#[test]
fn an_imported_nginx_keeps_out_whom_nginx_keeps_out() {
    let (app, scratch) = (app(), Scratch::new());
    let app = format!("proxy_pass http://{};", app.address());
    let users = scratch.write("users", format!("ann:{}\n", hash()));
    let staff = format!("auth_basic staff; auth_basic_user_file {};", users.display());
    let server = format!(
        "listen {{address}};\nserver_name .shop.test;\nlocation / {{ {app} }}\nlocation /.git {{ deny all; }}\n\
         location ~ /\\.(?!well-known|git) {{ deny all; }}\n\
         location /admin {{ {staff} {app} location /admin/health/ {{ auth_basic off; {app} }} \
           location = /admin/keys {{ deny all; {app} }} location /admin/in/ {{ {app} }} }}\n\
         location /administrator/ {{ {app} }}\n\
         location /uploads/ {{ {app} location ~ \\.php$ {{ deny all; }} \
           location ~ /private/ {{ allow {BLOCKED}; deny all; {app} }} }}\n\
         location /uploads/open/ {{ {app} }}\nlocation ~ \\.inc$ {{ return 404; }}\n\
         location ~ \\.cgi$ {{ {app} location ~ ^/bin/.*\\.cgi$ {{ deny all; }} }}\n\
         location ^~ /static/ {{ {app} }}\nlocation /static/closed/ {{ deny all; }}\n\
         location /closed/ {{ deny all; allow {HOME}; {app} }}\n\
         location /order/ {{ allow {HOME}; deny 127.0.0.0/8; {app} }}\n\
         location /dav/ {{ {app} limit_except GET {{ {staff} deny {BLOCKED}; }} }}\n\
         location /fixed/ {{ return 200 fixed; limit_except GET {{ allow {BLOCKED}; deny all; }} }}\n\
         location /both/ {{ {app} return 200 both; limit_except GET {{ deny {BLOCKED}; }} }}\n"
    );
    let nginx = External::nginx(&server);
    let (engine, _) = imported(&scratch, "nginx.conf", &format!("http {{ server {{\n{server}\n}} }}\n"));
    let answer = |address: SocketAddr, source: IpAddr, (method, path, user): (&str, &str, &str)| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 0\r\n{user}\r\n");
        let response = Client::plain_from(source, address).expect("a connection").ask(request);
        let body = if response.status == 200 { response.text().to_owned() } else { String::new() };
        format!("{method} {path} {user} from {source}: {} {body}", response.status)
    };
    let nested =
        ["/admin", "/admin/x", "/admin.php", "/administrator/", "/admin/health/x", "/admin/keys", "/admin/in/x"];
    let prefixes = [
        "/",
        "/.git",
        "/.git/config",
        "/.gitignore",
        "/.env",
        "/.well",
        "/a/.well-known/x",
        "/static/x.inc",
        "/static/closed/x",
        "/closed/x",
        "/order/x",
    ];
    let patterns =
        ["/uploads/a.php", "/uploads/private/x", "/uploads/open/a.php", "/uploads/x.inc", "/bin/x.cgi", "/x.cgi"];
    let asked = nested.iter().chain(&prefixes).chain(&patterns).map(|path| ("GET", *path));
    let excepted = ["/dav/x", "/fixed/x"].into_iter().flat_map(|path| [("GET", path), ("PUT", path)]);
    for (method, path) in asked.chain(excepted).chain([("PUT", "/both/x")]) {
        for (source, user) in [(HOME, ""), (BLOCKED, ""), (HOME, "Authorization: Basic YW5uOm9wZW4=\r\n")] {
            let theirs = answer(nginx.address(), source, (method, path, user));
            assert_eq!(answer(engine.address("http-18080"), source, (method, path, user)), theirs);
        }
    }
}

/// An application that says which host it was asked for, and leads to itself.
fn named_app() -> Origin {
    Origin::answering(|request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let field = |name: &str| {
            let line = text.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
            line.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let target = text.split(' ').nth(1).unwrap_or_default();
        let body = format!("app {target} of {}", field("host:"));
        let location = if target.ends_with("/go") {
            format!("Location: http://{}/there\r\n", field("host:"))
        } else {
            String::new()
        };
        let status = if location.is_empty() { "200 OK" } else { "302 Found" };
        format!("HTTP/1.1 {status}\r\n{location}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
}

#[test]
fn an_imported_nginx_refuses_what_its_conditions_refuse() {
    let app = named_app();
    let scratch = Scratch::new();
    let key = "if ($http_x_key != \"k\") { return 401; }";
    let app = format!("proxy_pass http://{}", app.address());
    let server = format!(
        "listen {{address}};\nif ($http_user_agent ~* (bad|worse)) {{ return 403; }}\n\
         if ($request_method !~ ^(GET|HEAD|POST)$) {{ return 405; }}\n\
         if ($request_uri ~ ^/hidden/) {{ return 404; }}\nif ($host ~ ^old[.]) {{ return 410; }}\n\
         location / {{ {app}; }}\nlocation /ext {{ {key} {app}; }}\nlocation /ext/in/ {{ {app}/v2/; }}\n\
         location = /one {{ {key} {app}; }}\nlocation /kept/ {{ proxy_set_header Host $host; proxy_redirect off; {app}; }}\n\
         location /agent/ {{ if ($http_user_agent = \"\") {{ return 403; }} {app}; }}\n\
         location /args/ {{ if ($args ~ \"x\") {{ return 403; }} {app}; }}\n\
         location ~ \\.bin$ {{ {key} {app}; }}\nlocation ~ ^/ext/.*\\.open$ {{ {app}; }}\n"
    );
    let nginx = External::nginx(&server);
    let (engine, _) = imported(&scratch, "nginx.conf", &format!("http {{ server {{\n{server}\n}} }}\n"));
    let ask = |address: SocketAddr, method: &str, path: &str, fields: &str, host: &str| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n{fields}\r\n");
        let response = Client::plain_from(HOME, address).expect("a connection").ask(request);
        let head = response.head.to_ascii_lowercase();
        let location = head.lines().find_map(|line| line.strip_prefix("location: ")).unwrap_or_default();
        let path = location.rsplit_once(host).map_or(location, |(_, path)| path);
        // The port of nginx's own address is in it as well.
        let path = path.trim_start_matches(|c: char| c == ':' || c.is_ascii_digit()).to_owned();
        let body = if response.status == 200 { response.text().to_owned() } else { String::new() };
        format!("{} {path} {body}", response.status)
    };
    const PATHS: &[&str] = &[
        "/",
        "/go",
        "/ext",
        "/extra",
        "/ext/x",
        "/ext/in",
        "/ext/in/x",
        "/ext/in/go",
        "/one",
        "/one/x",
        "/kept",
        "/kept/x",
        "/kept/go",
        "/agent/x",
        "/args/x",
        "/x.bin",
        "/hidden/x",
        "/hidden/x?y",
        "/ext/a.open",
        "/ext/%0Aa.open",
    ];
    let others = [("OPTIONS", "X-Key: k\r\n", "shop.test"), ("GET", "User-Agent: so BAD\r\n", "shop.test")];
    let asked = [("GET", "", "shop.test"), ("GET", "X-Key: k\r\nUser-Agent: good\r\n", "shop.test")];
    for (method, fields, host) in asked.into_iter().chain(others).chain([("GET", "", "old.test")]) {
        for path in PATHS {
            let theirs = ask(nginx.address(), method, path, fields, host);
            let ours = ask(engine.address("http-18080"), method, path, fields, host);
            // Conditions on the whole query, or on some at a pattern, close what they are for.
            let is_shut = ["/args/x", "/x.bin", "/extra", "/ext/%0Aa.open"].contains(path)
                && (ours.starts_with("403") || ours.starts_with("401"));
            // The more specific of several refusals answers.
            let is_refused = ours.as_str() >= "400" && theirs.as_str() >= "400";
            assert!(
                ours == theirs || is_shut || is_refused,
                "{method} {path} {fields:?} of {host}: {ours}, not {theirs}"
            );
        }
    }
}

/// Hosts that rules of haproxy name, and others beside them.
const HOSTS: &[&str] = &[
    "shop.test",
    "a.shut.test",
    "SHUT.test",
    "shut.test",
    "ashut.test",
    "a.shut.test.b",
    "shut.test:80",
    "xend.test",
    "a.end.test",
    "end.test.b",
    "begin.test",
    "a.begin.test",
];

#[test]
fn an_imported_haproxy_answers_as_haproxy_does() {
    const MOST: usize = 60;
    let (app, php, scratch) = (app(), php(), Scratch::new());
    let list = scratch.write("blocked.lst", format!("# who is not wanted\n{BLOCKED}\n"));
    let robots = scratch.write("robots.txt", "User-agent: *\n");
    let hash = hash();
    let sections = format!(
        "userlist staff\n group admins users ann\n user ann password {hash}\n user eve password {hash}\n \
         user bob insecure-password open\n\
         frontend front\n mode http\n bind {{address}}\n stick-table type ip size 1k expire 2h store http_req_rate(1h)\n \
         http-request track-sc0 src\n http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {MOST} }}\n \
         acl blocked src -f {}\n http-request deny if blocked\n acl closed path_beg /closed\n \
         http-request deny if closed !{{ hdr(Cookie) in }}\n \
         http-request deny if {{ hdr(X-T) -i abc }} or {{ hdr_dom(host) shut.test }} or {{ hdr_reg(X-R) ^x|^y$ }}\n \
         http-request deny if {{ hdr_end(host) end.test }} or {{ hdr_beg(host) begin. }}\n \
         http-request deny if {{ path_beg /odd/ }} {{ req.hdr_cnt(host) gt 0 }}\n \
         http-request deny deny_status 413 if {{ hdr_val(content-length) gt 3 }}\n \
         http-request auth realm staff if {{ path_beg /staff/ }} !{{ http_auth(staff) }}\n \
         http-request auth realm admins if {{ path_beg /admins/ }} !{{ http_auth_group(staff) admins }}\n \
         http-request return status 200 content-type application/json string \"{{}}\" if {{ path /ready }}\n \
         http-request return status 200 content-type text/plain file {} if {{ path /robots.txt }}\n \
         http-request redirect location https://%[hdr(host)]/new code 301 if {{ path /old }}\n \
         use_backend php if {{ path_end .php }}\n use_backend api if {{ path_beg /api/ }}\n default_backend app\n\
         backend app\n mode http\n http-request del-header Remote-User\n retry-on conn-failure 503\n server a {app}\n\
         backend api\n mode http\n http-request del-header Remote-User\n \
         http-request replace-path ^/api/(.*)$ /v2/\\1\n server a {app}\n\
         backend php\n mode http\n use-fcgi-app fpm\n server f {} proto fcgi\n\
         fcgi-app fpm\n docroot {}\n index index.php\n set-param APP_ENV prod\n",
        list.display(),
        robots.display(),
        php.address(),
        php.root().display(),
        app = app.address(),
    );
    let haproxy = External::haproxy(&sections);
    let (engine, said) = imported(&scratch, "haproxy.cfg", &sections);
    assert!(said.stderr.contains("it is a `limit` of its routes now"), "{}", said.stderr);
    let ours = engine.address("http-18080");
    let paths = ["/", "/a?b", "/closed/x", "/ready", "/robots.txt", "/old", "/hello.php?q=1", "/gone.php", "/api/x?y"];
    // A test that is not known keeps out all that fit the rest.
    for path in paths.into_iter().chain(["/odd/x"]) {
        for cookie in ["in", "out"] {
            assert_eq!(answer(ours, HOME, path, cookie), answer(haproxy.address(), HOME, path, cookie));
        }
    }
    let fields = ["X-T: x, ABC", "X-T: abcd", "X-T: x\r\nX-T: abc ", "X-R: a,xa", "X-R: a, by", "Content-Length: 4"];
    let heads = fields.iter().map(|field| ("shop.test", *field)).chain(HOSTS.iter().map(|host| (*host, "X-T: x")));
    for (host, field) in heads {
        let body = if field.starts_with("Content-Length") { "abcd" } else { "" };
        let request = format!("GET /apix HTTP/1.1\r\nHost: {host}\r\n{field}\r\n\r\n{body}");
        let status = |address| Client::plain_from(HOME, address).expect("a connection").ask(&request).status;
        let (theirs, own) = (status(haproxy.address()), status(ours));
        // Names are compared without case.
        assert!(own == theirs || host == "SHUT.test" && own == 403, "{host} {field}: {own}, not {theirs}");
    }
    // The password that stands there as it is makes no hash.
    assert!(said.stderr.contains("user bob; its password is none"), "{}", said.stderr);
    for path in ["/staff/x", "/admins/x"] {
        for user in ["", "YW5uOm9wZW4=", "ZXZlOm9wZW4=", "YW5uOnNodXQ="] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\nAuthorization: Basic {user}\r\n\r\n");
            let status = |address| Client::plain_from(HOME, address).expect("a connection").ask(&request).status;
            assert_eq!(status(ours), status(haproxy.address()), "{path} {user}");
        }
    }
    for address in [ours, haproxy.address()] {
        assert_eq!(answer(address, BLOCKED, "/", "in"), "/: 403  ");
        let is_over = (0..=MOST).any(|_| answer(address, HOME, "/", "in").starts_with("/: 429"));
        assert!(is_over, "{MOST} requests and more");
    }
}

#[test]
fn an_import_makes_all_of_its_files_or_none_and_has_told_all_before() {
    let scratch = Scratch::new();
    let text = format!(
        "defaults\n mode http\nuserlist a\n user ann password {hash}\n user bob insecure-password x\nuserlist b\n \
         user eve password {hash}\nfrontend front\n bind {PLACE}\n http-request auth if {{ path_beg /a/ }} \
         !{{ http_auth(a) }}\n http-request auth if {{ path_beg /b/ }} !{{ http_auth(b) }}\n default_backend app\n\
         backend app\n server s 127.0.0.1:1\n",
        hash = hash()
    );
    let file = scratch.write("haproxy.cfg", text);
    let (out, one, other) = (scratch.join("out.toml"), scratch.join("users-a"), scratch.join("users-b"));
    let import = || {
        let mut command = Command::new(binaries::propylon());
        command.arg("import").arg(&file).arg("-o").arg(&out);
        run(command, b"", Duration::from_secs(60))
    };
    scratch.write("users-b", "mallory:x\n");
    let said = import();
    assert_eq!(said.status.code(), Some(1), "{}", said.stderr);
    assert!(said.stderr.contains("user bob; its password is none"), "{}", said.stderr);
    assert!(said.stderr.contains("users-b: it cannot be written"), "{}", said.stderr);
    assert!(!out.exists() && !one.exists() && other.exists(), "{}", said.stderr);
    // The same users stay, and a configuration that is there already takes none with it.
    scratch.write("users-b", format!("eve:{}\n", hash()));
    scratch.write("out.toml", "");
    let said = import();
    assert!(said.status.code() == Some(1) && said.stderr.contains("name another file by -o"), "{}", said.stderr);
    assert!(!one.exists() && other.exists());
    std::fs::remove_file(&out).expect("the file is there");
    let said = import();
    assert_eq!(said.status.code(), Some(3), "{}", said.stderr);
    assert!(out.exists() && one.exists() && said.stderr.contains("with the same users"), "{}", said.stderr);
}

#[test]
fn an_imported_caddyfile_asks_the_service_and_runs_scripts() {
    let (app, gate, php, scratch) = (app(), gate(), php(), Scratch::new());
    let caddyfile = format!(
        "(known) {{\n\tforward_auth {} {{\n\t\turi /verify\n\t\tcopy_headers Remote-User\n\t}}\n}}\n\
         :18080 {{\n\tbind 127.0.0.1\n\troot * {}\n\t@old path /old\n\tredir @old https://{{host}}/new 301\n\
         \tredir /moved/* https://{{host}}/new 301\n\thandle /moved/on/* {{\n\t\trespond on\n\t}}\n\
         \thandle /api/* {{\n\t\timport known\n\t\treverse_proxy {app} {{\n\t\t\tlb_retries 1\n\t\t}}\n\t}}\n\
         \thandle {{\n\t\tphp_fastcgi {} {{\n\t\t\tenv APP_ENV prod\n\t\t}}\n\t}}\n\
         \thandle /dead/* {{\n\t\treverse_proxy {}\n\t}}\n\
         \thandle_errors 502 {{\n\t\trewrite * /sorry.html\n\t\tfile_server\n\t}}\n}}\n",
        gate.address(),
        php.root().display(),
        php.address(),
        dead(),
        app = app.address(),
    );
    let (engine, said) = imported(&scratch, "Caddyfile", &caddyfile);
    assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), ""));
    let ask = |path: &str, cookie: &str| answer(engine.address("http-18080"), HOME, path, cookie);
    assert_eq!(ask("/api/x", "in"), "/api/x: 200  app /api/x for ann");
    assert_eq!(ask("/api/x", "out"), "/api/x: 401  ");
    assert_eq!(ask("/hello.php?q=1", "out"), "/hello.php?q=1: 200  script hello.php 1");
    assert_eq!(ask("/blog/7", "out"), "/blog/7: 200  index prod");
    assert_eq!(ask("/old", "out"), "/old: 301 https://shop.test/new ");
    assert_eq!(ask("/moved/on/x", "out"), "/moved/on/x: 301 https://shop.test/new ");
    assert_eq!(ask("/dead/x", "out"), "/dead/x: 502  <p>sorry</p>");
}

/// A file of nginx made by chance: locations of all kinds in each other, with what keeps requests out.
struct Chance {
    random: fastrand::Rng,
    app: SocketAddr,
    users: String,
    made: usize,
}

impl Chance {
    fn one(&mut self, all: &[&str]) -> String {
        all[self.random.usize(..all.len())].to_owned()
    }

    /// A guard of a block, or nothing of that.
    fn guard(&mut self) -> String {
        let users = self.users.clone();
        let password = format!("auth_basic staff; auth_basic_user_file {users};");
        let address = format!("allow {BLOCKED}; deny all;");
        let either = format!("satisfy any; {address} {password}");
        let except = format!("limit_except GET {{ {address} }}");
        let shut = format!("deny {BLOCKED};");
        let key = "if ($http_x_key != k) { return 403; }";
        let put = "if ($request_method = PUT) { return 405; }";
        self.one(&[
            "",
            "",
            "",
            "",
            "",
            "deny all;",
            "allow all;",
            "auth_basic off;",
            &password,
            &address,
            &either,
            &except,
            &shut,
            key,
            put,
        ])
    }

    /// The answer of a location: the server tells which location it was.
    fn handler(&mut self) -> String {
        self.made += 1;
        match self.random.u8(..8) {
            0 => "return 404;".into(),
            1 => format!("return 200 \"for loc{}\";", self.made),
            _ => format!("proxy_set_header Remote-User loc{}; proxy_pass http://{};", self.made, self.app),
        }
    }

    /// Locations below a prefix, or in a pattern, each with its own.
    fn locations(&mut self, around: &str, depth: usize) -> String {
        const PREFIXES: &[&str] = &["a", "a/", "a/b", "a/b/", "ab/", "b/", "b/a", ".git", "x y/", "\u{e9}/"];
        const PATTERNS: &[&str] = &[
            r"\.php$",
            "^/a",
            "/b/",
            "^/a/b",
            "^/[^/]+/b",
            "a.b",
            r"^/x\sy",
            "(a|b)$",
            r"^/b/.*\.php$",
            r"/a(?!/b|\.php)",
            "\u{e9}/.",
            r"^/(a|b)/",
        ];
        let mut seen = Vec::new();
        let mut out = String::new();
        for _ in 0..self.random.usize(1..5) {
            let kind = self.one(&["", "", "", "^~", "=", "~", "~*"]);
            let is_pattern = kind.starts_with('~');
            let text = if is_pattern { self.one(PATTERNS) } else { format!("{around}{}", self.one(PREFIXES)) };
            let key = format!("{}{text}", if kind == "^~" { "" } else { kind.as_str() });
            if around.is_empty() && !is_pattern || seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let (guard, handler) = (self.guard(), self.handler());
            let is_deep = depth > 0 && kind != "=" && self.random.bool();
            let inner =
                if is_deep { self.locations(if is_pattern { "" } else { &text }, depth - 1) } else { String::new() };
            out.push_str(&format!("location {kind} \"{text}\" {{ {guard} {handler} {inner} }}\n"));
        }
        out
    }
}

/// Status, and the location that a request came to.
fn reached(address: SocketAddr, source: IpAddr, request: &str) -> (u16, String) {
    let response = Client::plain_from(source, address).expect("a connection").ask(request);
    let text = if response.status == 200 { response.text().to_owned() } else { String::new() };
    (response.status, text.rsplit_once("for ").map_or(text.clone(), |(_, location)| location.to_owned()))
}

#[test]
fn nobody_whom_nginx_refuses_gets_in_by_a_file_that_chance_has_made() {
    const SERVERS: usize = 20;
    const REQUESTS: usize = 30;
    const SEED: u64 = 1;
    const PATHS: &[&str] = &[
        "/",
        "/a",
        "/a/",
        "/a/b",
        "/a/b/x",
        "/ab/",
        "/a.php",
        "/a.php%0A",
        "/a/x.php",
        "/b/",
        "/b/a",
        "/b/a.php",
        "/a/b/c.php",
        "/A/B/",
        "/x%20y/b",
        "/%C3%A9/x.php",
        "//a/b",
        "/a/../b/",
        "/a/%62/",
        "/.git",
        "/.gitignore",
        "/a/a/b",
        "/ab/b/x",
    ];
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let (app, scratch) = (app(), Scratch::new());
    let users = scratch.write("users", format!("ann:{}\n", hash())).display().to_string();
    let mut chance = Chance { random: fastrand::Rng::with_seed(seed), app: app.address(), users, made: 0 };
    let server = |index: usize, chance: &mut Chance| {
        let guard = if chance.random.u8(..4) == 0 { chance.guard() } else { String::new() };
        let guard = if guard.starts_with("limit_except") { String::new() } else { guard };
        let (handler, locations) = (chance.handler(), chance.locations("/", 2));
        format!("listen {{address}};\nserver_name h{index}.test;\n{guard}\nlocation / {{ {handler} }}\n{locations}")
    };
    let servers: Vec<String> = (0..SERVERS).map(|index| server(index, &mut chance)).collect();
    let text = servers.join("}\nserver {\n");
    let nginx = External::nginx(&text);
    let (engine, _) = imported(&scratch, "nginx.conf", &format!("http {{ server {{\n{text}\n}} }}\n"));
    let mut same = 0;
    for (index, requests) in (0..SERVERS).flat_map(|index| (0..REQUESTS).map(move |number| (index, number))) {
        let (method, path) = (chance.one(&["GET", "GET", "PUT"]), chance.one(PATHS));
        let user = chance.one(&["", "", "X-Key: k\r\n", "Authorization: Basic YW5uOm9wZW4=\r\n"]);
        let source = if chance.random.bool() { HOME } else { BLOCKED };
        let request = format!("{method} {path} HTTP/1.1\r\nHost: h{index}.test\r\nContent-Length: 0\r\n{user}\r\n");
        let theirs = reached(nginx.address(), source, &request);
        let ours = reached(engine.address("http-18080"), source, &request);
        same += usize::from(ours == theirs);
        assert!(
            theirs.0 < 400 || ours.0 >= 300,
            "seed {seed}, request {requests}: {method} {path} {user:?} from {source}: {ours:?}, not {theirs:?}\n{}",
            servers[index]
        );
    }
    assert!(same * 2 > SERVERS * REQUESTS, "seed {seed}: {same} of {} answers are the same", SERVERS * REQUESTS);
}

/// A condition of haproxy by chance: one test, or two that both have to hold, or either of two.
fn condition(chance: &mut fastrand::Rng) -> String {
    const TESTS: &[&str] = &[
        "path_beg /a",
        "path_beg /a/b",
        "path_beg /b/",
        "path_end .x",
        "path_end b.y",
        "path /a/b.x",
        "hdr(host) h.test",
        "hdr(host) i.test",
        "hdr_end(host) .h.test",
        "method PUT",
        "method GET",
        "src 127.0.0.9",
        "hdr(X-K) 1",
        "hdr(X-L) -m found",
        "path_sub b/",
        "path_beg -i /B/",
        "hdr_beg(host) h.",
        "req.hdr_cnt(X-N) gt 0",
    ];
    let one = |chance: &mut fastrand::Rng| format!("{{ {} }}", TESTS[chance.usize(..TESTS.len())]);
    match chance.u8(..8) {
        0 | 1 => format!("{} {}", one(chance), one(chance)),
        2 => format!("{} or {}", one(chance), one(chance)),
        _ => one(chance),
    }
}

/// A rule of haproxy that keeps requests out, by chance.
fn refusal(chance: &mut fastrand::Rng) -> String {
    let (asked, other) = (condition(chance), condition(chance));
    match chance.u8(..10) {
        0..=3 => format!("http-request deny if {asked}"),
        4 => format!("http-request deny unless {asked}"),
        5 | 6 if !other.contains("} ") => format!("http-request deny if {asked} !{other}"),
        7 => "http-request auth realm staff unless { http_auth(staff) }".into(),
        8 if !asked.contains(" or ") => format!("http-request auth realm staff if {asked} !{{ http_auth(staff) }}"),
        _ => format!("http-request deny if {asked}"),
    }
}

/// Changes of requests that rules behind them ask for.
const CHANGES: &[&str] = &[
    "del-header X-K",
    "set-header X-L 1 if { src 127.0.0.9 }",
    "set-path /a%[path]",
    "replace-path ^/b/(.*) /a/\\1",
    "set-header Host h.test",
    "set-method PUT if { path_beg /b/ }",
];

/// A frontend with rules that lead to backends, and guards in front of them, behind them, and in the backends.
fn combination(chance: &mut fastrand::Rng, index: usize, app: SocketAddr) -> String {
    let mut lines: Vec<String> = (0..chance.usize(2..4))
        .map(|number| format!(" use_backend b{index}.{number} if {}", condition(chance)))
        .collect();
    let count = lines.len();
    for _ in 0..chance.usize(..3) {
        let place = if chance.bool() { 0 } else { lines.len() };
        lines.insert(place, format!(" {}", refusal(chance)));
    }
    // Rules behind a change ask for what it has made.
    if chance.u8(..6) == 0 {
        let place = chance.usize(..=lines.len());
        lines.insert(place, format!(" http-request {}", CHANGES[chance.usize(..CHANGES.len())]));
    }
    let mut text = format!("frontend f{index}\n mode http\n bind {{place{index}}}\n{}\n", lines.join("\n"));
    text.push_str(&format!(" default_backend b{index}.{count}\n"));
    for number in 0..=count {
        text.push_str(&format!("backend b{index}.{number}\n mode http\n"));
        for _ in 0..[0, 0, 1, 1, 2][chance.usize(..5)] {
            text.push_str(&format!(" {}\n", refusal(chance)));
        }
        text.push_str(&format!(" http-request set-header Remote-User b{index}.{number}\n server s {app}\n"));
    }
    text
}

#[test]
fn nobody_whom_haproxy_refuses_gets_in_by_a_file_that_chance_has_made() {
    const FRONTENDS: usize = 32;
    const REQUESTS: usize = 12;
    const SEED: u64 = 1;
    const PATHS: &[&str] = &["/", "/a", "/ab", "/a/b", "/a/b.x", "/a/b.y", "/a/x", "/c.x", "/b/", "/b/b.y", "/b/.x"];
    const FIELDS: &[&str] = &["", "", "X-K: 1\r\n", "X-L: 1\r\n", "X-K: 1\r\nX-L: 1\r\n", "X-N: 1\r\n"];
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let (app, scratch, mut chance) = (app(), Scratch::new(), fastrand::Rng::with_seed(seed));
    let all: Vec<String> = (0..FRONTENDS).map(|index| combination(&mut chance, index, app.address())).collect();
    let staff = format!("userlist staff\n user ann password {}\n", hash());
    let text = format!("{staff}{}frontend ready\n mode http\n bind {{address}}\n", all.concat());
    let at = |place: &dyn Fn(usize) -> String| {
        (0..FRONTENDS).fold(text.clone(), |text, index| text.replace(&format!("{{place{index}}}"), &place(index)))
    };
    let haproxy = External::haproxy(&at(&|index| format!("127.0.1.{}:{{port}}", index + 1)));
    let port = |index: usize| 18_100 + index;
    let places: Vec<String> = (0..FRONTENDS).map(|index| format!("127.0.0.1:{}", port(index))).collect();
    let (engine, said) =
        imported_at(&scratch, "haproxy.cfg", &at(&|index| places[index].clone()).replace("{address}", PLACE), &places);
    // Lines that are told of, and what they are part of.
    let told: Vec<usize> = said
        .stderr
        .lines()
        .filter_map(|line| line.split_once("haproxy.cfg:")?.1.split_once(':')?.0.parse().ok())
        .collect();
    let (mut line, mut same, mut wrong) = (1 + staff.lines().count(), 0, Vec::new());
    for (index, section) in all.iter().enumerate() {
        let lines = line..line + section.lines().count();
        line = lines.end;
        let is_told = told.iter().any(|line| lines.contains(line));
        let theirs_at =
            SocketAddr::from(([127, 0, 1, 1 + u8::try_from(index).expect("few")], haproxy.address().port()));
        let ours_at = engine.address(&format!("http-{}", port(index)));
        for _ in 0..REQUESTS {
            let mut one = |all: &[&'static str]| all[chance.usize(..all.len())];
            let (method, path, host) = (one(&["GET", "PUT"]), one(PATHS), one(&["h.test", "i.test", "a.h.test", "j"]));
            let user = one(&["", "Authorization: Basic YW5uOm9wZW4=\r\n"]);
            let fields = format!("{}{user}", one(FIELDS));
            let source = if chance.bool() { HOME } else { BLOCKED };
            let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n{fields}\r\n");
            let (theirs, ours) = (reached(theirs_at, source, &request), reached(ours_at, source, &request));
            same += usize::from(ours == theirs);
            let is_right = if theirs.0 >= 400 { ours.0 >= 400 } else { ours == theirs || is_told };
            if !is_right {
                wrong.push(format!("f{index}: {request:?} from {source}: {ours:?}, not {theirs:?}\n{section}"));
            }
        }
    }
    assert!(wrong.is_empty(), "seed {seed}: {} answers are wrong\n{}\n{}", wrong.len(), wrong.join("\n"), said.stderr);
    assert!(same * 10 > FRONTENDS * REQUESTS * 7, "seed {seed}: {same} of {} are the same", FRONTENDS * REQUESTS);
}
