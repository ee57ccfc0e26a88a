//! Changes of fields by the backend of a list that a request goes to: made after those of its route.

use std::rc::Rc;

use propylon_config::{self as config, Forwarded, RequestHeader, ResponseChanges, Route};
use propylon_http::h1::{Fields, Name, write_line};

use crate::change::{FieldSteps, ResponseChange, Tell, goes_on, tells_server, write_value};

/// Changes of one side of a split.
pub struct SideChange {
    request: FieldSteps,
    /// Lists whose route tells of the server in them.
    joined: Vec<Joined>,
    /// Changes of responses, the route's among them.
    pub response: Option<Rc<ResponseChange>>,
}

/// End of a list that is known with the server alone.
struct Joined {
    /// Lines of the route's, each of which says something of the server.
    of_route: Vec<RequestHeader>,
    /// Line of the side's, which comes behind them.
    added: RequestHeader,
}

/// A request before the changes of its side, which another backend does not get.
pub struct Before {
    pub fields: Fields,
    pub lines: Vec<u8>,
}

impl SideChange {
    /// The changes of a side of a route; `None` where it has none.
    pub fn of(route: &Route, side: &config::Side) -> Option<Rc<SideChange>> {
        if side.request.is_empty() && side.response.is_empty() {
            return None;
        }
        let changes = &route.steps.response;
        let fields = changes.fields.then(&side.response);
        let changes = ResponseChanges { fields, ..changes.clone() };
        let response = ResponseChange::new(&changes, route.steps.security_headers).map(Rc::new);
        let mut request = FieldSteps::of(&side.request);
        let of_route = &route.steps.request.fields;
        let of_server: Vec<&RequestHeader> =
            of_route.set.iter().chain(&of_route.add).filter(|line| tells_server(line)).collect();
        let is_named = |line: &RequestHeader, name: &str| line.name.eq_ignore_ascii_case(name);
        let lists = request.take_lists(|name| of_server.iter().any(|line| is_named(line, name)));
        let join = |added: RequestHeader| {
            let of_route = of_server.iter().filter(|line| is_named(line, &added.name)).map(|line| (*line).clone());
            Joined { of_route: of_route.collect(), added }
        };
        let joined = lists.into_iter().map(join).collect();
        Some(Rc::new(SideChange { request, joined, response }))
    }

    /// Whether fields of requests are changed: then trailers do not go on.
    pub fn changes_fields(&self) -> bool {
        !self.request.is_empty()
    }

    /// Whether a line of the route's for servers does not go on.
    pub fn withholds(&self, name: &str) -> bool {
        self.request.withholds(name.as_bytes())
    }

    /// Lines for servers, those of the route's changes among them, of a request with these fields. `lines` are the
    /// route's; `forwarded`: how this client's word is taken.
    pub fn lines(
        &self,
        (fields, text): (&Fields, &[u8]),
        lines: &[u8],
        forwarded: Forwarded,
        tell: &Tell<'_>,
    ) -> Vec<u8> {
        let mut made = self.request.without(lines);
        let list = |name: &str| {
            let mut list = fields.list(text, name, goes_on(forwarded));
            for value in values(lines, name) {
                list.extend_from_slice(if list.is_empty() { b"" } else { b", " });
                list.extend_from_slice(value);
            }
            list
        };
        self.request.write_lists(list, tell, &mut made);
        for Joined { added, .. } in &self.joined {
            // The beginning of the list, which goes on with a line of its own (RFC 9110 §5.3).
            let begun = list(&added.name);
            if !begun.is_empty() {
                write_line(added.name.as_bytes(), &begun, &mut made);
            }
        }
        self.request.write_lines(tell, &mut made);
        made
    }

    /// Withholds the fields that are replaced or removed.
    pub fn withhold(&self, fields: &mut Fields, text: &[u8]) {
        fields.withhold_set(text, &self.request.withheld);
        if self.changes_fields() {
            fields.withhold_kinds(|kind| kind == Name::Trailer);
        }
    }

    /// Writes the lines with facts about the server that the request goes to.
    pub fn write_lines_of_server(&self, tell: &Tell<'_>, out: &mut Vec<u8>) {
        self.request.write_lines_of_server(|_| true, tell, out);
        for Joined { of_route, added } in &self.joined {
            let mut list = Vec::new();
            for line in of_route.iter().chain([added]) {
                let mut value = Vec::new();
                if write_value(&line.value, tell, &mut value) && !value.is_empty() {
                    list.extend_from_slice(if list.is_empty() { b"" } else { b", " });
                    list.extend_from_slice(&value);
                }
            }
            if !list.is_empty() {
                write_line(added.name.as_bytes(), &list, out);
            }
        }
    }
}

