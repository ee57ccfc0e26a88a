//! Keys that are elsewhere: one core's connections to the key servers of one `[signer.NAME]`, and the handshakes that
//! wait for their signatures.
//!
//! Keys in the process beside this one are signed with in the same way: one server, one connection to it for each core,
//! without TLS.
//!
//! `signer.rs` has the jobs of a core and its clock, `dispatch.rs` decides (who is asked, how long, who next) without
//! clock and sockets, `channel.rs` speaks the protocol of one connection, `link.rs` moves its bytes (`key_process.rs`
//! those of the key process), `report.rs` logs it. Cores share nothing.

mod addresses;
mod channel;
mod dispatch;
mod key_process;
mod link;
mod profile;
mod report;
mod signer;

use std::os::fd::OwnedFd;
use std::rc::Rc;

use propylon_metrics::{Registry, Store};
use propylon_observe::telemetry::SignerMetrics;
use propylon_tls::{Parking, ParkingLimits};
use tokio::task::spawn_local;

pub use addresses::{Found, KeyServerAddresses, start as start_resolver};
pub use profile::SignerProfile;
use signer::KeyLocation;
pub use signer::{KeyProcessClient, Signer, Work};

/// Limit on handshakes of a thread that is no core which wait for signatures at once: more than the thread makes.
const THREAD_PARKED_MAX: usize = 256;

/// Starts a signer's tasks, on the core's own thread.
pub fn start(signer: &Rc<Signer>) {
    match &signer.location {
        KeyLocation::Servers(profile, _) => {
            for at in 0..usize::from(profile.config.connections) * profile.labels.len() {
                spawn_local(link::keep(Rc::clone(signer), at));
            }
        }
        KeyLocation::KeyProcess(socket) => {
            if let Some(socket) = socket.take() {
                spawn_local(key_process::keep(Rc::clone(signer), socket));
            }
        }
    }
    spawn_local(Rc::clone(signer).keep_time());
}

/// Makes the client of a thread that is no core, and starts its tasks there. The client has no series of its own:
/// its few handshakes are counted by the code that makes them.
pub fn key_process_client(socket: OwnedFd) -> Rc<KeyProcessClient> {
    let mut registry = Registry::new();
    let metrics = SignerMetrics::of_key_process(&mut registry);
    // Column 1, since the report of column 0 writes to the log.
    let column = Store::column(&registry.build(2), 1);
    let signer = Signer::of_key_process(socket, column, &metrics, THREAD_PARKED_MAX, propylon_crypto::seed());
    start(&signer);
    KeyProcessClient::new(signer, Parking::new(ParkingLimits { local: 0, remote: THREAD_PARKED_MAX }))
}
