//! `cors` of `[[route]]`: pages of which other origins may use it.

use super::conditions::token;
use super::values::DAY;
use crate::address::{self, TextProblem};
use crate::model::{Cors, OriginPattern};
use crate::report::Report;
use crate::walk::{Section, string};
use crate::wording::shown;

/// Origins, methods or fields of one list.
const ITEMS_MAX: usize = 256;
const ITEM_BYTES_MAX: usize = 256;

pub(crate) fn cors(mut section: Section<'_, '_>) -> Option<Cors> {
    let report = section.report;
    let errors = report.errors();
    let example = "name the origins that may use it, as in origins = [\"https://app.example\"]";
    let origins = origins(&mut section, example);
    section.default_is("credentials", || false.into());
    let credentials = section.boolean("credentials");
    let is_sent = credentials.is_some_and(|found| found.value);
    section.default_is("echo", || false.into());
    let echo = section.boolean("echo");
    let is_echoed = echo.is_some_and(|found| found.value);
    if let Some(found) = credentials.filter(|found| found.value)
        && origins.contains(&OriginPattern::Any)
    {
        match is_echoed {
            false => {
                let what = "`credentials` for every origin would let any page act in the name of who looks at it";
                report.error(found.span, what, example);
            }
            true => {
                let what = "`credentials` for every origin let any page act in the name of who looks at it";
                report.warning(found.span, what, example);
            }
        }
    }
    let methods = tokens(&mut section, "methods", is_sent && !is_echoed);
    let headers = tokens(&mut section, "headers", is_sent && !is_echoed);
    let has_all = |list: &[String]| list.iter().any(|text| text == "*");
    if let Some(found) = echo.filter(|found| found.value)
        && !origins.contains(&OriginPattern::Any)
        && !has_all(&methods)
        && !has_all(&headers)
    {
        report.error(found.span, "`echo` is about `*`, and nothing here is", "remove it");
    }
    let expose = tokens(&mut section, "expose", is_sent);
    // Browsers remember less: two hours, or a day.
    let max_age = section.duration("max_age", std::time::Duration::ZERO..=DAY).map(|found| found.value);
    section.close();
    (report.errors() == errors).then_some(Cors {
        origins,
        methods,
        headers,
        expose,
        credentials: is_sent,
        echo: is_echoed,
        max_age,
    })
}

fn origins(section: &mut Section<'_, '_>, example: &str) -> Vec<OriginPattern> {
    let report = section.report;
    let Some(list) = section.list("origins", &[crate::describe::Form::String]) else {
        if section.entry("origins").is_none() {
            section.missing("origins", example);
        }
        return Vec::new();
    };
    if list.value.is_empty() {
        report.error(list.span, "`origins` names none", example.to_string());
    }
    limit(report, "origins", &list);
    let one = |found: crate::walk::Found<&str>| {
        origin(found.value).map_err(|(what, fix)| report.error(found.span, what, fix)).ok()
    };
    list.value.iter().filter_map(|node| string(report, "origins", node)).filter_map(one).collect()
}

fn limit<T>(report: &Report<'_>, key: &str, list: &crate::walk::Found<&[T]>) {
    if list.value.len() > ITEMS_MAX {
        report.error(list.span, format!("`{key}` has more than {ITEMS_MAX} entries"), "remove some");
    }
}

