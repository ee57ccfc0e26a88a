//! The controller of the Gateway API, with a real engine and an API server played by the story.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use base64ct::{Base64, Encoding};
use propylon_e2e::admin::with_state;
use propylon_e2e::kube::ApiServer;
use propylon_e2e::{Client, Engine, Origin, Scratch, binaries, holds};
use serde_json::{Value, json};

/// Ports of listeners: addresses are the story's own.
const HTTP: u16 = 18080;
const HTTPS: u16 = 18443;

struct Rig {
    api: ApiServer,
    engine: Engine,
    scratch: Scratch,
    address: String,
    controllers: Vec<Child>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        for child in &mut self.controllers {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Rig {
    fn start() -> Rig {
        let scratch = Scratch::new();
        let files = scratch.join("files");
        std::fs::create_dir(&files).expect("a folder of ours");
        std::fs::set_permissions(&files, std::fs::Permissions::from_mode(0o700)).expect("our own folder");
        let (state, token) = with_state(&scratch);
        let engine = Engine::start(&format!(
            "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nsandbox_paths = [{:?}]\n{state}\n\
             [admin]\nbind = \"127.0.0.1:0\"\n{token}\n[listener.own]\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nlistener = \"own\"\nrespond = {{ status = 503 }}\n",
            files.display().to_string()
        ));
        // An address of the loopback network that no other story has.
        let part = || fastrand::u8(2..250);
        let address = format!("127.{}.{}.{}", part(), part(), part());
        Rig { api: ApiServer::start(), engine, scratch, address, controllers: Vec::new() }
    }

    fn control(&mut self) {
        let mut command = Command::new(binaries::gateway());
        command.arg("--server").arg(self.api.url());
        command.arg("--engine").arg(format!("http://{}", self.engine.admin()));
        command.arg("--token-file").arg(self.scratch.join("token"));
        command.arg("--base").arg(self.engine.folder().join("propylon.toml"));
        command.arg("--files").arg(self.scratch.join("files"));
        command.arg("--address").arg(&self.address).args(["--lease", "edge/gateway", "--ready", "own/ready"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the controller starts");
        self.controllers.push(child);
    }

    /// A class and a Gateway with these listeners.
    fn gateway(&self, listeners: Value) {
        let controller = json!({ "spec": { "controllerName": "propylon.dev/gateway-controller" } });
        self.api.put("gatewayclasses", "propylon", controller);
        let spec = json!({ "gatewayClassName": "propylon", "listeners": listeners });
        self.api.put("gateways", "shop/edge", json!({ "spec": spec }));
    }

    fn service(&self, name: &str, servers: &[SocketAddr]) {
        self.api.put("services", &format!("shop/{name}"), json!({ "spec": { "ports": [{ "port": 80 }] } }));
        for (index, server) in servers.iter().enumerate() {
            self.endpoint(&format!("shop/{name}-{index}"), name, *server);
        }
    }

    fn endpoint(&self, slice: &str, service: &str, server: SocketAddr) {
        let slice_object = json!({
            "labels": { "kubernetes.io/service-name": service }, "addressType": "IPv4",
            "endpoints": [{ "addresses": [server.ip().to_string()], "conditions": { "ready": true } }],
            "ports": [{ "name": null, "port": server.port() }],
        });
        self.api.put("endpointslices", slice, slice_object);
    }

    fn route(&self, name: &str, path: &str, service: &str) {
        let rule = json!({
            "matches": [{ "path": { "type": "PathPrefix", "value": path } }],
            "backendRefs": [{ "name": service, "port": 80 }],
        });
        let spec = json!({ "parentRefs": [{ "name": "edge" }], "rules": [rule] });
        self.api.put("httproutes", name, json!({ "spec": spec }));
    }

    fn to(&self, port: u16) -> SocketAddr {
        format!("{}:{port}", self.address).parse().expect("an address")
    }

    /// Status and body that a request is answered with; none while nobody listens.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        std::net::TcpStream::connect(self.to(HTTP)).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\nConnection: close\r\n\r\n");
        let response = Client::plain(self.to(HTTP)).ask(request);
        Some((response.status, response.text()))
    }

    /// `Type=Status:Reason` of the conditions of a route's first parent.
    fn said(&self, name: &str) -> Vec<String> {
        let status = self.api.status("httproutes", name);
        let conditions = status["parents"][0]["conditions"].as_array().cloned().unwrap_or_default();
        let text = |each: &Value, key: &str| each[key].as_str().unwrap_or_default().to_owned();
        conditions
            .iter()
            .map(|each| format!("{}={}:{}", text(each, "type"), text(each, "status"), text(each, "reason")))
            .collect()
    }
}

fn saying(text: &str) -> Origin {
    Origin::always(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()))
}

fn http() -> Value {
    json!([{ "name": "http", "port": HTTP, "protocol": "HTTP" }])
}

#[test]
fn a_route_works_and_follows_its_endpoints_even_over_a_watch_that_was_lost() {
    let mut rig = Rig::start();
    let (first, second) = (saying("first"), saying("second"));
    rig.gateway(http());
    rig.service("app", &[first.address()]);
    rig.route("shop/app", "/app", "app");
    // A Pod is ready once its engine has a configuration of the controller, and not as soon as it serves.
    let ready = |rig: &Rig| rig.engine.client("own").get("/ready").status;
    assert_eq!(ready(&rig), 503);
    rig.control();
    holds("the engine is ready", || ready(&rig) == 200);
    let is = |rig: &Rig, path: &str, expected: (u16, &str)| {
        rig.get(path).is_some_and(|(status, text)| (status, text.as_str()) == expected)
    };
    holds("the route leads to its service", || is(&rig, "/app/x", (200, "first")));
    let accepted = ["Accepted=True:Accepted", "ResolvedRefs=True:ResolvedRefs"];
    holds("the route is accepted", || rig.said("shop/app") == accepted);
    let programmed = |rig: &Rig| {
        let status = rig.api.status("gateways", "shop/edge");
        status["conditions"][1]["status"] == "True" && status["listeners"][0]["attachedRoutes"] == 1
    };
    holds("the Gateway is programmed", || programmed(&rig));
    let gateway = rig.api.status("gateways", "shop/edge");
    assert_eq!(gateway["addresses"][0]["value"], rig.address.as_str());

    rig.endpoint("shop/app-0", "app", second.address());
    holds("the pod that came is asked", || is(&rig, "/app", (200, "second")));

    // Nothing that happens from here on reaches a watch that began before.
    let lists = rig.api.lists();
    rig.api.forget();
    rig.endpoint("shop/app-0", "app", first.address());
    holds("the first is asked again", || is(&rig, "/app", (200, "first")));
    holds("everything is listed anew", || rig.api.lists() >= lists + 13);

    // A route that is wrong says so, and keeps none of the others from changing.
    let filter = json!({ "type": "RequestHeaderModifier",
        "requestHeaderModifier": { "set": [{ "name": "X-Forwarded-For", "value": "1" }] } });
    let matches = json!([{ "path": { "type": "PathPrefix", "value": "/app/bad" } }]);
    let backends = json!([{ "name": "app", "port": 80 }]);
    let rule = json!({ "matches": matches, "filters": [filter], "backendRefs": backends });
    rig.api.put("httproutes", "shop/bad", json!({ "spec": { "parentRefs": [{ "name": "edge" }], "rules": [rule] } }));
    rig.route("shop/late", "/late", "missing");
    holds("a route without a service is answered with 500", || {
        rig.get("/late").is_some_and(|(status, _)| status == 500)
    });
    holds("what is wrong is told", || {
        rig.said("shop/bad").first().is_some_and(|said| said == "Accepted=False:UnsupportedValue")
            && rig.said("shop/late").get(1).is_some_and(|said| said == "ResolvedRefs=False:BackendNotFound")
    });
    assert_eq!(rig.get("/app/bad").map(|(status, _)| status), Some(500), "no other rule has its requests");
    rig.api.delete("httproutes", "shop/app");
    holds("a route that is gone is none", || rig.get("/app").is_some_and(|(status, _)| status == 404));
    assert_eq!(rig.get("/late").map(|(status, _)| status), Some(500), "the other routes stay");
}

#[test]
fn a_listener_has_its_secret_and_statuses_are_written_by_one_of_two() {
    let mut rig = Rig::start();
    let origin = saying("sealed");
    let pair = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
    let (old, new) = (pair("shop.test"), pair("shop.test"));
    let secret = |pair: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        json!({ "type": "kubernetes.io/tls", "data": {
            "tls.crt": Base64::encode_string(pair.cert.pem().as_bytes()),
            "tls.key": Base64::encode_string(pair.signing_key.serialize_pem().as_bytes()),
        } })
    };
    rig.api.put("secrets", "shop/pair", secret(&old));
    rig.gateway(json!([{ "name": "https", "port": HTTPS, "protocol": "HTTPS",
        "tls": { "certificateRefs": [{ "name": "pair" }] } }]));
    rig.service("app", &[origin.address()]);
    rig.route("shop/app", "/", "app");
    rig.control();
    rig.control();
    let shown = |rig: &Rig| shown(rig.to(HTTPS));
    holds("the first certificate is shown", || shown(&rig).is_some_and(|der| der == old.cert.der().to_vec()));
    let answer = propylon_e2e::program::curl(&["-sk", &format!("https://{}/x", rig.to(HTTPS))]).ok();
    assert_eq!(answer.text(), "sealed");
    rig.api.put("secrets", "shop/pair", secret(&new));
    holds("the second certificate is shown", || shown(&rig).is_some_and(|der| der == new.cert.der().to_vec()));
    holds("the Gateway is programmed", || rig.api.status("gateways", "shop/edge")["conditions"][1]["status"] == "True");
    // A class, a Gateway and a route have one status each; a second writer, or one that writes what is there, would
    // have made more of them. Either may have come before engines had answered.
    holds("all statuses are written", || rig.api.status("httproutes", "shop/app")["parents"].is_array());
    assert!(rig.api.patches() <= 6, "{} statuses were written", rig.api.patches());
    holds("files of before are removed", || {
        std::fs::read_dir(rig.scratch.join("files")).expect("our folder").count() == 1
    });
}

/// The certificate that is shown to a client.
fn shown(address: SocketAddr) -> Option<Vec<u8>> {
    let said = propylon_e2e::program::run(
        {
            let mut command = Command::new("openssl");
            command.args(["s_client", "-connect", &address.to_string(), "-servername", "shop.test"]);
            command
        },
        b"",
        propylon_e2e::wait::WAIT_MAX,
    );
    let text = said.text();
    let pem: String =
        text.split("-----BEGIN CERTIFICATE-----").nth(1)?.split("-----END").next()?.split_whitespace().collect();
    Base64::decode_vec(&pem).ok()
}
