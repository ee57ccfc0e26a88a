//! `[[pkcs11]]` of a key server: keys in hardware modules.

use std::ops::RangeInclusive;
use std::path::Path;

use super::values::{HOUR, MILLISECOND, file};
use crate::describe::Form;
use crate::keyserver::{KeyName, NamedPath, Pkcs11, Token};
use crate::report::Report;
use crate::tree::{Node, Value};
use crate::walk::{Found, Section, mismatch, string};
use crate::wording::shown;

/// Each has threads of its own.
const TOKENS_MAX: usize = 16;
/// Tokens of hardware have few; more threads than that only wait for each other.
const SESSIONS: RangeInclusive<i128> = 1..=64;
/// CK_TOKEN_INFO has room for so many (PKCS#11 3.1 §3.3).
const LABEL_BYTES_MAX: usize = 32;
const KEY_NAME_BYTES_MAX: usize = 256;

pub(super) fn tokens(report: &Report<'_>, top: &mut Section<'_, '_>, base: &Path) -> Vec<Pkcs11> {
    let Some(entry) = top.forms("pkcs11", &[Form::List(&[Form::Table])]) else { return Vec::new() };
    let nodes = match &entry.node.value {
        Value::Array(nodes) => nodes.as_slice(),
        Value::Table(_) => {
            report.error(entry.key_span, "there can be several tokens", "write [[pkcs11]] in double brackets");
            std::slice::from_ref(&entry.node)
        }
        _ => {
            mismatch::<()>(report, "pkcs11", "an array of tables", &entry.node);
            &[]
        }
    };
    if nodes.len() > TOKENS_MAX {
        let what = format!("there are {} tokens", nodes.len());
        report.error(entry.key_span, what, format!("write {TOKENS_MAX} at most, and use more key servers"));
    }
    let mut tokens: Vec<Pkcs11> = Vec::new();
    for token in nodes.iter().filter_map(|node| token(report, node, base)) {
        if let Some(known) =
            tokens.iter().find(|known| known.token == token.token && known.module.path == token.module.path)
        {
            let what = format!("this token is listed already, in line {}", known.at.line);
            report.error_at(token.at, what, "list all of its keys there");
        }
        tokens.push(token);
    }
    tokens
}

fn token(report: &Report<'_>, node: &Node<'_>, base: &Path) -> Option<Pkcs11> {
    let mut section = Section::of(report, node, "[[pkcs11]]", node.span)?;
    let module = path(&mut section, "module", base);
    if module.is_none() && section.node("module").is_none() {
        section.missing("module", "add the maker's library, such as module = \"/usr/lib/softhsm/libsofthsm2.so\"");
    }
    let token = which(&mut section, node);
    let pin_file = path(&mut section, "pin_file", base);
    let keys = section.list("keys", &[Form::String]).map(|list| {
        if list.value.is_empty() {
            report.error(list.span, "`keys` is empty", "write labels, or leave it out for all keys of the token");
        }
        list.value.iter().filter_map(|node| key_name(report, string(report, "keys", node)?)).collect()
    });
    let sessions = section.integer_or("sessions", SESSIONS, 4);
    let timeout = section.duration("timeout", MILLISECOND..=HOUR).map(|found| found.value);
    let list = section.list("module_paths", &[Form::String]);
    let names = list.iter().flat_map(|list| list.value).filter_map(|node| string(report, "module_paths", node));
    let module_paths = names.filter_map(|found| named(report, "module_paths", found, base)).collect();
    let network = section.boolean_or("network", false);
    section.close();
    let at = report.at(node.span);
    Some(Pkcs11 { module: module?, token: token?, pin_file, keys, sessions, timeout, module_paths, network, at })
}

fn path(section: &mut Section<'_, '_>, key: &'static str, base: &Path) -> Option<NamedPath> {
    let found = section.string(key)?;
    named(section.report, key, found, base)
}

fn named(report: &Report<'_>, key: &str, found: Found<&str>, base: &Path) -> Option<NamedPath> {
    Some(NamedPath { path: file(report, key, found, base)?, at: report.at(found.span) })
}

/// `token` or `slot`, one of the two.
fn which(section: &mut Section<'_, '_>, node: &Node<'_>) -> Option<Token> {
    section.one_of(&["token", "slot"]);
    let (has_label, has_slot) = (section.node("token").is_some(), section.node("slot").is_some());
    let label = section.string("token");
    let slot = section.integer("slot", 0..=i128::from(u64::MAX));
    match (has_label, has_slot) {
        (true, true) => {
            section.report.error(node.span, "both `token` and `slot` are given", "remove one of them");
            None
        }
        (false, false) => {
            section.missing_here("token", "add token = \"LABEL\", or slot = NUMBER");
            None
        }
        (true, false) => {
            let found = label?;
            if found.value.is_empty() || found.value.len() > LABEL_BYTES_MAX {
                let fix =
                    format!("write its label, of 1 to {LABEL_BYTES_MAX} bytes, as the token was initialised with");
                section.report.error(found.span, format!("`token` cannot be \"{}\"", shown(found.value)), fix);
                return None;
            }
            Some(Token::Label(found.value.to_owned()))
        }
        (false, true) => Some(Token::Slot(slot?.value)),
    }
}

fn key_name(report: &Report<'_>, found: Found<&str>) -> Option<KeyName> {
    let name = match found.value.strip_prefix("id:") {
        Some(digits) => octets(digits).map(KeyName::Id),
        None if found.value.is_empty() || found.value.len() > KEY_NAME_BYTES_MAX => None,
        None => Some(KeyName::Label(found.value.to_owned())),
    };
    if name.is_none() {
        let what = format!("`keys`: \"{}\" is no key's name", shown(found.value));
        report.error(found.span, what, "write a label, or id: and the hexadecimal digits of the key's ID");
    }
    name
}

fn octets(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b':').collect();
    if digits.is_empty() || !digits.len().is_multiple_of(2) || digits.len() > 2 * KEY_NAME_BYTES_MAX {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    digits.chunks_exact(2).map(|pair| Some(value(pair[0])? << 4 | value(pair[1])?)).collect()
}
