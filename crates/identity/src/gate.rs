//! A route's demand for a proof, compiled: a request goes on with who it is from, or is refused, or its password has
//! to be checked first.

use std::sync::Arc;
use std::time::Duration;

use base64ct::{Base64, Encoding};
use propylon_config::{Auth, Proof};
use propylon_http::fault::Fault;
use propylon_http::h1::{RequestHead, cookies};
use zeroize::Zeroizing;

use crate::api_keys::ApiKeys;
use crate::key_set::KeySet;
use crate::tokens::{BadToken, Tokens};
use crate::users::{PasswordCheck, Users};

/// Bytes of a name and a password, as they are sent.
const BASIC_BYTES_MAX: usize = 2048;
const KEY_BYTES_MAX: usize = 1024;

/// A route's demand for a proof, and the fields that servers are told of the outcome by.
pub struct Gate {
    /// `None`: anybody may come in, and is kept from sending what servers are told by other routes.
    pub(crate) proof: Option<Asked>,
    pub(crate) challenge: String,
    pub(crate) user_to: Option<String>,
    /// Field that servers do without.
    pub(crate) hidden: Option<String>,
    /// Fields that clients cannot send.
    pub(crate) withheld: Vec<String>,
}

pub(crate) enum Asked {
    Basic { users: Arc<Users>, remember: Duration },
    KeyIn { field: String, keys: Arc<ApiKeys> },
    KeyInQuery { parameter: String, keys: Arc<ApiKeys> },
    Token { cookie: Option<String>, tokens: Box<Tokens>, keys: Arc<KeySet> },
}

/// Outcome of a look at a request.
pub enum Look {
    /// The request goes on.
    In(Identity),
    /// The request is answered.
    Refused(Refusal),
    /// The request goes on if the password is right.
    Password(PasswordCheck, Identity),
}

/// Name and more of whoever a request is from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Fields that servers are told.
    fields: Vec<(String, String)>,
}

/// Why a request is refused: a fault, and the value of `WWW-Authenticate` (RFC 9110 §11.6.1).
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub fault: Fault,
    pub challenge: String,
}

/// Text after `Basic` or `Bearer`, or why there is none.
enum Credentials<'a> {
    Missing,
    Malformed,
    Are(&'a [u8]),
}

impl Gate {
    /// Looks at a request's head, with its bytes. `now` is in seconds since 1970.
    pub fn look(&self, head: &RequestHead, text: &[u8], now: u64) -> Look {
        let Some(asked) = &self.proof else { return Look::In(Identity::default()) };
        match asked {
            Asked::Basic { users, .. } => self.basic(users, credentials(head, text, b"basic")),
            Asked::KeyIn { field, keys } => self.key(keys, only(field_values(head, text, field))),
            Asked::KeyInQuery { parameter, keys } => {
                let values = values_of(head.query(text), parameter.as_bytes()).map(decoded_parameter);
                let value = only(values);
                self.key(keys, value.as_ref().map(Option::as_deref))
            }
            Asked::Token { cookie: None, tokens, keys } => {
                self.token((tokens, keys), credentials(head, text, b"bearer"), now)
            }
            Asked::Token { cookie: Some(name), tokens, keys } => {
                let credentials = match only(cookies(&head.fields, text, name)) {
                    Ok(Some(token)) => Credentials::Are(token),
                    Ok(None) => Credentials::Missing,
                    Err(()) => Credentials::Malformed,
                };
                self.token((tokens, keys), credentials, now)
            }
        }
    }

    /// Refuses a password that is wrong.
    pub fn refuse_password(&self) -> Refusal {
        self.refusal(Fault::CredentialsRefused)
    }

    /// Time for which a password that was right is not checked again.
    pub fn remember(&self) -> Duration {
        match &self.proof {
            Some(Asked::Basic { remember, .. }) => *remember,
            _ => Duration::ZERO,
        }
    }

    /// Lets a request in: servers are told who it is from, and nothing of the like that its client has sent.
    pub fn admit(&self, identity: &Identity, head: &mut RequestHead, text: &mut Vec<u8>) {
        head.fields.withhold(text, self.withheld.iter().chain(&self.hidden).map(String::as_str));
        for (name, value) in &identity.fields {
            head.fields.tell(text, name, value.as_bytes());
        }
    }

    fn basic(&self, users: &Users, credentials: Credentials<'_>) -> Look {
        let token = match credentials {
            Credentials::Missing => return self.missing(),
            Credentials::Malformed => return self.refused(),
            Credentials::Are(token) => token,
        };
        let mut decoded = Zeroizing::new([0; BASIC_BYTES_MAX]);
        let Ok(pair) = Base64::decode(token, &mut *decoded) else { return self.refused() };
        // RFC 7617 §2: no control characters, and the first colon ends the name.
        let is_whole = !pair.iter().any(u8::is_ascii_control);
        let Some(colon) = pair.iter().position(|byte| *byte == b':').filter(|_| is_whole) else {
            return self.refused();
        };
        let (name, password) = (&pair[..colon], &pair[colon + 1..]);
        let check = users.check(name, Zeroizing::new(password.to_vec()));
        Look::Password(check, self.identity(std::str::from_utf8(name).ok(), Vec::new()))
    }

