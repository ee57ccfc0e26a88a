//! Dialogues in bytes.

use super::*;

mod answers;
mod chunks;
mod names;
mod paths;
mod random;
mod requests;
mod responses;
mod rewrites;

const LIMITS: Limits = Limits { head_bytes: 1024, headers: 60 };

fn request(text: impl AsRef<[u8]>) -> Result<RequestHead, Reject> {
    let mut head = RequestHead::default();
    match parse_request(text.as_ref(), &LIMITS, &mut head)? {
        Parsed::Complete => Ok(head),
        Parsed::Partial => panic!("partial: {}", text.as_ref().escape_ascii()),
    }
}

/// A GET in HTTP/1.1 with a Host and these lines.
fn get(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")
}

fn response_to(asked: Asked<'_>, text: impl AsRef<[u8]>) -> Result<ResponseHead, Reject> {
    let mut head = ResponseHead::default();
    match parse_response(text.as_ref(), asked, &LIMITS, &mut head)? {
        Parsed::Complete => Ok(head),
        Parsed::Partial => panic!("partial: {}", text.as_ref().escape_ascii()),
    }
}

const GET: Asked<'_> = Asked { method: Method::Get, upgrade: None };
const HEAD: Asked<'_> = Asked { method: Method::Head, upgrade: None };
const UPGRADE: Asked<'_> = Asked { method: Method::Get, upgrade: Some(b"websocket") };
