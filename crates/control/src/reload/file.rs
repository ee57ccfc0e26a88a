//! The file of the configuration, where it is watched: what it says now, once that has stopped changing.
//!
//! A file that is written in place is seen at any of its lengths, and half of a configuration may well be one. So what is
//! new is taken when two looks in a row have found the same. Whoever renames a whole file over it never shows half of one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use propylon_config::{FileEnd, Problem, Source};

use crate::origin::MergedConfig;

/// Identity of a file's content: its inode, its length, and the time of its change, with those of files that it
/// includes and of their folders.
pub type FileIdentity = (u64, u64, i64, i64);

/// File that is looked at for something new.
pub struct WatchedFile {
    /// The text that was last taken.
    taken: String,
    /// Files that it includes, and their folders.
    included: Vec<PathBuf>,
    /// Identity of the file at the last time it was read.
    known: Option<FileIdentity>,
    /// Something new, as the last look has found it.
    new: Option<(FileIdentity, String)>,
    /// Looks in a row that could not read it.
    unread: u32,
}

/// Looks in a row that cannot read the file until that is told: who replaces it may take it away for a moment.
const UNREAD_LOOKS: u32 = 3;

/// Identity of a file that is not there.
const AWAY: FileIdentity = (0, 0, 0, 0);

/// Outcome of a look.
#[derive(Debug)]
pub enum Found {
    /// Nothing that is to be told, or not yet.
    Nothing,
    /// A text that is to be taken.
    New(Source),
    /// A file that has not been readable for several looks; said once.
    Unreadable(Problem),
}

impl WatchedFile {
    pub fn new(taken: &Source) -> WatchedFile {
        WatchedFile { taken: taken.text.clone(), included: included(taken), known: None, new: None, unread: 0 }
    }

    /// Takes what somebody else has read of it.
    pub fn take(&mut self, file: &Source) {
        self.taken.clone_from(&file.text);
        self.included = included(file);
        (self.new, self.unread) = (None, 0);
    }

    /// Looks at the file. Whoever gets something is to read it, and to say what was found.
    pub fn changed(&mut self, path: &Path) -> Option<FileIdentity> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        self.changed_at(identity_of_all(path, &self.included), now)
    }

    /// As [`WatchedFile::changed`], at this second since 1970.
    fn changed_at(&mut self, identity: Option<FileIdentity>, now: i64) -> Option<FileIdentity> {
        let identity = identity.unwrap_or(AWAY);
        (self.known != Some(identity) || is_fresh(identity, now)).then_some(identity)
    }

    /// Takes what is new in the file if the look before has found the same. A file that could not be read, and that was
    /// told, is new in any case: so what was told ends.
    pub fn found(&mut self, identity: FileIdentity, read: Result<Source, Problem>) -> Found {
        let file = match read {
            Ok(file) => file,
            Err(problem) => {
                // Another mode of the file would not show in its identity: it is read at every look.
                (self.known, self.new) = (None, None);
                self.unread = self.unread.saturating_add(1);
                return if self.unread == UNREAD_LOOKS { Found::Unreadable(problem) } else { Found::Nothing };
            }
        };
        self.included = included(&file);
        let was_told = self.unread >= UNREAD_LOOKS;
        if file.text == self.taken && !was_told {
            (self.known, self.new, self.unread) = (Some(identity), None, 0);
            return Found::Nothing;
        }
        if self.new.as_ref().is_none_or(|(seen, text)| *seen != identity || *text != file.text) {
            self.new = Some((identity, file.text));
            return Found::Nothing;
        }
        (self.known, self.new, self.unread) = (Some(identity), None, 0);
        self.taken.clone_from(&file.text);
        Found::New(file)
    }
}

/// The sign by which a file looks cut off, as by a full disk, or by a look at half of an upload: it has lost the
/// newline at its end, all that it said, or all routes there are. Cut at the end of a line, it would be a whole
/// configuration of less. A warning for whoever asked for the file to be read; nobody has said that it is whole where
/// it was found changed (`docs/decisions/0082-cut-off-files.md`).
pub fn cut_off(before: &MergedConfig, now: &MergedConfig) -> Option<Problem> {
    let known = before.file.ends();
    let cut = |now: FileEnd<'_>| {
        let before = known.iter().find(|before| before.name == now.name)?;
        let lost_newline = !now.is_json && before.has_newline && !now.has_newline;
        let what = match now.is_blank && !before.is_blank {
            true => "nothing is left in it",
            false => lost_newline.then_some("its last line has no newline any more")?,
        };
        Some((now.name.to_owned(), what))
    };
    let (name, what) = match now.config.routes.is_empty() && !before.config.routes.is_empty() {
        true => (now.file.name.to_string(), "no [[route]] is left in it"),
        false => now.file.ends().into_iter().find_map(cut)?,
    };
    let fix = "look at its end; where it is meant so, `propylon reload` or SIGHUP takes it; one that is renamed into place is \
               never seen half written";
    Some(Problem::warning(&name, None, format!("{what}: it may have been cut off"), fix))
}

fn included(file: &Source) -> Vec<PathBuf> {
    file.name.watched().into_iter().map(Path::to_owned).collect()
}

