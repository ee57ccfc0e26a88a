//! A key server at work, and links to it that speak frames byte by byte.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
};
use rustix::process::Signal;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use crate::binaries;
use crate::program::{Said, finish, run, signal};
use crate::scratch::Scratch;
use crate::wait::{WAIT_MAX, holds};

/// Keys that every key server of a story has, as `keys/NAME.pem`; `NAME.crt` beside the folder is a certificate of each.
pub const KEYS: [&str; 4] = ["ec", "ec384", "ed", "rsa"];

/// The program, and what is said to it by its environment.
#[derive(Clone)]
pub struct Program {
    pub binary: PathBuf,
    pub environment: Vec<(&'static str, PathBuf)>,
}

impl Program {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.envs(self.environment.iter().cloned());
        command
    }
}

pub struct KeyServer {
    program: Program,
    child: Child,
    pub scratch: Scratch,
    stderr: Arc<Mutex<Vec<String>>>,
    killed: bool,
}

impl KeyServer {
    /// Starts one that has the [`KEYS`], with `more` after its configuration, and waits until it serves.
    #[track_caller]
    pub fn start(more: &str) -> KeyServer {
        KeyServer::start_as(ordinary(), KeyServer::files(), more)
    }

    /// What a key server needs, [`KEYS`] included.
    pub fn files() -> Scratch {
        let scratch = Scratch::new();
        make_files(&scratch);
        scratch
    }

    /// What a program says that does not start.
    #[track_caller]
    pub fn fails(program: &Program, scratch: &Scratch, more: &str) -> String {
        let path = scratch.write("keyserver.toml", configuration(more));
        let mut command = program.command();
        command.arg("run").arg("-c").arg(path);
        let said = run(command, b"", WAIT_MAX);
        assert!(!said.status.success(), "it started");
        said.stderr
    }

