//! Stands in for `batch` where there are no lanes: an `Ifma` cannot exist there, so nothing here is ever called.

use super::limits::BatchError;
use super::signature::PairSlot;
use super::wipe::Plain;
use crate::Ifma;

#[derive(Clone, Copy)]
pub struct Group;

// SAFETY: nothing is in it.
unsafe impl Plain for Group {}

#[derive(Clone, Copy)]
pub struct Multiples;

// SAFETY: nothing is in it.
unsafe impl Plain for Multiples {}

impl Multiples {
    pub const ZERO: Multiples = Multiples;
}

impl Group {
    pub const ZERO: Group = Group;
}

pub fn impossible<T>(_: Ifma) -> T {
    unreachable!("an Ifma exists on x86-64 only")
}

pub fn self_test(ifma: Ifma) -> bool {
    impossible(ifma)
}

pub fn nonce_pairs(ifma: Ifma, _: &[[u8; 32]], _: &mut [Group], _: &mut [PairSlot]) -> Result<(), BatchError> {
    impossible(ifma)
}

pub fn public_keys(ifma: Ifma, _: &[[u8; 32]], _: &mut [Group], _: &mut [[u8; 65]]) -> Result<(), BatchError> {
    impossible(ifma)
}

pub fn agree(ifma: Ifma, _: &[[u8; 32]; 8], _: &[[u8; 65]; 8], _: &mut Multiples, _: &mut [[u8; 32]; 8]) -> u8 {
    impossible(ifma)
}
