//! Resources of Kubernetes and of its Gateway API, as far as they are looked at: fields of v1.6 with their defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Group of the Gateway API's own resources.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// Name of a resource: namespace and name. The namespace of a resource without one is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `metadata` of any resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub generation: i64,
    pub resource_version: String,
    /// RFC 3339 in UTC, so that texts sort as times do.
    pub creation_timestamp: String,
    pub labels: BTreeMap<String, String>,
}

impl Metadata {
    pub fn key(&self) -> Key {
        Key::new(&self.namespace, &self.name)
    }

    /// The order in which resources have precedence: the oldest first, then by name (Gateway API, "conflicts").
    pub fn precedence(&self) -> (&str, &str, &str) {
        (&self.creation_timestamp, &self.namespace, &self.name)
    }
}

/// A resource with `spec` and `status`. The status is kept as it is, since others write parts of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, bound(deserialize = "S: Deserialize<'de> + Default"))]
pub struct Object<S> {
    pub metadata: Metadata,
    pub spec: S,
    pub status: Value,
}

pub type GatewayClass = Object<GatewayClassSpec>;
pub type Gateway = Object<GatewaySpec>;
pub type ListenerSet = Object<ListenerSetSpec>;
pub type HttpRoute = Object<RouteSpec<HttpRule>>;
pub type GrpcRoute = Object<RouteSpec<GrpcRule>>;
pub type TlsRoute = Object<RouteSpec<RelayRule>>;
pub type TcpRoute = Object<RouteSpec<RelayRule>>;
pub type ReferenceGrant = Object<ReferenceGrantSpec>;
pub type BackendTlsPolicy = Object<BackendTlsPolicySpec>;
pub type Service = Object<ServiceSpec>;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassSpec {
    pub controller_name: String,
    pub parameters_ref: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewaySpec {
    pub gateway_class_name: String,
    pub listeners: Vec<Listener>,
    pub addresses: Vec<GatewayAddress>,
    pub infrastructure: Infrastructure,
    pub tls: GatewayTls,
    pub allowed_listeners: AllowedListeners,
}

/// Namespaces whose ListenerSets may add listeners.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    /// Without a word no namespace is allowed.
    pub namespaces: AllowedNamespaces,
}

/// Listeners that a Gateway has beside its own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerSetSpec {
    pub parent_ref: Reference,
    pub listeners: Vec<Listener>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infrastructure {
    pub parameters_ref: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayTls {
    pub frontend: Frontend,
    pub backend: BackendTls,
}

/// TLS to servers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTls {
    /// The certificate that servers are shown.
    pub client_certificate_ref: Option<Reference>,
}

