//! Loading of a profile's certificates: which files there are, which have to be read, and what replaces those that
//! cannot be used.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{Certificate, CertificateSource, Ordered, SignerId, TlsProfile};

use super::bundle::{Bundle, assemble, bundle, may_be_used, ordered_bundle};
use super::ocsp::{self, ocsp_path};
use super::pem::{self, Contents};
use super::problem::Problem;
use super::{folder, side_by_side};
use crate::certificates::credential::{Credential, FileStamps, Interner, Material, Staple};
use crate::certificates::file_stamp::FileStamp;
use crate::certificates::finding::{Finding, Severity};

/// Context in which all files of a profile are read.
pub(super) struct Loading<'a> {
    signer: Option<SignerId>,
    /// World-readable keys may be used.
    allow_world_readable: bool,
    earlier: &'a [Arc<Credential>],
    /// Earlier credentials by the chain's file.
    by_path: HashMap<&'a Path, &'a Arc<Credential>>,
    /// Earlier credentials by the key's file, where it is another.
    by_key_path: HashMap<&'a Path, &'a Arc<Credential>>,
    interner: Interner,
    pub now: SystemTime,
}

/// Finding about an ordered certificate that is not there yet.
pub const NOT_THERE_YET: &str = "the certificate is not there yet";
/// Limit of files that are looked at for a stand-in while an ordered one is missing.
const STAND_INS_MAX: usize = 1000;

/// One entry of `certificates`.
pub(super) struct Entry<'a> {
    pub certificate: &'a Certificate,
    /// The entry's folder, and problems with the folder itself.
    folder: Option<(&'a Path, Vec<Problem>)>,
}

/// A file, or pair of files, to read.
pub(super) struct Item<'a> {
    certificate: &'a Certificate,
    chain: PathBuf,
    /// File of the key, where it is another.
    key: Option<&'a Path>,
    in_folder: bool,
    /// An OCSP response may exist.
    response: bool,
}

/// Result of reading an item, with its problems.
pub(super) type Outcome = (Read, Vec<Problem>);

pub(super) enum Read {
    Whole(Candidate),
    /// A file of a folder with chains or keys alone.
    Part(PathBuf, Contents),
    Nothing,
}

/// A chain with its key, before duplicate names are resolved.
pub(super) struct Candidate {
    certificate: Place,
    material: Arc<Material>,
    staple: Option<Staple>,
}

#[derive(Clone, Copy)]
struct Place {
    default: bool,
    at: propylon_config::At,
}

impl<'a> Entry<'a> {
    pub fn list(certificate: &'a Certificate) -> (Entry<'a>, Vec<Item<'a>>) {
        let item = |chain: PathBuf, key| Item { certificate, chain, key, in_folder: false, response: true };
        let alone = |item| (Entry { certificate, folder: None }, vec![item]);
        match &certificate.source {
            CertificateSource::Pair { chain, key } => alone(item(chain.clone(), Some(key))),
            CertificateSource::Ordered(ordered) => {
                let items = ordered.files.iter().map(|(_, file)| item(file.clone(), None));
                (Entry { certificate, folder: None }, items.collect())
            }
            CertificateSource::Path(path) if !path.is_dir() => alone(item(path.clone(), None)),
            CertificateSource::Path(path) => {
                let mut problems = Vec::new();
                let folder::Listing { files, responses } = folder::list(path, &mut problems);
                let in_folder = |file: PathBuf| {
                    let response = certificate.ocsp.is_some() || responses.contains(&ocsp_path(certificate, &file));
                    Item { in_folder: true, response, ..item(file, None) }
                };
                let items = files.into_iter().map(in_folder).collect();
                (Entry { certificate, folder: Some((path, problems)) }, items)
            }
        }
    }
}

