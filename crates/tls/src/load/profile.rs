//! All certificates of a profile: which files there are, which of them need to be read, and what becomes of those that
//! cannot be used.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{Certificate, CertificateSource, SignerId, TlsProfile};

use super::pem::{self, Contents};
use super::{Trouble, assemble, bundle, folder, ocsp, ocsp_path, side_by_side, worry_about_readers};
use crate::credential::{Credential, Interner, Material, Seen, Staple};
use crate::finding::{Finding, Severity};
use crate::watch::Look;

/// What all of a profile's files are read with.
pub(super) struct Loading<'a> {
    signer: Option<SignerId>,
    earlier: &'a [Arc<Credential>],
    /// By the chain's file.
    by_path: HashMap<&'a Path, &'a Arc<Credential>>,
    interner: Interner,
    pub now: SystemTime,
}

/// One of `certificates`.
pub(super) struct Entry<'a> {
    pub certificate: &'a Certificate,
    /// A folder, and what was wrong with it as a whole.
    folder: Option<(&'a Path, Vec<Trouble>)>,
}

/// Something to be read: a chain and its key, or what a folder has of them in one file.
pub(super) struct Item<'a> {
    certificate: &'a Certificate,
    chain: PathBuf,
    /// Where it is another file.
    key: Option<&'a Path>,
    in_folder: bool,
    /// A response may be there.
    response: bool,
}

/// What an item came to, and what is to be said of it.
pub(super) type Outcome = (Read, Vec<Trouble>);

pub(super) enum Read {
    Whole(Candidate),
    /// A file of a folder with a chain or keys alone.
    Part(PathBuf, Contents),
    Nothing,
}

/// A chain with its key, before it is known which names are left for it.
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
            CertificateSource::Path(path) if !path.is_dir() => alone(item(path.clone(), None)),
            CertificateSource::Path(path) => {
                let mut troubles = Vec::new();
                let folder::Listing { files, responses } = folder::list(path, &mut troubles);
                let in_folder = |file: PathBuf| {
                    let response = certificate.ocsp.is_some() || responses.contains(&ocsp_path(certificate, &file));
                    Item { in_folder: true, response, ..item(file, None) }
                };
                let items = files.into_iter().map(in_folder).collect();
                (Entry { certificate, folder: Some((path, troubles)) }, items)
            }
        }
    }
}

