//! `[process]`, `[admin]` and `[log]`.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::health::resolver;
use super::values::{DAY, HOUR, close, file, seconds};
use crate::address;
use crate::describe::Form;
use crate::model::{
    AccessLog, Admin, AdminBind, Batch, Bind, BodyBuffers, HandshakeLimits, Level, Log, LogFormat, MemoryLimit,
    Process, Resolver, Sandbox, StateFolder, Trust, UpgradeSocket, Workers,
};
use crate::report::Report;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, integer, mismatch, number_of, string};
use crate::wording::shown;

const WORKERS: RangeInclusive<i128> = 1..=1024;
const CONNECTIONS: RangeInclusive<i128> = 1..=100_000_000;
const PORTS: RangeInclusive<i128> = 1..=65_535;
const HANDSHAKES: RangeInclusive<i128> = 1..=1_000_000;
/// Below it there is hardly room for the process itself.
const MEMORY_BYTES: RangeInclusive<u64> = 32 << 20..=1 << 50;
/// From nothing to 16 TiB.
const BUFFER_BYTES: RangeInclusive<u64> = 0..=1 << 44;
const QUEUE_WAIT_MIN: Duration = Duration::from_millis(10);
const USER_BYTES_MAX: usize = 32;
/// Limit of an address in Linux, without the zero at its end (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The same, less what is put behind it while the socket is made.
const UPGRADE_SOCKET_PATH_BYTES_MAX: usize = SOCKET_PATH_BYTES_MAX - 11;
pub(crate) const LEVELS: [(&str, Level); 4] =
    [("error", Level::Error), ("warn", Level::Warn), ("info", Level::Info), ("debug", Level::Debug)];

pub(crate) fn process(section: Option<Section<'_, '_>>, base: &Path) -> Process {
    let mut process = Process {
        workers: Workers::Auto,
        user: None,
        drain_timeout: seconds(30),
        dispatch: true,
        max_connections: None,
        connections_per_source: None,
        memory_limit: None,
        share_address: false,
        batch: Batch::Auto,
        handshakes: HandshakeLimits::default(),
        watch_config: false,
        state: None,
        immutable: false,
        upgrade_socket: None,
        resolver: Resolver::default(),
        sandbox: Sandbox::default(),
        buffers: BodyBuffers::default(),
        allow_world_readable_keys: false,
    };
    let Some(mut section) = section else {
        return process;
    };
    if let Some(workers) = workers(&mut section) {
        process.workers = workers;
    }
    process.user = section.string("user").and_then(|found| user(&section, found));
    // Zero is a choice here: not to wait at all.
    process.drain_timeout = section.duration_or("drain_timeout", Duration::ZERO..=DAY, process.drain_timeout);
    process.dispatch = section.boolean_or("dispatch", true);
    process.max_connections = section.integer("max_connections", CONNECTIONS).map(|found| found.value);
    process.connections_per_source = section.integer("connections_per_source", CONNECTIONS).map(|found| found.value);
    process.memory_limit = memory_limit(&mut section);
    process.share_address = section.boolean_or("share_address", false);
    process.batch = section.choice_or("batch", &[("auto", Batch::Auto), ("off", Batch::Off)], process.batch);
    process.handshakes = handshakes(section.table("handshakes"));
    process.watch_config = section.boolean_or("watch_config", false);
    process.immutable = section.boolean_or("immutable", false);
    process.allow_world_readable_keys = section.boolean_or("allow_world_readable_keys", false);
    process.state = section.string("state").and_then(|found| {
        let (report, at) = (section.report, section.report.at(found.span));
        file(report, "state", found, base).map(|path| StateFolder { path, at })
    });
    if process.immutable
        && let Some(state) = &process.state
    {
        let what = "`state` has no use with immutable = true: nothing will be written to it";
        section.report.warning_at(state.at, what, "remove one of the two");
    }
    process.upgrade_socket = section.string("upgrade_socket").and_then(|found| upgrade_socket(&section, found, base));
    process.resolver = resolver(&mut section);
    process.sandbox = sandbox(&mut section, base);
    process.buffers = buffers(&mut section, base);
    section.close();
    process
}

fn buffers(section: &mut Section<'_, '_>, base: &Path) -> BodyBuffers {
    let (report, default) = (section.report, BodyBuffers::default());
    let folder = section.string("temp_dir").and_then(|found| {
        let at = report.at(found.span);
        file(report, "temp_dir", found, base).map(|path| StateFolder { path, at })
    });
    let memory = section.size_or("buffer_memory", BUFFER_BYTES, default.memory);
    let disk = section.size_or("buffer_disk", BUFFER_BYTES, default.disk);
    if folder.is_none()
        && let Some(entry) = section.entry("buffer_disk")
    {
        let what = "`buffer_disk` has no use without `temp_dir`";
        report.warning(entry.key_span, what, "add temp_dir = \"/var/lib/propylon/bodies\", or remove it");
    }
    BodyBuffers { memory, disk, folder }
}

