//! The files that a key process reads: files with certificates and keys, of which it says all but the keys; and the
//! keys that it holds.
//!
//! An engine that somebody has got into asks as well. It is told certificates, OCSP responses and its own
//! configuration, and of any other file nothing but that it is no such file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use propylon_config::SOURCE_BYTES_MAX;
use propylon_crypto::der::Der;
use propylon_crypto::key_process::{Answer, KeyFile, Order, Question, SECTIONS_MAX, Setup, Unread};
use propylon_crypto::pem::{self, PemLabel};
use propylon_crypto::{Key, PrivateKey, Ski, is_open_to_all};

use super::startup::FILES_MAX;
use super::{kept, store};
use crate::keys::{Keys, Origin};

/// A chain and a key take some 10 KB; what is longer is another kind of file, or a device without end.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Responses are 0.5 to 3 KB.
const RESPONSE_BYTES_MAX: u64 = 64 * 1024;
/// Keys that are held at once, at most.
const KEYS_MAX: usize = 200_000;
/// Uploads' files, each of one message's length at most.
const UPLOADS_MAX: usize = 10_000;

pub struct Files {
    /// Keys that every account can get at are held.
    lax: bool,
    config: PathBuf,
    /// The folder of uploads.
    store: Option<PathBuf>,
    /// Accounts whose keys are made and used: who asks does not get to name them.
    accounts: BTreeSet<String>,
    /// Reason for which nothing new is kept there.
    store_is_unfit: Option<String>,
    /// Uploads that are taken before those in the folder are counted again: other engines may have theirs there.
    room: usize,
    /// Keys by their SKI, each with the highest stamp that it was read with.
    held: HashMap<Ski, (PrivateKey, u64)>,
    /// SKIs of the keys that were said to be in use.
    kept: HashSet<Ski>,
    /// Socket to the supervisor, which keeps the paths of files with keys.
    supervisor: Option<OwnedFd>,
    /// Files that it knows of, each by one name and with the keys that were in it.
    announced: HashMap<PathBuf, Vec<Ski>>,
    /// Others are to be found by who asks for signatures.
    changed: bool,
}

impl Files {
    pub fn new(setup: &Setup, accounts: BTreeSet<String>, supervisor: Option<OwnedFd>) -> Files {
        Files {
            lax: setup.lax,
            config: setup.config.clone(),
            store: setup.store.clone(),
            accounts,
            store_is_unfit: None,
            room: 0,
            held: HashMap::new(),
            kept: HashSet::new(),
            supervisor,
            announced: HashMap::new(),
            changed: false,
        }
    }

    /// Keeps nothing new in the folder of uploads; what is there stays in use.
    pub fn refuse_new_files(&mut self, why: String) {
        self.store_is_unfit = Some(why);
    }

    pub fn count(&self) -> usize {
        self.held.len()
    }

    /// The keys as a set for signing; no rules restrict it.
    pub fn keys(&self) -> Keys {
        let found = self.held.values().map(|(key, _)| (Key::Local(key.clone()), Origin::File(Path::new(""))));
        Keys::new(found, &[])
    }

