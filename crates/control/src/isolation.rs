//! Keys in a process of their own, beside this one (`keys.isolate`): its start, and what of it this process has. What
//! that process does is `propylon_keyserver::isolated`; why it is so: `docs/decisions/0039-isolated-keys.md`.

mod earlier;
mod store_check;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use propylon_config::{At, Batch, Config, FileAccess, Keys, Level, NamedFile, Problem, Source};
use propylon_crypto::Ski;
use propylon_crypto::key_process::{Failure, KeyFiles, Setup};
use propylon_keyserver::isolated::Startup;
use propylon_sys::{Account, folder_of, folders_of, is_broad};

use propylon_proxy::cores::worker_count;
use propylon_proxy::snapshot::Snapshot;
pub use store_check::StoreCheck;

use crate::key_folders::{folders, store, without_links};
use crate::logger;

/// How long it may take to be there.
const START_WAIT: Duration = Duration::from_secs(20);
/// Sockets of the key process' side that wait in messages on their way.
const LINKS_MAX: usize = 1024;
/// So long keys stay that were in use before: handshakes that began with them are over by then.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// This process's side of it. It ends when this process does.
pub struct KeyProcess {
    /// One for each core, the last core's first.
    links: Vec<OwnedFd>,
    /// The main thread's, which probes servers.
    aside: Option<OwnedFd>,
    _supervisor: (Child, OwnedFd),
}

impl KeyProcess {
    /// From here on this process reads no private key, and has none. To be called before any is read.
    pub fn start_if_wanted(config: &Config, path: &Path) -> io::Result<Option<KeyProcess>> {
        if config.keys.isolate.is_none() {
            return Ok(None);
        }
        // A service manager's sockets are this process's alone.
        if let Err(error) = propylon_sys::close_files_on_exec() {
            log::warn!("the key process gets the files that came with the start of this one: {error}");
        }
        let links = worker_count(config).min(LINKS_MAX) + 1;
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for _ in 0..=links {
            let (one, other) = propylon_sys::message_pair()?;
            own.push(one);
            others.push(other);
        }
        let setup = Setup {
            user: config.process.user.clone(),
            level: config.log.level as u8,
            links: links as u16,
            lax: config.process.allow_world_readable_keys,
            batch: config.process.batch == Batch::Auto,
            sandbox: config.process.sandbox.on,
            config: std::path::absolute(path)?,
            store: config.keys.store.as_ref().map(|store| store.path.clone()),
        };
        let mut readable = folders(config);
        readable.extend(config_folder(path));
        let folders = readable.into_iter().collect();
        let accounts: BTreeSet<String> = config.acmes.iter().map(|acme| acme.name.clone()).collect();
        let startup = Startup { setup, files: others, folders, accounts: accounts.clone(), paths: Vec::new() };
        let (channel, other) = propylon_sys::message_pair()?;
        let mut command = Command::new("/proc/self/exe");
        let supervisor = command.arg0("propylon").arg("key-supervisor").stdin(Stdio::from(other)).spawn()?;
        startup.send(&channel)?;
        // The other ends are theirs alone.
        drop(startup);
        let files = Arc::new(KeyFiles::new(own.remove(0), accounts));
        files.wait_until_ready(START_WAIT).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other("it has ended; the log says why"),
            _ => error,
        })?;
        for link in &own {
            propylon_sys::set_nonblocking(link, true)?;
        }
        let aside = own.pop();
        own.reverse();
        propylon_tls::use_key_process(files);
        Ok(Some(KeyProcess { links: own, aside, _supervisor: (supervisor, channel) }))
    }

    /// For the main thread.
    pub fn take_aside(&mut self) -> Option<OwnedFd> {
        self.aside.take()
    }

    /// For the next core.
    pub fn take_link(&mut self) -> Option<OwnedFd> {
        self.links.pop()
    }
}

/// Keys of ordered certificates are looked for where a key process has them, by a process that serves nobody.
pub fn find_ordered_keys(keys: &Keys) {
    if let (Some(_), Some(store)) = (keys.isolate, &keys.store) {
        propylon_tls::find_ordered_keys_in(&store.path);
    }
}

/// Sees to it that the key process forgets keys that are not in use any more.
#[derive(Default)]
pub struct UnusedKeys {
    /// Generation of the snapshot that was looked at last, with the keys shown to key servers then: these change
    /// without another one.
    seen: Option<(u64, Vec<Ski>)>,
    /// When nobody can want keys of the one before any more, and what had been read when it came into force.
    due: Option<(Instant, u64)>,
    /// Tells the key process, which may let it wait, and what had been read.
    telling: Option<(JoinHandle<Result<(), Failure>>, u64)>,
}

