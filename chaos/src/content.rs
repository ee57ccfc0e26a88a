//! Bodies that follow from a request's number: either side can make them, and tell any other from them at any offset.

/// Whose body it is; the two of one request differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Request,
    Response,
}

/// The bytes of one body, from any offset on.
#[derive(Clone, Copy, Debug)]
pub struct Content(u64);

impl Content {
    pub fn of(id: u64, side: Side) -> Self {
        Self(id.wrapping_mul(2) + u64::from(side == Side::Response))
    }

    fn byte(self, offset: u64) -> u8 {
        (mixed(self.0 ^ mixed(offset / 8)) >> (offset % 8 * 8)) as u8
    }

    pub fn fill(self, offset: u64, out: &mut [u8]) {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let word = mixed(self.0 ^ mixed(at / 8)).to_le_bytes();
            let from = (at % 8) as usize;
            let count = rest.len().min(8 - from);
            let (head, tail) = rest.split_at_mut(count);
            head.copy_from_slice(&word[from..from + count]);
            (at, rest) = (at + count as u64, tail);
        }
    }

    pub fn bytes(self, offset: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(offset, &mut bytes);
        bytes
    }

    /// The offset of the first byte that is not the body's.
    pub fn first_wrong(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let expected = self.bytes(offset, bytes.len());
        let wrong = bytes.iter().zip(&expected).position(|(got, expected)| got != expected)?;
        debug_assert_ne!(self.byte(offset + wrong as u64), bytes[wrong]);
        Some(offset + wrong as u64)
    }
}

/// SplitMix64's finalizer: neighbours in, strangers out.
fn mixed(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_the_same_in_any_pieces_and_no_other_request_has_it() {
        let body = Content::of(7, Side::Response);
        let whole = body.bytes(0, 100);
        for cut in 0..100 {
            let pieces = [body.bytes(0, cut), body.bytes(cut as u64, 100 - cut)].concat();
            assert_eq!(pieces, whole);
        }
        assert_eq!(body.first_wrong(3, &whole[3..]), None);
        for other in [Content::of(7, Side::Request), Content::of(8, Side::Response)] {
            assert!(other.first_wrong(0, &whole).is_some());
        }
    }

    #[test]
    fn a_byte_that_is_wrong_or_missing_is_found_where_it_is() {
        let body = Content::of(9, Side::Request);
        let mut bytes = body.bytes(0, 64);
        bytes[41] ^= 1;
        assert_eq!(body.first_wrong(0, &bytes), Some(41));
        let mut gap = body.bytes(0, 64);
        gap.remove(20);
        assert!(body.first_wrong(0, &gap).is_some_and(|at| (20..24).contains(&at)));
    }
}