    /// Another one with the same files, and other lines after its configuration.
    #[track_caller]
    pub fn beside(&self, more: &str) -> KeyServer {
        let scratch = Scratch::new();
        fs::create_dir(scratch.join("keys")).expect("a folder");
        for folder in ["", "keys/"] {
            for entry in fs::read_dir(self.scratch.join(folder)).expect("a folder").flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                    let name = format!("{folder}{}", entry.file_name().to_string_lossy());
                    scratch.write(&name, fs::read(entry.path()).expect("a file that can be read"));
                }
            }
        }
        KeyServer::start_as(self.program.clone(), scratch, more)
    }

    #[track_caller]
    pub fn start_as(program: Program, scratch: Scratch, more: &str) -> KeyServer {
        let mut server = KeyServer::spawn(program, scratch, more);
        holds("the key server runs", || {
            let ended = server.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "the key server ended:\n{}", server.stderr().join("\n"));
            server.says(" runs")
        });
        server
    }

    #[track_caller]
    fn spawn(program: Program, scratch: Scratch, more: &str) -> KeyServer {
        let path = scratch.write("keyserver.toml", configuration(more));
        let mut command = program.command();
        command.arg("run").arg("-c").arg(path).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the key server starts");
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let (from, kept) = (child.stderr.take().expect("piped"), Arc::clone(&stderr));
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                kept.lock().expect("readers do not panic").push(line);
            }
        });
        KeyServer { program, child, scratch, stderr, killed: false }
    }

    pub fn stderr(&self) -> Vec<String> {
        self.stderr.lock().expect("readers do not panic").clone()
    }

    pub fn says(&self, what: &str) -> bool {
        self.stderr().iter().any(|line| line.contains(what))
    }

    #[track_caller]
    fn address_after(&self, words: &str) -> SocketAddr {
        let stderr = self.stderr();
        let address = stderr.iter().find_map(|line| line.split_once(words)?.1.parse().ok());
        address.unwrap_or_else(|| panic!("no \"{words}\" in:\n{}", stderr.join("\n")))
    }

    #[track_caller]
    pub fn address(&self) -> SocketAddr {
        self.address_after("listens at ")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    /// Ends it without a word.
    pub fn kill(&mut self) {
        self.killed = true;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end, which has to be a good one.
    #[track_caller]
    pub fn ends(&mut self) {
        let status = finish(&mut self.child, WAIT_MAX, "the key server ends");
        assert!(status.success(), "{status}:\n{}", self.stderr().join("\n"));
    }

    /// What the admin address says.
    #[track_caller]
    pub fn admin(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address_after("admin at http://")).expect("the admin address");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a limit");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request is sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    }

    /// The value of the line that begins with this.
    #[track_caller]
    pub fn metric(&self, line: &str) -> u64 {
        let text = self.admin("/metrics");
        let value = text.lines().find_map(|known| known.strip_prefix(line)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {line} in:\n{text}")).parse().expect("a number")
    }

    /// Resident memory in bytes.
    #[track_caller]
    pub fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a running server");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// SHA-1 over the public key, as the server itself says it.
    #[track_caller]
    pub fn ski(&self, key: &str) -> [u8; 20] {
        let said = self.command("keys", &["--json"]).ok();
        let keys: Vec<serde_json::Value> = serde_json::from_slice(&said.stdout).expect("a JSON array");
        let name = format!("keys/{key}.pem");
        let found = keys.iter().find(|known| known["file"].as_str().is_some_and(|file| file.ends_with(&name)));
        let hex = found.and_then(|found| found["ski"].as_str()).unwrap_or_else(|| panic!("no {name} in {keys:?}"));
        std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hexadecimal digits"))
    }

    /// Another command on the same configuration.
    #[track_caller]
    pub fn command(&self, name: &str, arguments: &[&str]) -> Said {
        let mut command = self.program.command();
        command.args([name, "-c"]).arg(self.scratch.join("keyserver.toml")).args(arguments);
        run(command, b"", WAIT_MAX)
    }

    /// `propylon-bench keyserver` with a key, every answer verified.
    #[track_caller]
    pub fn bench(&self, key: &str, operation: &str, more: &[&str]) -> Said {
        let mut command = Command::new(binaries::bench());
        command.args(["keyserver", "--target"]).arg(self.address().to_string());
        command.arg("--identity").arg(self.scratch.join("engine.pem")).arg("--ca").arg(self.scratch.join("ca.pem"));
        command.arg("--certificate").arg(self.scratch.join(&format!("{key}.crt")));
        command.args(["--op", operation, "--warmup", "50ms"]).args(more);
        run(command, b"", Duration::from_secs(60))
    }

    #[track_caller]
    pub fn link(&self) -> Link {
        self.link_as("engine.pem", rustls::DEFAULT_VERSIONS).expect("a link")
    }

    /// With this certificate; an error is the handshake's.
    pub fn link_as(&self, identity: &str, versions: &[&'static SupportedProtocolVersion]) -> io::Result<Link> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(self.scratch.join("ca.pem")).expect("the CA");
        roots.add(ca).expect("a usable CA");
        let builder = ClientConfig::builder_with_provider(default_provider().into())
            .with_protocol_versions(versions)
            .expect("versions that the provider knows")
            .with_root_certificates(roots);
        let path = self.scratch.join(identity);
        let config = if identity.is_empty() {
            builder.with_no_client_auth()
        } else {
            let chain = CertificateDer::pem_file_iter(&path).expect("a chain").map(|der| der.expect("a certificate"));
            let key = PrivateKeyDer::from_pem_file(&path).expect("a key");
            builder.with_client_auth_cert(chain.collect(), key).expect("an identity")
        };
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = ClientConnection::new(config.into(), name).expect("a client");
        let socket = TcpStream::connect(self.address())?;
        socket.set_read_timeout(Some(WAIT_MAX))?;
        socket.set_nodelay(true)?;
        let mut link = Link(StreamOwned::new(tls, socket));
        // In TLS 1.3 the server's verdict on our certificate comes after our handshake: a ping asks for it.
        link.send(&frame(0xf1, 0, &[]))?;
        link.receive()?;
        Ok(link)
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        let was_running = matches!(self.child.try_wait(), Ok(None));
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the key server's stderr ---\n{}", self.stderr().join("\n"));
        } else {
            assert!(!self.says("panicked at"), "the key server panicked:\n{}", self.stderr().join("\n"));
            assert!(
                was_running || self.killed || self.says(" ends"),
                "the key server died:\n{}",
                self.stderr().join("\n")
            );
        }
    }
}

pub struct Link(pub StreamOwned<ClientConnection, TcpStream>);

/// A reply as it came: the whole frame's length, ID, opcode, payload.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub bytes: usize,
    pub id: u32,
    pub opcode: u8,
    pub payload: Vec<u8>,
}

impl Link {
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.flush()
    }

    /// The next reply; an error if the server has ended the link instead.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut header = [0; 8];
        self.0.read_exact(&mut header)?;
        assert_eq!(header[..2], [1, 0], "the version of a reply");
        let mut body = vec![0; usize::from(u16::from_be_bytes([header[2], header[3]]))];
        self.0.read_exact(&mut body)?;
        let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let mut reply = Reply { bytes: 8 + body.len(), id, opcode: 0, payload: Vec::new() };
        let mut rest = body.as_slice();
        while let [tag, high, low, tail @ ..] = rest {
            let (data, tail) = tail.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            match tag {
                0x11 => reply.opcode = data[0],
                0x12 => reply.payload = data.to_vec(),
                0x20 => assert!(data.iter().all(|byte| *byte == 0), "padding is zeros"),
                other => panic!("a reply with an item {other:#x}"),
            }
            rest = tail;
        }
        Ok(reply)
    }

    #[track_caller]
    pub fn ask(&mut self, frame: &[u8]) -> Reply {
        self.send(frame).expect("a request is sent");
        self.receive().expect("a reply")
    }

    /// Whether the server ends the link, having said nothing more.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.0.read(&mut byte) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        }
    }
}

