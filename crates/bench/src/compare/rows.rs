//! The kinds of work that are compared, and the sample of a measurement.

use super::front::{Front, GZIP_BYTES};
use super::site::{Needs, OWN_PATH};
use crate::cpu;
use crate::requests::Http;
use crate::target::{Cipher, Group, Key, TlsOffer, Version};
use crate::units::show_number;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Requests in progress at once on each connection over HTTP/2. A download is alone on its own, so that it differs from
/// one over HTTP/1.1 in the framing only.
const REQUEST_STREAMS: usize = 10;
const BULK_STREAMS: usize = 1;
/// Requests come one after the other on a connection that will lie idle.
const IDLE_STREAMS: usize = 1;
/// The body of a small POST.
const POST_BYTES: usize = 100;
const BULK_PATH: &str = "/bytes/1048576";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// New connections: TLS 1.3 full handshake, EC P-256 key, X25519
    Ec13,
    /// New connections: TLS 1.3 full handshake, RSA-2048 key, X25519
    Rsa13,
    /// New connections: TLS 1.2 full handshake, ECDHE-ECDSA-AES128-GCM, X25519
    Ec12,
    /// New connections: TLS 1.3 full handshake, EC P-256 key, X25519MLKEM768
    Mlkem13,
    /// New connections: TLS 1.3 resumed
    Resumed13,
    /// New connections: TLS 1.2 resumed
    Resumed12,
    /// New connections without TLS
    PlainNew,
    /// Proxied keep-alive requests over TLS, 1 KiB answers
    RequestsTls,
    /// Proxied requests over HTTP/2 and TLS, 10 streams on each connection, 1 KiB answers
    RequestsH2,
    /// Proxied POST requests of 100 bytes over HTTP/2 and TLS, 10 streams on each connection
    PostH2,
    /// As requests-h2, to an HTTP/2 origin
    #[value(name = "requests-h2-h2")]
    RequestsH2H2,
    /// As requests-tls, to an HTTP/2 origin
    #[value(name = "requests-h1-h2")]
    RequestsH1H2,
    /// Proxied keep-alive requests without TLS, 1 KiB answers
    RequestsPlain,
    /// Proxied keep-alive requests over TLS, 1 KiB answers, from an origin behind TLS
    RequestsReencrypt,
    /// Proxied requests without TLS, with three changes of header fields
    Changes,
    /// Proxied requests without TLS, whose path a regular expression rewrites
    Rewrite,
    /// Proxied requests without TLS, below a rate limit for each source
    Limit,
    /// Text of 64 KiB in gzip, without TLS; per gigabyte of what the origin sends
    Gzip,
    /// Proxied requests without TLS, with a token signed by ES256
    Token,
    /// Downloads of 1 MiB over TLS
    BulkTls,
    /// Downloads of 1 MiB over HTTP/2 and TLS
    BulkH2,
    /// Downloads of 1 MiB over TLS, from an origin behind TLS
    BulkReencrypt,
    /// Downloads of 1 MiB without TLS
    BulkPlain,
    /// New connections through a TCP relay, one request and its answer on each
    TcpNew,
    /// Downloads of 1 MiB through a TCP relay
    TcpBulk,
    /// Memory of an idle connection over TLS
    IdleTls,
    /// Memory of an idle connection over HTTP/2 and TLS, after twenty requests
    IdleH2,
    /// Memory of an idle connection without TLS
    IdlePlain,
}

/// The value of `--rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Every row there is.
    All,
    One(Row),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    #[serde(rename = "CPU µs")]
    Microseconds,
    #[serde(rename = "CPU s/GB")]
    SecondsPerGigabyte,
    #[serde(rename = "KiB RSS")]
    Kibibytes,
}

/// One measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Position among all samples of the comparison, from 0.
    pub turn: usize,
    /// Names of proxies that ran on this machine before ours was started.
    pub other_proxies: BTreeSet<String>,
    /// In the row's unit; absent if nothing was measured.
    pub value: Option<f64>,
    pub done: u64,
    pub per_second: f64,
    pub errors: u64,
    pub first_error: Option<String>,
    /// Cores kept busy by the proxy, and by load and origin together.
    pub proxy_busy: f64,
    pub load_busy: f64,
    pub source: Option<cpu::Source>,
    /// Memory rows: KiB of kernel memory per connection, both ends and the proxy's side to the origin.
    pub kernel_kib: Option<f64>,
    pub pss_kib: Option<f64>,
}

