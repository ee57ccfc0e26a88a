//! Addresses and host names as people write them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::model::{HostPattern, Network, ServerAddress};
use crate::wording::shown;

/// Fault of a text, and the text to write instead.
pub(crate) type TextProblem = (String, String);

/// An address to listen on: `0.0.0.0:443`, `[::]:443`. Port 0 lets the kernel choose.
pub(crate) fn bind(text: &str) -> Result<SocketAddr, TextProblem> {
    if let Some(complaint) = not_an_address(text) {
        return Err(complaint);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return checked_bind(text, address);
    }
    let what = format!("\"{}\" is not an address to listen on", shown(text));
    if let Ok(port) = text.trim_start_matches('*').strip_prefix(':').unwrap_or(text).parse::<u16>() {
        return Err((
            what,
            format!("write \"0.0.0.0:{port}\" for IPv4, \"[::]:{port}\" for IPv6, or both in an array"),
        ));
    }
    if let Some(complaint) = without_port(text, "443") {
        return Err(complaint);
    }
    match split_port(text) {
        Some((host, port)) if host.parse::<Ipv4Addr>().is_ok() || in_brackets(host).is_some() => {
            Err(bad_port(text, port).unwrap_or((what, "write ADDRESS:PORT, such as \"0.0.0.0:443\"".into())))
        }
        Some(("localhost", port)) => Err((what, format!("write \"127.0.0.1:{}\"", shown(port)))),
        Some((host, _)) if host_name(host).is_ok() => Err((
            format!("\"{}\" is a name", shown(host)),
            "write the address of this machine that it stands for".into(),
        )),
        _ => Err((what, "write ADDRESS:PORT, such as \"0.0.0.0:443\" or \"[::]:443\"".into())),
    }
}

fn checked_bind(text: &str, address: SocketAddr) -> Result<SocketAddr, TextProblem> {
    let what = format!("nothing can listen on {}", shown(text));
    match address.ip() {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
            let ip = ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED);
            Err((what, format!("write \"{ip}:{}\"; IPv6 sockets are for IPv6 only", address.port())))
        }
        ip if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) => {
            Err((what, "write an address of this machine".into()))
        }
        _ => Ok(address),
    }
}

/// The first address of the network that an address is in. A prefix that is longer than an address is all of it.
#[must_use]
pub fn first_of_network(address: IpAddr, prefix: u8) -> IpAddr {
    let rest = |width: u32| width.saturating_sub(u32::from(prefix));
    match address {
        IpAddr::V4(own) => Ipv4Addr::from_bits(own.to_bits() & u32::MAX.checked_shl(rest(32)).unwrap_or(0)).into(),
        IpAddr::V6(own) => Ipv6Addr::from_bits(own.to_bits() & u128::MAX.checked_shl(rest(128)).unwrap_or(0)).into(),
    }
}

/// Addresses: `10.0.0.0/8`, `fd00::/8`, or a single one, `192.0.2.7`.
pub(crate) fn network(text: &str) -> Result<Network, TextProblem> {
    const FIX: &str = "write it as in \"10.0.0.0/8\", \"fd00::/8\" or \"192.0.2.7\"";
    let what = || format!("\"{}\" is not a network", shown(text));
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address = address.parse::<IpAddr>().map_err(|_| (what(), FIX.into()))?;
    if address != address.to_canonical() {
        return Err((what(), format!("write it as IPv4, as in \"{}\"", address.to_canonical())));
    }
    let width: u8 = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => width,
        Some(digits) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let prefix = digits.parse().ok().filter(|prefix| *prefix <= width);
            prefix.ok_or_else(|| (what(), format!("use 0 to {width} behind the `/`")))?
        }
        Some(_) => return Err((what(), FIX.into())),
    };
    let network = Network { address, prefix };
    let first = first_of_network(address, prefix);
    if first != address {
        let what = format!("\"{}\" has bits set behind its first {prefix}", shown(text));
        return Err((
            what,
            format!("write \"{}\", or \"{address}\" for that address alone", Network { address: first, prefix }),
        ));
    }
    Ok(network)
}

