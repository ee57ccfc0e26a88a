//! Registration of what configurations name, while they come and go; done by the main thread.

use std::sync::Arc;

use propylon_config::{Backend, Config, Limit, Listener, Percentile, Signer, SignerServer};
use propylon_metrics::{Gauge, Store};

use super::routes::{RouteMetrics, RouteSeries, route_failing, route_metrics};
use super::series::{Registrar, within};
use super::signers::{KeyServerMetrics, SignerTotals};
use super::{
    BackendMetrics, ByReason, LimitMetrics, ListenerMetrics, ProbeMetrics, RelayMetrics, ServerMetrics,
    ServerTlsMetrics, SignerMetrics, Telemetry, backend_metrics, hedge_after, limit_metrics, listener_metrics,
    probe_metrics, proxy_refused, relay_metrics, server_metrics, sticky_metrics,
};

/// Metrics of what a configuration has, by index.
pub struct ConfiguredMetrics {
    pub listeners: Vec<ListenerHandles>,
    pub backends: Vec<Arc<BackendHandles>>,
    pub signers: Vec<SignerMetrics>,
    /// Metrics of the limits of all routes.
    pub limits: Vec<Arc<LimitMetrics>>,
    /// Metrics of routes, those of requests without a route last.
    pub routes: Vec<Arc<RouteMetrics>>,
}

/// Metrics of a listener, held by whoever counts in them.
#[derive(Clone)]
pub struct ListenerHandles {
    pub listener: Arc<ListenerMetrics>,
    /// Metrics of relayed connections; `None` if the listener does not relay.
    pub relay: Option<Arc<RelayMetrics>>,
    /// Refused PROXY headers by reason; `None` if the listener does not read the PROXY protocol.
    pub proxy_refused: Option<Arc<ByReason>>,
}

/// Metrics of a backend and of its servers, held by whoever counts in them.
pub struct BackendHandles {
    pub backend: Arc<BackendMetrics>,
    /// Metrics by server; one that is listed twice is counted once.
    pub servers: Vec<Arc<ServerMetrics>>,
    /// Metrics of TLS with servers; `None` if servers are reached in plaintext.
    pub tls: Option<Arc<ServerTlsMetrics>>,
    /// Outcomes of session cookies; `None` if the backend has no `sticky`.
    pub sticky: Option<Arc<ByReason>>,
    /// Probes by server; `None` if servers are not probed.
    pub probes: Vec<Option<Arc<ProbeMetrics>>>,
}

impl Telemetry {
    /// Shows the series of what this configuration has. To be done before it is published.
    pub fn reload(&self, store: &Store, config: &Config) {
        self.show_configured(&mut Registrar::Later(store), config);
    }

    pub(super) fn show_configured(&self, registrar: &mut Registrar<'_>, config: &Config) {
        self.show_listeners(registrar, config);
        self.show_backends(registrar, config);
        self.show_signers(registrar, config);
        self.limits.reload();
        for limit in config.limits() {
            self.limits.show(registrar, &limit.label, |r| limit_metrics(r, &limit.label));
        }
        self.routes.reload();
        self.routes_failing.reload();
        let series = RouteSeries::of(config);
        for labels in &series.all {
            let (route, host) = labels;
            self.routes.show(registrar, &RouteSeries::key(labels), |r| route_metrics(r, (route, host)));
        }
        series.watched().for_each(|route| self.routes_failing.show(registrar, route, |r| route_failing(r, route)));
    }

    fn show_listeners(&self, registrar: &mut Registrar<'_>, config: &Config) {
        self.listeners.reload();
        self.relays.reload();
        self.proxy_refusals.reload();
        for listener in &config.listeners {
            let name = listener.name.as_str();
            self.listeners.show(registrar, name, |r| listener_metrics(r, name));
            if listener.protocol.is_relay() {
                self.relays.show(registrar, name, |r| relay_metrics(r, name));
            }
            if listener.accept_proxy_protocol {
                self.proxy_refusals.show(registrar, name, |r| proxy_refused(r, name));
            }
        }
    }

