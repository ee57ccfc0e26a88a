//! Tokens that an issuer has signed (JWT, RFC 7519, in the compact form of RFC 7515 §7.1), checked as RFC 8725 says.

use base64ct::{Base64UrlUnpadded, Encoding};
use propylon_config::Jwt;
use propylon_crypto::TokenAlgorithm;
use serde_json::{Map, Value};

use crate::key_set::KeySet;
use crate::strict_json;

/// Bytes of a token, of its header, and of a claim as servers are told it.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
const HEADER_BYTES_MAX: usize = 2 * 1024;
const CLAIM_BYTES_MAX: usize = 4 * 1024;
/// Types of tokens that say who somebody is, where none is asked for (RFC 7519 §5.1, RFC 9068 §2.1).
const USUAL_TYPES: [&str; 2] = ["jwt", "at+jwt"];

/// Demands on tokens.
pub struct Tokens {
    issuer: String,
    audience: Vec<String>,
    algorithms: Vec<TokenAlgorithm>,
    /// Type in lower case, without `application/`.
    kind: Option<String>,
    /// In seconds.
    leeway: f64,
    claims_to: Vec<(String, String)>,
}

/// Fault of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadToken {
    Malformed,
    /// An algorithm that is not among those that are taken.
    Algorithm,
    /// An extension that has to be understood and is not (RFC 7515 §4.1.11).
    Critical,
    Type,
    /// No key of the issuer is meant.
    Key,
    Signature,
    Expired,
    NotYetValid,
    Issuer,
    Audience,
    /// A claim that is not there, or cannot be told to a server.
    Claim,
}

impl BadToken {
    /// In words for whoever has the token (RFC 6750 §3: printable ASCII without quotes and backslashes).
    pub fn description(self) -> &'static str {
        match self {
            BadToken::Malformed => "the token is malformed",
            BadToken::Algorithm => "the algorithm of the signature is not taken",
            BadToken::Critical => "the token has an extension that is not understood",
            BadToken::Type => "the token is of another type",
            BadToken::Key => "the key of the signature is not known",
            BadToken::Signature => "the signature is wrong",
            BadToken::Expired => "the token has expired",
            BadToken::NotYetValid => "the token is not valid yet",
            BadToken::Issuer => "the token is from another issuer",
            BadToken::Audience => "the token is for another audience",
            BadToken::Claim => "a claim is missing or malformed",
        }
    }
}

/// Contents of a good token: its subject, if it has one, and the fields that servers are told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub subject: Option<String>,
    pub fields: Vec<(String, String)>,
}

impl Tokens {
    pub fn new(config: &Jwt) -> Tokens {
        Tokens {
            issuer: config.issuer.clone(),
            audience: config.audience.clone(),
            algorithms: algorithms(config),
            kind: config.kind.as_deref().map(plain_type),
            leeway: config.leeway.as_secs_f64(),
            claims_to: config.claims_to.clone(),
        }
    }

    /// Checks a token. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// The first thing that is wrong with it. Nothing of what it says is looked at before its signature.
    pub fn check(&self, token: &[u8], keys: &KeySet, now: u64) -> Result<Said, BadToken> {
        let token = std::str::from_utf8(token).map_err(|_| BadToken::Malformed)?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(BadToken::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(BadToken::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(BadToken::Malformed)?;
        // Base64url has no dots: tokens of five parts, which are encrypted, end here.
        let header = decoded(header).filter(|header| header.len() <= HEADER_BYTES_MAX).ok_or(BadToken::Malformed)?;
        let (claims, signature) = decoded(claims).zip(decoded(signature)).ok_or(BadToken::Malformed)?;
        let header = strict_json::object(&header).ok_or(BadToken::Malformed)?;
        let (algorithm, id) = self.header(&header)?;
        let mut candidates = keys.candidates(id, algorithm).peekable();
        if candidates.peek().is_none() {
            return Err(BadToken::Key);
        }
        if !candidates.any(|key| key.verifies(algorithm, signed.as_bytes(), &signature)) {
            return Err(BadToken::Signature);
        }
        self.claims(&claims, now)
    }

    /// Checks the claims of a token with a good signature, in JSON.
    pub fn claims(&self, text: &[u8], now: u64) -> Result<Said, BadToken> {
        let claims = strict_json::object(text).ok_or(BadToken::Malformed)?;
        self.times(&claims, now as f64)?;
        self.parties(&claims)?;
        self.said(&claims)
    }

    /// The algorithm and the key's id. Keys that the token brings along, or says where to get, are not looked at
    /// (RFC 8725 §3.10).
    fn header<'h>(&self, header: &'h Map<String, Value>) -> Result<(TokenAlgorithm, Option<&'h str>), BadToken> {
        let text = |name: &str| match header.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(BadToken::Malformed),
        };
        let algorithm = TokenAlgorithm::of(text("alg")?.ok_or(BadToken::Malformed)?);
        let algorithm = algorithm.filter(|algorithm| self.algorithms.contains(algorithm)).ok_or(BadToken::Algorithm)?;
        // Bodies without base64 (RFC 7797) are not known here, with `crit` and without.
        if header.contains_key("crit") || header.contains_key("b64") {
            return Err(BadToken::Critical);
        }
        let kind = text("typ")?.map(plain_type);
        // A token of another kind, such as word that somebody has logged out, is no proof (RFC 8725 §3.12).
        let is_meant = match &self.kind {
            Some(own) => kind.as_ref() == Some(own),
            None => kind.as_ref().is_none_or(|kind| USUAL_TYPES.contains(&kind.as_str())),
        };
        if !is_meant {
            return Err(BadToken::Type);
        }
        Ok((algorithm, text("kid")?))
    }

