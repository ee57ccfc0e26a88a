//! One order from its beginning to its end: account, challenges, key, chain.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::hmac;
use base64ct::{Base64Unpadded, Base64UrlUnpadded, Encoding};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, ExternalAccountKey,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use propylon_config::{Acme, AcmeChallenge, At, ExternalAccount, KeyType, Trust};
use propylon_crypto::key_process::{KeyFiles, NewKey};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, PublicKeyData, RsaKeySize,
    SigningKey,
};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use zeroize::Zeroizing;

use crate::answer::Answer;
use crate::chain;
use crate::folder::{self, Folder};
use crate::http::Http;
use crate::issuer::Wanted;
use crate::key_process::{AccountKey, CertificateKey, Credentials, External, Spent};
use crate::refusal::Refusal;

/// Polling until the authority has decided on the challenges, and again until it has made the certificate.
const WAIT_MAX: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).backoff(1.5).timeout(Duration::from_secs(120));
/// Challenges of a process that is gone are answered no longer than this.
const ANSWER_SECONDS: i64 = 1800;
/// Other processes look for challenges once a second; only then is the authority told to come.
const SETTLING: Duration = Duration::from_millis(1500);
/// Other engines of a cluster have them by etcd, two seconds later if the account is new to them.
const SHARED_SETTLING: Duration = Duration::from_millis(4000);
/// The longest key of an external account that is read.
const EXTERNAL_KEY_BYTES_MAX: u64 = 4096;

/// A fault of a file that an account names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// Position in the configuration that names the file.
    pub at: At,
    /// Path of the file.
    pub path: PathBuf,
    /// Message that says what is wrong with the file.
    pub what: String,
}

/// Checks the files that an account is made with, and returns everything that is wrong. Asks nobody, and writes
/// nothing.
pub fn check(acme: &Acme) -> Vec<FileProblem> {
    let problem = |trust: &Trust, what: String| FileProblem { at: trust.at, path: trust.path.clone(), what };
    let ca = acme.ca.as_ref().and_then(|ca| Some(problem(ca, Http::new(Some(&ca.path)).err()?)));
    let external = acme.external_account.as_ref();
    let key = external.and_then(|external| Some(problem(&external.key, external_key(external).err()?.why)));
    ca.into_iter().chain(key).collect()
}

/// The inputs of an order.
pub(crate) struct OrderJob<'a> {
    pub acme: &'a Acme,
    pub wanted: &'a Wanted,
    pub folder: &'a Folder,
    /// Whether other engines of a cluster answer as well.
    pub is_shared: bool,
    pub http: &'a Http,
    /// The process that has all keys, where that is another one.
    pub keys: Option<&'static KeyFiles>,
    pub spent: &'a Spent,
    /// The certificate that is to be replaced, where the authority wants to know it.
    pub replaces: Option<CertificateDer<'static>>,
    pub now: i64,
}

/// The account, and the thumbprint of its key where the library has another.
pub(crate) struct OrderAccount {
    pub account: Account,
    thumbprint: Option<String>,
}

/// Chain and key in one PEM, good for what was wanted; the chain alone where another process has the key. `publish` is
/// told which challenges are outstanding now.
pub(crate) async fn obtain(
    job: &OrderJob<'_>,
    publish: &(dyn Fn(Vec<Answer>) + Send + Sync),
) -> Result<Zeroizing<String>, Refusal> {
    let OrderAccount { account, thumbprint } = account(job).await?;
    let identifiers: Vec<Identifier> = job.wanted.names.iter().cloned().map(Identifier::Dns).collect();
    let mut new = NewOrder::new(&identifiers);
    if let Some(profile) = &job.acme.profile {
        new = new.profile(profile);
    }
    if let Some(replaced) = job.replaces.as_ref().and_then(|der| CertificateIdentifier::try_from(der).ok()) {
        new = new.replaces(replaced.into_owned());
    }
    let mut order = account.new_order(&new).await.map_err(|error| Refusal::of("a new order", &error))?;
    let mut answers = Vec::new();
    let ready = prove(job, &mut order, thumbprint, &mut answers, publish).await;
    publish(Vec::new());
    answers.iter().for_each(|answer| job.folder.remove_answer(answer));
    ready?;
    finish(job, &mut order).await
}

