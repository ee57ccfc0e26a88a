//! The clock and random bytes of the operating system.

use std::time::SystemTime;

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Fills with bytes that nobody can guess.
pub(crate) fn fill(bytes: &mut [u8]) {
    aws_lc_rs::rand::fill(bytes).expect("the operating system has randomness");
}

/// As many random bytes, in hexadecimal.
pub(crate) fn random_text(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    fill(&mut random);
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}
