//! The thread that keeps BIRD's protocols as this engine wants them.
//!
//! A caller that wants something sets it and goes on; one that drains waits for BIRD's word. The thread looks ten times
//! a second whether BIRD still has it so: BIRD may have been started again, its configuration read again, or somebody
//! typed `enable`.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Settings;
use crate::answers::{BfdSession, Protocol, ProtocolState};
use crate::bird::{Bird, BirdError, ProtocolName, Switched};

/// Interval between two looks at the protocols. Each `birdc configure` disables them again, as BIRD's configuration
/// says, and perhaps on all machines at once: until the next look nobody announces.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two looks at the sessions with routers, and at anything while nothing is wanted or BIRD is away.
pub const SLOW_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a BIRD that is away is looked for as often as one that is there.
const AWAY_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time for one of BIRD's replies.
const REPLY_WAIT: Duration = Duration::from_secs(1);
/// Longest time that a protocol is on its way, once BIRD has taken an order.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Pause between two looks at a protocol on its way.
const SETTLE_PAUSE: Duration = Duration::from_millis(2);
/// How long BIRD has to keep to an order before a correction is told again.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Announce,
    Withdraw,
}

impl Wanted {
    /// Whether a protocol is as wanted, and not on its way.
    fn is_met(self, state: &ProtocolState) -> bool {
        match self {
            Wanted::Announce => *state == ProtocolState::Up,
            Wanted::Withdraw => *state == ProtocolState::Down,
        }
    }

    fn order(self, bird: &mut Bird, name: &ProtocolName, reason: &str) -> Result<Switched, BirdError> {
        match self {
            Wanted::Announce => bird.enable(name, reason),
            Wanted::Withdraw => bird.disable(name, reason),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wanted::Announce => "announced",
            Wanted::Withdraw => "withdrawn",
        })
    }
}

/// BIRD's state beside what is wanted, as of the last look.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// `None` until something was wanted, and after the engine has handed over.
    pub wanted: Option<Wanted>,
    pub reason: String,
    pub wanted_since: Option<Instant>,
    /// Whether BIRD has all protocols as wanted.
    pub is_confirmed: bool,
    /// BIRD's version; `None` while it cannot be reached.
    pub bird: Option<String>,
    /// Why the last look did not get all it asked for.
    pub last_error: Option<String>,
    pub looked_at: Option<Instant>,
    /// In the order of the settings; empty until BIRD was reached once.
    pub protocols: Vec<ProtocolStatus>,
    /// BGP protocols that export.
    pub sessions: Vec<SessionStatus>,
    /// Times that BIRD had something else than it had confirmed, and was set again.
    pub corrections: u64,
    /// Attempts that failed.
    pub failures: u64,
}

impl Status {
    /// Whether every virtual address is in BIRD's table and a router is told.
    pub fn is_announced(&self) -> bool {
        !self.protocols.is_empty()
            && self.protocols.iter().all(|protocol| protocol.is_announced)
            && self.sessions.iter().any(|session| session.is_established && session.routes_exported > 0)
    }
}

#[derive(Clone, Debug)]
pub struct ProtocolStatus {
    pub name: ProtocolName,
    /// `None` where BIRD did not say.
    pub state: Option<ProtocolState>,
    /// When this state was seen first.
    pub since: Instant,
    /// Whether BIRD has routes from it.
    pub is_announced: bool,
    pub last_error: Option<String>,
}

/// A session with a router.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    pub name: String,
    pub neighbor: Option<IpAddr>,
    pub is_established: bool,
    /// BGP's state, and the last error behind it.
    pub info: String,
    pub routes_exported: u64,
    /// BFD's state with this neighbour; `None` where it has no session.
    pub bfd: Option<String>,
}

/// The engine's handle. Dropping it ends the thread and leaves BIRD as it is: a successor may announce.
pub struct Announcer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    order: Order,
    /// Serial of the last order that BIRD confirmed as a whole.
    confirmed: u64,
    /// Serial and error of the last attempt that only somebody can help.
    hopeless: Option<(u64, String)>,
    /// Since when BIRD has something else than is wanted, or cannot be reached.
    unmet_since: Option<Instant>,
    status: Status,
    stops: bool,
}

