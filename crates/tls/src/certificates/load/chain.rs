//! Parsing of chains: the leaf that the key belongs to, the order, the names.

use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::Oid;
use x509_parser::der_parser::oid;
use x509_parser::extensions::{GeneralName, X509Extension};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::problem::{Problem, no_certificate};
use crate::certificates::credential::Validity;
use crate::provider::signing::KeyKind;

/// Parsed certificates of a file; at least one.
pub(super) struct Parsed<'a>(Vec<X509Certificate<'a>>);

/// Properties of a leaf that are kept once it is loaded.
pub(super) struct Leaf {
    /// Kind of the key, or the name of a kind that is not supported.
    pub kind: Result<KeyKind, String>,
    pub names: Vec<Box<str>>,
    pub addresses: Vec<IpAddr>,
    pub validity: Validity,
    /// Clients must refuse the certificate without a stapled response (RFC 7633).
    pub must_staple: bool,
    signed_with_sha1: bool,
}

/// Indices that put a chain in order; none where it is in order.
pub(super) type Order = Option<Vec<usize>>;

impl<'a> Parsed<'a> {
    pub fn new(chain: &'a [CertificateDer<'_>], path: &Path) -> Result<Parsed<'a>, Problem> {
        if chain.is_empty() {
            return Err(no_certificate(path));
        }
        Ok(Parsed(parse(chain, path)?))
    }

    pub fn leaf(&self, order: &Order) -> Leaf {
        let leaf = &self.0[order.as_ref().map_or(0, |order| order[0])];
        let is_tls_feature = |extension: &X509Extension<'_>| extension.oid == TLS_FEATURE;
        Leaf {
            kind: key_kind(leaf.public_key()),
            names: dns_names(leaf),
            addresses: addresses(leaf),
            validity: validity(leaf),
            must_staple: leaf.extensions().iter().any(is_tls_feature),
            signed_with_sha1: SHA1_SIGNATURES.contains(&leaf.signature_algorithm.algorithm),
        }
    }

    /// SubjectPublicKeyInfo of the first certificate.
    pub fn public_key(&self) -> SubjectPublicKeyInfoDer<'static> {
        self.0[0].public_key().raw.to_vec().into()
    }

    /// Order with the certificate of this key first, and each other one behind one that it has issued. A chain in order
    /// is left alone; one out of order is accepted only if there is one way to order it.
    pub fn order(
        &self,
        public_key: &SubjectPublicKeyInfoDer<'_>,
        chain_path: &Path,
        key_path: &Path,
    ) -> Result<Order, Problem> {
        let parsed = &self.0;
        let ours = |index: &usize| parsed[*index].public_key().raw == public_key.as_ref();
        let mut leaves = (0..parsed.len()).filter(ours);
        let Some(leaf) = leaves.next() else {
            let what = "the private key does not belong to the certificate";
            let fix = format!("put the key of {} and its chain together", subject(&parsed[0]));
            return Err(Problem::error(key_path, what, fix));
        };
        if leaf == 0 && is_in_order(parsed) {
            Ok(None)
        } else if leaves.next().is_some() {
            Err(ambiguous(chain_path, "the key belongs to more than one of the certificates"))
        } else {
            Ok(Some(sort(parsed, leaf).map_err(|why| ambiguous(chain_path, &why))?))
        }
    }
}

/// Puts the chain in this order, with a warning if it was not.
pub(super) fn put_in_order(
    chain: Vec<CertificateDer<'static>>,
    order: Order,
    path: &Path,
) -> (Vec<CertificateDer<'static>>, Option<Problem>) {
    let Some(order) = order else {
        return (chain, None);
    };
    let repaired = order.iter().map(|&index| chain[index].clone()).collect();
    let what = "the certificates are not in order: the server's own must come first, then each one's issuer";
    let fix = "they are served in the right order; sort the file to be rid of this warning";
    (repaired, Some(Problem::warning(path, what, fix)))
}

