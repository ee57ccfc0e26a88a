//! An agent's side of one coordinator: know it, take its job, load the target, send what came of it.
//!
//! Two threads: this one listens and speaks, another does nothing but load, as it would without a coordinator.

use super::channel::Channel;
use super::clock::Clock;
use super::identity::{HANDSHAKE_TIMEOUT, unexpected};
use super::message::{Job, Message, Results, printable};
use super::shared::Shared;
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::load::{Load, Until};
use crate::report::{Pace, progress};
use crate::scratch::ScratchDir;
use crate::target::Target;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which the session thread looks at its load thread.
const TURN: Duration = Duration::from_millis(20);
/// A coordinator that says nothing for so long is gone, and its load must not go on without it.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// A job may be this much longer than it says: connections are made, figures are sent.
const OVERTIME: Duration = Duration::from_secs(5);

/// From the thread that loads.
enum Event {
    Ready,
    Progress { done: u64, errors: u64 },
    Finished,
    Results(Box<Results>),
    Failed(String),
}

struct Session<'a> {
    channel: Channel,
    shared: &'a Shared,
    interrupt: &'a Interrupt,
    clock: Clock,
    peer: String,
}

/// The loading thread and the lines to it. Ended with its owner.
struct Worker {
    start: Option<Sender<(Instant, Instant)>>,
    events: Receiver<Event>,
    interrupt: Interrupt,
    thread: Option<JoinHandle<()>>,
}

pub fn serve(socket: TcpStream, shared: &Arc<Shared>, interrupt: &Interrupt) -> Outcome<()> {
    let channel = shared.identity.accept(socket, Instant::now() + HANDSHAKE_TIMEOUT)?;
    let peer = channel.peer().map_or_else(|| "a coordinator".to_owned(), |peer| peer.to_string());
    Session { channel, shared, interrupt, clock: Clock::start(), peer }.run()
}

impl Session<'_> {
    fn run(&mut self) -> Outcome<()> {
        let job = match self.channel.receive(SILENCE_MAX)? {
            Message::Job(job) => *job,
            other => return Err(unexpected(&other)),
        };
        let description = describe(&job);
        let claim = self.shared.rules.check(&job).and_then(|()| self.shared.claim(&self.peer));
        let _claim = match claim {
            Ok(claim) => claim,
            Err(failure) => {
                let _ = self.channel.send(&Message::Refused { why: failure.to_string() });
                return Err(Failure::new(format!("refused {description}: {failure}")));
            }
        };
        progress(format_args!("serving {}: {description}", self.peer));
        let outcome = self.work(job);
        match &outcome {
            Ok(results) => {
                let errors = results.stats.errors_total();
                progress(format_args!("served {}: {} done, {errors} errors", self.peer, results.stats.done));
            }
            Err(failure) => {
                let _ = self.channel.send(&Message::Failed { why: failure.to_string() });
            }
        }
        outcome.map(|_| ())
    }

    /// Until the figures are sent.
    fn work(&mut self, job: Job) -> Outcome<Box<Results>> {
        let mut deadline = None;
        let mut worker = Worker::start(job, self.shared, self.clock)?;
        let mut heard = Instant::now();
        let mut pace = Pace::started();
        loop {
            loop {
                match worker.events.try_recv() {
                    Ok(Event::Ready) => self.channel.send(&Message::Ready)?,
                    Ok(Event::Progress { done, errors }) => {
                        self.channel.send(&Message::Progress { done, errors })?;
                    }
                    Ok(Event::Finished) => self.channel.send(&Message::Finished)?,
                    Ok(Event::Results(results)) => {
                        self.channel.send(&Message::Results(results.clone()))?;
                        return Ok(results);
                    }
                    Ok(Event::Failed(why)) => return Err(Failure::new(why)),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Err(Failure::new("the load ended without figures")),
                }
            }
            if self.interrupt.is_raised() {
                return Err(Failure::new("the agent was stopped"));
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                let allowed = self.shared.rules.duration_max.as_secs_f64();
                return Err(Failure::new(format!("the load took longer than {allowed} s (--max-duration)")));
            }
            if pace.is_due(Instant::now()) {
                self.channel.send(&Message::Alive)?;
            }
            match self.channel.poll(TURN)? {
                None if heard.elapsed() > SILENCE_MAX => {
                    return Err(Failure::new(format!("nothing was heard for {} s", SILENCE_MAX.as_secs())));
                }
                None => continue,
                Some(Message::Clock) => {
                    let received = self.clock.now();
                    self.channel.send(&Message::ClockIs { received, sent: self.clock.now() })?;
                }
                Some(Message::Start { warmup_at, measure_at }) => {
                    let at = self.clock.instant(warmup_at).zip(self.clock.instant(measure_at));
                    let at = at.ok_or_else(|| Failure::new("a start beyond all time"))?;
                    deadline = Some(Instant::now() + self.shared.rules.duration_max + OVERTIME);
                    worker.begin(at)?;
                }
                Some(Message::Alive) => {}
                Some(other) => return Err(unexpected(&other)),
            }
            heard = Instant::now();
        }
    }
}

