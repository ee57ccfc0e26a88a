//! Accept-Encoding: which codings a client takes, and how much it likes each (RFC 9110 §12.5.3).

use propylon_config::Encoding;
use propylon_http::h1::elements;

/// Weight in thousandths; 0: not acceptable (RFC 9110 §12.4.2).
type Weight = u16;

const WEIGHT_MAX: Weight = 1000;

/// Codings that a client takes. What it does not mention is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    zstd: Option<Weight>,
    br: Option<Weight>,
    gzip: Option<Weight>,
    identity: Option<Weight>,
    any: Option<Weight>,
}

impl Accepted {
    /// Reads the values of all Accept-Encoding fields of a request. Of several mentions of a coding the first counts; a
    /// coding with a weight that is none, or with other parameters, is not acceptable, and `identity` with such is as
    /// good as not mentioned.
    pub fn of<'v>(values: impl Iterator<Item = &'v [u8]>) -> Accepted {
        let mut accepted = Accepted::default();
        for element in values.flat_map(elements) {
            let (coding, parameters) = match element.iter().position(|byte| *byte == b';') {
                Some(at) => (element[..at].trim_ascii_end(), Some(&element[at + 1..])),
                None => (element, None),
            };
            let weight = parameters.map_or(Some(WEIGHT_MAX), weight);
            let is = |known: &str| coding.eq_ignore_ascii_case(known.as_bytes());
            // `x-gzip` is the same (RFC 9110 §8.4.1.3).
            let place = match coding.len() {
                1 if is("*") => &mut accepted.any,
                2 if is("br") => &mut accepted.br,
                4 if is("zstd") => &mut accepted.zstd,
                4 if is("gzip") => &mut accepted.gzip,
                6 if is("x-gzip") => &mut accepted.gzip,
                8 if is("identity") && weight.is_some() => &mut accepted.identity,
                _ => continue,
            };
            if place.is_none() {
                *place = Some(weight.unwrap_or(0));
            }
        }
        accepted
    }

    /// The coding that the client likes best, of some in the order in which we like them; `None` if it likes none, or
    /// the body as it is better.
    pub fn choose(&self, encodings: &[Encoding]) -> Option<Encoding> {
        let mut best: Option<(Weight, Encoding)> = None;
        for encoding in encodings {
            let weight = self.weight(*encoding);
            if weight > best.map_or(0, |(weight, _)| weight) {
                best = Some((weight, *encoding));
            }
        }
        best.filter(|(weight, _)| *weight >= self.identity().unwrap_or(0)).map(|(_, encoding)| encoding)
    }

    /// Whether the client has said that it takes no body as it is.
    pub fn refuses_identity(&self) -> bool {
        self.identity() == Some(0)
    }

    fn weight(&self, encoding: Encoding) -> Weight {
        let mentioned = match encoding {
            Encoding::Zstd => self.zstd,
            Encoding::Br => self.br,
            Encoding::Gzip => self.gzip,
        };
        mentioned.or(self.any).unwrap_or(0)
    }

    /// "If the representation has no content coding, then it is acceptable by default unless specifically excluded".
    fn identity(&self) -> Option<Weight> {
        self.identity.or(self.any)
    }
}

