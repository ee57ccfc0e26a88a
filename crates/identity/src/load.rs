//! Gates of all routes, with the files that they go by: read when a configuration is compiled.

use std::collections::{BTreeMap, HashMap};
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use propylon_config::{Action, At, Auth, BackendId, Config, Jwt, KeysUrl, Proof, Proofs, Route, TokenKeys};
use propylon_crypto::{TokenAlgorithm, is_open_to_all, sha256};
use propylon_http::h1::RequestHead;

use zeroize::Zeroizing;

use crate::api_keys::ApiKeys;
use crate::gate::{Asked, Demand, Gate, Keys, Needed, Parameter, challenge};
use crate::key_set::{Fetched, KeySet};
use crate::lines::BadLine;
use crate::question::Forward;
use crate::tokens::{self, Tokens};
use crate::users::Users;

const FILE_BYTES_MAX: u64 = 16 << 20;
/// A path that is a pipe must not stop the process.
const NONBLOCK: i32 = 0o4000;

/// Gates by route; none of a route that lets everybody in.
pub type Gates = Vec<Option<Arc<Gate>>>;

/// Fault of a file, and its cure.
#[derive(Clone, Debug)]
pub struct Problem {
    pub is_warning: bool,
    pub at: At,
    pub path: PathBuf,
    pub what: String,
    pub fix: String,
    /// Error of the system that it comes from, if it comes from one.
    pub error: Option<io::ErrorKind>,
}

/// Set of keys by its URL, the authorities that are trusted for that, and the algorithms that decide on the keys that
/// are of use.
pub type FetchId = (String, Option<PathBuf>, Vec<String>);

/// Text of a set of keys that was fetched, as it was last good: for whoever has none yet, in a configuration that
/// follows or in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptKeys {
    pub url: String,
    /// File of the authorities that were trusted for it. By others it would have to be fetched again.
    pub keys_ca: Option<PathBuf>,
    pub text: Arc<str>,
}

/// Gates with their files' contents.
#[derive(Default)]
pub struct Loaded {
    pub gates: Gates,
    users: HashMap<PathBuf, Arc<Users>>,
    api_keys: HashMap<PathBuf, Arc<ApiKeys>>,
    /// Sets by their algorithms as well, which decide on the keys that are of use.
    key_sets: HashMap<(PathBuf, Vec<String>), Arc<KeySet>>,
    /// Parameters of queries that keys are in, each once.
    parameters: Vec<String>,
    /// Sets that are fetched, whatever the files are.
    fetched: HashMap<FetchId, Arc<Fetched>>,
    /// Fields that routes tell servers of, by backend.
    told: HashMap<BackendId, Vec<String>>,
    /// Hashes of what was read.
    contents: BTreeMap<PathBuf, [u8; 32]>,
}

impl Loaded {
    /// Compiles the gates of a configuration. Files that `known` has are not read again, but for those that `is_read`
    /// says; keys that were fetched stay.
    ///
    /// # Errors
    /// All files that cannot be used. Problems beside the gates are warnings.
    pub fn load(
        config: &Config,
        known: Option<&Loaded>,
        is_read: impl Fn(&Path) -> bool,
    ) -> Result<(Loaded, Vec<Problem>), Vec<Problem>> {
        let known = known.map(|known| known.without(is_read));
        Loaded::load_beside(config, known.as_ref())
    }

    /// The same without some files.
    fn without(&self, is_out: impl Fn(&Path) -> bool) -> Loaded {
        fn kept<T>(all: &HashMap<PathBuf, Arc<T>>, is_out: &impl Fn(&Path) -> bool) -> HashMap<PathBuf, Arc<T>> {
            let stay = all.iter().filter(|(path, _)| !is_out(path));
            stay.map(|(path, value)| (path.clone(), Arc::clone(value))).collect()
        }
        let key_sets = self.key_sets.iter().filter(|((path, _), _)| !is_out(path));
        let contents = self.contents.iter().filter(|(path, _)| !is_out(path));
        Loaded {
            gates: Gates::new(),
            users: kept(&self.users, &is_out),
            api_keys: kept(&self.api_keys, &is_out),
            key_sets: key_sets.map(|(id, keys)| (id.clone(), Arc::clone(keys))).collect(),
            fetched: self.fetched.clone(),
            parameters: Vec::new(),
            told: HashMap::new(),
            contents: contents.map(|(path, hash)| (path.clone(), *hash)).collect(),
        }
    }

