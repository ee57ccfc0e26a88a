//! The rule of the profiles that releases are built by: each is whole, small, and told of.

use std::fs;
use std::path::Path;

use super::finding::Finding;

/// Folder of `HOST.profdata.gz` and `HOST.txt`, which `make profile` writes.
const FOLDER: &str = "profile";
/// Platforms that have to have one.
const HOSTS: [&str; 1] = ["x86_64-unknown-linux-gnu"];
/// Lines of `HOST.txt` that `scripts/release.sh` goes by, with the hexadecimal digits of those that are digests.
const LINES: [(&str, Option<usize>); 3] = [("digest", Some(64)), ("compiler", None), ("names", Some(16))];
/// As in `scripts/profile.sh`: each new one stays in the history for good.
const BYTES_MAX: usize = 4_000_000;
/// Begins a file of gzip, deflated (RFC 1952 section 2.3).
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

pub fn check(root: &Path) -> Vec<Finding> {
    HOSTS.iter().flat_map(|host| check_host(&root.join(FOLDER), host)).collect()
}

fn check_host(folder: &Path, host: &str) -> Vec<Finding> {
    let (profile, about) = (format!("{host}.profdata.gz"), format!("{host}.txt"));
    let mut findings = Vec::new();
    let mut find = |name: &str, what: String| findings.push(Finding::error(&Path::new(FOLDER).join(name), 1, what));
    match fs::read(folder.join(&profile)) {
        Err(error) => find(&profile, format!("no release can be built by it: {error}; `make profile` makes it")),
        Ok(bytes) if !bytes.starts_with(&GZIP) => find(&profile, "it is not a file of gzip".into()),
        Ok(bytes) if bytes.len() > BYTES_MAX => {
            find(&profile, format!("it has {} bytes, more than {BYTES_MAX}", bytes.len()));
        }
        Ok(_) => {}
    }
    let text = fs::read_to_string(folder.join(&about)).unwrap_or_default();
    for (key, digits) in LINES {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).unwrap_or_default();
        let is_hex = |digits| value.len() == digits && value.bytes().all(|byte| byte.is_ascii_hexdigit());
        if value.is_empty() || !digits.is_none_or(is_hex) {
            find(&about, format!("it has no line `{key}: ...` as `make profile` writes it"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_there_and_whole_and_told_of() {
        let folder = std::env::temp_dir().join(format!("xtask-profile-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let found = |profile: &[u8], about: &str| {
            fs::write(folder.join("host.profdata.gz"), profile).expect("a file");
            fs::write(folder.join("host.txt"), about).expect("a file");
            check_host(&folder, "host").len()
        };
        let gzip = [&GZIP[..], &[0; 20]].concat();
        let digest = "0123456789abcdef".repeat(4);
        let about = format!("digest: {digest}\ncompiler: rustc 1.95.0\nnames: 0123456789abcdef\n");
        assert_eq!(found(&gzip, &about), 0);
        assert_eq!(found(b"version https://git-lfs", &about), 1, "a pointer in its place");
        assert_eq!(found(&[&GZIP[..], &vec![0; BYTES_MAX]].concat(), &about), 1, "too large");
        assert_eq!(found(&gzip, &about.replace("compiler", "rustc")), 1);
        assert_eq!(found(&gzip, &about.replace("names: 0123", "names: ")), 1, "a digest cut short");
        assert_eq!(found(&gzip, ""), LINES.len());
        fs::remove_dir_all(&folder).expect("the folder");
        assert_eq!(check_host(&folder, "host").len(), 1 + LINES.len(), "nothing is there");
    }
}
