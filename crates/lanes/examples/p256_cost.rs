//! Costs of P-256 in the lanes, beside aws-lc: µs of thread CPU time per operation, medians of interleaved runs.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use aws_lc_rs::{agreement, digest};
use propylon_lanes::Ifma;
use propylon_lanes::p256::{
    BATCH_MAX, DerSignature, PairSlot, Scratch, SecretScalar, agree, is_scalar, nonce_pairs, public_keys, self_test,
    sign,
};

const ROUNDS: usize = 301;
const BATCHES: [usize; 4] = [8, 16, 64, 256];

fn thread_cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// One row of the table: a name, and the times of single runs, per operation.
struct Row {
    name: String,
    samples: Vec<f64>,
}

impl Row {
    fn new(name: impl Into<String>) -> Row {
        Row { name: name.into(), samples: Vec::new() }
    }

    fn run(&mut self, operations: usize, work: impl FnOnce()) {
        let start = thread_cpu_us();
        work();
        self.samples.push((thread_cpu_us() - start) / operations as f64);
    }

    fn median(&mut self) -> f64 {
        self.samples.sort_by(f64::total_cmp);
        self.samples[self.samples.len() / 2]
    }

    fn print(&mut self, baseline: f64) {
        let median = self.median();
        println!("{:<44} {:>8.3} µs  {:>6.3} of aws-lc", self.name, median, median / baseline);
    }
}

/// The rows of the table.
struct Table {
    aws_sign: Row,
    aws_keygen: Row,
    pairs: Vec<Row>,
    publics: Vec<Row>,
    online: Row,
    hashing: Row,
    check: Row,
    aws_ecdh: Row,
    ecdh: Row,
}

impl Table {
    fn new() -> Table {
        Table {
            aws_sign: Row::new("aws-lc: sign (with SHA-256 of 64 bytes)"),
            aws_keygen: Row::new("aws-lc: key pair with public key"),
            pairs: BATCHES.iter().map(|size| Row::new(format!("nonce pair, batch {size}"))).collect(),
            publics: BATCHES.iter().map(|size| Row::new(format!("public key, batch {size}"))).collect(),
            online: Row::new("sign with a pair, and DER"),
            hashing: Row::new("SHA-256 of 64 bytes (aws-lc)"),
            check: Row::new("self-test, whole"),
            aws_ecdh: Row::new("aws-lc: ECDH"),
            ecdh: Row::new("ECDH, eight at once"),
        }
    }

    fn print(mut self) {
        let (signing, generating) = (self.aws_sign.median(), self.aws_keygen.median());
        self.aws_sign.print(signing);
        self.pairs.iter_mut().for_each(|row| row.print(signing));
        self.online.print(signing);
        self.hashing.print(signing);
        self.aws_keygen.print(generating);
        self.publics.iter_mut().for_each(|row| row.print(generating));
        let agreeing = self.aws_ecdh.median();
        self.aws_ecdh.print(agreeing);
        self.ecdh.print(agreeing);
        self.check.print(agreeing);
    }
}

fn random_scalars(random: &mut fastrand::Rng, count: usize) -> Vec<[u8; 32]> {
    let mut draw = || core::array::from_fn(|_| random.u8(..));
    std::iter::repeat_with(&mut draw).filter(is_scalar).take(count).collect()
}

/// Eight points to agree with.
fn keys_of(ifma: Ifma, scalars: &[[u8; 32]], scratch: &mut Scratch) -> [[u8; 65]; 8] {
    let mut keys = [[0; 65]; 8];
    public_keys(ifma, &scalars[8..16], scratch, &mut keys).expect("good scalars");
    keys
}

fn main() {
    let Some(ifma) = Ifma::detect() else {
        println!("this processor has no AVX-512 IFMA: nothing to measure");
        return;
    };
    let mut random = fastrand::Rng::with_seed(1);
    let mut scratch = Box::new(Scratch::new());
    let scalars = random_scalars(&mut random, BATCH_MAX);
    let mut slots: Vec<_> = (0..BATCH_MAX).map(|_| PairSlot::EMPTY).collect();
    let mut keys = vec![[0; 65]; BATCH_MAX];

    let chance = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &chance).expect("a key pair");
    let theirs = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref()).expect("its own form");
    let ours = SecretScalar::new(&scalars[0]).expect("a scalar in range");
    let message = [7; 64];

    let mut table = Table::new();
    let peer = keys_of(ifma, &scalars, &mut scratch);
    for _ in 0..ROUNDS {
        table.aws_ecdh.run(8, || {
            for (scalar, point) in scalars.iter().zip(&peer) {
                let key = agreement::PrivateKey::from_private_key(&agreement::ECDH_P256, scalar).expect("a key");
                let point = agreement::UnparsedPublicKey::new(&agreement::ECDH_P256, point);
                agreement::agree(&key, point, (), |secret| Ok(std::hint::black_box(secret[0]))).expect("a secret");
            }
        });
        table.ecdh.run(8, || {
            let ours = scalars[..8].try_into().expect("eight");
            assert_eq!(agree(ifma, ours, &peer, &mut scratch, &mut [[0; 32]; 8]), 0);
        });
        table.aws_sign.run(8, || {
            for _ in 0..8 {
                std::hint::black_box(theirs.sign(&chance, &message).expect("a signature"));
            }
        });
        table.aws_keygen.run(8, || {
            for _ in 0..8 {
                let key = agreement::PrivateKey::generate(&agreement::ECDH_P256).expect("a key");
                std::hint::black_box(key.compute_public_key().expect("its public key"));
            }
        });
        for (row, size) in table.pairs.iter_mut().zip(BATCHES) {
            let mut drawn = scalars[..size].to_vec();
            row.run(size, || nonce_pairs(ifma, &mut drawn, &mut scratch, &mut slots[..size]).expect("good scalars"));
        }
        for (row, size) in table.publics.iter_mut().zip(BATCHES) {
            row.run(size, || {
                public_keys(ifma, &scalars[..size], &mut scratch, &mut keys[..size]).expect("good scalars");
            });
        }
        table.check.run(1, || assert!(self_test(ifma)));
        let hash = digest::digest(&digest::SHA256, &message);
        let hash = std::hint::black_box(hash.as_ref());
        table.online.run(BATCH_MAX, || {
            for slot in &mut slots {
                let signature = sign(&ours, hash, slot.take().expect("a full slot")).expect("s is not 0");
                std::hint::black_box(DerSignature::new(&signature).as_bytes());
            }
        });
        table.hashing.run(64, || {
            for _ in 0..64 {
                std::hint::black_box(digest::digest(&digest::SHA256, std::hint::black_box(&message)));
            }
        });
    }
    table.print();
}
