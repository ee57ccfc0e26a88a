//! The dashboard in a real browser: what it tells is what the metrics tell, to mouse, keyboard and phone, and nobody's names can
//! make it do anything else.

use std::fs;

use propylon_e2e::admin::{TOKEN, ask_admin, with_state};
use propylon_e2e::devtools::{Page, Screen};
use propylon_e2e::engine::simple;
use propylon_e2e::http::head_end;
use propylon_e2e::origin::dead;
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, holds};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustix::process::Signal;
use serde_json::Value;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const IS_SERVING: &str = "document.querySelector('#state').innerText.includes('serving')";

fn open(engine: &Engine, screen: Screen) -> Page {
    open_at(&format!("http://{}/", engine.admin()), screen)
}

fn open_at(url: &str, screen: Screen) -> Page {
    let mut page = Page::open(url, screen);
    page.eventually("the dashboard shows figures", IS_SERVING);
    page
}

/// The dashboard opened anew, as another screen has it. The number tells this page from the one before.
fn open_anew(page: &mut Page, engine: &Engine, screen: Screen, number: usize) {
    page.visit(&format!("http://{}/?{number}", engine.admin()), screen);
    page.eventually("the dashboard shows figures", &format!("location.search === '?{number}' && {IS_SERVING}"));
}

/// Nobody complained, and nobody else was asked for anything.
#[track_caller]
fn is_content(page: &mut Page, url: &str) {
    assert_eq!(page.console(), Vec::<String>::new());
    let elsewhere: Vec<String> = page.requested().into_iter().filter(|asked| !asked.starts_with(url)).collect();
    assert!(elsewhere.iter().all(|asked| asked.starts_with("data:") || asked == "about:blank"), "{elsewhere:?}");
}

/// The row whose first cell is this.
#[track_caller]
fn row(page: &mut Page, table: &str, first: &str) -> Vec<String> {
    let rows = page.rows(table);
    let found = rows.iter().find(|row| row[0] == first);
    found.unwrap_or_else(|| panic!("no {first} in {table}: {rows:?}")).clone()
}

fn whole(text: &str) -> f64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

/// Bytes of a text such as "16 KiB".
fn bytes(text: &str) -> f64 {
    let (value, unit) = text.split_once(' ').unwrap_or_else(|| panic!("{text} is no size"));
    let power = ["B", "KiB", "MiB", "GiB"].iter().position(|known| *known == unit).expect("a unit");
    value.parse::<f64>().expect("a number") * 1024_f64.powi(power as i32)
}

#[test]
fn traffic_handshakes_latency_and_offload_are_what_the_metrics_say() {
    const REQUESTS: usize = 7;
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let url = format!("http://{}/", engine.admin());
    let mut page = open(&engine, Screen::DESK);
    let mut client = engine.client("web");
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/").status, 200);
    }
    page.eventually(
        "seven answers",
        "document.querySelector('#tile-requests .more').innerText.includes('; 7 answered')",
    );
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "2xx")]), REQUESTS as f64);
    let version = [("version", "TLSv1.3"), ("certificate", "ecdsa"), ("resumed", "false")];
    let handshakes = engine.metric("propylon_tls_handshakes_total", &version);
    let told = row(&mut page, "#handshakes", "TLSv1.3, ECDSA certificate");
    assert_eq!((whole(&told[3]), told[4].as_str()), (handshakes, "100.0 %"));
    assert_eq!(page.rows("#handshakes").len(), 1, "types that nobody has shaken hands with are left out");
    // The median lies in the bucket in which the metrics have it.
    let told = row(&mut page, "#latency", "Requests, first byte to last");
    assert_eq!(told[9], "7", "{told:?}");
    let below = |seconds: f64| {
        engine.metric("propylon_request_duration_seconds_bucket", &[("listener", "web"), ("le", &seconds.to_string())])
    };
    let bounds = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
    let upper = bounds.iter().position(|bound| below(*bound) >= REQUESTS as f64 / 2.0).expect("a quick answer");
    let lower = if upper == 0 { 0.0 } else { bounds[upper - 1] };
    let median = duration(&told[5]);
    assert!(
        median >= lower * 0.999 && median <= bounds[upper] * 1.001,
        "{told:?} and not within {lower} to {}",
        bounds[upper]
    );
    let offload = page.text("#tile-offload");
    let open = engine.metric("propylon_connections", &[]);
    let to_servers = engine.metric("propylon_server_connections", &[]);
    assert!(offload.contains(&format!("{open} open from clients, {to_servers} to servers")), "{offload}");
    assert!(offload.contains("7 requests on 1 (7 : 1)"), "{offload}");
    let address = engine.address("web").to_string();
    assert!(page.text("#listeners").contains(&format!("https://{address}")));
    page.photograph("quiet");
    is_content(&mut page, &url);
}

/// An engine with a route of many steps, one with long names, and two plain ones.
fn routed(origin: &Origin, second: &Origin) -> Engine {
    let routes = "[[route]]\nname = \"checkout\"\nlistener = \"plain\"\nhost = \"*.shop.example\"\npath = \"/checkout\"\n\
         match = { method = [\"GET\", \"POST\"], header = { X-Api-Key = \"hush\", X-Canary = { present = true } } }\n\
         limit = [{ name = \"edge\", rate = \"1/h\" }, { requests = 50, key = \"all\" }]\nbody_limit = \"1MiB\"\n\
         request = { set = { X-Secret = \"hush\" }, remove = [\"X-Debug\"], path = { strip = \"/checkout\" } }\n\
         timeouts = { request = \"9s\", first_byte = \"2s\" }\nretries = { attempts = 2, on = [\"connect\", 503] }\n\
         backend = [{ name = \"app\", weight = 9 }, { name = \"next\", weight = 1 }]\n\
         [[route]]\nhost = \"a-host-with-a-remarkably-long-name-that-somebody-generated.shop.example\"\n\
         path = { regex = \"^/old/([a-z]+)/<img>$\" }\nredirect = { host = \"shop.example\" }\n\
         [[route]]\nname = \"rest\"\nbackend = \"app\"\n[[route]]\npath = \"/down\"\nrespond = { status = 503, body = \"hush\" }\n";
    Engine::start(&format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n[backend.next]\nservers = [\"{}\"]\n{routes}",
        origin.address(),
        second.address()
    ))
}

