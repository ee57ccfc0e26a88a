//! How the library comes by compressed certificates: they are looked up in a handshake.
//!
//! The library asks for a compression of the message it is about to send. The resolver has just chosen the certificate
//! of that message and left a note of what was made of it beforehand, so the answer is a copy. Where the note does not
//! fit the message there is no answer, and the library sends the certificate as it is.

use rustls::CertificateCompressionAlgorithm;
use rustls::compress::{CertCompressor, CompressionFailed, CompressionLevel};

use super::captured;

/// Tried in this order. Chrome takes brotli, Safari zlib, Firefox both; brotli's are the shorter ones.
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
