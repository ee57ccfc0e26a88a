//! Keys that another process has (`keys.isolate`): it makes, keeps and uses them, and here are their public parts.
//!
//! The library that speaks to the authority signs by itself, with a key that it has to have. It is given one that is
//! thrown away, and what it has signed is signed again, by the account's, before it is sent.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::{digest, hmac};
use base64ct::{Base64UrlUnpadded, Encoding};
use instant_acme::{Account, AccountBuilder, Key};
use propylon_crypto::RemoteKey;
use propylon_crypto::key_process::{Failure, KeptKey, KeyFiles, NewKey, Purpose};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::chain::{self, PEM_BYTES_MAX};
use crate::folder::{self, ACCOUNT_BYTES_MAX};
use crate::refusal::Refusal;

/// An account's key.
#[derive(Clone)]
pub(crate) struct AccountKey {
    files: &'static KeyFiles,
    pub key: KeptKey,
    /// SubjectPublicKeyInfo.
    public: Arc<[u8]>,
    /// A key that ties a new account to one that the authority has otherwise.
    external: Option<Arc<External>>,
}

/// The key of an external account, and by what the authority knows it.
pub(crate) struct External {
    pub id: String,
    pub key: hmac::Key,
}

/// The account's file.
#[derive(Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub id: String,
    pub directory: String,
    /// SubjectPublicKeyInfo, base64url.
    public_key: String,
}

/// A certificate's key.
pub(crate) struct CertificateKey {
    files: &'static KeyFiles,
    pub key: KeptKey,
    /// SubjectPublicKeyInfo.
    pub public: Vec<u8>,
}

/// Spent keys were made by this process for attempts of which nothing has come yet, or were those of certificates
/// that it has replaced.
#[derive(Default)]
pub(crate) struct Spent(Mutex<BTreeSet<KeptKey>>);

impl Spent {
    pub fn add(&self, key: &KeptKey) {
        self.lock().insert(key.clone());
    }

    /// Takes a key back that is in use, or gone.
    pub fn take_back(&self, key: &KeptKey) {
        self.lock().remove(key);
    }

    pub fn all(&self) -> BTreeSet<KeptKey> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<KeptKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request as it is sent (RFC 7515 §7.2.2).
#[derive(Serialize, Deserialize)]
struct Jws {
    protected: String,
    payload: String,
    signature: String,
}

/// SubjectPublicKeyInfo of a key on P-256 ends in the point: two numbers of 32 bytes.
const POINT_BYTES: usize = 64;

impl AccountKey {
    pub fn generate(files: &'static KeyFiles, account: &str, external: Option<External>) -> Result<AccountKey, String> {
        let public = files.generate(account, NewKey::Account).map_err(described)?;
        AccountKey::of(files, account, &public, external).ok_or_else(|| "the key process has made no key".into())
    }

    /// The key with this public part; none where that is no key.
    pub fn of(
        files: &'static KeyFiles,
        account: &str,
        public: &[u8],
        external: Option<External>,
    ) -> Option<AccountKey> {
        let key = name(account, public, Purpose::Account)?;
        (public.len() > POINT_BYTES).then(|| AccountKey {
            files,
            key,
            public: public.into(),
            external: external.map(Arc::new),
        })
    }

    /// Whether the key process has the key; absent if it does not say.
    pub fn is_there(&self) -> Result<bool, String> {
        Ok(self.files.kept(self.key.account()).map_err(described)?.contains(&self.key))
    }

    pub fn credentials(&self, id: &str, directory: &str) -> Credentials {
        Credentials { id: id.into(), directory: directory.into(), public_key: encode(&self.public) }
    }

    /// The digest of the key (RFC 7638 §3): of its members in this order, and nothing between them.
    pub fn thumbprint(&self) -> String {
        encode(digest::digest(&digest::SHA256, self.jwk().as_bytes()).as_ref())
    }

    fn jwk(&self) -> String {
        let (x, y) = self.public[self.public.len() - POINT_BYTES..].split_at(POINT_BYTES / 2);
        format!(r#"{{"crv":"P-256","kty":"EC","x":"{}","y":"{}"}}"#, encode(x), encode(y))
    }

    /// A request that the library has signed by a key of its own, signed by this one.
    pub fn sign_again(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        let malformed = |_| "a request is malformed".to_string();
        let Jws { protected, payload, .. } = serde_json::from_slice(body).map_err(malformed)?;
        let mut header: Map<String, Value> = decode(&protected).and_then(|text| parse(&text))?;
        let mut payload = String::from_utf8(decode(&payload)?).map_err(|_| "a request is no text")?;
        if header.contains_key("jwk") {
            let jwk = self.jwk();
            if let Some(external) = &self.external {
                let mut account: Map<String, Value> = parse(payload.as_bytes())?;
                let url = header.get("url").and_then(Value::as_str).unwrap_or_default();
                account.insert("externalAccountBinding".into(), external.bind(url, &jwk));
                payload = Value::Object(account).to_string();
            }
            header.insert("jwk".into(), parse(jwk.as_bytes())?);
        }
        let header = Value::Object(header).to_string();
        let signature = self.files.sign_request(&self.key, &header, &payload).map_err(described)?;
        let [protected, payload, signature] = [header.as_bytes(), payload.as_bytes(), &signature].map(encode);
        serde_json::to_vec(&Jws { protected, payload, signature }).map_err(|error| error.to_string())
    }
}

impl External {
    /// RFC 8555 §7.3.4.
    fn bind(&self, url: &str, jwk: &str) -> Value {
        let header = json!({ "alg": "HS256", "kid": self.id, "url": url }).to_string();
        let [protected, payload] = [header.as_str(), jwk].map(|text| encode(text.as_bytes()));
        let tag = hmac::sign(&self.key, format!("{protected}.{payload}").as_bytes());
        json!({ "protected": protected, "payload": payload, "signature": encode(tag.as_ref()) })
    }
}

impl Credentials {
    /// The account of a file; none where that has a key in it.
    pub fn parse(bytes: &[u8]) -> Option<Credentials> {
        serde_json::from_slice(bytes).ok()
    }

