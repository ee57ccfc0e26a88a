//! One configuration after another: what stays keeps its place.
//!
//! Inside, things are known by their places in the lists of [`Config`], and connections and requests outlive the
//! configuration that they began with. So a place means the same for as long as anybody may speak of it: what is in both
//! configurations is found by its name and keeps its place, what is gone holds it (marked as retired) until nobody uses
//! it any more, and only then is it given to something new.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::model::{Action, Backend, BackendId, Config, Server, Signer, SignerId, SignerServer};

/// Retired places that nobody uses any more. What lies beyond a list's end is not free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreePlaces {
    /// Whether each backend is the same, by place.
    pub backends: Vec<bool>,
    /// Whether each server is the same, by place of the backend, then of the server.
    pub servers: Vec<Vec<bool>>,
}

impl Config {
    /// The same configuration with its lists ordered so that what `earlier` has as well stands where it stands there.
    /// Items that only `earlier` has are kept, retired in `generation`.
    #[must_use]
    pub fn succeeding(self, earlier: &Config, generation: u64, free: &FreePlaces) -> Config {
        let Config { process, admin, log, keys, tracing, listeners, mut tls, mut signers, acmes, backends, mut routes } =
            self;
        let is_free = |places: &[bool], place: usize| places.get(place).is_some_and(|free| *free);
        let (mut backends, backend_places) =
            arrange(backends, &earlier.backends, generation, |place| is_free(&free.backends, place));
        for (place, backend) in backends.iter_mut().enumerate() {
            let Some(before) = earlier.backends.get(place) else { continue };
            let mine = free.servers.get(place).map_or(&[][..], Vec::as_slice);
            let servers = std::mem::take(&mut backend.servers);
            let servers = if backend.retired.is_some() { Vec::new() } else { servers };
            (backend.servers, backend.order) =
                arrange(servers, &before.servers, generation, |place| is_free(mine, place));
        }
        let numbers = renumber(&mut signers, &earlier.signers);
        for profile in &mut tls {
            profile.signer = profile.signer.map(|id| numbers[id.0]);
        }
        for route in &mut routes {
            if let Action::Backend(id) = &mut route.action {
                *id = BackendId(backend_places[id.0]);
            }
        }
        Config { process, admin, log, keys, tracing, listeners, tls, signers, acmes, backends, routes }
    }

    /// The backends that are not retired, with their places.
    pub fn live_backends(&self) -> impl Iterator<Item = (usize, &Backend)> {
        self.backends.iter().enumerate().filter(|(_, backend)| backend.retired.is_none())
    }

    /// The signer with this number; `None` if it is another configuration's.
    pub fn signer(&self, id: SignerId) -> Option<&Signer> {
        self.signers.iter().find(|signer| signer.id == id)
    }
}

impl Backend {
    /// The servers that are not retired, with their places.
    pub fn live_servers(&self) -> impl Iterator<Item = (usize, &Server)> {
        self.servers.iter().enumerate().filter(|(_, server)| server.retired.is_none())
    }

    /// The same in the order in which they are written, which changes of the configuration may have made another.
    pub fn servers_as_written(&self) -> impl Iterator<Item = (usize, &Server)> {
        let standing = if self.order.is_empty() { self.servers.len() } else { 0 };
        let places = self.order.iter().copied().chain(0..standing);
        places.map(|place| (place, &self.servers[place])).filter(|(_, server)| server.retired.is_none())
    }
}

/// Items that have a place.
trait Placed: Clone {
    /// Whether the later one goes on where the earlier one was.
    fn continues(&self, earlier: &Self) -> bool;
    /// The same for whoever goes on where an earlier one was, and another for nearly everybody else.
    fn digest(&self) -> u64;
    fn retired(&mut self) -> &mut Option<u64>;
    /// Gives up what it refers to by places that will mean something else.
    fn retire(&mut self, generation: u64) {
        self.retired().get_or_insert(generation);
    }
}

fn digest_of(identity: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(identity)
}

impl Placed for Backend {
    fn digest(&self) -> u64 {
        digest_of(&self.name)
    }