#[test]
fn routes_are_told_in_words_with_their_traffic_and_lead_to_their_backend() {
    let (origin, second) = (Origin::always(HELLO), Origin::always(HELLO));
    let engine = routed(&origin, &second);
    let url = format!("http://{}/", engine.admin());
    let mut page = open(&engine, Screen::DESK);
    let mut client = Client::plain(engine.address("plain"));
    let head = "Host: a.shop.example\r\nX-Api-Key: hush\r\nX-Canary: 1\r\n";
    for (path, status) in [("/checkout", 200), ("/checkout", 429), ("/checkout", 429), ("/down", 503), ("/", 200)] {
        assert_eq!(client.ask(format!("GET {path} HTTP/1.1\r\n{head}\r\n")).status, status);
    }
    page.eventually("the refusals", "document.querySelector('#routes tbody tr').innerText.includes('/s, 2 in all')");
    let rows = page.rows("#routes");
    let labels: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!((rows.len(), labels[0], labels[2], labels[3]), (4, "checkout", "rest", "*/down"));
    assert_eq!(
        rows[0][1],
        "listener plain, host *.shop.example, path from /checkout, field x-api-key …, field x-canary there, method GET or POST"
    );
    assert!(
        rows[0][2].starts_with("limit to 1/h by source: refused ")
            && rows[0][2].contains("by all: refused 0/s, 0 in all")
    );
    assert!(rows[0][3].starts_with("backend app (9 of 10) or next (1 of 10)") && rows[0][3].ends_with("→ next"));
    assert_eq!((rows[2][3].as_str(), rows[3][8].as_str()), ("backend app", "–"));
    assert!(!page.text("#routes").contains("hush"), "a secret");
    assert_eq!(engine.metric("propylon_route_requests_total", &[("route", "checkout")]), 3.0);
    // Keyboard: a route leads to its backend, and the filter to a route.
    page.evaluate("document.querySelector('#routes tbody a').focus()");
    page.press("Enter");
    page.eventually("its backend alone", "document.querySelectorAll('#backends tbody tr').length == 1");
    assert_eq!(page.evaluate("location.hash + document.activeElement.id"), "#backends:appbackends");
    assert_eq!((page.rows("#backends")[0][0].as_str(), page.text("#backends-count").as_str()), ("app", "1 of 2"));
    page.evaluate("location.hash = '#routes:shop.example'");
    page.eventually("two are left", "document.querySelectorAll('#routes tbody tr').length == 2");
    assert_eq!(page.text("#routes-count"), "2 of 4");
    // Nearer to the top it may not come: less is below it than fills the window.
    page.eventually(
        "it is scrolled",
        "[document.querySelector('#routes').getBoundingClientRect().top].every(top => top >= 0 && top < innerHeight)",
    );
    page.press("/");
    assert_eq!(page.evaluate("document.activeElement.id"), "routes-filter");
    page.press("Escape");
    page.eventually("all are back", "document.querySelectorAll('#routes tbody tr').length == 4");
    is_content(&mut page, &url);
}

#[test]
fn routes_are_whole_on_a_desk_and_on_a_phone() {
    let (origin, second) = (Origin::always(HELLO), Origin::always(HELLO));
    let engine = routed(&origin, &second);
    let mut page = open(&engine, Screen::DESK);
    for (number, (name, screen)) in [
        ("routes-1280", Screen { width: 1280, height: 800, is_dark: false }),
        ("routes-1280-dark", Screen { width: 1280, height: 800, is_dark: true }),
        ("routes-phone", Screen { width: 390, height: 844, is_dark: false }),
        ("routes-phone-dark", Screen { width: 390, height: 844, is_dark: true }),
    ]
    .into_iter()
    .enumerate()
    {
        open_anew(&mut page, &engine, screen, number);
        page.eventually("routes", "document.querySelectorAll('#routes tbody tr').length == 4");
        assert_eq!(page.evaluate("document.documentElement.scrollWidth"), screen.width, "{name} scrolls sideways");
        assert_eq!(page.evaluate(STUMBLING), Value::Array(Vec::new()), "{name}");
        let outside = page.evaluate(
            "[...document.querySelectorAll('#routes *')].filter(each => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth + 1).length",
        );
        assert_eq!(outside, 0, "something is cut off at {name}");
        page.photograph(name);
    }
}

/// Seconds of a text such as "1.5 ms".
fn duration(text: &str) -> f64 {
    let (value, unit) = text.split_once(' ').unwrap_or_else(|| panic!("{text} is no duration"));
    let unit = match unit {
        "µs" => 1e-6,
        "ms" => 1e-3,
        _ => 1.0,
    };
    value.parse::<f64>().expect("a number") * unit
}

#[test]
fn memory_per_connection_is_told_once_there_are_enough_of_them() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut page = open(&engine, Screen::DESK);
    assert!(page.text("#tile-memory").contains("told from 100 connections on"));
    let clients: Vec<Client> = (0..120).map(|_| engine.client("plain")).collect();
    page.eventually("120 connections", "document.querySelector('#tile-connections .now').innerText == '120'");
    assert_eq!(engine.metric("propylon_connections", &[]), 120.0);
    let (now, start) =
        (engine.metric("propylon_resident_bytes", &[]), engine.metric("propylon_resident_at_start_bytes", &[]));
    let told = bytes(&page.text("#tile-memory .now"));
    // The process breathes between two looks; the page rounds.
    let expected = (now - start) / 120.0;
    assert!((told - expected).abs() <= expected * 0.5 + 16384.0, "{told} and not {expected}");
    drop(clients);
}

