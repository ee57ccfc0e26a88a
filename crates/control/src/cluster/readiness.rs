//! Whether this engine can serve: what other engines of its cluster, and routers, are told.

use propylon_proxy::snapshot::Snapshot;

use crate::health::Health;

/// A backend's servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendServers {
    pub name: String,
    /// Servers that get requests.
    pub up: usize,
    pub total: usize,
}

/// Servers of each backend.
pub fn backends(snapshot: &Snapshot, health: &Health) -> Vec<BackendServers> {
    let backends = snapshot.config.backends.iter().zip(&snapshot.servers);
    let servers = backends.map(|(backend, servers)| BackendServers {
        name: backend.name.clone(),
        up: servers.iter().filter(|server| health.state(&server.endpoint).admitted).count(),
        total: servers.len(),
    });
    servers.collect()
}

/// Profiles that have no certificate, and so no client.
pub fn without_certificates(snapshot: &Snapshot) -> Vec<String> {
    let profiles = snapshot.config.tls.iter().zip(&snapshot.profiles);
    profiles.filter(|(_, profile)| profile.count() == 0).map(|(tls, _)| tls.name.clone()).collect()
}

/// Reasons why this engine should get no clients, in words; none if it can serve.
pub fn problems(snapshot: &Snapshot, health: &Health) -> Vec<String> {
    let mut problems = Vec::new();
    if snapshot.sockets.is_empty() {
        problems.push("no listener is open".to_owned());
    }
    problems.extend(without_certificates(snapshot).iter().map(|name| format!("[tls.{name}] has no certificate")));
    let backends = backends(snapshot, health);
    if !backends.is_empty() && backends.iter().all(|backend| backend.up == 0) {
        problems.push("no backend has a server that is up".to_owned());
    }
    problems
}
