//! etcd with mutual TLS, each member in a namespace of its own: killed, stopped, cut off and restarted one by one.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType,
};
use rustix::process::Signal;
use serde_json::Value;

use super::namespaces::Namespace;
use super::network;
use super::programs::system;
use crate::program::{Said, finish, run, signal};
use crate::wait::{WAIT_MAX, eventually};

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
/// Elections take one to two of these; a busy machine must not call for one.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(1000);
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
/// Members find each other and elect one, on a machine with other work.
const START: Duration = Duration::from_secs(60);
/// A call that etcd answers at all is answered within this.
const CALL: Duration = Duration::from_secs(20);

pub struct Etcd {
    folder: PathBuf,
    members: Vec<Member>,
    quota_bytes: Option<u64>,
}

/// A key's value as it is or was, by etcd's own account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub create_revision: u64,
    pub mod_revision: u64,
    /// In base64.
    pub value: String,
}

struct Member {
    namespace: Namespace,
    child: Option<Child>,
}

impl Etcd {
    /// Starts members with empty data, and waits until they have a leader.
    #[track_caller]
    pub fn start(namespaces: Vec<Namespace>, folder: &Path, quota_bytes: Option<u64>) -> Etcd {
        make_certificates(folder, namespaces.len());
        let members = namespaces.into_iter().map(|namespace| Member { namespace, child: None }).collect();
        let mut etcd = Etcd { folder: folder.to_owned(), members, quota_bytes };
        etcd.start_all();
        etcd
    }

