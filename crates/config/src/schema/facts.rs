//! Facts of a client's connection that conditions ask for, as they are compared: a text that no connection could have
//! is refused, since a guard with such a condition would let everybody in.

use super::suites;
use crate::model::{ClientFact, FactCondition, TextTest, TlsFact, TlsVersion};
use crate::report::Report;
use crate::text::Span;
use crate::wording::shown;

const ALPN: [&str; 2] = ["h2", "http/1.1"];
/// Digits of a SHA-256.
const SHA256_DIGITS: usize = 64;

/// A condition on a fact of TLS as sessions have it.
pub(super) fn of_tls(report: &Report<'_>, fact: TlsFact, span: Span, test: TextTest) -> Option<TextTest> {
    match fact {
        TlsFact::Suite | TlsFact::Group => suites::condition(report, fact, span, test),
        TlsFact::Version => {
            let names = TlsVersion::ALL.map(TlsVersion::fact);
            known(report, span, spelled(test, version), (&names, "there is no version of TLS that fits"))
        }
        TlsFact::Alpn => known(report, span, test, (&ALPN, "no protocol that is agreed on by ALPN fits")),
        TlsFact::ServerName => Some(spelled(test, |name| {
            let name = name.to_ascii_lowercase();
            name.strip_suffix('.').map(str::to_owned).unwrap_or(name)
        })),
        TlsFact::Ja4 => Some(test),
    }
}

/// A condition on a fact of a client's certificate as it is compared: digits as programs print them, with colons and
/// in either case, are taken.
pub(super) fn of_client(report: &Report<'_>, fact: ClientFact, span: Span, test: TextTest) -> Option<TextTest> {
    let digits = |text: &str| text.replace(':', "");
    let (test, is_whole) = match fact {
        ClientFact::Sha256 => (spelled(test, |text| digits(text).to_ascii_lowercase()), true),
        ClientFact::Serial => (spelled(test, |text| digits(text).to_ascii_uppercase()), false),
        ClientFact::Subject | ClientFact::Issuer | ClientFact::San => return Some(test),
    };
    let (text, is_exact) = match &test {
        TextTest::Exact(text) => (text, true),
        TextTest::Prefix(text) => (text, false),
        TextTest::Present | TextTest::Absent | TextTest::Regex(_) => return Some(test),
    };
    let is_hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_length = match (is_whole, is_exact) {
        (true, true) => text.len() == SHA256_DIGITS,
        (true, false) => text.len() <= SHA256_DIGITS,
        (false, _) => true,
    };
    if !is_hexadecimal || !is_length || text.is_empty() {
        let (thing, fix) = match is_whole {
            true => ("no SHA-256", "write what `openssl x509 -noout -fingerprint -sha256` prints behind the `=`"),
            false => ("no serial number", "write what `openssl x509 -noout -serial` prints behind the `=`"),
        };
        report.error(span, format!("\"{}\" is {thing} in hexadecimal", shown(text)), fix);
        return None;
    }
    Some(test)
}

/// Conditions on a certificate of which one asks for none.
pub(super) fn contradict(conditions: &[FactCondition<ClientFact>]) -> bool {
    let is_absent = |each: &FactCondition<ClientFact>| each.test == TextTest::Absent;
    // A certificate may have no alternative names; all else each one has.
    conditions.iter().any(|each| is_absent(each) && each.fact != ClientFact::San)
        && conditions.iter().any(|each| !is_absent(each))
}

/// A test with its text spelled as it is compared. Patterns are left as they are.
fn spelled(test: TextTest, spell: impl Fn(&str) -> String) -> TextTest {
    match test {
        TextTest::Exact(text) => TextTest::Exact(spell(&text)),
        TextTest::Prefix(text) => TextTest::Prefix(spell(&text)),
        TextTest::Present | TextTest::Absent | TextTest::Regex(_) => test,
    }
}

/// A version as programs and people write it.
fn version(text: &str) -> String {
    let plain = text.to_ascii_lowercase();
    let plain = plain.strip_prefix("tls").unwrap_or(&plain).trim_start_matches(['v', ' ', '_', '-']);
    let known = TlsVersion::ALL.into_iter().find(|version| version.name() == plain);
    known.map_or_else(|| text.to_owned(), |version| version.fact().to_owned())
}

/// A test that one of these texts can pass.
fn known(report: &Report<'_>, span: Span, test: TextTest, (all, what): (&[&str], &str)) -> Option<TextTest> {
    if test == TextTest::Absent || all.iter().any(|text| test.fits(text)) {
        return Some(test);
    }
    let all: Vec<String> = all.iter().map(|text| format!("\"{text}\"")).collect();
    report.error(span, what.to_owned(), format!("write {}", all.join(" or ")));
    None
}

#[cfg(test)]
mod tests {
    use crate::model::{TextTest, TlsFact};
    use crate::{Config, Source, parse};

    fn config(conditions: &str) -> Config {
        let text = format!(
            "[listener.web]\nbind = '[::]:1'\ntls = 't'\n[tls.t]\ncertificates = ['c']\nclient_auth = {{ mode = 'optional', ca = 'a' }}\n\
             [[route]]\nmatch = {{ {conditions} }}\nrespond = {{}}\n"
        );
        let source = Source { name: "p.toml".into(), base: "".into(), text };
        parse(&source).unwrap_or_else(|problems| panic!("{}", source.render(&problems))).0
    }

    #[test]
    fn facts_are_compared_as_connections_have_them_however_they_are_written() {
        for text in ["1.2", "TLSv1.2", "tls 1.2", "TLS1.2"] {
            let config = config(&format!("tls = {{ version = '{text}' }}"));
            let asked = &config.routes[0].conditions.tls[0];
            assert_eq!((asked.fact, &asked.test), (TlsFact::Version, &TextTest::Exact("TLSv1.2".into())), "{text}");
        }
        let of = config(
            "tls = { server_name = 'Shop.Test.' }, client = { sha256 = { prefix = 'AB:cD' }, serial = '0a:fF' }",
        );
        let conditions = &of.routes[0].conditions;
        assert_eq!(conditions.tls[0].test, TextTest::Exact("shop.test".into()));
        let client: Vec<&TextTest> = conditions.client.iter().map(|asked| &asked.test).collect();
        assert_eq!(client, [&TextTest::Exact("0AFF".into()), &TextTest::Prefix("abcd".into())]);
        let printed = "AB:".repeat(31) + "AB";
        let config = config(&format!("client = {{ sha256 = '{printed}' }}"));
        assert_eq!(config.routes[0].conditions.client[0].test, TextTest::Exact("ab".repeat(32)));
    }
}