impl Choice {
    /// The rows that were chosen, in the order of the choice.
    pub fn rows(choices: &[Self]) -> Vec<Row> {
        if choices.contains(&Self::All) {
            return Row::value_variants().to_vec();
        }
        let one = |choice: &Self| match choice {
            Self::All => None,
            Self::One(row) => Some(*row),
        };
        choices.iter().filter_map(one).collect()
    }
}

impl ValueEnum for Choice {
    fn value_variants<'a>() -> &'a [Self] {
        static VARIANTS: LazyLock<Vec<Choice>> =
            LazyLock::new(|| Row::value_variants().iter().map(|row| Choice::One(*row)).chain([Choice::All]).collect());
        &VARIANTS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::All => Some(PossibleValue::new("all").help("Every row")),
            Self::One(row) => row.to_possible_value(),
        }
    }
}

impl Row {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Measured unless others are named. Those that are `optional` only if every program knows them.
    pub const DEFAULT: [Self; 13] = [
        Self::Ec13,
        Self::Rsa13,
        Self::Ec12,
        Self::Mlkem13,
        Self::Resumed13,
        Self::Resumed12,
        Self::PlainNew,
        Self::RequestsTls,
        Self::RequestsPlain,
        Self::BulkTls,
        Self::BulkPlain,
        Self::IdleTls,
        Self::IdlePlain,
    ];

    pub fn is_optional(self) -> bool {
        matches!(self, Self::Mlkem13 | Self::Resumed13 | Self::Resumed12 | Self::BulkPlain)
    }

    /// Not everything that a program takes in its configuration, or is silent about there, does it do.
    pub fn wants_trial(self) -> bool {
        self.is_optional() || !matches!(self.needs(), Needs::Nothing | Needs::Mlkem | Needs::Relay)
    }

    /// Requests in progress at once on each connection over HTTP/2; none over HTTP/1.1.
    pub fn streams(self) -> Option<usize> {
        match self {
            Self::RequestsH2 | Self::PostH2 | Self::RequestsH2H2 => Some(REQUEST_STREAMS),
            Self::BulkH2 => Some(BULK_STREAMS),
            Self::IdleH2 => Some(IDLE_STREAMS),
            _ => None,
        }
    }

    pub fn needs(self) -> Needs {
        match self {
            Self::Mlkem13 => Needs::Mlkem,
            Self::TcpNew | Self::TcpBulk => Needs::Relay,
            Self::RequestsH2 | Self::PostH2 | Self::BulkH2 | Self::IdleH2 => Needs::Http2,
            Self::RequestsH2H2 => Needs::Http2Throughout,
            Self::RequestsH1H2 => Needs::Http2Origin,
            Self::BulkReencrypt | Self::RequestsReencrypt => Needs::TlsOrigin,
            Self::Changes => Needs::Front(Front::Changes),
            Self::Rewrite => Needs::Front(Front::Rewrite),
            Self::Limit => Needs::Front(Front::Limit),
            Self::Gzip => Needs::Front(Front::Gzip),
            Self::Token => Needs::Front(Front::Token),
            _ => Needs::Nothing,
        }
    }

