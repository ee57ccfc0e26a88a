# Common to scripts/release.sh and scripts/profile.sh, which read it: where the kept profile lies, and what it is good for.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
TARGET="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
HOST="$(rustc -vV | sed -n 's/^host: //p')"
# Set by scripts/release.sh alone, for a build that has a profile.
unset PROPYLON_PROFILE
# Their selection decides which features libraries are built with, and with them every function's name: one for all builds.
PACKAGES=(--package propylon --package propylonctl --package propylon-keyserver)
# A triple apart from cargo's default keeps flags away from build scripts and macros, and programs of both builds alike.
BUILD=(cargo build --locked --release --target "$HOST" "${PACKAGES[@]}")
KEPT="profile/$HOST.profdata.gz"
ABOUT="profile/$HOST.txt"

# What the names of all functions hang on beside the sources: compiler, packages with their features, and settings. Cargo
# and rustc hash them into each name, so that a profile of other packages is one of other functions.
name_base() {
    local names
    names="$({
        rustc -vV
        cargo tree --locked --target "$HOST" --edges normal,build --prefix none --format '{p} {f}' "${PACKAGES[@]}" |
            sed -e 's/ (\*)$//' -e 's/ (\/[^)]*)//' | LC_ALL=C sort -u
        sed -n '/^\[profile\.release/,/^$/p' Cargo.toml
        env | grep '^CARGO_PROFILE_RELEASE' | LC_ALL=C sort || true
    })"
    echo "$names" | sha256sum | cut -c 1-16
}

# A line of what was written about the kept profile.
about() {
    sed -n "s/^$1: //p" "$ABOUT"
}

# How the compiler names itself, with the library that writes and reads profiles.
compiler() {
    rustc -vV | sed -n -e '1p' -e 's/^LLVM version: /LLVM /p' | paste -sd ',' | sed 's/,/, /'
}

# Flags for cargo in the form in which they may have spaces, behind those of the caller.
flags() {
    local all=() IFS=$' \t\n'
    if [ -n "${CARGO_ENCODED_RUSTFLAGS:-}" ]; then
        IFS=$'\x1f' read -r -a all <<< "$CARGO_ENCODED_RUSTFLAGS"
    else
        read -r -a all <<< "${RUSTFLAGS:-}"
    fi
    all+=("$@")
    IFS=$'\x1f'
    echo "${all[*]}"
}

fail() {
    echo "$1" >&2
    exit 1
}
