//! Blinding: the number that is raised to the private exponent is never one that a peer chose.

use super::key::Key;
use super::natural::WIDE_LIMBS_MAX;
use crate::wipe::wipe;

/// Operations that one random pair serves, each with the square of the one before; then it must be renewed.
pub const USES_MAX: u32 = 32;

/// A pair z, z^-d for one key: the input is multiplied by z, the result by z^-d. Kept by the caller, one for each lane
/// that may run at the same time. Begins without uses: renew it first. Overwritten with zeros when dropped.
pub struct Blinding {
    /// z·R mod n, below 3n.
    pub(super) factor: [u64; WIDE_LIMBS_MAX],
    /// z^-d·R mod n, below 3n.
    pub(super) inverse: [u64; WIDE_LIMBS_MAX],
    /// Tells keys apart: the lowest limb of n and its negated inverse would do, two limbs in the middle do better.
    pub(super) of: [u64; 2],
    pub(super) uses_left: u32,
}

/// One blinding to be renewed.
pub struct Renewal<'a> {
    pub key: &'a Key,
    pub blinding: &'a mut Blinding,
    /// [`Key::random_bytes`] of them, fresh and secret, from a cryptographic generator.
    pub random: &'a [u8],
}

impl Blinding {
    /// A pair that has to be renewed before its first use.
    #[must_use]
    pub const fn new() -> Blinding {
        Blinding { factor: [0; WIDE_LIMBS_MAX], inverse: [0; WIDE_LIMBS_MAX], of: [0; 2], uses_left: 0 }
    }

    /// Whether the pair is used up.
    #[must_use]
    pub fn needs_random(&self) -> bool {
        self.uses_left == 0
    }

    pub(super) fn serves(&self, key: &Key) -> bool {
        self.uses_left > 0 && self.of == Blinding::tag(key)
    }

    pub(super) fn tag(key: &Key) -> [u64; 2] {
        [key.modulus.limbs[0], key.modulus.limbs[key.size.half_limbs()]]
    }

    pub(super) fn clear(&mut self) {
        wipe(&mut self.factor);
        wipe(&mut self.inverse);
        self.uses_left = 0;
    }
}

impl Default for Blinding {
    fn default() -> Blinding {
        Blinding::new()
    }
}

impl Drop for Blinding {
    fn drop(&mut self) {
        self.clear();
    }
}

impl core::fmt::Debug for Blinding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Blinding").field("uses_left", &self.uses_left).finish_non_exhaustive()
    }
}
