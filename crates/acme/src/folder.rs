//! The folder of one account: its key, the certificates with theirs, challenges, and the record of attempts.
//!
//! Files are written whole or not at all: into a new file, to the disk, then renamed. Other accounts have no
//! access: 0700, and 0600 for its files. A file that cannot be read is set aside under another name, and never
//! written over.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::answer::{ANSWER_BYTES_MAX, Answer};
use crate::record::Record;

pub(crate) struct Folder {
    path: PathBuf,
}

/// The right to order. Gone with the process, however it ends.
pub(crate) struct Lock(#[expect(dead_code, reason = "held for as long as it is open")] File);

/// Metadata of a file, by which a change shows without reading it.
pub(crate) type FileStamp = (u64, i64, i64, u64);

/// Answers that are read of one folder, at most: as many as one account could have outstanding, and some that
/// nobody has cleared away.
const ANSWERS_MAX: usize = 1000;
const RECORD_BYTES_MAX: u64 = 4 << 20;
pub(crate) const ACCOUNT_BYTES_MAX: u64 = 64 * 1024;

impl Folder {
    pub fn new(path: &Path) -> Folder {
        Folder { path: path.into() }
    }

    /// Makes what is not there, for nobody but this account.
    pub fn make(&self) -> Result<(), String> {
        let fail = |path: &Path, error: io::Error| {
            let path = path.display();
            format!(
                "{path} cannot be used: {error}; make it for the account that runs this: install -d -m 700 -o USER {path}"
            )
        };
        for path in [self.path.clone(), self.certificates(), self.challenges()] {
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| fail(&path, error))?;
            let mode = fs::metadata(&path).map_err(|error| fail(&path, error))?.mode();
            if mode & 0o077 != 0 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).map_err(|error| fail(&path, error))?;
            }
        }
        Ok(())
    }

    /// Takes the lock; absent if another process has it.
    pub fn lock(&self) -> io::Result<Option<Lock>> {
        let path = self.path.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn certificates(&self) -> PathBuf {
        self.path.join("certificates")
    }

    fn challenges(&self) -> PathBuf {
        self.path.join("challenges")
    }

    /// The contents of the account's file; absent if there is no file.
    pub fn account(&self, file: &Path) -> io::Result<Option<Vec<u8>>> {
        read(file, ACCOUNT_BYTES_MAX)
    }

    /// Reads the record of attempts. A record that cannot be read is set aside, and its new name returned.
    pub fn record(&self, now: i64) -> io::Result<(Record, Option<PathBuf>)> {
        let path = self.path.join("orders.json");
        let Some(bytes) = read(&path, RECORD_BYTES_MAX)? else { return Ok((Record::default(), None)) };
        match serde_json::from_slice(&bytes) {
            Ok(record) => Ok((record, None)),
            Err(_) => Ok((Record::default(), Some(set_aside(&path, now)?))),
        }
    }

    pub fn write_record(&self, record: &Record) -> io::Result<()> {
        write(&self.path.join("orders.json"), &serde_json::to_vec_pretty(record)?)
    }

    pub fn write_answer(&self, answer: &Answer) -> io::Result<()> {
        write(&self.answer_file(answer), &answer.to_json())
    }

    pub fn remove_answer(&self, answer: &Answer) {
        // An answer whose file stays behind is over by itself.
        let _ = fs::remove_file(self.answer_file(answer));
    }

    fn answer_file(&self, answer: &Answer) -> PathBuf {
        self.challenges().join(format!("{}.json", answer.token))
    }

    /// The answers that are outstanding, of whichever process. With `sweep`, those that are over are removed.
    pub fn answers(&self, now: i64, sweep: bool) -> Vec<Answer> {
        let Ok(entries) = fs::read_dir(self.challenges()) else { return Vec::new() };
        let mut answers = Vec::new();
        for entry in entries.flatten().take(ANSWERS_MAX) {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let answer = read(&path, ANSWER_BYTES_MAX).ok().flatten().and_then(|bytes| Answer::from_json(&bytes));
            match answer {
                Some(answer) if answer.until > now => answers.push(answer),
                Some(_) if sweep => drop(fs::remove_file(&path)),
                _ => {}
            }
        }
        answers.sort_by(|one, other| one.token.cmp(&other.token));
        answers
    }

    /// Stamp of the challenges' folder, which changes with every file that is made or removed there.
    pub fn answers_stamp(&self) -> Option<FileStamp> {
        file_stamp(&self.challenges())
    }
}

