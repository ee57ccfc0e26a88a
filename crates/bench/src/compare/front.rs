//! Rows about what a proxy does to a request: the same change, limit, compression or proof in every program's words.
//!
//! Each is written as its own manual advises. What a program has no words for is its objection.

use super::peers::Peer;
use super::site::Site;
use crate::failure::{Failure, Outcome, While};
use crate::scratch::ScratchDir;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64ct::{Base64UrlUnpadded, Encoding};
use rcgen::PKCS_ECDSA_P256_SHA256;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Uncompressed bytes of each answer of the row about compression.
pub const GZIP_BYTES: u64 = 65_536;
/// How hard gzip tries. HAProxy's own library has one level, about that of 1.
const GZIP_LEVEL: u32 = 5;
const ISSUER: &str = "https://id.bench.test";
const AUDIENCE: &str = "bench";
const KEY_SET: &str = "issuer.json";
const PUBLIC_KEY: &str = "issuer.pem";
const TOKEN: &str = "token.jwt";
/// Longer than any comparison.
const TOKEN_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Work on requests and responses beside handing them on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Front {
    /// A field for the server, a field for the client, and one of the server's taken away.
    Changes,
    /// The path by a regular expression with two groups.
    Rewrite,
    /// A rate for each source, which nobody reaches.
    Limit,
    /// Text in gzip.
    Gzip,
    /// A token that an issuer has signed with ES256: signature, issuer, audience and expiry.
    Token,
}

/// Lines that a configuration has more than without.
#[derive(Debug, Default)]
pub struct Lines {
    /// Outside of the listener: nginx's `http`, HAProxy's frontend.
    pub outer: String,
    /// Place where requests are handed on: the route, nginx's `location`.
    pub inner: String,
}

impl Front {
    pub const ALL: [Self; 5] = [Self::Changes, Self::Rewrite, Self::Limit, Self::Gzip, Self::Token];

    pub fn path(self) -> &'static str {
        match self {
            Self::Changes | Self::Limit | Self::Token => "/",
            Self::Rewrite => "/api/v2/items/7",
            Self::Gzip => "/text/65536",
        }
    }

    /// Fields of each request, in lines. Tokens are in the site's directory.
    pub fn request_fields(self, directory: &Path) -> Outcome<String> {
        match self {
            Self::Changes | Self::Rewrite | Self::Limit => Ok(String::new()),
            Self::Gzip => Ok("Accept-Encoding: gzip\r\n".to_owned()),
            Self::Token => {
                let token = std::fs::read_to_string(directory.join(TOKEN)).when("reading the token")?;
                Ok(format!("Authorization: Bearer {token}\r\n"))
            }
        }
    }

    /// Reason why a program cannot be configured for this.
    pub fn objection(self, peer: Peer) -> Option<&'static str> {
        match (self, peer) {
            (_, Peer::Envoy) => Some("this comparison has no configuration of Envoy for it"),
            (Self::Token, Peer::Nginx) => Some("auth_jwt is not in the open-source edition"),
            _ => None,
        }
    }

    pub fn propylon(self, site: &Site) -> Lines {
        let inner = match self {
            Self::Changes => "request = { set = { X-Real-IP = \"{client.ip}\" } }\n\
                 response = { set = { Strict-Transport-Security = \"max-age=31536000\" }, remove = [\"X-Origin\"] }\n"
                .to_owned(),
            Self::Rewrite => {
                "request = { path = { regex = '^/api/v([0-9]+)/(.*)$', to = '/$2?version=$1' } }\n".to_owned()
            }
            Self::Limit => "limit = [{ rate = \"1000000/s\", burst = 1000000 }]\n".to_owned(),
            Self::Gzip => {
                format!("compress = {{ encodings = [\"gzip\"], level = {{ gzip = {GZIP_LEVEL} }}, busy_max = 100 }}\n")
            }
            Self::Token => format!(
                "auth = {{ jwt = {{ issuer = \"{ISSUER}\", audience = \"{AUDIENCE}\", keys_file = {:?} }} }}\n",
                site.file(KEY_SET)
            ),
        };
        Lines { inner, ..Lines::default() }
    }

    pub fn nginx(self) -> Lines {
        match self {
            Self::Changes => Lines {
                inner: "
            proxy_set_header X-Real-IP $remote_addr;
            proxy_hide_header X-Origin;
            add_header Strict-Transport-Security max-age=31536000;"
                    .to_owned(),
                ..Lines::default()
            },
            Self::Rewrite => Lines {
                inner: "
            rewrite ^/api/v([0-9]+)/(.*)$ /$2?version=$1 break;"
                    .to_owned(),
                ..Lines::default()
            },
            Self::Limit => Lines {
                outer: "    limit_req_zone $binary_remote_addr zone=sources:1m rate=1000000r/s;\n".to_owned(),
                inner: "
            limit_req zone=sources burst=1000000 nodelay;"
                    .to_owned(),
            },
            Self::Gzip => Lines {
                inner: format!(
                    "
            gzip on;
            gzip_types text/plain;
            gzip_comp_level {GZIP_LEVEL};
            gzip_min_length 1024;"
                ),
                ..Lines::default()
            },
            // An objection comes first.
            Self::Token => Lines::default(),
        }
    }

    pub fn haproxy(self, site: &Site) -> Lines {
        let lines: Vec<String> = match self {
            Self::Changes => vec![
                "http-request set-header X-Real-IP %[src]".to_owned(),
                "http-response set-header Strict-Transport-Security max-age=31536000".to_owned(),
                "http-response del-header X-Origin".to_owned(),
            ],
            Self::Rewrite => vec![r"http-request replace-uri ^/api/v([0-9]+)/(.*)$ /\2?version=\1".to_owned()],
            Self::Limit => vec![
                "stick-table type ip size 8k expire 10s store http_req_rate(1s)".to_owned(),
                "http-request track-sc0 src".to_owned(),
                "http-request deny deny_status 429 if { sc_http_req_rate(0) gt 1000000 }".to_owned(),
            ],
            Self::Gzip => vec!["compression algo gzip".to_owned(), "compression type text/plain".to_owned()],
            Self::Token => haproxy_token(&site.file(PUBLIC_KEY)),
        };
        Lines { outer: lines.iter().map(|line| format!("    {line}\n")).collect(), ..Lines::default() }
    }
}

