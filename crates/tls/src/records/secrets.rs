//! Record keys and traffic secrets, as a handshake leaves them to the established session.

use zeroize::{Zeroize, Zeroizing};

/// A TLS 1.3 traffic secret, from which the keys of this generation and the next secret are derived. The first 32 bytes
/// count where the suite's hash is SHA-256.
pub(crate) type Secret = Zeroizing<[u8; 48]>;

/// The first generation of application traffic secrets; absent with TLS 1.2.
#[derive(Default)]
pub(crate) struct TrafficSecrets {
    pub client: Option<Secret>,
    pub server: Option<Secret>,
}

/// The keys in use for records, each the last that the library was given.
#[derive(Default)]
pub(crate) struct RecordKeys {
    /// For what we send.
    pub sealing: RecordKey,
    /// For what the client sends.
    pub opening: RecordKey,
}

#[derive(Default)]
pub(crate) struct RecordKey {
    /// Absent where no key was heard of. How many bytes count is for the suite to say.
    pub key: Option<Zeroizing<[u8; 32]>>,
    /// Of TLS 1.2 with AES-GCM, only the first four bytes count for what the client sends.
    pub iv: [u8; 12],
    /// Number of the next record, if one has passed.
    pub sequence: Option<u64>,
}

impl RecordKey {
    pub fn new(key: &[u8], iv: &[u8]) -> RecordKey {
        let mut captured = RecordKey { key: Some(Zeroizing::new([0; 32])), ..RecordKey::default() };
        let key_len = key.len().min(32);
        if let Some(room) = &mut captured.key {
            room[..key_len].copy_from_slice(&key[..key_len]);
        }
        let iv_len = iv.len().min(12);
        captured.iv[..iv_len].copy_from_slice(&iv[..iv_len]);
        captured
    }

    pub fn merge(&mut self, later: RecordKey) {
        if later.key.is_some() {
            *self = later;
        } else if later.sequence.is_some() {
            self.sequence = later.sequence;
        }
    }
}

impl Drop for RecordKey {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}
