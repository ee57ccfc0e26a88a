//! Collector of spans, compiled: its address, how it is trusted, and the resource that it is told beside them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use propylon_config::{CollectorEndpoint, Config, Resolver, Tracing, Trust};
use propylon_tls::{Finding, Severity, UpstreamProfile};

/// A file of header fields may be this long.
const HEADERS_BYTES_MAX: u64 = 64 * 1024;
/// Fields that requests to the collector have already.
const RESERVED: &[&str] =
    &["connection", "content-encoding", "content-length", "content-type", "host", "te", "transfer-encoding", "upgrade"];

/// One `[tracing]`, with what its files hold.
pub struct Target {
    pub endpoint: CollectorEndpoint,
    /// TLS profile for the collector; `None` for plaintext.
    pub tls: Option<UpstreamProfile>,
    pub headers: HeaderMap,
    /// Attributes by which the process describes itself.
    pub resource: Vec<(String, String)>,
    pub timeout: Duration,
    pub resolver: Resolver,
}

impl Target {
    /// The findings beside it are warnings.
    pub fn load(tracing: &Tracing, resolver: &Resolver) -> Result<(Target, Vec<Finding>), Vec<Finding>> {
        let (tls, mut findings, mut failed) = match &tracing.tls {
            None => (None, Vec::new(), false),
            Some(tls) => {
                let place = (&tracing.endpoint.address, tracing.at);
                match UpstreamProfile::load_for(&[place], tls, &[b"http/1.1"]) {
                    Ok((profile, warnings)) => (Some(profile), warnings, false),
                    Err(errors) => (None, errors, true),
                }
            }
        };
        let mut headers = HeaderMap::new();
        if let Some(file) = &tracing.headers {
            match headers_of(file) {
                Ok(read) => headers = read,
                Err(finding) => {
                    failed = true;
                    findings.push(finding);
                }
            }
        }
        if failed {
            return Err(findings);
        }
        let (endpoint, timeout) = (tracing.endpoint.clone(), tracing.timeout);
        let (resource, resolver) = (resource(tracing), resolver.clone());
        Ok((Target { endpoint, tls, headers, resource, timeout, resolver }, findings))
    }

    /// Target of the next configuration: a new one, or the `known` one of an earlier configuration. Its files are read
    /// again where `reads_again`. `None` without traces, or with a finding.
    pub fn reload(
        config: &Config,
        known: Option<(&Config, &Arc<Target>)>,
        reads_again: bool,
        findings: &mut Vec<Finding>,
    ) -> Option<Arc<Target>> {
        let tracing = config.tracing.as_ref()?;
        let is_same = |known: &Config| {
            known.tracing.as_ref().is_some_and(|known| known.says_the_same(tracing))
                && known.process.resolver == config.process.resolver
        };
        let known = known.filter(|(known, _)| is_same(known)).map(|(_, target)| target);
        if let Some(target) = known.filter(|_| !reads_again) {
            return Some(Arc::clone(target));
        }
        match Target::load(tracing, &config.process.resolver) {
            Err(errors) => {
                findings.extend(errors);
                None
            }
            Ok((target, warnings)) => {
                findings.extend(warnings);
                Some(match known {
                    Some(known) if target.holds_the_same(known) => Arc::clone(known),
                    _ => Arc::new(target),
                })
            }
        }
    }

    /// Whether the files hold what they held; both are of the same `[tracing]`.
    fn holds_the_same(&self, other: &Target) -> bool {
        let tls = match (&self.tls, &other.tls) {
            (Some(one), Some(other)) => one.same_as(other),
            (one, other) => one.is_none() == other.is_none(),
        };
        tls && self.headers == other.headers
    }
}

/// The process's own attributes; those of the configuration go before the ones that are found out.
fn resource(tracing: &Tracing) -> Vec<(String, String)> {
    let mut resource = vec![("service.name".to_string(), tracing.service_name.clone())];
    resource.extend(tracing.attributes.iter().cloned());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    for (key, value) in [("service.version", env!("CARGO_PKG_VERSION")), ("host.name", host.trim())] {
        if !value.is_empty() && resource.iter().all(|(known, _)| known != key) {
            resource.push((key.into(), value.into()));
        }
    }
    resource
}

fn headers_of(file: &Trust) -> Result<HeaderMap, Finding> {
    let path = &file.path;
    let finding = |what: &str, fix: String, error| {
        let what = format!("{}: {what}", path.display());
        Finding { severity: Severity::Error, at: file.at, path: path.clone(), what, fix, error }
    };
    let text = read(path).map_err(|error| {
        finding(&error.to_string(), "check the path and its permissions".into(), Some(error.kind()))
    })?;
    parse_headers(&text).map_err(|(what, fix)| finding(&what, fix, None))
}

/// Text of a file, and no more of one that is too long than shows that it is.
fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(HEADERS_BYTES_MAX + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Lines `Name: value`; empty ones and those that begin with `#` are passed over. What they hold is never told.
fn parse_headers(text: &str) -> Result<HeaderMap, (String, String)> {
    if text.len() as u64 > HEADERS_BYTES_MAX {
        return Err(("the file is too long".into(), format!("use at most {HEADERS_BYTES_MAX} bytes")));
    }
    let mut headers = HeaderMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| {
            let fix = "write a field on each line, as in \"Authorization: Bearer ...\"".to_string();
            (format!("line {} {what}", index + 1), fix)
        };
        let (name, value) = line.split_once(':').ok_or_else(|| wrong("has no colon"))?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("has no name of a field"))?;
        if RESERVED.contains(&name.as_str()) {
            return Err(wrong("has a field that is not yours to set"));
        }
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| wrong("has a value that no field can have"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_line_by_line() {
        let headers = parse_headers("# a token\n\nAuthorization: Bearer a:b \r\nx-tenant:7\n").expect("good lines");
        assert_eq!(
            (&headers["authorization"], &headers["x-tenant"]),
            (&"Bearer a:b".parse().unwrap(), &"7".parse().unwrap())
        );
        assert!(headers.values().all(HeaderValue::is_sensitive));
    }

    #[test]
    fn what_is_wrong_is_told_by_line_and_without_the_secret() {
        for (text, expected) in [
            ("a: b\nsecret", "line 2 has no colon"),
            ("se cret: b", "line 1 has no name of a field"),
            ("a: b\u{7}secret", "line 1 has a value that no field can have"),
            ("\nHost: secret", "line 2 has a field that is not yours to set"),
        ] {
            let (what, fix) = parse_headers(text).expect_err(text);
            assert_eq!(what, expected);
            assert!(!fix.contains("secret"));
        }
        assert!(parse_headers(&"a: b\n".repeat(20_000)).expect_err("too much").0.contains("too long"));
    }
}
