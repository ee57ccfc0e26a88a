//! Registration of metric series by place, while configurations come and go; used by the main thread.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use propylon_config::{Backend, Config, FreePlaces, ServerAddress, Signer, SignerServer};
use propylon_metrics::{Group, Registry, Store};

use super::series::{Registrar, within};
use super::signers::{KeyServerMetrics, SignerTotals};
use super::{
    BackendMetrics, ServerMetrics, ServerTlsMetrics, SignerMetrics, Telemetry, backend_metrics, listener_metrics,
    probe_metrics, proxy_refused, relay_metrics, server_metrics, sticky_metrics,
};

/// Whose series are registered in which places: for the main thread, when configurations change.
#[derive(Default)]
pub struct Ledger {
    pub backends: Vec<(BackendEntries, Vec<ServerEntries>)>,
}

/// Series of a backend without its servers: those of every one, and those of one that is reached by TLS.
pub struct BackendEntries {
    pub all: Entry,
    pub tls: Option<Entry>,
    pub sticky: Option<Entry>,
}

impl BackendEntries {
    /// Registers what this backend has for the first time.
    pub fn register_more(&mut self, r: &mut Registry, backend: &Backend, metrics: &BackendMetrics) {
        if backend.tls.is_some() && self.tls.is_none() {
            let (tls, group) = r.group(|r| ServerTlsMetrics::new(r, &backend.name));
            self.tls = metrics.tls.set(tls).ok().map(|()| Entry::new(&backend.name, group));
        }
        if backend.sticky.is_some() && self.sticky.is_none() {
            let (sticky, group) = r.group(|r| sticky_metrics(r, &backend.name));
            self.sticky = metrics.sticky.set(sticky).ok().map(|()| Entry::new(&backend.name, group));
        }
    }

    /// Shows what this backend has, and only that.
    fn reload(&mut self, store: &Store, backend: &Backend, metrics: &BackendMetrics) {
        let name = &backend.name;
        self.all.show(store, name, |r| _ = backend_metrics(r, name));
        match &mut self.tls {
            Some(entry) if backend.tls.is_some() => entry.show(store, name, |r| _ = ServerTlsMetrics::new(r, name)),
            Some(entry) => entry.withdraw(store),
            None => {}
        }
        match &mut self.sticky {
            Some(entry) if backend.sticky.is_some() => entry.show(store, name, |r| _ = sticky_metrics(r, name)),
            Some(entry) => entry.withdraw(store),
            None => {}
        }
        store.register(|r| self.register_more(r, backend, metrics));
    }

    fn hide(&mut self, groups: &mut Vec<Group>) {
        self.all.hide(groups);
        self.tls.iter_mut().chain(&mut self.sticky).for_each(|entry| entry.hide(groups));
    }
}

/// Series of a server: those of every one, and those of one that is probed.
pub struct ServerEntries {
    /// The server whose label the series have: addresses are compared sooner than labels are written.
    address: ServerAddress,
    pub all: Entry,
    pub probes: Option<Entry>,
}

impl ServerEntries {
    /// Registers what this server has for the first time.
    fn register_more(&mut self, r: &mut Registry, backend: &Backend, metrics: &ServerMetrics) {
        // Series that are another's have been registered by it.
        if backend.health.is_some() && self.probes.is_none() && metrics.health.probes.get().is_none() {
            let (probes, group) = r.group(|r| probe_metrics(r, &backend.name, &self.all.label));
            self.probes = metrics.health.probes.set(probes).ok().map(|()| Entry::new(&self.all.label, group));
        }
    }

    /// Shows what this server has, and only that. Nothing is done for nearly all of them, which are as they were.
    fn reload(&mut self, store: &Store, backend: &Backend, address: &ServerAddress, metrics: &ServerMetrics) {
        let probes_shown = self.probes.as_ref().is_some_and(|probes| probes.shown);
        if self.all.shown && self.address == *address && probes_shown == backend.health.is_some() {
            return;
        }
        let (name, label) = (&backend.name, &*address.to_string());
        self.address = address.clone();
        self.all.show(store, label, |r| _ = server_metrics(r, name, label));
        match &mut self.probes {
            Some(entry) if backend.health.is_some() => entry.show(store, label, |r| _ = probe_metrics(r, name, label)),
            Some(entry) => entry.withdraw(store),
            None => {}
        }
        store.register(|r| self.register_more(r, backend, metrics));
    }

    fn hide(&mut self, groups: &mut Vec<Group>) {
        self.all.hide(groups);
        self.probes.iter_mut().for_each(|entry| entry.hide(groups));
    }
}

/// Series of a listener, of a backend without its servers, of a server or of a signer.
pub struct Entry {
    label: String,
    /// The registered series; `None` if they belong to another entry with the same label.
    group: Option<Group>,
    shown: bool,
}

impl Entry {
    pub fn new(label: &str, group: Group) -> Entry {
        Entry { label: label.to_owned(), group: Some(group), shown: true }
    }

