//! Files that nginx reads at an `include`: what they keep out is not known here, since they are not read.

use super::reader::Reader;
use crate::plan::CLOSED;
use crate::words::Directive;

/// Files that come with nginx or its packages, by name: these keep nobody out.
const HARMLESS: &[&str] = &[
    "mime.types",
    "fastcgi_params",
    "proxy_params",
    "scgi_params",
    "uwsgi_params",
    "options-ssl-nginx.conf",
    "fastcgi.conf",
    "fastcgi-php.conf",
];
/// Files with settings of TLS alone, by name.
const OF_TLS: &[&str] =
    &["ssl-params", "ssl_params", "ssl-options", "options-ssl", "tls-params", "tls_params", "self-signed", "snakeoil"];

/// Whether it is an `include` of a file that may keep requests out.
pub(super) fn is_unread(each: &Directive) -> bool {
    let file = name(each);
    let is_of_tls = OF_TLS.contains(&file.strip_suffix(".conf").unwrap_or(file));
    each.name() == "include" && !is_harmless(each) && !is_of_tls
}

fn is_harmless(each: &Directive) -> bool {
    HARMLESS.contains(&name(each)) || each.word(1).contains("modules-enabled")
}

fn name(each: &Directive) -> &str {
    each.word(1).rsplit('/').next().unwrap_or_default()
}

impl Reader<'_> {
    /// Tells of a file that is not read, in a block of this name.
    pub(super) fn included(&mut self, block: &str, each: &Directive) {
        if is_harmless(each) {
            return;
        }
        let fix = match ["server", "location", "if", "limit_except"].contains(&block) {
            true if is_unread(each) => format!(
                "whom the file keeps out is not known: write its lines in place of this one, and import again; {CLOSED}"
            ),
            _ => "import that file by itself".to_owned(),
        };
        self.plan.note(each.line, each.text(), fix);
    }
}
