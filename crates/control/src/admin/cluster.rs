//! The cluster by the admin address: what is asked of it, and how the cluster's thread answers.

use std::borrow::Cow;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, Uri};
use propylon_cluster::{Failure, RequestKind, Secret, WEIGHT_PERCENT_MAX, WeightPercent};
use serde_json::Value;

use super::change::{PEM_BODY, PEM_FIX, SHARED_BODY, Wrong, authorize, body, decoded, media_type, named};
use super::context::AdminContext;
use super::response::typed;
use crate::audit::Caller;
use crate::cluster::request as ask;

/// Characters of a reason that is given for a change.
const WHY_CHARS_MAX: usize = 200;

/// The request's meaning by path and method, before the body is read.
pub(super) enum Operation {
    Apply { why: String },
    Diff,
    Abort,
    History,
    Rollback(Option<String>),
    Drain(String),
    Undrain(String),
    Weigh { engine: String, percent: Option<String> },
    Leave,
    PutCertificate(String),
    RemoveCertificate(String),
    Certificates,
}

/// Parses path and method; `None` if they are not the cluster's.
pub(super) fn operation(method: &Method, uri: &Uri) -> Option<Operation> {
    let path = uri.path().strip_prefix("/v1").unwrap_or(uri.path()).strip_prefix("/cluster/")?;
    let of = |key: &str| -> Option<String> {
        let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
        decoded(&pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).next()?.replace('+', " "))
    };
    let engine = || of("engine").unwrap_or_default();
    Some(match (method, path) {
        (&Method::POST, "apply") => {
            Operation::Apply { why: of("why").unwrap_or_default().chars().take(WHY_CHARS_MAX).collect() }
        }
        (&Method::POST, "diff") => Operation::Diff,
        (&Method::POST, "abort") => Operation::Abort,
        (&Method::GET, "history") => Operation::History,
        (&Method::POST, "rollback") => Operation::Rollback(of("serial")),
        (&Method::POST, "drain") => Operation::Drain(engine()),
        (&Method::POST, "undrain") => Operation::Undrain(engine()),
        (&Method::POST, "weight") => Operation::Weigh { engine: engine(), percent: of("percent") },
        (&Method::POST, "leave") => Operation::Leave,
        (&Method::GET, "certificates") => Operation::Certificates,
        (&Method::PUT, path) => Operation::PutCertificate(decoded(path.strip_prefix("certificates/")?)?),
        (&Method::DELETE, path) => Operation::RemoveCertificate(decoded(path.strip_prefix("certificates/")?)?),
        _ => return None,
    })
}

pub(super) async fn answer(
    operation: Operation,
    request: Request<Incoming>,
    by: Caller,
    context: &AdminContext,
) -> Response<Full<Bytes>> {
    let by = named(by, request.headers());
    match proceed(operation, request, by.clone(), context).await {
        Ok(response) => response,
        Err(wrong) => wrong.answer(&by, context).await,
    }
}

