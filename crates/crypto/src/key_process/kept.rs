//! Keys that a key process makes itself and keeps, each in a file of its own: those of accounts with authorities
//! (RFC 8555), and of certificates that these issue.

use std::fmt;

use crate::key::Ski;

/// A key's name: whose account it is or was made by, and its public part. It is what its file is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeptKey {
    account: String,
    ski: Ski,
    purpose: Purpose,
}

/// The use of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Requests to an authority, and nothing else.
    Account,
    /// A request for a certificate, and handshakes.
    Certificate,
}

/// A key that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKey {
    /// ECDSA on P-256.
    Account,
    /// A certificate's key: ECDSA on P-256.
    P256,
    /// A certificate's key: RSA with 2,048 bits.
    Rsa2048,
}

/// The name of an account in a configuration.
const ACCOUNT_BYTES_MAX: usize = 64;
const PREFIX: &str = "acme-";

impl NewKey {
    #[must_use]
    pub fn purpose(self) -> Purpose {
        match self {
            NewKey::Account => Purpose::Account,
            NewKey::P256 | NewKey::Rsa2048 => Purpose::Certificate,
        }
    }
}

impl Purpose {
    fn extension(self) -> &'static str {
        match self {
            Purpose::Account => "account",
            Purpose::Certificate => "key",
        }
    }
}

impl KeptKey {
    /// The name of a key; none where there can be no account of that name.
    #[must_use]
    pub fn new(account: &str, ski: Ski, purpose: Purpose) -> Option<KeptKey> {
        is_account(account).then(|| KeptKey { account: account.into(), ski, purpose })
    }

    /// Parses what [`KeptKey`] displays, and nothing else: a name leads nowhere but into one folder.
    #[must_use]
    pub fn parse(name: &str) -> Option<KeptKey> {
        let mut parts = name.strip_prefix(PREFIX)?.rsplitn(3, '.');
        let (extension, ski, account) = (parts.next()?, parts.next()?, parts.next()?);
        let purpose =
            [Purpose::Account, Purpose::Certificate].into_iter().find(|each| each.extension() == extension)?;
        let key = KeptKey::new(account, hexadecimal(ski)?, purpose)?;
        // One key has one name only.
        (key.to_string() == name).then_some(key)
    }

    #[must_use]
    pub fn account(&self) -> &str {
        &self.account
    }

    #[must_use]
    pub fn ski(&self) -> Ski {
        self.ski
    }

    #[must_use]
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }
}

impl fmt::Display for KeptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.", self.account)?;
        self.ski.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ".{}", self.purpose.extension())
    }
}

fn hexadecimal(text: &str) -> Option<Ski> {
    let mut ski = Ski::default();
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != ski.len() {
        return None;
    }
    for (byte, pair) in ski.iter_mut().zip(pairs) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(ski)
}

/// Whether a configuration may call an account so.
pub(super) fn is_account(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=ACCOUNT_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_s_name_is_read_as_it_is_written_and_leads_nowhere_else() {
        for account in ["le", "a.b", "..", &"x".repeat(64)] {
            for purpose in [Purpose::Account, Purpose::Certificate] {
                let key = KeptKey::new(account, [0xa5; 20], purpose).expect("a name");
                assert_eq!(KeptKey::parse(&key.to_string()), Some(key.clone()));
                assert!(!key.to_string().starts_with('.') && !key.to_string().contains('/'));
            }
        }
        let hex = "a5".repeat(20);
        for name in [
            format!("acme-le.{hex}.pem"),
            format!("le.{hex}.key"),
            format!("acme-.{hex}.key"),
            format!("acme-{}.{hex}.key", "x".repeat(65)),
            format!("acme-a/b.{hex}.key"),
            format!("acme-a\0.{hex}.key"),
            format!("acme-le.{}.key", hex.to_uppercase()),
            format!("acme-le.{}.key", &hex[1..]),
            format!("acme-le.{hex}00.key"),
            format!("acme-le.{}.key", "+5".repeat(20)),
            format!("acme-le.{hex}.key\n"),
            format!("../acme-le.{hex}.key"),
            format!("acme-{hex}.key"),
            String::new(),
        ] {
            assert_eq!(KeptKey::parse(&name), None, "{name:?}");
        }
    }
}