/// The account that is kept, or a new one, which then is kept.
pub(crate) async fn account(job: &OrderJob<'_>) -> Result<OrderAccount, Refusal> {
    if let Some(keys) = job.keys {
        return account_of_key_process(job, keys).await;
    }
    let (acme, http) = (job.acme, job.http);
    let parse = |bytes: &[u8]| serde_json::from_slice(bytes).ok();
    if let Some(credentials) = kept_account(acme, job.folder, job.now, parse)? {
        let account = Account::builder_with_http(Box::new(http.clone())).from_credentials(credentials);
        let account = account.await.map_err(|error| Refusal::of("the authority's directory", &error))?;
        return Ok(OrderAccount { account, thumbprint: None });
    }
    let external = acme.external_account.as_ref().map(external_key).transpose()?;
    let external = external.map(|(id, key)| ExternalAccountKey::new(id, &key));
    let (account, credentials) = new_account(acme, http, external.as_ref()).await?;
    keep_account(acme, &account, serde_json::to_vec(&credentials))?;
    Ok(OrderAccount { account, thumbprint: None })
}

/// The same with a key that another process has.
async fn account_of_key_process(job: &OrderJob<'_>, keys: &'static KeyFiles) -> Result<OrderAccount, Refusal> {
    let (acme, http) = (job.acme, job.http);
    let order_account = |account, key: &AccountKey| OrderAccount { account, thumbprint: Some(key.thumbprint()) };
    let key_of = |credentials: &Credentials| AccountKey::of(keys, &acme.name, &credentials.public_key()?, None);
    // A key that is not there any more is not waited for: nobody has a copy.
    let is_lost = |key: &AccountKey| key.is_there().map(|is_there| !is_there);
    let known = kept_account(acme, job.folder, job.now, Credentials::parse)?;
    if let Some((credentials, key)) = known.and_then(|known| key_of(&known).map(|key| (known, key))) {
        if is_lost(&key)? {
            let file = acme.account_file();
            let aside = folder::set_aside(&file, job.now).map_err(|error| Refusal::new(error.to_string()))?;
            log::error!(
                "acme \"{}\": the key process has not the account's key; its file is now {}",
                acme.name,
                aside.display()
            );
        } else {
            let builder = Account::builder_with_http(Box::new(http.signed_by(key.clone())));
            let account = credentials.account(builder).await;
            let account = account.map_err(|error| Refusal::of("the authority's directory", &error))?;
            return Ok(order_account(account, &key));
        }
    }
    let external = acme.external_account.as_ref().map(external_key).transpose()?;
    let external = external.map(|(id, key)| External { id, key: hmac::Key::new(hmac::HMAC_SHA256, &key) });
    let key = AccountKey::generate(keys, &acme.name, external)?;
    job.spent.add(&key.key);
    let (account, _) = new_account(acme, &http.signed_by(key.clone()), None).await?;
    keep_account(acme, &account, serde_json::to_vec(&key.credentials(account.id(), &acme.directory)))?;
    job.spent.take_back(&key.key);
    Ok(order_account(account, &key))
}

/// The account's file, where there is one. One that cannot be read is set aside.
fn kept_account<T>(
    acme: &Acme,
    folder: &Folder,
    now: i64,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    let file = acme.account_file();
    let unreadable = |error: std::io::Error| Refusal::new(format!("{}: {error}", file.display()));
    let Some(bytes) = folder.account(&file).map_err(unreadable)?.map(Zeroizing::new) else { return Ok(None) };
    let parsed = parse(&bytes);
    if parsed.is_none() {
        let aside = folder::set_aside(&file, now).map_err(unreadable)?;
        log::error!("acme \"{}\": the account's file was broken and is now {}", acme.name, aside.display());
    }
    Ok(parsed)
}

