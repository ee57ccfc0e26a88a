//! `[keys]`

use super::close;
use crate::model::{Config, Keys};
use crate::report::Report;
use crate::walk::Section;

pub(crate) fn keys(mut section: Option<Section<'_, '_>>) -> Keys {
    let mut keys = Keys::default();
    if let Some(section) = &mut section {
        let at = section.entry("isolate").map(|entry| section.report.at(entry.key_span));
        keys.isolate = section.boolean("isolate").filter(|found| found.value).and(at);
    }
    close(section);
    keys
}

/// Keys that would be in the process that serves all the same: none may be, or the promise is none.
pub(crate) fn check(report: &Report<'_>, config: &Config) {
    let Some(isolate) = config.keys.isolate else { return };
    let refuse =
        |at, what: &str, fix: &str| report.error_at(at, format!("keys.isolate does not cover {what} yet"), fix);
    for signer in &config.signers {
        refuse(
            signer.identity.at,
            "the key that key servers are shown",
            "remove the [signer.NAME], whose key servers keep keys apart as well, or set isolate = false",
        );
    }
    for acme in &config.acmes {
        let fix = "have another program order certificates (certbot, lego), and name its files, or set isolate = false";
        refuse(acme.at, "keys of ordered certificates", fix);
    }
    let towards = config.backends.iter().filter_map(|backend| backend.tls.as_ref());
    let towards = towards.chain(config.tracing.iter().filter_map(|tracing| tracing.tls.as_ref()));
    for certificate in towards.filter_map(|tls| tls.certificate.as_ref()) {
        let fix = "have servers trust this machine by other means, or set isolate = false";
        refuse(certificate.at, "keys that are shown to servers", fix);
    }
    if !config.process.sandbox.on {
        let what = "with sandbox = \"off\" the process that serves has no key, and may open the files that they are in";
        report.warning_at(isolate, what, "set process.sandbox = \"on\"");
    }
}
