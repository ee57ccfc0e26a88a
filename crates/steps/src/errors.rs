//! Errors as clients get them: pages of files with the request's facts put in, or forms of our own.

use std::borrow::Cow;
use std::sync::Arc;

use propylon_config::{ErrorFormat, ErrorPage, Statuses};
use propylon_http::h1::reason_phrase;

use crate::accept::{Form, preferred};
use crate::bodies::{Bodies, Body};

/// An error that a client is told of.
#[derive(Clone, Copy)]
pub struct Error<'a> {
    pub status: u16,
    /// More than the status says; empty if there is no more.
    pub detail: &'a str,
    /// The request's ID.
    pub id: Option<&'a str>,
}

impl<'a> Error<'a> {
    /// An error of a request whose ID is told by others.
    pub fn of(status: u16, detail: &'a str) -> Error<'a> {
        Error { status, detail, id: None }
    }
}

/// Body of an error.
#[derive(Debug, PartialEq, Eq)]
pub struct ErrorBody {
    pub content_type: &'static str,
    pub body: Vec<u8>,
    /// Whether the request's Accept has chosen it.
    pub varies: bool,
}

/// Errors of a listener or a route, compiled.
#[derive(Default)]
pub(crate) struct Errors {
    pages: Vec<Page>,
    pub(crate) format: Option<ErrorFormat>,
    pub(crate) intercepts: Option<bool>,
}

pub(crate) struct Page {
    statuses: Statuses,
    forms: Vec<(Form, Arc<Body>)>,
}

impl Errors {
    pub(crate) fn of(errors: &propylon_config::Errors, bodies: &Bodies) -> Errors {
        let page = |page: &ErrorPage| {
            let forms = [(Form::Html, &page.html), (Form::Json, &page.json), (Form::Text, &page.text)];
            let forms =
                forms.into_iter().filter_map(|(form, path)| Some((form, Arc::clone(bodies.get(path.as_ref()?)?))));
            Page { statuses: page.statuses, forms: forms.collect() }
        };
        let pages = errors.error_pages.iter().map(page).collect();
        Errors { pages, format: errors.error_format, intercepts: errors.intercept_errors }
    }

    /// The page for a status: its own, then that of its class.
    pub(crate) fn page(&self, status: u16) -> Option<&Page> {
        let of = |wanted: Statuses| self.pages.iter().find(|page| page.statuses == wanted);
        of(Statuses::One(status)).or_else(|| of(Statuses::Class((status / 100) as u8)))
    }
}

impl Page {
    /// The page in the form that is liked best.
    pub(crate) fn tell(&self, error: &Error<'_>, accept: &[&[u8]]) -> Option<ErrorBody> {
        let forms: Vec<Form> = self.forms.iter().map(|(form, _)| *form).collect();
        let form = preferred(accept, &forms)?;
        let (_, body) = self.forms.iter().find(|(own, _)| *own == form)?;
        let content_type = match form {
            Form::Html => "text/html; charset=utf-8",
            Form::Json => "application/json",
            Form::Text => "text/plain; charset=utf-8",
        };
        Some(ErrorBody { content_type, body: filled(&body.bytes, form, error), varies: forms.len() > 1 })
    }
}

/// An error without a page; `None`: a line of text, as errors are told where nothing is said about them.
pub(crate) fn tell_plainly(format: ErrorFormat, error: &Error<'_>, accept: &[&[u8]]) -> Option<ErrorBody> {
    let varies = format == ErrorFormat::Accept;
    let form = match format {
        ErrorFormat::Text => Form::Text,
        ErrorFormat::Html => Form::Html,
        ErrorFormat::Json => Form::Json,
        ErrorFormat::Accept => preferred(accept, &[Form::Text, Form::Html, Form::Json])?,
    };
    let reason = reason(error.status);
    let (content_type, body) = match form {
        Form::Text if !varies => return None,
        Form::Text => return Some(ErrorBody { varies, ..plain(error) }),
        Form::Json => {
            let mut problem = format!("{{\"type\":\"about:blank\",\"title\":\"{reason}\",\"status\":{}", error.status);
            for (name, value) in [("detail", Some(error.detail)), ("request_id", error.id)] {
                if let Some(value) = value.filter(|value| !value.is_empty()) {
                    problem.push_str(&format!(",\"{name}\":\"{}\"", escaped(value, Form::Json)));
                }
            }
            ("application/problem+json", format!("{problem}}}\n").into_bytes())
        }
        Form::Html => {
            let title = format!("{} {reason}", error.status);
            let mut page = format!(
                "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<h1>{title}</h1>\n"
            );
            for (label, value) in [("", Some(error.detail)), ("Request ID: ", error.id)] {
                if let Some(value) = value.filter(|value| !value.is_empty()) {
                    page.push_str(&format!("<p>{label}{}</p>\n", escaped(value, Form::Html)));
                }
            }
            ("text/html; charset=utf-8", page.into_bytes())
        }
    };
    Some(ErrorBody { content_type, body, varies })
}

/// An error as a line of text, which is how it is told where nothing is said about it.
pub fn plain(error: &Error<'_>) -> ErrorBody {
    ErrorBody { content_type: "text/plain; charset=utf-8", body: text(error).into_bytes(), varies: false }
}

fn text(error: &Error<'_>) -> String {
    let (status, reason) = (error.status, reason_phrase(error.status));
    if error.detail.is_empty() {
        format!("{status} {reason}\n")
    } else {
        format!("{status} {reason}: {}\n", error.detail)
    }
}

fn reason(status: u16) -> &'static str {
    match reason_phrase(status) {
        "" => "Error",
        phrase => phrase,
    }
}

