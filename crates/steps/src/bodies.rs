//! Files that answers are made of: read with the configuration, and again when it is.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use propylon_config::At;
use propylon_tls::{Finding, Severity};

/// Bytes of one file: every client that does not read its answer has as many of this process's.
const BODY_BYTES_MAX: u64 = 256 * 1024;

/// Contents of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Body {
    pub bytes: Box<[u8]>,
    /// Strong entity tag (RFC 9110 §8.8.3), with its quotes.
    pub etag: String,
}

/// Files by their paths.
pub type Bodies = HashMap<PathBuf, Arc<Body>>;

/// Reads files. One that was read before and cannot be now stays as it was, and `kept` says so. `reads`: whether those
/// that were read before are read at all. `read` takes a path, and how many bytes its file may have.
pub fn reload(
    paths: &[(&Path, At)],
    (earlier, reads): (Option<&Bodies>, bool),
    read: impl Fn(&Path, u64) -> Result<Vec<u8>, Error>,
    findings: &mut Vec<Finding>,
    kept: &mut Vec<Finding>,
) -> Bodies {
    let mut bodies = Bodies::new();
    for (path, at) in paths.iter().copied() {
        if bodies.contains_key(path) {
            continue;
        }
        let known = earlier.and_then(|earlier| earlier.get(path));
        let body = match (known, read_where(known.is_none() || reads, path, &read)) {
            (_, Some(Ok(bytes))) => Arc::new(Body::new(bytes)),
            (Some(known), None) => Arc::clone(known),
            (Some(known), Some(Err(error))) => {
                kept.push(finding(path, at, &error));
                Arc::clone(known)
            }
            (None, Some(Err(error))) => {
                findings.push(finding(path, at, &error));
                continue;
            }
            (None, None) => continue,
        };
        bodies.insert(path.to_owned(), body);
    }
    bodies
}

/// Findings about files.
pub fn check(paths: &[(PathBuf, At)], read: impl Fn(&Path, u64) -> Result<Vec<u8>, Error>) -> Vec<Finding> {
    let (mut findings, mut kept) = (Vec::new(), Vec::new());
    let paths: Vec<(&Path, At)> = paths.iter().map(|(path, at)| (path.as_path(), *at)).collect();
    reload(&paths, (None, true), read, &mut findings, &mut kept);
    findings
}

fn read_where(
    is_wanted: bool,
    path: &Path,
    read: impl Fn(&Path, u64) -> Result<Vec<u8>, Error>,
) -> Option<Result<Vec<u8>, Error>> {
    is_wanted.then(|| read(path, BODY_BYTES_MAX))
}

fn finding(path: &Path, at: At, error: &Error) -> Finding {
    let fix = match error.kind() {
        ErrorKind::NotFound => "correct the name: it is relative to the configuration's folder",
        ErrorKind::PermissionDenied => "let the account that propylon runs as read it",
        ErrorKind::FileTooLarge => "name a smaller one, and leave large ones to a server",
        _ => "name a file that can be read",
    };
    Finding {
        severity: Severity::Error,
        at,
        path: path.to_owned(),
        what: format!("{}: {error}", path.display()),
        fix: fix.into(),
        error: Some(error.kind()),
    }
}

impl Body {
    pub fn new(bytes: Vec<u8>) -> Body {
        let mut etag = String::from("\"");
        propylon_crypto::sha1(&[&bytes]).iter().take(12).for_each(|byte| _ = write!(etag, "{byte:02x}"));
        etag.push('"');
        Body { bytes: bytes.into(), etag }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_lost_stays_as_it_was_and_a_new_one_has_to_be_there() {
        let paths = [(Path::new("a"), At::default()), (Path::new("b"), At::default())];
        let read = |path: &Path, _: u64| match path.to_str() {
            Some("a") => Ok(b"one".to_vec()),
            _ => Err(Error::from(ErrorKind::NotFound)),
        };
        let (mut findings, mut kept) = (Vec::new(), Vec::new());
        let first = reload(&paths, (None, true), read, &mut findings, &mut kept);
        assert_eq!((first.len(), findings.len(), kept.len()), (1, 1, 0));
        assert_eq!(findings[0].path, Path::new("b"));
        let lost = |_: &Path, _: u64| Err(Error::from(ErrorKind::PermissionDenied));
        let second = reload(&paths[..1], (Some(&first), true), lost, &mut findings, &mut kept);
        assert_eq!((second == first, findings.len(), kept.len()), (true, 1, 1));
        let third = reload(&paths[..1], (Some(&first), false), lost, &mut findings, &mut kept);
        assert_eq!((third == first, findings.len(), kept.len()), (true, 1, 1));
    }

    #[test]
    fn a_tag_is_that_of_the_bytes() {
        assert_eq!(Body::new(b"hello\n".to_vec()).etag, "\"f572d396fae9206628714fb2\"");
        assert_ne!(Body::new(b"hello".to_vec()).etag, Body::new(b"hello\n".to_vec()).etag);
    }
}
