//! Requests for servers that speak another language than their client: the script that a server of FastCGI runs, and
//! the call of gRPC that one of gRPC-Web becomes.

use propylon_config::{FastCgi, Route};
use propylon_fastcgi::script::{BadPath, Place, place};
use propylon_steps::conditions;
use propylon_steps::grpc_web::Call;
use serde_json::{Value, json};

/// Media type of calls, for servers and for browsers.
const GRPC: &str = "application/grpc";
const WEB: &str = "application/grpc-web";
/// Parameter that names the file which a script is.
const FILE: &str = "SCRIPT_FILENAME";

/// Script that a path runs at servers of FastCGI.
pub struct Script<'a> {
    settings: &'a FastCgi,
    place: Result<Place, BadPath>,
}

impl<'a> Script<'a> {
    /// `target`: path that servers are asked for, with a query or without.
    pub fn of(settings: &'a FastCgi, target: &str) -> Script<'a> {
        let path = target.split('?').next().unwrap_or_default();
        Script { settings, place: place(settings, path.as_bytes()) }
    }

    /// File that the servers are asked to run; none where the configuration says it in words of its own.
    fn file(&self, place: &Place) -> Option<String> {
        let is_own = self.settings.params.iter().any(|param| param.name == FILE);
        (!is_own).then(|| format!("{}{}", self.settings.root, written(&place.script)))
    }

    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let place = match &self.place {
            Ok(place) => place,
            Err(BadPath) => return vec![("answer", "400 (bad-script-path)".into())],
        };
        let rest = match place.path_info.is_empty() {
            true => "no PATH_INFO".to_owned(),
            false => format!("PATH_INFO {}", written(&place.path_info)),
        };
        let file = self.file(place).unwrap_or_else(|| format!("as `params` has {FILE}"));
        vec![
            ("script", format!("{}, {rest}", written(&place.script))),
            ("file", format!("{file}, as the servers see it")),
        ]
    }

    pub fn to_json(&self) -> Value {
        match &self.place {
            Ok(place) => json!({
                "name": written(&place.script),
                "path_info": written(&place.path_info),
                "root": self.settings.root,
                "file": self.file(place),
            }),
            Err(BadPath) => json!({ "refused": "bad-script-path" }),
        }
    }
}

fn written(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Call that a route for those of browsers makes of a request; `None`: it goes on as it is.
pub struct BrowserCall(Option<Call>);

impl BrowserCall {
    /// `None` on a route that is not for calls of browsers.
    pub fn of(route: &Route, request: &conditions::Request<'_>) -> Option<BrowserCall> {
        route.steps.grpc_web.then(|| BrowserCall(Call::of(request.head, request.text)))
    }

    /// Types that the server gets, and the client of its answer.
    fn types(call: &Call) -> (String, String) {
        let told = written(&call.content_type);
        let format = told.strip_prefix(GRPC).unwrap_or_default();
        let text = if call.wants_text { "-text" } else { "" };
        let answered = format!("{WEB}{text}{format}");
        (told, answered)
    }

    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let Some(call) = &self.0 else {
            let how = format!("goes on as it is: calls are POST with the Content-Type {WEB} or {WEB}-text");
            return vec![("grpc_web", how)];
        };
        let (told, answered) = BrowserCall::types(call);
        let decoded = if call.is_text { ", its body without base64" } else { "" };
        vec![
            ("grpc_web", format!("a call: servers get {told}{decoded}")),
            ("", format!("the client gets {answered}, with the trailers as the end of the body")),
        ]
    }

    pub fn to_json(&self) -> Value {
        json!(self.0.as_ref().map(|call| {
            let (told, answered) = BrowserCall::types(call);
            json!({ "request": told, "response": answered, "base64": call.is_text })
        }))
    }
}
