//! Scripts: the one that a path runs, and what of the path is left for it to read.
//!
//! PHP runs more than it is asked for: of `/upload/x.jpg/y.php`, which is no file, it goes up to `/upload/x.jpg`, which
//! somebody has uploaded, and runs that (`cgi.fix_pathinfo`). The files are the server's, and nobody looks at them
//! here, so a path runs a script only where the configuration names that: the index, or what `scripts` says.
//! Directories before a script are then the configuration's own words, and nothing that a client has put there. With
//! `scripts = "any"` none of them may look like a file.

use std::borrow::Cow;

use propylon_config::{FastCgi, Scripts};

/// A script, and the rest of its path, both below the document root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub script: Vec<u8>,
    /// Empty, or from a `/` on.
    pub path_info: Vec<u8>,
}

/// The path has a segment that leads elsewhere, or a byte that ends names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPath;

/// Script that a path runs, which is given as a request's target has it, with its escapes and without its query.
///
/// # Errors
/// The path would not stay below the document root, or what it names depends on who reads it.
pub fn place(settings: &FastCgi, path: &[u8]) -> Result<Place, BadPath> {
    let path = unescaped(path);
    let is_bad = |segment: &[u8]| matches!(segment, b"." | b"..");
    if memchr_any(&path, b"\0\\") || path.split(|byte| *byte == b'/').any(is_bad) {
        return Err(BadPath);
    }
    let asked = split(&path, settings.split.as_bytes()).filter(|place| may_run(settings, &place.script));
    Ok(asked.unwrap_or_else(|| Place { script: settings.index.clone().into_bytes(), path_info: Vec::new() }))
}

/// Settings by which a probe asks for the script that its path names, or for what the server answers by itself there.
pub fn of_probe(settings: &FastCgi, path: &str) -> FastCgi {
    let path = path.split('?').next().unwrap_or_default();
    let script = split(path.as_bytes(), settings.split.as_bytes()).map_or(path.len(), |place| place.script.len());
    FastCgi {
        index: path[..script].into(),
        scripts: Scripts::Index,
        keep: false,
        params: Vec::new(),
        ..settings.clone()
    }
}

/// The first segment that is called as scripts are, and what comes behind it.
fn split(path: &[u8], suffix: &[u8]) -> Option<Place> {
    let mut end = 0;
    for segment in path.split(|byte| *byte == b'/') {
        end += segment.len();
        if segment.len() > suffix.len() && segment.ends_with(suffix) && path.starts_with(b"/") {
            return Some(Place { script: path[..end].to_vec(), path_info: path[end..].to_vec() });
        }
        end += 1;
    }
    None
}

fn may_run(settings: &FastCgi, script: &[u8]) -> bool {
    if script == settings.index.as_bytes() {
        return true;
    }
    match &settings.scripts {
        Scripts::Index => false,
        Scripts::Named(patterns) => patterns.iter().any(|pattern| is_named(pattern.as_bytes(), script)),
        Scripts::Any => {
            let mut segments = script.rsplit(|byte| *byte == b'/');
            segments.next();
            !segments.any(looks_like_a_file)
        }
    }
}

/// Whether a script is one of a pattern's: `*` stands for any part of a file's name.
fn is_named(pattern: &[u8], script: &[u8]) -> bool {
    let Some(star) = pattern.iter().position(|byte| *byte == b'*') else { return pattern == script };
    let (before, after) = (&pattern[..star], &pattern[star + 1..]);
    script.len() >= before.len() + after.len()
        && script.starts_with(before)
        && script.ends_with(after)
        && !script[before.len()..script.len() - after.len()].contains(&b'/')
}

/// Whether a directory's name could be a file's: it has a dot, and something behind it that is no number.
fn looks_like_a_file(name: &[u8]) -> bool {
    let dot = name.iter().rposition(|byte| *byte == b'.');
    dot.is_some_and(|dot| dot > 0 && !name[dot + 1..].iter().all(u8::is_ascii_digit))
}

fn memchr_any(text: &[u8], bytes: &[u8]) -> bool {
    text.iter().any(|byte| bytes.contains(byte))
}

/// The path without its escapes; what is none stays.
fn unescaped(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let (mut text, mut rest) = (Vec::with_capacity(path.len()), path);
    while let [byte, after @ ..] = rest {
        let escaped = match (byte, after) {
            (b'%', [high, low, ..]) => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                text.push(high << 4 | low);
                rest = &after[2..];
            }
            None => {
                text.push(*byte);
                rest = after;
            }
        }
    }
    Cow::Owned(text)
}

