//! Balancing as the proxy does it: the state that a backend's cores share, the affinity of a request, the servers that
//! it may go to, and the account of its time at one.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use propylon_config::{Backend, Balance};
use propylon_policy::balance::{Balancer, Loads, Maglev, Method, Tier, Tiers, key_of};
use propylon_policy::credits::Credits;
use propylon_policy::first_bytes::FirstBytes;
use propylon_policy::shared_budget::{self, SharedBudget};
use propylon_policy::suspect::Suspects;
use propylon_steps::conditions::Request as Facts;
use propylon_steps::split::{key_of_address, key_of_request};
use propylon_steps::sticky::{CookieTarget, Sticky};

use crate::endpoint::Endpoint;
use crate::request::Request;

/// Times of first bytes, from when they are counted.
pub type SharedFirstBytes = Arc<OnceLock<Arc<FirstBytes>>>;

/// State of a backend that outlasts changes of it.
pub struct Lasting {
    pub loads: Arc<Loads>,
    pub circuit: Arc<Credits>,
    pub retries: Arc<SharedBudget>,
    pub first_bytes: SharedFirstBytes,
}

/// Balancing state that all cores share for a backend, made once on the main thread.
pub struct SharedBalance {
    pub loads: Arc<Loads>,
    /// For requests at the backend, by whatever configuration: a successor has the same.
    pub circuit: Arc<Credits>,
    /// Repeats that requests of this backend may cause, by whatever configuration.
    pub retries: Arc<SharedBudget>,
    /// Times that servers took, once a route has second attempts made by a percentile; by whatever configuration.
    pub first_bytes: SharedFirstBytes,
    /// For consistent hashing.
    table: Option<Arc<Maglev>>,
    pub sticky: Option<Sticky>,
}

impl SharedBalance {
    /// `labels` are the servers' addresses as they are written: what a server is known by on every engine.
    pub fn new<'a>(
        backend: &Backend,
        labels: impl Iterator<Item = &'a str>,
        sticky: Option<Sticky>,
        lasting: Lasting,
    ) -> SharedBalance {
        let hashes = matches!(backend.balance, Balance::ConsistentHash(_));
        let table = hashes.then(|| {
            let identities: Vec<u64> = labels.map(|label| key_of(label.as_bytes())).collect();
            Arc::new(Maglev::new(&identities, &weights(backend)))
        });
        let Lasting { loads, circuit, retries, first_bytes } = lasting;
        SharedBalance { loads, circuit, retries, first_bytes, table, sticky }
    }

    /// One core's balancer.
    pub fn balancer(&self, backend: &Backend, services: usize) -> Balancer {
        let method = match (&backend.balance, &self.table) {
            (Balance::ConsistentHash(hash), Some(table)) => {
                Method::ConsistentHash { table: Arc::clone(table), bound_percent: hash.bound_percent.into() }
            }
            (Balance::RoundRobin | Balance::ConsistentHash(_), _) => Method::RoundRobin,
            (Balance::Random, _) => Method::Random,
            (Balance::LeastConnections, _) => Method::LeastConnections,
            (Balance::P2cEwma { decay }, _) => Method::PeakEwma { decay_millis: decay.as_millis() as u64 },
            (Balance::First, _) => Method::First { order: (0..backend.servers.len()).collect() },
        };
        let slow_start = backend.slow_start.map_or(0, |window| window.as_millis() as u64);
        Balancer::new(method, &weights(backend), services as u64, slow_start, self.loads.for_core(services))
    }
}

/// Budget of a backend's repeats.
pub fn retry_terms(backend: &Backend) -> shared_budget::Terms {
    let budget = &backend.retry_budget;
    shared_budget::Terms { share: budget.share.hundredths(), per_second: budget.min_per_second }
}

pub fn tiers(backend: &Backend) -> Tiers {
    // Servers that get no new requests are no part of what there should be.
    let backups: Vec<bool> = backend.servers.iter().map(|server| server.backup || server.drain.is_some()).collect();
    Tiers::new(&backups, backend.min_healthy)
}

fn weights(backend: &Backend) -> Vec<u16> {
    backend.servers.iter().map(|server| server.weight.get()).collect()
}

/// Affinity of a request to a server, as consistent hashing or a sticky cookie define it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Affinity {
    /// Key for consistent hashing; `None` where the request lacks the header, cookie or path that the key is made of.
    pub key: Option<u64>,
    /// Index of the server that the request's cookie names.
    pub server: Option<usize>,
}

