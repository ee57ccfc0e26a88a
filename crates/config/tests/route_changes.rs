//! Messages about changes that a route cannot make, or that cannot have an effect.

use std::path::PathBuf;

use propylon_config::*;

const GOOD: &str = "[listener.web]\nbind = '0.0.0.0:80'\n[backend.app]\nservers = ['a:1']\n";

/// Problems and warnings of a configuration with this route, as they are printed; line 5 is its first.
fn all(route: &str) -> Vec<String> {
    let source = Source { name: "f".into(), base: PathBuf::from("/"), text: format!("{GOOD}[[route]]\n{route}\n") };
    let problems = match parse(&source) {
        Ok((_, warnings)) => warnings,
        Err(problems) => problems,
    };
    problems.iter().map(Problem::to_string).collect()
}

#[test]
#[rustfmt::skip] // one line per case
fn changes_that_cannot_be_made_are_refused_with_a_cure() {
    for (route, place, part) in [
        ("request={}", "6:1", "warning: `request` changes nothing"),
        ("request={host='a',query={}}", "6:19", "warning: `query` changes nothing"),
        ("request={set={Host='x'}}", "6:15", "the field \"Host\" is written by rules of its own; write `host` beside it"),
        ("request={set={Content-Length='1'}}", "6:15", "it frames messages, or is for one connection"),
        ("request={remove=['X-Forwarded-For']}", "6:18", "see `forwarded` of the listener"),
        ("request={append={via='x'}}", "6:18", "see `via` of the backend"),
        ("request={set={X_A='1'}}", "6:15", "\"X_A\" cannot be the name of a field here"),
        ("request={remove=['X-*']}", "6:18", "\"X-*\" is not the name of a field"),
        ("request={set={X-A=''}}", "6:19", "name it in `remove`"),
        ("request={set={X-A='{client.up}'}}", "6:19", "did you mean \"{client.ip}\"?"),
        ("request={set={X-A='{client.ip'}}", "6:19", "a brace is without its other half"),
        ("request={set={X-A='1',x-a='2'}}", "6:23", "`set` has \"x-a\" twice"),
        ("request={set={X-A='1'},add={X-A='2'}}", "6:1", "the field \"X-A\" is changed in two ways; give it one of"),
        ("request={set={X-A='1'},remove=['x-a']}", "6:1", "is removed and written; `set` alone replaces all lines"),
        ("request={append={Authorization='x'}}", "6:18", "is no list, of which it could have more; use `set`"),
        ("response={append={Set-Cookie='x=1'}}", "6:19", "use `add`, for another line"),
        ("request={append={X-A='{upstream.server}'}}", "6:22", "use `set` or `add`"),
        ("request={query={set={a='{upstream.server}'}}}", "6:10", "leave it to a field"),
        ("request={host='a b'}", "6:15", "a b"),
        ("request={host='a:0'}", "6:15", "\"0\" is not a port"),
        ("request={host='{client.ip}'}", "6:15", "or \"{upstream.server}\" for the server's own"),
        ("request={path='/x'}", "6:15", "expected a table such as { strip = \"/PREFIX\" }"),
        ("request={path={}}", "6:15", "a path is changed in one way"),
        ("request={path={strip='/a',replace='/b'}}", "6:15", "a path is changed in one way"),
        ("request={path={strip='/'}}", "6:22", "`strip` takes nothing off"),
        ("request={path={strip='api'}}", "6:22", "write \"/api\""),
        ("request={path={replace='/a?b'}}", "6:24", "has a `?` in it"),
        ("request={path={replace='/a//b'}}", "6:24", "write one `/`"),
        ("request={path={strip='/a',to='/b'}}", "6:30", "`to` goes with `regex`"),
        ("request={path={regex='/a'}}", "6:22", "`regex` is without `to`"),
        ("request={path={regex='(',to='/b'}}", "6:22", "is not a pattern"),
        ("request={path={regex='/(a)',to='/$2'}}", "6:32", "the pattern has no group 2"),
        ("request={path={regex='/a',to='/b c'}}", "6:30", "\"/b%20c\""),
        ("request={path={regex='/a',to='/b#c'}}", "6:30", "write \"%23\""),
        ("path='/app'\nrequest={path={strip='/api'}}", "5:1", "no path of this route begins with \"/api\", which is to be stripped; strip \"/app\""),
        ("path={exact='/app'}\nrequest={path={replace_prefix='/api'}}", "5:1", "use `replace` or `regex`"),
        ("request={set={X-A='{client.subject}'}}", "5:1", "{client.subject} is never known on this route's listeners; add `client_auth`"),
        ("response={set={X-A='{tls.version}'}}", "5:1", "{tls.version} is never known on this route's listeners; add `tls`"),
        ("response={set={Connection='x'}}", "6:16", "is written by rules of its own"),
        ("response={cookies={secure=false,same_site='none'}}", "6:43", "browsers drop a cookie"),
        ("response={cookies={path='x'}}", "6:25", "cannot be the path of a cookie"),
        ("response={location=[{from='/'}]}", "6:21", "`location` has no `to`"),
        ("response={location=[{from='{request.path}',to='/'}]}", "6:27", "`from` is compared as it is"),
        ("response={location={from='/',to='/x'}}", "6:20", "expected an array"),
        ("security_headers='lax'", "6:18", "`security_headers` cannot be \"lax\"; use \"strict\""),
        ("name='a b'", "6:6", "\"a b\" cannot be the name of a route"),
        ("name=''", "6:6", "\"\" cannot be the name of a route"),
        ("response={sett={X-A='1'}}", "6:11", "unknown key `sett` in `response`; did you mean `set`?"),
    ] {
        let found = all(&format!("{route}\nbackend='app'"));
        assert!(found.len() == 1 && found[0].starts_with(&format!("f:{place}: ")) && found[0].contains(part), "{route}\n{found:#?}");
    }
}