    fn times(&self, claims: &Map<String, Value>, now: f64) -> Result<(), BadToken> {
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().filter(|time| *time >= 0.0).map(Some).ok_or(BadToken::Claim),
        };
        let (expires, begins, issued) = (time("exp")?.ok_or(BadToken::Claim)?, time("nbf")?, time("iat")?);
        if now >= expires + self.leeway {
            return Err(BadToken::Expired);
        }
        let is_later = |time: Option<f64>| time.is_some_and(|time| time > now + self.leeway);
        if is_later(begins) || is_later(issued) { Err(BadToken::NotYetValid) } else { Ok(()) }
    }

    fn parties(&self, claims: &Map<String, Value>) -> Result<(), BadToken> {
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(BadToken::Issuer);
        }
        let is_meant = |audience: &str| self.audience.iter().any(|own| own == audience);
        let is_ours = match claims.get("aud") {
            Some(Value::String(audience)) => is_meant(audience),
            Some(Value::Array(all)) => {
                all.iter().all(Value::is_string) && all.iter().filter_map(Value::as_str).any(is_meant)
            }
            _ => false,
        };
        if is_ours { Ok(()) } else { Err(BadToken::Audience) }
    }

    fn said(&self, claims: &Map<String, Value>) -> Result<Said, BadToken> {
        let mut said = Said::default();
        if let Some(subject) = claims.get("sub") {
            let subject = subject.as_str().filter(|subject| is_tellable(subject)).ok_or(BadToken::Claim)?;
            said.subject = Some(subject.to_string());
        }
        for (field, claim) in &self.claims_to {
            // Servers are told nothing of a claim that is not there.
            if let Some(value) = claims.get(claim) {
                said.fields.push((field.clone(), told(value).ok_or(BadToken::Claim)?));
            }
        }
        Ok(said)
    }
}

/// The algorithms that a configuration allows.
pub fn algorithms(config: &Jwt) -> Vec<TokenAlgorithm> {
    config.algorithms.iter().filter_map(|name| TokenAlgorithm::of(name)).collect()
}

/// A claim as a server is told it: a text, a number, a truth value, or a list of them with commas between.
fn told(value: &Value) -> Option<String> {
    let one = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is_so) => Some(is_so.to_string()),
        _ => None,
    };
    let text = match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(one).collect::<Option<_>>()?;
            // One item must not pass for two.
            if items.iter().any(|item| item.contains(',') || item.trim() != item) {
                return None;
            }
            items.join(",")
        }
        value => one(value)?,
    };
    (text.is_empty() || is_tellable(&text)).then_some(text)
}

/// Whether a text can stand in a field as it is: nothing of it is lost or becomes another line.
fn is_tellable(text: &str) -> bool {
    let is_short = (1..=CLAIM_BYTES_MAX).contains(&text.len());
    is_short && text.trim() == text && !text.chars().any(char::is_control)
}

/// A type without what may be left out of it (RFC 7515 §4.1.9), in lower case.
fn plain_type(kind: &str) -> String {
    let kind = kind.to_ascii_lowercase();
    kind.strip_prefix("application/").filter(|rest| !rest.contains('/')).unwrap_or(&kind).to_string()
}

/// Bytes of base64url without padding; `None` for what is written in any other way.
fn decoded(text: &str) -> Option<Vec<u8>> {
    Base64UrlUnpadded::decode_vec(text).ok()
}

#[cfg(test)]
pub(crate) mod tests;
