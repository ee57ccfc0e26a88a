//! The requirements that the service must carry, and whether that can be meant at all.

use super::engines;
use crate::target::Key;
use crate::units::show_nanoseconds;
use serde::{Deserialize, Serialize};

/// The protocol of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    Tls,
    Http,
    Tcp,
}

impl Traffic {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls => "TLS",
            Self::Http => "plain HTTP",
            Self::Tcp => "TCP",
        }
    }
}

/// `None`: not required.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Requirements {
    /// Full TLS handshakes per second.
    pub transactions_per_second: Option<f64>,
    #[serde(with = "key_name")]
    pub key: Key,
    /// Gb/s towards clients.
    pub throughput_gbps: Option<f64>,
    /// Open at once.
    pub connections: Option<f64>,
    pub traffic: Traffic,
    /// TLS towards the servers, too.
    pub reencrypt: bool,
    /// Private keys live on key servers.
    pub keyless: bool,
    /// Engines that may fail without loss of capacity.
    pub spare_engines: u32,
    /// Racks that engines are spread over, each of which may fail as a whole without loss of capacity. `None`: engines
    /// fail one by one.
    pub racks: Option<u32>,
    /// Engines that a router spreads one service over.
    pub engines_max: u64,
    /// Added to each requirement: 0.3 is 30 %.
    pub margin: f64,
    pub engine: Engine,
}

/// One engine, as far as it was said what that is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Engine {
    pub cores: Option<u32>,
    pub memory_bytes: Option<f64>,
    /// Open files of its process.
    pub files: u64,
    /// Local ports towards one server.
    pub ports: u64,
    /// Servers behind it: each is another set of local ports.
    pub servers: u64,
}

/// Why there is no number, and what would make one possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub why: String,
    pub remedies: Vec<String>,
}

impl Refusal {
    pub fn new(why: impl Into<String>, remedies: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { why: why.into(), remedies: remedies.into_iter().map(Into::into).collect() }
    }
}

/// Shortest life of a connection that a client could tell from a mistake: TCP and TLS need two round trips before
/// the request, and even between two machines of one rack that is a fifth of a millisecond.
const CONNECTION_LIFE_MIN_SECONDS: f64 = 200e-6;

pub fn key_title(key: Key) -> &'static str {
    match key {
        Key::Ec => "EC P-256",
        Key::Rsa => "RSA-2048",
    }
}

/// A key in JSON, by the name that it has as an option.
mod key_name {
    use super::Key;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if *key == Key::Ec { "ec" } else { "rsa" })
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "ec" => Ok(Key::Ec),
            "rsa" => Ok(Key::Rsa),
            other => Err(de::Error::unknown_variant(other, &["ec", "rsa"])),
        }
    }
}

impl Requirements {
    /// Requirements that contradict each other are refused, not sized.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.transactions_per_second.is_none() && self.throughput_gbps.is_none() && self.connections.is_none() {
            return Err(Refusal::new(
                "there is nothing to size",
                ["give at least one of --tps, --throughput and --connections"],
            ));
        }
        if self.traffic != Traffic::Tls {
            self.check_without_tls()?;
        }
        if self.keyless && self.transactions_per_second.is_none() {
            return Err(Refusal::new(
                "--keyless without --tps: key servers sign once per full handshake, and no handshakes are required",
                ["give --tps", "leave --keyless out"],
            ));
        }
        engines::check(self)?;
        self.check_lifetime()
    }

    fn check_without_tls(&self) -> Result<(), Refusal> {
        let name = self.traffic.name();
        if self.transactions_per_second.is_some() {
            return Err(Refusal::new(
                format!("--tps counts full TLS handshakes, and there are none in {name}"),
                ["use --tls", "leave --tps out"],
            ));
        }
        if self.reencrypt {
            return Err(Refusal::new(
                format!("--reencrypt encrypts towards the servers what was decrypted before; {name} is not encrypted"),
                ["use --tls", "leave --reencrypt out"],
            ));
        }
        Ok(())
    }

    /// Little's law: connections at once = arrivals per second * life in seconds.
    fn check_lifetime(&self) -> Result<(), Refusal> {
        let (Some(connections), Some(arrivals)) = (self.connections, self.transactions_per_second) else {
            return Ok(());
        };
        let life = connections / arrivals;
        if life >= CONNECTION_LIFE_MIN_SECONDS {
            return Ok(());
        }
        let least = (arrivals * CONNECTION_LIFE_MIN_SECONDS).ceil();
        Err(Refusal::new(
            format!(
                "{connections:.0} connections at once with {arrivals:.0} new ones per second last {} each, \
                 less than a handshake takes",
                show_nanoseconds(life * 1e9)
            ),
            [format!("require at least {least:.0} connections"), "require fewer transactions".to_owned()],
        ))
    }
}
