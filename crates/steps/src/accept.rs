//! Choice of a form of an error by what a request's Accept says (RFC 9110 §12.5.1).

/// Form of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Html,
    Json,
    Text,
}

impl Form {
    fn media_types(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Form::Html => &[("text", "html")],
            Form::Json => &[("application", "json"), ("application", "problem+json")],
            Form::Text => &[("text", "plain")],
        }
    }
}

/// Weight that a client gives to a form: thousandths of quality, then how exactly it names it, then how early.
type Weight = (u16, u8, std::cmp::Reverse<usize>);

/// The form that is liked best, by the values of all Accept lines; the first of those that are liked alike, or where
/// none is liked: an error in any form is better than none (RFC 9110 §12.4.1). `None` where there are no forms.
pub fn preferred(accept: &[&[u8]], forms: &[Form]) -> Option<Form> {
    let mut best: Option<(Weight, Form)> = None;
    for form in forms {
        let weight = weight(accept, *form);
        if best.is_none_or(|(known, _)| weight > known) {
            best = Some((weight, *form));
        }
    }
    best.map(|(_, form)| form)
}

fn weight(accept: &[&[u8]], form: Form) -> Weight {
    let ranges = accept.iter().flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    // The most exact one of the ranges that a type is in counts.
    let mut found: Vec<Option<Weight>> = vec![None; form.media_types().len()];
    for (place, range) in ranges.filter(|range| !range.is_empty()).enumerate() {
        for (known, (kind, subtype)) in found.iter_mut().zip(form.media_types()) {
            let Some((quality, exactness)) = of_range(range, kind, subtype) else { continue };
            if known.is_none_or(|(_, before, _)| exactness > before) {
                *known = Some((quality, exactness, std::cmp::Reverse(place)));
            }
        }
    }
    found.into_iter().flatten().max().unwrap_or((0, 0, std::cmp::Reverse(0)))
}

/// Quality and exactness of a range that the media type is in.
fn of_range(range: &[u8], kind: &str, subtype: &str) -> Option<(u16, u8)> {
    let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next()?;
    let at = name.iter().position(|byte| *byte == b'/')?;
    let (own_kind, own_subtype) = (&name[..at], &name[at + 1..]);
    let exactness = match (own_kind, own_subtype) {
        (b"*", b"*") => 1,
        (own, b"*") if own.eq_ignore_ascii_case(kind.as_bytes()) => 2,
        (own, sub) if own.eq_ignore_ascii_case(kind.as_bytes()) && sub.eq_ignore_ascii_case(subtype.as_bytes()) => 3,
        _ => return None,
    };
    let quality = parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
    Some((quality.map_or(1000, thousandths), exactness))
}

/// A quality of up to three decimals; what is none counts as 0.
fn thousandths(text: &[u8]) -> u16 {
    let quality: Option<f32> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    quality.filter(|quality| (0.0..=1.0).contains(quality)).map_or(0, |quality| (quality * 1000.0).round() as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_what_the_client_likes_best() {
        use Form::{Html, Json, Text};
        let chrome = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        for (accept, forms, wanted) in [
            ("", &[Html, Json][..], Some(Html)),
            ("*/*", &[Json, Html], Some(Json)),
            (chrome, &[Text, Json, Html], Some(Html)),
            (chrome, &[Text, Json], Some(Text)),
            ("application/json", &[Html, Json], Some(Json)),
            ("application/json, text/plain, */*", &[Text, Html, Json], Some(Json)),
            ("application/problem+json", &[Html, Json], Some(Json)),
            ("text/*;q=0.5, application/*;q=0.4", &[Json, Html], Some(Html)),
            ("text/html;q=0, */*", &[Html, Json], Some(Json)),
            ("TEXT/PLAIN;format=flowed;Q=0.3, text/html;q=0.2", &[Html, Text], Some(Text)),
            ("image/png", &[Json, Html], Some(Json)),
            ("text/html;q=nan, application/json;q=0.001", &[Html, Json], Some(Json)),
            ("/, ;, ,,a/b/c;q=9999999999999", &[Html], Some(Html)),
            ("*/*", &[], None),
        ] {
            let lines: Vec<&[u8]> = if accept.is_empty() { Vec::new() } else { vec![accept.as_bytes()] };
            assert_eq!(preferred(&lines, forms), wanted, "{accept}");
        }
        let lines = [&b"text/html;q=0.1"[..], b"application/json;q=0.2"];
        assert_eq!(preferred(&lines, &[Html, Json]), Some(Json));
    }
}
