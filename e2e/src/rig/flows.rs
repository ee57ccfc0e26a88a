//! Load on a rig, by `propylon-e2e-flows` where clients are: what it is told, and what it says.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::namespaces::Namespace;
use super::network::{self, VIP, VIP6};
use crate::binaries;
use crate::certificates::Certificates;
use crate::program::finish;
use crate::wait::{WAIT_MAX, eventually};

/// Connections may take this long to be set up, on a busy machine and with an engine that was built without
/// optimisation.
const HELD_MAX: Duration = Duration::from_secs(120);

/// How clients behave.
#[derive(Clone, Debug)]
pub struct Manner {
    /// Connections that are held, with a request now and then.
    pub held: usize,
    /// Time between two requests of a held connection.
    pub interval: Duration,
    /// Connections that are opened for a single request, each second.
    pub new_per_second: u32,
    /// Whether those resume sessions of earlier ones.
    pub resumes: bool,
    /// How long an answer, or a handshake, may take.
    pub timeout: Duration,
    /// Whether a held connection that broke is opened anew. Those that ended in good order are in any case.
    pub replaces: bool,
    pub ipv6: bool,
}

impl Default for Manner {
    fn default() -> Manner {
        Manner {
            held: 0,
            interval: Duration::from_millis(500),
            new_per_second: 0,
            resumes: true,
            timeout: Duration::from_secs(15),
            replaces: false,
            ipv6: false,
        }
    }
}

/// Ends when it is dropped.
pub struct Flows {
    child: Child,
    /// The end of it ends the process.
    input: Option<ChildStdin>,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    sample: Option<Sample>,
    broken: Vec<Broken>,
    failed: Vec<Failed>,
    /// Figures as of then, with latencies since the mark before.
    marks: Vec<(String, Sample)>,
    summary: Option<Sample>,
}

/// How things stand, ten times a second. Counts are since the start; latencies since the last sample, at a mark since
/// the mark before, and in the summary since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Since the generator's start.
    pub at: Duration,
    /// Connections that are held now.
    pub held: u64,
    /// Held connections by engine, as of the last answer of each.
    pub engines: BTreeMap<usize, u64>,
    pub broken: u64,
    /// Held connections that the other side ended in good order: it said so, or closed while nothing was asked.
    pub ended: u64,
    pub requests: u64,
    /// Answers that were not 200.
    pub refused: u64,
    pub new_ok: u64,
    pub new_failed: u64,
    pub full: u64,
    pub resumed: u64,
    /// Handshakes of new connections that offered a ticket.
    pub offered: u64,
    pub latency_p99: Duration,
    pub latency_max: Duration,
}

/// A held connection that ended as none should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub at: Duration,
    /// Whose it was, as far as it has ever got an answer.
    pub engine: Option<usize>,
    /// `ECONNRESET`, `timeout`, `eof`, `closed`, and the like.
    pub how: String,
    pub in_flight: bool,
}

/// A connection that could not be opened, or got no answer to its only request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub at: Duration,
    pub how: String,
    /// Whether it was to be held.
    pub is_held: bool,
}

