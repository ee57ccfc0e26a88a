//! Settings of an engine's membership, from the section `[cluster]` of its own file.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use propylon_config::{CapacitySettings, Cluster, FlowsSettings};

use crate::etcd;
use crate::rollout::RolloutPolicy;
use crate::runtime::is_name;

/// Time limit of a request to one member of etcd.
const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// File of Linux with the machine's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

#[derive(Clone, Debug)]
pub struct Settings {
    pub cluster: String,
    /// Name of this engine.
    pub engine: String,
    pub etcd: etcd::Settings,
    pub sealing_keys: Vec<PathBuf>,
    pub state: PathBuf,
    pub runtime: PathBuf,
    pub address: Option<IpAddr>,
    pub lease: Duration,
    pub rollout: RolloutPolicy,
    pub rotation: Duration,
    pub drain_limit: Duration,
    pub vips: Vec<IpAddr>,
    pub flows: Option<FlowsSettings>,
    pub capacity: Option<CapacitySettings>,
}

impl Settings {
    /// The error says what to do.
    pub fn of(section: &Cluster) -> Result<Settings, String> {
        let engine = match &section.engine {
            Some(name) => name.clone(),
            None => host_name(Path::new(HOST_NAME))?,
        };
        let endpoints = section.endpoints.iter().map(|endpoint| endpoint.url.clone());
        let etcd = etcd::Settings {
            ca: section.ca.as_ref().map(|file| file.path.clone()),
            identity: section.identity.as_ref().map(|file| file.path.clone()),
            user: section
                .user
                .as_ref()
                .map(|user| etcd::User { name: user.name.clone(), password_file: user.password_file.path.clone() }),
            // The lease must be kept though a member hangs and the next one is asked.
            request_timeout: (section.lease / 2).min(REQUEST_TIMEOUT_MAX),
            ..etcd::Settings::new(endpoints)
        };
        let canary = section.canary;
        Ok(Settings {
            cluster: section.name.clone(),
            engine,
            etcd,
            sealing_keys: section.sealing_keys.iter().map(|file| file.path.clone()).collect(),
            state: section.state.path.clone(),
            runtime: section.runtime.path.clone(),
            address: section.address,
            lease: section.lease,
            rollout: RolloutPolicy { canary_time: canary.time, step: canary.step_percent, is_judged: canary.judge },
            rotation: section.ticket_keys.rotate,
            drain_limit: section.drain_limit,
            vips: section.vips.clone(),
            flows: section.flows,
            capacity: section.capacity.clone(),
        })
    }
}

fn host_name(path: &Path) -> Result<String, String> {
    let read = std::fs::read_to_string(path).map_err(|error| format!("this machine's name cannot be read: {error}"));
    let name = read?.trim().to_owned();
    match is_name(&name) {
        true => Ok(name),
        false => Err("this machine's name is no engine's name; set cluster.engine".to_owned()),
    }
}