    /// Compiles the gates again with the keys that an issuer has sent. `None` where these are what is in use.
    ///
    /// # Errors
    /// The fault of the text, in words.
    pub fn with_keys(&self, config: &Config, id: &FetchId, text: &[u8]) -> Result<Option<Loaded>, String> {
        let Some(earlier) = self.fetched.get(id) else { return Ok(None) };
        if earlier.keys.is_some() && earlier.text.as_bytes() == text {
            return Ok(None);
        }
        let algorithms: Vec<_> = id.2.iter().filter_map(|name| TokenAlgorithm::of(name)).collect();
        let keys = KeySet::parse(text, &algorithms)
            .map_err(|bad| bad.first().map_or_else(String::new, |bad| bad.what.clone()))?;
        // JSON that was read is UTF-8.
        let (text, is_missed) = (String::from_utf8_lossy(text).into(), Arc::clone(&earlier.is_missed));
        let mut known = self.without(|_| false);
        known.fetched.insert(id.clone(), Arc::new(Fetched { keys: Some(keys), text, is_missed }));
        let loaded = Loaded::load_beside(config, Some(&known));
        loaded.map(|(loaded, _)| Some(loaded)).map_err(|_| "files of other proofs cannot be read".into())
    }

    /// Sets that are fetched: whether their keys are there, and a word that says that one was missed.
    pub fn fetched(&self) -> impl Iterator<Item = (&FetchId, bool, &AtomicBool)> {
        self.fetched.iter().map(|(id, fetched)| (id, fetched.keys.is_some(), &*fetched.is_missed))
    }

    /// Compiles the gates again with keys of others, where one's own are yet to come and these are of the same URL,
    /// under the same authorities. `None` where there are none of use.
    pub fn with_kept(&self, config: &Config, kept: &[KeptKeys]) -> Option<Loaded> {
        let mut gates: Option<Loaded> = None;
        for (id, _, _) in self.fetched().filter(|(_, has_keys, _)| !has_keys) {
            let is_own = |kept: &&KeptKeys| kept.url == id.0 && is_same_file(kept.keys_ca.as_ref(), id.1.as_ref());
            let current = gates.as_ref().unwrap_or(self);
            // Text without a key for the algorithms is fetched again, and what is wrong with it is said then. There may
            // be several texts, of sets with other algorithms that were fetched apart.
            let mut own = kept.iter().filter(is_own);
            let news = own.find_map(|own| current.with_keys(config, id, own.text.as_bytes()).ok().flatten());
            gates = news.or(gates);
        }
        gates
    }

    /// Texts of all sets that have come, each once.
    pub fn kept_keys(&self) -> Vec<KeptKeys> {
        let mut kept: Vec<KeptKeys> = Vec::new();
        for ((url, keys_ca, _), fetched) in self.fetched.iter().filter(|(_, fetched)| fetched.keys.is_some()) {
            let own = KeptKeys { url: url.clone(), keys_ca: keys_ca.clone(), text: Arc::clone(&fetched.text) };
            if !kept.contains(&own) {
                kept.push(own);
            }
        }
        kept
    }

    fn load_beside(config: &Config, known: Option<&Loaded>) -> Result<(Loaded, Vec<Problem>), Vec<Problem>> {
        let mut problems = Vec::new();
        let mut loaded = Loaded { told: told_by_backend(config), ..Loaded::default() };
        for route in &config.routes {
            let withheld = told_names(route, &loaded.told);
            let gate = match &route.steps.auth {
                Some(auth) => loaded.gate(auth, known, withheld, &mut problems),
                None if withheld.is_empty() => None,
                None => {
                    let (proofs, needed) = (Vec::new(), Needed::Any);
                    Some(Gate { proofs, needed, user_to: None, hidden: Vec::new(), withheld })
                }
            };
            loaded.gates.push(gate.map(Arc::new));
        }
        if let Some(known) = known {
            let files = config.routes.iter().filter_map(|route| route.steps.auth.as_ref()).flat_map(Auth::files);
            for (file, hash) in files.filter_map(|file| known.contents.get_key_value(file)) {
                loaded.contents.entry(file.clone()).or_insert(*hash);
            }
        }
        if problems.iter().any(|problem| !problem.is_warning) { Err(problems) } else { Ok((loaded, problems)) }
    }

    /// Covers keys in the query, which are in logs otherwise: those of any route, since a request need not have reached
    /// the one that it was meant for, nor any. Nothing may read the target's keys after that.
    pub fn cover(&self, head: &mut RequestHead, text: &mut [u8]) {
        for parameter in &self.parameters {
            head.cover_parameter(text, parameter.as_bytes());
        }
    }

    /// Whether any gate asks for passwords.
    pub fn asks_for_passwords(&self) -> bool {
        !self.users.is_empty()
    }

