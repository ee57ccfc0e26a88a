//! Positions in a text.

use serde::{Serialize, Serializer};

/// Position in the text, with included files behind their own: line and column count from 1, in characters.
/// [`crate::Provenance::place`] says which file is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// Length of the underlined text in characters, at least 1.
    pub length: u32,
}

/// Positions are no part of what is shown.
impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_none()
    }
}

impl At {
    /// The position; `None` for values that no file contains: defaults, and additions by the admin API.
    pub fn known(self) -> Option<At> {
        (self.line > 0).then_some(self)
    }
}
