//! etcd's processes for tests: one member or several on loopback ports, which end with their owner.
#![allow(dead_code, reason = "each file of tests uses a part")]

use std::fs::{self, File, Permissions};
use std::future::Future;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use propylon_cluster::etcd::{Client, Settings};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for anything, on a machine with other work.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Whether etcd is installed. Says so if it is not.
pub fn etcd_is_there() -> bool {
    let is_there = Command::new("etcd").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: `etcd` is not installed (Debian: apt install etcd-server etcd-client)");
    }
    is_there
}

/// Runs a story on a runtime of one thread, with a limit.
pub fn story<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(3 * WAIT_MAX, story).await.expect("the story ends in time") })
}

/// Waits until `probe` finds something, and returns it.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(started.elapsed() < WAIT_MAX, "{what}: not within {WAIT_MAX:?}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// A folder that goes with its owner.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("propylon-cluster-etcd-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file for nobody else.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Members of one etcd cluster.
pub struct Etcd {
    pub scratch: Scratch,
    members: Vec<Member>,
    options: Options,
    peers: String,
}

struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
}

/// Ways in which a cluster differs from the simplest one.
#[derive(Default, Clone)]
pub struct Options {
    pub arguments: Vec<&'static str>,
    /// PEM of the authority, and of the server's chain and key. Clients' certificates are asked for.
    pub tls: Option<ServerTls>,
}

#[derive(Clone)]
pub struct ServerTls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Etcd {
    /// Starts members and waits until they have a leader.
    pub fn start(count: usize, options: Options) -> Etcd {
        let ports = free_ports(2 * count);
        let members: Vec<Member> = (0..count)
            .map(|number| Member {
                name: format!("m{number}"),
                client_port: ports[2 * number],
                peer_port: ports[2 * number + 1],
                child: None,
            })
            .collect();
        let peers: Vec<_> =
            members.iter().map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer_port)).collect();
        let mut etcd = Etcd { scratch: Scratch::new(), members, options, peers: peers.join(",") };
        (0..count).for_each(|number| etcd.spawn(number));
        (0..count).for_each(|number| etcd.wait_until_ready(number));
        etcd
    }

    pub fn count(&self) -> usize {
        self.members.len()
    }

    pub fn endpoint(&self, number: usize) -> String {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.members[number].client_port)
    }

    pub fn endpoints(&self) -> Vec<String> {
        (0..self.count()).map(|number| self.endpoint(number)).collect()
    }

    /// A client of all members that is quick to give one up.
    pub fn client(&self) -> Client {
        Client::new(Settings { request_timeout: Duration::from_secs(2), ..Settings::new(self.endpoints()) }).unwrap()
    }

    pub fn client_of(&self, number: usize) -> Client {
        let settings = Settings::new([self.endpoint(number)]);
        Client::new(Settings { request_timeout: Duration::from_secs(2), ..settings }).unwrap()
    }

    /// Kills a member as a power cut would.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts a member that was killed, with the data that it had.
    pub fn restart(&mut self, number: usize) {
        self.kill(number);
        self.spawn(number);
        self.wait_until_ready(number);
    }

    /// Lets a member stand still: it accepts connections and does nothing.
    pub fn freeze(&self, number: usize) {
        self.signal(number, Signal::STOP);
    }

    pub fn thaw(&self, number: usize) {
        self.signal(number, Signal::CONT);
    }

    /// Runs etcdctl against the first member.
    pub fn control(&self, arguments: &[&str]) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", self.endpoint(0)))
            .args(arguments)
            .output()
            .expect("etcdctl is there where etcd is");
        assert!(output.status.success(), "etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn signal(&self, number: usize, signal: Signal) {
        let child = self.members[number].child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    fn spawn(&mut self, number: usize) {
        let client = self.endpoint(number);
        let member = &mut self.members[number];
        let peer = format!("http://127.0.0.1:{}", member.peer_port);
        let log = File::create(self.scratch.path(&format!("{}.log", member.name))).unwrap();
        let mut command = Command::new("etcd");
        command
            .args(["--name", &member.name, "--initial-cluster", &self.peers, "--log-level", "error"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--heartbeat-interval", "100", "--election-timeout", "600", "--logger", "zap"])
            .arg("--data-dir")
            .arg(self.scratch.path(&member.name))
            .args(&self.options.arguments)
            // Data goes with the folder; waiting for the disk only makes elections.
            .env("ETCD_UNSAFE_NO_FSYNC", "true")
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(tls) = &self.options.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&tls.ca);
            command.arg("--cert-file").arg(&tls.certificate).arg("--key-file").arg(&tls.key);
        }
        member.child = Some(command.spawn().expect("etcd starts"));
    }

    fn wait_until_ready(&mut self, number: usize) {
        let started = Instant::now();
        loop {
            let log = self.scratch.path(&format!("{}.log", self.members[number].name));
            let child = self.members[number].child.as_mut().expect("it was started");
            let ended = child.try_wait().unwrap();
            let said = || fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none(), "etcd has ended: {}", said());
            let port = self.members[number].client_port;
            let is_ready = match self.options.tls {
                Some(_) => TcpStream::connect(("127.0.0.1", port)).is_ok(),
                None => is_healthy(port),
            };
            if is_ready {
                return;
            }
            assert!(started.elapsed() < WAIT_MAX, "etcd is not ready: {}", said());
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.count()).for_each(|number| self.kill(number));
    }
}

/// Whether a member says that it has a leader and can write.
fn is_healthy(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let asked = stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let _ = asked.and_then(|()| stream.read_to_end(&mut answer));
    answer.windows(8).any(|part| part == br#":"true"}"#)
}

/// Ports that nobody listens on now.
pub fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// An authority and what it signs, as files.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub ca: PathBuf,
}

impl Authority {
    pub fn new(scratch: &Scratch, name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let ca = scratch.write(&format!("{name}.pem"), &issuer.pem());
        Authority { issuer, ca }
    }

    /// Chain and key of a certificate for 127.0.0.1 with these uses: two files, and one with both.
    pub fn sign(&self, scratch: &Scratch, name: &str, uses: &[ExtendedKeyUsagePurpose]) -> (PathBuf, PathBuf, PathBuf) {
        let mut params = CertificateParams::new(["127.0.0.1".to_string()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = uses.to_vec();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let both = format!("{}{}", certificate.pem(), key.serialize_pem());
        let file = |suffix: &str, text: &str| scratch.write(&format!("{name}{suffix}.pem"), text);
        (file("", &certificate.pem()), file("-key", &key.serialize_pem()), file("-both", &both))
    }
}

/// Reads a file's text, for what etcd has written.
pub fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
