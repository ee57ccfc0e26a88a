//! The static table (RFC 7541 Appendix A).

use crate::h1::{Name, Pseudo};

/// A field of the static table.
pub struct Static {
    pub name: &'static str,
    pub value: &'static str,
    pub kind: Name,
}

/// Fields of the static table; the first has the index 1.
pub const COUNT: usize = 61;

#[rustfmt::skip]
pub static FIELDS: [Static; COUNT] = [
    Static { name: ":authority", value: "", kind: Name::Pseudo(Pseudo::Authority) },
    Static { name: ":method", value: "GET", kind: Name::Pseudo(Pseudo::Method) },
    Static { name: ":method", value: "POST", kind: Name::Pseudo(Pseudo::Method) },
    Static { name: ":path", value: "/", kind: Name::Pseudo(Pseudo::Path) },
    Static { name: ":path", value: "/index.html", kind: Name::Pseudo(Pseudo::Path) },
    Static { name: ":scheme", value: "http", kind: Name::Pseudo(Pseudo::Scheme) },
    Static { name: ":scheme", value: "https", kind: Name::Pseudo(Pseudo::Scheme) },
    Static { name: ":status", value: "200", kind: Name::Pseudo(Pseudo::Status) },
    Static { name: ":status", value: "204", kind: Name::Pseudo(Pseudo::Status) },
    Static { name: ":status", value: "206", kind: Name::Pseudo(Pseudo::Status) },
    Static { name: ":status", value: "304", kind: Name::Pseudo(Pseudo::Status) },
    Static { name: ":status", value: "400", kind: Name::Pseudo(Pseudo::Status) },
    Static { name: ":status", value: "404", kind: Name::Pseudo(Pseudo::Status) },
    Static { name: ":status", value: "500", kind: Name::Pseudo(Pseudo::Status) },
    Static { name: "accept-charset", value: "", kind: Name::Other },
    Static { name: "accept-encoding", value: "gzip, deflate", kind: Name::Other },
    Static { name: "accept-language", value: "", kind: Name::Other },
    Static { name: "accept-ranges", value: "", kind: Name::Other },
    Static { name: "accept", value: "", kind: Name::Other },
    Static { name: "access-control-allow-origin", value: "", kind: Name::Other },
    Static { name: "age", value: "", kind: Name::Other },
    Static { name: "allow", value: "", kind: Name::Other },
    Static { name: "authorization", value: "", kind: Name::EndToEnd },
    Static { name: "cache-control", value: "", kind: Name::EndToEnd },
    Static { name: "content-disposition", value: "", kind: Name::Other },
    Static { name: "content-encoding", value: "", kind: Name::EndToEnd },
    Static { name: "content-language", value: "", kind: Name::Other },
    Static { name: "content-length", value: "", kind: Name::ContentLength },
    Static { name: "content-location", value: "", kind: Name::Other },
    Static { name: "content-range", value: "", kind: Name::EndToEnd },
    Static { name: "content-type", value: "", kind: Name::EndToEnd },
    Static { name: "cookie", value: "", kind: Name::EndToEnd },
    Static { name: "date", value: "", kind: Name::Date },
    Static { name: "etag", value: "", kind: Name::Other },
    Static { name: "expect", value: "", kind: Name::Expect },
    Static { name: "expires", value: "", kind: Name::Other },
    Static { name: "from", value: "", kind: Name::Other },
    Static { name: "host", value: "", kind: Name::Host },
    Static { name: "if-match", value: "", kind: Name::Other },
    Static { name: "if-modified-since", value: "", kind: Name::Other },
    Static { name: "if-none-match", value: "", kind: Name::Other },
    Static { name: "if-range", value: "", kind: Name::Other },
    Static { name: "if-unmodified-since", value: "", kind: Name::Other },
    Static { name: "last-modified", value: "", kind: Name::Other },
    Static { name: "link", value: "", kind: Name::Other },
    Static { name: "location", value: "", kind: Name::EndToEnd },
    Static { name: "max-forwards", value: "", kind: Name::MaxForwards },
    Static { name: "proxy-authenticate", value: "", kind: Name::ProxyAuthenticate },
    Static { name: "proxy-authorization", value: "", kind: Name::ProxyAuthorization },
    Static { name: "range", value: "", kind: Name::Other },
    Static { name: "referer", value: "", kind: Name::Other },
    Static { name: "refresh", value: "", kind: Name::Other },
    Static { name: "retry-after", value: "", kind: Name::Other },
    Static { name: "server", value: "", kind: Name::Server },
    Static { name: "set-cookie", value: "", kind: Name::EndToEnd },
    Static { name: "strict-transport-security", value: "", kind: Name::Other },
    Static { name: "transfer-encoding", value: "", kind: Name::TransferEncoding },
    Static { name: "user-agent", value: "", kind: Name::Other },
    Static { name: "vary", value: "", kind: Name::EndToEnd },
    Static { name: "via", value: "", kind: Name::Via },
    Static { name: "www-authenticate", value: "", kind: Name::EndToEnd },
];

