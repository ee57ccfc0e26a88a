//! Why the demo could not go on.

use std::fmt;

pub struct Failure(String);

impl Failure {
    pub fn new(what: impl Into<String>) -> Failure {
        Failure(what.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
