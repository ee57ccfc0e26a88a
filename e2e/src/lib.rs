//! The harness that the stories share: real binaries on port 0, real peers, origins that speak exact bytes.
//!
//! A story starts an [`Engine`] from a configuration's text, speaks to it through a [`Client`] or a real program, and
//! asks the engine's metrics and access log what it made of that. Every wait has a limit and ends in a panic that says
//! what was waited for.

pub mod admin;
pub mod binaries;
pub mod browser;
pub mod certificates;
pub mod client;
pub mod devtools;
pub mod distance;
pub mod dns;
pub mod engine;
pub mod external;
pub mod frames;
pub mod grpc;
pub mod http;
pub mod isolation;
pub mod keyserver;
pub mod kube;
pub mod lineage;
pub mod load;
pub mod memory;
pub mod nginx;
pub mod origin;
pub mod otlp;
pub mod pebble;
pub mod peers;
pub mod php;
pub mod program;
pub mod python;
pub mod rig;
pub mod scratch;
pub mod secure;
pub mod served;
pub mod softhsm;
pub mod wait;

pub use certificates::Certificates;
pub use client::{Client, Ending};
pub use engine::Engine;
pub use http::Response;
pub use origin::{Origin, Peer};
pub use scratch::Scratch;
pub use wait::{eventually, holds};
