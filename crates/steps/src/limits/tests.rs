use std::net::Ipv4Addr;

use propylon_config::{Config, Source};
use propylon_http::h1::{Limits, Parsed, RequestHead, parse_request};

use super::*;

const SECRET: Secret = Secret([7, 11]);

fn configured(limit: &str) -> Config {
    let text =
        format!("[listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\nlimit = {limit}\nrespond = {{ status = 204 }}\n");
    let source = Source { name: "a.toml".into(), base: "".into(), text };
    propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0
}

/// The limits of a route with this text, with a list of those exempt and one of those denied.
fn limiters(limit: &str, (exempt, deny): (&str, &str)) -> Vec<Limiter> {
    let list = |text: &str| {
        let mut list = List::new(SECRET);
        list.add(text.as_bytes(), true).expect("a list");
        list
    };
    let lists = Arc::new(Lists { exempt: list(exempt), deny: list(deny) });
    let config = configured(limit);
    let limits = config.limits().enumerate();
    limits.map(|(at, limit)| Limiter::new(at, at, limit, (&Arc::new(Counter::new(limit, SECRET)), &lists))).collect()
}

/// A client's request: its source, its line, its fields.
type Sent<'a> = (&'a str, &'a str, &'a str);

fn ask(
    limiters: &[Limiter],
    (source, path, fields): Sent<'_>,
    now: u64,
) -> (Result<Held, Refusal>, Vec<(usize, Event)>) {
    let mut text = format!("GET {path} HTTP/1.1\r\nHost: A.example:80\r\n{fields}\r\n").into_bytes();
    let mut head = RequestHead::default();
    let limits = Limits { head_bytes: 64 << 10, headers: 64 };
    assert_eq!(parse_request(&text, &limits, &mut head), Ok(Parsed::Complete), "{fields}");
    // A proof has named a user.
    if let Some(user) = head.fields.value(&text, "proven").map(<[u8]>::to_vec) {
        head.fields.note_user(&mut text, &user);
    }
    let request = Request {
        head: &head,
        text: &text,
        source: source.parse().unwrap(),
        connection: crate::conditions::Connection::default(),
    };
    let mut events = Vec::new();
    let asked = Asked { request, certificate: Some("cafe"), ja4: None };
    (admit(limiters, &asked, now, |limit, event| events.push((limit, event))), events)
}

/// Whether a request is let through, and the requests of its kind so far.
fn passes(limiters: &[Limiter], sent: Sent<'_>) -> bool {
    ask(limiters, sent, SECOND).0.is_ok()
}

#[test]
fn requests_with_the_same_parts_have_one_key_and_others_another() {
    for (key, first, same, other) in [
        ("'source'", ("10.1.2.3", "/", ""), ("::ffff:10.1.2.3", "/x", "X: 1\r\n"), ("10.1.2.4", "/", "")),
        ("'source'", ("2001:db8::1", "/", ""), ("2001:db8::ffff:1", "/", ""), ("2001:db8:0:1::1", "/", "")),
        ("'path'", ("10.1.2.3", "/a?b", ""), ("10.9.9.9", "/a?c", ""), ("10.1.2.3", "/b", "")),
        (
            "{header='X-Key'}",
            ("10.1.2.3", "/", "x-key: 1\r\n"),
            ("10.1.2.4", "/", "X-Key:1\r\n"),
            ("10.1.2.3", "/", "X-Key: 2\r\n"),
        ),
        ("{header='X-Key'}", ("10.1.2.3", "/", ""), ("10.1.2.4", "/", ""), ("10.1.2.3", "/", "X-Key:\r\n")),
        (
            "{cookie='a'}",
            ("10.1.2.3", "/", "Cookie: a=1; b=2\r\n"),
            ("10.1.2.4", "/", "Cookie: a=1\r\n"),
            ("10.1.2.3", "/", "Cookie: a=2\r\n"),
        ),
        ("['source','path']", ("10.1.2.3", "/a", ""), ("10.1.2.3", "/a", ""), ("10.1.2.3", "/b", "")),
        (
            "[{header='a'},{header='b'}]",
            ("10.1.2.3", "/", "a: xy\r\nb: z\r\n"),
            ("10.1.2.4", "/", "b: z\r\na: xy\r\n"),
            ("10.1.2.3", "/", "a: x\r\nb: yz\r\n"),
        ),
    ] {
        let limiters = limiters(&format!("{{rate='1/h',key={key}}}"), ("", ""));
        assert!(passes(&limiters, first), "{key}: {first:?}");
        assert!(!passes(&limiters, same), "{key}: {same:?}");
        assert!(passes(&limiters, other), "{key}: {other:?}");
    }
    let all = limiters("{rate='2/h',key='all'}", ("", ""));
    assert!(passes(&all, ("10.0.0.1", "/", "")) && passes(&all, ("10.0.0.2", "/b", "")));
    assert!(!passes(&all, ("::1", "/c", "")));
    let wide = limiters("{rate='1/h',ipv4_prefix=24,ipv6_prefix=128}", ("", ""));
    assert!(passes(&wide, ("10.0.0.1", "/", "")) && !passes(&wide, ("10.0.0.255", "/", "")));
    assert!(passes(&wide, ("::5", "/", "")) && passes(&wide, ("::6", "/", "")));
}

