//! `certificates`: a local CA and, per name, one certificate that it signed for each type of key asked for.

use crate::failure::{Failure, Outcome, While};
use crate::report;
use clap::ValueEnum;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, RsaKeySize,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// Names that every certificate carries besides its own.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Make a local CA and certificates for tests and measurements
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  propylon-bench certificates --out certs --name shop.test --name api.test\n\
    makes certs/ca.pem, certs/shop.test.ec.pem, certs/shop.test.rsa.pem and the same for api.test\n  \
    propylon-bench certificates --out certs --keys ec,rsa,p384,rsa3072,rsa4096\n\
    makes certs/localhost.p384.pem and so on as well; an RSA key of 4096 bits takes a second or a few\n  \
    propylon-bench certificates --out many --name shop.test --count 50000\n\
    makes many/0.shop.test.ec.pem to many/49999.shop.test.ec.pem, each with an intermediate, and 50 with RSA keys")]
pub struct Arguments {
    /// Directory to write to; made if it is not there
    #[arg(long)]
    pub out: PathBuf,
    /// Name to certify; repeat for more
    #[arg(long = "name", default_value = "localhost")]
    pub names: Vec<String>,
    /// Types of key to make a certificate for: each is a file NAME.TYPE.pem
    #[arg(long, value_name = "TYPE", value_delimiter = ',', default_value = "ec,rsa")]
    pub keys: Vec<KeyType>,
    /// Certify so many names under each --name: 0.NAME, 1.NAME and so on, all through one intermediate; of the types of
    /// key beyond the first, every thousandth name gets one
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub count: Option<u32>,
    /// Days until they expire
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
    /// Also write NAME.TYPE.cert.pem and NAME.TYPE.key.pem, for servers that want two files
    #[arg(long)]
    pub split: bool,
    /// Keep the CA's private key as ca.key.pem (by default nobody can sign with this CA again)
    #[arg(long)]
    pub keep_ca_key: bool,
    /// Overwrite files that are there
    #[arg(long)]
    pub force: bool,
    /// Write the list of files as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Report of the files that were written.
#[derive(Debug, Serialize)]
pub struct Written {
    pub ca: PathBuf,
    pub files: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum KeyType {
    /// ECDSA on P-256
    Ec,
    /// RSA, 2048 bits
    Rsa,
    /// ECDSA on P-384
    P384,
    /// RSA, 3072 bits
    Rsa3072,
    /// RSA, 4096 bits
    Rsa4096,
}

impl KeyType {
    /// In file names.
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn generate(self) -> Result<KeyPair, rcgen::Error> {
        match self {
            Self::Ec => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Self::P384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
            Self::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
            Self::Rsa3072 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
            Self::Rsa4096 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
        }
    }
}

/// One file to be: its place and its text.
struct PemFile {
    path: PathBuf,
    text: String,
}

/// The authority that signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Certificates between a leaf and the CA's, as PEM; empty where the CA signs itself.
    between: String,
}

/// With many names only so few get certificates of further types: RSA keys take their time.
const FURTHER_TYPES_EVERY: u32 = 1000;

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let written = write(arguments)?;
    for file in &written.files {
        println!("{}", file.display());
    }
    report::save_json(arguments.json.as_deref(), &written)
}

/// Makes everything in memory first, so that a name that cannot be certified leaves no half of a set behind.
pub fn write(arguments: &Arguments) -> Outcome<Written> {
    let (authority, ca_pem, ca_key_pem) = make_authority(arguments.days, arguments.count.is_some())?;
    let mut files = vec![PemFile { path: arguments.out.join("ca.pem"), text: ca_pem }];
    if arguments.keep_ca_key {
        files.push(PemFile { path: arguments.out.join("ca.key.pem"), text: ca_key_pem });
    }
    // "--keys ec,ec" is one file.
    let keys: BTreeSet<KeyType> = arguments.keys.iter().copied().collect();
    for name in &arguments.names {
        let Some(count) = arguments.count else {
            for &key_type in &keys {
                files.extend(certify(arguments, &authority, name, key_type, &LOCAL_NAMES)?);
            }
            continue;
        };
        for index in 0..count {
            let types = if index % FURTHER_TYPES_EVERY == 0 { keys.len() } else { 1 };
            for &key_type in keys.iter().take(types) {
                files.extend(certify(arguments, &authority, &format!("{index}.{name}"), key_type, &[])?);
            }
        }
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&arguments.out)
        .when(format_args!("making {}", arguments.out.display()))?;
    if !arguments.force {
        refuse_to_overwrite(&files)?;
    }
    for file in &files {
        save(file)?;
    }
    Ok(Written { ca: files[0].path.clone(), files: files.into_iter().map(|file| file.path).collect() })
}

/// With its certificate and its key.
fn make_authority(days: u32, through_intermediate: bool) -> Outcome<(Authority, String, String)> {
    let (root, key) = authority_params("Propylon local test CA", u8::from(through_intermediate), days)?;
    let key_pem = key.serialize_pem();
    let pem = root.self_signed(&key).when("signing the CA's certificate")?.pem();
    let issuer = Issuer::new(root, key);
    if !through_intermediate {
        return Ok((Authority { issuer, between: String::new() }, pem, key_pem));
    }
    let (params, key) = authority_params("Propylon local test intermediate", 0, days)?;
    let between = params.signed_by(&key, &issuer).when("signing the intermediate's certificate")?.pem();
    Ok((Authority { issuer: Issuer::new(params, key), between }, pem, key_pem))
}

