//! Certificates and their keys: read from files, kept until a client asks for them, and chosen for it; and whom to trust.

pub(crate) mod client_auth;
pub(crate) mod credential;
pub(crate) mod dated;
pub(crate) mod finding;
pub(crate) mod identity;
pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod look;
pub(crate) mod names;
pub(crate) mod profile;
pub(crate) mod resolver;
pub(crate) mod server_auth;
pub(crate) mod watch;
pub(crate) mod wording;