/// As HAProxy's manual has it below `jwt_verify`, and with issuer and audience.
fn haproxy_token(public_key: &str) -> Vec<String> {
    let lines = [
        "http-request set-var(txn.bearer) http_auth_bearer".to_owned(),
        "http-request set-var(txn.jwt_alg) var(txn.bearer),jwt_header_query('$.alg')".to_owned(),
        "http-request deny unless { var(txn.jwt_alg) -m str ES256 }".to_owned(),
        format!("http-request deny unless {{ var(txn.bearer),jwt_payload_query('$.iss') -m str {ISSUER} }}"),
        format!("http-request deny unless {{ var(txn.bearer),jwt_payload_query('$.aud') -m str {AUDIENCE} }}"),
        "http-request set-var(txn.now) date()".to_owned(),
        "http-request set-var(txn.exp) var(txn.bearer),jwt_payload_query('$.exp','int')".to_owned(),
        "http-request deny if { var(txn.exp),sub(txn.now) -m int lt 0 }".to_owned(),
        format!("http-request deny unless {{ var(txn.bearer),jwt_verify(txn.jwt_alg,\"{public_key}\") 1 }}"),
    ];
    lines.to_vec()
}

/// Writes an issuer's public key, as each program wants it, and a token that it has signed.
pub fn write_issuer(scratch: &ScratchDir) -> Outcome<()> {
    let pair = rcgen::KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).when("making an issuer of tokens")?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pair.serialized_der())
        .map_err(|_| Failure::new("the key of the issuer of tokens was refused"))?;
    // An uncompressed point: 4, x, y (SEC 1 §2.3.3).
    let (x, y) = key.public_key().as_ref()[1..].split_at(32);
    let encode = Base64UrlUnpadded::encode_string;
    let keys = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": "bench", "x": encode(x), "y": encode(y) }] });
    let expiry = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + TOKEN_LIFE;
    let head = json!({ "alg": "ES256", "kid": "bench", "typ": "JWT" }).to_string();
    let claims = json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": expiry.as_secs() }).to_string();
    let signed = format!("{}.{}", encode(head.as_bytes()), encode(claims.as_bytes()));
    let signature =
        key.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|_| Failure::new("the token could not be signed"))?;
    let token = format!("{signed}.{}", encode(signature.as_ref()));
    for (name, text) in [(KEY_SET, keys.to_string()), (PUBLIC_KEY, pair.public_key_pem()), (TOKEN, token)] {
        let path = scratch.path().join(name);
        std::fs::write(&path, text).when(format_args!("writing {}", path.display()))?;
    }
    Ok(())
}
