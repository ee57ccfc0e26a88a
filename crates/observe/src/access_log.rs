//! The access log: a line a request, written by a thread of its own, never waited for.
//!
//! A core writes its lines into a buffer in its own memory. Full buffers, and once a tick what there is, go to the writer
//! through a bounded channel; when the writer cannot keep up, lines are dropped and counted.

mod format;
mod syslog;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use propylon_config::{AccessLog, Log};
use propylon_http::fault::Fault;
use propylon_sys::Account;
use propylon_tls::Identity;

use propylon_http::h1::Fields;
use propylon_http::trace_context::TraceId;

use self::format::{Format, Subject, Time};
use self::syslog::Outlet;

/// Words for a failure to open the file at this path, the sandbox's part in it included.
pub type Explain = fn(&Path, &io::Error) -> String;

/// A buffer is handed over when it holds this much.
const SHEET_BYTES: usize = 32 * 1024;
/// Sheets on their way to the writer, all cores together.
const SHEETS_WAITING_MAX: usize = 256;
/// A log that is made here: what clients ask for is nobody's but the account's and its group's.
const FILE_MODE: u32 = 0o640;
/// How often the writer looks whether the file was moved away.
const ROTATION_CHECK: Duration = Duration::from_secs(1);
/// Interval between two lines in the process log that say why the access log cannot be written.
const WRITE_ERROR_LOG_INTERVAL: Duration = Duration::from_secs(300);

/// Data of a request that has ended.
pub struct Record<'a> {
    pub client: std::net::SocketAddr,
    pub listener: &'a str,
    pub host: &'a [u8],
    pub method: &'a [u8],
    /// Path and query as the client sent them.
    pub target: &'a [u8],
    pub protocol: &'static str,
    /// 0 when the connection ended before a status was sent.
    pub status: u16,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// Bytes of heads, which are among `bytes_sent`.
    pub heads_sent: u64,
    pub durations: Durations,
    pub backend: Option<&'a str>,
    pub server: Option<&'a str>,
    pub attempts: u32,
    pub reused: bool,
    pub tls: Option<&'a TlsFields<'a>>,
    pub fault: Option<Fault>,
    /// ID of the trace; `None` if tracing is off.
    pub trace: Option<TraceId>,
    /// Fields of the request with their bytes; `None` where it has none that could be read.
    pub head: Option<(&'a Fields, &'a [u8])>,
    /// ID of the request; `None` where its listener asks for none.
    pub request_id: Option<&'a str>,
    /// Route, as metrics call it; only where a line is of fields by choice.
    pub route: Option<&'a str>,
}

impl Record<'_> {
    /// User whom the request is from, where its route asks for that.
    fn user(&self) -> Option<&[u8]> {
        self.head.and_then(|(fields, bytes)| fields.user(bytes))
    }
}

/// Data of a relayed connection that has ended.
pub struct RelayRecord<'a> {
    pub client: std::net::SocketAddr,
    pub listener: &'a str,
    /// "tcp" or "passthrough".
    pub protocol: &'static str,
    /// The name that the client asked for.
    pub server_name: Option<&'a str>,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// In microseconds.
    pub handshake_us: Option<u64>,
    pub queue_us: Option<u64>,
    pub connect_us: Option<u64>,
    pub total_us: u64,
    pub backend: Option<&'a str>,
    pub server: Option<&'a str>,
    pub attempts: u32,
    pub tls: Option<&'a TlsFields<'a>>,
    pub fault: Option<Fault>,
}

/// In microseconds; absent where a phase did not take place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Durations {
    /// Accept to the end of the TLS handshake; only on a connection's first request.
    pub handshake: Option<u64>,
    /// First byte of the head to its last.
    pub head: u64,
    /// Waiting for a server connection while servers had as many as they may.
    pub queue: Option<u64>,
    pub connect: Option<u64>,
    /// Request sent to the response's head.
    pub first_byte: Option<u64>,
    /// First byte of the request to the last byte of the response.
    pub total: u64,
}

