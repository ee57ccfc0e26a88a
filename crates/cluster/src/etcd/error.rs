//! Errors of requests to etcd: each says what is wrong, and what to do about it.

use std::fmt;

/// The reason why a request, or a watch, came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No connection, or one that ended before the answer. Nothing was changed; try again.
    Unreachable { endpoint: String, why: String },
    /// No answer within the time limit. Nothing was changed; try again.
    Timeout { endpoint: String },
    /// The request was sent, and no answer says whether it was carried out. Read before trying again.
    OutcomeUnknown { endpoint: String, why: String },
    /// The revision is not kept any more. Read everything again, and watch from there.
    Compacted { revision: u64 },
    /// The store is at an earlier revision than was seen of it, or is another one: it was restored from a backup.
    /// Read everything again, and watch from there.
    Rewound { endpoint: String },
    /// The quota of the store is used up: it can be read, and nothing can be put.
    NoSpace,
    /// The lease has expired or was revoked.
    LeaseGone,
    /// The user, the password or the right to these keys is missing.
    Unauthorized { why: String },
    /// The server is not etcd 3.4 or later with its JSON gateway.
    NotSupported { endpoint: String, what: String },
    /// More than the client is made for.
    TooLarge { what: &'static str, limit: usize },
    /// Another refusal of etcd's. The code is one of gRPC's.
    Refused { code: u32, message: String },
    /// An answer that cannot be understood.
    Malformed { endpoint: String, what: String },
}

/// Characters of a text from the peer that are shown.
const SHOWN_CHARS_MAX: usize = 200;

/// The start of a text from the peer, without characters that could forge lines of a log.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The meaning of a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// This member cannot do it now, and has not begun; another one may.
    Elsewhere(String),
    /// This member has no answer in time; it may have been done.
    Unknown(String),
    /// The token is not known any more.
    Token(String),
    /// The revision that was asked for is gone.
    Compacted,
    Final(Error),
}

/// Codes of gRPC.
const RESOURCE_EXHAUSTED: u32 = 8;
const UNAVAILABLE: u32 = 14;
const DEADLINE_EXCEEDED: u32 = 4;
const CANCELLED: u32 = 1;
const UNAUTHENTICATED: u32 = 16;
const PERMISSION_DENIED: u32 = 7;

impl Refusal {
    /// Goes by the text first: etcd uses one code for several meanings, and its texts are the same since 3.1.
    pub fn of(code: u32, message: &str) -> Refusal {
        let has = |part: &str| message.contains(part);
        let hint = if is_of_gateway(code, message) { GATEWAY_HINT } else { "" };
        let why = || format!("{}{hint}", shown(message));
        if has("has been compacted") {
            return Refusal::Compacted;
        }
        if has("database space exceeded") {
            return Refusal::Final(Error::NoSpace);
        }
        if has("requested lease not found") {
            return Refusal::Final(Error::LeaseGone);
        }
        // The last one: users were introduced since.
        if has("invalid auth token")
            || has("revision of auth store is old")
            || has("user name is empty")
            || code == UNAUTHENTICATED
        {
            return Refusal::Token(why());
        }
        if has("authentication failed") || code == PERMISSION_DENIED {
            return Refusal::Final(Error::Unauthorized { why: why() });
        }
        // Texts of the interceptor in front of every request, and of the gateway's own connection.
        if has("no leader") || has("too many requests") || has("SubConns are in TransientFailure") {
            return Refusal::Elsewhere(why());
        }
        match code {
            UNAVAILABLE | DEADLINE_EXCEEDED | CANCELLED => Refusal::Unknown(why()),
            RESOURCE_EXHAUSTED if has("larger than max") => {
                Refusal::Final(Error::TooLarge { what: "an answer, in bytes", limit: 0 })
            }
            _ => Refusal::Final(Error::Refused { code, message: why() }),
        }
    }
}

/// For a gateway whose own connection to its server ended. Nothing else tells that its certificate was refused there.
const GATEWAY_HINT: &str = "; if that stays so where etcd asks for clients' certificates: its own needs the extended \
                            key usage `clientAuth` as well, since its gateway shows it as a client's, and has to be \
                            of an authority in --trusted-ca-file";

