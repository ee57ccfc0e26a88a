//! A route's demand for a proof, compiled: a request goes on with who it is from, or is refused, or its password has
//! to be checked first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64ct::{Base64, Encoding};
use propylon_config::Proof;
use propylon_http::fault::Fault;
use propylon_http::h1::{RequestHead, cookies};
use zeroize::Zeroizing;

use crate::api_keys::ApiKeys;
use crate::key_set::{Fetched, KeySet};
use crate::question::{Forward, Question};
use crate::tokens::{BadToken, Tokens};
use crate::users::{PasswordCheck, Users};

/// Bytes of a name and a password, as they are sent.
const BASIC_BYTES_MAX: usize = 2048;
const KEY_BYTES_MAX: usize = 1024;

/// A route's demand for a proof, and the fields that servers are told of the outcome by.
pub struct Gate {
    /// Proofs in the order in which they are looked for. Empty: anybody may come in, and is kept from sending what
    /// servers are told by other routes.
    pub(crate) proofs: Vec<Demand>,
    pub(crate) needed: Needed,
    pub(crate) user_to: Option<String>,
    /// Fields that servers do without.
    pub(crate) hidden: Vec<String>,
    /// Fields that clients cannot send.
    pub(crate) withheld: Vec<String>,
}

/// Proofs that a request needs, of those that are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    Any,
    All,
}

/// A proof that is asked for, and the challenge that asks for it; empty where others' answers have their own.
pub(crate) struct Demand {
    pub(crate) asked: Asked,
    pub(crate) challenge: String,
}

pub(crate) enum Asked {
    Basic { users: Arc<Users>, remember: Duration },
    KeyIn { field: String, keys: Arc<ApiKeys> },
    KeyInQuery { parameter: Parameter, keys: Arc<ApiKeys> },
    Token { cookie: Option<String>, tokens: Box<Tokens>, keys: Keys },
    Forward(Box<Forward>),
}

/// A parameter of queries that has keys.
pub(crate) struct Parameter {
    name: String,
    /// Name of the variable that it is in PHP.
    variable: Vec<u8>,
}

/// Keys of an issuer.
pub(crate) enum Keys {
    Read(Arc<KeySet>),
    Fetched(Arc<Fetched>),
}

impl Keys {
    /// The keys; `None` where they have not come yet.
    fn set(&self) -> Option<&KeySet> {
        match self {
            Keys::Read(keys) => Some(keys),
            Keys::Fetched(fetched) => fetched.keys.as_ref(),
        }
    }

    /// Takes note that a token names a key that is not there.
    fn miss(&self) {
        if let Keys::Fetched(fetched) = self {
            fetched.is_missed.store(true, Ordering::Relaxed);
        }
    }
}

/// Outcome of a look at a request.
pub enum Look<'g> {
    /// The request goes on.
    In(Identity),
    /// The request is answered.
    Refused(Refusal),
    /// The password is to be checked: [`Looked::accept`] is told who it is of if it is right, or else
    /// [`Looked::refuse_password`]. One that was right is not checked again for this time.
    Password(PasswordCheck, Identity, Duration),
    /// Another service is to be asked. Its refusal is the answer; otherwise [`Looked::accept`] is told whom it names.
    Ask(&'g Forward),
}

/// State of a look at a request, from proof to proof.
#[derive(Default)]
pub struct Looked {
    /// The proof that is next.
    next: usize,
    /// Fault of the first proof that is there and no good.
    fault: Option<Fault>,
    /// Challenges with what is wrong in them, by proof.
    said: Vec<(usize, String)>,
    /// Word of the proofs that are good; none before there is one.
    proven: Option<Identity>,
}

/// Name and more of whoever a request is from.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Name of the user.
    pub(crate) user: Option<Vec<u8>>,
    /// Fields that servers are told.
    pub(crate) fields: Vec<(String, Vec<u8>)>,
}

/// Why a request is refused: a fault, and the values of `WWW-Authenticate` (RFC 9110 §11.6.1).
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub fault: Fault,
    pub challenges: Vec<String>,
}

/// Text after `Basic` or `Bearer`, or why there is none.
enum Credentials<'a> {
    Missing,
    Malformed,
    Are(&'a [u8]),
}

