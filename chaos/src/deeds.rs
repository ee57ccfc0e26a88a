//! Carrying out the plan: troubles each in a thread of their own, changes of the configuration one after the other.

use crate::cast::{Cast, SharedTimeline, lock};
use crate::clock::{micros, now};
use crate::engine::Engine;
use crate::operator::Operator;
use crate::origin::Manners;
use crate::plan::{Configure, Deed, SERVERS, Step};
use crate::timeline::{ServerId, Trouble, Window};
use crate::vault::Vault;
use propylon_bench::failure::{Failure, Outcome};
use propylon_bench::interrupt::Interrupt;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// From the death of a server, or its silence, until nobody may be sent there: two probes that are refused, or wait out
/// their second, with as much again for a machine that is busy.
const KNOWN_DEAD_AFTER: Duration = Duration::from_secs(3);
const KNOWN_STOPPED_AFTER: Duration = Duration::from_secs(5);
/// A stretch that is shorter says nothing.
const STRETCH_MIN: Duration = Duration::from_millis(300);

/// State that all who carry out something share.
pub struct Ring {
    pub cast: Cast,
    pub vault: Vault,
    pub engine: Arc<Mutex<Engine>>,
    pub timeline: SharedTimeline,
    /// Violations that were found on the way.
    pub complaints: Mutex<Vec<String>>,
    /// Steps that could not be carried out; the run is worth nothing then.
    pub failures: Mutex<Vec<Failure>>,
    /// Stretches in which servers were known to be gone, that were looked at.
    pub stretches: Mutex<u64>,
}

/// Number of deeds that were done, by name.
pub type Done = BTreeMap<&'static str, u64>;

/// All of the plan, and the operator again when it is over.
pub fn carry_out(
    ring: &Arc<Ring>,
    steps: &[Step],
    operator: Operator,
    interrupt: &Interrupt,
) -> Outcome<(Done, Operator)> {
    let start = lock(&ring.timeline).start;
    let (changes, waiting) = mpsc::channel::<Configure>();
    let operating = operate(ring, operator, waiting);
    let mut troubles = Vec::new();
    let mut done = Done::new();
    for step in steps {
        let due = start + step.at * 1_000;
        interrupt.sleep(Duration::from_micros(due.saturating_sub(now())))?;
        if !lock(&ring.failures).is_empty() {
            break;
        }
        *done.entry(step.deed.name()).or_default() += 1;
        if let Deed::Configure(configure) = &step.deed {
            // The operator's end shows in its failure.
            let _ = changes.send(configure.clone());
            continue;
        }
        let (ring, deed) = (Arc::clone(ring), step.deed.clone());
        troubles.push(std::thread::spawn(move || {
            if let Err(failure) = ring.trouble(&deed) {
                lock(&ring.failures).push(failure);
            }
        }));
    }
    drop(changes);
    for trouble in troubles {
        trouble.join().map_err(|_| Failure::new("a thread of the run panicked"))?;
    }
    let operator = operating.join().map_err(|_| Failure::new("the operator's thread panicked"))?;
    Ok((done, operator))
}

fn operate(
    ring: &Arc<Ring>,
    mut operator: Operator,
    waiting: mpsc::Receiver<Configure>,
) -> std::thread::JoinHandle<Operator> {
    let ring = Arc::clone(ring);
    std::thread::spawn(move || {
        for configure in waiting {
            if let Err(failure) = operator.carry_out(&configure) {
                lock(&ring.failures).push(failure);
                break;
            }
        }
        operator
    })
}

impl Ring {
    fn trouble(&self, deed: &Deed) -> Outcome<()> {
        let pause = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
        let calm = Manners::default();
        match *deed {
            Deed::Kill { server, down } => {
                let episode = self.cast.kill(server)?;
                self.wait_and_see(server, Duration::from_millis(down), KNOWN_DEAD_AFTER)?;
                self.cast.revive(server, episode)
            }
            Deed::Blackout { down } => {
                let episodes: Vec<_> = (0..SERVERS)
                    .map(ServerId)
                    .map(|server| Ok((server, self.cast.kill(server)?)))
                    .collect::<Outcome<_>>()?;
                pause(down);
                episodes.into_iter().try_for_each(|(server, episode)| self.cast.revive(server, episode))
            }
            Deed::Stop { server, lasts } => {
                let episode = self.cast.stop(server)?;
                self.wait_and_see(server, Duration::from_millis(lasts), KNOWN_STOPPED_AFTER)?;
                self.cast.go_on(server, episode)
            }
            Deed::Slow { server, delay, lasts } => {
                self.behave(server, Trouble::Slow, Manners { slow_ms: delay, ..calm }, lasts)
            }
            Deed::Fail { server, percent, lasts } => {
                self.behave(server, Trouble::Failing, Manners { fail_percent: percent, ..calm }, lasts)
            }
            Deed::Cut { server, percent, lasts } => {
                self.behave(server, Trouble::Cutting, Manners { cut_percent: percent, ..calm }, lasts)
            }
            Deed::Deafen { server, lasts } => self.behave(server, Trouble::Deaf, Manners { deaf: true, ..calm }, lasts),
            Deed::Flap { server, times, period } => (0..times).try_for_each(|_| {
                let episode = self.cast.kill(server)?;
                pause(period);
                self.cast.revive(server, episode)?;
                pause(period);
                Ok(())
            }),
            Deed::KillKeyServer { server, down } => {
                self.vault.kill(server);
                pause(down);
                self.vault.revive(server)
            }
            Deed::StopKeyServer { server, lasts } => {
                self.vault.signal(server, Signal::STOP)?;
                pause(lasts);
                self.vault.signal(server, Signal::CONT)
            }
            Deed::Configure(_) => Ok(()),
        }
    }

    fn behave(&self, server: ServerId, trouble: Trouble, manners: Manners, lasts: u64) -> Outcome<()> {
        let episode = self.cast.behave(server, trouble, manners)?;
        std::thread::sleep(Duration::from_millis(lasts));
        self.cast.behave_again(server, episode)
    }

    /// Waits, and looks whether the server is left alone once everybody should know: nothing is sent to it between
    /// `known` after the beginning and the end.
    fn wait_and_see(&self, server: ServerId, lasts: Duration, known: Duration) -> Outcome<()> {
        if lasts < known + STRETCH_MIN {
            std::thread::sleep(lasts);
            return Ok(());
        }
        let from = now();
        std::thread::sleep(known);
        let before = self.sent_to(server)?;
        std::thread::sleep(lasts - known);
        let sent = self.sent_to(server)?.saturating_sub(before);
        // A server that was put back by a change is new to the engine, and a machine that stalls knows nothing in time.
        let window = Window::new(from, now()).since_before(micros(known));
        let timeline = lock(&self.timeline);
        if timeline.is_changing(window) || timeline.is_stalled(window) {
            return Ok(());
        }
        *lock(&self.stretches) += 1;
        if sent > 0 {
            let at = crate::clock::since(timeline.start, from);
            let what =
                format!("server {server} was gone at {at} and was sent {sent} requests later than {known:?} after");
            lock(&self.complaints).push(what);
        }
        Ok(())
    }

    fn sent_to(&self, server: ServerId) -> Outcome<u64> {
        let address = self.cast.places[usize::from(server.0)].http.to_string();
        let metrics = lock(&self.engine).metrics()?;
        Ok(metrics.count("propylon_server_requests_total", &[("backend", "app"), ("server", &address)]))
    }
}