impl Affinity {
    /// Affinity of a request, and the target of its cookie. Whether that server may be used is not looked at.
    pub fn of(peer: IpAddr, request: &Request, backend: &Backend, sticky: Option<&Sticky>) -> (Affinity, CookieTarget) {
        let target = sticky.map_or(CookieTarget::Absent, |sticky| sticky.target(&request.head.fields, &request.text));
        let key = match &backend.balance {
            Balance::ConsistentHash(hash) => key_of_request(
                &hash.key,
                &Facts {
                    head: &request.head,
                    text: &request.text,
                    source: peer,
                    connection: propylon_steps::conditions::Connection::default(),
                },
                request.client_path(),
            ),
            _ => None,
        };
        let server = if let CookieTarget::Server(server) = target { Some(server) } else { None };
        (Affinity { key, server }, target)
    }

    /// Affinity of a relayed connection, of which the client's address is all that is known.
    pub fn of_client(peer: IpAddr, backend: &Backend) -> Affinity {
        let hashes = matches!(backend.balance, Balance::ConsistentHash(_));
        Affinity { key: hashes.then(|| key_of_address(peer)), server: None }
    }
}

/// Which servers a request may go to, the most particular first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Servers in use that are up, and that the request has not failed at.
    Trusted,
    Untried,
    Any,
}

/// Health of a backend's servers.
#[derive(Clone, Copy)]
pub struct Standing<'a> {
    /// Servers that this core has seen fail itself: a reason to prefer others.
    pub suspects: &'a Suspects,
    /// Notices that the engine shares: a server that is not open gets nothing, one that is not fit only in a panic.
    pub endpoints: &'a [Arc<Endpoint>],
    /// Whether this configuration lets a server get new requests at all, by server.
    pub takes: &'a [bool],
    pub any_closed: bool,
}

impl Standing<'_> {
    fn is_open(&self, server: usize) -> bool {
        self.takes[server] && self.endpoints[server].is_open()
    }

    fn is_up(&self, server: usize, now: u64) -> bool {
        self.takes[server] && self.endpoints[server].is_fit() && self.suspects.eligible(server, now)
    }

    fn are_all_up(&self) -> bool {
        !self.any_closed && !self.suspects.any()
    }
}

/// The one answer to whether a request may go to a server.
pub struct Eligibility<'a> {
    standing: Standing<'a>,
    tiers: &'a Tiers,
    tier: Tier,
    tried: &'a [usize],
    now: u64,
}

