//! `keyserver`: operations on private keys that are kept by a key server, each answer verified.
//!
//! `wire` is the protocol, `key` and `operation` what is asked and what is a right answer, `channel` one connection,
//! `pipeline` the loop over all of them, `verifier` where answers are counted and verified, `background` two loads at
//! once.

mod arguments;
pub mod background;
mod channel;
mod key;
mod measure;
mod operation;
mod pipeline;
#[cfg(test)]
mod test_server;
#[cfg(test)]
mod tests;
mod verifier;
mod wire;

use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::{machine, report};
pub use arguments::Arguments;
pub use measure::Report;
use measure::measure;

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    if let Some(core) = arguments.core {
        machine::pin_to_core(core)?;
    }
    if arguments.background.is_some() {
        return background::run(arguments, &interrupt);
    }
    let report = measure(arguments, &interrupt)?;
    report.print();
    report::save_result(arguments.json.as_deref(), "keyserver", &report)?;
    report.verdict()
}
