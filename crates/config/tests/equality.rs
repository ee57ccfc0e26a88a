//! Sections that a reload takes for unchanged: they are compared by what they say, and not by where.

mod changes;

use std::collections::BTreeSet;

use serde_json::Value;

use propylon_config::*;

fn parsed(name: &str, text: &str) -> Option<Config> {
    let source = Source { name: name.into(), base: "/etc/propylon".into(), text: text.into() };
    parse(&source).ok().map(|(config, _)| config)
}

/// More than `full.toml` has: what excludes something there.
const MORE: &str = r#"
[acme.own]
directory = "https://ca.internal/dir"
[acme.other]
directory = "https://other.internal/dir"
[tls.more]
certificates = [{ path = "d.pem", ocsp = "d.ocsp", default = true }, { acme = "own", names = ["a.example"], key_types = ["rsa"] }]
policy = { versions = ["1.3"], suites = ["TLS_AES_128_GCM_SHA256"], groups = ["x25519"] }
strict_sni = true
watch = "3s"
certificate_compression = false
ticket_keys = "keys"
[backend.more]
protocol = "auto"
http2 = { max_streams = 7, ping = "3s" }
servers = [{ address = "10.0.0.1:80", drain = true }, "app.internal:81"]
tls = { ca = ["ca.pem", "cas"], server_name = "app.internal", sni = false, verify = false, certificate = "c.pem", policy = "modern", resume = false, watch = "5s" }
health = { path = "/up", method = "HEAD", status = [204, "300-302"], host = "a.example", port = 81, rise = 1, fall = 4, start = "down", interval = "3s", timeout = "2s" }
outlier = { consecutive_failures = 7, ejection = "1m", ejection_max = "2m", interval = "3s", success_rate_servers = 2, success_rate_requests = 3, success_rate_deviation_percent = 4, ejected_percent_max = 5 }
circuit = { requests = 100, adaptive = true, requests_min = 8 }
timeouts = { close = "7s" }
"#;

fn text() -> String {
    format!("{}{MORE}", include_str!("full.toml"))
}

/// Sections that say the same in both configurations, by kind and name.
fn same(one: &Config, two: &Config) -> BTreeSet<String> {
    let mut same = BTreeSet::new();
    for profile in &one.tls {
        let other = two.tls.iter().find(|other| other.name == profile.name);
        if other.is_some_and(|other| profile.says_the_same(one, other, two)) {
            same.insert(format!("tls.{}", profile.name));
        }
    }
    for backend in &one.backends {
        let other = two.backends.iter().find(|other| other.name == backend.name);
        if other.is_some_and(|other| backend.says_the_same(other)) {
            same.insert(format!("backend.{}", backend.name));
        }
        if other.is_some_and(|other| backend.health.is_some() && backend.health == other.health) {
            same.insert(format!("health.{}", backend.name));
        }
        if let Some((own, others)) = backend.tls.as_ref().zip(other.and_then(|other| other.tls.as_ref()))
            && own.connects_the_same(others)
        {
            same.insert(format!("connections.{}", backend.name));
        }
    }
    if let (Some(own), Some(others)) = (&one.tracing, &two.tracing)
        && own.says_the_same(others)
    {
        same.insert("tracing".into());
    }
    same
}

/// The same by what `/config` shows, which is what went before.
fn shown_the_same(one: &Config, two: &Config) -> BTreeSet<String> {
    let (one, two) = (effective::config(one), effective::config(two));
    let mut same = BTreeSet::new();
    for kind in ["tls", "backend"] {
        for (name, section) in one[kind].as_object().into_iter().flatten() {
            let other = &two[kind][name];
            same.extend((section == other).then(|| format!("{kind}.{name}")));
            let is_probed_alike = section.get("health").is_some_and(|health| other.get("health") == Some(health));
            same.extend(is_probed_alike.then(|| format!("health.{name}")));
            let connections = |section: &Value| {
                let mut tls = section["tls"].clone();
                tls.as_object_mut().map(|keys| keys.remove("watch"));
                tls
            };
            let is_same =
                kind == "backend" && !connections(section).is_null() && connections(section) == connections(other);
            same.extend(is_same.then(|| format!("connections.{name}")));
        }
    }
    same.extend((one["tracing"] == two["tracing"]).then(|| "tracing".into()));
    same
}

