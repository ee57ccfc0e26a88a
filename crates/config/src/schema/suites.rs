//! `policy` of `[tls.NAME]`: which versions, cipher suites and groups are offered, and why some never are.

use crate::describe::Form;
use crate::model::{CustomPolicy, TextTest, TlsFact, TlsGroup, TlsPolicy, TlsSuite, TlsVersion};
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Node, Value};
use crate::walk::{Found, Section, choice, mismatch, string, words};
use crate::wording::{one_of, shown};

const POLICY_FORM: &str = "\"modern\", \"intermediate\" or { versions = [...], suites = [...], groups = [...] }";

pub(crate) fn policy(section: &mut Section<'_, '_>) -> Option<TlsPolicy> {
    let report = section.report;
    let policies = [("modern", TlsKind::Modern), ("intermediate", TlsKind::Intermediate)];
    let Entry { node, key_span, .. } = section.forms("policy", &[Form::Words(&words(&policies)), Form::Table])?;
    match &node.value {
        Value::String(_) => Some(match choice(report, "policy", node, &policies)?.value {
            TlsKind::Modern => TlsPolicy::Modern,
            TlsKind::Intermediate => TlsPolicy::Intermediate,
        }),
        Value::Table(_) => custom(report, Section::of(report, node, "`policy`", *key_span)?).map(TlsPolicy::Custom),
        _ => mismatch(report, "policy", POLICY_FORM, node),
    }
}

#[derive(Clone, Copy)]
enum TlsKind {
    Modern,
    Intermediate,
}

fn custom(report: &Report<'_>, mut section: Section<'_, '_>) -> Option<CustomPolicy> {
    let (span, errors) = (section.span, report.errors());
    let versions = section
        .list("versions", &[Form::Words(&TlsVersion::ALL.map(TlsVersion::name)), Form::String])
        .map(|list| each(report, "versions", list, version));
    let names: Vec<&str> = TlsSuite::ALL.iter().map(|(_, suite)| suite.name()).collect();
    let suites =
        section.list("suites", &[Form::Words(&names), Form::String]).map(|list| each(report, "suites", list, suite));
    let names: Vec<&str> = TlsGroup::NAMES.iter().map(|(name, _)| *name).collect();
    let groups =
        section.list("groups", &[Form::Words(&names), Form::String]).map(|list| each(report, "groups", list, group));
    section.close();
    let all_suites = || TlsSuite::ALL.iter().map(|(_, suite)| *suite).collect::<Vec<_>>();
    let all_groups = || TlsGroup::ALL.to_vec();
    let policy = CustomPolicy {
        versions: versions.unwrap_or_else(|| vec![TlsVersion::Tls12, TlsVersion::Tls13]),
        suites: suites.clone().unwrap_or_else(all_suites),
        groups: groups.unwrap_or_else(all_groups),
        at: report.at(span),
    };
    if report.errors() == errors {
        fit(report, span, &policy);
    }
    if report.errors() == errors && suites.is_some() {
        idle(report, span, &policy);
    }
    Some(policy)
}

/// A condition on a fact of TLS, with names of suites and groups as sessions have them. There are few of these, so
/// that one which no session could meet is an error.
pub(super) fn condition(report: &Report<'_>, fact: TlsFact, span: Span, test: TextTest) -> Option<TextTest> {
    let (thing, names): (_, Vec<&str>) = match fact {
        TlsFact::Suite => ("cipher suite", TlsSuite::ALL.iter().map(|(_, suite)| suite.name()).collect()),
        TlsFact::Group => ("group", TlsGroup::ALL.iter().map(|group| group.name()).collect()),
        TlsFact::Version | TlsFact::ServerName | TlsFact::Alpn | TlsFact::Ja4 => return Some(test),
    };
    if let TextTest::Exact(text) = &test {
        let found = Found { value: text.as_str(), span };
        let name = match fact {
            TlsFact::Suite => suite(report, found)?.name(),
            _ => group(report, found)?.name(),
        };
        return Some(TextTest::Exact(name.to_string()));
    }
    if test != TextTest::Absent && !names.iter().any(|name| test.fits(name)) {
        report.error(span, format!("there is no {thing} that fits"), format!("names are {}", one_of(names)));
        return None;
    }
    Some(test)
}