impl<'a> Loading<'a> {
    pub fn new(profile: &TlsProfile, earlier: &'a [Arc<Credential>]) -> Loading<'a> {
        Loading {
            signer: profile.signer,
            allow_world_readable: profile.allow_world_readable_keys,
            earlier,
            by_path: earlier.iter().map(|credential| (credential.material.path.as_path(), credential)).collect(),
            by_key_path: earlier.iter().filter_map(|each| Some((each.material.key_path.as_deref()?, each))).collect(),
            interner: Interner::of(earlier.iter()),
            now: SystemTime::now(),
        }
    }

    /// Whether the credential is made of what an earlier one was made of.
    pub fn knows(&self, credential: &Credential) -> bool {
        let known = self.by_path.get(credential.material.path.as_path());
        known.is_some_and(|known| Arc::ptr_eq(&known.material, &credential.material))
    }

    /// Reads an item, on any thread.
    pub fn read(&self, item: Item<'_>) -> Outcome {
        let is_new = !self.by_path.contains_key(item.chain.as_path());
        if let CertificateSource::Ordered(ordered) = &item.certificate.source
            && is_new
            && fs::symlink_metadata(&item.chain).is_err()
        {
            return self.await_order(&item, ordered);
        }
        self.read_what_is_there(item)
    }

    /// Result for an ordered certificate that is not there yet. One that was ordered for some of its names stands in,
    /// as when a name has been added: clients of the other names go on being served.
    fn await_order(&self, item: &Item<'_>, ordered: &Ordered) -> Outcome {
        let stand_in = self.stand_in(&item.chain, &ordered.names);
        let fix = match &stand_in {
            Some(material) => format!("it is ordered; until it is there, {} stands in", material.path.display()),
            None => "it is ordered; until it is there, clients get another certificate, or none".to_string(),
        };
        let mut problems = vec![Problem::warning(&item.chain, NOT_THERE_YET, fix)];
        let whole = |material| Read::Whole(self.candidate(item.certificate, material, item.response, &mut problems));
        (stand_in.map_or(Read::Nothing, whole), problems)
    }

    /// The unexpired certificate for most of the names, among the files beside the missing one with the same key type.
    fn stand_in(&self, wanted: &Path, names: &[String]) -> Option<Arc<Material>> {
        let kind = |path: &Path| path.file_stem().map(Path::new).and_then(Path::extension).map(OsStr::to_owned);
        let now = self.now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let entries = fs::read_dir(wanted.parent()?).ok()?.flatten().take(STAND_INS_MAX);
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "pem") && kind(path) == kind(wanted));
        paths.sort();
        let read = |path: PathBuf| {
            let known = self.by_path.get(path.as_path()).map(|known| Arc::clone(&known.material));
            let material = known.or_else(|| {
                self.material(ordered_bundle(&path, self.allow_world_readable, &mut Vec::new())?, &mut Vec::new())
            })?;
            let fitting = names.iter().filter(|name| material.names.iter().any(|own| **own == ***name)).count();
            (fitting > 0 && material.validity.not_after > now).then_some((fitting, material))
        };
        let best = paths.into_iter().filter_map(read).max_by_key(|(fitting, each)| (*fitting, each.validity.not_after));
        best.map(|(_, material)| material)
    }

    fn read_what_is_there(&self, item: Item<'_>) -> Outcome {
        let mut problems = Vec::new();
        let material = match self.unchanged(&item) {
            Some(material) => Some(material),
            None if item.in_folder => match pem::read_with_keys(&item.chain) {
                Ok(file) => {
                    if !may_be_used(&file, &item.chain, self.allow_world_readable, &mut problems) {
                        return (Read::Nothing, problems);
                    }
                    match (file.certificates.is_empty(), file.keys.is_empty()) {
                        (false, true) | (true, false) => return (Read::Part(item.chain, file), problems),
                        (_, _) => self.material(together(item.chain.clone(), file), &mut problems),
                    }
                }
                Err(problem) => {
                    problems.push(problem);
                    None
                }
            },
            None => {
                let bundle = match item.certificate.source {
                    CertificateSource::Ordered(_) => {
                        ordered_bundle(&item.chain, self.allow_world_readable, &mut problems)
                    }
                    _ => bundle(&item.chain, item.key.unwrap_or(&item.chain), self.allow_world_readable, &mut problems),
                };
                bundle.and_then(|bundle| self.material(bundle, &mut problems))
            }
        };
        let read = material.map_or(Read::Nothing, |material| {
            Read::Whole(self.candidate(item.certificate, material, item.response, &mut problems))
        });
        (read, problems)
    }

    fn material(&self, bundle: Bundle, problems: &mut Vec<Problem>) -> Option<Arc<Material>> {
        assemble(bundle, self.signer, &self.interner, problems).map(Arc::new)
    }

    /// Content of the item's files from an earlier load, if their metadata is unchanged.
    fn unchanged(&self, item: &Item<'_>) -> Option<Arc<Material>> {
        let material = &self.by_path.get(item.chain.as_path())?.material;
        if material.key_path.as_deref() != item.key {
            return None;
        }
        let file_stamp = |path: &Path| fs::metadata(path).ok().map(|metadata| FileStamp::of(&metadata));
        let chain = file_stamp(&item.chain)?;
        let key = match item.key {
            Some(path) => Some(file_stamp(path)?),
            None => None,
        };
        (material.stamps == Some(FileStamps { chain, key })).then(|| Arc::clone(material))
    }

    /// Adds the OCSP response, which is read each time, since it changes on its own.
    fn candidate(
        &self,
        certificate: &Certificate,
        material: Arc<Material>,
        response: bool,
        problems: &mut Vec<Problem>,
    ) -> Candidate {
        let path = ocsp_path(certificate, &material.path);
        let staple = match response {
            true => ocsp::staple(&path, certificate.ocsp.is_some(), &material.chain.leaf, self.now, problems),
            false => None,
        };
        if staple.is_none() && material.must_staple {
            let what = "the certificate demands a stapled OCSP response (RFC 7633), and there is none";
            problems.push(Problem::warning(&path, what, "put one there: some clients refuse it without"));
        }
        Candidate { certificate: Place { default: certificate.default, at: certificate.at }, material, staple }
    }

    /// Everything that an entry has come to: what was read, which parts belong together, and what is kept because its
    /// files cannot be used now.
    pub fn conclude(
        &self,
        entry: Entry<'_>,
        read: impl Iterator<Item = Outcome>,
        cores: usize,
    ) -> (Vec<Candidate>, Vec<Problem>) {
        let Entry { certificate, folder } = entry;
        let (mut candidates, mut parts, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (read, problems) in read {
            found.extend(problems);
            match read {
                Read::Whole(candidate) => candidates.push(candidate),
                Read::Part(path, contents) => parts.push((path, contents)),
                Read::Nothing => {}
            }
        }
        if let Some((path, mut problems)) = folder {
            problems.append(&mut found);
            let bundles = folder::pair(parts, self.signer.is_some(), &mut problems);
            if candidates.is_empty() && bundles.is_empty() && problems.is_empty() {
                let fix = "add one, as .pem, or as .crt and .key";
                problems.push(Problem::error(path, "the directory has no certificate with its private key", fix));
            }
            let pairs = side_by_side::map(bundles, cores, |bundle| {
                let mut problems = Vec::new();
                let material = self.material(bundle, &mut problems);
                let whole = |material| self.candidate(certificate, material, true, &mut problems);
                (material.map(whole), problems)
            });
            for (candidate, more) in pairs {
                candidates.extend(candidate);
                problems.extend(more);
            }
            found = problems;
        }
        self.keep_what_was_good(certificate, &mut candidates, &found);
        if let CertificateSource::Ordered(_) = certificate.source {
            // Troubles with an ordered certificate are only warnings: it is set aside, and another is ordered.
            for problem in found.iter_mut().filter(|problem| problem.severity == Severity::Error) {
                problem.severity = Severity::Warning;
                if self.by_path.contains_key(problem.path.as_path()) {
                    problem.fix = "what was read before stays in use; put back what is missing".into();
                }
            }
        }
        (candidates, found)
    }

    fn keep_what_was_good(&self, certificate: &Certificate, candidates: &mut Vec<Candidate>, problems: &[Problem]) {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
        let broken: HashSet<&Path> = errors.map(|problem| problem.path.as_path()).collect();
        if broken.is_empty() || self.earlier.is_empty() {
            return;
        }
        let of_file = |path: &&Path| {
            let chain = self.by_path.get(path).into_iter();
            chain.chain(self.by_key_path.get(path)).copied().collect::<Vec<_>>()
        };
        // The whole folder may be gone.
        let whole = match &certificate.source {
            CertificateSource::Path(path) => broken.contains(path.as_path()).then_some(path),
            CertificateSource::Pair { .. } | CertificateSource::Ordered(_) => None,
        };
        let of_whole = whole.map(|path| self.earlier.iter().filter(|earlier| earlier.material.is_of(path)));
        let good = broken.iter().flat_map(of_file).chain(of_whole.into_iter().flatten());
        let mut taken: HashSet<PathBuf> = candidates.iter().map(|candidate| candidate.material.path.clone()).collect();
        let place = Place { default: certificate.default, at: certificate.at };
        for earlier in good {
            if taken.insert(earlier.material.path.clone()) {
                let (material, staple) = (Arc::clone(&earlier.material), earlier.staple.clone());
                candidates.push(Candidate { certificate: place, material, staple });
            }
        }
        // Kept ones go where they were, since the first may be the default: those in one file first, by name; then
        // those in two.
        candidates.sort_by(|one, other| one.material.place().cmp(&other.material.place()));
    }

    /// Credentials that have a name left that no earlier one of the same key type has.
    pub fn admit(&self, candidates: &[Candidate], findings: &mut Vec<Finding>) -> Vec<Arc<Credential>> {
        let mut taken: HashSet<(_, &str)> = HashSet::with_capacity(candidates.len());
        let mut credentials = Vec::with_capacity(candidates.len());
        for Candidate { certificate, material, staple } in candidates {
            let mut hidden: Vec<Box<str>> = Vec::new();
            for name in &material.names {
                if !taken.insert((material.kind, name)) {
                    hidden.push(name.clone());
                }
            }
            if !hidden.is_empty() {
                let kind = material.kind.name();
                let what = format!("an earlier {kind} certificate already stands for {}", hidden.join(", "));
                let fix = "the later one is ignored for these names; remove one of the two";
                findings.push(Problem::warning(&material.path, what, fix).at(certificate.at));
            }
            let useless = !hidden.is_empty() && hidden.len() == material.names.len();
            if !useless {
                credentials.push(self.credential(certificate, material, hidden, staple));
            }
        }
        credentials
    }

    /// The earlier credential itself, where nothing differs, with everything that was made of it.
    fn credential(
        &self,
        Place { default, at }: &Place,
        material: &Arc<Material>,
        hidden: Vec<Box<str>>,
        staple: &Option<Staple>,
    ) -> Arc<Credential> {
        if let Some(&known) = self.by_path.get(material.path.as_path())
            && Arc::ptr_eq(&known.material, material)
            && (known.default, known.at) == (*default, *at)
            && known.hidden == hidden
            && known.staple == *staple
        {
            return Arc::clone(known);
        }
        let material = Arc::clone(material);
        let staple = staple.clone();
        Arc::new(Credential { material, hidden, default: *default, staple, at: *at, compressed: Default::default() })
    }
}