pub(crate) fn file_stamp(path: &Path) -> Option<FileStamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size()))
}

/// The contents of a file; absent if there is no file, an error if it is longer than it may be.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too long")),
        false => Ok(Some(bytes)),
    }
}

/// Whole, and on the disk, or not at all.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // A leftover of a process that died over it; without the lock nobody else writes here.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    File::open(folder)?.sync_all()
}

/// Renames a broken file, so that an operator can look at it. Returns its new path.
pub(crate) fn set_aside(path: &Path, now: i64) -> io::Result<PathBuf> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".broken-{now}"));
    let aside = PathBuf::from(aside);
    fs::rename(path, &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_config::AcmeChallenge;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("propylon-acme-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn nobody_else_can_look_into_the_folder_or_its_files() {
        let scratch = Scratch::new("modes");
        fs::create_dir_all(&scratch.0).unwrap();
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).unwrap();
        let folder = Folder::new(&scratch.0);
        folder.make().unwrap();
        folder.write_record(&Record::default()).unwrap();
        let lock = folder.lock().unwrap();
        assert!(lock.is_some());
        for path in [&scratch.0, &folder.certificates(), &folder.challenges()] {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
        for name in ["orders.json", "lock"] {
            assert_eq!(mode(&scratch.0.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn one_at_a_time_has_the_lock_and_it_is_free_when_that_one_is_gone() {
        let scratch = Scratch::new("lock");
        let (one, other) = (Folder::new(&scratch.0), Folder::new(&scratch.0));
        one.make().unwrap();
        let held = one.lock().unwrap();
        assert!(held.is_some() && other.lock().unwrap().is_none());
        drop(held);
        assert!(other.lock().unwrap().is_some());
    }

    #[test]
    fn what_cannot_be_read_is_set_aside_and_what_was_left_half_written_is_in_nobody_s_way() {
        let scratch = Scratch::new("broken");
        let folder = Folder::new(&scratch.0);
        folder.make().unwrap();
        fs::write(scratch.0.join("orders.json"), "{\"orders\":[1,").unwrap();
        fs::write(scratch.0.join("orders.json.new"), "half").unwrap();
        let (record, aside) = folder.record(77).unwrap();
        assert_eq!(record, Record::default());
        let aside = aside.expect("it was set aside");
        assert!(aside.ends_with("orders.json.broken-77"));
        assert_eq!(fs::read_to_string(aside).unwrap(), "{\"orders\":[1,");
        let mut record = Record::default();
        record.begin("a", std::time::Duration::from_secs(5), 100, 0.0);
        folder.write_record(&record).unwrap();
        assert_eq!(folder.record(78).unwrap(), (record, None));
        assert!(!scratch.0.join("orders.json.new").exists());
    }

    #[test]
    fn answers_are_there_for_every_process_until_they_are_withdrawn_or_over() {
        let scratch = Scratch::new("answers");
        let (one, other) = (Folder::new(&scratch.0), Folder::new(&scratch.0));
        one.make().unwrap();
        let answer = |token: &str, until| {
            Answer::new("a.test", token, &format!("{token}.thumb"), AcmeChallenge::Http, until).unwrap()
        };
        let before = other.answers_stamp();
        one.write_answer(&answer("b", 100)).unwrap();
        one.write_answer(&answer("a", 200)).unwrap();
        fs::write(scratch.0.join("challenges/c.json"), "junk").unwrap();
        assert_ne!(other.answers_stamp(), before);
        assert_eq!(other.answers(50, false), [answer("a", 200), answer("b", 100)]);
        assert_eq!(other.answers(150, false), [answer("a", 200)]);
        assert_eq!(one.answers(150, true), [answer("a", 200)]);
        assert!(!scratch.0.join("challenges/b.json").exists());
        one.remove_answer(&answer("a", 200));
        assert_eq!(other.answers(50, false), []);
    }
}