/// A server: `10.0.1.1:8080`, `[fd00::1]:8080`, `app.internal:8080`.
pub(crate) fn server(text: &str) -> Result<ServerAddress, TextProblem> {
    if let Some((what, fix)) = not_an_address(text) {
        let of_tls = if text.starts_with("https://") { ", and `tls = {}` in the backend" } else { "" };
        return Err((what, fix + of_tls));
    }
    let Some((host, port)) = split_port(text) else {
        return Err(without_port(text, "8080").unwrap_or_else(|| {
            let what = format!("\"{}\" has no port", shown(text));
            (what, "write HOST:PORT, such as \"10.0.1.1:8080\"".into())
        }));
    };
    if let Some(complaint) = bad_port(text, port) {
        return Err(complaint);
    }
    let number: u16 = port.parse().unwrap_or_default();
    if number == 0 {
        return Err((format!("\"{}\": no server listens on port 0", shown(text)), "write its port".into()));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return checked_server(address);
    }
    if host.is_empty() {
        return Err((
            format!("\"{}\" has no host", shown(text)),
            format!("write \"127.0.0.1:{number}\" for this machine"),
        ));
    }
    if host.contains(':') {
        return Err(without_port(text, "8080").unwrap_or_else(|| {
            let what = format!("\"{}\" is not HOST:PORT", shown(text));
            (what, "write IPv6 addresses in brackets, such as \"[fd00::1]:8080\"".into())
        }));
    }
    let host = host_name(host.strip_suffix('.').unwrap_or(host))?;
    Ok(ServerAddress::Name { host, port: number })
}

/// A server of a backend: as [`server`], a service (`srv+_http._tcp.app.internal`), or a Unix socket
/// (`unix:/run/app.sock`, or as other programs write one).
pub(crate) fn backend_server(text: &str) -> Result<ServerAddress, TextProblem> {
    if let Some(name) = text.strip_prefix("srv+") {
        return service(name);
    }
    match unix_name(text) {
        Some(name) => unix(text, name),
        None => server(text),
    }
}

/// Name of the socket that a text is about, if it is one: nginx has `unix:PATH`, haproxy `unix@PATH`, `abns@NAME` or
/// a bare path, Caddy `unix/PATH`, gRPC `unix://PATH`.
fn unix_name(text: &str) -> Option<Cow<'_, str>> {
    if text.starts_with('/') {
        return Some(text.into());
    }
    if let Some(name) = text.strip_prefix("abns@") {
        return Some(format!("@{name}").into());
    }
    let rest = text.strip_prefix("unix")?;
    if let Some(path) = rest.strip_prefix("://") {
        return Some(path.into());
    }
    rest.strip_prefix([':', '@', '/']).map(Cow::from)
}

fn unix(text: &str, name: Cow<'_, str>) -> Result<ServerAddress, TextProblem> {
    // As the kernel has it (unix(7)): a path has a zero byte behind it, an abstract name one in front.
    const NAME_BYTES_MAX: usize = 107;
    const EXAMPLE: &str = "write \"unix:PATH\", such as \"unix:/run/app.sock\"";
    let what = |what: &str| format!("\"{}\": {what}", shown(text));
    let (is_abstract, bare) = match name.strip_prefix('@') {
        Some(bare) => (true, bare),
        None => (false, &*name),
    };
    if bare.is_empty() {
        return Err((what("the Unix socket has no name"), EXAMPLE.into()));
    }
    if !is_abstract && !bare.starts_with('/') {
        return Err((what("the path of a Unix socket is not absolute"), EXAMPLE.into()));
    }
    if bare.len() > NAME_BYTES_MAX {
        let fix = format!("use a path of at most {NAME_BYTES_MAX} bytes, or a link to its folder");
        return Err((what("the kernel takes no name of a Unix socket that is so long"), fix));
    }
    if bare.chars().any(|character| character.is_whitespace() || character.is_control()) {
        return Err((what("there is white space or a control character in it"), "use a path without".into()));
    }
    if !is_abstract && bare.ends_with([':', '/']) {
        let fix = match bare.trim_end_matches([':', '/']) {
            "" => EXAMPLE.to_owned(),
            path => format!("write \"unix:{}\"", shown(path)),
        };
        return Err((what("this is no path of a socket"), fix));
    }
    Ok(ServerAddress::Unix { name: name.into_owned() })
}