async fn new_account(
    acme: &Acme,
    http: &Http,
    external: Option<&ExternalAccountKey>,
) -> Result<(Account, AccountCredentials), Refusal> {
    let contact: Vec<&str> = acme.contact.iter().map(String::as_str).collect();
    let new = NewAccount { contact: &contact, terms_of_service_agreed: acme.terms_agreed, only_return_existing: false };
    let builder = Account::builder_with_http(Box::new(http.clone()));
    let made = builder.create(&new, acme.directory.clone(), external).await;
    made.map_err(|error| Refusal::of("a new account", &error))
}

fn keep_account(acme: &Acme, account: &Account, text: serde_json::Result<Vec<u8>>) -> Result<(), Refusal> {
    let file = acme.account_file();
    let text = text.map(Zeroizing::new);
    let text = text.map_err(|error| Refusal::new(format!("the account cannot be written: {error}")))?;
    let written = folder::write(&file, &text);
    written.map_err(|error| Refusal::new(format!("{}: {error}", file.display())))?;
    log::info!("acme \"{}\": a new account, {}", acme.name, account.id());
    Ok(())
}

/// The key's identifier with the authority, and the key.
fn external_key(external: &ExternalAccount) -> Result<(String, Zeroizing<Vec<u8>>), Refusal> {
    let path: &Path = &external.key.path;
    let fail = |why: String| Refusal::new(format!("the external account's key {}: {why}", path.display()));
    let bytes = folder::read(path, EXTERNAL_KEY_BYTES_MAX).map_err(|error| fail(error.to_string()))?;
    let bytes = Zeroizing::new(bytes.ok_or_else(|| fail("there is no such file".into()))?);
    let text = std::str::from_utf8(&bytes).map_err(|_| fail("it is no base64url".into()))?;
    let text = text.trim().trim_end_matches('=');
    let decoded = Base64UrlUnpadded::decode_vec(text).or_else(|_| Base64Unpadded::decode_vec(text));
    let key = Zeroizing::new(decoded.map_err(|_| fail("it is no base64url".into()))?);
    Ok((external.id.clone(), key))
}

/// Shows the authority that every name leads here.
async fn prove(
    job: &OrderJob<'_>,
    order: &mut Order,
    thumbprint: Option<String>,
    answers: &mut Vec<Answer>,
    publish: &(dyn Fn(Vec<Answer>) + Send + Sync),
) -> Result<(), Refusal> {
    let mut kinds: Vec<(String, ChallengeType)> = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(|error| Refusal::of("an authorization", &error))?;
        let name = authorization.identifier().to_string();
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            ref other => return Err(Refusal::new(format!("{name}: the authorization is {other:?}"))),
        }
        let preferred = kind(job.acme.challenge);
        let offered = |kind: &ChallengeType| authorization.challenges.iter().any(|each| each.r#type == *kind);
        let chosen = [preferred, ChallengeType::TlsAlpn01, ChallengeType::Http01].into_iter().find(offered);
        let Some(chosen) = chosen else {
            return Err(Refusal::new(format!("{name}: the authority offers neither tls-alpn-01 nor http-01")));
        };
        let way = if chosen == ChallengeType::Http01 { AcmeChallenge::Http } else { AcmeChallenge::TlsAlpn };
        let Some(challenge) = authorization.challenge(chosen.clone()) else { continue };
        let until = job.now + ANSWER_SECONDS;
        let authorization = match &thumbprint {
            Some(thumbprint) => format!("{}.{thumbprint}", challenge.token),
            None => challenge.key_authorization().as_str().to_owned(),
        };
        let answer = Answer::new(&name, &challenge.token, &authorization, way, until);
        let answer = answer.ok_or_else(|| Refusal::new(format!("{name}: the challenge's token is malformed")))?;
        let unwritten = |error| Refusal::new(format!("a challenge cannot be written down: {error}"));
        job.folder.write_answer(&answer).map_err(unwritten)?;
        answers.push(answer);
        kinds.push((name, chosen));
    }
    if !answers.is_empty() {
        publish(answers.clone());
        tokio::time::sleep(if job.is_shared { SHARED_SETTLING } else { SETTLING }).await;
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|error| Refusal::of("an authorization", &error))?;
            let name = authorization.identifier().to_string();
            let Some((_, kind)) = kinds.iter().find(|(of, _)| *of == name) else { continue };
            let Some(mut challenge) = authorization.challenge(kind.clone()) else { continue };
            challenge.set_ready().await.map_err(|error| Refusal::of(&format!("{name}'s challenge"), &error))?;
        }
    }
    match order.poll_ready(&WAIT_MAX).await {
        Ok(OrderStatus::Ready) => Ok(()),
        Ok(_) => Err(why_invalid(order, None).await),
        Err(Error::Api(problem)) => Err(why_invalid(order, Some(Refusal::of_problem("validation", &problem))).await),
        Err(error) => Err(Refusal::of("validation", &error)),
    }
}

