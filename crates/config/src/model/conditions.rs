//! Conditions of a route on what a request is beside its listener, host and path.

use serde::{Serialize, Serializer};

use super::Network;

/// Conditions of a route: all of them hold, or the route does not match. Empty lists are no conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Conditions {
    /// Methods, one of which is the request's. They are compared with case (RFC 9110 §9.1).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub method: Vec<String>,
    /// Header fields, by names in lower case. Lines of one name are joined by ", " (RFC 9110 §5.3).
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    pub header: Vec<TextCondition>,
    /// Parameters of the query, decoded as forms are; of several with one name the first.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    pub query: Vec<TextCondition>,
    /// Cookies as they are sent (RFC 6265 §5.4); of several with one name the first.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    pub cookie: Vec<TextCondition>,
    /// Networks, in one of which the client's address is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<Network>,
}

/// A condition on the text of a header field, a parameter or a cookie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TextCondition {
    /// Name of what is looked at.
    pub name: String,
    /// Condition on its text.
    pub test: TextTest,
}

/// A condition on a text. All but `Absent` need it to be there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TextTest {
    /// Presence, with any text.
    Present,
    /// Absence.
    Absent,
    /// This text, byte for byte.
    Exact(String),
    /// A text that begins with this.
    Prefix(String),
    /// A text in which the pattern is found (syntax of the crate `regex`); `^` and `$` tie it to the whole.
    Regex(String),
}

impl Conditions {
    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        *self == Conditions::default()
    }
}

/// Conditions on texts as a table.
fn texts<S: Serializer>(conditions: &[TextCondition], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(conditions.iter().map(|condition| (&condition.name, &condition.test)))
}

impl Serialize for TextTest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            TextTest::Exact(text) => serializer.serialize_str(text),
            TextTest::Present => serializer.collect_map([("present", true)]),
            TextTest::Absent => serializer.collect_map([("present", false)]),
            TextTest::Prefix(text) => serializer.collect_map([("prefix", text)]),
            TextTest::Regex(pattern) => serializer.collect_map([("regex", pattern)]),
        }
    }
}
