//! stub
use crate::failure::Outcome;
/// x
#[derive(clap::Args)]
#[command(after_help = "Example")]
pub struct Arguments {}
pub fn run(_: &Arguments) -> Outcome<()> {
    Ok(())
}
