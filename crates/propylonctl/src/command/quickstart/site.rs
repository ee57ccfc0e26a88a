//! Words of the command line of `quickstart`: a site, its servers, an admin address.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Ends of names that no public authority certifies, since they are kept for private use (RFC 6761, RFC 6762, and
/// ICANN's .internal).
pub const LOCAL_ENDS: [&str; 4] = ["localhost", "test", "internal", "local"];
/// RFC 1035 §2.3.4.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// A site by its URL.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    pub host: Host,
    /// Absent: that of https.
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Host {
    /// In lower case.
    Name(String),
    Address(IpAddr),
}

/// A server as a configuration names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// `HOST:PORT` or `unix:PATH`
    pub address: String,
    pub is_tls: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Admin {
    Tcp(SocketAddr),
    Unix(String),
}

impl Host {
    /// Whether no public authority certifies it.
    pub fn is_local(&self) -> bool {
        match self {
            Host::Address(_) => true,
            Host::Name(name) => name.rsplit('.').next().is_some_and(|end| LOCAL_ENDS.contains(&end)),
        }
    }

    /// Whether it leads to this machine wherever one asks, by RFC 6761 §6.3.
    pub fn is_loopback(&self) -> bool {
        match self {
            Host::Address(address) => address.is_loopback(),
            Host::Name(_) => self.is_localhost(),
        }
    }

    pub fn is_localhost(&self) -> bool {
        matches!(self, Host::Name(name) if name.rsplit('.').next() == Some("localhost"))
    }
}

/// As in a URL, without brackets for certificates: see [`Host::plain`].
impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
            host => formatter.write_str(&host.plain()),
        }
    }
}

impl Host {
    /// Without the brackets of a URL.
    pub fn plain(&self) -> String {
        match self {
            Host::Name(name) => name.clone(),
            Host::Address(address) => address.to_string(),
        }
    }
}

impl Server {
    /// The port, where it is one of this machine's own.
    pub fn loopback_port(&self) -> Option<u16> {
        let (host, port) = self.address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_own = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        port.parse().ok().filter(|_| is_own)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.address)
    }
}

impl Admin {
    pub fn port(&self) -> Option<u16> {
        match self {
            Admin::Tcp(address) => Some(address.port()),
            Admin::Unix(_) => None,
        }
    }
}

impl fmt::Display for Admin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admin::Tcp(address) => address.fmt(formatter),
            Admin::Unix(path) => write!(formatter, "unix:{path}"),
        }
    }
}

/// `https://shop.example`, `shop.example:8443`
pub fn site(text: &str) -> Result<Site, String> {
    let rest = match text.split_once("://") {
        None => text,
        Some(("https", rest)) => rest,
        Some(("http", rest)) => {
            return Err(format!("write https://{rest}: TLS is what it is for, and http is redirected to it"));
        }
        Some((scheme, _)) => return Err(format!("a site's URL begins with https://, not {scheme}://")),
    };
    let (host, port) = host_and_port(rest, "a [[route]] of the configuration says which paths go where")?;
    let host = match host.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => {
            return Err("no client asks for this address; write the one, or the name, that they do ask for".into());
        }
        Ok(address) => Host::Address(address),
        Err(_) => Host::Name(site_name(&host)?),
    };
    Ok(Site { host, port })
}

/// `http://127.0.0.1:3000`, `https://app.internal`, `app:3000`, `unix:/run/app.sock`
pub fn server(text: &str) -> Result<Server, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_path(path).map(|path| Server { address: format!("unix:{path}"), is_tls: false });
    }
    let (rest, port, is_tls) = match text.split_once("://") {
        None => (text, None, false),
        Some(("http", rest)) => (rest, Some(80), false),
        Some(("https", rest)) => (rest, Some(443), true),
        Some((scheme, _)) => return Err(format!("servers speak http:// or https://, not {scheme}://")),
    };
    let (host, written) =
        host_and_port(rest, "a server gets the paths that clients ask for; see `request.path` of [[route]]")?;
    let port = written.or(port).ok_or("a port is missing, as in http://127.0.0.1:3000")?;
    let host = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        Ok(address) => address.to_string(),
        // Names inside, such as those of containers, may be of one label and have underscores.
        Err(_) => name(&host, |byte| byte == b'_')?,
    };
    Ok(Server { address: format!("{host}:{port}"), is_tls })
}

