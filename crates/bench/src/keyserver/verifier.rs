//! Replies are counted at once and verified when the load is over, so that verifying does not slow the load.

use super::channel::Waiting;
use super::operation::{Assessment, Examiner};
use super::wire::Answer;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::machine;
use crate::report::{Pace, progress};
use crate::stats::LoadStats;
use std::time::Instant;

/// Signatures kept for later take so much memory at most; what comes after is verified on the spot.
const KEPT_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Threads that verify at most.
const THREADS_MAX: usize = 8;
/// Verifications between two looks at the clock and the interrupt flag.
const LOOK_EVERY: usize = 256;

/// Verification of all replies.
pub struct Verifier {
    pub stats: LoadStats,
    /// Good answers count towards the result. Off while the last ones are waited for after the clock has stopped.
    pub counting: bool,
    /// Signatures verified, rightly or wrongly made.
    pub verified: u64,
    examiner: Examiner,
    /// Share of the signatures that are verified, 0 to 1.
    share: f64,
    kept: Vec<Kept>,
    signatures: Vec<u8>,
    scratch: Vec<u8>,
}

/// A signature that waits to be verified; its bytes are in `signatures`.
#[derive(Clone, Copy)]
struct Kept {
    serial: u64,
    start: usize,
    bytes: usize,
    counted: bool,
}

impl Verifier {
    pub fn new(examiner: Examiner, share: f64) -> Self {
        Self {
            stats: LoadStats::new(),
            counting: true,
            verified: 0,
            examiner,
            share,
            kept: Vec::new(),
            signatures: Vec::new(),
            scratch: Vec::new(),
        }
    }

    pub fn input(&self, serial: u64, out: &mut Vec<u8>) {
        self.examiner.input(serial, out);
    }

    pub fn hear(&mut self, operation: Waiting, answer: &Answer<'_>) {
        let latency = operation.due.elapsed();
        if let Answer::Error(code) = answer {
            return self.stats.record_named_error(code.name(), || format!("error reply {:#04x}", code.0));
        }
        let assessment = self.examiner.assess(operation.serial, answer, &mut self.scratch);
        if assessment == Assessment::Wrong {
            return self.stats.record_named_error("wrong-answer", || "not what was asked for".to_owned());
        }
        if self.counting {
            self.stats.done += 1;
            self.stats.record_latency(latency);
        }
        if let (Assessment::ToBeVerified, Answer::Success(signature)) = (assessment, answer) {
            self.keep(operation.serial, signature);
        }
    }

    fn keep(&mut self, serial: u64, signature: &[u8]) {
        if self.share < 1.0 && fastrand::f64() >= self.share {
            return;
        }
        let kept = Kept { serial, start: self.signatures.len(), bytes: signature.len(), counted: self.counting };
        if kept.start + kept.bytes > KEPT_BYTES_MAX {
            let right = self.examiner.verifies(serial, signature, &mut self.scratch);
            return self.note(kept, right);
        }
        self.signatures.extend_from_slice(signature);
        self.kept.push(kept);
    }

    fn note(&mut self, kept: Kept, right: bool) {
        self.verified += 1;
        if !right {
            self.stats.done -= u64::from(kept.counted);
            self.stats.record_named_error("wrong-signature", || "it does not verify with the certificate".to_owned());
        }
    }

    /// Verifies what was kept, on all cores that this thread may use, and gives its stats away.
    pub fn verify_kept(&mut self, interrupt: &Interrupt) -> Outcome<LoadStats> {
        let kept = std::mem::take(&mut self.kept);
        let threads = machine::cores_allowed().len().clamp(1, THREADS_MAX);
        let (examiner, signatures) = (&self.examiner, &self.signatures);
        let begin = Instant::now();
        let wrong: Vec<Outcome<Vec<Kept>>> = std::thread::scope(|scope| {
            let parts = kept
                .chunks(kept.len().div_ceil(threads).max(1))
                .enumerate()
                .map(|(part, kept)| scope.spawn(move || find_wrong(examiner, kept, signatures, interrupt, part == 0)));
            let parts: Vec<_> = parts.collect();
            let join = |part: std::thread::ScopedJoinHandle<'_, Outcome<Vec<Kept>>>| {
                part.join().unwrap_or_else(|_| Err(Failure::new("a verifying thread broke down")))
            };
            parts.into_iter().map(join).collect()
        });
        let mut wrong_total = 0;
        for part in wrong {
            for kept in part? {
                wrong_total += 1;
                self.note(kept, false);
            }
        }
        self.verified += kept.len() as u64 - wrong_total;
        self.signatures.clear();
        if begin.elapsed().as_secs() >= 1 {
            progress(format_args!("{} signatures verified in {:.1} s", kept.len(), begin.elapsed().as_secs_f64()));
        }
        Ok(std::mem::replace(&mut self.stats, LoadStats::new()))
    }
}

fn find_wrong(
    examiner: &Examiner,
    kept: &[Kept],
    signatures: &[u8],
    interrupt: &Interrupt,
    shows_progress: bool,
) -> Outcome<Vec<Kept>> {
    let mut pace = Pace::started();
    let mut scratch = Vec::new();
    let mut wrong = Vec::new();
    for (index, one) in kept.iter().enumerate() {
        if index % LOOK_EVERY == 0 {
            interrupt.check()?;
            if shows_progress && pace.is_due(Instant::now()) {
                progress(format_args!("verifying: {:.0} %", 100.0 * index as f64 / kept.len() as f64));
            }
        }
        if !examiner.verifies(one.serial, &signatures[one.start..one.start + one.bytes], &mut scratch) {
            wrong.push(*one);
        }
    }
    Ok(wrong)
}
