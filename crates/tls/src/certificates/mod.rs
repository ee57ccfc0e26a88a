//! Certificates and their keys: loaded from files, kept, chosen for a client; and verification of peers.

pub(crate) mod client_auth;
pub(crate) mod credential;
pub(crate) mod dated;
pub(crate) mod file_stamp;
pub(crate) mod finding;
pub(crate) mod identity;
pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod profile;
pub(crate) mod resolver;
pub(crate) mod server_auth;
pub(crate) mod watch;
pub(crate) mod wording;
