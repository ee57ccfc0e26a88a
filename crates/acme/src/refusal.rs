//! The reason why an order came to nothing, in words that may be shown: what an authority says is text from outside.

use instant_acme::{Error, Problem};

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub why: String,
    /// The authority does not know the account any more.
    pub account_is_gone: bool,
    /// Whether the authority's rate limit was reached.
    pub rate_limited: bool,
}

const DETAIL_CHARS_MAX: usize = 300;
const WHY_CHARS_MAX: usize = 1000;
const SUBPROBLEMS_MAX: usize = 5;

impl Refusal {
    /// A refusal in our own words.
    pub fn new(why: impl Into<String>) -> Refusal {
        Refusal { why: why.into(), account_is_gone: false, rate_limited: false }
    }

    /// A refusal from a library's error: what was being done, and what came of it.
    pub fn of(doing: &str, error: &Error) -> Refusal {
        match error {
            Error::Api(problem) => Refusal::of_problem(doing, problem),
            Error::Timeout(_) => Refusal::new(format!("{doing}: the authority took too long")),
            other => Refusal::new(format!("{doing}: {}", clean(&other.to_string(), DETAIL_CHARS_MAX))),
        }
    }

    pub fn of_problem(doing: &str, problem: &Problem) -> Refusal {
        let kind = kind(problem.r#type.as_deref());
        let mut why = format!("{doing}: the authority says {kind}");
        let detail =
            |text: Option<&String>| text.map(|text| format!(": {}", clean(text, DETAIL_CHARS_MAX))).unwrap_or_default();
        why += &detail(problem.detail.as_ref());
        for part in problem.subproblems.iter().take(SUBPROBLEMS_MAX) {
            let of = part.identifier.as_ref().map(|of| clean(&of.clone().authorized(false).to_string(), 253));
            why += &format!("; {} {}", of.unwrap_or_default(), self::kind(part.r#type.as_deref()));
            why += &detail(part.detail.as_ref());
        }
        Refusal {
            why: clean(&why, WHY_CHARS_MAX),
            account_is_gone: kind == "accountDoesNotExist",
            rate_limited: kind == "rateLimited" || problem.status == Some(429),
        }
    }
}

/// The error type after `urn:ietf:params:acme:error:` (RFC 8555 §6.7).
fn kind(urn: Option<&str>) -> String {
    let Some(urn) = urn else { return "no".into() };
    clean(urn.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(urn), 64)
}

/// The text as one line of so many characters at most, none of which does anything to a terminal.
fn clean(text: &str, chars_max: usize) -> String {
    let harmless = |c: char| if c.is_control() || is_format(c) { ' ' } else { c };
    let mut clean: String = text.chars().take(chars_max).map(harmless).collect();
    if text.chars().nth(chars_max).is_some() {
        clean.push('…');
    }
    clean
}

/// Characters that reorder or hide others.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str) -> Refusal {
        Refusal::of_problem("validation", &serde_json::from_str(json).unwrap())
    }

    #[test]
    fn an_authority_s_problem_is_told_on_one_harmless_line() {
        let refusal = problem(
            r#"{"type":"urn:ietf:params:acme:error:compound","detail":"no\u001b[31m\nway","subproblems":[
                {"type":"urn:ietf:params:acme:error:dns","detail":"gone","identifier":{"type":"dns","value":"a.test"}}]}"#,
        );
        assert_eq!(refusal.why, "validation: the authority says compound: no [31m way; a.test dns: gone");
        let long = problem(&format!(r#"{{"detail":"{}"}}"#, "x".repeat(5000)));
        assert!(long.why.chars().count() < 400 && long.why.ends_with('…'));
    }

    #[test]
    fn limits_and_lost_accounts_are_told_apart_from_the_rest() {
        let limited = problem(r#"{"type":"urn:ietf:params:acme:error:rateLimited","status":429}"#);
        assert!(limited.rate_limited && !limited.account_is_gone);
        assert!(problem(r#"{"type":"urn:ietf:params:acme:error:accountDoesNotExist"}"#).account_is_gone);
        assert!(!problem(r#"{"type":"urn:ietf:params:acme:error:unauthorized"}"#).rate_limited);
    }
}
