//! What one core has made ahead: nonces for ECDSA and pairs for X25519. Each is taken out once, and its place is wiped.
//!
//! Both live on pages that a child of the process finds empty ([`Locked`](crate::locked::Locked)); their level lives there too, so that the child
//! knows. All-zero bytes are an empty pool.

use aws_lc_rs::error::Unspecified;
use propylon_lanes::{Ifma, p256, x25519};
use zeroize::{Zeroize, Zeroizing};

use super::chance::Chance;
use crate::awslc;
use crate::pair::X25519Pair;

/// The most that a pool holds.
pub const POOL_MAX: usize = 256;
/// Made at once. At that size one more costs hardly less by being among more, and the core is busy for 0.1 ms.
pub const REFILL: usize = 64;

/// Why a pool was not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfilled {
    /// There are no random bytes.
    Chance,
    /// What the kernel made is not what it should be, or it refuses what it should take.
    Kernel,
}

impl From<Unspecified> for Unfilled {
    fn from(_: Unspecified) -> Unfilled {
        Unfilled::Chance
    }
}

/// ECDSA nonces of P-256 with their points.
pub(crate) struct Nonces {
    level: usize,
    /// The first `level` are full.
    slots: [p256::PairSlot; POOL_MAX],
    /// Empty but while a batch is made.
    scalars: [[u8; 32]; REFILL],
}

impl Nonces {
    pub fn level(&self) -> usize {
        self.level
    }

    pub fn take(&mut self) -> Option<p256::Pair> {
        self.level = self.level.checked_sub(1)?;
        self.slots[self.level].take()
    }

    /// Adds [`REFILL`], if there is room.
    pub fn refill(&mut self, ifma: Ifma, chance: &mut Chance, scratch: &mut p256::Scratch) -> Result<(), Unfilled> {
        let Some(room) = self.slots.get_mut(self.level..self.level + REFILL) else { return Ok(()) };
        // A scalar that the formulas cannot do has the whole batch thrown away: once in 2^248 batches. Twice is a defect.
        for _ in 0..2 {
            draw(&mut self.scalars, chance)?;
            if p256::nonce_pairs(ifma, &mut self.scalars, scratch, room).is_ok() {
                self.level += REFILL;
                return Ok(());
            }
        }
        Err(Unfilled::Kernel)
    }

    pub fn clear(&mut self) {
        self.level = 0;
        self.slots.iter_mut().for_each(p256::PairSlot::clear);
        self.scalars.as_flattened_mut().zeroize();
    }

    #[cfg(test)]
    pub fn is_empty_and_wiped(&self) -> bool {
        let slots = self.slots.iter().all(|slot| !slot.is_full());
        self.level == 0 && slots && self.scalars.as_flattened().iter().all(|byte| *byte == 0)
    }
}

/// Uniform in [1, n − 1]: what is not in there is drawn again (FIPS 186-5 A.3.2).
fn draw(scalars: &mut [[u8; 32]], chance: &mut Chance) -> Result<(), Unspecified> {
    chance.fill(scalars.as_flattened_mut())?;
    for scalar in scalars {
        while !p256::is_scalar(scalar) {
            chance.fill(scalar)?;
        }
    }
    Ok(())
}

/// X25519 secrets and their shares.
pub(crate) struct Shares {
    level: usize,
    secrets: [[u8; 32]; POOL_MAX],
    shares: [[u8; 32]; POOL_MAX],
}

impl Shares {
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
    pub fn refill(&mut self, ifma: Ifma, chance: &mut Chance, checked: Option<usize>) -> Result<(), Unfilled> {
        const { assert!(REFILL <= x25519::KEYS_MAX) };
        let range = self.level..self.level + REFILL;
        let Some(secrets) = self.secrets.get_mut(range.clone()) else { return Ok(()) };
        chance.fill(secrets.as_flattened_mut())?;
        x25519::public_keys(ifma, secrets, &mut self.shares[range]);
        #[cfg(test)]
        self.shares.iter_mut().skip(self.level).for_each(|share| super::faults::flip(share));
        let right = |place| awslc::x25519_share(&self.secrets[place]) == self.shares[place];
        if !checked.is_none_or(|index| right(self.level + index)) {
            self.clear();
            return Err(Unfilled::Kernel);
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

impl Drop for Shares {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Drop for Nonces {
    fn drop(&mut self) {
        self.clear();
    }
}
