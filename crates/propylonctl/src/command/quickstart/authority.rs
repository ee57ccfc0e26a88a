//! The local authority: a root certificate of this machine's own, and certificates of it where no public one has any.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256,
};
use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use super::site::{Host, LOCAL_ENDS};

const ROOT_LIFE: Duration = Duration::days(3650);
/// Browsers take this of authorities that they do not know by themselves, with room to spare.
const CERTIFICATE_LIFE: Duration = Duration::days(397);
/// A certificate with less than this left is made anew.
const LEFT_MIN: Duration = Duration::days(60);
/// Clocks of clients may be behind by this.
const CLOCK_MARGIN: Duration = Duration::hours(1);
/// Files of ours are far smaller.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Files that lie in the folder now.
pub struct Certified {
    pub root: PathBuf,
    /// Chain and key.
    pub certificate: PathBuf,
    has_new_root: bool,
    is_new: bool,
}

impl Certified {
    pub fn told(&self) -> String {
        let new = |is_new| if is_new { "new" } else { "as it was" };
        format!(
            "{}: the root certificate, {}; clients that trust it reach the site without a warning\n{}: the site's \
             certificate and key, {}",
            self.root.display(),
            new(self.has_new_root),
            self.certificate.display(),
            new(self.is_new)
        )
    }
}

/// The folder of the authority, and who owns what lies in it.
struct Folder {
    path: PathBuf,
    /// Account and group, where root makes files for another.
    owner: Option<(u32, u32)>,
}

/// A root that can sign.
struct Root {
    issuer: Issuer<'static, KeyPair>,
    name: String,
    until: OffsetDateTime,
}

/// Sees to it that the folder `state` has a root and a certificate for this host; what is there and good stays.
pub fn certify(state: &Path, host: &Host) -> Result<Certified, String> {
    let folder = Folder::open(state)?;
    let (root, key) = (folder.path.join("root.pem"), folder.path.join("root.key"));
    let (authority, has_new_root) = match (exists(&root)?, exists(&key)?) {
        (false, false) => (folder.make_root(&root, &key)?, true),
        (true, true) => (read_root(&root, &key)?, false),
        (true, false) => return Err(half(&root, &key)),
        (false, true) => return Err(half(&key, &root)),
    };
    let file = folder.path.join(format!("{}.pem", host.plain().replace(':', "_")));
    let is_new = !is_kept(&file, &authority, host);
    if is_new {
        folder.put(&file, &issue(&authority, host)?, 0o600)?;
    }
    Ok(Certified { root, certificate: file, has_new_root, is_new })
}

fn half(here: &Path, missing: &Path) -> String {
    format!(
        "{} is there, and {} is not: bring it back, or remove both, and have clients trust the new root",
        here.display(),
        missing.display()
    )
}

impl Folder {
    fn open(state: &Path) -> Result<Folder, String> {
        let path = state.join("local");
        let failed =
            |error: io::Error| format!("{} cannot be made: {error}; --state names another folder", path.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(state).map_err(failed)?;
        let metadata = fs::metadata(state).map_err(failed)?;
        let owner = (metadata.uid(), metadata.gid());
        let is_anothers = rustix::process::geteuid().is_root() && owner.0 != 0;
        let folder = Folder { path: path.clone(), owner: is_anothers.then_some(owner) };
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => folder.give(&path).map_err(failed)?,
            // A link would lead to a place of somebody else's choice.
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists
                    && fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(folder)
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        self.owner.map_or(Ok(()), |(uid, gid)| std::os::unix::fs::lchown(path, Some(uid), Some(gid)))
    }

    /// A whole file in the place of one that may be there.
    fn put(&self, path: &Path, text: &str, mode: u32) -> Result<(), String> {
        let new = path.with_extension(format!("new-{}", std::process::id()));
        let write = || {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            if let Some((uid, gid)) = self.owner {
                std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
            }
            fs::rename(&new, path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&new);
            format!("{}: it cannot be written: {error}", path.display())
        })
    }

    fn make_root(&self, root: &Path, key: &Path) -> Result<Root, String> {
        let name = format!("Propylon local authority {:08x}", fastrand::u32(..));
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(unmade)?;
        let params = root_params(&name);
        let certificate = params.self_signed(&pair).map_err(unmade)?;
        self.put(key, &pair.serialize_pem(), 0o600)?;
        self.put(root, &certificate.pem(), 0o644)?;
        Ok(Root { until: params.not_after, issuer: Issuer::new(params, pair), name })
    }
}

