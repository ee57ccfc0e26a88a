use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use propylon_config::{Proof, Source};
use serde_json::json;

use super::*;

pub(crate) const NOW: u64 = 1_800_000_000;

/// An issuer with a key of its own.
pub(crate) struct Issuer {
    pair: EcdsaKeyPair,
    pub(crate) keys: Arc<KeySet>,
}

impl Issuer {
    pub(crate) fn new() -> Issuer {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let (x, y) = (Base64UrlUnpadded::encode_string(x), Base64UrlUnpadded::encode_string(y));
        let set = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": "k1", "x": x, "y": y }] }).to_string();
        let keys = KeySet::parse(set.as_bytes(), &[TokenAlgorithm::Es256]).unwrap();
        Issuer { pair, keys: Arc::new(keys) }
    }

    pub(crate) fn sign(&self, header: &str, claims: &str) -> String {
        let encode = |text: &str| Base64UrlUnpadded::encode_string(text.as_bytes());
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", Base64UrlUnpadded::encode_string(signature.as_ref()))
    }
}

pub(crate) fn tokens(more: &str) -> Tokens {
    let text = format!(
        "[listener.a]\nbind='127.0.0.1:80'\n[[route]]\nrespond={{status=200}}\nauth={{jwt={{issuer='https://id.test',\
         audience=['shop','api'],keys_file='k'{more}}}}}\n"
    );
    let (config, _) =
        propylon_config::parse(&Source { name: "a.toml".into(), text, base: Default::default() }).unwrap();
    let auth = config.routes[0].steps.auth.as_ref();
    let Some([Proof::Jwt(jwt)]) = auth.map(|auth| &auth.proofs[..]) else { panic!("a token") };
    Tokens::new(jwt)
}

pub(crate) const HEADER: &str = r#"{"alg":"ES256","kid":"k1","typ":"JWT"}"#;

