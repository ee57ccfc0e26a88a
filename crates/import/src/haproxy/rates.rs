//! Rates and lists of haproxy, as limits of routes: tables of clients, and rules that keep out who is in them.

use super::frontend::Frontend;
use super::lines::Line;
use crate::changes::Changes;
use crate::plan::{Action, Route, name_of, quoted};
use crate::terms::argument;

/// Comparison of a rule: `sc_http_req_rate(0) gt 20`.
struct Test {
    counter: String,
    /// Number of the counter that is tracked; none of what is looked up by the client's address.
    place: Option<String>,
    table: Option<String>,
    most: u32,
}

impl Test {
    fn of(words: &[String]) -> Option<Test> {
        let [test, rest @ ..] = words else { return None };
        let (most, operator) = match rest {
            [operator, number] => (number.parse::<u32>().ok()?, operator.as_str()),
            _ => return None,
        };
        let most = match operator {
            "gt" => most,
            "ge" => most.checked_sub(1)?,
            _ => return None,
        };
        let name = test.split('(').next().unwrap_or_default();
        let mut arguments = argument(test).split(',').map(str::trim).filter(|word| !word.is_empty());
        let (place, counter) = if let Some(counter) = name.strip_prefix("src_") {
            (None, counter)
        } else if let Some(counter) = name.strip_prefix("sc_") {
            (Some(arguments.next()?.to_owned()), counter)
        } else {
            let (place, counter) = name.strip_prefix("sc")?.split_once('_')?;
            (Some(place.to_owned()), counter)
        };
        let table = arguments.next().map(str::to_owned);
        Some(Test { counter: counter.to_owned(), place, table, most })
    }
}

impl Frontend<'_> {
    /// Takes a rule that keeps out who asks for too much, or who is in a list, as a limit of the section's routes.
    pub(super) fn limited(&mut self, line: &Line) -> bool {
        let Some(index) = line.words.iter().position(|word| word == "if") else { return false };
        let condition = &line.words[index + 1..];
        if self.changed.has_source {
            return false;
        }
        if let Some(bytes) = self.longest(condition) {
            const BODY: &str = "it is `body_limit` of its routes now: who sends more gets 413, also without a length";
            self.body_limit = Some(self.body_limit.map_or(bytes, |known| known.min(bytes)));
            self.plan.note(line.number, line.text(), BODY);
            return true;
        }
        let table = self.listed(condition).or_else(|| self.rated(condition));
        let Some((table, differs)) = table else { return false };
        if Changes::default().limit(&table).is_err() {
            return false;
        }
        self.limits.push(table);
        // Clients that an `allow` has let past the rule are asked as well.
        const ALL: &str = "it is a `limit` of its routes now, for those as well that an `allow` before it lets in";
        if let Some(differs) = differs.or_else(|| (!self.allowed.is_empty()).then(|| ALL.to_owned())) {
            self.plan.note(line.number, line.text(), differs);
        }
        true
    }

    /// Bytes of the longest body that a rule lets in: `hdr_val(content-length) gt 10000`.
    fn longest(&self, condition: &[String]) -> Option<u64> {
        const LENGTHS: &[&str] = &["hdr_val(content-length)", "body_size", "body_len"];
        let [test] = self.tests(condition)?.try_into().ok()?;
        let (first, rest) = test.split_first()?;
        let name = first.to_ascii_lowercase();
        let name = name.strip_prefix("req.").unwrap_or(&name);
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        let bytes = match rest.as_slice() {
            ["gt", bytes] | ["-m", "int", "gt", bytes] => bytes.parse::<u64>().ok()?,
            ["ge", bytes] | ["-m", "int", "ge", bytes] => bytes.parse::<u64>().ok()?.checked_sub(1)?,
            _ => return None,
        };
        let is_said = Changes::default().body_limit(bytes).is_ok() && !self.changed.has_field("content-length");
        (LENGTHS.contains(&name) && is_said).then_some(bytes)
    }

    /// The tests that an ACL is made of, or the one in braces; none of several conditions.
    pub(super) fn tests(&self, condition: &[String]) -> Option<Vec<Vec<String>>> {
        match condition {
            [name] => {
                let lines = self.defaults.iter().chain(&self.section.lines);
                let own = lines.filter(|line| line.word(0) == "acl" && line.word(1) == name);
                let all: Vec<Vec<String>> = own.map(|line| line.words[2.min(line.words.len())..].to_vec()).collect();
                (!all.is_empty()).then_some(all)
            }
            [open, test @ .., close] if open == "{" && close == "}" && !test.iter().any(|word| word == "}") => {
                Some(vec![test.to_vec()])
            }
            _ => None,
        }
    }

    /// A list of addresses in files, and beside them.
    fn listed(&self, condition: &[String]) -> Option<(String, Option<String>)> {
        let (mut files, mut networks) = (Vec::new(), Vec::new());
        for test in self.tests(condition)? {
            let (first, rest) = test.split_first()?;
            let mut words = rest.iter().filter(|word| *word != "--");
            if first != "src" || rest.iter().any(|word| crate::variables::is_in(word)) {
                return None;
            }
            while let Some(word) = words.next() {
                match word.as_str() {
                    "-f" => files.push(quoted(words.next()?)),
                    word if word.starts_with('-') => return None,
                    word => networks.push(quoted(word)),
                }
            }
        }
        let mut keys = vec![format!("deny_files = [{}]", files.join(", "))];
        if !networks.is_empty() {
            keys.push(format!("deny = [{}]", networks.join(", ")));
        }
        (!files.is_empty()).then(|| (format!("{{ {} }}", keys.join(", ")), None))
    }

    /// A rate, or requests at once, of those who are tracked.
    fn rated(&self, condition: &[String]) -> Option<(String, Option<String>)> {
        const RATE: &str = "it is a `limit` of its routes now: who asks for more gets 429, and has as many as the rate \
                            says however long that goes on";
        const CONNECTIONS: &str = "it is a `limit` of its routes now, of requests in progress, not of connections";
        let [test] = self.tests(condition)?.try_into().ok()?;
        let test = Test::of(&test)?;
        let (key, tracked) = match &test.place {
            None => (quoted("source"), None),
            Some(place) => self.tracked(place)?,
        };
        let name = test.table.or(tracked).unwrap_or_else(|| self.section.name.clone());
        let table = self.shared.tables.get(&name)?;
        let stored = table.after("store")?;
        let stored = stored.split(',').find(|word| word.split('(').next() == Some(test.counter.as_str()))?;
        let (what, differs) = match test.counter.as_str() {
            "http_req_rate" => {
                let milliseconds = period(argument(stored))?;
                let (count, unit) = rate(test.most, milliseconds)?;
                (format!("rate = \"{count}/{unit}\", burst = {}", test.most), RATE)
            }
            "conn_cur" if test.most > 0 => (format!("requests = {}", test.most), CONNECTIONS),
            _ => return None,
        };
        let number = self.limits.len() + 1;
        let rest = if key.starts_with('{') { "; requests without that field are counted together" } else { "" };
        let name = quoted(&format!("{}-{number}", name_of(&self.section.name)));
        Some((format!("{{ {what}, key = {key}, name = {name} }}"), Some(format!("{differs}{rest}"))))
    }

    /// Key that a counter is of, and the table that it is in if another section has that; none where only some are
    /// tracked, or by what is no key.
    fn tracked(&self, place: &str) -> Option<(String, Option<String>)> {
        let word = format!("track-sc{place}");
        let lines: Vec<&Line> =
            self.defaults.iter().chain(&self.section.lines).filter(|line| line.has(&word)).collect();
        let [line] = lines.as_slice() else { return None };
        if line.has("if") || line.has("unless") {
            return None;
        }
        let key = match line.after(&word)? {
            "src" => quoted("source"),
            field if ["hdr", "req.hdr"].contains(&field.split('(').next().unwrap_or_default()) => {
                let name = argument(field);
                (!name.contains(',') && !self.changed.has_field(name))
                    .then(|| format!("{{ header = {} }}", quoted(name)))?
            }
            _ => return None,
        };
        Some((key, line.after("table").map(str::to_owned)))
    }

    /// Gives routes the limits of this section; redirects ask nobody.
    pub(super) fn limit(&mut self, routes: &mut [&mut Route]) {
        for route in routes.iter_mut().filter(|route| !matches!(route.action, Action::Redirect(_))) {
            if let Some(bytes) = self.body_limit {
                // Routes that answer by themselves read no body.
                let _ = route.changes.body_limit(bytes);
            }
            for table in &self.limits {
                if route.changes.limit(table).is_err() {
                    self.plan.note(self.section.number, table.clone(), "write it as `limit` of its routes");
                }
            }
        }
    }
}

