//! Access by nginx: addresses, methods, passwords.

use propylon_config::pattern::compile;

use super::conditions::{Refusal, refusal, refuses};
use super::includes::is_unread;
use super::known::is_unknown_guard;
use super::reader::Reader;
use crate::changes::Changes;
use crate::plan::{Action, CLOSED, respond};
use crate::words::Directive;

impl Reader<'_> {
    /// Passwords, where these are all that is asked for.
    pub(super) fn passwords(blocks: &[&Directive], changes: &mut Changes) -> bool {
        let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
        match (guards(blocks).as_slice(), find("auth_basic_user_file")) {
            ([each], Some(file)) if each.name() == "auth_basic" && !is_any(blocks) => {
                let is_fixed = !file.word(1).contains('$') && !each.word(1).contains('$');
                is_fixed && changes.basic(file.word(1), each.word(1)).is_ok()
            }
            _ => false,
        }
    }

    /// Tells of a password that would have let in whom an address keeps out.
    pub(super) fn keeps_out(&mut self, blocks: &[&Directive]) {
        if let Some(each) = guards(blocks).first().filter(|_| is_any(blocks)) {
            self.asks_any(each, blocks);
        }
    }

    /// The same as [`Self::asks`], with `satisfy any` as the cause where that is it.
    pub(super) fn asks_any(&mut self, each: &Directive, blocks: &[&Directive]) -> Action {
        let satisfy = blocks.iter().find_map(|block| block.find("satisfy")).filter(|_| is_any(blocks));
        match satisfy {
            Some(satisfy) if each.name().starts_with("auth_") => {
                self.plan.note(satisfy.line, satisfy.text(), ANY);
                respond(403, "")
            }
            _ => self.asks(each),
        }
    }

    /// The answer in place of one who asks who comes.
    pub(super) fn asks(&mut self, each: &Directive) -> Action {
        if is_unread(each) {
            self.included("server", each);
            return respond(403, "");
        }
        if each.name() == "if" {
            self.plan.note(each.line, each.text(), format!("no route asks for this: write one with `match`; {CLOSED}"));
            return respond(403, "");
        }
        let fix = format!(
            "who may come in is not carried over: write `auth` in the route, with `basic`, `jwt` or `forward`; {CLOSED}"
        );
        self.plan.note(each.line, each.text(), fix);
        respond(403, "")
    }
}

const ANY: &str = "no one route lets in by address or by password: write one with `match = { source = ... }` for the \
                   addresses, and one for the same path with `auth` for all others; until then these are answered with 403";

/// Clients that are let in, by address and method.
#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    /// Rules of which the first that fits a client counts.
    pub(super) rules: Vec<Rule>,
    /// Whether clients that none fits are kept out.
    pub(super) denies_rest: bool,
    /// Methods that are meant; none where all are.
    pub(super) methods: Vec<String>,
    /// Whether a location has proxies of its own that it believes.
    pub(super) is_apart: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) is_let_in: bool,
    pub(super) networks: Vec<String>,
}

impl Access {
    /// The rules of a block; those of an outer one where it has none.
    pub(super) fn of(block: &Directive, outer: &Access) -> Access {
        let rules: Vec<&Directive> =
            block.inner().iter().filter(|each| ["allow", "deny"].contains(&each.name())).collect();
        if rules.is_empty() {
            return outer.clone();
        }
        let mut access = Access::default();
        for each in rules {
            let is_let_in = each.name() == "allow";
            match (each.word(1), access.rules.last_mut()) {
                ("all", _) => {
                    access.denies_rest = !is_let_in;
                    break;
                }
                // Listeners are TCP.
                ("unix:", _) => {}
                (network, Some(last)) if last.is_let_in == is_let_in => last.networks.push(network.to_owned()),
                (network, _) => access.rules.push(Rule { is_let_in, networks: vec![network.to_owned()] }),
            }
        }
        // The last rule says nothing where all others are treated the same.
        if access.rules.last().is_some_and(|last| last.is_let_in != access.denies_rest) {
            access.rules.pop();
        }
        access
    }

    pub(super) fn is_open(&self) -> bool {
        self.rules.is_empty() && !self.denies_rest
    }

    /// Whether nobody is let in.
    pub(super) fn is_shut(&self) -> bool {
        self.rules.is_empty() && self.denies_rest
    }
}

/// Guards of blocks, the innermost first: a text that is the same where these are, and empty where there are none.
pub(super) fn guard_text(blocks: &[&Directive]) -> String {
    let access = blocks.iter().rev().fold(Access::default(), |outer, block| Access::of(block, &outer));
    let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
    let mut all: Vec<String> = guards(blocks).iter().map(|each| each.text()).collect();
    if !all.is_empty() {
        all.extend(["auth_basic_user_file", "satisfy"].iter().filter_map(|name| find(name)).map(Directive::text));
    }
    if !access.is_open() {
        all.push(format!("{access:?}"));
    }
    let own = |name: &str| blocks.first().and_then(|block| block.find(name));
    all.extend(own("internal").map(Directive::text));
    all.extend(own("limit_except").map(|each| format!("{} {}", each.line, each.text())));
    let conditions = blocks.first().into_iter().flat_map(|block| block.inner()).filter(|each| refusal(each).is_some());
    all.extend(conditions.map(|each| format!("{} {}", each.line, each.text())));
    all.extend(own("return").filter(|each| refuses(each)).map(Directive::text));
    all.join("\n")
}

