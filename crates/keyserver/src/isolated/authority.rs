//! Accounts' keys sign requests that an order of a certificate takes (RFC 8555), and nothing else.
//!
//! The engine that asks may be somebody else's by now. He could have the account's key changed for one of his own
//! (§7.3.5), the account closed (§7.3.6), certificates revoked (§7.6), or have one made for a key that he has: each
//! would last when he is gone. So a request is read before it is signed, and a certificate is asked for only with a key
//! that is kept here.

use base64ct::{Base64UrlUnpadded, Encoding};
use propylon_crypto::der::Der;
use propylon_crypto::{Hash, Job, PrivateKey, RemoteKey, Scheme, Ski};
use serde::Deserialize;
use serde_json::Value;

/// The reason why nothing is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No order takes such a request.
    NotOfAnOrder,
    /// A certificate would be for a key that is not kept here.
    ForeignKey,
    /// The key cannot do it.
    Failed,
}

/// A request, as far as it is looked at: members twice, and others than these, are refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    jwk: Option<Value>,
    kid: Option<String>,
    #[serde(rename = "nonce")]
    _nonce: String,
    #[serde(rename = "url")]
    _url: String,
}

/// A new account (§7.3).
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NewAccount {
    #[serde(rename = "termsOfServiceAgreed")]
    _terms_of_service_agreed: Option<bool>,
    #[serde(rename = "contact")]
    _contact: Option<Vec<String>>,
    #[serde(rename = "onlyReturnExisting")]
    _only_return_existing: Option<bool>,
    #[serde(rename = "externalAccountBinding")]
    _external_account_binding: Option<Value>,
}

/// A new order (§7.4), a challenge that is ready (§7.5.1), which has no members, or a request for the certificate
/// (§7.4).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    identifiers: Option<Value>,
    profile: Option<Value>,
    replaces: Option<Value>,
    csr: Option<String>,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refused::NotOfAnOrder => "the key process signs no such request for an account",
            Refused::ForeignKey => "the key process asks for no certificate for a key that it does not keep",
            Refused::Failed => "the account's key cannot sign",
        })
    }
}

/// The signature of a request by an account's key (ES256, RFC 7518 §3.4). `keeps` says whether a certificate's key of
/// this account is kept.
pub fn sign(
    account: &PrivateKey,
    header: &str,
    payload: &str,
    keeps: impl FnOnce(Ski) -> bool,
) -> Result<[u8; 64], Refused> {
    let none = |_| Refused::NotOfAnOrder;
    let Header { alg, jwk, kid, .. } = serde_json::from_str(header).map_err(none)?;
    match (alg.as_str(), jwk, kid) {
        ("ES256", Some(_), None) => drop(serde_json::from_str::<NewAccount>(payload).map_err(none)?),
        ("ES256", None, Some(_)) => check(payload, keeps)?,
        _ => return Err(Refused::NotOfAnOrder),
    }
    let encode = |text: &str| Base64UrlUnpadded::encode_string(text.as_bytes());
    let message = format!("{}.{}", encode(header), encode(payload));
    let digest = Hash::Sha256.digest(message.as_bytes()).ok_or(Refused::Failed)?;
    let job: Job = account.job(Scheme::Ecdsa(Hash::Sha256), digest.as_ref()).map_err(|_| Refused::Failed)?;
    let signature = job.run().map_err(|_| Refused::Failed)?;
    numbers(&signature).ok_or(Refused::Failed)
}

/// Checks that an order may need this payload signed in an account's name.
fn check(payload: &str, keeps: impl FnOnce(Ski) -> bool) -> Result<(), Refused> {
    // An empty payload fetches something (§6.3).
    if payload.is_empty() {
        return Ok(());
    }
    let step: Step = serde_json::from_str(payload).map_err(|_| Refused::NotOfAnOrder)?;
    let Some(csr) = step.csr else { return Ok(()) };
    if step.identifiers.is_some() || step.profile.is_some() || step.replaces.is_some() {
        return Err(Refused::NotOfAnOrder);
    }
    let der = Base64UrlUnpadded::decode_vec(&csr).map_err(|_| Refused::NotOfAnOrder)?;
    let key = key_of(&der).and_then(|public| RemoteKey::new(RemoteKey::KEY_PROCESS, public).ok());
    let key = key.ok_or(Refused::NotOfAnOrder)?;
    if keeps(key.ski) { Ok(()) } else { Err(Refused::ForeignKey) }
}

/// The SubjectPublicKeyInfo of a request for a certificate (RFC 2986 §4).
fn key_of(csr: &[u8]) -> Option<&[u8]> {
    let mut info = Der(Der(Der(csr).only(0x30)?).take(0x30)?);
    let _version = info.take(2)?;
    let _subject = info.take(0x30)?;
    let rest = info.0;
    info.take(0x30)?;
    Some(&rest[..rest.len() - info.0.len()])
}

/// The two numbers of a signature in DER, each of 32 bytes.
fn numbers(der: &[u8]) -> Option<[u8; 64]> {
    let mut both = Der(Der(der).take(0x30)?);
    let (r, s) = (both.take(2)?, both.take(2)?);
    let mut signature = [0; 64];
    for (number, place) in [r, s].into_iter().zip(signature.chunks_mut(32)) {
        let digits = &number[number.iter().take_while(|digit| **digit == 0).count()..];
        let start = place.len().checked_sub(digits.len())?;
        place[start..].copy_from_slice(digits);
    }
    Some(signature)
}

#[cfg(test)]
mod tests {
    use propylon_crypto::KeyKind;

