//! `[cluster]`

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::capacity::capacity;
use super::tls::ROTATE;
use super::url::{UrlKey, has_port, warn_of_plaintext, web_address};
use super::values::{DAY, HOUR, close, file, seconds};
use crate::describe::Form;
use crate::model::{Canary, Cluster, EtcdUser, FlowsSettings, SharedTicketKeys, StateFolder, Trust, WebAddress};
use crate::report::Report;
use crate::tree::Node;
use crate::walk::{Found, Section, string};
use crate::wording::shown;

const STATE: &str = "/var/lib/propylon/cluster";
const RUNTIME: &str = "/run/propylon/cluster";
const NAME_BYTES_MAX: usize = 64;
const USER_BYTES_MAX: usize = 256;
const ENDPOINTS_MAX: usize = 16;
const SEALING_KEYS_MAX: usize = 8;
const VIPS_MAX: usize = 64;
const LEASE: RangeInclusive<Duration> = seconds(1)..=seconds(60);
const PORTS: RangeInclusive<i128> = 1..=65_535;
const BUCKETS: RangeInclusive<i128> = 256..=65_536;
const PERCENT: RangeInclusive<i128> = 1..=100;
const NAME_FIX: &str = "name the cluster, such as name = \"edge\"";
const ENDPOINTS: UrlKey = UrlKey {
    key: "endpoints",
    fix: "write the addresses of etcd, such as endpoints = [\"https://10.0.0.5:2379\"]",
    elsewhere: "etcd's account belongs into `user` and `password_file`",
};
const SEALING_KEYS_FIX: &str = "name the file with the key that all engines have, such as sealing_keys = \
     [\"/etc/propylon/sealing.key\"]; `openssl rand -hex 32` makes one";

pub(crate) fn cluster(section: Option<Section<'_, '_>>, base: &Path) -> Option<Cluster> {
    let mut section = section?;
    let at = section.report.at(section.span);
    section.require("name", NAME_FIX);
    let (of_cluster, engine) = (name(&mut section, "name"), name(&mut section, "engine"));
    let endpoints = endpoints(&mut section);
    let ca = of_https(&mut section, "ca", base, &endpoints);
    let identity = of_https(&mut section, "identity", base, &endpoints);
    let cluster = Cluster {
        name: of_cluster.unwrap_or_default(),
        engine,
        ca,
        identity,
        endpoints,
        user: user(&mut section, base),
        sealing_keys: sealing_keys(&mut section, base),
        state: folder(&mut section, "state", STATE, base),
        runtime: folder(&mut section, "runtime", RUNTIME, base),
        address: section.string("address").and_then(|found| ip(section.report, "address", found)),
        lease: section.duration_or("lease", LEASE, seconds(5)),
        canary: canary(section.table("canary")),
        ticket_keys: ticket_keys(section.table("ticket_keys")),
        drain_limit: section.duration_or("drain_limit", Duration::ZERO..=DAY, seconds(600)),
        vips: vips(&mut section),
        flows: flows(section.table("flows")),
        capacity: capacity(section.table("capacity")),
        at,
    };
    beside_each_other(&mut section, &cluster);
    section.close();
    Some(cluster)
}

/// Names are seen in logs, metrics and etcd's keys.
fn name(section: &mut Section<'_, '_>, key: &'static str) -> Option<String> {
    let report = section.report;
    let found = section.string(key)?;
    let name = found.value;
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !is_plain {
        let fix = format!("use 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`");
        report.error(found.span, format!("`{key}` cannot be \"{}\"", shown(name)), fix);
        return None;
    }
    Some(name.to_string())
}

fn endpoints(section: &mut Section<'_, '_>) -> Vec<WebAddress> {
    let report = section.report;
    section.require("endpoints", ENDPOINTS.fix);
    let Some(list) = section.list("endpoints", &[Form::String]) else { return Vec::new() };
    let endpoints = items(report, "endpoints", list, ENDPOINTS_MAX, ENDPOINTS.fix);
    let mut seen = HashSet::new();
    let endpoint = |node: &Node<'_>| {
        let found = string(report, "endpoints", node)?;
        let endpoint = web_address(report, ENDPOINTS, found)?;
        let fail = |what: &str, fix: String| {
            report.error(found.span, format!("`endpoints`: \"{}\" {what}", shown(&endpoint.url)), fix);
            None
        };
        if endpoint.path != "/" {
            return fail("has a path", "remove it".into());
        }
        if !has_port(&endpoint.authority) {
            return fail("has no port", "add it, as in \"https://10.0.0.5:2379\"".into());
        }
        if !seen.insert(endpoint.authority.to_ascii_lowercase()) {
            return fail("is named twice", "remove one of the two".into());
        }
        warn_of_plaintext(report, "endpoints", &endpoint);
        Some(endpoint)
    };
    endpoints.iter().filter_map(endpoint).collect()
}