/// As it is built by default.
pub fn ordinary() -> Program {
    Program { binary: binaries::keyserver(), environment: Vec::new() }
}

/// A request without padding: opcode and whatever items follow it.
pub fn frame(opcode: u8, id: u32, items: &[(u8, &[u8])]) -> Vec<u8> {
    let mut body = vec![0x11, 0, 1, opcode];
    for (tag, data) in items {
        body.push(*tag);
        body.extend_from_slice(&u16::try_from(data.len()).expect("an item that fits").to_be_bytes());
        body.extend_from_slice(data);
    }
    framed(id, &body)
}

/// Any body in a frame.
pub fn framed(id: u32, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("a body that fits").to_be_bytes();
    [&[1, 0], length.as_slice(), &id.to_be_bytes(), body].concat()
}

fn configuration(more: &str) -> String {
    let mut text = String::new();
    if !more.contains("[server]") {
        text.push_str("[server]\nbind = \"127.0.0.1:0\"\nidentity = \"server.pem\"\nca = \"ca.pem\"\nworkers = 2\n");
    }
    if !more.contains("[keys]") {
        text.push_str("[keys]\npaths = [\"keys/\"]\n");
    }
    text.push_str("[admin]\nbind = \"127.0.0.1:0\"\n");
    text.push_str(more);
    text
}

/// A CA with a server's and two engines' certificates, another CA's engine, and the keys.
fn make_files(scratch: &Scratch) {
    let ca = authority("Propylon e2e engines");
    scratch.write("ca.pem", ca.pem());
    let server = ExtendedKeyUsagePurpose::ServerAuth;
    let engine = ExtendedKeyUsagePurpose::ClientAuth;
    let stranger = authority("Propylon e2e strangers");
    for (name, usage, ca) in
        [("server", &server, &ca), ("engine", &engine, &ca), ("other", &engine, &ca), ("stranger", &engine, &stranger)]
    {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let names = vec!["localhost".to_owned(), format!("{name}.test")];
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage.clone()];
        let chain = params.signed_by(&key, ca).expect("a certificate").pem();
        scratch.write(&format!("{name}.pem"), format!("{chain}{}", key.serialize_pem()));
    }
    fs::create_dir(scratch.join("keys")).expect("a folder");
    for (name, algorithm) in
        KEYS.into_iter().zip([&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519, &PKCS_RSA_SHA256])
    {
        write_key(scratch, name, KeyPair::generate_for(algorithm).expect("a key"));
    }
}

/// A key, by renaming, and its certificate.
pub fn write_key(scratch: &Scratch, name: &str, key: KeyPair) {
    let params = CertificateParams::new([format!("{name}.test")]).expect("names");
    scratch.write(&format!("{name}.crt"), params.self_signed(&key).expect("a certificate").pem());
    let whole: PathBuf = scratch.write("new.tmp", key.serialize_pem());
    fs::rename(whole, scratch.join(&format!("keys/{name}.pem"))).expect("the key's name");
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key")).expect("a CA")
}
