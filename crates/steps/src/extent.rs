//! How far the steps of a route can reach at most, so that a request does not ask what its route cannot do.

use propylon_config::{Action, Errors, Route, Steps};

/// Reach of a route's steps, whatever a request is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Whether they wait for nothing, hold nothing until the request ends, and lead to one backend.
    pub is_prompt: bool,
    /// Whether a response's head may be changed, or lines be added to it.
    pub responses: bool,
    /// Whether a response's body may go on in another way than it comes. Trailers are another matter.
    pub bodies: bool,
}

impl Extent {
    /// `waits`: the route has a gate, or limits that are asked later or given back. `of_listeners`: something is done
    /// with all requests of a listener that it may be taken on.
    pub fn of(route: &Route, waits: bool, of_listeners: bool) -> Extent {
        // All of them, so that a step that comes to these is thought of here.
        let Steps {
            request: _,
            response,
            security_headers,
            errors,
            cors,
            auth,
            limit: _,
            compress,
            split,
            fallback,
            timeouts: _,
            retries: _,
            hedge: _,
            priority: _,
            buffer,
            body_limit: _,
            throttle,
            grpc_web,
            mirrors,
        } = &route.steps;
        let has_one = matches!(route.action, Action::Backend(_)) && split.is_none() && fallback.is_none();
        let reads = *grpc_web || buffer.request.is_some() || !mirrors.is_empty();
        let bodies = compress.is_some() || buffer.response.is_some() || throttle.is_some() || *grpc_web;
        let heads = !response.is_empty() || security_headers.is_some() || cors.is_some() || split.is_some();
        Extent {
            is_prompt: has_one && !waits && !reads && auth.is_none(),
            responses: of_listeners || heads || bodies || *errors != Errors::default(),
            bodies,
        }
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{Config, Source};

    use super::*;

    /// Extent of a route with these lines: p, r and b for what is true.
    fn extent(lines: &str) -> String {
        let text = format!(
            "[listener.web]\nbind = '[::]:1'\n[backend.app]\nservers = ['a:1']\n[backend.b]\nservers = ['b:1']\n[backend.h2]\nservers = ['c:1']\nprotocol = 'h2'\n[[route]]\n{lines}\n"
        );
        let source = Source { name: "a.toml".into(), base: "".into(), text };
        let config: Config = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        let Extent { is_prompt, responses, bodies } = Extent::of(&config.routes[0], false, false);
        let all = [(is_prompt, 'p'), (responses, 'r'), (bodies, 'b')];
        all.iter().filter(|(is, _)| *is).map(|(_, letter)| letter).collect()
    }

    #[test]
    fn a_step_that_waits_or_reads_is_not_prompt_and_one_that_changes_says_what() {
        for (lines, wanted) in [
            ("backend = 'app'", "p"),
            ("backend = 'app'\nrequest = { set = { X-A = 'a' }, path = { replace = '/b' } }", "p"),
            ("backend = 'app'\nlimit = [{ rate = '1/s' }]", "p"),
            ("backend = 'app'\nbody_limit = 1000", "p"),
            ("backend = 'app'\nresponse = { remove = ['X-A'] }", "pr"),
            ("backend = 'app'\nsecurity_headers = 'strict'", "pr"),
            ("backend = 'app'\ncors = { origins = ['https://a.test'] }", "pr"),
            ("backend = 'app'\nerror_format = 'json'", "pr"),
            ("backend = 'app'\ncompress = {}", "prb"),
            ("backend = 'app'\nthrottle = { download = '1MB' }", "prb"),
            ("backend = 'app'\nbuffer = { response = { disk = 0 } }", "prb"),
            ("backend = 'app'\nbuffer = { request = { disk = 0 } }", ""),
            ("backend = 'app'\nmirror = [{ backend = 'b', percent = 1 }]", ""),
            ("backend = 'h2'\ngrpc_web = true", "rb"),
            ("backend = 'app'\nfallback = 'b'", ""),
            ("backend = [{ name = 'app', weight = 1 }, { name = 'b', weight = 1 }]", "r"),
            ("backend = 'app'\nauth = { basic = { file = 'users' } }", ""),
            ("respond = { status = 200 }", ""),
        ] {
            assert_eq!(extent(lines), wanted, "{lines}");
        }
    }

    #[test]
    fn gates_and_listeners_count() {
        let text = "[listener.web]\nbind = '[::]:1'\n[backend.app]\nservers = ['a:1']\n[[route]]\nbackend = 'app'\n";
        let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        let config: Config = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        let route = &config.routes[0];
        assert!(!Extent::of(route, true, false).is_prompt && Extent::of(route, false, true).responses);
    }
}