/// The reason why the authority found an order invalid, as its challenges tell; the order itself says little.
async fn why_invalid(order: &mut Order, otherwise: Option<Refusal>) -> Refusal {
    let mut found: Option<Refusal> = None;
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_err() {
            break;
        }
        let name = authorization.identifier().to_string();
        for problem in authorization.challenges.iter().filter_map(|challenge| challenge.error.as_ref()) {
            found.get_or_insert(Refusal::of_problem(&format!("validation of {name}"), problem));
        }
    }
    found.or(otherwise).unwrap_or_else(|| Refusal::new("validation: the order is invalid, and nobody says why"))
}

fn kind(challenge: AcmeChallenge) -> ChallengeType {
    match challenge {
        AcmeChallenge::TlsAlpn => ChallengeType::TlsAlpn01,
        AcmeChallenge::Http => ChallengeType::Http01,
    }
}

/// Finishes an order with a new key each time: one that got out is of use until the next order, and no longer.
async fn finish(job: &OrderJob<'_>, order: &mut Order) -> Result<Zeroizing<String>, Refusal> {
    let key_type = job.wanted.key_type;
    let Some(keys) = job.keys else {
        let key = match key_type {
            KeyType::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
            _ => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
        };
        let key = key.map_err(unmade)?;
        let chain = certify(
            &job.wanted.names,
            job.now,
            order,
            &request(&job.wanted.names, &key)?,
            &key.subject_public_key_info(),
        )
        .await?;
        let key = Zeroizing::new(key.serialize_pem());
        return Ok(Zeroizing::new(format!("{}\n{}", chain.trim_end(), *key)));
    };
    let (account, names) = (job.acme.name.clone(), job.wanted.names.clone());
    let new = if key_type == KeyType::Rsa { NewKey::Rsa2048 } else { NewKey::P256 };
    // A key that no certificate comes of is removed with others that are not in use.
    let make = move || CertificateKey::generate(keys, &account, new);
    let failed = |error: tokio::task::JoinError| Refusal::new(error.to_string());
    let key = tokio::task::spawn_blocking(make).await.map_err(failed)??;
    job.spent.add(&key.key);
    let sign = move || Ok::<_, Refusal>((request(&names, &key)?, key.public));
    let (request, public) = tokio::task::spawn_blocking(sign).await.map_err(failed)??;
    certify(&job.wanted.names, job.now, order, &request, &public).await.map(Zeroizing::new)
}

fn unmade(error: rcgen::Error) -> Refusal {
    Refusal::new(format!("the key or the request cannot be made: {error}"))
}

/// A request for a certificate.
fn request(names: &[String], key: &impl SigningKey) -> Result<CertificateSigningRequestDer<'static>, Refusal> {
    let mut params = CertificateParams::new(names).map_err(unmade)?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key).map_err(unmade)?.into())
}

/// The chain for a request with this key.
async fn certify(
    names: &[String],
    now: i64,
    order: &mut Order,
    request: &[u8],
    public_key: &[u8],
) -> Result<String, Refusal> {
    order.finalize_csr(request).await.map_err(|error| Refusal::of("the request", &error))?;
    let pem = order.poll_certificate(&WAIT_MAX).await.map_err(|error| Refusal::of("the certificate", &error))?;
    let held = chain::check(&pem, public_key, names, now);
    let held = held.map_err(|why| Refusal::new(format!("what the authority sent cannot be used: {why}")))?;
    if held.lifetime.is_over(now) {
        return Err(Refusal::new("what the authority sent has expired: is this machine's clock right?"));
    }
    Ok(pem)
}