/// Certificates that clients have to show.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Frontend {
    pub default: FrontendTls,
    pub per_port: Vec<FrontendPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FrontendPort {
    pub port: u16,
    pub tls: FrontendTls,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FrontendTls {
    pub validation: Option<Validation>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Validation {
    #[serde(rename = "caCertificateRefs")]
    pub authorities: Vec<Reference>,
    pub mode: Option<String>,
}

impl Frontend {
    /// Validation that holds for a port.
    pub fn of(&self, port: u16) -> Option<&Validation> {
        match self.per_port.iter().find(|each| each.port == port) {
            Some(own) => own.tls.validation.as_ref(),
            None => self.default.validation.as_ref(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GatewayAddress {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Listener {
    pub name: String,
    pub hostname: Option<String>,
    pub port: u16,
    pub protocol: String,
    pub tls: Option<ListenerTls>,
    pub allowed_routes: AllowedRoutes,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerTls {
    pub mode: Option<String>,
    pub certificate_refs: Vec<Reference>,
    pub options: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    pub namespaces: AllowedNamespaces,
    pub kinds: Vec<RouteKind>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedNamespaces {
    /// `All`, `Selector`, `Same` or `None`.
    pub from: Option<String>,
    /// One that is empty holds for all namespaces; an absent one for none.
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RouteKind {
    #[serde(default = "own_group")]
    pub group: String,
    pub kind: String,
}

fn own_group() -> String {
    GROUP.to_owned()
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    pub match_labels: BTreeMap<String, String>,
    pub match_expressions: Vec<LabelExpression>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LabelExpression {
    pub key: String,
    pub operator: String,
    pub values: Vec<String>,
}

impl LabelSelector {
    pub fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let is_in = |each: &LabelExpression| labels.get(&each.key).is_some_and(|value| each.values.contains(value));
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|each| match each.operator.as_str() {
                "In" => is_in(each),
                "NotIn" => !is_in(each),
                "Exists" => labels.contains_key(&each.key),
                "DoesNotExist" => !labels.contains_key(&each.key),
                _ => false,
            })
    }
}

/// A reference to another resource. What is absent stands for a default of the place that refers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reference {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl Reference {
    pub fn key(&self, namespace: &str) -> Key {
        Key::new(self.namespace.as_deref().unwrap_or(namespace), &self.name)
    }

    pub fn is(&self, group: &str, kind: &str, default: (&str, &str)) -> bool {
        self.group.as_deref().unwrap_or(default.0) == group && self.kind.as_deref().unwrap_or(default.1) == kind
    }
}

/// Fields that all routes have, with rules of their kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "R: Deserialize<'de> + Default"))]
pub struct RouteSpec<R> {
    pub parent_refs: Vec<Reference>,
    pub hostnames: Vec<String>,
    pub rules: Vec<R>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRule {
    pub name: Option<String>,
    pub matches: Vec<HttpMatch>,
    pub filters: Vec<Filter>,
    pub backend_refs: Vec<BackendRef>,
    pub timeouts: Timeouts,
    pub retry: Option<Retry>,
    pub session_persistence: Option<SessionPersistence>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpMatch {
    pub path: Option<PathMatch>,
    pub headers: Vec<ValueMatch>,
    pub query_params: Vec<ValueMatch>,
    pub method: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PathMatch {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub value: Option<String>,
}

/// A match of a field or of a parameter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ValueMatch {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    pub name: Option<String>,
    pub matches: Vec<GrpcMatch>,
    pub filters: Vec<Filter>,
    pub backend_refs: Vec<BackendRef>,
    pub session_persistence: Option<SessionPersistence>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrpcMatch {
    pub method: Option<GrpcMethod>,
    pub headers: Vec<ValueMatch>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrpcMethod {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub service: Option<String>,
    pub method: Option<String>,
}

/// Clients that come back to the server that they had.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionPersistence {
    pub session_name: Option<String>,
    pub absolute_timeout: Option<String>,
    pub idle_timeout: Option<String>,
    /// `Cookie` (the default) or `Header`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub cookie_config: CookieConfig,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CookieConfig {
    /// `Session` (the default) or `Permanent`.
    pub lifetime_type: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RelayRule {
    pub backend_refs: Vec<BackendRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendRef {
    #[serde(flatten)]
    pub reference: Reference,
    pub weight: Option<u32>,
    pub filters: Vec<Filter>,
}

impl BackendRef {
    pub fn weight(&self) -> u32 {
        self.weight.unwrap_or(1)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    pub request: Option<String>,
    pub backend_request: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Retry {
    pub codes: Vec<u16>,
    pub attempts: Option<u32>,
    pub backoff: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Filter {
    #[serde(rename = "type")]
    pub kind: String,
    pub request_header_modifier: HeaderChanges,
    pub response_header_modifier: HeaderChanges,
    pub request_mirror: Mirror,
    pub request_redirect: Redirect,
    pub url_rewrite: Rewrite,
    pub cors: Cors,
    pub external_auth: ExternalAuth,
}

/// Another service that is asked whether a request may come in.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExternalAuth {
    /// `HTTP` or `GRPC`.
    pub protocol: String,
    pub backend_ref: Reference,
    pub http: HttpAuth,
    pub forward_body: ForwardBody,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpAuth {
    pub path: String,
    pub allowed_headers: Vec<String>,
    pub allowed_response_headers: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForwardBody {
    pub max_size: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HeaderChanges {
    pub set: Vec<Header>,
    pub add: Vec<Header>,
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Header {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mirror {
    pub backend_ref: Reference,
    pub percent: Option<f64>,
    pub fraction: Option<Fraction>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Fraction {
    pub numerator: f64,
    pub denominator: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Redirect {
    pub scheme: Option<String>,
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
    pub port: Option<u16>,
    pub status_code: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathModifier {
    #[serde(rename = "type")]
    pub kind: String,
    pub replace_full_path: Option<String>,
    pub replace_prefix_match: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Rewrite {
    pub hostname: Option<String>,
    pub path: Option<PathModifier>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cors {
    pub allow_origins: Vec<String>,
    pub allow_credentials: bool,
    pub allow_methods: Vec<String>,
    pub allow_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    pub max_age: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantSpec {
    pub from: Vec<GrantFrom>,
    pub to: Vec<GrantTo>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrantFrom {
    pub group: String,
    pub kind: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    pub group: String,
    pub kind: String,
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    pub target_refs: Vec<Reference>,
    pub validation: BackendValidation,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendValidation {
    #[serde(rename = "caCertificateRefs")]
    pub authorities: Vec<Reference>,
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known: Option<String>,
    pub hostname: String,
    pub subject_alt_names: Vec<AlternativeName>,
}

/// A name that a server's certificate may have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AlternativeName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub kind: String,
    pub hostname: String,
    pub uri: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    pub name: String,
    pub port: u16,
    pub protocol: String,
    pub app_protocol: Option<String>,
}

/// Addresses behind a Service; the label `kubernetes.io/service-name` says of which.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    pub metadata: Metadata,
    pub address_type: String,
    pub endpoints: Vec<Endpoint>,
    pub ports: Vec<EndpointPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    pub addresses: Vec<String>,
    pub conditions: EndpointConditions,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Absent means ready.
    pub ready: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    pub name: String,
    pub port: Option<u16>,
}

/// The part of a Secret that is looked at: other values are not kept.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Secret {
    pub metadata: Metadata,
    pub data: PairData,
}

/// Chain and key, in base64 as they came.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PairData {
    #[serde(rename = "tls.crt")]
    pub chain: Option<String>,
    #[serde(rename = "tls.key")]
    pub key: Option<String>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret {}", self.metadata.key())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    pub metadata: Metadata,
    pub data: AuthorityData,
}

/// Certificates of authorities: other values are not kept.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AuthorityData {
    #[serde(rename = "ca.crt")]
    pub authorities: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Metadata,
}