/// The weight that `q=...` says; `None` if that is not what is said.
fn weight(parameters: &[u8]) -> Option<Weight> {
    let [b'q' | b'Q', b'=', digits @ ..] = parameters.trim_ascii() else { return None };
    let (whole, fraction) = match digits {
        [whole] => (whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    if !whole.is_ascii_digit() || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut weight = Weight::from(whole - b'0') * WEIGHT_MAX;
    for (digit, unit) in fraction.iter().zip([100, 10, 1]) {
        weight += Weight::from(digit - b'0') * unit;
    }
    (weight <= WEIGHT_MAX).then_some(weight)
}

#[cfg(test)]
mod tests {
    use propylon_config::Encoding::{Br, Gzip, Zstd};

    use super::*;

    fn accepted(values: &[&str]) -> Accepted {
        Accepted::of(values.iter().map(|value| value.as_bytes()))
    }

    fn chosen(value: &str) -> Option<Encoding> {
        accepted(&[value]).choose(&Encoding::ALL)
    }

    #[test]
    fn the_coding_that_is_liked_best_is_chosen_and_ours_among_equals() {
        for (value, expected) in [
            ("gzip, deflate, br, zstd", Some(Zstd)),
            ("gzip, deflate, br", Some(Br)),
            ("gzip, deflate", Some(Gzip)),
            ("x-gzip", Some(Gzip)),
            ("GZip;Q=0.5 , bR;q=0.6", Some(Br)),
            ("gzip;q=1.0, br;q=0.999, zstd;q=0.1", Some(Gzip)),
            ("gzip ; q=0.001", Some(Gzip)),
            ("gzip; q=0.5;", None),
            ("deflate", None),
            ("", None),
            ("identity", None),
            ("gzip;q=0", None),
            ("gzip;q=0.000", None),
            ("*", Some(Zstd)),
            ("zstd;q=0, *;q=0.5", Some(Br)),
            ("*;q=0", None),
            ("*;q=0, gzip", Some(Gzip)),
            ("gzip;q=0.5, identity", None),
            ("gzip;q=0.5, identity;q=0.5", Some(Gzip)),
            ("gzip, identity;q=0", Some(Gzip)),
            ("gzip;q=2", None),
            ("gzip;q=1.001", None),
            ("gzip;q=0.1234", None),
            ("gzip;q=", None),
            ("gzip;q", None),
            ("gzip;q=.5", None),
            ("gzip;q=-1", None),
            ("gzip;level=9", None),
            ("gzip;q=0, gzip", None),
            (",, ,gzip,", Some(Gzip)),
        ] {
            assert_eq!(chosen(value), expected, "{value:?}");
        }
        assert_eq!(accepted(&["br;q=0.1", "gzip"]).choose(&Encoding::ALL), Some(Gzip), "two fields are one list");
        assert_eq!(accepted(&["zstd, br"]).choose(&[Gzip, Br]), Some(Br), "those of the route alone");
        assert_eq!(accepted(&[]).choose(&Encoding::ALL), None);
    }

    #[test]
    fn a_client_refuses_bodies_as_they_are_by_saying_so() {
        for value in ["identity;q=0", "gzip, *;q=0", "*;q=0.0"] {
            assert!(accepted(&[value]).refuses_identity(), "{value}");
        }
        for value in ["gzip", "", "identity;q=0.1, *;q=0", "identity;q=0x, gzip", "gzip;q=0"] {
            assert!(!accepted(&[value]).refuses_identity(), "{value}");
        }
    }

    /// Texts of what such fields are made of, and of some other bytes.
    fn text(random: &mut fastrand::Rng) -> Vec<u8> {
        let pieces: [&[u8]; 18] = [
            b"gzip",
            b"br",
            b"zstd",
            b"identity",
            b"*",
            b",",
            b", ",
            b";",
            b";q=",
            b"q=",
            b"0",
            b"1",
            b".",
            b"0.5",
            b"\t",
            b" ",
            b"\xff",
            b"=",
        ];
        (0..random.usize(..24)).flat_map(|_| random.choice(&pieces).copied().unwrap_or_default().to_vec()).collect()
    }

    #[test]
    fn no_text_makes_the_choice_contradict_itself() {
        let mut random = fastrand::Rng::with_seed(9);
        for round in 0..200_000 {
            let text = text(&mut random);
            let shown = String::from_utf8_lossy(&text);
            let all = Accepted::of([&text[..]].into_iter());
            let choice = all.choose(&Encoding::ALL);
            // A coding that is chosen of all is acceptable alone, and the text names it in some way.
            if let Some(choice) = choice {
                assert_eq!(all.choose(&[choice]), Some(choice), "{round}: {shown:?}");
                let lower = shown.to_ascii_lowercase();
                assert!(lower.contains(choice.name()) || lower.contains('*'), "{round}: {shown:?}");
            }
            assert_eq!(all.choose(&[]), None);
            // Lists are the same in one field or in many, and whatever stands around them.
            let parts: Vec<&[u8]> = text.split(|byte| *byte == b',').collect();
            assert_eq!(Accepted::of(parts.iter().copied()), all, "{round}: {shown:?}");
            let padded = [b" ,", &text[..], b", \t"].concat();
            assert_eq!(Accepted::of([&padded[..]].into_iter()), all, "{round}: {shown:?}");
        }
    }
}
