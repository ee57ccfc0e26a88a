//! Known keys and answers in all lanes, before the first real key is trusted to them.

use super::key::{Key, Parts};
use super::{Blinding, JOBS_MAX, JOBS_PER_PASS, Job, Renewal, Report, Scratch, private_operations, renew_blindings};
use crate::Ifma;

/// A published key, good for nothing but this, and what openssl answers to `input`.
struct Known {
    der: &'static [u8],
    answer: &'static [u8],
}

const KNOWN: [Known; 3] = [
    Known { der: include_bytes!("keys/2048.a.der"), answer: include_bytes!("keys/2048.a.answer") },
    Known { der: include_bytes!("keys/3072.a.der"), answer: include_bytes!("keys/3072.a.answer") },
    Known { der: include_bytes!("keys/4096.a.der"), answer: include_bytes!("keys/4096.a.answer") },
];

const BYTES_MAX: usize = 512;
const RANDOM_BYTES_MAX: usize = BYTES_MAX + 16;
/// A lane that is given a damaged key.
const DAMAGED_LANE: usize = 2;

/// Whether all three sizes give the right answers in all lanes, in one pass and in two, and whether a damaged key is
/// noticed, in its lane alone. About 20 ms: once, at the start.
#[must_use]
pub fn self_test(ifma: Ifma, scratch: &mut Scratch) -> bool {
    KNOWN.iter().fold(true, |good, known| known.holds(ifma, scratch) & good)
}

impl Known {
    fn holds(&self, ifma: Ifma, scratch: &mut Scratch) -> bool {
        let (Some(key), Some(mut damaged)) = (self.key(), self.key()) else { return false };
        damaged.primes[0].exponent[3] ^= 1 << 17;
        let mut blindings = [const { Blinding::new() }; JOBS_MAX];
        let mut random = [[0; RANDOM_BYTES_MAX]; JOBS_MAX];
        for (lane, random) in random.iter_mut().enumerate() {
            pattern(random, 31 + 2 * lane);
        }
        let mut slots = random.iter();
        let mut renewals = blindings.each_mut().map(|blinding| {
            let random = slots.next().expect("as many as blindings");
            Renewal { key: &key, blinding, random: &random[..key.random_bytes()] }
        });
        if !renew_blindings(ifma, scratch, &mut renewals).all_done() {
            return false;
        }
        let eight = self.report(ifma, scratch, [&key; JOBS_MAX], &mut blindings);
        let (paired, _) = blindings.split_first_chunk_mut::<JOBS_PER_PASS>().expect("four are fewer than eight");
        let mut keys = [&key; JOBS_PER_PASS];
        keys[DAMAGED_LANE] = &damaged;
        let four = self.report(ifma, scratch, keys, paired);
        eight == Some(Report::default()) && four == Some(Report { bad: 1 << DAMAGED_LANE, refused: 0 })
    }

    fn key(&self) -> Option<Key> {
        Key::new(&Parts::from_pkcs1_der(self.der)?).ok()
    }

    /// The report of a call, if every output is what it says: the answer, or zeros.
    fn report<const N: usize>(
        &self,
        ifma: Ifma,
        scratch: &mut Scratch,
        keys: [&Key; N],
        blindings: &mut [Blinding; N],
    ) -> Option<Report> {
        let mut input = [0; BYTES_MAX];
        let input = &mut input[..self.answer.len()];
        pattern(input, 97);
        input[0] = 0;
        let mut outputs = [[0xff; BYTES_MAX]; N];
        let mut slots = outputs.iter_mut().zip(blindings.iter_mut()).zip(keys);
        let mut jobs: [Job<'_>; N] = core::array::from_fn(|_| {
            let ((output, blinding), key) = slots.next().expect("as many slots as jobs");
            Job { key, blinding, input, output: &mut output[..self.answer.len()] }
        });
        let report = private_operations(ifma, scratch, &mut jobs);
        let right = jobs.iter().enumerate().fold(true, |right, (lane, job)| {
            let bad = report.bad >> lane & 1 == 1;
            right & if bad { job.output.iter().all(|byte| *byte == 0) } else { *job.output == *self.answer }
        });
        right.then_some(report)
    }
}

fn pattern(bytes: &mut [u8], step: usize) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (i * step + 13) as u8;
    }
}