/// Outcome of a look for one proof.
enum One<'g> {
    Good(Identity),
    /// Others have to find out.
    Open(Look<'g>),
    Missing,
    /// A proof is there and no good, with a fault, and what its challenge says of it.
    Bad(Fault, Option<String>),
}

impl Identity {
    fn named(user: Option<&str>) -> Identity {
        Identity { user: user.map(|user| user.as_bytes().to_vec()), fields: Vec::new() }
    }
}

impl Looked {
    /// The password that was to be checked is wrong.
    pub fn refuse_password(&mut self) {
        self.refuse(Fault::CredentialsRefused, None);
    }

    /// A proof is good: it names somebody, and what servers are told of them. Of several users the first counts.
    pub fn accept(&mut self, identity: Identity) {
        let Identity { user, fields } = identity;
        let proven = self.proven.get_or_insert_default();
        proven.user = proven.user.take().or(user);
        proven.fields.extend(fields);
    }

    fn refuse(&mut self, fault: Fault, said: Option<String>) {
        // A proof that cannot be judged may be good.
        match self.fault {
            Some(_) if fault != Fault::KeysMissing => {}
            _ => self.fault = Some(fault),
        }
        self.said.extend(said.map(|said| (self.next - 1, said)));
    }
}

impl Gate {
    /// Looks at a request's head, with its bytes, for the proofs that have not been looked for. `now` is in seconds
    /// since 1970.
    pub fn look(&self, (head, text): (&RequestHead, &[u8]), now: u64, looked: &mut Looked) -> Look<'_> {
        if self.proofs.is_empty() {
            return Look::In(Identity::default());
        }
        while !self.is_decided(looked) {
            let demand = &self.proofs[looked.next];
            looked.next += 1;
            match self.one(demand, (head, text), now) {
                One::Good(identity) => looked.accept(identity),
                One::Open(look) => return look,
                One::Missing if self.needed == Needed::All => looked.refuse(Fault::CredentialsMissing, None),
                One::Missing => {}
                One::Bad(fault, said) => looked.refuse(fault, said),
            }
        }
        match looked.proven.take() {
            Some(proven) if self.needed == Needed::Any || looked.fault.is_none() => Look::In(self.told(proven)),
            _ => Look::Refused(self.refusal(looked)),
        }
    }

    /// Whether no other proof makes a difference.
    fn is_decided(&self, looked: &Looked) -> bool {
        let is_enough = match self.needed {
            Needed::Any => looked.proven.is_some(),
            Needed::All => looked.fault.is_some(),
        };
        is_enough || looked.next == self.proofs.len()
    }

    fn one<'g>(&'g self, demand: &'g Demand, (head, text): (&RequestHead, &[u8]), now: u64) -> One<'g> {
        match &demand.asked {
            Asked::Basic { users, remember } => basic(users, *remember, credentials(head, text, b"basic")),
            Asked::KeyIn { field, keys } => key(keys, exact(fields_read_as(head, text, field))),
            Asked::KeyInQuery { parameter, keys } => {
                let value = exact(parameter.read_as(head.query(text)));
                key(keys, value.map(|value| value.map(decoded_parameter)).as_ref().map(Option::as_deref))
            }
            Asked::Token { cookie, tokens, keys } => {
                let credentials = match cookie {
                    None => credentials(head, text, b"bearer"),
                    Some(name) => match only(cookies(&head.fields, text, name)) {
                        Ok(Some(token)) => Credentials::Are(token),
                        Ok(None) => Credentials::Missing,
                        Err(()) => Credentials::Malformed,
                    },
                };
                self.token((tokens, keys, &demand.challenge), credentials, now)
            }
            Asked::Forward(forward) => One::Open(Look::Ask(forward)),
        }
    }

    /// The question that another service is asked about a request; `None` where the request cannot be put into one.
    pub fn question(&self, forward: &Forward, head: &RequestHead, text: &[u8]) -> Option<Question> {
        forward.question((head, text), &self.withheld)
    }

    /// Lets a request in: servers are told who it is from, and nothing of the like that its client has sent.
    pub fn admit(&self, identity: &Identity, head: &mut RequestHead, text: &mut Vec<u8>) {
        head.fields.withhold(text, self.hidden.iter().map(String::as_str));
        // Balancing and stickiness by such a field go by what is proven.
        head.fields.forget(text, self.withheld.iter().map(String::as_str));
        for (name, value) in &identity.fields {
            head.fields.tell(text, name, value);
        }
        if let Some(user) = &identity.user {
            head.fields.note_user(text, user);
        }
    }

    fn token(
        &self,
        (tokens, keys, challenge): (&Tokens, &Keys, &str),
        credentials: Credentials<'_>,
        now: u64,
    ) -> One<'_> {
        let checked = match credentials {
            Credentials::Missing => return One::Missing,
            Credentials::Malformed => Err(BadToken::Malformed),
            Credentials::Are(token) => {
                let Some(set) = keys.set() else { return One::Bad(Fault::KeysMissing, None) };
                tokens.check(token, set, now)
            }
        };
        if let Err(BadToken::Key) = checked {
            keys.miss();
        }
        // A subject that servers are to be told of has to be there.
        let checked = checked.and_then(|said| match said.subject.is_none() && self.user_to.is_some() {
            true => Err(BadToken::Claim),
            false => Ok(said),
        });
        match checked {
            Ok(said) => {
                let fields = said.fields.into_iter().map(|(field, value)| (field, value.into_bytes())).collect();
                One::Good(Identity { user: said.subject.map(String::into_bytes), fields })
            }
            Err(why) => {
                // RFC 6750 §3.1.
                let said = format!("error=\"invalid_token\", error_description=\"{}\"", why.description());
                let fault = if why == BadToken::Expired { Fault::TokenExpired } else { Fault::CredentialsRefused };
                One::Bad(fault, Some(format!("{challenge}, {said}")))
            }
        }
    }

    /// An identity with the field that servers are told the user in.
    fn told(&self, mut identity: Identity) -> Identity {
        if let (Some(field), Some(user)) = (&self.user_to, &identity.user) {
            identity.fields.push((field.clone(), user.clone()));
        }
        identity
    }

    /// Refusal of a request that lacks a proof: it is told of all that would do, each once, or of the one that failed
    /// where all are needed.
    fn refusal(&self, looked: &Looked) -> Refusal {
        let mut challenges: Vec<String> = Vec::new();
        let first = if self.needed == Needed::All { looked.next.saturating_sub(1) } else { 0 };
        for (place, demand) in self.proofs.iter().enumerate().take(looked.next).skip(first) {
            let said = looked.said.iter().find(|(of, _)| *of == place).map_or(&demand.challenge, |(_, said)| said);
            // Challenges in the same words are one: the longer, which says what is wrong with the credentials.
            let known = challenges.iter_mut().find(|known| said.starts_with(&**known) || known.starts_with(said));
            match known {
                _ if said.is_empty() => {}
                Some(known) if said.len() > known.len() => known.clone_from(said),
                Some(_) => {}
                None => challenges.push(said.clone()),
            }
        }
        Refusal { fault: looked.fault.unwrap_or(Fault::CredentialsMissing), challenges }
    }
}

