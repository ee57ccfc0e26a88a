//! Errors' pages and forms, of listeners and of routes, and bodies of fixed answers from files.

use std::path::{Path, PathBuf};

use super::values::file;
use crate::describe::Form;
use crate::model::{ErrorFormat, ErrorPage, Errors, Statuses};
use crate::report::Report;
use crate::tree::{Entry, Value};
use crate::walk::{Found, Section, mismatch};
use crate::wording::shown;

const PAGE_FORMS: &str = "the name of a file, or { html = \"FILE\", json = \"FILE\", text = \"FILE\" }";
/// Types of files by their extensions.
const TYPES: &[(&str, &str)] = &[
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("gif", "image/gif"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/x-icon"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("md", "text/markdown; charset=utf-8"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("xml", "application/xml"),
];

/// Type of a file by its extension.
pub(crate) fn type_of(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    TYPES.iter().find(|(known, _)| *known == extension).map(|(_, content_type)| *content_type)
}

pub(crate) fn errors(section: &mut Section<'_, '_>, base: &Path) -> Errors {
    let error_pages = error_pages(section, base);
    section.default_is("error_format", || "text".into());
    let choices = [
        ("text", ErrorFormat::Text),
        ("html", ErrorFormat::Html),
        ("json", ErrorFormat::Json),
        ("accept", ErrorFormat::Accept),
    ];
    let error_format = section.choice("error_format", &choices).map(|found| found.value);
    section.default_is("intercept_errors", || false.into());
    let intercept_errors = section.boolean("intercept_errors").map(|found| found.value);
    Errors { error_pages, error_format, intercept_errors }
}

fn error_pages(section: &mut Section<'_, '_>, base: &Path) -> Vec<ErrorPage> {
    let report = section.report;
    let Some(entry) = section.forms("error_pages", &[Form::Texts]) else { return Vec::new() };
    let Value::Table(entries) = &entry.node.value else {
        mismatch::<()>(report, "error_pages", "a table such as { \"5xx\" = \"error.html\" }", &entry.node);
        return Vec::new();
    };
    let mut pages: Vec<ErrorPage> = Vec::new();
    for entry in entries {
        let statuses = statuses(&entry.key);
        if statuses.is_none() && !section.is_described() {
            let what = format!("\"{}\" is not the status of an error", shown(&entry.key));
            report.error(entry.key_span, what, "write one from \"400\" to \"599\", or \"4xx\" or \"5xx\"");
        }
        let Some(page) = page(report, entry, statuses.unwrap_or(Statuses::Class(5)), base) else { continue };
        if pages.iter().any(|other| other.statuses == page.statuses) {
            let what = format!("`error_pages` has \"{}\" twice", page.statuses);
            report.error(entry.key_span, what, "remove one of the two");
        }
        pages.push(page);
    }
    pages
}

fn statuses(text: &str) -> Option<Statuses> {
    match text.to_ascii_lowercase().as_str() {
        "4xx" => Some(Statuses::Class(4)),
        "5xx" => Some(Statuses::Class(5)),
        text => text.parse().ok().filter(|status| (400..600).contains(status)).map(Statuses::One),
    }
}

fn page(report: &Report<'_>, entry: &Entry<'_>, statuses: Statuses, base: &Path) -> Option<ErrorPage> {
    let node = &entry.node;
    let mut page = ErrorPage { statuses, html: None, json: None, text: None };
    match &node.value {
        Value::String(text) => {
            let path = file(report, "error_pages", Found { value: text, span: node.span }, base)?;
            let kind = type_of(&path).and_then(|kind| kind.split(';').next());
            let form = match kind {
                Some("text/html") => &mut page.html,
                Some("application/json") => &mut page.json,
                Some("text/plain") => &mut page.text,
                _ => {
                    let what = format!("\"{}\": an error page is in HTML, JSON or plain text", shown(text));
                    let fix = "write it as in { html = \"FILE\" }, or name a file that ends in .html, .json or .txt";
                    report.error(node.span, what, fix);
                    return None;
                }
            };
            *form = Some(path);
        }
        Value::Table(_) => {
            let mut section = Section::of(report, node, "`error_pages`", node.span)?;
            let mut form = |key| -> Option<PathBuf> {
                let found = section.string(key)?;
                file(report, key, found, base)
            };
            (page.html, page.json, page.text) = (form("html"), form("json"), form("text"));
            let is_described = section.is_described();
            let is_known = !section.close();
            let is_empty = page.html.is_none() && page.json.is_none() && page.text.is_none();
            if is_empty && is_known && report.is_whole() && !is_described {
                report.error(node.span, "this page has no form", format!("write {PAGE_FORMS}"));
                return None;
            }
        }
        _ => return mismatch(report, "error_pages", PAGE_FORMS, node),
    }
    Some(page)
}
