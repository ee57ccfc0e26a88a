//! Errors of certificates and revocation lists in words for people: the library shows the names of variants.

use rustls::{CertRevocationListError, CertificateError, Error, ExtendedKeyPurpose};
use rustls_pki_types::{ServerName, UnixTime};
use time::OffsetDateTime;
use x509_parser::der_parser::asn1_rs::{FromDer, Oid};

/// The error as one sentence without a full stop or secrets. "The certificate" is the peer's.
pub(crate) fn of(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(why) => certificate(why),
        Error::InvalidCertRevocationList(why) => format!("a revocation list cannot be used: {}", revocation_list(why)),
        Error::NoCertificatesPresented => "no certificate was shown".into(),
        other => other.to_string(),
    }
}

/// Error of a certificate, its chain, or the signature that proves who holds it.
#[expect(deprecated, reason = "the library has variants with and without context")]
pub(crate) fn certificate(why: &CertificateError) -> String {
    use CertificateError::*;
    match why {
        BadEncoding => "a certificate is damaged, or is not X.509".into(),
        Expired => "a certificate has expired, or ends before it begins".into(),
        ExpiredContext { not_after, .. } => format!("a certificate expired on {}", moment(*not_after)),
        NotValidYet => "a certificate is not valid yet".into(),
        NotValidYetContext { not_before, .. } => format!("a certificate is not valid before {}", moment(*not_before)),
        Revoked => "a certificate has been revoked".into(),
        UnhandledCriticalExtension => "a certificate has a critical extension that is not understood".into(),
        UnknownIssuer => "the certificate's chain leads to no authority that is trusted".into(),
        UnknownRevocationStatus => {
            "whether a certificate has been revoked is not known: there is no revocation list of its issuer".into()
        }
        ExpiredRevocationList => "the revocation list of a certificate's issuer is out of date".into(),
        ExpiredRevocationListContext { next_update, .. } => {
            let due = moment(*next_update);
            format!("the revocation list of a certificate's issuer is out of date: the next was due on {due}")
        }
        BadSignature => {
            "a signature is wrong: it was made with another key, or what was signed has been changed".into()
        }
        UnsupportedSignatureAlgorithm => "a signature was made with an algorithm that is not supported".into(),
        UnsupportedSignatureAlgorithmContext { signature_algorithm_id, .. } => {
            format!("a signature was made with {}, which is not supported", algorithm(signature_algorithm_id))
        }
        UnsupportedSignatureAlgorithmForPublicKeyContext { signature_algorithm_id, public_key_algorithm_id } => {
            let (signature, key) = (algorithm(signature_algorithm_id), algorithm(public_key_algorithm_id));
            format!("a signature was made with {signature}, which does not go with a key of {key}")
        }
        NotValidForName => "the certificate is not for the name that was asked for".into(),
        NotValidForNameContext { expected, presented } => not_for(expected, presented),
        InvalidPurpose => "the certificate may not be used for this purpose (extended key usage)".into(),
        InvalidPurposeContext { required, presented } => {
            let presented: Vec<String> = presented.iter().map(purpose).collect();
            let (required, presented) = (purpose(required), listed(&presented, "nothing"));
            format!("the certificate may not be used for {required}, only for {presented} (extended key usage)")
        }
        InvalidOcspResponse => "the OCSP response that came with the certificate is not valid".into(),
        ApplicationVerificationFailure => "the certificate is in order, and is refused all the same".into(),
        Other(other) => match other.0.downcast_ref::<webpki::Error>() {
            Some(why) => chain(why),
            None => other.0.to_string(),
        },
        other => unforeseen(other.to_string()),
    }
}

/// Error of a revocation list.
#[expect(deprecated, reason = "the library has variants with and without context")]
pub(crate) fn revocation_list(why: &CertRevocationListError) -> String {
    use CertRevocationListError::*;
    match why {
        BadSignature => "it is not signed by the key of the authority that it names".into(),
        UnsupportedSignatureAlgorithm => "it is signed with an algorithm that is not supported".into(),
        UnsupportedSignatureAlgorithmContext { signature_algorithm_id, .. } => {
            format!("it is signed with {}, which is not supported", algorithm(signature_algorithm_id))
        }
        UnsupportedSignatureAlgorithmForPublicKeyContext { signature_algorithm_id, public_key_algorithm_id } => {
            let (signature, key) = (algorithm(signature_algorithm_id), algorithm(public_key_algorithm_id));
            format!("it is signed with {signature}, which does not go with a key of {key}")
        }
        InvalidCrlNumber => "its number is not one, or is longer than 20 bytes".into(),
        InvalidRevokedCertSerialNumber => "it has a serial number that is none".into(),
        IssuerInvalidForCrl => "the authority that has signed it may not sign revocation lists (key usage)".into(),
        ParseError => "it is damaged, or lacks a field that it must have".into(),
        UnsupportedCrlVersion => "it is not of version 2".into(),
        UnsupportedCriticalExtension => "it has a critical extension that is not understood".into(),
        UnsupportedDeltaCrl => "it is a delta: only what has changed since another list".into(),
        UnsupportedIndirectCrl => "it is an indirect one: it speaks of other authorities' certificates".into(),
        UnsupportedRevocationReason => "it has a reason for a revocation that is not known".into(),
        Other(other) => match other.0.downcast_ref::<webpki::Error>() {
            Some(why) => chain(why),
            None => other.0.to_string(),
        },
        other => unforeseen(format!("{other:?}")),
    }
}

