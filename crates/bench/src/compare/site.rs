//! The site that a program serves in a measurement: its files and addresses, and what its configuration must have.

use super::front::Front;
use super::setting::Setting;
use crate::failure::Outcome;
use crate::scratch::ScratchDir;
use crate::{certificates, machine};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Name in the certificates and in the clients' server name extension.
pub const SITE_NAME: &str = "bench.test";
/// Path that the proxy answers itself.
pub const OWN_PATH: &str = "/ok";
/// In the order of preference.
const CURVES: &str = "X25519:P-256:P-384";
const CURVES_WITH_MLKEM: &str = "X25519MLKEM768:X25519:P-256:P-384";

/// A need of a row in a program's configuration, beyond what all of them have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    Nothing,
    /// The group X25519MLKEM768.
    Mlkem,
    /// A listener that hands on bytes.
    Relay,
    /// HTTP/2 for clients.
    Http2,
    /// TLS to the origin.
    TlsOrigin,
    /// HTTP/2 to the origin.
    Http2Origin,
    /// HTTP/2 for clients and to the origin.
    Http2Throughout,
    /// Work on requests and responses.
    Front(Front),
}

/// The files and addresses for one run of one proxy, and what the work needs of it.
pub struct Site {
    pub directory: PathBuf,
    pub plain: SocketAddr,
    pub tls: SocketAddr,
    pub origin: SocketAddr,
    /// Origins beside the first one; only Propylon's configuration names them.
    pub more_origins: Vec<SocketAddr>,
    /// Keys of Propylon's configuration beside its own.
    pub settings: Vec<Setting>,
    pub workers: usize,
    /// PEM files with chain and key.
    pub certificates: Vec<PathBuf>,
    /// In the order of preference, separated by colons.
    pub curves: &'static str,
    pub is_relay: bool,
    /// HTTP/2 is offered by ALPN, before HTTP/1.1.
    pub is_http2: bool,
    /// The origin speaks HTTP/2, without TLS (prior knowledge).
    pub is_origin_http2: bool,
    /// The origin speaks TLS, with a certificate for `SITE_NAME` that this CA signed.
    pub origin_ca: Option<PathBuf>,
    /// Done to requests and responses that are handed on.
    pub front: Option<Front>,
}

impl Needs {
    pub fn has_http2_origin(self) -> bool {
        matches!(self, Self::Http2Origin | Self::Http2Throughout)
    }
}

impl Site {
    /// As `at`, with what the work needs.
    pub fn for_needs(directory: &Path, origin: SocketAddr, needs: Needs) -> Outcome<Self> {
        Ok(Self {
            curves: if needs == Needs::Mlkem { CURVES_WITH_MLKEM } else { CURVES },
            is_relay: needs == Needs::Relay,
            is_http2: matches!(needs, Needs::Http2 | Needs::Http2Throughout),
            is_origin_http2: needs.has_http2_origin(),
            origin_ca: (needs == Needs::TlsOrigin).then(|| directory.join("ca.pem")),
            front: if let Needs::Front(front) = needs { Some(front) } else { None },
            ..Self::at(directory, origin)?
        })
    }

    /// On free ports, with its files in `directory`; one worker, an EC and an RSA certificate.
    pub fn at(directory: &Path, origin: SocketAddr) -> Outcome<Self> {
        let certificates = ["ec", "rsa"].map(|key| directory.join(format!("{SITE_NAME}.{key}.pem")));
        Self::with(directory, origin, 1, certificates.to_vec())
    }

    /// The same with so many workers and these certificates: PEM files with chain and key.
    pub fn with(directory: &Path, origin: SocketAddr, workers: usize, certificates: Vec<PathBuf>) -> Outcome<Self> {
        let ports = machine::free_ports(2)?;
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self {
            directory: directory.to_owned(),
            plain: local(ports[0]),
            tls: local(ports[1]),
            origin,
            more_origins: Vec::new(),
            settings: Vec::new(),
            workers,
            certificates,
            curves: CURVES,
            is_relay: false,
            is_http2: false,
            is_origin_http2: false,
            origin_ca: None,
            front: None,
        })
    }

    pub fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// For `SITE_NAME`, EC and RSA.
pub fn write_certificates(scratch: &ScratchDir) -> Outcome<()> {
    certificates::write(&certificates::Arguments {
        out: scratch.path().to_owned(),
        names: vec![SITE_NAME.to_owned()],
        keys: vec![certificates::KeyType::Ec, certificates::KeyType::Rsa],
        count: None,
        days: 7,
        split: false,
        keep_ca_key: false,
        force: false,
        json: None,
    })?;
    Ok(())
}
