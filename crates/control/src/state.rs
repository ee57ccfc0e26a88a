//! Changes by the admin API, kept in a file in the state folder so that nothing is lost at a restart.
//!
//! The state is laid over the configuration whenever that is read: a pushed configuration takes the place of the file's
//! for as long as the file's text is what it was at the push, servers are added, removed and reweighted, and uploaded
//! certificates come on top.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::{NonZeroU16, NonZeroU32};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use propylon_config::{Certificate, CertificateSource, Config, Drain, Problem, Server};
use propylon_crypto::key_process::KeyFiles;
use serde_json::{Map, Value, json};

/// Name of the state file in the state folder.
pub const FILE: &str = "state.json";
const CERTIFICATES: &str = "certificates";
/// Limit in bytes: the pushed text and the file's text that it replaces, escaped, and the rest.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Version of the file's format.
const VERSION: u64 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub pushed: Option<Pushed>,
    /// The cluster's configuration, which stands in place of the file's. The cluster keeps it, and not this file.
    pub cluster: Option<ClusterText>,
    /// Changes of servers by the backend's name, then by the server's address as it is written.
    pub servers: BTreeMap<String, BTreeMap<String, ServerChange>>,
    /// Names of files in the folder of certificates, by TLS profile, then by the certificate's name.
    pub certificates: BTreeMap<String, BTreeMap<String, String>>,
    /// Names of files in `keys.store` that are not used any more and may still be there.
    pub unused: BTreeSet<String>,
}

/// A configuration that was pushed by the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    pub text: String,
    pub is_json: bool,
    /// Text of the file that the pushed configuration replaces.
    pub over: String,
}

/// A configuration that all engines of a cluster have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterText {
    pub text: String,
    pub is_json: bool,
}

/// A server's backend and its address as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    pub backend: String,
    pub address: String,
}

/// Differences of a server from what the configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerChange {
    pub removed: bool,
    pub weight: Option<NonZeroU16>,
    pub max_connections: Option<NonZeroU32>,
    pub drain: Option<bool>,
    pub backup: Option<bool>,
    /// Whether the server exists although the configuration does not have it.
    pub added: bool,
}

