//! A script's response: its head as CGI writes it (RFC 3875 §6), as a head of HTTP/1.1.
//!
//! The head that comes out is read by the parser of servers' heads, as strictly as any. Done here is what CGI has
//! other than HTTP: lines may end with a line feed alone, the status is a field, and fields about the connection mean
//! nothing, since a script has none.

/// Fields about one hop, in lower case.
const WITHHELD: &[&[u8]] =
    &[b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"];

/// A script's head is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    Status,
    SeveralStatuses,
    /// A line that is no field, or the continuation of one.
    Line,
    TooLong,
}

impl std::fmt::Display for Flaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Flaw::Status => "a status that is none of a final response",
            Flaw::SeveralStatuses => "several statuses",
            Flaw::Line => "a line that is no field",
            Flaw::TooLong => "no end of the head",
        })
    }
}

/// A script's head, as far as it is here.
#[derive(Debug, Default)]
pub struct Head {
    text: Vec<u8>,
}

impl Head {
    /// Takes the next bytes of a response, of which so many may be its head. Returns how many of these belong to the
    /// head, once it is whole.
    ///
    /// # Errors
    /// A head has no end within `most` bytes.
    pub fn take(&mut self, bytes: &[u8], most: usize) -> Result<Option<usize>, Flaw> {
        for (at, byte) in bytes.iter().enumerate() {
            self.text.push(*byte);
            let is_end = *byte == b'\n' && {
                let before = &self.text[..self.text.len() - 1];
                let before = before.strip_suffix(b"\r").unwrap_or(before);
                before.is_empty() || before.ends_with(b"\n")
            };
            if is_end {
                return Ok(Some(at + 1));
            }
            if self.text.len() == most {
                return Err(Flaw::TooLong);
            }
        }
        Ok(None)
    }

