use propylon_http::h1::{Limits, Parsed, parse_request};

use super::*;
use crate::tokens::tests::{HEADER, Issuer, NOW, claims, tokens};

fn head(text: &str) -> RequestHead {
    let mut head = RequestHead::default();
    let limits = Limits { head_bytes: 64 << 10, headers: 64 };
    assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete), "{text}");
    head
}

fn gate(asked: Asked) -> Gate {
    Gate {
        proofs: vec![Demand { asked, challenge: "Key realm=\"restricted\"".into() }],
        needed: Needed::Any,
        user_to: Some("X-User".into()),
        hidden: vec!["authorization".into()],
        withheld: vec!["X-User".into()],
    }
}

/// The hash of `abc`.
fn keys() -> Arc<ApiKeys> {
    let line = b"ci:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    Arc::new(ApiKeys::parse(line).unwrap())
}

fn look(gate: &Gate, target: &str, fields: &str) -> Result<Vec<(String, String)>, Fault> {
    let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    look_on(gate, &text, &mut Looked::default()).map_err(|refusal| refusal.fault)
}

/// Looks for all proofs, with whoever was found.
fn look_on(gate: &Gate, text: &str, looked: &mut Looked) -> Result<Vec<(String, String)>, Refusal> {
    let identity = loop {
        match gate.look((&head(text), text.as_bytes()), 0, looked) {
            Look::In(identity) => break identity,
            Look::Refused(refusal) => return Err(refusal),
            Look::Password(check, identity, _) if check.run() => looked.accept(identity),
            Look::Password(..) => looked.refuse_password(),
            Look::Ask(_) => panic!("nobody is to be asked"),
        }
    };
    let text = |value: Vec<u8>| String::from_utf8(value).unwrap();
    Ok(identity.fields.into_iter().map(|(name, value)| (name, text(value))).collect())
}

#[test]
fn a_password_is_what_follows_the_first_colon_in_the_one_field() {
    let line = format!("ann:{}", bcrypt::hash("a:b", 4).unwrap());
    let users = Arc::new(Users::parse(line.as_bytes()).unwrap());
    let gate = gate(Asked::Basic { users, remember: Duration::ZERO });
    let of = |pair: &str| format!("Basic {}", Base64::encode_string(pair.as_bytes()));
    let ann = vec![("X-User".to_string(), "ann".to_string())];
    let field = |value: &str| look(&gate, "/", &format!("Authorization: {value}\r\n"));
    assert_eq!(field(&of("ann:a:b")), Ok(ann.clone()));
    assert_eq!(field(&of("ann:a:b").replace("Basic ", "BASIC   ")), Ok(ann));
    for (value, fault) in [
        (of("ann:a"), Fault::CredentialsRefused),
        (of("ann:a:b\n"), Fault::CredentialsRefused),
        (of("ann\0:a:b"), Fault::CredentialsRefused),
        (of("ann"), Fault::CredentialsRefused),
        (of("ann:a:b") + "=", Fault::CredentialsRefused),
        (of("ann:a:b").replace("Basic ", "Basic"), Fault::CredentialsMissing),
        ("Basic".into(), Fault::CredentialsRefused),
        ("Digest x".into(), Fault::CredentialsMissing),
        (of(&format!("ann:{}", "x".repeat(4000))), Fault::CredentialsRefused),
    ] {
        assert_eq!(field(&value), Err(fault), "{value}");
    }
    let twice = format!("Authorization: {0}\r\nauthorization: {0}\r\n", of("ann:a:b"));
    assert_eq!(look(&gate, "/", &twice), Err(Fault::CredentialsRefused));
}

