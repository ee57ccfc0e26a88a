//! Packets of a shared address go to the engine that has their connection.
//!
//! An eBPF program at tc ingress decides for each packet (`bpf/flows.bpf.c`), the process `propylon-flows` gives it
//! the flow table. Without the feature `loader` only [`table`] and [`status`] are there: the files by which an engine
//! and that process talk.
#![forbid(unsafe_code)]

pub mod counters;
pub mod status;
pub mod table;

#[cfg(feature = "loader")]
mod check;
#[cfg(feature = "loader")]
pub mod command;
#[cfg(feature = "loader")]
pub mod layout;
#[cfg(feature = "loader")]
pub mod loader;
#[cfg(feature = "loader")]
mod measure;
#[cfg(feature = "loader")]
mod netlink;
#[cfg(feature = "loader")]
pub mod packets;
#[cfg(feature = "loader")]
mod rights;
#[cfg(feature = "loader")]
mod run;
#[cfg(feature = "loader")]
mod sockets;