#[derive(Debug)]
pub struct TlsFields<'a> {
    pub version: &'static str,
    pub suite: &'static str,
    pub group: Option<&'static str>,
    pub certificate: Option<&'static str>,
    pub signature: Option<&'static str>,
    pub alpn: Option<&'a str>,
    pub resumed: bool,
    /// Only on a connection's first request, but for HTTP/2.
    pub server_name: Option<&'a str>,
    pub ja4: Option<&'a str>,
    pub client: Option<&'a Identity>,
}

/// One core's end of the log.
pub struct LogBuffer {
    lines: Vec<u8>,
    count: u64,
    outlet: Option<SyncSender<Lines>>,
    dropped: u64,
    second: u64,
    second_text: String,
    /// The second as the Combined Log Format has it; empty in other forms.
    clf_text: String,
    /// Form of the lines; `None` for the whole record in JSON.
    format: Option<Arc<Format>>,
}

struct Lines {
    bytes: Vec<u8>,
    count: u64,
}

impl LogBuffer {
    pub fn is_on(&self) -> bool {
        self.outlet.is_some()
    }

    /// Hands over what there is and takes no lines any more: the log's thread waits for the last buffer to be closed.
    pub fn close(&mut self) {
        self.hand_over();
        self.outlet = None;
    }

    pub fn write(&mut self, record: &Record<'_>) {
        if self.outlet.is_none() {
            return;
        }
        if self.format.is_some() {
            return self.write_formatted(&Subject::Request(record));
        }
        self.write_time();
        let out = &mut self.lines;
        // Writing into a Vec does not fail.
        let _ = write!(out, ",\"client\":\"{}\",\"listener\":", record.client);
        text(out, record.listener.as_bytes());
        field(out, "host", Some(record.host));
        field(out, "method", Some(record.method));
        field(out, "path", Some(record.target));
        field(out, "protocol", Some(record.protocol.as_bytes()));
        let _ = write!(
            out,
            ",\"status\":{},\"bytes_received\":{},\"bytes_sent\":{}",
            record.status, record.bytes_received, record.bytes_sent
        );
        durations(out, &record.durations);
        field(out, "backend", record.backend.map(str::as_bytes));
        field(out, "server", record.server.map(str::as_bytes));
        let _ = write!(out, ",\"attempts\":{},\"reused\":{}", record.attempts, record.reused);
        tls(out, record.tls);
        field(out, "fault", record.fault.map(|fault| fault.label().as_bytes()));
        if let Some(trace) = record.trace {
            field(out, "trace_id", Some(&trace.hex()));
        }
        if let Some(id) = record.request_id {
            field(out, "request_id", Some(id.as_bytes()));
        }
        self.end_line();
    }

    pub fn write_relay(&mut self, record: &RelayRecord<'_>) {
        if self.outlet.is_none() {
            return;
        }
        if self.format.is_some() {
            return self.write_formatted(&Subject::Relay(record));
        }
        self.write_time();
        let out = &mut self.lines;
        let _ = write!(out, ",\"client\":\"{}\",\"listener\":", record.client);
        text(out, record.listener.as_bytes());
        field(out, "protocol", Some(record.protocol.as_bytes()));
        field(out, "server_name", record.server_name.map(str::as_bytes));
        let _ = write!(out, ",\"bytes_received\":{},\"bytes_sent\":{}", record.bytes_received, record.bytes_sent);
        let _ = write!(out, ",\"duration_us\":{{\"total\":{}", record.total_us);
        let phases = [("handshake", record.handshake_us), ("queue", record.queue_us), ("connect", record.connect_us)];
        for (name, value) in phases {
            if let Some(value) = value {
                let _ = write!(out, ",\"{name}\":{value}");
            }
        }
        out.push(b'}');
        field(out, "backend", record.backend.map(str::as_bytes));
        field(out, "server", record.server.map(str::as_bytes));
        let _ = write!(out, ",\"attempts\":{}", record.attempts);
        tls(out, record.tls);
        field(out, "fault", record.fault.map(|fault| fault.label().as_bytes()));
        self.end_line();
    }