    /// Whether [`Files::keys`] has changed since this was last asked.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub fn answer(&mut self, question: Question) -> Answer {
        match question {
            Question::Read { path, stamp } => self.read(&path, stamp),
            Question::Response(path) => bytes(&path, RESPONSE_BYTES_MAX, is_response),
            Question::Config => bytes(&self.config, SOURCE_BYTES_MAX as u64, |_| true),
            Question::Publish => {
                self.changed = true;
                Answer::Done
            }
            Question::Keep(skis) => {
                let room = KEYS_MAX.saturating_sub(self.kept.len());
                self.kept.extend(skis.into_iter().take(room));
                Answer::Done
            }
            Question::Forget(stamp) => {
                let kept = std::mem::take(&mut self.kept);
                let before = self.held.len();
                self.held.retain(|ski, (_, read)| *read > stamp || kept.contains(ski));
                self.changed |= self.held.len() < before;
                self.withdraw_unused();
                Answer::Done
            }
            Question::Put { name, pem } => done(self.put(&name, pem.bytes())),
            Question::Remove(name) => done(self.remove(&name)),
            Question::Store => done(self.try_store()),
            question => match self.store_of(&question).map(Path::to_owned) {
                Ok(store) => self.answer_of_kept(&store, question),
                Err(error) => Answer::Unread(Unread::of(&error)),
            },
        }
    }

    /// The answer to a question about keys that are made here.
    fn answer_of_kept(&mut self, store: &Path, question: Question) -> Answer {
        let bytes = |outcome: io::Result<Vec<u8>>| match outcome {
            Ok(bytes) => Answer::Bytes(bytes),
            Err(error) => Answer::Unread(Unread::of(&error)),
        };
        match question {
            Question::Generate { account, key } => {
                bytes(self.fit_store().and_then(|store| kept::generate(store, &account, key)))
            }
            Question::ReadKept { key, stamp } => self.read(&store.join(key.to_string()), stamp),
            Question::SignCsr { key, info } => kept::sign_csr(store, &key, &info),
            Question::SignRequest { key, header, payload } => kept::sign_request(store, &key, &header, &payload),
            Question::RemoveKept(key) => {
                let path = fs::canonicalize(store.join(key.to_string()));
                let outcome = kept::remove(store, &key);
                path.iter().for_each(|path| self.withdraw(path));
                done(outcome)
            }
            Question::Kept(account) => bytes(kept::list(store, &account).map(|names| names.join("\n").into_bytes())),
            _ => Answer::Unread(Unread::Other),
        }
    }

    /// Says what is in a file, and holds its keys.
    pub fn read(&mut self, path: &Path, stamp: u64) -> Answer {
        let (text, metadata) = match store::read(path, FILE_BYTES_MAX) {
            Ok(read) => read,
            Err(why) => return Answer::Unread(why),
        };
        let open_to_all = is_open_to_all(&metadata);
        let may_be_held = self.lax || !open_to_all;
        let mut file = KeyFile { file_stamp: file_stamp(&metadata), open_to_all, ..KeyFile::default() };
        let mut keys = Vec::new();
        for section in pem::sections(&text) {
            let section = match section {
                Ok(section) => section,
                Err(error) => return Answer::Unread(Unread::Malformed(error.to_string())),
            };
            match section.label {
                PemLabel::EncryptedPrivateKey => return Answer::Unread(Unread::Encrypted),
                PemLabel::Certificate => file.certificates.push(section.der.to_vec()),
                label if label.is_private_key() => {
                    let key = PrivateKey::from_der(&section.der).ok();
                    file.keys.push(key.as_ref().map(|key| key.public_info().to_vec()));
                    keys.extend(key);
                }
                _ => {}
            }
            if file.certificates.len() + file.keys.len() > SECTIONS_MAX {
                return Answer::Unread(Unread::TooLong);
            }
        }
        file.has_dsa = text.windows(DSA.len()).any(|part| part == DSA);
        let held = if may_be_held { self.hold(path, keys, stamp) } else { Ok(()) };
        held.map_or_else(Answer::Unread, |()| Answer::File(file))
    }

    fn hold(&mut self, path: &Path, keys: Vec<PrivateKey>, stamp: u64) -> Result<(), Unread> {
        // A file has one name, in however many ways it is asked for.
        let path = fs::canonicalize(path).map_err(|error| Unread::of(&error))?;
        if !keys.is_empty() && self.announced.len() >= FILES_MAX && !self.announced.contains_key(&path) {
            return Err(Unread::Failed(format!("there are more than {FILES_MAX} files with keys")));
        }
        let skis = keys.iter().map(PrivateKey::ski).collect();
        for key in keys {
            if self.held.len() >= KEYS_MAX && !self.held.contains_key(&key.ski()) {
                return Err(Unread::Failed(format!("there are more than {KEYS_MAX} keys")));
            }
            let held = self.held.entry(key.ski()).or_insert((key, stamp));
            held.1 = held.1.max(stamp);
        }
        self.announce(path, skis);
        Ok(())
    }

    fn store(&self) -> io::Result<&Path> {
        self.store.as_deref().ok_or_else(|| io::Error::other("there is no folder for it (keys.store)"))
    }

    /// The folder for a question about keys that are made here, if it is about an account that this process was told of
    /// at its start. Folders may be shared, and accounts of other engines be among them.
    fn store_of(&self, question: &Question) -> io::Result<&Path> {
        let account = match question {
            Question::Generate { account, .. } | Question::Kept(account) => Some(account.as_str()),
            Question::ReadKept { key, .. }
            | Question::SignCsr { key, .. }
            | Question::SignRequest { key, .. }
            | Question::RemoveKept(key) => Some(key.account()),
            _ => None,
        };
        match account.filter(|account| !self.accounts.contains(*account)) {
            Some(account) => Err(io::Error::other(format!("no account was called {account:?} at its start"))),
            None => self.store(),
        }
    }

    /// Tries to write there; where that was forbidden for the folder's owner or mode, it goes on once they are mended.
    fn try_store(&mut self) -> io::Result<()> {
        let tried = store::probe(self.store()?);
        // The kernel says itself what it does not let us do.
        let unfit = tried.as_ref().err().filter(|error| error.kind() == io::ErrorKind::Other);
        self.store_is_unfit = unfit.map(io::Error::to_string);
        tried
    }

    fn fit_store(&self) -> io::Result<&Path> {
        match &self.store_is_unfit {
            Some(why) => Err(io::Error::other(why.clone())),
            None => self.store(),
        }
    }

    /// Writes an upload. Whoever asks has it read next, as any other file.
    fn put(&mut self, name: &str, pem: &[u8]) -> io::Result<()> {
        if self.room == 0 {
            // Half, for the key process of another engine that has the folder.
            self.room = UPLOADS_MAX.saturating_sub(store::count_uploads(self.fit_store()?)?).div_ceil(2);
        }
        let folder = self.fit_store()?;
        if self.room == 0 {
            return Err(io::Error::other(format!("there are {UPLOADS_MAX} uploads")));
        }
        store::write(folder, name, pem)?;
        self.room -= 1;
        Ok(())
    }

    /// Removes an upload. The key in it is held until it is forgotten with others.
    fn remove(&mut self, name: &str) -> io::Result<()> {
        let folder = self.store()?;
        let path = folder.join(name);
        let known = fs::canonicalize(&path);
        store::remove_if_there(&path)?;
        File::open(folder)?.sync_all()?;
        known.iter().for_each(|path| self.withdraw(path));
        Ok(())
    }

    /// Reports to the supervisor that the file is not to be read again.
    fn withdraw(&mut self, path: &Path) {
        if self.announced.remove(path).is_some() {
            self.report(&Order::Removed(path.into()));
        }
    }

    /// Reports a file with keys to the supervisor, so that another process reads it again, should this one end.
    fn announce(&mut self, path: PathBuf, skis: Vec<Ski>) {
        if let Some(known) = self.announced.get_mut(&path) {
            *known = skis;
        } else if !skis.is_empty() {
            self.report(&Order::File(path.clone()));
            self.announced.insert(path, skis);
        }
    }

    /// Withdraws files whose keys are not in use any more, so that no other process reads them.
    fn withdraw_unused(&mut self) {
        let held = &self.held;
        let unused = |(path, skis): (&PathBuf, &Vec<Ski>)| {
            let is_used = skis.iter().any(|ski| held.contains_key(ski));
            (!is_used).then(|| path.clone())
        };
        let unused: Vec<PathBuf> = self.announced.iter().filter_map(unused).collect();
        unused.iter().for_each(|path| self.withdraw(path));
    }

    fn report(&self, order: &Order) {
        if let Some(supervisor) = &self.supervisor {
            let _ = propylon_sys::send_message(supervisor, &order.to_bytes(), &[]);
        }
    }
}

