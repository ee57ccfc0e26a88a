//! Files of secrets: read into memory that is wiped, written whole or not at all; and the folder of uploads and keys
//! (`keys.store`), which nobody else may write in.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use propylon_crypto::key_process::Unread;
use zeroize::Zeroizing;

/// Bytes that must be free in the folder of uploads: more than a chain and its key take.
const PROBE_BYTES: usize = 16 * 1024;
/// A draft that is older was left behind by a process that ended over it.
pub const DRAFT_AGE: Duration = Duration::from_secs(60);
/// Prefix of an upload's file name until all of it is written.
const DRAFT: &str = ".draft-";

/// Makes the folder of uploads ready for this account: to be called before it is all that can be written to.
pub fn prepare(store: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(store)?;
    for entry in fs::read_dir(store)?.flatten() {
        let is_draft = entry.file_name().as_encoded_bytes().starts_with(DRAFT.as_bytes());
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        // Another engine's key process may be writing one.
        let is_old = || modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > DRAFT_AGE));
        if is_draft && is_old() {
            fs::remove_file(entry.path())?;
        }
    }
    probe(store)
}

/// Checks that the folder of uploads has room for a file of [`PROBE_BYTES`], and can be written in by nobody else.
pub fn probe(store: &Path) -> io::Result<()> {
    let path = store.join(format!("{DRAFT}probe-{}", std::process::id()));
    remove_if_there(&path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    // Local file systems refuse what they have no room for when it is written, and need not be waited for.
    let written = file.write_all(&[b'\n'; PROBE_BYTES]).and_then(|()| file.metadata());
    fs::remove_file(&path)?;
    match unfit(&fs::metadata(store)?, written?.uid()) {
        Some(what) => {
            let store = store.display();
            Err(io::Error::other(format!(
                "{what}; give it to the account that serves (install -d -o USER -m 700 {store})"
            )))
        }
        None => Ok(()),
    }
}

/// The reason why the folder of uploads is unfit for an engine that runs as `user`, if other accounts could change
/// what is in it.
#[must_use]
pub fn unfit(store: &Metadata, user: u32) -> Option<&'static str> {
    if !store.is_dir() {
        return Some("it is no folder");
    }
    if store.mode() & 0o022 != 0 {
        return Some("other accounts may write in it");
    }
    // The folder's owner may do as he likes there, whatever its mode is.
    (store.uid() != user && store.uid() != 0).then_some("another account owns it")
}

/// Writes a file for this account alone, whole or not at all, and so that it is there after a crash.
pub fn write(store: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = store.join(format!("{DRAFT}{name}"));
    // Left behind, it may have another mode.
    remove_if_there(&draft)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&draft, store.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.and_then(|()| File::open(store)?.sync_all())
}

pub fn count_uploads(store: &Path) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(store)? {
        let name = entry?.file_name();
        let name = name.as_encoded_bytes();
        count += usize::from(!name.starts_with(b".") && name.ends_with(b".pem"));
    }
    Ok(count)
}

pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A file's content, in memory that is wiped, and what the very file that was read looked like.
pub fn read(path: &Path, max: u64) -> Result<(Zeroizing<Vec<u8>>, Metadata), Unread> {
    let failed = |error: io::Error| Unread::of(&error);
    // Nonblocking, so that opening a pipe does not wait for its other end.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Unread::Failed("it is not a file".into()));
    }
    if metadata.len() > max {
        return Err(Unread::TooLong);
    }
    let text = whole(file, metadata.len(), max).map_err(failed)?;
    if text.len() as u64 > max { Err(Unread::TooLong) } else { Ok((text, metadata)) }
}

fn whole(file: File, length: u64, max: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    // Room for all of it at once: a buffer that grows leaves copies of the key behind.
    let mut text = Zeroizing::new(Vec::with_capacity(length as usize + 2));
    file.take((length + 1).min(max + 1)).read_to_end(&mut text)?;
    Ok(text)
}
