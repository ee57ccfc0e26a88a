//! Backends of the engine, of the Services that rules refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::attach::RoutePlan;
use super::draft::short;
use super::gateways::keep;
use super::policies;
use super::references::{self, Referrer};
use crate::conditions::Trouble;
use crate::resources::{BackendRef, EndpointSlice, Key, Reference};
use crate::settings::Files;
use crate::world::World;

/// Backends that the engine's own listener of refusals is behind.
pub const REFUSALS: [(&str, u16); 2] = [("refused-500", 500), ("refused-503", 503)];

pub struct Backends<'w> {
    world: &'w World,
    slices: BTreeMap<Key, Vec<&'w EndpointSlice>>,
    /// Folder of files as engines see it.
    folder: &'w Path,
    pub tables: BTreeMap<String, Value>,
    pub files: Files,
    /// Whether a share of a rule's requests has no backend.
    pub has_refusals: bool,
    /// Policies of TLS that are in use, with the Gateways that lead to them.
    pub policies: BTreeMap<Key, BTreeSet<Key>>,
}

/// Receiver of a rule's requests.
enum Target {
    Backend(String),
    /// Nobody: the status that says so.
    Nobody(u16),
}

/// Circumstances in which a backend is asked for: who refers, whether gRPC is spoken, and the Gateways.
pub struct Asking<'a> {
    pub from: Referrer<'a>,
    pub is_grpc: bool,
    pub is_relay: bool,
    pub gateways: &'a BTreeSet<Key>,
}

impl<'w> Backends<'w> {
    pub fn new(world: &'w World, folder: &'w Path) -> Backends<'w> {
        Backends {
            world,
            slices: references::slices(world),
            folder,
            tables: BTreeMap::new(),
            files: Files::new(),
            has_refusals: false,
            policies: BTreeMap::new(),
        }
    }

    /// The keys of a route that say where its requests go.
    pub fn split(
        &mut self,
        references: &[BackendRef],
        asking: &Asking<'_>,
        route: &mut RoutePlan<'_>,
    ) -> Map<String, Value> {
        let mut targets: Vec<(Target, u32)> = Vec::new();
        for each in references {
            let target = match self.find(&each.reference, asking) {
                Ok(target) => target,
                Err(trouble) => {
                    route.unresolved(trouble);
                    Target::Nobody(500)
                }
            };
            if each.weight() > 0 {
                targets.push((target, each.weight()));
            }
        }
        if targets.iter().all(|(target, _)| matches!(target, Target::Nobody(_))) {
            let is_empty = targets.iter().any(|(target, _)| matches!(target, Target::Nobody(503)));
            return respond(if is_empty { 503 } else { 500 }, asking.is_relay);
        }
        let mut shares: BTreeMap<String, u32> = BTreeMap::new();
        for (target, weight) in targets {
            let name = match target {
                Target::Backend(name) => name,
                // A relay cannot say why it has nobody.
                Target::Nobody(_) if asking.is_relay => continue,
                Target::Nobody(status) => {
                    self.has_refusals = true;
                    REFUSALS[usize::from(status == 503)].0.to_owned()
                }
            };
            *shares.entry(name).or_default() += weight;
        }
        let list = shares.iter().map(|(name, weight)| json!({ "name": name, "weight": weight }));
        let value = match shares.len() {
            1 => shares.keys().next().map_or(Value::Null, |name| name.clone().into()),
            _ => Value::Array(list.collect()),
        };
        Map::from_iter([("backend".to_owned(), value)])
    }

    /// The backend of copies; none where it has no server.
    pub fn mirror(&mut self, reference: &Reference, asking: &Asking<'_>) -> Result<Option<String>, Trouble> {
        Ok(match self.find(reference, asking)? {
            Target::Backend(name) => Some(name),
            Target::Nobody(_) => None,
        })
    }

    fn find(&mut self, reference: &Reference, asking: &Asking<'_>) -> Result<Target, Trouble> {
        let (service, port) = references::service_port(self.world, reference, asking.from)?;
        let servers = references::endpoints(self.slices.get(&service).map_or(&[], Vec::as_slice), port);
        let protocol = match asking.is_relay {
            true => "http1",
            false => references::protocol(port, asking.is_grpc),
        };
        // Names of Kubernetes have no underscore.
        let mut name = format!("{}_{}_{}", service.namespace, service.name, port.port);
        if protocol != "http1" {
            name = format!("{name}_{protocol}");
        }
        let policy = match asking.is_relay {
            true => None,
            false => policies::of(self.world, &service, &port.name),
        };
        let mut tls = None;
        if let Some(policy) = policy {
            let key = policy.metadata.key();
            self.policies.entry(key.clone()).or_default().extend(asking.gateways.iter().cloned());
            name = format!("{name}_tls_{}", policy.metadata.name);
            // Nothing goes out unverified: a policy that cannot be kept is one without a backend.
            let Ok(link) = policies::judge(self.world, policy) else { return Ok(Target::Nobody(500)) };
            let mut table = json!({ "server_name": link.server_name });
            if let Some(pem) = link.authorities {
                table["ca"] = self.folder.join(keep(&mut self.files, "authority", pem)).display().to_string().into();
            }
            tls = Some(table);
        }
        let name = short(name);
        Ok(match references::backend(&servers, protocol, tls) {
            None => Target::Nobody(503),
            Some(table) => {
                self.tables.entry(name.clone()).or_insert(table);
                Target::Backend(name)
            }
        })
    }

    /// Repeats of these backends are bound by the rule alone.
    pub fn allow_repeats(&mut self, then: &Map<String, Value>) {
        let names: Vec<&str> = match &then.get("backend") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(list)) => list.iter().filter_map(|each| each["name"].as_str()).collect(),
            _ => Vec::new(),
        };
        for name in names {
            if let Some(table) = self.tables.get_mut(name) {
                table["retries"] = json!({ "budget": "100%", "min_per_second": 1000 });
            }
        }
    }
}

fn respond(status: u16, is_relay: bool) -> Map<String, Value> {
    match is_relay {
        true => Map::new(),
        false => Map::from_iter([("respond".to_owned(), json!({ "status": status }))]),
    }
}