impl One<'_> {
    const REFUSED: Self = One::Bad(Fault::CredentialsRefused, None);
}

fn basic<'g>(users: &Users, remember: Duration, credentials: Credentials<'_>) -> One<'g> {
    let token = match credentials {
        Credentials::Missing => return One::Missing,
        Credentials::Malformed => return One::REFUSED,
        Credentials::Are(token) => token,
    };
    let mut decoded = Zeroizing::new([0; BASIC_BYTES_MAX]);
    let Ok(pair) = Base64::decode(token, &mut *decoded) else { return One::REFUSED };
    // RFC 7617 §2: no control characters, and the first colon ends the name.
    let is_whole = !pair.iter().any(u8::is_ascii_control);
    let Some(colon) = pair.iter().position(|byte| *byte == b':').filter(|_| is_whole) else {
        return One::REFUSED;
    };
    let (name, password) = (&pair[..colon], &pair[colon + 1..]);
    let check = users.check(name, Zeroizing::new(password.to_vec()));
    One::Open(Look::Password(check, Identity::named(std::str::from_utf8(name).ok()), remember))
}

fn key<'g>(keys: &ApiKeys, key: Result<Option<&[u8]>, impl Sized>) -> One<'g> {
    match key {
        Ok(Some(key)) => match keys.name(key).filter(|_| key.len() <= KEY_BYTES_MAX) {
            Some(name) => One::Good(Identity::named(Some(name))),
            None => One::REFUSED,
        },
        Ok(None) => One::Missing,
        Err(_) => One::REFUSED,
    }
}

