//! A controller of the Kubernetes Gateway API for engines of Propylon: resources in, a configuration and statuses out.

pub mod access;
pub mod conditions;
pub mod controller;
pub mod duration;
pub mod engines;
pub mod exchange;
pub mod hostname;
pub mod lease;
pub mod resources;
pub mod settings;
pub mod translate;
pub mod watch;
pub mod world;
