//! Properties that fuzzing holds the decoders to.

use propylon_config::{FastCgi, Scripts};

use crate::answer::Head;
use crate::params::{Facts, Params};
use crate::records::{Decoder, Event};

/// Response of a server, and whether it has ended, or broken the protocol.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    output: Vec<u8>,
    complaints: Vec<u8>,
    ended: bool,
    broken: bool,
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Read {
    let (mut decoder, mut read) = (Decoder::default(), Read::default());
    for mut piece in pieces {
        while !piece.is_empty() {
            let taken = match decoder.next(piece) {
                Err(_) => {
                    read.broken = true;
                    return read;
                }
                Ok(Event::NeedMore { consumed } | Event::OutputEnd { consumed }) => consumed,
                Ok(Event::Output { start, end }) => {
                    read.output.extend_from_slice(&piece[start..end]);
                    end
                }
                Ok(Event::Complaint { start, end }) => {
                    read.complaints.extend_from_slice(&piece[start..end]);
                    end
                }
                Ok(Event::End { consumed, .. }) => {
                    read.ended = true;
                    consumed
                }
            };
            assert!(taken > 0, "no byte of {} was taken", piece.len());
            piece = &piece[taken..];
        }
    }
    read
}

/// A server's bytes, in any division; the head that is in them; and the same bytes as the head of a request.
pub fn fuzz(data: &[u8]) {
    let [piece, rest @ ..] = data else { return };
    let whole = read([rest].into_iter());
    assert_eq!(read(rest.chunks(usize::from(*piece).max(1))), whole);
    let mut head = Head::default();
    if let Ok(Some(length)) = head.take(&whole.output, 4_096) {
        assert!(length <= whole.output.len());
        if let Ok(text) = head.translate(Some(1)) {
            assert!(text.starts_with(b"HTTP/1.1 ") && text.ends_with(b"\r\n\r\n"));
        }
    }
    let scripts = [Scripts::Index, Scripts::Any, Scripts::Named(vec!["/a/*.php".into()])];
    let settings = FastCgi { scripts: scripts[usize::from(piece % 3)].clone(), ..FastCgi::at_root("/srv") };
    let client = (std::net::Ipv4Addr::LOCALHOST.into(), None);
    let facts = Facts { protocol: "HTTP/1.1", client, server: None, is_tls: false, extra: &[] };
    if let Ok(params) = Params::of(&settings, rest, &facts) {
        let records = params.end(Some(1));
        assert!(records.ends_with(&[1, 4, 0, 1, 0, 0, 0, 0]));
        let name = b"SCRIPT_FILENAME";
        let at = records.windows(name.len()).position(|window| window == name).expect("a script");
        assert!(records[at + name.len()..].starts_with(b"/srv/"));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn random_bytes_break_nothing() {
        let mut random = fastrand::Rng::with_seed(64);
        let alphabet = b"\x01\x01\x06\x07\x03\0\0\0\0\x01\x05\x08:\n\r /.php%2eStatus200GET";
        for _ in 0..20_000 {
            let length = random.usize(..120);
            let data: Vec<u8> = (0..length).map(|_| alphabet[random.usize(..alphabet.len())]).collect();
            super::fuzz(&data);
        }
    }
}