#[test]
fn servers_come_with_their_state_and_reason_the_worst_first() {
    let origin = Origin::always(HELLO);
    let (good, bad) = (origin.address(), dead().to_string());
    let engine = Engine::start(&format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n\
         [backend.app]\nservers = [\"{good}\", \"{bad}\"]\nhealth = {{ kind = \"tcp\", interval = \"100ms\", timeout = \"100ms\", fall = 1 }}\n\
         [backend.gone]\nservers = [\"{bad}\"]\nhealth = {{ kind = \"tcp\", interval = \"100ms\", timeout = \"100ms\", fall = 1 }}\n\
         [[route]]\nbackend = \"app\"\n[[route]]\npath = \"/gone\"\nbackend = \"gone\"\n"
    ));
    engine.metric_reaches("propylon_server_up", &[("server", &bad)], 0.0);
    let mut page = open(&engine, Screen::DESK);
    page.eventually("both are down", "document.querySelector('#servers-summary').innerText.includes('2 down')");
    let rows = page.rows("#servers");
    assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), [&bad, &bad, &good.to_string()]);
    assert!(rows[0][1].starts_with("✗ down for ") && rows[0][1].ends_with(": connect-refused"), "{rows:?}");
    assert!(rows[2][1].starts_with("✓ up"), "{rows:?}");
    assert_eq!(engine.metric("propylon_server_up", &[("server", &good.to_string())]), 1.0);
    let attention = page.text("#problem-list");
    assert!(attention.starts_with("✗ Problem Backend gone: none of its 1 server is usable"), "{attention}");
    assert!(attention.contains(&format!("2 of 3 servers down: {bad} of app (connect-refused)")), "{attention}");
    assert_eq!(page.evaluate("document.title"), "(2) Propylon");
    // A link that holds a filter.
    page.evaluate("location.hash = '#servers:gone'");
    page.eventually("one is left", "document.querySelectorAll('#servers tbody tr').length == 1");
    assert_eq!(page.text("#servers-count"), "1 of 3");
    assert_eq!(page.evaluate("document.activeElement.id"), "servers");
    page.photograph("servers-down");
    is_content(&mut page, &format!("http://{}/", engine.admin()));
}

#[test]
fn certificates_come_with_their_end_and_what_could_not_be_read() {
    let scratch = Scratch::new();
    let origin = Origin::always(HELLO);
    let certificates = Certificates::shared();
    fs::create_dir(scratch.join("folder")).expect("a folder");
    scratch.write("folder/old.pem", certificates.issue_dated(&["old.test"], (2020, 2021)));
    scratch.write("folder/new.pem", certificates.issue_dated(&["new.test"], (2020, 2199)));
    let engine = Engine::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n[tls.public]\ncertificates = [\"{}\"]\n\
         [backend.app]\nservers = [\"{}\"]\n[[route]]\nbackend = \"app\"\n",
        scratch.join("folder").display(),
        origin.address()
    ));
    let mut page = open(&engine, Screen::DESK);
    let rows = page.rows("#certificates-table");
    assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["old.test", "new.test"]);
    assert!(rows[0][1].starts_with("✗ expired ") && rows[1][1].starts_with("✓ "), "{rows:?}");
    for row in &rows {
        let seconds = engine.metric("propylon_certificate_expiry_seconds", &[("name", &row[0])]);
        let told = page.evaluate(&format!("Date.parse('{}Z') / 1000", row[2].replace(' ', "T")));
        assert_eq!(told.as_f64(), Some(seconds), "{row:?}");
    }
    let counted = engine.metric("propylon_certificates_by_days_left", &[("days_left", "expired")]);
    assert_eq!((page.text("#certificates-summary").as_str(), counted), ("2, 1 expired", 1.0));
    assert!(page.text("#problem-list").contains("1 certificate has expired: old.test (ecdsa, expired)"));
    scratch.write("folder/new.pem", "no certificate");
    engine.signal(Signal::HUP);
    page.eventually("the file is named", "document.querySelector('#files-table').innerText.includes('new.pem')");
    assert!(page.text("#problem-list").contains("1 file could not be used at the last reading: new.pem"));
    assert_eq!(page.rows("#certificates-table").len(), 2, "what was there before stays");
    // Another file in its place, and nothing is to be said any more.
    scratch.write("folder/new.pem", certificates.issue(&["new.test"], &PKCS_ECDSA_P256_SHA256));
    engine.signal(Signal::HUP);
    page.eventually("the file is good", "document.querySelector('#files-table').hidden");
    page.photograph("certificates");
    is_content(&mut page, &format!("http://{}/", engine.admin()));
}

#[test]
fn the_keyboard_reaches_everything_and_is_seen_where_it_is() {
    let origin = Origin::always(HELLO);
    let second = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address(), second.address()]));
    let mut page = open(&engine, Screen::DESK);
    page.press("Tab");
    assert_eq!(page.evaluate("document.activeElement.className"), "skip");
    page.press("Enter");
    page.eventually("the skip link leads to the problems", "document.activeElement.id == 'problems'");
    page.evaluate("document.activeElement.blur(); document.body.focus()");
    page.press("/");
    assert_eq!(page.evaluate("document.activeElement.id"), "servers-filter");
    page.type_in(&second.address().to_string());
    page.eventually("one is left", "document.querySelectorAll('#servers tbody tr').length == 1");
    assert_eq!(
        page.evaluate("location.hash"),
        format!("#servers:{}", second.address().to_string().replace(':', "%3A"))
    );
    page.press("Escape");
    page.eventually("both are back", "document.querySelectorAll('#servers tbody tr').length == 2");
    page.press("Escape");
    // From the first control on: each can be seen to have the focus, none is passed twice, and there is a way out.
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)");
    page.evaluate("document.querySelector('.skip').focus()");
    let mut seen: Vec<String> = Vec::new();
    let controls = page.evaluate(
        "[...document.querySelectorAll('a[href], button, input, [tabindex=\"0\"]')].filter(each => each.checkVisibility()).length",
    );
    for _ in 0..controls.as_u64().expect("a number") {
        let at = page.evaluate(
            "(() => { const at = document.activeElement, style = getComputedStyle(at);
               const name = at.getAttribute('aria-label') || at.labels?.[0]?.innerText || at.innerText;
               return [at.tagName, name, style.outlineStyle, style.outlineWidth, [...document.querySelectorAll('*')].indexOf(at)].join('|'); })()",
        );
        let at = at.as_str().expect("a text").to_owned();
        let parts: Vec<&str> = at.split('|').collect();
        assert!(!parts[1].is_empty(), "a control without a name: {at}");
        assert!(parts[2] != "none" && parts[3] != "0px", "a focus that cannot be seen: {at}");
        assert!(!seen.contains(&at), "passed twice: {at}");
        seen.push(at);
        page.press("Tab");
    }
    // A column's head sorts, and says so.
    page.evaluate("document.querySelector('#servers thead button').focus()");
    page.press("Enter");
    assert_eq!(page.evaluate("document.querySelector('#servers thead th').getAttribute('aria-sort')"), "ascending");
    let mut addresses: Vec<String> = page.rows("#servers").into_iter().map(|row| row[0].clone()).collect();
    assert!(addresses.is_sorted(), "{addresses:?}");
    page.press("Enter");
    addresses.reverse();
    assert_eq!(page.rows("#servers").into_iter().map(|row| row[0].clone()).collect::<Vec<_>>(), addresses);
    is_content(&mut page, &format!("http://{}/", engine.admin()));
}