    fn continues(&self, earlier: &Backend) -> bool {
        self.name == earlier.name
    }

    fn retired(&mut self) -> &mut Option<u64> {
        &mut self.retired
    }
}

impl Placed for Server {
    fn digest(&self) -> u64 {
        digest_of(&self.address)
    }

    fn continues(&self, earlier: &Server) -> bool {
        self.address == earlier.address
    }

    fn retired(&mut self) -> &mut Option<u64> {
        &mut self.retired
    }
}

/// Gives signers that stay the numbers that they have, and others such as none has ever had. Returns the numbers in order.
fn renumber(signers: &mut [Signer], earlier: &[Signer]) -> Vec<SignerId> {
    /// Numbers of a first configuration lie below.
    static NEXT: AtomicUsize = AtomicUsize::new(1 << 16);
    for signer in &mut *signers {
        let known = earlier.iter().find(|known| known.is_same(signer)).map(|known| known.id);
        signer.id = known.unwrap_or_else(|| SignerId(NEXT.fetch_add(1, Ordering::Relaxed)));
    }
    signers.iter().map(|signer| signer.id).collect()
}

impl Signer {
    /// Whether it is the same signer. A signer is one whole: with anything else about it, it is another.
    fn is_same(&self, other: &Signer) -> bool {
        // All of its fields: one that is new has to be compared as well.
        let Signer {
            id: _,
            name,
            servers,
            identity,
            ca,
            timeout,
            connections,
            hedge,
            verify,
            resolve_interval,
            watch,
            allow_world_readable_keys,
            at: _,
        } = other;
        let same_servers = |one: &[SignerServer], two: &[SignerServer]| {
            let of = |server: &SignerServer| (server.address.clone(), server.server_name.clone());
            one.iter().map(of).eq(two.iter().map(of))
        };
        (&self.name, &self.identity.path, &self.ca.path) == (name, &identity.path, &ca.path)
            && (self.resolve_interval, self.watch) == (*resolve_interval, *watch)
            && self.allow_world_readable_keys == *allow_world_readable_keys
            && (self.timeout, self.connections, self.hedge, self.verify) == (*timeout, *connections, *hedge, *verify)
            && same_servers(&self.servers, servers)
    }
}

/// The later ones, each in its place, and by their order before, where that is.
fn arrange<T: Placed>(
    later: Vec<T>,
    earlier: &[T],
    generation: u64,
    is_free: impl Fn(usize) -> bool,
) -> (Vec<T>, Vec<usize>) {
    let mut arranged: Vec<Option<T>> = vec![None; earlier.len()];
    let mut places = vec![usize::MAX; later.len()];
    let mut newcomers = Vec::new();
    // Items are found by their digests: with thousands of them each is not to be compared with each.
    let mut known: HashMap<u64, Vec<usize>> = HashMap::with_capacity(earlier.len());
    earlier.iter().enumerate().for_each(|(place, entry)| known.entry(entry.digest()).or_default().push(place));
    for (index, entry) in later.into_iter().enumerate() {
        let same = |place: &usize| arranged[*place].is_none() && entry.continues(&earlier[*place]);
        match known.get(&entry.digest()).into_iter().flatten().copied().find(same) {
            Some(place) => {
                arranged[place] = Some(entry);
                places[index] = place;
            }
            None => newcomers.push((index, entry)),
        }
    }
    // A place that is taken stays so: whoever comes later looks from there on.
    let mut from = 0;
    for (index, entry) in newcomers {
        let vacant = (from..earlier.len()).find(|place| arranged[*place].is_none() && is_free(*place));
        from = vacant.map_or(earlier.len(), |place| place + 1);
        places[index] = match vacant {
            Some(place) => {
                arranged[place] = Some(entry);
                place
            }
            None => {
                arranged.push(Some(entry));
                arranged.len() - 1
            }
        };
    }
    let keep = |(place, entry): (usize, Option<T>)| {
        entry.unwrap_or_else(|| {
            let mut gone = earlier[place].clone();
            gone.retire(generation);
            gone
        })
    };
    (arranged.into_iter().enumerate().map(keep).collect(), places)
}

