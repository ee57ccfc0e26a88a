//! Steps of `[[route]]`.

use crate::context::Context;
use crate::model::Steps;
use crate::walk::Section;

/// Reads the keys of a route that are steps.
pub(crate) fn steps(_context: &Context<'_, '_>, _section: &mut Section<'_, '_>) -> Steps {
    Steps {}
}
