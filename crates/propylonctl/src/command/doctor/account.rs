//! The account that serves, and what it may do: it is another one where root starts the engine with `process.user`.
//!
//! Root may read and write everything, so that nothing would be found out by it: the doctor becomes that account, as
//! the engine does, once it has looked at what is done before.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use propylon_config::{AccessLog, AdminBind, Config, FileAccess, size_text};
use propylon_control::isolation;
use propylon_keyserver::isolated::unfit_store;
use propylon_proxy::snapshot::load_profiles;
use propylon_sys::Account;
use propylon_tls::Severity;

use super::finding::{FILES_NAMED_MAX, Finding, State};

/// The finding about the access log.
const LOG: &str = "access log's folder";
/// The findings about folders that are full.
const STATE: &str = "room of process.state";
const BODIES: &str = "room of process.temp_dir";
/// Less free room for the access log is worth a word: a busy engine writes as much in minutes.
const LOG_ROOM_WANTED: u64 = 64 << 20;

/// Time limit for an engine that may be there: its upgrade socket, and its admin address.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
                let current = format!("what follows is judged as {user} (uid {})", account.uid);
                Finding::new(WHAT, State::Good, current, wanted)
            }
            Err(error) => {
                let current = format!("what follows is judged as root: {error}");
                Finding::new(WHAT, State::Unknown, current, wanted)
            }
        },
        (Ok(_), own) => {
            let current = format!("all of this is judged as uid {own}, which is neither root nor {user}");
            Finding::new(WHAT, State::Advice, current, wanted).fix("run this as root: it judges as that account then")
        }
    };
    Some(finding)
}

/// Findings about what this account can do of what the configuration asks for.
pub fn findings(config: &Config) -> Vec<Finding> {
    let owner = Owner::of(config);
    let all = [
        files(config, &owner),
        certificates(config),
        store(config, &owner),
        admin_socket(config, &owner),
        upgrade(config, &owner),
        log_folder(config, &owner),
    ];
    all.into_iter().flatten().chain(full_folders(config, free_bytes)).collect()
}

/// Whom the commands give files to, by names that chgrp(1) and install(1) know.
pub struct Owner {
    user: String,
    group: String,
}

impl Owner {
    pub fn of(config: &Config) -> Owner {
        let account = match config.process.user.as_deref() {
            // An account by useradd(8), where there is none yet, has a group of its name.
            Some(user) => Account::find(user).map_err(|_| Owner { user: user.to_owned(), group: user.to_owned() }),
            None => Ok(Account::own()),
        };
        account.map_or_else(|none| none, |account| Owner { group: account.group(), user: account.user })
    }

    /// The command that makes a folder for it, or gives it one that is there.
    pub fn installs(&self, folder: &Path, mode: u16) -> String {
        let Owner { user, group } = self;
        let is_broad = fs::canonicalize(folder).is_ok_and(|folder| propylon_sys::is_broad(&folder));
        let own = if is_broad { folder.join("propylon") } else { folder.to_owned() };
        let command = format!("install -d -o {user} -g {group} -m {mode} {}", quoted(&own));
        if is_broad { format!("name a place in a folder of its own: {command}") } else { command }
    }

    /// The command that lets it read these files, and search these folders.
    fn may(&self, right: &str, paths: &[&Path]) -> String {
        let paths = paths.iter().map(|path| quoted(path)).collect::<Vec<String>>().join(" ");
        format!("chgrp {} {paths} && chmod {right} {paths}", self.group)
    }
}

/// As a shell takes it for one word.
fn quoted(path: &Path) -> String {
    let shown = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@,=".contains(c);
    if shown.chars().all(is_plain) { shown } else { format!("'{}'", shown.replace('\'', "'\\''")) }
}

/// Whether the files can be read, and the folders written in.
fn files(config: &Config, owner: &Owner) -> Option<Finding> {
    const WANTED: &str = "all of them read and written as they are to be";
    let store = config.keys.store.as_ref().filter(|_| config.keys.isolate.is_some());
    let named = config.named_files();
    let named = named.iter().map(|file| (file.path, file.access));
    let named: Vec<(&Path, FileAccess)> =
        named.chain(store.map(|store| (store.path.as_path(), FileAccess::WriteFolder))).collect();
    let refused: Vec<Refused> = named
        .iter()
        // The access log and the upgrade socket have findings of their own.
        .filter(|(_, access)| matches!(access, FileAccess::Read | FileAccess::WriteFolder))
        .filter_map(|(path, access)| {
            let error = match access {
                FileAccess::Read => open(path).err()?,
                _ if may_write(nearest_folder(path)) => return None,
                _ => io::ErrorKind::PermissionDenied.into(),
            };
            Some(Refused { path, access: *access, error })
        })
        .collect();
    let listed = &refused[..refused.len().min(FILES_NAMED_MAX)];
    let current = match refused.as_slice() {
        [] if named.is_empty() => return None,
        [] => format!("all {} can be", named.len()),
        refused => {
            let all = listed.iter().map(|file| format!("{}: {}", file.path.display(), file.error));
            let all = all.collect::<Vec<String>>().join(", ");
            match refused.len() - listed.len() {
                0 => all,
                more => format!("{all} and {more} more"),
            }
        }
    };
    let state = if refused.is_empty() { State::Good } else { State::Bad };
    let finding = Finding::new("files that the configuration names", state, current, WANTED);
    let again = match config.process.user {
        Some(_) => " (a start by root reads some before it is that account, and no reload could)",
        None => "",
    };
    Some(finding.fix(commands(listed, owner).join("; ") + again))
}

