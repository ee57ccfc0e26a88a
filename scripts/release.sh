#!/usr/bin/env bash
# Builds the programs of a release into TARGET/dist: propylon, propylonctl, propylon-keyserver.
# The compiler is given the profile that is kept in profile/, where it can make use of it; else they are built without, and
# a line says why. `propylon --version` says which it is. docs/decisions/0047-profile-guided.md has the reasons.
set -euo pipefail
# shellcheck source=scripts/profile-common.sh
source "$(dirname "$0")/profile-common.sh"

BINARIES=(--bin propylon --bin propylonctl --bin propylon-keyserver)

main() {
    # A rebuild of what has it alone: the binaries' own files.
    PROPYLON_COMMIT="${PROPYLON_COMMIT-$(scripts/commit.sh)}"
    export PROPYLON_COMMIT
    local reason="" built
    if reason="$(unfit)"; then
        echo "plain build: $reason"
        cargo build --locked --release "${PACKAGES[@]}" "${BINARIES[@]}"
        built="$TARGET/release"
    else
        guided
        built="$TARGET/guided/$HOST/release"
    fi
    need_kernels_as_read "$built"
    mkdir -p "$TARGET/dist"
    # A program that runs, or a link that cargo made, is not written into.
    cp --remove-destination "$built"/{propylon,propylonctl,propylon-keyserver} "$TARGET/dist/"
    echo "built in $TARGET/dist: $("$TARGET/dist/propylon" -V)${reason:+: $reason}"
}

# Says why the kept profile is of no use here; fails if it is of use.
unfit() {
    if [ "${PROFILE:-}" = none ]; then
        echo "PROFILE=none asks for it"
    elif [ ! -f "$KEPT" ] || [ ! -f "$ABOUT" ]; then
        echo "no profile is kept for $HOST; \`make profile\` makes one"
    elif [ "$(about compiler)" != "$(compiler)" ]; then
        local release
        release="$(about compiler | cut -d ' ' -f 2)"
        echo "the kept profile is $(about compiler)'s, and this is $(compiler). With rustup:" \
            "\`rustup toolchain install $release && RUSTUP_TOOLCHAIN=$release make release\`; or \`make profile\`"
    elif [ "$(about names)" != "$(name_base)" ]; then
        echo "packages, features or settings are others than when the profile was made; \`make profile\` makes it anew"
    else
        return 1
    fi
}

guided() {
    local digest profile
    digest="$(about digest | cut -c 1-12)"
    profile="$TARGET/guided/$digest.profdata"
    mkdir -p "$TARGET/guided"
    # A file that is there is left as it is: cargo builds everything again when it is newer.
    if ! is_whole "$profile"; then
        gzip -dc "$KEPT" > "$profile.new"
        is_whole "$profile.new" || fail "$KEPT is not what $ABOUT tells of"
        mv "$profile.new" "$profile"
    fi
    # A wrapper of the caller's, such as sccache, comes behind ours.
    PROPYLON_RUSTC_WRAPPER="${RUSTC_WRAPPER:-}" RUSTC_WRAPPER="$ROOT/scripts/rustc-apart.sh" \
        CARGO_ENCODED_RUSTFLAGS="$(flags "-Cprofile-use=$profile")" PROPYLON_PROFILE="$digest" \
        "${BUILD[@]}" --target-dir "$TARGET/guided" "${BINARIES[@]}"
}

# The kernels' machine code has to be the one that was read: no profile may have come to it.
need_kernels_as_read() {
    local program
    if [ "${HOST%%-*}" != x86_64 ] || ! command -v objdump >/dev/null; then
        return
    fi
    for program in propylon propylon-keyserver; do
        cargo xtask lanes "$1/$program" > "$TARGET/lanes.log" 2>&1 || fail "$1/$program: $(tail -n 10 "$TARGET/lanes.log")"
    done
}

is_whole() {
    [ -f "$1" ] && [ "$(sha256sum < "$1" | cut -c 1-64)" = "$(about digest)" ]
}

main
