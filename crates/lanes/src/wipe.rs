//! Secrets are overwritten before their memory is given back, also when a panic unwinds.

use core::arch::asm;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::__m512i;
use core::mem::{MaybeUninit, size_of_val};
use core::ops::{Deref, DerefMut};

/// Types that are whole when all their bytes are zero.
///
/// # Safety
/// The all-zero bit pattern must be a value of the type, and the type must not implement `Drop`.
pub unsafe trait Blank: Copy {}

// SAFETY: zero is a value of every integer, and of a vector of them.
unsafe impl Blank for u8 {}
// SAFETY: as above.
unsafe impl Blank for u32 {}
// SAFETY: as above.
unsafe impl Blank for u64 {}
// SAFETY: as above.
unsafe impl Blank for i64 {}
#[cfg(target_arch = "x86_64")]
// SAFETY: as above.
unsafe impl Blank for __m512i {}
// SAFETY: an array is whole when its elements are.
unsafe impl<T: Blank, const N: usize> Blank for [T; N] {}

/// Overwrites the value (a number, an array, or a slice of them) with zeros that no optimisation removes.
#[inline]
pub fn wipe<T: Blank>(values: &mut [T]) {
    let bytes = size_of_val(values);
    let start = values.as_mut_ptr();
    // SAFETY: the slice is ours to write for `bytes` bytes, and `Blank` says that zero bytes are a value of T.
    unsafe { start.cast::<u8>().write_bytes(0, bytes) };
    // SAFETY: no instruction is executed; the compiler must assume that the memory behind the pointer is read here.
    unsafe { asm!("/* {0} */", in(reg) start, options(nostack, preserves_flags)) };
}

/// A value that is overwritten when it goes out of scope, however that happens.
pub struct Wiped<T: Blank>([T; 1]);

impl<T: Blank> Wiped<T> {
    #[inline]
    pub fn new(value: T) -> Self {
        Self([value])
    }

    /// All bytes zero.
    #[inline]
    pub fn blank() -> Self {
        // SAFETY: `Blank` says that zero bytes are a value of T.
        Self([unsafe { MaybeUninit::zeroed().assume_init() }])
    }
}

impl<T: Blank> Deref for Wiped<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0[0]
    }
}

impl<T: Blank> DerefMut for Wiped<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0[0]
    }
}

impl<T: Blank> Drop for Wiped<T> {
    #[inline]
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites the next `BYTES` of stack, where functions called before this one from the same place kept their
/// spilled registers and temporaries. About one cycle per 64 bytes; the last thing a public function does.
#[inline(never)]
pub fn wipe_stack<const BYTES: usize>() {
    let mut below = MaybeUninit::<[u8; BYTES]>::uninit();
    // SAFETY: the array is ours, zero bytes are a value of it, and only then is it read.
    let below = unsafe {
        below.as_mut_ptr().cast::<u8>().write_bytes(0, BYTES);
        below.assume_init_mut()
    };
    // SAFETY: no instruction is executed; the compiler must assume that the array is read here, so it is written.
    unsafe { asm!("/* {0} */", in(reg) below.as_mut_ptr(), options(nostack, preserves_flags)) };
}

/// Zeroes all 32 vector registers: what a kernel leaves in them would otherwise go into the next saved context.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
pub fn wipe_registers() {
    // SAFETY: AVX-512 is there, as the attribute says, and every register written is declared as clobbered.
    unsafe {
        asm!(
            "vzeroall",
            "vpxord zmm16, zmm16, zmm16", "vpxord zmm17, zmm17, zmm17",
            "vpxord zmm18, zmm18, zmm18", "vpxord zmm19, zmm19, zmm19",
            "vpxord zmm20, zmm20, zmm20", "vpxord zmm21, zmm21, zmm21",
            "vpxord zmm22, zmm22, zmm22", "vpxord zmm23, zmm23, zmm23",
            "vpxord zmm24, zmm24, zmm24", "vpxord zmm25, zmm25, zmm25",
            "vpxord zmm26, zmm26, zmm26", "vpxord zmm27, zmm27, zmm27",
            "vpxord zmm28, zmm28, zmm28", "vpxord zmm29, zmm29, zmm29",
            "vpxord zmm30, zmm30, zmm30", "vpxord zmm31, zmm31, zmm31",
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
            out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
            out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _, out("zmm28") _, out("zmm29") _,
            out("zmm30") _, out("zmm31") _,
            options(nomem, nostack, preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wiped_is_zero() {
        let mut words = [[u64::MAX; 5]; 3];
        wipe(&mut words);
        assert_eq!(words, [[0; 5]; 3]);
        assert_eq!(*Wiped::<[u8; 7]>::blank(), [0; 7]);
        let mut guard = Wiped::new([1u64; 4]);
        guard[2] = 7;
        assert_eq!(*guard, [1, 1, 7, 1]);
    }

    #[test]
    fn the_stack_below_and_the_registers_can_be_wiped() {
        wipe_stack::<4096>();
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor was just asked.
            unsafe { wipe_registers() };
        }
    }
}