#[test]
fn the_generation_follows_changes_and_one_that_was_refused_is_told() {
    let (origin, second) = (Origin::always(HELLO), Origin::always(HELLO));
    let engine = Engine::start(&simple(&[origin.address(), second.address()]));
    let mut page = open(&engine, Screen::DESK);
    assert!(page.text("#facts").contains("configuration generation 1"));
    let path = engine.folder().join("propylon.toml");
    let before = fs::read_to_string(&path).expect("a configuration");
    let address = format!("\"{}\"", second.address());
    let after = before.replace(&address, &format!("{{ address = {address}, drain = true }}"));
    fs::write(&path, &after).expect("another configuration");
    engine.signal(Signal::HUP);
    page.eventually(
        "it is the second",
        "document.querySelector('#facts').innerText.includes('configuration generation 2')",
    );
    assert_eq!(engine.metric("propylon_config_generation", &[]), 2.0);
    page.eventually("one drains", "document.querySelector('#servers-summary').innerText.includes('1 draining')");
    assert!(row(&mut page, "#servers", &second.address().to_string())[1].starts_with("◌ draining for "));
    fs::write(&path, after.replace("servers =", "server =")).expect("one with a mistake");
    engine.signal(Signal::HUP);
    page.eventually(
        "it is told",
        "document.querySelector('#problem-list').innerText.includes('was refused; generation 2 stays in effect')",
    );
    assert_eq!(engine.metric("propylon_config_last_reload_failed", &[]), 1.0);
    is_content(&mut page, &format!("http://{}/", engine.admin()));
}

#[test]
fn what_was_before_the_page_was_opened_is_in_its_curves_and_events_are_on_the_same_axis() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let history = |query: &str| {
        let answer = ask_admin(&engine, "GET", &format!("/v1/history.json{query}"), "", "");
        (answer.status, serde_json::from_str::<Value>(&answer.text()).unwrap_or_default())
    };
    let rates = || history("").1["series"]["requests"]["values"].as_array().cloned().unwrap_or_default();
    holds("seconds with requests are kept", || {
        assert_eq!(engine.client("plain").get("/").status, 200);
        rates().iter().filter(|rate| rate.as_f64() > Some(0.0)).count() >= 3
    });
    engine.reload();
    let (_, day) = history("?span=24h");
    assert_eq!((&day["span"], &day["every_seconds"]), (&Value::from("24h"), &Value::from(60)));
    assert_eq!(history("?span=1y").0, 400);
    let (_, five) = history("?span=5m");
    for (name, series) in five["series"].as_object().expect("series") {
        let (times, values) = (five["times"].as_array(), series["values"].as_array());
        assert_eq!(times.map(Vec::len), values.map(Vec::len), "{name}");
    }
    assert!(five["series"].as_object().expect("series").len() >= 30);
    let mut page = open(&engine, Screen::DESK);
    page.eventually(
        "the curve begins before the page does",
        "document.querySelector('#tile-requests polyline').getAttribute('points').trim().split(' ').length >= 4",
    );
    page.eventually("events are marked", "!!document.querySelector('#tile-requests path.info').getAttribute('d')");
    let events = page.rows("#events-table");
    assert!(events.iter().any(|row| row[2].contains("generation 2") || row[2].contains("configuration")), "{events:?}");
    assert!(events.iter().all(|row| row[0].len() == "2026-01-01 00:00:00".len()), "{events:?}");
    page.evaluate("document.querySelector('#span-24h').click()");
    page.eventually(
        "a day is shown, as far as there is one",
        "document.querySelector('#span-24h').getAttribute('aria-pressed') === 'true' && !!document.querySelector('#tile-requests polyline').getAttribute('points')",
    );
    is_content(&mut page, &format!("http://{}/", engine.admin()));
}

/// An engine with the token, and with servers of which one is down and has made errors.
fn troubled(scratch: &Scratch, good: &Origin) -> (Engine, String) {
    let (state, token) = with_state(scratch);
    let bad = dead().to_string();
    let engine = Engine::start(&format!(
        "[process]\n{state}\n[admin]\nbind = \"127.0.0.1:0\"\n{token}\n\
         [listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n[backend.gone]\nservers = [\"{bad}\"]\n\
         health = {{ kind = \"tcp\", interval = \"100ms\", timeout = \"100ms\", fall = 1 }}\n\
         [[route]]\nname = \"lost\"\npath = \"/gone\"\nbackend = \"gone\"\n[[route]]\nbackend = \"app\"\n",
        good.address()
    ));
    engine.metric_reaches("propylon_server_up", &[("backend", "gone")], 0.0);
    assert_eq!(Client::plain(engine.address("plain")).get("/gone").status, 503);
    (engine, bad)
}

/// A click on the button of this name, as the browser does it.
fn click(page: &mut Page, name: &str) {
    page.eventually(name, &format!("(document.querySelector('{name}').click(), true)"));
}

/// Waits until the dialog says this of what came of a change.
#[track_caller]
fn says(page: &mut Page, text: &str) {
    let text = serde_json::json!(text);
    page.eventually("the outcome", &format!("document.querySelector('#ask-result').textContent.includes({text})"));
}

