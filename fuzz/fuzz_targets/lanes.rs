#![no_main]

//! Whatever the numbers: each lane's result is the one that AWS-LC gives for it, or both refuse.

use std::sync::LazyLock;

use aws_lc_rs::agreement::{Algorithm, ECDH_P256, PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature;
use propylon_crypto::Scheme;
use propylon_lanes::rsa::{Blinding, Job, Key, Parts, Renewal, private_operations, renew_blindings};
use propylon_lanes::{Ifma, p256, rsa, x25519};

const LANES: usize = 8;

libfuzzer_sys::fuzz_target!(|input: (u8, &[u8])| {
    let Some(ifma) = Ifma::detect() else { return };
    let (kind, bytes) = input;
    match kind % 4 {
        0 => x25519_agreements(ifma, bytes),
        1 => p256_agreements(ifma, bytes),
        2 => p256_signatures(ifma, bytes),
        _ => rsa_operations(ifma, bytes),
    }
});

/// Pieces of the input, one after the other; zeros when it is used up.
struct Pieces<'a>(&'a [u8]);

impl Pieces<'_> {
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let mut piece = [0; N];
        let (taken, rest) = self.0.split_at(self.0.len().min(N));
        piece[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        piece
    }
}

fn theirs(algorithm: &'static Algorithm, scalar: &[u8], point: &[u8]) -> Option<Vec<u8>> {
    let key = PrivateKey::from_private_key(algorithm, scalar).ok()?;
    agree(&key, UnparsedPublicKey::new(algorithm, point), (), |secret| Ok(secret.to_vec())).ok()
}

fn x25519_agreements(ifma: Ifma, bytes: &[u8]) {
    let mut pieces = Pieces(bytes);
    let scalars: [[u8; 32]; LANES] = std::array::from_fn(|_| pieces.next());
    let points: [[u8; 32]; LANES] = std::array::from_fn(|_| pieces.next());
    let mut secrets = [[0; 32]; LANES];
    let refused = x25519::derive(ifma, &scalars, &points, &mut secrets);
    for lane in 0..LANES {
        let ours = (refused >> lane & 1 == 0).then(|| secrets[lane].to_vec());
        assert_eq!(ours, theirs(&X25519, &scalars[lane], &points[lane]), "lane {lane}");
    }
    let mut shares = [[0; 32]; LANES];
    x25519::public_keys(ifma, &scalars, &mut shares);
    for (scalar, share) in scalars.iter().zip(&shares) {
        let key = PrivateKey::from_private_key(&X25519, scalar).expect("any 32 bytes are a scalar");
        assert_eq!(key.compute_public_key().expect("a share").as_ref(), share);
    }
}

/// Scalars that are none have no place in a batch.
fn scalar(pieces: &mut Pieces<'_>) -> [u8; 32] {
    let scalar = pieces.next();
    if p256::is_scalar(&scalar) { scalar } else { [1; 32] }
}

fn p256_agreements(ifma: Ifma, bytes: &[u8]) {
    let mut pieces = Pieces(bytes);
    let mut scratch = Box::new(p256::Scratch::new());
    let scalars: [[u8; 32]; LANES] = std::array::from_fn(|_| scalar(&mut pieces));
    let peers: [[u8; 32]; LANES] = std::array::from_fn(|_| scalar(&mut pieces));
    let mut points = [[0; 65]; LANES];
    if p256::public_keys(ifma, &peers, &mut scratch, &mut points).is_err() {
        return;
    }
    for (scalar, point) in peers.iter().zip(&points) {
        let key = PrivateKey::from_private_key(&ECDH_P256, scalar).expect("a scalar");
        assert_eq!(key.compute_public_key().expect("a point").as_ref(), point);
    }
    // Some are changed to what is no point, most likely. The first byte stays: AWS-LC takes hybrid forms, lanes do not.
    let changes: [u8; LANES] = pieces.next();
    for (point, change) in points.iter_mut().zip(changes) {
        if change & 0x80 != 0 {
            point[1 + usize::from(change & 0x3f)] ^= 1;
        }
    }
    let mut secrets = [[0; 32]; LANES];
    let refused = p256::agree(ifma, &scalars, &points, &mut scratch, &mut secrets);
    for lane in 0..LANES {
        let ours = (refused >> lane & 1 == 0).then(|| secrets[lane].to_vec());
        assert_eq!(ours, theirs(&ECDH_P256, &scalars[lane], &points[lane]), "lane {lane}");
    }
}

