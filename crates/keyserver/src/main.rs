//! The binary `propylon-keyserver`.

use std::process::ExitCode;

/// Freed memory is wiped, libraries' included: keys, and what links carry, are all there is in this process.
#[global_allocator]
static ALLOCATOR: propylon_sys::Wiping<mimalloc::MiMalloc> = propylon_sys::Wiping::everywhere(mimalloc::MiMalloc);

fn main() -> ExitCode {
    propylon_keyserver::command::main(option_env!("PROPYLON_COMMIT"))
}
