//! The last good state of the cluster on this engine's disk, sealed, so that the engine starts with etcd away.
//!
//! ```text
//! DIR/cluster.state    the index: cluster, revision, time, and each entry's name, revision, digest and file
//! DIR/entries/ID       one sealed entry each; ID is the start of the SHA-256 of what is in the file
//! DIR/lock             held by whoever reads or writes, for as long as it does
//! ```
//!
//! An entry's file is never changed: a new value is a new file, since no nonce is used twice. A change writes the new
//! entries' files, then brings them and their folder to the disk, then writes the new index beside the old one, brings
//! it to the disk, renames it and syncs the folder; only then the files that the new index does not name are removed.
//! Whenever it stops, `cluster.state` is the old index or the new one, and all files that it names are whole.
//! Left-over files are removed when the store is opened next. An old copy of one file cannot take the place of
//! the new one, because the index names a file by what is in it; an old copy of the whole folder can.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::seal::Sealer;

/// Entries that a store takes.
pub const ENTRIES_MAX: usize = 100_000;
/// Bytes of one entry. Values of etcd are shorter than 1.5 MiB, unless its limit was raised.
pub const ENTRY_BYTES_MAX: usize = 8 << 20;
/// Bytes of an entry's name.
pub const ENTRY_NAME_BYTES_MAX: usize = 512;
/// An entry takes some 200 bytes of the index.
const INDEX_BYTES_MAX: usize = ENTRIES_MAX * (ENTRY_NAME_BYTES_MAX + 256);
/// Problems that are told by name; of the others there is the number.
const PROBLEMS_MAX: usize = 100;
/// From so many files on the whole file system is synced once, instead of each file.
const SYNC_EACH_MAX: usize = 32;
/// Looks at a lock that another process has, which it holds for one change.
const LOCK_LOOKS_MAX: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
const VERSION: u32 = 1;
const INDEX: &str = "cluster.state";
const ENTRIES: &str = "entries";
const ID_BYTES: usize = 16;

pub struct Store {
    path: PathBuf,
    cluster: String,
    sealer: Sealer,
    entries: BTreeMap<String, Placed>,
    /// Stamp of the index that `entries` is of.
    stamp: Stamp,
    /// Whether the index was sealed under an older key.
    is_index_stale: bool,
}

/// The state that a store had when it was opened.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Highest revision of etcd that anything in it is of; 0 if it was empty.
    pub revision: u64,
    /// Time of the last change.
    pub saved: Option<SystemTime>,
    /// Ascending by name.
    pub entries: Vec<Entry>,
    /// Entries, or a whole index, that cannot be used, and why.
    pub problems: Vec<String>,
}

pub struct Entry {
    pub name: String,
    pub plain: Zeroizing<Vec<u8>>,
    /// `mod_revision` in etcd.
    pub revision: u64,
}

#[derive(Clone)]
pub enum Change {
    Put { name: String, plain: Zeroizing<Vec<u8>>, revision: u64 },
    Remove { name: String },
}

/// A store that cannot be read or written, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    pub path: PathBuf,
    pub what: String,
    pub fix: String,
}

/// Inode, time of change, length; absent while there is no index.
type Stamp = Option<(u64, i64, i64, u64)>;

