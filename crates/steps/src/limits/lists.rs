//! Lists of networks and values from files: one of them a line, `#` begins a comment.

use std::collections::HashSet;
use std::hash::Hasher;
use std::net::IpAddr;

use propylon_config::network;

use super::Secret;

/// Bytes of a list's file.
pub const LIST_BYTES_MAX: u64 = 64 << 20;
const LINE_BYTES_MAX: usize = 4096;

/// A list of networks, and of other values.
#[derive(Debug, PartialEq, Eq)]
pub struct List {
    secret: Secret,
    /// Networks of IPv4 and of IPv6, apart from each other as in `source` of a route: `::/0` is nobody's with IPv4.
    four: Ranges,
    six: Ranges,
    /// Hashes of values, with the secret: the values may be keys of an API, and are nowhere in memory.
    values: HashSet<u64>,
}

/// First and last addresses of networks; in order and apart from each other, once they are united.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ranges(Vec<(u128, u128)>);

impl List {
    pub fn new(secret: Secret) -> List {
        List { secret, four: Ranges::default(), six: Ranges::default(), values: HashSet::new() }
    }

    /// Adds the lines of a file; `has_values`: of a limit whose keys are more than addresses. An error has the number
    /// of the line, and what is wrong with it.
    pub fn add(&mut self, text: &[u8], has_values: bool) -> Result<(), (usize, String)> {
        for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            // A comment behind an entry is set off by a space: values may have the sign in them.
            let end = line.windows(2).position(|pair| pair[0].is_ascii_whitespace() && pair[1] == b'#');
            let entry = line[..end.unwrap_or(line.len())].trim_ascii();
            if entry.len() > LINE_BYTES_MAX || entry.iter().any(u8::is_ascii_control) {
                return Err((
                    number,
                    "it is no network and no value: it is too long, or has control characters".into(),
                ));
            }
            self.add_entry(entry, has_values).map_err(|what| (number, what))?;
        }
        self.four.unite();
        self.six.unite();
        Ok(())
    }

    fn add_entry(&mut self, entry: &[u8], has_values: bool) -> Result<(), String> {
        let text = std::str::from_utf8(entry).unwrap_or_default();
        let bare = text.split('/').next().unwrap_or_default();
        if bare.parse::<IpAddr>().is_err() {
            if !has_values {
                return Err("it is no network and no address, and this limit's key has no other values".into());
            }
            self.values.insert(self.hash(entry));
            return Ok(());
        }
        let network = network(text).map_err(|(what, fix)| format!("{what}; {fix}"))?;
        let (ranges, width, first) = match network.address {
            IpAddr::V4(address) => (&mut self.four, 32, address.to_bits().into()),
            IpAddr::V6(address) => (&mut self.six, 128, address.to_bits()),
        };
        let rest = 1_u128.checked_shl(width - u32::from(network.prefix)).map_or(u128::MAX, |size| size - 1);
        ranges.0.push((first, first | rest));
        Ok(())
    }

    /// Whether an address is in one of the networks. IPv4 mapped into IPv6 counts as IPv4.
    pub fn has_address(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => self.four.has(address.to_bits().into()),
            IpAddr::V6(address) => self.six.has(address.to_bits()),
        }
    }

    pub fn has_value(&self, value: &[u8]) -> bool {
        self.values.contains(&self.hash(value))
    }

    fn hash(&self, value: &[u8]) -> u64 {
        let mut hasher = self.secret.hasher();
        hasher.write(value);
        hasher.finish()
    }

    /// Whether nobody is on it.
    pub fn is_empty(&self) -> bool {
        self.four.0.is_empty() && self.six.0.is_empty() && self.values.is_empty()
    }

    /// Whether there is anything but networks.
    pub fn has_values(&self) -> bool {
        !self.values.is_empty()
    }
}

impl Ranges {
    /// Sorts the ranges, and joins those that overlap or touch.
    fn unite(&mut self) {
        self.0.sort_unstable();
        let mut united: Vec<(u128, u128)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0.drain(..) {
            match united.last_mut() {
                Some(known) if first <= known.1.saturating_add(1) => known.1 = known.1.max(last),
                _ => united.push((first, last)),
            }
        }
        united.shrink_to_fit();
        self.0 = united;
    }

