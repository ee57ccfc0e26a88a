//! The admin address, as those who change things by it speak to it.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::{Client, Engine, Response, Scratch};

/// Good for whatever has been started with [`with_state`].
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A folder with a token in it, and the lines for `[process]` and `[admin]` that name both.
pub fn with_state(scratch: &Scratch) -> (String, String) {
    let token = scratch.write("token", TOKEN);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("our own file");
    (format!("state = \"{}\"", scratch.join("state").display()), format!("token_file = \"{}\"", token.display()))
}

pub fn ask_admin(engine: &Engine, method: &str, path: &str, fields: &str, body: &str) -> Response {
    let length = body.len();
    let host = engine.admin();
    Client::plain(host).ask(format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
    ))
}

/// With the token, and JSON both ways.
#[track_caller]
pub fn admin(engine: &Engine, method: &str, path: &str, body: &str) -> (u16, Value) {
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n");
    let response = ask_admin(engine, method, path, &fields, body);
    let value = serde_json::from_str(&response.text()).unwrap_or_else(|e| panic!("{e} in {}", response.text()));
    (response.status, value)
}

/// A change that is made.
#[track_caller]
pub fn applied(engine: &Engine, method: &str, path: &str, body: &str) -> Value {
    let (status, value) = admin(engine, method, path, body);
    assert_eq!((status, value["result"].as_str()), (200, Some("applied")), "{value:#}");
    value
}

/// A whole configuration in place of the file's.
#[track_caller]
pub fn push(engine: &Engine, text: &str) -> (u16, Value) {
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/toml\r\n");
    let response = ask_admin(engine, "PUT", "/v1/config", &fields, text);
    (response.status, serde_json::from_str(&response.text()).expect("JSON"))
}

/// What is running.
pub fn snapshot(engine: &Engine) -> Value {
    serde_json::from_str(&ask_admin(engine, "GET", "/v1/snapshot", "", "").text()).expect("JSON")
}

/// What is said of a server of the first backend.
#[track_caller]
pub fn server(engine: &Engine, address: &str) -> Value {
    let snapshot = snapshot(engine);
    let mut servers = snapshot["backends"][0]["servers"].as_array().expect("servers").iter();
    servers.find(|each| each["address"] == address).unwrap_or_else(|| panic!("no {address} in {snapshot:#}")).clone()
}