#[test]
fn a_key_is_found_in_the_query_and_covered_there_afterwards_however_it_is_spelled() {
    let gate = gate(Asked::KeyInQuery { parameter: Parameter::new("key"), keys: keys() });
    for target in ["/?key=abc", "/x?a=1&key=%61b%63&b", "/?keys=x&key=abc", "/?%6bey=abc", "/?ke%7A=1&k%65y=abc"] {
        assert!(look(&gate, target, "").is_ok(), "{target}");
    }
    for (target, fault) in [
        ("/", Fault::CredentialsMissing),
        ("/?keys=abc", Fault::CredentialsMissing),
        ("/?%6beys=abc", Fault::CredentialsMissing),
        ("/?key", Fault::CredentialsRefused),
        ("/?key=", Fault::CredentialsRefused),
        ("/?key=ab", Fault::CredentialsRefused),
        ("/?key=%6", Fault::CredentialsRefused),
        ("/?key=abc&key=abc", Fault::CredentialsRefused),
        ("/?key=abc&%6bey=x", Fault::CredentialsRefused),
        ("/?k%65y&key=abc", Fault::CredentialsRefused),
        // Names that PHP takes for the same, alone and beside it.
        ("/?key[]=abc", Fault::CredentialsMissing),
        ("/?key=abc&key[]=x", Fault::CredentialsRefused),
        ("/?key=abc&key%5B=x", Fault::CredentialsRefused),
        ("/?key%00=x&key=abc", Fault::CredentialsRefused),
        ("/?key=abc&+%20key%00y=x", Fault::CredentialsRefused),
    ] {
        assert_eq!(look(&gate, target, ""), Err(fault), "{target}");
    }
    assert!(look(&gate, "/?key=abc&key.=x&ke=y&+=z", "").is_ok(), "names of other variables");
    let gate = self::gate(Asked::KeyInQuery { parameter: Parameter::new("api_key"), keys: keys() });
    assert!(look(&gate, "/?api_key=abc", "").is_ok());
    for alike in ["api.key", "api+key", "api%20key", "api[key", "api%5Bkey", "+api[key%00]", "api.key[x]"] {
        assert_eq!(look(&gate, &format!("/?api_key=abc&{alike}=x"), ""), Err(Fault::CredentialsRefused), "{alike}");
    }
    assert!(look(&gate, "/?api_key=abc&api[key]=z&[api_key=z", "").is_ok(), "names of other variables");
    let text = "GET /a?key=abc&b=<key=1&%6Be%79=%61bc&k%65ys=x&%6=y&key HTTP/1.1\r\nHost: a\r\n\r\n";
    let (mut head, mut bytes) = (head(text), text.as_bytes().to_vec());
    let rules = propylon_config::PathRules::default();
    head.canonicalize_target(&bytes, rules).unwrap();
    head.cover_parameter(&mut bytes, b"key");
    assert_eq!(head.received_target(&bytes).concat(), b"/a?key=***&b=<key=1&%6Be%79=*****&k%65ys=x&%6=y&key");
    assert_eq!(head.target(&bytes).concat(), b"/a?key=***&b=%3Ckey=1&%6Be%79=*****&k%65ys=x&%6=y&key");
}

#[test]
fn a_key_beside_a_field_that_servers_may_read_as_its_own_is_refused() {
    let gate = gate(Asked::KeyIn { field: "X-API-Key".into(), keys: keys() });
    assert!(look(&gate, "/", "x-api-key: abc\r\n").is_ok());
    assert_eq!(look(&gate, "/", "X_API_Key: abc\r\n"), Err(Fault::CredentialsMissing), "a field of another name");
    for alike in ["X_API_Key", "x-api_key", "X-API-Key"] {
        for fields in [format!("X-API-Key: abc\r\n{alike}: x\r\n"), format!("{alike}: x\r\nX-API-Key: abc\r\n")] {
            assert_eq!(look(&gate, "/", &fields), Err(Fault::CredentialsRefused), "{fields}");
        }
    }
    let gate = self::gate(Asked::KeyIn { field: "api_key".into(), keys: keys() });
    assert!(look(&gate, "/", "API_Key: abc\r\n").is_ok());
    assert_eq!(look(&gate, "/", "api_key: abc\r\nApi-Key: x\r\n"), Err(Fault::CredentialsRefused));
}

#[test]
fn servers_are_told_what_clients_cannot_say() {
    let gate = gate(Asked::KeyIn { field: "X-Key".into(), keys: keys() });
    let text =
        "GET / HTTP/1.1\r\nHost: a\r\nX-User: root\r\nx_user: root\r\nX-Key: abc\r\nAuthorization: x\r\nA: b\r\n\r\n";
    let (mut head, mut bytes) = (head(text), text.as_bytes().to_vec());
    let mut looked = Looked::default();
    let Look::In(identity) = gate.look((&head, &bytes), 0, &mut looked) else { panic!("a key") };
    gate.admit(&identity, &mut head, &mut bytes);
    assert_eq!(head.fields.user(&bytes), Some(&b"ci"[..]));
    let mut out = Vec::new();
    head.fields.write_forwarded(&bytes, &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "X-Key: abc\r\nA: b\r\nX-User: ci\r\n");
}

