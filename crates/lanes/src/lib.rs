//! Eight operations at once: kernels that put eight independent private-key operations into the lanes of AVX-512
//! registers.
//!
//! Limb i of eight numbers is one vector of eight 64-bit lanes, so lanes never exchange data and each has its own
//! key. The caller decides what to run when; nothing here allocates, draws random numbers, or knows the time.

#![cfg_attr(not(test), no_std)]

mod cpu;
#[cfg(target_arch = "x86_64")]
mod multiply;
pub mod p256;
pub mod rsa;
#[cfg(target_arch = "x86_64")]
#[allow(dead_code, reason = "each kernel takes what it needs")]
mod wipe;
pub mod x25519;

pub use cpu::Ifma;
