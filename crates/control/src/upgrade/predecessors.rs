//! Processes that have been succeeded and drain: what they tell of themselves, for as long as they are there.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::task::{AbortHandle, spawn_local};

use super::message::{Channel, Message};

/// A process that drains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub pid: u32,
    pub version: String,
    /// When it was succeeded.
    pub since: SystemTime,
}

impl Description {
    pub fn from_json(value: &Value) -> Description {
        Description {
            pid: value["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
            version: value["version"].as_str().unwrap_or_default().to_owned(),
            since: UNIX_EPOCH + Duration::from_secs(value["since"].as_u64().unwrap_or(0).min(1 << 40)),
        }
    }

    pub fn to_json(&self) -> Value {
        json!({ "pid": self.pid, "version": self.version, "since": unix_seconds(self.since) })
    }
}

pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The last message of a predecessor.
struct Draining {
    description: Description,
    connections: u64,
    requests: u64,
    seconds_left: u64,
    channel: Rc<Channel>,
    listening: AbortHandle,
}

#[derive(Clone, Default)]
pub struct Predecessors(Rc<RefCell<Vec<Draining>>>);

/// All of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub processes: usize,
    pub connections: u64,
    pub requests: u64,
    /// The oldest has been draining for so long.
    pub oldest: Duration,
}

impl Predecessors {
    /// Hears one out, on the current runtime, until it ends.
    pub fn watch(&self, description: Description, channel: Channel) {
        let channel = Rc::new(channel);
        let (all, heard, pid) = (self.clone(), Rc::clone(&channel), description.pid);
        let listening = spawn_local(async move {
            while let Ok(Some(Message::Word(value))) = heard.receive().await {
                all.note(pid, &value);
            }
            log::info!("process {pid} has ended its drain");
            all.0.borrow_mut().retain(|one| one.description.pid != pid);
        });
        let listening = listening.abort_handle();
        let one = Draining { description, connections: 0, requests: 0, seconds_left: 0, channel, listening };
        self.0.borrow_mut().push(one);
    }

    fn note(&self, pid: u32, value: &Value) {
        if let Some(one) = self.0.borrow_mut().iter_mut().find(|one| one.description.pid == pid) {
            let number = |key: &str| value[key].as_u64().unwrap_or(0);
            (one.connections, one.requests) = (number("connections"), number("requests"));
            one.seconds_left = number("seconds_left");
        }
    }

    /// For a successor: it will hear them out.
    pub fn offered(&self) -> Vec<(Description, std::io::Result<OwnedFd>)> {
        self.0.borrow().iter().map(|one| (one.description.clone(), one.channel.file().try_clone())).collect()
    }

    /// Somebody else hears them from here on: what two hear, each hears half of.
    pub fn leave(&self) {
        for one in self.0.take() {
            one.listening.abort();
        }
    }

    pub fn sum(&self) -> Sum {
        let all = self.0.borrow();
        Sum {
            processes: all.len(),
            connections: all.iter().map(|one| one.connections).sum(),
            requests: all.iter().map(|one| one.requests).sum(),
            oldest: all.iter().filter_map(|one| one.description.since.elapsed().ok()).max().unwrap_or_default(),
        }
    }

    /// For /snapshot.
    pub fn to_json(&self) -> Value {
        let one = |one: &Draining| {
            json!({
                "pid": one.description.pid,
                "version": one.description.version,
                "draining_since": unix_seconds(one.description.since),
                "draining_seconds": one.description.since.elapsed().map_or(0, |age| age.as_secs()),
                "connections": one.connections,
                "requests_in_progress": one.requests,
                "seconds_left": one.seconds_left,
            })
        };
        self.0.borrow().iter().map(one).collect()
    }
}