/// Changes after the first: the token stays with the page.
fn goes_on_with_the_token(page: &mut Page, address: &str) {
    click(page, &format!("[aria-label=\"Undrain {address} of app\"]"));
    assert_eq!(page.evaluate("document.querySelector('#ask-token-line').hidden"), true);
    click(page, "#ask-go");
    says(page, "In effect as generation 3");
    click(page, "#ask-close");
    click(page, &format!("[aria-label=\"Weight of {address} of app\"]"));
    page.evaluate("document.querySelector('#ask-weight').value = '300'");
    assert_eq!(page.evaluate("document.querySelector('#ask-form').checkValidity()"), false);
    page.evaluate("document.querySelector('#ask-weight').value = '7'");
    click(page, "#ask-go");
    says(page, "In effect as generation 4");
    click(page, "#ask-close");
    let heads = "[...document.querySelectorAll('#servers thead th')].map(head => head.textContent)";
    assert!(page.evaluate(heads).as_array().is_some_and(|heads| heads.contains(&"Connects failed".into())));
    page.eventually("it weighs seven", &format!("[...document.querySelectorAll('#servers tbody tr')].some(row => row.cells[0].textContent === '{address}' && row.cells[9].textContent === '7')"));
    click(page, "#reload");
    click(page, "#ask-go");
    says(page, "generation 4");
    click(page, "#ask-close");
}

#[test]
fn servers_are_drained_and_weighed_by_buttons_after_a_question_and_with_the_token_alone() {
    let (scratch, origin) = (Scratch::new(), Origin::always(HELLO));
    let (engine, _) = troubled(&scratch, &origin);
    let (url, address) = (format!("http://{}/", engine.admin()), origin.address().to_string());
    let mut page = open(&engine, Screen::DESK);
    // Keyboard: the button asks, with the server's name, and Escape changes nothing.
    let drain = format!("[aria-label=\"Drain {address} of app\"]");
    page.eventually("buttons", &format!("(document.querySelector('{drain}').focus(), true)"));
    page.press("Enter");
    page.eventually("it asks", "document.querySelector('#ask').open");
    assert_eq!(page.text("#ask-title"), format!("Drain {address}?"));
    assert_eq!(page.evaluate("document.activeElement.id + document.activeElement.type"), "ask-tokenpassword");
    page.photograph("ask");
    page.press("Escape");
    page.eventually("it is gone", "!document.querySelector('#ask').open");
    page.eventually(
        "the focus is where it was",
        &format!("document.activeElement === document.querySelector('{drain}')"),
    );
    assert_eq!(engine.metric("propylon_config_generation", &[]), 1.0);
    // Another token is none.
    click(&mut page, &drain);
    page.type_in("not-the-token-at-all");
    page.press("Enter");
    says(&mut page, "this is not the token");
    assert_eq!(engine.metric("propylon_config_generation", &[]), 1.0);
    page.eventually("it is asked for again", "document.activeElement.id == 'ask-token'");
    page.type_in(TOKEN);
    page.evaluate("document.querySelector('#ask-person').value = 'Märta\"'");
    page.press("Enter");
    says(&mut page, "In effect as generation 2");
    page.press("Enter");
    page.eventually("it drains", &format!("!!document.querySelector('[aria-label=\"Undrain {address} of app\"]')"));
    let line = engine.stderr().into_iter().find(|line| line.contains("drained, by")).expect("a line of the audit");
    let told = "with the token, called \"Märta\\\"\", in a browser (Mozilla/5.0";
    assert!(
        line.contains(&format!("[backend.app]: server {address} changed: drained, by a client at 127.0.0.1:")),
        "{line}"
    );
    assert!(line.contains(told), "{line}");
    goes_on_with_the_token(&mut page, &address);
    assert_eq!(page.evaluate("document.cookie + localStorage.length + sessionStorage.length"), "00");
    assert!(page.evaluate("document.documentElement.outerHTML").as_str().is_some_and(|html| !html.contains(TOKEN)));
    assert!(page.requested().iter().all(|asked| !asked.contains(TOKEN)));
    click(&mut page, "#forget");
    click(&mut page, "#reload");
    assert_eq!(page.evaluate("document.querySelector('#ask-token-line').hidden"), false);
    click(&mut page, "#ask-close");
    assert_eq!(page.console().iter().filter(|said| !said.contains("401")).count(), 0, "{:?}", page.console());
    assert!(
        page.requested()
            .iter()
            .all(|asked| asked.starts_with(&url) || asked.starts_with("data:") || asked == "about:blank")
    );
}

#[test]
fn an_error_leads_to_its_server_its_routes_lines_of_the_log_and_a_cure() {
    let (scratch, origin) = (Scratch::new(), Origin::always(HELLO));
    let (engine, _) = troubled(&scratch, &origin);
    let mut page = open(&engine, Screen::DESK);
    page.eventually(
        "lines of the log",
        "document.querySelector('#errors').innerText.includes('requests find no server')",
    );
    page.eventually("errors", "document.querySelectorAll('#errors tbody tr').length > 0");
    let rows = page.rows("#errors");
    let of = rows.iter().find(|row| row[1].starts_with("gone") && row[0] == "no server left").expect("an error");
    assert!(of[1].contains("1 route") && of[5].starts_with("bring servers back"), "{of:?}");
    let links =
        page.evaluate("[...document.querySelectorAll('#errors tbody a')].map(each => decodeURIComponent(each.hash))");
    let links: Vec<String> = serde_json::from_value(links).expect("links");
    assert!(
        ["#servers:gone", "#backends:gone", "#routes:gone", "#events"]
            .iter()
            .all(|link| links.iter().any(|each| each == link)),
        "{links:?}"
    );
    // The request was before the page was opened.
    let attention = page.text("#problem-list");
    assert!(attention.contains("1 answer of 5xx, or that never came, in the last minute"), "{attention}");
    // A page that is opened with a link is at its section once everything above has come.
    for (at, link) in ["errors", "events", "servers:down"].into_iter().enumerate() {
        let phone = Screen { width: 390, height: 844, is_dark: false };
        page.look(if link == "servers:down" { phone } else { Screen::DESK });
        let url = format!("http://{}/?{at}#{link}", engine.admin());
        page.evaluate(&format!("location.replace('{url}')"));
        let section = link.split(':').next().expect("a name");
        page.eventually(
            link,
            &format!(
                "location.search === '?{at}' && ['routes', 'events', 'errors'].every(name => \
                 document.querySelectorAll(`#${{name}} tbody tr`).length > 0) && (() => {{ \
                 const {{ top }} = document.getElementById('{section}').getBoundingClientRect(); \
                 const isEnd = scrollY + innerHeight >= document.documentElement.scrollHeight - 2; \
                 return Math.abs(top) < 12 || (isEnd && top > 0 && top < innerHeight); }})()"
            ),
        );
    }
    stays_at_its_place(&mut page);
    is_content(&mut page, &format!("http://{}/", engine.admin()));
}