#[test]
fn one_of_several_proofs_will_do_and_a_refusal_names_them_all() {
    let line = format!("ann:{}", bcrypt::hash("pw", 4).unwrap());
    let users = Arc::new(Users::parse(line.as_bytes()).unwrap());
    let mut gate = gate(Asked::KeyIn { field: "X-Key".into(), keys: keys() });
    let basic = |realm: &str| Demand {
        asked: Asked::Basic { users: Arc::clone(&users), remember: Duration::ZERO },
        challenge: format!("Basic realm=\"{realm}\""),
    };
    gate.proofs.extend([basic("a"), basic("b"), basic("a")]);
    let right = format!("Authorization: Basic {}\r\n", Base64::encode_string(b"ann:pw"));
    let wrong = format!("Authorization: Basic {}\r\n", Base64::encode_string(b"ann:no"));
    let user = |name: &str| Ok(vec![("X-User".to_string(), name.to_string())]);
    let look = |fields: &str| {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        look_on(&gate, &text, &mut Looked::default())
    };
    assert_eq!(look("X-Key: abc\r\n"), user("ci"));
    assert_eq!(look(&right), user("ann"));
    // The first that is good counts, whatever stands beside it.
    assert_eq!(look(&format!("{wrong}X-Key: abc\r\n")), user("ci"));
    assert_eq!(look(&format!("{right}X-Key: no\r\n")), user("ann"));
    let challenges: Vec<String> =
        ["Key realm=\"restricted\"", "Basic realm=\"a\"", "Basic realm=\"b\""].map(str::to_string).to_vec();
    for (fields, fault) in [
        ("", Fault::CredentialsMissing),
        ("X-Key: no\r\n", Fault::CredentialsRefused),
        (&wrong, Fault::CredentialsRefused),
    ] {
        assert_eq!(look(fields), Err(Refusal { fault, challenges: challenges.clone() }), "{fields}");
    }
}

#[test]
fn where_all_proofs_are_needed_the_first_that_fails_decides_and_all_tell_servers() {
    let line = format!("ann:{}", bcrypt::hash("pw", 4).unwrap());
    let users = Arc::new(Users::parse(line.as_bytes()).unwrap());
    let mut gate = gate(Asked::Basic { users, remember: Duration::ZERO });
    gate.needed = Needed::All;
    gate.proofs[0].challenge = "Basic realm=\"a\"".into();
    let key = Asked::KeyIn { field: "X-Key".into(), keys: keys() };
    gate.proofs.push(Demand { asked: key, challenge: "Key realm=\"b\"".into() });
    let look = |fields: &str| {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        look_on(&gate, &text, &mut Looked::default())
    };
    let right = format!("Authorization: Basic {}\r\n", Base64::encode_string(b"ann:pw"));
    let wrong = format!("Authorization: Basic {}\r\n", Base64::encode_string(b"ann:no"));
    // The first of two names is told.
    assert_eq!(look(&format!("{right}X-Key: abc\r\n")), Ok(vec![("X-User".into(), "ann".into())]));
    for (fields, fault, challenge) in [
        (String::new(), Fault::CredentialsMissing, "Basic realm=\"a\""),
        ("X-Key: abc\r\n".into(), Fault::CredentialsMissing, "Basic realm=\"a\""),
        (format!("{wrong}X-Key: abc\r\n"), Fault::CredentialsRefused, "Basic realm=\"a\""),
        (right.clone(), Fault::CredentialsMissing, "Key realm=\"b\""),
        (format!("{right}X-Key: no\r\n"), Fault::CredentialsRefused, "Key realm=\"b\""),
    ] {
        assert_eq!(look(&fields), Err(Refusal { fault, challenges: vec![challenge.into()] }), "{fields}");
    }
    // Things that others find out go beside what is known.
    let mut looked = Looked::default();
    let of = |user: Option<&str>, field: &str| Identity {
        user: user.map(|user| user.as_bytes().to_vec()),
        fields: vec![(field.into(), b"x".to_vec())],
    };
    looked.accept(of(None, "X-One"));
    looked.accept(of(Some("bob"), "X-Two"));
    looked.next = 2;
    let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let Look::In(identity) = gate.look((&head(text), text.as_bytes()), 0, &mut looked) else { panic!("all are good") };
    let names: Vec<&str> = identity.fields.iter().map(|(name, _)| &**name).collect();
    assert_eq!((names, identity.user), (vec!["X-One", "X-Two", "X-User"], Some(b"bob".to_vec())));
}

