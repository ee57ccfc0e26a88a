//! The `Date` field of responses.

use std::time::{Duration, SystemTime};

use http::HeaderValue;

/// The `Date` field's value (RFC 9110 §6.6.1), made once a second.
pub struct Date {
    pub second: i64,
    pub text: String,
    /// The same for HTTP/2, where every response has a share in it.
    pub value: HeaderValue,
}

impl Date {
    pub fn new(second: i64) -> Date {
        let since = Duration::from_secs(u64::try_from(second).unwrap_or_default());
        let text = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since);
        let value = HeaderValue::from_str(&text).expect("digits, letters, colons and spaces");
        Date { second, text, value }
    }
}