#[derive(Serialize, Deserialize)]
struct Index {
    version: u32,
    cluster: String,
    revision: u64,
    /// Seconds since 1970.
    saved: u64,
    entries: BTreeMap<String, Placed>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Placed {
    revision: u64,
    file: FileId,
    /// Digest of the plain bytes, to know a value that has not changed. The index is sealed.
    digest: FileId,
}

/// The start of a SHA-256, in hexadecimal.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct FileId(String);

impl Store {
    /// Reads the state of a cluster; makes what is not there. What cannot be used is told and skipped: an engine that
    /// has some of its state is better than none.
    pub fn open(path: &Path, cluster: &str, sealer: Sealer) -> Result<(Store, Loaded), StoreError> {
        let entries = BTreeMap::new();
        let mut store =
            Store { path: path.into(), cluster: cluster.into(), sealer, entries, stamp: None, is_index_stale: false };
        store.make()?;
        let _lock = store.lock()?;
        let mut loaded = Loaded::default();
        let index = match store.read_index() {
            Ok(Some(index)) => index,
            Ok(None) => return Ok((store, loaded)),
            // The files stay where they are: with the right key they are whole.
            Err(problem) => {
                loaded.problems.push(problem);
                return Ok((store, loaded));
            }
        };
        loaded.revision = index.revision;
        loaded.saved = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(index.saved));
        store.entries = index.entries;
        let stale = store.load(&mut loaded);
        store.sweep();
        if (!stale.is_empty() || store.is_index_stale)
            && let Err(error) = store.write_anew(&loaded.entries, &stale)
        {
            loaded.problems.push(format!("entries that are sealed under an older key stay so: {error}"));
        }
        Ok((store, loaded))
    }

    /// Makes the changes, all or none of them. What is as it was is not written again.
    pub fn apply(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.catch_up();
        let mut entries = self.entries.clone();
        let mut files = NewFiles::default();
        for change in changes {
            match change {
                Change::Remove { name } => drop(entries.remove(&name)),
                Change::Put { name, plain, revision } => {
                    let placed = self.place(&name, &plain, revision, &mut files);
                    entries.insert(name, placed.inspect_err(|_| files.remove())?);
                }
            }
        }
        self.commit(entries, &files).inspect_err(|_| files.remove())
    }

    /// Names and revisions of what is kept.
    pub fn entries(&self) -> impl Iterator<Item = (&str, u64)> {
        self.entries.iter().map(|(name, placed)| (name.as_str(), placed.revision))
    }

    /// Takes the entries that are under an older key, by their place, and writes them under the first one.
    fn write_anew(&mut self, loaded: &[Entry], stale: &[usize]) -> Result<(), StoreError> {
        let mut entries = self.entries.clone();
        let mut files = NewFiles::default();
        for entry in stale.iter().filter_map(|&place| loaded.get(place)) {
            entries.remove(&entry.name);
            let placed = self.write_entry(&entry.name, &entry.plain, entry.revision, &mut files);
            entries.insert(entry.name.clone(), placed.inspect_err(|_| files.remove())?);
        }
        self.commit(entries, &files).inspect_err(|_| files.remove())
    }

    /// Reads all entries. Those that cannot be used are dropped. Returns the places of those under an older key.
    fn load(&mut self, loaded: &mut Loaded) -> Vec<usize> {
        let mut stale = Vec::new();
        let mut untold = 0;
        let entries = std::mem::take(&mut self.entries);
        for (name, placed) in entries {
            match self.read_entry(&name, &placed) {
                Ok((plain, is_stale)) => {
                    if is_stale {
                        stale.push(loaded.entries.len());
                    }
                    loaded.entries.push(Entry { name: name.clone(), plain, revision: placed.revision });
                    self.entries.insert(name, placed);
                }
                Err(why) if loaded.problems.len() < PROBLEMS_MAX => {
                    loaded.problems.push(format!("{} in {}: {why}", shown(&name), self.path.display()));
                }
                Err(_) => untold += 1,
            }
        }
        if untold > 0 {
            loaded.problems.push(format!("{untold} more entries in {} cannot be used", self.path.display()));
        }
        stale
    }

    /// The bytes of an entry, and whether they are to be sealed anew.
    fn read_entry(&self, name: &str, placed: &Placed) -> Result<(Zeroizing<Vec<u8>>, bool), String> {
        if !placed.file.is_valid() {
            return Err("its file's name is none".to_owned());
        }
        let sealed = read(&self.entry_path(&placed.file), ENTRY_BYTES_MAX + crate::seal::SEAL_BYTES);
        let sealed = sealed.map_err(|error| format!("its file cannot be read: {error}"))?;
        if FileId::of(&sealed) != placed.file {
            return Err("its file was changed".to_owned());
        }
        let plain = self.sealer.open(&self.seal_name(name), &sealed).map_err(|error| error.to_string())?;
        Ok((plain, !self.sealer.is_sealed_with_first(&sealed)))
    }

