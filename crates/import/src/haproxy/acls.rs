//! Tests of haproxy's ACLs: what each asks for, as a route has it.
//!
//! A field is a list to haproxy, of whose values each is compared; `req.fhdr` is the whole text.

use std::net::IpAddr;

use propylon_config::pattern::compile;
use regex_syntax::hir::{Hir, HirKind, Look};

use crate::patterns::parse;
use crate::plan::{Path, escaped, one_or_list, quoted};
use crate::terms::{PRESENT, Term, condition, is_field};
use crate::variables::is_in;

/// Text in front of a value in a list, and behind it.
const BEGIN: &str = "(?:^|,)[ \\t]*";
const END: &str = "[ \\t]*(?:,|$)";

/// A test, taken apart: `hdr_beg(x-t),lower -i abc`.
#[derive(Default)]
struct Test<'w> {
    /// Part of the request that is looked at: `path`, `hdr`.
    what: &'w str,
    argument: &'w str,
    /// Comparison: `str` or nothing where it is of the whole text.
    how: &'w str,
    ignores_case: bool,
    texts: Vec<&'w str>,
}

/// Alternatives of one test: `hdr(host) -i a.example b.example`.
pub(super) fn terms(words: &[String], is_http: bool) -> Result<Vec<Term>, String> {
    if words.is_empty() {
        return Err("an empty condition".into());
    }
    // A variable has several values in a list of these, and would be a pattern in a pattern.
    if words.iter().any(|word| is_in(word)) {
        return Err(format!("the variable in \"{}\"", words.join(" ")));
    }
    if words.iter().skip(1).take_while(|word| word.starts_with('-')).any(|word| word == "-f") {
        return Err("a file of values".into());
    }
    Test::of(words).and_then(|test| test.terms(is_http)).ok_or_else(|| format!("\"{}\"", words.join(" ")))
}

