//! A key server for tests: mutual TLS, real keys, and the ways in which one can go wrong. A thread per connection.

use super::wire::{Frame, HEADER_BYTES, ITEM_HEADER_BYTES, status, tag};
use crate::scratch::ScratchDir;
use aws_lc_rs::digest::{self, Digest};
use aws_lc_rs::rsa::{Pkcs1PrivateDecryptingKey, PrivateDecryptingKey};
use aws_lc_rs::signature::{self, EcdsaKeyPair, Ed25519KeyPair, RsaEncoding, RsaKeyPair};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::PrivateKeyDer;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How it behaves.
#[derive(Clone, Copy)]
pub enum Behaviour {
    Honest,
    /// Replies to what came together in the reverse order.
    Reversed,
    /// Each nth result has a bit turned.
    Wrong(u64),
    /// Each nth request gets this error code.
    Refusing(u64, u8),
    /// Takes everything and says nothing.
    Silent,
    /// Does not answer each nth request.
    Forgetful(u64),
    /// Bytes that are no frame.
    Garbage,
    /// A frame of 64 KiB.
    Oversized,
    /// Answers to IDs that were never sent.
    Stray,
    /// Closes after n requests.
    Leaving(u64),
    /// Gives answers with something in the padding.
    Leaking,
}

pub struct TestServer {
    pub address: SocketAddr,
    files: ScratchDir,
    stopping: Arc<AtomicBool>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

/// State that the threads share.
struct Service {
    behaviour: Behaviour,
    config: Arc<ServerConfig>,
    ecdsa: EcdsaKeyPair,
    rsa: RsaKeyPair,
    decrypting: Pkcs1PrivateDecryptingKey,
    ed25519: Ed25519KeyPair,
    requests: AtomicU64,
}

/// The fields that are wanted of a request.
struct Wanted {
    id: u32,
    opcode: u8,
    payload: Vec<u8>,
}

impl TestServer {
    pub fn start(behaviour: Behaviour) -> Self {
        let files = ScratchDir::new().unwrap();
        let service = Arc::new(Service::new(behaviour, &files));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stopping = Arc::new(AtomicBool::new(false));
        let flag = stopping.clone();
        let acceptor = std::thread::spawn(move || {
            for socket in listener.incoming() {
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                let service = service.clone();
                // Ends with its connection, which the load ends.
                std::thread::spawn(move || service.serve(socket.unwrap()));
            }
        });
        Self { address, files, stopping, acceptor: Some(acceptor) }
    }

    /// `ca`, `identity`, `stranger` (of another CA), and the certificates `ec`, `rsa`, `ed25519`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(format!("{name}.pem"))
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        self.acceptor.take().unwrap().join().unwrap();
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn certify(&self, key: &KeyPair, usage: ExtendedKeyUsagePurpose) -> rcgen::Certificate {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        params.signed_by(key, &self.issuer).unwrap()
    }

    fn identity(&self) -> String {
        let key = KeyPair::generate().unwrap();
        self.certify(&key, ExtendedKeyUsagePurpose::ClientAuth).pem() + &key.serialize_pem()
    }
}

impl Service {
    fn new(behaviour: Behaviour, files: &ScratchDir) -> Self {
        let authority = Authority::new();
        let write = |name: &str, text: &str| std::fs::write(files.path().join(format!("{name}.pem")), text).unwrap();
        write("ca", &authority.certificate.pem());
        write("identity", &authority.identity());
        write("stranger", &Authority::new().identity());
        let key_of = |name: &str, algorithm| {
            let key = KeyPair::generate_for(algorithm).unwrap();
            write(name, &authority.certify(&key, ExtendedKeyUsagePurpose::ServerAuth).pem());
            key.serialize_der()
        };
        let ec = key_of("ec", &rcgen::PKCS_ECDSA_P256_SHA256);
        let rsa = key_of("rsa", &rcgen::PKCS_RSA_SHA256);
        let ed25519 = key_of("ed25519", &rcgen::PKCS_ED25519);
        Self {
            behaviour,
            config: server_config(&authority),
            ecdsa: EcdsaKeyPair::from_pkcs8(&signature::ECDSA_P256_SHA256_ASN1_SIGNING, &ec).unwrap(),
            rsa: RsaKeyPair::from_pkcs8(&rsa).unwrap(),
            decrypting: Pkcs1PrivateDecryptingKey::new(PrivateDecryptingKey::from_pkcs8(&rsa).unwrap()).unwrap(),
            ed25519: Ed25519KeyPair::from_pkcs8(&ed25519).unwrap(),
            requests: AtomicU64::new(0),
        }
    }

    fn serve(&self, socket: TcpStream) {
        let _ = socket.set_nodelay(true);
        let mut stream = StreamOwned::new(ServerConnection::new(self.config.clone()).unwrap(), socket);
        let mut received = Vec::new();
        let mut bytes = [0; 16 * 1024];
        // Any end of the connection is an end of the thread.
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            received.extend_from_slice(&bytes[..count]);
            let mut replies: Vec<Vec<u8>> = Vec::new();
            while let Some(wanted) = Wanted::take(&mut received) {
                let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
                if matches!(self.behaviour, Behaviour::Leaving(every) if number.is_multiple_of(every)) {
                    return;
                }
                replies.push(self.reply(number, &wanted));
            }
            if matches!(self.behaviour, Behaviour::Reversed) {
                replies.reverse();
            }
            if replies.iter().any(|reply| stream.write_all(reply).is_err()) {
                return;
            }
        }
    }