    /// The row's name in a document.
    pub fn title(self) -> &'static str {
        match self {
            Self::Ec13 => "TLS 1.3 full, EC P-256, X25519",
            Self::Rsa13 => "TLS 1.3 full, RSA-2048",
            Self::Ec12 => "TLS 1.2 ECDHE-ECDSA-AES128-GCM",
            Self::Mlkem13 => "TLS 1.3 full, EC, X25519MLKEM768",
            Self::Resumed13 => "TLS 1.3 resumed",
            Self::Resumed12 => "TLS 1.2 resumed",
            Self::PlainNew => "plain HTTP, new connection",
            Self::RequestsTls => "proxied HTTPS request, HTTP/1.1 keep-alive",
            Self::RequestsH2 => "proxied HTTPS request, HTTP/2",
            Self::PostH2 => "proxied HTTPS POST of 100 bytes, HTTP/2",
            Self::RequestsH2H2 => "proxied HTTPS request, HTTP/2 to HTTP/2",
            Self::RequestsH1H2 => "proxied HTTPS request, HTTP/1.1 to HTTP/2",
            Self::RequestsPlain => "proxied plain HTTP request",
            Self::RequestsReencrypt => "proxied HTTPS request, re-encrypted to a TLS origin",
            Self::Changes => "proxied plain HTTP request, three header changes",
            Self::Rewrite => "proxied plain HTTP request, path rewritten by a regular expression",
            Self::Limit => "proxied plain HTTP request, rate limit",
            Self::Gzip => "text of 64 KiB in gzip",
            Self::Token => "proxied plain HTTP request, JWT with ES256",
            Self::BulkTls => "bulk TLS download, 1 MiB bodies",
            Self::BulkH2 => "bulk over HTTP/2",
            Self::BulkReencrypt => "bulk re-encrypted to a TLS origin",
            Self::BulkPlain => "bulk plain HTTP",
            Self::TcpNew => "TCP relay, new connection",
            Self::TcpBulk => "TCP relay, bulk",
            Self::IdleTls => "idle TLS connection",
            Self::IdleH2 => "idle HTTP/2 connection over TLS",
            Self::IdlePlain => "idle plain HTTP connection",
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Self::BulkTls | Self::BulkH2 | Self::BulkReencrypt | Self::BulkPlain | Self::TcpBulk | Self::Gzip => {
                Unit::SecondsPerGigabyte
            }
            Self::IdleTls | Self::IdleH2 | Self::IdlePlain => Unit::Kibibytes,
            _ => Unit::Microseconds,
        }
    }

    pub fn is_new_connections(self) -> bool {
        use Row as R;
        matches!(
            self,
            R::Ec13 | R::Rsa13 | R::Ec12 | R::Mlkem13 | R::Resumed13 | R::Resumed12 | R::PlainNew | R::TcpNew
        )
    }

    /// Method and bytes of the body of each request.
    pub fn method(self) -> (&'static str, usize) {
        if self == Self::PostH2 { ("POST", POST_BYTES) } else { ("GET", 0) }
    }

    /// Bytes of the origin's bodies, where they are not those that the client gets.
    pub fn origin_bytes(self, answers: u64) -> Option<u64> {
        (self == Self::Gzip).then_some(answers * GZIP_BYTES)
    }

    /// The version of HTTP of its clients.
    pub fn http(self) -> Http {
        if self.streams().is_some() { Http::V2 } else { Http::V11 }
    }

    pub fn path(self) -> &'static str {
        if let Needs::Front(front) = self.needs() {
            return front.path();
        }
        match self.unit() {
            Unit::SecondsPerGigabyte => BULK_PATH,
            // A relay answers nothing itself.
            _ if self.is_new_connections() && self.needs() != Needs::Relay => OWN_PATH,
            _ => "/",
        }
    }

    /// One cipher for everyone: what a server prefers is not what is compared.
    pub fn offer(self) -> Option<TlsOffer> {
        let (version, key) = match self {
            Self::PlainNew | Self::RequestsPlain | Self::BulkPlain | Self::IdlePlain => return None,
            Self::TcpNew | Self::TcpBulk => return None,
            Self::Changes | Self::Rewrite | Self::Limit | Self::Gzip | Self::Token => return None,
            Self::Ec12 | Self::Resumed12 => (Version::V12, Key::Ec),
            Self::Rsa13 => (Version::V13, Key::Rsa),
            _ => (Version::V13, Key::Ec),
        };
        let group = if self == Self::Mlkem13 { Group::X25519Mlkem768 } else { Group::X25519 };
        let resume = matches!(self, Self::Resumed13 | Self::Resumed12);
        Some(TlsOffer {
            version,
            key: Some(key),
            group: Some(group),
            cipher: Some(Cipher::Aes128Gcm),
            resume,
            ca: None,
        })
    }
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "CPU µs",
            Self::SecondsPerGigabyte => "CPU s/GB",
            Self::Kibibytes => "KiB RSS",
        }
    }
}

