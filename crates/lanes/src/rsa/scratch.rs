//! Working memory of a call.

use super::key::Size;
use crate::wipe::{Blank, wipe};

/// One 64-bit word for each of the eight lanes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub [u64; 8]);

// SAFETY: zero is a value of an array of integers.
unsafe impl Blank for Lanes {}

impl Lanes {
    pub(super) const ZERO: Lanes = Lanes([0; 8]);
}

const SCRATCH_LANES: usize = scratch_lanes(Size::Rsa4096);

/// Vectors that an operation needs: see `operation::Space`, which divides them.
pub(super) const fn scratch_lanes(size: Size) -> usize {
    46 * size.half_limbs() + 44
}

/// Room for the intermediate values of a call: 118 KiB, of which RSA-2048 uses 60. Too large for a small stack: keep
/// one per thread. Holds nothing but zeros between calls.
pub struct Scratch {
    pub(super) space: [Lanes; SCRATCH_LANES],
}

impl Scratch {
    /// Empty room.
    #[must_use]
    pub const fn new() -> Scratch {
        Scratch { space: [Lanes::ZERO; SCRATCH_LANES] }
    }

    pub(super) fn wipe(&mut self, size: Size) {
        wipe(&mut self.space[..scratch_lanes(size)]);
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.wipe(Size::Rsa4096);
    }
}
