//! Overwriting secrets in a way that the compiler may not leave out.

use core::sync::atomic::{Ordering, compiler_fence};

/// Plain old data: every bit pattern, all zeroes among them, is a value, and there is nothing to drop.
///
/// # Safety
/// Only for types of which that is true.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers, arrays of them, and vectors of integers have no invalid bit patterns.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
#[cfg(target_arch = "x86_64")]
// SAFETY: as above.
unsafe impl Plain for core::arch::x86_64::__m512i {}

/// Sets all of it to zero, whether or not anybody looks at it again.
pub(crate) fn wipe<T: Plain>(secret: &mut T) {
    let start: *mut T = secret;
    if core::mem::size_of::<T>() % 8 == 0 && core::mem::align_of::<T>() % 8 == 0 {
        for i in 0..core::mem::size_of::<T>() / 8 {
            // SAFETY: inside the value, aligned as just checked, and zero is a valid value of a `Plain` type.
            unsafe { start.cast::<u64>().add(i).write_volatile(0) };
        }
    } else {
        for i in 0..core::mem::size_of::<T>() {
            // SAFETY: inside the value; a byte has no alignment; zero is a valid value of a `Plain` type.
            unsafe { start.cast::<u8>().add(i).write_volatile(0) };
        }
    }
    compiler_fence(Ordering::SeqCst);
}

/// Wipes the stack below the caller, where the frames of finished kernels have left what they spilled.
#[inline(never)]
pub(crate) fn wipe_dead_stack() {
    const DEAD_STACK_BYTES: usize = 8 << 10;
    let mut frame = [0u64; DEAD_STACK_BYTES / 8];
    wipe(&mut frame);
}