    /// Has the series shown under this label, from 0 on if they were not.
    fn show(&mut self, store: &Store, label: &str, describe: impl FnOnce(&mut Registry)) {
        if self.shown && self.label == label {
            return;
        }
        if let Some(group) = &self.group {
            if self.shown {
                store.withdraw(std::slice::from_ref(group));
            }
            store.register_again(group, describe);
        }
        self.label = label.to_owned();
        self.shown = true;
    }

    fn withdraw(&mut self, store: &Store) {
        let mut groups = Vec::new();
        self.hide(&mut groups);
        store.withdraw(&groups);
    }

    /// Is shown no more once these groups are withdrawn.
    fn hide(&mut self, groups: &mut Vec<Group>) {
        if std::mem::take(&mut self.shown) {
            groups.extend(self.group.clone());
        }
    }
}

impl Telemetry {
    /// Registers what this configuration has and the earlier ones had not. To be done before it is published.
    pub fn reload(&self, store: &Store, config: &Config) {
        let ledger = &mut *self.ledger();
        self.reload_listeners(&mut Registrar::Later(store), config);
        for (place, backend) in config.live_backends() {
            let name = &backend.name;
            match ledger.backends.get_mut(place) {
                Some((entries, _)) => entries.reload(store, backend, &self.backends[place]),
                None => {
                    let (metrics, group) = store.register(|r| backend_metrics(r, name));
                    let mut entries = BackendEntries { all: Entry::new(name, group), tls: None, sticky: None };
                    store.register(|r| entries.register_more(r, backend, &metrics));
                    self.backends.push(metrics);
                    ledger.backends.push((entries, Vec::new()));
                }
            }
            self.reload_servers(store, place, backend, &mut ledger.backends[place].1);
        }
        self.reload_signers(&mut Registrar::Later(store), config);
    }

    /// Shows the series of this configuration's listeners.
    pub(super) fn reload_listeners(&self, registrar: &mut Registrar<'_>, config: &Config) {
        self.listeners.reload();
        self.relays.reload();
        self.proxy_refusals.reload();
        for listener in &config.listeners {
            let name = listener.name.as_str();
            self.listeners.show(registrar, name, 1, |r| listener_metrics(r, name));
            if listener.protocol.is_relay() {
                self.relays.show(registrar, name, 1, |r| relay_metrics(r, name));
            }
            if listener.accept_proxy_protocol {
                self.proxy_refusals.show(registrar, name, 1, |r| proxy_refused(r, name));
            }
        }
    }

    fn reload_servers(&self, store: &Store, place: usize, backend: &Backend, entries: &mut Vec<ServerEntries>) {
        let metrics = &self.backends[place];
        // Entries whose label changes are hidden first: showing a series twice would be a defect.
        let mut groups = Vec::new();
        for (entry, server) in entries.iter_mut().zip(&backend.servers) {
            if server.retired.is_none() && entry.address != server.address {
                entry.hide(&mut groups);
            }
        }
        store.withdraw(&groups);
        for (place, server) in backend.live_servers() {
            if let Some(entry) = entries.get_mut(place) {
                entry.reload(store, backend, &server.address, &metrics.servers[place]);
            }
        }
        let mut later = Vec::new();
        if entries.len() < backend.servers.len() {
            later = store.register(|r| register_servers(r, backend, metrics, entries)).0;
        }
        for server in later {
            metrics.servers.push(server);
        }
    }

    /// Shows the series of this configuration's signers and of their servers.
    pub(super) fn reload_signers(&self, registrar: &mut Registrar<'_>, config: &Config) {
        self.signers.reload();
        self.key_servers.reload();
        for signer in &config.signers {
            let name = signer.name.as_str();
            self.signers.show(registrar, name, 1, |r| SignerTotals::new(r, name));
            for server in &signer.servers {
                let server = server.address.to_string();
                let label = within(name, &server);
                self.key_servers.show(registrar, &label, 1, |r| KeyServerMetrics::new(r, name, &server));
            }
        }
    }

    /// The metrics of a signer; `None` if no configuration has registered it.
    pub fn signer(&self, signer: &Signer) -> Option<SignerMetrics> {
        let server = |server: &SignerServer| self.key_servers.get(&within(&signer.name, &server.address.to_string()));
        let servers = signer.servers.iter().map(server).collect::<Option<_>>()?;
        Some(SignerMetrics { totals: self.signers.get(&signer.name)?, servers })
    }

