//! The journal of a server: what it does, written down before it acts on it, one write a line: a server that is killed
//! has told everything up to then.

use crate::clock::{Micros, now};
use crate::timeline::{Run, ServerId};
use propylon_bench::failure::{Outcome, While};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// How far a request came at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// The request's head is there.
    Head,
    /// All of it is there, and it is carried out.
    Done,
    /// The request's body is not what was sent.
    Damaged,
    /// The answer was handed to the kernel whole.
    Answered,
}

/// Protocol in which a request came to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Http1,
    Http1OverTls,
    Http2,
    Http2OverTls,
}

const PROTOCOLS: [(Protocol, &str); 4] = [
    (Protocol::Http1, "http1"),
    (Protocol::Http1OverTls, "http1-tls"),
    (Protocol::Http2, "http2"),
    (Protocol::Http2OverTls, "http2-tls"),
];

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http1OverTls => "HTTP/1.1 over TLS",
            Self::Http2 => "HTTP/2",
            Self::Http2OverTls => "HTTP/2 over TLS",
        }
    }
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub at: Micros,
    pub server: ServerId,
    pub run: Run,
    pub progress: Progress,
}

const WORDS: [(Progress, &str); 4] = [
    (Progress::Head, "head"),
    (Progress::Done, "done"),
    (Progress::Damaged, "damaged"),
    (Progress::Answered, "answered"),
];

/// One run of one server.
pub struct Journal(File);

impl Journal {
    pub fn open(path: &Path) -> Outcome<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self(file.when(format_args!("opening {}", path.display()))?))
    }

    /// The head of a request has come.
    pub fn note_head(&mut self, id: u64, protocol: Protocol) -> std::io::Result<()> {
        let word = PROTOCOLS.iter().find(|(known, _)| *known == protocol).map_or("", |(_, word)| word);
        self.0.write_all(format!("{} head {id} {word}\n", now()).as_bytes())
    }

    /// A server that cannot write down what it does must not do it.
    pub fn note(&mut self, progress: Progress, id: u64) -> std::io::Result<()> {
        let word = WORDS.iter().find(|(known, _)| *known == progress).map_or("", |(_, word)| word);
        self.0.write_all(format!("{} {word} {id}\n", now()).as_bytes())
    }
}

/// The file that a server's run writes to.
pub fn path(folder: &Path, server: ServerId, run: Run) -> PathBuf {
    folder.join(format!("{server}.{run}.journal"))
}

/// Journals of all runs of all servers.
#[derive(Default)]
pub struct Journals {
    /// Arrivals by request, in order.
    pub arrivals: HashMap<u64, Vec<Arrival>>,
    /// Requests by protocol.
    pub protocols: BTreeMap<Protocol, u64>,
}

/// Reads the journals of a run's folder.
pub fn read_all(folder: &Path) -> Outcome<Journals> {
    let mut found = Journals::default();
    let doing = format!("reading {}", folder.display());
    for entry in fs::read_dir(folder).when(&doing)?.flatten() {
        let path = entry.path();
        let Some((server, run)) = author(&path) else { continue };
        let text = fs::read_to_string(&path).when(&doing)?;
        for (id, arrival) in text.lines().filter_map(|line| parse(line, server, run)) {
            found.arrivals.entry(id).or_default().push(arrival);
        }
        for protocol in text.lines().filter_map(protocol_of) {
            *found.protocols.entry(protocol).or_default() += 1;
        }
    }
    found.arrivals.values_mut().for_each(|arrivals| arrivals.sort_by_key(|arrival| (arrival.at, arrival.progress)));
    Ok(found)
}

fn author(path: &Path) -> Option<(ServerId, Run)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".journal")?;
    crate::timeline::parse_server(name)
}

fn parse(line: &str, server: ServerId, run: Run) -> Option<(u64, Arrival)> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok()?;
    let word = words.next()?;
    let id = words.next()?.parse().ok()?;
    let progress = WORDS.iter().find(|(_, known)| *known == word)?.0;
    Some((id, Arrival { at, server, run, progress }))
}

/// Protocol of a request, from the line that tells of its head.
fn protocol_of(line: &str) -> Option<Protocol> {
    let word = line.split(' ').nth(3)?;
    Some(PROTOCOLS.iter().find(|(_, known)| *known == word)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_bench::scratch::ScratchDir;

    #[test]
    fn what_is_noted_is_read_again_by_request_and_in_order() {
        let scratch = ScratchDir::new().unwrap();
        let (a, b) = (ServerId(0), ServerId(1));
        let mut first = Journal::open(&path(scratch.path(), a, 1)).unwrap();
        let mut second = Journal::open(&path(scratch.path(), b, 3)).unwrap();
        first.note_head(7, Protocol::Http1).unwrap();
        second.note_head(7, Protocol::Http2OverTls).unwrap();
        second.note(Progress::Done, 7).unwrap();
        second.note(Progress::Damaged, 8).unwrap();
        fs::write(scratch.path().join("other.txt"), "1 head 7\n").unwrap();
        let all = read_all(scratch.path()).unwrap();
        let protocols = BTreeMap::from([(Protocol::Http1, 1), (Protocol::Http2OverTls, 1)]);
        assert_eq!(all.protocols, protocols);
        let all = all.arrivals;
        let read: Vec<_> = all[&7].iter().map(|arrival| (arrival.server, arrival.run, arrival.progress)).collect();
        assert_eq!(read, [(a, 1, Progress::Head), (b, 3, Progress::Head), (b, 3, Progress::Done)]);
        assert_eq!((all.len(), all[&8][0].progress), (2, Progress::Damaged));
    }

    #[test]
    fn half_a_line_is_no_line() {
        assert_eq!(parse("12 hea", ServerId(0), 1), None);
        assert!(parse("12 head 4", ServerId(0), 1).is_some());
    }
}