/// One identity of a file and of what it includes; of the latter each may be missing.
fn identity_of_all(path: &Path, included: &[PathBuf]) -> Option<FileIdentity> {
    let (inode, length, modified, fraction) = identity_of(path)?;
    if included.is_empty() {
        return Some((inode, length, modified, fraction));
    }
    let all: Vec<Option<FileIdentity>> = included.iter().map(|path| identity_of(path)).collect();
    let latest = all.iter().flatten().map(|(_, _, modified, _)| *modified).max();
    let mut hasher = DefaultHasher::new();
    (inode, &all).hash(&mut hasher);
    Some((hasher.finish(), length, latest.map_or(modified, |latest| latest.max(modified)), fraction))
}

fn identity_of(path: &Path) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// So new that it may yet change without looking any different: file systems note times in steps.
fn is_fresh((_, _, modified, _): FileIdentity, now: i64) -> bool {
    now - modified < 2
}

#[cfg(test)]
mod tests {
    use super::*;

    impl WatchedFile {
        fn settled(
            &mut self,
            identity: Option<FileIdentity>,
            now: i64,
            read: impl FnOnce() -> Option<Source>,
        ) -> Option<Source> {
            let identity = self.changed_at(identity, now)?;
            match self.found(identity, read().ok_or_else(unreadable)) {
                Found::New(file) => Some(file),
                Found::Nothing | Found::Unreadable(_) => None,
            }
        }
    }

    fn unreadable() -> Problem {
        Problem::error("a.toml", None, "byte 0xe9 is not UTF-8", "save the file as UTF-8")
    }

    fn source(text: &str) -> Source {
        Source { name: "a.toml".into(), base: "/etc".into(), text: text.into() }
    }

    /// The file's inode, its time and its text at one look, and what is taken.
    fn at(file: &mut WatchedFile, now: i64, inode: u64, modified: i64, text: &str) -> Option<String> {
        let identity = (inode, text.len() as u64, modified, 0);
        file.settled(Some(identity), now, || Some(source(text))).map(|taken| taken.text)
    }

    #[test]
    fn what_is_still_being_written_is_not_taken_at_any_length() {
        let (whole, mut file) = ("abcdefgh", WatchedFile::new(&source("old")));
        for length in 1..whole.len() {
            let now = 100 + length as i64;
            assert_eq!(at(&mut file, now, 1, now, &whole[..length]), None, "{length}");
        }
        assert_eq!(at(&mut file, 110, 1, 110, whole), None);
        assert_eq!(at(&mut file, 111, 1, 110, whole).as_deref(), Some(whole));
        assert_eq!(at(&mut file, 112, 1, 110, whole), None, "once");
    }

    #[test]
    fn two_looks_have_to_agree_in_everything() {
        for (inode, modified, text) in [(2, 100, "new"), (1, 101, "new"), (1, 100, "now"), (1, 100, "newer")] {
            let mut file = WatchedFile::new(&source("old"));
            assert_eq!(at(&mut file, 100, 1, 100, "new"), None);
            assert_eq!(at(&mut file, 101, inode, modified, text), None, "{inode} {modified} {text}");
            assert_eq!(at(&mut file, 102, inode, modified, text).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_file_that_was_away_or_is_what_it_was_begins_anew() {
        let mut file = WatchedFile::new(&source("old"));
        assert_eq!(at(&mut file, 100, 1, 100, "new"), None);
        assert!(file.settled(None, 101, || None).is_none());
        assert_eq!(at(&mut file, 102, 1, 100, "new"), None);
        assert_eq!(at(&mut file, 103, 2, 103, "old"), None);
        assert_eq!(at(&mut file, 104, 1, 100, "new"), None);
        // Somebody else has read it between two looks.
        file.take(&source("new"));
        assert_eq!(at(&mut file, 105, 1, 100, "new"), None);
    }

    #[test]
    fn a_file_that_has_not_changed_for_a_while_is_not_read() {
        let mut file = WatchedFile::new(&source("old"));
        assert_eq!(at(&mut file, 100, 1, 99, "old"), None);
        assert_eq!(at(&mut file, 100, 1, 99, "new"), None, "as fresh as it is, it is read");
        let mut file = WatchedFile::new(&source("old"));
        assert_eq!(at(&mut file, 200, 1, 100, "old"), None);
        let unread = || -> Option<Source> { panic!("there is no reason to read it") };
        assert!(file.settled(Some((1, 3, 100, 0)), 201, unread).is_none());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_once_and_taken_again_whatever_it_says() {
        let mut file = WatchedFile::new(&source("old"));
        assert_eq!(at(&mut file, 100, 1, 50, "old"), None);
        // A directory in its place, say, and then nothing.
        for identity in [Some((1, 4, 60, 0)), None] {
            for look in 1..8 {
                let identity = file.changed_at(identity, 101).expect("it is read at every look");
                let found = file.found(identity, Err(unreadable()));
                assert_eq!(matches!(found, Found::Unreadable(_)), look == UNREAD_LOOKS, "{look}: {found:?}");
                assert!(!matches!(found, Found::New(_)));
            }
            assert_eq!(at(&mut file, 111, 1, 50, "old"), None);
            assert_eq!(at(&mut file, 112, 1, 50, "old").as_deref(), Some("old"), "so what was told ends");
            assert_eq!(at(&mut file, 113, 1, 50, "old"), None);
        }
    }
}