/// The section of servers keeps its place whatever comes above it, in a browser that does nothing for it, until
/// somebody goes elsewhere.
fn stays_at_its_place(page: &mut Page) {
    let grows = |page: &mut Page, pixels: u32| {
        page.evaluate(&format!("document.querySelector('#traffic').style.paddingTop = '{pixels}px'"));
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))");
        page.evaluate("Math.round(document.querySelector('#servers').getBoundingClientRect().top)")
    };
    page.evaluate("document.documentElement.style.overflowAnchor = 'none'");
    assert_eq!((grows(page, 300), grows(page, 0)), (Value::from(8), Value::from(8)));
    page.photograph("servers-phone");
    page.evaluate("scrollTo(0, 0)");
    page.eventually("it has moved", "document.querySelector('#servers').getBoundingClientRect().top > 300");
    page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))");
    let before = page.evaluate("scrollY");
    grows(page, 300);
    assert_eq!(page.evaluate("scrollY"), before, "whoever has gone elsewhere stays there");
}

#[test]
fn a_page_elsewhere_changes_nothing_and_without_a_token_there_is_no_button() {
    let (scratch, origin) = (Scratch::new(), Origin::always(HELLO));
    let (engine, _) = troubled(&scratch, &origin);
    let path = format!("/v1/backends/app/servers/{}", origin.address());
    let fields = format!("Content-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n");
    let status = |method: &str, more: &str| {
        ask_admin(&engine, method, &path, &(fields.clone() + more), "{\"drain\":true}").status
    };
    let own = format!("http://{}", engine.admin());
    for other in ["Origin: null\r\n", "Origin: http://127.0.0.1\r\n", "Origin: http://evil.example\r\n"] {
        assert_eq!(status("PATCH", other), 403, "{other}");
    }
    assert_eq!(status("PATCH", &format!("Origin: {own}\r\nSec-Fetch-Site: cross-site\r\n")), 403);
    assert_eq!(status("PATCH", &format!("Origin: {own}\r\nOrigin: http://evil.example\r\n")), 403);
    assert_eq!(status("GET", &format!("Origin: {own}\r\n")), 404, "nothing is changed by looking");
    let cookie = format!("Content-Type: application/json\r\nCookie: token={TOKEN}\r\nOrigin: {own}\r\n");
    assert_eq!(ask_admin(&engine, "PATCH", &path, &cookie, "{\"drain\":true}").status, 401);
    assert_eq!(engine.metric("propylon_config_generation", &[]), 1.0);
    // A page of another origin, in a browser: its question beforehand is not answered.
    let front = Origin::always("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi");
    let mut page = Page::open(&format!("http://{}/", front.address()), Screen::DESK);
    page.eventually("the page", "document.body.innerText === 'hi'");
    let outcome = page.evaluate(&format!(
        "fetch('{own}{path}', {{ method: 'PATCH', headers: {{ Authorization: 'Bearer {TOKEN}', 'Content-Type': 'application/json' }}, body: '{{\"drain\":true}}' }}).then(() => 'answered', () => 'kept away')"
    ));
    assert_eq!(outcome, "kept away");
    let outcome = page.evaluate(&format!(
        "fetch('{own}/v1/reload', {{ method: 'POST', mode: 'no-cors' }}).then(() => 'sent', () => 'kept away')"
    ));
    // What may be sent without a question is refused where it arrives: nothing was read again.
    assert!(outcome == "sent" || outcome == "kept away", "{outcome}");
    let reloads = engine.metric("propylon_config_reloads_total", &[]);
    assert_eq!((engine.metric("propylon_config_generation", &[]), reloads), (1.0, 0.0));
    assert!(engine.stderr().iter().all(|line| !line.contains("reading the configuration")), "{:?}", engine.stderr());
    let plain = Engine::start(&simple(&[origin.address()]));
    let mut page = open(&plain, Screen::DESK);
    assert_eq!(
        page.text("#changes"),
        "Read only: nothing can be changed from this page, since admin.token_file is not set."
    );
    assert_eq!(page.evaluate("document.querySelectorAll('#servers td button').length"), 0);
}

/// axe-core, which `scripts/setup.sh test` has put beside what is built.
fn axe() -> String {
    let test = std::env::current_exe().expect("a test knows its own path");
    let target = test.ancestors().nth(3).expect("target/PROFILE/deps/TEST");
    let path = target.join("peers/node_modules/axe-core/axe.min.js");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; scripts/setup.sh test", path.display()))
}

#[test]
fn axe_finds_nothing_in_light_and_dark_with_and_without_data_on_a_desk_and_a_phone() {
    let (scratch, origin, axe) = (Scratch::new(), Origin::always(HELLO), axe());
    let (engine, _) = troubled(&scratch, &origin);
    let quiet = Engine::start("[listener.plain]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = { status = 204 }\n");
    for (name, engine) in [("data", &engine), ("empty", &quiet)] {
        let mut page = open(engine, Screen::DESK);
        page.eventually("events", "document.querySelectorAll('#events tbody tr').length > 1");
        page.evaluate(&format!("{axe}; undefined"));
        let look = |page: &mut Page, what: String, screen: Screen| {
            page.look(screen);
            let found = page.evaluate(
                "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => id + ': ' + html.slice(0, 200))))",
            );
            assert_eq!(found, Value::Array(Vec::new()), "{what}");
            assert_eq!(page.evaluate("document.documentElement.scrollWidth"), screen.width, "{what} scrolls sideways");
            page.photograph(&what);
        };
        for (width, is_dark) in [(1280, false), (1280, true), (390, false), (390, true)] {
            let screen = Screen { width, height: 844, is_dark };
            look(&mut page, format!("axe-{name}-{width}-{}", if is_dark { "dark" } else { "light" }), screen);
            assert_eq!(page.evaluate(CUT_OFF), Value::Array(Vec::new()), "{name} at {width}");
            if name == "data" {
                click(&mut page, "[aria-label^=Weight]");
                look(&mut page, format!("axe-ask-{width}-{}", if is_dark { "dark" } else { "light" }), screen);
                page.press("Escape");
            }
        }
    }
}

