//! How much of the sandbox the kernel enforces.

use std::fmt;

/// How much of something the kernel holds the process to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforced {
    Fully,
    /// An older kernel has less of it.
    Partly,
    /// The reason why nothing is enforced.
    Not(String),
}

impl Enforced {
    /// The word for scripts.
    pub fn word(&self) -> &'static str {
        match self {
            Enforced::Fully => "enforced",
            Enforced::Partly => "partly",
            Enforced::Not(_) => "off",
        }
    }
}

impl fmt::Display for Enforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Enforced::Fully => f.write_str("enforced"),
            Enforced::Partly => f.write_str("enforced as far as this kernel can"),
            Enforced::Not(why) => write!(f, "not enforced: {why}"),
        }
    }
}
