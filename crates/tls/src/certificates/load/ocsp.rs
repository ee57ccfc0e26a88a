//! OCSP responses to staple (RFC 6960): whether one is for this certificate, says that it is good, and how long it may
//! be used. Its signature is verified by clients.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use propylon_config::Certificate;
use propylon_crypto::der::Der;
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::key_process;
use super::problem::{Problem, unreadable};
use crate::certificates::credential::Staple;
use crate::certificates::finding::Severity;

/// Limit of a response, of which most have 0.5 to 3 KB.
const RESPONSE_BYTES_MAX: u64 = 64 * 1024;

/// Path of the response for a chain: as configured, or beside the chain, as with HAProxy.
pub(crate) fn ocsp_path(certificate: &Certificate, chain: &Path) -> PathBuf {
    certificate.ocsp.clone().unwrap_or_else(|| {
        let mut path = chain.as_os_str().to_owned();
        path.push(".ocsp");
        path.into()
    })
}

/// The response in this file, if it can be stapled. A file that was not named in the configuration may be absent.
pub(super) fn staple(
    path: &Path,
    named: bool,
    leaf: &CertificateDer<'_>,
    now: SystemTime,
    problems: &mut Vec<Problem>,
) -> Option<Staple> {
    const REFRESH: &str = "fetch it again (openssl ocsp -respout); until then none is stapled";
    let der = match read(path) {
        Ok(der) => der,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !named => return None,
        Err(error) => {
            let problem = unreadable(path, &error);
            // A file that was found, not named in the configuration, is no reason to fail.
            let severity = if named { Severity::Error } else { Severity::Warning };
            problems.push(Problem { severity, ..problem });
            return None;
        }
    };
    match read_response(&der, leaf, now) {
        Ok(staple) => Some(staple),
        Err(what) => {
            problems.push(Problem::warning(path, what, REFRESH));
            None
        }
    }
}

/// The response, or the reason why it cannot be stapled.
pub(super) fn read_response(der: &[u8], leaf: &CertificateDer<'_>, now: SystemTime) -> Result<Staple, String> {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let answer = parse(der).ok_or_else(|| "this is not an OCSP response in DER".to_string())?;
    let until = judge(&answer, leaf, now)?;
    Ok(Staple { response: der.to_vec(), until })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // The response may lie in the folder of a key, which only the key process can read.
    if let Some(files) = key_process::key_files() {
        match files.response(path).map_err(std::io::Error::from) {
            // Ordered certificates are in a folder of this process, which has no keys.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            read => return read,
        }
    }
    let mut der = Vec::new();
    File::open(path)?.take(RESPONSE_BYTES_MAX + 1).read_to_end(&mut der)?;
    Ok(der)
}

/// Time until which the response may be stapled.
fn judge(answer: &Answer<'_>, leaf: &CertificateDer<'_>, now: i64) -> Result<Option<i64>, String> {
    let single = match answer {
        Answer::Unsuccessful(status) => {
            return Err(format!("the OCSP responder has refused to answer (status {status})"));
        }
        Answer::Singles(singles) => singles.iter().find(|single| single.is_for(leaf)),
    };
    let Some(single) = single else {
        return Err("the OCSP response is not about this certificate".into());
    };
    match single.status {
        Status::Good => {}
        Status::Revoked => return Err("the OCSP response says that the certificate is revoked".into()),
        Status::Unknown => return Err("the OCSP responder does not know the certificate".into()),
    }
    if single.this_update > now + CLOCK_SKEW_SECONDS {
        return Err("the OCSP response is not valid yet".into());
    }
    match single.next_update {
        Some(until) if until <= now => Err("the OCSP response is out of date".into()),
        until => Ok(until),
    }
}

/// Tolerance for the clocks of responders.
const CLOCK_SKEW_SECONDS: i64 = 300;

enum Answer<'a> {
    /// Status of an unsuccessful response (RFC 6960 §4.2.1).
    Unsuccessful(u8),
    Singles(Vec<Single<'a>>),
}

/// Status of one certificate in a response.
struct Single<'a> {
    /// DER of the hash algorithm of the issuer's name.
    algorithm: &'a [u8],
    issuer_name_hash: &'a [u8],
    serial: &'a [u8],
    status: Status,
    /// Time of the update in seconds since 1970.
    this_update: i64,
    next_update: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Good,
    Revoked,
    Unknown,
}

