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

/// The compiler takes this for a read of the memory, so what was written to it may not be left out.
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

/// Wipes `BYTES` of the stack below the caller, where the frames of finished functions have left what they spilled.
#[inline(never)]
pub fn wipe_dead_stack<const BYTES: usize>() {
    let mut frame = core::mem::MaybeUninit::<[u8; BYTES]>::uninit();
    // SAFETY: all of an array of our own; nobody reads it before it is written, or after.
    unsafe { frame.as_mut_ptr().write_bytes(0, 1) };
    kept(frame.as_mut_ptr().cast());
}

/// Wipes what kernels have left behind: the stack below the caller, and the vector and mask registers.
#[cfg(target_arch = "x86_64")]
pub fn wipe_traces(_: crate::Ifma) {
    wipe_dead_stack::<KERNEL_STACK_BYTES>();
    // SAFETY: an `Ifma` exists only where the processor has these registers.
    unsafe { wipe_registers() };
}

/// More than the deepest chain of frames below the functions that wipe: `batch::make_pairs` and `order::inverses`.
#[cfg(target_arch = "x86_64")]
const KERNEL_STACK_BYTES: usize = 20 << 10;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn wipe_registers() {
    macro_rules! clear {
        ([$($upper:tt)+] [$($vector:tt)+] [$($mask:tt)+]) => {
            // SAFETY: nothing but registers is written, and all of them are declared.
            unsafe {
                core::arch::asm!(
                    "vzeroall",
                    $( concat!("vpxord ", $upper, ", ", $upper, ", ", $upper), )+
                    $( concat!("kxorw ", $mask, ", ", $mask, ", ", $mask), )+
                    $( out($vector) _, )+
                    $( out($upper) _, )+
                    $( out($mask) _, )+
                    options(nomem, nostack, preserves_flags),
                );
            }
        };
    }
    clear!(
        ["zmm16" "zmm17" "zmm18" "zmm19" "zmm20" "zmm21" "zmm22" "zmm23"
         "zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm29" "zmm30" "zmm31"]
        ["zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7"
         "zmm8" "zmm9" "zmm10" "zmm11" "zmm12" "zmm13" "zmm14" "zmm15"]
        ["k1" "k2" "k3" "k4" "k5" "k6" "k7"]
    );
}
