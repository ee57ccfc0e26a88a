//! All resources that are looked at, as the API server last said.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::resources::{
    BackendTlsPolicy, ConfigMap, EndpointSlice, Gateway, GatewayClass, GrpcRoute, HttpRoute, Key, ListenerSet,
    Metadata, Namespace, Object, ReferenceGrant, Secret, Service, TcpRoute, TlsRoute,
};

/// Kinds of resources that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    GatewayClass,
    Gateway,
    ListenerSet,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    TcpRoute,
    ReferenceGrant,
    BackendTlsPolicy,
    Service,
    EndpointSlice,
    Secret,
    ConfigMap,
    Namespace,
}

impl Kind {
    pub const ALL: [Kind; 14] = [
        Kind::GatewayClass,
        Kind::Gateway,
        Kind::ListenerSet,
        Kind::HttpRoute,
        Kind::GrpcRoute,
        Kind::TlsRoute,
        Kind::TcpRoute,
        Kind::ReferenceGrant,
        Kind::BackendTlsPolicy,
        Kind::Service,
        Kind::EndpointSlice,
        Kind::Secret,
        Kind::ConfigMap,
        Kind::Namespace,
    ];

    /// Group and version in a path, and the plural.
    pub fn path(self) -> (&'static str, &'static str) {
        const GATEWAY: &str = "/apis/gateway.networking.k8s.io/v1";
        match self {
            Kind::GatewayClass => (GATEWAY, "gatewayclasses"),
            Kind::Gateway => (GATEWAY, "gateways"),
            Kind::ListenerSet => (GATEWAY, "listenersets"),
            Kind::HttpRoute => (GATEWAY, "httproutes"),
            Kind::GrpcRoute => (GATEWAY, "grpcroutes"),
            Kind::TlsRoute => (GATEWAY, "tlsroutes"),
            Kind::TcpRoute => (GATEWAY, "tcproutes"),
            Kind::ReferenceGrant => (GATEWAY, "referencegrants"),
            Kind::BackendTlsPolicy => (GATEWAY, "backendtlspolicies"),
            Kind::Service => ("/api/v1", "services"),
            Kind::EndpointSlice => ("/apis/discovery.k8s.io/v1", "endpointslices"),
            Kind::Secret => ("/api/v1", "secrets"),
            Kind::ConfigMap => ("/api/v1", "configmaps"),
            Kind::Namespace => ("/api/v1", "namespaces"),
        }
    }

    /// The name in a manifest, for kinds that a status is written to, or that are referred to.
    pub fn name(self) -> &'static str {
        match self {
            Kind::GatewayClass => "GatewayClass",
            Kind::Gateway => "Gateway",
            Kind::ListenerSet => "ListenerSet",
            Kind::HttpRoute => "HTTPRoute",
            Kind::GrpcRoute => "GRPCRoute",
            Kind::TlsRoute => "TLSRoute",
            Kind::TcpRoute => "TCPRoute",
            Kind::ReferenceGrant => "ReferenceGrant",
            Kind::BackendTlsPolicy => "BackendTLSPolicy",
            Kind::Service => "Service",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Secret => "Secret",
            Kind::ConfigMap => "ConfigMap",
            Kind::Namespace => "Namespace",
        }
    }
}

/// Resources by kind and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    pub classes: BTreeMap<Key, GatewayClass>,
    pub gateways: BTreeMap<Key, Gateway>,
    pub listener_sets: BTreeMap<Key, ListenerSet>,
    pub http_routes: BTreeMap<Key, HttpRoute>,
    pub grpc_routes: BTreeMap<Key, GrpcRoute>,
    pub tls_routes: BTreeMap<Key, TlsRoute>,
    pub tcp_routes: BTreeMap<Key, TcpRoute>,
    pub grants: BTreeMap<Key, ReferenceGrant>,
    pub tls_policies: BTreeMap<Key, BackendTlsPolicy>,
    pub services: BTreeMap<Key, Service>,
    pub slices: BTreeMap<Key, EndpointSlice>,
    pub secrets: BTreeMap<Key, Secret>,
    pub config_maps: BTreeMap<Key, ConfigMap>,
    pub namespaces: BTreeMap<Key, Namespace>,
}

trait Resource {
    fn metadata(&self) -> &Metadata;
}

