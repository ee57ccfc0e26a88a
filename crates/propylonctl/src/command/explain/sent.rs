//! Result of a route's changes: the request as servers get it, and the fields that its response gets.

use std::net::IpAddr;
use std::sync::Arc;

use propylon_config::{Action, Config, Fact, PathPattern, Redirect, RedirectPath};
use propylon_http::h1::{HOST_BYTES_MAX, Reject};
use propylon_steps::{Steps, conditions};
use serde_json::{Value, json};

use propylon_control::withheld;

/// A request as servers get it, and what its response gets, of a route that changes them.
pub struct Sent {
    /// Method and target that servers are asked for, or the target that a redirect leads to; none if that is the
    /// client's. An error if the route makes one of it that is refused.
    target: Result<Option<String>, Reject>,
    host: Option<String>,
    /// Lines, and names of fields that do not go on.
    request: (Vec<String>, Vec<String>),
    response: (Vec<String>, Vec<String>),
    is_redirect: bool,
}

/// Facts in braces where only an engine that serves the request knows them.
fn tell(fact: Fact, (request, route): (&conditions::Request<'_>, &PathPattern), is_tls: bool, out: &mut Vec<u8>) {
    let (head, text) = (request.head, request.text);
    let mut host = [0; HOST_BYTES_MAX];
    let address = |address: IpAddr| address.to_canonical().to_string().into_bytes();
    let known = match fact {
        Fact::ClientIp | Fact::RequestSource => address(request.source),
        Fact::RequestMethod => head.method_text.bytes(text).to_vec(),
        Fact::RequestScheme => if is_tls { "https" } else { "http" }.into(),
        Fact::RequestHost => head.host_name(text, &mut host).into(),
        Fact::RequestPath => head.path(text).to_vec(),
        Fact::RequestQuery => head.query(text).to_vec(),
        Fact::RoutePath => match route {
            PathPattern::Prefix(path) | PathPattern::Exact(path) | PathPattern::Regex(path) => path.clone().into(),
        },
        fact => format!("{{{}}}", fact.name()).into_bytes(),
    };
    out.extend_from_slice(&known);
}

impl Sent {
    /// The changes that a route makes; `None` where there are none. `listener` and `route` are indexes.
    pub fn of(config: &Config, (listener, index): (usize, usize), request: &conditions::Request<'_>) -> Option<Sent> {
        let (listener, route) = (&config.listeners[listener], &config.routes[index]);
        // Neither files of answers nor counts of limits have a part in it.
        let steps = Steps::of((config, index), &Arc::default(), (Vec::new(), false, None), 0)?;
        let (head, text, is_tls) = (request.head, request.text, listener.tls.is_some());
        let tell = |fact, out: &mut Vec<u8>| {
            tell(fact, (request, &route.path), is_tls, out);
            true
        };
        let written = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut sent = Sent {
            target: Ok(None),
            host: None,
            request: Default::default(),
            response: Default::default(),
            is_redirect: matches!(route.action, Action::Redirect(_)),
        };
        if let Some(change) = &steps.request {
            let target = change.target((head, text), listener.paths, &tell);
            sent.target = target.map(|target| target.map(|(path, query)| written(&[path, query].concat())));
            sent.host = change.host(Some("the server's own"), false).map(|host| written(&host));
            let mut lines = Vec::new();
            change.write_fields((&head.fields, text), listener.forwarded, &tell, &mut lines);
            change.write_lines_of_server(None, &tell, &mut lines);
            sent.request =
                (written(&lines).lines().map(str::to_owned).collect(), route.steps.request.fields.remove.clone());
        }
        if let Some(change) = &steps.response {
            let own = change.change_own((&[], ""), is_tls, &tell);
            let typed = Some(("Content-Type".to_string(), own.content_type)).filter(|(_, value)| !value.is_empty());
            let lines = own.fields.into_iter().chain(typed).map(|(name, value)| format!("{name}: {value}"));
            sent.response = (lines.collect(), route.steps.response.fields.remove.clone());
        }
        if let (Some(rewrite), Action::Redirect(Redirect { path: Some(RedirectPath::Changed(_)), .. })) =
            (&steps.redirect, &route.action)
        {
            let target = rewrite.target(head.path(text), head.query(text), listener.paths);
            sent.target = target.map(|target| target.map(|target| written(&target)));
        }
        let is_nothing = matches!(sent.target, Ok(None)) && sent.host.is_none();
        let nothing = (Vec::new(), Vec::new());
        (!is_nothing || sent.request != nothing || sent.response != nothing).then_some(sent)
    }

    /// Target that servers are asked for, where that is not the client's.
    pub fn target(&self) -> Option<&str> {
        self.target.as_ref().ok()?.as_deref()
    }

    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        match &self.target {
            Ok(None) => {}
            Ok(Some(target)) if self.is_redirect => lines.push(("leads to", target.clone())),
            Ok(Some(target)) => lines.push(("asks for", target.clone())),
            Err(reject) => lines.push(("answer", format!("{reject}: such a path the route makes of it"))),
        }
        lines.extend(self.host.iter().map(|host| ("Host", host.clone())));
        for (what, (written, removed)) in [("request", &self.request), ("response", &self.response)] {
            lines.extend(written.iter().map(|line| (what, withheld::line(line))));
            lines.extend(removed.iter().map(|name| (what, format!("without {name}"))));
        }
        lines
    }

    pub fn to_json(&self) -> Value {
        let fields = |(written, removed): &(Vec<String>, Vec<String>)| {
            let lines: Vec<String> = written.iter().map(|line| withheld::line(line)).collect();
            json!({ "lines": lines, "without": removed })
        };
        json!({
            "target": self.target.as_ref().ok(),
            "refused": self.target.as_ref().err().map(|reject| reject.fault.label()),
            "host": self.host,
            "request": fields(&self.request),
            "response": fields(&self.response),
        })
    }
}
