//! Gateways of our classes: their addresses, and their listeners with what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::draft::short;
use super::owners;
use super::references::{self, Referrer};
use super::sets;
use crate::conditions::Trouble;
use crate::hostname;
use crate::resources::{GROUP, Gateway, Key, Listener, ListenerSet, Reference, RouteKind, Validation};
use crate::settings::{Address, Files, Settings};
use crate::world::World;

/// Listeners that the ListenerSets of one Gateway may have together.
const SET_LISTENERS_MAX: usize = 512;
/// Listeners of all Gateways together; they have to leave room for routes in the configuration.
const LISTENERS_MAX: usize = 4096;

/// The way in which an engine serves a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Http,
    Https,
    /// TLS ends here, and bytes are handed on.
    Terminate,
    Passthrough,
    Tcp,
}

impl Mode {
    fn of(listener: &Listener) -> Option<Mode> {
        let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref());
        match (listener.protocol.as_str(), mode) {
            ("HTTP", _) => Some(Mode::Http),
            ("HTTPS", None | Some("Terminate")) => Some(Mode::Https),
            ("TLS", None | Some("Terminate")) => Some(Mode::Terminate),
            ("TLS", Some("Passthrough")) => Some(Mode::Passthrough),
            ("TCP", _) => Some(Mode::Tcp),
            _ => None,
        }
    }

    fn kinds(self) -> &'static [&'static str] {
        match self {
            Mode::Http | Mode::Https => &["HTTPRoute", "GRPCRoute"],
            Mode::Terminate | Mode::Passthrough => &["TLSRoute"],
            Mode::Tcp => &["TCPRoute"],
        }
    }

    pub fn has_certificates(self) -> bool {
        matches!(self, Mode::Https | Mode::Terminate)
    }
}

/// All Gateways that are ours, the oldest first.
pub struct Gateways<'w> {
    pub all: Vec<GatewayPlan<'w>>,
    pub files: Files,
}

pub struct GatewayPlan<'w> {
    pub object: &'w Gateway,
    pub address: Option<Address>,
    pub accepted: Option<Trouble>,
    pub programmed: Option<Trouble>,
    /// File of the chain and key that servers are shown over TLS, where one is asked for.
    pub client: Option<Result<String, Trouble>>,
    /// Listeners of its own, and then of its ListenerSets by the order of precedence.
    pub listeners: Vec<ListenerPlan<'w>>,
    pub sets: Vec<SetPlan<'w>>,
}

/// A ListenerSet with this Gateway as its parent.
pub struct SetPlan<'w> {
    pub object: &'w ListenerSet,
    /// The Gateway lets no listeners of this namespace in.
    pub refused: Option<Trouble>,
}

pub struct ListenerPlan<'w> {
    pub spec: &'w Listener,
    /// Place of its ListenerSet among those of the Gateway; absent for the Gateway's own.
    pub set: Option<usize>,
    /// The namespace of the resource that it is written in.
    pub namespace: &'w str,
    pub mode: Option<Mode>,
    /// The listener of the engine, which all listeners of a Gateway with one port are.
    pub engine: String,
    pub kinds: Vec<RouteKind>,
    /// Files of chains and keys.
    pub certificates: Vec<String>,
    /// Files of the authorities of clients' certificates.
    pub authorities: Vec<String>,
    pub accepted: Option<Trouble>,
    pub resolved: Option<Trouble>,
    pub conflicted: Option<Trouble>,
    pub attached: usize,
}

impl<'w> GatewayPlan<'w> {
    pub fn key(&self) -> Key {
        self.object.metadata.key()
    }

    /// Listeners of the Gateway itself, or of one of its ListenerSets.
    pub fn listeners_of(&self, set: Option<usize>) -> impl Iterator<Item = &ListenerPlan<'w>> {
        self.listeners.iter().filter(move |listener| listener.set == set)
    }

    /// File of the chain and key that servers are shown.
    pub fn client_file(&self) -> Option<&str> {
        self.client.as_ref()?.as_ref().ok().map(String::as_str)
    }

    pub fn is_served(&self, listener: &ListenerPlan<'_>) -> bool {
        self.accepted.is_none() && self.address.is_some() && listener.is_usable()
    }
}

impl ListenerPlan<'_> {
    /// Whether an engine can serve it.
    pub fn is_usable(&self) -> bool {
        let Some(mode) = self.mode else { return false };
        self.accepted.is_none()
            && self.conflicted.is_none()
            && !self.kinds.is_empty()
            && (!mode.has_certificates() || !self.certificates.is_empty())
    }

    pub fn hostname(&self) -> Option<&str> {
        self.spec.hostname.as_deref().filter(|name| !name.is_empty())
    }
}

