//! Limits of a route, compiled: which key a request has, who is exempt or denied, and what is left for the others.
//!
//! Counts are shared by all cores and outlive a reload ([`Counter`]); how they are asked for belongs to a snapshot.

mod lists;

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use propylon_config::{Amount, Limit, LimitKey, Rate, first_of_network};
use propylon_http::h1::{HOST_BYTES_MAX, cookies};
use propylon_policy::limits::{self as policy, CountTable, Place, RateTable, Taken};

use crate::conditions::{Request, joined, values as lines};
pub use lists::{LIST_BYTES_MAX, List};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A request as limits look at it. Everything about its client's TLS is absent where there is none.
pub struct Asked<'a> {
    pub request: Request<'a>,
    /// SHA-256 of the client's certificate, in hexadecimal.
    pub certificate: Option<&'a str>,
    pub ja4: Option<&'a str>,
}

/// Random words that hashes of keys and values begin with: nobody outside knows which of them meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u64; 2]);

impl Secret {
    pub(crate) fn hasher(self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        self.0.into_iter().for_each(|word| hasher.write_u64(word));
        hasher
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Counts of one limit, for all cores.
pub struct Counter {
    /// Hasher that has taken in the secret.
    hasher: DefaultHasher,
    table: Table,
}

enum Table {
    /// Requests.
    Rate(RateTable),
    /// Bytes of responses.
    Bytes(RateTable),
    /// Requests in progress.
    Count(CountTable),
    /// Nothing is counted: lists alone decide.
    Nothing,
}

impl Counter {
    /// The counts of a limit, all of them 0.
    pub fn new(limit: &Limit, secret: Secret) -> Counter {
        let keys = if limit.key.is_empty() { 1 } else { limit.keys as usize };
        let rate = |rate: Rate| {
            let rate = policy::Rate::new(rate.count, rate.per.duration().as_nanos() as u64, rate.burst);
            RateTable::new(rate, keys)
        };
        let table = match limit.amount {
            Some(Amount::Rate(of)) => Table::Rate(rate(of)),
            Some(Amount::Bytes(of)) => Table::Bytes(rate(of)),
            Some(Amount::Requests(max)) => Table::Count(CountTable::new(max, keys)),
            None => Table::Nothing,
        };
        Counter { hasher: secret.hasher(), table }
    }
}

/// A limit with its counts and lists.
pub struct Limiter {
    /// Place of the limit among those of all routes.
    pub index: usize,
    config: Limit,
    counter: Arc<Counter>,
    lists: Arc<Lists>,
    /// Whether some are exempt or denied.
    has_lists: bool,
    /// Name in answers, as a string of structured fields (RFC 9651 §3.3.3).
    name: String,
}

/// Contents of a limit's files.
#[derive(Debug, PartialEq, Eq)]
pub struct Lists {
    pub exempt: List,
    pub deny: List,
}

/// Something that happened at a limit, to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Allowed,
    /// The request is not looked at.
    Exempt,
    /// There is nothing left for its key.
    Refused,
    /// A list has it.
    Denied,
    /// Another key was forgotten, or this one is not counted: the table is too small.
    Full,
}

/// Answer to a request that a limit keeps back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A list has it.
    Denied,
    /// A limit has no more for it.
    Limited {
        /// Seconds until it makes sense to ask again.
        retry_after: u64,
        /// Values of the fields `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).
        policy: String,
        state: String,
    },
}

/// Limits that a request is counted by until it ends. Requests in progress are given back with it, also when it is
/// dropped half-way.
#[derive(Default)]
pub struct Held {
    held: Vec<Holding>,
}

enum Holding {
    /// A request in progress.
    Place(Arc<Counter>, Place),
    /// A key whose bytes are counted.
    Bytes { counter: Arc<Counter>, key: u64, index: usize },
}

impl Held {
    /// Counts the bytes of the response, as far as they were sent. `note` takes what happens at the limit of an index.
    pub fn settle(&self, bytes: u64, now: u64, mut note: impl FnMut(usize, Event)) {
        for holding in &self.held {
            if let Holding::Bytes { counter, key, index } = holding
                && let Table::Bytes(table) = &counter.table
                && table.charge(*key, bytes, now)
            {
                note(*index, Event::Full);
            }
        }
    }

    /// Adds what limits hold that were asked later.
    pub fn extend(&mut self, mut other: Held) {
        self.held.append(&mut other.held);
    }

    /// Whether anything is left to do at the request's end.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for holding in &self.held {
            if let Holding::Place(counter, place) = holding
                && let Table::Count(table) = &counter.table
            {
                table.give_back(place);
            }
        }
    }
}