    /// Writes a line in the form that was chosen.
    fn write_formatted(&mut self, subject: &Subject<'_>) {
        let Some(format) = self.format.clone() else { return };
        let millis = self.note_time();
        let time = Time { second: &self.second_text, clf: &self.clf_text, millis };
        format.write(subject, &time, &mut self.lines);
        self.count_line();
    }

    fn end_line(&mut self) {
        self.lines.push(b'}');
        self.count_line();
    }

    fn count_line(&mut self) {
        self.lines.push(b'\n');
        self.count += 1;
        if self.lines.len() >= SHEET_BYTES {
            self.hand_over();
        }
    }

    /// Gives what is written so far to the writer, or drops it if the writer is behind.
    pub fn hand_over(&mut self) {
        let Some(outlet) = &self.outlet else { return };
        if self.lines.is_empty() {
            return;
        }
        let bytes = std::mem::replace(&mut self.lines, Vec::with_capacity(SHEET_BYTES + 1024));
        let count = std::mem::take(&mut self.count);
        match outlet.try_send(Lines { bytes, count }) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.dropped += count,
        }
    }

    /// Lines dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    fn write_time(&mut self) {
        let millis = self.note_time();
        let _ = write!(self.lines, "{{\"time\":\"{}.{millis:03}Z\"", self.second_text);
    }

    /// Brings the second's text up to date. Returns the milliseconds within it.
    fn note_time(&mut self) -> u32 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if now.as_secs() != self.second {
            self.second = now.as_secs();
            self.second_text = second_text(self.second);
            if self.format.is_some() {
                self.clf_text = clf_text(self.second);
            }
        }
        now.subsec_millis()
    }
}

/// `2026-11-20T22:20:00` of a Unix time in seconds.
fn second_text(seconds: u64) -> String {
    let time = time::OffsetDateTime::from_unix_timestamp(seconds as i64).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let (date, clock) = (time.date(), time.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second()
    )
}

/// `20/Nov/2026:22:20:00 +0000` of a Unix time in seconds.
fn clf_text(seconds: u64) -> String {
    let time = time::OffsetDateTime::from_unix_timestamp(seconds as i64).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let (date, clock) = (time.date(), time.time());
    let month = date.month().to_string();
    format!(
        "{:02}/{}/{:04}:{:02}:{:02}:{:02} +0000",
        date.day(),
        &month[..3],
        date.year(),
        clock.hour(),
        clock.minute(),
        clock.second()
    )
}

fn durations(out: &mut Vec<u8>, durations: &Durations) {
    out.extend_from_slice(b",\"duration_us\":{");
    let _ = write!(out, "\"head\":{}", durations.head);
    let phases = [
        ("handshake", durations.handshake),
        ("queue", durations.queue),
        ("connect", durations.connect),
        ("first_byte", durations.first_byte),
    ];
    for (name, value) in phases {
        if let Some(value) = value {
            let _ = write!(out, ",\"{name}\":{value}");
        }
    }
    let _ = write!(out, ",\"total\":{}}}", durations.total);
}

fn tls(out: &mut Vec<u8>, tls: Option<&TlsFields<'_>>) {
    let Some(tls) = tls else {
        out.extend_from_slice(b",\"tls\":null");
        return;
    };
    let _ = write!(out, ",\"tls\":{{\"version\":\"{}\",\"suite\":\"{}\"", tls.version, tls.suite);
    field(out, "group", tls.group.map(str::as_bytes));
    field(out, "certificate", tls.certificate.map(str::as_bytes));
    field(out, "signature", tls.signature.map(str::as_bytes));
    field(out, "alpn", tls.alpn.map(str::as_bytes));
    let _ = write!(out, ",\"resumed\":{}", tls.resumed);
    for (name, value) in [("server_name", tls.server_name), ("ja4", tls.ja4)] {
        if value.is_some() {
            field(out, name, value.map(str::as_bytes));
        }
    }
    if let Some(client) = tls.client {
        out.extend_from_slice(b",\"client\":{\"subject\":");
        text(out, client.subject.as_bytes());
        for (name, value) in [("issuer", &client.issuer), ("serial", &client.serial), ("sha256", &client.sha256)] {
            field(out, name, Some(value.as_bytes()));
        }
        out.push(b'}');
    }
    out.push(b'}');
}

