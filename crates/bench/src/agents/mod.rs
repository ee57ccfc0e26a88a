//! Load from several machines at once: one coordinator, which is any load command with `--agents`, and agents.
//!
//! Coordinator and agents know each other by mutual TLS (`identity`). The coordinator sends each agent its share of the
//! job (`share`, `message`), learns how far its clock is away (`clock`), has all start at one moment, and adds up what
//! they counted. `channel` and `frames` carry the messages, `session` is an agent's side of it, `rules` what an agent
//! lets be done with it, `link` the coordinator's side of one agent, `fleet` of all.
//!
//! A command joins by flattening `AgentsArguments` into its flags and handing `Job::whole` of its `load::Plan` to
//! `AgentsArguments::measure`; those that go through `handshakes::measure` have joined already. A change of `Message`
//! or `Job` raises `message::VERSION`.

pub mod agent;
mod channel;
mod clock;
mod coordinator;
mod fleet;
mod frames;
mod identity;
mod link;
mod message;
mod rules;
mod session;
mod share;
mod shared;

pub use coordinator::AgentsArguments;
pub use fleet::{AgentReport, Distributed, FleetReport};
pub use message::Job;

#[cfg(test)]
mod tests;
