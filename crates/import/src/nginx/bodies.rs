//! Bodies that nginx holds: without a word of it Propylon hands them on as they come.

use super::reader::Reader;
use crate::changes::Changes;
use crate::words::Directive;

impl Reader<'_> {
    /// `proxy_buffering on` and `proxy_request_buffering on`, and those of FastCGI; `off` is what is done anyway.
    pub(super) fn bodies(&mut self, blocks: &[&Directive], changes: &mut Changes) {
        const FIX: &str =
            "write `buffer` in its routes, and `temp_dir` in [process] for bodies that are too long for memory";
        let [location, ..] = blocks else { return };
        let protocol = if location.find("fastcgi_pass").is_some() { "fastcgi" } else { "proxy" };
        let find = |name: &str| {
            let name = format!("{protocol}_{name}");
            let found = blocks.iter().find_map(|block| block.find(&name));
            found.filter(|each| each.word(1) == "on")
        };
        // Without files what is too long for memory waits with its server; requests would be refused.
        if let Some(each) = find("buffering")
            && changes.key("buffer", "{ response = { disk = 0 } }").is_err()
        {
            self.plan.note(each.line, each.text(), FIX);
        }
        if let Some(each) = find("request_buffering") {
            self.plan.note(each.line, each.text(), FIX);
        }
    }
}