    use super::*;

    const KID: &str = r#"{"alg":"ES256","kid":"https://a/1","nonce":"n","url":"https://a/x"}"#;
    const JWK: &str = r#"{"alg":"ES256","jwk":{"kty":"EC"},"nonce":"n","url":"https://a/x"}"#;

    fn csr(key: &rcgen::KeyPair) -> String {
        let params = rcgen::CertificateParams::new(vec!["a.test".into()]).expect("a name");
        let csr = params.serialize_request(key).expect("a request");
        format!("{{\"csr\":\"{}\"}}", Base64UrlUnpadded::encode_string(csr.der()))
    }

    /// The signature in DER, as handshakes have it.
    fn in_der(signature: &[u8; 64]) -> Vec<u8> {
        let number = |digits: &[u8]| {
            let digits = &digits[digits.iter().take_while(|digit| **digit == 0).count()..];
            let sign: &[u8] = if digits[0] >= 0x80 { &[0] } else { &[] };
            [&[2, (sign.len() + digits.len()) as u8], sign, digits].concat()
        };
        let both = [number(&signature[..32]), number(&signature[32..])].concat();
        [&[0x30, both.len() as u8], both.as_slice()].concat()
    }

    #[test]
    fn what_an_order_takes_is_signed_and_the_signature_is_good() {
        let (key, _) = PrivateKey::generate(KeyKind::P256).expect("a key");
        let own = rcgen::KeyPair::generate().expect("a key");
        let csr = csr(&own);
        let ski = PrivateKey::from_der(own.serialized_der()).expect("a key").ski();
        for (header, payload) in [
            (JWK, r#"{"termsOfServiceAgreed":true,"contact":["mailto:a@b"]}"#),
            (JWK, r#"{"termsOfServiceAgreed":true,"externalAccountBinding":{"payload":"x"}}"#),
            (KID, ""),
            (KID, "{}"),
            (KID, r#"{"identifiers":[{"type":"dns","value":"a.test"}],"replaces":"x.y","profile":"p"}"#),
            (KID, &csr),
        ] {
            // Numbers of less than 32 bytes come in one of 128 signatures.
            for _ in 0..50 {
                let signature = sign(&key, header, payload, |found| found == ski).expect(payload);
                let encode = |text: &str| Base64UrlUnpadded::encode_string(text.as_bytes());
                let message = format!("{}.{}", encode(header), encode(payload));
                let digest = Hash::Sha256.digest(message.as_bytes()).expect("a digest");
                let public = RemoteKey::new(0, key.public_info()).expect("a key");
                assert!(public.verifies(Scheme::Ecdsa(Hash::Sha256), digest.as_ref(), &in_der(&signature)));
            }
        }
    }

    #[test]
    fn nothing_is_signed_that_would_last_when_whoever_asks_is_gone() {
        let (key, _) = PrivateKey::generate(KeyKind::P256).expect("a key");
        let foreign = csr(&rcgen::KeyPair::generate().expect("a key"));
        let twice = foreign.replace('}', ",") + &foreign[1..];
        let keeps = |_| false;
        assert_eq!(sign(&key, KID, &foreign, keeps), Err(Refused::ForeignKey));
        for (header, payload) in [
            // Another key for the account, its end, its contacts, certificates revoked, a name authorized beforehand.
            (KID, r#"{"protected":"a","payload":"b","signature":"c"}"#),
            (JWK, r#"{"account":"https://a/1","oldKey":{}}"#),
            (KID, r#"{"status":"deactivated"}"#),
            (KID, r#"{"contact":["mailto:c@d"]}"#),
            (KID, r#"{"certificate":"MII","reason":1}"#),
            (JWK, r#"{"certificate":"MII"}"#),
            (KID, r#"{"identifier":{"type":"dns","value":"a.test"}}"#),
            // Texts that somebody else may read otherwise.
            (KID, r#"{"csr":"AAAA","identifiers":[]}"#),
            (KID, &twice),
            (KID, r#"{"csr":"AAAA"}"#),
            (KID, r#"{"csr":"!"}"#),
            (KID, "[]"),
            (KID, "\"text\""),
            (KID, "{} {}"),
            (JWK, ""),
            (r#"{"alg":"none","kid":"k","nonce":"n","url":"u"}"#, "{}"),
            (r#"{"alg":"ES256","nonce":"n","url":"u"}"#, "{}"),
            (r#"{"alg":"ES256","kid":"k","jwk":{},"nonce":"n","url":"u"}"#, "{}"),
            (r#"{"alg":"ES256","kid":"k","kid":"l","nonce":"n","url":"u"}"#, "{}"),
            (r#"{"alg":"ES256","kid":"k","nonce":"n","url":"u","b64":false,"crit":["b64"]}"#, "{}"),
            (r#"{"alg":"ES256","kid":"k","url":"u"}"#, "{}"),
            ("", ""),
        ] {
            assert_eq!(sign(&key, header, payload, keeps), Err(Refused::NotOfAnOrder), "{header} {payload}");
        }
    }

    #[test]
    fn a_request_for_a_certificate_that_is_none_has_no_key() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["a.test".into()]).expect("a name");
        let request = params.serialize_request(&key).expect("a request");
        let public = rcgen::PublicKeyData::subject_public_key_info(&key);
        assert_eq!(key_of(request.der()), Some(public.as_slice()));
        for cut in 0..request.der().len() {
            assert_eq!(key_of(&request.der()[..cut]), None);
        }
        assert_eq!(key_of(&[request.der(), &[0_u8][..]].concat()), None);
    }
}