    fn show_backends(&self, registrar: &mut Registrar<'_>, config: &Config) {
        self.backends.reload();
        self.server_tls.reload();
        self.sticky.reload();
        self.servers.reload();
        self.probes.reload();
        self.hedge_after.reload();
        for (id, percentile) in config.hedged_by_percentile() {
            let (backend, percentile) = (config.backends[id.0].name.as_str(), percentile.name());
            self.hedge_after.show(registrar, &within(backend, percentile), |r| hedge_after(r, backend, percentile));
        }
        for backend in &config.backends {
            let name = backend.name.as_str();
            self.backends.show(registrar, name, |r| backend_metrics(r, name));
            if backend.tls.is_some() {
                self.server_tls.show(registrar, name, |r| ServerTlsMetrics::new(r, name));
            }
            if backend.sticky.is_some() {
                self.sticky.show(registrar, name, |r| sticky_metrics(r, name));
            }
            for server in &backend.servers {
                let address = server.address.to_string();
                let label = within(name, &address);
                self.servers.show(registrar, &label, |r| server_metrics(r, name, &address));
                if backend.health.is_some() {
                    self.probes.show(registrar, &label, |r| probe_metrics(r, name, &address));
                }
            }
        }
    }

    fn show_signers(&self, registrar: &mut Registrar<'_>, config: &Config) {
        self.signers.reload();
        self.key_servers.reload();
        for signer in &config.signers {
            let name = signer.name.as_str();
            self.signers.show(registrar, name, |r| SignerTotals::new(r, name));
            for server in &signer.servers {
                let server = server.address.to_string();
                let label = within(name, &server);
                self.key_servers.show(registrar, &label, |r| KeyServerMetrics::new(r, name, &server));
            }
        }
    }

    /// The metrics of all that a configuration has, to be published with it. Panics if they are not registered.
    pub fn configured(&self, config: &Config) -> ConfiguredMetrics {
        fn all<T, M>(of: &[T], metrics: impl Fn(&T) -> Option<M>) -> Vec<M> {
            of.iter().map(|each| metrics(each).expect("what is published is registered")).collect()
        }
        ConfiguredMetrics {
            listeners: all(&config.listeners, |listener| self.listener(listener)),
            backends: all(&config.backends, |backend| self.backend(backend).map(Arc::new)),
            signers: all(&config.signers, |signer| self.signer(signer)),
            limits: all(&config.limits().collect::<Vec<&Limit>>(), |limit| self.limits.get(&limit.label)),
            routes: self.routes(config).expect("what is published is registered"),
        }
    }

    /// The metrics of routes by index, and last those of requests without a route; `None` if they are not shown.
    pub fn routes(&self, config: &Config) -> Option<Vec<Arc<RouteMetrics>>> {
        let series = RouteSeries::of(config);
        let metrics = series.all.iter().map(|labels| self.routes.get(&RouteSeries::key(labels)));
        let metrics: Vec<_> = metrics.collect::<Option<_>>()?;
        Some(series.places.iter().map(|place| Arc::clone(&metrics[*place])).collect())
    }

    /// Labels of routes by index, as their series have them, and last that of requests without a route.
    pub fn route_labels(config: &Config) -> Vec<String> {
        let series = RouteSeries::of(config);
        series.places.iter().map(|place| series.all[*place].0.clone()).collect()
    }

    /// The share of a route's requests that fail, by the route's label; `None` if it is not shown.
    pub fn route_failing(&self, route: &str) -> Option<Arc<Gauge>> {
        self.routes_failing.get(route)
    }

    /// The metrics of a limit; `None` if they are not shown.
    pub fn limit(&self, limit: &Limit) -> Option<Arc<LimitMetrics>> {
        self.limits.get(&limit.label)
    }

    /// The metrics of a listener; `None` if they are not shown.
    pub fn listener(&self, listener: &Listener) -> Option<ListenerHandles> {
        Some(ListenerHandles {
            listener: self.listeners.get(&listener.name)?,
            relay: self.relays.get(&listener.name).filter(|_| listener.protocol.is_relay()),
            proxy_refused: self.proxy_refusals.get(&listener.name).filter(|_| listener.accept_proxy_protocol),
        })
    }

