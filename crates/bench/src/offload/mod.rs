//! `offload`: what a balancer in front saves an origin that pays for every connection: Cisco's experiment, smaller.
//!
//! `prefork` is that origin, `testbed` starts it and the balancer, `steps` lets ever more slow clients come, `secure`
//! asks what TLS costs the origin, `sockets` counts connections, `verdict` tells the ratios.

mod arguments;
pub mod prefork;
pub mod secure;
pub mod sockets;
pub mod steps;
pub mod testbed;
pub mod verdict;

use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::report;
pub use arguments::Arguments;
use testbed::{Setup, Testbed};
use verdict::Verdict;

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    arguments.check()?;
    let testbed = Testbed::new(arguments, &interrupt)?;
    let direct = steps::climb(&testbed, Setup::Direct)?;
    let through = steps::climb(&testbed, Setup::Through)?;
    let secure = if arguments.no_tls || (arguments.balancer.is_some() && arguments.balancer_tls.is_none()) {
        Vec::new()
    } else {
        secure::compare(&testbed)?
    };
    let verdict = Verdict::new(arguments, testbed.balancer_name(), direct, through, secure);
    verdict.print();
    report::save_result(arguments.json.as_deref(), "offload", &verdict)?;
    verdict.outcome()
}
