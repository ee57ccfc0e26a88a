//! Keys that are made here and never leave: each in a file of its own below `keys.store`, called by its account and its
//! public part ([`KeptKey`]). An account's key is PKCS#8 in DER, a form that no key for handshakes is read from.

use std::fs;
use std::io;
use std::path::Path;

use propylon_crypto::key_process::{Answer, KeptKey, NewKey, Purpose, Unread};
use propylon_crypto::pem::{self, PemLabel};
use propylon_crypto::{Hash, KeyKind, PrivateKey, Scheme};

use super::authority;
use super::store;

/// Keys of an account's own that are kept at once: one for each authority, and some of attempts. Nobody removes them
/// but whoever knows that they are of no use.
const ACCOUNT_KEYS_MAX: usize = 100;
/// Keys of certificates that an account has ordered, and is ordering.
const CERTIFICATE_KEYS_MAX: usize = 10_000;
/// RSA keys of 2,048 bits take 1.7 KB.
const KEY_BYTES_MAX: u64 = 16 * 1024;

/// Makes a key, and keeps it. Returns its SubjectPublicKeyInfo.
pub fn generate(folder: &Path, account: &str, new: NewKey) -> io::Result<Vec<u8>> {
    // Each account has room of its own.
    let (max, of) = match new.purpose() {
        Purpose::Account => (ACCOUNT_KEYS_MAX, "keys of the account"),
        Purpose::Certificate => (CERTIFICATE_KEYS_MAX, "keys of certificates of the account"),
    };
    let own = |key: &KeptKey| key.account() == account && key.purpose() == new.purpose();
    if names(folder)?.iter().filter_map(|name| KeptKey::parse(name)).filter(own).count() >= max {
        return Err(io::Error::other(format!("there are {max} {of} {account:?} in {}", folder.display())));
    }
    let kind = match new {
        NewKey::Account | NewKey::P256 => KeyKind::P256,
        NewKey::Rsa2048 => KeyKind::Rsa { bytes: 256 },
    };
    let unmade = || io::Error::other("the key cannot be made");
    let (key, pkcs8) = PrivateKey::generate(kind).ok_or_else(unmade)?;
    let name = KeptKey::new(account, key.ski(), new.purpose()).ok_or_else(unmade)?.to_string();
    match new.purpose() {
        Purpose::Account => store::write(folder, &name, &pkcs8)?,
        Purpose::Certificate => store::write(folder, &name, &pem::private_key(&pkcs8))?,
    }
    Ok(key.public_info().to_vec())
}

/// A signature by a certificate's key.
pub fn sign_csr(folder: &Path, key: &KeptKey, info: &[u8]) -> Answer {
    let sign = || {
        let (private, scheme) = match load(folder, key, Purpose::Certificate)? {
            key if key.kind() == KeyKind::P256 => (key, Scheme::Ecdsa(Hash::Sha256)),
            key => (key, Scheme::RsaPkcs1(Hash::Sha256)),
        };
        let digest = Hash::Sha256.digest(info).ok_or_else(failed)?;
        let job = private.job(scheme, digest.as_ref()).map_err(|_| failed())?;
        job.run().map(|signature| signature.to_vec()).map_err(|_| failed())
    };
    sign().map_or_else(Answer::Unread, Answer::Bytes)
}

/// A signature by an account's key.
pub fn sign_request(folder: &Path, key: &KeptKey, header: &str, payload: &str) -> Answer {
    let keeps = |ski| {
        let own = KeptKey::new(key.account(), ski, Purpose::Certificate);
        own.is_some_and(|own| folder.join(own.to_string()).is_file())
    };
    let sign = || {
        let account = load(folder, key, Purpose::Account)?;
        authority::sign(&account, header, payload, keeps).map_err(|why| {
            log::warn!("{key}: {why}");
            Unread::Failed(why.to_string())
        })
    };
    sign().map_or_else(Answer::Unread, |signature| Answer::Bytes(signature.to_vec()))
}

fn failed() -> Unread {
    Unread::Failed("the key cannot sign".into())
}

/// The names of an account's keys.
pub fn list(folder: &Path, account: &str) -> io::Result<Vec<String>> {
    let mut names = names(folder)?;
    names.retain(|name| KeptKey::parse(name).is_some_and(|key| key.account() == account));
    Ok(names)
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string().ok().filter(|name| KeptKey::parse(name).is_some()));
    }
    Ok(names)
}