fn is_of_gateway(code: u32, message: &str) -> bool {
    const PARTS: [&str; 3] = ["connection closed", "connection error", "SubConns are in TransientFailure"];
    code == UNAVAILABLE && PARTS.iter().any(|part| message.contains(part))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable { endpoint, why } => {
                write!(f, "etcd at {endpoint} cannot be reached: {why}")
            }
            Error::Timeout { endpoint } => {
                write!(
                    f,
                    "etcd at {endpoint} does not answer in time; see that most of its members run and reach each other"
                )
            }
            Error::OutcomeUnknown { endpoint, why } => {
                write!(
                    f,
                    "etcd at {endpoint} may or may not have carried it out: {why}; read the key before trying again"
                )
            }
            Error::Compacted { revision } => {
                write!(f, "etcd does not keep revision {revision} any more; read the keys again and watch from there")
            }
            Error::Rewound { endpoint } => write!(
                f,
                "etcd at {endpoint} has an older state than it had, or is another cluster; read the keys again, and \
                 see that all endpoints are members of one cluster"
            ),
            Error::NoSpace => f.write_str(
                "etcd takes no more data: its quota is used up; compact and defragment it (etcdctl compact, etcdctl \
                 defrag), then `etcdctl alarm disarm`, or raise --quota-backend-bytes",
            ),
            Error::LeaseGone => f.write_str("the lease has expired or was revoked; ask for a new one"),
            Error::Unauthorized { why } => write!(
                f,
                "etcd does not permit it: {why}; see the user and the password's file, and that the user's role may \
                 read and write the cluster's keys (etcdctl role grant-permission)"
            ),
            Error::NotSupported { endpoint, what } => write!(
                f,
                "{endpoint} is not an etcd 3.4 or later with its JSON gateway: {what}; see the address, and that etcd \
                 runs without --enable-grpc-gateway=false"
            ),
            Error::TooLarge { what, limit: 0 } => write!(f, "etcd has too much for one answer: {what}"),
            Error::TooLarge { what, limit } => write!(f, "etcd has more than can be read here: {what}, limit {limit}"),
            Error::Refused { code, message } => write!(f, "etcd refuses: {message} (code {code})"),
            Error::Malformed { endpoint, what } => {
                write!(
                    f,
                    "the answer of {endpoint} cannot be understood: {what}; see that it is etcd, unchanged on its way"
                )
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_etcd_are_told_apart_by_their_text() {
        let kind = |code, message: &str| Refusal::of(code, message);
        assert_eq!(kind(11, "etcdserver: mvcc: required revision has been compacted"), Refusal::Compacted);
        assert_eq!(kind(8, "etcdserver: mvcc: database space exceeded"), Refusal::Final(Error::NoSpace));
        assert_eq!(kind(5, "etcdserver: requested lease not found"), Refusal::Final(Error::LeaseGone));
        assert!(matches!(kind(16, "etcdserver: invalid auth token"), Refusal::Token(_)));
        assert!(matches!(kind(3, "etcdserver: revision of auth store is old"), Refusal::Token(_)));
        assert!(matches!(kind(7, "etcdserver: permission denied"), Refusal::Final(Error::Unauthorized { .. })));
        assert!(matches!(kind(14, "etcdserver: no leader"), Refusal::Elsewhere(_)));
        assert!(matches!(kind(14, "etcdserver: request timed out"), Refusal::Unknown(_)));
        assert!(matches!(kind(14, "etcdserver: leader changed"), Refusal::Unknown(_)));
        assert!(matches!(kind(3, "etcdserver: duplicate key given"), Refusal::Final(Error::Refused { code: 3, .. })));
    }

    #[test]
    fn a_peers_text_is_shown_short_and_in_one_line() {
        let text = shown(&format!("a\r\n\x1b[31m{}", "x".repeat(10_000)));
        assert_eq!(text.chars().count(), SHOWN_CHARS_MAX);
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }

    #[test]
    fn a_gateway_that_cannot_reach_its_own_server_is_explained() {
        for message in ["connection closed", "all SubConns are in TransientFailure, latest connection error: EOF"] {
            let (Refusal::Elsewhere(why) | Refusal::Unknown(why)) = Refusal::of(UNAVAILABLE, message) else {
                panic!("{message} is final");
            };
            assert!(why.contains("clientAuth"), "{why}");
        }
    }
}