/// The bundle of a file with both chain and key.
fn together(path: PathBuf, file: Contents) -> Bundle {
    let stamps = file.file_stamp.map(|file_stamp| FileStamps { chain: file_stamp, key: None });
    Bundle { chain_path: path.clone(), key_path: path, chain: file.certificates, keys: file.keys, stamps }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use propylon_config::{At, KeyType, TlsPolicy};
    use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};

    use super::super::credentials;
    use super::*;

    /// A folder with certificates of one authority, each in a file of its name.
    struct Folder {
        path: PathBuf,
        issuer: CertifiedIssuer<'static, KeyPair>,
    }

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("propylon-load-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            let mut params = CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            Folder { path, issuer }
        }

        /// Chain and key.
        fn issue(&self, name: &str) -> (String, String) {
            let key = KeyPair::generate().unwrap();
            let leaf = CertificateParams::new(vec![name.into()]).unwrap().signed_by(&key, &self.issuer).unwrap();
            (leaf.pem() + &self.issuer.pem(), key.serialize_pem())
        }

        /// Renamed into place, and old enough to have settled.
        fn write(&self, name: &str, text: impl AsRef<[u8]>) {
            let new = self.path.join("new");
            fs::write(&new, text).unwrap();
            let hour_ago = SystemTime::now() - Duration::from_secs(3600);
            fs::File::options().write(true).open(&new).unwrap().set_modified(hour_ago).unwrap();
            fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            fs::rename(new, self.path.join(name)).unwrap();
        }

        fn add(&self, name: &str) {
            let (chain, key) = self.issue(name);
            self.write(&format!("{name}.pem"), chain + &key);
        }

        fn profile(&self) -> TlsProfile {
            let source = CertificateSource::Path(self.path.clone());
            TlsProfile {
                name: "public".into(),
                certificates: vec![Certificate {
                    source,
                    ocsp: None,
                    default: false,
                    uploaded: false,
                    at: At::default(),
                }],
                policy: TlsPolicy::Modern,
                prefer: vec![KeyType::Ecdsa],
                strict_sni: false,
                watch: None,
                certificate_compression: false,
                resumption: Default::default(),
                client_auth: None,
                ja4: false,
                signer: None,
                allow_world_readable_keys: false,
                at: At::default(),
            }
        }

        fn load(&self, earlier: &[Arc<Credential>]) -> (Vec<Arc<Credential>>, Vec<Finding>) {
            credentials(&self.profile(), earlier)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }

    fn names(credentials: &[Arc<Credential>]) -> Vec<&str> {
        credentials.iter().map(|credential| credential.names().next().unwrap()).collect()
    }

    /// Positions at which both have the same object.
    fn same(one: &[Arc<Credential>], other: &[Arc<Credential>]) -> Vec<bool> {
        one.iter().zip(other).map(|(one, other)| Arc::ptr_eq(one, other)).collect()
    }

    #[test]
    fn only_what_looks_different_is_read_again_and_all_share_their_issuer() {
        let folder = Folder::new("reuse");
        (0..200).for_each(|index| folder.add(&format!("{index:03}.test")));
        let (first, findings) = folder.load(&[]);
        assert_eq!((first.len(), findings), (200, vec![]));
        let issuers = &first[0].material.chain.issuers;
        assert!(first.iter().all(|each| Arc::ptr_eq(&each.material.chain.issuers, issuers)));
        folder.add("007.test");
        fs::remove_file(folder.path.join("199.test.pem")).unwrap();
        let (second, findings) = folder.load(&first);
        assert_eq!((second.len(), findings), (199, vec![]));
        let changed: Vec<usize> =
            same(&first, &second).iter().enumerate().filter(|(_, same)| !**same).map(|(index, _)| index).collect();
        assert_eq!(changed, [7]);
        assert!(Arc::ptr_eq(&second[7].material.chain.issuers, issuers));
    }

    #[test]
    fn a_file_that_has_just_been_written_is_read_once_more() {
        let folder = Folder::new("young");
        folder.add("a.test");
        let now = SystemTime::now();
        fs::File::options().write(true).open(folder.path.join("a.test.pem")).unwrap().set_modified(now).unwrap();
        let (first, _) = folder.load(&[]);
        let (second, _) = folder.load(&first);
        assert_eq!(same(&first, &second), [false]);
        assert!(first[0].same_as(&second[0]));
    }

    #[test]
    fn what_cannot_be_used_any_more_stays_as_it_was_in_its_place_and_the_rest_is_taken_up() {
        let folder = Folder::new("broken");
        ["a.test", "b.test", "c.test"].iter().for_each(|name| folder.add(name));
        let (first, _) = folder.load(&[]);
        folder.write("a.test.pem", "-----BEGIN CERTIFICATE-----\nMIIB");
        let (_, key) = folder.issue("b.test");
        let (chain, _) = folder.issue("b.test");
        folder.write("b.test.pem", chain + &key);
        folder.add("c.test");
        folder.add("d.test");
        folder.write("e.test.pem", "");
        let (second, findings) = folder.load(&first);
        let wrong: Vec<_> =
            findings.iter().map(|finding| (finding.severity, finding.path.file_name().unwrap())).collect();
        let broken = ["a.test.pem", "b.test.pem", "e.test.pem"];
        assert_eq!(wrong, broken.map(|name| (Severity::Error, name.as_ref())));
        assert_eq!(names(&second), ["a.test", "b.test", "c.test", "d.test"]);
        assert_eq!(same(&first, &second), [true, true, false]);
        let (_, alone) = folder.load(&[]);
        assert_eq!(alone.len(), 3, "who starts with them is told of all of them");
    }

    #[test]
    fn a_pair_of_files_is_taken_up_when_both_are_there_and_is_what_it_was_until_then() {
        let folder = Folder::new("pair");
        folder.add("first.test");
        let (chain, key) = folder.issue("pair.test");
        folder.write("pair.crt", chain);
        folder.write("pair.key", key);
        let (first, findings) = folder.load(&[]);
        assert_eq!((names(&first), findings), (vec!["first.test", "pair.test"], vec![]));
        let (chain, key) = folder.issue("pair.test");
        folder.write("pair.crt", chain);
        let (half, findings) = folder.load(&first);
        assert_eq!((same(&first, &half), findings.len()), (vec![true, true], 2));
        folder.write("pair.key", key);
        let (whole, findings) = folder.load(&half);
        assert_eq!((same(&half, &whole), findings), (vec![true, false], vec![]));
    }

    #[test]
    fn a_folder_that_has_lost_everything_is_an_accident() {
        let folder = Folder::new("empty");
        folder.add("a.test");
        let (first, _) = folder.load(&[]);
        fs::remove_file(folder.path.join("a.test.pem")).unwrap();
        let (second, findings) = folder.load(&first);
        assert_eq!((same(&first, &second), findings.len()), (vec![true], 1));
        fs::remove_dir_all(&folder.path).unwrap();
        let (third, findings) = folder.load(&second);
        assert_eq!((same(&first, &third), findings.len()), (vec![true], 1));
    }

    #[test]
    fn a_complaint_about_very_many_files_is_not_repeated_for_each() {
        let folder = Folder::new("bounded");
        folder.add("a.test");
        (0..150).for_each(|index| folder.write(&format!("{index:03}.pem"), ""));
        let (_, findings) = folder.load(&[]);
        assert_eq!(findings.len(), 101);
        assert!(findings[100].what.contains("50 more files"), "{}", findings[100].what);
    }
}
