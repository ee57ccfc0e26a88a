//! Conditions of haproxy on how many servers are there: routes do not ask that, and backends answer for themselves.

use super::frontend::Frontend;
use super::lines::Line;

const LEFT_OUT: &str = "it goes by how many servers are up, which no route asks: all are taken to be there. Write \
                        `fallback` with a backend into the routes whose servers are meant, for requests that these \
                        have no server for; without it such requests have 503";

impl Frontend<'_> {
    /// A rule without tests of servers, which are all taken to be there; none where nothing is left of it. What goes by
    /// them is told.
    pub(super) fn with_servers(&mut self, line: &Line) -> Option<Line> {
        let place = line.words.iter().position(|word| ["if", "unless"].contains(&word.as_str()));
        let Some((place, condition)) = place.map(|place| (place, &line.words[place + 1..])) else {
            return Some(line.clone());
        };
        let (mut kept, mut is_found): (Vec<Vec<String>>, bool) = (Vec::new(), false);
        for part in condition.split(|word| word == "or" || word == "||") {
            let (mut left, mut holds, mut rest) = (Vec::new(), true, part);
            while let Some(first) = rest.first() {
                let length = match first.ends_with('{') {
                    true => rest.iter().position(|word| word == "}").map_or(rest.len(), |end| end + 1),
                    false => 1,
                };
                let (one, after) = rest.split_at(length);
                rest = after;
                match self.is_there(one) {
                    Some(is_there) => (is_found, holds) = (true, holds && is_there),
                    None => left.extend_from_slice(one),
                }
            }
            if holds {
                kept.push(left);
            }
        }
        if !is_found {
            return Some(line.clone());
        }
        self.plan.note(line.number, line.text(), LEFT_OUT);
        let is_always = kept.iter().any(Vec::is_empty);
        match (line.word(place), is_always) {
            _ if kept.is_empty() => (line.word(place) == "unless").then(|| line.until(place)),
            ("if", true) => Some(line.until(place)),
            ("if", false) => {
                let words = line.words[..=place].iter().cloned().chain(kept.join(&"or".to_owned())).collect();
                Some(Line { number: line.number, words })
            }
            (_, true) => None,
            (_, false) => Some(line.clone()),
        }
    }

    /// Whether a test of servers holds where all are there; none of any other test.
    fn is_there(&self, condition: &[String]) -> Option<bool> {
        let (first, rest) = condition.split_first()?;
        let (is_not, first) = match first.strip_prefix('!') {
            Some(first) => (true, first.to_owned()),
            None => (false, first.clone()),
        };
        let asked: Vec<String> = std::iter::once(first).chain(rest.iter().cloned()).collect();
        let tests = self.tests(&asked)?;
        let [test] = tests.as_slice() else { return None };
        let name = test.first()?.split_once('(')?.0;
        let is_count = ["nbsrv", "be_conn_free", "connslots", "srv_is_up", "srv_conn_free"].contains(&name);
        let is_wait = ["queue", "avg_queue", "srv_queue"].contains(&name);
        let is_more = match test.get(1).map(String::as_str) {
            None => true,
            Some("gt" | "ge") => test.len() == 3,
            Some("lt" | "le" | "eq") => false,
            Some(number) if test.len() == 2 => number.parse::<u32>().is_ok_and(|number| number > 0) && !is_count,
            Some(_) => return None,
        };
        (is_count || is_wait).then_some((is_more == is_count) != is_not)
    }
}