/// Methods or names of fields. `*` is one of that name alone where credentials are sent (Fetch, "CORS protocol and
/// credentials").
fn tokens(section: &mut Section<'_, '_>, key: &'static str, credentials: bool) -> Vec<String> {
    let report = section.report;
    let Some(list) = section.list(key, &[crate::describe::Form::String]) else { return Vec::new() };
    limit(report, key, &list);
    let mut all: Vec<String> = Vec::new();
    for found in list.value.iter().filter_map(|node| string(report, key, node)) {
        let text = found.value;
        if text == "*" && credentials {
            let what = format!("with `credentials` browsers take `*` in `{key}` for a name");
            report.error(found.span, what, "write the names");
        } else if text == "*" && list.value.len() > 1 {
            // Authorization is not among them (Fetch, "CORS non-wildcard request-header name").
            let is_meant = key == "headers" && list.value.len() == 2;
            if !is_meant {
                report.warning(found.span, format!("`*` in `{key}` stands for the others as well"), "remove those");
            }
        } else if token(text).is_none() || text.len() > ITEM_BYTES_MAX {
            report.error(found.span, format!("\"{}\" is not a name that can be here", shown(text)), "write a token");
            continue;
        }
        all.push(text.to_string());
    }
    all
}

/// An origin as browsers write it (RFC 6454 §6.2), or all below a domain; without a scheme that is https.
fn origin(text: &str) -> Result<OriginPattern, TextProblem> {
    let what = |why: &str| format!("\"{}\" is not an origin: {why}", shown(text));
    match text {
        "*" => return Ok(OriginPattern::Any),
        "null" => {
            let why = "\"null\" is the origin of whoever asks to have none".to_string();
            return Err((why, "name an origin, or use \"*\" without `credentials`".into()));
        }
        _ => {}
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("https", text));
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    if !scheme.starts_with(|first: char| first.is_ascii_lowercase()) || !scheme.bytes().all(is_letter) {
        return Err((what("the scheme is in lower case"), "write it as in \"https://app.example\"".into()));
    }
    if let Some((authority, _)) = rest.split_once(['/', '?', '#']) {
        let fix = format!("write \"{}://{}\"", shown(scheme), shown(authority));
        return Err((what("it has a path"), fix));
    }
    let (below, name) = rest.strip_prefix("*.").map_or((false, rest), |name| (true, name));
    if name.contains('*') {
        return Err((what("`*` stands for whole labels at the beginning"), "write \"https://*.example\"".into()));
    }
    let port = name.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    let (name, port) = match port {
        Some((name, port)) => {
            let number = port.parse::<u16>().ok().filter(|port| *port > 0);
            (name, Some(number.ok_or_else(|| (what("that is no port"), "write 1 to 65535".to_string()))?))
        }
        None => (name, None),
    };
    let name = address::host(name)?;
    let default = match scheme {
        "https" => Some(443),
        "http" => Some(80),
        _ => None,
    };
    let port = port.filter(|port| Some(*port) != default).map_or_else(String::new, |port| format!(":{port}"));
    Ok(match below {
        true => OriginPattern::Below { scheme: format!("{scheme}://"), suffix: format!(".{name}{port}") },
        false => OriginPattern::Exact(format!("{scheme}://{name}{port}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_do() {
        for (text, wanted) in [
            ("*", "*"),
            ("https://A.example", "https://a.example"),
            ("https://a.example:443", "https://a.example"),
            ("http://a.example:443", "http://a.example:443"),
            ("http://localhost:5173", "http://localhost:5173"),
            ("http://[::1]:80", "http://[::1]"),
            ("app://local", "app://local"),
            ("a.example", "https://a.example"),
            ("*.b.example", "https://*.b.example"),
            ("http://*.B.example:8080", "http://*.b.example:8080"),
        ] {
            assert_eq!(origin(text).map(|origin| origin.to_string()), Ok(wanted.to_string()), "{text}");
        }
        for (text, part) in [
            ("null", "name an origin"),
            ("https://a.example/", "write \"https://a.example\""),
            ("https://a.*.example", "https://*.example"),
            ("HTTPS://a.example", "as in \"https://app.example\""),
            ("https://a.example:0", "1 to 65535"),
            ("https://", "write 1 to 253"),
            ("https://user@a.example", "use letters"),
            ("https://münchen.example", "A-label"),
        ] {
            let (_, fix) = origin(text).expect_err(text);
            assert!(fix.contains(part), "{text}: {fix}");
        }
    }
}
