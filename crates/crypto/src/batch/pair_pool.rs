//! Pool of ephemeral X25519 pairs that one core has made ahead. Each is taken out once, and its place is wiped.
//!
//! Pairs live on pages that a child of the process finds empty ([`Locked`](crate::locked::Locked)); the pool's
//! level lives there too, so that the child knows. All-zero bytes are an empty pool. A copy of the whole machine is
//! not told from the machine, and has the same pairs: each serves one handshake there and one here, and discloses
//! neither that handshake nor any other key. Nothing that would disclose a key when it is used twice is made ahead
//! ([`signatures`](super::signatures)).

use aws_lc_rs::error::Unspecified;
use propylon_lanes::{Ifma, x25519};
use zeroize::{Zeroize, Zeroizing};

use crate::awslc;
use crate::batch_rng::BatchRng;
use crate::locked::blank_struct;
use crate::pair::X25519Pair;

/// The most that a pool holds.
pub const POOL_MAX: usize = 256;
/// Made at once. At that size one more costs hardly less by being among more, and the core is busy for 0.1 ms.
pub const REFILL: usize = 64;

/// The reason why a pool was not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefillError {
    /// No random bytes could be had.
    Random,
    /// The kernel's results are not what they should be, or it refuses what it should take.
    Kernel,
}

impl From<Unspecified> for RefillError {
    fn from(_: Unspecified) -> RefillError {
        RefillError::Random
    }
}

blank_struct! {
    /// X25519 secrets and their shares.
    pub(crate) struct PairPool {
        level: usize,
        secrets: [[u8; 32]; POOL_MAX],
        shares: [[u8; 32]; POOL_MAX],
    }
}

impl PairPool {
    pub fn level(&self) -> usize {
        self.level
    }

    pub fn take(&mut self) -> Option<X25519Pair> {
        self.level = self.level.checked_sub(1)?;
        let secret = Zeroizing::new(self.secrets[self.level]);
        self.secrets[self.level].zeroize();
        Some(X25519Pair::of(secret, self.shares[self.level]))
    }

    /// Adds [`REFILL`], if there is room. `checked`: one of them is compared with AWS-LC's.
    pub fn refill(&mut self, ifma: Ifma, rng: &mut BatchRng, checked: Option<usize>) -> Result<(), RefillError> {
        const { assert!(REFILL <= x25519::KEYS_MAX) };
        let range = self.level..self.level + REFILL;
        let Some(secrets) = self.secrets.get_mut(range.clone()) else { return Ok(()) };
        rng.fill(secrets.as_flattened_mut())?;
        x25519::public_keys(ifma, secrets, &mut self.shares[range]);
        #[cfg(test)]
        self.shares.iter_mut().skip(self.level).for_each(|share| super::faults::flip(share));
        let right = |place| awslc::x25519_share(&self.secrets[place]) == self.shares[place];
        if !checked.is_none_or(|index| right(self.level + index)) {
            self.clear();
            return Err(RefillError::Kernel);
        }
        self.level += REFILL;
        Ok(())
    }

    pub fn clear(&mut self) {
        self.level = 0;
        self.secrets.as_flattened_mut().zeroize();
    }

    #[cfg(test)]
    pub fn is_empty_and_wiped(&self) -> bool {
        self.level == 0 && self.secrets.as_flattened().iter().all(|byte| *byte == 0)
    }
}

impl Drop for PairPool {
    fn drop(&mut self) {
        self.clear();
    }
}
