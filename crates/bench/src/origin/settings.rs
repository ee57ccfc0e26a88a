//! Settings of an origin, which all its connections share.

use super::request;
use clap::ValueEnum;
use rustls::ServerConfig;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Behaviour of an origin that speaks no HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RawMode {
    /// Returns what it gets
    Echo,
    /// Sends without end; what it gets is swallowed
    Source,
    /// Swallows what it gets
    Sink,
}

/// State that all connections share. The fixed answer is made once.
pub struct Settings {
    pub name: String,
    pub body_bytes: usize,
    pub delay: Duration,
    pub fail_every: Option<u64>,
    pub fixed: Vec<u8>,
    pub requests: Cell<u64>,
    pub tls: Option<Arc<ServerConfig>>,
    pub raw: Option<RawMode>,
}

impl Settings {
    pub fn new(name: &str, body_bytes: usize, delay: Duration, fail_every: Option<u64>) -> Self {
        let mut settings = Self {
            name: name.chars().filter(|c| !c.is_control()).collect(),
            body_bytes,
            delay,
            fail_every,
            fixed: Vec::new(),
            requests: Cell::new(0),
            tls: None,
            raw: None,
        };
        let mut fixed = Vec::new();
        settings.write_head(&mut fixed, 200, Some(body_bytes as u64), false);
        fixed.resize(fixed.len() + body_bytes, b'x');
        settings.fixed = fixed;
        settings
    }

    /// Appends a response head; without a length the body is chunked.
    pub fn write_head(&self, out: &mut Vec<u8>, status: u16, length: Option<u64>, close: bool) {
        let framing = match length {
            // RFC 9110 §8.6: no Content-Length with 1xx and 204.
            _ if status < 200 || status == 204 => String::new(),
            Some(length) => format!("Content-Length: {length}\r\n"),
            None => "Transfer-Encoding: chunked\r\n".to_owned(),
        };
        let close = if close { "Connection: close\r\n" } else { "" };
        let reason = request::reason(status);
        let name = &self.name;
        let head = format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nX-Origin: {name}\r\n{framing}{close}\r\n"
        );
        out.extend_from_slice(head.as_bytes());
    }
}