impl Single<'_> {
    fn is_for(&self, leaf: &CertificateDer<'_>) -> bool {
        let Ok((_, leaf)) = X509Certificate::from_der(leaf) else { return false };
        const SHA1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
        const SHA256: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];
        let issuer = leaf.issuer().as_raw();
        let same_issuer = match self.algorithm {
            SHA1 => digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, issuer).as_ref() == self.issuer_name_hash,
            SHA256 => digest::digest(&digest::SHA256, issuer).as_ref() == self.issuer_name_hash,
            // No responder uses another hash; the serial number decides alone.
            _ => true,
        };
        same_issuer && leaf.raw_serial() == self.serial
    }
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OID: u8 = 0x06;
const ENUMERATED: u8 = 0x0a;
const GENERALIZED_TIME: u8 = 0x18;
/// Tag `[0]`, constructed.
const FIRST: u8 = 0xa0;
const SINGLES_MAX: usize = 64;

/// Parses the parts of a response that matter here (RFC 6960 §4.2.1).
fn parse(der: &[u8]) -> Option<Answer<'_>> {
    let mut response = Der(Der(der).only(SEQUENCE)?);
    match response.take(ENUMERATED)? {
        [0] => {}
        [status] => return Some(Answer::Unsuccessful(*status)),
        _ => return None,
    }
    let mut bytes = Der(Der(response.take(FIRST)?).only(SEQUENCE)?);
    bytes.take(OID)?;
    let mut basic = Der(Der(bytes.take(OCTETS)?).only(SEQUENCE)?);
    let mut data = Der(basic.take(SEQUENCE)?);
    // version [0] DEFAULT v1; responderID is [1] or [2].
    if data.next_is(FIRST) {
        data.any()?;
    }
    data.any()?;
    data.take(GENERALIZED_TIME)?;
    let mut responses = Der(data.take(SEQUENCE)?);
    let mut singles = Vec::new();
    while !responses.0.is_empty() && singles.len() < SINGLES_MAX {
        singles.push(single(Der(responses.take(SEQUENCE)?))?);
    }
    Some(Answer::Singles(singles))
}

fn single(mut der: Der<'_>) -> Option<Single<'_>> {
    let mut id = Der(der.take(SEQUENCE)?);
    let algorithm = Der(id.take(SEQUENCE)?).take(OID)?;
    let issuer_name_hash = id.take(OCTETS)?;
    id.take(OCTETS)?;
    let serial = id.take(INTEGER)?;
    let status = match der.any()?.0 & 0x1f {
        0 => Status::Good,
        1 => Status::Revoked,
        _ => Status::Unknown,
    };
    let this_update = seconds(der.take(GENERALIZED_TIME)?)?;
    let next_update = match der.next_is(FIRST) {
        true => Some(seconds(Der(der.take(FIRST)?).only(GENERALIZED_TIME)?)?),
        false => None,
    };
    Some(Single { algorithm, issuer_name_hash, serial, status, this_update, next_update })
}

/// Time `YYYYMMDDHHMMSSZ`, the one form in DER (RFC 5280 §4.1.2.5.2), in seconds since 1970.
fn seconds(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if text.len() != 14 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |range: std::ops::Range<usize>| text[range].parse::<u8>().ok();
    let month = time::Month::try_from(part(4..6)?).ok()?;
    let date = time::Date::from_calendar_date(text[..4].parse().ok()?, month, part(6..8)?).ok()?;
    let time = time::Time::from_hms(part(8..10)?, part(10..12)?, part(12..14)?).ok()?;
    Some(time::PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_nonsense_is_not() {
        assert_eq!(seconds(b"20000101000000Z"), Some(946_684_800));
        for text in [&b""[..], b"20000101000000", b"20001301000000Z", b"2000010100000Z", b"+0000101000000Z", b"\xff"] {
            assert_eq!(seconds(text), None);
        }
    }

    #[test]
    fn a_refusal_is_told_from_garbage() {
        assert!(matches!(parse(&[0x30, 3, 0x0a, 1, 6]), Some(Answer::Unsuccessful(6))));
        for der in [&[][..], &[0x30], &[0x30, 0x84, 1, 1, 1, 1], &[0x30, 3, 0x0a, 1, 0], &[0x30, 200, 0x0a]] {
            assert!(parse(der).is_none());
        }
    }
}
