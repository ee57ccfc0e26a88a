//! The key process of an engine: it holds the engine's private keys, reads the files that they are in, and signs
//! for its cores, each of which has a socket of its own to it. Nobody else can speak to it.
//! (`docs/decisions/0039-isolated-keys.md`)
//!
//! `supervisor` is the process that starts it, and starts it again; `startup` the messages at its start; `files`
//! what it reads; `kept` keys that it makes itself, and `authority` what those of accounts sign; `pair` a socket
//! that it signs by.

mod authority;
mod files;
mod kept;
mod startup;
mod store;
mod supervisor;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use propylon_crypto::key_process::{Answer, HERE, MESSAGE_BYTES_MAX, Order, Question, Setup};
use propylon_metrics::Store;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

pub use crate::message_socket::MessageSocket;
pub use startup::Startup;
pub use store::unfit as unfit_store;
pub use supervisor::supervise;

use crate::access::Rules;
use crate::core::{Command, Shared};
use crate::hsm::Tokens;
use crate::kernels::Kernels;
use crate::logger::{self, Flush};
use crate::sandbox;
use crate::signing::TaskQueues;
use crate::telemetry::Telemetry;
use crate::worker::{self, Worker};
use files::Files;

/// Time that an operation may wait for its turn: longer than an engine waits for it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// `propylon key-process`: on standard input it has its supervisor. `log` sets the log's level.
pub fn serve(log: fn(u8)) -> ExitCode {
    let _flush = Flush;
    let prepared = prepare(log);
    let outcome = prepared.and_then(|(startup, supervisor)| run(startup, supervisor));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            log::error!("the key process cannot go on: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The first steps of both processes.
fn prepare(log: fn(u8)) -> Result<(Startup, OwnedFd), String> {
    // Core dumps go first: no key has been read yet.
    propylon_sys::no_core_dumps().map_err(|error| format!("core dumps cannot be turned off: {error}"))?;
    propylon_sys::wipe_freed_memory();
    let starter = io::stdin().as_fd().try_clone_to_owned();
    let starter = starter.map_err(|error| format!("standard input is not there: {error}"))?;
    let startup = Startup::receive(&starter).map_err(|error| format!("it has not been told what to do: {error}"))?;
    log(startup.setup.level);
    ignore_signals().map_err(|error| format!("signals cannot be had: {error}"))?;
    Ok((startup, starter))
}

/// Ignores signals that are sent to all processes of this program's name, or of a terminal: they are meant for the
/// process that serves, and when that ends, this one does.
fn ignore_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _guard = runtime.enter();
    let kinds = [SignalKind::hangup(), SignalKind::user_defined1(), SignalKind::user_defined2()];
    for kind in kinds.into_iter().chain([SignalKind::terminate(), SignalKind::interrupt()]) {
        // A handler stays, whoever listens to it.
        drop(signal(kind)?);
    }
    Ok(())
}

fn run(startup: Startup, supervisor: OwnedFd) -> Result<(), String> {
    let Startup { setup, files: mut sockets, folders, accounts, paths } = startup;
    let store = setup.store.as_deref();
    let unfit = store.and_then(|store| {
        let (error, store) = (store::prepare(store).err()?, store.display());
        log::error!(
            "keys.store {store}: {error}; certificates cannot be uploaded, nor ordered, until it is given to the account that serves \
             (install -d -o USER -m 700 {store}); a folder that is made for that takes a restart of the engine"
        );
        // The kernel says itself what it does not let us do.
        (error.kind() == io::ErrorKind::Other).then(|| error.to_string())
    });
    if setup.sandbox {
        confine(folders, store)?;
    }
    logger::start_writer().map_err(|error| format!("a thread cannot be started: {error}"))?;
    // The threads are started before keys are read, which may take its time.
    let command_senders = Arc::new(OnceLock::new());
    let watched =
        supervisor.try_clone().and_then(|supervisor| watch_supervisor(supervisor, Arc::clone(&command_senders)));
    watched.map_err(|error| format!("a thread cannot be started: {error}"))?;
    let questions = sockets.remove(0);
    let mut files = Files::new(&setup, accounts, Some(supervisor));
    unfit.into_iter().for_each(|why| files.refuse_new_files(why));
    let is_first = paths.is_empty();
    for path in paths {
        if let Answer::Unread(why) = files.read(&path, 0) {
            log::warn!("{}: the key that was in it cannot be read again: {why:?}", path.display());
        }
    }
    let shared = Arc::new(Shared::new(files.keys(), None, Rules::new(Vec::new()), usize::MAX, sockets.len()));
    let started = start(&setup, &shared, sockets).map_err(|error| format!("a thread cannot be started: {error}"))?;
    let _ = command_senders.set(started);
    if setup.sandbox && !sandbox::confine_calls_of_key_process(store.is_some())? {
        log::warn!("key process: seccomp: not enforced: no filter is known for this processor");
    }
    if !is_first {
        log::info!("key process: keys that were read again: {}", files.count());
    }
    answer(questions, files, &shared).map_err(|error| format!("the engine cannot be answered: {error}"))
}

/// Confines the process; called before there is a second thread, and before a key is read.
fn confine(folders: Vec<PathBuf>, store: Option<&Path>) -> Result<(), String> {
    propylon_sys::no_new_privileges().map_err(|error| format!("no_new_privs was refused: {error}"))?;
    let readable: BTreeSet<PathBuf> = folders.into_iter().collect();
    let what = sandbox::confine_to(&readable, store)?;
    log::info!("key process: Landlock: {what}");
    Ok(())
}

/// Starts all threads, and returns when each has what it needs. They live as long as the process. Each core of the
/// engine has one: what that core would do itself, had it the keys, waits for no other's work, and to hand it on
/// costs two wakes.
fn start(setup: &Setup, shared: &Arc<Shared>, sockets: Vec<OwnedFd>) -> io::Result<CommandSenders> {
    let count = sockets.len();
    let (telemetry, store) = Telemetry::new(count + 1, &[]);
    let kernels = Kernels::start(setup.batch, setup.batch);
    let ready = Arc::new(Barrier::new(count + 1));
    let queues = TaskQueues::start(&kernels, telemetry, Vec::new(), Vec::new(), &ready)?;
    let tokens = Tokens::open(&[]).map_err(|fault| io::Error::other(fault.what))?;
    let mut command_senders = Vec::new();
    for (index, socket) in sockets.into_iter().enumerate() {
        let (sender, commands) = worker::command_channel();
        command_senders.push(sender.clone());
        let worker = Worker {
            index,
            shared: Arc::clone(shared),
            listeners: Vec::new(),
            engine: Some(socket),
            commands,
            command_senders: vec![sender],
            queues: queues.clone(),
            tokens: tokens.clone(),
            kernels: kernels.clone(),
            column: Store::column(&store, index),
            telemetry,
            idle_timeout: TIMEOUT,
            timeout: TIMEOUT,
        };
        let ready = Arc::clone(&ready);
        thread::Builder::new().name(format!("links-{index}")).spawn(move || {
            let outcome = worker.run(&ready);
            log::error!("the key process ends, since one of its threads has: {outcome:?}");
            log::logger().flush();
            std::process::exit(1);
        })?;
    }
    ready.wait();
    Ok(command_senders)
}

/// Sender of commands to each core's thread.
type CommandSenders = Vec<mpsc::Sender<Command>>;

/// Receives from the supervisor, and exits when it has ended: the engine has ended then too, and nothing would start
/// another key process. Its beats are answered where every thread that signs has gone on since the one before; while
/// keys are read there are none.
fn watch_supervisor(supervisor: OwnedFd, command_senders: Arc<OnceLock<CommandSenders>>) -> io::Result<()> {
    let wait = move || {
        let (mut beat, mut buffer) = (Arc::new(()), [0; 16]);
        loop {
            match propylon_sys::receive_message(&supervisor, &mut buffer) {
                Ok((0, _)) | Err(_) => {
                    log::logger().flush();
                    std::process::exit(0);
                }
                Ok((length, _)) if Order::parse(&buffer[..length]) == Ok(Order::Beat) => {
                    // Threads still have the one before.
                    if Arc::strong_count(&beat) > 1 {
                        continue;
                    }
                    beat = Arc::new(());
                    for sender in command_senders.get().into_iter().flatten() {
                        // The channel has room: the thread has taken the last beat.
                        let _ = sender.try_send(Command::Beat(Arc::clone(&beat)));
                    }
                    let _ = propylon_sys::try_send_message(&supervisor, &Order::Beat.to_bytes());
                }
                Ok(_) => {}
            }
        }
    };
    thread::Builder::new().name("supervisor".into()).spawn(wait).map(drop)
}

/// Answers questions about files, until nobody asks any more.
fn answer(socket: OwnedFd, mut files: Files, shared: &Shared) -> io::Result<()> {
    // Sending must not wait where nobody listens: an engine may not ask for weeks, and this process come and go.
    propylon_sys::set_nonblocking(&socket, true)?;
    let _ = propylon_sys::try_send_message(&socket, HERE);
    propylon_sys::set_nonblocking(&socket, false)?;
    let socket = UnixDatagram::from(socket);
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let length = socket.recv(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        // A message that is no question has no number to answer to.
        let Ok((id, question)) = Question::parse(&buffer[..length]) else { continue };
        let answer = files.answer(question);
        // The message may have held a key, so it is wiped.
        buffer[..length].fill(0);
        if files.take_changed() {
            shared.keys.store(Arc::new(files.keys()));
        }
        for message in answer.messages(id) {
            socket.send(&message)?;
        }
    }
}
