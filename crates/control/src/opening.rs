//! Resources that a process opens before it has a thread: listening sockets, its own or those that it was given, the
//! admin address, the upgrade socket, the access log. Then it gives up its privileges.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use propylon_config::{AccessLog, Admin, AdminBind, Config};
use propylon_net::listen::{self, BindError, Bound, Inherited};
use propylon_observe::access_log::Writer;
use propylon_proxy::cores::worker_count;
use propylon_proxy::overload::files::{ConnectionsMax, FilesPlan};
use propylon_sys::{Account, ListenOptions, bind_advice};

use crate::admin::AdminSocket;
use crate::health::PROBES_AT_ONCE_MAX;
use crate::upgrade::Failure;
use crate::upgrade::takeover::{InheritedSocket, Takeover};

/// How long somebody at the upgrade socket may take to be there.
const LOOK_WAIT_MAX: Duration = Duration::from_secs(5);

/// Why the engine could not start.
#[derive(Debug)]
pub enum StartError {
    Bind(BindError),
    /// Another process answers at the upgrade socket.
    Served(PathBuf),
    /// The service manager's sockets that the configuration has no address for, or what is wrong with them.
    Activation(String),
    UpgradeSocket {
        path: PathBuf,
        error: io::Error,
    },
    /// The process that serves goes on.
    Upgrade(Failure),
    AdminBind {
        address: String,
        error: io::Error,
    },
    AccessLog {
        path: PathBuf,
        error: io::Error,
    },
    Privileges(propylon_sys::PrivilegesError),
    Threads(io::Error),
    /// A signal came before the process was ready.
    Stopped,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Served(path) => {
                let path = path.display();
                write!(
                    f,
                    "another process serves and answers at {path}; take over from it with run --upgrade, or stop it first"
                )
            }
            StartError::Activation(what) => write!(f, "{what}"),
            StartError::UpgradeSocket { path, error } => {
                let shown_path = path.display();
                write!(f, "process.upgrade_socket {shown_path} cannot be made: {error}; {}", file_advice(path, error))
            }
            StartError::Upgrade(failure) => write!(f, "nothing was taken over: {failure}"),
            StartError::Bind(error) => write!(f, "{error}; {}", bind_advice(&error.error)),
            StartError::AdminBind { address, error } => {
                let advice = match address.strip_prefix("unix:") {
                    Some(path) => file_advice(Path::new(path), error),
                    None => bind_advice(error).to_owned(),
                };
                write!(f, "admin cannot bind {address}: {error}; {advice}")
            }
            StartError::AccessLog { path, error } => {
                let shown_path = path.display();
                write!(f, "the access log {shown_path} cannot be opened: {error}; {}", file_advice(path, error))
            }
            StartError::Privileges(error) => write!(f, "{error}"),
            StartError::Stopped => f.write_str("stopped before it was ready"),
            StartError::Threads(error) => write!(f, "a thread cannot be started: {error}"),
        }
    }
}

/// Advice about a file that could not be made or opened.
fn file_advice(path: &Path, error: &io::Error) -> String {
    let folder = propylon_sys::folder_of(path);
    let is_broad = std::fs::canonicalize(&folder).is_ok_and(|folder| propylon_sys::is_broad(&folder));
    let folder = folder.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_broad => {
            format!(
                "choose a folder of its own, below {folder} or elsewhere, that belongs to the account that starts it"
            )
        }
        io::ErrorKind::NotFound => format!("make its folder: install -d {folder}"),
        io::ErrorKind::PermissionDenied => format!(
            "give {folder} to the account that starts it (chown), or have systemd make it (RuntimeDirectory=, LogsDirectory=)"
        ),
        io::ErrorKind::AddrInUse => {
            "somebody answers there, or it is no socket: stop them, remove it, or choose another path".to_owned()
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!("make room in {folder}"),
        io::ErrorKind::IsADirectory => "name a file in it".to_owned(),
        _ => format!("look at it and at {folder}"),
    }
}

/// Resources of the system that the configuration asks for.
pub struct Opened {
    pub bound: Vec<Bound>,
    pub admin: Option<AdminSocket>,
    pub upgrade: Option<OwnedFd>,
    pub log: Writer,
    /// Indices of the predecessor's files that were used.
    pub adopted: Vec<usize>,
    pub connections_max: ConnectionsMax,
}

/// Opens everything. With a process that serves until this one is ready, what it has given is used where it fits.
pub fn open(config: &Config, mut takeover: Option<&mut Takeover>) -> Result<Opened, StartError> {
    let files = propylon_sys::raise_files_limit();
    let workers = worker_count(config);
    let mut inherited = match &mut takeover {
        Some(takeover) => std::mem::take(&mut takeover.inherited_state.sockets),
        None => {
            refuse_second(config)?;
            activated()?
        }
    };
    let mut adopted: Vec<usize> = inherited.iter().map(|each| each.place).collect();
    let bound = listen::bind_first(config, workers, &mut inherited);
    let bound = bound.map_err(|mut errors| StartError::Bind(errors.remove(0)))?;
    match takeover {
        // The other process takes what is in their queues, and closes them.
        Some(_) => adopted.retain(|place| !inherited.iter().any(|left| left.place == *place)),
        None => refuse_unmatched(&inherited)?,
    }
    listen::announce(config, &bound, &[]);
    let (admin_given, upgrade_given) = match &mut takeover {
        Some(takeover) => (takeover.inherited_state.admin.take(), takeover.inherited_state.upgrade.take()),
        None => (None, None),
    };
    // Files that are made here belong to the account that serves.
    let owner = config.process.user.as_deref().map(Account::find).transpose().map_err(StartError::Privileges)?;
    let owner = owner.as_ref();
    let admin = config.admin.as_ref().map(|admin| open_admin(admin, owner, admin_given, &mut adopted)).transpose()?;
    let upgrade = open_upgrade_socket(config, owner, upgrade_given, &mut adopted)?;
    let failed = |error| {
        let path = if let AccessLog::File(path) = &config.log.access { path.clone() } else { PathBuf::new() };
        StartError::AccessLog { path, error }
    };
    let log = Writer::open(&config.log).map_err(failed)?;
    if let Some(account) = owner {
        // A successor opens it as that account.
        log.give_to(account).map_err(failed)?;
    }
    if let Some(account) = owner {
        propylon_sys::drop_privileges(account).map_err(StartError::Privileges)?;
        log::info!("running as {} (uid {}, gid {})", account.user, account.uid, account.gid);
    }
    let connections_max = files_plan(config).connections_max(files, workers);
    Ok(Opened { bound, admin, upgrade, log, adopted, connections_max })
}

