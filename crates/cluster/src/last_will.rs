//! The lease of an engine that has died, given up at once by its guardian: others need not wait for its end.

use std::fs;
use std::path::Path;
use std::time::Duration;

use propylon_config::Cluster;
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::etcd::{Client, Lease};
use crate::keys::Keys;
use crate::settings::Settings;

/// The lease ends by itself after that anyway.
const LIMIT: Duration = Duration::from_secs(5);
const FILE: &str = "lease";
/// Name of the file in the state folder that tells whose connections this machine's system has.
pub(crate) const LINEAGE: &str = "lineage";

/// Notes the lease for the guardian.
pub(crate) fn note(state: &Path, lease: Option<Lease>) {
    let path = state.join(FILE);
    let noted = match lease {
        Some(lease) => fs::write(&path, lease.to_string()),
        None => fs::remove_file(&path).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        }),
    };
    if let Err(error) = noted {
        log::warn!("cluster: {} cannot be written, so a death is found when the lease ends: {error}", path.display());
    }
}

/// Says that this engine's process has ended, and gives up the lease that is noted.
pub fn give_up_lease(section: &Cluster) {
    let Ok(settings) = Settings::of(section) else { return };
    let noted = fs::read_to_string(settings.state.join(FILE));
    let Some(lease) = noted.ok().and_then(|text| Lease::parse(text.trim())) else { return };
    let Ok(client) = Client::new(settings.etcd) else { return };
    if let Ok(runtime) = Builder::new_current_thread().enable_all().build() {
        let lineage = fs::read(settings.state.join(LINEAGE)).unwrap_or_default();
        let death = Keys::of(&settings.cluster).death(&settings.engine);
        let last = async {
            // Without this word others believe for a while that it may have connections.
            let _ = client.put(&death, &lineage, None).await;
            let _ = client.revoke(lease).await;
        };
        let _ = runtime.block_on(async { timeout(LIMIT, last).await });
    }
}
