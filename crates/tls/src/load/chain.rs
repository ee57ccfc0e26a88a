//! What certificates say: which one the key belongs to, in which order they follow, whom they are for.

use std::path::Path;
use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::Trouble;
use crate::profile::KeyKind;

/// What is needed of a leaf once it is loaded.
pub(super) struct Leaf {
    /// Or the name of a type that is not supported.
    pub kind: Result<KeyKind, String>,
    pub names: Vec<Box<str>>,
}

impl Leaf {
    /// Of the first certificate. All of them must be readable.
    pub fn inspect(chain: &[CertificateDer<'_>], path: &Path) -> Result<Leaf, Trouble> {
        let parsed = parse(chain, path)?;
        Ok(Leaf { kind: key_kind(parsed[0].public_key()), names: dns_names(&parsed[0]) })
    }
}

/// The SubjectPublicKeyInfo of a certificate.
pub(super) fn public_key(
    certificate: &CertificateDer<'_>,
    path: &Path,
) -> Result<SubjectPublicKeyInfoDer<'static>, Trouble> {
    let parsed = parse(std::slice::from_ref(certificate), path)?;
    Ok(parsed[0].public_key().raw.to_vec().into())
}

/// Puts the certificate of this key first, and each other one behind one that it has issued. A chain that is already
/// so is left alone, and one that can be put in order in one way only is, with a warning.
pub(super) fn order(
    chain: Vec<CertificateDer<'static>>,
    public_key: &SubjectPublicKeyInfoDer<'_>,
    chain_path: &Path,
    key_path: &Path,
) -> Result<(Vec<CertificateDer<'static>>, Option<Trouble>), Trouble> {
    let order = {
        let parsed = parse(&chain, chain_path)?;
        let ours = |index: &usize| parsed[*index].public_key().raw == public_key.as_ref();
        let mut leaves = (0..parsed.len()).filter(ours);
        let Some(leaf) = leaves.next() else {
            let what = "the private key does not belong to the certificate";
            let fix = format!("put the key of {} and its chain together", subject(&parsed[0]));
            return Err(Trouble::error(key_path, what, fix));
        };
        if leaf == 0 && is_in_order(&parsed) {
            None
        } else if leaves.next().is_some() {
            return Err(ambiguous(chain_path, "the key belongs to more than one of the certificates"));
        } else {
            Some(sort(&parsed, leaf).map_err(|why| ambiguous(chain_path, &why))?)
        }
    };
    let Some(order) = order else {
        return Ok((chain, None));
    };
    let repaired = order.iter().map(|&index| chain[index].clone()).collect();
    let what = "the certificates are not in order: the server's own must come first, then each one's issuer";
    let fix = "they are served in the right order; sort the file to be rid of this warning";
    Ok((repaired, Some(Trouble::warning(chain_path, what, fix))))
}

/// Every certificate behind the first has issued one before it. A bundle with cross-signed intermediates is not a
/// line, but passes.
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

fn ambiguous(path: &Path, why: &str) -> Trouble {
    let what = format!("the certificates do not make a chain: {why}");
    Trouble::error(path, what, "keep the server's own certificate first, then each one's issuer, and nothing else")
}

/// What does not stop a leaf from being served.
pub(super) fn worries(leaf: &CertificateDer<'_>, now: SystemTime, path: &Path) -> Vec<Trouble> {
    let Ok((_, leaf)) = X509Certificate::from_der(leaf) else {
        return Vec::new();
    };
    let mut worries: Vec<Trouble> = validity(&leaf, now, path).into_iter().collect();
    if let Some(left) = ends_soon(&leaf, OffsetDateTime::from(now)) {
        let not_after = leaf.validity().not_after.to_datetime();
        let what = format!("the certificate expires on {}, in {}", not_after.date(), days(left));
        worries.push(Trouble::warning(path, what, "renew it, and send SIGHUP or set `watch`"));
    }
    if dns_names(&leaf).is_empty() {
        let what = "the certificate names no DNS name (subjectAltName)";
        let fix = "clients refuse it by name; it is served only where no other certificate fits";
        worries.push(Trouble::warning(path, what, fix));
    }
    if SHA1_SIGNATURES.contains(&leaf.signature_algorithm.algorithm.to_id_string().as_str()) {
        let what = "the certificate is signed with SHA-1";
        worries.push(Trouble::warning(path, what, "have it issued again: clients refuse it"));
    }
    worries
}

