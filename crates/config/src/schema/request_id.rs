//! `request_id` of `[listener.NAME]`.

use super::headers::checked_name;
use crate::describe::Form;
use crate::model::{AcceptIds, Fact, Forwarded, Piece, RequestHeader, RequestIds};
use crate::tree::Value;
use crate::walk::{Section, mismatch};

const HEADER: &str = "X-Request-ID";

/// Reads the key. The field that servers get is one of the listener's own from then on: it joins `headers`.
pub(crate) fn request_ids(
    section: &mut Section<'_, '_>,
    forwarded: Forwarded,
    headers: &mut Vec<RequestHeader>,
) -> Option<RequestIds> {
    let report = section.report;
    section.default_is("request_id", || false.into());
    let entry = section.forms("request_id", &[Form::Boolean, Form::Table])?;
    let continued = forwarded == Forwarded::Append;
    let accept = if continued { AcceptIds::Trusted } else { AcceptIds::Never };
    let mut ids = RequestIds { header: HEADER.to_string(), accept, returned: false };
    match &entry.node.value {
        Value::Boolean(false) => return None,
        Value::Boolean(true) => {}
        Value::Table(_) => {
            let mut table = Section::of(report, &entry.node, "`request_id`", entry.node.span)?;
            table.default_is("header", || HEADER.into());
            if let Some(found) = table.string("header") {
                ids.header = checked_name(report, found.value, found.span)?.to_string();
            }
            let choices = [("never", AcceptIds::Never), ("trusted", AcceptIds::Trusted), ("always", AcceptIds::Always)];
            if let Some(found) = table.choice("accept", &choices) {
                ids.accept = found.value;
                if found.value == AcceptIds::Trusted && !continued {
                    let what = "accept = \"trusted\" goes by `trusted_proxies`, as forwarded = \"append\" does";
                    report.error(found.span, what, "add forwarded = \"append\", or use \"never\" or \"always\"");
                }
            }
            ids.returned = table.boolean_or("return", false);
            table.close();
        }
        _ => {
            return mismatch(
                report,
                "request_id",
                "a boolean or { header = \"X-Request-ID\", return = true }",
                &entry.node,
            );
        }
    }
    if headers.iter().any(|other| other.name.eq_ignore_ascii_case(&ids.header)) {
        let what = format!("`request_headers` has \"{}\" as well, which `request_id` writes", ids.header);
        report.error(entry.key_span, what, "remove it there, or give `request_id` another `header`");
        return None;
    }
    headers.push(RequestHeader { name: ids.header.clone(), value: vec![Piece::Fact(Fact::RequestId)] });
    Some(ids)
}
