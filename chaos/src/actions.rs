//! Carrying out the plan: faults each in a thread of their own, changes of the configuration one after the other.

use crate::clock::{micros, now};
use crate::engine::Engine;
use crate::key_servers::KeyServers;
use crate::operator::Operator;
use crate::origin::Behaviour;
use crate::plan::{Action, Configure, SERVERS, Step};
use crate::server_processes::{ServerProcesses, SharedTimeline, lock};
use crate::timeline::{Fault, ServerId, Window};
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
const PAUSE_MIN: Duration = Duration::from_millis(300);

/// State that all who carry out something share.
pub struct Testbed {
    pub server_processes: ServerProcesses,
    pub key_servers: KeyServers,
    pub engine: Arc<Mutex<Engine>>,
    pub timeline: SharedTimeline,
    /// Violations that were found on the way.
    pub violations: Mutex<Vec<String>>,
    /// Steps that could not be carried out; the run is worth nothing then.
    pub failures: Mutex<Vec<Failure>>,
    /// Stretches in which servers were known to be gone, that were looked at.
    pub checked_pauses: Mutex<u64>,
}

/// Number of actions that were done, by name.
pub type Done = BTreeMap<&'static str, u64>;

/// All of the plan, and the operator again when it is over.
pub fn carry_out(
    testbed: &Arc<Testbed>,
    steps: &[Step],
    operator: Operator,
    interrupt: &Interrupt,
) -> Outcome<(Done, Operator)> {
    let start = lock(&testbed.timeline).start;
    let (changes, waiting) = mpsc::channel::<Configure>();
    let operating = operate(testbed, operator, waiting);
    let mut faults = Vec::new();
    let mut done = Done::new();
    for step in steps {
        let due = start + step.at * 1_000;
        interrupt.sleep(Duration::from_micros(due.saturating_sub(now())))?;
        if !lock(&testbed.failures).is_empty() {
            break;
        }
        *done.entry(step.action.name()).or_default() += 1;
        if let Action::Configure(configure) = &step.action {
            // The operator's end shows in its failure.
            let _ = changes.send(configure.clone());
            continue;
        }
        let (testbed, action) = (Arc::clone(testbed), step.action.clone());
        faults.push(std::thread::spawn(move || {
            if let Err(failure) = testbed.fault(&action) {
                lock(&testbed.failures).push(failure);
            }
        }));
    }
    drop(changes);
    for fault in faults {
        fault.join().map_err(|_| Failure::new("a thread of the run panicked"))?;
    }
    let operator = operating.join().map_err(|_| Failure::new("the operator's thread panicked"))?;
    Ok((done, operator))
}

fn operate(
    testbed: &Arc<Testbed>,
    mut operator: Operator,
    waiting: mpsc::Receiver<Configure>,
) -> std::thread::JoinHandle<Operator> {
    let testbed = Arc::clone(testbed);
    std::thread::spawn(move || {
        for configure in waiting {
            if let Err(failure) = operator.carry_out(&configure) {
                lock(&testbed.failures).push(failure);
                break;
            }
        }
        operator
    })
}

impl Testbed {
    fn fault(&self, action: &Action) -> Outcome<()> {
        let pause = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
        let calm = Behaviour::default();
        match *action {
            Action::Kill { server, down } => {
                let episode = self.server_processes.kill(server)?;
                self.wait_and_see(server, Duration::from_millis(down), KNOWN_DEAD_AFTER)?;
                self.server_processes.revive(server, episode)
            }
            Action::Blackout { down } => {
                let episodes: Vec<_> = (0..SERVERS)
                    .map(ServerId)
                    .map(|server| Ok((server, self.server_processes.kill(server)?)))
                    .collect::<Outcome<_>>()?;
                pause(down);
                episodes.into_iter().try_for_each(|(server, episode)| self.server_processes.revive(server, episode))
            }
            Action::Stop { server, lasts } => {
                let episode = self.server_processes.stop(server)?;
                self.wait_and_see(server, Duration::from_millis(lasts), KNOWN_STOPPED_AFTER)?;
                self.server_processes.resume(server, episode)
            }
            Action::Slow { server, delay, lasts } => {
                self.behave(server, Fault::Slow, Behaviour { slow_ms: delay, ..calm }, lasts)
            }
            Action::Fail { server, percent, lasts } => {
                self.behave(server, Fault::Failing, Behaviour { fail_percent: percent, ..calm }, lasts)
            }
            Action::Cut { server, percent, lasts } => {
                self.behave(server, Fault::Cutting, Behaviour { cut_percent: percent, ..calm }, lasts)
            }
            Action::Deafen { server, lasts } => {
                self.behave(server, Fault::Deaf, Behaviour { deaf: true, ..calm }, lasts)
            }
            Action::Flap { server, times, period } => (0..times).try_for_each(|_| {
                let episode = self.server_processes.kill(server)?;
                pause(period);
                self.server_processes.revive(server, episode)?;
                pause(period);
                Ok(())
            }),
            Action::KillKeyServer { server, down } => {
                self.key_servers.kill(server);
                pause(down);
                self.key_servers.revive(server)
            }
            Action::StopKeyServer { server, lasts } => {
                self.key_servers.signal(server, Signal::STOP)?;
                pause(lasts);
                self.key_servers.signal(server, Signal::CONT)
            }
            Action::Configure(_) => Ok(()),
        }
    }

    fn behave(&self, server: ServerId, fault: Fault, behaviour: Behaviour, lasts: u64) -> Outcome<()> {
        let episode = self.server_processes.behave(server, fault, behaviour)?;
        std::thread::sleep(Duration::from_millis(lasts));
        self.server_processes.behave_again(server, episode)
    }

    /// Waits, and looks whether the server is left alone once everybody should know: nothing is sent to it between
    /// `known` after the beginning and the end.
    fn wait_and_see(&self, server: ServerId, lasts: Duration, known: Duration) -> Outcome<()> {
        if lasts < known + PAUSE_MIN {
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
        *lock(&self.checked_pauses) += 1;
        if sent > 0 {
            let at = crate::clock::since(timeline.start, from);
            let what =
                format!("server {server} was gone at {at} and was sent {sent} requests later than {known:?} after");
            lock(&self.violations).push(what);
        }
        Ok(())
    }

    fn sent_to(&self, server: ServerId) -> Outcome<u64> {
        let address = self.server_processes.server_addresses[usize::from(server.0)].http.to_string();
        let metrics = lock(&self.engine).metrics()?;
        Ok(metrics.count("propylon_server_requests_total", &[("backend", "app"), ("server", &address)]))
    }
}