/// Whether a class is ours.
pub fn is_ours(world: &World, settings: &Settings, class: &str) -> bool {
    let class = world.classes.get(&Key::new("", class));
    class.is_some_and(|class| class.spec.controller_name == settings.controller && class.spec.parameters_ref.is_none())
}

pub fn plan<'w>(world: &'w World, settings: &Settings) -> Gateways<'w> {
    let mut ours: Vec<&Gateway> =
        world.gateways.values().filter(|gateway| is_ours(world, settings, &gateway.spec.gateway_class_name)).collect();
    ours.sort_by_key(|gateway| gateway.metadata.precedence());
    let mut files = Files::new();
    let mut all: Vec<GatewayPlan<'w>> = Vec::new();
    let mut left = LISTENERS_MAX;
    for object in ours {
        let mut plan = GatewayPlan {
            object,
            address: None,
            accepted: None,
            programmed: None,
            client: client(world, object, &mut files),
            listeners: Vec::new(),
            sets: sets::of(world, object),
        };
        if let Some(parameters) = &object.spec.infrastructure.parameters_ref {
            let what = format!("infrastructure.parametersRef {parameters} is of no kind that is known here");
            plan.accepted = Some(Trouble::new("InvalidParameters", what));
        }
        let namespace = object.metadata.namespace.as_str();
        let own = object.spec.listeners.iter().map(|spec| (spec, None, namespace));
        let allowed = plan.sets.iter().enumerate().filter(|(_, set)| set.refused.is_none());
        let others = allowed.flat_map(|(place, set)| {
            let namespace = set.object.metadata.namespace.as_str();
            set.object.spec.listeners.iter().map(move |spec| (spec, Some(place), namespace))
        });
        let mut left_of_sets = SET_LISTENERS_MAX;
        for site in own.chain(others) {
            let limit = if site.1.is_some() { left.min(left_of_sets) } else { left };
            plan.listeners.push(match limit {
                0 => one_too_many(object, site),
                _ => listener(world, object, site, &mut files),
            });
            left = left.saturating_sub(1);
            left_of_sets = left_of_sets.saturating_sub(usize::from(site.1.is_some()));
        }
        conflicts(&mut plan);
        owners::part(&mut plan, &files);
        all.push(plan);
    }
    assign(settings, &mut all);
    reserve(&settings.own_addresses(), &mut all);
    if let [only] = settings.addresses.as_slice() {
        share(only, &mut all);
    }
    Gateways { all, files }
}

/// A listener's keys, its ListenerSet's place, and the namespace that it is written in.
type Site<'w> = (&'w Listener, Option<usize>, &'w str);

/// A listener that there is no room for. Nothing is looked up for it.
fn one_too_many<'w>(gateway: &Gateway, site: Site<'w>) -> ListenerPlan<'w> {
    let what = format!(
        "ListenerSets of a Gateway have at most {SET_LISTENERS_MAX} listeners, and all Gateways {LISTENERS_MAX}: older \
         ones have them"
    );
    ListenerPlan { mode: None, accepted: Some(Trouble::new("TooManyListeners", what)), ..empty(gateway, site) }
}

fn empty<'w>(gateway: &Gateway, (spec, set, namespace): Site<'w>) -> ListenerPlan<'w> {
    ListenerPlan {
        spec,
        set,
        namespace,
        mode: Mode::of(spec),
        engine: short(format!("{}_{}_{}", gateway.metadata.namespace, gateway.metadata.name, spec.port)),
        kinds: Vec::new(),
        certificates: Vec::new(),
        authorities: Vec::new(),
        accepted: None,
        resolved: None,
        conflicted: None,
        attached: 0,
    }
}

fn listener<'w>(world: &World, gateway: &Gateway, site: Site<'w>, files: &mut Files) -> ListenerPlan<'w> {
    let (mut plan, spec) = (empty(gateway, site), site.0);
    let Some(mode) = plan.mode else {
        let what = format!("protocol {} is not served: HTTP, HTTPS, TLS and TCP are", spec.protocol);
        plan.accepted = Some(Trouble::new("UnsupportedProtocol", what));
        return plan;
    };
    if let Some(name) = plan.hostname().filter(|name| !hostname::is_known(name.strip_prefix("*.").unwrap_or(name))) {
        let what = format!("hostname {name} is none that engines take");
        plan.accepted = Some(Trouble::new("UnsupportedValue", what));
        return plan;
    }
    let known: Vec<RouteKind> =
        mode.kinds().iter().map(|kind| RouteKind { group: GROUP.into(), kind: (*kind).into() }).collect();
    let wanted = &spec.allowed_routes.kinds;
    plan.kinds = match wanted.is_empty() {
        true => known,
        false => known.into_iter().filter(|kind| wanted.contains(kind)).collect(),
    };
    if let Some(unknown) = wanted.iter().find(|kind| !plan.kinds.contains(kind)) {
        let what = format!("routes of kind {} cannot be attached to a listener of {}", unknown.kind, spec.protocol);
        plan.resolved = Some(Trouble::new("InvalidRouteKinds", what));
    }
    if mode.has_certificates() {
        certificates(world, &mut plan, files);
        if let Some(validation) = gateway.spec.tls.frontend.of(spec.port) {
            clients(world, gateway, validation, &mut plan, files);
        }
    }
    plan
}

