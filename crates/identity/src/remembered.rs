//! Passwords that were right a while ago, by their digests: each of a browser's requests brings the password along.

use std::collections::HashMap;

/// Digests of one generation: about 40 bytes each.
const GENERATION_MAX: usize = 4096;

/// Digests and until when each is good, in two generations: when the younger is full, the older is forgotten.
#[derive(Default)]
pub struct Remembered {
    younger: HashMap<[u8; 32], u64>,
    older: HashMap<[u8; 32], u64>,
}

impl Remembered {
    /// Whether a digest is good. `now` is in milliseconds.
    pub fn knows(&self, digest: &[u8; 32], now: u64) -> bool {
        let until = self.younger.get(digest).or_else(|| self.older.get(digest));
        until.is_some_and(|until| now < *until)
    }

    /// Takes a digest to be good until then, in milliseconds.
    pub fn note(&mut self, digest: [u8; 32], until: u64) {
        if self.younger.len() >= GENERATION_MAX {
            self.older = std::mem::take(&mut self.younger);
        }
        self.younger.insert(digest, until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_known_until_its_time_and_no_crowd_makes_it_grow() {
        let mut remembered = Remembered::default();
        remembered.note([1; 32], 100);
        assert!(remembered.knows(&[1; 32], 99) && !remembered.knows(&[1; 32], 100) && !remembered.knows(&[2; 32], 0));
        for crowd in 0..100_000_u64 {
            let mut digest = [3; 32];
            digest[..8].copy_from_slice(&crowd.to_le_bytes());
            remembered.note(digest, 100);
            if crowd == 4000 {
                assert!(remembered.knows(&[1; 32], 99));
            }
        }
        assert!(!remembered.knows(&[1; 32], 99));
        assert!(remembered.younger.len() + remembered.older.len() <= 2 * GENERATION_MAX);
    }
}
