//! `offload`: what a balancer in front saves an origin that pays for every connection: Cisco's experiment, smaller.
//!
//! `prefork` is that origin, `stage` starts it and the balancer, `steps` lets ever more slow clients come, `secure`
//! asks what TLS costs the origin, `sockets` counts connections, `verdict` tells the ratios.

mod arguments;
pub mod prefork;
pub mod secure;
pub mod sockets;
pub mod stage;
pub mod steps;
pub mod verdict;

use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::report;
pub use arguments::Arguments;
use stage::{Setup, Stage};
use verdict::Verdict;

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    arguments.check()?;
    let stage = Stage::new(arguments, &interrupt)?;
    let direct = steps::climb(&stage, Setup::Direct)?;
    let through = steps::climb(&stage, Setup::Through)?;
    let secure = if arguments.no_tls || (arguments.balancer.is_some() && arguments.balancer_tls.is_none()) {
        Vec::new()
    } else {
        secure::compare(&stage)?
    };
    let verdict = Verdict::new(arguments, stage.balancer_name(), direct, through, secure);
    verdict.print();
    report::save_result(arguments.json.as_deref(), "offload", &verdict)?;
    verdict.outcome()
}
