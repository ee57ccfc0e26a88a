//! Certificates in a temporary directory, and a client on the other end of two byte vectors.
#![allow(dead_code)] // every test file uses its own part

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use propylon_config::{At, Certificate, CertificateSource, KeyType, TlsPolicy, TlsProfile};
use propylon_tls::{Acceptor, Failure, Profile, Session, Step, Tickets};
use rcgen::{CertificateParams, KeyPair, SignatureAlgorithm};
use rustls::CertificateCompressionAlgorithm;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::compress::{CertDecompressor, DecompressionFailed};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion};

pub const ALPN: &[&[u8]] = &[b"h2", b"http/1.1"];
pub const NAME: &str = "shop.example";

/// Removed when dropped.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("propylon-tls-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn key(algorithm: &'static SignatureAlgorithm) -> KeyPair {
    KeyPair::generate_for(algorithm).unwrap()
}

/// A self-signed certificate and its key in one PEM.
pub fn pem(names: &[&str], key: &KeyPair) -> String {
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let certificate = CertificateParams::new(names).unwrap().self_signed(key).unwrap();
    certificate.pem() + &key.serialize_pem()
}

pub fn ec(names: &[&str]) -> String {
    pem(names, &key(&rcgen::PKCS_ECDSA_P256_SHA256))
}

pub fn rsa(names: &[&str]) -> String {
    pem(names, &KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap())
}

pub fn tls_profile(paths: &[&Path]) -> TlsProfile {
    TlsProfile {
        name: "public".into(),
        certificates: paths
            .iter()
            .enumerate()
            .map(|(index, path)| Certificate {
                source: CertificateSource::Path(path.to_path_buf()),
                ocsp: None,
                default: false,
                uploaded: false,
                at: At { line: index as u32 + 1, column: 1, length: 1 },
            })
            .collect(),
        policy: TlsPolicy::Intermediate,
        prefer: vec![KeyType::Ecdsa, KeyType::Rsa],
        strict_sni: false,
        watch: None,
        certificate_compression: true,
        resumption: Default::default(),
        client_auth: None,
        ja4: false,
        signer: None,
        allow_world_readable_keys: false,
        at: At { line: 99, column: 1, length: 1 },
    }
}

pub fn load(profile: &TlsProfile) -> Profile {
    match Profile::load(profile, ALPN) {
        Ok((profile, findings)) => {
            assert_eq!(findings, [], "no warnings expected");
            profile
        }
        Err(findings) => panic!("{findings:#?}"),
    }
}

/// One profile with an EC and an RSA certificate for `NAME`.
pub fn profile() -> Profile {
    let directory = Directory::new();
    let ec = directory.write("ec.pem", ec(&[NAME]));
    let rsa = directory.write("rsa.pem", rsa(&[NAME]));
    load(&tls_profile(&[&ec, &rsa]))
}

pub fn acceptor() -> Acceptor {
    profile().acceptor(&Arc::new(Tickets::new()))
}

/// Capabilities of a client.
pub struct Client {
    pub provider: CryptoProvider,
    pub versions: Vec<&'static SupportedProtocolVersion>,
    pub schemes: Vec<SignatureScheme>,
    pub alpn: Vec<Vec<u8>>,
}

pub const EC_SCHEMES: &[SignatureScheme] =
    &[SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ECDSA_NISTP384_SHA384];
pub const RSA_SCHEMES: &[SignatureScheme] = &[SignatureScheme::RSA_PSS_SHA256, SignatureScheme::RSA_PKCS1_SHA256];

impl Client {
    pub fn new() -> Client {
        Client {
            provider: aws_lc_rs::default_provider(),
            versions: rustls::ALL_VERSIONS.to_vec(),
            schemes: [EC_SCHEMES, RSA_SCHEMES, &[SignatureScheme::ED25519, SignatureScheme::ECDSA_NISTP521_SHA512]]
                .concat(),
            alpn: Vec::new(),
        }
    }

    pub fn tls12() -> Client {
        Client { versions: vec![&rustls::version::TLS12], ..Client::new() }
    }

    pub fn tls13() -> Client {
        Client { versions: vec![&rustls::version::TLS13], ..Client::new() }
    }

    pub fn config(self) -> Arc<ClientConfig> {
        let verifier = Arc::new(TrustAll(self.schemes));
        let mut config = ClientConfig::builder_with_provider(Arc::new(self.provider))
            .with_protocol_versions(&self.versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = self.alpn;
        Arc::new(config)
    }
}

/// A client's way to read compressed certificates.
#[derive(Debug)]
pub struct Decompressor(pub CertificateCompressionAlgorithm);

impl CertDecompressor for Decompressor {
    fn decompress(&self, input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
        let mut plain = Vec::new();
        match self.0 {
            CertificateCompressionAlgorithm::Brotli => {
                brotli::BrotliDecompress(&mut &*input, &mut plain).map_err(|_| DecompressionFailed)?;
            }
            _ => plain = miniz_oxide::inflate::decompress_to_vec_zlib(input).map_err(|_| DecompressionFailed)?,
        }
        if plain.len() != output.len() {
            return Err(DecompressionFailed);
        }
        output.copy_from_slice(&plain);
        Ok(())
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        self.0
    }
}

pub const BROTLI: &dyn CertDecompressor = &Decompressor(CertificateCompressionAlgorithm::Brotli);
pub const ZLIB: &dyn CertDecompressor = &Decompressor(CertificateCompressionAlgorithm::Zlib);

/// A leaf, its issuer and the issuer's, as long as those of public authorities.
pub fn long_chain() -> String {
    use rcgen::{BasicConstraints, CertifiedIssuer, DnType, IsCa};
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "Authority of Certificates, Incorporated");
        params.distinguished_name.push(DnType::CountryName, "US");
        params
    };
    let rsa = || KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
    let root = CertifiedIssuer::self_signed(authority("Root R1"), rsa()).unwrap();
    let middle = CertifiedIssuer::signed_by(authority("Server CA X1"), rsa(), &root).unwrap();
    let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let names: Vec<String> = [NAME, "www.shop.example", "api.shop.example"].map(String::from).to_vec();
    let mut leaf = CertificateParams::new(names).unwrap();
    leaf.distinguished_name.push(DnType::CommonName, NAME);
    let leaf = leaf.signed_by(&key, &middle).unwrap();
    leaf.pem() + &middle.pem() + &root.pem() + &key.serialize_pem()
}

