//! Backends of the engine, of the Services that rules refer to.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::attach::RoutePlan;
use super::draft::{NOBODY, closed, mark, short};
use super::filters;
use super::gateways::keep;
use super::policies;
use super::references::{self, Referrer};
use super::sessions::Sticky;
use crate::conditions::Trouble;
use crate::resources::{BackendRef, EndpointSlice, Key, Reference};
use crate::settings::{Files, Settings};
use crate::world::World;

pub struct Backends<'w> {
    world: &'w World,
    slices: BTreeMap<Key, Vec<&'w EndpointSlice>>,
    pub settings: &'w Settings,
    pub tables: BTreeMap<String, Value>,
    pub files: Files,
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
    /// File of the chain and key that servers are shown.
    pub client: Option<&'a str>,
    /// Clients come back to the server that they had.
    pub sticky: Option<&'a Sticky>,
}

impl<'w> Backends<'w> {
    pub fn new(world: &'w World, settings: &'w Settings) -> Backends<'w> {
        Backends {
            world,
            slices: references::slices(world),
            settings,
            tables: BTreeMap::from([(NOBODY.to_owned(), nobody(settings))]),
            files: Files::new(),
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
        let mut targets: Vec<(Target, &BackendRef)> = Vec::new();
        for each in references {
            let target = match self.find(&each.reference, asking) {
                Ok(target) => target,
                Err(trouble) => {
                    route.unresolved(trouble);
                    Target::Nobody(500)
                }
            };
            if each.weight() > 0 {
                targets.push((target, each));
            }
        }
        if targets.iter().all(|(target, _)| matches!(target, Target::Nobody(_))) {
            let is_empty = targets.iter().any(|(target, _)| matches!(target, Target::Nobody(503)));
            return respond(if is_empty { 503 } else { 500 }, asking.is_relay);
        }
        let mut shares: Vec<(Value, u32)> = Vec::new();
        for (target, each) in targets {
            let weight = each.weight();
            let entry = match target {
                Target::Backend(name) if asking.is_relay => json!({ "name": name }),
                Target::Backend(name) => {
                    let mut keys = filters::of_backend(&each.filters);
                    keys.insert("name".into(), name.into());
                    keys.into()
                }
                // A relay cannot say why: connections of this share are closed.
                Target::Nobody(status) => json!({ "respond": status }),
            };
            match shares.iter_mut().find(|(known, _)| *known == entry) {
                Some((_, whole)) => *whole += weight,
                None => shares.push((entry, weight)),
            }
        }
        let is_list = shares.len() > 1;
        let value = match shares.as_mut_slice() {
            [(entry, _)] if entry.as_object().is_some_and(|keys| keys.len() == 1) => entry["name"].take(),
            _ => shares.into_iter().map(|(entry, weight)| weighted(entry, weight)).collect(),
        };
        let mut keys = Map::from_iter([("backend".to_owned(), value)]);
        if let Some(sticky) = asking.sticky.filter(|_| is_list) {
            keys.insert("sticky".into(), sticky.of_list.clone());
        }
        keys
    }

    /// The backend of copies; none where it has no server.
    pub fn mirror(&mut self, reference: &Reference, asking: &Asking<'_>) -> Result<Option<String>, Trouble> {
        Ok(match self.find(reference, &Asking { sticky: None, ..*asking })? {
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
            if !link.names.is_empty() {
                table["names"] = json!(link.names);
            }
            if let Some(pem) = link.authorities {
                table["ca"] =
                    self.settings.files.join(keep(&mut self.files, "authority", pem)).display().to_string().into();
            }
            if let Some(client) = asking.client {
                table["certificate"] = self.settings.files.join(client).display().to_string().into();
                name = format!("{name}_{}", mark(&client.into()));
            }
            tls = Some(table);
        }
        if let Some(sticky) = asking.sticky {
            name = format!("{name}_sticky_{}", sticky.mark());
        }
        let name = short(name);
        Ok(match references::backend(&servers, protocol, tls) {
            None => Target::Nobody(503),
            Some(mut table) => {
                if let Some(sticky) = asking.sticky {
                    table["sticky"] = sticky.of_backend.clone();
                }
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

fn nobody(settings: &Settings) -> Value {
    json!({ "servers": [format!("127.0.0.1:{}", settings.closed_port)] })
}

fn weighted(mut entry: Value, weight: u32) -> Value {
    entry["weight"] = weight.into();
    entry
}

fn respond(status: u16, is_relay: bool) -> Map<String, Value> {
    match is_relay {
        true => closed(),
        false => Map::from_iter([("respond".to_owned(), json!({ "status": status }))]),
    }
}
