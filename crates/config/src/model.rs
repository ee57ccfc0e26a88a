//! The configuration as meant: names resolved to ids, units to types, defaults filled in.

mod acme;
mod backend;
mod files;
mod health;
mod keys;
mod listener;
mod process;
mod tls;
mod tracing;

pub use acme::*;
pub use backend::*;
pub use files::*;
pub use health::*;
pub use keys::*;
pub use listener::*;
pub use process::*;
pub use tls::*;
pub use tracing::*;

/// Where in the file something was written: line and column count from 1, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// Characters to underline; at least 1.
    pub length: u32,
}

impl At {
    /// The place, unless it is that of what is written nowhere: a default, or what the admin API has added.
    pub fn known(self) -> Option<At> {
        (self.line > 0).then_some(self)
    }
}

/// Index into [`Config::listeners`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub usize);
/// Index into [`Config::tls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TlsId(pub usize);
/// Index into [`Config::backends`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub usize);

/// Index into [`Config::signers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SignerId(pub usize);

/// A whole configuration without errors. Ids index the vectors of the same name.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[process]`
    pub process: Process,
    /// `[admin]`; absent: no admin API.
    pub admin: Option<Admin>,
    /// `[log]`
    pub log: Log,
    /// `[keys]`
    pub keys: Keys,
    /// `[tracing]`; absent: nothing is traced.
    pub tracing: Option<Tracing>,
    /// `[listener.NAME]`, in file order.
    pub listeners: Vec<Listener>,
    /// `[tls.NAME]`, in file order.
    pub tls: Vec<TlsProfile>,
    /// `[signer.NAME]`, in file order.
    pub signers: Vec<Signer>,
    /// `[acme.NAME]`, in file order.
    pub acmes: Vec<Acme>,
    /// `[backend.NAME]`, in file order.
    pub backends: Vec<Backend>,
    /// `[[route]]`, in file order, which means nothing.
    pub routes: Vec<Route>,
}

/// Which requests go where. The most specific route wins.
#[derive(Clone, Debug)]
pub struct Route {
    /// Absent: every http listener.
    pub listener: Option<ListenerId>,
    /// Hosts it stands for. Default any.
    pub host: HostPattern,
    /// Paths it stands for. Default all: the prefix `/`.
    pub path: PathPattern,
    /// What is done with the request.
    pub action: Action,
    /// Clients without a verified certificate get 403. Default no.
    pub require_client_certificate: bool,
    /// Where it is written.
    pub at: At,
}

/// Host names are lower-case ASCII without a trailing dot and without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Every host, and requests without one.
    Any,
    /// This host.
    Exact(String),
    /// `*.example`: the text after `*`, with its dot; stands for one or more labels.
    Suffix(String),
}

/// Paths are compared with those of requests as they were sent, without any normalisation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// Matches by whole segments: `/api` stands for `/api` and `/api/x`, not `/apix`; `/api/` for what begins with it.
    Prefix(String),
    /// This path.
    Exact(String),
}

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A server of this backend answers it.
    Backend(BackendId),
    /// The client is sent elsewhere.
    Redirect(Redirect),
    /// Propylon answers it.
    Respond(Respond),
}

/// The location is made of what is given here; what is absent comes from the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308 (default).
    pub status: u16,
    /// "http" or "https".
    pub scheme: Option<String>,
    /// Lower-case ASCII.
    pub host: Option<String>,
    /// Not 0.
    pub port: Option<u16>,
    /// Replaces path and query.
    pub path: Option<String>,
}

/// An answer made up on the spot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    /// 200 to 599.
    pub status: u16,
    /// Default empty.
    pub body: String,
    /// Default "text/plain; charset=utf-8".
    pub content_type: String,
}
