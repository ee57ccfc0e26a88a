//! A CA and certificates of both key types, made once per test process.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SerialNumber, SignatureAlgorithm, date_time_ymd,
};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

use crate::scratch::Scratch;
use crate::wait::WAIT_MAX;

/// Names that every certificate stands for.
pub const NAMES: &[&str] = &["localhost", "shop.test", "*.shop.test", "127.0.0.1"];

pub struct Certificates {
    scratch: Scratch,
    authority: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// The leaf that a new client gets that asks for this name, and verifies that it is for it.
pub fn leaf(address: SocketAddr, name: &str, config: &Arc<ClientConfig>) -> io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(WAIT_MAX))?;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut tls = ClientConnection::new(Arc::clone(config), name).expect("a client");
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    Ok(tls.peer_certificates().expect("certificates")[0].to_vec())
}

/// The first certificate of a file.
pub fn leaf_of(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate").to_vec()
}

impl Certificates {
    pub fn shared() -> &'static Certificates {
        // Its folder outlives the process, and the next one's first `Scratch` removes it.
        static SHARED: OnceLock<Certificates> = OnceLock::new();
        SHARED.get_or_init(Certificates::make)
    }

    fn make() -> Certificates {
        let scratch = Scratch::new();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("the CA's key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Propylon e2e CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("the CA's certificate");
        scratch.write("ca.pem", certificate.pem());
        scratch.write("ca.key", key.serialize_pem());
        let authority = certificate.der().clone();
        let issuer = Issuer::new(params, key);
        let certificates = Certificates { scratch, authority, issuer };
        for (name, algorithm) in [("ec", &PKCS_ECDSA_P256_SHA256), ("rsa", &PKCS_RSA_SHA256)] {
            certificates.scratch.write(&format!("{name}.pem"), certificates.issue(NAMES, algorithm));
        }
        certificates
    }

    /// A new certificate of the CA's and its key, in one PEM.
    pub fn issue(&self, names: &[&str], algorithm: &'static SignatureAlgorithm) -> String {
        let key = KeyPair::generate_for(algorithm).expect("a server's key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names for a certificate");
        params.distinguished_name.push(DnType::CommonName, "localhost");
        let chain = params.signed_by(&key, &self.issuer).expect("a server's certificate").pem();
        format!("{chain}{}", key.serialize_pem())
    }

    /// The same from the first day of one year to that of another.
    pub fn issue_dated(&self, names: &[&str], (from, to): (i32, i32)) -> String {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a server's key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names for a certificate");
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let chain = params.signed_by(&key, &self.issuer).expect("a server's certificate").pem();
        format!("{chain}{}", key.serialize_pem())
    }

    /// The same from one moment to another.
    pub fn issue_between(
        &self,
        names: &[&str],
        algorithm: &'static SignatureAlgorithm,
        (from, to): (SystemTime, SystemTime),
    ) -> String {
        let key = KeyPair::generate_for(algorithm).expect("a server's key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names for a certificate");
        (params.not_before, params.not_after) = (from.into(), to.into());
        let chain = params.signed_by(&key, &self.issuer).expect("a server's certificate").pem();
        format!("{chain}{}", key.serialize_pem())
    }

    /// A revocation list of the CA's that names nobody, and says when the next one is due.
    pub fn revocation_list(&self, (this_update, next_update): (SystemTime, SystemTime)) -> String {
        let params = CertificateRevocationListParams {
            this_update: this_update.into(),
            next_update: next_update.into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).expect("a list").pem().expect("PEM")
    }

    /// The CA's key, for a story that needs more of it than certificates.
    pub fn ca_key(&self) -> PathBuf {
        self.scratch.join("ca.key")
    }

    pub fn ca(&self) -> PathBuf {
        self.scratch.join("ca.pem")
    }

    pub fn ec(&self) -> PathBuf {
        self.scratch.join("ec.pem")
    }

    pub fn rsa(&self) -> PathBuf {
        self.scratch.join("rsa.pem")
    }

    /// The `[tls.public]` table of an engine that has both.
    pub fn profile(&self) -> String {
        format!("[tls.public]\ncertificates = [\"{}\", \"{}\"]\n", self.ec().display(), self.rsa().display())
    }

    /// A rustls client that trusts the CA, without resumption.
    pub fn client(&self) -> Arc<ClientConfig> {
        static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
        Arc::clone(CONFIG.get_or_init(|| {
            let mut config = self.client_for(rustls::DEFAULT_VERSIONS);
            config.resumption = Resumption::disabled();
            Arc::new(config)
        }))
    }

    /// The same for certain versions of TLS, with resumption.
    pub fn client_for(&self, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).expect("a usable CA");
        let mut config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(versions)
            .expect("versions that the provider knows")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }
}