fn certificates(world: &World, plan: &mut ListenerPlan<'_>, files: &mut Files) {
    let kind = if plan.set.is_some() { "ListenerSet" } else { "Gateway" };
    let from = Referrer { kind, namespace: plan.namespace };
    let references = plan.spec.tls.as_ref().map_or(&[][..], |tls| &tls.certificate_refs);
    if references.is_empty() {
        plan.resolved = Some(Trouble::new("InvalidCertificateRef", "tls.certificateRefs names no certificate"));
    }
    for reference in references {
        match references::certificate(world, reference, from) {
            Ok(pem) => plan.certificates.push(keep(files, "certificate", pem)),
            Err(trouble) => plan.resolved = Some(trouble),
        }
    }
}

fn client(world: &World, gateway: &Gateway, files: &mut Files) -> Option<Result<String, Trouble>> {
    let reference = gateway.spec.tls.backend.client_certificate_ref.as_ref()?;
    let from = Referrer { kind: "Gateway", namespace: &gateway.metadata.namespace };
    Some(match references::certificate(world, reference, from) {
        Ok(pem) => Ok(keep(files, "certificate", pem)),
        Err(trouble) if trouble.reason == "RefNotPermitted" => Err(trouble),
        Err(trouble) => Err(Trouble::new("InvalidClientCertificateRef", trouble.message)),
    })
}

/// Clients of the listener have to show certificates.
fn clients(world: &World, gateway: &Gateway, validation: &Validation, plan: &mut ListenerPlan<'_>, files: &mut Files) {
    if validation.mode.as_deref() == Some("AllowInsecureFallback") {
        let what = "clients without a valid certificate cannot be let in: use mode AllowValidOnly";
        plan.accepted = Some(Trouble::new("UnsupportedValue", what));
        return;
    }
    let from = Referrer { kind: "Gateway", namespace: &gateway.metadata.namespace };
    for reference in &validation.authorities {
        match authority(world, reference, from) {
            Ok(pem) => plan.authorities.push(keep(files, "authority", pem)),
            Err(trouble) => plan.resolved = Some(trouble),
        }
    }
    if plan.authorities.is_empty() {
        let what = "no authority of clients' certificates can be used, and nobody could be let in";
        plan.accepted = Some(Trouble::new("NoValidCACertificate", what));
    }
}

fn authority(world: &World, reference: &Reference, from: Referrer<'_>) -> Result<Vec<u8>, Trouble> {
    let key = reference.key(from.namespace);
    if !reference.is("", "ConfigMap", ("", "ConfigMap")) {
        return Err(Trouble::new("InvalidCACertificateKind", format!("{key} is no ConfigMap")));
    }
    if !references::is_permitted(world, from, "ConfigMap", &key) {
        let what = format!("ConfigMap {key} is in another namespace, and no ReferenceGrant there permits it");
        return Err(Trouble::new("RefNotPermitted", what));
    }
    let missing = || {
        Trouble::new(
            "InvalidCACertificateRef",
            format!("ConfigMap {key} has no certificates in ca.crt, of 256 KiB at most, that can be used"),
        )
    };
    references::authorities(world, &key).ok_or_else(missing)
}

/// Keeps a file by a name of its content, so that another content is another file.
pub fn keep(files: &mut Files, what: &str, content: Vec<u8>) -> String {
    let digest = propylon_crypto::sha256(&content);
    let digest: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{what}-{digest}.pem");
    files.insert(name.clone(), content);
    name
}

