//! Sizes of batches, and which jobs are done alone: the crossovers, as measured.
//!
//! A pass of the lanes costs the same however many of them are used, so one job alone is AWS-LC's, and few jobs are
//! better off in fewer passes. `docs/decisions/0016-batches.md` has the figures; the examples of `propylon-lanes`
//! measure them anew.

use propylon_lanes::rsa;

/// Jobs that the lanes of a kernel take at most.
pub const LANES: usize = 8;
/// X25519 agreements from which on the lanes are the cheaper place.
pub const X25519_MIN: usize = 2;
/// SignatureWorkspace on P-256 from which on the lanes are the cheaper place.
pub const P256_MIN: usize = 2;
/// SignatureWorkspace on P-256 that are made at once: four groups of lanes share two inversions. More would make the
/// first to come wait for little gain.
pub const P256_MAX: usize = 4 * LANES;
/// RSA operations from which on the lanes are the cheaper place.
pub const RSA_MIN: usize = 2;
/// RSA operations that one pass does, with the halves of each key side by side.
pub const RSA_PASS: usize = rsa::JOBS_PER_PASS;

/// The place for the next jobs, and how many go there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Lanes(usize),
    /// One job goes to AWS-LC.
    Alone,
}

/// The next part of `waiting` agreements.
pub fn x25519(waiting: usize) -> Part {
    if waiting < X25519_MIN { Part::Alone } else { Part::Lanes(waiting.min(LANES)) }
}

/// The next part of `waiting` signatures on P-256.
pub fn p256(waiting: usize) -> Part {
    if waiting < P256_MIN { Part::Alone } else { Part::Lanes(waiting.min(P256_MAX)) }
}

/// The next part of `waiting` RSA operations with keys of one size. Two passes at once, for eight, cost no less
/// than one after the other, and the first four would wait for the last.
pub fn rsa(waiting: usize) -> Part {
    if waiting < RSA_MIN { Part::Alone } else { Part::Lanes(waiting.min(RSA_PASS)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(next: impl Fn(usize) -> Part, mut waiting: usize) -> Vec<usize> {
        let mut parts = Vec::new();
        while waiting > 0 {
            let count = match next(waiting) {
                Part::Lanes(count) => count,
                Part::Alone => 1,
            };
            parts.push(count);
            waiting -= count;
        }
        parts
    }

    #[test]
    fn every_job_has_its_part_and_one_alone_is_awslcs() {
        for waiting in 0..100 {
            assert_eq!(parts(rsa, waiting).iter().sum::<usize>(), waiting);
            assert_eq!(parts(x25519, waiting).iter().sum::<usize>(), waiting);
            assert_eq!(parts(p256, waiting).iter().sum::<usize>(), waiting);
        }
        // A fifth that had a pass to itself would cost more than AWS-LC asks for it.
        assert_eq!(parts(rsa, 5), [4, 1]);
        assert_eq!(parts(rsa, 15), [4, 4, 4, 3]);
        assert_eq!((rsa(1), x25519(1), p256(1)), (Part::Alone, Part::Alone, Part::Alone));
        assert_eq!(parts(p256, 75), [32, 32, 11]);
        assert_eq!((x25519(2), x25519(30)), (Part::Lanes(2), Part::Lanes(8)));
    }
}
