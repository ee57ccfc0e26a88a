//! `compress` of `[[route]]`: codings, media types and limits of the compression of responses.

use crate::describe::Form;
use crate::model::{Action, Compress, Credentials, Encoding, Levels, MediaType};
use crate::report::Report;
use crate::tree::{Node, Value};
use crate::walk::{Section, choice, mismatch, string};
use crate::wording::shown;

const ENCODINGS: [(&str, Encoding); 3] = [("zstd", Encoding::Zstd), ("br", Encoding::Br), ("gzip", Encoding::Gzip)];
const TYPES_MAX: usize = 64;
const TYPE_BYTES_MAX: usize = 128;
const MINIMUM_MAX: u64 = 1024 * 1024 * 1024;

/// `true`, or a table for other codings, types and limits.
pub(crate) fn compress(section: &mut Section<'_, '_>, action: &Action) -> Option<Compress> {
    let report = section.report;
    section.default_is("compress", || false.into());
    let entry = section.forms("compress", &[Form::Boolean, Form::Table])?;
    let compress = match &entry.node.value {
        Value::Boolean(false) => return None,
        Value::Boolean(true) => Compress::default(),
        Value::Table(_) => table(Section::of(report, &entry.node, "`compress`", entry.node.span)?),
        _ => return mismatch(report, "compress", "a boolean or { encodings = [\"gzip\"] }", &entry.node),
    };
    if let Action::Redirect(_) = action {
        let what = "`compress` on a route that redirects: its answers have no body";
        report.error(entry.key_span, what, "remove it, or put it on a route with a `backend` or `respond`");
    }
    Some(compress)
}

fn table(mut section: Section<'_, '_>) -> Compress {
    let default = Compress::default();
    let named = encodings(&mut section);
    let encodings = named.clone().unwrap_or(default.encodings);
    let level = section.table("level").map_or(default.level, |section| levels(section, named.as_deref()));
    let compress = Compress {
        types: types(&mut section).unwrap_or(default.types),
        minimum: section.size_or("minimum", 0..=MINIMUM_MAX, default.minimum),
        level: level.only(&encodings),
        credentials: section.choice_or(
            "credentials",
            &[("same-origin", Credentials::SameOrigin), ("always", Credentials::Always), ("never", Credentials::Never)],
            default.credentials,
        ),
        busy_max: section.integer_or("busy_max", 1..=100, default.busy_max),
        encodings,
    };
    section.close();
    compress
}

fn encodings(section: &mut Section<'_, '_>) -> Option<Vec<Encoding>> {
    let report = section.report;
    section.default_is("encodings", || Encoding::ALL.map(Encoding::name).to_vec().into());
    let names = ENCODINGS.map(|(name, _)| name);
    let items = section.list("encodings", &[Form::Words(&names)])?;
    let mut encodings = Vec::new();
    for item in items.value {
        let Some(found) = choice(report, "encodings", item, &ENCODINGS) else { continue };
        if encodings.contains(&found.value) {
            let what = format!("`encodings` names \"{}\" twice", found.value.name());
            report.error(found.span, what, "remove one of the two");
        }
        encodings.push(found.value);
    }
    if items.value.is_empty() {
        report.error(items.span, "`encodings` names none", "name one, or write compress = false");
    }
    Some(encodings)
}

fn types(section: &mut Section<'_, '_>) -> Option<Vec<MediaType>> {
    let report = section.report;
    section.default_is("types", || Compress::TYPES.to_vec().into());
    let items = section.list("types", &[Form::String])?;
    if items.value.is_empty() {
        report.error(items.span, "`types` names none", "name one, or write compress = false");
    }
    if items.value.len() > TYPES_MAX {
        let what = format!("`types` has more than {TYPES_MAX} entries");
        report.error(items.span, what, "write wider ones, as in \"text/*\"");
    }
    Some(items.value.iter().filter_map(|item| media_type(report, item)).collect())
}

fn media_type(report: &Report<'_>, node: &Node<'_>) -> Option<MediaType> {
    let found = string(report, "types", node)?;
    let text = found.value.to_ascii_lowercase();
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
    };
    let is_type = text.len() <= TYPE_BYTES_MAX
        && text.split_once('/').is_some_and(|(kind, subtype)| {
            let subtype = subtype.strip_prefix("*").map_or(subtype, |suffix| match suffix {
                "" => "any",
                _ => suffix.strip_prefix('+').unwrap_or_default(),
            });
            is_name(kind) && is_name(subtype)
        });
    if !is_type {
        let what = format!("`types`: \"{}\" is not a media type", shown(found.value));
        report.error(found.span, what, "write \"text/html\", \"text/*\" or \"application/*+json\", without parameters");
        return None;
    }
    Some(MediaType(text))
}

fn levels(mut section: Section<'_, '_>, encodings: Option<&[Encoding]>) -> Levels {
    let report = section.report;
    let default = Levels::DEFAULT;
    let levels = Levels {
        gzip: Some(section.integer_or("gzip", 1..=9, default.of(Encoding::Gzip))),
        br: Some(section.integer_or("br", 0..=6, default.of(Encoding::Br))),
        zstd: Some(section.integer_or("zstd", 1..=9, default.of(Encoding::Zstd))),
    };
    for (name, encoding) in ENCODINGS {
        if let Some(entry) = section.entry(name)
            && encodings.is_some_and(|all| !all.contains(&encoding))
        {
            let what = format!("`level` has \"{name}\", which `encodings` does not name");
            report.error(entry.key_span, what, format!("remove it, or add \"{name}\" to `encodings`"));
        }
    }
    section.close();
    levels
}
