//! Steps of a route: what is done to its requests and to their responses, beside its action.

use serde::Serialize;

/// Steps of a route. Default none: its requests cost nothing more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Steps {}

impl Steps {
    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        *self == Steps::default()
    }
}