    /// Whether nothing has come.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The whole head as HTTP/1.1 writes it. `whole`: length of the body, where all of it is here and its script has
    /// not said so.
    ///
    /// # Errors
    /// A head says no status of a final response, or has a line that is no field.
    pub fn translate(&self, whole: Option<u64>) -> Result<Vec<u8>, Flaw> {
        let mut lines = self.text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let (mut status, mut fields, mut has_location, mut has_length) = (None, Vec::new(), false, false);
        let mut lines = lines.by_ref().take_while(|line| !line.is_empty()).peekable();
        // Scripts that write heads of HTTP themselves.
        if let Some(line) = lines.next_if(|line| line.starts_with(b"HTTP/")) {
            let rest = line.iter().position(|byte| *byte == b' ').map_or(&line[..0], |space| &line[space + 1..]);
            status = Some(checked(rest)?);
        }
        for line in lines {
            let colon = line.iter().position(|byte| *byte == b':').ok_or(Flaw::Line)?;
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.is_empty() || name.iter().any(u8::is_ascii_whitespace) {
                return Err(Flaw::Line);
            }
            if name.eq_ignore_ascii_case(b"status") {
                if status.replace(checked(value)?).is_some() {
                    return Err(Flaw::SeveralStatuses);
                }
                continue;
            }
            if WITHHELD.iter().any(|withheld| withheld.eq_ignore_ascii_case(name)) {
                continue;
            }
            has_location |= name.eq_ignore_ascii_case(b"location");
            has_length |= name.eq_ignore_ascii_case(b"content-length");
            fields.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
        // Clients are sent to a Location without a status, also to one without a host (RFC 3875 §6.2.2).
        let status = status.unwrap_or(if has_location { b"302 Found" } else { b"200 OK" });
        let mut head = [b"HTTP/1.1 ", status, b"\r\n", &fields].concat();
        let may_have_body = !matches!(&status[..3], b"204" | b"304");
        if let Some(length) = whole.filter(|_| !has_length && may_have_body) {
            head.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        Ok(head)
    }
}

/// Status and reason, if they are those of a final response.
fn checked(status: &[u8]) -> Result<&[u8], Flaw> {
    match status {
        [b'2'..=b'5', b'0'..=b'9', b'0'..=b'9'] | [b'2'..=b'5', b'0'..=b'9', b'0'..=b'9', b' ', ..] => Ok(status),
        _ => Err(Flaw::Status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(cgi: &str, whole: Option<u64>) -> Result<String, Flaw> {
        let mut head = Head::default();
        assert_eq!(head.take(cgi.as_bytes(), 32_768)?, Some(cgi.len()));
        head.translate(whole).map(|head| String::from_utf8(head).unwrap())
    }

    #[test]
    fn heads_of_scripts_become_heads_of_http() {
        let head = translated("Status: 404 Not Found\r\nX-A:b\r\nContent-type: text/html\r\n\r\n", None).unwrap();
        assert_eq!(head, "HTTP/1.1 404 Not Found\r\nX-A: b\r\nContent-type: text/html\r\n\r\n");
        let head = translated("Content-type: text/html\nSet-Cookie: a\nSet-Cookie: b\n\n", Some(7)).unwrap();
        let expected =
            "HTTP/1.1 200 OK\r\nContent-type: text/html\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 7\r\n\r\n";
        assert_eq!(head, expected);
        assert_eq!(translated("\r\n", None).unwrap(), "HTTP/1.1 200 OK\r\n\r\n");
        let head = translated("HTTP/1.0 503 Oh\r\nA: b\r\n\r\n", None).unwrap();
        assert_eq!(head, "HTTP/1.1 503 Oh\r\nA: b\r\n\r\n");
        assert_eq!(translated("Status: 201\n\n", None).unwrap(), "HTTP/1.1 201\r\n\r\n");
    }

    #[test]
    fn a_location_alone_sends_the_client_elsewhere() {
        for place in ["/there", "https://example.com/"] {
            let head = translated(&format!("Location: {place}\n\n"), None).unwrap();
            assert_eq!(head, format!("HTTP/1.1 302 Found\r\nLocation: {place}\r\n\r\n"));
            let head = translated(&format!("Status: 201 Made\nLocation: {place}\n\n"), None).unwrap();
            assert!(head.starts_with("HTTP/1.1 201 Made\r\n"));
        }
    }

    #[test]
    fn a_scripts_word_on_the_connection_is_not_handed_on_and_lengths_are_told_where_there_are_bodies() {
        let cgi = "Connection: close\nTransfer-Encoding: chunked\nKeep-Alive: x\nUpgrade: h2c\nTrailer: a\nA: b\n\n";
        assert_eq!(translated(cgi, Some(0)).unwrap(), "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 0\r\n\r\n");
        assert!(!translated("Status: 304 Not Modified\n\n", Some(0)).unwrap().contains("Length"));
        assert!(!translated("Status: 204\n\n", Some(0)).unwrap().contains("Length"));
        let head = translated("Content-Length: 3\n\n", Some(5)).unwrap();
        assert_eq!(head, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n");
    }

    #[test]
    fn heads_that_are_none_are_refused() {
        for status in ["", "abc", "20", "2000", "100 Continue", "101 Switching Protocols", "600 x", "200OK"] {
            assert_eq!(translated(&format!("Status: {status}\n\n"), None), Err(Flaw::Status), "{status}");
        }
        assert_eq!(translated("Status: 200\nStatus: 404\n\n", None), Err(Flaw::SeveralStatuses));
        for line in ["hello", " folded: x", ": x", "a b: x"] {
            assert_eq!(translated(&format!("{line}\n\n"), None), Err(Flaw::Line), "{line}");
        }
        let mut head = Head::default();
        assert_eq!(head.take(b"A: b\r\n", 8), Ok(None));
        assert_eq!(head.take(b"C: d\r\n", 8), Err(Flaw::TooLong));
    }

    #[test]
    fn any_division_of_a_head_ends_it_at_the_same_place() {
        let cgi = b"A: b\r\nC: d\n\r\nbody\n\n";
        for first in 0..cgi.len() {
            let mut head = Head::default();
            let at = match head.take(&cgi[..first], 100).unwrap() {
                Some(at) => at,
                None => first + head.take(&cgi[first..], 100).unwrap().unwrap(),
            };
            assert_eq!(at, 13);
        }
    }
}
