//! Steps of a route: what is done to its requests and to their responses, beside its action.

use serde::Serialize;

use super::{Compress, Limit};

/// Steps of a route. Default none: its requests cost nothing more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Steps {
    /// Limits, all of which a request has to keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limit: Vec<Limit>,
    /// Compression of what servers answer. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compress: Option<Compress>,
}

impl Steps {
    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        *self == Steps::default()
    }
}