/// Error of the verifier for which the library has no variant, and any other.
pub(crate) fn chain(why: &webpki::Error) -> String {
    use webpki::Error::*;
    let words = match why {
        BadDer | BadDerTime | TrailingData(_) => "it is damaged, or lacks a field that it must have",
        CaUsedAsEndEntity => "an authority's certificate was shown where somebody's own is wanted",
        EndEntityUsedAsCa => "a certificate in the chain is not an authority's, and may issue no others",
        CertDistrusted => "a certificate in the chain is not trusted any more",
        EmptyEkuExtension => "a certificate says that it may be used for nothing (extended key usage)",
        ExtensionValueInvalid => "an extension of a certificate has a value that is not valid",
        InvalidNetworkMaskConstraint => "a name constraint in the chain has a network mask with gaps",
        InvalidSerialNumber => "a serial number is none, or is longer than 20 bytes",
        MalformedDnsIdentifier => "a certificate is for something that cannot be a DNS name",
        MalformedExtensions => "the extensions of a certificate are damaged, or one comes twice",
        MalformedNameConstraint => "a name constraint in the chain is damaged",
        MaximumNameConstraintComparisonsExceeded => "the chain has too many names and constraints to compare",
        MaximumPathBuildCallsExceeded => "there are too many ways from the certificate to an authority to try them all",
        MaximumPathDepthExceeded => "the chain has more than 6 certificates between the first and an authority's",
        MaximumSignatureChecksExceeded => "the chain has too many signatures to check them all",
        NameConstraintViolation => {
            "an authority in the chain may not issue certificates for this name (name constraints)"
        }
        PathLenConstraintViolated => "an authority in the chain may not have so many others below it (path length)",
        UnsupportedCertVersion => "a certificate is not of X.509 version 3",
        UnsupportedCriticalExtension => "it has a critical extension that is not understood",
        UnsupportedNameType => "a certificate or a constraint has a kind of name that is not supported",
        UnsupportedCrlVersion => "it is not of version 2",
        UnsupportedCrlIssuingDistributionPoint => {
            "it covers a part of the authority's certificates by a rule that is not supported (issuing distribution point)"
        }
        UnsupportedDeltaCrl => "it is a delta: only what has changed since another list",
        UnsupportedIndirectCrl => "it is an indirect one: it speaks of other authorities' certificates",
        UnsupportedRevocationReason => "it has a reason for a revocation that is not known",
        UnsupportedRevocationReasonsPartitioning => "it is for some reasons of revocation alone",
        InvalidCrlNumber => "its number is not one, or is longer than 20 bytes",
        InvalidCrlSignatureForPublicKey => "it is not signed by the key of the authority that it names",
        IssuerNotCrlSigner => "the authority that has signed it may not sign revocation lists (key usage)",
        other => return unforeseen(other.to_string()),
    };
    words.into()
}

/// Name of an unknown variant as words: `NotOnAMonday` is "not on a monday".
fn unforeseen(name: String) -> String {
    let name = name.split(['(', '{']).next().unwrap_or_default().trim();
    let mut words = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !words.is_empty() && !words.ends_with(' ') {
            words.push(' ');
        }
        words.push(character.to_ascii_lowercase());
    }
    words
}

fn not_for(expected: &ServerName<'_>, presented: &[String]) -> String {
    // `ServerName` shows addresses and names alike in quotes.
    let plain: Vec<String> = presented.iter().map(|name| plain_name(name)).collect();
    format!("the certificate is not for {}, only for {}", expected.to_str(), listed(&plain, "nothing"))
}

/// The library shows names as `DnsName("a.example")`.
fn plain_name(name: &str) -> String {
    let quoted = name.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"')).map(|(quoted, _)| quoted);
    let bracketed = name.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).map(|(inner, _)| inner);
    quoted.or(bracketed).unwrap_or(name).to_owned()
}

