//! Keys of programs, as a file has them: of each key its SHA-256, and a name.
//!
//! One hash in passing is enough: unlike passwords such keys are random, and cannot be tried.

use std::collections::HashMap;
use std::fmt;

use propylon_crypto::{KeyedHash, is_same_hash, sha256};

use crate::lines::{self, BadLine};

/// Bytes of a key.
const KEY_BYTES_MAX: usize = 1024;
const MAKE: &str = "`openssl rand -hex 32` makes a key, and `printf %s KEY | sha256sum` its hash";

/// Keys of one file.
pub struct ApiKeys {
    /// Looked up by another hash, which nobody outside can aim at: how long that takes says nothing of the keys.
    secret: KeyedHash,
    names: HashMap<[u8; 32], ([u8; 32], String)>,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.names.len())
    }
}

impl ApiKeys {
    /// Reads a file of keys. One name may have several.
    ///
    /// # Errors
    /// Lines that are no key's.
    pub fn parse(text: &[u8]) -> Result<ApiKeys, Vec<BadLine>> {
        let (secret, mut names) = (KeyedHash::random(), HashMap::new());
        lines::read(text, |line, name, hash| {
            let Some(hash) = digits(hash) else {
                let what = "what stands behind the name is no SHA-256, and perhaps the key itself";
                return Err(BadLine::of(line, what, MAKE));
            };
            match names.insert(secret.of(&[&hash]), (hash, name.to_string())) {
                Some((_, other)) => {
                    Err(BadLine::of(line, format!("\"{other}\" has this key already"), "remove one of the two"))
                }
                None => Ok(()),
            }
        })?;
        match names.is_empty() {
            true => Err(vec![BadLine::of_file("it has no keys: nobody could come in", MAKE)]),
            false => Ok(ApiKeys { secret, names }),
        }
    }

    /// Name of a key.
    pub fn name(&self, key: &[u8]) -> Option<&str> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return None;
        }
        let hash = sha256(key);
        let (known, name) = self.names.get(&self.secret.of(&[&hash]))?;
        is_same_hash(known, &hash).then_some(name)
    }
}

/// 32 bytes in hexadecimal.
fn digits(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_name_of_its_line() {
        // `printf %s abc | sha256sum`, and the same of nothing, which is no key.
        let text = "ci:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n\
                    ci:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855\n";
        let keys = ApiKeys::parse(text.as_bytes()).unwrap();
        assert_eq!(
            (keys.name(b"abc"), keys.name(b"abd"), keys.name(b""), keys.name(&[b'a'; 2000])),
            (Some("ci"), None, None, None)
        );
    }

    #[test]
    fn a_key_that_stands_there_itself_is_refused_and_not_shown() {
        for line in
            ["ci:hunter2", "ci:", "hunter2", "ci:zz7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]
        {
            let bad = ApiKeys::parse(line.as_bytes()).unwrap_err().remove(0);
            assert!(bad.line == 1 && !bad.what.contains("hunter2"), "{bad:?}");
        }
        let twice = "a:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n".repeat(2);
        assert_eq!(ApiKeys::parse(twice.as_bytes()).unwrap_err()[0].line, 2);
        assert_eq!(ApiKeys::parse(b"").unwrap_err()[0].line, 0);
    }
}
