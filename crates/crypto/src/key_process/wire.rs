//! Messages between an engine and its key process: of numbers and byte strings, each of a length that is checked before
//! anything is taken from it.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::kept::{KeptKey, NewKey, is_account};
use crate::key::Ski;

/// A message is no longer, so that the socket's buffer has room for it.
pub const MESSAGE_BYTES_MAX: usize = 48 * 1024;
/// A path of the kernel's (PATH_MAX).
const PATH_BYTES_MAX: usize = 4096;
/// An answer in all its messages: a configuration has 4 MiB at most, and a file of 1 MiB holds no more than that.
pub const ANSWER_BYTES_MAX: usize = 5 * 1024 * 1024;
/// An upload fits in one message, with its name: a chain and its key take some 10 KB.
pub const UPLOAD_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 512;
/// An upload's file, with room for what it is called while it is written.
const NAME_BYTES_MAX: usize = 200;
/// A file with more certificates, or keys, is none that TLS has a use for.
pub const SECTIONS_MAX: usize = 4096;

/// Sent on every socket by a key process that begins to answer there.
pub const HERE: &[u8] = b"h";
/// Sent on the sockets for signatures by the supervisor of key processes, when one has ended.
pub const GONE: &[u8] = b"g";

/// Messages between a key process and its supervisor. At its start they hold all settings; the first, which is `Begin`,
/// carries files.
#[derive(Debug, PartialEq, Eq)]
pub enum Order {
    Begin(Setup),
    /// More of the files.
    More,
    /// A folder that may be read.
    Folder(PathBuf),
    /// A file whose keys were in use before.
    File(PathBuf),
    /// An account with an authority whose keys, and those of what it orders, are made and used.
    Account(String),
    /// No key of that file is held any more.
    Removed(PathBuf),
    /// Heartbeat; the answer is the same message.
    Beat,
    /// End of the startup messages.
    End,
}

/// Settings that all key processes of an engine have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The account to become.
    pub user: Option<String>,
    /// The log's level, as the engine's: 0 errors to 3 debugging.
    pub level: u8,
    /// Sockets that carry what is to be signed; one more, the first, carries what is asked about files.
    pub links: u16,
    /// Keys that every account can get at are used.
    pub lax: bool,
    /// Several private-key operations are done at once where the processor can.
    pub batch: bool,
    /// Whether the kernel is asked to hold the process to what it needs.
    pub sandbox: bool,
    /// The engine's configuration, which it may not be able to read.
    pub config: PathBuf,
    /// The folder of uploads, in which it writes.
    pub store: Option<PathBuf>,
}

/// A question about files.
#[derive(Debug, PartialEq, Eq)]
pub enum Question {
    /// Contents of this PEM file. The keys in it are kept, with `stamp`, until they are forgotten.
    Read { path: PathBuf, stamp: u64 },
    /// The OCSP response in this file.
    Response(PathBuf),
    /// The text of the engine's configuration.
    Config,
    /// The keys that were read since are to be found by who asks for signatures.
    Publish,
    /// Keys that are in use; more are to come.
    Keep(Vec<Ski>),
    /// All other keys that were read with this stamp, or an earlier one, are to be forgotten.
    Forget(u64),
    /// A chain with its key is to be written to the file of this name among uploads.
    Put { name: String, pem: Secret },
    /// The file of this name among uploads is to be removed.
    Remove(String),
    /// Whether anything new can be kept in the folder of uploads and keys.
    Store,
    /// A key is to be made, and kept in a file of its own; the answer is its SubjectPublicKeyInfo.
    Generate { account: String, key: NewKey },
    /// The public part of a certificate's key, which is held with `stamp` as those of [`Question::Read`] are.
    ReadKept { key: KeptKey, stamp: u64 },
    /// The answer is a certificate's key's signature of a CertificationRequestInfo.
    SignCsr { key: KeptKey, info: Vec<u8> },
    /// The answer is an account's key's signature of a request: of its header and what it says, both before base64.
    SignRequest { key: KeptKey, header: String, payload: String },
    /// A key that was made is to be removed.
    RemoveKept(KeptKey),
    /// The names of all keys of this account, one in each line.
    Kept(String),
}

