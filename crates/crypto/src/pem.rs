//! PEM (RFC 7468) for files that may hold secrets: one reader for all of them.
//!
//! The decoded bytes, and the base64 on its way there, are only ever in memory that is wiped when it is freed, and
//! are decoded in a time that does not depend on them. An error says what is wrong with a file without a byte of
//! what is in it, so that it can be logged: libraries' own errors quote the line at fault, and where a file has
//! lost its line ends that is all of it.

use std::fmt;

use base64ct::{Base64, Base64Unpadded, Encoding};
use zeroize::Zeroizing;

/// One section of a file, decoded.
pub struct PemSection {
    pub label: PemLabel,
    /// DER. Empty for [`PemLabel::Other`], which is not decoded.
    pub der: Zeroizing<Vec<u8>>,
}

/// The type that a section's label names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PemLabel {
    Certificate,
    /// PKCS#8 (RFC 5958).
    PrivateKey,
    /// PKCS#1 (RFC 8017 §A.1.2).
    RsaPrivateKey,
    /// SEC 1 (RFC 5915).
    EcPrivateKey,
    /// PKCS#8 under a passphrase, or a traditional key with a `DEK-Info` line.
    EncryptedPrivateKey,
    /// Curve parameters, a request, a list: nothing that is read here.
    Other,
}

/// The reason why a file is not PEM. The message never contains what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PemError {
    /// A section's first line goes on after its dashes: the file has lost its line ends.
    JoinedLines,
    /// A section has no last line, or another section's.
    Unfinished,
    /// A section's content is not base64, or was cut.
    NotBase64,
}

impl PemLabel {
    fn of(name: &[u8]) -> PemLabel {
        match name {
            b"CERTIFICATE" => PemLabel::Certificate,
            b"PRIVATE KEY" => PemLabel::PrivateKey,
            b"RSA PRIVATE KEY" => PemLabel::RsaPrivateKey,
            b"EC PRIVATE KEY" => PemLabel::EcPrivateKey,
            b"ENCRYPTED PRIVATE KEY" => PemLabel::EncryptedPrivateKey,
            _ => PemLabel::Other,
        }
    }

    /// Whether this is a private key that can be read.
    #[must_use]
    pub fn is_private_key(self) -> bool {
        matches!(self, PemLabel::PrivateKey | PemLabel::RsaPrivateKey | PemLabel::EcPrivateKey)
    }
}

/// The sections of a file, in their order. Text around them is passed over (RFC 7468 §2). The first error is the last
/// item.
pub fn sections(text: &[u8]) -> impl Iterator<Item = Result<PemSection, PemError>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let (section, after) = match next_section(rest?) {
            Ok(Some((section, after))) => (Ok(section), Some(after)),
            Ok(None) => return None,
            Err(error) => (Err(error), None),
        };
        rest = after;
        Some(section)
    })
}

/// A private key in PKCS#8 as a file has it (RFC 7468 §10), in memory that is wiped.
#[must_use]
pub fn private_key(der: &[u8]) -> Zeroizing<Vec<u8>> {
    const LINE_CHARS: usize = 64;
    let mut base64 = Zeroizing::new(vec![0; Base64::encoded_len(der)]);
    // The base64 is exactly as long as it has to be, so encoding cannot fail.
    let _ = Base64::encode(der, &mut base64);
    let mut text = Zeroizing::new(Vec::with_capacity(base64.len() + base64.len() / LINE_CHARS + 64));
    text.extend_from_slice(b"-----BEGIN PRIVATE KEY-----\n");
    for line in base64.chunks(LINE_CHARS) {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text.extend_from_slice(b"-----END PRIVATE KEY-----\n");
    text
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

fn next_section(mut text: &[u8]) -> Result<Option<(PemSection, &[u8])>, PemError> {
    let name = loop {
        let Some((line, after)) = split_line(text) else { return Ok(None) };
        text = after;
        if let Some(name) = line.strip_prefix(BEGIN) {
            break name.strip_suffix(DASHES).ok_or(PemError::JoinedLines)?;
        }
    };
    // A name is short and has no dashes; a whole file on one line ends with dashes as well.
    if name.windows(DASHES.len()).any(|part| part == DASHES) {
        return Err(PemError::JoinedLines);
    }
    let start = text;
    loop {
        let content = &start[..start.len() - text.len()];
        let (line, after) = split_line(text).ok_or(PemError::Unfinished)?;
        text = after;
        if line.starts_with(BEGIN) {
            return Err(PemError::Unfinished);
        }
        let Some(end) = line.strip_prefix(END) else { continue };
        if end.strip_suffix(DASHES) != Some(name) {
            return Err(PemError::Unfinished);
        }
        return Ok(Some((decoded(PemLabel::of(name), content)?, text)));
    }
}

/// The first line without its end and without blanks around it, and what follows it. None at the end.
fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    if text.is_empty() {
        return None;
    }
    // CR LF, LF and, as RFC 7468 §3 has it, CR alone.
    let end = text.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(text.len());
    Some((text[..end].trim_ascii(), text.get(end + 1..).unwrap_or_default()))
}

fn decoded(label: PemLabel, content: &[u8]) -> Result<PemSection, PemError> {
    let headers = content.windows(8).any(|part| part == b"DEK-Info");
    let label = if label.is_private_key() && headers { PemLabel::EncryptedPrivateKey } else { label };
    if matches!(label, PemLabel::Other | PemLabel::EncryptedPrivateKey) {
        return Ok(PemSection { label, der: Zeroizing::default() });
    }
    // Room for all of it at once: a buffer that grows leaves its earlier selves behind.
    let mut base64 = Zeroizing::new(Vec::with_capacity(content.len()));
    base64.extend(content.iter().filter(|byte| !byte.is_ascii_whitespace()));
    let padding = base64.iter().rev().take_while(|byte| **byte == b'=').count();
    if padding > 2 || !base64.len().is_multiple_of(4) {
        return Err(PemError::NotBase64);
    }
    let length = base64.len() - padding;
    let der = Base64Unpadded::decode_in_place(&mut base64[..length]).map_err(|_| PemError::NotBase64)?;
    // The copy is as long as needed and no longer: certificates and keys by the ten thousands stay in memory as
    // they come from here.
    Ok(PemSection { label, der: Zeroizing::new(der.to_vec()) })
}

impl fmt::Display for PemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PemError::JoinedLines => "a section's first line is not a line of its own: the file has lost its line ends",
            PemError::Unfinished => "a section is cut short",
            PemError::NotBase64 => "a section is not base64, or cut short",
        })
    }
}

