//! Clients with certificates: who gets in, what they are told if not, and what servers and the log hear of them.

use std::path::PathBuf;
use std::time::Duration;

use propylon_e2e::program::{Said, curl, s_client};
use propylon_e2e::{Certificates, Engine, Origin, Scratch, holds};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustix::process::Signal;

/// Files of an authority, its list of revoked certificates, and clients' certificates with their keys.
struct Cast {
    scratch: Scratch,
    issuer: Issuer<'static, KeyPair>,
}

impl Cast {
    fn new() -> Cast {
        let scratch = Scratch::new();
        let (issuer, pem) = authority("Clients");
        let (stranger, _) = authority("Strangers");
        scratch.write("ca.pem", pem);
        let revoked = SerialNumber::from(vec![0x66_u8]);
        scratch.write("crl.pem", list(&issuer, std::slice::from_ref(&revoked)));
        let write = |name: &str, issuer: &Issuer<'_, KeyPair>, change: &dyn Fn(&mut CertificateParams)| {
            scratch.write(&format!("{name}.pem"), client(issuer, change));
        };
        write("good", &issuer, &|_| {});
        write("stranger", &stranger, &|_| {});
        write("expired", &issuer, &|params| params.not_after = date_time_ymd(2021, 1, 1));
        write("revoked", &issuer, &|params| params.serial_number = Some(revoked.clone()));
        Cast { scratch, issuer }
    }

    /// Publishes a list of these alone.
    fn revoke(&self, serial_numbers: &[SerialNumber]) {
        self.scratch.write("crl.pem", list(&self.issuer, serial_numbers));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(&format!("{name}.pem"))
    }

    /// A `[tls.NAME]` table.
    fn profile(&self, name: &str, auth: &str) -> String {
        let shared = Certificates::shared().profile().replace("[tls.public]", &format!("[tls.{name}]"));
        let (ca, crl) = (self.file("ca"), self.file("crl"));
        format!("{shared}ja4 = true\nclient_auth = {{ ca = {ca:?}, crl = {crl:?}, {auth} }}\n")
    }

    /// Arguments that make openssl show a certificate.
    fn shown(&self, name: &str) -> Vec<String> {
        let file = self.file(name).display().to_string();
        vec!["-cert".into(), file.clone(), "-key".into(), file]
    }
}

fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let pem = params.self_signed(&key).expect("an authority").pem();
    (Issuer::new(params, key), pem)
}

