//! References between resources: which are permitted, and what they lead to.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use base64ct::{Base64, Encoding};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use crate::conditions::Trouble;
use crate::resources::{EndpointSlice, GROUP, Key, Reference, ServicePort};
use crate::world::World;

/// Servers of one backend; more are left out.
const SERVERS_MAX: usize = 4096;
/// Largest `ca.crt`: all of them have to fit into the folder that engines share with us.
const AUTHORITIES_BYTES_MAX: usize = 256 << 10;

/// The side that refers: the kind and the namespace of the resource.
#[derive(Clone, Copy)]
pub struct Referrer<'a> {
    pub kind: &'a str,
    pub namespace: &'a str,
}

/// Whether a resource of another namespace may be referred to (ReferenceGrant).
pub fn is_permitted(world: &World, from: Referrer<'_>, to_kind: &str, to: &Key) -> bool {
    from.namespace == to.namespace
        || world.grants.values().filter(|grant| grant.metadata.namespace == to.namespace).any(|grant| {
            let is_from = grant
                .spec
                .from
                .iter()
                .any(|each| each.group == GROUP && each.kind == from.kind && each.namespace == from.namespace);
            let is_to = |each: &crate::resources::GrantTo| {
                each.group.is_empty() && each.kind == to_kind && each.name.as_ref().is_none_or(|name| *name == to.name)
            };
            is_from && grant.spec.to.iter().any(is_to)
        })
}

/// The PEM file of chain and key that a Secret has, for engines to read.
pub fn certificate(world: &World, reference: &Reference, from: Referrer<'_>) -> Result<Vec<u8>, Trouble> {
    const INVALID: &str = "InvalidCertificateRef";
    let key = reference.key(from.namespace);
    if !reference.is("", "Secret", ("", "Secret")) {
        return Err(Trouble::new(INVALID, format!("{key} is no Secret: refer to one of type kubernetes.io/tls")));
    }
    if !is_permitted(world, from, "Secret", &key) {
        let what = format!("Secret {key} is in another namespace, and no ReferenceGrant there permits it");
        return Err(Trouble::new("RefNotPermitted", what));
    }
    let Some(secret) = world.secrets.get(&key) else {
        return Err(Trouble::new(INVALID, format!("there is no Secret {key} of type kubernetes.io/tls")));
    };
    let value = |name: &str, text: &Option<String>| {
        let text = text.as_ref().ok_or_else(|| format!("Secret {key} has no {name}"))?;
        Base64::decode_vec(text).map_err(|_| format!("{name} of Secret {key} is not base64"))
    };
    let pair = || {
        let (mut chain, private_key) = (value("tls.crt", &secret.data.chain)?, value("tls.key", &secret.data.key)?);
        judge(&chain, &private_key).map_err(|why| format!("Secret {key}: {why}"))?;
        chain.push(b'\n');
        chain.extend_from_slice(&private_key);
        Ok(chain)
    };
    pair().map_err(|what: String| Trouble::new(INVALID, what))
}

/// Whether a chain and a key can be served: an engine refuses a whole configuration for one that cannot.
fn judge(chain: &[u8], private_key: &[u8]) -> Result<(), String> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("tls.crt is no PEM of certificates: {error}"))?;
    if chain.is_empty() {
        return Err("tls.crt has no certificate".to_owned());
    }
    for (place, each) in chain.iter().enumerate() {
        let read = ParsedCertificate::try_from(each);
        read.map_err(|error| format!("certificate {} of tls.crt cannot be read: {error}", place + 1))?;
    }
    let key = PrivateKeyDer::from_pem_slice(private_key).map_err(|error| format!("tls.key is no key: {error}"))?;
    let key = any_supported_type(&key).map_err(|error| format!("tls.key cannot be used: {error}"))?;
    let pair = CertifiedKey::new(chain, key);
    pair.keys_match().map_err(|error| format!("tls.key does not belong to tls.crt: {error}"))
}

