//! Compressed certificates (RFC 8879): made once, when certificates are loaded.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;

/// A Certificate message of TLS 1.3 and its compressed forms.
#[derive(Debug)]
pub(crate) struct Compressed {
    pub message: Vec<u8>,
    /// The message compressed with brotli; empty where that is not shorter.
    pub brotli: Vec<u8>,
    /// The message compressed with zlib; empty where that is not shorter.
    pub zlib: Vec<u8>,
}

/// Compressed messages with a reference count of each core's own.
pub(crate) type PerCore = Arc<Arc<Compressed>>;

/// Highest compression level of zlib: a chain is compressed only once.
const ZLIB_LEVEL: u8 = 9;
/// Brotli quality. The encoder's tables take 1 MiB per loading thread; from quality 9 on they take 33 MiB.
const BROTLI_QUALITY: i32 = 5;
/// Brotli window of 128 KiB: longer than any chain, and the smallest for which the encoder has tables of this size.
const BROTLI_WINDOW_BITS: i32 = 17;

impl Compressed {
    pub fn new<'a>(chain: impl Iterator<Item = &'a CertificateDer<'static>>, staple: Option<&[u8]>) -> Compressed {
        let message = certificate_message(chain, staple);
        let shorter = |compressed: Vec<u8>| if compressed.len() < message.len() { compressed } else { Vec::new() };
        let brotli = shorter(brotli(&message).unwrap_or_default());
        let zlib = shorter(miniz_oxide::deflate::compress_to_vec_zlib(&message, ZLIB_LEVEL));
        Compressed { message, brotli, zlib }
    }
}

fn brotli(message: &[u8]) -> Option<Vec<u8>> {
    let parameters = brotli::enc::BrotliEncoderParams {
        quality: BROTLI_QUALITY,
        lgwin: BROTLI_WINDOW_BITS,
        size_hint: message.len(),
        ..Default::default()
    };
    let mut out = Vec::new();
    brotli::BrotliCompress(&mut &*message, &mut out, &parameters).ok()?;
    Some(out)
}

/// The body of a server's Certificate message (RFC 8446 §4.4.2): no context, and the response with the leaf.
fn certificate_message<'a>(chain: impl Iterator<Item = &'a CertificateDer<'static>>, staple: Option<&[u8]>) -> Vec<u8> {
    const STATUS_REQUEST: u16 = 5;
    const OCSP: u8 = 1;
    let mut list = Vec::new();
    for (index, certificate) in chain.enumerate() {
        push_u24(&mut list, certificate.len());
        list.extend_from_slice(certificate);
        let mut extensions = Vec::new();
        if let Some(response) = staple.filter(|_| index == 0) {
            extensions.extend_from_slice(&STATUS_REQUEST.to_be_bytes());
            push_u16(&mut extensions, response.len() + 4);
            extensions.push(OCSP);
            push_u24(&mut extensions, response.len());
            extensions.extend_from_slice(response);
        }
        push_u16(&mut list, extensions.len());
        list.extend_from_slice(&extensions);
    }
    let mut message = vec![0];
    push_u24(&mut message, list.len());
    message.extend_from_slice(&list);
    message
}

fn push_u24(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as u32).to_be_bytes()[1..]);
}

fn push_u16(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_is_the_message_and_shorter() {
        let certificate = CertificateDer::from(b"certificate ".repeat(40));
        let compressed = Compressed::new([&certificate; 2].into_iter(), Some(b"response"));
        assert!(compressed.zlib.len() < 200 && compressed.brotli.len() < 200);
        let zlib = miniz_oxide::inflate::decompress_to_vec_zlib(&compressed.zlib).unwrap();
        let mut brotli = Vec::new();
        brotli::BrotliDecompress(&mut &*compressed.brotli, &mut brotli).unwrap();
        assert!(zlib == compressed.message && brotli == compressed.message);
    }

    #[test]
    fn what_does_not_get_shorter_is_not_sent_compressed() {
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(100).collect();
        let compressed = Compressed::new([&noise.into()].into_iter(), None);
        assert!(compressed.zlib.is_empty() && compressed.brotli.is_empty());
    }
}