/// Seconds since 1970; of a leaf that has been inspected.
pub(super) fn not_after(leaf: &CertificateDer<'_>) -> i64 {
    X509Certificate::from_der(leaf).map_or(0, |(_, leaf)| leaf.validity().not_after.timestamp())
}

/// Whether it is the certificate of an authority, which is not meant to be served by itself.
pub(super) fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| certificate.is_ca())
}

/// Whether clients are to refuse the leaf without a stapled response (RFC 7633).
pub(super) fn must_staple(leaf: &CertificateDer<'_>) -> bool {
    const TLS_FEATURE: &str = "1.3.6.1.5.5.7.1.24";
    X509Certificate::from_der(leaf)
        .is_ok_and(|(_, leaf)| leaf.extensions().iter().any(|extension| extension.oid.to_id_string() == TLS_FEATURE))
}

/// Whether a certificate is for this key.
pub(super) fn is_for(certificate: &CertificateDer<'_>, public_key: &SubjectPublicKeyInfoDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, certificate)| certificate.public_key().raw == public_key.as_ref())
}

/// What is left of a certificate that should have been renewed: less than two weeks, or, of one that is short-lived by
/// design, less than a third of its life.
fn ends_soon(leaf: &X509Certificate<'_>, now: OffsetDateTime) -> Option<Duration> {
    let not_before = leaf.validity().not_before.to_datetime();
    let not_after = leaf.validity().not_after.to_datetime();
    let left = not_after - now;
    let soon = RENEWAL.min((not_after - not_before) / 3);
    (left.is_positive() && left < soon).then_some(left)
}

const RENEWAL: Duration = Duration::days(14);

/// What does not stop a certificate from being shown to others than clients.
pub(super) fn age(leaf: &CertificateDer<'_>, now: SystemTime, path: &Path) -> Option<Trouble> {
    validity(&X509Certificate::from_der(leaf).ok()?.1, now, path)
}

fn validity(leaf: &X509Certificate<'_>, now: SystemTime, path: &Path) -> Option<Trouble> {
    let now = OffsetDateTime::from(now);
    let not_before = leaf.validity().not_before.to_datetime();
    let not_after = leaf.validity().not_after.to_datetime();
    if now > not_after {
        let what = format!("the certificate expired on {}, {} ago", not_after.date(), days(now - not_after));
        return Some(Trouble::warning(path, what, "renew it: it is refused by those who are shown it"));
    }
    if now < not_before {
        let what = format!("the certificate is not valid before {}, in {}", not_before.date(), days(not_before - now));
        let fix = "wait, or check this machine's clock: it is refused by those who are shown it";
        return Some(Trouble::warning(path, what, fix));
    }
    None
}

const SHA1_SIGNATURES: [&str; 3] = ["1.2.840.113549.1.1.5", "1.2.840.10045.4.1", "1.3.14.3.2.29"];

pub(super) fn days(span: Duration) -> String {
    match span.whole_days() {
        0 => "less than a day".into(),
        1 => "1 day".into(),
        days => format!("{days} days"),
    }
}

fn parse<'a>(chain: &'a [CertificateDer<'_>], path: &Path) -> Result<Vec<X509Certificate<'a>>, Trouble> {
    let parse = |(index, der): (usize, &'a CertificateDer<'_>)| match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => {
            let what = format!("certificate {} in this file cannot be read", index + 1);
            Err(Trouble::error(path, what, "export it again as X.509 in PEM"))
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

fn subject(certificate: &X509Certificate<'_>) -> String {
    format!("\"{}\"", certificate.subject())
}