#[test]
fn sections_that_have_moved_say_the_same() {
    let config = parsed("a.toml", &text()).expect("a good file");
    let all = same(&config, &config);
    assert_eq!(all.len(), 9, "{all:?}");
    let moved: String = text().lines().map(|line| format!("\n  {line}\n")).collect();
    let moved = parsed("a.toml", &moved).expect("a good file");
    assert_eq!(same(&config, &moved), all, "positions of every key are others");
    assert!(config.tls != moved.tls && config.backends != moved.backends && config.tracing != moved.tracing);
    assert_eq!(same(&moved, &config), all);
}

/// Each value of the full configuration is changed and removed by itself.
#[test]
fn sections_differ_where_what_is_shown_of_them_differs() {
    let root: Value = toml::from_str(&text()).expect("TOML");
    let before = parsed("a.json", &root.to_string()).expect("a good file");
    let mut changed = BTreeSet::new();
    for kind in ["tls", "backend", "tracing", "acme"] {
        for (path, other) in changes::each(&root, &format!("/{kind}")) {
            let Some(after) = parsed("a.json", &other.to_string()) else { continue };
            let found = same(&before, &after);
            let mut expected = shown_the_same(&before, &after);
            if path.starts_with("/acme/own") {
                // Ordered certificates of another authority lie elsewhere, which is not shown of the profile.
                expected.remove("tls.more");
            }
            assert_eq!(found, expected, "{path}: {other}");
            if found.len() < 9 {
                changed.insert(path);
            }
        }
    }
    assert!(changed.len() > 120, "{} values make a difference", changed.len());
}

#[test]
fn positions_uploads_and_who_asks_for_a_drain_make_no_difference() {
    let config = parsed("a.toml", &text()).expect("a good file");
    let all = same(&config, &config);
    let reordered = text().replace("[acme.own]\ndirectory = \"https://ca.internal/dir\"\n", "");
    let reordered = parsed("a.toml", &format!("{reordered}[acme.own]\ndirectory = \"https://ca.internal/dir\"\n"));
    let reordered = reordered.expect("a good file");
    assert_ne!(config.acmes[0].name, reordered.acmes[0].name);
    assert_eq!(same(&config, &reordered), all, "accounts are known by their names");
    let mut drained = config.clone();
    drained.tls.iter_mut().flat_map(|tls| &mut tls.certificates).for_each(|certificate| certificate.uploaded = true);
    let more = drained.backends.iter_mut().find(|backend| backend.name == "more").expect("a backend");
    more.servers[0].drain = Some(Drain::AskedFor);
    assert_eq!(same(&config, &drained), all);
    let more = drained.backends.iter_mut().find(|backend| backend.name == "more").expect("a backend");
    more.servers.reverse();
    assert!(!same(&config, &drained).contains("backend.more"), "another order is another backend");
}

#[test]
fn other_names_of_accounts_and_other_rights_of_files_make_a_difference() {
    let config = parsed("a.toml", &text()).expect("a good file");
    let other = parsed("a.toml", &text().replace("acme = \"own\"", "acme = \"other\"")).expect("a good file");
    assert!(!same(&config, &other).contains("tls.more"));
    let strict = text().replace("allow_world_readable_keys = true", "");
    let strict = same(&config, &parsed("a.toml", &strict).expect("a good file"));
    assert!(!strict.contains("tls.public"), "keys are judged anew");
    assert!(strict.contains("backend.more") && strict.contains("connections.more"), "connections are what they were");
    let in_vain = |scope: &str| {
        let text = format!(
            "[listener.a]\nbind = '127.0.0.1:1'\ntls = 't'\n[[route]]\nrespond = {{}}\n[tls.t]\ncertificates = ['a']\n\
            client_auth = {{ ca = 'c', crl_scope = '{scope}', crl_missing = 'refuse' }}\n"
        );
        parsed("a.toml", &text).expect("a good file")
    };
    assert!(same(&in_vain("leaf"), &in_vain("chain")).contains("tls.t"), "there is no list");
}
