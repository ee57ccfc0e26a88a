//! Messages between coordinator and agent, in the order in which they are sent.

use crate::failure::{Failure, Outcome, While};
use crate::link::Request;
use crate::load::{Kind, Plan, Until};
use crate::stats::LoadStats;
use crate::target::{Resumed, TargetArguments};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Both sides must speak the same; there is nothing to negotiate.
pub const VERSION: u32 = 2;
/// Name of the protocol, to refuse any other JSON.
pub const PROTOCOL: &str = "propylon-bench agents";
/// Largest CA file sent along.
const CA_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Message {
    /// Coordinator: the first message.
    Hello {
        protocol: String,
        version: u32,
    },
    /// Agent: its answer; the coordinator's certificate was good.
    Welcome {
        version: u32,
    },
    /// Agent: no, and why.
    Refused {
        why: String,
    },
    /// Coordinator: a reading of the agent's clock.
    Clock,
    /// Agent: nanoseconds of its clock.
    ClockIs {
        received: u64,
        sent: u64,
    },
    /// Coordinator: what to do.
    Job(Box<Job>),
    /// Agent: all is prepared.
    Ready,
    /// Coordinator: begin at these moments of the agent's clock.
    Start {
        warmup_at: u64,
        measure_at: u64,
    },
    /// Both, once a second: still here.
    Alive,
    /// Agent, once a second while it measures: what came of it so far.
    Progress {
        done: u64,
        errors: u64,
    },
    /// Agent: the load has ended; the figures follow.
    Finished,
    Results(Box<Results>),
    /// Agent: it could not.
    Failed {
        why: String,
    },
}

/// One agent's share of a load command. Every field is a flag of the command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub command: String,
    pub target: TargetFlags,
    pub resume: Option<Resumed>,
    pub kind: Kind,
    pub connections: usize,
    /// The request as it goes over the wire, its body left out.
    pub head: String,
    pub head_only: bool,
    pub body_bytes: usize,
    pub timeout: Duration,
    /// Millionths of a request per second.
    pub micro_rate: Option<u64>,
    /// This agent's first arrival comes so long after the start, so that agents take turns.
    pub phase: Duration,
    pub warmup: Duration,
    pub until: Until,
}

/// `TargetArguments` on the wire: choices by the names that their flags have, the CA by its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetFlags {
    pub target: String,
    pub plain: bool,
    pub tls: String,
    pub key: Option<String>,
    pub group: Option<String>,
    pub cipher: Option<String>,
    pub name: String,
    /// Absent: any certificate will do.
    pub ca_pem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    pub stats: LoadStats,
    /// Share of the load's core that the load used.
    pub load_busy: f64,
    /// When the measured part began, on the agent's clock.
    pub measured_from: u64,
}

impl TargetFlags {
    /// Every field is named, so that a new flag cannot be forgotten here.
    pub fn of(arguments: &TargetArguments) -> Outcome<Self> {
        let TargetArguments { target, plain, tls, key, group, cipher, name, verify, ca, sources } = arguments;
        if !sources.is_empty() {
            return Err(Failure::new(
                "--source belongs to the machine of the agent: give it to `propylon-bench agent`",
            ));
        }
        let ca = if *verify { ca.as_deref() } else { None };
        Ok(Self {
            target: target.clone(),
            plain: *plain,
            tls: name_of(*tls),
            key: key.map(name_of),
            group: group.map(name_of),
            cipher: cipher.map(name_of),
            name: name.clone(),
            ca_pem: ca.map(read_ca).transpose()?,
        })
    }

    /// The flags again; `ca` is where the CA's content now lies.
    pub fn arguments(&self, ca: Option<PathBuf>, sources: &[std::net::IpAddr]) -> Outcome<TargetArguments> {
        Ok(TargetArguments {
            target: self.target.clone(),
            plain: self.plain,
            tls: named(&self.tls)?,
            key: self.key.as_deref().map(named).transpose()?,
            group: self.group.as_deref().map(named).transpose()?,
            cipher: self.cipher.as_deref().map(named).transpose()?,
            name: self.name.clone(),
            verify: ca.is_some(),
            ca,
            sources: sources.to_vec(),
        })
    }
}