impl UnusedKeys {
    /// For every second.
    pub fn tick(&mut self, snapshot: &Snapshot, now: Instant) {
        let Some(files) = propylon_tls::key_files() else { return };
        let seen = (snapshot.generation, keys_of_links(snapshot));
        if self.seen.as_ref() != Some(&seen) {
            self.seen = Some(seen);
            self.due = Some((now + FORGET_AFTER, files.stamp()));
        }
        if let Some((thread, stamp)) = self.telling.take_if(|(thread, _)| thread.is_finished()) {
            match thread.join() {
                Ok(Ok(())) => {}
                failed => self.retry_later(now, stamp, &format!("{failed:?}")),
            }
        }
        if self.telling.is_some() {
            return;
        }
        let Some((_, stamp)) = self.due.take_if(|(due, _)| now >= *due) else { return };
        let kept = keys_in_use(snapshot);
        match thread::Builder::new().name("forget".into()).spawn(move || files.forget(&kept, stamp)) {
            Ok(thread) => self.telling = Some((thread, stamp)),
            Err(error) => self.retry_later(now, stamp, &error.to_string()),
        }
    }

    fn retry_later(&mut self, now: Instant, stamp: u64, why: &str) {
        log::warn!("the key process cannot be told which keys are in use: {why}");
        self.due.get_or_insert((now + FORGET_AFTER, stamp));
    }
}

/// Names of the keys that are shown to key servers.
fn keys_of_links(snapshot: &Snapshot) -> Vec<Ski> {
    snapshot.signers.iter().filter_map(|signer| signer.link.load().key_beside()).collect()
}

/// Names of all keys that somebody may be shown by this snapshot.
fn keys_in_use(snapshot: &Snapshot) -> Vec<Ski> {
    let own = snapshot.profiles.iter().flat_map(|profile| profile.keys_beside());
    let towards = snapshot.upstreams.iter().flatten().filter_map(|upstream| upstream.key_beside());
    own.chain(towards).chain(keys_of_links(snapshot)).collect()
}

/// So that it can be read where this process may not any more, and after it was replaced; by itself where there is too
/// much beside it.
fn config_folder(path: &Path) -> Option<PathBuf> {
    let path = std::fs::canonicalize(path).ok()?;
    let folder = path.parent().filter(|folder| !is_broad(folder));
    Some(folder.map_or_else(|| path.clone(), Path::to_path_buf))
}

/// The text of the configuration, by the key process where this one may not read it: it may lie in one folder with
/// keys.
pub fn read_source(path: &Path) -> Result<Source, Problem> {
    let Some(files) = propylon_tls::key_files() else { return Source::read(path) };
    match files.config() {
        Ok(bytes) => Source::of(path, bytes).map(Source::completed),
        // Words for what is wrong with it.
        Err(_) => Source::read(path),
    }
}

/// Obstacles for a process that has no keys, as errors: it would have to write where they are, or to read all that
/// there is. As warnings what will, once a file is replaced.
pub fn problems(config: &Config, source: &Source) -> Vec<Problem> {
    if config.keys.isolate.is_none() || !config.process.sandbox.on {
        return Vec::new();
    }
    let folders = folders(config);
    let broad = folders.iter().filter(|folder| is_broad(folder)).map(|folder| {
        let folder = folder.display();
        let what = format!(
            "with keys.isolate there may be no private key in {folder}, where there is more than this process's"
        );
        Problem::error(&source.name, config.keys.isolate, what, "put keys in a folder of their own")
    });
    let problem = |file: NamedFile<'_>| {
        if file.access == FileAccess::Socket {
            return None;
        }
        let is_folder = file.access == FileAccess::WriteFolder || file.path.is_dir();
        let folder = if is_folder { file.path.to_owned() } else { folder_of(file.path) };
        let folder = std::fs::canonicalize(&folder).unwrap_or(folder);
        let is_read = file.access == FileAccess::Read;
        let meets = |keys: &&PathBuf| keys.starts_with(&folder) || is_read && folder.starts_with(keys);
        let keys = folders.iter().find(meets)?;
        if is_read && !is_folder {
            let what = format!(
                "{} lies {} ({}): once it is replaced, a process with keys.isolate cannot read it again without a restart",
                file.path.display(),
                if keys == &folder { "where private keys are" } else { "in a folder with private keys above or below" },
                keys.display()
            );
            let fix = apart(&folder, keys);
            return Some(Problem::warning(&source.name, Some(file.at), what, fix));
        }
        let (folder, keys) = (folder.display(), keys.display());
        let what = format!(
            "with keys.isolate this process may not have the run of {folder}: there are private keys in {keys}"
        );
        Some(Problem::error(&source.name, Some(file.at), what, "put this, or the keys, in a folder of their own"))
    };
    let others = config.other_files().into_iter().filter_map(problem);
    let earlier = earlier::problems(config, source);
    broad.chain(others).chain(beside_uploads(config, source)).chain(earlier).collect()
}

