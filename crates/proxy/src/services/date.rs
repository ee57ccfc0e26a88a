//! The `Date` field of responses.

use std::time::{Duration, SystemTime};

/// The `Date` field's value (RFC 9110 §6.6.1), made once a second.
pub struct Date {
    pub second: i64,
    pub text: String,
}

impl Date {
    pub fn new(second: i64) -> Date {
        let since = Duration::from_secs(u64::try_from(second).unwrap_or_default());
        let text = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since);
        Date { second, text }
    }
}
