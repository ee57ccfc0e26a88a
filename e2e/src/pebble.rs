//! Pebble: Let's Encrypt's authority for tests, with a name server that leads every name to 127.0.0.1.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::certificates::Certificates;
use crate::program::{curl, finish, signal};
use crate::scratch::Scratch;
use crate::wait::holds;

pub struct Pebble {
    names: Child,
    authority: Option<Child>,
    scratch: Scratch,
    address: SocketAddr,
    management: SocketAddr,
    asked: SocketAddr,
    options: Options,
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

impl Pebble {
    #[track_caller]
    pub fn start(options: Options) -> Pebble {
        let (asked, telling) = (free(), free());
        let mut command = Command::new("pebble-challtestsrv");
        command.args([
            "-defaultIPv4",
            "127.0.0.1",
            "-defaultIPv6",
            "",
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
        ]);
        command.arg("-dns01").arg(asked.to_string()).arg("-management").arg(telling.to_string());
        let names = quiet(&mut command);
        let mut pebble = Pebble {
            names,
            authority: None,
            scratch: Scratch::new(),
            address: free(),
            management: free(),
            asked,
            options,
        };
        holds("the name server answers", || TcpStream::connect(telling).is_ok());
        pebble.rise();
        pebble
    }

    /// It is there, and has forgotten all accounts and orders of an earlier life, and its root.
    #[track_caller]
    pub fn rise(&mut self) {
        let certificate = Certificates::shared().ec();
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
        let mut command = Command::new("pebble");
        command.arg("-config").arg(config).arg("-dnsserver").arg(self.asked.to_string());
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        command.env("PEBBLE_WFE_NONCEREJECT", rejects.to_string());
        self.authority = Some(quiet(&mut command));
        let address = self.address;
        holds("pebble accepts", || TcpStream::connect(address).is_ok());
    }

    /// It is gone.
    pub fn fall(&mut self) {
        self.authority.take().into_iter().for_each(end);
    }

    /// The URL of its directory. Its certificate is of the CA of all stories.
    pub fn directory(&self) -> String {
        format!("https://localhost:{}/dir", self.address.port())
    }

    /// A PEM file with its root.
    #[track_caller]
    pub fn root(&self) -> PathBuf {
        let url = format!("https://localhost:{}/roots/0", self.management.port());
        let pem = curl(&[&url]).ok().stdout;
        fs::create_dir_all(self.scratch.path()).expect("a folder");
        self.scratch.write("root.pem", pem)
    }
}

fn quiet(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
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