fn done(outcome: io::Result<()>) -> Answer {
    outcome.map_or_else(|error| Answer::Unread(Unread::of(&error)), |()| Answer::Done)
}

const DSA: &[u8] = b"BEGIN DSA PRIVATE KEY";

fn file_stamp(metadata: &Metadata) -> [u64; 5] {
    let ns = |seconds: i64, ns: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(ns) as u64;
    let (modified, changed) =
        (ns(metadata.mtime(), metadata.mtime_nsec()), ns(metadata.ctime(), metadata.ctime_nsec()));
    [metadata.dev(), metadata.ino(), metadata.size(), modified, changed]
}

fn bytes(path: &Path, max: u64, may_be_told: fn(&[u8]) -> bool) -> Answer {
    match store::read(path, max) {
        Ok((text, _)) if may_be_told(&text) => Answer::Bytes(text.to_vec()),
        Ok(_) => Answer::Unread(Unread::Other),
        Err(why) => Answer::Unread(why),
    }
}

/// Whether it has the form of an OCSP response (RFC 6960 §4.2.1), which no other file has: the contents are not
/// looked at.
fn is_response(der: &[u8]) -> bool {
    const BASIC: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1];
    let is = || -> Option<bool> {
        let mut body = Der(Der(der).only(0x30)?);
        let status = body.take(0x0a)?;
        if body.0.is_empty() {
            return Some(status.len() == 1 && status[0] != 0);
        }
        let mut bytes = Der(Der(body.only(0xa0)?).only(0x30)?);
        let kind = bytes.take(6)?;
        Der(bytes.only(4)?).only(0x30)?;
        Some(kind == BASIC)
    };
    is().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use propylon_crypto::key_process::{KeptKey, NewKey, Purpose, Secret};

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("propylon-isolated-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder");
            Folder(path)
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("a mode");
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn files(config: &Path) -> Files {
        let (user, config, store) = (None, config.into(), None);
        let setup = Setup { user, level: 0, links: 1, lax: false, batch: false, sandbox: false, config, store };
        Files::new(&setup, BTreeSet::from(["le".into()]), None)
    }

    fn pem() -> (String, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["shop.example".into()]).expect("a name");
        (params.self_signed(&key).expect("a certificate").pem() + &key.serialize_pem(), key)
    }

    fn ski(key: &rcgen::KeyPair) -> Ski {
        PrivateKey::from_der(key.serialized_der()).expect("a key").ski()
    }

    #[test]
    fn all_of_a_file_is_told_but_its_key_which_is_held() {
        let folder = Folder::new("told");
        let (text, key) = pem();
        let path = folder.write("a.pem", &text);
        let mut files = files(&path);
        let Answer::File(file) = files.read(&path, 1) else { panic!("no file") };
        assert_eq!((file.certificates.len(), file.keys.len(), file.open_to_all), (1, 1, false));
        let bytes = Answer::File(file).to_bytes();
        let secret = PrivateKey::from_der(key.serialized_der()).expect("a key");
        let scalar = &key.serialized_der()[36..68];
        assert!(!bytes.windows(16).any(|part| scalar.windows(16).any(|own| own == part)));
        assert!(files.held.contains_key(&secret.ski()));
    }

    #[test]
    fn nothing_is_told_of_other_files() {
        let folder = Folder::new("other");
        let secret = folder.write("secret", "user:password\n");
        let encrypted =
            folder.write("e.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
        let (pem, _) = pem();
        let key = folder.write("key.pem", &pem);
        let der = folder.write("key.der", rcgen::KeyPair::generate().expect("a key").serialized_der());
        let mut files = files(&folder.0.join("propylon.toml"));
        let Answer::File(nothing) = files.read(&secret, 1) else { panic!("no file") };
        assert_eq!((nothing.certificates.len(), nothing.keys.len()), (0, 0));
        for (path, why) in [
            (&encrypted, Unread::Encrypted),
            (&folder.0, Unread::Failed("it is not a file".into())),
            (&folder.0.join("none"), Unread::Missing),
        ] {
            assert_eq!(files.read(path, 1), Answer::Unread(why));
        }
        for path in [&secret, &encrypted, &key, &der] {
            assert_eq!(files.answer(Question::Response(path.clone())), Answer::Unread(Unread::Other), "{path:?}");
        }
        assert_eq!(files.answer(Question::Config), Answer::Unread(Unread::Missing));
    }

    #[test]
    fn keys_that_every_account_can_get_at_are_not_held() {
        let folder = Folder::new("open");
        let path = folder.write("a.pem", pem().0);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("a mode");
        let mut files = files(&path);
        assert!(matches!(files.read(&path, 1), Answer::File(KeyFile { open_to_all: true, .. })));
        assert_eq!(files.count(), 0);
    }

    #[test]
    fn what_is_not_in_use_any_more_is_forgotten_and_what_was_read_meanwhile_is_not() {
        let folder = Folder::new("forgotten");
        let mut files = files(Path::new("none"));
        let keys: Vec<_> = (1..=4)
            .map(|stamp| {
                let (text, key) = pem();
                files.read(&folder.write("a.pem", text), stamp);
                ski(&key)
            })
            .collect();
        files.answer(Question::Keep(vec![keys[1]]));
        files.answer(Question::Forget(3));
        assert!(files.take_changed());
        let left: HashSet<Ski> = files.held.keys().copied().collect();
        assert_eq!(left, HashSet::from([keys[1], keys[3]]));
        files.answer(Question::Keep(vec![keys[1]]));
        files.answer(Question::Forget(3));
        assert!(!files.take_changed(), "nothing is another");
    }

    /// The orders that a supervisor has been sent meanwhile.
    fn said(supervisor: &OwnedFd) -> Vec<Order> {
        let (mut buffer, mut all) = ([0; 1024], Vec::new());
        while let Ok(length) = propylon_sys::try_receive_message(supervisor, &mut buffer) {
            all.push(Order::parse(&buffer[..length]).expect("an order"));
        }
        all
    }

    #[test]
    fn a_file_has_one_name_in_however_many_ways_it_is_asked_for() {
        let folder = Folder::new("spellings");
        let (own, supervisor) = propylon_sys::message_pair().expect("two sockets");
        let mut files = files(Path::new("none"));
        files.supervisor = Some(own);
        let path = folder.write("a.pem", pem().0);
        let name = folder.0.file_name().and_then(|name| name.to_str()).expect("text").to_owned();
        std::os::unix::fs::symlink(&folder.0, folder.0.join("again")).expect("a link");
        std::os::unix::fs::symlink("a.pem", folder.0.join("b.pem")).expect("a link");
        for other in ["a.pem", "./a.pem", "/a.pem", "/.//./a.pem", "again/again/a.pem", "b.pem"] {
            let path = format!("{}/{other}", folder.0.display());
            assert!(matches!(files.read(Path::new(&path), 1), Answer::File(_)), "{path}");
        }
        for steps in 0..50 {
            let path = format!("{}{}//a.pem", folder.0.display(), format!("/../{name}").repeat(steps));
            assert!(matches!(files.read(Path::new(&path), 1), Answer::File(_)), "{path}");
        }
        assert_eq!((files.announced.len(), said(&supervisor)), (1, vec![Order::File(path.clone())]));
        // However many there are, the supervisor can be told of as many.
        let others = (1..FILES_MAX).map(|number| (PathBuf::from(format!("/{number}")), Vec::<Ski>::new()));
        files.announced.extend(others);
        let one_more = folder.write("c.pem", pem().0);
        let held = files.count();
        let Answer::Unread(Unread::Failed(why)) = files.read(&one_more, 1) else { panic!("it is one too many") };
        assert!(why.contains("100000 files"), "{why}");
        assert!(matches!(files.read(&path, 1), Answer::File(_)), "it is known");
        assert_eq!((files.count(), said(&supervisor).len()), (held, 0));
    }

    #[test]
    fn keys_are_made_and_used_for_accounts_alone_that_were_told_at_the_start() {
        let folder = Folder::new("accounts");
        let mut files = files(Path::new("none"));
        files.store = Some(folder.0.clone());
        let account = |name: &str| name.to_owned();
        let generate = |name| Question::Generate { account: account(name), key: NewKey::P256 };
        let Answer::Bytes(public) = files.answer(generate("le")) else { panic!("no key") };
        let ski = propylon_crypto::RemoteKey::new(0, &public).expect("a key").ski;
        // Another engine's, which has the folder too.
        let key = |name| KeptKey::new(name, ski, Purpose::Certificate).expect("a name");
        fs::copy(folder.0.join(key("le").to_string()), folder.0.join(key("other").to_string())).expect("a file");
        for (name, is_told) in [("le", true), ("other", false)] {
            let questions = [
                Question::ReadKept { key: key(name), stamp: 1 },
                Question::SignCsr { key: key(name), info: b"info".to_vec() },
                Question::Kept(account(name)),
                generate(name),
                Question::RemoveKept(key(name)),
            ];
            for question in questions {
                let text = format!("{name}: {question:?}");
                let answer = files.answer(question);
                let is_refused = |why: &str| why.contains("no account was called") && why.contains(name);
                let refused = matches!(&answer, Answer::Unread(Unread::Failed(why)) if is_refused(why));
                assert_eq!(refused, !is_told, "{text}: {answer:?}");
            }
            let header = r#"{"alg":"ES256","kid":"k","nonce":"n","url":"u"}"#.to_owned();
            let key = KeptKey::new(name, ski, Purpose::Account).expect("a name");
            let answer = files.answer(Question::SignRequest { key, header, payload: String::new() });
            assert_eq!(answer == Answer::Unread(Unread::Missing), is_told, "{answer:?}");
        }
        assert!(folder.0.join(key("other").to_string()).exists() && !folder.0.join(key("le").to_string()).exists());
        assert_eq!(fs::read_dir(&folder.0).expect("a folder").count(), 2);
    }

    #[test]
    fn files_whose_keys_are_forgotten_are_no_more_those_of_the_next_process() {
        let folder = Folder::new("taken-back");
        let (own, other) = propylon_sys::message_pair().expect("two sockets");
        let mut files = files(Path::new("none"));
        files.supervisor = Some(own);
        let said = || said(&other);
        let [(one, one_key), (two, two_key), (three, _)] = [pem(), pem(), pem()];
        let (a, b) = (folder.write("a.pem", one), folder.write("b.pem", two));
        files.read(&a, 1);
        files.read(&b, 1);
        assert_eq!(said(), [Order::File(a.clone()), Order::File(b.clone())]);
        files.answer(Question::Keep(vec![ski(&one_key), ski(&two_key)]));
        files.answer(Question::Forget(1));
        assert_eq!(said(), [], "both are in use");
        files.answer(Question::Keep(vec![ski(&two_key)]));
        files.answer(Question::Forget(1));
        assert_eq!(said(), [Order::Removed(a.clone())]);
        // Another key in the place of the one that is in use still; then that one alone.
        folder.write("b.pem", three);
        files.read(&b, 2);
        files.read(&a, 2);
        assert_eq!(said(), [Order::File(a.clone())], "it is in use again");
        files.answer(Question::Keep(vec![ski(&one_key)]));
        files.answer(Question::Forget(1));
        assert_eq!(said(), [], "the new key of it is held");
        files.answer(Question::Keep(vec![ski(&one_key)]));
        files.answer(Question::Forget(2));
        assert_eq!(said(), [Order::Removed(b)]);
    }

    #[test]
    fn uploads_are_kept_for_this_account_alone_until_they_are_removed() {
        let folder = Folder::new("uploads");
        let store = folder.0.join("made/keys");
        store::prepare(&store).expect("a folder");
        assert_eq!(fs::metadata(&store).expect("it is there").mode() & 0o777, 0o700);
        let mut files = files(Path::new("none"));
        let put = |name: &str, text: &str| Question::Put { name: name.into(), pem: Secret::new(text.as_bytes()) };
        assert!(matches!(files.answer(put("a.pem", "")), Answer::Unread(_)), "there is no folder");
        files.store = Some(store.clone());
        let (text, key) = pem();
        assert_eq!(files.answer(put("a.pem", "before")), Answer::Done);
        assert_eq!(files.answer(put("a.pem", &text)), Answer::Done);
        let path = store.join("a.pem");
        let there: Vec<PathBuf> = fs::read_dir(&store).expect("a folder").flatten().map(|entry| entry.path()).collect();
        assert_eq!(there, std::slice::from_ref(&path));
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        assert!(matches!(files.read(&path, 1), Answer::File(KeyFile { open_to_all: false, .. })));
        assert!(files.held.contains_key(&ski(&key)));
        // Drafts that others left behind, or are writing now.
        fs::write(store.join(".draft-b.pem"), "half").expect("a file");
        store::prepare(&store).expect("it is there");
        assert!(store.join(".draft-b.pem").exists(), "it may be written to at this time");
        let long_ago = std::time::SystemTime::now() - 2 * store::DRAFT_AGE;
        let draft = fs::OpenOptions::new().write(true).open(store.join(".draft-b.pem")).expect("a file");
        draft.set_modified(long_ago).expect("our own file");
        store::prepare(&store).expect("it is there");
        assert_eq!(files.answer(Question::Remove("a.pem".into())), Answer::Done);
        assert_eq!(files.answer(Question::Remove("a.pem".into())), Answer::Done, "it is gone");
        assert_eq!(fs::read_dir(&store).expect("a folder").count(), 0);
        fs::set_permissions(&store, PermissionsExt::from_mode(0o777)).expect("our own folder");
        assert!(store::prepare(&store).is_err(), "others could write there");
        files.refuse_new_files("no".into());
        let refused = Answer::Unread(Unread::Failed("no".into()));
        assert_eq!(files.answer(put("a.pem", &text)), refused);
        assert_eq!(files.answer(Question::Generate { account: "le".into(), key: NewKey::P256 }), refused);
        // The question `Store` tells what is wrong by now, and lets it be mended while this process lives.
        let Answer::Unread(Unread::Failed(why)) = files.answer(Question::Store) else { panic!("others could write") };
        assert!(why.contains("other accounts may write in it"), "{why}");
        fs::set_permissions(&store, PermissionsExt::from_mode(0o700)).expect("our own folder");
        assert_eq!(files.answer(Question::Store), Answer::Done);
        assert_eq!(files.answer(put("a.pem", &text)), Answer::Done);
        assert_eq!(fs::read_dir(&store).expect("a folder").count(), 1, "nothing is left of having tried");
        fs::remove_dir_all(&store).expect("our own folder");
        assert_eq!(files.answer(Question::Store), Answer::Unread(Unread::Missing));
    }

    #[test]
    fn only_the_account_that_serves_or_root_may_own_the_folder_of_uploads() {
        let folder = Folder::new("owned");
        let metadata = || fs::metadata(&folder.0).expect("a folder");
        fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o750)).expect("our own folder");
        let own = metadata().uid();
        assert_eq!(store::unfit(&metadata(), own), None);
        assert_eq!(store::unfit(&metadata(), own + 1).is_none(), own == 0);
        fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o770)).expect("our own folder");
        assert!(store::unfit(&metadata(), own).is_some_and(|what| what.contains("may write")));
        let file = fs::metadata(folder.write("a.pem", "")).expect("a file");
        assert!(store::unfit(&file, own).is_some_and(|what| what.contains("no folder")));
        if own == 0 {
            std::os::unix::fs::chown(&folder.0, Some(7), None).expect("root may");
            fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o700)).expect("root may");
            assert_eq!([0, 7, 8].map(|user| store::unfit(&metadata(), user).is_none()), [false, true, false]);
        }
    }

    #[test]
    fn uploads_are_limited_in_number() {
        let folder = Folder::new("many");
        for number in 0..UPLOADS_MAX {
            File::create(folder.0.join(format!("{number}.pem"))).expect("a file");
        }
        let mut files = files(Path::new("none"));
        files.store = Some(folder.0.clone());
        let put = Question::Put { name: "one-more.pem".into(), pem: Secret::new(b"key") };
        let Answer::Unread(Unread::Failed(why)) = files.answer(put) else { panic!("it is one too many") };
        assert!(why.contains("uploads"), "{why}");
        // Removing an upload makes room for another.
        let put = |name: &str| Question::Put { name: name.into(), pem: Secret::new(b"key") };
        assert_eq!(files.answer(Question::Remove("0.pem".into())), Answer::Done);
        assert_eq!(files.answer(put("one-more.pem")), Answer::Done);
        assert!(matches!(files.answer(put("another.pem")), Answer::Unread(_)));
    }

    #[test]
    fn an_ocsp_response_is_known_by_its_form() {
        let basic = [&[0x30, 17, 6, 9, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1, 4, 4][..], &[0x30, 2, 5, 0]].concat();
        let good = [&[0x30, 24, 0x0a, 1, 0, 0xa0, 19][..], &basic].concat();
        assert!(is_response(&good) && is_response(&[0x30, 3, 0x0a, 1, 3]));
        for cut in 0..good.len() {
            assert!(!is_response(&good[..cut]));
        }
        assert!(!is_response(&[&good[..], &[0]].concat()));
        assert!(!is_response(rcgen::KeyPair::generate().expect("a key").serialized_der()));
    }
}