/// Whether every certificate behind the first has issued an earlier one. A bundle with cross-signed intermediates is no
/// line, but is accepted.
fn is_in_order(parsed: &[X509Certificate<'_>]) -> bool {
    (1..parsed.len()).all(|index| {
        let subject = parsed[index].subject().as_raw();
        parsed[..index].iter().any(|earlier| earlier.issuer().as_raw() == subject)
    })
}

fn sort(parsed: &[X509Certificate<'_>], leaf: usize) -> Result<Vec<usize>, String> {
    let mut order = vec![leaf];
    let mut left: Vec<usize> = (0..parsed.len()).filter(|&index| index != leaf).collect();
    while !left.is_empty() {
        let issuer = parsed[order[order.len() - 1]].issuer().as_raw();
        let mut issuers = (0..left.len()).filter(|&at| parsed[left[at]].subject().as_raw() == issuer);
        match (issuers.next(), issuers.next()) {
            (Some(at), None) => order.push(left.remove(at)),
            (Some(_), Some(_)) => return Err("two of them could be the issuer of one".into()),
            (None, _) => {
                let stray = subject(&parsed[left[0]]);
                return Err(format!("{stray} has issued none of the others"));
            }
        }
    }
    Ok(order)
}

fn ambiguous(path: &Path, why: &str) -> Problem {
    let what = format!("the certificates do not make a chain: {why}");
    Problem::error(path, what, "keep the server's own certificate first, then each one's issuer, and nothing else")
}

impl Leaf {
    /// Warnings about a leaf that can be served, but for its expiry.
    pub fn worries(&self, path: &Path) -> Vec<Problem> {
        let mut worries = Vec::new();
        if self.names.is_empty() {
            let what = "the certificate names no DNS name (subjectAltName)";
            let fix = "clients refuse it by name; it is served only where no other certificate fits";
            worries.push(Problem::warning(path, what, fix));
        }
        if self.signed_with_sha1 {
            let what = "the certificate is signed with SHA-1";
            worries.push(Problem::warning(path, what, "have it issued again: clients refuse it"));
        }
        worries
    }
}

/// Warning about the validity period of a leaf, where there is reason for one.
pub(super) fn aging(validity: Validity, now: SystemTime, path: &Path) -> Option<Problem> {
    let invalid = invalidity(validity, now, path);
    if invalid.is_some() {
        return invalid;
    }
    let left = ends_soon(validity, now)?;
    let what = format!("the certificate expires on {}, in {}", date(validity.not_after), days(left));
    Some(Problem::warning(path, what, "renew it: it is read again at SIGHUP, or with `watch` by itself"))
}

/// Whether this is the certificate of an authority, which is not meant to be served by itself.
pub(super) fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| certificate.is_ca())
}

