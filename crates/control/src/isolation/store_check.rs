//! Whether the key process can keep anything new in `keys.store`, for as long as this process lives.

use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use propylon_crypto::key_process::Failure;

/// Time from one look at the folder to the next.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// A check of the folder every few seconds, beside the thread that asks for it.
#[derive(Default)]
pub struct StoreCheck {
    due: Option<Instant>,
    looking: Option<JoinHandle<Result<(), Failure>>>,
    /// Absent before the first look; then why nothing can be kept.
    last: Option<Option<String>>,
}

impl StoreCheck {
    /// Returns whether nothing can be kept, where that has been found out anew. For every second.
    pub fn tick(&mut self, store: Option<&Path>, now: Instant) -> Option<bool> {
        let (store, files) = (store?, propylon_tls::key_files()?);
        let found = self.looking.take_if(|thread| thread.is_finished()).map(JoinHandle::join);
        if self.looking.is_none() && self.due.is_none_or(|due| now >= due) {
            self.due = Some(now + LOOK_EVERY);
            self.looking = thread::Builder::new().name("store".into()).spawn(move || files.try_store()).ok();
        }
        match found?.ok()? {
            // Silence is told by other means, and says nothing of the folder.
            Err(Failure::Unavailable) => None,
            outcome => {
                let why = outcome.err().map(|failure| std::io::Error::from(failure).to_string());
                let is_unusable = why.is_some();
                self.log_change(store, why);
                Some(is_unusable)
            }
        }
    }

    fn log_change(&mut self, store: &Path, why: Option<String>) {
        let before = self.last.replace(why.clone());
        match (before, why) {
            (None, None) => {}
            (Some(before), why) if before == why => {}
            (Some(_), None) => {
                log::info!("keys.store {}: certificates can be uploaded and ordered again", store.display())
            }
            (_, Some(why)) => log::error!(
                "keys.store {}: {why}; certificates cannot be uploaded, nor ordered, until that is mended",
                store.display()
            ),
        }
    }
}
