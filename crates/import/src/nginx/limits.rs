//! `limit_req` and `limit_conn`, as limits of routes.

use std::collections::BTreeMap;

use crate::plan::quoted;
use crate::words::Directive;

/// Zones of the whole configuration.
#[derive(Default)]
pub struct Zones {
    zones: BTreeMap<String, Zone>,
    /// Limits that have a zone's name already, by that name: nginx counts together what is in one zone.
    named: BTreeMap<String, String>,
}

struct Zone {
    /// `key` as TOML has it.
    key: String,
    /// Requests in a time; none of a zone of connections.
    rate: Option<String>,
    /// Whether some requests have none of it.
    may_be_empty: bool,
}

/// A limit, and what of it is otherwise than with nginx.
pub struct Limit {
    pub table: String,
    pub differs: Vec<&'static str>,
}

const AT_ONCE: &str = "requests of a burst go on at once here, as with `nodelay`";
const EMPTY: &str = "nginx counts no requests whose key is empty, and here those without it are counted together: write \
                     `limit` in a route with `match` for those that have it";

impl Zones {
    pub fn of(http: &Directive) -> Zones {
        let mut zones = Zones::default();
        for each in http.inner() {
            let is_rate = each.name() == "limit_req_zone";
            if !is_rate && each.name() != "limit_conn_zone" {
                continue;
            }
            let value = |name: &str| each.arguments().iter().find_map(|word| word.strip_prefix(name));
            let name = value("zone=").and_then(|zone| zone.split(':').next());
            let rate = value("rate=").and_then(rate);
            if let (Some(name), Some(key)) = (name, key(each.word(1)))
                && (!is_rate || rate.is_some())
            {
                zones.zones.insert(name.to_owned(), Zone { key, rate, may_be_empty: may_be_empty(each.word(1)) });
            }
        }
        zones
    }

    /// The limit that `limit_req` or `limit_conn` stands for; none where its zone's key or rate is not carried over.
    pub fn limit(&mut self, each: &Directive) -> Option<Limit> {
        let is_rate = each.name() == "limit_req";
        let value = |name: &str| each.arguments().iter().find_map(|word| word.strip_prefix(name));
        let zone_name = if is_rate { value("zone=")? } else { each.word(1) };
        let zone = self.zones.get(zone_name)?;
        let what = match &zone.rate {
            Some(rate) if is_rate => {
                let more: u32 = value("burst=").map_or(Some(0), |burst| burst.parse().ok())?;
                format!("rate = {}, burst = {}", quoted(rate), more.checked_add(1)?)
            }
            None if !is_rate => format!("requests = {}", each.word(2).parse::<u32>().ok().filter(|count| *count > 0)?),
            _ => return None,
        };
        let what = format!("{what}, key = {}", zone.key);
        let waits = is_rate && value("burst=").is_some() && !each.arguments().iter().any(|word| word == "nodelay");
        let differs = [(waits, AT_ONCE), (zone.may_be_empty, EMPTY)];
        let differs = differs.into_iter().filter_map(|(is_so, what)| is_so.then_some(what)).collect();
        let name = self.name(zone_name, &what);
        Some(Limit { table: format!("{{ {what}, name = {} }}", quoted(&name)), differs })
    }

    /// A name for a limit, the same for each use that says the same.
    fn name(&mut self, zone: &str, what: &str) -> String {
        let mut names = (1..).map(|number| if number == 1 { zone.to_owned() } else { format!("{zone}-{number}") });
        let is_free = |name: &String| self.named.get(name).is_none_or(|known| known == what);
        let name = names.find(is_free).unwrap_or_default();
        self.named.insert(name.clone(), what.to_owned());
        name
    }
}

/// `10r/s` as `10/s`.
fn rate(text: &str) -> Option<String> {
    let (count, unit) = text.split_once("r/")?;
    let is_known = count.parse::<u32>().is_ok_and(|count| count > 0) && ["s", "m"].contains(&unit);
    is_known.then(|| format!("{count}/{unit}"))
}

/// Whether a key may be empty: where all of its variables are of what some requests do not have.
fn may_be_empty(text: &str) -> bool {
    let is_sometimes = |name: &str| {
        let name = name.trim_start_matches('{');
        ["http_", "cookie_", "ssl_client_", "server_name"].iter().any(|kind| name.starts_with(kind))
    };
    text.split('$').skip(1).all(is_sometimes)
}

/// Key that a zone counts by, as TOML has it; none for variables that no key stands for.
fn key(text: &str) -> Option<String> {
    let mut keys = Vec::new();
    let variables = text.strip_prefix('$')?.split('$');
    for variable in variables {
        let name = variable.trim_matches(['{', '}', ':', '|', '_', '-', '.']);
        keys.push(match name {
            "binary_remote_addr" | "remote_addr" => quoted("source"),
            "host" | "http_host" | "server_name" => quoted("host"),
            "uri" | "request_uri" | "document_uri" => quoted("path"),
            "ssl_client_fingerprint" => quoted("certificate"),
            _ => match (name.strip_prefix("http_"), name.strip_prefix("cookie_")) {
                (Some(field), _) => format!("{{ header = {} }}", quoted(&field.replace('_', "-"))),
                (None, Some(cookie)) => format!("{{ cookie = {} }}", quoted(cookie)),
                _ => return None,
            },
        });
    }
    Some(if keys.len() == 1 { keys.remove(0) } else { format!("[{}]", keys.join(", ")) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{End, directives};

    fn limits(text: &str) -> Vec<Option<String>> {
        let http = Directive { block: directives(text, End::Semicolon).ok(), ..Directive::default() };
        let mut zones = Zones::of(&http);
        let uses = http.inner().iter().filter(|each| ["limit_req", "limit_conn"].contains(&each.name()));
        uses.map(|each| zones.limit(each).map(|limit| limit.table)).collect()
    }

    #[test]
    fn zones_become_limits_that_are_shared_by_name() {
        let text = "limit_req_zone $binary_remote_addr zone=all:10m rate=10r/s;\n\
                    limit_req_zone $http_x_key$uri zone=key:1m rate=30r/m;\n\
                    limit_conn_zone $binary_remote_addr zone=open:1m;\n\
                    limit_req zone=all;\nlimit_req zone=all burst=20 nodelay;\nlimit_req zone=all;\n\
                    limit_req zone=key burst=5;\nlimit_conn open 4;\n";
        let expected = [
            r#"{ rate = "10/s", burst = 1, key = "source", name = "all" }"#,
            r#"{ rate = "10/s", burst = 21, key = "source", name = "all-2" }"#,
            r#"{ rate = "10/s", burst = 1, key = "source", name = "all" }"#,
            r#"{ rate = "30/m", burst = 6, key = [{ header = "x-key" }, "path"], name = "key" }"#,
            r#"{ requests = 4, key = "source", name = "open" }"#,
        ];
        assert_eq!(limits(text), expected.map(|table| Some(table.to_owned())));
    }

    #[test]
    fn keys_and_zones_that_are_not_known_make_no_limit() {
        let text = "limit_req_zone $limited zone=mapped:10m rate=10r/s;\nlimit_req_zone $uri zone=rate:1m rate=x;\n\
                    limit_req zone=mapped;\nlimit_req zone=rate;\nlimit_req zone=gone;\nlimit_conn mapped 3;\n";
        assert_eq!(limits(text), [None, None, None, None]);
    }
}
