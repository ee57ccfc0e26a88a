//! Changes that a route makes to requests and responses on their way.

use serde::{Serialize, Serializer};

use super::{Piece, RequestHeader, SameSite, template};

/// Changes of requests on their way to servers. Default none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestChanges {
    /// Changes of header fields.
    #[serde(flatten)]
    pub fields: FieldChanges,
    /// Host that servers are asked for. Absent: the client's.
    pub host: Option<HostChange>,
    /// Path that servers are asked for. Absent: the client's, in canonical form.
    pub path: Option<PathChange>,
    /// Changes of the query.
    #[serde(skip_serializing_if = "QueryChanges::is_empty")]
    pub query: QueryChanges,
}

/// Changes of responses on their way to clients, those of Propylon itself among them. Default none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResponseChanges {
    /// Changes of header fields.
    #[serde(flatten)]
    pub fields: FieldChanges,
    /// Attributes of the cookies that servers set.
    #[serde(skip_serializing_if = "CookieChanges::is_empty")]
    pub cookies: CookieChanges,
    /// Changes of where servers' redirects lead; the first that fits is made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub location: Vec<LocationChange>,
}

/// Change of a server's Location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocationChange {
    /// Beginning of it, byte for byte.
    pub from: String,
    /// Text in place of the beginning. With a fact that is not known nothing is changed.
    #[serde(serialize_with = "text")]
    pub to: Vec<Piece>,
}

/// Changes of header fields. A field with a fact that is not known is not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldChanges {
    /// Fields in place of all lines of their names.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "lines")]
    pub set: Vec<RequestHeader>,
    /// Lines beside those that are there.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "lines")]
    pub add: Vec<RequestHeader>,
    /// Elements behind those of the lists that are there, or lists of their own (RFC 9110 §5.6.1).
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "lines")]
    pub append: Vec<RequestHeader>,
    /// Names of fields that do not go on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// Host that servers are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostChange {
    /// A name with or without a port, as Host has it.
    Name(String),
    /// The server's own address as the backend has it, without a port that the scheme stands for.
    Server,
}

/// Change of a path, which is in canonical form. The query is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PathChange {
    /// The beginning is taken off, if it is this, as a prefix of whole segments.
    Strip {
        /// The prefix.
        strip: String,
    },
    /// The prefix that the route matches becomes another.
    ReplacePrefix {
        /// The other prefix.
        replace_prefix: String,
    },
    /// The path becomes another.
    Replace {
        /// The other path.
        replace: String,
    },
    /// Whatever the pattern finds becomes another text.
    Regex {
        /// The pattern (syntax of the crate `regex`); `^` and `$` tie it to the whole.
        regex: String,
        /// Text in which `$1` and `${name}` stand for what groups have found, and `$$` for a dollar. Behind a `?` it
        /// is a query.
        to: String,
    },
}

/// Changes of a query. Names and values are as they are before they are encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueryChanges {
    /// Parameters in place of all of their names.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "lines")]
    pub set: Vec<RequestHeader>,
    /// Parameters beside those that are there.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "lines")]
    pub add: Vec<RequestHeader>,
    /// Names of parameters that do not go on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// Attributes of the cookies that servers set; absent ones are as the server has said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CookieChanges {
    /// Whether they say Secure.
    pub secure: Option<bool>,
    /// Whether they say HttpOnly.
    pub http_only: Option<bool>,
    /// SameSite of all of them.
    pub same_site: Option<SameSite>,
    /// Domain in place of the one that is said; empty: none is said.
    pub domain: Option<String>,
    /// Path of all of them.
    pub path: Option<String>,
}

/// Fields that make browsers careful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SecurityHeaders {
    /// TLS only, no frames, no guessed types, no referrers for other sites.
    Strict,
}

/// Path of a redirect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum RedirectPath {
    /// Path and query, in place of the request's.
    Fixed(String),
    /// Change of the request's path.
    Changed(PathChange),
}

impl RequestChanges {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == RequestChanges::default()
    }
}

impl ResponseChanges {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == ResponseChanges::default()
    }
}

impl FieldChanges {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == FieldChanges::default()
    }

    /// Names of all fields that are written or removed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.written().map(|line| line.name.as_str()).chain(self.remove.iter().map(String::as_str))
    }

    /// Changes of both, the others after these: of a field that both write the latter say what it is.
    pub fn then(&self, after: &FieldChanges) -> FieldChanges {
        let mut both = self.clone();
        for line in &after.set {
            both.forget(&line.name);
            both.set.push(line.clone());
        }
        for name in &after.remove {
            both.forget(name);
            both.remove.push(name.clone());
        }
        for line in &after.add {
            // Another line of what has been removed is the only one.
            let is_removed = both.remove.iter().any(|name| name.eq_ignore_ascii_case(&line.name));
            both.remove.retain(|name| !name.eq_ignore_ascii_case(&line.name));
            if is_removed { &mut both.set } else { &mut both.add }.push(line.clone());
        }
        for line in &after.append {
            both.append(line);
        }
        both
    }

    fn forget(&mut self, name: &str) {
        for lines in [&mut self.set, &mut self.add, &mut self.append] {
            lines.retain(|line| !line.name.eq_ignore_ascii_case(name));
        }
        self.remove.retain(|removed| !removed.eq_ignore_ascii_case(name));
    }

    /// Adds an element to a list. A line of its own says the same as one more element (RFC 9110 §5.3), where others
    /// have been written.
    fn append(&mut self, line: &RequestHeader) {
        let is_named = |name: &str| name.eq_ignore_ascii_case(&line.name);
        if self.remove.iter().any(|name| is_named(name)) {
            self.remove.retain(|name| !is_named(name));
            self.set.push(line.clone());
        } else if self.written().any(|written| is_named(&written.name)) {
            self.add.push(line.clone());
        } else {
            self.append.push(line.clone());
        }
    }

    /// Fields that are written.
    pub fn written(&self) -> impl Iterator<Item = &RequestHeader> {
        self.set.iter().chain(&self.add).chain(&self.append)
    }
}

impl QueryChanges {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == QueryChanges::default()
    }
}

impl CookieChanges {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == CookieChanges::default()
    }
}

impl Serialize for HostChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            HostChange::Name(name) => name,
            HostChange::Server => "{upstream.server}",
        })
    }
}

/// Pieces as a text.
fn text<S: Serializer>(pieces: &[Piece], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&template(pieces))
}

/// Lines as a table.
fn lines<S: Serializer>(lines: &[RequestHeader], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(lines.iter().map(|line| (&line.name, template(&line.value))))
}

/// Facts that values are made of.
pub fn facts(lines: &[RequestHeader]) -> impl Iterator<Item = super::Fact> {
    let pieces = lines.iter().flat_map(|line| &line.value);
    pieces.filter_map(|piece| if let Piece::Fact(fact) = piece { Some(*fact) } else { None })
}