/// The open files that this configuration takes.
pub fn files_plan(config: &Config) -> FilesPlan {
    FilesPlan::of(config, worker_count(config), PROBES_AT_ONCE_MAX)
}

/// A start by mistake would otherwise be told of an address that is taken, and not by whom.
fn refuse_second(config: &Config) -> Result<(), StartError> {
    let Some(socket) = &config.process.upgrade_socket else { return Ok(()) };
    match propylon_sys::connect_messages(&socket.path, LOOK_WAIT_MAX) {
        Ok(_) => Err(StartError::Served(socket.path.clone())),
        Err(_) => Ok(()),
    }
}

/// Sockets that the service manager has opened.
fn activated() -> Result<Vec<Inherited>, StartError> {
    let files = propylon_sys::take_activated()
        .map_err(|error| StartError::Activation(format!("the service manager's sockets cannot be used: {error}")))?;
    let mut all: Vec<Inherited> = Vec::new();
    for file in files {
        let name = format!("socket \"{}\" of the service manager", file.name);
        let listener = propylon_sys::tcp_listener(file.file).and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (address, socket) = listener.map_err(|_| {
            StartError::Activation(format!("{name} is no listening TCP socket; remove it from the unit"))
        })?;
        // Several for one address are as many workers' worth.
        match all.iter_mut().find(|known| known.address == address) {
            Some(known) => known.sockets.push(socket),
            None => {
                all.push(Inherited { place: all.len(), binding: None, address, sockets: vec![socket], name });
            }
        }
    }
    Ok(all)
}

fn refuse_unmatched(left: &[Inherited]) -> Result<(), StartError> {
    if left.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = left.iter().map(|each| format!("{} at {}", each.name, each.address)).collect();
    let what = format!(
        "no listener has the address of {}; add it to a listener's bind, or remove it from the unit",
        names.join(", ")
    );
    Err(StartError::Activation(what))
}

/// Whether the other process's admin address, in its words, is this one. A file has many names.
fn is_for(given: &str, bind: &AdminBind) -> bool {
    match (bind, given.strip_prefix("unix:")) {
        (AdminBind::Unix(path), Some(given)) => is_same_place(Path::new(given), path),
        _ => given == bind.to_string(),
    }
}

fn is_same_place(given: &Path, wanted: &Path) -> bool {
    given == wanted || propylon_sys::is_same_file(given, wanted)
}

/// The other process's, if it is for the same address.
fn open_admin(
    admin: &Admin,
    owner: Option<&Account>,
    given: Option<InheritedSocket<String>>,
    adopted: &mut Vec<usize>,
) -> Result<AdminSocket, StartError> {
    let fail = |error| StartError::AdminBind { address: admin.bind.to_string(), error };
    let Some(given) = given.filter(|given| is_for(&given.at, &admin.bind)) else {
        return bind_admin(admin, owner);
    };
    adopted.push(given.place);
    match &admin.bind {
        AdminBind::Tcp(_) => {
            let socket = propylon_sys::tcp_listener(given.socket).map_err(fail)?;
            log::info!("admin at http://{}", socket.local_addr().map_err(fail)?);
            Ok(AdminSocket::Tcp(socket))
        }
        AdminBind::Unix(_) => {
            let socket = propylon_sys::unix_listener(given.socket).map_err(fail)?;
            log::info!("admin at {}", admin.bind);
            Ok(AdminSocket::Unix(socket))
        }
    }
}

fn open_upgrade_socket(
    config: &Config,
    owner: Option<&Account>,
    given: Option<InheritedSocket<PathBuf>>,
    adopted: &mut Vec<usize>,
) -> Result<Option<OwnedFd>, StartError> {
    let Some(wanted) = &config.process.upgrade_socket else { return Ok(None) };
    if let Some(given) = given.filter(|given| is_same_place(&given.at, &wanted.path)) {
        adopted.push(given.place);
        return Ok(Some(given.socket));
    }
    let made = propylon_sys::listen_messages(&wanted.path, owner);
    made.map(Some).map_err(|error| StartError::UpgradeSocket { path: wanted.path.clone(), error })
}

fn bind_admin(admin: &propylon_config::Admin, owner: Option<&Account>) -> Result<AdminSocket, StartError> {
    let fail = |error| StartError::AdminBind { address: admin.bind.to_string(), error };
    match &admin.bind {
        AdminBind::Tcp(address) => {
            let socket = propylon_sys::listen(*address, ListenOptions::default()).map_err(fail)?;
            log::info!("admin at http://{}", socket.local_addr().map_err(fail)?);
            Ok(AdminSocket::Tcp(socket))
        }
        AdminBind::Unix(path) => {
            let socket = propylon_sys::listen_unix(path, owner).map_err(fail)?;
            log::info!("admin at {}", admin.bind);
            Ok(AdminSocket::Unix(socket))
        }
    }
}
