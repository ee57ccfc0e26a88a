//! The version of a program, with how it was compiled.

use std::sync::LazyLock;

/// Digest of the profile that the compiler was given; `scripts/release.sh` sets it, and an ordinary build does not.
const PROFILE: Option<&str> = option_env!("PROPYLON_PROFILE");

/// Version for `--version`: `0.1.0 (plain build)`, or `0.1.0 (profile-guided build, profile 1a2b3c4d5e6f)` with the
/// first 12 digits of the profile's SHA-256.
#[must_use]
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| version_with(PROFILE));
    &VERSION
}

fn version_with(profile: Option<&str>) -> String {
    let number = env!("CARGO_PKG_VERSION");
    match profile {
        Some(digest) => format!("{number} (profile-guided build, profile {digest})"),
        None => format!("{number} (plain build)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_says_whether_a_profile_guided_it_and_which() {
        let number = env!("CARGO_PKG_VERSION");
        assert_eq!(version_with(None), format!("{number} (plain build)"));
        assert_eq!(
            version_with(Some("1a2b3c4d5e6f")),
            format!("{number} (profile-guided build, profile 1a2b3c4d5e6f)")
        );
    }
}
