//! CPU time of what a route does about a token signed with ES256, beside that of the ECDSA verification in it alone, in
//! turns: `cargo bench -p propylon-identity`. Prints the median of each in microseconds, and their ratio.

use std::hint::black_box;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, ParsedPublicKey,
};
use base64ct::{Base64UrlUnpadded, Encoding};
use propylon_config::Source;
use propylon_http::h1::{Limits, Parsed, RequestHead, parse_request};
use propylon_identity::{Gate, Loaded, Look, Looked};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

const ROUNDS: usize = 31;
const CHECKS: u32 = 500;
const NOW: u64 = 1_800_000_000;

fn main() {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
    let encode = Base64UrlUnpadded::encode_string;
    let claims = json!({ "iss": "https://id.test", "aud": "shop", "sub": "ann", "exp": NOW + 60 }).to_string();
    let signed = format!("{}.{}", encode(br#"{"alg":"ES256","kid":"k1","typ":"JWT"}"#), encode(claims.as_bytes()));
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).expect("a signature");
    let token = format!("{signed}.{}", encode(signature.as_ref()));
    let text = format!("GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut head = RequestHead::default();
    let limits = Limits { head_bytes: 64 << 10, headers: 64 };
    assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete));

    let loaded = loaded(&key);
    let gate: &Gate = loaded.gates[0].as_ref().expect("the route's gate");
    let check = || match gate.look((&head, black_box(text.as_bytes())), NOW, &mut Looked::default()) {
        Look::In(identity) => drop(black_box(identity)),
        _ => panic!("the token is good"),
    };
    let public = ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.public_key().as_ref()).expect("its public key");
    let verify = || public.verify_sig(black_box(signed.as_bytes()), signature.as_ref()).expect("the signature is good");

    let (mut checks, mut verifications) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        checks.push(time(check));
        verifications.push(time(verify));
    }
    let (check, verification) = (median(checks), median(verifications));
    println!(
        "check of a token {check:.1} us, its ECDSA verification {verification:.1} us, ratio {:.3}",
        check / verification
    );
}

fn loaded(key: &EcdsaKeyPair) -> Loaded {
    let (x, y) = key.public_key().as_ref()[1..].split_at(32);
    let encode = Base64UrlUnpadded::encode_string;
    let set = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": "k1", "x": encode(x), "y": encode(y) }] });
    let path = std::env::temp_dir().join(format!("propylon-token-{}.json", std::process::id()));
    std::fs::write(&path, set.to_string()).expect("a file for the keys");
    let text = format!(
        "[listener.a]\nbind = '127.0.0.1:80'\n[[route]]\nrespond = {{ status = 200 }}\n\
         auth = {{ jwt = {{ issuer = 'https://id.test', audience = 'shop', keys_file = '{}' }} }}\n",
        path.display()
    );
    let source = Source { name: "a.toml".into(), text, base: Default::default() };
    let (config, _) = propylon_config::parse(&source).expect("a good configuration");
    let (loaded, _) = Loaded::load(&config, None, |_| true).unwrap_or_else(|_| panic!("the keys are good"));
    std::fs::remove_file(&path).expect("the file was made above");
    loaded
}

/// Microseconds of CPU time that one call takes.
fn time(call: impl Fn()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let begin = now();
    (0..CHECKS).for_each(|_| call());
    (now() - begin).as_secs_f64() * 1e6 / f64::from(CHECKS)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
