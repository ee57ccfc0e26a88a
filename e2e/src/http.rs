//! Reading HTTP/1.1 messages exactly, without any leniency, from whatever brings bytes.

/// A response as it came over the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Status line and fields, without the blank line.
    pub head: String,
    /// Without chunk framing.
    pub body: Vec<u8>,
    /// Trailer lines of a chunked body.
    pub trailers: Vec<String>,
}

impl Response {
    /// The value of the only field of this name.
    #[track_caller]
    pub fn field(&self, name: &str) -> Option<&str> {
        let values = self.fields(name);
        assert!(values.len() <= 1, "{name} several times in:\n{}", self.head);
        values.first().copied()
    }

    /// The values of every field of this name.
    pub fn fields(&self, name: &str) -> Vec<&str> {
        values(&self.head, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The values of every field of this name in a head.
pub fn values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
}

/// Where the head at the front of `bytes` ends, blank line included.
pub fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// How the body after a head is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    Length(usize),
    Chunked,
    UntilClose,
}

/// The framing that a head announces; `otherwise` where it announces none.
#[track_caller]
pub fn framing(head: &str, otherwise: Body) -> Body {
    let lengths = values(head, "Content-Length");
    let codings = values(head, "Transfer-Encoding");
    assert!(lengths.len() + codings.len() <= 1, "ambiguous framing in:\n{head}");
    match (lengths.first(), codings.first()) {
        (Some(length), _) => Body::Length(length.parse().expect("a Content-Length is a number")),
        (_, Some(coding)) => {
            assert_eq!(*coding, "chunked");
            Body::Chunked
        }
        _ => otherwise,
    }
}

/// A chunked body at the front of `bytes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunked {
    pub data: Vec<u8>,
    pub trailers: Vec<String>,
    /// Bytes of it, framing included.
    pub length: usize,
}

/// Decodes a whole chunked body; none while its end is not there.
///
/// # Panics
/// On anything malformed.
#[track_caller]
pub fn chunked(bytes: &[u8]) -> Option<Chunked> {
    let mut decoded = Chunked::default();
    let mut at = 0;
    loop {
        let line = line(&bytes[at..])?;
        at += line.len() + 2;
        let size = line.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("bad chunk size {line:?}"));
        if size == 0 {
            break;
        }
        if bytes.len() < at + size + 2 {
            return None;
        }
        decoded.data.extend_from_slice(&bytes[at..at + size]);
        assert_eq!(&bytes[at + size..at + size + 2], b"\r\n", "a chunk's end");
        at += size + 2;
    }
    loop {
        let line = line(&bytes[at..])?;
        at += line.len() + 2;
        if line.is_empty() {
            decoded.length = at;
            return Some(decoded);
        }
        decoded.trailers.push(line);
    }
}

fn line(bytes: &[u8]) -> Option<String> {
    let end = bytes.windows(2).position(|window| window == b"\r\n")?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// A chunked body as text on the wire, a chunk per piece.
pub fn in_chunks(pieces: &[&[u8]], trailers: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    out
}
