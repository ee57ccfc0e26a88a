//! Public keys of an issuer, as a set of them in JSON (RFC 7517 §5).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base64ct::{Base64UrlUnpadded, Encoding};
use propylon_crypto::{TokenAlgorithm, TokenKey, TokenKeyParts};
use serde_json::{Map, Value};

use crate::lines::BadLine;
use crate::strict_json;

/// Keys of one set.
const KEYS_MAX: usize = 128;
/// Keys that a token without `kid` is verified by.
const KEYS_TRIED_MAX: usize = 8;
const FIX: &str = "write the set that the issuer publishes, as in {\"keys\": [...]}";

/// A set of keys.
pub struct KeySet(Vec<Known>);

/// A set of keys that is fetched from its issuer, and may not have come yet.
#[derive(Default)]
pub struct Fetched {
    pub keys: Option<KeySet>,
    /// Text that the keys were read from; empty without keys.
    pub text: Arc<str>,
    /// A token has named a key that is not among them: whoever fetches them looks.
    pub is_missed: Arc<AtomicBool>,
}

struct Known {
    id: Option<String>,
    key: TokenKey,
}

impl KeySet {
    /// Reads a set. Keys of kinds that are not known, or not for signatures, are left out (RFC 7517 §5).
    ///
    /// # Errors
    /// Text that is no set, keys that are not whole or should not be there, and no key for any of `algorithms`.
    pub fn parse(text: &[u8], algorithms: &[TokenAlgorithm]) -> Result<KeySet, Vec<BadLine>> {
        let problem = |what: String, fix: &str| vec![BadLine::of_file(what, fix)];
        let set = strict_json::object(text)
            .ok_or_else(|| problem("it is no JSON object, or has a name twice".into(), FIX))?;
        let Some(Value::Array(keys)) = set.get("keys") else {
            return Err(problem("it has no list `keys`".into(), FIX));
        };
        if keys.len() > KEYS_MAX {
            return Err(problem(format!("it has more than {KEYS_MAX} keys"), "leave out those that are not in use"));
        }
        let mut known: Vec<Known> = Vec::new();
        for (key, place) in keys.iter().zip(1..) {
            let key = key.as_object().ok_or("it is no object").and_then(|key| read(key, algorithms));
            let found = key.map_err(|what| problem(format!("key {place}: {what}"), FIX))?;
            known.extend(found);
        }
        known.retain(|known| algorithms.iter().any(|algorithm| known.key.is_for(*algorithm)));
        for (place, one) in known.iter().enumerate() {
            if one.id.is_some() && known[..place].iter().any(|other| other.id == one.id) {
                let id = one.id.as_deref().unwrap_or_default();
                return Err(problem(format!("two keys have the `kid` {id:?}"), "remove one of the two"));
            }
        }
        match known.is_empty() {
            true => Err(problem("it has no key for any of the `algorithms`: no token would be good".into(), FIX)),
            false => Ok(KeySet(known)),
        }
    }

    /// The keys that a token may be signed by: the one that it names, or a few where it names none.
    pub fn candidates(&self, id: Option<&str>, algorithm: TokenAlgorithm) -> impl Iterator<Item = &TokenKey> {
        let is_meant = move |known: &&Known| id.is_none() || known.id.as_deref() == id;
        let keys = self.0.iter().filter(is_meant).map(|known| &known.key);
        keys.filter(move |key| key.is_for(algorithm)).take(KEYS_TRIED_MAX)
    }
}