/// Gone with the next start, and sooner if nobody says that it is in use.
pub fn remove(folder: &Path, key: &KeptKey) -> io::Result<()> {
    store::remove_if_there(&folder.join(key.to_string()))?;
    fs::File::open(folder)?.sync_all()
}

/// Reads the key from its file, each time: a process that was started a moment ago has it as well.
fn load(folder: &Path, key: &KeptKey, purpose: Purpose) -> Result<PrivateKey, Unread> {
    let (text, _) = store::read(&folder.join(key.to_string()), KEY_BYTES_MAX)?;
    let of_file = |private: PrivateKey| (private.ski() == key.ski()).then_some(private);
    let private = match purpose {
        _ if key.purpose() != purpose => None,
        Purpose::Account => PrivateKey::from_der(&text).ok(),
        Purpose::Certificate => pem::sections(&text)
            .find_map(|section| {
                section.ok().filter(|section| section.label == PemLabel::PrivateKey).map(|section| section.der)
            })
            .and_then(|der| PrivateKey::from_der(&der).ok()),
    };
    private.and_then(of_file).ok_or(Unread::Other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_kept_for_this_account_alone_and_signs_what_it_is_for() {
        let store = std::env::temp_dir().join(format!("propylon-kept-{}", std::process::id()));
        fs::create_dir_all(&store).expect("a folder");
        let key = |account: &str, public: &[u8], purpose| {
            let ski = propylon_crypto::RemoteKey::new(0, public).expect("a key").ski;
            KeptKey::new(account, ski, purpose).expect("a name")
        };
        let account = generate(&store, "le", NewKey::Account).expect("a key");
        let account = key("le", &account, Purpose::Account);
        for new in [NewKey::P256, NewKey::Rsa2048] {
            let public = generate(&store, "le", new).expect("a key");
            let own = key("le", &public, Purpose::Certificate);
            let Answer::Bytes(signature) = sign_csr(&store, &own, b"info") else { panic!("no signature") };
            let remote = propylon_crypto::RemoteKey::new(0, &public).expect("a key");
            let scheme = match new {
                NewKey::Rsa2048 => Scheme::RsaPkcs1(Hash::Sha256),
                _ => Scheme::Ecdsa(Hash::Sha256),
            };
            let digest = Hash::Sha256.digest(b"info").expect("a digest");
            assert!(remote.verifies(scheme, digest.as_ref(), &signature));
            assert_eq!(sign_request(&store, &own, "{}", "{}"), Answer::Unread(Unread::Other), "it is no account's");
            let mode = fs::metadata(store.join(own.to_string())).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(sign_csr(&store, &account, b"info"), Answer::Unread(Unread::Other), "it is no certificate's");
        let header = r#"{"alg":"ES256","kid":"k","nonce":"n","url":"u"}"#;
        assert!(
            matches!(sign_request(&store, &account, header, "{}"), Answer::Bytes(signature) if signature.len() == 64)
        );
        let refused = sign_request(&store, &account, header, r#"{"status":"deactivated"}"#);
        assert!(matches!(refused, Answer::Unread(Unread::Failed(_))));
        assert_eq!(list(&store, "le").expect("a folder").len(), 3);
        assert_eq!(list(&store, "other").expect("a folder").len(), 0);
        remove(&store, &account).expect("it is there");
        assert_eq!(sign_request(&store, &account, header, "{}"), Answer::Unread(Unread::Missing));
        for (max, kind, new) in
            [(CERTIFICATE_KEYS_MAX, "key", NewKey::P256), (ACCOUNT_KEYS_MAX, "account", NewKey::Account)]
        {
            for number in 0..max {
                fs::File::create(store.join(format!("acme-other.{number:040x}.{kind}"))).expect("a file");
            }
            let many = generate(&store, "other", new).expect_err("it is one too many");
            assert!(many.to_string().contains(&format!("{max} keys of")), "{many}");
            assert!(many.to_string().contains("account \"other\""), "{many}");
            generate(&store, "le", new).expect("what another account has takes nobody's room");
        }
        fs::remove_dir_all(&store).expect("our own");
    }
}
