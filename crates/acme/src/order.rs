//! One order from its beginning to its end: account, challenges, key, chain.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64ct::{Base64Unpadded, Base64UrlUnpadded, Encoding};
use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, ExternalAccountKey, Identifier,
    NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use propylon_config::{Acme, AcmeChallenge, At, ExternalAccount, KeyType, Trust};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, PublicKeyData, RsaKeySize,
};
use rustls_pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::answer::Answer;
use crate::chain;
use crate::folder::{self, Folder};
use crate::http::Http;
use crate::keeper::Wanted;
use crate::refusal::Refusal;

/// Until the authority has made up its mind about the challenges, and again until it has made the certificate.
const PATIENCE: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).backoff(1.5).timeout(Duration::from_secs(120));
/// Challenges of a process that is gone are answered no longer than this.
const ANSWER_SECONDS: i64 = 1800;
/// Other processes look for challenges once a second; only then is the authority told to come.
const SETTLING: Duration = Duration::from_millis(1500);
/// The longest key of an external account that is read.
const EXTERNAL_KEY_BYTES_MAX: u64 = 4096;

/// What is wrong with a file that an account names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Where the configuration names it.
    pub at: At,
    /// Which it is.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
}

/// Everything that is wrong with the files that an account is made with. Asks nobody, and writes nothing.
pub fn check(acme: &Acme) -> Vec<Complaint> {
    let complaint = |trust: &Trust, what: String| Complaint { at: trust.at, path: trust.path.clone(), what };
    let ca = acme.ca.as_ref().and_then(|ca| Some(complaint(ca, Http::new(Some(&ca.path)).err()?)));
    let external = acme.external_account.as_ref();
    let key = external.and_then(|external| Some(complaint(&external.key, external_key(external).err()?.why)));
    ca.into_iter().chain(key).collect()
}

/// What an order is made with.
pub(crate) struct Errand<'a> {
    pub acme: &'a Acme,
    pub wanted: &'a Wanted,
    pub folder: &'a Folder,
    pub http: &'a Http,
    /// The certificate that is to be replaced, where the authority wants to hear of it.
    pub replaces: Option<CertificateDer<'static>>,
    pub now: i64,
}

/// Chain and key in one PEM, good for what was wanted. `publish` is told which challenges are outstanding now.
pub(crate) async fn obtain(
    errand: &Errand<'_>,
    publish: &(dyn Fn(Vec<Answer>) + Send + Sync),
) -> Result<Zeroizing<String>, Refusal> {
    let account = account(errand).await?;
    let identifiers: Vec<Identifier> = errand.wanted.names.iter().cloned().map(Identifier::Dns).collect();
    let mut new = NewOrder::new(&identifiers);
    if let Some(profile) = &errand.acme.profile {
        new = new.profile(profile);
    }
    if let Some(replaced) = errand.replaces.as_ref().and_then(|der| CertificateIdentifier::try_from(der).ok()) {
        new = new.replaces(replaced.into_owned());
    }
    let mut order = account.new_order(&new).await.map_err(|error| Refusal::of("a new order", &error))?;
    let mut answers = Vec::new();
    let ready = prove(errand, &mut order, &mut answers, publish).await;
    publish(Vec::new());
    answers.iter().for_each(|answer| errand.folder.remove_answer(answer));
    ready?;
    finish(errand, &mut order).await
}

/// The account that is kept, or a new one, which then is kept.
pub(crate) async fn account(errand: &Errand<'_>) -> Result<Account, Refusal> {
    let Errand { acme, folder, http, now, .. } = errand;
    let file = acme.account_file();
    let unreadable = |error: std::io::Error| Refusal::new(format!("{}: {error}", file.display()));
    if let Some(bytes) = folder.account(&file).map_err(unreadable)? {
        match serde_json::from_slice(&bytes) {
            Ok(credentials) => {
                let account = Account::builder_with_http(Box::new((*http).clone())).from_credentials(credentials);
                return account.await.map_err(|error| Refusal::of("the authority's directory", &error));
            }
            Err(_) => {
                let aside = folder::set_aside(&file, *now).map_err(unreadable)?;
                log::error!("acme \"{}\": the account's file was broken and is now {}", acme.name, aside.display());
            }
        }
    }
    let external = acme.external_account.as_ref().map(external_key).transpose()?;
    let contact: Vec<&str> = acme.contact.iter().map(String::as_str).collect();
    let new = NewAccount { contact: &contact, terms_of_service_agreed: acme.terms_agreed, only_return_existing: false };
    let builder = Account::builder_with_http(Box::new((*http).clone()));
    let made = builder.create(&new, acme.directory.clone(), external.as_ref()).await;
    let (account, credentials) = made.map_err(|error| Refusal::of("a new account", &error))?;
    let bytes = serde_json::to_vec(&credentials).map(Zeroizing::new);
    let bytes = bytes.map_err(|error| Refusal::new(format!("the account cannot be written: {error}")))?;
    folder::write(&file, &bytes).map_err(unreadable)?;
    log::info!("acme \"{}\": a new account, {}", acme.name, account.id());
    Ok(account)
}

