//! Overwriting secrets in a way that the compiler may not leave out.

/// Plain old data: every bit pattern, all zeroes among them, is a value, and there is nothing to drop.
///
/// # Safety
/// Only for types of which that is true.
pub unsafe trait Plain: Copy {}

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
#[inline]
pub fn wipe<T: Plain>(secret: &mut T) {
    let start: *mut T = secret;
    // SAFETY: the whole of a value we may write, and zero is a value of every `Plain` type.
    unsafe { start.write_bytes(0, 1) };
    kept(start.cast());
}

/// As far as the compiler knows, the memory is read here, so what was written to it may not be left out.
#[cfg(target_arch = "x86_64")]
#[inline]
fn kept(memory: *mut u8) {
    // SAFETY: no instruction at all.
    unsafe { core::arch::asm!("/* {0} */", in(reg) memory, options(nostack, preserves_flags)) };
}

/// Elsewhere nothing secret is written but single words of online signatures; a fence and an opaque pointer must do.
#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
fn kept(memory: *mut u8) {
    core::hint::black_box(memory);
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

/// Wipes the stack below the caller, where the frames of finished kernels have left what they spilled.
#[inline(never)]
pub fn wipe_dead_stack() {
    const DEAD_STACK_BYTES: usize = 8 << 10;
    let mut frame = [0u64; DEAD_STACK_BYTES / 8];
    wipe(&mut frame);
}