fn period(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let factor = match &text[digits..] {
        "" | "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor).filter(|milliseconds| *milliseconds > 0)
}

/// A count in a time as a rate of a unit that says it exactly.
fn rate(count: u32, milliseconds: u64) -> Option<(u64, &'static str)> {
    const UNITS: &[(u64, &str)] = &[(1000, "s"), (60_000, "m"), (3_600_000, "h"), (86_400_000, "d")];
    let exact = |(unit, name): &(u64, &'static str)| {
        let all = u64::from(count) * unit;
        (count > 0 && all.is_multiple_of(milliseconds)).then(|| (all / milliseconds, *name))
    };
    UNITS.iter().find_map(exact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_in_a_time_is_a_rate_of_the_shortest_unit_that_says_it() {
        assert_eq!(rate(20, 10_000), Some((2, "s")));
        assert_eq!(rate(25, 10_000), Some((150, "m")));
        assert_eq!((rate(7, 86_400_000), rate(0, 1000)), (Some((7, "d")), None));
        assert_eq!(
            (period("10s"), period("1m"), period("500"), period("x")),
            (Some(10_000), Some(60_000), Some(500), None)
        );
    }

    #[test]
    fn a_test_says_what_is_compared_and_where() {
        let test = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            Test::of(&words).map(|test| (test.counter, test.place, test.table, test.most))
        };
        let of = |counter: &str, place: Option<&str>, table: Option<&str>, most| {
            Some((counter.to_owned(), place.map(str::to_owned), table.map(str::to_owned), most))
        };
        assert_eq!(test("sc_http_req_rate(0) gt 20"), of("http_req_rate", Some("0"), None, 20));
        assert_eq!(test("sc1_conn_cur ge 5"), of("conn_cur", Some("1"), None, 4));
        assert_eq!(test("src_http_req_rate(clients) gt 9"), of("http_req_rate", None, Some("clients"), 9));
        assert_eq!((test("sc_http_req_rate(0) lt 20"), test("path_beg /x")), (None, None));
    }
}
