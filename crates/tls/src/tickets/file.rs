//! Files of ticket keys that several engines share: read when they change, and made and rotated by engines that are
//! told to.
//!
//! Each key has a line, the oldest first: `TIME KEY`. From TIME on (Unix seconds) the key seals; KEY is the base64 of
//! its name (16 bytes) and secret (32, or 64). Engines may read the file a little later than others, since the next key
//! is in it one rotation before its time. Lines without TIME are those of HAProxy's `tls-ticket-keys`: at least three,
//! of which the last but one seals; such a file is only read. `#` begins a comment line.
//!
//! Writers lock `FILE.lock`, read the file again once they hold the lock, and replace it by a rename, so that readers
//! always see a complete file. Of two engines that want to rotate at once one does it, and the other finds it done.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use rustix::fs::{FlockOperation, flock};
use zeroize::Zeroizing;

use super::ring::{KEYS_MAX, Key, NAME_LEN, Order, Ring, SECRET_LENS};

const FILE_BYTES_MAX: u64 = 16 * 1024;
/// Limit of a key's time in the future: a later one was written with a wrong clock, and no key would ever follow it.
const FUTURE_SECONDS_MAX: u64 = 31 * 24 * 3600;
/// Least number of keys without times, as with HAProxy: the previous, the current and the next key.
const KEYS_WITHOUT_TIME_MIN: usize = 3;
/// Limit of tries to get the lock while another engine is writing the file.
const LOCK_TRIES_MAX: u32 = 100;
/// Interval at which a file that cannot be written is tried again.
const RETRY_SECONDS: u64 = 60;
const LOCK_TRY_INTERVAL: Duration = Duration::from_millis(20);

/// Error of a file of keys, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFileError {
    pub path: PathBuf,
    pub what: String,
    /// Remedy; never empty.
    pub fix: String,
    /// System error behind it, if any.
    pub error: Option<io::ErrorKind>,
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.path.display(), self.what, self.fix)
    }
}

impl std::error::Error for KeyFileError {}

pub(crate) struct KeyFile {
    path: PathBuf,
    /// Rotation period in seconds; none where the file is only read.
    period: Option<u64>,
    /// Metadata of the file when it was last read.
    seen: Option<Stamp>,
    /// Time in seconds before which a failed action is neither tried nor reported again.
    retry_at: u64,
}

