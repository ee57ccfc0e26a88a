//! The account that serves, and what it may do: it is another one where root starts the engine with `process.user`.
//!
//! Root may read and write everything, so that nothing would be found out by it: the doctor becomes that account, as
//! the engine does, once it has looked at what is done before.

use std::fs;
use std::io;
use std::path::Path;

use propylon_config::{AccessLog, Config, FileAccess};
use propylon_sys::Account;

use super::{Finding, LOOK_PATIENCE, OUT_OF_REACH_TOLD_MAX, State};

/// Becomes the account that serves, and says as whom the rest is judged.
pub fn become_it(config: &Config) -> Option<Finding> {
    const WHAT: &str = "account";
    let user = config.process.user.as_deref()?;
    let wanted = format!("{user} (process.user)");
    let finding = match (Account::find(user), rustix::process::geteuid().as_raw()) {
        (Err(error), _) => Finding::new(WHAT, State::Bad, error.to_string(), wanted)
            .fix(format!("useradd --system --no-create-home --shell /usr/sbin/nologin {user}")),
        (Ok(account), own) if own == account.uid => Finding::new(WHAT, State::Good, user, wanted),
        (Ok(account), 0) => match propylon_sys::drop_privileges(&account) {
            Ok(()) => {
                let told = format!("what follows is judged as {user} (uid {})", account.uid);
                Finding::new(WHAT, State::Good, told, wanted)
            }
            Err(error) => {
                let told = format!("what follows is judged as root: {error}");
                Finding::new(WHAT, State::Unknown, told, wanted)
            }
        },
        (Ok(_), own) => {
            let told = format!("all of this is judged as uid {own}, which is neither root nor {user}");
            Finding::new(WHAT, State::Advice, told, wanted).fix("run this as root: it judges as that account then")
        }
    };
    Some(finding)
}

/// Findings about what this account can do of what the configuration asks for.
pub fn findings(config: &Config) -> Vec<Finding> {
    [files(config), upgrade(config), log_folder(config)].into_iter().flatten().collect()
}

/// Whether the files can be read, and the folders written in.
fn files(config: &Config) -> Option<Finding> {
    const WANTED: &str = "all of them read and written as they are to be";
    let named = config.named_files();
    let refused: Vec<String> = named
        .iter()
        // The access log and the upgrade socket have findings of their own.
        .filter(|file| matches!(file.access, FileAccess::Read | FileAccess::WriteFolder))
        .filter_map(|file| {
            let error = match file.access {
                FileAccess::Read => open(file.path).err()?,
                _ if may_write(nearest_folder(file.path)) => return None,
                _ => io::ErrorKind::PermissionDenied.into(),
            };
            Some(format!("{}: {error}", file.path.display()))
        })
        .collect();
    let current = match refused.as_slice() {
        [] if named.is_empty() => return None,
        [] => format!("all {} can be", named.len()),
        refused => {
            let told = refused.iter().take(OUT_OF_REACH_TOLD_MAX).cloned().collect::<Vec<String>>().join(", ");
            match refused.len().saturating_sub(OUT_OF_REACH_TOLD_MAX) {
                0 => told,
                more => format!("{told} and {more} more"),
            }
        }
    };
    let state = if refused.is_empty() { State::Good } else { State::Bad };
    let user = config.process.user.as_deref().unwrap_or("propylon");
    let finding = Finding::new("files that the configuration names", state, current, WANTED);
    let again = match config.process.user {
        Some(_) => "; a start by root reads some before it is that account, and no reload could",
        None => "",
    };
    Some(finding.fix(format!("chgrp {user} and chmod g+r on the files, g+x on folders above them{again}")))
}

/// Opens a file, or lists a folder.
fn open(path: &Path) -> io::Result<()> {
    match fs::metadata(path)?.is_dir() {
        true => fs::read_dir(path).map(drop),
        false => fs::File::open(path).map(drop),
    }
}

/// The folder itself, or the first one above it that is there: the engine makes what is missing below.
fn nearest_folder(path: &Path) -> &Path {
    path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."))
}

fn may_write(folder: &Path) -> bool {
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(folder, access).is_ok()
}

/// Whether a process could take over, or be taken over from.
fn upgrade(config: &Config) -> Option<Finding> {
    const WHAT: &str = "upgrade socket";
    let path = &config.process.upgrade_socket.as_ref()?.path;
    if propylon_sys::connect_messages(path, LOOK_PATIENCE).is_ok() {
        let told = "a process answers; run would be refused, propylon upgrade has it succeeded";
        return Some(Finding::new(WHAT, State::Good, told, "somebody or nobody"));
    }
    let folder = folder_of(path);
    let (state, current) = match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => (State::Good, "nobody answers yet".to_string()),
        Ok(_) => (State::Bad, format!("{} is no folder", folder.display())),
        Err(error) => (State::Bad, format!("{}: {error}", folder.display())),
    };
    let command =
        format!("install -d -o propylon -m 750 {}, or RuntimeDirectory= in the systemd unit", folder.display());
    Some(Finding::new(WHAT, state, current, "a folder to be made in").fix(command))
}

/// Of a path without one it is the folder that this process is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether the access log can be made, and made anew after a rotation.
fn log_folder(config: &Config) -> Option<Finding> {
    const WANTED: &str = "a folder to write in";
    let AccessLog::File(path) = &config.log.access else { return None };
    let folder = folder_of(path);
    let shown = folder.display();
    let (state, current) = match fs::metadata(folder) {
        Err(error) => (State::Bad, format!("{shown}: {error}")),
        Ok(metadata) if !metadata.is_dir() => (State::Bad, format!("{shown} is no folder")),
        Ok(_) if !may_write(folder) => (State::Bad, format!("{shown} cannot be written in")),
        Ok(_) => (State::Good, shown.to_string()),
    };
    let finding = Finding::new("access log's folder", state, current, WANTED);
    Some(finding.fix(format!("install -d -o propylon -m 750 {shown}, or LogsDirectory= in the systemd unit")))
}