/// Items of a list that may not be empty, nor longer than this.
fn items<'r, 't>(report: &Report<'_>, key: &str, list: Found<&'r [Node<'t>]>, max: usize, fix: &str) -> &'r [Node<'t>] {
    if list.value.is_empty() {
        report.error(list.span, format!("`{key}` is empty"), fix);
    }
    if list.value.len() > max {
        report.error(list.span, format!("`{key}` has too many entries"), format!("use at most {max}"));
        return &[];
    }
    list.value
}

/// A file that is of use only with TLS.
fn of_https(section: &mut Section<'_, '_>, key: &'static str, base: &Path, endpoints: &[WebAddress]) -> Option<Trust> {
    let report = section.report;
    let entry = section.forms(key, &[Form::String])?;
    if !endpoints.is_empty() && endpoints.iter().all(|endpoint| !endpoint.is_https) {
        let what = format!("`{key}` has no effect with http");
        report.error(entry.key_span, what, "write https in `endpoints`, or remove it");
    }
    trust(report, key, string(report, key, &entry.node)?, base)
}

fn trust(report: &Report<'_>, key: &str, found: Found<&str>, base: &Path) -> Option<Trust> {
    let path = file(report, key, found, base)?;
    Some(Trust { path, at: report.at(found.span) })
}

fn user(section: &mut Section<'_, '_>, base: &Path) -> Option<EtcdUser> {
    let report = section.report;
    let (user, password) = (section.string("user"), section.string("password_file"));
    let password_file = password.and_then(|found| trust(report, "password_file", found, base));
    match (section.node("user"), section.node("password_file")) {
        (Some(_), None) => {
            section.missing_here("password_file", "add the file with the user's password, or remove `user`")
        }
        (None, Some(_)) => section.missing_here("user", "add the name of etcd's user, or remove `password_file`"),
        _ => {}
    }
    let found = user?;
    let fits = !found.value.is_empty() && found.value.len() <= USER_BYTES_MAX;
    if !fits || found.value.chars().any(char::is_control) {
        let fix = format!("write 1 to {USER_BYTES_MAX} bytes without control characters");
        report.error(found.span, format!("`user` cannot be \"{}\"", shown(found.value)), fix);
        return None;
    }
    Some(EtcdUser { name: found.value.to_string(), password_file: password_file? })
}

fn sealing_keys(section: &mut Section<'_, '_>, base: &Path) -> Vec<Trust> {
    let report = section.report;
    section.require("sealing_keys", SEALING_KEYS_FIX);
    let Some(list) = section.list("sealing_keys", &[Form::String]) else { return Vec::new() };
    let keys = items(report, "sealing_keys", list, SEALING_KEYS_MAX, SEALING_KEYS_FIX);
    let mut seen = HashSet::new();
    let key = |node: &Node<'_>| {
        let key = trust(report, "sealing_keys", string(report, "sealing_keys", node)?, base)?;
        if !seen.insert(key.path.clone()) {
            let what = format!("`sealing_keys`: {} is named twice", shown(&key.path.to_string_lossy()));
            report.error_at(key.at, what, "remove one of the two");
        }
        Some(key)
    };
    keys.iter().filter_map(key).collect()
}

fn folder(section: &mut Section<'_, '_>, key: &'static str, default: &'static str, base: &Path) -> StateFolder {
    let report = section.report;
    section.default_is(key, || default.into());
    let found = section.string(key).and_then(|found| {
        let path = file(report, key, found, base)?;
        Some(StateFolder { path, at: report.at(found.span) })
    });
    found.unwrap_or_else(|| StateFolder { path: default.into(), at: report.at(section.span) })
}

/// An address of a machine, in the form that packets to it have.
fn ip(report: &Report<'_>, key: &str, found: Found<&str>) -> Option<IpAddr> {
    let fail = |what: String, fix: &str| {
        report.error(found.span, what, fix);
        None
    };
    let text = shown(found.value);
    let Ok(address) = found.value.parse::<IpAddr>() else {
        let what = format!("`{key}`: \"{text}\" is not an address");
        return fail(what, "write one without a port, such as \"192.0.2.7\" or \"2001:db8::7\"");
    };
    if address != address.to_canonical() {
        let fix = format!("write it as IPv4, as in \"{}\"", address.to_canonical());
        return fail(format!("`{key}`: \"{text}\" is an IPv4 address"), &fix);
    }
    if address.is_unspecified() || address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return fail(format!("`{key}`: \"{text}\" is no address of a machine"), "write one of its own");
    }
    Some(address)
}

