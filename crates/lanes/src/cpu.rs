//! Whether this processor can run the kernels.

/// Proof that the processor has AVX-512 F and IFMA and that the system saves their registers. Every kernel asks for it,
/// so none can run where it would be an illegal instruction.
#[derive(Clone, Copy, Debug)]
pub struct Ifma(());

impl Ifma {
    /// Asks the processor; some hundred nanoseconds, so once.
    #[must_use]
    pub fn detect() -> Option<Ifma> {
        #[cfg(target_arch = "x86_64")]
        if x86::has_ifma() {
            return Some(Ifma(()));
        }
        None
    }

    /// The processor's own instructions, or, where it has only the rest of AVX-512, an emulation that is far too slow
    /// for anything but tests. Absent from release builds.
    #[cfg(debug_assertions)]
    #[must_use]
    pub fn emulated() -> Option<Ifma> {
        if let Some(ifma) = Ifma::detect() {
            return Some(ifma);
        }
        #[cfg(target_arch = "x86_64")]
        if x86::has_avx512() {
            crate::multiply::EMULATED.store(true, core::sync::atomic::Ordering::Relaxed);
            return Some(Ifma(()));
        }
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    const LEAF_1_ECX_OSXSAVE: u32 = 1 << 27;
    const LEAF_7_EBX_BMI2: u32 = 1 << 8;
    const LEAF_7_EBX_AVX512F: u32 = 1 << 16;
    const LEAF_7_EBX_AVX512IFMA: u32 = 1 << 21;
    /// SSE, AVX, the mask registers, and both parts of the 512-bit registers (Intel SDM vol. 1 §13.3).
    const XCR0_AVX512: u64 = 0b1110_0110;

    pub fn has_ifma() -> bool {
        has(LEAF_7_EBX_BMI2 | LEAF_7_EBX_AVX512F | LEAF_7_EBX_AVX512IFMA)
    }

    #[cfg(debug_assertions)]
    pub fn has_avx512() -> bool {
        has(LEAF_7_EBX_BMI2 | LEAF_7_EBX_AVX512F)
    }

    #[allow(unused_unsafe, reason = "the cpuid intrinsics are safe in newer compilers, unsafe in older ones")]
    fn has(wanted: u32) -> bool {
        // SAFETY: every x86-64 processor has CPUID.
        let (highest, features) = unsafe { (__cpuid(0).eax, __cpuid(1)) };
        if highest < 7 || features.ecx & LEAF_1_ECX_OSXSAVE == 0 {
            return false;
        }
        // SAFETY: OSXSAVE says that XGETBV may be executed, and register 0 always exists.
        let saved = unsafe { xcr0() };
        // SAFETY: leaf 7 exists, as just checked.
        let extended = unsafe { __cpuid_count(7, 0) };
        saved & XCR0_AVX512 == XCR0_AVX512 && extended.ebx & wanted == wanted
    }

    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: the caller has checked for XSAVE.
        unsafe { _xgetbv(0) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_answer_is_the_standard_librarys() {
        let std = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512ifma")
            && std::is_x86_feature_detected!("bmi2");
        assert_eq!(super::Ifma::detect().is_some(), std);
    }
}