    pub fn public_key(&self) -> Option<Vec<u8>> {
        decode(&self.public_key).ok()
    }

    /// The account, whose requests `builder` has signed again.
    pub async fn account(&self, builder: AccountBuilder) -> Result<Account, instant_acme::Error> {
        let (_, nobodys) = Key::generate_pkcs8()?;
        builder.from_parts(self.id.clone(), nobodys, self.directory.clone()).await
    }
}

impl CertificateKey {
    pub fn generate(files: &'static KeyFiles, account: &str, key: NewKey) -> Result<CertificateKey, String> {
        let public = files.generate(account, key).map_err(described)?;
        let name = name(account, &public, Purpose::Certificate).ok_or("the key process has made no key")?;
        Ok(CertificateKey { files, key: name, public })
    }
}

impl PublicKeyData for CertificateKey {
    /// The bit string at the end: a point, or an RSA key's two numbers.
    fn der_bytes(&self) -> &[u8] {
        use x509_parser::prelude::FromDer;
        let parsed = x509_parser::x509::SubjectPublicKeyInfo::from_der(&self.public);
        let length = parsed.map_or(0, |(_, info)| info.subject_public_key.data.len());
        &self.public[self.public.len() - length..]
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        match RemoteKey::new(RemoteKey::KEY_PROCESS, &self.public).map(|key| key.kind) {
            Ok(propylon_crypto::KeyKind::Rsa { .. }) => &PKCS_RSA_SHA256,
            _ => &PKCS_ECDSA_P256_SHA256,
        }
    }
}

impl SigningKey for CertificateKey {
    fn sign(&self, info: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.files.sign_csr(&self.key, info).map_err(|_| rcgen::Error::RemoteKeyError)
    }
}

/// The keys that an account has with the key process and that nothing in its folder has a use for.
pub(crate) fn unused(files: &KeyFiles, account: &str, state: &Path) -> io::Result<BTreeSet<KeptKey>> {
    let mut kept: BTreeSet<KeptKey> = files.kept(account)?.into_iter().collect();
    if kept.is_empty() {
        return Ok(kept);
    }
    let mut used = BTreeSet::new();
    // A file that was set aside counts as well: somebody may put it back.
    for entry in std::fs::read_dir(state)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b"account-") {
            let text = folder::read(&entry.path(), ACCOUNT_BYTES_MAX)?.unwrap_or_default();
            let public = Credentials::parse(&text).and_then(|credentials| credentials.public_key());
            used.extend(public.and_then(|public| name(account, &public, Purpose::Account)));
        }
    }
    for entry in std::fs::read_dir(state.join("certificates"))? {
        let text = folder::read(&entry?.path(), PEM_BYTES_MAX)?.unwrap_or_default();
        used.extend(chain::public_key(&text).and_then(|public| name(account, &public, Purpose::Certificate)));
    }
    kept.retain(|key| !used.contains(key));
    Ok(kept)
}

/// Whether the key process has the key of a certificate that this account has ordered.
pub(crate) fn keeps(kept: &[KeptKey], account: &str, public: &[u8]) -> bool {
    name(account, public, Purpose::Certificate).is_some_and(|key| kept.contains(&key))
}

pub(crate) fn name(account: &str, public: &[u8], purpose: Purpose) -> Option<KeptKey> {
    KeptKey::new(account, RemoteKey::new(RemoteKey::KEY_PROCESS, public).ok()?.ski, purpose)
}

fn described(failure: Failure) -> String {
    format!("the key process: {}", io::Error::from(failure))
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal::new(why)
    }
}

fn parse<T: for<'a> Deserialize<'a>>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|_| "a request is malformed".into())
}

fn encode(bytes: &[u8]) -> String {
    Base64UrlUnpadded::encode_string(bytes)
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    Base64UrlUnpadded::decode_vec(text).map_err(|_| "it is no base64url".into())
}