/// Parameters and key of an authority with so many others below it.
fn authority_params(name: &str, below: u8, days: u32) -> Outcome<(CertificateParams, KeyPair)> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).when("making a CA's key")?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, days);
    Ok((params, key))
}

fn certify(
    arguments: &Arguments,
    authority: &Authority,
    name: &str,
    key_type: KeyType,
    beside: &[&str],
) -> Outcome<Vec<PemFile>> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(Failure::new(format!("--name \"{name}\": not a host name")));
    }
    let suffix = key_type.name();
    let key = key_type.generate().when(format_args!("making a key for {name}"))?;
    let mut names = vec![name.to_owned()];
    names.extend(beside.iter().filter(|other| **other != name).map(|other| (*other).to_owned()));
    let mut params = CertificateParams::new(names).when(format_args!("--name \"{name}\""))?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, arguments.days);
    let chain =
        params.signed_by(&key, &authority.issuer).when(format_args!("certifying {name}"))?.pem() + &authority.between;
    let key = key.serialize_pem();

    // "*.shop.test" is a fine name and an awkward file.
    let stem = name.replace('*', "_");
    let place = |tail: &str| arguments.out.join(format!("{stem}.{suffix}{tail}.pem"));
    let mut files = vec![PemFile { path: place(""), text: format!("{chain}{key}") }];
    if arguments.split {
        files.push(PemFile { path: place(".cert"), text: chain });
        files.push(PemFile { path: place(".key"), text: key });
    }
    Ok(files)
}

fn set_validity(params: &mut CertificateParams, days: u32) {
    let now = OffsetDateTime::now_utc();
    // A clock that runs a little behind must not find them "not yet valid".
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(i64::from(days));
}

fn refuse_to_overwrite(files: &[PemFile]) -> Outcome<()> {
    match files.iter().find(|file| file.path.exists()) {
        Some(file) => {
            Err(Failure::new(format!("{} is there already; use --force to overwrite it", file.path.display())))
        }
        None => Ok(()),
    }
}

/// Written aside and renamed into place: mode 0600 from its first byte on, and never half a file.
fn save(pem: &PemFile) -> Outcome<()> {
    let aside = aside(&pem.path);
    let doing = format!("writing {}", pem.path.display());
    let _ = fs::remove_file(&aside);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).when(&doing)?;
    file.write_all(pem.text.as_bytes()).when(&doing)?;
    fs::rename(&aside, &pem.path).when(&doing)
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The arguments as a command line of their own.
    #[derive(clap::Parser)]
    pub struct Command {
        #[command(flatten)]
        pub arguments: Arguments,
    }

    use crate::scratch::ScratchDir;
    use std::os::unix::fs::PermissionsExt;

    fn arguments(out: &Path) -> Arguments {
        Arguments {
            out: out.to_owned(),
            names: vec!["shop.test".to_owned()],
            keys: vec![KeyType::Ec, KeyType::Rsa],
            count: None,
            days: 1,
            split: true,
            keep_ca_key: false,
            force: false,
            json: None,
        }
    }

    #[test]
    fn files_are_private_and_never_overwritten_unasked() {
        let scratch = ScratchDir::new().unwrap();
        let mut arguments = arguments(scratch.path());
        let written = write(&arguments).unwrap();
        assert_eq!(written.files.len(), 7);
        for file in &written.files {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
        }
        assert!(!scratch.path().join("ca.key.pem").exists());
        let before = fs::read(scratch.path().join("shop.test.ec.pem")).unwrap();
        assert!(write(&arguments).unwrap_err().to_string().contains("--force"));
        assert_eq!(fs::read(scratch.path().join("shop.test.ec.pem")).unwrap(), before);
        arguments.force = true;
        write(&arguments).unwrap();
        assert_ne!(fs::read(scratch.path().join("shop.test.ec.pem")).unwrap(), before);
    }

    #[test]
    fn many_names_share_an_intermediate_and_few_get_the_further_types() {
        let scratch = ScratchDir::new().unwrap();
        let written = write(&Arguments { count: Some(3), split: false, ..arguments(scratch.path()) }).unwrap();
        let names: Vec<_> = written.files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        let expected =
            ["ca.pem", "0.shop.test.ec.pem", "0.shop.test.rsa.pem", "1.shop.test.ec.pem", "2.shop.test.ec.pem"];
        assert_eq!(names, expected);
        let between = |name: &str| {
            let text = fs::read_to_string(scratch.path().join(name)).unwrap();
            text.split("-----BEGIN CERTIFICATE-----")
                .nth(2)
                .unwrap()
                .split("-----BEGIN PRIVATE")
                .next()
                .unwrap()
                .to_owned()
        };
        assert_eq!(between("1.shop.test.ec.pem"), between("2.shop.test.ec.pem"));
    }

    #[test]
    fn each_type_of_key_is_of_its_size() {
        let scratch = ScratchDir::new().unwrap();
        let keys = vec![KeyType::P384, KeyType::Rsa3072, KeyType::P384];
        let written = write(&Arguments { keys, split: false, ..arguments(scratch.path()) }).unwrap();
        assert_eq!(written.files.len(), 3);
        let bytes = |name: &str| {
            let pem = fs::read_to_string(scratch.path().join(name)).unwrap();
            KeyPair::from_pem(&pem[pem.find("-----BEGIN PRIVATE KEY").unwrap()..]).unwrap().public_key_raw().len()
        };
        // A point of two coordinates of 48 bytes; a modulus of 384 bytes, its exponent and their framing.
        assert_eq!((bytes("shop.test.p384.pem"), bytes("shop.test.rsa3072.pem")), (97, 398));
    }
}