async fn proceed(
    operation: Operation,
    request: Request<Incoming>,
    by: Caller,
    context: &AdminContext,
) -> Result<Response<Full<Bytes>>, Wrong> {
    let Some(membership) = &context.view.membership else {
        let what = "this engine is not one of a cluster";
        return Err(Wrong::new(StatusCode::NOT_FOUND, what, "set [cluster] and restart, or ask another engine"));
    };
    if !matches!(operation, Operation::History | Operation::Certificates) {
        authorize(request.headers(), context)?;
    }
    let by = Caller { has_token: context.token_file.is_some(), ..by };
    let requests = membership.borrow().requests();
    let is_change = !matches!(operation, Operation::History | Operation::Certificates | Operation::Diff);
    let accepted = if matches!(operation, Operation::Apply { .. } | Operation::Rollback(_)) {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    let what = match operation {
        Operation::Diff => return super::change::try_out(request, by, context).await,
        operation => operation.with_body(request).await?,
    };
    let (asked, remedies) = (summary(&what), Remedies::of(&what));
    let outcome = ask(&requests, what, by.to_string()).await;
    if is_change {
        match &outcome {
            Ok(_) => log::info!("audit: {asked}, by {by}"),
            Err(failure) => log::warn!("audit: {asked}, by {by}: refused: {}", words(failure)),
        }
    }
    let value: Value = outcome.map_err(|failure| wrong(failure, &remedies))?;
    let mut response = typed("application/json", format!("{value:#}\n"));
    *response.status_mut() = accepted;
    Ok(response)
}

impl Operation {
    async fn with_body(self, request: Request<Incoming>) -> Result<RequestKind, Wrong> {
        Ok(match self {
            Operation::Apply { why } => {
                let kind = media_type(&request, &["application/json", "application/toml"])?;
                let text = body(request, &SHARED_BODY).await?;
                RequestKind::Apply { text, is_json: kind == "application/json", why }
            }
            Operation::Rollback(None) => RequestKind::Rollback(None),
            Operation::Rollback(Some(serial)) => {
                let wrong = || Wrong::new(StatusCode::BAD_REQUEST, "`serial` is not a number", "see /cluster/history");
                RequestKind::Rollback(Some(serial.parse().map_err(|_| wrong())?))
            }
            Operation::PutCertificate(name) => {
                media_type(&request, &["application/x-pem-file", "application/pem-certificate-chain"])?;
                let pem = body(request, &PEM_BODY).await?;
                propylon_tls::check_pem(pem.as_bytes()).map_err(|unfit| {
                    let fix = unfit.fix.map_or(Cow::Borrowed(PEM_FIX), Cow::Owned);
                    Wrong::new(StatusCode::UNPROCESSABLE_ENTITY, unfit.what, fix)
                })?;
                RequestKind::PutCertificate { name, pem: Secret(pem) }
            }
            Operation::Abort | Operation::Diff => RequestKind::Abort,
            Operation::History => RequestKind::History,
            Operation::Drain(engine) => RequestKind::Drain(engine),
            Operation::Undrain(engine) => RequestKind::Undrain(engine),
            Operation::Weigh { engine, percent } => RequestKind::Weigh { engine, percent: weight(percent.as_deref())? },
            Operation::Leave => RequestKind::Leave,
            Operation::RemoveCertificate(name) => RequestKind::RemoveCertificate(name),
            Operation::Certificates => RequestKind::Certificates,
        })
    }
}

fn weight(percent: Option<&str>) -> Result<WeightPercent, Wrong> {
    let percent = percent.and_then(|percent| WeightPercent::new(percent.parse().ok()?));
    percent.ok_or_else(|| {
        let what = format!("`percent` is not a number from 0 to {WEIGHT_PERCENT_MAX}");
        Wrong::new(StatusCode::BAD_REQUEST, what, "100 is the usual share, 0 is nothing new")
    })
}

/// The request in words, without anything secret.
fn summary(what: &RequestKind) -> String {
    match what {
        RequestKind::Apply { text, .. } => format!("cluster: a configuration of {} bytes for all engines", text.len()),
        RequestKind::Abort => "cluster: the end of a candidate".into(),
        RequestKind::Rollback(Some(serial)) => format!("cluster: back to configuration {serial}"),
        RequestKind::Rollback(None) => "cluster: back to the configuration before".into(),
        RequestKind::Drain(engine) => format!("cluster: {engine} drained"),
        RequestKind::Undrain(engine) => format!("cluster: {engine} drained no more"),
        RequestKind::Weigh { engine, percent } => format!("cluster: weight of {engine} is {} %", percent.percent()),
        RequestKind::Leave => "cluster: this engine leaves".into(),
        RequestKind::PutCertificate { name, .. } => format!("cluster: certificate \"{name}\" put"),
        RequestKind::RemoveCertificate(name) => format!("cluster: certificate \"{name}\" removed"),
        RequestKind::History | RequestKind::Certificates => String::new(),
    }
}

fn words(failure: &Failure) -> &str {
    match failure {
        Failure::Away(what) | Failure::Conflict(what) | Failure::Unknown(what) | Failure::Wrong(what) => what,
    }
}

/// Advice about a request that could not be done, by why.
#[derive(Debug, PartialEq, Eq)]
struct Remedies {
    conflict: &'static str,
    unknown: &'static str,
}

impl Remedies {
    fn of(what: &RequestKind) -> Remedies {
        let status = Remedies {
            conflict: "propylon cluster status says what goes on",
            unknown: "propylon cluster status lists engines, and which of them drain",
        };
        match what {
            RequestKind::RemoveCertificate(_) => Remedies {
                conflict: "propylon cluster certificate list has all of them",
                unknown: "propylon cluster certificate list has the names",
            },
            RequestKind::Abort => Remedies { unknown: "there is nothing to end", ..status },
            RequestKind::Rollback(_) => Remedies { unknown: "give one of the numbers there", ..status },
            _ => status,
        }
    }
}

fn wrong(failure: Failure, remedies: &Remedies) -> Wrong {
    let what = words(&failure).to_owned();
    match failure {
        Failure::Away(_) => Wrong::new(StatusCode::SERVICE_UNAVAILABLE, what, "look at etcd, and ask again"),
        Failure::Conflict(_) => Wrong::new(StatusCode::CONFLICT, what, remedies.conflict),
        Failure::Unknown(_) => Wrong::new(StatusCode::NOT_FOUND, what, remedies.unknown),
        Failure::Wrong(_) => Wrong::new(StatusCode::UNPROCESSABLE_ENTITY, what, "mend it, and send it again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_a_number_of_percent_up_to_its_limit() {
        let uri: Uri = "/v1/cluster/weight?engine=e%201&percent=25".parse().unwrap();
        let Some(Operation::Weigh { engine, percent }) = operation(&Method::POST, &uri) else { panic!("a weight") };
        assert_eq!((engine.as_str(), percent.as_deref()), ("e 1", Some("25")));
        assert!(operation(&Method::GET, &uri).is_none());
        let percents = |text| weight(Some(text)).ok().map(WeightPercent::percent);
        assert_eq!(["0", "100", "1000"].map(percents), [Some(0), Some(100), Some(1000)]);
        assert_eq!(["", "1001", "-1", "2.5", "65636", "x"].map(percents), [None; 6]);
        assert!(weight(None).is_err());
    }

    #[test]
    fn what_is_not_there_is_told_with_the_command_that_lists_what_is() {
        let unknown = |what: RequestKind| Remedies::of(&what).unknown;
        assert!(unknown(RequestKind::RemoveCertificate("x".into())).starts_with("propylon cluster certificate list"));
        assert!(!unknown(RequestKind::Abort).contains("propylon"));
        // The words before it name the command: `propylon cluster history`.
        assert!(!unknown(RequestKind::Rollback(Some(999))).contains("status"));
        assert!(unknown(RequestKind::Drain("e".into())).starts_with("propylon cluster status"));
    }
}
