//! Why a command could not do its work, in a sentence that its user can act on.

use std::fmt::{self, Display};

/// A sentence for the user: what failed, at what, and where it helps, what to do.
#[derive(Debug)]
pub struct Failure(String);

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Says what was being done when a lower layer gave up.
pub trait While<T> {
    fn when(self, doing: impl Display) -> Outcome<T>;
}

impl<T, E: Display> While<T> for Result<T, E> {
    fn when(self, doing: impl Display) -> Outcome<T> {
        self.map_err(|error| Failure(format!("{doing}: {error}")))
    }
}
