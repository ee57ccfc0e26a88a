//! Transactions: comparisons, and what is done when all of them hold or one does not.

use serde_json::{Map, Value, json};

use super::wire::{
    Base64Bytes, DeleteRequest, OperationAnswer, PutRequest, RangeRequest, end_of_prefix, start_of_prefix,
};
use super::{KeyValue, Lease};

/// Comparisons and operations of one transaction. etcd's own limit for each list, unless it was raised.
pub const TXN_OPERATIONS_MAX: usize = 128;

/// A transaction is carried out as a whole, at one revision.
#[derive(Clone, Default)]
pub struct Txn {
    compares: Vec<Value>,
    then: Vec<Value>,
    otherwise: Vec<Value>,
}

/// Comparison of one key's state. A key that is absent has the revisions, the version and the lease 0.
#[derive(Clone, PartialEq, Eq)]
pub enum Compare {
    CreateRevision(u64),
    ModRevision(u64),
    Version(u64),
    /// Fails for a key that is absent.
    Value(Vec<u8>),
    Lease(Option<Lease>),
}

/// One step of a transaction. No key may be put, or deleted, twice in one.
#[derive(Clone, PartialEq, Eq)]
pub enum Operation {
    Put { key: Vec<u8>, value: Vec<u8>, lease: Option<Lease> },
    Get { key: Vec<u8> },
    Delete { key: Vec<u8> },
    DeletePrefix { prefix: Vec<u8> },
}

/// The end of a transaction that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnOutcome {
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// Revision of the store afterwards: the `mod_revision` of what was put.
    pub revision: u64,
    /// One for each operation of the list that was carried out, in its order.
    pub results: Vec<OperationResult>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    Put,
    Got(Option<KeyValue>),
    Deleted(u64),
}

impl Txn {
    pub fn new() -> Txn {
        Txn::default()
    }

    /// The key's state has to be this one.
    #[must_use]
    pub fn when(mut self, key: impl AsRef<[u8]>, compare: &Compare) -> Txn {
        self.compares.push(compare.written(key.as_ref(), "EQUAL"));
        self
    }

    /// The key's state has to be another one.
    #[must_use]
    pub fn when_not(mut self, key: impl AsRef<[u8]>, compare: &Compare) -> Txn {
        self.compares.push(compare.written(key.as_ref(), "NOT_EQUAL"));
        self
    }

    #[must_use]
    pub fn when_absent(self, key: impl AsRef<[u8]>) -> Txn {
        self.when(key, &Compare::CreateRevision(0))
    }

    /// Done if all comparisons hold.
    #[must_use]
    pub fn then(mut self, operation: &Operation) -> Txn {
        self.then.push(operation.written());
        self
    }

    /// Done if a comparison does not hold.
    #[must_use]
    pub fn otherwise(mut self, operation: &Operation) -> Txn {
        self.otherwise.push(operation.written());
        self
    }

    pub(super) fn is_too_large(&self) -> bool {
        [&self.compares, &self.then, &self.otherwise].iter().any(|list| list.len() > TXN_OPERATIONS_MAX)
    }

    pub(super) fn written(&self) -> Value {
        json!({ "compare": self.compares, "success": self.then, "failure": self.otherwise })
    }

    /// Whether an answer has as many results as there were operations.
    pub(super) fn fits(&self, succeeded: bool, results: usize) -> bool {
        results == if succeeded { self.then.len() } else { self.otherwise.len() }
    }
}

impl Compare {
    fn written(&self, key: &[u8], result: &str) -> Value {
        let (target, field, operand) = match self {
            Compare::CreateRevision(revision) => ("CREATE", "create_revision", json!(revision.to_string())),
            Compare::ModRevision(revision) => ("MOD", "mod_revision", json!(revision.to_string())),
            Compare::Version(version) => ("VERSION", "version", json!(version.to_string())),
            Compare::Value(value) => ("VALUE", "value", json!(Base64Bytes(value.clone()))),
            Compare::Lease(lease) => {
                ("LEASE", "lease", json!(lease.map_or("0".to_string(), |lease| lease.to_string())))
            }
        };
        json!({ "key": Base64Bytes(key.to_vec()), "target": target, "result": result, field: operand })
    }
}

impl Operation {
    fn written(&self) -> Value {
        let bytes = |bytes: &[u8]| Base64Bytes(bytes.to_vec());
        let (name, request) = match self {
            Operation::Put { key, value, lease } => {
                let lease = lease.map(|lease| lease.to_string());
                ("request_put", json!(PutRequest { key: bytes(key), value: bytes(value), lease }))
            }
            Operation::Get { key } => {
                let request =
                    RangeRequest { key: bytes(key), range_end: None, limit: 1, revision: 0, keys_only: false };
                ("request_range", json!(request))
            }
            Operation::Delete { key } => {
                ("request_delete_range", json!(DeleteRequest { key: bytes(key), range_end: None }))
            }
            Operation::DeletePrefix { prefix } => {
                let (key, range_end) = (start_of_prefix(prefix), Some(Base64Bytes(end_of_prefix(prefix))));
                ("request_delete_range", json!(DeleteRequest { key: Base64Bytes(key), range_end }))
            }
        };
        Value::Object(Map::from_iter([(name.to_string(), request)]))
    }
}

impl OperationResult {
    /// Absent for an answer that is none.
    pub(super) fn of(answer: OperationAnswer) -> Option<OperationResult> {
        match answer {
            OperationAnswer { response_range: Some(range), .. } => {
                Some(OperationResult::Got(range.kvs.into_iter().next().map(KeyValue::from)))
            }
            OperationAnswer { response_put: Some(_), .. } => Some(OperationResult::Put),
            OperationAnswer { response_delete_range: Some(deleted), .. } => {
                Some(OperationResult::Deleted(deleted.deleted))
            }
            _ => None,
        }
    }
}
