//! Knowledge that the sections of a configuration have of each other while it is read and checked.

use std::path::Path;

use crate::model::Route;
use crate::report::Report;
use crate::text::Span;
use crate::walk::Names;

/// Knowledge that the sections of a file have of each other.
pub(crate) struct Context<'r, 't> {
    pub report: &'r Report<'t>,
    pub base: &'r Path,
    pub listeners: Names<'r>,
    pub tls: Names<'r>,
    pub signers: Names<'r>,
    pub acmes: Names<'r>,
    pub backends: Names<'r>,
    /// Setting of `[process]`.
    pub allow_world_readable_keys: bool,
}

/// A route, with what the checks across sections need beside it.
pub(crate) struct RouteDraft {
    /// Has stand-ins for what is wrong, unless it is complete.
    pub route: Route,
    pub span: Span,
    /// Whether listener, host and path are as they should be, so that it can be compared with other routes.
    pub complete: bool,
}
