//! Whether the process has lanes, and whether they can be trusted: known answers at the start, and none is used again
//! after a wrong result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use propylon_lanes::{Ifma, p256, x25519};

use super::rsa_workspace::RsaWorkspace;

/// RSA results that do not lead back to their input, in the whole life of the process, before the kernel is not
/// used any more. The first may have been a particle; the next is a processor, or memory, that is broken or under
/// attack.
const BAD_MAX: u32 = 2;

/// A kernel: tested, trusted and given up as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Rsa,
    X25519,
    P256,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelState {
    /// The kernel is in use.
    Used,
    /// Turned off by whoever runs the process.
    TurnedOff,
    /// The processor has not the instructions: AVX-512 F and IFMA.
    NoInstructions,
    /// The kernel has not given the known answers at the start, or a result was wrong since.
    Failed,
}

impl Kernel {
    pub const ALL: [Kernel; 3] = [Kernel::Rsa, Kernel::X25519, Kernel::P256];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Rsa => "rsa",
            Kernel::X25519 => "x25519",
            Kernel::P256 => "p256",
        }
    }
}

/// Trust in the kernels: one for the process, shared by its threads.
#[derive(Debug)]
pub struct Batching {
    ifma: Option<Ifma>,
    turned_off: bool,
    /// Whether each kernel can be trusted, in the order of [`Kernel::ALL`]; a false stays false.
    good: [AtomicBool; Kernel::ALL.len()],
    bad_results: AtomicU32,
}

impl Batching {
    /// Asks the processor, and has the kernels give the known answers, which takes some 20 ms.
    #[must_use]
    pub fn start() -> Arc<Batching> {
        let ifma = ifma();
        let good = ifma.map(self_tests).unwrap_or_default();
        Arc::new(Batching { ifma, turned_off: false, good: good.map(AtomicBool::new), bad_results: AtomicU32::new(0) })
    }

    /// A batching that leaves everything to AWS-LC.
    #[must_use]
    pub fn off() -> Arc<Batching> {
        let good = [const { AtomicBool::new(false) }; Kernel::ALL.len()];
        Arc::new(Batching { ifma: None, turned_off: true, good, bad_results: AtomicU32::new(0) })
    }

    /// The state of a kernel at this moment.
    #[must_use]
    pub fn state(&self, kernel: Kernel) -> KernelState {
        match self.ifma {
            None if self.turned_off => KernelState::TurnedOff,
            None => KernelState::NoInstructions,
            Some(_) if self.is_usable(kernel) => KernelState::Used,
            Some(_) => KernelState::Failed,
        }
    }

    /// Whether the kernel is in use at this moment, so that a batch is cheaper than single jobs.
    #[must_use]
    pub fn is_usable(&self, kernel: Kernel) -> bool {
        self.good[kernel as usize].load(Ordering::Relaxed)
    }

    pub(super) fn ifma(&self) -> Option<Ifma> {
        self.ifma
    }

    pub(super) fn give_up(&self, kernel: Kernel) {
        if self.good[kernel as usize].swap(false, Ordering::Relaxed) {
            log::error!(
                "batches: the kernel for {} gave a wrong result, which was caught; from now on AWS-LC does its work. Have \
                 the processor and the memory of this machine checked",
                kernel.name()
            );
        }
    }

    pub(super) fn count_bad(&self, results: u32) {
        if self.bad_results.fetch_add(results, Ordering::Relaxed) + results >= BAD_MAX {
            self.give_up(Kernel::Rsa);
        }
    }
}

/// Tests have an emulation where only the multiplications are lacking; without release builds' speed RSA is too slow
/// for it.
pub(super) fn ifma() -> Option<Ifma> {
    #[cfg(all(test, debug_assertions))]
    return Ifma::emulated();
    #[cfg(not(all(test, debug_assertions)))]
    Ifma::detect()
}

/// Runs the self-tests, in the order of [`Kernel::ALL`].
fn self_tests(ifma: Ifma) -> [bool; Kernel::ALL.len()] {
    let rsa = (cfg!(not(test)) || Ifma::detect().is_some()).then(RsaWorkspace::new).flatten();
    let rsa = rsa.is_some_and(|mut raise| propylon_lanes::rsa::self_test(ifma, raise.scratch()));
    [rsa, x25519::self_test(ifma), p256::self_test(ifma)]
}