impl<'w> Test<'w> {
    fn of(words: &'w [String]) -> Option<Test<'w>> {
        const ENDS: &[&str] = &["beg", "dir", "dom", "end", "reg", "str", "sub"];
        const BASES: &[&str] = &["path", "url", "hdr", "cook", "urlp", "url_param"];
        const OPERATORS: &[&str] = &["eq", "ge", "gt", "le", "lt"];
        let (first, mut rest) = words.split_first()?;
        let end = first.find(['(', ',']).unwrap_or(first.len());
        let (name, behind) = first.split_at(end);
        let (argument, converters) = match behind.strip_prefix('(') {
            Some(inside) => inside.split_once(')')?,
            None => ("", behind),
        };
        let ending = name.rsplit_once('_').filter(|(base, end)| BASES.contains(base) && ENDS.contains(end));
        let (what, how) = ending.unwrap_or((name, ""));
        let mut test = Test { what, argument: argument.trim(), how, ..Test::default() };
        while let Some((flag, after)) = rest.split_first().filter(|(flag, _)| flag.starts_with('-')) {
            rest = after;
            match flag.as_str() {
                "-i" => test.ignores_case = true,
                "-m" => {
                    let (how, after) = rest.split_first()?;
                    (test.how, rest) = (how, after);
                }
                "--" => break,
                _ => return None,
            }
        }
        test.texts = rest.iter().map(String::as_str).collect();
        // Numbers are compared, and no texts.
        if test.texts.first().is_some_and(|first| OPERATORS.contains(first)) {
            return None;
        }
        test.converted(converters).then_some(test)
    }

    /// Takes what is made of the text before it is compared; whether that is known.
    fn converted(&mut self, converters: &str) -> bool {
        let (is_host, is_path) = (self.is_host(), self.what == "path");
        // Commas in brackets are of one converter.
        let plain = converters.replace("field(1,:)", "host_only").replace("word(1,:)", "host_only");
        plain.split(',').skip(1).all(|converter| match converter {
            "lower" => {
                self.ignores_case = true;
                self.texts.iter().all(|text| !text.contains(|c: char| c.is_ascii_uppercase()))
            }
            "host_only" => is_host,
            // Paths are compared in their canonical form anyway.
            "url_dec" => is_path && self.texts.iter().all(|text| text.bytes().all(|byte| byte.is_ascii_graphic())),
            _ => false,
        })
    }

    fn is_host(&self) -> bool {
        let is_field = ["hdr", "req.hdr", "req.fhdr"].contains(&self.what);
        is_field && self.argument.eq_ignore_ascii_case("host")
            || ["req.ssl_sni", "req_ssl_sni", "ssl_fc_sni"].contains(&self.what)
    }

    fn terms(&self, is_http: bool) -> Option<Vec<Term>> {
        if ["", "str"].contains(&self.how) && self.texts.is_empty() && self.what != "ssl_fc" {
            return None;
        }
        let texts: Vec<String> = self.texts.iter().map(|text| (*text).to_owned()).collect();
        match (self.what, self.how) {
            ("ssl_fc", "") if texts.is_empty() => Some(vec![Term { is_tls: Some(true), ..Term::default() }]),
            ("method", "" | "str") => {
                let upper = |text: String| if self.ignores_case { text.to_ascii_uppercase() } else { text };
                let texts: Vec<String> = texts.into_iter().map(upper).collect();
                Some(vec![condition("method", "", one_or_list(&texts))?])
            }
            ("src", "" | "ip") if texts.iter().all(|text| is_network(text)) => {
                Some(vec![condition("source", "", one_or_list(&texts))?])
            }
            _ if self.is_host() => {
                let all: Option<Vec<Term>> = self.texts.iter().map(|text| self.hosts(text, is_http)).collect();
                // A request may name another host than its connection; a relay has that name alone.
                let is_apart = is_http && self.what == "ssl_fc_sni";
                let all: Option<Vec<Term>> =
                    all?.into_iter().map(|term| if is_apart { sni(term) } else { Some(term) }).collect();
                all.filter(|all| !all.is_empty())
            }
            ("path" | "url", _) => self.each(|text| self.path(text)),
            ("hdr" | "req.hdr" | "req.fhdr", how) => {
                let name = self.argument.to_ascii_lowercase();
                if !is_field(&name) {
                    return None;
                }
                match how {
                    "found" => Some(vec![condition("header", &name, PRESENT.into())?]),
                    _ => self.each(|text| condition("header", &name, self.value(text, false)?)),
                }
            }
            ("cook" | "req.cook" | "urlp" | "url_param", how) => {
                let kind = if self.what.ends_with("cook") { "cookie" } else { "query" };
                let name = Some(self.argument).filter(|name| !name.is_empty() && !name.contains(','))?;
                match how {
                    "found" => Some(vec![condition(kind, name, PRESENT.into())?]),
                    "dir" | "dom" => None,
                    _ => self.each(|text| condition(kind, name, self.value(text, true)?)),
                }
            }
            _ => None,
        }
    }

    fn each(&self, make: impl Fn(&str) -> Option<Term>) -> Option<Vec<Term>> {
        self.texts.iter().map(|text| make(text)).collect::<Option<Vec<Term>>>().filter(|all| !all.is_empty())
    }

    fn hosts(&self, text: &str, is_http: bool) -> Option<Term> {
        match (self.how, text.strip_prefix('.')) {
            ("" | "str", _) => host(text),
            ("end", Some(name)) => host(&format!("*.{name}")),
            // Relays choose by names alone.
            _ if is_http => condition("host", "", self.host_pattern(text)?),
            _ => None,
        }
    }

    /// A condition on a host, which routes compare in lower case and without its port.
    fn host_pattern(&self, text: &str) -> Option<String> {
        const PORTS: &[&str] = &["(:[0-9]+)?$", "(:\\d+)?$", "(?::[0-9]+)?$", "(?::\\d+)?$", "(:.*)?$"];
        let is_pattern = self.how == "reg";
        let own = PORTS.iter().find_map(|port| text.strip_suffix(port)).filter(|_| is_pattern);
        let text = own.map_or(text.to_owned(), |own| format!("{own}$"));
        if text.is_empty() || text.replace("(?:", "").contains(':') {
            return None;
        }
        if is_pattern {
            let case = if text.contains(|c: char| c.is_ascii_uppercase()) { "(?i)" } else { "" };
            let pattern = format!("{case}{text}");
            return compile(&pattern).is_ok().then(|| format!("{{ regex = {} }}", quoted(&pattern)));
        }
        Test { how: self.how, ..Test::default() }.value(&text.to_ascii_lowercase(), true)
    }

    /// The path that a text asks for. A URL has the query as well, and may have the host in front.
    fn path(&self, text: &str) -> Option<Term> {
        let is_path = text.starts_with('/') && !text.contains('?');
        let path = match (self.what, self.how) {
            (_, "beg") if is_path => Path::Prefix(text.to_owned()),
            ("path", "" | "str") if is_path => Path::Exact(text.to_owned()),
            ("path", "end") => Path::Regex(format!("{}$", escaped(text))),
            ("path", "sub") => Path::Regex(escaped(text)),
            ("path", "dir") => Path::Regex(format!("/{}(/|$)", escaped(text.trim_matches('/')))),
            ("path", "reg") => Path::Regex(text.to_owned()),
            _ => return None,
        };
        let is_said = !matches!(&path, Path::Regex(pattern) if compile(pattern).is_err());
        is_said.then(|| Term { path: Some(path), ignores_case: self.ignores_case, ..Term::default() })
    }

    /// A condition on a text, or on each value of a list.
    fn value(&self, text: &str, is_whole: bool) -> Option<String> {
        let case = if self.ignores_case { "(?i)" } else { "" };
        let (begin, end) = if is_whole { ("^", "$") } else { (BEGIN, END) };
        let word = |stops: &str| {
            let inside = escaped(text.trim_matches(|c| "/?.:".contains(c) && stops.contains(c)));
            format!("(?:{begin}|[{stops}]){inside}(?:[{stops}]|{end})")
        };
        let pattern = match self.how {
            "" | "str" if is_whole && !self.ignores_case => return Some(quoted(text)),
            "beg" if is_whole && !self.ignores_case => return Some(format!("{{ prefix = {} }}", quoted(text))),
            "" | "str" => format!("{begin}{}{end}", escaped(text)),
            "beg" => format!("{begin}{}", escaped(text)),
            "end" => format!("{}{end}", escaped(text)),
            "sub" => escaped(text),
            "dir" => word("/?"),
            "dom" => word("/?.:"),
            "reg" if is_whole => text.to_owned(),
            "reg" => of_values(text)?,
            _ => return None,
        };
        let pattern = format!("{case}{pattern}");
        compile(&pattern).is_ok().then(|| format!("{{ regex = {} }}", quoted(&pattern)))
    }
}

/// The name that TLS was asked for, in place of a host.
fn sni(term: Term) -> Option<Term> {
    let value = match term.host.as_deref().map(|host| (host, host.strip_prefix('*'))) {
        Some((_, Some(end))) => format!("{{ regex = {} }}", quoted(&format!("{}$", escaped(end)))),
        Some((host, None)) => quoted(host),
        None => term.conditions.into_values().next()?,
    };
    Some(Term { is_tls: Some(true), ..condition("tls", "server_name", value)? })
}

/// A pattern of one value in a list, whose ends are those of the value.
fn of_values(pattern: &str) -> Option<String> {
    let inside = pattern.strip_prefix('^').unwrap_or(pattern);
    let inside = inside.strip_suffix('$').filter(|inside| !inside.ends_with('\\')).unwrap_or(inside);
    if !inside.contains(['^', '$', '|']) {
        let begin = if pattern.starts_with('^') { BEGIN } else { "" };
        let end = if pattern.len() > begin.len().min(1) + inside.len() { END } else { "" };
        return Some(format!("{begin}{inside}{end}"));
    }
    let hir = parse(pattern)?;
    let looks = hir.properties().look_set();
    match looks.is_empty() {
        true => Some(pattern.to_owned()),
        false => Some(ends_of_values(&hir, (&parse(BEGIN)?, &parse(END)?))?.to_string()),
    }
}

/// A pattern with the ends of values in place of those of the text; none with boundaries of words.
fn ends_of_values(hir: &Hir, ends: (&Hir, &Hir)) -> Option<Hir> {
    let all = |parts: &[Hir]| parts.iter().map(|part| ends_of_values(part, ends)).collect::<Option<Vec<Hir>>>();
    Some(match hir.kind() {
        HirKind::Look(Look::Start) => ends.0.clone(),
        HirKind::Look(Look::End) => ends.1.clone(),
        HirKind::Look(_) => return None,
        HirKind::Capture(capture) => ends_of_values(&capture.sub, ends)?,
        HirKind::Repetition(again) => {
            let mut again = again.clone();
            again.sub = Box::new(ends_of_values(&again.sub, ends)?);
            Hir::repetition(again)
        }
        HirKind::Concat(parts) => Hir::concat(all(parts)?),
        HirKind::Alternation(parts) => Hir::alternation(all(parts)?),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => hir.clone(),
    })
}

fn is_network(text: &str) -> bool {
    let (address, length) = text.split_once('/').unwrap_or((text, "0"));
    address.parse::<IpAddr>().is_ok() && length.parse::<u8>().is_ok()
}

fn host(text: &str) -> Option<Term> {
    let text = text.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(text, |(name, _)| name);
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._*".contains(c));
    is_name.then(|| Term { host: Some(text.to_ascii_lowercase()), ..Term::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<Term>, String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        terms(&words, true)
    }

    /// The pattern of a test of a field.
    fn pattern(text: &str) -> regex_syntax::hir::Hir {
        let all = of(text).unwrap();
        let value = all[0].conditions.values().next().unwrap();
        parse(&value["{ regex = \"".len()..value.len() - "\" }".len()].replace("\\\\", "\\")).unwrap()
    }

    #[test]
    fn each_value_of_a_field_is_compared() {
        for (test, found, other) in [
            ("hdr(x-t) abc", &["abc", "x, abc", "abc,x", " abc "][..], &["xabc", "abc x", "ABC"][..]),
            ("hdr(x-t) -i abc", &["ABC", "x,Abc"], &["abcd"]),
            ("hdr(x-t),lower abc", &["ABC"], &["abcd"]),
            ("hdr_beg(x-t) abc", &["abcd", "x, abcd"], &["xabc"]),
            ("hdr(x-t) -m end abc", &["xabc", "xabc, y"], &["abcx"]),
            ("req.hdr(x-t) -m sub abc", &["xabcx"], &["ab"]),
            ("hdr_dom(x-t) abc", &["y.abc.z", "x, abc:80", "abc"], &["y abc z", "xabc"]),
            ("hdr_dir(x-t) /abc/", &["a/abc/b", "abc"], &["a.abc"]),
            ("hdr_reg(x-t) ^abc$", &["x, abc", "abc"], &["x abc"]),
            ("hdr_reg(x-t) ^abc|^def$", &["x, abcd", "def", "x,def"], &["xdef", "defx"]),
            ("req.fhdr(x-t) -i abc", &["ABC", "x, abc"], &["abcd"]),
        ] {
            let pattern = compile(&pattern(test).to_string()).unwrap();
            found.iter().for_each(|text| assert!(pattern.is_match(text.as_bytes()), "{test}: {text}"));
            other.iter().for_each(|text| assert!(!pattern.is_match(text.as_bytes()), "{test}: {text}"));
        }
    }

    #[test]
    fn what_no_route_asks_for_is_no_term() {
        for test in [
            "hdr(content-length) gt 10000",
            "hdr_val(x-t) 5",
            "hdr_cnt(x-t) gt 0",
            "hdr(x-t,1) abc",
            "hdr(x-t),field(2,:) abc",
            "hdr(x-t),lower ABC",
            "hdr(x-real-ip) 10.0.0.1",
            "hdr_end(host) :8080",
            "hdr_reg(host) ^a.test:8080$",
            "hdr_reg(host) ^(?=a)",
            "hdr(host),regsub(a,b) b",
            "path_len gt 100",
            "path_reg (?=x)",
            "url_beg /a?b",
            "url_sub x",
            "ssl_fc 0",
            "ssl_fc,not",
            "src office",
            "urlp(q,;) 1",
            "method -f x",
            "path -i",
        ] {
            assert!(of(test).is_err(), "{test}");
        }
    }

    #[test]
    fn hosts_are_those_of_the_test_and_below_it() {
        let hosts = |text: &str| {
            let all =
                of(text).unwrap().into_iter().filter_map(|term| term.host.or(term.conditions.into_values().next()));
            all.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(hosts("hdr(host) -i A.test b.test:80"), "a.test b.test");
        assert_eq!(hosts("req.hdr(host),field(1,:),lower a.test"), "a.test");
        assert_eq!(hosts("hdr_dom(host) -i A.test"), r#"{ regex = "(?:^|[/?.:])a\\.test(?:[/?.:]|$)" }"#);
        assert_eq!(hosts("hdr_end(host) .a.test"), "*.a.test");
        assert_eq!(hosts("hdr(host) -m end a.test"), r#"{ regex = "a\\.test$" }"#);
        assert_eq!(hosts("hdr_beg(host) Admin."), r#"{ prefix = "admin." }"#);
        assert_eq!(hosts(r"hdr_reg(host) ^A[0-9]+\.test(:[0-9]+)?$"), r#"{ regex = "(?i)^A[0-9]+\\.test$" }"#);
        let relayed: Vec<String> = ["req.ssl_sni", "-m", "end", "a.test"].map(str::to_owned).to_vec();
        assert!(terms(&relayed, false).is_err());
        let name = &of("ssl_fc_sni_end .a.test").or(of("ssl_fc_sni -m end .a.test")).unwrap()[0];
        assert_eq!(name.conditions.values().next().unwrap(), r#"{ regex = "\\.a\\.test$" }"#);
        assert!(name.host.is_none() && name.is_tls == Some(true));
    }
}