/// Elements beyond the window's edge.
const CUT_OFF: &str = "[...document.querySelectorAll('body *')].filter(each => each.checkVisibility() && !each.matches('.unseen, .skip') && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 100))";

/// What a reader of screens, or of faint print, would stumble over; empty: nothing. Contrast is that of WCAG 2 §1.4.3.
const STUMBLING: &str = r#"(() => {
  const found = [], all = selector => [...document.querySelectorAll(selector)].filter(each => each.checkVisibility());
  const colour = text => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return [r, g, b, a]; };
  const luminance = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0);
  const ground = element => { for (; element; element = element.parentElement) {
    const own = colour(getComputedStyle(element).backgroundColor); if (own[3] > 0) return own; } return [255, 255, 255, 1]; };
  for (const element of all('body *')) {
    const says = [...element.childNodes].some(node => node.nodeType == 3 && node.textContent.trim());
    if (!says || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(element.tagName) || element.matches('.unseen, .skip')) continue;
    const [one, two] = [luminance(colour(getComputedStyle(element).color)), luminance(ground(element))].sort((a, b) => b - a);
    const contrast = (one + .05) / (two + .05);
    if (contrast < 4.5) found.push('contrast ' + contrast.toFixed(2) + ': ' + element.outerHTML.slice(0, 80));
  }
  for (const heads of all('thead th')) if (heads.scope != 'col') found.push('a head without scope');
  for (const table of all('table')) if (!table.caption?.textContent) found.push('a table without a caption');
  for (const input of all('input')) if (!input.labels.length) found.push('an input without a label');
  for (const section of all('section')) if (!document.getElementById(section.getAttribute('aria-labelledby'))) found.push('a section without a name');
  if (document.documentElement.lang != 'en' || all('main').length != 1 || all('h1').length != 1) found.push('landmarks');
  const levels = all('h1, h2, h3').map(head => +head.tagName[1]);
  if (levels.some((level, at) => at && level > levels[at - 1] + 1)) found.push('a level of headings is left out');
  for (const each of all('a, button, input')) { const { width, height } = each.getBoundingClientRect();
    if (!each.matches('.skip') && Math.min(width, height) < 20) found.push('a small target: ' + each.outerHTML.slice(0, 80)); }
  // Colour is never the only sign.
  for (const cell of all('#servers td.bad, #certificates-table td.bad')) if (!/[✗◌!]|\d/.test(cell.textContent)) found.push('colour alone: ' + cell.textContent);
  return found;
})()"#;

#[test]
fn a_phone_shows_all_of_it_without_scrolling_sideways_in_light_and_dark() {
    let origin = Origin::always(HELLO);
    let long = "a-listener-with-a-remarkably-long-name-that-somebody-generated";
    let bad = dead().to_string();
    let servers: Vec<String> = (0..12).map(|_| format!("\"{}\"", dead())).collect();
    let engine = Engine::start(&format!(
        "[listener.{long}]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [backend.app]\nservers = [\"{}\", \"{bad}\"]\n\
         [backend.many]\nservers = [{}]\nhealth = {{ kind = \"tcp\", interval = \"100ms\", timeout = \"100ms\", fall = 1 }}\n\
         [[route]]\nbackend = \"app\"\n[[route]]\npath = \"/m\"\nbackend = \"many\"\n",
        origin.address(),
        servers.join(", ")
    ));
    engine.metric_reaches("propylon_server_up", &[("backend", "many")], 0.0);
    let mut page = open(&engine, Screen::DESK);
    for (number, (name, screen)) in [
        ("phone-dark", Screen::PHONE),
        ("phone-light", Screen { is_dark: false, ..Screen::PHONE }),
        ("large-phone", Screen { width: 390, height: 844, is_dark: true }),
        ("desk-dark", Screen { is_dark: true, ..Screen::DESK }),
        ("desk", Screen::DESK),
    ]
    .into_iter()
    .enumerate()
    {
        open_anew(&mut page, &engine, screen, number);
        page.eventually("all is shown", "document.querySelectorAll('#servers tbody tr').length > 1");
        let width = page.evaluate("document.documentElement.scrollWidth");
        assert_eq!(width, screen.width, "{name} scrolls sideways");
        assert_eq!(page.evaluate(STUMBLING), Value::Array(Vec::new()), "{name}");
        if screen.width < 700 {
            // A card names its figures, and a long list is short until it is asked for.
            let label = page.evaluate(
                "getComputedStyle(document.querySelector('#servers tbody td:last-child'), '::before').content",
            );
            assert_eq!(label, "\"Weight\"");
            assert_eq!(page.rows("#servers").len(), 6);
            page.evaluate("document.querySelector('#servers .all').click()");
            assert_eq!(page.rows("#servers").len(), 14);
            let outside = page.evaluate(
                "[...document.querySelectorAll('#servers *, #backends *')].filter(each => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth + 1).length",
            );
            assert_eq!(outside, 0, "something is cut off");
        }
        page.photograph(name);
        is_content(&mut page, &format!("http://{}/", engine.admin()));
    }
}

#[test]
fn nothing_moves_when_figures_change() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut page = open(&engine, Screen::DESK);
    let places = "JSON.stringify([...document.querySelectorAll('h2, .tile, #servers tr, #backends tr, #latency tr, #listeners tr')].map(each => { const { x, y, width } = each.getBoundingClientRect(); return [x, y, width].map(Math.round); }))";
    // Types of handshakes and kinds of errors come with the first of each, below all of these.
    let before = page.evaluate(places);
    let mut client = engine.client("plain");
    for _ in 0..1500 {
        client.get("/");
    }
    page.eventually(
        "figures have changed",
        "document.querySelector('#tile-requests .more').innerText.includes('; 1,500 answered')",
    );
    assert_eq!(page.evaluate(places), before);
}