/// Every version must be possible with the suites and groups.
fn fit(report: &Report<'_>, span: Span, policy: &CustomPolicy) {
    for version in &policy.versions {
        let name = version.name();
        if !policy.suites.iter().any(|suite| suite.version() == *version) {
            let fix = format!("add one, or remove \"{name}\" from `versions`");
            report.error(span, format!("`suites` has none for TLS {name}"), fix);
        }
    }
    let only_hybrid = policy.groups.iter().all(|group| *group == TlsGroup::X25519MlKem768);
    if only_hybrid && policy.versions.contains(&TlsVersion::Tls12) {
        let what = "X25519MLKEM768 is for TLS 1.3 only, and `groups` has none for TLS 1.2";
        report.error(span, what, "add \"x25519\", or remove \"1.2\" from `versions`");
    }
}

/// A suite that no version uses is a slip.
fn idle(report: &Report<'_>, span: Span, policy: &CustomPolicy) {
    for suite in &policy.suites {
        if !policy.versions.contains(&suite.version()) {
            let what = format!("{} is of a version that `versions` does not have", suite.name());
            report.warning(span, what, "remove it, or add the version");
        }
    }
}

/// A list of names that is not empty and has none twice.
fn each<T: Copy + PartialEq>(
    report: &Report<'_>,
    key: &str,
    list: Found<&[Node<'_>]>,
    read: impl Fn(&Report<'_>, Found<&str>) -> Option<T>,
) -> Vec<T> {
    if list.value.is_empty() {
        report.error(list.span, format!("`{key}` is empty"), "leave it out for the default, which is all there are");
    }
    let mut all = Vec::new();
    for node in list.value {
        let Some(found) = string(report, key, node) else { continue };
        match read(report, found) {
            Some(value) if all.contains(&value) => {
                report.error(found.span, format!("`{key}` names this one twice"), "remove one of the two");
            }
            Some(value) => all.push(value),
            None => {}
        }
    }
    all
}

fn version(report: &Report<'_>, found: Found<&str>) -> Option<TlsVersion> {
    let plain = found.value.trim_start_matches("TLSv").trim_start_matches("TLS ");
    if let Some(version) = TlsVersion::ALL.into_iter().find(|version| version.name() == plain) {
        return Some(version);
    }
    let what = match plain {
        "1" | "1.0" | "1.1" => format!("TLS {plain} is broken (RFC 8996); Propylon does not offer it"),
        _ if found.value.to_ascii_uppercase().starts_with("SSL") => {
            "SSL is broken (RFC 7568); Propylon does not offer it".into()
        }
        _ => format!("`versions` cannot have \"{}\"", shown(found.value)),
    };
    report.error(found.span, what, "use \"1.2\" or \"1.3\"");
    None
}

fn suite(report: &Report<'_>, found: Found<&str>) -> Option<TlsSuite> {
    let name = found.value;
    if let Some(suite) = TlsSuite::named(name) {
        return Some(suite);
    }
    if let Some(why) = refusal(name) {
        let what = format!("{} {why}; Propylon does not offer it", shown(name));
        report.error(found.span, what, "remove it");
        return None;
    }
    let names =
        TlsSuite::ALL.iter().flat_map(|(openssl, suite)| [suite.name(), *openssl]).filter(|name| !name.is_empty());
    let fix = match report.closest(name, names.clone()) {
        Some(close) => format!("did you mean \"{close}\"?"),
        None => format!("use {}", one_of(names)),
    };
    report.error(found.span, format!("there is no cipher suite named \"{}\"", shown(name)), fix);
    None
}

fn group(report: &Report<'_>, found: Found<&str>) -> Option<TlsGroup> {
    if let Some(group) = TlsGroup::named(found.value) {
        return Some(group);
    }
    let lower = found.value.to_ascii_lowercase();
    let why = match lower.as_str() {
        _ if lower.starts_with("ffdhe") => {
            Some("is Diffie-Hellman over a finite field: slow, and no modern client needs it")
        }
        "secp521r1" | "p-521" | "x448" => Some("is not in the TLS library"),
        "mlkem512" | "mlkem768" | "mlkem1024" => Some("has no classical half to fall back on"),
        "secp256r1mlkem768" | "secp384r1mlkem1024" => {
            Some("is slower than X25519MLKEM768 and hardly any client has it")
        }
        "secp224r1" | "p-224" | "secp192r1" | "p-192" | "prime192v1" => Some("is too weak (RFC 8422 §5.1.1)"),
        _ if lower.starts_with("brainpool") || lower == "secp256k1" || lower.starts_with("sect") => {
            Some("is not one of the groups of TLS 1.3 (RFC 8446 §4.2.7)")
        }
        _ => None,
    };
    if let Some(why) = why {
        let what = format!("{} {why}; Propylon does not offer it", shown(found.value));
        report.error(found.span, what, "remove it");
        return None;
    }
    let names = TlsGroup::ALL.map(TlsGroup::name);
    let fix = match report.closest(found.value, names) {
        Some(close) => format!("did you mean \"{close}\"?"),
        None => format!("use {}", one_of(names)),
    };
    report.error(found.span, format!("there is no group named \"{}\"", shown(found.value)), fix);
    None
}

/// Why a suite that exists is never offered; none for names that mean nothing.
fn refusal(name: &str) -> Option<&'static str> {
    let upper = name.to_ascii_uppercase();
    let words = match upper.strip_prefix("TLS_").or_else(|| upper.strip_prefix("SSL_")) {
        Some(rest) => match rest.split_once("_WITH_") {
            Some((exchange, cipher)) => {
                Words { exchange: exchange.replace('_', "-"), cipher: cipher.replace('_', "-") }
            }
            None if rest.starts_with("AES_128_CCM") => return Some("has a shortened or slow authentication tag (CCM)"),
            None => return None,
        },
        None => openssl_words(&upper)?,
    };
    words.refusal()
}

/// The two halves of a suite's name before TLS 1.3.
struct Words {
    exchange: String,
    cipher: String,
}

const CIPHERS: &[&str] =
    &["3DES", "AES", "ARIA", "CAMELLIA", "CHACHA20", "DES", "IDEA", "NULL", "RC2", "RC4", "SEED", "SM4"];
const EXCHANGES: &[&str] = &[
    "ADH",
    "AECDH",
    "DH",
    "DH-ANON",
    "DH-DSS",
    "DH-RSA",
    "DHE",
    "DHE-DSS",
    "DHE-PSK",
    "DHE-RSA",
    "ECDH",
    "ECDH-ANON",
    "ECDH-ECDSA",
    "ECDH-RSA",
    "ECDHE",
    "ECDHE-ECDSA",
    "ECDHE-PSK",
    "ECDHE-RSA",
    "EDH-DSS",
    "EDH-RSA",
    "EXP",
    "KRB5",
    "NULL",
    "PSK",
    "RSA",
    "RSA-EXPORT",
    "RSA-PSK",
    "SRP",
    "SRP-SHA",
    "SRP-SHA-DSS",
    "SRP-SHA-RSA",
    "DHE-RSA-EXPORT",
];

/// OpenSSL leaves the exchange out where it is static RSA.
fn openssl_words(upper: &str) -> Option<Words> {
    let starts = |text: &str| CIPHERS.iter().any(|cipher| text.starts_with(cipher));
    if starts(upper) {
        return upper.contains('-').then(|| Words { exchange: "RSA".into(), cipher: upper.to_string() });
    }
    let at = upper.match_indices('-').map(|(at, _)| at).find(|at| starts(&upper[at + 1..]))?;
    Some(Words { exchange: upper[..at].to_string(), cipher: upper[at + 1..].to_string() })
}

impl Words {
    fn refusal(&self) -> Option<&'static str> {
        let Words { exchange, cipher } = self;
        if !EXCHANGES.contains(&exchange.as_str()) || !CIPHERS.iter().any(|known| cipher.starts_with(known)) {
            return None;
        }
        let hash = ["-SHA", "-SHA1", "-SHA256", "-SHA384", "-MD5", "-CCM", "-CCM8", "-CCM-8", "-POLY1305"];
        if !hash.iter().any(|end| cipher.ends_with(end)) {
            return None;
        }
        if cipher.starts_with("NULL") || exchange == "NULL" {
            return Some("encrypts nothing");
        }
        if exchange.contains("EXPORT") || exchange == "EXP" || cipher.contains("EXPORT") {
            return Some("was weakened for export");
        }
        if exchange.ends_with("ANON") || exchange == "ADH" || exchange == "AECDH" {
            return Some("has no certificate, so anyone can be in the middle");
        }
        if cipher.starts_with("RC4") || cipher.starts_with("RC2") {
            return Some("has a broken cipher (RC4, RFC 7465)");
        }
        if cipher.starts_with("DES") || cipher.starts_with("3DES") || cipher.starts_with("IDEA") {
            return Some("has a cipher with blocks of 64 bits (SWEET32)");
        }
        match exchange.as_str() {
            "RSA" | "DH-RSA" | "DH-DSS" | "ECDH-RSA" | "ECDH-ECDSA" | "DH" | "ECDH" => {
                return Some("has no forward secrecy");
            }
            _ if exchange.contains("PSK") || exchange.contains("SRP") || exchange == "KRB5" => {
                return Some("goes without certificates, by a secret that both sides share");
            }
            _ if exchange.starts_with("DHE") || exchange.starts_with("EDH") => {
                return Some("has Diffie-Hellman over a finite field, which is slow and often weak (RFC 9325 §4.1)");
            }
            _ => {}
        }
        match cipher {
            _ if cipher.contains("CCM") => Some("has a slow mode (CCM) that hardly any client has"),
            _ if !cipher.contains("GCM") && !cipher.contains("POLY1305") => {
                Some("has CBC mode (Lucky13, RFC 9325 §4.2)")
            }
            _ if !cipher.starts_with("AES") && !cipher.starts_with("CHACHA20") => {
                Some("has a cipher that the TLS library lacks")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_that_exists_and_is_never_offered_has_its_reason() {
        for (name, why) in [
            ("TLS_RSA_WITH_AES_128_GCM_SHA256", "no forward secrecy"),
            ("AES128-GCM-SHA256", "no forward secrecy"),
            ("AES256-SHA", "no forward secrecy"),
            ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "finite field"),
            ("DHE-RSA-AES256-GCM-SHA384", "finite field"),
            ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "CBC"),
            ("ECDHE-ECDSA-AES256-SHA384", "CBC"),
            ("TLS_RSA_WITH_3DES_EDE_CBC_SHA", "SWEET32"),
            ("DES-CBC3-SHA", "SWEET32"),
            ("ECDHE-RSA-RC4-SHA", "RC4"),
            ("TLS_ECDHE_ECDSA_WITH_AES_128_CCM", "CCM"),
            ("TLS_ECDHE_ECDSA_WITH_NULL_SHA", "encrypts nothing"),
            ("ADH-AES128-SHA", "no certificate"),
            ("TLS_DH_anon_WITH_AES_128_GCM_SHA256", "no certificate"),
            ("PSK-AES128-GCM-SHA256", "secret that both sides share"),
            ("TLS_ECDHE_RSA_WITH_CAMELLIA_128_GCM_SHA256", "lacks"),
            ("TLS_AES_128_CCM_8_SHA256", "CCM"),
            ("TLS_RSA_EXPORT_WITH_RC4_40_MD5", "weakened for export"),
            ("EXP-RC4-MD5", "weakened for export"),
            ("TLS_DHE_RSA_WITH_DES_40_EXPORT_SHA", "weakened for export"),
            ("NULL-SHA256", "encrypts nothing"),
            ("TLS_NULL_WITH_AES_128_CBC_SHA", "encrypts nothing"),
        ] {
            let said = refusal(name).unwrap_or_default();
            assert!(said.contains(why), "{name}: {said}");
        }
    }

    #[test]
    fn what_is_offered_or_means_nothing_has_no_reason_against_it() {
        for (openssl, suite) in TlsSuite::ALL {
            assert_eq!((refusal(suite.name()), refusal(openssl)), (None, None), "{openssl}");
        }
        for name in [
            "",
            "TLS_",
            "TLS_AES_128_GCM_SHA25",
            "AES",
            "TLS_EHCDE_RSA_WITH_AES_128_GCM_SHA256",
            "-",
            "HIGH",
            "TLS_RSA_WITH_",
            "TLS_ECDHE_RSA_WITH_EAS_128_CBC_SHA",
            "TLS_RSB_WITH_AES_128_CBC_SHA",
        ] {
            assert_eq!(refusal(name), None, "{name}");
        }
    }
}
