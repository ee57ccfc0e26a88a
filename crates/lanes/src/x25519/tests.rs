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