/// Metadata that changes whenever a file is written or replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl KeyFile {
    pub fn new(path: &Path, period: Option<u64>) -> KeyFile {
        KeyFile { path: path.into(), period, seen: None, retry_at: 0 }
    }

    /// Reads the keys at the start; makes the file if this engine rotates it.
    pub fn open(&mut self, now: u64) -> Result<Ring, KeyFileError> {
        for _ in 0..LOCK_TRIES_MAX {
            if let Some(ring) = self.read(now)? {
                return Ok(ring);
            }
            let Some(period) = self.period else { return Err(self.absent()) };
            let Some(_lock) = self.lock()? else {
                std::thread::sleep(LOCK_TRY_INTERVAL);
                continue;
            };
            // Another engine may have made the file before the lock was taken.
            if let Some(ring) = self.read(now)? {
                return Ok(ring);
            }
            let ring = Ring::new(now, period);
            self.replace(&ring)?;
            return Ok(ring);
        }
        Err(self.error("another process holds its lock", "see who does: fuser FILE.lock"))
    }

    /// Checks whether `open` would work, as far as that is possible without making anything.
    pub fn check(&mut self, now: u64) -> Result<(), KeyFileError> {
        match (self.read(now)?, self.period) {
            (Some(_), _) => Ok(()),
            (None, None) => Err(self.absent()),
            (None, Some(_)) if folder(&self.path).is_dir() => Ok(()),
            (None, Some(_)) => {
                Err(self.error("its folder does not exist", "make the folder, for this engine to write"))
            }
        }
    }

    /// Reads changed keys, or rotates them when they are due. To be called about every second. Returns none where
    /// nothing has changed. A fault of the file is returned once, and not again until it changes; what prevents a
    /// rotation is returned once a minute.
    pub fn rotate_if_due(&mut self, ring: &Ring, now: u64) -> Result<Option<Ring>, KeyFileError> {
        let (stamp, read) = match self.stamp() {
            Ok(stamp) if stamp.is_some() && stamp != self.seen => {
                self.seen = stamp;
                (stamp, self.read(now)?.filter(|read| !read.same_keys(ring)))
            }
            Ok(stamp) => (stamp, None),
            Err(error) => return self.rate_limited(error, now),
        };
        let Some(period) = self.period else {
            return Ok(read);
        };
        let is_due = stamp.is_none() || read.as_ref().unwrap_or(ring).is_due(now);
        if !is_due || now < self.retry_at {
            return Ok(read);
        }
        match self.rotate(ring, period, now) {
            Ok(rotated) => Ok(rotated.or(read)),
            Err(error) => self.rate_limited(error, now),
        }
    }

    fn rate_limited(&mut self, error: KeyFileError, now: u64) -> Result<Option<Ring>, KeyFileError> {
        if now < self.retry_at {
            return Ok(None);
        }
        self.retry_at = now + RETRY_SECONDS;
        Err(error)
    }

    fn rotate(&mut self, ring: &Ring, period: u64, now: u64) -> Result<Option<Ring>, KeyFileError> {
        // Another engine is writing: the next call will find the result.
        let Some(_lock) = self.lock()? else {
            return Ok(None);
        };
        let next = match self.read(now)? {
            Some(theirs) if !theirs.is_due(now) => return Ok(Some(theirs).filter(|theirs| !theirs.same_keys(ring))),
            Some(theirs) => theirs.rotated(now, period),
            // The file is gone: it is written again, since other engines need this engine's keys.
            None if ring.is_due(now) => ring.rotated(now, period),
            None => ring.clone(),
        };
        self.replace(&next)?;
        Ok(Some(next).filter(|next| !next.same_keys(ring)))
    }

    fn stamp(&self) -> Result<Option<Stamp>, KeyFileError> {
        match fs::metadata(&self.path) {
            Ok(metadata) => Ok(Some(stamp(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("it cannot be looked at", &error)),
        }
    }

    /// Reads the keys; none if there is no file.
    fn read(&mut self, now: u64) -> Result<Option<Ring>, KeyFileError> {
        let mut file = match OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("it cannot be opened", &error)),
        };
        let metadata = file.metadata().map_err(|error| self.failed("it cannot be looked at", &error))?;
        self.seen = Some(stamp(&metadata));
        self.check_kind(&metadata)?;
        let mut text = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
        Read::by_ref(&mut file)
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut text)
            .map_err(|error| self.failed("it cannot be read", &error))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(self.error(&format!("it has more than {FILE_BYTES_MAX} bytes"), KEEP));
        }
        let ring = parse(&text, now).map_err(|what| self.error(&what, KEEP))?;
        if self.period.is_some() && ring.order() == Order::Position {
            let fix = "leave `rotate` out, or write the time before each key";
            return Err(self.error("its keys have no times, so it cannot be rotated", fix));
        }
        Ok(Some(ring))
    }

    fn check_kind(&self, metadata: &fs::Metadata) -> Result<(), KeyFileError> {
        const OTHERS: u32 = 0o007;
        const GROUP_WRITES: u32 = 0o020;
        if !metadata.is_file() {
            return Err(self.error("it is not a file", "give the path of a file"));
        }
        let mode = metadata.mode();
        if mode & OTHERS != 0 {
            let fix = format!("chmod 600 {}, and replace the keys: others may have them", self.path.display());
            return Err(self.error("every account can get at these keys", &fix));
        }
        if mode & GROUP_WRITES != 0 {
            let fix = format!("chmod g-w {}", self.path.display());
            return Err(self.error("its group can change these keys", &fix));
        }
        Ok(())
    }

    /// Takes the lock, which is held until the file is closed; none if another process has it.
    fn lock(&self) -> Result<Option<File>, KeyFileError> {
        let path = with_suffix(&self.target(), ".lock");
        let file = open_lock(&path).map_err(|error| self.failed("its lock file cannot be opened", &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(self.failed("its lock cannot be had", &error.into())),
        }
    }

    /// Replaces the file; the lock must be held.
    fn replace(&mut self, ring: &Ring) -> Result<(), KeyFileError> {
        let target = self.target();
        let new = with_suffix(&target, ".new");
        let written = write_new(&new, &written(ring)).and_then(|()| fs::rename(&new, &target));
        if let Err(error) = written {
            let _ = fs::remove_file(&new);
            return Err(self.failed("it cannot be written", &error));
        }
        // The folder is synced as well: otherwise the old file may be back after a power cut.
        let _ = File::open(folder(&target)).and_then(|folder| folder.sync_all());
        self.seen = self.stamp()?;
        Ok(())
    }

    /// Replaces the target of a link, as mounted secrets are.
    fn target(&self) -> PathBuf {
        fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone())
    }

    fn absent(&self) -> KeyFileError {
        let fix = "write it, or let this engine make it: { file = \"...\", rotate = \"6h\" }";
        self.error("there is no such file of ticket keys", fix)
    }

    fn error(&self, what: &str, fix: &str) -> KeyFileError {
        KeyFileError { path: self.path.clone(), what: what.into(), fix: fix.into(), error: None }
    }

    fn failed(&self, what: &str, error: &io::Error) -> KeyFileError {
        let fix = match error.kind() {
            io::ErrorKind::PermissionDenied => "give file and folder to the account that Propylon runs as",
            io::ErrorKind::NotFound => "make its folder",
            _ => "see to the file and its folder",
        };
        KeyFileError { error: Some(error.kind()), ..self.error(&format!("{what}: {error}"), fix) }
    }
}