/// Cure that lets a file of this folder be read after it was replaced. Where keys are below it, all of it is left
/// out as well, but for what lies in folders of its own: the kernel takes no word for what is not to be read below
/// a folder.
pub fn apart(folder: &Path, keys: &Path) -> String {
    if folder.starts_with(keys) {
        return "put keys in a folder of their own".to_owned();
    }
    format!("put it in a folder beside {}, with nothing but its like in it", keys.display())
}

/// Keys that the account of `process.user` cannot read, by their modes and those of the folders that lead to them;
/// whoever checks may be another account, on another machine even.
pub fn unreadable(config: &Config, source: &Source) -> Vec<Problem> {
    let account = config.process.user.as_ref().filter(|_| config.keys.isolate.is_some());
    let Some(account) = account.and_then(|user| Account::find(user).ok()).filter(|account| account.uid != 0) else {
        return Vec::new();
    };
    let mut known = BTreeSet::new();
    let problem = |(path, at): (&Path, At)| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let all = entries.filter(|path| is_key_file(path) && path.is_file()).chain([path.to_owned()]);
        let (stands, mode) =
            all.filter_map(|path| stands_in_the_way(&account, &path)).find(|(path, _)| known.insert(path.clone()))?;
        let what = format!(
            "with keys.isolate keys are read by the account of process.user, and by its mode {mode:04o} {} is not for {}: {} \
             cannot be read",
            stands.display(),
            account.user,
            path.display()
        );
        let fix = format!("give {}, or a group of its, the right to (chgrp, chmod g+r; folders g+x)", account.user);
        Some(Problem::warning(&source.name, Some(at), what, &fix))
    };
    config.key_files().into_iter().filter_map(problem).collect()
}

fn is_key_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["pem", "key", "crt"].iter().any(|known| extension == *known))
}

/// Place that an account may not read, or go through, on its way to a file or folder; and its mode.
fn stands_in_the_way(account: &Account, path: &Path) -> Option<(PathBuf, u32)> {
    let path = std::fs::canonicalize(path).ok()?;
    let wanted = |at: &Path| match () {
        () if at != path => 0o1,
        () if at.is_dir() => 0o5,
        () => 0o4,
    };
    path.ancestors().find_map(|at| {
        let metadata = std::fs::metadata(at).ok()?;
        let is_group = metadata.gid() == account.gid || account.groups.contains(&metadata.gid());
        let shift = if metadata.uid() == account.uid {
            6
        } else if is_group {
            3
        } else {
            0
        };
        let may = metadata.mode() >> shift & wanted(at) == wanted(at);
        (!may).then(|| (at.to_owned(), metadata.mode() & 0o7777))
    })
}

/// In the folder of uploads there is nothing else: an engine has files made and removed there by their names.
fn beside_uploads(config: &Config, source: &Source) -> Option<Problem> {
    let (store, named) = (store(config)?, config.keys.store.as_ref()?);
    let own = config.key_files().into_iter().map(|(path, _)| path).filter(|path| !is_upload(path, &named.path));
    let sockets = config.other_files().into_iter().filter(|file| file.access == FileAccess::Socket);
    let config_file = Path::new(&source.name);
    let others = own.chain(sockets.map(|file| file.path)).chain([config_file]);
    let other = others.into_iter().find(|path| {
        let is_in_it = |folder: &PathBuf| without_links(folder).starts_with(&store);
        folders_of(path).iter().any(is_in_it)
    })?;
    let what = format!("{} lies in keys.store, where only the key process keeps what it was given", other.display());
    let fix = "give keys.store a folder of its own";
    Some(Problem::error(&source.name, Some(named.at), what, fix))
}

/// Whether a file is called as uploads are, and lies where they do.
fn is_upload(path: &Path, store: &Path) -> bool {
    let mark = path.file_stem().and_then(|stem| Path::new(stem).extension()?.to_str());
    folder_of(path) == store && mark.is_some_and(|mark| mark.len() == 16 && mark.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The log of the processes beside this one: `level` as in what they are told.
pub fn start_log(level: u8) {
    let levels = [Level::Error, Level::Warn, Level::Info, Level::Debug];
    logger::start(*levels.get(usize::from(level)).unwrap_or(&Level::Info));
}
