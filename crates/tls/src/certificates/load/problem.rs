//! Faults of files with certificates or keys, and what to do about them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use propylon_config::At;

use crate::certificates::finding::{Finding, Severity};

/// A fault of a file, not yet tied to the place where the configuration names the file.
pub(crate) struct Problem {
    pub severity: Severity,
    pub path: PathBuf,
    pub what: String,
    pub fix: String,
    pub error: Option<ErrorKind>,
}

impl Problem {
    pub fn error(path: &Path, what: impl Into<String>, fix: impl Into<String>) -> Problem {
        Problem { severity: Severity::Error, path: path.into(), what: what.into(), fix: fix.into(), error: None }
    }

    pub fn warning(path: &Path, what: impl Into<String>, fix: impl Into<String>) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(path, what, fix) }
    }

    pub fn at(self, at: At) -> Finding {
        let Problem { severity, path, what, fix, error } = self;
        Finding { severity, at, path, what, fix, error }
    }
}

pub(super) fn no_certificate(path: &Path) -> Problem {
    let fix = "add the certificate and its intermediates as PEM (from DER: openssl x509 -inform der -in FILE)";
    Problem::error(path, "there is no certificate in this file", fix)
}

pub(super) const SUPPORTED_KEYS: &str =
    "use an ECDSA key on P-256, P-384 or P-521, an Ed25519 key, or an RSA key of 2048 to 8192 bits";

pub(super) fn unsupported(path: &Path, why: &str) -> Problem {
    Problem::error(path, format!("the certificate's key is not supported: {why}"), SUPPORTED_KEYS)
}

pub(super) const TOO_LONG: &str = "this file is longer than 1 MiB";
pub(super) const ONE_CHAIN: &str = "name a PEM file with one chain and its key";

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let (what, fix) = match error.kind() {
        io::ErrorKind::NotFound => {
            let fix = "relative paths begin at the configuration file's own folder";
            ("there is no such file".to_string(), fix)
        }
        io::ErrorKind::PermissionDenied => {
            let fix = "let the account that starts Propylon read it";
            ("this file cannot be read: permission denied".to_string(), fix)
        }
        _ => (format!("this file cannot be read: {error}"), "make it readable"),
    };
    Problem { error: Some(error.kind()), ..Problem::error(path, what, fix) }
}

pub(super) fn malformed(path: &Path, why: &dyn std::fmt::Display) -> Problem {
    Problem::error(path, format!("this is not well-formed PEM: {why}"), "export the file again")
}

pub(super) fn encrypted(path: &Path) -> Problem {
    let file = path.display();
    let fix = format!("decrypt it: openssl pkey -in {file} -out key.pem && chmod 600 key.pem");
    Problem::error(path, "the private key is encrypted", fix)
}
