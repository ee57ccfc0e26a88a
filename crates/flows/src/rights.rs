//! Rights of the process: which it needs, and getting rid of all others.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// Loading a program for packets takes both; so does attaching it.
pub const NEEDED: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::BPF, "CAP_BPF"), (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")];

/// For loading only: with it the kernel leaves out its guards against speculation, which cost half of the program's
/// time.
pub const USEFUL: (CapabilitySet, &str) = (CapabilitySet::PERFMON, "CAP_PERFMON");

/// Whether the program is loaded as it is fastest.
pub fn has_useful() -> bool {
    capabilities(None).is_ok_and(|own| own.effective.contains(USEFUL.0))
}

/// Names of the rights that are missing.
pub fn missing() -> io::Result<Vec<&'static str>> {
    let own = capabilities(None)?.effective;
    Ok(NEEDED.iter().filter(|(right, _)| !own.contains(*right)).map(|(_, name)| *name).collect())
}

/// Gives up everything but [`NEEDED`], for good: also by executing something nothing comes back.
pub fn drop_others() -> io::Result<()> {
    let kept = NEEDED.iter().fold(CapabilitySet::empty(), |kept, (right, _)| kept | *right);
    let kept = kept & capabilities(None)?.permitted;
    set_no_new_privs(true)?;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })?;
    Ok(())
}