    fn reply(&self, number: u64, wanted: &Wanted) -> Vec<u8> {
        match self.behaviour {
            Behaviour::Silent => Vec::new(),
            Behaviour::Forgetful(every) if number.is_multiple_of(every) => Vec::new(),
            Behaviour::Garbage => b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            Behaviour::Oversized => [1, 0, 0xff, 0xff].into_iter().chain([0; 65_000]).collect(),
            Behaviour::Stray => frame(wanted.id ^ 0x8000_0000, status::SUCCESS, &self.result(wanted)),
            Behaviour::Refusing(every, code) if number.is_multiple_of(every) => {
                frame(wanted.id, status::ERROR, &[code])
            }
            Behaviour::Wrong(every) if number.is_multiple_of(every) => {
                let mut result = self.result(wanted);
                *result.last_mut().unwrap() ^= 1;
                frame(wanted.id, status::SUCCESS, &result)
            }
            Behaviour::Leaking => {
                let mut frame = frame(wanted.id, status::SUCCESS, &self.result(wanted));
                *frame.last_mut().unwrap() = b's';
                frame
            }
            _ if wanted.opcode == 0xF1 => frame(wanted.id, status::PONG, &wanted.payload),
            _ => frame(wanted.id, status::SUCCESS, &self.result(wanted)),
        }
    }

    fn result(&self, wanted: &Wanted) -> Vec<u8> {
        let digest = |algorithm| Digest::import_less_safe(&wanted.payload, algorithm).unwrap();
        match wanted.opcode {
            0x15 => self.ecdsa.sign_digest(&digest(&digest::SHA256)).unwrap().as_ref().to_vec(),
            0x05 => self.rsa_signature(&signature::RSA_PKCS1_SHA256, &digest(&digest::SHA256)),
            0x35 => self.rsa_signature(&signature::RSA_PSS_SHA256, &digest(&digest::SHA256)),
            0x37 => self.rsa_signature(&signature::RSA_PSS_SHA512, &digest(&digest::SHA512)),
            0x18 => self.ed25519.sign(&wanted.payload).as_ref().to_vec(),
            0x01 => self.raw_decryption(&wanted.payload),
            opcode => panic!("the tests do not use opcode {opcode:#04x}"),
        }
    }

    fn rsa_signature(&self, padding: &'static dyn RsaEncoding, digest: &Digest) -> Vec<u8> {
        let mut signature = vec![0; self.rsa.public_modulus_len()];
        self.rsa.sign_digest(padding, digest, &mut signature).unwrap();
        signature
    }

    /// The library takes the padding off; put back, with other filler, it is still a block of the right form.
    fn raw_decryption(&self, ciphertext: &[u8]) -> Vec<u8> {
        let mut plaintext = vec![0; self.decrypting.min_output_size()];
        let message = self.decrypting.decrypt(ciphertext, &mut plaintext).unwrap();
        let mut block = vec![0xAB; ciphertext.len() - message.len()];
        block[..2].copy_from_slice(&[0, 2]);
        *block.last_mut().unwrap() = 0;
        block.extend_from_slice(message);
        block
    }
}

impl Wanted {
    /// The next whole request, if there is one. Knows nothing of errors: the load's requests have golden bytes.
    fn take(received: &mut Vec<u8>) -> Option<Self> {
        let length = usize::from(u16::from_be_bytes([*received.get(2)?, *received.get(3)?]));
        if received.len() < HEADER_BYTES + length {
            return None;
        }
        let frame: Vec<u8> = received.drain(..HEADER_BYTES + length).collect();
        let mut wanted =
            Self { id: u32::from_be_bytes(frame[4..8].try_into().unwrap()), opcode: 0, payload: Vec::new() };
        let mut items = &frame[HEADER_BYTES..];
        while !items.is_empty() {
            let length = usize::from(u16::from_be_bytes([items[1], items[2]]));
            let (item, rest) = items.split_at(ITEM_HEADER_BYTES + length);
            match item[0] {
                tag::OPCODE => wanted.opcode = item[ITEM_HEADER_BYTES],
                tag::PAYLOAD => wanted.payload = item[ITEM_HEADER_BYTES..].to_vec(),
                _ => {}
            }
            items = rest;
        }
        Some(wanted)
    }
}

fn frame(id: u32, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut frame = Frame::begin(&mut bytes, id);
    frame.item(tag::OPCODE, &[opcode]);
    frame.item_unless_empty(tag::PAYLOAD, payload);
    frame.finish();
    bytes
}

fn server_config(authority: &Authority) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.der().clone()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = authority.certify(&key, ExtendedKeyUsagePurpose::ServerAuth);
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()));
    Arc::new(config.unwrap())
}
