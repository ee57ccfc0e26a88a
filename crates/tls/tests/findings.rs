//! Findings about faulty certificates and keys.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use propylon_config::{Certificate, CertificateSource};
use propylon_tls::{Finding, Profile, Severity};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

fn findings(profile: &propylon_config::TlsProfile) -> Vec<Finding> {
    let findings = match Profile::load(profile, ALPN) {
        Ok((_, findings)) => {
            assert!(findings.iter().all(|finding| finding.severity == Severity::Warning));
            findings
        }
        Err(findings) => {
            assert!(findings.iter().any(|finding| finding.severity == Severity::Error));
            findings
        }
    };
    for finding in &findings {
        assert!(!finding.fix.is_empty() && !finding.what.contains("PRIVATE"), "{finding:?}");
    }
    findings
}

/// The one finding about one file.
fn finding(path: &Path) -> (Severity, String) {
    let mut findings = findings(&tls_profile(&[path]));
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let finding = findings.remove(0);
    assert_eq!(finding.at.line, 1);
    assert_eq!(finding.path, path);
    (finding.severity, finding.what)
}

fn error(path: &Path, what: &str) {
    let (severity, said) = finding(path);
    assert!(severity == Severity::Error && said.contains(what), "{said:?} is not {what:?}");
}

fn warning(path: &Path, what: &str) {
    let (severity, said) = finding(path);
    assert!(severity == Severity::Warning && said.contains(what), "{said:?} is not {what:?}");
}

fn params(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| name.to_string()).collect::<Vec<_>>()).unwrap()
}

fn p256() -> KeyPair {
    key(&rcgen::PKCS_ECDSA_P256_SHA256)
}

fn certificate(text: &str) -> String {
    text[..text.find("-----BEGIN PRIVATE KEY").unwrap()].to_string()
}

fn private_key(text: &str) -> String {
    text[text.find("-----BEGIN PRIVATE KEY").unwrap()..].to_string()
}

fn openssl(directory: &Directory, arguments: &str) {
    let run = Command::new("openssl").args(arguments.split(' ')).current_dir(&directory.0).output();
    let output = run.expect("openssl is installed");
    assert!(output.status.success(), "openssl {arguments}: {output:?}");
}

/// A self-signed certificate and key made by openssl, as `name`.
fn by_openssl(directory: &Directory, name: &str, arguments: &str) -> PathBuf {
    let common = "req -x509 -nodes -days 90 -subj /CN=x -addext subjectAltName=DNS:shop.example";
    openssl(directory, &format!("{common} -keyout {name}.k -out {name}.c {arguments}"));
    let read = |suffix: &str| fs::read_to_string(directory.0.join(format!("{name}.{suffix}"))).unwrap();
    directory.write(&format!("{name}.pem"), read("c") + &read("k"))
}

#[test]
fn missing_and_unreadable_files_are_named() {
    let directory = Directory::new();
    error(&directory.0.join("none.pem"), "no such file");
    error(&directory.0, "the directory has no certificate with its private key");
    let locked = directory.write("locked.pem", ec(&[NAME]));
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&locked).is_err() {
        error(&locked, "permission denied");
    }
    error(&directory.write("long.pem", vec![b'x'; 2 << 20]), "longer than 1 MiB");
}

#[test]
fn parts_that_are_missing_or_too_many_are_named() {
    let directory = Directory::new();
    let both = ec(&[NAME]);
    error(&directory.write("a.pem", certificate(&both)), "no private key");
    error(&directory.write("b.pem", private_key(&both)), "no certificate");
    error(&directory.write("c.pem", private_key(&both) + &both), "2 private keys");
    error(&directory.write("d.pem", ""), "no certificate");
    error(&directory.write("e.pem", certificate(&both) + &private_key(&ec(&[NAME]))), "does not belong");
    error(&directory.write("f.pem", &both[..both.len() - 40]), "not well-formed PEM");
    error(&directory.write("g.pem", certificate(&both).replace("MII", "AII") + &private_key(&both)), "certificate 1");
}