fn p256_signatures(ifma: Ifma, bytes: &[u8]) {
    let mut pieces = Pieces(bytes);
    let mut scratch = Box::new(p256::Scratch::new());
    let secret = scalar(&mut pieces);
    let mut nonces: [[u8; 32]; LANES] = std::array::from_fn(|_| scalar(&mut pieces));
    let mut slots = [p256::PairSlot::EMPTY; LANES];
    if p256::nonce_pairs(ifma, &mut nonces, &mut scratch, &mut slots).is_err() {
        return;
    }
    assert_eq!(nonces, [[0; 32]; LANES]);
    let key = PrivateKey::from_private_key(&ECDH_P256, &secret).expect("a scalar");
    let public = key.compute_public_key().expect("a point");
    let verifier = signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_ASN1, public.as_ref());
    let secret = p256::SecretScalar::new(&secret).expect("a scalar");
    for slot in &mut slots {
        let pair = slot.take().expect("a pair for every nonce");
        if let Some(signature) = p256::sign(&secret, digest(&SHA256, bytes).as_ref(), pair) {
            verifier.verify(bytes, p256::DerSignature::new(&signature).as_bytes()).expect("it verifies");
        }
    }
}

struct Pair {
    lanes: Key,
    theirs: propylon_crypto::PrivateKey,
}

static KEYS: LazyLock<[Pair; 3]> = LazyLock::new(|| {
    let ders: [&[u8]; 3] = [
        include_bytes!("../../crates/lanes/src/rsa/keys/2048.a.der"),
        include_bytes!("../../crates/lanes/src/rsa/keys/2048.b.der"),
        include_bytes!("../../crates/lanes/src/rsa/keys/2048.c.der"),
    ];
    ders.map(|der| {
        let parts = Parts::from_pkcs1_der(der).expect("an RSA key");
        let theirs = propylon_crypto::PrivateKey::from_der(der).expect("an RSA key");
        Pair { lanes: Key::new(&parts).unwrap_or_else(|_| panic!("a key for the lanes")), theirs }
    })
});

fn rsa_operations(ifma: Ifma, bytes: &[u8]) {
    const LEN: usize = 256;
    let mut pieces = Pieces(bytes);
    let [count, keys] = pieces.next();
    let count = usize::from(count) % LANES + 1;
    let keys: Vec<&Pair> = (0..count).map(|lane| &KEYS[usize::from(keys.rotate_left(lane as u32)) % 3]).collect();
    let mut scratch = Box::new(rsa::Scratch::new());
    let random: Vec<[u8; LEN + 16]> = (0..count).map(|_| pieces.next()).collect();
    let inputs: Vec<[u8; LEN]> = (0..count).map(|_| pieces.next()).collect();
    let mut blindings: Vec<Blinding> = (0..count).map(|_| Blinding::new()).collect();
    let mut renewals: Vec<Renewal<'_>> = blindings
        .iter_mut()
        .zip(&keys)
        .zip(&random)
        .map(|((blinding, key), random)| Renewal { key: &key.lanes, blinding, random })
        .collect();
    // A random number of zero, say, gives no blinding; its job is refused below.
    let _ = renew_blindings(ifma, &mut scratch, &mut renewals);
    let mut outputs = vec![[0; LEN]; count];
    let mut jobs: Vec<Job<'_>> = blindings
        .iter_mut()
        .zip(&keys)
        .zip(inputs.iter().zip(&mut outputs))
        .map(|((blinding, key), (input, output))| Job { key: &key.lanes, blinding, input, output })
        .collect();
    let blind: Vec<bool> = jobs.iter().map(|job| job.blinding.needs_random()).collect();
    let report = private_operations(ifma, &mut scratch, &mut jobs);
    assert_eq!(report.bad, 0);
    for lane in 0..count {
        let job = keys[lane].theirs.job(Scheme::RsaRaw, &inputs[lane]).expect("a block of the right length");
        let theirs = job.run().ok();
        if report.refused >> lane & 1 == 1 {
            assert!(blind[lane] || theirs.is_none(), "lane {lane} is refused without a reason");
            assert_eq!(outputs[lane], [0; LEN]);
        } else {
            assert_eq!(theirs.expect("a result").as_slice(), outputs[lane], "lane {lane}");
        }
    }
}
