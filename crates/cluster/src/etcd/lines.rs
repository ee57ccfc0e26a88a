//! Lines of a stream that comes in pieces, none longer than a limit.

/// Pieces on one side, whole lines on the other.
#[derive(Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// Bytes of the buffer that are known to have no line end.
    searched: usize,
}

/// A line is longer than it may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Room that is kept when a long line is gone.
const KEPT_BYTES_MAX: usize = 64 << 10;

impl Lines {
    /// Takes a piece. All whole lines have to be taken before the next one.
    pub fn push(&mut self, piece: &[u8], line_bytes_max: usize) -> Result<(), TooLong> {
        if self.buffer.len() > line_bytes_max {
            return Err(TooLong);
        }
        self.buffer.extend_from_slice(piece);
        Ok(())
    }

    /// The next whole line that is not blank, without its end.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        while let Some(length) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
            let mut line: Vec<u8> = self.buffer.drain(..=self.searched + length).collect();
            self.searched = 0;
            line.pop();
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
        self.searched = self.buffer.len();
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = Vec::new();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_are_cut() {
        let text = b"one\n\n  \r\ntwo\nthree\nrest";
        for piece in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for bytes in text.chunks(piece) {
                lines.push(bytes, 100).unwrap();
                while let Some(line) = lines.next() {
                    found.push(line);
                }
            }
            assert_eq!(found, [&b"one"[..], b"two", b"three"], "in pieces of {piece}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused_in_time() {
        let mut lines = Lines::default();
        let mut taken = 0;
        while lines.push(&[b'x'; 100], 1000).is_ok() {
            taken += 100;
            assert!(lines.next().is_none());
            assert!(taken <= 1100, "{taken} bytes");
        }
        assert!(taken >= 1000);
    }
}
