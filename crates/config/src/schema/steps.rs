//! Steps of `[[route]]`.

use super::{compress, limits};
use crate::context::Context;
use crate::model::{Action, Steps};
use crate::walk::Section;

/// Reads the keys of a route that are steps. `action`: what the route does when they are taken.
pub(crate) fn steps(context: &Context<'_, '_>, section: &mut Section<'_, '_>, action: &Action) -> Steps {
    Steps { limit: limits::limits(context, section), compress: compress::compress(section, action) }
}