fn external_key(external: &ExternalAccount) -> Result<ExternalAccountKey, Refusal> {
    let path: &Path = &external.key.path;
    let fail = |why: String| Refusal::new(format!("the external account's key {}: {why}", path.display()));
    let bytes = folder::read(path, EXTERNAL_KEY_BYTES_MAX).map_err(|error| fail(error.to_string()))?;
    let bytes = Zeroizing::new(bytes.ok_or_else(|| fail("there is no such file".into()))?);
    let text = std::str::from_utf8(&bytes).map_err(|_| fail("it is no base64url".into()))?;
    let text = text.trim().trim_end_matches('=');
    let decoded = Base64UrlUnpadded::decode_vec(text).or_else(|_| Base64Unpadded::decode_vec(text));
    let key = Zeroizing::new(decoded.map_err(|_| fail("it is no base64url".into()))?);
    Ok(ExternalAccountKey::new(external.id.clone(), &key))
}

/// Shows the authority that every name leads here.
async fn prove(
    errand: &Errand<'_>,
    order: &mut Order,
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
        let preferred = kind(errand.acme.challenge);
        let offered = |kind: &ChallengeType| authorization.challenges.iter().any(|each| each.r#type == *kind);
        let chosen = [preferred, ChallengeType::TlsAlpn01, ChallengeType::Http01].into_iter().find(offered);
        let Some(chosen) = chosen else {
            return Err(Refusal::new(format!("{name}: the authority offers neither tls-alpn-01 nor http-01")));
        };
        let way = if chosen == ChallengeType::Http01 { AcmeChallenge::Http } else { AcmeChallenge::TlsAlpn };
        let Some(challenge) = authorization.challenge(chosen.clone()) else { continue };
        let until = errand.now + ANSWER_SECONDS;
        let answer = Answer::new(&name, &challenge.token, challenge.key_authorization().as_str(), way, until);
        let answer = answer.ok_or_else(|| Refusal::new(format!("{name}: the challenge's token is malformed")))?;
        let unwritten = |error| Refusal::new(format!("a challenge cannot be written down: {error}"));
        errand.folder.write_answer(&answer).map_err(unwritten)?;
        answers.push(answer);
        kinds.push((name, chosen));
    }
    if !answers.is_empty() {
        publish(answers.clone());
        tokio::time::sleep(SETTLING).await;
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(|error| Refusal::of("an authorization", &error))?;
            let name = authorization.identifier().to_string();
            let Some((_, kind)) = kinds.iter().find(|(of, _)| *of == name) else { continue };
            let Some(mut challenge) = authorization.challenge(kind.clone()) else { continue };
            challenge.set_ready().await.map_err(|error| Refusal::of(&format!("{name}'s challenge"), &error))?;
        }
    }
    match order.poll_ready(&PATIENCE).await {
        Ok(OrderStatus::Ready) => Ok(()),
        Ok(_) => Err(why_invalid(order, None).await),
        Err(Error::Api(problem)) => Err(why_invalid(order, Some(Refusal::of_problem("validation", &problem))).await),
        Err(error) => Err(Refusal::of("validation", &error)),
    }
}

/// What the authority found where it looked; the order itself says little.
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

/// With a new key each time: one that got out is of use until the next order, and no longer.
async fn finish(errand: &Errand<'_>, order: &mut Order) -> Result<Zeroizing<String>, Refusal> {
    let key = match errand.wanted.key_type {
        KeyType::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        _ => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
    };
    let unmade = |error: rcgen::Error| Refusal::new(format!("the key or the request cannot be made: {error}"));
    let key = key.map_err(unmade)?;
    let mut params = CertificateParams::new(errand.wanted.names.clone()).map_err(unmade)?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(unmade)?;
    order.finalize_csr(request.der()).await.map_err(|error| Refusal::of("the request", &error))?;
    let pem = order.poll_certificate(&PATIENCE).await.map_err(|error| Refusal::of("the certificate", &error))?;
    let held = chain::check(&pem, &key.subject_public_key_info(), &errand.wanted.names, errand.now);
    let held = held.map_err(|why| Refusal::new(format!("what the authority sent cannot be used: {why}")))?;
    if held.lifetime.is_over(errand.now) {
        return Err(Refusal::new("what the authority sent has expired: is this machine's clock right?"));
    }
    let key = Zeroizing::new(key.serialize_pem());
    Ok(Zeroizing::new(format!("{}\n{}", pem.trim_end(), *key)))
}