#[test]
fn no_finding_quotes_a_key() {
    let directory = Directory::new();
    let both = ec(&[NAME]);
    let key = private_key(&both);
    let secret = key.lines().nth(1).unwrap();
    let damaged = both.replace(secret, &format!("{secret}!"));
    let path = directory.write("a.pem", damaged);
    let text = format!("{:?}", findings(&tls_profile(&[&path])));
    assert!(!text.contains(&secret[4..12]));
    let profile = profile();
    assert_eq!(format!("{profile:?}"), "Profile { name: \"public\", .. }");
}

#[test]
fn encrypted_keys_are_told_how_to_be_decrypted() {
    let directory = Directory::new();
    openssl(&directory, "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes256 -pass pass:x -out pkcs8.pem");
    openssl(&directory, "genrsa -traditional -aes256 -passout pass:x -out pkcs1.pem 2048");
    for file in ["pkcs8.pem", "pkcs1.pem"] {
        let path = directory.0.join(file);
        error(&path, "encrypted");
        assert!(findings(&tls_profile(&[&path]))[0].fix.contains("openssl pkey -in"));
    }
}

#[test]
fn weak_and_unknown_key_types_are_refused() {
    let directory = Directory::new();
    error(&by_openssl(&directory, "rsa1024", "-newkey rsa:1024"), "RSA of 1024 bits");
    error(&by_openssl(&directory, "p224", "-newkey ec -pkeyopt ec_paramgen_curve:P-224"), "P-224");
    error(&by_openssl(&directory, "k256", "-newkey ec -pkeyopt ec_paramgen_curve:secp256k1"), "secp256k1");
    error(&by_openssl(&directory, "ed448", "-newkey ed448"), "Ed448");
    error(&by_openssl(&directory, "pss", "-newkey rsa-pss"), "RSA restricted to PSS");
    openssl(&directory, "dsaparam -genkey -noout -out dsa.k 2048");
    let dsa = by_openssl(&directory, "dsa", "-key dsa.k");
    error(&dsa, "DSA");
}

#[test]
fn every_encoding_of_a_supported_key_loads() {
    let directory = Directory::new();
    let convert = |name: &str, arguments: &str| {
        let made = by_openssl(&directory, name, arguments);
        // Ed25519 has no encoding of its own.
        let format = if name == "ed25519" { "" } else { " -traditional" };
        openssl(&directory, &format!("pkey -in {name}.k{format} -out {name}.t"));
        let traditional = fs::read_to_string(directory.0.join(format!("{name}.t"))).unwrap();
        let chain = fs::read_to_string(directory.0.join(format!("{name}.c"))).unwrap();
        (made, directory.write(&format!("{name}.t.pem"), traditional + &chain))
    };
    for (name, arguments) in [
        ("rsa2048", "-newkey rsa:2048"),
        ("rsa4096", "-newkey rsa:4096"),
        ("p256", "-newkey ec -pkeyopt ec_paramgen_curve:P-256"),
        ("p384", "-newkey ec -pkeyopt ec_paramgen_curve:P-384"),
        ("p521", "-newkey ec -pkeyopt ec_paramgen_curve:P-521"),
        ("ed25519", "-newkey ed25519"),
    ] {
        let (pkcs8, traditional) = convert(name, arguments);
        assert_eq!(findings(&tls_profile(&[&pkcs8])), [], "{name}");
        assert_eq!(findings(&tls_profile(&[&traditional])), [], "{name}");
    }
}