/// Names of the table by their length, as indexes of their first fields.
static BY_LENGTH: [&[u8]; 28] = [
    &[],
    &[],
    &[],
    &[21, 60],
    &[33, 34, 37, 38, 45, 59],
    &[22, 50],
    &[19, 32, 35, 54],
    &[36, 51, 52],
    &[39, 42, 46],
    &[],
    &[55, 58],
    &[53],
    &[31, 47],
    &[18, 23, 24, 30, 41, 44],
    &[15, 28],
    &[16, 17],
    &[26, 27, 29, 61],
    &[40, 57],
    &[48],
    &[25, 43, 49],
    &[],
    &[],
    &[],
    &[],
    &[],
    &[56],
    &[],
    &[20],
];

/// Index of the first field of this name, whatever its case; `None` for names that the table does not have. Names of
/// pseudo-header fields are asked for by nobody.
#[inline]
pub fn index_of(name: &[u8]) -> Option<usize> {
    let first = name.first()? | 0x20;
    let candidates = BY_LENGTH.get(name.len())?.iter().map(|index| usize::from(*index));
    candidates.into_iter().find(|index| {
        let known = FIELDS[index - 1].name.as_bytes();
        known[0] == first && is_name(known, name)
    })
}

/// Whether `name`, in whatever case, is a name that is known in lower case.
#[inline]
pub fn is_name(known: &[u8], name: &[u8]) -> bool {
    if known.len() != name.len() {
        return false;
    }
    // Eight bytes at a time, the last ones with some that were compared before: names are compared for each field.
    let (Some(known_last), Some(last)) = (known.last_chunk::<8>(), name.last_chunk::<8>()) else {
        return known.eq_ignore_ascii_case(name);
    };
    let is_same = |known: &[u8; 8], other: &[u8; 8]| u64::from_le_bytes(*known) == to_lower(u64::from_le_bytes(*other));
    let chunks = known.as_chunks::<8>().0.iter().zip(name.as_chunks::<8>().0);
    chunks.into_iter().all(|(known, other)| is_same(known, other)) && is_same(known_last, last)
}

/// Eight bytes with the capital letters among them made small.
fn to_lower(bytes: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let low_bits = bytes & (ONES * 0x7f);
    let is_from_a = low_bits + ONES * u64::from(0x80 - b'A');
    let is_beyond_z = low_bits + ONES * u64::from(0x7f - b'Z');
    let is_ascii = !bytes & (ONES * 0x80);
    // The bit of 0x80 in each capital letter, moved to that which makes it small.
    bytes | (is_ascii & (is_from_a ^ is_beyond_z)) >> 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_names() {
        for field in &FIELDS {
            let expected = match Pseudo::of(field.name.as_bytes()) {
                Some(pseudo) => Name::Pseudo(pseudo),
                None => Name::of(field.name.as_bytes()),
            };
            assert_eq!(field.kind, expected, "{}", field.name);
        }
    }

    #[test]
    fn names_are_compared_as_the_standard_library_does() {
        let mut random = fastrand::Rng::with_seed(11);
        for byte in 0..=u8::MAX {
            assert_eq!(to_lower(u64::from_le_bytes([byte; 8])), u64::from_le_bytes([byte.to_ascii_lowercase(); 8]));
        }
        for _ in 0..20_000 {
            let known: Vec<u8> = (0..random.usize(..30)).map(|_| random.u8(..).to_ascii_lowercase()).collect();
            let mut name = known.clone();
            name.iter_mut().filter(|_| random.bool()).for_each(u8::make_ascii_uppercase);
            assert!(is_name(&known, &name));
            if let Some(place) = (!name.is_empty()).then(|| random.usize(..name.len())) {
                name[place] ^= 1 << random.u8(..8);
                assert_eq!(is_name(&known, &name), known.eq_ignore_ascii_case(&name), "{known:?} {name:?}");
            }
        }
    }

    #[test]
    fn names_are_found_in_any_case_at_their_first_place() {
        for field in FIELDS.iter().filter(|field| !field.name.starts_with(':')) {
            let expected = FIELDS.iter().position(|known| known.name == field.name).unwrap() + 1;
            assert_eq!(index_of(field.name.as_bytes()), Some(expected));
            assert_eq!(index_of(field.name.to_ascii_uppercase().as_bytes()), Some(expected));
        }
        for unknown in ["", "x", "accept-", "content-lengti", "a-name-that-is-longer-than-any-of-them"] {
            assert_eq!(index_of(unknown.as_bytes()), None);
        }
    }
}