/// Whether certificates and keys are what their files are named for: a start would be refused otherwise. Files that the
/// account may not read have been told of.
fn certificates(config: &Config) -> Option<Finding> {
    const WANTED: &str = "certificates with their keys, which the account alone may read";
    if config.tls.is_empty() {
        return None;
    }
    isolation::find_ordered_keys(&config.keys);
    let mut found = match load_profiles(&config.tls) {
        Ok((_, warnings)) => warnings,
        Err(findings) => findings,
    };
    found.retain(|one| one.path.as_os_str().is_empty() || fs::File::open(&one.path).is_ok());
    found.sort_by_key(|one| one.severity != Severity::Error);
    let state = match found.first().map(|one| &one.severity) {
        None => State::Good,
        Some(Severity::Error) => State::Bad,
        Some(_) => State::Advice,
    };
    let listed = found.iter().take(FILES_NAMED_MAX).map(|one| format!("{}: {}", one.path.display(), one.what));
    let mut current = listed.collect::<Vec<String>>().join(", ");
    match found.len().saturating_sub(FILES_NAMED_MAX) {
        0 if found.is_empty() => current = format!("those of {} [tls] can be used", config.tls.len()),
        0 => {}
        more => current += &format!(" and {more} more"),
    }
    Some(Finding::new("certificates", state, current, WANTED).fix("propylon check -c FILE names each with what to do"))
}

/// Whether others could do as they like in the folder that the key process keeps keys in: then it keeps none.
fn store(config: &Config, owner: &Owner) -> Option<Finding> {
    let path = &config.keys.store.as_ref().filter(|_| config.keys.isolate.is_some())?.path;
    let account = config.process.user.as_deref().map_or_else(|| Ok(Account::own()), Account::find).ok()?;
    let what = unfit_store(&fs::metadata(path).ok()?, account.uid)?;
    let current = format!("{}: {what}", path.display());
    let finding = Finding::new("keys.store", State::Bad, current, "a folder for the account that serves alone");
    Some(finding.fix(owner.installs(path, 700)))
}

/// A file that this account may not have, or that is not there.
struct Refused<'a> {
    path: &'a Path,
    access: FileAccess,
    error: io::Error,
}

/// The commands that give the account all of these.
fn commands(refused: &[Refused<'_>], owner: &Owner) -> Vec<String> {
    let (mut read, mut listed, mut searched, mut commands) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for Refused { path, access, error } in refused {
        match (access, unsearchable(path)) {
            (_, Some(folder)) if searched.contains(&folder) => {}
            (_, Some(folder)) => searched.push(folder),
            (FileAccess::WriteFolder, None) => commands.push(owner.installs(path, 700)),
            _ if error.kind() != io::ErrorKind::PermissionDenied => {
                commands.push(format!("put {} where it is looked for, or correct the configuration", path.display()));
            }
            _ if path.is_dir() => listed.push(*path),
            _ => read.push(*path),
        }
    }
    for (right, paths) in [("g+r", read), ("g+rx", listed), ("g+x", searched)] {
        if !paths.is_empty() {
            commands.push(owner.may(right, &paths));
        }
    }
    commands
}

/// The first folder above a file that this account may not look into.
fn unsearchable(path: &Path) -> Option<&Path> {
    let mut above: Vec<&Path> = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()).collect();
    above.reverse();
    let refused =
        |folder: &Path| rustix::fs::access(folder, rustix::fs::Access::EXEC_OK) == Err(rustix::io::Errno::ACCESS);
    above.into_iter().find(|folder| refused(folder))
}

/// Opens a file, or lists a folder.
fn open(path: &Path) -> io::Result<()> {
    match fs::metadata(path)?.is_dir() {
        true => fs::read_dir(path).map(drop),
        false => fs::File::open(path).map(drop),
    }
}