#[test]
fn a_user_is_one_key_wherever_from_and_who_has_no_name_has_an_address() {
    let config = "[listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\nauth = { api_key = { file = \"k\" } }\n\
                  limit = [{ rate = \"1/h\", key = \"user\" }, { rate = \"9/h\" }]\nrespond = {}\n";
    let source = Source { name: "a.toml".into(), base: "".into(), text: config.into() };
    let (config, _) = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}"));
    let lists = Arc::new(Lists { exempt: List::new(SECRET), deny: List::new(SECRET) });
    let all: Vec<Limiter> = (config.limits().enumerate())
        .map(|(at, limit)| Limiter::new(at, at, limit, (&Arc::new(Counter::new(limit, SECRET)), &lists)))
        .collect();
    assert_eq!(all.iter().map(Limiter::is_of_users).collect::<Vec<_>>(), [true, false]);
    let (ann, bob) = ("Proven: ann\r\n", "Proven: bob\r\n");
    for (source, fields, is_first) in [
        ("10.0.0.1", ann, true),
        ("10.0.0.2", ann, false),
        ("10.0.0.1", bob, true),
        ("10.0.0.1", "", true),
        ("10.0.0.1", "", false),
        ("10.0.0.2", "", true),
    ] {
        assert_eq!(passes(&all[..1], (source, "/", fields)), is_first, "{source} {fields}");
    }
}

fn limited(refusal: Result<Held, Refusal>) -> (u64, String, String) {
    match refusal {
        Err(Refusal::Limited { retry_after, policy, state }) => (retry_after, policy, state),
        other => panic!("{:?}", other.map(|held| held.is_empty())),
    }
}

#[test]
fn a_refusal_says_which_limit_and_when_to_come_back() {
    let sent = ("10.0.0.1", "/", "");
    let rate = limiters("[{requests=9},{rate='100/h',burst=2,name='api'}]", ("", ""));
    for _ in 0..2 {
        assert_eq!(ask(&rate, sent, SECOND).1, [(0, Event::Allowed), (1, Event::Allowed)]);
    }
    let (refused, events) = ask(&rate, sent, SECOND);
    assert_eq!(limited(refused), (36, "\"api\";q=100;w=3600".into(), "\"api\";r=0;t=36".into()));
    assert_eq!(events, [(0, Event::Allowed), (1, Event::Refused)]);
    assert_eq!(limited(ask(&rate, sent, 36 * SECOND + SECOND / 2).0).0, 1);

    let count = limiters("{requests=1,key='all'}", ("", ""));
    let first = ask(&count, sent, SECOND).0.unwrap();
    let wanted = (1, "\"limit-1\";q=1;qu=\"concurrent-requests\"".into(), "\"limit-1\";r=0".into());
    assert_eq!(limited(ask(&count, sent, SECOND).0), wanted);
    drop(first);
    assert!(passes(&count, sent));
}

#[test]
fn bytes_are_counted_when_they_were_sent_and_keep_the_next_request_waiting() {
    let limiters = limiters("{bytes='1000B/s',burst='500B'}", ("", ""));
    let sent = ("10.0.0.1", "/", "");
    let first = ask(&limiters, sent, SECOND).0.unwrap();
    first.settle(10_500, SECOND, |_, _| panic!("there is room"));
    let wanted = (11, "\"limit-1\";q=1000;qu=\"content-bytes\";w=1".into(), "\"limit-1\";r=0;t=11".into());
    assert_eq!(limited(ask(&limiters, sent, SECOND).0), wanted);
    assert!(ask(&limiters, ("10.0.0.2", "/", ""), SECOND).0.is_ok());
    assert!(ask(&limiters, sent, 12 * SECOND).0.is_ok());
}

