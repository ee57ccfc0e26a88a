//! The key servers of a run: two processes that have the key of a listener's certificate, of which one at a time is
//! killed, or stopped. Handshakes go on meanwhile: none of them may fail.

use crate::certificates::{NAME, TestCertificates};
use crate::files::write_aside;
use crate::plan::KEY_SERVERS;
use crate::server_processes::{lock, reserved_ports};
use propylon_bench::failure::{Failure, Outcome, While};
use rcgen::ExtendedKeyUsagePurpose;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const START_MAX: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Files of the engine, in the run's folder: the certificate whose key is elsewhere, and who it is to key servers.
pub const CERTIFICATE: &str = "keyed.crt";
pub const IDENTITY: &str = "engine-identity.pem";

pub struct KeyServers {
    program: PathBuf,
    folder: PathBuf,
    pub addresses: [SocketAddr; KEY_SERVERS],
    servers: [Mutex<Option<Process>>; KEY_SERVERS],
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KeyServers {
    /// Makes all files below `folder`, and starts both. `engine` is the program that the key server lies beside.
    pub fn start(engine: &Path, folder: &Path, test_certificates: &TestCertificates) -> Outcome<Self> {
        let write = |name: &str, text: String| write_aside(&folder.join(name), &text);
        let keyed = test_certificates.issue(NAME, ExtendedKeyUsagePurpose::ServerAuth)?;
        fs::create_dir(folder.join("keys")).when("making the folder of keys")?;
        write(CERTIFICATE, keyed.0)?;
        write("keys/keyed.pem", keyed.1)?;
        let server = test_certificates.issue("localhost", ExtendedKeyUsagePurpose::ServerAuth)?;
        write("keyserver.pem", server.0 + &server.1)?;
        let client = test_certificates.issue("engine", ExtendedKeyUsagePurpose::ClientAuth)?;
        write(IDENTITY, client.0 + &client.1)?;
        let ports = reserved_ports(KEY_SERVERS)?;
        let addresses = std::array::from_fn(|at| SocketAddr::from((Ipv4Addr::LOCALHOST, ports[at])));
        for (at, address) in addresses.iter().enumerate() {
            let text = format!(
                "[server]\nbind = \"{address}\"\nidentity = \"keyserver.pem\"\nca = \"ca.pem\"\nworkers = 1\n\
                 [keys]\npaths = [\"keys/\"]\n"
            );
            write(&format!("keyserver{at}.toml"), text)?;
        }
        let program = engine.with_file_name("propylon-keyserver");
        let key_servers = Self { program, folder: folder.to_owned(), addresses, servers: Default::default() };
        (0..KEY_SERVERS).try_for_each(|at| key_servers.revive(at))?;
        Ok(key_servers)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts one that is not there, and waits until it listens.
    pub fn revive(&self, at: usize) -> Outcome<()> {
        let log = File::options().create(true).append(true).open(self.folder.join(format!("keyserver{at}.log")));
        let mut command = Command::new(&self.program);
        command.args(["run", "-c"]).arg(self.folder.join(format!("keyserver{at}.toml")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.when("opening a key server's log")?);
        let child = command.spawn().when(format_args!("starting {}", self.program.display()))?;
        *lock(&self.servers[at]) = Some(Process(child));
        let until = Instant::now() + START_MAX;
        while TcpStream::connect(self.addresses[at]).is_err() {
            if Instant::now() > until {
                return Err(Failure::new(format!(
                    "key server {at} does not start; its log is in {}",
                    self.folder.display()
                )));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }

    pub fn kill(&self, at: usize) {
        *lock(&self.servers[at]) = None;
    }

    pub fn signal(&self, at: usize, signal: Signal) -> Outcome<()> {
        let servers = lock(&self.servers[at]);
        let pid = servers.as_ref().and_then(|process| i32::try_from(process.0.id()).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Failure::new(format!("key server {at} is dead")))?;
        kill_process(pid, signal).when(format_args!("sending a signal to key server {at}"))
    }

    pub fn end_all(&self) {
        (0..KEY_SERVERS).for_each(|at| self.kill(at));
    }
}
