//! Coordinator and agents together, in one process, over loopback.

use super::agent::Agent;
use super::channel::Channel;
use super::coordinator::AgentsArguments;
use super::identity::tests::identities;
use super::identity::{AgentIdentity, CoordinatorIdentity};
use super::message::{Job, Message, TargetFlags};
use super::rules::tests::{job, rules};
use super::shared::Shared;
use crate::interrupt::Interrupt;
use crate::load::Until;
use crate::origin::tests::Running;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Far beyond what an agent that lives is silent on a busy machine.
const SILENCE_MAX: Duration = Duration::from_secs(4);
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The one CA of coordinator and agents.
fn ca() -> &'static (CoordinatorIdentity, AgentIdentity) {
    static CA: OnceLock<(CoordinatorIdentity, AgentIdentity)> = OnceLock::new();
    CA.get_or_init(identities)
}

/// An agent on its own threads, for as long as this lives.
struct RunningAgent {
    address: SocketAddr,
    interrupt: Interrupt,
    thread: Option<JoinHandle<()>>,
}

impl RunningAgent {
    fn start() -> Self {
        Self::start_as(ca().1.clone())
    }

    fn start_as(identity: AgentIdentity) -> Self {
        let shared = Shared::new(identity, rules(&["127.0.0.1"]));
        let agent = Agent::bind("127.0.0.1:0", shared).unwrap();
        let (address, interrupt) = (agent.address().unwrap(), Interrupt::default());
        let flag = interrupt.clone();
        let thread = Some(std::thread::spawn(move || agent.serve(&flag).unwrap()));
        Self { address, interrupt, thread }
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        self.interrupt.raise();
        let _ = self.thread.take().unwrap().join();
    }
}

fn arguments(agents: &[SocketAddr]) -> AgentsArguments {
    AgentsArguments { agents: agents.iter().map(ToString::to_string).collect(), ..AgentsArguments::default() }
}

fn measure(agents: &[SocketAddr], whole: &Job) -> crate::failure::Outcome<super::Distributed> {
    let identity = ca().0.clone();
    let me = [std::process::id()];
    arguments(agents).fleet(whole, identity, SILENCE_MAX)?.measure(whole, &me, &Interrupt::default())
}

fn whole(target: SocketAddr, until: Until) -> Job {
    Job { connections: 8, until, ..job(&target.to_string()) }
}

fn connect(agent: SocketAddr) -> Channel {
    let socket = TcpStream::connect(agent).unwrap();
    ca().0.connect(socket, "127.0.0.1").unwrap()
}

/// Past the signs of life.
fn answer(channel: &mut Channel) -> Message {
    loop {
        match channel.receive(WAIT_MAX).unwrap() {
            Message::Alive => {}
            message => return message,
        }
    }
}

#[test]
fn three_agents_do_exactly_the_count_and_every_error_is_in_the_sum() {
    // One answer in five is a 500, wherever it comes from.
    let origin = Running::start(Duration::ZERO, Some(5));
    let agents: Vec<RunningAgent> = (0..3).map(|_| RunningAgent::start()).collect();
    let addresses: Vec<SocketAddr> = agents.iter().map(|agent| agent.address).collect();
    let distributed = measure(&addresses, &whole(origin.address, Until::Finished(1000))).unwrap();
    let summary = distributed.measured.stats.summary();
    assert_eq!((summary.done, summary.errors_total(), summary.errors["bad-status"]), (800, 200, 200));
    assert_eq!((summary.connections, summary.body_bytes), (8, 800 * 1024));
    assert!(summary.first_error.unwrap().starts_with("agent 127.0.0.1:"));
    // Every good answer is one sample.
    let samples: u64 = distributed.measured.stats.latency().len();
    assert_eq!(samples, 800);
    let report = &distributed.report;
    let finished: Vec<u64> = report.agents.iter().map(|agent| agent.done + agent.errors).collect();
    assert_eq!((finished, report.missing, report.losses().len()), (vec![334, 333, 333], 0.0, 0));
    assert!(report.start_spread < 1_000_000_000, "{report:?}");
    assert!(distributed.usage.cpu > Duration::ZERO);
}

#[test]
fn agents_together_offer_the_rate_that_one_would() {
    let origin = Running::start(Duration::ZERO, None);
    let agents: Vec<RunningAgent> = (0..3).map(|_| RunningAgent::start()).collect();
    let addresses: Vec<SocketAddr> = agents.iter().map(|agent| agent.address).collect();
    let whole = Job { micro_rate: Some(100_000_000), ..whole(origin.address, Until::Elapsed(Duration::from_secs(1))) };
    let summary = measure(&addresses, &whole).unwrap().measured.stats.summary();
    // 100 arrivals in one second, however they are divided, and however busy this machine is.
    assert_eq!((summary.done + summary.unanswered, summary.errors_total()), (100, 0), "{summary:?}");
}

