//! All decoders of this crate over any bytes, for the fuzzer.

use std::time::Duration;

use propylon_config::Jwt;
use propylon_crypto::TokenAlgorithm;

use crate::api_keys::ApiKeys;
use crate::key_set::KeySet;
use crate::tokens::Tokens;
use crate::users::Users;

const SET: &[u8] = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// Reads the bytes as a file of each kind, as a token and as its claims.
pub fn read(bytes: &[u8]) {
    let algorithms = TokenAlgorithm::ALL.map(|(_, algorithm)| algorithm);
    let _ = (Users::parse(bytes).is_ok(), ApiKeys::parse(bytes).is_ok(), KeySet::parse(bytes, &algorithms).is_ok());
    let tokens = Tokens::new(&Jwt {
        issuer: "i".into(),
        audience: vec!["a".into()],
        keys: propylon_config::TokenKeys::File { keys_file: "k".into() },
        algorithms: TokenAlgorithm::ALL.map(|(name, _)| name.to_string()).to_vec(),
        kind: None,
        cookie: None,
        leeway: Duration::ZERO,
        claims_to: vec![("X-A".into(), "a".into()), ("X-Sub".into(), "sub".into())],
    });
    let keys = KeySet::parse(SET, &algorithms).expect("a good set");
    assert!(tokens.check(bytes, &keys, 0).is_err(), "nobody has signed it");
    if let Ok(said) = tokens.claims(bytes, 0) {
        let values = said.fields.iter().map(|(_, value)| value).chain(&said.subject);
        values.for_each(|value| assert!(!value.chars().any(char::is_control) && value.trim() == value));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_read_without_harm() {
        for bytes in [
            &b""[..],
            b"a:b",
            b"..",
            b"{\"keys\":[{}]}",
            b"{\"iss\":\"i\",\"aud\":\"a\",\"exp\":1,\"sub\":\"x\",\"a\":[1,true]}",
            b"\xff\xfe",
        ] {
            super::read(bytes);
        }
    }
}
