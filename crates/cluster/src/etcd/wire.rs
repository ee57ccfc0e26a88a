//! Messages of etcd's JSON gateway (`rpc.proto` of etcd 3.4 in proto3's JSON): 64-bit numbers are strings, bytes are
//! base64, and what is zero is left out.

use base64ct::{Base64, Encoding};
use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::Refusal;

/// Bytes of a key or a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Base64Bytes(pub Vec<u8>);

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Base64::encode_string(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Base64Bytes, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        // The text is not part of the error: it may be a secret's.
        let bytes =
            Base64::decode_vec(&text).map_err(|_| D::Error::invalid_value(Unexpected::Other("text"), &"base64"))?;
        Ok(Base64Bytes(bytes))
    }
}

/// A number in either of JSON's forms; below zero counts as zero, where etcd has no meaning for it.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(u64::try_from(signed(deserializer)?).unwrap_or(0))
}

fn signed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(i64),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Number(number) => Ok(number),
        Form::Text(text) => {
            text.parse().map_err(|_| D::Error::invalid_value(Unexpected::Other("text"), &"a 64-bit number"))
        }
    }
}

/// `deserialize_with` has no default of its own for numbers that may be `null`; etcd never writes that.
macro_rules! message {
    ($(#[$attribute:meta])* $name:ident { $($(#[$field_attribute:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$attribute])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(default)]
        pub(super) struct $name { $($(#[$field_attribute])* pub $field: $type,)* }
    };
}

message!(Header {
    #[serde(deserialize_with = "text_or_number")]
    cluster_id: String,
    #[serde(deserialize_with = "text_or_number")]
    member_id: String,
    #[serde(deserialize_with = "number")]
    revision: u64,
});

/// Identifiers use all 64 bits, without a sign.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(u64),
        Text(String),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::Number(number) => number.to_string(),
        Form::Text(text) => text.chars().take(20).collect(),
    })
}

message!(
    #[derive(Clone)]
    WireKeyValue {
        key: Base64Bytes,
        value: Base64Bytes,
        #[serde(deserialize_with = "number")]
        create_revision: u64,
        #[serde(deserialize_with = "number")]
        mod_revision: u64,
        #[serde(deserialize_with = "number")]
        version: u64,
        #[serde(deserialize_with = "signed")]
        lease: i64,
    }
);

message!(RangeAnswer {
    header: Header,
    kvs: Vec<WireKeyValue>,
    more: bool,
    #[serde(deserialize_with = "number")]
    count: u64,
});

message!(PutAnswer { header: Header });

message!(DeleteAnswer {
    header: Header,
    #[serde(deserialize_with = "number")]
    deleted: u64,
});

message!(TxnAnswer {
    header: Header,
    succeeded: bool,
    responses: Vec<OperationAnswer>,
});

message!(OperationAnswer {
    response_range: Option<RangeAnswer>,
    response_put: Option<PutAnswer>,
    response_delete_range: Option<DeleteAnswer>,
});

message!(LeaseAnswer {
    #[serde(rename = "ID", deserialize_with = "signed")]
    id: i64,
    #[serde(rename = "TTL", deserialize_with = "signed")]
    ttl: i64,
});

message!(StatusAnswer {
    header: Header,
    version: String,
    #[serde(rename = "dbSize", deserialize_with = "number")]
    db_bytes: u64,
    #[serde(deserialize_with = "text_or_number")]
    leader: String,
});

message!(TokenAnswer { token: String });

message!(WatchAnswer {
    header: Header,
    created: bool,
    canceled: bool,
    cancel_reason: String,
    #[serde(deserialize_with = "number")]
    compact_revision: u64,
    fragment: bool,
    events: Vec<WireEvent>,
});

message!(WireEvent {
    #[serde(rename = "type", deserialize_with = "is_delete")]
    delete: bool,
    kv: WireKeyValue,
});

fn is_delete<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match text_or_number(deserializer)?.as_str() {
        "PUT" | "0" => Ok(false),
        "DELETE" | "1" => Ok(true),
        _ => Err(D::Error::invalid_value(Unexpected::Other("an unknown type"), &"PUT or DELETE")),
    }
}