/// Challenge by which clients are asked for a proof (RFC 7617 §2, RFC 6750 §3).
pub(crate) fn challenge(proof: &Proof) -> String {
    match proof {
        Proof::Basic(basic) => {
            let realm = basic.realm.replace('\\', "\\\\").replace('"', "\\\"");
            format!("Basic realm=\"{realm}\", charset=\"UTF-8\"")
        }
        Proof::ApiKey(_) => "Key realm=\"restricted\"".into(),
        Proof::Jwt(_) => "Bearer realm=\"restricted\"".into(),
        Proof::Forward(_) => String::new(),
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

/// The value of a name, out of all that servers may read as that name, each with whether it is the name itself. An
/// error if there are several, whichever of them a server reads.
fn exact<'a>(values: impl Iterator<Item = (bool, &'a [u8])>) -> Result<Option<&'a [u8]>, ()> {
    Ok(only(values)?.and_then(|(is_exact, value)| is_exact.then_some(value)))
}

/// Fields that servers may read as this one: variables of CGI have `_` for `-` (RFC 3875 §4.1.18). Not by
/// `is_same_or_lookalike`, which is about the `-` of names of ours: the name here is the operator's, and where that has
/// `_` the same with `-` is read as it.
fn fields_read_as<'a>(head: &RequestHead, text: &'a [u8], name: &str) -> impl Iterator<Item = (bool, &'a [u8])> {
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let found = head.fields.iter().filter_map(move |field| {
        let known = field.name.bytes(text);
        let is_it = known.len() == name.len() && known.iter().map(plain).eq(name.as_bytes().iter().map(plain));
        is_it.then(|| (known.eq_ignore_ascii_case(name.as_bytes()), field.value.bytes(text)))
    });
    found.collect::<Vec<_>>().into_iter()
}

impl Parameter {
    pub(crate) fn new(name: &str) -> Parameter {
        Parameter { name: name.to_owned(), variable: variable(name.as_bytes()) }
    }

    /// Parameters of a query with its `?` that servers may read as this one, however the name is spelled.
    fn read_as<'a>(&self, query: &'a [u8]) -> impl Iterator<Item = (bool, &'a [u8])> {
        let query = query.strip_prefix(b"?").unwrap_or(query);
        query.split(|byte| *byte == b'&').filter_map(|pair| {
            let mut parts = pair.splitn(2, |byte| *byte == b'=');
            let spelled = decoded_parameter(parts.next().unwrap_or_default());
            let is_exact = spelled == self.name.as_bytes();
            (is_exact || self.is_variable_of(&spelled)).then(|| (is_exact, parts.next().unwrap_or_default()))
        })
    }

    /// Whether a server may make this parameter's variable of another's name. To some the name ends at any bracket.
    fn is_variable_of(&self, name: &[u8]) -> bool {
        let ends = name.iter().position(|byte| *byte == b'[').unwrap_or(name.len());
        [name, &name[..ends]].into_iter().any(|name| variable(name) == self.variable)
    }
}

/// Name of the variable that PHP makes of a parameter: spaces before it are nothing, a zero byte ends it, and so does a
/// bracket that is closed; dots, spaces and a bracket that is not closed are `_` (php.net, "Variables From External
/// Sources", and `php_register_variable_ex`). Others take these names as they are.
fn variable(name: &[u8]) -> Vec<u8> {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let begin = name.iter().position(|byte| *byte != b' ').unwrap_or(name.len());
    let name = &name[begin..];
    let bracket = name.iter().position(|byte| *byte == b'[');
    let ends = bracket.filter(|bracket| *bracket == 0 || name[*bracket..].contains(&b']'));
    let name = &name[..ends.unwrap_or(name.len())];
    name.iter().map(|byte| if matches!(byte, b'.' | b' ' | b'[') { b'_' } else { *byte }).collect()
}

/// A parameter's name or value without escapes (WHATWG URL §5.1). What is no escape stands for itself.
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