/// SubjectPublicKeyInfo of all certificates that can be parsed.
pub(super) fn public_keys(chain: &[CertificateDer<'_>]) -> Vec<Vec<u8>> {
    let key = |(_, certificate): (&[u8], X509Certificate<'_>)| certificate.public_key().raw.to_vec();
    chain.iter().filter_map(|der| X509Certificate::from_der(der).ok().map(key)).collect()
}

/// Time left of a certificate whose renewal is due: less than two weeks, or less than a third of a short life.
fn ends_soon(Validity { not_before, not_after }: Validity, now: SystemTime) -> Option<Duration> {
    let left =
        Duration::seconds(not_after) - Duration::try_from(now.duration_since(SystemTime::UNIX_EPOCH).ok()?).ok()?;
    let soon = RENEWAL.min(Duration::seconds(not_after.saturating_sub(not_before)) / 3);
    (left.is_positive() && left < soon).then_some(left)
}

const RENEWAL: Duration = Duration::days(14);

/// Validity period of a client certificate.
pub(super) fn validity_of(leaf: &CertificateDer<'_>) -> Option<Validity> {
    Some(validity(&X509Certificate::from_der(leaf).ok()?.1))
}

fn validity(leaf: &X509Certificate<'_>) -> Validity {
    let (not_before, not_after) = (&leaf.validity().not_before, &leaf.validity().not_after);
    Validity { not_before: not_before.timestamp(), not_after: not_after.timestamp() }
}

fn invalidity(Validity { not_before, not_after }: Validity, now: SystemTime, path: &Path) -> Option<Problem> {
    let now = seconds(now);
    if now > not_after {
        let ago = days(Duration::seconds(now - not_after));
        let what = format!("the certificate expired on {}, {ago} ago", date(not_after));
        return Some(Problem::warning(path, what, "renew it: it is refused by those who are shown it"));
    }
    if now < not_before {
        let ahead = days(Duration::seconds(not_before - now));
        let what = format!("the certificate is not valid before {}, in {ahead}", date(not_before));
        let fix = "wait, or check this machine's clock: it is refused by those who are shown it";
        return Some(Problem::warning(path, what, fix));
    }
    None
}

fn seconds(time: SystemTime) -> i64 {
    OffsetDateTime::from(time).unix_timestamp()
}

/// Date in UTC.
fn date(seconds: i64) -> String {
    OffsetDateTime::from_unix_timestamp(seconds).map_or_else(|_| "?".into(), |time| time.date().to_string())
}

const SHA1_SIGNATURES: [Oid<'static>; 3] = [oid!(1.2.840.113549.1.1.5), oid!(1.2.840.10045.4.1), oid!(1.3.14.3.2.29)];
const TLS_FEATURE: Oid<'static> = oid!(1.3.6.1.5.5.7.1.24);

/// A time span in days, or in a smaller unit below two days.
pub(super) fn days(span: Duration) -> String {
    let (count, unit) = match span {
        span if span >= Duration::days(2) => (span.whole_days(), "day"),
        span if span >= Duration::hours(2) => (span.whole_hours(), "hour"),
        span if span >= Duration::minutes(2) => (span.whole_minutes(), "minute"),
        span => (span.whole_seconds(), "second"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

fn parse<'a>(chain: &'a [CertificateDer<'_>], path: &Path) -> Result<Vec<X509Certificate<'a>>, Problem> {
    let parse = |(index, der): (usize, &'a CertificateDer<'_>)| match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => {
            let what = format!("certificate {} in this file cannot be read", index + 1);
            Err(Problem::error(path, what, "export it again as X.509 in PEM"))
        }
    };
    chain.iter().enumerate().map(parse).collect()
}

fn key_kind(info: &SubjectPublicKeyInfo<'_>) -> Result<KeyKind, String> {
    let curve = || {
        let parameters = info.algorithm.parameters.as_ref()?;
        Some(parameters.as_oid().ok()?.to_id_string())
    };
    match info.algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.1" => match info.parsed() {
            Ok(PublicKey::RSA(rsa)) => match rsa.key_size() {
                2048..=8192 => Ok(KeyKind::Rsa),
                bits => Err(format!("RSA of {bits} bits")),
            },
            _ => Err("RSA that cannot be read".into()),
        },
        "1.2.840.10045.2.1" => match curve().as_deref() {
            Some("1.2.840.10045.3.1.7") => Ok(KeyKind::P256),
            Some("1.3.132.0.34") => Ok(KeyKind::P384),
            Some("1.3.132.0.35") => Ok(KeyKind::P521),
            Some("1.3.132.0.33") => Err("ECDSA on P-224".into()),
            Some("1.3.132.0.10") => Err("ECDSA on secp256k1".into()),
            Some(other) => Err(format!("ECDSA on the curve {other}")),
            None => Err("ECDSA on an unnamed curve".into()),
        },
        "1.3.101.112" => Ok(KeyKind::Ed25519),
        "1.3.101.113" => Err("Ed448".into()),
        "1.2.840.10040.4.1" => Err("DSA".into()),
        "1.2.840.113549.1.1.10" => Err("RSA restricted to PSS".into()),
        other => Err(format!("algorithm {other}")),
    }
}

/// DNS names of the subjectAltName in the form in which they are looked up. A `*` anywhere but as the whole first
/// label means nothing (RFC 9525 §6.3).
fn dns_names(leaf: &X509Certificate<'_>) -> Vec<Box<str>> {
    let Ok(Some(extension)) = leaf.subject_alternative_name() else {
        return Vec::new();
    };
    let mut names: Vec<Box<str>> = Vec::new();
    for general in &extension.value.general_names {
        let GeneralName::DNSName(name) = general else {
            continue;
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let host = name.strip_prefix("*.").unwrap_or(&name);
        if !host.is_empty() && !host.contains('*') && !names.iter().any(|other| **other == *name) {
            names.push(name.into());
        }
    }
    names
}

/// IP addresses of the subjectAltName: 4 or 16 bytes each (RFC 5280 §4.2.1.6); others mean nothing.
fn addresses(leaf: &X509Certificate<'_>) -> Vec<IpAddr> {
    let Ok(Some(extension)) = leaf.subject_alternative_name() else {
        return Vec::new();
    };
    let address = |general: &GeneralName<'_>| match general {
        GeneralName::IPAddress(bytes) => match *bytes {
            [a, b, c, d] => Some(IpAddr::from([*a, *b, *c, *d])),
            bytes => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        },
        _ => None,
    };
    extension.value.general_names.iter().filter_map(address).collect()
}

fn subject(certificate: &X509Certificate<'_>) -> String {
    format!("\"{}\"", certificate.subject())
}