/// Values of the lines with a name.
fn values<'l>(lines: &'l [u8], name: &str) -> impl Iterator<Item = &'l [u8]> {
    lines.split(|byte| *byte == b'\n').filter_map(move |line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        line[..at].eq_ignore_ascii_case(name.as_bytes()).then(|| line[at + 1..].trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use propylon_config::{RequestHeader, Source};
    use propylon_http::h1::{Limits, RequestHead, parse_request};

    use super::*;

    fn route(side: &str, more: &str) -> Route {
        let text = format!(
            "[listener.web]\nbind = '[::]:1'\n[backend.app]\nservers = ['a:1']\n[[route]]\n\
             backend = [{{ name = 'app', {side} }}]\n{more}\n"
        );
        let source = Source { name: "a.toml".into(), base: "".into(), text };
        propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0.routes[0].clone()
    }

    fn change(route: &Route) -> Rc<SideChange> {
        SideChange::of(route, &route.steps.split.as_ref().unwrap().sides[0]).expect("changes")
    }

    #[test]
    fn a_side_has_the_last_word_on_a_field_of_its_requests() {
        let side = change(&route(
            "request = { set = { X-Set = '2' }, add = { X-Add = '2' }, append = { X-List = 'c' }, remove = ['X-Gone'] }",
            "",
        ));
        let text = b"GET / HTTP/1.1\r\nHost: a\r\nX-Set: 0\r\nX_Gone: 0\r\nX-List: a\r\nX-Stays: 0\r\n\r\n";
        let mut head = RequestHead::default();
        parse_request(text, &Limits { head_bytes: 16_384, headers: 100 }, &mut head).unwrap();
        let of_route = b"X-Set: 1\r\nx-gone: 1\r\nX-List: b\r\nX-Add: 1\r\n";
        let lines = side.lines((&head.fields, text), of_route, Forwarded::Replace, &|_, _| false);
        assert_eq!(String::from_utf8(lines).unwrap(), "X-Add: 1\r\nX-List: a, b, c\r\nX-Set: 2\r\nX-Add: 2\r\n");
        side.withhold(&mut head.fields, text);
        let kept = head.fields.iter().filter(|field| field.forward && field.name.bytes(text).starts_with(b"X"));
        assert_eq!(kept.map(|field| field.name.bytes(text)).collect::<Vec<_>>(), [b"X-Stays"]);
        assert!(side.withholds("X-SET") && !side.withholds("X-Add") && side.changes_fields());
    }

    #[test]
    fn a_list_has_what_its_route_says_of_the_server_and_what_its_side_adds() {
        let side = "request = { append = { X-Way = 'side', X-Other = 'side' } }";
        for (of_route, client, wanted) in [
            ("set = { X-Way = 'at {upstream.server}' }", "", "X-Other: side\r\n|X-Way: at 10.0.0.1:80, side\r\n"),
            (
                "add = { x-way = '{upstream.server}' }",
                "X-Way: client\r\nX-Way: again\r\n",
                "X-Other: side\r\nX-Way: client, again\r\n|X-Way: 10.0.0.1:80, side\r\n",
            ),
            ("set = { X-Way = 'route' }", "X-Way: client\r\n", "X-Way: route, side\r\nX-Other: side\r\n|"),
        ] {
            let side = change(&route(side, &format!("request = {{ {of_route} }}")));
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{client}\r\n").into_bytes();
            let mut head = RequestHead::default();
            parse_request(&text, &Limits { head_bytes: 16_384, headers: 100 }, &mut head).unwrap();
            // As the route has done with its own.
            if of_route.starts_with("set") {
                head.fields.withhold(&text, ["X-Way"].into_iter());
            }
            let lines = if of_route.contains("'route'") { &b"X-Way: route\r\n"[..] } else { b"" };
            let mut made = side.lines((&head.fields, &text), lines, Forwarded::Replace, &|_, _| false);
            made.push(b'|');
            let tell = |_, out: &mut Vec<u8>| {
                out.extend_from_slice(b"10.0.0.1:80");
                true
            };
            side.write_lines_of_server(&tell, &mut made);
            assert_eq!(String::from_utf8(made).unwrap(), wanted, "{of_route}");
            assert!(side.withholds("x-way"), "the route's own line does not go on beside it");
        }
    }

    #[test]
    fn changes_of_a_side_come_after_those_of_its_route() {
        let route = route(
            "response = { set = { A = '2' }, add = { B = '2', C = '2', D = '2' }, append = { E = '2', F = '2', G = '2' }, remove = ['H'] }",
            "response = { set = { A = '1', B = '1', F = '1', H = '1' }, add = { C = '1' }, append = { E = '1' }, remove = ['D', 'G'] }",
        );
        let both = route.steps.response.fields.then(&route.steps.split.as_ref().unwrap().sides[0].response);
        let named = |lines: &[RequestHeader]| {
            let text = |line: &RequestHeader| format!("{}={}", line.name, config::template(&line.value));
            lines.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(named(&both.set), "B=1 F=1 A=2 D=2 G=2");
        assert_eq!(named(&both.add), "C=1 B=2 C=2 E=2 F=2");
        assert_eq!((named(&both.append), both.remove), ("E=1".to_owned(), vec!["H".to_owned()]));
    }
}
