//! Values that go into a translation beside resources, and all that comes out of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::resources::Key;
use crate::world::Kind;

/// Contents of files by their names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Values that do not come from resources.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `controllerName` of the classes that are ours.
    pub controller: String,
    /// Sections that engines are configured with in any case: `[process]`, `[admin]`, `[log]` and the like.
    pub base: Map<String, Value>,
    /// Addresses of engines, in the order in which Gateways get them. With a single one all Gateways share it.
    pub addresses: Vec<Address>,
    /// Folder of files as engines see it.
    pub files: PathBuf,
    /// Port of the loopback address where nobody listens, for connections of relays that are to be closed.
    pub closed_port: u16,
    /// File with the secret of cookies by which clients come back to their server, as engines see it.
    pub sticky_key: Option<PathBuf>,
    /// Listener of the base that says from now on that the engine is ready.
    pub ready: Option<Ready>,
}

/// A path of a listener of the base that answers by whether the engine takes requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub listener: String,
    pub path: String,
}

impl std::str::FromStr for Ready {
    type Err = String;

    /// `NAME/PATH`.
    fn from_str(text: &str) -> Result<Ready, String> {
        match text.split_once('/') {
            Some((listener, path)) if !listener.is_empty() && !path.is_empty() => {
                Ok(Ready { listener: listener.to_owned(), path: format!("/{path}") })
            }
            _ => Err("write the name of a listener and a path, as in ready/ready".to_owned()),
        }
    }
}

impl Settings {
    /// Addresses that no Gateway's listener may have: those of the base, its admin address, and the closed port.
    pub fn own_addresses(&self) -> Vec<SocketAddr> {
        let sections = self.base.get("listener").and_then(Value::as_object).into_iter().flatten();
        let binds = sections.map(|(_, table)| &table["bind"]).chain(self.base.get("admin").map(|admin| &admin["bind"]));
        let texts = binds.flat_map(|bind| bind.as_array().map_or(std::slice::from_ref(bind), Vec::as_slice));
        let own = texts.filter_map(|text| text.as_str()?.parse().ok());
        own.chain([SocketAddr::from(([127, 0, 0, 1], self.closed_port))]).collect()
    }
}

/// An address that listeners are bound to, and what others know it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub bind: String,
    pub advertised: String,
}

impl std::str::FromStr for Address {
    type Err = String;

    /// `BIND` or `BIND=ADVERTISED`.
    fn from_str(text: &str) -> Result<Address, String> {
        let (bind, advertised) = text.split_once('=').unwrap_or((text, text));
        let is_address = |text: &str| text.parse::<std::net::IpAddr>().is_ok();
        match is_address(bind) && is_address(advertised) {
            true => Ok(Address { bind: bind.to_owned(), advertised: advertised.to_owned() }),
            false => Err("write an IP address, or BIND=ADVERTISED with two of them".to_owned()),
        }
    }
}

impl Address {
    /// The address with a port, as `bind` of a listener has it.
    pub fn with(&self, port: u16) -> String {
        match self.bind.contains(':') {
            true => format!("[{}]:{port}", self.bind),
            false => format!("{}:{port}", self.bind),
        }
    }
}

/// A status that is to be written in the place of the one that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusChange {
    pub kind: Kind,
    pub key: Key,
    pub resource_version: String,
    pub status: Value,
}

/// All that comes of the resources.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The configuration as JSON; absent where none can be made, and then `trouble` says why.
    pub config: Option<String>,
    /// Files that it names, below [`Settings::files`].
    pub files: Files,
    pub statuses: Vec<StatusChange>,
    pub trouble: Option<String>,
}