fn list(issuer: &Issuer<'_, KeyPair>, serial_numbers: &[SerialNumber]) -> String {
    let revoked = |serial_number: &SerialNumber| RevokedCertParams {
        serial_number: serial_number.clone(),
        revocation_time: date_time_ymd(2020, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(2090, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: serial_numbers.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(issuer).expect("a list").pem().expect("a list")
}

fn client(issuer: &Issuer<'_, KeyPair>, change: &dyn Fn(&mut CertificateParams)) -> String {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Acme, Inc.");
    params.distinguished_name.push(DnType::CommonName, "Zoë");
    params.serial_number = Some(serial_number());
    change(&mut params);
    params.signed_by(&key, issuer).expect("a certificate").pem() + &key.serialize_pem()
}

/// Of every client that has no other.
fn serial_number() -> SerialNumber {
    SerialNumber::from(vec![0x0a_u8, 0xbc])
}

/// Listeners `required`, `optional` and `web`, which asks nobody; `/members` is for those who are known.
fn engine(cast: &Cast, origin: &Origin) -> Engine {
    let listener = |name: &str, more: &str| format!("[listener.{name}]\nbind = \"127.0.0.1:0\"\n{more}\n");
    let headers = "request_headers = { \"X-TLS-Version\" = \"{tls.version}\", \"X-JA4\" = \"{tls.ja4}\", \
                   \"X-Client-DN\" = \"{client.subject}\", \"X-Who\" = \"{client.serial} of {client.issuer}\", \
                   \"X-SNI\" = \"{tls.server_name}\" }";
    Engine::start(&format!(
        "{}{}{}{}{}[backend.app]\nservers = [\"{}\"]\n[[route]]\nbackend = \"app\"\n\
         [[route]]\nlistener = \"optional\"\npath = \"/members\"\nrequire_client_certificate = true\nbackend = \"app\"\n",
        listener("required", "tls = \"required\""),
        listener("optional", &format!("tls = \"optional\"\n{headers}")),
        listener("web", "tls = \"public\""),
        cast.profile("required", "mode = \"required\""),
        cast.profile("optional", "mode = \"optional\", forward = \"chain\", send_ca_names = false"),
        origin.address(),
    ))
}

fn origin() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

#[track_caller]
fn ask(engine: &Engine, listener: &str, arguments: &[String], path: &str) -> Said {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    s_client(engine.address(listener).port(), &arguments, &get(path))
}

#[track_caller]
fn answered(said: &Said, status: &str) {
    assert!(said.text().contains(&format!("HTTP/1.1 {status}")), "{}\n{}", said.text(), said.stderr);
}

/// The head that the origin got for the request with this path.
#[track_caller]
fn forwarded(origin: &Origin, path: &str) -> String {
    let start = format!(" {path} HTTP/1.1\r\n");
    holds("the request is out", || origin.received_text().contains(&start));
    let text = origin.received_text();
    let at = text.find(&start).expect("just seen");
    text[at..].split_once("\r\n\r\n").expect("a whole head").0.to_owned()
}

/// The base64 between a PEM's first pair of marks.
fn first_certificate(pem: &str) -> String {
    let body = pem.split("-----BEGIN CERTIFICATE-----").nth(1).expect("a certificate");
    body.split("-----END").next().expect("its end").split_whitespace().collect()
}

#[test]
fn openssl_is_let_in_or_told_why_not() {
    let (cast, origin) = (Cast::new(), origin());
    let engine = engine(&cast, &origin);
    // What openssl says of each alert in TLS 1.2 and 1.3, and our word for it.
    let refusals = [
        ("stranger", ["unknown ca"; 2], "client-certificate-unknown-ca"),
        ("expired", ["certificate expired"; 2], "client-certificate-expired"),
        ("revoked", ["certificate revoked"; 2], "client-certificate-revoked"),
    ];
    for (index, version) in ["-tls1_2", "-tls1_3"].into_iter().enumerate() {
        let with = |arguments: Vec<String>| [vec![version.to_string()], arguments].concat();
        for listener in ["required", "optional"] {
            let path = format!("/{listener}{version}");
            answered(&ask(&engine, listener, &with(cast.shown("good")), &path), "200");
            assert!(forwarded(&origin, &path).contains("\r\nClient-Cert: :"), "{path}");
            for (name, alerts, reason) in refusals {
                let said = ask(&engine, listener, &with(cast.shown(name)), "/never");
                assert!(said.stderr.contains(&format!("alert {}", alerts[index])), "{name}: {}", said.stderr);
                let labels = [("listener", listener), ("reason", reason)];
                engine.metric_reaches("propylon_tls_handshake_failures_total", &labels, (index + 1) as f64);
            }
        }
        let said = ask(&engine, "required", &with(Vec::new()), "/never");
        let alert = ["alert handshake failure", "alert certificate required"][index];
        assert!(said.stderr.contains(alert), "{}", said.stderr);
        let labels = [("listener", "required"), ("reason", "client-certificate-missing")];
        engine.metric_reaches("propylon_tls_handshake_failures_total", &labels, (index + 1) as f64);
        answered(&ask(&engine, "optional", &with(Vec::new()), &format!("/nobody{version}")), "200");
        assert!(!forwarded(&origin, &format!("/nobody{version}")).contains("Client-Cert"));
        // Where nobody is asked a certificate is not sent.
        answered(&ask(&engine, "web", &with(cast.shown("good")), &format!("/web{version}")), "200");
        assert!(!forwarded(&origin, &format!("/web{version}")).contains("Client-Cert"));
    }
    assert!(!origin.received_text().contains("/never"));
}

fn resumes(version: &str) {
    let (cast, origin) = (Cast::new(), origin());
    let engine = engine(&cast, &origin);
    for listener in ["required", "optional"] {
        let session = cast.scratch.join(&format!("{listener}.session")).display().to_string();
        let with = |key: &str| [vec![version.to_string(), key.into(), session.clone()], cast.shown("good")].concat();
        let first = ask(&engine, listener, &with("-sess_out"), &format!("/{listener}/first"));
        assert!(first.text().contains("\nNew, TLSv"), "{}", first.text());
        let again = ask(&engine, listener, &with("-sess_in"), &format!("/{listener}/again"));
        assert!(again.text().contains("\nReused, TLSv"), "{}", again.text());
        let certificate = |head: String| propylon_e2e::http::values(&head, "Client-Cert")[0].to_owned();
        let heads = ["first", "again"].map(|path| certificate(forwarded(&origin, &format!("/{listener}/{path}"))));
        assert_eq!(heads[0], heads[1]);
        let line = engine.logged_path(&format!("/{listener}/again"));
        assert_eq!((&line["tls"]["resumed"], &line["tls"]["client"]["serial"]), (&true.into(), &"0ABC".into()));
    }
}

#[test]
fn a_resumed_tls_1_2_session_has_the_identity_again() {
    resumes("-tls1_2");
}

#[test]
fn a_resumed_tls_1_3_session_has_the_identity_again() {
    resumes("-tls1_3");
}

#[test]
fn a_client_that_is_revoked_while_it_runs_is_refused_after_sighup_with_its_ticket_too() {
    for version in ["-tls1_2", "-tls1_3"] {
        let (cast, origin) = (Cast::new(), origin());
        let engine = engine(&cast, &origin);
        let session = cast.scratch.join("session").display().to_string();
        let with = |key: &str| [vec![version.to_string(), key.into(), session.clone()], cast.shown("good")].concat();
        answered(&ask(&engine, "required", &with("-sess_out"), "/first"), "200");
        let again = ask(&engine, "required", &with("-sess_in"), "/again");
        assert!(again.text().contains("\nReused, TLSv"), "{}", again.text());
        cast.revoke(&[serial_number()]);
        engine.signal(Signal::HUP);
        engine.metric_reaches("propylon_certificate_reloads_total", &[("result", "success")], 1.0);
        holds("the new list is heeded", || {
            ask(&engine, "required", &with("-sess_in"), "/after").stderr.contains("alert certificate revoked")
        });
    }
}

#[test]
fn servers_and_the_log_are_told_who_it_is() {
    let (cast, origin) = (Cast::new(), origin());
    let engine = engine(&cast, &origin);
    let file = cast.file("good").display().to_string();
    let url = engine.url("optional");
    let said = curl(&["--cert", &file, "--key", &file, "--http1.1", &format!("{url}/members"), &format!("{url}/more")]);
    assert_eq!(said.ok().text(), "hello\nhello\n");
    let pem = std::fs::read_to_string(&file).expect("the certificate's file");
    for (path, first) in [("/members", true), ("/more", false)] {
        let head = forwarded(&origin, path);
        let has = |line: &str| assert!(head.contains(&format!("\r\n{line}")), "{line} not in\n{head}");
        has(&format!("Client-Cert: :{}:\r\n", first_certificate(&pem)));
        has("X-TLS-Version: TLSv1.3\r\n");
        has("X-Client-DN: CN=Zo\\C3\\AB,O=Acme\\, Inc.\r\n");
        has("X-Who: 0ABC of CN=Clients");
        has("X-SNI: localhost");
        has("X-JA4: t13d");
        assert!(!head.contains("Client-Cert-Chain"), "the client sent its own certificate alone");
        let line = engine.logged_path(path);
        let client = &line["tls"]["client"];
        assert_eq!(client["subject"], "CN=Zo\\C3\\AB,O=Acme\\, Inc.");
        assert_eq!((&client["issuer"], &client["serial"]), (&"CN=Clients".into(), &"0ABC".into()));
        assert_eq!(client["sha256"].as_str().map(str::len), Some(64));
        assert_eq!(line["tls"]["ja4"].as_str().map(str::len), Some(36));
        assert_eq!(line["tls"]["alpn"], "http/1.1");
        assert_eq!(line["tls"]["signature"], "ecdsa_secp256r1_sha256");
        assert_eq!(line["tls"]["server_name"].as_str(), first.then_some("localhost"));
    }
}

#[test]
fn a_route_for_members_answers_403_to_others() {
    let (cast, origin) = (Cast::new(), origin());
    let engine = engine(&cast, &origin);
    answered(&ask(&engine, "optional", &cast.shown("good"), "/members/1"), "200");
    let said = ask(&engine, "optional", &[], "/members/2");
    answered(&said, "403 Forbidden");
    assert!(said.text().contains("403 Forbidden: client-certificate-required\n"), "{}", said.text());
    answered(&ask(&engine, "optional", &[], "/others"), "200");
    let line = engine.logged_path("/members/2");
    assert_eq!((&line["status"], &line["fault"]), (&403.into(), &"client-certificate-required".into()));
    assert!(!origin.received_text().contains("/members/2"));
}

#[test]
fn nobody_can_forge_what_servers_are_told() {
    let (cast, origin) = (Cast::new(), origin());
    let engine = engine(&cast, &origin);
    let forged = "Client-Cert: :Zm9yZ2Vk:\r\ncLIENT-cERT-cHAIN: :Zm9yZ2Vk:\r\nClient_Cert: forged\r\n\
                  Client.Cert-Chain: forged\r\nX-Client-DN: CN=forged\r\nx-client-dn: CN=forged\r\n\
                  X_Client_DN: CN=forged\r\nX-Client.DN: CN=forged\r\nX-JA4: forged\r\nX-Honest: kept\r\n";
    let body = "4\r\nbody\r\n0\r\nClient-Cert: forged\r\nX-Client-DN: forged\r\nX-JA4: at the end\r\n\r\n";
    for listener in ["optional", "web"] {
        let mut client = engine.client(listener);
        let path = format!("/{listener}");
        client.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: client-cert, x-client-dn\r\n{forged}\r\n"));
        let head = forwarded(&origin, &path);
        assert!(head.contains("X-Honest: kept"), "{head}");
        assert!(!head.to_lowercase().replace(['_', '.'], "-").contains("client-cert"), "{head}");
        let start = format!("POST {path}/body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.read_timeout(Duration::from_secs(10)).ask(start + body);
    }
    let head = forwarded(&origin, "/optional");
    assert!(!head.contains("CN=forged") && !head.to_lowercase().contains("client-dn"), "{head}");
    assert_eq!(propylon_e2e::http::values(&head, "X-JA4").len(), 1, "{head}");
    let bodies = origin.received_text();
    assert!(bodies.contains("/optional/body") && !bodies.contains("Client-Cert: forged"), "{bodies}");
    // Of a listener without fields of its own the other names are nobody's, and trailers go on; but for what strangers claim.
    assert_eq!(bodies.matches("X-JA4: at the end").count(), 1, "{bodies}");
    assert!(!bodies.contains("X-Client-DN: forged"), "{bodies}");
}

#[test]
fn a_handshake_that_fails_leaves_one_line_with_what_is_known() {
    let (cast, origin) = (Cast::new(), origin());
    let engine = engine(&cast, &origin);
    ask(&engine, "required", &[vec!["-tls1_3".to_string()], cast.shown("revoked")].concat(), "/");
    let line = || engine.stderr().into_iter().find(|line| line.contains("TLS handshake failed"));
    holds("the line", || line().is_some());
    let line = line().expect("just seen");
    for part in [
        "client=127.0.0.1:",
        " listener=required ",
        " server_name=localhost ",
        " ja4=t13d",
        " reason=client-certificate-revoked ",
        " duration_us=",
        " detail=\"",
    ] {
        assert!(line.contains(part), "{part} not in {line}");
    }
}

#[test]
fn routes_go_by_certificates_tls_and_port() {
    let cast = Cast::new();
    let text = format!(
        r#"
[listener.web]
bind = "127.0.0.1:0"
tls = "asks"
[listener.plain]
bind = "127.0.0.1:0"
[[route]]
respond = {{ body = "anybody" }}
[[route]]
match = {{ client = {{ subject = {{ regex = "^CN=Zo" }}, sha256 = {{ present = true }} }} }}
respond = {{ body = "certificate" }}
[[route]]
path = "/tls"
match = {{ tls = {{ version = "TLSv1.2" }} }}
respond = {{ body = "old" }}
[[route]]
path = "/tls"
match = {{ tls = {{ alpn = "h2", server_name = {{ prefix = "local" }} }} }}
respond = {{ body = "h2" }}
[[route]]
path = "/tls"
match = {{ tls = {{ ja4 = {{ prefix = "t13" }} }} }}
respond = {{ body = "ja4" }}
[[route]]
path = "/tls"
match = {{ tls = {{ version = {{ present = false }} }} }}
respond = {{ body = "plaintext" }}
{}"#,
        cast.profile("asks", "mode = \"optional\"")
    );
    let engine = Engine::start(&text);
    let port = engine.address("web").port();
    let ask = |path: &str, more: &[&str]| {
        let url = format!("https://localhost:{port}{path}");
        // Two requests of one connection: what the hello said is known of the second as well.
        curl(&[more, &[&url, &url]].concat()).text()
    };
    let file = cast.file("good").display().to_string();
    assert_eq!(ask("/", &["--http1.1", "--cert", &file]), "certificatecertificate");
    assert_eq!(ask("/", &["--http2"]), "anybodyanybody");
    assert_eq!(ask("/tls", &["--http1.1", "--tls-max", "1.2"]), "oldold");
    assert_eq!(ask("/tls", &["--http2"]), "h2h2");
    let mut plain = engine.client("plain");
    assert_eq!(plain.get("/tls").text(), "plaintext");
}

#[test]
fn routes_go_by_cipher_suite_and_group_of_sessions_new_and_resumed() {
    let route = |path: &str, tls: &str, body: &str| {
        format!("[[route]]\npath = \"{path}\"\nmatch = {{ tls = {tls} }}\nrespond = {{ body = \"{body}\" }}\n")
    };
    let listener = |name: &str, more: &str| format!("[listener.{name}]\nbind = \"127.0.0.1:0\"\n{more}\n");
    let text = [
        listener("web", "tls = \"public\""),
        listener("plain", ""),
        Certificates::shared().profile(),
        "[[route]]\nrespond = { body = \"other \" }\n".to_owned(),
        route("/suite", "{ suite = \"TLS_AES_256_GCM_SHA384\" }", "strong "),
        route("/suite", "{ suite = \"ECDHE-ECDSA-AES128-GCM-SHA256\" }", "old "),
        route("/suite", "{ suite = { regex = 'CHACHA20' } }", "mobile "),
        route("/group", "{ group = \"P-384\" }", "p384 "),
        route("/group", "{ group = { prefix = \"X25519ML\" } }", "quantum "),
        route("/group", "{ group = { present = false }, suite = { prefix = \"TLS_ECDHE_\" } }", "resumed "),
    ]
    .concat();
    let engine = Engine::start(&text);
    let port = engine.address("web").port();
    let ask = |path: &str, more: &[&str]| {
        let url = format!("https://localhost:{port}{path}");
        curl(&[more, &[&url, &url]].concat()).text()
    };
    let suite = |suite| ask("/suite", &["--tls13-ciphers", suite]);
    assert_eq!(suite("TLS_AES_256_GCM_SHA384"), "strong strong ");
    assert_eq!(suite("TLS_CHACHA20_POLY1305_SHA256"), "mobile mobile ");
    assert_eq!(suite("TLS_AES_128_GCM_SHA256"), "other other ");
    let old =
        ["--http1.1", "--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256", "--curves", "P-384:P-256"];
    assert_eq!(ask("/suite", &old), "old old ");
    assert_eq!(ask("/group", &old), "p384 p384 ");
    // Two connections, of which the second resumes the first's session: no keys are exchanged, and the suite is known.
    let again = [&old[..], &["-H", "Connection: close"]].concat();
    assert_eq!(ask("/group", &again), "p384 resumed ");
    assert_eq!(ask("/suite", &again), "old old ");
    assert_eq!(ask("/group", &["--http2", "--curves", "P-384"]), "p384 p384 ");
    assert_eq!(ask("/group", &["--http2", "--curves", "P-256"]), "other other ");
    let mut plain = engine.client("plain");
    assert_eq!(plain.get("/group").text(), "other ");
    assert_eq!(plain.get("/suite").text(), "other ");
}
