//! Answers of the admin address, by what they carry.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

/// Refusal of any method but those that look.
pub fn only_looking() -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".into());
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

/// Plain text for people, with a status.
pub fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = typed("text/plain; charset=utf-8", body);
    *response.status_mut() = status;
    response
}

/// An answer of 200 with a body of this media type.
pub fn typed(kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
