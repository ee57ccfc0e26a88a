//! Steps of `[[route]]`.

use super::limits;
use crate::context::Context;
use crate::model::Steps;
use crate::walk::Section;

/// Reads the keys of a route that are steps.
pub(crate) fn steps(context: &Context<'_, '_>, section: &mut Section<'_, '_>) -> Steps {
    Steps { limit: limits::limits(context, section) }
}