fn sandbox(section: &mut Section<'_, '_>, base: &Path) -> Sandbox {
    let report = section.report;
    let mut sandbox = Sandbox::default();
    sandbox.on = section.choice_or("sandbox", &[("on", true), ("off", false)], sandbox.on);
    let paths = section.list("sandbox_paths", &[Form::String]);
    for found in paths.iter().flat_map(|list| list.value).filter_map(|node| string(report, "sandbox_paths", node)) {
        let at = report.at(found.span);
        sandbox.paths.extend(file(report, "sandbox_paths", found, base).map(|path| Trust { path, at }));
    }
    let ports = section.list("sandbox_ports", &[Form::Integer(PORTS), Form::String]);
    sandbox.ports = ports.map(|list| list.value.iter().filter_map(|node| ports_of(report, node)).collect());
    for key in ["sandbox_paths", "sandbox_ports"] {
        if !sandbox.on
            && let Some(entry) = section.entry(key)
        {
            let what = format!("`{key}` has no use with sandbox = \"off\"");
            report.warning(entry.key_span, what, "remove one of the two");
        }
    }
    sandbox
}

/// `443`, or `"8000-8999"`.
fn ports_of(report: &Report<'_>, node: &Node<'_>) -> Option<RangeInclusive<u16>> {
    if let Value::Integer(_) = node.value {
        let port: Found<u16> = integer(report, "sandbox_ports", node, PORTS)?;
        return Some(port.value..=port.value);
    }
    let found = string(report, "sandbox_ports", node)?;
    let (first, last) = found.value.split_once('-').unwrap_or((found.value, found.value));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first), Ok(last)) if (1..=last).contains(&first) => Some(first..=last),
        _ => {
            let what = format!("`sandbox_ports`: \"{}\" is no range of ports", shown(found.value));
            report.error(found.span, what, "write 443 or \"8000-8999\"");
            None
        }
    }
}

fn upgrade_socket(section: &Section<'_, '_>, found: Found<&str>, base: &Path) -> Option<UpgradeSocket> {
    let (report, at, span) = (section.report, section.report.at(found.span), found.span);
    let path = file(report, "upgrade_socket", found, base)?;
    if path.as_os_str().len() > UPGRADE_SOCKET_PATH_BYTES_MAX {
        let what = format!("the path of `upgrade_socket` has at most {UPGRADE_SOCKET_PATH_BYTES_MAX} bytes");
        report.error(span, what, "choose a shorter one, such as \"/run/propylon/upgrade.sock\"");
        return None;
    }
    Some(UpgradeSocket { path, at })
}

fn memory_limit(section: &mut Section<'_, '_>) -> Option<MemoryLimit> {
    let Entry { node, .. } = section.forms("memory_limit", &[Form::Words(&["auto"]), Form::Size(MEMORY_BYTES)])?;
    match &node.value {
        Value::String(text) if text == "auto" => Some(MemoryLimit::Auto),
        Value::String(text) if !text.starts_with(|first: char| first.is_ascii_digit()) => {
            let what = format!("`memory_limit`: \"{}\" is not a size", shown(text));
            section.report.error(node.span, what, "use \"auto\", or a size such as \"2GiB\"");
            None
        }
        _ => section.size("memory_limit", MEMORY_BYTES).map(|found| MemoryLimit::Bytes(found.value)),
    }
}

fn handshakes(mut section: Option<Section<'_, '_>>) -> HandshakeLimits {
    let mut limits = HandshakeLimits::default();
    let Some(table) = &mut section else { return limits };
    limits.in_progress = table.integer_or("in_progress", HANDSHAKES, limits.in_progress);
    limits.per_source = table.integer("per_source", HANDSHAKES).map(|found| found.value);
    limits.queue_wait = table.duration_or("queue_wait", QUEUE_WAIT_MIN..=HOUR, limits.queue_wait);
    close(section);
    limits
}

pub(crate) fn workers(section: &mut Section<'_, '_>) -> Option<Workers> {
    section.default_is("workers", || "auto".into());
    let Entry { node, .. } = section.forms("workers", &[Form::Words(&["auto"]), Form::Integer(WORKERS)])?;
    let report = section.report;
    match &node.value {
        Value::String(text) if text == "auto" => Some(Workers::Auto),
        _ if number_of(report, node).is_some() => {
            let count: Found<u16> = integer(report, "workers", node, WORKERS)?;
            NonZeroU16::new(count.value).map(Workers::Count)
        }
        Value::String(text) => {
            let fix = match text.parse::<u16>() {
                Ok(number) => format!("write {number} without quotes"),
                Err(_) => "use \"auto\" or a number from 1 to 1024".to_string(),
            };
            report.error(node.span, format!("`workers` cannot be \"{}\"", shown(text)), fix);
            None
        }
        _ => mismatch(report, "workers", "\"auto\" or a number from 1 to 1024", node),
    }
}