/// A name that has SRV records: `_service._proto.name` (RFC 2782).
pub(crate) fn service(name: &str) -> Result<ServerAddress, TextProblem> {
    let name = host_name(name.strip_suffix('.').unwrap_or(name))?;
    let mut labels = name.split('.');
    let underscored = |label: Option<&str>| label.is_some_and(|label| label.len() > 1 && label.starts_with('_'));
    if !(underscored(labels.next()) && underscored(labels.next()) && labels.next().is_some()) {
        let what = format!("\"{}\" is not the name of a service", shown(&name));
        return Err((what, "write \"srv+_SERVICE._PROTO.NAME\", such as \"srv+_http._tcp.app.internal\"".into()));
    }
    Ok(ServerAddress::Srv { name })
}

fn checked_server(address: SocketAddr) -> Result<ServerAddress, TextProblem> {
    let ip = address.ip();
    if ip.is_unspecified() {
        let fix = format!("write \"127.0.0.1:{}\" for this machine", address.port());
        return Err((format!("{ip} is no address of a server"), fix));
    }
    if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err((format!("{ip} is the address of many machines"), "write the address of one server".into()));
    }
    Ok(ServerAddress::Ip(address))
}

/// Problem of a text with a variable as shells and others write them.
fn of_variable(text: &str) -> Option<TextProblem> {
    let (_, rest) = text.split_once('$')?;
    let rest = rest.trim_start_matches('{');
    let rest = rest.strip_prefix("env.").unwrap_or(rest);
    let end = rest.find(|byte: char| !(byte.is_ascii_alphanumeric() || byte == '_')).unwrap_or(rest.len());
    let name = if end == 0 { "NAME" } else { &rest[..end] };
    let what = format!("\"{}\" has a variable in it that is not one here", shown(text));
    Some((what, format!("write ${{env:{name}}}, or ${{env:{name}:-DEFAULT}}")))
}

/// Problem of a text that is recognisably something else: a URL, a path, a text with spaces.
fn not_an_address(text: &str) -> Option<TextProblem> {
    if text.contains('$') {
        return of_variable(text);
    }
    if text.is_empty() {
        return Some(("the address is empty".into(), "write ADDRESS:PORT".into()));
    }
    if let Some((_, rest)) = text.split_once("://")
        && let Some(path) = rest.strip_prefix("unix:")
    {
        let path = path.split(':').next().unwrap_or_default();
        return Some((format!("\"{}\" is a URL", shown(text)), format!("write \"unix:{}\"", shown(path))));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = match (split_port(host), scheme) {
            (Some(_), _) => host.to_string(),
            (None, "https") => format!("{host}:443"),
            (None, _) => format!("{host}:80"),
        };
        let what = format!("\"{}\" is a URL", shown(text));
        return Some((what, format!("write \"{}\"", shown(&host))));
    }
    if text.starts_with('/') || text.starts_with("unix:") {
        let what = format!("\"{}\": Unix sockets are not supported here", shown(text));
        return Some((what, "write ADDRESS:PORT".into()));
    }
    if let Some((host, _)) = text.split_once('/') {
        let what = format!("\"{}\" has a path, which an address cannot", shown(text));
        return Some((what, format!("write \"{}\"", shown(host))));
    }
    if text.chars().any(|character| character.is_whitespace() || character.is_control()) {
        let what = format!("\"{}\" has white space or control characters in it", shown(text));
        return Some((what, "remove them".into()));
    }
    None
}

/// For an IP address without a port.
fn without_port(text: &str, example: &str) -> Option<TextProblem> {
    let bare = in_brackets(text).unwrap_or(text);
    let what = format!("\"{}\" has no port", shown(text));
    if bare.parse::<Ipv6Addr>().is_ok() {
        // The text may be an address with a port, both of them without brackets.
        if let Some((address, port)) = bare.rsplit_once(':').filter(|_| bare == text)
            // One digit behind `::` is an address, `::1`.
            && let (address, port_min) = if address == ":" { ("::", 10) } else { (address, 1) }
            && address.parse::<Ipv6Addr>().is_ok()
            && port.parse::<u16>().is_ok_and(|port| port >= port_min)
        {
            let fix = format!("write \"[{address}]:{port}\", or \"[{bare}]:{example}\" if all of it is the address");
            return Some((what, fix));
        }
        let hint = if bare == text { "; IPv6 addresses need brackets before a port" } else { "" };
        return Some((what, format!("write \"[{bare}]:{example}\" or another port{hint}")));
    }
    bare.parse::<Ipv4Addr>().is_ok().then(|| (what, format!("write \"{bare}:{example}\" or another port")))
}

