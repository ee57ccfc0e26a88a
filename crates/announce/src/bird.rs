//! BIRD's control socket: one command at a time, and the reply to it, all within limits.
//!
//! A reply is lines of text. Each begins with a code of four digits and `-`, or with a blank where the code is that
//! of the line before; the last has a blank behind its code. The codes are those of BIRD's `doc/reply_codes`.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::answers::{self, BfdSession, BirdStatus, Protocol};

/// Longest line that is taken from BIRD, whose own limit is 512 bytes in BIRD 2.
pub const LINE_BYTES_MAX: usize = 4096;
/// Limit on the lines of a reply: `show protocols all` has some forty for each protocol.
pub const REPLY_LINES_MAX: usize = 20_000;
/// Limit on the bytes of a reply.
pub const REPLY_BYTES_MAX: usize = 1 << 20;
/// Longest name of a protocol in BIRD.
const NAME_BYTES_MAX: usize = 64;
/// Longest reason that is written into BIRD, which shows it as the protocol's message.
const REASON_BYTES_MAX: usize = 120;

const WELCOME: u16 = 1;
const ALREADY_DISABLED: u16 = 8;
const DISABLED: u16 = 9;
const ALREADY_ENABLED: u16 = 10;
const ENABLED: u16 = 11;
const NO_PROTOCOLS_MATCH: u16 = 8003;
const ACCESS_DENIED: u16 = 8007;
/// Codes from here on are errors.
const ERRORS: u16 = 8000;
/// A pattern that matches no protocol, since this is longer than any name.
const NOBODY: &str = "propylon-asks-whether-it-may-switch-a-protocol-and-this-name-is-nobodys";

/// A name that is safe within a command. BIRD takes it in quotes, as a pattern: the signs with a meaning there are
/// refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProtocolName(String);

impl ProtocolName {
    pub fn parse(name: &str) -> Result<ProtocolName, String> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
        match name.bytes().find(|byte| !is_fit(*byte)) {
            _ if name.is_empty() => Err("the name of a protocol in BIRD is empty".to_owned()),
            _ if name.len() > NAME_BYTES_MAX => {
                Err(format!("the name of a protocol in BIRD has {NAME_BYTES_MAX} characters at most"))
            }
            Some(_) => Err(format!(
                "{name:?} names no protocol in BIRD: letters, digits, `_`, `-`, `.` and `:` are what a name is made of"
            )),
            None => Ok(ProtocolName(name.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProtocolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why BIRD did not do, or did not say, what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BirdError {
    /// No socket is at this path.
    Missing(PathBuf),
    /// A socket is there, and nobody listens.
    Abandoned(PathBuf),
    Denied(PathBuf),
    /// The socket answers questions and takes no orders.
    Restricted,
    UnknownProtocol(String),
    /// Nothing, or not all of it, came within this time.
    Silent(Duration),
    /// BIRD closed the connection: it ends, or starts again.
    Closed,
    /// Something that is no reply of BIRD's.
    Nonsense(String),
    TooLong(&'static str),
    /// BIRD's own words.
    Refused(u16, String),
    Io(ErrorKind, String),
}

impl BirdError {
    /// Whether the same connection is of no further use.
    pub fn ends_connection(&self) -> bool {
        !matches!(self, BirdError::Restricted | BirdError::UnknownProtocol(_) | BirdError::Refused(..))
    }

    /// Whether somebody has to change something before another attempt can succeed.
    pub fn needs_somebody(&self) -> bool {
        matches!(self, BirdError::Denied(_) | BirdError::Restricted | BirdError::UnknownProtocol(_))
    }

    fn io(error: &io::Error) -> BirdError {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => BirdError::Closed,
            kind => BirdError::Io(kind, error.to_string()),
        }
    }
}

impl fmt::Display for BirdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BirdError::Missing(path) => write!(
                f,
                "no BIRD at {}: there is no such socket; start BIRD, or name the socket that `bird -s` was given",
                path.display()
            ),
            BirdError::Abandoned(path) => {
                write!(f, "no BIRD at {}: nobody listens at this socket any more; start BIRD", path.display())
            }
            BirdError::Denied(path) => write!(
                f,
                "{}: permission denied; BIRD lets its own group in: put the engine's user into it \
                 (`usermod -aG bird propylon`) and start the engine again",
                path.display()
            ),
            BirdError::Restricted => f.write_str(
                "BIRD's control socket is restricted: it shows protocols and switches none; name one in the settings \
                 that is not (no `restrict` in its `cli` block)",
            ),
            BirdError::UnknownProtocol(name) => write!(
                f,
                "BIRD has no protocol {name:?}; add `protocol static {name} {{ disabled; ... }}` to its configuration, \
                 or correct the name"
            ),
            BirdError::Silent(waited) => {
                write!(f, "BIRD gave no whole answer within {waited:?}; it hangs, or the machine is overloaded")
            }
            BirdError::Closed => f.write_str("BIRD closed its control socket: it ends, or starts again"),
            BirdError::Nonsense(line) => {
                write!(f, "not BIRD: {line:?} is no line of a reply; does the path name another program's socket?")
            }
            BirdError::TooLong(limit) => write!(f, "BIRD's answer is longer than the limit on its {limit}"),
            BirdError::Refused(code, text) => write!(f, "BIRD refuses: {code:04} {text}"),
            BirdError::Io(_, error) => write!(f, "BIRD's control socket: {error}"),
        }
    }
}

impl std::error::Error for BirdError {}

/// Outcome of an order that BIRD has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    Now,
    Already,
}