/// Asks limits of a route, in order, at `now` in nanoseconds on a clock that all cores share. `note` takes what
/// happens at the limit of an index. A request that one of them refuses takes nothing from the others.
pub fn admit(
    limiters: &[Limiter],
    asked: &Asked<'_>,
    now: u64,
    mut note: impl FnMut(usize, Event),
) -> Result<Held, Refusal> {
    let mut held = Held::default();
    for (place, limiter) in limiters.iter().enumerate() {
        let refusal = match limiter.ask(asked, now, &mut held, &mut note) {
            Ok(event) => {
                note(limiter.index, event);
                continue;
            }
            Err(refusal) => refusal,
        };
        let event = if refusal == Refusal::Denied { Event::Denied } else { Event::Refused };
        note(limiter.index, event);
        limiters[..place].iter().for_each(|earlier| earlier.give_back(asked));
        return Err(refusal);
    }
    Ok(held)
}

impl Limiter {
    /// Whether it is asked once it is known who a request is from.
    pub fn is_of_users(&self) -> bool {
        self.config.is_of_users()
    }

    /// Whether requests that it lets in hold something of it until they end.
    pub fn holds(&self) -> bool {
        matches!(self.counter.table, Table::Bytes(_) | Table::Count(_))
    }

    /// `place` is the limit's among those of its route.
    pub fn new(index: usize, place: usize, config: &Limit, (counter, lists): (&Arc<Counter>, &Arc<Lists>)) -> Limiter {
        // Names are letters and digits: nothing has to be escaped.
        let name = config.name.clone().unwrap_or_else(|| format!("limit-{}", place + 1));
        let has_lists = [(&config.deny, &lists.deny), (&config.exempt, &lists.exempt)]
            .iter()
            .any(|(networks, list)| !networks.is_empty() || !list.is_empty());
        let (counter, lists) = (Arc::clone(counter), Arc::clone(lists));
        Limiter { index, config: config.clone(), counter, lists, has_lists, name }
    }

    fn ask(
        &self,
        asked: &Asked<'_>,
        now: u64,
        held: &mut Held,
        note: &mut impl FnMut(usize, Event),
    ) -> Result<Event, Refusal> {
        if self.has_lists {
            if self.is_listed(&self.config.deny, &self.lists.deny, asked) || self.is_any_denied(asked) {
                return Err(Refusal::Denied);
            }
            if self.is_listed(&self.config.exempt, &self.lists.exempt, asked) {
                return Ok(Event::Exempt);
            }
        }
        let key = self.key(asked);
        match &self.counter.table {
            Table::Rate(table) => match table.take(key, now) {
                Taken::Yes { evicted } => evicted.then(|| note(self.index, Event::Full)),
                Taken::No { wait } => return Err(self.limited(Some(wait))),
            },
            Table::Bytes(table) => match table.look(key, now) {
                Taken::Yes { .. } => {
                    let counter = Arc::clone(&self.counter);
                    held.held.push(Holding::Bytes { counter, key, index: self.index });
                    None
                }
                Taken::No { wait } => return Err(self.limited(Some(wait))),
            },
            Table::Count(table) => {
                let Some(place) = table.take(key) else { return Err(self.limited(None)) };
                let is_full = !place.is_counted();
                held.held.push(Holding::Place(Arc::clone(&self.counter), place));
                is_full.then(|| note(self.index, Event::Full))
            }
            Table::Nothing => None,
        };
        Ok(Event::Allowed)
    }

    /// Undoes what [`Limiter::ask`] took that nothing holds.
    fn give_back(&self, asked: &Asked<'_>) {
        if let Table::Rate(table) = &self.counter.table
            && !self.is_listed(&self.config.exempt, &self.lists.exempt, asked)
        {
            table.give_back(self.key(asked), 1);
        }
    }

    /// The answer to a request that has to wait for so many nanoseconds; `None` where that depends on the ends of other
    /// requests.
    fn limited(&self, wait: Option<u64>) -> Refusal {
        let name = &self.name;
        let seconds = wait.map_or(1, |wait| wait.div_ceil(SECOND).max(1));
        let policy = match self.config.amount {
            Some(Amount::Rate(rate)) => format!("\"{name}\";q={};w={}", rate.count, rate.per.duration().as_secs()),
            Some(Amount::Bytes(rate)) => {
                format!("\"{name}\";q={};qu=\"content-bytes\";w={}", rate.count, rate.per.duration().as_secs())
            }
            Some(Amount::Requests(max)) => format!("\"{name}\";q={max};qu=\"concurrent-requests\""),
            None => String::new(),
        };
        let state = match wait {
            Some(_) => format!("\"{name}\";r=0;t={seconds}"),
            None => format!("\"{name}\";r=0"),
        };
        Refusal::Limited { retry_after: seconds, policy, state }
    }

