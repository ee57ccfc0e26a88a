//! The job queue and the workspace together, with every result compared with AWS-LC's. Without the lanes' instructions
//! the same promises are kept by AWS-LC alone.

use std::collections::HashSet;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::job_queue::{JobQueue, Pending};
use crate::key::PrivateKey;
use crate::locked::in_a_child;
use crate::scheme::{Hash, Scheme};

const RSA: [&[u8]; 6] = [
    include_bytes!("../../../lanes/src/rsa/keys/2048.a.der"),
    include_bytes!("../../../lanes/src/rsa/keys/2048.b.der"),
    include_bytes!("../../../lanes/src/rsa/keys/3072.a.der"),
    include_bytes!("../../../lanes/src/rsa/keys/3072.b.der"),
    include_bytes!("../../../lanes/src/rsa/keys/4096.a.der"),
    // A key that the kernels do not take.
    include_bytes!("exponent-3.der"),
];

/// Installs a workspace on this test's thread. False where there is nothing to be installed.
fn workspace() -> (Arc<Batching>, bool) {
    let batching = Batching::start();
    install(&batching);
    let there = [Kernel::X25519, Kernel::P256].iter().all(|kernel| batching.state(*kernel) == KernelState::Used);
    assert!(there || batching.state(Kernel::P256) == KernelState::NoInstructions, "the known answers are given");
    (batching, there)
}

/// The same for RSA, of which there is no emulation.
fn bench_with_rsa() -> (Arc<Batching>, bool) {
    let (batching, _) = workspace();
    let there = propylon_lanes::Ifma::detect().is_some();
    assert_eq!(batching.state(Kernel::Rsa) == KernelState::Used, there, "the known answers are given");
    (batching, there)
}

fn random() -> fastrand::Rng {
    let seed = 20_260;
    println!("seed {seed}");
    fastrand::Rng::with_seed(seed)
}

fn p256() -> PrivateKey {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
    PrivateKey::from_der(pair.serialized_der()).expect("a key that can be read")
}

fn rsa_keys() -> Vec<PrivateKey> {
    RSA.iter().map(|der| PrivateKey::from_der(der).expect("a key that can be read")).collect()
}

fn bytes<const N: usize>(random: &mut fastrand::Rng) -> [u8; N] {
    std::array::from_fn(|_| random.u8(..))
}