/// A page with facts in the place of `{status}`, `{reason}` and `{request.id}`. Other braces are the page's own.
fn filled(page: &[u8], form: Form, error: &Error<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(page.len() + 64);
    let mut rest = page;
    while let Some(open) = rest.iter().position(|byte| *byte == b'{') {
        out.extend_from_slice(&rest[..open]);
        rest = &rest[open..];
        let mut digits = itoa::Buffer::new();
        let facts: [(&[u8], &str); 3] = [
            (b"{status}", digits.format(error.status)),
            (b"{reason}", reason(error.status)),
            (b"{request.id}", error.id.unwrap_or_default()),
        ];
        match facts.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, value)) => {
                out.extend_from_slice(escaped(value, form).as_bytes());
                rest = &rest[name.len()..];
            }
            None => {
                out.push(b'{');
                rest = &rest[1..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// A text as it stands in a page of this form: in HTML also between quotes, in JSON within a string.
fn escaped(text: &str, form: Form) -> Cow<'_, str> {
    let is_special = |c: char| match form {
        Form::Html => matches!(c, '&' | '<' | '>' | '"' | '\''),
        Form::Json => matches!(c, '"' | '\\') || c.is_control(),
        Form::Text => false,
    };
    if !text.contains(is_special) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match (is_special(c), form) {
            (false, _) => out.push(c),
            (true, Form::Json) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            (true, _) => out.push_str(&format!("&#{};", u32::from(c))),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: Error<'static> = Error { status: 502, detail: "a <b> \"c\" & 'd'\n", id: Some("7f-1") };

    fn told(format: ErrorFormat, accept: &str) -> Option<(&'static str, String, bool)> {
        let told = tell_plainly(format, &ERROR, &[accept.as_bytes()])?;
        Some((told.content_type, String::from_utf8(told.body).expect("UTF-8"), told.varies))
    }

    #[test]
    fn an_error_without_a_page_is_told_in_the_form_that_is_wanted() {
        assert_eq!(told(ErrorFormat::Text, "text/html"), None);
        let json = "{\"type\":\"about:blank\",\"title\":\"Bad Gateway\",\"status\":502,\
                    \"detail\":\"a <b> \\u0022c\\u0022 & 'd'\\u000a\",\"request_id\":\"7f-1\"}\n";
        assert_eq!(told(ErrorFormat::Json, "text/html"), Some(("application/problem+json", json.into(), false)));
        assert_eq!(told(ErrorFormat::Accept, "application/json").map(|told| told.2), Some(true));
        let (kind, html, varies) = told(ErrorFormat::Accept, "text/html").expect("a page");
        assert_eq!((kind, varies), ("text/html; charset=utf-8", true));
        assert_eq!(
            html,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>502 Bad Gateway</title>\n\
             <h1>502 Bad Gateway</h1>\n<p>a &#60;b&#62; &#34;c&#34; &#38; &#39;d&#39;\n</p>\n<p>Request ID: 7f-1</p>\n"
        );
        let (kind, text, _) = told(ErrorFormat::Accept, "*/*").expect("a text");
        assert_eq!((kind, &*text), ("text/plain; charset=utf-8", "502 Bad Gateway: a <b> \"c\" & 'd'\n\n"));
    }

    #[test]
    fn facts_stand_where_their_names_stood_and_nothing_else_is_touched() {
        let error = Error { status: 404, detail: "no-route", id: Some("a\"<b") };
        for (page, form, wanted) in [
            ("{status} {reason} {request.id}", Form::Html, "404 Not Found a&#34;&#60;b"),
            ("{\"id\":\"{request.id}\",\"status\":{status}}", Form::Json, "{\"id\":\"a\\u0022<b\",\"status\":404}"),
            ("p{color:red}{{status}{ {status", Form::Html, "p{color:red}{404{ {status"),
            ("{request.id}", Form::Text, "a\"<b"),
            ("{request.ID}{statu}{", Form::Text, "{request.ID}{statu}{"),
        ] {
            assert_eq!(String::from_utf8(filled(page.as_bytes(), form, &error)).as_deref(), Ok(wanted), "{page}");
        }
        let error = Error { status: 599, detail: "", id: None };
        assert_eq!(filled(b"{status} {reason}{request.id}", Form::Text, &error), b"599 Error");
    }
}
