//! The admin address as our own commands ask it: where it is, with which token, and what it answers.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use propylon_config::{AdminBind, Config, Source};

/// Address of `[admin]` in the examples.
const ADMIN_DEFAULT: &str = "127.0.0.1:9900";
/// How long a connect to the admin address may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An answer that is longer is no engine's.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Which engine is asked.
#[derive(clap::Args)]
pub struct Where {
    /// The engine's admin address: IP:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS", conflicts_with = "config", value_parser = place)]
    admin: Option<AdminBind>,
    /// Take the admin address, and the file of its token, from this configuration
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// As `--admin` has it.
fn place(text: &str) -> Result<AdminBind, String> {
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(AdminBind::Unix(path.into())),
        Some(_) => Err("a path has to follow \"unix:\"".into()),
        None => text.parse().map(AdminBind::Tcp).map_err(|_| "write IP:PORT or unix:PATH".into()),
    }
}

impl Where {
    /// The admin address, and the file of the token where a configuration names one.
    pub fn find(&self) -> Result<(AdminBind, Option<PathBuf>), String> {
        let Some(path) = &self.config else {
            return Ok((self.admin.clone().unwrap_or_else(|| place(ADMIN_DEFAULT).expect("an address")), None));
        };
        let none = || format!("{} has no [admin]; add bind = \"{ADMIN_DEFAULT}\" there", path.display());
        let admin = read(path)?.admin.ok_or_else(none)?;
        Ok((admin.bind, admin.token_file.map(|file| file.path)))
    }
}

/// A configuration as it is in the file.
pub fn read(path: &Path) -> Result<Config, String> {
    let source = Source::read(path).map_err(|problem| propylon_config::render(&[problem], ""))?;
    let rendered = |problems: Vec<_>| propylon_config::render(&problems, &source.text);
    Ok(propylon_config::parse(&source).map_err(rendered)?.0)
}

/// A request to the admin address.
pub struct AdminRequest<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// Whole lines, each with its end.
    pub fields: &'a str,
    pub body: &'a str,
    /// How long each read and write may take.
    pub timeout: Duration,
}

/// Asks, and returns status and body. Not over HTTP/1.1, so that the answer ends where the connection does.
pub fn ask(admin: &AdminBind, ask: &AdminRequest<'_>) -> Result<(u16, String), String> {
    let failed = |error: io::Error| {
        format!("{admin} does not answer: {error}; is an engine running with this [admin] bind? --admin says another")
    };
    let answer = converse(admin, ask).map_err(failed)?;
    let stranger = || format!("what answers at {admin} is no propylon admin address");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(stranger)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(stranger)?;
    Ok((status, body.to_owned()))
}

fn converse(admin: &AdminBind, ask: &AdminRequest<'_>) -> io::Result<String> {
    match admin {
        AdminBind::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, CONNECT_TIMEOUT.min(ask.timeout))?;
            stream.set_read_timeout(Some(ask.timeout))?;
            stream.set_write_timeout(Some(ask.timeout))?;
            exchange(stream, &address.to_string(), ask)
        }
        AdminBind::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ask.timeout))?;
            stream.set_write_timeout(Some(ask.timeout))?;
            exchange(stream, "localhost", ask)
        }
    }
}

fn exchange(mut stream: impl Read + Write, host: &str, ask: &AdminRequest<'_>) -> io::Result<String> {
    let AdminRequest { method, path, fields, body, .. } = ask;
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n{length}{fields}\r\n{body}");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_address_is_an_address_or_a_path() {
        assert_eq!(place("unix:/run/x").unwrap().to_string(), AdminBind::Unix("/run/x".into()).to_string());
        assert!(place("127.0.0.1:1").is_ok());
        assert!(["unix:", "localhost", "/run/x"].iter().all(|text| place(text).is_err()));
    }
}