impl Job {
    /// The whole of a plan, for the caller to say how long it lasts and whether sessions are resumed. Its shares differ
    /// in `connections`, `micro_rate`, `phase` and `until`.
    pub fn whole(command: &str, target: &TargetArguments, plan: &Plan) -> Outcome<Self> {
        let Plan { kind, connections, request, timeout, rate } = plan;
        let (head, body) = request.bytes.split_at(request.bytes.len() - request.body_bytes);
        if body.iter().any(|byte| *byte != b'x') {
            return Err(Failure::new("this request's body is not one that agents can make"));
        }
        Ok(Self {
            command: command.to_owned(),
            target: TargetFlags::of(target)?,
            resume: None,
            kind: *kind,
            connections: *connections,
            head: String::from_utf8(head.to_vec()).when("the request's head")?,
            head_only: request.is_head,
            body_bytes: body.len(),
            timeout: *timeout,
            micro_rate: rate.map(super::share::micro_rate),
            phase: Duration::ZERO,
            warmup: Duration::ZERO,
            until: Until::Finished(0),
        })
    }

    pub fn plan(&self) -> Plan {
        let mut bytes = self.head.clone().into_bytes();
        bytes.resize(bytes.len() + self.body_bytes, b'x');
        Plan {
            kind: self.kind,
            connections: self.connections,
            request: Request { bytes, body_bytes: self.body_bytes, is_head: self.head_only },
            timeout: self.timeout,
            rate: self.rate(),
        }
    }

    pub fn rate(&self) -> Option<f64> {
        self.micro_rate.map(|micro| micro as f64 / super::share::MICRO_PER_UNIT)
    }
}

/// Text from outside, fit for a terminal: without characters that a terminal obeys, and cut to a length.
pub fn printable(text: &str) -> String {
    const CHARACTERS_MAX: usize = 300;
    text.chars().filter(|c| !c.is_control()).take(CHARACTERS_MAX).collect()
}

fn name_of<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn named<T: ValueEnum>(name: &str) -> Outcome<T> {
    T::from_str(name, false).map_err(|error| Failure::new(format!("\"{name}\": {error}")))
}

fn read_ca(path: &Path) -> Outcome<String> {
    let doing = format!("reading {}", path.display());
    if std::fs::metadata(path).when(&doing)?.len() > CA_BYTES_MAX {
        return Err(Failure::new(format!("{doing}: more than {CA_BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(path).when(doing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Cipher, Group, Key, Version};

    #[test]
    fn flags_and_request_are_the_same_after_the_wire() {
        let arguments = TargetArguments {
            target: "shop.test:8443".to_owned(),
            plain: false,
            tls: Version::V12,
            key: Some(Key::Rsa),
            group: Some(Group::X25519Mlkem768),
            cipher: Some(Cipher::Chacha20),
            name: "shop.test".to_owned(),
            verify: false,
            ca: None,
            sources: Vec::new(),
        };
        let plan = Plan {
            kind: Kind::KeepAlive,
            connections: 5,
            request: Request::new("POST", "/echo", "shop.test", "X-A: b\r\n", 1000),
            timeout: Duration::from_millis(1500),
            rate: Some(33.333333),
        };
        let job = Job {
            resume: Some(Resumed::SessionId),
            until: Until::Finished(9),
            ..Job::whole("requests", &arguments, &plan).unwrap()
        };
        let json = serde_json::to_string(&Message::Job(Box::new(job.clone()))).unwrap();
        assert!(json.len() < 1000, "the body does not travel: {json}");
        assert_eq!(serde_json::from_str::<Message>(&json).unwrap(), Message::Job(Box::new(job.clone())));

        let made = job.plan();
        assert_eq!((made.kind, made.connections, made.timeout, made.rate), (plan.kind, 5, plan.timeout, plan.rate));
        assert!(made.request.bytes == plan.request.bytes && !made.request.is_head);
        let flags = job.target.arguments(None, &[]).unwrap();
        assert_eq!((flags.tls, flags.key, flags.group), (arguments.tls, arguments.key, arguments.group));
        assert_eq!((flags.cipher, flags.plain, flags.name), (arguments.cipher, false, arguments.name));
    }

    #[test]
    fn an_unknown_flag_is_refused_not_ignored() {
        let json = r#"{"start":{"warmup_at":1,"measure_at":2,"and_more":3}}"#;
        assert!(serde_json::from_str::<Message>(json).is_err());
        assert!(named::<Version>("1.4").is_err());
    }
}
