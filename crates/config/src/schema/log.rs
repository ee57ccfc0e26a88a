//! `[log]`: where the lines of the access log go, and what is in them.

use std::path::Path;

use crate::address;
use crate::describe::Form;
use crate::model::{AccessLog, FACILITIES, LogFact, LogField, LogFormat, Syslog, SyslogAddress};
use crate::report::Report;
use crate::tree::Value;
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::shown;

/// Number of fields of a line at most.
const FIELDS_MAX: usize = 64;
const APP_NAME: &str = "propylon";
/// Limit of RFC 5424 §6.
const APP_NAME_BYTES_MAX: usize = 48;
/// Longest path of a Unix socket, without the zero behind it.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Fields of requests that let their reader in.
const SECRETS: [&str; 5] = ["authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"];

/// Reads `access` as a table.
pub(crate) fn syslog(mut section: Section<'_, '_>, base: &Path) -> Option<AccessLog> {
    let report = section.report;
    let address = section.string("syslog");
    let names: Vec<_> = FACILITIES.iter().zip(0_u8..).map(|(name, number)| (*name, number)).collect();
    let facility = section.choice_or("facility", &names, 16);
    section.default_is("app_name", || APP_NAME.into());
    let app_name = section.string("app_name").map(|found| {
        let is_name = |byte: u8| byte.is_ascii_graphic();
        if found.value.is_empty() || found.value.len() > APP_NAME_BYTES_MAX || !found.value.bytes().all(is_name) {
            let what = format!("\"{}\" cannot be the name of an application", shown(found.value));
            report.error(found.span, what, format!("use 1 to {APP_NAME_BYTES_MAX} visible ASCII characters"));
        }
        found.value.to_string()
    });
    let span = section.span;
    let is_known = !section.close();
    if address.is_none() && is_known && report.is_whole() {
        report.error(
            span,
            "`access` has no `syslog`",
            "write { syslog = \"udp:127.0.0.1:514\" }, or a path as a string",
        );
    }
    let address = address.and_then(|found| syslog_address(report, found, base));
    let app_name = app_name.unwrap_or_else(|| APP_NAME.to_string());
    Some(AccessLog::Syslog(Syslog { address: address?, facility, app_name }))
}

fn syslog_address(report: &Report<'_>, found: Found<&str>, base: &Path) -> Option<SyslogAddress> {
    if let Some(path) = found.value.strip_prefix("unix:") {
        let path = base.join(path);
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX || found.value == "unix:" {
            let what = format!("the path of a Unix socket has 1 to {SOCKET_PATH_BYTES_MAX} bytes");
            report.error(found.span, what, "write a path such as \"unix:/dev/log\"");
        }
        return Some(SyslogAddress::Unix(path));
    }
    let address = found.value.strip_prefix("udp:").and_then(|address| address::bind(address).ok());
    if address.is_none_or(|address| address.port() == 0) {
        let what = format!("\"{}\" is no receiver of syslog messages", shown(found.value));
        report.error(found.span, what, "write \"udp:ADDRESS:PORT\", as in \"udp:127.0.0.1:514\", or \"unix:/dev/log\"");
        return None;
    }
    address.map(SyslogAddress::Udp)
}

/// Reads the form and the fields of lines.
pub(crate) fn lines(section: &mut Section<'_, '_>) -> (LogFormat, Vec<LogField>) {
    let report = section.report;
    let formats = [("json", LogFormat::Json), ("logfmt", LogFormat::Logfmt), ("combined", LogFormat::Combined)];
    let format = section.choice_or("format", &formats, LogFormat::Json);
    let Some(entry) = section.forms("fields", &[Form::List(&[Form::String])]) else { return (format, Vec::new()) };
    let Value::Array(items) = &entry.node.value else {
        mismatch::<()>(report, "fields", "an array such as [\"time\", \"status\"]", &entry.node);
        return (format, Vec::new());
    };
    if format == LogFormat::Combined {
        report.error(entry.key_span, "the fields of the Combined Log Format are given", "remove `fields`");
    }
    if items.is_empty() || items.len() > FIELDS_MAX {
        report.error(entry.node.span, format!("`fields` names 1 to {FIELDS_MAX} fields"), "name some, or remove it");
    }
    let mut fields: Vec<LogField> = Vec::new();
    for item in items {
        let Some(found) = string(report, "fields", item) else { continue };
        let Some(field) = field(report, found) else { continue };
        if fields.contains(&field) {
            report.error(found.span, format!("`fields` has \"{}\" twice", shown(found.value)), "remove one of the two");
        }
        fields.push(field);
    }
    (format, fields)
}

fn field(report: &Report<'_>, found: Found<&str>) -> Option<LogField> {
    if let Some(name) = found.value.strip_prefix("header.") {
        let name = name.to_ascii_lowercase();
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            let what = format!("\"{}\" is no field of requests", shown(found.value));
            report.error(found.span, what, "write it as in \"header.user-agent\"");
            return None;
        }
        if SECRETS.contains(&name.as_str()) {
            let what = format!("{name} lets whoever reads it in: it is not written to logs");
            report.error(found.span, what, "log who it is by another field");
            return None;
        }
        return Some(LogField::Header(name));
    }
    if let Some((_, fact)) = LogFact::ALL.iter().find(|(name, _)| *name == found.value) {
        return Some(LogField::Fact(*fact));
    }
    let names = LogFact::ALL.iter().map(|(name, _)| *name);
    let fix = match report.closest(found.value, names) {
        Some(close) => format!("did you mean \"{close}\"?"),
        None => "see \"The access log\" in the manual for the names; a request's field is \"header.NAME\"".to_string(),
    };
    report.error(found.span, format!("no field of the access log is \"{}\"", shown(found.value)), fix);
    None
}
