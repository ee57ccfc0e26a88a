//! DER (X.690 §10), as far as keys, requests and responses are read: elements of up to 16 MiB with tags of one byte.

/// Reader of DER, one element after the other.
pub struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    #[must_use]
    pub fn next_is(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// The content of the next element, which must have this tag.
    pub fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, content) = self.any()?;
        (found == tag).then_some(content)
    }

    /// The content of the next element, which must have this tag and be the last.
    #[must_use]
    pub fn only(mut self, tag: u8) -> Option<&'a [u8]> {
        let content = self.take(tag)?;
        self.0.is_empty().then_some(content)
    }

    /// The tag and the content of the next element.
    pub fn any(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_one_after_the_other_and_nothing_beyond_the_end() {
        let mut der = Der(&[4, 1, 7, 0x30, 0x81, 2, 5, 0]);
        assert_eq!((der.next_is(4), der.take(4)), (true, Some(&[7][..])));
        assert_eq!((der.any(), der.any()), (Some((0x30, &[5, 0][..])), None));
        assert_eq!((Der(&[4, 0]).only(4), Der(&[4, 0, 5, 0]).only(4)), (Some(&[][..]), None));
        for malformed in [&[][..], &[4], &[4, 2, 0], &[4, 0x80], &[4, 0x84, 0, 0, 0, 1, 0], &[4, 0x82, 1]] {
            assert_eq!(Der(malformed).any(), None, "{malformed:?}");
        }
    }
}
