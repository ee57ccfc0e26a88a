//! State that all sessions of an agent share, and the claim that one of them has while it does a job.

use super::identity::AgentIdentity;
use super::rules::Rules;
use crate::failure::{Failure, Outcome};
use std::net::IpAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};

/// State that all sessions share.
pub struct Shared {
    pub identity: AgentIdentity,
    pub rules: Rules,
    pub sources: Vec<IpAddr>,
    pub core: Option<usize>,
    /// Whose job is being done.
    serving: Mutex<Option<String>>,
    pub sessions: AtomicUsize,
}

/// The right to do a job; given back with its end.
pub struct Claim<'a>(&'a Shared);

impl Shared {
    pub fn new(identity: AgentIdentity, rules: Rules) -> Self {
        Self {
            identity,
            rules,
            sources: Vec::new(),
            core: None,
            serving: Mutex::new(None),
            sessions: AtomicUsize::new(0),
        }
    }

    /// One job at a time: two would spoil each other's figures.
    pub fn claim(&self, peer: &str) -> Outcome<Claim<'_>> {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = &*serving {
            return Err(Failure::new(format!("busy with a job of {other}")));
        }
        *serving = Some(peer.to_owned());
        Ok(Claim(self))
    }

    pub fn is_serving(&self) -> bool {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        *self.0.serving.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
