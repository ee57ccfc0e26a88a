//! The admin address as our own commands ask it: where it is, with which token, and what it answers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use propylon_config::{Admin, AdminBind, Config, Source};
use serde_json::Value;

use super::admin_section;

/// Address of `[admin]` in the examples.
const ADMIN_DEFAULT: &str = "127.0.0.1:9900";
/// How long reading may take.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);
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
    /// The configuration that says where it is, if one does.
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The admin address, and the file of the token where a configuration names one.
    pub fn find(&self) -> Result<(AdminBind, Option<PathBuf>), String> {
        let Some(path) = &self.config else {
            return Ok((self.admin.clone().unwrap_or_else(|| place(ADMIN_DEFAULT).expect("an address")), None));
        };
        let admin = admin_of(path)?;
        Ok((admin.bind, admin.token_file.map(|file| file.path)))
    }
}

/// `[admin]` of a file. What else is wrong with the file is no reason not to ask the engine that runs.
fn admin_of(path: &Path) -> Result<Admin, String> {
    static TOLD: Once = Once::new();
    let shown = path.display();
    let source = Source::read(path);
    let why = match source.as_ref().map(propylon_config::parse) {
        Ok(Ok((config, _))) => {
            let none = || format!("{shown} has no [admin]; add bind = \"{ADMIN_DEFAULT}\" there");
            return config.admin.ok_or_else(none);
        }
        Ok(Err(_)) => format!("{shown} has errors"),
        Err(problem) => problem.to_string().trim_end().to_owned(),
    };
    // A byte that is no text, in a comment perhaps, hides no address.
    let source = source.ok().or_else(|| lossy(path));
    let Some(admin) = source.as_ref().and_then(admin_section::admin) else {
        return Err(format!("{why}, and no admin address can be read there: give it with --admin, or mend the file"));
    };
    let told = format!("{shown} has errors, which `propylon check -c {shown}` tells; its [admin] is used all the same");
    TOLD.call_once(|| eprintln!("propylon: {told}"));
    Ok(admin)
}

/// A file's text with what is no UTF-8 replaced, as much of it as a configuration may have.
fn lossy(path: &Path) -> Option<Source> {
    let mut bytes = Vec::new();
    let limit = propylon_config::SOURCE_BYTES_MAX as u64;
    File::open(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    Some(Source::of(path, String::from_utf8_lossy(&bytes).into_owned().into_bytes()).ok()?.completed())
}

/// A configuration as it is in the file.
pub fn read(path: &Path) -> Result<Config, String> {
    let source = Source::read(path).map_err(|problem| propylon_config::render(&[problem], ""))?;
    let rendered = |problems: Vec<_>| source.render(&problems);
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

/// Reads JSON from the admin address, and tells what keeps it from that.
pub fn ask_json(admin: &AdminBind, path: &str) -> Result<Value, String> {
    let earlier = || Err(format!("the engine at {admin} is of an earlier version, which has no {path}"));
    ask_json_or_none(admin, path)?.map_or_else(earlier, Ok)
}

/// As [`ask_json`], of what an engine need not have: none where it has not.
pub fn ask_json_or_none(admin: &AdminBind, path: &str) -> Result<Option<Value>, String> {
    match ask(admin, &AdminRequest { method: "GET", path, fields: "", body: "", timeout: READ_TIMEOUT })? {
        (200, body) => {
            serde_json::from_str(&body).map(Some).map_err(|_| format!("what answers at {admin} is no engine"))
        }
        (404, _) => Ok(None),
        (status, body) => Err(format!("{admin} answers {status}: {}", body.trim_end())),
    }
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
    // A body that is refused need not be read whole: the answer may be there all the same.
    let written = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let read = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map(drop);
    match written.and(read) {
        Err(error) if !is_whole(&answer) => Err(error),
        _ => String::from_utf8(answer).map_err(|_| io::ErrorKind::InvalidData.into()),
    }
}

/// Whether an answer has all of the body that its head tells of.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.is_some_and(|length| answer.len() - end - 4 == length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the beginning of a request, and answers at once.
    struct Hasty {
        answer: &'static [u8],
        taken_max: usize,
    }

    impl Write for Hasty {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.taken_max);
            self.taken_max -= taken;
            if taken == 0 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Hasty {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            match self.answer.read(bytes) {
                Ok(0) => Err(io::ErrorKind::ConnectionReset.into()),
                other => other,
            }
        }
    }

    #[test]
    fn a_refusal_is_heard_though_the_body_could_not_be_sent_whole() {
        let body = "x".repeat(1000);
        let ask = AdminRequest { method: "POST", path: "/", fields: "", body: &body, timeout: CONNECT_TIMEOUT };
        let heard =
            |answer| exchange(Hasty { answer, taken_max: 100 }, "localhost", &ask).map_err(|error| error.kind());
        let refusal = b"HTTP/1.0 413 Payload Too Large\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(heard(refusal), Ok(String::from_utf8(refusal.to_vec()).unwrap()));
        assert_eq!(heard(&refusal[..refusal.len() - 1]), Err(io::ErrorKind::BrokenPipe));
        assert_eq!(heard(b""), Err(io::ErrorKind::BrokenPipe));
    }

    #[test]
    fn an_admin_address_is_an_address_or_a_path() {
        assert_eq!(place("unix:/run/x").unwrap().to_string(), AdminBind::Unix("/run/x".into()).to_string());
        assert!(place("127.0.0.1:1").is_ok());
        assert!(["unix:", "localhost", "/run/x"].iter().all(|text| place(text).is_err()));
    }
}