/// Listeners of a Gateway that cannot be told apart, or not be served on one port, are conflicted, all of them. A
/// ListenerSet's are so with what stands before them alone.
fn conflicts(plan: &mut GatewayPlan<'_>) {
    let mut found: Vec<Option<Trouble>> = Vec::new();
    for (index, one) in plan.listeners.iter().enumerate() {
        let mut trouble = None;
        if one.mode.is_none() {
            found.push(None);
            continue;
        }
        for (place, other) in plan.listeners.iter().enumerate().filter(|(other, _)| *other != index) {
            let is_behind = place > index || found.get(place).is_some_and(Option::is_some);
            if other.set.is_some() && is_behind || one.set.is_some() && place > index {
                continue;
            }
            if one.spec.port != other.spec.port || other.mode.is_none() {
                continue;
            }
            let (name, port) = (&other.spec.name, one.spec.port);
            if one.mode != other.mode {
                let what = format!("listener {name} has port {port} with another protocol or TLS mode");
                trouble = Some(Trouble::new("ProtocolConflict", what));
                break;
            }
            if one.hostname() == other.hostname() || one.mode == Some(Mode::Tcp) {
                let what = format!("listener {name} has port {port} with the same hostname");
                trouble = Some(Trouble::new("HostnameConflict", what));
            }
        }
        found.push(trouble);
    }
    for (listener, trouble) in plan.listeners.iter_mut().zip(found) {
        if let Some(trouble) = trouble {
            listener.accepted = Some(trouble.clone());
            listener.conflicted = Some(trouble);
        }
    }
}

/// Gives each Gateway an address: the one that it asks for, the one that it has, or one that is free.
fn assign(settings: &Settings, all: &mut [GatewayPlan<'_>]) {
    let is_shared = settings.addresses.len() == 1;
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for is_wish in [true, false] {
        for plan in all.iter_mut().filter(|plan| plan.address.is_none() && plan.accepted.is_none()) {
            let wish = plan.object.spec.addresses.iter().find(|address| !address.value.is_empty());
            let before = plan.object.status["addresses"][0]["value"].as_str();
            if let Some(kind) = plan.object.spec.addresses.iter().find_map(|each| each.kind.as_deref())
                && kind != "IPAddress"
            {
                let what = format!("addresses of type {kind} cannot be had: ask for an IPAddress");
                plan.accepted = Some(Trouble::new("UnsupportedAddress", what));
                continue;
            }
            let wanted = wish.map(|wish| wish.value.as_str()).or(before.filter(|_| is_wish));
            let mut free = settings.addresses.iter().filter(|each| is_shared || !taken.contains(&each.advertised));
            let found = match wanted {
                Some(wanted) => free.find(|each| each.advertised == wanted),
                None if is_wish => None,
                None => free.next(),
            };
            if let Some(found) = found {
                taken.insert(found.advertised.clone());
                plan.address = Some(found.clone());
            } else if !is_wish {
                plan.programmed = Some(match wish {
                    Some(wish) => {
                        let what = format!("address {} is none of the engines', or another Gateway's", wish.value);
                        Trouble::new("AddressNotUsable", what)
                    }
                    None => Trouble::new("AddressNotAssigned", "the engines have no address left: give them more"),
                });
            }
        }
    }
}

/// Addresses that engines listen on in any case are no Gateway's: one of them in a listener would make engines refuse
/// the configuration of all.
fn reserve(own: &[SocketAddr], all: &mut [GatewayPlan<'_>]) {
    for plan in all {
        let Some(ip) = plan.address.as_ref().and_then(|address| address.bind.parse::<IpAddr>().ok()) else { continue };
        let meets = |other: &IpAddr| {
            let is_wildcard = ip.is_unspecified() || other.is_unspecified();
            ip == *other || is_wildcard && ip.is_ipv4() == other.is_ipv4()
        };
        for listener in &mut plan.listeners {
            let port = listener.spec.port;
            if own.iter().any(|other| other.port() == port && meets(&other.ip())) {
                let what = format!("port {port} is one of the engines' own: their base configuration has it");
                listener.accepted.get_or_insert(Trouble::new("PortUnavailable", what));
            }
        }
    }
}

/// With one address for all Gateways a port is the oldest Gateway's that has it.
fn share(address: &Address, all: &mut [GatewayPlan<'_>]) {
    let mut owners: BTreeMap<u16, Key> = BTreeMap::new();
    for plan in all.iter_mut().filter(|plan| plan.address.is_some()) {
        let key = plan.key();
        for listener in plan.listeners.iter_mut().filter(|listener| listener.is_usable()) {
            let owner = owners.entry(listener.spec.port).or_insert_with(|| key.clone());
            if *owner != key {
                let (port, address) = (listener.spec.port, &address.advertised);
                let what = format!("port {port} of {address} is Gateway {owner}'s: give the engines more addresses");
                listener.accepted = Some(Trouble::new("PortUnavailable", what));
            }
        }
    }
}
