//! Attributes of spans by the semantic conventions for HTTP (stable since 1.23), as far as heads and the configuration
//! have them.

use std::net::SocketAddr;

use propylon_config::{PathPattern, Route, ServerAddress};
use propylon_http::fault::Fault;
use propylon_http::h1::{Method, RequestHead};

use crate::span::{Attribute, Value};

/// Names that are not those of a standard.
const METHOD_OTHER: &str = "_OTHER";
/// Type of an error of which nothing more is known.
const ERROR_OTHER: &str = "_OTHER";

/// Writes the method and returns the beginning of the span's name: `HTTP` for methods that are not known, of which
/// there can be any number.
pub fn write_method(head: &RequestHead, text: &[u8], attributes: &mut Vec<Attribute>) -> &'static str {
    if head.method == Method::Other {
        attributes.push(("http.request.method", Value::Word(METHOD_OTHER)));
        attributes.push(("http.request.method_original", Value::of(head.method_text.bytes(text))));
        return "HTTP";
    }
    attributes.push(("http.request.method", Value::Word(head.method.label())));
    head.method.label()
}

/// A route's path, with a star for what its prefix leaves open.
pub fn template(route: &Route) -> String {
    match &route.path {
        PathPattern::Regex(pattern) => pattern.clone(),
        PathPattern::Exact(path) => path.clone(),
        PathPattern::Prefix(prefix) if prefix.ends_with('/') => format!("{prefix}*"),
        PathPattern::Prefix(prefix) => format!("{prefix}/*"),
    }
}

/// The server by its address in the configuration; `reached`: the address that the connection was made to. A Unix
/// socket is known by its name, without a port.
pub fn write_server(address: &ServerAddress, reached: Option<SocketAddr>, attributes: &mut Vec<Attribute>) {
    let (host, port) = match address {
        ServerAddress::Ip(address) => (address.ip().to_canonical().to_string(), Some(address.port())),
        ServerAddress::Name { host, port } => (host.clone(), Some(*port)),
        ServerAddress::Srv { name } => (name.clone(), reached.map(|reached| reached.port())),
        ServerAddress::Unix { name } => (name.clone(), None),
    };
    attributes.push(("server.address", Value::Text(host)));
    if let Some(port) = port {
        attributes.push(("server.port", Value::Number(port.into())));
    }
}

/// The status and the type of the error, if there was one; true if the span has failed. Statuses from `failing` on are
/// errors.
pub fn write_result(status: Option<u16>, fault: Option<Fault>, failing: u16, attributes: &mut Vec<Attribute>) -> bool {
    if let Some(status) = status {
        attributes.push(("http.response.status_code", Value::Number(status.into())));
    }
    let error = match (status, fault) {
        // Refused by a rule, and answered: what it says is in the status.
        (Some(status), Some(_)) if (400..failing).contains(&status) => return false,
        (_, Some(fault)) => Value::Word(fault.label()),
        (Some(status), None) if status >= failing => Value::Text(status.to_string()),
        (Some(_), None) => return false,
        (None, None) => Value::Word(ERROR_OTHER),
    };
    attributes.push(("error.type", error));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_socket_is_known_by_its_name_alone() {
        let mut attributes = Vec::new();
        let address = ServerAddress::Unix { name: "/run/app.sock".into() };
        write_server(&address, None, &mut attributes);
        assert_eq!(attributes, [("server.address", Value::Text("/run/app.sock".into()))]);
    }

    fn result(status: Option<u16>, fault: Option<Fault>, failing: u16) -> (bool, Option<Value>) {
        let mut attributes = Vec::new();
        let failed = write_result(status, fault, failing, &mut attributes);
        (failed, attributes.into_iter().find(|(key, _)| *key == "error.type").map(|(_, value)| value))
    }

    #[test]
    fn clients_errors_are_no_failures_of_the_server_span_and_all_errors_are_of_an_attempt() {
        let text = |status: &str| Some(Value::Text(status.into()));
        assert_eq!(result(Some(200), None, 500), (false, None));
        assert_eq!(result(Some(404), None, 500), (false, None));
        assert_eq!(result(Some(404), Some(Fault::NoRoute), 500), (false, None));
        assert_eq!(result(Some(404), None, 400), (true, text("404")));
        assert_eq!(result(Some(503), None, 500), (true, text("503")));
        assert_eq!(result(Some(502), Some(Fault::ConnectRefused), 500), (true, Some(Value::Word("connect-refused"))));
        assert_eq!(result(Some(200), Some(Fault::BodyCutShort), 500), (true, Some(Value::Word("body-cut-short"))));
        assert_eq!(result(None, Some(Fault::ClientReset), 500), (true, Some(Value::Word("client-reset"))));
        assert_eq!(result(None, None, 500), (true, Some(Value::Word(ERROR_OTHER))));
    }
}
