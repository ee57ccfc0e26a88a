//! The space that the engine has for bodies, the same for all cores and whatever the configuration.

use std::sync::{Arc, OnceLock};

use propylon_config::Config;
use propylon_spool::{Space, Terms};
use propylon_tls::{Finding, Severity};

use crate::cores::worker_count;

static SPACE: OnceLock<Arc<Space>> = OnceLock::new();

/// The space; there is none before a configuration has been put into effect.
pub fn space() -> &'static Arc<Space> {
    SPACE.get_or_init(|| Space::new(1))
}

/// Puts the bounds of the first configuration into effect, before any request.
pub fn begin(config: &Config, is_first: bool) {
    if is_first {
        put_into_effect(config);
    }
}

/// Puts the bounds of a configuration into effect. By the main thread.
pub fn put_into_effect(config: &Config) {
    let is_used = config.routes.iter().any(|route| !route.steps.buffer.is_off());
    let has_fastcgi = config.backends.iter().any(|backend| backend.fastcgi.is_some());
    if SPACE.get().is_none() && !is_used && !has_fastcgi {
        return;
    }
    let buffers = &config.process.buffers;
    let folder = buffers.folder.as_ref().filter(|_| is_used).map(|folder| folder.path.clone());
    SPACE.get_or_init(|| Space::new(worker_count(config))).set_terms(&Terms {
        memory: buffers.memory,
        disk: buffers.disk,
        folder,
    });
}

/// Tries whether files can be made where a configuration wants them.
pub fn check(config: &Config) -> Option<Finding> {
    let folder = config.process.buffers.folder.as_ref()?;
    let error = propylon_sys::temporary_file(&folder.path).err()?;
    Some(Finding {
        severity: Severity::Error,
        at: folder.at,
        path: folder.path.clone(),
        what: format!("`temp_dir`: no file can be made in {}: {error}", folder.path.display()),
        fix: "make the folder, and let the account that propylon runs as write to it".into(),
        error: Some(error.kind()),
    })
}