impl State {
    /// Loads the state; an empty one if there is no file.
    pub fn load(folder: &Path) -> Result<State, Problem> {
        let path = folder.join(FILE);
        let wrong = |what: String| {
            let fix = "put the file back as it was, or remove it and with it what the admin API has changed";
            Problem::error(&path.display().to_string(), None, what, fix)
        };
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let fix = "give it and its folder to the account that runs this (chown -R)";
                return Err(Problem { fix: fix.into(), ..wrong(format!("the file cannot be read: {error}")) });
            }
            Err(error) => return Err(wrong(format!("the file cannot be read: {error}"))),
        };
        let value: Value = serde_json::from_str(&text).map_err(|error| wrong(format!("this is not JSON: {error}")))?;
        State::from_json(&value).ok_or_else(|| wrong("this is not a state that this version has written".into()))
    }

    /// Writes the file as a whole: a reader sees either the old state or the new one.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        create_folder(folder)?;
        write_whole(folder, FILE, format!("{:#}\n", self.to_json()).as_bytes())
    }

    /// Lays the changes over a configuration. Changes of servers and profiles that no longer exist are passed over.
    pub fn lay_over(&self, config: &mut Config, folder: &Path, problems: &mut Vec<Problem>) {
        let uploads = Uploads::of(config, folder);
        for backend in &mut config.backends {
            let Some(changes) = self.servers.get(&backend.name) else { continue };
            let before = backend.servers.clone();
            lay_over_all(&mut backend.servers, changes, backend.at);
            if backend.servers.is_empty() {
                let what = format!("the state's changes leave [backend.{}] without a server", backend.name);
                let fix = "they are passed over; undo them by the admin API";
                problems.push(Problem::warning(FILE, None, what, fix));
                backend.servers = before;
            }
        }
        for profile in &mut config.tls {
            let Some(files) = self.certificates.get(&profile.name) else { continue };
            // Uploads come before others with the same names; the certificate for clients without SNI stays.
            if !profile.certificates.iter().any(|certificate| certificate.default)
                && let Some(first) = profile.certificates.first_mut()
                && !matches!(&first.source, CertificateSource::Path(path) if path.is_dir())
            {
                first.default = true;
            }
            let uploaded = files.values().map(|file| Certificate {
                source: CertificateSource::Path(uploads.folder(&profile.name).join(file)),
                ocsp: None,
                default: false,
                uploaded: true,
                at: profile.at,
            });
            profile.certificates = uploaded.chain(std::mem::take(&mut profile.certificates)).collect();
        }
    }

    /// Drops changes of a server that the configuration says by itself, without the state.
    pub fn forget_the_same(&mut self, written: &Config, name: &ServerName) {
        let changes = self.servers.get_mut(&name.backend).and_then(|changes| changes.get_mut(&name.address));
        let Some(change) = changes else { return };
        let servers =
            written.backends.iter().filter(|known| known.name == name.backend).flat_map(|known| &known.servers);
        match servers.into_iter().find(|server| server.address.to_string() == name.address) {
            Some(server) => change.forget(server.weight, server.max_connections, server.drain.is_some(), server.backup),
            None if change.removed => *change = ServerChange::default(),
            None => {
                change.forget(NonZeroU16::MIN, None, false, false);
                change.added = true;
            }
        }
        self.tidy();
    }

    /// Drops changes that change nothing.
    pub fn tidy(&mut self) {
        for changes in self.servers.values_mut() {
            changes.retain(|_, change| !change.is_nothing());
        }
        self.servers.retain(|_, changes| !changes.is_empty());
        self.certificates.retain(|_, files| !files.is_empty());
    }

    /// Notes as unused the uploads that only the state `before` names, and `left`, which are still there.
    pub fn note_unused(&mut self, before: &State, left: BTreeSet<String>) {
        let used: HashSet<&String> = self.files().collect();
        let unused = left.into_iter().chain(before.files().cloned()).filter(|file| !used.contains(file)).collect();
        self.unused = unused;
    }

    /// Names of the uploads' files.
    fn files(&self) -> impl Iterator<Item = &String> {
        self.certificates.values().flat_map(BTreeMap::values)
    }

    fn to_json(&self) -> Value {
        let mut root = json!({ "version": VERSION });
        if let Some(Pushed { text, is_json, over }) = &self.pushed {
            root["pushed"] = json!({ "text": text, "json": is_json, "over": over });
        }
        let servers = |changes: &BTreeMap<String, ServerChange>| -> Value {
            changes.iter().map(|(address, change)| (address.clone(), change.to_json())).collect::<Map<_, _>>().into()
        };
        root["servers"] =
            self.servers.iter().map(|(name, changes)| (name.clone(), servers(changes))).collect::<Map<_, _>>().into();
        root["certificates"] = json!(self.certificates);
        if !self.unused.is_empty() {
            root["unused"] = json!(self.unused);
        }
        root
    }

    fn from_json(value: &Value) -> Option<State> {
        if value["version"].as_u64()? != VERSION {
            return None;
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let pushed = match &value["pushed"] {
            Value::Null => None,
            pushed => Some(Pushed {
                text: text(&pushed["text"])?,
                is_json: pushed["json"].as_bool()?,
                over: text(&pushed["over"])?,
            }),
        };
        let mut state = State { pushed, ..State::default() };
        for (backend, changes) in value["servers"].as_object()? {
            let changes = changes.as_object()?.iter();
            let changes = changes.map(|(address, change)| Some((address.clone(), ServerChange::from_json(change)?)));
            state.servers.insert(backend.clone(), changes.collect::<Option<_>>()?);
        }
        for (profile, files) in value["certificates"].as_object()? {
            let files = files.as_object()?.iter();
            // A name with a slash would lead out of the folder.
            let files = files.map(|(name, file)| Some((name.clone(), text(file).filter(|file| is_plain_name(file))?)));
            state.certificates.insert(profile.clone(), files.collect::<Option<_>>()?);
        }
        for file in value.get("unused").map_or(Some(&Vec::new()), Value::as_array)? {
            state.unused.insert(text(file).filter(|file| is_plain_name(file))?);
        }
        Some(state)
    }

    /// Differences from the file, one sentence each.
    pub fn overrides(&self) -> Vec<String> {
        let mut all = Vec::new();
        if self.pushed.is_some() {
            all.push("a configuration that was pushed by the admin API is in effect in place of the file".to_owned());
        }
        for (backend, servers) in &self.servers {
            let one = |(address, change): (&String, &ServerChange)| {
                format!("[backend.{backend}]: server {address} {} by the admin API", change.words())
            };
            all.extend(servers.iter().map(one));
        }
        for (profile, files) in &self.certificates {
            let one = |name: &String| format!("[tls.{profile}]: certificate \"{name}\" was put by the admin API");
            all.extend(files.keys().map(one));
        }
        all
    }

    /// Summary for people, without the pushed texts and the names of unused files.
    pub fn summary(&self) -> Value {
        let mut value = State { unused: BTreeSet::new(), ..self.clone() }.to_json();
        value["pushed"] = json!(self.pushed.is_some());
        value
    }
}