impl<'a> Eligibility<'a> {
    /// `tried`: servers that the request has failed at.
    pub fn new(standing: Standing<'a>, tiers: &'a Tiers, tried: &'a [usize], now: u64) -> Eligibility<'a> {
        let tier = match standing.are_all_up() {
            true => tiers.with_all_up(),
            false => tiers.tier(|server| standing.is_up(server, now)),
        };
        Eligibility { standing, tiers, tier, tried, now }
    }

    /// Whatever the choice, a server that is not open does not fit. In a panic those that are down are open.
    pub fn fits(&self, server: usize, choice: Choice) -> bool {
        let fits = match choice {
            Choice::Trusted => {
                let up = |server| self.standing.is_up(server, self.now);
                !self.tried.contains(&server) && self.tiers.includes(self.tier, server, up)
            }
            Choice::Untried => !self.tried.contains(&server),
            Choice::Any => true,
        };
        fits && self.standing.is_open(server)
    }

    /// The servers that are in use.
    pub fn tier(&self) -> Tier {
        self.tier
    }
}

/// 501 and 505 say something about the request (RFC 9110 §15.6.2, §15.6.6); the other 5xx about the server.
pub fn is_failure(status: u16) -> bool {
    status >= 500 && !matches!(status, 501 | 505)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Availability;

    #[test]
    fn errors_of_the_server_are_failures_and_those_of_requests_are_none() {
        for status in [200, 304, 404, 429, 501, 505] {
            assert!(!is_failure(status), "{status}");
        }
        for status in [500, 502, 503, 504, 599] {
            assert!(is_failure(status), "{status}");
        }
    }

    #[test]
    fn an_address_has_the_same_key_by_ipv6_as_by_ipv4() {
        let [one, other] = ["10.0.0.1", "::ffff:10.0.0.1"].map(|text| key_of_address(text.parse().unwrap()));
        assert_eq!(one, other);
        assert_ne!(one, key_of_address("10.0.0.2".parse().unwrap()));
    }

    fn endpoints(servers: u16) -> Vec<Arc<Endpoint>> {
        (1..=servers)
            .map(|port| {
                Arc::new(Endpoint::new(vec![
                    propylon_sys::Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], port))).into(),
                ]))
            })
            .collect()
    }

    fn standing<'a>(suspects: &'a Suspects, endpoints: &'a [Arc<Endpoint>]) -> Standing<'a> {
        Standing {
            suspects,
            endpoints,
            takes: &[true; 8],
            any_closed: endpoints.iter().any(|endpoint| !endpoint.is_fit()),
        }
    }

    fn fitting(standing: Standing<'_>, tiers: &Tiers, tried: &[usize], now: u64, choice: Choice) -> Vec<usize> {
        let eligibility = Eligibility::new(standing, tiers, tried, now);
        (0..standing.endpoints.len()).filter(|server| eligibility.fits(*server, choice)).collect()
    }

    #[test]
    fn a_request_goes_to_backups_only_while_no_other_server_is_up() {
        let (tiers, endpoints) = (Tiers::new(&[false, true], 0), endpoints(2));
        let mut suspects = Suspects::new(2);
        let fits = |suspects: &Suspects, tried: &[usize], now| {
            fitting(standing(suspects, &endpoints), &tiers, tried, now, Choice::Trusted)
        };
        assert_eq!(fits(&suspects, &[], 0), [0]);
        suspects.failed(0, 0);
        assert_eq!(fits(&suspects, &[], 1), [1]);
        assert_eq!(fits(&suspects, &[0], 1), [1]);
        // One request goes out to see whether it is back; meanwhile the others stay where they are.
        assert_eq!(fits(&suspects, &[], 1_000), [0]);
        suspects.tried(0, 1_000);
        assert_eq!(fits(&suspects, &[], 1_000), [1]);
        suspects.succeeded(0);
        assert_eq!(fits(&suspects, &[], 1_001), [0]);
        // The verdict of the whole engine counts as well, and is no preference.
        endpoints[0].set_availability(Availability::Closed);
        assert_eq!(fits(&suspects, &[], 1_002), [1]);
        assert_eq!(fits(&suspects, &[1], 1_002), [] as [usize; 0]);
        endpoints[0].set_availability(Availability::Open);
        assert_eq!(fits(&suspects, &[], 1_003), [0]);
    }

    #[test]
    fn a_closed_server_fits_nobody_and_a_suspect_one_is_better_than_none() {
        let (tiers, endpoints, mut suspects) = (Tiers::new(&[false; 3], 0), endpoints(3), Suspects::new(3));
        endpoints[0].set_availability(Availability::Closed);
        suspects.failed(1, 0);
        suspects.failed(2, 0);
        for choice in [Choice::Trusted, Choice::Untried, Choice::Any] {
            assert_eq!(fitting(standing(&suspects, &endpoints), &tiers, &[], 1, choice), [1, 2], "{choice:?}");
        }
        endpoints.iter().for_each(|endpoint| endpoint.set_availability(Availability::Closed));
        for choice in [Choice::Trusted, Choice::Untried, Choice::Any] {
            assert!(fitting(standing(&suspects, &endpoints), &tiers, &[], 1, choice).is_empty(), "{choice:?}");
        }
    }

    #[test]
    fn closed_servers_count_for_the_panic_but_get_nothing_in_it_unless_they_are_ajar() {
        let (tiers, endpoints, mut suspects) = (Tiers::new(&[false; 4], 50), endpoints(4), Suspects::new(4));
        let fits = |suspects: &Suspects| fitting(standing(suspects, &endpoints), &tiers, &[], 1, Choice::Trusted);
        endpoints[0].set_availability(Availability::Closed);
        suspects.failed(1, 0);
        assert_eq!(fits(&suspects), [2, 3]);
        endpoints[2].set_availability(Availability::Closed);
        assert_eq!(fits(&suspects), [1, 3]);
        // Servers whose verdict is not believed any more do get requests.
        endpoints[0].set_availability(Availability::Panic);
        assert_eq!(fits(&suspects), [0, 1, 3]);
        endpoints[2].set_availability(Availability::Open);
        assert_eq!(fits(&suspects), [2, 3], "half of them are up, and one that is ajar is not");
    }
}