/// Names that it can sign are those alone that are kept for private use: who steals its key can be no other name.
/// Addresses have no such limit, since sites have certificates for any.
fn root_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: LOCAL_ENDS.iter().map(|end| GeneralSubtree::DnsName((*end).to_owned())).collect(),
        excluded_subtrees: Vec::new(),
    });
    params.not_before = OffsetDateTime::now_utc() - CLOCK_MARGIN;
    params.not_after = params.not_before + ROOT_LIFE;
    params
}

fn read_root(root: &Path, key: &Path) -> Result<Root, String> {
    let unusable = |path: &Path, what: &str| {
        format!(
            "{}: {what}; remove root.pem and root.key for a new root, which clients have to trust anew",
            path.display()
        )
    };
    let pem = read(root)?;
    let (_, block) = parse_x509_pem(&pem).map_err(|_| unusable(root, "it is no certificate"))?;
    let certificate = block.parse_x509().map_err(|_| unusable(root, "it is no certificate"))?;
    let until = end_of(&certificate);
    if until < OffsetDateTime::now_utc() + LEFT_MIN {
        return Err(unusable(root, "it ends within 60 days"));
    }
    let name = common_name(&certificate).ok_or_else(|| unusable(root, "it has no name"))?;
    let text = String::from_utf8(read(key)?).map_err(|_| unusable(key, "it is no key"))?;
    let pair = KeyPair::from_pem(&text).map_err(|_| unusable(key, "it is no key"))?;
    if certificate.public_key().subject_public_key.data.as_ref() != pair.public_key_raw() {
        return Err(unusable(key, "it is not the key of root.pem"));
    }
    Ok(Root { issuer: Issuer::new(root_params(&name), pair), name, until })
}

/// Whether the file has a certificate of this root for this host that lasts a while.
fn is_kept(file: &Path, root: &Root, host: &Host) -> bool {
    let Ok(pem) = read(file) else { return false };
    let Ok((_, block)) = parse_x509_pem(&pem) else { return false };
    let Ok(certificate) = block.parse_x509() else { return false };
    let issuer = certificate.issuer().iter_common_name().next().and_then(|name| name.as_str().ok());
    let has_key = String::from_utf8_lossy(&pem).contains("PRIVATE KEY-----");
    let names = certificate.subject_alternative_name().ok().flatten();
    let is_for_host = names.is_some_and(|names| {
        names.value.general_names.iter().any(|name| match (name, host) {
            (GeneralName::DNSName(name), Host::Name(host)) => name == host,
            (GeneralName::IPAddress(bytes), Host::Address(address)) => match address {
                std::net::IpAddr::V4(address) => address.octets() == **bytes,
                std::net::IpAddr::V6(address) => address.octets() == **bytes,
            },
            _ => false,
        })
    });
    let lasts = end_of(&certificate) > OffsetDateTime::now_utc() + LEFT_MIN;
    issuer == Some(root.name.as_str()) && has_key && is_for_host && lasts
}

/// Chain and key.
fn issue(root: &Root, host: &Host) -> Result<String, String> {
    let mut params = CertificateParams::new(vec![host.plain()]).map_err(unmade)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Propylon local site");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = OffsetDateTime::now_utc() - CLOCK_MARGIN;
    params.not_after = (params.not_before + CERTIFICATE_LIFE).min(root.until);
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(unmade)?;
    let certificate = params.signed_by(&pair, &root.issuer).map_err(unmade)?;
    Ok(format!("{}{}", certificate.pem(), pair.serialize_pem()))
}

fn unmade(error: rcgen::Error) -> String {
    format!("a certificate cannot be made: {error}")
}

fn common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned)
}

fn end_of(certificate: &X509Certificate<'_>) -> OffsetDateTime {
    certificate.validity().not_after.to_datetime()
}

fn exists(path: &Path) -> Result<bool, String> {
    path.try_exists().map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let unread = |error: io::Error| format!("{}: it cannot be read: {error}", path.display());
    if fs::metadata(path).map_err(unread)?.len() > FILE_BYTES_MAX {
        return Err(format!("{}: it is too large", path.display()));
    }
    fs::read(path).map_err(unread)
}
