//! Listening sockets that a service manager has opened for this process (systemd's socket activation, sd_listen_fds(3)).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A file that came with the start of the process.
#[derive(Debug)]
pub struct Activated {
    pub file: OwnedFd,
    /// Name from `FileDescriptorName=`, or what the service manager puts in its place.
    pub name: String,
}

/// All of them; nothing the second time, and where none were meant for this process.
///
/// Call it before anything opens files: what is at those numbers is taken for what the environment says it is.
#[allow(unsafe_code)]
pub fn take_activated() -> io::Result<Vec<Activated>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    // The call sets close-on-exec on each, which fails for numbers where nothing is open.
    let files = sd_notify::listen_fds_with_names()?;
    // SAFETY: the numbers are open, as was just seen, and came with the exec; nobody else in the process knows of them: the
    // service manager's word (LISTEN_PID is this process) says what they are for, and this is done once.
    Ok(files.map(|(number, name)| Activated { file: unsafe { OwnedFd::from_raw_fd(number) }, name }).collect())
}