impl Flows {
    #[track_caller]
    pub(super) fn start(client: &Namespace, addresses: usize, manner: &Manner) -> Flows {
        let target: SocketAddr = if manner.ipv6 { (VIP6, 443).into() } else { (VIP, 443).into() };
        let sources: Vec<String> =
            network::client_addresses(addresses, manner.ipv6).iter().map(ToString::to_string).collect();
        let mut command = client.command(binaries::bench().with_file_name("propylon-e2e-flows"));
        let mut set = |name: &str, value: String| {
            command.arg(format!("{name}={value}"));
        };
        set("to", target.to_string());
        set("from", sources.join(","));
        set("ca", Certificates::shared().ca().display().to_string());
        set("name", "shop.test".to_owned());
        set("held", manner.held.to_string());
        set("interval_ms", manner.interval.as_millis().to_string());
        set("new_per_second", manner.new_per_second.to_string());
        set("resumes", manner.resumes.to_string());
        set("timeout_ms", manner.timeout.as_millis().to_string());
        set("replaces", manner.replaces.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the generator starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let kept = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let value: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"));
                kept.lock().expect("no panic").hear(&value);
            }
        });
        Flows { child, input, heard }
    }

    /// Waits until so many connections are held and have an answer.
    #[track_caller]
    pub fn await_held(&self, count: u64) -> Sample {
        eventually(HELD_MAX, "connections are held", || {
            let sample = self.sample();
            (sample.held == count && sample.engines.values().sum::<u64>() == count).then_some(sample)
        })
    }

    /// Waits until every held connection has got an answer, or has broken, since now.
    #[track_caller]
    pub fn await_round(&self, manner: &Manner) -> Sample {
        let from = self.sample().at;
        let round = manner.interval + manner.timeout;
        eventually(WAIT_MAX + 2 * round, "a round of requests", || {
            let sample = self.sample();
            (sample.at > from + round).then_some(sample)
        })
    }

    /// The latest sample.
    pub fn sample(&self) -> Sample {
        self.heard.lock().expect("no panic").sample.clone().unwrap_or_default()
    }

    /// Waits for a sample that fits.
    #[track_caller]
    pub fn sample_with(&self, what: &str, fits: impl Fn(&Sample) -> bool) -> Sample {
        eventually(WAIT_MAX, what, || Some(self.sample()).filter(&fits))
    }

    /// Held connections that broke so far.
    pub fn broken(&self) -> Vec<Broken> {
        self.heard.lock().expect("no panic").broken.clone()
    }

    /// Connections that could not be made so far.
    pub fn failed(&self) -> Vec<Failed> {
        self.heard.lock().expect("no panic").failed.clone()
    }

    /// The generator's time now, so that what comes after something can be told from what came before it.
    #[track_caller]
    pub fn mark(&mut self, name: &str) -> Duration {
        self.part(name).at
    }

    /// The same, with counts as of then, and latencies since the mark before.
    #[track_caller]
    pub fn part(&mut self, name: &str) -> Sample {
        let before = self.heard.lock().expect("no panic").marks.len();
        self.say(&format!("mark {name}"));
        eventually(WAIT_MAX, "a mark", || {
            let heard = self.heard.lock().expect("no panic");
            heard.marks.iter().skip(before).find(|(known, _)| known == name).map(|(_, sample)| sample.clone())
        })
    }

    /// The latest sample for a thread that shows it, as long as there are clients.
    pub fn watch(&self) -> impl Fn() -> Sample + Send + use<> {
        let heard = Arc::clone(&self.heard);
        move || heard.lock().expect("no panic").sample.clone().unwrap_or_default()
    }

    /// Ends it, and returns the figures of all of it.
    #[track_caller]
    pub fn stop(mut self) -> Sample {
        self.say("stop");
        eventually(WAIT_MAX, "the generator's summary", || self.heard.lock().expect("no panic").summary.clone())
    }

    #[track_caller]
    fn say(&mut self, command: &str) {
        let input = self.input.as_mut().expect("open until the end");
        input.write_all(format!("{command}\n").as_bytes()).expect("the generator listens");
    }

    /// Processor time of the generator, user and system.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // Fields are counted from the state, which follows the name in parentheses (proc_pid_stat(5)).
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        drop(self.input.take());
        if std::thread::panicking() {
            let heard = self.heard.lock().expect("no panic");
            eprintln!("--- flows, at last ---\n{:?}", heard.sample);
            heard.failed.iter().rev().take(5).for_each(|failed| eprintln!("{failed:?}"));
            heard.broken.iter().rev().take(5).for_each(|broken| eprintln!("{broken:?}"));
            let _ = self.child.kill();
            let _ = self.child.wait();
            return;
        }
        finish(&mut self.child, WAIT_MAX, "the generator ends");
    }
}

impl Heard {
    fn hear(&mut self, value: &Value) {
        let at = |value: &Value| Duration::from_micros(value["at_us"].as_u64().unwrap_or_default());
        let how = |value: &Value| value["how"].as_str().unwrap_or_default().to_owned();
        if let Some(value) = value.get("sample") {
            self.sample = Some(sample(value));
        } else if let Some(value) = value.get("summary") {
            self.summary = Some(sample(value));
        } else if let Some(value) = value.get("broken") {
            let in_flight = value["in_flight"].as_bool().unwrap_or_default();
            self.broken.push(Broken {
                at: at(value),
                engine: engine(value["engine"].as_str()),
                how: how(value),
                in_flight,
            });
        } else if let Some(value) = value.get("failed") {
            let is_held = value["is_held"].as_bool().unwrap_or_default();
            self.failed.push(Failed { at: at(value), how: how(value), is_held });
        } else if let Some(value) = value.get("mark") {
            let name = value["name"].as_str().unwrap_or_default().to_owned();
            self.marks.push((name, sample(&value["until_now"])));
        }
    }
}

/// Servers tell an engine by its address.
fn engine(address: Option<&str>) -> Option<usize> {
    network::engine_at(address?.parse().ok()?)
}

fn sample(value: &Value) -> Sample {
    let count = |name: &str| value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"));
    let engines = value["engines"].as_object().into_iter().flatten();
    let engines = engines.filter_map(|(address, held)| Some((engine(Some(address))?, held.as_u64()?)));
    Sample {
        at: Duration::from_micros(count("at_us")),
        held: count("held"),
        engines: engines.filter(|(_, held)| *held > 0).collect(),
        broken: count("broken"),
        ended: count("ended"),
        requests: count("requests"),
        refused: count("refused"),
        new_ok: count("new_ok"),
        new_failed: count("new_failed"),
        full: count("full"),
        resumed: count("resumed"),
        offered: count("offered"),
        latency_p99: Duration::from_micros(count("p99_us")),
        latency_max: Duration::from_micros(count("max_us")),
    }
}
