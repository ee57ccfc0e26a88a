//! The library's cipher suites, with our key schedule, and with capture of the record keys.
//!
//! An established session leaves the library, and takes its keys along. Asking the library for them would derive them a
//! second time.

use std::sync::LazyLock;

use rustls::crypto::aws_lc_rs::cipher_suite::*;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, KeyBlockShape, MessageDecrypter, MessageEncrypter,
    OutboundOpaqueMessage, OutboundPlainMessage, Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::{
    CipherSuite, CipherSuiteCommon, ConnectionTrafficSecrets, Error, SupportedCipherSuite, Tls12CipherSuite,
    Tls13CipherSuite,
};

use super::captured;
use crate::provider::key_schedule::HkdfSha256;
use crate::records::secrets::RecordKey;

/// All suites, in order of preference.
pub(crate) fn all() -> Vec<SupportedCipherSuite> {
    static ALL: LazyLock<Vec<SupportedCipherSuite>> = LazyLock::new(|| {
        let stock = [
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ];
        stock.into_iter().map(capturing_suite).collect()
    });
    ALL.clone()
}

/// The library wants suites that live as long as the process; there are nine, made once.
fn capturing_suite(stock: SupportedCipherSuite) -> SupportedCipherSuite {
    match stock {
        SupportedCipherSuite::Tls13(stock) => {
            let hkdf_provider = match stock.common.suite {
                CipherSuite::TLS13_AES_256_GCM_SHA384 => stock.hkdf_provider,
                _ => &HkdfSha256,
            };
            let aead_alg = Box::leak(Box::new(CapturingAead(stock.aead_alg)));
            let common = common(&stock.common);
            let suite = Tls13CipherSuite { common, hkdf_provider, aead_alg, quic: None };
            SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)))
        }
        SupportedCipherSuite::Tls12(stock) => {
            let aead_alg = Box::leak(Box::new(CapturingAead(stock.aead_alg)));
            let Tls12CipherSuite { ref common, prf_provider, kx, sign, .. } = *stock;
            let suite = Tls12CipherSuite { common: self::common(common), prf_provider, kx, sign, aead_alg };
            SupportedCipherSuite::Tls12(Box::leak(Box::new(suite)))
        }
    }
}

fn common(stock: &CipherSuiteCommon) -> CipherSuiteCommon {
    CipherSuiteCommon { ..*stock }
}

/// AEAD that records each key before it hands it on.
struct CapturingAead<A: ?Sized + 'static>(&'static A);

impl Tls13AeadAlgorithm for CapturingAead<dyn Tls13AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        captured::record(|captured| captured.keys.sealing = RecordKey::new(key.as_ref(), iv.as_ref()));
        Box::new(SequenceCounter(self.0.encrypter(key, iv)))
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        captured::record(|captured| captured.keys.opening = RecordKey::new(key.as_ref(), iv.as_ref()));
        Box::new(SequenceCounter(self.0.decrypter(key, iv)))
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(&self, key: AeadKey, iv: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }
}

impl Tls12AeadAlgorithm for CapturingAead<dyn Tls12AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        // With AES-GCM four bytes stay as they are (RFC 5288 §3); the other eight start at a value of the library's.
        let start = [iv, extra].concat();
        captured::record(|captured| captured.keys.sealing = RecordKey::new(key.as_ref(), &start));
        Box::new(SequenceCounter(self.0.encrypter(key, iv, extra)))
    }

    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        captured::record(|captured| captured.keys.opening = RecordKey::new(key.as_ref(), iv));
        Box::new(SequenceCounter(self.0.decrypter(key, iv)))
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        self.0.key_block_shape()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: &[u8],
        explicit: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv, explicit)
    }
}

/// Cipher that records the sequence number of the next record.
struct SequenceCounter<T>(T);

impl MessageEncrypter for SequenceCounter<Box<dyn MessageEncrypter>> {
    fn encrypt(&mut self, message: OutboundPlainMessage<'_>, sequence: u64) -> Result<OutboundOpaqueMessage, Error> {
        captured::record(|captured| captured.keys.sealing.sequence = Some(sequence + 1));
        self.0.encrypt(message, sequence)
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        self.0.encrypted_payload_len(payload_len)
    }
}

impl MessageDecrypter for SequenceCounter<Box<dyn MessageDecrypter>> {
    fn decrypt<'a>(
        &mut self,
        message: InboundOpaqueMessage<'a>,
        sequence: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        captured::record(|captured| captured.keys.opening.sequence = Some(sequence + 1));
        self.0.decrypt(message, sequence)
    }
}