/// Bytes that are wiped when they are freed, and shown nowhere.
#[derive(PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// A PEM file without what is secret in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KeyFile {
    /// Device, inode, size, and when it was modified and changed, in nanoseconds since 1970.
    pub file_stamp: [u64; 5],
    /// Whether every account may read or change the file.
    pub open_to_all: bool,
    /// Whether the file has a DSA key.
    pub has_dsa: bool,
    /// Certificates in DER.
    pub certificates: Vec<Vec<u8>>,
    /// The SubjectPublicKeyInfo of each; none of a key that cannot be used.
    pub keys: Vec<Option<Vec<u8>>>,
}

/// The reason why there is no answer from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    Missing,
    Denied,
    /// The system's message.
    Failed(String),
    TooLong,
    Encrypted,
    /// Message of the PEM error.
    Malformed(String),
    /// A file with another content than was asked for.
    Other,
}

/// An answer, whole.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    File(KeyFile),
    Bytes(Vec<u8>),
    Done,
    Unread(Unread),
}

/// A message that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Secret {
    #[must_use]
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(Zeroizing::new(bytes.to_vec()))
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Order {
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Order::Begin(setup) => {
                writer.byte(b's').byte(setup.level).number(setup.links.into());
                writer.flag(setup.lax).flag(setup.batch).flag(setup.sandbox);
                writer.flag(setup.user.is_some()).bytes(setup.user.as_deref().unwrap_or_default().as_bytes());
                writer.path(&setup.config);
                writer.flag(setup.store.is_some());
                if let Some(store) = &setup.store {
                    writer.path(store);
                }
            }
            Order::More => {
                writer.byte(b'm');
            }
            Order::Folder(path) => {
                writer.byte(b'd').path(path);
            }
            Order::File(path) => {
                writer.byte(b'f').path(path);
            }
            Order::Account(name) => {
                writer.byte(b'a').bytes(name.as_bytes());
            }
            Order::Removed(path) => {
                writer.byte(b'r').path(path);
            }
            Order::Beat => {
                writer.byte(b'b');
            }
            Order::End => {
                writer.byte(b'e');
            }
        }
        writer.0
    }

    pub fn parse(bytes: &[u8]) -> Result<Order, Malformed> {
        let mut reader = Reader(bytes);
        let order = match reader.byte()? {
            b's' => {
                let (level, links) = (reader.byte()?, reader.number()?);
                let (lax, batch, sandbox) = (reader.flag()?, reader.flag()?, reader.flag()?);
                let has_user = reader.flag()?;
                let user = String::from_utf8(reader.bytes()?.to_vec()).map_err(|_| Malformed)?;
                let (user, links) = (has_user.then_some(user), u16::try_from(links).map_err(|_| Malformed)?);
                let config = reader.path()?;
                let store = if reader.flag()? { Some(reader.path()?) } else { None };
                Order::Begin(Setup { user, level, links, lax, batch, sandbox, config, store })
            }
            b'm' => Order::More,
            b'd' => Order::Folder(reader.path()?),
            b'f' => Order::File(reader.path()?),
            b'a' => Order::Account(reader.account()?),
            b'r' => Order::Removed(reader.path()?),
            b'b' => Order::Beat,
            b'e' => Order::End,
            _ => return Err(Malformed),
        };
        reader.end().map(|()| order)
    }
}