impl ServerChange {
    fn to_json(&self) -> Value {
        let mut value = Map::new();
        if self.removed {
            value.insert("removed".into(), json!(true));
        }
        if self.added {
            value.insert("added".into(), json!(true));
        }
        if let Some(weight) = self.weight {
            value.insert("weight".into(), json!(weight));
        }
        if let Some(connections) = self.max_connections {
            value.insert("max_connections".into(), json!(connections));
        }
        for (key, flag) in [("drain", self.drain), ("backup", self.backup)] {
            if let Some(flag) = flag {
                value.insert(key.into(), json!(flag));
            }
        }
        value.into()
    }

    fn from_json(value: &Value) -> Option<ServerChange> {
        let flag = |key: &str| value.get(key).map_or(Some(false), Value::as_bool);
        let number = |key: &str| value.get(key).map(|number| number.as_u64().and_then(|n| u32::try_from(n).ok()));
        let weight = match number("weight") {
            None => None,
            Some(weight) => Some(NonZeroU16::new(u16::try_from(weight?).ok().filter(|weight| *weight <= 256)?)?),
        };
        let max_connections = match number("max_connections") {
            None => None,
            Some(connections) => Some(NonZeroU32::new(connections?)?),
        };
        let choice = |key: &str| value.get(key).map_or(Some(None), |choice| choice.as_bool().map(Some));
        let (drain, backup) = (choice("drain")?, choice("backup")?);
        value.is_object().then_some(())?;
        Some(ServerChange { removed: flag("removed")?, added: flag("added")?, weight, max_connections, drain, backup })
    }

    /// Words for what has become of the server: "was drained".
    fn words(&self) -> String {
        if self.removed {
            return "was removed".into();
        }
        let mut words = Vec::new();
        if self.added {
            words.push("was added".to_owned());
        }
        if let Some(drain) = self.drain {
            words.push(if drain { "was drained".into() } else { "is no longer drained".into() });
        }
        if let Some(weight) = self.weight {
            words.push(format!("was given weight {weight}"));
        }
        if let Some(connections) = self.max_connections {
            words.push(format!("was given max_connections {connections}"));
        }
        if let Some(backup) = self.backup {
            words.push(if backup { "was made a backup".into() } else { "is no backup any more".into() });
        }
        words.join(" and ")
    }

    /// Drops settings that equal the configuration's.
    fn forget(&mut self, weight: NonZeroU16, max_connections: Option<NonZeroU32>, drain: bool, backup: bool) {
        self.added = false;
        self.weight = self.weight.filter(|changed| *changed != weight);
        self.max_connections = self.max_connections.filter(|changed| Some(*changed) != max_connections);
        self.drain = self.drain.filter(|changed| *changed != drain);
        self.backup = self.backup.filter(|changed| *changed != backup);
    }

    /// Whether the change changes anything.
    pub fn is_nothing(&self) -> bool {
        *self == ServerChange::default()
    }
}