    /// URLs of all members, as engines reach them.
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len())
            .map(|number| format!("https://{}:{CLIENT_PORT}", network::etcd_address(number)))
            .collect()
    }

    /// The authority of members and clients, for nothing else than etcd.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// A client's certificate.
    pub fn client_certificate(&self) -> PathBuf {
        self.folder.join("client.pem")
    }

    pub fn client_key(&self) -> PathBuf {
        self.folder.join("client.key")
    }

    /// SIGKILL. Its data stay.
    #[track_caller]
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            let _ = child.kill();
            finish(&mut child, WAIT_MAX, "etcd ends");
        }
    }

    /// Stands still, with all of its connections open.
    pub fn stop(&self, number: usize) {
        signal(self.pid(number), Signal::STOP);
    }

    pub fn cont(&self, number: usize) {
        signal(self.pid(number), Signal::CONT);
    }

    /// Starts a member again that was killed, with the data it had. It may take a while to answer.
    #[track_caller]
    pub fn restart(&mut self, number: usize) {
        assert!(self.members[number].child.is_none(), "etcd {number} runs already");
        self.spawn(number);
    }

    /// All members are killed and start anew, and nobody has any data: the worst that can happen to a cluster.
    #[track_caller]
    pub fn lose_data(&mut self) {
        for number in 0..self.members.len() {
            self.kill(number);
            fs::remove_dir_all(self.data(number)).expect("data of a member");
        }
        self.start_all();
    }

    /// Runs `etcdctl` with all endpoints and the client's certificate.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> Said {
        self.ctl_at(&self.endpoints().join(","), arguments)
    }

    /// The value of a key, if it has one.
    #[track_caller]
    pub fn value(&self, key: &str) -> Option<String> {
        let said = self.ctl(&["get", "--print-value-only", "--", key]).ok();
        let text = said.text();
        text.strip_suffix('\n').map(str::to_owned)
    }

    #[track_caller]
    pub fn put(&self, key: &str, value: &str) {
        self.ctl(&["put", "--", key, value]).ok();
    }

    /// The bytes of a key's value.
    #[track_caller]
    pub fn bytes(&self, key: &str) -> Vec<u8> {
        let mut bytes = self.ctl(&["get", "--print-value-only", "--", key]).ok().stdout;
        assert_eq!(bytes.pop(), Some(b'\n'), "{key} is not there");
        bytes
    }

    /// Puts a value that is too long for an argument, or may be refused.
    #[track_caller]
    pub fn try_put(&self, key: &str, value: &[u8]) -> Said {
        self.ctl_with(&self.endpoints().join(","), &["put", "--", key], value)
    }

    /// The key with its revisions, at a revision or (0) now.
    #[track_caller]
    pub fn entry(&self, key: &str, revision: u64) -> Option<Entry> {
        let said = self.ctl(&["get", "-w", "json", &format!("--rev={revision}"), "--", key]).ok();
        let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
        let found = answer["kvs"].as_array()?.first()?.clone();
        let number = |name: &str| found[name].as_u64().expect("a revision");
        let value = found["value"].as_str().unwrap_or_default().to_owned();
        Some(Entry { create_revision: number("create_revision"), mod_revision: number("mod_revision"), value })
    }

    /// All values that a key has had since it was made last, the last one first.
    #[track_caller]
    pub fn values(&self, key: &str) -> Vec<String> {
        let mut values = Vec::new();
        let mut revision = 0;
        while let Some(entry) = self.entry(key, revision) {
            let text = self.ctl(&["get", "--print-value-only", &format!("--rev={revision}"), "--", key]).ok().text();
            values.push(text);
            revision = entry.mod_revision - 1;
            if entry.create_revision == entry.mod_revision {
                break;
            }
        }
        values
    }

    /// Forgets all that was before now.
    #[track_caller]
    pub fn compact(&self) {
        let said = self.ctl(&["get", "-w", "json", "--", "propylon"]).ok();
        let answer: Value = serde_json::from_slice(&said.stdout).expect("JSON");
        let revision = answer["header"]["revision"].as_u64().expect("a revision");
        self.ctl(&["compact", &revision.to_string()]).ok();
    }

    /// Keys below a prefix.
    #[track_caller]
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let text = self.ctl(&["get", "--keys-only", "--prefix", "--", prefix]).ok().text();
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The member that leads, as soon as one does.
    #[track_caller]
    pub fn leader(&self) -> usize {
        eventually(START, "etcd has a leader", || self.running().find(|number| self.leads(*number)))
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|number| self.members[*number].child.is_some())
    }

    fn leads(&self, number: usize) -> bool {
        let said = self.ctl_at(&self.endpoints()[number], &["endpoint", "status", "-w", "json"]);
        let Ok(value) = serde_json::from_slice::<Value>(&said.stdout) else { return false };
        let status = &value[0]["Status"];
        let (leader, own) = (status["leader"].as_u64(), status["header"]["member_id"].as_u64());
        leader.is_some() && leader == own
    }

    #[track_caller]
    fn ctl_at(&self, endpoints: &str, arguments: &[&str]) -> Said {
        self.ctl_with(endpoints, arguments, b"")
    }

    #[track_caller]
    fn ctl_with(&self, endpoints: &str, arguments: &[&str], input: &[u8]) -> Said {
        // From the first member's place, whether it runs or not.
        let mut command = self.members[0].namespace.command(system("etcdctl").get_program());
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(endpoints);
        command.arg("--cacert").arg(self.ca());
        command.arg("--cert").arg(self.client_certificate()).arg("--key").arg(self.client_key());
        command.args(["--dial-timeout=2s", "--command-timeout=5s"]).args(arguments);
        run(command, input, CALL)
    }

    #[track_caller]
    fn start_all(&mut self) {
        (0..self.members.len()).for_each(|number| self.spawn(number));
        self.leader();
        eventually(START, "all members of etcd are in", || {
            self.ctl(&["endpoint", "health"]).status.success().then_some(())
        });
    }

    fn data(&self, number: usize) -> PathBuf {
        self.folder.join(format!("data{number}"))
    }

    fn pid(&self, number: usize) -> u32 {
        self.members[number].child.as_ref().expect("a running member").id()
    }

    #[track_caller]
    fn spawn(&mut self, number: usize) {
        let own = network::etcd_address(number);
        let (client, peer) = (format!("https://{own}:{CLIENT_PORT}"), format!("https://{own}:{PEER_PORT}"));
        let address =
            |number| format!("{}=https://{}:{PEER_PORT}", network::etcd(number), network::etcd_address(number));
        let all: Vec<String> = (0..self.members.len()).map(address).collect();
        let file = |name: &str| self.folder.join(name).display().to_string();
        let (certificate, key) = (file(&format!("member{number}.pem")), file(&format!("member{number}.key")));
        let (ca, data) = (file("ca.pem"), self.data(number).display().to_string());
        let initial = all.join(",");
        let (election, heartbeat) =
            (ELECTION_TIMEOUT.as_millis().to_string(), HEARTBEAT_INTERVAL.as_millis().to_string());
        let log = fs::OpenOptions::new().create(true).append(true).open(file(&format!("member{number}.log")));
        let log = log.expect("a file in a temporary folder");
        let mut command = self.members[number].namespace.command(system("etcd").get_program());
        for (name, value) in [
            ("name", network::etcd(number).as_str()),
            ("data-dir", &data),
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &initial),
            ("cert-file", &certificate),
            ("key-file", &key),
            ("trusted-ca-file", &ca),
            ("client-cert-auth", "true"),
            ("peer-cert-file", &certificate),
            ("peer-key-file", &key),
            ("peer-trusted-ca-file", &ca),
            ("peer-client-cert-auth", "true"),
            ("election-timeout", &election),
            ("heartbeat-interval", &heartbeat),
            ("logger", "zap"),
            ("log-level", "warn"),
        ] {
            command.arg(format!("--{name}={value}"));
        }
        command.args(self.quota_bytes.map(|bytes| format!("--quota-backend-bytes={bytes}")));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        self.members[number].child = Some(command.spawn().expect("etcd starts"));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for number in 0..self.members.len() {
                let log = fs::read_to_string(self.folder.join(format!("member{number}.log"))).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                eprintln!("--- etcd {number}, its last lines, the last one first ---\n{}", last.join("\n"));
            }
        }
        (0..self.members.len()).for_each(|number| self.kill(number));
    }
}

/// An authority for etcd alone, members' certificates by address, and a client's.
fn make_certificates(folder: &Path, members: usize) {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("the CA's key");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Propylon e2e etcd CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let certificate = params.self_signed(&key).expect("the CA's certificate");
    write(folder, "ca.pem", &certificate.pem());
    let issuer = Issuer::new(params, key);
    let issue = |name: &str, addresses: Vec<IpAddr>, uses: Vec<ExtendedKeyUsagePurpose>| {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = addresses.into_iter().map(SanType::IpAddress).collect();
        params.extended_key_usages = uses;
        write(folder, &format!("{name}.pem"), &params.signed_by(&key, &issuer).expect("a certificate").pem());
        write(folder, &format!("{name}.key"), &key.serialize_pem());
    };
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    for number in 0..members {
        // Members are clients too: of each other, and of themselves in etcd's gateway for HTTP and JSON.
        issue(&format!("member{number}"), vec![network::etcd_address(number).into()], vec![ServerAuth, ClientAuth]);
    }
    issue("client", vec![], vec![ClientAuth]);
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).expect("a file in a temporary folder");
}
