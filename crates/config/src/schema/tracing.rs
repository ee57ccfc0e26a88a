//! `[tracing]`

use std::path::Path;
use std::time::Duration;

use super::url::{UrlKey, web_address};
use super::values::{file, seconds, up_to};
use crate::describe::Form;
use crate::model::{BackendTls, CollectorEndpoint, SampleRate, TraceTrust, Tracing, Trust, WebAddress};
use crate::report::Report;
use crate::tree::{Entry, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::shown;

const SAMPLE: SampleRate = SampleRate(10_000);
const SERVICE_NAME: &str = "propylon";
const SPANS_PER_SECOND: u32 = 1000;
const TIMEOUT: Duration = seconds(10);
const TIMEOUT_MAX: Duration = seconds(60);
/// Path at which collectors take traces by OTLP/HTTP, unless the URL says otherwise.
const TRACES_PATH: &str = "/v1/traces";
const NAME_BYTES_MAX: usize = 256;
const ATTRIBUTES_MAX: usize = 32;
const ENDPOINT: UrlKey = UrlKey {
    key: "endpoint",
    fix: "write the URL of a collector, such as \"http://127.0.0.1:4318\"",
    elsewhere: "credentials belong into the file that `headers` names",
};

pub(crate) fn tracing(section: Option<Section<'_, '_>>, base: &Path) -> Option<Tracing> {
    let mut section = section?;
    let report = section.report;
    let at = report.at(section.span);
    section.require("endpoint", ENDPOINT.fix);
    let endpoint = section.string("endpoint").and_then(|found| endpoint(report, found));
    let tls = tls(&mut section, base, endpoint.as_ref());
    let headers = section.string("headers").and_then(|found| {
        let path = file(report, "headers", found, base)?;
        Some(Trust { path, at: report.at(found.span) })
    });
    let sample = sample(&mut section).unwrap_or(SAMPLE);
    let trusts = [("parent", TraceTrust::Parent), ("never", TraceTrust::Never)];
    let trust = section.choice_or("trust", &trusts, TraceTrust::Parent);
    let spans_per_second = section.integer_or("spans_per_second", 1..=1_000_000, SPANS_PER_SECOND);
    section.default_is("service_name", || SERVICE_NAME.into());
    let service_name = section.string("service_name").and_then(|found| text(report, "service_name", found));
    let service_name = service_name.unwrap_or_else(|| SERVICE_NAME.into());
    let attributes = attributes(&mut section);
    let timeout = section.duration_or("timeout", up_to(TIMEOUT_MAX), TIMEOUT);
    section.close();
    let (endpoint, secure) = endpoint?;
    let tls = secure.then_some(tls);
    Some(Tracing { endpoint, tls, headers, sample, trust, spans_per_second, service_name, attributes, timeout, at })
}

/// The URL's endpoint, and whether it is one of https.
fn endpoint(report: &Report<'_>, found: Found<&str>) -> Option<(CollectorEndpoint, bool)> {
    let WebAddress { url, is_https, address, authority, path, .. } = web_address(report, ENDPOINT, found)?;
    let path = if path == "/" { TRACES_PATH.to_string() } else { path };
    Some((CollectorEndpoint { url, address, authority, path }, is_https))
}

/// As of a backend's servers, with their defaults.
fn tls(section: &mut Section<'_, '_>, base: &Path, endpoint: Option<&(CollectorEndpoint, bool)>) -> BackendTls {
    let report = section.report;
    let ca = section.forms("ca", &[Form::String]).and_then(|entry| {
        if endpoint.is_some_and(|(_, secure)| !secure) {
            report.error(entry.key_span, "`ca` has no effect with http", "write https in `endpoint`, or remove it");
        }
        let found = string(report, "ca", &entry.node)?;
        let path = file(report, "ca", found, base)?;
        Some(Trust { path, at: report.at(found.span) })
    });
    BackendTls::verified_by(ca, report.at(section.span))
}

fn sample(section: &mut Section<'_, '_>) -> Option<SampleRate> {
    let report = section.report;
    section.default_is("sample", || (f64::from(SAMPLE.0) / f64::from(SampleRate::ALL)).into());
    let Entry { node, .. } = section.forms("sample", &[Form::Number(0.0..=1.0)])?;
    let number = match &node.value {
        Value::Integer(number) => *number as f64,
        Value::Float => report.written(node.span).replace('_', "").parse().unwrap_or(f64::NAN),
        Value::String(text) if report.is_substituted(node.span) => text.parse().unwrap_or(f64::NAN),
        _ => return mismatch(report, "sample", "a number such as 0.01", node),
    };
    let millionths = (number * f64::from(SampleRate::ALL)).round();
    if !(0.0..=1.0).contains(&number) || (number > 0.0 && millionths == 0.0) {
        let fix = "write 0.01 for one trace in a hundred, 1 for all of them; the least is 0.000001";
        report.error(node.span, "`sample` is not between 0 and 1", fix);
        return None;
    }
    Some(SampleRate(millionths as u32))
}

fn text(report: &Report<'_>, key: &str, found: Found<&str>) -> Option<String> {
    let text = found.value;
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
        let what = format!("`{key}` cannot be \"{}\"", shown(text));
        report.error(found.span, what, format!("write 1 to {NAME_BYTES_MAX} bytes without control characters"));
        return None;
    }
    Some(text.to_string())
}

fn attributes(section: &mut Section<'_, '_>) -> Vec<(String, String)> {
    let report = section.report;
    let Some(entry) = section.forms("attributes", &[Form::Strings]) else { return Vec::new() };
    let example = "a table such as { \"deployment.environment.name\" = \"production\" }";
    let Value::Table(entries) = &entry.node.value else {
        mismatch::<()>(report, "attributes", example, &entry.node);
        return Vec::new();
    };
    if entries.len() > ATTRIBUTES_MAX {
        let fix = format!("use at most {ATTRIBUTES_MAX}");
        report.error(entry.key_span, "`attributes` has too many entries", fix);
        return Vec::new();
    }
    entries.iter().filter_map(|entry| attribute(report, entry)).collect()
}

fn attribute(report: &Report<'_>, entry: &Entry<'_>) -> Option<(String, String)> {
    let key: &str = &entry.key;
    if key == "service.name" {
        report.error(entry.key_span, "`service.name` has a key of its own", "write it as `service_name`");
        return None;
    }
    let name = text(report, "attributes", Found { value: key, span: entry.key_span })?;
    let value = string(report, "attributes", &entry.node)?;
    Some((name, text(report, key, value)?))
}
