//! Session persistence (GEP-1619): cookies by which clients come back to the server that they had.

use std::path::Path;

use serde_json::{Value, json};

use super::draft::mark;
use crate::conditions::Trouble;
use crate::duration;
use crate::resources::SessionPersistence;

/// Name of a cookie where a rule says none, before what tells the rule from others: one name for all would let each
/// forget what another has set.
const COOKIE: &str = "propylon-session";

/// `sticky` of backends, and of routes with a list of them.
pub struct Sticky {
    pub of_backend: Value,
    pub of_list: Value,
}

impl Sticky {
    /// A part of names, which tells backends with it from others of the same servers.
    pub fn mark(&self) -> String {
        mark(&self.of_backend)
    }
}

/// Keys for what a rule asks for; the file has the secret that all engines share. `rule` is what tells it from others.
pub fn sticky(session: &SessionPersistence, rule: &Value, key_file: Option<&Path>) -> Result<Sticky, Trouble> {
    let unsupported = |what: &str| Err(Trouble::new("UnsupportedValue", what));
    let Some(key_file) = key_file else {
        return unsupported("sessionPersistence needs a secret that engines share: give the controller --sticky-key");
    };
    if session.kind.as_deref().unwrap_or("Cookie") != "Cookie" {
        return unsupported("sessionPersistence by a header is not served: use type Cookie");
    }
    if session.idle_timeout.is_some() {
        return unsupported("sessionPersistence.idleTimeout is not served: cookies have an absoluteTimeout");
    }
    let is_permanent = session.cookie_config.lifetime_type.as_deref() == Some("Permanent");
    let limit = match session.absolute_timeout.as_deref().map(duration::milliseconds) {
        Some(None) => return unsupported("sessionPersistence.absoluteTimeout is no duration"),
        Some(limit) => limit.filter(|limit| *limit > 0),
        None => None,
    };
    // A session ends with the browser then, which forgets its cookies.
    if limit.is_some() && !is_permanent {
        return unsupported("absoluteTimeout holds for cookies of lifetimeType Permanent alone");
    }
    let name = match session.session_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => format!("{COOKIE}-{}", mark(rule)),
    };
    let mut of_backend = json!({ "cookie": name, "key_file": key_file.display().to_string() });
    let mut of_list = json!({ "cookie": format!("{name}-backend") });
    if let Some(limit) = limit {
        // Cookies count seconds.
        let ttl = format!("{}s", limit.div_ceil(1000));
        of_backend["ttl"] = ttl.clone().into();
        of_list["ttl"] = ttl.into();
    }
    Ok(Sticky { of_backend, of_list })
}
