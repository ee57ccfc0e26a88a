//! One kind of resource as the API server has it: a list, and then every change from there on.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::StatusCode;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::exchange::{Ask, Peer};
use crate::resources::Key;
use crate::world::Kind;

/// Resources of one list.
const LISTED_MAX: usize = 500_000;
/// A kind whose API is not there any more is believed to be gone after so many lists.
const MISSING_MAX: u32 = 5;
/// A watch that ends sooner is not begun anew at once.
const WATCH_MIN: Duration = Duration::from_secs(1);
/// A watch that has lasted so long has worked.
const STEADY: Duration = Duration::from_secs(10);
/// The API server ends a watch after this time, and it begins anew where it was.
const WATCH_SECONDS: u32 = 290;
/// A watch that brings nothing for this time, not even its end, is begun anew.
const QUIET_MAX: Duration = Duration::from_secs(300);
/// One change: a resource has 1.5 MiB at most (etcd's limit), and JSON escapes some of it.
const LINE_BYTES_MAX: usize = 8 << 20;
/// Between two attempts, from the first to the last, with as much again by chance.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// News of a kind, or of one resource.
pub enum Event {
    /// All there are.
    List(Scope, Vec<Value>),
    Put(Kind, Value),
    Remove(Kind, Key),
    /// A kind cannot be read at the moment, and stays as it was.
    Trouble(Kind, String),
}

/// The namespaces that a kind is read from: all, or one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    pub kind: Kind,
    pub namespace: Option<String>,
}

impl Scope {
    fn path(&self, query: &str) -> String {
        let (group, plural) = self.kind.path();
        let selector = if self.kind == Kind::Secret { "&fieldSelector=type%3Dkubernetes.io%2Ftls" } else { "" };
        match &self.namespace {
            Some(namespace) => format!("{group}/namespaces/{namespace}/{plural}?{query}{selector}"),
            None => format!("{group}/{plural}?{query}{selector}"),
        }
    }
}

/// Why a watch has ended.
enum End {
    /// The API server has ended it in order: it goes on after this version.
    After(String),
    /// Changes after the version are not known any more (410), or something else is wrong: all is listed anew.
    Lost(String),
    /// Nobody listens any more.
    Closed,
}

/// Resources in one answer of a list, at most and at least: an answer is limited, and ConfigMaps and Secrets are large.
fn pages(kind: Kind) -> (usize, usize) {
    match kind {
        Kind::ConfigMap | Kind::Secret => (32, 1),
        _ => (500, 16),
    }
}

/// Follows a kind for good, and ends when nobody listens any more.
pub async fn follow(api: Arc<Peer>, scope: Scope, events: mpsc::Sender<Event>) {
    let (page_max, page_min) = pages(scope.kind);
    let (mut page, mut pause) = (page_max, BACKOFF.0);
    // Lists in a row that say that the kind is not there, though it was.
    let (mut was_there, mut missing) = (false, 0);
    loop {
        let listed = match list(&api, &scope, page).await {
            Ok(None) if was_there && missing < MISSING_MAX => {
                missing += 1;
                Err("it is not installed any more".to_owned())
            }
            Ok(None) => Ok((Vec::new(), String::new())),
            Ok(Some(listed)) => Ok(listed),
            Err(why) => {
                page = (page / 2).max(page_min);
                Err(why)
            }
        };
        let why = match listed {
            Ok((items, version)) => {
                (was_there, missing) = (!version.is_empty(), 0);
                page = (page * 2).min(page_max);
                if events.send(Event::List(scope.clone(), items)).await.is_err() {
                    return;
                }
                match watches(&api, &scope, version, &events, &mut pause).await {
                    Some(why) => why,
                    None => return,
                }
            }
            Err(why) => why,
        };
        if events.send(Event::Trouble(scope.kind, why)).await.is_err() {
            return;
        }
        rest(&mut pause).await;
    }
}

async fn rest(pause: &mut Duration) {
    sleep(pause.mul_f64(1.0 + fastrand::f64())).await;
    *pause = (*pause * 2).min(BACKOFF.1);
}

/// Watches one after the other, until changes are lost: then the reason. None where nobody listens any more.
async fn watches(
    api: &Peer,
    scope: &Scope,
    mut version: String,
    events: &mpsc::Sender<Event>,
    pause: &mut Duration,
) -> Option<String> {
    loop {
        let began = Instant::now();
        let end = watch(api, scope, &version, events).await;
        // One that has ended in order after a change has brought something.
        let is_news = matches!(&end, End::After(last) if *last != version);
        if is_news || began.elapsed() >= STEADY {
            *pause = BACKOFF.0;
        }
        match end {
            End::After(last) => version = last,
            End::Lost(why) => return Some(why),
            End::Closed => return None,
        }
        if began.elapsed() < WATCH_MIN {
            rest(pause).await;
        }
    }
}

