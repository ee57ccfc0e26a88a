//! IDs of requests: `request_id` of a listener.

use serde::Serialize;

/// How requests of a listener get their IDs, and who is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RequestIds {
    /// Name of the field that has the ID. Default X-Request-ID.
    pub header: String,
    /// Clients whose own IDs stay. Default trusted where forwarded fields are continued, else never.
    pub accept: AcceptIds,
    /// Whether clients get the ID with every answer. Default no.
    #[serde(rename = "return")]
    pub returned: bool,
}

/// Clients whose IDs stay; those of others are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptIds {
    /// Every ID is made here.
    Never,
    /// The proxies in front, whose word about their clients is believed.
    Trusted,
    /// Any client.
    Always,
}