impl<'a> Loading<'a> {
    pub fn new(profile: &TlsProfile, earlier: &'a [Arc<Credential>]) -> Loading<'a> {
        Loading {
            signer: profile.signer,
            earlier,
            by_path: earlier.iter().map(|credential| (credential.material.path.as_path(), credential)).collect(),
            interner: Interner::of(earlier.iter()),
            now: SystemTime::now(),
        }
    }

    /// Whether it is made of what was there before.
    pub fn knows(&self, credential: &Credential) -> bool {
        let known = self.by_path.get(credential.material.path.as_path());
        known.is_some_and(|known| Arc::ptr_eq(&known.material, &credential.material))
    }

    /// On any thread.
    pub fn read(&self, item: Item<'_>) -> Outcome {
        let mut troubles = Vec::new();
        let material = match self.unchanged(&item) {
            Some(material) => Some(material),
            None if item.in_folder => match pem::read(&item.chain) {
                Ok(file) => {
                    worry_about_readers(&file, &item.chain, &mut troubles);
                    match (file.certificates.is_empty(), file.keys.is_empty()) {
                        (false, true) | (true, false) => return (Read::Part(item.chain, file), troubles),
                        (_, _) => self.material(together(item.chain.clone(), file), &mut troubles),
                    }
                }
                Err(trouble) => {
                    troubles.push(trouble);
                    None
                }
            },
            None => {
                let bundle = bundle(&item.chain, item.key.unwrap_or(&item.chain), &mut troubles);
                bundle.and_then(|bundle| self.material(bundle, &mut troubles))
            }
        };
        let read = material.map_or(Read::Nothing, |material| {
            Read::Whole(self.candidate(item.certificate, material, item.response, &mut troubles))
        });
        (read, troubles)
    }

    fn material(&self, bundle: super::Bundle, troubles: &mut Vec<Trouble>) -> Option<Arc<Material>> {
        assemble(bundle, self.signer, &self.interner, troubles).map(Arc::new)
    }

    /// What the item's files were found to hold earlier, if they look as they did then.
    fn unchanged(&self, item: &Item<'_>) -> Option<Arc<Material>> {
        let material = &self.by_path.get(item.chain.as_path())?.material;
        if material.key_path.as_deref() != item.key {
            return None;
        }
        let look = |path: &Path| fs::metadata(path).ok().map(|metadata| Look::of(&metadata));
        let chain = look(&item.chain)?;
        let key = match item.key {
            Some(path) => Some(look(path)?),
            None => None,
        };
        (material.seen == Some(Seen { chain, key })).then(|| Arc::clone(material))
    }

    /// With the OCSP response, which has an age of its own and is read each time.
    fn candidate(
        &self,
        certificate: &Certificate,
        material: Arc<Material>,
        response: bool,
        troubles: &mut Vec<Trouble>,
    ) -> Candidate {
        let path = ocsp_path(certificate, &material.path);
        let staple = match response {
            true => ocsp::staple(&path, certificate.ocsp.is_some(), &material.chain.leaf, self.now, troubles),
            false => None,
        };
        if staple.is_none() && material.must_staple {
            let what = "the certificate demands a stapled OCSP response (RFC 7633), and there is none";
            troubles.push(Trouble::warning(&path, what, "put one there: some clients refuse it without"));
        }
        Candidate { certificate: Place { default: certificate.default, at: certificate.at }, material, staple }
    }

    /// All that an entry has come to: what was read of it, what of that belongs together, and what stays as it was because
    /// its files cannot be used now.
    pub fn conclude(
        &self,
        entry: Entry<'_>,
        read: impl Iterator<Item = Outcome>,
        cores: usize,
    ) -> (Vec<Candidate>, Vec<Trouble>) {
        let Entry { certificate, folder } = entry;
        let (mut candidates, mut parts, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (read, troubles) in read {
            found.extend(troubles);
            match read {
                Read::Whole(candidate) => candidates.push(candidate),
                Read::Part(path, contents) => parts.push((path, contents)),
                Read::Nothing => {}
            }
        }
        if let Some((path, mut troubles)) = folder {
            troubles.append(&mut found);
            let bundles = folder::pair(parts, self.signer.is_some(), &mut troubles);
            if candidates.is_empty() && bundles.is_empty() && troubles.is_empty() {
                let fix = "add one, as .pem, or as .crt and .key";
                troubles.push(Trouble::error(path, "the directory has no certificate with its private key", fix));
            }
            let pairs = side_by_side::map(bundles, cores, |bundle| {
                let mut troubles = Vec::new();
                let material = self.material(bundle, &mut troubles);
                let whole = |material| self.candidate(certificate, material, true, &mut troubles);
                (material.map(whole), troubles)
            });
            for (candidate, more) in pairs {
                candidates.extend(candidate);
                troubles.extend(more);
            }
            found = troubles;
        }
        self.keep_what_was_good(certificate, &mut candidates, &found);
        (candidates, found)
    }

    fn keep_what_was_good(&self, certificate: &Certificate, candidates: &mut Vec<Candidate>, troubles: &[Trouble]) {
        let broken: Vec<&Path> = troubles
            .iter()
            .filter(|trouble| trouble.severity == Severity::Error)
            .map(|trouble| trouble.path.as_path())
            .collect();
        if broken.is_empty() || self.earlier.is_empty() {
            return;
        }
        let files: HashSet<&Path> = broken.iter().copied().collect();
        let folders: Vec<&Path> = broken.into_iter().filter(|path| path.is_dir()).collect();
        let is_broken = |material: &Material| {
            let own = [Some(material.path.as_path()), material.key_path.as_deref()];
            own.into_iter().flatten().any(|path| files.contains(path))
                || folders.iter().any(|folder| material.is_of(folder))
        };
        let taken: HashSet<PathBuf> = candidates.iter().map(|candidate| candidate.material.path.clone()).collect();
        let kept = self
            .earlier
            .iter()
            .filter(|earlier| is_broken(&earlier.material) && !taken.contains(&earlier.material.path));
        let place = Place { default: certificate.default, at: certificate.at };
        candidates.extend(kept.map(|earlier| Candidate {
            certificate: place,
            material: Arc::clone(&earlier.material),
            staple: earlier.staple.clone(),
        }));
        // Where they were: the first may be the default. Those in one file came first, by name; then those in two.
        candidates.sort_by(|one, other| one.material.place().cmp(&other.material.place()));
    }

    /// Those that there are names for: without the names that an earlier one of the same key type already stands for.
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
                findings.push(Trouble::warning(&material.path, what, fix).at(certificate.at));
            }
            let useless = !hidden.is_empty() && hidden.len() == material.names.len();
            if !useless {
                credentials.push(self.credential(certificate, material, hidden, staple));
            }
        }
        credentials
    }

    /// The very one that was there, where nothing is different: with all that has been made of it.
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

/// A file with both.
fn together(path: PathBuf, file: Contents) -> super::Bundle {
    let seen = file.look.map(|look| Seen { chain: look, key: None });
    super::Bundle { chain_path: path.clone(), key_path: path, chain: file.certificates, keys: file.keys, seen }
}
