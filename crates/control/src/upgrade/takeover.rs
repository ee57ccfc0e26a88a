//! The starting process's side of an upgrade: it asks for everything, gets ready, and takes over.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use propylon_crypto::TagKey;
use propylon_identity::KeptKeys;
use propylon_net::listen::{Inherited, ListenerBinding};
use propylon_sys::ProcessWatch;
use propylon_tls::{Profile, Tickets};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::keys::{self, KEYS};
use super::message::{Channel, Message, SecretKind, receive_now, send_now, word};
use super::past::{PAST, Past};
use super::predecessors::Description;
use super::{ANSWER_WAIT, END_WAIT, Failure, PREDECESSORS_MAX, PROTOCOL, READY_WAIT, SOCKETS_MAX};
use crate::health::KnownServer;

/// A conversation with the process that serves, up to the point where this one is ready.
pub struct Takeover {
    socket: OwnedFd,
    watch: ProcessWatch,
    pid: u32,
    version: String,
    pub inherited_state: InheritedState,
}

/// Everything that the predecessor has handed over.
#[derive(Default)]
pub struct InheritedState {
    /// Generation of the predecessor's configuration.
    pub generation: u64,
    /// Count of upgrades that have led to the predecessor.
    pub upgrades: u64,
    /// The cluster that the predecessor is in.
    pub cluster: Option<String>,
    /// Sockets of the predecessor's listeners; `place` identifies them in messages to it.
    pub sockets: Vec<Inherited>,
    pub admin: Option<InheritedSocket<String>>,
    pub upgrade: Option<InheritedSocket<PathBuf>>,
    /// Processes that drain, with the conversations in which they tell of it.
    pub predecessors: Vec<(Description, OwnedFd)>,
    pub tickets: Option<Tickets>,
    /// Results of the predecessor's probes.
    pub health: Vec<KnownServer>,
    /// Issuers' keys that the predecessor has fetched.
    pub keys: Vec<KeptKeys>,
    /// Numbers and lines of the log from before.
    pub past: Past,
}

/// A socket that is not a listener's, with where it is.
pub struct InheritedSocket<T> {
    pub place: usize,
    pub at: T,
    pub socket: OwnedFd,
}