impl Question {
    /// Encodes the question with the number that the answer will have. The bytes are wiped: there may be a key in them.
    #[must_use]
    pub fn to_bytes(&self, id: u32) -> Zeroizing<Vec<u8>> {
        // Room for all of it at once: what grows leaves copies behind.
        let mut writer = match self {
            Question::Put { pem, .. } => Writer(Vec::with_capacity(pem.bytes().len() + 512)),
            _ => Writer::default(),
        };
        writer.number(id);
        match self {
            Question::Read { path, stamp } => {
                writer.byte(b'r').long(*stamp).path(path);
            }
            Question::Response(path) => {
                writer.byte(b'o').path(path);
            }
            Question::Config => {
                writer.byte(b'c');
            }
            Question::Publish => {
                writer.byte(b'p');
            }
            Question::Keep(skis) => {
                writer.byte(b'k');
                skis.iter().for_each(|ski| writer.0.extend_from_slice(ski));
            }
            Question::Forget(stamp) => {
                writer.byte(b'x').long(*stamp);
            }
            Question::Put { name, pem } => {
                writer.byte(b'w').bytes(name.as_bytes()).bytes(pem.bytes());
            }
            Question::Remove(name) => {
                writer.byte(b'd').bytes(name.as_bytes());
            }
            Question::Store => {
                writer.byte(b'l');
            }
            Question::Generate { account, key } => {
                let key = NEW_KEYS.iter().position(|each| each == key).unwrap_or_default();
                writer.byte(b'g').byte(key as u8).bytes(account.as_bytes());
            }
            Question::ReadKept { key, stamp } => {
                writer.byte(b'q').long(*stamp).kept(key);
            }
            Question::SignCsr { key, info } => {
                writer.byte(b's').kept(key).bytes(info);
            }
            Question::SignRequest { key, header, payload } => {
                writer.byte(b'j').kept(key).bytes(header.as_bytes()).bytes(payload.as_bytes());
            }
            Question::RemoveKept(key) => {
                writer.byte(b'z').kept(key);
            }
            Question::Kept(account) => {
                writer.byte(b'a').bytes(account.as_bytes());
            }
        }
        Zeroizing::new(writer.0)
    }

    pub fn parse(bytes: &[u8]) -> Result<(u32, Question), Malformed> {
        let mut reader = Reader(bytes);
        let id = reader.number()?;
        let question = match reader.byte()? {
            b'r' => {
                let stamp = reader.long()?;
                Question::Read { path: reader.path()?, stamp }
            }
            b'o' => Question::Response(reader.path()?),
            b'c' => Question::Config,
            b'p' => Question::Publish,
            b'k' => {
                let (skis, []) = reader.0.as_chunks::<20>() else { return Err(Malformed) };
                reader.0 = &[];
                Question::Keep(skis.to_vec())
            }
            b'x' => Question::Forget(reader.long()?),
            b'w' => Question::Put { name: reader.name()?, pem: Secret::new(reader.bytes()?) },
            b'd' => Question::Remove(reader.name()?),
            b'l' => Question::Store,
            b'g' => {
                let key = *NEW_KEYS.get(usize::from(reader.byte()?)).ok_or(Malformed)?;
                Question::Generate { account: reader.account()?, key }
            }
            b'q' => {
                let stamp = reader.long()?;
                Question::ReadKept { key: reader.kept()?, stamp }
            }
            b's' => Question::SignCsr { key: reader.kept()?, info: reader.bytes()?.to_vec() },
            b'j' => Question::SignRequest { key: reader.kept()?, header: reader.text()?, payload: reader.text()? },
            b'z' => Question::RemoveKept(reader.kept()?),
            b'a' => Question::Kept(reader.account()?),
            _ => return Err(Malformed),
        };
        reader.end().map(|()| (id, question))
    }

    /// Keys that fit in one message, at most.
    pub const KEEP_MAX: usize = (MESSAGE_BYTES_MAX - 16) / size_of::<Ski>();
}

