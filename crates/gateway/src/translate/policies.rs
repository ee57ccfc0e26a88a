//! BackendTLSPolicy: TLS to the servers of a Service.

use serde_json::{Value, json};

use super::backends::Backends;
use super::references;
use crate::conditions::{Condition, Trouble, written};
use crate::hostname;
use crate::resources::{BackendTlsPolicy, GROUP, Key, Reference};
use crate::settings::{Settings, StatusChange};
use crate::world::{Kind, World};

/// How servers are verified.
pub struct LinkDraft {
    pub server_name: String,
    /// Names of which a certificate has to have one; empty for the server's.
    pub names: Vec<String>,
    /// PEM; absent for the authorities of the engine's system.
    pub authorities: Option<Vec<u8>>,
}

/// The policy of a port of a Service: the one that names the port before one for all, and the oldest of several.
pub fn of<'w>(world: &'w World, service: &Key, port: &str) -> Option<&'w BackendTlsPolicy> {
    let targets = |policy: &BackendTlsPolicy, section: Option<&str>| {
        policy.spec.target_refs.iter().any(|target| is_target(target, service, section))
    };
    let all = || world.tls_policies.values().filter(|policy| policy.metadata.namespace == service.namespace);
    let oldest = |section: Option<&str>| {
        all().filter(|policy| targets(policy, section)).min_by_key(|policy| policy.metadata.precedence())
    };
    oldest(Some(port)).or_else(|| oldest(None))
}

fn is_target(target: &Reference, service: &Key, section: Option<&str>) -> bool {
    target.is("", "Service", ("", "")) && target.name == service.name && target.section_name.as_deref() == section
}

/// The link that a policy asks for, or why it cannot be kept: as `ResolvedRefs` says it.
pub fn judge(world: &World, policy: &BackendTlsPolicy) -> Result<LinkDraft, Trouble> {
    let validation = &policy.spec.validation;
    let server_name = validation.hostname.clone();
    let mut names = Vec::new();
    for name in &validation.subject_alt_names {
        names.push(match name.kind.as_str() {
            "Hostname" if hostname::is_known(&name.hostname) => name.hostname.clone(),
            "URI" if name.uri.contains(':') => name.uri.clone(),
            kind => {
                let what = format!("subjectAltNames: {kind} {}{} is none that engines verify", name.hostname, name.uri);
                return Err(Trouble::new("Invalid", what));
            }
        });
    }
    if !hostname::is_known(&server_name) {
        return Err(Trouble::new("Invalid", format!("hostname {server_name} is none that engines take")));
    }
    if validation.well_known.is_some() {
        return Ok(LinkDraft { server_name, names, authorities: None });
    }
    let mut pem = Vec::new();
    let mut trouble = None;
    for reference in &validation.authorities {
        let key = Key::new(&policy.metadata.namespace, &reference.name);
        if !reference.is("", "ConfigMap", ("", "")) {
            trouble = Some(Trouble::new("InvalidKind", format!("{key} is no ConfigMap")));
        } else if let Some(text) = references::authorities(world, &key) {
            pem.extend(text);
            pem.push(b'\n');
        } else {
            let what = format!("ConfigMap {key} has no certificates in ca.crt, of 256 KiB at most, that can be used");
            trouble = Some(Trouble::new("InvalidCACertificateRef", what));
        }
    }
    match (pem.is_empty(), trouble) {
        (false, _) => Ok(LinkDraft { server_name, names, authorities: Some(pem) }),
        (true, Some(trouble)) => Err(trouble),
        (true, None) => Err(Trouble::new("InvalidCACertificateRef", "no authority is named")),
    }
}

/// Whether an older policy has the same target.
fn is_conflicted(world: &World, policy: &BackendTlsPolicy) -> bool {
    policy.spec.target_refs.iter().all(|target| {
        let service = Key::new(&policy.metadata.namespace, &target.name);
        world.tls_policies.values().any(|other| {
            other.metadata.namespace == policy.metadata.namespace
                && other.metadata.precedence() < policy.metadata.precedence()
                && other.spec.target_refs.iter().any(|each| is_target(each, &service, target.section_name.as_deref()))
        })
    })
}

/// Statuses of policies that routes of ours lead to, or did.
pub fn statuses(world: &World, settings: &Settings, backends: &Backends<'_>, now: &str) -> Vec<StatusChange> {
    let mut all = Vec::new();
    for (key, policy) in &world.tls_policies {
        let gateways: Vec<Key> = backends.policies.get(key).into_iter().flatten().cloned().collect();
        let before = policy.status["ancestors"].as_array().map_or(&[][..], Vec::as_slice);
        let mut ancestors: Vec<Value> =
            before.iter().filter(|each| each["controllerName"] != settings.controller.as_str()).cloned().collect();
        let reached = shared(world, backends, policy);
        for gateway in gateways.iter().chain(&reached) {
            let reference =
                json!({ "group": GROUP, "kind": "Gateway", "namespace": gateway.namespace, "name": gateway.name });
            let same = before.iter().find(|each| {
                each["controllerName"] == settings.controller.as_str() && each["ancestorRef"] == reference
            });
            let known = same.map_or(&Value::Null, |same| &same["conditions"]);
            let conditions = written(&conditions(world, policy), known, policy.metadata.generation, now);
            ancestors.push(json!({
                "ancestorRef": reference, "controllerName": settings.controller, "conditions": conditions,
            }));
        }
        if ancestors.as_slice() != before {
            all.push(StatusChange {
                kind: Kind::BackendTlsPolicy,
                key: key.clone(),
                resource_version: policy.metadata.resource_version.clone(),
                status: json!({ "ancestors": ancestors }),
            });
        }
    }
    all
}

/// Gateways of the policy that stands before this one.
fn shared(world: &World, backends: &Backends<'_>, policy: &BackendTlsPolicy) -> Vec<Key> {
    if !is_conflicted(world, policy) {
        return Vec::new();
    }
    let older = world.tls_policies.values().filter(|other| {
        other.metadata.key() != policy.metadata.key()
            && other.spec.target_refs.iter().any(|target| policy.spec.target_refs.contains(target))
    });
    older.filter_map(|other| backends.policies.get(&other.metadata.key())).flatten().cloned().collect()
}

fn conditions(world: &World, policy: &BackendTlsPolicy) -> [Condition; 2] {
    let resolved = judge(world, policy).err();
    let accepted = match &resolved {
        _ if is_conflicted(world, policy) => {
            Some(Trouble::new("Conflicted", "an older BackendTLSPolicy has the same target"))
        }
        Some(trouble) if trouble.reason == "Invalid" => Some(trouble.clone()),
        Some(trouble) => Some(Trouble::new("NoValidCACertificate", trouble.message.clone())),
        None => None,
    };
    let resolved = resolved.filter(|trouble| trouble.reason != "Invalid");
    [
        Condition::unless("Accepted", "Accepted", accepted.as_ref()),
        Condition::unless("ResolvedRefs", "ResolvedRefs", resolved.as_ref()),
    ]
}