/// Compares by address in a set: with thousands of changes and servers, comparing each with each would take too long.
fn lay_over_all(servers: &mut Vec<Server>, changes: &BTreeMap<String, ServerChange>, at: propylon_config::At) {
    let mut is_there: HashSet<&str> = HashSet::new();
    servers.retain_mut(|server| {
        let Some((address, change)) = changes.get_key_value(&server.address.to_string()) else { return true };
        is_there.insert(address);
        change.lay_over(server);
        !change.removed
    });
    for (address, change) in changes.iter().filter(|(address, _)| !is_there.contains(address.as_str())) {
        if !change.added || change.removed {
            continue;
        }
        let Ok(address) = propylon_config::server_address(address) else { continue };
        let weight = NonZeroU16::MIN;
        let mut server = Server { address, weight, max_connections: None, drain: None, backup: false, at };
        change.lay_over(&mut server);
        servers.push(server);
    }
}

impl ServerChange {
    fn lay_over(&self, server: &mut Server) {
        server.weight = self.weight.unwrap_or(server.weight);
        server.max_connections = self.max_connections.or(server.max_connections);
        server.drain = match self.drain {
            None => server.drain,
            Some(drain) => drain.then_some(Drain::AskedFor),
        };
        server.backup = self.backup.unwrap_or(server.backup);
    }
}

/// Folder for certificates that came by the admin API.
pub enum Uploads {
    /// A folder for each profile, below the state folder.
    Here(PathBuf),
    /// The one folder of `keys.store`, which the key process alone can read and write.
    Beside(PathBuf),
}

impl Uploads {
    /// Chooses the place; `folder` is the state folder.
    pub fn of(config: &Config, folder: &Path) -> Uploads {
        match config.keys.store.as_ref().filter(|_| config.keys.isolate.is_some()) {
            Some(store) => Uploads::Beside(store.path.clone()),
            None => Uploads::Here(uploads_within(folder)),
        }
    }

    /// The folder of a profile's certificates.
    pub fn folder(&self, profile: &str) -> PathBuf {
        match self {
            Uploads::Here(folder) => folder.join(profile),
            Uploads::Beside(store) => store.clone(),
        }
    }

    pub fn put(&self, profile: &str, file: &str, pem: &str) -> io::Result<()> {
        let folder = self.folder(profile);
        match self {
            Uploads::Here(_) => create_folder(&folder).and_then(|()| write_whole(&folder, file, pem.as_bytes())),
            Uploads::Beside(_) => Ok(key_files()?.put(file, pem.as_bytes())?),
        }
    }

    pub fn remove(&self, profile: &str, file: &str) -> io::Result<()> {
        match self {
            Uploads::Here(_) => fs::remove_file(self.folder(profile).join(file)),
            Uploads::Beside(_) => Ok(key_files()?.remove(file)?),
        }
    }