#[test]
fn chains_out_of_order_are_repaired_when_there_is_one_way_only() {
    let authority = |name: &str| {
        let mut params = params(&[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let root = CertifiedIssuer::self_signed(authority("root"), p256()).unwrap();
    let middle = CertifiedIssuer::signed_by(authority("middle"), p256(), &root).unwrap();
    let stray = CertifiedIssuer::self_signed(authority("stray"), p256()).unwrap();
    let key = p256();
    let mut leaf = params(&[NAME]);
    leaf.distinguished_name.push(DnType::CommonName, "leaf");
    let leaf = leaf.signed_by(&key, &middle).unwrap().pem();
    let (key, middle, root, stray) = (key.serialize_pem(), middle.pem(), root.pem(), stray.pem());

    let directory = Directory::new();
    let file = |name: &str, parts: &[&String]| {
        directory.write(name, parts.iter().map(|part| part.as_str()).collect::<String>())
    };
    assert_eq!(findings(&tls_profile(&[&file("a.pem", &[&leaf, &middle, &root, &key])])), []);
    assert_eq!(findings(&tls_profile(&[&file("b.pem", &[&key, &leaf, &middle])])), []);
    for (name, parts) in
        [("c.pem", [&middle, &leaf, &root]), ("d.pem", [&leaf, &root, &middle]), ("e.pem", [&root, &middle, &leaf])]
    {
        let path = file(name, &[&[&key][..], &parts].concat());
        warning(&path, "not in order");
        let (profile, _) = Profile::load(&tls_profile(&[&path]), ALPN).unwrap();
        let acceptor = profile.acceptor(&std::sync::Arc::new(propylon_tls::Tickets::new()));
        let dialogue = Dialogue::established(&acceptor, &Client::new().config());
        let served = dialogue.client.peer_certificates().unwrap();
        let text = |der: &[u8]| String::from_utf8_lossy(der).into_owned();
        assert_eq!(served.len(), 3);
        assert!(text(&served[0]).contains("leaf") && text(&served[2]).matches("root").count() == 2);
    }
    error(&file("f.pem", &[&leaf, &stray, &middle, &key]), "do not make a chain");
    error(&file("g.pem", &[&middle, &leaf, &leaf, &key]), "do not make a chain");
}

#[test]
fn a_chain_and_its_key_may_be_two_files() {
    let directory = Directory::new();
    let both = ec(&[NAME]);
    let mut profile = tls_profile(&[]);
    profile.certificates.push(Certificate {
        source: CertificateSource::Pair {
            chain: directory.write("chain.crt", certificate(&both)),
            key: directory.write("key.key", private_key(&both)),
        },
        ocsp: None,
        default: false,
        uploaded: false,
        at: profile.at,
    });
    assert_eq!(findings(&profile), []);
    fs::remove_file(directory.0.join("chain.crt")).unwrap();
    fs::remove_file(directory.0.join("key.key")).unwrap();
    assert_eq!(findings(&profile).len(), 2, "both are named at once");
}

#[test]
fn a_directory_is_read_by_name_and_only_its_pem_files_are() {
    let directory = Directory::new();
    directory.write("b.pem", ec(&["b.example"]));
    directory.write("a.pem", ec(&["a.example"]));
    directory.write(".hidden.pem", "not looked at");
    directory.write("README", "not looked at");
    fs::create_dir(directory.0.join("sub.pem")).unwrap();
    assert_eq!(findings(&tls_profile(&[&directory.0])), []);
    directory.write("c.pem", "half a file");
    let found = findings(&tls_profile(&[&directory.0]));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, directory.0.join("c.pem"));
}

#[test]
fn certificates_that_clients_will_refuse_are_warned_of() {
    let directory = Directory::new();
    let with = |name: &str, change: &dyn Fn(&mut CertificateParams)| {
        let mut params = params(&[NAME]);
        change(&mut params);
        let key = p256();
        let certificate = params.self_signed(&key).unwrap();
        directory.write(name, certificate.pem() + &key.serialize_pem())
    };
    warning(&with("a.pem", &|params| params.not_after = rcgen::date_time_ymd(2020, 2, 3)), "expired on 2020-02-03");
    warning(
        &with("b.pem", &|params| params.not_before = rcgen::date_time_ymd(2999, 2, 3)),
        "not valid before 2999-02-03",
    );
    let soon = time::OffsetDateTime::now_utc() + time::Duration::days(10);
    warning(&with("soon.pem", &|params| params.not_after = soon), "in 9 days");
    let short = |params: &mut CertificateParams| {
        params.not_before = time::OffsetDateTime::now_utc() - time::Duration::days(1);
        params.not_after = soon - time::Duration::days(4);
    };
    assert_eq!(findings(&tls_profile(&[&with("short.pem", &short)])), [], "short-lived by design, and fresh");
    warning(&with("c.pem", &|params| params.subject_alt_names.clear()), "no DNS name");
    warning(&by_openssl(&directory, "sha1", "-newkey rsa:2048 -sha1"), "SHA-1");
    let open = directory.write("open.pem", ec(&[NAME]));
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let mut profile = tls_profile(&[&open]);
    profile.allow_world_readable_keys = true;
    let found = findings(&profile);
    assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
    assert!(found[0].what.contains("every account") && found[0].fix.starts_with("chmod o= "), "{found:?}");
}

#[test]
fn a_key_that_every_account_can_get_at_is_refused_wherever_it_is() {
    let directory = Directory::new();
    let pair = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let chain = CertificateParams::new(vec![NAME.into()]).unwrap().self_signed(&pair).unwrap().pem();
    let folder = directory.0.join("folder");
    fs::create_dir(&folder).unwrap();
    let chain_path = directory.write("chain.crt", &chain);
    let places = ["whole.pem", "alone.key", "folder/whole.pem", "folder/alone.key"].map(|name| {
        let chain = if name.ends_with(".pem") { chain.as_str() } else { "" };
        directory.write(name, chain.to_owned() + &pair.serialize_pem())
    });
    directory.write("folder/alone.crt", &chain);
    let [whole, alone, in_folder, alone_in_folder] = &places;
    let mut with_pair = tls_profile(&[whole]);
    with_pair.certificates[0].source =
        propylon_config::CertificateSource::Pair { chain: chain_path.clone(), key: alone.clone() };
    let profiles = [
        (tls_profile(&[whole]), whole),
        (with_pair, alone),
        (tls_profile(&[&folder]), in_folder),
        (tls_profile(&[&folder]), alone_in_folder),
    ];
    for (profile, key_path) in profiles {
        // An account that may write a key may have replaced it.
        for mode in [0o604, 0o602, 0o644] {
            fs::set_permissions(key_path, fs::Permissions::from_mode(mode)).unwrap();
            let found = findings(&profile);
            let refused: Vec<_> = found.iter().filter(|finding| finding.severity == Severity::Error).collect();
            // In a folder its chain is left without a key.
            assert!(!refused.is_empty() && refused.len() <= 2, "{found:#?}");
            assert_eq!(refused[0].path, *key_path);
            assert_eq!(refused[0].what, propylon_crypto::OPEN_TO_ALL);
            assert!(refused[0].fix.contains("chmod o= ") && refused[0].fix.contains("allow_world_readable_keys"));
        }
        fs::set_permissions(key_path, fs::Permissions::from_mode(0o640)).unwrap();
        let found = findings(&profile);
        assert!(found.iter().all(|finding| finding.severity == Severity::Warning), "{found:#?}");
    }
    // A world-readable chain without a key is no secret.
    fs::set_permissions(&chain_path, fs::Permissions::from_mode(0o644)).unwrap();
    let mut profile = tls_profile(&[whole]);
    profile.certificates[0].source = propylon_config::CertificateSource::Pair { chain: chain_path, key: alone.clone() };
    assert_eq!(findings(&profile), []);
}

#[test]
fn a_later_certificate_for_the_same_name_and_key_type_is_ignored() {
    let directory = Directory::new();
    let first = directory.write("a.pem", ec(&[NAME]));
    let second = directory.write("b.pem", ec(&[NAME, "other.example"]));
    let found = findings(&tls_profile(&[&first, &second]));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].severity, found[0].at.line), (Severity::Warning, 2));
    assert!(found[0].what.contains("P-256") && found[0].what.ends_with(NAME), "{}", found[0].what);
    let rsa = directory.write("c.pem", rsa(&[NAME]));
    assert_eq!(findings(&tls_profile(&[&first, &rsa])), []);
}

