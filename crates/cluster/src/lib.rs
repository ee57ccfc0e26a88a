//! Engines that share a configuration, certificates and keys by etcd.
#![forbid(unsafe_code)]

mod acme_files;
mod agent;
mod capacity;
mod chance;
pub mod disk;
mod ends;
pub mod etcd;
mod flow_table;
mod judge;
mod keys;
mod known_table;
mod last_will;
mod lead;
mod mending;
mod mirror;
mod percent;
mod records;
mod requests;
mod reseal;
mod rollout;
mod runtime;
pub mod seal;
mod secrets;
mod session;
mod settings;
mod status;
mod tables;
mod ticket_keys;
mod webhook;

pub use agent::{Opened, open, start};
pub use ends::{Ask, AskKind, End, Failure, Figures, Handle, Request, RequestKind, Secret, Standing};
pub use last_will::give_up_lease;
pub use percent::{WEIGHT_PERCENT_MAX, WeightPercent};
pub use records::{ConfigRecord, LoadRecord};
pub use requests::TEXT_BYTES_MAX;
pub use rollout::RolloutPolicy;
pub use runtime::{CERTIFICATES, FLOWS_STATUS, FLOWS_TABLE, STICKY_KEY, TICKET_KEYS};
pub use settings::Settings;
pub use tables::{FlowsStatus, NoStatus, flows_status};