/// The folder itself, or the first one above it that is there: the engine makes what is missing below.
pub fn nearest_folder(path: &Path) -> &Path {
    path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."))
}

pub fn may_write(folder: &Path) -> bool {
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(folder, access).is_ok()
}

/// Whether a process could take over, or be taken over from.
fn upgrade(config: &Config, owner: &Owner) -> Option<Finding> {
    const WHAT: &str = "upgrade socket";
    let path = &config.process.upgrade_socket.as_ref()?.path;
    if propylon_sys::connect_messages(path, CONNECT_TIMEOUT).is_ok() {
        let current = "a process answers; run would be refused, propylon upgrade has it succeeded";
        return Some(Finding::new(WHAT, State::Good, current, "somebody or nobody"));
    }
    let folder = folder_of(path);
    let (state, current) = match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => (State::Good, "nobody answers yet".to_string()),
        Ok(_) => (State::Bad, format!("{} is no folder", folder.display())),
        Err(error) => (State::Bad, format!("{}: {error}", folder.display())),
    };
    let command = format!("{}, or RuntimeDirectory= in the systemd unit", owner.installs(folder, 750));
    Some(Finding::new(WHAT, state, current, "a folder to be made in").fix(command))
}

/// Whether the socket of the admin address could be made, and made anew by a later process.
fn admin_socket(config: &Config, owner: &Owner) -> Option<Finding> {
    let AdminBind::Unix(path) = &config.admin.as_ref()?.bind else { return None };
    let folder = folder_of(path);
    let shown = folder.display();
    let (state, current) = match fs::metadata(folder) {
        Err(error) => (State::Bad, format!("{shown}: {error}")),
        Ok(metadata) if !metadata.is_dir() => (State::Bad, format!("{shown} is no folder")),
        Ok(_) if may_write(folder) => (State::Good, format!("{shown} can be written in")),
        // Root makes the socket before it becomes that account, which then cannot remove it.
        Ok(_) if config.process.user.is_some() => {
            (State::Advice, format!("{shown} cannot be written in: a start by root alone would do"))
        }
        Ok(_) => (State::Bad, format!("{shown} cannot be written in")),
    };
    let command = format!("{}, or RuntimeDirectory= in the systemd unit", owner.installs(folder, 750));
    Some(Finding::new("admin socket", state, current, "a folder to be made in").fix(command))
}

/// The folder of a path; without one it is the folder that this process is in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether the access log can be made, and made anew after a rotation, and has room.
fn log_folder(config: &Config, owner: &Owner) -> Option<Finding> {
    let AccessLog::File(path) = &config.log.access else { return None };
    let folder = folder_of(path);
    let shown = folder.display();
    let (state, current) = match fs::metadata(folder) {
        Err(error) => (State::Bad, format!("{shown}: {error}")),
        Ok(metadata) if !metadata.is_dir() => (State::Bad, format!("{shown} is no folder")),
        Ok(_) if !may_write(folder) => (State::Bad, format!("{shown} cannot be written in")),
        Ok(_) => return Some(log_room(&shown.to_string(), free_bytes(folder))),
    };
    let finding = Finding::new(LOG, state, current, "a folder to write in");
    Some(finding.fix(format!("{}, or LogsDirectory= in the systemd unit", owner.installs(folder, 750))))
}