/// A message of a stream.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Streamed<T> {
    Result(T),
    Error(StreamError),
}

message!(StreamError {
    #[serde(alias = "code")]
    grpc_code: u32,
    message: String,
});

message!(RefusalAnswer {
    code: Option<u32>,
    message: String,
});

impl StreamError {
    pub fn refusal(&self) -> Refusal {
        Refusal::of(self.grpc_code, &self.message)
    }
}

#[derive(Serialize)]
pub(super) struct RangeRequest {
    pub key: Base64Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Base64Bytes>,
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub revision: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub keys_only: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PutRequest {
    pub key: Base64Bytes,
    pub value: Base64Bytes,
    /// As text: a number of JSON may lose bits on its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DeleteRequest {
    pub key: Base64Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Base64Bytes>,
}

/// First key behind all that begin with a prefix; for the empty prefix, and one of 0xff only, all keys behind.
pub(super) fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|&byte| byte != 0xff) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end
        }
        None => vec![0],
    }
}

/// First key of those that begin with a prefix: etcd takes no empty key.
pub(super) fn start_of_prefix(prefix: &[u8]) -> Vec<u8> {
    match prefix.is_empty() {
        true => vec![0],
        false => prefix.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_both_forms_of_numbers_and_with_what_is_zero_left_out() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","revision":"7"},
            "kvs":[{"key":"YQ==","create_revision":2,"mod_revision":"7","version":"3","value":"MQ=="}],
            "count":1,"new":[]}"#;
        let answer: RangeAnswer = serde_json::from_str(text).unwrap();
        assert_eq!((answer.header.revision, answer.count, answer.more), (7, 1, false));
        assert_eq!(answer.header.cluster_id, "14841639068965178418");
        let kv = &answer.kvs[0];
        assert_eq!((kv.key.0.as_slice(), kv.value.0.as_slice()), (&b"a"[..], &b"1"[..]));
        assert_eq!((kv.create_revision, kv.mod_revision, kv.version, kv.lease), (2, 7, 3, 0));
        let empty: RangeAnswer = serde_json::from_str("{}").unwrap();
        assert!(empty.kvs.is_empty());
    }

    #[test]
    fn messages_of_a_stream_are_results_or_errors_of_either_gateway() {
        let read = |text: &str| serde_json::from_str::<Streamed<WatchAnswer>>(text).unwrap();
        let Streamed::Result(answer) = read(
            r#"{"result":{"events":[{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"9"}},{"kv":{"key":"YQ=="}}]}}"#,
        ) else {
            panic!("an error");
        };
        assert!(answer.events[0].delete && !answer.events[1].delete);
        for text in [
            r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#,
            r#"{"error":{"code":14,"message":"etcdserver: no leader","details":[]}}"#,
        ] {
            let Streamed::Error(error) = read(text) else { panic!("no error") };
            assert!(matches!(error.refusal(), Refusal::Elsewhere(_)));
        }
    }

    #[test]
    fn nonsense_is_an_error_that_does_not_quote_it() {
        for text in [
            r#"{"kvs":[{"key":"c2VjcmV0*"}]}"#,
            r#"{"kvs":[{"mod_revision":"secret"}]}"#,
            r#"{"kvs":[{"mod_revision":"99999999999999999999"}]}"#,
            r#"{"header":{"revision":1e400}}"#,
            r#"{"kvs":{"secret":1}}"#,
            "[",
        ] {
            let error = serde_json::from_str::<RangeAnswer>(text).unwrap_err().to_string();
            assert!(!error.contains("secret") && !error.contains("c2Vj"), "{error}");
        }
        let negative: RangeAnswer = serde_json::from_str(r#"{"count":"-5"}"#).unwrap();
        assert_eq!(negative.count, 0);
    }

    #[test]
    fn a_prefix_ends_where_its_last_byte_that_can_grow_has_grown() {
        assert_eq!(end_of_prefix(b"a/"), b"a0");
        assert_eq!(end_of_prefix(b"a\xff\xff"), b"b");
        assert_eq!(end_of_prefix(b"\xff"), [0]);
        assert_eq!(end_of_prefix(b""), [0]);
        assert_eq!(start_of_prefix(b""), [0]);
    }
}
