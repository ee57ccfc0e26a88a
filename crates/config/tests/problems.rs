//! Messages about configurations that are wrong: place, words, and all of it at once.

use std::path::PathBuf;

use propylon_config::*;

fn source(name: &str, text: &str) -> Source {
    Source { name: name.into(), base: PathBuf::from("/etc/propylon"), text: text.into() }
}

/// A good configuration, below which a snippet can be put.
const GOOD: &str =
    "[listener.web]\nbind = '0.0.0.0:80'\n[backend.app]\nservers = ['a:1']\n[[route]]\nbackend = 'app'\n";
const GOOD_LINES: u32 = 6;

/// Problems and warnings of a text, as they are printed.
fn all(text: &str) -> Vec<String> {
    let problems = match parse(&source("f", text)) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    };
    problems.iter().map(Problem::to_string).collect()
}

/// Each snippet, put below the good configuration, has one problem; line 1 is the snippet's first.
fn expect_below_good(table: &[(&str, u32, u32, &str)]) {
    for (snippet, line, column, part) in table {
        let found = all(&format!("{GOOD}{snippet}"));
        let place = format!("f:{}:{column}: ", GOOD_LINES + line);
        let fits = found.len() == 1 && found[0].starts_with(&place) && found[0].contains(part);
        assert!(fits, "{snippet}\nexpected {place}…{part}…\nfound {found:#?}");
    }
}

/// Each snippet, put below the good configuration, has no problem.
fn expect_nothing_below_good(snippets: &[&str]) {
    for snippet in snippets {
        assert_eq!(all(&format!("{GOOD}{snippet}")), [""; 0], "{snippet}");
    }
}

/// Each whole text has one problem.
fn expect(table: &[(&str, u32, u32, &str)]) {
    for (text, line, column, part) in table {
        let found = all(text);
        let place = format!("f:{line}:{column}: ");
        let fits = found.len() == 1 && found[0].starts_with(&place) && found[0].contains(part);
        assert!(fits, "{text}\nexpected {place}…{part}…\nfound {found:#?}");
    }
}

#[test]
#[rustfmt::skip] // one line per case
fn limits_of_routes_are_checked() {
    let limit = |text: &str| format!("[[route]]\nbackend='app'\npath='/b'\nlimit={{{text}}}");
    let cases: Vec<(String, u32, u32, &str)> = [
        ("", 7, "this limit allows everything; give it one of `rate`, `bytes` and `requests`"),
        ("exempt='10.0.0.0/8'", 7, "this limit allows everything"),
        ("rate='10'", 13, "`rate`: \"10\" is not a rate; write it as in \"10/s\""),
        ("rate='10/w'", 13, "`rate`: \"10/w\" is not a rate"),
        ("rate='0/s'", 13, "`rate` is 0: no request could pass"),
        ("rate='2000000/s'", 13, "`rate` is too large; use 1000000 a second or less"),
        ("rate=10", 13, "`rate`: expected a string, found an integer"),
        ("bytes='1B/s',requests=1", 21, "this limit has both `bytes` and `requests`; write two limits"),
        ("bytes='1Mb/s'", 14, "`bytes`: \"1Mb/s\" is not a rate; write it as in \"1MiB/s\""),
        ("rate='1/d',burst=400", 13, "`burst` takes longer than a year to come back at this rate"),
        ("requests=5,burst=9", 19, "`burst` has no effect unless there is a `rate` or `bytes`"),
        ("rate='1/s',key='all',keys=100", 29, "`keys` has no effect unless there are several keys to count for"),
        ("rate='1/s',key='path',ipv4_prefix=24", 30, "`ipv4_prefix` has no effect unless `key` is \"source\" or \"user\""),
        ("rate='1/s',key='client-ip'", 23, "`key` cannot have \"client-ip\" in it; write \"source\""),
        ("rate='1/s',key=['source','all']", 33, "`key` cannot have \"all\" in it; \"all\" stands alone"),
        ("rate='1/s',key=['source','source']", 19, "`key` has a part twice"),
        ("rate='1/s',key=[]", 23, "`key` is empty; write \"all\""),
        ("rate='1/s',key={header='X-Forwarded-For'}", 23, "is a claim that anybody can make; use \"source\""),
        ("rate='1/s',key={}", 23, "a part of `key` is one of `header` and `cookie`"),
        ("rate='1/s',key='ja4'", 7, "on [listener.web] fingerprints are not computed: its requests have one key"),
        ("rate='1/s',key='certificate'", 7, "on [listener.web] no client is asked for a certificate"),
        ("rate='1/s',key='user'", 7, "`key` is the user, and this route does not ask: nobody is known; add `auth` to the route, or use \"source\""),
        ("rate='1/s',name='a b'", 24, "\"a b\" cannot be the name of a limit"),
        ("deny='10.0.0.1/8'", 13, "10.0.0.0/8"),
        ("deny_files=[]", 19, "`deny_files` is empty"),
        ("rates='1/s'", 8, "unknown key `rates` in `limit`; did you mean `rate`?"),
    ].map(|(text, column, said)| (limit(text), 4, column, said)).into();
    let cases: Vec<(&str, u32, u32, &str)> = cases.iter().map(|(text, line, column, said)| (text.as_str(), *line, *column, *said)).collect();
    expect_below_good(&cases);
    let two = |second: &str| format!("{}\n[[route]]\nbackend='app'\npath='/c'\nlimit={{name='x',{second}}}", limit("name='x',rate='1/s'"));
    expect_below_good(&[(&two("rate='2/s'"), 8, 7, "the limit \"x\" is another in line")]);
}

#[test]
fn routes_have_a_label_of_their_own_each() {
    let two = "[[route]]\nname='a'\npath='/x'\nbackend='app'\n[[route]]\nname='a'\npath='/y'\nbackend='app'";
    expect_below_good(&[(two, 5, 1, "a route named \"a\" is there already, in line")]);
    let text = "[listener.web]\nbind='[::]:1'\n[[route]]\nhost='*.a.test'\npath='/x'\nrespond={}\n\
                [[route]]\nhost='*.a.test'\npath={exact='/x'}\nrespond={}\n[[route]]\nname='rest'\nrespond={}\n\
                [[route]]\npath={regex='x#2'}\nrespond={}\n[[route]]\npath={regex='x'}\nrespond={}\n\
                [[route]]\npath={regex='x'}\nmatch={method='GET'}\nrespond={}\n";
    let source = Source { name: "f".into(), base: PathBuf::from("/"), text: text.into() };
    let (config, _) = parse(&source).unwrap_or_else(|problems| panic!("{problems:?}"));
    let labels: Vec<&str> = config.routes.iter().map(|route| route.label.as_str()).collect();
    assert_eq!(labels, ["*.a.test/x", "*.a.test/x#2", "rest", "*~x#2", "*~x", "*~x#3"]);
}

#[test]
fn nothing_before_a_proof_goes_by_what_it_tells() {
    let route = |auth: &str| format!("[[route]]\npath='/b'\nauth={auth}\nlistener='web'\nbackend='app'");
    let local = |text: &str| text.replace("0.0.0.0", "127.0.0.1");
    // Conditions and limits are asked before the proof.
    let limited = route("{basic={file='u'},user_to='X-User'}\nlimit={rate='1/s',key={header='x-user'}}");
    let unnamed = route("{forward={backend='app'}}\nlimit={rate='1/s',key='user'}");
    let admin = "\n[[route]]\npath='/c'\nlistener='web'\nmatch={header={X-User='admin'}}\nbackend='app'";
    let asked = route("{basic={file='u'},user_to='X-User'}") + admin;
    for (snippet, line, part) in [
        (
            unnamed,
            4,
            "`key` is the user, and `forward` has no `user_from`: nobody is known; name the field of the answer",
        ),
        (limited, 1, "`auth` tells servers \"x-user\", and the limit's key goes by it before that"),
        (asked, 6, "`auth` tells servers \"x-user\", and the condition goes by it before that"),
    ] {
        let found = all(&local(&format!("{GOOD}{snippet}")));
        let place = format!("f:{}:", GOOD_LINES + line);
        assert!(found.len() == 1 && found[0].starts_with(&place) && found[0].contains(part), "{place} {found:#?}");
    }
}

#[test]
#[rustfmt::skip] // one line per case
fn proofs_that_are_asked_for_together_are_checked_beside_each_other() {
    let route = |auth: &str| format!("[[route]]\npath='/b'\nauth={auth}\nlistener='web'\nbackend='app'");
    for (snippet, column, part) in [
        (route("{any=[{basic={file='u'}},{api_key={file='k'}}],all=[{basic={file='u'}},{api_key={file='k'}}]}"), 53, "`auth` has both `any` and `all`; give it exactly one of"),
        (route("{all=[{basic={file='u'}}]}"), 11, "`all` has 1 proofs; list 2 to 8 proofs, each of which has to be good"),
        (route("{all=[{basic={file='u'}},{jwt={issuer='i',audience='a',keys_file='k'}}]}"), 31, "two proofs of `all` come in the field authorization, and a request has one there; have one of them come elsewhere, by `jwt.cookie`"),
        (route("{all=[{api_key={file='k'}},{api_key={file='l',header='x-api-key'}}]}"), 33, "two proofs of `all` come in the field x-api-key"),
        (route("{all=[{basic={file='u'}},{jwt={issuer='i',audience='a',keys_file='k',cookie='c',claims_to={X-A='a'}}},{forward={backend='app',copy=['x-a']}}]}"), 108, "two proofs of `all` tell servers \"x-a\"; remove one of the two"),
        (route("{all=[{forward={backend='app'}},{forward={backend='app',path='/b'}}],user_to='X-User'}"), 1, "`forward` has no `user_from`: nobody is known"),
    ] {
        let found = all(&format!("{GOOD}{snippet}").replace("0.0.0.0", "127.0.0.1"));
        let place = format!("f:{}:{column}: ", GOOD_LINES + 3);
        let fits = found.len() == 1 && found[0].starts_with(&place) && found[0].contains(part);
        assert!(fits, "{snippet}\nexpected {place}…{part}…\nfound {found:#?}");
    }
}

#[test]
#[rustfmt::skip] // one line per case
fn what_a_route_asks_clients_to_prove_is_checked() {
    let route = |auth: &str| format!("[[route]]\npath='/b'\nauth={auth}\nlistener='web'\nbackend='app'");
    let local = |text: &str| text.replace("0.0.0.0", "127.0.0.1");
    let jwt = |more: &str| route(&format!("{{jwt={{issuer='i',audience='a',keys_file='k'{more}}}}}"));
    for (snippet, column, part) in [
        (route("{}"), 1, "`auth` asks for no proof; give it exactly one of `basic`, `api_key`, `jwt`, `forward`, `any` and `all`"),
        (route("{any=[{basic={file='u'}}]}"), 11, "`any` has 1 proofs; list 2 to 8 proofs, of which one will do"),
        (route("{any=[{basic={file='u'}},{}]}"), 31, "this proof asks for no proof; give it exactly one of `basic`, `api_key`, `jwt` and `forward`"),
        (route("{any=[{forward={backend='app'}},{basic={file='u'}}]}"), 12, "`forward` has the last word, and proofs behind it would never be looked at; put it at the end"),
        (route("{any=[{basic={file='u'}},{api_key={file='k',query='k'}}],hide_credentials=true}"), 80, "what is in the query is not taken out of it"),
        (route("{forward={}}"), 7, "`forward` has no `backend`; add backend = \"NAME\" of a [backend.NAME]"),
        (route("{forward={backend='appp'}}"), 24, "no backend named \"appp\"; did you mean \"app\"?"),
        (route("{forward={backend='app',path='verify'}}"), 35, "`path`: \"verify\" is no path"),
        (route("{forward={backend='app',host='a b'}}"), 35, "`host`: \"a b\" is no host"),
        (route("{forward={backend='app',copy=['Cookie']}}"), 36, "the field \"Cookie\" has a meaning of its own"),
        (route("{forward={backend='app',copy=['X-A','x-a']}}"), 42, "`copy` has \"x-a\" twice"),
        (route("{forward={backend='app',send=['X_A']}}"), 36, "\"X_A\" cannot be the name of a field here"),
        (route("{forward={backend='app'},user_to='X-User'}"), 1, "`forward` has no `user_from`: nobody is known"),
        (route("{forward={backend='app',copy=['X-User'],user_from='X-U'},user_to='x-user'}"), 1, "the field \"x-user\" is of `user_to`, and of `copy`"),
        (route("{forward={backend='app'},hide_credentials=true}"), 48, "`hide_credentials` would hide nothing"),
        (route("1"), 6, "`auth`: expected a table"),
        (route("{basic={file='u'},jwt={issuer='i',audience='a',keys_file='k'}}"), 24, "`auth` has both `basic` and `jwt`"),
        (route("{basic={}}"), 7, "`basic` has no `file`; add the file that `htpasswd -B -c FILE NAME` makes"),
        (route("{basic={file='u',realms='x'}}"), 23, "unknown key `realms` in `basic`; did you mean `realm`?"),
        (route("{basic={file='u',realm=''}}"), 29, "`realm`: \"\" is no text for it"),
        (route("{basic={file='u',remember='2h'}}"), 32, "`remember` is too large; use \"1h\" or less"),
        (route("{basic={file='u'},user_to='X_User'}"), 32, "\"X_User\" cannot be the name of a field here"),
        (route("{basic={file='u'},user_to='Host'}"), 32, "the field \"Host\" has a meaning of its own"),
        (route("{api_key={file='k',header='X-K',query='k'}}"), 44, "a key is in a field or in the query"),
        (route("{api_key={file='k',query='a b'}}"), 31, "\"a b\" cannot be the name of a parameter here"),
        (route("{api_key={file='k',query='k'},hide_credentials=true}"), 53, "what is in the query is not taken out of it"),
        (route("{jwt={audience='a',keys_file='k'}}"), 7, "`jwt` has no `issuer`"),
        (route("{jwt={issuer='i',keys_file='k'}}"), 7, "`jwt` has no `audience`"),
        (route("{jwt={issuer='i',audience='a'}}"), 7, "`jwt` has no `keys_file`; add the file of the issuer's public keys, a JWK set, or `keys_url`"),
        (jwt(",keys_url='https://a/'"), 50, "`jwt` has both `keys_file` and `keys_url`; remove one of the two"),
        (jwt(",keys_ca='c'"), 58, "`keys_ca` and `keys_refresh` are about `keys_url`; remove it"),
        (route("{jwt={issuer='i',audience='a',keys_url='http://a/k'}}"), 45, "`keys_url`: whoever is on the way could put keys of his own"),
        (route("{jwt={issuer='i',audience='a',keys_url='a/k'}}"), 45, "\"a/k\" is not a URL of http or https"),
        (route("{jwt={issuer='i',audience='a',keys_url='https://a/k',keys_refresh='1s'}}"), 72, "`keys_refresh` is too small; use \"10s\" or more"),
        (route("{jwt={issuer='i',audience='a',keys_url='https://a/k'},watch='5s'}"), 66, "`watch` looks after files, and this `auth` has none"),
        (route("{jwt={issuer='i',audience=[],keys_file='k'}}"), 32, "`audience` names none"),
        (jwt(",algorithms=['none']"), 62, "tokens that nobody has signed prove nothing; use \"ES256\""),
        (jwt(",algorithms=['HS256']"), 62, "\"HS256\" is by a secret that whoever checks tokens could make them with"),
        (jwt(",algorithms=['es256']"), 62, "\"es256\" is no algorithm that is taken"),
        (jwt(",algorithms=[]"), 61, "`algorithms` names none"),
        (jwt(",leeway='10m'"), 57, "`leeway` is too large; use \"5m\" or less"),
        (jwt(",cookie='a b'"), 57, "\"a b\" cannot be the name of a cookie"),
        (jwt(",claims_to={X=1}"), 63, "expected a string"),
        (jwt(",claims_to={X='sub',x='name'}"), 69, "`claims_to` has \"x\" twice"),
        (jwt(",claims_to={Authorization='sub'}"), 61, "has a meaning of its own"),
    ] {
        let found = all(&local(&format!("{GOOD}{snippet}")));
        let place = format!("f:{}:{column}: ", GOOD_LINES + 3);
        let fits = found.len() == 1 && found[0].starts_with(&place) && found[0].contains(part);
        assert!(fits, "{snippet}\nexpected {place}…{part}…\nfound {found:#?}");
    }
    // A listener that writes such a field as well, and one that anybody can listen to.
    let basic = route("{basic={file='u'},user_to='X-User'}");
    let both = local(&format!("{GOOD}{basic}")).replace("[backend.app]", "request_headers={X-user='{client.ip}'}\n[backend.app]");
    assert!(all(&both)[0].contains("[listener.web] writes the field \"X-user\" itself, and so does this route's `auth`"), "{:?}", all(&both));
    expect_below_good(&[(&basic, 1, 1, "warning: [listener.web] speaks plaintext: whoever is on the way can read what proves who clients are")]);
    let (config, _) = parse(&source("f", &local(&format!("{GOOD}{basic}")))).expect("a good file");
    assert!(!config.listeners[0].takes_trailers);
    assert!(config.named_files().iter().any(|file| file.path == std::path::Path::new("/etc/propylon/u")));
}