/// Lines of a reply, each with its code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub lines: Vec<(u16, String)>,
}

impl Reply {
    /// The last line's code.
    pub fn code(&self) -> u16 {
        self.lines.last().map_or(0, |(code, _)| *code)
    }

    pub fn has(&self, code: u16) -> bool {
        self.lines.iter().any(|(other, _)| *other == code)
    }
}

/// A connection to BIRD's control socket.
pub struct Bird {
    stream: UnixStream,
    /// Longest time for a whole reply.
    reply_wait: Duration,
    version: String,
    /// Bytes that have arrived and are not parsed yet.
    arrived: Vec<u8>,
}

impl Bird {
    /// Connects and takes the greeting. Each reply, the greeting included, has to be there within `reply_wait`.
    pub fn connect(socket: &Path, reply_wait: Duration) -> Result<Bird, BirdError> {
        // The limit on sending is one on connecting as well: a BIRD that hangs has a full backlog.
        let stream = connect_within(socket, reply_wait).map_err(|error| match error.kind() {
            ErrorKind::NotFound => BirdError::Missing(socket.to_owned()),
            ErrorKind::ConnectionRefused => BirdError::Abandoned(socket.to_owned()),
            ErrorKind::PermissionDenied => BirdError::Denied(socket.to_owned()),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => BirdError::Silent(reply_wait),
            _ => BirdError::io(&error),
        })?;
        let mut bird = Bird { stream, reply_wait, version: String::new(), arrived: Vec::new() };
        let greeting = bird.reply()?;
        match greeting.lines.as_slice() {
            [(WELCOME, text)] => bird.version = text.trim_end_matches(" ready.").to_owned(),
            [(code, text), ..] => return Err(BirdError::Nonsense(format!("{code:04} {text}"))),
            [] => return Err(BirdError::Nonsense(String::new())),
        }
        Ok(bird)
    }

    /// For instance `BIRD 2.0.12`, from the greeting.
    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn status(&mut self) -> Result<BirdStatus, BirdError> {
        self.ask("show status").map(|reply| answers::status(&reply))
    }

