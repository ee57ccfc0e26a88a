//! Pebble: Let's Encrypt's authority for tests, with a name server that leads every name to one address.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::certificates::Certificates;
use crate::program::{finish, run, signal};
use crate::scratch::Scratch;
use crate::wait::{WAIT_MAX, holds};

pub struct Pebble {
    names: Child,
    authority: Option<Child>,
    scratch: Scratch,
    address: SocketAddr,
    management: SocketAddr,
    asked: SocketAddr,
    options: Options,
    place: Place,
}

/// Place where it runs: with the story, or in a network namespace.
pub struct Place {
    /// A program that runs there.
    pub command: Box<dyn Fn(&str) -> Command>,
    pub address: Ipv4Addr,
    /// Every name is of this address.
    pub named: Ipv4Addr,
}

/// What differs among stories.
#[derive(Clone, Copy)]
pub struct Options {
    /// Where it asks by http-01 and by tls-alpn-01.
    pub http: u16,
    pub tls: u16,
    /// How long its certificates live.
    pub validity_seconds: u64,
    /// Only accounts that are bound to one it has otherwise are taken: `kid-1` with this key, in base64url.
    pub external: Option<&'static str>,
    /// Percent of good nonces that it takes for bad.
    pub rejects: u8,
}

impl Options {
    pub fn new(http: SocketAddr, tls: SocketAddr) -> Options {
        Options { http: http.port(), tls: tls.port(), validity_seconds: 90 * 24 * 3600, external: None, rejects: 5 }
    }
}

/// An address that is free now.
pub fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port")
}

impl Place {
    /// Where the story is.
    fn here() -> Place {
        Place {
            command: Box::new(|program| Command::new(program)),
            address: Ipv4Addr::LOCALHOST,
            named: Ipv4Addr::LOCALHOST,
        }
    }

    /// An address there that is free here, where nobody takes ports that are not free there.
    fn free(&self) -> SocketAddr {
        (self.address, free().port()).into()
    }

    fn is_open(&self, address: SocketAddr) -> bool {
        if self.address.is_loopback() {
            return TcpStream::connect(address).is_ok();
        }
        let mut command = (self.command)("bash");
        command.args(["-c", "exec 3<> /dev/tcp/$0/$1"]).arg(address.ip().to_string()).arg(address.port().to_string());
        run(command, b"", WAIT_MAX).status.success()
    }

    /// Its name in the authority's certificate.
    fn host(&self) -> String {
        if self.address.is_loopback() { "localhost".to_owned() } else { self.address.to_string() }
    }
}

impl Pebble {
    #[track_caller]
    pub fn start(options: Options) -> Pebble {
        Pebble::start_at(Place::here(), options)
    }

    #[track_caller]
    pub fn start_at(place: Place, options: Options) -> Pebble {
        let (asked, telling) = (place.free(), place.free());
        let scratch = Scratch::new();
        let mut command = (place.command)("pebble-challtestsrv");
        command.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""]);
        command.arg("-defaultIPv4").arg(place.named.to_string());
        command.arg("-dns01").arg(asked.to_string()).arg("-management").arg(telling.to_string());
        let names = started(&mut command, Stdio::null());
        let (address, management) = (place.free(), place.free());
        let mut pebble = Pebble { names, authority: None, scratch, address, management, asked, options, place };
        holds("the name server answers", || pebble.place.is_open(telling));
        pebble.rise();
        pebble
    }

    /// It is there, and has forgotten all accounts and orders of an earlier life, and its root.
    #[track_caller]
    pub fn rise(&mut self) {
        let pem = Certificates::shared().issue(&[&self.place.host()], &rcgen::PKCS_ECDSA_P256_SHA256);
        let certificate = self.scratch.write("authority.pem", pem);
        let Options { http, tls, validity_seconds, external, rejects } = self.options;
        let keys = external.map_or_else(String::new, |key| format!("\"kid-1\": \"{key}\""));
        let config = format!(
            "{{\"pebble\": {{\"listenAddress\": \"{}\", \"managementListenAddress\": \"{}\", \"certificate\": {certificate:?}, \
             \"privateKey\": {certificate:?}, \"httpPort\": {http}, \"tlsPort\": {tls}, \"ocspResponderURL\": \"\", \
             \"certificateValidityPeriod\": {validity_seconds}, \"externalAccountBindingRequired\": {}, \
             \"externalAccountMACKeys\": {{{keys}}}}}}}",
            self.address,
            self.management,
            external.is_some(),
        );
        let config = self.scratch.write("pebble.json", config);
        let log = File::create(self.log_path()).expect("a log");
        let mut command = (self.place.command)("pebble");
        command.arg("-config").arg(config).arg("-dnsserver").arg(self.asked.to_string());
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        command.env("PEBBLE_WFE_NONCEREJECT", rejects.to_string());
        self.authority = Some(started(&mut command, log.into()));
        holds("pebble accepts", || self.place.is_open(self.address));
    }

    /// Lines of its log since it has risen last.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.join("pebble.log")
    }

    /// It is gone.
    pub fn fall(&mut self) {
        self.authority.take().into_iter().for_each(end);
    }

    /// The URL of its directory. Its certificate is of the CA of all stories.
    pub fn directory(&self) -> String {
        format!("https://{}:{}/dir", self.place.host(), self.address.port())
    }

    /// A PEM file with its root.
    #[track_caller]
    pub fn root(&self) -> PathBuf {
        let url = format!("https://{}:{}/roots/0", self.place.host(), self.management.port());
        let mut command = (self.place.command)("curl");
        command.args(["--silent", "--show-error", "--ipv4", "--noproxy", "*", "--cacert"]);
        command.arg(Certificates::shared().ca()).arg(url);
        let pem = run(command, b"", WAIT_MAX).ok().stdout;
        fs::create_dir_all(self.scratch.path()).expect("a folder");
        self.scratch.write("root.pem", pem)
    }
}

fn started(command: &mut Command, log: Stdio) -> Child {
    command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; `make test` installs it"))
}

fn end(mut child: Child) {
    if let Ok(None) = child.try_wait() {
        signal(child.id(), Signal::TERM);
    }
    finish(&mut child, Duration::from_secs(10), "it ends");
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.fall();
        if let Ok(None) = self.names.try_wait() {
            signal(self.names.id(), Signal::TERM);
        }
        finish(&mut self.names, Duration::from_secs(10), "the name server ends");
    }
}
