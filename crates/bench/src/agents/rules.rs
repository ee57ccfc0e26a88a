//! Limits that an agent sets to coordinators: load is an attack on anybody who did not ask for it.

use super::message::Job;
use crate::failure::{Failure, Outcome};
use crate::load::Until;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Request heads and bodies that an agent makes; both are kept in memory once.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

pub struct Rules {
    pub targets: Targets,
    /// Longest time of one job, its warm-up included.
    pub duration_max: Duration,
    pub connections_max: usize,
    /// Requests per second. Present: a job without a rate, which has no such limit of its own, is refused too.
    pub rate_max: Option<f64>,
}

pub enum Targets {
    Any,
    Only(Vec<Pattern>),
}

/// `HOST`, `HOST:PORT`, `*.DOMAIN`, `*.DOMAIN:PORT`; an IPv6 address stands in brackets.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    host: Host,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
enum Host {
    Address(IpAddr),
    Name(String),
    Below(String),
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = port.map(|port| port.parse().map_err(|_| format!("\"{port}\" is not a port"))).transpose()?;
        let host = match host.strip_prefix("*.") {
            Some(domain) if !domain.is_empty() => Host::Below(domain.to_ascii_lowercase()),
            _ if host.is_empty() || host.contains('*') => return Err("a host, HOST:PORT or *.DOMAIN".to_owned()),
            _ => Host::of(host),
        };
        Ok(Self { host, port })
    }
}

impl Host {
    fn of(text: &str) -> Self {
        let bare = bare_host(text);
        bare.parse().map_or_else(|_| Self::Name(bare.to_ascii_lowercase()), Self::Address)
    }
}

impl Pattern {
    fn allows(&self, host: &str, port: u16) -> bool {
        if self.port.is_some_and(|own| own != port) {
            return false;
        }
        match (&self.host, Host::of(host)) {
            (Host::Below(domain), Host::Name(name)) => {
                name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            (own, asked) => *own == asked,
        }
    }
}

impl Targets {
    fn allow(&self, target: &str) -> bool {
        let Some((host, port)) = target.rsplit_once(':') else {
            return false;
        };
        let Ok(port) = port.parse() else { return false };
        match self {
            Self::Any => true,
            Self::Only(patterns) => patterns.iter().any(|pattern| pattern.allows(host, port)),
        }
    }
}

impl Rules {
    pub fn check(&self, job: &Job) -> Outcome<()> {
        let refuse = |why: String| Err(Failure::new(why));
        if !self.targets.allow(&job.target.target) {
            return refuse(format!("the target {} is not allowed here (see --allow)", job.target.target));
        }
        let duration = match job.until {
            Until::Elapsed(duration) => duration,
            Until::Finished(_) => Duration::ZERO,
        };
        if job.warmup.saturating_add(duration) > self.duration_max || job.timeout > MAX_TIMEOUT {
            return refuse(format!("at most {} s are allowed here (--max-duration)", self.duration_max.as_secs_f64()));
        }
        if job.connections == 0 || job.connections > self.connections_max {
            return refuse(format!(
                "{} connections; 1 to {} are allowed here (--max-connections)",
                job.connections, self.connections_max
            ));
        }
        if job.micro_rate == Some(0) || job.phase > self.duration_max {
            return refuse("a rate of nothing".to_owned());
        }
        if let Some(rate_max) = self.rate_max {
            match job.rate() {
                Some(rate) if rate <= rate_max => {}
                Some(rate) => {
                    return refuse(format!("{rate} requests per second; {rate_max} are allowed here (--max-rate)"));
                }
                None => return refuse(format!("only a load with --rate, at most {rate_max}, is allowed here")),
            }
        }
        if job.head.len() > HEAD_BYTES_MAX || job.body_bytes > BODY_BYTES_MAX {
            return refuse(format!("requests of at most {HEAD_BYTES_MAX} + {BODY_BYTES_MAX} bytes are made here"));
        }
        Ok(())
    }
}

/// As long as any duration on a command line.
const MAX_TIMEOUT: Duration = Duration::from_secs(7 * 86_400);

/// `[::1]` without its brackets.
pub fn bare_host(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::agents::message::TargetFlags;
    use crate::load::Kind;

    pub fn job(target: &str) -> Job {
        Job {
            command: "requests".to_owned(),
            target: TargetFlags {
                target: target.to_owned(),
                plain: true,
                tls: "any".to_owned(),
                key: None,
                group: None,
                cipher: None,
                name: "localhost".to_owned(),
                ca_pem: None,
            },
            resume: None,
            kind: Kind::KeepAlive,
            connections: 2,
            head: "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            head_only: false,
            body_bytes: 0,
            timeout: Duration::from_secs(10),
            micro_rate: None,
            phase: Duration::ZERO,
            warmup: Duration::ZERO,
            until: Until::Elapsed(Duration::from_secs(1)),
        }
    }

    pub fn rules(patterns: &[&str]) -> Rules {
        let patterns = patterns.iter().map(|text| text.parse().unwrap()).collect();
        Rules {
            targets: Targets::Only(patterns),
            duration_max: Duration::from_secs(60),
            connections_max: 100,
            rate_max: None,
        }
    }

    #[test]
    fn only_targets_that_a_pattern_names_are_allowed() {
        let rules = rules(&["127.0.0.1:8443", "Shop.test", "*.lab.test:443", "[::1]"]);
        let allowed = |target: &str| rules.check(&job(target)).is_ok();
        for target in ["127.0.0.1:8443", "shop.TEST:1", "a.lab.test:443", "a.b.lab.test:443", "[::1]:9", "[0:0::1]:9"] {
            assert!(allowed(target), "{target}");
        }
        let refused =
            ["127.0.0.1:8444", "127.1:8443", "lab.test:443", "xlab.test:443", "a.lab.test:80", "shop.test", "a:b", ""];
        for target in refused {
            assert!(!allowed(target), "{target}");
        }
        for pattern in ["", "*", "a:port", "*.", "a.*.b"] {
            assert!(pattern.parse::<Pattern>().is_err(), "{pattern}");
        }
    }

    #[test]
    fn more_than_the_limits_is_refused() {
        let mut rules = rules(&["a"]);
        let hour = Until::Elapsed(Duration::from_secs(3600));
        let mut jobs = vec![Job { until: hour, ..job("a:1") }, Job { connections: 101, ..job("a:1") }];
        jobs.push(Job { warmup: Duration::MAX, ..job("a:1") });
        jobs.push(Job { connections: 0, ..job("a:1") });
        jobs.push(Job { micro_rate: Some(0), ..job("a:1") });
        jobs.push(Job { body_bytes: usize::MAX, ..job("a:1") });
        for job in &jobs {
            assert!(rules.check(job).is_err(), "{job:?}");
        }
        rules.rate_max = Some(10.0);
        assert!(rules.check(&Job { micro_rate: Some(10_000_000), ..job("a:1") }).is_ok());
        assert!(rules.check(&Job { micro_rate: Some(10_000_001), ..job("a:1") }).is_err());
        assert!(rules.check(&job("a:1")).is_err());
    }
}