    /// All protocols, with their channels.
    pub fn protocols(&mut self) -> Result<Vec<Protocol>, BirdError> {
        match self.ask("show protocols all") {
            Ok(reply) => Ok(answers::protocols(&reply)),
            Err(BirdError::Refused(NO_PROTOCOLS_MATCH, _)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    pub fn protocol(&mut self, name: &ProtocolName) -> Result<Protocol, BirdError> {
        let reply = self.ask(&format!("show protocols all \"{name}\"")).map_err(|error| named(error, name))?;
        let found = answers::protocols(&reply).into_iter().find(|protocol| protocol.name == name.as_str());
        found.ok_or_else(|| BirdError::UnknownProtocol(name.to_string()))
    }

    pub fn enable(&mut self, name: &ProtocolName, reason: &str) -> Result<Switched, BirdError> {
        let reply = self.ask(&switch("enable", name, reason)).map_err(|error| named(error, name))?;
        switched(&reply, ENABLED, ALREADY_ENABLED)
    }

    pub fn disable(&mut self, name: &ProtocolName, reason: &str) -> Result<Switched, BirdError> {
        let reply = self.ask(&switch("disable", name, reason)).map_err(|error| named(error, name))?;
        switched(&reply, DISABLED, ALREADY_DISABLED)
    }

    /// Sessions of BFD; none where BFD does not run.
    pub fn bfd_sessions(&mut self) -> Result<Vec<BfdSession>, BirdError> {
        match self.ask("show bfd sessions") {
            Ok(reply) => Ok(answers::bfd_sessions(&reply)),
            // An error in words alone: its code is that of all errors of parsing.
            Err(BirdError::Refused(_, text)) if text.contains("BFD protocol") => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether this socket takes orders. Nothing is changed: the order is for a protocol that nobody has.
    pub fn check_orders(&mut self) -> Result<(), BirdError> {
        match self.ask(&format!("disable \"{NOBODY}\"")) {
            Err(BirdError::Refused(NO_PROTOCOLS_MATCH, _)) => Ok(()),
            Err(error) => Err(error),
            Ok(reply) => Err(unexpected(&reply)),
        }
    }

    fn ask(&mut self, command: &str) -> Result<Reply, BirdError> {
        // Bytes that nobody asked for would be taken for the answer.
        if !self.arrived.is_empty() {
            return Err(BirdError::Nonsense(String::from_utf8_lossy(&self.arrived).into_owned()));
        }
        self.stream.write_all(format!("{command}\n").as_bytes()).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => BirdError::Silent(self.reply_wait),
            _ => BirdError::io(&error),
        })?;
        let reply = self.reply()?;
        match reply.lines.iter().find(|(code, _)| *code >= ERRORS) {
            Some((ACCESS_DENIED, _)) => Err(BirdError::Restricted),
            Some((code, text)) => Err(BirdError::Refused(*code, text.clone())),
            None => Ok(reply),
        }
    }

    fn reply(&mut self) -> Result<Reply, BirdError> {
        let until = Instant::now() + self.reply_wait;
        let mut reply = ReplyReader::default();
        loop {
            while let Some(end) = self.arrived.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.arrived.drain(..=end).collect();
                if reply.take(&line)? {
                    return Ok(reply.reply);
                }
            }
            if self.arrived.len() > LINE_BYTES_MAX {
                return Err(BirdError::TooLong("lines"));
            }
            self.read(until)?;
        }
    }

    fn read(&mut self, until: Instant) -> Result<(), BirdError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(BirdError::Silent(self.reply_wait));
        }
        self.stream.set_read_timeout(Some(left)).map_err(|error| BirdError::io(&error))?;
        let mut bytes = [0; LINE_BYTES_MAX];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(BirdError::Closed),
            Ok(count) => {
                self.arrived.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(BirdError::Silent(self.reply_wait))
            }
            Err(error) => Err(BirdError::io(&error)),
        }
    }
}

/// A reply of which some lines have been taken.
#[derive(Default)]
struct ReplyReader {
    reply: Reply,
    bytes: usize,
}

impl ReplyReader {
    /// Takes a line, its end included; `true` once the reply is whole.
    fn take(&mut self, line: &[u8]) -> Result<bool, BirdError> {
        self.bytes += line.len();
        if line.len() > LINE_BYTES_MAX {
            return Err(BirdError::TooLong("lines"));
        }
        if self.bytes > REPLY_BYTES_MAX {
            return Err(BirdError::TooLong("bytes"));
        }
        if self.reply.lines.len() >= REPLY_LINES_MAX {
            return Err(BirdError::TooLong("number of lines"));
        }
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches(['\n', '\r']);
        // Log messages that somebody asked BIRD to echo.
        if line.starts_with('+') {
            return Ok(false);
        }
        if let Some(rest) = line.strip_prefix(' ') {
            let Some((code, _)) = self.reply.lines.last() else { return Err(BirdError::Nonsense(line.to_owned())) };
            self.reply.lines.push((*code, rest.to_owned()));
            return Ok(false);
        }
        let (code, is_last, text) = coded(line).ok_or_else(|| BirdError::Nonsense(line.to_owned()))?;
        // `0000 ` alone ends a list: it is a line without words.
        self.reply.lines.push((code, text.to_owned()));
        Ok(is_last)
    }
}

/// Code, whether the line is the reply's last, and its text.
fn coded(line: &str) -> Option<(u16, bool, &str)> {
    let (digits, rest) = line.split_at_checked(4)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let is_last = match rest.bytes().next()? {
        b' ' => true,
        b'-' => false,
        _ => return None,
    };
    Some((digits.parse().ok()?, is_last, &rest[1..]))
}

