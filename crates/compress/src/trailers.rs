//! Trailers of a body that was compressed.

use crate::rewrite::is_of_bytes;

/// Lines of the trailers without those that hold for the bytes as their server has sent them.
pub fn kept(lines: Vec<u8>) -> Vec<u8> {
    if lines.is_empty() {
        return lines;
    }
    let is_kept = |line: &&[u8]| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        !is_of_bytes(name.trim_ascii())
    };
    lines.split_inclusive(|byte| *byte == b'\n').filter(is_kept).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_other_bytes_do_not_follow() {
        let lines = b"X-Time: 3\r\nContent-Digest: sha-256=:x:\r\nrepr-digest: y\r\nX-Last: Digest: z\r\n";
        assert_eq!(kept(lines.to_vec()), b"X-Time: 3\r\nX-Last: Digest: z\r\n");
        assert_eq!(kept(Vec::new()), b"");
    }
}