/// Checks signatures, and trusts every certificate.
#[derive(Debug)]
struct TrustAll(Vec<SignatureScheme>);

impl ServerCertVerifier for TrustAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

/// Plaintext, whether the client has ended, and the session's answer.
pub type Heard = (Vec<u8>, bool, Vec<u8>);

/// A session and its client, with what is on the way to the session.
pub struct Dialogue {
    pub session: Session,
    pub client: ClientConnection,
    /// Received by the server and not consumed.
    pub received: Vec<u8>,
    pub steps: Vec<Step>,
    /// Plaintext that the client has received.
    pub downloaded: Vec<u8>,
}

impl Dialogue {
    pub fn new(acceptor: &Acceptor, config: &Arc<ClientConfig>, name: &str) -> Dialogue {
        let name = ServerName::try_from(name.to_string()).unwrap();
        Dialogue {
            session: acceptor.accept(),
            client: ClientConnection::new(config.clone(), name).unwrap(),
            received: Vec::new(),
            steps: Vec::new(),
            downloaded: Vec::new(),
        }
    }

    /// A whole handshake.
    pub fn established(acceptor: &Acceptor, config: &Arc<ClientConfig>) -> Dialogue {
        let mut dialogue = Dialogue::new(acceptor, config, NAME);
        dialogue.shake().unwrap();
        dialogue
    }

    /// Bytes that the client wants to send.
    pub fn client_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Server name that the client asked for.
    pub fn asked_for(&self) -> Option<&str> {
        self.session.hello_info()?.server_name.as_deref()
    }

    pub fn deliver(&mut self, mut bytes: &[u8]) -> Result<(), rustls::Error> {
        while !bytes.is_empty() {
            self.client.read_tls(&mut bytes).unwrap();
            self.client.process_new_packets()?;
            let _ = self.client.reader().read_to_end(&mut self.downloaded); // ends with WouldBlock
        }
        Ok(())
    }

    /// Takes the handshake to its end.
    pub fn shake(&mut self) -> Result<(), Failure> {
        loop {
            let bytes = self.client_bytes();
            let (step, out) = self.feed(&bytes)?;
            let refused = self.deliver(&out).is_err();
            match step {
                Step::Done if !refused => return Ok(()),
                _ => assert!(!bytes.is_empty() || !out.is_empty(), "nobody has anything to say"),
            }
        }
    }

    /// Shows the session some bytes in its handshake.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(Step, Vec<u8>), Failure> {
        self.received.extend_from_slice(bytes);
        let mut out = Vec::new();
        let (consumed, step) = self.session.handshake(&mut self.received, &mut out)?;
        self.received.drain(..consumed);
        self.steps.push(step);
        Ok((step, out))
    }

    /// Plaintext from the client, sent in pieces of `chunk` bytes. Returns what the session made of it.
    pub fn upload(&mut self, plain: &[u8], chunk: usize) -> Vec<u8> {
        self.client.set_buffer_limit(None);
        self.client.writer().write_all(plain).unwrap();
        let bytes = self.client_bytes();
        let mut got = Vec::new();
        for piece in bytes.chunks(chunk) {
            let (plain, _, out) = self.open(piece).unwrap();
            got.extend(plain);
            self.deliver(&out).unwrap();
        }
        got
    }

    /// Gives the session some bytes.
    pub fn open(&mut self, bytes: &[u8]) -> Result<Heard, (Failure, Vec<u8>)> {
        const ROOM: usize = 7;
        self.received.extend_from_slice(bytes);
        let mut buffer = vec![0xee; ROOM];
        buffer.extend_from_slice(&self.received);
        let end = buffer.len();
        let mut out = Vec::new();
        match self.session.open(&mut buffer, ROOM..end, &mut out) {
            Ok(opened) => {
                self.received = buffer[ROOM + opened.consumed..].to_vec();
                Ok((buffer[..opened.plain].to_vec(), opened.end, out))
            }
            Err(failure) => Err((failure, out)),
        }
    }

    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.session.sealed_len(plain.len())];
        let len = self.session.seal(plain, &mut out);
        out.truncate(len);
        out
    }

    /// Plaintext to the client. Returns what the client made of it.
    pub fn download(&mut self, plain: &[u8]) -> Vec<u8> {
        let sealed = self.seal(plain);
        for piece in sealed.chunks(4096) {
            self.deliver(piece).unwrap();
        }
        std::mem::take(&mut self.downloaded)
    }
}
