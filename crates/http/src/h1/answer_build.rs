//! Rules for responses, field by field, which hold for all versions of HTTP.

pub(crate) use super::response::{finish, frame, note_field, note_switch};
pub(crate) use super::rewrite::write_via;