/// A path that is a pipe must not stop the process.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;
const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
const KEEP: &str = "correct it, or remove it to have it made anew by an engine with `rotate`";

fn stamp(metadata: &fs::Metadata) -> Stamp {
    Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Opens the lock file. Root may work in another account's folder here: links are not followed, and an existing file's
/// owner is not changed.
fn open_lock(path: &Path) -> io::Result<File> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            like_its_folder(&file, path);
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            OpenOptions::new().write(true).custom_flags(NOFOLLOW | NONBLOCK).open(path)
        }
        Err(error) => Err(error),
    }
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    // The file was left by a writer that died: the lock says that nobody is writing it.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    like_its_folder(&file, path);
    file.write_all(text)?;
    file.sync_all()
}

/// Gives a file that root makes, before it drops its privileges, to the owner of the folder.
fn like_its_folder(file: &File, path: &Path) {
    if let Ok(owner) = fs::metadata(folder(path)) {
        // Only root may, and only root needs to.
        let _ = std::os::unix::fs::fchown(file, Some(owner.uid()), Some(owner.gid()));
    }
}

fn written(ring: &Ring) -> Zeroizing<Vec<u8>> {
    let mut text = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize));
    text.extend_from_slice(
        b"# Session ticket keys of Propylon: who has them can read sessions. TIME KEY; a key seals from TIME on.\n",
    );
    for key in ring.keys() {
        let whole = Zeroizing::new([&key.name[..], &key.secret].concat());
        let encoded = Zeroizing::new(Base64::encode_string(&whole));
        text.extend_from_slice(format!("{} ", key.from).as_bytes());
        text.extend_from_slice(encoded.as_bytes());
        text.push(b'\n');
    }
    text
}

/// Parses the keys. Errors name lines, and quote nothing of them.
fn parse(text: &[u8], now: u64) -> Result<Ring, String> {
    let mut keys: Vec<Key> = Vec::new();
    let mut timed = 0;
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (time, key) = parse_line(line, now).map_err(|what| format!("line {}: {what}", index + 1))?;
        timed += usize::from(time.is_some());
        let from = time.unwrap_or(0);
        if keys.iter().any(|other| other.name == key.0) {
            return Err(format!("line {}: this key is there twice", index + 1));
        }
        if keys.last().is_some_and(|last| last.from > from) {
            return Err(format!("line {}: it is older than the line before it", index + 1));
        }
        if keys.len() == KEYS_MAX {
            return Err(format!("it has more than {KEYS_MAX} keys"));
        }
        keys.push(Key::new(key.0, from, key.1));
    }
    match timed {
        _ if keys.is_empty() => Err("it has no keys".into()),
        0 if keys.len() < KEYS_WITHOUT_TIME_MIN => {
            Err(format!("it has fewer than {KEYS_WITHOUT_TIME_MIN} keys, and they have no times"))
        }
        0 => Ok(Ring::of(keys, Order::Position, now)),
        _ if timed < keys.len() => Err("some of its keys have times, and some have none".into()),
        _ => Ok(Ring::of(keys, Order::Time, now)),
    }
}

type Parts = ([u8; NAME_LEN], Zeroizing<Vec<u8>>);

fn parse_line(line: &[u8], now: u64) -> Result<(Option<u64>, Parts), String> {
    let line = std::str::from_utf8(line).map_err(|_| "it is not text")?;
    let (time, encoded) = match line.split_once(' ') {
        Some((time, encoded)) => (Some(time), encoded.trim_start()),
        None => (None, line),
    };
    let time = time.map(|time| time.parse::<u64>().map_err(|_| "what is before the key is not a time in seconds"));
    let time = time.transpose()?;
    if time.is_some_and(|time| time > now.saturating_add(FUTURE_SECONDS_MAX)) {
        return Err("its time is more than a month away".into());
    }
    let bytes = Zeroizing::new(Base64::decode_vec(encoded).map_err(|_| "the key is not base64, or was cut")?);
    match bytes.split_first_chunk::<NAME_LEN>() {
        Some((name, secret)) if SECRET_LENS.contains(&secret.len()) => {
            Ok((time, (*name, Zeroizing::new(secret.to_vec()))))
        }
        _ => Err("the key does not have 48 or 80 bytes".into()),
    }
}

#[cfg(test)]
mod tests;