impl Sample {
    pub fn failed(why: &str) -> Self {
        Self { errors: 1, first_error: Some(why.to_owned()), ..Self::default() }
    }

    pub fn show(&self, unit: Unit) -> String {
        let value = self.value.map_or("nothing".to_owned(), |value| format!("{} {}", show_number(value), unit.name()));
        let mut text = format!("{value}, {} per second", show_number(self.per_second));
        match self.kernel_kib {
            Some(kernel) => text.push_str(&format!(", kernel {} KiB", show_number(kernel))),
            None => text.push_str(&format!(
                ", proxy {:.0} %, load {:.0} %",
                self.proxy_busy * 100.0,
                self.load_busy * 100.0
            )),
        }
        if self.errors > 0 {
            text.push_str(&format!(", {} ERRORS ({})", self.errors, self.first_error.as_deref().unwrap_or_default()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_every_row_and_a_choice_keeps_its_order() {
        let choice = |name| Choice::from_str(name, false).unwrap();
        let named = Choice::rows(&[choice("tcp-bulk"), choice("ec13")]);
        assert_eq!(named, [Row::TcpBulk, Row::Ec13]);
        let all = Choice::rows(&[choice("ec13"), choice("all")]);
        assert_eq!(all, Row::value_variants());
        assert!(Row::DEFAULT.iter().all(|row| all.contains(row)));
        assert!(Choice::rows(&[]).is_empty());
    }

    #[test]
    fn what_only_some_programs_do_is_tried_and_no_default() {
        let tried = [
            (Row::RequestsH2, Needs::Http2, Unit::Microseconds, "/"),
            (Row::BulkH2, Needs::Http2, Unit::SecondsPerGigabyte, BULK_PATH),
            (Row::BulkReencrypt, Needs::TlsOrigin, Unit::SecondsPerGigabyte, BULK_PATH),
            (Row::PostH2, Needs::Http2, Unit::Microseconds, "/"),
            (Row::RequestsH2H2, Needs::Http2Throughout, Unit::Microseconds, "/"),
            (Row::RequestsH1H2, Needs::Http2Origin, Unit::Microseconds, "/"),
            (Row::IdleH2, Needs::Http2, Unit::Kibibytes, "/"),
        ];
        for (row, needs, unit, path) in tried {
            assert_eq!((row.needs(), row.unit(), row.path()), (needs, unit, path));
            assert_eq!(row.streams().is_some(), matches!(needs, Needs::Http2 | Needs::Http2Throughout));
            assert_eq!(row.http() == Http::V2, row.streams().is_some());
            assert!(row.wants_trial() && row.offer().is_some() && !Row::DEFAULT.contains(&row));
        }
        for front in Front::ALL {
            let row = *Row::value_variants().iter().find(|row| row.needs() == Needs::Front(front)).unwrap();
            assert!(row.wants_trial() && row.offer().is_none() && row.path() == front.path());
        }
        assert_eq!((Row::Gzip.origin_bytes(2), Row::Gzip.unit()), (Some(2 * GZIP_BYTES), Unit::SecondsPerGigabyte));
        assert_eq!((Row::TcpNew.path(), Row::Ec13.path(), Row::RequestsTls.path()), ("/", OWN_PATH, "/"));
        assert_eq!((Row::PostH2.method(), Row::RequestsH2.method()), (("POST", 100), ("GET", 0)));
    }

    #[test]
    fn the_names_of_rows_say_what_is_on_which_side() {
        let named = Choice::rows(
            &["requests-h2-h2", "requests-h1-h2", "post-h2", "idle-h2"]
                .map(|name| Choice::from_str(name, false).unwrap()),
        );
        assert_eq!(named, [Row::RequestsH2H2, Row::RequestsH1H2, Row::PostH2, Row::IdleH2]);
    }
}