fn vips(section: &mut Section<'_, '_>) -> Vec<IpAddr> {
    let report = section.report;
    section.default_is("vips", || serde_json::json!([]));
    let Some(list) = section.list("vips", &[Form::String]) else { return Vec::new() };
    if list.value.len() > VIPS_MAX {
        report.error(list.span, "`vips` has too many entries", format!("use at most {VIPS_MAX}"));
        return Vec::new();
    }
    let mut seen = HashSet::new();
    let vip = |node: &Node<'_>| {
        let found = string(report, "vips", node)?;
        let address = ip(report, "vips", found)?;
        if !seen.insert(address) {
            report.error(found.span, format!("`vips`: {address} is named twice"), "remove one of the two");
        }
        Some(address)
    };
    list.value.iter().filter_map(vip).collect()
}

fn canary(mut section: Option<Section<'_, '_>>) -> Canary {
    let mut canary = Canary::default();
    let Some(table) = &mut section else { return canary };
    canary.time = table.duration_or("time", Duration::ZERO..=HOUR, canary.time);
    canary.step_percent = table.integer_or("step", PERCENT, canary.step_percent);
    canary.judge = table.boolean_or("judge", canary.judge);
    close(section);
    canary
}

fn ticket_keys(mut section: Option<Section<'_, '_>>) -> SharedTicketKeys {
    let mut keys = SharedTicketKeys::default();
    let Some(table) = &mut section else { return keys };
    keys.rotate = table.duration_or("rotate", ROTATE, keys.rotate);
    close(section);
    keys
}

fn flows(section: Option<Section<'_, '_>>) -> Option<FlowsSettings> {
    let mut section = section?;
    let mut flows = FlowsSettings::default();
    flows.port = section.integer_or("port", PORTS, flows.port);
    section.default_is("buckets", || flows.buckets.into());
    if let Some(found) = section.integer::<u32>("buckets", BUCKETS) {
        flows.buckets = found.value;
        if !found.value.is_power_of_two() {
            let (below, above) = (found.value.next_power_of_two() / 2, found.value.next_power_of_two());
            let what = format!("`buckets`: {} is no power of two", found.value);
            section.report.error(found.span, what, format!("write {below} or {above}"));
        }
    }
    section.close();
    Some(flows)
}

/// Keys that are right by themselves, but not beside each other.
fn beside_each_other(section: &mut Section<'_, '_>, cluster: &Cluster) {
    let report = section.report;
    let (state, runtime) = (&cluster.state, &cluster.runtime);
    if state.path.starts_with(&runtime.path) || runtime.path.starts_with(&state.path) {
        let what = "`state` and `runtime` are one folder, or one lies in the other: keys that are to be in memory alone \
                    would be on disk";
        let at = if section.node("runtime").is_some() { runtime.at } else { state.at };
        report.error_at(at, what, format!("choose two folders, such as \"{STATE}\" and \"{RUNTIME}\""));
    }
    if let Some(entry) = section.entry("address")
        && cluster.address.is_some_and(|address| cluster.vips.contains(&address))
    {
        let what = "`address` is one of `vips`, which every engine has";
        report.error(entry.node.span, what, "write an address that this engine alone has");
    }
    if let Some(entry) = section.entry("flows")
        && section.node("vips").is_none()
        && report.is_whole()
    {
        let what = "`flows` has no use without `vips`: flows are those to the addresses that engines share";
        report.error(entry.key_span, what, "add them, such as vips = [\"192.0.2.7\"], or remove `flows`");
    }
}
