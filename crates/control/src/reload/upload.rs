//! The file of a certificate that is being uploaded.

use propylon_config::Problem;
use propylon_crypto::key_process::UPLOAD_BYTES_MAX;
use zeroize::Zeroizing;

use super::preparation::beside;
use crate::origin::MergedConfig;
use crate::requests::{Change, Refused};
use crate::state::{self, Leftovers, Uploads};

/// An uploaded certificate's file, written before it has been checked; dropping this removes it unless `kept` is set.
pub(super) struct Upload {
    pub(super) uploads: Uploads,
    pub(super) profile: String,
    pub(super) file: String,
    pub(super) kept: bool,
    /// List for a file that cannot be removed at once; the removal is tried again later.
    pub(super) leftovers: Leftovers,
}

impl Upload {
    pub(super) async fn of(
        change: &Change,
        merged: &MergedConfig,
        leftovers: &Leftovers,
    ) -> Result<Option<Upload>, Refused> {
        let Change::PutCertificate { profile, name, pem } = change else { return Ok(None) };
        if !merged.config.tls.iter().any(|known| known.name == *profile) {
            return Err(Refused::Unknown(format!("there is no [tls.{profile}]")));
        }
        let Some(state) = &merged.config.process.state else {
            let what = "there is nowhere to keep certificates".to_owned();
            return Err(Refused::Forbidden(what, "set process.state to a folder"));
        };
        if !state::is_plain_name(profile) || !state::is_plain_name(name) {
            let what = "the names of profile and certificate have to be names of files as well".to_owned();
            return Err(Refused::Forbidden(what, "use letters, digits, `-`, `_` and `.`"));
        }
        let uploads = Uploads::of(&merged.config, &state.path);
        if merged.config.keys.isolate.is_some() {
            if let Uploads::Here(_) = uploads {
                let what = "with keys.isolate this process takes no private key".to_owned();
                let fix =
                    "set keys.store to a folder of its own and restart, or write the file where [tls.NAME] names one";
                return Err(Refused::Forbidden(what, fix));
            }
            if pem.len() > UPLOAD_BYTES_MAX {
                let what = format!("with keys.isolate a certificate with its key has at most {UPLOAD_BYTES_MAX} bytes");
                return Err(Refused::Forbidden(what, "leave out what clients do not need, such as roots"));
            }
        }
        // A random part makes the name differ from the file in use, which is needed again if this change is refused.
        let file = format!("{name}.{:016x}.pem", fastrand::u64(..));
        let upload = Upload { uploads, profile: profile.clone(), file, kept: false, leftovers: leftovers.clone() };
        let pem = Zeroizing::new(pem.clone());
        beside(move || match upload.uploads.put(&upload.profile, &upload.file, &pem) {
            Ok(()) => Ok(Some(upload)),
            // A key process that has not answered may still write the file; dropping `upload` removes it.
            Err(error) => {
                let folder = upload.uploads.folder(&upload.profile);
                Err(Refused::Unwritten(format!("the certificate cannot be kept in {}: {error}", folder.display())))
            }
        })
        .await?
    }

    /// Problems with the file are told as those of what was sent: the file is not there any more when they are read.
    pub(super) fn as_it_was_sent(&self, refused: Refused) -> Refused {
        let Refused::Problems(problems) = refused else { return refused };
        let path = self.uploads.folder(&self.profile).join(&self.file).display().to_string();
        let as_uploaded = |problem: Problem| match problem.what.contains(&path) {
            false => problem,
            true => Problem {
                file: "the uploaded certificate".into(),
                at: None,
                what: problem.what.replace(&format!("{path}: "), "").replace(&path, "FILE"),
                fix: problem.fix.replace(&path, "FILE"),
                ..problem
            },
        };
        Refused::Problems(problems.into_iter().map(as_uploaded).collect())
    }

    /// Removes the file unless it is kept, on a thread of its own.
    pub(super) async fn end(self) {
        if !self.kept {
            let _ = beside(move || drop(self)).await;
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let (Err(_), Uploads::Beside(_)) = (self.uploads.remove(&self.profile, &self.file), &self.uploads) {
            self.leftovers.add(&self.file);
        }
    }
}
