//! Access by nginx: addresses, methods, passwords.

use super::reader::Reader;
use crate::changes::Changes;
use crate::plan::{Action, CLOSED, respond};
use crate::words::Directive;

impl Reader<'_> {
    /// Passwords, where these are all that is asked for.
    pub(super) fn passwords(blocks: &[&Directive], changes: &mut Changes) -> bool {
        let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
        let is_any = find("satisfy").is_some_and(|each| each.word(1) == "any");
        match (guards(blocks).as_slice(), find("auth_basic_user_file")) {
            ([each], Some(file)) if each.name() == "auth_basic" && !is_any => {
                !file.word(1).contains('$') && changes.basic(file.word(1), each.word(1)).is_ok()
            }
            _ => false,
        }
    }

    /// The answer in place of one who asks who comes.
    pub(super) fn asks(&mut self, each: &Directive) -> Action {
        let fix = format!(
            "who may come in is not carried over: write `auth` in the route, with `basic`, `jwt` or `forward`; {CLOSED}"
        );
        self.plan.note(each.line, each.text(), fix);
        respond(403, "")
    }
}

/// Clients that are let in, by address and method.
#[derive(Clone, Default)]
pub(super) struct Access {
    pub(super) allowed: Vec<String>,
    pub(super) denied: Vec<String>,
    pub(super) denies_rest: bool,
    /// Methods that are let in; none where all are.
    pub(super) methods: Vec<String>,
}

impl Access {
    /// The rules of a block; those of an outer one where it has none.
    pub(super) fn of(block: &Directive, outer: &Access) -> Access {
        let mut access = Access::default();
        let mut has_rules = false;
        for each in block.inner() {
            match (each.name(), each.word(1)) {
                ("allow", "all") => break,
                ("deny", "all") => access.denies_rest = true,
                ("allow", network) => access.allowed.push(network.to_owned()),
                ("deny", network) => access.denied.push(network.to_owned()),
                _ => continue,
            }
            has_rules = true;
        }
        let mut access = if has_rules { access } else { outer.clone() };
        // With another rule than `deny all` inside it is told as a directive that is not known.
        if let Some(except) =
            block.find("limit_except").filter(|each| each.find("deny").is_some_and(|deny| deny.word(1) == "all"))
        {
            access.methods = except.arguments().to_vec();
            if access.methods.iter().any(|method| method == "GET") {
                access.methods.push("HEAD".into());
            }
        }
        access
    }
}

/// Directives that ask who comes: of each kind the innermost holds.
pub(super) fn guards<'d>(blocks: &[&'d Directive]) -> Vec<&'d Directive> {
    let is_guard = |each: &&Directive| {
        each.name().starts_with("auth_") && !["auth_basic_user_file", "auth_request_set"].contains(&each.name())
    };
    let mut seen: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for block in blocks {
        let own: Vec<&Directive> = block.inner().iter().filter(is_guard).collect();
        found.extend(own.iter().filter(|each| each.word(1) != "off" && !seen.contains(&each.name())));
        seen.extend(own.iter().map(|each| each.name()));
    }
    found
}