#[test]
fn an_agent_of_another_ca_or_a_closed_port_is_named_and_the_others_finish() {
    let origin = Running::start(Duration::ZERO, None);
    let (good, strange) = (RunningAgent::start(), RunningAgent::start_as(identities().1));
    let closed = SocketAddr::from(([127, 0, 0, 1], crate::machine::free_ports(1).unwrap()[0]));
    let whole = whole(origin.address, Until::Finished(300));
    let distributed = measure(&[strange.address, good.address, closed], &whole).unwrap();
    assert_eq!(distributed.measured.stats.done, 100);
    let losses = distributed.report.losses();
    let refused = format!("agent {} cannot be used (TLS handshake: invalid peer certificate: ", strange.address);
    assert!(losses[0].starts_with(&refused) && losses[0].ends_with("33 % of the load is missing"), "{losses:?}");
    assert!(losses[1].starts_with(&format!("agent {closed} cannot be used (connecting: ")), "{losses:?}");
    assert!((distributed.report.missing - 2.0 / 3.0).abs() < 0.01);

    let failure = measure(&[strange.address], &whole).err().unwrap().to_string();
    assert!(failure.starts_with("no agent is ready; agent "), "{failure}");
}

#[test]
fn a_target_that_is_not_allowed_is_refused() {
    let agent = RunningAgent::start();
    let elsewhere = Job { target: TargetFlags { target: "localhost:1".to_owned(), ..job("").target }, ..job("") };
    let failure = measure(&[agent.address], &elsewhere).err().unwrap().to_string();
    assert!(failure.contains("refused (the target localhost:1 is not allowed here (see --allow))"), "{failure}");
}

#[test]
fn an_agent_that_falls_silent_is_a_stall() {
    let origin = Running::start(Duration::ZERO, None);
    let good = RunningAgent::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let mut channel = ca().1.accept(listener.accept().unwrap().0, Instant::now() + WAIT_MAX).unwrap();
        assert!(matches!(channel.receive(WAIT_MAX).unwrap(), Message::Job(_)));
        channel.send(&Message::Ready).unwrap();
        loop {
            match answer(&mut channel) {
                Message::Clock => channel.send(&Message::ClockIs { received: 5, sent: 5 }).unwrap(),
                Message::Start { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        let _ = released.recv_timeout(WAIT_MAX);
    });
    let distributed = measure(&[good.address, silent], &whole(origin.address, Until::Finished(200))).unwrap();
    drop(release);
    thread.join().unwrap();
    assert_eq!(distributed.measured.stats.done, 100);
    let losses = distributed.report.losses();
    assert!(losses[0].starts_with(&format!("agent {silent} stalled after ")), "{losses:?}");
    assert!(losses[0].ends_with("(nothing was heard for 4 s): 50 % of the load is missing"), "{losses:?}");
}

#[test]
fn an_agent_does_one_job_at_a_time_and_stops_with_its_coordinator() {
    let origin = Running::start(Duration::ZERO, None);
    let agent = RunningAgent::start();
    let long = Job { until: Until::Elapsed(Duration::from_secs(50)), ..job(&origin.address.to_string()) };
    let mut first = connect(agent.address);
    first.send(&Message::Job(Box::new(long.clone()))).unwrap();
    assert_eq!(answer(&mut first), Message::Ready);
    first.send(&Message::Clock).unwrap();
    let Message::ClockIs { received, .. } = answer(&mut first) else { panic!("no clock") };
    let at = received + 200_000_000;
    first.send(&Message::Start { warmup_at: at, measure_at: at }).unwrap();
    let Message::Progress { .. } = answer(&mut first) else { panic!("no progress") };

    let mut second = connect(agent.address);
    second.send(&Message::Job(Box::new(long.clone()))).unwrap();
    let Message::Refused { why } = answer(&mut second) else { panic!("not refused") };
    assert!(why.starts_with("busy with a job of 127.0.0.1:"), "{why}");

    // Gone without a word: the load ends long before its 50 seconds, and the agent is free again.
    drop(first);
    let until = Instant::now() + WAIT_MAX;
    loop {
        let mut third = connect(agent.address);
        third.send(&Message::Job(Box::new(long.clone()))).unwrap();
        match answer(&mut third) {
            Message::Ready => break,
            Message::Refused { .. } if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_start_that_has_passed_is_a_failure_not_a_late_begin() {
    let agent = RunningAgent::start();
    let mut channel = connect(agent.address);
    channel.send(&Message::Job(Box::new(job("127.0.0.1:1")))).unwrap();
    assert_eq!(answer(&mut channel), Message::Ready);
    channel.send(&Message::Start { warmup_at: 0, measure_at: 0 }).unwrap();
    let Message::Failed { why } = answer(&mut channel) else { panic!("it began") };
    assert!(why.contains("too late"), "{why}");
}