pub(crate) fn user(section: &Section<'_, '_>, found: Found<&str>) -> Option<String> {
    let name = found.value;
    let fix = "write the name of an account, such as \"propylon\"";
    if name.is_empty() {
        section.report.error(found.span, "`user` is empty", fix);
        return None;
    }
    let fits = name.len() <= USER_BYTES_MAX && !name.starts_with('-');
    if !fits || name.chars().any(|character| character.is_control() || " :/\\\"'".contains(character)) {
        section.report.error(found.span, format!("\"{}\" cannot be the name of an account", shown(name)), fix);
        return None;
    }
    Some(name.to_string())
}

pub(crate) fn admin(section: Option<Section<'_, '_>>, base: &Path) -> Option<Admin> {
    let mut section = section?;
    let report = section.report;
    let bind = admin_bind(&mut section);
    let token_file = section.string("token_file").and_then(|found| {
        let at = report.at(found.span);
        file(report, "token_file", found, base).map(|path| Trust { path, at })
    });
    section.close();
    let found = bind?;
    let at = report.at(found.span);
    let bind = match found.value.strip_prefix("unix:") {
        Some(path) => unix(report, Found { value: path, span: found.span }, base)?,
        None => AdminBind::Tcp(admin_address(report, found)?),
    };
    if bind.address().is_some_and(|address| address.ip().is_unspecified()) {
        let what = "the admin address is open to every machine that reaches this one";
        report.warning_at(
            at,
            what,
            "bind 127.0.0.1 or a Unix socket, or the one address of this machine that is meant",
        );
    }
    Some(Admin { bind, token_file, at })
}

/// Reads `[admin]` of a process whose admin API is read only, and so only ever listens on TCP.
pub(crate) fn reading_admin(section: Option<Section<'_, '_>>) -> Option<Bind> {
    let mut section = section?;
    let report = section.report;
    let bind = admin_bind(&mut section);
    section.close();
    let found = bind?;
    Some(Bind { address: admin_address(report, found)?, at: report.at(found.span) })
}

fn admin_bind<'r>(section: &mut Section<'r, '_>) -> Option<Found<&'r str>> {
    match section.forms("bind", &[Form::String]).map(|entry| &entry.node) {
        None => {
            section.missing("bind", "add one, such as bind = \"127.0.0.1:9900\"");
            None
        }
        Some(node) if matches!(node.value, Value::Array(_)) => {
            section.report.error(node.span, "the admin API listens on one address", "write it without brackets");
            None
        }
        Some(_) => section.string("bind"),
    }
}

/// Absent where the address is wrong, so that nobody is told of a clash with a stand-in.
fn admin_address(report: &Report<'_>, found: Found<&str>) -> Option<SocketAddr> {
    address::bind(found.value).map_err(|(what, fix)| report.error(found.span, what, fix)).ok()
}

fn unix(report: &Report<'_>, found: Found<&str>, base: &Path) -> Option<AdminBind> {
    let span = found.span;
    let path = file(report, "bind", found, base)?;
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let what = format!("the path of a Unix socket has at most {SOCKET_PATH_BYTES_MAX} bytes");
        report.error(span, what, "choose a shorter one, such as \"unix:/run/propylon.sock\"");
        return None;
    }
    Some(AdminBind::Unix(path))
}

pub(crate) fn log(section: Option<Section<'_, '_>>, base: &Path) -> Log {
    let mut log = Log { access: AccessLog::Off, format: LogFormat::Json, fields: Vec::new(), level: Level::Info };
    let Some(mut section) = section else {
        return log;
    };
    section.default_is("access", || "off".into());
    if let Some(entry) = section.forms("access", &[Form::String, Form::Table]) {
        let access = match &entry.node.value {
            Value::String(text) => access(&section, Found { value: text.as_ref(), span: entry.node.span }, base),
            Value::Table(_) => Section::of(section.report, &entry.node, "`access`", entry.node.span)
                .and_then(|section| super::log::syslog(section, base)),
            _ => mismatch(section.report, "access", "a string or { syslog = \"udp:HOST:PORT\" }", &entry.node),
        };
        log.access = access.unwrap_or(log.access);
    }
    (log.format, log.fields) = super::log::lines(&mut section);
    log.level = section.choice_or("level", &LEVELS, log.level);
    section.close();
    log
}

fn access(section: &Section<'_, '_>, found: Found<&str>, base: &Path) -> Option<AccessLog> {
    const WORDS: [&str; 3] = ["off", "stdout", "stderr"];
    let report = section.report;
    match found.value {
        "off" => Some(AccessLog::Off),
        "stdout" => Some(AccessLog::Stdout),
        "stderr" => Some(AccessLog::Stderr),
        path if path.ends_with('/') => {
            report.error(found.span, "`access` is a folder", "write the path of a file in it");
            None
        }
        // A bare word is more likely a slip than a file without an extension in the folder of the configuration.
        word if !word.is_empty() && !word.contains(['/', '.']) => {
            let fix = match report.closest(word, WORDS) {
                Some(close) => format!("did you mean \"{close}\"?"),
                None => format!("use \"off\", \"stdout\", \"stderr\" or a path such as \"./{}\"", shown(word)),
            };
            report.error(found.span, format!("`access` cannot be \"{}\"", shown(word)), fix);
            None
        }
        _ => file(report, "access", found, base).map(AccessLog::File),
    }
}