#[derive(Clone, Default)]
struct Order {
    serial: u64,
    wanted: Option<Wanted>,
    reason: String,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Announcer {
    /// Starts the thread, which looks and changes nothing until something is wanted.
    pub fn start(settings: Settings) -> std::io::Result<Announcer> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let switcher = Switcher::new(settings, Arc::clone(&shared));
        let thread = thread::Builder::new().name("announce".to_owned()).spawn(move || switcher.run())?;
        Ok(Announcer { shared, thread: Some(thread) })
    }

    /// Wants something from here on, and does not wait for BIRD. What is wanted already changes its reason alone.
    pub fn set(&self, wanted: Wanted, reason: String) {
        let mut state = self.shared.lock();
        if state.order.wanted == Some(wanted) {
            state.order.reason.clone_from(&reason);
            state.status.reason = reason;
            return;
        }
        self.order(&mut state, Some(wanted), reason);
    }

    /// Withdraws, and returns once BIRD says that all protocols are down. An error is what BIRD said last within
    /// `limit`, or at once what only somebody can help.
    pub fn withdraw_now(&self, limit: Duration, reason: String) -> Result<(), String> {
        let until = Instant::now() + limit;
        let mut state = self.shared.lock();
        self.order(&mut state, Some(Wanted::Withdraw), reason);
        let serial = state.order.serial;
        loop {
            if state.confirmed >= serial {
                return Ok(());
            }
            match &state.hopeless {
                Some((of, why)) if *of == serial => return Err(why.clone()),
                _ if state.order.serial != serial => return Err("something else was wanted meanwhile".to_owned()),
                _ => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = state.status.last_error.clone();
                return Err(why.unwrap_or_else(|| format!("BIRD has not confirmed it within {limit:?}")));
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wants nothing any more: a successor announces from here on. The thread only looks.
    pub fn let_go(&self) {
        let mut state = self.shared.lock();
        self.order(&mut state, None, "handed over".to_owned());
    }

    pub fn status(&self) -> Status {
        self.shared.lock().status.clone()
    }

    fn order(&self, state: &mut State, wanted: Option<Wanted>, reason: String) {
        state.order = Order { serial: state.order.serial + 1, wanted, reason: reason.clone() };
        state.unmet_since = Some(Instant::now());
        let status = &mut state.status;
        (status.wanted, status.wanted_since, status.is_confirmed) = (wanted, Some(Instant::now()), false);
        status.reason = reason;
        self.shared.changed.notify_all();
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.shared.lock().stops = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread's waits have limits, so that this one has.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Switcher {
    settings: Settings,
    shared: Arc<Shared>,
    bird: Option<Bird>,
    sessions_seen: Option<Instant>,
    /// Last lines of the log, so that nothing is told twice.
    told: Logged,
}

#[derive(Default)]
struct Logged {
    error: Option<String>,
    correction: Option<Instant>,
}

/// Findings of one pass over the protocols.
#[derive(Default)]
struct Pass {
    /// In the order of the settings.
    protocols: Vec<Result<Protocol, BirdError>>,
    corrected: Vec<String>,
}

impl Pass {
    fn is_met(&self, wanted: Wanted) -> bool {
        self.protocols.iter().all(|protocol| protocol.as_ref().is_ok_and(|protocol| wanted.is_met(&protocol.state)))
    }

    fn error(&self) -> Option<&BirdError> {
        self.protocols.iter().find_map(|protocol| protocol.as_ref().err())
    }
}

impl Switcher {
    fn new(settings: Settings, shared: Arc<Shared>) -> Switcher {
        Switcher { settings, shared, bird: None, sessions_seen: None, told: Logged::default() }
    }

    fn run(mut self) {
        loop {
            let (order, is_confirmed) = {
                let state = self.shared.lock();
                if state.stops {
                    return;
                }
                (state.order.clone(), state.confirmed == state.order.serial)
            };
            let pass = self.pass_again(&order, is_confirmed);
            let is_news = self.publish(&order, pass);
            if is_news || self.sessions_seen.is_none_or(|seen| seen.elapsed() >= SLOW_LOOK_INTERVAL) {
                self.look_at_sessions();
                self.sessions_seen = Some(Instant::now());
            }
            self.wait(order.serial);
        }
    }

    /// A pass; a connection that BIRD closed meanwhile is opened once more.
    fn pass_again(&mut self, order: &Order, is_confirmed: bool) -> Result<Pass, BirdError> {
        let was_open = self.bird.is_some();
        match self.pass(order, is_confirmed) {
            Err(BirdError::Closed) if was_open => self.pass(order, is_confirmed),
            outcome => outcome,
        }
    }

    fn pass(&mut self, order: &Order, is_confirmed: bool) -> Result<Pass, BirdError> {
        let mut bird = match self.bird.take() {
            Some(bird) => bird,
            None => Bird::connect(&self.settings.socket, REPLY_WAIT)?,
        };
        let mut pass = Pass::default();
        let names = &self.settings.protocols;
        let mut refused: Vec<Option<BirdError>> = vec![None; names.len()];
        if let Some(wanted) = order.wanted {
            // All are ordered first, and then waited for.
            for (name, refused) in names.iter().zip(&mut refused) {
                if is_confirmed {
                    let state = carried(bird.protocol(name))?.map(|protocol| protocol.state);
                    match state {
                        Ok(state) if wanted.is_met(&state) => continue,
                        Ok(state) => pass.corrected.push(format!("{name} was {state}")),
                        Err(_) => {}
                    }
                }
                *refused = carried(wanted.order(&mut bird, name, &order.reason))?.err();
            }
        }
        let until = Instant::now() + SETTLE_WAIT_MAX;
        for (name, refused) in names.iter().zip(refused) {
            let seen = match refused {
                Some(error) => Err(error),
                None => settled(&mut bird, name, order.wanted, until)?,
            };
            pass.protocols.push(seen);
        }
        self.bird = Some(bird);
        Ok(pass)
    }

    /// Whether BIRD has confirmed something new is what comes back.
    fn publish(&mut self, order: &Order, outcome: Result<Pass, BirdError>) -> bool {
        let now = Instant::now();
        let version = self.bird.as_ref().map(|bird| bird.version().to_owned());
        let error = match &outcome {
            Ok(pass) => pass.error().cloned(),
            Err(error) => Some(error.clone()),
        };
        let mut state = self.shared.lock();
        let status = &mut state.status;
        (status.bird, status.looked_at) = (version, Some(now));
        status.last_error = error.as_ref().map(ToString::to_string);
        status.failures += u64::from(error.is_some());
        let mut is_met = false;
        let mut corrected = Vec::new();
        match outcome {
            Ok(pass) => {
                is_met = order.wanted.is_some_and(|wanted| pass.is_met(wanted));
                status.corrections += u64::from(!pass.corrected.is_empty());
                let before = std::mem::take(&mut status.protocols);
                let seen = self.settings.protocols.iter().zip(pass.protocols);
                status.protocols = seen.map(|(name, seen)| protocol_status(name, seen, &before, now)).collect();
                corrected = pass.corrected;
            }
            Err(error) => {
                status.protocols.iter_mut().for_each(|protocol| protocol.last_error = Some(error.to_string()));
                // Nothing is known of sessions, and most likely there are none.
                status.sessions.clear();
            }
        }
        let is_news = is_met && state.confirmed != order.serial;
        if state.order.serial == order.serial {
            state.status.is_confirmed = is_met;
            if is_met {
                (state.confirmed, state.unmet_since) = (order.serial, None);
            } else {
                state.unmet_since.get_or_insert(now);
            }
            let hopeless = error.as_ref().filter(|error| error.needs_somebody());
            state.hopeless = hopeless.map(|error| (order.serial, error.to_string()));
        }
        self.shared.changed.notify_all();
        drop(state);
        self.tell(order, error.as_ref(), &corrected, is_news);
        is_news
    }

    /// Log lines: of each thing that changes one, and none of what goes on.
    fn tell(&mut self, order: &Order, error: Option<&BirdError>, corrected: &[String], is_news: bool) {
        let error = error.map(ToString::to_string);
        if self.told.error != error {
            match &error {
                Some(error) => log::warn!("virtual addresses: {error}"),
                None => log::info!("virtual addresses: BIRD answers again"),
            }
            self.told.error = error;
        }
        let Some(wanted) = order.wanted else { return };
        if is_news {
            log::info!("virtual addresses: {wanted} ({})", order.reason);
        }
        let now = Instant::now();
        if !corrected.is_empty() {
            if self.told.correction.is_none_or(|told| now.duration_since(told) > TOLD_AGAIN) {
                log::warn!(
                    "virtual addresses: {}: BIRD was started again or somebody changed it; set to {wanted} again ({})",
                    corrected.join(", "),
                    order.reason
                );
            }
            // Somebody who changes it each second is told of once.
            self.told.correction = Some(now);
        }
    }

    /// BGP and BFD, after the protocols: nobody waits for these.
    fn look_at_sessions(&mut self) {
        let Some(bird) = &mut self.bird else { return };
        let found = bird.protocols().and_then(|protocols| Ok((protocols, bird.bfd_sessions()?)));
        match found {
            Ok((protocols, bfd)) => self.shared.lock().status.sessions = sessions(&protocols, &bfd),
            Err(error) => {
                if error.ends_connection() {
                    self.bird = None;
                }
                let mut state = self.shared.lock();
                state.status.sessions.clear();
                state.status.failures += 1;
                state.status.last_error.get_or_insert_with(|| error.to_string());
            }
        }
    }

    /// Waits for the next look, or for another order.
    fn wait(&self, serial: u64) {
        let mut state = self.shared.lock();
        let is_long = state.unmet_since.is_some_and(|since| since.elapsed() > AWAY_WAIT_MAX);
        let is_slow = is_long || state.order.wanted.is_none();
        let until = Instant::now() + if is_slow { SLOW_LOOK_INTERVAL } else { LOOK_INTERVAL };
        while state.order.serial == serial && !state.stops {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An error of the connection ends the pass, one of a protocol is that protocol's.
fn carried<T>(outcome: Result<T, BirdError>) -> Result<Result<T, BirdError>, BirdError> {
    match outcome {
        Err(error) if error.ends_connection() => Err(error),
        other => Ok(other),
    }
}

/// The protocol once it is as wanted, or as it is when the time is up.
fn settled(
    bird: &mut Bird,
    name: &ProtocolName,
    wanted: Option<Wanted>,
    until: Instant,
) -> Result<Result<Protocol, BirdError>, BirdError> {
    loop {
        let seen = carried(bird.protocol(name))?;
        let is_settled = match (&seen, wanted) {
            (Ok(protocol), Some(wanted)) => wanted.is_met(&protocol.state),
            _ => true,
        };
        if is_settled || Instant::now() >= until {
            return Ok(seen);
        }
        thread::sleep(SETTLE_PAUSE);
    }
}

fn protocol_status(
    name: &ProtocolName,
    seen: Result<Protocol, BirdError>,
    before: &[ProtocolStatus],
    now: Instant,
) -> ProtocolStatus {
    let before = before.iter().find(|before| before.name == *name);
    let (state, is_announced, last_error) = match seen {
        Ok(protocol) => {
            let is_announced = protocol.state == ProtocolState::Up && protocol.routes_imported() > 0;
            (Some(protocol.state), is_announced, None)
        }
        Err(error) => (None, false, Some(error.to_string())),
    };
    let since = before.filter(|before| before.state == state).map_or(now, |before| before.since);
    ProtocolStatus { name: name.clone(), state, since, is_announced, last_error }
}

fn sessions(protocols: &[Protocol], bfd: &[BfdSession]) -> Vec<SessionStatus> {
    let exporters = protocols.iter().filter(|protocol| protocol.is_bgp() && protocol.exports());
    exporters
        .map(|protocol| SessionStatus {
            name: protocol.name.clone(),
            neighbor: protocol.neighbor,
            is_established: protocol.is_established(),
            info: protocol.info.clone(),
            routes_exported: protocol.routes_exported(),
            bfd: bfd
                .iter()
                .find(|session| Some(session.neighbor) == protocol.neighbor)
                .map(|found| found.state.clone()),
        })
        .collect()
}
