//! The resolved model of FastCGI towards a backend's servers.

use serde::{Serialize, Serializer};

use super::{RequestHeader, template};

/// Settings of FastCGI towards servers: `fastcgi` of `[backend.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FastCgi {
    /// Document root: the absolute path of the folder that scripts are in, as the servers see it, without a
    /// `/` at its end.
    #[serde(serialize_with = "written_root")]
    pub root: String,
    /// Script below the root that takes every request whose path is no other's. Default `/index.php`.
    pub index: String,
    /// Other scripts that paths may run. Default none.
    pub scripts: Scripts,
    /// End of a script's name, behind which the path is the script's to read. Default `.php`.
    pub split: String,
    /// Whether servers are to keep connections for further requests. Default no: php-fpm has a process wait at each.
    pub keep: bool,
    /// Bytes of a request's body of unknown length that are held until its end, at most. Default 1 MiB.
    pub body_buffer: u64,
    /// Parameters besides those of CGI, or in place of them.
    #[serde(serialize_with = "written", skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<RequestHeader>,
}

impl FastCgi {
    /// Settings with nothing but a root.
    pub fn at_root(root: &str) -> FastCgi {
        FastCgi {
            root: root.into(),
            index: "/index.php".into(),
            scripts: Scripts::Index,
            split: ".php".into(),
            keep: false,
            body_buffer: 1 << 20,
            params: Vec::new(),
        }
    }
}

/// Scripts that paths may run besides the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scripts {
    /// No other.
    Index,
    /// Scripts of these paths, in whose last segments a `*` stands for any part of a name.
    Named(Vec<String>),
    /// All that are not below what looks like a file.
    Any,
}

impl Serialize for Scripts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Scripts::Index => serializer.serialize_str("index"),
            Scripts::Any => serializer.serialize_str("any"),
            Scripts::Named(patterns) => patterns.serialize(serializer),
        }
    }
}

fn written<S: Serializer>(params: &[RequestHeader], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(params.iter().map(|param| (&param.name, template(&param.value))))
}

fn written_root<S: Serializer>(root: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if root.is_empty() { "/" } else { root })
}
