//! Coordinator and agents together, in one process, over loopback.

use super::agent::{Agent, Shared};
use super::channel::Channel;
use super::coordinator::AgentsArguments;
use super::identity::{AgentIdentity, CoordinatorIdentity, Secret};
use super::message::{Job, Message, TargetFlags};
use super::rules::tests::{job, rules};
use crate::interrupt::Interrupt;
use crate::load::Until;
use crate::origin::tests::Running;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SECRET: &[u8] = b"a secret of enough bytes";
/// Far beyond what an agent that lives is silent on a busy machine.
const SILENCE_MAX: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(20);

/// An agent on its own threads, for as long as this lives.
struct RunningAgent {
    address: SocketAddr,
    interrupt: Interrupt,
    thread: Option<JoinHandle<()>>,
}

impl RunningAgent {
    fn start(secret: &[u8]) -> Self {
        let shared = Shared::new(AgentIdentity::Secret(Secret::new(secret)), rules(&["127.0.0.1"]));
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
    let identity = CoordinatorIdentity::Secret(Secret::new(SECRET));
    let me = [std::process::id()];
    arguments(agents).fleet(whole, identity, SILENCE_MAX)?.measure(whole, &me, &Interrupt::default())
}

fn whole(target: SocketAddr, until: Until) -> Job {
    Job { connections: 8, until, ..job(&target.to_string()) }
}

fn greet(agent: SocketAddr) -> Channel {
    let socket = TcpStream::connect(agent).unwrap();
    CoordinatorIdentity::Secret(Secret::new(SECRET)).greet(socket, "127.0.0.1").unwrap()
}

/// Past the signs of life.
fn answer(channel: &mut Channel) -> Message {
    loop {
        match channel.receive(PATIENCE).unwrap() {
            Message::Alive => {}
            message => return message,
        }
    }
}

#[test]
fn three_agents_do_exactly_the_count_and_every_error_is_in_the_sum() {
    // One answer in five is a 500, wherever it comes from.
    let origin = Running::start(Duration::ZERO, Some(5));
    let agents: Vec<RunningAgent> = (0..3).map(|_| RunningAgent::start(SECRET)).collect();
    let addresses: Vec<SocketAddr> = agents.iter().map(|agent| agent.address).collect();
    let distributed = measure(&addresses, &whole(origin.address, Until::Finished(1000))).unwrap();
    let summary = distributed.measured.tally.summary();
    assert_eq!((summary.done, summary.errors_total(), summary.errors["bad-status"]), (800, 200, 200));
    assert_eq!((summary.connections, summary.body_bytes), (8, 800 * 1024));
    assert!(summary.first_error.unwrap().starts_with("agent 127.0.0.1:"));
    // Every good answer is one sample.
    let samples: u64 = distributed.measured.tally.portable().latency.iter().map(|bucket| bucket.1).sum();
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
    let agents: Vec<RunningAgent> = (0..3).map(|_| RunningAgent::start(SECRET)).collect();
    let addresses: Vec<SocketAddr> = agents.iter().map(|agent| agent.address).collect();
    let whole = Job { micro_rate: Some(100_000_000), ..whole(origin.address, Until::Elapsed(Duration::from_secs(1))) };
    let summary = measure(&addresses, &whole).unwrap().measured.tally.summary();
    // 100 arrivals in one second, however they are divided, and however busy this machine is.
    assert_eq!((summary.done + summary.unanswered, summary.errors_total()), (100, 0), "{summary:?}");
}

#[test]
fn an_agent_with_another_secret_or_a_closed_port_is_named_and_the_others_finish() {
    let origin = Running::start(Duration::ZERO, None);
    let (good, strange) = (RunningAgent::start(SECRET), RunningAgent::start(b"another secret of enough bytes"));
    let closed = SocketAddr::from(([127, 0, 0, 1], crate::machine::free_ports(1).unwrap()[0]));
    let whole = whole(origin.address, Until::Finished(300));
    let distributed = measure(&[strange.address, good.address, closed], &whole).unwrap();
    assert_eq!(distributed.measured.tally.done, 100);
    let losses = distributed.report.losses();
    let refused = format!(
        "agent {} cannot be used (it refused: the secret is not the same here): 33 % of the load is missing",
        strange.address
    );
    assert_eq!(losses[0], refused);
    assert!(losses[1].starts_with(&format!("agent {closed} cannot be used (connecting: ")), "{losses:?}");
    assert!((distributed.report.missing - 2.0 / 3.0).abs() < 0.01);

    let failure = measure(&[strange.address], &whole).err().unwrap().to_string();
    assert!(failure.starts_with("no agent is ready; agent "), "{failure}");
}

#[test]
fn a_target_that_is_not_allowed_is_refused() {
    let agent = RunningAgent::start(SECRET);
    let elsewhere = Job { target: TargetFlags { target: "localhost:1".to_owned(), ..job("").target }, ..job("") };
    let failure = measure(&[agent.address], &elsewhere).err().unwrap().to_string();
    assert!(failure.contains("refused (the target localhost:1 is not allowed here (see --allow))"), "{failure}");
}

#[test]
fn an_agent_that_falls_silent_is_a_stall() {
    let origin = Running::start(Duration::ZERO, None);
    let good = RunningAgent::start(SECRET);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let mut channel = AgentIdentity::Secret(Secret::new(SECRET)).meet(listener.accept().unwrap().0).unwrap();
        assert!(matches!(channel.receive(PATIENCE).unwrap(), Message::Job(_)));
        channel.send(&Message::Ready).unwrap();
        loop {
            match answer(&mut channel) {
                Message::Clock => channel.send(&Message::ClockIs { received: 5, sent: 5 }).unwrap(),
                Message::Start { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        let _ = released.recv_timeout(PATIENCE);
    });
    let distributed = measure(&[good.address, silent], &whole(origin.address, Until::Finished(200))).unwrap();
    drop(release);
    thread.join().unwrap();
    assert_eq!(distributed.measured.tally.done, 100);
    let losses = distributed.report.losses();
    assert!(losses[0].starts_with(&format!("agent {silent} stalled after ")), "{losses:?}");
    assert!(losses[0].ends_with("(nothing was heard for 4 s): 50 % of the load is missing"), "{losses:?}");
}

#[test]
fn an_agent_does_one_job_at_a_time_and_stops_with_its_coordinator() {
    let origin = Running::start(Duration::ZERO, None);
    let agent = RunningAgent::start(SECRET);
    let long = Job { until: Until::Elapsed(Duration::from_secs(50)), ..job(&origin.address.to_string()) };
    let mut first = greet(agent.address);
    first.send(&Message::Job(Box::new(long.clone()))).unwrap();
    assert_eq!(answer(&mut first), Message::Ready);
    first.send(&Message::Clock).unwrap();
    let Message::ClockIs { received, .. } = answer(&mut first) else { panic!("no clock") };
    let at = received + 200_000_000;
    first.send(&Message::Start { warmup_at: at, measure_at: at }).unwrap();
    let Message::Progress { .. } = answer(&mut first) else { panic!("no progress") };

    let mut second = greet(agent.address);
    second.send(&Message::Job(Box::new(long.clone()))).unwrap();
    let Message::Refused { why } = answer(&mut second) else { panic!("not refused") };
    assert!(why.starts_with("busy with a job of 127.0.0.1:"), "{why}");

    // Gone without a word: the load ends long before its 50 seconds, and the agent is free again.
    drop(first);
    let until = Instant::now() + PATIENCE;
    loop {
        let mut third = greet(agent.address);
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
    let agent = RunningAgent::start(SECRET);
    let mut channel = greet(agent.address);
    channel.send(&Message::Job(Box::new(job("127.0.0.1:1")))).unwrap();
    assert_eq!(answer(&mut channel), Message::Ready);
    channel.send(&Message::Start { warmup_at: 0, measure_at: 0 }).unwrap();
    let Message::Failed { why } = answer(&mut channel) else { panic!("it began") };
    assert!(why.contains("too late"), "{why}");
}

/// All that went over the wire once is said again to the same agent; not even the greeting is taken.
#[test]
fn a_recorded_session_cannot_be_replayed() {
    use std::io::{Read, Write};
    let agent = RunningAgent::start(SECRET);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap();
    let to = agent.address;
    let tap = std::thread::spawn(move || {
        let (mut near, mut far) = (listener.accept().unwrap().0, TcpStream::connect(to).unwrap());
        let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let back = std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let mut recorded = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = near.read(&mut buffer) {
            recorded.extend_from_slice(&buffer[..count]);
            far.write_all(&buffer[..count]).unwrap();
        }
        let _ = far.shutdown(std::net::Shutdown::Both);
        let _ = back.join();
        recorded
    });
    let mut channel = greet(between);
    channel.send(&Message::Job(Box::new(job("127.0.0.1:1")))).unwrap();
    assert_eq!(answer(&mut channel), Message::Ready);
    drop(channel);
    let recorded = tap.join().unwrap();

    // The agent challenges anew, is not convinced, and closes.
    let mut socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(&recorded).unwrap();
    let mut said = Vec::new();
    // The agent closes with bytes of ours unread, which may be a reset.
    let _ = socket.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("challenge") && !said.contains("welcome") && !said.contains("ready"), "{said}");
}
