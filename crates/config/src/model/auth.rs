//! `auth` of a route: who may use it, and what servers are told of them.

use std::ops::Deref;
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{At, BackendId, BackendTls, WebAddress};
use crate::shown;

/// Proof that requests of a route have to bring before anything is done for them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Auth {
    /// Proofs, in the order in which they are looked for.
    #[serde(flatten)]
    pub proofs: Proofs,
    /// Field in which servers are told who that is: the user, the name of the key, the token's subject, or whom the
    /// other service names. Absent: none.
    pub user_to: Option<String>,
    /// Whether servers do without what proved it. Default no.
    pub hide_credentials: bool,
    /// Time after which it is looked whether files have changed. Absent: they are read with the configuration alone.
    #[serde(serialize_with = "shown::written")]
    pub watch: Option<Duration>,
    /// Position of the table.
    #[serde(skip)]
    pub at: At,
}

/// Proofs of a route, and how many of them a request has to bring.
#[derive(Clone, Debug, PartialEq)]
pub enum Proofs {
    /// The only one.
    One(Proof),
    /// Several, of which one will do.
    Any(Vec<Proof>),
    /// Several, each of which has to be good.
    All(Vec<Proof>),
}

/// Kind of proof of whom a request is from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// A name and a password (RFC 7617).
    Basic(Basic),
    /// A key that is listed.
    ApiKey(ApiKey),
    /// A token that an issuer has signed (RFC 7519).
    Jwt(Jwt),
    /// The word of another service, which is asked about each request.
    Forward(Forward),
}

/// Names and passwords.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Basic {
    /// File of users, with a line `NAME:HASH` for each.
    #[serde(serialize_with = "shown::written")]
    pub file: PathBuf,
    /// Text with which browsers ask for the password.
    pub realm: String,
    /// Time for which a password that was right is not checked again. Zero: it always is.
    #[serde(serialize_with = "shown::written")]
    pub remember: Duration,
}

/// Keys in a field or a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApiKey {
    /// File of keys, with a line `NAME:SHA256` for each.
    #[serde(serialize_with = "shown::written")]
    pub file: PathBuf,
    /// Field that has the key; none where a parameter of the query has it.
    pub header: Option<String>,
    /// Parameter of the query that has the key.
    pub query: Option<String>,
}

/// Tokens of an issuer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Jwt {
    /// Issuer that tokens have to name (`iss`).
    pub issuer: String,
    /// Audiences, one of which tokens have to be for (`aud`).
    #[serde(serialize_with = "one_or_many")]
    pub audience: Vec<String>,
    /// The issuer's public keys, as a set (RFC 7517 §5).
    #[serde(flatten)]
    pub keys: TokenKeys,
    /// Algorithms that tokens may be signed by.
    pub algorithms: Vec<String>,
    /// Type that tokens have to say they are (`typ`). Absent: any.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Cookie that has the token. Absent: the field `Authorization` has it.
    pub cookie: Option<String>,
    /// Time by which clocks may differ.
    #[serde(serialize_with = "shown::written")]
    pub leeway: Duration,
    /// Fields in which servers are told claims, with the claims' names.
    #[serde(serialize_with = "pairs", skip_serializing_if = "Vec::is_empty")]
    pub claims_to: Vec<(String, String)>,
}

/// Place of an issuer's public keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TokenKeys {
    /// A file.
    File {
        /// File of the set.
        #[serde(serialize_with = "shown::written")]
        keys_file: PathBuf,
    },
    /// A URL that they are fetched from.
    Url(Box<KeysUrl>),
}

/// URL that an issuer's public keys are fetched from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeysUrl {
    /// The URL, of https.
    #[serde(rename = "keys_url")]
    pub address: WebAddress,
    /// File of the authorities that may sign its certificate. Absent: the system's.
    #[serde(serialize_with = "shown::written")]
    pub keys_ca: Option<PathBuf>,
    /// Time after which the keys are fetched again.
    #[serde(serialize_with = "shown::written")]
    pub keys_refresh: Duration,
    /// Terms of TLS with it.
    #[serde(skip)]
    pub tls: BackendTls,
}

/// Another service that says who may come in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forward {
    /// Backend that is asked.
    #[serde(skip)]
    pub backend: BackendId,
    /// Name of the backend.
    #[serde(rename = "backend")]
    pub name: String,
    /// Path, and perhaps query, of the question. Absent: those of the request.
    pub path: Option<String>,
    /// Host of the question. Absent: that of the request.
    pub host: Option<String>,
    /// Fields of the request that the question has. Absent: all but those about its body.
    pub send: Option<Vec<String>>,
    /// Fields of the answer that servers get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copy: Vec<String>,
    /// Field of the answer that names the user. Absent: nobody is named.
    pub user_from: Option<String>,
}

impl Auth {
    /// Fields that servers are told of by, which clients cannot send.
    pub fn fields(&self) -> impl Iterator<Item = &str> + Clone {
        self.user_to.as_deref().into_iter().chain(self.proofs.iter().flat_map(Proof::fields))
    }

    /// Files of what proofs are compared with.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.proofs.iter().filter_map(Proof::file)
    }

    /// Other services that are asked.
    pub fn forwards(&self) -> impl Iterator<Item = &Forward> + Clone {
        self.proofs.iter().filter_map(|proof| if let Proof::Forward(forward) = proof { Some(forward) } else { None })
    }

    /// Whether some proof can name a user.
    pub fn names_users(&self) -> bool {
        self.proofs.iter().any(|proof| !matches!(proof, Proof::Forward(Forward { user_from: None, .. })))
    }
}

/// The proofs, however many it takes.
impl Deref for Proofs {
    type Target = [Proof];

    fn deref(&self) -> &[Proof] {
        match self {
            Proofs::One(one) => slice::from_ref(one),
            Proofs::Any(several) | Proofs::All(several) => several,
        }
    }
}

impl Proof {
    /// Fields that servers are told more by than the user.
    pub fn fields(&self) -> impl Iterator<Item = &str> + Clone {
        let (claims, copied) = match self {
            Proof::Jwt(jwt) => (&jwt.claims_to[..], &[][..]),
            Proof::Forward(forward) => (&[][..], &forward.copy[..]),
            Proof::Basic(_) | Proof::ApiKey(_) => (&[][..], &[][..]),
        };
        claims.iter().map(|(field, _)| field).chain(copied).map(String::as_str)
    }

    /// File of what the proof is compared with.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Proof::Basic(basic) => Some(&basic.file),
            Proof::ApiKey(keys) => Some(&keys.file),
            Proof::Jwt(Jwt { keys: TokenKeys::File { keys_file }, .. }) => Some(keys_file),
            Proof::Jwt(_) | Proof::Forward(_) => None,
        }
    }

    /// URL of what the proof is compared with.
    pub fn keys_url(&self) -> Option<&KeysUrl> {
        match self {
            Proof::Jwt(Jwt { keys: TokenKeys::Url(url), .. }) => Some(&**url),
            _ => None,
        }
    }
}

/// The only proof by its kind, several as the list `any` or `all`.
impl Serialize for Proofs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Proofs::One(one) => one.serialize(serializer),
            Proofs::Any(several) => serializer.collect_map([("any", several)]),
            Proofs::All(several) => serializer.collect_map([("all", several)]),
        }
    }
}

fn one_or_many<S: Serializer>(texts: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    match texts {
        [one] => serializer.serialize_str(one),
        many => serializer.collect_seq(many),
    }
}

fn pairs<S: Serializer>(pairs: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(field, claim)| (field, claim)))
}