/// The certificates of authorities in a ConfigMap, as PEM, if engines can use every one of them.
pub fn authorities(world: &World, key: &Key) -> Option<Vec<u8>> {
    let text = world.config_maps.get(key)?.data.authorities.as_ref()?;
    if text.len() > AUTHORITIES_BYTES_MAX {
        return None;
    }
    let mut roots = RootCertStore::empty();
    for each in CertificateDer::pem_slice_iter(text.as_bytes()) {
        roots.add(each.ok()?).ok()?;
    }
    (!roots.is_empty()).then(|| text.clone().into_bytes())
}

/// The port of a Service that a reference names.
pub fn service_port<'w>(
    world: &'w World,
    reference: &Reference,
    from: Referrer<'_>,
) -> Result<(Key, &'w ServicePort), Trouble> {
    let key = reference.key(from.namespace);
    if !reference.is("", "Service", ("", "Service")) {
        let what = format!("backendRef {key} is no Service, and nothing else can be a backend here");
        return Err(Trouble::new("InvalidKind", what));
    }
    if !is_permitted(world, from, "Service", &key) {
        let what = format!("Service {key} is in another namespace, and no ReferenceGrant there permits it");
        return Err(Trouble::new("RefNotPermitted", what));
    }
    let Some(service) = world.services.get(&key) else {
        return Err(Trouble::new("BackendNotFound", format!("there is no Service {key}")));
    };
    if service.spec.kind == "ExternalName" {
        let what = format!("Service {key} is an ExternalName, which could lead anywhere");
        return Err(Trouble::new("UnsupportedProtocol", what));
    }
    let port = reference.port.and_then(|wanted| service.spec.ports.iter().find(|port| port.port == wanted));
    let missing = || Trouble::new("BackendNotFound", format!("Service {key} has no port {:?}", reference.port));
    Ok((key.clone(), port.ok_or_else(missing)?))
}

/// Slices by the Service that they are of.
pub fn slices(world: &World) -> BTreeMap<Key, Vec<&EndpointSlice>> {
    let mut all: BTreeMap<Key, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in world.slices.values() {
        if let Some(service) = slice.metadata.labels.get("kubernetes.io/service-name") {
            all.entry(Key::new(&slice.metadata.namespace, service)).or_default().push(slice);
        }
    }
    all
}

/// Addresses of the ready endpoints of a port of a Service, in order, each once.
pub fn endpoints(slices: &[&EndpointSlice], port: &ServicePort) -> Vec<String> {
    let mut all = Vec::new();
    for slice in slices.iter().filter(|slice| slice.address_type != "FQDN") {
        let Some(number) = slice.ports.iter().find(|each| each.name == port.name).and_then(|each| each.port) else {
            continue;
        };
        for endpoint in slice.endpoints.iter().filter(|each| each.conditions.ready != Some(false)) {
            let addresses = endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok());
            let servers = addresses.map(|address| SocketAddr::new(address, number).to_string());
            // Addresses of no one server would be refused with all of the configuration.
            all.extend(servers.filter(|server| propylon_config::server_address(server).is_ok()));
        }
    }
    all.sort();
    all.dedup();
    all.truncate(SERVERS_MAX);
    all
}

/// The version of HTTP that a port speaks, by its `appProtocol` (GEP-1911).
pub fn protocol(port: &ServicePort, is_grpc: bool) -> &'static str {
    match port.app_protocol.as_deref() {
        Some("kubernetes.io/h2c") => "h2",
        _ if is_grpc => "h2",
        _ => "http1",
    }
}

/// The table of a backend.
pub fn backend(servers: &[String], protocol: &str, tls: Option<Value>) -> Option<Value> {
    if servers.is_empty() {
        return None;
    }
    let mut table = json!({ "servers": servers });
    if protocol != "http1" {
        table["protocol"] = protocol.into();
    }
    if let Some(tls) = tls {
        table["tls"] = tls;
    }
    Some(table)
}
