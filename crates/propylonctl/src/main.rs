//! The binary `propylonctl`.

mod command;

use std::process::ExitCode;

/// The allocator wipes memory freed by threads that read, receive or make keys; other threads are spared that.
#[global_allocator]
static ALLOCATOR: propylon_sys::Wiping<mimalloc::MiMalloc> = propylon_sys::Wiping::where_asked(mimalloc::MiMalloc);

fn main() -> ExitCode {
    command::main()
}
