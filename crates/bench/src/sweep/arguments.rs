//! The flags of `sweep`.

use crate::compare::rows::Row;
use crate::compare::setting::Setting;
use crate::target::{Cipher, Version};
use crate::testbed::TestbedArguments;
use crate::units::parse_duration;
use std::path::PathBuf;
use std::time::Duration;

/// Cipher suites x keys x workers: new connections per second and CPU time each
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench sweep\n  \
    propylon-bench sweep --resumed --workers 1 --duration 2 --json sweep.json\n  \
    propylon-bench sweep --certificates shop.p384.pem,shop.rsa4096.pem\n  \
    propylon-bench sweep --server nginx --keys rsa --workers 1,2\n  \
    propylon-bench sweep --target 127.0.0.1:8443 --server-pid 4711\n  \
    propylon-bench sweep --pin --workers 1,2,4,8,16,32 --rounds 3 --json curve.json\n  \
    propylon-bench sweep --pin --workers 1,8 --rows ec13,requests-h2 --set process.batch=off\n\n\
    A transaction is a new TCP connection, a full handshake, one request answered by the server itself, and the end.\n\
    Before a row is measured, one handshake proves that suite, version and key are what the row says. Suites of older\n\
    tables (static RSA, static ECDH, DHE, CBC, RC4, 3DES) are offered by a hand-written ClientHello, and by openssl\n\
    where it is installed; what the server says to them is in the second table.")]
pub struct Arguments {
    #[command(flatten)]
    pub testbed: TestbedArguments,
    /// Also measure resumed sessions
    #[arg(long, conflicts_with = "pin")]
    pub resumed: bool,
    /// TLS versions to measure
    #[arg(long, value_name = "VERSION", default_value = "any")]
    pub tls: Version,
    /// Ciphers to measure
    #[arg(long, value_name = "CIPHER,CIPHER", value_delimiter = ',', default_value = "aes128gcm,aes256gcm,chacha20")]
    pub ciphers: Vec<Cipher>,
    /// Length of one measurement
    #[arg(long, default_value = "3", value_parser = parse_duration)]
    pub duration: Duration,
    /// Load before each measurement that is not counted
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Rounds of each row, of which the median is shown
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Connections in flight per load thread
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub in_flight: usize,
    /// Leave out the suites of older tables
    #[arg(long)]
    pub without_refused: bool,
    /// Draw the curve of this machine instead: the same work on each number of workers, each worker on its own core
    #[arg(long, conflicts_with = "target")]
    pub pin: bool,
    /// With --pin: kinds of work, as `compare` has them
    #[arg(
        long,
        value_name = "ROW",
        value_delimiter = ',',
        requires = "pin",
        default_value = "ec13,resumed13,requests-tls,requests-h2,bulk-tls"
    )]
    pub rows: Vec<Row>,
    /// With --pin: measure with this key of the configuration as well, in turns; repeat for more keys at once
    #[arg(long = "set", value_name = "TABLE.KEY=VALUE", requires = "pin", value_parser = setting)]
    pub settings: Vec<Setting>,
    /// Write everything measured as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn setting(text: &str) -> Result<Setting, String> {
    let setting = Setting::parse(text).map_err(|failure| failure.to_string())?;
    match setting.is_of("process", "workers") {
        // The curve would be of other workers than it says, on cores that were chosen for those.
        true => Err("the sweep sets the workers itself, one number after another: name them by --workers".into()),
        false => Ok(setting),
    }
}

impl Arguments {
    /// Configurations to measure with `--pin`: as it is and, if there are any, with the settings.
    pub fn variants(&self) -> Vec<Vec<Setting>> {
        let with = (!self.settings.is_empty()).then(|| self.settings.clone());
        std::iter::once(Vec::new()).chain(with).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_no_setting_of_a_sweep_which_measures_several_numbers_of_them() {
        assert!(setting("process.batch=off").is_ok());
        assert!(setting("backend.origin.workers=2").is_ok());
        assert!(setting("process.workers=2").unwrap_err().ends_with("name them by --workers"));
    }
}