    /// Whether a request is on one of the limit's lists: by its source, or by a value of its key.
    fn is_listed(&self, networks: &[propylon_config::Network], list: &List, asked: &Asked<'_>) -> bool {
        let source = asked.request.source;
        if networks.iter().any(|network| network.contains(source)) || list.has_address(source) {
            return true;
        }
        if !list.has_values() {
            return false;
        }
        let is_value = |part: &LimitKey| {
            if matches!(part, LimitKey::Header(name) if has_several(asked, name)) {
                return false;
            }
            let mut scratch = [0; HOST_BYTES_MAX];
            value(part, asked, &mut scratch).is_some_and(|value| list.has_value(&value))
        };
        self.config.key.iter().any(is_value)
    }

    /// Whether the list of those who are denied has one of several lines or cookies of one name: servers may read any.
    fn is_any_denied(&self, asked: &Asked<'_>) -> bool {
        let list = &self.lists.deny;
        let Request { head, text, .. } = asked.request;
        let has_any = |part: &LimitKey| match part {
            LimitKey::Header(name) => lines(&head.fields, text, name).any(|line| list.has_value(line)),
            LimitKey::Cookie(name) => cookies(&head.fields, text, name).any(|cookie| list.has_value(cookie)),
            _ => false,
        };
        list.has_values() && self.config.key.iter().any(has_any)
    }

    /// The request's key. What a request does not have is a value of its own; who has no name has an address.
    fn key(&self, asked: &Asked<'_>) -> u64 {
        let prefixes = (self.config.ipv4_prefix, self.config.ipv6_prefix);
        key_of(&self.config.key, prefixes, asked, self.counter.hasher.clone())
    }
}

/// The key that these parts of a request make, for a hasher that has taken in a secret. `prefixes` are the bits of an
/// IPv4 and of an IPv6 address that tell sources apart.
pub(crate) fn key_of(parts: &[LimitKey], prefixes: (u8, u8), asked: &Asked<'_>, mut hasher: DefaultHasher) -> u64 {
    let source = |hasher: &mut DefaultHasher| match network(asked.request.source, prefixes) {
        IpAddr::V4(address) => hasher.write_u32(address.to_bits()),
        IpAddr::V6(address) => hasher.write_u128(address.to_bits()),
    };
    for part in parts {
        match part {
            LimitKey::Source => source(&mut hasher),
            // One key for all who send several: each number of lines would be another.
            LimitKey::Header(name) if has_several(asked, name) => hasher.write_usize(usize::MAX - 1),
            part => {
                let mut scratch = [0; HOST_BYTES_MAX];
                // With their lengths, so that no two lists of values are one text.
                if let Some(value) = value(part, asked, &mut scratch) {
                    hasher.write_usize(value.len());
                    hasher.write(&value);
                    continue;
                }
                hasher.write_usize(usize::MAX);
                if *part == LimitKey::User {
                    source(&mut hasher);
                }
            }
        }
    }
    hasher.finish()
}

/// The network that a source counts as.
fn network(source: IpAddr, (ipv4_prefix, ipv6_prefix): (u8, u8)) -> IpAddr {
    let source = source.to_canonical();
    first_of_network(source, if source.is_ipv4() { ipv4_prefix } else { ipv6_prefix })
}

/// Whether a request has several lines of a field.
fn has_several(asked: &Asked<'_>, name: &str) -> bool {
    let Request { head, text, .. } = asked.request;
    lines(&head.fields, text, name).nth(1).is_some()
}

/// The value of a part of the key other than the source; `None` if the request has none.
fn value<'a>(part: &'a LimitKey, asked: &'a Asked<'a>, scratch: &'a mut [u8; HOST_BYTES_MAX]) -> Option<Cow<'a, [u8]>> {
    let Request { head, text, .. } = asked.request;
    let text_of = |text: &'a str| Cow::Borrowed(text.as_bytes());
    match part {
        LimitKey::Source => None,
        LimitKey::Host => Some(text_of(head.host_name(text, scratch))),
        LimitKey::Path => Some(Cow::Borrowed(head.path_key(text))),
        LimitKey::Certificate => asked.certificate.map(text_of),
        LimitKey::Ja4 => asked.ja4.map(text_of),
        LimitKey::Header(name) => joined(&head.fields, text, name),
        LimitKey::Cookie(name) => cookies(&head.fields, text, name).next().map(Cow::Borrowed),
        LimitKey::User => head.fields.user(text).map(Cow::Borrowed),
    }
}

#[cfg(test)]
mod tests;