#[test]
fn what_is_wrong_with_a_proof_is_said_in_the_challenge_of_its_kind() {
    let mut gate = gate(Asked::KeyIn { field: "X-Key".into(), keys: keys() });
    gate.proofs.extend(["Bearer realm=\"r\"", "Bearer realm=\"r\"", ""].map(|challenge| Demand {
        asked: Asked::KeyIn { field: "X-Key".into(), keys: keys() },
        challenge: challenge.into(),
    }));
    let mut looked = Looked { next: 4, ..Looked::default() };
    looked.refuse(Fault::TokenExpired, Some("Bearer realm=\"r\", error=\"invalid_token\"".into()));
    looked.refuse(Fault::CredentialsRefused, None);
    let Refusal { fault, challenges } = gate.refusal(&looked);
    assert_eq!(fault, Fault::TokenExpired);
    assert_eq!(challenges, ["Key realm=\"restricted\"", "Bearer realm=\"r\", error=\"invalid_token\""]);
}

/// Fault of a request with these fields, at a time.
fn fault_at(gate: &Gate, fields: &str, now: u64) -> Option<Fault> {
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    match gate.look((&head(&text), text.as_bytes()), now, &mut Looked::default()) {
        Look::In(_) => None,
        Look::Refused(refusal) => Some(refusal.fault),
        Look::Password(..) | Look::Ask(_) => panic!("a token is judged at once"),
    }
}

#[test]
fn a_token_is_a_proof_alone_and_in_time_and_names_somebody_where_servers_are_told_whom() {
    let issuer = Issuer::new();
    let of = |user_to: Option<&str>, cookie: Option<&str>| {
        let keys = Keys::Read(Arc::clone(&issuer.keys));
        let asked = Asked::Token { cookie: cookie.map(str::to_string), tokens: Box::new(tokens("")), keys };
        Gate { user_to: user_to.map(str::to_string), ..gate(asked) }
    };
    let token = issuer.sign(HEADER, &claims(r#","sub":"ann""#));
    let (bearer, cookie) = (format!("Authorization: Bearer {token}\r\n"), format!("Cookie: s={token}\r\n"));
    assert_eq!(look(&of(Some("X-User"), None), "/", &bearer), Ok(vec![("X-User".into(), "ann".into())]));
    assert_eq!(fault_at(&of(None, None), &bearer, NOW), None);
    assert_eq!(fault_at(&of(None, None), &bearer, NOW + 1000), Some(Fault::TokenExpired));
    assert_eq!(fault_at(&of(None, None), &bearer.repeat(2), NOW), Some(Fault::CredentialsRefused));
    assert_eq!(fault_at(&of(None, None), &cookie, NOW), Some(Fault::CredentialsMissing));
    assert_eq!(fault_at(&of(None, Some("s")), &cookie, NOW), None);
    assert_eq!(fault_at(&of(None, Some("s")), &bearer, NOW), Some(Fault::CredentialsMissing));
    for twice in [cookie.repeat(2), format!("Cookie: s={token}; s=x\r\n")] {
        assert_eq!(fault_at(&of(None, Some("s")), &twice, NOW), Some(Fault::CredentialsRefused), "{twice}");
    }
    let nobody = format!("Authorization: Bearer {}\r\n", issuer.sign(HEADER, &claims("")));
    assert_eq!(fault_at(&of(None, None), &nobody, NOW), None);
    assert_eq!(fault_at(&of(Some("X-User"), None), &nobody, NOW), Some(Fault::CredentialsRefused));
}

#[test]
fn keys_are_looked_for_anew_where_a_token_names_one_that_is_not_there_and_for_no_other_fault() {
    let issuer = Issuer::new();
    let sign =
        |issuer: &Issuer, header: &str| format!("Authorization: Bearer {}\r\n", issuer.sign(header, &claims("")));
    let (forged, none) = (sign(&Issuer::new(), HEADER), sign(&issuer, r#"{"alg":"none","kid":"k2"}"#));
    let unknown = sign(&issuer, &HEADER.replace("k1", "k2"));
    let keys = Arc::into_inner(issuer.keys);
    let fetched = Arc::new(Fetched { keys, ..Fetched::default() });
    let keys = Keys::Fetched(Arc::clone(&fetched));
    let gate = gate(Asked::Token { cookie: None, tokens: Box::new(tokens("")), keys });
    for (fields, is_missed) in [(forged, false), (none, false), (unknown, true)] {
        assert_eq!(fault_at(&gate, &fields, NOW), Some(Fault::CredentialsRefused));
        assert_eq!(fetched.is_missed.load(Ordering::Relaxed), is_missed, "{fields}");
    }
}