#[test]
#[rustfmt::skip] // one line per case
fn changes_that_cannot_have_an_effect_are_refused_with_a_cure() {
    for (route, part) in [
        ("request={remove=['A']}\nrespond={}", "`request` changes what servers get, and this route has none"),
        ("response={cookies={secure=true}}\nrespond={}", "`cookies` changes what servers set"),
        ("response={set={X-A='{upstream.server}'}}\nrespond={}", "{upstream.server} is never known here"),
        ("response={location=[{from='/',to='/x'}]}\nrespond={}", "`location` changes where servers' redirects lead"),
        ("path={exact='/a'}\nredirect={path={replace_prefix='/b'}}", "`replace_prefix` is for the prefix that a route matches"),
        ("path='/a'\nredirect={path={replace='/a'}}", "leads to where the request came from"),
        ("response={remove=['Access-Control-Allow-Origin']}\ncors={origins=['https://a']}\nbackend='app'", "`cors` writes \"Access-Control-Allow-Origin\", and `response` changes it"),
        ("response={set={ETag='x'}}\ncompress=true\nbackend='app'", "`compress` makes weak tags of servers' tags"),
        ("redirect={path=['/a']}", "expected a string, or a table such as"),
    ] {
        let found = all(&format!("{route}\n[[route]]\nhost='b'\nbackend='app'"));
        assert!(found.len() == 1 && found[0].contains(part), "{route}\n{found:#?}");
    }
    let of = |text: &str| {
        let source = Source { name: "f".into(), base: PathBuf::from("/"), text: text.into() };
        parse(&source).err().unwrap_or_default().iter().map(Problem::to_string).collect::<Vec<String>>()
    };
    let service = of("[listener.web]\nbind='[::]:1'\n[backend.app]\nservers=['srv+_http._tcp.app']\n[[route]]\nbackend='app'\nrequest={host='{upstream.server}'}\n");
    assert!(service.len() == 1 && service[0].contains("is a service, and no host"), "{service:?}");
    let twice = of("[listener.web]\nbind='[::]:1'\nrequest_headers={X-Who='{client.ip}'}\n[backend.app]\nservers=['a:1']\n[[route]]\nbackend='app'\nrequest={remove=['x-who']}\n");
    assert!(twice.len() == 1 && twice[0].contains("[listener.web] writes the field \"X-Who\" to all requests"), "{twice:?}");
    let told = of("[listener.web]\nbind='127.0.0.1:1'\n[backend.app]\nservers=['a:1']\n[[route]]\nbackend='app'\nrequest={set={X-User='a'}}\nauth={basic={file='u'},user_to='x-user'}\n");
    assert!(told.len() == 1 && told[0].contains("`auth` tells servers in the field \"x-user\" who it is"), "{told:?}");
    let ids = of("[listener.web]\nbind='[::]:1'\nrequest_id={return=true}\n[[route]]\nrespond={}\nresponse={remove=['x-request-id']}\n");
    assert!(ids.len() == 1 && ids[0].contains("`request_id` of [listener.web] writes the request's ID"), "{ids:?}");
    let logged = of("[log]\nfields=['header.x-key']\n[listener.web]\nbind='[::1]:1'\n[backend.app]\nservers=['a:1']\n[[route]]\nbackend='app'\nauth={api_key={file='k',header='X-Key'}}\n");
    assert!(logged.len() == 1 && logged[0].contains("the access log has the field that this route's keys come in"), "{logged:?}");
    let copied = |servers: &str, change: &str| of(&format!("[listener.web]\nbind='127.0.0.1:1'\n[backend.app]\nservers=['a:1','a:2']\n[backend.two]\nservers=[{servers}]\n[[route]]\nbackend='app'\nmirror={{backend='two'}}\nrequest={{{change}}}\n"));
    for change in ["host='{upstream.server}'", "set={X-A='{upstream.server}'}"] {
        let several = copied("'b:1','b:2'", change);
        assert!(several.len() == 1 && several[0].contains("{upstream.server} is not known to a copy"), "{several:?}");
        assert_eq!(copied("'b:1'", change), [""; 0]);
    }
    let listener = of("[listener.web]\nbind='[::]:1'\nrequest_headers={X-Who='{request.path}'}\n[[route]]\nrespond={}\n");
    assert!(listener.len() == 1 && listener[0].contains("write the field to `request` of the routes"), "{listener:?}");
}

#[test]
fn common_changes_are_taken_as_they_are() {
    for route in [
        "request={set={X-Real-IP='{client.ip}',Authorization='Basic e30=',Accept-Encoding='identity'}}",
        "request={set={X-Forwarded-Prefix='/api'},path={strip='/api'}}",
        "path='/api'\nrequest={path={replace_prefix='/'}}",
        "path='/api'\nrequest={path={strip='/api/v1'}}",
        "request={add={Forwarded-By='a',X-A='{{\"a\": 1}}'},host='{upstream.server}'}",
        "request={host='[::1]:81',path={regex='^/(?P<a>x)$',to='/${a}/$0$$?b=$1'}}",
        "response={remove=['Server','Via','X_Powered.By'],set={Strict-Transport-Security='max-age=1'},append={Vary='Origin'}}",
        "response={add={Set-Cookie='a=b',Content-Security-Policy=\"default-src 'self'\"},set={Location='/x',Server='edge'}}",
        "response={cookies={domain='',same_site='unsaid'}}\nsecurity_headers='strict'",
    ] {
        assert_eq!(all(&format!("{route}\nbackend='app'")), [""; 0], "{route}");
    }
}
