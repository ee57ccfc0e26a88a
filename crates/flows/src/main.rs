//! The binary `propylon-flows`.

use std::process::ExitCode;

fn main() -> ExitCode {
    propylon_flows::command::main()
}
