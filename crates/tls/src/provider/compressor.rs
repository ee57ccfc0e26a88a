//! Certificate compression in a handshake (RFC 8879), by lookup of messages compressed beforehand.
//!
//! The library asks for a compression of the message it is about to send. The resolver has just chosen the certificate
//! and recorded its compressed messages, so the answer is a copy. Where none of them matches the message, the library
//! sends the certificate uncompressed.

use rustls::CertificateCompressionAlgorithm;
use rustls::compress::{CertCompressor, CompressionFailed, CompressionLevel};

use super::captured;

/// Compressors in order of preference. Chrome supports brotli, Safari zlib, Firefox both; brotli's output is shorter.
pub(crate) const COMPRESSORS: &[&dyn CertCompressor] = &[
    &PrecomputedCompressor(CertificateCompressionAlgorithm::Brotli),
    &PrecomputedCompressor(CertificateCompressionAlgorithm::Zlib),
];

#[derive(Debug)]
struct PrecomputedCompressor(CertificateCompressionAlgorithm);

impl CertCompressor for PrecomputedCompressor {
    fn compress(&self, message: Vec<u8>, _: CompressionLevel) -> Result<Vec<u8>, CompressionFailed> {
        let prepared = captured::compressed(|compressed| {
            let fitting = compressed.iter().flatten().find(|each| each.message == message)?;
            Some(match self.0 {
                CertificateCompressionAlgorithm::Brotli => fitting.brotli.clone(),
                _ => fitting.zlib.clone(),
            })
        });
        prepared.filter(|prepared| !prepared.is_empty()).ok_or(CompressionFailed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        self.0
    }
}