#[test]
fn an_engine_that_does_not_answer_is_told_of_with_the_age_of_the_figures_and_comes_back() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut page = open(&engine, Screen::DESK);
    assert_eq!(page.evaluate("document.querySelector('#lost').hidden"), true);
    engine.signal(Signal::STOP);
    let told = page.eventually(
        "it is told",
        "!document.querySelector('#lost').hidden && document.querySelector('#lost').innerText",
    );
    let told = told.as_str().expect("a text").to_owned();
    assert!(told.starts_with("✗ No answer from the engine; the figures are ") && told.contains(" s old"), "{told}");
    let attention = page.text("#problem-list");
    assert!(
        attention.starts_with("✗ Problem The engine does not answer") && !attention.contains("Fine"),
        "{attention}"
    );
    page.photograph("lost");
    engine.signal(Signal::CONT);
    page.eventually("it is back", &format!("document.querySelector('#lost').hidden && {IS_SERVING}"));
    assert_eq!(page.text("#announcement"), "The engine answers again");
    let before = page.text("#facts");
    engine.client("plain").get("/");
    page.eventually("it goes on", "document.querySelector('#tile-requests .more').innerText.includes('; 1 answered')");
    assert!(before.contains(&format!("process {}", engine.pid())), "{before}");
}

#[test]
fn names_from_elsewhere_are_text_and_nothing_else() {
    const IMAGE: &str = "<img src=x onerror=document.title='owned'>";
    let scratch = Scratch::new();
    let origin = Origin::always(HELLO);
    let sick = Origin::always(format!("HTTP/1.1 503 {IMAGE}\r\nContent-Length: 0\r\n\r\n"));
    let certificates = Certificates::shared();
    fs::create_dir(scratch.join("folder")).expect("a folder");
    scratch.write("folder/name.pem", certificates.issue_dated(&[IMAGE], (2020, 2022)));
    // A name that turns the line around, and a file that would be markup.
    for name in [format!("{IMAGE}.pem"), "\u{202e}mep.pem".to_owned()] {
        let for_it = format!("n{}.test", name.len());
        scratch.write(&format!("folder/{name}"), certificates.issue_dated(&[&for_it], (2020, 2021)));
    }
    scratch.write(&format!("folder/broken {IMAGE}.pem"), certificates.issue(&["b.test"], &PKCS_ECDSA_P256_SHA256));
    let engine = Engine::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n[tls.public]\ncertificates = [\"{}\"]\n\
         [backend.app]\nservers = [\"{}\", \"{}\"]\nhealth = {{ path = \"/\", interval = \"100ms\", timeout = \"100ms\", fall = 1 }}\n\
         [[route]]\nbackend = \"app\"\n",
        scratch.join("folder").display(),
        origin.address(),
        sick.address()
    ));
    scratch.write(&format!("folder/broken {IMAGE}.pem"), "broken");
    engine.signal(Signal::HUP);
    engine.metric_reaches("propylon_certificate_reloads_total", &[("result", "failure")], 1.0);
    engine.metric_reaches("propylon_server_up", &[("server", &sick.address().to_string())], 0.0);
    // A client that asks for such a name, and one that sends such a request.
    let mut client = Client::plain(engine.address("web"));
    client.send(format!("GET /{IMAGE} HTTP/1.1\r\nHost: {IMAGE}\r\n\r\n"));
    // The link holds some as well.
    let url = format!("http://{}/", engine.admin());
    let mut page = open_at(&format!("{url}#certificates:%3Cimg"), Screen::DESK);
    page.eventually(
        "files are shown as they are called",
        "document.querySelector('#files-table').innerText.includes('<img src=x')",
    );
    let rows = page.rows("#certificates-table");
    assert!(rows.iter().any(|row| row[6].contains(IMAGE)), "{rows:?}");
    assert!(rows.iter().any(|row| row[0] == IMAGE), "{rows:?}");
    page.evaluate("location.hash = '#certificates:'");
    page.eventually(
        "all are shown",
        "document.querySelector('#certificates-table').textContent.includes('u202emep.pem')",
    );
    assert_eq!(page.evaluate("document.querySelectorAll('img, iframe, object, main script, [onerror]').length"), 0);
    assert!(page.evaluate("document.title").as_str().expect("a title").ends_with("Propylon"));
    page.photograph("hostile");
    is_content(&mut page, &url);
}

#[test]
fn it_works_behind_a_path_that_somebody_has_put_before_it() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let admin = engine.admin();
    let front = Origin::answering(move |request| {
        let end = head_end(request).expect("a head");
        let head = String::from_utf8_lossy(&request[..end]).into_owned();
        let path = head.split(' ').nth(1).expect("a path");
        let Some(path) = path.strip_prefix("/ops/edge-1") else {
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
        };
        let response =
            Client::plain(admin).ask(format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"));
        let policy = response.field("content-security-policy").unwrap_or_default().to_owned();
        let kind = response.field("content-type").unwrap_or_default().to_owned();
        let body = response.text();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Security-Policy: {policy}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    });
    let url = format!("http://{}/ops/edge-1/", front.address());
    let mut page = open_at(&url, Screen::DESK);
    let links = page.evaluate("[...document.querySelectorAll('footer a')].map(each => each.href)");
    assert_eq!(links[0], format!("{url}metrics"));
    is_content(&mut page, &url);
}

#[test]
fn the_policy_lets_nothing_run_but_the_pages_own_script() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let admin = engine.admin();
    let ask = || Client::plain(admin).ask(format!("GET / HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"));
    let (one, two) = (ask(), ask());
    let policy = one.field("content-security-policy").expect("a policy").to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-") && !policy.contains("unsafe"), "{policy}");
    assert_ne!(Some(policy.as_str()), two.field("content-security-policy"), "a number that is used once");
    assert!(one.text().len() < 100 * 1024, "{} bytes", one.text().len());
    let mut page = open(&engine, Screen::DESK);
    // What another script would do, if it got in.
    page.evaluate("(() => { const script = document.createElement('script'); script.textContent = 'window.owned = true'; document.body.append(script); })()");
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned = true\">')");
    holds("the browser has refused it", || page.console().len() >= 2);
    assert_eq!(page.evaluate("window.owned === undefined"), true);
}