fn answer(pending: &mut Pending) -> Option<Outcome> {
    match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// A job and what AWS-LC says that it comes to.
fn agreement(random: &mut fastrand::Rng) -> (Job, Outcome) {
    // One in ten shares gives the secret away.
    let peer = if random.u8(..10) == 0 { [0; 32] } else { bytes(random) };
    agreement_with(peer)
}

fn agreement_with(peer: [u8; 32]) -> (Job, Outcome) {
    let pair = if faults::FLIP.get() { X25519Pair::generate() } else { X25519Pair::draw() };
    let job = pair.agree(peer);
    let Job::X25519 { secret, .. } = &job else { unreachable!("an agreement is one") };
    let expected = awslc::x25519(secret, &peer).ok_or(JobError::BadShare);
    (job, expected)
}

fn operation(keys: &[PrivateKey], random: &mut fastrand::Rng) -> (Job, Outcome) {
    let key = &keys[random.usize(..keys.len())];
    // Zero, and a number that is too large, are what AWS-LC says they are.
    let job = match random.u8(..20) {
        0 => key.job(Scheme::RsaRaw, &[]),
        1 => key.job(Scheme::RsaRaw, &vec![0xff; key.modulus_bytes()]),
        2..6 => key.job(Scheme::RsaPkcs1(Hash::Sha256), &bytes::<32>(random)),
        _ => key.job(Scheme::RsaPss(Hash::Sha256), &bytes::<32>(random)),
    };
    let job = job.expect("a job");
    let Job::Rsa { key, block } = &job else { unreachable!("an RSA key has RSA jobs") };
    let expected = key.rsa_raw(block).ok_or(JobError::Refused);
    (job, expected)
}

/// Jobs come, leave, and are taken back in any order; everybody who stays is answered, once, with their own outcome.
fn any_order(rounds: usize, random: &mut fastrand::Rng, mut next: impl FnMut(&mut fastrand::Rng) -> (Job, Outcome)) {
    let job_queue = JobQueue::new();
    let mut waiting: Vec<(Pending, Outcome)> = Vec::new();
    let mut answered = 0;
    for _ in 0..rounds {
        for _ in 0..random.usize(..14) {
            let (job, expected) = next(random);
            waiting.push((job_queue.submit(job), expected));
        }
        for _ in 0..random.usize(..3).min(waiting.len()) {
            drop(waiting.swap_remove(random.usize(..waiting.len())));
        }
        job_queue.run_gathered();
        for (mut pending, expected) in waiting.drain(..) {
            let outcome = answer(&mut pending).expect("what has left is answered");
            assert_eq!(outcome, expected);
            answered += 1;
        }
    }
    let counts = job_queue.counts();
    assert_eq!(counts.submitted, counts.done + counts.cancelled, "{counts:?}");
    assert!(answered * 2 > counts.submitted, "{counts:?}");
}

#[test]
fn twenty_thousand_agreements_are_those_of_awslc() {
    let (_, there) = workspace();
    any_order(3_200, &mut random(), agreement);
    if let (Some(counts), true) = (counts(), there) {
        assert!(counts.in_lanes[Work::X25519 as usize] > 10_000, "{counts:?}");
        assert!(counts.checks_passed > 5 && counts.checks_failed == 0, "{counts:?}");
    }
}

#[test]
fn rsa_operations_with_keys_of_all_sizes_are_those_of_awslc() {
    let (_, there) = bench_with_rsa();
    let keys = rsa_keys();
    any_order(70, &mut random(), |random| operation(&keys, random));
    if let (Some(counts), true) = (counts(), there) {
        assert!(counts.in_lanes[Work::Rsa as usize] > 100, "{counts:?}");
        assert_eq!((counts.bad_lanes, counts.checks_failed), (0, 0));
    }
}

#[test]
fn thousands_of_signatures_with_one_key_outlast_many_blindings() {
    let (_, there) = bench_with_rsa();
    let keys = &rsa_keys()[..1];
    any_order(300, &mut random(), |random| operation(keys, random));
    if let (Some(counts), true) = (counts(), there) {
        // A blinding has 32 uses, and there are four.
        assert!(counts.in_lanes[Work::Rsa as usize] > 1_000, "{counts:?}");
    }
}

#[test]
fn thousands_of_signatures_verify_and_no_nonce_comes_twice() {
    const SIGNATURES: u64 = 5_000;
    let (_, there) = workspace();
    let (keys, mut random) = ([p256(), p256(), p256()], random());
    let (mut nonces, mut alone) = (HashSet::new(), 0);
    let mut signed = 0;
    while signed < SIGNATURES {
        let count = random.usize(1..=40).min((SIGNATURES - signed) as usize);
        let operations: Vec<(&PrivateKey, Vec<u8>)> = (0..count)
            .map(|place| {
                // Digests of any length, the largest ones, and the same one several times.
                let digest: [u8; 66] = if place % 7 == 0 { [0xff; 66] } else { bytes(&mut random) };
                let length = if place % 5 == 0 { random.usize(..=66) } else { 32 };
                (&keys[random.usize(..keys.len())], digest[..length].to_vec())
            })
            .collect();
        let job = |(key, digest): &(&PrivateKey, Vec<u8>)| key.job(Scheme::Ecdsa(Hash::Sha256), digest).expect("a job");
        let outcomes = run_all(operations.iter().map(job).collect());
        for ((key, digest), outcome) in operations.iter().zip(outcomes) {
            let signature = outcome.expect("a signature");
            assert!(key.verifies(digest, &signature));
            let r = signature[4..4 + usize::from(signature[3])].to_vec();
            assert!(nonces.insert(r), "a nonce has come twice");
        }
        signed += count as u64;
        alone += u64::from(count % P256_MAX == 1);
    }
    if let (Some(counts), true) = (counts(), there) {
        let done = (counts.in_lanes[Work::P256Signature as usize], counts.by_awslc[Work::P256Signature as usize]);
        assert_eq!(done, (SIGNATURES - alone, alone));
        assert_eq!((counts.checks_passed, counts.checks_failed), ((SIGNATURES - alone).div_ceil(CHECKED_ONE_OF), 0));
        let sized: u64 = (1..).zip(counts.p256_sizes).map(|(size, batches)| size * batches).sum();
        assert_eq!(sized, SIGNATURES);
    }
}

#[test]
fn signatures_gather_at_the_desk_and_one_alone_is_awslcs() {
    let (_, there) = workspace();
    let (key, job_queue) = (p256(), JobQueue::new());
    let other = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
    let other = PrivateKey::from_der(other.serialized_der()).expect("a key");
    for count in [1, 2, 9, P256_MAX + 1] {
        let digest = [count as u8; 32];
        let submit = |key: &PrivateKey| job_queue.submit(key.job(Scheme::Ecdsa(Hash::Sha256), &digest).expect("a job"));
        let mut pending: Vec<(&PrivateKey, Pending)> = (0..count).map(|_| (&key, submit(&key))).collect();
        pending.insert(count / 2, (&other, submit(&other)));
        job_queue.run_gathered();
        for (key, pending) in &mut pending {
            let signature = answer(pending).expect("what has left is answered").expect("a signature");
            assert!(key.verifies(&digest, &signature));
        }
    }
    if let (Some(counts), true) = (counts(), there) {
        // The jobs are 33 on P-256 and another curve's; 32 leave when they are full.
        let lanes = 2 + 9 + P256_MAX as u64;
        let done = (counts.in_lanes[Work::P256Signature as usize], counts.by_awslc[Work::P256Signature as usize]);
        assert_eq!(done.0 + done.1, lanes + 2);
        assert!(done.1 <= 3, "{done:?}");
    }
}

#[test]
fn five_thousand_pairs_agree_and_no_share_comes_twice() {
    let (_, there) = workspace();
    let mut shares = HashSet::new();
    for _ in 0..5_000 {
        let pair = X25519Pair::draw();
        let share = *pair.share();
        assert!(shares.insert(share));
        let Job::X25519 { secret, .. } = pair.agree([9; 32]) else { unreachable!("an agreement is one") };
        assert_eq!(awslc::x25519_share(&secret), share);
    }
    if let (Some(counts), true) = (counts(), there) {
        assert_eq!(counts.in_lanes[Work::X25519Pair as usize], 5_000);
    }
}

#[test]
fn a_pool_is_filled_once_it_is_used_and_never_beyond_its_bound() {
    let (_, there) = workspace();
    assert!(!refill(), "nobody has asked for anything yet");
    drop(X25519Pair::draw());
    let refills = (0..100).filter(|_| refill()).count();
    if let (Some(counts), true) = (counts(), there) {
        assert_eq!(refills, POOL_MAX / REFILL - 1);
        assert!((POOL_MAX - REFILL + 1..=POOL_MAX).contains(&counts.pool_level));
        assert_eq!(counts.pool_misses, 1);
    }
}

#[test]
fn what_was_taken_out_is_wiped_from_the_pool() {
    if !workspace().1 {
        return;
    }
    for _ in 0..REFILL {
        drop(X25519Pair::draw());
    }
    let wiped = with(|workspace| workspace.pairs.get().is_some_and(|pool| pool.is_empty_and_wiped()));
    assert_eq!(wiped, Some(true));
}

#[test]
fn a_child_finds_the_pool_empty() {
    if !workspace().1 {
        return;
    }
    drop(X25519Pair::draw());
    let ready = |counts: BatchCounts| counts.pool_level > 0;
    assert!(counts().is_some_and(ready));
    let empty = in_a_child(|| {
        let ask = |workspace: &mut Workspace| {
            workspace.pairs.get().is_some_and(|pool| pool.is_empty_and_wiped() && pool.take().is_none())
        };
        with(ask) == Some(true)
    });
    assert!(empty);
    assert!(counts().is_some_and(ready), "the parent has what it had");
}

#[test]
fn a_wrong_signature_that_is_looked_at_is_not_released_and_was_the_last() {
    let (batching, there) = workspace();
    if !there {
        return;
    }
    let key = p256();
    let signed = |digest: &[u8]| {
        let jobs = (0..5).map(|_| key.job(Scheme::Ecdsa(Hash::Sha256), digest).expect("a job"));
        let outcomes = run_all(jobs.collect());
        outcomes.into_iter().all(|outcome| key.verifies(digest, &outcome.expect("a signature")))
    };
    faults::FLIP.set(true);
    assert!(signed(&[1; 32]), "the first one is looked at, and none of its batch released");
    assert_eq!(batching.state(Kernel::P256), KernelState::Failed);
    faults::FLIP.set(false);
    for _ in 0..60 {
        assert!(signed(&[1; 32]));
    }
    let counts = counts().expect("a workspace");
    assert_eq!((counts.checks_failed, counts.in_lanes[Work::P256Signature as usize]), (1, 0));
    assert_eq!(batching.state(Kernel::X25519), KernelState::Used, "the others go on");
}

#[test]
fn a_wrong_agreement_that_is_looked_at_is_not_released_and_was_the_last() {
    let (batching, there) = workspace();
    if !there {
        return;
    }
    faults::FLIP.set(true);
    any_order(50, &mut random(), |random| agreement_with(bytes(random)));
    assert_eq!(batching.state(Kernel::X25519), KernelState::Failed);
    assert_eq!(counts().expect("a workspace").checks_failed, 1);
}

#[test]
fn a_wrong_share_that_is_looked_at_is_not_released_and_was_the_last() {
    let (batching, there) = workspace();
    if !there {
        return;
    }
    faults::FLIP.set(true);
    for _ in 0..100 {
        let pair = X25519Pair::draw();
        let share = *pair.share();
        let Job::X25519 { secret, .. } = pair.agree([9; 32]) else { unreachable!("an agreement is one") };
        assert_eq!(awslc::x25519_share(&secret), share);
    }
    assert_eq!(batching.state(Kernel::X25519), KernelState::Failed);
    assert_eq!(with(|workspace| workspace.pairs.get().map(|pool| pool.is_empty_and_wiped())), Some(Some(true)));
}

#[test]
fn a_bad_lane_is_done_again_and_the_second_one_was_the_last() {
    let (batching, there) = bench_with_rsa();
    if !there {
        return;
    }
    let (keys, mut random, job_queue) = (rsa_keys(), random(), JobQueue::new());
    for (bad, state) in [(0b01, KernelState::Used), (0b10, KernelState::Failed), (0b11, KernelState::Failed)] {
        faults::BAD_LANES.set(bad);
        let (jobs, expected): (Vec<Job>, Vec<Outcome>) = (0..3).map(|_| operation(&keys[..1], &mut random)).unzip();
        let pending: Vec<Pending> = jobs.into_iter().map(|job| job_queue.submit(job)).collect();
        job_queue.run_gathered();
        for (mut pending, expected) in pending.into_iter().zip(expected) {
            assert_eq!(answer(&mut pending), Some(expected));
        }
        assert_eq!(batching.state(Kernel::Rsa), state);
    }
    assert_eq!(counts().expect("a workspace").bad_lanes, 2);
}

#[test]
fn turned_off_everything_is_awslcs() {
    let batching = Batching::off();
    install(&batching);
    any_order(20, &mut random(), agreement);
    assert!(Kernel::ALL.iter().all(|kernel| batching.state(*kernel) == KernelState::TurnedOff));
    assert!(counts().is_none() && !refill());
}

#[test]
fn keys_go_to_the_kernels_that_take_them() {
    let suitable: Vec<bool> = rsa_keys().iter().map(|key| key.lanes_key().is_some()).collect();
    assert_eq!(suitable, [true, true, true, true, true, false]);
    assert!(p256().lanes_key().is_some());
    let other = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
    assert!(PrivateKey::from_der(other.serialized_der()).expect("a key").lanes_key().is_none());
}

#[test]
fn a_job_cancelled_while_others_of_its_run_are_done_is_not_done() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    thread_local! {
        static LATER: RefCell<Option<Pending>> = const { RefCell::new(None) };
    }
    struct Canceller(AtomicBool);
    impl Wake for Canceller {
        fn wake(self: Arc<Self>) {
            self.0.store(LATER.take().is_some(), Ordering::Relaxed);
        }
    }

    let job_queue = JobQueue::new();
    let (first, later) = (X25519Pair::draw().agree([9; 32]), X25519Pair::draw().agree([9; 32]));
    let canceller = Arc::new(Canceller(AtomicBool::new(false)));
    let mut first = job_queue.submit(first);
    LATER.set(Some(job_queue.submit(later)));
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&canceller)))).is_pending());
    // Each job is a part of its own without a workspace.
    job_queue.run_gathered();
    assert!(canceller.0.load(Ordering::Relaxed));
    assert_eq!((job_queue.counts().done, job_queue.counts().cancelled), (1, 1));
}