impl<S> Resource for Object<S> {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

macro_rules! resources {
    ($($kind:ty),*) => { $(impl Resource for $kind { fn metadata(&self) -> &Metadata { &self.metadata } })* };
}
resources!(EndpointSlice, Secret, ConfigMap, Namespace);

macro_rules! with_map {
    ($world:expr, $kind:expr, $map:ident => $do:expr) => {
        match $kind {
            Kind::GatewayClass => {
                let $map = &mut $world.classes;
                $do
            }
            Kind::Gateway => {
                let $map = &mut $world.gateways;
                $do
            }
            Kind::ListenerSet => {
                let $map = &mut $world.listener_sets;
                $do
            }
            Kind::HttpRoute => {
                let $map = &mut $world.http_routes;
                $do
            }
            Kind::GrpcRoute => {
                let $map = &mut $world.grpc_routes;
                $do
            }
            Kind::TlsRoute => {
                let $map = &mut $world.tls_routes;
                $do
            }
            Kind::TcpRoute => {
                let $map = &mut $world.tcp_routes;
                $do
            }
            Kind::ReferenceGrant => {
                let $map = &mut $world.grants;
                $do
            }
            Kind::BackendTlsPolicy => {
                let $map = &mut $world.tls_policies;
                $do
            }
            Kind::Service => {
                let $map = &mut $world.services;
                $do
            }
            Kind::EndpointSlice => {
                let $map = &mut $world.slices;
                $do
            }
            Kind::Secret => {
                let $map = &mut $world.secrets;
                $do
            }
            Kind::ConfigMap => {
                let $map = &mut $world.config_maps;
                $do
            }
            Kind::Namespace => {
                let $map = &mut $world.namespaces;
                $do
            }
        }
    };
}

impl World {
    /// Takes in a resource that is new or has changed. The error says why it cannot be read: then it is as if it were
    /// not there.
    pub fn put(&mut self, kind: Kind, object: Value) -> Result<(), String> {
        with_map!(self, kind, map => put(map, object))
    }

    pub fn remove(&mut self, kind: Kind, key: &Key) {
        with_map!(self, kind, map => { map.remove(key); })
    }

    /// Takes a whole list in the place of all resources of a kind, or of those in a namespace. What cannot be read is
    /// left out and named.
    pub fn replace(&mut self, kind: Kind, namespace: Option<&str>, objects: Vec<Value>) -> Vec<String> {
        with_map!(self, kind, map => {
            map.retain(|key, _| namespace.is_some_and(|namespace| key.namespace != namespace));
            objects.into_iter().filter_map(|object| put(map, object).err()).collect()
        })
    }
}

fn put<T: Resource + DeserializeOwned>(map: &mut BTreeMap<Key, T>, object: Value) -> Result<(), String> {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    let key = Key { namespace: text("namespace"), name: text("name") };
    match serde_json::from_value::<T>(without_nulls(object)) {
        Ok(read) => {
            map.insert(read.metadata().key(), read);
            Ok(())
        }
        Err(error) => {
            map.remove(&key);
            Err(format!("{key} cannot be read: {error}"))
        }
    }
}

/// The API server writes null for lists that are empty, which is the same as their absence.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_resource_that_cannot_be_read_is_as_if_it_were_not_there() {
        let mut world = World::default();
        let route = |rules: Value| json!({ "metadata": { "namespace": "a", "name": "r" }, "spec": { "rules": rules } });
        world.put(Kind::HttpRoute, route(json!(null))).unwrap();
        assert_eq!(world.http_routes.len(), 1);
        let why = world.put(Kind::HttpRoute, route(json!("x"))).unwrap_err();
        assert!(why.starts_with("a/r cannot be read: "), "{why}");
        assert!(world.http_routes.is_empty());
    }

    #[test]
    fn a_list_takes_the_place_of_what_was_there() {
        let mut world = World::default();
        let named = |name: &str| json!({ "metadata": { "name": name } });
        assert!(world.replace(Kind::Namespace, None, vec![named("a"), named("b")]).is_empty());
        assert!(world.replace(Kind::Namespace, None, vec![named("c")]).is_empty());
        assert_eq!(world.namespaces.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["c"]);
        world.remove(Kind::Namespace, &Key::new("", "c"));
        assert!(world.namespaces.is_empty());
        let within = |namespace: &str, name: &str| json!({ "metadata": { "namespace": namespace, "name": name } });
        world.replace(Kind::Secret, Some("x"), vec![within("x", "a")]);
        world.replace(Kind::Secret, Some("y"), vec![within("y", "a")]);
        world.replace(Kind::Secret, Some("x"), vec![within("x", "b")]);
        assert_eq!(world.secrets.keys().map(Key::to_string).collect::<Vec<_>>(), ["x/b", "y/a"]);
    }
}