    /// Files of both whose contents are others in the later one.
    pub fn changed_files<'l>(&self, later: &'l Loaded) -> impl Iterator<Item = &'l Path> {
        let is_other =
            |(path, hash): &(&PathBuf, &[u8; 32])| self.contents.get(*path).is_some_and(|known| known != *hash);
        later.contents.iter().filter(is_other).map(|(path, _)| path.as_path()).collect::<Vec<_>>().into_iter()
    }

    /// The gate of a route; `None` where a file of it cannot be used.
    fn gate(
        &mut self,
        auth: &Auth,
        known: Option<&Loaded>,
        mut withheld: Vec<String>,
        problems: &mut Vec<Problem>,
    ) -> Option<Gate> {
        let mut proofs = Vec::with_capacity(auth.proofs.len());
        for proof in auth.proofs.iter() {
            let asked = self.asked((proof, auth.at), known, problems);
            proofs.push(asked.map(|asked| Demand { asked, challenge: challenge(proof) }));
        }
        // No other route's: there it is the client's own.
        withheld.extend(auth.fields().filter(|field| is_authorization(field)).map(str::to_string));
        let hidden = auth.proofs.iter().filter(|_| auth.hide_credentials).filter_map(hidden).collect();
        let proofs = proofs.into_iter().collect::<Option<Vec<_>>>()?;
        let needed = if matches!(auth.proofs, Proofs::All(_)) { Needed::All } else { Needed::Any };
        Some(Gate { proofs, needed, user_to: auth.user_to.clone(), hidden, withheld })
    }

    fn asked(
        &mut self,
        (proof, at): (&Proof, At),
        known: Option<&Loaded>,
        problems: &mut Vec<Problem>,
    ) -> Option<Asked> {
        Some(match proof {
            Proof::Basic(basic) => {
                let before = known.map(|known| &known.users);
                let users = once(&mut self.users, before, basic.file.clone(), || {
                    read((&basic.file, at), (problems, &mut self.contents), Secrecy::Secret, Users::parse)
                })?;
                Asked::Basic { users, remember: basic.remember }
            }
            Proof::ApiKey(key) => {
                let before = known.map(|known| &known.api_keys);
                let keys = once(&mut self.api_keys, before, key.file.clone(), || {
                    read((&key.file, at), (problems, &mut self.contents), Secrecy::Secret, ApiKeys::parse)
                })?;
                match (&key.query, &key.header) {
                    (Some(parameter), _) => {
                        if !self.parameters.contains(parameter) {
                            self.parameters.push(parameter.clone());
                        }
                        Asked::KeyInQuery { parameter: Parameter::new(parameter), keys }
                    }
                    (None, header) => Asked::KeyIn { field: header.clone()?, keys },
                }
            }
            Proof::Jwt(jwt) => {
                let keys = match &jwt.keys {
                    TokenKeys::File { keys_file } => Keys::Read(self.key_set((keys_file, at), jwt, known, problems)?),
                    TokenKeys::Url(url) => Keys::Fetched(self.keys_of(url, jwt, known)),
                };
                Asked::Token { cookie: jwt.cookie.clone(), tokens: Box::new(Tokens::new(jwt)), keys }
            }
            Proof::Forward(forward) => {
                let told = self.told.get(&forward.backend).cloned().unwrap_or_default();
                Asked::Forward(Box::new(Forward::new(forward, told)))
            }
        })
    }
}

impl Loaded {
    fn key_set(
        &mut self,
        (path, at): (&PathBuf, At),
        jwt: &Jwt,
        known: Option<&Loaded>,
        problems: &mut Vec<Problem>,
    ) -> Option<Arc<KeySet>> {
        let before = known.map(|known| &known.key_sets);
        once(&mut self.key_sets, before, (path.clone(), jwt.algorithms.clone()), || {
            read((path, at), (problems, &mut self.contents), Secrecy::Public, |text| {
                KeySet::parse(text, &tokens::algorithms(jwt))
            })
        })
    }

    /// Keys of a URL: those that are known, or none for now.
    fn keys_of(&mut self, url: &KeysUrl, jwt: &Jwt, known: Option<&Loaded>) -> Arc<Fetched> {
        let id = (url.address.url.clone(), url.keys_ca.clone(), jwt.algorithms.clone());
        let before = known.and_then(|known| known.fetched.get(&id)).cloned();
        Arc::clone(self.fetched.entry(id).or_insert_with(|| before.unwrap_or_default()))
    }
}

/// Fields that routes tell servers of by, by backend.
fn told_by_backend(config: &Config) -> HashMap<BackendId, Vec<String>> {
    let mut told: HashMap<BackendId, Vec<String>> = HashMap::new();
    for route in &config.routes {
        for (backend, auth) in backends(route).filter_map(|backend| Some((backend, route.steps.auth.as_ref()?))) {
            let fields = auth.fields().filter(|field| !is_authorization(field));
            told.entry(backend).or_default().extend(fields.map(str::to_string));
        }
    }
    told
}

