//! Stands for keys in hardware modules where the program is built without them.

use std::io;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use propylon_config::keyserver::Pkcs11;
use propylon_crypto::Key;
use propylon_metrics::Column;

use crate::keys::TokenFault;
use crate::signing::Overflow;
use crate::task::Task;
use crate::telemetry::TokenMetrics;

/// An empty set of tokens.
#[derive(Clone)]
pub struct Tokens;

impl Tokens {
    pub fn check(configured: &[Pkcs11]) -> Vec<TokenFault> {
        configured.iter().map(not_built_in).collect()
    }

    pub fn open(configured: &[Pkcs11]) -> Result<Tokens, TokenFault> {
        configured.first().map_or(Ok(Tokens), |token| Err(not_built_in(token)))
    }

    pub fn found(&self) -> Vec<(Key, String)> {
        Vec::new()
    }

    pub fn threads(&self) -> usize {
        0
    }

    pub fn start(&self, _: &'static [TokenMetrics], _: impl FnMut() -> Column, _: &Arc<Barrier>) -> io::Result<()> {
        Ok(())
    }

    pub fn request_scan(&self) {}

    pub fn have_changed(&self) -> bool {
        false
    }

    pub fn push(&self, _: usize, task: Task) -> Result<(), Overflow> {
        task.refuse();
        Ok(())
    }

    pub fn timeout(&self, _: usize) -> Option<Duration> {
        None
    }
}

fn not_built_in(token: &Pkcs11) -> TokenFault {
    TokenFault {
        at: token.at,
        what: "this propylon-keyserver was built without PKCS#11".into(),
        fix: "build it with `cargo build --release -p propylon-keyserver --features pkcs11`, or remove [[pkcs11]]",
    }
}