/// The bytes that may be written to the file system of a folder.
fn free_bytes(folder: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(folder).ok()?;
    Some(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Whether so much room is enough for a log; with none its lines are lost.
fn log_room(folder: &str, free: Option<u64>) -> Finding {
    let free_mib = free.map(|free| free >> 20);
    let state = match free {
        Some(0) => State::Bad,
        Some(free) if free < LOG_ROOM_WANTED => State::Advice,
        _ => State::Good,
    };
    let current = match free_mib {
        Some(mib) if state != State::Good => format!("{folder}, with room for {mib} MiB"),
        _ => folder.to_owned(),
    };
    let wanted = format!("a folder to write in, with room for {} MiB", LOG_ROOM_WANTED >> 20);
    let fix = format!("make room on the disk of {folder} (df -h {folder}): lines that cannot be written are lost");
    Finding::new(LOG, state, current, wanted).fix(fix)
}

/// Folders without room for what is kept in them, and what becomes of it: bodies may take as much as `buffer_disk`
/// allows.
fn full_folders(config: &Config, free: impl Fn(&Path) -> Option<u64>) -> Vec<Finding> {
    let state = config.process.state.as_ref();
    let state = state.map(|state| (STATE, state.path.as_path(), 1, "the admin API changes nothing while it is full"));
    let buffers = &config.process.buffers;
    let bodies = buffers.folder.as_ref().map(|folder| {
        let effect = "requests whose bodies are held in files get 503 once it is full; or lower process.buffer_disk";
        (BODIES, folder.path.as_path(), buffers.disk, effect)
    });
    let full = |(what, folder, wanted, effect): (&'static str, &Path, u64, &str)| {
        let free = free(folder).filter(|free| *free < wanted)?;
        let folder = folder.display();
        let fix = format!("make room on the disk of {folder} (df -h {folder}): {effect}");
        let (state, current, wanted) = match free {
            0 => (State::Bad, format!("{folder} is full"), "room to write".to_owned()),
            free => {
                let whole = if free >= 1 << 20 { free >> 20 << 20 } else { free >> 10 << 10 };
                let current = format!("{folder}, with room for {}", size_text(whole));
                (State::Advice, current, format!("room for {}, process.buffer_disk", size_text(wanted)))
            }
        };
        Some(Finding::new(what, state, current, wanted).fix(fix))
    };
    state.into_iter().chain(bodies).filter_map(full).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_accounts_group_and_every_path_as_a_shell_takes_it() {
        let owner = Owner { user: "nobody".into(), group: "nogroup".into() };
        let denied = |path| Refused {
            path: Path::new(path),
            access: FileAccess::Read,
            error: io::ErrorKind::PermissionDenied.into(),
        };
        let made = commands(&[denied("/a.pem"), denied("/b's.pem")], &owner);
        assert_eq!(made, [r"chgrp nogroup /a.pem '/b'\''s.pem' && chmod g+r /a.pem '/b'\''s.pem'"]);
        let gone = Refused { error: io::ErrorKind::NotFound.into(), ..denied("/gone.pem") };
        let folder = Refused { access: FileAccess::WriteFolder, ..denied("/state") };
        let made = commands(&[gone, folder], &owner);
        assert!(made[0].starts_with("put /gone.pem where"), "{made:?}");
        assert_eq!(made[1], "install -d -o nobody -g nogroup -m 700 /state");
    }

    #[test]
    fn the_admin_socket_wants_a_folder_and_its_absence_is_told_with_the_command() {
        let found = |path: &Path| {
            let text = format!(
                "[admin]\nbind = \"unix:{}\"\n[[route]]\nrespond = {{}}\n[listener.web]\nbind = \"127.0.0.1:0\"\n",
                path.display()
            );
            let config = super::super::tests::config(&text);
            admin_socket(&config, &Owner { user: "nobody".into(), group: "nogroup".into() }).expect("a finding")
        };
        assert_eq!(found(&std::env::temp_dir().join("admin.sock")).state, State::Good);
        let missing = found(Path::new("/nonexistent/propylon/admin.sock"));
        assert_eq!(missing.state, State::Bad);
        assert!(missing.command.starts_with("install -d -o nobody -g nogroup -m 750 /nonexistent/propylon,"));
        // The program itself, in the place of the folder.
        assert_eq!(found(&std::env::current_exe().unwrap().join("admin.sock")).state, State::Bad);
    }

    #[test]
    fn a_folder_without_room_is_bad_whatever_is_kept_in_it() {
        let text = "[process]\nstate = \"/state\"\ntemp_dir = \"/bodies\"\n[admin]\nbind = \"127.0.0.1:9900\"\n\
                    token_file = \"/token\"\n[[route]]\nrespond = {}\n[listener.web]\nbind = \"127.0.0.1:0\"\n";
        let config = super::super::tests::config(text);
        let found = |full: &'static str| {
            let free = |folder: &Path| Some(if folder == Path::new(full) { 0 } else { u64::MAX });
            full_folders(&config, free).into_iter().map(|one| (one.what, one.state)).collect::<Vec<_>>()
        };
        assert_eq!(found("/state"), [(STATE, State::Bad)]);
        assert_eq!(found("/bodies"), [(BODIES, State::Bad)]);
        assert_eq!(found("/"), []);
        let short = full_folders(&config, |_| Some(256 << 10));
        assert_eq!(short.iter().map(|one| (one.what, one.state)).collect::<Vec<_>>(), [(BODIES, State::Advice)]);
        assert!(short[0].current == "/bodies, with room for 256KiB" && short[0].wanted.contains("4GiB"));
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_worth_a_word_and_a_full_one_is_bad() {
        let state = |free| log_room("/logs", free).state;
        assert_eq!(
            [None, Some(LOG_ROOM_WANTED), Some(1), Some(0)].map(state),
            [State::Good, State::Good, State::Advice, State::Bad]
        );
        assert!(log_room("/logs", Some(3 << 20)).current.contains("room for 3 MiB"));
    }
}
