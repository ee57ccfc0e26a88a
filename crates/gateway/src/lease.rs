//! Election of the one that writes statuses, by a Lease.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::exchange::{Ask, Peer};
use crate::resources::Key;

/// A lease that was not renewed for this time may be taken. Whoever holds it gives up writing a third before.
const DURATION: Duration = Duration::from_secs(15);
const RENEW_BEFORE: Duration = Duration::from_secs(10);
/// Between two looks.
const EVERY: Duration = Duration::from_secs(2);

pub struct Election {
    api: Arc<Peer>,
    lease: Key,
    identity: String,
    /// The version of another's lease, and since when it is the same by our clock.
    seen: Option<(String, Instant)>,
}

impl Election {
    pub fn new(api: Arc<Peer>, lease: Key, identity: String) -> Election {
        Election { api, lease, identity, seen: None }
    }

    /// Goes on for good; `leads` says whether this is the one.
    pub async fn run(mut self, leads: watch::Sender<bool>) {
        let mut renewed: Option<Instant> = None;
        while !leads.is_closed() {
            // Others count from when they saw the renewal, which is after it was asked for.
            let asked = Instant::now();
            let held = renewed.filter(|renewed| renewed.elapsed() < RENEW_BEFORE);
            let end = held.map_or(asked + DURATION, |renewed| renewed + RENEW_BEFORE);
            match timeout_at(end, self.step()).await {
                Ok(Ok(true)) => renewed = Some(asked),
                Ok(Ok(false)) => renewed = None,
                Ok(Err(why)) => eprintln!("warning: lease {}: {why}", self.lease),
                Err(_) => eprintln!("warning: lease {}: no answer in time", self.lease),
            }
            let is_leader = renewed.is_some_and(|renewed| renewed.elapsed() < RENEW_BEFORE);
            leads.send_if_modified(|known| std::mem::replace(known, is_leader) != is_leader);
            sleep(EVERY).await;
        }
    }

    async fn step(&mut self) -> Result<bool, String> {
        let folder = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.lease.namespace);
        let path = format!("{folder}/{}", self.lease.name);
        let (status, _, body) = self.api.ask(&Ask::get(&path)).await?;
        if status == StatusCode::NOT_FOUND {
            let lease = self.lease(&Value::Null);
            return self.write(Method::POST, &folder, lease).await;
        }
        if status != StatusCode::OK {
            return Err(crate::watch::said(status, &body));
        }
        let lease: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if holder != self.identity && !holder.is_empty() {
            // The other's clock is not asked: what counts is how long its lease has not changed by ours.
            let is_same = self.seen.as_ref().is_some_and(|(seen, _)| seen == version);
            if !is_same {
                self.seen = Some((version.to_owned(), Instant::now()));
                return Ok(false);
            }
            if self.seen.as_ref().is_some_and(|(_, since)| since.elapsed() < DURATION) {
                return Ok(false);
            }
        }
        let next = self.lease(&lease);
        self.write(Method::PUT, &path, next).await
    }

    fn lease(&self, before: &Value) -> Value {
        let now = OffsetDateTime::now_utc();
        // The API wants microseconds, six digits of them.
        let now = now.replace_nanosecond(1000).unwrap_or(now).format(&Rfc3339).unwrap_or_default();
        let is_own = before["spec"]["holderIdentity"] == self.identity.as_str();
        let transitions = before["spec"]["leaseTransitions"].as_u64().unwrap_or(0) + u64::from(!is_own);
        let acquired = if is_own { before["spec"]["acquireTime"].clone() } else { now.clone().into() };
        let mut metadata = json!({ "name": self.lease.name, "namespace": self.lease.namespace });
        if let Some(version) = before["metadata"]["resourceVersion"].as_str() {
            metadata["resourceVersion"] = version.into();
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity, "leaseDurationSeconds": DURATION.as_secs(), "renewTime": now,
                "acquireTime": acquired, "leaseTransitions": transitions,
            },
        })
    }

    /// A conflict means that another was faster.
    async fn write(&self, method: Method, path: &str, lease: Value) -> Result<bool, String> {
        let body = Bytes::from(lease.to_string());
        let (status, _, body) = self.api.ask(&Ask { method, path, content_type: "application/json", body }).await?;
        match status {
            StatusCode::CONFLICT => Ok(false),
            status if status.is_success() => Ok(true),
            status => Err(crate::watch::said(status, &body)),
        }
    }
}