impl Worker {
    fn start(job: Job, shared: &Shared, clock: Clock) -> Outcome<Self> {
        let (sender, events) = channel();
        let (start, started) = channel();
        let interrupt = Interrupt::default();
        let load = LoadThread {
            job,
            sources: shared.sources.clone(),
            core: shared.core,
            clock,
            sender,
            started,
            interrupt: interrupt.clone(),
        };
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || load.run());
        Ok(Self { start: Some(start), events, interrupt, thread: Some(thread.when("starting a thread")?) })
    }

    fn begin(&mut self, at: (Instant, Instant)) -> Outcome<()> {
        let start = self.start.take().ok_or_else(|| Failure::new("a second start"))?;
        start.send(at).when("starting the load")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.interrupt.raise();
        // Without a sender, a thread that still waits for its start ends.
        self.start = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State of the thread that loads.
struct LoadThread {
    job: Job,
    sources: Vec<std::net::IpAddr>,
    core: Option<usize>,
    clock: Clock,
    sender: Sender<Event>,
    started: Receiver<(Instant, Instant)>,
    interrupt: Interrupt,
}

impl LoadThread {
    fn run(self) {
        if let Err(failure) = self.load() {
            let _ = self.sender.send(Event::Failed(failure.to_string()));
        }
    }

    /// The CA came as text; it lies in a file only while it is read.
    fn target(&self) -> Outcome<Target> {
        let flags = |ca| self.job.target.arguments(ca, &self.sources)?.resuming(self.job.resume);
        let Some(pem) = &self.job.target.ca_pem else {
            return flags(None);
        };
        let scratch = ScratchDir::new()?;
        let path = scratch.path().join("ca.pem");
        std::fs::write(&path, pem).when("keeping the CA")?;
        flags(Some(path))
    }

    fn load(&self) -> Outcome<()> {
        if let Some(core) = self.core {
            crate::machine::pin_to_core(core)?;
        }
        let target = self.target()?;
        let mut load = Load::new(&target, self.job.plan(), &self.interrupt)?;
        load.shift_arrivals(self.job.phase);
        let _ = self.sender.send(Event::Ready);
        let Ok((warmup_at, measure_at)) = self.started.recv() else {
            return Ok(());
        };
        if let Some(late) = Instant::now().checked_duration_since(warmup_at) {
            return Err(Failure::new(format!("the word to start came {} ms too late", late.as_millis())));
        }
        self.interrupt.sleep(warmup_at.saturating_duration_since(Instant::now()))?;
        let warmup = measure_at.saturating_duration_since(Instant::now());
        if !self.job.warmup.is_zero() {
            load.run(Until::Elapsed(warmup), "")?;
        }
        let sender = self.sender.clone();
        load.watch(Box::new(move |stats| {
            let _ = sender.send(Event::Progress { done: stats.done, errors: stats.errors_total() });
        }));
        let measured_from = self.clock.now();
        let measured = load.run(self.job.until, "")?;
        let _ = self.sender.send(Event::Finished);
        let results = Results { stats: measured.stats, load_busy: measured.load_busy, measured_from };
        let _ = self.sender.send(Event::Results(Box::new(results)));
        Ok(())
    }
}

/// `requests to 127.0.0.1:8443, 11 connections, 333.333334 per second, for 3 s`
fn describe(job: &Job) -> String {
    let rate = job.rate().map(|rate| format!(", {rate} per second")).unwrap_or_default();
    let until = match job.until {
        Until::Elapsed(duration) => format!("for {} s", duration.as_secs_f64()),
        Until::Finished(count) => format!("{count} times"),
    };
    let (command, target) = (printable(&job.command), printable(&job.target.target));
    format!("{command} to {target}, {} connections{rate}, {until}", job.connections)
}
