//! `auth` of a route: who may use it, and what servers are told of them.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::At;
use crate::shown;

/// Proof that requests of a route have to bring before anything is done for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Auth {
    /// Kind of proof.
    #[serde(flatten)]
    pub proof: Proof,
    /// Field in which servers are told who that is: the user, the name of the key, or the token's subject. Absent:
    /// none.
    pub user_to: Option<String>,
    /// Whether servers do without what proved it. Default no.
    pub hide_credentials: bool,
    /// Position of the table.
    #[serde(skip)]
    pub at: At,
}

/// Kind of proof of whom a request is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// A name and a password (RFC 7617).
    Basic(Basic),
    /// A key that is listed.
    ApiKey(ApiKey),
    /// A token that an issuer has signed (RFC 7519).
    Jwt(Jwt),
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Jwt {
    /// Issuer that tokens have to name (`iss`).
    pub issuer: String,
    /// Audiences, one of which tokens have to be for (`aud`).
    #[serde(serialize_with = "one_or_many")]
    pub audience: Vec<String>,
    /// File of the issuer's public keys, as a set (RFC 7517 §5).
    #[serde(serialize_with = "shown::written")]
    pub keys_file: PathBuf,
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

impl Auth {
    /// Fields that servers are told of by, which clients cannot send.
    pub fn fields(&self) -> impl Iterator<Item = &str> + Clone {
        let claims = match &self.proof {
            Proof::Jwt(jwt) => jwt.claims_to.as_slice(),
            Proof::Basic(_) | Proof::ApiKey(_) => &[],
        };
        self.user_to.as_deref().into_iter().chain(claims.iter().map(|(field, _)| field.as_str()))
    }

    /// File of what proofs are compared with.
    pub fn file(&self) -> &PathBuf {
        match &self.proof {
            Proof::Basic(basic) => &basic.file,
            Proof::ApiKey(keys) => &keys.file,
            Proof::Jwt(jwt) => &jwt.keys_file,
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