fn digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(scripts: Scripts) -> FastCgi {
        FastCgi { scripts, ..FastCgi::at_root("/srv/app") }
    }

    fn runs(scripts: Scripts, path: &str) -> (String, String) {
        let place = place(&settings(scripts), path.as_bytes()).unwrap();
        (String::from_utf8(place.script).unwrap(), String::from_utf8(place.path_info).unwrap())
    }

    fn of(script: &str, path_info: &str) -> (String, String) {
        (script.into(), path_info.into())
    }

    #[test]
    fn everything_goes_to_the_index_where_no_other_script_is_named() {
        for path in ["/", "/blog/hello", "/admin.php", "/upload/x.jpg/y.php", "/upload/x.php", "/a%2ephp", "*"] {
            assert_eq!(runs(Scripts::Index, path), of("/index.php", ""), "{path}");
        }
        assert_eq!(runs(Scripts::Index, "/index.php"), of("/index.php", ""));
        assert_eq!(runs(Scripts::Index, "/index.php/blog/a.php"), of("/index.php", "/blog/a.php"));
        assert_eq!(runs(Scripts::Index, "/index.php/"), of("/index.php", "/"));
        assert_eq!(runs(Scripts::Index, "/index.phpx/y"), of("/index.php", ""));
    }

    #[test]
    fn named_scripts_run_and_what_is_put_beside_them_does_not() {
        let named = || Scripts::Named(vec!["/wp-login.php".into(), "/wp-admin/*.php".into(), "/tool-*.php".into()]);
        assert_eq!(runs(named(), "/wp-login.php"), of("/wp-login.php", ""));
        assert_eq!(runs(named(), "/wp-admin/edit.php/a%20b/c"), of("/wp-admin/edit.php", "/a b/c"));
        assert_eq!(runs(named(), "/tool-x.php"), of("/tool-x.php", ""));
        for path in [
            "/wp-admin/upload/x.php",
            "/wp-content/uploads/evil.php",
            "/upload/x.jpg/wp-login.php",
            "/wp-admin/x.jpg/y.php",
            "/wp-admin/.php",
            "/wp-login.phps",
            "/WP-LOGIN.PHP",
            "/tool-a/b.php",
        ] {
            assert_eq!(runs(named(), path), of("/index.php", ""), "{path}");
        }
    }

    #[test]
    fn any_script_runs_but_none_below_what_looks_like_a_file() {
        assert_eq!(runs(Scripts::Any, "/a/b/c.php/d"), of("/a/b/c.php", "/d"));
        assert_eq!(runs(Scripts::Any, "/v1.2/.hidden/c.php"), of("/v1.2/.hidden/c.php", ""));
        assert_eq!(runs(Scripts::Any, "/upload/x.jpg/y.php"), of("/index.php", ""));
        assert_eq!(runs(Scripts::Any, "/upload/x%2Ejpg%2fy.php"), of("/index.php", ""));
        assert_eq!(runs(Scripts::Any, "/upload/x.p4/y.php"), of("/index.php", ""));
    }

    #[test]
    fn a_probe_asks_for_what_its_path_names() {
        for (path, script, path_info) in
            [("/ping", "/ping", ""), ("/ping?full", "/ping", ""), ("/x/health.php/deep?a", "/x/health.php", "/deep")]
        {
            let settings = of_probe(&FastCgi::at_root("/srv"), path);
            let path = path.split('?').next().unwrap_or_default();
            let expected = Place { script: script.into(), path_info: path_info.into() };
            assert_eq!(place(&settings, path.as_bytes()), Ok(expected));
        }
    }

    #[test]
    fn paths_that_leave_the_root_or_end_names_are_refused() {
        for path in ["/../x.php", "/a/%2e%2e/x.php", "/a%2f..%2fx.php", "/./x.php", "/x.php%00.jpg", "/a%5cb.php"] {
            assert_eq!(place(&settings(Scripts::Any), path.as_bytes()), Err(BadPath), "{path}");
        }
        // A sign that begins no escape stands for itself.
        assert_eq!(runs(Scripts::Any, "/%zz%4.php/%"), of("/%zz%4.php", "/%"));
    }
}