fn connect_within(path: &Path, wait: Duration) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(wait))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

/// The order to switch a protocol. BIRD keeps the reason as the protocol's message.
fn switch(order: &str, name: &ProtocolName, reason: &str) -> String {
    let is_fit = |sign: &char| (*sign == ' ' || sign.is_ascii_graphic()) && !"\"'\\".contains(*sign);
    let reason: String = reason.chars().filter(is_fit).take(REASON_BYTES_MAX).collect();
    format!("{order} \"{name}\" \"propylon: {reason}\"")
}

fn switched(reply: &Reply, now: u16, already: u16) -> Result<Switched, BirdError> {
    match reply {
        reply if reply.has(now) => Ok(Switched::Now),
        reply if reply.has(already) => Ok(Switched::Already),
        reply => Err(unexpected(reply)),
    }
}

fn unexpected(reply: &Reply) -> BirdError {
    let (code, text) = reply.lines.first().cloned().unwrap_or_default();
    BirdError::Nonsense(format!("{code:04} {text}"))
}

/// The error, with the protocol's name where BIRD says only that none matches.
fn named(error: BirdError, name: &ProtocolName) -> BirdError {
    match error {
        BirdError::Refused(NO_PROTOCOLS_MATCH, _) => BirdError::UnknownProtocol(name.to_string()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> Result<Option<Reply>, BirdError> {
        let mut reader = ReplyReader::default();
        for line in lines.split_inclusive('\n') {
            if reader.take(line.as_bytes())? {
                return Ok(Some(reader.reply));
            }
        }
        Ok(None)
    }

    #[test]
    fn a_reply_ends_with_the_line_that_has_a_blank_behind_its_code() {
        let reply =
            read("1000-BIRD 2.0.12\n1011-Router ID is 10.0.0.2\n Hostname is a\n+ <echo> 0013 x\n0013 Up\n").unwrap();
        let lines = [(1000, "BIRD 2.0.12"), (1011, "Router ID is 10.0.0.2"), (1011, "Hostname is a"), (13, "Up")];
        assert_eq!(reply.unwrap().lines, lines.map(|(code, text)| (code, text.to_owned())));
        assert_eq!(read("1000-BIRD 2.0.12\n 0013 Up\n"), Ok(None));
    }

    #[test]
    fn what_is_no_reply_is_called_nonsense() {
        for line in [
            "HTTP/1.1 400 Bad Request\r\n",
            " continued\n",
            "000\n",
            "0001\n",
            "00a1 x\n",
            "\n",
            "日本語\n",
            "\u{fffd}\n",
        ] {
            assert!(matches!(read(line), Err(BirdError::Nonsense(_))), "{line:?}");
        }
    }

    #[test]
    fn a_reply_without_end_is_given_up() {
        let lines = "1000-x\n".repeat(REPLY_LINES_MAX + 1);
        assert_eq!(read(&lines), Err(BirdError::TooLong("number of lines")));
        let wide = format!("1000-{}\n", "x".repeat(LINE_BYTES_MAX - 6));
        assert_eq!(read(&wide.repeat(REPLY_BYTES_MAX / LINE_BYTES_MAX + 1)), Err(BirdError::TooLong("bytes")));
        assert_eq!(read(&format!("1000-{}\n", "x".repeat(LINE_BYTES_MAX))), Err(BirdError::TooLong("lines")));
    }

    #[test]
    fn neither_names_nor_reasons_can_add_to_a_command() {
        for name in ["", "a b", "a\"", "all\nquit", "*", "a?", "a\\", "ä", &"x".repeat(65)] {
            assert!(ProtocolName::parse(name).is_err(), "{name:?}");
        }
        let name = ProtocolName::parse("propylon4.a:b-c_d").unwrap();
        assert_eq!(
            switch("disable", &name, "gone\"\nenable all\r\\ 'now' ä"),
            "disable \"propylon4.a:b-c_d\" \"propylon: goneenable all now \""
        );
        assert!(NOBODY.len() > NAME_BYTES_MAX);
    }

    #[test]
    fn an_error_says_what_to_do() {
        let denied = BirdError::Denied("/run/bird/bird.ctl".into()).to_string();
        assert!(denied.contains("usermod -aG bird"), "{denied}");
        assert!(BirdError::UnknownProtocol("a".into()).to_string().contains("protocol static a"));
    }
}
