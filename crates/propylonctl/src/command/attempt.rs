//! `propylonctl attempt`: does, in the sandbox of a process that serves, what somebody would who has got into one.
//!
//! `propylon doctor` and the tests start it, so that what is said of the sandbox is what this kernel does. Nothing that
//! succeeds does any harm.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use propylon_config::{Config, Source};
use propylon_control::sandbox::Sandbox;
use rustix::net::{AddressFamily, SocketType};

/// A configuration that names nothing.
const NOTHING: &str = "[listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = { status = 204 }\n";
/// Path of a configuration file that does not exist.
const NOWHERE: &str = "/nonexistent/propylon.toml";
/// How long somebody may take who is connected to.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration whose sandbox it is
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum What {
    /// Say what is enforced, in a line of JSON
    Show,
    /// Read a file
    Read { path: PathBuf },
    /// Make a file, and remove it
    Write { path: PathBuf },
    /// Run a program
    Exec { program: PathBuf },
    /// Trace a process
    Trace { pid: u32 },
    /// Send no signal to a process
    Signal { pid: u32 },
    /// Connect by TCP
    Connect { address: SocketAddr },
    /// Listen by TCP
    Listen { address: SocketAddr },
    /// Connect to a Unix socket
    ConnectUnix { path: PathBuf },
    /// Speak with the kernel about the network
    Netlink,
    /// Become another account
    SetUser { uid: u32 },
    /// Be open to debuggers again
    BeDumpable,
    /// Start a thread
    Thread,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    let config = match &arguments.config {
        Some(path) => Source::read(path).map_err(|problem| vec![problem]).and_then(|source| parse(&source)),
        None => parse(&Source { name: "nothing.toml".into(), base: "/".into(), text: NOTHING.into() }),
    };
    let config = match config {
        Ok(config) => config,
        Err(problems) => {
            eprint!("{}", propylon_config::render(&problems, ""));
            return ExitCode::from(2);
        }
    };
    let _ = propylon_sys::no_core_dumps();
    let _ = propylon_sys::name_process(c"propylon");
    let sandbox = Sandbox::enter(&config, arguments.config.as_deref().unwrap_or(Path::new(NOWHERE)));
    if let What::Show = arguments.what {
        println!("{}", sandbox.to_json());
        return ExitCode::SUCCESS;
    }
    match attempt(&arguments.what) {
        Ok(()) => {
            println!("done");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("refused: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(source: &Source) -> Result<Config, Vec<propylon_config::Problem>> {
    propylon_config::parse(source).map(|(config, _)| config)
}

fn attempt(what: &What) -> io::Result<()> {
    match what {
        What::Show => Ok(()),
        What::Read { path } => fs::File::open(path).map(drop),
        What::Write { path } => fs::write(path, "").and_then(|()| fs::remove_file(path)),
        What::Exec { program } => Command::new(program).status().map(drop),
        What::Trace { pid } => propylon_sys::try_trace(*pid),
        What::Signal { pid } => {
            let pid = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw);
            Ok(rustix::process::test_kill_process(pid.ok_or(io::ErrorKind::InvalidInput)?)?)
        }
        What::Connect { address } => TcpStream::connect_timeout(address, CONNECT_WAIT).map(drop),
        What::Listen { address } => TcpListener::bind(address).map(drop),
        What::ConnectUnix { path } => UnixStream::connect(path).map(drop),
        What::Netlink => Ok(rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None).map(drop)?),
        What::SetUser { uid } => {
            let uid = rustix::process::Uid::from_raw(*uid);
            Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
        }
        What::BeDumpable => Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?),
        What::Thread => std::thread::Builder::new().spawn(|| {})?.join().map_err(|_| io::ErrorKind::Other.into()),
    }
}

/// Attempts that somebody would make, each with whether this machine lets a process of this configuration do it: none
/// where that cannot be found out.
pub fn all(config: Option<&Path>) -> Vec<(&'static str, Option<bool>)> {
    let own = std::process::id().to_string();
    let attempts: [(&str, &[&str]); 7] = [
        ("read /etc/shadow", &["read", "/etc/shadow"]),
        ("write to /tmp", &["write", "/tmp/.propylon-attempt"]),
        ("run a program", &["exec", "/bin/true"]),
        ("trace a process", &["trace", &own]),
        ("speak with other Unix sockets", &["connect-unix", "/run/docker.sock"]),
        ("speak netlink", &["netlink"]),
        ("change its account", &["set-user", "65534"]),
    ];
    attempts.map(|(what, arguments)| (what, run(config, arguments).map(|status| status.success()))).to_vec()
}

fn run(config: Option<&Path>, arguments: &[&str]) -> Option<ExitStatus> {
    command(config, arguments).stdout(Stdio::null()).stderr(Stdio::null()).status().ok()
}

/// The sandbox that is enforced on this machine, as the sandbox itself reports it.
pub fn show(config: Option<&Path>) -> Option<serde_json::Value> {
    let output = command(config, &["show"]).stderr(Stdio::null()).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

fn command(config: Option<&Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("attempt");
    config.iter().for_each(|path| {
        command.arg("-c").arg(path);
    });
    command.args(arguments).stdin(Stdio::null());
    command
}
