//! A chain and its key, looked at before they are kept, and again before they are relied on.

use aws_lc_rs::digest;
use propylon_crypto::PrivateKey;
use propylon_crypto::pem::{self, PemLabel};
use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::plan::Lifetime;

/// The certificate in a file of ours.
pub(crate) struct Held {
    pub leaf: CertificateDer<'static>,
    pub lifetime: Lifetime,
}

/// More than any chain and its key take.
pub(crate) const PEM_BYTES_MAX: u64 = 256 * 1024;
const CHAIN_MAX: usize = 10;
/// Clocks differ.
const SKEW_SECONDS: i64 = 300;

impl Held {
    /// A number from 0 up to 1, the same whenever it is asked for: a certificate's own share of chance.
    pub fn chance(&self) -> f64 {
        let digest = digest::digest(&digest::SHA256, &self.leaf);
        let first: [u8; 4] = digest.as_ref()[..4].try_into().unwrap_or_default();
        f64::from(u32::from_be_bytes(first)) / (f64::from(u32::MAX) + 1.0)
    }
}

/// Checks that this chain is for the key with that SubjectPublicKeyInfo and these names, hangs together, and has
/// begun; the error says what is wrong. The caller has to see whether it has ended.
pub(crate) fn check(chain_pem: &str, public_key: &[u8], names: &[String], now: i64) -> Result<Held, String> {
    let (chain, _) = sections(chain_pem.as_bytes())?;
    check_chain(chain, public_key, names, now)
}

type Chain = Vec<CertificateDer<'static>>;

/// The certificates and the first private key of a file. Errors are shown and written down, so they never have a
/// parser's words.
fn sections(text: &[u8]) -> Result<(Chain, Option<PrivateKey>), String> {
    let (mut chain, mut key) = (Chain::new(), None);
    for section in pem::sections(text) {
        let section = section.map_err(|error| format!("it is no PEM: {error}"))?;
        match section.label {
            PemLabel::Certificate => chain.push(section.der.to_vec().into()),
            label if label.is_private_key() && key.is_none() => {
                key = Some(PrivateKey::from_der(&section.der).map_err(|error| error.to_string())?);
            }
            _ => {}
        }
    }
    Ok((chain, key))
}

fn check_chain(mut chain: Chain, public_key: &[u8], names: &[String], now: i64) -> Result<Held, String> {
    if chain.is_empty() || chain.len() > CHAIN_MAX {
        return Err(format!("the chain has {} certificates", chain.len()));
    }
    let parse = |der: &'_ CertificateDer<'_>| -> Result<(), String> {
        let (rest, _) = X509Certificate::from_der(der).map_err(|error| format!("a certificate is damaged: {error}"))?;
        if rest.is_empty() { Ok(()) } else { Err("a certificate has something behind it".into()) }
    };
    chain.iter().try_for_each(parse)?;
    let parsed: Vec<X509Certificate<'_>> =
        chain.iter().filter_map(|der| X509Certificate::from_der(der).ok()).map(|(_, parsed)| parsed).collect();
    let leaf = &parsed[0];
    if leaf.public_key().raw != public_key {
        return Err("the certificate is not for our key".into());
    }
    let listed = leaf.subject_alternative_name().ok().flatten();
    let listed = listed.map(|names| names.value.general_names.clone()).unwrap_or_default();
    let is_for = |name: &&String| {
        !listed.iter().any(|each| matches!(each, GeneralName::DNSName(own) if own.eq_ignore_ascii_case(name)))
    };
    if let Some(missing) = names.iter().find(is_for) {
        return Err(format!("the certificate is not for {missing}"));
    }
    if parsed.windows(2).any(|pair| pair[0].issuer() != pair[1].subject()) {
        return Err("the chain is not in order".into());
    }
    let validity = leaf.validity();
    let lifetime = Lifetime { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() };
    if lifetime.not_before > now + SKEW_SECONDS {
        return Err("the certificate is not valid yet: is this machine's clock right?".into());
    }
    drop(parsed);
    Ok(Held { leaf: chain.swap_remove(0), lifetime })
}

/// The same of a file with both.
pub(crate) fn check_file(bytes: &[u8], names: &[String], now: i64) -> Result<Held, String> {
    let (chain, key) = sections(bytes)?;
    let key = key.ok_or("it has no private key")?;
    check_chain(chain, key.public_info(), names, now)
}

