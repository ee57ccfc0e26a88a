//! The resolved configuration: names as ids, units as types, defaults filled in.

mod acme;
mod announce;
mod answers;
mod auth;
mod backend;
mod change;
mod cluster;
mod compress;
mod conditions;
mod fastcgi;
mod files;
mod forwarding;
mod health;
mod keys;
mod limits;
mod listener;
mod log;
mod process;
mod request_id;
mod steps;
mod tls;
mod tracing;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::provenance::Provenance;

pub use crate::at::At;
pub use acme::*;
pub use announce::*;
pub use answers::*;
pub use auth::*;
pub use backend::*;
pub use change::*;
pub use cluster::*;
pub use compress::*;
pub use conditions::*;
pub use fastcgi::*;
pub use files::*;
pub use forwarding::*;
pub use health::*;
pub use keys::*;
pub use limits::*;
pub use listener::*;
pub use log::*;
pub use process::*;
pub use request_id::*;
pub use steps::*;
pub use tls::*;
pub use tracing::*;

/// Index into [`Config::listeners`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub usize);
/// Index into [`Config::tls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TlsId(pub usize);
/// Index into [`Config::backends`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub usize);

/// Number of a signer: [`Signer::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SignerId(pub usize);

/// A whole, valid configuration. Ids index the vectors of the same name.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The files that it is from.
    pub provenance: Provenance,
    /// Key `include`: patterns of the files that are part of it. Default none.
    pub include: Vec<Include>,
    /// Section `[process]`.
    pub process: Process,
    /// Section `[admin]`. Absent: no admin API.
    pub admin: Option<Admin>,
    /// Section `[log]`.
    pub log: Log,
    /// Section `[keys]`.
    pub keys: Keys,
    /// Section `[tracing]`. Absent: no request is traced.
    pub tracing: Option<Tracing>,
    /// Section `[cluster]`. Absent: this engine is by itself.
    pub cluster: Option<Cluster>,
    /// Section `[announce]`. Absent: nothing is announced.
    pub announce: Option<Announce>,
    /// Sections `[listener.NAME]`, in file order.
    pub listeners: Vec<Listener>,
    /// Sections `[tls.NAME]`, in file order.
    pub tls: Vec<TlsProfile>,
    /// Sections `[signer.NAME]`, in file order.
    pub signers: Vec<Signer>,
    /// Sections `[acme.NAME]`, in file order.
    pub acmes: Vec<Acme>,
    /// Sections `[backend.NAME]`, in file order.
    pub backends: Vec<Backend>,
    /// Sections `[[route]]`, in file order, which has no meaning: the most specific route wins.
    pub routes: Vec<Route>,
}

impl Config {
    /// Indexes of listeners by their names.
    pub fn listener_indexes(&self) -> HashMap<&str, usize> {
        self.listeners.iter().map(|listener| listener.name.as_str()).zip(0..).collect()
    }

    /// Indexes of backends by their names.
    pub fn backend_indexes(&self) -> HashMap<&str, usize> {
        self.backends.iter().map(|backend| backend.name.as_str()).zip(0..).collect()
    }
}

/// A pattern of `include`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Include {
    /// The folder of its files, or the one that they are beneath.
    pub folder: PathBuf,
    /// Position of the pattern.
    pub at: At,
}

/// A rule that selects requests and says what is done with them. The most specific route wins.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Name of the route in metrics, logs and lists; no two have the same. Default none.
    pub name: Option<String>,
    /// Label in metrics: the name, or one made of the route's host and path.
    pub label: String,
    /// Listener of the requests. Absent: every http listener.
    pub listener: Option<ListenerId>,
    /// Hosts that the route matches. Default any.
    pub host: HostPattern,
    /// Paths that the route matches. Default all: the prefix `/`.
    pub path: PathPattern,
    /// Conditions on the rest of a request. Default none.
    pub conditions: Conditions,
    /// Action for matching requests.
    pub action: Action,
    /// Whether clients without a verified certificate get 403. Default no.
    pub require_client_certificate: bool,
    /// Steps that are taken with matching requests and their responses. Default none.
    pub steps: Steps,
    /// Position of the route in the file.
    pub at: At,
}

/// Pattern for the host of a request. Host names are lower-case ASCII without a trailing dot and without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Every host, and requests without one.
    Any,
    /// One host.
    Exact(String),
    /// Wildcard `*.example`: holds the text after `*`, with its dot; stands for one or more labels.
    Suffix(String),
}

/// As configurations write it; `*` for every host.
impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Any => f.write_str("*"),
            HostPattern::Exact(host) => f.write_str(host),
            HostPattern::Suffix(suffix) => write!(f, "*{suffix}"),
        }
    }
}

/// Pattern for the path of a request, in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// Prefix of whole segments: `/api` matches `/api` and `/api/x`, not `/apix`; `/api/` matches what begins with it.
    Prefix(String),
    /// One path.
    Exact(String),
    /// A pattern that the path has in it (syntax of the crate `regex`); `^` and `$` tie it to the whole.
    Regex(String),
}

/// Action of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request goes to a server of this backend. With a `split` among the steps it is the first of its backends.
    Backend(BackendId),
    /// The client is redirected.
    Redirect(Redirect),
    /// Propylon itself answers.
    Respond(Respond),
}

/// A redirect. The Location is made of the parts given here; absent parts are those of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Redirect {
    /// Status: 301, 302, 303, 307 or 308 (default).
    pub status: u16,
    /// Scheme: "http" or "https".
    pub scheme: Option<String>,
    /// Host, lower-case ASCII.
    pub host: Option<String>,
    /// Port, not 0.
    pub port: Option<u16>,
    /// Path and query, in place of the request's, or what is done to its path.
    pub path: Option<RedirectPath>,
}

/// A fixed answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Respond {
    /// Status, 200 to 599.
    pub status: u16,
    /// Body of the answer. Default empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// File that has the body instead.
    #[serde(serialize_with = "crate::shown::written")]
    pub body_file: Option<std::path::PathBuf>,
    /// Content-Type of the answer. Default that of the file's extension, or "text/plain; charset=utf-8".
    pub content_type: String,
}