    /// Series of places that nobody uses any more are no longer shown.
    pub fn withdraw(&self, store: &Store, free: &FreePlaces) {
        let ledger = &mut *self.ledger();
        // All at once: each is a look at every series there is.
        let mut groups = Vec::new();
        let free_of = |free: &[bool], place: usize| free.get(place).is_some_and(|free| *free);
        self.listeners.sweep(&mut groups);
        self.relays.sweep(&mut groups);
        self.proxy_refusals.sweep(&mut groups);
        self.signers.sweep(&mut groups);
        self.key_servers.sweep(&mut groups);
        for (place, (entry, servers)) in ledger.backends.iter_mut().enumerate() {
            if free_of(&free.backends, place) {
                entry.hide(&mut groups);
            }
            let free = free.servers.get(place).map_or(&[][..], Vec::as_slice);
            for (place, entry) in servers.iter_mut().enumerate() {
                if free_of(free, place) {
                    entry.hide(&mut groups);
                }
            }
        }
        store.withdraw(&groups);
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers servers that are not registered yet. A server that is listed twice is counted once.
pub fn register_servers(
    r: &mut Registry,
    backend: &Backend,
    metrics: &BackendMetrics,
    entries: &mut Vec<ServerEntries>,
) -> Vec<ServerMetrics> {
    let (known, mut later) = (entries.len(), Vec::new());
    let mut shown: HashMap<String, usize> = HashMap::new();
    for (place, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.all.shown) {
        shown.entry(entry.all.label.clone()).or_insert(place);
    }
    for server in &backend.servers[known..] {
        let label = server.address.to_string();
        match shown.get(&label).copied() {
            Some(place) if place < known => later.push(metrics.servers[place].clone()),
            Some(place) => later.push(later[place - known].clone()),
            None => {
                let (metrics, group) = r.group(|r| server_metrics(r, &backend.name, &label));
                let address = server.address.clone();
                let mut entry = ServerEntries { address, all: Entry::new(&label, group), probes: None };
                entry.register_more(r, backend, &metrics);
                shown.insert(label, entries.len());
                entries.push(entry);
                later.push(metrics);
                continue;
            }
        }
        let all = Entry { label, group: None, shown: true };
        entries.push(ServerEntries { address: server.address.clone(), all, probes: None });
    }
    later
}

#[cfg(test)]
mod tests {
    use propylon_config::{Source, parse};

    use super::*;

    fn config(protocol: &str, backends: &[(&str, &[u16])]) -> Config {
        let mut text = format!(
            "[listener.web]\nbind = \"127.0.0.1:80\"\nprotocol = \"{protocol}\"\n[listener.other]\n\
             bind = \"127.0.0.1:81\"\n[[route]]\nlistener = \"web\"\nbackend = \"app\"\n"
        );
        for (name, ports) in backends {
            let servers: Vec<String> = ports.iter().map(|port| format!("\"10.0.0.1:{port}\"")).collect();
            text += &format!("[backend.{name}]\nservers = [{}]\n", servers.join(", "));
            text += &format!("[[route]]\nlistener = \"other\"\nhost = \"{name}\"\nbackend = \"{name}\"\n");
        }
        let source = Source { name: "a.toml".into(), base: "".into(), text };
        parse(&source).unwrap_or_else(|problems| panic!("{}", propylon_config::render(&problems, &source.text))).0
    }

    #[test]
    fn series_follow_the_configuration_and_go_on_counting_for_what_stays() {
        let first = config("http", &[("app", &[1, 2]), ("old", &[9])]);
        let (telemetry, store) = Telemetry::new(&first, 1);
        let column = Store::column(&store, 0);
        let has = |part: &str| store.prometheus().contains(part);
        column.increment(telemetry.backends[0].servers[0].requests);
        let second = config("tcp", &[("app", &[3, 1]), ("new", &[7])]);
        let second = second.succeeding(&first, 2, &FreePlaces::default());
        telemetry.reload(&store, &second);
        assert!(has("propylon_server_requests_total{backend=\"app\",server=\"10.0.0.1:1\"} 1\n"));
        assert!(has("propylon_server_requests_total{backend=\"app\",server=\"10.0.0.1:3\"} 0\n"));
        assert!(has("{backend=\"new\",server=\"10.0.0.1:7\"}") && has("backend=\"old\""));
        assert!(has("propylon_relays_total{listener=\"web\""), "a listener that is a relay by now");
        let free = FreePlaces {
            backends: vec![false, true, false],
            servers: vec![vec![false, true, false], vec![true], vec![false]],
        };
        telemetry.withdraw(&store, &free);
        assert!(!has("backend=\"old\"") && !has("server=\"10.0.0.1:2\""));
        // Their places go to others, who begin at 0, and one comes back.
        column.increment(telemetry.backends[0].servers[1].requests);
        let third = config("http", &[("app", &[1, 3, 4]), ("other", &[9])]).succeeding(&second, 3, &free);
        telemetry.reload(&store, &third);
        assert!(has("propylon_server_requests_total{backend=\"app\",server=\"10.0.0.1:4\"} 0\n"));
        assert!(has("{backend=\"other\",server=\"10.0.0.1:9\"}"), "{}", store.prometheus());
        telemetry.withdraw(&store, &FreePlaces::default());
        assert!(!has("propylon_relays_total{listener=\"web\""));
        assert_eq!(telemetry.backends.len(), 3);
    }
}