    /// The metrics of a backend; `None` if they are not shown.
    pub fn backend(&self, backend: &Backend) -> Option<BackendHandles> {
        let labels = backend.servers.iter().map(|server| within(&backend.name, &server.address.to_string()));
        let labels: Vec<String> = labels.collect();
        let probes = |label: &String| self.probes.get(label).filter(|_| backend.health.is_some());
        Some(BackendHandles {
            backend: self.backends.get(&backend.name)?,
            servers: labels.iter().map(|label| self.servers.get(label)).collect::<Option<_>>()?,
            tls: self.server_tls.get(&backend.name).filter(|_| backend.tls.is_some()),
            sticky: self.sticky.get(&backend.name).filter(|_| backend.sticky.is_some()),
            probes: labels.iter().map(probes).collect(),
        })
    }

    /// The time after which servers of a backend are late by a percentile; `None` if it is not shown.
    pub fn hedge_after(&self, backend: &str, percentile: Percentile) -> Option<Arc<Gauge>> {
        self.hedge_after.get(&within(backend, percentile.name()))
    }

    /// The metrics of a signer; `None` if they are not shown.
    pub fn signer(&self, signer: &Signer) -> Option<SignerMetrics> {
        let server = |server: &SignerServer| self.key_servers.get(&within(&signer.name, &server.address.to_string()));
        let servers = signer.servers.iter().map(server).collect::<Option<_>>()?;
        Some(SignerMetrics { totals: self.signers.get(&signer.name)?, servers })
    }

    /// Withdraws series of what the configuration in effect does not have and nobody counts in any more.
    pub fn withdraw_unused(&self, store: &Store) {
        // All at once: each withdrawal is a look at every series there is.
        let mut groups = Vec::new();
        self.listeners.sweep(&mut groups);
        self.relays.sweep(&mut groups);
        self.proxy_refusals.sweep(&mut groups);
        self.backends.sweep(&mut groups);
        self.server_tls.sweep(&mut groups);
        self.sticky.sweep(&mut groups);
        self.hedge_after.sweep(&mut groups);
        self.servers.sweep(&mut groups);
        self.probes.sweep(&mut groups);
        self.signers.sweep(&mut groups);
        self.key_servers.sweep(&mut groups);
        self.limits.sweep(&mut groups);
        self.routes.sweep(&mut groups);
        self.routes_failing.sweep(&mut groups);
        store.withdraw(&groups);
    }
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
    fn series_go_on_for_what_stays_and_end_with_the_last_who_counts() {
        let first = config("http", &[("app", &[1, 2, 2]), ("old", &[9])]);
        let (telemetry, store) = Telemetry::new(&first, 1);
        let column = Store::column(&store, 0);
        let has = |part: &str| store.prometheus().contains(part);
        let app = telemetry.backend(&first.backends[0]).expect("it is registered");
        assert!(Arc::ptr_eq(&app.servers[1], &app.servers[2]), "a server that is listed twice is counted once");
        column.increment(app.servers[0].requests);
        let held = Arc::clone(&app.servers[1]);
        drop(app);
        let second = config("tcp", &[("app", &[3, 1]), ("new", &[7])]);
        telemetry.reload(&store, &second);
        telemetry.withdraw_unused(&store);
        assert!(has("propylon_server_requests_total{backend=\"app\",server=\"10.0.0.1:1\"} 1\n"));
        assert!(has("propylon_server_requests_total{backend=\"app\",server=\"10.0.0.1:3\"} 0\n"));
        assert!(has("{backend=\"new\",server=\"10.0.0.1:7\"}") && !has("backend=\"old\""));
        assert!(has("propylon_relays_total{listener=\"web\""), "a listener that is a relay by now");
        assert!(has("server=\"10.0.0.1:2\""), "somebody counts there");
        column.increment(held.requests);
        drop(held);
        telemetry.withdraw_unused(&store);
        assert!(!has("server=\"10.0.0.1:2\""));
        // Their slots go to others, who begin at 0.
        let third = config("http", &[("app", &[1, 3, 4]), ("other", &[9])]);
        telemetry.reload(&store, &third);
        telemetry.withdraw_unused(&store);
        assert!(has("propylon_server_requests_total{backend=\"app\",server=\"10.0.0.1:4\"} 0\n"));
        assert!(has("{backend=\"other\",server=\"10.0.0.1:9\"}"), "{}", store.prometheus());
        assert!(!has("propylon_relays_total{listener=\"web\"") && !has("backend=\"new\""));
    }
}