fn bad_port(text: &str, port: &str) -> Option<TextProblem> {
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if digits && port.parse::<u16>().is_ok() {
        return None;
    }
    let what = format!("\"{}\": \"{}\" is not a port", shown(text), shown(port));
    Some((what, "write a number from 1 to 65535 after the colon".into()))
}

fn split_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    (!port.ends_with(']')).then_some((host, port))
}

fn in_brackets(text: &str) -> Option<&str> {
    text.strip_prefix('[')?.strip_suffix(']')
}

/// The host of a route: a name, an address, or a name whose first label is `*`.
pub(crate) fn host_pattern(text: &str) -> Result<HostPattern, TextProblem> {
    if text == "*" {
        return Err(("`host` \"*\" is not needed".into(), "leave `host` out: then the route is for any host".into()));
    }
    match text.strip_prefix("*.") {
        Some(rest) if !rest.contains('*') => {
            let name = host(rest)?;
            if name.parse::<Ipv4Addr>().is_ok() || name.starts_with('[') {
                return Err((format!("\"{}\": an address has no labels", shown(text)), "remove the `*.`".into()));
            }
            Ok(HostPattern::Suffix(format!(".{name}")))
        }
        _ if text.contains('*') => {
            let what = format!("\"{}\": `*` stands for whole labels at the beginning only", shown(text));
            Err((what, "write it as in \"*.example.com\"".into()))
        }
        _ => host(text).map(HostPattern::Exact),
    }
}

/// A host as it stands in a Host field: a name or an address, no port; in lower case, without a trailing dot.
pub(crate) fn host(text: &str) -> Result<String, TextProblem> {
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        return Err((format!("\"{}\" is a URL", shown(text)), format!("write \"{}\"", shown(host))));
    }
    if let Some((host, _)) = text.split_once('/') {
        let fix = format!("write \"{}\", and the path under `path`", shown(host));
        return Err((format!("\"{}\" has a path in it", shown(text)), fix));
    }
    if let Some(inside) = in_brackets(text) {
        let what = format!("\"{}\" is not an IPv6 address", shown(text));
        let address: Ipv6Addr = inside.parse().map_err(|_| (what, "write it as in \"[fd00::1]\"".to_string()))?;
        return Ok(format!("[{address}]"));
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err((format!("\"{}\" needs brackets", shown(text)), format!("write \"[{}]\"", shown(text))));
    }
    if let Some((host, _)) = split_port(text) {
        let fix = format!("write \"{}\"; the port is the listener's", shown(host));
        return Err((format!("\"{}\" has a port in it", shown(text)), fix));
    }
    host_name(text.strip_suffix('.').unwrap_or(text))
}