fn is_authorization(field: &str) -> bool {
    field.eq_ignore_ascii_case("authorization")
}

/// Fields that a client could pass for another by: servers cannot tell which route a request has taken, so they are
/// kept from every route to the same ones.
fn told_names(route: &Route, told: &HashMap<BackendId, Vec<String>>) -> Vec<String> {
    let mut names: Vec<String> = backends(route).filter_map(|backend| told.get(&backend)).flatten().cloned().collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// All backends that requests of a route, or copies of them, may go to.
fn backends(route: &Route) -> impl Iterator<Item = BackendId> {
    let first = if let Action::Backend(first) = &route.action { Some(*first) } else { None };
    first.into_iter().chain(route.steps.named_backends())
}

/// The field that has the credentials.
fn hidden(proof: &Proof) -> Option<String> {
    match proof {
        Proof::ApiKey(key) => key.header.clone(),
        Proof::Basic(_) | Proof::Jwt(_) => Some("authorization".into()),
        Proof::Forward(_) => None,
    }
}

/// Whether two paths lead to one file, also of processes that were started in different folders.
fn is_same_file(one: Option<&PathBuf>, other: Option<&PathBuf>) -> bool {
    let whole = |path: Option<&PathBuf>| path.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    one == other || whole(one) == whole(other)
}

/// Value of a key in a map: as it was before, or read now, for all who ask.
fn once<K: std::hash::Hash + Eq, T>(
    all: &mut HashMap<K, Arc<T>>,
    before: Option<&HashMap<K, Arc<T>>>,
    key: K,
    read: impl FnOnce() -> Option<T>,
) -> Option<Arc<T>> {
    let known = all.get(&key).or_else(|| before?.get(&key)).cloned();
    let value = known.or_else(|| read().map(Arc::new))?;
    all.insert(key, Arc::clone(&value));
    Some(value)
}

#[derive(PartialEq, Eq)]
enum Secrecy {
    Secret,
    Public,
}

fn read<T>(
    (path, at): (&PathBuf, At),
    (problems, contents): (&mut Vec<Problem>, &mut BTreeMap<PathBuf, [u8; 32]>),
    secrecy: Secrecy,
    parse: impl FnOnce(&[u8]) -> Result<T, Vec<BadLine>>,
) -> Option<T> {
    let problem = |is_warning: bool, what: String, fix: String, error: Option<io::ErrorKind>| Problem {
        is_warning,
        at,
        path: path.clone(),
        what: format!("{}: {what}", path.display()),
        fix,
        error,
    };
    let (metadata, text) = match open(path) {
        Ok(read) => read,
        Err(error) => {
            let fix = "give the account that Propylon is started by access to it, or write another path";
            problems.push(problem(false, format!("it cannot be read: {error}"), fix.into(), Some(error.kind())));
            return None;
        }
    };
    if secrecy == Secrecy::Secret && is_open_to_all(&metadata) {
        let fix = format!("chmod o-rwx {}", path.display());
        let what = "every account of this machine may read or change it";
        problems.push(problem(true, what.into(), fix, None));
    }
    contents.insert(path.clone(), sha256(&text));
    match parse(&text) {
        Ok(value) => Some(value),
        Err(bad) => {
            problems.extend(bad.into_iter().map(|BadLine { line, what, fix }| {
                let what = if line > 0 { format!("line {line}: {what}") } else { what };
                problem(false, what, fix, None)
            }));
            None
        }
    }
}

fn open(path: &Path) -> io::Result<(Metadata, Zeroizing<Vec<u8>>)> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {} MiB", FILE_BYTES_MAX >> 20),
        ));
    }
    let mut text = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok((metadata, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_the_same_file_however_it_is_written_from_the_current_folder() {
        let here = std::env::current_dir().unwrap();
        let (relative, whole) = (PathBuf::from("ca.pem"), here.join("ca.pem"));
        let is_same = |one: Option<&PathBuf>, other: Option<&PathBuf>| {
            assert_eq!(is_same_file(one, other), is_same_file(other, one));
            is_same_file(one, other)
        };
        assert!(is_same(None, None) && is_same(Some(&relative), Some(&relative)));
        assert!(is_same(Some(&relative), Some(&whole)) && is_same(Some(&"./ca.pem".into()), Some(&whole)));
        for other in [here.join("a/ca.pem"), "other.pem".into(), "/ca.pem".into(), PathBuf::new()] {
            assert!(!is_same(Some(&relative), Some(&other)), "{other:?}");
        }
        // The authorities of the system are no file's.
        assert!(!is_same(Some(&relative), None) && !is_same(None, Some(&PathBuf::new())));
    }
}
