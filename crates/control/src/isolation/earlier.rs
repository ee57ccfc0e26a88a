//! Private keys of before `keys.isolate` was set, where the process that serves may read them, which is to have none.
//!
//! Only folders that are this engine's own are looked through, and those that lie beside one of them under its name
//! with more behind it (`NAME.before`), as somebody calls what he has moved aside. Other folders that the engine may
//! read, such as all of `/etc`, are not: keys in them are others', and their number has no limit.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use propylon_config::{At, Config, Problem, Source};
use propylon_sys::folder_of;
use zeroize::Zeroizing;

use crate::folders::Folders;
use crate::key_folders::store;
use crate::state;

/// Levels of folders below one that is looked through.
const DEPTH_MAX: usize = 4;
/// Files and folders that are looked at for one configuration.
const ENTRIES_MAX: usize = 50_000;
/// Bytes of a longer file than this are not looked at: a chain and a key take some 10 KB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Folder for keys when no place beside `keys.store` is out of reach.
const LAST_RESORT: &str = "/root";

/// Keys of uploads, orders, and others in the engine's own folders, as errors: one for each of these folders.
pub fn problems(config: &Config, source: &Source) -> Vec<Problem> {
    let mut search = Search { config, path: Path::new(&source.name), reach: OnceCell::new(), left: ENTRIES_MAX };
    let mut problems = Vec::from_iter(uploads(config, source));
    // Folders that have been told of, or looked through.
    let mut known = Vec::new();
    if !problems.is_empty() {
        known.extend(config.process.state.iter().map(|state| state::uploads_within(&state.path)));
    }
    for acme in &config.acmes {
        if let Some((moved, file)) = search.find_at(&acme.state, &known) {
            let more = "an account and certificates with new keys are ordered at the start; until they are there the moved \
                        certificates can be served as files, from a folder of their own";
            problems.push(search.problem(source, acme.at, &moved, &file, more));
        }
        known.push(acme.state.clone());
    }
    if let Some(state) = &config.process.state
        && let Some((moved, file)) = search.find_at(&state.path, &known)
    {
        let moved = if moved == state.path { file.clone() } else { moved };
        problems.push(search.problem(source, state.at, &moved, &file, "process.state takes no keys"));
    }
    problems
}

/// Certificates that were uploaded before: `keys.store` is where they go.
fn uploads(config: &Config, source: &Source) -> Option<Problem> {
    let store = config.keys.store.as_ref()?;
    let file = state::earlier_upload(&config.process.state.as_ref()?.path)?;
    let what = format!("{} was uploaded without keys.isolate, and is where this process may read it", file.display());
    let folder = folder_of(&file);
    let fix = format!(
        "move it, and what is beside it, to keys.store (mv {}/* {}), for the account of process.user",
        folder.display(),
        store.path.display()
    );
    Some(Problem::error(&source.name, Some(store.at), what, fix))
}

/// A search for private keys that an engine with this configuration may read.
struct Search<'c> {
    config: &'c Config,
    /// The configuration's own file.
    path: &'c Path,
    reach: OnceCell<Folders>,
    /// Entries that may still be looked at.
    left: usize,
}

impl Search<'_> {
    /// The first file with a key in a folder, or in one beside it that is called as it is and more; and that folder.
    fn find_at(&mut self, folder: &Path, known: &[PathBuf]) -> Option<(PathBuf, PathBuf)> {
        let name = folder.file_name().unwrap_or_default().as_encoded_bytes();
        let beside = fs::read_dir(folder_of(folder)).into_iter().flatten().flatten().filter(|entry| {
            let name_of_it = entry.file_name();
            let more = name_of_it.as_encoded_bytes().strip_prefix(name);
            more.is_some_and(|more| !more.is_empty()) && !name.is_empty()
        });
        let folders = [folder.to_owned()].into_iter().chain(beside.map(|entry| entry.path()));
        folders.filter(|folder| !known.contains(folder)).find_map(|folder| {
            let file = self.find(&folder, known, DEPTH_MAX)?;
            Some((folder, file))
        })
    }

    fn find(&mut self, folder: &Path, known: &[PathBuf], depth: usize) -> Option<PathBuf> {
        let mut folders = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            self.left = self.left.checked_sub(1)?;
            let path = entry.path();
            // Links to folders are not followed.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if has_private_key(&path) && self.reach().may_read(&path) {
                return Some(path);
            }
        }
        let depth = depth.checked_sub(1)?;
        folders.retain(|folder| !known.contains(folder));
        folders.into_iter().find_map(|folder| self.find(&folder, known, depth))
    }

    fn reach(&self) -> &Folders {
        self.reach.get_or_init(|| Folders::of(self.config, self.path))
    }

    fn problem(&self, source: &Source, at: At, moved: &Path, file: &Path, more: &str) -> Problem {
        let what = format!("{} has a private key of before keys.isolate, which this process may read", file.display());
        let fix = match self.out_of_reach(moved) {
            Some(to) => format!("move it out of reach (mv {} {}): {more}", moved.display(), to.display()),
            None => format!("move {} to where this process may read nothing: {more}", moved.display()),
        };
        Problem::error(&source.name, Some(at), what, fix)
    }

    /// A place that is free, and stays out of reach when something is put there.
    fn out_of_reach(&self, moved: &Path) -> Option<PathBuf> {
        let name = moved.file_name()?.to_str()?;
        let name = if name.contains(".before") { name.to_owned() } else { format!("{name}.before") };
        let beside = store(self.config).and_then(|store| Some(store.parent()?.to_owned()));
        let places = beside.into_iter().chain([PathBuf::from(LAST_RESORT)]).map(|folder| folder.join(&name));
        places.filter(|place| !place.exists()).find(|place| !self.reach().may_come_to_be_read(place))
    }
}

/// Whether a file has a key in PEM, or is an account's with its key.
fn has_private_key(path: &Path) -> bool {
    // Opening a pipe would wait for somebody to write to it.
    let Some(length) = fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len()) else {
        return false;
    };
    if length > FILE_BYTES_MAX {
        return false;
    }
    let mut text = Zeroizing::new(Vec::with_capacity(length as usize + 1));
    let read = File::open(path).and_then(|file| file.take(length).read_to_end(&mut text));
    let has = |what: &[u8]| text.windows(what.len()).any(|part| part == what);
    read.is_ok() && (has(b"PRIVATE KEY-----") || has(b"\"key_pkcs8\""))
}
