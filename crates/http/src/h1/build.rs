//! Rules for requests, field by field, which hold for all versions of HTTP.

pub(crate) use super::request::{finish, frame, note_authority, note_field, note_upgrade, read_method, read_target};
pub(crate) use super::rewrite::{goes_on, write_body_lines, write_origin_lines};
