//! `source` of `[backend.NAME]`

use std::net::{IpAddr, Ipv4Addr};

use crate::describe::Form;
use crate::model::BackendSource;
use crate::tree::Value;
use crate::walk::{Found, Section, string};
use crate::wording::shown;

const SOURCES_MAX: usize = 64;
/// As the kernel has it: IFNAMSIZ, with the zero byte behind.
const INTERFACE_BYTES_MAX: usize = 15;
const FIX: &str = "write an address of this machine, or an interface, as in \"192.0.2.10\" or \"eth1\"";

pub(crate) fn source(section: &mut Section<'_, '_>) -> Option<BackendSource> {
    let report = section.report;
    let entry = section.forms("source", &[Form::String, Form::List(&[Form::String])])?;
    let node = &entry.node;
    let Value::Array(items) = &node.value else {
        let found = string(report, "source", node)?;
        return match found.value.parse::<IpAddr>() {
            Ok(address) => {
                checked(section, found.value, address, &found).map(|one| BackendSource::Addresses(vec![one]))
            }
            Err(_) => interface(section, &found),
        };
    };
    if items.is_empty() || items.len() > SOURCES_MAX {
        report.error(node.span, "`source` has no address, or too many", format!("use 1 to {SOURCES_MAX}"));
        return None;
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    for found in items.iter().filter_map(|item| string(report, "source", item)) {
        let Ok(address) = found.value.parse::<IpAddr>() else {
            let what = format!("`source`: \"{}\" is no address", shown(found.value));
            report.error(found.span, what, "write addresses of this machine; an interface stands alone, not in a list");
            continue;
        };
        let Some(address) = checked(section, found.value, address, &found) else { continue };
        if addresses.contains(&address) {
            report.warning(found.span, format!("`source` has {address} twice"), "remove one of the two");
        } else {
            addresses.push(address);
        }
    }
    (!addresses.is_empty()).then_some(BackendSource::Addresses(addresses))
}

fn checked(section: &Section<'_, '_>, text: &str, address: IpAddr, found: &Found<&str>) -> Option<IpAddr> {
    let fix = match address.to_canonical() {
        plain if plain != address => format!("write it as IPv4, \"{plain}\""),
        IpAddr::V4(Ipv4Addr::BROADCAST) => FIX.to_owned(),
        plain if plain.is_unspecified() => "remove `source`: the system chooses without it".to_owned(),
        plain if plain.is_multicast() => FIX.to_owned(),
        plain => return Some(plain),
    };
    section.report.error(found.span, format!("`source`: no connection comes from {}", shown(text)), fix);
    None
}

fn interface(section: &Section<'_, '_>, found: &Found<&str>) -> Option<BackendSource> {
    let name = found.value;
    let is_name = !name.is_empty()
        && name.len() <= INTERFACE_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:".contains(&byte));
    if !is_name {
        let fix = match name.rsplit_once(':').filter(|(host, _)| host.parse::<Ipv4Addr>().is_ok()) {
            Some((host, _)) => format!("write \"{host}\": the system chooses the port"),
            None => FIX.to_owned(),
        };
        let what = format!("`source`: \"{}\" is no address and no interface", shown(name));
        section.report.error(found.span, what, fix);
        return None;
    }
    Some(BackendSource::Interface(name.to_owned()))
}