/// Reads a key; none where it is of no use here.
fn read(key: &Map<String, Value>, algorithms: &[TokenAlgorithm]) -> Result<Option<Known>, &'static str> {
    let text = |name: &str| match key.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err("a member that should be a text is none"),
    };
    let bytes = |name: &str| text(name)?.and_then(decoded).ok_or("a part of it is missing, or no base64url");
    if text("use")?.is_some_and(|purpose| purpose != "sig") || !verifies(key) {
        return Ok(None);
    }
    if key.contains_key("d") {
        return Err("it has its private half, which is the issuer's alone");
    }
    let key_is_off = "it is no key: not on its curve, or RSA of fewer than 2048 bits";
    let parts = match text("kty")?.ok_or("it has no `kty`")? {
        "EC" => {
            let (curve, x, y) = (text("crv")?.unwrap_or_default(), bytes("x")?, bytes("y")?);
            if !["P-256", "P-384", "P-521"].contains(&curve) {
                return Ok(None);
            }
            TokenKey::new(&TokenKeyParts::Point { curve, x: &x, y: &y })
        }
        "OKP" if text("crv")? == Some("Ed25519") => TokenKey::new(&TokenKeyParts::Ed25519 { x: &bytes("x")? }),
        "RSA" => TokenKey::new(&TokenKeyParts::Rsa { n: &bytes("n")?, e: &bytes("e")? }),
        "oct" => return Err("it is a secret, which whoever checks tokens could make them with"),
        _ => return Ok(None),
    };
    let mut own = parts.ok_or(key_is_off)?;
    // One algorithm for each key (RFC 8725 §3.1): the one that it names, or else the first that is taken and fits.
    let algorithm = match text("alg")? {
        Some(name) => TokenAlgorithm::of(name),
        None => algorithms.iter().copied().find(|algorithm| own.is_for(*algorithm)),
    };
    match algorithm {
        Some(algorithm) if own.is_for(algorithm) => own = own.only(algorithm),
        _ => return Ok(None),
    }
    Ok(Some(Known { id: text("kid")?.map(str::to_string), key: own }))
}

