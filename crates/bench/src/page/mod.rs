//! stub
#[derive(clap::Args)]
#[command(after_help = "Example: ")]
pub struct Arguments {}
pub fn run(_: &Arguments) -> crate::failure::Outcome<()> {
    Ok(())
}