impl Takeover {
    /// Asks the process that answers at `path` for everything it has to give.
    pub fn begin(path: &Path) -> Result<Takeover, Failure> {
        let socket = propylon_sys::connect_messages(path, ANSWER_WAIT).map_err(|error| {
            let what =
                format!("nobody answers at {}: {error}; is it the process's process.upgrade_socket?", path.display());
            Failure::new("start", what)
        })?;
        let said = json!({ "word": "hello", "protocol": PROTOCOL, "version": env!("CARGO_PKG_VERSION"), "takes": [KEYS, PAST] });
        send_now(&socket, &said).map_err(broken)?;
        let Message::Word(offer) = next(&socket)? else { return Err(unexpected()) };
        match offer["word"].as_str() {
            Some("offer") => {}
            Some("refused") => {
                let reason = offer["reason"].as_str().unwrap_or("refused");
                return Err(Failure::received(reason, text(&offer["what"])));
            }
            _ => return Err(unexpected()),
        }
        let pid = offer["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).ok_or_else(unexpected)?;
        let watch = ProcessWatch::of(pid)
            .map_err(|error| Failure::new("protocol", format!("process {pid} cannot be watched: {error}")))?;
        let inherited_state = InheritedState {
            generation: offer["generation"].as_u64().unwrap_or(0),
            upgrades: offer["upgrades"].as_u64().unwrap_or(0),
            cluster: offer["cluster"].as_str().map(str::to_owned),
            ..InheritedState::default()
        };
        let mut takeover = Takeover { socket, watch, pid, version: text(&offer["version"]), inherited_state };
        takeover.receive_estate()?;
        Ok(takeover)
    }

    fn receive_estate(&mut self) -> Result<(), Failure> {
        let mut place = 0;
        loop {
            match next(&self.socket)? {
                Message::Word(value) if value["word"] == "sockets" => {
                    let files = self.receive_files(&value)?;
                    self.inherited_state.take(place, &value, files).map_err(|error| {
                        Failure::new(
                            "protocol",
                            format!("a file that was handed over is not what it should be: {error}"),
                        )
                    })?;
                    place += 1;
                }
                Message::Word(value) if value["word"] == "server" => {
                    self.inherited_state.health.extend(KnownServer::from_json(&value["server"]));
                }
                Message::Word(value) if value["word"] == KEYS => {
                    keys::take_part(&mut self.inherited_state.keys, &value).ok_or_else(unexpected)?;
                }
                Message::Word(value) if value["word"] == PAST => self.inherited_state.past.take_part(value),
                Message::Word(value) if value["word"] == "offered" => return Ok(()),
                Message::Secret { kind: SecretKind::TicketKeys, bytes, .. } => {
                    self.inherited_state.tickets = Tickets::from_bytes(&bytes, SystemTime::now());
                }
                Message::Secret { kind: SecretKind::StickySecret, bytes, .. } => {
                    if !TagKey::succeed_process(&bytes) {
                        log::warn!("the secret for sticky cookies could not be taken over: clients choose anew");
                    }
                }
                _ => return Err(unexpected()),
            }
        }
    }

    fn receive_files(&self, value: &Value) -> Result<Vec<OwnedFd>, Failure> {
        let count = value["count"].as_u64().map_or(0, |count| count as usize);
        if count > SOCKETS_MAX {
            return Err(unexpected());
        }
        let mut files = Vec::new();
        while files.len() < count {
            match next(&self.socket)? {
                Message::Files(more) if !more.is_empty() => files.extend(more),
                // A process that may have no more files gets none.
                Message::Files(_) => {
                    let what = "a file that was handed over did not arrive: raise the limit of open files (ulimit -n)";
                    return Err(Failure::new("start", what));
                }
                _ => return Err(unexpected()),
            }
        }
        Ok(files)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// Tells the predecessor that it has to go on.
    pub fn give_up(&self, failure: &Failure) {
        // A failure to send is ignored: the predecessor sees the connection close in any case.
        let _ = send_now(&self.socket, &json!({ "word": "failed", "reason": failure.reason, "what": failure.what }));
    }

    /// Says that everything is ready, but for calling `begin`, and takes over. `adopted` are the places of what is used of
    /// the estate. With an error the other process serves on, and this one must not.
    pub async fn complete(
        self,
        adopted: &[usize],
        profiles: &[Arc<Profile>],
        begin: impl FnOnce(),
    ) -> Result<Option<(Description, Channel)>, Failure> {
        let Takeover { socket, watch, pid, version, .. } = self;
        let channel = Channel::new(socket).map_err(broken)?;
        let ready = async {
            // The places alone; a thousand of them fit in a message.
            for part in adopted.chunks(1000) {
                channel.send_json(&json!({ "word": "adopted", "places": part })).await?;
            }
            channel.send_json(&word("ready")).await?;
            await_go(&channel, profiles).await
        };
        let mut begin = Some(begin);
        let ready = flatten(timeout(READY_WAIT, ready).await);
        let ready = ready.inspect(|()| begin.take().into_iter().for_each(|begin| begin()));
        let done = match ready {
            Ok(()) => flatten(timeout(ANSWER_WAIT, serve(&channel)).await),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => Ok(Some((Description { pid, version, since: SystemTime::now() }, channel))),
            // The predecessor has crashed: nobody else serves, and all that it had is here.
            Err(_) if watch.has_ended(END_WAIT) => {
                log::warn!("process {pid} has ended before it could hand over in order; this one serves in its place");
                begin.take().into_iter().for_each(|begin| begin());
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Sessions come before the word.
async fn await_go(channel: &Channel, profiles: &[Arc<Profile>]) -> io::Result<()> {
    loop {
        match channel.receive().await? {
            Some(Message::Secret { kind: SecretKind::Sessions, name, bytes }) => {
                let profile = profiles.iter().find(|profile| profile.name() == name);
                profile.into_iter().for_each(|profile| {
                    profile.take_over_sessions(&bytes);
                });
            }
            Some(message) if message.word() == "go" => return Ok(()),
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

async fn serve(channel: &Channel) -> io::Result<()> {
    channel.send_json(&word("serving")).await?;
    match channel.receive().await? {
        Some(message) if message.word() == "draining" => Ok(()),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn flatten(outcome: Result<io::Result<()>, tokio::time::error::Elapsed>) -> Result<(), Failure> {
    match outcome {
        Ok(done) => done.map_err(broken),
        Err(_) => Err(Failure::new("timeout", "the process that serves did not answer in time")),
    }
}

impl InheritedState {
    /// Warning about a cluster that this process is to leave, since `cluster` is the one of its configuration.
    pub fn leaves(&self, cluster: Option<&str>) -> Option<String> {
        let before = self.cluster.as_deref().filter(|before| Some(*before) != cluster)?;
        let section = match cluster {
            Some(now) => format!("[cluster] of this one's configuration names \"{now}\""),
            None => "this one's configuration has no [cluster]".to_owned(),
        };
        Some(format!(
            "upgrade: the process before is in the cluster \"{before}\", and {section}: it leaves that cluster, and what \
             the cluster shares is not served any more, its addresses included; if that is not meant, put the section back \
             and upgrade again"
        ))
    }

    fn take(&mut self, place: usize, value: &Value, files: Vec<OwnedFd>) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
        let mut files = files;
        let single = |files: &mut Vec<OwnedFd>| files.pop().ok_or_else(wrong);
        match value["kind"].as_str() {
            Some("listener") => {
                let address = |key: &str| value[key].as_str()?.parse::<SocketAddr>().ok();
                let listener = text(&value["listener"]);
                let wanted = address("wanted").ok_or_else(wrong)?;
                let address = address("address").ok_or_else(wrong)?;
                let name = format!("listener \"{listener}\"");
                let sockets = files.into_iter().map(propylon_sys::tcp_listener).collect::<io::Result<_>>()?;
                self.sockets.push(Inherited {
                    place,
                    binding: Some(ListenerBinding { listener, wanted }),
                    address,
                    sockets,
                    name,
                });
            }
            Some("admin") => {
                let (at, socket) = (text(&value["bind"]), single(&mut files)?);
                self.admin = Some(InheritedSocket { place, at, socket });
            }
            Some("upgrade") => {
                let socket = propylon_sys::message_listener(single(&mut files)?)?;
                self.upgrade = Some(InheritedSocket { place, at: text(&value["path"]).into(), socket });
            }
            Some("predecessor") if self.predecessors.len() < PREDECESSORS_MAX => {
                self.predecessors.push((Description::from_json(value), single(&mut files)?));
            }
            // A message of a later version, which hands over more than this version knows.
            _ => {}
        }
        Ok(())
    }
}

/// Asks the process that answers at `path` to start its successor, and waits for what becomes of it: `Ok` is its number.
pub fn ask_for_upgrade(path: &Path) -> Result<u64, Failure> {
    let connected = propylon_sys::connect_messages(path, READY_WAIT + 2 * ANSWER_WAIT);
    let socket =
        connected.map_err(|error| Failure::new("start", format!("nobody answers at {}: {error}", path.display())))?;
    send_now(&socket, &word("upgrade")).map_err(broken)?;
    let Message::Word(value) = next(&socket)? else { return Err(unexpected()) };
    match value["word"].as_str() {
        Some("upgraded") => Ok(value["pid"].as_u64().unwrap_or(0)),
        Some("refused" | "failed") => {
            let reason = value["reason"].as_str().unwrap_or("protocol");
            Err(Failure::received(reason, text(&value["what"])))
        }
        _ => Err(unexpected()),
    }
}

fn next(socket: &OwnedFd) -> Result<Message, Failure> {
    match receive_now(socket) {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(Failure::new("ended", "the process that serves has ended the conversation; its log says why")),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(Failure::new("timeout", "the process that serves did not answer in time"))
        }
        Err(error) => Err(broken(error)),
    }
}

fn broken(error: io::Error) -> Failure {
    Failure::new("ended", format!("the conversation with the process that serves broke off: {error}"))
}

fn unexpected() -> Failure {
    Failure::new("protocol", "the process that serves said what this version does not understand")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_a_cluster_by_an_upgrade_is_warned() {
        let of =
            |before: Option<&str>| InheritedState { cluster: before.map(str::to_owned), ..InheritedState::default() };
        assert_eq!(of(None).leaves(None), None);
        assert_eq!(of(None).leaves(Some("edge")), None);
        assert_eq!(of(Some("edge")).leaves(Some("edge")), None);
        assert!(of(Some("edge")).leaves(None).is_some_and(|told| told.contains("has no [cluster]")));
        assert!(of(Some("edge")).leaves(Some("other")).is_some_and(|told| told.contains("names \"other\"")));
    }
}