    /// Removes files that the state does not use. In `keys.store` other processes may keep files as well, so that only
    /// those are removed there which it notes as unused.
    pub fn remove_unused(&self, config: &Config, state: &State, leftovers: &Leftovers) -> io::Result<()> {
        if let Uploads::Beside(_) = self {
            state.unused.iter().for_each(|name| leftovers.add(name));
            return leftovers.remove();
        }
        for profile in config.tls.iter().filter(|profile| is_plain_name(&profile.name)) {
            let used: Vec<&String> =
                state.certificates.get(&profile.name).into_iter().flat_map(BTreeMap::values).collect();
            for entry in fs::read_dir(self.folder(&profile.name)).into_iter().flatten().flatten() {
                if !used.iter().any(|used| **used == entry.file_name().to_string_lossy()) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        Ok(())
    }
}

/// Leftovers are files of uploads in the key process's folder that are not used any more and could not be removed yet.
#[derive(Clone, Default)]
pub struct Leftovers(Arc<Mutex<Left>>);

#[derive(Default)]
struct Left {
    names: BTreeSet<String>,
    /// Time of the next attempt to remove them.
    due: Option<Instant>,
}

/// Limit on the count of leftovers: as many uploads as the key process takes.
const LEFTOVERS_MAX: usize = 10_000;
/// Time between two attempts.
const LEFTOVERS_WAIT: Duration = Duration::from_secs(60);

impl Leftovers {
    /// Leftovers of the process before, to be removed at once.
    pub fn of(names: &BTreeSet<String>) -> Leftovers {
        let names: BTreeSet<String> = names.iter().take(LEFTOVERS_MAX).cloned().collect();
        let due = (!names.is_empty()).then(Instant::now);
        Leftovers(Arc::new(Mutex::new(Left { names, due })))
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.left().names.clone()
    }

    pub fn add(&self, name: &str) {
        let mut left = self.left();
        if left.names.len() < LEFTOVERS_MAX {
            left.names.insert(name.to_owned());
            left.due.get_or_insert_with(|| Instant::now() + LEFTOVERS_WAIT);
        }
    }

    /// Removes as many leftovers as possible; the others stay for the next attempt.
    pub fn remove(&self) -> io::Result<()> {
        // Names stay in the list until their files are gone: it may be written down meanwhile.
        let names = self.names();
        let mut outcome = Ok(());
        for name in names {
            match key_files().and_then(|files| Ok(files.remove(&name)?)) {
                Ok(()) => {
                    self.left().names.remove(&name);
                    log::info!("uploads: {name} is removed from keys.store");
                }
                Err(error) => outcome = Err(error),
            }
        }
        let mut left = self.left();
        left.due = (!left.names.is_empty()).then(|| Instant::now() + LEFTOVERS_WAIT);
        outcome
    }

    /// Tries again when it is time (asked every second), on another thread: this one must not wait for a key process.
    pub fn tick(&self, now: Instant) {
        if self.left().due.take_if(|due| now >= *due).is_none() {
            return;
        }
        let all = self.clone();
        let remove = move || {
            if let Err(error) = all.remove() {
                log::warn!("uploads that are not used any more cannot be removed from keys.store: {error}");
            }
        };
        if std::thread::Builder::new().name("leftovers".into()).spawn(remove).is_err() {
            self.left().due = Some(now + LEFTOVERS_WAIT);
        }
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file of keys that were uploaded by the admin API before a key process held them, if there is one.
pub fn earlier_upload(state: &Path) -> Option<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(&uploads_within(state)).flat_map(|profile| entries(&profile)).next()
}

/// Folder of uploads without a key process; each profile has a folder in it.
pub fn uploads_within(state: &Path) -> PathBuf {
    state.join(CERTIFICATES)
}

fn key_files() -> io::Result<&'static KeyFiles> {
    propylon_tls::key_files().ok_or_else(|| io::Error::other("there is no key process"))
}

/// Whether a name can be a file's name and leads to no other folder.
pub fn is_plain_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(fits)
}

/// Reason why this account cannot write the state, if the configuration has one.
pub fn unusable(config: &Config) -> Option<String> {
    let folder = config.process.state.as_ref().filter(|_| !config.process.immutable)?.path.as_path();
    let path = folder.display();
    let problem = |what: &str, error: &dyn std::fmt::Display| Some(format!("process.state {path} {what}: {error}"));
    if let Err(error) = create_folder(folder) {
        return problem("cannot be made", &error);
    }
    let access = rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    access.err().and_then(|error| problem("cannot be written in", &std::io::Error::from(error)))
}

/// Creates a folder for this account alone (mode 0700), since keys lie in it.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes a file for this account alone (mode 0600), as a whole or not at all.
pub fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = folder.join(format!("{name}.new"));
    // A draft left behind may have another mode.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, folder.join(name))?;
    File::open(folder)?.sync_all()
}