fn field(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    let _ = write!(out, ",\"{name}\":");
    match value {
        Some(value) => text(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

/// A JSON string (RFC 8259 §7) of bytes that need not be UTF-8: what is not printable ASCII becomes `\u00XX`.
fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x20..=0x7e => out.push(byte),
            _ => {
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
    }
    out.push(b'"');
}

/// The writing end, open but without its thread yet.
pub struct Writer {
    out: Option<Out>,
    format: Option<Arc<Format>>,
}

/// The writing end at work: a thread, or nothing when the log is off.
pub struct Running {
    format: Option<Arc<Format>>,
    outlet: Option<SyncSender<Lines>>,
    thread: Option<JoinHandle<()>>,
    failures: Arc<Failures>,
}

/// Counts of what could not be written since the start.
#[derive(Debug, Default)]
pub struct Failures {
    writes: AtomicU64,
    lines: AtomicU64,
    reopens: AtomicU64,
    /// Place that could not be written to, and why, as of the last time.
    reason: Mutex<String>,
}

/// The same, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailureCounts {
    pub writes: u64,
    /// Lost by writes that failed, or written to a file that was removed.
    pub lines: u64,
    /// Attempts to open the log anew where it was moved away.
    pub reopens: u64,
}

impl Failures {
    /// Place that could not be written to, and why, as of the last time: `/var/log/access.log: No space left on
    /// device`.
    pub fn reason(&self) -> String {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    pub fn counts(&self) -> FailureCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        FailureCounts { writes: of(&self.writes), lines: of(&self.lines), reopens: of(&self.reopens) }
    }
}

impl Writer {
    /// Fails at once if the file cannot be opened.
    pub fn open(log: &Log) -> io::Result<Writer> {
        let out = match &log.access {
            AccessLog::Off => None,
            AccessLog::Stdout => Some(Out::stream(io::stdout())?),
            AccessLog::Stderr => Some(Out::stream(io::stderr())?),
            AccessLog::File(path) => Some(Out::file(path)?),
            AccessLog::Syslog(syslog) => Some(Out::syslog(syslog)?),
        };
        let format = Format::of(log.format, &log.fields).map(Arc::new);
        Ok(Writer { out, format })
    }

    /// Gives the log's file to an account, if it is root's: made by a start as root, it could not be opened anew by who serves, and
    /// not by a successor. A device, or somebody else's file, stays whose it is.
    pub fn give_to(&self, account: &Account) -> io::Result<()> {
        let Some(out) = self.out.as_ref().filter(|out| out.named.is_some()) else { return Ok(()) };
        // A successor is that account already, and may write a file of root's that its group may write.
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let Sink::File(file) = &out.sink else { return Ok(()) };
        let metadata = file.metadata()?;
        if metadata.is_file() && metadata.uid() == 0 {
            fchown(file, Some(account.uid), Some(account.gid))?;
        }
        Ok(())
    }

    /// Starts the thread.
    pub fn start(self, explain: Explain) -> io::Result<Running> {
        let failures = Arc::new(Failures::default());
        let format = self.format;
        let Some(out) = self.out else { return Ok(Running { format, outlet: None, thread: None, failures }) };
        let (outlet, inlet) = sync_channel(SHEETS_WAITING_MAX);
        let counts = Arc::clone(&failures);
        let thread =
            std::thread::Builder::new().name("access-log".into()).spawn(move || run(out, inlet, &counts, explain))?;
        Ok(Running { format, outlet: Some(outlet), thread: Some(thread), failures })
    }
}

impl Running {
    pub fn log_buffer(&self) -> LogBuffer {
        LogBuffer {
            lines: Vec::new(),
            count: 0,
            outlet: self.outlet.clone(),
            dropped: 0,
            second: 0,
            second_text: second_text(0),
            clf_text: clf_text(0),
            format: self.format.clone(),
        }
    }

    /// The counts of what could not be written, which go on counting.
    pub fn failures(&self) -> Arc<Failures> {
        Arc::clone(&self.failures)
    }

    /// Waits until everything handed over is written, or `timeout` is up: a reader that has stopped reading must not
    /// keep the process from ending. The buffers must be gone by then.
    pub fn finish(mut self, timeout: Duration) {
        self.outlet = None;
        let Some(thread) = self.thread.take() else { return };
        let started = Instant::now();
        while !thread.is_finished() && started.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Destination of lines. Whatever happens, the log begins and ends with a whole line.
struct Out {
    sink: Sink,
    /// State of a log with a path: the file is opened anew when it was moved away.
    named: Option<Named>,
    /// The last line is half there, and could not be taken back: the next one must not be glued to it.
    is_torn: bool,
}

/// Receiver of lines.
enum Sink {
    File(File),
    Syslog(Outlet),
}

struct Named {
    path: PathBuf,
    inode: u64,
}

impl Out {
    fn stream(stream: impl AsFd) -> io::Result<Out> {
        let file = stream.as_fd().try_clone_to_owned()?.into();
        Ok(Out { sink: Sink::File(file), named: None, is_torn: false })
    }

    fn syslog(syslog: &propylon_config::Syslog) -> io::Result<Out> {
        Ok(Out { sink: Sink::Syslog(Outlet::open(syslog)?), named: None, is_torn: false })
    }

    fn file(path: &Path) -> io::Result<Out> {
        // To be read as well: whether it ends with a line.
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(FILE_MODE);
        let file = options.clone().read(true).open(path).or_else(|_| options.open(path))?;
        let named = Some(Named { path: path.to_owned(), inode: file.metadata()?.ino() });
        let is_torn = ends_in_mid_line(&file);
        Ok(Out { sink: Sink::File(file), named, is_torn })
    }

    /// The path, or what it is that has none.
    fn name(&self) -> String {
        match (&self.named, &self.sink) {
            (Some(named), _) => named.path.display().to_string(),
            (None, Sink::Syslog(_)) => "syslog".to_owned(),
            (None, Sink::File(_)) => "standard output or standard error".to_owned(),
        }
    }

    /// Writes lines; an error comes with the number of those that are lost, and is met by as many whole ones as there was
    /// room for.
    fn write(&mut self, lines: &Lines) -> Result<(), (u64, io::Error)> {
        let file = match &mut self.sink {
            Sink::Syslog(outlet) => return outlet.write(&lines.bytes),
            Sink::File(file) => file,
        };
        if self.is_torn {
            file.write_all(b"\n").map_err(|error| (lines.count, error))?;
            self.is_torn = false;
        }
        let mut written = 0;
        let mut why = io::Error::from(io::ErrorKind::WriteZero);
        while written < lines.bytes.len() {
            match file.write(&lines.bytes[written..]) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    why = error;
                    break;
                }
            }
        }
        if written == lines.bytes.len() {
            return Ok(());
        }
        let whole = lines.bytes[..written].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.take_back((written - whole) as u64);
        let whole_lines = lines.bytes[..whole].iter().filter(|byte| **byte == b'\n').count() as u64;
        Err((lines.count.saturating_sub(whole_lines), why))
    }

    /// Takes the half of a line back, which is at the end of the file unless another process writes there as well.
    fn take_back(&mut self, half: u64) {
        if half == 0 {
            return;
        }
        let Sink::File(file) = &self.sink else { return };
        let cut = || -> io::Result<()> {
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let length = metadata.len().checked_sub(half).ok_or(io::ErrorKind::UnexpectedEof)?;
            file.set_len(length)
        };
        // A file that shrank by what another has appended meanwhile ends in mid-line then, and the next line is a new one.
        self.is_torn = cut().is_err() || ends_in_mid_line(file);
    }

    /// Opens the file anew if it was moved away (logrotate): the path no longer names what is open. Where that fails, what is
    /// open is written to as before.
    fn reopen_rotated(&mut self) -> Result<Rotation, io::Error> {
        let Some(Named { path, inode }) = &self.named else { return Ok(Rotation::Same) };
        let moved = std::fs::metadata(path).map_or(true, |found| found.ino() != *inode);
        if !moved {
            return Ok(Rotation::Same);
        }
        *self = Out::file(&path.clone())?;
        Ok(Rotation::Anew)
    }

    /// Whether the file has no name any more: nobody will read what is written to it.
    fn is_removed(&self) -> bool {
        let Sink::File(file) = &self.sink else { return false };
        self.named.is_some() && file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rotation {
    Same,
    Anew,
}

/// A log that could not be opened anew, for as long as that lasts.
#[derive(Default)]
struct Astray {
    is_told: bool,
    /// Whether the file that is written to was removed.
    is_lost: bool,
}

impl Astray {
    /// Looks after the log's name, and tells when it is lost and found.
    fn look(&mut self, out: &mut Out, failures: &Failures, explain: Explain) {
        let path = out.named.as_ref().map(|named| named.path.clone()).unwrap_or_default();
        let shown = path.display();
        match out.reopen_rotated() {
            Ok(_) if self.is_told => {
                log::info!("the access log is written to {shown} again");
                *self = Astray::default();
            }
            Ok(_) => {}
            Err(error) => {
                failures.reopens.fetch_add(1, Ordering::Relaxed);
                self.is_lost = out.is_removed();
                let meanwhile = match self.is_lost {
                    true => "the file that is open was removed, and lines are lost",
                    false => "lines go on in the file that was moved away",
                };
                if !self.is_told {
                    let why = explain(&path, &error);
                    log::error!("the access log cannot be opened anew at {shown}: {why}; until it can, {meanwhile}");
                }
                self.is_told = true;
            }
        }
    }
}

/// Whether a file's last byte is no line's end. What cannot be read is taken to be in order.
fn ends_in_mid_line(file: &File) -> bool {
    let length = file.metadata().map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { 0 });
    let mut last = [b'\n'];
    length > 0 && file.read_exact_at(&mut last, length - 1).is_ok() && last != *b"\n"
}

fn run(mut out: Out, inlet: Receiver<Lines>, failures: &Failures, explain: Explain) {
    let mut checked = Instant::now();
    let mut reported = None;
    let mut astray = Astray::default();
    loop {
        let received = inlet.recv_timeout(ROTATION_CHECK);
        if checked.elapsed() >= ROTATION_CHECK {
            astray.look(&mut out, failures, explain);
            checked = Instant::now();
        }
        match received {
            Ok(lines) => {
                let lost = match out.write(&lines) {
                    Ok(()) if astray.is_lost => {
                        failures.note(format!("{}: the file that is open was removed", out.name()));
                        lines.count
                    }
                    Ok(()) => 0,
                    Err((lost, error)) => {
                        failures.writes.fetch_add(1, Ordering::Relaxed);
                        let reason = format!("{}: {error}", out.name());
                        failures.note(reason.clone());
                        if reported.is_none_or(|reported: Instant| reported.elapsed() >= WRITE_ERROR_LOG_INTERVAL) {
                            log::error!("the access log cannot be written: {reason}; lines are lost");
                            reported = Some(Instant::now());
                        }
                        lost
                    }
                };
                failures.lines.fetch_add(lost, Ordering::Relaxed);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{LogFact, LogField, LogFormat};

    use super::*;

    fn record() -> Record<'static> {
        Record {
            client: "[::1]:5000".parse().unwrap(),
            listener: "web",
            host: b"shop.example",
            method: b"GET",
            target: b"/a\"b\\\x1b\xff",
            protocol: "HTTP/1.1",
            status: 200,
            bytes_received: 10,
            bytes_sent: 20,
            heads_sent: 13,
            durations: Durations { first_byte: Some(7), total: 9, ..Durations::default() },
            backend: Some("app"),
            server: Some("127.0.0.1:1"),
            attempts: 1,
            reused: true,
            tls: None,
            fault: None,
            trace: None,
            request_id: None,
            route: None,
            head: None,
        }
    }

    fn log(access: AccessLog) -> Log {
        Log { access, format: LogFormat::Json, fields: Vec::new(), level: propylon_config::Level::Info }
    }

    /// The line that is written of a record in this form.
    fn line(format: LogFormat, fields: &[LogField], record: &Record<'_>) -> String {
        let format = Format::of(format, fields).expect("a form");
        let mut out = Vec::new();
        let time = Time { second: "2026-11-20T22:20:00", clf: "20/Nov/2026:22:20:00 +0000", millis: 7 };
        format.write(&Subject::Request(record), &time, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_written_as_they_were_chosen_and_nothing_ends_a_line_early() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\nReferer: http://b/\"\r\nUser-Agent: curl/8 \xff\r\n\r\n";
        let mut head = propylon_http::h1::RequestHead::default();
        let limits = propylon_http::h1::Limits { head_bytes: 4096, headers: 16 };
        propylon_http::h1::parse_request(text, &limits, &mut head).unwrap();
        let record = Record { head: Some((&head.fields, text)), ..record() };
        let header = |name: &str| LogField::Header(name.into());
        let fact = |name: &str| LogField::Fact(LogFact::ALL.iter().find(|(known, _)| *known == name).unwrap().1);
        let fields = [fact("time"), fact("status"), header("user-agent"), header("x"), fact("reused"), fact("fault")];
        assert_eq!(
            line(LogFormat::Json, &fields, &record),
            "{\"time\":\"2026-11-20T22:20:00.007Z\",\"status\":200,\"header.user-agent\":\"curl/8 \\u00ff\",\
             \"header.x\":null,\"reused\":true,\"fault\":null}"
        );
        let fields = [fact("client.ip"), fact("path"), fact("duration_us.total"), fact("server"), header("x")];
        assert_eq!(
            line(LogFormat::Logfmt, &fields, &record),
            "client.ip=::1 path=\"/a\\\"b\\\\\\u001b\\u00ff\" duration_us.total=9 server=127.0.0.1:1 header.x="
        );
        assert_eq!(
            line(LogFormat::Combined, &[], &record),
            "::1 - - [20/Nov/2026:22:20:00 +0000] \"GET /a\\x22b\\x5C\\x1B\\xFF HTTP/1.1\" 200 7 \
             \"http://b/\\x22\" \"curl/8 \\xFF\""
        );
        let mut text = text.to_vec();
        head.fields.note_user(&mut text, b"ann \"x\"");
        let record = Record { head: Some((&head.fields, &text)), ..self::record() };
        let user = line(LogFormat::Combined, &[], &record);
        assert!(user.starts_with("::1 - ann\\x20\\x22x\\x22 [20/"), "{user}");
        let unread = Record { method: b"", target: b"", protocol: "HTTP/1.1", status: 400, ..self::record() };
        let unread = line(LogFormat::Combined, &[], &unread);
        assert!(unread.ends_with(" +0000] \"-\" 400 7 \"-\" \"-\""), "{unread}");
        let over_h2 = line(LogFormat::Combined, &[], &Record { protocol: "HTTP/2", ..self::record() });
        assert!(over_h2.contains(" HTTP/2.0\" 200 7 "), "{over_h2}");
        assert_eq!(line(LogFormat::Json, &[fact("user")], &record), "{\"user\":\"ann \\\"x\\\"\"}");
        assert_eq!(clf_text(1_795_213_200), "20/Nov/2026:22:20:00 +0000");
    }

    #[test]
    fn lines_are_messages_of_syslog() {
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let address = propylon_config::SyslogAddress::Udp(receiver.local_addr().unwrap());
        let syslog = propylon_config::Syslog { address, facility: 16, app_name: "edge".into() };
        let mut out = Out::syslog(&syslog).unwrap();
        out.write(&Lines { bytes: b"{1}\n{2}\n".into(), count: 2 }).unwrap();
        let mut bytes = [0; 9000];
        for line in ["{1}", "{2}"] {
            let length = receiver.recv(&mut bytes).unwrap();
            let text = std::str::from_utf8(&bytes[..length]).unwrap();
            let parts: Vec<&str> = text.split(' ').collect();
            assert_eq!((parts[0], parts[3], parts[5], parts[6], parts[7]), ("<134>1", "edge", "access", "-", line));
            assert_eq!(parts[4], std::process::id().to_string());
            assert_eq!(parts[1].len(), "2026-11-20T22:20:00.007Z".len());
        }
        // Each line that nobody takes is counted.
        let path = propylon_config::SyslogAddress::Unix("/nonexistent/log".into());
        let mut out = Out::syslog(&propylon_config::Syslog { address: path, ..syslog }).unwrap();
        assert_eq!(out.write(&Lines { bytes: b"{1}\n{2}\n".into(), count: 2 }).unwrap_err().0, 2);
    }

    #[test]
    fn whatever_a_client_sends_a_line_is_one_json_object() {
        let folder = std::env::temp_dir().join(format!("propylon-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("access.log");
        let writer =
            Writer::open(&log(AccessLog::File(path.clone()))).unwrap().start(|_, error| error.to_string()).unwrap();
        let mut log_buffer = writer.log_buffer();
        log_buffer.write(&record());
        log_buffer.hand_over();
        drop(log_buffer);
        writer.finish(Duration::from_secs(5));
        let written = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(written.matches('\n').count(), 1);
        let line: serde_json::Value = serde_json::from_str(&written).unwrap();
        assert_eq!(line["path"], "/a\"b\\\u{1b}\u{ff}");
        assert_eq!(line["duration_us"]["total"], 9);
        assert_eq!(line["tls"], serde_json::Value::Null);
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
    }

    /// A file of which nothing can be written beyond so many bytes, as on a full disk.
    fn full_at(name: &str, bytes: usize) -> (PathBuf, Out) {
        let folder = std::env::temp_dir().join(format!("propylon-log-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("access.log");
        std::fs::write(&path, vec![b'x'; bytes]).unwrap();
        let out = Out::file(&path).unwrap();
        (path, out)
    }

    #[test]
    fn a_line_is_never_glued_to_the_half_of_another() {
        let (path, mut out) = full_at("torn", 3);
        let lines = |text: &str| Lines { bytes: text.into(), count: text.lines().count() as u64 };
        out.write(&lines("{1}\n{2}\n")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "xxx\n{1}\n{2}\n", "what another process left in mid-line");
        // As after a write of which the disk took only the first half of the second line.
        let Sink::File(file) = &mut out.sink else { panic!("a file") };
        file.write_all(b"{3}\n{4").unwrap();
        out.take_back(2);
        out.write(&lines("{5}\n")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "xxx\n{1}\n{2}\n{3}\n{5}\n");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_counted_in_lines() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut out = Out { sink: Sink::File(full), named: None, is_torn: false };
        let lost = |written: Result<(), (u64, io::Error)>| written.err().map(|(lost, error)| (lost, error.kind()));
        let full = io::ErrorKind::StorageFull;
        assert_eq!(lost(out.write(&Lines { bytes: b"{1}\n{2}\n".into(), count: 2 })), Some((2, full)));
        assert_eq!(lost(out.write(&Lines { bytes: b"{3}\n".into(), count: 1 })), Some((1, full)));
        assert!(!out.is_torn, "nothing of it is there");
    }

    #[test]
    fn a_writer_that_is_behind_costs_lines_and_never_time() {
        let (outlet, _inlet) = sync_channel(1);
        let mut log_buffer = LogBuffer {
            lines: Vec::new(),
            count: 0,
            outlet: Some(outlet),
            dropped: 0,
            second: 0,
            second_text: second_text(0),
            clf_text: clf_text(0),
            format: None,
        };
        for _ in 0..3 {
            log_buffer.write(&record());
            log_buffer.write(&record());
            log_buffer.hand_over();
        }
        assert_eq!(log_buffer.take_dropped(), 4);
    }
}