/// A list in words, with as many items as people read.
fn listed(all: &[String], none: &str) -> String {
    const SHOWN_MAX: usize = 8;
    match all.len() {
        0 => none.into(),
        len if len <= SHOWN_MAX => all.join(", "),
        len => format!("{} and {} more", all[..SHOWN_MAX].join(", "), len - SHOWN_MAX),
    }
}

fn purpose(purpose: &ExtendedKeyPurpose) -> String {
    match purpose {
        ExtendedKeyPurpose::ClientAuth => "client authentication".into(),
        ExtendedKeyPurpose::ServerAuth => "server authentication".into(),
        ExtendedKeyPurpose::Other(arcs) => {
            let arcs: Vec<String> = arcs.iter().map(usize::to_string).collect();
            arcs.join(".")
        }
    }
}

/// `2024-02-29 12:00:00 UTC`
fn moment(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).map_or_else(
        |_| "a day beyond the calendar".into(),
        |time| {
            let (hour, minute, second) = time.to_hms();
            format!("{} {hour:02}:{minute:02}:{second:02} UTC", time.date())
        },
    )
}

/// The name of an algorithm that is written as the content of an AlgorithmIdentifier.
fn algorithm(identifier: &[u8]) -> String {
    let Ok((_, oid)) = Oid::from_der(identifier) else { return "an unknown algorithm".into() };
    let number = oid.to_id_string();
    let name = match number.as_str() {
        "1.2.840.113549.1.1.1" => "RSA",
        "1.2.840.113549.1.1.2" => "RSA and MD2",
        "1.2.840.113549.1.1.4" => "RSA and MD5",
        "1.2.840.113549.1.1.5" => "RSA and SHA-1",
        "1.2.840.113549.1.1.10" => "RSA-PSS",
        "1.2.840.113549.1.1.11" => "RSA and SHA-256",
        "1.2.840.113549.1.1.12" => "RSA and SHA-384",
        "1.2.840.113549.1.1.13" => "RSA and SHA-512",
        "1.2.840.113549.1.1.14" => "RSA and SHA-224",
        "1.2.840.10040.4.1" => "DSA",
        "1.2.840.10040.4.3" => "DSA and SHA-1",
        "1.2.840.10045.2.1" => "an elliptic curve",
        "1.2.840.10045.4.1" => "ECDSA and SHA-1",
        "1.2.840.10045.4.3.1" => "ECDSA and SHA-224",
        "1.2.840.10045.4.3.2" => "ECDSA and SHA-256",
        "1.2.840.10045.4.3.3" => "ECDSA and SHA-384",
        "1.2.840.10045.4.3.4" => "ECDSA and SHA-512",
        "1.3.101.112" => "Ed25519",
        "1.3.101.113" => "Ed448",
        _ => return format!("algorithm {number}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::OtherError;

    use super::*;

    /// No names of variants, no brackets of debugging.
    fn is_for_people(words: &str) -> bool {
        let joined = |word: &str| {
            let letters: Vec<char> = word.chars().filter(char::is_ascii_alphabetic).collect();
            letters.windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
        };
        let is_plain =
            !words.split(' ').any(joined) && !words.contains(['{', '}', '[', ']', '\\']) && !words.contains("Error");
        is_plain
            && words.contains(' ')
            && !words.ends_with('.')
            && words.starts_with(|first: char| first.is_lowercase())
    }

    fn other(why: webpki::Error) -> OtherError {
        OtherError(Arc::new(why))
    }

    #[test]
    #[expect(deprecated, reason = "they may come as well")]
    fn every_finding_of_the_library_is_told_in_words() {
        use CertificateError::*;
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        // RSA and SHA-1, with the empty parameters that come behind it.
        let sha1 = vec![6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 5, 5, 0];
        let dsa = vec![6, 7, 0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1];
        let expected = ServerName::try_from("shop.example").unwrap();
        let presented = vec!["DnsName(\"a.example\")".into(), "IpAddress(127.0.0.1)".into()];
        let purposes = vec![ExtendedKeyPurpose::ServerAuth, ExtendedKeyPurpose::Other(vec![1, 3, 6])];
        let all = [
            (BadEncoding, "damaged"),
            (Expired, "expired"),
            (ExpiredContext { time: at(2_000_000_000), not_after: at(1_709_208_000) }, "2024-02-29 12:00:00 UTC"),
            (NotValidYet, "not valid yet"),
            (NotValidYetContext { time: at(0), not_before: at(1_709_208_000) }, "before 2024-02-29"),
            (Revoked, "revoked"),
            (UnhandledCriticalExtension, "critical extension"),
            (UnknownIssuer, "no authority that is trusted"),
            (UnknownRevocationStatus, "no revocation list"),
            (ExpiredRevocationList, "out of date"),
            (ExpiredRevocationListContext { time: at(1), next_update: at(0) }, "1970-01-01"),
            (BadSignature, "another key"),
            (UnsupportedSignatureAlgorithm, "not supported"),
            (
                UnsupportedSignatureAlgorithmContext {
                    signature_algorithm_id: sha1.clone(),
                    supported_algorithms: vec![],
                },
                "with RSA and SHA-1, which is not supported",
            ),
            (
                UnsupportedSignatureAlgorithmForPublicKeyContext {
                    signature_algorithm_id: sha1,
                    public_key_algorithm_id: dsa,
                },
                "which does not go with a key of DSA",
            ),
            (NotValidForName, "not for the name"),
            (NotValidForNameContext { expected, presented }, "not for shop.example, only for a.example, 127.0.0.1"),
            (InvalidPurpose, "purpose"),
            (
                InvalidPurposeContext { required: ExtendedKeyPurpose::ClientAuth, presented: purposes },
                "for client authentication, only for server authentication, 1.3.6 (",
            ),
            (InvalidOcspResponse, "OCSP"),
            (ApplicationVerificationFailure, "refused"),
            (Other(other(webpki::Error::CaUsedAsEndEntity)), "an authority's certificate"),
        ];
        for (why, expected) in all {
            let words = of(&Error::InvalidCertificate(why));
            assert!(is_for_people(&words) && words.contains(expected), "{words}");
        }
    }

    #[test]
    fn every_finding_of_the_verifier_is_told_in_words() {
        use webpki::Error::*;
        for why in [
            BadDer,
            BadDerTime,
            CaUsedAsEndEntity,
            CertDistrusted,
            CertRevoked,
            EmptyEkuExtension,
            EndEntityUsedAsCa,
            ExtensionValueInvalid,
            InvalidCertValidity,
            InvalidCrlNumber,
            InvalidCrlSignatureForPublicKey,
            InvalidNetworkMaskConstraint,
            InvalidSerialNumber,
            InvalidSignatureForPublicKey,
            IssuerNotCrlSigner,
            MalformedDnsIdentifier,
            MalformedExtensions,
            MalformedNameConstraint,
            MaximumNameConstraintComparisonsExceeded,
            MaximumPathBuildCallsExceeded,
            MaximumPathDepthExceeded,
            MaximumSignatureChecksExceeded,
            NameConstraintViolation,
            PathLenConstraintViolated,
            UnknownIssuer,
            UnknownRevocationStatus,
            UnsupportedCertVersion,
            UnsupportedCriticalExtension,
            UnsupportedCrlIssuingDistributionPoint,
            UnsupportedCrlVersion,
            UnsupportedDeltaCrl,
            UnsupportedIndirectCrl,
            UnsupportedNameType,
            UnsupportedRevocationReason,
            UnsupportedRevocationReasonsPartitioning,
        ] {
            let name = format!("{why:?}");
            let as_certificate = of(&Error::InvalidCertificate(CertificateError::Other(other(why.clone()))));
            let as_list = of(&Error::InvalidCertRevocationList(CertRevocationListError::Other(other(why))));
            assert!(is_for_people(&as_certificate), "{name}: {as_certificate}");
            assert!(is_for_people(&as_list), "{name}: {as_list}");
        }
    }

    #[test]
    #[expect(deprecated, reason = "they may come as well")]
    fn every_finding_about_a_revocation_list_is_told_in_words() {
        use CertRevocationListError::*;
        for why in [
            BadSignature,
            UnsupportedSignatureAlgorithm,
            UnsupportedSignatureAlgorithmContext { signature_algorithm_id: vec![1], supported_algorithms: vec![] },
            InvalidCrlNumber,
            InvalidRevokedCertSerialNumber,
            IssuerInvalidForCrl,
            ParseError,
            UnsupportedCrlVersion,
            UnsupportedCriticalExtension,
            UnsupportedDeltaCrl,
            UnsupportedIndirectCrl,
            UnsupportedRevocationReason,
        ] {
            let words = of(&Error::InvalidCertRevocationList(why));
            assert!(is_for_people(&words), "{words}");
        }
    }

    #[test]
    fn what_nobody_foresaw_is_told_by_its_name() {
        assert_eq!(unforeseen("NotOnAMonday { day: 1 }".into()), "not on a monday");
    }
}