#[test]
fn a_request_that_one_limit_refuses_takes_nothing_from_the_others() {
    let limiters = limiters("[{rate='2/h',key='all'},{requests=5},{rate='1/h'}]", ("", ""));
    assert!(passes(&limiters, ("10.0.0.1", "/", "")));
    for _ in 0..50 {
        assert!(!passes(&limiters, ("10.0.0.1", "/", "")));
    }
    assert!(passes(&limiters, ("10.0.0.2", "/", "")));
    let (refused, _) = ask(&limiters, ("10.0.0.3", "/", ""), SECOND);
    assert_eq!(limited(refused).1, "\"limit-1\";q=2;w=3600");
    // Nor does one that was exempt there give back what it has not taken.
    let limiters = self::limiters("[{rate='1/h',key='all',exempt='10.0.0.0/8'},{rate='1/h'}]", ("", ""));
    assert!(passes(&limiters, ("10.0.0.1", "/", "")) && passes(&limiters, ("192.0.2.1", "/", "")));
    assert!((0..5).all(|_| !passes(&limiters, ("10.0.0.1", "/", ""))));
    assert!(!passes(&limiters, ("192.0.2.2", "/", "")));
}

#[test]
fn lists_go_by_the_source_and_by_values_of_the_key() {
    let text = "{rate='1/d',key=['source',{header='X-Key'}],exempt='10.0.0.0/8',deny='10.6.6.6'}";
    let limiters = limiters(text, ("192.0.2.0/24\nfriend\n", "198.51.100.7\nfoe\n"));
    for (source, fields, wanted) in [
        ("10.1.1.1", "", Event::Exempt),
        ("192.0.2.9", "", Event::Exempt),
        ("203.0.113.1", "X-Key: friend\r\n", Event::Exempt),
        ("203.0.113.1", "X-Other: friend\r\n", Event::Allowed),
        ("203.0.113.1", "X-Key: foe\r\n", Event::Denied),
        ("10.6.6.6", "", Event::Denied),
        ("198.51.100.7", "X-Key: friend\r\n", Event::Denied),
        ("203.0.113.1", "", Event::Refused),
    ] {
        let (answer, events) = ask(&limiters, (source, "/", fields), SECOND);
        assert_eq!(events, [(0, wanted)], "{source} {fields}");
        assert_eq!(matches!(answer, Err(Refusal::Denied)), wanted == Event::Denied, "{source} {fields}");
    }
}

/// Servers may read any of several lines of a field: a client must not come by a key, or past a list, by writing more.
#[test]
fn several_lines_of_a_key_are_one_key_and_each_may_be_denied() {
    let count = "X-Key: k\r\n";
    let limiters = limiters("{rate='1/d',key={header='X-Key'}}", ("friend\na, b\n", "foe\n"));
    for (fields, wanted) in [
        (count.repeat(2), Event::Allowed),
        (count.repeat(3), Event::Refused),
        ("X-Key: other\r\nX_Key: k\r\n".into(), Event::Refused),
        ("X-Key: friend\r\nX-Key: k\r\n".into(), Event::Refused),
        ("X-Key: a, b\r\n".into(), Event::Exempt),
        ("X-Key: a\r\nX-Key: b\r\n".into(), Event::Refused),
        ("X-Key: foe\r\nX-Key: foe\r\n".into(), Event::Denied),
        ("X-Key: friend\r\nX-Key: foe\r\n".into(), Event::Denied),
        ("X-Key:\r\nX_Key: foe\r\n".into(), Event::Denied),
        (count.into(), Event::Allowed),
        (count.into(), Event::Refused),
    ] {
        let (_, events) = ask(&limiters, ("10.0.0.1", "/", &fields), SECOND);
        assert_eq!(events, [(0, wanted)], "{fields}");
    }
    let cookies = self::limiters("{key={cookie='a'},deny_files='x'}", ("", "foe\n"));
    assert!(!passes(&cookies, ("10.0.0.1", "/", "Cookie: a=1; a=foe\r\n")));
}

#[test]
fn no_value_of_a_list_is_kept() {
    let limiters = limiters("{rate='1/d'}", ("sesame\n", ""));
    assert!(!format!("{:?}", limiters[0].lists).contains("sesame"));
    assert!(limiters[0].lists.exempt.has_value(b"sesame"));
}

#[test]
fn more_keys_than_there_are_places_are_told() {
    let limiters = limiters("{rate='100/h',keys=64}", ("", ""));
    let full = (0..1000_u32).filter(|n| {
        let source = Ipv4Addr::from_bits(0x0A00_0000 | n).to_string();
        let (answer, events) = ask(&limiters, (&source, "/", ""), SECOND);
        assert!(answer.is_ok(), "a source that comes once is never refused");
        events.contains(&(0, Event::Full))
    });
    assert!((900..=936).contains(&full.count()));
}