/// Whether signatures may be verified by a key (RFC 7517 §4.3).
fn verifies(key: &Map<String, Value>) -> bool {
    match key.get("key_ops") {
        None => true,
        Some(Value::Array(operations)) => operations.iter().any(|operation| operation == "verify"),
        Some(_) => false,
    }
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    Base64UrlUnpadded::decode_vec(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7517 appendix A.1, and RFC 8037 appendix A.2.
    const EC: &str = concat!(
        r#""kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","#,
        r#""y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM""#
    );
    const OKP: &str = r#""kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo""#;

    fn parse(keys: &[String]) -> Result<KeySet, String> {
        let text = format!("{{\"keys\":[{}]}}", keys.join(","));
        let all = TokenAlgorithm::ALL.map(|(_, algorithm)| algorithm);
        KeySet::parse(text.as_bytes(), &all).map_err(|bad| bad[0].what.clone())
    }

    fn object(members: &str) -> String {
        format!("{{{members}}}")
    }

    #[test]
    fn a_token_is_verified_by_the_key_that_it_names_and_of_the_algorithms_kind() {
        let keys = parse(&[object(&format!(r#"{EC},"kid":"1","use":"sig""#)), object(&format!(r#"{OKP},"kid":"2""#))])
            .unwrap();
        let count = |id, algorithm| keys.candidates(id, algorithm).count();
        assert_eq!((count(Some("1"), TokenAlgorithm::Es256), count(Some("2"), TokenAlgorithm::Es256)), (1, 0));
        assert_eq!((count(None, TokenAlgorithm::EdDsa), count(Some(""), TokenAlgorithm::EdDsa)), (1, 0));
        assert_eq!((count(Some("1"), TokenAlgorithm::Es384), count(None, TokenAlgorithm::Rs256)), (0, 0));
    }

    #[test]
    fn a_key_without_a_name_is_meant_by_tokens_that_name_none_and_names_are_compared_as_they_are() {
        let (named, nameless) = (object(&format!(r#"{EC},"kid":"1""#)), object(EC));
        let keys = parse(&[named.clone(), nameless.clone(), nameless.clone()]).unwrap();
        let count = |id| keys.candidates(id, TokenAlgorithm::Es256).count();
        assert_eq!((count(None), count(Some("1")), count(Some("")), count(Some("2"))), (3, 1, 0, 0));
        assert_eq!((count(Some("1 ")), count(Some("01")), count(Some("1\0"))), (0, 0, 0));
        // An empty name is one as well.
        let keys = parse(&[object(&format!(r#"{EC},"kid":"""#)), nameless.clone()]).unwrap();
        assert_eq!(keys.candidates(Some(""), TokenAlgorithm::Es256).count(), 1);
        for bad in ["1", "null", "[\"1\"]"] {
            assert!(parse(&[object(&format!(r#"{EC},"kid":{bad}"#))]).err().unwrap().contains("a text"), "{bad}");
        }
        // One that is of no use here may have the name of another.
        assert!(parse(&[named.clone(), object(&format!(r#"{EC},"kid":"1","use":"enc""#))]).is_ok());
        assert!(parse(&[nameless, named.clone(), named]).err().unwrap().contains("two keys have the `kid` \"1\""));
    }

    #[test]
    fn a_set_has_so_many_keys_at_the_most_and_a_token_is_tried_with_a_few() {
        let nameless = vec![object(EC); KEYS_MAX];
        let keys = parse(&nameless).unwrap();
        assert_eq!((keys.0.len(), keys.candidates(None, TokenAlgorithm::Es256).count()), (KEYS_MAX, KEYS_TRIED_MAX));
        assert!(parse(&[&nameless[..], &[object(EC)]].concat()).err().unwrap().contains("more than 128 keys"));
    }

    #[test]
    fn a_key_that_names_no_algorithm_is_for_the_first_that_fits_and_for_no_other() {
        let n = Base64UrlUnpadded::encode_string(&[&[0xc5; 255][..], &[1]].concat());
        let rsa = object(&format!(r#""kty":"RSA","e":"AQAB","n":"{n}""#));
        let text = format!("{{\"keys\":[{rsa}]}}");
        let count = |algorithms: &[TokenAlgorithm], algorithm| {
            KeySet::parse(text.as_bytes(), algorithms).unwrap().candidates(None, algorithm).count()
        };
        let (rs256, ps256) = (TokenAlgorithm::Rs256, TokenAlgorithm::Ps256);
        assert_eq!((count(&[rs256, ps256], rs256), count(&[rs256, ps256], ps256)), (1, 0));
        assert_eq!((count(&[ps256, rs256], rs256), count(&[ps256, rs256], ps256)), (0, 1));
    }

    #[test]
    fn keys_for_other_things_are_left_out_and_such_as_should_not_be_there_are_told_of() {
        let good = object(EC);
        for other in [r#","use":"enc""#, r#","key_ops":["sign"]"#, r#","alg":"ES384""#, r#","alg":"HS256""#] {
            assert_eq!(parse(&[good.clone(), object(&format!("{EC}{other}"))]).unwrap().0.len(), 1, "{other}");
        }
        assert_eq!(parse(&[good.clone(), object(r#""kty":"AKP""#)]).unwrap().0.len(), 1);
        for (bad, what) in [
            (format!(r#"{EC},"d":"x""#), "private half"),
            (r#""kty":"oct","k":"x""#.into(), "a secret"),
            (EC.replace("MKBC", "MKBD"), "no key"),
            (EC.replace("MKBC", "MK=C"), "base64url"),
            (r#""kty":"EC""#.into(), "missing"),
            (r#""kty":1"#.into(), "a text"),
            (String::new(), "no `kty`"),
        ] {
            assert!(parse(&[object(&bad)]).err().unwrap().contains(what), "{bad}");
        }
        assert!(parse(&[]).err().unwrap().contains("no key for any"));
        let twice = object(&format!(r#"{OKP},"kid":"2""#));
        assert!(parse(&[twice.clone(), twice]).err().unwrap().contains("two keys"));
    }
}