#[test]
fn all_findings_come_at_once_in_the_order_of_the_configuration() {
    let directory = Directory::new();
    let paths = ["x.pem", "y.pem"].map(|name| directory.0.join(name));
    let lines: Vec<_> = findings(&tls_profile(&[&paths[0], &paths[1]])).iter().map(|finding| finding.at.line).collect();
    assert_eq!(lines, [1, 2]);
    assert_eq!(findings(&tls_profile(&[]))[0].at.line, 99);
}

#[test]
fn a_folder_puts_keys_and_their_chains_together() {
    let (one, two) = (ec(&["one.example"]), rsa(&["two.example"]));
    // certbot: the leaf alone beside the whole chain, and a folder's README.
    let directory = Directory::new();
    let authority = {
        let mut params = params(&[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&p256()).unwrap().pem()
    };
    directory.write("cert.pem", certificate(&one));
    directory.write("chain.pem", &authority);
    directory.write("privkey.pem", private_key(&one));
    directory.write("README", "not looked at");
    assert_eq!(findings(&tls_profile(&[&directory.0])), []);
    // Several pairs, a file with both, and the names of Kubernetes.
    directory.write("tls.crt", certificate(&two));
    directory.write("tls.key", private_key(&two));
    directory.write("both.pem", ec(&["three.example"]));
    let (profile, findings) = Profile::load(&tls_profile(&[&directory.0]), ALPN).unwrap();
    assert_eq!(findings, []);
    let mut served: Vec<_> = profile.served().map(|served| (served.name, served.key_type.name())).collect();
    served.sort();
    assert_eq!(
        served,
        [("one.example", "ecdsa"), ("three.example", "ecdsa"), ("two.example", "rsa")]
            .map(|(name, kind)| (name.to_string(), kind))
    );
    // Chains without keys, and keys without chains, are named.
    fs::remove_file(directory.0.join("tls.key")).unwrap();
    error_in(&directory, "tls.crt", "no private key for this certificate");
    fs::remove_file(directory.0.join("tls.crt")).unwrap();
    directory.write("stray.key", private_key(&two));
    error_in(&directory, "stray.key", "no certificate in the folder belongs");
}

fn error_in(directory: &Directory, file: &str, what: &str) {
    let found = findings(&tls_profile(&[&directory.0]));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].severity, found[0].path.as_path()), (Severity::Error, directory.0.join(file).as_path()));
    assert!(found[0].what.contains(what), "{}", found[0].what);
}

#[test]
fn responses_that_cannot_be_stapled_are_warned_of_and_a_named_one_must_be_there() {
    let directory = Directory::new();
    let path = directory.write("shop.pem", ec(&[NAME]));
    let response = directory.write("shop.pem.ocsp", "no response");
    let found = findings(&tls_profile(&[&path]));
    assert_eq!((found.len(), found[0].severity, found[0].path.as_path()), (1, Severity::Warning, response.as_path()));
    // OCSPResponse { responseStatus tryLater }
    directory.write("shop.pem.ocsp", [0x30, 3, 0x0a, 1, 3]);
    assert!(findings(&tls_profile(&[&path]))[0].what.contains("status 3"));
    let mut named = tls_profile(&[&path]);
    named.certificates[0].ocsp = Some(directory.0.join("gone.ocsp"));
    assert_eq!(findings(&named)[0].severity, Severity::Error);
    fs::remove_file(response).unwrap();
    let must =
        by_openssl(&directory, "must", "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -addext tlsfeature=status_request");
    warning_about(&must, "demands a stapled OCSP response");
}

fn warning_about(path: &Path, what: &str) {
    let found = findings(&tls_profile(&[path]));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].severity == Severity::Warning && found[0].what.contains(what), "{found:#?}");
}