pub fn admin(text: &str) -> Result<Admin, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return unix_path(path).map(Admin::Unix);
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Admin::Tcp(address)),
        Ok(_) => Err("it would be open to others: write a loopback address, such as 127.0.0.1:9900".into()),
        Err(_) => Err("write IP:PORT or unix:PATH".into()),
    }
}

pub fn health_path(text: &str) -> Result<String, String> {
    let is_good = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    is_good.then(|| text.to_owned()).ok_or("a path begins with /, as in /health".into())
}

pub fn contact(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("mailto:").unwrap_or(text);
    let is_good = address.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\,<>?".contains(&byte))
        && address.split_once('@').is_some_and(|(local, host)| !local.is_empty() && host.contains('.'));
    is_good.then(|| format!("mailto:{address}")).ok_or("write an address such as ops@shop.example".into())
}

fn unix_path(path: &str) -> Result<String, String> {
    let is_good = path.starts_with('/') && !path.contains(char::is_control);
    is_good.then(|| path.to_owned()).ok_or("an absolute path has to follow \"unix:\", as in unix:/run/app.sock".into())
}

/// Host, without brackets, and port of what is left of a URL. `why` says where paths belong.
fn host_and_port(rest: &str, why: &str) -> Result<(String, Option<u16>), String> {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if !matches!(path, "" | "/") {
        return Err(format!("the URL has a path ({path}), and has to end behind its host and port: {why}"));
    }
    if authority.contains('@') {
        return Err("the URL has a user's name in it, which is nothing for a configuration".into());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a \"]\" is missing behind the address")?;
            host.parse::<Ipv6Addr>().map_err(|_| format!("[{host}] is no IPv6 address"))?;
            (host, port.strip_prefix(':').or(if port.is_empty() { None } else { Some("?") }))
        }
        None => match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an IPv6 address stands in brackets, as in [::1]".into());
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = port.map(|port| match port.parse::<u16>() {
        Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
        _ => Err(format!("\"{port}\" is no port: 1 to 65535")),
    });
    match host {
        "" => Err("a name is missing, as in https://shop.example".into()),
        host => Ok((host.to_owned(), port.transpose()?)),
    }
}

/// A name that a certificate can be for.
fn site_name(text: &str) -> Result<String, String> {
    if text.contains('*') {
        return Err("a wildcard takes a certificate of yours: see [tls.NAME] in the manual; write one name here".into());
    }
    let name = name(text, |_| false)?;
    let (first, last) = (name.contains('.'), name.rsplit('.').next().unwrap_or_default());
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("\"{text}\" is neither a name nor an address"));
    }
    if !first && name != "localhost" {
        return Err(format!(
            "no authority certifies \"{text}\": write a name with a domain, or {name}.localhost to try"
        ));
    }
    Ok(name)
}