    /// Absent if there is no index. The error says why it cannot be used.
    fn read_index(&mut self) -> Result<Option<Index>, String> {
        let path = self.path.join(INDEX);
        let fail = |why: &dyn fmt::Display| format!("{} cannot be used: {why}", path.display());
        self.stamp = stamp(&path);
        let sealed = match read(&path, INDEX_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            sealed => sealed.map_err(|error| fail(&error))?,
        };
        self.is_index_stale = !self.sealer.is_sealed_with_first(&sealed);
        let plain = self.sealer.open(INDEX_NAME, &sealed).map_err(|error| fail(&error))?;
        let index: Index = serde_json::from_slice(&plain).map_err(|_| fail(&"it is of another version of Propylon"))?;
        if index.version != VERSION {
            return Err(fail(&format!("it is of version {}, and this Propylon reads {VERSION}", index.version)));
        }
        match index.cluster == self.cluster {
            true => Ok(Some(index)),
            false => Err(fail(&format!("it is of the cluster {}; give each cluster a folder", shown(&index.cluster)))),
        }
    }

    /// Takes over what another process has written since: one that is started while this one still runs.
    fn catch_up(&mut self) {
        if stamp(&self.path.join(INDEX)) != self.stamp
            && let Ok(index) = self.read_index()
        {
            self.entries = index.map_or_else(BTreeMap::new, |index| index.entries);
        }
    }

    fn place(&self, name: &str, plain: &[u8], revision: u64, files: &mut NewFiles) -> Result<Placed, StoreError> {
        if name.len() > ENTRY_NAME_BYTES_MAX || plain.len() > ENTRY_BYTES_MAX {
            let what = format!(
                "the entry {} has {} bytes; it may have {ENTRY_BYTES_MAX}, and its name {ENTRY_NAME_BYTES_MAX}",
                shown(name),
                plain.len()
            );
            return Err(self.error(what, "make it smaller"));
        }
        match self.entries.get(name).filter(|before| before.digest == FileId::of(plain)) {
            Some(before) => Ok(Placed { revision, ..before.clone() }),
            None => self.write_entry(name, plain, revision, files),
        }
    }

    fn write_entry(&self, name: &str, plain: &[u8], revision: u64, files: &mut NewFiles) -> Result<Placed, StoreError> {
        let sealed = self.sealer.seal(&self.seal_name(name), plain);
        let file = FileId::of(&sealed);
        let path = self.entry_path(&file);
        files.paths.push(path.clone());
        write_new(&path, &sealed).map_err(|error| self.failed(&error))?;
        Ok(Placed { revision, file, digest: FileId::of(plain) })
    }

    /// Brings the new files to the disk, then the index, then removes what it does not name.
    fn commit(&mut self, entries: BTreeMap<String, Placed>, files: &NewFiles) -> Result<(), StoreError> {
        if entries.len() > ENTRIES_MAX {
            let what = format!("there would be {} entries, and it takes {ENTRIES_MAX}", entries.len());
            return Err(self.error(what, "split the cluster"));
        }
        let folder = self.path.join(ENTRIES);
        files.sync(&folder).map_err(|error| self.failed(&error))?;
        let saved = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let revision = entries.values().map(|placed| placed.revision).max().unwrap_or(0);
        let index = Index { version: VERSION, cluster: self.cluster.clone(), revision, saved, entries };
        let plain = Zeroizing::new(serde_json::to_vec(&index).expect("names, numbers and texts can be written"));
        let sealed = self.sealer.seal(INDEX_NAME, &plain);
        replace(&self.path.join(INDEX), &sealed).map_err(|error| self.failed(&error))?;
        self.stamp = stamp(&self.path.join(INDEX));
        let before = std::mem::replace(&mut self.entries, index.entries);
        for (name, placed) in before {
            if self.entries.get(&name).is_none_or(|now| now.file != placed.file) {
                // One that stays behind is swept when the store is opened.
                let _ = fs::remove_file(self.entry_path(&placed.file));
            }
        }
        Ok(())
    }