/// All resources and the version that they are of; none of a kind that the API server does not know.
async fn list(api: &Peer, scope: &Scope, page: usize) -> Result<Option<(Vec<Value>, String)>, String> {
    let mut all = Vec::new();
    let mut next = String::new();
    for _ in 0..LISTED_MAX / page {
        let path = scope.path(&format!("limit={page}{next}"));
        let (status, _, body) = api.ask(&Ask::get(&path)).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        if status != StatusCode::OK {
            return Err(said(status, &body));
        }
        let mut read: Value = serde_json::from_slice(&body).map_err(|error| format!("a list is no JSON: {error}"))?;
        if let Value::Array(items) = read["items"].take() {
            all.extend(items);
        }
        let text = |key: &str| read["metadata"][key].as_str().unwrap_or_default().to_owned();
        let (version, token) = (text("resourceVersion"), text("continue"));
        if token.is_empty() {
            return Ok(Some((all, version)));
        }
        let escaped: String = token.bytes().map(|byte| format!("%{byte:02X}")).collect();
        next = format!("&continue={escaped}");
    }
    Err(format!("the list has more than {LISTED_MAX} resources"))
}

/// A status of the API server in words.
pub fn said(status: StatusCode, body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    format!("{}: {}", status.as_u16(), value["message"].as_str().unwrap_or("without a reason"))
}

async fn watch(api: &Peer, scope: &Scope, version: &str, events: &mpsc::Sender<Event>) -> End {
    // A kind that is not there may be installed any time: it is looked for again, after the pause of a failure.
    if version.is_empty() {
        sleep(BACKOFF.1).await;
        return End::Lost("it is not installed".to_owned());
    }
    let query = format!("watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={WATCH_SECONDS}");
    let response = match api.open(&Ask::get(&scope.path(&query))).await {
        Ok(response) => response,
        Err(why) => return End::Lost(why),
    };
    if response.status() != StatusCode::OK {
        return End::Lost(format!("a watch was answered with {}", response.status()));
    }
    let mut version = version.to_owned();
    let mut body = response.into_body();
    let mut lines = BytesMut::new();
    loop {
        let frame = match timeout(QUIET_MAX, body.frame()).await {
            Err(_) => return End::Lost("a watch brought nothing for too long".to_owned()),
            Ok(None) => return End::After(version),
            Ok(Some(Err(error))) => return End::Lost(error.to_string()),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        lines.extend_from_slice(&data);
        while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
            let line = lines.split_to(end + 1);
            match change(scope.kind, &line) {
                Ok((last, event)) => {
                    version = last.unwrap_or(version);
                    if let Some(event) = event
                        && events.send(event).await.is_err()
                    {
                        return End::Closed;
                    }
                }
                Err(why) => return End::Lost(why),
            }
        }
        if lines.len() > LINE_BYTES_MAX {
            return End::Lost(format!("a change has more than {LINE_BYTES_MAX} bytes"));
        }
    }
}

/// One line of a watch: the version after it, and what it tells.
fn change(kind: Kind, line: &[u8]) -> Result<(Option<String>, Option<Event>), String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|error| format!("a change is no JSON: {error}"))?;
    let object = value["object"].take();
    let version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    let event = match value["type"].as_str() {
        Some("ADDED" | "MODIFIED") => Some(Event::Put(kind, object)),
        Some("DELETED") => Some(Event::Remove(kind, Key { namespace: text("namespace"), name: text("name") })),
        Some("BOOKMARK") => None,
        _ => return Err(format!("{}: {}", object["code"], object["message"].as_str().unwrap_or("an unknown change"))),
    };
    Ok((version, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_watch_is_a_change_with_the_version_after_it() {
        let line = br#"{"type":"DELETED","object":{"metadata":{"namespace":"a","name":"b","resourceVersion":"7"}}}"#;
        let Ok((Some(version), Some(Event::Remove(Kind::Service, key)))) = change(Kind::Service, line) else {
            panic!("no removal")
        };
        assert_eq!((version.as_str(), key), ("7", Key::new("a", "b")));
        let bookmark = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#;
        assert!(matches!(change(Kind::Service, bookmark), Ok((Some(version), None)) if version == "9"));
        let gone = br#"{"type":"ERROR","object":{"code":410,"message":"too old resource version"}}"#;
        assert_eq!(change(Kind::Service, gone).err().unwrap(), "410: too old resource version");
        assert!(change(Kind::Service, b"{").is_err());
    }

    #[test]
    fn secrets_are_asked_for_by_their_type_and_where_they_may_be_read() {
        let all = Scope { kind: Kind::Secret, namespace: None };
        assert_eq!(all.path("limit=1"), "/api/v1/secrets?limit=1&fieldSelector=type%3Dkubernetes.io%2Ftls");
        let one = Scope { kind: Kind::ConfigMap, namespace: Some("edge".into()) };
        assert_eq!(one.path("limit=1"), "/api/v1/namespaces/edge/configmaps?limit=1");
    }
}
