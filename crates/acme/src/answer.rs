//! Answers to the authority's challenges that are outstanding, in memory and in files that other processes read.

use aws_lc_rs::digest;
use propylon_config::AcmeChallenge;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};

/// The answer to one challenge, as long as it is outstanding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name that is to be shown to lead here.
    pub name: String,
    /// Token by which the authority asks: base64url.
    pub token: String,
    /// Key authorization that the authority is to receive (RFC 8555 §8.1).
    pub key_authorization: String,
    /// Challenge type by which the authority asks.
    pub challenge: AcmeChallenge,
    /// Seconds since 1970; nobody has withdrawn it by then, but whoever asked is gone.
    pub(crate) until: i64,
}

/// The file's form.
#[derive(Serialize, Deserialize)]
struct Written {
    name: String,
    token: String,
    key_authorization: String,
    challenge: String,
    until: i64,
}

/// More than any file of ours has.
pub(crate) const ANSWER_BYTES_MAX: u64 = 4096;
const TOKEN_BYTES_MAX: usize = 256;

impl Answer {
    /// Makes an answer. Absent if the authority's token is no valid one (RFC 8555 §8.3): it becomes a file's name
    /// and part of a path.
    pub(crate) fn new(
        name: &str,
        token: &str,
        key_authorization: &str,
        challenge: AcmeChallenge,
        until: i64,
    ) -> Option<Answer> {
        let is_url_safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let fits = !token.is_empty() && token.len() <= TOKEN_BYTES_MAX && token.bytes().all(is_url_safe);
        let answers = key_authorization.strip_prefix(token).is_some_and(|rest| rest.starts_with('.'));
        let plain = key_authorization.len() <= 1024 && key_authorization.bytes().all(|byte| byte.is_ascii_graphic());
        (fits && answers && plain).then(|| Answer {
            name: name.to_ascii_lowercase(),
            token: token.into(),
            key_authorization: key_authorization.into(),
            challenge,
            until,
        })
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let Answer { name, token, key_authorization, challenge, until } = self.clone();
        let written = Written { name, token, key_authorization, challenge: challenge.name().into(), until };
        serde_json::to_vec(&written).unwrap_or_default()
    }

    pub(crate) fn from_json(bytes: &[u8]) -> Option<Answer> {
        let Written { name, token, key_authorization, challenge, until } = serde_json::from_slice(bytes).ok()?;
        let known = [AcmeChallenge::TlsAlpn, AcmeChallenge::Http];
        let challenge = known.into_iter().find(|each| each.name() == challenge)?;
        Answer::new(&name, &token, &key_authorization, challenge, until)
    }

    /// The certificate for tls-alpn-01: self-signed, for that name alone, with the digest of the key authorization
    /// in a critical extension (RFC 8737 §3); and its key, both DER.
    pub fn certificate(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let digest = digest::digest(&digest::SHA256, self.key_authorization.as_bytes());
        let mut params = CertificateParams::new(vec![self.name.clone()]).ok()?;
        params.distinguished_name = DistinguishedName::new();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
        let key = KeyPair::generate().ok()?;
        let certificate = params.self_signed(&key).ok()?;
        Some((certificate.der().to_vec(), key.serialize_der()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::extensions::GeneralName;

    fn answer(token: &str) -> Option<Answer> {
        Answer::new("Shop.test", token, &format!("{token}.thumb"), AcmeChallenge::TlsAlpn, 9)
    }

    #[test]
    fn a_challenge_s_certificate_is_for_its_name_alone_and_carries_the_digest_in_a_critical_extension() {
        let (der, key) = answer("token").unwrap().certificate().unwrap();
        let (rest, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
        assert!(rest.is_empty() && !key.is_empty());
        let names = &parsed.subject_alternative_name().unwrap().unwrap().value.general_names;
        assert_eq!(*names, [GeneralName::DNSName("shop.test")]);
        let extension = parsed.extensions().iter().find(|each| each.oid.to_id_string() == "1.3.6.1.5.5.7.1.31");
        let extension = extension.expect("id-pe-acmeIdentifier");
        let digest = digest::digest(&digest::SHA256, b"token.thumb");
        assert!(extension.critical);
        assert_eq!(extension.value, [&[4, 32], digest.as_ref()].concat());
    }

    #[test]
    fn what_is_written_is_read_and_a_token_that_is_a_path_is_neither() {
        let whole = answer("aZ09-_").unwrap();
        assert_eq!(Answer::from_json(&whole.to_json()), Some(whole));
        for token in ["", "../x", "a.b", "a/b", "a b", "ä", &"x".repeat(257)] {
            assert_eq!(answer(token), None, "{token}");
        }
        assert_eq!(Answer::new("a.test", "token", "other.thumb", AcmeChallenge::Http, 0), None);
        assert_eq!(Answer::new("a.test", "token", "token.\r\nX: y", AcmeChallenge::Http, 0), None);
        assert_eq!(Answer::from_json(b"{}"), None);
    }
}