fn read(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if file.metadata()?.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("it is far too large"));
    }
    io::read_to_string(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn change(weight: u16) -> ServerChange {
        ServerChange { weight: NonZeroU16::new(weight), ..ServerChange::default() }
    }

    fn config(text: &str) -> Config {
        let source = propylon_config::Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        propylon_config::parse(&source).expect("a good configuration").0
    }

    fn servers(config: &Config) -> Vec<String> {
        let show = |server: &Server| {
            format!("{}*{}{}", server.address, server.weight, if server.drain.is_some() { " drained" } else { "" })
        };
        config.backends[0].servers.iter().map(show).collect()
    }

    const TEXT: &str = "[listener.web]\nbind = '127.0.0.1:80'\n[backend.app]\nservers = ['a:1', 'b:2', 'c:3']\n\
        [[route]]\nbackend = 'app'\n";

    #[test]
    fn what_is_saved_is_what_is_loaded_and_nobody_else_can_read_it() {
        let folder = std::env::temp_dir().join(format!("propylon-state-{}-{}", std::process::id(), fastrand::u64(..)));
        assert_eq!(State::load(&folder).unwrap(), State::default());
        let mut state = State::default();
        let full = ServerChange {
            removed: false,
            added: true,
            weight: NonZeroU16::new(7),
            max_connections: NonZeroU32::new(9),
            drain: Some(false),
            backup: Some(true),
        };
        let removed = ServerChange { removed: true, ..ServerChange::default() };
        state.servers.insert("app".into(), [("a:1".into(), full), ("b:1".into(), removed)].into());
        state.certificates.insert("public".into(), [("shop".into(), "shop.1.pem".into())].into());
        state.pushed = Some(Pushed { text: "x = \"é\"\n".into(), is_json: false, over: "old".into() });
        state.save(&folder).unwrap();
        state.save(&folder).unwrap();
        assert_eq!(State::load(&folder).unwrap(), state);
        let mode = fs::metadata(folder.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for wrong in [
            "",
            "{",
            "[]",
            "{\"version\": 2}",
            "{\"version\": 1, \"servers\": {\"app\": {\"a:1\": 7}}}",
            "{\"version\": 1, \"servers\": {\"app\": {\"a:1\": {\"backup\": 1}}}}",
            "{\"version\":1,\"servers\":{},\"certificates\":{\"p\":{\"n\":\"../../x\"}}}",
        ] {
            fs::write(folder.join(FILE), wrong).unwrap();
            let problem = State::load(&folder).unwrap_err();
            assert!(problem.file.ends_with(FILE), "{problem}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn servers_are_added_taken_away_and_changed_and_what_is_gone_is_left_alone() {
        let mut state = State::default();
        let mut changes = BTreeMap::new();
        changes.insert("a:1".to_owned(), ServerChange { removed: true, ..ServerChange::default() });
        changes.insert("b:2".to_owned(), ServerChange { drain: Some(true), ..change(5) });
        changes.insert("d:4".to_owned(), ServerChange { added: true, ..change(3) });
        changes.insert("e:5".to_owned(), change(9));
        state.servers.insert("app".into(), changes);
        state.servers.insert("gone".into(), [("x:1".into(), change(2))].into());
        let (mut config, mut problems) = (config(TEXT), Vec::new());
        state.lay_over(&mut config, Path::new("state"), &mut problems);
        assert_eq!(servers(&config), ["b:2*5 drained", "c:3*1", "d:4*3"]);
        assert!(problems.is_empty());
    }

    #[test]
    fn whatever_is_otherwise_than_the_file_says_is_told() {
        let mut state = State::default();
        assert!(state.overrides().is_empty());
        let drained = ServerChange { drain: Some(true), ..change(5) };
        let removed = ServerChange { removed: true, ..ServerChange::default() };
        state.servers.insert("app".into(), [("a:1".into(), drained), ("b:2".into(), removed)].into());
        state.certificates.insert("public".into(), [("shop".into(), "shop.1.pem".into())].into());
        state.pushed = Some(Pushed { text: String::new(), is_json: false, over: String::new() });
        assert_eq!(
            state.overrides(),
            [
                "a configuration that was pushed by the admin API is in effect in place of the file",
                "[backend.app]: server a:1 was drained and was given weight 5 by the admin API",
                "[backend.app]: server b:2 was removed by the admin API",
                "[tls.public]: certificate \"shop\" was put by the admin API",
            ]
        );
    }

    #[test]
    fn changes_that_would_leave_a_backend_empty_are_passed_over() {
        let removed = ServerChange { removed: true, ..ServerChange::default() };
        let mut state = State::default();
        let all = ["a:1", "b:2", "c:3"].map(|address| (address.to_owned(), removed.clone()));
        state.servers.insert("app".into(), all.into());
        let (mut config, mut problems) = (config(TEXT), Vec::new());
        state.lay_over(&mut config, Path::new("state"), &mut problems);
        assert_eq!((config.backends[0].servers.len(), problems.len()), (3, 1));
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_none() {
        assert!(["shop", "shop.example", "a-b_c.1.pem"].iter().all(|name| is_plain_name(name)));
        for name in ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "é", "a\0", &"x".repeat(129)] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }
}
