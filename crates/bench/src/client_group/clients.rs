//! The clients of one process, whichever HTTP they speak.

use super::http2::{Http2Behaviour, Http2ClientGroup};
use super::phase::{ClientCounts, LoadPhase};
use super::{ClientBehaviour, ClientGroup};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The behaviour that all of them have in common.
#[derive(Clone, Serialize, Deserialize)]
pub enum Behaviour {
    Http1(ClientBehaviour),
    Http2(Http2Behaviour),
}

pub enum Clients<'t> {
    Http1(Box<ClientGroup<'t>>),
    Http2(Http2ClientGroup),
}

impl<'t> Clients<'t> {
    /// One seed, one rhythm.
    pub fn new(target: &'t Target, behaviour: Behaviour, seed: u64, interrupt: &Interrupt) -> Outcome<Self> {
        Ok(match behaviour {
            Behaviour::Http1(behaviour) => Self::Http1(Box::new(ClientGroup::new(target, behaviour, seed, interrupt)?)),
            Behaviour::Http2(behaviour) => Self::Http2(Http2ClientGroup::new(target.clone(), behaviour, interrupt)?),
        })
    }

    /// Lets clients come until there are `total`, and waits until each was served or has failed, or the timeout has
    /// passed.
    pub fn grow(&mut self, total: usize, timeout: Duration, report: impl FnMut(ClientCounts)) -> Outcome<LoadPhase> {
        match self {
            Self::Http1(group) => group.grow(total, timeout, report),
            Self::Http2(group) => group.grow(total, timeout, report),
        }
    }

    /// Lets time pass.
    pub fn hold(&mut self, duration: Duration) -> Outcome<LoadPhase> {
        match self {
            Self::Http1(group) => group.hold(duration),
            Self::Http2(group) => group.hold(duration),
        }
    }
}