pub(crate) fn claims(more: &str) -> String {
    format!(r#"{{"iss":"https://id.test","aud":"shop","exp":{}{more}}}"#, NOW + 60)
}

#[test]
fn a_good_token_says_who_and_what() {
    let issuer = Issuer::new();
    let tokens = tokens(",claims_to={X-Groups='groups',X-Level='level',X-None='none'},leeway='10s'");
    let token = issuer.sign(HEADER, &claims(r#","sub":"ann","groups":["a","b"],"level":3"#));
    let said = tokens.check(token.as_bytes(), &issuer.keys, NOW).unwrap();
    assert_eq!(said.subject.as_deref(), Some("ann"));
    assert_eq!(said.fields, [("X-Groups".into(), "a,b".into()), ("X-Level".into(), "3".into())]);
    // Without a key's name, and for several audiences.
    let several = format!(r#"{{"iss":"https://id.test","aud":["x","api"],"exp":{NOW}.5,"nbf":{NOW},"iat":{NOW}}}"#);
    let token = issuer.sign(r#"{"alg":"ES256"}"#, &several);
    assert_eq!(tokens.check(token.as_bytes(), &issuer.keys, NOW), Ok(Said::default()));
    // The clock is past the end by less than it may differ, and by more.
    assert!(tokens.check(token.as_bytes(), &issuer.keys, NOW + 10).is_ok());
    assert_eq!(tokens.check(token.as_bytes(), &issuer.keys, NOW + 11), Err(BadToken::Expired));
    assert!(tokens.check(token.as_bytes(), &issuer.keys, NOW - 10).is_ok());
    assert_eq!(tokens.check(token.as_bytes(), &issuer.keys, NOW - 11), Err(BadToken::NotYetValid));
}

#[test]
fn hostile_tokens_are_refused_for_what_is_wrong_with_them() {
    let (issuer, tokens) = (Issuer::new(), tokens(",claims_to={X-Name='name'}"));
    let check = |token: &str| tokens.check(token.as_bytes(), &issuer.keys, NOW).expect_err("refused");
    let good = claims("");
    for (header, why) in [
        (r#"{"alg":"none"}"#, BadToken::Algorithm),
        (r#"{"alg":"None"}"#, BadToken::Algorithm),
        (r#"{"alg":"HS256","kid":"k1"}"#, BadToken::Algorithm),
        (r#"{"alg":"es256","kid":"k1"}"#, BadToken::Algorithm),
        // In the set of algorithms, but of another kind of key.
        (r#"{"alg":"RS256","kid":"k1"}"#, BadToken::Key),
        (r#"{"alg":"EdDSA","kid":"k1"}"#, BadToken::Key),
        (r#"{"alg":"ES512"}"#, BadToken::Algorithm),
        (r#"{"alg":"ES256","kid":"../../k1"}"#, BadToken::Key),
        (r#"{"alg":"ES256","kid":1}"#, BadToken::Malformed),
        (r#"{"alg":["ES256"]}"#, BadToken::Malformed),
        (r#"{"kid":"k1"}"#, BadToken::Malformed),
        (r#"{"alg":"none","alg":"ES256"}"#, BadToken::Malformed),
        (r#"{"alg":"ES256","crit":["exp"]}"#, BadToken::Critical),
        (r#"{"alg":"ES256","crit":[]}"#, BadToken::Critical),
        (r#"{"alg":"ES256","b64":false}"#, BadToken::Critical),
        // Word that somebody has logged out is from the same issuer, with a signature as good (RFC 8725 §3.11).
        (r#"{"alg":"ES256","typ":"logout+jwt"}"#, BadToken::Type),
        (r#"{"alg":"ES256","typ":""}"#, BadToken::Type),
        (r#"{"alg":"ES256","typ":["JWT"]}"#, BadToken::Malformed),
        ("[]", BadToken::Malformed),
        ("", BadToken::Malformed),
    ] {
        assert_eq!(check(&issuer.sign(header, &good)), why, "{header}");
    }
    for (claims, why) in [
        (claims(r#","sub":"a","sub":"b""#), BadToken::Malformed),
        (claims(r#","aud":"shop""#), BadToken::Malformed),
        (good.replace("id.test", "id.test/"), BadToken::Issuer),
        (good.replace("id.test", "ID.test"), BadToken::Issuer),
        (good.replace("\"https://id.test\"", "[\"https://id.test\"]"), BadToken::Issuer),
        (good.replace("shop", "Shop"), BadToken::Audience),
        (good.replace("\"shop\"", "{}"), BadToken::Audience),
        (good.replace("\"shop\"", "[\"shop\",1]"), BadToken::Audience),
        (good.replace("\"shop\"", "[]"), BadToken::Audience),
        (good.replace("\"aud\"", "\"not\""), BadToken::Audience),
        (good.replace("\"exp\"", "\"not\""), BadToken::Claim),
        (good.replace(&(NOW + 60).to_string(), "\"2000000000\""), BadToken::Claim),
        (good.replace(&(NOW + 60).to_string(), "-1"), BadToken::Claim),
        (good.replace(&(NOW + 60).to_string(), "1e400"), BadToken::Malformed),
        (good.replace(&(NOW + 60).to_string(), &(NOW - 31).to_string()), BadToken::Expired),
        // At its end it is over (RFC 7519 §4.1.4), half a minute later by the leeway.
        (good.replace(&(NOW + 60).to_string(), &(NOW - 30).to_string()), BadToken::Expired),
        (claims(&format!(r#","nbf":{}"#, NOW + 31)), BadToken::NotYetValid),
        (claims(&format!(r#","iat":{}"#, NOW + 31)), BadToken::NotYetValid),
        (claims(r#","sub":1"#), BadToken::Claim),
        (claims(r#","sub":"a\r\nX-Admin: 1""#), BadToken::Claim),
        (claims(r#","name":" admin""#), BadToken::Claim),
        (claims(r#","name":{"first":"a"}"#), BadToken::Claim),
        (claims(r#","name":["a,b"]"#), BadToken::Claim),
        (claims(&format!(r#","name":"{}""#, "a".repeat(5000))), BadToken::Claim),
    ] {
        assert_eq!(check(&issuer.sign(HEADER, &claims)), why, "{claims}");
    }
}

#[test]
fn what_is_signed_by_another_or_not_in_the_one_way_of_writing_is_refused() {
    let (issuer, tokens) = (Issuer::new(), tokens(""));
    let check = |token: &str| tokens.check(token.as_bytes(), &issuer.keys, NOW).expect_err("refused");
    let token = issuer.sign(HEADER, &claims(""));
    assert!(tokens.check(token.as_bytes(), &issuer.keys, NOW).is_ok());
    assert_eq!(check(&Issuer::new().sign(HEADER, &claims(""))), BadToken::Signature);
    // Nothing of what it says is looked at before that.
    for claims in [claims("").replace(&(NOW + 60).to_string(), "1"), claims("").replace("shop", "x"), String::new()] {
        assert_eq!(check(&Issuer::new().sign(HEADER, &claims)), BadToken::Signature, "{claims}");
    }
    assert_eq!(check(&issuer.sign(HEADER, "")), BadToken::Malformed, "no claims are no proof");
    let (signed, signature) = token.rsplit_once('.').unwrap();
    assert_eq!(check(&format!("{signed}.")), BadToken::Signature);
    assert_eq!(check(&format!("{signed}.{}", Base64UrlUnpadded::encode_string(&[0; 64]))), BadToken::Signature);
    for bad in [
        format!("{token}="),
        format!(" {token}"),
        format!("{token}.x.y"),
        signed.to_string(),
        signature.to_string(),
        String::new(),
        "...".to_string(),
        format!("{signed}+.{signature}"),
        "a".repeat(20_000),
        format!(
            "{}.{}",
            issuer.sign(&format!("{{\"alg\":\"ES256\",\"x\":\"{}\"}}", "x".repeat(3000)), &claims("")),
            ""
        ),
    ] {
        assert_eq!(check(&bad), BadToken::Malformed, "{bad}");
    }
    let typed = self::tokens(",type='at+jwt'");
    let check = |kind: &str| {
        let token = issuer.sign(&format!(r#"{{"alg":"ES256"{kind}}}"#), &claims(""));
        typed.check(token.as_bytes(), &issuer.keys, NOW).map(|_| ())
    };
    assert_eq!((check(r#","typ":"at+JWT""#), check(r#","typ":"application/at+jwt""#)), (Ok(()), Ok(())));
    assert_eq!((check(r#","typ":"JWT""#), check("")), (Err(BadToken::Type), Err(BadToken::Type)));
    // `application/` is left out only where no other slash is left (RFC 7515 §4.1.9).
    let typed = self::tokens(",type='application/x/y'");
    let check = |kind: &str| {
        let token = issuer.sign(&format!(r#"{{"alg":"ES256","typ":"{kind}"}}"#), &claims(""));
        typed.check(token.as_bytes(), &issuer.keys, NOW).map(|_| ())
    };
    assert_eq!((check("application/X/y"), check("x/y")), (Ok(()), Err(BadToken::Type)));
}

#[test]
fn tokens_headers_and_claims_are_so_long_at_the_most() {
    let (issuer, tokens) = (Issuer::new(), tokens(",claims_to={X-Name='name'}"));
    let check = |token: &str| tokens.check(token.as_bytes(), &issuer.keys, NOW);
    // A signature has 86 characters, and the lengths of base64 leave one out of four: the header fills up.
    let of_length = |length: usize| {
        (0..8).find_map(|more: usize| {
            let header = format!(r#"{{"alg":"ES256","x":"{}"}}"#, "x".repeat(more));
            let room = (length - 88 - (header.len() * 4).div_ceil(3)) * 3 / 4;
            let text = claims(&format!(r#","x":"{}""#, "x".repeat(room - claims(r#","x":"""#).len())));
            Some(issuer.sign(&header, &text)).filter(|token| token.len() == length)
        })
    };
    assert!(check(&of_length(TOKEN_BYTES_MAX).unwrap()).is_ok());
    assert_eq!(check(&of_length(TOKEN_BYTES_MAX + 1).unwrap()), Err(BadToken::Malformed));
    let header = |length: usize| {
        let empty = r#"{"alg":"ES256","x":""}"#;
        issuer.sign(&empty.replace("\"\"", &format!("\"{}\"", "x".repeat(length - empty.len()))), &claims(""))
    };
    assert!(check(&header(HEADER_BYTES_MAX)).is_ok());
    assert_eq!(check(&header(HEADER_BYTES_MAX + 1)), Err(BadToken::Malformed));
    for name in ["sub", "name"] {
        let claim = |length: usize| issuer.sign(HEADER, &claims(&format!(r#","{name}":"{}""#, "a".repeat(length))));
        assert!(check(&claim(CLAIM_BYTES_MAX)).is_ok(), "{name}");
        assert_eq!(check(&claim(CLAIM_BYTES_MAX + 1)), Err(BadToken::Claim), "{name}");
    }
}

#[test]
fn servers_are_told_nothing_with_control_characters_in_it() {
    let (issuer, tokens) = (Issuer::new(), tokens(",claims_to={X-Name='name'}"));
    for bad in ["a\\tb", "a\\u0000b", "a\\u001bb", "a\\u007fb", "a\\u0085b", "a\\nb", "a ", "\\u3000a"] {
        for claim in [format!(r#","sub":"{bad}""#), format!(r#","name":"{bad}""#), format!(r#","name":["x","{bad}"]"#)]
        {
            let token = issuer.sign(HEADER, &claims(&claim));
            assert_eq!(tokens.check(token.as_bytes(), &issuer.keys, NOW), Err(BadToken::Claim), "{claim}");
        }
    }
    // Empty texts are told in fields, and a subject is one that has a name.
    let of = |claim: &str| tokens.check(issuer.sign(HEADER, &claims(claim)).as_bytes(), &issuer.keys, NOW);
    assert_eq!(of(r#","name":"""#).unwrap().fields, [("X-Name".to_string(), String::new())]);
    assert_eq!(of(r#","sub":"""#), Err(BadToken::Claim));
}