#[test]
fn jobs_of_every_sort_done_at_once_have_their_own_outcomes_in_their_order() {
    let (_, there) = workspace();
    let mut random = random();
    let (keys, curve) = (rsa_keys(), p256());
    prepare(Work::Rsa);
    prepare(Work::P256Signature);
    for round in 0..20 {
        let (mut jobs, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..round {
            let digest = bytes::<32>(&mut random);
            let (job, outcome) = match random.u8(..3) {
                0 => operation(&keys, &mut random),
                1 => agreement(&mut random),
                _ => (curve.job(Scheme::Ecdsa(Hash::Sha256), &digest).expect("a job"), Ok(digest.to_vec().into())),
            };
            jobs.push(job);
            expected.push(outcome);
        }
        let kinds: Vec<JobKind> = jobs.iter().map(Job::kind).collect();
        let outcomes = run_all(jobs);
        assert_eq!(outcomes.len(), expected.len());
        for ((kind, outcome), expected) in kinds.into_iter().zip(outcomes).zip(expected) {
            match (kind, outcome, expected) {
                // The digest that was signed is known.
                (JobKind::Ecdsa, Ok(signature), Ok(digest)) => assert!(curve.verifies(&digest, &signature)),
                (_, outcome, expected) => assert_eq!(outcome, expected),
            }
        }
    }
    if let (Some(counts), true) = (counts(), there) {
        let lanes = |work: Work| counts.in_lanes[work as usize];
        assert!(lanes(Work::P256Signature) > 10 && lanes(Work::X25519) > 10, "{counts:?}");
        assert!(lanes(Work::Rsa) > 10 || propylon_lanes::Ifma::detect().is_none(), "{counts:?}");
    }
}

#[test]
fn only_jobs_of_one_kind_and_size_share_a_batch_and_none_without_a_workspace() {
    let keys = rsa_keys();
    let job = |key: &PrivateKey| key.job(Scheme::RsaPss(Hash::Sha256), &[7; 32]).expect("a job");
    let (small, alike, large) = (job(&keys[0]), job(&keys[1]), job(&keys[4]));
    let curve = p256().job(Scheme::Ecdsa(Hash::Sha256), &[7; 32]).expect("a job");
    assert!(can_share_batch(&small, &alike));
    assert!(!can_share_batch(&small, &large) && !can_share_batch(&small, &curve) && can_share_batch(&curve, &curve));
    assert_eq!((batch_size(&small), batch_size(&curve)), (1, 1));
    let (batching, _) = workspace();
    let together = |kernel, count| if batching.is_usable(kernel) { count } else { 1 };
    let expected = (together(Kernel::Rsa, plan::RSA_PASS), together(Kernel::P256, P256_MAX));
    assert_eq!((batch_size(&small), batch_size(&curve)), expected);
}