/// Whether passwords let in whom addresses keep out, and the other way.
pub(super) fn is_any(blocks: &[&Directive]) -> bool {
    blocks.iter().find_map(|block| block.find("satisfy")).is_some_and(|each| each.word(1) == "any")
}

/// Whether an `if` refuses, or sends away, all requests but some, as by a key in a field, a signature, a client's
/// certificate, or a table of those who may come in. Others keep some requests out, and are told of.
fn lets_in(each: &Directive, blocks: &[&Directive]) -> bool {
    let turned: Vec<&Directive> = each.inner().iter().filter(|each| turns_away(each)).collect();
    if each.name() != "if" || turned.is_empty() {
        return false;
    }
    let condition = each.arguments().join(" ");
    let condition = condition.trim_start_matches('(').trim_end_matches(')').trim();
    let end = condition.find([' ', '=', '!', '~']).unwrap_or(condition.len());
    let (variable, test) = (&condition[..end], condition[end..].trim());
    let name = variable.trim_start_matches('$').trim_start_matches('{').trim_end_matches('}');
    /// Facts that say what is asked for, and not who comes.
    const OPEN: &[&str] = &["host", "http_host", "request_method", "scheme", "server_port", "https"];
    /// Facts by which requests are led to another page, and nobody is kept out.
    const LED: &[&str] = &[
        "uri",
        "document_uri",
        "request_uri",
        "args",
        "query_string",
        "request_filename",
        "http_user_agent",
        "http_accept_language",
        "http_x_forwarded_proto",
    ];
    // Files that are there or not are those of the server.
    if OPEN.contains(&name) || !variable.starts_with('$') || LED.contains(&name) && !turned.into_iter().any(refuses) {
        return false;
    }
    const PROOFS: &[&str] = &["secure_link", "secure_link_expires", "invalid_referer"];
    let is_set = |directive: &&Directive| directive.name() == "auth_request_set" && directive.word(1) == variable;
    let is_proof = PROOFS.contains(&name)
        || name.starts_with("ssl_client_")
        || name.starts_with("jwt_")
        || blocks.iter().flat_map(|block| block.inner()).any(|each| is_set(&each));
    is_proof || holds(test, &ordinary(variable, blocks))
}

/// The value of a variable for a request of which nothing is known: that of a table where no row is for it.
fn ordinary(variable: &str, blocks: &[&Directive]) -> String {
    let is_it = |each: &&Directive| {
        ["map", "geo"].contains(&each.name()) && each.words.last().is_some_and(|word| word == variable)
    };
    let table = blocks.iter().flat_map(|block| block.inner()).find(is_it);
    table.and_then(|table| table.find("default")).map_or("", |each| each.word(1)).to_owned()
}

/// Whether a test of nginx holds for a value.
fn holds(test: &str, value: &str) -> bool {
    let (operator, rest) = test.split_at(test.find(|c: char| !"=!~*".contains(c)).unwrap_or(test.len()));
    let text = rest.trim().trim_matches(['"', '\'']);
    let found = |flags: &str| compile(&format!("{flags}{text}")).map(|pattern| pattern.is_match(value.as_bytes()));
    match operator {
        "" => !["", "0"].contains(&value),
        "=" => value == text,
        "!=" => value != text,
        "~" => found("").unwrap_or(true),
        "~*" => found("(?i)").unwrap_or(true),
        "!~" => !found("").unwrap_or(false),
        "!~*" => !found("(?i)").unwrap_or(false),
        _ => true,
    }
}

/// Whether it is a `return` or a `rewrite` that answers with an error or leads elsewhere.
fn turns_away(each: &Directive) -> bool {
    let is_away = each.name() == "rewrite" && ["redirect", "permanent"].contains(&each.word(3));
    let is_url = each.name() == "return" && each.word(1).parse::<u16>().is_err();
    is_away
        || is_url
        || is_unread(each)
        || each.name() == "return" && each.word(1).parse::<u16>().is_ok_and(|status| status >= 300)
}

/// Directives that ask who comes: of each kind the innermost holds. Files that are included beside servers have these.
pub(super) fn guards<'d>(blocks: &[&'d Directive]) -> Vec<&'d Directive> {
    let is_guard = |each: &&Directive| {
        let asks = each.name().starts_with("auth_");
        let is_shut = || match refusal(each) {
            Some(refusal) => matches!(refusal, Refusal::Unknown),
            None => lets_in(each, blocks),
        };
        (asks && !["auth_basic_user_file", "auth_request_set"].contains(&each.name()))
            || is_unknown_guard(each)
            || is_shut()
    };
    let mut seen: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for block in blocks {
        let is_file = |each: &&Directive| is_unread(each) && !block.name().is_empty();
        let own: Vec<&Directive> = block.inner().iter().filter(|each| is_guard(each) || is_file(each)).collect();
        found.extend(own.iter().filter(|each| each.word(1) != "off" && !seen.contains(&each.name())));
        // Conditions hide none of those around them.
        seen.extend(own.iter().map(|each| each.name()).filter(|name| *name != "if"));
    }
    found
}
