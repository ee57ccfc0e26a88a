//! The binary `propylon`.

mod command;

use std::process::ExitCode;

/// Of what the threads free that read keys, are sent them or make them, nothing stays readable; workers, which do not, are spared that.
#[global_allocator]
static ALLOCATOR: propylon_sys::Wiping<mimalloc::MiMalloc> = propylon_sys::Wiping::where_asked(mimalloc::MiMalloc);

fn main() -> ExitCode {
    command::main()
}