/// The same of a file with the chain alone, whose key another process has: `keeps` says of which.
pub(crate) fn check_kept(
    bytes: &[u8],
    names: &[String],
    now: i64,
    keeps: impl FnOnce(&[u8]) -> bool,
) -> Result<Held, String> {
    let (chain, key) = sections(bytes)?;
    if key.is_some() {
        return Err("it has a private key, which with keys.isolate the key process alone may have".into());
    }
    let public = public_key(bytes).ok_or("it has no certificate")?;
    if !keeps(&public) {
        return Err("the key process does not have its key".into());
    }
    check_chain(chain, &public, names, now)
}

/// SubjectPublicKeyInfo of the first certificate in a file.
pub(crate) fn public_key(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut sections = pem::sections(bytes).map_while(Result::ok);
    let first = sections.find(|section| section.label == PemLabel::Certificate)?;
    public_key_of(&first.der)
}

/// The same of a certificate.
pub(crate) fn public_key_of(der: &[u8]) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    Some(parsed.public_key().raw.to_vec())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rcgen::{CertificateParams, CertifiedIssuer, KeyPair, PublicKeyData};

    /// An authority's chain for a key.
    pub fn chain(key: &KeyPair, names: &[&str], tinker: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        tinker(&mut params);
        params.signed_by(key, &issuer).unwrap().pem() + &issuer.pem()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn a_chain_is_good_for_its_key_and_its_names_alone() {
        let key = KeyPair::generate().unwrap();
        let pem = chain(&key, &["a.test", "B.test"], |_| {});
        let check = |pem: &str, key: &KeyPair, of: &[&str]| check(pem, &key.subject_public_key_info(), &names(of), NOW);
        assert!(check(&pem, &key, &["a.test", "b.test"]).is_ok());
        let wrong = |pem: &str, key: &KeyPair, of: &[&str]| check(pem, key, of).err().unwrap();
        assert_eq!(wrong(&pem, &key, &["a.test", "c.test"]), "the certificate is not for c.test");
        assert_eq!(wrong(&pem, &KeyPair::generate().unwrap(), &["a.test"]), "the certificate is not for our key");
        assert_eq!(wrong("", &key, &["a.test"]), "the chain has 0 certificates");
        let other = chain(&key, &["a.test"], |_| {});
        let torn = pem[..pem.find("-----END").unwrap()].to_owned();
        assert!(check(&torn, &key, &["a.test"]).is_err());
        let mixed = pem.clone() + &other;
        assert_eq!(wrong(&mixed, &key, &["a.test"]), "the chain is not in order");
        let early = chain(&key, &["a.test"], |params| params.not_before = rcgen::date_time_ymd(2090, 1, 1));
        assert!(wrong(&early, &key, &["a.test"]).starts_with("the certificate is not valid yet"));
    }

    #[test]
    fn a_file_with_both_is_read_back_whatever_the_type_of_its_key() {
        let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
        for key in [KeyPair::generate().unwrap(), rsa] {
            let file = chain(&key, &["a.test"], |_| {}) + &key.serialize_pem();
            let held = check_file(file.as_bytes(), &names(&["a.test"]), NOW).unwrap();
            assert!((0.0..1.0).contains(&held.chance()));
            let cut = &file[..file.len() - 40];
            assert!(check_file(cut.as_bytes(), &names(&["a.test"]), NOW).is_err());
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_without_a_byte_of_its_key() {
        let key = KeyPair::generate().unwrap();
        let (chain, key) = (chain(&key, &["a.test"], |_| {}), key.serialize_pem());
        let secret = key.lines().nth(2).unwrap();
        for bad in [
            key.replace('\n', ""),
            key.replace('\n', "\\n"),
            key.replacen('\n', "", 1),
            key.replace("END PRIVATE", "END RSA PRIVATE"),
            key.replacen("M", "*", 1),
            key.replace("-----END PRIVATE KEY-----\n", ""),
            key.replace("PRIVATE KEY", "CERTIFICATE"),
        ] {
            let said = check_file(format!("{chain}{bad}").as_bytes(), &names(&["a.test"]), NOW).err().unwrap();
            let numbers = format!("{:?}", &secret.as_bytes()[..8]);
            assert!(!said.contains(&secret[..8]) && !said.contains(numbers.trim_matches(['[', ']'])), "{said}");
        }
    }
}