#[cfg(test)]
mod tests {
    use crate::{Source, parse};

    use super::*;

    fn config(listeners: &[&str], backends: &[(&str, &[u16])]) -> Config {
        let mut text = String::new();
        for (port, name) in (8000..).zip(listeners) {
            text += &format!("[listener.{name}]\nbind = \"127.0.0.1:{port}\"\n");
        }
        for (name, ports) in backends {
            let servers: Vec<String> = ports.iter().map(|port| format!("\"10.0.0.1:{port}\"")).collect();
            text += &format!("[backend.{name}]\nservers = [{}]\n", servers.join(", "));
        }
        for name in listeners {
            for (backend, _) in backends {
                text += &format!("[[route]]\nlistener = \"{name}\"\nhost = \"{backend}\"\nbackend = \"{backend}\"\n");
            }
        }
        parsed(&text)
    }

    fn parsed(text: &str) -> Config {
        let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        parse(&source).unwrap_or_else(|problems| panic!("{problems:?}\n{text}")).0
    }

    /// Names and ports, with a `-` before what is retired.
    fn places(config: &Config) -> String {
        let mark = |retired: Option<u64>| if retired.is_some() { "-" } else { "" };
        let listeners = config.listeners.iter().map(|each| each.name.clone());
        let servers = |backend: &Backend| {
            let server = |server: &Server| match &server.address {
                crate::ServerAddress::Ip(address) => format!("{}{}", mark(server.retired), address.port()),
                crate::ServerAddress::Name { host, .. } => host.clone(),
                crate::ServerAddress::Srv { name } => name.clone(),
            };
            backend.servers.iter().map(server).collect::<Vec<_>>().join(",")
        };
        let backends = config.backends.iter();
        let backends = backends.map(|each| format!("{}{}({})", mark(each.retired), each.name, servers(each)));
        listeners.chain(backends).collect::<Vec<_>>().join(" ")
    }

    fn free(config: &Config) -> FreePlaces {
        FreePlaces {
            backends: config.backends.iter().map(|each| each.retired.is_some()).collect(),
            servers: config
                .backends
                .iter()
                .map(|each| each.servers.iter().map(|server| server.retired.is_some()).collect())
                .collect(),
        }
    }