/// A DNS name (RFC 1123 §2.1, and `_`, which names in private networks have) or an IPv4 address, in lower case.
fn host_name(text: &str) -> Result<String, TextProblem> {
    const NAME_BYTES_MAX: usize = 253;
    const LABEL_BYTES_MAX: usize = 63;
    let what = || format!("\"{}\" is not a host name", shown(text));
    if let Some(complaint) = of_variable(text) {
        return Err(complaint);
    }
    if !text.is_ascii() {
        let fix = "write the A-label, which begins with xn--; for example by `idn2 NAME`";
        return Err((format!("\"{}\" is not ASCII", shown(text)), fix.into()));
    }
    if text.is_empty() || text.len() > NAME_BYTES_MAX {
        return Err((what(), format!("write 1 to {NAME_BYTES_MAX} characters")));
    }
    for label in text.split('.') {
        if label.is_empty() || label.len() > LABEL_BYTES_MAX {
            return Err((what(), format!("write 1 to {LABEL_BYTES_MAX} characters before and after each dot")));
        }
        if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
            return Err((what(), "use letters, digits, `-` and `.`".into()));
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err((what(), "remove the `-` beside the dot or the end".into()));
        }
    }
    // No top-level domain is a number, so this was meant to be an address.
    let last = text.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<Ipv4Addr>().is_err() {
        return Err((format!("\"{}\" is not an IPv4 address", shown(text)), "write four numbers from 0 to 255".into()));
    }
    Ok(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_on_are_numbers() {
        for text in ["0.0.0.0:443", "[::]:443", "127.0.0.1:0", "[fe80::1%2]:80"] {
            assert_eq!(bind(text), Ok(text.parse().expect(text)));
        }
        for (text, part) in [
            (":443", "write \"0.0.0.0:443\" for IPv4, \"[::]:443\" for IPv6"),
            ("443", "write \"0.0.0.0:443\""),
            ("*:443", "write \"0.0.0.0:443\""),
            ("0.0.0.0", "write \"0.0.0.0:443\" or another port"),
            ("::1", "write \"[::1]:443\" or another port"),
            ("::1:443", "write \"[::1]:443\", or \"[::1:443]:443\" if"),
            ("::443", "write \"[::]:443\", or \"[::443]:443\" if"),
            ("::1:x", "write ADDRESS:PORT"),
            ("fe80::1:0", "need brackets"),
            ("localhost:80", "write \"127.0.0.1:80\""),
            ("shop.example:80", "the address of this machine"),
            ("0.0.0.0:99999", "a number from 1 to 65535"),
            ("[::]:x", "a number from 1 to 65535"),
            ("http://0.0.0.0:80/", "write \"0.0.0.0:80\""),
            ("/run/x.sock", "write ADDRESS:PORT"),
            ("[::ffff:1.2.3.4]:80", "write \"1.2.3.4:80\""),
            ("224.0.0.1:80", "an address of this machine"),
            ("", "write ADDRESS:PORT"),
            ("!", "write ADDRESS:PORT"),
        ] {
            let (_, fix) = bind(text).expect_err(text);
            assert!(fix.contains(part), "{text}: {fix}");
        }
        for (text, hint) in [("::1", true), ("[::1]", false), ("127.0.0.1", false)] {
            let (_, fix) = bind(text).expect_err(text);
            assert_eq!(fix.contains("need brackets"), hint, "{text}: {fix}");
        }
    }

    #[test]
    fn servers_are_names_or_addresses_with_a_port() {
        assert_eq!(server("10.0.0.1:80"), Ok(ServerAddress::Ip("10.0.0.1:80".parse().expect("an address"))));
        assert_eq!(server("[fd00::1]:80"), Ok(ServerAddress::Ip("[fd00::1]:80".parse().expect("an address"))));
        let name = ServerAddress::Name { host: "app_1.internal".into(), port: 80 };
        assert_eq!(server("App_1.internal.:80"), Ok(name));
        for (text, part) in [
            ("http://10.0.0.1:8080/x", "write \"10.0.0.1:8080\""),
            ("https://app.internal", "write \"app.internal:443\""),
            ("10.0.0.1", "write \"10.0.0.1:8080\""),
            ("app", "write HOST:PORT"),
            (":80", "write \"127.0.0.1:80\""),
            ("fd00::1:80", "write \"[fd00::1]:80\", or \"[fd00::1:80]:8080\" if"),
            ("a:b:80", "in brackets"),
            ("app:0", "write its port"),
            ("app:x", "from 1 to 65535"),
            ("app:80/x", "write \"app:80\""),
            ("0.0.0.0:80", "write \"127.0.0.1:80\""),
            ("10.0.0.300:80", "four numbers"),
            ("a b:80", "remove them"),
            ("[::1:80", "in brackets"),
        ] {
            let (_, fix) = server(text).expect_err(text);
            assert!(fix.contains(part), "{text}: {fix}");
        }
    }

    #[test]
    fn a_unix_socket_is_one_server_however_it_is_written() {
        for text in
            ["unix:/run/app.sock", "unix@/run/app.sock", "/run/app.sock", "unix//run/app.sock", "unix:///run/app.sock"]
        {
            let address = backend_server(text).expect(text);
            assert_eq!(address, ServerAddress::Unix { name: "/run/app.sock".into() });
            assert_eq!(address.to_string(), "unix:/run/app.sock");
        }
        for text in ["unix:@app", "abns@app", "unix/@app"] {
            assert_eq!(backend_server(text).expect(text).to_string(), "unix:@app");
        }
        assert_eq!(backend_server("unix.internal:80").expect("a name").to_string(), "unix.internal:80");
        let long = format!("/{}", "a".repeat(107));
        for (text, part) in [
            ("unix:", "such as \"unix:/run/app.sock\""),
            ("unix:@", "such as \"unix:/run/app.sock\""),
            ("/", "such as \"unix:/run/app.sock\""),
            ("unix:run/app.sock", "such as \"unix:/run/app.sock\""),
            ("unix:/run/app.sock:/uri:", "write \"unix:/run/app.sock:/uri\""),
            ("unix:/run/app.sock:", "write \"unix:/run/app.sock\""),
            ("http://unix:/run/app.sock:/uri", "write \"unix:/run/app.sock\""),
            ("unix:/run/my app.sock", "a path without"),
            ("unix:/run/\0app.sock", "a path without"),
            (&long, "at most 107 bytes"),
        ] {
            let (_, fix) = backend_server(text).expect_err(text);
            assert!(fix.contains(part), "{text}: {fix}");
        }
        assert!(backend_server(&long[..107]).is_ok());
    }

    #[test]
    fn hosts_of_routes_are_in_lower_case_and_without_a_port() {
        assert_eq!(host_pattern("Shop.Example."), Ok(HostPattern::Exact("shop.example".into())));
        assert_eq!(host_pattern("*.Shop.Example"), Ok(HostPattern::Suffix(".shop.example".into())));
        assert_eq!(host_pattern("[FD00::1]"), Ok(HostPattern::Exact("[fd00::1]".into())));
        assert_eq!(host_pattern("10.0.0.1"), Ok(HostPattern::Exact("10.0.0.1".into())));
        for (text, part) in [
            ("*", "leave `host` out"),
            ("*example", "as in \"*.example.com\""),
            ("a.*.com", "as in \"*.example.com\""),
            ("*.*.com", "as in \"*.example.com\""),
            ("*.10.0.0.1", "remove the `*.`"),
            ("münchen.example", "A-label"),
            ("shop.example:443", "write \"shop.example\""),
            ("https://shop.example/x", "write \"shop.example\""),
            ("shop.example/x", "under `path`"),
            ("a..b", "before and after each dot"),
            ("-a.example", "remove the `-`"),
            ("a b", "use letters"),
            ("", "1 to 253"),
            ("::1", "write \"[::1]\""),
        ] {
            let (_, fix) = host_pattern(text).expect_err(text);
            assert!(fix.contains(part), "{text}: {fix}");
        }
    }

    #[test]
    fn a_network_holds_the_addresses_that_begin_like_it() {
        let has = |network_text: &str, address: &str| {
            network(network_text).expect(network_text).contains(address.parse().unwrap())
        };
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.6/31", "192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "255.1.2.3", "::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("2001:db8:1::/48", "2001:db8:1:ffff::1", "2001:db8:2::"),
            ("::1", "::1", "::"),
        ] {
            assert!(has(text, inside) && !has(text, outside), "{text}");
        }
        for (text, part) in [
            ("10.0.0.1/8", "write \"10.0.0.0/8\""),
            ("10.0.0.0/33", "0 to 32"),
            ("::/129", "0 to 128"),
            ("10.0.0.0/", "10.0.0.0/8"),
            ("10.0.0.0/+8", "10.0.0.0/8"),
            ("10.0.0.0/255.0.0.0", "10.0.0.0/8"),
            ("localhost", "192.0.2.7"),
            ("::ffff:10.0.0.0/104", "write it as IPv4"),
        ] {
            let (_, fix) = network(text).expect_err(text);
            assert!(fix.contains(part), "{text}: {fix}");
        }
    }
}