    fn has(&self, bits: u128) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= bits);
        after > 0 && self.0[after - 1].1 >= bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> List {
        let mut list = List::new(Secret([1, 2]));
        list.add(text.as_bytes(), true).expect("a list");
        list
    }

    #[test]
    fn networks_and_values_stand_one_a_line_with_comments() {
        let list =
            list("# ours\n10.0.0.0/8\r\n\n 192.0.2.7  # one\nfd00::/8\nkey#1\n2001:db8::1\n10.1.0.0/16\n11.0.0.0/8\n");
        for (address, wanted) in [
            ("10.255.255.255", true),
            ("11.2.3.4", true),
            ("12.0.0.0", false),
            ("9.255.255.255", false),
            ("192.0.2.7", true),
            ("::ffff:192.0.2.7", true),
            ("192.0.2.8", false),
            ("fdff::1", true),
            ("fe00::", false),
            ("2001:db8::1", true),
            ("2001:db8::2", false),
        ] {
            assert_eq!(list.has_address(address.parse().unwrap()), wanted, "{address}");
        }
        assert!(list.has_value(b"key#1") && !list.has_value(b"key") && list.has_values());
        assert!(!list.has_value(b"# ours") && !list.has_value(b""), "a comment and an empty line are no values");
        let of = |text: &str, value: &str| self::list(text).has_value(value.as_bytes());
        assert!(of("a b #c", "a b") && of("a b#c", "a b#c") && !self::list("10.0.0.0/8").has_values());
        let long = "x".repeat(LINE_BYTES_MAX);
        assert!(of(&long, &long) && List::new(Secret([1, 2])).add(format!("{long}x").as_bytes(), true).is_err());
        assert_eq!((list.four.0.len(), list.six.0.len()), (2, 2), "10/8 and 11/8 are one range");
    }

    #[test]
    fn a_list_of_addresses_has_nothing_else() {
        for line in ["127.0.0", "10.0.0.300", "10.0.0.1-10.0.0.9", "127.0.0.1,10.0.0.1", "127.0.0.1# x", "abc"] {
            let mut list = List::new(Secret([1, 2]));
            let (number, what) = list.add(format!("10.0.0.1\n{line}\n").as_bytes(), false).expect_err(line);
            assert_eq!((number, what.contains("no network and no address")), (2, true), "{line}");
        }
        assert_eq!(List::new(Secret([1, 2])).add(b"# none\n10.0.0.1 # one\n::/0\n", false), Ok(()));
    }

    #[test]
    fn everything_is_a_network_as_well() {
        assert!(list("0.0.0.0/0").has_address("255.255.255.255".parse().unwrap()));
        assert!(!list("0.0.0.0/0").has_address("::1".parse().unwrap()));
        assert!(list("::/0\n::/1").has_address("ffff::".parse().unwrap()));
    }

    #[test]
    fn a_network_of_ipv6_has_nobody_with_ipv4_in_it_and_mapped_addresses_are_ipv4() {
        for (text, address, wanted) in [
            ("::/0", "10.0.0.1", false),
            ("::/0", "::ffff:10.0.0.1", false),
            ("::/80", "10.0.0.1", false),
            ("::/0", "::10.0.0.1", true),
            ("::/0\n10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("0.0.0.0/0", "::ffff:10.0.0.1", true),
            ("0.0.0.0/0", "::10.0.0.1", false),
            ("0.0.0.0/0", "::", false),
            ("255.255.255.255\n::", "0.0.0.0", false),
        ] {
            assert_eq!(list(text).has_address(address.parse().unwrap()), wanted, "{text:?} {address}");
            let networks: Vec<_> = text.lines().map(|line| network(line).unwrap()).collect();
            let has = networks.iter().any(|network| network.contains(address.parse().unwrap()));
            assert_eq!(has, wanted, "as `source` has it: {text:?} {address}");
        }
    }

    #[test]
    fn what_looks_like_a_network_and_is_none_is_refused_with_its_line() {
        for (text, line, part) in [
            ("10.0.0.0/8\n10.0.0.1/8", 2, "10.0.0.0/8"),
            ("10.0.0.0/33", 1, "use 0 to 32"),
            ("a\x01b", 1, "control characters"),
        ] {
            let (number, what) = List::new(Secret([1, 2])).add(text.as_bytes(), true).unwrap_err();
            assert!(number == line && what.contains(part), "{number} {what}");
        }
    }

    #[test]
    fn lists_agree_with_their_networks_for_any_seed() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let texts: Vec<String> = (0..200)
                .map(|_| {
                    let prefix = random.u32(8..=32);
                    let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
                    format!("{}/{prefix}", std::net::Ipv4Addr::from_bits(random.u32(..1 << 28) & mask))
                })
                .collect();
            let networks: Vec<_> = texts.iter().map(|text| network(text).unwrap()).collect();
            let list = list(&texts.join("\n"));
            for _ in 0..500 {
                let address = IpAddr::from(random.u32(..1 << 28).to_be_bytes());
                let wanted = networks.iter().any(|network| network.contains(address));
                assert_eq!(list.has_address(address), wanted, "seed {seed}: {address}");
            }
        }
    }
}
