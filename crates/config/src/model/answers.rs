//! Bodies of answers from files, error pages, and answers to browsers of other origins (CORS).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::shown;

/// Form of errors on a listener or a route. A route's goes before its listener's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// Pages by status or class of statuses.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "by_statuses")]
    pub error_pages: Vec<ErrorPage>,
    /// Form of the engine's own errors that have no page. Default text.
    pub error_format: Option<ErrorFormat>,
    /// Whether pages take the place of servers' responses with such statuses. Default no.
    pub intercept_errors: Option<bool>,
}

/// Pages for a status or a class of statuses: at least one form of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorPage {
    /// Statuses that the page is for.
    #[serde(skip)]
    pub statuses: Statuses,
    /// File of the page in HTML.
    #[serde(serialize_with = "shown::written")]
    pub html: Option<PathBuf>,
    /// File of the page in JSON.
    #[serde(serialize_with = "shown::written")]
    pub json: Option<PathBuf>,
    /// File of the page in plain text.
    #[serde(serialize_with = "shown::written")]
    pub text: Option<PathBuf>,
}

/// Statuses of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statuses {
    /// One, 400 to 599.
    One(u16),
    /// All that begin with this digit: 4 or 5.
    Class(u8),
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Statuses::One(status) => write!(f, "{status}"),
            Statuses::Class(digit) => write!(f, "{digit}xx"),
        }
    }
}

/// Form of an error that has no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorFormat {
    /// A line of text.
    Text,
    /// A small page.
    Html,
    /// Problem details (RFC 9457).
    Json,
    /// Form that the request's Accept likes best of these three.
    Accept,
}

fn by_statuses<S: Serializer>(pages: &[ErrorPage], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pages.iter().map(|page| (page.statuses.to_string(), page)))
}

/// Answers to browsers whose pages are of other origins (Fetch standard, "CORS protocol").
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cors {
    /// Origins whose pages may read responses; not empty.
    pub origins: Vec<OriginPattern>,
    /// Methods beside GET, HEAD and POST that they may use, or `*`. Default none.
    pub methods: Vec<String>,
    /// Fields beside the safe ones that they may send, or `*`. Default none.
    pub headers: Vec<String>,
    /// Fields of responses beside the safe ones that they may read, or `*`. Default none.
    pub expose: Vec<String>,
    /// Whether cookies and other credentials come with their requests. Default no.
    pub credentials: bool,
    /// Whether `*` is answered with the origin, the method and the fields that are asked for. Default no.
    pub echo: bool,
    /// Time for which browsers may remember what they may do. Absent: the browser's, 5 s.
    #[serde(serialize_with = "shown::written")]
    pub max_age: Option<Duration>,
}

/// Pattern for an origin. Hosts are lower-case ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// Every origin.
    Any,
    /// One origin, as browsers write it.
    Exact(String),
    /// Every host below a domain.
    Below {
        /// Scheme with `://`.
        scheme: String,
        /// Domain with the dot before it, and with the port if that is not the scheme's own.
        suffix: String,
    },
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OriginPattern::Any => f.write_str("*"),
            OriginPattern::Exact(origin) => f.write_str(origin),
            OriginPattern::Below { scheme, suffix } => write!(f, "{scheme}*{suffix}"),
        }
    }
}

shown::serialize_as_displayed!(OriginPattern);