/// A host name in lower case; `also` are bytes that may be in it beside letters, digits and hyphens.
fn name(text: &str, also: impl Fn(u8) -> bool) -> Result<String, String> {
    if !text.is_ascii() {
        return Err(format!("\"{text}\" has letters beyond ASCII: write it as DNS has it, which begins with xn--"));
    }
    let name = text.to_ascii_lowercase();
    let label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || also(byte);
        let is_bound = label.starts_with('-') || label.ends_with('-');
        !label.is_empty() && label.len() <= LABEL_BYTES_MAX && label.bytes().all(fits) && !is_bound
    };
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(label) {
        return Err(format!("\"{text}\" is no name: labels of letters, digits and inner hyphens, with dots between"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_names_or_addresses_with_or_without_port() {
        let read = |text: &str| site(text).map(|site| (site.host.to_string(), site.port));
        for (text, host, port) in [
            ("https://Shop.Example", "shop.example", None),
            ("https://shop.example/", "shop.example", None),
            ("shop.example:8443", "shop.example", Some(8443)),
            ("https://localhost:8443", "localhost", Some(8443)),
            ("https://192.0.2.1", "192.0.2.1", None),
            ("https://[::1]:8443/", "[::1]", Some(8443)),
        ] {
            assert_eq!(read(text), Ok((host.to_owned(), port)), "{text}");
        }
        let local = |text: &str| site(text).expect("a site").host.is_local();
        for text in ["localhost", "a.localhost", "shop.test", "a.b.internal", "tv.local", "10.0.0.1", "[2001:db8::1]"] {
            assert!(local(text), "{text}");
        }
        assert!(!local("shop.example") && !local("test.example") && !local("mytest.example"));
    }

    #[test]
    fn what_is_no_site_is_refused_with_a_cure() {
        for (text, word) in [
            ("http://shop.example", "write https://shop.example"),
            ("ftp://shop.example", "begins with https://"),
            ("https://shop.example/cart", "has a path (/cart)"),
            ("https://shop.example?a", "has a path (?a)"),
            ("https://me@shop.example", "user's name"),
            ("https://", "a name is missing"),
            ("https://shop", "shop.localhost"),
            ("https://test", "test.localhost"),
            ("https://*.shop.example", "wildcard"),
            ("https://shop..example", "is no name"),
            ("https://-shop.example", "is no name"),
            ("https://shop_1.example", "is no name"),
            ("https://shöp.example", "xn--"),
            ("https://300.1.1.1", "neither a name nor an address"),
            ("https://0.0.0.0", "no client asks"),
            ("https://shop.example:0", "is no port"),
            ("https://shop.example:+80", "is no port"),
            ("https://[::1", "\"]\" is missing"),
            ("https://[::1]8443", "is no port"),
            ("https://::1", "in brackets"),
        ] {
            let error = site(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn servers_have_the_ports_of_their_schemes_or_their_own() {
        let read = |text: &str| server(text).map(|server| (server.address, server.is_tls));
        for (text, address, is_tls) in [
            ("http://127.0.0.1:3000", "127.0.0.1:3000", false),
            ("http://app", "app:80", false),
            ("https://App.Internal", "app.internal:443", true),
            ("my_app:3000", "my_app:3000", false),
            ("[::1]:3000", "[::1]:3000", false),
            ("unix:/run/app.sock", "unix:/run/app.sock", false),
        ] {
            assert_eq!(read(text), Ok((address.to_owned(), is_tls)), "{text}");
        }
        for (text, word) in [("127.0.0.1", "port is missing"), ("http://a/b", "has a path"), ("unix:app", "absolute")] {
            assert!(read(text).expect_err(text).contains(word), "{text}");
        }
        assert_eq!(server("localhost:443").map(|server| server.loopback_port()), Ok(Some(443)));
        assert_eq!(server("10.0.0.1:443").map(|server| server.loopback_port()), Ok(None));
    }

    #[test]
    fn an_admin_address_is_open_to_this_machine_alone() {
        assert!(admin("127.0.0.1:9900").is_ok() && admin("[::1]:0").is_ok() && admin("unix:/run/a.sock").is_ok());
        assert!(admin("0.0.0.0:9900").is_err_and(|error| error.contains("open to others")));
        assert!(admin("unix:a").is_err() && admin("9900").is_err());
        assert_eq!(contact("ops@shop.example"), Ok("mailto:ops@shop.example".into()));
        assert!(contact("ops").is_err() && contact("a\"@b.c").is_err() && health_path("health").is_err());
    }
}
