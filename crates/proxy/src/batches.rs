//! Batches of private-key work as the engine has them: which work is set aside for them.

use std::sync::Arc;

use propylon_config::Batch;
use propylon_crypto::X25519Pair;
use propylon_crypto::batch::{self, Batching, Kernel, KernelState};
use propylon_tls::{Deferral, KeyPairs};

/// Has the kernels tested, if they are wanted, and says what has come of it.
pub fn start(wanted: Batch) -> Arc<Batching> {
    let batching = match wanted {
        Batch::Auto => Batching::start(),
        Batch::Off => Batching::off(),
    };
    for kernel in Kernel::ALL {
        let name = kernel.name();
        match batching.state(kernel) {
            KernelState::Used => log::info!("batches: the kernel for {name} is tested and in use"),
            KernelState::TurnedOff => log::debug!("batches: turned off for {name}"),
            KernelState::NoInstructions => log::info!("batches: the processor has no AVX-512 IFMA for {name}"),
            KernelState::Failed => log::error!(
                "batches: the kernel for {name} does not give the known answers and is not used; have the processor and \
                 the memory of this machine checked"
            ),
        }
    }
    batching
}

/// Makes this thread one that works in batches, as far as that is possible, and says which work is to wait for them.
pub fn install(batching: &Arc<Batching>) -> Deferral {
    batch::install(batching);
    KeyPairs::draw_from(X25519Pair::draw);
    let usable = |kernel| batching.is_usable(kernel);
    let (rsa, x25519, ecdsa) = (usable(Kernel::Rsa), usable(Kernel::X25519), usable(Kernel::P256));
    Deferral { rsa, x25519, ecdsa, in_company_only: true, ..Deferral::default() }
}

/// Whether there is something that cores make ahead.
pub fn makes_ahead(batching: &Batching) -> bool {
    batching.is_usable(Kernel::X25519)
}

/// For the moments in which a core has nothing to do: makes something ahead.
pub fn refill() {
    batch::refill();
}