    #[test]
    fn what_stays_keeps_its_place_and_what_goes_holds_it() {
        let first = config(&["web", "api"], &[("app", &[1, 2, 3]), ("old", &[9])]);
        let second = config(&["api", "new"], &[("fresh", &[7]), ("app", &[3, 4, 1])]);
        let second = second.succeeding(&first, 2, &FreePlaces::default());
        assert_eq!(places(&second), "api new app(1,-2,3,4) -old(-9) fresh(7)");
        // Routes lead where they led.
        for route in &second.routes {
            let Action::Backend(id) = route.action else { panic!("a route to a backend") };
            let host = crate::HostPattern::Exact(second.backends[id.0].name.clone());
            assert_eq!(route.host, host);
        }
        assert_eq!(second.live_backends().map(|(_, each)| each.name.as_str()).collect::<Vec<_>>(), ["app", "fresh"]);
        assert_eq!(second.backends[0].live_servers().map(|(place, _)| place).collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn a_retired_place_goes_to_another_only_when_nobody_uses_it() {
        let first = config(&["web"], &[("app", &[1, 2])]);
        let second = config(&["web"], &[("app", &[1])]).succeeding(&first, 2, &FreePlaces::default());
        let third = || config(&["web"], &[("app", &[1, 3])]);
        assert_eq!(places(&third().succeeding(&second, 3, &FreePlaces::default())), "web app(1,-2,3)");
        assert_eq!(places(&third().succeeding(&second, 3, &free(&second))), "web app(1,3)");
        // One that comes back is itself again, free or not.
        let back = config(&["web"], &[("app", &[2, 1])]).succeeding(&second, 3, &free(&second));
        assert_eq!(places(&back), "web app(1,2)");
        // The first retirement is the one that counts.
        let still = config(&["web"], &[("app", &[1])]).succeeding(&second, 3, &FreePlaces::default());
        assert_eq!(still.backends[0].servers[1].retired, Some(2));
    }

    #[test]
    fn a_retired_backend_retires_its_servers_and_comes_back_with_them() {
        let first = config(&["web"], &[("app", &[1, 2]), ("more", &[5])]);
        let second = config(&["web"], &[("app", &[1])]).succeeding(&first, 2, &FreePlaces::default());
        assert_eq!(places(&second), "web app(1,-2) -more(-5)");
        let third = config(&["web"], &[("more", &[6, 5]), ("app", &[1])]).succeeding(&second, 3, &free(&second));
        assert_eq!(places(&third), "web app(1,-2) more(5,6)");
    }

    #[test]
    fn a_backend_in_the_place_of_another_has_only_the_free_ones_of_its_servers_places() {
        let first = config(&["web"], &[("app", &[1]), ("old", &[8, 9])]);
        let second = config(&["web"], &[("app", &[1])]).succeeding(&first, 2, &FreePlaces::default());
        let third = || config(&["web"], &[("app", &[1]), ("new", &[7, 9])]);
        let in_use = FreePlaces { servers: Vec::new(), ..free(&second) };
        assert_eq!(places(&third().succeeding(&second, 3, &in_use)), "web app(1) new(-8,9,7)");
        let third = third().succeeding(&second, 3, &free(&second));
        assert_eq!(places(&third), "web app(1) new(7,9)");
        let Action::Backend(id) = third.routes[1].action else { panic!("a route to a backend") };
        assert_eq!(third.backends[id.0].name, "new");
    }

    #[test]
    fn a_server_that_is_listed_twice_has_two_places() {
        let of = |ports: &[u16]| config(&["web"], &[("app", ports)]);
        let twice = of(&[1, 2, 1]).succeeding(&of(&[2, 1]), 2, &FreePlaces::default());
        assert_eq!(places(&twice), "web app(2,1,1)");
        let still = of(&[1, 1, 2]).succeeding(&twice, 3, &FreePlaces::default());
        assert_eq!(places(&still), "web app(2,1,1)");
        let once = of(&[1, 2]).succeeding(&still, 4, &FreePlaces::default());
        assert_eq!(places(&once), "web app(2,1,-1)");
    }

    #[test]
    fn servers_are_told_in_the_order_in_which_they_are_written() {
        let written = |backend: &Backend| -> Vec<String> {
            let shown = |(place, server): (usize, &Server)| format!("{place}:{:?}", server.address);
            backend.servers_as_written().map(shown).collect()
        };
        let of = |places: &[(usize, u16)]| -> Vec<String> {
            let address = |port: u16| crate::ServerAddress::Ip(([10, 0, 0, 1], port).into());
            places.iter().map(|(place, port)| format!("{place}:{:?}", address(*port))).collect()
        };
        let first = config(&["web"], &[("app", &[1, 2, 3]), ("old", &[9])]);
        assert_eq!(written(&first.backends[0]), of(&[(0, 1), (1, 2), (2, 3)]));
        let second = config(&["web"], &[("app", &[4, 3, 1])]).succeeding(&first, 2, &FreePlaces::default());
        assert_eq!(written(&second.backends[0]), of(&[(3, 4), (2, 3), (0, 1)]));
        assert!(written(&second.backends[1]).is_empty(), "a backend that is gone has no servers to tell of");
    }

    /// A profile `NAME` for each signer that uses it.
    fn with_signers(process: &str, signers: &[(&str, &str)]) -> Config {
        let mut text = format!("[process]\n{process}\n[[route]]\nrespond = {{}}\n");
        for (name, lines) in signers {
            text += &format!("[listener.{name}]\nbind = \"127.0.0.1:0\"\ntls = \"{name}\"\n");
            text += &format!("[tls.{name}]\ncertificates = [\"{name}.pem\"]\nsigner = \"{name}\"\n");
            text += &format!("[signer.{name}]\n{lines}\n");
        }
        parsed(&text)
    }

    /// Numbers of signers by name, after a look at whether profiles have those of their own names.
    fn signers(config: &Config) -> Vec<(&str, SignerId)> {
        for profile in &config.tls {
            let signer = config.signer(profile.signer.expect("each has one")).expect("it is there");
            assert_eq!(signer.name, profile.name);
        }
        config.signers.iter().map(|signer| (signer.name.as_str(), signer.id)).collect()
    }

    const SIGNER: &str = "servers = [\"a:1\"]\nidentity = \"i\"\nca = \"c\"";

    #[test]
    fn a_signer_that_stays_as_it_is_keeps_its_number_and_profiles_have_theirs() {
        let first = with_signers("", &[("one", SIGNER), ("two", SIGNER)]);
        let second = with_signers("", &[("two", SIGNER), ("one", SIGNER)]);
        let second = second.succeeding(&first, 2, &FreePlaces::default());
        assert_eq!(signers(&second), [("two", SignerId(1)), ("one", SignerId(0))]);
    }

    #[test]
    fn a_signers_number_is_never_given_to_another_nor_back_to_itself() {
        let first = with_signers("", &[("one", SIGNER)]);
        let second = with_signers("", &[("two", SIGNER)]).succeeding(&first, 2, &FreePlaces::default());
        let (first, second_id) = (SignerId(0), signers(&second)[0].1);
        assert_ne!(second_id, first);
        let third = with_signers("", &[("one", SIGNER)]).succeeding(&second, 3, &FreePlaces::default());
        assert!(![first, second_id].contains(&signers(&third)[0].1));
    }

    #[test]
    fn a_signer_that_is_different_in_anything_is_another() {
        let changed = |from: &str, to: &str| SIGNER.replace(from, to);
        let with = |line: &str| format!("{SIGNER}\n{line}");
        let first = with_signers("", &[("one", SIGNER)]);
        for later in [
            changed("a:1", "a:2"),
            changed("[\"a:1\"]", "[\"a:1\", \"b:1\"]"),
            changed("\"a:1\"", "{ address = \"a:1\", server_name = \"b\" }"),
            changed("identity = \"i\"", "identity = \"j\""),
            changed("ca = \"c\"", "ca = \"d\""),
            with("timeout = \"2s\"\nhedge = \"500ms\""),
            with("connections = 3"),
            with("hedge = \"100ms\""),
            with("verify = \"off\""),
            with("resolve_interval = \"31s\""),
            with("watch = \"10s\""),
        ] {
            let second = with_signers("", &[("one", &later)]).succeeding(&first, 2, &FreePlaces::default());
            assert_ne!(signers(&second)[0].1, SignerId(0), "{later}");
        }
        let second = with_signers("allow_world_readable_keys = true", &[("one", SIGNER)]);
        let second = second.succeeding(&first, 2, &FreePlaces::default());
        assert_ne!(signers(&second)[0].1, SignerId(0));
    }

    #[test]
    fn twenty_thousand_servers_are_arranged_as_two_are() {
        let ports: Vec<u16> = (1..=20_000).collect();
        let later: Vec<u16> = (10_001..=30_000).rev().collect();
        let first = config(&["web"], &[("app", &ports)]);
        let second = config(&["web"], &[("app", &later)]).succeeding(&first, 2, &FreePlaces::default());
        let servers = &second.backends[0].servers;
        assert_eq!((servers.len(), second.backends[0].live_servers().count()), (30_000, 20_000));
        assert!(servers[10_000].retired.is_none() && servers[9_999].retired.is_some());
        assert_eq!(servers[10_000].address, first.backends[0].servers[10_000].address);
    }

    #[test]
    fn any_number_of_changes_takes_no_more_places_than_were_ever_in_use_at_once() {
        let mut current = config(&["web"], &[("app", &[1, 2])]);
        for generation in 2_u16..500 {
            let next = config(&["web"], &[("app", &[generation * 2, generation * 2 + 1])]);
            current = next.succeeding(&current, generation.into(), &free(&current));
            assert!(current.backends[0].servers.len() <= 4, "{}", places(&current));
        }
    }
}
