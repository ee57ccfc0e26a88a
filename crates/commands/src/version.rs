//! The version of a program, with what it was built of and how.

use std::sync::LazyLock;

/// Digest of the profile that the compiler was given; `scripts/release.sh` sets it, and an ordinary build does not.
const PROFILE: Option<&str> = option_env!("PROPYLON_PROFILE");

/// Facts of a build that only the binary itself knows.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// Commit of the sources, in hexadecimal digits, with `-dirty` behind them where other changes lay in the tree;
    /// `scripts/commit.sh` tells it. None, or nothing, where the sources came without git.
    pub commit: Option<&'static str>,
    /// Features of Cargo that it has, of those that may be chosen; none for programs that have no choice.
    pub features: Option<&'static [&'static str]>,
}

/// Version in one line, for `-V`: `0.1.0 (plain build)`, or with the first 12 digits of the profile's SHA-256
/// `0.1.0 (profile-guided build, profile 1a2b3c4d5e6f)`.
#[must_use]
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| format!("{} ({})", NUMBER, kind(PROFILE)));
    &VERSION
}

/// Version for `--version`: the number alone in the first line, and a line each for the rest that is known.
#[must_use]
pub fn long_version(build: &Build) -> &'static str {
    // A program asks once.
    Box::leak(long_version_with(build, PROFILE).into_boxed_str())
}

const NUMBER: &str = env!("CARGO_PKG_VERSION");

fn kind(profile: Option<&str>) -> String {
    match profile {
        Some(digest) => format!("profile-guided build, profile {digest}"),
        None => "plain build".into(),
    }
}

fn long_version_with(build: &Build, profile: Option<&str>) -> String {
    let mut text = format!("{NUMBER}\n{}", kind(profile));
    if let Some(commit) = build.commit.filter(|commit| !commit.is_empty()) {
        match commit.strip_suffix("-dirty") {
            Some(commit) => text.push_str(&format!("\ncommit {commit}, with other changes")),
            None => text.push_str(&format!("\ncommit {commit}")),
        }
    }
    if let Some(features) = build.features {
        let names = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        text.push_str(&format!("\nfeatures: {names}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_says_whether_a_profile_guided_it_and_which() {
        assert_eq!(kind(None), "plain build");
        assert_eq!(kind(Some("1a2b3c4d5e6f")), "profile-guided build, profile 1a2b3c4d5e6f");
        assert!(version().starts_with(&format!("{NUMBER} (")));
    }

    #[test]
    fn a_build_says_its_number_alone_and_then_what_else_is_known() {
        let said = |commit, features| long_version_with(&Build { commit, features }, None).replacen(NUMBER, "N", 1);
        assert_eq!(said(None, None), "N\nplain build");
        assert_eq!(said(Some(""), Some(&[])), "N\nplain build\nfeatures: none");
        assert_eq!(said(Some("1a2b"), Some(&["pkcs11"])), "N\nplain build\ncommit 1a2b\nfeatures: pkcs11");
        assert_eq!(said(Some("1a2b-dirty"), None), "N\nplain build\ncommit 1a2b, with other changes");
    }
}
