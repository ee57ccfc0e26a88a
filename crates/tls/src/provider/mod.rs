//! The crypto provider for handshakes with clients: versions, cipher suites, groups; and the callbacks behind it.

pub(crate) mod captured;
pub(crate) mod compression;
pub(crate) mod compressor;
pub(crate) mod exchange;
pub(crate) mod facts;
pub(crate) mod jobs;
mod key_schedule;
pub(crate) mod signing;
pub(crate) mod suites;

use propylon_config::{KeyType, TlsCipher, TlsGroup, TlsPolicy, TlsSuite, TlsVersion};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion, version};

pub(crate) fn versions(policy: &TlsPolicy) -> Vec<&'static SupportedProtocolVersion> {
    match policy {
        TlsPolicy::Modern => vec![&version::TLS13],
        TlsPolicy::Intermediate => vec![&version::TLS13, &version::TLS12],
        TlsPolicy::Custom(custom) => custom
            .versions
            .iter()
            .map(|each| match each {
                TlsVersion::Tls12 => &version::TLS12,
                TlsVersion::Tls13 => &version::TLS13,
            })
            .collect(),
    }
}

/// The crypto provider of a policy. Suites are chosen by our order, groups by the client's: a client that sends a share
/// only of its first group is never asked to retry with another.
pub(crate) fn provider(policy: &TlsPolicy) -> CryptoProvider {
    // The library's own suites and groups are never used: ours record the keys, and defer jobs.
    let (mut cipher_suites, mut kx_groups) = (suites::all(), exchange::groups());
    if let TlsPolicy::Custom(custom) = policy {
        // The library counts a suite in favour of a certificate even where its version is not enabled.
        let spoken = |suite: &SupportedCipherSuite| versions(policy).contains(&suite.version());
        let ours = |meant: &TlsSuite| {
            let number = number(*meant);
            cipher_suites.iter().find(|suite| suite.suite() == number).copied()
        };
        cipher_suites = custom.suites.iter().filter_map(ours).filter(spoken).collect();
        kx_groups.retain(|offered| custom.groups.iter().any(|each| is_group(*offered, *each)));
    }
    CryptoProvider { cipher_suites, kx_groups, ..aws_lc_rs::default_provider() }
}

fn number(suite: TlsSuite) -> CipherSuite {
    use TlsCipher::*;
    match suite {
        TlsSuite::Tls13(Aes128Gcm) => CipherSuite::TLS13_AES_128_GCM_SHA256,
        TlsSuite::Tls13(Aes256Gcm) => CipherSuite::TLS13_AES_256_GCM_SHA384,
        TlsSuite::Tls13(Chacha20Poly1305) => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        TlsSuite::Ecdsa(Aes128Gcm) => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        TlsSuite::Ecdsa(Aes256Gcm) => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        TlsSuite::Ecdsa(Chacha20Poly1305) => CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        TlsSuite::Rsa(Aes128Gcm) => CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        TlsSuite::Rsa(Aes256Gcm) => CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        TlsSuite::Rsa(Chacha20Poly1305) => CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    }
}

/// The suite that was agreed on.
pub(crate) fn suite_of(agreed: CipherSuite) -> TlsSuite {
    let mut all = TlsSuite::ALL.iter().map(|(_, suite)| *suite);
    // Nothing else is offered.
    all.find(|suite| number(*suite) == agreed).unwrap_or(TlsSuite::Tls13(TlsCipher::Aes128Gcm))
}

/// Compares code points, so that any implementation of a group counts as that group.
fn is_group(offered: &dyn SupportedKxGroup, group: TlsGroup) -> bool {
    use rustls::NamedGroup;
    let meant = match group {
        TlsGroup::X25519MlKem768 => NamedGroup::X25519MLKEM768,
        TlsGroup::X25519 => NamedGroup::X25519,
        TlsGroup::P256 => NamedGroup::secp256r1,
        TlsGroup::P384 => NamedGroup::secp384r1,
    };
    offered.name() == meant
}

/// Versions with which a certificate of one key type can be served.
pub(crate) struct Use {
    pub tls12: bool,
    pub tls13: bool,
    /// TLS 1.2 is enabled, whether or not it can be used with this type.
    pub tls12_is_spoken: bool,
}

pub(crate) fn use_of(policy: &TlsPolicy, key_type: KeyType) -> Use {
    let TlsPolicy::Custom(custom) = policy else {
        let tls12 = *policy == TlsPolicy::Intermediate;
        return Use { tls12, tls13: true, tls12_is_spoken: tls12 };
    };
    let tls12_is_spoken = custom.versions.contains(&TlsVersion::Tls12);
    let fits = |suite: &TlsSuite| match suite {
        TlsSuite::Tls13(_) => false,
        TlsSuite::Ecdsa(_) => key_type != KeyType::Rsa,
        TlsSuite::Rsa(_) => key_type == KeyType::Rsa,
    };
    Use {
        tls12: tls12_is_spoken && custom.suites.iter().any(fits),
        tls13: custom.versions.contains(&TlsVersion::Tls13),
        tls12_is_spoken,
    }
}