impl Answer {
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Answer::File(file) => {
                writer.byte(b'f').flag(file.open_to_all).flag(file.has_dsa);
                for number in file.file_stamp {
                    writer.long(number);
                }
                writer.number(file.certificates.len() as u32).number(file.keys.len() as u32);
                for der in &file.certificates {
                    writer.bytes(der);
                }
                // No key has an empty one.
                for key in &file.keys {
                    writer.bytes(key.as_deref().unwrap_or_default());
                }
            }
            Answer::Bytes(bytes) => {
                writer.byte(b'b').bytes(bytes);
            }
            Answer::Done => {
                writer.byte(b'd');
            }
            Answer::Unread(why) => {
                let (kind, text) = match why {
                    Unread::Missing => (0, ""),
                    Unread::Denied => (1, ""),
                    Unread::Failed(text) => (2, text.as_str()),
                    Unread::TooLong => (3, ""),
                    Unread::Encrypted => (4, ""),
                    Unread::Malformed(text) => (5, text.as_str()),
                    Unread::Other => (6, ""),
                };
                writer.byte(b'u').byte(kind).bytes(text.as_bytes());
            }
        }
        writer.0
    }

    pub fn parse(bytes: &[u8]) -> Result<Answer, Malformed> {
        let mut reader = Reader(bytes);
        let answer = match reader.byte()? {
            b'f' => Answer::File(reader.file()?),
            b'b' => Answer::Bytes(reader.bytes()?.to_vec()),
            b'd' => Answer::Done,
            b'u' => {
                let (kind, text) = (reader.byte()?, reader.bytes()?);
                let text = String::from_utf8_lossy(text).into_owned();
                Answer::Unread(match kind {
                    0 => Unread::Missing,
                    1 => Unread::Denied,
                    2 => Unread::Failed(text),
                    3 => Unread::TooLong,
                    4 => Unread::Encrypted,
                    5 => Unread::Malformed(text),
                    6 => Unread::Other,
                    _ => return Err(Malformed),
                })
            }
            _ => return Err(Malformed),
        };
        reader.end().map(|()| answer)
    }

    /// The messages of an answer: its number, whether more follow, a part of its bytes.
    pub fn messages(&self, id: u32) -> Vec<Vec<u8>> {
        let bytes = self.to_bytes();
        let parts: Vec<&[u8]> = bytes.chunks(MESSAGE_BYTES_MAX - 5).collect();
        let last = parts.len() - 1;
        let message = |(place, part): (usize, &&[u8])| {
            let mut writer = Writer::default();
            writer.number(id).flag(place < last).0.extend_from_slice(part);
            writer.0
        };
        parts.iter().enumerate().map(message).collect()
    }

    /// A message of an answer: its number, whether more follow, its part.
    pub fn part(message: &[u8]) -> Result<(u32, bool, &[u8]), Malformed> {
        let mut reader = Reader(message);
        Ok((reader.number()?, reader.flag()?, reader.0))
    }
}

impl Unread {
    pub fn of(error: &io::Error) -> Unread {
        match error.kind() {
            io::ErrorKind::NotFound => Unread::Missing,
            io::ErrorKind::PermissionDenied => Unread::Denied,
            _ => Unread::Failed(error.to_string()),
        }
    }
}

