//! Steps of a route: what is done to its requests and to their responses, beside its action.

use serde::Serialize;

use super::{
    Auth, BackendId, Buffer, Compress, Cors, Errors, FieldChanges, Hedge, Limit, Mirror, Priority, RequestChanges,
    ResponseChanges, Retries, RouteTimeouts, SecurityHeaders, Side, Split, ThrottleKey,
};

/// Steps of a route. Default none: its requests cost nothing more.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Steps {
    /// Changes of requests on their way to servers. Default none.
    #[serde(skip_serializing_if = "RequestChanges::is_empty")]
    pub request: RequestChanges,
    /// Changes of responses on their way to clients. Default none.
    #[serde(skip_serializing_if = "ResponseChanges::is_empty")]
    pub response: ResponseChanges,
    /// Fields that make browsers careful, for responses that lack them. Default none.
    pub security_headers: Option<SecurityHeaders>,
    /// Form of errors.
    #[serde(flatten)]
    pub errors: Errors,
    /// Pages of other origins that may use the route. Absent: none but what servers say themselves.
    pub cors: Option<Cors>,
    /// Proof that requests have to bring. Absent: none.
    pub auth: Option<Auth>,
    /// Limits, all of which a request has to keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limit: Vec<Limit>,
    /// Compression of what servers answer. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compress: Option<Compress>,
    /// Division of the requests among several backends. Absent: all go to one.
    #[serde(skip)]
    pub split: Option<Split>,
    /// Backend of requests for which theirs has no server. Absent: those are refused.
    #[serde(skip)]
    pub fallback: Option<BackendId>,
    /// Timeouts in place of the backend's.
    #[serde(skip_serializing_if = "is_default")]
    pub timeouts: RouteTimeouts,
    /// Repeats in place of the backend's. Absent: as the backend has it.
    pub retries: Option<Retries>,
    /// Second attempts beside a first that is late. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge: Option<Hedge>,
    /// Priority where requests wait for a connection to a server. Default normal.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Bodies that are held, so that slow clients hold no server. Default none.
    #[serde(skip_serializing_if = "Buffer::is_off")]
    pub buffer: Buffer,
    /// Longest body that a request may have, in bytes. Absent: any.
    pub body_limit: Option<u64>,
    /// Pace of bodies. Absent: as fast as both sides go.
    pub throttle: Option<Throttle>,
    /// Whether calls of gRPC-Web, as browsers make them, go to servers as calls of gRPC. Default no.
    #[serde(skip_serializing_if = "is_default")]
    pub grpc_web: bool,
    /// Copies for other backends. Default none.
    #[serde(skip)]
    pub mirrors: Vec<Mirror>,
}

/// Pace of a request's bodies: `throttle` of `[[route]]`. Bodies wait, and nobody is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Throttle {
    /// Bytes of a response's body in a second. Absent: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download: Option<u64>,
    /// Bytes of a request's body in a second. Absent: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<u64>,
    /// Bytes of either body that go as fast as they can before the rest is slowed down. Default 0.
    pub after: u64,
    /// Key that bodies share the pace by. Absent: each request has its own.
    #[serde(flatten)]
    pub by: Option<ThrottleKey>,
}

impl Steps {
    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        *self == Steps::default()
    }

    /// Backends that requests may go to, beside the first.
    pub fn other_backends(&self) -> impl Iterator<Item = BackendId> {
        let sides = self.split.iter().flat_map(|split| split.sides.iter().filter_map(Side::backend));
        sides.chain(self.fallback)
    }

    /// Backends that the route names, beside the first.
    pub fn named_backends(&self) -> impl Iterator<Item = BackendId> {
        self.other_backends().chain(self.mirrors.iter().map(|mirror| mirror.backend))
    }

    /// Changes of requests' fields: the route's, and those of its sides.
    pub fn request_fields(&self) -> impl Iterator<Item = &FieldChanges> {
        let sides = self.split.iter().flat_map(|split| &split.sides);
        std::iter::once(&self.request.fields).chain(sides.map(|side| &side.request))
    }

    /// Changes of responses' fields: the route's, and those of its sides.
    pub fn response_fields(&self) -> impl Iterator<Item = &FieldChanges> {
        let sides = self.split.iter().flat_map(|split| &split.sides);
        std::iter::once(&self.response.fields).chain(sides.map(|side| &side.response))
    }

    /// Backends that are asked who may come in.
    pub fn asked_backends(&self) -> impl Iterator<Item = BackendId> {
        self.auth.iter().flat_map(|auth| auth.forwards()).map(|forward| forward.backend)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