#[test]
#[rustfmt::skip] // one line per case
fn conditions_of_routes_are_checked() {
    expect_below_good(&[
        ("[[route]]\nmatch={}\npath='/b'\nbackend='app'", 2, 1, "warning: `match` has no conditions"),
        ("[[route]]\nmatch={method='get'}\nbackend='app'", 2, 15, "warning: methods are compared with case: \"get\" is not \"GET\""),
        ("[[route]]\nmatch={method=['GET','A B']}\nbackend='app'", 2, 22, "\"A B\" is not a method"),
        ("[[route]]\nmatch={method=[]}\nbackend='app'", 2, 15, "`method` names none"),
        ("[[route]]\nmatch={methods='GET'}\nbackend='app'", 2, 8, "unknown key `methods` in `match`; did you mean `method`?"),
        ("[[route]]\nmatch={not_source='10.0.0.0/8'}\nbackend='app'", 2, 8, "in `match`; write a route of its own"),
        ("[[route]]\nhost={regex='a'}\nbackend='app'", 2, 6, "patterns are in match = { host ="),
        ("[[route]]\nhost='h'\nrequest={set={X-A='$remote_addr'}}\nbackend='app'", 3, 19, "warning: `$remote_addr` is sent as these letters"),
        ("[[route]]\nmatch={source='10.0.0.1/8'}\nbackend='app'", 2, 15, "10.0.0.0/8"),
        ("[[route]]\nmatch={header={'X A'='1'}}\nbackend='app'", 2, 16, "\"X A\" cannot be the name of a field"),
        ("[[route]]\nmatch={header={X-A='1',x-a='2'}}\nbackend='app'", 2, 24, "`header` has \"x-a\" twice"),
        ("[[route]]\nmatch={header='X-A'}\nbackend='app'", 2, 15, "expected a table such as"),
        ("[[route]]\nmatch={query={a=1}}\nbackend='app'", 2, 17, "expected a string, or one of { exact"),
        ("[[route]]\nmatch={query={a={prefix='1',regex='2'}}}\nbackend='app'", 2, 17, "a condition is one thing"),
        ("[[route]]\nmatch={query={a={}}}\nbackend='app'", 2, 17, "a condition is one thing"),
        ("[[route]]\nmatch={query={a={present='yes'}}}\nbackend='app'", 2, 26, "`present`: expected a boolean"),
        ("[[route]]\nmatch={query={a={regexp='2'}}}\nbackend='app'", 2, 18, "did you mean `regex`?"),
        ("[[route]]\nmatch={query={a={regex='('}}}\nbackend='app'", 2, 24, "\"(\" is not a pattern: unclosed group"),
        ("[[route]]\nmatch={cookie={a=\"\\u0001\"}}\nbackend='app'", 2, 18, "cannot be compared with"),
        ("[[route]]\npath={regex='a{900}{900}'}\nbackend='app'", 2, 13, "is too large a pattern"),
        ("[[route]]\nmatch={host='a'}\nbackend='app'", 2, 13, "one name, or any, is no condition; write the route's `host`"),
        ("[[route]]\nmatch={host={prefix='A'}}\nbackend='app'", 2, 13, "hosts are compared in lower case"),
        ("[[route]]\nmatch={header={Host='a'}}\nbackend='app'", 2, 16, "a host is no condition on a field; write the route's `host`"),
        ("[listener.b]\nbind='[::]:1'\nrequest_headers={X-Who='{client.ip}'}\n[[route]]\nmatch={header={x-who='a'}}\nbackend='app'", 4, 1, "[listener.b] writes the field \"X-Who\" itself"),
        ("[[route]]\npath='/admin'\nrespond={status=403}\n[[route]]\npath={regex='js$'}\nbackend='app'", 1, 1, "warning: this route keeps clients out of /admin, but not from paths there that the pattern in line 10 fits"),
        ("[[route]]\npath={}\nbackend='app'", 2, 6, "`path` is one of `exact` and `regex`"),
        ("[[route]]\npath={exact='/a',regex='/a'}\nbackend='app'", 2, 6, "`path` is one of `exact` and `regex`"),
        ("[[route]]\npath='/x'\nmatch={method='GET'}\nbackend='app'\n[[route]]\npath='/x'\nmatch={method=['GET']}\nbackend='app'", 5, 1, "this route stands for the same requests as the one in line 7"),
        ("[listener.r]\nbind='0.0.0.0:1'\nprotocol='tcp'\n[[route]]\nlistener='r'\nmatch={method='GET'}\nbackend='app'", 4, 1, "there are no requests to look at; remove `match`"),
        ("[listener.r]\nbind='0.0.0.0:1'\nprotocol='tcp'\n[[route]]\nlistener='r'\npath={regex='a'}\nbackend='app'", 4, 1, "there are no paths; remove `path`"),
    ]);
    expect_below_good(&[
        ("[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=['c']\n[[route]]\nlistener='b'\nmatch={client={san='a'}}\nbackend='app'", 6, 1, "this route can never match: no client is asked for a certificate"),
        ("[listener.b]\nbind='[::]:1'\n[[route]]\nlistener='b'\nmatch={tls={version='TLSv1.3'}}\nbackend='app'", 3, 1, "this route can never match: it asks for facts of TLS, and its listeners speak plaintext"),
        ("[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=['c']\n[[route]]\nlistener='b'\nmatch={tls={ja4='t13'}}\nbackend='app'", 6, 1, "this route can never match: fingerprints are not computed"),
        ("[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=['c']\npolicy='modern'\n[[route]]\nlistener='b'\nmatch={tls={suite={prefix='TLS_ECDHE'}}}\nbackend='app'", 7, 1, "this route can never match: its listeners agree on no cipher suite that fits"),
        ("[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=['c']\npolicy={groups=['x25519']}\n[[route]]\nlistener='b'\nmatch={tls={group='P-256'}}\nbackend='app'", 7, 1, "this route can never match: its listeners agree on no group that fits; change `policy`"),
        ("[[route]]\nmatch={tls={suite='AES128-SHA'}}\nbackend='app'", 2, 19, "AES128-SHA has no forward secrecy; Propylon does not offer it"),
        ("[[route]]\nmatch={tls={suite='fast'}}\nbackend='app'", 2, 19, "there is no cipher suite named \"fast\"; use \"TLS_AES_128_GCM_SHA256\""),
        ("[[route]]\nmatch={tls={suite={regex='CBC'}}}\nbackend='app'", 2, 19, "there is no cipher suite that fits; names are \"TLS_AES_128_GCM_SHA256\""),
        ("[[route]]\nmatch={tls={group='X25519MLKEM'}}\nbackend='app'", 2, 19, "there is no group named \"X25519MLKEM\"; did you mean \"X25519MLKEM768\"?"),
        ("[[route]]\nmatch={tls={group={prefix='ffdhe'}}}\nbackend='app'", 2, 19, "there is no group that fits; names are \"X25519MLKEM768\", \"x25519\""),
        ("[[route]]\nmatch={tls={}}\nbackend='app'", 2, 8, "nothing is asked here; give it one of `version`"),
        ("[[route]]\nmatch={tls={sni='a'}}\nbackend='app'", 2, 13, "unknown key `sni` in `tls`"),
        ("[[route]]\nmatch={grpc={service='/a'}}\nbackend='app'", 2, 22, "\"/a\" is no service of gRPC"),
        ("[[route]]\nmatch={port=70000}\nbackend='app'", 2, 13, "70000 is no port"),
        ("[[route]]\nmatch={port=1}\nbackend='app'", 1, 1, "this route can never match: no listener that it is for has one of its ports"),
        ("[[route]]\npath='/x'\nmatch={header={a={prefix='v'}}}\nbackend='app'\n[[route]]\npath='/x'\nmatch={header={a='v1'}}\nbackend='app'", 5, 1, "warning: this route can never match: the one in line 7 takes all that its conditions let in"),
        ("[[route]]\npath='/x'\nmatch={method=['GET','HEAD'],source='10.0.0.0/8'}\nbackend='app'\n[[route]]\npath='/x'\nmatch={method='GET',source='10.1.0.0/16'}\nbackend='app'", 5, 1, "warning: this route can never match"),
    ]);
    expect_nothing_below_good(&[
        "[[route]]\nmatch={tls={version={present=false}}}\nbackend='app'",
        "[[route]]\npath='/x'\nmatch={header={a='v1'}}\nbackend='app'\n[[route]]\npath='/x'\nmatch={header={a={prefix='v'}}}\nbackend='app'",
        "[[route]]\npath='/x'\nmatch={source='10.1.0.0/16'}\nbackend='app'\n[[route]]\npath='/x'\nmatch={source='11.0.0.0/8'}\nbackend='app'",
        "[[route]]\nmatch={method='GET'}\nbackend='app'\n[[route]]\nmatch={method='POST'}\nbackend='app'",
        "[[route]]\npath={regex='^/a'}\nbackend='app'",
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn conditions_that_nobody_can_meet_are_told() {
    expect_below_good(&[
        ("[[route]]\nmatch={tls={version='1.1'}}\nbackend='app'", 2, 21, "there is no version of TLS that fits; write \"TLSv1.2\" or \"TLSv1.3\""),
        ("[[route]]\nmatch={tls={alpn='h3'}}\nbackend='app'", 2, 18, "no protocol that is agreed on by ALPN fits; write \"h2\" or \"http/1.1\""),
        ("[[route]]\nmatch={client={sha256='AB:CD'}}\nbackend='app'", 2, 23, "\"abcd\" is no SHA-256 in hexadecimal; write what `openssl x509 -noout -fingerprint -sha256` prints"),
        ("[[route]]\nmatch={client={serial='x1'}}\nbackend='app'", 2, 23, "\"X1\" is no serial number in hexadecimal"),
        ("[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=['c']\nclient_auth={ca='a',mode='optional'}\n[[route]]\nlistener='b'\nmatch={client={subject={present=false},san='x'}}\nbackend='app'", 9, 1, "warning: this route can never match: `client` asks for a certificate, and for none"),
        ("[[route]]\nmatch={method=['GET'],grpc={}}\nbackend='app'", 2, 1, "warning: this route can never match: calls of gRPC are POST"),
        ("[[route]]\nmatch={method=['GET','TRACE']}\nbackend='app'", 2, 22, "warning: requests with TRACE are refused before any route is asked for"),
        ("[[route]]\nmatch={header={a=' x'}}\nbackend='app'", 2, 18, "warning: this route can never match: blanks around a value are no part of it"),
        ("[[route]]\nmatch={header={Connection='x'}}\nbackend='app'", 2, 27, "warning: this route can never match: connection is between the client and Propylon alone"),
        ("[[route]]\nmatch={cookie={a='x;y'}}\nbackend='app'", 2, 18, "warning: this route can never match: a `;` ends a cookie's value"),
        ("[[route]]\nhost='a.test'\nmatch={host={prefix='b'}}\nbackend='app'", 1, 1, "warning: this route can never match: its `host` is a.test, which `match.host` leaves out"),
        ("[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=['c']\npolicy='modern'\n[[route]]\nlistener='b'\nmatch={tls={version='TLS 1.2'}}\nbackend='app'", 7, 1, "this route can never match: its listeners agree on no version that fits; change `policy`"),
    ]);
    expect_nothing_below_good(&[
        "[[route]]\nmatch={client={subject={present=false},san={present=false}}}\nbackend='app'",
        "[[route]]\nmatch={header={a='x  y',connection={present=false}}}\nbackend='app'",
        "[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=['c']\n[[route]]\nlistener='b'\nmatch={tls={version={regex='1.[23]'},alpn={prefix='http'}}}\nbackend='app'",
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn compression_is_checked() {
    let route = |value: &str| format!("[[route]]\npath='/b'\nbackend='app'\ncompress={value}");
    expect_below_good(&[
        (&route("'gzip'"), 4, 10, "`compress`: expected a boolean or { encodings = [\"gzip\"] }, found a string"),
        (&route("{encoding=['gzip']}"), 4, 11, "unknown key `encoding` in `compress`; did you mean `encodings`?"),
        (&route("{encodings=['deflate']}"), 4, 22, "`encodings` cannot be \"deflate\"; use \"zstd\", \"br\" or \"gzip\""),
        (&route("{encodings=['br','br']}"), 4, 27, "`encodings` names \"br\" twice; remove one of the two"),
        (&route("{encodings=[]}"), 4, 21, "`encodings` names none; name one, or write compress = false"),
        (&route("{types=[]}"), 4, 17, "`types` names none"),
        (&route("{types=['html']}"), 4, 18, "\"html\" is not a media type; write \"text/html\", \"text/*\" or"),
        (&route("{types=['text/html; charset=utf-8']}"), 4, 18, "is not a media type"),
        (&route("{types=['*/*']}"), 4, 18, "is not a media type"),
        (&route("{types=['text/*html']}"), 4, 18, "is not a media type"),
        (&route("{minimum='2GiB'}"), 4, 19, "`minimum` is too large"),
        (&route("{level={gzip=0}}"), 4, 23, "`gzip` is too small; use 1 or more"),
        (&route("{level={br=11}}"), 4, 21, "`br` is too large; use 6 or less"),
        (&route("{encodings=['gzip'],level={br=1}}"), 4, 37, "`level` has \"br\", which `encodings` does not name; remove it, or add \"br\" to `encodings`"),
        (&route("{credentials='off'}"), 4, 23, "`credentials` cannot be \"off\""),
        (&route("{busy_max=0}"), 4, 20, "`busy_max` is too small"),
        ("[[route]]\npath='/b'\nredirect={host='a.test'}\ncompress=true", 4, 1, "`compress` on a route that redirects: its answers have no body; remove it, or put it on a route with a `backend` or `respond`"),
        ("[listener.r]\nbind='0.0.0.0:1'\nprotocol='tcp'\n[[route]]\nlistener='r'\ncompress=true\nbackend='app'", 4, 1, "there are no requests to take steps with"),
    ]);
    expect_nothing_below_good(&[&route("true"), &route("{types=['application/*+JSON','X/Y.z-1']}"), &route("{level={gzip=9}}")]);
}

#[test]
#[rustfmt::skip] // one line per case
fn answers_of_our_own_are_checked() {
    expect_below_good(&[
        ("[[route]]\npath='/f'\nrespond={body='a',body_file='a.txt'}", 3, 29, "`respond` has both `body` and `body_file`"),
        ("[[route]]\npath='/f'\nrespond={body_file='a.bin'}", 3, 20, "the file's extension does not say what is in it; add a `content_type`"),
        ("[[route]]\npath='/f'\nrespond={status=204,body_file='a.txt'}", 3, 31, "a response with status 204 has no body; remove `body_file`"),
        ("[[route]]\npath='/f'\nrespond={body_file=''}", 3, 20, "`body_file` is empty"),
        ("[listener.b]\nbind='[::]:1'\nerror_pages={302='a.html'}", 3, 14, "\"302\" is not the status of an error; write one from \"400\" to \"599\""),
        ("[listener.b]\nbind='[::]:1'\nerror_pages={3xx='a.html'}", 3, 14, "\"3xx\" is not the status of an error"),
        ("[listener.b]\nbind='[::]:1'\nerror_pages={5xx='a.html',5XX='b.html'}", 3, 27, "`error_pages` has \"5xx\" twice"),
        ("[listener.b]\nbind='[::]:1'\nerror_pages={404='a.png'}", 3, 18, "an error page is in HTML, JSON or plain text; write it as in { html = \"FILE\" }"),
        ("[listener.b]\nbind='[::]:1'\nerror_pages={404={}}", 3, 18, "this page has no form"),
        ("[listener.b]\nbind='[::]:1'\nerror_pages={404={htm='a'}}", 3, 19, "unknown key `htm` in `error_pages`; did you mean `html`?"),
        ("[listener.b]\nbind='[::]:1'\nerror_pages='a.html'", 3, 13, "expected a table such as { \"5xx\" = \"error.html\" }"),
        ("[listener.b]\nbind='[::]:1'\nerror_format='xml'", 3, 14, "`error_format` cannot be \"xml\""),
        ("[listener.b]\nbind='[::]:1'\nintercept_errors=true", 1, 11, "[listener.b] intercepts errors, and there is no page for any; add `error_pages`"),
        ("[[route]]\npath='/f'\nintercept_errors=true\nbackend='app'", 1, 1, "there is no page for any; add `error_pages` to the route or to its listener"),
        ("[[route]]\npath='/f'\nerror_pages={404='a.html'}\nintercept_errors=true\nrespond={}", 1, 1, "this route has no `backend`; remove it"),
        ("[listener.r]\nbind='0.0.0.0:1'\nprotocol='tcp'\nerror_format='json'\n[[route]]\nlistener='r'\nbackend='app'", 4, 1, "`error_format` is about HTTP"),
        ("[[route]]\npath='/f'\ncors={}\nbackend='app'", 3, 1, "`cors` has no `origins`; name the origins that may use it"),
        ("[[route]]\npath='/f'\ncors={origins=[]}\nbackend='app'", 3, 15, "`origins` names none"),
        ("[[route]]\npath='/f'\ncors={origins=['*'],credentials=true}\nbackend='app'", 3, 33, "would let any page act in the name of who looks at it; name the origins"),
        ("[[route]]\npath='/f'\ncors={origins=['*'],credentials=true,echo=true}\nbackend='app'", 3, 33, "warning: `credentials` for every origin let any page act in the name of who looks at it"),
        ("[[route]]\npath='/f'\ncors={origins=['https://a'],methods=['PUT'],echo=true}\nbackend='app'", 3, 50, "`echo` is about `*`, and nothing here is; remove it"),
        ("[[route]]\npath='/f'\ncors={origins=['null']}\nbackend='app'", 3, 16, "\"null\" is the origin of whoever asks to have none"),
        ("[[route]]\npath='/f'\ncors={origins=['https://a/']}\nbackend='app'", 3, 16, "it has a path; write \"https://a\""),
        ("[[route]]\npath='/f'\ncors={origins=['https://a'],headers=['*'],credentials=true}\nbackend='app'", 3, 38, "with `credentials` browsers take `*` in `headers` for a name; write the names"),
        ("[[route]]\npath='/f'\ncors={origins=['https://a'],methods=['PUT','*']}\nbackend='app'", 3, 44, "warning: `*` in `methods` stands for the others as well; remove those"),
        ("[[route]]\npath='/f'\ncors={origins=['https://a'],headers=['X A']}\nbackend='app'", 3, 38, "\"X A\" is not a name that can be here"),
        ("[[route]]\nmatch={method='PUT'}\ncors={origins=['https://a']}\nbackend='app'", 1, 1, "add \"OPTIONS\" to the `method` of its `match`"),
        ("[[route]]\nmatch={header={X-A='1'}}\ncors={origins=['https://a']}\nbackend='app'", 1, 1, "warning: browsers ask what `cors` allows without the fields and cookies"),
        ("[listener.b]\nbind='[::]:1'\nrequest_id={accept='trusted'}", 3, 20, "goes by `trusted_proxies`, as forwarded = \"append\" does; add forwarded = \"append\""),
        ("[listener.b]\nbind='[::]:1'\nrequest_id={header='Host'}", 3, 20, "the field \"Host\" has a meaning of its own"),
        ("[listener.b]\nbind='[::]:1'\nrequest_id='yes'", 3, 12, "expected a boolean or { header = \"X-Request-ID\", return = true }"),
        ("[listener.b]\nbind='[::]:1'\nrequest_id=true\nrequest_headers={x-request-id='{client.ip}'}", 3, 1, "`request_headers` has \"X-Request-ID\" as well, which `request_id` writes"),
        ("[listener.b]\nbind='[::]:1'\nrequest_headers={X-A='{request.id}'}", 1, 11, "{request.id} is never known on [listener.b]: its requests have none; add request_id = true"),
    ]);
    expect_nothing_below_good(&[
        "[listener.b]\nbind='[::]:1'\nrequest_id=true\nrequest_headers={X-A='{request.id}'}\nerror_pages={404='a.html'}\n[[route]]\npath='/f'\nintercept_errors=true\nbackend='app'",
        "[[route]]\nmatch={method=['PUT','OPTIONS']}\ncors={origins=['https://a'],headers=['*','Authorization']}\nbackend='app'",
        "[listener.b]\nbind='[::]:1'\nrequest_id=false\n[[route]]\npath='/f'\nrespond={body_file='a',content_type='x/y'}",
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn limits_of_http2_are_checked() {
    expect_below_good(&[
        ("[backend.b]\nservers=['a:2']\nprotocol='http2'\n[[route]]\npath='/b'\nbackend='b'", 3, 10, "`protocol` cannot be \"http2\"; write \"h2\""),
        ("[backend.b]\nservers=['a:2']\nhttp2={max_streams=0}\n[[route]]\npath='/b'\nbackend='b'", 3, 20, "`max_streams` is too small"),
        ("[backend.b]\nservers=['a:2']\nhttp2={ping=5}\n[[route]]\npath='/b'\nbackend='b'", 3, 13, "`ping` has no unit"),
        ("[backend.b]\nservers=['a:2']\nprotocol='HTTP/1.0'\n[[route]]\npath='/b'\nbackend='b'", 3, 10, "`protocol` cannot be \"HTTP/1.0\"; write \"http1.0\""),
        ("[backend.b]\nservers=['/run/a.sock']\ntls={}\n[[route]]\npath='/b'\nbackend='b'", 2, 10, "unix:/run/a.sock has no name that a certificate could be for; add `server_name`"),
        ("[backend.b]\nservers=['a:2', 'unix:/run/a.sock']\nhealth={port=81}\n[[route]]\npath='/b'\nbackend='b'", 2, 17, "unix:/run/a.sock has no ports, and `health` asks at 81; remove `port`"),
        ("[backend.b]\nservers=['unix:/run/a.sock', 'unix@/run/a.sock']\n[[route]]\npath='/b'\nbackend='b'", 2, 30, "warning: this server is listed already"),
        ("[backend.b]\nservers=['unix:a.sock']\n[[route]]\npath='/b'\nbackend='b'", 2, 10, "the path of a Unix socket is not absolute; write \"unix:PATH\""),
        ("[backend.b]\nservers=['[::1]:2']\nsource='192.0.2.1'\n[[route]]\npath='/b'\nbackend='b'", 2, 10, "[::1]:2 is reached by IPv6, and `source` has addresses of IPv4 alone; add an address"),
        ("[backend.b]\nservers=['/run/a.sock']\nsource='eth1'\n[[route]]\npath='/b'\nbackend='b'", 2, 10, "unix:/run/a.sock come from no address or interface; remove `source`"),
        ("[backend.b]\nservers=['a:2']\nsource='192.0.2.1:0'\n[[route]]\npath='/b'\nbackend='b'", 3, 8, "write \"192.0.2.1\": the system chooses the port"),
        ("[backend.b]\nservers=['a:2']\nsource=['192.0.2.1', 'eth1']\n[[route]]\npath='/b'\nbackend='b'", 3, 22, "`source`: \"eth1\" is no address; write addresses"),
        ("[backend.b]\nservers=['a:2']\nsource=['192.0.2.1', '192.0.2.1']\n[[route]]\npath='/b'\nbackend='b'", 3, 22, "warning: `source` has 192.0.2.1 twice; remove one"),
        ("[backend.b]\nservers=['a:2']\nsource=[]\n[[route]]\npath='/b'\nbackend='b'", 3, 8, "`source` has no address, or too many; use 1 to 64"),
        ("[backend.b]\nservers=['a:2']\nsource='::'\n[[route]]\npath='/b'\nbackend='b'", 3, 8, "no connection comes from ::; remove `source`"),
        ("[backend.b]\nservers=['a:2']\nprotocol='h2'\nsend_proxy_protocol='v2'\n[[route]]\npath='/b'\nbackend='b'", 4, 1, "connections of HTTP/2 are shared by many"),
        ("[backend.b]\nservers=['a:2']\nprotocol='auto'\nreuse='never'\n[[route]]\npath='/b'\nbackend='b'", 4, 1, "warning: connections of HTTP/2 carry many requests"),
        ("[listener.b]\nbind='[::]:1'\nhttp2={enabled='no'}", 3, 16, "`enabled`: expected a boolean"),
        ("[listener.b]\nbind='[::]:1'\nhttp2={max_concurrent_streams=0}", 3, 31, "`max_concurrent_streams` is too small"),
        ("[listener.b]\nbind='[::]:1'\nhttp2={initial_window='1KiB'}", 3, 23, "`initial_window` is too small"),
        ("[listener.b]\nbind='[::]:1'\nhttp2={initial_window='1MiB',window_max='512KiB'}", 3, 41, "`window_max` is below `initial_window`"),
        ("[listener.b.http2]\nflood={ping=1}\n[listener.b]\nbind='[::]:1'", 2, 8, "unknown key `ping` in `flood`; did you mean `pings`?"),
        ("[listener.b]\nbind='[::]:1'\n[listener.b.http2]\nflood={resets=0}", 4, 15, "`resets` is too small"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn where_traces_go_is_checked() {
    let pairs = |count: usize| (0..count).map(|index| format!("k{index}='v'")).collect::<Vec<_>>().join(",");
    let with = |line: &str| format!("[tracing]\nendpoint='http://[::1]:4318'\n{line}");
    expect_below_good(&[
        ("[tracing]\nsample=1", 1, 2, "[tracing] has no `endpoint`; write the URL of a collector"),
        ("[tracing]\nendpoint='localhost:4318'", 2, 10, "is not a URL of http or https"),
        ("[tracing]\nendpoint='grpc://a:4317'", 2, 10, "is not a URL of http or https"),
        ("[tracing]\nendpoint='http://me:pw@a/'", 2, 10, "credentials belong into the file that `headers` names"),
        ("[tracing]\nendpoint='http://a/v1/traces?x=1'", 2, 10, "has more in it than host, port and path"),
        ("[tracing]\nendpoint='http://a:99999'", 2, 10, "\"99999\" is not a port"),
        ("[tracing]\nendpoint='http://:4318'", 2, 10, "has no host"),
        ("[tracing]\nendpoint='https://'", 2, 10, "has no host"),
        ("[[tracing]]\nendpoint='http://a'", 1, 3, "there can be only one [tracing]"),
        (&with("ca='ca.pem'"), 3, 1, "`ca` has no effect with http"),
        (&with("headers=''"), 3, 9, "`headers` is empty"),
        (&with("sample=1.5"), 3, 8, "`sample` is not between 0 and 1"),
        (&with("sample=-0.1"), 3, 8, "`sample` is not between 0 and 1"),
        (&with("sample=0.0000001"), 3, 8, "the least is 0.000001"),
        (&with("sample='1%'"), 3, 8, "`sample`: expected a number such as 0.01, found a string"),
        (&with("trust='always'"), 3, 7, "use \"parent\" or \"never\""),
        (&with("spans_per_second=0"), 3, 18, "`spans_per_second` is too small"),
        (&with("service_name=''"), 3, 14, "`service_name` cannot be \"\""),
        (&with("service_name=\"a\\u0000b\""), 3, 14, "`service_name` cannot be \"a\\u{0}b\"; write 1 to 256 bytes without control characters"),
        (&with(&format!("service_name='{}'", "a".repeat(257))), 3, 14, "`service_name` cannot be"),
        (&with(&format!("attributes={{{}}}", pairs(33))), 3, 1, "`attributes` has too many entries"),
        (&with("attributes=['a']"), 3, 12, "`attributes`: expected a table such as"),
        (&with("attributes={a=1}"), 3, 15, "`attributes`: expected a string"),
        (&with("attributes={'service.name'='a'}"), 3, 13, "`service.name` has a key of its own"),
        (&with("timeout='5m'"), 3, 9, "`timeout` is too large"),
        (&with("sampel=1"), 3, 1, "did you mean `sample`?"),
        ("[listener.b]\nbind='[::]:1'\nrequest_headers={Traceparent='x'}", 3, 18, "has a meaning of its own"),
    ]);
    expect_nothing_below_good(&[
        &with(&format!("service_name='{}'", "a".repeat(256))),
        &with(&format!("attributes={{{}}}", pairs(32))),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn wrong_names_get_the_one_that_was_meant() {
    expect_below_good(&[
        ("[proces]", 1, 2, "unknown section `proces`; did you mean `process`?"),
        ("[backends.x]\nservers=['a:1']", 1, 2, "did you mean `backend`?"),
        ("[[routes]]\nbackend='app'", 1, 3, "did you mean `route`?"),
        ("[zzz]", 1, 2, "use `process`, `admin`, `log`"),
        ("[process]\nworker = 1", 2, 1, "unknown key `worker` in [process]; did you mean `workers`?"),
        ("[log]\nlevel = 'warning'", 2, 9, "`level` cannot be \"warning\"; did you mean \"warn\"?"),
        ("[log]\nlevel = 'x'", 2, 9, "use \"error\", \"warn\", \"info\" or \"debug\""),
        ("[[route]]\npath='/b'\nbackend='ap'", 3, 9, "no backend named \"ap\"; did you mean \"app\"?"),
        ("[[route]]\npath='/b'\nbackend='x'", 3, 9, "use \"app\", or add a section [backend.NAME]"),
        ("[[route]]\nlistener='wep'\nbackend='app'", 2, 10, "no listener named \"wep\"; did you mean \"web\"?"),
        ("[listener.b]\nbind='[::]:1'\ntls='x'", 3, 5, "no tls named \"x\"; add a section [tls.x]"),
        ("[[route]]\npath={exakt='/x'}\nbackend='app'\n[listener]", 2, 7, "unknown key `exakt` in `path`"),
        ("[backend.\"a b\"]\nservers=['a:1']\n[[route]]\npath='/b'\nbackend='a b'", 1, 10, "cannot be the name of a backend"),
        ("[backend.\"\"]\nservers=['a:1']\n[[route]]\npath='/b'\nbackend=''", 1, 10, "name of this backend is empty"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn wrong_types_are_named_with_the_right_form() {
    expect_below_good(&[
        ("[process]\nuser = 5", 2, 8, "`user`: expected a string, found an integer; write \"5\""),
        ("[process]\nmax_connections = '5'", 2, 19, "expected an integer, found a string; write 5 without quotes"),
        ("[process]\nworkers = '4'", 2, 11, "write 4 without quotes"),
        ("[process]\nworkers = 1.5", 2, 11, "expected \"auto\" or a number from 1 to 1024, found a float"),
        ("[process]\nuser = 1979-05-27", 2, 8, "expected a string, found a date"),
        ("[listener.b]\nbind='[::]:1'\naccept_proxy_protocol='true'", 3, 23, "write true without quotes"),
        ("[listener.b]\nbind=443", 2, 6, "write \"0.0.0.0:443\" for IPv4"),
        ("[listener.b]\nbind=['[::]:1', {}]", 2, 17, "`bind`: expected a string, found a table"),
        ("[listener.b]\nbind='[::]:1'\ntimeouts=5", 3, 10, "`timeouts`: expected a table, found an integer"),
        ("[backend.b]\nservers='a:1'\n[[route]]\npath='/b'\nbackend='b'", 2, 9, "write ['a:1']"),
        ("[backend.b]\nservers=[1]\n[[route]]\npath='/b'\nbackend='b'", 2, 10, "expected \"HOST:PORT\" or {"),
        ("[[route]]\nbackend='app'\npath=5", 3, 6, "expected a string, { exact"),
        ("[listener.b]\nbind='[::]:1'\ntls=true\n[tls.public]\ncertificates=['a.pem']", 3, 5, "write the name of a [tls.NAME] with the certificates: tls = \"NAME\""),
        ("[backend.b]\nservers=['a:2']\nhealth=true\n[[route]]\npath='/b'\nbackend='b'", 3, 8, "write health = { path = \"/\" }"),
        ("[backend.b]\nservers=['a:2']\nhealth=false\n[[route]]\npath='/b'\nbackend='b'", 3, 8, "expected a table, found a boolean; remove it"),
        ("[backend.b]\nservers=['a:2']\ntls=true\n[[route]]\npath='/b'\nbackend='b'", 3, 5, "write tls = {}, which verifies"),
        ("[log]\nlevel=[]", 2, 7, "expected a string, found an array"),
        ("[[process]]", 1, 3, "there can be only one [process]; write [process] in single brackets"),
        ("[[tls.a]]", 1, 7, "write [tls.a] in single brackets"),
        ("[tls]\ncertificates=[]", 2, 1, "below [tls.NAME]"),
    ]);
    expect(&[
        ("listener=1", 1, 1, "`listener` has no name; write [listener.NAME]"),
        ("[listener]\nbind='0.0.0.0:1'", 2, 1, "put the keys of a listener below [listener.NAME]"),
        ("[listener.a]\nbind='0.0.0.0:1'\n[route]\nrespond={}", 3, 2, "write [[route]] in double brackets"),
        ("route=[1]\n[listener.a]\nbind='0.0.0.0:1'", 1, 8, "[[route]]: expected a table, found an integer"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn wrong_units_and_ranges_are_refused() {
    let listener = |key: &str| format!("[listener.b]\nbind='[::]:1'\n{key}");
    expect_below_good(&[
        ("[process]\ndrain_timeout=5", 2, 15, "`drain_timeout` has no unit; write \"5s\" or \"5ms\""),
        ("[process]\ndrain_timeout='5'", 2, 15, "\"5\" is not a duration; write \"5s\" or \"5ms\""),
        ("[process]\ndrain_timeout='5 sec'", 2, 15, "write \"5s\""),
        ("[process]\ndrain_timeout='48h'", 2, 15, "`drain_timeout` is too large; use \"24h\" or less"),
        ("[process]\nworkers=0", 2, 9, "`workers` is too small; use 1 or more"),
        ("[process]\nworkers=1025", 2, 9, "use 1024 or less"),
        ("[process]\nworkers=99999999999999999999999999999999999999999999", 2, 9, "use 1024 or less"),
        ("[process]\nmax_connections=-1", 2, 17, "use 1 or more"),
        ("[process]\nconnections_per_source=0", 2, 24, "use 1 or more"),
        ("[process]\nmemory_limit='2gb'", 2, 14, "`memory_limit`: \"2gb\" is not a size; write \"2GiB\" for 1024s or \"2GB\" for 1000s"),
        ("[process]\nmemory_limit='16MiB'", 2, 14, "`memory_limit` is too small; use \"32MiB\" or more"),
        ("[process]\nmemory_limit='automatic'", 2, 14, "is not a size; use \"auto\""),
        ("[process]\nshare_address='true'", 2, 15, "write true without quotes"),
        (&listener("limits={body_rate_min=-5}"), 3, 23, "`body_rate_min` is too small; use 0 or more"),
        (&listener("timeouts={idle='0s'}"), 3, 16, "`idle` is too small; use \"1ms\" or more"),
        (&listener("timeouts={handshake='61m'}"), 3, 21, "use \"1h\" or less"),
        (&listener("limits={head_bytes='1MiB'}"), 3, 20, "`head_bytes` is too large; use \"64KiB\" or less"),
        (&listener("limits={head_bytes=10}"), 3, 20, "use \"1KiB\" or more"),
        (&listener("limits={head_bytes='16K'}"), 3, 20, "write \"16KiB\" for 1024s or \"16kB\" for 1000s"),
        (&listener("limits={headers=0}"), 3, 17, "use 1 or more"),
        (&listener("limits={body_rate_min='2GiB'}"), 3, 23, "use \"1GiB\" or less"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn addresses_that_clash_are_told_apart_from_those_that_do_not() {
    expect_below_good(&[
        ("[admin]\nbind='127.0.0.1:80'", 2, 6, "127.0.0.1:80 is covered by 0.0.0.0:80 of [listener.web] in line 2; choose"),
        ("[admin]\nbind=['127.0.0.1:81']", 2, 6, "write it without brackets"),
        ("[admin]", 1, 2, "[admin] has no `bind`"),
        ("[admin]\nbind='unix:'", 2, 6, "`bind` is empty"),
        ("[admin]\nbind='127.0.0.1:81'\ntoken_file=''", 3, 12, "`token_file` is empty"),
        ("[admin]\nbind='127.0.0.1:81'\ntoken='x'", 3, 1, "unknown key `token` in [admin]; did you mean `token_file`?"),
        ("[process]\nstate=''", 2, 7, "`state` is empty; write the path of a"),
        ("[process]\nupgrade_socket=7", 2, 16, "`upgrade_socket`: expected a string"),
        ("[process]\nsandbox='maybe'", 2, 9, "`sandbox` cannot be \"maybe\""),
        ("[process]\nsandbox_paths=['']", 2, 16, "`sandbox_paths` is empty"),
        ("[process]\nsandbox_ports=[0]", 2, 16, "`sandbox_ports`"),
        ("[process]\nsandbox_ports=['9-8']", 2, 16, "\"9-8\" is no range of ports"),
        ("[process]\nupgrade_socket=''", 2, 16, "`upgrade_socket` is empty"),
        ("[process]\nupgrade_socket='/0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789'", 2, 16, "has at most 96 bytes"),
        ("[process]\nstate='s'\nimmutable=true", 2, 7, "`state` has no use with immutable = true"),
        ("[process]\nwatch_config=1", 2, 14, "`watch_config`: expected a boolean, found an integer"),
        ("[backend.b]\nservers=[{address='a:1', drain='yes'}]\n[[route]]\nhost='b.example'\nbackend='b'", 2, 32, "`drain`: expected a boolean, found a string"),
        ("[listener.b]\nbind='0.0.0.0:80'", 2, 6, "0.0.0.0:80 is taken by [listener.web] in line 2; choose"),
        ("[listener.b]\nbind=['[::]:1','[::]:1']", 2, 16, "[::]:1 is taken by [listener.b] in line 8"),
        ("[listener.b]\nbind='10.0.0.1:80'", 2, 6, "warning: 10.0.0.1:80 is covered by 0.0.0.0:80"),
        ("[listener.b]\nbind=['[::1]:1','[::]:1']", 2, 7, "warning: [::1]:1 is covered by [::]:1 of [listener.b] in line 8; remove it"),
        ("[listener.b]\nbind=[]", 2, 6, "`bind` is empty"),
        ("[listener.b]", 1, 11, "[listener.b] has no `bind`"),
        ("[listener.b]\nbind='shop.example:80'", 2, 6, "\"shop.example\" is a name; write the address"),
        ("[listener.b]\nbind='0.0.0.0:65536'", 2, 6, "\"65536\" is not a port"),
    ]);
    for harmless in ["[listener.b]\nbind='[::]:80'", "[listener.b]\nbind=['127.0.0.1:0','127.0.0.1:0','0.0.0.0:0']", "[admin]\nbind='[::1]:80'"] {
        assert_eq!(all(&format!("{GOOD}{harmless}")), [""; 0], "{harmless}");
    }
    let found = all(&format!("{GOOD}[admin]\nbind='0.0.0.0:80'"));
    assert!(found.len() == 2 && found[0].contains("f:8:6: 0.0.0.0:80 is taken by [listener.web] in line 2"), "{found:#?}");
    assert!(found[1].contains("f:8:6: warning: the admin address is open to every machine"), "{found:#?}");
}

#[test]
#[rustfmt::skip] // one line per case
fn backends_are_checked_server_by_server() {
    let backend = |text: &str| format!("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\n{text}");
    expect_below_good(&[
        (&backend("servers=[]"), 5, 9, "`servers` is empty"),
        (&backend(""), 4, 10, "[backend.b] has no `servers`"),
        (&backend("servers=['http://10.0.0.1']"), 5, 10, "\"http://10.0.0.1\" is a URL; write \"10.0.0.1:80\""),
        (&backend("servers=['10.0.0.1']"), 5, 10, "has no port"),
        (&backend("servers=[{weight=2}]"), 5, 10, "this server has no `address`"),
        (&backend("servers=[{address='a:1',weight=0}]"), 5, 32, "`weight` is 0; use 1 to 256, or remove the server"),
        (&backend("servers=[{address='a:1',weight=257}]"), 5, 32, "use 256 or less"),
        (&backend("servers=[{address='a:1',wieght=2}]"), 5, 25, "did you mean `weight`?"),
        (&backend("servers=['a:1','A:1']"), 5, 16, "warning: this server is listed already, in line 11"),
        (&backend("servers=['a:1']\nbalance='roundrobin'"), 6, 9, "did you mean \"round-robin\"?"),
        (&backend("servers=['a:1']\nretries=11"), 6, 9, "use 10 or less"),
        (&backend("servers=['a:1']\nretries='2'"), 6, 9, "`retries`"),
        (&backend("servers=['a:1']\nretries={budget=20}"), 6, 17, "`budget`: \"20\" is not a share; write \"20%\""),
        (&backend("servers=['a:1']\nretries={budget=0.2}"), 6, 17, "expected a share such as \"20%\""),
        (&backend("servers=['a:1']\nretries={budget='120%'}"), 6, 17, "write \"100%\" or less"),
        (&backend("servers=['a:1']\nretries={min_per_second=-1}"), 6, 25, "use 0 or more"),
        (&backend("servers=['a:1']\nretries={on=[503]}"), 6, 10, "unknown key `on`"),
        (&backend("servers=['a:1']\nmax_idle='x'"), 6, 10, "expected an integer"),
        (&backend("servers=['a:1']\nmax_idle=2\nmin_idle=3"), 7, 10, "`min_idle` is above `max_idle`, which is 2"),
        (&backend("servers=['a:1']\nreuse='never'\nmin_idle=3"), 7, 10, "`min_idle` has no use with reuse = \"never\""),
        (&backend("servers=['a:1']\nmax_requests=0"), 6, 14, "`max_requests` is too small"),
        (&backend("servers=['a:1']\nqueue={limits=1}"), 6, 8, "did you mean `limit`?"),
        (&backend("servers=[{address='a:1',max_connections=0}]"), 5, 41, "`max_connections` is too small"),
        ("[backend.c]\nservers=['a:1']", 1, 10, "warning: no route leads to [backend.c]"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn balancing_is_checked_with_the_keys_that_go_with_it() {
    let backend = |text: &str| format!("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=['a:1']\n{text}");
    let hash = |text: &str| backend(&format!("balance='consistent-hash'\nhash={{{text}}}"));
    let sticky = |text: &str| backend(&format!("sticky={{{text}}}"));
    let many: Vec<String> = (0..6554).map(|server| format!("'10.0.{}.{}:1'", server / 256, server % 256)).collect();
    let many = format!("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nbalance='consistent-hash'\nservers=[{}]", many.join(","));
    expect_below_good(&[
        (&backend("ewma_decay='5s'"), 6, 1, "warning: `ewma_decay` has no effect without balance = \"p2c-ewma\""),
        (&backend("balance='p2c-ewma'\newma_decay='2h'"), 7, 12, "`ewma_decay` is too large; use \"1h\" or less"),
        (&backend("hash={key='path'}"), 6, 1, "warning: `hash` has no effect without balance = \"consistent-hash\""),
        (&hash("key='ip'"), 7, 11, "`key` cannot be \"ip\"; use \"client-ip\", \"path\", { header"),
        (&hash("key=1"), 7, 11, "`key`: expected \"client-ip\""),
        (&hash("key={}"), 7, 11, "`key` is one of `header` and `cookie`"),
        (&hash("key={header='a',cookie='b'}"), 7, 11, "`key` is one of `header` and `cookie`"),
        (&hash("key={heador='a'}"), 7, 12, "did you mean `header`?"),
        (&hash("key={header='a b'}"), 7, 19, "\"a b\" cannot be the name of a header"),
        (&hash("bound=1"), 7, 13, "`bound` is not between 1 and 100; use 1.25"),
        (&hash("bound=0.5"), 7, 13, "`bound` is not between 1 and 100"),
        (&hash("bound=nan"), 7, 13, "`bound` is not between 1 and 100"),
        (&hash("bound='1.25'"), 7, 13, "`bound`: expected a number such as 1.25, found a string"),
        (&many, 6, 1, "has no room for 6554 servers; use at most 6553"),
        (&backend("min_healthy=101"), 6, 13, "`min_healthy` is too large; use 100 or less"),
        (&backend("min_healthy='50%'"), 6, 13, "`min_healthy`: expected an integer"),
        (&sticky(""), 6, 1, "`sticky` has no `cookie`"),
        (&sticky("cookie='a;b'"), 6, 16, "\"a;b\" cannot be the name of a cookie"),
        (&sticky("cookie='a',key_file=''"), 6, 29, "`key_file` is empty"),
        (&sticky("cookie='a',ttl='9601h'"), 6, 24, "`ttl` is too large; use \"9600h\" or less"),
        (&sticky("cookie='a',secure='yes'"), 6, 27, "`secure`: expected \"auto\", true or false"),
        (&sticky("cookie='a',same_site='laxs'"), 6, 30, "did you mean \"lax\"?"),
        (&sticky("cookie='a',secure=false,same_site='none'"), 6, 43, "browsers drop a cookie with same_site = \"none\""),
        (&sticky("cookie='a',path='b'"), 6, 25, "\"b\" cannot be the path of a cookie"),
        (&sticky("cookie='a',path='/b;Domain=c'"), 6, 25, "cannot be the path of a cookie"),
        (&sticky("cookie='__Host-a',path='/b'"), 6, 1, "with a path other than \"/\""),
        (&sticky("cookie='__Secure-a',secure=false"), 6, 1, "browsers drop a cookie named \"__Secure-a\" that is not secure"),
        (&sticky("cookie='__Host-a'"), 6, 1, "warning: a cookie named \"__Host-a\" is dropped by clients that come without TLS"),
        ("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=[{address='a:1',backup=true}]", 5, 1, "warning: every server is a backup"),
        ("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=[{address='a:1',backup=1}]", 5, 32, "`backup`: expected a boolean"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn what_has_no_effect_yet_is_refused_and_checked_all_the_same() {
    let backend = |text: &str| format!("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=['a:1']\n{text}");
    let listener = |text: &str| format!("[listener.b]\nbind='[::]:1'\n{text}");
    let tls = |text: &str| format!("{}\n[tls.t]\ncertificates=['a']\n{text}", listener("tls='t'"));
    expect_below_good(&[
        (&listener("protocol='htpp'"), 3, 10, "did you mean \"http\"?"),
        (&listener("accept_proxy_protocol='yes'"), 3, 23, "expected a boolean"),
        (&tls("signer='v'"), 6, 8, "no signer named \"v\""),
        (&tls("ech='on'"), 6, 1, "`ech` is not supported yet; remove it, because the TLS library has"),
        (&tls("delegated_credentials=true"), 6, 1, "`delegated_credentials` is not supported yet"),
        (&backend("reuse='sfae'"), 6, 7, "did you mean \"safe\"?"),
        (&backend("slow_start='0s'"), 6, 12, "`slow_start` is too small"),
    ]);
    let text = format!("{GOOD}{}", backend("tls={server_name='a b',ca=''}\nqueue={limit=-1}\n[signer.s]\nservers=[1,'a']\nca='c'"));
    let whats = [
        "\"a b\" is not a host name",
        "`ca` is empty",
        "`limit` is too small",
        "[signer.s] has no `identity`",
        "no certificates use [signer.s]",
        "`servers`: expected a string or { address = \"HOST:PORT\" }, found an integer",
        "\"a\" has no port",
    ];
    let Err(problems) = parse(&source("f", &text)) else { panic!("many errors") };
    assert_eq!(problems.iter().map(|problem| problem.what.as_str()).collect::<Vec<_>>(), whats);
}

#[test]
#[rustfmt::skip] // one line per case
fn probes_and_ejections_are_checked() {
    let backend = |text: &str| format!("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=['a:1']\n{text}");
    let health = |text: &str| backend(&format!("health={{{text}}}"));
    let outlier = |text: &str| backend(&format!("outlier={{{text}}}"));
    expect_below_good(&[
        (&health("path='x'"), 6, 14, "the path \"x\" does not begin with `/`"),
        (&health("interval='2'"), 6, 18, "`interval`: \"2\" is not a duration"),
        (&health("interval='1ms'"), 6, 18, "`interval` is too small; use \"50ms\" or more"),
        (&health("rize=1"), 6, 9, "unknown key `rize` in `health`; did you mean `rise`?"),
        (&health("fall=0"), 6, 14, "`fall` is too small"),
        (&health("port=0"), 6, 14, "`port` is too small"),
        (&health("kind='htpp'"), 6, 14, "did you mean \"http\"?"),
        (&health("kind='http'"), 6, 1, "`health` has no `path`; add the path that is asked for"),
        (&health("kind='tls'"), 6, 14, "the backend has no `tls`, by which the servers could be asked; add `tls` to the backend, or use \"tcp\""),
        (&health("kind='tcp',path='/'"), 6, 20, "`path` has no effect on this kind of probe; remove it, or change `kind`"),
        (&health("status=200"), 6, 9, "`status` has no effect on this kind of probe"),
        (&health("path='/',service='x'"), 6, 18, "`service` has no effect on this kind of probe"),
        (&health("path='/',method='POST'"), 6, 25, "use \"GET\", \"HEAD\" or \"OPTIONS\""),
        (&health("path='/',status='2xx'"), 6, 25, "`status`: '2xx' is no status that can be expected"),
        (&health("path='/',status=[200,99]"), 6, 30, "`status`: 99 is no status that can be expected; use 200 to 599"),
        (&health("path='/',status='399-200'"), 6, 25, "is no status that can be expected"),
        (&health("path='/',status=[]"), 6, 25, "`status` is empty"),
        (&health("path='/',status=[true]"), 6, 26, "expected a status or a range"),
        (&health("path='/',method='HEAD',body='x'"), 6, 37, "there is no body in the answer to HEAD"),
        (&health("path='/',body=''"), 6, 23, "`body` is empty"),
        (&health("path='/',host='a b'"), 6, 23, "\"a b\" is not a host name"),
        (&health("interval='1s',timeout='2s'"), 6, 31, "warning: `timeout` is longer than `interval`"),
        (&health("start='maybe'"), 6, 15, "use \"up\" or \"down\""),
        (&outlier("ejected_percent_max=101"), 6, 30, "`ejected_percent_max` is too large"),
        (&outlier("ejection='1m',ejection_max='1s'"), 6, 37, "`ejection_max` is shorter than `ejection`"),
        (&outlier("consecutive_failures=0,success_rate_servers=0"), 6, 1, "warning: `outlier` has no effect"),
        (&outlier("intervall='1s'"), 6, 10, "did you mean `interval`?"),
        (&backend("circuit={requests=0}"), 6, 19, "`requests` is too small"),
        (&backend("circuit={request=1}"), 6, 10, "did you mean `requests`?"),
        (&backend("circuit={requests_min=2}"), 6, 23, "`requests_min` has no effect without `adaptive`"),
        (&backend("circuit={adaptive=true,requests=7,requests_min=8}"), 6, 48, "more than the 7 requests"),
        (&health(&format!("path='/',body='{}'", "b".repeat(1025))), 6, 23, "`body` is too long; use at most 1024 bytes"),
    ]);
    // Settings just within a bound, and one of two things that would each have an effect.
    expect_nothing_below_good(&[
        &health(&format!("path='/',body='{}'", "b".repeat(1024))),
        &health("interval='1s',timeout='1s'"),
        &outlier("consecutive_failures=0"),
        &outlier("success_rate_servers=0"),
        &outlier("ejection='1m',ejection_max='1m'"),
    ]);
    let good = backend("health={path='/up?deep=1',status=[204,'300-302'],body='ok',host='a.example:8080',port=9,start='down'}\noutlier={}\ncircuit={requests=5}");
    let (config, warnings) = parse(&source("f", &format!("{GOOD}{good}"))).expect("nothing is wrong");
    assert_eq!(warnings.len(), 0);
    let health = config.backends[1].health.as_ref().expect("a health check");
    let ProbeKind::Http(http) = &health.kind else { panic!("{health:?}") };
    assert_eq!((http.path.as_str(), &http.status), ("/up?deep=1", &vec![204..=204, 300..=302]));
    assert_eq!((health.port, health.starts_up, health.rise, health.fall), (Some(9), false, 2, 3));
    assert_eq!(config.backends[1].outlier.as_ref().map(|outlier| outlier.consecutive_failures), Some(5));
    let (config, _) = parse(&source("f", &format!("{GOOD}{}", backend("health={}")))).expect("nothing is wrong");
    assert_eq!(config.backends[1].health.as_ref().map(|health| &health.kind), Some(&ProbeKind::Tcp));
}

#[test]
#[rustfmt::skip] // one line per case
fn name_servers_are_checked() {
    expect_below_good(&[
        ("[process]\nresolver='dns.example'", 2, 10, "\"dns.example\" is not the address of a name server; write it in numbers"),
        ("[process]\nresolver=[]", 2, 10, "there is no name server"),
        ("[process]\nresolver={ttl_min='1ms'}", 2, 19, "`ttl_min` is too small"),
        ("[process]\nresolver={ttl_min='1m',ttl_max='1s'}", 2, 32, "`ttl_max` is shorter than `ttl_min`"),
        ("[process]\nresolver={server='10.0.0.2'}", 2, 11, "did you mean `servers`?"),
        ("[process]\nresolver=1", 2, 10, "expected a string"),
        ("[process]\nresolver='10.0.0.2:0'", 2, 10, "\"10.0.0.2:0\" is not the address of a name server"),
        ("[process]\nresolver='0.0.0.0'", 2, 10, "\"0.0.0.0\" is not the address of a name server"),
        (&format!("[process]\nresolver=[{}]", "'10.0.0.2',".repeat(9)), 2, 10, "these are too many name servers; write at most 8"),
        ("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=['srv+app']", 5, 10, "\"app\" is not the name of a service; write \"srv+_SERVICE._PROTO.NAME\""),
    ]);
    // Settings just within a bound.
    expect_nothing_below_good(&[
        &format!("[process]\nresolver=[{}]", "'10.0.0.2',".repeat(8)),
        "[process]\nresolver={ttl_min='1m',ttl_max='1m'}",
    ]);
    let good = format!("{GOOD}[process]\nresolver={{servers=['10.0.0.2','[::1]:5353'],ttl_min='1s'}}");
    let (config, warnings) = parse(&source("f", &good)).expect("nothing is wrong");
    assert_eq!(warnings.len(), 0);
    assert_eq!(config.process.resolver.servers[0].to_string(), "10.0.0.2:53");
    let service = GOOD.replace("a:1", "srv+_HTTP._tcp.App.internal");
    let (config, _) = parse(&source("f", &service)).expect("nothing is wrong");
    assert_eq!(config.backends[0].servers[0].address, ServerAddress::Srv { name: "_http._tcp.app.internal".into() });
}

#[test]
#[rustfmt::skip] // one line per case
fn relays_are_checked() {
    let relay = |protocol: &str, more: &str, route: &str| {
        format!("[listener.r]\nbind='[::]:1'\nprotocol='{protocol}'\n{more}\n[[route]]\nlistener='r'\n{route}")
    };
    let backend = |text: &str| format!("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=['a:1']\n{text}");
    let secure = "tls='t'\n[tls.t]\ncertificates=['a']";
    for fine in [
        relay("tcp", "accept_proxy_protocol=true\ntrusted_proxies=['10.0.0.0/8']", "backend='app'"),
        relay("tcp", secure, "host='*.a.example'\nbackend='app'"),
        relay("tcp", &format!("alpn=['imap','h2']\n{secure}"), "backend='app'"),
        relay("passthrough", "", "host='a.example'\nbackend='app'"),
        backend("send_proxy_protocol='v2'\nreuse='always'\nmin_idle=0"),
    ] {
        assert_eq!(all(&format!("{GOOD}{fine}")), Vec::<String>::new(), "{fine}");
    }
    expect_below_good(&[
        ("[listener.r]\nbind='[::]:1'\nprotocol='tcp'", 1, 11, "no route is for [listener.r]: its connections have nowhere to go; add a [[route]] with listener = \"r\""),
        (&relay("tcp", "", "backend='app'\npath='/x'"), 5, 1, "there are no paths; remove `path`"),
        (&relay("tcp", "", "respond={}"), 5, 1, "nothing is answered here"),
        (&relay("tcp", "", "host='a'\nbackend='app'"), 5, 1, "clients name no host; remove `host`, or add `tls`"),
        (&relay("tcp", "monitor_path='/x'", "backend='app'"), 4, 1, "`monitor_path` is about HTTP"),
        (&relay("passthrough", "limits={headers=3}", "backend='app'"), 4, 1, "which protocol = \"passthrough\" does not look into"),
        (&relay("passthrough", secure, "backend='app'"), 4, 5, "TLS ends at the servers"),
        (&relay("tcp", "alpn=['imap']", "backend='app'"), 4, 1, "`alpn` is for listeners with protocol = \"tcp\" and `tls`"),
        (&relay("tcp", &format!("alpn=['']\n{secure}"), "backend='app'"), 4, 7, "not the name of a protocol"),
        ("[listener.b]\nbind='[::]:1'\naccept_proxy_protocol=true", 3, 1, "warning: `accept_proxy_protocol` believes whoever"),
        ("[listener.b]\nbind='[::]:1'\nforwarded='append'", 3, 1, "warning: `forwarded` believes whoever connects"),
        ("[listener.b]\nbind='[::]:1'\ntrusted_proxies=['::1']", 3, 1, "warning: `trusted_proxies` has no effect"),
        ("[listener.b]\nbind='[::]:1'\nforwarded='append'\ntrusted_proxies=['10.0.0.1/8']", 4, 18, "write \"10.0.0.0/8\""),
        (&backend("send_proxy_protocol='v3'"), 6, 21, "did you mean \"v1\"?"),
        (&backend("send_proxy_protocol='v1'\nmin_idle=2"), 7, 10, "`min_idle` has no use with `send_proxy_protocol`"),
    ]);
}

#[test]
fn fastcgi_is_checked() {
    let backend = |text: &str| format!("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=['a:1']\n{text}");
    let spoken = |text: &str| backend(&format!("protocol='fastcgi'\nfastcgi={{root='/srv'{text}}}"));
    for fine in [
        spoken(""),
        spoken(",index='app.php',scripts='any'\n"),
        spoken(",split='.fcgi',scripts=['/a.fcgi','/x/*.fcgi']"),
        spoken(",keep=true,params={A='{request.source}'}}\nmax_idle=1\nmax_requests=9\nqueue={"),
    ] {
        assert_eq!(all(&format!("{GOOD}{fine}")), Vec::<String>::new(), "{fine}");
    }
    expect_below_good(&[
        (&backend("protocol='fastcgi'"), 4, 10, "[backend.b] has no `fastcgi`"),
        (
            &backend("protocol='fastcgi'\nfastcgi={root='/srv'}\nhealth={kind='grpc'}"),
            8,
            1,
            "`kind = \"grpc\"` asks in HTTP/2, which servers of FastCGI do not speak",
        ),
        (&backend("fastcgi={root='/srv'}"), 6, 1, "`fastcgi` has no effect: the servers are spoken to in HTTP"),
        (&spoken("}\ntls={"), 8, 1, "`tls` means nothing to servers of FastCGI"),
        (&spoken("}\nhttp2={"), 8, 1, "`http2` means nothing to servers of FastCGI"),
        (&spoken("}\nmax_idle=1\nqueue={"), 8, 1, "`max_idle` has no use: each connection carries one request"),
        (
            &spoken("}\nsend_proxy_protocol='v1'\nqueue={"),
            8,
            1,
            "`send_proxy_protocol` means nothing to servers of FastCGI",
        ),
        (&backend("protocol='fastcgi'\nfastcgi={}"), 7, 1, "`fastcgi` has no `root`"),
        (&backend("protocol='fastcgi'\nfastcgi={root='srv'}"), 7, 15, "\"srv\" is no absolute path"),
        (&backend("protocol='fastcgi'\nfastcgi={root='/srv/../x'}"), 7, 15, "is no absolute path"),
        (&spoken(",index='index.html'"), 7, 28, "\"/index.html\" is no path of a script"),
        (&spoken(",split='php'"), 7, 28, "\"php\" is not the end of a script's name"),
        (&spoken(",scripts='all'"), 7, 30, "`scripts`"),
        (&spoken(",scripts=[]"), 7, 30, "`scripts` names none"),
        (&spoken(",scripts=['/*/a.php']"), 7, 31, "has a `*` too many"),
        (&spoken(",scripts=['/**.php']"), 7, 31, "has a `*` too many"),
        (&spoken(",scripts=['a.php']"), 7, 31, "\"a.php\" is no path of a script"),
        (&spoken(",params={'A-B'='x'}"), 7, 30, "\"A-B\" cannot be the name of a parameter"),
        (&spoken(",params={CONTENT_LENGTH='1'}"), 7, 30, "CONTENT_LENGTH has a meaning of its own"),
        (&spoken(",params={A='{tls.x}'}"), 7, 32, "nothing is known as {tls.x}"),
        (&backend("protocol='fastcg'"), 6, 10, "did you mean \"fastcgi\"?"),
    ]);
}

#[test]
fn signers_are_checked() {
    let used = "[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=['c']\nsigner='v'";
    let whole = |text: &str| format!("[signer.v]\n{text}\n{used}");
    let signer = |text: &str| whole(&format!("servers=['a:1']\nidentity='e'\nca='c'\n{text}"));
    let servers = |text: &str| whole(&format!("servers={text}\nidentity='e'\nca='c'"));
    expect_below_good(&[
        (&signer("timeout='0s'"), 5, 9, "`timeout` is too small"),
        (&signer("timeout='2m'"), 5, 9, "`timeout` is too large"),
        (&signer("connections=0"), 5, 13, "`connections` is too small"),
        (&signer("connections=17"), 5, 13, "`connections` is too large"),
        (&signer("hedge='0ms'"), 5, 7, "`hedge` is too small"),
        (&signer("hedge='1s'"), 5, 7, "`hedge` is not shorter than `timeout`"),
        (&signer("hedge='soon'"), 5, 7, "`hedge`: \"soon\" is not a duration"),
        (&signer("hedge=false"), 5, 7, "`hedge`: expected \"off\" or a duration"),
        (&signer("resolve_interval='10ms'"), 5, 18, "`resolve_interval` is too small"),
        (&signer("resolve_interval='2h'"), 5, 18, "`resolve_interval` is too large"),
        (&signer("watch='1ms'"), 5, 7, "`watch` is too small"),
        (&signer("watch=true"), 5, 7, "`watch`: expected a duration"),
        (&signer("verify='yes'"), 5, 8, "`verify` cannot be \"yes\"; use \"rsa\", \"all\" or \"off\""),
        (&servers("[]"), 2, 9, "`servers` is empty"),
        (&servers("['a:1','a:1']"), 2, 16, "this server is listed already"),
        (&servers("[{address='a:1',server_name='a b'}]"), 2, 37, "\"a b\" is not a host name"),
        (&servers("[{server_name='a'}]"), 2, 10, "this server has no `address`"),
        (&whole("identity='e'\nca='c'"), 1, 9, "[signer.v] has no `servers`"),
        ("[signer.v]\nservers=['a:1']\nidentity='e'\nca='c'", 1, 9, "no certificates use [signer.v]"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn tls_to_servers_is_checked() {
    let tls = |text: &str| format!("[[route]]\npath='/b'\nbackend='b'\n[backend.b]\nservers=['a:1']\ntls={{{text}}}");
    expect_below_good(&[
        (&tls("ca=''"), 6, 9, "`ca` is empty"),
        (&tls("ca=[]"), 6, 9, "`ca` is empty; add the PEM file of the authority"),
        (&tls("ca=1"), 6, 9, "`ca`: expected a path or an array of paths"),
        (&tls("certificate=''"), 6, 18, "`certificate` is empty"),
        (&tls("server_name='a b'"), 6, 18, "\"a b\" is not a host name"),
        (&tls("policy='old'"), 6, 13, "use \"modern\" or \"intermediate\""),
        (&tls("sni='no'"), 6, 10, "`sni`: expected a boolean"),
        (&tls("resume=0"), 6, 13, "`resume`: expected a boolean"),
        (&tls("watch='10ms'"), 6, 12, "`watch` is too small"),
        (&tls("names=[]"), 6, 12, "`names` has 0 entries, and not 1 to 64"),
        (&tls("names=['a b']"), 6, 13, "write a host, or a URI such as"),
        (&tls("verify=false"), 6, 13, "warning: `verify = false`: whoever gets between here and the servers"),
        (&tls("cafile='a'"), 6, 6, "unknown key `cafile` in `tls`"),
    ]);
    let relay = "[listener.r]\nbind='[::]:1'\nprotocol='tcp'\n[[route]]\nlistener='r'\nbackend='b'\n[backend.b]\nservers=['a:1']\ntls={}";
    expect_below_good(&[(relay, 4, 1, "a relay hands bytes on as they are, and this backend has `tls`")]);
    let found = all(&format!("{GOOD}{}", tls("names=['a.example'],verify=false")));
    assert!(found.iter().any(|line| line.contains("`names` has no effect with `verify = false`")), "{found:#?}");
    let found = all(&format!("{GOOD}{}", tls("ca='a',verify=false")));
    assert!(found.iter().any(|line| line.contains("warning: `ca` has no effect with `verify = false`")), "{found:#?}");
    let source = source("f", &format!("{GOOD}{}", tls("ca=['a','/b'],server_name='App.Internal',certificate='c'")));
    let (config, _) = parse(&source).expect("nothing is wrong");
    let tls = config.backends[1].tls.as_ref().expect("it has it");
    let paths: Vec<_> = tls.ca.iter().chain(&tls.certificate).map(|trust| trust.path.display().to_string()).collect();
    assert_eq!(paths, ["/etc/propylon/a", "/b", "/etc/propylon/c"]);
    assert_eq!(tls.server_name.as_deref(), Some("app.internal"));
    assert_eq!((tls.sni, tls.verify, &tls.policy, tls.resume), (true, true, &TlsPolicy::Intermediate, true));
}

#[test]
#[rustfmt::skip] // one line per case
fn tls_profiles_are_checked() {
    let tls = |text: &str| format!("[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\n{text}");
    expect_below_good(&[
        (&tls(""), 4, 6, "[tls.t] has no `certificates`"),
        (&tls("certificates=[]"), 5, 14, "`certificates` is empty"),
        (&tls("certificates=['']"), 5, 15, "`certificates` is empty"),
        (&tls("certificates='a.pem'"), 5, 14, "write ['a.pem']"),
        (&tls("certificates=[\"a\\u0000\"]"), 5, 15, "has control characters in it"),
        (&tls("certificates=[{chain='a'}]"), 5, 15, "this certificate has no `key`"),
        (&tls("certificates=['a','a']"), 5, 19, "warning: this certificate is listed already"),
        (&tls("certificates=['a']\npolicy='old'"), 6, 8, "use \"modern\" or \"intermediate\""),
        (&tls("certificates=['a']\nprefer=[]"), 6, 8, "`prefer` is empty"),
        (&tls("certificates=['a']\nprefer=['rsa','rsa']"), 6, 15, "names this key type twice"),
        (&tls("certificates=['a']\nprefer=['edcsa']"), 6, 9, "did you mean \"ecdsa\"?"),
        (&tls("certificates=[{path='a',key='b'}]"), 5, 25, "`key` and `path` cannot stand together"),
        (&tls("certificates=['a']\nwatch='10ms'"), 6, 7, "`watch` is too small"),
        (&tls("certificates=['a']\npolicy={versions=['1.1']}"), 6, 19, "TLS 1.1 is broken (RFC 8996)"),
        (&tls("certificates=['a']\npolicy={versions=['1.4']}"), 6, 19, "use \"1.2\" or \"1.3\""),
        (&tls("certificates=['a']\npolicy={suites=[]}"), 6, 16, "`suites` is empty"),
        (&tls("certificates=['a']\npolicy={sets=[]}"), 6, 9, "unknown key `sets`"),
        (
            &tls("certificates=['a']\npolicy={suites=['TLS_RSA_WITH_AES_128_GCM_SHA256']}"),
            6,
            17,
            "TLS_RSA_WITH_AES_128_GCM_SHA256 has no forward secrecy; Propylon does not offer it; remove it",
        ),
        (
            &tls("certificates=['a']\npolicy={suites=['TLS_AES_128_GCM_SHA265']}"),
            6,
            17,
            "did you mean \"TLS_AES_128_GCM_SHA256\"?",
        ),
        (
            &tls("certificates=['a']\npolicy={versions=['1.3'],suites=['ECDHE-RSA-AES128-GCM-SHA256']}"),
            6,
            1,
            "`suites` has none for TLS 1.3",
        ),
        (&tls("certificates=['a']\npolicy={groups=['x25591']}"), 6, 17, "did you mean \"x25519\"?"),
        (&tls("certificates=['a']\npolicy={groups=['secp521r1']}"), 6, 17, "not in the TLS library"),
        (&tls("certificates=['a']\npolicy={groups=['brainpoolP256r1']}"), 6, 17, "brainpoolP256r1 is not one of the groups of TLS 1.3"),
        (&tls("certificates=['a']\npolicy={groups=['secp256k1']}"), 6, 17, "secp256k1 is not one of the groups of TLS 1.3"),
        (&tls("certificates=['a']\npolicy={groups=['sect233k1']}"), 6, 17, "sect233k1 is not one of the groups of TLS 1.3"),
        (&tls("certificates=['a']\npolicy={groups=['ffdhe2048']}"), 6, 17, "ffdhe2048 is Diffie-Hellman over a finite field"),
        (&tls("certificates=['a']\npolicy={groups=['X25519MLKEM768']}"), 6, 1, "none for TLS 1.2"),
        (&tls("certificates=['a']\npolicy={groups=['x25519','X25519']}"), 6, 26, "names this one twice"),
        (&tls("certificates=['a']\ntickets=9"), 6, 9, "`tickets` is too large"),
        (&tls("certificates=['a']\nsession_ids=-1"), 6, 13, "`session_ids` is too small"),
        (&tls("certificates=['a']\nticket_keys=''"), 6, 13, "`ticket_keys` is empty"),
        (&tls("certificates=['a']\nticket_keys=1"), 6, 13, "a path or {"),
        (&tls("certificates=['a']\nticket_keys={rotate='6h'}"), 6, 13, "`ticket_keys` has no `file`"),
        (&tls("certificates=['a']\nticket_keys={file='k',rotate='73h'}"), 6, 30, "use \"72h\" or less"),
        (&tls("certificates=['a']\nticket_keys={file='k',rotates='1h'}"), 6, 23, "did you mean `rotate`?"),
        (&tls("certificates=['a']\nearly_data='safe'"), 6, 1, "`early_data` is not supported yet"),
        (&tls("certificates=['a']\nearly_data='yes'"), 6, 12, "use \"off\" or \"safe\""),
        ("[tls.u]\ncertificates=['a']", 1, 6, "warning: no listener uses [tls.u]"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn routes_are_checked() {
    let route = |text: &str| format!("[[route]]\npath='/b'\n{text}");
    expect_below_good(&[
        ("[[route]]\npath='^/api.*'\nrespond={}", 2, 6, "looks like a pattern; write the path alone, or its beginning"),
        ("[[route]]\npath='^/api(/v1)?$'\nrespond={}", 2, 6, "or { regex = '^/api(/v1)?$' }"),
        ("[[route]]\npath='~* ^/api'\nrespond={}", 2, 6, "or { regex = '^/api' }"),
        ("[[route]]\npath='/user/{id}'\nrespond={}", 2, 6, "warning: the path \"/user/{id}\" has a `{` in it, which stands for itself"),
        ("[[route]]\npath='/a'\nstrip_prefix='/a'\nrespond={}", 3, 1, "unknown key `strip_prefix` in this route; write request = { path = { strip = "),
        ("[[route]]\npath='/a'\nrespond=403", 3, 9, "write respond = { status = 403"),
        ("[[route]]\nhost='${DOMAIN}'\nrespond={}", 2, 6, "write ${env:DOMAIN}"),
        ("[backend.x]\nservers=['{$APP}']\n[[route]]\npath='/x'\nbackend='x'", 2, 10, "write ${env:APP}"),
        ("[backend.x]\nservers=['https://a.test']\n[[route]]\npath='/x'\nbackend='x'", 2, 10, "and `tls = {}` in the backend"),
        ("[[route]]\npath='/b'", 1, 1, "this route leads nowhere; give it exactly one of"),
        (&route("backend='app'\nrespond={}"), 4, 1, "both `backend` and `respond`"),
        (&route("respond={status=199}"), 3, 17, "use 200 or more"),
        (&route("respond={status=204,body='x'}"), 3, 26, "a response with status 204 has no body"),
        (&route("respond={content_type=\"a/b\\r\\nX: y\"}"), 3, 23, "is not a content type"),
        ("[[route]]\nhost='münchen.example'\nbackend='app'", 2, 6, "write the A-label"),
        ("[[route]]\nhost='a.*'\nbackend='app'", 2, 6, "`*` stands for whole labels at the beginning only"),
        ("[[route]]\npath='api'\nbackend='app'", 2, 6, "does not begin with `/`; write \"/api\""),
        ("[[route]]\npath='/a?b'\nbackend='app'", 2, 6, "has a `?` in it"),
        ("[[route]]\npath={exact='/a/../b'}\nbackend='app'", 2, 13, "warning: the path \"/a/../b\" has `.` or `..` in it"),
        ("[[route]]\npath={}\nbackend='app'", 2, 6, "`path` is one of `exact` and `regex`"),
        ("[[route]]\nbackend='app'", 1, 1, "the same requests as the one in line 5"),
        ("[[route]]\npath='/'\nbackend='app'", 1, 1, "the same requests as the one in line 5"),
        ("[listener.b]\nbind='[::]:1'\nresponse_headers={}", 3, 1, "unknown key `response_headers` in [listener.b]; use `bind`"),
        ("[listener.b]\nbind='[::]:1'\ntls_min_version='1.2'", 3, 1, "in [listener.b]; use `bind`"),
        ("[listener.b]\nbind='[::]:1'\nreqest_header={}", 3, 1, "did you mean `request_headers`?"),
        ("[listener.b]\nbind='[::]:1'\nrequestheaders={}", 3, 1, "did you mean `request_headers`?"),
        ("[[route]]\npath='/a//b'\nbackend='app'", 2, 6, "warning: the path \"/a//b\" has `//` in it"),
        ("[listener.b]\nbind='[::]:1'\nmonitor_path='up'", 3, 14, "does not begin with `/`"),
        ("[listener.b]\nbind='[::]:1'\nmonitor_path='/a/./up'", 3, 14, "resolved before paths are compared"),
        ("[listener.b]\nbind='[::]:1'\nmonitor_path='/%7Bup'", 3, 14, "has an escape in it"),
        ("[listener.b]\nbind='[::]:1'\npaths={allow=['%25']}", 3, 15, "\"%25\" in a path is not refused, or cannot be"),
        (
            "[listener.b]\nbind='[::]:1'\nmonitor_path='/up'\n[[route]]\npath={exact='/up'}\nbackend='app'",
            4,
            1,
            "warning: requests for this path are answered by `monitor_path` of [listener.b]",
        ),
        (
            "[listener.b]\nbind='[::]:1'\nmonitor_path='/u@p'\n[[route]]\npath={exact='/u%40p'}\nbackend='app'",
            4,
            1,
            "warning: requests for this path are answered by `monitor_path` of [listener.b]",
        ),
    ]);
    for harmless in [
        "[[route]]\nlistener='web'\nbackend='app'",
        "[[route]]\npath={exact='/'}\nbackend='app'",
        "[[route]]\nhost='a'\nbackend='app'\n[[route]]\nhost='*.a'\nbackend='app'",
        "[[route]]\npath='/api'\nbackend='app'\n[[route]]\npath='/api/'\nbackend='app'",
    ] {
        assert_eq!(all(&format!("{GOOD}{harmless}")), [""; 0], "{harmless}");
    }
}

#[test]
#[rustfmt::skip] // one line per case
fn redirects_are_checked() {
    let route = |text: &str| format!("[[route]]\npath='/b'\n{text}");
    expect_below_good(&[
        (&route("redirect={}"), 3, 1, "leads to where the request came from; give it at least one"),
        (&route("redirect={scheme='https',status=200}"), 3, 33, "200 is not the status of a redirect; use 301"),
        (&route("redirect={scheme='htps'}"), 3, 18, "did you mean \"https\"?"),
        (&route("redirect={host='*.a'}"), 3, 16, "a redirect leads to one host"),
        (&route("redirect={host='a:80'}"), 3, 16, "has a port in it"),
        (&route("redirect={port=0}"), 3, 16, "use 1 or more"),
        (&route("redirect={path=\"/a\\r\\nX: y\"}"), 3, 16, "has control characters in it"),
        (&route("redirect={scheme='http'}"), 1, 1, "warning: on [listener.web] this redirect leads to where"),
        (&route("redirect={path='/b'}"), 1, 1, "warning: on [listener.web] this redirect leads to where"),
        (&route("redirect={path='/b?x=1'}"), 1, 1, "warning: on [listener.web] this redirect leads to where"),
        (&route("redirect={path='/%62'}"), 1, 1, "warning: on [listener.web] this redirect leads to where"),
        ("[listener.b]\nbind='[::]:1'\nredirect_to_https='yes'", 3, 19, "expected a boolean or {"),
        ("[listener.b]\nbind='[::]:1'\nredirect_to_https={status=200}", 3, 27, "200 is not the status of a redirect"),
        (
            "[listener.b]\nbind='[::]:1'\nredirect_to_https=true\n[[route]]\nlistener='b'\nrespond={}",
            4,
            1,
            "warning: [listener.b] has `redirect_to_https`: no request gets to this route",
        ),
        (
            "[listener.b]\nbind='[::]:1'\n[[route]]\nlistener='b'\nredirect={scheme='https'}\n[[route]]\nhost='a'\nbackend='app'",
            6,
            1,
            "warning: on [listener.b] this route goes before the redirect to https in line 9: its requests are served in plaintext",
        ),
    ]);
    for harmless in [
        "[[route]]\nhost='a'\nredirect={scheme='https'}",
        "[[route]]\nhost='a'\nredirect={port=443}",
        "[listener.b]\nbind='[::]:1'\nredirect_to_https=true\n[[route]]\nhost='a'\nbackend='app'",
        "[listener.b]\nbind='[::]:1'\n[[route]]\nlistener='b'\nredirect={scheme='https'}\n[[route]]\nlistener='b'\nhost='a'\nbackend='app'",
    ] {
        assert_eq!(all(&format!("{GOOD}{harmless}")), [""; 0], "{harmless}");
    }
}

#[test]
fn two_spellings_of_one_path_are_one_route() {
    let pair = |first: &str, second: &str| {
        format!("[[route]]\npath={first}\nrespond={{status=403}}\n[[route]]\npath={second}\nbackend='app'")
    };
    let problems = |first: &str, second: &str| all(&format!("{GOOD}{}", pair(first, second)));
    for (first, second) in [
        ("'/x@'", "'/x%40'"),
        ("'/secret'", "'/%73ecret'"),
        ("'/a'", "'//a'"),
        ("'/a/'", "'/a/b/..'"),
        ("'/a/'", "'/a/.'"),
        ("'/a'", "'/./a'"),
        ("'/{id}'", "'/%7bid%7D'"),
        ("'/a/b'", "'/a%2Fb'"),
        ("'/a/b'", "'/a\\b'"),
        ("'/a;x'", "'/a%3bx'"),
        ("'/caf%C3%A9'", "'/caf%c3%a9'"),
        ("{exact='/x!'}", "{exact='/x%21'}"),
    ] {
        for (first, second) in [(first, second), (second, first)] {
            let found = problems(first, second);
            let same = |problem: &&String| problem.contains("the same requests as the one in line");
            assert_eq!(found.iter().filter(same).count(), 1, "{first} {second}: {found:#?}");
            let same = found.iter().find(same).expect("just counted");
            assert!(same.contains(" are one path to routes") && !same.contains("warning"), "{same}");
        }
    }
    for (first, second) in
        [("'/a'", "'/a/'"), ("'/a'", "{exact='/a'}"), ("'/a'", "'/A'"), ("'/%2540'", "'/@'"), ("'/a%20b'", "'/a+b'")]
    {
        assert_eq!(problems(first, second), [""; 0], "{first} {second}");
    }
    let other_hosts =
        format!("{GOOD}[[route]]\nhost='Shop.Example.'\nbackend='app'\n[[route]]\nhost='shop.example'\nrespond={{}}");
    assert!(
        all(&other_hosts).iter().any(|problem| problem.contains("the same requests")),
        "hosts are compared in one form"
    );
    let addresses =
        format!("{GOOD}[[route]]\nhost='[FD00:0::1]'\nbackend='app'\n[[route]]\nhost='[fd00::1]'\nrespond={{}}");
    assert!(all(&addresses).iter().any(|problem| problem.contains("the same requests")), "and so are addresses");
}

#[test]
#[rustfmt::skip] // one line per case
fn a_listener_that_no_route_reaches_is_a_warning_and_no_listener_at_all_an_error() {
    let route = "[listener.a]\nbind='0.0.0.0:1'\n[listener.b]\nbind='0.0.0.0:2'\n[[route]]\nlistener='a'\nrespond={}";
    expect(&[
        (route, 3, 11, "warning: no route is for [listener.b]: it answers every request with 404"),
        ("", 1, 1, "the file is empty; add a section [listener.NAME]"),
        ("\u{feff}\r\n \n", 1, 1, "the file is empty"),
        ("[process]\n", 1, 1, "there is no listener"),
        ("[listener]\n", 1, 1, "there is no listener"),
    ]);
    assert_eq!(all("[listner.a]\nbind='0.0.0.0:1'\n"), ["f:1:2: unknown section `listner`; did you mean `listener`?"]);
}

#[test]
#[rustfmt::skip] // one line per case
fn syntax_errors_are_explained() {
    expect_below_good(&[
        ("[process]\nuser = propylon", 2, 8, "`propylon` is not in quotes; write \"propylon\""),
        ("[process]\nuser =", 2, 7, "there is no value after `=`"),
        ("[process]\nuser: 'x'", 2, 5, "a key is followed by `:`; write `key = value`"),
        ("[process]\nuser", 2, 5, "there is a key without a value"),
        ("// hello", 1, 1, "not a comment in TOML; begin comments with `#`"),
        ("[process]\nuser = \"x", 2, 10, "the string does not end; add the closing `\"`"),
        ("[process]\nuser = \"\\q\"", 2, 10, "`\\` is followed by what it cannot escape"),
        ("[process]\nuser='a'\nuser='b'", 3, 1, "`user` is given twice; remove one of the two"),
        ("[listener.web]\nmonitor_path='/x'", 1, 11, "`web` is already there, further up; put the keys of both"),
        ("[process]\nuser = \"a\u{1}\"", 2, 10, "invalid basic string"),
        ("[admin]\nbind = 127.0.0.1:80", 2, 13, "this is not a number; put it in quotes"),
        ("[listener b]", 1, 10, "the name of a section has a space in it; write [listener.b]"),
        ("[listener b] # the second", 1, 10, "write [listener.b]"),
        ("[process x]", 1, 9, "unclosed table"),
        ("[process", 1, 9, "unclosed table; TOML expects `]` here"),
        ("[process]\ruser='x'", 1, 11, "carriage return must be followed by newline"),
    ]);
}

#[test]
fn after_a_syntax_error_the_rest_is_still_checked_as_far_as_it_can_be_relied_on() {
    let text = "[listener.web]\nbind = 0.0.0.0:80\nbogus = 1\n[backend.app]\nservers = []\n[[route]]\nbackend = 'gone'\n[log]\nlevel = 'loud'\n";
    // Nothing about `bogus`, which may belong elsewhere, nor about `gone`, which may have been lost.
    assert_eq!(
        all(text),
        [
            "f:2:11: this is not a number; put it in quotes if it is a text",
            "f:5:11: `servers` is empty; write at least one \"HOST:PORT\"",
            "f:9:9: `level` cannot be \"loud\"; use \"error\", \"warn\", \"info\" or \"debug\"",
        ]
    );
}

#[test]
fn after_a_syntax_error_the_next_section_counts_from_its_first_line_on() {
    assert_eq!(
        all("[backend.app]\nservers = a:1\nbogus = 1\n[proces]\n"),
        ["f:2:11: `a:1` is not in quotes; write \"a:1\"", "f:4:2: unknown section `proces`; did you mean `process`?",]
    );
}

#[test]
fn an_array_that_does_not_end_is_one_problem_and_not_many() {
    let text = "[tls.a]\ncertificates = ['a',\n# next\n[backend.x]\nservers = ['a:1']\n[[route]]\nbackend = 'x'\n";
    assert_eq!(all(text), ["f:5:9: there is a `=` inside an array; close the array with `]` before it"]);
}

#[test]
fn all_problems_come_at_once_and_in_order() {
    let text = "\
[process]
workers = \"many\"
[listener.web]
bind = \"localhost:80\"
tls = \"pubic\"
idle = \"5s\"
[tls.public]
certificates = []
[backend.app]
servers = [\"http://a\", { address = \"b:1\", weight = 0 }]
balance = \"leastconn\"
[[route]]
host = \"*\"
path = \"x\"
backend = \"apq\"
[[route]]
";
    let rendered = render(&parse(&source("p.toml", text)).expect_err("many errors"), text);
    assert_eq!(
        rendered,
        "\
p.toml:2:11: `workers` cannot be \"many\"; use \"auto\" or a number from 1 to 1024
  2 | workers = \"many\"
    |           ^^^^^^
p.toml:4:8: \"localhost:80\" is not an address to listen on; write \"127.0.0.1:80\"
  4 | bind = \"localhost:80\"
    |        ^^^^^^^^^^^^^^
p.toml:5:7: no tls named \"pubic\"; did you mean \"public\"?
  5 | tls = \"pubic\"
    |       ^^^^^^^
p.toml:6:1: unknown key `idle` in [listener.web]; use `bind`, `protocol`, `tls`, `alpn`, `prefer`, `monitor_path`, `accept_proxy_protocol`, `trusted_proxies`, `redirect_to_https`, `strict_host`, `half_close`, `forwarded` or another
  6 | idle = \"5s\"
    | ^^^^
p.toml:8:16: `certificates` is empty; write at least one PEM file of chain and key
  8 | certificates = []
    |                ^^
p.toml:10:12: \"http://a\" is a URL; write \"a:80\"
  10 | servers = [\"http://a\", { address = \"b:1\", weight = 0 }]
     |            ^^^^^^^^^^
p.toml:10:52: `weight` is 0; use 1 to 256, or remove the server
  10 | servers = [\"http://a\", { address = \"b:1\", weight = 0 }]
     |                                                    ^
p.toml:11:11: `balance` cannot be \"leastconn\"; did you mean \"least-connections\"?
  11 | balance = \"leastconn\"
     |           ^^^^^^^^^^^
p.toml:13:8: `host` \"*\" is not needed; leave `host` out: then the route is for any host
  13 | host = \"*\"
     |        ^^^
p.toml:14:8: the path \"x\" does not begin with `/`; write \"/x\"
  14 | path = \"x\"
     |        ^^^
p.toml:15:11: no backend named \"apq\"; did you mean \"app\"?
  15 | backend = \"apq\"
     |           ^^^^^
p.toml:16:1: this route leads nowhere; give it exactly one of `backend`, `redirect` and `respond`
  16 | [[route]]
     | ^^^^^^^^^
"
    );
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_shift_no_position() {
    let text = format!("\u{feff}{}[log]\r\nlevel = 'é'\r\n", GOOD.replace('\n', "\r\n"));
    let problems = parse(&source("f", &text)).expect_err("one error");
    assert_eq!(problems[0].at, Some(At { line: 8, column: 9, length: 3 }));
    assert!(render(&problems, &text).ends_with("  8 | level = 'é'\n    |         ^^^\n"));
    let warnings = parse(&source("f", &format!("\u{feff}{}", GOOD))).expect("a good file").1;
    assert_eq!(warnings, []);
}

/// A listener of a profile, one of plaintext, and a route.
fn with_identity(auth: &str, listener: &str, route: &str) -> String {
    format!(
        "[listener.web]\nbind='0.0.0.0:443'\ntls='t'\n{listener}\n[tls.t]\ncertificates=['a']\n{auth}\n\
         [listener.plain]\nbind='0.0.0.0:80'\n[[route]]\nrespond={{}}\n[[route]]\npath='/in'\nrespond={{}}\n{route}\n"
    )
}

#[test]
#[rustfmt::skip] // one line per case
fn what_is_asked_of_clients_must_make_sense() {
    let auth = |text: &str| with_identity(text, "", "");
    expect(&[
        (&auth("client_auth={}"), 7, 1, "`client_auth` has no `ca`; add the PEM file of the authorities"),
        (&auth("client_auth={ca=[]}"), 7, 17, "`ca` is empty"),
        (&auth("client_auth={ca=1}"), 7, 17, "`ca`: expected a path or an array of paths, found an integer"),
        (&auth("client_auth={ca='c',mode='require'}"), 7, 26, "did you mean \"required\"?"),
        (&auth("client_auth={ca='c',crl=[1]}"), 7, 26, "`crl`: expected a string"),
        (&auth("client_auth={ca='c',crl_scope='leaf'}"), 7, 21, "warning: `crl_scope` has no effect without `crl`"),
        (&auth("client_auth={ca='c',depth=7}"), 7, 27, "`depth` is too large; use 6 or less"),
        (&auth("client_auth={ca='c',forward='all'}"), 7, 29, "use \"leaf\", \"chain\" or \"nothing\""),
        (&auth("client_auth={ca='c',cas='d'}"), 7, 21, "unknown key `cas` in `client_auth`; did you mean `ca`?"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn a_route_for_clients_with_a_certificate_needs_a_listener_that_asks_for_one() {
    let required = "require_client_certificate=true";
    let asks = "client_auth={ca='c'}";
    expect(&[
        (&with_identity("", "", required), 12, 1, "on [listener.web] no client is asked for a certificate: this route answers 403 to all; add `client_auth`"),
        (&with_identity(asks, "", required), 12, 1, "warning: on [listener.plain] no client is asked"),
        (&with_identity(asks, "", &format!("{required}\nlistener='plain'")), 12, 1, "on [listener.plain] no client is asked"),
    ]);
    assert_eq!(all(&with_identity(asks, "", &format!("{required}\nlistener='web'"))), [""; 0]);
}

#[test]
#[rustfmt::skip] // one line per case
fn fields_for_servers_are_made_of_facts_that_can_be_known() {
    let header = |text: &str| with_identity("ja4=true", &format!("request_headers={{{text}}}"), "");
    expect(&[
        (&header("X='{tls.versio}'"), 4, 20, "nothing is known as {tls.versio}; did you mean \"{tls.version}\"?"),
        (&header("X='{zzz}'"), 4, 20, "use \"tls.version\", \"tls.suite\""),
        (&header("X='{tls.version'"), 4, 20, "a brace is without its other half"),
        (&header("X='tls.version}'"), 4, 20, "a brace is without its other half"),
        (&header("X=''"), 4, 20, "cannot be the value of a field"),
        (&header("X=1"), 4, 20, "expected a string"),
        (&header("X=\"a\\nb\""), 4, 20, "cannot be the value of a field"),
        (&header("X_Y='a'"), 4, 18, "\"X_Y\" cannot be the name of a field here; use up to 64 letters, digits and `-`"),
        (&header(&format!("{}='a'", "X".repeat(65))), 4, 18, "cannot be the name of a field here"),
        (&header("Host='a'"), 4, 18, "the field \"Host\" has a meaning of its own"),
        (&header("Client-cert='a'"), 4, 18, "has a meaning of its own"),
        (&header("X-Forwarded-Tls='a'"), 4, 18, "has a meaning of its own"),
        (&header("X='{client.subject}'"), 1, 11, "{client.subject} is never known on [listener.web]: no client is asked for a certificate"),
        (&with_identity("", "request_headers={X='{tls.ja4}'}", ""), 1, 11, "add ja4 = true to [tls.t]"),
    ]);
    assert_eq!(all(&header(&format!("{}='a'", "X".repeat(64)))), [""; 0]);
    let plain = "[listener.a]\nbind='0.0.0.0:80'\nrequest_headers={X='{tls.version}'}\n[[route]]\nrespond={}\n";
    expect(&[(plain, 1, 11, "{tls.version} is never known on [listener.a]: it speaks plaintext; add `tls`, or remove the field")]);
}

#[test]
#[rustfmt::skip] // one line per case
fn what_is_ordered_is_checked() {
    let used = |certificate: &str| {
        format!("[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=[{{acme='le',{certificate}}}]")
    };
    let account = |text: &str| format!("[acme.le]\nterms_agreed=true\n{text}\n{}", used("names=['a.test']"));
    let named = |text: &str| format!("[acme.le]\nterms_agreed=true\n{}", used(text));
    let cases = [
        (account("directory='http://ca.test/dir'"), 3, 11, "`directory`: \"http://ca.test/dir\" is not an https URL"),
        (account("directory='https:///dir'"), 3, 11, "is not an https URL"),
        (account("directory='https://ca.test/a b'"), 3, 11, "is not an https URL"),
        (account("contact='ops@a.test'"), 3, 9, "`contact`: \"ops@a.test\" is not a contact"),
        (account("contact=['mailto:a@b.test',5]"), 3, 28, "`contact`: expected a string"),
        (account("challenge='dns-01'"), 3, 11, "`challenge` cannot be \"dns-01\""),
        (account("retry='0s'"), 3, 7, "`retry` is too small"),
        (account("orders_per_hour=0"), 3, 17, "`orders_per_hour` is too small"),
        (account("renew_before=30"), 3, 14, "`renew_before` has no unit"),
        (account("external_account={key='k'}"), 3, 1, "`external_account` has no `id`"),
        (account("external_account={id='k',key=''}"), 3, 30, "`key` is empty"),
        (account("profile=''"), 3, 9, "`profile` cannot be \"\""),
        (account("email='a'"), 3, 1, "unknown key `email` in [acme.le]"),
        (account("[keys]\nisolate=true"), 1, 7, "does not cover keys of ordered certificates without keys.store"),
        (format!("[acme.le]\n{}", used("names=['a.test']")), 1, 7, "[acme.le] has no `terms_agreed`"),
        (named("names=['*.a.test']"), 7, 33, "\"*.a.test\": a wildcard takes the challenge dns-01"),
        (named("names=['10.0.0.1']"), 7, 33, "is not a name that an authority would certify"),
        (named("names=['localhost']"), 7, 33, "is not a name that an authority would certify"),
        (named("names=['a.test:443']"), 7, 33, "has a port in it"),
        (named("names=['a.test','A.test']"), 7, 42, "\"a.test\" is listed twice"),
        (named("names=[]"), 7, 32, "`names` has too few or too many entries"),
        (named("key_types=['rsa']"), 7, 15, "this certificate has no `names`"),
        (named("names=['a.test'],key_types=['ed25519']"), 7, 54, "`key_types` cannot be \"ed25519\""),
        (named("names=['a.test'],key_types=[]"), 7, 53, "`key_types` is empty"),
        (named("names=['a.test'],path='x'"), 7, 43, "`path` and `acme` cannot stand together"),
        (used("names=['a.test']"), 5, 21, "no acme named \"le\"; add a section [acme.le]"),
        ("[acme.le]\nterms_agreed=true".to_string(), 1, 7, "no certificate is ordered from [acme.le]"),
    ];
    let cases: Vec<_> = cases.iter().map(|(text, line, column, part)| (text.as_str(), *line, *column, *part)).collect();
    expect_below_good(&cases);
    expect(&[(
        "[listener.b]\nbind='[::]:1'\ntls='t'\n[tls.t]\ncertificates=[{acme='le',names=['a.test']}]\n[acme.le]\n\
         terms_agreed=true\nchallenge='http-01'\n[[route]]\nrespond={status=200}",
        6,
        7,
        "[acme.le] has challenge = \"http-01\", and no listener speaks plaintext HTTP",
    )]);
}

#[test]
#[rustfmt::skip] // one line per case
fn where_requests_go_is_checked() {
    let route = |text: &str| {
        format!(
            "[listener.l]\nbind='0.0.0.0:80'\n[backend.a]\nservers=['a:1']\n[backend.b]\nservers=['b:1']\n[[route]]\npath='/b'\nbackend='b'\n\
             [[route]]\npath='/a'\nbackend='a'\n[[route]]\n{text}\n"
        )
    };
    let both = |more: &str| route(&format!("backend=[{{name='a'}},{{name='b'}}]\n{more}"));
    let cases = [
        (route("backend=5"), 14, 9, "`backend`: expected the name of a backend, or a list"),
        (route("backend='a'\nsticky={cookie='s'}"), 15, 1, "this route has one; remove it, or give `backend` a list"),
        (both("sticky={}"), 15, 8, "`sticky` of a route is one of `cookie` and `key`"),
        (both("sticky={cookie='s',key='path'}"), 15, 8, "`sticky` of a route is one of `cookie` and `key`"),
        (both("sticky={key='user'}"), 15, 13, "`key` cannot be \"user\""),
        (both("sticky={cookie='a b'}"), 15, 16, "cannot be the name of a cookie"),
        (both("fallback='b'"), 15, 10, "\"b\" is where this route leads anyway"),
        (both("fallback='z'"), 15, 10, "no backend named \"z\""),
        (both("timeouts={}"), 15, 1, "`timeouts` is empty"),
        (both("timeouts={request='1s',first_byte='2s'}"), 15, 35, "`first_byte` is longer than `request`"),
        (both("throttle={}"), 15, 1, "`throttle` slows nothing down; give it `download` or `upload`"),
        (both("throttle={after='1MB'}"), 15, 1, "`throttle` slows nothing down"),
        (both("throttle={download=1000}"), 15, 20, "`download` is too small"),
        (both("throttle={download='1KiB',key=[]}"), 15, 31, "`key` is empty"),
        (both("throttle={download='1KiB',key={cookie='a'},ipv4_prefix=24}"), 15, 44, "`ipv4_prefix` has no effect unless `key` is \"source\" or \"user\""),
        (both("throttle={download='1KiB',keys=64}"), 15, 27, "`keys` has no effect unless `key` tells requests apart"),
        (both("throttle={download='1KiB',key='user'}"), 13, 1, "`key` is the user, and this route does not ask"),
        (both("throttle={download='1KiB',key='ja4'}"), 13, 1, "fingerprints are not computed: its requests have one key for this throttle"),
        (both("grpc_web=true"), 13, 1, "`grpc_web` makes calls of gRPC, and [backend.a] does not speak HTTP/2"),
        (both("body_limit='1XB'"), 15, 12, "`body_limit`: \"1XB\" is not a size"),
        (both("priority='higher'"), 15, 10, "`priority` cannot be \"higher\""),
        (both("priority=1"), 15, 10, "`priority`: expected"),
        (both("priority='high'"), 13, 1, "`priority` has no effect: requests of this route never wait"),
        (route("respond={}\npriority='low'"), 15, 1, "`priority` is about a backend, and this route has none"),
        (both("buffer={}"), 15, 1, "`buffer`"),
        (both("buffer={request=true}"), 13, 1, "`buffer.request` goes to files, and [process] has no `temp_dir`"),
        (both("buffer={response=true}"), 13, 1, "or write `response = { disk = 0 }` for memory alone"),
        (both("buffer={request={memory=0,disk=0}}"), 15, 17, "`request` holds nothing"),
        (both("buffer={request={memory='64KiB',disk=0}}\nbody_limit='1MiB'"), 13, 1, "`buffer.request` holds less than `body_limit`"),
        (both("buffer={request=5}"), 15, 17, "`request`"),
        (route("respond={}\nbuffer={request=true}"), 15, 1, "`buffer` is about a backend"),
        (both("match={header={X-Forwarded-Proto='http'}}"), 13, 1, "this route can never match: x-forwarded-proto of clients goes to no server"),
        (both("response={set={X='{request.id}'}}"), 13, 1, "{request.id} is never known on this route's listeners; add request_id = true to one of them"),
        (both("mirror={}"), 15, 1, "`mirror` has no `backend`"),
        (both("mirror=[]"), 15, 8, "`mirror` is an empty list; name at least one backend"),
        (both("mirror=[{backend='m'},{backend='a'}]\n[backend.m]\nservers=['m:1']"), 15, 32, "\"a\" is where this route leads anyway"),
        (both("mirror={backend='a'}"), 15, 17, "\"a\" is where this route leads anyway"),
        (both("mirror={backend='m',percent=101}\n[backend.m]\nservers=['m:1']"), 15, 29, "`percent` is not between 0 and 100"),
        (both("mirror={backend='m'}\n[backend.m]\nservers=['m:1']\nprotocol='http1.0'"), 13, 1, "`mirror` sends its copies in HTTP/1.1 or HTTP/2"),
        (both("mirror={backend='m'}\n[backend.m]\nservers=['m:1']\nsend_proxy_protocol='v2'"), 13, 1, "`mirror` shares its connections"),
        (both("retries=11"), 15, 9, "`retries` is too large"),
        (both("retries={attempts=0,on=[503]}"), 15, 21, "`on` has no effect with attempts = 0"),
        (both("retries={on=[]}"), 15, 13, "`on` is empty"),
        (both("retries={on=['503']}"), 15, 14, "`on` cannot have \"503\" in it; write 503 without quotes"),
        (both("retries={on=['resets']}"), 15, 14, "`on` cannot have \"resets\" in it; use \"connect\""),
        (both("retries={on=[399]}"), 15, 14, "`on`: this is no fault and no status"),
        (route("respond={}\nretries=1"), 15, 1, "`retries` is about a backend, and this route has none"),
        (route("respond={}\nfallback='a'"), 15, 1, "`fallback` is about a backend"),
        (route("listener='r'\nbackend=[{name='a'},{name='b'}]\nsticky={key='client-ip'}\n[listener.r]\nbind='0.0.0.0:81'\nprotocol='tcp'"), 13, 1, "there are no requests to take steps with"),
        (both("timeouts={attempt='1s',first_byte='2s'}"), 15, 35, "`first_byte` is longer than `attempt`"),
    ];
    let cases: Vec<_> = cases.iter().map(|(text, line, column, part)| (text.as_str(), *line, *column, *part)).collect();
    expect(&cases);
}

#[test]
#[rustfmt::skip] // one line per case
fn entries_of_a_list_of_backends_are_checked() {
    let route = |text: &str| {
        format!(
            "[listener.l]\nbind='0.0.0.0:80'\n[backend.a]\nservers=['a:1']\n[backend.b]\nservers=['b:1']\n[[route]]\npath='/b'\nbackend='b'\n\
             [[route]]\npath='/a'\nbackend='a'\n[[route]]\n{text}\n"
        )
    };
    let cases = [
        (route("backend=[]"), 14, 9, "`backend` is an empty list"),
        (route("backend=['a']"), 14, 10, "expected a table"),
        (route("backend=[{weight=1}]"), 14, 10, "an entry of `backend` is one of `name` and `respond`; write name ="),
        (route("backend=[{name='a',respond=500}]"), 14, 10, "an entry of `backend` is one of `name` and `respond`"),
        (route("backend=[{name='a'},{respond=199}]"), 14, 30, "`respond` is too small; use 200 or more"),
        (route("backend=[{respond=500},{respond=503}]"), 14, 9, "`backend` is a list without a backend; name a backend"),
        (route("backend=[{name='a'},{name='a',request={set={X-A='1'}}},{name='a',request={set={X-A='1'}}}]"), 14, 56, "this backend is listed already"),
        (route("backend=[{name='a'},{name='a',request={set={X-A='1'}}}]\nsticky={cookie='c'}"), 14, 21, "this backend is listed already"),
        (route("backend=[{name='a'},{respond=500,request={set={X-A='1'}}}]"), 14, 34, "`request` of an entry is about a backend, and this one is an answer; remove it"),
        (route("backend=[{name='a',request={host='b'}}]"), 14, 29, "unknown key `host`"),
        (route("backend=[{name='a',request={set={Host='b'}}}]"), 14, 34, "the field \"Host\""),
        (route("backend=[{name='a',response={set={Access-Control-Max-Age='1'}}}]\ncors={origins=['*']}"), 13, 1, "`cors` writes \"Access-Control-Max-Age\", and `response` changes it"),
        (route("backend=[{name='a'},{respond=500},{respond=500}]"), 14, 35, "this answer is listed already"),
        (route("backend=[{name='c'}]"), 14, 16, "no backend named \"c\""),
        (route("backend=[{name='a',weight=-1}]"), 14, 27, "`weight` is too small"),
        (route("backend=[{name='a',weight=1000001}]"), 14, 27, "`weight` is too large"),
        (route("backend=[{name='a'},{name='a',weight=3}]"), 14, 21, "this backend is listed already"),
        (route("backend=[{name='a',weight=0}]"), 14, 9, "all weights are 0: every request is answered with 503"),
    ];
    let cases: Vec<_> = cases.iter().map(|(text, line, column, part)| (text.as_str(), *line, *column, *part)).collect();
    expect(&cases);
}

#[test]
#[rustfmt::skip] // one line per case
fn second_attempts_are_checked() {
    let route = |text: &str| {
        format!(
            "[listener.l]\nbind='0.0.0.0:80'\n[backend.a]\nservers=['a:1']\n[backend.b]\nservers=['b:1']\n[[route]]\npath='/b'\nbackend='b'\n\
             [[route]]\npath='/a'\nbackend='a'\n[[route]]\n{text}\n"
        )
    };
    let both = |more: &str| route(&format!("backend=[{{name='a'}},{{name='b'}}]\n{more}"));
    let cases = [
        (both("hedge={}"), 15, 1, "`hedge` has no `after`"),
        (both("hedge={after='0ms'}"), 15, 14, "`after` is too"),
        (both("hedge={after='2h'}"), 15, 14, "`after` is too large"),
        (both("hedge={after='p97'}"), 15, 14, "`after`: there is no percentile \"p97\""),
        (both("hedge={after='soon'}"), 15, 14, "`after`: \"soon\" is neither a duration nor a percentile"),
        (both("hedge={after=50}"), 15, 14, "`after`: expected a duration such as \"50ms\" or a percentile"),
        (both("hedge={after='50ms'}\nretries=0"), 13, 1, "`hedge` has no effect: a second attempt is one of the repeats"),
        (both("hedge={after='2s'}\ntimeouts={first_byte='2s'}"), 13, 1, "`hedge.after` is not shorter than `first_byte`"),
        (both("hedge={after='50ms'}"), 13, 1, "`hedge` has no effect: there is one server, and a second attempt"),
        (both("hedge={after='50ms'}\nfallback='p'\n[backend.p]\nservers=['p:1','p:2']\nprotocol='http1.0'"), 13, 1, "`hedge` asks twice in HTTP/1.1 or HTTP/2, and [backend.p] has another `protocol`"),
        (both("hedge={after='p75'}\nfallback='p'\n[backend.p]\nservers=['p:1','p:2']"), 13, 1, "`hedge` by p75 asks twice for 25% of the requests, which takes all of the `budget` of [backend.a]"),
        (route("respond={}\nhedge={after='1s'}"), 15, 1, "`hedge` is about a backend, and this route has none"),
    ];
    let cases: Vec<_> = cases.iter().map(|(text, line, column, part)| (text.as_str(), *line, *column, *part)).collect();
    expect(&cases);
}