    fn key(&self, keys: &ApiKeys, key: Result<Option<&[u8]>, impl Sized>) -> Look {
        match key {
            Ok(Some(key)) => match keys.name(key).filter(|_| key.len() <= KEY_BYTES_MAX) {
                Some(name) => Look::In(self.identity(Some(name), Vec::new())),
                None => self.refused(),
            },
            Ok(None) => self.missing(),
            Err(_) => self.refused(),
        }
    }

    fn token(&self, (tokens, keys): (&Tokens, &KeySet), credentials: Credentials<'_>, now: u64) -> Look {
        let checked = match credentials {
            Credentials::Missing => return self.missing(),
            Credentials::Malformed => Err(BadToken::Malformed),
            Credentials::Are(token) => tokens.check(token, keys, now),
        };
        // A subject that servers are to be told of has to be there.
        let checked = checked.and_then(|said| match said.subject.is_none() && self.user_to.is_some() {
            true => Err(BadToken::Claim),
            false => Ok(said),
        });
        match checked {
            Ok(said) => Look::In(self.identity(said.subject.as_deref(), said.fields)),
            Err(why) => {
                // RFC 6750 §3.1.
                let said = format!("error=\"invalid_token\", error_description=\"{}\"", why.description());
                let challenge = format!("{}, {said}", self.challenge);
                let fault = if why == BadToken::Expired { Fault::TokenExpired } else { Fault::CredentialsRefused };
                Look::Refused(Refusal { fault, challenge })
            }
        }
    }

    fn identity(&self, user: Option<&str>, mut fields: Vec<(String, String)>) -> Identity {
        if let (Some(field), Some(user)) = (&self.user_to, user) {
            fields.push((field.clone(), user.to_string()));
        }
        Identity { fields }
    }

    fn missing(&self) -> Look {
        Look::Refused(self.refusal(Fault::CredentialsMissing))
    }

    fn refused(&self) -> Look {
        Look::Refused(self.refusal(Fault::CredentialsRefused))
    }

    fn refusal(&self, fault: Fault) -> Refusal {
        Refusal { fault, challenge: self.challenge.clone() }
    }
}

/// Challenge by which clients are asked for a proof (RFC 7617 §2, RFC 6750 §3).
pub(crate) fn challenge(auth: &Auth) -> String {
    match &auth.proof {
        Proof::Basic(basic) => {
            let realm = basic.realm.replace('\\', "\\\\").replace('"', "\\\"");
            format!("Basic realm=\"{realm}\", charset=\"UTF-8\"")
        }
        Proof::ApiKey(_) => "Key realm=\"restricted\"".into(),
        Proof::Jwt(_) => "Bearer realm=\"restricted\"".into(),
    }
}

/// The credentials of a scheme, in lower case, from the one field that has them.
fn credentials<'a>(head: &RequestHead, text: &'a [u8], scheme: &[u8]) -> Credentials<'a> {
    let value = match only(field_values(head, text, "authorization")) {
        Ok(Some(value)) => value,
        Ok(None) => return Credentials::Missing,
        Err(()) => return Credentials::Malformed,
    };
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    match value[..end].eq_ignore_ascii_case(scheme) {
        true => Credentials::Are(value[end..].trim_ascii_start()),
        // Credentials of another scheme are none.
        false => Credentials::Missing,
    }
}

fn field_values<'a>(head: &RequestHead, text: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let is_it = move |field: &&propylon_http::h1::Field| field.name.bytes(text).eq_ignore_ascii_case(name.as_bytes());
    head.fields.iter().filter(is_it).map(|field| field.value.bytes(text)).collect::<Vec<_>>().into_iter()
}

/// The only one, if there is any; an error if there are several: others may read another one.
fn only<T>(mut values: impl Iterator<Item = T>) -> Result<Option<T>, ()> {
    let first = values.next();
    if values.next().is_some() { Err(()) } else { Ok(first) }
}

/// Values of a parameter in a query with its `?`.
fn values_of<'a>(query: &'a [u8], name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    let query = query.strip_prefix(b"?").unwrap_or(query);
    query.split(|byte| *byte == b'&').filter_map(move |pair| pair.strip_prefix(name)?.strip_prefix(b"="))
}

/// A parameter's value without escapes (WHATWG URL §5.1). What is no escape stands for itself.
fn decoded_parameter(value: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16).map(|digit| digit as u8);
    let (mut decoded, mut at) = (Vec::with_capacity(value.len()), 0);
    while let Some(byte) = value.get(at) {
        let escaped = digit(value.get(at + 1)).zip(digit(value.get(at + 2))).filter(|_| *byte == b'%');
        decoded.push(match escaped {
            Some((high, low)) => high << 4 | low,
            None if *byte == b'+' => b' ',
            None => *byte,
        });
        at += if escaped.is_some() { 3 } else { 1 };
    }
    decoded
}

#[cfg(test)]
mod tests;