impl std::error::Error for PemError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(PemLabel, Vec<u8>)>, PemError> {
        sections(text.as_bytes()).map(|section| section.map(|section| (section.label, section.der.to_vec()))).collect()
    }

    #[test]
    fn sections_come_in_their_order_whatever_is_around_them() {
        let text = "Bag Attributes\n  friendlyName: a\n-----BEGIN CERTIFICATE-----\r\nAAEC\r\n  AwQ=\r\n-----END CERTIFICATE----- \r\n\
            subject=a\n-----BEGIN EC PARAMETERS-----\n!!!\n-----END EC PARAMETERS-----\n-----BEGIN PRIVATE KEY-----\n\
            /+8=\n-----END PRIVATE KEY-----";
        let expected = [
            (PemLabel::Certificate, vec![0, 1, 2, 3, 4]),
            (PemLabel::Other, vec![]),
            (PemLabel::PrivateKey, vec![255, 239]),
        ];
        assert_eq!(read(text).unwrap(), expected);
        assert_eq!(read(&text.replace('\n', "\r")).unwrap(), expected);
        assert_eq!(read("no section at all\n").unwrap(), []);
    }

    #[test]
    fn a_key_under_a_passphrase_is_told_from_one_that_can_be_read() {
        let text = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAEC\n\
            -----END RSA PRIVATE KEY-----\n-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAEC\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let expected = [(PemLabel::EncryptedPrivateKey, vec![]), (PemLabel::EncryptedPrivateKey, vec![])];
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn what_is_broken_is_told_without_a_byte_of_it() {
        let good = "-----BEGIN PRIVATE KEY-----\nSECRETsecret\n-----END PRIVATE KEY-----\n";
        assert!(read(good).is_ok());
        for (text, expected) in [
            (good.replace('\n', ""), PemError::JoinedLines),
            (good.replace('\n', "\\n"), PemError::JoinedLines),
            (good.replace('\n', " "), PemError::JoinedLines),
            (good.replacen('\n', "", 1), PemError::JoinedLines),
            (good.replace("-----END PRIVATE KEY-----\n", ""), PemError::Unfinished),
            (good.replace("secret\n", "secret"), PemError::Unfinished),
            (good.replace("END PRIVATE", "END PUBLIC"), PemError::Unfinished),
            (good.replace("-----END", "----END"), PemError::Unfinished),
            (good.replace("-----END", "-----BEGIN"), PemError::Unfinished),
            (good.replace("SECRET", "SE*RET"), PemError::NotBase64),
            (good.replace("secret", "secre"), PemError::NotBase64),
            (good.replace("secret", "secre==="), PemError::NotBase64),
            (good.replace("secret", "secr="), PemError::NotBase64),
            (good.replace("SECRETsecret", "Key: SECRETsecret"), PemError::NotBase64),
        ] {
            let error = read(&text).err();
            assert_eq!(error, Some(expected), "{text}");
            let told = format!("{expected} {expected:?}");
            assert!(!told.contains("SECRET") && !told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn whatever_it_is_given_it_ends() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let chain = rcgen::CertificateParams::new(vec!["a.test".into()]).expect("a name").self_signed(&key);
        let good = chain.expect("a certificate").pem() + &key.serialize_pem();
        assert_eq!(read(&good).expect("two sections")[1], (PemLabel::PrivateKey, key.serialized_der().to_vec()));
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..5_000 {
            let mut bad = good.clone().into_bytes();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bad.len());
                bad[at] = *random.choice(b"ABCDabcd0189+/=-\n\r E").expect("a byte");
            }
            bad.truncate(random.usize(..=bad.len()));
            let count = sections(&bad).count();
            assert!(count <= 3, "{count}");
        }
    }
}
