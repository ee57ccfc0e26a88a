//! The program `propylon-bench`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    propylon_bench::main(option_env!("PROPYLON_COMMIT"))
}