    /// Removes files that the index does not name.
    fn sweep(&self) {
        let named: HashSet<&str> = self.entries.values().map(|placed| placed.file.0.as_str()).collect();
        let Ok(folder) = fs::read_dir(self.path.join(ENTRIES)) else { return };
        for file in folder.flatten() {
            let name = file.file_name();
            let is_own = name.to_str().is_some_and(|name| FileId(name.to_owned()).is_valid() && !named.contains(name));
            if is_own {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    fn make(&self) -> Result<(), StoreError> {
        for path in [self.path.clone(), self.path.join(ENTRIES)] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
            let mode = made.and_then(|()| fs::metadata(&path)).map_err(|error| self.failed(&error))?.mode();
            if mode & 0o077 != 0 {
                let closed = fs::set_permissions(&path, fs::Permissions::from_mode(0o700));
                closed.map_err(|error| self.failed(&error))?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> Result<File, StoreError> {
        let path = self.path.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
        let file = file.map_err(|error| self.failed(&error))?;
        for _ in 0..LOCK_LOOKS_MAX {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                Err(error) => return Err(self.failed(&error.into())),
            }
        }
        Err(self.error("another process has its lock".to_owned(), "see that each engine has a folder of its own"))
    }

    fn entry_path(&self, file: &FileId) -> PathBuf {
        self.path.join(ENTRIES).join(&file.0)
    }

    fn seal_name(&self, name: &str) -> String {
        format!("propylon cluster state entry\0{}\0{name}", self.cluster)
    }

    fn failed(&self, error: &io::Error) -> StoreError {
        let path = self.path.display();
        let fix =
            format!("see that there is room, and make it for Propylon's account: install -d -m 700 -o USER {path}");
        self.error(error.to_string(), &fix)
    }

    fn error(&self, what: String, fix: &str) -> StoreError {
        StoreError { path: self.path.clone(), what, fix: fix.to_owned() }
    }
}

const INDEX_NAME: &str = "propylon cluster state index";

/// Files that no index names yet.
#[derive(Default)]
struct NewFiles {
    paths: Vec<PathBuf>,
}

impl NewFiles {
    fn sync(&self, folder: &Path) -> io::Result<()> {
        if self.paths.is_empty() {
            return Ok(());
        }
        let folder = File::open(folder)?;
        if self.paths.len() > SYNC_EACH_MAX {
            return Ok(rustix::fs::syncfs(&folder)?);
        }
        self.paths.iter().try_for_each(|path| File::open(path)?.sync_all())?;
        folder.sync_all()
    }

    fn remove(&self) {
        self.paths.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

impl FileId {
    fn of(bytes: &[u8]) -> FileId {
        FileId(digest(&SHA256, bytes).as_ref()[..ID_BYTES].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// An index that is damaged must not lead to another folder.
    fn is_valid(&self) -> bool {
        self.0.len() == 2 * ID_BYTES && self.0.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

fn read(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > bytes_max as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file, or too long"));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(bytes_max as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?.write_all(bytes)
}

/// Whole, and on the disk, or not at all.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    // A leftover of a process that died over it.
    let _ = fs::remove_file(&new);
    let written = write_new(&new, bytes).and_then(|()| File::open(&new)?.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&new, path)) {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn stamp(path: &Path) -> Stamp {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size()))
}

/// Names come from the network.
fn shown(name: &str) -> String {
    name.chars().take(100).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the cluster's state {} cannot be used: {}; {}", self.path.display(), self.what, self.fix)
    }
}

impl std::error::Error for StoreError {}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} at {}, {} bytes)", shown(&self.name), self.revision, self.plain.len())
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Put { name, plain, revision } => {
                write!(f, "Put({} at {revision}, {} bytes)", shown(name), plain.len())
            }
            Change::Remove { name } => write!(f, "Remove({})", shown(name)),
        }
    }
}

#[cfg(test)]
mod tests;