/// Kinds of keys in the order of their bytes on the wire.
const NEW_KEYS: [NewKey; 3] = [NewKey::Account, NewKey::P256, NewKey::Rsa2048];

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, byte: u8) -> &mut Writer {
        self.0.push(byte);
        self
    }

    fn flag(&mut self, flag: bool) -> &mut Writer {
        self.byte(flag.into())
    }

    fn number(&mut self, number: u32) -> &mut Writer {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn long(&mut self, number: u64) -> &mut Writer {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.number(bytes.len() as u32).0.extend_from_slice(bytes);
        self
    }

    fn kept(&mut self, key: &KeptKey) -> &mut Writer {
        self.bytes(key.to_string().as_bytes())
    }

    fn path(&mut self, path: &Path) -> &mut Writer {
        self.bytes(path.as_os_str().as_bytes())
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn number(&mut self) -> Result<u32, Malformed> {
        self.take(4)?.try_into().map(u32::from_be_bytes).map_err(|_| Malformed)
    }

    fn long(&mut self) -> Result<u64, Malformed> {
        self.take(8)?.try_into().map(u64::from_be_bytes).map_err(|_| Malformed)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.number()? as usize;
        self.take(count)
    }

    fn path(&mut self) -> Result<PathBuf, Malformed> {
        let bytes = self.bytes()?;
        let is_one = !bytes.is_empty() && bytes.len() <= PATH_BYTES_MAX && !bytes.contains(&0);
        is_one.then(|| OsStr::from_bytes(bytes).into()).ok_or(Malformed)
    }

    /// Parses an upload's file name: it leads nowhere but into the folder of uploads, and no such file is hidden.
    fn name(&mut self) -> Result<String, Malformed> {
        let name = self.bytes()?;
        let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_one = name.len() <= NAME_BYTES_MAX && name.first() != Some(&b'.') && name.ends_with(b".pem");
        let text = (is_one && name.iter().all(fits)).then(|| String::from_utf8_lossy(name).into_owned());
        text.ok_or(Malformed)
    }

    fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed)
    }

    fn account(&mut self) -> Result<String, Malformed> {
        self.text().and_then(|name| is_account(&name).then_some(name).ok_or(Malformed))
    }

    fn kept(&mut self) -> Result<KeptKey, Malformed> {
        KeptKey::parse(&self.text()?).ok_or(Malformed)
    }

    fn file(&mut self) -> Result<KeyFile, Malformed> {
        let mut file = KeyFile { open_to_all: self.flag()?, has_dsa: self.flag()?, ..KeyFile::default() };
        for number in &mut file.file_stamp {
            *number = self.long()?;
        }
        let (certificates, keys) = (self.number()? as usize, self.number()? as usize);
        if certificates > SECTIONS_MAX || keys > SECTIONS_MAX {
            return Err(Malformed);
        }
        for _ in 0..certificates {
            file.certificates.push(self.bytes()?.to_vec());
        }
        for _ in 0..keys {
            let public = self.bytes()?;
            file.keys.push((!public.is_empty()).then(|| public.to_vec()));
        }
        Ok(file)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kept::Purpose;
    use super::*;

    fn file() -> KeyFile {
        KeyFile {
            file_stamp: [1, 2, 3, u64::MAX, 5],
            open_to_all: true,
            has_dsa: false,
            certificates: vec![vec![7; 60_000], vec![8]],
            keys: vec![None, Some(vec![9; 91])],
        }
    }

    fn kept() -> KeptKey {
        KeptKey::new(&"x".repeat(64), [0x5a; 20], Purpose::Certificate).unwrap()
    }

    #[test]
    fn what_is_said_is_understood() {
        let setup = Setup {
            user: Some("www".into()),
            level: 2,
            links: 300,
            lax: false,
            batch: true,
            sandbox: true,
            config: "/etc/propylon/propylon.toml".into(),
            store: Some("/var/lib/propylon/keys".into()),
        };
        let orders = [
            Order::Begin(setup.clone()),
            Order::Begin(Setup { user: None, store: None, ..setup }),
            Order::More,
            Order::Folder("/etc/keys".into()),
            Order::File(OsStr::from_bytes(b"/etc/\xff.pem").into()),
            Order::Account("le".into()),
            Order::Removed("/var/lib/keys/a.pem".into()),
            Order::Beat,
            Order::End,
        ];
        for order in orders {
            assert_eq!(Order::parse(&order.to_bytes()), Ok(order));
        }
        let questions = [
            Question::Read { path: "/etc/keys/a.pem".into(), stamp: 7 },
            Question::Response("a.ocsp".into()),
            Question::Config,
            Question::Publish,
            Question::Keep(vec![[1; 20], [2; 20]]),
            Question::Keep(Vec::new()),
            Question::Forget(u64::MAX),
            Question::Put { name: "shop.1.pem".into(), pem: Secret::new(&[7; UPLOAD_BYTES_MAX]) },
            Question::Remove("shop.1.pem".into()),
            Question::Store,
            Question::Generate { account: "a.b".into(), key: NewKey::Account },
            Question::Generate { account: "le".into(), key: NewKey::Rsa2048 },
            Question::ReadKept { key: kept(), stamp: 8 },
            Question::SignCsr { key: kept(), info: vec![1; MESSAGE_BYTES_MAX - 512] },
            Question::SignRequest { key: kept(), header: "{}".into(), payload: "é".into() },
            Question::RemoveKept(kept()),
            Question::Kept("le".into()),
        ];
        for question in questions {
            let bytes = question.to_bytes(5);
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Question::parse(&bytes), Ok((5, question)));
        }
    }

    #[test]
    fn an_upload_has_no_name_that_leads_elsewhere() {
        let long = format!("{}.pem", "a".repeat(NAME_BYTES_MAX));
        for name in
            ["", ".pem", ".a.pem", "../a.pem", "/a.pem", "a/b.pem", "a\0.pem", "a\n.pem", "a.toml", "\u{e9}.pem", &long]
        {
            let (remove, put) = (Question::Remove(name.into()), Secret::new(b"key"));
            assert_eq!(Question::parse(&remove.to_bytes(1)), Err(Malformed), "{name}");
            let put = Question::Put { name: name.into(), pem: put };
            assert_eq!(Question::parse(&put.to_bytes(1)), Err(Malformed), "{name}");
        }
        let put = Question::Put { name: "a.pem".into(), pem: Secret::new(b"key") };
        assert!(!format!("{put:?}").contains("key"), "{put:?}");
    }

    #[test]
    fn an_answer_comes_in_messages_that_fit() {
        let whys = [
            Unread::Missing,
            Unread::Denied,
            Unread::Failed("no".into()),
            Unread::TooLong,
            Unread::Encrypted,
            Unread::Malformed("cut".into()),
            Unread::Other,
        ];
        let answers = whys.into_iter().map(Answer::Unread);
        for answer in answers.chain([Answer::File(file()), Answer::Bytes(vec![1; 200_000]), Answer::Done]) {
            let messages = answer.messages(9);
            let mut whole = Vec::new();
            for (place, message) in messages.iter().enumerate() {
                assert!(message.len() <= MESSAGE_BYTES_MAX && message.len() > HERE.len());
                let (id, more, part) = Answer::part(message).unwrap();
                assert_eq!((id, more), (9, place + 1 < messages.len()));
                whole.extend_from_slice(part);
            }
            assert_eq!(Answer::parse(&whole), Ok(answer));
        }
    }

    #[test]
    fn what_is_none_is_refused_whatever_it_is() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let small = KeyFile { certificates: vec![vec![1, 2]], ..file() };
        let good = [
            Answer::File(small).to_bytes(),
            Order::File("/a".into()).to_bytes(),
            Question::Read { path: "/a".into(), stamp: 1 }.to_bytes(1).to_vec(),
            Question::Put { name: "a.pem".into(), pem: Secret::new(&[1, 2]) }.to_bytes(1).to_vec(),
            Question::Generate { account: "le".into(), key: NewKey::P256 }.to_bytes(1).to_vec(),
            Question::SignRequest { key: kept(), header: "{}".into(), payload: String::new() }.to_bytes(1).to_vec(),
        ];
        for good in good {
            for cut in 0..good.len() {
                let cut = &good[..cut];
                assert!(Answer::parse(cut).is_err() && Order::parse(cut).is_err() && Question::parse(cut).is_err());
            }
            for _ in 0..2_000 {
                let mut bad = good.clone();
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(..bad.len());
                    bad[at] = random.u8(..);
                }
                let _ = (Answer::parse(&bad), Order::parse(&bad), Question::parse(&bad));
            }
        }
        let empty = Order::File(PathBuf::new()).to_bytes();
        let zero = Order::File(OsStr::from_bytes(b"/a\0b").into()).to_bytes();
        let long = Order::File("a".repeat(PATH_BYTES_MAX + 1).into()).to_bytes();
        for bad in [empty, zero, long] {
            assert_eq!(Order::parse(&bad), Err(Malformed));
        }
    }
}
