//! Record keys and traffic secrets, as a handshake leaves them to the established session.

use zeroize::{Zeroize, Zeroizing};

/// A TLS 1.3 traffic secret, from which the keys of this generation and the next secret are derived. Suites with
/// SHA-256 use the first 32 bytes.
pub(crate) type Secret = Zeroizing<[u8; 48]>;

/// The first generation of application traffic secrets; absent with TLS 1.2.
#[derive(Default)]
pub(crate) struct TrafficSecrets {
    pub client: Option<Secret>,
    pub server: Option<Secret>,
}

/// The record keys in use, each the last that the library has installed.
#[derive(Default)]
pub(crate) struct RecordKeys {
    /// Key for records that we send.
    pub sealing: RecordKey,
    /// Key for records that the peer sends.
    pub opening: RecordKey,
}

#[derive(Default)]
pub(crate) struct RecordKey {
    /// Absent where the library has installed no key. The suite decides how many bytes count.
    pub key: Option<Zeroizing<[u8; 32]>>,
    /// IV of the records. With TLS 1.2 and AES-GCM only the first four bytes count for records that the peer sends.
    pub iv: [u8; 12],
    /// Sequence number of the next record; absent before the first record.
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
