//! Limits of a route: how much a client, or whatever else the key is, may ask for.

use std::fmt;
use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{At, Network, Route, Trust};

/// One of a route's limits. A request that it refuses gets 429, or 403 if it is on the list of those denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name of the limit in metrics and in answers. Routes whose limits have one name share it.
    pub name: Option<String>,
    /// Label in metrics: the name, or one made of the route's host and path.
    pub label: String,
    /// Amount that is allowed. `None`: the lists alone say who is let through.
    pub amount: Option<Amount>,
    /// Parts of a request that make its key; none: all requests have one. Default the source.
    pub key: Vec<LimitKey>,
    /// Bits of an IPv4 address that tell sources apart. Default 32.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that tell sources apart. Default 64.
    pub ipv6_prefix: u8,
    /// Keys that are known at once, at least. Default 65,536.
    pub keys: u32,
    /// Networks whose requests are not looked at.
    pub exempt: Vec<Network>,
    /// Files with networks, and values of the key, whose requests are not looked at.
    pub exempt_files: Vec<Trust>,
    /// Networks whose requests are refused.
    pub deny: Vec<Network>,
    /// Files with networks, and values of the key, whose requests are refused.
    pub deny_files: Vec<Trust>,
    /// Position of the limit in the file.
    pub at: At,
}

/// Amount that a limit allows for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Requests in a time.
    Rate(Rate),
    /// Bytes of responses in a time.
    Bytes(Rate),
    /// Requests in progress at once.
    Requests(u32),
}

/// So many in a time, and so many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Count of requests or bytes, at least 1.
    pub count: u64,
    /// Time for so many.
    pub per: Per,
    /// Count of those that may come at once. Default `count`.
    pub burst: u64,
}

/// Time that a rate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Each second.
    Second,
    /// Each minute.
    Minute,
    /// Each hour.
    Hour,
    /// Each day.
    Day,
}

/// Part of a request that makes its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitKey {
    /// Address of the client, or of its network.
    Source,
    /// Host that is asked for, in lower case.
    Host,
    /// Path that is asked for, in canonical form, without its query.
    Path,
    /// SHA-256 of the client's certificate.
    Certificate,
    /// JA4 fingerprint of the client's hello.
    Ja4,
    /// Value of the header field of this name, which is in lower case.
    Header(String),
    /// Value of the first cookie of this name.
    Cookie(String),
    /// User whom a proof of the route has named, or else the source.
    User,
}

/// Key that bodies of a route share their pace by: `key` of `throttle`, and what goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottleKey {
    /// Parts of a request that make its key; none: all requests of the route have one.
    pub parts: Vec<LimitKey>,
    /// Bits of an IPv4 address that tell sources apart. Default 32.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that tell sources apart. Default 64.
    pub ipv6_prefix: u8,
    /// Keys that are known at once, at least. Default 65,536.
    pub keys: u32,
}

impl ThrottleKey {
    /// Whether a part is the user whom a proof of the route has named.
    pub fn is_of_users(&self) -> bool {
        self.parts.contains(&LimitKey::User)
    }
}

/// As a configuration writes it: keys that have no effect are left out.
impl Serialize for ThrottleKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.parts.is_empty() {
            map.serialize_entry("key", "all")?;
            return map.end();
        }
        map.serialize_entry("key", &self.parts)?;
        if self.parts.contains(&LimitKey::Source) || self.is_of_users() {
            map.serialize_entry("ipv4_prefix", &self.ipv4_prefix)?;
            map.serialize_entry("ipv6_prefix", &self.ipv6_prefix)?;
        }
        map.serialize_entry("keys", &self.keys)?;
        map.end()
    }
}

impl Limit {
    /// Keys that are known at once, where a limit does not say how many.
    pub const KEYS: u32 = 65_536;

    /// Whether it is asked once it is known who a request is from.
    pub fn is_of_users(&self) -> bool {
        self.key.contains(&LimitKey::User)
    }

    /// Whether the source decides on the key of some requests.
    pub(crate) fn may_go_by_source(&self) -> bool {
        self.key.contains(&LimitKey::Source) || self.is_of_users()
    }

    /// Whether requests that were counted by the one count for the other. Lists make no difference.
    pub fn counts_the_same(&self, other: &Limit) -> bool {
        let of = |limit: &Limit| (limit.amount, limit.ipv4_prefix, limit.ipv6_prefix, limit.keys);
        self.label == other.label && self.key == other.key && of(self) == of(other)
    }

    /// Whether both say the same, whatever the lines that say it.
    pub(crate) fn says_the_same(&self, other: &Limit) -> bool {
        let paths = |files: &[Trust]| files.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
        let of = |limit: &Limit| (paths(&limit.exempt_files), paths(&limit.deny_files));
        self.counts_the_same(other)
            && (&self.exempt, &self.deny) == (&other.exempt, &other.deny)
            && of(self) == of(other)
    }
}

impl super::Config {
    /// Limits of all routes, in file order.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.routes.iter().flat_map(|route: &Route| &route.steps.limit)
    }
}

impl Per {
    /// Length of the time.
    pub fn duration(self) -> Duration {
        Duration::from_secs(match self {
            Per::Second => 1,
            Per::Minute => 60,
            Per::Hour => 3600,
            Per::Day => 24 * 3600,
        })
    }

    /// Letter in the configuration.
    pub fn letter(self) -> char {
        match self {
            Per::Second => 's',
            Per::Minute => 'm',
            Per::Hour => 'h',
            Per::Day => 'd',
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.per.letter())
    }
}

impl Serialize for LimitKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            LimitKey::Source => serializer.serialize_str("source"),
            LimitKey::Host => serializer.serialize_str("host"),
            LimitKey::Path => serializer.serialize_str("path"),
            LimitKey::Certificate => serializer.serialize_str("certificate"),
            LimitKey::Ja4 => serializer.serialize_str("ja4"),
            LimitKey::User => serializer.serialize_str("user"),
            LimitKey::Header(name) => serializer.collect_map([("header", name)]),
            LimitKey::Cookie(name) => serializer.collect_map([("cookie", name)]),
        }
    }
}

/// As a configuration writes it: keys that have no effect are left out.
impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(name) = &self.name {
            map.serialize_entry("name", name)?;
        }
        match self.amount {
            Some(Amount::Rate(rate)) => {
                map.serialize_entry("rate", &rate.to_string())?;
                map.serialize_entry("burst", &rate.burst)?;
            }
            Some(Amount::Bytes(rate)) => {
                map.serialize_entry("bytes", &format!("{}B/{}", rate.count, rate.per.letter()))?;
                map.serialize_entry("burst", &rate.burst)?;
            }
            Some(Amount::Requests(count)) => map.serialize_entry("requests", &count)?,
            None => {}
        }
        match &self.key[..] {
            [] => map.serialize_entry("key", "all")?,
            key => map.serialize_entry("key", key)?,
        }
        if self.amount.is_some() && self.may_go_by_source() {
            map.serialize_entry("ipv4_prefix", &self.ipv4_prefix)?;
            map.serialize_entry("ipv6_prefix", &self.ipv6_prefix)?;
        }
        if self.amount.is_some() && !self.key.is_empty() {
            map.serialize_entry("keys", &self.keys)?;
        }
        for (key, networks) in [("exempt", &self.exempt), ("deny", &self.deny)] {
            if !networks.is_empty() {
                map.serialize_entry(key, networks)?;
            }
        }
        for (key, files) in [("exempt_files", &self.exempt_files), ("deny_files", &self.deny_files)] {
            if !files.is_empty() {
                map.serialize_entry(key, files)?;
            }
        }
        map.end()
    }
}
